/* SPDX-License-Identifier: MIT */
/* The tensors of a vision tower, by their roles: made of its config and its family. */
#ifndef QV_TOWERS_TOWER_H
#define QV_TOWERS_TOWER_H

#include "config.h"

enum qv_tensor_form {
    QV_TENSOR_MATRIX, /* [n,k], packed, model's dtype */
    QV_TENSOR_TABLE,  /* [n,k], row-major, model's dtype */
    QV_TENSOR_VECTOR, /* [n], f32 */
    QV_TENSOR_BIAS,   /* [n], model's dtype */
};

/* Some checkpoints hold in parts what the device has as one: parts of n rows each, one behind the
 * other, each with its rows of zeros. */
enum { QV_MOST_PARTS = 3 };
struct qv_tensor_spec {
    char names[QV_MOST_PARTS][96]; /* below "visual.": "blocks.0.attn.qkv.weight" */
    int n_parts;
    enum qv_tensor_form form;
    int64_t n, k;         /* of a part; k is 1 for a vector or a bias */
    bool conv3d;          /* stored 5D, 2D or channels-last; also named linear_proj */
    bool conv2d;          /* stored [n, channels, merge, merge], here [n, merge, merge, channels] */
    int64_t pad_n, pad_k; /* rows and columns of zeros that the device has behind */
};

/* As the device has it. */
static inline int64_t
qv_tensor_rows(const struct qv_tensor_spec *spec)
{
    return spec->n_parts * (spec->n + spec->pad_n);
}

/* Rows and columns of patches that a grid may have. */
enum { QV_MOST_POSITIONS = 8192 };

/* Roles hold the ids of tensors; QV_NO_TENSOR where the family has none. */
enum { QV_NO_TENSOR = -1 };

struct qv_linear {
    int weight, bias;
};
struct qv_norm {
    int weight, bias; /* without a bias it is the root of the mean square's */
    double eps;
};
struct qv_block {
    struct qv_norm norm1, norm2;
    struct qv_linear qkv, proj, fc1, fc2; /* fc1 of a gated MLP: gate, then up */
};
struct qv_merger {
    struct qv_norm norm;
    bool norm_merged; /* the norm sees merged rows, not patches */
    struct qv_linear downsample, proj;
    struct qv_norm proj_norm;
    struct qv_linear fc1, fc2; /* fc1 of a gated one: gate, then up */
};

struct qv_tower {
    struct qv_tensor_spec *tensors; /* [n], in the order of the checkpoint's digest */
    size_t n;
    struct qv_linear patch_embed;
    struct qv_norm patch_norm;
    int positions; /* QV_NO_TENSOR: the family has none */
    /* behind the tensors: of every position the rotary angles, f32 [QV_MOST_POSITIONS, head_dim/4] */
    size_t cosines, sines;
    struct qv_block *blocks;                        /* [depth] */
    struct qv_merger mergers[1 + QV_MAX_DEEPSTACK]; /* the tokens', then DeepStack's */
};

/* QV_ENOMEM. The caller closes it, also after a failure. */
qv_status qv_tower_open(const struct qv_config *c, struct qv_tower *out, qv_error *err);
void qv_tower_close(struct qv_tower *tower);

#endif
