/* SPDX-License-Identifier: MIT */
/* A single GEMM: oneDNN's matmul, or OpenBLAS's. */
#include "cpu.h"

static dnnl_status_t
matrix_md(dnnl_memory_desc_t *out, int64_t rows, int64_t cols, int64_t row_stride,
          int64_t col_stride, dnnl_data_type_t type)
{
    dnnl_dims_t dims = { rows, cols }, strides = { row_stride, col_stride };
    if (!row_stride)
        return dnnl_memory_desc_create_with_tag(out, 2, dims, type, dnnl_format_tag_any);
    return dnnl_memory_desc_create_with_strides(out, 2, dims, type, strides);
}

/* Mode `user`, because the scratchpad is in the plan's arena. */
static dnnl_status_t
create_pd(dnnl_primitive_desc_t *pd, struct qv_device_cpu *dev, const struct matmul_desc_cpu *d,
          dnnl_memory_desc_t md[CPU_OPERANDS])
{
    dnnl_primitive_attr_t attr = NULL;
    dnnl_status_t s =
        d->attr ? dnnl_primitive_attr_clone(&attr, d->attr) : dnnl_primitive_attr_create(&attr);
    if (!s)
        s = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (!s)
        s = dnnl_matmul_primitive_desc_create(pd, dev->engine, md[CPU_SRC], md[CPU_WEIGHTS],
                                              md[CPU_BIAS], md[CPU_DST], attr);
    if (attr)
        dnnl_primitive_attr_destroy(attr);
    return s;
}

qv_status
qv_matmul_open_cpu(struct qv_device_cpu *dev, const struct matmul_desc_cpu *d,
                   struct primitive_cpu *out, qv_error *err)
{
    dnnl_memory_desc_t md[CPU_OPERANDS] = { 0 };
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t s = matrix_md(&md[CPU_SRC], d->m, d->k, d->src_stride, 1, d->type);
    if (!s)
        s = d->weights ? dnnl_memory_desc_clone(&md[CPU_WEIGHTS], d->weights)
                       : matrix_md(&md[CPU_WEIGHTS], d->k, d->n, d->weights_strides[0],
                                   d->weights_strides[1], d->type);
    if (!s && d->bias)
        s = matrix_md(&md[CPU_BIAS], 1, d->n, d->n, 1, d->dst_type);
    if (!s)
        s = matrix_md(&md[CPU_DST], d->m, d->n, d->dst_stride, 1, d->dst_type);
    if (!s)
        s = create_pd(&pd, dev, d, md);
    if (!s && qv_blas_takes_cpu(d, pd))
        out->product =
            (struct product_cpu){ .m = d->m,
                                  .n = d->n,
                                  .k = d->k,
                                  .src_stride = d->src_stride,
                                  .weights_stride = qv_row_stride(d->weights_strides[0], d->n),
                                  .dst_stride = d->dst_stride };
    else if (!s && d->type == dnnl_bf16 && qv_primitive_is_reference_cpu(pd))
        s = dnnl_unimplemented; /* as on x86-64 */
    else if (!s)
        s = qv_primitive_open_cpu(dev, pd, d->attr ? d->alpha : 1, out);
    if (pd)
        dnnl_primitive_desc_destroy(pd);
    for (int i = 0; i < CPU_OPERANDS; i++)
        if (md[i])
            dnnl_memory_desc_destroy(md[i]);
    return qv_dnnl_check_cpu(s, "matmul", err);
}

qv_status
qv_matmul_run_cpu(struct qv_device_cpu *dev, const struct primitive_cpu *matmul,
                  void *const addresses[CPU_OPERANDS], qv_error *err)
{
    if (matmul->primitive)
        return qv_dnnl_check_cpu(qv_primitive_run_cpu(dev, matmul, addresses), "matmul", err);
    qv_blas_run_cpu(&matmul->product, addresses);
    return QV_OK;
}
