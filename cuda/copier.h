/* SPDX-License-Identifier: MIT */
/* Copies within the host's memory with several threads, because one core reaches only a fraction of
 * the link's rate. */
#pragma once

#include "qwenvit.h"

struct qv_copier;

/* threads includes the caller; 0: every core that the process may use. No more threads are started
 * than are useful. */
qv_status qv_copier_open(int threads, struct qv_copier **out, qv_error *err);
void qv_copier_close(struct qv_copier *copier); /* NULL is accepted */

/* Copies like memcpy, synchronously. Only one thread at a time may call it. */
void qv_copier_copy(struct qv_copier *copier, void *dst, const void *src, size_t bytes);
