/* SPDX-License-Identifier: MIT */
/* A tower's tensors on a device. Loading finds them by name, checks and converts them, and
 * lays them out slice by slice. */
#ifndef QV_TOWERS_WEIGHTS_H
#define QV_TOWERS_WEIGHTS_H

#include "engine/backend.h"
#include "tower.h"

struct qv_weights {
    /* one allocation for all tensors; NULL if the model is only described */
    struct qv_memory *memory;
    /* [n], by tensor id; the rotary cosines and sines are the last two */
    struct qv_buffer *buffers;
    struct qv_groups
        *groups; /* [n], how each tensor is quantised on the device; bits 0: it is not */
    size_t n, bytes;
    int64_t n_parameters, n_stored; /* n_stored: how many tensors are quantised on the device */
    char digest[40];
};

/* The bytes of a slice, if not 0; a slice has at least as many rows as the device lays out at once.
 * Tests set it before they load anything, so that small tensors are read in several slices too. */
extern size_t qv_weights_slice_bytes;

/* Says how weights are loaded. */
struct qv_weights_loading {
    qv_dtype dtype; /* the dtype on the device */
    int threads;    /* the most threads that read; only the caller's thread calls the device */
    bool describe;  /* tensors are found and checked, and not loaded */
    bool stored;    /* quantised matrices stay quantised */
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

#endif
