/* SPDX-License-Identifier: MIT */
/* What the files of this room share: which frames are asked of a clip, and who decodes it. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "clock.h"
#include "ipc/messages.h"
#include "option_list.h"
#include "pixels/pixels.h"

/* ---- choose.c: which frames, at which size --------------------------------------------------- */

/* The rules of one package for a family of models. `p` has the options' numbers already. */
typedef struct qvm_rules {
    /* Finds the frames between start_s and end_s: *n from number *first on; none if *n is below
     * 1. */
    void (*cut)(const qv_outcome *info, const qv_clip_options *o, int64_t *first, int64_t *n);
    /* Finds how many frames of a clip are sampled, by what the file says and cut_frames. */
    qv_status (*count)(const qv_outcome *info, const qv_preprocess *p, const qv_clip_options *o,
                       int64_t *n, qv_error *err);
    /* Writes which of the cut_frames frames from first_frame on these n are, ascending. */
    void (*fill)(const qv_outcome *info, const qv_preprocess *p, int64_t n, int64_t *indices);
    /* Finds the size of the n_frames frames of a clip, or of an image. */
    qv_status (*size)(const qv_outcome *info, const qv_preprocess *p, const qv_clip_options *o,
                      int64_t *height, int64_t *width, qv_error *err);
} qvm_rules;

/* Adds to what the file says in `info` which frames are read, at which size. *indices is NULL
 * before and [info->n_frames] after, for free() even after an error. */
qv_status qvm_choose(const char *path, const qv_preprocess *preset, const qv_clip_options *o,
                     qv_outcome *info, int64_t **indices, qv_error *err);

/* ---- sampling.c: transformers' rules --------------------------------------------------------- */

extern const qvm_rules qvm_qwen3_vl, qvm_qwen2_vl, qvm_glm4v;
extern const qvm_rules qvm_qwen_vl_utils; /* the rules of qwen_vl_utils.c */

int64_t qvm_round_half_even(double x);

/* ---- kept.c: indexes of files, for cuts that are still to come ------------------------------- */

/* Which clip in which file an index is of, as long as nobody writes to the file. */
typedef struct qvm_identity {
    uint64_t device, inode;
    int64_t bytes, mtime_ns;
    int64_t offset, length; /* bytes of the file where the clip lies */
    int32_t like;           /* the qv_like by whose rules the clip is read */
} qvm_identity;

enum { QVM_MOST_KEPT = 16 };

/* The indexes that are kept. It begins as zeros, and callers guard it with a lock of theirs. */
struct qvm_kept {
    struct qvm_kept_index {
        qvm_identity file;
        void *data; /* the index, from malloc() */
        int64_t bytes;
    } at[QVM_MOST_KEPT]; /* [n], the one that was used last first */
    int n;
    int64_t bytes; /* bytes of all indexes, QVM_MOST_INDEX at most */
};

/* Returns a copy of the file's index, for free(); NULL: none is kept, or there is no memory. */
void *qvm_kept_copy(struct qvm_kept *kept, const qvm_identity *file, int64_t *bytes);
/* Takes over an index of QVM_MOST_INDEX bytes at most, for which those used least recently go. */
void qvm_kept_put(struct qvm_kept *kept, const qvm_identity *file, void *data, int64_t bytes);
void qvm_kept_free(struct qvm_kept *kept);

/* ---- child.c: processes that are started and ended ------------------------------------------- */

typedef struct qvm_child {
    pid_t pid;  /* 0: no process runs */
    int handle; /* the process, whatever became of its number (pidfd); -1: the system has none */
    int socket; /* its standard input is the other end */
} qvm_child;

/* Starts a program in an environment, with /dev/null as standard output and error and a session of
 * its own. Returns 0 or an errno. */
int qvm_child_start(const char *path, char *const *argv, char *const *environment,
                    qvm_child *child);
/* Sends the process a signal, but never another one that has its number by now. */
void qvm_child_signal(const qvm_child *child, int number);
/* Returns whether the process has ended, or nobody can know; `child` stands for none then. */
bool qvm_child_has_ended(qvm_child *child);
/* Waits until the process has ended. Returns its exit code, or minus the signal that killed it; 0
 * if nobody can know. */
int qvm_child_await(qvm_child *child);
/* Closes what this process has of it, which goes on. */
void qvm_child_leave(qvm_child *child);

/* ---- decoder_program.c: the program qwenvit-decoder ------------------------------------------ */

struct qv_decoder {
    qvm_child child;
    pid_t owner; /* the process that started the program; its forks must not use the decoder */
    double patience_s; /* how long the program may take to answer, or to end */
    /* held from an order to its answer; guards all that starting the program changes */
    pthread_mutex_t lock;
    int64_t starts; /* how often the program was started */
    bool used;      /* the program was asked to serve a session */
    bool answered;  /* .. and has answered */
    char lost[96];  /* why the program is not asked any more, but started again; "": it is */
    pthread_mutex_t kept_lock;
    struct qvm_kept kept; /* guarded by kept_lock */
    char *program;        /* the program's path */
    /* the environment that it was first started in, by which it may find its libraries */
    char **environment;
    struct qvm_gpus *gpus; /* gpu.c */
};

/* A process that serves a session. Only the program that made it knows its number, which another
 * may have once the program was started again. */
typedef struct qvm_server {
    pid_t pid;     /* 0: there is none */
    int64_t start; /* qv_decoder.starts when the process was made */
} qvm_server;

/* Has a process serve the session, with `memory` bytes as its limit, by a program that is started
 * again if it was lost. Returns QV_EBACKEND if none does. */
qv_status qvm_session_start(qv_decoder *decoder, const qvm_session *session, int64_t memory,
                            qvm_server *server, qv_error *err);
/* Ends a session's process at once. Returns waitpid's status; -1: the program that knows it was
 * lost. */
int qvm_session_end(qv_decoder *decoder, const qvm_server *server);
/* Ends a session's process without waiting for its end. */
void qvm_session_drop(qv_decoder *decoder, const qvm_server *server);
