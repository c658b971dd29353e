/* SPDX-License-Identifier: MIT */
/*
 * gemm: one matmul or several, with oneDNN's epilogue, or blocks (blocks.c). Weights have the
 * layout that oneDNN chooses for LAYOUT_ROWS rows, whatever m is, because with 3 or more threads
 * its choice depends on m.
 */
#include <math.h>
#include <omp.h>
#include <stdlib.h>

#include "cpu.h"

/* The layout is chosen for this many rows. */
enum { LAYOUT_ROWS = 1024 };
/* oneDNN blocks n by at most 64, so slices that begin at multiples of 64 are whole blocks. */
enum { SLICE_ROWS = 64 };

/* Keeps m's preferred weight layout if m is oneDNN's fast matmul, whose layouts are panels. */
static dnnl_status_t
keep_layout(const struct primitive_cpu *m, struct gemm_weights_cpu *out)
{
    const_dnnl_primitive_desc_t pd;
    const_dnnl_memory_desc_t md;
    bool known = false;
    if (!m->primitive)
        return dnnl_success;
    dnnl_status_t s = dnnl_primitive_get_primitive_desc(m->primitive, &pd);
    if (s || !qv_primitive_is_brgemm_cpu(pd))
        return s;
    struct panels_cpu panels = { .k = out->panels.k, .n = out->panels.n };
    s = dnnl_memory_get_memory_desc(m->memory[CPU_WEIGHTS], &md);
    if (!s)
        s = qv_panels_read_cpu(md, &panels, &known);
    if (s || !known)
        return s;
    out->panels = panels;
    return dnnl_memory_desc_clone(&out->md, md);
}

static qv_status
open_weights(struct qv_device_cpu *dev, const struct qv_matrix *matrix,
             struct gemm_weights_cpu *out, qv_error *err)
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
    *out = (struct gemm_weights_cpu){ .panels = qv_blocks_panels_cpu(matrix) };
    const dnnl_status_t s = keep_layout(&m, out);
    qv_primitive_close_cpu(&m);
    return qv_dnnl_check_cpu(s, "layout of a weight", err);
}

static void
close_weights(struct gemm_weights_cpu *weights)
{
    if (weights->md)
        dnnl_memory_desc_destroy(weights->md);
}

qv_status
qv_gemm_layout_cpu(struct qv_device_cpu *dev, const struct qv_matrix *matrix, struct qv_layout *out,
                   qv_error *err)
{
    struct gemm_weights_cpu weights = { 0 };
    qv_status status = open_weights(dev, matrix, &weights, err);
    if (status)
        return status;
    *out =
        (struct qv_layout){ weights.panels.bytes, weights.md ? SLICE_ROWS : weights.panels.width };
    close_weights(&weights);
    return QV_OK;
}

/* Lays out rows of a matrix, from row0 on, as columns of panels. Threads share the panels. */
static void
lay_out_panels(const struct qv_device_cpu *dev, const struct panels_cpu *panels, int64_t row0,
               int64_t rows, qv_dtype dtype, const void *src, void *dst)
{
#pragma omp parallel for num_threads(dev->threads) schedule(static)
    for (int64_t first = 0; first < rows; first += panels->width) {
        struct panels_cpu one = *panels;
        one.n = panels->width;
        qv_panels_transposed_cpu(&one, at_cpu(src, dtype, first * panels->k), panels->k,
                                 rows - first, dtype,
                                 at_cpu(dst, dtype,
                                        (row0 + first) / panels->width * panels->stride));
    }
}

/* Lays out a slice as if it were a separate matrix. This is correct because blocks of n are
 * outermost in the layout: a slice of whole blocks is contiguous, and has the layout of a matrix
 * with that many rows. */
qv_status
qv_gemm_lay_out_cpu(struct qv_device_cpu *dev, const struct qv_matrix *matrix, int64_t row0,
                    int64_t rows, const void *src, void *dst, qv_error *err)
{
    dnnl_memory_desc_t slice = NULL, row_major = NULL;
    struct gemm_weights_cpu whole = { 0 };
    qv_status status = open_weights(dev, matrix, &whole, err);
    if (!status && !whole.md)
        lay_out_panels(dev, &whole.panels, row0, rows, matrix->dtype, src, dst);
    if (status || !whole.md)
        return status;
    dnnl_dims_t dims = { matrix->k, rows }, strides = { 1, matrix->k }, offsets = { 0, row0 };
    dnnl_status_t s = dnnl_memory_desc_create_submemory(&slice, whole.md, dims, offsets);
    if (!s)
        s = dnnl_memory_desc_create_with_strides(&row_major, 2, dims, dnnl_type_cpu(matrix->dtype),
                                                 strides);
    if (!s)
        s = qv_reorder_cpu(dev, row_major, src, slice, dst);
    if (row_major)
        dnnl_memory_desc_destroy(row_major);
    if (slice)
        dnnl_memory_desc_destroy(slice);
    close_weights(&whole);
    return qv_dnnl_check_cpu(s, "laying out a weight", err);
}

/*
 * oneDNN divides few rows unevenly among threads: on 2 cores with AMX, 760 rows take as long as
 * 1024. So rows are divided here if each thread gets enough rows to amortise reading all weights,
 * but not so many that oneDNN divides them as well. This saves 5% of a tower of 760 patches on AMX;
 * on AVX2 it costs a fifth of a tower of 640.
 */
enum { LEAST_PART_ROWS = 256, MOST_PART_ROWS = 512, TILE_ROWS = 16 };

static void
divide(const struct qv_device_cpu *dev, int64_t m, struct gemm_cpu *g)
{
    g->n_matmuls = 1;
    g->rows = m;
    int64_t rows = qv_ceil_div(m, dev->threads);
    if (dev->threads == 1 || rows < LEAST_PART_ROWS || rows > MOST_PART_ROWS ||
        !qv_x86_has_cpu(dnnl_cpu_isa_avx512_core))
        return;
    g->rows = qv_round_up(rows, TILE_ROWS);
    g->n_matmuls = (int)qv_ceil_div(m, g->rows);
}

static int64_t
rows_of(const struct qv_op_gemm *op, const struct gemm_cpu *g, int i)
{
    int64_t left = op->m - i * g->rows;
    return left < g->rows ? left : g->rows;
}

static qv_status
open_matmuls(struct qv_device_cpu *dev, const struct qv_op_gemm *op, struct matmul_desc_cpu *desc,
             struct gemm_cpu *g, qv_error *err)
{
    g->matmuls = calloc((size_t)g->n_matmuls, sizeof *g->matmuls);
    if (!g->matmuls)
        return qv_fail(err, QV_ENOMEM, "no memory for a gemm kernel");
    int before = omp_get_max_threads();
    omp_set_num_threads(g->n_matmuls > 1 ? 1 : dev->threads);
    qv_status status = QV_OK;
    for (int i = 0; i < g->n_matmuls && !status; i++) {
        desc->m = rows_of(op, g, i);
        status = qv_matmul_open_cpu(dev, desc, &g->matmuls[i], err);
        size_t bytes = qv_aligned(g->matmuls[i].scratch_bytes);
        g->matmul_bytes = bytes > g->matmul_bytes ? bytes : g->matmul_bytes;
    }
    omp_set_num_threads(before);
    g->scratch_bytes = g->matmul_bytes * (size_t)g->n_matmuls;
    return status;
}

/* oneDNN's activations for AVX2 (3.12's) cost more than a quarter of fc1's product. Our epilogue,
 * in a pass of its own over y, costs an eighth of that. */
static bool
acts_apart(const struct qv_op_gemm *op)
{
    return op->act != QV_ACT_NONE && !op->residual_rows && op->y_dtype == QV_F32 &&
           qv_x86_has_cpu(dnnl_cpu_isa_avx2) && !qv_x86_has_cpu(dnnl_cpu_isa_avx512_core);
}

static qv_status
open_gemm(struct qv_device_cpu *dev, const struct qv_op_gemm *op,
          const struct gemm_weights_cpu *weights, struct gemm_cpu *out, qv_error *err)
{
    if (!weights->md)
        return qv_blocks_open_cpu(dev, op, &weights->panels, &out->blocks, &out->scratch_bytes,
                                  err);
    struct matmul_desc_cpu desc = { .n = op->n,
                                    .k = op->k,
                                    .src_stride = op->k,
                                    .weights = weights->md,
                                    .dst_stride = op->n,
                                    .type = dnnl_type_cpu(op->x_dtype),
                                    .dst_type = dnnl_type_cpu(op->y_dtype),
                                    .bias = op->bias,
                                    .alpha = op->alpha };
    struct qv_op_epilogue epilogue = qv_op_gemm_epilogue(op);
    if (acts_apart(op))
        epilogue.act = QV_ACT_NONE;
    divide(dev, op->m, out);
    dnnl_status_t s = dnnl_primitive_attr_create(&desc.attr);
    if (!s)
        s = qv_epilogue_cpu(&epilogue, desc.attr);
    qv_status status =
        s ? qv_dnnl_check_cpu(s, "gemm's epilogue", err) : open_matmuls(dev, op, &desc, out, err);
    if (desc.attr)
        dnnl_primitive_attr_destroy(desc.attr);
    return status;
}

static qv_status
run_one(struct qv_device_cpu *dev, const struct qv_op_gemm *op, const struct gemm_cpu *g, int i,
        void *const *p, void *scratch, qv_error *err)
{
    size_t x_row = (size_t)op->k * qv_dtype_bytes(op->x_dtype), row = (size_t)(i * g->rows);
    size_t y_row = (size_t)op->n * qv_dtype_bytes(op->y_dtype);
    void *const addresses[CPU_OPERANDS] = { (char *)p[0] + row * x_row, p[1], p[2],
                                            (char *)p[4] + row * y_row,
                                            (char *)scratch + (size_t)i * g->matmul_bytes };
    return qv_matmul_run_cpu(dev, &g->matmuls[i], addresses, err);
}

static qv_status
run_all(struct qv_device_cpu *dev, const struct qv_op_gemm *op, const struct gemm_cpu *g,
        void *const *p, void *scratch, qv_error *err)
{
    qv_status status = QV_OK;
#pragma omp parallel for num_threads(g->n_matmuls) schedule(static)
    for (int i = 0; i < g->n_matmuls; i++) {
        qv_error failure = { 0 };
        if (run_one(dev, op, g, i, p, scratch, &failure))
#pragma omp critical(qv_gemm)
            status = qv_fail(err, failure.status, "%s", failure.text);
    }
    return status;
}

/* ---- verbs ----------------------------------------------------------------------------------- */

static qv_status
prepare_gemm(struct qv_device_cpu *dev, struct qv_kernel *kernel, size_t *scratch_bytes,
             qv_error *err)
{
    const struct qv_op_gemm *op = &kernel->op.u.gemm;
    const double most = fmax((double)op->m, fmax((double)op->n, (double)op->k));
    qv_status status = qv_count_check_cpu(&kernel->op, most, err);
    if (status)
        return status;
    struct qv_matrix matrix = { .n = op->n, .k = op->k, .dtype = (qv_dtype)op->w_dtype };
    struct gemm_weights_cpu weights = { 0 };
    status = open_weights(dev, &matrix, &weights, err);
    if (status)
        return status;
    status = open_gemm(dev, op, &weights, &kernel->gemm, err);
    close_weights(&weights);
    *scratch_bytes = kernel->gemm.scratch_bytes;
    return status;
}

static qv_status
run_gemm(struct qv_device_cpu *dev, const struct qv_kernel *kernel, void *const *p, void *scratch,
         qv_error *err)
{
    const struct qv_op_gemm *op = &kernel->op.u.gemm;
    const struct gemm_cpu *g = &kernel->gemm;
    if (!g->matmuls)
        return qv_blocks_run_cpu(dev, op, &g->blocks, p, scratch, err);
    const struct qv_op_epilogue epilogue = qv_op_gemm_epilogue(op);
    qv_epilogue_residual_cpu(dev, &epilogue, p[3], p[4]);
    const qv_status status = g->n_matmuls == 1 ? run_one(dev, op, g, 0, p, scratch, err)
                                               : run_all(dev, op, g, p, scratch, err);
    if (!status && acts_apart(op)) {
        const struct qv_op_epilogue act = {
            .rows = op->m, .cols = op->n, .alpha = 1, .act = op->act, .y_dtype = QV_F32
        };
        qv_epilogue_rows_cpu(dev->threads, &act, p[4], (void *[]){ NULL, NULL, p[4] });
    }
    return status;
}

static void
release_gemm(struct qv_kernel *kernel)
{
    struct gemm_cpu *g = &kernel->gemm;
    for (int i = 0; i < g->n_matmuls && g->matmuls; i++)
        qv_primitive_close_cpu(&g->matmuls[i]);
    free(g->matmuls);
    qv_blocks_close_cpu(&g->blocks);
}

static void
describe_gemm(const struct qv_kernel *kernel, char *text, size_t size)
{
    const struct gemm_cpu *g = &kernel->gemm;
    if (!g->matmuls) {
        qv_primitive_describe_cpu("", &g->blocks.products[0][0], text, size);
        snprintf(text + strlen(text), size - strlen(text), " in blocks of rows");
        return;
    }
    qv_primitive_describe_cpu("", &g->matmuls[0], text, size);
    if (g->n_matmuls > 1)
        snprintf(text + strlen(text), size - strlen(text), ", %lld rows per thread",
                 (long long)g->rows);
}

const struct verbs_cpu qv_gemm_verbs_cpu = {
    .prepare = prepare_gemm, .run = run_gemm, .release = release_gemm, .describe = describe_gemm
};
