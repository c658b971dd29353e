/* SPDX-License-Identifier: MIT */
/* Turns at a device, for callers that use it from several threads. */
#pragma once

#include <pthread.h>

#include "qwenvit.h"

/* Turns come in the order in which they were asked for. */
struct qv_turns {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t asked, ended; /* asked - ended: the turn that lasts and those that wait */
};

/* A turn lasts while chunks are under way. qv_turn_is_wanted returns, during a turn, whether
 * another waits. A thread that takes a second turn before it ends its first waits forever. */
void qv_turn_take(qv_context *ctx);
void qv_turn_end(qv_context *ctx);
bool qv_turn_is_wanted(qv_context *ctx);
