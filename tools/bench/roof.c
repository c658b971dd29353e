/* SPDX-License-Identifier: MIT */
/* Operations alone on a device, and with them its roof: the best GEMM and the copy rate. */
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "dtype.h"
#include "error.h"

/* ---- data ------------------------------------------------------------------------------------ */

enum { BLOCK_BYTES = 1 << 20 }; /* of random values; longer data repeats it */

void
bench_fill(void *data, qv_dtype dtype, size_t bytes)
{
    size_t element = qv_dtype_bytes(dtype), block = bytes < BLOCK_BYTES ? bytes : BLOCK_BYTES;
    uint32_t random = 1;
    for (size_t i = 0; i < block / element; i++) {
        random = random * 1664525u + 1013904223u;
        if (dtype == QV_U8)
            ((uint8_t *)data)[i] = (uint8_t)(random >> 24);
        else
            qv_store(data, dtype, (int64_t)i, (double)(random >> 8) * 0x1p-23 - 1);
    }
    for (size_t at = block; at < bytes; at += block)
        memcpy((char *)data + at, data, bytes - at < block ? bytes - at : block);
}

static qv_status
fill_device(qv_context *ctx, struct qv_buffer at, qv_dtype dtype, size_t bytes, qv_error *err)
{
    size_t block = bytes < BLOCK_BYTES ? bytes : BLOCK_BYTES;
    void *data = malloc(block + 1);
    if (!data)
        return qv_fail(err, QV_ENOMEM, "no memory for %zu bytes of random values", block);
    bench_fill(data, dtype, block);
    qv_status status = QV_OK;
    for (size_t left = bytes; left && !status; left -= block) {
        block = left < block ? left : block;
        status = ctx->backend->upload(ctx->dev, at, data, block, err);
        at.offset += block;
    }
    free(data);
    return status;
}

/* ---- timing by the device's clock ------------------------------------------------------------ */

/* A recording is launched as one, which takes a GPU some microseconds: it is to be much longer. */
#define LEAST_RECORDING_MS 0.5
enum { MOST_RECORDED = 4096 }; /* calls */

qv_status
bench_elapsed(qv_context *ctx, double *ms, qv_error *err)
{
    const struct qv_backend *be = ctx->backend;
    qv_status status = be->wait(ctx->dev, QV_MARK_END, err); /* and so for what is before it */
    return status ? status : be->elapsed(ctx->dev, QV_MARK_BEGIN, QV_MARK_END, ms, err);
}

/* The recording, or the calls where there is none. A recording is run twice: the first time keeps
 * the device busy while that which is timed is launched. */
static qv_status
time_once(const struct bench_list *l, double *ms, qv_error *err)
{
    const struct qv_backend *be = l->ctx->backend;
    struct qv_device *dev = l->ctx->dev;
    qv_status status = l->recording ? be->replay(dev, l->recording, err) : QV_OK;
    if (!status)
        status = be->mark(dev, QV_MARK_BEGIN, err);
    if (!status && l->recording)
        status = be->replay(dev, l->recording, err);
    else if (!status)
        status = be->run(dev, l->calls, l->n, err);
    if (!status)
        status = be->mark(dev, QV_MARK_END, err);
    return status ? status : bench_elapsed(l->ctx, ms, err);
}

qv_status
bench_run_calls(qv_context *ctx, const struct qv_call *calls, size_t n, double *ms, qv_error *err)
{
    struct bench_list list = { .ctx = ctx, .calls = calls, .n = n };
    return time_once(&list, ms, err);
}

/* The calls so many times over in one recording, in place of the one that there is. */
static qv_status
record(struct bench_list *l, int64_t times, qv_error *err)
{
    struct qv_call *calls = malloc(((size_t)times * l->n + 1) * sizeof *calls);
    if (!calls)
        return qv_fail(err, QV_ENOMEM, "no memory for a list of operations");
    for (int64_t i = 0; i < times; i++)
        memcpy(calls + (size_t)i * l->n, l->calls, l->n * sizeof *calls);
    bench_list_close(l);
    qv_status status =
        l->ctx->backend->record(l->ctx->dev, calls, (size_t)times * l->n, &l->recording, err);
    l->times = times;
    free(calls);
    return status;
}

/* More of what is short. Launching is in the first times, so one look does not always do. */
static qv_status
record_enough(struct bench_list *l, qv_error *err)
{
    int64_t times = 1, most = l->n < MOST_RECORDED ? MOST_RECORDED / (int64_t)(l->n + !l->n) : 1;
    for (;;) {
        double ms = 0;
        qv_status status = record(l, times, err);
        for (int i = 0; i < 2 && !status; i++) /* the first to warm up */
            status = time_once(l, &ms, err);
        if (status || ms >= LEAST_RECORDING_MS || times == most)
            return status;
        double wanted = 1.2 * LEAST_RECORDING_MS / (ms + 1e-6) * (double)times + 1;
        times = wanted < (double)most ? (int64_t)wanted : most;
    }
}

qv_status
bench_list_run(void *user, double *ms, qv_error *err)
{
    struct bench_list *l = user;
    qv_status status = QV_OK;
    if (!l->times && l->ctx->backend->record && l->n)
        status = record_enough(l, err);
    if (!l->times)
        l->times = 1;
    if (!status)
        status = time_once(l, ms, err);
    if (!status)
        *ms /= (double)l->times;
    return status;
}

void
bench_list_close(struct bench_list *l)
{
    if (l->recording)
        l->ctx->backend->forget(l->ctx->dev, l->recording);
    l->recording = NULL;
    l->times = 0;
}

/* ---- operations alone ------------------------------------------------------------------------ */

struct slot {
    size_t bytes, at;
    qv_dtype dtype;
};

static qv_status
prepare(struct bench_ops *b, const struct qv_op *ops, struct slot *slots, size_t *scratch,
        qv_error *err)
{
    for (; b->n_kernels < b->n; b->n_kernels++) {
        const struct qv_op *op = &ops[b->n_kernels];
        size_t *index = &b->kernels[b->n_kernels];
        qv_status status = qv_kernel_get(b->ctx, op, index, err);
        if (status)
            return status;
        const struct qv_kernel_entry *entry = &b->ctx->kernels.entries[*index];
        *scratch = entry->scratch_bytes > *scratch ? entry->scratch_bytes : *scratch;
        for (int j = 0; j < qv_op_n_operands(op->kind); j++) {
            struct qv_operand operand = qv_op_operand(op, j);
            if (!operand.weight && operand.bytes > slots[j].bytes)
                slots[j] = (struct slot){ .bytes = operand.bytes, .dtype = operand.dtype };
        }
        b->flops += qv_op_flops(op);
        b->bytes += qv_op_bytes(op);
    }
    return QV_OK;
}

static void
wire(struct bench_ops *b, const struct qv_op *ops, const struct slot *slots, size_t scratch_at)
{
    for (size_t i = 0; i < b->n; i++) {
        struct qv_call *call = &b->calls[i];
        call->kernel = b->ctx->kernels.entries[b->kernels[i]].kernel;
        call->scratch = (struct qv_buffer){ b->arena, scratch_at };
        for (int j = 0; j < qv_op_n_operands(ops[i].kind); j++) {
            struct qv_operand operand = qv_op_operand(&ops[i], j);
            if (operand.bytes && !operand.weight)
                call->operands[j] = (struct qv_buffer){ b->arena, slots[j].at };
        }
    }
}

static qv_status
open_ops(struct bench_ops *b, const struct qv_op *ops, qv_error *err)
{
    struct slot slots[QV_MAX_OPERANDS] = { 0 };
    size_t scratch = 0, bytes = 0;
    b->kernels = calloc(b->n + 1, sizeof *b->kernels);
    b->calls = calloc(b->n + 1, sizeof *b->calls);
    if (!b->kernels || !b->calls)
        return qv_fail(err, QV_ENOMEM, "no memory for a list of operations");
    qv_status status = prepare(b, ops, slots, &scratch, err);
    for (int j = 0; j < QV_MAX_OPERANDS; j++) {
        slots[j].at = bytes;
        bytes += qv_aligned(slots[j].bytes);
    }
    if (!status)
        status = b->ctx->backend->alloc(b->ctx->dev, bytes + scratch + 1, &b->arena, err);
    for (int j = 0; j < QV_MAX_OPERANDS && !status; j++)
        if (slots[j].dtype != QV_DTYPE_AUTO) /* indices stay 0 */
            status = fill_device(b->ctx, (struct qv_buffer){ b->arena, slots[j].at },
                                 slots[j].dtype, slots[j].bytes, err);
    if (!status)
        wire(b, ops, slots, bytes);
    b->list = (struct bench_list){ .ctx = b->ctx, .calls = b->calls, .n = b->n };
    return status;
}

qv_status
bench_ops_open(qv_context *ctx, const struct qv_op *ops, size_t n, struct bench_ops *out,
               qv_error *err)
{
    *out = (struct bench_ops){ .ctx = ctx, .n = n };
    qv_status status = open_ops(out, ops, err);
    if (status)
        bench_ops_close(out);
    return status;
}

void
bench_ops_close(struct bench_ops *b)
{
    bench_list_close(&b->list);
    for (size_t i = 0; i < b->n_kernels; i++)
        qv_kernel_put(b->ctx, b->kernels[i]);
    if (b->arena)
        b->ctx->backend->free(b->ctx->dev, b->arena);
    free(b->kernels);
    free(b->calls);
    *b = (struct bench_ops){ 0 };
}

qv_status
bench_ops_run(void *user, double *ms, qv_error *err)
{
    struct bench_ops *b = user;
    return bench_list_run(&b->list, ms, err);
}

struct qv_op
bench_bare(struct qv_op op)
{
    if (op.kind == QV_OP_gemm) {
        op.u.gemm.alpha = 1;
        op.u.gemm.bias = 0;
        op.u.gemm.act = QV_ACT_NONE;
        op.u.gemm.addend_rows = 0;
    }
    return op;
}

qv_status
bench_pack(qv_context *ctx, int64_t n, int64_t k, qv_dtype dtype, int64_t copies,
           struct qv_memory **out, size_t *stride, qv_error *err)
{
    const struct qv_backend *be = ctx->backend;
    struct qv_matrix matrix = { .n = n, .k = k, .dtype = dtype };
    struct qv_layout layout;
    struct qv_memory *memory = NULL;
    size_t bytes = (size_t)(n * k) * qv_dtype_bytes(dtype);
    qv_status status = be->layout(ctx->dev, &matrix, &layout, err);
    if (status)
        return status;
    *stride = qv_aligned(layout.bytes);
    void *values = malloc(bytes);
    if (!values)
        return qv_fail(err, QV_ENOMEM, "no memory for %zu bytes of weights", bytes);
    bench_fill(values, dtype, bytes);
    status = be->alloc(ctx->dev, *stride * (size_t)copies, &memory, err);
    for (int64_t i = 0; i < copies && !status; i++)
        status = be->pack(ctx->dev, &matrix, 0, n, values,
                          (struct qv_buffer){ memory, *stride * (size_t)i }, err);
    free(values);
    if (status && memory)
        be->free(ctx->dev, memory);
    if (!status)
        *out = memory;
    return status;
}

/* Enqueues what comes before step i, recorded: it keeps the device busy while the step, which may
 * be shorter than launching it, is launched; and leaves the caches as the step will find them. */
static qv_status
lead_up(qv_context *ctx, const struct qv_call *calls, size_t i, struct qv_recording **lead,
        qv_error *err)
{
    enum { STEPS = 8 };
    size_t n = i < STEPS ? i : STEPS;
    qv_status status =
        ctx->backend->record(ctx->dev, n ? calls + i - n : calls, n ? n : 1, lead, err);
    return status ? status : ctx->backend->replay(ctx->dev, *lead, err);
}

qv_status
bench_step_through(qv_context *ctx, const qv_plan *plan, double *ms, qv_error *err)
{
    const struct qv_step *steps;
    const struct qv_call *calls;
    size_t n = qv_plan_steps(plan, &steps, &calls);
    qv_status status = ctx->backend->sync(ctx->dev, err);
    for (size_t i = 0; i < n && !status; i++) {
        struct qv_recording *lead = NULL;
        if (ctx->backend->record)
            status = lead_up(ctx, calls, i, &lead, err);
        if (!status)
            status = bench_run_calls(ctx, &calls[i], 1, &ms[i], err);
        if (lead)
            ctx->backend->forget(ctx->dev, lead);
    }
    return status;
}

/* ---- the roof -------------------------------------------------------------------------------- */

/* Sizes grow until a run takes a good part of this. Few repeats are a wish for a quick answer. */
static double
long_ms(const struct bench *b)
{
    return b->o->repeats < 7 ? 100 * (double)b->o->repeats / 7 : 100;
}

/* The shortest of a few runs after one to warm up. */
static qv_status
best_ms(const struct bench *b, struct bench_ops *ops, double *best, qv_error *err)
{
    double began = tool_seconds(), least_s = 0.04 * (double)b->o->repeats, ms;
    qv_status status = bench_ops_run(ops, &ms, err);
    *best = 1e30;
    for (int i = 0; (i < 3 || tool_seconds() - began < least_s) && i < 100 && !status; i++) {
        status = bench_ops_run(ops, &ms, err);
        *best = ms < *best ? ms : *best;
    }
    return status;
}

static qv_status
time_gemm(const struct bench *b, qv_dtype dtype, int64_t size, double *ms, qv_error *err)
{
    struct qv_op op = { .kind = QV_OP_gemm };
    op.u.gemm = (struct qv_op_gemm){ .m = size, .n = size, .k = size, .alpha = 1, .dtype = dtype };
    struct bench_ops ops;
    struct qv_memory *weight = NULL;
    size_t stride;
    qv_status status = bench_ops_open(b->ctx, &op, 1, &ops, err);
    if (status)
        return status;
    status = bench_pack(b->ctx, size, size, dtype, 1, &weight, &stride, err);
    if (!status) {
        ops.calls[0].operands[1] = (struct qv_buffer){ weight, 0 };
        status = best_ms(b, &ops, ms, err);
        b->ctx->backend->free(b->ctx->dev, weight);
    }
    bench_ops_close(&ops);
    return status;
}

static qv_status
measure_peak(struct bench *b, qv_dtype dtype, qv_error *err)
{
    double ms = 0;
    for (int64_t size = 256; size <= 8192 && ms < long_ms(b) / 4; size *= 2) {
        qv_status status = time_gemm(b, dtype, size, &ms, err);
        if (status)
            return status;
        double rate = 2.0 * (double)size * (double)size * (double)size / ms * 1e3;
        if (rate > b->peak_flops[dtype])
            b->peak_flops[dtype] = rate;
    }
    return QV_OK;
}

/* A copy of a buffer, the mean of one there and one back. */
static qv_status
time_copy(const struct bench *b, size_t bytes, double *ms, qv_error *err)
{
    struct qv_op there_and_back[2];
    struct bench_ops ops;
    memset(there_and_back, 0, sizeof there_and_back);
    for (int i = 0; i < 2; i++) {
        there_and_back[i].kind = QV_OP_convert;
        there_and_back[i].u.convert =
            (struct qv_op_convert){ (int64_t)(bytes / 4), QV_F32, QV_F32 };
    }
    qv_status status = bench_ops_open(b->ctx, there_and_back, 2, &ops, err);
    if (status)
        return status;
    struct qv_buffer x = ops.calls[1].operands[0];
    ops.calls[1].operands[0] = ops.calls[1].operands[1];
    ops.calls[1].operands[1] = x;
    status = best_ms(b, &ops, ms, err);
    *ms /= 2;
    bench_ops_close(&ops);
    return status;
}

/* Buffers far larger than any cache, unless the device is slow: then caches do not matter. The
 * largest are for a GPU, which copies them in a fraction of a millisecond. */
static qv_status
measure_copy(struct bench *b, qv_error *err)
{
    static const struct {
        size_t mib;
        double most; /* of long_ms(), that the size before may have taken */
    } sizes[] = { { 16, 1 }, { 64, 0.125 }, { 256, 0.125 }, { 512, 0.01 } };
    double ms = 0;
    qv_status status = QV_OK;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && !status; i++) {
        if (ms >= sizes[i].most * long_ms(b))
            break;
        status = time_copy(b, sizes[i].mib << 20, &ms, err);
        if (!status)
            b->copy_bytes = 2.0 * (double)(sizes[i].mib << 20) / ms * 1e3;
    }
    return status;
}

qv_status
bench_measure_roof(struct bench *b, qv_dtype dtype, qv_error *err)
{
    qv_status status = QV_OK;
    if (!b->copy_bytes)
        status = measure_copy(b, err);
    if (!status && !b->peak_flops[dtype])
        status = measure_peak(b, dtype, err);
    return status;
}
