/* SPDX-License-Identifier: MIT */
/*
 * Tests the host code of the Metal backend, over the emulator: memory of the caller that is used in
 * place, times, a GPU without bfloat, and every call to Metal failing once.
 */

#include "test.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/backend.h"
#include "launch.h"
#include "metal_emulator/emulator.h"
#include "op_parse.h"
#include "tiny.h"

static const qv_context_options metal = { .backend = "metal" };

/* ---- memory ---------------------------------------------------------------------------------- */

static float *
pages(size_t bytes)
{
    void *p = NULL;
    assert_int_equal(posix_memalign(&p, (size_t)sysconf(_SC_PAGESIZE), bytes), 0);
    memset(p, 0, bytes);
    return p;
}

/* x and y have 8 pages each, of PAGE bytes. */
enum { PAGE = 4096, C = 8, SIDE = 32, N_XY = SIDE * SIDE * C };

static qv_status
open_pointwise(qv_context *ctx, qv_conv3d **out, qv_error *err)
{
    float weight[C * C];
    for (int i = 0; i < C * C; i++)
        weight[i] = (float)(i % 5 - 2);
    const qv_conv3d_desc d = { .d = 1,
                               .h = SIDE,
                               .w = SIDE,
                               .c = C,
                               .o = C,
                               .kernel = { 1, 1, 1 },
                               .layout = QV_LAYOUT_CHANNELS_LAST,
                               .dtype = QV_F32 };
    return qv_conv3d_create(ctx, &d, &(qv_conv3d_weights){ .weight = weight }, NULL, out, err);
}

/* A job's results, in whole pages, so that the convolution's data lie in the device's memory. */
enum { CHUNKS = 2, GRID = 4, TOKEN_ROWS = CHUNKS * GRID * GRID / 4, MOST_HIDDEN = 256 };
struct made {
    float x[N_XY], y[N_XY], tokens[TOKEN_ROWS * MOST_HIDDEN];
};

/* Runs as many chunks at once as possible, and a convolution in place. Every failure must be
 * reported. */
static qv_status
job(const uint8_t *frames, size_t chunk_bytes, struct made *made, qv_error *err)
{
    qv_context *ctx = NULL;
    qv_model *model = NULL;
    qv_plan *plan = NULL;
    qv_conv3d *conv = NULL;
    qv_model_info info = { 0 };
    const qv_plan_options o = { .capacity.patches = (int64_t)GRID * GRID };
    qv_status status = qv_context_open(&metal, &ctx, err);
    if (!status)
        status = qv_model_load(ctx, QV_GOLDEN "/qwen3_vl", NULL, &model, err);
    if (!status)
        qv_model_get_info(model, &info);
    if (!status)
        status = qv_plan_create(model, &o, &plan, err);
    for (size_t i = 0; i < CHUNKS && !status; i++) {
        const qv_item clip = { .data = frames + i * chunk_bytes, .grid_thw = { 1, GRID, GRID } };
        status = qv_plan_push(plan, &clip, 1, err);
    }
    for (int i = 0; i < CHUNKS && !status; i++) {
        qv_tokens out = { .tokens = made->tokens + i * (TOKEN_ROWS / CHUNKS) * info.out_hidden,
                          .capacity = TOKEN_ROWS / CHUNKS };
        status = qv_plan_pull(plan, &out, err);
    }
    if (!status)
        status = open_pointwise(ctx, &conv, err);
    if (!status)
        status = qv_conv3d_run(conv, made->x, made->y, err);
    qv_conv3d_free(&conv);
    qv_plan_free(&plan);
    qv_model_free(&model);
    qv_context_close(&ctx);
    return status;
}

/* How a job ended in which call n fails; with n -1 no call fails. */
enum end { NOTHING_FAILED, ABSORBED, IN_WORDS, WITHOUT_WORDS, OTHER_VALUES };

/* Runs the job in a separate process, because a process compiles its kernels only once. */
static enum end
job_failing(long n, const uint8_t *frames, size_t chunk_bytes, struct made *shared)
{
    int result = -1;
    fflush(stdout);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        qv_error err = { 0 };
        struct made *mine = n < 0 ? shared : (struct made *)(void *)pages(sizeof *mine);
        memcpy(mine->x, shared->x, sizeof mine->x);
        emulator_calls_left = n;
        qv_status status = job(frames, chunk_bytes, mine, &err);
        bool failed = n >= 0 && emulator_calls_left < 0, same = !memcmp(mine, shared, sizeof *mine);
        if (n >= 0)
            free(mine);
        exit(status   ? (*err.text ? IN_WORDS : WITHOUT_WORDS)
             : !same  ? OTHER_VALUES
             : failed ? ABSORBED
                      : NOTHING_FAILED); /* Here a sanitizer looks for leaks. */
    }
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFEXITED(result));
    return WEXITSTATUS(result);
}

/* This comes first, so that its processes find no kernel compiled. */
TEST(every_call_may_fail)
{
    struct tiny t = tiny_open("ref", QV_F32, 1);
    uint8_t *frames = tiny_frames(&t, 2 * CHUNKS, GRID, GRID, 1);
    size_t chunk_bytes = (size_t)(2 * GRID * GRID * t.info.patch_size * t.info.patch_size * 3);
    struct made *made =
        mmap(NULL, sizeof *made, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(made != MAP_FAILED && t.info.out_hidden <= MOST_HIDDEN);
    for (int i = 0; i < N_XY; i++)
        made->x[i] = (float)(i % 7) - 3;
    assert_int_equal(job_failing(-1, frames, chunk_bytes, made), NOTHING_FAILED);
    int n = 0, absorbed = 0;
    enum end end;
    while ((end = job_failing(n, frames, chunk_bytes, made)) != NOTHING_FAILED) {
        if (end != ABSORBED && end != IN_WORDS)
            fail_msg("call %d: %d", n, (int)end);
        absorbed += end == ABSORBED;
        n++;
    }
    assert_true(n > 40);
    /* x and y are copied if they cannot be used in place. */
    assert_int_equal(absorbed, sysconf(_SC_PAGESIZE) == PAGE ? 2 : 0);
    munmap(made, sizeof *made);
}

/* Whole pages are used where they lie, and other memory is copied. The values are the same, and
 * nothing is kept. */
TEST(pages_are_used_in_place)
{
    qv_context *ctx = NULL;
    qv_conv3d *conv = NULL;
    qv_conv3d_info info;
    assert_int_equal(sysconf(_SC_PAGESIZE) % PAGE, 0);
    assert_ok(qv_context_open(&metal, &ctx, ERR));
    assert_ok(open_pointwise(ctx, &conv, ERR));
    qv_conv3d_get_info(conv, &info);
    float *x = pages(info.x_bytes + PAGE), *y = pages(info.y_bytes + PAGE);
    float *odd_x = x + PAGE / sizeof(float) / 2, *odd_y = y + PAGE / sizeof(float) / 2;
    float *expected = test_alloc(info.y_bytes), *values = test_alloc(info.x_bytes);
    assert_true(expected && values);
    for (size_t i = 0; i < info.x_bytes / sizeof(float); i++)
        values[i] = (float)(i % 7) - 3;
    memcpy(odd_x, values, info.x_bytes);
    assert_ok(qv_conv3d_run(conv, odd_x, odd_y, ERR));
    memcpy(expected, odd_y, info.y_bytes);
    memcpy(x, values, info.x_bytes);
    memset(y, 0xff, info.y_bytes);
    assert_ok(qv_conv3d_run(conv, x, y, ERR));
    assert_memory_equal(y, expected, info.y_bytes);
    free(x); /* The backend does not hold either of them any more. */
    free(y);
    qv_conv3d_free(&conv);
    qv_context_close(&ctx);
}

/* ---- work ------------------------------------------------------------------------------------ */

TEST(marks_measure_the_work_between)
{
    enum { N = 4096 };
    const struct qv_backend *be = &qv_backend_metal;
    struct qv_device *dev = NULL;
    struct qv_kernel *kernel = NULL;
    struct qv_memory *x = NULL, *y = NULL;
    size_t scratch;
    double ms = -1;
    struct qv_op op = { .kind = QV_OP_convert };
    op.u.convert = (struct qv_op_convert){ .n = N, .x_dtype = QV_F32, .y_dtype = QV_F32 };
    assert_ok(be->open(&(struct qv_device_options){ 0 }, &dev, ERR));
    assert_ok(be->prepare(dev, &op, 0, &kernel, &scratch, ERR));
    assert_ok(be->alloc(dev, N * sizeof(float), &x, ERR));
    assert_ok(be->alloc(dev, N * sizeof(float), &y, ERR));
    struct qv_call call = { .kernel = kernel, .operands = { { x, 0 }, { y, 0 } } };
    assert_ok(be->run(dev, &call, 1, ERR));
    assert_ok(be->mark(dev, QV_MARK_BEGIN, ERR));
    for (int i = 0; i < 100; i++) /* More than may wait at once. */
        assert_ok(be->run(dev, &call, 1, ERR));
    assert_ok(be->mark(dev, QV_MARK_END, ERR));
    assert_ok(be->wait(dev, QV_MARK_END, ERR));
    assert_ok(be->elapsed(dev, QV_MARK_BEGIN, QV_MARK_END, &ms, ERR));
    assert_true(ms > 0 && ms < 60e3);
    /* There is nothing between the marks. */
    assert_ok(be->mark(dev, QV_MARK_BEGIN, ERR));
    assert_ok(be->mark(dev, QV_MARK_END, ERR));
    assert_ok(be->elapsed(dev, QV_MARK_BEGIN, QV_MARK_END, &ms, ERR));
    assert_true(ms == 0);
    be->free(dev, x);
    be->free(dev, y);
    be->release(dev, kernel);
    be->close(dev);
}

/* ---- long work ------------------------------------------------------------------------------- */

enum { MANY = 600, FIRST_BUFFER_FAILS = 6 };

/* Runs a list of many short calls, of whose command buffers the one that `fails` may fail. */
static qv_status
run_many(int fails, qv_error *err)
{
    enum { N = 64 };
    const struct qv_backend *be = &qv_backend_metal;
    struct qv_device *dev = NULL;
    struct qv_kernel *kernel = NULL;
    struct qv_memory *x = NULL, *y = NULL;
    struct qv_call calls[MANY];
    size_t scratch;
    struct qv_op op = { .kind = QV_OP_convert };
    op.u.convert = (struct qv_op_convert){ .n = N, .x_dtype = QV_F32, .y_dtype = QV_F32 };
    assert_int_equal(be->open(&(struct qv_device_options){ 0 }, &dev, err), QV_OK);
    assert_int_equal(be->prepare(dev, &op, 0, &kernel, &scratch, err), QV_OK);
    assert_int_equal(be->alloc(dev, N * sizeof(float), &x, err), QV_OK);
    assert_int_equal(be->alloc(dev, N * sizeof(float), &y, err), QV_OK);
    for (int i = 0; i < MANY; i++)
        calls[i] = (struct qv_call){ .kernel = kernel, .operands = { { x, 0 }, { y, 0 } } };
    emulator_calls_left = fails;
    qv_status status = be->run(dev, calls, MANY, err);
    assert_int_equal(status, QV_OK);
    assert_int_equal(be->mark(dev, QV_MARK_CHUNK, err), QV_OK);
    status = be->wait(dev, QV_MARK_CHUNK, err);
    emulator_calls_left = -1;
    be->free(dev, x);
    be->free(dev, y);
    be->release(dev, kernel);
    be->close(dev);
    return status;
}

/* The emulator refuses more dispatches in a command buffer. Whichever buffer fails, waiting for the
 * last one reports it. */
TEST(a_long_list_is_several_buffers)
{
    qv_error err = { 0 };
    assert_ok(run_many(-1, ERR));
    for (int buffer = 0; buffer < 3; buffer++) { /* each is made by two calls */
        err.text[0] = 0;
        assert_int_equal(run_many(FIRST_BUFFER_FAILS + buffer, &err), QV_EBACKEND);
        assert_non_null(strstr(err.text, "the GPU gave up"));
    }
}

/* The emulator refuses command buffers beyond a limit of FLOPs. It runs one threadgroup of each
 * dispatch. */
TEST(long_attention_is_several_buffers)
{
    static const char text[] =
        "attention rows=8192 segments=1 segment_rows=8192 heads=64 head_dim=64 scale=1 dtype=bf16";
    const size_t bytes = (size_t)8192 * 64 * 64 * 2;
    const struct qv_backend *be = &qv_backend_metal;
    struct qv_device *dev = NULL;
    struct qv_kernel *kernel = NULL;
    struct qv_memory *x = NULL, *y = NULL;
    struct qv_op op;
    size_t scratch;
    assert_ok(be->open(&(struct qv_device_options){ 0 }, &dev, ERR));
    assert_ok(qv_op_parse(text, &op, ERR) || be->prepare(dev, &op, 0, &kernel, &scratch, ERR) ||
              be->alloc(dev, bytes, &x, ERR) || be->alloc(dev, bytes, &y, ERR));
    const struct qv_call call = {
        .kernel = kernel, .operands = { { NULL, 0 }, { x, 0 }, { x, 0 }, { x, 0 }, { y, 0 } }
    };
    setenv("QV_EMULATOR_CHECKS", "0", 1);
    emulator_samples = true;
    assert_ok(be->run(dev, &call, 1, ERR) || be->sync(dev, ERR));
    emulator_samples = false;
    unsetenv("QV_EMULATOR_CHECKS");
    be->free(dev, x);
    be->free(dev, y);
    be->release(dev, kernel);
    be->close(dev);
}

/* A launch's pieces have each block of each head once, and none of them takes long unless it is one
 * block. */
TEST(pieces_are_the_whole)
{
    static const struct {
        const char *op;
        bool naive;
        uint32_t least, most; /* pieces */
    } cases[] = {
        { "attention rows=760 segments=1 segment_rows=760 heads=16 head_dim=64 scale=1 dtype=f32",
          false, 1, 1 },
        /* whole heads: 1.1 TFLOP in all */
        { "attention rows=8192 segments=1 segment_rows=8192 heads=64 head_dim=64 scale=1 dtype=f32",
          false, 5, 5 },
        /* blocks of a head: 1.1 TFLOP in each */
        { "attention rows=65536 segments=1 segment_rows=65536 heads=16 head_dim=64 scale=1 "
          "dtype=f32",
          false, 16 * 5, 16 * 6 },
        { "attention rows=65536 segments=9 heads=16 head_dim=80 scale=1 dtype=f32", false, 16 * 5,
          16 * 8 }, /* one of the segments may have all rows */
        { "attention rows=65536 segments=900 longest=64 heads=16 head_dim=80 scale=1 dtype=f32",
          false, 1, 8 },
        { "attention rows=8192 segments=1 segment_rows=8192 heads=2 head_dim=40 scale=1 dtype=f32",
          true, 2, 4 },
        { "gemm m=65536 n=4096 k=1024 alpha=1 dtype=f32", false, 1, 1 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct launch_metal whole = { 0 };
        struct qv_op op;
        assert_ok(qv_op_parse(cases[i].op, &op, ERR) ||
                  qv_launch_metal(&op, 0, cases[i].naive, &whole, ERR));
        const uint32_t n = qv_launch_pieces_metal(&whole);
        const size_t all = (size_t)whole.groups[0] * whole.groups[1];
        unsigned char *seen = test_ends(calloc(all, 1), free);
        double seconds = 0;
        if (n < cases[i].least || n > cases[i].most)
            fail_msg("%s: %u pieces", cases[i].op, n);
        for (uint32_t p = 0; p < n; p++) {
            struct launch_metal piece;
            qv_launch_piece_metal(&whole, p, &piece);
            const struct attention_args *a = &piece.args.attention;
            for (uint32_t head = 0; whole.is_attention && head < piece.groups[1]; head++)
                for (uint32_t block = 0; block < piece.groups[0]; block++)
                    seen[(a->first_head + head) * whole.groups[0] + a->first_block + block]++;
            assert_true(!whole.is_attention || piece.groups[0] == 1 || piece.seconds <= 0.25001);
            seconds += piece.seconds;
        }
        for (size_t j = 0; whole.is_attention && j < all; j++)
            assert_int_equal(seen[j], 1);
        assert_true(seconds > 0.999 * whole.seconds && seconds < 1.001 * whole.seconds);
    }
}

/* Runs pieces of a launch on the emulator: those of one that takes so long. */
static void
run_pieces(const struct launch_metal *launch, double seconds, const struct emulator_buffer *buffers)
{
    struct launch_metal whole = *launch, piece;
    char error[600];
    whole.seconds = seconds;
    for (uint32_t i = 0; i < qv_launch_pieces_metal(&whole); i++) {
        qv_launch_piece_metal(&whole, i, &piece);
        struct emulator_dispatch d = { .kernel = emulator_find("float", piece.function),
                                       .threadgroup_bytes = piece.threadgroup_bytes,
                                       .threads = { piece.threads, 1, 1 } };
        assert_non_null(d.kernel);
        memcpy(d.groups, piece.groups, sizeof d.groups);
        memcpy(d.constants, piece.constants, sizeof piece.constants);
        for (int c = 0; c < CONSTANTS; c++)
            d.has_constant[c] = true;
        memcpy(d.buffers + 1, buffers, 5 * sizeof *buffers);
        d.buffers[0] =
            (struct emulator_buffer){ .base = (char *)&piece.args, .bytes = sizeof piece.args };
        if (!emulator_run(&d, error, sizeof error))
            fail_msg("%s", error);
    }
}

TEST(pieces_give_the_same_bits)
{
    enum { ROWS = 72, HEADS = 3, MOST_DIM = 64, MOST = ROWS * HEADS * MOST_DIM };
    static const char *const ops[] = {
        "attention rows=72 segments=2 segment_rows=36 heads=3 head_dim=64 scale=0.125 dtype=f32",
        "attention rows=72 segments=3 heads=3 head_dim=64 scale=0.125 dtype=f32",
        "attention rows=72 segments=2 segment_rows=36 heads=3 head_dim=20 scale=0.2 dtype=f32",
    };
    static int32_t list[16] = { 0, 10, 44, 72, 10, 34, 28, 0 };
    static float in[3][MOST], out[2][MOST];
    for (int i = 0; i < MOST; i++)
        for (int j = 0; j < 3; j++)
            in[j][i] = (float)((i * 37 + j * 11) % 101) / 50 - 1;
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        struct launch_metal launch = { 0 };
        struct qv_op op;
        assert_ok(qv_op_parse(ops[i], &op, ERR) || qv_launch_metal(&op, 0, false, &launch, ERR));
        /* whole; a head each; a block each */
        const double seconds[] = { 0.1, 0.7, 100 };
        for (int cut = 0; cut < 3; cut++) {
            float *y = out[cut > 0];
            const struct emulator_buffer buffers[] = {
                { .base = (char *)list, .bytes = sizeof list },
                { .base = (char *)in[0], .bytes = sizeof in[0] },
                { .base = (char *)in[1], .bytes = sizeof in[1] },
                { .base = (char *)in[2], .bytes = sizeof in[2] },
                { .base = (char *)y, .bytes = sizeof out[0] },
            };
            memset(y, 0xff, sizeof out[0]);
            run_pieces(&launch, seconds[cut], buffers);
            assert_memory_equal(out[0], y, sizeof out[0]);
        }
    }
}

/* An operation names its kernel, with the reason if it is a simple one. */
TEST(kernels_have_names)
{
    static const struct {
        bool naive;
        const char *op, *said;
    } cases[] = {
        { false, "gemm m=64 n=64 k=64 alpha=1 dtype=f32", "gemm_" },
        { true, "gemm m=64 n=64 k=64 alpha=1 dtype=f32", "gemm_naive, naive: asked for" },
        { false, "attention rows=8 segments=2 heads=1 head_dim=64 scale=1 dtype=f32",
          "attention_64" },
        { false, "attention rows=8 segments=2 heads=1 head_dim=40 scale=1 dtype=f32",
          "attention_naive, naive: only heads of 64, 72 and 80 have tiles" },
        { false, "rope rows=4 heads=1 head_dim=16 positions=4 dtype=f32", "rope" },
        { false, "rope rows=4 heads=1 head_dim=12 positions=4 dtype=f32",
          "rope, naive: rows are not whole vectors" },
        { true, "rope rows=4 heads=1 head_dim=16 positions=4 dtype=f32", "rope, naive: asked for" },
        { false, "norm rows=4 cols=64 eps=1e-6 dtype=f32", "norm" },
        { false, "norm rows=4 cols=63 eps=1e-6 dtype=f32", "norm_naive, naive: rows are no" },
    };
    const struct qv_backend *be = &qv_backend_metal;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct qv_device *dev = NULL;
        struct qv_kernel *kernel = NULL;
        struct qv_op op;
        size_t scratch, n = strlen(cases[i].said);
        char text[QV_KERNEL_BYTES];
        const struct qv_device_options o = { .naive = cases[i].naive ? UINT32_MAX : 0 };
        assert_ok(be->open(&o, &dev, ERR));
        assert_ok(qv_op_parse(cases[i].op, &op, ERR) ||
                  be->prepare(dev, &op, 0, &kernel, &scratch, ERR));
        be->describe(kernel, text, sizeof text);
        if (strncmp(text, cases[i].said, n) ||
            (!strstr(cases[i].said, "naive") && strstr(text, "naive")))
            fail_msg("%s: \"%s\", not \"%s\"", cases[i].op, text, cases[i].said);
        be->release(dev, kernel);
        be->close(dev);
    }
}

/* Rows that a chunk leaves empty keep what they held before. The emulator checks where they read:
 * the last rows of a tall grid in a chunk whose grid is wide, and whatever a larger capacity left
 * there. */
TEST(rows_beyond_the_fill_read_what_is_there)
{
    const struct {
        int64_t rows, grid_thw[3];
    } chunks[] = { { 256, { 1, 128, 2 } }, { 256, { 1, 2, 124 } }, { 32, { 1, 2, 2 } } };
    struct tiny t = tiny_open("metal", QV_F32, 0);
    uint8_t *frames = tiny_frames(&t, 2, 128, 2, 1);
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        const qv_plan_options o = { .capacity.patches = chunks[i].rows };
        qv_item clip = { .data = frames };
        memcpy(clip.grid_thw, chunks[i].grid_thw, sizeof clip.grid_thw);
        size_t bytes;
        qv_plan *plan = tiny_plan(&t, &o);
        tiny_chunk(&t, plan, &clip, 1, QV_F32, &bytes);
        test_end(plan);
    }
}

/* ---- failures -------------------------------------------------------------------------------- */

TEST(without_bfloat_f32_says_so)
{
    qv_context *ctx = NULL;
    qv_model *model = NULL;
    qv_context_info info;
    qv_error err = { 0 };
    assert_int_equal(setenv("QV_EMULATED_FAMILY", "7", 1), 0);
    assert_ok(qv_context_open(&metal, &ctx, ERR));
    qv_context_get_info(ctx, &info);
    assert_int_equal(info.dtype, QV_F32);
    assert_non_null(strstr(info.dtype_reason, "no bfloat"));
    qv_model_options o = { .dtype = QV_BF16 };
    qv_plan *plan = NULL;
    const qv_plan_options p = { .capacity.patches = 16 };
    qv_status status = qv_model_load(ctx, QV_GOLDEN "/qwen3_vl", &o, &model, &err);
    if (!status)
        status = qv_plan_create(model, &p, &plan, &err);
    assert_int_equal(status, QV_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "no bfloat"));
    qv_plan_free(&plan);
    qv_model_free(&model);
    qv_context_close(&ctx);
    unsetenv("QV_EMULATED_FAMILY");
}
