/* SPDX-License-Identifier: MIT */
/* QV_CLONES in front of a function compiles it once per instruction set, if the compiler and the
 * loader support choosing a version when the library is loaded. It is meant for plain loops over
 * many values. To measure with fewer sets, define it first, with -include. */
#pragma once

#ifdef QV_CLONES
#elif defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__linux__) &&     \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define QV_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define QV_CLONES
#endif
