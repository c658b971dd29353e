/* SPDX-License-Identifier: MIT */
/* The operations of a lowering, and the weight as they take it. */
#ifndef QV_CONV3D_LOWER_H
#define QV_CONV3D_LOWER_H

#include "description.h"
#include "engine/block_order.h"
#include "engine/op.h"

/* Buffers between which the operations work. */
enum qv_conv3d_buffer {
    QV_CONV3D_NONE,  /* operand not used */
    QV_CONV3D_INPUT, /* x; where `still` takes byte frames, the first of each kernel[0] only */
    QV_CONV3D_WEIGHT,
    QV_CONV3D_BIAS,
    QV_CONV3D_RESIDUAL,
    QV_CONV3D_PLACES, /* what makes rows of byte frames looks up (qv_conv3d_tables) */
    QV_CONV3D_NORMS,
    QV_CONV3D_COORDS,
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

/* What the operation that makes rows of byte frames looks up, as it stands in the list: one item.
 * coords[rows]. */
void qv_conv3d_tables(const qv_conv3d_desc *desc, const struct qv_op_patchify *op,
                      struct qv_item_place *place, struct qv_item_norm *norm,
                      struct qv_coords *coords);

/* Piece `piece` of the weight in that form: src[o, c/groups, kd, kh, kw] (or channels last) of
 * dtype `from` -> dst[o, k] in the description's dtype. */
void qv_conv3d_reshape(const qv_conv3d_desc *desc, const struct qv_conv3d_form *form, int piece,
                       const void *src, int64_t from, bool src_channels_last, void *dst);

/* w[o, taps, c], as MLX stores weights, -> out[o, c, taps]; taps = kd*kh*kw, any element size. */
void qv_conv3d_channels_last_to_first(const void *w, int64_t o, int64_t taps, int64_t c,
                                      size_t element_bytes, void *out);

#endif
