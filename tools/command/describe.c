/* SPDX-License-Identifier: MIT */
/* qwenvit info, of files that are neither models nor clips: safetensors files and tar files. */
#include <stdlib.h>
#include <string.h>

#include "files/safetensors.h"
#include "list.h"
#include "path.h"
#include "tool.h"

/* ---- safetensors ----------------------------------------------------------------------------- */

/* How many tensors are named: a cache's part has several per key. */
enum { MOST_NAMED = 8 };

static const char tensors_text[] =
    "{file}: [part?part of a cache, ][!part?[about.model?tokens, ]]a safetensors file of {tensors} "
    "tensor{tensors|s}, {bytes|GB}\n"
    "[about.source?  source     {about.source}\n]"
    "[about.model?  model      {about.model}[about.weights_digest?, weights "
    "{about.weights_digest}], computed in "
    "{about.precision}\n]"
    "[about.key?  key        {about.key}\n]"
    "[part?  keys       {keys}, {records|GB} of records\n]"
    "  tensors    {text.named|\n             }[text.more?\n             and {text.more} more]\n";

static qv_status
describe_tensors(const struct tool_results *to, const char *path, qv_error *err)
{
    struct qv_safetensors *f = NULL;
    const qv_status s = qv_safetensors_open(path, &f, err);
    if (s)
        return s;
    static const char *const fields[] = { "qwenvit_version", "source",    "model", "weights_digest",
                                          "identity",        "precision", "key",   "backend" };
    const size_t n = qv_safetensors_count(f);
    json_t *about = json_object(), *named = json_array();
    double bytes = 0;
    int64_t keys = 0;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const char *text = qv_safetensors_metadata(f, fields[i]);
        if (text)
            json_object_set_new(about, fields[i], tool_json_text(text));
    }
    for (size_t i = 0; i < n; i++) {
        const struct qv_safetensor *t = qv_safetensors_at(f, i);
        char shape[200];
        const char *slash = strrchr(t->name, '/');
        bytes += (double)t->bytes;
        keys += slash && !strcmp(slash, "/grid_thw");
        qv_safetensors_print_shape(t->shape, t->n_dims, shape, sizeof shape);
        char *name = i < MOST_NAMED ? qv_utf8_text(t->name) : NULL;
        if (name)
            json_array_append_new(named, json_sprintf("%s %s [%s]", name, t->dtype_name, shape));
        free(name);
    }
    const struct qv_safetensor *records = qv_safetensors_find(f, "__records");
    json_t *j = tool_json("file:t part:b tensors:I bytes:f keys:I records:I about:o text:o", path,
                          records != NULL, n, bytes, keys, records ? records->bytes : 0, about,
                          tool_json("named:o more:I", named, n > MOST_NAMED ? n - MOST_NAMED : 0));
    qv_safetensors_close(&f);
    return tool_show(to, j, tensors_text, err);
}

/* ---- tar ------------------------------------------------------------------------------------- */

struct contents {
    int64_t files, media;
    double bytes;
};

static qv_status
count(void *user, const char *name, int64_t offset, int64_t bytes, qv_error *err)
{
    struct contents *c = user;
    const bool is_media = tool_is_media(name);
    (void)offset, (void)err;
    if (bytes < 0)
        return QV_OK;
    c->files++;
    c->media += is_media;
    c->bytes += is_media ? (double)bytes : 0;
    return QV_OK;
}

static qv_status
describe_tar(const struct tool_results *to, const char *path, qv_error *err)
{
    struct contents c = { 0 };
    const qv_status s = tool_tar_visit(path, count, &c, err);
    return s ? s
             : tool_show(
                   to, tool_json("file:t files:I clips:I bytes:f", path, c.files, c.media, c.bytes),
                   "{file}: a tar file of {files} file{files|s}; {clips} with a clip's or image's "
                   "extension, {bytes|GB} (qwenvit list makes a list of them)\n",
                   err);
}

bool
tool_describe(const struct tool_results *to, const char *path, qv_status *status, qv_error *err)
{
    const size_t n = strlen(path);
    const bool is_tensors = n > 12 && !strcmp(path + n - 12, ".safetensors");
    const bool is_tar = !is_tensors && tool_tar_is(path);
    *status = is_tensors ? describe_tensors(to, path, err)
              : is_tar   ? describe_tar(to, path, err)
                         : QV_OK;
    return is_tensors || is_tar;
}
