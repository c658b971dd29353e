/* SPDX-License-Identifier: MIT */
/* The parts of the CPU backend: GEMM and attention use oneDNN's matmul, convolutions oneDNN's
 * convolution, and everything else is plain C. */
#pragma once

#include <oneapi/dnnl/dnnl.h>

#include "engine/backend.h"
#include "dtype.h"
#include "error.h"
#include "numbers.h"

struct qv_device_cpu {
    struct qv_device base;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    int threads;
    bool wrong_sparse_bf16; /* see qv_caps */
};

/* A bare product that OpenBLAS computes (cpu/blas.c). Strides are in elements. */
struct product_cpu {
    int64_t m, n, k, src_stride, weights_stride, dst_stride;
};

/* A oneDNN matmul or convolution, and its memory objects, whose addresses are set at each run. Or a
 * matmul that OpenBLAS computes. */
enum { CPU_SRC, CPU_WEIGHTS, CPU_BIAS, CPU_DST, CPU_SCRATCH, CPU_OPERANDS };
struct primitive_cpu {
    dnnl_primitive_t primitive; /* NULL: OpenBLAS's product */
    struct product_cpu product;
    dnnl_memory_t memory[CPU_OPERANDS]; /* NULL if the primitive has no such operand */
    dnnl_memory_t alpha;                /* NULL: 1 */
    size_t scratch_bytes;
    bool holds_signals; /* this thread must not handle signals during it */
};

/* Describes a matmul dst[m,n] = src[m,k] weights[k,n]. Strides are in elements. */
struct matmul_desc_cpu {
    int64_t m, n, k;
    int64_t src_stride;
    int64_t weights_strides[2];
    /* the layout of weights, instead of strides; if this is NULL and the strides are {0, 0}, oneDNN
     * chooses the layout, or OpenBLAS uses plain rows */
    const_dnnl_memory_desc_t weights;
    int64_t dst_stride;
    dnnl_data_type_t type, dst_type;
    bool bias;
    dnnl_primitive_attr_t attr; /* may be NULL; not kept */
    double alpha;               /* the scale of the source, if there is an attr */
};

/* The layout that oneDNN wants for weights [k,n]: panels of `width` columns, with zeros beyond n.
 * In a panel, `group` k of a column are adjacent (bf16 in pairs), and the groups of all columns
 * follow one another. */
struct panels_cpu {
    int64_t k, n, width, group, stride; /* from one panel to the next, in elements */
    size_t bytes;
};

/* The layout of the weights [k,n] of a gemm. */
struct gemm_weights_cpu {
    dnnl_memory_desc_t md; /* as oneDNN's fastest matmul needs them; NULL: it has only a slow one */
    struct panels_cpu panels;
};

/* A gemm in blocks of rows and panels of columns (cpu/blocks.c). A block's kind tells whether it is
 * the last in rows, and in columns, where it may be smaller. */
enum { BLOCK_KINDS = 4 };
struct blocks_cpu {
    struct primitive_cpu (*products)[BLOCK_KINDS]; /* one set per thread */
    int threads;
    int64_t last_rows;        /* rows of the last block, including padding */
    struct panels_cpu panels; /* of the weights */
    size_t x_bytes;           /* scratch bytes of the last block's rows of x; 0: they are whole */
    size_t sums_bytes, product_bytes; /* scratch bytes of each thread */
};

/* A gemm is one matmul on all threads, or one for the rows of each thread, or blocks. */
struct gemm_cpu {
    struct primitive_cpu *matmuls; /* NULL: blocks */
    int n_matmuls;
    int64_t rows;        /* of a matmul; the last may have fewer */
    size_t matmul_bytes; /* scratch bytes of one */
    struct blocks_cpu blocks;
    size_t scratch_bytes; /* of all */
};

/* Attention: the GEMMs for each number of keys and queries in a block, and the parts of a thread's
 * scratch. */
enum { ATTENTION_KEY_KINDS = 8, ATTENTION_QUERY_KINDS = 3 };
struct gemms_cpu {
    struct primitive_cpu scores[ATTENTION_QUERY_KINDS], values[ATTENTION_QUERY_KINDS];
    struct panels_cpu k, v;
};
enum {
    ATTENTION_Q,
    ATTENTION_K,
    ATTENTION_V,
    ATTENTION_SCORES,
    ATTENTION_MAX, /* the maxima, sums of exponentials and weighted values of the blocks so far */
    ATTENTION_SUM,
    ATTENTION_OUT,
    ATTENTION_MORE, /* the weighted values of one more block */
    ATTENTION_MATMUL,
    ATTENTION_PARTS
};

/* Rows that attend to one another. */
struct segment_cpu {
    int64_t first, rows;
};

struct attention_cpu {
    struct gemms_cpu (*gemms)[ATTENTION_KEY_KINDS]; /* one set per thread */
    struct segment_cpu *segments;                   /* filled at each run */
    int threads;
    /* offset of each part in a thread's scratch, and the scratch's size */
    size_t offset[ATTENTION_PARTS], thread_bytes;
    float (*exps)(const float *x, void *y, int64_t dtype, int64_t n, int64_t padded, float scale,
                  float max);
};

/* The operands of one run of attention. Row i, head h of a view is at base[i * stride + h *
 * head_dim]. Rows outside all segments are not touched. */
struct view_cpu {
    char *base;
    int64_t stride; /* in elements */
};
struct attention_call_cpu {
    struct view_cpu q, k, v, y;
    const struct segment_cpu *segments;
    int64_t n_segments;
};

/* A convolution. Where oneDNN would use its slow reference code, it computes only bare sums in f32,
 * which go into scratch, and our epilogue finishes them (`bare`). Where it would still use that
 * code, x and w are widened to f32 as well (`wide`). */
struct conv_cpu {
    struct primitive_cpu primitive;
    bool bare, wide;
    size_t sums_bytes, x_bytes; /* scratch bytes; the primitive's follow */
};

struct qv_kernel {
    struct qv_op op;
    const struct verbs_cpu *verbs; /* the functions of the operation */
    struct gemm_cpu gemm;
    struct attention_cpu attention;
    struct conv_cpu conv;
    size_t row_bytes; /* scratch bytes of each thread, for operations that work row by row */
};

/* The backend's functions for one kind of operation. The operation's file defines them under the
 * name in ops.inc. device.c lists them, so linking fails if an operation has none. */
struct verbs_cpu {
    bool mixes; /* operands may have different dtypes */
    qv_status (*prepare)(struct qv_device_cpu *dev, struct qv_kernel *kernel, size_t *scratch_bytes,
                         qv_error *err);
    qv_status (*run)(struct qv_device_cpu *dev, const struct qv_kernel *kernel, void *const *p,
                     void *scratch, qv_error *err);
    /* Also called if prepare failed. NULL: there is nothing to free. */
    void (*release)(struct qv_kernel *kernel);
    void (*describe)(const struct qv_kernel *kernel, char *text, size_t size);
};
#define QV_OP(name, fields, operands, flops) extern const struct verbs_cpu qv_##name##_verbs_cpu;
#include "engine/ops.inc"

/* Returns whether oneDNN may use these instructions of x86's. On Arm the same bits of
 * dnnl_get_effective_cpu_isa() mean other instructions. */
static inline bool
qv_x86_has_cpu(dnnl_cpu_isa_t isa)
{
#ifdef __x86_64__
    return ((unsigned)dnnl_get_effective_cpu_isa() & isa) == isa;
#else
    (void)isa;
    return false;
#endif
}

/* prepare rejects dtypes other than f32 and bf16. */
static inline dnnl_data_type_t
dnnl_type_cpu(int64_t dtype)
{
    return dtype == QV_F32 ? dnnl_f32 : dnnl_bf16;
}

static inline void *
at_cpu(const void *p, int64_t dtype, int64_t i)
{
    return (char *)p + (size_t)i * qv_dtype_bytes(dtype);
}

/* cpu/primitive.c. The first turns a oneDNN status into QV_OK or an error "what: oneDNN reported
 * ...". */
qv_status qv_dnnl_check_cpu(dnnl_status_t status, const char *what, qv_error *err);
/* alpha: if it is not 1, pd's attributes include a source scale (qv_epilogue_cpu). */
dnnl_status_t qv_primitive_open_cpu(struct qv_device_cpu *dev, dnnl_primitive_desc_t pd,
                                    double alpha, struct primitive_cpu *out);
void qv_primitive_close_cpu(struct primitive_cpu *primitive);
dnnl_status_t qv_primitive_run_cpu(struct qv_device_cpu *dev, const struct primitive_cpu *primitive,
                                   void *const addresses[CPU_OPERANDS]);
/* The first returns oneDNN's name of the kernel. The others return whether it is brgemm, oneDNN's
 * fastest, and whether it is reference code, which is a thousand times slower than the other
 * kernels. */
const char *qv_primitive_name_cpu(const_dnnl_primitive_desc_t pd);
bool qv_primitive_is_brgemm_cpu(const_dnnl_primitive_desc_t pd);
bool qv_primitive_is_reference_cpu(const_dnnl_primitive_desc_t pd);
/* Appends `what` and the names of library and kernel to text: "oneDNN brg_matmul:avx512_core". */
void qv_primitive_describe_cpu(const char *what, const struct primitive_cpu *primitive, char *text,
                               size_t size);
/* Returns QV_EUNSUPPORTED for an operation with more elements than oneDNN can count in 32 bits;
 * beyond that it would divide by zero. most: rows, or voxels of an image. */
qv_status qv_count_check_cpu(const struct qv_op *op, double most, qv_error *err);
dnnl_status_t qv_reorder_cpu(struct qv_device_cpu *dev, const_dnnl_memory_desc_t from,
                             const void *src, const_dnnl_memory_desc_t to, void *dst);

/* cpu/epilogue.c: what a gemm or conv does to its sums [rows, cols], by oneDNN. The bias is the
 * primitive's argument. The second must be called before a run: it copies the residual into y,
 * where oneDNN reads it. */
dnnl_status_t qv_epilogue_cpu(const struct qv_op_epilogue *op, dnnl_primitive_attr_t attr);
void qv_epilogue_residual_cpu(const struct qv_device_cpu *dev, const struct qv_op_epilogue *op,
                              const void *residual, void *y);
/* These apply an epilogue without oneDNN: the first to columns [col, col + n) of a row, whose sums
 * are x[n], the second to all rows of x[rows, cols]. p: bias, residual, y. */
void qv_epilogue_part_cpu(const struct qv_op_epilogue *op, const float *x, int64_t row, int64_t col,
                          int64_t n, void *const p[3]);
void qv_epilogue_rows_cpu(int threads, const struct qv_op_epilogue *op, const float *x,
                          void *const p[3]);

/* cpu/blas.c: the first prepares OpenBLAS for the process, the second returns whether it computes a
 * matmul in place of oneDNN's pd, and the third computes it. */
extern const bool qv_has_blas_cpu; /* this build has OpenBLAS */
void qv_blas_open_cpu(void);
bool qv_blas_takes_cpu(const struct matmul_desc_cpu *desc, const_dnnl_primitive_desc_t pd);
void qv_blas_run_cpu(const struct product_cpu *product, void *const addresses[CPU_OPERANDS]);

/* cpu/matmul.c */
qv_status qv_matmul_open_cpu(struct qv_device_cpu *dev, const struct matmul_desc_cpu *desc,
                             struct primitive_cpu *out, qv_error *err);
qv_status qv_matmul_run_cpu(struct qv_device_cpu *dev, const struct primitive_cpu *matmul,
                            void *const addresses[CPU_OPERANDS], qv_error *err);

/* cpu/gemm.c: a weight matrix that is not quantised. */
qv_status qv_gemm_layout_cpu(struct qv_device_cpu *dev, const struct qv_matrix *matrix,
                             struct qv_layout *out, qv_error *err);
qv_status qv_gemm_lay_out_cpu(struct qv_device_cpu *dev, const struct qv_matrix *matrix,
                              int64_t row0, int64_t rows, const void *src, void *dst,
                              qv_error *err);

/* cpu/blocks.c */
struct panels_cpu qv_blocks_panels_cpu(const struct qv_matrix *matrix);
qv_status qv_blocks_open_cpu(struct qv_device_cpu *dev, const struct qv_op_gemm *op,
                             const struct panels_cpu *panels, struct blocks_cpu *out,
                             size_t *scratch_bytes, qv_error *err);
qv_status qv_blocks_run_cpu(struct qv_device_cpu *dev, const struct qv_op_gemm *op,
                            const struct blocks_cpu *blocks, void *const *p, void *scratch,
                            qv_error *err);
void qv_blocks_close_cpu(struct blocks_cpu *blocks);

/* cpu/conv.c */
qv_status qv_conv_layout_cpu(struct qv_device_cpu *dev, const struct qv_matrix *matrix,
                             struct qv_layout *out, qv_error *err);
qv_status qv_conv_lay_out_cpu(struct qv_device_cpu *dev, const struct qv_matrix *matrix,
                              const void *src, void *dst, qv_error *err);

/* cpu/panels.c: opens a matmul whose weights lie in panels (it writes desc's strides), and lays out
 * weights: x[k,n], or the transpose of x[n,k]; only the first `rows` exist, and the rest become
 * zero. */
qv_status qv_panels_open_cpu(struct qv_device_cpu *dev, struct matmul_desc_cpu *desc,
                             struct primitive_cpu *matmul, struct panels_cpu *out, qv_error *err);
/* Reads a layout of weights as panels. *known is false if it is not panels, or is padded along
 * k. */
dnnl_status_t qv_panels_read_cpu(const_dnnl_memory_desc_t md, struct panels_cpu *p, bool *known);
void qv_panels_cpu(const struct panels_cpu *panels, const void *x, int64_t x_stride, int64_t rows,
                   int64_t dtype, void *y);
void qv_panels_transposed_cpu(const struct panels_cpu *panels, const void *x, int64_t x_stride,
                              int64_t rows, int64_t dtype, void *y);

/* cpu/attention.c: runs a kernel over any segments no longer than the operation allows. */
qv_status qv_attention_segments_cpu(struct qv_device_cpu *dev, const struct qv_kernel *kernel,
                                    const struct attention_call_cpu *call, void *scratch,
                                    qv_error *err);

/* cpu/lanes.c: loops that the compiler vectorises for each instruction set. */
void qv_lanes_load_cpu(float *dst, const void *src, int64_t dtype, int64_t n);
void qv_lanes_store_cpu(void *dst, const float *src, int64_t dtype, int64_t n);
/* y may be x. */
void qv_lanes_norm_cpu(float *y, const float *x, const float *weight, const float *bias, int64_t n,
                       float eps, bool rms);
/* (a, b) = (a cos - b sin, b cos + a sin). */
void qv_lanes_rotate_cpu(float *a, float *b, const float *cosines, const float *sines, int64_t n);
/* Returns the greatest of x and `least`. */
float qv_lanes_max_cpu(const float *x, int64_t n, float least);
/* y[i] = exp((x[i] - max) * scale) in dtype, and zeros from n up to `padded`. Returns the sum of
 * the rounded y, which is at least 2^126, or NaN, if an x is too large. y must not overlap x. */
float qv_lanes_exps_cpu(const float *x, void *y, int64_t dtype, int64_t n, int64_t padded,
                        float scale, float max);
float qv_lanes_exps_avx512_cpu(const float *x, void *y, int64_t dtype, int64_t n, int64_t padded,
                               float scale, float max);
void qv_lanes_scale_cpu(float *x, float scale, int64_t n);
void qv_lanes_add_scaled_cpu(float *y, const float *x, float scale, int64_t n);
/* y[i] = src[i * step] * scale + shift. */
void qv_lanes_bytes_cpu(void *y, int64_t dtype, const uint8_t *src, int64_t step, float scale,
                        float shift, int64_t n);
/* y = act(alpha * x + bias). bias may be NULL, and y may be x. */
void qv_lanes_epilogue_cpu(float *y, const float *x, const float *bias, float alpha, int64_t act,
                           int64_t n);
/* y *= x. */
void qv_lanes_multiply_cpu(float *y, const float *x, int64_t n);
/* y[cols, y_stride] = the transpose of x[rows, x_stride], whose columns are x_step apart. A
 * matrix is a pointer, sizes and strides, as in BLAS, hence eight parameters. */
void qv_lanes_transpose_cpu(void *y, int64_t y_stride, const void *x, int64_t x_stride,
                            int64_t x_step, int64_t dtype, int64_t rows, int64_t cols);
/* y[y_rows, y_stride] = the transpose of x[rows, cols] in 32-bit words, and zeros; y_rows is a
 * multiple of 16. */
void qv_lanes_transpose_words_avx512_cpu(void *y, int64_t y_stride, int64_t y_rows, const void *x,
                                         int64_t x_stride, int64_t rows, int64_t cols);
/* y[n][2] = the bf16 row x[n] and the row x_stride after it, in pairs. If x_stride is 0, the second
 * is zeros. */
void qv_lanes_pair_cpu(void *y, const void *x, int64_t x_stride, int64_t n);
