/* SPDX-License-Identifier: MIT */
/* The resize kernels with AVX2 and AVX-512. They equal the portable C of resize.c bit for bit. */
#include "pixels.h"

#ifdef QVM_X86
#include <immintrin.h>
#include <string.h>

/* ---- AVX2 ------------------------------------------------------------------------------------ */

/* Loads four taps of one row: lane 0 holds taps 0 and 1 as the words [r0 r1 g0 g1 b0 b1 0 0],
 * lane 1 taps 2 and 3. It reads 16 bytes but uses only 12. */
__attribute__((target("avx2"))) static inline __m256i
taps4(const uint8_t *s, __m256i spread)
{
    const __m128i bytes = _mm_loadu_si128((const __m128i *)s);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes), spread);
}

__attribute__((target("avx2"))) static void
across_avx2(const struct qv_axis *axis, const uint8_t *const *src, uint8_t *const *dst)
{
    const __m256i spread =
        _mm256_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1, 6, -1, 9, -1, 7,
                         -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1);
    const __m256i pairs = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
    const __m256i half = _mm256_setr_epi32(1 << axis->precision >> 1, 1 << axis->precision >> 1,
                                           1 << axis->precision >> 1, 0, 0, 0, 0, 0);
    const __m128i shift = _mm_cvtsi32_si128(axis->precision);
    const int16_t *w = axis->weights;

    for (int i = 0; i < axis->out; i++) {
        size_t at = 3 * (size_t)axis->start[i];
        __m256i a[QVM_ROWS] = { half, half, half, half };
        for (int k = 0; k < axis->taps; k += 4, w += 4, at += 12) {
            int64_t four;
            memcpy(&four, w, 8);
            const __m256i v =
                _mm256_permutevar8x32_epi32(_mm256_castsi128_si256(_mm_cvtsi64_si128(four)), pairs);
            for (int r = 0; r < QVM_ROWS; r++)
                a[r] = _mm256_add_epi32(a[r], _mm256_madd_epi16(taps4(src[r] + at, spread), v));
        }
        const __m256i b01 = _mm256_add_epi32(_mm256_permute2x128_si256(a[0], a[1], 0x20),
                                             _mm256_permute2x128_si256(a[0], a[1], 0x31));
        const __m256i b23 = _mm256_add_epi32(_mm256_permute2x128_si256(a[2], a[3], 0x20),
                                             _mm256_permute2x128_si256(a[2], a[3], 0x31));
        const __m256i words =
            _mm256_packs_epi32(_mm256_sra_epi32(b01, shift), _mm256_sra_epi32(b23, shift));
        const __m256i bytes = _mm256_packus_epi16(words, words);
        const int32_t rows[4] = { _mm256_extract_epi32(bytes, 0), _mm256_extract_epi32(bytes, 4),
                                  _mm256_extract_epi32(bytes, 1), _mm256_extract_epi32(bytes, 5) };
        for (int r = 0; r < 4; r++)
            memcpy(dst[r] + 3 * (size_t)i, &rows[r], 4);
    }
}

__attribute__((target("avx2"))) static void
down_avx2(const uint8_t *const *rows, const int16_t *weights, int taps, int precision, uint8_t *dst,
          size_t n)
{
    const __m128i shift = _mm_cvtsi32_si128(precision);
    const __m256i zero = _mm256_setzero_si256();
    for (size_t x = 0; x < n; x += 32) {
        __m256i s0 = _mm256_set1_epi32(1 << precision >> 1), s1 = s0, s2 = s0, s3 = s0;
        for (int k = 0; k < taps; k += 2) {
            int32_t two;
            memcpy(&two, weights + k, 4);
            const __m256i w = _mm256_set1_epi32(two);
            const __m256i a = _mm256_loadu_si256((const __m256i *)(rows[k] + x));
            const __m256i b = _mm256_loadu_si256((const __m256i *)(rows[k + 1] + x));
            const __m256i lo = _mm256_unpacklo_epi8(a, b), hi = _mm256_unpackhi_epi8(a, b);
            s0 = _mm256_add_epi32(s0, _mm256_madd_epi16(_mm256_unpacklo_epi8(lo, zero), w));
            s1 = _mm256_add_epi32(s1, _mm256_madd_epi16(_mm256_unpackhi_epi8(lo, zero), w));
            s2 = _mm256_add_epi32(s2, _mm256_madd_epi16(_mm256_unpacklo_epi8(hi, zero), w));
            s3 = _mm256_add_epi32(s3, _mm256_madd_epi16(_mm256_unpackhi_epi8(hi, zero), w));
        }
        const __m256i lo =
            _mm256_packs_epi32(_mm256_sra_epi32(s0, shift), _mm256_sra_epi32(s1, shift));
        const __m256i hi =
            _mm256_packs_epi32(_mm256_sra_epi32(s2, shift), _mm256_sra_epi32(s3, shift));
        _mm256_storeu_si256((__m256i *)(dst + x), _mm256_packus_epi16(lo, hi));
    }
}

/* ---- AVX-512 --------------------------------------------------------------------------------- */

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi")))

/* Loads eight taps of one row, with taps 2j and 2j+1 in lane j as in taps4(). It reads exactly
 * 24 bytes. */
AVX512 static inline __m512i
taps8(const uint8_t *s, __m512i spread)
{
    const __m256i bytes = _mm256_maskz_loadu_epi8(0xffffff, s);
    return _mm512_maskz_permutexvar_epi8(0x0555055505550555u, spread,
                                         _mm512_castsi256_si512(bytes));
}

/* Lane r of the result is the sum of the four lanes of row r. */
AVX512 static inline __m512i
sum_lanes(__m512i a0, __m512i a1, __m512i a2, __m512i a3)
{
    const __m512i b01 =
        _mm512_add_epi32(_mm512_shuffle_i32x4(a0, a1, 0x44), _mm512_shuffle_i32x4(a0, a1, 0xee));
    const __m512i b23 =
        _mm512_add_epi32(_mm512_shuffle_i32x4(a2, a3, 0x44), _mm512_shuffle_i32x4(a2, a3, 0xee));
    return _mm512_add_epi32(_mm512_shuffle_i32x4(b01, b23, 0x88),
                            _mm512_shuffle_i32x4(b01, b23, 0xdd));
}

AVX512 static void
across_avx512(const struct qv_axis *axis, const uint8_t *const *src, uint8_t *const *dst)
{
    uint8_t order[64] = { 0 };
    for (int tap = 0; tap < 8; tap++)
        for (int c = 0; c < 3; c++)
            order[16 * (tap / 2) + 4 * c + 2 * (tap % 2)] = (uint8_t)(3 * tap + c);
    const __m512i spread = _mm512_loadu_si512(order);
    const __m512i pairs = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    const __m512i half = _mm512_maskz_set1_epi32(0x7, 1 << axis->precision >> 1);
    const __m128i shift = _mm_cvtsi32_si128(axis->precision);
    const int16_t *w = axis->weights;

    for (int i = 0; i < axis->out; i++) {
        size_t at = 3 * (size_t)axis->start[i];
        __m512i a[QVM_ROWS] = { half, half, half, half };
        for (int k = 0; k < axis->taps; k += 8, w += 8, at += 24) {
            const __m128i eight = _mm_loadu_si128((const __m128i *)w);
            const __m512i v = _mm512_permutexvar_epi32(pairs, _mm512_castsi128_si512(eight));
            for (int r = 0; r < QVM_ROWS; r++)
                a[r] = _mm512_add_epi32(a[r], _mm512_madd_epi16(taps8(src[r] + at, spread), v));
        }
        const __m512i sum = _mm512_sra_epi32(sum_lanes(a[0], a[1], a[2], a[3]), shift);
        const __m128i bytes = _mm512_cvtusepi32_epi8(_mm512_max_epi32(sum, _mm512_setzero_si512()));
        const int32_t rows[4] = { _mm_extract_epi32(bytes, 0), _mm_extract_epi32(bytes, 1),
                                  _mm_extract_epi32(bytes, 2), _mm_extract_epi32(bytes, 3) };
        for (int r = 0; r < 4; r++)
            memcpy(dst[r] + 3 * (size_t)i, &rows[r], 4);
    }
}

/* Stores sixteen sums (r g b - of four outputs) as twelve bytes in order, and overwrites the next
 * four bytes. */
AVX512 static inline void
store4(uint8_t *dst, __m512i sum, __m128i shift)
{
    const __m128i close = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
    const __m512i v = _mm512_max_epi32(_mm512_sra_epi32(sum, shift), _mm512_setzero_si512());
    _mm_storeu_si128((__m128i *)dst, _mm_shuffle_epi8(_mm512_cvtusepi32_epi8(v), close));
}

/* For four adjacent outputs that read at most 64 bytes: one load serves all, then each lane selects
 * its output's taps, so no sum crosses lanes. */
AVX512 static void
across_packed(const struct qv_axis *axis, const uint8_t *const *src, uint8_t *const *dst)
{
    uint8_t order[64] = { 0 };
    for (int j = 0; j < 4; j++)
        for (int c = 0; c < 3; c++)
            for (int tap = 0; tap < 2; tap++)
                order[16 * j + 4 * c + 2 * tap] = (uint8_t)(3 * tap + c);
    const __m512i base = _mm512_loadu_si512(order);
    const __m512i lanes = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    const __m512i half = _mm512_maskz_set1_epi32(0x7777, 1 << axis->precision >> 1);
    const __m512i six = _mm512_set1_epi8(6);
    const __mmask64 used = 0x0555055505550555u;
    const __m128i shift = _mm_cvtsi32_si128(axis->precision);
    const int16_t *w = axis->weights;

    for (int i = 0; i < axis->out; i += 4) {
        const size_t at = 3 * (size_t)axis->start[i];
        const size_t left = 3 * (size_t)axis->in - at;
        const __mmask64 inside = left < 64 ? ((__mmask64)1 << left) - 1 : ~(__mmask64)0;
        __m512i s[QVM_ROWS];
        for (int r = 0; r < QVM_ROWS; r++)
            s[r] = _mm512_maskz_loadu_epi8(inside, src[r] + at);
        const __m128i starts = _mm_loadu_si128((const __m128i *)(axis->start + i));
        const __m128i apart = _mm_sub_epi32(starts, _mm_set1_epi32(axis->start[i]));
        const __m128i bytes = _mm_mullo_epi32(apart, _mm_set1_epi32(0x030303));
        __m512i from =
            _mm512_add_epi8(base,
                            _mm512_permutexvar_epi32(lanes, _mm512_castsi128_si512(_mm_or_si128(
                                                                bytes, _mm_slli_epi32(bytes, 8)))));
        __m512i a[QVM_ROWS] = { half, half, half, half };
        for (int k = 0; k < axis->taps; k += 2, w += 8) {
            const __m512i v =
                _mm512_permutexvar_epi32(lanes, _mm512_castsi128_si512(
                                                    _mm_loadu_si128((const __m128i *)w)));
            for (int r = 0; r < QVM_ROWS; r++) {
                const __m512i taps = _mm512_maskz_permutexvar_epi8(used, from, s[r]);
                a[r] = _mm512_add_epi32(a[r], _mm512_madd_epi16(taps, v));
            }
            from = _mm512_add_epi8(from, six);
        }
        for (int r = 0; r < QVM_ROWS; r++)
            store4(dst[r] + 3 * (size_t)i, a[r], shift);
    }
}

AVX512 static void
down_avx512(const uint8_t *const *rows, const int16_t *weights, int taps, int precision,
            uint8_t *dst, size_t n)
{
    const __m128i shift = _mm_cvtsi32_si128(precision);
    const __m512i zero = _mm512_setzero_si512();
    for (size_t x = 0; x < n; x += 64) {
        __m512i s0 = _mm512_set1_epi32(1 << precision >> 1), s1 = s0, s2 = s0, s3 = s0;
        for (int k = 0; k < taps; k += 2) {
            int32_t two;
            memcpy(&two, weights + k, 4);
            const __m512i w = _mm512_set1_epi32(two);
            const __m512i a = _mm512_loadu_si512(rows[k] + x);
            const __m512i b = _mm512_loadu_si512(rows[k + 1] + x);
            const __m512i lo = _mm512_unpacklo_epi8(a, b), hi = _mm512_unpackhi_epi8(a, b);
            s0 = _mm512_add_epi32(s0, _mm512_madd_epi16(_mm512_unpacklo_epi8(lo, zero), w));
            s1 = _mm512_add_epi32(s1, _mm512_madd_epi16(_mm512_unpackhi_epi8(lo, zero), w));
            s2 = _mm512_add_epi32(s2, _mm512_madd_epi16(_mm512_unpacklo_epi8(hi, zero), w));
            s3 = _mm512_add_epi32(s3, _mm512_madd_epi16(_mm512_unpackhi_epi8(hi, zero), w));
        }
        const __m512i lo =
            _mm512_packs_epi32(_mm512_sra_epi32(s0, shift), _mm512_sra_epi32(s1, shift));
        const __m512i hi =
            _mm512_packs_epi32(_mm512_sra_epi32(s2, shift), _mm512_sra_epi32(s3, shift));
        _mm512_storeu_si512(dst + x, _mm512_packus_epi16(lo, hi));
    }
}

void
qvm_resize_x86(qvm_resize_ops *ops, qvm_level level, int in, int out, int taps)
{
    if (level < QVM_AVX2 || !__builtin_cpu_supports("avx2"))
        return;
    ops->multiple = 4;
    ops->across = across_avx2;
    ops->down = down_avx2;
    if (level < QVM_AVX512 || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512vbmi"))
        return;
    ops->down = down_avx512;
    const int even = (taps + 1) / 2 * 2;
    const int apart = (int)(3.0 * in / out) + 2; /* inputs between the first and fourth output */
    if (3 * (apart + even) <= 64 && in >= even) {
        ops->multiple = 2;
        ops->packed = true;
        ops->across = across_packed;
    } else if (taps > 4) {
        ops->multiple = 8;
        ops->across = across_avx512;
    }
}

#endif
