/* SPDX-License-Identifier: MIT */
/*
 * Writes a safetensors file that consists of its header and a hole instead of the data, so
 * checkpoints of any size need no space. A test that needs values writes them at sparse_offset.
 */
#pragma once

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { SPARSE_MOST_HEADER = 64 << 10 };

struct sparse {
    char text[SPARSE_MOST_HEADER];
    size_t used;
    uint64_t data; /* How many bytes were described so far. */
};

/* Adds tensor PREFIXNAME of the given shape. Returns false if that is more than a file can have. */
static inline bool
sparse_add(struct sparse *s, const char *dtype, uint64_t element, const char *prefix,
           const char *name, int n_dims, const int64_t *dims)
{
    uint64_t bytes = element, end;
    char shape[128];
    int at = 0;
    for (int i = 0; i < n_dims; i++) {
        at += snprintf(shape + at, sizeof shape - (size_t)at, "%s%lld", i ? "," : "",
                       (long long)dims[i]);
        if (__builtin_mul_overflow(bytes, dims[i], &bytes))
            return false;
    }
    if (__builtin_add_overflow(s->data, bytes, &end) || end > (uint64_t)1 << 50)
        return false;
    const size_t room = sizeof s->text - s->used;
    const int length =
        snprintf(s->text + s->used, room,
                 "%c\"%s%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%llu,%llu]}",
                 s->used ? ',' : '{', prefix, name, dtype, shape, (unsigned long long)s->data,
                 (unsigned long long)end);
    if (length < 0 || (size_t)length + 1 >= room) /* Leaves room for the closing brace. */
        return false;
    s->used += (size_t)length;
    s->data = end;
    return true;
}

/* Returns the place in the file of a byte of the data, counted as in sparse.data. After this call
 * no tensor may be added. */
static inline uint64_t
sparse_offset(const struct sparse *s, uint64_t at)
{
    return 8 + s->used + 1 + at;
}

/* Makes the file and returns it, open for writing; negative if it cannot be made. The caller closes
 * it. */
static inline int
sparse_write(const struct sparse *s, const char *path)
{
    char head[8 + SPARSE_MOST_HEADER];
    const size_t n = s->used + 1;
    for (int i = 0; i < 8; i++)
        head[i] = (char)((uint64_t)n >> 8 * i & 255);
    memcpy(head + 8, s->text, s->used);
    head[8 + s->used] = '}';
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd >= 0 && (write(fd, head, 8 + n) != (ssize_t)(8 + n) ||
                    ftruncate(fd, (off_t)sparse_offset(s, s->data)))) {
        close(fd);
        return -1;
    }
    return fd;
}
