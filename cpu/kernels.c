/* SPDX-License-Identifier: MIT */
/* Operations that work row by row: rows over threads, lanes.c within a row. */
#include "cpu.h"

#include <omp.h>

/* Of f32 row buffers, one for each thread. */
static size_t
row_buffer_bytes(const struct qv_op *op)
{
    int64_t cols = 0;
    switch (op->kind) {
    case QV_OP_norm: cols = op->u.norm.cols; break;
    case QV_OP_rope: cols = 2 * op->u.rope.heads * op->u.rope.head_dim; break;
    case QV_OP_taps: cols = 2 * op->u.taps.cols; break;
    case QV_OP_rows:
    case QV_OP_convert:
    case QV_OP_gemm:
    case QV_OP_attention:
    case QV_OP_COUNT: break;
    }
    return ((size_t)cols * sizeof(float) + 63) & ~(size_t)63;
}

size_t
kernels_scratch_cpu(const struct qv_device_cpu *dev, const struct qv_op *op)
{
    return row_buffer_bytes(op) * (size_t)dev->threads;
}

static void *
at(const void *p, int64_t dtype, int64_t i)
{
    return (char *)p + (size_t)i * qv_dtype_bytes(dtype);
}

static void
rows_pair(const struct qv_op_rows *op, void *const *p, int64_t pair, int64_t block_row)
{
    int64_t c = op->channels, ps = op->patch, m = op->merge, ts = op->still ? 1 : op->temporal;
    int64_t width = op->grid_w * ps, height = op->grid_h * ps, row_dim = c * ts * ps * ps;
    float scale[3] = { (float)op->scale0, (float)op->scale1, (float)op->scale2 };
    float shift[3] = { (float)op->shift0, (float)op->shift1, (float)op->shift2 };
    int64_t i = pair * op->grid_h * op->grid_w + block_row * op->grid_w * m;
    for (int64_t block = 0; block < op->grid_w / m; block++)
        for (int64_t in = 0; in < m * m; in++, i++) {
            int64_t row = block_row * m + in / m, col = block * m + in % m;
            int64_t out = i * row_dim;
            for (int64_t ch = 0; ch < c; ch++)
                for (int64_t t = 0; t < ts; t++)
                    for (int64_t y = 0; y < ps; y++, out += ps) {
                        const uint8_t *line =
                            (const uint8_t *)p[0] +
                            (((pair * ts + t) * height + row * ps + y) * width + col * ps) * c;
                        lanes_bytes_cpu(at(p[1], op->dtype, out), op->dtype, line + ch, c,
                                        scale[ch % 3], shift[ch % 3], ps);
                    }
        }
}

static void
rows_cpu(const struct qv_device_cpu *dev, const struct qv_op_rows *op, void *const *p)
{
    int64_t blocks = op->grid_h / op->merge;
#pragma omp parallel for num_threads(dev->threads) schedule(static)
    for (int64_t i = 0; i < op->pairs * blocks; i++)
        rows_pair(op, p, i / blocks, i % blocks);
}

static void
convert_cpu(const struct qv_device_cpu *dev, const struct qv_op_convert *op, void *const *p)
{
    enum { PIECE = 4096 };
#pragma omp parallel for num_threads(dev->threads) schedule(static)
    for (int64_t i = 0; i < op->n; i += PIECE) {
        int64_t n = op->n - i < PIECE ? op->n - i : PIECE;
        if (op->from == op->dtype)
            memcpy(at(p[1], op->dtype, i), at(p[0], op->from, i),
                   (size_t)n * qv_dtype_bytes(op->dtype));
        else if (op->from == QV_F32)
            lanes_store_cpu(at(p[1], op->dtype, i), at(p[0], QV_F32, i), op->dtype, n);
        else
            lanes_load_cpu(at(p[1], QV_F32, i), at(p[0], op->from, i), op->from, n);
    }
}

static void
norm_cpu(const struct qv_device_cpu *dev, const struct qv_op_norm *op, void *const *p,
         char *scratch, size_t row_bytes)
{
#pragma omp parallel for num_threads(dev->threads) schedule(static)
    for (int64_t i = 0; i < op->rows; i++) {
        float *x = (float *)(scratch + (size_t)omp_get_thread_num() * row_bytes);
        lanes_load_cpu(x, at(p[0], op->dtype, i * op->cols), op->dtype, op->cols);
        lanes_norm_cpu(x, p[1], p[2], op->cols, (float)op->eps, op->rms);
        lanes_store_cpu(at(p[3], op->dtype, i * op->cols), x, op->dtype, op->cols);
    }
}

static void
rope_cpu(const struct qv_device_cpu *dev, const struct qv_op_rope *op, void *const *p,
         char *scratch, size_t row_bytes)
{
    int64_t half = op->head_dim / 2, heads = 2 * op->heads; /* q's, then k's */
#pragma omp parallel for num_threads(dev->threads) schedule(static)
    for (int64_t i = 0; i < op->rows; i++) {
        float *x = (float *)(scratch + (size_t)omp_get_thread_num() * row_bytes);
        const float *cosines = (const float *)p[0] + i % op->period * half;
        const float *sines = (const float *)p[1] + i % op->period * half;
        void *row = at(p[2], op->dtype, i * 3 * op->heads * op->head_dim);
        lanes_load_cpu(x, row, op->dtype, heads * op->head_dim);
        for (int64_t h = 0; h < heads; h++)
            lanes_rotate_cpu(x + h * op->head_dim, x + h * op->head_dim + half, cosines, sines,
                             half);
        lanes_store_cpu(row, x, op->dtype, heads * op->head_dim);
    }
}

static void
taps_cpu(const struct qv_device_cpu *dev, const struct qv_op_taps *op, void *const *p,
         char *scratch, size_t row_bytes)
{
    const int32_t *index = p[1];
    const float *weight = p[2];
#pragma omp parallel for num_threads(dev->threads) schedule(static)
    for (int64_t i = 0; i < op->rows; i++) {
        float *sum = (float *)(scratch + (size_t)omp_get_thread_num() * row_bytes);
        float *x = sum + op->cols;
        memset(sum, 0, (size_t)op->cols * sizeof *sum);
        for (int64_t t = 4 * i; t < 4 * i + 4; t++) {
            lanes_load_cpu(x, at(p[0], op->dtype, index[t] * op->cols), op->dtype, op->cols);
            lanes_add_scaled_cpu(sum, x, weight[t], op->cols);
        }
        lanes_store_cpu(at(p[3], op->dtype, i * op->cols), sum, op->dtype, op->cols);
    }
}

void
kernels_run_cpu(struct qv_device_cpu *dev, const struct qv_op *op, void *const *p, void *scratch)
{
    size_t row_bytes = row_buffer_bytes(op);
    switch (op->kind) {
    case QV_OP_rows: rows_cpu(dev, &op->u.rows, p); break;
    case QV_OP_convert: convert_cpu(dev, &op->u.convert, p); break;
    case QV_OP_norm: norm_cpu(dev, &op->u.norm, p, scratch, row_bytes); break;
    case QV_OP_rope: rope_cpu(dev, &op->u.rope, p, scratch, row_bytes); break;
    case QV_OP_taps: taps_cpu(dev, &op->u.taps, p, scratch, row_bytes); break;
    case QV_OP_gemm:
    case QV_OP_attention:
    case QV_OP_COUNT: break;
    }
}
