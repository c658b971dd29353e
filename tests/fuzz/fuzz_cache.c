/* SPDX-License-Identifier: MIT */
/*
 * Fuzzes a part of a cache. The first byte chooses the cache's layout. Then come a header, NUL and
 * data; the harness puts the header's length in front. Text between "@{" and "}@" is written as the
 * inside of a JSON string, so that small changes of a record leave it a string.
 */
#define _GNU_SOURCE
#include "fuzz.h"
#include "files/safetensors.h"
#include "qwenvit_cache.h"

static const char *const layouts[] = {
    "{\"format\":\"qwenvit-cache\",\"version\":\"1\",\"tokens\":{\"dtype\":\"f32\",\"width\":2,"
    "\"n_deepstack\":0,\"packed\":false}}",
    "{\"format\":\"qwenvit-cache\",\"version\":\"1\",\"tokens\":{\"dtype\":\"bf16\",\"width\":32,"
    "\"n_deepstack\":2,\"packed\":false}}",
    "{\"format\":\"qwenvit-cache\",\"version\":\"1\",\"tokens\":{\"dtype\":\"f16\",\"width\":1,"
    "\"n_deepstack\":3,\"packed\":true}}",
};
enum { N_LAYOUTS = sizeof layouts / sizeof *layouts };

/* Checks that mapped memory can be read. */
static void
read_byte(const void *at)
{
    (void)*(const volatile uint8_t *)at;
}

/* Checks that everything that is not damaged can be read as a whole and lies inside the file. */
static void
check_cache(const qv_cache *c, size_t size)
{
    qv_cache_info info;
    qv_error err;
    qv_cache_get_info(c, &info);
    FUZZ_CHECK(info.n_parts == 1 && info.n_damaged >= 0 && info.n_damaged <= 1);
    FUZZ_CHECK(info.bytes <= size);
    FUZZ_CHECK(!info.n_damaged == !qv_cache_damage(c, 0, NULL));
    for (int64_t i = 0; i < info.n_ok + info.n_failed; i++) {
        qv_cache_item item, same;
        char *record = NULL;
        FUZZ_CHECK(!qv_cache_at(c, i, &item, &err));
        FUZZ_CHECK(!qv_cache_find(c, item.key, &same, &err) && same.key == item.key);
        FUZZ_CHECK(!qv_cache_record(c, i, &record, &err) && *record == '{');
        free(record);
        fuzz_failed(qv_cache_verify(c, i, &err), &err); /* Verifying reads all of it. */
        FUZZ_CHECK(!qv_cache_hold(c, &item, &err) && !item.tokens == (item.status != QV_OK));
        if (item.status)
            continue;
        FUZZ_CHECK(item.rows > 0 && (uintptr_t)item.tokens % 64 == 0);
        read_byte(item.tokens);
        for (int d = 0; !info.layout.packed && d < info.layout.n_deepstack; d++)
            read_byte(item.deepstack[d]);
        read_byte(item.grid_thw);
        FUZZ_CHECK(item.is_image >= -1 && item.is_image <= 1 && item.sampled_fps >= 0);
        qv_cache_release(c, &item);
    }
}

static void
check_part(const char *description, const uint8_t *data, size_t size)
{
    qv_error err;
    qv_cache *c = NULL;
    struct qv_safetensors *file = NULL;
    fuzz_file("qwenvit-cache.json", description, strlen(description));
    const char *path = fuzz_file("part-00000-of-00001-x-0-0.safetensors", data, size);
    FUZZ_CHECK(!qv_cache_open(fuzz_folder, &c, &err));
    qv_cache_info info;
    qv_cache_get_info(c, &info);
    /* A file that we accept as a part must be a safetensors file to other readers. */
    if (!info.n_damaged) {
        FUZZ_CHECK(!qv_safetensors_open(path, &file, &err));
        qv_safetensors_close(&file);
    }
    check_cache(c, size);
    qv_cache_close(&c);
    FUZZ_CHECK(!c);
}

/* Copies a header, and writes the text between "@{" and "}@" as the inside of a JSON string. */
static size_t
copy_header(const uint8_t *from, size_t n, uint8_t *to)
{
    size_t out = 0;
    bool inside = false;
    for (size_t i = 0; i < n; i++) {
        if (i + 1 < n && from[i] == (inside ? '}' : '@') && from[i + 1] == (inside ? '@' : '{')) {
            inside = !inside;
            i++;
            continue;
        }
        if (inside && (from[i] == '"' || from[i] == '\\'))
            to[out++] = '\\';
        to[out++] = from[i];
    }
    return out;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    const char *description = layouts[*data % N_LAYOUTS];
    const uint8_t *rest = data + 1, *nul = memchr(rest, 0, size - 1);
    const size_t header = nul ? (size_t)(nul - rest) : size - 1;
    const size_t bytes = nul ? size - 2 - header : 0;
    uint8_t *all = calloc(1, 8 + 2 * size + 4096);
    FUZZ_CHECK(all);
    size_t n = copy_header(rest, header, all + 8);
    while ((8 + n) % 64) /* Pads the header so that tensors can lie where they must. */
        all[8 + n++] = ' ';
    for (int i = 0; i < 8; i++)
        all[i] = (uint8_t)((uint64_t)n >> 8 * i & 0xff);
    if (bytes)
        memcpy(all + 8 + n, nul + 1, bytes);
    check_part(description, all, 8 + n + bytes);
    free(all);
    return 0;
}
