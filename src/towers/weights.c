/* SPDX-License-Identifier: MIT */
#include "weights.h"

#include <math.h>
#include <stdlib.h>

#include "dtype.h"
#include "error.h"
#include "geometry.h"
#include "stored_tensor.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

/* Slices are SLICE_BYTES if one thread reads, and AHEAD_BYTES if several do, because several need
 * more slices. A slice in memory needs three times its bytes, or more if one row is longer; all
 * together stay below the promised 64 MiB. Another thread pays off for every BYTES_PER_THREAD of
 * weights. */
enum {
    SLICE_BYTES = 8 << 20,
    AHEAD_BYTES = 2 << 20,
    MOST_PLACES = 10,
    BYTES_PER_THREAD = 16 << 20
};

/* One tensor on its way from the file to the device. */
struct source {
    struct qv_tensor_spec spec;
    struct qv_stored_tensor stored[QV_MOST_STORED];
    struct qv_layout layout; /* how the device lays it out */
    size_t row_bytes;        /* bytes per row in each block of a place */
};

/* Some rows of a tensor as on the device; they may span several stored tensors. */
struct slice {
    const struct source *source;
    int64_t row, rows;
};

/* The rows of a slice that come from one stored tensor. */
struct piece {
    int stored;
    int64_t row, rows; /* the stored tensor's rows */
    int64_t at;        /* the slice's row at which they begin */
};

/* Rows of a stored tensor as in the file, for the digest. */
struct stored {
    const void *values;
    qv_dtype dtype;
    int64_t n;        /* values */
    const char *name; /* set for its first rows, else NULL */
};

/* The memory in which a slice is read and converted. */
struct place {
    char *raw, *canonical, *converted;
    size_t bytes; /* size of each block */
    struct stored stored[QV_MOST_STORED];
    int n_stored;
};

struct loader {
    struct qv_device *dev;
    const struct qv_config *config;
    const struct qv_tower *tower;
    struct qv_stored_tower stored;
    qv_dtype dtype;
    struct source *sources;
    int threads;          /* how many threads read */
    struct slice *slices; /* the slices of all sources, in their order */
    size_t n_slices, slice_bytes;
    struct place places[MOST_PLACES]; /* slice i is in places[i % n_places] */
    int n_places;
    XXH3_state_t *hash;
};

size_t qv_weights_slice_bytes;

/* Values in a row on the device. A row in the file is not longer. */
static int64_t
longest_row(const struct source *s)
{
    return s->spec.k + s->spec.pad_k;
}

/* The bytes that a row needs in a block: as in the file, or converted, at most to f32. */
static size_t
bytes_of_row(const struct source *s)
{
    size_t most = (size_t)longest_row(s) * sizeof(float);
    for (int i = 0; i < s->spec.n_stored; i++) {
        const size_t bytes = qv_stored_row_bytes(&s->stored[i]);
        most = bytes > most ? bytes : most;
    }
    return most;
}

static qv_status
find_all(struct loader *l, size_t n, qv_error *err)
{
    qv_status status = QV_OK;
    for (size_t id = 0; id < n && !status; id++) {
        struct source *s = &l->sources[id];
        s->spec = l->tower->tensors[id];
        for (int i = 0; i < s->spec.n_stored && !status; i++)
            status = qv_stored_find(&l->stored, l->config, &s->spec, i, &s->stored[i], err);
        s->row_bytes = status ? 0 : bytes_of_row(s);
    }
    return status;
}

/* ---- sizes ----------------------------------------------------------------------------------- */

static struct qv_matrix
matrix_of(const struct loader *l, const struct source *s)
{
    const int64_t rows = qv_tensor_rows(&s->spec);
    return (struct qv_matrix){ .n = rows, .k = longest_row(s), .dtype = l->dtype };
}

static qv_status
layout_of(struct loader *l, const struct source *s, struct qv_layout *out, qv_error *err)
{
    const struct qv_matrix matrix = matrix_of(l, s);
    *out = (struct qv_layout){ (size_t)(matrix.n * matrix.k) * qv_dtype_bytes(l->dtype), 1 };
    if (s->spec.form == QV_TENSOR_VECTOR)
        out->bytes = (size_t)s->spec.n * sizeof(float);
    if (s->spec.form != QV_TENSOR_MATRIX)
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
        qv_status status = layout_of(l, s, &s->layout, err);
        if (status)
            return status;
        w->buffers[id].offset = w->bytes;
        w->bytes += qv_aligned(s->layout.bytes);
        w->n_parameters += s->spec.n_stored * qv_stored_rows(&s->spec) * s->spec.k;
    }
    for (int i = 0; i < 2; i++) { /* the rotary angles' cosines and sines */
        w->buffers[w->n + i].offset = w->bytes;
        w->bytes += qv_aligned(angle_values(l->config) * sizeof(float));
    }
    return QV_OK;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Returns the index of the first value that is not finite, or n. The loops have no branches and a
 * single width, so that compilers vectorise them. */
static int64_t
first_not_finite(const void *values, qv_dtype dtype, int64_t n)
{
    const float *f = values;
    const qv_bf16 *h = values;
    /* other dtypes are checked only by the last loop */
    bool finite = dtype == QV_F32 || dtype == QV_BF16;
    int beyond = 0;
    uint16_t carry = 0; /* an exponent of all ones carries into the sign bit */
    if (dtype == QV_F32)
        for (int64_t i = 0; i < n; i++)
            beyond |= !(fabsf(f[i]) <= 3.4028235e38f);
    if (dtype == QV_BF16)
        for (int64_t i = 0; i < n; i++)
            carry |= (uint16_t)((h[i] & 0x7f80) + 0x80);
    finite &= !beyond && !(carry & 0x8000);
    int64_t i = finite ? n : 0;
    while (i < n && isfinite(qv_load(values, dtype, i)))
        i++;
    return i;
}

/* Reads a piece as [rows, spec.k] to `to`, which is in the place's converted rows. If the file has
 * the values in the device's format, they are read directly, without a copy. */
static qv_status
read_piece(const struct source *s, const struct piece *piece, qv_dtype dtype, struct place *place,
           void *to, qv_error *err)
{
    const struct qv_stored_tensor *from = &s->stored[piece->stored];
    const int64_t n = piece->rows * s->spec.k;
    const size_t before = (size_t)piece->at * s->row_bytes;
    const bool in_place = from->dtype == dtype && !s->spec.pad_k;
    const struct qv_stored_room room = { in_place ? to : place->raw + before,
                                         place->canonical + before,
                                         before < place->bytes ? place->bytes - before : 0 };
    void *values;
    qv_status status = qv_stored_read(from, piece->row, piece->rows, &room, &values, err);
    if (status)
        return status;
    place->stored[place->n_stored++] =
        (struct stored){ values, from->dtype, n, piece->row ? NULL : s->spec.names[piece->stored] };
    if (values != to)
        qv_convert(values, from->dtype, to, dtype, n);
    int64_t bad = first_not_finite(to, dtype, n);
    if (bad < n)
        return qv_fail(err, QV_EFORMAT, "%s: tensor %s: value %lld is not finite in %s", from->path,
                       from->name, (long long)(piece->row * s->spec.k + bad), qv_dtype_name(dtype));
    return QV_OK;
}

/* Spreads values[rows, k] to [rows, k + pad], with zeros after each row. The last row moves first,
 * since rows move up. */
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

static qv_dtype
dtype_of(const struct loader *l, const struct source *s)
{
    return s->spec.form == QV_TENSOR_VECTOR ? QV_F32 : l->dtype;
}

/* Reads a slice's rows into its place in the device's format, [rows, k + pad_k]. They may come from
 * several stored tensors, with rows of zeros between. */
static qv_status
read_slice(void *loader, size_t i, qv_error *err)
{
    const struct loader *l = loader;
    const struct slice *slice = &l->slices[i];
    const struct qv_tensor_spec *spec = &slice->source->spec;
    struct place *place = &((struct loader *)loader)->places[i % (size_t)l->n_places];
    const qv_dtype dtype = dtype_of(l, slice->source);
    const int64_t apart = spec->n + spec->pad_n;
    const size_t element = qv_dtype_bytes(dtype);
    const size_t row_bytes = (size_t)longest_row(slice->source) * element;
    qv_status status = QV_OK;
    place->n_stored = 0;
    for (int64_t at = 0, n; at < slice->rows && !status; at += n) {
        const int64_t row = slice->row + at, in = row % apart;
        const int64_t left = in < spec->n ? spec->n - in : apart - in;
        char *to = place->converted + (size_t)at * row_bytes;
        n = slice->rows - at < left ? slice->rows - at : left;
        if (in < spec->n) {
            const struct piece piece = { (int)(row / apart), in, n, at };
            status = read_piece(slice->source, &piece, dtype, place, to, err);
            pad_rows(to, element, n, spec->k, spec->pad_k);
        } else {
            memset(to, 0, (size_t)n * row_bytes);
        }
    }
    return status;
}

/* Adds rows of a tensor to the digest, which covers each tensor's name with its zero byte, and its
 * values in f32. Any copy of the checkpoint whose dtype can represent the values has the same
 * digest. */
static void
digest(XXH3_state_t *hash, const struct stored *s)
{
    const size_t element = qv_dtype_bytes(s->dtype);
    float widened[2048]; /* small enough to stay in the L1 cache */
    if (s->name)
        XXH3_128bits_update(hash, s->name, strlen(s->name) + 1);
    for (int64_t i = 0, n; i < s->n; i += n) {
        const char *values = (const char *)s->values + (size_t)i * element;
        n = s->dtype == QV_F32 || s->n - i < 2048 ? s->n - i : 2048;
        if (s->dtype != QV_F32)
            qv_convert(values, s->dtype, widened, QV_F32, n);
        XXH3_128bits_update(hash, s->dtype == QV_F32 ? values : (const char *)widened,
                            (size_t)n * sizeof(float));
    }
}

/* Adds a slice to the digest. Called in the slices' order. */
static void
digest_slice(void *loader, size_t i)
{
    const struct loader *l = loader;
    const struct place *place = &l->places[i % (size_t)l->n_places];
    for (int s = 0; s < place->n_stored; s++)
        digest(l->hash, &place->stored[s]);
}

/* ---- slices ---------------------------------------------------------------------------------- */

/* Cuts all sources into slices; while l->slices is NULL it only counts them. The rows of zeros
 * after a tensor's last rows need no slice, as the device's memory is zeroed. */
static void
cut_slices(struct loader *l, size_t n_sources)
{
    l->n_slices = 0;
    for (const struct source *s = l->sources; s < l->sources + n_sources; s++) {
        int64_t multiple = s->layout.row_multiple, all = qv_tensor_rows(&s->spec) - s->spec.pad_n;
        int64_t step = (int64_t)(l->slice_bytes / s->row_bytes) / multiple * multiple;
        if (step < multiple)
            step = multiple;
        for (int64_t row = 0; row < all; row += step, l->n_slices++)
            if (l->slices)
                l->slices[l->n_slices] =
                    (struct slice){ s, row, all - row < step ? all - row : step };
    }
}

/* Makes one place if one thread reads, otherwise as many as the longest slice permits. */
static qv_status
make_places(struct loader *l, size_t n_sources, qv_error *err)
{
    size_t bytes = l->slice_bytes;
    for (const struct source *s = l->sources; s < l->sources + n_sources; s++) {
        const size_t least = (size_t)s->layout.row_multiple * s->row_bytes;
        bytes = least > bytes ? least : bytes;
    }
    const size_t most = (size_t)MOST_PLACES * l->slice_bytes / bytes;
    l->n_places = l->threads == 1 || !most ? 1 : (int)most;
    bool made = true;
    for (struct place *p = l->places; p < l->places + l->n_places && made; p++) {
        p->raw = malloc(bytes);
        p->canonical = malloc(bytes);
        p->converted = malloc(bytes);
        p->bytes = bytes;
        made = p->raw && p->canonical && p->converted;
    }
    return made ? QV_OK : qv_fail(err, QV_ENOMEM, "no memory for slices of %zu bytes", bytes);
}

static void
free_slices(struct loader *l)
{
    for (int i = 0; i < l->n_places; i++) {
        free(l->places[i].raw);
        free(l->places[i].canonical);
        free(l->places[i].converted);
    }
    free(l->slices);
}

static qv_status
put_slice(struct loader *l, const struct slice *slice, const void *rows, struct qv_weights *w,
          qv_error *err)
{
    const struct qv_backend *be = l->dev->backend;
    const struct qv_tensor_spec *spec = &slice->source->spec;
    struct qv_buffer dst = w->buffers[slice->source - l->sources];
    if (spec->form == QV_TENSOR_MATRIX) {
        const struct qv_matrix matrix = matrix_of(l, slice->source);
        return be->lay_out(l->dev, &matrix, slice->row, slice->rows, rows, dst, err);
    }
    const size_t row_bytes = (size_t)spec->k * qv_dtype_bytes(dtype_of(l, slice->source));
    dst.offset += (size_t)slice->row * row_bytes;
    return be->upload(l->dev, dst, rows, (size_t)slice->rows * row_bytes, err);
}

/* Loads all slices. Other threads, if any, read, convert and digest ahead of this one. */
static qv_status
load_all(struct loader *l, struct qv_weights *w, int threads, qv_error *err)
{
    const size_t worth = 1 + w->bytes / BYTES_PER_THREAD;
    l->threads = (size_t)threads < worth || qv_weights_slice_bytes ? threads : (int)worth;
    l->slice_bytes = qv_weights_slice_bytes ? qv_weights_slice_bytes
                     : l->threads == 1      ? SLICE_BYTES
                                            : AHEAD_BYTES;
    cut_slices(l, w->n);
    l->slices = calloc(l->n_slices, sizeof *l->slices);
    if (!l->slices)
        return qv_fail(err, QV_ENOMEM, "no memory for %zu slices", l->n_slices);
    cut_slices(l, w->n);
    qv_status status = make_places(l, w->n, err);
    if (status)
        return status;
    const struct qv_prefetch_work work = { l->n_slices, l->n_places, l->threads,
                                           l,           read_slice,  digest_slice };
    struct qv_prefetch *ahead = NULL;
    status = qv_prefetch_open(&work, &ahead, err);
    if (!status)
        status = l->dev->backend->alloc(l->dev, w->bytes, &w->memory, err);
    for (size_t id = 0; id < w->n; id++)
        w->buffers[id].memory = w->memory;
    for (size_t i; !status && !(status = qv_prefetch_next(ahead, &i, err)) && i < l->n_slices;)
        status = put_slice(l, &l->slices[i], l->places[i % (size_t)l->n_places].converted, w, err);
    qv_prefetch_close(ahead);
    return status;
}

/* Computes the rotary angles' cosines and sines, which are not in the checkpoint. */
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

static void
digest_end(struct loader *l, char *text, size_t size)
{
    XXH128_hash_t h = XXH3_128bits_digest(l->hash);
    snprintf(text, size, "%016llx%016llx", (unsigned long long)h.high64,
             (unsigned long long)h.low64);
}

qv_status
qv_weights_load(struct qv_device *dev, const struct qv_config *config, const struct qv_tower *tower,
                const char *dir, const struct qv_weights_loading *how, struct qv_weights *out,
                qv_error *err)
{
    struct loader l = { .dev = dev, .config = config, .tower = tower, .dtype = how->dtype };
    struct qv_weights w = { .n = tower->n };
    l.sources = calloc(w.n, sizeof *l.sources);
    w.buffers = calloc(w.n + 2, sizeof *w.buffers);
    qv_status status = l.sources && w.buffers
                           ? qv_stored_tower_open(dir, config, tower, &l.stored, err)
                           : qv_fail(err, QV_ENOMEM, "no memory for %zu tensors", w.n);
    if (!status)
        status = find_all(&l, w.n, err);
    if (!status)
        qv_stored_remark(&l.stored, w.remark, sizeof w.remark);
    if (!status)
        status = measure(&l, &w, err);
    if (!status && !how->describe) {
        l.hash = XXH3_createState();
        if (l.hash)
            XXH3_128bits_reset(l.hash);
        status = l.hash ? load_all(&l, &w, how->threads, err)
                        : qv_fail(err, QV_ENOMEM, "no memory for a digest");
        if (!status)
            status = load_angles(&l, &w, err);
        if (!status)
            digest_end(&l, w.digest, sizeof w.digest);
    }
    XXH3_freeState(l.hash);
    free_slices(&l);
    free(l.sources);
    qv_stored_tower_close(&l.stored);
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
