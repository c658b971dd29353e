/* SPDX-License-Identifier: MIT */
/* The parts of the Metal backend, in Objective-C without ARC: whatever is retained here is released
 * here. */
#pragma once

#import <Metal/Metal.h>

#include "engine/backend.h"
#include "launch.h"

/* Limit for command buffers that are committed and not yet known to have ended, oldest first. */
enum { MOST_PENDING = 32 };

/* A mark in the work, after `sequence` command buffers. */
struct mark_metal {
    uint64_t sequence;
    /* times of the GPU's clock: the end of the work before the mark, the start of the work after
     * it */
    double end_s, next_start_s;
};

struct qv_device_metal {
    struct qv_device base;
    id<MTLDevice> gpu;
    id<MTLCommandQueue> queue;
    id<MTLBuffer> nothing; /* bound in place of a missing operand */
    id<MTLCommandBuffer> pending[MOST_PENDING];
    size_t n_pending;
    uint64_t committed; /* command buffers committed so far */
    double last_end_s;  /* when the last one that was waited for ended */
    struct mark_metal marks[QV_MARKS];
    uint32_t naive; /* operations that run on simple kernels, as bits 1 << enum qv_op_kind */
    bool has_bfloat;
    char name[64];
};

struct qv_kernel {
    struct qv_op op;
    struct launch_metal launch;
    bool naive;                           /* the simple kernel was asked for */
    id<MTLComputePipelineState> pipeline; /* kept for the whole process, not released here */
};

static inline struct qv_device_metal *
device_metal(const struct qv_device *dev)
{
    return (struct qv_device_metal *)dev;
}

/* metal/pipelines.m: the kernel of a launch, compiled once per process. QV_EUNSUPPORTED if the GPU
 * cannot run that many threads of it at once. */
qv_status qv_pipeline_metal(struct qv_device_metal *dev, const struct launch_metal *launch,
                            id<MTLComputePipelineState> *out, qv_error *err);

/* metal/memory.m: functions of the table (backend.h). A memory's base is an MTLBuffer. */
qv_status qv_alloc_metal(struct qv_device *dev, size_t bytes, struct qv_memory **out,
                         qv_error *err);
void qv_free_metal(struct qv_device *dev, struct qv_memory *memory);
bool qv_wrap_metal(struct qv_device *dev, const void *p, size_t bytes, struct qv_memory *out);
void qv_unwrap_metal(struct qv_device *dev, struct qv_memory *memory);
qv_status qv_upload_metal(struct qv_device *dev, struct qv_buffer dst, const void *src,
                          size_t bytes, qv_error *err);
qv_status qv_download_metal(struct qv_device *dev, const struct qv_download *parts, size_t n,
                            qv_error *err);
qv_status qv_layout_metal(struct qv_device *dev, const struct qv_matrix *matrix,
                          struct qv_layout *out, qv_error *err);
qv_status qv_lay_out_metal(struct qv_device *dev, const struct qv_matrix *matrix, int64_t row0,
                           int64_t rows, const void *src, struct qv_buffer dst, qv_error *err);

/* metal/work.m: functions of the table as well. */
qv_status qv_run_metal(struct qv_device *dev, const struct qv_call *calls, size_t n, qv_error *err);
qv_status qv_mark_metal(struct qv_device *dev, int mark, qv_error *err);
qv_status qv_wait_metal(struct qv_device *dev, int mark, qv_error *err);
qv_status qv_elapsed_metal(struct qv_device *dev, int begin, int end, double *ms, qv_error *err);
qv_status qv_sync_metal(struct qv_device *dev, qv_error *err);
