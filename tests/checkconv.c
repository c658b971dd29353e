/* SPDX-License-Identifier: MIT */
/*
 * checkconv: runs random convolutions through the public calls and compares every legal lowering
 * with the definition. The values are small integers, so that every sum is exact and every result
 * must equal the definition's result, rounded once. The chunks, the streams and the earlier content
 * of the device's memory are drawn at random as well. The program prints one seed, and one line of
 * output is enough to repeat a case.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conv3d/legal.h"
#include "conv3d/description.h"
#include "conv3d/lower.h"
#include "dtype.h"
#include "error.h"
#include "model/plan.h"

enum { TEXT = 1200 };

static uint64_t rng;

static int64_t
below(int64_t n)
{
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((rng >> 33) % (uint64_t)n);
}

static int64_t
between(int64_t least, int64_t most)
{
    return least + below(most - least + 1);
}

static bool
one_in(int64_t n)
{
    return !below(n);
}

static void *
must_alloc(size_t bytes)
{
    void *p = calloc(1, bytes + 1);
    if (!p) {
        fprintf(stderr, "checkconv: no memory\n");
        exit(4);
    }
    return p;
}

/* ---- drawing --------------------------------------------------------------------------------- */

/* Draws a kernel that equals its stride, and sizes that it divides, for patchify, still and
 * pointwise. */
static void
draw_patches(qv_conv3d_desc *d)
{
    int64_t *size[3] = { &d->d, &d->h, &d->w };
    for (int a = 0; a < 3; a++) {
        d->kernel[a] = d->stride[a] = between(1, a ? 4 : 3);
        *size[a] = d->kernel[a] * between(1, 4);
    }
    d->layout = (qv_conv3d_layout)below(QV_LAYOUT_COUNT);
    if (d->layout == QV_LAYOUT_FRAMES_U8) {
        d->c = between(1, 3);
        d->merge = between(1, 2);
        d->kernel[2] = d->stride[2] = d->kernel[1];
        d->h = d->kernel[1] * d->merge * between(1, 3);
        d->w = d->kernel[1] * d->merge * between(1, 3);
        for (int i = 0; i < 3; i++) {
            d->pixel_scale[i] = (double)between(1, 2);
            d->pixel_shift[i] = (double)-between(0, 3);
        }
    }
    d->frames_equal = one_in(3);
}

static void
draw_any(qv_conv3d_desc *d)
{
    int64_t *size[3] = { &d->d, &d->h, &d->w };
    for (int a = 0; a < 3; a++) {
        d->kernel[a] = one_in(3) ? 1 : between(1, 4);
        d->stride[a] = between(1, 3);
        d->dilation[a] = between(1, 2);
        d->pad_front[a] = below(d->kernel[a] + 1);
        d->pad_back[a] = below(d->kernel[a] + 1);
        int64_t extent = (d->kernel[a] - 1) * d->dilation[a] + 1;
        int64_t least = extent - d->pad_front[a] - d->pad_back[a];
        *size[a] = between(least > 1 ? least : 1, least > 1 ? least + 6 : 7);
    }
    if (one_in(4)) { /* A pointwise kernel, strided or not. */
        for (int a = 0; a < 3; a++)
            d->kernel[a] = 1, d->pad_front[a] = d->pad_back[a] = 0;
    }
    d->layout = one_in(2) ? QV_LAYOUT_CHANNELS_FIRST : QV_LAYOUT_CHANNELS_LAST;
    d->causal = (qv_causal)below(QV_CAUSAL_COUNT);
    if (d->causal != QV_CAUSAL_NONE &&
        d->d + d->pad_front[0] >= (d->kernel[0] - 1) * d->dilation[0] + 1)
        d->pad_back[0] = 0;
    if (d->pad_back[0])
        d->causal = QV_CAUSAL_NONE;
    if (one_in(3)) { /* Groups, depthwise convolutions among them. */
        int64_t groups = between(2, 6);
        d->c = one_in(2) ? groups : groups * between(1, 3);
        d->o = groups * between(1, 3);
        d->groups = groups;
    }
}

static int64_t
extent_of(const qv_conv3d_desc *d)
{
    return (d->kernel[0] - 1) * d->dilation[0] + 1;
}

/* Returns whether d can be run as a stream of pieces with the given number of outputs. */
static bool
is_stream(const qv_conv3d_desc *d, int64_t chunk)
{
    const int64_t extent = extent_of(d);
    return d->causal != QV_CAUSAL_NONE && chunk && !d->residual_rows &&
           d->d % (chunk * d->stride[0]) == 0 && d->pad_front[0] >= extent - d->stride[0] &&
           d->pad_front[0] < extent;
}

/* Makes a convolution a stream of several pieces, which may be shorter than what is kept of earlier
 * ones. */
static void
draw_stream(qv_conv3d_desc *d)
{
    d->causal = one_in(2) ? QV_CAUSAL_ZEROS : QV_CAUSAL_FIRST;
    d->kernel[0] = between(2, 4);
    const int64_t extent = extent_of(d);
    d->pad_front[0] = between(extent > d->stride[0] ? extent - d->stride[0] : 0, extent - 1);
    d->pad_back[0] = 0;
    d->d = d->stride[0] * between(1, 2) * between(2, 4);
}

static qv_conv3d_desc
draw(void)
{
    static const double alphas[] = { 1, 1, 0.5, -2 };
    qv_conv3d_desc d = { .n = between(1, 3), .c = between(1, 11), .o = between(1, 13) };
    const bool patches = one_in(3), stream = !patches && one_in(4);
    if (patches)
        draw_patches(&d);
    else
        draw_any(&d);
    if (stream)
        draw_stream(&d);
    d.dtype = one_in(2) ? QV_F32 : QV_BF16;
    d.bias = one_in(2);
    d.alpha = alphas[below(4)];
    d = qv_conv3d_defaults(&d, QV_F32);
    int64_t rows = qv_conv3d_rows(&d);
    if (one_in(2) && !stream)
        do
            d.residual_rows = between(1, rows);
        while (rows % d.residual_rows);
    return d;
}

/* ---- data ------------------------------------------------------------------------------------ */

struct data {
    void *x, *weight, *residual;
    float *bias;
    double *want; /* [rows, o] */
    size_t x_bytes;
    bool channels_last; /* The weight is laid out as MLX stores it. */
};

static int64_t
x_count(const qv_conv3d_desc *d)
{
    return d->n * d->d * d->h * d->w * d->c;
}

/* If the frames are promised to be equal, makes the frames under one kernel equal. */
static int64_t
first_frame_of(const qv_conv3d_desc *d, int64_t i)
{
    int64_t area = d->h * d->w, frame;
    if (!d->frames_equal)
        return i;
    switch (d->layout) {
    case QV_LAYOUT_CHANNELS_FIRST: frame = i / area % d->d; return i - frame % d->kernel[0] * area;
    case QV_LAYOUT_PATCH_ROWS: {
        int64_t in = d->kernel[1] * d->kernel[2];
        return i - i / in % d->kernel[0] * in;
    }
    default: frame = i / (area * d->c) % d->d; return i - frame % d->kernel[0] * area * d->c;
    }
}

static void
fill(const qv_conv3d_desc *d, struct data *t)
{
    int64_t volume = d->c / d->groups * d->kernel[0] * d->kernel[1] * d->kernel[2];
    size_t es = qv_dtype_bytes(d->dtype);
    bool bytes = d->layout == QV_LAYOUT_FRAMES_U8;
    t->x_bytes = (size_t)x_count(d) * (bytes ? 1 : es);
    t->x = must_alloc(t->x_bytes);
    t->weight = must_alloc((size_t)(d->o * volume) * es);
    t->residual = must_alloc((size_t)(d->residual_rows * d->o) * es);
    t->bias = must_alloc((size_t)d->o * sizeof(float));
    for (int64_t i = 0; i < x_count(d); i++) {
        int64_t from = first_frame_of(d, i), v = between(-2, 2);
        if (bytes)
            ((uint8_t *)t->x)[i] = from < i ? ((uint8_t *)t->x)[from] : (uint8_t)(v + 2);
        else
            qv_store(t->x, d->dtype, i, from < i ? qv_load(t->x, d->dtype, from) : (double)v);
    }
    for (int64_t i = 0; i < d->o * volume; i++)
        qv_store(t->weight, d->dtype, i, (double)between(-2, 2));
    for (int64_t i = 0; i < d->residual_rows * d->o; i++)
        qv_store(t->residual, d->dtype, i, (double)between(-9, 9));
    for (int64_t i = 0; i < d->o; i++)
        t->bias[i] = (float)between(-9, 9);
}

static void
drop(struct data *t)
{
    free(t->x);
    free(t->weight);
    free(t->residual);
    free(t->bias);
    free(t->want);
}

/* The weight in another form that the library accepts. */
static void *
other_form(const qv_conv3d_desc *d, const struct data *t, qv_conv3d_weights *w)
{
    int64_t c = d->c / d->groups, taps = d->kernel[0] * d->kernel[1] * d->kernel[2];
    float *other = must_alloc((size_t)(d->o * c * taps) * sizeof *other);
    for (int64_t o = 0; o < d->o; o++)
        for (int64_t j = 0; j < c; j++)
            for (int64_t i = 0; i < taps; i++)
                other[(o * taps + i) * c + j] =
                    (float)qv_load(t->weight, d->dtype, (o * c + j) * taps + i);
    w->weight = other;
    w->dtype = QV_F32;
    w->channels_last = true;
    return other;
}

/* ---- checking -------------------------------------------------------------------------------- */

struct check_case {
    uint64_t seed; /* The seed of the data. */
    qv_conv3d_desc desc;
    qv_lowering lowering;
    int64_t chunk;
};

static bool
wrong(const struct check_case *one, const char *what)
{
    char line[TEXT];
    printf("FAIL %s\n  again: checkconv --data-seed %llu --lowering \"%s\" --chunk %lld --case "
           "\"%s\"\n",
           what, (unsigned long long)one->seed, qv_lowering_name(one->lowering),
           (long long)one->chunk, qv_conv3d_print(&one->desc, line, sizeof line));
    return false;
}

static bool
equal(const struct check_case *one, const struct data *t, const void *y, const char *what)
{
    const qv_conv3d_desc *d = &one->desc;
    int64_t values = qv_conv3d_rows(d) * d->o;
    for (int64_t i = 0; i < values; i++) {
        char rounded[4], text[200];
        qv_store(rounded, d->dtype, 0, t->want[i]);
        double got = qv_load(y, d->dtype, i), want = qv_load(rounded, d->dtype, 0);
        if (got == want)
            continue;
        snprintf(text, sizeof text, "%s: row %lld column %lld is %g, by definition %g", what,
                 (long long)(i / d->o), (long long)(i % d->o), got, want);
        return wrong(one, text);
    }
    return true;
}

/* Runs the convolution as one call, and does so twice to see that the bits are equal. */
static bool
run_whole(qv_context *ctx, const struct check_case *one, const struct data *t, bool *ran)
{
    const qv_conv3d_desc *d = &one->desc;
    qv_conv3d_options o = { .lowering = qv_lowering_name(one->lowering), .chunk = one->chunk };
    qv_conv3d_weights w = { t->weight, d->dtype, false, t->bias, t->residual };
    void *other = t->channels_last ? other_form(d, t, &w) : NULL;
    qv_conv3d *conv = NULL;
    qv_error err = { 0 };
    qv_status status = qv_conv3d_create(ctx, d, &w, &o, &conv, &err);
    free(other);
    if (status == QV_EUNSUPPORTED)
        return true;
    if (status)
        return wrong(one, err.text);
    qv_conv3d_info info;
    qv_conv3d_get_info(conv, &info);
    unsigned char *y = must_alloc(2 * info.y_bytes + 16);
    memset(y, 0x99, 2 * info.y_bytes + 16);
    bool good = info.x_bytes == t->x_bytes || wrong(one, "x_bytes is not the size of x");
    for (int i = 0; i < 2 && good; i++)
        if (qv_conv3d_run(conv, t->x, y + (size_t)i * info.y_bytes, &err))
            good = wrong(one, err.text);
    good = good && equal(one, t, y, "result");
    if (good && memcmp(y, y + info.y_bytes, info.y_bytes))
        good = wrong(one, "a second run differs");
    for (int i = 0; i < 16 && good; i++)
        if (y[2 * info.y_bytes + (size_t)i] != 0x99)
            good = wrong(one, "wrote past the end of y");
    *ran = good;
    free(y);
    qv_conv3d_free(&conv);
    return good;
}

/* Copies frames [from, from + n) of every plane. A plane has d->d frames in the source and n frames
 * in the copy. */
static void
take_frames(const qv_conv3d_desc *d, const char *x, int64_t from, int64_t n, char *out)
{
    bool first = d->layout == QV_LAYOUT_CHANNELS_FIRST;
    int64_t planes = first ? d->n * d->c : d->n;
    size_t frame = (size_t)(d->h * d->w * (first ? 1 : d->c)) * qv_dtype_bytes(d->dtype);
    for (int64_t p = 0; p < planes; p++)
        memcpy(out + (size_t)(p * n) * frame, x + (size_t)(p * d->d + from) * frame,
               (size_t)n * frame);
}

/* Runs the same convolution as a stream of pieces of `chunk` outputs, twice with a reset in
 * between. The bits must be those of one call with that chunk. */
static bool
run_stream(qv_context *ctx, const struct check_case *one, const struct data *t, bool *ran)
{
    const qv_conv3d_desc *d = &one->desc;
    qv_conv3d_desc piece = *d;
    int64_t out[3], n = one->chunk * d->stride[0];
    qv_conv3d_output(d, out);
    if (!is_stream(d, one->chunk))
        return true;
    piece.d = n;
    qv_conv3d_options o = { .lowering = qv_lowering_name(one->lowering),
                            .chunk = one->chunk,
                            .stream = true };
    qv_conv3d_weights w = { t->weight, d->dtype, false, t->bias, NULL };
    qv_conv3d *conv = NULL;
    qv_conv3d_info info;
    qv_error err = { 0 };
    qv_status status = qv_conv3d_create(ctx, &piece, &w, &o, &conv, &err);
    if (status == QV_EUNSUPPORTED || (status == QV_EINVAL && strstr(err.text, "not legal")))
        return true; /* A lowering that is legal for the whole input may not be legal for a
                      * piece. */
    if (status)
        return wrong(one, err.text);
    qv_conv3d_get_info(conv, &info);
    size_t row = (size_t)(out[1] * out[2] * d->o) * qv_dtype_bytes(d->dtype);
    char *x = must_alloc(info.x_bytes), *y = must_alloc(info.y_bytes);
    char *all = must_alloc((size_t)(d->n * out[0]) * row);
    bool good = info.out[0] == one->chunk || wrong(one, "a piece of a stream has other outputs");
    for (int64_t i = 0; i < 2 * (d->d / n) && good; i++) {
        int64_t at = i % (d->d / n);
        if (!at)
            qv_conv3d_reset(conv);
        take_frames(d, t->x, at * n, n, x);
        if (qv_conv3d_run(conv, x, y, &err))
            good = wrong(one, err.text);
        for (int64_t s = 0; s < d->n; s++)
            memcpy(all + (size_t)(s * out[0] + at * one->chunk) * row,
                   y + (size_t)(s * one->chunk) * row, (size_t)one->chunk * row);
        if (good && at == d->d / n - 1)
            good = equal(one, t, all, "stream");
    }
    *ran = good;
    free(x);
    free(y);
    free(all);
    qv_conv3d_free(&conv);
    return good;
}

struct counts {
    int64_t ways[QV_LOWERING_COUNT], streams, failed;
    int64_t kept; /* streams in which frames of one piece are read in another */
};

static void
check(qv_context *ctx, struct check_case one, int only, struct counts *counts)
{
    char text[QV_REASON_BYTES];
    struct data t = { 0 };
    qv_error err = { 0 };
    rng = one.seed;
    t.channels_last = one_in(4);
    fill(&one.desc, &t);
    int64_t rows = qv_conv3d_rows(&one.desc);
    t.want = must_alloc((size_t)(rows * one.desc.o) * sizeof *t.want);
    const struct qv_conv3d_tensors in = { t.x, t.weight, t.bias, t.residual };
    if (qv_conv3d_define(&one.desc, &in, 0, rows, t.want, &err))
        exit(4);
    for (int i = 0; i < QV_LOWERING_COUNT; i++) {
        bool ran = false, streamed = false;
        one.lowering = (qv_lowering)i;
        if ((only >= 0 && i != only) ||
            !qv_conv3d_legal(&one.desc, &ctx->caps, one.lowering, text, sizeof text))
            continue;
        counts->failed += !run_whole(ctx, &one, &t, &ran) || !run_stream(ctx, &one, &t, &streamed);
        counts->ways[i] += ran;
        counts->streams += streamed;
        counts->kept +=
            streamed && one.desc.pad_front[0] && one.chunk * one.desc.stride[0] < one.desc.d;
    }
    drop(&t);
}

/* A random case. It is legal by construction, except for what draw() cannot see. */
static struct check_case
draw_case(uint64_t seed)
{
    struct check_case one = { .seed = seed };
    qv_error err;
    rng = seed;
    do
        one.desc = draw();
    while (qv_conv3d_check(&one.desc, &err));
    int64_t out[3];
    qv_conv3d_output(&one.desc, out);
    one.chunk = one_in(2) ? between(1, out[0]) : 0;
    if (is_stream(&one.desc, 1) && out[0] > 1)
        do
            one.chunk = between(1, out[0] / 2);
        while (!is_stream(&one.desc, one.chunk));
    return one;
}

/* ---- command --------------------------------------------------------------------------------- */

struct arguments {
    const char *backend, *text, *lowering;
    int64_t first, count, threads, chunk;
    uint64_t seed, data_seed;
};

static bool
parse(int argc, char **argv, struct arguments *a)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *value = argv[i + 1];
        if (!strcmp(argv[i], "--backend"))
            a->backend = value;
        else if (!strcmp(argv[i], "--case"))
            a->text = value;
        else if (!strcmp(argv[i], "--lowering"))
            a->lowering = value;
        else if (!strcmp(argv[i], "--count"))
            a->count = atoll(value);
        else if (!strcmp(argv[i], "--first"))
            a->first = atoll(value);
        else if (!strcmp(argv[i], "--threads"))
            a->threads = atoll(value);
        else if (!strcmp(argv[i], "--chunk"))
            a->chunk = atoll(value);
        else if (!strcmp(argv[i], "--seed"))
            a->seed = strtoull(value, NULL, 10);
        else if (!strcmp(argv[i], "--data-seed"))
            a->data_seed = strtoull(value, NULL, 10);
        else
            return false;
    }
    return argc % 2 == 1;
}

static int
report(const struct arguments *a, const struct counts *c)
{
    printf("%s, seed %llu:", a->backend, (unsigned long long)a->seed);
    for (int i = 0; i < QV_LOWERING_COUNT; i++) {
        printf(" %s %lld,", qv_lowering_name((qv_lowering)i), (long long)c->ways[i]);
        if (!a->text && a->count >= 200 && !c->ways[i]) {
            printf("\nno case ran %s: it was not tested\n", qv_lowering_name((qv_lowering)i));
            return 1;
        }
    }
    printf(" streams %lld, %lld of them with kept frames; %lld failed\n", (long long)c->streams,
           (long long)c->kept, (long long)c->failed);
    if (!c->failed && !a->text && a->count >= 200 && c->kept < a->count / 10) {
        printf("too few cases keep frames to test that\n");
        return 1;
    }
    return c->failed ? 1 : 0;
}

int
main(int argc, char **argv)
{
    struct arguments a = { .backend = "cpu", .count = 500, .seed = 1, .data_seed = 1 };
    struct counts counts = { 0 };
    qv_context *ctx = NULL;
    qv_error err = { 0 };
    if (!parse(argc, argv, &a)) {
        fprintf(stderr, "usage: checkconv [--backend NAME] [--threads N] [--seed N] [--first N] "
                        "[--count N]\n"
                        "       checkconv --case TEXT [--lowering NAME] [--chunk N] "
                        "[--data-seed N]\n");
        return 2;
    }
    qv_context_options o = { .backend = a.backend, .threads = (int)a.threads };
    if (qv_context_open(&o, &ctx, &err)) {
        fprintf(stderr, "checkconv: %s\n", err.text);
        return 4;
    }
    if (a.text) {
        struct check_case one = { .seed = a.data_seed, .chunk = a.chunk };
        if (qv_conv3d_parse(a.text, &one.desc, &err) || qv_conv3d_check(&one.desc, &err)) {
            fprintf(stderr, "checkconv: %s\n", err.text);
            return 2;
        }
        check(ctx, one, qv_lowering_find(a.lowering), &counts);
    }
    for (int64_t i = a.first; i < a.first + a.count && !a.text; i++) {
        struct check_case one = draw_case(a.seed * 1000003 + (uint64_t)i);
        check(ctx, one, -1, &counts);
    }
    qv_context_close(&ctx);
    return report(&a, &counts);
}
