/* SPDX-License-Identifier: MIT */
/* Tests reading caches with parts that are many, odd or gone. The parts are written here by hand
 * and have one key each. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <sys/resource.h>

#include "cache/open.h"
#include "cache_tools.h"

static const char description[] =
    "{\"format\":\"qwenvit-cache\",\"version\":\"1\",\"tokens\":{\"dtype\":\"f32\",\"width\":2,"
    "\"n_deepstack\":0,\"packed\":false}}";

/* The header of the part of KEYnnnnn, whose first token is nnnnn. */
static const char header_text[] =
    "{\"__metadata__\":{\"format\":\"qwenvit-cache\",\"version\":\"1\",\"sealed\":\"1000\","
    "\"records\":"
    "\"[{\\\"key\\\":\\\"KEY%05d\\\",\\\"path\\\":\\\"a.mp4\\\",\\\"bytes\\\":7,\\\"status\\\":"
    "\\\"ok\\\","
    "\\\"picture\\\":false,\\\"sampled_fps\\\":2.5,\\\"xxh3\\\":\\\"0123456789abcdef\\\"}]\"},"
    "\"KEY%05d/tokens\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]},"
    "\"KEY%05d/grid_thw\":{\"dtype\":\"I64\",\"shape\":[1,3],\"data_offsets\":[8,32]},"
    "\"KEY%05d/timestamps\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[32,40]}}";
enum { MOST_HEADER = 8192, DATA = 40 };

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

/* Writes a part. In its header `from` is replaced by `to`, and `more` bytes are added behind the
 * data. */
static void
write_part(const char *dir, int i, const char *from, const char *to, size_t more)
{
    static char text[MOST_HEADER], bytes[8 + MOST_HEADER + 64 + DATA + 64];
    const float tokens[2] = { (float)i, 1 };
    const int64_t grid[3] = { 1, 2, 2 };
    snprintf(text, sizeof text, header_text, i, i, i, i);
    memset(bytes, 0, sizeof bytes);
    size_t n = strlen(text);
    char *at = from ? strstr(text, from) : NULL;
    if (from) {
        assert_non_null(at);
        assert_true(n + strlen(to) < sizeof text);
        memmove(at + strlen(to), at + strlen(from), strlen(at) - strlen(from) + 1);
        memcpy(at, to, strlen(to));
        n = strlen(text);
    }
    memcpy(bytes + 8, text, n);
    while ((8 + n) % 64)
        bytes[8 + n++] = ' ';
    for (int b = 0; b < 8; b++)
        bytes[b] = (char)((uint64_t)n >> 8 * b & 0xff);
    memcpy(bytes + 8 + n, tokens, sizeof tokens);
    memcpy(bytes + 8 + n + 8, grid, sizeof grid);
    put_file(part_path(dir, i), bytes, 8 + n + DATA + more);
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
    qv_error err = { 0 };
    if (qv_cache_open_as(dir, &how, &c, &err))
        fail_msg("%s", err.text);
    return c;
}

/* Holds a key and checks its token. */
static void
hold_key(const qv_cache *c, int i, qv_cache_item *item)
{
    qv_error err = { 0 };
    assert_int_equal(qv_cache_find(c, key_of(i), item, &err), QV_OK);
    assert_non_null(item->key);
    if (qv_cache_hold(c, item, &err))
        fail_msg("%s", err.text);
    assert_true(*(const float *)item->tokens == (float)i);
}

/* ---- many parts ------------------------------------------------------------------------------ */

/* Returns how many of this process's maps are maps of parts. */
static size_t
count_maps(void)
{
    char line[1024];
    size_t n = 0;
    FILE *f = fopen("/proc/self/maps", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        n += strstr(line, "/part-00000-of-00001-host-") != NULL;
    fclose(f);
    return n;
}

/* There are far more parts than there may be files or maps. */
static void
test_many_parts(void **state)
{
    (void)state;
    enum { N = 6000, HELD = 300 };
    const char *dir = make_folder();
    static qv_cache_item held[HELD];
    struct rlimit before, few;
    for (int i = 0; i < N; i++)
        write_part(dir, i, NULL, NULL, 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = (struct rlimit){ .rlim_cur = 256, .rlim_max = before.rlim_max };
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    qv_cache *c = open_as(dir, 400, 50);
    qv_cache_info info;
    qv_cache_get_info(c, &info);
    assert_int_equal(info.n_ok, N);
    assert_int_equal(info.n_parts, N);
    for (int i = 0; i < HELD; i++)
        hold_key(c, i, &held[i]);
    assert_int_equal(count_maps(), HELD);
    for (int i = 0; i < N; i++) {
        qv_cache_item item;
        hold_key(c, i, &item);
        assert_int_equal(item.part_index, i);
        assert_string_equal(item.part, part_name(i));
        qv_cache_release(c, &item);
    }
    assert_true(count_maps() <= HELD + 50);
    for (int i = 0; i < HELD; i++) { /* A held part was not dropped. */
        assert_true(*(const float *)held[i].tokens == (float)i);
        qv_cache_release(c, &held[i]);
    }
    assert_true(count_maps() <= 50);
    qv_cache_close(&c);
    assert_int_equal(count_maps(), 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

/* Holding more than is allowed fails with an error text and costs nothing that is held. The part
 * that was released first makes room first. */
static void
test_bounds(void **state)
{
    (void)state;
    enum { MOST = 4 };
    const char *dir = make_folder();
    qv_cache_item items[MOST + 1], again;
    qv_error err = { 0 };
    for (int i = 0; i <= MOST; i++)
        write_part(dir, i, NULL, NULL, 0);
    qv_cache *c = open_as(dir, MOST, 2);
    for (int i = 0; i < MOST; i++)
        hold_key(c, i, &items[i]);
    assert_int_equal(qv_cache_find(c, key_of(MOST), &items[MOST], &err), QV_OK);
    expect_failure("held", QV_ENOMEM, "-00004-|4 parts are in use|release",
                   qv_cache_hold(c, &items[MOST], &err), &err);
    assert_null(items[MOST].tokens);
    hold_key(c, 0, &again); /* A part that is mapped already takes no more room. */
    qv_cache_release(c, &items[0]);
    assert_true(*(const float *)again.tokens == 0);
    qv_cache_release(c, &again);
    qv_cache_release(c, &again); /* It has nothing to release any more. */
    for (int i = 1; i < MOST; i++)
        qv_cache_release(c, &items[i]);
    assert_int_equal(count_maps(), 2);
    /* 2 and 3 were released last, so their files are not needed any more. */
    for (int i = 0; i <= MOST; i++)
        assert_int_equal(unlink(part_path(dir, i)), 0);
    hold_key(c, 2, &items[2]);
    hold_key(c, 3, &items[3]);
    expect_failure("gone", QV_EIO, "-00001-|No such file", qv_cache_hold(c, &items[1], &err), &err);
    write_part(dir, 1, NULL, NULL, 8);
    expect_failure("another", QV_EIO, "the file was changed", qv_cache_hold(c, &items[1], &err),
                   &err);
    items[1].index = 77;
    expect_failure("index", QV_EINVAL, "no key 77", qv_cache_hold(c, &items[1], &err), &err);
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

static void
test_threads(void **state)
{
    (void)state;
    const char *dir = make_folder();
    pthread_t threads[4];
    for (int i = 0; i < 12; i++)
        write_part(dir, i, NULL, NULL, 0);
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

/* A cache that is opened with some of its parts has their keys, as the whole cache has. */
static void
test_some_parts(void **state)
{
    (void)state;
    const char *dir = make_folder(), *const names[] = {
        "part-00000-of-00001-host-00003-0.safetensors",
        "part-00000-of-00001-host-00001-0.safetensors",
        "part-00000-of-00001-host-00009-0.safetensors"
    };
    const char *const odd[] = { "../part-00000-of-00001-host-00001-0.safetensors", "x" };
    for (int i = 0; i < 5; i++)
        write_part(dir, i, NULL, NULL, 0);
    struct qv_cache_reading how = { .parts = names, .n_parts = 3 };
    qv_cache *c = NULL;
    qv_error err = { 0 };
    qv_cache_info info;
    qv_cache_item item;
    assert_int_equal(qv_cache_open_as(dir, &how, &c, &err), QV_OK);
    qv_cache_get_info(c, &info);
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

/* ---- odd parts ------------------------------------------------------------------------------- */

#define Q "\\\""
#define GRID_AND_TIMES(grid, times)                                                                \
    "[" grid                                                                                       \
    "]},\"KEY00001/timestamps\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[" times "]"
static const struct {
    const char *from, *to;
    size_t more; /* Bytes behind the data. */
    const char *words;
} odd_parts[] = {
    { "[1,2]", "[]", 0, "a number is needed" },
    { "[1,2]", "[1,2,1]", 0, "one or two sizes" },
    { "\"1000\"", "\"Infinity\"", 0, "`sealed` is no number" },
    { "\"1000\"", "\"1e999\"", 0, "`sealed` is no number" },
    { "\"1000\"", "Infinity", 0, "a string is needed" },
    { "\"1000\"", "\"-1\"", 0, "`sealed` is no number" },
    { "\"1000\"", "\"9223372036854775807\"", 0, "100 years" },
    { Q "KEY00001" Q, "[" Q "KEY00001" Q "]", 0, "a string is needed" },
    { Q "path" Q, Q "key" Q, 0, "a field twice" },
    { GRID_AND_TIMES("8,32", "32,40"), GRID_AND_TIMES("0,24", "24,32"), 0, "holes or overlaps" },
    { "[0,8]", "[64,72]", 32, "holes or overlaps" },
    { "[32,40]", "[24,32]", 0, "do not lie behind its grid_thw" },
    { "[32,40]", "[32,40]", 1, "bytes follow the data" },
    { ",\\\"xxh3\\\":\\\"0123456789abcdef\\\"", "", 0, "has an xxh3" },
    { "0123456789abcdef", "0123456789abcdeg", 0, "16 hexadecimal digits" },
    { "false", "1", 0, "picture is true or false" },
    { "false", Q "false" Q, 0, "picture is true or false" },
    { "false", "null", 0, "picture is true or false" },
    { "2.5", "0", 0, "sampled_fps is no number above 0" },
    { "2.5", "-2", 0, "sampled_fps is no number above 0" },
    { "2.5", "NaN", 0, "a number is needed" },
    { "2.5", "1e999", 0, "sampled_fps is no number above 0" },
    { "2.5", Q "2" Q, 0, "a number is needed" },
    { "2.5", "true", 0, "a number is needed" },
    { "2.5", "1000000000000000000000000000000000000000", 0, "too long" },
};

/* Checks that the folder's other part can be read and that what is wrong with part 1 is
 * reported. */
static void
expect_one_damaged(const char *dir, const char *words)
{
    qv_cache_info info;
    qv_cache_item item;
    qv_error err = { 0 };
    qv_cache *c = open_cache(dir);
    qv_cache_get_info(c, &info);
    if (info.n_damaged != 1 || info.n_ok != 1)
        fail_msg("%s: %lld damaged, %lld ok", words, (long long)info.n_damaged,
                 (long long)info.n_ok);
    snprintf(err.text, sizeof err.text, "%s", qv_cache_damage(c, 0, NULL));
    err.status = QV_EFORMAT;
    expect_failure(words, QV_EFORMAT, "-00001-", QV_EFORMAT, &err);
    expect_failure(words, QV_EFORMAT, words, QV_EFORMAT, &err);
    assert_int_equal(qv_cache_damaged_part(c, 0), 1);
    hold_key(c, 0, &item);
    qv_cache_close(&c);
}

/* Each odd part costs only its own keys, whatever is wrong with it. */
static void
test_odd_parts(void **state)
{
    (void)state;
    const char *dir = make_folder();
    char deep[4096];
    write_part(dir, 0, NULL, NULL, 0);
    for (size_t i = 0; i < sizeof odd_parts / sizeof *odd_parts; i++) {
        write_part(dir, 1, odd_parts[i].from, odd_parts[i].to, odd_parts[i].more);
        expect_one_damaged(dir, odd_parts[i].words);
    }
    memset(deep, '[', sizeof deep - 1);
    deep[sizeof deep - 1] = 0;
    write_part(dir, 1, "7", deep, 0);
    expect_one_damaged(dir, "a number is needed");
    memcpy(deep, "\\\"x\\\":", 6);
    memcpy(deep + sizeof deep - 12, ",\\\"bytes\\\"", 11);
    write_part(dir, 1, "\\\"bytes\\\"", deep, 0);
    expect_one_damaged(dir, "too deep");
}

/* Things that have a part's name and are not files. The reader waits for none of them. */
static void
test_no_files(void **state)
{
    (void)state;
    const char *dir = make_folder();
    char path[700];
    snprintf(path, sizeof path, "%s", part_path(dir, 1));
    write_part(dir, 0, NULL, NULL, 0);
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
static void
test_sealed_at_the_end_of_time(void **state)
{
    (void)state;
    const char *dir = make_folder();
    const qv_cache_layout layout = { .dtype = QV_F32, .width = 2 };
    qv_cache_info info;
    qv_error err = { 0 };
    write_part(dir, 0, NULL, NULL, 0);
    write_part(dir, 1, "\"1000\"", "\"9223372036854775807\"", 0);
    qv_cache *c = open_cache(dir);
    qv_cache_get_info(c, &info);
    assert_int_equal(info.sealed, 1000);
    qv_cache_close(&c);
    for (int run = 0; run < 2; run++) {
        qv_cache_writer *w = NULL;
        const qv_cache_writer_options o = { .layout = layout, .after = info.sealed };
        assert_int_equal(qv_cache_writer_open(dir, &o, &w, &err), QV_OK);
        write_key(w, &layout, key_name(run), 1);
        close_writer(&w);
        c = open_cache(dir);
        qv_cache_get_info(c, &info);
        assert_int_equal(info.n_damaged, 1);
        assert_int_equal(info.n_ok, 2 + run);
        qv_cache_close(&c);
    }
    qv_cache_writer *w = NULL;
    const int64_t wrong[] = { INT64_MAX, INT64_MAX - 1000, -1 };
    for (int i = 0; i < 3; i++) {
        const qv_cache_writer_options o = { .layout = layout, .after = wrong[i] };
        expect_failure("after", QV_EINVAL, "after is |100 years from now",
                       qv_cache_writer_open(dir, &o, &w, &err), &err);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, tempdir_make, tempdir_remove)
        TEST(test_many_parts),
        TEST(test_bounds),
        TEST(test_threads),
        TEST(test_some_parts),
        TEST(test_odd_parts),
        TEST(test_no_files),
        TEST(test_sealed_at_the_end_of_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
