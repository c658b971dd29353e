/* SPDX-License-Identifier: MIT */
#include "line.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reads lines of the form FILE:LINE, the innermost function first. The first line that belongs to a
 * kernel counts. */
static void
read_lines(FILE *lines, char *out, size_t size)
{
    char line[1024];
    while (fgets(line, sizeof line, lines)) {
        const char *colon = strrchr(line, ':'), *metal = strstr(line, ".metal:");
        if (metal && !out[0] && atoi(colon + 1) > 0)
            snprintf(out, size, "line %d", atoi(colon + 1));
    }
}

void
line_of_code(const void *code, char *out, size_t size)
{
    Dl_info info;
    char command[1024];
    out[0] = '\0';
    if (!dladdr(code, &info) || !info.dli_fname || strchr(info.dli_fname, '\''))
        return;
    /* The address before the return address lies in the call itself. A position-independent program
     * starts at 0. */
    int n = snprintf(command, sizeof command, "addr2line -i -e '%s' %#zx 2>/dev/null",
                     info.dli_fname, (size_t)((uintptr_t)code - 1 - (uintptr_t)info.dli_fbase));
    FILE *lines = n > 0 && (size_t)n < sizeof command ? popen(command, "r") : NULL;
    if (!lines)
        return;
    read_lines(lines, out, size);
    pclose(lines);
}
