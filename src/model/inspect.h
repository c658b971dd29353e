/* SPDX-License-Identifier: MIT */
/* What tools that measure and verify see of a plan: its steps, and the kernels and work of each. */
#ifndef QV_MODEL_INSPECT_H
#define QV_MODEL_INSPECT_H

#include "plan.h"

/* A probe sees every step of a chunk when it has been done (work is waited for), and may read and
 * write its operands through the backend. A plan with a probe runs step by step. NULL takes the probe
 * off; so does qv_plan_free. */
void qv_plan_set_probe(qv_plan *plan, qv_probe *probe, void *user);

/* The steps and calls [n] of a chunk. */
size_t qv_plan_steps(const qv_plan *plan, const struct qv_step **steps,
                     const struct qv_call **calls);

/* Which kernel runs one of these steps (qv_backend.describe); of a described model too. */
void qv_plan_kernel(const qv_plan *plan, size_t step, char text[QV_KERNEL_BYTES]);

/* Of a step of the list, or of all (NULL): FLOPs that are those of a chunk's items. */
double qv_plan_flops(const qv_plan *plan, const struct qv_step *step, const qv_item *items,
                     size_t n);

/* Enqueues the work of a chunk as it is recorded, between the marks QV_MARK_BEGIN and QV_MARK_END,
 * without taking input in or tokens out: for timing. A chunk must have been pushed before. */
qv_status qv_plan_work(qv_plan *plan, qv_error *err);

#endif
