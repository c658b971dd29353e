/* SPDX-License-Identifier: MIT */
/*
 * The interface between the engine and devices. A backend is one const table of functions. No code
 * above it knows about devices, and no code below it knows about towers. Functions that can fail
 * return a status and write a message to err.
 */
#pragma once

#include "axis.h"
#include "dtype.h"
#include "op.h"

/* Memory of a device. The backend allocates it, and only the backend reads `base`. */
struct qv_memory {
    void *base;
    size_t bytes;
};
struct qv_buffer {
    struct qv_memory *memory; /* NULL: the operand is not used */
    /* The offset in bytes. A whole operand begins at a multiple of caps.alignment. An operand with
     * a row stride may begin a multiple of its columns later, as k does in rows of q, k and v. */
    size_t offset;
};

/* Destination of a copy of an operand's bytes */
struct qv_download {
    void *dst;
    struct qv_buffer src;
    size_t bytes;
};

struct qv_device; /* a backend's own struct, which begins with a struct qv_device */
struct qv_kernel; /* one operation, ready to run */

/* The conditions under which plans of different capacities compute the same bits for a row of a
 * GEMM, or for a segment in attention, whatever the other rows are. Libraries do not guarantee
 * this; the numbers were observed, and test_buckets.c tests them. QV_NOT_SEEN: never. */
enum { QV_NOT_SEEN = -1 };
struct qv_same_bits {
    int64_t gemm_rows; /* GEMMs of at least this many rows agree; 0: all do */
    /* The smallest and the largest head size for which dense attention (equal segments) and ragged
     * attention (any lengths) agree bit for bit. Both 0: they agree for every size. Ragged
     * attention agrees with itself, whatever the lengths. */
    int64_t head_dims[2];
};

/* Measured bounds at which one lowering of a Conv3d becomes faster than another
 * (conv3d/decide.c). If all are zero, the device's own 3D convolution is always used. */
struct qv_conv3d_thresholds {
    int64_t by_depth_max_kd; /* a deeper kernel is run directly */
    /* a kernel with groups, or with fewer channels than this, is run directly unless it is
     * depthwise */
    int64_t by_depth_min_c;
    /* with fewer output channels than this, channels-last frames are not copied into rows for a
     * GEMM, but use another lowering */
    int64_t rows_min_o;
};

struct qv_caps {
    char device[128]; /* the device's name and its libraries' versions */
    size_t alignment; /* alignment of operands, in bytes */
    int threads;      /* 0 if the backend has no threads of its own */
    qv_dtype dtype;   /* the meaning of QV_DTYPE_AUTO */
    char dtype_reason[128];
    int64_t chunk_rows;  /* rows at which GEMMs become efficient; chunks aim at it */
    int64_t pack_rows;   /* the same for packs of several items; a backend may leave it 0 */
    int64_t bucket_rows; /* capacities are multiples of this many rows */
    int64_t least_rows;  /* no capacity has fewer rows */
    bool free_segments;  /* a capacity with more segments and windows costs no time */
    bool quick_plans;    /* a smaller plan saves more time than making it takes */
    /* when plans of different capacities give the same bits */
    struct qv_same_bits same_f32, same_bf16;
    bool wrong_sparse_bf16; /* bf16 convolutions are wrong if qv_op_conv_is_sparse() */
    struct qv_conv3d_thresholds conv3d;
    int chunks; /* chunks of a plan that run at once: 2 if copies overlap with computation */
    /* padding inside the tower to this multiple suits GEMMs; 0: none needed */
    int64_t width_multiple;
    /* rows of a gated MLP to compute at a time, for example so that fc1's output fits in the
     * device's cache; 0: all */
    int64_t gated_rows;
    bool side; /* work on a side stream saves time */
    /* a gemm's residual must not be its y, since the sum would be rounded twice */
    bool residual_apart;
    double tanh_error; /* relative error of tanh in the GELU of a bf16 gemm; 0: as small as f32's */
    bool attention_of_gemms; /* attention is done with two GEMMs, since no library offers it */
    bool has_naive;          /* simple kernels exist too (qv_device_options.naive) */
    /* known faults of the device or its libraries, and their effects; "" */
    char warning[240];
};

/* A weight matrix as the device lays it out: [n,k] for gemms of any m, or [o, c/groups*kd*kh*kw]
 * for one convolution, which is laid out as a whole. */
struct qv_matrix {
    int64_t n, k;
    qv_dtype dtype;
    const struct qv_op *conv; /* the convolution, or NULL for a gemm; read only during the call */
    struct qv_groups groups;  /* bits 0: it is not quantised */
};
/* The matrix that operand v of an operation is, if its role is a weight. */
static inline struct qv_matrix
qv_matrix_of(const struct qv_op *op, const struct qv_view *v)
{
    return (struct qv_matrix){ v->rows, v->cols, v->dtype, op->kind == QV_OP_conv ? op : NULL,
                               v->groups };
}
/* Bytes of a row as stored. */
static inline size_t
qv_matrix_row_bytes(const struct qv_matrix *m)
{
    return m->groups.bits ? qv_grouped_row_bytes(&m->groups, m->k)
                          : (size_t)m->k * qv_dtype_bytes(m->dtype);
}
struct qv_layout {
    size_t bytes;
    int64_t row_multiple; /* slices given to lay_out() begin at multiples of this */
};

/* One operation of a chunk's work, with its operands. scratch.memory may be NULL if the kernel
 * needs none. A call with `side` may run on a side stream, once all earlier calls are done. Only
 * three things wait for it: later side calls, a call with `waits`, and the end of the list (and
 * wait_side). A device may also run all calls in order, and neighbours as one kernel. Only the next
 * call reads the output of a `transient` call; a kernel that runs both need not write it. */
struct qv_call {
    struct qv_kernel *kernel;
    struct qv_buffer operands[QV_MAX_OPERANDS], scratch;
    bool side, waits, transient;
};

/* Keeps compiled kernels for the next process, by device and library versions and under a key that
 * names everything else. find() returns bytes that the caller must free, or NULL if nothing is kept
 * or it is damaged. These are function pointers because a backend may be in a separate library. */
struct qv_plan_cache {
    void *files;
    void *(*find)(void *files, const char *key, size_t *bytes);
    void (*keep)(void *files, const char *key, const void *data, size_t bytes);
};

/* RGB frames in the device's memory: channel c of pixel x of row y of frame i is the byte at
 * i * step[0] + y * step[1] + x * step[2] + c * step[3]. */
struct qv_frames_view {
    const uint8_t *data;
    int64_t n, step[4];
};
/* A resize of frames [down.in, across.in]. The tables are on the host. */
struct qv_resize {
    const struct qv_frames_view *views;
    size_t n_views;
    struct qv_axis down, across;
};

struct qv_device_options {
    int ordinal, threads;
    bool tf32;    /* f32 GEMMs may be computed in TF32 */
    void *stream; /* the caller's stream, if the backend has streams; NULL: the backend makes one */
    uint32_t naive; /* operations, as bits 1 << enum qv_op_kind, that run on simple kernels */
    /* the folder of backends in separate libraries; NULL: the usual places */
    const char *backends;
    const struct qv_plan_cache *plan_cache; /* must live as long as the device; NULL: none */
};

/* Marks are points in the enqueued work that can be waited for and timed. Each chunk ends with one;
 * tools use the others. */
enum { QV_MARK_CHUNK, QV_MARK_BEGIN = QV_MARK_CHUNK + 2, QV_MARK_END, QV_MARKS };

struct qv_recording; /* a list of calls that the device can repeat as one */

struct qv_backend {
    const char *name;

    /* The device. open() may return a device whose `backend` points to a different table. That
     * table is used from then on: this is how a backend in a separate library takes over. */
    qv_status (*open)(const struct qv_device_options *options, struct qv_device **out,
                      qv_error *err);
    void (*close)(struct qv_device *dev);
    void (*caps)(const struct qv_device *dev, struct qv_caps *out);

    /* Memory, which is zero after alloc.
     * - wrap: turns the caller's memory into an operand if the device can use it in place;
     *   otherwise returns false. unwrap: undoes this; it may be NULL.
     * - upload: src has been read when it returns. No enqueued work may use dst. Later work and
     *   downloads see the data.
     * - download: copies n parts. The work that writes them must be complete (by sync or a mark).
     * If src or dst is memory that wrap accepts, and the stream is the caller's, upload and
     * download copy in stream order and do not wait. */
    qv_status (*alloc)(struct qv_device *dev, size_t bytes, struct qv_memory **out, qv_error *err);
    void (*free)(struct qv_device *dev, struct qv_memory *memory);
    bool (*wrap)(struct qv_device *dev, const void *p, size_t bytes, struct qv_memory *out);
    void (*unwrap)(struct qv_device *dev, struct qv_memory *memory);
    qv_status (*upload)(struct qv_device *dev, struct qv_buffer dst, const void *src, size_t bytes,
                        qv_error *err);
    qv_status (*download)(struct qv_device *dev, const struct qv_download *parts, size_t n,
                          qv_error *err);
    /* Page-locked host memory, which can be copied from and to directly. Any thread may call these
     * functions, even while others use the device. NULL: all host memory is equally fast. */
    qv_status (*lock_pages)(struct qv_device *dev, size_t bytes, void **out, qv_error *err);
    void (*unlock_pages)(struct qv_device *dev, void *p);

    /* Resizing frames in the device's memory, to the same bytes as pixels/resize.c. Any thread may
     * call these, even while others use the device. NULL: the device cannot resize.
     * - frames_stream: the stream on which frames are resized; the work that makes them must
     *   precede it in stream order. NULL if this device cannot resize.
     * - resize: *out is [frames of all views, down.out, across.out, 3] in the device's memory, from
     *   which qv_backend.upload reads. When it returns, the work is done and the views are no
     *   longer read.
     * - read_frames: copies bytes of a resized *out to the host. free_frames: frees it. */
    void *(*frames_stream)(const struct qv_device *dev);
    qv_status (*resize)(struct qv_device *dev, const struct qv_resize *r, void **out,
                        qv_error *err);
    qv_status (*read_frames)(struct qv_device *dev, void *to, const void *frames, size_t bytes,
                             qv_error *err);
    void (*free_frames)(struct qv_device *dev, void *frames);

    /* Weights. The layout depends only on the matrix (and its convolution, if it has one), so that
     * all plans share one copy.
     * - lay_out: lays out rows row0 to row0 + rows: src[rows,k] on the host, in the matrix's dtype,
     *   or quantised in the canonical form of grouped.h. */
    qv_status (*layout)(struct qv_device *dev, const struct qv_matrix *matrix,
                        struct qv_layout *out, qv_error *err);
    qv_status (*lay_out)(struct qv_device *dev, const struct qv_matrix *matrix, int64_t row0,
                         int64_t rows, const void *src, struct qv_buffer dst, qv_error *err);

    /* Kernels. prepare() may be slow and may fail; QV_EUNSUPPORTED names the operation and the
     * reason. Plans use choice 0. Metal selects kernels by an operation's size: for tests, choices
     * above 0 are the kernels for other sizes, and the choice after the last is QV_EUNSUPPORTED.
     * run() only enqueues and allocates nothing. */
    qv_status (*prepare)(struct qv_device *dev, const struct qv_op *op, int choice,
                         struct qv_kernel **out, size_t *scratch_bytes, qv_error *err);
    void (*release)(struct qv_device *dev, struct qv_kernel *kernel);
    /* Names the kernel, such as "oneDNN brg_matmul:avx512_core". If a faster kernel could not be
     * used, the text gives the reason. */
    void (*describe)(const struct qv_kernel *kernel, char *text, size_t size);
    /* Announces that kernels like this will be prepared soon, so that the backend loads slow
     * libraries while the caller does other things. Failures are not reported, since prepare() will
     * fail in the same way. NULL: nothing is slow to load. */
    void (*warm)(struct qv_device *dev, const struct qv_op *op);
    qv_status (*run)(struct qv_device *dev, const struct qv_call *calls, size_t n, qv_error *err);

    /* Enqueued work.
     * - record: combines the calls into one piece of work, which replay enqueues. Operands must not
     *   move. If NULL, the calls are run one by one.
     * - wait_side: returns when the side calls of the last replay are complete; there must be some.
     *   NULL if the device runs all calls in order.
     * - mark: sets a mark after all enqueued work. wait: returns when the mark is reached.
     * - elapsed: milliseconds between two marks that have both been waited for. */
    qv_status (*record)(struct qv_device *dev, const struct qv_call *calls, size_t n,
                        struct qv_recording **out, qv_error *err);
    qv_status (*replay)(struct qv_device *dev, struct qv_recording *recording, qv_error *err);
    qv_status (*wait_side)(struct qv_device *dev, struct qv_recording *recording, qv_error *err);
    void (*forget)(struct qv_device *dev, struct qv_recording *recording);
    qv_status (*mark)(struct qv_device *dev, int mark, qv_error *err);
    qv_status (*wait)(struct qv_device *dev, int mark, qv_error *err);
    qv_status (*elapsed)(struct qv_device *dev, int begin, int end, double *ms, qv_error *err);
    qv_status (*sync)(struct qv_device *dev, qv_error *err);
};

enum { QV_KERNEL_BYTES = 240 }; /* of the text that describe() writes */

struct qv_device {
    const struct qv_backend *backend;
    /* when each mark was set, on backends whose run() returns when the work is done */
    double marks_s[QV_MARKS];
};

/* All backends, the best first and NULL last. qv_backend_find() returns one by its name, or
 * NULL. */
extern const struct qv_backend *const qv_backends[];
const struct qv_backend *qv_backend_find(const char *name);

extern const struct qv_backend qv_backend_ref;
extern const struct qv_backend qv_backend_cpu;
extern const struct qv_backend qv_backend_cuda;
extern const struct qv_backend qv_backend_metal;

/* A backend in a separate library has only a name and an open(), which loads the library when first
 * called (engine/backend_library.c). */
extern const struct qv_backend qv_backend_library_cuda;
/* Returns whether a backend is installed: false if its library is not in `folder` or, with NULL,
 * not in the usual places. */
bool qv_backend_is_installed(const struct qv_backend *backend, const char *folder);
/* Exported by such a library. Returns its table, or NULL if it was built with a different version
 * of this header: build_id identifies the caller's version, *own becomes the library's. */
QV_API const struct qv_backend *qv_backend_entry(const char *build_id, const char **own);

void qv_unwrap(struct qv_device *dev, struct qv_memory *memory);

/* Reorders a convolution's weights from src[o, c, taps] to dst[o, taps, c]. */
void qv_channels_last(const struct qv_matrix *matrix, const void *src, void *dst);

/* Memory, copies and marks for the backends that compute on the host. */
qv_status qv_host_alloc_memory(struct qv_device *dev, size_t bytes, struct qv_memory **out,
                               qv_error *err);
void qv_host_free_memory(struct qv_device *dev, struct qv_memory *memory);
/* Host memory in whole pages, to be released with free(); qv_host_alloc returns this if the device
 * cannot lock pages. */
qv_status qv_host_alloc_pages(size_t bytes, void **out, qv_error *err);
qv_status qv_host_upload(struct qv_device *dev, struct qv_buffer dst, const void *src, size_t bytes,
                         qv_error *err);
qv_status qv_host_download(struct qv_device *dev, const struct qv_download *parts, size_t n,
                           qv_error *err);
bool qv_host_wrap(struct qv_device *dev, const void *p, size_t bytes, struct qv_memory *out);
qv_status qv_host_sync(struct qv_device *dev, qv_error *err);
qv_status qv_host_mark(struct qv_device *dev, int mark, qv_error *err);
qv_status qv_host_wait(struct qv_device *dev, int mark, qv_error *err);
qv_status qv_host_elapsed(struct qv_device *dev, int begin, int end, double *ms, qv_error *err);

/* Rounds a size up, so that whatever follows is aligned for any backend. */
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
