/* SPDX-License-Identifier: MIT */
/* Options of contexts, models and plans, and qv_encode's grids, on the smallest golden model. */
#define _GNU_SOURCE
#include "fuzz.h"

static const char model_folder[] = QV_GOLDEN "/qwen3_vl_moe";
enum { ROW = 3 * 2 * 4 * 4, MERGE_AREA = 4, OUT = 20, DEEPSTACK = 1, MOST_PATCHES = 16 };

static qv_context *ctx;
static qv_model *described, *model;

static void
set_up(void)
{
    qv_error err;
    const qv_model_options describe = { .describe = true };
    FUZZ_CHECK(!qv_context_open(&(qv_context_options){ .backend = "ref" }, &ctx, &err));
    FUZZ_CHECK(!qv_model_load(ctx, model_folder, &describe, &described, &err));
    FUZZ_CHECK(!qv_model_load(ctx, model_folder, NULL, &model, &err));
}

/* Printable: error texts quote what the caller gives as it stands. */
static const char *
read_text(struct fuzz_bytes *b, char text[24])
{
    size_t n = fuzz_byte(b) % 24;
    for (size_t i = 0; i < n; i++)
        text[i] = (char)(0x20 + fuzz_byte(b) % 95);
    text[n] = 0;
    return text;
}

/* ---- contexts and models --------------------------------------------------------------------- */

static void
try_context(struct fuzz_bytes *b)
{
    static const char *const plain[] = { NULL, "all", "gemm", "gemm,norm", ",", "gemm,,norm" };
    qv_error err;
    qv_context *made = NULL;
    char name[24], kinds[24], path[24];
    qv_context_options o = { .device = fuzz_byte(b) > 200 ? (int)fuzz_int(b) : 0,
                             .threads = (int)fuzz_int(b),
                             .tune = fuzz_flag(b),
                             .tf32 = fuzz_flag(b) };
    o.backend = fuzz_flag(b) ? "ref" : read_text(b, name);
    /* another backend's threads and pools outlive an input */
    if (!strcmp(o.backend, "auto") || !strcmp(o.backend, "cpu") || !strcmp(o.backend, "cuda") ||
        !strcmp(o.backend, "metal"))
        return;
    const uint8_t which = fuzz_byte(b) % 8;
    o.plain = which < 6 ? plain[which] : read_text(b, kinds);
    if (fuzz_flag(b)) /* a name in no folder, or nothing that is there */
        o.tune_file = fuzz_path(strchr(read_text(b, path), '/') ? "none/tune.json" : "none.json");
    fuzz_reserved(b, o.reserved, sizeof o.reserved / sizeof *o.reserved);
    if (fuzz_failed(qv_context_open(&o, &made, &err), &err)) {
        FUZZ_CHECK(!made);
        return;
    }
    qv_context_info info;
    qv_context_get_info(made, &info);
    FUZZ_CHECK(!strcmp(info.backend, "ref") && *info.device);
    qv_context_close(&made);
    FUZZ_CHECK(!made);
}

static void
try_model(struct fuzz_bytes *b)
{
    qv_error err;
    qv_model *made = NULL;
    const bool whole = fuzz_byte(b) == 7; /* reading all weights takes long */
    qv_model_options o = { .dtype = (qv_dtype)fuzz_enum(b, QV_F16 + 1), .describe = !whole };
    fuzz_reserved(b, o.reserved, sizeof o.reserved / sizeof *o.reserved);
    if (fuzz_failed(qv_model_load(ctx, model_folder, &o, &made, &err), &err)) {
        FUZZ_CHECK(!made);
        return;
    }
    qv_model_info info;
    qv_model_get_info(made, &info);
    FUZZ_CHECK(info.row_dim == ROW && info.out_hidden == OUT && info.n_deepstack == DEEPSTACK);
    FUZZ_CHECK(info.dtype == QV_F32 || info.dtype == QV_BF16);
    qv_model_free(&made);
}

/* ---- plans ----------------------------------------------------------------------------------- */

static void
see_layer(void *user, const char *name, const float *rows, int64_t n_rows, int64_t n_cols)
{
    float sum = 0;
    for (int64_t i = 0; i < n_rows * n_cols; i++)
        sum += rows[i];
    *(float *)user += *name ? sum : 0;
}

static qv_plan_options
read_plan(struct fuzz_bytes *b)
{
    static float sum;
    qv_plan_options o = { .grid_h = fuzz_int(b),
                          .grid_w = fuzz_int(b),
                          .input = (qv_input)fuzz_enum(b, 2),
                          .still = fuzz_flag(b),
                          .image_norm = fuzz_flag(b),
                          .output = (qv_dtype)fuzz_enum(b, QV_BF16 + 1),
                          .chunk_pairs = fuzz_int(b) };
    if (fuzz_byte(b) > 200) {
        o.tap = see_layer;
        o.tap_user = &sum;
    }
    fuzz_reserved(b, o.reserved, sizeof o.reserved / sizeof *o.reserved);
    return o;
}

/* Where `rows` tokens go: exactly that much memory. */
static qv_tokens
take_tokens(int64_t rows, qv_dtype output, bool deepstack)
{
    const size_t bytes = (size_t)(rows * OUT) * (output == QV_BF16 ? 2 : 4);
    qv_tokens t = { .tokens = fuzz_fill(bytes), .capacity = rows };
    if (deepstack)
        t.deepstack[0] = fuzz_fill(bytes);
    return t;
}

static void
free_tokens(qv_tokens *t)
{
    free(t->tokens);
    free(t->deepstack[0]);
}

/* Pushes and pulls in the order that the input says. */
static void
use_plan(const qv_plan_options *o, const qv_plan_info *info, struct fuzz_bytes *b)
{
    qv_error err;
    qv_plan *plan = NULL;
    const int64_t patches = o->grid_h * o->grid_w;
    const size_t unit = (size_t)patches * (o->input == QV_INPUT_FRAMES ? 48 : ROW * sizeof(float));
    void *data = fuzz_fill(unit * (size_t)info->chunk_frames);
    FUZZ_CHECK(!qv_plan_create(model, o, &plan, &err));
    for (int i = 0; i < 4; i++) {
        const bool push = fuzz_flag(b);
        const int64_t n = fuzz_int(b);
        qv_tokens t = take_tokens(info->chunk_pairs * info->tokens_per_pair, o->output, n & 1);
        if (!push && n == 3)
            t.capacity = 0;
        if (push)
            fuzz_failed(qv_plan_push(plan, data, n, &err), &err);
        else if (!fuzz_failed(qv_plan_pull(plan, &t, &err), &err))
            FUZZ_CHECK(t.n > 0 && t.n <= t.capacity && t.n % info->tokens_per_pair == 0);
        free_tokens(&t);
    }
    qv_plan_free(&plan);
    free(data);
}

static void
try_plan(struct fuzz_bytes *b)
{
    qv_error err;
    qv_plan *plan = NULL;
    const qv_plan_options o = read_plan(b);
    if (fuzz_failed(qv_plan_create(described, &o, &plan, &err), &err)) {
        FUZZ_CHECK(!plan);
        return;
    }
    qv_plan_info info;
    qv_plan_get_info(plan, &info);
    FUZZ_CHECK(info.tokens_per_pair == o.grid_h * o.grid_w / MERGE_AREA && info.arena_bytes);
    FUZZ_CHECK(fuzz_failed(qv_plan_push(plan, &info, 1, &err), &err)); /* has no weights */
    qv_plan_free(&plan);
    if (info.chunk_pairs * o.grid_h * o.grid_w <= MOST_PATCHES)
        use_plan(&o, &info, b);
}

/* ---- qv_encode ------------------------------------------------------------------------------- */

static void
try_encode(struct fuzz_bytes *b)
{
    enum { MOST_GRIDS = 8 };
    int64_t grids[3 * MOST_GRIDS], patches = 0;
    qv_error err;
    const size_t n = fuzz_byte(b) % (MOST_GRIDS + 1);
    const qv_plan_options o = read_plan(b);
    const bool frames = fuzz_flag(b);
    for (size_t i = 0; i < 3 * n; i++)
        grids[i] = fuzz_int(b);
    bool small = o.chunk_pairs <= MOST_PATCHES;
    for (size_t i = 0; i < n && small; i++) {
        const int64_t *g = grids + 3 * i;
        small = g[0] > 0 && g[1] > 0 && g[2] > 0 && g[0] <= MOST_PATCHES && g[1] <= MOST_PATCHES &&
                g[2] <= MOST_PATCHES;
        patches += small ? g[0] * g[1] * g[2] : 0;
        small = small && patches <= MOST_PATCHES;
    }
    patches = small ? patches : 1; /* large ones must be refused for their tokens' capacity */
    void *data = fuzz_fill((size_t)patches * (frames ? 96 : ROW * sizeof(float)));
    qv_tokens t = take_tokens(patches / MERGE_AREA, o.output, fuzz_flag(b));
    const qv_input input = frames ? QV_INPUT_FRAMES : QV_INPUT_PATCHES;
    if (!fuzz_failed(qv_encode(model, input, data, grids, n, &o, &t, &err), &err))
        FUZZ_CHECK(small && t.n == patches / MERGE_AREA);
    free_tokens(&t);
    free(data);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_bytes b = { data, size };
    if (!ctx)
        set_up();
    switch (fuzz_byte(&b) % 4) {
    case 0: try_context(&b); break;
    case 1: try_model(&b); break;
    case 2: try_plan(&b); break;
    case 3: try_encode(&b); break;
    }
    return 0;
}
