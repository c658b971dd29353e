/* SPDX-License-Identifier: MIT */
/*
 * gemm_few, in plain loops over w in its canonical form (engine/grouped.h). A thread widens a group
 * of a row of w (a column of y) to f32, so that its values are not rounded, and multiplies all rows
 * of x by it.
 */
#include "clones.h"
#include "cpu.h"

enum { LANES = 16 }; /* partial sums per value, so that additions need not wait for each other */

static qv_status
prepare_gemm_few(struct qv_device_cpu *dev, struct qv_kernel *kernel, size_t *scratch_bytes,
                 qv_error *err)
{
    const struct qv_op_gemm_few *op = &kernel->op.u.gemm_few;
    (void)dev, (void)err;
    *scratch_bytes = (size_t)(op->m * op->k) * sizeof(float);
    return QV_OK;
}

static void
describe_gemm_few(const struct qv_kernel *kernel, char *text, size_t size)
{
    snprintf(text, size, "our loop, %lld bits", (long long)kernel->op.u.gemm_few.w_bits);
}

/* values[QV_FEW_GROUP] = a group's codes * scale + offset */
QV_CLONES static void
widen(const uint8_t *restrict codes, bool bytes, float scale, float offset, float *restrict values)
{
    if (bytes) {
        for (int i = 0; i < QV_FEW_GROUP; i++)
            values[i] = (float)codes[i] * scale + offset;
    } else {
        for (int i = 0; i < QV_FEW_GROUP / 2; i++) {
            values[2 * i] = (float)(codes[i] & 15) * scale + offset;
            values[2 * i + 1] = (float)(codes[i] >> 4) * scale + offset;
        }
    }
}

/* sums[LANES] += x[QV_FEW_GROUP] * values */
QV_CLONES static void
add_products(const float *x, const float *values, float *sums)
{
    for (int i = 0; i < QV_FEW_GROUP; i += LANES) {
#pragma omp simd
        for (int lane = 0; lane < LANES; lane++)
            sums[lane] += x[i + lane] * values[i + lane];
    }
}

/* Computes column `col` of y from x[m,k] in f32. */
static void
run_column(const struct qv_op_gemm_few *op, const float *x, int64_t col, void *const *p)
{
    const struct qv_groups groups = { op->w_bits, op->w_group, (qv_dtype)op->w_dtype };
    const struct qv_op_gemm gemm = qv_op_few_as_gemm(op);
    const struct qv_op_epilogue epilogue = qv_op_gemm_epilogue(&gemm);
    const uint8_t *row = (const uint8_t *)p[1] + (size_t)col * qv_grouped_row_bytes(&groups, op->k);
    float sums[QV_FEW_ROWS][LANES] = { { 0 } }, values[QV_FEW_GROUP];
    for (int64_t k = 0; k < op->k; k += QV_FEW_GROUP) {
        widen(row + k * op->w_bits / 8, op->w_bits == 8,
              qv_grouped_factor(&groups, row, op->k, 0, k / QV_FEW_GROUP),
              qv_grouped_factor(&groups, row, op->k, 1, k / QV_FEW_GROUP), values);
        for (int64_t i = 0; i < op->m; i++)
            add_products(x + i * op->k + k, values, sums[i]);
    }
    for (int64_t i = 0; i < op->m; i++) {
        float sum = 0;
        for (int lane = 0; lane < LANES; lane++)
            sum += sums[i][lane];
        qv_epilogue_part_cpu(&epilogue, &sum, i, col, 1, p + 2);
    }
}

static qv_status
run_gemm_few(struct qv_device_cpu *dev, const struct qv_kernel *kernel, void *const *p,
             void *scratch, qv_error *err)
{
    const struct qv_op_gemm_few *op = &kernel->op.u.gemm_few;
    float *const x = scratch;
    (void)err;
#pragma omp parallel num_threads(dev->threads)
    {
#pragma omp for schedule(static)
        for (int64_t i = 0; i < op->m; i++)
            qv_lanes_load_cpu(x + i * op->k, at_cpu(p[0], op->x_dtype, i * op->k), op->x_dtype,
                              op->k);
#pragma omp for schedule(static)
        for (int64_t col = 0; col < op->n; col++)
            run_column(op, x, col, p);
    }
    return QV_OK;
}

const struct verbs_cpu qv_gemm_few_verbs_cpu = { .prepare = prepare_gemm_few,
                                                 .run = run_gemm_few,
                                                 .describe = describe_gemm_few };
