/* SPDX-License-Identifier: MIT */
/* gemm: a plain w on oneDNN's matmul (matmul.c), a quantised one widened block by block
 * (wide.c). */
#include <math.h>

#include "cpu.h"

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
        return qv_wide_prepare_cpu(dev, kernel, scratch_bytes, err);
    struct qv_matrix matrix = { .n = op->n, .k = op->k, .dtype = (qv_dtype)op->w_dtype };
    dnnl_memory_desc_t layout = NULL;
    status = qv_gemm_weights_cpu(dev, &matrix, &layout, err);
    if (status)
        return status;
    status = qv_gemm_open_cpu(dev, op, layout, &kernel->gemm, err);
    dnnl_memory_desc_destroy(layout);
    *scratch_bytes = kernel->gemm.matmul_bytes * (size_t)kernel->gemm.n_matmuls;
    return status;
}

static qv_status
run_gemm(struct qv_device_cpu *dev, const struct qv_kernel *kernel, void *const *p, void *scratch,
         qv_error *err)
{
    const struct qv_op_gemm *op = &kernel->op.u.gemm;
    const struct qv_op_epilogue epilogue = qv_op_gemm_epilogue(op);
    qv_epilogue_residual_cpu(dev, &epilogue, p[3], p[4]);
    return op->w_bits ? qv_wide_run_cpu(dev, kernel, p, scratch, err)
                      : qv_gemm_run_cpu(dev, op, &kernel->gemm, p, scratch, err);
}

static void
release_gemm(struct qv_kernel *kernel)
{
    qv_gemm_close_cpu(&kernel->gemm);
    for (int i = 0; i < CODES_BLOCKS; i++)
        qv_gemm_close_cpu(&kernel->wide.gemms[i]);
}

static void
describe_gemm(const struct qv_kernel *kernel, char *text, size_t size)
{
    const struct qv_op_gemm *op = &kernel->op.u.gemm;
    const struct gemm_cpu *g = op->w_bits ? &kernel->wide.gemms[0] : &kernel->gemm;
    if (op->w_bits)
        snprintf(text, size, "%lld bits widened, then ", (long long)op->w_bits);
    qv_primitive_describe_cpu("oneDNN ", &g->matmuls[0], text, size);
    if (g->n_matmuls > 1)
        snprintf(text + strlen(text), size - strlen(text), ", %lld rows a thread",
                 (long long)g->rows);
}

const struct verbs_cpu qv_gemm_verbs_cpu = {
    .prepare = prepare_gemm, .run = run_gemm, .release = release_gemm, .describe = describe_gemm
};
