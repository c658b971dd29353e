/* SPDX-License-Identifier: MIT */
/*
 * gemm on oneDNN's matmul. Weights are packed in the layout that oneDNN chooses for LAYOUT_ROWS
 * rows, whatever m is, because from 3 threads on its choice depends on m. The epilogue is
 * post-operations.
 */
#include "cpu.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>

/* The layout is chosen for this many rows, as many as a chunk has. */
enum { LAYOUT_ROWS = 1024 };
/* oneDNN blocks n by at most 64, so slices that begin at multiples of 64 are whole blocks. */
enum { PACK_ROWS = 64 };

/* Makes the descriptor [k,n] of the packed weights, which the caller destroys. */
qv_status
qv_gemm_weights_cpu(struct qv_device_cpu *dev, const struct qv_matrix *matrix,
                    dnnl_memory_desc_t *out, qv_error *err)
{
    struct matmul_desc_cpu desc = { .m = LAYOUT_ROWS,
                                    .n = matrix->n,
                                    .k = matrix->k,
                                    .src_stride = matrix->k,
                                    .dst_stride = matrix->n,
                                    .type = dnnl_type_cpu(matrix->dtype),
                                    .dst_type = dnnl_type_cpu(matrix->dtype) };
    struct primitive_cpu m = { 0 };
    qv_status status = qv_matmul_open_cpu(dev, &desc, &m, err);
    if (status)
        return status;
    const_dnnl_memory_desc_t md;
    dnnl_status_t s = dnnl_memory_get_memory_desc(m.memory[CPU_WEIGHTS], &md);
    if (!s)
        s = dnnl_memory_desc_clone(out, md);
    qv_primitive_close_cpu(&m);
    return qv_dnnl_check_cpu(s, "layout of a weight", err);
}

qv_status
qv_gemm_layout_cpu(struct qv_device_cpu *dev, const struct qv_matrix *matrix, struct qv_layout *out,
                   qv_error *err)
{
    dnnl_memory_desc_t md = NULL;
    qv_status status = qv_gemm_weights_cpu(dev, matrix, &md, err);
    if (status)
        return status;
    *out = (struct qv_layout){ dnnl_memory_desc_get_size(md), PACK_ROWS };
    dnnl_memory_desc_destroy(md);
    return QV_OK;
}

/* Packs a slice as if it were a matrix by itself. That is right because the packed form has
 * blocks of n outermost: a slice of whole blocks is contiguous, and laid out like a matrix of
 * that many rows. */
qv_status
qv_gemm_pack_cpu(struct qv_device_cpu *dev, const struct qv_matrix *matrix, int64_t row0,
                 int64_t rows, const void *src, void *dst, qv_error *err)
{
    dnnl_memory_desc_t whole = NULL, part = NULL, row_major = NULL;
    qv_status status = qv_gemm_weights_cpu(dev, matrix, &whole, err);
    if (status)
        return status;
    dnnl_dims_t dims = { matrix->k, rows }, strides = { 1, matrix->k }, offsets = { 0, row0 };
    dnnl_status_t s = dnnl_memory_desc_create_submemory(&part, whole, dims, offsets);
    if (!s)
        s = dnnl_memory_desc_create_with_strides(&row_major, 2, dims, dnnl_type_cpu(matrix->dtype),
                                                 strides);
    if (!s)
        s = qv_reorder_cpu(dev, row_major, src, part, dst);
    if (row_major)
        dnnl_memory_desc_destroy(row_major);
    if (part)
        dnnl_memory_desc_destroy(part);
    dnnl_memory_desc_destroy(whole);
    return qv_dnnl_check_cpu(s, "packing a weight", err);
}

/*
 * oneDNN divides few rows unevenly among threads: on 2 cores with AMX, 760 rows take as long as
 * 1024. So rows are divided here if each thread gets enough of them to pay for reading all weights,
 * and not so many that oneDNN's own division is as good. This saves 5% of a tower of 760 patches.
 */
enum { LEAST_PART_ROWS = 256, MOST_PART_ROWS = 512, TILE_ROWS = 16 };

static void
divide(const struct qv_device_cpu *dev, int64_t m, struct gemm_cpu *g)
{
    g->n_parts = 1;
    g->rows = m;
    int64_t rows = (m + dev->threads - 1) / dev->threads;
    if (dev->threads == 1 || rows < LEAST_PART_ROWS || rows > MOST_PART_ROWS)
        return;
    g->rows = (rows + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    g->n_parts = (int)((m + g->rows - 1) / g->rows);
}

static int64_t
rows_of_part(const struct qv_op_gemm *op, const struct gemm_cpu *g, int part)
{
    int64_t left = op->m - part * g->rows;
    return left < g->rows ? left : g->rows;
}

static qv_status
open_parts(struct qv_device_cpu *dev, const struct qv_op_gemm *op, struct matmul_desc_cpu *desc,
           struct gemm_cpu *g, qv_error *err)
{
    g->parts = calloc((size_t)g->n_parts, sizeof *g->parts);
    if (!g->parts)
        return qv_fail(err, QV_ENOMEM, "no memory for a gemm kernel");
    int before = omp_get_max_threads();
    omp_set_num_threads(g->n_parts > 1 ? 1 : dev->threads);
    qv_status status = QV_OK;
    for (int i = 0; i < g->n_parts && !status; i++) {
        desc->m = rows_of_part(op, g, i);
        status = qv_matmul_open_cpu(dev, desc, &g->parts[i], err);
        size_t bytes = qv_aligned(g->parts[i].scratch_bytes);
        g->part_bytes = bytes > g->part_bytes ? bytes : g->part_bytes;
    }
    omp_set_num_threads(before);
    return status;
}

qv_status
qv_gemm_open_cpu(struct qv_device_cpu *dev, const struct qv_op_gemm *op,
                 const_dnnl_memory_desc_t packed, struct gemm_cpu *out, qv_error *err)
{
    struct matmul_desc_cpu desc = { .n = op->n,
                                    .k = op->k,
                                    .src_stride = op->k,
                                    .weights = packed,
                                    .weights_strides = { op->n, 1 },
                                    .dst_stride = op->n,
                                    .type = dnnl_type_cpu(op->x_dtype),
                                    .dst_type = dnnl_type_cpu(op->y_dtype) };
    const struct qv_op_epilogue epilogue = qv_op_gemm_epilogue(op);
    desc.bias_arg = qv_epilogue_bias_arg_cpu(&epilogue);
    divide(dev, op->m, out);
    dnnl_status_t s = dnnl_primitive_attr_create(&desc.attr);
    if (!s)
        s = qv_epilogue_cpu(&epilogue, 2, desc.attr);
    qv_status status =
        s ? qv_dnnl_check_cpu(s, "gemm's epilogue", err) : open_parts(dev, op, &desc, out, err);
    if (desc.attr)
        dnnl_primitive_attr_destroy(desc.attr);
    return status;
}

static qv_status
prepare_gemm(struct qv_device_cpu *dev, struct qv_kernel *kernel, size_t *scratch_bytes,
             qv_error *err)
{
    const struct qv_op_gemm *op = &kernel->op.u.gemm;
    const double most = fmax((double)op->m, fmax((double)op->n, (double)op->k));
    qv_status status = qv_count_check_cpu(&kernel->op, most, err);
    if (status)
        return status;
    if (op->w_bits)
        return qv_packed_prepare_cpu(dev, kernel, scratch_bytes, err);
    struct qv_matrix matrix = { .n = op->n, .k = op->k, .dtype = (qv_dtype)op->w_dtype };
    dnnl_memory_desc_t packed = NULL;
    status = qv_gemm_weights_cpu(dev, &matrix, &packed, err);
    if (status)
        return status;
    status = qv_gemm_open_cpu(dev, op, packed, &kernel->gemm, err);
    dnnl_memory_desc_destroy(packed);
    *scratch_bytes = kernel->gemm.part_bytes * (size_t)kernel->gemm.n_parts;
    return status;
}

static qv_status
run_part(struct qv_device_cpu *dev, const struct qv_op_gemm *op, const struct gemm_cpu *g, int part,
         void *const *p, void *scratch, qv_error *err)
{
    size_t x_row = (size_t)op->k * qv_dtype_bytes(op->x_dtype), row = (size_t)(part * g->rows);
    size_t y_row = (size_t)op->n * qv_dtype_bytes(op->y_dtype);
    void *const addresses[CPU_OPERANDS] = { (char *)p[0] + row * x_row, p[1], p[2],
                                            (char *)p[4] + row * y_row,
                                            (char *)scratch + (size_t)part * g->part_bytes };
    return qv_matmul_run_cpu(dev, &g->parts[part], addresses, err);
}

qv_status
qv_gemm_run_cpu(struct qv_device_cpu *dev, const struct qv_op_gemm *op, const struct gemm_cpu *g,
                void *const *p, void *scratch, qv_error *err)
{
    int n = g->n_parts;
    if (n == 1)
        return run_part(dev, op, g, 0, p, scratch, err);
    qv_status status = QV_OK;
#pragma omp parallel for num_threads(n) schedule(static)
    for (int i = 0; i < n; i++) {
        qv_error failure = { 0 };
        if (run_part(dev, op, g, i, p, scratch, &failure))
#pragma omp critical(qv_gemm)
            status = qv_fail(err, failure.status, "%s", failure.text);
    }
    return status;
}

static qv_status
run_gemm(struct qv_device_cpu *dev, const struct qv_kernel *kernel, void *const *p, void *scratch,
         qv_error *err)
{
    const struct qv_op_gemm *op = &kernel->op.u.gemm;
    const struct qv_op_epilogue epilogue = qv_op_gemm_epilogue(op);
    if (op->few) {
        qv_few_run_cpu(dev, kernel, p, scratch);
        return QV_OK;
    }
    qv_epilogue_residual_cpu(dev, &epilogue, p[3], p[4]);
    return op->w_bits ? qv_packed_run_cpu(dev, kernel, p, scratch, err)
                      : qv_gemm_run_cpu(dev, op, &kernel->gemm, p, scratch, err);
}

void
qv_gemm_close_cpu(struct gemm_cpu *g)
{
    for (int i = 0; i < g->n_parts && g->parts; i++)
        qv_primitive_close_cpu(&g->parts[i]);
    free(g->parts);
}

static void
release_gemm(struct qv_kernel *kernel)
{
    qv_gemm_close_cpu(&kernel->gemm);
    for (int i = 0; i < PACKED_BLOCKS; i++)
        qv_gemm_close_cpu(&kernel->wide.gemms[i]);
}

static void
describe_gemm(const struct qv_kernel *kernel, char *text, size_t size)
{
    const bool packed = kernel->op.u.gemm.w_bits;
    const struct gemm_cpu *g = packed ? &kernel->wide.gemms[0] : &kernel->gemm;
    if (packed)
        qv_packed_describe_cpu(kernel, text, size);
    if (kernel->op.u.gemm.few)
        return;
    qv_primitive_describe_cpu("oneDNN ", &g->parts[0], text, size);
    if (g->n_parts > 1)
        snprintf(text + strlen(text), size - strlen(text), ", %lld rows a thread",
                 (long long)g->rows);
}

const struct verbs_cpu qv_gemm_verbs_cpu = {
    .prepare = prepare_gemm, .run = run_gemm, .release = release_gemm, .describe = describe_gemm
};
