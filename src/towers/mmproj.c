/* SPDX-License-Identifier: MIT */
/* Reads a tower's numbers from a GGUF file (mmproj). */
#include "read_config.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"
#include "files/gguf.h"
#include "numbers.h"
#include "path.h"

/* ---- which file ------------------------------------------------------------------------------ */

/* The GGUF files of a folder: the files with "mmproj" in their names, or all if there are none. */
struct listing {
    char *first, names[160];
    int n;
    bool mmproj; /* the counted files have "mmproj" in their names */
};

static bool
ends_in_gguf(const char *name)
{
    const size_t n = strlen(name);
    return n > 5 && !strcasecmp(name + n - 5, ".gguf");
}

static qv_status
list_file(struct listing *l, const char *name, qv_error *err)
{
    const bool mmproj = strcasestr(name, "mmproj") != NULL;
    if (!ends_in_gguf(name) || (l->mmproj && !mmproj))
        return QV_OK;
    if (mmproj && !l->mmproj) {
        free(l->first);
        *l = (struct listing){ .mmproj = true };
    }
    if (!l->n && !(l->first = strdup(name)))
        return qv_fail(err, QV_ENOMEM, "no memory for a file's name");
    const size_t at = strlen(l->names);
    if (at + 1 < sizeof l->names)
        snprintf(l->names + at, sizeof l->names - at, "%s%.60s", l->n ? ", " : "", name);
    l->n++;
    return QV_OK;
}

static qv_status
list_folder(const char *dir, struct listing *l, qv_error *err)
{
    DIR *d = opendir(dir);
    if (!d)
        return qv_fail(err, QV_EIO, "%s: cannot be listed: %s", dir, strerror(errno));
    qv_status s = QV_OK;
    for (const struct dirent *e; !s && (e = readdir(d)) != NULL;)
        s = list_file(l, e->d_name, err);
    closedir(d);
    return s;
}

static qv_status
look_for_safetensors(const char *dir, bool *has, qv_error *err)
{
    static const char *const names[] = { "model.safetensors", "model.safetensors.index.json" };
    *has = false;
    for (int i = 0; i < 2 && !*has; i++) {
        char *path = qv_path_join(dir, names[i]);
        if (!path)
            return qv_no_memory(dir, err);
        *has = qv_path_exists(path);
        free(path);
    }
    return QV_OK;
}

/* Checks that a file is a GGUF file. A user who names a different file may have meant its folder,
 * so the error mentions it. */
static qv_status
check_file(const char *path, qv_error *err)
{
    int fd = -1;
    uint64_t size = 0;
    const qv_status s = ends_in_gguf(path) ? QV_OK : qv_file_open(path, &fd, &size, err);
    if (fd >= 0)
        close(fd);
    if (s || ends_in_gguf(path) || qv_gguf_is(path))
        return s;
    return qv_fail(err, QV_EFORMAT,
                   "%s: is neither a checkpoint folder nor a GGUF file; give the folder with "
                   "config.json and the weights",
                   path);
}

qv_status
qv_mmproj_find(const char *path, char **file, qv_error *err)
{
    struct listing l = { 0 };
    struct stat st;
    *file = NULL;
    if (stat(path, &st))
        return QV_OK;
    if (!S_ISDIR(st.st_mode)) {
        const qv_status s = check_file(path, err);
        *file = s ? NULL : strdup(path);
        return s ? s : *file ? QV_OK : qv_no_memory(path, err);
    }
    bool folder;
    qv_status s = look_for_safetensors(path, &folder, err);
    if (s || folder)
        return s;
    s = list_folder(path, &l, err);
    if (!s && l.n > 1)
        s = qv_fail(err, QV_EFORMAT, "%s: has %d GGUF files, %s: name one of them as the model",
                    path, l.n, l.names);
    else if (!s && l.n && !(*file = qv_path_join(path, l.first)))
        s = qv_no_memory(path, err);
    free(l.first);
    return s;
}

/* ---- families -------------------------------------------------------------------------------- */

#define VISION "clip.vision."

/* A family's sizes, means and deviations that published checkpoints contain and GGUF files lack. */
struct published {
    const char *model_type;
    int64_t image[2], video[2]; /* the least and the most pixels */
    bool halves;                /* means and deviations are 1/2; otherwise they are CLIP's */
};

static const struct published families[] = {
    { "qwen2_vl", { 3136, 12845056 }, { 3136, 12845056 }, false },
    { "qwen2_5_vl", { 3136, 12845056 }, { 3136, 12845056 }, false },
    { "qwen2_5_omni", { 3136, 12845056 }, { 3136, 12845056 }, false },
    { "qwen3_vl",
      { QV_QWEN3_LEAST_IMAGE, QV_QWEN3_MOST_IMAGE },
      { QV_QWEN3_LEAST_CLIP, QV_QWEN3_MOST_CLIP },
      true },
    { "qwen3_5",
      { QV_QWEN3_LEAST_IMAGE, QV_QWEN3_MOST_IMAGE },
      { QV_QWEN3_LEAST_CLIP, QV_QWEN3_MOST_CLIP },
      true },
    { "qwen3_omni_moe", { 3136, 12845056 }, { 3136, 12845056 }, true },
    { "glm4v", { 12544, 9633792 }, { 12544, 47040000 }, false },
};

static const struct {
    const char *projector, *model_type;
} projectors[] = {
    { "qwen2vl_merger", "qwen2_vl" },
    { "qwen2.5vl_merger", "qwen2_5_vl" },
    { "qwen2.5o", "qwen2_5_omni" },
    { "qwen3vl_merger", "qwen3_vl" },
    { "glm4v", "glm4v" },
};

struct reader {
    const struct qv_gguf *file;
    struct qv_json_object keys; /* the keys of the GGUF file */
    const struct published *published;
    struct qv_config *c;
    qv_error *err;
};

static bool
is_true(const struct reader *r, const char *key)
{
    return json_is_true(qv_json_get(&r->keys, key));
}

/* Returns whether any block has a DeepStack merger. The converter writes one boolean per block;
 * llama.cpp itself looks for the tensors. */
static bool
has_deepstack(const struct reader *r)
{
    const json_t *list = qv_json_get(&r->keys, VISION "is_deepstack_layers");
    bool has = false;
    for (size_t i = 0; i < json_array_size(list); i++)
        has |= json_is_true(json_array_get(list, i));
    for (size_t i = 0; i < qv_gguf_count(r->file); i++)
        has |= !strncmp(qv_gguf_at(r->file, i)->name, "v.deepstack.", 12);
    return has;
}

/* Returns the model_type. Three families have Qwen3-VL's projector name: Qwen3.5 has no DeepStack,
 * and Qwen3-Omni's file also has an audio tower. */
static const char *
kin_of_qwen3(const struct reader *r)
{
    return is_true(r, "clip.has_audio_encoder") ? "qwen3_omni_moe"
           : has_deepstack(r)                   ? "qwen3_vl"
                                                : "qwen3_5";
}

static qv_status
find_family(struct reader *r)
{
    static const char *const places[] = { VISION "projector_type", "clip.projector_type" };
    const char *projector = NULL, *model_type = NULL, *where = NULL, *architecture = NULL;
    const struct published *found = NULL;
    qv_status s = qv_json_string(&r->keys, "general.architecture", &architecture, r->err);
    if (!s && (!architecture || strcmp(architecture, "clip") != 0))
        return qv_json_unsupported(&r->keys, "general.architecture",
                                   qv_json_get(&r->keys, "general.architecture"),
                                   "for a vision tower it is \"clip\": give the file with mmproj "
                                   "in its name, next to the language model's",
                                   r->err);
    for (int i = 0; i < 2 && !s && !projector; i++) {
        where = places[i];
        s = qv_json_string(&r->keys, where, &projector, r->err);
    }
    for (size_t i = 0; projector && i < sizeof projectors / sizeof *projectors; i++)
        if (!strcmp(projector, projectors[i].projector))
            model_type = projectors[i].model_type;
    if (s)
        return s;
    if (model_type && !strcmp(model_type, "qwen3_vl"))
        model_type = kin_of_qwen3(r);
    for (size_t i = 0; model_type && i < sizeof families / sizeof *families; i++)
        if (!strcmp(model_type, families[i].model_type))
            found = &families[i];
    if (found)
        r->c->family = qv_family_find(found->model_type, &model_type);
    if (!found || !r->c->family)
        return qv_json_unsupported(&r->keys, where, qv_json_get(&r->keys, where),
                                   "known are qwen2vl_merger, qwen2.5vl_merger, qwen2.5o, "
                                   "qwen3vl_merger and glm4v",
                                   r->err);
    r->published = found;
    snprintf(r->c->model_type, sizeof r->c->model_type, "%s", model_type);
    return QV_OK;
}

/* ---- the tower's numbers --------------------------------------------------------------------- */

static int64_t
integer(const struct reader *r, const char *name)
{
    return json_integer_value(qv_json_get(&r->keys, name));
}

/* Checks for the keys that a tower requires. Transformers has a default for each of them; here a
 * missing key is an error. */
static qv_status
check_required(const struct reader *r)
{
    static const char *const required[] = {
        VISION "block_count",    VISION "embedding_length", VISION "attention.head_count",
        VISION "projection_dim", VISION "patch_size",       VISION "image_size"
    };
    for (size_t i = 0; i < sizeof required / sizeof *required; i++)
        if (!qv_json_get(&r->keys, required[i]))
            return qv_json_wrong(&r->keys, required[i], NULL, "a vision tower's file must have it",
                                 r->err);
    return QV_OK;
}

/* Reads the sizes that the file has keys for. */
static qv_status
read_sizes(struct reader *r)
{
    static const char *const keys[QV_SIZES] = {
        [QV_SIZE_DEPTH] = VISION "block_count",
        [QV_SIZE_HIDDEN] = VISION "embedding_length",
        [QV_SIZE_HEADS] = VISION "attention.head_count",
        [QV_SIZE_OUT_HIDDEN] = VISION "projection_dim",
        [QV_SIZE_MERGER_INTERMEDIATE] = VISION "feed_forward_length",
        [QV_SIZE_PATCH] = VISION "patch_size",
        [QV_SIZE_MERGE] = VISION "spatial_merge_size",
        [QV_SIZE_IMAGE] = VISION "image_size",
        [QV_SIZE_WINDOW] = VISION "window_size",
    };
    return qv_config_read_sizes(&r->keys, keys, r->c, r->err);
}

/* Takes the MLP's width from the shape of block 0's weights. The converter writes the language
 * model's width for Qwen2-VL, and older ones write 0. The MLPs of GLM are as wide as tokens. */
static qv_status
set_intermediate(struct reader *r)
{
    static const char name[] = "v.blk.0.ffn_up.weight";
    const int64_t hidden = r->c->hidden;
    const bool ratio = r->c->family->sizes->preset[QV_SIZE_MLP_RATIO] != 0;
    if (r->c->family->names->downsample) {
        r->c->intermediate = r->c->out_hidden;
        return QV_OK;
    }
    const struct qv_gguf_tensor *t = qv_gguf_find(r->file, name);
    if (!t || t->n_dims != 2)
        return qv_fail(r->err, QV_EFORMAT, "%s: tensor %s is %s", r->keys.file, name,
                       t ? "not a matrix" : "missing");
    const int64_t width = t->shape[0] == hidden ? t->shape[1] : t->shape[0];
    if (ratio && width % hidden)
        return qv_fail(r->err, QV_EFORMAT,
                       "%s: tensor %s is [%lld,%lld]; one size must be a multiple of " VISION
                       "embedding_length, %lld",
                       r->keys.file, name, (long long)t->shape[0], (long long)t->shape[1],
                       (long long)hidden);
    return qv_config_set_size(&r->keys, name, ratio ? QV_SIZE_MLP_RATIO : QV_SIZE_INTERMEDIATE,
                              ratio ? width / hidden : width, r->c, r->err);
}

/* Sets the number of learned positions. image_size is the side of an image with one patch per
 * position. */
static qv_status
set_positions(struct reader *r)
{
    static const char key[] = VISION "image_size";
    const int64_t image = integer(r, key), patch = r->c->patch;
    if (image < 1 || image > 1 << 14 || image % patch)
        return qv_json_wrong(&r->keys, key, qv_json_get(&r->keys, key),
                             "it must be a multiple of " VISION "patch_size, at most 16384",
                             r->err);
    return qv_config_set_size(&r->keys, key, QV_SIZE_POSITIONS, (image / patch) * (image / patch),
                              r->c, r->err);
}

/* Makes every n_wa_pattern-th block attend to a whole frame pair. */
static qv_status
set_full_attention(struct reader *r)
{
    static const char key[] = VISION "n_wa_pattern";
    int64_t n = 0;
    const qv_status s =
        qv_json_check_int(&r->keys, key, qv_json_get(&r->keys, key), 1, QV_MOST_DEPTH, &n, r->err);
    for (int64_t i = n - 1; !s && i < r->c->depth; i += n)
        r->c->full_attention[i] = true;
    return s;
}

static qv_status
set_deepstack(struct reader *r)
{
    static const char key[] = VISION "is_deepstack_layers";
    const json_t *found = qv_json_get(&r->keys, key);
    struct qv_config *c = r->c;
    if (found && (int64_t)json_array_size(found) != c->depth)
        return qv_json_wrong(&r->keys, key, found, "it must be a boolean for each of the blocks",
                             r->err);
    for (int64_t i = 0; i < c->depth; i++) {
        char name[64];
        const bool has = json_is_true(json_array_get(found, (size_t)i));
        snprintf(name, sizeof name, "v.deepstack.%lld.fc2.weight", (long long)i);
        if (has != (qv_gguf_find(r->file, name) != NULL))
            return qv_json_wrong(&r->keys, key, found,
                                 "it must be true for the blocks with tensors v.deepstack.N, and "
                                 "false for all others",
                                 r->err);
        if (!has)
            continue;
        if (c->n_deepstack == QV_MAX_DEEPSTACK)
            return qv_json_wrong(&r->keys, key, found, "at most 8 may be true", r->err);
        c->deepstack[c->n_deepstack++] = i;
    }
    return QV_OK;
}

/* Checks the activation. The family determines it, and the file must not contradict it. */
static qv_status
check_act(const struct reader *r)
{
    static const char *const keys[2] = { "clip.use_silu", "clip.use_gelu" };
    const bool gated = qv_family_is_gated(r->c->family);
    const char *other = keys[gated];
    if (!is_true(r, other))
        return QV_OK;
    return qv_json_unsupported(&r->keys, other, qv_json_get(&r->keys, other),
                               gated ? "this projector's blocks have SiLU"
                                     : "this projector's blocks have GELU",
                               r->err);
}

static qv_status
read_tower(struct reader *r)
{
    const struct qv_family *family = r->c->family;
    qv_status s = check_required(r);
    if (!s)
        s = read_sizes(r);
    if (!s)
        s = set_intermediate(r);
    if (!s && family->sizes->preset[QV_SIZE_POSITIONS])
        s = set_positions(r);
    if (!s)
        s = qv_config_read_norm(&r->keys, VISION "attention.layer_norm_epsilon", r->c, r->err);
    if (!s)
        s = check_act(r);
    if (!s && family->windows)
        s = set_full_attention(r);
    if (!s && family->n_deepstack >= 0)
        s = set_deepstack(r);
    return s;
}

/* ---- preprocessing --------------------------------------------------------------------------- */

static const double norms[2][2][3] = {
    { QV_CLIP_MEAN, QV_CLIP_STD },
    { { 0.5, 0.5, 0.5 }, { 0.5, 0.5, 0.5 } },
};

/* Returns whether a list in the file has these three values, rounded to f32. */
static bool
is_f32_of(const json_t *list, const double *values)
{
    bool equal = json_array_size(list) == 3;
    for (size_t i = 0; i < 3 && equal; i++)
        equal = (float)json_number_value(json_array_get(list, i)) == (float)values[i];
    return equal;
}

/* Warns about CLIP's means and deviations, which the converter writes if preprocessor_config.json
 * was missing. */
static void
warn_of_means(const struct reader *r, const json_t *mean, const json_t *std)
{
    const double(*w)[3] = norms[r->published->halves];
    char means[QV_QUOTE_SIZE];
    if ((!mean || is_f32_of(mean, w[0])) && (!std || is_f32_of(std, w[1])))
        return;
    r->c->doubts_means = true;
    snprintf(
        r->c->warning, sizeof r->c->warning,
        "%.160s: " VISION
        "image_mean or image_std differs from published checkpoints of %s (the mean is %s): tokens "
        "will differ from transformers'. Give --image-mean %g,%g,%g --image-std %g,%g,%g "
        "(image_mean and image_std in C and Python) to override the file",
        r->keys.file, r->published->model_type, qv_json_show(mean, means), w[0][0], w[0][1],
        w[0][2], w[1][0], w[1][1], w[1][2]);
}

/* Reads means or deviations into values[3], with as many digits as in config files, since the GGUF
 * file has only f32. If the file has none, uses the family's. */
static qv_status
read_norm(const struct reader *r, const char *key, int which, double least, double *values)
{
    const json_t *found = qv_json_get(&r->keys, key);
    for (int i = 0; i < 2; i++) {
        const double *v = norms[i][which];
        if (found ? is_f32_of(found, v) : i == r->published->halves) {
            memcpy(values, v, 3 * sizeof *values);
            return QV_OK;
        }
    }
    return qv_json_reals(&r->keys, key, least, 1e3, values, r->err);
}

/* Reads an image's pixel bounds. If the file has none, or 0, uses the family's. */
static qv_status
read_pixels(const struct reader *r, qv_preprocess *image)
{
    static const char *const keys[2] = { VISION "image_min_pixels", VISION "image_max_pixels" };
    int64_t *const values[2] = { &image->min_pixels, &image->max_pixels };
    for (int i = 0; i < 2; i++) {
        *values[i] = r->published->image[i];
        const qv_status s = integer(r, keys[i]) > 0 ? qv_json_int(&r->keys, keys[i], 1,
                                                                  QV_MAX_PIXELS, values[i], r->err)
                                                    : QV_OK;
        if (s)
            return s;
    }
    if (image->min_pixels <= image->max_pixels)
        return QV_OK;
    return qv_fail(r->err, QV_EFORMAT, "%s: %s is %lld, above %s (%lld)", r->keys.file, keys[0],
                   (long long)image->min_pixels, keys[1], (long long)image->max_pixels);
}

static qv_status
read_processors(struct reader *r)
{
    struct qv_config *c = r->c;
    const json_t *mean = qv_json_get(&r->keys, VISION "image_mean"),
                 *std = qv_json_get(&r->keys, VISION "image_std");
    const bool bounds = qv_json_get(&r->keys, VISION "image_max_pixels") != NULL;
    qv_preprocess_set(c);
    if (!c->family->own_clip_sizes) {
        c->video.min_pixels = r->published->video[0];
        c->video.max_pixels = r->published->video[1];
    }
    qv_status s = read_pixels(r, &c->image);
    if (!s)
        s = read_norm(r, VISION "image_mean", 0, -1e3, c->image.mean);
    if (!s)
        s = read_norm(r, VISION "image_std", 1, 1e-6, c->image.std);
    memcpy(c->video.mean, c->image.mean, sizeof c->video.mean);
    memcpy(c->video.std, c->image.std, sizeof c->video.std);
    snprintf(c->note, sizeof c->note,
             "the file does not give %s, frames per second%s: qwenvit uses the values of published "
             "%s checkpoints",
             bounds ? "clips' pixel bounds"
             : mean ? "pixel bounds"
                    : "means, pixel bounds",
             c->family->windows ? ", window size" : "", r->published->model_type);
    warn_of_means(r, mean, std);
    return s;
}

/* ---- all ------------------------------------------------------------------------------------- */

qv_status
qv_mmproj_read(const char *path, struct qv_config *c, qv_error *err)
{
    struct qv_gguf *file = NULL;
    qv_status s = qv_gguf_open(path, &file, err);
    struct reader r = { .file = file, .c = c, .err = err, .published = families };
    if (!s) {
        r.keys = (struct qv_json_object){ .json = qv_gguf_keys(file), .file = path, .prefix = "" };
        s = find_family(&r);
    }
    if (!s)
        s = read_tower(&r);
    if (!s)
        s = read_processors(&r);
    qv_gguf_close(&file);
    return s;
}
