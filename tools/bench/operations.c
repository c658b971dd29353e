/* SPDX-License-Identifier: MIT */
/* Runs operations alone on a device, timed by its own clock. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "dtype.h"
#include "error.h"

/* ---- data ------------------------------------------------------------------------------------ */

enum { BLOCK_BYTES = 1 << 20 }; /* bytes of random values; longer data repeats them */

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

/* Launching a recording takes a GPU some microseconds, so it must run for much longer. */
#define LEAST_RECORDING_MS 0.5
enum { MOST_RECORDED = 4096 }; /* limit for calls in a recording */

qv_status
bench_elapsed(qv_context *ctx, double *ms, qv_error *err)
{
    const struct qv_backend *be = ctx->backend;
    qv_status status = be->wait(ctx->dev, QV_MARK_END, err); /* this also waits for everything
                                                              * before the mark */
    return status ? status : be->elapsed(ctx->dev, QV_MARK_BEGIN, QV_MARK_END, ms, err);
}

/* Times the recording, or the calls if there is none. A recording is run twice, and the second run
 * is timed: the first keeps the device busy until the second is launched. */
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
bench_run_call(qv_context *ctx, const struct qv_call *call, double *ms, qv_error *err)
{
    const struct bench_list list = { .ctx = ctx, .calls = call, .n = 1 };
    return time_once(&list, ms, err);
}

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

/* Repeats short calls until the recording is long enough. A short recording's time is mostly
 * launching, so the first estimate of the number of repeats may be too low. */
static qv_status
record_enough(struct bench_list *l, qv_error *err)
{
    int64_t times = 1, most = l->n < MOST_RECORDED ? MOST_RECORDED / (int64_t)(l->n + !l->n) : 1;
    for (;;) {
        double ms = 0;
        qv_status status = record(l, times, err);
        for (int i = 0; i < 2 && !status; i++) /* the first one warms up */
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

struct qv_step
bench_step(const struct qv_op *op, int weight)
{
    struct qv_view views[QV_MAX_OPERANDS];
    struct qv_step step = { .op = *op };
    const int n = qv_op_views(op, views);
    for (int i = 0; i < n; i++) {
        int first; /* operands that share rows lie in the first one's place */
        const int64_t cols = qv_views_beside(views, i, &first);
        if (!views[i].bytes)
            continue;
        step.operands[i] = views[i].role == QV_ROLE_WEIGHT ? BENCH_PLACES + weight : 1 + first;
        step.offsets[i] = cols * (int64_t)qv_dtype_bytes(views[i].dtype);
    }
    return step;
}

static qv_status
fill_places(const struct qv_program *p, qv_error *err)
{
    bool filled[BENCH_PLACES] = { true };
    qv_status status = QV_OK;
    for (size_t i = 0; i < p->n; i++)
        for (int j = 0; j < QV_MAX_OPERANDS && !status; j++) {
            const int place = p->steps[i].operands[j];
            const qv_dtype dtype = qv_op_view(&p->steps[i].op, j).dtype;
            if (place >= BENCH_PLACES || filled[place])
                continue;
            if (dtype != QV_I32)
                status = fill_device(p->ctx, qv_program_place(p, 0, place), dtype,
                                     p->places[place].bytes, err);
            filled[place] = true;
        }
    return status;
}

qv_status
bench_ops_open(qv_context *ctx, const struct qv_step *steps, size_t n, int n_chunks,
               const struct qv_buffer *weights, struct bench_ops *b, qv_error *err)
{
    static const struct qv_place places[BENCH_PLACES] = {
        [BENCH_LIST] = { .own = true }, [BENCH_WINDOWS] = { .own = true }
    };
    *b = (struct bench_ops){ .list.ctx = ctx };
    qv_status status =
        qv_program_prepare(ctx, steps, n, places, BENCH_PLACES, n_chunks, &b->program, err);
    if (!status)
        status = qv_program_load(&b->program, NULL, weights, err);
    b->list.calls = b->program.calls;
    b->list.n = (size_t)n_chunks * n;
    return status ? status : fill_places(&b->program, err);
}

void
bench_ops_close(struct bench_ops *b)
{
    bench_list_close(&b->list);
    if (b->weight)
        b->list.ctx->backend->free(b->list.ctx->dev, b->weight);
    qv_program_free(&b->program);
    *b = (struct bench_ops){ .weight = NULL };
}

/* Arbitrary codes, with valid scales and offsets. */
static void
fill_groups(const struct qv_matrix *matrix, char *values)
{
    const struct qv_groups *g = &matrix->groups;
    const size_t row = qv_grouped_row_bytes(g, matrix->k),
                 codes = (size_t)(matrix->k * g->bits / 8);
    bench_fill(values, QV_U8, (size_t)matrix->n * row);
    for (int64_t i = 0; i < matrix->n; i++)
        bench_fill(values + (size_t)i * row + codes, g->dtype, row - codes);
}

qv_status
bench_pack(qv_context *ctx, const struct qv_matrix *matrix, int64_t copies,
           struct qv_buffer *weights, qv_error *err)
{
    const struct qv_backend *be = ctx->backend;
    struct qv_layout layout;
    struct qv_memory *memory = NULL;
    const struct qv_groups *groups = &matrix->groups;
    const size_t bytes = (size_t)matrix->n * qv_matrix_row_bytes(matrix);
    qv_status status = be->layout(ctx->dev, matrix, &layout, err);
    if (status)
        return status;
    const size_t stride = qv_aligned(layout.bytes);
    void *values = malloc(bytes + 1);
    if (!values)
        return qv_fail(err, QV_ENOMEM, "no memory for %zu bytes of weights", bytes);
    if (groups->bits)
        fill_groups(matrix, values);
    else
        bench_fill(values, matrix->dtype, bytes);
    status = be->alloc(ctx->dev, stride * (size_t)copies, &memory, err);
    for (int64_t i = 0; i < copies && !status; i++) {
        weights[i] = (struct qv_buffer){ memory, stride * (size_t)i };
        status = be->lay_out(ctx->dev, matrix, 0, matrix->n, values, weights[i], err);
    }
    free(values);
    if (status && memory)
        be->free(ctx->dev, memory);
    return status;
}

qv_status
bench_gemm_open(qv_context *ctx, const struct qv_op_gemm *gemm, qv_dtype dtype,
                struct bench_ops *out, qv_error *err)
{
    struct qv_op op = { .kind = QV_OP_gemm, .u.gemm = *gemm };
    const struct qv_matrix matrix = { .n = gemm->n, .k = gemm->k, .dtype = dtype };
    struct qv_buffer weight;
    qv_op_set_dtype(&op, dtype);
    const struct qv_step step = bench_step(&op, 0);
    *out = (struct bench_ops){ .weight = NULL };
    qv_status status = bench_pack(ctx, &matrix, 1, &weight, err);
    if (status)
        return status;
    status = bench_ops_open(ctx, &step, 1, 1, &weight, out, err);
    out->weight = weight.memory;
    return status;
}
