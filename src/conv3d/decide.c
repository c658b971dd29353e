/* SPDX-License-Identifier: MIT */
/* Chooses how a convolution is lowered, and records why. */
#include "legal.h"

#include <string.h>

#include "error.h"

/* Appends words to a text, truncating what does not fit. */
static void
append(char text[QV_REASON_BYTES], const char *words)
{
    size_t used = strlen(text), n = strlen(words), room = QV_REASON_BYTES - 1 - used;
    n = n < room ? n : room;
    memcpy(text + used, words, n);
    text[used + n] = '\0';
}

/* Returns whether `by depth` is expected to beat `direct` if both are legal; if not, sets q's
 * text. */
static bool
by_depth_pays(const struct qv_conv3d_question *q, const struct qv_conv3d_thresholds *t)
{
    const qv_conv3d_desc *d = q->desc;
    bool depthwise = d->groups == d->c && d->groups == d->o;
    if (d->kernel[0] > t->by_depth_max_kd)
        return qv_conv3d_forbid(
            q, "kernel depth %lld is above %lld, where by depth stops paying off here",
            (long long)d->kernel[0], (long long)t->by_depth_max_kd);
    if (!depthwise && (d->groups > 1 || d->c < t->by_depth_min_c))
        return qv_conv3d_forbid(
            q,
            "neither depthwise nor dense with enough of its %lld channels for by depth "
            "to pay off here",
            (long long)d->c);
    return true;
}

/* Returns whether copying rows for a GEMM beats a convolution, which reads channels-last frames in
 * place. */
static bool
rows_pay(const struct qv_conv3d_question *q, const struct qv_conv3d_thresholds *t)
{
    const qv_conv3d_desc *d = q->desc;
    if (d->layout != QV_LAYOUT_CHANNELS_LAST || qv_conv3d_input_is_rows(d) || d->o >= t->rows_min_o)
        return true;
    return qv_conv3d_forbid(
        q,
        "%lld outputs are fewer than %lld, where copying rows for a GEMM starts "
        "paying off here",
        (long long)d->o, (long long)t->rows_min_o);
}

/* Returns the first legal lowering that is worth using. note[QV_REASON_BYTES]: why, if it was
 * close. */
static qv_lowering
choose(const qv_conv3d_desc *d, unsigned legal, const struct qv_conv3d_thresholds *t,
       const char *why_not_direct, char *note)
{
    char words[QV_REASON_BYTES] = "";
    const struct qv_conv3d_question q = { .desc = d, .text = note, .size = QV_REASON_BYTES };
    const struct qv_conv3d_question q_depth = { .desc = d, .text = words, .size = sizeof words };
    bool by_depth = legal >> QV_LOWERING_BY_DEPTH & 1, direct = legal >> QV_LOWERING_DIRECT & 1;
    if (legal >> QV_LOWERING_STILL & 1)
        return QV_LOWERING_STILL;
    if (legal >> QV_LOWERING_POINTWISE & 1 && (!direct || rows_pay(&q, t)))
        return QV_LOWERING_POINTWISE;
    if (legal >> QV_LOWERING_PATCHIFY & 1 && (!direct || rows_pay(&q, t)))
        return QV_LOWERING_PATCHIFY;
    if (legal >> QV_LOWERING_FRAMES & 1)
        return QV_LOWERING_FRAMES;
    if (direct && by_depth && by_depth_pays(&q_depth, t))
        return QV_LOWERING_BY_DEPTH;
    append(note, *note && *words ? "; " : "");
    append(note, words);
    if (direct)
        return QV_LOWERING_DIRECT;
    append(note, "not direct: ");
    append(note, why_not_direct);
    return QV_LOWERING_BY_DEPTH;
}

qv_status
qv_conv3d_decide(const qv_conv3d_desc *desc, const struct qv_caps *caps, int forced,
                 struct qv_conv3d_decision *out, qv_error *err)
{
    struct qv_conv3d_decision it;
    char reasons[QV_LOWERING_COUNT][QV_REASON_BYTES], note[QV_REASON_BYTES] = "";
    qv_status st = qv_conv3d_check(desc, err);
    if (st)
        return st;
    if (forced < -1 || forced >= QV_LOWERING_COUNT)
        return qv_fail(err, QV_EINVAL, "conv3d: unknown lowering %d", forced);
    memset(&it, 0, sizeof it);
    for (int i = 0; i < QV_LOWERING_COUNT; i++)
        if (qv_conv3d_legal(desc, caps, (qv_lowering)i, reasons[i], sizeof reasons[i]))
            it.legal |= 1u << i;
    if (forced >= 0 && !(it.legal >> forced & 1))
        return qv_fail(err, QV_EINVAL, "conv3d: lowering \"%s\" is not legal here: %s",
                       qv_lowering_name((qv_lowering)forced), reasons[forced]);
    if (!it.legal)
        return qv_fail(err, QV_EUNSUPPORTED,
                       "conv3d: no lowering is legal; direct: %s; by depth: %s",
                       reasons[QV_LOWERING_DIRECT], reasons[QV_LOWERING_BY_DEPTH]);
    it.lowering = forced >= 0
                      ? (qv_lowering)forced
                      : choose(desc, it.legal, &caps->conv3d, reasons[QV_LOWERING_DIRECT], note);
    append(it.reason, forced >= 0 ? "forced; " : "");
    append(it.reason, reasons[it.lowering]);
    append(it.reason, *note ? "; " : "");
    append(it.reason, note);
    *out = it;
    return QV_OK;
}
