/* SPDX-License-Identifier: MIT */
/*
 * gemm_few, in plain loops. A thread unpacks a group of a panel of w (struct codes_cpu) to f32, so
 * that its values are not rounded, and multiplies all rows of x by it.
 */
#include "clones.h"
#include "cpu.h"

static qv_status
prepare_gemm_few(struct qv_device_cpu *dev, struct qv_kernel *kernel, size_t *scratch_bytes,
                 qv_error *err)
{
    (void)dev, (void)kernel, (void)err;
    *scratch_bytes = 0;
    return QV_OK;
}

static void
describe_gemm_few(const struct qv_kernel *kernel, char *text, size_t size)
{
    snprintf(text, size, "our loop, %lld bits", (long long)kernel->op.u.gemm_few.w_bits);
}

/* values[QV_FEW_GROUP][CODES_COLS] = a group of a panel. A word has pairs of codes in its halves;
 * they become signed before they become floats, as every instruction set can convert those. */
QV_CLONES static void
unpack(const struct codes_cpu *w, const char *group, float (*values)[CODES_COLS])
{
    const uint32_t bits = (uint32_t)w->groups.bits, mask = (1u << bits) - 1;
    const char *line = group + 2 * w->factors, *end = group + w->group_bytes;
    float factors[2][CODES_COLS];
    uint32_t words[CODES_COLS];
    qv_codes_factors_cpu(w, group, factors[0]);
    for (; line < end; line += LINE_BYTES) {
        memcpy(words, line, sizeof words);
        for (uint32_t shift = 0; shift < 16; shift += bits)
            for (uint32_t half = 0; half < 2; half++, values++)
                for (int col = 0; col < CODES_COLS; col++) {
                    const int32_t code = (int32_t)(words[col] >> (half * 16 + shift) & mask);
                    values[0][col] = (float)code * factors[0][col] + factors[1][col];
                }
    }
}

/* sums[CODES_COLS] += x[QV_FEW_GROUP] times values */
QV_CLONES static void
add_products(const float *x, float (*values)[CODES_COLS], float *sums)
{
    float sum[CODES_COLS] = { 0 };
    for (int k = 0; k < QV_FEW_GROUP; k++) {
#pragma omp simd
        for (int col = 0; col < CODES_COLS; col++)
            sum[col] += x[k] * values[k][col];
    }
    for (int col = 0; col < CODES_COLS; col++)
        sums[col] += sum[col];
}

/* Computes a panel's columns of y, from `col` on. */
static void
run_panel(const struct qv_op_gemm *op, const struct codes_cpu *w, int64_t col, void *const *p)
{
    const struct qv_op_epilogue epilogue = qv_op_gemm_epilogue(op);
    float sums[QV_FEW_ROWS][CODES_COLS] = { { 0 } };
    float values[QV_FEW_GROUP][CODES_COLS], x[QV_FEW_GROUP];
    for (int64_t k = 0; k < op->k; k += QV_FEW_GROUP) {
        unpack(w, (const char *)p[1] + qv_codes_at_cpu(w, col, k / QV_FEW_GROUP), values);
        for (int64_t i = 0; i < op->m; i++) {
            qv_lanes_load_cpu(x, at_cpu(p[0], op->x_dtype, i * op->k + k), op->x_dtype,
                              QV_FEW_GROUP);
            add_products(x, values, sums[i]);
        }
    }
    for (int64_t i = 0; i < op->m; i++)
        qv_epilogue_part_cpu(&epilogue, sums[i], i, col, qv_at_most(op->n - col, CODES_COLS),
                             p + 2);
}

static qv_status
run_gemm_few(struct qv_device_cpu *dev, const struct qv_kernel *kernel, void *const *p,
             void *scratch, qv_error *err)
{
    const struct qv_op_gemm_few *few = &kernel->op.u.gemm_few;
    const struct qv_groups groups = { few->w_bits, few->w_group, (qv_dtype)few->w_dtype };
    const struct codes_cpu w = qv_codes_cpu(few->n, few->k, &groups);
    const struct qv_op_gemm op = qv_op_few_as_gemm(few);
    (void)scratch, (void)err;
#pragma omp parallel for num_threads(dev->threads) schedule(static)
    for (int64_t col = 0; col < op.n; col += CODES_COLS)
        run_panel(&op, &w, col, p);
    return QV_OK;
}

const struct verbs_cpu qv_gemm_few_verbs_cpu = { .prepare = prepare_gemm_few,
                                                 .run = run_gemm_few,
                                                 .describe = describe_gemm_few };
