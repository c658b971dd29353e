/* SPDX-License-Identifier: MIT */
/* Tests qv_conv3d from its users' view: choices and their reasons, costs, streams and mistakes.
 * checkconv tests that the results are right. */

#include "test.h"

#include "conv3d/legal.h"
#include "conv3d/lower.h"
#include "model/plan.h"
#include "tempdir.h"
#include "tiny.h"

static float weight[8 * 8 * 27], bias[8], x[2 * 8 * 6 * 8 * 8], y[2 * 8 * 6 * 8 * 8];
static const qv_conv3d_weights weights = { .weight = weight, .bias = bias };

/* A causal 3x3x3 convolution of 4 frames at a time. */
static qv_conv3d_desc
causal(void)
{
    return (qv_conv3d_desc){ .d = 4,
                             .h = 8,
                             .w = 8,
                             .c = 8,
                             .o = 8,
                             .kernel = { 3, 3, 3 },
                             .pad_front = { 2, 1, 1 },
                             .pad_back = { 0, 1, 1 },
                             .causal = QV_CAUSAL_FIRST,
                             .layout = QV_LAYOUT_CHANNELS_LAST,
                             .dtype = QV_F32,
                             .bias = true };
}

static qv_context *
open_context(void)
{
    return tiny_context_with(&(qv_context_options){ .threads = 1 });
}

static void
refused(qv_context *ctx, const qv_conv3d_desc *d, const qv_conv3d_options *o, const char *words)
{
    qv_conv3d *conv = NULL;
    expect_error(QV_EINVAL, words, qv_conv3d_create(ctx, d, &weights, o, &conv, ERR));
    assert_null(conv);
}

static void
free_conv(void *conv)
{
    qv_conv3d_free(&(qv_conv3d *){ conv });
}

/* Without weights it only describes what it would do. */
static qv_conv3d *
create(qv_context *ctx, const qv_conv3d_desc *d, const qv_conv3d_weights *w)
{
    qv_conv3d *conv = NULL;
    assert_ok(qv_conv3d_create(ctx, d, w, NULL, &conv, ERR));
    return test_ends(conv, free_conv);
}

/* ---- asking ---------------------------------------------------------------------------------- */

TEST(info_has_defaults_sizes_and_a_reason)
{
    qv_context *ctx = open_context();
    qv_conv3d_desc d = causal();
    qv_conv3d *conv = create(ctx, &d, &weights);
    qv_conv3d_info info;
    qv_conv3d_get_info(conv, &info);
    assert_int_equal(info.desc.n, 1);
    assert_int_equal(info.desc.stride[2], 1);
    assert_int_equal(info.desc.groups, 1);
    assert_true(info.desc.alpha == 1);
    assert_int_equal(info.out[0], 4);
    assert_int_equal(info.rows, 4 * 8 * 8);
    assert_int_equal(info.chunk, 4);
    assert_int_equal(info.x_bytes, 4 * 8 * 8 * 8 * 4);
    assert_int_equal(info.y_bytes, info.x_bytes);
    assert_true(info.arena_bytes >= info.weight_bytes + info.x_bytes + info.y_bytes);
    assert_true(info.weight_bytes >= 8 * 8 * 27 * 4);
    assert_true(*info.reason);
}

TEST(ways_say_what_is_legal_and_what_it_costs)
{
    qv_context *ctx = open_context();
    qv_conv3d_desc d = causal();
    qv_conv3d_way ways[QV_LOWERING_COUNT];
    qv_conv3d *conv = create(ctx, &d, NULL);
    expect_error(QV_ESTATE, "without weights", qv_conv3d_run(conv, x, y, ERR));
    assert_ok(qv_conv3d_get_ways(conv, ways, ERR));
    int chosen = 0;
    for (int i = 0; i < QV_LOWERING_COUNT; i++) {
        assert_int_equal(ways[i].lowering, i);
        assert_true(*ways[i].reason);
        assert_true(ways[i].legal == (i == QV_LOWERING_BY_DEPTH || i == QV_LOWERING_DIRECT));
        assert_true(ways[i].legal || ways[i].flops == 0);
        chosen += ways[i].chosen;
    }
    assert_int_equal(chosen, 1);
    double flops = 2.0 * 4 * 64 * 8 * 8 * 27;
    size_t sums = 4 * 64 * 8 * 4;
    assert_true(ways[QV_LOWERING_DIRECT].flops == flops);
    assert_true(ways[QV_LOWERING_BY_DEPTH].flops > flops); /* The epilogue counts as well. */
    assert_true(ways[QV_LOWERING_BY_DEPTH].bytes > ways[QV_LOWERING_DIRECT].bytes);
    assert_true(ways[QV_LOWERING_BY_DEPTH].scratch_bytes >= sums);
    expect_words(ways[QV_LOWERING_PATCHIFY].reason, "causal padding (first frame) of 2");
}

TEST(mistakes_are_named)
{
    qv_context *ctx = open_context();
    qv_conv3d_desc d = causal();
    qv_conv3d_options o = { .lowering = "winograd" };
    refused(ctx, &d, &o, "unknown lowering \"winograd\"");
    o.lowering = "patchify";
    refused(ctx, &d, &o, "\"patchify\" is not legal here: causal padding (first frame) of 2");
    o = (qv_conv3d_options){ .chunk = -1 };
    refused(ctx, &d, &o, "chunk is -1");
    o = (qv_conv3d_options){ .chunk = (1 << 20) + 1 };
    refused(ctx, &d, &o, "chunk is 1048577");
    d.kernel[1] = 0;
    refused(ctx, &d, NULL, "kernel on axis height is 0");
    d = causal();
    d.residual_rows = 64;
    refused(ctx, &d, NULL, "weights.residual is NULL");
    d = causal();
    qv_conv3d *conv = NULL;
    qv_conv3d_weights u8 = { .weight = weight, .bias = bias, .dtype = QV_U8 };
    expect_error(QV_EINVAL, "dtype is u8", qv_conv3d_create(ctx, &d, &u8, NULL, &conv, ERR));
    u8 = (qv_conv3d_weights){ .weight = weight };
    expect_error(QV_EINVAL, "weights.bias is NULL",
                 qv_conv3d_create(ctx, &d, &u8, NULL, &conv, ERR));
}

/* Sizes whose products fit one by one, but not with the padding or not together. */
TEST(sizes_beyond_memory_are_refused)
{
    qv_context *ctx = open_context();
    qv_conv3d *conv = NULL;
    qv_conv3d_desc d = { .d = 1,
                         .h = 4096,
                         .w = 4096,
                         .c = 1,
                         .o = 1,
                         .kernel = { 1, 1, 1 },
                         .stride = { 1, 4096, 4096 },
                         .dtype = QV_F32,
                         .layout = QV_LAYOUT_CHANNELS_LAST };
    d.pad_front[0] = (int64_t)1 << 40; /* That many output values are possible, but the input would
                                        * have 2^64. */
    refused(ctx, &d, NULL, "the size of the padding in front exceeds 63 bits");
    d.pad_front[0] = 0;
    d.stride[0] = INT64_MAX; /* One frame gives one output. */
    qv_conv3d_info info;
    qv_conv3d_get_info(create(ctx, &d, NULL), &info);
    assert_int_equal(info.rows, 1);
    d = (qv_conv3d_desc){ .d = 1,
                          .h = 1 << 30,
                          .w = 1 << 30,
                          .c = 1,
                          .o = 1,
                          .kernel = { 1, 1, 1 },
                          .dtype = QV_F32,
                          .layout = QV_LAYOUT_CHANNELS_LAST };
    qv_status status = qv_conv3d_create(ctx, &d, &weights, NULL, &conv, NULL);
    assert_true(status == QV_ENOMEM || status == QV_EBACKEND || status == QV_EUNSUPPORTED);
    assert_null(conv);
}

/* ---- streams --------------------------------------------------------------------------------- */

TEST(streams_that_cannot_be_are_refused)
{
    qv_context *ctx = open_context();
    qv_conv3d_options o = { .stream = true };
    qv_conv3d_desc d = causal();
    d.causal = QV_CAUSAL_NONE;
    refused(ctx, &d, &o, "a stream needs causal padding");
    d = causal();
    d.pad_front[0] = 1;
    refused(ctx, &d, &o, "needs 2 to 2");
    d.pad_front[0] = 3;
    refused(ctx, &d, &o, "pad_front on axis depth is 3");
    d = causal();
    d.stride[0] = 3;
    refused(ctx, &d, &o, "d is 4; in a stream it must be a multiple of the stride, 3");
    d = causal();
    d.d = d.stride[0] = (int64_t)1 << 50;
    d.h = d.w = 1;
    d.c = d.o = 1;
    d.kernel[1] = d.kernel[2] = 1;
    d.pad_front[1] = d.pad_front[2] = d.pad_back[1] = d.pad_back[2] = 0;
    o.chunk = 1 << 20;
    refused(ctx, &d, &o, "exceeds 63 bits");
}

/* ---- downloads ------------------------------------------------------------------------------- */

static const struct qv_backend *base;
static struct qv_backend counting;
static int lists;

static qv_status
count_list(struct qv_device *dev, const struct qv_download *parts, size_t n, qv_error *err)
{
    lists++;
    assert_int_equal(n, 2);
    return base->download(dev, parts, n, err);
}

/* A device may wait for each list, so a chunk's samples come in one. */
TEST(the_samples_of_a_chunk_are_one_download)
{
    qv_context *ctx = open_context();
    qv_conv3d_desc d = causal();
    qv_conv3d *conv = NULL;
    d.n = 2;
    base = ctx->backend;
    counting = *base;
    counting.download = count_list;
    assert_ok(qv_conv3d_create(ctx, &d, &weights, &(qv_conv3d_options){ .chunk = 2 }, &conv, ERR));
    test_ends(conv, free_conv);
    ctx->backend = &counting;
    assert_ok(qv_conv3d_run(conv, x, y, ERR));
    assert_int_equal(lists, 2);
}
