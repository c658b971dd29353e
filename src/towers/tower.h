/* SPDX-License-Identifier: MIT */
/* The tensors of a vision tower by role, listed from its config and its family. */
#pragma once

#include "config.h"

enum qv_tensor_form {
    QV_TENSOR_MATRIX, /* [n,k] in the model's dtype, laid out for GEMMs */
    QV_TENSOR_TABLE,  /* [n,k] in the model's dtype, row-major */
    QV_TENSOR_VECTOR, /* [n], f32 */
    QV_TENSOR_BIAS,   /* [n] in the model's dtype */
};

/* Some checkpoints store as several tensors what is one tensor on the device. Each has n rows, and
 * they are concatenated, each followed by its own rows of zeros. */
enum { QV_MOST_STORED = 3 };
struct qv_tensor_spec {
    /* the stored tensors' names below the prefix, such as "blocks.0.attn.qkv.weight" */
    char names[QV_MOST_STORED][96];
    int n_stored;
    enum qv_tensor_form form;
    int64_t n, k; /* a stored tensor's shape; k is 1 for a vector or a bias */
    /* the patch embedding, stored 5D, 2D or channels-last, also under the name linear_proj */
    bool conv3d;
    bool conv2d; /* stored [n, channels, merge, merge]; on the device [n, merge, merge, channels] */
    /* If `copies` is not 0, each run of `run` rows from row `single` on is stored once, and
     * repeated `copies` times on the device: heads of k and v that several heads of q share. */
    int64_t single, run, copies;
    int64_t pad_n, pad_k; /* rows and columns of zeros after it on the device */
};

/* Rows of each stored tensor. */
static inline int64_t
qv_stored_rows(const struct qv_tensor_spec *spec)
{
    return spec->copies ? spec->single + (spec->n - spec->single) / spec->copies : spec->n;
}

/* Rows and columns of the whole tensor on the device. */
static inline int64_t
qv_tensor_rows(const struct qv_tensor_spec *spec)
{
    return spec->n_stored * (spec->n + spec->pad_n);
}

/* The maximum number of rows, and of columns, of patches in a grid. */
enum { QV_MOST_POSITIONS = 8192 };

/* Roles are tensor ids, or QV_NO_TENSOR if the family has no such tensor. */
enum { QV_NO_TENSOR = -1 };

struct qv_linear {
    int weight, bias;
};
struct qv_norm {
    int weight, bias; /* with no bias the norm is RMSNorm, otherwise LayerNorm */
    double eps;
};
struct qv_block {
    struct qv_norm norm1, norm2;
    struct qv_linear qkv, proj, fc1, fc2; /* fc1 of a gated MLP computes gate, then up */
};
struct qv_merger {
    struct qv_norm norm;
    bool norm_merged; /* the norm reads merged rows instead of patches */
    struct qv_linear downsample, proj;
    struct qv_norm proj_norm;
    struct qv_linear fc1, fc2; /* fc1 of a gated MLP computes gate, then up */
};

struct qv_tower {
    /* [n], in the order of the checkpoint's digest */
    struct qv_tensor_spec *tensors;
    size_t n;
    struct qv_linear patch_embed;
    struct qv_norm patch_norm;
    int positions; /* QV_NO_TENSOR: the family has no learned positions */
    /* ids after the tensors': f32 [QV_MOST_POSITIONS, head_dim/4], the cosines and sines of the
     * rotary angles */
    size_t cosines, sines;
    struct qv_block *blocks; /* [depth] */
    /* the first makes the tokens, the others DeepStack's outputs */
    struct qv_merger mergers[1 + QV_MAX_DEEPSTACK];
};

/* Lists the tensors; QV_ENOMEM. The tower must be closed even after a failure. */
qv_status qv_tower_open(const struct qv_config *c, struct qv_tower *out, qv_error *err);
void qv_tower_close(struct qv_tower *tower);
