/* SPDX-License-Identifier: MIT */
/* Declares decoding in threads of a test's own. */
#pragma once

#include <stdbool.h>

/* Whether threads serve the clips of decoders that have a program, too. */
extern bool decoder_thread_always;
/* Returns whether the calling thread serves a clip. */
bool decoder_thread_is_here(void);
