/* SPDX-License-Identifier: MIT */
/* Tests what pruning removes from a cache and what it keeps, locking, readers that have the cache
 * open, and the comparison of sources. tests/test_cache_crash.c ends and fails each of its
 * calls. */
#include "test.h"

#include <inttypes.h>
#include <sys/file.h>

#include "cache/open.h"
#include "qwenvit_clips.h"
#include "cache/reader.h"
#include "cache_tools.h"

static qv_cache_layout tiny = { .dtype = QV_BF16, .width = 8, .n_deepstack = 2 };

/* Opens the writer after everything that is there, as a run does. */
static qv_cache_writer *
go_on_writing(const char *dir, const char *made_by)
{
    qv_cache_info info = { .sealed = 0 };
    qv_cache *c = NULL;
    if (!qv_cache_open(dir, &c, NULL))
        qv_cache_get_info(c, &info);
    qv_cache_close(&c);
    const qv_cache_writer_options o = {
        .layout = tiny, .part_bytes = 1500, .after = info.sealed, .made_by = made_by
    };
    qv_cache_writer *w = NULL;
    assert_ok(qv_cache_writer_open(dir, &o, &w, ERR));
    return w;
}

static const qv_cache_source newer = { .path = "clip.mp4", .bytes = 1000, .mtime_ns = 3000 };

/* Makes keys 0 to 9 in some parts, and newer versions of 3 and 4 after them. "late" failed once and
 * is ok since, "bad" failed twice, and "was" was ok before its file changed and it failed. */
enum { N = 10, SUPERSEDED = 5 };

static const char *
make_cache(void)
{
    const char *dir = temp_path("cache");
    qv_cache_writer *w = go_on_writing(dir, NULL);
    for (int k = 0; k < N; k++)
        write_key(w, &tiny, key_name(k), key_rows(k));
    write_source(w, &tiny, "late", &some_source, QV_EFORMAT);
    write_source(w, &tiny, "bad", &some_source, QV_EFORMAT);
    write_source(w, &tiny, "was", &some_source, QV_OK);
    close_writer(&w);
    w = go_on_writing(dir, NULL);
    write_source(w, &tiny, key_name(3), &newer, QV_OK);
    write_source(w, &tiny, key_name(4), &newer, QV_OK);
    write_source(w, &tiny, "late", &some_source, QV_OK);
    write_source(w, &tiny, "bad", &some_source, QV_EIO);
    write_source(w, &tiny, "was", &newer, QV_EFORMAT);
    close_writer(&w);
    return dir;
}

static int64_t
rows_of(int k)
{
    return k == 3 || k == 4 ? 1 : key_rows(k);
}

static qv_cache_pruned
prune(const char *dir, const qv_cache_prune_options *o)
{
    qv_cache_pruned n;
    assert_ok(qv_cache_prune(dir, o, &n, ERR));
    return n;
}

static qv_cache_info
info_of(const char *dir)
{
    qv_cache_info info = cache_info(open_cache(dir));
    info.made_by = NULL;
    return info;
}

/* Checks that all numbered keys except those in [from, to) are there with their bytes. */
static void
check_keys(const char *dir, int from, int to)
{
    qv_cache *c = open_cache(dir);
    for (int k = 0; k < N; k++) {
        qv_cache_item item = find_item(c, key_name(k));
        if (k >= from && k < to)
            assert_null(item.key);
        else
            check_item(c, &item, rows_of(k));
    }
    check_all(c);
    validate_parts(dir);
}

/* ---- what goes ------------------------------------------------------------------------------- */

struct records {
    char texts[32][600];
    int n;
};

static int
by_text(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* The valid records and their seal times, sorted by text. */
static struct records
records_of(const char *dir)
{
    struct records all = { .n = 0 };
    qv_cache *c = open_cache(dir);
    const qv_cache_info info = cache_info(c);
    for (int64_t i = 0; i < info.n_ok + info.n_failed; i++) {
        char *text = NULL;
        qv_cache_item item;
        assert_ok(qv_cache_at(c, i, &item, ERR));
        assert_ok(qv_cache_record(c, i, &text, ERR));
        snprintf(all.texts[all.n++], sizeof all.texts[0], "%s of %" PRId64, text,
                 c->index.parts[item.part_index].head.sealed_ns);
        free(text);
    }
    qsort(all.texts, (size_t)all.n, sizeof all.texts[0], by_text);
    return all;
}

TEST(test_superseded)
{
    const char *dir = make_cache();
    const qv_cache_info before = info_of(dir);
    const struct records records = records_of(dir);
    qv_cache_prune_options o = { .superseded = true, .dry_run = true };
    assert_int_equal(before.n_superseded, SUPERSEDED);
    assert_true(before.superseded_bytes > 0 && before.n_parts > 3);
    const qv_cache_pruned would = prune(dir, &o);
    assert_int_equal(info_of(dir).part_bytes, before.part_bytes);
    o.dry_run = false;
    const qv_cache_pruned n = prune(dir, &o);
    assert_memory_equal(&n, &would, sizeof n);
    assert_int_equal(n.records, SUPERSEDED);
    assert_int_equal(n.keys + n.missing + n.broken + n.left, 0);
    assert_true(n.rewritten > 0);
    const qv_cache_info after = info_of(dir);
    assert_int_equal(after.n_superseded, 0);
    assert_int_equal(after.superseded_bytes, 0);
    assert_int_equal(after.bytes, before.bytes);
    assert_int_equal(after.n_ok, before.n_ok);
    assert_int_equal(after.n_failed, before.n_failed);
    assert_int_equal(after.sealed, before.sealed); /* Later records still come after it. */
    assert_int_equal((int64_t)(before.part_bytes - after.part_bytes), n.freed);
    const struct records same = records_of(dir);
    assert_memory_equal(&same, &records, sizeof same);
    check_keys(dir, 0, 0);
    assert_int_equal(temp_entries(dir), after.n_parts + 1);
    const qv_cache_pruned again = prune(dir, &o);
    assert_int_equal(again.records + again.rewritten + again.removed + again.freed, 0);
}

/* Makes one of two keys that have the same XXH3-64: what one puts into two places of its sums, the
 * other puts there the other way around. */
static void
make_twin(char key[1001], bool second)
{
    memset(key, 'k', 1000);
    key[1000] = 0;
    memcpy(key + 128, second ? "aaaOa```" : "aaaO````", 8);
    memcpy(key + 576, second ? "7ei-````" : "7ei-a```", 8);
}

/* Keys whose hashes are the same are two keys: in one part, when others of it go, and when one of
 * them goes. */
TEST(test_keys_of_one_hash)
{
    const char *dir = temp_path("twins");
    char twins[2][1001];
    const char *other = "other", *first = twins[0];
    qv_cache_writer *w = open_writer(dir, &tiny, 1 << 20);
    for (int i = 0; i < 2; i++)
        make_twin(twins[i], i == 1);
    assert_true(strcmp(twins[0], twins[1]) != 0);
    assert_int_equal(qv_cache_key_hash(twins[0]), qv_cache_key_hash(twins[1]));
    for (int i = 0; i < 2; i++)
        write_key(w, &tiny, twins[i], 2 + i);
    write_key(w, &tiny, other, 1);
    close_writer(&w);
    assert_int_equal(info_of(dir).n_parts, 1);
    const qv_cache_prune_options drops[] = { { .drop = &other, .n_drop = 1 },
                                             { .drop = &first, .n_drop = 1 } };
    for (int i = 0; i < 2; i++) {
        assert_int_equal(prune(dir, &drops[i]).records, 1);
        qv_cache *c = open_cache(dir);
        assert_int_equal(cache_info(c).n_ok, 2 - i);
        for (int j = i; j < 2; j++) {
            qv_cache_item item = find_item(c, twins[j]);
            check_item(c, &item, 2 + j);
        }
        check_all(c);
        validate_parts(dir);
        close_cache(&c);
    }
}

/* If two records were sealed at the same time, the last one by name counts, before and after a
 * prune. */
TEST(test_keeps_order)
{
    const char *dir = make_cache();
    char path[600], copy[700];
    qv_cache_prune_options o = { .superseded = true };
    const char *lone = temp_path("lone");
    qv_cache_writer *w = open_writer(lone, &tiny, 0);
    write_source(w, &tiny, "twin", &some_source, QV_OK);
    write_source(w, &tiny, "stays", &some_source, QV_OK);
    close_writer(&w);
    struct file f = read_part(lone, path);
    snprintf(copy, sizeof copy, "%s/part-00000-of-00001-zz-00000000-000000.safetensors", dir);
    put_file(copy, f.data, f.bytes);
    snprintf(copy, sizeof copy, "%s/part-00000-of-00001-zz-00000000-000001.safetensors", dir);
    put_file(copy, f.data, f.bytes);
    const char *keys[] = { "stays" };
    o = (qv_cache_prune_options){ .drop = keys, .n_drop = 1 };
    assert_int_equal(prune(dir, &o).rewritten, 2);
    qv_cache *c = open_cache(dir);
    qv_cache_item item;
    item = find_item(c, "twin");
    assert_non_null(item.key);
    assert_string_equal(item.part, "part-00000-of-00001-zz-00000000-000001.1.safetensors");
    o = (qv_cache_prune_options){ .superseded = true };
    prune(dir, &o);
    c = open_cache(dir);
    item = find_item(c, "twin");
    assert_string_equal(item.part, "part-00000-of-00001-zz-00000000-000001.1.safetensors");
    check_keys(dir, 0, 0);
}

/* A key is dropped from all parts, so no older record of it comes back. Other keys are left
 * alone. */
TEST(test_drop)
{
    const char *dir = make_cache();
    const char *keys[] = { key_name(3), "nobody", key_name(3) };
    const qv_cache_prune_options o = { .drop = keys, .n_drop = 2 };
    const qv_cache_pruned n = prune(dir, &o);
    assert_int_equal(n.keys, 1);
    assert_int_equal(n.missing, 1);
    assert_int_equal(n.records, 2);
    check_keys(dir, 3, 4);
    assert_int_equal(info_of(dir).n_superseded, SUPERSEDED - 1);
    /* It may be made again. */
    qv_cache_writer *w = go_on_writing(dir, NULL);
    write_source(w, &tiny, key_name(3), &newer, QV_OK);
    close_writer(&w);
    check_keys(dir, 0, 0);
}

TEST(test_keep)
{
    const char *dir = make_cache();
    const char *keys[N + 1];
    qv_cache_pruned n;
    for (int k = 0; k < 5; k++)
        keys[k] = key_name(k);
    keys[5] = "not there";
    qv_cache_prune_options o = { .superseded = true, .keep = keys, .n_keep = 6, .dry_run = true };
    assert_int_equal(prune(dir, &o).keys, N - 5 + 3);
    o.dry_run = false;
    n = prune(dir, &o);
    assert_int_equal(n.keys, N - 5 + 3);
    assert_true(n.removed > 0);
    check_keys(dir, 5, N);
    assert_int_equal(info_of(dir).n_failed, 0);
    o.n_keep = 0;
    expect_error(QV_EINVAL, "no key would be kept", qv_cache_prune(dir, &o, &n, ERR));
    check_keys(dir, 5, N);
}

/* ---- unusable parts --------------------------------------------------------------------- */

static int n_told;
static char told[4096];

static void
tell(void *user, const char *words)
{
    n_told++;
    snprintf(told + strlen(told), sizeof told - strlen(told), "%s\n", words);
}

static void
copy_part(const char *dir, const struct file *f, const char *name, size_t bytes, const char *from,
          const char *to)
{
    char path[700];
    char *data = test_alloc(f->bytes);
    memcpy(data, f->data, f->bytes);
    char *at = from ? memmem(data, f->bytes, from, strlen(from)) : NULL;
    assert_true(!from || at);
    if (from)
        memcpy(at, to, strlen(to));
    snprintf(path, sizeof path, "%s/part-%s.safetensors", dir, name);
    put_file(path, data, bytes);
}

/* A part that was cut is removed. A part that another build or another cache may be able to read
 * stays and is reported, and so does anything that is not a file. */
TEST(test_damage)
{
    const char *dir = make_cache();
    const char *lone = temp_path("lone");
    char path[700];
    qv_cache_writer *w = open_writer(lone, &tiny, 0);
    write_source(w, &tiny, "alone", &some_source, QV_OK);
    write_source(w, &tiny, key_name(0), &some_source, QV_OK);
    close_writer(&w);
    struct file f = read_part(lone, path);
    copy_part(dir, &f, "cut-1", f.bytes - 5, NULL, NULL);
    copy_part(dir, &f, "cut-2", 100, NULL, NULL);
    copy_part(dir, &f, "empty", 0, NULL, NULL);
    put_number(&f, header_bytes(&f) + 16, 4, 3);
    copy_part(dir, &f, "version", f.bytes, "\"version\":\"2\"", "\"version\":\"3\"");
    put_number(&f, header_bytes(&f) + 16, 4, 2);
    put_number(&f, header_bytes(&f) + 112, 4, qv_index_dtype(QV_F16));
    mend_index(&f);
    copy_part(dir, &f, "dtype", f.bytes, NULL, NULL);
    snprintf(path, sizeof path, "%s/part-a-folder.safetensors", dir);
    assert_int_equal(mkdir(path, 0777), 0);
    snprintf(path, sizeof path, "%s/part-a-link.safetensors", dir);
    assert_int_equal(symlink("/nowhere", path), 0);
    const qv_cache_info before = info_of(dir);
    assert_int_equal(before.n_damaged, 7);
    assert_true(before.damaged_bytes > 3000);
    const qv_cache_prune_options o = { .superseded = true, .told = tell };
    n_told = 0;
    *told = 0;
    const qv_cache_pruned n = prune(dir, &o);
    assert_int_equal(n.broken, 3);
    assert_int_equal(n.left, 4);
    assert_int_equal(n_told, 4);
    assert_non_null(strstr(told, "part-version.safetensors: left as it is: "));
    assert_non_null(strstr(told, "its version is \"3\""));
    assert_non_null(strstr(told, "a regular file is needed"));
    assert_int_equal(info_of(dir).n_damaged, 4);
    assert_int_equal(info_of(dir).n_superseded, 0);
    assert_int_equal(unlink(path), 0);
    snprintf(path, sizeof path, "%s/part-a-folder.safetensors", dir);
    assert_int_equal(rmdir(path), 0);
    check_keys(dir, 0, 0);
}

/* A part that another version may have written is not broken: a prune leaves and reports it. Only
 * parts that no version writes, or that contradict themselves, are removed. */
TEST(test_other_versions)
{
    static const struct {
        const char *from, *to; /* texts of the header */
        bool has_index, is_broken;
        size_t at; /* of a byte in the index; 0: none */
        int value;
    } cases[] = {
        { "\"version\":\"2\"", "\"version\":\"1\"", false, false, 0, 0 },
        { "\"version\":\"2\"", "\"version\":\"3\"", false, false, 0, 0 },
        { "\"version\":\"2\"", "\"wersion\":\"2\"", false, false, 0, 0 },
        { "\"format\":\"qwenvit-cache\"", "\"format\":\"pt\"           ", false, false, 0, 0 },
        { "\"format\":", "\"formal\":", false, false, 0, 0 },
        { "\"__metadata__\"", "\"__metatada__\"", false, false, 0, 0 },
        { NULL, NULL, true, false, 124, 1 }, /* fields that this version does not know */
        { NULL, NULL, true, false, 127, 1 },
        { NULL, NULL, true, false, 128 + 92, 1 },
        { NULL, NULL, true, false, 128 + 127, 1 },
        { NULL, NULL, true, false, 128 + 90, 100 }, /* a status, and a kind of clip */
        { NULL, NULL, true, false, 128 + 91, 2 },
        { NULL, NULL, true, false, 104, 9 }, /* tokens of another cache */
        { NULL, NULL, true, false, 112, 'X' },
        { NULL, NULL, true, false, 116, 1 },
        { NULL, NULL, true, false, 120, 1 },
        { NULL, NULL, false, true, 0, 0 },
        { "{\"__metadata__\"", "{{__metadata__\"", false, true, 0, 0 },
        { NULL, NULL, true, true, 103, 0x80 }, /* sealed, and tokens, at the end of time */
        { NULL, NULL, true, true, 128 + 7, 0x80 },
    };
    const char *dir = make_cache(), *lone = temp_path("lone");
    char path[700];
    qv_cache_writer *w = open_writer(lone, &tiny, 0);
    write_source(w, &tiny, "alone", &some_source, QV_OK);
    close_writer(&w);
    struct file f = read_part(lone, path);
    const size_t index = header_bytes(&f);
    const qv_cache_prune_options o = { .superseded = true, .told = tell };
    prune(dir, &o);
    snprintf(path, sizeof path, "%s/part-variant.safetensors", dir);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct file g = { test_alloc(f.bytes), f.bytes };
        memcpy(g.data, f.data, f.bytes);
        if (cases[i].at)
            g.data[index + cases[i].at] = (char)cases[i].value;
        mend_index(&g);
        if (!cases[i].has_index)
            g.data[index] ^= 1;
        copy_part(dir, &g, "variant", g.bytes, cases[i].from, cases[i].to);
        *told = n_told = 0;
        const qv_cache_pruned n = prune(dir, &o);
        if (n.broken != cases[i].is_broken || n.left != !cases[i].is_broken ||
            access(path, F_OK) != (cases[i].is_broken ? -1 : 0))
            fail_msg("case %zu: %d broken, %d left: %s", i, (int)n.broken, (int)n.left, told);
        if (!cases[i].is_broken)
            assert_non_null(strstr(told, "part-variant.safetensors: left as it is: "));
    }
    check_keys(dir, 0, 0);
}

/* Tests whether damage is recognised as harmless: all keys of the part are elsewhere, of the same
 * source or sealed later. */
TEST(test_damage_is_superseded)
{
    static const struct {
        const char *name, *key; /* The key of the part that is cut. */
        bool is_newer, later, is;
    } cases[] = {
        { "the same source, sealed later", "clips/1.mp4", false, true, true },
        { "the same source, sealed before", "clips/1.mp4", false, false, true },
        { "a newer source, sealed before", "clips/1.mp4", true, false, true },
        { "a newer source", "clips/1.mp4", true, true, false },
        { "a key that is nowhere else", "another", false, false, false },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[700], dir_name[40], other_name[40];
        snprintf(dir_name, sizeof dir_name, "cache%zu", i);
        snprintf(other_name, sizeof other_name, "other%zu", i);
        const char *dir = temp_path(dir_name), *other = temp_path(other_name);
        const char *order[2] = { cases[i].later ? dir : other, cases[i].later ? other : dir };
        for (int which = 0; which < 2; which++) {
            const bool here = order[which] == dir;
            qv_cache_writer *w = open_writer(order[which], &tiny, 0);
            write_source(w, &tiny, here ? "clips/1.mp4" : cases[i].key,
                         !here && cases[i].is_newer ? &newer : &some_source, QV_OK);
            close_writer(&w);
        }
        struct file f = read_part(other, path);
        copy_part(dir, &f, "cut", f.bytes - 1, NULL, NULL);
        qv_cache *c = open_cache(dir);
        bool superseded = !cases[i].is;
        assert_non_null(qv_cache_damage(c, 0, &superseded));
        if (superseded != cases[i].is)
            fail_msg("%s", cases[i].name);
        assert_null(qv_cache_damage(c, 1, &superseded));
        assert_false(superseded);
        copy_part(dir, &f, "cut", 200, NULL, NULL); /* It is not known which keys it has. */
        c = open_cache(dir);
        superseded = true;
        assert_non_null(qv_cache_damage(c, 0, &superseded));
        assert_false(superseded);
    }
}

/* Whatever bytes of a part are changed, pruning ends and the other parts keep their keys. */
TEST(test_hostile)
{
    const char *dir = make_cache(), *lone = temp_path("lone");
    char path[600], copy[700];
    qv_cache_writer *w = open_writer(lone, &tiny, 0);
    for (int k = 0; k < 4; k++) /* They were sealed in the past, so whatever is read from them does
                                 * not count. */
        write_source(w, &tiny, key_name(k), &some_source, QV_OK);
    write_source(w, &tiny, "own", &some_source, QV_OK);
    close_writer(&w);
    struct file f = read_part(lone, path);
    const size_t index = header_bytes(&f), records = records_at(&f), used = header_used(&f);
    const char *sealed = memmem(f.data, f.bytes, "\"sealed\":\"", 10);
    put_number(&f, index + 96, 8, strtoull(sealed + 10, NULL, 10) - 1000000000000);
    mend_index(&f);
    snprintf(copy, sizeof copy, "%s/part-hostile.safetensors", dir);
    const char *drop[] = { "own" };
    qv_cache_prune_options o = { .superseded = true, .drop = drop };
    uint64_t x = 1;
    for (int i = 0; i < 400; i++) {
        qv_error err = { 0 };
        qv_cache_pruned n;
        char saved[4], checksum[8];
        x = x * 6364136223846793005u + 1442695040888963407u;
        /* a third in the header, which leads to the index; two in index, keys and records, with a
         * checksum that is right every other time */
        const size_t from = i % 3 ? index : 0, until = i % 3 ? front_bytes(&f) : used;
        char *there = f.data + from + (x >> 33) % (until - from - 4);
        memcpy(checksum, f.data + index + 8, 8);
        memcpy(saved, there, 4);
        for (int b = 0; b < 1 + i % 4; b++)
            there[b] = i % 5 ? (char)(x >> (8 * b)) : (char)(there[b] + 1);
        if (i % 2 && i % 3 && there < f.data + records)
            put_number(&f, index + 8, 8,
                       qv_index_xxh3((unsigned char *)f.data + index, records - index));
        put_file(copy, f.data, i % 7 ? f.bytes : f.bytes - (x >> 40) % 600);
        memcpy(there, saved, 4);
        memcpy(f.data + index + 8, checksum, 8);
        o.n_drop = (size_t)i % 2;
        const qv_status s = qv_cache_prune(dir, &o, &n, &err);
        if (s && (s != QV_EIO || !o.n_drop || !strstr(err.text, "no more keys are removed")))
            fail_msg("%d: %s", i, err.text);
        char name[80];
        for (int count = 0; count < 3; count++) {
            snprintf(name, sizeof name, "%s/part-hostile%.*s.safetensors", dir, count ? 2 : 0,
                     count == 1 ? ".1" : ".2");
            unlink(name);
        }
        if (i % 20 == 0)
            check_keys(dir, 0, 0);
    }
    check_keys(dir, 0, 0);
}

/* ---- who has it ------------------------------------------------------------------------------ */

TEST(test_locks)
{
    const char *dir = make_cache();
    char path[600];
    qv_cache_pruned n;
    qv_cache_prune_options o = { .superseded = true };
    qv_cache_writer *w = go_on_writing(dir, NULL), *second = go_on_writing(dir, NULL);
    const int entries = temp_entries(dir);
    expect_error(QV_ESTATE, "another process is adding", qv_cache_prune(dir, &o, &n, ERR));
    close_writer(&w);
    expect_error(QV_ESTATE, "another process is adding", qv_cache_prune(dir, &o, &n, ERR));
    o.dry_run = true;
    assert_int_equal(prune(dir, &o).records, SUPERSEDED);
    o.dry_run = false;
    close_writer(&second);
    assert_int_equal(temp_entries(dir), entries);
    /* Another process prunes. */
    snprintf(path, sizeof path, "%s/qwenvit-cache.json", dir);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
    const qv_cache_writer_options wo = { .layout = tiny };
    expect_error(QV_ESTATE, "is being pruned", qv_cache_writer_open(dir, &wo, &w, ERR));
    expect_error(QV_ESTATE, "or pruning it", qv_cache_prune(dir, &o, &n, ERR));
    o.no_lock = true;
    o.dry_run = true;
    assert_int_equal(prune(dir, &o).records, SUPERSEDED);
    close(fd);
    o = (qv_cache_prune_options){ .superseded = true };
    assert_int_equal(prune(dir, &o).records, SUPERSEDED);
    w = go_on_writing(dir, NULL); /* The lock is free again. */
    close_writer(&w);
    check_keys(dir, 0, 0);
}

/* test_null.c has the other wrong calls. */
TEST(what_is_no_cache_is_not_pruned)
{
    qv_cache_pruned n;
    const qv_cache_prune_options o = { .superseded = true };
    const char *dir = temp_path("none");
    expect_error(QV_EIO, ": not a cache: ", qv_cache_prune(dir, &o, &n, ERR));
    assert_int_not_equal(access(dir, F_OK), 0);
}

static int n_asked;

static bool
stop_at(void *user, int64_t done, int64_t n)
{
    assert_true(done <= n);
    return ++n_asked != *(int *)user;
}

/* The caller may stop a prune at any moment. No part is then half written, and another prune
 * continues from there. */
TEST(test_stopped)
{
    const char *dir = make_cache();
    const qv_cache_info before = info_of(dir);
    bool stopped = true;
    for (int at = 1; stopped && at < 200; at++) {
        qv_cache_prune_options o = { .superseded = true, .go_on = stop_at, .user = &at };
        n_asked = 0;
        stopped = prune(dir, &o).stopped;
        check_keys(dir, 0, 0);
        const qv_cache_info now = info_of(dir);
        assert_int_equal(now.n_ok, before.n_ok);
        assert_int_equal(temp_entries(dir), now.n_parts + 1);
    }
    assert_false(stopped);
    assert_int_equal(info_of(dir).n_superseded, 0);
}

/* ---- readers --------------------------------------------------------------------------------- */

/* A reader keeps the items that it holds. Other items are found at their present place, through
 * several prunes, and removed ones are reported. */
TEST(test_readers)
{
    const char *dir = make_cache();
    qv_cache *c = open_cache(dir);
    qv_cache_item held, item;
    qv_error err = { 0 };
    char *record = NULL;
    assert_ok(qv_cache_find(c, key_name(0), &held, ERR));
    assert_ok(qv_cache_hold(c, &held, ERR));
    const char *drop[] = { "clips/9.mp4", "clips/8.mp4", "clips/7.mp4" };
    const char *more[] = { "clips/6.mp4", "clips/5.mp4", "clips/4.mp4" };
    for (int round = 0; round < 3; round++) { /* The parts change in each round. */
        const qv_cache_prune_options o = { .superseded = true, .drop = drop + round, .n_drop = 1 };
        prune(dir, &o);
        const qv_cache_prune_options again = { .drop = more + round, .n_drop = 1 };
        if (round)
            prune(dir, &again);
        check_held(c, &held, rows_of(0));
        for (int k = 0; k < 4; k++) {
            assert_ok(qv_cache_find(c, key_name(k), &item, ERR));
            check_item(c, &item, rows_of(k));
            assert_ok(qv_cache_verify(c, item.index, ERR) ||
                      qv_cache_record(c, item.index, &record, ERR));
            assert_non_null(strstr(record, key_name(k)));
            free(record);
        }
    }
    /* Two items at once, one of them twice, in parts that moved. */
    qv_cache_item twice;
    assert_ok(qv_cache_find(c, key_name(1), &item, ERR));
    twice = item;
    assert_ok(qv_cache_hold(c, &item, ERR));
    assert_ok(qv_cache_hold(c, &twice, ERR));
    qv_cache_release(c, &item);
    check_held(c, &twice, rows_of(1));
    qv_cache_release(c, &twice);
    qv_cache_release(c, &twice);
    qv_cache_release(c, &held);
    assert_ok(qv_cache_find(c, key_name(8), &item, ERR));
    expect_error(QV_EIO, "was removed|and the key with it|open the cache again",
                 qv_cache_hold(c, &item, ERR));
    assert_null(item.tokens);
    expect_error(QV_EIO, "was removed", qv_cache_verify(c, item.index, ERR));
    assert_int_equal(qv_cache_record(c, item.index, &record, &err), QV_EIO);
}

/* A key that was made again has different tokens from the reader's item. */
TEST(test_made_again)
{
    const char *dir = make_cache();
    qv_cache *c = open_cache(dir);
    qv_cache_item item = find_item(c, key_name(5));
    qv_cache_writer *w = go_on_writing(dir, NULL);
    write_key(w, &tiny, key_name(5), 2);
    close_writer(&w);
    const qv_cache_prune_options o = { .superseded = true };
    prune(dir, &o);
    expect_error(QV_EIO, "the key was encoded again", qv_cache_hold(c, &item, ERR));
}

/* ---- sources --------------------------------------------------------------------------------- */

TEST(test_trust)
{
    static const struct {
        const char *path;
        int64_t bytes, mtime_ns;
        const char *options;
        qv_cache_state nothing, times, keys;
    } cases[] = {
#define DONE QV_CACHE_DONE
#define CHANGED QV_CACHE_CHANGED
#define GONE QV_CACHE_SOURCE_GONE
        { "clip.mp4", 1000, 2000, NULL, DONE, DONE, DONE },
        { "clip.mp4", 1000, 2001, NULL, CHANGED, DONE, DONE },
        { "other.mp4", 1000, 2000, NULL, CHANGED, CHANGED, DONE },
        { "other.mp4", 1000, 2001, NULL, CHANGED, CHANGED, DONE },
        { "clip.mp4", 1001, 2000, NULL, CHANGED, CHANGED, CHANGED },
        { "clip.mp4", 1000, 2000, "{}", CHANGED, CHANGED, CHANGED },
        { "clip.mp4", 0, 0, NULL, GONE, GONE, GONE },
        { "other.mp4", 0, 0, NULL, GONE, GONE, GONE },
        { "clip.mp4", 0, 0, "{}", CHANGED, CHANGED, CHANGED },
    };
    const char *dir = make_cache();
    qv_cache *c = open_cache(dir);
    EACH (one, cases) {
        const qv_cache_source s = { .path = one->path,
                                    .bytes = one->bytes,
                                    .mtime_ns = one->mtime_ns,
                                    .options = one->options };
        const qv_cache_state wanted[] = { one->nothing, one->times, one->keys };
        for (int t = 0; t < 3; t++)
            assert_int_equal(qv_cache_compare(c, key_name(0), &s, (qv_cache_trust)t), wanted[t]);
        assert_int_equal(qv_cache_compare(c, key_name(0), &s, QV_CACHE_TRUST_NOTHING), wanted[0]);
    }
    /* A clip that failed has no tokens that could count. */
    const qv_cache_source gone = { .path = "clip.mp4" };
    assert_int_equal(qv_cache_compare(c, "bad", &gone, QV_CACHE_TRUST_NOTHING), CHANGED);
}

/* Options for all clips and for one clip. Asking for what the model does anyway counts as asking
 * for nothing. */
static const char made_by[] =
    "{\"model_type\":\"x\",\"preprocessing\":{\"image\":{\"min_pixels\":1,\"max_pixels\":500},"
    "\"video\":{\"min_pixels\":1,\"max_pixels\":900,\"fps\":2.0,\"min_frames\":4,\"max_frames\":"
    "768},"
    "\"options\":{\"like\":\"%s\",\"fps\":%s,\"num_frames\":0,\"min_frames\":%d,\"max_frames\":%d,"
    "\"min_pixels\":%d,\"max_pixels\":%d}}}";

TEST(test_resolved)
{
    static const struct {
        const char *like, *fps;
        int min_frames, max_frames, min_pixels, max_pixels;
        bool same;
    } runs[] = {
        { "transformers", "0.0", 0, 0, 0, 0, true },
        { "transformers", "2.0", 0, 0, 0, 0, true },
        { "transformers", "2.0", 4, 768, 1, 0, true },
        { "transformers", "1.0", 0, 0, 0, 0, false },
        { "transformers", "0.0", 0, 767, 0, 0, false },
        { "transformers", "0.0", 0, 0, 0, 900, false }, /* Images have another default. */
        { "qwen-vl-utils", "0.0", 0, 0, 0, 0, false },
    };
    const char *dir = temp_path("cache");
    char text[600];
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        qv_error err = { 0 };
        qv_cache_writer *w = NULL;
        snprintf(text, sizeof text, made_by, runs[i].like, runs[i].fps, runs[i].min_frames,
                 runs[i].max_frames, runs[i].min_pixels, runs[i].max_pixels);
        const qv_cache_writer_options o = { .layout = tiny, .made_by = text };
        const qv_status s = qv_cache_writer_open(dir, &o, &w, &err);
        if (s != (runs[i].same ? QV_OK : QV_EFORMAT))
            fail_msg("run %zu: %s", i, err.text);
        if (!s && !i) {
            const qv_cache_source asks = {
                .path = "a",
                .bytes = 1,
                .mtime_ns = 1,
                .options = "{\"fps\":2.000000,\"max_frames\":0,\"max_pixels\":900,\"offset\":0,"
                           "\"bytes\":0}"
            };
            write_source(w, &tiny, "asks", &asks, QV_OK);
            const qv_cache_source plain = { .path = "a", .bytes = 1, .mtime_ns = 1 };
            write_source(w, &tiny, "plain", &plain, QV_OK);
        }
        if (!s)
            close_writer(&w);
    }
    static const struct {
        const char *options;
        bool same;
    } asked[] = {
        { NULL, true },
        { "{\"fps\":2.000000,\"max_frames\":0,\"max_pixels\":0,\"offset\":0,\"bytes\":0}", true },
        { "{\"fps\":0.000000,\"max_frames\":768,\"max_pixels\":900,\"offset\":0,\"bytes\":0}",
          true },
        { "{\"fps\":2.500000,\"max_frames\":0,\"max_pixels\":0,\"offset\":0,\"bytes\":0}", false },
        { "{\"fps\":2.000000,\"max_frames\":0,\"max_pixels\":500,\"offset\":0,\"bytes\":0}",
          false },
        { "{\"fps\":2.000000,\"max_frames\":0,\"max_pixels\":0,\"offset\":7,\"bytes\":0}", false },
        { "{\"fps\": 2.000000,\"max_frames\":0,\"max_pixels\":0,\"offset\":0,\"bytes\":0}", false },
        { "{\"fps\":2.000000}", false },
    };
    qv_cache *c = open_cache(dir);
    EACH (one, asked)
        for (int k = 0; k < 2; k++) {
            const qv_cache_source s = {
                .path = "a", .bytes = 1, .mtime_ns = 1, .options = one->options
            };
            if (qv_cache_compare(c, k ? "asks" : "plain", &s, QV_CACHE_TRUST_NOTHING) !=
                (one->same ? QV_CACHE_DONE : QV_CACHE_CHANGED))
                fail_msg("%s of a key that %s", one->options ? one->options : "nothing",
                         k ? "asked" : "asked for nothing");
        }
}

/* Writes the key's record in a separate part: of an image, of a clip, or of a failure. */
static void
write_kind(const char *dir, const qv_cache_writer_options *o, const char *key, const char *options,
           char kind)
{
    const qv_cache_source source = { .path = "a", .bytes = 1, .mtime_ns = 1, .options = options };
    const qv_outcome image = { .is_image = true, .n_frames = 1, .grid_thw = { 1, 2, 2 } };
    const qv_cache_result done = { .outcome = &image };
    qv_cache_entry *e = NULL;
    qv_cache_writer *w = NULL;
    assert_ok(qv_cache_writer_open(dir, o, &w, ERR));
    if (kind != 'i') {
        write_source(w, &tiny, key, &source, kind == 'f' ? QV_EFORMAT : QV_OK);
    } else {
        assert_ok(qv_cache_begin(w, key, &source, 1, &e, ERR));
        put_rows(e, &tiny, key, 0, 1);
        assert_ok(qv_cache_finish(&e, &done, ERR));
    }
    close_writer(&w);
}

/* A failure's record does not show whether it was a clip or an image, whose defaults differ. A line
 * that sets one kind's default does not match the failure; any other line does. */
TEST(test_failed_kind)
{
    static const char images[] = "{\"fps\":0.000000,\"max_frames\":0,\"max_pixels\":500,\"offset\":"
                                 "0,\"bytes\":0}",
                      clips[] = "{\"fps\":0.000000,\"max_frames\":0,\"max_pixels\":900,\"offset\":"
                                "0,\"bytes\":0}";
    static const struct {
        const char *before, *after; /* options of the tokens, and of the failure */
        char kind;
        bool stays;
    } cases[] = {
        { images, images, 'i', true }, { clips, clips, 'c', true },   { clips, clips, 'i', true },
        { images, images, 'c', true }, { NULL, NULL, 'i', true },     { NULL, clips, 'i', false },
        { clips, images, 'c', false }, { images, clips, 'i', false },
    };
    char text[600], key[2] = "a";
    snprintf(text, sizeof text, made_by, "transformers", "0.0", 0, 0, 0, 0);
    const qv_cache_writer_options o = { .layout = tiny, .made_by = text };
    const char *dir = temp_path("cache");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++, key[0]++) {
        write_kind(dir, &o, key, cases[i].before, cases[i].kind);
        write_kind(dir, &o, key, cases[i].after, 'f');
    }
    qv_cache *c = open_cache(dir);
    key[0] = 'a';
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++, key[0]++) {
        const qv_cache_source source = {
            .path = "a", .bytes = 1, .mtime_ns = 1, .options = cases[i].after
        };
        const qv_cache_state found = qv_cache_compare(c, key, &source, QV_CACHE_TRUST_NOTHING);
        if (found != (cases[i].stays ? QV_CACHE_DONE : QV_CACHE_FAILED))
            fail_msg("case %zu: %d", i, found);
    }
    check_all(c);
}

enum { PACK_ROWS = 64 };

/* The model's name and folder are recorded, but a run is never refused because of them. */
TEST(test_model_names)
{
    const char *dir = temp_path("cache"), *folder = temp_path("models--Org--Tower-4B");
    char below[600];
    assert_int_equal(mkdir(folder, 0777), 0);
    snprintf(below, sizeof below, "%s/snapshot", folder);
    assert_int_equal(mkdir(below, 0777), 0);
    const char *const folders[] = { below, tempdir, NULL };
    for (int i = 0; i < 3; i++) { /* The first one makes the cache. */
        qv_model_info model = {
            .model_type = "x", .dtype = QV_F32, .digest = "abc", .folder = folders[i]
        };
        const qv_clip_options clip = { .fps = 0 };
        char *by = NULL;
        assert_ok(qv_cache_made_by(&model, PACK_ROWS, "pairs", &clip, &by, ERR));
        qv_cache_writer *w = go_on_writing(dir, by);
        close_writer(&w);
        free(by);
        if (i)
            continue;
        strcpy(model.digest, "def");
        model.folder = tempdir;
        assert_ok(qv_cache_made_by(&model, PACK_ROWS, "pairs", &clip, &by, ERR));
        const qv_cache_writer_options o = { .layout = tiny, .made_by = by };
        expect_error(QV_EFORMAT,
                     "\"weights\" \"abc\"|the run has \"def\"|the cache's model is "
                     "\"Org/Tower-4B\"|/snapshot|the run's \"qv_test_",
                     qv_cache_writer_open(dir, &o, &w, ERR));
        free(by);
    }
    qv_cache *c = open_cache(dir);
    const qv_cache_info info = cache_info(c);
    assert_non_null(strstr(info.made_by, "\"model\":{\"name\":\"Org/Tower-4B\",\"folder\":\"/"));
}

/* ---- rates ----------------------------------------------------------------------------------- */

TEST(test_rate)
{
    const char *dir = temp_path("cache");
    qv_cache_rate rate;
    qv_cache_writer *w = go_on_writing(dir, NULL);
    write_key(w, &tiny, "a", 4);
    assert_ok(qv_cache_seal(w, ERR));
    qv_cache *c = open_cache(dir);
    assert_false(qv_cache_last_rate(c, &rate)); /* It is not known when it began. */
    usleep(20000);
    write_key(w, &tiny, "b", 5);
    write_source(w, &tiny, "c", &some_source, QV_EFORMAT);
    close_writer(&w);
    w = go_on_writing(dir, NULL); /* There is only one part of the other run. */
    write_key(w, &tiny, "d", 6);
    close_writer(&w);
    c = open_cache(dir);
    assert_true(qv_cache_last_rate(c, &rate));
    assert_int_equal(rate.clips, 2);
    assert_int_equal(rate.tokens, 5);
    assert_int_equal(rate.parts, 2);
    assert_true(rate.seconds >= 0.02 && rate.seconds < 30);
}

TEST_EACH(tempdir_make, tempdir_remove);
