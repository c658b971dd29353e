/* SPDX-License-Identifier: MIT */
/* Quantised matrices from their canonical form to that of packed.h. */
#include <stdlib.h>

#include "cuda.h"
#include "packed.h"

qv_status
qv_packed_layout_cuda(const struct qv_matrix *matrix, struct qv_layout *out)
{
    *out = (struct qv_layout){ qv_packed_cuda(matrix->n, matrix->k, &matrix->groups).bytes, 1 };
    return QV_OK;
}

/* Nibbles 0, 2, 4 and 6 side by side. */
static uint32_t
even_nibbles(uint32_t word)
{
    word &= 0x0f0f0f0f;
    word = (word | word >> 4) & 0x00ff00ff;
    return (word | word >> 8) & 0xffff;
}

/* Rows of codes, and of factors as [k/group] pairs, of canonical rows. */
static void
lay_rows(const struct qv_matrix *matrix, int64_t rows, const char *src, char *codes, char *factors)
{
    const struct qv_groups *g = &matrix->groups;
    const struct qv_packed_cuda p = qv_packed_cuda(matrix->n, matrix->k, g);
    const size_t row_bytes = qv_grouped_row_bytes(g, matrix->k), element = qv_dtype_bytes(g->dtype);
    const int64_t groups = matrix->k / g->group;
    for (int64_t i = 0; i < rows; i++, src += row_bytes, codes += p.code_row) {
        for (int64_t k = 0; k < matrix->k; k += 8) {
            char *to = codes + qv_code_at_cuda(g->bits, k).byte;
            uint32_t word;
            memcpy(&word, src + k * g->bits / 8, sizeof word);
            if (g->bits == 4)
                word = even_nibbles(word) | even_nibbles(word >> 4) << 16;
            memcpy(to, &word, sizeof word);
            if (g->bits == 8)
                memcpy(to + 4, src + k + 4, 4);
        }
        const char *from = src + matrix->k * g->bits / 8;
        for (int64_t j = 0; j < 2 * groups; j++, factors += element)
            memcpy(factors, from + (size_t)(j % 2 * groups + j / 2) * element, element);
    }
}

qv_status
qv_packed_pack_cuda(struct qv_device_cuda *dev, const struct qv_matrix *matrix, int64_t row0,
                    int64_t rows, const void *src, struct qv_buffer dst, qv_error *err)
{
    const struct qv_packed_cuda p = qv_packed_cuda(matrix->n, matrix->k, &matrix->groups);
    const size_t codes = (size_t)(rows * p.code_row);
    const size_t factors_row = (p.bytes - (size_t)p.code_bytes) / (size_t)matrix->n;
    char *laid = calloc(1, codes + (size_t)rows * factors_row); /* zeros behind a row's end */
    if (!laid)
        return qv_fail(err, QV_ENOMEM, "no memory to pack %zu bytes of weights", codes);
    lay_rows(matrix, rows, src, laid, laid + codes);
    struct qv_buffer to = dst;
    to.offset += (size_t)(row0 * p.code_row);
    qv_status status = qv_upload_cuda(&dev->base, to, laid, codes, err);
    to.offset = dst.offset + (size_t)p.code_bytes + (size_t)row0 * factors_row;
    if (!status)
        status = qv_upload_cuda(&dev->base, to, laid + codes, (size_t)rows * factors_row, err);
    free(laid);
    return status;
}
