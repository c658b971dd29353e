/* SPDX-License-Identifier: MIT */
/* Panels of few.c by AVX-512's and AMX's products of bf16 pairs with f32 sums. They need half as
 * many products, and codes become bf16 by a mask instead of a conversion. */
#include "cpu.h"
#include "tiles.h"
#include "vectors.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

/* Returns a pair of codes of a line as adjacent bf16. Codes of 4 bits are or-ed into the four
 * highest bits of BIAS_OF_4's fraction, where the lowest is worth 1, so they come out BIAS_OF_4 too
 * large. Codes of 8 bits are converted to f32, whose lower half is then zero. */
#define BIAS_OF_4 16.0f /* 0x4180 in bf16 */
TARGET_BF16_CPU INLINED_CPU __m512bh
pair_of_codes(const void *line, int64_t pair, const int64_t bits)
{
    __m512i words = _mm512_loadu_si512(line);
    if (bits == 4) {
        words =
            pair ? _mm512_srli_epi32(words, (unsigned)(4 * pair - 3)) : _mm512_slli_epi32(words, 3);
        enum { AND_OR = (0xf0 & 0xcc) | 0xaa }; /* the table of (a & b) | c */
        return (__m512bh)_mm512_ternarylogic_epi32(words, _mm512_set1_epi32(0x00780078),
                                                   _mm512_set1_epi32(0x41804180), AND_OR);
    }
    words = _mm512_srli_epi32(words, (unsigned)(8 * pair));
    const __m512i mask = _mm512_set1_epi32(255);
    const __m512i high = _mm512_and_si512(_mm512_srli_epi32(words, 16), mask);
    const __m512 floats[2] = { _mm512_cvtepi32_ps(_mm512_and_si512(words, mask)),
                               _mm512_cvtepi32_ps(high) };
    return (__m512bh)_mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(floats[0]), 16),
                                     _mm512_castps_si512(floats[1]));
}

/* Loads scales, and offsets that cancel what pair_of_codes() adds. */
TARGET_BF16_CPU INLINED_CPU void
load_factors(const struct codes_cpu *w, const void *at, __m512 out[2])
{
    for (int i = 0; i < 2; i++) {
        const __m256i *halves = (const __m256i *)at + i;
        out[i] =
            w->groups.dtype == QV_F32 ? _mm512_loadu_ps((const float *)at + 16 * i)
            : w->groups.dtype == QV_F16
                ? _mm512_cvtph_ps(_mm256_loadu_si256(halves))
                : _mm512_castsi512_ps(
                      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(halves)), 16));
    }
    if (w->groups.bits == 4)
        out[1] = _mm512_fnmadd_ps(out[0], _mm512_set1_ps(BIAS_OF_4), out[1]);
}

/* Scales the products of a row of x and a group's codes, and adds them to the row's sums. x_sum is
 * the sum of the row's values in the group. Sums are in memory because the products fill the
 * registers. */
TARGET_BF16_CPU INLINED_CPU void
add_scaled(float *out, __m512 products, const __m512 factor[2], float x_sum)
{
    const __m512 sums = _mm512_fmadd_ps(products, factor[0], _mm512_loadu_ps(out));
    _mm512_storeu_ps(out, _mm512_fmadd_ps(factor[1], _mm512_set1_ps(x_sum), sums));
}

TARGET_BF16_CPU INLINED_CPU void
add_group(const struct codes_cpu *w, const char *group, const int32_t *x, const float *x_sums,
          float *out, const int64_t bits, const int64_t m, const int64_t chains)
{
    const char *line = group + 2 * w->factors, *end = group + w->group_bytes;
    __m512 chain[QV_FEW_AT_ONCE], factor[2];
    for (int64_t i = 0; i < m * chains; i++)
        chain[i] = _mm512_setzero_ps();
    for (; line < end; line += LINE_BYTES) {
        fetch_ahead_cpu(line);
        for (int64_t pair = 0; pair < 16 / bits; pair++, x += m) {
            const __m512bh both = pair_of_codes(line, pair, bits);
            const int64_t c = pair % chains * m;
            for (int64_t i = 0; i < m; i++)
                chain[c + i] =
                    _mm512_dpbf16_ps(chain[c + i], both, (__m512bh)_mm512_set1_epi32(x[i]));
        }
    }
    load_factors(w, group, factor);
    for (int64_t i = 0; i < m; i++) {
        for (int64_t c = 1; c < chains; c++)
            chain[i] = _mm512_add_ps(chain[i], chain[c * m + i]);
        add_scaled(out + i * CODES_COLS, chain[i], factor, x_sums[i]);
    }
}

TARGET_BF16_CPU INLINED_CPU void
panel_sums(const struct few_cpu *f, const char *codes, int64_t panels, float *out,
           const int64_t bits, const int64_t m, const int64_t chains)
{
    const struct codes_cpu *w = &f->w;
    const int32_t *x = f->x;
    for (int64_t g = 0; g < w->k / w->groups.group; g++, x += w->groups.group / 2 * m)
        for (int64_t p = 0; p < panels; p++, codes += w->group_bytes)
            add_group(w, codes, x, f->sums + g * m, out + p * m * CODES_COLS, bits, m, chains);
}

#define CHAINS(m) ((m) < 5 ? 4 : (m) < 8 ? 2 : 1)

TARGET_BF16_CPU void
qv_few_avx512_cpu(const struct few_cpu *f, const char *codes, int64_t panels, float *sums)
{
    switch (f->m) {
        FEW_CASES(CHAINS)
    }
}

/* ---- AMX ------------------------------------------------------------------------------------- */

/* Codes of 32 k and 16 columns, converted to bf16 in a panel's order, are a tile. One instruction
 * multiplies it by a tile of up to 16 rows of x. Tiles 0 to 3 have the sums of four panels over a
 * group. Once a panel's tile is loaded, the panel's next codes are converted in the same place, so
 * that three other tiles are stored between a tile's store and its load: a load stalls on recent
 * stores, and on stores a multiple of 4 KB away. Sums are scaled a group later for the same
 * reason. */
enum { TILE_K = TILE_ROW / 2 };

/* Converts the codes of a tile. */
TARGET_BF16_CPU INLINED_CPU void
tile_of_codes(const char *line, char *out, const int64_t bits)
{
    for (int i = 0; i < bits; i++, line += LINE_BYTES) {
        fetch_ahead_cpu(line);
        for (int64_t pair = 0; pair < 16 / bits; pair++, out += TILE_ROW)
            _mm512_store_si512(out, (__m512i)pair_of_codes(line, pair, bits));
    }
}

/* Multiplies a tile of x by one tile of each panel, and converts each panel's next tile. The first
 * panel's next codes are at `next`, and each further panel's `panel` bytes after the previous
 * one's. */
TARGET_BF16_CPU INLINED_CPU void
multiply_tiles(const char *x, char *codes, int64_t panels, const char *next, size_t panel,
               const int64_t bits)
{
#define PANEL(i, w)                                                                                \
    if ((i) < panels) {                                                                            \
        TILE_LOAD(w, codes + (i)*TILE_BYTES);                                                      \
        TILE_MULTIPLY(i, 4, w);                                                                    \
        tile_of_codes(next + (i)*panel, codes + (i)*TILE_BYTES, bits);                             \
    }
    TILE_LOAD(4, x);
    PANEL(0, 5)
    PANEL(1, 6)
    PANEL(2, 5)
    PANEL(3, 6)
#undef PANEL
}

/* out[panels, m, CODES_COLS] += products of a group, scaled */
TARGET_BF16_CPU INLINED_CPU void
scale_tiles(const struct few_cpu *f, const char *group, int64_t panels, const float *products,
            const float *x_sums, float *out)
{
    for (int64_t p = 0; p < panels; p++, group += f->w.group_bytes) {
        __m512 factor[2];
        load_factors(&f->w, group, factor);
        for (int64_t i = 0; i < f->m; i++, products += CODES_COLS, out += CODES_COLS)
            add_scaled(out, _mm512_load_ps(products), factor, x_sums[i]);
    }
}

/* After the last tile, codes of the last group are converted once more, and not used. */
TARGET_BF16_CPU INLINED_CPU void
tile_sums(const struct few_cpu *f, const char *group, int64_t panels, float *out,
          const int64_t bits)
{
    _Alignas(64) char codes[CODES_PANELS * TILE_BYTES];
    _Alignas(64) float products[CODES_PANELS * QV_FEW_AT_ONCE * CODES_COLS];
    const struct codes_cpu *w = &f->w;
    const int64_t groups = w->k / w->groups.group, tiles = w->groups.group / TILE_K;
    const int64_t sums = f->m * CODES_COLS, tile = LINE_BYTES * bits;
    const size_t all = (size_t)panels * w->group_bytes;
    const char *x = f->x, *lines = group + 2 * w->factors;
    for (int64_t p = 0; p < panels; p++)
        tile_of_codes(lines + (size_t)p * w->group_bytes, codes + p * TILE_BYTES, bits);
    for (int64_t g = 0; g < groups; g++, group += all) {
        const char *const after = g + 1 < groups ? lines + all : lines;
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
        for (int64_t t = 1; t <= tiles; t++, x += f->m * TILE_ROW)
            multiply_tiles(x, codes, panels, t < tiles ? lines + t * tile : after, w->group_bytes,
                           bits);
        if (g > 0)
            scale_tiles(f, group - all, panels, products, f->sums + (g - 1) * f->m, out);
        TILE_STORE(0, products);
        TILE_STORE(1, products + sums);
        TILE_STORE(2, products + 2 * sums);
        TILE_STORE(3, products + 3 * sums);
        lines = after;
    }
    scale_tiles(f, group - all, panels, products, f->sums + (groups - 1) * f->m, out);
}

TARGET_BF16_CPU void
qv_few_amx_cpu(const struct few_cpu *f, const char *codes, int64_t panels, float *sums)
{
    const uint8_t m = (uint8_t)f->m;
    const struct tile_shapes shapes = { .palette = 1,
                                        .row_bytes = { TILE_ROW, TILE_ROW, TILE_ROW, TILE_ROW,
                                                       TILE_ROW, TILE_ROW, TILE_ROW },
                                        .rows = { m, m, m, m, m, TILE_ROW / 4, TILE_ROW / 4 } };
    tiles_begin(&shapes);
    if (f->w.groups.bits == 4)
        tile_sums(f, codes, panels, sums, 4);
    else
        tile_sums(f, codes, panels, sums, 8);
    tiles_end();
}

#endif
