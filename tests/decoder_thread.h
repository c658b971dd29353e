/* SPDX-License-Identifier: MIT */
/* Declares decoding in a test's own threads. */
#pragma once

#include <stdbool.h>

/* Whether threads also serve the clips of decoders with a program. */
extern bool decoder_thread_always;
/* Returns whether the calling thread serves a clip. */
bool decoder_thread_is_here(void);
