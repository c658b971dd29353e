/* SPDX-License-Identifier: MIT */
/* Operations alone on a device, and with them its roof: the best GEMM and the copy rate. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
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
    for (size_t i = 0; i < b->n_kernels; i++)
        qv_kernel_put(b->ctx, b->kernels[i]);
    if (b->arena)
        b->ctx->backend->free(b->ctx->dev, b->arena);
    free(b->kernels);
    free(b->calls);
    *b = (struct bench_ops){ 0 };
}

qv_status
bench_ops_run(void *user, qv_error *err)
{
    struct bench_ops *b = user;
    qv_status status = b->ctx->backend->run(b->ctx->dev, b->calls, b->n, err);
    return status ? status : b->ctx->backend->sync(b->ctx->dev, err);
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

qv_status
bench_step_through(qv_context *ctx, const qv_plan *plan, double *began_s, double *ms, qv_error *err)
{
    const struct qv_step *steps;
    const struct qv_call *calls;
    size_t n = qv_plan_steps(plan, &steps, &calls);
    for (size_t i = 0; i < n; i++) {
        began_s[i] = tool_seconds();
        qv_status status = ctx->backend->run(ctx->dev, &calls[i], 1, err);
        if (!status)
            status = ctx->backend->sync(ctx->dev, err);
        if (status)
            return status;
        ms[i] = (tool_seconds() - began_s[i]) * 1e3;
    }
    return QV_OK;
}

/* ---- the roof -------------------------------------------------------------------------------- */

enum { MOST_COPIES = 16 };

/* Sizes grow until a run takes a good part of this. Few repeats are a wish for a quick answer. */
static double
long_s(const struct bench *b)
{
    return b->o->repeats < 7 ? 0.1 * (double)b->o->repeats / 7 : 0.1;
}

/* The shortest of a few runs after one to warm up. */
static qv_status
best_seconds(const struct bench *b, struct bench_ops *ops, double *best, qv_error *err)
{
    double total = 0, least = 0.04 * (double)b->o->repeats;
    qv_status status = bench_ops_run(ops, err);
    *best = 1e30;
    for (int i = 0; (i < 3 || total < least) && i < 100 && !status; i++) {
        double began = tool_seconds();
        status = bench_ops_run(ops, err);
        double seconds = tool_seconds() - began;
        total += seconds;
        *best = seconds < *best ? seconds : *best;
    }
    return status;
}

static qv_status
time_gemm(const struct bench *b, qv_dtype dtype, int64_t size, double *seconds, qv_error *err)
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
        status = best_seconds(b, &ops, seconds, err);
        b->ctx->backend->free(b->ctx->dev, weight);
    }
    bench_ops_close(&ops);
    return status;
}

static qv_status
measure_peak(struct bench *b, qv_dtype dtype, qv_error *err)
{
    double seconds = 0;
    for (int64_t size = 256; size <= 8192 && seconds < long_s(b) / 4; size *= 2) {
        qv_status status = time_gemm(b, dtype, size, &seconds, err);
        if (status)
            return status;
        double rate = 2.0 * (double)size * (double)size * (double)size / seconds;
        if (rate > b->peak_flops[dtype])
            b->peak_flops[dtype] = rate;
    }
    return QV_OK;
}

/* `copies` of a buffer, there and back. */
static qv_status
time_copies(const struct bench *b, size_t bytes, size_t copies, double *one_s, qv_error *err)
{
    struct qv_op list[MOST_COPIES];
    struct bench_ops ops;
    memset(list, 0, sizeof list);
    for (size_t i = 0; i < copies; i++) {
        list[i].kind = QV_OP_convert;
        list[i].u.convert = (struct qv_op_convert){ (int64_t)(bytes / 4), QV_F32, QV_F32 };
    }
    qv_status status = bench_ops_open(b->ctx, list, copies, &ops, err);
    if (status)
        return status;
    for (size_t i = 1; i < copies; i += 2) {
        struct qv_buffer x = ops.calls[i].operands[0];
        ops.calls[i].operands[0] = ops.calls[i].operands[1];
        ops.calls[i].operands[1] = x;
    }
    status = best_seconds(b, &ops, one_s, err);
    *one_s /= (double)copies;
    bench_ops_close(&ops);
    return status;
}

/* Buffers far larger than any cache, unless the device is slow: then caches do not matter. One copy
 * is short for a GPU: there many are waited for at once. */
static qv_status
measure_copy(struct bench *b, qv_error *err)
{
    double seconds = 0;
    qv_status status = QV_OK;
    for (size_t mib = 16; mib <= 256 && seconds < long_s(b) / 8 && !status; mib *= 4) {
        status = time_copies(b, mib << 20, 2, &seconds, err);
        if (!status && seconds < 1e-3)
            status = time_copies(b, mib << 20, MOST_COPIES, &seconds, err);
        b->copy_bytes = 2.0 * (double)(mib << 20) / seconds;
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
