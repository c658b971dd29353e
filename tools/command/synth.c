/* SPDX-License-Identifier: MIT */
/*
 * qwenvit synth: makes a checkpoint of given sizes with seeded random weights, in the form in which
 * Hugging Face would store it (bf16, 5D patch embedding, the family's published names), for tests
 * and timing without real weights. Norms and biases are not trivial, and matrices are scaled so
 * that activations stay of order one: a tower that handles any of them wrongly gives visibly wrong
 * results.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clips/make_clip.h"
#include "dtype.h"
#include "error.h"
#include "files/safetensors.h"
#include "path.h"
#include "tool.h"
#include "towers/read_config.h"
#include "towers/tower.h"
#include "files/atomic_file.h"

enum {
    PIECE = 1 << 20,    /* values written at a time */
    MOST_FOLDER = 4000, /* bytes of a folder's path: Linux's limit for a path is 4095 */
    MOST_NAME = 255
};
#define SINGLE "model.safetensors"
#define INDEX "model.safetensors.index.json"

/* The files that are copied from the configuration's folder. */
static const struct {
    const char *name;
    bool required;
} copied[] = { { "processor_config.json", false },
               { "preprocessor_config.json", false },
               { "video_preprocessor_config.json", false },
               /* last, because a folder with a config.json is complete */
               { "config.json", true } };
enum { COPIED = sizeof copied / sizeof *copied };

struct stored {
    size_t id;
    int place;
    char name[128];
};

struct synth {
    const struct tool_options *o;
    struct qv_config config;
    struct qv_tower tower;
    struct qv_safetensor *tensors; /* [n] stored tensors, without the derived ones */
    struct stored *stored;         /* [n] */
    size_t n;
    void *values;
    uint64_t bytes;
    struct qv_atomic_file *files; /* [n_files] written, but not yet renamed */
    size_t n_files;
    char path[MOST_FOLDER + MOST_NAME + 2];
};

/* Returns the path of a file of the checkpoint, valid until the next call. */
static const char *
path_of(struct synth *s, const char *name)
{
    snprintf(s->path, sizeof s->path, "%s/%s", s->o->output, name);
    return s->path;
}

/* This is splitmix64 (Steele et al., 2014). Every value has a separate state, so order does not
 * matter. */
static uint64_t
mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Returns a nearly normal value with variance 1: the sum of four uniform 16-bit parts. */
static float
noise(uint64_t state)
{
    uint64_t u = mix(state);
    int32_t sum = (int32_t)((u & 0xffff) + (u >> 16 & 0xffff) + (u >> 32 & 0xffff) + (u >> 48));
    return (float)(sum - 131070) * (1.7320508f / 65536);
}

static float
spread(const struct synth *s, size_t id, float *mean)
{
    const struct qv_tensor_spec *spec = &s->tower.tensors[id];
    bool norm_weight = spec->form == QV_TENSOR_VECTOR && strstr(spec->names[0], ".weight");
    *mean = norm_weight ? 1 : 0;
    if (spec->form == QV_TENSOR_VECTOR || spec->form == QV_TENSOR_BIAS)
        return norm_weight ? 0.2f : 0.1f;
    return (int)id == s->tower.positions ? 0.5f : 1 / sqrtf((float)spec->k);
}

/* Checkpoints are in bf16 unless --dtype is given. */
static qv_dtype
dtype_of(const struct synth *s)
{
    return s->o->dtype ? s->o->dtype : QV_BF16;
}

static void
shape_of(struct synth *s, size_t i, const struct qv_tensor_spec *spec, int place)
{
    const struct qv_config *c = &s->config;
    struct qv_safetensor *t = &s->tensors[i];
    int64_t conv[] = { c->hidden, c->in_channels, c->temporal, c->patch, c->patch };
    snprintf(s->stored[i].name, sizeof s->stored[i].name, "%s%s", c->family->prefix,
             spec->names[place]);
    t->name = s->stored[i].name;
    snprintf(t->dtype_name, sizeof t->dtype_name, "%s", qv_dtype_file_name(dtype_of(s)));
    bool line = spec->form == QV_TENSOR_VECTOR || spec->form == QV_TENSOR_BIAS;
    int64_t plane[] = { spec->n, c->hidden, c->merge, c->merge };
    t->n_dims = spec->conv3d ? 5 : spec->conv2d ? 4 : line ? 1 : 2;
    t->shape[0] = qv_stored_rows(spec);
    t->shape[1] = spec->k;
    if (spec->conv3d)
        memcpy(t->shape, conv, sizeof conv);
    if (spec->conv2d)
        memcpy(t->shape, plane, sizeof plane);
}

static qv_status
list_tensors(struct synth *s, qv_error *err)
{
    size_t all = s->tower.n * QV_MOST_STORED;
    s->tensors = calloc(all, sizeof *s->tensors);
    s->stored = calloc(all, sizeof *s->stored);
    s->values = malloc((size_t)PIECE * sizeof(float));
    s->files = calloc(all + 1 + COPIED, sizeof *s->files);
    if (!s->tensors || !s->stored || !s->values || !s->files)
        return qv_fail(err, QV_ENOMEM, "no memory for %zu tensors", all);
    for (size_t id = 0; id < s->tower.n; id++)
        for (int place = 0; place < s->tower.tensors[id].n_stored; place++) {
            s->stored[s->n] = (struct stored){ .id = id, .place = place };
            shape_of(s, s->n++, &s->tower.tensors[id], place);
        }
    return QV_OK;
}

static qv_status
write_tensor(struct synth *s, struct qv_safetensors_writer *w, size_t slot, size_t tensor,
             qv_error *err)
{
    const size_t id = s->stored[tensor].id;
    qv_dtype dtype = dtype_of(s);
    size_t element = qv_dtype_bytes(dtype);
    float mean, deviation = spread(s, id, &mean);
    uint64_t base = mix((uint64_t)s->o->seed * 1000003 + id) & ~(uint64_t)0xffffffffff;
    int64_t total = qv_stored_rows(&s->tower.tensors[id]) * s->tower.tensors[id].k;
    /* each stored tensor begins where the previous one ended */
    int64_t first = s->stored[tensor].place * total;
    for (int64_t at = 0; at < total; at += PIECE) {
        int64_t n = total - at < PIECE ? total - at : PIECE;
        for (int64_t i = 0; i < n; i++) {
            /* f32 files hold bf16 values too, so that both dtypes are the same model */
            qv_bf16 v = qv_f32_to_bf16(mean + deviation * noise(base + (uint64_t)(first + at + i)));
            qv_store(s->values, dtype, i, qv_bf16_to_f32(v));
        }
        qv_status status = qv_safetensors_writer_put(w, slot, (uint64_t)at * element, s->values,
                                                     (uint64_t)n * element, err);
        if (status)
            return status;
    }
    s->bytes += (uint64_t)total * element;
    return QV_OK;
}

static qv_status
write_file(struct synth *s, const char *name, size_t first, size_t n, qv_error *err)
{
    const char *const metadata[][2] = { { "format", "pt" } };
    struct qv_safetensors_writer *w = NULL;
    qv_status status =
        qv_safetensors_writer_open(path_of(s, name), s->tensors + first, n, metadata, 1, &w, err);
    for (size_t i = 0; i < n && !status; i++)
        status = write_tensor(s, w, i, first + i, err);
    if (!status)
        status = qv_safetensors_writer_seal(&w, &s->files[s->n_files++], err);
    qv_safetensors_writer_abort(&w);
    return status;
}

static qv_status
write_json(struct synth *s, const char *name, json_t *j, qv_error *err)
{
    struct qv_atomic_file *file = &s->files[s->n_files++];
    const char *path = path_of(s, name);
    char *text = qv_json_text(j, JSON_INDENT(2));
    qv_status status = text ? qv_atomic_file_open(path, file, err)
                            : qv_fail(err, QV_ENOMEM, "%s: no memory for JSON", path);
    if (!status)
        status = qv_atomic_file_write(file, 0, text, strlen(text), err);
    if (!status)
        status = qv_atomic_file_seal(file, err);
    free(text);
    return status;
}

static void
shard_name(char *name, size_t size, int64_t i, int64_t n)
{
    snprintf(name, size, "model-%05lld-of-%05lld.safetensors", (long long)i + 1, (long long)n);
}

static qv_status
write_shards(struct synth *s, qv_error *err)
{
    int64_t shards = s->o->shards;
    json_t *map = json_object();
    qv_status status = QV_OK;
    for (int64_t i = 0; i < shards && !status; i++) {
        char name[64];
        size_t first = s->n * (size_t)i / (size_t)shards;
        size_t end = s->n * (size_t)(i + 1) / (size_t)shards;
        shard_name(name, sizeof name, i, shards);
        status = write_file(s, name, first, end - first, err);
        for (size_t t = first; t < end; t++)
            json_object_set_new(map, s->stored[t].name, json_string(name));
    }
    json_t *index = tool_json("metadata:o weight_map:o", tool_json("total_size:I", s->bytes), map);
    if (!status)
        status = write_json(s, INDEX, index, err);
    json_decref(index);
    return status;
}

/* ---- the folder ------------------------------------------------------------------------------ */

static qv_status
remove_old(struct synth *s, const char *name, qv_error *err)
{
    const char *path = path_of(s, name);
    return unlink(path) && errno != ENOENT
               ? qv_fail(err, QV_EIO, "%s: cannot be removed: %s", path, strerror(errno))
               : QV_OK;
}

static qv_status
copy_json(struct synth *s, size_t i, qv_error *err)
{
    char from[MOST_FOLDER + MOST_NAME + 2];
    json_error_t why;
    snprintf(from, sizeof from, "%s/%s", s->o->config, copied[i].name);
    if (!copied[i].required && !qv_path_exists(from))
        return QV_OK;
    json_t *j = json_load_file(from, JSON_REJECT_DUPLICATES, &why);
    if (!j)
        return qv_fail(err, QV_EFORMAT, "%s: %s", from, why.text);
    qv_status status = write_json(s, copied[i].name, j, err);
    json_decref(j);
    return status;
}

/* Returns whether a name in an index names a weight file in the index's own folder. */
static bool
is_shard(const char *name)
{
    static const char end[] = ".safetensors";
    const size_t n = strlen(name), m = sizeof end - 1;
    return n <= MOST_NAME && n > m && !strcmp(name + n - m, end) && !strchr(name, '/');
}

/* Returns whether the output is the configuration's own folder, which already contains the copied
 * files. */
static bool
is_in_place(const struct synth *s)
{
    struct stat from, to;
    return !stat(s->o->config, &from) && !stat(s->o->output, &to) && from.st_dev == to.st_dev &&
           from.st_ino == to.st_ino;
}

static qv_status
check_absent(const char *path, const char *what, qv_error *err)
{
    struct stat st;
    return lstat(path, &st) || !(S_ISREG(st.st_mode) || S_ISLNK(st.st_mode))
               ? QV_OK
               : qv_fail(err, QV_EINVAL,
                         "%s exists, and would be replaced by %s: choose another name, or add "
                         "--force to replace it",
                         path, what);
}

/* Random weights must not replace real weights by mistake, and never through a link: a hub's
 * snapshot consists of links to files that other snapshots share. */
static qv_status
check_name(struct synth *s, const char *name, const char *what, qv_error *err)
{
    const char *path = path_of(s, name);
    struct stat st;
    if (!s->o->force)
        return check_absent(path, what, err);
    return lstat(path, &st) || !S_ISLNK(st.st_mode)
               ? QV_OK
               : qv_fail(err, QV_EIO,
                         "%s is a symbolic link, and --force replaces only files: remove it, or "
                         "choose another folder",
                         path);
}

static qv_status
check_folder(struct synth *s, qv_error *err)
{
    static const char *const weights[] = { SINGLE, INDEX };
    const bool in_place = is_in_place(s);
    char shard[64];
    qv_status status = QV_OK;
    for (size_t i = 0; i < 2 && !status; i++)
        status = check_name(s, weights[i], "random weights", err);
    for (size_t i = 0; i < COPIED && !status && !in_place; i++)
        status = check_name(s, copied[i].name, "a copy of another", err);
    for (int64_t i = 0; i < s->o->shards && s->o->shards > 1 && !status; i++) {
        shard_name(shard, sizeof shard, i, s->o->shards);
        status = check_name(s, shard, "random weights", err);
    }
    return status;
}

/* Removes the files that make the old folder a checkpoint, config.json and the index first, so that
 * a mixture can never be loaded, even if the process ends now. A single weight file stays if a new
 * one replaces it atomically. If the output is the configuration's own folder, config.json
 * stays. */
static qv_status
remove_checkpoint(struct synth *s, qv_error *err)
{
    json_t *index = json_load_file(path_of(s, INDEX), 0, NULL), *shard;
    const char *tensor;
    qv_status status = QV_OK;
    for (size_t i = is_in_place(s) ? 0 : COPIED; i-- > 0 && !status;)
        status = remove_old(s, copied[i].name, err);
    if (!status)
        status = remove_old(s, INDEX, err);
    if (!status && s->o->shards > 1)
        status = remove_old(s, SINGLE, err);
    json_object_foreach(json_object_get(index, "weight_map"), tensor, shard)
    {
        const char *name = json_string_value(shard);
        if (!status && name && is_shard(name))
            status = remove_old(s, name, err);
    }
    json_decref(index);
    return status;
}

/* Renames the files to their final names, config.json last. Signals are deferred, because they
 * would leave half of the files. */
static qv_status
replace_checkpoint(struct synth *s, qv_error *err)
{
    tool_signals_defer();
    qv_status status = remove_checkpoint(s, err);
    for (size_t i = 0; i < s->n_files && !status; i++)
        status = qv_atomic_file_commit(&s->files[i], err);
    return status;
}

static qv_status
check_length(const char *folder, qv_error *err)
{
    const size_t n = strlen(folder);
    return n <= MOST_FOLDER
               ? QV_OK
               : qv_fail(err, QV_EIO, "%s: the path has %zu bytes; at most %d are allowed", folder,
                         n, MOST_FOLDER);
}

static qv_status
synth(struct synth *s, qv_error *err)
{
    qv_status status = check_length(s->o->config, err);
    if (!status)
        status = check_length(s->o->output, err);
    if (!status)
        status = qv_config_read(s->o->config, &s->config, err);
    if (!status && s->config.note[0])
        status =
            qv_fail(err, QV_EUNSUPPORTED,
                    "%s is a GGUF file; --config needs a folder with a config.json", s->o->config);
    if (!status)
        status = qv_tower_open(&s->config, &s->tower, err);
    if (!status)
        status = list_tensors(s, err);
    if (!status && (uint64_t)s->o->shards > s->n)
        status = qv_fail(err, QV_EINVAL, "--shards is %lld, but there are %zu tensors",
                         (long long)s->o->shards, s->n);
    if (!status)
        status = check_folder(s, err);
    if (!status && mkdir(s->o->output, 0777) && errno != EEXIST)
        status = qv_fail(err, QV_EIO, "%s: cannot be created: %s", s->o->output, strerror(errno));
    if (!status)
        status = s->o->shards > 1 ? write_shards(s, err) : write_file(s, SINGLE, 0, s->n, err);
    const bool in_place = is_in_place(s);
    for (size_t i = 0; i < COPIED && !status && !in_place; i++)
        status = copy_json(s, i, err);
    return status ? status : replace_checkpoint(s, err);
}

/* ---- clips to try on, by the program that links FFmpeg --------------------------------------- */

const struct qvm_clip_shape tool_clip_shape = {
    .width = 320, .height = 240, .fps = 25, .frames = 100
};

qv_status
tool_make_clip(const char *path, const struct qvm_clip_shape *s, qv_error *err)
{
    struct qv_atomic_file file = { 0 };
    qv_error why;
    qv_status status = qv_atomic_file_open(path, &file, err);
    if (status)
        return status;
    const char *to = file.temporary ? file.temporary : file.path;
    status = qvm_clip_make(tool_decoder_program(), to, s, &why);
    status =
        status ? qv_fail(err, status, "%s: %s", path, why.text) : qv_atomic_file_commit(&file, err);
    qv_atomic_file_abort(&file);
    return status;
}

static int
make_clip(const struct tool_options *o)
{
    qv_error err = { 0 };
    qv_status s = o->force ? QV_OK : check_absent(o->make_clip, "a made clip", &err);
    const struct qvm_clip_shape *c = &tool_clip_shape;
    if (!s)
        s = tool_make_clip(o->make_clip, c, &err);
    if (!s)
        s = tool_show(&o->to,
                      tool_json("clip:t frames:i fps:i width:i height:i text:o", o->make_clip,
                                c->frames, c->fps, c->width, c->height,
                                tool_json("seconds:i", c->frames / c->fps)),
                      "{clip}: {text.seconds} seconds of {width}x{height} at {fps} fps\n", &err);
    return s ? tool_fail(s, &err) : TOOL_DONE;
}

/* ---- the subcommand -------------------------------------------------------------------------- */

int
tool_synth(const struct tool_options *o)
{
    if (o->make_clip && !o->config && !o->output)
        return make_clip(o);
    if (!o->config || !o->output) {
        tool_complain("synth: --config DIR and -o DIR are required (qwenvit synth --help)");
        return TOOL_USAGE;
    }
    struct synth s = { .o = o };
    qv_error err = { 0 };
    qv_status status = synth(&s, &err);
    if (!status)
        status = tool_show(&o->to,
                           tool_json("checkpoint:t tensors:I bytes:I seed:I text:o", o->output, s.n,
                                     s.bytes, o->seed, tool_json("mb:f", (double)s.bytes / 1e6)),
                           "{checkpoint}: {tensors} tensors, {text.mb|1f} MB, seed {seed}\n", &err);
    for (size_t i = 0; i < s.n_files; i++)
        qv_atomic_file_abort(&s.files[i]);
    free(s.files);
    qv_tower_close(&s.tower);
    free(s.tensors);
    free(s.stored);
    free(s.values);
    const int code = status ? tool_fail(status, &err) : TOOL_DONE;
    tool_signals_obey();
    return code;
}
