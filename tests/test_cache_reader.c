/* SPDX-License-Identifier: MIT */
/* Tests reading caches with parts that are many, odd or gone. The parts are written here by hand
 * and have one key each. */
#include "test.h"

#include <pthread.h>
#include <sys/resource.h>

#include "cache/open.h"
#include "cache_tools.h"
#include "processes.h"

static const char description[] =
    "{\"format\":\"qwenvit-cache\",\"version\":\"2\",\"tokens\":{\"dtype\":\"f32\",\"width\":2,"
    "\"n_deepstack\":0,\"packed\":false}}";

enum { GRID_AND_TIMES = 32 };

static const char *
make_folder(void)
{
    static char dir[512];
    char path[600];
    snprintf(dir, sizeof dir, "%s", temp_path("cache"));
    assert_int_equal(mkdir(dir, 0777), 0);
    snprintf(path, sizeof path, "%s/qwenvit-cache.json", dir);
    put_file(path, description, sizeof description - 1);
    return dir;
}

static const char *
part_name(int i)
{
    static _Thread_local char name[64];
    snprintf(name, sizeof name, "part-00000-of-00001-host-%05d-0.safetensors", i);
    return name;
}

static const char *
part_path(const char *dir, int i)
{
    static _Thread_local char path[700];
    snprintf(path, sizeof path, "%s/%s", dir, part_name(i));
    return path;
}

/* Makes the part of KEYnnnnn, whose first token is nnnnn. Its header has no tensors, as opening
 * does not look at it. */
static struct file
make_part(int i)
{
    static _Thread_local char bytes[1024];
    struct file f = { bytes, 0 };
    struct qv_index_head h = { .magic = QV_INDEX_MAGIC,
                               .version = QV_INDEX_VERSION,
                               .row_bytes = QV_INDEX_ROW,
                               .header_bytes = 64,
                               .n_rows = 1,
                               .keys_bytes = 9,
                               .records_at = 64 + 2 * QV_INDEX_ROW + 64,
                               .records_bytes = 2,
                               .sealed_ns = 1000,
                               .width = 2,
                               .dtype = qv_index_dtype(QV_F32) };
    const float tokens[2] = { (float)i, 1 };
    const int64_t grid[3] = { 1, 2, 2 };
    struct qv_index_row r = { .n_rows = 1,
                              .n_times = 1,
                              .bytes = 7,
                              .sampled_fps = 2.5,
                              .xxh3 = 0x123456789abcdef,
                              .key_bytes = 8,
                              .record_bytes = 2 };
    r.tokens_at = qv_index_data_at(&h);
    r.small_at = h.small_at = r.tokens_at + 64;
    h.file_end = h.small_at + GRID_AND_TIMES;
    f.bytes = (size_t)h.file_end;
    memset(bytes, ' ', 64);
    memset(bytes + 64, 0, sizeof bytes - 64);
    put_number(&f, 0, 8, 56);
    memcpy(bytes + 8, "{}", 2);
    qv_index_store_head((unsigned char *)bytes + 64, &h);
    qv_index_store_row((unsigned char *)bytes + 64 + QV_INDEX_ROW, &r);
    snprintf(bytes + 64 + (size_t)2 * QV_INDEX_ROW, 64, "KEY%05d", i);
    memcpy(bytes + h.records_at, "{}", 2);
    memcpy(bytes + r.tokens_at, tokens, sizeof tokens);
    memcpy(bytes + r.small_at, grid, sizeof grid);
    mend_index(&f);
    return f;
}

/* Writes a part with `more` bytes after its data. */
static void
write_part(const char *dir, int i, size_t more)
{
    const struct file f = make_part(i);
    put_file(part_path(dir, i), f.data, f.bytes + more);
}

static const char *
key_of(int i)
{
    static _Thread_local char key[16];
    snprintf(key, sizeof key, "KEY%05d", i);
    return key;
}

static qv_cache *
open_as(const char *dir, size_t most_maps, size_t most_idle)
{
    const struct qv_cache_reading how = { .most_maps = most_maps, .most_idle = most_idle };
    qv_cache *c = NULL;
    assert_ok(qv_cache_open_as(dir, &how, &c, ERR));
    return c;
}

/* Holds a key and checks its token. */
static void
hold_key(const qv_cache *c, int i, qv_cache_item *item)
{
    assert_ok(qv_cache_find(c, key_of(i), item, ERR));
    assert_non_null(item->key);
    assert_ok(qv_cache_hold(c, item, ERR));
    assert_true(*(const float *)item->tokens == (float)i);
}

/* ---- many parts ------------------------------------------------------------------------------ */

#define PARTS "/part-00000-of-00001-host-"

/* Far more parts than the limit of open files or maps. */
TEST(test_many_parts)
{
    enum { N = 6000, HELD = 300 };
    const char *dir = make_folder();
    static qv_cache_item held[HELD];
    struct rlimit before, few;
    for (int i = 0; i < N; i++)
        write_part(dir, i, 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = (struct rlimit){ .rlim_cur = 256, .rlim_max = before.rlim_max };
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    qv_cache *c = open_as(dir, 400, 50);
    const qv_cache_info info = cache_info(c);
    assert_int_equal(info.n_ok, N);
    assert_int_equal(info.n_parts, N);
    for (int i = 0; i < HELD; i++)
        hold_key(c, i, &held[i]);
    assert_int_equal(count_maps(PARTS), HELD);
    for (int i = 0; i < N; i++) {
        qv_cache_item item;
        hold_key(c, i, &item);
        assert_int_equal(item.part_index, i);
        assert_string_equal(item.part, part_name(i));
        qv_cache_release(c, &item);
    }
    assert_true(count_maps(PARTS) <= HELD + 50);
    for (int i = 0; i < HELD; i++) { /* A held part was not dropped. */
        assert_true(*(const float *)held[i].tokens == (float)i);
        qv_cache_release(c, &held[i]);
    }
    assert_true(count_maps(PARTS) <= 50);
    qv_cache_close(&c);
    assert_int_equal(count_maps(PARTS), 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

/* Holding more than is allowed fails with an error and does not affect the held items. The part
 * that was released first is unmapped first. */
TEST(test_bounds)
{
    enum { MOST = 4 };
    const char *dir = make_folder();
    qv_cache_item items[MOST + 1], again;
    for (int i = 0; i <= MOST; i++)
        write_part(dir, i, 0);
    qv_cache *c = open_as(dir, MOST, 2);
    for (int i = 0; i < MOST; i++)
        hold_key(c, i, &items[i]);
    assert_ok(qv_cache_find(c, key_of(MOST), &items[MOST], ERR));
    expect_error(QV_ENOMEM, "-00004-|4 parts are in use|release",
                 qv_cache_hold(c, &items[MOST], ERR));
    assert_null(items[MOST].tokens);
    hold_key(c, 0, &again); /* A part that is mapped already takes no more room. */
    qv_cache_release(c, &items[0]);
    assert_true(*(const float *)again.tokens == 0);
    qv_cache_release(c, &again);
    qv_cache_release(c, &again); /* It has nothing to release any more. */
    for (int i = 1; i < MOST; i++)
        qv_cache_release(c, &items[i]);
    assert_int_equal(count_maps(PARTS), 2);
    /* 2 and 3 were released last, so their files are not needed any more. */
    for (int i = 0; i <= MOST; i++)
        assert_int_equal(unlink(part_path(dir, i)), 0);
    hold_key(c, 2, &items[2]);
    hold_key(c, 3, &items[3]);
    expect_error(QV_EIO, "-00001-|No such file", qv_cache_hold(c, &items[1], ERR));
    write_part(dir, 1, 8);
    expect_error(QV_EIO, "the file was changed", qv_cache_hold(c, &items[1], ERR));
    items[1].index = 77;
    expect_error(QV_EINVAL, "key 77 does not exist", qv_cache_hold(c, &items[1], ERR));
    qv_cache_close(&c);
}

/* Threads hold and release items of more parts than may stay mapped while idle. */
static const qv_cache *shared;

static void *
hold_many(void *user)
{
    qv_error err;
    uint64_t x = (uint64_t)(uintptr_t)user;
    for (int n = 0; n < 3000; n++) {
        qv_cache_item item;
        x = x * 6364136223846793005u + 1442695040888963407u;
        const int i = (int)(x >> 33) % 12;
        if (qv_cache_find(shared, key_of(i), &item, &err) || qv_cache_hold(shared, &item, &err) ||
            *(const float *)item.tokens != (float)i || item.grid_thw[1] != 2)
            return (void *)1;
        qv_cache_release(shared, &item);
    }
    return NULL;
}

TEST(test_threads)
{
    const char *dir = make_folder();
    pthread_t threads[4];
    for (int i = 0; i < 12; i++)
        write_part(dir, i, 0);
    qv_cache *c = open_as(dir, 5, 1);
    shared = c;
    for (int t = 0; t < 4; t++)
        assert_int_equal(pthread_create(&threads[t], NULL, hold_many, (void *)(intptr_t)(t + 1)),
                         0);
    for (int t = 0; t < 4; t++) {
        void *wrong = NULL;
        pthread_join(threads[t], &wrong);
        assert_null(wrong);
    }
    qv_cache_close(&c);
}

/* A cache opened with some of its parts has their keys, like the whole cache. */
TEST(test_some_parts)
{
    const char *dir = make_folder(), *const names[] = {
        "part-00000-of-00001-host-00003-0.safetensors",
        "part-00000-of-00001-host-00001-0.safetensors",
        "part-00000-of-00001-host-00009-0.safetensors"
    };
    const char *const odd[] = { "../part-00000-of-00001-host-00001-0.safetensors", "x" };
    for (int i = 0; i < 5; i++)
        write_part(dir, i, 0);
    struct qv_cache_reading how = { .parts = names, .n_parts = 3 };
    qv_cache *c = NULL;
    qv_error err = { 0 };
    qv_cache_item item;
    assert_ok(qv_cache_open_as(dir, &how, &c, ERR));
    const qv_cache_info info = cache_info(c);
    assert_int_equal(info.n_ok, 2);
    assert_int_equal(info.n_damaged, 1); /* The part is not there. */
    assert_string_equal(qv_cache_part(c, qv_cache_damaged_part(c, 0)), names[2]);
    hold_key(c, 3, &item);
    assert_true(item.sampled_fps == 2.5 && item.is_image == 0);
    qv_cache_close(&c);
    for (int i = 0; i < 2; i++) {
        how = (struct qv_cache_reading){ .parts = &odd[i], .n_parts = 1 };
        expect_failure(odd[i], QV_EINVAL, "is not the name of a part",
                       qv_cache_open_as(dir, &how, &c, &err), &err);
    }
}

/* Opens a folder as Python's refresh does: with what an earlier reading found. */
static qv_cache *
open_after(const char *dir, const qv_cache *before)
{
    const struct qv_cache_reading how = { .before = before };
    qv_cache *c = NULL;
    qv_error err = { 0 };
    if (qv_cache_open_as(dir, &how, &c, &err))
        fail_msg("%s", err.text);
    return c;
}

static int64_t
count_damaged(const qv_cache *c)
{
    const qv_cache_info info = cache_info(c);
    return info.n_damaged;
}

TEST(new_parts_alone_are_read)
{
    enum { FIRST = 3000, ALL = 6000 }; /* the hash table grows between the two */
    const char *dir = make_folder();
    for (int i = 0; i < FIRST; i++)
        write_part(dir, 2 * i, 0);
    qv_cache *first = open_cache(dir), *second = NULL;
    put_file(part_path(dir, 0), "", 0); /* which shows that it is not read again */
    for (int i = 0; i < ALL - FIRST; i++)
        write_part(dir, 2 * i + 1, 0);
    second = open_after(dir, first);
    assert_int_equal(count_damaged(second), 0);
    close_cache(&first);
    for (int i = 1; i < ALL; i++) {
        qv_cache_item item;
        hold_key(second, i, &item);
        assert_string_equal(item.part, part_name(i));
        qv_cache_release(second, &item);
    }
    /* A missing or unusable part makes the reader read the other parts again. */
    assert_int_equal(remove(part_path(dir, 1)), 0);
    qv_cache *third = open_after(dir, second);
    assert_int_equal(count_damaged(third), 1);
    write_part(dir, 0, 0);
    qv_cache *fourth = open_after(dir, third);
    const qv_cache_info info = cache_info(fourth);
    assert_int_equal(info.n_damaged, 0);
    assert_int_equal(info.n_ok, ALL - 1);
    qv_cache_close(&second);
    qv_cache_close(&third);
    qv_cache_close(&fourth);
}

/* ---- odd parts ------------------------------------------------------------------------------- */

/* Checks that the folder's other part can be read and that what is wrong with part 1 is
 * reported. */
static void
expect_one_damaged(const char *dir, const char *words)
{
    qv_cache_item item;
    qv_error err = { 0 };
    qv_cache *c = open_cache(dir);
    const qv_cache_info info = cache_info(c);
    if (info.n_damaged != 1 || info.n_ok != 1)
        fail_msg("%s: %lld damaged, %lld ok", words, (long long)info.n_damaged,
                 (long long)info.n_ok);
    snprintf(err.text, sizeof err.text, "%s", qv_cache_damage(c, 0, NULL));
    err.status = QV_EFORMAT;
    expect_failure(words, QV_EFORMAT, "-00001-", QV_EFORMAT, &err);
    expect_failure(words, QV_EFORMAT, words, QV_EFORMAT, &err);
    assert_int_equal(qv_cache_damaged_part(c, 0), 1);
    hold_key(c, 0, &item);
    close_cache(&c);
}

/* Every field of the index, as index.inc lists it. */
static const struct field {
    const char *name,
        *check; /* what must hold; "true": any value is right, for all that opening knows */
    bool is_of_head;
    int at, bytes;
} fields[] = {
#define BYTES_u8 1
#define BYTES_i8 1
#define BYTES_u16 2
#define BYTES_u32 4
#define BYTES_u64 8
#define BYTES_i64 8
#define BYTES_f64 8
#define BYTES_rest 1
#define QV_HEAD(kind, name, at, check, fault, words) { #name, #check, true, at, BYTES_##kind },
#define QV_ROW(kind, name, at, check, fault, words) { #name, #check, false, at, BYTES_##kind },
#include "cache/index.inc"
#undef QV_HEAD
#undef QV_ROW
};

static void
write_field(const char *dir, const struct field *field, uint64_t value, bool is_mended)
{
    const struct file f = make_part(1);
    const size_t at = 64 + (field->is_of_head ? 0 : QV_INDEX_ROW) + (size_t)field->at;
    put_number(&f, at, field->bytes, value);
    if (is_mended && (!field->is_of_head || strcmp(field->name, "xxh3") != 0))
        put_number(&f, 64 + 8, 8,
                   qv_index_xxh3((unsigned char *)f.data + 64, 2 * QV_INDEX_ROW + 64));
    put_file(part_path(dir, 1), f.data, f.bytes);
}

/* Each field is wrong once: by each of its bits the checksum shows it, and with a checksum that is
 * right every value that contradicts the rest does. The part costs only its own key. */
TEST(test_fields)
{
    static const uint64_t wrong[] = { UINT64_MAX, 0x7fffffffffffffff, 0x7fefffff, 0x55, 3 };
    const char *dir = make_folder();
    write_part(dir, 0, 0);
    EACH (c, fields) {
        const struct field *field = c;
        const struct file good = make_part(1);
        const uint64_t value =
            get_number(&good, 64 + (field->is_of_head ? 0 : QV_INDEX_ROW) + (size_t)field->at,
                       field->bytes);
        for (int bit = 0; bit < 8 * field->bytes; bit++) {
            write_field(dir, field, value ^ (uint64_t)1 << bit, false);
            expect_one_damaged(dir, "");
        }
        if (!strcmp(field->check, "true"))
            continue;
        const bool is_real = !strcmp(field->name, "sampled_fps"),
                   is_any = !strcmp(field->name, "xxh3");
        for (size_t n = 0; n < sizeof wrong / sizeof *wrong; n++) {
            /* some of these are small numbers, which a time or a status may be */
            if (n && (is_real || is_any || !strcmp(field->name, "sealed_ns")))
                break;
            if (n == 4 && (!strcmp(field->name, "status") || !strcmp(field->name, "n_rows")))
                break;
            write_field(dir, field, wrong[n], true);
            if (!strcmp(field->name, "is_image") && (uint8_t)wrong[n] == 0xff)
                continue; /* -1: the record does not say */
            if (is_any && !field->is_of_head)
                continue; /* a key that is ok may have any checksum */
            /* a wrong head may show elsewhere first: what it says too little of seems cut */
            expect_one_damaged(dir, field->is_of_head || !strcmp(field->name, "n_rows")
                                        ? ""
                                        : field->name);
        }
    }
}

/* Two rows; the second contradicts the first. */
TEST(test_two_rows)
{
    static const struct {
        const char *words;
        size_t at; /* of the second row */
        int bytes;
        uint64_t value;
    } cases[] = {
        { "key_at: two keys are equal", 1000, 1, '0' },
        { "tokens_at: tokens overlap", 0, 8, 512 },
        { "small_at: small tensors do not follow", 8, 8, 640 },
        { "key_at: a key does not follow", 76, 4, 0 },
        { "record_at: a record does not follow", 80, 4, 0 },
    };
    const char *dir = make_folder();
    const qv_cache_layout layout = { .dtype = QV_F32, .width = 2 };
    qv_cache_writer *w = open_writer(dir, &layout, 0);
    char path[600];
    write_key(w, &layout, "a0", 1);
    write_key(w, &layout, "a1", 1);
    close_writer(&w);
    struct file good = read_part(dir, path);
    write_part(dir, 0, 0);
    assert_int_equal(unlink(path), 0);
    EACH (c, cases) {
        struct file f = { test_alloc(good.bytes), good.bytes };
        memcpy(f.data, good.data, good.bytes);
        const size_t row = header_bytes(&f) + (size_t)2 * QV_INDEX_ROW;
        if (c->at == 1000)
            put_number(&f, row + QV_INDEX_ROW + 4, 1, c->value);
        else if (!c->at)
            put_number(&f, row, 8, get_number(&f, row - QV_INDEX_ROW, 8));
        else
            put_number(&f, row + c->at, c->bytes, c->value);
        mend_index(&f);
        put_file(part_path(dir, 1), f.data, f.bytes);
        expect_one_damaged(dir, c->words);
    }
}

/* Invalid keys, and a file that is longer or shorter than its index states. */
TEST(test_odd_parts)
{
    static const char *const keys[] = { "__Y00001", "KE\0Y0001", "\xffKEY0001", "KEY0000\xc3" };
    const char *dir = make_folder();
    write_part(dir, 0, 0);
    EACH (c, keys) {
        const struct file f = make_part(1);
        memcpy(f.data + 64 + (size_t)2 * QV_INDEX_ROW, *c, 8);
        mend_index(&f);
        put_file(part_path(dir, 1), f.data, f.bytes);
        expect_one_damaged(dir, "key_bytes: a key is empty");
    }
    write_part(dir, 1, 1);
    expect_one_damaged(dir, "bytes follow the data");
    const struct file f = make_part(1);
    put_file(part_path(dir, 1), f.data, f.bytes - 1);
    expect_one_damaged(dir, "cut short");
}

/* Entries with a part's name that are not files. The reader does not wait for any of them. */
TEST(test_no_files)
{
    const char *dir = make_folder();
    char path[700];
    snprintf(path, sizeof path, "%s", part_path(dir, 1));
    write_part(dir, 0, 0);
    alarm(60);
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_one_damaged(dir, "a FIFO; a regular file is needed");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    expect_one_damaged(dir, "a folder; a regular file is needed");
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(symlink("/dev/zero", path), 0);
    expect_one_damaged(dir, "a device or socket; a regular file is needed");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("nowhere", path), 0);
    expect_one_damaged(dir, "No such file");
    alarm(0);
}

/* A part that was sealed at the end of time counts as damaged, and leaves time for parts that come
 * after it. */
TEST(test_sealed_at_the_end_of_time)
{
    const char *dir = make_folder();
    const qv_cache_layout layout = { .dtype = QV_F32, .width = 2 };
    qv_cache_info info;
    write_part(dir, 0, 0);
    struct file f = make_part(1);
    put_number(&f, 64 + 96, 8, INT64_MAX);
    mend_index(&f);
    put_file(part_path(dir, 1), f.data, f.bytes);
    qv_cache *c = open_cache(dir);
    qv_cache_get_info(c, &info);
    assert_int_equal(info.sealed, 1000);
    close_cache(&c);
    for (int run = 0; run < 2; run++) {
        qv_cache_writer *w = NULL;
        const qv_cache_writer_options o = { .layout = layout, .after = info.sealed };
        assert_ok(qv_cache_writer_open(dir, &o, &w, ERR));
        write_key(w, &layout, key_name(run), 1);
        close_writer(&w);
        c = open_cache(dir);
        qv_cache_get_info(c, &info);
        assert_int_equal(info.n_damaged, 1);
        assert_int_equal(info.n_ok, 2 + run);
        close_cache(&c);
    }
    qv_cache_writer *w = NULL;
    const int64_t wrong[] = { INT64_MAX, INT64_MAX - 1000, -1 };
    for (int i = 0; i < 3; i++) {
        const qv_cache_writer_options o = { .layout = layout, .after = wrong[i] };
        expect_error(QV_EINVAL, "after is |100 years from now",
                     qv_cache_writer_open(dir, &o, &w, ERR));
    }
}

TEST_EACH(tempdir_make, tempdir_remove);
