/* SPDX-License-Identifier: MIT */
/* Finds files that were installed along with this code: programs that it starts and libraries
 * that it opens. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Looks for a file beside the library that this code is in, and then in from_lib below that folder;
 * or, if this code is in no library, beside the running program, and then in from_bin. It looks
 * nowhere else, so an installed tree may be moved. The folder of a library that was loaded by a
 * relative path is known on Linux only. mode is as for access(). If it returns false, path is the
 * last place that was tried, or the name alone. */
bool qv_find_installed(const char *name, const char *from_lib, const char *from_bin, int mode,
                       char *path, size_t size);
