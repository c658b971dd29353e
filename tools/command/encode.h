/* SPDX-License-Identifier: MIT */
/* Declarations shared by the parts of `qwenvit encode`. */
#pragma once

#include <pthread.h>

#include "job/formats.h"
#include "qwenvit_clips.h"
#include "tool.h"

/* A clip, and its output file, which is opened when the first tokens arrive. */
struct tool_output {
    const char *clip, *key; /* key NULL: the clip is an argument */
    char *path;
    const struct qv_format *format;
    const qv_clip_options *own; /* this clip's own options; NULL: none */
    /* used only by the sink */
    struct qv_output to;
    void *entry; /* the format's */
    struct tool_drawing *drawing;
    double write_s;
};

struct tool_devices {
    qv_context *contexts[TOOL_MOST_DEVICES];
    qv_context_info infos[TOOL_MOST_DEVICES];
    qv_model *models[TOOL_MOST_DEVICES];
    size_t n;
    double load_s; /* how long opening took */
};

struct tool_encoder {
    const struct tool_options *o;
    const qv_context_info *context; /* of the first device */
    qv_model_info model;
    bool many; /* several clips or a list: a failed clip does not stop the others */
    struct tool_output *outputs;
    size_t n;
    pthread_mutex_t lock; /* guards the sinks' messages and results, and the counts below */
    size_t n_done, n_failed, n_damaged; /* n_damaged: done, with damaged frames */
    struct tool_reasons failures, notes;
    int64_t n_frames, n_tokens; /* sampled frames and tokens of the done clips */
    int code;                   /* exit code of the last failure */
    struct tool_job_progress progress;
    struct tool_progress bar; /* progress of a single clip */
    double job_s, load_s;
    bool makes_folders; /* outputs are in a folder that may not exist yet */
};

/* Loads the model on each requested device, or with --device all on every device; there must be at
 * least one. If there are many clips, the GPUs' decoders are opened while the weights are loaded.
 * tool_devices_close must be called even on failure. */
qv_status tool_devices_open(const struct tool_options *o, int64_t n_clips, struct tool_devices *d,
                            qv_error *err);
void tool_devices_close(struct tool_devices *d);

/* Reports an error and returns TOOL_USAGE unless clips are given either as arguments or by
 * --list. */
int tool_check_sources(const struct tool_options *o, const char *name);

/* Returns the job's sink, which writes a clip's tokens to its file and drawing, and reports the
 * clip. */
qv_job_sink tool_sink(struct tool_encoder *e);

/* Adds sampled frames and tokens per second, over the time from the first clip until all are
 * written, and how long loading took before that. TOOL_RATES_TEXT shows them. */
void tool_json_add_rates(json_t **object, const char *of, int64_t frames, int64_t tokens,
                         double seconds, double load_s);
#define TOOL_RATES_TEXT                                                                            \
    "{sampled_frames_per_s|1f} sampled frames and {tokens_per_s|1f} tokens per second; loading "   \
    "the model took {load_s|time} before that"

qv_status tool_report_job(const struct tool_encoder *e, qv_job *job, qv_error *err);
