/* SPDX-License-Identifier: MIT */
/*
 * Writes which plans are made and what is pushed, in order, to the file that QV_CHUNK_TRACE names. It is linked with
 * LINKER:--wrap for the functions below, in front of everything in other files that calls them.
 */
#include "chunk_trace.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "model/plan.h"

void (*chunk_trace_wait)(void);
char *chunk_trace_items;

qv_status __real_qv_plan_create(qv_model *, const qv_plan_options *, qv_plan **, qv_error *);
qv_status __wrap_qv_plan_create(qv_model *, const qv_plan_options *, qv_plan **, qv_error *);
qv_status __real_qv_plan_push(qv_plan *, const qv_item *, size_t, qv_error *);
qv_status __wrap_qv_plan_push(qv_plan *, const qv_item *, size_t, qv_error *);
qv_status __real_qv_plan_pull(qv_plan *, qv_tokens *, qv_error *);
qv_status __wrap_qv_plan_pull(qv_plan *, qv_tokens *, qv_error *);
/* encode.c calls this one. It is not public, so it may be gone. */
qv_status __real_qv_plan_pull_items(qv_plan *, const qv_tokens *, const int64_t *, qv_error *)
    __attribute__((weak));
qv_status __wrap_qv_plan_pull_items(qv_plan *, const qv_tokens *, const int64_t *, qv_error *);

void
chunk_trace(const char *format, ...)
{
    static FILE *file;
    const char *name = getenv("QV_CHUNK_TRACE");
    if (!file && (!name || !(file = fopen(name, "w"))))
        return;
    va_list arguments;
    va_start(arguments, format);
    vfprintf(file, format, arguments);
    va_end(arguments);
    fflush(file);
}

static void
trace_plan(const char *what, const qv_plan *plan, qv_status status)
{
    const qv_capacity *c = &plan->capacity;
    chunk_trace("%s %s of %" PRId64 " rows, %" PRId64 " segments of %" PRId64 ", %" PRId64 " windows, "
                "input %d, output %s\n",
                what, status ? qv_status_name(status) : "plan", c->rows, c->segments, c->segment_rows,
                c->windows, plan->options.input, qv_dtype_name(plan->options.output));
}

qv_status
__wrap_qv_plan_create(qv_model *model, const qv_plan_options *options, qv_plan **out, qv_error *err)
{
    const qv_status status = __real_qv_plan_create(model, options, out, err);
    if (!status)
        trace_plan("make", *out, status);
    return status;
}

qv_status
__wrap_qv_plan_push(qv_plan *plan, const qv_item *items, size_t n, qv_error *err)
{
    const qv_status status = __real_qv_plan_push(plan, items, n, err);
    trace_plan("push", plan, status);
    for (size_t i = 0; i < n; i++) {
        const int64_t *g = items[i].grid_thw;
        chunk_trace(" %" PRId64 "x%" PRId64 "x%" PRId64 "%s", g[0], g[1], g[2], items[i].is_image ? "i" : "");
        if (chunk_trace_items) { /* which item, and from which byte on */
            const long long at = (const char *)items[i].data - chunk_trace_items;
            chunk_trace("@%lld+%llx", at >> CHUNK_TRACE_BITS, at & ((1LL << CHUNK_TRACE_BITS) - 1));
        }
    }
    chunk_trace("\n");
    if (chunk_trace_wait)
        chunk_trace_wait();
    return status;
}

qv_status
__wrap_qv_plan_pull(qv_plan *plan, qv_tokens *out, qv_error *err)
{
    const qv_status status = __real_qv_plan_pull(plan, out, err);
    chunk_trace("pull\n");
    if (chunk_trace_wait)
        chunk_trace_wait();
    return status;
}

qv_status
__wrap_qv_plan_pull_items(qv_plan *plan, const qv_tokens *out, const int64_t *first_rows, qv_error *err)
{
    chunk_trace("pull\n");
    return __real_qv_plan_pull_items(plan, out, first_rows, err);
}
