/* SPDX-License-Identifier: MIT */
#include "weights.h"

#include <math.h>
#include <stdlib.h>

#include "dtype.h"
#include "error.h"
#include "geometry.h"
#include "part.h"

#ifdef QV_WITH_XXHASH
#define XXH_INLINE_ALL
#include <xxhash.h>
#endif

/* Bytes of a slice as read; with its converted copy it stays far below the 64 MiB promised. */
enum { SLICE_BYTES = 8 << 20 };

/* One tensor on its way from the file to the device. */
struct source {
    struct qv_tensor_spec spec;
    struct qv_tensor_part parts[QV_MOST_PARTS];
    struct qv_layout layout; /* on the device */
};

struct loader {
    struct qv_device *dev;
    const struct qv_config *config;
    const struct qv_tower *tower;
    struct qv_checkpoint *checkpoint;
    const char *dir, *prefix;
    qv_dtype dtype;
    struct source *sources;
    void *raw, *canonical, *converted; /* slices */
#ifdef QV_WITH_XXHASH
    XXH3_state_t *hash;
#endif
};

static qv_status
find_all(struct loader *l, size_t n, qv_error *err)
{
    const struct qv_tensor_spec *patch_embed = &l->tower->tensors[l->tower->patch_embed.weight];
    qv_status status = qv_part_find_prefix(l->checkpoint, l->dir, patch_embed, &l->prefix, err);
    for (size_t id = 0; id < n && !status; id++) {
        struct source *s = &l->sources[id];
        s->spec = l->tower->tensors[id];
        for (int i = 0; i < s->spec.n_parts && !status; i++)
            status = qv_part_find(l->checkpoint, l->dir, l->prefix, l->config, &s->spec, i,
                                  &s->parts[i], err);
    }
    return status;
}

/* ---- sizes ----------------------------------------------------------------------------------- */

static qv_status
layout_of(struct loader *l, const struct qv_tensor_spec *spec, struct qv_layout *out, qv_error *err)
{
    struct qv_matrix matrix = { qv_tensor_rows(spec), spec->k + spec->pad_k, l->dtype, NULL };
    *out = (struct qv_layout){ (size_t)(matrix.n * matrix.k) * qv_dtype_bytes(l->dtype), 1 };
    if (spec->form == QV_TENSOR_VECTOR)
        out->bytes = (size_t)spec->n * sizeof(float);
    if (spec->form != QV_TENSOR_MATRIX)
        return QV_OK;
    return l->dev->backend->layout(l->dev, &matrix, out, err);
}

static size_t
angle_values(const struct qv_config *c)
{
    return (size_t)QV_MOST_POSITIONS * (size_t)(qv_config_head_dim(c) / 4);
}

static qv_status
measure(struct loader *l, struct qv_weights *w, qv_error *err)
{
    for (size_t id = 0; id < w->n; id++) {
        struct source *s = &l->sources[id];
        qv_status status = layout_of(l, &s->spec, &s->layout, err);
        if (status)
            return status;
        w->buffers[id].offset = w->bytes;
        w->bytes += qv_aligned(s->layout.bytes);
        w->n_parameters += s->spec.n_parts * s->spec.n * s->spec.k;
    }
    for (int i = 0; i < 2; i++) { /* cosines, sines */
        w->buffers[w->n + i].offset = w->bytes;
        w->bytes += qv_aligned(angle_values(l->config) * sizeof(float));
    }
    return QV_OK;
}

/* Values of a row as the device has it, which has no fewer. */
static int64_t
longest_row(const struct source *s)
{
    return s->spec.k + s->spec.pad_k;
}

/* ---- reading --------------------------------------------------------------------------------- */

static void
convert(const void *src, qv_dtype from, void *dst, qv_dtype to, int64_t n)
{
    const qv_bf16 *h = src;
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
    else
        for (int64_t i = 0; i < n; i++)
            qv_store(dst, to, i, qv_load(src, from, i));
}

/* Its index, or n. */
static int64_t
first_not_finite(const void *values, qv_dtype dtype, int64_t n)
{
    const float *f = values;
    const qv_bf16 *h = values;
    bool finite = dtype == QV_F32 || dtype == QV_BF16; /* else not known before the loop below */
    if (dtype == QV_F32)
        for (int64_t i = 0; i < n; i++)
            finite &= fabsf(f[i]) <= 3.4028235e38f;
    if (dtype == QV_BF16)
        for (int64_t i = 0; i < n; i++)
            finite &= (h[i] & 0x7f80) != 0x7f80;
    int64_t i = finite ? n : 0;
    while (i < n && isfinite(qv_load(values, dtype, i)))
        i++;
    return i;
}

static void
digest_slice(struct loader *l, const struct source *s, int part, int64_t row, const void *data,
             size_t bytes)
{
#ifdef QV_WITH_XXHASH
    const char *name = s->spec.names[part], *dtype = s->parts[part].weight.tensor->dtype_name;
    if (row == 0) {
        XXH3_128bits_update(l->hash, name, strlen(name) + 1);
        XXH3_128bits_update(l->hash, dtype, strlen(dtype) + 1);
    }
    XXH3_128bits_update(l->hash, data, bytes);
#else
    (void)l, (void)s, (void)part, (void)row, (void)data, (void)bytes;
#endif
}

/* Rows row .. row+rows of a part as [rows, spec.k] in `to`. */
static qv_status
read_slice(struct loader *l, const struct source *s, int part, int64_t row, int64_t rows,
           qv_dtype dtype, void *to, qv_error *err)
{
    const struct qv_tensor_part *from = &s->parts[part];
    int64_t n = rows * s->spec.k;
    void *values;
    qv_status status =
        qv_part_read(from, l->config, s->spec.k, row, rows, l->raw, l->canonical, &values, err);
    if (status)
        return status;
    digest_slice(l, s, part, row, values, (size_t)n * qv_dtype_bytes(from->dtype));
    convert(values, from->dtype, to, dtype, n);
    int64_t bad = first_not_finite(to, dtype, n);
    if (bad < n)
        return qv_fail(err, QV_EFORMAT, "%s: tensor %s: value %lld is not finite in %s",
                       qv_safetensors_path(from->weight.file), from->weight.tensor->name,
                       (long long)(row * s->spec.k + bad), qv_dtype_name(dtype));
    return QV_OK;
}

/* values[rows, k] become [rows, k + pad], from the end on, as they move up. */
static void
pad_rows(void *values, size_t element, int64_t rows, int64_t k, int64_t pad)
{
    size_t from = (size_t)k * element, to = (size_t)(k + pad) * element;
    for (int64_t i = rows; pad && i-- > 0;) {
        char *row = (char *)values + (size_t)i * to;
        memmove(row, (char *)values + (size_t)i * from, from);
        memset(row + from, 0, to - from);
    }
}

/* Rows row .. row+rows as the device has them, [rows, k + pad_k], in l->converted: of one part, or of
 * the next ones too, and the zeros between. */
static qv_status
read_rows(struct loader *l, const struct source *s, int64_t row, int64_t rows, qv_dtype dtype,
          qv_error *err)
{
    const struct qv_tensor_spec *spec = &s->spec;
    const int64_t apart = spec->n + spec->pad_n;
    const size_t element = qv_dtype_bytes(dtype), row_bytes = (size_t)longest_row(s) * element;
    char *at = l->converted;
    qv_status status = QV_OK;
    for (int64_t n; rows && !status; row += n, rows -= n, at += (size_t)n * row_bytes) {
        const int64_t part = row / apart, in = row % apart;
        const int64_t left = in < spec->n ? spec->n - in : apart - in;
        n = rows < left ? rows : left;
        if (in < spec->n) {
            status = read_slice(l, s, (int)part, in, n, dtype, at, err);
            pad_rows(at, element, n, spec->k, spec->pad_k);
        } else {
            memset(at, 0, (size_t)n * row_bytes);
        }
    }
    return status;
}

/* Rows of zeros behind the last are there: alloc'ed memory is zero. */
static qv_status
load_tensor(struct loader *l, const struct source *s, struct qv_buffer dst, qv_error *err)
{
    const struct qv_backend *be = l->dev->backend;
    const struct qv_tensor_spec *spec = &s->spec;
    qv_dtype to = spec->form == QV_TENSOR_VECTOR ? QV_F32 : l->dtype;
    struct qv_matrix matrix = { qv_tensor_rows(spec), spec->k + spec->pad_k, l->dtype, NULL };
    qv_status status = QV_OK;
    int64_t multiple = s->layout.row_multiple, all = qv_tensor_rows(spec) - spec->pad_n;
    int64_t step = SLICE_BYTES / (longest_row(s) * 4) / multiple * multiple;
    if (step < multiple)
        step = multiple;
    for (int64_t row = 0; row < all && !status; row += step) {
        int64_t rows = all - row < step ? all - row : step;
        status = read_rows(l, s, row, rows, to, err);
        if (status)
            break;
        if (spec->form == QV_TENSOR_MATRIX) {
            status = be->pack(l->dev, &matrix, row, rows, l->converted, dst, err);
        } else {
            size_t row_bytes = (size_t)spec->k * qv_dtype_bytes(to);
            struct qv_buffer at = { dst.memory, dst.offset + (size_t)row * row_bytes };
            status = be->upload(l->dev, at, l->converted, (size_t)rows * row_bytes, err);
        }
    }
    return status;
}

static qv_status
load_all(struct loader *l, struct qv_weights *w, qv_error *err)
{
    int64_t longest = 1, multiple = 1;
    for (size_t id = 0; id < w->n; id++) {
        const struct source *s = &l->sources[id];
        longest = longest_row(s) > longest ? longest_row(s) : longest;
        multiple = s->layout.row_multiple > multiple ? s->layout.row_multiple : multiple;
    }
    size_t bytes = (size_t)(longest * multiple) * 4;
    bytes = bytes > SLICE_BYTES ? bytes : SLICE_BYTES;
    l->raw = malloc(bytes);
    l->canonical = malloc(bytes);
    l->converted = malloc(bytes);
    if (!l->raw || !l->canonical || !l->converted)
        return qv_fail(err, QV_ENOMEM, "no memory for slices of %zu bytes", bytes);
    qv_status status = l->dev->backend->alloc(l->dev, w->bytes, &w->memory, err);
    for (size_t id = 0; id < w->n && !status; id++) {
        w->buffers[id].memory = w->memory;
        status = load_tensor(l, &l->sources[id], w->buffers[id], err);
    }
    return status;
}

/* What the positions turn by is not in the checkpoint. */
static qv_status
load_angles(struct loader *l, struct qv_weights *w, qv_error *err)
{
    const struct qv_config *c = l->config;
    size_t n = angle_values(c), bytes = n * sizeof(float);
    float *angles = malloc(2 * bytes);
    if (!angles)
        return qv_fail(err, QV_ENOMEM, "no memory for %zu rotary angles", n);
    qv_geometry_angles(QV_MOST_POSITIONS, qv_config_head_dim(c), c->rope_theta, angles, angles + n);
    qv_status status = QV_OK;
    for (int i = 0; i < 2 && !status; i++) {
        struct qv_buffer *at = &w->buffers[w->n + (size_t)i];
        at->memory = w->memory;
        status = l->dev->backend->upload(l->dev, *at, angles + (size_t)i * n, bytes, err);
    }
    free(angles);
    return status;
}

static qv_status
digest_begin(struct loader *l, qv_error *err)
{
#ifdef QV_WITH_XXHASH
    l->hash = XXH3_createState();
    if (!l->hash)
        return qv_fail(err, QV_ENOMEM, "no memory for a digest");
    XXH3_128bits_reset(l->hash);
#else
    (void)l, (void)err;
#endif
    return QV_OK;
}

static void
digest_end(struct loader *l, char *text, size_t size)
{
#ifdef QV_WITH_XXHASH
    XXH128_hash_t h = XXH3_128bits_digest(l->hash);
    snprintf(text, size, "%016llx%016llx", (unsigned long long)h.high64,
             (unsigned long long)h.low64);
#else
    (void)l, (void)size;
    text[0] = 0;
#endif
}

qv_status
qv_weights_load(struct qv_device *dev, const struct qv_config *config, const struct qv_tower *tower,
                const char *dir, qv_dtype dtype, bool describe, struct qv_weights *out,
                qv_error *err)
{
    struct loader l = { .dev = dev, .config = config, .tower = tower, .dir = dir, .dtype = dtype };
    struct qv_weights w = { .n = tower->n };
    l.sources = calloc(w.n, sizeof *l.sources);
    w.buffers = calloc(w.n + 2, sizeof *w.buffers);
    qv_status status = l.sources && w.buffers
                           ? qv_checkpoint_open(dir, &l.checkpoint, err)
                           : qv_fail(err, QV_ENOMEM, "no memory for %zu tensors", w.n);
    if (!status)
        status = find_all(&l, w.n, err);
    if (!status)
        status = measure(&l, &w, err);
    if (!status && !describe) {
        status = digest_begin(&l, err);
        if (!status)
            status = load_all(&l, &w, err);
        if (!status)
            status = load_angles(&l, &w, err);
        if (!status)
            digest_end(&l, w.digest, sizeof w.digest);
    }
#ifdef QV_WITH_XXHASH
    XXH3_freeState(l.hash);
#endif
    free(l.raw);
    free(l.canonical);
    free(l.converted);
    free(l.sources);
    qv_checkpoint_close(&l.checkpoint);
    if (status)
        qv_weights_free(dev, &w);
    else
        *out = w;
    return status;
}

void
qv_weights_free(struct qv_device *dev, struct qv_weights *weights)
{
    if (weights->memory)
        dev->backend->free(dev, weights->memory);
    free(weights->buffers);
    memset(weights, 0, sizeof *weights);
}
