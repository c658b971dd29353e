/* SPDX-License-Identifier: MIT */
/* Tests conversions against their definitions: every 16-bit pattern, and rounding on both sides of
 * ties. */

#include "test.h"

#include <math.h>

#include "dtype.h"

TEST(bf16_round_trip_of_every_pattern)
{
    for (uint32_t h = 0; h < 65536; h++) {
        float f = qv_bf16_to_f32((qv_bf16)h);
        if (isnan(f))
            assert_true(isnan(qv_bf16_to_f32(qv_f32_to_bf16(f))));
        else
            assert_int_equal(qv_f32_to_bf16(f), h);
    }
}

TEST(bf16_rounds_to_nearest_even)
{
    assert_int_equal(qv_f32_to_bf16(0x1.00p0f), 0x3f80);
    assert_int_equal(qv_f32_to_bf16(0x1.01p0f), 0x3f80);     /* A tie: to even. */
    assert_int_equal(qv_f32_to_bf16(0x1.010002p0f), 0x3f81); /* Just above the tie. */
    assert_int_equal(qv_f32_to_bf16(0x1.03p0f), 0x3f82);     /* A tie: to even. */
    assert_int_equal(qv_f32_to_bf16(0x1.02fffep0f), 0x3f81);
    assert_int_equal(qv_f32_to_bf16(3.4e38f), 0x7f80); /* Overflows to infinity. */
    assert_int_equal(qv_f32_to_bf16(-INFINITY), 0xff80);
}

TEST(double_to_bf16_rounds_once)
{
    qv_bf16 h;
    /* Rounded to f32 first, this would be the tie 1.0078125/2 and would round to even. */
    qv_store(&h, QV_BF16, 0, 0x1.01p0 + 0x1p-40);
    assert_int_equal(h, 0x3f81);
    qv_store(&h, QV_BF16, 0, 0x1.01p0 - 0x1p-40);
    assert_int_equal(h, 0x3f80);
    qv_store(&h, QV_BF16, 0, -(0x1.01p0 + 0x1p-40));
    assert_int_equal(h, 0xbf81);
    qv_store(&h, QV_BF16, 0, NAN);
    assert_true(isnan(qv_bf16_to_f32(h)));
}

TEST(f16_every_pattern)
{
    for (uint32_t h = 0; h < 65536; h++) {
        int e = (int)(h >> 10) & 31, m = (int)h & 0x3ff;
        double expected = e == 31  ? (m ? NAN : INFINITY)
                          : e == 0 ? ldexp(m, -24)
                                   : ldexp(1024 + m, e - 25);
        float f = qv_f16_to_f32((uint16_t)h);
        if (isnan(expected))
            assert_true(isnan(f));
        else
            assert_true((h & 0x8000 ? -expected : expected) == f);
    }
}

TEST(f16_round_trip_of_every_pattern)
{
    for (uint32_t h = 0; h < 65536; h++) {
        float f = qv_f16_to_f32((uint16_t)h);
        if (isnan(f))
            assert_true(isnan(qv_f16_to_f32(qv_f32_to_f16(f))));
        else
            assert_int_equal(qv_f32_to_f16(f), h);
    }
}

/* Half way between every two neighbours, and next to it on both sides. */
TEST(f16_rounds_to_nearest_even)
{
    for (uint32_t h = 0; h < 0x7bff; h++) {
        double a = qv_f16_to_f32((uint16_t)h), b = qv_f16_to_f32((uint16_t)(h + 1));
        double half = (a + b) / 2, less = half - (b - a) * 0x1p-30, more = half + (b - a) * 0x1p-30;
        uint16_t stored[4];
        qv_store(stored, QV_F16, 0, half);
        qv_store(stored, QV_F16, 1, less);
        qv_store(stored, QV_F16, 2, more);
        qv_store(stored, QV_F16, 3, -half);
        assert_int_equal(stored[0], h + (h & 1));
        assert_int_equal(stored[1], h);
        assert_int_equal(stored[2], h + 1);
        assert_int_equal(stored[3], 0x8000 | (h + (h & 1)));
    }
    assert_int_equal(qv_f32_to_f16(65519.996f), 0x7bff);
    assert_int_equal(qv_f32_to_f16(65520), 0x7c00); /* Overflows to infinity. */
    assert_int_equal(qv_f32_to_f16(-INFINITY), 0xfc00);
}

TEST(names_and_sizes)
{
    static const struct {
        qv_dtype dtype;
        const char *name, *file_name;
        size_t bytes;
    } all[] = { { QV_F32, "f32", "F32", 4 }, { QV_BF16, "bf16", "BF16", 2 },
                { QV_F16, "f16", "F16", 2 }, { QV_U8, "u8", "U8", 1 },
                { QV_I32, "i32", NULL, 4 },  { QV_DTYPE_AUTO, "auto", NULL, 1 } };
    qv_dtype dtype = QV_DTYPE_MAX;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        assert_string_equal(qv_dtype_name(all[i].dtype), all[i].name);
        assert_true(qv_dtype_parse(all[i].name, &dtype));
        assert_int_equal(dtype, all[i].dtype);
        assert_int_equal(qv_dtype_bytes(dtype), all[i].bytes);
        if (!all[i].file_name) {
            assert_null(qv_dtype_file_name(all[i].dtype));
            continue;
        }
        assert_string_equal(qv_dtype_file_name(all[i].dtype), all[i].file_name);
        assert_true(qv_dtype_parse_file(all[i].file_name, &dtype));
        assert_int_equal(dtype, all[i].dtype);
    }
    assert_false(qv_dtype_parse_file("I32", &dtype)); /* No file that we read has it. */
    assert_false(qv_dtype_parse_file("bf16", &dtype));
    assert_false(qv_dtype_parse("f64", &dtype));
    assert_false(qv_dtype_parse("", &dtype));
    assert_string_equal(qv_dtype_name(QV_DTYPE_MAX), "unknown qv_dtype");
}

/* Each dtype is stored as itself; none is written as if it were bf16. */
TEST(store_and_load)
{
    static const qv_dtype all[] = { QV_F32, QV_BF16, QV_F16, QV_U8, QV_I32 };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        unsigned char bytes[12];
        memset(bytes, 0xee, sizeof bytes);
        size_t n = qv_dtype_bytes(all[i]);
        qv_store(bytes, all[i], 1, 200);
        assert_true(qv_load(bytes, all[i], 1) == 200);
        for (size_t at = 0; at < sizeof bytes; at++)
            if (at < n || at >= 2 * n)
                assert_int_equal(bytes[at], 0xee);
    }
}
