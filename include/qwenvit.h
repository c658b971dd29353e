/* SPDX-License-Identifier: MIT */
/*
 * qwenvit: the vision tower of Qwen-VL models. Frame pairs go in, vision tokens come out.
 *
 * There are three objects. A context is a device. A model is weights on a device. A plan is a model
 * at one capacity: making the plan allocates, searches, compiles, and does everything else that can
 * fail. Encoding with it allocates nothing, for clips and images of any size that fit.
 *
 * Conventions
 *   - All arrays are row-major and contiguous; shapes stand in brackets: tokens[n, out].
 *   - A frame pair is `temporal_patch_size` (2) consecutive frames. Attention never crosses it: the
 *     patches of a pair are a segment.
 *   - grid_thw is frame pairs, patch rows, patch columns. One pair has grid_h * grid_w patches and
 *     gives grid_h * grid_w / merge^2 tokens.
 *   - A bucket is one of the sizes that capacities are rounded up to.
 *   - In options structs a field that is zero takes its default, and a NULL pointer means all
 *     defaults; `reserved` must be zero. In structs that the library fills, `reserved` is zero
 *     until a later version gives it a meaning.
 *   - Every call that can fail returns a qv_status and, if `err` is not NULL, leaves a text there.
 *     A failed call leaves its out-parameters untouched.
 *   - A function that frees sets the caller's pointer to NULL and accepts NULL.
 *   - Frames, patches and tokens may be in the device's memory (a CUDA context takes pointers of
 *     cudaMalloc on its device). Weights and options are on the host.
 *
 * Threads. Different contexts may be used by different threads at the same time, and so may
 * qv_status_name() and qv_version(). One context and everything made from it (its models, their
 * plans) is used by one thread at a time; which thread may change. A qv_error belongs to its
 * caller. A model may be freed only after its plans, a context only after its models. Any thread
 * may call qv_host_alloc() and qv_host_free(), also while another uses the context. A call leaves
 * the thread's current CUDA device and context as they were.
 */
#ifndef QWENVIT_H
#define QWENVIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#define QV_API
#else
#define QV_API __attribute__((visibility("default")))
#endif

#define QV_VERSION "0.3.0" /* the version of the release */
/* The version of the public headers and the shared libraries. MAJOR is raised when programs
 * built against an older header must be compiled or written anew; the libraries are loaded by it
 * (libqwenvit.so.MAJOR). MINOR is raised when something is added, such as a use for a `reserved`
 * field. */
#define QV_API_VERSION_MAJOR 2
#define QV_API_VERSION_MINOR 0
#define QV_MAX_DEEPSTACK 8
#define QV_REASON_BYTES 192 /* the most bytes of a sentence about a choice */

/* One list, from which the enum, the names and the texts are made. */
#define QV_STATUS_LIST(X)                                                                          \
    X(OK, "done")                                                                                  \
    X(EINVAL, "invalid argument")                                                                  \
    X(ENOMEM, "out of memory")                                                                     \
    X(EIO, "file cannot be read or written")                                                       \
    X(EFORMAT, "malformed or inconsistent input file")                                             \
    X(ENODEVICE, "no such backend or device here")                                                 \
    X(EUNSUPPORTED, "valid, but not supported")                                                    \
    X(EBACKEND, "the device or its library failed")                                                \
    X(ESTATE, "call out of order")                                                                 \
    X(EFULL, "no room now; try again later")

typedef enum qv_status {
#define QV_STATUS_ENUM(name, text) QV_##name,
    QV_STATUS_LIST(QV_STATUS_ENUM)
#undef QV_STATUS_ENUM
        QV_STATUS_MAX = 0x7fff
} qv_status;

/* The last failure as a text: what failed, the value found, and what would be right. */
typedef struct qv_error {
    qv_status status;
    char text[500];
} qv_error;

/* Number formats: one list, from which the enum and the names are made. */
#define QV_DTYPE_LIST(X)                                                                           \
    X(DTYPE_AUTO, "auto") /* bf16 if the device computes in it, else f32 */                        \
    X(F32, "f32")                                                                                  \
    X(BF16, "bf16") /* bf16 storage, f32 accumulation, norms, softmax and rotary angles */         \
    X(U8, "u8")                                                                                    \
    X(F16, "f16") /* in checkpoints only */                                                        \
    X(I32, "i32") /* indices between operations only */

typedef enum qv_dtype {
#define QV_DTYPE_ENUM(name, text) QV_##name,
    QV_DTYPE_LIST(QV_DTYPE_ENUM)
#undef QV_DTYPE_ENUM
        QV_DTYPE_MAX = 0x7fff
} qv_dtype;

typedef struct qv_context qv_context;
typedef struct qv_model qv_model;
typedef struct qv_plan qv_plan;

QV_API const char *qv_version(void);            /* the version of the library that runs, "0.3.0" */
QV_API const char *qv_status_name(qv_status s); /* "QV_EFORMAT"; never NULL */
QV_API const char *qv_dtype_name(qv_dtype dtype); /* "bf16"; never NULL */

/* ---- context: a device ---------------------------------------------------------------------- */

typedef struct qv_context_options {
    const char *backend; /* "auto" (NULL), "cpu", "ref", "cuda", "metal", or with a device's index
                          * "cuda:1" */
    int device;          /* index among that backend's devices; 0 where the name has one */
    int threads;         /* CPU threads; 0: every core this process may use */
    /* A file in which measured choices are kept, by device and library versions: the lowering of
     * a Conv3d, the library's algorithm for an operation. The same file gives the same choices
     * and so the same bits. NULL: none. A file that is damaged or not ours is ignored (see
     * qv_context_info.warning) and never written to. */
    const char *tune_file;
    /* measure what the file does not hold, and keep it there, or without a file in this context
     * only */
    bool tune;
    bool tf32; /* CUDA: GEMMs of f32 may be computed in TF32 (10 bits of mantissa) */
    /* CUDA: a cudaStream_t of the device, on which all work is enqueued; NULL: the context makes
     * one. With a stream of the caller's, input and output in the device's memory are read and
     * written in the order of that stream, and no call waits for that. */
    void *stream;
    /* Metal, to find a fault: operations that run on the backend's simple kernels, by the names
     * that `qwenvit profile` prints, separated by commas, or "all". NULL: none. */
    const char *naive;
    /* The folder of the backends that are libraries of their own (libqwenvit_cuda.so). NULL:
     * beside the library or program that this code is in, or where they are installed. A library
     * is opened once in a process, and stays loaded. */
    const char *backends;
    /* A folder in which kernels that a library compiled for this device are kept for the next
     * process, by device and library versions: those of cuDNN, which take 0.7 s the first time.
     * The folder is made with the first file. NULL: none. A file that is damaged or not ours is
     * ignored (see qv_context_info.warning) and written anew. */
    const char *kernel_folder;
    uint64_t reserved[5];
} qv_context_options;

typedef struct qv_context_info {
    const char *backend; /* static text, such as "cpu" */
    char device[128];    /* the device with its library versions: "AMD EPYC, oneDNN 3.2.0, AVX2" */
    int threads;         /* 0 if the backend has no threads of its own */
    qv_dtype dtype;      /* what QV_DTYPE_AUTO means on this device */
    char dtype_reason[128]; /* a sentence that says why */
    /* what is wrong so far with the device, its libraries, the tune file or a kept kernel; "" if
     * nothing is. */
    char warning[512];
    /* backends that "auto" would have preferred, and why it did not take them: "cuda: there is
     * no NVIDIA driver here"; "" if there are none */
    char passed_over[512];
} qv_context_info;

/* Opens a device. Returns QV_ENODEVICE if the backend is unknown, not built in, or finds no
 * device. Only "auto" chooses a backend; any other name has no fallback. */
QV_API qv_status qv_context_open(const qv_context_options *options, qv_context **out,
                                 qv_error *err);
QV_API void qv_context_close(qv_context **ctx);
QV_API void qv_context_get_info(const qv_context *ctx, qv_context_info *out);

/* Allocates memory of the host, for frames, patches and tokens, that this device copies from and to
 * fastest. For CUDA it is page-locked, so that a copy runs at the rate of the link, and begins
 * anywhere in a page, aligned for every type; on other devices it begins at a page. Locking takes
 * 0.4 ms a MB, so the context keeps up to four blocks that were given back, the largest, of
 * together 256 MiB, for later calls. The contents are undefined. Returns QV_EINVAL for 0 bytes, and
 * QV_ENOMEM if there is not so much memory. */
QV_API qv_status qv_host_alloc(qv_context *ctx, size_t bytes, void **out, qv_error *err);
/* Frees memory of qv_host_alloc of the same context, before the context is closed. NULL is
 * accepted; the caller's pointer stays as it is. */
QV_API void qv_host_free(qv_context *ctx, void *p);

/* ---- model: weights on a device ------------------------------------------------------------- */

/* The processor of transformers whose rules make frames. For images they are the same, except
 * for GLM's. */
typedef enum qv_processor {
    QV_PROCESSOR_QWEN3_VL =
        0, /* Qwen3VLVideoProcessor: pixels are counted over all frames, T*H*W */
    /* Qwen2VLVideoProcessor, also for Qwen2.5-VL: pixels of each frame, H*W; an even number of
     * frames */
    QV_PROCESSOR_QWEN2_VL,
    /* Glm4vVideoProcessor and Glm4vImageProcessor: pixels are counted over all frames (an image
     * counts as a frame pair); an even number of frames, which follows from fps and max_duration
     * alone */
    QV_PROCESSOR_GLM4V,
    QV_PROCESSOR_MAX = 0x7fff
} qv_processor;

/* Says how clips or images become frames for this model, from the checkpoint's
 * preprocessor files. */
typedef struct qv_preprocess {
    /* of a clip, counted as its processor counts; of an image: H*W */
    int64_t min_pixels, max_pixels;
    double mean[3], std[3];         /* for values in 0..1 */
    double fps;                     /* clips: frames sampled per second */
    int64_t min_frames, max_frames; /* clips; 0 if the processor has no such numbers */
    /* clips, in seconds: a longer clip gets fps * max_duration frames, spread over all of it; 0:
     * the processor has no such number */
    double max_duration;
    int patch_size, temporal_patch_size, merge_size;
    qv_processor processor;
} qv_preprocess;

/* Says how matrices are kept that a checkpoint holds quantised in groups (MLX's, with 4
 * or 8 bits). */
typedef enum qv_weight_kind {
    QV_WEIGHTS_WIDENED = 0, /* in the model's dtype, as all others are */
    /* packed as they are stored, and widened whenever they are multiplied. That takes less memory
     * (with 4 bits 0.3 of bf16's) and more time, and gives tokens with the same bits if scales are
     * bf16 or f16. Matrices that cannot be kept so, and those that are not quantised, are widened;
     * qv_model_info counts those that are kept. */
    QV_WEIGHTS_STORED,
    QV_WEIGHTS_MAX = 0x7fff
} qv_weight_kind;

typedef struct qv_model_options {
    qv_dtype dtype; /* dtype of weights and activations: QV_F32 or QV_BF16 */
    /* only read and check the configuration and the tensors' headers: plans made from such a
     * model tell their cost, and cannot run */
    bool describe;
    /* [3] each: red, green and blue in 0..1, for images and clips, in place of the checkpoint's
     * qv_preprocess.mean and std. NULL: the checkpoint's. They are read only during the call. */
    const double *image_mean, *image_std;
    qv_weight_kind weights;
    uint64_t reserved[5];
} qv_model_options;

typedef struct qv_model_info {
    char model_type[64]; /* such as "qwen3_vl" */
    qv_dtype dtype;
    int64_t depth, hidden, heads, head_dim, intermediate, out_hidden;
    int64_t patch_size, temporal_patch_size, merge_size, in_channels;
    int64_t row_dim; /* values in a patch: channels * temporal * patch^2; 1536 for Qwen3-VL */
    int n_deepstack;
    int64_t deepstack_layers[QV_MAX_DEEPSTACK];
    int64_t n_parameters;
    size_t weight_bytes; /* bytes on the device, packed */
    /* XXH3-128 of the tower's weights in canonical order; "" if they are not loaded */
    char digest[40];
    qv_preprocess image, video;
    /* These say how every plan runs the Conv3d of the patch embedding on this device, and why. The
     * reason names the GEMM of a chunk of the device's own size. */
    const char *lowering; /* static text, such as "patchify" */
    char lowering_reason[QV_REASON_BYTES];
    const char *folder; /* what it was loaded from, as the caller gave it; belongs to the model */
    /* `note`: for a GGUF file, a sentence about what the file does not say and where that was taken
     * from. `warning`: why tokens are likely to be others than those of the published checkpoint.
     * For a folder: which preprocessor files are missing (processor_config.json with these parts,
     * preprocessor_config.json, video_preprocessor_config.json), and which sizes, means and
     * deviations were assumed; transformers refuses such a folder. For a GGUF file: that means and
     * deviations look wrong, and which would be right. Each is "" if there is nothing to tell, and
     * printable UTF-8. Both belong to the model. */
    const char *note, *warning;
    int64_t stored_matrices; /* how many are kept quantised, by qv_model_options.weights */
    int device;              /* of the model's context: qv_context_options.device */
    uint64_t reserved[3];
} qv_model_info;

/*
 * Loads the vision tower of a checkpoint, which `dir` names in one of two forms.
 * - A Hugging Face checkpoint folder: config.json, preprocessor files, and model.safetensors or an
 *   index with shards. Other parts of the model are ignored. Tensors are f32, f16 or bf16, and have
 *   names with or without "model.". The patch embedding may be 5D [O,C,T,P,P], 2D [O,C*T*P*P] (also
 *   named linear_proj) or channels-last [O,T,P,P,C], which all give the same bits.
 * - A GGUF file as llama.cpp's converter writes it ("mmproj"), or a folder with one and no
 *   safetensors. Tensors are F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K or Q6_K, and
 *   are widened as they are read.
 * Returns QV_EIO; QV_EFORMAT, naming file, field and value; QV_EUNSUPPORTED for a family that is
 * not supported; QV_ENOMEM. While loading it takes at most the packed weights and 64 MiB.
 */
QV_API qv_status qv_model_load(qv_context *ctx, const char *dir, const qv_model_options *options,
                               qv_model **out, qv_error *err);
QV_API void qv_model_free(qv_model **model);
QV_API void qv_model_get_info(const qv_model *model, qv_model_info *out);
QV_API qv_context *qv_model_context(const qv_model *model); /* the context that it was loaded on */

/* ---- items: clips and images ----------------------------------------------------------------- */

typedef enum qv_input {
    QV_INPUT_FRAMES = 0, /* bytes, RGB, resized already */
    QV_INPUT_PATCHES,    /* float32 rows, which are transformers' pixel_values */
    /* the same rows in bf16, as transformers' models give them to their towers */
    QV_INPUT_PATCHES_BF16,
    QV_INPUT_MAX = 0x7fff
} qv_input;

/* A clip or an image, or a piece of one: whole frame pairs with one grid. */
typedef struct qv_item {
    /* QV_INPUT_FRAMES: uint8 [n_frames, patch_size*grid_h, patch_size*grid_w, 3].
     * QV_INPUT_PATCHES: float32 [t*grid_h*grid_w, row_dim]; QV_INPUT_PATCHES_BF16: bf16 of that
     * shape. It is read before the call returns. */
    const void *data;
    /* frame pairs t; patch rows and columns, which are multiples of merge_size */
    int64_t grid_thw[3];
    /* the number of frames in data. 0 means 2*t for a clip and 1 for an image. If there are
     * 2*t - 1, the last one is paired with itself. */
    int64_t n_frames;
    /* there is one frame, which is both frames of every pair; it is normalised as images are */
    bool is_image;
    uint64_t reserved[2];
} qv_item;

/* ---- capacity: what a chunk holds, and what an item takes of it ------------------------------ */

/* For a chunk, a capacity says how much it holds at most; for an item, or several, how much they
 * take. */
typedef struct qv_capacity {
    int64_t patches;
    int64_t segments;     /* frame pairs and images */
    int64_t segment_rows; /* patches that each segment has exactly; 0: any number */
    /* attention windows, including smaller ones at the edges of a frame pair; 0 if the model has
     * none (only Qwen2.5's towers have) */
    int64_t windows;
} qv_capacity;

/* ---- plan: a model at one capacity, and a stream --------------------------------------------- */

/* Called with every layer's output while encoding, for verification; it is slow. `name` is as in
 * checkpoints ("patch_embed", "blocks.0", "merger", "deepstack_merger_list.0"). rows[n_rows,
 * n_cols] are f32 and valid during the call. Rows beyond a chunk's items are left out. */
typedef void (*qv_layer_hook)(void *user, const char *name, const float *rows, int64_t n_rows,
                              int64_t n_cols);

/* A plan does not depend on grids: any mix of items that fits can be one push. */
typedef struct qv_plan_options {
    /* the chunk's. patches is rounded up to a bucket; 0: the device's own size. If segments or
     * windows is 0, it follows from patches. With segment_rows a chunk takes only frame pairs of
     * that size, which is faster on some devices. */
    qv_capacity capacity;
    /* Not zeros, and capacity zeros: the capacity that suits an item of this grid encoded by
     * itself, which is the smallest bucket that holds it. A clip larger than a chunk gets chunks
     * of whole frame pairs, for pairs of its size alone (segment_rows) if that gives the bits of
     * packed chunks. An image larger than a chunk gets its own size. */
    int64_t grid_thw[3];
    qv_input input;
    qv_dtype output; /* dtype of the tokens: QV_F32 (default) or QV_BF16 */
    qv_layer_hook hook;
    void *hook_user;
    /* For qv_encode alone, which calls it before every chunk but the first. If it returns true,
     * the call ends with QV_ESTATE, as soon as the chunks under way are done. */
    bool (*stop)(void *user);
    void *stop_user;
    uint64_t reserved[5];
} qv_plan_options;

typedef struct qv_plan_info {
    qv_capacity capacity; /* the capacity of a chunk */
    int64_t tokens;       /* the most tokens of a chunk: its patches / merge_size^2 */
    /* how many chunks may be pushed before the first of them is pulled, over all plans of a
     * model: 1, or 2 if copies overlap with work */
    int64_t chunks_ahead;
    size_t arena_bytes;  /* all scratch and activations, which a model's plans share */
    size_t weight_bytes; /* bytes of the weights, which all plans share */
    /* of a full chunk with as many segments as it may have. flops: a multiply-add counts two;
     * bytes: the operands of each operation */
    double flops, bytes;
    uint64_t reserved[8];
} qv_plan_info;

/* Says where tokens go; the caller owns all memory. */
typedef struct qv_tokens {
    void *tokens;                      /* [n, out_hidden] in the plan's output dtype */
    void *deepstack[QV_MAX_DEEPSTACK]; /* each [n, out_hidden]; NULL: not wanted */
    int64_t capacity;                  /* how many rows each array can take */
    int64_t n;                         /* set to the number of rows written */
} qv_tokens;

/* Returns QV_EINVAL, naming the field, for options that are not valid. */
QV_API qv_status qv_plan_create(qv_model *model, const qv_plan_options *options, qv_plan **out,
                                qv_error *err);
/* The model keeps freed plans, so that a capacity used before is ready at once. qv_model_free
 * frees them. */
QV_API void qv_plan_free(qv_plan **plan);
QV_API void qv_plan_get_info(const qv_plan *plan, qv_plan_info *out);

/*
 * Pushes the next chunk: n items that fit. Each item's tokens have the same bits whatever lies
 * beside it, in whatever order, and however full the chunk is. Data is read before the call returns
 * (see qv_context_options.stream for the device's memory). Returns QV_EINVAL, naming item and
 * value, for an item that is not valid or does not fit; QV_ESTATE if chunks_ahead chunks have been
 * pushed and not pulled. After a failure nothing has been pushed.
 */
QV_API qv_status qv_plan_push(qv_plan *plan, const qv_item *items, size_t n, qv_error *err);

/* Waits for the oldest chunk that was pushed and takes its tokens: those of all items in their
 * order, t * grid_h * grid_w / merge_size^2 for each. Returns QV_ESTATE if there is none,
 * QV_EINVAL if `capacity` is too small; then nothing is lost. */
QV_API qv_status qv_plan_pull(qv_plan *plan, qv_tokens *out, qv_error *err);

/*
 * Encodes items in one call: clips and images of any sizes. Tokens come in the items' order.
 * - One item alone gets the capacity that suits it (qv_plan_options.grid_thw).
 * - The frame pairs of several items are packed, as in a job, into chunks of `options`' capacity;
 *   pairs that do not fit it go into chunks that suit them.
 * - If `options` is NULL or gives no capacity, chunks have the device's own size; or, if everything
 *   fits into one chunk, the smallest bucket that holds it, if that gives the same bits.
 * From `options` the output dtype, the hook and `stop` are taken as well.
 */
QV_API qv_status qv_encode(qv_model *model, qv_input input, const qv_item *items, size_t n_items,
                           const qv_plan_options *options, qv_tokens *out, qv_error *err);

/* ---- feeder: frame pairs in, full chunks out ------------------------------------------------- */

/* How a model's frame pairs are packed into chunks. */
typedef struct qv_packing {
    int64_t rows;     /* patches of the chunks that most frame pairs go into */
    const char *rule; /* how chunks are filled; on some devices another rule gives other bits */
    /* the most tokens of a chunk of frame pairs of one item alone, unless one pair has more */
    int64_t alone_tokens;
} qv_packing;

/* Returns how the model's frame pairs are packed, if chunks of so many patches were asked for (0:
 * of the device's own size). It is part of what tokens' bits depend on, so caches record it. */
QV_API qv_packing qv_model_packing(const qv_model *model, int64_t chunk_rows);

/*
 * A feeder fills the chunks of one or more models with the frame pairs of many items, and keeps
 * each device busy. It makes the plans, and decides which pairs share a chunk. An item's frame
 * pairs go in order and through one device; a long item lies in several chunks. The capacity that
 * an item's pairs are computed in follows from the size of its frames and the feeder's options
 * alone.
 *
 * Threads. The caller has one lock. Any thread calls qv_feeder_add, _put, _ready and _drop while
 * it holds the lock. For each device one thread calls qv_feeder_ready, and qv_feeder_push and
 * _pull without the lock. With one thread no lock is needed.
 */
typedef struct qv_feeder qv_feeder;

typedef struct qv_feeder_options {
    qv_dtype output;    /* dtype of the tokens: QV_F32 (default) or QV_BF16 */
    int64_t chunk_rows; /* patches in a chunk; 0: the first device's own size */
    bool alone;         /* items share no chunk: each has the capacity that suits it by itself */
    /* Where plans are slow to make, those of smaller chunks are made at once as well, so that no
     * later item waits for one */
    bool warm_up;
    uint64_t reserved[8];
} qv_feeder_options;

/* An item on its way through a feeder, which owns it and writes its fields. */
typedef struct qv_feed {
    void *user;   /* the caller's */
    int64_t step; /* how many frame pairs each put adds; the last one adds those that are left */
    bool full;    /* two chunks' worth of its frame pairs wait, so more would gain nothing */
    int device;   /* the device that its frame pairs go through; -1: none of them has gone yet */
} qv_feed;

/* Consecutive frame pairs of an item, which one put has added. */
typedef struct qv_feeder_piece {
    const qv_feed *feed; /* the item; valid while it is not dropped */
    void *user;          /* as given to the put */
    qv_item item;        /* these frame pairs */
    int64_t first;       /* the number of the first of them in the item */
    bool ends, last;     /* what the put has added ends with it; the item ends with it */
} qv_feeder_piece;

/* The most pieces of a chunk, and the most that are looked at to fill it. */
#define QV_FEEDER_PIECES 256

/* A chunk, from qv_feeder_ready until the next qv_feeder_ready after it was pulled. Its tokens are
 * those of its pieces in their order. */
typedef struct qv_feeder_chunk {
    const qv_feeder_piece *pieces;
    size_t n;
    int64_t rows; /* patches of the pieces together */
    bool is_rest; /* it takes all frame pairs that waited for such a chunk */
    bool refused; /* qv_feeder_push failed because no plan can be made for the chunk */
    /* set by qv_feeder_push: the patches and the tokens that the chunk has room for */
    int64_t capacity_rows, capacity_tokens;
} qv_feeder_chunk;

/* Opens a feeder for models of one tower, each on a device of its own. Makes the plan that most
 * frame pairs are packed in, for each. Returns QV_EINVAL, QV_ENOMEM, and what qv_plan_create
 * returns. From open to close only the feeder may use the models' contexts. */
QV_API qv_status qv_feeder_open(qv_model *const *models, size_t n_models,
                                const qv_feeder_options *options, qv_feeder **out, qv_error *err);

/* Announces an item, and decides what its frame pairs are computed in. With item->data NULL the
 * data come with each put, as of a clip that is being decoded. Returns QV_EINVAL for an item that
 * is not valid, with a text that begins with `name` and names field, value and what would be
 * right. */
QV_API qv_status qv_feeder_add(qv_feeder *feeder, qv_input input, const qv_item *item,
                               const char *name, void *user, qv_feed **out, qv_error *err);

/* Puts the next frame pairs of an item: as many as feed->step says, or those that are left. `data`
 * is theirs, or NULL if item->data was given; it must stay valid until they are pushed or dropped.
 * Returns QV_EFULL if QV_FEEDER_PIECES puts wait for the same chunks, QV_ENOMEM, or QV_EINVAL if
 * nothing is left of the item. */
QV_API qv_status qv_feeder_put(qv_feeder *feeder, qv_feed *feed, const void *data, void *user,
                               qv_error *err);

/* Chooses the device's next chunk: as many of the oldest pairs as fit, then those that leave least
 * of it empty. qv_feeder_push must follow. now_s is the time on any clock, in seconds. `more`: more
 * pairs are on their way, and can be put before these have gone. Then these wait for a full chunk
 * while the device works, and after that for as long as a full chunk takes it. Otherwise they go at
 * once. Returns NULL if no chunk may go yet, or if so many are under way that one must be pulled
 * first; *wait_s is lowered to the seconds after which to ask again. */
QV_API const qv_feeder_chunk *qv_feeder_ready(qv_feeder *feeder, int device, double now_s,
                                              bool more, double *wait_s);

/* Pushes the chunk that qv_feeder_ready has chosen, and perhaps makes a plan for chunks to come
 * while the device computes. Returns what qv_plan_create and qv_plan_push return. If the chunk is
 * `refused`, only its own items have failed; after any other failure the device is lost: its items
 * must be dropped, and it must not be used again. */
QV_API qv_status qv_feeder_push(qv_feeder *feeder, int device, qv_error *err);

/* Waits for the device's oldest chunk and takes its tokens, as qv_plan_pull does. */
QV_API qv_status qv_feeder_pull(qv_feeder *feeder, int device, qv_tokens *out, qv_error *err);

/* Takes out a piece of the item that waits, and returns true; or frees the feed if none waits, and
 * returns false. Chunks that have been chosen are not changed. So an item that fails, or is done,
 * is dropped until this returns false. */
QV_API bool qv_feeder_drop(qv_feeder *feeder, qv_feed *feed, qv_feeder_piece *piece);

/* Frees the feeder, all feeds and plans. Waits for what is under way. */
QV_API void qv_feeder_close(qv_feeder **feeder);

#ifdef __cplusplus
}
#endif
#endif
