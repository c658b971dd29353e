/* SPDX-License-Identifier: MIT */
/* A oneDNN primitive with its memory objects in one struct, and reordering of weights. */
#include "cpu.h"

qv_status
qv_dnnl_check_cpu(dnnl_status_t status, const char *what, qv_error *err)
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
                   "%s: oneDNN says \"%s\"%s", what,
                   (size_t)status < sizeof texts / sizeof *texts ? texts[status] : "unknown",
                   status == dnnl_unimplemented ? " (on this CPU; bf16 needs AVX-512)" : "");
}

static int
argument(const struct primitive_cpu *p, int i)
{
    const int args[CPU_OPERANDS] = { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, p->bias_arg, DNNL_ARG_DST,
                                     DNNL_ARG_SCRATCHPAD };
    return args[i];
}

dnnl_status_t
qv_primitive_open_cpu(struct qv_device_cpu *dev, dnnl_primitive_desc_t pd, int bias_arg,
                      struct primitive_cpu *out)
{
    out->bias_arg = bias_arg;
    dnnl_status_t s = dnnl_primitive_create(&out->primitive, pd);
    for (int i = 0; i < CPU_OPERANDS && !s; i++) {
        const_dnnl_memory_desc_t md =
            dnnl_primitive_desc_query_md(pd, dnnl_query_exec_arg_md, argument(out, i));
        if (i == CPU_SCRATCH)
            out->scratch_bytes = dnnl_memory_desc_get_size(md);
        if (md && argument(out, i))
            s = dnnl_memory_create(&out->memory[i], md, dev->engine, DNNL_MEMORY_NONE);
    }
    if (s)
        qv_primitive_close_cpu(out);
    return s;
}

void
qv_primitive_close_cpu(struct primitive_cpu *p)
{
    if (p->primitive)
        dnnl_primitive_destroy(p->primitive);
    for (int i = 0; i < CPU_OPERANDS; i++)
        if (p->memory[i])
            dnnl_memory_destroy(p->memory[i]);
    memset(p, 0, sizeof *p);
}

dnnl_status_t
qv_primitive_run_cpu(struct qv_device_cpu *dev, const struct primitive_cpu *p,
                     void *const addresses[CPU_OPERANDS])
{
    dnnl_exec_arg_t args[CPU_OPERANDS];
    dnnl_status_t s = dnnl_success;
    int n = 0;
    for (int i = 0; i < CPU_OPERANDS && !s; i++)
        if (p->memory[i]) {
            s = dnnl_memory_set_data_handle(p->memory[i], addresses[i]);
            args[n++] = (dnnl_exec_arg_t){ argument(p, i), p->memory[i] };
        }
    return s ? s : dnnl_primitive_execute(p->primitive, dev->stream, n, args);
}

/* Describes the primitive, and warns if oneDNN runs its reference code for lack of vector code:
 * that is a thousand times slower. */
void
qv_primitive_describe_cpu(const char *what, const struct primitive_cpu *p, char *text, size_t size)
{
    const_dnnl_primitive_desc_t pd;
    const char *name = "of unknown name";
    size_t used = strlen(text);
    if (!dnnl_primitive_get_primitive_desc(p->primitive, &pd))
        dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, (void *)&name);
    snprintf(text + used, size - used, "%s%s%s", what, name,
             strncmp(name, "ref", 3) ? "" : " (slow reference code, the only one for this)");
}

qv_status
qv_count_check_cpu(const struct qv_op *op, double most, qv_error *err)
{
    return most <= INT32_MAX
               ? QV_OK
               : qv_fail(err, QV_EUNSUPPORTED, "%s: %.3g rows or voxels; oneDNN counts up to %d",
                         qv_op_name(op->kind), most, INT32_MAX);
}

dnnl_status_t
qv_reorder_cpu(struct qv_device_cpu *dev, const_dnnl_memory_desc_t from, const void *src,
               const_dnnl_memory_desc_t to, void *dst)
{
    dnnl_primitive_desc_t pd = NULL;
    dnnl_primitive_t primitive = NULL;
    dnnl_memory_t a = NULL, b = NULL;
    dnnl_status_t s =
        dnnl_reorder_primitive_desc_create(&pd, from, dev->engine, to, dev->engine, NULL);
    if (!s)
        s = dnnl_primitive_create(&primitive, pd);
    if (!s)
        s = dnnl_memory_create(&a, from, dev->engine, (void *)src);
    if (!s)
        s = dnnl_memory_create(&b, to, dev->engine, dst);
    if (!s) {
        dnnl_exec_arg_t args[] = { { DNNL_ARG_FROM, a }, { DNNL_ARG_TO, b } };
        s = dnnl_primitive_execute(primitive, dev->stream, 2, args);
    }
    if (a)
        dnnl_memory_destroy(a);
    if (b)
        dnnl_memory_destroy(b);
    if (primitive)
        dnnl_primitive_destroy(primitive);
    if (pd)
        dnnl_primitive_desc_destroy(pd);
    return s;
}
