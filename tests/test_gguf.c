/* SPDX-License-Identifier: MIT */
/* Tests GGUF files: honest ones are read correctly; hostile ones are refused with helpful errors;
 * and blocks of every quantised type have the values that the `gguf` package computes. */

#include "test.h"

#include <math.h>

#include "files/gguf.h"
#include "gguf_file.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

static struct qv_gguf *
open_ok(const char *path)
{
    struct qv_gguf *file = NULL;
    assert_ok(qv_gguf_open(path, &file, ERR));
    return file;
}

static void
expect_open_failure(const char *what, const char *path, qv_status status, const char *words)
{
    struct qv_gguf *file = NULL;
    qv_error err = { 0 };
    const qv_status s = qv_gguf_open(path, &file, &err);
    expect_failure(what, status, words, s, &err);
    assert_null(file);
    assert_int_equal(qv_gguf_open(path, &file, NULL), status);
}

/* ---- honest files ---------------------------------------------------------------------------- */

TEST(honest_files_come_back)
{
    static const float eps = 1e-6f, mean[3] = { 0.48145466f, 0.5f, INFINITY };
    static const int16_t data[6] = { 1, 2, 3, 4, 5, 6 };
    for (uint32_t version = 2; version <= 3; version++) {
        struct gguf_file f = { .version = version };
        gguf_string(&f, "general.architecture", "clip");
        gguf_u32(&f, "clip.vision.block_count", 7);
        gguf_floats(&f, "clip.eps", &eps, 1);
        gguf_floats(&f, "clip.mean", mean, 3);
        gguf_bools(&f, "clip.flags", (bool[]){ true, false }, 2);
        gguf_u32(&f, "tokenizer.ggml.bos", 1); /* a key of others, which is not kept */
        gguf_key(&f, "clip.large", 10);
        put_number(&f.keys, UINT64_MAX, 8);
        gguf_key(&f, "clip.negative", 3);
        put_number(&f.keys, 0xfffe, 2);
        gguf_tensor(&f, "b", 1, 2, (int64_t[]){ 2, 3 }, data, 12);
        gguf_tensor(&f, "a", 8, 1, (int64_t[]){ 32 }, mean, 0); /* its data follow */
        put(&f.data, (uint8_t[34]){ 0 }, 34);
        struct qv_gguf *file = open_ok(gguf_write(&f, "honest.gguf"));
        const json_t *keys = qv_gguf_keys(file), *list = json_object_get(keys, "clip.mean");
        assert_int_equal(json_object_size(keys), 7);
        assert_true(json_real_value(json_object_get(keys, "clip.eps")) == 1e-6);
        assert_true(fabs(json_real_value(json_array_get(list, 0)) - 0.48145466) < 3e-8);
        assert_true(json_is_null(json_array_get(list, 2)));
        assert_int_equal(json_integer_value(json_object_get(keys, "clip.negative")), -2);
        assert_true(json_real_value(json_object_get(keys, "clip.large")) == 0x1p64);
        assert_true(json_is_true(json_array_get(json_object_get(keys, "clip.flags"), 0)));
        const struct qv_gguf_tensor *b = qv_gguf_find(file, "b");
        int16_t read[6];
        qv_error err = { 0 };
        assert_true(b && b->n_dims == 2 && b->shape[0] == 2 && b->shape[1] == 3 && b->bytes == 12);
        assert_ok(qv_gguf_read(file, b, 0, read, 12, ERR));
        assert_memory_equal(read, data, sizeof data);
        expect_failure("beyond", QV_EINVAL, "tensor \"b\" has 12 bytes|13 from byte 0",
                       qv_gguf_read(file, b, 0, read, 13, &err), &err);
        assert_string_equal(qv_gguf_find(file, "a")->type->name, "Q8_0");
        assert_null(qv_gguf_find(file, "c"));
        assert_true(qv_gguf_count(file) == 2 && !qv_gguf_at(file, 2));
        assert_true(qv_gguf_is(qv_gguf_path(file)));
        qv_gguf_close(&file);
        assert_null(file);
    }
}

/* ---- hostile files --------------------------------------------------------------------------- */

/* Makes a file from pieces: "u4:3" is a number of 4 bytes, "t:name" a text with its length,
 * "z:8" zeros, "x:ff" a byte; anything else is taken as it is. */
static const char *
make(const char *pieces)
{
    struct bytes b = { 0 };
    char copy[1024], *rest = copy;
    snprintf(copy, sizeof copy, "%s", pieces);
    for (char *piece; (piece = strsep(&rest, " ")) != NULL;) {
        if (piece[0] == 'u' && piece[1] && piece[2] == ':')
            put_number(&b, strtoull(piece + 3, NULL, 0), piece[1] - '0');
        else if (!strncmp(piece, "t:", 2))
            put_text(&b, piece + 2);
        else if (!strncmp(piece, "z:", 2))
            for (long i = strtol(piece + 2, NULL, 0); i > 0; i--)
                put_number(&b, 0, 1);
        else if (!strncmp(piece, "x:", 2))
            put_number(&b, strtoull(piece + 2, NULL, 16), 1);
        else
            put(&b, piece, strlen(piece));
    }
    const char *path = temp_file("hostile.gguf", b.at ? b.at : (void *)"", b.n);
    free(b.at);
    return path;
}

#define HEAD(tensors, keys) "GGUF u4:3 u8:" tensors " u8:" keys
#define F32(name, dims, offset) " t:" name " " dims " u4:0 u8:" offset

TEST(hostile_files_are_refused)
{
    static const struct {
        const char *pieces, *words;
    } wrong[] = {
        /* the magic number */
        { "", "hostile.gguf: ends inside the magic number" },
        { "GGU", "magic number: 4 bytes needed from byte 0 on, 3 left" },
        { "GGJT u4:3 z:32", "is not a GGUF file: it begins with 47 47 4a 54" },
        { "PK x:03 x:04 z:32", "not a GGUF file|zip" },
        { "GGUF", "ends inside the version" },
        { "GGUF u4:3 u8:0", "ends inside the number of keys" },
        /* counts */
        { HEAD("0x10000000000", "0") " z:64", "number of tensors is 1099511627776|1048576" },
        { HEAD("1000000", "0") " z:64", "number of tensors is 1000000, but only 64" },
        { HEAD("0", "0xffffffffffffffff"), "number of keys is 18446744073709551615" },
        { HEAD("0", "6000") " z:64", "number of keys is 6000, but only 64" },
        /* keys */
        { HEAD("0", "1") " u8:0xffffffffffffffff z:8", "a key at|18446744073709551615" },
        { HEAD("0", "1") " u8:0 u4:4 u4:1", "a key|has 0 bytes; it must have 1 to 1024" },
        { HEAD("0", "1") " u8:40 general.x u4:4", "ends inside a key: 40 bytes" },
        { HEAD("0", "1") " u8:4 ab x:00 d u4:4 u4:1",
          "a key before|is not UTF-8, or contains a NUL" },
        { HEAD("0", "1") " u8:2 a x:ff u4:4 u4:1", "is not UTF-8" },
        { HEAD("0", "1") " t:clip.x u4:13 z:8", "key \"clip.x\": its type is 13" },
        { HEAD("0", "1") " t:clip.x u4:0x80000000 z:8", "its type is 2147483648" },
        { HEAD("0", "2") " t:clip.x u4:4 u4:1 t:clip.x u4:4 u4:1",
          "key \"clip.x\" occurs twice" },
        { HEAD("0", "1") " t:clip.x u4:7 u1:2", "the boolean before|is 2; it must be 0 or 1" },
        { HEAD("0", "1") " t:clip.x u4:8 u8:0x7fffffffffffffff", "inside a text" },
        { HEAD("0", "1") " t:clip.x u4:9 u4:9 u8:1 z:12", "9 (array) in an array" },
        { HEAD("0", "1") " t:clip.x u4:9 u4:4 u8:0x4000000000000000 z:8",
          "key \"clip.x\": an array of 4611686018427387904 values, but only 8" },
        { HEAD("0", "1") " t:other.x u4:9 u4:8 u8:2 u8:0 u8:9 abc", "inside a text" },
        { HEAD("0", "1") " t:other.x u4:9 u4:12 u8:0x2000000000000001 z:8", "an array of" },
        { HEAD("0", "1") " t:clip.x u4:4 u2:1", "ends inside a value" },
        /* alignment */
        { HEAD("0", "1") " t:general.alignment u4:4 u4:0", "alignment is 0; it must be" },
        { HEAD("0", "1") " t:general.alignment u4:4 u4:33", "alignment is 33; it must be" },
        { HEAD("0", "1") " t:general.alignment u4:4 u4:0x80000000", "is 2147483648; it" },
        { HEAD("0", "1") " t:general.alignment u4:10 u8:0xffffffffffffffff", "alignment is" },
        { HEAD("0", "1") " t:general.alignment u4:8 t:32", "alignment is \"32\"" },
        /* tensors */
        { HEAD("1", "0") F32("a", "u4:0", "0") " z:64", "\"a\" has 0 dimensions" },
        { HEAD("1", "0") F32("a", "u4:5 u8:1 u8:1 u8:1 u8:1 u8:1", "0") " z:64",
          "\"a\" has 5 dimensions; it must have 1 to 4" },
        { HEAD("1", "0") F32("a", "u4:4294967295", "0") " z:64", "has 4294967295 dimens" },
        { HEAD("1", "0") F32("a", "u4:2 u8:4 u8:0", "0") " z:64", "dimension 1 is 0" },
        { HEAD("1", "0") F32("a", "u4:1 u8:0xffffffffffffffff", "0") " z:64",
          "dimension 0 is 18446744073709551615" },
        { HEAD("1", "0") F32("a", "u4:2 u8:0x100000000 u8:0x100000000", "0") " z:64",
          "product fit into 64 bits" },
        { HEAD("1", "0") F32("a", "u4:1 u8:0x4000000000000001", "0") " z:64",
          "\"a\": its size in bytes overflows" },
        { HEAD("1", "0") " t:a u4:2 u8:33 u8:32 u4:8 u8:0 z:2048",
          "\"a\" is Q8_0 with rows of 33 values; Q8_0 has blocks of 32" },
        { HEAD("1", "0") F32("a", "u4:1 u8:4", "8") " z:96", "is 8, not a multiple|32" },
        { HEAD("1", "0") F32("a", "u4:1 u8:64", "0") " z:64", "256 bytes from 0 on end past" },
        { HEAD("1", "0") F32("a", "u4:1 u8:4", "0xffffffffffffffe0") " z:96",
          "from 18446744073709551584 on end past" },
        { HEAD("1", "0") F32("a", "u4:1 u8:4", "0"), "before the data|incomplete download" },
        { HEAD("2", "0") F32("a", "u4:1 u8:16", "0") F32("b", "u4:1 u8:4", "32") " z:256",
          "\"b\": its offset is 32, but the previous tensor ends at 64" },
        { HEAD("2", "0") F32("a", "u4:1 u8:4", "0") F32("b", "u4:1 u8:4", "0") " z:256",
          "its offset is 0, but the previous tensor ends at 16" },
        { HEAD("2", "0") F32("a", "u4:1 u8:4", "0") F32("a", "u4:1 u8:4", "32") " z:256",
          "tensor \"a\" occurs twice" },
        { HEAD("1", "0") " u8:200 z:300", "a tensor's name|has 200 bytes; it must have 1 to" },
        { HEAD("1", "0") " u8:3 a x:1b x:ff u4:1 u8:4 u4:0 u8:0 z:96", "is not UTF-8" },
    }, unsupported[] = {
        { "GGUF u4:1 u4:0 u4:0", "version is 1; 2 and 3" },
        { "GGUF u4:4 z:16", "version is 4" },
        { "GGUF u4:0 z:16", "version is 0" },
        { "GGUF u4:0x03000000 z:16", "version is 3 when read backwards|big-endian" },
        { HEAD("1", "0") " t:a u4:1 u8:4 u4:4 u8:0 z:64", "\"a\" has the unknown ggml type 4" },
        { HEAD("1", "0") " t:a u4:1 u8:4 u4:99 u8:0 z:64", "type 99|Q6_K can be read" },
    };
    assert_true(COUNT(wrong) >= 40);
    EACH (c, wrong)
        expect_open_failure(c->pieces, make(c->pieces), QV_EFORMAT, c->words);
    EACH (c, unsupported)
        expect_open_failure(c->pieces, make(c->pieces), QV_EUNSUPPORTED, c->words);
    expect_open_failure("folder", tempdir, QV_EIO, "is a folder");
    expect_open_failure("none", temp_path("none.gguf"), QV_EIO, "none.gguf: cannot be opened");
}

/* Arrays with more values than are kept are skipped, and all kept arrays together have a limit. */
TEST(large_arrays_take_no_memory)
{
    struct gguf_file f = { 0 };
    gguf_key(&f, "clip.long", GGUF_ARRAY);
    put_number(&f.keys, 0, 4);
    put_number(&f.keys, 100000, 8);
    for (int i = 0; i < 100000; i++)
        put_number(&f.keys, 1, 1);
    struct qv_gguf *file = open_ok(gguf_write(&f, "long.gguf"));
    assert_true(json_is_null(json_object_get(qv_gguf_keys(file), "clip.long")));
    qv_gguf_close(&file);
    for (int i = 0; i < 65; i++) {
        char key[24];
        snprintf(key, sizeof key, "clip.%d", i);
        gguf_key(&f, key, GGUF_ARRAY);
        put_number(&f.keys, 0, 4);
        put_number(&f.keys, 1024, 8);
        for (int j = 0; j < 1024; j++)
            put_number(&f.keys, 1, 1);
    }
    expect_open_failure("sum", gguf_write(&f, "sum.gguf"), QV_EFORMAT,
                        "key \"clip.64\": its array and the earlier ones have more than 65536");
}

/* Every cut of an honest file is refused, and none is read beyond its end. */
TEST(every_cut_is_refused)
{
    struct gguf_file f = { 0 };
    gguf_string(&f, "general.architecture", "clip");
    gguf_bools(&f, "clip.flags", (bool[]){ true, false }, 2);
    gguf_tensor(&f, "a", 0, 2, (int64_t[]){ 2, 4 }, (float[8]){ 0 }, 32);
    const char *path = gguf_write(&f, "whole.gguf");
    struct qv_gguf *file = open_ok(path);
    qv_gguf_close(&file);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    for (off_t n = st.st_size - 1; n >= 0; n--) {
        qv_error err = { 0 };
        assert_int_equal(truncate(path, n), 0);
        assert_int_equal(qv_gguf_open(path, &file, &err), QV_EFORMAT);
        assert_null(file);
    }
}

/* ---- types ----------------------------------------------------------------------------------- */

enum { BLOCKS = 64 };

static uint64_t
fnv(const void *data, size_t n)
{
    uint64_t h = 0xcbf29ce484222325;
    for (const uint8_t *p = data, *end = p + n; p < end; p++)
        h = (h ^ *p) * 0x100000001b3;
    return h;
}

/* tools/reference/gguf_types.py prints this table. */
static const struct {
    const char *name;
    uint32_t id;
    float ends[2]; /* value 1 and the last value of the first block */
    uint64_t hash; /* hash of all values' bits */
} types[] = {
    { "Q8_0", 8, { 0x0.0p+0, -0x1.6c7ep-4 }, 0x45eccdc865f53f9b },
    { "Q4_0", 2, { 0x1.0fp-12, 0x1.968p-11 }, 0xa30c303190f56a2d },
    { "Q4_1", 3, { -0x1.97a38p-3, -0x1.9b0ep-5 }, 0x7f3b2ee52ba3473c },
    { "Q5_0", 6, { 0x1.f6ep-4, -0x1.2558p-2 }, 0xc743018d3a50baa6 },
    { "Q5_1", 7, { -0x1.927f38p-2, -0x1.92705cp-2 }, 0x8ea3b585c59daa31 },
    { "Q4_K", 12, { 0x1.c47cp+2, 0x1.06d92p+6 }, 0x0ed4c95e1ef118da },
    { "Q5_K", 13, { -0x1.f8a59cp+1, -0x1.041e8cp+1 }, 0xbeb3de52caeeb769 },
    { "Q6_K", 14, { 0x1.2fce6p+6, -0x1.029cp+3 }, 0xa235b44837765cfb },
};

/* Makes seeded blocks, whose f16 numbers are finite. */
static void
fill_blocks(const struct qv_gguf_type *type, uint8_t *blocks)
{
    const int second = !strcmp(type->name, "Q4_1") || !strcmp(type->name, "Q5_1") ||
                               !strcmp(type->name, "Q4_K") || !strcmp(type->name, "Q5_K")
                           ? 2
                           : 0;
    const int first = !strcmp(type->name, "Q6_K") ? 208 : 0;
    uint32_t seed = type->id + 1;
    for (int i = 0; i < BLOCKS * type->bytes; i++)
        blocks[i] = (uint8_t)(test_random(&seed) >> 24);
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i * type->bytes + first + 1] &= 0xbf;
        if (second)
            blocks[i * type->bytes + second + 1] &= 0xbf;
    }
}

TEST(blocks_are_what_ggml_makes_of_them)
{
    for (size_t i = 0; i < COUNT(types); i++) {
        const struct qv_gguf_type *type = qv_gguf_type_find(types[i].id);
        assert_non_null(type);
        assert_string_equal(type->name, types[i].name);
        assert_true(qv_gguf_type_can_be_read(type));
        const size_t n = (size_t)BLOCKS * (size_t)type->values;
        uint8_t *blocks = test_alloc((size_t)BLOCKS * (size_t)type->bytes);
        float *out = test_alloc(n * sizeof *out);
        assert_true(blocks && out);
        fill_blocks(type, blocks);
        qv_gguf_widen(type, blocks, (int64_t)n, out);
        assert_true(out[1] == types[i].ends[0] && out[type->values - 1] == types[i].ends[1]);
        if (fnv(out, n * sizeof *out) != types[i].hash)
            fail_msg("%s: other values than the gguf package's", type->name);
    }
}

TEST(plain_values_are_widened)
{
    float out[2];
    qv_gguf_widen(qv_gguf_type_find(1), (uint16_t[]){ 0x3c00, 0xc000 }, 2, out);
    assert_true(out[0] == 1 && out[1] == -2);
    qv_gguf_widen(qv_gguf_type_find(30), (uint16_t[]){ 0x3f80, 0xc000 }, 2, out);
    assert_true(out[0] == 1 && out[1] == -2);
    qv_gguf_widen(qv_gguf_type_find(0), (float[]){ 3, -4 }, 2, out);
    assert_true(out[0] == 3 && out[1] == -4);
    assert_false(qv_gguf_type_can_be_read(qv_gguf_type_find(10)));
    assert_null(qv_gguf_type_find(4));
}

TEST_EACH(tempdir_make, tempdir_remove);
