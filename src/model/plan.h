/* SPDX-License-Identifier: MIT */
/* The inside of a plan. plan.c makes it, stream.c runs chunks through it, inspect.c shows it to
 * tools. */
#ifndef QV_MODEL_PLAN_H
#define QV_MODEL_PLAN_H

#include "capacity.h"
#include "model.h"
#include "tables.h"
#include "towers/steps.h"

/* Called when a step of a chunk has been done; see qv_plan_set_probe in inspect.h. */
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
    struct qv_steps steps;
    /* [steps.n] indices of kernels in the context's cache; the first n_kernels of them are held */
    size_t *kernels;
    size_t n_kernels;
    struct qv_call
        /* [QV_MOST_CHUNKS][steps.n]: a chunk's calls differ from another's in the memory that is
         * its own */
        *calls;
    struct qv_recording *recordings[QV_MOST_CHUNKS];
    struct qv_arena *arena;
    /* offsets in the chunk's own part of the arena, or in the part used in turn */
    size_t slots[SLOT_COUNT], slot_bytes[SLOT_COUNT];
    size_t own_bytes, work_bytes;
    struct qv_tables tables;
    int64_t *item_rows; /* [QV_MOST_CHUNKS][segments]: patch rows of each pending item */
    struct qv_pending pending[QV_MOST_CHUNKS]; /* the oldest comes first */
    int n_pending;
    qv_probe *probe;
    void *probe_user;
};

/* Returns QV_EINVAL if no plan can be made with these options, and names the field. */
qv_status qv_plan_options_check(const qv_model *model, const qv_plan_options *options,
                                qv_error *err);
/* The whole capacity of a chunk's plan, from one in which the caller may have left fields zero. */
qv_capacity qv_plan_capacity(const qv_model *model, const qv_capacity *asked);

void qv_plan_destroy(qv_plan *plan);
void qv_plans_free_idle(qv_model *model); /* also leaves the arena that they share */

/* The buffer of a slot of a chunk, or of a weight. It has no memory if id is QV_NO_OPERAND. */
struct qv_buffer qv_plan_operand(const qv_plan *plan, int chunk, int id);
/* The calls of a chunk, [steps.n]. */
const struct qv_call *qv_plan_calls(const qv_plan *plan, int chunk);

/* Pulls the oldest chunk's tokens. Item i's go to rows of `out` from first_rows[i] on; if
 * first_rows is NULL, the items' tokens lie one after another from row 0 on. */
qv_status qv_plan_pull_items(qv_plan *plan, const qv_tokens *out, const int64_t *first_rows,
                             qv_error *err);

/* Returns which capacities give the model's tokens the same bits. */
struct qv_capacity_bits qv_model_bits(const qv_model *model);

#endif
