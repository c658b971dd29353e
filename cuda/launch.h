/* SPDX-License-Identifier: MIT */
/*
 * Our own device kernels. Each function enqueues one operation on a stream, as ops.inc defines it.
 * Pointers are device addresses, aligned to 16 bytes or more (strided operands: plus whole
 * columns). Values are f32 or bf16; all operands whose dtype can vary have the same one,
 * except in convert and gather; sums are in f32. The kernels support any size that qv_op_check()
 * accepts, including more than 2^31 elements. early: a kernel may start before the previous one has
 * finished; false if kernels were compiled for a compute capability below 9.0.
 */
#pragma once

#include <cuda_runtime_api.h>

#include "engine/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t qv_patchify_cuda(cudaStream_t stream, const struct qv_op_patchify *op,
                             const void *frames, const void *places, const void *norms,
                             const void *coords, void *y);
cudaError_t qv_convert_cuda(cudaStream_t stream, const struct qv_op_convert *op, const void *x,
                            void *y);
cudaError_t qv_norm_cuda(cudaStream_t stream, const struct qv_op_norm *op, const void *x,
                         const void *weight, const void *bias, void *y, bool early,
                         int multiprocessors);
cudaError_t qv_rope_cuda(cudaStream_t stream, const struct qv_op_rope *op, const void *cosines,
                         const void *sines, const void *coords, void *x, bool early);
cudaError_t qv_gate_cuda(cudaStream_t stream, const struct qv_op_gate *op, const void *a,
                         const void *b, void *y);
cudaError_t qv_gather_cuda(cudaStream_t stream, const struct qv_op_gather *op, const void *x,
                           const void *index, void *y);
cudaError_t qv_interpolate_cuda(cudaStream_t stream, const struct qv_op_interpolate *op,
                                const void *table, const void *index, const void *weight, void *y);
cudaError_t qv_im2col_cuda(cudaStream_t stream, const struct qv_op_im2col *op, const void *x,
                           void *y);
cudaError_t qv_epilogue_cuda(cudaStream_t stream, const struct qv_op_epilogue *op, const void *x,
                             const void *bias, const void *residual, void *y);

/* x is bf16, w has the layout of codes.h with scales of 16 bits, n is at most 16 * UINT16_MAX. The
 * GPU has `blocks` multiprocessors, and its blocks at most `shared_bytes` of shared memory. */
cudaError_t qv_gemm_few_cuda(cudaStream_t stream, const struct qv_op_gemm_few *op, const void *x,
                             const void *w, const void *bias, const void *residual, void *y,
                             int code, int blocks, size_t shared_bytes);

/* The two passes of a resize; the axis's tables are in the device's memory. Across: frames of
 * `height` rows to dst[n, height, axis->out, 3]. Down: bytes src[frames, axis->in, row] to
 * dst[frames, axis->out, row]. */
cudaError_t qv_resize_across_cuda(cudaStream_t stream, const struct qv_axis *axis,
                                  const struct qv_frames_view *src, int64_t height, void *dst);
cudaError_t qv_resize_down_cuda(cudaStream_t stream, const struct qv_axis *axis, int64_t frames,
                                int64_t row, const void *src, void *dst);

/* Copies y[rows, to] = x[rows, from], padded with zeros (to >= from); elements are of dtype. */
cudaError_t qv_pad_rows_cuda(cudaStream_t stream, int64_t rows, int64_t from, int64_t to,
                             int64_t dtype, const void *x, void *y);

/* Attention in bf16 over segments of up to 64 rows each, if op->longest promises that; the first
 * function returns whether it supports an operation. */
bool qv_attention_is_short_cuda(const struct qv_op_attention *op);
cudaError_t qv_attention_short_cuda(cudaStream_t stream, const struct qv_op_attention *op,
                                    const void *list, const void *q, const void *k, const void *v,
                                    void *y, bool early);

/* Attention in bf16 on a GPU of compute capability 9.0, which has `blocks` multiprocessors; the
 * first function returns whether it supports an operation. */
bool qv_attention_is_hopper_cuda(const struct qv_op_attention *op);
cudaError_t qv_attention_hopper_cuda(cudaStream_t stream, const struct qv_op_attention *op,
                                     const void *list, const void *q, const void *k, const void *v,
                                     void *y, int blocks);

/* A gemm and the rope or gate of its y at once, with the same bits, on a GPU of compute capability
 * 9.0 that has `blocks` multiprocessors. The first function returns whether this is possible and
 * faster. of_gemm, of_next: their operands. The gemm's y is not written if `next` is a gate. */
bool qv_gemm_with_is_hopper_cuda(const struct qv_op_gemm *gemm, const struct qv_op *next,
                                 int blocks);
cudaError_t qv_gemm_with_hopper_cuda(cudaStream_t stream, const struct qv_op_gemm *gemm,
                                     const struct qv_op *next, void *const *of_gemm,
                                     void *const *of_next, int blocks);

/* Attention and convolutions that cuDNN does not support (f32, odd sizes): correct but slow. w is
 * [o, kd, kh, kw, c/groups]. */
cudaError_t qv_attention_naive_cuda(cudaStream_t stream, const struct qv_op_attention *op,
                                    const void *list, const void *q, const void *k, const void *v,
                                    void *y);
cudaError_t qv_conv_naive_cuda(cudaStream_t stream, const struct qv_op_conv *op, const void *x,
                               const void *w, const void *bias, const void *residual, void *y);

#ifdef __cplusplus
}
#endif
