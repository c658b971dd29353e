/* SPDX-License-Identifier: MIT */
/* Starts threads with all signals blocked: handling signals is up to the program. POSIX functions
 * must be declared before this is included. */
#pragma once

#include <pthread.h>
#include <signal.h>
#include <stddef.h>

/* Returns 0, or the error of pthread_create. */
static inline int
qv_thread_start(pthread_t *thread, void *(*run)(void *), void *user)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(thread, NULL, run, user);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}
