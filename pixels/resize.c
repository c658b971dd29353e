/* SPDX-License-Identifier: MIT */
/* Bicubic resize of RGB bytes with torch's uint8 arithmetic: 16-bit weights with one precision per
 * axis; first across, rounded to bytes, then down, through a small ring of rows that stays in the
 * cache. */
#include <stdlib.h>
#include <string.h>

#include "pixels.h"
#include "numbers.h"
#include "qwenvit_clips.h" /* exports qv_resize_bicubic */

#define ROW_SPARE 64

struct qvm_resizer {
    struct qv_axis across, down;
    qvm_resize_ops ops;
    int src_h, src_w, dst_h, dst_w;
    int ring_rows;      /* rows kept after the pass across */
    size_t ring_stride; /* in bytes: a multiple of 64, with padding after the row */
    /* size of a copied source row: kernels read past the end of the original */
    size_t padded_stride;
    uint8_t *scratch;
    const uint8_t **rows; /* [down.taps + 1] */
};

/* Interleaves the weights of four outputs as one vector for the packed kernel. */
static bool
axis_pack(struct qv_axis *axis)
{
    const size_t taps = (size_t)axis->taps, groups = ((size_t)axis->out + 3) / 4;
    int16_t *packed = malloc(groups * 4 * taps * sizeof *packed);
    if (!packed)
        return false;
    for (size_t g = 0; g < groups; g++)
        for (size_t k = 0; k < taps; k++)
            for (size_t j = 0; j < 4; j++)
                packed[g * 4 * taps + k / 2 * 8 + j * 2 + k % 2] =
                    axis->weights[(g * 4 + j) * taps + k];
    free(axis->weights);
    axis->weights = packed;
    return true;
}

/* ---- kernels in portable C: reference and fallback ------------------------------------------- */

static inline uint8_t
to_byte(int32_t sum, int precision)
{
    const int32_t v = sum >> precision;
    return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
}

static void
across_c(const struct qv_axis *axis, const uint8_t *const *src, uint8_t *const *dst)
{
    const int taps = axis->taps, precision = axis->precision;
    for (int r = 0; r < QVM_ROWS; r++) {
        for (int i = 0; i < axis->out; i++) {
            const uint8_t *s = src[r] + 3 * (size_t)axis->start[i];
            const int16_t *w = axis->weights + (size_t)i * (size_t)taps;
            int32_t red = 1 << precision >> 1, green = red, blue = red;
            for (int k = 0; k < taps; k++) {
                red += w[k] * s[3 * k];
                green += w[k] * s[3 * k + 1];
                blue += w[k] * s[3 * k + 2];
            }
            dst[r][3 * i] = to_byte(red, precision);
            dst[r][3 * i + 1] = to_byte(green, precision);
            dst[r][3 * i + 2] = to_byte(blue, precision);
        }
    }
}

static void
down_c(const uint8_t *const *rows, const int16_t *weights, int taps, int precision, uint8_t *dst,
       size_t n)
{
    for (size_t x = 0; x < n; x += 64) {
        int32_t sum[64];
        for (int j = 0; j < 64; j++)
            sum[j] = 1 << precision >> 1;
        for (int k = 0; k < taps; k++) {
            const uint8_t *row = rows[k] + x;
            for (int j = 0; j < 64; j++)
                sum[j] += weights[k] * row[j];
        }
        for (int j = 0; j < 64; j++)
            dst[x + (size_t)j] = to_byte(sum[j], precision);
    }
}

/* ---- the resizer ----------------------------------------------------------------------------- */

/* Prepares both axes. An axis whose size does not change has no taps, and its pass is skipped. */
static bool
axes_prepare(qvm_resizer *r, qvm_level level)
{
    const bool wide = r->src_w != r->dst_w, high = r->src_h != r->dst_h;
    const int n_across = wide ? qv_axis_measure(&r->across, r->src_w, r->dst_w) : 0;
    const int n_down = high ? qv_axis_measure(&r->down, r->src_h, r->dst_h) : 0;
    if ((wide && !n_across) || (high && !n_down))
        return false;
    r->ops = (qvm_resize_ops){ .multiple = 1, .across = across_c, .down = down_c };
#ifdef QVM_X86
    qvm_resize_x86(&r->ops, level, r->src_w, r->dst_w, n_across);
#else
    (void)level;
#endif
    if (wide && !qv_axis_fill(&r->across, (int)qv_round_up(n_across, r->ops.multiple)))
        return false;
    if (wide && r->ops.packed && !axis_pack(&r->across))
        return false;
    return !high || qv_axis_fill(&r->down, (int)qv_round_up(n_down, 2));
}

/* Allocates the scratch: the ring, one output row, and copied source rows. */
static bool
scratch_prepare(qvm_resizer *r)
{
    const int longest = r->src_w > r->across.taps ? r->src_w : r->across.taps;
    r->ring_rows = (r->down.taps > 1 ? r->down.taps : 1) + QVM_ROWS;
    r->ring_stride = (size_t)qv_round_up(3 * (int64_t)r->dst_w + ROW_SPARE, 64);
    r->padded_stride = (size_t)qv_round_up(3 * (int64_t)longest + ROW_SPARE, 64);
    r->scratch =
        calloc(1, (size_t)(r->ring_rows + 1) * r->ring_stride + QVM_ROWS * r->padded_stride);
    r->rows = calloc((size_t)(r->down.taps + 1), sizeof *r->rows);
    return r->scratch && r->rows;
}

qv_status
qvm_resizer_create(int src_h, int src_w, int dst_h, int dst_w, qvm_level level, qvm_resizer **out,
                   qv_error *err)
{
    qvm_resizer *r = calloc(1, sizeof *r);
    if (!r)
        goto no_memory;
    r->src_h = src_h;
    r->src_w = src_w;
    r->dst_h = dst_h;
    r->dst_w = dst_w;
    if (!axes_prepare(r, level) || !scratch_prepare(r))
        goto no_memory;
    *out = r;
    return QV_OK;

no_memory:
    qvm_resizer_free(&r);
    return qv_fail(err, QV_ENOMEM, "no memory to resize %dx%d to %dx%d", src_w, src_h, dst_w,
                   dst_h);
}

void
qvm_resizer_free(qvm_resizer **resizer)
{
    qvm_resizer *r = *resizer;
    if (!r)
        return;
    qv_axis_free(&r->across);
    qv_axis_free(&r->down);
    free(r->scratch);
    free(r->rows);
    free(r);
    *resizer = NULL;
}

/* Resizes source rows y to y + QVM_ROWS - 1 across, into the ring. Rows past the end repeat the
 * last one; their slots in the ring are never read. */
static void
fill_ring(const qvm_resizer *r, const uint8_t *src, int64_t stride, int y)
{
    uint8_t *padded = r->scratch + (size_t)(r->ring_rows + 1) * r->ring_stride;
    const uint8_t *from[QVM_ROWS];
    uint8_t *to[QVM_ROWS];
    for (int k = 0; k < QVM_ROWS; k++) {
        const int row = y + k < r->src_h ? y + k : r->src_h - 1;
        from[k] = src + row * stride;
        to[k] = r->scratch + (size_t)((y + k) % r->ring_rows) * r->ring_stride;
        if (!r->across.taps) {
            memcpy(to[k], from[k], 3 * (size_t)r->src_w);
        } else if (row == r->src_h - 1 || r->src_w < r->across.taps) {
            memcpy(padded + (size_t)k * r->padded_stride, from[k], 3 * (size_t)r->src_w);
            from[k] = padded + (size_t)k * r->padded_stride;
        }
    }
    if (r->across.taps)
        r->ops.across(&r->across, from, to);
}

void
qvm_resizer_run(qvm_resizer *r, const uint8_t *src, int64_t src_stride, uint8_t *dst)
{
    const size_t row_bytes = 3 * (size_t)r->dst_w;
    const int taps = r->down.taps;
    uint8_t *last = r->scratch + (size_t)r->ring_rows * r->ring_stride;
    const uint8_t **rows = r->rows;
    int filled = taps ? r->down.start[0] : 0; /* the first source row that is not in the ring */

    for (int y = 0; y < r->dst_h; y++) {
        const int start = taps ? r->down.start[y] : y;
        const int end = taps ? start + taps : y + 1;
        const int needed = end < r->src_h ? end : r->src_h;
        for (; filled < needed; filled += QVM_ROWS)
            fill_ring(r, src, src_stride, filled);
        uint8_t *to = dst + (size_t)y * row_bytes;
        if (!taps) {
            memcpy(to, r->scratch + (size_t)(y % r->ring_rows) * r->ring_stride, row_bytes);
            continue;
        }
        /* in an image with fewer rows than taps, these weights are zero */
        for (int k = 0; k < taps; k++)
            rows[k] =
                r->scratch + (size_t)((start + k < r->src_h ? start + k : start) % r->ring_rows) *
                                 r->ring_stride;
        const int16_t *weights = r->down.weights + (size_t)y * (size_t)taps;
        const size_t whole = row_bytes / 64 * 64;
        r->ops.down(rows, weights, taps, r->down.precision, to, whole);
        if (whole == row_bytes)
            continue;
        for (int k = 0; k < taps; k++)
            rows[k] += whole;
        r->ops.down(rows, weights, taps, r->down.precision, last, 64);
        memcpy(to + whole, last, row_bytes - whole);
    }
}

qv_status
qv_resize_bicubic(const uint8_t *src, int64_t src_h, int64_t src_w, int64_t src_stride,
                  uint8_t *dst, int64_t dst_h, int64_t dst_w, qv_error *err)
{
    QV_NEED(err, src, dst);
    if (src_h < 1 || src_w < 1 || dst_h < 1 || dst_w < 1 || src_h > QVM_MAX_SIDE ||
        src_w > QVM_MAX_SIDE || dst_h > QVM_MAX_SIDE || dst_w > QVM_MAX_SIDE)
        return qv_fail(err, QV_EINVAL, "resize: %lldx%lld to %lldx%lld; sides must be from 1 to %d",
                       (long long)src_w, (long long)src_h, (long long)dst_w, (long long)dst_h,
                       QVM_MAX_SIDE);
    if (src_stride < 3 * src_w)
        return qv_fail(err, QV_EINVAL, "resize: rows are %lld bytes apart; %lld pixels need %lld",
                       (long long)src_stride, (long long)src_w, (long long)(3 * src_w));
    qvm_resizer *r = NULL;
    qv_status status =
        qvm_resizer_create((int)src_h, (int)src_w, (int)dst_h, (int)dst_w, QVM_BEST, &r, err);
    if (status)
        return status;
    qvm_resizer_run(r, src, src_stride, dst);
    qvm_resizer_free(&r);
    return QV_OK;
}
