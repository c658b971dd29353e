/* SPDX-License-Identifier: MIT */
#include "part_index.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "dtype.h"
#include "error.h"
#include "files/json.h"
#include "files/safetensors.h"
#include "files/text.h"

enum {
    FIRST_READ = 64 << 10, /* bytes read from a part at once: a small part's whole front */
    UNHASHED = 16          /* bytes of the head that its checksum does not cover */
};

/* The fault of an index. */
struct wrong {
    int64_t row; /* -1: it is the head */
    const char *field, *words;
};

/* ---- loads and stores ------------------------------------------------------------------------ */

static inline uint32_t
load4(const unsigned char *at)
{
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static inline uint64_t
load8(const unsigned char *at)
{
    return load4(at) | (uint64_t)load4(at + 4) << 32;
}

static void
store(unsigned char *at, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++, v >>= 8)
        at[i] = (unsigned char)v;
}

static inline double
real_of(uint64_t bits)
{
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static inline uint64_t
bits_of(double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

static inline bool
is_any(const unsigned char *at, const unsigned char *end)
{
    unsigned char all = 0;
    while (at < end)
        all |= *at++;
    return all != 0;
}

#define LOAD_u8(at, place) (at)[place]
#define LOAD_i8(at, place) (int8_t)(at)[place]
#define LOAD_u16(at, place) (uint16_t)((at)[place] | (at)[(place) + 1] << 8)
#define LOAD_u32(at, place) load4((at) + (place))
#define LOAD_u64(at, place) load8((at) + (place))
#define LOAD_i64(at, place) (int64_t) load8((at) + (place))
#define LOAD_f64(at, place) real_of(load8((at) + (place)))
#define LOAD_rest(at, place) is_any((at) + (place), (at) + QV_INDEX_ROW)

#define STORE_u8(to, place, v) store((to) + (place), (v), 1)
#define STORE_i8(to, place, v) store((to) + (place), (uint64_t)(v), 1)
#define STORE_u16(to, place, v) store((to) + (place), (v), 2)
#define STORE_u32(to, place, v) store((to) + (place), (v), 4)
#define STORE_u64(to, place, v) store((to) + (place), (v), 8)
#define STORE_i64(to, place, v) store((to) + (place), (uint64_t)(v), 8)
#define STORE_f64(to, place, v) store((to) + (place), bits_of(v), 8)
#define STORE_rest(to, place, v) memset((to) + (place), 0, QV_INDEX_ROW - (place))

static struct qv_index_head
load_head(const unsigned char *at)
{
    return (struct qv_index_head){
#define QV_HEAD(kind, name, place, check, fault, words) .name = LOAD_##kind(at, place),
#include "index.inc"
    };
}

struct qv_index_row
qv_part_index_row(const struct qv_part_index *p, size_t i)
{
    const unsigned char *at = p->at + QV_INDEX_ROW * (1 + i);
    return (struct qv_index_row){
#define QV_ROW(kind, name, place, check, fault, words) .name = LOAD_##kind(at, place),
#include "index.inc"
    };
}

void
qv_index_store_head(unsigned char *to, const struct qv_index_head *h)
{
#define QV_HEAD(kind, name, place, check, fault, words) STORE_##kind(to, place, h->name);
#include "index.inc"
}

void
qv_index_store_row(unsigned char *to, const struct qv_index_row *r)
{
#define QV_ROW(kind, name, place, check, fault, words) STORE_##kind(to, place, r->name);
#include "index.inc"
}

uint64_t
qv_part_index_hash(uint64_t seed, const char *key, size_t bytes)
{
    return XXH3_64bits_withSeed(key, bytes, seed);
}

uint64_t
qv_index_xxh3(const unsigned char *at, size_t bytes)
{
    return XXH3_64bits(at + UNHASHED, bytes - UNHASHED);
}

uint32_t
qv_index_dtype(qv_dtype dtype)
{
    const char *name = qv_cache_dtype_name(dtype);
    uint32_t v = 0;
    for (int i = 0; name && name[i]; i++)
        v |= (uint32_t)(unsigned char)name[i] << 8 * i;
    return v;
}

void
qv_part_index_free(struct qv_part_index *p)
{
    free(p->bytes);
    free(p->hashes);
    free(p->table);
    *p = (struct qv_part_index){ .layout = p->layout, .seed = p->seed };
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* Where the next row's tokens, small tensors, key and record may begin. */
struct walk {
    uint64_t tokens, small, key, record;
    bool failed; /* an earlier row failed */
};

/* Records a part's fault, and returns false. */
static bool
note(struct qv_part_index *p, struct wrong *wrong, const char *field, enum qv_cache_fault fault,
     const char *words)
{
    p->fault = fault;
    wrong->field = field;
    wrong->words = words;
    return false;
}

static bool
check_head(struct qv_part_index *p, struct wrong *wrong)
{
    const struct qv_index_head *h = &p->head;
    const qv_cache_layout *l = &p->layout;
#define QV_HEAD(kind, name, place, check, fault, words)                                            \
    if (!(check))                                                                                  \
        return note(p, wrong, #name, QV_CACHE_##fault, words);
#include "index.inc"
    return true;
}

/* Returns whether a row's key lies within the keys and is valid. */
static bool
qv_index_has_key(const struct qv_part_index *p, const struct qv_index_row *r)
{
    const char *key = p->keys + r->key_at;
    const size_t n = r->key_bytes;
    if (!n || n > QV_CACHE_MAX_KEY || (uint64_t)r->key_at + n >= p->head.keys_bytes || key[n] ||
        (key[0] == '_' && key[1] == '_'))
        return false;
    for (size_t i = 0, bytes; i < n; i += bytes) {
        bytes = (unsigned char)key[i] - 1u < 0x7f ? 1 : key[i] ? qv_utf8_bytes(key + i) : 0;
        if (!bytes)
            return false;
    }
    return true;
}

static bool
check_row(struct qv_part_index *p, const struct qv_index_row *r, const struct walk *w,
          struct wrong *wrong)
{
    const qv_cache_layout *l = &p->layout;
#define QV_ROW(kind, name, place, check, fault, words)                                             \
    if (!(check))                                                                                  \
        return note(p, wrong, #name, QV_CACHE_##fault, words);
#include "index.inc"
    return true;
}

/* Makes room for the hashes of the part's keys, and a table of them. */
static bool
make_table(struct qv_part_index *p)
{
    const size_t n = (size_t)p->head.n_rows;
    size_t room = 64;
    while (room < 2 * n)
        room *= 2;
    if (room > p->table_room) {
        free(p->hashes);
        free(p->table);
        p->hashes = malloc(room / 2 * sizeof *p->hashes);
        p->table = malloc(room * sizeof *p->table);
        p->table_room = p->hashes && p->table ? room : 0;
    }
    if (p->table_room)
        memset(p->table, 0, room * sizeof *p->table);
    p->mask = room - 1;
    return p->table_room > 0;
}

/* Hashes the key of row i, and returns whether an earlier row has the same key. */
static bool
is_twice(struct qv_part_index *p, size_t i, const struct qv_index_row *r)
{
    const char *key = p->keys + r->key_at;
    const uint64_t hash = qv_part_index_hash(p->seed, key, r->key_bytes);
    size_t at = (size_t)hash & p->mask;
    p->hashes[i] = hash;
    for (; p->table[at]; at = (at + 1) & p->mask)
        if (p->hashes[p->table[at] - 1] == hash &&
            !strcmp(p->keys + qv_part_index_row(p, p->table[at] - 1).key_at, key))
            return true;
    p->table[at] = (uint32_t)i + 1;
    return false;
}

static bool
check_rows(struct qv_part_index *p, struct wrong *wrong)
{
    const struct qv_index_head *h = &p->head;
    struct walk w = { .tokens = qv_index_data_at(h), .small = h->small_at };
    for (size_t i = 0; i < h->n_rows; i++) {
        const struct qv_index_row r = qv_part_index_row(p, i);
        wrong->row = (int64_t)i;
        if (!check_row(p, &r, &w, wrong))
            return false;
        if (is_twice(p, i, &r))
            return note(p, wrong, "key_at", QV_CACHE_BROKEN, "two keys are equal");
        w.key += r.key_bytes + 1u;
        w.record += r.record_bytes + 1u;
        w.failed = r.status != 0;
        if (w.failed)
            continue;
        w.tokens = qv_index_row_end(&p->layout, &r);
        w.small += qv_index_small_bytes(&r);
    }
    wrong->row = -1;
    if (w.key != h->keys_bytes)
        return note(p, wrong, "keys_bytes", QV_CACHE_BROKEN, "bytes follow its last key");
    if (w.record != h->records_bytes + 1)
        return note(p, wrong, "records_bytes", QV_CACHE_BROKEN, "bytes follow its last record");
    return w.small == h->file_end ||
           note(p, wrong, "file_end", QV_CACHE_BROKEN, "bytes follow its last tensor");
}

/* ---- reading --------------------------------------------------------------------------------- */

static qv_status
fail(struct qv_part_index *p, const char *path, enum qv_cache_fault fault, const char *words,
     qv_error *err)
{
    p->fault = fault;
    return qv_fail(err, QV_EFORMAT, "%s: %s", path, words);
}

/* Fails if a foreign file's header is short and not JSON. */
static qv_status
tell_header(struct qv_part_index *p, int fd, const char *path, qv_error *err)
{
    enum { MOST = 1 << 20 };
    const uint64_t n = p->header_bytes - 8;
    json_t *root = NULL;
    char *text = n <= MOST ? malloc((size_t)n + 1) : NULL;
    qv_status s = text || n > MOST ? QV_OK : qv_no_memory(path, err);
    if (text)
        s = qv_file_read(fd, path, 8, text, n, err);
    if (text && !s)
        s = qv_json_parse(path, text, (size_t)n, QV_JSON_MAX_BRACKETS, &root, err);
    free(text);
    json_decref(root);
    return s ? s
             : fail(p, path, QV_CACHE_FOREIGN, "its format is not \"" QV_CACHE_FORMAT "\"", err);
}

/* Reports what a file without our index is. The beginning of the header identifies another version,
 * since this version may be unable to read the rest. */
static qv_status
tell_other(struct qv_part_index *p, int fd, const char *path, qv_error *err)
{
    static const char begin[] =
        "{\"__metadata__\":{\"format\":\"" QV_CACHE_FORMAT "\",\"version\":\"";
    char words[160], shown[QV_QUOTE_SIZE], text[sizeof begin + 16] = { 0 },
                                                               *version = text + sizeof begin - 1;
    const uint64_t n = p->header_bytes - 8;
    qv_status s = qv_file_read(fd, path, 8, text, n < sizeof text ? n : sizeof text - 1, err);
    if (s)
        return s;
    if (strncmp(text, begin, sizeof begin - 1) != 0)
        return tell_header(p, fd, path, err);
    version[strcspn(version, "\"")] = 0;
    if (!strcmp(version, QV_CACHE_VERSION))
        return fail(p, path, QV_CACHE_BROKEN, "its index is missing or altered", err);
    snprintf(words, sizeof words, "its version is %s: " QV_CACHE_OTHER,
             qv_json_quote(version, shown));
    return fail(p, path, QV_CACHE_FOREIGN, words, err);
}

static bool
make_room(struct qv_part_index *p, uint64_t bytes)
{
    if (bytes <= p->room)
        return true;
    unsigned char *at = realloc(p->bytes, (size_t)bytes);
    if (!at)
        return false;
    p->bytes = at;
    p->room = (size_t)bytes;
    return true;
}

/* Reads the header's length, and as much as exists of the index and keys after it; p->at is NULL if
 * the part has another version. */
static qv_status
load_index(struct qv_part_index *p, int fd, const char *path, qv_error *err)
{
    uint64_t have = p->size < FIRST_READ ? p->size : FIRST_READ, from = 0;
    if (p->size < 8)
        return fail(p, path, QV_CACHE_BROKEN, "it has fewer than 8 bytes: it was cut short", err);
    if (!make_room(p, FIRST_READ))
        return qv_no_memory(path, err);
    qv_status s = qv_file_read(fd, path, 0, p->bytes, have, err);
    if (s)
        return s;
    const uint64_t n = load8(p->bytes);
    p->header_bytes = n + 8;
    if (n > p->size - 8)
        return fail(p, path, QV_CACHE_BROKEN, "its header extends past its end: it was cut short",
                    err);
    if (n > QV_CACHE_MAX_FRONT)
        return fail(p, path, QV_CACHE_FOREIGN, "its header is larger than 32 MiB", err);
    if (p->size - p->header_bytes < QV_INDEX_ROW)
        return QV_OK;
    if (p->header_bytes + QV_INDEX_ROW > have) {
        from = p->header_bytes;
        have = p->size - from < FIRST_READ ? p->size - from : FIRST_READ;
        s = qv_file_read(fd, path, from, p->bytes, have, err);
    }
    const size_t skip = (size_t)(p->header_bytes - from);
    if (s)
        return s;
    p->head = load_head(p->bytes + skip);
    if (p->head.magic != QV_INDEX_MAGIC || p->head.version != QV_INDEX_VERSION)
        return QV_OK;
    uint64_t all = QV_INDEX_ROW;
    if (p->head.n_rows <= QV_CACHE_MAX_FRONT / QV_INDEX_ROW &&
        p->head.keys_bytes <= QV_CACHE_MAX_FRONT)
        all += QV_INDEX_ROW * p->head.n_rows + qv_index_padded(p->head.keys_bytes);
    if (all > p->size - p->header_bytes)
        return fail(p, path, QV_CACHE_BROKEN, "its index extends past its end: it was cut short",
                    err);
    if (!make_room(p, skip + all))
        return qv_no_memory(path, err);
    if (skip + all > have)
        s = qv_file_read(fd, path, from + have, p->bytes + have, skip + all - have, err);
    p->at = p->bytes + skip;
    p->keys = (const char *)p->at + QV_INDEX_ROW * (all > QV_INDEX_ROW ? 1 + p->head.n_rows : 1);
    p->xxh3 = qv_index_xxh3(p->at, (size_t)all);
    return s;
}

static qv_status
check_index(struct qv_part_index *p, const char *path, qv_error *err)
{
    struct wrong wrong = { .row = -1 };
    p->is_readable = check_head(p, &wrong);
    if (p->is_readable && !make_table(p))
        return qv_no_memory(path, err);
    p->is_readable = p->is_readable && check_rows(p, &wrong);
    if (!p->is_readable && wrong.row >= 0)
        return qv_fail(err, QV_EFORMAT, "%s: row %lld of its index, %s: %s", path,
                       (long long)wrong.row, wrong.field, wrong.words);
    if (!p->is_readable)
        return qv_fail(err, QV_EFORMAT, "%s: its index, %s: %s", path, wrong.field, wrong.words);
    if (p->size != p->head.file_end)
        return fail(p, path, QV_CACHE_BROKEN,
                    p->size < p->head.file_end ? "the file ends before its data (it was cut short)"
                                               : "bytes follow the data of the last tensor",
                    err);
    return QV_OK;
}

qv_status
qv_part_index_read(struct qv_part_index *p, const char *path, qv_error *err)
{
    int fd = -1;
    p->at = NULL;
    p->is_readable = false;
    p->size = 0;
    p->fault = QV_CACHE_BROKEN;
    p->head = (struct qv_index_head){ .n_rows = 0 };
    qv_status s = qv_file_open(path, &fd, &p->size, err);
    if (s)
        return s;
    s = load_index(p, fd, path, err);
    if (!s)
        s = p->at ? check_index(p, path, err) : tell_other(p, fd, path, err);
    close(fd);
    return s;
}

void
qv_part_ffmpeg(const char *path, char version[QV_CACHE_FFMPEG_BYTES])
{
    static const char begin[] = "{\"__metadata__\":";
    char text[1024]; /* metadata comes first and is shorter */
    const char *from = text + 8 + sizeof begin - 1;
    uint64_t size = 0;
    int fd = -1;
    version[0] = 0;
    if (qv_file_open(path, &fd, &size, NULL))
        return;
    const size_t n = size < sizeof text ? (size_t)size : sizeof text;
    const bool is_read = !qv_file_read(fd, path, 0, text, n, NULL);
    close(fd);
    if (!is_read || n < 8 + sizeof begin || memcmp(text + 8, begin, sizeof begin - 1) != 0)
        return;
    json_t *metadata = json_loadb(from, n - (size_t)(from - text), JSON_DISABLE_EOF_CHECK, NULL);
    const char *found = json_string_value(json_object_get(metadata, "ffmpeg"));
    snprintf(version, QV_CACHE_FFMPEG_BYTES, "%s", found ? found : "");
    qv_make_printable(version);
    json_decref(metadata);
}
