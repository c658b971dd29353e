/* SPDX-License-Identifier: MIT */
/*
 * Fuzzes a part of a cache. The first byte chooses the cache's layout, and its highest bit whether
 * the rest is a file as it is. If not, a header without its length follows, NUL, and index, keys,
 * records and data; the harness corrects the checksums of the index, header and records.
 */
#include "cache/part_index.h"
#include "fuzz.h"
#include "files/safetensors.h"
#include "qwenvit_cache.h"

static const char *const layouts[] = {
    "{\"format\":\"qwenvit-cache\",\"version\":\"2\",\"tokens\":{\"dtype\":\"f32\",\"width\":2,"
    "\"n_deepstack\":0,\"packed\":false}}",
    "{\"format\":\"qwenvit-cache\",\"version\":\"2\",\"tokens\":{\"dtype\":\"bf16\",\"width\":32,"
    "\"n_deepstack\":2,\"packed\":false}}",
};
#define PART "part-00000-of-00001-x-0-0.safetensors"
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
        if (!fuzz_failed(qv_cache_record(c, i, &record, &err), &err))
            free(record);
        /* Verifying reads all of it, and what passes is a safetensors file to other readers. */
        if (!fuzz_failed(qv_cache_verify(c, i, &err), &err)) {
            struct qv_safetensors *file = NULL;
            FUZZ_CHECK(!qv_safetensors_open(fuzz_path(PART), &file, &err));
            qv_safetensors_close(&file);
        }
        FUZZ_CHECK(!qv_cache_hold(c, &item, &err) && !item.tokens == (item.status != QV_OK));
        if (item.status)
            continue;
        FUZZ_CHECK(item.rows > 0 && (uintptr_t)item.tokens % 64 == 0);
        read_byte(item.tokens);
        for (int d = 0; d < info.layout.n_deepstack; d++)
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
    fuzz_file("qwenvit-cache.json", description, strlen(description));
    fuzz_file(PART, data, size);
    FUZZ_CHECK(!qv_cache_open(fuzz_folder, &c, &err));
    check_cache(c, size);
    qv_cache_close(&c);
    FUZZ_CHECK(!c);
}

static uint64_t
get(const uint8_t *at)
{
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--)
        v = v << 8 | at[i];
    return v;
}

static void
put(uint8_t *at, uint64_t v)
{
    for (int i = 0; i < 8; i++, v >>= 8)
        at[i] = (uint8_t)v;
}

/* Corrects checksums whose data lie inside the file, so that the code after these checks is
 * reached. */
static void
mend(uint8_t *all, size_t header, size_t size)
{
    uint8_t *index = all + header;
    if (size - header < QV_INDEX_ROW)
        return;
    const uint64_t rows = get(index + 32), keys = get(index + 40), records = get(index + 48),
                   bytes = get(index + 56);
    put(index + 72, qv_cache_hash(all, header));
    if (records <= size && bytes <= size && qv_index_padded(bytes) <= size - records)
        put(index + 64, qv_cache_hash(all + records, (size_t)qv_index_padded(bytes)));
    if (rows < size && keys < size &&
        QV_INDEX_ROW * (1 + rows) + qv_index_padded(keys) <= size - header)
        put(index + 8,
            qv_index_xxh3(index, (size_t)(QV_INDEX_ROW * (1 + rows) + qv_index_padded(keys))));
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    const char *description = layouts[(*data & 0x7f) % N_LAYOUTS];
    const uint8_t *rest = data + 1, *nul = memchr(rest, 0, size - 1);
    if (*data & 0x80 || !nul) {
        check_part(description, rest, size - 1);
        return 0;
    }
    const size_t header = (size_t)(nul - rest), bytes = size - 2 - header;
    size_t padded = (8 + header + 63) / 64 * 64;
    if (bytes >= 32) { /* the index begins where it says, so that inputs need no spaces */
        const uint64_t told = get(nul + 1 + 24);
        padded = told >= padded && told <= 8192 && told % 64 == 0 ? (size_t)told : padded;
    }
    uint8_t *all = calloc(1, padded + bytes);
    FUZZ_CHECK(all);
    put(all, padded - 8);
    memset(all + 8, ' ', padded - 8);
    memcpy(all + 8, rest, header);
    memcpy(all + padded, nul + 1, bytes);
    mend(all, padded, padded + bytes);
    check_part(description, all, padded + bytes);
    free(all);
    return 0;
}
