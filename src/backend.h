/* SPDX-License-Identifier: MIT */
/*
 * The seam. A backend is one const table of verbs; nothing above it knows a device, nothing below
 * it knows a tower. A call that can fail returns a status and words in err.
 */
#ifndef QV_SRC_BACKEND_H
#define QV_SRC_BACKEND_H

#include "op.h"

/* Memory of a device. The backend makes it; only the backend reads `base`. */
struct qv_memory {
    void *base;
    size_t bytes;
};
struct qv_buffer {
    struct qv_memory *memory; /* NULL: operand not used */
    size_t offset;            /* bytes; a multiple of caps.alignment for whole operands */
};

struct qv_device; /* the backend's own; starts with its table */
struct qv_kernel; /* one operation, ready to run */

struct qv_caps {
    char device[128]; /* what computes, and library versions */
    size_t alignment; /* of operands, in bytes */
    int threads;      /* 0 where it does not apply */
    qv_dtype dtype;   /* what QV_DTYPE_AUTO means */
    char dtype_reason[128];
    int64_t chunk_rows;     /* rows of work at which GEMMs are efficient: aim of a chunk */
    bool wrong_conv3d_bf16; /* library with known wrong bf16 Conv3d (cuDNN 9.8-9.14): no `direct` */
    bool wrong_sparse_bf16; /* wrong bf16 convolutions that qv_op_conv_is_sparse() */
};

/* A weight matrix [n,k] of gemms of any m, in the form the device wants; or of one convolution
 * [o, c/groups*kd*kh*kw], which is packed as a whole. */
struct qv_matrix {
    int64_t n, k;
    qv_dtype dtype;
    const struct qv_op *conv; /* NULL for a gemm; read during the call only */
};
struct qv_layout {
    size_t bytes;
    int64_t row_multiple; /* pack() takes slices that start at multiples of this */
};

/* One step of a chunk's work. scratch.memory may be NULL if the kernel needs none. */
struct qv_call {
    struct qv_kernel *kernel;
    struct qv_buffer operands[QV_MAX_OPERANDS], scratch;
};

struct qv_device_options {
    int ordinal, threads;
};

struct qv_backend {
    const char *name;

    /* device */
    qv_status (*open)(const struct qv_device_options *options, struct qv_device **out,
                      qv_error *err);
    void (*close)(struct qv_device *dev);
    void (*caps)(const struct qv_device *dev, struct qv_caps *out);

    /* memory; alloc'ed memory is zero */
    qv_status (*alloc)(struct qv_device *dev, size_t bytes, struct qv_memory **out, qv_error *err);
    void (*free)(struct qv_device *dev, struct qv_memory *memory);
    qv_status (*upload)(struct qv_device *dev, struct qv_buffer dst, const void *src, size_t bytes,
                        qv_error *err);
    qv_status (*download)(struct qv_device *dev, void *dst, struct qv_buffer src, size_t bytes,
                          qv_error *err);

    /* weights: the layout is a function of the matrix (and of the convolution, if it is one's)
     * alone, so that all plans share one copy.
     * pack: rows row0 .. row0+rows of the matrix, src[rows,k] in the matrix's dtype on the host */
    qv_status (*layout)(struct qv_device *dev, const struct qv_matrix *matrix,
                        struct qv_layout *out, qv_error *err);
    qv_status (*pack)(struct qv_device *dev, const struct qv_matrix *matrix, int64_t row0,
                      int64_t rows, const void *src, struct qv_buffer dst, qv_error *err);

    /* kernels: prepare may fail and be slow, QV_EUNSUPPORTED names operation and reason;
     * run only enqueues and allocates nothing */
    qv_status (*prepare)(struct qv_device *dev, const struct qv_op *op, struct qv_kernel **out,
                         size_t *scratch_bytes, qv_error *err);
    void (*release)(struct qv_device *dev, struct qv_kernel *kernel);
    qv_status (*run)(struct qv_device *dev, const struct qv_call *calls, size_t n, qv_error *err);

    /* work */
    qv_status (*sync)(struct qv_device *dev, qv_error *err);
};

struct qv_device {
    const struct qv_backend *backend;
};

/* Every backend that is built in, best first, NULL at the end; and one by name, or NULL. */
extern const struct qv_backend *const qv_backends[];
const struct qv_backend *qv_backend_find(const char *name);

extern const struct qv_backend qv_backend_ref;
extern const struct qv_backend qv_backend_cpu;

/* Host memory, shared by the backends that compute on the host. */
qv_status qv_host_alloc(struct qv_device *dev, size_t bytes, struct qv_memory **out, qv_error *err);
void qv_host_free(struct qv_device *dev, struct qv_memory *memory);
qv_status qv_host_upload(struct qv_device *dev, struct qv_buffer dst, const void *src, size_t bytes,
                         qv_error *err);
qv_status qv_host_download(struct qv_device *dev, void *dst, struct qv_buffer src, size_t bytes,
                           qv_error *err);
qv_status qv_host_sync(struct qv_device *dev, qv_error *err);

/* Sizes rounded up so that what comes behind is aligned for any backend. */
static inline size_t
qv_aligned(size_t bytes)
{
    return (bytes + 255) & ~(size_t)255;
}

static inline void *
qv_host_pointer(struct qv_buffer b)
{
    return b.memory ? (char *)b.memory->base + b.offset : NULL;
}

#endif
