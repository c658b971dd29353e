/* SPDX-License-Identifier: MIT */
/* Fuzzes the description and the options of a Conv3d. The library is only asked about it, and runs
 * it where that is cheap. */
#include "dtype.h"
#include "fuzz.h"
#include "qwenvit_conv3d.h"

static void
read_three(struct fuzz_bytes *b, int64_t out[3])
{
    const uint8_t which = fuzz_byte(b); /* Most are left at their default. */
    for (int a = 0; a < 3; a++)
        out[a] = which >> a & 1 ? fuzz_int(b) : 0;
}

static qv_conv3d_desc
read_desc(struct fuzz_bytes *b)
{
    qv_conv3d_desc d = { 0 };
    int64_t *const sizes[] = { &d.n, &d.d, &d.h, &d.w, &d.c, &d.o };
    for (int i = 0; i < 6; i++)
        *sizes[i] = fuzz_int(b);
    for (int a = 0; a < 3; a++)
        d.kernel[a] = fuzz_int(b);
    read_three(b, d.stride);
    read_three(b, d.dilation);
    read_three(b, d.pad_front);
    read_three(b, d.pad_back);
    d.layout = (qv_conv3d_layout)fuzz_enum(b, QV_LAYOUT_COUNT);
    d.causal = (qv_causal)fuzz_enum(b, QV_CAUSAL_COUNT);
    d.act = (qv_act)fuzz_enum(b, QV_ACT_COUNT);
    d.dtype = (qv_dtype)fuzz_enum(b, QV_F16 + 1);
    d.bias = fuzz_flag(b);
    d.frames_equal = fuzz_flag(b);
    const uint8_t rare = fuzz_byte(b);
    d.groups = rare & 1 ? fuzz_int(b) : 0;
    d.merge = rare & 2 ? fuzz_int(b) : 0;
    d.residual_rows = rare & 4 ? fuzz_int(b) : 0;
    d.alpha = rare & 8 ? fuzz_real(b) : 0;
    for (int i = 0; i < 3 && rare & 16; i++) {
        d.pixel_scale[i] = fuzz_real(b);
        d.pixel_shift[i] = fuzz_real(b);
    }
    return d;
}

static qv_conv3d_options
read_options(struct fuzz_bytes *b)
{
    static const char *const others[] = { "", "by  depth", "PATCHIFY", "no lowering" };
    qv_conv3d_options o = { 0 };
    const uint8_t name = fuzz_byte(b);
    if (name >= 128)
        o.lowering = name < 240 ? qv_lowering_name((qv_lowering)(name % QV_LOWERING_COUNT))
                                : others[name % 4];
    o.chunk = fuzz_int(b);
    o.stream = fuzz_flag(b);
    return o;
}

/* Runs it twice with operands of exactly the size that the description gives. */
static void
run(qv_context *ctx, const qv_conv3d_info *info, const qv_conv3d_options *options,
    struct fuzz_bytes *b)
{
    static const qv_dtype dtypes[] = { QV_DTYPE_AUTO, QV_F32, QV_F16, QV_BF16 };
    const qv_conv3d_desc *d = &info->desc;
    const size_t n_weight =
        (size_t)(d->o * (d->c / d->groups) * d->kernel[0] * d->kernel[1] * d->kernel[2]);
    qv_error err;
    qv_conv3d *conv = NULL;
    qv_conv3d_weights w = { .dtype = dtypes[fuzz_byte(b) % 4], .channels_last = fuzz_flag(b) };
    const qv_dtype stored = w.dtype ? w.dtype : QV_F32;
    void *weight = fuzz_fill(n_weight * qv_dtype_bytes(stored)), *x = fuzz_fill(info->x_bytes);
    void *bias = fuzz_fill((size_t)d->o * sizeof(float)), *y = fuzz_fill(info->y_bytes);
    void *residual = fuzz_fill((size_t)(d->residual_rows * d->o) * qv_dtype_bytes(d->dtype));
    w.weight = weight;
    w.bias = fuzz_byte(b) < 250 ? bias : NULL;
    w.residual = fuzz_byte(b) < 250 ? residual : NULL;
    if (!fuzz_failed(qv_conv3d_create(ctx, d, &w, options, &conv, &err), &err)) {
        FUZZ_CHECK(!qv_conv3d_run(conv, x, y, &err));
        FUZZ_CHECK(!qv_conv3d_run(conv, x, y, &err));
        qv_conv3d_reset(conv);
        FUZZ_CHECK(!qv_conv3d_run(conv, x, y, &err));
        qv_conv3d_free(&conv);
    }
    free(weight);
    free(x);
    free(bias);
    free(y);
    free(residual);
}

/* Tells whether running is cheap. This depends on the sums, the bytes that are copied and the
 * number of chunks. */
static bool
is_small(const qv_conv3d_info *info, const qv_conv3d_way ways[QV_LOWERING_COUNT])
{
    enum { MOST_BYTES = 1 << 15, MOST_FLOPS = 200000, MOST_CHUNKS = 64 };
    const qv_conv3d_desc *d = &info->desc;
    if (info->x_bytes > MOST_BYTES || info->y_bytes > MOST_BYTES ||
        info->arena_bytes > 4 * MOST_BYTES || info->weight_bytes > MOST_BYTES ||
        info->out[0] / info->chunk > MOST_CHUNKS || d->pad_front[0] > MOST_CHUNKS ||
        d->residual_rows * d->o > MOST_BYTES)
        return false;
    return ways[info->lowering].flops < MOST_FLOPS;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static qv_context *ctx;
    struct fuzz_bytes b = { data, size };
    qv_error err;
    qv_conv3d *conv = NULL;
    if (!ctx)
        FUZZ_CHECK(!qv_context_open(&(qv_context_options){ .backend = "ref" }, &ctx, &err));
    const qv_conv3d_desc desc = read_desc(&b);
    const qv_conv3d_options options = read_options(&b);
    if (fuzz_failed(qv_conv3d_create(ctx, &desc, NULL, &options, &conv, &err), &err)) {
        FUZZ_CHECK(!conv);
        return 0;
    }
    qv_conv3d_info info;
    qv_conv3d_way ways[QV_LOWERING_COUNT];
    qv_conv3d_get_info(conv, &info);
    FUZZ_CHECK(info.rows > 0 && info.chunk > 0 && *info.reason);
    FUZZ_CHECK(fuzz_failed(qv_conv3d_run(conv, &info, &info, &err), &err)); /* It has no weights. */
    const bool asked = !fuzz_failed(qv_conv3d_get_ways(conv, ways, &err), &err);
    qv_conv3d_free(&conv);
    if (asked) {
        FUZZ_CHECK(ways[info.lowering].legal && ways[info.lowering].chosen);
        if (is_small(&info, ways))
            run(ctx, &info, &options, &b);
    }
    return 0;
}
