/* SPDX-License-Identifier: MIT */
/*
 * The parts of the CUDA backend: GEMM on cuBLASLt, attention and convolutions on cuDNN, the rest in
 * our own kernels. They are layers that call only earlier layers: architectures; status;
 * context; copier; memory; cudnn_graph and our kernels (launch.h); frames; gemm_graph; gemm,
 * attention, conv, codes, own; work; device.
 */
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include "copier.h"
#include "engine/backend.h"
#include "error.h"
#include "launch.h"

#define COUNT_OF(array) ((int)(sizeof(array) / sizeof *(array)))

/* Pinned blocks for copies in one direction, used in turn; small copies to the device share a
 * block. done[i] is recorded after the device's last copy from or to blocks[i]; once it has
 * happened, the block may be reused. */
enum { STAGING_BLOCKS = 3, STAGING_BYTES = 4 << 20 };
struct staging_cuda {
    void *blocks[STAGING_BLOCKS];
    cudaEvent_t done[STAGING_BLOCKS];
    cudaStream_t stream; /* its own, or the work's if that is the caller's stream */
    int at;              /* number of the block in use */
    size_t used;         /* bytes of it in use */
};

/* Libraries that are slow to start. Each is started when first needed, or earlier (device.c). */
enum library_cuda { CUBLASLT, CUDNN, LIBRARIES };
struct warmer_cuda;

struct qv_device_cuda {
    struct qv_device base;
    struct CUctx_st *context; /* the device's primary context, a CUcontext of the driver's */
    int ordinal, sm;          /* sm: 90 for compute capability 9.0 */
    int code;                 /* the one that its kernels were compiled for, at most sm */
    int multiprocessors;
    size_t shared_bytes;         /* the most shared memory of a block */
    bool own_stream;             /* false: the stream is the caller's */
    bool tf32;                   /* TF32 is allowed for f32 */
    cudaStream_t stream;         /* the stream of the work */
    cudaStream_t recorder, side; /* streams on which lists are captured */
    cudaEvent_t fork, join;      /* order these two streams */
    struct staging_cuda in, out;
    cudaStream_t frames_stream; /* for frames.c; NULL: this GPU has no memory pools */
    cudaMemPool_t frames_pool;
    struct qv_copier *copier; /* copies the caller's memory from and to the blocks */
    cudaEvent_t marks[QV_MARKS], uploaded;
    int last_mark;       /* the one with no work after it yet */
    bool uploads;        /* there was an upload since the last run; the next run must wait */
    cublasLtHandle_t lt; /* lt and cudnn are NULL until a kernel that needs them is prepared */
    cudnnHandle_t cudnn;
    const struct qv_plan_cache *plan_cache; /* keeps cuDNN's plans; NULL: plans are not kept */
    struct warmer_cuda *warmers[LIBRARIES]; /* threads starting a library; NULL: none */
    char name[64], warning[240];
    char lost[300]; /* the failure that lost the device, or "" */
};

/* cuda/status.c: these return QV_OK, or our status with the call's name and the library's message.
 * An error that makes the device unusable is recorded in dev->lost (dev may be NULL). */
qv_status qv_check_cuda(struct qv_device_cuda *dev, cudaError_t error, const char *call,
                        qv_error *err);
qv_status qv_check_cublas(struct qv_device_cuda *dev, cublasStatus_t status, const char *call,
                          qv_error *err);
qv_status qv_check_cudnn(struct qv_device_cuda *dev, cudnnStatus_t status, const char *call,
                         qv_error *err);
/* Records the failure of a call that frees something, where the caller cannot fail. If the device
 * is lost, its next verb fails. The device's warning reports either case. */
void qv_note_free_cuda(struct qv_device_cuda *dev, cudaError_t error, const char *call);
/* Returns QV_EBACKEND with a message if the device was lost before. */
qv_status qv_check_device_cuda(const struct qv_device_cuda *dev, qv_error *err);

/* cuda/context.c: finds the device's primary context; must be called before anything else. */
qv_status qv_open_context_cuda(struct qv_device_cuda *dev, qv_error *err);
/* Make the context current for the calling thread, and restore the previous one. Each verb of the
 * backend's table runs between the two, because any thread may call it. If enter fails, nothing may
 * be called except leave, which must still follow. */
struct entered_cuda {
    cudaError_t error;
    bool pushed; /* false: the context was already current */
};
struct entered_cuda qv_enter_cuda(const struct qv_device_cuda *dev);
void qv_leave_cuda(struct entered_cuda entered);

static inline struct qv_device_cuda *
device_cuda(const struct qv_device *dev)
{
    return (struct qv_device_cuda *)dev;
}

static inline void *
address_cuda(struct qv_buffer b)
{
    return b.memory ? (char *)b.memory->base + b.offset : NULL;
}

/* cuda/memory.c: verbs of the backend's table (backend.h), and the blocks that copies go
 * through. */
qv_status qv_staging_open_cuda(struct qv_device_cuda *dev, struct staging_cuda *s, qv_error *err);
void qv_staging_close_cuda(struct staging_cuda *s);
qv_status qv_alloc_cuda(struct qv_device *dev, size_t bytes, struct qv_memory **out, qv_error *err);
void qv_free_cuda(struct qv_device *dev, struct qv_memory *memory);
bool qv_wrap_cuda(struct qv_device *dev, const void *p, size_t bytes, struct qv_memory *out);
qv_status qv_upload_cuda(struct qv_device *dev, struct qv_buffer dst, const void *src, size_t bytes,
                         qv_error *err);
qv_status qv_download_cuda(struct qv_device *dev, const struct qv_download *parts, size_t n,
                           qv_error *err);
qv_status qv_lock_pages_cuda(struct qv_device *dev, size_t bytes, void **out, qv_error *err);
void qv_unlock_pages_cuda(struct qv_device *dev, void *p);

/* cuda/frames.c: verbs of the backend's table. */
qv_status qv_frames_open_cuda(struct qv_device_cuda *dev, qv_error *err);
void qv_frames_close_cuda(struct qv_device_cuda *dev);
void *qv_frames_stream_cuda(const struct qv_device *dev);
qv_status qv_resize_cuda(struct qv_device *dev, const struct qv_resize *r, void **out,
                         qv_error *err);
qv_status qv_read_frames_cuda(struct qv_device *dev, void *to, const void *frames, size_t bytes,
                              qv_error *err);
void qv_free_frames_cuda(struct qv_device *dev, void *frames);
/* Enqueues a resize to dst on a stream: frames are read, and dst is written, in stream order. */
qv_status qv_enqueue_resize_cuda(const struct qv_device_cuda *dev, cudaStream_t stream,
                                 const struct qv_resize *r, void *dst, qv_error *err);

/* A cuDNN graph of one operation, ready to run. */
struct graph_cuda {
    cudnnBackendDescriptor_t plan;
    size_t workspace_bytes;
    int64_t engine;   /* cuDNN's number of the engine */
    bool last_resort; /* cuDNN's heuristics found no better engine */
};

/* A GEMM, on cuBLASLt or in a cuDNN graph. The three sizes are the parts of scratch, in order. */
struct gemm_cuda {
    struct graph_cuda graph; /* plan NULL: cuBLASLt runs it */
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t w, x, c, y; /* our row-major matrices, which cuBLAS reads as
                                        * column-major */
    cublasLtMatmulAlgo_t algo;
    size_t padded_bytes; /* bytes of x with its rows padded with zeros; 0: x is used in place */
    size_t sums_bytes;   /* bytes of f32 sums for our epilogue kernel; 0: cuBLASLt's epilogue is
                          * used */
    size_t workspace_bytes;
    float waves;         /* how often the algorithm's tiles fill the GPU */
    const char *unfused; /* why cuBLASLt's epilogue is not used; NULL: it is used */
};

enum attention_way { ATTENTION_CUDNN, ATTENTION_SHORT, ATTENTION_HOPPER };
struct attention_cuda {
    enum attention_way way;
    struct graph_cuda graph; /* cuDNN's; plan NULL: the naive kernel runs */
};

struct conv_cuda {
    struct graph_cuda graph; /* plan NULL: our own kernel does the whole operation */
    bool bare;               /* the graph writes only f32 sums, to scratch; our epilogue follows */
    int64_t samples, frames; /* samples, and frames of y per sample, that one run computes */
};

struct qv_kernel {
    struct qv_op op;
    const struct verbs_cuda *verbs; /* the verbs of its operation */
    union {
        struct gemm_cuda gemm;
        struct attention_cuda attention;
        struct conv_cuda conv;
    } u;
    char naive[200]; /* why cuDNN does not run it; "" if it does, or was not tried */
};

/* The backend's functions for one kind of operation. The operation's file defines them under the
 * name in ops.inc; device.c lists them, so linking fails if an operation has none. p are device
 * addresses; *scratch_bytes is 0 before prepare. */
struct verbs_cuda {
    enum library_cuda library; /* the library that prepare needs; LIBRARIES: none */
    /* NULL: there is nothing to prepare. */
    qv_status (*prepare)(struct qv_device_cuda *dev, struct qv_kernel *kernel,
                         size_t *scratch_bytes, qv_error *err);
    qv_status (*run)(struct qv_device_cuda *dev, const struct qv_kernel *kernel, void *const *p,
                     void *scratch, qv_error *err);
    /* Also called if prepare failed. NULL: there is nothing to free. */
    void (*release)(struct qv_kernel *kernel);
    void (*describe)(const struct qv_kernel *kernel, char *text, size_t size);
};
#define QV_OP(name, fields, operands, flops) extern const struct verbs_cuda qv_##name##_verbs_cuda;
#include "engine/ops.inc"

/* cuda/gemm_graph.c: returns whether to try cuDNN for a GEMM; if cuDNN has no plan, cuBLASLt runs
 * it. */
bool qv_gemm_is_graph_cuda(const struct qv_op_gemm *op);

/* cuda/gemm.c */
struct qv_layout qv_gemm_layout_cuda(const struct qv_matrix *matrix);
qv_status qv_gemm_lay_out_cuda(struct qv_device_cuda *dev, const struct qv_matrix *matrix,
                               int64_t row0, int64_t rows, const void *src, struct qv_buffer dst,
                               qv_error *err);

/* cuda/codes.c: quantised matrices in the layout of codes.h. */
struct qv_layout qv_codes_layout_cuda(const struct qv_matrix *matrix);
qv_status qv_codes_lay_out_cuda(struct qv_device_cuda *dev, const struct qv_matrix *matrix,
                                int64_t row0, int64_t rows, const void *src, struct qv_buffer dst,
                                qv_error *err);

/* cuda/attention.c: which kernel runs attention. */
enum attention_way qv_attention_way_cuda(const struct qv_device_cuda *dev,
                                         const struct qv_op_attention *op);

/* cuda/conv.c: the weight of a convolution is laid out as [o, kd, kh, kw, c/groups]. */
qv_status qv_conv_lay_out_cuda(struct qv_device_cuda *dev, const struct qv_matrix *matrix,
                               const void *src, struct qv_buffer dst, qv_error *err);

/* cuda/work.c: verbs of the backend's table. */
qv_status qv_run_cuda(struct qv_device *dev, const struct qv_call *calls, size_t n, qv_error *err);
qv_status qv_record_cuda(struct qv_device *dev, const struct qv_call *calls, size_t n,
                         struct qv_recording **out, qv_error *err);
qv_status qv_replay_cuda(struct qv_device *dev, struct qv_recording *recording, qv_error *err);
qv_status qv_wait_side_cuda(struct qv_device *dev, struct qv_recording *recording, qv_error *err);
void qv_forget_cuda(struct qv_device *dev, struct qv_recording *recording);
qv_status qv_mark_cuda(struct qv_device *dev, int mark, qv_error *err);
qv_status qv_wait_cuda(struct qv_device *dev, int mark, qv_error *err);
qv_status qv_elapsed_cuda(struct qv_device *dev, int begin, int end, double *ms, qv_error *err);
qv_status qv_sync_cuda(struct qv_device *dev, qv_error *err);
