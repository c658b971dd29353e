/* SPDX-License-Identifier: MIT */
/* Files that were installed along with this code: programs that it starts, libraries it opens. */
#ifndef QV_FILES_INSTALLED_H
#define QV_FILES_INSTALLED_H

#include <stdbool.h>
#include <stddef.h>

/* Looks for a file in the folder of the library that this code is in, or of the running program where it
 * is in no library, and then in from_lib below a library's, or in from_bin below a program's: a tree may
 * be moved, and nothing is looked for anywhere else. A library that was found by a relative path has no
 * folder, as the working folder may be anybody's. mode: as for access(). False: it is at neither; path is
 * then the last place, or the name alone. */
bool qv_find_installed(const char *name, const char *from_lib, const char *from_bin, int mode,
                       char *path, size_t size);

#endif
