/* SPDX-License-Identifier: MIT */
/*
 * How a Conv3d is run, and why: pure functions of a description (qwenvit.h), a device's
 * capabilities and its thresholds. Nothing here computes on activations, allocates or knows a
 * device.
 */
#ifndef QV_SRC_CONV3D_H
#define QV_SRC_CONV3D_H

#include "engine/backend.h"

/* ---- conv3d.c: which way, and why ------------------------------------------------------------ */

/* Where one way starts to pay over another; still wins wherever it is legal, and frames too. */
struct qv_conv3d_thresholds {
    int64_t by_depth_max_kd; /* kernels deeper than this go to direct */
    int64_t by_depth_min_c;  /* dense ones of fewer channels too; depthwise goes by depth */
    int64_t rows_min_o; /* with fewer outputs, channels-last frames are not copied into rows for a
                           product, but go to frames, by depth or direct */
};

/* Of a device, by its backend's name and its description; an unknown one goes direct. */
const struct qv_conv3d_thresholds *qv_conv3d_thresholds_of(const char *backend,
                                                           const struct qv_caps *caps);

struct qv_conv3d_decision {
    qv_lowering lowering;
    char reason[QV_REASON_BYTES];
    unsigned legal; /* bit 1u << lowering */
};

int qv_lowering_find(const char *name); /* -1: no such */

/* The description with every zero that means a default replaced by it. */
qv_conv3d_desc qv_conv3d_defaults(const qv_conv3d_desc *desc, qv_dtype dtype);

/* QV_EINVAL naming field and value: sizes not positive, products beyond int64, a kernel larger
 * than its padded input, groups that do not divide, a layout that the geometry does not allow.
 * Takes, as all below, a description without defaults to fill in. */
qv_status qv_conv3d_check(const qv_conv3d_desc *desc, qv_error *err);

/* d', h', w' of a checked description, and n*d'*h'*w'. */
void qv_conv3d_output(const qv_conv3d_desc *desc, int64_t out[3]);
int64_t qv_conv3d_rows(const qv_conv3d_desc *desc);

/* x lies in memory as the matrix [n*d'*h'*w', c*kd*kh*kw]: patch rows; volumes of one kernel each;
 * voxels where the kernel is one. */
bool qv_conv3d_input_is_rows(const qv_conv3d_desc *desc);

/* Of a checked description; a multiply-add counts two. */
double qv_conv3d_flops(const qv_conv3d_desc *desc);

/* Whether a lowering computes this convolution; text[size] says what it comes down to, or the first
 * thing that forbids it with its values. */
bool qv_conv3d_legal(const qv_conv3d_desc *desc, const struct qv_caps *caps, qv_lowering lowering,
                     char *text, size_t size);

/* The lowering, and why. forced: a qv_lowering, or -1 to choose. QV_EINVAL for a bad description,
 * or a forced lowering that is not legal. */
qv_status qv_conv3d_decide(const qv_conv3d_desc *desc, const struct qv_caps *caps,
                           const struct qv_conv3d_thresholds *thresholds, int forced,
                           struct qv_conv3d_decision *out, qv_error *err);

/* ---- conv3d_text.c: descriptions as lines of text -------------------------------------------- */

/* "n=1 d=21 h=60 ... kernel=3,3,3 ... dtype=bf16", fields that are default left out; the key of the
 * tune file and the line of a shapes file. Always terminated; returns text. */
const char *qv_conv3d_print(const qv_conv3d_desc *desc, char *text, size_t size);
/* The reverse: fields left out are defaults. QV_EINVAL naming the word that is wrong. */
qv_status qv_conv3d_parse(const char *text, qv_conv3d_desc *out, qv_error *err);

/* ---- conv3d_lower.c: the operations of a lowering -------------------------------------------- */

/* Buffers between which the operations work. */
enum qv_conv3d_buffer {
    QV_CONV3D_NONE,  /* operand not used */
    QV_CONV3D_INPUT, /* x; where `still` takes byte frames, the first of each kernel[0] only */
    QV_CONV3D_WEIGHT,
    QV_CONV3D_BIAS,
    QV_CONV3D_ADDEND,
    QV_CONV3D_ROWS,   /* scratch: patch rows */
    QV_CONV3D_VOXELS, /* scratch: x as channels last */
    QV_CONV3D_SUMS,   /* scratch: f32 sums over depth taps */
    QV_CONV3D_OUTPUT,
    QV_CONV3D_BUFFERS
};

/* An operand: bytes into a buffer; for the weight, which of its pieces. */
struct qv_conv3d_operand {
    enum qv_conv3d_buffer buffer;
    int64_t at;
};

/* The weight as operations take it: `pieces` matrices [o, k]. */
struct qv_conv3d_form {
    int pieces;         /* by depth: one for each depth tap; else 1 */
    int64_t o, k;       /* of a piece */
    bool summed;        /* over depth, in double, rounded once */
    bool channels_last; /* columns (kd, kh, kw, c), not (c, kd, kh, kw) */
};

enum { QV_CONV3D_MOST_TAPS = 16, QV_CONV3D_MOST_STEPS = QV_CONV3D_MOST_TAPS + 3 };

struct qv_conv3d_step {
    struct qv_op op;
    struct qv_conv3d_operand operands[QV_MAX_OPERANDS];
};
struct qv_conv3d_list {
    struct qv_conv3d_form weight;
    size_t bytes[QV_CONV3D_BUFFERS]; /* canonical size of each; 0: not used */
    int n;
    struct qv_conv3d_step steps[QV_CONV3D_MOST_STEPS];
};

/* The operations of a legal lowering of a checked description whose depth is not padded (whoever
 * runs it puts the padding frames in front and behind). */
void qv_conv3d_lower(const qv_conv3d_desc *desc, qv_lowering lowering, struct qv_conv3d_list *out);

/* Piece `piece` of the weight in that form: src[o, c/groups, kd, kh, kw] (or channels last) of
 * dtype `from` -> dst[o, k] in the description's dtype. */
void qv_conv3d_reshape(const qv_conv3d_desc *desc, const struct qv_conv3d_form *form, int piece,
                       const void *src, int64_t from, bool src_channels_last, void *dst);

/* w[o, c, kd, khw] in dtype `from` -> out[o, c, khw] in dtype `to`: summed over kd in double and
 * rounded once. out may be w if the dtypes are equal. */
void qv_conv3d_sum_depth(const void *w, int64_t from, int64_t o, int64_t c, int64_t kd, int64_t khw,
                         int64_t to, void *out);

/* w[o, taps, c], as MLX stores weights, -> out[o, c, taps]; taps = kd*kh*kw, any element size. */
void qv_conv3d_channels_last_to_first(const void *w, int64_t o, int64_t taps, int64_t c,
                                      size_t element_bytes, void *out);

/* ---- conv3d_definition.c --------------------------------------------------------------------- */

/*
 * The convolution by its definition: seven loops, sums in double, nothing rounded. x as the
 * description says (dtype or bytes); weight[o, c/groups, kd, kh, kw] and addend in the
 * description's dtype, to which bias is rounded; bias and addend NULL where there is none;
 * y[count, o] in double: rows [first, first+count) of n*d'*h'*w'. Depth padding as a first call has
 * it. QV_ENOMEM.
 */
qv_status qv_conv3d_define(const qv_conv3d_desc *desc, const void *x, const void *weight,
                           const float *bias, const void *addend, int64_t first, int64_t count,
                           double *y, qv_error *err);

#endif
