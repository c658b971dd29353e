/* SPDX-License-Identifier: MIT */
/* A oneDNN primitive with its memory objects in one struct, and reordering of weights. */
#include <pthread.h>
#include <signal.h>

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
                   "%s: oneDNN reported \"%s\"%s", what,
                   (size_t)status < sizeof texts / sizeof *texts ? texts[status] : "unknown",
                   status == dnnl_unimplemented && !qv_x86_has_cpu(dnnl_cpu_isa_avx512_core)
                       ? "; this CPU does not multiply bf16: use dtype f32, the default here"
                       : "");
}

static const int arguments[CPU_OPERANDS] = { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS,
                                             DNNL_ARG_DST, DNNL_ARG_SCRATCHPAD };

/* Creates a memory object that owns one number. */
static dnnl_status_t
create_number(struct qv_device_cpu *dev, double number, dnnl_memory_t *out)
{
    const dnnl_dims_t one = { 1 };
    dnnl_memory_desc_t md;
    void *to;
    dnnl_status_t s = dnnl_memory_desc_create_with_tag(&md, 1, one, dnnl_f32, dnnl_a);
    if (s)
        return s;
    s = dnnl_memory_create(out, md, dev->engine, DNNL_MEMORY_ALLOCATE);
    dnnl_memory_desc_destroy(md);
    if (!s)
        s = dnnl_memory_get_data_handle(*out, &to);
    if (!s)
        *(float *)to = (float)number;
    return s;
}

dnnl_status_t
qv_primitive_open_cpu(struct qv_device_cpu *dev, dnnl_primitive_desc_t pd, double alpha,
                      struct primitive_cpu *out)
{
    dnnl_status_t s = dnnl_primitive_create(&out->primitive, pd);
    out->holds_signals = strstr(qv_primitive_name_cpu(pd), "gemm:jit");
    for (int i = 0; i < CPU_OPERANDS && !s; i++) {
        const_dnnl_memory_desc_t md =
            dnnl_primitive_desc_query_md(pd, dnnl_query_exec_arg_md, arguments[i]);
        if (i == CPU_SCRATCH)
            out->scratch_bytes = dnnl_memory_desc_get_size(md);
        if (md && dnnl_memory_desc_get_size(md))
            s = dnnl_memory_create(&out->memory[i], md, dev->engine, DNNL_MEMORY_NONE);
    }
    if (!s && alpha != 1)
        s = create_number(dev, alpha, &out->alpha);
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
    if (p->alpha)
        dnnl_memory_destroy(p->alpha);
    memset(p, 0, sizeof *p);
}

/* oneDNN's older GEMM, which its convolutions use too, may switch its stack to a heap buffer
 * ("mov(rsp, ARG_WS)" in its jit_avx_gemm_f32.cpp): a signal handler would write below that
 * buffer. */
dnnl_status_t
qv_primitive_run_cpu(struct qv_device_cpu *dev, const struct primitive_cpu *p,
                     void *const addresses[CPU_OPERANDS])
{
    dnnl_exec_arg_t args[CPU_OPERANDS + 1];
    dnnl_status_t s = dnnl_success;
    int n = 0;
    if (p->alpha)
        args[n++] = (dnnl_exec_arg_t){ DNNL_ARG_ATTR_SCALES | DNNL_ARG_SRC, p->alpha };
    for (int i = 0; i < CPU_OPERANDS && !s; i++)
        if (p->memory[i]) {
            s = dnnl_memory_set_data_handle(p->memory[i], addresses[i]);
            args[n++] = (dnnl_exec_arg_t){ arguments[i], p->memory[i] };
        }
    if (s)
        return s;
    sigset_t all, before;
    sigfillset(&all);
    if (p->holds_signals)
        pthread_sigmask(SIG_SETMASK, &all, &before);
    s = dnnl_primitive_execute(p->primitive, dev->stream, n, args);
    if (p->holds_signals)
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    return s;
}

const char *
qv_primitive_name_cpu(const_dnnl_primitive_desc_t pd)
{
    const char *name = "of unknown name";
    dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, (void *)&name);
    return name;
}

bool
qv_primitive_is_brgemm_cpu(const_dnnl_primitive_desc_t pd)
{
    return !strncmp(qv_primitive_name_cpu(pd), "brg", 3);
}

/* Outside x86-64, oneDNN's "gemm:jit:f32" is also a C++ loop. */
bool
qv_primitive_is_reference_cpu(const_dnnl_primitive_desc_t pd)
{
    static const char *const names[] = {
        "ref",
        "gemm:ref",
#ifndef __x86_64__
        "gemm:jit",
#endif
    };
    const char *name = qv_primitive_name_cpu(pd);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strncmp(name, names[i], strlen(names[i])))
            return true;
    return false;
}

void
qv_primitive_describe_cpu(const char *what, const struct primitive_cpu *p, char *text, size_t size)
{
    const_dnnl_primitive_desc_t pd;
    size_t used = strlen(text);
    if (!p->primitive)
        snprintf(text + used, size - used, "%sOpenBLAS sgemm", what);
    else if (!dnnl_primitive_get_primitive_desc(p->primitive, &pd))
        snprintf(text + used, size - used, "%soneDNN %s%s", what, qv_primitive_name_cpu(pd),
                 qv_primitive_is_reference_cpu(pd) ? " (slow reference code)" : "");
}

qv_status
qv_count_check_cpu(const struct qv_op *op, double most, qv_error *err)
{
    return most <= INT32_MAX
               ? QV_OK
               : qv_fail(err, QV_EUNSUPPORTED, "%s: %.3g rows or voxels; oneDNN supports up to %d",
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
