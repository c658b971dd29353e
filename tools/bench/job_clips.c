/* SPDX-License-Identifier: MIT */
/* The clips of `qwenvit bench job`: made once, and left for the next run. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "error.h"
#include "files/atomic_file.h"
#include "files/json.h"
#include "job_bench.h"

/* Two frames a second, which are those that are sampled. */
struct tool_clip_shape
job_clip_shape(const struct tool_options *o, int64_t i)
{
    static const int sizes[][2] = { { 320, 240 }, { 448, 256 }, { 240, 426 }, { 384, 384 },
                                    { 608, 320 }, { 256, 192 }, { 512, 288 } };
    enum { N = sizeof sizes / sizeof *sizes, LEAST = 2, MOST = 16 };
    if (o->frames)
        return (struct tool_clip_shape){ (int)(o->size[1] & ~1), (int)(o->size[0] & ~1), 2,
                                         (int)o->frames };
    return (struct tool_clip_shape){ sizes[i % N][0], sizes[i % N][1], 2,
                                     LEAST + (int)(i / N % (MOST - LEAST + 1)) };
}

/* Appends a line to the list; the clip is made, unless it is there. */
static qv_status
make_clip(const struct job_bench *j, int64_t i, struct qv_atomic_file *list, uint64_t *at,
          qv_error *err)
{
    const struct tool_clip_shape shape = job_clip_shape(j->b.o, i);
    char name[80], key[32];
    snprintf(name, sizeof name, "%dx%d-%d.mp4", shape.width, shape.height, shape.frames);
    snprintf(key, sizeof key, "%lld", (long long)i);
    char *path = qv_path_join(j->made, name);
    if (!path)
        return qv_fail(err, QV_ENOMEM, "no memory for a path");
    qv_status s = qv_path_exists(path) ? QV_OK : tool_make_clip(path, &shape, err);
    json_t *line = json_pack("{s:o, s:s}", "path", tool_json_text(path), "key", key);
    char *text = qv_json_text(line, JSON_COMPACT);
    if (!s && !text)
        s = qv_fail(err, QV_ENOMEM, "no memory for a list");
    if (!s)
        s = qv_atomic_file_write(list, *at, text, strlen(text), err);
    *at += text ? strlen(text) : 0;
    if (!s)
        s = qv_atomic_file_write(list, (*at)++, "\n", 1, err);
    json_decref(line);
    free(text);
    free(path);
    return s;
}

qv_status
job_make_clips(const struct job_bench *j, qv_error *err)
{
    struct qv_atomic_file list = { 0 };
    uint64_t at = 0;
    if (mkdir(j->made, 0777) && errno != EEXIST)
        return qv_fail(err, QV_EIO, "%s: cannot be made: %s", j->made, strerror(errno));
    qv_status s = qv_atomic_file_open(j->list_file, &list, err);
    for (int64_t i = 0; i < j->b.o->clips && !s; i++)
        s = make_clip(j, i, &list, &at, err);
    if (!s)
        s = qv_atomic_file_commit(&list, err);
    qv_atomic_file_abort(&list);
    return s;
}
