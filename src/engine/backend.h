/* SPDX-License-Identifier: MIT */
/*
 * The seam. A backend is one const table of verbs; nothing above it knows a device, nothing below
 * it knows a tower. A call that can fail returns a status and words in err.
 */
#ifndef QV_ENGINE_BACKEND_H
#define QV_ENGINE_BACKEND_H

#include "op.h"

/* Memory of a device. The backend makes it; only the backend reads `base`. */
struct qv_memory {
    void *base;
    size_t bytes;
};
struct qv_buffer {
    struct qv_memory *memory; /* NULL: operand not used */
    size_t offset;            /* bytes; a multiple of caps.alignment for whole operands, and for one
                                 with a row stride whole columns of its width more, as k is */
};

struct qv_device; /* the backend's own; starts with its table */
struct qv_kernel; /* one operation, ready to run */

/* What plans of different capacities have the same bits in: a row of a GEMM, a segment of an
 * attention, whatever number of rows is beside it. Seen and held by tests (test_buckets.c); libraries
 * promise nothing. QV_NOT_SEEN: in none. */
enum { QV_NOT_SEEN = -1 };
struct qv_same_bits {
    int64_t gemm_rows; /* in GEMMs of so many rows and more; 0: in all */
    int64_t head_dim;  /* in attention over equal segments (dense) as over any (ragged), of heads of
                          this size; 0: of all. Ragged ones agree with one another */
};

/* Where one lowering of a Conv3d starts to pay over another (conv3d/decide.c), as it was measured; all
 * zero: the device's own 3D convolution pays everywhere. */
struct qv_conv3d_thresholds {
    int64_t by_depth_max_kd; /* kernels deeper than this go to direct */
    int64_t by_depth_min_c;  /* dense ones of fewer channels too; depthwise goes by depth */
    int64_t rows_min_o; /* with fewer outputs, channels-last frames are not copied into rows for a
                           GEMM, but go to frames, by depth or direct */
};

struct qv_caps {
    char device[128]; /* what computes, and library versions */
    size_t alignment; /* of operands, in bytes */
    int threads;      /* 0 where it does not apply */
    qv_dtype dtype;   /* what QV_DTYPE_AUTO means */
    char dtype_reason[128];
    int64_t chunk_rows;  /* rows of work at which GEMMs are efficient: aim of a chunk */
    int64_t pack_rows;   /* the same of a chunk into which items are packed; 0: chunk_rows */
    int64_t bucket_rows; /* capacities are multiples of so many rows, */
    int64_t least_rows;  /* and none is below this */
    bool free_segments;  /* room for more segments and windows in a chunk costs nothing */
    bool quick_plans;    /* making a plan costs less than the rows that a smaller one spares */
    bool bits_by_place;  /* a row of a gemm may have other bits as another row of it */
    struct qv_same_bits same_f32, same_bf16; /* in plans of different capacities */
    bool wrong_sparse_bf16; /* wrong bf16 convolutions that qv_op_conv_is_sparse() */
    struct qv_conv3d_thresholds conv3d;
    int chunks; /* of a plan that may be under way at once: 2 where copies overlap with work */
    bool has_choices;       /* of kernels: prepare takes more than choice 0 */
    int64_t width_multiple; /* widths inside the tower that GEMMs like; 0: any */
    int64_t
        gated_rows; /* of a gated MLP at a time, so that a cache holds what its GEMM gives; 0: all */
    bool side;      /* calls on a side stream gain by it */
    bool residual_apart;     /* a gemm's residual must not be its y: that would be rounded twice */
    double tanh_error;       /* relative, of the tanh in a bf16 gemm's GELU; 0: as good as f32 */
    bool attention_of_gemms; /* there is no attention of a library's: it is ours, on two GEMMs */
    bool has_naive;          /* simple kernels besides: qv_device_options.naive */
    char warning[240]; /* what is wrong with the device or its libraries, and what follows; "" */
};

/* A weight matrix [n,k] of gemms of any m, in the form the device wants; or of one convolution
 * [o, c/groups*kd*kh*kw], which is packed as a whole. */
struct qv_matrix {
    int64_t n, k;
    qv_dtype dtype;
    const struct qv_op *conv; /* NULL for a gemm; read during the call only */
    struct qv_groups groups;  /* bits 0: it is not quantised */
};
/* The one that operand v of an operation is, which has the role of a weight. */
static inline struct qv_matrix
qv_matrix_of(const struct qv_op *op, const struct qv_view *v)
{
    return (struct qv_matrix){ v->rows, v->cols, v->dtype, op->kind == QV_OP_conv ? op : NULL,
                               v->groups };
}
struct qv_layout {
    size_t bytes;
    int64_t row_multiple; /* pack() takes slices that start at multiples of this */
};

/* One step of a chunk's work. scratch.memory may be NULL if the kernel needs none. A call on
 * the side stream starts when all before it are done; nothing waits for it but such calls that follow,
 * a call that waits, and the end of the list. A device may run all in their order. */
struct qv_call {
    struct qv_kernel *kernel;
    struct qv_buffer operands[QV_MAX_OPERANDS], scratch;
    bool side, waits;
};

/* What was compiled for an operation, kept for the next process by device and library versions, under a key
 * that says the rest. find: bytes that the caller frees; NULL: nothing is kept, or nothing whole. Verbs,
 * for a backend may be in a library of its own. */
struct qv_plan_cache {
    void *files;
    void *(*find)(void *files, const char *key, size_t *bytes);
    void (*keep)(void *files, const char *key, const void *data, size_t bytes);
};

struct qv_device_options {
    int ordinal, threads;
    bool tf32;            /* f32 GEMMs may be computed in TF32 */
    void *stream;         /* the caller's, for a backend that has streams; NULL: an own one */
    uint32_t naive;       /* operations, 1 << enum qv_op_kind, that run on simple kernels */
    const char *backends; /* the folder of backends in libraries of their own; NULL: usual places */
    const struct qv_plan_cache *plan_cache; /* lives as long as the device; NULL: none */
};

/* Points in the work that can be waited for and timed: the end of a chunk, and a tool's own. */
enum { QV_MARK_CHUNK, QV_MARK_BEGIN = QV_MARK_CHUNK + 2, QV_MARK_END, QV_MARKS };

struct qv_recording; /* a list of calls that the device can repeat as one */

struct qv_backend {
    const char *name;

    /* device. open: the device may be of another table (its `backend`), which is used from then on:
     * that of a library which was opened now. */
    qv_status (*open)(const struct qv_device_options *options, struct qv_device **out,
                      qv_error *err);
    void (*close)(struct qv_device *dev);
    void (*caps)(const struct qv_device *dev, struct qv_caps *out);

    /* memory; alloc'ed memory is zero.
     * wrap: memory that the caller has and the device can use in place, or false. unwrap: it is not
     * used any more; NULL: nobody needs to know. upload: src is read before the return; dst is in use by no work that was enqueued;
     * later work and downloads see it. download: src is complete (synced, or its mark waited for).
     * src and dst may be memory that wrap takes: then on a stream of the caller's both are copied
     * in its order, and nothing is waited for. */
    qv_status (*alloc)(struct qv_device *dev, size_t bytes, struct qv_memory **out, qv_error *err);
    void (*free)(struct qv_device *dev, struct qv_memory *memory);
    bool (*wrap)(struct qv_device *dev, const void *p, size_t bytes, struct qv_memory *out);
    void (*unwrap)(struct qv_device *dev, struct qv_memory *memory);
    qv_status (*upload)(struct qv_device *dev, struct qv_buffer dst, const void *src, size_t bytes,
                        qv_error *err);
    qv_status (*download)(struct qv_device *dev, void *dst, struct qv_buffer src, size_t bytes,
                          qv_error *err);
    /* page-locked memory of the host, from which and to which copies go without another in between;
     * by any thread, while others use the device. NULL verbs: any memory is as good. */
    qv_status (*lock_pages)(struct qv_device *dev, size_t bytes, void **out, qv_error *err);
    void (*unlock_pages)(struct qv_device *dev, void *p);

    /* weights: the layout is a function of the matrix (and of the convolution, if it is one's)
     * alone, so that all plans share one copy.
     * pack: rows row0 .. row0+rows of the matrix, src[rows,k] in the matrix's dtype on the host, or
     * quantised in the canonical form of grouped.h */
    qv_status (*layout)(struct qv_device *dev, const struct qv_matrix *matrix,
                        struct qv_layout *out, qv_error *err);
    qv_status (*pack)(struct qv_device *dev, const struct qv_matrix *matrix, int64_t row0,
                      int64_t rows, const void *src, struct qv_buffer dst, qv_error *err);

    /* kernels: prepare may fail and be slow, QV_EUNSUPPORTED names operation and reason. choice:
     * 0 is the best guess; others, up to QV_MOST_CHOICES, are there to be timed where
     * caps.has_choices, QV_EUNSUPPORTED beyond the last. run only enqueues and allocates nothing */
    qv_status (*prepare)(struct qv_device *dev, const struct qv_op *op, int choice,
                         struct qv_kernel **out, size_t *scratch_bytes, qv_error *err);
    void (*release)(struct qv_device *dev, struct qv_kernel *kernel);
    /* Which kernel runs it ("oneDNN brg_matmul:avx512_core"), and where that is not the fast one
     * it could be, why. */
    void (*describe)(const struct qv_kernel *kernel, char *text, size_t size);
    /* Kernels like this will be prepared soon: what takes long to start for them starts, beside what
     * the caller does meanwhile. What fails there fails again in prepare, in words. NULL: nothing
     * takes long. */
    void (*warm)(struct qv_device *dev, const struct qv_op *op);
    qv_status (*run)(struct qv_device *dev, const struct qv_call *calls, size_t n, qv_error *err);

    /* work. record: the calls as one, to be enqueued by replay; their operands stay where they
     * are. NULL verbs: run the list. mark: a point behind all that was enqueued; wait: until it is
     * reached; elapsed: milliseconds from one to the other, both of which were waited for. */
    qv_status (*record)(struct qv_device *dev, const struct qv_call *calls, size_t n,
                        struct qv_recording **out, qv_error *err);
    qv_status (*replay)(struct qv_device *dev, struct qv_recording *recording, qv_error *err);
    void (*forget)(struct qv_device *dev, struct qv_recording *recording);
    qv_status (*mark)(struct qv_device *dev, int mark, qv_error *err);
    qv_status (*wait)(struct qv_device *dev, int mark, qv_error *err);
    qv_status (*elapsed)(struct qv_device *dev, int begin, int end, double *ms, qv_error *err);
    qv_status (*sync)(struct qv_device *dev, qv_error *err);
};

enum { QV_MOST_CHOICES = 8, QV_KERNEL_BYTES = 240 /* of what describe says */ };

struct qv_device {
    const struct qv_backend *backend;
    double marks_s[QV_MARKS]; /* where work is done when run returns: when that was */
};

/* Every backend, best first, NULL at the end; and one by name, or NULL. */
extern const struct qv_backend *const qv_backends[];
const struct qv_backend *qv_backend_find(const char *name);

extern const struct qv_backend qv_backend_ref;
extern const struct qv_backend qv_backend_cpu;
extern const struct qv_backend qv_backend_cuda;
extern const struct qv_backend qv_backend_metal;

/* A backend in a library of its own: a name, and an `open` that finds the library when it is first
 * asked for (engine/backend_library.c). */
extern const struct qv_backend qv_backend_library_cuda;
/* What such a library exports: its table, or NULL if it was built with another seam than the
 * caller, whose build_id says which; *own is the library's. */
QV_API const struct qv_backend *qv_backend_entry(const char *build_id, const char **own);

void qv_unwrap(struct qv_device *dev, struct qv_memory *memory);

/* src[o, c, taps] of a convolution -> dst[o, taps, c] */
void qv_channels_last(const struct qv_matrix *matrix, const void *src, void *dst);

/* Host memory, shared by the backends that compute on the host. */
qv_status qv_host_alloc_memory(struct qv_device *dev, size_t bytes, struct qv_memory **out,
                               qv_error *err);
void qv_host_free_memory(struct qv_device *dev, struct qv_memory *memory);
/* What qv_host_alloc gives where memory is not locked: whole pages, for free(). */
qv_status qv_host_alloc_pages(size_t bytes, void **out, qv_error *err);
qv_status qv_host_upload(struct qv_device *dev, struct qv_buffer dst, const void *src, size_t bytes,
                         qv_error *err);
qv_status qv_host_download(struct qv_device *dev, void *dst, struct qv_buffer src, size_t bytes,
                           qv_error *err);
bool qv_host_wrap(struct qv_device *dev, const void *p, size_t bytes, struct qv_memory *out);
qv_status qv_host_sync(struct qv_device *dev, qv_error *err);
qv_status qv_host_mark(struct qv_device *dev, int mark, qv_error *err);
qv_status qv_host_wait(struct qv_device *dev, int mark, qv_error *err);
qv_status qv_host_elapsed(struct qv_device *dev, int begin, int end, double *ms, qv_error *err);

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
