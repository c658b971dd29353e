/* SPDX-License-Identifier: MIT */
/*
 * Times the ways in which a device can run one operation, and remembers the fastest. Only those
 * ways of a GEMM compete that give the bits of the device's own first choice, because plans of
 * different capacities rely on equal bits (qv_caps.same_bf16). Attention stays at its first choice:
 * timed alone on an H200, with operands in the cache, other ways seemed faster, but took 1.2 to 1.5
 * times as long in a tower.
 */
#include <stdlib.h>
#include <string.h>

#include "dtype.h"
#include "error.h"
#include "context.h"
#include "numbers.h"

enum { MOST_SAMPLES = 7, MOST_RUNS = 16, BLOCK_BYTES = 1 << 20, TEXT_BYTES = 800, NAME_BYTES = 24 };

struct trial {
    qv_context *ctx;
    const struct qv_op *op;
    int n;
    bool differs[QV_MOST_CHOICES]; /* its bits differ from those of choice 0, so it may not be
                                    * chosen */
    struct qv_kernel *kernels[QV_MOST_CHOICES];
    struct qv_recording *recordings[QV_MOST_CHOICES];
    size_t places[QV_MAX_OPERANDS + 1], bytes; /* offsets of operands and scratch in the arena */
    struct qv_memory *arena;
    struct qv_call calls[MOST_RUNS];
    int runs, samples; /* runs in a recording; samples of each way */
    double ms[QV_MOST_CHOICES][MOST_SAMPLES];
};

static const char *
name_of(int choice, char name[NAME_BYTES])
{
    snprintf(name, NAME_BYTES, "choice %d", choice);
    return name;
}

static void
close_trial(struct trial *t)
{
    const struct qv_backend *be = t->ctx->backend;
    for (int i = 0; i < QV_MOST_CHOICES; i++) {
        if (t->recordings[i])
            be->forget(t->ctx->dev, t->recordings[i]);
        if (t->kernels[i])
            be->release(t->ctx->dev, t->kernels[i]);
    }
    if (t->arena)
        be->free(t->ctx->dev, t->arena);
    free(t);
}

/* Places the operands in the arena one after another; operands that may share rows do so, as in a
 * tower. */
static qv_status
place_operands(struct trial *t, qv_error *err)
{
    struct qv_view views[QV_MAX_OPERANDS];
    int n = qv_op_views(t->op, views), first;
    for (int i = 0; i < n; i++) {
        const struct qv_view *v = &views[i];
        size_t bytes = v->bytes, cols = (size_t)qv_views_beside(views, i, &first);
        if (v->role == QV_ROLE_WEIGHT) {
            const struct qv_matrix matrix = qv_matrix_of(t->op, v);
            struct qv_layout layout = { 0 };
            qv_status status = t->ctx->backend->layout(t->ctx->dev, &matrix, &layout, err);
            if (status)
                return status;
            bytes = layout.bytes;
        }
        t->places[i] = first < i ? t->places[first] + cols * qv_dtype_bytes(v->dtype) : t->bytes;
        t->bytes = qv_aligned(t->places[i] + bytes);
    }
    return QV_OK;
}

/* Prepares every way up to the first that the device does not have. The number of ways is limited
 * for convolutions, as each may have to be compiled. */
enum { MOST_OF_CONV = 4 };
static qv_status
prepare_all(struct trial *t, qv_error *err)
{
    size_t scratch = 0;
    int most = t->op->kind == QV_OP_conv ? MOST_OF_CONV : QV_MOST_CHOICES;
    for (; t->n < most; t->n++) {
        size_t bytes = 0;
        qv_status status =
            t->ctx->backend->prepare(t->ctx->dev, t->op, t->n, &t->kernels[t->n], &bytes, err);
        if (status == QV_EUNSUPPORTED && t->n)
            break;
        if (status)
            return status;
        scratch = bytes > scratch ? bytes : scratch;
    }
    qv_status status = place_operands(t, err);
    t->places[QV_MAX_OPERANDS] = t->bytes;
    t->bytes += qv_aligned(scratch);
    return status;
}

/* Fills the arena with random values: on zeros a GPU runs faster than it ever will on real data. */
static qv_status
fill(struct trial *t, qv_error *err)
{
    qv_dtype dtype = qv_op_view(t->op, 0).dtype;
    size_t element = qv_dtype_bytes(dtype);
    char *block = malloc(BLOCK_BYTES);
    if (!block)
        return qv_fail(err, QV_ENOMEM, "no memory for random values");
    uint32_t random = 1;
    for (size_t i = 0; i < BLOCK_BYTES / element; i++) {
        random = random * 1664525u + 1013904223u;
        qv_store(block, dtype, (int64_t)i, (double)(random >> 8) * 0x1p-23 - 1);
    }
    qv_status status = QV_OK;
    for (size_t at = 0; at < t->bytes && !status; at += BLOCK_BYTES) {
        size_t n = t->bytes - at < BLOCK_BYTES ? t->bytes - at : BLOCK_BYTES;
        status =
            t->ctx->backend->upload(t->ctx->dev, (struct qv_buffer){ t->arena, at }, block, n, err);
    }
    free(block);
    return status;
}

static void
wire(struct trial *t, int choice)
{
    for (int j = 0; j < MOST_RUNS; j++) {
        struct qv_call *call = &t->calls[j];
        *call = (struct qv_call){ .kernel = t->kernels[choice],
                                  .scratch = { t->arena, t->places[QV_MAX_OPERANDS] } };
        for (int k = 0; k < qv_op_n_operands(t->op->kind); k++)
            if (qv_op_view(t->op, k).bytes)
                call->operands[k] = (struct qv_buffer){ t->arena, t->places[k] };
    }
}

static qv_status
output_of(struct trial *t, int choice, void *y, qv_error *err)
{
    const struct qv_backend *be = t->ctx->backend;
    int i = qv_op_output(t->op);
    wire(t, choice);
    qv_status status = be->run(t->ctx->dev, t->calls, 1, err);
    if (!status)
        status = be->sync(t->ctx->dev, err);
    return status ? status
                  : be->download(t->ctx->dev, y, (struct qv_buffer){ t->arena, t->places[i] },
                                 qv_op_view(t->op, i).bytes, err);
}

/* Finds the choices whose bits differ from the first one's. Convolutions are not compared: each is
 * used at one capacity only, so its bits may differ. */
static qv_status
compare_all(struct trial *t, qv_error *err)
{
    size_t bytes = qv_op_view(t->op, qv_op_output(t->op)).bytes;
    if (t->op->kind == QV_OP_conv)
        return QV_OK;
    char *first = malloc(bytes), *y = malloc(bytes);
    qv_status status = QV_OK;
    if (!first || !y)
        status = qv_fail(err, QV_ENOMEM, "no memory to compare %zu bytes of results", bytes);
    for (int i = 0; i < t->n && !status; i++) {
        status = output_of(t, i, i ? y : first, err);
        t->differs[i] = i && !status && memcmp(first, y, bytes);
    }
    free(first);
    free(y);
    return status;
}

qv_status
qv_time_calls(qv_context *ctx, const struct qv_call *calls, size_t n,
              struct qv_recording *recording, double *ms, qv_error *err)
{
    const struct qv_backend *be = ctx->backend;
    struct qv_device *dev = ctx->dev;
    qv_status status = be->mark(dev, QV_MARK_BEGIN, err);
    if (!status)
        status = recording ? be->replay(dev, recording, err) : be->run(dev, calls, n, err);
    if (!status)
        status = be->mark(dev, QV_MARK_END, err);
    if (!status)
        status = be->wait(dev, QV_MARK_END, err);
    return status ? status : be->elapsed(dev, QV_MARK_BEGIN, QV_MARK_END, ms, err);
}

/* Times the recording of a choice or, if there is none, `runs` runs of it. */
static qv_status
time_once(struct trial *t, int choice, int runs, double *ms, qv_error *err)
{
    if (!t->recordings[choice])
        wire(t, choice);
    return qv_time_calls(t->ctx, t->calls, (size_t)runs, t->recordings[choice], ms, err);
}

/* Makes a sample take some milliseconds: a short operation gets many runs per sample, a long one
 * few samples. Runs are recorded if the device can, so that the cost of launching does not
 * count. */
static qv_status
record_all(struct trial *t, qv_error *err)
{
    static const double sample_ms = 3;
    double ms = 0;
    qv_status status = time_once(t, 0, 1, &ms, err);
    if (!status)
        status = time_once(t, 0, 1, &ms, err);
    t->runs = ms * MOST_RUNS < sample_ms ? MOST_RUNS : ms < sample_ms ? (int)(sample_ms / ms) : 1;
    t->samples = ms < sample_ms ? MOST_SAMPLES : 3;
    for (int i = 0; i < t->n && t->ctx->backend->record && !status; i++) {
        if (t->differs[i])
            continue;
        wire(t, i);
        status =
            t->ctx->backend->record(t->ctx->dev, t->calls, (size_t)t->runs, &t->recordings[i], err);
    }
    return status;
}

/* Times the choices in turn, so that a disturbance slows all of them; the first round warms up. */
static qv_status
time_all(struct trial *t, qv_error *err)
{
    for (int s = -1; s < t->samples; s++)
        for (int i = 0; i < t->n; i++) {
            double ms = 0;
            if (t->differs[i])
                continue;
            qv_status status = time_once(t, i, t->runs, &ms, err);
            if (status)
                return status;
            if (s >= 0)
                t->ms[i][s] = ms / t->runs;
        }
    return QV_OK;
}

/* Remembers all medians, and returns the choice. Another choice replaces the device's own first one
 * only if it is clearly faster. */
static int
judge(struct trial *t, const char *work)
{
    static const double clearly = 0.98;
    double best_ms = 0, medians[QV_MOST_CHOICES] = { 0 };
    int best = 0;
    for (int i = 0; i < t->n; i++) {
        char name[NAME_BYTES];
        if (t->differs[i])
            continue;
        medians[i] = qv_quantile(t->ms[i], (size_t)t->samples, 0.5);
        const double ms = medians[i];
        qv_tune_measured(&t->ctx->tune, work, name_of(i, name), ms);
        if (i == 0 || (ms < best_ms && ms < clearly * medians[0])) {
            best_ms = ms;
            best = i;
        }
    }
    return best;
}

static qv_status
measure(qv_context *ctx, const struct qv_op *op, const char *work, qv_error *err)
{
    struct trial *t = calloc(1, sizeof *t);
    if (!t)
        return qv_fail(err, QV_ENOMEM, "no memory to time an operation");
    t->ctx = ctx;
    t->op = op;
    qv_status status = prepare_all(t, err);
    if (!status && t->n > 1) {
        status = ctx->backend->alloc(ctx->dev, t->bytes, &t->arena, err);
        if (!status)
            status = fill(t, err);
        if (!status)
            status = compare_all(t, err);
        if (!status)
            status = record_all(t, err);
        if (!status)
            status = time_all(t, err);
    }
    if (!status) {
        char name[NAME_BYTES];
        qv_tune_choose(&ctx->tune, work, name_of(t->n > 1 ? judge(t, work) : 0, name));
    }
    close_trial(t);
    return status;
}

qv_status
qv_kernel_choice(qv_context *ctx, const struct qv_op *op, int *choice, qv_error *err)
{
    char work[TEXT_BYTES];
    *choice = 0;
    if (!ctx->caps.has_choices || (op->kind != QV_OP_gemm && op->kind != QV_OP_conv))
        return QV_OK; /* the first choice is kept */
    qv_op_print(op, work, sizeof work);
    if (ctx->tune.measure && !qv_tune_find(&ctx->tune, work)) {
        qv_status status = measure(ctx, op, work, err);
        if (status)
            return status;
    }
    const char *known = qv_tune_find(&ctx->tune, work);
    char name[NAME_BYTES];
    for (int i = 0; known && i < QV_MOST_CHOICES; i++)
        if (!strcmp(known, name_of(i, name)))
            *choice = i;
    return QV_OK;
}
