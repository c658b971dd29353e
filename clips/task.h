/* SPDX-License-Identifier: MIT */
/* A clip's task: everything the options determine. It is made once, when a clip is opened; no code
 * below reads options. */
#pragma once

#include "ipc/messages.h"

struct qvm_task {
    const char *path;  /* of the file, or a name for messages */
    const void *bytes; /* [n_bytes] the file's; NULL: they are at the path */
    size_t n_bytes;
    qvm_asked asked;       /* of the process that decodes */
    bool cuts;             /* a stretch of the clip is read, not all of it */
    double start_s, end_s; /* 0 to infinity: all of the clip */
    double max_seconds;    /* a longer stretch fails, and so do larger frames */
    int64_t max_source_pixels;
    /* the model's or the package's numbers, unless the caller replaced them */
    qv_preprocess image, video;
    int64_t num_frames;                         /* exactly this many frames; 0: by the rate */
    int64_t asked_min_frames, asked_max_frames; /* the caller's; 0: none */
    int64_t total_pixels; /* of all frame pairs together; 0: the package's own number */
    bool cap_pixels;
    qv_decoder *decoder;       /* makes the process; NULL: one is started for this clip alone */
    int64_t memory;            /* the most memory of the process, in bytes */
    double patience_s;         /* how long it may go without a sign of life */
    int gpu;                   /* the CUDA device that decodes; -1: the CPU does */
    bool (*go_on)(void *user); /* false ends a wait; may be NULL */
    void *user;
};

/* Makes *out for the file at this path. Missing arguments get the defaults of qv_clip_open. Returns
 * the errors of qv_clip_open. What the arguments point to must outlive the task. */
qv_status qvm_task_make(const char *path, const qv_preprocess *image, const qv_preprocess *video,
                        const qv_clip_options *options, struct qvm_task *out, qv_error *err);
/* Sets who decodes: a GPU, the CPU, or (QV_DECODE_AUTO) the CPU, which also reports whether a GPU
 * could have decoded. */
void qvm_task_decode(struct qvm_task *task, qv_decode by, int gpu);

/* Does what qv_clip_open does, for a copy of the task and its path (clip.c). */
qv_status qvm_clip_open(const struct qvm_task *task, qv_clip **out, qv_error *err);
