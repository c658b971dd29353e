/* SPDX-License-Identifier: MIT */
/* Writes PNG files. Pixels are stored uncompressed, so no library is needed. */
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "files/atomic_file.h"
#include "tool.h"

enum { MOST_STORED = 65535, BLOCK_HEAD = 5 }; /* bytes of a deflate block */

static uint8_t *
put_u32(uint8_t *at, uint32_t value)
{
    for (int shift = 24; shift >= 0; shift -= 8)
        *at++ = (uint8_t)(value >> shift);
    return at;
}

static uint8_t *
put_stored(uint8_t *at, const uint8_t *bytes, size_t n)
{
    while (n) {
        const size_t size = n < MOST_STORED ? n : MOST_STORED;
        const uint8_t head[BLOCK_HEAD] = { size == n, (uint8_t)size, (uint8_t)(size >> 8),
                                           (uint8_t)~size, (uint8_t)(~size >> 8) };
        memcpy(at, head, sizeof head);
        memcpy(at + sizeof head, bytes, size);
        at += sizeof head + size;
        bytes += size;
        n -= size;
    }
    return at;
}

static uint32_t
adler32(const uint8_t *bytes, size_t n)
{
    uint32_t a = 1, b = 0;
    for (size_t i = 0; i < n; i++) {
        a = (a + bytes[i]) % 65521;
        b = (b + a) % 65521;
    }
    return b << 16 | a;
}

static uint32_t
crc32(const uint8_t *bytes, size_t n)
{
    uint32_t crc = ~0U;
    for (size_t i = 0; i < n; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320U : 0);
    }
    return ~crc;
}

static uint8_t *
put_chunk(uint8_t *at, const char *name, const uint8_t *data, size_t n)
{
    put_u32(at, (uint32_t)n);
    memcpy(at + 4, name, 4);
    memcpy(at + 8, data, n);
    return put_u32(at + 8 + n, crc32(at + 4, 4 + n));
}

qv_status
tool_write_png(const char *path, const uint8_t *rgb, int height, int width, qv_error *err)
{
    static const uint8_t signature[] = { 0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n' };
    enum { FRAME = 128 };              /* more than everything but pixels and blocks */
    uint8_t head[13] = { [8] = 8, 2 }; /* sizes; then 8-bit RGB */
    const size_t row = 3 * (size_t)width, n = (size_t)height * (1 + row);
    const size_t most = FRAME + n + (n / MOST_STORED + 1) * BLOCK_HEAD;
    /* each row begins with its filter type, 0: none */
    uint8_t *rows = calloc((size_t)height, 1 + row), *stream = malloc(most), *file = malloc(most);
    qv_status status = QV_ENOMEM;
    if (rows && stream && file) {
        for (size_t y = 0; y < (size_t)height; y++)
            memcpy(rows + y * (1 + row) + 1, rgb + y * row, row);
        stream[0] = 0x78; /* zlib's head */
        stream[1] = 0x01;
        uint8_t *end = put_u32(put_stored(stream + 2, rows, n), adler32(rows, n));
        put_u32(put_u32(head, (uint32_t)width), (uint32_t)height);
        memcpy(file, signature, sizeof signature);
        uint8_t *at = put_chunk(file + sizeof signature, "IHDR", head, sizeof head);
        at = put_chunk(at, "IDAT", stream, (size_t)(end - stream));
        at = put_chunk(at, "IEND", head, 0);
        status = qv_atomic_file_put(path, file, (uint64_t)(at - file), err);
    } else {
        qv_fail(err, status, "%s: no memory for a PNG file of %dx%d", path, width, height);
    }
    free(rows);
    free(stream);
    free(file);
    return status;
}
