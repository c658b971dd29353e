/* SPDX-License-Identifier: MIT */
/* Messages and shared memory between a clip (clips/) and the decoder program (decoder/). */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "error.h"
#include "qwenvit_clips.h"

/* Whether this build has a sanitizer that reserves terabytes and reports on standard error. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define QVM_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define QVM_SANITIZED 1
#endif
#endif
#ifndef QVM_SANITIZED
#define QVM_SANITIZED 0
#endif

/* Whether the process that starts a program closes the descriptors that the program would inherit.
 * Otherwise the program closes them at startup, including the descriptors of a preloaded library
 * (compute-sanitizer's). */
#if defined(__GLIBC__)
#if __GLIBC_PREREQ(2, 34)
#define QVM_SPAWN_CLOSES 1
#endif
#endif

#define QVM_MAX_FRAMES 4194304 /* the most frames in one clip: 19 hours at 60 per second */
#define QVM_DEFAULT_FPS 24.0   /* for a source without a frame rate */
#define QVM_MAX_RATE                                                                               \
    2147483648.0 /* limit for a header's frames per second, and for seconds per
                                   * frame */
#define QVM_MOST_INDEX ((int64_t)64 << 20) /* bytes of an index of 4,194,297 packets */

/* ---- a clip and its decoder process ---------------------------------------------------------- */

/* How a clip's process reads the file. */
typedef struct qvm_asked {
    int64_t offset, length; /* where the clip lies in the file; length 0: to the end */
    qv_like like;           /* whose pixels its frames have */
    int32_t threads;        /* for decoding; 0: as many as suit the codec */
    bool first_frame;       /* read only the first frame, as an image */
    bool usual_codecs;      /* fail for a codec that is not among QV_USUAL_CODECS or images' */
    bool says_no_gpu;       /* report if no GPU could decode in this build */
} qvm_asked;

/* A clip and its decoder process talk over a stream socket and share a memory file. The process
 * first reports that it is locked down (READY), or that it cannot be (END), and reads no byte of
 * the file until requested. The clip asks what the file is (OPEN), receives the answer (FACTS),
 * decides which frames it wants at which size, writes their numbers to the shared memory and
 * requests them (START). The process reports how many packets it will decode for them (PLAN), and
 * fills the slots after the numbers one by one (FRAME); the clip frees each (FREE). END comes last,
 * with the reason if it is early. From OPEN on everything that the process sends is checked: the
 * file's author may have taken it over. */
typedef enum qvm_request_kind { QVM_OPEN, QVM_START, QVM_FREE } qvm_request_kind;

typedef struct qvm_request {
    int32_t kind;
    int32_t wants_index;            /* OPEN */
    qvm_asked asked;                /* OPEN */
    int64_t index_bytes;            /* OPEN: bytes of an index that follows the request */
    int32_t height, width, n_slots; /* START: the size of frames; the number of slots */
    /* START: frames_at: offset of the first slot; `memory`: bytes of the numbers and the slots */
    int64_t n_frames, frames_at, slot_bytes, memory;
    /* START: size of each of the n_planes slots after `memory` that a GPU fills; 0: no GPU is
     * used */
    int64_t plane_bytes, n_planes;
    double gpu_patience_s; /* START: the GPU process's timeout */
} qvm_request;

/* READY is sent before any of the clip can have been read, and at no other time. */
typedef enum qvm_event_kind {
    QVM_READY,
    QVM_FACTS,
    QVM_FRAME,
    QVM_ALIVE,
    QVM_END,
    QVM_PLAN
} qvm_event_kind;

typedef struct qvm_event {
    int32_t kind;
    int32_t status;      /* END: a qv_status */
    int32_t gpu_slot;    /* FRAME: the GPU's slot that has the finished frame; -1: none */
    int32_t gpu_lost;    /* the GPU process exited, timed out, or sent something impossible */
    int64_t plane_bytes; /* FACTS: size of a frame's planes from a GPU; 0: no GPU decodes */
    int64_t index_bytes; /* FACTS: bytes of the index that follows the event; 0: none */
    qv_outcome outcome;  /* outcome.inc lists the members that are set in FACTS or in every event */
    char text[sizeof((qv_error *)0)->text]; /* END: what failed */
} qvm_event;

typedef struct qvm_session {
    int socket; /* the decoder process's socket to the clip */
    int clip;   /* the file, owned by the caller */
    int shared; /* the memory file, owned by the caller */
    int codec;  /* a socket to the GPU process; -1: none */
} qvm_session;

enum { QVM_SESSION_FDS = 4 }; /* descriptors of a session; `codec`, the last one, may be missing */

#ifdef MSG_NOSIGNAL
#define QVM_NOSIGNAL MSG_NOSIGNAL
#else
#define QVM_NOSIGNAL 0 /* macOS: SO_NOSIGPIPE on the socket */
#endif

/* ---- the GPU process ------------------------------------------------------------------------- */

enum {
    QVM_MOST_HELD = 16, /* frames of a clip that wait for a frame that is shown before them */
    QVM_GPU_DELAY = 3,  /* frames being decoded while the next packets arrive */
    /* slots for sampled frames: one more than can wait or be decoded, so that decoding continues */
    QVM_SLOTS = QVM_MOST_HELD + QVM_GPU_DELAY + 1,
    QVM_MOST_SLOTS = 1024,            /* slots of a clip with one slot per sampled frame */
    QVM_MOST_PLANES = 8192 * 8192 * 3 /* bytes of a slot: the planes of a frame with 10 bits */
};
#define QVM_GPU_PICTURES ((int64_t)4 << 30) /* the most bytes of pictures in all streams of a GPU */
#define QVM_GPU_CONTEXT ((int64_t)640 << 20) /* the context's own bytes: about 520 MiB on an H200 */

/* A GPU process's only message to the process that started it. */
typedef struct qvm_gpu_hello {
    int32_t ready;
    char text[156]; /* why the process is not ready */
} qvm_gpu_hello;

enum { QVM_GPU_FDS = 2 }; /* the clip's socket and its shared memory */

/* ---- orders to a program --------------------------------------------------------------------- */

/* An order, which the program receives on its standard input. SERVE makes a process serve a
 * session, whose descriptors are attached; the answer is the process's number, or -1. KILL ends a
 * process; the answer is its status as from waitpid, or -1. DROP ends a process without an answer.
 * DECODE makes a GPU process decode for a session, whose socket and memory are attached, without an
 * answer. */
typedef enum qvm_order_kind { QVM_SERVE, QVM_KILL, QVM_DROP, QVM_DECODE } qvm_order_kind;

typedef struct qvm_order {
    int32_t kind;
    int32_t pid;    /* KILL, DROP: the process */
    int64_t memory; /* SERVE: the limit in bytes; DECODE: offset of the slots in shared memory */
    int64_t plane_bytes, n_planes; /* DECODE: bytes of a slot, and their number */
} qvm_order;

/* Sends an order with n descriptors, without waiting. Returns false with errno if nothing was sent
 * (EAGAIN: the receiver must take orders first). */
bool qvm_order_send(int socket, const qvm_order *order, const int *fds, int n);
void qvm_close_all(const int *fds, int n);
/* Waits for an order and its *n descriptors, which the caller then owns; false if no order can come
 * any more. */
bool qvm_order_take(int socket, qvm_order *order, int fds[QVM_SESSION_FDS], int *n);
/* Returns the process at the other end of qvm_stream's pair, which started this process. */
pid_t qvm_caller(int socket);
/* Waits until qvm_order_take will not block. Returns false once `parent` has exited. */
bool qvm_order_wait(int socket, pid_t parent);
/* Room for the descriptors that a message carries. */
union qvm_control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(QVM_SESSION_FDS * sizeof(int))];
};

#define QVM_FFMPEG_FIELD "  FFmpeg   " /* starts the line with FFmpeg's version in --version */

/* Makes the program create a clip instead (make_clip.c), given a path and a shape in numbers. It
 * prints QVM_MADE, or why that failed. */
#define QVM_MAKE_CLIP "--make-clip"
#define QVM_CLIP_SHAPE "%d,%d,%d,%d"
struct qvm_clip_shape {
    int width, height, fps, frames; /* the sides are even */
};
#define QVM_MADE "made"

/* ---- talk.c: used by both ends --------------------------------------------------------------- */

/* Waits until the socket is ready for `events` of poll(). Returns 0, ETIMEDOUT if it is not ready
 * in time, or another errno. until_s is on qv_seconds' clock; INFINITY: no limit. */
int qvm_wait_for(int socket, short events, double until_s);
/* Receives all n bytes. Returns like qvm_wait_for, and ECONNRESET if the other side has closed the
 * socket. */
int qvm_receive_until(int socket, void *message, size_t n, double until_s);
/* How long a wait may last: until_s as above, and while go_on returns true. It is called at the
 * beginning and then every 50 ms; NULL: not called. */
struct qvm_patience {
    double until_s;
    bool (*go_on)(void *user);
    void *user;
};
/* Sends (`out`) or receives all n bytes. Returns like qvm_receive_until; EPIPE if the other side of
 * a socket to send to has closed it; ECANCELED if go_on ends the wait. */
int qvm_transfer(int socket, bool out, void *bytes, size_t n, const struct qvm_patience *patience);
/* Send and receive all n bytes without a time limit. Return false on failure. */
bool qvm_receive(int socket, void *message, size_t n);
bool qvm_send(int socket, const void *message, size_t n);

/* Makes an empty, unnamed file in memory. Returns it, or -1 with errno. */
int qvm_shared_memory(void);
/* Gives a file of qvm_shared_memory its final size. Returns false with errno. */
bool qvm_shared_memory_size(int fd, int64_t bytes);

/* Makes a pair of connected close-on-exec stream sockets. Returns false with errno. */
bool qvm_stream(int *here, int *there);
