/* SPDX-License-Identifier: MIT */
/* Fuzzes the options of contexts, models and plans, and items, on the smallest golden model. */
#include "fuzz.h"

static const char model_folder[] = QV_GOLDEN "/qwen3_vl_moe";
enum { PATCH = 3 * 4 * 4, ROW = 2 * PATCH, MERGE_AREA = 4, OUT = 20, DEEPSTACK = 1 };
enum { MOST_PATCHES = 64, MOST_ITEMS = 8 }; /* MOST_PATCHES: of what is computed */

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

/* The text is printable, because error texts quote what the caller gives unchanged. */
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
    char name[24], kinds[24];
    qv_context_options o = { .device = fuzz_byte(b) > 200 ? (int)fuzz_int(b) : 0,
                             .threads = (int)fuzz_int(b),
                             .tf32 = fuzz_flag(b) };
    o.backend = fuzz_flag(b) ? "ref" : read_text(b, name);
    /* The threads and pools of other backends outlive an input. */
    if (!strcmp(o.backend, "auto") || !strcmp(o.backend, "cpu") || !strcmp(o.backend, "cuda") ||
        !strcmp(o.backend, "metal"))
        return;
    const uint8_t which = fuzz_byte(b) % 8;
    o.naive = which < 6 ? plain[which] : read_text(b, kinds);
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
    const bool whole = fuzz_byte(b) == 7; /* Reading all weights takes long. */
    qv_model_options o = { .dtype = (qv_dtype)fuzz_enum(b, QV_F16 + 1), .describe = !whole };
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
    qv_plan_options o = { .capacity.patches = fuzz_int(b),
                          .capacity.segments = fuzz_int(b),
                          .capacity.segment_rows = fuzz_int(b),
                          .input = (qv_input)fuzz_enum(b, 2),
                          .output = (qv_dtype)fuzz_enum(b, QV_BF16 + 1) };
    if (fuzz_byte(b) > 200) {
        o.hook = see_layer;
        o.hook_user = &sum;
    }
    return o;
}

struct items {
    qv_item items[MOST_ITEMS];
    size_t n;
    int64_t patches; /* The patches of items that are all small; -1 if some are not small or are not
                      * valid. */
};

static bool
is_small(const int64_t g[3])
{
    for (int i = 0; i < 3; i++)
        if (g[i] < 1 || g[i] > MOST_PATCHES)
            return false;
    return g[0] * g[1] * g[2] <= MOST_PATCHES;
}

/* Makes items, each with exactly the memory that it says it has. Items with impossible sizes get
 * little memory. */
static struct items
read_items(struct fuzz_bytes *b, qv_input input)
{
    struct items all = { .n = fuzz_byte(b) % (MOST_ITEMS + 1) };
    for (size_t i = 0; i < all.n; i++) {
        qv_item *item = &all.items[i];
        for (int j = 0; j < 3; j++)
            item->grid_thw[j] = fuzz_int(b);
        item->is_image = fuzz_flag(b);
        item->n_frames = fuzz_byte(b) > 200 ? fuzz_int(b) : 0;
        const int64_t *g = item->grid_thw, n = item->n_frames;
        const bool small = is_small(g);
        int64_t frames = item->is_image ? 1 : small ? 2 * g[0] : 0;
        frames = n > 0 && n < frames ? n : frames;
        const int64_t bytes = !small ? 1
                              : input == QV_INPUT_FRAMES
                                  ? frames * g[1] * g[2] * PATCH
                                  : g[0] * g[1] * g[2] * ROW * (int64_t)sizeof(float);
        item->data = fuzz_byte(b) > 250 ? NULL : fuzz_fill((size_t)bytes);
        all.patches = small && all.patches >= 0 ? all.patches + g[0] * g[1] * g[2] : -1;
    }
    return all;
}

static void
free_items(struct items *all)
{
    for (size_t i = 0; i < all->n; i++)
        free((void *)(uintptr_t)all->items[i].data);
}

/* Makes room for `rows` tokens, and exactly that much memory. */
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

/* Pushes and pulls in the order that the input gives. */
static void
use_plan(const qv_plan_options *o, const qv_plan_info *info, struct fuzz_bytes *b)
{
    qv_error err;
    qv_plan *plan = NULL;
    int64_t pending = -1;
    FUZZ_CHECK(!qv_plan_create(model, o, &plan, &err));
    for (int i = 0; i < 4; i++) {
        if (fuzz_flag(b)) {
            struct items all = read_items(b, o->input);
            if (!fuzz_failed(qv_plan_push(plan, all.items, all.n, &err), &err)) {
                FUZZ_CHECK(pending < 0 && all.patches > 0 && all.patches <= info->capacity.patches);
                pending = all.patches;
            }
            free_items(&all);
            continue;
        }
        const uint8_t how = fuzz_byte(b);
        qv_tokens t = take_tokens(info->tokens, o->output, how & 1);
        if (how == 3)
            t.capacity = 0;
        if (!fuzz_failed(qv_plan_pull(plan, &t, &err), &err)) {
            FUZZ_CHECK(pending > 0 && t.n == pending / MERGE_AREA);
            pending = -1;
        }
        free_tokens(&t);
    }
    qv_plan_free(&plan);
}

static void
try_plan(struct fuzz_bytes *b)
{
    qv_error err;
    qv_plan *plan = NULL;
    const qv_item item = { .data = &err, .grid_thw = { 1, 2, 2 } };
    const qv_plan_options o = read_plan(b);
    if (fuzz_failed(qv_plan_create(described, &o, &plan, &err), &err)) {
        FUZZ_CHECK(!plan);
        return;
    }
    qv_plan_info info;
    qv_plan_get_info(plan, &info);
    FUZZ_CHECK(info.tokens == info.capacity.patches / MERGE_AREA && info.capacity.segments > 0 &&
               info.arena_bytes);
    FUZZ_CHECK(info.capacity.patches >=
               (o.capacity.segment_rows ? o.capacity.segment_rows : o.capacity.patches));
    FUZZ_CHECK(fuzz_failed(qv_plan_push(plan, &item, 1, &err), &err)); /* It has no weights. */
    qv_plan_free(&plan);
    if (info.capacity.patches <= MOST_PATCHES && info.capacity.segments <= 1024)
        use_plan(&o, &info, b);
}

static void
try_grid(struct fuzz_bytes *b)
{
    qv_error err;
    qv_plan *plan = NULL;
    qv_plan_info info;
    const int64_t g[3] = { fuzz_int(b), fuzz_int(b), fuzz_int(b) };
    const qv_plan_options o = { .grid_thw = { g[0], g[1], g[2] } };
    if (fuzz_failed(qv_plan_create(described, &o, &plan, &err), &err)) {
        FUZZ_CHECK(!plan);
        return;
    }
    qv_plan_get_info(plan, &info);
    const qv_capacity *c = &info.capacity;
    FUZZ_CHECK(c->patches >= g[1] * g[2] && c->segments > 0);
    FUZZ_CHECK(!c->segment_rows ||
               (c->segment_rows == g[1] * g[2] && c->patches % c->segment_rows == 0));
    qv_plan_free(&plan);
}

/* ---- qv_encode ------------------------------------------------------------------------------- */

static void
try_encode(struct fuzz_bytes *b)
{
    qv_error err;
    const qv_plan_options o = read_plan(b);
    const qv_input input = fuzz_flag(b) ? QV_INPUT_FRAMES : QV_INPUT_PATCHES;
    struct items all = read_items(b, input);
    /* Large items must be refused because of the tokens' capacity; large plans would take long. */
    const bool small = all.patches > 0 && o.capacity.patches <= MOST_PATCHES &&
                       o.capacity.segments <= 1024 && o.capacity.segment_rows <= MOST_PATCHES;
    qv_tokens t = take_tokens(small ? all.patches / MERGE_AREA : 0, o.output, fuzz_flag(b));
    if (!fuzz_failed(qv_encode(model, input, all.items, all.n, &o, &t, &err), &err))
        FUZZ_CHECK(small && t.n == all.patches / MERGE_AREA);
    free_tokens(&t);
    free_items(&all);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_bytes b = { data, size };
    if (!ctx)
        set_up();
    switch (fuzz_byte(&b) % 5) {
    case 0: try_context(&b); break;
    case 1: try_model(&b); break;
    case 2: try_plan(&b); break;
    case 3: try_encode(&b); break;
    case 4: try_grid(&b); break;
    }
    return 0;
}
