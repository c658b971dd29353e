/* SPDX-License-Identifier: MIT */
/* Writes trace events, which Perfetto and Chrome open: when each stage of a job worked, and
 * whatever else calls tool_trace_write. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "encode.h"
#include "error.h"
#include "files/atomic_file.h"
#include "files/json.h"

enum { SHOWN_KEY = 256 };

struct tool_trace {
    pthread_mutex_t lock;
    struct qv_atomic_file file;
    double opened_s;
    qv_status status; /* status of the first write that failed */
    qv_error error;
};

/* Rows of the diagram: each is a process, with a thread for each lane. */
static const struct {
    const char *stage, *name;
    int process;
} stages[] = { { "decode", "decoding", 1 },
               { "push", "devices", 2 },
               { "pull", "devices", 2 },
               { "sink", "writing", 3 } };
enum { N_STAGES = sizeof stages / sizeof *stages };

static void
put_text(struct tool_trace *t, const char *text)
{
    if (!t->status)
        t->status = qv_atomic_file_write(&t->file, t->file.end, text, strlen(text), &t->error);
}

qv_status
tool_trace_open(const char *path, struct tool_trace **out, qv_error *err)
{
    struct tool_trace *t = calloc(1, sizeof *t);
    if (!t)
        return qv_fail(err, QV_ENOMEM, "%s: no memory for a trace", path);
    if (pthread_mutex_init(&t->lock, NULL)) {
        free(t);
        return qv_fail(err, QV_ENOMEM, "%s: no lock can be made", path);
    }
    const qv_status status = qv_atomic_file_open(path, &t->file, err);
    if (status) {
        tool_trace_close(&t);
        return status;
    }
    t->opened_s = qv_seconds();
    put_text(t, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
    for (int i = 0; i < N_STAGES; i++) {
        char text[200];
        snprintf(
            text, sizeof text,
            "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"%s\"}},\n",
            stages[i].process, stages[i].name);
        put_text(t, text);
    }
    *out = t;
    return QV_OK;
}

void
tool_trace_write(struct tool_trace *t, const char *name, int process, int lane, double begin_s,
                 double end_s, json_t *args)
{
    json_t *event = tool_json("name:s ph:s pid:i tid:i ts:f dur:f args:o", name, "X", process, lane,
                              1e6 * begin_s, 1e6 * (end_s - begin_s), args);
    char *text = event ? tool_json_line(event) : NULL;
    json_decref(event);
    pthread_mutex_lock(&t->lock);
    if (text) {
        put_text(t, text);
        put_text(t, ",\n");
    } else if (!t->status)
        t->status = qv_fail(&t->error, QV_ENOMEM, "no memory for a trace");
    pthread_mutex_unlock(&t->lock);
    free(text);
}

void
tool_trace_span(struct tool_trace *t, const char *stage, int lane, const char *key, double begin_s,
                double end_s)
{
    const size_t n = key ? strlen(key) : 0; /* the end of a long key says more than its beginning */
    int i = 0;
    while (i + 1 < N_STAGES && strcmp(stages[i].stage, stage) != 0)
        i++;
    tool_trace_write(t, stage, stages[i].process, lane, begin_s - t->opened_s, end_s - t->opened_s,
                     tool_json("key:o", !key            ? json_null()
                                        : n > SHOWN_KEY ? tool_json_text(key + n - SHOWN_KEY)
                                                        : tool_json_text(key)));
}

qv_status
tool_trace_finish(struct tool_trace *t, qv_error *err)
{
    put_text(t, "{\"name\":\"end\",\"ph\":\"i\",\"pid\":1,\"tid\":0,\"ts\":0,\"s\":\"g\"}]}\n");
    if (t->status)
        return qv_fail(err, t->status, "%s", t->error.text);
    return qv_atomic_file_commit(&t->file, err);
}

void
tool_trace_close(struct tool_trace **trace)
{
    struct tool_trace *t = *trace;
    if (!t)
        return;
    qv_atomic_file_abort(&t->file);
    pthread_mutex_destroy(&t->lock);
    free(t);
    *trace = NULL;
}
