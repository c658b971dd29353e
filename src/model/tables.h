/* SPDX-License-Identifier: MIT */
/* What a chunk's operations look up: whose each row is, where its patch lies, which rows attend to
 * one another. Made on the host of the chunk's items. */
#ifndef QV_MODEL_TABLES_H
#define QV_MODEL_TABLES_H

#include "capacity.h"
#include "towers/config.h"
#include "towers/geometry.h"

struct qv_tables {
    struct qv_item_place *places; /* [segments]: no item is without one */
    struct qv_item_norm *norms;   /* [segments] */
    struct qv_coords *coords;     /* [rows] */
    int32_t *index;               /* [rows, taps], of the position table */
    float *weight;                /* [rows, taps] */
    int32_t *segments;            /* [QV_SEGMENT_LISTS][segments + 1], see ops.inc */
    int32_t *windows;             /* [QV_SEGMENT_LISTS][windows + 1] */
    int32_t *order;               /* [rows]: which row of the input a row is */
    int32_t *back;                /* [rows]: which merged row a token is */
    int64_t n_rows, n_segments, n_windows, n_items; /* in use */
};

qv_status qv_tables_open(const struct qv_capacity *capacity, const struct qv_config *c,
                         struct qv_tables *out, qv_error *err);
void qv_tables_close(struct qv_tables *tables);

/* Of n items that fit the capacity. */
void qv_tables_fill(struct qv_tables *tables, const struct qv_capacity *capacity,
                    const struct qv_config *c, const qv_item *items, size_t n);

#endif
