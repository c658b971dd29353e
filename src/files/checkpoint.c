/* SPDX-License-Identifier: MIT */
/* Finds a tensor by name in the files of a checkpoint's folder. */
#include <dirent.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "json.h"
#include "path.h"
#include "safetensors.h"

#define SINGLE "model.safetensors"
#define INDEX "model.safetensors.index.json"

struct shard {
    const char *name; /* the string in the index's JSON */
    struct qv_safetensors *file;
};

struct qv_checkpoint {
    char *dir;
    struct qv_safetensors *single; /* set if the folder has no index */
    char *index_path;
    json_t *index;
    const json_t *weight_map;
    struct shard *shards; /* the shards opened so far */
    size_t n_shards;
};

/* Returns whether a name in an index is a bare file name. An index may name only files in its own
 * folder. If that name is a symbolic link, it may lead anywhere: the Hugging Face cache consists
 * of such links. */
static bool
is_bare_name(const char *name)
{
    if (!*name || strstr(name, "..") || !strcmp(name, ".") || strpbrk(name, "/\\"))
        return false;
    for (const char *p = name; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            return false;
    return true;
}

static qv_status
open_index(struct qv_checkpoint *c, qv_error *err)
{
    const qv_status s = qv_json_read(c->index_path, QV_JSON_MAX_INDEX, &c->index, err);
    if (s)
        return s;

    const struct qv_json_object top = { .json = c->index, .file = c->index_path, .prefix = "" };
    json_t *map = json_object_get(c->index, "weight_map");
    if (!json_is_object(map))
        return qv_json_wrong(&top, "weight_map", map,
                             "it must be an object of tensor names and file names", err);
    const char *key;
    json_t *value;
    json_object_foreach(map, key, value)
    {
        if (!json_is_string(value) || !is_bare_name(json_string_value(value))) {
            char quoted[QV_QUOTE_SIZE];
            const struct qv_json_object in = { .file = c->index_path, .prefix = "weight_map " };
            return qv_json_wrong(&in, qv_json_quote(key, quoted), value,
                                 "it must be the bare name of a file in the same folder", err);
        }
    }
    c->weight_map = map;
    return QV_OK;
}

/* Other checkpoint formats by their file names, and what to do with them. The first matching row is
 * used. */
#define SAVE_AGAIN "load it with transformers and save it with save_pretrained"
#define ONE_MODEL "a distributed checkpoint; merge it into one model (accelerate merge-weights)"
static const struct {
    const char *pattern, *advice;
} others[] = {
    { "adapter_model*",
      "an adapter; merge it into its base model (PEFT's merge_and_unload) and save the result" },
    { "*.distcp", ONE_MODEL },
    { "pytorch_model_fsdp*", ONE_MODEL },
    { "*.safetensors", "a single file must be named " SINGLE ", several need an index; "
                       "transformers' save_pretrained writes both" },
    { "*.bin", SAVE_AGAIN },
    { "*.pt", SAVE_AGAIN },
    { "*.pth", SAVE_AGAIN },
    { "*.ckpt", SAVE_AGAIN },
};
enum { N_OTHERS = sizeof others / sizeof *others };

/* Fails because a folder has no readable checkpoint, naming what it has instead. */
static qv_status
fail_without_files(const char *path, qv_error *err)
{
    char name[sizeof((struct dirent *)NULL)->d_name] = "";
    size_t best = N_OTHERS;
    DIR *dir = opendir(path);
    for (const struct dirent *e; dir && (e = readdir(dir)) != NULL;) {
        size_t i = 0;
        while (i < N_OTHERS && fnmatch(others[i].pattern, e->d_name, 0) != 0)
            i++;
        if (i < best || (i < N_OTHERS && i == best && strcmp(e->d_name, name) < 0)) {
            best = i;
            snprintf(name, sizeof name, "%s", e->d_name);
        }
    }
    if (dir)
        closedir(dir);
    return qv_fail(err, QV_EIO, "%s: has neither " SINGLE " nor " INDEX "%s%.100s%s%s", path,
                   *name ? ", but " : "", name, *name ? ": " : "",
                   *name ? others[best].advice : "");
}

static qv_status
open_files(struct qv_checkpoint *c, qv_error *err)
{
    char *single = qv_path_join(c->dir, SINGLE);
    qv_status s;
    c->index_path = qv_path_join(c->dir, INDEX);
    if (!single || !c->index_path)
        s = qv_no_memory(c->dir, err);
    /* a dangling link counts as existing: it is an incomplete download, and opening it reports
     * that */
    else if (qv_path_exists(single))
        s = qv_safetensors_open(single, &c->single, err);
    else if (qv_path_exists(c->index_path))
        s = open_index(c, err);
    else if (!qv_path_exists(c->dir))
        s = qv_fail(err, QV_EIO, "%s: no such folder", c->dir);
    else
        s = fail_without_files(c->dir, err);
    free(single);
    return s;
}

qv_status
qv_checkpoint_open(const char *dir, struct qv_checkpoint **out, qv_error *err)
{
    struct qv_checkpoint *c = calloc(1, sizeof *c);
    if (c)
        c->dir = strdup(dir);
    if (!c || !c->dir) {
        free(c);
        return qv_no_memory(dir, err);
    }
    const qv_status s = open_files(c, err);
    if (s) {
        qv_checkpoint_close(&c);
        return s;
    }
    *out = c;
    return QV_OK;
}

void
qv_checkpoint_close(struct qv_checkpoint **checkpoint)
{
    struct qv_checkpoint *c = checkpoint ? *checkpoint : NULL;
    if (!c)
        return;
    for (size_t i = 0; i < c->n_shards; i++)
        qv_safetensors_close(&c->shards[i].file);
    free(c->shards);
    qv_safetensors_close(&c->single);
    json_decref(c->index);
    free(c->index_path);
    free(c->dir);
    free(c);
    *checkpoint = NULL;
}

static qv_status
open_shard(struct qv_checkpoint *c, const char *name, const struct qv_safetensors **file,
           qv_error *err)
{
    for (size_t i = 0; i < c->n_shards; i++) {
        if (!strcmp(c->shards[i].name, name)) {
            *file = c->shards[i].file;
            return QV_OK;
        }
    }

    char *path = qv_path_join(c->dir, name);
    struct shard *shards = realloc(c->shards, (c->n_shards + 1) * sizeof *shards);
    if (shards)
        c->shards = shards;
    if (!path || !shards) {
        free(path);
        return qv_no_memory(c->dir, err);
    }
    struct shard *shard = &shards[c->n_shards];
    *shard = (struct shard){ .name = name };
    const qv_status s = qv_safetensors_open(path, &shard->file, err);
    free(path);
    if (s)
        return s;
    c->n_shards++;
    *file = shard->file;
    return QV_OK;
}

qv_status
qv_checkpoint_find(struct qv_checkpoint *checkpoint, const char *name,
                   const struct qv_safetensor **tensor, const struct qv_safetensors **file,
                   qv_error *err)
{
    const struct qv_safetensors *in = checkpoint->single;
    const char *shard = NULL;
    if (!in) {
        shard = json_string_value(json_object_get(checkpoint->weight_map, name));
        if (!shard) {
            *tensor = NULL;
            *file = NULL;
            return QV_OK;
        }
        const qv_status s = open_shard(checkpoint, shard, &in, err);
        if (s)
            return s;
    }
    const struct qv_safetensor *found = qv_safetensors_find(in, name);
    if (!found && shard) {
        char quoted[QV_QUOTE_SIZE];
        return qv_fail(err, QV_EFORMAT,
                       "%s: weight_map puts tensor %s in %.80s, which does not have it",
                       checkpoint->index_path, qv_json_quote(name, quoted), shard);
    }
    *tensor = found;
    *file = found ? in : NULL;
    return QV_OK;
}

void
qv_checkpoint_visit(const struct qv_checkpoint *checkpoint, qv_checkpoint_see *see, void *user)
{
    const size_t n = checkpoint->single ? qv_safetensors_count(checkpoint->single) : 0;
    for (size_t i = 0; i < n; i++)
        see(user, qv_safetensors_at(checkpoint->single, i)->name);
    const char *name;
    json_t *shard;
    json_object_foreach((json_t *)(uintptr_t)checkpoint->weight_map, name, shard)
    {
        see(user, name);
    }
}
