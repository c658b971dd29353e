/* SPDX-License-Identifier: MIT */
/* The CPU backend's parts: GEMM and attention on oneDNN's matmul, convolutions on oneDNN's, the
 * rest in plain C. */
#ifndef QV_CPU_CPU_H
#define QV_CPU_CPU_H

#include <oneapi/dnnl/dnnl.h>

#include "engine/backend.h"
#include "dtype.h"
#include "error.h"

struct qv_device_cpu {
    struct qv_device base;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    int threads;
    bool wrong_sparse_bf16; /* see qv_caps */
};

/* A oneDNN matmul or convolution and its memory objects, whose addresses are set at each run. */
enum { CPU_SRC, CPU_WEIGHTS, CPU_BIAS, CPU_DST, CPU_SCRATCH, CPU_OPERANDS };
struct primitive_cpu {
    dnnl_primitive_t primitive;
    dnnl_memory_t memory[CPU_OPERANDS]; /* NULL where there is none */
    int bias_arg;                       /* which oneDNN argument the bias is */
    size_t scratch_bytes;
};

/* What a matmul dst[m,n] = src[m,k] weights[k,n] looks like; strides in elements. */
struct matmul_desc_cpu {
    int64_t m, n, k;
    int64_t src_stride;
    int64_t weights_strides[2];
    const_dnnl_memory_desc_t weights; /* instead of strides: packed like this. NULL and strides
                                         {0, 0}: in the layout that oneDNN would choose */
    int64_t dst_stride;
    dnnl_data_type_t type, dst_type;
    int bias_arg;               /* 0: none; DNNL_ARG_BIAS, or a post-operation's [1,n] */
    dnnl_primitive_attr_t attr; /* or NULL; not kept */
};

/* A gemm: one matmul on all threads, or one for each thread's rows. */
struct gemm_cpu {
    struct primitive_cpu *parts;
    int n_parts;
    int64_t rows;      /* of a part; the last one has what is left */
    size_t part_bytes; /* of scratch */
};

struct attention_cpu {
    /* [0]: query blocks of `block` rows; [1]: the last, shorter one, if any */
    struct primitive_cpu *scores[2], *values[2]; /* one for each thread */
    int threads;
    int64_t block, tail;
    size_t thread_bytes; /* of scratch */
    float (*softmax)(const float *x, void *y, int64_t dtype, int64_t n, float scale);
};

struct qv_kernel {
    struct qv_op op;
    struct gemm_cpu gemm;
    struct attention_cpu attention;
    struct primitive_cpu conv;
};

static inline dnnl_data_type_t
dnnl_type_cpu(int64_t dtype)
{
    return dtype == QV_BF16 ? dnnl_bf16 : dnnl_f32;
}

/* cpu/primitive.c: the first turns QV_OK or a status into "what: oneDNN says ..." */
qv_status qv_dnnl_check_cpu(dnnl_status_t status, const char *what, qv_error *err);
dnnl_status_t qv_primitive_open_cpu(struct qv_device_cpu *dev, dnnl_primitive_desc_t pd,
                                    int bias_arg, struct primitive_cpu *out);
void qv_primitive_close_cpu(struct primitive_cpu *primitive);
dnnl_status_t qv_primitive_run_cpu(struct qv_device_cpu *dev, const struct primitive_cpu *primitive,
                                   void *const addresses[CPU_OPERANDS]);
dnnl_status_t qv_reorder_cpu(struct qv_device_cpu *dev, const_dnnl_memory_desc_t from,
                             const void *src, const_dnnl_memory_desc_t to, void *dst);

/* cpu/epilogue.c: what follows a product [rows, cols] of gemm or conv, as post-operations on a
 * destination of n_dims; which argument of the primitive the bias is (0: none); and before a run,
 * the addend to where the post-operation finds it: in y. */
dnnl_status_t qv_epilogue_cpu(const struct qv_op_finish *op, int n_dims,
                              dnnl_primitive_attr_t attr);
int qv_epilogue_bias_arg_cpu(const struct qv_op_finish *op);
void qv_epilogue_addend_cpu(const struct qv_device_cpu *dev, const struct qv_op_finish *op,
                            const void *addend, void *y);

/* cpu/matmul.c */
qv_status qv_matmul_open_cpu(struct qv_device_cpu *dev, const struct matmul_desc_cpu *desc,
                             struct primitive_cpu *out, qv_error *err);
qv_status qv_matmul_run_cpu(struct qv_device_cpu *dev, const struct primitive_cpu *matmul,
                            void *const addresses[CPU_OPERANDS], qv_error *err);

/* cpu/gemm.c */
qv_status qv_gemm_layout_cpu(struct qv_device_cpu *dev, const struct qv_matrix *matrix,
                             struct qv_layout *out, qv_error *err);
qv_status qv_gemm_pack_cpu(struct qv_device_cpu *dev, const struct qv_matrix *matrix, int64_t row0,
                           int64_t rows, const void *src, void *dst, qv_error *err);
qv_status qv_gemm_prepare_cpu(struct qv_device_cpu *dev, struct qv_kernel *kernel,
                              size_t *scratch_bytes, qv_error *err);
qv_status qv_gemm_run_cpu(struct qv_device_cpu *dev, const struct qv_kernel *kernel, void *const *p,
                          void *scratch, qv_error *err);
void qv_gemm_release_cpu(struct qv_kernel *kernel);

/* cpu/conv.c */
qv_status qv_conv_layout_cpu(struct qv_device_cpu *dev, const struct qv_matrix *matrix,
                             struct qv_layout *out, qv_error *err);
qv_status qv_conv_pack_cpu(struct qv_device_cpu *dev, const struct qv_matrix *matrix,
                           const void *src, void *dst, qv_error *err);
qv_status qv_conv_prepare_cpu(struct qv_device_cpu *dev, struct qv_kernel *kernel,
                              size_t *scratch_bytes, qv_error *err);
qv_status qv_conv_run_cpu(struct qv_device_cpu *dev, const struct qv_kernel *kernel, void *const *p,
                          void *scratch, qv_error *err);

/* cpu/attention.c */
qv_status qv_attention_prepare_cpu(struct qv_device_cpu *dev, struct qv_kernel *kernel,
                                   size_t *scratch_bytes, qv_error *err);
qv_status qv_attention_run_cpu(struct qv_device_cpu *dev, const struct qv_kernel *kernel,
                               void *const *p, void *scratch, qv_error *err);
void qv_attention_release_cpu(struct qv_kernel *kernel);

/* cpu/kernels.c: scratch_bytes_cpu is what qv_kernels_run_cpu needs. */
size_t qv_kernels_scratch_cpu(const struct qv_device_cpu *dev, const struct qv_op *op);
void qv_kernels_run_cpu(struct qv_device_cpu *dev, const struct qv_op *op, void *const *p,
                        void *scratch);

/* cpu/lanes.c: what the compiler turns into vector code, for each instruction set. */
void qv_lanes_load_cpu(float *dst, const void *src, int64_t dtype, int64_t n);
void qv_lanes_store_cpu(void *dst, const float *src, int64_t dtype, int64_t n);
void qv_lanes_norm_cpu(float *x, const float *weight, const float *bias, int64_t n, float eps,
                       bool rms);
/* a, b = a cos - b sin, b cos + a sin */
void qv_lanes_rotate_cpu(float *a, float *b, const float *cosines, const float *sines, int64_t n);
/* y[i] = exp((x[i] - max x) * scale) in dtype, y may be x; returns the sum of the rounded y */
float qv_lanes_softmax_cpu(const float *x, void *y, int64_t dtype, int64_t n, float scale);
float qv_lanes_softmax_avx512_cpu(const float *x, void *y, int64_t dtype, int64_t n, float scale);
bool qv_lanes_have_avx512_cpu(void);
void qv_lanes_scale_cpu(float *x, float scale, int64_t n);
void qv_lanes_add_scaled_cpu(float *y, const float *x, float scale, int64_t n);
/* y[i] = src[i * step] * scale + shift */
void qv_lanes_bytes_cpu(void *y, int64_t dtype, const uint8_t *src, int64_t step, float scale,
                        float shift, int64_t n);
/* y = act(alpha * x + bias); bias may be NULL, y may be x */
void qv_lanes_finish_cpu(float *y, const float *x, const float *bias, float alpha, int64_t act,
                         int64_t n);
/* y[cols, y_stride] = the transpose of x[rows, x_stride] with a step of x_step between columns */
void qv_lanes_transpose_cpu(void *y, int64_t y_stride, const void *x, int64_t x_stride,
                            int64_t x_step, int64_t dtype, int64_t rows, int64_t cols);

#endif
