/* SPDX-License-Identifier: MIT */
/* The keys of the part that is being scanned: a table from a key's bytes to its item. */
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "scan.h"

uint64_t
qv_cache_asked_hash(const char *start, const char *end, const char *options)
{
    const char *const texts[] = { start, end, options };
    uint64_t hashes[3];
    for (int i = 0; i < 3; i++)
        hashes[i] = texts[i] ? XXH3_64bits(texts[i], strlen(texts[i])) : 0;
    return XXH3_64bits(hashes, sizeof hashes);
}

uint64_t
qv_scan_hash(uint64_t seed, const char *key, size_t bytes)
{
    return XXH3_64bits_withSeed(key, bytes, seed);
}

static bool
grow_table(struct qv_scanner *s)
{
    const size_t room = s->table_room ? 2 * s->table_room : 1024;
    uint32_t *table = calloc(room, sizeof *table);
    if (!table)
        return false;
    for (size_t i = 0; i < s->n_items; i++) {
        size_t at = (size_t)s->items[i].hash & (room - 1);
        while (table[at])
            at = (at + 1) & (room - 1);
        table[at] = (uint32_t)i + 1;
    }
    free(s->table);
    s->table = table;
    s->table_room = room;
    return true;
}

static bool
is_key(const struct qv_scanner *s, size_t i, const char *key, size_t bytes)
{
    const struct qv_scan_item *item = &s->items[i];
    return item->name_bytes == bytes && !memcmp(s->names.at + item->name, key, bytes);
}

static struct qv_scan_item *
add_item(struct qv_scanner *s, const char *key, size_t bytes, uint64_t hash)
{
    if (s->n_items == s->items_room) {
        const size_t room = 2 * s->items_room + 512;
        struct qv_scan_item *items = realloc(s->items, room * sizeof *items);
        if (!items)
            return NULL;
        s->items = items;
        s->items_room = room;
    }
    struct qv_scan_item *item = &s->items[s->n_items];
    *item = (struct qv_scan_item){ .name = s->names.n, .name_bytes = bytes, .hash = hash };
    qv_text_add(&s->names, key, bytes);
    qv_text_add(&s->names, "", 1);
    return s->names.lost ? NULL : item;
}

struct qv_scan_item *
qv_scan_item_of(struct qv_scanner *s, const char *key, size_t bytes)
{
    if (s->n_items && is_key(s, s->last, key, bytes)) /* the tensors of a key are mostly adjacent */
        return &s->items[s->last];
    if (2 * (s->n_items + 1) > s->table_room && !grow_table(s))
        return NULL;
    const uint64_t hash = qv_scan_hash(s->seed, key, bytes);
    size_t at = (size_t)hash & (s->table_room - 1);
    for (; s->table[at]; at = (at + 1) & (s->table_room - 1)) {
        const size_t i = s->table[at] - 1;
        if (s->items[i].hash == hash && is_key(s, i, key, bytes)) {
            s->last = i;
            return &s->items[i];
        }
    }
    struct qv_scan_item *item = add_item(s, key, bytes, hash);
    if (item) {
        s->last = s->n_items++;
        s->table[at] = (uint32_t)s->n_items;
    }
    return item;
}
