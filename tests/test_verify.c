/* SPDX-License-Identifier: MIT */
/*
 * Tests qwenvit verify on the golden towers: every check passes, and each planted fault is caught
 * at the right layer by the expected check. A fault is a backend's table, wrapped in one that packs
 * or computes something else.
 */

#include "test.h"

#include <jansson.h>
#include <math.h>

#include "backends.h"
#include "towers/read_config.h"
#include "dtype.h"
#include "model/plan.h"
#include "mmproj_file.h"
#include "tempdir.h"
#include "tiny.h"
#include "verify/verify.h"

#define QWEN3 QV_GOLDEN "/qwen3_vl"

/* Its sizes, by which the test tells operations apart. */
enum { HIDDEN = 32, ROW = 1536, PATCH = 16 };

/* ---- faults ---------------------------------------------------------------------------------- */

typedef void spoil_pack(char *row, size_t element, int64_t channel);
typedef void spoil_run(const struct qv_op *op, const struct qv_call *call);

enum way { ITSELF, AGAINST_GOLDEN };
enum dtypes { F32 = 1, BF16 = 2, BOTH = F32 | BF16 };

struct fault {
    const char *name;
    enum way way;
    enum dtypes dtypes;
    const char *check, *layer; /* The layer of the first row that must fail. */
    spoil_pack *pack;          /* Spoils rows of the patch weight. */
    enum qv_op_kind kind;      /* The kind of operations that `before` and `after` see. */
    spoil_run *before, *after;
    const char *deepstack;  /* The wrong value of the key in config.json. */
    const char *image_mean; /* The wrong value of the key in preprocessor_config.json; the input is
                             * an image. */
    bool exchanges;         /* Exchanges the two DeepStack outputs when they are pulled. */
};

/* The wrapped table, and which operation each kernel belongs to. */
static struct {
    const struct qv_backend *base;
    const struct fault *fault;
    struct qv_backend table;
    struct {
        const struct qv_kernel *kernel;
        struct qv_op op;
    } kernels[64];
    int n_kernels, runs;
    bool waited; /* A chunk was waited for, so that what is downloaded is its outputs. */
} now;

static void
exchange(char *a, char *b, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        char t = a[i];
        a[i] = b[i];
        b[i] = t;
    }
}

static void
transpose_height_and_width(char *row, size_t element, int64_t channel)
{
    for (int plane = 0; plane < ROW / PATCH / PATCH; plane++)
        for (int y = 0; y < PATCH; y++)
            for (int x = 0; x < y; x++) {
                size_t first = (size_t)plane * PATCH * PATCH;
                exchange(row + (first + (size_t)(y * PATCH + x)) * element,
                         row + (first + (size_t)(x * PATCH + y)) * element, element);
            }
}

/* Changes one value of the patch weight, as in a checkpoint that was trained further or was
 * damaged, by what moves patch_embed's worst row by a little more than the bar of bf16, 0.008. With
 * a third of it the change is lost in the rounding and may pass. */
static void
enlarge_one_weight(char *row, size_t element, int64_t channel)
{
    const qv_dtype dtype = element == sizeof(float) ? QV_F32 : QV_BF16;
    if (channel == 5)
        qv_store(row, dtype, 7, qv_load(row, dtype, 7) + 0.03);
}

/* Exchanges the coordinates by which rows are rotated. */
static void
swap_row_and_column(const struct qv_op *op, const struct qv_call *call)
{
    int32_t(*coords)[4] = qv_host_pointer(call->operands[2]);
    for (int64_t i = 0; i < op->u.rope.rows; i++)
        exchange((char *)&coords[i][2], (char *)&coords[i][3], sizeof coords[i][2]);
}

/* Normalises the bytes of an image as those of a clip, whose means are 1/2. */
static void
normalise_as_a_clip(const struct qv_op *op, const struct qv_call *call)
{
    float(*norms)[6] = qv_host_pointer(call->operands[2]);
    for (int i = 0; i < 6; i++)
        norms[0][i] = i < 3 ? 2.0f / 255 : -1;
}

/* Makes the bytes of frames sixteen brighter than they are. */
static void
brighten(const struct qv_op *op, const struct qv_call *call)
{
    float(*norms)[6] = qv_host_pointer(call->operands[2]);
    for (int i = 0; i < 3; i++)
        norms[0][3 + i] += 16 * norms[0][i];
}

static float
bf16(float x)
{
    return qv_bf16_to_f32(qv_f32_to_bf16(x));
}

/* Computes qkv again with sums in bf16. It is the only gemm that is three times as wide as deep.
 * ref packs weights as they are. */
static void
accumulate_in_bf16(const struct qv_op *op, const struct qv_call *call)
{
    const struct qv_op_gemm *g = &op->u.gemm;
    const qv_bf16 *x = qv_host_pointer(call->operands[0]), *w = qv_host_pointer(call->operands[1]);
    const float *bias = qv_host_pointer(call->operands[2]);
    qv_bf16 *y = qv_host_pointer(call->operands[4]);
    if (g->x_dtype != QV_BF16 || g->n != 3 * g->k)
        return;
    for (int64_t i = 0; i < g->m * g->n; i++) {
        float sum = 0;
        for (int64_t k = 0; k < g->k; k++)
            sum = bf16(sum + qv_bf16_to_f32(x[i / g->n * g->k + k]) *
                                 qv_bf16_to_f32(w[i % g->n * g->k + k]));
        y[i] = qv_f32_to_bf16(sum + bias[i % g->n]);
    }
}

/* Acts from the second run of a tower with three blocks on. */
static void
flip_a_bit_later(const struct qv_op *op, const struct qv_call *call)
{
    unsigned char *qkv = qv_host_pointer(call->operands[qv_op_output(op)]);
    if (now.runs++ >= 3)
        qkv[1] ^= 1;
}

static void
write_nan(const struct qv_op *op, const struct qv_call *call)
{
    void *y = qv_host_pointer(call->operands[qv_op_output(op)]);
    qv_store(y, op->u.attention.y_dtype, 0, NAN);
}

static const char unequal_means[] = "[0.48, 0.46, 0.41]";

static const struct fault faults[] = {
    { "h and w of the patch weight exchanged", ITSELF, BOTH, "definition", "patch_embed",
      .pack = transpose_height_and_width },
    { "one bit in a later run", ITSELF, F32, "repeat", "blocks.0", .kind = QV_OP_rope,
      .after = flip_a_bit_later },
    { "gemm that sums in bf16", ITSELF, BF16, "rounding", "blocks.0", .kind = QV_OP_gemm,
      .after = accumulate_in_bf16 },
    { "one NaN", AGAINST_GOLDEN, BF16, "against", "blocks.0", .kind = QV_OP_attention,
      .after = write_nan },
    { "one NaN", AGAINST_GOLDEN, F32, "against", "blocks.0", .kind = QV_OP_attention,
      .after = write_nan },
    { "rotary halves exchanged", AGAINST_GOLDEN, BOTH, "against", "blocks.0", .kind = QV_OP_rope,
      .before = swap_row_and_column, .after = swap_row_and_column },
    { "an image normalised as a clip", ITSELF, BOTH, "definition", "patch_embed",
      .kind = QV_OP_patchify, .before = normalise_as_a_clip, .image_mean = unequal_means },
    { "frames too bright", AGAINST_GOLDEN, BOTH, "against", "patch_embed", .kind = QV_OP_patchify,
      .before = brighten },
    { "DeepStack of another block", AGAINST_GOLDEN, BOTH, "against", "deepstack_merger_list.0",
      .deepstack = "[1, 2]" },
    { "one weight slightly too large", AGAINST_GOLDEN, BOTH, "against", "patch_embed",
      .pack = enlarge_one_weight },
    { "DeepStack outputs exchanged", ITSELF, F32, "pulled", "deepstack.0", .exchanges = true },
    { "DeepStack outputs exchanged", ITSELF, BF16, "rounding", "deepstack.0", .exchanges = true },
    { "DeepStack outputs exchanged", AGAINST_GOLDEN, BOTH, "against", "deepstack.0",
      .exchanges = true },
};

/* ---- the wrapped verbs ----------------------------------------------------------------------- */

static qv_status
lay_out_spoilt(struct qv_device *dev, const struct qv_matrix *matrix, int64_t row0, int64_t rows,
               const void *src, struct qv_buffer dst, qv_error *err)
{
    if (!now.fault->pack || matrix->n != HIDDEN || matrix->k != ROW)
        return now.base->lay_out(dev, matrix, row0, rows, src, dst, err);
    size_t element = qv_dtype_bytes(matrix->dtype), bytes = (size_t)rows * ROW * element;
    char *copy = test_alloc(bytes);
    memcpy(copy, src, bytes);
    for (int64_t i = 0; i < rows; i++)
        now.fault->pack(copy + (size_t)i * ROW * element, element, row0 + i);
    qv_status status = now.base->lay_out(dev, matrix, row0, rows, copy, dst, err);
    return status;
}

static qv_status
prepare_known(struct qv_device *dev, const struct qv_op *op, int choice, struct qv_kernel **out,
              size_t *scratch_bytes, qv_error *err)
{
    qv_status status = now.base->prepare(dev, op, choice, out, scratch_bytes, err);
    if (!status) {
        assert_true(now.n_kernels < (int)(sizeof now.kernels / sizeof *now.kernels));
        now.kernels[now.n_kernels].kernel = *out;
        now.kernels[now.n_kernels++].op = *op;
    }
    return status;
}

static const struct qv_op *
op_of(const struct qv_kernel *kernel)
{
    for (int i = 0; i < now.n_kernels; i++)
        if (now.kernels[i].kernel == kernel)
            return &now.kernels[i].op;
    fail_msg("a kernel that was never prepared");
    return NULL;
}

static qv_status
run_spoilt(struct qv_device *dev, const struct qv_call *calls, size_t n, qv_error *err)
{
    qv_status status = QV_OK;
    now.waited = false;
    for (size_t i = 0; i < n && !status; i++) {
        const struct qv_op *op = op_of(calls[i].kernel);
        bool hit = op->kind == now.fault->kind;
        if (hit && now.fault->before)
            now.fault->before(op, &calls[i]);
        status = now.base->run(dev, &calls[i], 1, err);
        if (!status)
            status = now.base->sync(dev, err);
        if (!status && hit && now.fault->after)
            now.fault->after(op, &calls[i]);
    }
    return status;
}

static qv_status
wait_known(struct qv_device *dev, int mark, qv_error *err)
{
    now.waited = true;
    return now.base->wait(dev, mark, err);
}

/* After the wait for a chunk come its tokens and DeepStack's outputs. */
static qv_status
download_spoilt(struct qv_device *dev, const struct qv_download *parts, size_t n, qv_error *err)
{
    qv_status status = now.base->download(dev, parts, n, err);
    if (!status && now.fault->exchanges && now.waited && n > 2) /* DeepStack's come first */
        exchange(parts[0].dst, parts[1].dst, parts[1].bytes);
    return status;
}

static qv_context *
open_backend(const char *backend)
{
    return tiny_context_with(&(qv_context_options){ .backend = backend, .threads = 2 });
}

static void
make_sound(void *ctx)
{
    ((qv_context *)ctx)->backend = ((qv_context *)ctx)->dev->backend = now.base;
}

static qv_context *
open_faulty(const struct fault *fault)
{
    qv_context *ctx = open_backend("ref");
    memset(&now, 0, sizeof now);
    now.fault = fault;
    now.base = ctx->backend;
    now.table = *ctx->backend;
    now.table.lay_out = lay_out_spoilt;
    now.table.prepare = prepare_known;
    now.table.run = run_spoilt;
    now.table.wait = wait_known;
    now.table.download = download_spoilt;
    ctx->backend = ctx->dev->backend = &now.table;
    return test_ends(ctx, make_sound);
}

/* ---- inputs ---------------------------------------------------------------------------------- */

static struct verify_input
frames_of(const char *dir, const int64_t thw[3], bool still, uint32_t seed)
{
    struct qv_config c;
    assert_ok(qv_config_read(dir, &c, ERR));
    size_t frames = (size_t)(still ? 1 : thw[0] * c.temporal);
    size_t bytes = frames * (size_t)(thw[1] * thw[2] * c.patch * c.patch * c.in_channels);
    struct verify_input input = { .still = still, .n = 1 };
    input.thw = malloc(sizeof *input.thw);
    input.data = malloc(bytes);
    assert_true(input.thw && input.data);
    memcpy(input.thw[0], thw, sizeof *input.thw);
    for (size_t i = 0; i < bytes; i++)
        ((uint8_t *)input.data)[i] = (uint8_t)(test_random(&seed) >> 24);
    return input;
}

/* Copies the files of a golden checkpoint and changes the value of a key, or of a key of `section`,
 * in one of them. */
static const char *
with_value(const char *changed, const char *section, const char *key, const char *value)
{
    static const char *const files[] = { "config.json", "model.safetensors",
                                         "preprocessor_config.json",
                                         "video_preprocessor_config.json" };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char from[600];
        snprintf(from, sizeof from, QWEN3 "/%s", files[i]);
        unlink(temp_path(files[i]));
        if (strcmp(files[i], changed)) {
            assert_int_equal(symlink(from, temp_path(files[i])), 0);
            continue;
        }
        json_t *config = json_load_file(from, 0, NULL), *new_value = json_loads(value, 0, NULL);
        assert_true(config && new_value);
        json_object_set_new(section ? json_object_get(config, section) : config, key, new_value);
        assert_int_equal(json_dump_file(config, temp_path(changed), 0), 0);
        json_decref(config);
    }
    return tempdir;
}

/* ---- faults are found ------------------------------------------------------------------------ */

static const int64_t usual_grid[3] = { 1, 12, 16 };

static void
free_table(void *table)
{
    verify_table_free(table);
    free(table);
}

/* Verifies a model, on a file's pixels or, without a file, on a clip or an image of this grid. */
static const struct verify_table *
verified(const struct verify_job *job, const char *file, const int64_t thw[3], bool still,
         uint32_t seed)
{
    struct verify_table *table = test_ends(calloc(1, sizeof *table), free_table);
    struct verify_input input = { 0 };
    qv_error err = { 0 };
    if (!file)
        input = frames_of(job->dir, thw, still, seed);
    if (file ? verify_against_file(job, file, &input, table, &err)
             : verify_model(job, &input, table, &err))
        fail_msg("%s: %s", job->dir, err.text);
    verify_input_free(&input);
    return table;
}

static void
try_fault(const struct fault *f, qv_dtype dtype)
{
    qv_context *ctx = open_faulty(f);
    struct verify_job job = { .ctx = ctx, .dir = QWEN3, .dtype = dtype };
    if (f->deepstack)
        job.dir =
            with_value("config.json", "vision_config", "deepstack_visual_indexes", f->deepstack);
    if (f->image_mean)
        job.dir = with_value("preprocessor_config.json", NULL, "image_mean", f->image_mean);
    const char *file = f->way == ITSELF ? NULL : QWEN3 "/expected.safetensors";
    const struct verify_row *bad =
        verify_first_failure(verified(&job, file, usual_grid, f->image_mean != NULL, 7));
    if (!bad)
        fail_msg("%s in %s: not found", f->name, qv_dtype_name(dtype));
    printf("%-38s %-4s %s: %s: %s\n", f->name, qv_dtype_name(dtype), bad->check, bad->name,
           bad->why);
    assert_string_equal(bad->check, f->check);
    assert_string_equal(bad->name, f->layer);
    test_end(ctx); /* which makes it sound */
}

TEST(planted_faults_are_found)
{
    EACH (f, faults) {
        if (f->dtypes & F32)
            try_fault(f, QV_F32);
        if (f->dtypes & BF16)
            try_fault(f, QV_BF16);
    }
}

/* ---- honest towers pass ---------------------------------------------------------------------- */

static const char *const families[] = { QWEN3, QV_GOLDEN "/qwen3_vl_moe", QV_GOLDEN "/qwen3_5",
                                        QV_GOLDEN "/qwen4_exp", QV_GOLDEN "/glm4v" };
enum { N_FAMILIES = sizeof families / sizeof *families };

/* Checks that there are at least `least` rows and that none fails. There are fewer if the backend
 * has no bf16, which is then left out. */
static void
expect_green(const char *what, const char *backend, const struct verify_table *t, size_t least)
{
    const struct verify_row *bad = verify_first_failure(t);
    if (bad)
        fail_msg("%s on %s: %s: %s in %s: %s", what, backend, bad->check, bad->name,
                 qv_dtype_name(bad->dtype), bad->why);
    if (t->n < (dtype_is_here(backend, QV_BF16) ? least : least / 3))
        fail_msg("%s on %s: %zu rows", what, backend, t->n);
}

TEST(golden_towers_pass)
{
    static const int64_t clip_grid[3] = { 2, 12, 16 };
    EACH_BACKEND (b)
        EACH (dir, families) {
            const struct verify_job job = { .ctx = open_backend(*b), .dir = *dir };
            char file[600];
            snprintf(file, sizeof file, "%s/expected.safetensors", *dir);
            expect_green(*dir, *b, verified(&job, NULL, clip_grid, false, 7), 10);
            expect_green(*dir, *b, verified(&job, NULL, usual_grid, true, 7), 10);
            expect_green(file, *b, verified(&job, file, NULL, false, 0), 8);
        }
}

TEST(an_image_of_other_means_passes)
{
    const struct verify_job job = { .ctx = open_backend("ref"),
                                    .dir = with_value("preprocessor_config.json", NULL,
                                                      "image_mean", unequal_means) };
    expect_green("other means", "ref", verified(&job, NULL, usual_grid, true, 7), 10);
}

TEST(backends_agree)
{
    int last = N_TEST_BACKENDS - 1;
    while (!backend_is_here(test_backends[last]))
        last--;
    qv_context *ctx = open_backend(test_backends[last]), *other = open_backend("ref");
    for (int i = 0; i < 2 * N_FAMILIES; i++) {
        struct verify_table table = { 0 };
        const struct verify_job job = { .ctx = ctx, .dir = families[i / 2] };
        struct verify_input input = frames_of(job.dir, usual_grid, i % 2, 7);
        assert_ok(verify_against_backend(&job, other, &input, &table, ERR));
        expect_green(job.dir, test_backends[last], &table, 8);
        verify_table_free(&table);
        verify_input_free(&input);
    }
}

/* Inputs of few rows, where the scatter of an honest tower makes up most of a bar. These are the
 * farthest of 150 seeds: up to 2.1 times the ideal tower's worst row and 1.5 times its mean. */
TEST(small_inputs_pass)
{
    static const int64_t grids[][3] = { { 1, 2, 2 }, { 1, 4, 4 } };
    static const uint32_t seeds[] = { 26, 71, 80, 93, 95, 102 };
    qv_context *ctx = open_backend("ref");
    EACH (seed, seeds)
        EACH (grid, grids)
            EACH (dir, families) {
                const struct verify_job job = { .ctx = ctx, .dir = *dir, .dtype = QV_BF16 };
                expect_green(*dir, "ref", verified(&job, NULL, *grid, false, *seed), 8);
            }
}

/* ---- distances ------------------------------------------------------------------------------- */

static struct verify_row
judged(const float *x, const float *truth, int64_t rows, int64_t cols)
{
    struct verify_table t = { 0 };
    struct verify_row *row = verify_add(&t, "against", "blocks.0", QV_F32, NULL);
    assert_non_null(row);
    assert_ok(verify_compare(x, truth, rows, cols, &row->is, ERR));
    row->bar_worst = 2e-5;
    verify_judge(row);
    struct verify_row copy = *row;
    verify_table_free(&t);
    return copy;
}

TEST(distances_look_at_the_worst_row)
{
    float truth[64] = { 0 }, x[64];
    for (int i = 0; i < 64; i++)
        truth[i] = i < 2 ? 0 : (float)(1 + i % 3); /* The first row is zero. */
    memcpy(x, truth, sizeof x);
    struct verify_row r = judged(x, truth, 32, 2);
    assert_true(r.ok && r.is.worst == 0 && r.is.worst_cosine > 1 - 1e-12);
    x[31] += 0.1f; /* One value of one row. */
    r = judged(x, truth, 32, 2);
    assert_true(!r.ok && r.is.worst > 0.01 && r.is.mean < 0.01);
    for (int i = 0; i < 64; i += 21) { /* A NaN anywhere fails, and so does an infinity in the
                                        * truth. */
        memcpy(x, truth, sizeof x);
        x[i] = NAN;
        assert_false(judged(x, truth, 32, 2).ok);
        x[i] = INFINITY;
        assert_false(judged(x, x, 32, 2).ok);
    }
    memcpy(x, truth, sizeof x);
    x[1] = 1e-30f; /* Where the truth is zero, no other value is near. */
    r = judged(x, truth, 32, 2);
    assert_true(!r.ok && isinf(r.is.worst));
}

/* A row without a bar has no verdict, but that values which are not finite fail; any one bar makes
 * one, which NaN does not pass. */
TEST(only_bars_give_a_verdict)
{
    struct verify_table t = { 0 };
    struct verify_row *row = verify_add(&t, "against", "tokens", QV_F32, NULL);
    row->is = (struct verify_distance){ .worst = 1e9, .mean = 1e9 };
    verify_judge(row);
    assert_true(row->ok && !verify_is_judged(row));
    row->is.worst = NAN;
    verify_judge(row);
    assert_false(row->ok);
    for (int i = 0; i < 4; i++) {
        row = verify_add(&t, "against", "tokens", QV_F32, NULL);
        double *const bars[] = { &row->bar_worst, &row->bar_mean, &row->bar_abs, &row->bar_cosine };
        double *const values[] = { &row->is.worst, &row->is.mean, &row->is.max_abs,
                                   &row->is.worst_cosine };
        row->is = (struct verify_distance){ .worst_cosine = 1, .pooled_cosine = 1 };
        *bars[i] = 0.5;
        verify_judge(row);
        assert_true(row->ok && verify_is_judged(row));
        *values[i] = NAN;
        verify_judge(row);
        assert_false(row->ok);
    }
    verify_table_free(&t);
}

TEST_EACH(tempdir_make, tempdir_remove);
