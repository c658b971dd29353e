/* SPDX-License-Identifier: MIT */
/* Operations that work row by row: rows over threads, lanes.c within a row. */
#include "cpu.h"

#include <omp.h>

#include "towers/geometry.h"

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
    case QV_OP_finish: cols = 3 * op->u.finish.cols; break;
    case QV_OP_unfold:
    case QV_OP_conv:
    case QV_OP_convert:
    case QV_OP_gemm:
    case QV_OP_attention:
    case QV_OP_COUNT: break;
    }
    return qv_aligned((size_t)cols * sizeof(float));
}

size_t
qv_kernels_scratch_cpu(const struct qv_device_cpu *dev, const struct qv_op *op)
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
        qv_lanes_bytes_cpu(values, op->dtype, line + ch, c, scale[ch % 3], shift[ch % 3], width);
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
            qv_lanes_store_cpu(at(p[1], op->dtype, i), at(p[0], QV_F32, i), op->dtype, n);
        else
            qv_lanes_load_cpu(at(p[1], QV_F32, i), at(p[0], op->from, i), op->from, n);
    }
}

static void
norm_cpu(const struct qv_device_cpu *dev, const struct qv_op_norm *op, void *const *p,
         char *scratch, size_t row_bytes)
{
#pragma omp parallel for num_threads(dev->threads) schedule(static)
    for (int64_t i = 0; i < op->rows; i++) {
        float *x = (float *)(scratch + (size_t)omp_get_thread_num() * row_bytes);
        qv_lanes_load_cpu(x, at(p[0], op->dtype, i * op->cols), op->dtype, op->cols);
        qv_lanes_norm_cpu(x, p[1], p[2], op->cols, (float)op->eps, op->rms);
        qv_lanes_store_cpu(at(p[3], op->dtype, i * op->cols), x, op->dtype, op->cols);
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
        qv_lanes_load_cpu(x, row, op->dtype, heads * op->head_dim);
        for (int64_t h = 0; h < heads; h++)
            qv_lanes_rotate_cpu(x + h * op->head_dim, x + h * op->head_dim + half, cosines, sines,
                                half);
        qv_lanes_store_cpu(row, x, op->dtype, heads * op->head_dim);
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
            qv_lanes_load_cpu(x, at(p[0], op->dtype, index[t] * op->cols), op->dtype, op->cols);
            qv_lanes_add_scaled_cpu(sum, x, weight[t], op->cols);
        }
        qv_lanes_store_cpu(at(p[3], op->dtype, i * op->cols), sum, op->dtype, op->cols);
    }
}

/* One row: what lies below the kernel at z, r, q of sample n, in runs that are contiguous in x. */
static void
unfold_row(const struct qv_op_unfold *op, const char *x, char *y, int64_t n, int64_t z, int64_t r,
           int64_t q)
{
    int64_t planes = op->channels_first ? op->c : 1, c = op->channels_first ? 1 : op->c;
    size_t element = qv_dtype_bytes(op->dtype), run = (size_t)(op->kw * c) * element;
    for (int64_t plane = n * planes; plane < (n + 1) * planes; plane++)
        for (int64_t i = 0; i < op->kd; i++)
            for (int64_t j = 0; j < op->kh; j++, y += run) {
                int64_t line = (plane * op->d + z + i) * op->h + r + j;
                memcpy(y, x + (size_t)((line * op->w + q) * c) * element, run);
            }
}

/* A kernel of one makes channels last: columns of a matrix [c, positions] become rows, some at a
 * time. Without strides the positions of a sample are one line, otherwise those of a line are. */
static void
transpose(const struct qv_device_cpu *dev, const struct qv_op_unfold *op, void *const *p)
{
    enum { SOME = 256 };
    bool dense = op->sd == 1 && op->sh == 1 && op->sw == 1;
    int64_t plane = op->d * op->h * op->w, ds = (op->d - 1) / op->sd + 1;
    int64_t hs = (op->h - 1) / op->sh + 1, width = dense ? plane : (op->w - 1) / op->sw + 1;
    int64_t lines = dense ? 1 : ds * hs, pieces = (width + SOME - 1) / SOME;
#pragma omp parallel for num_threads(dev->threads) schedule(static)
    for (int64_t i = 0; i < op->n * lines * pieces; i++) {
        int64_t n = i / (lines * pieces), line = i / pieces % lines, first = i % pieces * SOME;
        int64_t in = (line / hs * op->sd * op->h + line % hs * op->sh) * op->w + first * op->sw;
        int64_t out = (n * lines + line) * width + first;
        qv_lanes_transpose_cpu(at(p[1], op->dtype, out * op->c), op->c,
                               at(p[0], op->dtype, n * op->c * plane + in), plane, op->sw,
                               op->dtype, op->c, width - first < SOME ? width - first : SOME);
    }
}

static void
unfold_cpu(const struct qv_device_cpu *dev, const struct qv_op_unfold *op, void *const *p)
{
    int64_t ds = (op->d - op->kd) / op->sd + 1, hs = (op->h - op->kh) / op->sh + 1;
    int64_t ws = (op->w - op->kw) / op->sw + 1, cols = op->kd * op->kh * op->kw * op->c;
    if (op->channels_first && cols == op->c) {
        transpose(dev, op, p);
        return;
    }
#pragma omp parallel for num_threads(dev->threads) schedule(static)
    for (int64_t i = 0; i < op->n * ds * hs; i++)
        for (int64_t j = 0; j < ws; j++)
            unfold_row(op, p[0], at(p[1], op->dtype, (i * ws + j) * cols), i / (ds * hs),
                       i / hs % ds * op->sd, i % hs * op->sh, j * op->sw);
}

static void
finish_cpu(const struct qv_device_cpu *dev, const struct qv_op_finish *op, void *const *p,
           char *scratch, size_t row_bytes)
{
#pragma omp parallel num_threads(dev->threads)
    {
        float *v = (float *)(scratch + (size_t)omp_get_thread_num() * row_bytes);
        float *addend = v + op->cols, *bias = op->bias ? addend + op->cols : NULL;
        if (bias)
            qv_lanes_load_cpu(bias, p[1], op->dtype, op->cols);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < op->rows; i++) {
            qv_lanes_finish_cpu(v, at(p[0], QV_F32, i * op->cols), bias, (float)op->alpha, op->act,
                                op->cols);
            if (op->addend_rows) {
                qv_lanes_load_cpu(addend, at(p[2], op->dtype, i % op->addend_rows * op->cols),
                                  op->dtype, op->cols);
                qv_lanes_add_scaled_cpu(v, addend, 1, op->cols);
            }
            qv_lanes_store_cpu(at(p[3], op->dtype, i * op->cols), v, op->dtype, op->cols);
        }
    }
}

void
qv_kernels_run_cpu(struct qv_device_cpu *dev, const struct qv_op *op, void *const *p, void *scratch)
{
    size_t row_bytes = row_buffer_bytes(op);
    switch (op->kind) {
    case QV_OP_rows: rows_cpu(dev, &op->u.rows, p, scratch, row_bytes); break;
    case QV_OP_convert: convert_cpu(dev, &op->u.convert, p); break;
    case QV_OP_norm: norm_cpu(dev, &op->u.norm, p, scratch, row_bytes); break;
    case QV_OP_rope: rope_cpu(dev, &op->u.rope, p, scratch, row_bytes); break;
    case QV_OP_taps: taps_cpu(dev, &op->u.taps, p, scratch, row_bytes); break;
    case QV_OP_unfold: unfold_cpu(dev, &op->u.unfold, p); break;
    case QV_OP_finish: finish_cpu(dev, &op->u.finish, p, scratch, row_bytes); break;
    case QV_OP_conv:
    case QV_OP_gemm:
    case QV_OP_attention:
    case QV_OP_COUNT: break;
    }
}
