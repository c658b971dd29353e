/* SPDX-License-Identifier: MIT */
/* Tests the public calls: chunks and bits, errors and their texts, lifetimes. */
#include "test.h"

#include <stdalign.h>

#include <math.h>
#include <pthread.h>

#include "backends.h"
#include "distance.h"
#include "engine/block_order.h"
#include "error.h"
#include "model/items.h"
#include "model/model.h"
#include "model/plan.h"
#include "tempdir.h"
#include "tiny.h"

/* TEST_ON_EACH(name) { ... } has a tiny tower t on each backend, in each dtype. */
#define TEST_ON_EACH(name)                                                                         \
    static void name##_on(struct tiny t);                                                          \
    TEST(name)                                                                                     \
    {                                                                                              \
        EACH_RUN (on, type)                                                                        \
            name##_on(tiny_open(*on, *type, 2));                                                   \
    }                                                                                              \
    static void name##_on(struct tiny t)

TEST_ON_EACH(same_bits_every_time)
{
    uint8_t *frames = tiny_frames(&t, 8, 6, 4, 7);
    const qv_item items[] = { { .data = frames, .grid_thw = { 4, 6, 4 } },
                              { .data = frames, .grid_thw = { 1, 4, 6 }, .is_image = true } };
    size_t n, m;
    float *a = tiny_encode(&t, QV_INPUT_FRAMES, items, 2, NULL, &n);
    float *b = tiny_encode(&t, QV_INPUT_FRAMES, items, 2, NULL, &m);
    assert_int_equal(n, m);
    assert_memory_equal(a, b, n);
}

/* Allocates memory for the caller and frees it, in another thread while this one encodes. It is
 * aligned to pages, all of it is the caller's, and it serves for frames and tokens like any
 * other. */
static void *
take_and_give(void *context)
{
    static qv_error err;
    for (int i = 1; i <= 40; i++) {
        void *p = NULL;
        const size_t bytes = (size_t)i * 77777; /* some are larger than a huge page */
        if (qv_host_alloc(context, bytes, &p, &err))
            return err.text;
        memset(p, i, bytes);
        qv_host_free(context, p);
    }
    return NULL;
}

TEST(host_memory_serves_any_call)
{
    EACH_BACKEND (b) {
        struct tiny t = tiny_open(*b, QV_F32, 1);
        uint8_t *frames = tiny_frames(&t, 8, 6, 4, 7);
        const size_t input = (size_t)(8 * 6 * 4 * t.info.patch_size * t.info.patch_size * 3);
        qv_item clip = { .data = frames, .grid_thw = { 4, 6, 4 } };
        void *there = NULL, *said = NULL;
        size_t bytes;
        pthread_t other;
        qv_tokens out = tiny_tokens(&t, &clip, 1, QV_F32, &bytes);
        assert_ok(qv_host_alloc(t.ctx, input, &there, ERR) ||
                  qv_host_alloc(t.ctx, bytes, &out.tokens, ERR));
        const bool locked =
            t.ctx->backend->lock_pages != NULL; /* the driver decides where it is then */
        assert_int_equal((uintptr_t)there % (locked ? alignof(max_align_t) : 4096), 0);
        for (int i = 0; i < t.info.n_deepstack; i++)
            out.deepstack[i] = NULL;
        memcpy(there, frames, input);
        float *expected = tiny_encode(&t, QV_INPUT_FRAMES, &clip, 1, NULL, &bytes);
        clip.data = there;
        assert_int_equal(pthread_create(&other, NULL, take_and_give, t.ctx), 0);
        assert_ok(qv_encode(t.model, QV_INPUT_FRAMES, &clip, 1, NULL, &out, ERR));
        assert_int_equal(pthread_join(other, &said), 0);
        if (said)
            fail_msg("%s", (char *)said);
        assert_memory_equal(out.tokens, expected,
                            (size_t)(out.n * t.info.out_hidden) * sizeof(float));
        qv_host_free(t.ctx, there);
        qv_host_free(t.ctx, out.tokens);
    }
}

/* A backend that locks pages; `locked` counts them. */
static int n_locked, locked_now;
static bool lock_fails;

static qv_status
lock_pages(struct qv_device *dev, size_t bytes, void **out, qv_error *err)
{
    if (lock_fails && locked_now)
        return qv_fail(err, QV_ENOMEM, "no more than one block can be locked");
    n_locked++;
    locked_now++;
    return qv_host_alloc_pages(bytes, out, err);
}

static void
unlock_pages(struct qv_device *dev, void *p)
{
    locked_now--;
    free(p);
}

/* Locking is slow, so blocks are kept: the smallest kept block that is large enough is reused, the
 * four largest are kept, and kept blocks are freed when memory would otherwise run out. */
TEST(locked_pages_are_kept)
{
    qv_context *ctx = tiny_context("ref");
    qv_error err = { 0 };
    void *p[6];
    struct qv_backend locking = *ctx->backend;
    locking.lock_pages = lock_pages;
    locking.unlock_pages = unlock_pages;
    ctx->backend = ctx->dev->backend = &locking;
    for (size_t i = 0; i < 6; i++) {
        assert_int_equal(qv_host_alloc(ctx, (i + 1) * 1000, &p[i], &err), 0);
        assert_int_equal((uintptr_t)p[i] % alignof(max_align_t), 0);
        memset(p[i], (int)i, (i + 1) * 1000);
    }
    for (size_t i = 0; i < 6; i++)
        qv_host_free(ctx, p[i]);
    assert_int_equal(locked_now, 4);
    void *first = NULL, *second = NULL;
    assert_int_equal(qv_host_alloc(ctx, 1500, &first, &err), 0);
    assert_ptr_equal(first, p[2]); /* 3000 */
    assert_int_equal(qv_host_alloc(ctx, 3000, &second, &err), 0);
    assert_ptr_equal(second, p[3]);
    assert_int_equal(n_locked, 6);
    qv_host_free(ctx, first);
    qv_host_free(ctx, second);
    lock_fails = true; /* but for the first */
    assert_int_equal(qv_host_alloc(ctx, 7000, &first, &err), 0);
    assert_int_equal(locked_now, 1);
    assert_int_equal(qv_host_alloc(ctx, 7000, &second, &err), QV_ENOMEM);
    assert_int_equal(qv_host_alloc(ctx, SIZE_MAX, &second, &err), QV_ENOMEM);
    lock_fails = false;
    assert_int_equal(qv_host_alloc(ctx, ((size_t)256 << 20) + 1, &second, &err), 0);
    qv_host_free(ctx, second); /* more than is kept */
    assert_int_equal(locked_now, 1);
    qv_host_free(ctx, first);
    assert_int_equal(locked_now, 1);
    test_end(ctx);
    assert_int_equal(locked_now, 0);
}

TEST(host_memory_that_cannot_be)
{
    qv_context *ctx = tiny_context("ref");
    void *p = &ctx;
    expect_error(QV_EINVAL, "0 bytes", qv_host_alloc(ctx, 0, &p, ERR));
    assert_int_equal(qv_host_alloc(NULL, 1, &p, NULL), QV_EINVAL);
    assert_int_equal(qv_host_alloc(ctx, 1, NULL, NULL), QV_EINVAL);
    /* also at sizes where rounding up would wrap around */
    for (size_t less = 0; less < 3; less++)
        expect_error(QV_ENOMEM, "bytes on the host", qv_host_alloc(ctx, SIZE_MAX - less, &p, ERR));
    assert_ptr_equal(p, &ctx);
    qv_host_free(ctx, NULL);
    qv_host_free(NULL, NULL);
}

/* Frame pairs [first, first + n) of a long clip have the same bits as in separate chunks: all at
 * once, cut so that the last chunk is not full, and from the beginning of a chunk. */
TEST(chunks_do_not_depend_on_length)
{
    enum { H = 4, W = 6, PATCHES = H * W };
    EACH_RUN (on, type) {
        struct tiny t = tiny_open(*on, *type, 2);
        const int64_t per_chunk = t.ctx->caps.chunk_rows / PATCHES;
        const int64_t pairs = per_chunk > 40 ? per_chunk + 2 : 2 * per_chunk + 1;
        const size_t frame = (size_t)(PATCHES * t.info.patch_size * t.info.patch_size * 3);
        uint8_t *frames = tiny_frames(&t, 2 * pairs, H, W, 9);
        const int64_t cuts[][2] = { { 0, pairs - 1 }, { per_chunk, pairs - per_chunk }, { 3, 1 } };
        qv_item clip = { .data = frames, .grid_thw = { pairs, H, W } };
        const qv_plan_options o = { .grid_thw = { pairs, H, W } };
        qv_plan_info info;
        size_t n, m;
        const int64_t per_pair = PATCHES / 4 * t.info.out_hidden, outputs = 1 + t.info.n_deepstack;
        float *whole = tiny_encode(&t, QV_INPUT_FRAMES, &clip, 1, NULL, &n);
        qv_plan *plan = tiny_plan(&t, &o);
        qv_plan_get_info(plan, &info);
        const qv_capacity pair = qv_capacity_of(&t.model->config, (int64_t[3]){ 1, H, W });
        const int64_t fits = qv_capacity_fits(&info.capacity, &pair);
        /* it is dense if dense chunks have the bits of packed ones, else like packed ones */
        if (info.capacity.segment_rows) {
            assert_int_equal(info.capacity.segment_rows, PATCHES);
            assert_int_equal(fits, per_chunk);
        }
        assert_true(fits >= per_chunk);
        for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
            clip.data = frames + (size_t)(2 * cuts[i][0]) * frame;
            clip.grid_thw[0] = cuts[i][1] < per_chunk ? cuts[i][1] : per_chunk;
            float *cut = tiny_chunk(&t, plan, &clip, 1, QV_F32, &m);
            for (int64_t j = 0; j < outputs; j++)
                assert_true(tiny_same(whole + (j * pairs + cuts[i][0]) * per_pair,
                                      cut + j * clip.grid_thw[0] * per_pair,
                                      (size_t)(clip.grid_thw[0] * per_pair), QV_F32));
        }
    }
}

/* Asserts that a and b [bytes] are equal up to roundings. */
static void
assert_near(const struct tiny *t, const float *a, const float *b, size_t bytes)
{
    size_t rows = bytes / sizeof(float) / (size_t)t->info.out_hidden;
    double mean, far;
    row_distance(a, b, (int64_t)rows, t->info.out_hidden, &mean, &far);
    if (!(far <= (t->info.dtype == QV_F32 ? 2e-5 : 0.05)))
        fail_msg("worst distance %g", far);
}

/* A clip's odd last frame is paired with itself. An image is two equal frames, whatever follows it
 * in memory, if both are normalised alike, as they are here. */
TEST_ON_EACH(one_frame_is_two_equal_ones)
{
    uint8_t *three = tiny_frames(&t, 4, 4, 4, 11), *four = tiny_frames(&t, 4, 4, 4, 11);
    size_t frame = (size_t)(16 * t.info.patch_size * t.info.patch_size * 3), n, m, k;
    memcpy(four + 3 * frame, four + 2 * frame, frame);
    const qv_item items[] = {
        { .data = three, .grid_thw = { 2, 4, 4 }, .n_frames = 3 },
        { .data = three + frame, .grid_thw = { 1, 4, 4 }, .n_frames = 1 },
        { .data = three + 2 * frame, .grid_thw = { 1, 4, 4 }, .is_image = true },
        { .data = four, .grid_thw = { 2, 4, 4 } },
    };
    float *a = tiny_encode(&t, QV_INPUT_FRAMES, &items[0], 1, NULL, &n);
    float *b = tiny_encode(&t, QV_INPUT_FRAMES, &items[3], 1, NULL, &m);
    assert_int_equal(n, m);
    assert_memory_equal(a, b, n);
    /* all in one chunk, so that reading past a frame would read another item */
    a = tiny_encode(&t, QV_INPUT_FRAMES, items, 3, &(qv_plan_options){ .capacity.patches = 64 },
                    &k);
    for (int i = 0; i < 2; i++) {
        memcpy(four, items[1 + i].data, frame);
        memcpy(four + frame, items[1 + i].data, frame);
        const qv_item two = { .data = four, .grid_thw = { 1, 4, 4 } };
        b = tiny_encode(&t, QV_INPUT_FRAMES, &two, 1, &(qv_plan_options){ .capacity.patches = 64 },
                        &m);
        for (int j = 0; j < 1 + t.info.n_deepstack; j++)
            assert_true(tiny_same(a + (16 * j + 8 + 4 * i) * t.info.out_hidden,
                                  b + 4 * j * t.info.out_hidden, (size_t)(4 * t.info.out_hidden),
                                  QV_F32));
    }
}

/* Asks to stop after the given number of calls. */
struct patience {
    int asked, most;
};

static bool
is_out(void *user)
{
    struct patience *p = user;
    return ++p->asked > p->most;
}

static qv_plan_info
plan_info(const struct tiny *t, const qv_plan_options *options)
{
    qv_plan_info info;
    qv_plan *plan = tiny_plan(t, options);
    qv_plan_get_info(plan, &info);
    test_end(plan);
    return info;
}

/* Several items, each filling a chunk. */
TEST_ON_EACH(a_caller_ends_it_between_chunks)
{
    enum { PAIRS = 6 };
    struct patience p = { .most = PAIRS };
    const qv_plan_options options = { .capacity.patches = 16, .stop = is_out, .stop_user = &p };
    /* the rows of the plan's chunks: those asked for or, on some devices, more */
    const int64_t columns = plan_info(&t, &options).capacity.patches / 4;
    uint8_t *frames = tiny_frames(&t, 2 * PAIRS, 4, columns, 11);
    const size_t pair = (size_t)(2 * 4 * columns * t.info.patch_size * t.info.patch_size * 3);
    qv_item items[PAIRS];
    for (size_t i = 0; i < PAIRS; i++)
        items[i] = (qv_item){ .data = frames + i * pair, .grid_thw = { 1, 4, columns } };
    size_t bytes;
    qv_tokens out = tiny_tokens(&t, items, PAIRS, QV_F32, &bytes);
    float *whole = tiny_encode(&t, QV_INPUT_FRAMES, items, PAIRS, &options, &bytes);
    assert_int_equal(p.asked, PAIRS - 1); /* it is never asked before the first chunk */
    for (p.most = 0; p.most < 3; p.most++) {
        p.asked = 0;
        expect_error(QV_ESTATE, "stopped by its caller between two chunks",
                     qv_encode(t.model, QV_INPUT_FRAMES, items, PAIRS, &options, &out, ERR));
        assert_int_equal(p.asked, p.most + 1);
    }
    p = (struct patience){ .most = PAIRS };
    float *again = tiny_encode(&t, QV_INPUT_FRAMES, items, PAIRS, &options, &bytes);
    assert_memory_equal(whole, again, bytes);
}

/* An image with more rows than a chunk gets a separate dense chunk, with the same tokens as in a
 * chunk of a requested size. */
TEST_ON_EACH(an_image_larger_than_a_chunk)
{
    const int64_t side = 2 * (int64_t)sqrt((double)t.ctx->caps.chunk_rows / 4) + 2;
    if (side * side > 4000) /* ref is not the only backend for which this would take long */
        return;
    uint8_t *frames = tiny_frames(&t, 1, side, side, 3);
    const qv_item items[] = {
        { .data = frames, .grid_thw = { 1, side, side }, .is_image = true },
        { .data = frames, .grid_thw = { 1, 2, 2 }, .is_image = true },
    };
    const qv_plan_options asked = { .capacity.patches = side * side };
    const qv_plan_options o = { .grid_thw = { 1, side, side } };
    const qv_plan_info info = plan_info(&t, &o);
    size_t n, m, k;
    assert_true(info.capacity.patches >= side * side);
    /* it is dense if dense chunks have the bits of packed ones */
    if (info.capacity.segment_rows) {
        assert_int_equal(info.capacity.patches, side * side);
        assert_int_equal(info.capacity.segment_rows, side * side);
    }
    float *alone = tiny_encode(&t, QV_INPUT_FRAMES, items, 1, NULL, &n);
    float *packed = tiny_encode(&t, QV_INPUT_FRAMES, items, 1, &asked, &m);
    float *both = tiny_encode(&t, QV_INPUT_FRAMES, items, 2, NULL, &k);
    assert_int_equal(n, m);
    assert_near(&t, alone, packed, n);
    assert_memory_equal(alone, both, n / (size_t)(1 + t.info.n_deepstack));
}

/* With pixels that are normalised without rounding (black and white, -1 and 1), patches and
 * frames give the same. */
TEST(patches_are_frames_where_pixels_are_exact)
{
    enum { H = 4, W = 6, PAIRS = 2 };
    EACH_RUN (on, type) {
        struct tiny t = tiny_open(*on, *type, 2);
        int64_t ps = t.info.patch_size, width = W * ps, rows = (int64_t)PAIRS * H * W, out = 0;
        uint8_t *frames = tiny_frames(&t, 2 * PAIRS, H, W, 21);
        float *patches = test_alloc((size_t)(rows * t.info.row_dim) * sizeof *patches);
        struct qv_coords coords[H * W];
        size_t n, m;
        for (int64_t i = 0; i < 2 * PAIRS * H * ps * width * 3; i++)
            frames[i] = frames[i] & 1 ? 255 : 0;
        qv_block_coords(H, W, 2, 0, 0, coords);
        for (int64_t row = 0; row < rows; row++)
            for (int64_t c = 0; c < 3; c++)
                for (int64_t f = 0; f < 2; f++)
                    for (int64_t y = 0; y < ps; y++)
                        for (int64_t x = 0; x < ps; x++) {
                            const struct qv_coords *at = &coords[row % (H * W)];
                            int64_t line = (row / (H * W) * 2 + f) * H * ps + at->row * ps + y;
                            int64_t pixel = line * width + at->col * ps + x;
                            patches[out++] = frames[pixel * 3 + c] ? 1 : -1;
                        }
        qv_item item = { .data = frames, .grid_thw = { PAIRS, H, W } };
        float *a = tiny_encode(&t, QV_INPUT_FRAMES, &item, 1, NULL, &n);
        item.data = patches;
        float *b = tiny_encode(&t, QV_INPUT_PATCHES, &item, 1, NULL, &m);
        assert_int_equal(n, m);
        assert_near(&t, a, b, n);
    }
}

TEST(bf16_output_is_rounded_f32_output)
{
    struct tiny t = tiny_open("ref", QV_F32, 1);
    uint8_t *frames = tiny_frames(&t, 2, 2, 4, 5);
    const qv_item item = { .data = frames, .grid_thw = { 1, 2, 4 } };
    size_t n, m;
    float *wide = tiny_encode(&t, QV_INPUT_FRAMES, &item, 1, NULL, &n);
    uint16_t *narrow =
        tiny_encode(&t, QV_INPUT_FRAMES, &item, 1, &(qv_plan_options){ .output = QV_BF16 }, &m);
    assert_int_equal(n, 2 * m);
    for (size_t i = 0; i < n / sizeof *wide; i++) {
        uint32_t u = (uint32_t)narrow[i] << 16;
        float f;
        memcpy(&f, &u, 4);
        assert_true(fabsf(f - wide[i]) <= fabsf(wide[i]) * 0x1p-8f);
    }
}

TEST(wrong_calls_are_refused_with_words)
{
    qv_context *ctx = NULL;
    qv_model *model = NULL;
    qv_plan *plan = NULL;
    const struct {
        qv_context_options o;
        qv_status status;
        const char *words;
    } contexts[] = {
        { { .backend = "tpu" }, QV_ENODEVICE, "tpu" },
#ifdef QV_WITH_METAL
        { { .backend = "metal", .device = 99 }, QV_ENODEVICE, "device 99" },
        { { .backend = "metal", .naive = "gemm,nor" }, QV_EINVAL, "\"nor\"" },
#else
        { { .backend = "metal" }, QV_ENODEVICE, "not in this build" },
#endif
        { { .backend = "ref", .naive = "gemm" }, QV_EINVAL, "ref has no naive kernels" },
#ifdef QV_WITH_CUDA
        { { .backend = "cuda", .device = 99 },
          QV_ENODEVICE,
          backend_is_here("cuda") ? "device 99" : "no NVIDIA" },
#else
        { { .backend = "cuda", .backends = "/nowhere" },
          QV_ENODEVICE,
          "libqwenvit_cuda.so in /nowhere" },
#endif
        { { .backend = "ref", .device = 1 }, QV_ENODEVICE, "device 1" },
        { { .backend = "ref:7" }, QV_ENODEVICE, "device 7" },
        { { .backend = "ref:1", .device = 2 }, QV_EINVAL, "\"ref:1\" and device is 2" },
        { { .backend = "ref:" }, QV_EINVAL, "ref:" },
        { { .backend = "ref:x" }, QV_EINVAL, "ref:x" },
        { { .backend = "ref:1x" }, QV_EINVAL, "ref:1x" },
        { { .backend = "ref:-1" }, QV_EINVAL, "ref:-1" },
        { { .backend = "ref:99999999999" }, QV_EINVAL, "ref:99999999999" },
        /* the backends that were tried for a missing device, and the installed ones */
        { { .device = 99 }, QV_ENODEVICE, "ref: device 99" },
        { { .device = 99, .backends = "/nowhere" }, QV_ENODEVICE, "no backend has a device 99: " },
#if !defined(QV_CUDA_STATIC) && !defined(QV_WITH_METAL) && defined(QV_WITH_CPU)
        { { .backend = "tpu", .backends = "/nowhere" }, QV_ENODEVICE, "(available: cpu, ref)" },
#endif
    };
    EACH (c, contexts) {
        expect_error(c->status, c->words, qv_context_open(&c->o, &ctx, ERR));
        assert_null(ctx);
    }
    tiny_context("ref:0");

    struct tiny t = tiny_open("ref", QV_F32, 1);
    expect_error(QV_EIO, "/nonexistent/folder",
                 qv_model_load(t.ctx, "/nonexistent/folder", NULL, &model, ERR));
    expect_error(QV_EINVAL, "u8",
                 qv_model_load(t.ctx, QV_GOLDEN "/qwen3_vl", &(qv_model_options){ .dtype = QV_U8 },
                               &model, ERR));
    assert_null(model);
    static const struct {
        qv_plan_options options;
        const char *words;
    } plans[] = {
        { { .capacity.patches = -1 }, "patches is -1" },
        { { .capacity.patches = INT64_MAX }, "patches is 9223372036854775807" },
        { { .capacity.segments = -3 }, "segments is -3" },
        { { .capacity.segments = INT64_MAX }, "segments is 9223372036854775807" },
        { { .capacity.segment_rows = 6 },
          "segment_rows is 6; it must be 0 (any) or a multiple of 4" },
        { { .capacity.segment_rows = -4 }, "segment_rows is -4" },
        { { .capacity.segment_rows = (int64_t)1 << 62 }, "segment_rows is 4611686018427387904" },
        { { .capacity.windows = -2 }, "windows is -2" },
        { { .capacity.patches = 8, .capacity.segment_rows = 16 },
          "patches is 8, too few for one segment" },
        { { .input = (qv_input)7 }, "input is 7" },
        { { .output = QV_U8 }, "output is 3" },
    };
    EACH (c, plans)
        expect_error(QV_EINVAL, c->words, qv_plan_create(t.model, &c->options, &plan, ERR));
    struct tiny glm = tiny_open_family(QV_GOLDEN "/glm4v", "ref", QV_F32, 1);
    expect_error(QV_EUNSUPPORTED, "hidden states are not available for glm4v",
                 qv_plan_create(glm.model, &(qv_plan_options){ .hidden = true }, &plan, ERR));
    assert_null(plan);
}

/* Items that are wrong or do not fit are refused with an error that names item and value, and
 * nothing is pushed. */
TEST(wrong_items_are_refused_with_words)
{
    static const uint8_t data[1];
    static const struct {
        const char *words;
        int64_t grid_thw[3], n_frames;
        qv_input input;
        bool no_data, is_image;
    } items[] = {
        { "item 1: data is NULL", .grid_thw = { 1, 2, 2 }, .no_data = true },
        { "item 1: data is NULL", .grid_thw = { 1, 2, 2 }, .input = QV_INPUT_PATCHES,
          .no_data = true },
        { "item 1: grid_thw is 1,2,3", .grid_thw = { 1, 2, 3 } },
        { "h and w must be multiples of 2", .grid_thw = { 1, 5, 2 } },
        { "grid_thw is 1,0,2", .grid_thw = { 1, 0, 2 } },
        { "grid_thw is 1,2,-2", .grid_thw = { 1, 2, -2 } },
        { "t must be from 1 to", .grid_thw = { 0, 2, 2 } },
        { "grid_thw is -1,2,2", .grid_thw = { -1, 2, 2 } },
        { "t must be from 1 to", .grid_thw = { INT64_MAX, 2, 2 } },
        { "multiples of 2", .grid_thw = { 1, INT64_MAX - 1, INT64_MAX - 1 } },
        { "multiples of 2", .grid_thw = { 1, INT64_MIN, 2 } },
        { "up to 8192", .grid_thw = { 1, 1 << 20, 2 }, .input = QV_INPUT_PATCHES },
        { "h * w at most 4194304", .grid_thw = { 1, 4096, 1026 } },
        { "n_frames is 3; it must be from 1 to 2 for 1", .grid_thw = { 1, 4, 2 }, .n_frames = 3 },
        { "n_frames is 4; it must be from 5 to 6 for 3", .grid_thw = { 3, 2, 2 }, .n_frames = 4 },
        { "n_frames is -1", .grid_thw = { 1, 2, 2 }, .n_frames = -1 },
        { "it must be 1 for an image", .grid_thw = { 1, 2, 2 }, .n_frames = 2, .is_image = true },
        { "n_frames is 2; it must be 0 for rows", .grid_thw = { 1, 2, 2 }, .n_frames = 2,
          .input = QV_INPUT_PATCHES },
        { "item 1 (grid_thw 1,4,16) brings the chunk to 68 patches; this plan's",
          .grid_thw = { 1, 4, 16 } },
        { "segments; this plan's chunks hold 3", .grid_thw = { 1 << 20, 64, 64 } },
        { "brings the chunk to 4 segments; this plan's chunks hold 3", .grid_thw = { 3, 2, 2 } },
    };
    struct tiny t = tiny_open("ref", QV_F32, 1);
    uint8_t *frames = tiny_frames(&t, 4, 2, 2, 5);
    float tokens[64];
    for (int input = 0; input < 2; input++) {
        const qv_plan_options o = { .capacity.patches = 64,
                                    .capacity.segments = 3,
                                    .input = (qv_input)input };
        qv_plan *plan = tiny_plan(&t, &o);
        qv_tokens out = { .tokens = tokens, .capacity = 64 };
        EACH (c, items) {
            const int64_t *g = c->grid_thw;
            const qv_item two[] = { { .data = data, .grid_thw = { 1, 2, 2 } },
                                    { .data = c->no_data ? NULL : data,
                                      .grid_thw = { g[0], g[1], g[2] },
                                      .n_frames = c->n_frames,
                                      .is_image = c->is_image } };
            if ((int)c->input == input)
                expect_error(QV_EINVAL, c->words, qv_plan_push(plan, two, 2, ERR));
        }
        expect_error(QV_EINVAL, "n is 0; it must be at least 1",
                     qv_plan_push(plan, &(qv_item){ .data = data }, 0, ERR));
        expect_error(QV_ESTATE, "nothing to pull", qv_plan_pull(plan, &out, ERR));
    }
    qv_plan *dense =
        tiny_plan(&t, &(qv_plan_options){ .capacity.patches = 16, .capacity.segment_rows = 8 });
    const qv_item wrong = { .data = frames, .grid_thw = { 1, 2, 2 } };
    const qv_item many = { .data = frames, .grid_thw = { 3, 2, 4 } };
    expect_error(QV_EINVAL, "has 4 patches; this plan's", qv_plan_push(dense, &wrong, 1, ERR));
    expect_error(QV_EINVAL, "3 segments; this plan's chunks hold 2",
                 qv_plan_push(dense, &many, 1, ERR));

    qv_plan *none = NULL;
    expect_error(QV_EINVAL, "1,3,2",
                 qv_plan_create(t.model, &(qv_plan_options){ .grid_thw = { 1, 3, 2 } }, &none,
                                ERR));
    assert_null(none);
    qv_tokens out = { .tokens = tokens, .capacity = 0, .n = -7 };
    const qv_item fine = { .data = frames, .grid_thw = { 2, 2, 2 } };
    const qv_item two[] = { fine, { .data = frames, .grid_thw = { 1, 2, 1 } } };
    expect_error(QV_EINVAL, "item 1", qv_encode(t.model, QV_INPUT_FRAMES, two, 2, NULL, &out, ERR));
    expect_error(QV_EINVAL, "out->capacity is 0 tokens; it must be at least 2",
                 qv_encode(t.model, QV_INPUT_FRAMES, &fine, 1, NULL, &out, ERR));
    expect_error(QV_EINVAL, "n_items",
                 qv_encode(t.model, QV_INPUT_FRAMES, &fine, 0, NULL, &out, ERR));
    assert_int_equal(out.n, -7);
}

/* ref as a device that records a list, and runs it only when its side calls or its mark are waited
 * for. What is called for a pull is logged: s and w for the waits, d and a number for a download of
 * so many parts. */
static struct lazy {
    const struct qv_backend *base;
    struct qv_backend table;
    struct qv_recording {
        const struct qv_call *calls;
        size_t n;
    } recording, *replayed;
    char log[64];
} lazy;

static qv_status
record_lazily(struct qv_device *dev, const struct qv_call *calls, size_t n,
              struct qv_recording **out, qv_error *err)
{
    (void)dev, (void)err;
    lazy.recording = (struct qv_recording){ calls, n };
    *out = &lazy.recording;
    return QV_OK;
}

static void
forget_lazily(struct qv_device *dev, struct qv_recording *recording)
{
    (void)dev, (void)recording;
}

static qv_status
replay_lazily(struct qv_device *dev, struct qv_recording *recording, qv_error *err)
{
    (void)dev, (void)err;
    lazy.replayed = recording;
    return QV_OK;
}

static qv_status
run_replayed(struct qv_device *dev, const char *waited, qv_error *err)
{
    const struct qv_recording *r = lazy.replayed;
    lazy.replayed = NULL;
    strcat(lazy.log, waited);
    return r ? lazy.base->run(dev, r->calls, r->n, err) : QV_OK;
}

static qv_status
wait_side_lazily(struct qv_device *dev, struct qv_recording *recording, qv_error *err)
{
    assert_true(recording == &lazy.recording);
    return run_replayed(dev, "s", err);
}

static qv_status
wait_lazily(struct qv_device *dev, int mark, qv_error *err)
{
    (void)mark;
    return run_replayed(dev, "w", err);
}

static qv_status
download_logged(struct qv_device *dev, const struct qv_download *parts, size_t n, qv_error *err)
{
    const size_t at = strlen(lazy.log);
    snprintf(lazy.log + at, sizeof lazy.log - at, "d%zu", n);
    return lazy.base->download(dev, parts, n, err);
}

/* On a device with a side stream DeepStack's outputs are downloaded before the chunk ends, but only
 * those that are wanted; if none is, nothing waits for the side stream. */
TEST(deepstack_is_downloaded_early)
{
    struct tiny plain = tiny_open("ref", QV_F32, 1), t = tiny_open("ref", QV_F32, 1);
    const qv_plan_options o = { .capacity.patches = 8 };
    const qv_item item = { .data = tiny_frames(&t, 4, 2, 2, 5), .grid_thw = { 2, 2, 2 } };
    size_t bytes;
    const void *expected = tiny_chunk(&plain, tiny_plan(&plain, &o), &item, 1, QV_F32, &bytes);
    assert_int_equal(t.info.n_deepstack, 2);
    lazy = (struct lazy){ .base = t.ctx->backend, .table = *t.ctx->backend };
    lazy.table.record = record_lazily;
    lazy.table.forget = forget_lazily;
    lazy.table.replay = replay_lazily;
    lazy.table.wait_side = wait_side_lazily;
    lazy.table.wait = wait_lazily;
    lazy.table.download = download_logged;
    t.ctx->backend = t.ctx->dev->backend = &lazy.table;
    t.ctx->caps.side = true;
    qv_plan *plan = tiny_plan(&t, &o);
    static const struct {
        const char *log;
        bool tokens, deepstack[2];
    } pulls[] = { { "sd2wd1", true, { true, true } },
                  { "sd1wd1", true, { false, true } },
                  { "wd1", true, { false, false } },
                  { "sd2wd0", false, { true, true } } };
    EACH (pull, pulls) {
        qv_tokens out = tiny_tokens(&t, &item, 1, QV_F32, &bytes);
        char *all = out.tokens;
        const size_t one = bytes / 3;
        memset(all, 0xee, bytes);
        char *wanted = test_alloc(bytes);
        memset(wanted, 0xee, bytes);
        const bool wants[] = { pull->tokens, pull->deepstack[0], pull->deepstack[1] };
        void **const outputs[] = { &out.tokens, &out.deepstack[0], &out.deepstack[1] };
        for (size_t i = 0; i < 3; i++)
            if (wants[i])
                memcpy(wanted + i * one, (const char *)expected + i * one, one);
            else
                *outputs[i] = NULL;
        *lazy.log = 0;
        assert_ok(qv_plan_push(plan, &item, 1, ERR) || qv_plan_pull(plan, &out, ERR));
        assert_string_equal(lazy.log, pull->log);
        assert_memory_equal(all, wanted, bytes);
    }
}

TEST(push_and_pull_take_turns)
{
    struct tiny t = tiny_open("ref", QV_F32, 1);
    uint8_t *frames = tiny_frames(&t, 4, 2, 2, 5);
    const qv_item item = { .data = frames, .grid_thw = { 1, 2, 2 } };
    const qv_item wrong = { .data = frames, .grid_thw = { 1, 2, 2 }, .n_frames = 3 };
    float tokens[64];
    qv_tokens out = { .tokens = tokens, .capacity = 0, .n = -7 };
    qv_plan *plan = tiny_plan(&t, &(qv_plan_options){ .capacity.patches = 8 });
    expect_error(QV_ESTATE, "nothing to pull", qv_plan_pull(plan, &out, ERR));
    expect_error(QV_EINVAL, "n_frames is 3", qv_plan_push(plan, &wrong, 1, ERR));
    assert_ok(qv_plan_push(plan, &item, 1, ERR));
    expect_error(QV_ESTATE, "pull the oldest", qv_plan_push(plan, &item, 1, ERR));
    expect_error(QV_EINVAL, "capacity is 0", qv_plan_pull(plan, &out, ERR));
    out.capacity = 1;
    out.hidden = tokens;
    expect_error(QV_EINVAL, "out->hidden is set", qv_plan_pull(plan, &out, ERR));
    out.hidden = NULL;
    assert_int_equal(out.n, -7); /* untouched, and nothing is lost */
    assert_ok(qv_plan_pull(plan, &out, ERR));
    assert_int_equal(out.n, 1);
    expect_error(QV_ESTATE, "nothing to pull", qv_plan_pull(plan, &out, ERR));
    qv_plan_free(&(qv_plan *){ NULL });
}

TEST(a_described_model_has_costs_and_no_weights)
{
    const qv_model_options describe = { .describe = true };
    struct tiny t = tiny_open("ref", QV_F32, 1);
    struct tiny d = tiny_open_model(QV_GOLDEN "/qwen3_vl", "ref", &describe, 1);
    const qv_plan_options o = { .capacity.patches = 16, .capacity.segments = 4 };
    const qv_item item = { .data = &o, .grid_thw = { 1, 2, 2 } };
    qv_plan *plan = tiny_plan(&d, &o);
    const qv_plan_info info = plan_info(&d, &o), same = plan_info(&t, &o);
    assert_int_equal(info.capacity.patches, 16);
    assert_int_equal(info.capacity.segments, 4);
    assert_int_equal(info.capacity.segment_rows, 0);
    assert_int_equal(info.tokens, 4);
    assert_int_equal(info.chunks_ahead, 1);
    assert_true(info.flops > 0 && info.flops == same.flops);
    assert_int_equal(info.arena_bytes, same.arena_bytes);
    /* without weights the lowering is decided as with them */
    assert_string_equal(d.info.lowering, "patchify");
    assert_non_null(strstr(d.info.lowering_reason, "kernel = stride = 2x"));
    assert_string_equal(t.info.lowering, d.info.lowering);
    assert_string_equal(t.info.lowering_reason, d.info.lowering_reason);
    assert_null(d.model->weights.memory);
    assert_null(d.model->arena);
    assert_null(plan->program.arena);
    expect_error(QV_ESTATE, "no weights", qv_plan_push(plan, &item, 1, ERR));
}

TEST(items_beyond_counting_are_refused)
{
    enum { ITEMS = 64 };
    static qv_item items[ITEMS];
    qv_error err;
    struct tiny t = tiny_open("ref", QV_F32, 1);
    qv_tokens out = { .tokens = &err, .capacity = 0 };
    for (int i = 0; i < ITEMS; i++)
        items[i] = (qv_item){ .data = &err, .grid_thw = { 1 << 20, 2048, 2048 } };
    expect_error(QV_EINVAL, "out->capacity is 0 tokens; it must be at least 70368744177664",
                 qv_encode(t.model, QV_INPUT_FRAMES, items, ITEMS, NULL, &out, ERR));
}

TEST(names_of_everything)
{
    assert_string_equal(qv_version(), QV_VERSION);
    assert_string_equal(qv_status_name(QV_EFORMAT), "QV_EFORMAT");
    assert_non_null(qv_status_name((qv_status)999));
    assert_string_equal(qv_dtype_name(QV_BF16), "bf16");
}

/* A clip's pieces follow one another, and the last one contains the remaining frames. An image's
 * pieces share its frames, but not its patches. */
TEST(items_are_cut_at_frame_pairs)
{
    static const char data[1];
    struct tiny t = tiny_open("ref", QV_F32, 1);
    const qv_item clip = { .data = data, .grid_thw = { 5, 4, 6 }, .n_frames = 9 };
    const qv_item image = { .data = data, .grid_thw = { 5, 4, 6 }, .is_image = true };
    const int64_t pair = 24 * t.info.row_dim;
    const struct {
        const qv_item *item;
        qv_input input;
        int64_t first, pairs, n_frames, offset;
    } cuts[] = {
        { &clip, QV_INPUT_FRAMES, 0, 2, 4, 0 },
        { &clip, QV_INPUT_FRAMES, 2, 2, 4, 2 * pair },
        { &clip, QV_INPUT_FRAMES, 4, 1, 1, 4 * pair },
        { &image, QV_INPUT_FRAMES, 4, 1, 1, 0 },
        { &image, QV_INPUT_PATCHES, 2, 2, 0, 2 * pair * 4 },
        { &image, QV_INPUT_PATCHES_BF16, 4, 1, 0, 4 * pair * 2 },
    };
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        const qv_item piece = qv_item_piece(t.model, cuts[i].input, cuts[i].item, cuts[i].first, 2);
        assert_int_equal(piece.grid_thw[0], cuts[i].pairs);
        assert_int_equal(piece.n_frames, cuts[i].n_frames);
        assert_int_equal((intptr_t)piece.data - (intptr_t)data, cuts[i].offset);
        assert_int_equal(piece.is_image, cuts[i].item->is_image);
    }
}
