/* SPDX-License-Identifier: MIT */
/* Measures which lowering of a Conv3d is the fastest on this device. */
#include "object.h"

#include "numbers.h"

/* Times all chunks of a call, and returns the median of several runs. A way that is clearly slower
 * than the best so far gets fewer runs. */
static qv_status
time_way(struct qv_conv3d *conv, struct qv_conv3d_ready *w, double best_ms, double *median_ms,
         qv_error *err)
{
    enum { LEAST = 3, MOST = 15, ENOUGH_MS = 300 };
    int64_t chunks = qv_ceil_div(conv->out[0], conv->chunk);
    double samples[MOST + 1], sum = 0;
    int n = 0;
    do { /* the first run warms up */
        double ms = 0;
        qv_status status = qv_time_calls(conv->ctx, w->calls, (size_t)w->list.n, NULL, &ms, err);
        if (status)
            return status;
        samples[n] = ms * (double)chunks;
        sum += n ? samples[n] : 0;
        n++;
    } while (n < MOST + 1 && !(samples[n - 1] > 4 * best_ms) &&
             (n <= LEAST || sum < ENOUGH_MS * (double)chunks));
    int skip = n > 1 ? 1 : 0;
    *median_ms = qv_quantile(samples + skip, (size_t)(n - skip), 0.5);
    return QV_OK;
}

void
qv_conv3d_work_text(const struct qv_conv3d *conv, char *text, size_t size)
{
    char line[900];
    snprintf(text, size, "conv3d chunk=%lld %s", (long long)conv->chunk,
             qv_conv3d_print(&conv->desc, line, sizeof line));
}

/* Runs every legal way and remembers the fastest. */
static qv_status
measure(struct qv_conv3d *conv, const qv_conv3d_weights *weights, const char *work, qv_error *err)
{
    qv_context *ctx = conv->ctx;
    double best_ms = 1e30;
    qv_lowering best = conv->decision.lowering;
    for (int i = 0; i < QV_LOWERING_COUNT; i++) {
        struct qv_conv3d_ready w;
        double ms = 0;
        if (!(conv->decision.legal >> i & 1))
            continue;
        qv_status status = qv_conv3d_ready_prepare(ctx, &conv->chunk_desc, (qv_lowering)i, &w, err);
        if (!status)
            status = qv_conv3d_ready_load(ctx, &conv->desc, weights, &w, err);
        if (!status)
            status = time_way(conv, &w, best_ms, &ms, err);
        qv_conv3d_ready_free(ctx, &w);
        if (status == QV_EUNSUPPORTED || status == QV_ENOMEM)
            continue; /* a way that this device cannot run, or has no memory for, has lost */
        if (status)
            return status;
        qv_tune_measured(&ctx->tune, work, qv_lowering_name((qv_lowering)i), ms);
        if (ms < best_ms) {
            best_ms = ms;
            best = (qv_lowering)i;
        }
    }
    qv_tune_choose(&ctx->tune, work, qv_lowering_name(best));
    return QV_OK;
}

qv_status
qv_conv3d_choose(struct qv_conv3d *conv, const qv_conv3d_weights *weights, qv_error *err)
{
    char work[1000], text[QV_REASON_BYTES];
    struct qv_tune *tune = &conv->ctx->tune;
    qv_conv3d_work_text(conv, work, sizeof work);
    if (tune->measure && conv->weighted && !qv_tune_find(tune, work)) {
        qv_status status = measure(conv, weights, work, err);
        if (status)
            return status;
    }
    int lowering = qv_lowering_find(qv_tune_find(tune, work));
    if (lowering < 0 || !(conv->decision.legal >> lowering & 1))
        return QV_OK;
    qv_conv3d_legal(&conv->desc, &conv->ctx->caps, (qv_lowering)lowering, text, sizeof text);
    conv->decision.lowering = (qv_lowering)lowering;
    snprintf(conv->decision.reason, sizeof conv->decision.reason, "measured %.3g ms; %.150s",
             qv_tune_ms(tune, work, qv_lowering_name((qv_lowering)lowering)), text);
    return QV_OK;
}
