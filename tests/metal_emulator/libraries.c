/* SPDX-License-Identifier: MIT */
/* The libraries that are linked into a program. */
#include "runtime.h"

#ifndef EMULATOR_LIBRARIES
#define EMULATOR_LIBRARIES LIBRARY(bfloat) LIBRARY(float)
#endif

#define LIBRARY(name) extern const struct emulator_library emulator_library_##name;
EMULATOR_LIBRARIES
#undef LIBRARY

#define LIBRARY(name) &emulator_library_##name,
const struct emulator_library *const emulator_libraries[] = { EMULATOR_LIBRARIES NULL };
