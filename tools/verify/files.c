/* SPDX-License-Identifier: MIT */
/*
 * qwenvit verify: reads checkpoints without the loader that is being checked, and makes checkpoints
 * in another layout, of links to the original's files and one small file.
 */
#define _XOPEN_SOURCE 700
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "command/tool.h"
#include "dtype.h"
#include "error.h"
#include "files/gguf.h"
#include "files/json.h"
#include "files/safetensors.h"
#include "towers/mmproj.h"
#include "towers/stored_tensor.h"
#include "verify.h"

#define SINGLE "model.safetensors"
#define INDEX "model.safetensors.index.json"
/* Names in the temporary folder, which no checkpoint uses. */
#define OTHER_FILE "qwenvit-verify-patch-embed.safetensors"
#define SINGLE_LINK "qwenvit-verify-original.safetensors"

const char *
verify_layout_name(enum verify_layout layout)
{
    static const char *const names[VERIFY_LAYOUTS] = { "5D", "2D", "channels-last" };
    return names[layout];
}

/* Writes the shape of the patch weight in a layout; returns the number of dimensions. */
static int
shape_in(const struct qv_config *c, enum verify_layout layout, int64_t shape[5])
{
    const int64_t shapes[VERIFY_LAYOUTS][5] = {
        [VERIFY_5D] = { c->hidden, c->in_channels, c->temporal, c->patch, c->patch },
        [VERIFY_2D] = { c->hidden, qv_config_row_dim(c) },
        [VERIFY_CHANNELS_LAST] = { c->hidden, c->temporal, c->patch, c->patch, c->in_channels }
    };
    memcpy(shape, shapes[layout], sizeof shapes[layout]);
    return layout == VERIFY_2D ? 2 : 5;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Finds "patch_embed.proj.weight" under any prefix that checkpoints use, or as linear_proj. */
static qv_status
find_tensor(struct qv_checkpoint *ckpt, const char *name, const struct qv_safetensor **tensor,
            const struct qv_safetensors **file, qv_error *err)
{
    static const char proj[] = "patch_embed.proj.";
    bool two_names = !strncmp(name, proj, sizeof proj - 1);
    qv_status status = QV_OK;
    *tensor = NULL;
    for (size_t i = 0; qv_tower_prefixes[i / 2] && !*tensor && !status; i++) {
        char full[160];
        if (i % 2 && !two_names)
            continue;
        snprintf(full, sizeof full, "%s%s%s", qv_tower_prefixes[i / 2],
                 i % 2 ? "patch_embed.linear_proj." : "", i % 2 ? name + sizeof proj - 1 : name);
        status = qv_checkpoint_find(ckpt, full, tensor, file, err);
    }
    return status;
}

/* Reorders [o, taps, c] to [o, c, taps], or back. */
static void
move_channels(const char *from, bool last_to_first, int64_t o, int64_t c, int64_t taps,
              size_t element, char *to)
{
    for (int64_t i = 0; i < o * c * taps; i++) {
        int64_t channel = i / taps % c, tap = i % taps;
        int64_t first = i, last = i / (taps * c) * taps * c + tap * c + channel;
        memcpy(to + (size_t)(last_to_first ? first : last) * element,
               from + (size_t)(last_to_first ? last : first) * element, element);
    }
}

static qv_status
move_tensor(const struct qv_config *c, bool last_to_first, struct verify_tensor *t, qv_error *err)
{
    size_t element = qv_dtype_bytes(t->dtype);
    char *moved = malloc((size_t)t->values * element);
    if (!moved)
        return qv_fail(err, QV_ENOMEM, "no memory for tensor %s", t->name);
    move_channels(t->data, last_to_first, c->hidden, c->in_channels,
                  c->temporal * c->patch * c->patch, element, moved);
    free(t->data);
    t->data = moved;
    return QV_OK;
}

static enum verify_layout
layout_of(const struct qv_config *c, const struct qv_safetensor *t)
{
    int64_t shape[5];
    if (t->n_dims == 2)
        return VERIFY_2D;
    int dims = shape_in(c, VERIFY_5D, shape);
    bool first = t->n_dims == dims && !memcmp(t->shape, shape, sizeof shape);
    return first ? VERIFY_5D : VERIFY_CHANNELS_LAST;
}

/* Reads a tensor of a GGUF file as f32. The patch embedding is one tensor for each frame: [o, c,
 * kh, kw] becomes every `frames`-th piece of [o, c, frames, kh, kw]. */
static qv_status
read_gguf_frame(const struct qv_gguf *file, const char *name, int64_t frame, int64_t frames,
                int64_t piece, struct verify_tensor *out, qv_error *err)
{
    const struct qv_gguf_tensor *t = qv_gguf_find(file, name);
    int64_t n = 1;
    for (int i = 0; t && i < t->n_dims; i++)
        n *= t->shape[i];
    if (!t || n * frames != out->values || !qv_gguf_type_can_be_read(t->type))
        return qv_fail(err, QV_EFORMAT, "%s: no tensor %s of %lld values", qv_gguf_path(file), name,
                       (long long)(out->values / frames));
    void *stored = malloc(t->bytes);
    float *values = malloc((size_t)n * sizeof *values);
    qv_status status = stored && values ? qv_gguf_read(file, t, 0, stored, t->bytes, err)
                                        : qv_fail(err, QV_ENOMEM, "no memory for tensor %s", name);
    if (!status)
        qv_gguf_widen(t->type, stored, n, values);
    for (int64_t i = 0; i < n && !status; i++)
        ((float *)out->data)[(i / piece * frames + frame) * piece + i % piece] = values[i];
    snprintf(out->name, sizeof out->name, "%s", name);
    snprintf(out->dtype_name, sizeof out->dtype_name, "%s", t->type->name);
    free(stored);
    free(values);
    return status;
}

static qv_status
read_gguf(const char *path, const struct qv_config *c, const char *name, struct verify_tensor *out,
          qv_error *err)
{
    const bool weight = !strcmp(name, "patch_embed.proj.weight"),
               bias = !strcmp(name, "patch_embed.proj.bias");
    const char *in_file = weight ? "v.patch_embd.weight"
                          : bias ? "v.patch_embd.bias"
                                 : "v.position_embd.weight";
    const int64_t frames = weight ? c->temporal : 1;
    struct qv_gguf *file = NULL;
    *out = (struct verify_tensor){ .dtype = QV_F32, .stored = VERIFY_5D };
    out->values = c->hidden * (weight ? qv_config_row_dim(c) : bias ? 1 : c->n_positions);
    out->data = malloc((size_t)out->values * sizeof(float));
    qv_status status = out->data ? qv_gguf_open(path, &file, err)
                                 : qv_fail(err, QV_ENOMEM, "no memory for tensor %s", in_file);
    for (int64_t f = 0; f < frames && !status; f++) {
        char frame[48];
        snprintf(frame, sizeof frame, f ? "%s.%d" : "%s", in_file, (int)f);
        status = read_gguf_frame(file, frame, f, frames, weight ? c->patch * c->patch : c->hidden,
                                 out, err);
    }
    qv_gguf_close(&file);
    return status;
}

static qv_status
read_folder(const char *dir, const struct qv_config *config, const char *name,
            struct verify_tensor *out, qv_error *err)
{
    struct qv_checkpoint *ckpt = NULL;
    const struct qv_safetensor *t = NULL;
    const struct qv_safetensors *file = NULL;
    memset(out, 0, sizeof *out);
    qv_status status = qv_checkpoint_open(dir, &ckpt, err);
    if (!status)
        status = find_tensor(ckpt, name, &t, &file, err);
    if (!status && !t)
        status = qv_fail(err, QV_EFORMAT, "%s: no tensor %s", dir, name);
    if (!status && (t->dtype == QV_DTYPE_AUTO || t->dtype == QV_U8))
        status = qv_fail(err, QV_EUNSUPPORTED, "%s: tensor %s is %s; F32, F16 and BF16 can be read",
                         dir, t->name, t->dtype_name);
    if (!status && !(out->data = malloc(t->bytes ? t->bytes : 1)))
        status = qv_fail(err, QV_ENOMEM, "no memory for tensor %s", name);
    if (!status) {
        snprintf(out->name, sizeof out->name, "%s", t->name);
        snprintf(out->dtype_name, sizeof out->dtype_name, "%s", t->dtype_name);
        out->dtype = t->dtype;
        out->values = (int64_t)(t->bytes / qv_dtype_bytes(t->dtype));
        status = qv_safetensors_read(file, t, 0, out->data, t->bytes, err);
    }
    if (!status && !strcmp(name, "patch_embed.proj.weight")) {
        out->stored = layout_of(config, t);
        if (out->stored == VERIFY_CHANNELS_LAST)
            status = move_tensor(config, true, out, err);
    }
    qv_checkpoint_close(&ckpt);
    return status;
}

qv_status
verify_read_tensor(const char *dir, const struct qv_config *config, const char *name,
                   struct verify_tensor *out, qv_error *err)
{
    char *file = NULL;
    *out = (struct verify_tensor){ 0 };
    qv_status status = qv_mmproj_find(dir, &file, err);
    if (!status && file)
        status = read_gguf(file, config, name, out, err);
    else if (!status)
        status = read_folder(dir, config, name, out, err);
    free(file);
    if (status) {
        free(out->data);
        out->data = NULL;
    }
    return status;
}

qv_status
verify_is_gguf(const char *dir, bool *is, qv_error *err)
{
    char *file = NULL;
    const qv_status status = qv_mmproj_find(dir, &file, err);
    *is = file != NULL;
    free(file);
    return status;
}

/* ---- a temporary checkpoint ------------------------------------------------------------------ */

struct copy {
    char dir[PATH_MAX / 2], original[PATH_MAX];
};

static qv_status
make_folder(struct copy *copy, const char *dir, qv_error *err)
{
    const char *tmp = getenv("TMPDIR");
    if (!realpath(dir, copy->original))
        return qv_fail(err, QV_EIO, "%s: %s", dir, strerror(errno));
    int n = snprintf(copy->dir, sizeof copy->dir, "%s/qwenvit-verify-XXXXXX",
                     tmp && *tmp ? tmp : "/tmp");
    if (n >= (int)sizeof copy->dir || !mkdtemp(copy->dir)) {
        qv_fail(err, QV_EIO, "%s: a temporary folder cannot be made: %s", copy->dir,
                strerror(errno));
        copy->dir[0] = 0;
        return QV_EIO;
    }
    return QV_OK;
}

static qv_status
link_file(const struct copy *copy, const char *name, const char *as, qv_error *err)
{
    char *from = qv_path_join(copy->original, name), *to = qv_path_join(copy->dir, as);
    qv_status status = QV_OK;
    if (!from || !to)
        status = qv_fail(err, QV_ENOMEM, "no memory for a path");
    else if (symlink(from, to))
        status = qv_fail(err, QV_EIO, "%s: cannot be linked: %s", to, strerror(errno));
    free(from);
    free(to);
    return status;
}

/* Links all files but the index. A single model.safetensors gets another name, because the loader
 * would read it before any index. */
static qv_status
link_files(const struct copy *copy, bool *single, qv_error *err)
{
    DIR *d = opendir(copy->original);
    qv_status status = d ? QV_OK : qv_fail(err, QV_EIO, "%s: %s", copy->original, strerror(errno));
    *single = false;
    for (const struct dirent *e; !status && (e = readdir(d)) != NULL;) {
        bool is_single = !strcmp(e->d_name, SINGLE);
        *single |= is_single;
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..") && strcmp(e->d_name, INDEX))
            status = link_file(copy, e->d_name, is_single ? SINGLE_LINK : e->d_name, err);
    }
    if (d)
        closedir(d);
    return status;
}

/* Reads the original's weight map, or makes one of its single file. */
static qv_status
read_map(const struct copy *copy, bool single, json_t **map, qv_error *err)
{
    char *path = qv_path_join(copy->original, single ? SINGLE : INDEX);
    struct qv_safetensors *file = NULL;
    json_t *index = NULL;
    qv_status status = !path    ? qv_fail(err, QV_ENOMEM, "no memory for a path")
                       : single ? qv_safetensors_open(path, &file, err)
                                : qv_json_read(path, QV_JSON_MAX_INDEX, &index, err);
    if (!status && index)
        *map = json_incref(json_object_get(index, "weight_map"));
    if (!status && file) {
        *map = json_object();
        for (size_t i = 0; i < qv_safetensors_count(file); i++)
            json_object_set_new(*map, qv_safetensors_at(file, i)->name, json_string(SINGLE_LINK));
    }
    json_decref(index);
    qv_safetensors_close(&file);
    free(path);
    return status;
}

static qv_status
write_index(const struct copy *copy, bool single, const char *tensor, qv_error *err)
{
    json_t *map = NULL;
    qv_status status = read_map(copy, single, &map, err);
    if (status)
        return status;
    json_object_set_new(map, tensor, json_string(OTHER_FILE));
    json_t *index = json_pack("{s:o}", "weight_map", map);
    char *path = qv_path_join(copy->dir, INDEX);
    if (!index || !path || json_dump_file(index, path, JSON_COMPACT))
        status = qv_fail(err, QV_EIO, "%s: the index cannot be written", copy->dir);
    json_decref(index);
    free(path);
    return status;
}

static qv_status
write_weight(const struct copy *copy, const struct qv_config *c, const struct verify_tensor *weight,
             enum verify_layout layout, qv_error *err)
{
    struct verify_tensor moved = *weight;
    size_t bytes = (size_t)weight->values * qv_dtype_bytes(weight->dtype);
    struct qv_safetensor header = { .name = moved.name };
    struct qv_safetensors_writer *w = NULL;
    char *path = qv_path_join(copy->dir, OTHER_FILE);
    header.n_dims = shape_in(c, layout, header.shape);
    snprintf(header.dtype_name, sizeof header.dtype_name, "%s", weight->dtype_name);
    moved.data = malloc(bytes);
    qv_status status = QV_OK;
    if (!moved.data || !path)
        status = qv_fail(err, QV_ENOMEM, "no memory for tensor %s", weight->name);
    else
        memcpy(moved.data, weight->data, bytes);
    if (!status && layout == VERIFY_CHANNELS_LAST)
        status = move_tensor(c, false, &moved, err);
    if (!status)
        status = qv_safetensors_writer_open(path, &header, 1, NULL, 0, &w, err);
    if (!status)
        status = qv_safetensors_writer_put(w, 0, 0, moved.data, bytes, err);
    if (!status)
        status = qv_safetensors_writer_finish(&w, err);
    qv_safetensors_writer_abort(&w);
    free(moved.data);
    free(path);
    return status;
}

qv_status
verify_load_layout(const struct verify_job *job, const struct qv_config *config, qv_dtype dtype,
                   const struct verify_tensor *weight, enum verify_layout layout, qv_model **out,
                   qv_error *err)
{
    struct copy copy = { 0 };
    bool single;
    qv_status status = make_folder(&copy, job->dir, err);
    if (!status)
        status = link_files(&copy, &single, err);
    if (!status)
        status = write_weight(&copy, config, weight, layout, err);
    if (!status)
        status = write_index(&copy, single, weight->name, err);
    if (!status)
        status = qv_model_load(job->ctx, copy.dir,
                               &(qv_model_options){ .dtype = dtype,
                                                    .image_mean = job->image_mean,
                                                    .image_std = job->image_std,
                                                    .weights = job->weights },
                               out, err);
    if (copy.dir[0])
        tool_remove_folder(copy.dir);
    return status;
}
