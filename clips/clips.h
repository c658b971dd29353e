/* SPDX-License-Identifier: MIT */
/* What the files of this room share: which frames of a clip are read, and who decodes it. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "clock.h"
#include "ipc/messages.h"
#include "option_list.h"
#include "pixels/pixels.h"
#include "task.h"

/* Computes the frame indices that transformers' Qwen3-VL video processor samples: evenly spaced,
 * rounded half to even. Returns how many there are; `indices` may be NULL. `wanted` is the
 * requested number (0: derived from fps); `least` and `most` are its bounds. */
int64_t qv_sample_frames(int64_t total_frames, double source_fps, double fps, int64_t wanted,
                         int64_t least, int64_t most, int64_t *indices);

/* ---- choose.c: which frames, at which size --------------------------------------------------- */

/* One package's rules for a family of models. `p` is the task's image or video. */
typedef struct qvm_rules {
    /* Finds the frames between start_s and end_s: *n from number *first on; none if *n is below
     * 1. */
    void (*cut)(const qv_outcome *o, const struct qvm_task *t, int64_t *first, int64_t *n);
    /* Finds how many frames of a clip are sampled, from the file's facts and cut_frames. */
    qv_status (*count)(const qv_outcome *o, const qv_preprocess *p, const struct qvm_task *t,
                       int64_t *n, qv_error *err);
    /* Writes the indices of the n frames to sample of cut_frames from first_frame on, ascending. */
    void (*fill)(const qv_outcome *o, const qv_preprocess *p, int64_t n, int64_t *indices);
    /* Finds the size of the n_frames frames of a clip, or of an image. */
    qv_status (*size)(const qv_outcome *o, const qv_preprocess *p, const struct qvm_task *t,
                      int64_t *height, int64_t *width, qv_error *err);
} qvm_rules;

/* Adds the frames to read and their size to the file's facts in `outcome`. *indices must be NULL;
 * it becomes [outcome->n_frames], which the caller must free() even after an error. */
qv_status qvm_choose(const struct qvm_task *task, qv_outcome *outcome, int64_t **indices,
                     qv_error *err);

/* ---- sampling.c: transformers' rules --------------------------------------------------------- */

extern const qvm_rules qvm_qwen3_vl, qvm_qwen2_vl, qvm_glm4v;
extern const qvm_rules qvm_qwen_vl_utils; /* the rules of qwen_vl_utils.c */
/* Replaces the model's numbers with the package's (qwen_vl_utils.c). */
void qvm_take_utils_numbers(qv_preprocess *p, bool is_image);

int64_t qvm_round_half_even(double x);

/* ---- kept.c: indexes of files, for later stretches of them ----------------------------------- */

/* Identifies the clip and the file that an index describes, unless the file is written to. */
typedef struct qvm_identity {
    uint64_t device, inode;
    int64_t bytes, mtime_ns;
    int64_t offset, length; /* bytes of the file where the clip lies */
    int32_t like;           /* the qv_like whose rules apply to the clip */
} qvm_identity;

enum { QVM_MOST_KEPT = 16 };

/* The indexes that are kept. Initialise it with zeros; callers guard it with their own lock. */
struct qvm_kept {
    struct qvm_kept_index {
        qvm_identity file;
        void *data; /* the index, from malloc() */
        int64_t bytes;
    } at[QVM_MOST_KEPT]; /* [n], the most recently used first */
    int n;
    int64_t bytes; /* bytes of all indexes, QVM_MOST_INDEX at most */
};

/* Returns a copy of the file's index, for the caller to free(); NULL if none is kept or no
 * memory. */
void *qvm_kept_copy(struct qvm_kept *kept, const qvm_identity *file, int64_t *bytes);
/* Takes over an index of QVM_MOST_INDEX bytes at most, and drops the least recently used. */
void qvm_kept_put(struct qvm_kept *kept, const qvm_identity *file, void *data, int64_t bytes);
void qvm_kept_free(struct qvm_kept *kept);

/* ---- child.c: starting and ending processes -------------------------------------------------- */

typedef struct qvm_child {
    pid_t pid;  /* 0: no process runs */
    int handle; /* the process's pidfd, valid even if its number is reused; -1: unsupported */
    int socket; /* its standard input is the other end */
} qvm_child;

/* Starts a program in an environment, with /dev/null as standard output and error, in a new
 * session. Returns 0 or an errno. */
int qvm_child_start(const char *path, char *const *argv, char *const *environment,
                    qvm_child *child);
/* Sends the process a signal, but never another process that has got its number since. */
void qvm_child_signal(const qvm_child *child, int number);
/* Returns whether the process has ended or its state is unknown; `child` is then reset. */
bool qvm_child_has_ended(qvm_child *child);
/* Waits until the process has ended. Returns its exit code, or minus the signal that killed it; 0
 * if that cannot be determined. */
int qvm_child_await(qvm_child *child);
/* Writes and returns how a signal ended a process: "killed by signal 9 (Killed), ..". */
const char *qvm_signal_text(int number, char text[128]);
/* Closes this process's descriptors of it; the child keeps running. */
void qvm_child_leave(qvm_child *child);

/* ---- decoder_program.c: the program qwenvit-decoder ------------------------------------------ */

struct qv_decoder {
    qvm_child child;
    pid_t owner; /* the process that started the program, whose forks must not use the decoder */
    double patience_s; /* how long the program may take to answer, or to end */
    /* held from an order to its answer; guards everything that a start of the program changes */
    pthread_mutex_t lock;
    int64_t starts; /* how often the program was started */
    bool used;      /* the program has received a session to serve */
    bool answered;  /* .. and has answered */
    char lost[192]; /* why the program must be restarted; "" if it need not be */
    pthread_mutex_t kept_lock;
    struct qvm_kept kept; /* guarded by kept_lock */
    char *program;        /* the program's path */
    /* the environment that it was first started in, which it may need to find its libraries */
    char **environment;
    struct qvm_gpus *gpus; /* gpu.c */
};

/* A process that serves a session. Its number is valid only for the program that made it: once that
 * program has been restarted, another process may have the number. */
typedef struct qvm_server {
    pid_t pid;     /* 0: there is none */
    int64_t start; /* qv_decoder.starts when the process was made */
} qvm_server;

/* Makes a process serve the session, limited to `memory` bytes. Restarts the program if it was
 * lost. Returns QV_EBACKEND if no process can serve. */
qv_status qvm_session_start(qv_decoder *decoder, const qvm_session *session, int64_t memory,
                            qvm_server *server, qv_error *err);
/* Ends a session's process at once. Returns waitpid's status; -1 if the program that knows the
 * status was lost; *why is then the reason. */
int qvm_session_end(qv_decoder *decoder, const qvm_server *server, qv_error *why);
/* Ends a session's process without waiting for its end. */
void qvm_session_drop(qv_decoder *decoder, const qvm_server *server);
