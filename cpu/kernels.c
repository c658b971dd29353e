/* SPDX-License-Identifier: MIT */
/* Operations that work row by row: rows over threads, lanes.c within a row. */
#include "cpu.h"

#include <omp.h>

#include "geometry.h"

/* Of f32 row buffers, one for each thread. */
static size_t
row_buffer_bytes(const struct qv_op *op)
{
    int64_t cols = 0;
    switch (op->kind) {
    case QV_OP_norm: cols = op->u.norm.cols; break;
    case QV_OP_rope: cols = 2 * op->u.rope.heads * op->u.rope.head_dim; break;
    case QV_OP_taps: cols = 2 * op->u.taps.cols; break;
    case QV_OP_rows: cols = op->u.rows.grid_w * op->u.rows.patch; break;
    case QV_OP_convert:
    case QV_OP_gemm:
    case QV_OP_attention:
    case QV_OP_COUNT: break;
    }
    return qv_aligned((size_t)cols * sizeof(float));
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

/* One line of pixels of a patch row, channel by channel: converted as a whole, cut into patches. */
static void
rows_line(const struct qv_op_rows *op, void *const *p, int64_t pair, int64_t patch_row, int64_t t,
          int64_t y, void *values)
{
    int64_t c = op->channels, ps = op->patch, ts = op->still ? 1 : op->temporal;
    int64_t width = op->grid_w * ps, height = op->grid_h * ps, row_dim = c * ts * ps * ps;
    const float scale[3] = { (float)op->scale0, (float)op->scale1, (float)op->scale2 };
    const float shift[3] = { (float)op->shift0, (float)op->shift1, (float)op->shift2 };
    size_t piece = (size_t)ps * qv_dtype_bytes(op->dtype);
    const uint8_t *line =
        (const uint8_t *)p[0] + ((pair * ts + t) * height + patch_row * ps + y) * width * c;
    for (int64_t ch = 0; ch < c; ch++) {
        lanes_bytes_cpu(values, op->dtype, line + ch, c, scale[ch % 3], shift[ch % 3], width);
        for (int64_t col = 0; col < op->grid_w; col++) {
            int64_t i = pair * op->grid_h * op->grid_w +
                        qv_geometry_row_of(op->grid_w, op->merge, patch_row, col);
            int64_t out = i * row_dim + ((ch * ts + t) * ps + y) * ps;
            memcpy(at(p[1], op->dtype, out), (const char *)values + (size_t)col * piece, piece);
        }
    }
}

static void
rows_cpu(const struct qv_device_cpu *dev, const struct qv_op_rows *op, void *const *p,
         char *scratch, size_t row_bytes)
{
    int64_t ts = op->still ? 1 : op->temporal;
#pragma omp parallel for num_threads(dev->threads) schedule(static)
    for (int64_t i = 0; i < op->pairs * op->grid_h; i++)
        for (int64_t j = 0; j < ts * op->patch; j++)
            rows_line(op, p, i / op->grid_h, i % op->grid_h, j / op->patch, j % op->patch,
                      scratch + (size_t)omp_get_thread_num() * row_bytes);
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
    case QV_OP_rows: rows_cpu(dev, &op->u.rows, p, scratch, row_bytes); break;
    case QV_OP_convert: convert_cpu(dev, &op->u.convert, p); break;
    case QV_OP_norm: norm_cpu(dev, &op->u.norm, p, scratch, row_bytes); break;
    case QV_OP_rope: rope_cpu(dev, &op->u.rope, p, scratch, row_bytes); break;
    case QV_OP_taps: taps_cpu(dev, &op->u.taps, p, scratch, row_bytes); break;
    case QV_OP_gemm:
    case QV_OP_attention:
    case QV_OP_COUNT: break;
    }
}
