/* SPDX-License-Identifier: MIT */
/* Stands in for the instructions of cpu/tiles.h on CPUs with AVX-512 BF16 that lack AMX: the
 * compiler is told to include it first. A use without shapes, or a palette that is not 1, ends the
 * program. */
#define QV_TILES_EMULATED

#include <stdlib.h>
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/tiles.h"

static _Thread_local struct tile_shapes tile_now;
static _Thread_local unsigned char tile_data[8][16][TILE_ROW];

static inline bool
tiles_allowed(void)
{
    const unsigned bf16 = dnnl_cpu_isa_avx512_core_bf16;
    return ((unsigned)dnnl_get_effective_cpu_isa() & bf16) == bf16;
}

static inline void
tiles_begin(const struct tile_shapes *shapes)
{
    for (int i = 0; i < 16; i++)
        if (!shapes->rows[i] != !shapes->row_bytes[i])
            abort(); /* #GP on a CPU */
    tile_now = *shapes;
    memset(tile_data, 0, sizeof tile_data);
}

static inline void
tiles_end(void)
{
    tile_now.palette = 0;
}

static inline void
tile_check(int tile)
{
    if (tile_now.palette != 1 || !tile_now.rows[tile] || tile_now.rows[tile] > 16 ||
        tile_now.row_bytes[tile] > TILE_ROW)
        abort();
}

static inline void
tile_zero(int tile)
{
    tile_check(tile);
    memset(tile_data[tile], 0, sizeof tile_data[tile]);
}

static inline void
tile_load(int tile, const void *from)
{
    tile_zero(tile);
    for (int i = 0; i < tile_now.rows[tile]; i++)
        memcpy(tile_data[tile][i], (const char *)from + TILE_ROW * i, tile_now.row_bytes[tile]);
}

static inline void
tile_store(int tile, void *to)
{
    tile_check(tile);
    for (int i = 0; i < tile_now.rows[tile]; i++)
        memcpy((char *)to + TILE_ROW * i, tile_data[tile][i], tile_now.row_bytes[tile]);
}

static inline void
tile_multiply(int sums, int x, int w)
{
    tile_check(sums), tile_check(x), tile_check(w);
    if (tile_now.rows[sums] != tile_now.rows[x] ||
        tile_now.row_bytes[sums] != tile_now.row_bytes[w] ||
        tile_now.row_bytes[x] != 4 * tile_now.rows[w])
        abort(); /* #UD on a CPU */
    for (int i = 0; i < tile_now.rows[sums]; i++)
        for (int n = 0; n < tile_now.row_bytes[sums] / 4; n++) {
            float sum;
            qv_bf16 a[TILE_ROW / 2], b[2];
            memcpy(&sum, &tile_data[sums][i][4 * n], sizeof sum);
            memcpy(a, tile_data[x][i], sizeof a);
            for (int k = 0; k < tile_now.rows[w]; k++) {
                memcpy(b, &tile_data[w][k][4 * n], sizeof b);
                for (int j = 0; j < 2; j++)
                    sum += (float)qv_load(a, QV_BF16, 2 * k + j) * (float)qv_load(b, QV_BF16, j);
            }
            memcpy(&tile_data[sums][i][4 * n], &sum, sizeof sum);
        }
}

#define TILE_ZERO(tile) tile_zero(tile)
#define TILE_LOAD(tile, from) tile_load(tile, from)
#define TILE_STORE(tile, to) tile_store(tile, to)
#define TILE_MULTIPLY(sums, x, w) tile_multiply(sums, x, w)
