/* SPDX-License-Identifier: MIT */
/* Finds files installed with this code: programs that it starts and libraries that it opens. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Looks for a file next to the library that contains this code, then in from_lib below that folder.
 * If this code is not in a library, it looks next to the running program, then in from_bin. It
 * looks nowhere else, so an installed tree may be moved. The folder of a library loaded by a
 * relative path is known only on Linux. mode is as for access(). If it returns false, path is the
 * last place tried, or only the name. */
bool qv_find_installed(const char *name, const char *from_lib, const char *from_bin, int mode,
                       char *path, size_t size);
