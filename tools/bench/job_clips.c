/* SPDX-License-Identifier: MIT */
/*
 * The clips of `qwenvit bench job`, made once and kept for the next run. They are like those in
 * datasets: a few clips of some seconds at 24 frames a second, of which a tower looks at two a
 * second, each copied to many files; or a few clips that are given; or, with --frames, clips with
 * only those frames that are looked at.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"
#include "files/atomic_file.h"
#include "files/json.h"
#include "job_bench.h"

enum { MOST_MASTERS = 64, FILMED = 4, FILMED_FPS = 24, FILMED_S = 10, SAMPLED_FPS = 2 };
enum { MOST_REPETITIONS = 8640 }; /* a day */

struct masters {
    char *paths[MOST_MASTERS];
    int n;
};

static void
free_masters(struct masters *m)
{
    for (int i = 0; i < m->n; i++)
        free(m->paths[i]);
}

struct tool_clip_shape
job_clip_shape(const struct tool_options *o)
{
    struct tool_clip_shape s = { .width = (int)(o->size[1] & ~1),
                                 .height = (int)(o->size[0] & ~1) };
    const double seconds = o->seconds > 0 && o->seconds < FILMED_S ? o->seconds : FILMED_S;
    s.is_filmed = !o->frames;
    s.fps = o->frames ? SAMPLED_FPS : FILMED_FPS;
    s.frames = o->frames ? (int)o->frames : (int)ceil(seconds * FILMED_FPS);
    return s;
}

int
job_repetitions(const struct tool_options *o)
{
    const double times = o->frames || o->seconds < FILMED_S ? 1 : o->seconds / FILMED_S;
    return times < MOST_REPETITIONS ? (int)times : MOST_REPETITIONS;
}

static qv_status
add_master(struct masters *m, const char *folder, const char *name, qv_error *err)
{
    char *path = m->n < MOST_MASTERS ? qv_path_join(folder, name) : NULL;
    if (!path)
        return qv_fail(err, m->n < MOST_MASTERS ? QV_ENOMEM : QV_EINVAL,
                       "%s: no room for more than %d clips", folder, MOST_MASTERS);
    m->paths[m->n++] = path;
    return QV_OK;
}

static qv_status
make_masters(const struct job_bench *j, struct masters *m, qv_error *err)
{
    struct tool_clip_shape shape = job_clip_shape(j->b.o);
    qv_status s = QV_OK;
    for (int i = 0; i < (shape.is_filmed ? FILMED : 1) && !s; i++) {
        char name[80];
        snprintf(name, sizeof name, "%dx%d-%d-%d%c.mp4", shape.width, shape.height, shape.fps,
                 shape.frames, 'a' + i);
        shape.number = i;
        s = add_master(m, j->made, name, err);
        if (!s && !qv_path_exists(m->paths[i]))
            s = tool_make_clip(m->paths[i], &shape, err);
    }
    return s;
}

static int
is_shown(const struct dirent *entry)
{
    return *entry->d_name != '.';
}

static qv_status
find_masters(const char *folder, struct masters *m, qv_error *err)
{
    struct dirent **names = NULL;
    const int n = scandir(folder, &names, is_shown, alphasort);
    qv_status s = QV_OK;
    if (n < 1)
        s = qv_fail(err, n ? QV_EIO : QV_EFORMAT, "%s: %s", folder,
                    n ? strerror(errno) : "no clip is in this folder");
    for (int i = 0; i < n; i++) {
        if (!s)
            s = add_master(m, folder, names[i]->d_name, err);
        free(names[i]);
    }
    free(names);
    return s;
}

/* ---- files of the list ----------------------------------------------------------------------- */

static qv_status
copy_file(const char *path, const char *copy, qv_error *err)
{
    int from;
    uint64_t bytes;
    qv_status s = qv_file_open(path, &from, &bytes, err);
    if (s)
        return s;
    void *all = malloc((size_t)bytes + 1);
    s = all ? qv_file_read(from, path, 0, all, bytes, err)
            : qv_fail(err, QV_ENOMEM, "%s: no memory for a copy", path);
    if (!s)
        s = qv_atomic_file_put(copy, all, bytes, err);
    free(all);
    close(from);
    return s;
}

/* Makes "FOLDER/7-NAME", a file for each entry of the list, unless it exists. */
static qv_status
make_file(const struct job_bench *j, const char *master, int64_t i, char **out, qv_error *err)
{
    const int times = job_repetitions(j->b.o);
    char base[160], name[200];
    bench_base_name(master, base, sizeof base);
    snprintf(name, sizeof name, "%lld-%dx-%s", (long long)i, times, base);
    *out = qv_path_join(j->made, name);
    if (!*out)
        return qv_fail(err, QV_ENOMEM, "no memory for a path");
    if (qv_path_exists(*out))
        return QV_OK;
    return times > 1 ? tool_repeat_clip(master, times, *out, err) : copy_file(master, *out, err);
}

static qv_status
make_list(const struct job_bench *j, const struct masters *m, qv_error *err)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *list = open_memstream(&text, &bytes);
    qv_status s = list ? QV_OK : qv_fail(err, QV_ENOMEM, "no memory for a list");
    for (int64_t i = 0; i < j->b.o->clips && !s; i++) {
        char *path = NULL, key[32];
        s = make_file(j, m->paths[i % m->n], i, &path, err);
        snprintf(key, sizeof key, "%lld", (long long)i);
        json_t *entry =
            s ? NULL : json_pack("{s:o, s:s}", "path", tool_json_text(path), "key", key);
        char *line = entry ? tool_json_line(entry) : NULL;
        if (!s && (!line || fprintf(list, "%s\n", line) < 0))
            s = qv_fail(err, QV_ENOMEM, "no memory for a list");
        json_decref(entry);
        free(line);
        free(path);
    }
    if (list && fclose(list) && !s)
        s = qv_fail(err, QV_ENOMEM, "no memory for a list");
    if (!s)
        s = qv_atomic_file_put(j->list_file, text, bytes, err);
    free(text);
    return s;
}

qv_status
job_make_clips(const struct job_bench *j, qv_error *err)
{
    struct masters m = { .n = 0 };
    if (mkdir(j->made, 0777) && errno != EEXIST)
        return qv_fail(err, QV_EIO, "%s: cannot be made: %s", j->made, strerror(errno));
    qv_status s = j->b.o->from ? find_masters(j->b.o->from, &m, err) : make_masters(j, &m, err);
    if (!s)
        s = make_list(j, &m, err);
    free_masters(&m);
    return s;
}
