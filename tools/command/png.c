/* SPDX-License-Identifier: MIT */
/* Writes PNG files. Their pixels are stored, not compressed, so that no library is needed. */
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "files/atomic_file.h"
#include "tool.h"

enum { MOST_STORED = 65535, BLOCK_HEAD = 5 }; /* bytes of a block of deflate */

static uint8_t *
put_u32(uint8_t *at, uint32_t value)
{
    for (int shift = 24; shift >= 0; shift -= 8)
        *at++ = (uint8_t)(value >> shift);
    return at;
}

/* Appends bytes in stored blocks of deflate. */
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

/* Begins a chunk of a name; end_chunk fills in its length once its data stand behind it. */
static uint8_t *
begin_chunk(uint8_t *chunk, const char *name)
{
    memcpy(chunk + 4, name, 4);
    return chunk + 8;
}

static uint8_t *
end_chunk(uint8_t *chunk, uint8_t *end)
{
    put_u32(chunk, (uint32_t)(end - chunk - 8));
    return put_u32(end, crc32(chunk + 4, (size_t)(end - chunk - 4)));
}

qv_status
tool_write_png(const char *path, const uint8_t *rgb, int height, int width, qv_error *err)
{
    static const uint8_t signature[] = { 0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n' };
    static const uint8_t rgb_of_8_bits[] = { 8, 2, 0, 0, 0 }, zlib[] = { 0x78, 0x01 };
    enum { FRAME = 128 }; /* more than all that is not pixels or blocks */
    const size_t row = 3 * (size_t)width, n = (size_t)height * (1 + row);
    uint8_t *rows =
        calloc((size_t)height, 1 + row); /* each begins with its filter, which is none */
    uint8_t *file = malloc(FRAME + n + (n / MOST_STORED + 1) * BLOCK_HEAD);
    qv_status status = QV_ENOMEM;
    if (rows && file) {
        for (size_t y = 0; y < (size_t)height; y++)
            memcpy(rows + y * (1 + row) + 1, rgb + y * row, row);
        memcpy(file, signature, sizeof signature);
        uint8_t *chunk = file + sizeof signature;
        uint8_t *at =
            put_u32(put_u32(begin_chunk(chunk, "IHDR"), (uint32_t)width), (uint32_t)height);
        memcpy(at, rgb_of_8_bits, sizeof rgb_of_8_bits);
        chunk = end_chunk(chunk, at + sizeof rgb_of_8_bits);
        at = begin_chunk(chunk, "IDAT");
        memcpy(at, zlib, sizeof zlib);
        at = put_u32(put_stored(at + sizeof zlib, rows, n), adler32(rows, n));
        chunk = end_chunk(chunk, at);
        at = end_chunk(chunk, begin_chunk(chunk, "IEND"));
        status = qv_atomic_file_put(path, file, (uint64_t)(at - file), err);
    } else {
        qv_fail(err, status, "%s: no memory for a PNG file of %dx%d", path, width, height);
    }
    free(rows);
    free(file);
    return status;
}
