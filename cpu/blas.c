/* SPDX-License-Identifier: MIT */
/*
 * Bare products in f32 by OpenBLAS, where oneDNN has no brgemm: off x86-64 its older GEMM is a loop
 * in C++ (Arm without SVE, and with SVE of 128 bits before oneDNN 3.12).
 *
 * Each thread calls it for products of its own, so it must be safe to call from several threads and
 * must not divide a product among threads itself. Built with OpenMP it does neither inside a
 * parallel region, where all our calls are, and tools/deps.sh installs that one. Built with threads
 * of its own it would wake them for each block, so it is limited to the calling thread; this
 * setting is the process's, and whoever else calls the same library there has one thread as well.
 * Built without threads, Debian's takes locks.
 */
#include "cpu.h"

#ifdef QV_WITH_BLAS

#include <cblas.h>

const bool qv_has_blas_cpu = true;

void
qv_blas_open_cpu(void)
{
    if (openblas_get_parallel() == OPENBLAS_THREAD)
        openblas_set_num_threads(1);
}

/* A layout that oneDNN chose is unknown to it, unless the choice is left to us. */
bool
qv_blas_takes_cpu(const struct matmul_desc_cpu *d, const_dnnl_primitive_desc_t pd)
{
    return d->type == dnnl_f32 && d->dst_type == dnnl_f32 && !d->bias && !d->attr && !d->weights &&
           d->weights_strides[1] <= 1 && !qv_primitive_is_brgemm_cpu(pd);
}

void
qv_blas_run_cpu(const struct product_cpu *p, void *const addresses[CPU_OPERANDS])
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)p->m, (int)p->n, (int)p->k, 1,
                addresses[CPU_SRC], (int)p->src_stride, addresses[CPU_WEIGHTS],
                (int)p->weights_stride, 0, addresses[CPU_DST], (int)p->dst_stride);
}

#else

const bool qv_has_blas_cpu = false;

void
qv_blas_open_cpu(void)
{
}

bool
qv_blas_takes_cpu(const struct matmul_desc_cpu *d, const_dnnl_primitive_desc_t pd)
{
    (void)d;
    (void)pd;
    return false;
}

void
qv_blas_run_cpu(const struct product_cpu *p, void *const addresses[CPU_OPERANDS])
{
    (void)p;
    (void)addresses;
}

#endif
