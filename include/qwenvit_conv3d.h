/* SPDX-License-Identifier: MIT */
/*
 * A standalone Conv3d, without a model or a checkpoint: an object made from a description and a 5D
 * weight, which knows the best way to run it on a device, and why. A vision tower's patch
 * embedding, whose kernel equals its stride, becomes one GEMM.
 *
 *     qv_conv3d_create     chooses how to run it, and packs the weights
 *     qv_conv3d_run        computes y from x: whole volumes, or the next frames of a stream
 *     qv_conv3d_get_info   the chosen way, and why; qv_conv3d_get_ways describes all ways
 *     qv_conv3d_free
 *
 * docs/c.md shows a program. The conventions of qwenvit.h apply. An object and its context may be
 * used by only one thread at a time, and the object must be freed before its context.
 */
#ifndef QWENVIT_CONV3D_H
#define QWENVIT_CONV3D_H

#include "qwenvit.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct qv_conv3d qv_conv3d;

/* The ways to run a Conv3d, in the order of preference. This list generates the enum and the
 * names. */
#define QV_LOWERING_LIST(X)                                                                        \
    X(PATCHIFY, "patchify")   /* kernel = stride: one GEMM */                                      \
    X(STILL, "still")         /* patchify for equal frames: weights summed over depth */           \
    X(POINTWISE, "pointwise") /* 1x1x1: one GEMM over channels */                                  \
    X(FRAMES, "frames")       /* kernel depth 1: one batched 2D convolution */                     \
    X(BY_DEPTH, "by depth")   /* a 2D convolution per depth tap, summed in f32 */                  \
    X(DIRECT, "direct")       /* the device's own 3D convolution */

typedef enum qv_lowering {
#define QV_LOWERING_ENUM(name, text) QV_LOWERING_##name,
    QV_LOWERING_LIST(QV_LOWERING_ENUM)
#undef QV_LOWERING_ENUM
        QV_LOWERING_COUNT
} qv_lowering;
QV_API const char *qv_lowering_name(qv_lowering lowering); /* "by depth"; never NULL */

/* The layout of the input x in memory. PATCH_ROWS and FRAMES_U8 need a kernel that equals its
 * stride, and no padding. */
typedef enum qv_conv3d_layout {
    QV_LAYOUT_CHANNELS_FIRST, /* x[n, c, d, h, w] */
    QV_LAYOUT_CHANNELS_LAST,  /* x[n, d, h, w, c] */
    QV_LAYOUT_PATCH_ROWS,     /* x[n*d'*h'*w', c*kd*kh*kw], each row (c, kd, kh, kw) */
    /* Bytes x[n, d, h, w, c], with c at most 3 and square patches. The rows of y are in block
     * order: (n*d', h'/merge, w'/merge, merge, merge). */
    QV_LAYOUT_FRAMES_U8,
    QV_LAYOUT_COUNT
} qv_conv3d_layout;

/* The contents of the pad_front[0] frames before x. Height and width are padded with zeros. */
typedef enum qv_causal {
    QV_CAUSAL_NONE,  /* zeros before x, and pad_back[0] frames of zeros after it */
    QV_CAUSAL_ZEROS, /* zeros before x; pad_back[0] must be 0 */
    QV_CAUSAL_FIRST, /* the first frame repeated; pad_back[0] must be 0 */
    QV_CAUSAL_COUNT
} qv_causal;

typedef enum qv_act {
    QV_ACT_NONE,
    QV_ACT_GELU_TANH,
    QV_ACT_GELU_ERF,
    QV_ACT_SILU,       /* x / (1 + exp(-x)) */
    QV_ACT_GELU_QUICK, /* x / (1 + exp(-1.702 x)) */
    QV_ACT_COUNT
} qv_act;

/*
 * y[n, d', h', w', o] = act(alpha * sum over c, kd, kh, kw of x[..] weight[o, c, kd, kh, kw]
 *                           + bias[o]) + residual[row % residual_rows, o]
 * where d' = (d + pad_front + pad_back - dilation * (kernel - 1) - 1) / stride + 1, and h' and w'
 * likewise. Every [3] is depth (frames), height, width. The output is always channels-last: rows
 * [n*d'*h'*w', o].
 */
typedef struct qv_conv3d_desc {
    /* n volumes (0: 1) of d frames of h x w with c channels; o output channels. */
    int64_t n, d, h, w, c, o;
    int64_t kernel[3];
    int64_t stride[3], dilation[3]; /* 0: 1 */
    int64_t pad_front[3], pad_back[3];
    int64_t groups;        /* the weight is [o, c/groups, kd, kh, kw]; 0: 1 */
    int64_t merge;         /* block order of y's rows for QV_LAYOUT_FRAMES_U8; 0: 1 */
    int64_t residual_rows; /* must divide n*d'*h'*w'; 0: no residual */
    double alpha;          /* 0: 1 */
    double pixel_scale[3]; /* QV_LAYOUT_FRAMES_U8: x = byte * scale + shift; 0: 1 */
    double pixel_shift[3];
    qv_conv3d_layout layout;
    qv_causal causal;
    qv_act act;
    /* The dtype of x (unless bytes), weight, residual and y: QV_F32 or QV_BF16. QV_DTYPE_AUTO: the
     * device's. Sums are f32. */
    qv_dtype dtype;
    bool bias;
    /* The caller guarantees that the kernel[0] frames under a kernel are the same image. */
    bool frames_equal;
} qv_conv3d_desc;

/* The arrays are copied. */
typedef struct qv_conv3d_weights {
    /* [o, c/groups, kd, kh, kw], or [o, kd, kh, kw, c/groups] with channels_last. NULL: the object
     * reports ways and costs, but cannot run. */
    const void *weight;
    qv_dtype dtype; /* of `weight`: QV_F32 (QV_DTYPE_AUTO), QV_F16 or QV_BF16 */
    bool channels_last;
    const float *bias;    /* [o]; rounded to the description's dtype, like the weight */
    const void *residual; /* [residual_rows, o] in the description's dtype */
} qv_conv3d_weights;

typedef struct qv_conv3d_options {
    /* A lowering's name such as "by depth"; QV_EINVAL if it is not legal. NULL: the best one. */
    const char *lowering;
    /* Output frames computed at a time; 0: all d'. A smaller chunk needs less memory. All chunks
     * have the same shape, so the bits of an output frame do not depend on d. */
    int64_t chunk;
    /* Calls are consecutive pieces of one depth axis: a call keeps its last frames for the next
     * call. `causal` must not be NONE. */
    bool stream;
} qv_conv3d_options;

typedef struct qv_conv3d_info {
    qv_conv3d_desc desc; /* the description with every default filled in */
    int64_t out[3];      /* d', h', w' */
    int64_t rows;        /* n*d'*h'*w' */
    int64_t chunk;
    size_t x_bytes, y_bytes; /* bytes of one call */
    size_t arena_bytes, weight_bytes;
    qv_lowering lowering;
    char reason[QV_REASON_BYTES];
} qv_conv3d_info;

/*
 * Chooses the lowering, packs the weights and prepares the kernels, so that running allocates
 * nothing. The lowering is options->lowering or, if that is NULL, follows from the device's
 * thresholds. `options` may be NULL. Returns QV_EINVAL, with field and value, for an invalid
 * description; QV_EINVAL, with the reason, for a requested lowering that is not legal; QV_ENOMEM.
 */
QV_API qv_status qv_conv3d_create(qv_context *ctx, const qv_conv3d_desc *desc,
                                  const qv_conv3d_weights *weights,
                                  const qv_conv3d_options *options, qv_conv3d **out, qv_error *err);
/*
 * Computes y[n, d', h', w', o] (y_bytes) from x (x_bytes, in the description's layout). The two
 * must not overlap. Each may be in host or device memory; device memory is used in place if nothing
 * is padded or split. In a stream each call continues the previous one: d frames go in, and d /
 * stride[0] come out. A failed call does not advance the stream.
 */
QV_API qv_status qv_conv3d_run(qv_conv3d *conv, const void *x, void *y, qv_error *err);
/* Makes the next call start a new stream. */
QV_API void qv_conv3d_reset(qv_conv3d *conv);

QV_API void qv_conv3d_get_info(const qv_conv3d *conv, qv_conv3d_info *out);

/* One way to run a Conv3d. */
typedef struct qv_conv3d_way {
    qv_lowering lowering;
    bool legal, chosen;
    char reason[QV_REASON_BYTES]; /* how a legal way runs, or the first rule that forbids it */
    double flops;                 /* of one call; a multiply-add counts as two */
    double bytes;                 /* traffic of each operation's operands */
    size_t scratch_bytes;         /* buffers between the operations, and the kernels' scratch */
} qv_conv3d_way;

/* Describes every lowering, legal or not, with its cost. This is slow: it prepares kernels to learn
 * their scratch. */
QV_API qv_status qv_conv3d_get_ways(const qv_conv3d *conv, qv_conv3d_way ways[QV_LOWERING_COUNT],
                                    qv_error *err);
QV_API void qv_conv3d_free(qv_conv3d **conv);

#ifdef __cplusplus
}
#endif
#endif
