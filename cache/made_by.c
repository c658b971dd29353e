/* SPDX-License-Identifier: MIT */
/* Describes a cache's model and sampling, and its clips' files, for all writers of caches. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cache.h"
#include "error.h"
#include "files/json.h"
#include "files/preprocess_json.h"
#include "path.h"

/* The version of the rules that decide a clip's frames and their bytes: which are sampled, their
 * times, and the conversion to RGB. Each change raises it; caches of 0.4.0 and earlier have
 * none. */
enum { FRAMES = 2 };

static json_t *
option_json(const struct qvm_option *p, const qv_clip_options *c)
{
    return p->kind == QVM_A_LIKE   ? json_string(qv_like_name(c->like))
           : p->kind == QVM_A_FLAG ? json_boolean(qvm_option_integer(p, c))
           : qvm_option_is_real(p) ? json_real(qvm_option_real(p, c))
                                   : json_integer(qvm_option_integer(p, c));
}

static json_t *
sampling_json(const qv_clip_options *c)
{
    json_t *j = json_object();
    bool lost = false;
    for (int later = 0; later < 2; later++) /* first the fields that all versions wrote */
        QVM_EACH_OPTION (p)
            if (p->scopes & QVM_MADE_BY && qvm_option_is_later(p) == later &&
                (!later || qvm_option_real(p, c) != 0))
                lost = json_object_set_new(j, p->name, option_json(p, c)) || lost;
    if (!lost)
        return j;
    json_decref(j);
    return NULL;
}

/* Returns the name of a folder's model: "Qwen/Qwen3-VL-4B-Instruct" of a hub's
 * models--Qwen--Qwen3-VL-4B-Instruct/snapshots/.., else the folder's own. */
static char *
model_name(const char *folder)
{
    static const char hub[] = "/models--";
    const char *from = strstr(folder, hub);
    char *name = strdup(from ? from + sizeof hub - 1 : qv_path_name(folder));
    if (name && from) {
        name[strcspn(name, "/")] = 0;
        char *dashes = strstr(name, "--");
        if (dashes) {
            *dashes = '/';
            memmove(dashes + 1, dashes + 2, strlen(dashes + 2) + 1);
        }
    }
    return name;
}

/* Names the model for display. It is not used in comparisons. */
static json_t *
model_json(const char *folder)
{
    char *real = realpath(folder, NULL), *name = model_name(real ? real : folder);
    char *name_text = name ? qv_utf8_text(name) : NULL;
    char *text = qv_utf8_text(real ? real : folder);
    json_t *j =
        name_text && text ? json_pack("{s:s, s:s}", "name", name_text, "folder", text) : NULL;
    free(real);
    free(name);
    free(name_text);
    free(text);
    return j;
}

qv_status
qv_cache_made_by(const qv_model_info *model, int64_t pack_rows, const char *rule,
                 const qv_clip_options *clip, char **out, qv_error *err)
{
    /* The identity comes last, so that an error names the number that differs. */
    json_t *j =
        json_pack("{s:s, s:s, s:s, s:I, s:s, s:i, s:o, s:{s:o, s:o, s:o}, s:s}", "model_type",
                  model->model_type, "weights", *model->digest ? model->digest : "unknown", "dtype",
                  qv_dtype_name(model->dtype), "capacity", (json_int_t)pack_rows, "packing", rule,
                  "frames", FRAMES, "config",
                  json_loads(model->config ? model->config : "{}", 0, NULL), "preprocessing",
                  "image", qv_preprocess_json(&model->image), "video",
                  qv_preprocess_json(&model->video), "options", sampling_json(clip), "identity",
                  model->identity ? model->identity : "unknown");
    const bool lost = j && model->folder && *model->folder &&
                      json_object_set_new(j, "model", model_json(model->folder));
    char *text = lost ? NULL : qv_json_text(j, JSON_COMPACT);
    json_decref(j);
    if (!text)
        return qv_fail(err, QV_ENOMEM, "no memory for a cache's made_by");
    *out = text;
    return QV_OK;
}

#ifdef __APPLE__
#define MTIME(st) (st).st_mtimespec
#else
#define MTIME(st) (st).st_mtim
#endif

qv_cache_source
qv_cache_source_of(const char *path, const qv_clip_options *own, char text[QV_CACHE_OPTIONS_BYTES])
{
    static const qv_clip_options nothing;
    const qv_clip_options *o = own ? own : &nothing;
    qv_cache_source s = { .path = path, .start_s = o->start_s, .end_s = o->end_s };
    struct stat st;
    if (!stat(path, &st)) {
        s.bytes = st.st_size;
        s.mtime_ns = (int64_t)MTIME(st).tv_sec * 1000000000 + MTIME(st).tv_nsec;
    }
    s.options = own ? qv_cache_options_text(own, text) : NULL;
    return s;
}
