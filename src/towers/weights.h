/* SPDX-License-Identifier: MIT */
/* A tower's tensors on a device. Loading finds them by name, checks and converts them, and lays
 * them out slice by slice. */
#pragma once

#include "engine/backend.h"
#include "tower.h"
#include "qwenvit.h"

enum { QV_WEIGHTS_REMARK = 512 };

struct qv_weights {
    /* one allocation for all tensors; NULL if the model is only described */
    struct qv_memory *memory;
    /* [n], by tensor id; the rotary cosines and sines are the last two */
    struct qv_buffer *buffers;
    size_t n, bytes;
    int64_t n_parameters;
    char digest[40];
    char remark[QV_WEIGHTS_REMARK]; /* a warning about tensors that should have been used, or "" */
};

/* The size of a slice in bytes, if not 0; a slice has at least as many rows as the device lays out
 * at once. Tests set it before loading, so that small tensors are also read in several slices. */
extern size_t qv_weights_slice_bytes;

/* How to load weights. */
struct qv_weights_loading {
    qv_dtype dtype; /* the dtype on the device */
    int threads;    /* maximum number of reading threads; only the caller's thread calls the
                     * device */
    bool describe;  /* find and check tensors without loading them */
};

/*
 * Finds every tensor of the tower in the checkpoint folder or GGUF file `dir` and checks its shape
 * and dtype. Unless `describe`, it also reads each in slices, converts it to dtype and lays it out
 * for the device. A non-finite value, in the file or after conversion, is QV_EFORMAT.
 */
qv_status qv_weights_load(struct qv_device *dev, const struct qv_config *config,
                          const struct qv_tower *tower, const char *dir,
                          const struct qv_weights_loading *how, struct qv_weights *out,
                          qv_error *err);
void qv_weights_free(struct qv_device *dev, struct qv_weights *weights);

/* ---- prefetch.c ------------------------------------------------------------------------------ */

/*
 * Prefetching: several threads prepare items ahead, and one thread takes them in order. The user
 * keeps a ring of `slots` places, because items i and i + slots are never in use at once. With one
 * thread, the caller's, each item is prepared on demand.
 */
struct qv_prefetch_work {
    size_t n; /* number of items */
    int slots;
    int threads; /* threads, including the caller's; fewer are started if more would be useless */
    void *user;
    /* Prepares an item. Any thread may call it, several at once for different items. After a
     * failure no further item is begun. */
    qv_status (*prepare)(void *user, size_t i, qv_error *err);
    /* Does the work that must follow the items' order. Any thread may call it, one at a time, for
     * each item before the first failure. */
    void (*follow)(void *user, size_t i);
};

struct qv_prefetch;

qv_status qv_prefetch_open(const struct qv_prefetch_work *work, struct qv_prefetch **out,
                           qv_error *err);
void qv_prefetch_close(struct qv_prefetch *p); /* NULL is accepted */

/* Returns the next item, which belongs to the caller until the next call; *i is n when all items
 * have been taken and followed. The first failure in the items' order ends it. */
qv_status qv_prefetch_next(struct qv_prefetch *p, size_t *i, qv_error *err);

/* ---- leftover.c: the tensors of a checkpoint that its tower does not read -------------------- */

enum { QV_LEFTOVER_NAMES = 3 };

struct qv_leftover {
    int64_t of_tower;  /* tensors not read although they have the tower's prefix */
    int64_t of_others; /* the other tensors, such as the language model's */
    /* some of their names; the tower's come first, without its prefix */
    char names[QV_LEFTOVER_NAMES][96];
};

/* Looks through the names of a checkpoint that has already been loaded. Returns QV_EIO, QV_EFORMAT
 * or QV_ENOMEM. */
qv_status qv_leftover_find(const char *dir, const struct qv_config *config,
                           const struct qv_tower *tower, struct qv_leftover *out, qv_error *err);
