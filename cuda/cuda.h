/* SPDX-License-Identifier: MIT */
/* The CUDA backend's parts: GEMM on cuBLASLt, attention and convolutions on cuDNN, the rest in our
 * own kernels. */
#ifndef QV_CUDA_CUDA_H
#define QV_CUDA_CUDA_H

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include "engine/backend.h"
#include "error.h"
#include "launch.h"

/* Pinned blocks that copies in one direction pass through, in turn; done: the device has left the
 * block. */
enum { STAGING_BLOCKS = 3, STAGING_BYTES = 4 << 20 };
struct staging_cuda {
    void *blocks[STAGING_BLOCKS];
    cudaEvent_t done[STAGING_BLOCKS];
    cudaStream_t stream; /* the work's, where that is the caller's */
    unsigned next;
};

struct qv_device_cuda {
    struct qv_device base;
    int ordinal, sm;               /* sm: 90 for compute capability 9.0 */
    bool own_stream;               /* else the caller's */
    bool tf32;                     /* allowed for f32 */
    cudaStream_t stream;           /* of the work */
    cudaStream_t recorder, beside; /* where lists are captured */
    cudaEvent_t fork, join;        /* between them */
    struct staging_cuda in, out;
    cudaEvent_t marks[QV_MARKS], uploaded;
    bool uploads; /* since the last run: the work waits for them */
    cublasLtHandle_t lt;
    cudnnHandle_t cudnn;
    char name[64], warning[240];
    char lost[300]; /* what broke the device for good; "" */
};

/* cuda/status.c: QV_OK, or our status with the call's name and the library's words. An error that
 * leaves the device unusable is remembered in dev->lost (dev may be NULL). */
qv_status qv_check_cuda(struct qv_device_cuda *dev, cudaError_t error, const char *call,
                        qv_error *err);
qv_status qv_check_cublas(struct qv_device_cuda *dev, cublasStatus_t status, const char *call,
                          qv_error *err);
qv_status qv_check_cudnn(struct qv_device_cuda *dev, cudnnStatus_t status, const char *call,
                         qv_error *err);
/* QV_EBACKEND in words if the device was lost before. */
qv_status qv_check_device_cuda(const struct qv_device_cuda *dev, qv_error *err);

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

/* cuda/device.c: before every verb, since which device is current belongs to the thread, and that
 * may have changed; QV_EBACKEND in words where the device was lost. */
qv_status qv_enter_cuda(struct qv_device_cuda *dev, qv_error *err);

/* cuda/memory.c and work.c: verbs of the table (backend.h). */
qv_status qv_staging_open_cuda(struct qv_device_cuda *dev, struct staging_cuda *s, qv_error *err);
void qv_staging_close_cuda(struct qv_device_cuda *dev, struct staging_cuda *s);
qv_status qv_alloc_cuda(struct qv_device *dev, size_t bytes, struct qv_memory **out, qv_error *err);
void qv_free_cuda(struct qv_device *dev, struct qv_memory *memory);
bool qv_wrap_cuda(struct qv_device *dev, const void *p, size_t bytes, struct qv_memory *out);
qv_status qv_upload_cuda(struct qv_device *dev, struct qv_buffer dst, const void *src, size_t bytes,
                         qv_error *err);
qv_status qv_download_cuda(struct qv_device *dev, void *dst, struct qv_buffer src, size_t bytes,
                           qv_error *err);
qv_status qv_run_cuda(struct qv_device *dev, const struct qv_call *calls, size_t n, qv_error *err);
qv_status qv_record_cuda(struct qv_device *dev, const struct qv_call *calls, size_t n,
                         struct qv_recording **out, qv_error *err);
qv_status qv_replay_cuda(struct qv_device *dev, struct qv_recording *recording, qv_error *err);
void qv_forget_cuda(struct qv_device *dev, struct qv_recording *recording);
qv_status qv_mark_cuda(struct qv_device *dev, int mark, qv_error *err);
qv_status qv_wait_cuda(struct qv_device *dev, int mark, qv_error *err);
qv_status qv_elapsed_cuda(struct qv_device *dev, int begin, int end, double *ms, qv_error *err);
qv_status qv_sync_cuda(struct qv_device *dev, qv_error *err);

/* One product on cuBLASLt. Scratch holds, one behind the other: */
struct gemm_cuda {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t w, x, c, y; /* as cuBLAS sees them: columns first */
    cublasLtMatmulAlgo_t algo;
    size_t padded_bytes; /* x with its rows padded with zeros; 0: x is used in place */
    size_t sums_bytes;   /* f32 sums, for what cuBLASLt's epilogues do not hold; 0: they do */
    size_t workspace_bytes;
};

/* A cuDNN graph of one operation, ready to run. */
struct graph_cuda {
    cudnnBackendDescriptor_t plan;
    size_t workspace_bytes;
};

struct attention_cuda {
    struct graph_cuda graph; /* plan NULL: our own kernel */
};

struct conv_cuda {
    struct graph_cuda graph; /* plan NULL: our own kernel, which does all of the operation */
    bool bare;               /* the graph gives f32 sums only; a `finish` follows, from scratch */
    int64_t samples, frames; /* that one run of the graph gives: samples, and frames of y of each */
};

struct qv_kernel {
    struct qv_op op;
    union {
        struct gemm_cuda gemm;
        struct attention_cuda attention;
        struct conv_cuda conv;
    } u;
};

/* cuda/gemm.c, attention.c, conv.c: p are device addresses. `choice`: which of the `choices`, best
 * guess first; QV_EUNSUPPORTED where it is one too many. */
qv_status qv_gemm_layout_cuda(struct qv_device_cuda *dev, const struct qv_matrix *matrix,
                              struct qv_layout *out, qv_error *err);
qv_status qv_gemm_pack_cuda(struct qv_device_cuda *dev, const struct qv_matrix *matrix,
                            int64_t row0, int64_t rows, const void *src, struct qv_buffer dst,
                            qv_error *err);
qv_status qv_gemm_prepare_cuda(struct qv_device_cuda *dev, struct qv_kernel *kernel, int choice,
                               size_t *scratch_bytes, qv_error *err);
qv_status qv_gemm_run_cuda(struct qv_device_cuda *dev, const struct qv_kernel *kernel,
                           void *const *p, void *scratch, qv_error *err);
void qv_gemm_release_cuda(struct qv_kernel *kernel);

qv_status qv_attention_prepare_cuda(struct qv_device_cuda *dev, struct qv_kernel *kernel,
                                    int choice, size_t *scratch_bytes, qv_error *err);
qv_status qv_attention_run_cuda(struct qv_device_cuda *dev, const struct qv_kernel *kernel,
                                void *const *p, void *scratch, qv_error *err);
void qv_attention_release_cuda(struct qv_kernel *kernel);

/* The weight of a convolution is packed as [o, kd, kh, kw, c/groups]. */
qv_status qv_conv_layout_cuda(struct qv_device_cuda *dev, const struct qv_matrix *matrix,
                              struct qv_layout *out, qv_error *err);
qv_status qv_conv_pack_cuda(struct qv_device_cuda *dev, const struct qv_matrix *matrix,
                            const void *src, struct qv_buffer dst, qv_error *err);
qv_status qv_conv_prepare_cuda(struct qv_device_cuda *dev, struct qv_kernel *kernel, int choice,
                               size_t *scratch_bytes, qv_error *err);
qv_status qv_conv_run_cuda(struct qv_device_cuda *dev, const struct qv_kernel *kernel,
                           void *const *p, void *scratch, qv_error *err);
void qv_conv_release_cuda(struct qv_kernel *kernel);

#endif
