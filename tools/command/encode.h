/* SPDX-License-Identifier: MIT */
/* What the parts of `qwenvit encode` share. */
#ifndef QV_TOOLS_ENCODE_H
#define QV_TOOLS_ENCODE_H

#include <pthread.h>

#include "files/token_file.h"
#include "qwenvit_job.h"
#include "tool.h"

struct tool_entry;

/* A clip, and the file that it is written to, which is there once its first tokens are. */
struct tool_output {
    const char *clip, *key; /* key: NULL is the clip's name */
    char *path;
    const struct tool_entry *entry; /* the list's line; NULL: an argument */
    /* the sink's */
    struct qv_token_file *file;
    struct tool_drawing *drawing;
    float *tokens_f32; /* for the image, where the file has bf16 */
    double write_s;
};

struct tool_trace;

struct tool_encoder {
    const struct tool_options *o;
    struct tool_output *outputs;
    size_t n;
    qv_context_info context;
    qv_model_info model;
    pthread_mutex_t lock; /* messages and results of several sinks, and: */
    size_t n_done, n_failed;
    int code; /* of the last that failed */
    qv_job *job;
    struct tool_job_progress progress;
    struct tool_progress bar; /* of one clip by itself */
    struct tool_trace *trace; /* NULL: none */
    double job_s;
    bool defers; /* a signal ends it in good order */
};

struct tool_devices {
    qv_context *contexts[TOOL_MOST_DEVICES];
    qv_context_info infos[TOOL_MOST_DEVICES];
    qv_model *models[TOOL_MOST_DEVICES];
    size_t n;
};

/* A model on each of the devices asked for; of all there are, on the first that there is at least. To
 * be closed in any case. */
qv_status tool_devices_open(const struct tool_options *o, struct tool_devices *d, qv_error *err);
void tool_devices_close(struct tool_devices *d);

/* encode, on devices that are open or (none of them) are opened: an exit code, told. *job_s: how long
 * it took from the first clip until all are written. */
int tool_encode_on(const struct tool_options *o, struct tool_devices *devices, double *job_s);

qv_dtype tool_output_dtype(const struct tool_encoder *e); /* of tokens; the model is open */

/* Of a clip's tokens all but the image and the file. user: the encoder. */
qv_status tool_sink(void *user, const qv_job_result *result, qv_error *err);
void tool_output_close(struct tool_output *output);

/* What a clip came to: a line, or a record. */
qv_status tool_report(const struct tool_encoder *e, const struct tool_output *output,
                      const qv_job_result *result, qv_error *err);
/* Trace events, written as they come. The file appears at the end. */
qv_status tool_trace_open(const char *path, struct tool_trace **out, qv_error *err);
void tool_trace_span(struct tool_trace *t, const char *stage, int lane, const char *key,
                     double begin_s, double end_s); /* by any thread */
qv_status tool_trace_finish(struct tool_trace *t, qv_error *err);
void tool_trace_close(struct tool_trace **trace);

/* What all came to: a record. */
qv_status tool_report_job(const struct tool_encoder *e, qv_error *err);

#endif
