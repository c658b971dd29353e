/* SPDX-License-Identifier: MIT */
/*
 * Declarations shared by the fuzz harnesses. Each harness is one function of bytes, for libFuzzer
 * or standalone.c. It must not leak, must do the same each time, and must bound its work after the
 * library's checks have run and before anything is computed. If a check here finds something wrong
 * it ends the process, as sanitizers do. Inputs that the library reads as files lie in a folder in
 * memory, which is made once per process.
 */
#pragma once

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "printable.h"
#include "qwenvit.h"
#include "../remove_tree.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_CHECK(holds)                                                                          \
    do {                                                                                           \
        if (!(holds)) {                                                                            \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #holds);             \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* Checks that a failed call reports its status both ways, with an error text that can be printed.
 * Returns whether the call failed. */
static inline bool
fuzz_failed(qv_status status, const qv_error *err)
{
    if (!status)
        return false;
    FUZZ_CHECK(err->status == status && *err->text);
    FUZZ_CHECK(strlen(err->text) < sizeof err->text);
    FUZZ_CHECK(qv_is_printable(err->text));
    return true;
}

/* ---- files ----------------------------------------------------------------------------------- */

static char fuzz_folder[64];

static inline void
fuzz_remove_folder(void)
{
    remove_tree(fuzz_folder);
}

/* The path of a name in the folder. It stays valid for the next 3 calls. */
static inline const char *
fuzz_path(const char *name)
{
    static char paths[4][128];
    static unsigned next;
    if (!*fuzz_folder) {
        const bool memory = !access("/dev/shm", W_OK);
        snprintf(fuzz_folder, sizeof fuzz_folder, "%s/qv_fuzz_XXXXXX",
                 memory ? "/dev/shm" : "/tmp");
        FUZZ_CHECK(mkdtemp(fuzz_folder));
        FUZZ_CHECK(!atexit(fuzz_remove_folder));
    }
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", fuzz_folder, name);
    return path;
}

static inline const char *
fuzz_file(const char *name, const void *data, size_t bytes)
{
    const char *path = fuzz_path(name);
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    FUZZ_CHECK(fd >= 0);
    FUZZ_CHECK(write(fd, data, bytes) == (ssize_t)bytes);
    close(fd);
    return path;
}

/* ---- bytes as values ------------------------------------------------------------------------- */

struct fuzz_bytes {
    const uint8_t *at;
    size_t left;
};

/* The next byte; 0 at the end. */
static inline uint8_t
fuzz_byte(struct fuzz_bytes *b)
{
    if (!b->left)
        return 0;
    b->left--;
    return *b->at++;
}

/* An integer. It is mostly one byte and small, so that inputs make sense, but the edges of every
 * integer type come up as well. */
static inline int64_t
fuzz_int(struct fuzz_bytes *b)
{
    static const int64_t edges[] = {
        -1,        -2,        INT64_MIN,     INT64_MAX,  INT64_MAX - 1, INT64_MIN + 1,
        INT32_MAX, INT32_MIN, 1LL << 31,     1LL << 32,  UINT32_MAX,    1LL << 62,
        1LL << 61, 1LL << 48, 1LL << 40,     1LL << 24,  1LL << 20,     (1LL << 20) + 1,
        1LL << 16, 1LL << 14, (1 << 14) + 2, 3037000500, 2097152,       1000003,
        4096,      1LL << 36, 255,           256,        1000,          1LL << 52,
    };
    const uint8_t first = fuzz_byte(b);
    if (first < 224)
        return first < 160 ? first % 16 : first - 160;
    if (first - 224u < sizeof edges / sizeof *edges)
        return edges[first - 224];
    uint64_t v = 0;
    for (int i = 0; i < 8; i++)
        v = v << 8 | fuzz_byte(b);
    return (int64_t)v;
}

/* A small number, or one of the values that are not a number or not finite. */
static inline double
fuzz_real(struct fuzz_bytes *b)
{
    const uint8_t first = fuzz_byte(b);
    if (first < 240)
        return first / 16.0 - 4;
    uint64_t bits = 0;
    for (int i = 0; i < 8; i++)
        bits = bits << 8 | fuzz_byte(b);
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* An index below n. Now and then it is out of range, as values of enums can be. */
static inline int
fuzz_enum(struct fuzz_bytes *b, int n)
{
    const uint8_t v = fuzz_byte(b);
    return v < 250 ? v % n : v == 250 ? -1 : v == 251 ? 0x7fff : n;
}

static inline bool
fuzz_flag(struct fuzz_bytes *b)
{
    return fuzz_byte(b) & 1;
}

/* Memory with values for x, weights and frames. */
static inline void *
fuzz_fill(size_t bytes)
{
    uint8_t *p = malloc(bytes ? bytes : 1);
    FUZZ_CHECK(p);
    for (size_t i = 0; i < bytes; i++) /* The values are so small that no float is infinite. */
        p[i] = (uint8_t)(i * 37 % 61);
    return p;
}
