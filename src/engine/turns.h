/* SPDX-License-Identifier: MIT */
/* Turns at a device, which whoever uses it from several threads takes. */
#pragma once

#include <pthread.h>

#include "qwenvit.h"

/* They come in the order in which they were asked for. */
struct qv_turns {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t asked, ended; /* between them are the turn that lasts and those that wait */
};

/* A turn lasts while chunks are under way. qv_turn_is_wanted asks, in a turn, whether another
 * waits. A thread that takes a second turn before the end of its first one waits for ever. */
void qv_turn_take(qv_context *ctx);
void qv_turn_end(qv_context *ctx);
bool qv_turn_is_wanted(qv_context *ctx);
