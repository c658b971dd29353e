/* SPDX-License-Identifier: MIT */
/* Computes act(a) * b. It is bound by memory: each value is read once and written once. */
#include "device.cuh"

struct gate_shape {
    int64_t vectors; /* number of vectors in all rows */
    struct divisor per_row;
    int64_t a_stride, b_stride;
    int act;
};

/* Each thread computes one vector: having more loads in flight was no faster. */
template <typename T, int N>
static __global__ BLOCK void
gate_kernel(const struct gate_shape s, const T *a, const T *b, T *y)
{
    const int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x;
    int64_t at;
    float u[N], v[N];
    if (i >= s.vectors)
        return;
    const int64_t row = divide(i, s.per_row, &at);
    load(u, a + row * s.a_stride + at * N);
    load(v, b + row * s.b_stride + at * N);
#pragma unroll
    for (int j = 0; j < N; j++)
        v[j] *= activate<T>(s.act, u[j]);
    store(y + i * N, v);
}

template <typename T, int N>
static cudaError_t
gate_vectors(cudaStream_t stream, const struct qv_op_gate *op, const void *a, const void *b,
             void *y)
{
    const struct gate_shape s = { op->rows * (op->cols / N), divisor_of(op->cols / N),
                                  qv_row_stride(op->a_stride, op->cols),
                                  qv_row_stride(op->b_stride, op->cols), (int)op->act };
    return launch(stream, ceil_div(s.vectors, THREADS), dim3(THREADS), gate_kernel<T, N>, s,
                  (const T *)a, (const T *)b, (T *)y);
}

cudaError_t
qv_gate_cuda(cudaStream_t stream, const struct qv_op_gate *op, const void *a, const void *b,
             void *y)
{
    return typed(op->y_dtype, [&](auto t) {
        typedef decltype(t) T;
        bool vectors = !(op->cols % LANES<T> || op->a_stride % LANES<T> || op->b_stride % LANES<T>);
        return vectors ? gate_vectors<T, LANES<T>>(stream, op, a, b, y)
                       : gate_vectors<T, 1>(stream, op, a, b, y);
    });
}
