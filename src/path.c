/* SPDX-License-Identifier: MIT */
#include "path.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "printable.h"

char *
qv_path_join(const char *dir, const char *name)
{
    const size_t a = strlen(dir), b = strlen(name);
    const bool slash = a && dir[a - 1] != '/';
    char *path = malloc(a + b + 2);
    if (!path)
        return NULL;
    memcpy(path, dir, a);
    if (slash)
        path[a] = '/';
    memcpy(path + a + slash, name, b + 1);
    return path;
}

const char *
qv_path_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

char *
qv_path_folder(const char *path)
{
    const char *name = qv_path_name(path);
    return name == path ? strdup(".") : strndup(path, (size_t)(name - path));
}

const char *
qv_path_last(const char *path, size_t *n)
{
    const char *end = path + strlen(path);
    while (end > path && end[-1] == '/')
        end--;
    const char *from = end;
    while (from > path && from[-1] != '/')
        from--;
    *n = (size_t)(end - from);
    return from;
}

bool
qv_path_exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

char *
qv_utf8_text(const char *bytes)
{
    char *text = malloc(3 * strlen(bytes) + 1), *to = text;
    if (!text)
        return NULL;
    while (*bytes) {
        const size_t n = qv_utf8_bytes(bytes);
        if (n)
            memcpy(to, bytes, n);
        else
            snprintf(to, 4, "%%%02X", (unsigned)(unsigned char)*bytes);
        to += n ? n : 3;
        bytes += n ? n : 1;
    }
    *to = 0;
    return text;
}
