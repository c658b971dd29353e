/* SPDX-License-Identifier: MIT */
/* A lowering as a list of operations, and the weight layout that they need. */
#pragma once

#include "description.h"
#include "engine/block_order.h"
#include "engine/program.h"

enum { QV_CONV3D_MOST_TAPS = 16, QV_CONV3D_MOST_STEPS = QV_CONV3D_MOST_TAPS + 3 };

/* The places that operations read and write. */
enum qv_conv3d_place {
    QV_CONV3D_NONE = QV_NO_OPERAND,
    QV_CONV3D_INPUT, /* x; for `still` with byte frames, only the first of every kernel[0] frames */
    QV_CONV3D_BIAS,
    QV_CONV3D_RESIDUAL,
    QV_CONV3D_PLACES, /* PLACES, NORMS and COORDS are the tables of patchify (qv_conv3d_tables) */
    QV_CONV3D_NORMS,
    QV_CONV3D_COORDS,
    QV_CONV3D_ROWS,   /* scratch: patch rows */
    QV_CONV3D_VOXELS, /* scratch: x in channels-last order */
    QV_CONV3D_SUMS,   /* scratch: f32 sums over depth taps */
    QV_CONV3D_OUTPUT,
    QV_CONV3D_WEIGHT, /* the weight's pieces, one place each */
    QV_CONV3D_N_PLACES = QV_CONV3D_WEIGHT + QV_CONV3D_MOST_TAPS
};

/* The weight as operations need it: `pieces` matrices [o, k]. */
struct qv_conv3d_form {
    int pieces;         /* one per depth tap in `by depth`; otherwise 1 */
    int64_t o, k;       /* sizes of a piece */
    bool summed;        /* summed over depth in double, and rounded once */
    bool channels_last; /* columns are (kd, kh, kw, c), not (c, kd, kh, kw) */
};

struct qv_conv3d_list {
    struct qv_conv3d_form weight;
    int n;
    struct qv_step steps[QV_CONV3D_MOST_STEPS];
};

/* Lists the operations of a legal lowering. The description must have been checked, and must not
 * pad depth: the caller that runs the list adds the padding frames at the front and the back. */
void qv_conv3d_lower(const qv_conv3d_desc *desc, qv_lowering lowering, struct qv_conv3d_list *out);

/* Fills the tables that the list's patchify operation looks up: one item, coords[rows]. */
void qv_conv3d_tables(const qv_conv3d_desc *desc, const struct qv_op_patchify *op,
                      struct qv_item_place *place, struct qv_item_norm *norm,
                      struct qv_coords *coords);

/* Writes piece `piece` of the weight in the layout `form`: src[o, c/groups, kd, kh, kw] (or
 * channels last) of dtype `from` -> dst[o, k] in the description's dtype. */
void qv_conv3d_reshape(const qv_conv3d_desc *desc, const struct qv_conv3d_form *form, int piece,
                       const void *src, int64_t from, bool src_channels_last, void *dst);

/* Reorders w[o, taps, c], as MLX stores weights, to out[o, c, taps]; taps = kd*kh*kw, any element
 * size. */
void qv_conv3d_channels_last_to_first(const void *w, int64_t o, int64_t taps, int64_t c,
                                      size_t element_bytes, void *out);
