/* SPDX-License-Identifier: MIT */
/* Finds each operation's kernel, lays out a chunk's memory, and makes the calls. */
#include "program.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"

/* ---- arenas ---------------------------------------------------------------------------------- */

static size_t
larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Where the part used by all chunks in turn begins; the chunks' own parts precede it. */
static size_t
work_begins(const struct qv_arena *arena)
{
    return (size_t)arena->n_chunks * arena->own_bytes;
}

bool
qv_arena_holds(const struct qv_arena *arena, const struct qv_program *p)
{
    return arena && arena->own_bytes >= p->own_bytes && arena->work_bytes >= p->work_bytes;
}

qv_status
qv_arena_replace(struct qv_arena **arena, const struct qv_program *p, double times, qv_error *err)
{
    const struct qv_backend *be = p->ctx->backend;
    struct qv_arena *made = calloc(1, sizeof *made), *before = *arena;
    if (!made)
        return qv_fail(err, QV_ENOMEM, "no memory for an arena");
    *made = (struct qv_arena){
        .own_bytes = larger(qv_aligned((size_t)((double)p->own_bytes * times)),
                            before ? before->own_bytes : 0),
        .work_bytes = larger(qv_aligned((size_t)((double)p->work_bytes * times)),
                             before ? before->work_bytes : 0),
        .n_chunks = p->n_chunks,
        .users = 1,
    };
    qv_arena_leave(p->ctx, arena); /* first, so that both need not fit into the device's memory */
    qv_status status =
        be->alloc(p->ctx->dev, work_begins(made) + made->work_bytes, &made->memory, err);
    if (status)
        free(made);
    else
        *arena = made;
    return status;
}

void
qv_arena_leave(qv_context *ctx, struct qv_arena **arena)
{
    struct qv_arena *a = *arena;
    *arena = NULL;
    if (!a || --a->users)
        return;
    ctx->backend->free(ctx->dev, a->memory);
    free(a);
}

/* ---- preparing ------------------------------------------------------------------------------- */

/* Makes the step's places large enough for it. */
static qv_status
measure(struct qv_program *p, const struct qv_step *step, qv_error *err)
{
    struct qv_view views[QV_MAX_OPERANDS];
    const int n = qv_op_views(&step->op, views);
    for (int j = 0; j < n; j++) {
        const int at = step->operands[j];
        size_t bytes = (size_t)step->offsets[j] + views[j].bytes;
        if (at == QV_NO_OPERAND || at >= p->n_places)
            continue;
        if (views[j].role == QV_ROLE_WEIGHT) {
            const struct qv_matrix matrix = qv_matrix_of(&step->op, &views[j]);
            struct qv_layout layout = { 0 };
            qv_status status = p->ctx->backend->layout(p->ctx->dev, &matrix, &layout, err);
            if (status)
                return status;
            bytes = layout.bytes;
        }
        p->places[at].bytes = larger(p->places[at].bytes, bytes);
    }
    return QV_OK;
}

/* Gives each place an offset. Scratch comes last. */
static qv_status
lay_out(struct qv_program *p, qv_error *err)
{
    double sum = (double)p->scratch[0] + (double)p->scratch[1];
    for (int i = 0; i < p->n_places; i++)
        sum += (double)p->places[i].bytes;
    if (sum > (double)(PTRDIFF_MAX / 2))
        return qv_fail(err, QV_ENOMEM, "no memory for %.3g bytes of operands", sum);
    for (struct qv_place *place = p->places; place < p->places + p->n_places; place++) {
        size_t *bytes = place->own ? &p->own_bytes : &p->work_bytes;
        place->offset = *bytes;
        *bytes += qv_aligned(place->bytes);
    }
    for (int i = 0; i < 2; i++) {
        p->scratch_offsets[i] = p->work_bytes;
        p->work_bytes += qv_aligned(p->scratch[i]);
    }
    return QV_OK;
}

qv_status
qv_program_prepare(qv_context *ctx, const struct qv_step *steps, size_t n,
                   const struct qv_place *places, int n_places, int n_chunks, struct qv_program *p,
                   qv_error *err)
{
    *p = (struct qv_program){ .ctx = ctx, .n = n, .n_places = n_places, .n_chunks = n_chunks };
    /* one more, as malloc(0) may return NULL */
    p->steps = malloc((n + 1) * sizeof *p->steps);
    p->kernels = calloc(n + 1, sizeof *p->kernels);
    p->calls = calloc((size_t)n_chunks * (n + 1), sizeof *p->calls);
    p->places = malloc((size_t)n_places * sizeof *p->places);
    if (!p->steps || !p->kernels || !p->calls || !p->places)
        return qv_fail(err, QV_ENOMEM, "no memory for %zu operations", n);
    memcpy(p->steps, steps, n * sizeof *p->steps);
    memcpy(p->places, places, (size_t)n_places * sizeof *p->places);
    for (size_t i = 0; i < n; i++) {
        size_t *scratch = &p->scratch[steps[i].side];
        qv_status status = qv_kernel_get(ctx, &steps[i].op, &p->kernels[i], err);
        if (status)
            return status;
        p->n_kernels++;
        *scratch = larger(*scratch, ctx->kernels.entries[p->kernels[i]].scratch_bytes);
        status = measure(p, &steps[i], err);
        if (status)
            return status;
        p->flops += qv_op_flops(&steps[i].op);
        p->bytes += qv_op_bytes(&steps[i].op);
    }
    return lay_out(p, err);
}

void
qv_program_free(struct qv_program *p)
{
    for (size_t i = 0; i < p->n_kernels; i++)
        qv_kernel_put(p->ctx, p->kernels[i]);
    qv_arena_leave(p->ctx, &p->arena);
    free(p->steps);
    free(p->kernels);
    free(p->calls);
    free(p->places);
    *p = (struct qv_program){ 0 };
}

/* ---- loading --------------------------------------------------------------------------------- */

struct qv_buffer
qv_program_place(const struct qv_program *p, int chunk, int place)
{
    const struct qv_arena *a = p->arena;
    if (place == QV_NO_OPERAND)
        return (struct qv_buffer){ 0 };
    const size_t begins = p->places[place].own ? (size_t)chunk * a->own_bytes : work_begins(a);
    return (struct qv_buffer){ a->memory, begins + p->places[place].offset };
}

const struct qv_call *
qv_program_calls(const struct qv_program *p, int chunk)
{
    return p->calls + (size_t)chunk * p->n;
}

size_t
qv_program_bytes(const struct qv_program *p)
{
    return (size_t)p->n_chunks * p->own_bytes + p->work_bytes;
}

void
qv_program_kernel(const struct qv_program *p, size_t step, char text[QV_KERNEL_BYTES])
{
    p->ctx->backend->describe(p->ctx->kernels.entries[p->kernels[step]].kernel, text,
                              QV_KERNEL_BYTES);
}

qv_status
qv_program_load(struct qv_program *p, struct qv_arena *arena, const struct qv_buffer *outside,
                qv_error *err)
{
    if (!arena) {
        qv_status status = qv_arena_replace(&p->arena, p, 1, err);
        if (status)
            return status;
    } else {
        p->arena = arena;
        arena->users++;
    }
    for (size_t i = 0; i < (size_t)p->n_chunks * p->n; i++) {
        const struct qv_step *step = &p->steps[i % p->n];
        struct qv_call *call = &p->calls[i];
        *call = (struct qv_call){
            .kernel = p->ctx->kernels.entries[p->kernels[i % p->n]].kernel,
            .scratch = { p->arena->memory, work_begins(p->arena) + p->scratch_offsets[step->side] },
            .side = step->side,
            .waits = step->waits,
            .transient = step->transient,
        };
        for (int j = 0; j < qv_op_n_operands(step->op.kind); j++) {
            const int at = step->operands[j];
            call->operands[j] = at < p->n_places ? qv_program_place(p, (int)(i / p->n), at)
                                                 : outside[at - p->n_places];
            call->operands[j].offset += (size_t)step->offsets[j];
        }
    }
    return QV_OK;
}
