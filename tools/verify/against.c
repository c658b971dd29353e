/* SPDX-License-Identifier: MIT */
/* qwenvit verify --against FILE compares layers with another implementation's outputs. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/items.h"
#include "towers/config.h"
#include "error.h"
#include "files/safetensors.h"
#include "verify.h"

/* Bar for our bf16 distance, over the distance of another implementation's own bf16. */
static const double peer_slack = 1.05;

struct matrix {
    const char *name, *dtype; /* such as "F32" */
    int64_t rows, cols;       /* rows -1: any number; read_matrix sets it */
    void *data;               /* NULL until it is read; the reader's caller frees it */
};

static qv_status
read_matrix(const struct qv_safetensors *file, struct matrix *m, qv_error *err)
{
    const struct qv_safetensor *t = qv_safetensors_find(file, m->name);
    if (!t)
        return qv_fail(err, QV_EFORMAT, "%s: tensor %s is missing", qv_safetensors_path(file),
                       m->name);
    if (strcmp(t->dtype_name, m->dtype) || t->n_dims != 2 || t->shape[0] < 1 ||
        (m->rows >= 0 && t->shape[0] != m->rows) || t->shape[1] != m->cols) {
        char shape[128], rows[24];
        snprintf(rows, sizeof rows, m->rows < 0 ? "n" : "%lld", (long long)m->rows);
        return qv_fail(err, QV_EFORMAT, "%s: tensor %s is %s [%s]; it must be %s [%s,%lld]",
                       qv_safetensors_path(file), m->name, t->dtype_name,
                       qv_safetensors_print_shape(t->shape, t->n_dims, shape, sizeof shape),
                       m->dtype, rows, (long long)m->cols);
    }
    m->rows = t->shape[0];
    m->data = malloc(t->bytes);
    if (!m->data)
        return qv_fail(err, QV_ENOMEM, "no memory for tensor %s", m->name);
    return qv_safetensors_read(file, t, 0, m->data, t->bytes, err);
}

static qv_status
read_input(const struct qv_safetensors *file, const struct qv_config *c, struct verify_input *input,
           qv_error *err)
{
    struct matrix pixels = { "pixel_values", "F32", -1, qv_config_row_dim(c), NULL },
                  grid = { "grid_thw", "I64", -1, 3, NULL };
    qv_status status = read_matrix(file, &pixels, err);
    if (!status)
        status = read_matrix(file, &grid, err);
    *input = (struct verify_input){
        .input = QV_INPUT_PATCHES, .data = pixels.data, .thw = grid.data, .n = (size_t)grid.rows
    };
    if (status)
        return status;
    int64_t rows = 0;
    for (size_t i = 0; i < input->n; i++) {
        const int64_t *g = input->thw[i];
        if (qv_item_check_grid(c, g, qv_safetensors_path(file), err)) {
            err->status = QV_EFORMAT; /* it is the file's value, not the caller's */
            return QV_EFORMAT;
        }
        rows += g[0] * g[1] * g[2];
        if (rows > pixels.rows)
            break;
    }
    if (rows != pixels.rows)
        return qv_fail(err, QV_EFORMAT, "%s: pixel_values has %lld rows, but grid_thw needs %lld%s",
                       qv_safetensors_path(file), (long long)pixels.rows, (long long)rows,
                       rows > pixels.rows ? " or more" : "");
    return QV_OK;
}

static bool
is_output(const char *name)
{
    return !strcmp(name, "merger") || !strncmp(name, "deepstack_merger_list.", 22);
}

/* Checks a layer, or the layer that a pulled output comes from, against its truth in the file. In
 * bf16 the bars come from the file's own bf16 layer, if it has one; if not, from rounding our own
 * tower. */
static qv_status
check_file_layer(const struct qv_safetensors *file, qv_dtype dtype, const struct verify_layer *l,
                 const struct verify_truth *own, struct verify_table *out, qv_error *err)
{
    char name[48], peer_name[64];
    struct matrix truth = { name, "F32", l->n, l->cols, NULL },
                  peer = { peer_name, "F32", l->n, l->cols, NULL };
    struct verify_held_to to = verify_held_to_ideal();
    verify_name_in_tower(l, name);
    snprintf(peer_name, sizeof peer_name, "bf16.%s", name);
    qv_status status = read_matrix(file, &truth, err);
    if (!status && dtype == QV_BF16 && own->ideal.n) {
        status = verify_same_layer(&own->ideal, name, l, &to.yardstick, err);
        if (!status)
            status = verify_same_layer(&own->exact, name, l, &to.exact, err);
    } else if (!status && dtype == QV_BF16) {
        status = read_matrix(file, &peer, err);
        to.yardstick = peer.data;
        to.exact = truth.data;
        to.ideal = false;
        to.slack = is_output(name) ? peer_slack : INFINITY;
        to.cosine = -INFINITY;
    }
    to.truth = truth.data;
    if (!status)
        status = verify_layer("against", dtype, l, &to, out, err);
    free(truth.data);
    free(peer.data);
    return status;
}

static qv_status
check_file(const struct verify_job *job, const struct qv_safetensors *file, qv_dtype dtype,
           const struct verify_input *input, struct verify_table *out, qv_error *err)
{
    struct verify_truth own = { 0 };
    struct verify_layers seen = { 0 };
    bool has_bf16 = qv_safetensors_find(file, "bf16.merger") != NULL;
    /* a file with bf16 layers has its truth on bf16-rounded weights */
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
    qv_status status = verify_config(job, &config, err);
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
