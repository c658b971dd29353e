/* SPDX-License-Identifier: MIT */
#include "tune.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "files/json.h"
#include "files/atomic_file.h"

/* Format 1 chose among kernels whether their bits agreed or not. */
static const char format[] = "qwenvit tune 2";
enum { MOST_BYTES = 16 << 20 };

/* Returns the object under a key, and makes it if it is not there and `make` is set. NULL: it is
 * not there, or is not an object. */
static json_t *
child(json_t *object, const char *key, bool make)
{
    json_t *it = json_object_get(object, key);
    if (!it && make && object) {
        it = json_object();
        if (json_object_set_new(object, key, it))
            return NULL;
    }
    return json_is_object(it) ? it : NULL;
}

static json_t *
entry(const struct qv_tune *tune, const char *work, bool make)
{
    json_t *devices = child(tune->root, "devices", make);
    return child(child(devices, tune->device, make), work, make);
}

/* Returns what the file holds: NULL if there is none, or (with a warning) if it is not ours. */
static json_t *
read_file(struct qv_tune *tune)
{
    json_t *root = NULL;
    qv_error err;
    tune->readable = true;
    if (!qv_path_exists(tune->path))
        return NULL;
    qv_status status = qv_json_read(tune->path, MOST_BYTES, &root, &err);
    if (!status) {
        const char *found = json_string_value(json_object_get(root, "format"));
        if (found && !strcmp(found, format) && child(root, "devices", false))
            return root;
        snprintf(err.text, sizeof err.text, "%s: not a tune file of this version (format \"%s\")",
                 qv_path_tail(tune->path), format);
        json_decref(root);
    }
    snprintf(tune->warning, sizeof tune->warning,
             "ignored and left as it is: %.160s; remove it to start anew", err.text);
    tune->readable = false;
    return NULL;
}

qv_status
qv_tune_open(struct qv_tune *tune, const char *path, bool measure, const char *backend,
             const struct qv_caps *caps, qv_error *err)
{
    *tune = (struct qv_tune){ .measure = measure };
    snprintf(tune->device, sizeof tune->device, "%s: %s, %d threads, qwenvit %s", backend,
             caps->device, caps->threads, QV_VERSION);
    if (path) {
        tune->path = strdup(path);
        if (!tune->path)
            return qv_fail(err, QV_ENOMEM, "no memory for a path");
        tune->root = read_file(tune);
    }
    if (!tune->root)
        tune->root = json_pack("{s:s, s:{}}", "format", format, "devices");
    if (!tune->root) {
        qv_tune_close(tune);
        return qv_fail(err, QV_ENOMEM, "no memory for measured choices");
    }
    return QV_OK;
}

void
qv_tune_close(struct qv_tune *tune)
{
    json_decref(tune->root);
    free(tune->path);
    *tune = (struct qv_tune){ 0 };
}

const char *
qv_tune_find(const struct qv_tune *tune, const char *work)
{
    return json_string_value(json_object_get(entry(tune, work, false), "choice"));
}

double
qv_tune_ms(const struct qv_tune *tune, const char *work, const char *way)
{
    return json_number_value(json_object_get(child(entry(tune, work, false), "ms", false), way));
}

void
qv_tune_measured(struct qv_tune *tune, const char *work, const char *way, double ms)
{
    json_object_set_new(child(entry(tune, work, true), "ms", true), way, json_real(ms));
}

/* Merges what another process may have written to the file meanwhile. */
static void
merge_file(struct qv_tune *tune)
{
    json_t *there = read_file(tune);
    if (there && !json_object_update_recursive(there, tune->root)) {
        json_decref(tune->root);
        tune->root = json_incref(there);
    }
    json_decref(there);
}

static qv_status
write_file(const struct qv_tune *tune, qv_error *err)
{
    char *text = qv_json_text(tune->root, JSON_INDENT(1) | JSON_SORT_KEYS);
    const qv_status s = text ? qv_atomic_file_put(tune->path, text, strlen(text), err)
                             : qv_fail(err, QV_ENOMEM, "no memory for measured choices");
    free(text);
    return s;
}

void
qv_tune_choose(struct qv_tune *tune, const char *work, const char *choice)
{
    json_object_set_new(entry(tune, work, true), "choice", json_string(choice));
    if (!tune->path || !tune->readable)
        return;
    merge_file(tune);
    qv_error err;
    if (tune->readable && write_file(tune, &err))
        snprintf(tune->warning, sizeof tune->warning, "measured choices are not kept: %.200s",
                 err.text);
}
