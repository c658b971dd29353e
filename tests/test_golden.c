/* SPDX-License-Identifier: MIT */
/*
 * Tiny towers of every family against transformers, layer by layer (tests/golden, made by
 * tools/reference/make_golden.py). f32: the worst row within 2e-5 of the truth. bf16: as near to it
 * as transformers' own bf16 run. On a few dozen tokens transformers' two attention paths differ by
 * up to 20% in the mean and 40% in the worst token, so that is the slack here; the bar of 1.05 is
 * for real sizes (tools/reference/parity.py).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends.h"
#include "qwenvit.h"
#include "files/safetensors.h"

enum { MOST_LAYERS = 24 };
static const double bf16_mean_slack = 1.2, bf16_worst_slack = 1.4;

struct layer {
    char name[40];
    float *rows;
    int64_t n, cols;
};

struct capture {
    struct layer layers[MOST_LAYERS];
    int n;
};

static const char *const families[] = { "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen4_exp" };

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
tap(void *user, const char *name, const float *rows, int64_t n_rows, int64_t n_cols)
{
    struct layer *l = layer_of(user, name);
    l->rows = realloc(l->rows, (size_t)((l->n + n_rows) * n_cols) * sizeof(float));
    assert_non_null(l->rows);
    memcpy(l->rows + l->n * n_cols, rows, (size_t)(n_rows * n_cols) * sizeof(float));
    l->n += n_rows;
    l->cols = n_cols;
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
    qv_error err = { 0 };
    const struct qv_safetensor *t = qv_safetensors_find(file, name);
    if (!t)
        fail_msg("%s: no tensor %s", qv_safetensors_path(file), name);
    *data = malloc(t->bytes + 1);
    assert_non_null(*data);
    if (qv_safetensors_read(file, t, 0, *data, t->bytes, &err))
        fail_msg("%s", err.text);
    return t;
}

/* Mean and worst over rows of |x - truth| / |truth|. */
static void
distance(const float *x, const float *truth, int64_t rows, int64_t cols, double *mean,
         double *worst)
{
    *mean = *worst = 0;
    for (int64_t i = 0; i < rows; i++) {
        double off = 0, size = 0;
        for (int64_t j = i * cols; j < (i + 1) * cols; j++) {
            off += ((double)x[j] - truth[j]) * ((double)x[j] - truth[j]);
            size += (double)truth[j] * truth[j];
        }
        double d = sqrt(off / size);
        *mean += d / (double)rows;
        if (!(d <= *worst) && !isnan(*worst)) /* a NaN stays */
            *worst = d;
    }
}

static void
check_layer(const struct qv_safetensors *expected, const struct layer *l, qv_dtype dtype,
            const char *what)
{
    void *truth, *bar;
    const struct qv_safetensor *t = tensor(expected, l->name, &truth);
    assert_int_equal(t->n_dims, 2);
    assert_true(t->shape[0] >= l->n && t->shape[1] == l->cols);
    double mean, worst;
    distance(l->rows, truth, l->n, l->cols, &mean, &worst);
    bool ok = worst <= 2e-5;
    if (dtype == QV_F32 && !strcmp(l->name, "patch_embed"))
        for (int64_t i = 0; i < l->n * l->cols; i++)
            ok = ok && fabs((double)l->rows[i] - ((float *)truth)[i]) <= 1e-5;
    if (dtype == QV_BF16) {
        char name[64];
        ok = worst <= 0.1; /* inner layers: transformers' own distance is not stored */
        snprintf(name, sizeof name, "bf16_distance.%s", l->name);
        if (qv_safetensors_find(expected, name) && l->n == t->shape[0]) {
            tensor(expected, name, &bar);
            ok = mean <= bf16_mean_slack * (double)((float *)bar)[0] &&
                 worst <= bf16_worst_slack * (double)((float *)bar)[1];
            printf("%s %s: mean %.2e (%.2f of transformers'), worst %.2e (%.2f)\n", what, l->name,
                   mean, mean / (double)((float *)bar)[0], worst,
                   worst / (double)((float *)bar)[1]);
            free(bar);
        }
    }
    if (!ok)
        fail_msg("%s: layer %s: mean distance %.3g, worst %.3g", what, l->name, mean, worst);
    free(truth);
}

/* Every layer of every clip in pixel_values; then the first clip again from its frames. */
static void
check_family(const char *family, const char *backend, qv_dtype dtype)
{
    char dir[512], path[600], what[100];
    qv_error err = { 0 };
    qv_context *ctx = NULL;
    qv_model *model = NULL;
    struct qv_safetensors *expected = NULL;
    struct capture seen = { 0 };
    void *pixels, *grid, *frames;
    snprintf(dir, sizeof dir, "%s/%s", QV_GOLDEN, family);
    snprintf(path, sizeof path, "%s/expected.safetensors", dir);
    snprintf(what, sizeof what, "%s on %s in %s", family, backend, qv_dtype_name(dtype));
    if (qv_safetensors_open(path, &expected, &err) ||
        qv_context_open(&(qv_context_options){ .backend = backend }, &ctx, &err) ||
        qv_model_load(ctx, dir, &(qv_model_options){ .dtype = dtype }, &model, &err))
        fail_msg("%s", err.text);
    tensor(expected, "pixel_values", &pixels);
    const struct qv_safetensor *g = tensor(expected, "grid_thw", &grid);
    const struct qv_safetensor *f = tensor(expected, "frames", &frames);

    qv_model_info info;
    qv_model_get_info(model, &info);
    int64_t rows = 0, *thw = grid;
    for (int64_t i = 0; i < g->shape[0]; i++)
        rows += thw[3 * i] * thw[3 * i + 1] * thw[3 * i + 2] / 4;
    qv_tokens out = { .tokens = malloc((size_t)(rows * info.out_hidden) * 4), .capacity = rows };
    qv_plan_options options = { .tap = tap, .tap_user = &seen };
    if (qv_encode(model, QV_INPUT_PATCHES, pixels, thw, (size_t)g->shape[0], &options, &out, &err))
        fail_msg("%s", err.text);
    assert_int_equal(out.n, rows);
    assert_int_equal(seen.n, 2 + info.depth + info.n_deepstack);
    for (int i = 0; i < seen.n; i++)
        check_layer(expected, &seen.layers[i], dtype, what);
    drop(&seen);

    qv_plan *plan = NULL;
    options.grid_h = thw[1];
    options.grid_w = thw[2];
    options.chunk_pairs = thw[0];
    if (qv_plan_create(model, &options, &plan, &err) ||
        qv_plan_push(plan, frames, f->shape[0], &err) || qv_plan_pull(plan, &out, &err))
        fail_msg("%s", err.text);
    for (int i = 0; i < seen.n; i++)
        check_layer(expected, &seen.layers[i], dtype, what);
    drop(&seen);

    qv_plan_free(&plan);
    free(out.tokens);
    free(pixels);
    free(grid);
    free(frames);
    qv_model_free(&model);
    qv_context_close(&ctx);
    qv_safetensors_close(&expected);
}

static void
every_family_on_every_backend(void **state)
{
    (void)state;
    enum { N_FAMILIES = sizeof families / sizeof *families };
    for (int b = 0; b < N_TEST_BACKENDS; b++)
        for (int type = 0; type < N_TEST_DTYPES; type++) {
            int n = dtype_is_here(test_backends[b], test_dtypes[type]) ? N_FAMILIES : 0;
            for (int i = 0; i < n; i++)
                check_family(families[i], test_backends[b], test_dtypes[type]);
        }
}

int
main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(every_family_on_every_backend) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
