/* SPDX-License-Identifier: MIT */
/* Converts quantised matrices from their canonical layout to that of codes.h. */
#include <stdlib.h>

#include "cuda.h"
#include "codes.h"

struct qv_layout
qv_codes_layout_cuda(const struct qv_matrix *matrix)
{
    return (struct qv_layout){ qv_codes_cuda(matrix->n, matrix->k, &matrix->groups).bytes,
                               QV_CODES_ROWS_CUDA };
}

/* Packs nibbles 0, 2, 4 and 6. */
static uint32_t
even_nibbles(uint32_t word)
{
    word &= 0x0f0f0f0f;
    word = (word | word >> 4) & 0x00ff00ff;
    return (word | word >> 8) & 0xffff;
}

/* Packs bytes 0 and 2. */
static uint32_t
even_bytes(uint32_t word)
{
    word &= 0x00ff00ff;
    return (word | word >> 8) & 0xffff;
}

/* Copies a canonical row's codes, and its scales and offsets in pairs, to the slices of its
 * tile. */
static void
lay_row(const struct qv_matrix *matrix, const struct qv_codes_cuda *p, int row, const char *src,
        char *tile)
{
    const struct qv_groups *g = &matrix->groups;
    const size_t element = qv_dtype_bytes(g->dtype);
    const int64_t slice = QV_CODES_SLICE_CUDA, groups = matrix->k / g->group;
    for (int64_t k = 0; k < matrix->k; k += 8) {
        char *to = tile + k / slice * p->per_slice;
        to += qv_code_at_cuda(g->bits, row, (int)(k % slice)).word;
        for (int64_t i = 0; i < g->bits; i += 4) { /* 4 bytes each */
            uint32_t word;
            memcpy(&word, src + k * g->bits / 8 + i, sizeof word);
            word = g->bits == 4 ? even_nibbles(word) | even_nibbles(word >> 4) << 16
                                : even_bytes(word) | even_bytes(word >> 8) << 16;
            memcpy(to + i, &word, sizeof word);
        }
    }
    const char *factors = src + matrix->k * g->bits / 8;
    for (int64_t k = 0; k < matrix->k; k += g->group) {
        char *to = tile + k / slice * p->per_slice + p->code_bytes;
        to += 2 * element * (size_t)qv_pair_at_cuda(g->group, row, (int)(k % slice));
        for (int64_t which = 0; which < 2; which++)
            memcpy(to + (size_t)which * element,
                   factors + (size_t)(which * groups + k / g->group) * element, element);
    }
}

qv_status
qv_codes_lay_out_cuda(struct qv_device_cuda *dev, const struct qv_matrix *matrix, int64_t row0,
                      int64_t rows, const void *src, struct qv_buffer dst, qv_error *err)
{
    const struct qv_codes_cuda p = qv_codes_cuda(matrix->n, matrix->k, &matrix->groups);
    const size_t row_bytes = qv_grouped_row_bytes(&matrix->groups, matrix->k);
    const int64_t tile_rows = QV_CODES_ROWS_CUDA, tile_bytes = p.slices * p.per_slice;
    const size_t bytes = (size_t)((rows + tile_rows - 1) / tile_rows * tile_bytes);
    char *laid = calloc(1, bytes); /* zeros after a row's end, and after the last row */
    if (!laid)
        return qv_fail(err, QV_ENOMEM, "no memory to lay out %zu bytes of weights", bytes);
    for (int64_t i = 0; i < rows; i++)
        lay_row(matrix, &p, (int)(i % tile_rows), (const char *)src + (size_t)i * row_bytes,
                laid + i / tile_rows * tile_bytes);
    dst.offset += (size_t)(row0 / tile_rows * tile_bytes);
    const qv_status status = qv_upload_cuda(&dev->base, dst, laid, bytes, err);
    free(laid);
    return status;
}
