/* SPDX-License-Identifier: MIT */
#include "installed.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/auxv.h>
#endif

enum own { IN_PROGRAM = 1, IN_LIBRARY = 2, IN_EITHER = IN_PROGRAM | IN_LIBRARY };

#ifdef __linux__
/* Finds the path of the file mapped at an address. The path is absolute and comes from the kernel:
 * it stays correct even if the loader was given a relative path and the working folder has
 * changed. */
static void
mapped_path(const void *address, char *out, size_t size)
{
    char *line = NULL;
    size_t room = 0;
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps && !*out && getline(&line, &room, maps) > 0) {
        char *end;
        const char *path = strchr(line, '/');
        const uintptr_t from = strtoull(line, &end, 16), to = strtoull(end + 1, NULL, 16);
        if (path && *end == '-' && (uintptr_t)address >= from && (uintptr_t)address < to)
            snprintf(out, size, "%.*s", (int)strcspn(path, "\n"), path);
    }
    free(line);
    if (maps)
        fclose(maps);
}
#endif

/* Finds the path of the program or library that this code is in; *out is empty if it is unknown. */
static enum own
own_path(char *out, size_t size)
{
    static const char anchor;
    Dl_info here;
    const bool known = dladdr(&anchor, &here) && here.dli_fname;
    *out = 0;
#ifdef __linux__
    /* for a program, dladdr returns argv[0], which its caller chose, so ask the kernel */
    Dl_info program;
    const void *headers = (const void *)getauxval(AT_PHDR);
    if (!known || (dladdr(headers, &program) && program.dli_fbase == here.dli_fbase)) {
        const ssize_t n = readlink("/proc/self/exe", out, size - 1);
        out[n > 0 ? n : 0] = 0;
        return IN_PROGRAM;
    }
    if (*here.dli_fname != '/') {
        mapped_path(&anchor, out, size);
        return IN_LIBRARY;
    }
    const enum own own = IN_LIBRARY;
#else
    const enum own own = IN_EITHER;
#endif
    if (known)
        snprintf(out, size, "%s", here.dli_fname);
    return own;
}

bool
qv_find_installed(const char *name, const char *from_lib, const char *from_bin, int mode,
                  char *path, size_t size)
{
    char folder[PATH_MAX];
    const enum own own = own_path(folder, sizeof folder);
    const char *const places[] = { ".", own & IN_LIBRARY ? from_lib : NULL,
                                   own & IN_PROGRAM ? from_bin : NULL };
    char *slash = strrchr(folder, '/');
    snprintf(path, size, "%s", name);
    if (*folder != '/')
        return false;
    slash[1] = 0;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        if (!places[i])
            continue;
        const bool beside = !strcmp(places[i], ".");
        const int n = snprintf(path, size, "%s%s%s%s", folder, beside ? "" : places[i],
                               beside ? "" : "/", name);
        if (n > 0 && (size_t)n < size && !access(path, mode))
            return true;
    }
    return false;
}
