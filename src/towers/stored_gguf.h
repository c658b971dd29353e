/* SPDX-License-Identifier: MIT */
/* Finds and reads a tower's tensor in a GGUF file. stored_tensor.h does so for any checkpoint. */
#ifndef QV_TOWERS_STORED_GGUF_H
#define QV_TOWERS_STORED_GGUF_H

#include "config.h"
#include "stored_tensor.h"

/* The most bytes of a tensor's name that is looked for. */
enum { QV_GGUF_NAME = 128 };

/* These are the functions of stored_tensor.h, whose names lack "gguf", for a tensor in a GGUF
 * file. */
qv_status qv_stored_gguf_find(const struct qv_gguf *file, const struct qv_config *config,
                              const struct qv_tensor_spec *spec, int i,
                              struct qv_stored_tensor *out, qv_error *err);
size_t qv_stored_gguf_row_bytes(const struct qv_stored_tensor *stored);
qv_status qv_stored_gguf_read(const struct qv_stored_tensor *stored, int64_t row, int64_t rows,
                              const struct qv_stored_room *room, void **values, qv_error *err);
struct qv_groups qv_stored_gguf_groups(const struct qv_stored_tensor *stored);
qv_status qv_stored_gguf_keep(const struct qv_stored_tensor *stored, int64_t row, int64_t rows,
                              const struct qv_stored_room *room, int64_t k, void *out,
                              qv_error *err);

#endif
