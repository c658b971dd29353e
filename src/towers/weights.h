/* SPDX-License-Identifier: MIT */
/* A tower's tensors on a device: found by name, checked, converted, packed slice by slice. */
#ifndef QV_TOWERS_WEIGHTS_H
#define QV_TOWERS_WEIGHTS_H

#include "engine/backend.h"
#include "tower.h"

struct qv_weights {
    struct qv_memory *memory;  /* one allocation for all; NULL if only described */
    struct qv_buffer *buffers; /* [n], by tensor id; then the tower's cosines and sines */
    struct qv_groups
        *groups; /* [n], how tensors are quantised on the device; bits 0: they are not */
    size_t n, bytes;
    int64_t n_parameters, n_stored; /* n_stored: tensors that are quantised on the device */
    char digest[40];
};

/* Slices have so many bytes, or the fewest rows that a device packs; 0 stands for megabytes.
 * Tests set it before anything is loaded, so that small tensors are read in slices too. */
extern size_t qv_weights_slice_bytes;

/* How weights are loaded. */
struct qv_weights_loading {
    qv_dtype dtype; /* that the device has them in */
    int threads;    /* that read at the most; the caller's alone does what is the device's */
    bool describe;  /* they are only found and checked */
    bool stored;    /* quantised matrices stay so */
};

/*
 * Finds every tensor of the tower in the checkpoint folder or GGUF file `dir`, checks its shape and dtype, and
 * (unless `describe`) reads it in slices, converts it to dtype, and packs it for the device. A
 * value that is not finite, in the file or after conversion, is QV_EFORMAT.
 */
qv_status qv_weights_load(struct qv_device *dev, const struct qv_config *config,
                          const struct qv_tower *tower, const char *dir,
                          const struct qv_weights_loading *how, struct qv_weights *out,
                          qv_error *err);
void qv_weights_free(struct qv_device *dev, struct qv_weights *weights);

#endif
