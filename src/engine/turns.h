/* SPDX-License-Identifier: MIT */
/* Turns at a device, for callers that use it from several threads. */
#pragma once

#include <pthread.h>

#include "qwenvit.h"

/* Turns are granted in the order in which they were requested. */
struct qv_turns {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t asked, ended; /* asked - ended: the current turn and the waiting ones */
};

/* A turn lasts while chunks are in progress. qv_turn_is_wanted returns, during a turn, whether
 * another turn is waiting. A thread that takes a second turn before it ends its first deadlocks. */
void qv_turn_take(qv_context *ctx);
void qv_turn_end(qv_context *ctx);
bool qv_turn_is_wanted(qv_context *ctx);
