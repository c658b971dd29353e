/* SPDX-License-Identifier: MIT */
#include "stored_tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clones.h"
#include "conv3d/lower.h"
#include "dtype.h"
#include "error.h"

/* ---- shapes ---------------------------------------------------------------------------------- */

static bool
shape_is(const struct qv_safetensor *t, const int64_t *shape, int n)
{
    return t->n_dims == n && !memcmp(t->shape, shape, (size_t)n * sizeof *shape);
}

static qv_status
check_shape(const struct qv_config *c, const struct qv_tensor_spec *spec,
            struct qv_stored_tensor *stored, qv_error *err)
{
    const struct qv_safetensor *t = stored->weight.tensor;
    int64_t first[] = { c->hidden, c->in_channels, c->temporal, c->patch, c->patch };
    int64_t last[] = { c->hidden, c->temporal, c->patch, c->patch, c->in_channels };
    int64_t plane[] = { spec->n, c->hidden, c->merge, c->merge };
    int64_t flat[] = { qv_stored_rows(spec), spec->k };
    int dims = spec->form == QV_TENSOR_VECTOR || spec->form == QV_TENSOR_BIAS ? 1 : 2;
    if ((spec->conv3d && shape_is(t, first, 5)) || (!spec->conv2d && shape_is(t, flat, dims)))
        return QV_OK;
    if ((spec->conv3d && shape_is(t, last, 5)) || (spec->conv2d && shape_is(t, plane, 4))) {
        stored->stored_cols = spec->conv3d ? c->in_channels : c->merge * c->merge;
        stored->stored_rows = spec->k / stored->stored_cols;
        return QV_OK;
    }
    char found[128], wanted[128];
    const int64_t *shape = spec->conv3d ? first : spec->conv2d ? plane : flat;
    const int n_dims = spec->conv3d ? 5 : spec->conv2d ? 4 : dims;
    return qv_fail(err, QV_EFORMAT, "%s: tensor %s has shape [%s], but config.json requires [%s]",
                   qv_safetensors_path(stored->weight.file), t->name,
                   qv_safetensors_print_shape(t->shape, t->n_dims, found, sizeof found),
                   qv_safetensors_print_shape(shape, n_dims, wanted, sizeof wanted));
}

static bool
can_be_loaded(const struct qv_safetensor *t)
{
    return t->dtype == QV_F32 || t->dtype == QV_F16 || t->dtype == QV_BF16;
}

/* ---- matrices quantised in groups ------------------------------------------------------------ */

static bool
is_quantised(const struct qv_safetensor *t, const struct qv_tensor_spec *spec)
{
    return spec->form == QV_TENSOR_MATRIX && !strcmp(t->dtype_name, "U32");
}

/* Derives the bits per value and the group size from the shapes, so MLX's config.json is not
 * needed. */
static qv_status
check_quantised(const struct qv_tensor_spec *spec, struct qv_stored_tensor *stored, qv_error *err)
{
    const struct qv_safetensor *w = stored->weight.tensor, *s = stored->scales.tensor,
                               *b = stored->biases.tensor;
    const int64_t rows = qv_stored_rows(spec);
    char found[128], scales[128];
    qv_safetensors_print_shape(w->shape, w->n_dims, found, sizeof found);
    qv_safetensors_print_shape(s->shape, s->n_dims, scales, sizeof scales);
    bool fits = w->n_dims == 2 && s->n_dims == 2 && w->shape[0] == rows && s->shape[0] == rows &&
                s->shape[1] > 0 && spec->k % s->shape[1] == 0 && shape_is(b, s->shape, 2);
    for (int bits = 4; bits <= 8 && fits && !stored->bits; bits *= 2)
        if (w->shape[1] * 32 == spec->k * bits)
            stored->bits = bits;
    if (!stored->bits)
        return qv_fail(err, QV_EFORMAT,
                       "%s: tensor %s is quantised as [%s] with scales [%s]; config.json requires "
                       "[%lld,%lld]; only 4 or 8 bits in groups can be loaded",
                       qv_safetensors_path(stored->weight.file), w->name, found, scales,
                       (long long)rows, (long long)spec->k);
    stored->group = spec->k / s->shape[1];
    stored->dtype = QV_F32;
    if (stored->group != 32 && stored->group != 64 && stored->group != 128)
        return qv_fail(err, QV_EFORMAT,
                       "%s: tensor %s is quantised in groups of %lld values (its scales are [%s]); "
                       "MLX has groups of 32, 64 and 128",
                       qv_safetensors_path(stored->weight.file), w->name, (long long)stored->group,
                       scales);
    if (!can_be_loaded(s) || s->dtype != b->dtype)
        return qv_fail(err, QV_EUNSUPPORTED,
                       "%s: tensor %s is %s and its biases are %s; both must be F32, F16 or BF16",
                       qv_safetensors_path(stored->scales.file), s->name, s->dtype_name,
                       b->dtype_name);
    return QV_OK;
}

static qv_status
find_quantised(const struct qv_stored_tower *in, const struct qv_tensor_spec *spec,
               struct qv_stored_tensor *stored, qv_error *err)
{
    static const char *const suffixes[2] = { "scales", "biases" };
    struct qv_found *const to[2] = { &stored->scales, &stored->biases };
    const char *weight = stored->weight.tensor->name;
    const size_t stem = strlen(weight) - strlen("weight");
    qv_status status = QV_OK;
    for (int i = 0; i < 2 && !status; i++) {
        struct qv_text full = { 0 };
        qv_text_add(&full, weight, stem);
        qv_text_add(&full, suffixes[i], strlen(suffixes[i]) + 1);
        if (full.lost)
            status = qv_no_memory(in->dir, err);
        else
            status = qv_checkpoint_find(in->checkpoint, full.at, &to[i]->tensor, &to[i]->file, err);
        if (!status && !to[i]->tensor)
            status = qv_fail(err, QV_EFORMAT, "%s: no tensor %.200s, but %.200s is quantised (U32)",
                             in->dir, full.at, weight);
        free(full.at);
    }
    if (status)
        return status;
    return check_quantised(spec, stored, err);
}

/* Computes out[rows, k] = q * scale + bias in f32 from codes[rows, k*bits/32]. */
static void
dequantise(const struct qv_stored_tensor *stored, int64_t rows, const uint32_t *codes,
           const void *scales, const void *biases, float *out)
{
    const int per_word = 32 / stored->bits;
    const uint32_t mask = (1u << stored->bits) - 1;
    const qv_dtype dtype = stored->scales.tensor->dtype;
    for (int64_t i = 0; i < rows * stored->k; i++) {
        const int shift = (int)(i % per_word) * stored->bits;
        const float q = (float)(codes[i / per_word] >> shift & mask);
        const int64_t group = i / stored->group;
        out[i] = q * (float)qv_load(scales, dtype, group) + (float)qv_load(biases, dtype, group);
    }
}

/* Returns the size of a row in the file. */
struct quantised_row {
    size_t codes, scales; /* biases have as many bytes as scales */
};

static struct quantised_row
quantised_row(const struct qv_stored_tensor *stored)
{
    return (struct quantised_row){ (size_t)(stored->k * stored->bits / 8),
                                   (size_t)(stored->k / stored->group) *
                                       qv_dtype_bytes(stored->scales.tensor->dtype) };
}

static qv_status
read_quantised(const struct qv_stored_tensor *stored, int64_t row, int64_t rows, char *raw,
               float *out, qv_error *err)
{
    const struct qv_found *const found[3] = { &stored->weight, &stored->scales, &stored->biases };
    const struct quantised_row one = quantised_row(stored);
    const size_t row_bytes[3] = { one.codes, one.scales, one.scales };
    char *at[3] = { raw, raw + (size_t)rows * one.codes,
                    raw + (size_t)rows * (one.codes + one.scales) };
    for (int i = 0; i < 3; i++) {
        qv_status status =
            qv_safetensors_read(found[i]->file, found[i]->tensor, (uint64_t)row * row_bytes[i],
                                at[i], (size_t)rows * row_bytes[i], err);
        if (status)
            return status;
    }
    dequantise(stored, rows, (const uint32_t *)(const void *)at[0], at[1], at[2], out);
    return QV_OK;
}

/* ---- stored tensors -------------------------------------------------------------------------- */

qv_status
qv_stored_find(const struct qv_stored_tower *in, const struct qv_config *config,
               const struct qv_tensor_spec *spec, int i, struct qv_stored_tensor *out,
               qv_error *err)
{
    if (in->gguf)
        return qv_stored_gguf_find(in->gguf, config, spec, i, out, err);
    const struct qv_stored_name *own = qv_stored_own(in, spec->names[i]);
    if (!own || !own->in_file)
        return qv_stored_missing(in, in->prefix, spec->names[i], err);
    *out = (struct qv_stored_tensor){
        .k = spec->k, .single = spec->single, .run = spec->run, .copies = spec->copies
    };
    const qv_status status = qv_checkpoint_find(in->checkpoint, own->in_file, &out->weight.tensor,
                                                &out->weight.file, err);
    const struct qv_safetensor *t = out->weight.tensor;
    if (status)
        return status;
    out->path = qv_safetensors_path(out->weight.file);
    out->name = t->name;
    out->dtype = t->dtype;
    if (is_quantised(t, spec))
        return find_quantised(in, spec, out, err);
    if (!can_be_loaded(t))
        return qv_fail(err, QV_EUNSUPPORTED, "%s: tensor %s is %s; F32, F16 and BF16 can be loaded",
                       qv_safetensors_path(out->weight.file), t->name, t->dtype_name);
    return check_shape(config, spec, out, err);
}

size_t
qv_stored_row_bytes(const struct qv_stored_tensor *stored)
{
    const size_t values = (size_t)stored->k * qv_dtype_bytes(stored->dtype);
    if (stored->gguf)
        return qv_stored_gguf_row_bytes(stored);
    if (!stored->bits)
        return values;
    const struct quantised_row row = quantised_row(stored);
    const size_t bytes = row.codes + 2 * row.scales;
    return bytes > values ? bytes : values;
}

/* Reads rows as stored. */
static qv_status
read_rows(const struct qv_stored_tensor *stored, int64_t row, int64_t rows,
          const struct qv_stored_room *room, void **values, qv_error *err)
{
    if (stored->bits) {
        *values = room->canonical;
        return read_quantised(stored, row, rows, room->raw, room->canonical, err);
    }
    const size_t element = qv_dtype_bytes(stored->dtype), row_bytes = (size_t)stored->k * element;
    qv_status status = QV_OK;
    *values = room->raw;
    if (stored->gguf)
        status = qv_stored_gguf_read(stored, row, rows, room, values, err);
    else
        status = qv_safetensors_read(stored->weight.file, stored->weight.tensor,
                                     (uint64_t)row * row_bytes, room->raw, (size_t)rows * row_bytes,
                                     err);
    if (!status && stored->stored_cols) {
        void *from = *values, *to = from == room->raw ? room->canonical : room->raw;
        qv_conv3d_channels_last_to_first(from, rows, stored->stored_rows, stored->stored_cols,
                                         element, to);
        *values = to;
    }
    return status;
}

qv_status
qv_stored_read(const struct qv_stored_tensor *stored, int64_t row, int64_t rows,
               const struct qv_stored_room *room, void **values, qv_error *err)
{
    const size_t needed = (size_t)rows * qv_stored_row_bytes(stored);
    if (needed > room->bytes) /* a safeguard: callers size the room with qv_stored_row_bytes */
        return qv_fail(err, QV_EFORMAT,
                       "%s: tensor %s: %lld rows need %zu bytes, but there is room for %zu",
                       stored->path, stored->name, (long long)rows, needed, room->bytes);
    if (!stored->copies)
        return read_rows(stored, row, rows, room, values, err);
    const size_t row_bytes = qv_stored_row_bytes(stored);
    qv_status status = QV_OK;
    for (int64_t at = 0, n; at < rows && !status; at += n) {
        const int64_t behind = row + at - stored->single, in = behind % stored->run;
        const int64_t left = behind < 0 ? -behind : stored->run - in;
        const int64_t from =
            behind < 0 ? row + at
                       : stored->single + in + behind / stored->run / stored->copies * stored->run;
        const size_t before = (size_t)at * row_bytes;
        const struct qv_stored_room part = { (char *)room->raw + before,
                                             (char *)room->canonical + before,
                                             room->bytes - before };
        void *read = NULL;
        n = rows - at < left ? rows - at : left;
        status = read_rows(stored, from, n, &part, &read, err);
        *values = at ? *values : read;
    }
    return status;
}

QV_CLONES void
qv_convert(const void *src, qv_dtype from, void *dst, qv_dtype to, int64_t n)
{
    const uint16_t *h = src; /* both bf16 and f16 */
    const float *f = src;
    float *y = dst;
    qv_bf16 *z = dst;
    if (from == to)
        memcpy(dst, src, (size_t)n * qv_dtype_bytes(from));
    else if (from == QV_BF16 && to == QV_F32)
        for (int64_t i = 0; i < n; i++)
            y[i] = qv_bf16_to_f32(h[i]);
    else if (from == QV_F32 && to == QV_BF16)
        for (int64_t i = 0; i < n; i++)
            z[i] = qv_f32_to_bf16(f[i]);
    else if (from == QV_F16 && to == QV_F32)
        for (int64_t i = 0; i < n; i++)
            y[i] = qv_f16_to_f32(h[i]);
    else if (from == QV_F16 && to == QV_BF16)
        for (int64_t i = 0; i < n; i++)
            z[i] = qv_f32_to_bf16(qv_f16_to_f32(h[i]));
    else
        for (int64_t i = 0; i < n; i++)
            qv_store(dst, to, i, qv_load(src, from, i));
}
