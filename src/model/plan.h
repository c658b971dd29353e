/* SPDX-License-Identifier: MIT */
/* The internals of a plan. plan.c makes it, stream.c runs chunks through it, inspect.c shows it to
 * tools. */
#pragma once

#include "model.h"
#include "towers/geometry.h"
#include "towers/steps.h"

/* ---- tables.c -------------------------------------------------------------------------------- */

/* Tables are what a chunk's operations look up: which item each row belongs to, the position of its
 * patch, and which rows attend to each other. They are made on the host, from the chunk's items. */
struct qv_tables {
    struct qv_item_place *places; /* [segments], as every item has at least one segment */
    struct qv_item_norm *norms;   /* [segments] */
    struct qv_coords *coords;     /* [rows] */
    int32_t *index;               /* [rows, taps]: rows of the position table */
    float *weight;                /* [rows, taps]: the weight of each of these rows */
    int32_t *segments;            /* [QV_SEGMENT_LISTS][segments + 1], see ops.inc */
    int32_t *windows;             /* [QV_SEGMENT_LISTS][windows + 1], likewise */
    int32_t *order;               /* [rows]: the input row that becomes this row */
    int32_t *back;                /* [rows]: the merged row that becomes this token */
    int64_t taps; /* positions of the table that a patch's position is interpolated from */
    int64_t n_rows, n_segments, n_windows, n_items; /* how much of each table is in use */
};

qv_status qv_tables_open(const struct qv_capacity *capacity, const struct qv_config *c,
                         struct qv_tables *out, qv_error *err);
void qv_tables_close(struct qv_tables *tables);

/* Fills the tables from n items, which must fit the capacity. */
void qv_tables_fill(struct qv_tables *tables, const struct qv_capacity *capacity,
                    const struct qv_config *c, qv_dtype dtype, const qv_item *items, size_t n);

/* ---- plan.c, stream.c ------------------------------------------------------------------------ */

/* A probe is called after every step of a chunk, when the device has finished it, and may read
 * and write the step's operands through the backend. */
typedef void qv_probe(void *user, const struct qv_step *step, const struct qv_call *call);

/* A chunk that was pushed and not yet pulled. */
struct qv_pending {
    int chunk;
    size_t n_items;
    int64_t rows;
};

struct qv_plan {
    qv_model *model;
    qv_plan_options options;
    struct qv_capacity capacity;
    struct qv_tower_shape shape;
    struct qv_program program; /* of the tower's steps; its places are the slots */
    struct qv_recording *recordings[QV_MOST_CHUNKS];
    struct qv_tables tables;
    int64_t *item_rows; /* [QV_MOST_CHUNKS][segments]: patches of each pending item */
    struct qv_pending pending[QV_MOST_CHUNKS]; /* the oldest comes first */
    int n_pending;
    /* NULL: none. A plan with a probe runs step by step, without its recording. qv_plan_free()
     * takes it off. */
    qv_probe *probe;
    void *probe_user;
};

/* Returns QV_EINVAL if no plan can be made with these options, and names the field. */
qv_status qv_plan_options_check(const qv_model *model, const qv_plan_options *options,
                                qv_error *err);
/* Returns the capacity of a plan; fields of `asked` may be zero. */
qv_capacity qv_plan_capacity(const qv_model *model, const qv_capacity *asked);

void qv_plans_free_idle(qv_model *model); /* also leaves the arena that they share */

/* Pulls the oldest chunk's tokens. Item i's go to rows of `out` from first_rows[i] on; if
 * first_rows is NULL, the items' tokens lie one after another from row 0 on. */
qv_status qv_plan_pull_items(qv_plan *plan, const qv_tokens *out, const int64_t *first_rows,
                             qv_error *err);

/* ---- inspect.c: what tools that measure and verify see of a plan ----------------------------- */

/* Returns the FLOPs that a chunk's items need in one step, or in all steps if `step` is NULL; the
 * plan's unused rows do not count. */
double qv_plan_flops(const qv_plan *plan, const struct qv_step *step, const qv_item *items,
                     size_t n);

/* Enqueues a chunk's work as it was recorded, between the marks QV_MARK_BEGIN and QV_MARK_END,
 * to time it: no input is uploaded and no token downloaded. A chunk must have been pushed
 * before. */
qv_status qv_plan_work(qv_plan *plan, qv_error *err);
