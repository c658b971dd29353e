/* SPDX-License-Identifier: MIT */
/* The Metal backend's parts. Objective-C without ARC: what is retained here is released here. */
#ifndef QV_METAL_METAL_H
#define QV_METAL_METAL_H

#import <Metal/Metal.h>

#include "engine/backend.h"
#include "launch.h"

/* Command buffers that were committed and not yet seen to have ended, oldest first. */
enum { MOST_PENDING = 32 };

/* A place in the work: behind `sequence` command buffers. */
struct mark_metal {
    uint64_t sequence;
    double end_s, next_start_s; /* by the GPU's clock: of the work before, of the work behind */
};

struct qv_device_metal {
    struct qv_device base;
    id<MTLDevice> gpu;
    id<MTLCommandQueue> queue;
    id<MTLBuffer> nothing; /* bound where an operation lacks an operand */
    id<MTLCommandBuffer> pending[MOST_PENDING];
    size_t n_pending;
    uint64_t committed; /* command buffers so far */
    double last_end_s;  /* of those that were waited for */
    struct mark_metal marks[QV_MARKS];
    uint32_t naive; /* operations on simple kernels, 1 << enum qv_op_kind */
    bool has_bfloat;
    char name[64];
};

struct qv_kernel {
    struct qv_op op;
    struct launch_metal launch;
    bool naive;                           /* asked for */
    id<MTLComputePipelineState> pipeline; /* of the process, not ours to release */
};

static inline struct qv_device_metal *
device_metal(const struct qv_device *dev)
{
    return (struct qv_device_metal *)dev;
}

/* metal/pipelines.m: the kernel of a launch, compiled once in a process. QV_EUNSUPPORTED where the
 * GPU runs fewer threads of it at once. */
qv_status qv_pipeline_metal(struct qv_device_metal *dev, const struct launch_metal *launch,
                            id<MTLComputePipelineState> *out, qv_error *err);

/* metal/memory.m: verbs of the table (backend.h). Memory's base is an MTLBuffer. */
qv_status qv_alloc_metal(struct qv_device *dev, size_t bytes, struct qv_memory **out,
                         qv_error *err);
void qv_free_metal(struct qv_device *dev, struct qv_memory *memory);
bool qv_wrap_metal(struct qv_device *dev, const void *p, size_t bytes, struct qv_memory *out);
void qv_unwrap_metal(struct qv_device *dev, struct qv_memory *memory);
qv_status qv_upload_metal(struct qv_device *dev, struct qv_buffer dst, const void *src,
                          size_t bytes, qv_error *err);
qv_status qv_download_metal(struct qv_device *dev, void *dst, struct qv_buffer src, size_t bytes,
                            qv_error *err);
qv_status qv_layout_metal(struct qv_device *dev, const struct qv_matrix *matrix,
                          struct qv_layout *out, qv_error *err);
qv_status qv_pack_metal(struct qv_device *dev, const struct qv_matrix *matrix, int64_t row0,
                        int64_t rows, const void *src, struct qv_buffer dst, qv_error *err);

/* metal/work.m: verbs too; and waiting for what was committed up to a sequence. */
qv_status qv_run_metal(struct qv_device *dev, const struct qv_call *calls, size_t n, qv_error *err);
qv_status qv_mark_metal(struct qv_device *dev, int mark, qv_error *err);
qv_status qv_wait_metal(struct qv_device *dev, int mark, qv_error *err);
qv_status qv_elapsed_metal(struct qv_device *dev, int begin, int end, double *ms, qv_error *err);
qv_status qv_sync_metal(struct qv_device *dev, qv_error *err);

#endif
