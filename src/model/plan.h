/* SPDX-License-Identifier: MIT */
/* What stands behind the public handles. */
#ifndef QV_SRC_PLAN_H
#define QV_SRC_PLAN_H

#include "engine/tune.h"
#include "towers/weights.h"

/* Of an options struct: what a later version may mean by them must not be asked for by chance. */
static inline bool
qv_all_zero(const uint64_t *reserved, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (reserved[i])
            return false;
    return true;
}
#define QV_RESERVED_IS_ZERO(o)                                                                     \
    qv_all_zero((o)->reserved, sizeof(o)->reserved / sizeof *(o)->reserved)

/* Prepared kernels, remembered by their operation's value; shared by all plans of a context. */
struct qv_kernel_entry {
    struct qv_op op;
    struct qv_kernel *kernel;
    size_t scratch_bytes;
    int users; /* plans; 0: may be dropped */
    uint64_t used_at;
};
struct qv_kernel_cache {
    struct qv_kernel_entry *entries;
    size_t n, capacity;
    uint64_t clock;
};

struct qv_context {
    const struct qv_backend *backend;
    struct qv_device *dev;
    struct qv_caps caps;
    struct qv_kernel_cache kernels;
    struct qv_tune tune;
    bool in_order; /* on a stream of the caller's: work on its device memory is not waited for */
};

/* Plans that were freed and may be wanted again: making one anew costs page faults for its arena
 * and its position tables. Most recently freed first. */
enum { QV_IDLE_PLANS = 8 };
#define QV_IDLE_BYTES ((size_t)256 << 20)

struct qv_model {
    qv_context *ctx;
    struct qv_config config;
    qv_dtype dtype;
    bool describe;
    struct qv_weights weights;
    qv_plan *idle[QV_IDLE_PLANS];
    int n_idle;
};

void qv_plans_free_idle(qv_model *model);

/* For tools that measure and verify: sees every step of a chunk when it has been done (work is
 * waited for), and may read and write its operands through the backend. A plan with a probe runs
 * step by step. NULL takes it off; so does qv_plan_free. */
typedef void qv_probe(void *user, const struct qv_step *step, const struct qv_call *call);
void qv_plan_set_probe(qv_plan *plan, qv_probe *probe, void *user);

/* The chunk's steps and calls [n], without those that run once when the plan is made. */
size_t qv_plan_steps(const qv_plan *plan, const struct qv_step **steps,
                     const struct qv_call **calls);

/* Enqueues the work of a chunk as it is recorded, between the marks QV_MARK_BEGIN and QV_MARK_END,
 * without taking input in or tokens out: for timing. A chunk must have been pushed before. */
qv_status qv_plan_work(qv_plan *plan, qv_error *err);

/* Takes the kernel of an operation out of the cache or prepares it; give it back with
 * qv_kernel_put. *index names the entry and stays right while it is held. */
qv_status qv_kernel_get(qv_context *ctx, const struct qv_op *op, size_t *index, qv_error *err);
void qv_kernel_put(qv_context *ctx, size_t index);
void qv_kernels_free(qv_context *ctx);

/* Which of a device's ways of running an operation to prepare: as the tune file says, measured here
 * if the context tunes, else the device's own first choice. */
qv_status qv_kernel_choice(qv_context *ctx, const struct qv_op *op, int *choice, qv_error *err);

#endif
