/* SPDX-License-Identifier: MIT */
/* oneDNN's matmul: ten objects to make one product, hidden in one struct. */
#include "cpu.h"

qv_status
dnnl_check_cpu(dnnl_status_t status, const char *what, qv_error *err)
{
    static const char *const texts[] = { "success",       "out of memory", "invalid arguments",
                                         "unimplemented", "last impl",     "runtime error",
                                         "not required" };
    if (status == dnnl_success)
        return QV_OK;
    return qv_fail(err,
                   status == dnnl_out_of_memory   ? QV_ENOMEM
                   : status == dnnl_unimplemented ? QV_EUNSUPPORTED
                                                  : QV_EBACKEND,
                   "%s: oneDNN says \"%s\"", what,
                   (size_t)status < sizeof texts / sizeof *texts ? texts[status] : "unknown");
}

static dnnl_status_t
matrix_md(dnnl_memory_desc_t *out, int64_t rows, int64_t cols, int64_t row_stride,
          int64_t col_stride, dnnl_data_type_t type)
{
    dnnl_dims_t dims = { rows, cols }, strides = { row_stride, col_stride };
    if (!row_stride)
        return dnnl_memory_desc_create_with_tag(out, 2, dims, type, dnnl_format_tag_any);
    return dnnl_memory_desc_create_with_strides(out, 2, dims, type, strides);
}

/* The scratchpad is ours, in the plan's arena: mode user. */
static dnnl_status_t
create_primitive(dnnl_primitive_desc_t *pd, struct qv_device_cpu *dev,
                 const struct matmul_desc_cpu *d, dnnl_memory_desc_t md[MATMUL_OPERANDS])
{
    dnnl_primitive_attr_t attr = NULL;
    dnnl_status_t s =
        d->attr ? dnnl_primitive_attr_clone(&attr, d->attr) : dnnl_primitive_attr_create(&attr);
    if (!s)
        s = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (!s)
        s = dnnl_matmul_primitive_desc_create(pd, dev->engine, md[MATMUL_SRC], md[MATMUL_WEIGHTS],
                                              d->bias_arg == DNNL_ARG_BIAS ? md[MATMUL_BIAS] : NULL,
                                              md[MATMUL_DST], attr);
    if (attr)
        dnnl_primitive_attr_destroy(attr);
    return s;
}

static dnnl_status_t
create_memory(struct qv_device_cpu *dev, dnnl_primitive_desc_t pd, struct matmul_cpu *m,
              const_dnnl_memory_desc_t bias)
{
    static const dnnl_query_t query[MATMUL_OPERANDS] = { [MATMUL_SRC] = dnnl_query_src_md,
                                                         [MATMUL_WEIGHTS] = dnnl_query_weights_md,
                                                         [MATMUL_DST] = dnnl_query_dst_md,
                                                         [MATMUL_SCRATCH] =
                                                             dnnl_query_scratchpad_md };
    dnnl_status_t s = dnnl_success;
    for (int i = 0; i < MATMUL_OPERANDS && !s; i++) {
        const_dnnl_memory_desc_t md =
            i == MATMUL_BIAS ? bias : dnnl_primitive_desc_query_md(pd, query[i], 0);
        if (i == MATMUL_SCRATCH)
            m->scratch_bytes = dnnl_memory_desc_get_size(md);
        if (md)
            s = dnnl_memory_create(&m->memory[i], md, dev->engine, DNNL_MEMORY_NONE);
    }
    return s;
}

qv_status
matmul_open_cpu(struct qv_device_cpu *dev, const struct matmul_desc_cpu *d, struct matmul_cpu *out,
                qv_error *err)
{
    dnnl_memory_desc_t md[MATMUL_OPERANDS] = { 0 };
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t s = matrix_md(&md[MATMUL_SRC], d->m, d->k, d->src_stride, 1, d->type);
    if (!s)
        s = d->weights ? dnnl_memory_desc_clone(&md[MATMUL_WEIGHTS], d->weights)
                       : matrix_md(&md[MATMUL_WEIGHTS], d->k, d->n, d->weights_strides[0],
                                   d->weights_strides[1], d->type);
    if (!s && d->bias_arg)
        s = matrix_md(&md[MATMUL_BIAS], 1, d->n, d->n, 1, dnnl_f32);
    if (!s)
        s = matrix_md(&md[MATMUL_DST], d->m, d->n, d->dst_stride, 1, d->dst_type);
    if (!s)
        s = create_primitive(&pd, dev, d, md);
    if (!s)
        s = dnnl_primitive_create(&out->primitive, pd);
    if (!s)
        s = create_memory(dev, pd, out, md[MATMUL_BIAS]);
    out->bias_arg = d->bias_arg;
    if (pd)
        dnnl_primitive_desc_destroy(pd);
    for (int i = 0; i < MATMUL_OPERANDS; i++)
        if (md[i])
            dnnl_memory_desc_destroy(md[i]);
    if (s)
        matmul_close_cpu(out);
    return dnnl_check_cpu(s, "matmul", err);
}

void
matmul_close_cpu(struct matmul_cpu *m)
{
    if (m->primitive)
        dnnl_primitive_destroy(m->primitive);
    for (int i = 0; i < MATMUL_OPERANDS; i++)
        if (m->memory[i])
            dnnl_memory_destroy(m->memory[i]);
    memset(m, 0, sizeof *m);
}

qv_status
matmul_run_cpu(struct qv_device_cpu *dev, const struct matmul_cpu *m,
               void *const addresses[MATMUL_OPERANDS], qv_error *err)
{
    const int arg[MATMUL_OPERANDS] = { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, m->bias_arg, DNNL_ARG_DST,
                                       DNNL_ARG_SCRATCHPAD };
    dnnl_exec_arg_t args[MATMUL_OPERANDS];
    int n = 0;
    for (int i = 0; i < MATMUL_OPERANDS; i++)
        if (m->memory[i]) {
            dnnl_memory_set_data_handle(m->memory[i], addresses[i]);
            args[n++] = (dnnl_exec_arg_t){ arg[i], m->memory[i] };
        }
    return dnnl_check_cpu(dnnl_primitive_execute(m->primitive, dev->stream, n, args), "matmul",
                          err);
}
