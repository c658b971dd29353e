/* SPDX-License-Identifier: MIT */
/* Conversions against their definitions: every 16-bit pattern, and rounding on both sides. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "dtype.h"

static void
bf16_round_trip_of_every_pattern(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = qv_bf16_to_f32((qv_bf16)h);
        if (isnan(f))
            assert_true(isnan(qv_bf16_to_f32(qv_f32_to_bf16(f))));
        else
            assert_int_equal(qv_f32_to_bf16(f), h);
    }
}

static void
bf16_rounds_to_nearest_even(void **state)
{
    (void)state;
    assert_int_equal(qv_f32_to_bf16(0x1.00p0f), 0x3f80);
    assert_int_equal(qv_f32_to_bf16(0x1.01p0f), 0x3f80);     /* half: to even */
    assert_int_equal(qv_f32_to_bf16(0x1.010002p0f), 0x3f81); /* just above half */
    assert_int_equal(qv_f32_to_bf16(0x1.03p0f), 0x3f82);     /* half: to even */
    assert_int_equal(qv_f32_to_bf16(0x1.02fffep0f), 0x3f81);
    assert_int_equal(qv_f32_to_bf16(3.4e38f), 0x7f80); /* overflows to infinity */
    assert_int_equal(qv_f32_to_bf16(-INFINITY), 0xff80);
}

static void
double_to_bf16_rounds_once(void **state)
{
    (void)state;
    qv_bf16 h;
    /* rounded to f32 first this would be the tie 1.0078125/2, and go to even */
    qv_store(&h, QV_BF16, 0, 0x1.01p0 + 0x1p-40);
    assert_int_equal(h, 0x3f81);
    qv_store(&h, QV_BF16, 0, 0x1.01p0 - 0x1p-40);
    assert_int_equal(h, 0x3f80);
    qv_store(&h, QV_BF16, 0, -(0x1.01p0 + 0x1p-40));
    assert_int_equal(h, 0xbf81);
    qv_store(&h, QV_BF16, 0, NAN);
    assert_true(isnan(qv_bf16_to_f32(h)));
}

static void
f16_every_pattern(void **state)
{
    (void)state;
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

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16_round_trip_of_every_pattern),
        cmocka_unit_test(bf16_rounds_to_nearest_even),
        cmocka_unit_test(double_to_bf16_rounds_once),
        cmocka_unit_test(f16_every_pattern),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
