/* SPDX-License-Identifier: MIT */
/* A kernel that breaks the device's context for good, and one that keeps the device busy. */
#include <cuda_runtime.h>

static __global__ void
trap_kernel(int *nowhere)
{
    *nowhere = 1;
}

static __global__ void
busy_kernel(long long cycles)
{
    for (long long begin = clock64(); clock64() - begin < cycles;)
        ;
}

extern "C" cudaError_t
trap_device(cudaStream_t stream)
{
    trap_kernel<<<1, 1, 0, stream>>>((int *)16);
    return cudaGetLastError();
}

extern "C" cudaError_t
keep_busy(cudaStream_t stream, int blocks, long long cycles)
{
    busy_kernel<<<blocks, 256, 0, stream>>>(cycles);
    return cudaGetLastError();
}
