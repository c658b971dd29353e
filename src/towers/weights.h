/* SPDX-License-Identifier: MIT */
/* A tower's tensors on a device. Loading finds them by name, checks and converts them, and
 * lays them out slice by slice. */
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
    char remark[QV_WEIGHTS_REMARK]; /* tensors that should have been used; "": nothing to say */
};

/* The bytes of a slice, if not 0; a slice has at least as many rows as the device lays out at once.
 * Tests set it before they load anything, so that small tensors are read in several slices too. */
extern size_t qv_weights_slice_bytes;

/* Says how weights are loaded. */
struct qv_weights_loading {
    qv_dtype dtype; /* the dtype on the device */
    int threads;    /* the most threads that read; only the caller's thread calls the device */
    bool describe;  /* tensors are found and checked, and not loaded */
};

/*
 * Finds every tensor of the tower in the checkpoint folder or GGUF file `dir` and checks its shape
 * and dtype. Unless `describe`, it also reads each in slices, converts it to dtype and lays it out
 * for the device. A value that is not finite, in the file or after conversion, is QV_EFORMAT.
 */
qv_status qv_weights_load(struct qv_device *dev, const struct qv_config *config,
                          const struct qv_tower *tower, const char *dir,
                          const struct qv_weights_loading *how, struct qv_weights *out,
                          qv_error *err);
void qv_weights_free(struct qv_device *dev, struct qv_weights *weights);

/* ---- prefetch.c ------------------------------------------------------------------------------ */

/*
 * Prefetching: several threads prepare items ahead, and one thread takes them in their order. The
 * user keeps a ring of `slots` places, as items i and i + slots are never in use at once. With one
 * thread, which is the caller's, each item is prepared when it is asked for.
 */
struct qv_prefetch_work {
    size_t n; /* how many items there are */
    int slots;
    int threads; /* threads, the caller's among them; fewer are started if more are of no use */
    void *user;
    /* Prepares an item. Any thread calls it, several at once for different items. After a
     * failure no further item is begun. */
    qv_status (*prepare)(void *user, size_t i, qv_error *err);
    /* Does what must be done in the items' order. Any thread calls it, one at a time, for each
     * item before the first failure. */
    void (*follow)(void *user, size_t i);
};

struct qv_prefetch;

qv_status qv_prefetch_open(const struct qv_prefetch_work *work, struct qv_prefetch **out,
                           qv_error *err);
void qv_prefetch_close(struct qv_prefetch *p); /* NULL is accepted */

/* Gives the next item, which belongs to the caller until the next call; *i is n when all were
 * taken and followed. The first failure in the items' order ends it. */
qv_status qv_prefetch_next(struct qv_prefetch *p, size_t *i, qv_error *err);

/* ---- leftover.c: the tensors of a checkpoint that its tower does not read -------------------- */

enum { QV_LEFTOVER_NAMES = 3 };

struct qv_leftover {
    int64_t of_tower;  /* tensors not read although they have the tower's prefix */
    int64_t of_others; /* tensors of the rest, such as the language model */
    /* some of their names; those of the tower come first and lack its prefix */
    char names[QV_LEFTOVER_NAMES][96];
};

/* Looks through the names of a checkpoint that has been loaded before. Returns QV_EIO,
 * QV_EFORMAT or QV_ENOMEM. */
qv_status qv_leftover_find(const char *dir, const struct qv_config *config,
                           const struct qv_tower *tower, struct qv_leftover *out, qv_error *err);
