/* SPDX-License-Identifier: MIT */
/*
 * How a Conv3d is run, and why: pure functions of a description, a device's capabilities and its
 * thresholds. Nothing here computes on activations, allocates or knows a device.
 *
 * y[n, d', h', w', o] = act(alpha * sum over c, kd, kh, kw of x[..] weight[o, c, kd, kh, kw]
 *                           + bias[o]) + addend[row % addend_rows, o]
 * Axes are depth (frames), height, width, in this order in every [3].
 */
#ifndef QV_SRC_CONV3D_H
#define QV_SRC_CONV3D_H

#include "backend.h"

/* One list for the enum and the names: DESIGN.md's table. */
#define QV_LOWERING_LIST(X)                                                                        \
    X(PATCHIFY, "patchify")   /* kernel = stride: one GEMM */                                      \
    X(STILL, "still")         /* the same for equal frames: weight slices summed over depth */     \
    X(POINTWISE, "pointwise") /* 1x1x1: one GEMM over channels */                                  \
    X(FRAMES, "frames")       /* kernel depth 1: one batched 2D convolution */                     \
    X(BY_DEPTH, "by depth")   /* a 2D convolution for each depth tap, summed in f32 */             \
    X(DIRECT, "direct")       /* the device's 3D convolution */

enum qv_lowering {
#define QV_LOWERING_ENUM(name, text) QV_LOWERING_##name,
    QV_LOWERING_LIST(QV_LOWERING_ENUM)
#undef QV_LOWERING_ENUM
        QV_LOWERING_COUNT
};

/* The input x. PATCH_ROWS and FRAMES_U8 hold whole patches (kernel = stride, no padding); frames,
 * by depth and direct take their rows as n*d'*h'*w' channels-first volumes of one kernel each. */
enum qv_conv3d_layout {
    QV_LAYOUT_CHANNELS_FIRST, /* [n, c, d, h, w] */
    QV_LAYOUT_CHANNELS_LAST,  /* [n, d, h, w, c] */
    QV_LAYOUT_PATCH_ROWS,     /* [n*d'*h'*w', c*kd*kh*kw]; y has the same order of rows */
    QV_LAYOUT_FRAMES_U8,      /* bytes [n*d, h, w, c], c <= 3, square patches; the rows of y are in
                                 block order (n*d', h'/merge, w'/merge, merge, merge) */
    QV_LAYOUT_COUNT
};

/* What stands in the pad_front[0] frames in front. Height and width are padded with zeros. */
enum qv_conv3d_causal {
    QV_CAUSAL_NONE,  /* zeros, and pad_back[0] of them behind */
    QV_CAUSAL_ZEROS, /* all in front, so pad_back[0] is 0; so for the next two */
    QV_CAUSAL_FIRST, /* the first frame, repeated */
    QV_CAUSAL_KEPT,  /* the last frames of the chunk before */
    QV_CAUSAL_COUNT
};

struct qv_conv3d_desc {
    int64_t n, d, h, w, c, o; /* d frames of h x w with c channels in, o out */
    int64_t kernel[3], stride[3], dilation[3];
    int64_t pad_front[3], pad_back[3];
    int64_t groups;      /* 1: dense. Weight is [o, c/groups, kd, kh, kw] */
    int64_t merge;       /* block order of y's rows for QV_LAYOUT_FRAMES_U8; else not looked at */
    int64_t addend_rows; /* 0: no addend; divides n*d'*h'*w' */
    double alpha;        /* not 0 */
    double pixel_scale[3], pixel_shift[3]; /* QV_LAYOUT_FRAMES_U8: x = byte * scale + shift */
    enum qv_conv3d_layout layout;
    enum qv_conv3d_causal causal;
    enum qv_act act;
    qv_dtype dtype; /* QV_F32 or QV_BF16: of x (unless bytes), weight, addend and y; bias is f32 */
    bool bias;
    bool frames_equal; /* a promise: the kernel[0] frames below a kernel are one picture. Where
                          `still` is chosen, QV_LAYOUT_FRAMES_U8 holds that picture once. */
};

/* Where by depth and direct part. All the others win wherever they are legal. */
struct qv_conv3d_thresholds {
    int64_t by_depth_max_kd;   /* kernels deeper than this go to direct */
    double by_depth_min_flops; /* less work than this in one depth tap goes to direct */
};

/* Of a backend, by its name; an unknown one gets the CPU's. */
const struct qv_conv3d_thresholds *qv_conv3d_thresholds_of(const char *backend);

/* The weight that a lowering's operations take, rows o. */
enum qv_conv3d_weight {
    QV_CONV3D_CANONICAL,   /* [o, c/groups * kd*kh*kw]: the checkpoint's bytes */
    QV_CONV3D_DEPTH_SUMMED /* [o, c * kh*kw]: qv_conv3d_sum_depth */
};

/* Which buffer an operation's operand is. */
enum qv_conv3d_operand {
    QV_CONV3D_NONE, /* not used */
    QV_CONV3D_INPUT,
    QV_CONV3D_WEIGHT,
    QV_CONV3D_BIAS,
    QV_CONV3D_ADDEND,
    QV_CONV3D_ROWS, /* scratch between the operations */
    QV_CONV3D_OUTPUT
};

#define QV_CONV3D_MAX_OPS 2
#define QV_CONV3D_REASON 160 /* bytes of a reason */

struct qv_conv3d_decision {
    enum qv_lowering lowering;
    char reason[QV_CONV3D_REASON];
    unsigned legal; /* bit 1u << lowering */
    enum qv_conv3d_weight weight;
    int64_t out[3]; /* d', h', w' */
    int64_t rows;   /* n * d' * h' * w' */
    int n_ops;      /* 0: decided, but not built yet; see qv_conv3d_built */
    struct qv_op ops[QV_CONV3D_MAX_OPS];
    enum qv_conv3d_operand operands[QV_CONV3D_MAX_OPS][QV_MAX_OPERANDS];
};

const char *qv_lowering_name(enum qv_lowering lowering); /* "by depth"; never NULL */
int qv_lowering_find(const char *name);                  /* -1: no such */

/* QV_EINVAL naming field and value: sizes not positive, products beyond int64, a kernel larger
 * than its padded input, groups that do not divide, a layout that the geometry does not allow. */
qv_status qv_conv3d_check(const struct qv_conv3d_desc *desc, qv_error *err);

/* d', h', w' of a checked description. */
void qv_conv3d_output(const struct qv_conv3d_desc *desc, int64_t out[3]);

/* Of a checked description; a multiply-add counts two. */
double qv_conv3d_flops(const struct qv_conv3d_desc *desc);

/* Whether a lowering computes this convolution; text[size] says what it comes down to, or the first
 * thing that forbids it with its values. */
bool qv_conv3d_legal(const struct qv_conv3d_desc *desc, const struct qv_caps *caps,
                     enum qv_lowering lowering, char *text, size_t size);

/*
 * The lowering, why, and the operations to run. forced: an enum qv_lowering, or -1 to choose.
 * QV_EINVAL for a bad description, or a forced lowering that is not legal. A lowering whose
 * operations do not exist yet is decided all the same, with n_ops = 0.
 */
qv_status qv_conv3d_decide(const struct qv_conv3d_desc *desc, const struct qv_caps *caps,
                           const struct qv_conv3d_thresholds *thresholds, int forced,
                           struct qv_conv3d_decision *out, qv_error *err);

/* QV_OK if the decision can be run, else QV_EUNSUPPORTED naming what is not built yet. */
qv_status qv_conv3d_built(const struct qv_conv3d_desc *desc,
                          const struct qv_conv3d_decision *decision, qv_error *err);

/* w[o, c, kd, khw] in dtype `from` -> out[o, c, khw] in dtype `to`: summed over kd in double and
 * rounded once. out may be w if the dtypes are equal. */
void qv_conv3d_sum_depth(const void *w, int64_t from, int64_t o, int64_t c, int64_t kd, int64_t khw,
                         int64_t to, void *out);

/* w[o, taps, c], as MLX stores weights, -> out[o, c, taps]; taps = kd*kh*kw, any element size. */
void qv_conv3d_channels_last_to_first(const void *w, int64_t o, int64_t taps, int64_t c,
                                      size_t element_bytes, void *out);

#endif
