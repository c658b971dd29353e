/* SPDX-License-Identifier: MIT */
/* Tables are what a chunk's operations look up: which item each row belongs to, where its patch
 * lies, and which rows attend to one another. They are made on the host, from the chunk's items. */
#ifndef QV_MODEL_TABLES_H
#define QV_MODEL_TABLES_H

#include "capacity.h"
#include "towers/config.h"
#include "towers/geometry.h"

struct qv_tables {
    struct qv_item_place *places; /* [segments], as every item has at least one segment */
    struct qv_item_norm *norms;   /* [segments] */
    struct qv_coords *coords;     /* [rows] */
    int32_t *index;               /* [rows, taps]: rows of the position table */
    float *weight;                /* [rows, taps]: the weight of each of those rows */
    int32_t *segments;            /* [QV_SEGMENT_LISTS][segments + 1], see ops.inc */
    int32_t *windows;             /* [QV_SEGMENT_LISTS][windows + 1], likewise */
    int32_t *order;               /* [rows]: the row of the input that comes to this row */
    int32_t *back;                /* [rows]: the merged row that becomes this token */
    int64_t n_rows, n_segments, n_windows, n_items; /* how much of each is in use */
};

qv_status qv_tables_open(const struct qv_capacity *capacity, const struct qv_config *c,
                         struct qv_tables *out, qv_error *err);
void qv_tables_close(struct qv_tables *tables);

/* Fills the tables from n items, which must fit the capacity. */
void qv_tables_fill(struct qv_tables *tables, const struct qv_capacity *capacity,
                    const struct qv_config *c, const qv_item *items, size_t n);

#endif
