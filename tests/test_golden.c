/* SPDX-License-Identifier: MIT */
/*
 * Compares tiny towers of every family with transformers, layer by layer, and also the results that
 * a caller receives (tests/golden, made by tools/reference/make_golden.py). In f32 the worst row
 * must be within 2e-5 of the truth. In bf16 it must be as near to the truth as transformers' own
 * bf16 run. On a few dozen tokens transformers' two attention paths differ by up to 20% in the mean
 * and 40% in the worst token (73% in the worst patch of a block), so that much slack is given here;
 * the bar of 1.05 is for real sizes (tools/reference/parity.py).
 */

#include "test.h"

#include <math.h>

#include "backends.h"
#include "distance.h"
#include "files/safetensors.h"
#include "model/feeder_inside.h"
#include "tiny.h"

enum { MOST_LAYERS = 24, MERGE_AREA = 4, MOST_CLIPS = 8 };
static const double bf16_mean_slack = 1.2, bf16_worst_slack = 1.4, bf16_patch_slack = 1.75;

/* A layer as the hook sees it; or "pulled NAME", which a caller receives and which must equal
 * NAME. */
struct layer {
    char name[64];
    float *rows;
    int64_t n, cols;
};

struct capture {
    struct layer layers[MOST_LAYERS];
    int n;
};

static const char *const families[] = { "qwen2_vl",       "qwen2_5_vl",   "qwen2_5_omni",
                                        "qwen3_vl",       "qwen3_vl_moe", "qwen3_omni_moe",
                                        "qwen3_5",        "qwen4_exp",    "glm4v",
                                        "cohere_compass", "exaone4_5" };

static struct layer *
layer_of(struct capture *c, const char *name)
{
    for (int i = 0; i < c->n; i++)
        if (!strcmp(c->layers[i].name, name))
            return &c->layers[i];
    assert_true(c->n < MOST_LAYERS);
    struct layer *l = &c->layers[c->n++];
    memset(l, 0, sizeof *l);
    snprintf(l->name, sizeof l->name, "%s", name);
    return l;
}

static void
see_layer(void *user, const char *name, const float *rows, int64_t n_rows, int64_t n_cols)
{
    struct layer *l = layer_of(user, name);
    l->rows = realloc(l->rows, (size_t)((l->n + n_rows) * n_cols) * sizeof(float));
    assert_non_null(l->rows);
    memcpy(l->rows + l->n * n_cols, rows, (size_t)(n_rows * n_cols) * sizeof(float));
    l->n += n_rows;
    l->cols = n_cols;
}

/* Puts the merged rows of clips, [.., cols], into transformers' order of a layer's rows: window by
 * window in each frame pair, row by row in a window of `side` x `side`. The caller frees the
 * result. */
static float *
in_windows(const float *rows, int64_t cols, int64_t side, const int64_t *thw, size_t n_clips)
{
    int64_t first = 0;
    float *to = NULL;
    for (size_t i = 0; i < n_clips; i++, thw += 3) {
        const int64_t down = thw[1] / 2, across = thw[2] / 2;
        to = realloc(to, (size_t)((first + thw[0] * down * across) * cols) * sizeof *to);
        assert_non_null(to);
        for (int64_t pair = 0; pair < thw[0]; pair++, first += down * across)
            for (int64_t at = 0; at < down * across; at++) {
                const int64_t y = at / across, x = at % across;
                int64_t place = 0; /* how many come before it */
                for (int64_t other = 0; other < down * across; other++) {
                    const int64_t v = other / across, u = other % across;
                    const int64_t by[4] = { v / side - y / side, u / side - x / side, v - y,
                                            u - x };
                    int j = 0;
                    while (j < 3 && !by[j])
                        j++;
                    place += by[j] < 0;
                }
                memcpy(to + (first + place) * cols, rows + (first + at) * cols,
                       (size_t)cols * sizeof *to);
            }
    }
    return to;
}

/* Returns n values as f32. */
static float *
widened(const void *values, qv_dtype dtype, int64_t n)
{
    float *to = test_alloc((size_t)n * sizeof *to);
    for (int64_t i = 0; i < n; i++)
        to[i] = (float)qv_load(values, dtype, i);
    return to;
}

/* The clips' grids are thw. */
static void
see_outputs(struct capture *c, const qv_model *model, const qv_tokens *out, qv_dtype dtype,
            const int64_t *thw, size_t n_clips)
{
    char name[48];
    qv_model_info info;
    qv_model_get_info(model, &info);
    const int64_t n = out->n * info.out_hidden, cols = MERGE_AREA * info.hidden;
    see_layer(c, "pulled merger", widened(out->tokens, dtype, n), out->n, info.out_hidden);
    for (int i = 0; i < info.n_deepstack; i++) {
        snprintf(name, sizeof name, "pulled deepstack_merger_list.%d", i);
        see_layer(c, name, widened(out->deepstack[i], dtype, n), out->n, info.out_hidden);
    }
    if (!out->hidden)
        return;
    float *rows = widened(out->hidden, dtype, out->n * cols), *ordered = NULL;
    if (model->config.window)
        ordered = in_windows(rows, cols, qv_config_window_cells(&model->config), thw, n_clips);
    snprintf(name, sizeof name, "pulled blocks.%lld", (long long)info.depth - 1);
    see_layer(c, name, ordered ? ordered : rows, MERGE_AREA * out->n, info.hidden);
    free(ordered);
}

static void
drop(struct capture *c)
{
    for (int i = 0; i < c->n; i++)
        free(c->layers[i].rows);
    c->n = 0;
}

static const struct qv_safetensor *
tensor(const struct qv_safetensors *file, const char *name, void **data)
{
    const struct qv_safetensor *t = qv_safetensors_find(file, name);
    if (!t)
        fail_msg("%s: no tensor %s", qv_safetensors_path(file), name);
    *data = test_alloc(t->bytes + 1);
    assert_ok(qv_safetensors_read(file, t, 0, *data, t->bytes, ERR));
    return t;
}

/* Returns whether mean and worst of a layer in bf16 are no further off than transformers' own, or
 * little more. */
static bool
is_as_near_as_transformers(const struct qv_safetensors *expected, const char *name, double mean,
                           double worst, const char *what)
{
    char bar_name[96];
    void *data;
    snprintf(bar_name, sizeof bar_name, "bf16_distance.%s", name);
    const struct qv_safetensor *t = tensor(expected, bar_name, &data);
    assert_int_equal(t->bytes, 2 * sizeof(float));
    const float *bar = data;
    double worst_slack = strstr(name, "merger") ? bf16_worst_slack : bf16_patch_slack;
    double of_mean = mean / (double)bar[0], of_worst = worst / (double)bar[1];
    printf("%s %s: mean %.2e (%.2f of transformers'), worst %.2e (%.2f)\n", what, name, mean,
           of_mean, worst, of_worst);
    return of_mean <= bf16_mean_slack && of_worst <= worst_slack;
}

/* Checks a layer of the given number of patches. */
static void
check_layer(const struct qv_safetensors *expected, const struct layer *l, int64_t patches,
            qv_dtype dtype, const char *what)
{
    void *truth;
    const char *name = l->name + (strncmp(l->name, "pulled ", 7) ? 0 : 7);
    const struct qv_safetensor *t = tensor(expected, name, &truth);
    assert_int_equal(t->n_dims, 2);
    const bool merged = strstr(name, "merger") || !strcmp(name, "downsample");
    assert_int_equal(l->n, merged ? patches / MERGE_AREA : patches);
    assert_true(l->n <= t->shape[0] && l->cols == t->shape[1]);
    double mean, worst;
    row_distance(l->rows, truth, l->n, l->cols, &mean, &worst);
    bool ok = dtype == QV_BF16 ? is_as_near_as_transformers(expected, name, mean, worst, what)
                               : worst <= 2e-5;
    if (dtype == QV_F32 && !strcmp(name, "patch_embed"))
        for (int64_t i = 0; i < l->n * l->cols; i++)
            ok = ok && fabs((double)l->rows[i] - ((float *)truth)[i]) <= 1e-5;
    if (!ok)
        fail_msg("%s: layer %s: mean distance %.3g, worst %.3g", what, l->name, mean, worst);
}

/* Checks everything that a tower of this size shows and gives. */
static void
check_all(const struct qv_safetensors *expected, const struct capture *seen,
          const qv_model_info *info, int64_t patches, qv_dtype dtype, const char *what)
{
    /* the last block's rows; GLM's embeddings and downsample */
    const int more = strcmp(info->model_type, "glm4v") ? 1 : 2;
    assert_int_equal(seen->n, 2 + info->depth + info->n_deepstack + 1 + info->n_deepstack + more);
    for (int i = 0; i < seen->n; i++)
        check_layer(expected, &seen->layers[i], patches, dtype, what);
}

static qv_tokens
room_for(const qv_model_info *info, int64_t tokens)
{
    size_t bytes = (size_t)(tokens * info->out_hidden) * sizeof(float);
    qv_tokens out = { .tokens = test_alloc(bytes), .capacity = tokens };
    for (int i = 0; i < info->n_deepstack; i++)
        out.deepstack[i] = test_alloc(bytes);
    if (strcmp(info->model_type, "glm4v"))
        out.hidden = test_alloc((size_t)(tokens * MERGE_AREA * info->hidden) * sizeof(float));
    return out;
}

/* The capacity of one chunk for all items. It is described whole: if only its rows were given,
 * some pairs would take a capacity of their own on some devices. */
static qv_capacity
one_chunk(const qv_model *model, const qv_item *items, size_t n)
{
    qv_capacity all = { 0 };
    for (size_t i = 0; i < n; i++) {
        const qv_capacity size = qv_capacity_of(&model->config, items[i].grid_thw);
        all.patches += size.patches;
        all.segments += size.segments;
        all.windows += size.windows;
    }
    return all;
}

/* Checks every layer of every clip from pixel_values, then the clips packed, then the first clip
 * from its frames. */
static void
check_family(const char *family, const char *backend, qv_dtype dtype)
{
    char dir[512], path[600], what[100];
    struct qv_safetensors *expected = NULL;
    struct capture seen = { 0 };
    void *pixels, *grid, *frames;
    snprintf(dir, sizeof dir, "%s/%s", QV_GOLDEN, family);
    snprintf(path, sizeof path, "%s/expected.safetensors", dir);
    snprintf(what, sizeof what, "%s on %s in %s", family, backend, qv_dtype_name(dtype));
    assert_ok(qv_safetensors_open(path, &expected, ERR));
    struct tiny t = tiny_open_family(dir, backend, dtype, 0);
    qv_model *model = t.model;
    tensor(expected, "pixel_values", &pixels);
    const struct qv_safetensor *g = tensor(expected, "grid_thw", &grid);
    const struct qv_safetensor *f = tensor(expected, "frames", &frames);

    const qv_model_info info = t.info;
    int64_t patches = 0, *thw = grid;
    qv_item items[MOST_CLIPS] = { 0 };
    const size_t n = (size_t)g->shape[0];
    assert_true(n <= MOST_CLIPS);
    for (size_t i = 0; i < n; i++) {
        memcpy(items[i].grid_thw, thw + 3 * i, sizeof items[i].grid_thw);
        items[i].data = (float *)pixels + patches * info.row_dim;
        patches += thw[3 * i] * thw[3 * i + 1] * thw[3 * i + 2];
    }
    qv_tokens out = room_for(&info, patches / MERGE_AREA);
    /* in one chunk, so that layers are seen in the order of the clips */
    const qv_plan_options options = { .capacity = one_chunk(model, items, n),
                                      .hidden = out.hidden,
                                      .hook = see_layer,
                                      .hook_user = &seen };
    assert_ok(qv_encode(model, QV_INPUT_PATCHES, items, n, &options, &out, ERR));
    see_outputs(&seen, model, &out, QV_F32, thw, n);
    check_all(expected, &seen, &info, patches, dtype, what);
    drop(&seen);

    /* packed into chunks of the device's own size, then into small ones, so that clips lie in
     * several */
    for (int64_t rows = 0; rows <= 64; rows += 64) {
        qv_tokens plain = room_for(&info, patches / MERGE_AREA);
        qv_plan_options packed = { .capacity.patches = rows, .output = rows ? dtype : QV_F32 };
        plain.hidden = NULL;
        out = room_for(&info, patches / MERGE_AREA);
        assert_ok(qv_encode(model, QV_INPUT_PATCHES, items, n, &packed, &plain, ERR));
        packed.hidden = out.hidden;
        assert_ok(qv_encode(model, QV_INPUT_PATCHES, items, n, &packed, &out, ERR));
        assert_memory_equal(plain.tokens, out.tokens,
                            (size_t)(out.n * info.out_hidden) * qv_dtype_bytes(packed.output));
        see_outputs(&seen, model, &out, packed.output, thw, n);
        for (int i = 0; i < seen.n; i++)
            check_layer(expected, &seen.layers[i], patches, dtype, what);
        drop(&seen);
    }

    items[0].data = frames;
    items[0].n_frames = f->shape[0];
    assert_ok(qv_encode(model, QV_INPUT_FRAMES, items, 1, &options, &out, ERR));
    see_outputs(&seen, model, &out, QV_F32, thw, 1);
    check_all(expected, &seen, &info, thw[0] * thw[1] * thw[2], dtype, what);
    drop(&seen);

    tiny_close(&t);
    qv_safetensors_close(&expected);
}

TEST(every_family_on_every_backend)
{
    EACH_RUN (b, type)
        EACH (family, families)
            check_family(*family, *b, *type);
}
