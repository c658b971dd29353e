/* SPDX-License-Identifier: MIT */
/* Writes which plans are made and what is pushed, in order, to the file that QV_CHUNK_TRACE names.
 * It is linked with LINKER:--wrap for the functions below, so that all calls from other files come
 * here. */
#include "chunk_trace.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "model/plan.h"

#define WRAPPED(name, ...)                                                                         \
    qv_status __real_##name(__VA_ARGS__);                                                          \
    qv_status __wrap_##name(__VA_ARGS__);                                                          \
    qv_status __wrap_##name(__VA_ARGS__)

void (*chunk_trace_wait)(void);
char *chunk_trace_items;

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
trace_plan(const char *what, const qv_plan *plan)
{
    const qv_capacity *c = &plan->capacity;
    chunk_trace("%s %lld rows, %lld segments of %lld, %lld windows, input %d, output %s\n", what,
                (long long)c->patches, (long long)c->segments, (long long)c->segment_rows,
                (long long)c->windows, plan->options.input, qv_dtype_name(plan->options.output));
}

WRAPPED(qv_plan_create, qv_model *model, const qv_plan_options *options, qv_plan **out,
        qv_error *err)
{
    const qv_status status = __real_qv_plan_create(model, options, out, err);
    if (!status)
        trace_plan("make", *out);
    return status;
}

WRAPPED(qv_plan_push, qv_plan *plan, const qv_item *items, size_t n, qv_error *err)
{
    const qv_status status = __real_qv_plan_push(plan, items, n, err);
    trace_plan(status ? "refuse" : "push", plan);
    for (size_t i = 0; i < n; i++) {
        const int64_t *g = items[i].grid_thw;
        const long long at =
            chunk_trace_items ? (const char *)items[i].data - chunk_trace_items : 0;
        chunk_trace(" %lldx%lldx%lld%s", (long long)g[0], (long long)g[1], (long long)g[2],
                    items[i].is_image ? "i" : "");
        if (chunk_trace_items) /* which item, and from which byte on */
            chunk_trace("@%lld+%llx", at >> CHUNK_TRACE_BITS, at & ((1LL << CHUNK_TRACE_BITS) - 1));
    }
    chunk_trace("\n");
    if (chunk_trace_wait)
        chunk_trace_wait();
    return status;
}

WRAPPED(qv_plan_pull, qv_plan *plan, qv_tokens *out, qv_error *err)
{
    const qv_status status = __real_qv_plan_pull(plan, out, err);
    chunk_trace("pull\n");
    if (chunk_trace_wait)
        chunk_trace_wait();
    return status;
}

WRAPPED(qv_plan_pull_items, qv_plan *plan, const qv_tokens *out, const int64_t *rows, qv_error *err)
{
    chunk_trace("pull\n");
    return __real_qv_plan_pull_items(plan, out, rows, err);
}
