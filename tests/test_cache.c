/* SPDX-License-Identifier: MIT */
/* Tests a cache's folder: everything written can be read back, and anything that does not belong
 * there is reported. */
#include "test.h"

#include <math.h>
#include <pthread.h>
#include <time.h>

#include "cache_tools.h"
#include "files/json.h"
#include "files/safetensors.h"
#include "qwenvit_clips.h"

static const qv_cache_layout tiny = { .dtype = QV_F32, .width = 6, .n_deepstack = 2 };

/* ---- what is written comes back -------------------------------------------------------------- */

static void
expect_tokens(const qv_cache *c, const char *key, int64_t rows)
{
    qv_cache_item item = find_item(c, key);
    if (!item.key)
        fail_msg("%.80s is not there", key);
    check_item(c, &item, rows);
}

TEST(test_round_trip)
{
    static const qv_cache_layout layouts[] = {
        { .dtype = QV_F32, .width = 6, .n_deepstack = 2 },
        { .dtype = QV_BF16, .width = 5, .n_deepstack = 3 },
        { .dtype = QV_BF16, .width = 32 },
        { .dtype = QV_F32, .width = 1, .n_deepstack = 8 },
    };
    EACH (one, layouts) {
        const char *dir = temp_path("cache");
        qv_cache_writer *w = open_writer(dir, one, 1);
        for (int k = 0; k < 40; k++)
            write_key(w, one, key_name(k), key_rows(k));
        close_writer(&w);
        qv_cache *c = open_cache(dir);
        const qv_cache_info info = cache_info(c);
        assert_int_equal(info.n_ok, 40);
        assert_int_equal(info.n_failed, 0);
        assert_int_equal(info.n_damaged, 0);
        assert_true(info.n_parts >= 1);
        for (int k = 0; k < 40; k++)
            expect_tokens(c, key_name(k), key_rows(k));
        check_all(c);
        validate_parts(dir);
        remove_folder(dir);
    }
}

/* Rows come in pieces, of several keys in turn. Some keys get fewer rows than were reserved, some
 * fail half way and some are given up. */
TEST(test_by_turns)
{
    const char *dir = temp_path("cache");
    enum { N = 12 };
    qv_cache_writer *w = open_writer(dir, &tiny, 1 << 20);
    qv_cache_entry *entries[N];
    for (int k = 0; k < N; k++)
        assert_ok(qv_cache_begin(w, key_name(k), &some_source, 9 + k, &entries[k], ERR));
    for (int row = 0; row < 9; row++)
        for (int k = 0; k < N; k++)
            if (k % 4 != 2 || row < 4)
                put_rows(entries[k], &tiny, key_name(k), row, 1);
    for (int k = N - 1; k >= 0; k--) {
        if (k % 4 == 1)
            qv_cache_drop(&entries[k]);
        else
            finish_key(&entries[k], k % 4 == 2 ? QV_EFORMAT : QV_OK, "it is \"damaged\"\n");
        assert_null(entries[k]);
    }
    close_writer(&w);
    qv_cache *c = open_cache(dir);
    const qv_cache_info info = cache_info(c);
    assert_int_equal(info.n_parts, 1);
    assert_int_equal(info.n_damaged, 0);
    assert_int_equal(info.n_ok, 6);
    assert_int_equal(info.n_failed, 3);
    for (int k = 0; k < N; k++) {
        qv_cache_item item = find_item(c, key_name(k));
        assert_true((item.key != NULL) == (k % 4 != 1));
        if (k % 4 == 2)
            assert_int_equal(item.status, QV_EFORMAT);
        else if (k % 4 != 1)
            check_item(c, &item, 9);
    }
    check_all(c);
    expect_record(c, key_name(2),
                  "\"status\":\"failed\",\"code\":\"QV_EFORMAT\",\"error\":"
                  "\"it is \\\"damaged\\\"\\u000a\"");
    validate_parts(dir);
}

TEST(test_parts)
{
    const char *dir = temp_path("cache");
    qv_cache_writer_options o = { .layout = tiny, .part_bytes = 2000, .shard = 3, .n_shards = 7 };
    qv_cache_writer *w = NULL;
    assert_ok(qv_cache_writer_open(dir, &o, &w, ERR));
    for (int k = 0; k < 20; k++)
        write_key(w, &tiny, key_name(k), 4);
    assert_ok(qv_cache_seal(w, ERR)); /* It can be read before the end. */
    qv_cache *c = open_cache(dir);
    const qv_cache_info info = cache_info(c);
    assert_int_equal(info.n_ok, 20);
    assert_true(info.n_parts >= 2 && info.n_parts <= 20);
    qv_cache_item item;
    assert_ok(qv_cache_at(c, 0, &item, ERR));
    assert_non_null(strstr(item.part, "part-00003-of-00007-"));
    write_key(w, &tiny, key_name(20), 4);
    close_writer(&w);
    /* Nothing was done, so nothing is added. */
    const int before = temp_entries(dir);
    w = open_writer(dir, &tiny, 0);
    close_writer(&w);
    assert_int_equal(temp_entries(dir), before);
}

/* Keys that were given up leave nothing behind: neither room in the header nor a sign that they
 * were begun. */
TEST(test_dropped)
{
    const char *dir = temp_path("cache");
    qv_cache_writer *w = open_writer(dir, &tiny, 0);
    qv_cache_entry *e = NULL;
    char path[600];
    write_key(w, &tiny, "first", 3);
    for (int k = 0; k < 1000; k++) {
        assert_ok(qv_cache_begin(w, key_name(k % 100), &some_source, 4, &e, ERR));
        put_rows(e, &tiny, key_name(k % 100), 0, k % 4);
        qv_cache_drop(&e);
    }
    for (int k = 0; k < 100; k += 9)
        write_key(w, &tiny, key_name(k), 2);
    close_writer(&w);
    struct file f = read_part(dir, path); /* There is only one part. */
    assert_int_equal(front_bytes(&f), 256 << 10);
    qv_cache *c = open_cache(dir);
    const qv_cache_info info = cache_info(c);
    assert_int_equal(info.n_ok, 13);
    assert_int_equal(info.n_damaged, 0);
    check_all(c);
    validate_parts(dir);
}

/* A part is also sealed after some seconds of work, and when the room of its header is used up. */
TEST(test_sealing)
{
    const char *dir = temp_path("cache");
    qv_cache_writer_options o = { .layout = tiny, .part_seconds = 1e-9 };
    qv_cache_writer *w = NULL;
    qv_cache_info info;
    assert_ok(qv_cache_writer_open(dir, &o, &w, ERR));
    for (int k = 0; k < 3; k++)
        write_key(w, &tiny, key_name(k), 1);
    close_writer(&w);
    qv_cache *c = open_cache(dir);
    qv_cache_get_info(c, &info);
    assert_int_equal(info.n_parts, 3);

    dir = temp_path("long");
    w = open_writer(dir, &tiny, 0);
    char key[QV_CACHE_MAX_KEY + 1];
    for (int k = 0; k < 40; k++) {
        memset(key, k % 2 ? '"' : '\1', QV_CACHE_MAX_KEY);
        key[0] = (char)('A' + k);
        key[QV_CACHE_MAX_KEY] = 0;
        write_key(w, &tiny, key, 2);
    }
    close_writer(&w);
    c = open_cache(dir);
    qv_cache_get_info(c, &info);
    assert_int_equal(info.n_ok, 40);
    assert_int_equal(info.n_damaged, 0);
    assert_true(info.n_parts > 1);
    check_all(c);
    validate_parts(dir);
}

/* ---- keys ------------------------------------------------------------------------------------ */

TEST(test_keys)
{
    static const char *const keys[][2] = {
        { "a/b/c.mp4", NULL },
        { "../../etc/passwd", NULL },
        { "/", NULL },
        { "a b\tc\n\"d\\e", NULL },
        { "\xf0\x9f\x98\x80 \xc3\xa9", NULL },
        { "bad \xff\xc0\xaf", "bad %FF%C0%AF" },
        { "tokens", NULL },
        { "x/tokens", NULL },
        { "x/deepstack.0", NULL },
        { "x", NULL },
        { "_one", NULL },
        { "\x7f", NULL },
        { ".", NULL },
    };
    const char *dir = temp_path("cache");
    qv_cache_writer *w = open_writer(dir, &tiny, 0);
    const size_t n = sizeof keys / sizeof *keys;
    for (size_t i = 0; i < n; i++)
        write_key(w, &tiny, keys[i][0], 1 + (int64_t)i);
    close_writer(&w);
    qv_cache *c = open_cache(dir);
    for (size_t i = 0; i < n; i++)
        expect_tokens(c, keys[i][keys[i][1] != NULL], 1 + (int64_t)i);
    check_all(c);
    validate_parts(dir);

    char out[QV_CACHE_MAX_KEY + 1], too_long[QV_CACHE_MAX_KEY + 2];
    memset(too_long, 'k', sizeof too_long);
    too_long[sizeof too_long - 1] = 0;
    expect_error(QV_EFORMAT, "empty", qv_cache_key("", out, ERR));
    expect_error(QV_EFORMAT, "__unused.0|__", qv_cache_key("__unused.0", out, ERR));
    expect_error(QV_EFORMAT, "4097 bytes|4096", qv_cache_key(too_long, out, ERR));
    memset(too_long, '\xff', 1366);
    too_long[1366] = 0;
    expect_error(QV_EFORMAT, "4098 bytes", qv_cache_key(too_long, out, ERR));
    too_long[1365] = 0;
    assert_ok(qv_cache_key(too_long, out, ERR));
    assert_true(qv_cache_key_hash("") == 0x2d06800538d394c2); /* XXH3-64, as xxhsum -H3 prints
                                                               * it. */
}

/* ---- which record counts --------------------------------------------------------------------- */

/* Writes records from a text. Each has a status, o or f, and the version of the file. */
static void
write_records(const char *dir, const char *records)
{
    qv_cache_source source = some_source;
    for (const char *r = records; *r; r += 2) {
        qv_cache_writer *w = open_writer(dir, &tiny, 0);
        qv_cache_entry *e = NULL;
        source.mtime_ns = r[1] - '0';
        assert_ok(qv_cache_begin(w, "k", &source, 9, &e, ERR));
        put_rows(e, &tiny, "k", 0, 1 + (r - records) / 2);
        finish_key(&e, *r == 'o' ? QV_OK : QV_EIO, "gone");
        close_writer(&w);
    }
}

/* The record that was sealed last counts. If it has failed and the last record that is ok is of the
 * same file, that one counts. */
TEST(test_precedence)
{
    static const struct {
        const char *records;
        int wins; /* Which of the records wins. */
    } cases[] = {
        { "o1", 0 },     { "f1", 0 },       { "f1o1", 1 },     { "o1f1", 0 },   { "o1o1", 1 },
        { "f1f1", 1 },   { "o1o2", 1 },     { "f1o2", 1 },     { "o1f2", 1 },   { "f1f2", 1 },
        { "o1f2f2", 2 }, { "o1f2o2f2", 2 }, { "o1f2f1", 0 },   { "o1o2f1", 2 }, { "o1f1f2o2f2", 3 },
        { "f2o1f2", 2 }, { "o1f2o1f1", 2 }, { "o2f1o1f1", 2 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[16];
        snprintf(name, sizeof name, "%zu", i);
        const char *dir = temp_path(name), *records = cases[i].records;
        qv_cache_source source = some_source;
        write_records(dir, records);
        qv_cache *c = open_cache(dir);
        const qv_cache_info info = cache_info(c);
        assert_int_equal(info.n_parts, strlen(records) / 2);
        const bool ok = records[2 * cases[i].wins] == 'o';
        source.mtime_ns = records[2 * cases[i].wins + 1] - '0';
        qv_cache_item item = find_item(c, "k");
        if (info.n_ok != ok || info.n_failed != !ok || item.mtime_ns != source.mtime_ns ||
            (ok && item.rows != cases[i].wins + 1))
            fail_msg("%s: %lld ok, %lld failed, version %lld, %lld rows", records,
                     (long long)info.n_ok, (long long)info.n_failed, (long long)item.mtime_ns,
                     (long long)item.rows);
        assert_int_equal(qv_cache_compare(c, "k", &source, QV_CACHE_TRUST_NOTHING),
                         ok ? QV_CACHE_DONE : QV_CACHE_FAILED);
        assert_int_equal(item.index, 0);
        check_all(c);
    }
}

/* The parts of a run that knows what is there come later, even if the clock was set back. */
TEST(test_later)
{
    const char *dir = temp_path("cache");
    const int64_t later = ((int64_t)time(NULL) + (int64_t)50 * 365 * 24 * 3600) * 1000000000;
    qv_cache_writer_options o = { .layout = tiny, .after = later };
    qv_cache_writer *w = NULL;
    assert_ok(qv_cache_writer_open(dir, &o, &w, ERR));
    write_key(w, &tiny, "k", 2);
    close_writer(&w);
    qv_cache *c = open_cache(dir);
    const qv_cache_info info = cache_info(c);
    assert_true(info.sealed == later + 1);
}

TEST(test_compare)
{
    const char *dir = temp_path("cache");
    qv_cache_source s = { .path = "a \xff.mp4",
                          .start_s = 1.5,
                          .end_s = 2.25,
                          .bytes = 7,
                          .mtime_ns = 8,
                          .options = "{\"fps\":1}" };
    qv_error err = { 0 };
    qv_cache_writer *w = open_writer(dir, &tiny, 0);
    write_source(w, &tiny, "k", &s, QV_OK);
    write_source(w, &tiny, "bad", &s, QV_EUNSUPPORTED);
    close_writer(&w);
    qv_cache *c = open_cache(dir);
    assert_int_equal(qv_cache_compare(c, "k", &s, QV_CACHE_TRUST_NOTHING), QV_CACHE_DONE);
    assert_int_equal(qv_cache_compare(c, "bad", &s, QV_CACHE_TRUST_NOTHING), QV_CACHE_FAILED);
    assert_int_equal(qv_cache_compare(c, "no", &s, QV_CACHE_TRUST_NOTHING), QV_CACHE_MISSING);
    qv_cache_source differ[7];
    for (int i = 0; i < 7; i++)
        differ[i] = s;
    differ[0].path = "b.mp4";
    differ[1].start_s = 1.500000001;
    differ[2].end_s = 0;
    differ[3].bytes++;
    differ[4].mtime_ns--;
    differ[5].options = NULL;
    differ[6].options = "{\"fps\":2}";
    for (int i = 0; i < 7; i++) {
        assert_int_equal(qv_cache_compare(c, "k", &differ[i], QV_CACHE_TRUST_NOTHING),
                         QV_CACHE_CHANGED);
        assert_int_equal(qv_cache_compare(c, "bad", &differ[i], QV_CACHE_TRUST_NOTHING),
                         QV_CACHE_CHANGED);
    }
    expect_record(c, "k",
                  "\"path\":\"a %FF.mp4\",\"start\":1.5,\"end\":2.25,\"options\":"
                  "\"{\\\"fps\\\":1}\",\"bytes\":7,\"mtime\":8,\"status\":\"ok\"");
    assert_int_equal(qv_cache_record(c, 2, &(char *){ NULL }, &err), QV_EINVAL);
}

/* Checks what a source record holds for a file and its options. */
TEST(test_source_of)
{
    const struct {
        qv_clip_options own;
        const char *options;
    } cases[] = {
        { { .start_s = 1.5, .end_s = 2.5, .num_frames = 7, .like = QV_LIKE_QWEN_VL_UTILS }, NULL },
        { { .fps = 2 },
          "fps\":2.000000,\"max_frames\":0,\"max_pixels\":0,\"offset\":0,\"bytes\":0" },
        { { .fps = 1e300, .max_frames = INT64_MAX, .max_pixels = 3, .offset = 4, .length = 5 },
          "fps\":0.000000,\"max_frames\":9223372036854775807,\"max_pixels\":3,\"offset\":4,"
          "\"bytes\":5" },
        { { .fps = 999999999.999999,
            .max_frames = INT64_MIN,
            .max_pixels = INT64_MIN,
            .offset = INT64_MIN,
            .length = INT64_MIN,
            .first_frame = true }, /* the longest text */
          "fps\":999999999.999999,\"max_frames\":-9223372036854775808,\"max_pixels\":-"
          "9223372036854775808,"
          "\"offset\":-9223372036854775808,\"bytes\":-9223372036854775808,\"first_frame\":true" },
        { { .first_frame = true },
          "fps\":0.000000,\"max_frames\":0,\"max_pixels\":0,\"offset\":0,\"bytes\":0,\"first_"
          "frame\":true" },
    };
    const char *path = temp_file("clip", "12345", 5);
    const struct timespec times[2] = { { .tv_sec = 3 },
                                       { .tv_sec = 1234567890, .tv_nsec = 987654321 } };
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    EACH (c, cases) {
        char text[QV_CACHE_OPTIONS_BYTES], wanted[QV_CACHE_OPTIONS_BYTES];
        const qv_cache_source s = qv_cache_source_of(path, &c->own, text);
        assert_ptr_equal(s.path, path);
        assert_int_equal(s.bytes, 5);
        assert_int_equal(s.mtime_ns, 1234567890987654321);
        assert_true(s.start_s == c->own.start_s && s.end_s == c->own.end_s);
        assert_ptr_equal(s.options, c->options ? text : NULL);
        if (c->options) {
            snprintf(wanted, sizeof wanted, "{\"%s}", c->options);
            assert_string_equal(s.options, wanted);
        }
    }
    const qv_cache_source none = qv_cache_source_of(temp_path("none"), NULL, NULL);
    assert_int_equal(none.bytes, 0);
    assert_int_equal(none.mtime_ns, 0);
    assert_null(none.options);
}

/* A record keeps what its clip is: a clip's rate to the last bit, and an image without a rate. */
TEST(test_kinds)
{
    const char *dir = temp_path("cache");
    const qv_outcome image = { .is_image = true, .n_frames = 1, .grid_thw = { 1, 2, 2 } };
    const qv_cache_result is_image = { .outcome = &image };
    qv_cache_entry *e = NULL;
    qv_cache_writer *w = open_writer(dir, &tiny, 0);
    write_key(w, &tiny, "clip", 3);
    assert_ok(qv_cache_begin(w, "picture", &some_source, 1, &e, ERR));
    put_rows(e, &tiny, "picture", 0, 1);
    assert_ok(qv_cache_finish(&e, &is_image, ERR));
    write_source(w, &tiny, "failed", &some_source, QV_EFORMAT);
    close_writer(&w);
    qv_cache *c = open_cache(dir);
    expect_record(c, "clip", "\"picture\":false,\"frames\":3,\"sampled_fps\":59.940059940059939,");
    expect_record(c, "picture", "\"picture\":true,\"frames\":1,\"damaged_frames\":0,");
    expect_record(c, "failed", "\"code\":\"QV_EFORMAT\",\"error\":\"failed\"}");
    check_all(c);
}

/* ---- what is no cache, or another ------------------------------------------------------------ */

static void
expect_refused(const char *dir, const qv_cache_layout *l, const char *made_by, qv_status status,
               const char *words)
{
    qv_error err = { 0 };
    qv_cache_writer *w = NULL;
    const qv_cache_writer_options o = { .layout = *l, .made_by = made_by };
    expect_failure(words, status, words, qv_cache_writer_open(dir, &o, &w, &err), &err);
    assert_null(w);
}

TEST(test_other_caches)
{
    const char *dir = temp_path("cache");
    static const char mine[] = "{\"model_type\":\"qwen3_vl\",\"preprocessing\":{\"fps\":2.0}}";
    const qv_cache_writer_options o = { .layout = tiny, .made_by = mine };
    qv_cache_writer *w = NULL;
    assert_ok(qv_cache_writer_open(dir, &o, &w, ERR));
    close_writer(&w);
    /* The same description again. */
    assert_ok(qv_cache_writer_open(dir, &o, &w, ERR));
    close_writer(&w);
    const qv_cache_layout bf16 = { .dtype = QV_BF16, .width = 6, .n_deepstack = 2 };
    expect_refused(dir, &bf16, mine, QV_EFORMAT, "tokens.dtype|\"f32\"|\"bf16\"");
    expect_refused(dir, &tiny, "{\"model_type\":\"qwen3_5\",\"preprocessing\":{\"fps\":2.0}}",
                   QV_EFORMAT, "model_type|\"qwen3_vl\"|\"qwen3_5\"");
    expect_refused(dir, &tiny, "{\"model_type\":\"qwen3_vl\",\"preprocessing\":{\"fps\":1.0}}",
                   QV_EFORMAT, "preprocessing.fps|2.0|1.0");
    expect_refused(dir, &tiny, "{\"model_type\":\"qwen3_vl\"}", QV_EFORMAT, "preprocessing|none");
    expect_refused(dir, &tiny, "[]", QV_EFORMAT, "object");
    const qv_cache_layout none = { .dtype = QV_U8, .width = 6 };
    expect_refused(dir, &none, mine, QV_EINVAL, "u8");

    static const struct {
        const char *text, *words;
    } foreign[] = {
        { "{\"format\":\"webdataset\"}", "format|not a qwenvit cache" },
        { "{\"format\":\"qwenvit-cache\",\"version\":\"3\"}", "version|\"3\"|\"2\"" },
        { "{\"format\":\"qwenvit-cache\",\"version\":\"1\"}",
          "version|\"1\"|another version of qwenvit made it|fill it again" },
        { "{\"format\":\"qwenvit-cache\",\"version\":\"2\"}", "tokens" },
        { "{\"format\":\"qwenvit-cache\",\"version\":\"2\",\"tokens\":{\"dtype\":\"i32\","
          "\"width\":1}}",
          "dtype" },
        { "{\"format\":\"qwenvit-cache\",\"version\":\"2\",\"tokens\":{\"dtype\":\"f32\"}}",
          "width" },
        { "{\"format\":\"qwenvit-cache\",\"version\":\"2\",\"tokens\":{\"dtype\":\"f16\","
          "\"width\":1}}",
          "dtype|fill the cache again" },
        { "{\"format\":\"qwenvit-cache\",\"version\":\"2\",\"tokens\":{\"dtype\":\"f32\","
          "\"width\":1,\"packed\":true}}",
          "packed|fill the cache again" },
        { "not json", "cache.json" },
    };
    char path[600];
    snprintf(path, sizeof path, "%s/%s", dir, "qwenvit-cache.json");
    EACH (one, foreign) {
        qv_cache *c = NULL;
        put_file(path, one->text, strlen(one->text));
        expect_refused(dir, &tiny, mine, QV_EFORMAT, one->words);
        expect_error(QV_EFORMAT, one->words, qv_cache_open(dir, &c, ERR));
        assert_null(c);
    }
    qv_cache *c = NULL;
    expect_error(QV_EIO, "qwenvit-cache.json", qv_cache_open(tempdir, &c, ERR));
    expect_error(QV_EIO, "folder", qv_cache_writer_open(path, &o, &w, ERR));
    expect_error(QV_EIO, "folder", qv_cache_writer_open(temp_path("no/such"), &o, &w, ERR));
}

enum { PACK_ROWS = 3072 };

/* Nothing is added to a cache that was filled by another rule of packing or of frames, or before
 * these rules existed. */
static void
test_rules(const qv_model_info *model, const qv_clip_options *clip)
{
    static const struct {
        const char *field, *other, *words;
    } rules[] = {
        { "\"packing\":\"pairs\",", "",
          "does not record \"packing\", which its tokens|continue with" },
        { "\"packing\":\"pairs\",", "\"packing\":\"clips\",",
          "\"clips\"|the run has \"pairs\"|packed frame pairs differently|another folder" },
        { "\"frames\":2,", "",
          "does not record \"frames\", which its tokens|continue with|folder" },
        { "\"frames\":2,", "\"frames\":3,",
          "\"frames\" 3|the run has 2|chose different frames or pixels|"
          "continue with that version" },
        { "\"frames\":2,\"config\":{\"heads\":2},", "",
          "does not record \"frames\", \"config\", which its|another folder" }, /* as 0.4.0's */
        { "{\"heads\":2}", "{\"heads\":4}", "\"config.heads\" 4, but the run has 2" },
        { "\"patch_size\":0", "\"patch_size\":7", "image.patch_size\" 7, but the run has 0" },
        { "\"identity\":\"abc\"", "\"identity\":\"abd\"", "\"identity\" \"abd\", but the run has" },
    };
    char *by = NULL;
    assert_ok(qv_cache_made_by(model, PACK_ROWS, "pairs", clip, &by, ERR));
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        char before[2000], name[20];
        qv_cache_writer *w = NULL;
        const char *at = strstr(by, rules[i].field);
        assert_non_null(at);
        snprintf(before, sizeof before, "%.*s%s%s", (int)(at - by), by, rules[i].other,
                 at + strlen(rules[i].field));
        snprintf(name, sizeof name, "rule-%zu", i);
        const char *dir = temp_path(name);
        const qv_cache_writer_options o = { .layout = tiny, .made_by = before };
        assert_ok(qv_cache_writer_open(dir, &o, &w, ERR));
        close_writer(&w);
        expect_refused(dir, &tiny, by, QV_EFORMAT, rules[i].words);
        assert_ok(qv_cache_writer_open(dir, &o, &w, ERR)); /* by its own rule */
        close_writer(&w);
    }
    free(by);
}

/* A cache records the model and sampling that made it, and refuses others. */
TEST(test_made_by)
{
    const char *dir = temp_path("made_by");
    qv_model_info model = { .model_type = "qwen3_vl",
                            .dtype = QV_BF16,
                            .image.fps = 2,
                            .config = "{\"heads\":2}",
                            .identity = "abc" };
    qv_clip_options clip = { .fps = 0.1, .like = QV_LIKE_QWEN_VL_UTILS };
    qv_cache_writer *w = NULL;
    char *by = NULL;
    assert_ok(qv_cache_made_by(&model, PACK_ROWS, "pairs", &clip, &by, ERR));
    assert_non_null(strstr(by, "\"weights\":\"unknown\",\"dtype\":\"bf16\",\"capacity\":3072"));
    assert_non_null(strstr(by, "\"like\":\"qwen-vl-utils\",\"fps\":0.1"));
    const qv_cache_writer_options o = { .layout = tiny, .made_by = by };
    assert_ok(qv_cache_writer_open(dir, &o, &w, ERR));
    close_writer(&w);
    free(by);
    clip.max_pixels = 5;
    assert_ok(qv_cache_made_by(&model, PACK_ROWS, "pairs", &clip, &by, ERR));
    expect_refused(dir, &tiny, by, QV_EFORMAT, "preprocessing.options.max_pixels|0|5");
    free(by);
    clip.max_pixels = 0;
    test_rules(&model, &clip);
}

/* A list is compared with a cache of 0.4.0, whose records have these texts. */
TEST(test_options_of_0_4_0)
{
    static const char description[] =
        "\"options\":{\"like\":\"transformers\",\"fps\":0.0,\"num_frames\":0,\"min_frames\":0,"
        "\"max_frames\":64,\"min_pixels\":5000,\"max_pixels\":0,\"total_pixels\":0,"
        "\"cap_pixels\":false}}";
    static const struct {
        const char *options;
        qv_clip_options same, other; /* what asks for the same, and for something else */
    } records[] = {
        { NULL, { .fps = 2, .max_frames = 64 }, { .fps = 1 } },
        { "{\"fps\":1.500000,\"max_frames\":8,\"max_pixels\":0,\"offset\":0,\"bytes\":0}",
          { .fps = 1.5, .max_frames = 8 },
          { .fps = 1.5, .max_frames = 8, .first_frame = true } },
        { "{\"fps\":0.000000,\"max_frames\":0,\"max_pixels\":65536,\"offset\":512,\"bytes\":4096}",
          { .fps = 2, .max_pixels = 65536, .offset = 512, .length = 4096 },
          { .max_pixels = 65536, .offset = 513, .length = 4096 } },
        { "{\"fps\":0.000000,\"max_frames\":0,\"max_pixels\":0,\"offset\":0,\"bytes\":0,"
          "\"first_frame\":true}",
          { .max_frames = 64, .first_frame = true },
          { .max_frames = 64 } },
        { "{\"fps\":2.000000,\"max_frames\":64,\"max_pixels\":0,\"offset\":0,\"bytes\":0}",
          { .decode_seconds = 5 }, /* no record has it */
          { .max_pixels = 7 } },
    };
    qv_model_info model = { .model_type = "qwen3_vl", .video = { .fps = 2, .max_frames = 768 } };
    const qv_clip_options clip = { .max_frames = 64, .min_pixels = 5000 };
    const char *dir = temp_path("frozen"), *path = temp_file("clip", "12345", 5);
    char *by = NULL, key[2] = "a", text[QV_CACHE_OPTIONS_BYTES];
    assert_ok(qv_cache_made_by(&model, PACK_ROWS, "pairs", &clip, &by, ERR));
    assert_non_null(strstr(by, description));
    qv_cache_writer *w = NULL;
    const qv_cache_writer_options o = { .layout = tiny, .made_by = by };
    assert_ok(qv_cache_writer_open(dir, &o, &w, ERR));
    for (size_t i = 0; i < sizeof records / sizeof *records; i++, key[0]++) {
        qv_cache_source s = qv_cache_source_of(path, NULL, NULL);
        s.options = records[i].options;
        write_source(w, &tiny, key, &s, QV_OK);
    }
    close_writer(&w);
    free(by);
    qv_cache *c = open_cache(dir);
    key[0] = 'a';
    for (size_t i = 0; i < sizeof records / sizeof *records; i++, key[0]++) {
        qv_cache_source s = qv_cache_source_of(path, &records[i].same, text);
        assert_int_equal(qv_cache_compare(c, key, &s, QV_CACHE_TRUST_NOTHING), QV_CACHE_DONE);
        s = qv_cache_source_of(path, &records[i].other, text);
        assert_int_equal(qv_cache_compare(c, key, &s, QV_CACHE_TRUST_NOTHING), QV_CACHE_CHANGED);
    }
}

/* Two threads that make a folder at once agree, or one of them is refused. */
static char race[512];

static void *
open_at_once(void *made_by)
{
    const qv_cache_writer_options o = { .layout = tiny, .made_by = made_by };
    qv_cache_writer *w = NULL;
    qv_error err;
    const qv_status s = qv_cache_writer_open(race, &o, &w, &err);
    qv_cache_writer_close(&w, NULL);
    return (void *)(intptr_t)s;
}

TEST(test_two_make_it)
{
    snprintf(race, sizeof race, "%s", temp_path("race"));
    for (int i = 0; i < 30; i++) {
        pthread_t threads[2];
        void *got[2];
        static char one[] = "{\"m\":1}", two[] = "{\"m\":2}";
        for (int t = 0; t < 2; t++)
            assert_int_equal(pthread_create(&threads[t], NULL, open_at_once,
                                            t && i % 2 ? two : one),
                             0);
        for (int t = 0; t < 2; t++)
            pthread_join(threads[t], &got[t]);
        const int refused = (got[0] == (void *)QV_EFORMAT) + (got[1] == (void *)QV_EFORMAT);
        assert_int_equal(refused, i % 2);
        assert_int_equal((got[0] == NULL) + (got[1] == NULL), 2 - refused);
        assert_int_equal(temp_entries(race), 1);
        remove_folder(race);
    }
}

/* ---- damage ---------------------------------------------------------------------------------- */

/* A truncated or altered part is reported and its keys are missing. The other keys stay. */
TEST(test_damage)
{
    const char *dir = temp_path("cache");
    char path[600];
    qv_cache_info info;
    qv_cache_writer *w = open_writer(dir, &tiny, 0);
    write_key(w, &tiny, "good", 3);
    close_writer(&w);
    struct file good = read_part(dir, path);
    unlink(path);
    w = open_writer(dir, &tiny, 0);
    write_key(w, &tiny, "other", 3);
    close_writer(&w);
    const size_t header = front_bytes(&good), used = header_used(&good);
    const size_t index = header_bytes(&good), records = records_at(&good);
    char *changed = test_alloc(good.bytes + 64);
    for (size_t cut = 0; cut < good.bytes; cut += cut < 16 || cut > header ? 1 : 997) {
        put_file(path, good.data, cut);
        qv_cache *c = open_cache(dir);
        qv_cache_get_info(c, &info);
        assert_int_equal(info.n_damaged, 1);
        assert_int_equal(info.n_ok, 1);
        assert_non_null(strstr(qv_cache_damage(c, 0, NULL), "part-"));
        assert_null(qv_cache_damage(c, 1, NULL));
        assert_int_equal(qv_cache_compare(c, "good", &some_source, QV_CACHE_TRUST_NOTHING),
                         QV_CACHE_MISSING);
        close_cache(&c);
    }
    /* Any byte before the data may change. Opening the cache detects changes in the header's
     * length, the index and the keys; checking the part detects changes in header and records. */
    for (size_t at = 0; at < header; at += at < 8 ? 1 : at + 4099 < index && at >= used ? 4099 : 3)
        for (int bit = (int)(at % 8); bit < 8; bit += 8) {
            qv_error err = { 0 };
            memcpy(changed, good.data, good.bytes);
            changed[at] = (char)(changed[at] ^ 1 << bit);
            put_file(path, changed, good.bytes);
            qv_cache *c = open_cache(dir);
            qv_cache_get_info(c, &info);
            assert_int_equal(info.n_damaged, at < 8 || (at >= index && at < records));
            assert_int_equal(info.n_damaged + info.n_ok, 2);
            int bad = (int)info.n_damaged;
            for (int64_t i = 0; i < info.n_ok; i++)
                bad += qv_cache_verify(c, i, &err) == QV_EFORMAT;
            assert_int_equal(bad, 1);
            close_cache(&c);
        }
    /* Any byte of the tensors may change; the checksum shows it. */
    for (size_t at = header; at < good.bytes; at += 3) {
        qv_error err = { 0 };
        memcpy(changed, good.data, good.bytes);
        changed[at] ^= 4;
        put_file(path, changed, good.bytes);
        qv_cache *c = open_cache(dir);
        const qv_cache_info all = cache_info(c);
        assert_int_equal(all.n_ok, 2);
        int bad = 0;
        for (int64_t i = 0; i < 2; i++)
            bad += qv_cache_verify(c, i, &err) == QV_EFORMAT;
        assert_int_equal(bad, at >= header && is_used(&good, at));
        close_cache(&c);
    }
}

/* Writes the part with a text in front replaced by one of the same length, and its checksums
 * right. */
static void
put_altered(const char *path, const struct file *good, const char *from, const char *to)
{
    struct file f = { test_alloc(good->bytes), good->bytes };
    memcpy(f.data, good->data, good->bytes);
    const size_t index = header_bytes(&f), records = records_at(&f), data = front_bytes(&f);
    char *at = memmem(f.data, data, from, strlen(from));
    if (!at || strlen(from) != strlen(to))
        fail_msg("%s does not stand in the header or the records", from);
    memcpy(at, to, strlen(to));
    put_number(&f, index + 64, 8, qv_cache_hash(f.data + records, data - records));
    put_number(&f, index + 72, 8, qv_cache_hash(f.data, index));
    mend_index(&f);
    put_file(path, f.data, f.bytes);
}

/* Headers and records that contradict the index. Opening does not read them; checking a part
 * reports them. */
TEST(test_contradictions)
{
    static const struct {
        const char *from, *to, *words;
    } cases[] = {
        { "\"shape\":[3,6]", "\"shape\":[6,3]", "differs from that in" },
        { "k/deepstack.1", "j/deepstack.1", "is missing from its header" },
        { "k/grid_thw", "k/grid_whh", "is missing from its header" },
        { "\"__keys\"", "\"__kexs\"", "is missing from its header" },
        { "__unused.1", "k/unused.1", "tensors that are missing from its index" },
        { "\"version\":\"2\"", "\"version\":\"9\"", "version is 9" },
        { "\"format\":\"qwenvit-cache\"", "\"format\":\"qwenvit-cachf\"",
          "format is qwenvit-cachf" },
        { "\"sealed\":\"1", "\"sealed\":\"2", "sealed is 2" },
        { "{\"__meta", "[\"__meta", "cannot be parsed|JSON|':'|expected" },
        { "{\"key\":\"k\"", "{\"key\":\"j\"", "a different key" },
        { "{\"key\":\"k\"", "[\"key\":\"k\"", "" },
        { "\"status\":\"ok\"", "\"status\":\"no\"", "no status" },
        { "\"xxh3\":\"", "\"xxh4\":\"", "16 hexadecimal digits" },
        { "\"picture\":false", "\"picture\":1.250", "picture must be" },
        { "\"bytes\":1000", "\"bytes\":1001", "disagrees with its row" },
        { "\"path\":\"clip", "\"path\":\"Clip", "disagrees with its row" },
        { "\"damaged", "\n\"damage", "not one line" },
    };
    const char *dir = temp_path("cache");
    char path[600];
    qv_cache_writer *w = open_writer(dir, &tiny, 0);
    write_key(w, &tiny, "k", 3);
    close_writer(&w);
    struct file good = read_part(dir, path);
    EACH (one, cases) {
        qv_error err = { 0 };
        put_altered(path, &good, one->from, one->to);
        qv_cache *c = open_cache(dir);
        const qv_cache_info info = cache_info(c);
        assert_int_equal(info.n_ok, 1);
        if (qv_cache_verify(c, 0, &err) != QV_EFORMAT)
            fail_msg("%s: believed", one->to);
        if (!strchr(one->words, '|') && !strstr(err.text, one->words))
            fail_msg("\"%s\" is not in \"%s\"", one->words, err.text);
    }
}

TEST(test_wrong_calls)
{
    const char *dir = temp_path("cache");
    qv_cache_writer *w = open_writer(dir, &tiny, 0);
    qv_cache_entry *e = NULL;
    float row[6] = { 0 };
    qv_tokens t = { .tokens = row, .deepstack = { row, row }, .n = 1 };
    expect_error(QV_EINVAL, "-1 rows", qv_cache_begin(w, "k", &some_source, -1, &e, ERR));
    expect_error(QV_EFORMAT, "__", qv_cache_begin(w, "__k", &some_source, 1, &e, ERR));
    assert_ok(qv_cache_begin(w, "k", &some_source, 1, &e, ERR));
    assert_ok(qv_cache_put(e, &t, ERR));
    expect_error(QV_EINVAL, "exceed its 1", qv_cache_put(e, &t, ERR));
    qv_cache_drop(&e);
    assert_ok(qv_cache_begin(w, "k", &some_source, 1, &e, ERR));
    const qv_cache_result nothing = { .outcome = &(qv_outcome){ .n_frames = 0 } };
    expect_error(QV_EINVAL, "0 rows", qv_cache_finish(&e, &nothing, ERR));
    assert_null(e);
    const qv_outcome rates[] = { { .sampled_fps = -1 },
                                 { .sampled_fps = NAN },
                                 { .sampled_fps = INFINITY },
                                 { .sampled_fps = 2, .is_image = true } };
    for (int i = 0; i < 4; i++) {
        assert_ok(qv_cache_begin(w, "k", &some_source, 1, &e, ERR));
        assert_ok(qv_cache_put(e, &t, ERR));
        const qv_cache_result bad = { .outcome = &rates[i] };
        expect_error(QV_EINVAL, "sampled_fps is ", qv_cache_finish(&e, &bad, ERR));
    }
    close_writer(&w);
    assert_int_equal(temp_entries(dir), 1);
    const qv_cache_writer_options bad = { .layout = tiny, .shard = 2, .n_shards = 2 };
    expect_error(QV_EINVAL, "2 of 2", qv_cache_writer_open(dir, &bad, &w, ERR));
}

/* ---- many threads ---------------------------------------------------------------------------- */

struct share {
    qv_cache_writer *writer;
    int from;
};

static void *
write_share(void *user)
{
    const struct share *s = user;
    for (int k = s->from; k < 200; k += 4)
        write_key(s->writer, &tiny, key_name(k), key_rows(k));
    return NULL;
}

TEST(test_threads)
{
    const char *dir = temp_path("cache");
    qv_cache_writer *w = open_writer(dir, &tiny, 6000);
    struct share shares[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        shares[i] = (struct share){ .writer = w, .from = i };
        assert_int_equal(pthread_create(&threads[i], NULL, write_share, &shares[i]), 0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    close_writer(&w);
    qv_cache *c = open_cache(dir);
    for (int k = 0; k < 200; k++)
        expect_tokens(c, key_name(k), key_rows(k));
    check_all(c);
    validate_parts(dir);
}

TEST_EACH(tempdir_make, tempdir_remove);
