/* SPDX-License-Identifier: MIT */
/*
 * Runs one operation on one device. Every buffer lies between two strips of bytes 0x99, and the
 * output and the scratch hold NaN before. Afterwards strips and inputs must be unchanged. Only the
 * backend's functions touch memory, as it may be a device's.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkop.h"
#include "dtype.h"

enum {
    GUARD_BYTES = 64 * 4,
    GUARD = 0x99,
    UNWRITTEN = 0xff /* UNWRITTEN bytes are NaN in f32, bf16 and double */
};

const char *const check_names[CHECK_COUNT] = {
#define CHECK_NAME(name, text) text,
    CHECK_LIST(CHECK_NAME)
#undef CHECK_NAME
};

struct guarded {
    struct qv_memory *memory; /* NULL: the operand is not used */
    size_t offset, bytes, total;
    unsigned char *image; /* on the host: what the memory must hold */
};

struct job {
    const struct side *side;
    const struct data *data;
    struct qv_kernel *kernel;
    struct guarded operands[QV_MAX_OPERANDS], scratch;
    struct qv_matrix matrix;
    struct qv_layout layout; /* the weight's, if there is one */
    bool alias, laid_out_before;
    unsigned char *laid_out; /* the weight as the first run laid it out */
};

bool
fail_case(struct outcome *outcome, enum check check, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    vsnprintf(outcome->text, sizeof outcome->text, format, ap);
    va_end(ap);
    outcome->check = check;
    return false;
}

static bool
verb_failed(struct outcome *outcome, const char *verb, qv_status status, const qv_error *err)
{
    return fail_case(outcome, CHECK_STATUS, "%s: status %d: %s", verb, (int)status, err->text);
}

/* ---- guarded buffers ------------------------------------------------------------------------- */

/* Opens a buffer. Its offset is a multiple of the alignment and of nothing larger, so that a kernel
 * cannot rely on more by accident. `inside` moves it into a row, where k lies. */
static bool
guarded_open(const struct side *side, size_t bytes, size_t inside, struct guarded *out,
             struct outcome *outcome)
{
    qv_error err = { 0 };
    size_t alignment = side->caps.alignment ? side->caps.alignment : 1;
    size_t offset = (GUARD_BYTES + alignment - 1) / alignment * alignment;
    if (offset / alignment % 2 == 0)
        offset += alignment;
    offset += inside;
    size_t total = offset + bytes + GUARD_BYTES;
    qv_status status = side->backend->alloc(side->dev, total, &out->memory, &err);
    if (status)
        return verb_failed(outcome, "alloc", status, &err);
    out->offset = offset;
    out->bytes = bytes;
    out->total = total;
    out->image = must_alloc(total);
    return true;
}

static void
guarded_close(const struct side *side, struct guarded *g)
{
    if (g->memory)
        side->backend->free(side->dev, g->memory);
    free(g->image);
    *g = (struct guarded){ 0 };
}

static struct qv_buffer
guarded_buffer(const struct guarded *g)
{
    return (struct qv_buffer){ g->memory, g->memory ? g->offset : 0 };
}

/* Writes guards and content to the device; content NULL: the byte `value` everywhere. */
static bool
guarded_write(const struct side *side, struct guarded *g, const void *content, int value,
              struct outcome *outcome)
{
    if (!g->memory)
        return true;
    memset(g->image, GUARD, g->total);
    if (content)
        memcpy(g->image + g->offset, content, g->bytes);
    else
        memset(g->image + g->offset, value, g->bytes);
    qv_error err = { 0 };
    struct qv_buffer whole = { g->memory, 0 };
    qv_status status = side->backend->upload(side->dev, whole, g->image, g->total, &err);
    return status ? verb_failed(outcome, "upload", status, &err) : true;
}

/* Reads memory into the image; false if a guard has changed. */
static bool
guarded_read(const struct side *side, struct guarded *g, const char *name, struct outcome *outcome)
{
    if (!g->memory)
        return true;
    qv_error err = { 0 };
    struct qv_buffer whole = { g->memory, 0 };
    qv_status status =
        side->backend->download(side->dev, &(struct qv_download){ g->image, whole, g->total }, 1,
                                &err);
    if (status)
        return verb_failed(outcome, "download", status, &err);
    for (size_t i = 0; i < g->total; i++)
        if ((i < g->offset || i >= g->offset + g->bytes) && g->image[i] != GUARD)
            return fail_case(outcome, CHECK_GUARD, "%s: byte %lld of %zu was written", name,
                             (long long)i - (long long)g->offset, g->bytes);
    return true;
}

/* ---- one run --------------------------------------------------------------------------------- */

void
job_close(struct job *job)
{
    if (!job)
        return;
    for (int i = 0; i < QV_MAX_OPERANDS; i++)
        guarded_close(job->side, &job->operands[i]);
    guarded_close(job->side, &job->scratch);
    if (job->kernel)
        job->side->backend->release(job->side->dev, job->kernel);
    free(job->laid_out);
    free(job);
}

static bool
open_weight(struct job *job, const struct qv_view *desc, size_t *bytes, struct outcome *outcome)
{
    qv_error err = { 0 };
    const struct qv_op *op = &job->data->op;
    job->matrix = qv_matrix_of(op, desc);
    qv_status status = job->side->backend->layout(job->side->dev, &job->matrix, &job->layout, &err);
    if (status)
        return verb_failed(outcome, "layout", status, &err);
    if (job->layout.row_multiple < 1)
        return fail_case(outcome, CHECK_STATUS, "layout: row_multiple is %lld",
                         (long long)job->layout.row_multiple);
    job->laid_out = must_alloc(job->layout.bytes);
    *bytes = job->layout.bytes;
    return true;
}

struct job *
job_open(const struct side *side, const struct data *data, bool alias, struct outcome *outcome)
{
    qv_error err = { 0 };
    size_t scratch_bytes = 0;
    struct job *job = must_alloc(sizeof *job);
    job->side = side;
    job->data = data;
    job->alias = alias;
    qv_status status = side->backend->prepare(side->dev, &data->op, side->choice, &job->kernel,
                                              &scratch_bytes, &err);
    bool ok = !status;
    if (status == QV_EUNSUPPORTED) {
        outcome->skipped = true;
        snprintf(outcome->text, sizeof outcome->text, "%s", err.text);
    } else if (status)
        ok = verb_failed(outcome, "prepare", status, &err);
    for (int i = 0; i < data->n && ok; i++) {
        const struct qv_view *d = &data->desc[i];
        size_t bytes = d->bytes;
        size_t inside = d->row_stride > d->cols ? (size_t)d->cols * qv_dtype_bytes(d->dtype) : 0;
        if (bytes && d->role == QV_ROLE_WEIGHT)
            ok = open_weight(job, d, &bytes, outcome);
        if (ok && bytes && !(alias && i == 3))
            ok = guarded_open(side, bytes, inside, &job->operands[i], outcome);
    }
    if (ok && scratch_bytes)
        ok = guarded_open(side, scratch_bytes, 0, &job->scratch, outcome);
    if (ok)
        return job;
    job_close(job);
    return NULL;
}

/* Lays the weight out in zeroed memory, as alloc gives it, in one slice or several (a
 * convolution's always in one). The bytes must be the same either way. */
static bool
lay_out_weight(struct job *job, int i, bool slices, struct outcome *outcome)
{
    const struct side *side = job->side;
    struct guarded *g = &job->operands[i];
    if (!guarded_write(side, g, NULL, 0, outcome))
        return false;
    int64_t n = job->matrix.n, step = n, unit = job->layout.row_multiple;
    if (slices && !job->matrix.conv)
        step = unit * (n > 3 * unit ? n / (3 * unit) : 1);
    size_t row_bytes = job->data->desc[i].bytes / (size_t)n;
    for (int64_t row = 0; row < n; row += step) {
        qv_error err = { 0 };
        int64_t rows = n - row < step ? n - row : step;
        /* a separate block, so that a sanitizer sees accesses beyond it */
        void *slice = must_alloc((size_t)rows * row_bytes);
        memcpy(slice, (char *)job->data->bytes[i] + (size_t)row * row_bytes,
               (size_t)rows * row_bytes);
        qv_status status = side->backend->lay_out(side->dev, &job->matrix, row, rows, slice,
                                                  guarded_buffer(g), &err);
        free(slice);
        if (status)
            return verb_failed(outcome, "lay_out", status, &err);
    }
    if (!guarded_read(side, g, "laid out weight", outcome))
        return false;
    if (job->laid_out_before && memcmp(job->laid_out, g->image + g->offset, g->bytes))
        return fail_case(outcome, CHECK_LAYOUT, "laid out in slices of %lld rows of %lld",
                         (long long)step, (long long)n);
    memcpy(job->laid_out, g->image + g->offset, g->bytes);
    job->laid_out_before = true;
    return true;
}

static bool
write_operands(struct job *job, bool slices, struct outcome *outcome)
{
    const struct data *data = job->data;
    int out = qv_op_output(&data->op);
    bool ok = true, in_place = data->desc[out].role == QV_ROLE_UPDATE;
    for (int i = 0; i < data->n && ok; i++) {
        const void *content = i != out || in_place ? data->bytes[i] : NULL;
        if (i == out && job->alias)
            content = data->bytes[3];
        if (data->desc[i].role == QV_ROLE_WEIGHT)
            ok = lay_out_weight(job, i, slices, outcome);
        else
            ok = guarded_write(job->side, &job->operands[i], content, UNWRITTEN, outcome);
    }
    return ok && guarded_write(job->side, &job->scratch, NULL, UNWRITTEN, outcome);
}

/* Checks that the space between rows of the output, if they lie apart, is unchanged. */
static bool
check_gaps(const struct qv_view *y, const unsigned char *before, const unsigned char *after,
           struct outcome *outcome)
{
    size_t element = qv_dtype_bytes(y->dtype), gap = (size_t)(y->row_stride - y->cols) * element;
    for (int64_t row = 0; row + 1 < y->rows; row++) {
        size_t at = (size_t)element_at(y, row, y->cols) * element;
        if (memcmp(before + at, after + at, gap))
            return fail_case(outcome, CHECK_GUARD, "%s: wrote past the columns of row %lld",
                             y->name, (long long)row);
    }
    return true;
}

static bool
read_operands(struct job *job, void *result, struct outcome *outcome)
{
    const struct data *data = job->data;
    int out = qv_op_output(&data->op);
    bool ok = guarded_read(job->side, &job->scratch, "scratch", outcome);
    for (int i = 0; i < data->n && ok; i++) {
        struct guarded *g = &job->operands[i];
        ok = guarded_read(job->side, g, data->desc[i].name, outcome);
        if (!ok || !g->memory)
            continue;
        const void *before =
            data->desc[i].role == QV_ROLE_WEIGHT ? (const void *)job->laid_out : data->bytes[i];
        if (i == out) {
            memcpy(result, g->image + g->offset, g->bytes);
            ok = check_gaps(&data->desc[i], before, result, outcome);
        } else if (memcmp(g->image + g->offset, before, g->bytes))
            ok = fail_case(outcome, CHECK_INPUT, "%s is not what it was before the run",
                           data->desc[i].name);
    }
    return ok;
}

static struct qv_call
job_call(const struct job *job)
{
    struct qv_call call = { .kernel = job->kernel, .scratch = guarded_buffer(&job->scratch) };
    for (int i = 0; i < job->data->n; i++)
        call.operands[i] = guarded_buffer(&job->operands[i]);
    if (job->alias)
        call.operands[3] = call.operands[qv_op_output(&job->data->op)];
    return call;
}

bool
job_run(struct job *job, bool slices, void *result, struct outcome *outcome)
{
    if (!write_operands(job, slices, outcome))
        return false;
    qv_error err = { 0 };
    const struct qv_call call = job_call(job);
    qv_status status = job->side->backend->run(job->side->dev, &call, 1, &err);
    if (!status)
        status = job->side->backend->sync(job->side->dev, &err);
    if (status)
        return verb_failed(outcome, "run", status, &err);
    return read_operands(job, result, outcome);
}
