/* SPDX-License-Identifier: MIT */
/* Declares what tools that measure and verify see of a plan: its steps, the kernel that runs each,
 * and the FLOPs. */
#ifndef QV_MODEL_INSPECT_H
#define QV_MODEL_INSPECT_H

#include "plan.h"

/* A probe is called after every step of a chunk, when the device has finished it, and may read
 * and write the step's operands through the backend. A plan with a probe runs step by step,
 * without its recording. A NULL probe, or qv_plan_free(), takes the probe off. */
void qv_plan_set_probe(qv_plan *plan, qv_probe *probe, void *user);

/* The steps of the plan's list and chunk 0's calls, both [n]; returns n. */
size_t qv_plan_steps(const qv_plan *plan, const struct qv_step **steps,
                     const struct qv_call **calls);

/* Writes the name of the kernel that runs a step (qv_backend.describe). It works for a described
 * model too. */
void qv_plan_kernel(const qv_plan *plan, size_t step, char text[QV_KERNEL_BYTES]);

/* FLOPs of one step, or of all steps if `step` is NULL, that the items of a chunk need: the
 * plan's unused rows do not count. */
double qv_plan_flops(const qv_plan *plan, const struct qv_step *step, const qv_item *items,
                     size_t n);

/* Enqueues a chunk's work as it was recorded, between the marks QV_MARK_BEGIN and QV_MARK_END,
 * to time it: no input is uploaded and no token downloaded. A chunk must have been pushed
 * before. */
qv_status qv_plan_work(qv_plan *plan, qv_error *err);

#endif
