/* SPDX-License-Identifier: MIT */
/*
 * qwenvit verify: reads the tensors that the definition takes, and makes checkpoints in another
 * layout, of links to the original's files and one small file.
 */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "command/tool.h"
#include "conv3d/lower.h"
#include "dtype.h"
#include "error.h"
#include "files/json.h"
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

static qv_status
read_all(const struct qv_stored_tensor *stored, const struct qv_tensor_spec *spec,
         struct verify_tensor *out, qv_error *err)
{
    const struct qv_safetensor *tensor = stored->weight.tensor; /* NULL: in a GGUF file */
    struct qv_stored_room room = { .bytes = (size_t)spec->n * qv_stored_row_bytes(stored) };
    void *values = NULL;
    *out = (struct verify_tensor){ .dtype = stored->dtype,
                                   .values = spec->n * spec->k,
                                   .is_gguf = stored->gguf != NULL,
                                   .stored = stored->stored_cols             ? VERIFY_CHANNELS_LAST
                                             : tensor && tensor->n_dims == 2 ? VERIFY_2D
                                                                             : VERIFY_5D };
    if (snprintf(out->name, sizeof out->name, "%s", stored->name) >= (int)sizeof out->name)
        return qv_fail(err, QV_EUNSUPPORTED, "tensor %.200s: its name has more than %zu bytes",
                       stored->name, sizeof out->name - 1);
    room.raw = malloc(room.bytes);
    room.canonical = malloc(room.bytes);
    qv_status status = room.raw && room.canonical
                           ? qv_stored_read(stored, 0, spec->n, &room, &values, err)
                           : qv_fail(err, QV_ENOMEM, "no memory for tensor %s", stored->name);
    out->data = values == room.canonical ? room.canonical : room.raw;
    free(values == room.canonical ? room.raw : room.canonical);
    return status;
}

qv_status
verify_read_tensor(const char *dir, const struct qv_config *config, const char *name,
                   struct verify_tensor *out, qv_error *err)
{
    struct qv_tower tower;
    struct qv_stored_tower in = { 0 };
    struct qv_stored_tensor stored;
    size_t id = 0;
    *out = (struct verify_tensor){ 0 };
    qv_status status = qv_tower_open(config, &tower, err);
    while (id < tower.n && strcmp(tower.tensors[id].names[0], name) != 0)
        id++;
    if (!status && id == tower.n)
        status = qv_fail(err, QV_ESTATE, "%s: the tower has no tensor %s", dir, name);
    if (!status)
        status = qv_stored_tower_open(dir, config, &tower, &in, err);
    if (!status)
        status = qv_stored_find(&in, config, &tower.tensors[id], 0, &stored, err);
    if (!status)
        status = read_all(&stored, &tower.tensors[id], out, err);
    qv_stored_tower_close(&in);
    qv_tower_close(&tower);
    if (status) {
        free(out->data);
        out->data = NULL;
    }
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
    json_t *index = tool_json("weight_map:o", map);
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
    const size_t element = qv_dtype_bytes(weight->dtype), bytes = (size_t)weight->values * element;
    char name[sizeof weight->name], *path = qv_path_join(copy->dir, OTHER_FILE);
    struct qv_safetensor header = { .name = strcpy(name, weight->name) };
    struct qv_safetensors_writer *w = NULL;
    void *moved = malloc(bytes);
    const bool last = layout == VERIFY_CHANNELS_LAST;
    header.n_dims = shape_in(c, layout, header.shape);
    snprintf(header.dtype_name, sizeof header.dtype_name, "%s", qv_dtype_file_name(weight->dtype));
    qv_status status = moved && path
                           ? qv_safetensors_writer_open(path, &header, 1, NULL, 0, &w, err)
                           : qv_fail(err, QV_ENOMEM, "no memory for tensor %s", weight->name);
    if (!status && last) /* [o, c, taps] to [o, taps, c]: the reverse, with the two exchanged */
        qv_conv3d_channels_last_to_first(weight->data, c->hidden, c->in_channels,
                                         c->temporal * c->patch * c->patch, element, moved);
    if (!status)
        status = qv_safetensors_writer_put(w, 0, 0, last ? moved : weight->data, bytes, err);
    if (!status)
        status = qv_safetensors_writer_finish(&w, err);
    qv_safetensors_writer_abort(&w);
    free(moved);
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
