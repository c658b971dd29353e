/* SPDX-License-Identifier: MIT */
/*
 * A gemm in blocks of rows and panels of columns, for CPUs on which oneDNN's fast matmul (brgemm)
 * does not support this dtype. There oneDNN has an older GEMM. It is as fast (outside x86-64 it is
 * not, and OpenBLAS replaces it), but divides rows among threads by their number, uses different
 * kernels for the last rows, and has no epilogue. So each thread calls it for blocks of one size,
 * with the last block padded with zero rows: a row's bits then depend neither on its place nor on
 * the number of rows. Our epilogue finishes a block's sums while they are in the L1 cache.
 *
 * The sizes: oneDNN's kernels have 6 rows, with separate kernels for 1 to 3 rows; blocks of up to
 * 48 rows run in one piece. A panel of 128 columns, whose weights are contiguous, is read as fast
 * as any other width, and is reused from the L2 cache by the blocks below it.
 */
#include <omp.h>
#include <stdlib.h>

#include "cpu.h"

enum { BLOCK_ROWS = 48, PANEL_COLS = 128 };
/* The last block is padded to a multiple of these. The number of rows in OpenBLAS's kernels differs
 * between CPUs, and small products use different kernels, so its blocks are always whole. */
#ifdef QV_WITH_BLAS
enum { STEP_ROWS = BLOCK_ROWS };
#else
enum { STEP_ROWS = 6 };
#endif

struct panels_cpu
qv_blocks_panels_cpu(const struct qv_matrix *matrix)
{
    struct panels_cpu p = { .k = matrix->k, .n = matrix->n, .width = PANEL_COLS, .group = 1 };
    p.stride = p.k * p.width;
    p.bytes = (size_t)(qv_ceil_div(p.n, p.width) * p.stride) * qv_dtype_bytes(matrix->dtype);
    return p;
}

static int64_t
least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Opens the products of one thread. */
static qv_status
open_products(struct qv_device_cpu *dev, const struct qv_op_gemm *op, struct blocks_cpu *b,
              struct primitive_cpu products[BLOCK_KINDS], qv_error *err)
{
    qv_status status = QV_OK;
    for (int kind = 0; kind < BLOCK_KINDS && !status; kind++) {
        const int64_t last_cols = (op->n - 1) % PANEL_COLS + 1,
                      cols = kind & 2 ? last_cols : PANEL_COLS;
        const struct matmul_desc_cpu desc = { .m = kind & 1 ? b->last_rows : BLOCK_ROWS,
                                              .n = cols,
                                              .k = op->k,
                                              .src_stride = op->k,
                                              .weights_strides = { PANEL_COLS, 1 },
                                              .dst_stride = cols,
                                              .type = dnnl_type_cpu(op->x_dtype),
                                              .dst_type = dnnl_f32 };
        status = qv_matmul_open_cpu(dev, &desc, &products[kind], err);
        const size_t bytes = qv_aligned(products[kind].scratch_bytes);
        b->product_bytes = bytes > b->product_bytes ? bytes : b->product_bytes;
    }
    return status;
}

qv_status
qv_blocks_open_cpu(struct qv_device_cpu *dev, const struct qv_op_gemm *op,
                   const struct panels_cpu *panels, struct blocks_cpu *b, size_t *scratch_bytes,
                   qv_error *err)
{
    const int64_t rows = (op->m - 1) % BLOCK_ROWS + 1;
    b->threads = dev->threads;
    b->panels = *panels;
    b->last_rows = qv_round_up(rows, STEP_ROWS);
    b->x_bytes = rows == b->last_rows
                     ? 0
                     : qv_aligned((size_t)(b->last_rows * op->k) * qv_dtype_bytes(op->x_dtype));
    b->sums_bytes = qv_aligned(BLOCK_ROWS * PANEL_COLS * sizeof(float));
    b->products = calloc((size_t)b->threads, sizeof *b->products);
    if (!b->products)
        return qv_fail(err, QV_ENOMEM, "no memory for a gemm kernel");
    const int before = omp_get_max_threads();
    omp_set_num_threads(1);
    qv_status status = QV_OK;
    for (int t = 0; t < b->threads && !status; t++)
        status = open_products(dev, op, b, b->products[t], err);
    omp_set_num_threads(before);
    *scratch_bytes = b->x_bytes + (size_t)b->threads * (b->sums_bytes + b->product_bytes);
    return status;
}

/* Multiplies a block of rows by a panel, and finishes it. x: the block's rows. */
static qv_status
run_block(struct qv_device_cpu *dev, const struct qv_op_gemm *op, const struct blocks_cpu *b,
          int64_t row, int64_t col, void *x, void *const *p, char *scratch, qv_error *err)
{
    const struct qv_op_epilogue epilogue = qv_op_gemm_epilogue(op);
    const int64_t rows = least(op->m - row, BLOCK_ROWS), cols = least(op->n - col, PANEL_COLS);
    const int kind = (row + BLOCK_ROWS >= op->m ? 1 : 0) | (col + PANEL_COLS >= op->n ? 2 : 0);
    void *const w = at_cpu(p[1], op->x_dtype, col / PANEL_COLS * b->panels.stride);
    const qv_status status =
        qv_matmul_run_cpu(dev, &b->products[omp_get_thread_num()][kind],
                          (void *[]){ x, w, NULL, scratch, scratch + b->sums_bytes }, err);
    for (int64_t i = 0; i < rows && !status; i++)
        qv_epilogue_part_cpu(&epilogue, (const float *)(void *)scratch + i * cols, row + i, col,
                             cols, p + 2);
    return status;
}

/* Copies the last block's rows of x, padded with zeros. */
static void
fill_up(const struct qv_op_gemm *op, const struct blocks_cpu *b, const void *x, char *to)
{
    const size_t row_bytes = (size_t)op->k * qv_dtype_bytes(op->x_dtype);
    const int64_t rows = (op->m - 1) % BLOCK_ROWS + 1;
    memcpy(to, at_cpu(x, op->x_dtype, (op->m - rows) * op->k), (size_t)rows * row_bytes);
    memset(to + (size_t)rows * row_bytes, 0, (size_t)(b->last_rows - rows) * row_bytes);
}

qv_status
qv_blocks_run_cpu(struct qv_device_cpu *dev, const struct qv_op_gemm *op,
                  const struct blocks_cpu *b, void *const *p, void *scratch, qv_error *err)
{
    char *const of_threads = (char *)scratch + b->x_bytes;
    const size_t thread_bytes = b->sums_bytes + b->product_bytes;
    qv_status status = QV_OK;
    if (b->x_bytes)
        fill_up(op, b, p[0], scratch);
#pragma omp parallel for collapse(2) num_threads(b->threads) schedule(static)
    for (int64_t col = 0; col < op->n; col += PANEL_COLS)
        for (int64_t row = 0; row < op->m; row += BLOCK_ROWS) {
            qv_error failure = { 0 };
            void *const x = b->x_bytes && row + BLOCK_ROWS >= op->m
                                ? scratch
                                : at_cpu(p[0], op->x_dtype, row * op->k);
            char *const own = of_threads + (size_t)omp_get_thread_num() * thread_bytes;
            if (run_block(dev, op, b, row, col, x, p, own, &failure))
#pragma omp critical(qv_gemm)
                status = qv_fail(err, failure.status, "%s", failure.text);
        }
    return status;
}

void
qv_blocks_close_cpu(struct blocks_cpu *b)
{
    for (int t = 0; t < b->threads && b->products; t++)
        for (int kind = 0; kind < BLOCK_KINDS; kind++)
            qv_primitive_close_cpu(&b->products[t][kind]);
    free(b->products);
}
