/* SPDX-License-Identifier: MIT */
#include "towers/weights.h"

#include <math.h>
#include <stdlib.h>

#include "conv3d/lower.h"
#include "dtype.h"
#include "error.h"
#include "files/safetensors.h"

#ifdef QV_WITH_XXHASH
#define XXH_INLINE_ALL
#include <xxhash.h>
#endif

/* Bytes of a slice as read; with its converted copy it stays far below the 64 MiB promised. */
enum { SLICE_BYTES = 8 << 20 };

/* One tensor on its way from the file to the device. */
struct source {
    struct qv_tensor_spec spec;
    const struct qv_safetensor *tensor;
    const struct qv_safetensors *file;
    struct qv_layout layout; /* on the device */
    bool channels_last;
    int64_t file_k; /* values in a row as stored: more than spec.k where depth is summed */
};

struct loader {
    struct qv_device *dev;
    const struct qv_config *config;
    struct qv_checkpoint *checkpoint;
    const char *dir, *prefix;
    qv_dtype dtype;
    struct source *sources;
    void *raw, *canonical, *converted; /* slices */
#ifdef QV_WITH_XXHASH
    XXH3_state_t *hash;
#endif
};

/* ---- finding --------------------------------------------------------------------------------- */

static qv_status
find(struct loader *l, const char *prefix, const char *name, struct source *s, qv_error *err)
{
    char full[160];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    return qv_checkpoint_find(l->checkpoint, full, &s->tensor, &s->file, err);
}

/* "patch_embed.proj.weight" is also known as "patch_embed.linear_proj.weight". */
static qv_status
find_either_name(struct loader *l, const char *prefix, struct source *s, qv_error *err)
{
    static const char proj[] = "patch_embed.proj.";
    qv_status status = find(l, prefix, s->spec.name, s, err);
    if (!status && !s->tensor && !strncmp(s->spec.name, proj, sizeof proj - 1)) {
        char other[96];
        snprintf(other, sizeof other, "patch_embed.linear_proj.%s", s->spec.name + sizeof proj - 1);
        status = find(l, prefix, other, s, err);
    }
    return status;
}

static qv_status
find_prefix(struct loader *l, qv_error *err)
{
    static const char *const prefixes[] = { "model.visual.", "visual.", "vision_tower.", "" };
    struct source s = { .spec = qv_tower_tensor(l->config, PATCH_WEIGHT) };
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        qv_status status = find_either_name(l, prefixes[i], &s, err);
        if (status)
            return status;
        if (s.tensor) {
            l->prefix = prefixes[i];
            return QV_OK;
        }
    }
    return qv_fail(err, QV_EFORMAT,
                   "%s: no tensor model.visual.patch_embed.proj.weight (nor with another known "
                   "prefix): this checkpoint holds no Qwen-VL vision tower",
                   l->dir);
}

static void
print_shape(const int64_t *shape, int n, char *text, size_t size)
{
    size_t at = 0;
    text[0] = 0;
    for (int i = 0; i < n && at < size; i++)
        at += (size_t)snprintf(text + at, size - at, "%s%lld", i ? "," : "", (long long)shape[i]);
}

static bool
shape_is(const struct qv_safetensor *t, const int64_t *shape, int n)
{
    return t->n_dims == n && !memcmp(t->shape, shape, (size_t)n * sizeof *shape);
}

static qv_status
check_shape(struct loader *l, struct source *s, qv_error *err)
{
    const struct qv_config *c = l->config;
    const struct qv_tensor_spec *spec = &s->spec;
    int64_t first[] = { c->hidden, c->in_channels, c->temporal, c->patch, c->patch };
    int64_t last[] = { c->hidden, c->temporal, c->patch, c->patch, c->in_channels };
    int64_t flat[] = { spec->n, spec->k };
    int dims = spec->form == QV_TENSOR_VECTOR || spec->form == QV_TENSOR_BIAS ? 1 : 2;
    if (spec->conv3d)
        flat[1] = qv_config_row_dim(c);
    s->file_k = flat[1];
    s->channels_last =
        spec->conv3d && shape_is(s->tensor, last, 5) && !shape_is(s->tensor, first, 5);
    if (shape_is(s->tensor, flat, dims) || s->channels_last ||
        (spec->conv3d && shape_is(s->tensor, first, 5)))
        return QV_OK;
    char found[128], wanted[128];
    print_shape(s->tensor->shape, s->tensor->n_dims, found, sizeof found);
    print_shape(spec->conv3d ? first : flat, spec->conv3d ? 5 : dims, wanted, sizeof wanted);
    return qv_fail(err, QV_EFORMAT, "%s: tensor %s has shape [%s], config.json asks for [%s]",
                   qv_safetensors_path(s->file), s->tensor->name, found, wanted);
}

static qv_status
find_all(struct loader *l, size_t n, qv_error *err)
{
    qv_status status = find_prefix(l, err);
    for (size_t id = 0; id < n && !status; id++) {
        struct source *s = &l->sources[id];
        s->spec = qv_tower_tensor(l->config, id);
        status = find_either_name(l, l->prefix, s, err);
        if (!status && !s->tensor)
            return qv_fail(err, QV_EFORMAT, "%s: no tensor %s%s", l->dir, l->prefix, s->spec.name);
        if (!status && (s->tensor->dtype == QV_DTYPE_AUTO || s->tensor->dtype == QV_U8))
            return qv_fail(err, QV_EUNSUPPORTED,
                           "%s: tensor %s is %s; F32, F16 and BF16 can be loaded",
                           qv_safetensors_path(s->file), s->tensor->name, s->tensor->dtype_name);
        if (!status)
            status = check_shape(l, s, err);
    }
    return status;
}

/* ---- sizes ----------------------------------------------------------------------------------- */

static qv_status
layout_of(struct loader *l, const struct qv_tensor_spec *spec, struct qv_layout *out, qv_error *err)
{
    struct qv_matrix matrix = { spec->n + spec->pad_n, spec->k + spec->pad_k, l->dtype, NULL };
    *out = (struct qv_layout){ (size_t)(matrix.n * matrix.k) * qv_dtype_bytes(l->dtype), 1 };
    if (spec->form == QV_TENSOR_VECTOR)
        out->bytes = (size_t)spec->n * sizeof(float);
    if (spec->form != QV_TENSOR_MATRIX)
        return QV_OK;
    return l->dev->backend->layout(l->dev, &matrix, out, err);
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
        if (!s->spec.sum_depth)
            w->n_parameters += s->spec.n * s->spec.k;
    }
    return QV_OK;
}

/* Values of a row, as stored or as the device has it. */
static int64_t
longest_row(const struct source *s)
{
    int64_t k = s->spec.k + s->spec.pad_k;
    return s->file_k > k ? s->file_k : k;
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
    else if (from == QV_BF16)
        for (int64_t i = 0; i < n; i++)
            y[i] = qv_bf16_to_f32(h[i]);
    else if (from == QV_F32)
        for (int64_t i = 0; i < n; i++)
            z[i] = qv_f32_to_bf16(f[i]);
    else
        for (int64_t i = 0; i < n; i++)
            qv_store(dst, to, i, qv_f16_to_f32(h[i]));
}

/* Its index, or n. */
static int64_t
first_not_finite(const void *values, qv_dtype dtype, int64_t n)
{
    const float *f = values;
    const qv_bf16 *h = values;
    bool finite = true;
    if (dtype == QV_F32)
        for (int64_t i = 0; i < n; i++)
            finite &= fabsf(f[i]) <= 3.4028235e38f;
    else
        for (int64_t i = 0; i < n; i++)
            finite &= (h[i] & 0x7f80) != 0x7f80;
    int64_t i = finite ? n : 0;
    while (i < n && isfinite(qv_load(values, dtype, i)))
        i++;
    return i;
}

static void
digest_slice(struct loader *l, const struct source *s, int64_t row, const void *data, size_t bytes)
{
#ifdef QV_WITH_XXHASH
    if (row == 0) {
        XXH3_128bits_update(l->hash, s->spec.name, strlen(s->spec.name) + 1);
        XXH3_128bits_update(l->hash, s->tensor->dtype_name, strlen(s->tensor->dtype_name) + 1);
    }
    XXH3_128bits_update(l->hash, data, bytes);
#else
    (void)l, (void)s, (void)row, (void)data, (void)bytes;
#endif
}

/* Rows row .. row+rows as [rows, spec.k] in `to`, in l->converted. */
static qv_status
read_slice(struct loader *l, const struct source *s, int64_t row, int64_t rows, qv_dtype to,
           qv_error *err)
{
    const struct qv_config *c = l->config;
    size_t element = qv_dtype_bytes(s->tensor->dtype), row_bytes = (size_t)s->file_k * element;
    size_t bytes = (size_t)rows * row_bytes;
    void *values = l->raw;
    qv_status status =
        qv_safetensors_read(s->file, s->tensor, (uint64_t)row * row_bytes, l->raw, bytes, err);
    if (status)
        return status;
    if (s->channels_last) {
        qv_conv3d_channels_last_to_first(l->raw, rows, c->temporal * c->patch * c->patch,
                                         c->in_channels, element, l->canonical);
        values = l->canonical;
    }
    if (!s->spec.sum_depth)
        digest_slice(l, s, row, values, bytes);
    qv_dtype from = s->tensor->dtype;
    int64_t n = rows * s->spec.k;
    if (s->spec.sum_depth)
        qv_conv3d_sum_depth(values, from, rows, c->in_channels, c->temporal, c->patch * c->patch,
                            to, l->converted);
    else
        convert(values, from, l->converted, to, n);
    int64_t bad = first_not_finite(l->converted, to, n);
    if (bad < n)
        return qv_fail(err, QV_EFORMAT, "%s: tensor %s: value %lld is not finite in %s",
                       qv_safetensors_path(s->file), s->tensor->name,
                       (long long)(row * s->spec.k + bad), qv_dtype_name(to));
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

/* Rows of zeros behind the last are there: alloc'ed memory is zero. */
static qv_status
load_tensor(struct loader *l, const struct source *s, struct qv_buffer dst, qv_error *err)
{
    const struct qv_backend *be = l->dev->backend;
    const struct qv_tensor_spec *spec = &s->spec;
    qv_dtype to = spec->form == QV_TENSOR_VECTOR ? QV_F32 : l->dtype;
    struct qv_matrix matrix = { spec->n + spec->pad_n, spec->k + spec->pad_k, l->dtype, NULL };
    qv_status status = QV_OK;
    int64_t multiple = s->layout.row_multiple;
    int64_t step = SLICE_BYTES / (longest_row(s) * 4) / multiple * multiple;
    if (step < multiple)
        step = multiple;
    for (int64_t row = 0; row < spec->n && !status; row += step) {
        int64_t rows = spec->n - row < step ? spec->n - row : step;
        status = read_slice(l, s, row, rows, to, err);
        if (status)
            break;
        pad_rows(l->converted, qv_dtype_bytes(to), rows, spec->k, spec->pad_k);
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
qv_weights_load(struct qv_device *dev, const struct qv_config *config, const char *dir,
                qv_dtype dtype, bool describe, struct qv_weights *out, qv_error *err)
{
    struct loader l = { .dev = dev, .config = config, .dir = dir, .dtype = dtype };
    struct qv_weights w = { .n = qv_tower_n_tensors(config) };
    l.sources = calloc(w.n, sizeof *l.sources);
    w.buffers = calloc(w.n, sizeof *w.buffers);
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
