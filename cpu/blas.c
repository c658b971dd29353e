/* SPDX-License-Identifier: MIT */
/*
 * Bare products in f32 by OpenBLAS where oneDNN has no brgemm: outside x86-64 oneDNN's older GEMM
 * is a C++ loop (Arm without SVE, and Arm with 128-bit SVE before oneDNN 3.12).
 *
 * Each thread calls OpenBLAS for its own products, so it must be thread-safe and must not divide a
 * product among threads. Built with OpenMP it does neither inside a parallel region, where all our
 * calls are, and tools/deps.sh installs that one. A build with its own threads would wake them for
 * each block, so it is limited to the calling thread. That setting applies to the whole process, so
 * other users of the library get one thread too. Debian's build without threads uses locks.
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

/* OpenBLAS does not know a layout chosen by oneDNN, unless the choice is left to us. */
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
