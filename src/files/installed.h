/* SPDX-License-Identifier: MIT */
/* Files that were installed along with this code: programs that it starts, libraries it opens. */
#ifndef QV_FILES_INSTALLED_H
#define QV_FILES_INSTALLED_H

#include <stdbool.h>
#include <stddef.h>

/* Looks for names[n], relative paths, in the folder of the library (or program) that this code is
 * in, then in the running program's, and at last for `otherwise`, where the file was meant to be
 * installed. mode: as for access(). False: at none of these, and path is `otherwise`. */
bool qv_find_installed(const char *const *names, size_t n, const char *otherwise, int mode,
                       char *path, size_t size);

#endif
