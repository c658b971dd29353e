/* SPDX-License-Identifier: MIT */
/*
 * Runs a list's calls, with quantised weights widened for several GEMMs at once. One launch before
 * the first GEMM widens its weight and the weights of the following GEMMs, as many as fit into
 * scratch after the part that the kernels in between use. With a launch per GEMM, starting and
 * ending would take as long as the memory traffic. A batch that begins after a norm is widened
 * while the norm runs, so a batch that fills half of the room ends at a norm.
 */
#include "cuda.h"

/* Returns the GEMM of a call whose weight is widened in batches, or NULL. */
static const struct gemm_cuda *
widened(const struct qv_call *call)
{
    const struct gemm_cuda *g = &call->kernel->u.gemm;
    return !call->side && call->kernel->op.kind == QV_OP_gemm && g->wide_bytes ? g : NULL;
}

/* The side stream's calls have scratch of their own. All others must share one, or nothing is
 * batched. */
struct batches_cuda
qv_batches_cuda(const struct qv_call *calls, size_t n)
{
    struct batches_cuda b = { .calls = calls, .n = n };
    size_t used = 0, all = 0, widest = 0;
    char *scratch = NULL;
    for (size_t i = 0; i < n; i++) {
        const struct gemm_cuda *g = widened(&calls[i]);
        const size_t bytes = calls[i].kernel->scratch_bytes;
        const size_t wide = g ? g->wide_bytes : 0;
        if (calls[i].side || !bytes)
            continue;
        if (scratch && scratch != address_cuda(calls[i].scratch))
            return b;
        scratch = address_cuda(calls[i].scratch);
        used = bytes - wide > used ? bytes - wide : used;
        all = bytes > all ? bytes : all;
        widest = wide > widest ? wide : widest;
    }
    used = qv_aligned(used);
    if (widest && used + widest <= all) {
        b.room = scratch + used;
        b.room_bytes = all - used;
    }
    return b;
}

/* Returns whether call i comes right after a norm, which uses no scratch. */
static bool
behind_norm(const struct batches_cuda *b, size_t i)
{
    const struct qv_call *before = i ? &b->calls[i - 1] : NULL;
    return before && !before->side && !b->calls[i].waits && before->kernel->op.kind == QV_OP_norm;
}

/* Returns whether call i's weight is left to the next batch. */
static bool
ends_batch(const struct batches_cuda *b, size_t first, size_t i, size_t bytes)
{
    const struct qv_op_gemm *op = &b->calls[i].kernel->op.u.gemm;
    return bytes + widened(&b->calls[i])->wide_bytes > b->room_bytes ||
           op->x_dtype != b->calls[first].kernel->op.u.gemm.x_dtype ||
           (2 * bytes >= b->room_bytes && behind_norm(b, i));
}

/* Widens the weights of a batch that begins with call `first`. */
static qv_status
widen_batch(struct qv_device_cuda *dev, struct batches_cuda *b, size_t first, qv_error *err)
{
    struct widening_cuda list[QV_MOST_WIDENED];
    const bool early = dev->sm >= 90 && behind_norm(b, first);
    size_t bytes = 0;
    int n = 0;
    for (size_t i = first; i < b->n && n < QV_MOST_WIDENED; i++) {
        const struct gemm_cuda *g = widened(&b->calls[i]);
        if (!g)
            continue;
        if (n && ends_batch(b, first, i, bytes))
            break;
        list[n++] = (struct widening_cuda){ g->codes, address_cuda(b->calls[i].operands[1]),
                                            b->room + bytes };
        bytes += g->wide_bytes;
        b->end = i + 1;
    }
    b->at = b->room;
    return qv_check_cuda(dev,
                         qv_widen_cuda(dev->stream, list, n,
                                       b->calls[first].kernel->op.u.gemm.x_dtype, early),
                         "widening weights", err);
}

qv_status
qv_run_batched_cuda(struct qv_device_cuda *dev, struct batches_cuda *b, size_t i, qv_error *err)
{
    const struct qv_call *call = &b->calls[i];
    const struct gemm_cuda *g = b->room ? widened(call) : NULL;
    void *p[QV_MAX_OPERANDS];
    qv_status status = g && i >= b->end ? widen_batch(dev, b, i, err) : QV_OK;
    if (status)
        return status;
    for (int j = 0; j < QV_MAX_OPERANDS; j++)
        p[j] = address_cuda(call->operands[j]);
    if (!g)
        return call->kernel->verbs->run(dev, call->kernel, p, address_cuda(call->scratch), err);
    p[1] = b->at;
    b->at += g->wide_bytes;
    return qv_gemm_by_values_cuda(dev, call->kernel, p, address_cuda(call->scratch), err);
}
