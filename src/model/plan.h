/* SPDX-License-Identifier: MIT */
/* A plan's inside: what plan.c makes, stream.c runs and inspect.c shows to tools. */
#ifndef QV_MODEL_PLAN_H
#define QV_MODEL_PLAN_H

#include "capacity.h"
#include "model.h"
#include "tables.h"
#include "towers/steps.h"

/* Sees a step of a chunk when it has been done (inspect.h). */
typedef void qv_probe(void *user, const struct qv_step *step, const struct qv_call *call);

/* A chunk that was pushed and not pulled. */
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
    struct qv_steps steps;
    size_t *kernels; /* [steps.n] entries of the context's cache, of which n_kernels are held */
    size_t n_kernels;
    struct qv_call
        *calls; /* [QV_MOST_CHUNKS][steps.n]: chunks differ in where their own memory is */
    struct qv_recording *recordings[QV_MOST_CHUNKS];
    struct qv_arena *arena;
    size_t slots[SLOT_COUNT], slot_bytes[SLOT_COUNT]; /* of the chunk's own memory, or the common */
    size_t own_bytes, work_bytes;
    struct qv_tables tables;
    int64_t *item_rows;                        /* [QV_MOST_CHUNKS][segments], of what is pending */
    struct qv_pending pending[QV_MOST_CHUNKS]; /* oldest first */
    int n_pending;
    qv_probe *probe;
    void *probe_user;
};

/* QV_EINVAL naming what no plan can be. */
qv_status qv_plan_options_check(const qv_model *model, const qv_plan_options *options,
                                qv_error *err);
/* That of a plan's chunks, for one that was asked for. */
qv_capacity qv_plan_capacity(const qv_model *model, const qv_capacity *asked);

void qv_plan_destroy(qv_plan *plan);
void qv_plans_free_idle(qv_model *model); /* and the arena that they share */

/* The buffer of a slot of a chunk, or of a weight; it has no memory for QV_NO_OPERAND. */
struct qv_buffer qv_plan_operand(const qv_plan *plan, int chunk, int id);
/* The calls of a chunk, of which there are steps.n. */
const struct qv_call *qv_plan_calls(const qv_plan *plan, int chunk);

/* Pulls the oldest chunk's tokens, each item's to rows of `out` of its own; first_rows NULL: all
 * items' one behind the other, from row 0 on. */
qv_status qv_plan_pull_items(qv_plan *plan, const qv_tokens *out, const int64_t *first_rows,
                             qv_error *err);

#endif
