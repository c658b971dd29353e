/* SPDX-License-Identifier: MIT */
/*
 * qwenvit bench cache: makes a cache of many keys of one token each, and the list of its clips. It
 * times a `qwenvit cache` run that has nothing to do, opening the cache, and finding a key.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "bench.h"
#include "command/cache_command.h"
#include "command/encode.h"
#include "error.h"
#include "files/atomic_file.h"
#include "files/json.h"
#include "files/text.h"

enum { KEY_BYTES = 32, FINDS = 20000 };

struct cache_bench {
    struct bench *b;
    struct tool_devices devices;
    char *list, *folder; /* files inside -o */
    qv_cache *cache;
    uint64_t random;
};

static void
key_name(int64_t i, char name[KEY_BYTES])
{
    snprintf(name, KEY_BYTES, "clips/%08lld.mp4", (long long)i);
}

/* ---- making the cache ------------------------------------------------------------------------ */

static qv_status
name_files(struct cache_bench *c, qv_error *err)
{
    const char *folder = c->b->o->output;
    if (mkdir(folder, 0777) && errno != EEXIST)
        return qv_fail(err, QV_EIO, "%s: cannot be made: %s", folder, strerror(errno));
    c->list = qv_path_join(folder, "clips.txt");
    c->folder = qv_path_join(folder, "tokens");
    return c->list && c->folder ? QV_OK : qv_fail(err, QV_ENOMEM, "%s: out of memory", folder);
}

static qv_status
run_with(struct cache_bench *c, const char *list, struct tool_cache_times *times, qv_error *err)
{
    struct tool_options o = *c->b->o;
    o.out = c->folder;
    o.list = list;
    o.json_file = "/dev/null";
    o.json = o.quiet = true;
    return bench_ended("cache", tool_cache_run_on(&o, &c->devices, times), err);
}

qv_status
bench_start_parts(const char *folder, const qv_model_info *model, struct qv_cache_writer **writer,
                  qv_error *err)
{
    const qv_cache_writer_options o = { .layout = { .dtype = QV_BF16,
                                                    .width = model->out_hidden,
                                                    .n_deepstack = model->n_deepstack },
                                        .made_by = "{}" };
    return qv_cache_writer_open(folder, &o, writer, err);
}

qv_status
bench_put_tokens(struct qv_cache_writer *w, const char *key, const qv_tokens *row, qv_error *err)
{
    const qv_cache_source source = { .path = key }; /* the file does not exist, so it has no size
                                                     * and no time */
    const double time_s = 0;
    const qv_outcome outcome = { .is_image = true, .n_frames = 1, .grid_thw = { 1, 2, 2 } };
    const qv_cache_result result = { .outcome = &outcome, .timestamps_s = &time_s };
    qv_cache_entry *entry = NULL;
    qv_status s = qv_cache_begin(w, key, &source, row->n, &entry, err);
    if (!s)
        s = qv_cache_put(entry, row, err);
    if (!s)
        return qv_cache_finish(&entry, &result, err);
    qv_cache_drop(&entry);
    return s;
}

static qv_status
put_keys(struct cache_bench *c, const qv_cache_info *info, qv_error *err)
{
    const qv_cache_writer_options o = { .layout = info->layout,
                                        .made_by = info->made_by,
                                        .after = info->sealed };
    char key[KEY_BYTES];
    void *zeros = calloc((size_t)info->layout.width, sizeof(float));
    qv_tokens row = { .tokens = zeros, .n = 1 };
    qv_cache_writer *w = NULL;
    for (int i = 0; i < info->layout.n_deepstack; i++)
        row.deepstack[i] = zeros;
    qv_status s = zeros ? qv_cache_writer_open(c->folder, &o, &w, err)
                        : qv_fail(err, QV_ENOMEM, "no memory for a token");
    for (int64_t i = 0; i < c->b->o->keys && !s; i++) {
        key_name(i, key);
        s = bench_put_tokens(w, key, &row, err);
    }
    const qv_status sealed = qv_cache_writer_close(&w, s ? NULL : err);
    free(zeros);
    return s ? s : sealed;
}

static qv_status
write_list(const struct cache_bench *c, qv_error *err)
{
    char key[KEY_BYTES];
    struct qv_text list = { 0 };
    for (int64_t i = 0; i < c->b->o->keys; i++) {
        key_name(i, key);
        qv_text_say(&list, "%s\n", key);
    }
    const qv_status s = list.lost ? qv_fail(err, QV_ENOMEM, "%s: no memory for a list", c->list)
                                  : qv_atomic_file_put(c->list, list.at, list.n, err);
    free(list.at);
    return s;
}

/* Makes the cache unless it exists with so many keys. A run with an empty list gives it this
 * model's description. */
static qv_status
make(struct cache_bench *c, qv_error *err)
{
    struct tool_cache_times times;
    qv_cache_info info;
    qv_status s = run_with(c, "/dev/null", &times, err);
    if (!s)
        s = qv_cache_open(c->folder, &c->cache, err);
    if (s)
        return s;
    qv_cache_get_info(c->cache, &info);
    if (info.n_ok && info.n_ok != c->b->o->keys)
        s = qv_fail(err, QV_EINVAL, "%s has %lld keys; --keys is %lld", c->folder,
                    (long long)info.n_ok, (long long)c->b->o->keys);
    if (!info.n_ok)
        s = put_keys(c, &info, err);
    qv_cache_close(&c->cache);
    tool_devices_close(&c->devices);
    return s ? s : write_list(c, err);
}

/* ---- timing ---------------------------------------------------------------------------------- */

static qv_status
open_cache(void *user, double *ms, qv_error *err)
{
    struct cache_bench *c = user;
    qv_cache_close(&c->cache);
    const double began_s = qv_seconds();
    const qv_status s = qv_cache_open(c->folder, &c->cache, err);
    *ms = 1e3 * (qv_seconds() - began_s);
    return s;
}

/* Finds random keys, and reads the first byte of their tokens. *ms is the time of one. */
static qv_status
find_keys(void *user, double *ms, qv_error *err)
{
    struct cache_bench *c = user;
    char key[KEY_BYTES];
    qv_cache_item item = { .key = "" };
    int sum = 0;
    qv_status s = QV_OK;
    const double began_s = qv_seconds();
    for (int i = 0; i < FINDS && !s && item.key; i++) {
        c->random = c->random * 6364136223846793005u + 1442695040888963407u;
        key_name((int64_t)((c->random >> 33) % (uint64_t)c->b->o->keys), key);
        s = qv_cache_find(c->cache, key, &item, err);
        if (!s && item.key)
            s = qv_cache_hold(c->cache, &item, err);
        sum += s || !item.tokens ? 0 : *(const volatile char *)item.tokens;
        qv_cache_release(c->cache, &item);
    }
    *ms = 1e3 * (qv_seconds() - began_s) / FINDS;
    return !s && (!item.key || sum)
               ? qv_fail(err, QV_EFORMAT, "%s: %s is not in it", c->folder, key)
               : s;
}

/* Times a run that has nothing to do, with all that it opens. */
static qv_status
resume(struct cache_bench *c, struct bench_times *times, json_t **extras, qv_error *err)
{
    struct tool_cache_times t;
    const double began_s = qv_seconds();
    const qv_status s = run_with(c, c->list, &t, err);
    const double ms = 1e3 * (qv_seconds() - began_s);
    *times = (struct bench_times){ ms, ms, 1 };
    *extras = tool_json("list_s:f look_s:f", t.list_s, t.look_s);
    return s;
}

/* Reports one way. Takes the reference to extras. */
static qv_status
report(struct cache_bench *c, const char *way, struct bench_times times, json_t *extras,
       qv_error *err)
{
    char work[64];
    qv_cache_info info;
    qv_cache_get_info(c->cache, &info);
    snprintf(work, sizeof work, "%lld keys", (long long)c->b->o->keys);
    const struct bench_record r = { .work = work,
                                    .way = way,
                                    .dtype = info.layout.dtype,
                                    .times = times,
                                    .show = "list_s look_s",
                                    .extras = extras };
    return bench_report(c->b, &r, err);
}

static qv_status
run_all(struct cache_bench *c, qv_error *err)
{
    struct bench_run runs[] = { { .work = open_cache, .user = c },
                                { .work = find_keys, .user = c } };
    struct bench_times resumed = { 0 };
    json_t *extras = NULL;
    qv_status s = name_files(c, err);
    if (!s)
        s = make(c, err);
    if (!s)
        s = resume(c, &resumed, &extras, err);
    for (int i = 0; i < 2 && !s; i++)
        s = bench_time(c->b, &runs[i], 1, err);
    if (s) {
        json_decref(extras);
        return s;
    }
    c->b->info = c->devices.infos[0];
    s = report(c, "resume", resumed, extras, err);
    if (!s)
        s = report(c, "open", runs[0].times, NULL, err);
    return s ? s : report(c, "find", runs[1].times, NULL, err);
}

qv_status
bench_cache(struct bench *b, qv_error *err)
{
    struct cache_bench c = { .b = b };
    const qv_status s = run_all(&c, err);
    qv_cache_close(&c.cache);
    tool_devices_close(&c.devices);
    free(c.list);
    free(c.folder);
    return s;
}
