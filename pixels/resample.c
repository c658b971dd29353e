/* SPDX-License-Identifier: MIT */
/* The two bicubic resizes of qwen-vl-utils, bit for bit. Clips use torchvision's resize of float32
 * images, rounded to bytes once, at the end. Images use PIL's, in integers with 22 fractional bits,
 * rounded between the passes too. The order of torch's sums is what gcc compiles its loop to on
 * AVX2 and AVX-512: the first product, then, four at a time, products that are rounded before they
 * are added, then fused products for the rest. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "pixels.h"

#define PIL_BITS 22
#define PIXEL 4  /* values per pixel in the pass across: three, and one to fill a vector */
#define LANES 64 /* values summed at a time; rows are padded to a multiple of it */

/* fmaf returns the same result everywhere, but is slow on a CPU without the instruction. */
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__) &&       \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CLONES __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define CLONES
#endif

typedef union value {
    float real;    /* for torch */
    int32_t whole; /* for PIL: weights times 2^22, and bytes of pixels */
} value;

/* Output i is the sum of weights[i * most + k] * input[start[i] + k], k < taps[i]. */
typedef struct axis {
    int in, out, most;
    int *start, *taps;
    value *weights;
} axis;

struct qvm_resampler {
    qvm_arithmetic arithmetic;
    axis across, down;
    bool down_first;    /* false: across first */
    size_t row_values;  /* values of a padded row between the passes */
    value *ring;        /* [down.most, row_values]: row y is in slot y % down.most */
    const value **rows; /* [down.most] */
    uint8_t *bytes;     /* [row_values]: a row after the pass down */
    value *pixels;      /* [PIXEL * across.in]: a row before the pass across */
    value *values;      /* [3 * across.out] */
};

/* ---- weights --------------------------------------------------------------------------------- */

static float
cubic_torch(float x)
{
    const float a = -0.5f;
    x = fabsf(x);
    if (x < 1.0f)
        return fmaf(fmaf(a + 2.0f, x, -(a + 3.0f)) * x, x, 1.0f);
    if (x < 2.0f)
        return fmaf(fmaf(fmaf(a, x, -5.0f * a), x, 8.0f * a), x, -4.0f * a);
    return 0.0f;
}

static double
cubic_pil(double x)
{
    const double a = -0.5;
    x = fabs(x);
    if (x < 1.0)
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
    if (x < 2.0)
        return (((x - 5.0) * x + 8.0) * x - 4.0) * a;
    return 0.0;
}

/* Sets the inputs of output i to the existing inputs from `low` to `high`, at least one. */
static void
set_window(axis *a, int i, double low, double high)
{
    const int begin = low <= 0 ? 0 : low < a->in ? (int)low : a->in - 1;
    const int end = high < a->in ? (int)high : a->in;
    const int n = end - begin;
    a->start[i] = begin;
    a->taps[i] = n < 1 ? 1 : n > a->most ? a->most : n;
}

static void
weigh_torch(axis *a, int i)
{
    const float scale = (float)a->in / (float)a->out;
    const float support = scale >= 1.0f ? 2.0f * scale : 2.0f;
    const float inverse = scale >= 1.0f ? 1.0f / scale : 1.0f;
    const float center = (float)((double)scale * (i + 0.5));
    value *w = a->weights + (size_t)i * (size_t)a->most;
    float total = 0.0f;
    set_window(a, i, (double)(center - support) + 0.5, (double)(center + support) + 0.5);
    for (int k = 0; k < a->taps[i]; k++) {
        const double at = (double)((float)(k + a->start[i]) - center) + 0.5;
        w[k].real = cubic_torch((float)(at * (double)inverse));
        total += w[k].real;
    }
    for (int k = 0; k < a->taps[i] && total != 0.0f; k++)
        w[k].real /= total;
}

/* scratch[a->most] */
static void
weigh_pil(axis *a, int i, double *scratch)
{
    const double scale = (double)a->in / a->out, wide = scale < 1.0 ? 1.0 : scale;
    const double center = (i + 0.5) * scale, support = 2.0 * wide;
    value *w = a->weights + (size_t)i * (size_t)a->most;
    double total = 0.0;
    set_window(a, i, center - support + 0.5, center + support + 0.5);
    for (int k = 0; k < a->taps[i]; k++) {
        scratch[k] = cubic_pil((k + a->start[i] - center + 0.5) * (1.0 / wide));
        total += scratch[k];
    }
    for (int k = 0; k < a->taps[i]; k++) {
        const double v = (total != 0.0 ? scratch[k] / total : scratch[k]) * (1 << PIL_BITS);
        w[k].whole = (int32_t)(v < 0 ? v - 0.5 : v + 0.5);
    }
}

static bool
axis_open(axis *a, int in, int out, qvm_arithmetic arithmetic)
{
    const double scale = (double)in / out;
    a->in = in;
    a->out = out;
    a->most = (int)ceil(scale < 1.0 ? 2.0 : 2.0 * scale) * 2 + 2;
    a->start = calloc((size_t)out, sizeof *a->start);
    a->taps = calloc((size_t)out, sizeof *a->taps);
    a->weights = calloc((size_t)out * (size_t)a->most, sizeof *a->weights);
    double *scratch = calloc((size_t)a->most, sizeof *scratch);
    const bool ok = a->start && a->taps && a->weights && scratch;
    for (int i = 0; ok && i < out; i++) {
        if (arithmetic == QVM_PIL)
            weigh_pil(a, i, scratch);
        else
            weigh_torch(a, i);
    }
    free(scratch);
    return ok;
}

static void
axis_close(axis *a)
{
    free(a->start);
    free(a->taps);
    free(a->weights);
}

/* ---- kernels: a row across, n bytes (a multiple of LANES) down ------------------------------- */

/* Returns how many taps after the first have products that are rounded before they are added. */
static inline int
rounded_taps(int taps)
{
    return (taps - 1) / 4 * 4;
}

CLONES static void
across_torch(const axis *a, const value *src, value *dst)
{
    for (int i = 0; i < a->out; i++) {
        const value *s = src + PIXEL * (size_t)a->start[i];
        const value *w = a->weights + (size_t)i * (size_t)a->most;
        const int taps = a->taps[i], rounded = rounded_taps(taps);
        float sum[PIXEL];
        for (int c = 0; c < PIXEL; c++)
            sum[c] = s[c].real * w[0].real;
        for (int k = 1; k <= rounded; k++)
            for (int c = 0; c < PIXEL; c++) {
                const float product = s[PIXEL * k + c].real * w[k].real;
                sum[c] += product;
            }
        for (int k = rounded + 1; k < taps; k++)
            for (int c = 0; c < PIXEL; c++)
                sum[c] = fmaf(s[PIXEL * k + c].real, w[k].real, sum[c]);
        for (int c = 0; c < 3; c++)
            dst[3 * i + c].real = sum[c];
    }
}

CLONES static void
down_torch(const value *const *rows, const value *w, int taps, uint8_t *dst, size_t n)
{
    /* a float of this size has no fractional bits, so adding it rounds half to even */
    const float round = 8388608.0f;
    const int rounded = rounded_taps(taps);
    for (size_t x = 0; x < n; x += LANES) {
        float sum[LANES];
        for (size_t j = 0; j < LANES; j++)
            sum[j] = rows[0][x + j].real * w[0].real;
        for (int k = 1; k <= rounded; k++)
            for (size_t j = 0; j < LANES; j++) {
                const float product = rows[k][x + j].real * w[k].real;
                sum[j] += product;
            }
        for (int k = rounded + 1; k < taps; k++)
            for (size_t j = 0; j < LANES; j++)
                sum[j] = fmaf(rows[k][x + j].real, w[k].real, sum[j]);
        for (size_t j = 0; j < LANES; j++) {
            const float v = sum[j] < 0.0f ? 0.0f : sum[j] > 255.0f ? 255.0f : sum[j];
            dst[x + j] = (uint8_t)(int)(v + round - round);
        }
    }
}

static inline int32_t
to_byte(int32_t sum)
{
    const int32_t v = sum >> PIL_BITS;
    return v < 0 ? 0 : v > 255 ? 255 : v;
}

CLONES static void
across_pil(const axis *a, const value *src, value *dst)
{
    for (int i = 0; i < a->out; i++) {
        const value *s = src + PIXEL * (size_t)a->start[i];
        const value *w = a->weights + (size_t)i * (size_t)a->most;
        int32_t sum[PIXEL];
        for (int c = 0; c < PIXEL; c++)
            sum[c] = 1 << (PIL_BITS - 1);
        for (int k = 0; k < a->taps[i]; k++)
            for (int c = 0; c < PIXEL; c++)
                sum[c] += s[PIXEL * k + c].whole * w[k].whole;
        for (int c = 0; c < 3; c++)
            dst[3 * i + c].whole = to_byte(sum[c]);
    }
}

CLONES static void
down_pil(const value *const *rows, const value *w, int taps, uint8_t *dst, size_t n)
{
    for (size_t x = 0; x < n; x += LANES) {
        int32_t sum[LANES];
        for (size_t j = 0; j < LANES; j++)
            sum[j] = 1 << (PIL_BITS - 1);
        for (int k = 0; k < taps; k++)
            for (size_t j = 0; j < LANES; j++)
                sum[j] += rows[k][x + j].whole * w[k].whole;
        for (size_t j = 0; j < LANES; j++)
            dst[x + j] = (uint8_t)to_byte(sum[j]);
    }
}

/* ---- the resampler --------------------------------------------------------------------------- */

static bool
open_buffers(qvm_resampler *r)
{
    const int width = r->down_first ? r->across.in : r->across.out;
    r->row_values = (3 * (size_t)width + LANES - 1) / LANES * LANES;
    r->ring = calloc((size_t)r->down.most * r->row_values, sizeof *r->ring);
    r->rows = calloc((size_t)r->down.most, sizeof *r->rows);
    r->bytes = calloc(r->row_values, 1);
    r->pixels = calloc(PIXEL * (size_t)r->across.in, sizeof *r->pixels);
    r->values = calloc(3 * (size_t)r->across.out, sizeof *r->values);
    return r->ring && r->rows && r->bytes && r->pixels && r->values;
}

qv_status
qvm_resampler_create(int src_h, int src_w, int dst_h, int dst_w, qvm_arithmetic arithmetic,
                     qvm_resampler **out, qv_error *err)
{
    qvm_resampler *r = calloc(1, sizeof *r);
    if (r) {
        r->arithmetic = arithmetic;
        /* Pillow 13 does so; older versions always resized across first */
        r->down_first = arithmetic == QVM_PIL && dst_h < src_h && dst_w > src_w;
    }
    if (!r || !axis_open(&r->across, src_w, dst_w, arithmetic) ||
        !axis_open(&r->down, src_h, dst_h, arithmetic) || !open_buffers(r)) {
        qvm_resampler_free(&r);
        return qv_fail(err, QV_ENOMEM, "no memory to resize %dx%d to %dx%d", src_w, src_h, dst_w,
                       dst_h);
    }
    *out = r;
    return QV_OK;
}

void
qvm_resampler_free(qvm_resampler **resampler)
{
    qvm_resampler *r = *resampler;
    if (!r)
        return;
    axis_close(&r->across);
    axis_close(&r->down);
    free(r->ring);
    free(r->rows);
    free(r->bytes);
    free(r->pixels);
    free(r->values);
    free(r);
    *resampler = NULL;
}

static void
resize_across(const qvm_resampler *r, const uint8_t *src, value *dst)
{
    const bool pil = r->arithmetic == QVM_PIL;
    for (size_t i = 0; i < (size_t)r->across.in; i++)
        for (size_t c = 0; c < 3; c++) {
            value *to = &r->pixels[PIXEL * i + c];
            if (pil)
                to->whole = src[3 * i + c];
            else
                to->real = (float)src[3 * i + c];
        }
    (pil ? across_pil : across_torch)(&r->across, r->pixels, dst);
}

/* Takes the next source row into the ring. */
static void
take_row(const qvm_resampler *r, const uint8_t *src, value *row)
{
    if (!r->down_first)
        resize_across(r, src, row);
    else
        for (size_t i = 0; i < 3 * (size_t)r->across.in; i++)
            row[i].whole = src[i];
}

/* Stores a row of the pass down in its place. */
static void
put_row(const qvm_resampler *r, uint8_t *dst)
{
    const size_t n = 3 * (size_t)r->across.out;
    if (!r->down_first) {
        memcpy(dst, r->bytes, n);
        return;
    }
    resize_across(r, r->bytes, r->values);
    for (size_t i = 0; i < n; i++)
        dst[i] = (uint8_t)r->values[i].whole;
}

void
qvm_resampler_run(qvm_resampler *r, const uint8_t *src, int64_t src_stride, uint8_t *dst)
{
    const axis *down = &r->down;
    int filled = 0; /* the first source row that is not in the ring; windows only move forward */
    for (int y = 0; y < down->out; y++) {
        const value *w = down->weights + (size_t)y * (size_t)down->most;
        const int taps = down->taps[y], start = down->start[y];
        for (; filled < start + taps; filled++)
            take_row(r, src + filled * src_stride,
                     r->ring + (size_t)(filled % down->most) * r->row_values);
        for (int k = 0; k < taps; k++)
            r->rows[k] = r->ring + (size_t)((start + k) % down->most) * r->row_values;
        (r->arithmetic == QVM_PIL ? down_pil : down_torch)(r->rows, w, taps, r->bytes,
                                                           r->row_values);
        put_row(r, dst + (size_t)y * 3 * (size_t)r->across.out);
    }
}
