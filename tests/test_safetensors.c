/* SPDX-License-Identifier: MIT */
/* Tests that hostile files are refused with helpful errors, and that honest ones are read back as
 * written. */

#include "test.h"

#include "files/safetensors.h"
#include "tempdir.h"

/* Makes a file with this header, followed by `data` bytes 0, 1, 2, .. */
static const char *
make_file_n(const char *name, const char *header, size_t n, size_t data)
{
    char *all = test_alloc(8 + n + data);
    for (int i = 0; i < 8; i++)
        all[i] = (char)((uint64_t)n >> 8 * i & 0xff);
    memcpy(all + 8, header, n);
    for (size_t i = 0; i < data; i++)
        all[8 + n + i] = (char)i;
    return temp_file(name, all, 8 + n + data);
}

static const char *
make_file(const char *name, const char *header, size_t data)
{
    return make_file_n(name, header, strlen(header), data);
}

static void
expect_open_failure(const char *what, const char *path, qv_status status, const char *words)
{
    struct qv_safetensors *file = NULL;
    qv_error err = { 0 };
    const qv_status s = qv_safetensors_open(path, &file, &err);
    expect_failure(what, status, words, s, &err);
    assert_null(file);
    assert_int_equal(qv_safetensors_open(path, &file, NULL), status);
}

static void
close_file(void *file)
{
    qv_safetensors_close(&(struct qv_safetensors *){ file });
}

static struct qv_safetensors *
open_ok(const char *path)
{
    struct qv_safetensors *file = NULL;
    assert_ok(qv_safetensors_open(path, &file, ERR));
    return test_ends(file, close_file);
}

/* ---- one file, hostile ---------------------------------------------------------------------- */

#define U8(shape, begin, end)                                                                      \
    "{\"dtype\":\"U8\",\"shape\":" shape ",\"data_offsets\":[" begin "," end "]}"

TEST(bad_headers_are_refused)
{
    static const struct {
        const char *header;
        size_t data;
        const char *words;
    } cases[] = {
        /* bad JSON */
        { "", 0, "line" },
        { "{", 0, "line 1" },
        { "[]", 0, "object" },
        { "{}x", 0, "line 1" },
        { "\xef\xbb\xbf{}", 0, "byte order mark" },
        { "{\"a\xff\":1}", 0, "line 1" },
        { "{\"a\\u0000b\":" U8("[1]", "0", "1") "}", 1, "line 1|NUL" },
        { "{\"a\\ud800\":1}", 0, "line 1" },
        { "{\"a\xc0\x80\":1}", 0, "line 1" },
        { "{\"a\":NaN}", 0, "line 1" },
        { "{\"a\":1e999}", 0, "line 1" },
        /* duplicates: the reference reader uses the second */
        { "{\"a\":" U8("[4]", "0", "4") ",\"a\":" U8("[4]", "4", "8") "}", 8, "duplicate" },
        { "{\"a\":" U8("[4]", "0", "4") ",\"a\":" U8("[2,2]", "0", "4") "}", 4, "duplicate" },
        { "{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
          "duplicate" },
        { "{\"a\":" U8("[1]", "0", "1") ",\"\\u0061\":" U8("[1]", "1", "2") "}", 2, "duplicate" },
        /* layout */
        { "{\"a\":" U8("[4]", "4", "8") "}", 8, "tensor \"a\"|data_offsets|4|holes" },
        { "{\"a\":" U8("[2]", "0", "2") ",\"b\":" U8("[2]", "3", "5") "}", 5, "\"b\"|3|holes" },
        { "{\"a\":" U8("[2]", "0", "2") ",\"b\":" U8("[2]", "1", "3") "}", 3, "\"b\"|overlaps" },
        { "{\"a\":" U8("[2]", "0", "2") ",\"b\":" U8("[2]", "0", "2") "}", 2, "\"b\"|overlaps" },
        { "{\"a\":" U8("[4]", "0", "4") "}", 2, "4 bytes|has 2|2 are missing" },
        { "{\"a\":" U8("[4]", "0", "4") "}", 9, "5 bytes follow" },
        { "{}", 1, "1 bytes follow" },
        { "{\"a\":" U8("[9223372036854775807]", "0", "9223372036854775807") "}", 4, "overflows" },
        { "{\"a\":" U8("[1152921504606846975]", "0", "1152921504606846975") "}", 4, "missing" },
        /* data_offsets */
        { "{\"a\":" U8("[4]", "4", "0") "}", 4, "\"a\"|data_offsets|[4,0]|begin <= end" },
        { "{\"a\":" U8("[4]", "-4", "0") "}", 4, "data_offsets|[-4,0]" },
        { "{\"a\":" U8("[4]", "0", "4.0") "}", 4, "data_offsets|integers" },
        { "{\"a\":" U8("[4]", "0", "18446744073709551616") "}", 4, "too big integer" },
        { "{\"a\":" U8("[4]", "0", "3") "}", 3, "data_offsets|need 4 bytes, not 3" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]}}", 1, "data_offsets" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":1}}", 1, "data_offsets" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "data_offsets is missing" },
        /* shape */
        { "{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "shape is missing" },
        { "{\"a\":" U8("4", "0", "4") "}", 4, "shape is 4|array" },
        { "{\"a\":" U8("[-1]", "0", "4") "}", 4, "shape is [-1]" },
        { "{\"a\":" U8("[0,-1]", "0", "0") "}", 0, "shape is [0,-1]" },
        { "{\"a\":" U8("[1.0]", "0", "1") "}", 1, "shape is [1.0]" },
        { "{\"a\":" U8("[1e3]", "0", "1") "}", 1, "shape|integer" },
        { "{\"a\":" U8("[true]", "0", "1") "}", 1, "shape is [true]" },
        { "{\"a\":" U8("[\"1\"]", "0", "1") "}", 1, "shape" },
        { "{\"a\":" U8("[18446744073709551616]", "0", "1") "}", 1, "too big integer" },
        { "{\"a\":" U8("[1,1,1,1,1,1,1,1,1]", "0", "1") "}", 1, "at most 8" },
        { "{\"a\":" U8("[4294967296,4294967296]", "0", "0") "}", 0, "product|overflows" },
        { "{\"a\":" U8("[2,9223372036854775807]", "0", "4") "}", 4, "overflows" },
        { "{\"a\":" U8("[4294967296,4294967296,0]", "0", "0") "}", 0, "overflows" },
        { "{\"a\":{\"dtype\":\"F64\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}", 0,
          "bits overflows" },
        /* dtype */
        { "{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "dtype is missing" },
        { "{\"a\":{\"dtype\":\"F99\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
          "dtype is \"F99\"" },
        { "{\"a\":{\"dtype\":\"bf16\",\"shape\":[1],\"data_offsets\":[0,2]}}", 2, "\"bf16\"" },
        { "{\"a\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "dtype is 7" },
        { "{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}", 1, "whole number" },
        { "{\"a\":{\"dtype\":\"F6_E2M3\",\"shape\":[2],\"data_offsets\":[0,1]}}", 1, "whole" },
        /* entries and metadata */
        { "{\"a\":null}", 0, "\"a\"|null" },
        { "{\"a\":[]}", 0, "\"a\"|object" },
        { "{\"__metadata__\":1}", 0, "__metadata__ is 1" },
        { "{\"__metadata__\":[]}", 0, "__metadata__" },
        { "{\"__metadata__\":{\"k\":1}}", 0, "__metadata__ \"k\" is 1|string" },
        { "{\"__metadata__\":{\"k\":{}}}", 0, "__metadata__" },
        { "{\"__metadata__\":{\"k\":null}}", 0, "__metadata__ \"k\" is null" },
        { "{\"__metadata__\":{},\"__metadata__\":{}}", 0, "duplicate" },
        /* names that would play with a terminal: by ESC, by CSI in one character, by DEL */
        { "{\"\\u001b[2J\":1}", 0, "u001B[2J" },
        { "{\"\\u009b2J\":1}", 0, "u009B2J" },
        { "{\"\xc2\x9b"
          "2J\":1}",
          0, "u009B2J" },
        { "{\"a\\u007fb\":1}", 0, "a?b" },
    };
    EACH (c, cases) {
        const char *path = make_file("hostile.safetensors", c->header, c->data);
        char words[256];
        snprintf(words, sizeof words, "hostile.safetensors|%s", c->words);
        expect_open_failure(c->header, path, QV_EFORMAT, words);
    }
    const char nul[] = "{\"a\0b\":1}";
    expect_open_failure("raw NUL", make_file_n("nul", nul, sizeof nul - 1, 0), QV_EFORMAT,
                        "line 1");
}

TEST(wrong_files_are_named)
{
#define BYTES(text) text, sizeof text - 1
    static const struct {
        const char *bytes;
        size_t n;
        const char *words;
    } cases[] = {
        { BYTES(""), "has 0 bytes|8 bytes" },
        { BYTES("\2\0\0\0\0\0\0"), "has 7 bytes" },
        { BYTES("\2\0\0\0\0\0\0\0"), "length is 2|only 0 bytes follow" },
        { BYTES("\0\0\0\0\0\0\0\0"), "line" },
        { BYTES("\3\0\0\0\0\0\0\0{}"), "length is 3|only 2" },
        { BYTES("\xff\xff\xff\xff\xff\xff\xff\xff{}"), "length is 18446744073709551615" },
        { BYTES("\1\0\0\2\0\0\0\0{}"), "length is 33554433|limit of 33554432" },
        { BYTES("\0\0\0\2\0\0\0\0{}"), "length is 33554432|only 2 bytes" },
        { BYTES("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"), "Git-LFS|pull" },
        { BYTES("<!DOCTYPE html>\n<html><title>404</title>"), "HTML" },
        { BYTES("\n<html><body>denied</body></html>"), "HTML" },
        { BYTES("\x1f\x8b\x08\0\0\0\0\0\0\3abc"), "gzip" },
        { BYTES("PK\3\4\0\0\0\0\0\0\0\0abc"), "PyTorch" },
    };
    EACH (c, cases)
        expect_open_failure(c->words, temp_file("model", c->bytes, c->n), QV_EFORMAT, c->words);
}

TEST(what_is_no_file_is_refused_without_waiting)
{
    assert_int_equal(mkfifo(temp_path("fifo"), 0600), 0);
    expect_open_failure("fifo", temp_path("fifo"), QV_EIO, "fifo|FIFO|regular file");
    expect_open_failure("folder", tempdir, QV_EIO, "folder");
    expect_open_failure("device", "/dev/null", QV_EIO, "/dev/null|device");
    expect_open_failure("missing", temp_path("missing"), QV_EIO, "missing|cannot be opened");
    /* a name with ESC, CSI in one character, and DEL */
    expect_open_failure("controls",
                        temp_path("a\033[2J\xc2\x9b"
                                  "2J\177"),
                        QV_EIO, "a?[2J??2J?: cannot be opened");
    assert_int_equal(symlink("gone", temp_path("dangling")), 0);
    expect_open_failure("dangling", temp_path("dangling"), QV_EIO, "dangling");
}

/* Files in which few bytes ask for much work or memory. */
TEST(bombs_are_refused)
{
    const size_t n = 14 << 20;
    char *text = test_alloc(n + 64);

    memset(text, '[', n);
    memcpy(text, "{\"a\":", 5);
    expect_open_failure("brackets", make_file_n("b", text, n, 0), QV_EFORMAT, "brackets");
    expect_open_failure("depth", make_file_n("b", text, 100000, 0), QV_EFORMAT, "depth");

    size_t used = 1;
    text[0] = '{';
    for (int i = 0; i < (1 << 20) + 1; i++)
        used += (size_t)sprintf(text + used, "\"%x\":0,", i);
    text[used - 1] = '}';
    expect_open_failure("tensors", make_file_n("b", text, used, 0), QV_EFORMAT,
                        "1048577 tensors|at most 1048576");

    /* With one long name the error text stays short and complete. */
    memset(text, 'n', n);
    memcpy(text, "{\"", 2);
    memcpy(text + n, "\":1}", 4);
    expect_open_failure("name", make_file_n("b", text, n + 4, 0), QV_EFORMAT, "nnn...|is 1");

    /* A name of 90 MB in a file with a hole; only its first bytes are read. */
    const char *path = temp_file("key", "\0\0\x60\5\0\0\0\0{\"n", 11);
    assert_int_equal(truncate(path, ((off_t)90 << 20) + 8), 0);
    expect_open_failure("key", path, QV_EFORMAT, "length is 90177536|limit of 33554432");
}

/* ---- one file, honest ----------------------------------------------------------------------- */

TEST(unusual_but_right_headers_are_read)
{
    static const struct {
        const char *header;
        size_t data, n;
    } cases[] = {
        { "{}", 0, 0 },
        { " \n\t{} \r\n  ", 0, 0 },
        { "{\"__metadata__\":null}", 0, 0 },
        { "{\"__metadata__\":{}}", 0, 0 },
        { "{\"__metadata__\":{\"format\":\"pt\"},\"a\":" U8("[]", "0", "1") "}", 1, 1 },
        { "{\"a\":" U8("[2,0]", "0", "0") "}", 0, 1 },
        { "{\"b\":" U8("[0]", "2", "2") ",\"a\":" U8("[2]", "0", "2") "}", 2, 2 },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":[{}]}}", 1, 1 },
        { "{\"\\u00e4\":" U8("[1]", "0", "1") "}", 1, 1 },
        { "{\"\":" U8("[1,1,1,1,1,1,1,1]", "0", "1") "}", 1, 1 },
    };
    EACH (c, cases) {
        struct qv_safetensors *file = open_ok(make_file("f", c->header, c->data));
        assert_int_equal(qv_safetensors_count(file), c->n);
        for (size_t k = 0; k < c->n; k++) {
            const struct qv_safetensor *t = qv_safetensors_at(file, k);
            assert_ptr_equal(qv_safetensors_find(file, t->name), t);
        }
        assert_null(qv_safetensors_find(file, "__metadata__"));
        assert_null(qv_safetensors_at(file, c->n));
    }
    qv_safetensors_close(NULL);
}

TEST(all_dtypes_are_known)
{
    static const struct {
        const char *name;
        int bits;
        qv_dtype dtype;
    } dtypes[] = {
        { "BOOL", 8, QV_DTYPE_AUTO },
        { "F4", 4, QV_DTYPE_AUTO },
        { "F6_E2M3", 6, QV_DTYPE_AUTO },
        { "F6_E3M2", 6, QV_DTYPE_AUTO },
        { "U8", 8, QV_U8 },
        { "I8", 8, QV_DTYPE_AUTO },
        { "F8_E5M2", 8, QV_DTYPE_AUTO },
        { "F8_E4M3", 8, QV_DTYPE_AUTO },
        { "F8_E8M0", 8, QV_DTYPE_AUTO },
        { "F8_E4M3FNUZ", 8, QV_DTYPE_AUTO },
        { "F8_E5M2FNUZ", 8, QV_DTYPE_AUTO },
        { "I16", 16, QV_DTYPE_AUTO },
        { "U16", 16, QV_DTYPE_AUTO },
        { "F16", 16, QV_F16 },
        { "BF16", 16, QV_BF16 },
        { "I32", 32, QV_DTYPE_AUTO },
        { "U32", 32, QV_DTYPE_AUTO },
        { "F32", 32, QV_F32 },
        { "C64", 64, QV_DTYPE_AUTO },
        { "F64", 64, QV_DTYPE_AUTO },
        { "I64", 64, QV_DTYPE_AUTO },
        { "U64", 64, QV_DTYPE_AUTO },
    };
    for (size_t i = 0; i < LENGTH(dtypes); i++) {
        char header[128];
        const int bytes = dtypes[i].bits * 12 / 8;
        snprintf(header, sizeof header,
                 "{\"a\":{\"dtype\":\"%s\",\"shape\":[3,4],\"data_offsets\":[0,%d]}}",
                 dtypes[i].name, bytes);
        struct qv_safetensors *file = open_ok(make_file("f", header, (size_t)bytes));
        const struct qv_safetensor *a = qv_safetensors_find(file, "a");
        assert_string_equal(a->dtype_name, dtypes[i].name);
        assert_int_equal(a->dtype, dtypes[i].dtype);
        assert_int_equal(a->bytes, bytes);
        assert_int_equal(a->n_dims, 2);
        assert_int_equal(a->shape[0], 3);
        assert_int_equal(a->shape[1], 4);
    }
}

/* The header has an odd length and b begins at byte 3, so nothing is aligned. */
TEST(data_are_read_by_name)
{
    const char *path =
        make_file("odd",
                  "{\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[3,11]},\"a\":" //
                  U8("[3]", "0", "3") "} ",
                  11);
    unsigned char got[8] = { 0 };
    struct qv_safetensors *file = open_ok(path);
    const struct qv_safetensor *a = qv_safetensors_at(file, 0), *b = qv_safetensors_at(file, 1);
    assert_string_equal(qv_safetensors_path(file), path);
    assert_string_equal(a->name, "a");
    assert_string_equal(b->name, "b");
    assert_null(qv_safetensors_find(file, "c"));
    assert_ok(qv_safetensors_read(file, b, 0, got, 8, ERR));
    for (int i = 0; i < 8; i++)
        assert_int_equal(got[i], 3 + i);
    assert_ok(qv_safetensors_read(file, b, 6, got, 2, ERR));
    assert_int_equal(got[0], 9);
    assert_ok(qv_safetensors_read(file, b, 8, got, 0, ERR));
    expect_error(QV_EINVAL, "odd|\"b\"|8 bytes", qv_safetensors_read(file, b, 6, got, 3, ERR));
    expect_error(QV_EINVAL, "\"b\"", qv_safetensors_read(file, b, 8, got, UINT64_MAX, ERR));
}

TEST(a_file_that_shrinks_is_an_error)
{
    const char *path = make_file("shrinks", "{\"a\":" U8("[100]", "0", "100") "}", 100);
    char got[100];
    struct qv_safetensors *file = open_ok(path);
    const struct qv_safetensor *a = qv_safetensors_at(file, 0);
    assert_int_equal(truncate(path, (off_t)a->offset + 60), 0);
    assert_ok(qv_safetensors_read(file, a, 0, got, 60, ERR));
    expect_error(QV_EIO, "shrinks|40 bytes short|shrank",
                 qv_safetensors_read(file, a, 0, got, 100, ERR));
}

/* ---- writing -------------------------------------------------------------------------------- */

static struct qv_safetensor
tensor(const char *name, const char *dtype, int n_dims, int64_t d0, int64_t d1)
{
    struct qv_safetensor t = { .name = (char *)(uintptr_t)name, .n_dims = n_dims };
    snprintf(t.dtype_name, sizeof t.dtype_name, "%s", dtype);
    t.shape[0] = d0;
    t.shape[1] = d1;
    return t;
}

TEST(what_is_written_comes_back)
{
    const struct qv_safetensor tensors[] = {
        tensor("tokens", "F32", 2, 3, 2), tensor("b.\xc3\xa4\"\n", "BF16", 1, 3, 0),
        tensor("empty", "F16", 2, 0, 5),  tensor("scalar", "I64", 0, 0, 0),
        tensor("bytes", "U8", 1, 5, 0),   tensor("grid", "I32", 2, 1, 3),
        tensor("times", "F64", 1, 2, 0),
    };
    const char *const metadata[][2] = { { "format", "pt" }, { "model", "qwen3_vl" } };
    unsigned char data[24], got[24];
    struct qv_safetensors_writer *w = NULL;
    assert_ok(qv_safetensors_writer_open(temp_path("out"), tensors, LENGTH(tensors), metadata, 2,
                                         &w, ERR));
    assert_int_not_equal(access(temp_path("out"), F_OK), 0);
    /* any order is allowed; the first tensor comes in two pieces */
    for (size_t i = LENGTH(tensors); i-- > 0;) {
        static const unsigned sizes[] = { 24, 6, 0, 8, 5, 12, 16 };
        memset(data, (int)i + 1, sizeof data);
        const unsigned cut = i ? 0 : 7;
        assert_ok(qv_safetensors_writer_put(w, i, cut, data, sizes[i] - cut, ERR));
        assert_ok(qv_safetensors_writer_put(w, i, 0, data, cut, ERR));
    }
    assert_ok(qv_safetensors_writer_finish(&w, ERR));
    assert_null(w);
    assert_int_equal(temp_count(), 1);

    struct qv_safetensors *file = open_ok(temp_path("out"));
    assert_int_equal(qv_safetensors_count(file), LENGTH(tensors));
    for (size_t i = 0; i < LENGTH(tensors); i++) {
        const struct qv_safetensor *t = qv_safetensors_find(file, tensors[i].name);
        assert_non_null(t);
        assert_string_equal(t->dtype_name, tensors[i].dtype_name);
        assert_int_equal(t->n_dims, tensors[i].n_dims);
        for (int d = 0; d < t->n_dims; d++)
            assert_int_equal(t->shape[d], tensors[i].shape[d]);
        memset(data, (int)i + 1, sizeof data);
        assert_ok(qv_safetensors_read(file, t, 0, got, t->bytes, ERR));
        assert_memory_equal(got, data, t->bytes);
    }
    assert_int_equal(qv_safetensors_at(file, 0)->offset % 8, 0);
    assert_string_equal(qv_safetensors_at(file, 0)->name, "tokens");
}

/* No disk has this much space; the error comes before any data are made. */
TEST(a_file_that_is_too_large_is_not_begun)
{
    const struct qv_safetensor t = tensor("a", "U8", 1, INT64_MAX / 2, 0);
    struct qv_safetensors_writer *w = NULL;
    expect_error(QV_EIO, "out: cannot",
                 qv_safetensors_writer_open(temp_path("out"), &t, 1, NULL, 0, &w, ERR));
    assert_null(w);
    assert_int_equal(temp_count(), 0);
}

TEST(a_file_appears_whole_or_not_at_all)
{
    const struct qv_safetensor t = tensor("a", "F32", 1, 4, 0);
    const char zeros[16] = { 0 };
    struct qv_safetensors_writer *w = NULL;
    temp_text("out", "what was there");
    assert_ok(qv_safetensors_writer_open(temp_path("out"), &t, 1, NULL, 0, &w, ERR));
    assert_int_equal(temp_count(), 2);
    assert_ok(qv_safetensors_writer_put(w, 0, 0, zeros, 12, ERR));
    expect_error(QV_ESTATE, "out|12 of its 16", qv_safetensors_writer_finish(&w, ERR));
    assert_null(w);
    assert_int_equal(temp_count(), 1);

    assert_ok(qv_safetensors_writer_open(temp_path("out"), &t, 1, NULL, 0, &w, ERR));
    qv_safetensors_writer_abort(&w);
    assert_null(w);
    qv_safetensors_writer_abort(&w);
    assert_int_equal(temp_count(), 1);
    struct stat st;
    assert_int_equal(stat(temp_path("out"), &st), 0);
    assert_int_equal(st.st_size, strlen("what was there"));

    expect_error(QV_EIO, "none/out|cannot create",
                 qv_safetensors_writer_open(temp_path("none/out"), &t, 1, NULL, 0, &w, ERR));
    expect_error(QV_EIO, "folder", qv_safetensors_writer_open(tempdir, &t, 1, NULL, 0, &w, ERR));
    assert_null(w);
}

/* The header's texts are known only at the end, and their space is reserved at the beginning. */
TEST(metadata_are_amended_before_the_end)
{
    const struct qv_safetensor t = tensor("a", "U8", 1, 3, 0);
    const char *const metadata[][2] = { { "damaged", "0" }, { "model", "qwen3_vl" } };
    char text[64 + 1] = { 0 }, got[4096] = { 0 };
    struct qv_safetensors_writer *w = NULL;
    assert_ok(qv_safetensors_writer_open(temp_path("m"), &t, 1, metadata, 2, &w, ERR));
    assert_ok(qv_safetensors_writer_put(w, 0, 0, "abc", 3, ERR));
    assert_ok(qv_safetensors_writer_amend(w, "damaged", "12345", ERR));
    assert_ok(qv_safetensors_writer_finish(&w, ERR));
    assert_non_null(
        strstr(file_text(temp_path("m")) + 8, "\"damaged\":\"12345\",\"model\":\"qwen3_vl\""));
    struct qv_safetensors *file = open_ok(temp_path("m"));
    assert_ok(qv_safetensors_read(file, qv_safetensors_find(file, "a"), 0, got, 3, ERR));
    assert_memory_equal(got, "abc", 3);

    memset(text, 'x', sizeof text - 1);
    assert_ok(qv_safetensors_writer_open(temp_path("n"), &t, 1, metadata, 2, &w, ERR));
    expect_error(QV_EINVAL, "n: metadata \"damaged\" has become too long",
                 qv_safetensors_writer_amend(w, "damaged", text, ERR));
    qv_safetensors_writer_abort(&w);
}

/* ---- a folder ------------------------------------------------------------------------------- */

#define INDEX "model.safetensors.index.json"

static void
close_folder(void *c)
{
    qv_checkpoint_close(&(struct qv_checkpoint *){ c });
}

static struct qv_checkpoint *
open_folder(const char *folder)
{
    struct qv_checkpoint *c = NULL;
    assert_ok(qv_checkpoint_open(folder, &c, ERR));
    return test_ends(c, close_folder);
}

/* Returns the first byte of a tensor's data, which says which file it is from; -1 if there is
 * none. */
static int
first_byte(struct qv_checkpoint *c, const char *name)
{
    const struct qv_safetensor *t = NULL;
    const struct qv_safetensors *file = NULL;
    unsigned char byte;
    assert_ok(qv_checkpoint_find(c, name, &t, &file, ERR));
    if (!t) {
        assert_null(file);
        return -1;
    }
    assert_ok(qv_safetensors_read(file, t, 0, &byte, 1, ERR));
    return byte;
}

TEST(the_single_file_comes_first)
{
    make_file("model.safetensors", "{\"a\":" U8("[1]", "0", "1") "}", 1);
    temp_text(INDEX, "not looked at");
    struct qv_checkpoint *c = open_folder(tempdir);
    assert_int_equal(first_byte(c, "a"), 0);
    assert_int_equal(first_byte(c, "b"), -1);
    qv_checkpoint_close(&(struct qv_checkpoint *){ NULL });
}

/* In the Hugging Face cache every file is a link out of the folder. */
TEST(shards_may_be_links)
{
    assert_int_equal(mkdir(temp_path("blobs"), 0700), 0);
    assert_int_equal(mkdir(temp_path("snapshot"), 0700), 0);
    make_file("blobs/1", "{\"v.a\":" U8("[1]", "0", "1") "}", 1);
    make_file("blobs/2", "{\"x\":" U8("[7]", "0", "7") ",\"v.b\":" U8("[1]", "7", "8") "}", 8);
    temp_text("blobs/3",
              "{\"metadata\":{\"total_size\":9},\"weight_map\":{\"v.a\":\"s1.safetensors\","
              "\"v.b\":\"s2.safetensors\",\"t\":\"s3.safetensors\"}}");
    assert_int_equal(symlink("../blobs/1", temp_path("snapshot/s1.safetensors")), 0);
    assert_int_equal(symlink("../blobs/2", temp_path("snapshot/s2.safetensors")), 0);
    assert_int_equal(symlink("../blobs/3", temp_path("snapshot/" INDEX)), 0);

    struct qv_checkpoint *c = open_folder(temp_path("snapshot/"));
    assert_int_equal(first_byte(c, "v.a"), 0);
    assert_int_equal(first_byte(c, "v.b"), 7);
    assert_int_equal(first_byte(c, "v.a"), 0);
    assert_int_equal(first_byte(c, "x"), -1); /* x is in a shard, but not in the index */
    assert_int_equal(first_byte(c, "weight_map"), -1);

    /* s3 belongs to another part of the model and does not exist, which matters only when it is
     * asked for. */
    const struct qv_safetensor *t = NULL;
    const struct qv_safetensors *file = NULL;
    expect_error(QV_EIO, "s3.safetensors|cannot be opened",
                 qv_checkpoint_find(c, "t", &t, &file, ERR));
    assert_null(t);
}

TEST(an_index_that_lies_is_found_out)
{
    const struct qv_safetensor *t = NULL;
    const struct qv_safetensors *file = NULL;
    make_file("s1", "{\"a\":" U8("[1]", "0", "1") "}", 1);
    make_file("s2", "{\"a\":" U8("[2]", "0", "1") "}", 1);
    temp_text(INDEX,
              "{\"weight_map\":{\"a\":\"s1\",\"b\":\"s1\",\"c\":\"s2\",\"d\":\"" INDEX "\"}}");
    struct qv_checkpoint *c = open_folder(tempdir);
    assert_int_equal(first_byte(c, "a"), 0);
    expect_error(QV_EFORMAT, INDEX "|weight_map|\"b\"|s1",
                 qv_checkpoint_find(c, "b", &t, &file, ERR));
    for (int i = 0; i < 2; i++) /* the second time gives what the first did */
        expect_error(QV_EFORMAT, "s2|\"a\"|data_offsets",
                     qv_checkpoint_find(c, "c", &t, &file, ERR));
    expect_error(QV_EFORMAT, INDEX "|header length", qv_checkpoint_find(c, "d", &t, &file, ERR));
    assert_null(t);
    assert_null(file);
}

TEST(bad_indices_are_refused)
{
    static const struct {
        const char *text, *words;
    } cases[] = {
        { "", "empty" },
        { "{\"weight_map\":{}", "line 1" },
        { "[]", "object" },
        { "{}", "weight_map is missing" },
        { "{\"weight_map\":[]}", "weight_map is []" },
        { "{\"weight_map\":{\"a\":1}}", "weight_map \"a\" is 1|bare name" },
        { "{\"weight_map\":{\"a\":\"\"}}", "weight_map \"a\"" },
        { "{\"weight_map\":{\"a\":\".\"}}", "bare name" },
        { "{\"weight_map\":{\"a\":\"..\"}}", "bare name" },
        { "{\"weight_map\":{\"a\":\"../secret\"}}", "\"../secret\"|bare name" },
        { "{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "/etc/passwd|bare name" },
        { "{\"weight_map\":{\"a\":\"sub/s1\"}}", "bare name" },
        { "{\"weight_map\":{\"a\":\"sub\\\\s1\"}}", "bare name" },
        { "{\"weight_map\":{\"a\":\"s\\u001b[2J\"}}", "bare name" },
        { "{\"weight_map\":{\"a\":\"s1\",\"a\":\"s2\"}}", "duplicate" },
        { "{\"weight_map\":{\"a\\u0000\":\"s1\"}}", "NUL" },
        { "version https://git-lfs.github.com/spec/v1\n", "Git-LFS" },
    };
    struct qv_checkpoint *c = NULL;
    EACH (one, cases) {
        char words[256];
        temp_text(INDEX, one->text);
        snprintf(words, sizeof words, INDEX "|%s", one->words);
        expect_error(QV_EFORMAT, words, qv_checkpoint_open(tempdir, &c, ERR));
        assert_null(c);
    }
    const size_t n = 2 << 20;
    char *text = test_alloc(n + 1);
    for (size_t i = 0; i < n; i++)
        text[i] = "{},"[i % 3];
    memcpy(text, "{\"a\":[", 6);
    text[n] = 0;
    temp_text(INDEX, text);
    expect_error(QV_EFORMAT, INDEX "|brackets|at most 262144",
                 qv_checkpoint_open(tempdir, &c, ERR));
    assert_int_equal(truncate(temp_path(INDEX), ((off_t)64 << 20) + 1), 0);
    expect_error(QV_EFORMAT, INDEX "|67108865|at most 67108864",
                 qv_checkpoint_open(tempdir, &c, ERR));
}

TEST(folders_without_weights_are_refused)
{
    struct qv_checkpoint *c = NULL;
    expect_error(QV_EIO, "neither model.safetensors nor|index.json",
                 qv_checkpoint_open(tempdir, &c, ERR));
    expect_error(QV_EIO, "none|no such folder", qv_checkpoint_open(temp_path("none"), &c, ERR));
    temp_text(INDEX, "{\"weight_map\":{}}");
    assert_int_equal(symlink("gone", temp_path("model.safetensors")), 0);
    expect_error(QV_EIO, "model.safetensors|cannot be opened",
                 qv_checkpoint_open(tempdir, &c, ERR));
    assert_null(c);
}

TEST_EACH(tempdir_make, tempdir_remove);
