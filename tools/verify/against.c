/* SPDX-License-Identifier: MIT */
/* qwenvit verify --against FILE: another implementation's layer outputs. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "towers/config.h"
#include "error.h"
#include "files/safetensors.h"
#include "verify.h"

/* bf16 over another implementation's own bf16. */
static const double peer_slack = 1.05;

static void
print_shape(const struct qv_safetensor *t, char *text, size_t size)
{
    size_t at = 0;
    text[0] = 0;
    for (int i = 0; i < t->n_dims && at < size; i++)
        at +=
            (size_t)snprintf(text + at, size - at, "%s%lld", i ? ", " : "", (long long)t->shape[i]);
}

/* A matrix [rows, cols] of that name and dtype; rows or cols -1: any. */
static qv_status
read_matrix(const struct qv_safetensors *file, const char *name, const char *dtype, int64_t rows,
            int64_t cols, void **data, const struct qv_safetensor **found, qv_error *err)
{
    const struct qv_safetensor *t = qv_safetensors_find(file, name);
    if (!t)
        return qv_fail(err, QV_EFORMAT, "%s: no tensor %s", qv_safetensors_path(file), name);
    if (strcmp(t->dtype_name, dtype) || t->n_dims != 2 || t->shape[0] < 1 ||
        (rows >= 0 && t->shape[0] != rows) || (cols >= 0 && t->shape[1] != cols)) {
        char shape[128], wanted[2][24];
        print_shape(t, shape, sizeof shape);
        snprintf(wanted[0], sizeof wanted[0], rows < 0 ? "n" : "%lld", (long long)rows);
        snprintf(wanted[1], sizeof wanted[1], cols < 0 ? "n" : "%lld", (long long)cols);
        return qv_fail(err, QV_EFORMAT, "%s: tensor %s is %s [%s], must be %s [%s, %s]",
                       qv_safetensors_path(file), name, t->dtype_name, shape, dtype, wanted[0],
                       wanted[1]);
    }
    if (found)
        *found = t;
    *data = malloc(t->bytes);
    if (!*data)
        return qv_fail(err, QV_ENOMEM, "no memory for tensor %s", name);
    qv_status status = qv_safetensors_read(file, t, 0, *data, t->bytes, err);
    if (status) {
        free(*data);
        *data = NULL;
    }
    return status;
}

static qv_status
read_input(const struct qv_safetensors *file, const struct qv_config *c, struct verify_input *input,
           qv_error *err)
{
    enum { MOST_SIDE = 1 << 14, MOST_PAIRS = 1 << 20 };
    const struct qv_safetensor *pixels = NULL, *grid = NULL;
    void *thw = NULL;
    *input = (struct verify_input){ .input = QV_INPUT_PATCHES };
    qv_status status = read_matrix(file, "pixel_values", "F32", -1, qv_config_row_dim(c),
                                   &input->data, &pixels, err);
    if (!status)
        status = read_matrix(file, "grid_thw", "I64", -1, 3, &thw, &grid, err);
    if (status)
        return status;
    input->thw = thw;
    input->n = (size_t)grid->shape[0];
    int64_t rows = 0;
    for (size_t i = 0; i < input->n; i++) {
        const int64_t *g = input->thw[i];
        if (g[0] < 1 || g[0] > MOST_PAIRS || g[1] < 1 || g[1] > MOST_SIDE || g[2] < 1 ||
            g[2] > MOST_SIDE || g[1] % c->merge || g[2] % c->merge)
            return qv_fail(err, QV_EFORMAT,
                           "%s: grid_thw[%zu] is %lld, %lld, %lld; all must be positive, rows and "
                           "columns multiples of %lld",
                           qv_safetensors_path(file), i, (long long)g[0], (long long)g[1],
                           (long long)g[2], (long long)c->merge);
        rows += g[0] * g[1] * g[2];
        if (rows > pixels->shape[0])
            break;
    }
    if (rows != pixels->shape[0])
        return qv_fail(err, QV_EFORMAT, "%s: pixel_values has %lld rows, grid_thw asks for %lld%s",
                       qv_safetensors_path(file), (long long)pixels->shape[0], (long long)rows,
                       rows > pixels->shape[0] ? " or more" : "");
    return QV_OK;
}

static bool
is_output(const char *name)
{
    return !strcmp(name, "merger") || !strncmp(name, "deepstack_merger_list.", 22);
}

/* What the file holds of a layer, or of the one that a pulled output comes from: its truth; for bf16
 * its own bf16 too, if it has that. If not, the bars are what rounding does to our own tower. */
static qv_status
check_file_layer(const struct qv_safetensors *file, qv_dtype dtype, const struct verify_layer *l,
                 const struct verify_truth *own, struct verify_table *out, qv_error *err)
{
    char name[48], peer_name[64];
    void *truth = NULL, *peer = NULL;
    struct verify_held_to to = verify_held_to_ideal();
    verify_name_in_tower(l, name);
    snprintf(peer_name, sizeof peer_name, "bf16.%s", name);
    qv_status status = read_matrix(file, name, "F32", l->n, l->cols, &truth, NULL, err);
    if (!status && dtype == QV_BF16 && own->ideal.n) {
        status = verify_same_layer(&own->ideal, name, l, &to.yardstick, err);
        if (!status)
            status = verify_same_layer(&own->exact, name, l, &to.exact, err);
    } else if (!status && dtype == QV_BF16) {
        status = read_matrix(file, peer_name, "F32", l->n, l->cols, &peer, NULL, err);
        to.yardstick = peer;
        to.exact = truth;
        to.ideal = false;
        to.slack = is_output(name) ? peer_slack : INFINITY;
        to.cosine = -INFINITY;
    }
    to.truth = truth;
    if (!status)
        status = verify_layer("against", dtype, l, &to, out, err);
    free(truth);
    free(peer);
    return status;
}

static qv_status
check_file(const struct verify_job *job, const struct qv_safetensors *file, qv_dtype dtype,
           const struct verify_input *input, struct verify_table *out, qv_error *err)
{
    struct verify_truth own = { 0 };
    struct verify_layers seen = { 0 };
    bool has_bf16 = qv_safetensors_find(file, "bf16.merger") != NULL;
    /* with its own bf16 the file's truth is on bf16-rounded weights */
    qv_status status = verify_ours(job, dtype, has_bf16 ? VERIFY_ROUND_WEIGHTS : VERIFY_AS_STORED,
                                   input, &seen, err);
    if (status && dtype == QV_BF16) {
        verify_layers_free(&seen);
        return verify_unless_left_out(job, status);
    }
    if (!status && dtype == QV_BF16 && !has_bf16)
        status = verify_truth(job, job->ctx, VERIFY_AS_STORED, input, true, &own, err);
    for (size_t i = 0; i < seen.n && !status; i++)
        status = check_file_layer(file, dtype, &seen.layers[i], &own, out, err);
    verify_layers_free(&seen);
    verify_truth_free(&own);
    return status;
}

qv_status
verify_against_file(const struct verify_job *job, const char *path, struct verify_input *input,
                    struct verify_table *out, qv_error *err)
{
    struct qv_config config;
    struct qv_safetensors *file = NULL;
    qv_status status = qv_config_read(job->dir, &config, err);
    if (!status)
        status = qv_safetensors_open(path, &file, err);
    if (!status)
        status = read_input(file, &config, input, err);
    if (!status && verify_wants(job, QV_F32))
        status = check_file(job, file, QV_F32, input, out, err);
    if (!status && verify_wants(job, QV_BF16))
        status = check_file(job, file, QV_BF16, input, out, err);
    qv_safetensors_close(&file);
    return status;
}
