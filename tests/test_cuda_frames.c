/* SPDX-License-Identifier: MIT */
/*
 * Tests that frames in a GPU's memory are resized there to the bytes that the host makes of them
 * (pixels/resize.c in portable C): every layout, many sizes, several threads at once, behind the
 * work that makes the frames, and without memory.
 */
#include "test.h"

#include <cuda_runtime_api.h>
#include <pthread.h>

#include "../pixels/pixels.h"
#include "backends.h"
#include "cuda.h"

cudaError_t keep_busy(cudaStream_t stream, int blocks, long long cycles);

static const struct qv_backend *const b = &qv_backend_cuda;
static struct qv_device *dev;
static int fail_at; /* the nth allocation of frames from now fails; 0: none */

cudaError_t __real_cudaMallocFromPoolAsync(void **p, size_t bytes, cudaMemPool_t pool,
                                           cudaStream_t stream);
cudaError_t __wrap_cudaMallocFromPoolAsync(void **p, size_t bytes, cudaMemPool_t pool,
                                           cudaStream_t stream);
cudaError_t
__wrap_cudaMallocFromPoolAsync(void **p, size_t bytes, cudaMemPool_t pool, cudaStream_t stream)
{
    return fail_at && !--fail_at ? cudaErrorMemoryAllocation
                                 : __real_cudaMallocFromPoolAsync(p, bytes, pool, stream);
}

static int
set_up(void)
{
    const struct qv_device_options options = { .threads = 1 };
    assert_ok(b->open(&options, &dev, ERR));
    assert_non_null(b->frames_stream(dev));
    return 0;
}

static int
tear_down(void)
{
    uint64_t used = 1;
    assert_int_equal(cudaDeviceSynchronize(), 0);
    assert_int_equal(cudaMemPoolGetAttribute(device_cuda(dev)->frames_pool,
                                             cudaMemPoolAttrUsedMemCurrent, &used),
                     0);
    b->close(dev);
    if (used)
        fail_msg("%llu bytes of frames were not given back", (unsigned long long)used);
    return 0;
}
TEST_EACH(set_up, tear_down);

TEST_MAIN(argc, argv)
{
    enum { SKIPPED = 77 };
    return backend_is_here("cuda") ? TEST_GO_ON : SKIPPED;
}

/* ---- a resize, and what the host makes of it ------------------------------------------------- */

enum layout { PACKED, PLANES, RGBA, GRAY, CROP, UPSIDE_DOWN, BGR, LAYOUTS };

struct work {
    int64_t n; /* frames; the second half is another view */
    int in_h, in_w, out_h, out_w;
    enum layout layout;
    uint8_t *host, *there; /* the frames' bytes */
    size_t bytes;
    struct qv_frames_view views[2];
    struct qv_resize r;
    uint8_t *right; /* [n, out_h, out_w, 3] */
    size_t right_bytes;
};

/* The frames as they lie in host memory; `at` becomes the first one. */
static struct qv_frames_view
view_on_host(const struct work *w)
{
    enum { FRAME, ROW, PIXEL, CHANNEL, SPARE = 5 };
    const int64_t h = w->in_h, width = w->in_w + (w->layout == CROP ? SPARE : 0);
    struct qv_frames_view v = { w->host, w->n, { h * width * 3, width * 3, 3, 1 } };
    int64_t *s = v.step;
    switch (w->layout) {
    case PLANES: s[ROW] = width, s[PIXEL] = 1, s[CHANNEL] = h * width; break;
    case RGBA: s[FRAME] = h * width * 4, s[ROW] = width * 4, s[PIXEL] = 4; break;
    case GRAY: s[FRAME] = h * width, s[ROW] = width, s[PIXEL] = 1, s[CHANNEL] = 0; break;
    case CROP: v.data += 3 * SPARE; break;
    case UPSIDE_DOWN: v.data += (h - 1) * s[ROW], s[ROW] = -s[ROW]; break;
    case BGR: v.data += 2, s[CHANNEL] = -1; break;
    case PACKED:
    case LAYOUTS: break;
    }
    return v;
}

static void
resize_on_host(struct work *w, const struct qv_frames_view *v)
{
    qvm_resizer *judge = NULL;
    const int64_t h = w->in_h, width = w->in_w;
    uint8_t *rgb = test_alloc((size_t)(h * width * 3));
    assert_ok(qvm_resizer_create(w->in_h, w->in_w, w->out_h, w->out_w, QVM_PORTABLE, &judge, ERR));
    for (int64_t i = 0; i < w->n; i++) {
        uint8_t *to = rgb;
        for (int64_t y = 0; y < h; y++)
            for (int64_t x = 0; x < width; x++)
                for (int64_t c = 0; c < 3; c++)
                    *to++ =
                        v->data[i * v->step[0] + y * v->step[1] + x * v->step[2] + c * v->step[3]];
        qvm_resizer_run(judge, rgb, width * 3,
                        w->right + (size_t)i * w->right_bytes / (size_t)w->n);
    }
    qvm_resizer_free(&judge);
}

static void
open_work(struct work *w, uint32_t seed)
{
    const size_t bytes = (size_t)(w->n * w->in_h * (w->in_w + 5) * 4);
    w->bytes = bytes;
    w->right_bytes = (size_t)(w->n * w->out_h * w->out_w * 3);
    w->host = test_alloc(bytes);
    w->right = test_alloc(w->right_bytes);
    assert_true(w->host && w->right);
    for (size_t i = 0; i < bytes; i++) /* hard edges overshoot */
        w->host[i] = seed % 2 ? (uint8_t)(test_random(&seed) >> 24)
                              : (uint8_t)(255 * (test_random(&seed) >> 31));
    assert_int_equal(cudaMalloc((void **)&w->there, bytes), 0);
    assert_int_equal(cudaMemcpy(w->there, w->host, bytes, cudaMemcpyDefault), 0);
    struct qv_frames_view v = view_on_host(w);
    resize_on_host(w, &v);
    v.data = w->there + (v.data - w->host);
    w->views[0] = w->views[1] = v;
    w->views[0].n = w->n - w->n / 2;
    w->views[1].n = w->n / 2;
    w->views[1].data += w->views[0].n * v.step[0];
    w->r.views = w->views;
    w->r.n_views = 2;
    assert_true(qv_axis_fill(&w->r.down, qv_axis_measure(&w->r.down, w->in_h, w->out_h)));
    assert_true(qv_axis_fill(&w->r.across, qv_axis_measure(&w->r.across, w->in_w, w->out_w)));
}

static void
close_work(struct work *w)
{
    qv_axis_free(&w->r.down);
    qv_axis_free(&w->r.across);
    cudaFree(w->there);
}

/* Resizes to memory that holds `fill`, and returns how many bytes are wrong or were written past
 * the end. */
static size_t
count_wrong(const struct work *w, int fill)
{
    enum { GUARD = 64 };
    const size_t all = w->right_bytes + GUARD;
    uint8_t *dst = NULL, *made = test_alloc(all);
    const cudaStream_t stream = b->frames_stream(dev);
    size_t wrong = 0;
    assert_int_equal(cudaMalloc((void **)&dst, all), 0);
    assert_int_equal(cudaMemset(dst, fill, all), 0);
    assert_int_equal(cudaDeviceSynchronize(), 0);
    assert_ok(qv_enqueue_resize_cuda(device_cuda(dev), stream, &w->r, dst, ERR));
    assert_int_equal(cudaStreamSynchronize(stream), 0);
    assert_int_equal(cudaMemcpy(made, dst, all, cudaMemcpyDefault), 0);
    for (size_t i = 0; i < all; i++)
        wrong += made[i] != (i < w->right_bytes ? w->right[i] : (uint8_t)fill);
    cudaFree(dst);
    return wrong;
}

static void
check_work(struct work w, uint32_t seed)
{
    open_work(&w, seed);
    for (int fill = 0x5a; fill <= 0xa5; fill += 0xa5 - 0x5a) {
        const size_t wrong = count_wrong(&w, fill);
        if (wrong)
            fail_msg("%lld frames %dx%d to %dx%d, layout %d: %zu bytes of %zu are wrong",
                     (long long)w.n, w.in_w, w.in_h, w.out_w, w.out_h, (int)w.layout, wrong,
                     w.right_bytes);
    }
    close_work(&w);
}

/* ---- sizes and layouts ----------------------------------------------------------------------- */

TEST(sizes_of_users_and_edges)
{
    static const int sizes[][4] = {
        { 1080, 1920, 364, 644 }, { 720, 1280, 364, 644 }, { 480, 640, 476, 644 },
        { 360, 640, 364, 644 },   { 64, 64, 64, 64 },      { 64, 96, 64, 32 },
        { 96, 64, 32, 64 },       { 1, 1, 28, 28 },        { 2, 3, 56, 84 },
        { 5, 200, 28, 28 },       { 3000, 7, 2, 5 },       { 7, 3000, 5, 3 },
        { 31, 33, 1, 1 },         { 17, 19, 18, 20 },
    };
    EACH (s, sizes)
        check_work((struct work){ .n = 3,
                                  .in_h = (*s)[0],
                                  .in_w = (*s)[1],
                                  .out_h = (*s)[2],
                                  .out_w = (*s)[3],
                                  .layout = (enum layout)((s - sizes) % LAYOUTS) },
                   (uint32_t)(s - sizes));
}

TEST(drawn_sizes)
{
    enum { CASES = 100, SIDE = 150 };
    uint32_t seed = 1;
    for (int i = 0; i < CASES; i++) {
        int side[4];
        for (int j = 0; j < 4; j++)
            side[j] = 1 + (int)((test_random(&seed) >> 8) % SIDE);
        check_work((struct work){ .n = 1 + i % 4,
                                  .in_h = side[0],
                                  .in_w = side[1],
                                  .out_h = i % 5 ? side[2] : side[0],
                                  .out_w = i % 7 ? side[3] : side[1],
                                  .layout = (enum layout)(i % LAYOUTS) },
                   seed);
    }
}

TEST(more_frames_than_lie_between_the_passes_at_once)
{
    check_work(
        (struct work){
            .n = 40, .in_h = 800, .in_w = 480, .out_h = 32, .out_w = 960, .layout = GRAY },
        3);
}

/* ---- the verbs ------------------------------------------------------------------------------- */

static qv_status
resize(const struct work *w, uint8_t *made, qv_error *err)
{
    void *out = NULL;
    qv_status status = b->resize(dev, &w->r, &out, err);
    if (!status)
        status = b->read_frames(dev, made, out, w->right_bytes, err);
    if (out)
        b->free_frames(dev, out);
    return status;
}

struct thread {
    pthread_t id;
    struct work w;
    int wrong;
};

static void *
resize_often(void *p)
{
    enum { TIMES = 20 };
    struct thread *t = p;
    uint8_t *made = test_alloc(t->w.right_bytes);
    for (int i = 0; i < TIMES; i++)
        t->wrong += resize(&t->w, made, NULL) || memcmp(made, t->w.right, t->w.right_bytes) != 0;
    return NULL;
}

TEST(several_threads_at_once)
{
    struct thread threads[4];
    for (int i = 0; i < (int)LENGTH(threads); i++) {
        threads[i] = (struct thread){
            .w = { .n = 2 + i, .in_h = 100 + 40 * i, .in_w = 200, .out_h = 56, .out_w = 84 }
        };
        open_work(&threads[i].w, (uint32_t)i);
        assert_int_equal(pthread_create(&threads[i].id, NULL, resize_often, &threads[i]), 0);
    }
    for (size_t i = 0; i < LENGTH(threads); i++) {
        pthread_join(threads[i].id, NULL);
        assert_int_equal(threads[i].wrong, 0);
        close_work(&threads[i].w);
    }
}

TEST(it_waits_for_the_work_that_makes_the_frames)
{
    enum { CYCLES = 100 * 1000 * 1000 };
    struct work w = { .n = 2, .in_h = 200, .in_w = 300, .out_h = 56, .out_w = 84 };
    const cudaStream_t stream = b->frames_stream(dev);
    open_work(&w, 1);
    uint8_t *made = test_alloc(w.right_bytes), *late = NULL;
    assert_int_equal(cudaMalloc((void **)&late, w.bytes), 0);
    assert_int_equal(cudaMemcpy(late, w.there, w.bytes, cudaMemcpyDefault), 0);
    assert_int_equal(cudaMemset(w.there, 0, w.bytes), 0);
    assert_int_equal(cudaDeviceSynchronize(), 0);
    assert_int_equal(keep_busy(stream, 1, CYCLES), 0);
    assert_int_equal(cudaMemcpyAsync(w.there, late, w.bytes, cudaMemcpyDefault, stream), 0);
    assert_ok(resize(&w, made, ERR));
    assert_memory_equal(made, w.right, w.right_bytes);
    cudaFree(late);
    close_work(&w);
}

TEST(without_memory_it_fails_and_the_next_one_works)
{
    struct work w = { .n = 2, .in_h = 200, .in_w = 300, .out_h = 56, .out_w = 84 };
    qv_error err = { 0 };
    open_work(&w, 1);
    uint8_t *made = test_alloc(w.right_bytes);
    for (int i = 1; i <= 2; i++) {
        fail_at = i;
        assert_int_equal(resize(&w, made, &err), QV_ENOMEM);
        assert_non_null(strstr(err.text, "bytes of frames"));
        assert_ok(resize(&w, made, ERR));
        assert_memory_equal(made, w.right, w.right_bytes);
    }
    close_work(&w);
}
