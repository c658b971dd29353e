/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE /* dladdr */
#include "installed.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The folder of the running program, or of the library that this code is in, with the slash behind;
 * empty if unknown. */
static void
own_folder(bool program, char *out, size_t size)
{
    static const char here;
    Dl_info info;
    *out = 0;
    if (!program && dladdr(&here, &info) && info.dli_fname)
        snprintf(out, size, "%s", info.dli_fname);
#ifdef __linux__
    if (program) {
        const ssize_t n = readlink("/proc/self/exe", out, size - 1);
        out[n > 0 ? n : 0] = 0;
    }
#endif
    char *slash = strrchr(out, '/');
    if (slash && *out == '/')
        slash[1] = 0;
    else
        *out = 0;
}

bool
qv_find_installed(const char *const *names, size_t n, const char *otherwise, int mode, char *path,
                  size_t size)
{
    char folder[PATH_MAX];
    for (int program = 0; program < 2; program++) {
        own_folder(program, folder, sizeof folder);
        for (size_t i = 0; *folder && i < n; i++) {
            const int length = snprintf(path, size, "%s%s", folder, names[i]);
            if (length > 0 && (size_t)length < size && !access(path, mode))
                return true;
        }
    }
    snprintf(path, size, "%s", otherwise);
    return !access(path, mode);
}
