/* SPDX-License-Identifier: MIT */
/* Copies within the host's memory by several threads: one core has a fraction of the link's rate. */
#ifndef QV_CUDA_COPIER_H
#define QV_CUDA_COPIER_H

#include "qwenvit.h"

struct qv_copier;

/* threads: with the caller's; 0: every core that the process may use. No more than are of use. */
qv_status qv_copier_open(int threads, struct qv_copier **out, qv_error *err);
void qv_copier_close(struct qv_copier *copier); /* NULL is accepted */

/* memcpy; done at the return. By one thread at a time. */
void qv_copier_copy(struct qv_copier *copier, void *dst, const void *src, size_t bytes);

#endif
