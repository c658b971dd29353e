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
 * rounded half to even. Returns how many there are; `indices` may be NULL. `wanted` is the number
 * asked for (0: by fps), `least` and `most` bound it. */
int64_t qv_sample_frames(int64_t total_frames, double source_fps, double fps, int64_t wanted,
                         int64_t least, int64_t most, int64_t *indices);

/* ---- choose.c: which frames, at which size --------------------------------------------------- */

/* The rules of one package for a family of models. `p` is the task's image or video. */
typedef struct qvm_rules {
    /* Finds the frames between start_s and end_s: *n from number *first on; none if *n is below
     * 1. */
    void (*cut)(const qv_outcome *info, const struct qvm_task *t, int64_t *first, int64_t *n);
    /* Finds how many frames of a clip are sampled, by what the file says and cut_frames. */
    qv_status (*count)(const qv_outcome *info, const qv_preprocess *p, const struct qvm_task *t,
                       int64_t *n, qv_error *err);
    /* Writes which n of the cut_frames frames from first_frame on are sampled, ascending. */
    void (*fill)(const qv_outcome *info, const qv_preprocess *p, int64_t n, int64_t *indices);
    /* Finds the size of the n_frames frames of a clip, or of an image. */
    qv_status (*size)(const qv_outcome *info, const qv_preprocess *p, const struct qvm_task *t,
                      int64_t *height, int64_t *width, qv_error *err);
} qvm_rules;

/* Adds which frames are read, and at which size, to the file's facts in `info`. *indices is NULL
 * before and [info->n_frames] after, for free() even after an error. */
qv_status qvm_choose(const struct qvm_task *task, qv_outcome *info, int64_t **indices,
                     qv_error *err);

/* ---- sampling.c: transformers' rules --------------------------------------------------------- */

extern const qvm_rules qvm_qwen3_vl, qvm_qwen2_vl, qvm_glm4v;
extern const qvm_rules qvm_qwen_vl_utils; /* the rules of qwen_vl_utils.c */
/* Replaces the model's numbers by the package's (qwen_vl_utils.c). */
void qvm_take_utils_numbers(qv_preprocess *p, bool is_image);

int64_t qvm_round_half_even(double x);

/* ---- kept.c: indexes of files, for later cuts of them ---------------------------------------- */

/* Which clip in which file an index describes, as long as nobody writes to the file. */
typedef struct qvm_identity {
    uint64_t device, inode;
    int64_t bytes, mtime_ns;
    int64_t offset, length; /* bytes of the file where the clip lies */
    int32_t like;           /* the qv_like by whose rules the clip is read */
} qvm_identity;

enum { QVM_MOST_KEPT = 16 };

/* The indexes that are kept. It begins as zeros, and callers guard it with their own lock. */
struct qvm_kept {
    struct qvm_kept_index {
        qvm_identity file;
        void *data; /* the index, from malloc() */
        int64_t bytes;
    } at[QVM_MOST_KEPT]; /* [n], the most recently used first */
    int n;
    int64_t bytes; /* bytes of all indexes, QVM_MOST_INDEX at most */
};

/* Returns a copy of the file's index, for free(); NULL: none is kept, or there is no memory. */
void *qvm_kept_copy(struct qvm_kept *kept, const qvm_identity *file, int64_t *bytes);
/* Takes over an index of QVM_MOST_INDEX bytes at most, and drops the least recently used. */
void qvm_kept_put(struct qvm_kept *kept, const qvm_identity *file, void *data, int64_t bytes);
void qvm_kept_free(struct qvm_kept *kept);

/* ---- child.c: processes that are started and ended ------------------------------------------- */

typedef struct qvm_child {
    pid_t pid;  /* 0: no process runs */
    int handle; /* the process's pidfd, whoever has its number now; -1: the system has none */
    int socket; /* its standard input is the other end */
} qvm_child;

/* Starts a program in an environment, with /dev/null as standard output and error, in a new
 * session. Returns 0 or an errno. */
int qvm_child_start(const char *path, char *const *argv, char *const *environment,
                    qvm_child *child);
/* Sends the process a signal, but never another process that has its number by now. */
void qvm_child_signal(const qvm_child *child, int number);
/* Returns whether the process has ended, or nobody can know; `child` then stands for none. */
bool qvm_child_has_ended(qvm_child *child);
/* Waits until the process has ended. Returns its exit code, or minus the signal that killed it; 0
 * if nobody can know. */
int qvm_child_await(qvm_child *child);
/* Writes and returns how a signal ended a process: "killed by signal 9 (Killed), ..". */
const char *qvm_signal_text(int number, char text[128]);
/* Closes this process's descriptors of it; the child goes on. */
void qvm_child_leave(qvm_child *child);

/* ---- decoder_program.c: the program qwenvit-decoder ------------------------------------------ */

struct qv_decoder {
    qvm_child child;
    pid_t owner; /* the process that started the program, whose forks must not use the decoder */
    double patience_s; /* how long the program may take to answer, or to end */
    /* held from an order to its answer; guards everything that starting the program changes */
    pthread_mutex_t lock;
    int64_t starts; /* how often the program was started */
    bool used;      /* the program was asked to serve a session */
    bool answered;  /* .. and has answered */
    char lost[192]; /* why the program must be started again; "": it need not */
    pthread_mutex_t kept_lock;
    struct qvm_kept kept; /* guarded by kept_lock */
    char *program;        /* the program's path */
    /* the environment that it was first started in, which may lead it to its libraries */
    char **environment;
    struct qvm_gpus *gpus; /* gpu.c */
};

/* A process that serves a session. Its number is valid only for the program that made it: once that
 * was restarted, another process may have the number. */
typedef struct qvm_server {
    pid_t pid;     /* 0: there is none */
    int64_t start; /* qv_decoder.starts when the process was made */
} qvm_server;

/* Has a process serve the session, with `memory` bytes as its limit. A program that was lost is
 * started again. Returns QV_EBACKEND if no process serves. */
qv_status qvm_session_start(qv_decoder *decoder, const qvm_session *session, int64_t memory,
                            qvm_server *server, qv_error *err);
/* Ends a session's process at once. Returns waitpid's status; -1: the program that knows it was
 * lost, as *why says. */
int qvm_session_end(qv_decoder *decoder, const qvm_server *server, qv_error *why);
/* Ends a session's process without waiting for its end. */
void qvm_session_drop(qv_decoder *decoder, const qvm_server *server);
