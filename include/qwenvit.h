/* SPDX-License-Identifier: MIT */
/*
 * qwenvit: the Qwen-VL vision tower. Frame pairs in, vision tokens out.
 *
 * Three lifetimes. A context is a device. A model is weights on it. A plan is one model at one
 * capacity: everything that allocates, searches, compiles or can fail happens in making the plan;
 * encoding with it, clips and images of any size that fit, allocates nothing.
 *
 * Conventions
 *   - All arrays are row-major and contiguous; shapes stand in brackets: tokens[n, out].
 *   - A frame pair is `temporal_patch_size` (2) consecutive frames; attention never crosses it: its
 *     patches are a segment.
 *   - grid_thw: frame pairs, patch rows, patch columns. One pair gives grid_h * grid_w patches
 *     and grid_h * grid_w / merge^2 tokens.
 *   - Options structs: a field that is zero takes its default, a NULL pointer is all defaults;
 *     `reserved` must be zero. In structs that the library fills, `reserved` is zero until a later
 *     version gives it a meaning.
 *   - Every call that can fail returns a qv_status and, if `err` is not NULL, leaves a text there.
 *     A failed call leaves its out-parameters untouched.
 *   - Whoever frees sets the caller's pointer to NULL and accepts NULL.
 *   - Frames, patches and tokens may lie in the device's memory (a CUDA context takes pointers of
 *     cudaMalloc on its device). Weights and options are on the host.
 *
 * Threads. Different contexts may be used by different threads at the same time, and so may
 * qv_status_name() and qv_version(). One context and everything made from it (its models, their
 * plans) is used by one thread at a time; which thread may change. A qv_error belongs to its
 * caller. Models may be freed only after their plans, a context only after its models.
 * qv_host_alloc() and qv_host_free() are called by any thread, also while another uses the context.
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

#define QV_VERSION "0.3.0" /* of what is released */
/* Of the public headers, and of the shared libraries. MAJOR is raised when a program
 * built against an older header must be compiled or written anew, and is what the libraries are
 * loaded by (libqwenvit.so.MAJOR); MINOR when something is added, a `reserved` field put to use. */
#define QV_API_VERSION_MAJOR 2
#define QV_API_VERSION_MINOR 0
#define QV_MAX_DEEPSTACK 8
#define QV_REASON_BYTES 192 /* of a sentence about a choice */

/* One list for the enum, the names and the texts. */
#define QV_STATUS_LIST(X)                                                                          \
    X(OK, "done")                                                                                  \
    X(EINVAL, "invalid argument")                                                                  \
    X(ENOMEM, "out of memory")                                                                     \
    X(EIO, "file cannot be read or written")                                                       \
    X(EFORMAT, "malformed or inconsistent input file")                                             \
    X(ENODEVICE, "no such backend or device here")                                                 \
    X(EUNSUPPORTED, "valid, but not supported")                                                    \
    X(EBACKEND, "the device or its library failed")                                                \
    X(ESTATE, "call out of order")

typedef enum qv_status {
#define QV_STATUS_ENUM(name, text) QV_##name,
    QV_STATUS_LIST(QV_STATUS_ENUM)
#undef QV_STATUS_ENUM
        QV_STATUS_MAX = 0x7fff
} qv_status;

/* The last failure, in words: what failed, the value found, what would be right. */
typedef struct qv_error {
    qv_status status;
    char text[500];
} qv_error;

/* Number formats. One list for the enum and the names. */
#define QV_DTYPE_LIST(X)                                                                           \
    X(DTYPE_AUTO, "auto") /* bf16 where the device computes in it, else f32 */                     \
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

QV_API const char *qv_version(void);              /* of the library that runs: "0.3.0" */
QV_API const char *qv_status_name(qv_status s);   /* "QV_EFORMAT"; never NULL */
QV_API const char *qv_dtype_name(qv_dtype dtype); /* "bf16"; never NULL */

/* ---- context: a device ---------------------------------------------------------------------- */

typedef struct qv_context_options {
    const char *backend; /* "auto" (NULL), "cpu", "ref", "cuda", "metal" */
    int device;          /* index among that backend's devices */
    int threads;         /* CPU threads; 0: every core this process may use */
    /* Choices that were measured (which lowering a Conv3d takes, which of a library's algorithms an
     * operation), kept in this file and read from it, by device and library versions: the same file
     * gives the same choices and the same bits.
     * NULL: none. A file that is damaged or not ours is ignored (see qv_context_info.warning) and
     * never written to. */
    const char *tune_file;
    bool tune; /* measure what the file does not hold; without a file, remember it here only */
    bool tf32; /* CUDA: GEMMs of f32 may be computed in TF32 (10 bits of mantissa) */
    /* CUDA: a cudaStream_t of the device, on which all work is enqueued; NULL: an own one. Memory
     * of the device that is given as input or output is then read and written in the order of that
     * stream, and no call waits for it. */
    void *stream;
    /* Metal, to find a fault: operations (names as `qwenvit profile` prints them, comma separated,
     * or "all") that run on the backend's simple kernels. NULL: none. */
    const char *naive;
    /* The folder of backends that are libraries of their own (libqwenvit_cuda.so); NULL: beside the
     * library or program that this code is in, or where they are installed. A library is opened
     * once in a process, and stays. */
    const char *backends;
    /* A folder (made with the first file) in which kernels that a library compiled for this device are
     * kept for the next process, by device and library versions: those of cuDNN, which take 0.7 s the
     * first time. NULL: none. A file that is damaged or not ours is ignored (see
     * qv_context_info.warning) and written anew. Needs a build with xxhash. */
    const char *kernel_folder;
    uint64_t reserved[5];
} qv_context_options;

typedef struct qv_context_info {
    const char *backend; /* static text: "cpu" */
    char device[128];    /* what computes, with library versions: "AMD EPYC, oneDNN 3.2.0, AVX2" */
    int threads;         /* 0 where it does not apply */
    qv_dtype dtype;      /* what QV_DTYPE_AUTO means here */
    char dtype_reason[128]; /* why, in words */
    /* About the device, its libraries, the tune file or a kept kernel, so far; "" if all is well. */
    char warning[512];
    char passed_over[512]; /* "auto": backends that it would rather have taken, and why it did not:
                              "cuda: there is no NVIDIA driver here"; "" where there are none */
} qv_context_info;

/* Opens a device. QV_ENODEVICE if the backend is unknown, not built in, or finds no device: there
 * is no silent fallback; only "auto" chooses. */
QV_API qv_status qv_context_open(const qv_context_options *options, qv_context **out,
                                 qv_error *err);
QV_API void qv_context_close(qv_context **ctx);
QV_API void qv_context_get_info(const qv_context *ctx, qv_context_info *out);

/* Memory of the host that this device copies from and to fastest, for frames, patches and tokens:
 * page-locked for CUDA (a copy goes at the link's rate; locking takes 0.4 ms a MB, so of what is given back
 * the context keeps up to four blocks of together 256 MiB, the largest, for later calls), which places
 * it where in a page it likes, aligned for every type; elsewhere it begins at a page. Its contents
 * are undefined. QV_EINVAL for 0 bytes, QV_ENOMEM where there is not so much. */
QV_API qv_status qv_host_alloc(qv_context *ctx, size_t bytes, void **out, qv_error *err);
/* Frees what qv_host_alloc of the same context gave, before the context is closed; NULL is accepted,
 * and the caller's pointer stays as it is. */
QV_API void qv_host_free(qv_context *ctx, void *p);

/* ---- model: weights on a device ------------------------------------------------------------- */

/* Which of transformers' processors makes frames. Images have one rule but for GLM's. */
typedef enum qv_processor {
    QV_PROCESSOR_QWEN3_VL =
        0,                 /* Qwen3VLVideoProcessor: pixels are counted over all frames, T*H*W */
    QV_PROCESSOR_QWEN2_VL, /* Qwen2VLVideoProcessor: pixels of each frame, H*W; an even number of
                                  frames; that of Qwen2.5-VL too */
    QV_PROCESSOR_GLM4V,    /* Glm4vVideoProcessor and, of images, Glm4vImageProcessor: pixels are
                                  counted over all frames, of an image as over the pair that it
                                  becomes; an even number of frames, by fps and max_duration alone */
    QV_PROCESSOR_MAX = 0x7fff
} qv_processor;

/* How clips or images become frames for this model; from the checkpoint's preprocessor files. */
typedef struct qv_preprocess {
    int64_t min_pixels, max_pixels; /* of a clip, counted as its processor does; of an image: H*W */
    double mean[3], std[3];         /* of values in 0..1 */
    double fps;                     /* frames sampled per second (clips) */
    int64_t min_frames, max_frames; /* (clips); 0 where the processor has no such numbers */
    double max_duration; /* seconds (clips): of longer ones fps * max_duration frames, over all of
                            them; 0: the processor has no such number */
    int patch_size, temporal_patch_size, merge_size;
    qv_processor processor;
} qv_preprocess;

/* How matrices that a checkpoint holds quantised in groups (MLX's: 4 or 8 bits) are kept. */
typedef enum qv_weight_kind {
    QV_WEIGHTS_WIDENED = 0, /* in the model's dtype, as all others */
    QV_WEIGHTS_STORED, /* packed as they are stored, and widened whenever they are multiplied by:
                               less memory (0.3 of bf16's with 4 bits), the same tokens to the bit where
                               scales are bf16 or f16, more time. Matrices that cannot be kept so, and all
                               that are not quantised, are widened; qv_model_info counts the others */
    QV_WEIGHTS_MAX = 0x7fff
} qv_weight_kind;

typedef struct qv_model_options {
    qv_dtype dtype; /* of weights and activations: QV_F32 or QV_BF16 */
    bool describe;  /* read and check configuration and tensor headers, load no weights: plans
                       can be made from such a model and asked for their cost, not run */
    /* [3] each, of red, green and blue in 0..1, of images and clips, in place of what the checkpoint says
     * (qv_preprocess.mean and std); NULL: as it says. Read during the call alone. */
    const double *image_mean, *image_std;
    qv_weight_kind weights;
    uint64_t reserved[5];
} qv_model_options;

typedef struct qv_model_info {
    char model_type[64]; /* "qwen3_vl" */
    qv_dtype dtype;
    int64_t depth, hidden, heads, head_dim, intermediate, out_hidden;
    int64_t patch_size, temporal_patch_size, merge_size, in_channels;
    int64_t row_dim; /* values in a patch: channels * temporal * patch^2; 1536 for Qwen3-VL */
    int n_deepstack;
    int64_t deepstack_layers[QV_MAX_DEEPSTACK];
    int64_t n_parameters;
    size_t weight_bytes; /* packed, on the device */
    char digest[40];     /* XXH3-128 of the tower's weights in canonical order, or "" where not
                            loaded or built without xxhash */
    qv_preprocess image, video;
    /* How the patch embedding's Conv3d is run on this device, by every plan, and why; the reason
     * names the GEMM of a chunk of the device's own size. */
    const char *lowering; /* static text: "patchify" */
    char lowering_reason[QV_REASON_BYTES];
    const char *folder; /* that it was loaded from, as that was given; belongs to the model */
    /* Of a GGUF file; both belong to the model. What the file does not say and whence that was taken, a
     * sentence; what it seems to say wrongly of means and deviations, with what would be right. "" where there
     * is nothing to say. */
    const char *note, *warning;
    int64_t stored_matrices; /* that are kept quantised, by qv_model_options.weights */
    uint64_t reserved[4];
} qv_model_info;

/*
 * Loads the vision tower of a Hugging Face checkpoint folder: config.json, preprocessor files,
 * model.safetensors or an index with shards; other parts of the model are ignored. f32, f16 and
 * bf16 tensors; names with and without "model."; patch embedding 5D [O,C,T,P,P], 2D [O,C*T*P*P]
 * (also named linear_proj) or channels-last [O,T,P,P,C]: the same bits for each.
 * Or that of a GGUF file as llama.cpp's converter writes it ("mmproj"): dir is the file, or a folder with one
 * and no safetensors. F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K and Q6_K, which are widened
 * as they are read.
 * QV_EIO, QV_EFORMAT (names file, field and value), QV_EUNSUPPORTED (a family that is not done),
 * QV_ENOMEM. Peak memory while loading is the packed weights plus 64 MiB.
 */
QV_API qv_status qv_model_load(qv_context *ctx, const char *dir, const qv_model_options *options,
                               qv_model **out, qv_error *err);
QV_API void qv_model_free(qv_model **model);
QV_API void qv_model_get_info(const qv_model *model, qv_model_info *out);
QV_API qv_context *qv_model_context(const qv_model *model); /* that it was loaded on */

/* ---- items: clips and images ------------------------------------------------------------------ */

typedef enum qv_input {
    QV_INPUT_FRAMES = 0,   /* bytes, RGB, already resized */
    QV_INPUT_PATCHES,      /* float32 rows: transformers' pixel_values */
    QV_INPUT_PATCHES_BF16, /* the same in bf16, as transformers' models hand them to their towers */
    QV_INPUT_MAX = 0x7fff
} qv_input;

/* A clip or an image, or a piece of one: whole frame pairs of one grid. */
typedef struct qv_item {
    /* QV_INPUT_FRAMES: uint8 [n_frames, patch_size*grid_h, patch_size*grid_w, 3]; QV_INPUT_PATCHES:
     * float32 [t*grid_h*grid_w, row_dim], or bf16. Read before the call returns. */
    const void *data;
    int64_t grid_thw[3]; /* frame pairs t, patch rows and columns (multiples of merge_size) */
    /* Of frames, those in data: 0 takes 2*t for a clip and 1 for an image; an odd last one, 2*t - 1,
     * is paired with itself. */
    int64_t n_frames;
    bool is_image; /* one frame, which every pair is twice; normalised as images are, not clips */
    uint64_t reserved[2];
} qv_item;

/* That it is one, whatever plan takes it: QV_EINVAL naming field, value and what would be right, behind
 * `name`. Reads no data; any thread may call it, while another uses the model. */
QV_API qv_status qv_item_check(const qv_model *model, qv_input input, const qv_item *item,
                               const char *name, qv_error *err);

/* The n frame pairs of an item (or as many as there are) from pair `first` on, as an item, whose data lies
 * in the whole's. An image's pieces all have its one frame. Any thread, as before. */
QV_API qv_item qv_item_piece(const qv_model *model, qv_input input, const qv_item *item,
                             int64_t first, int64_t n);

/* ---- capacity: what a chunk holds, and what an item takes of it ------------------------------- */

/* Of a chunk: the most that it holds. Of an item, or of several: what they take. */
typedef struct qv_capacity {
    int64_t rows;         /* patches */
    int64_t segments;     /* frame pairs and images */
    int64_t segment_rows; /* patches that each segment has, exactly; 0: any number */
    int64_t windows;      /* of attention, smaller ones at the edges of a frame pair counted; 0: the
                             model has none (all but Qwen2.5-VL) */
} qv_capacity;

/* The four numbers of one are those of the other: then plans of both compute alike. */
QV_API bool qv_capacity_equal(const qv_capacity *a, const qv_capacity *b);

/* How many of this size fit into a chunk together, by rows, segments and windows; 0: not even one.
 * segment_rows is not looked at. */
QV_API int64_t qv_capacity_fits(const qv_capacity *chunk, const qv_capacity *size);

/* What an item of this grid takes, which must be one that can be (qv_item_check). Any thread may call this
 * and the functions below up to qv_pack_part, while another uses the model. */
QV_API qv_capacity qv_item_size(const qv_model *model, const int64_t grid_thw[3]);

/* Patches in a chunk into which frame pairs of any size are packed, of which `rows` were asked for: rounded
 * up to a bucket; 0: the device's own size. */
QV_API int64_t qv_model_pack_rows(const qv_model *model, int64_t rows);

/* The rule by which frame pairs are packed, as caches record it: on some devices tokens have other bits by
 * another rule. */
#define QV_PACKING "pairs"

/* The capacity of the chunks that an item's frame pairs are packed into, where chunks of `rows` patches were
 * asked for (0: of the device's own size): a function of grid_h and grid_w alone. It is that of all pairs,
 * but for those that do not fit it, and, on devices where another number of rows gives other bits, those that
 * would leave more than a tenth of it empty: their capacities are of a short list. */
QV_API qv_capacity qv_pack_capacity(const qv_model *model, int64_t rows, const int64_t grid_thw[3]);

/* Most pieces in a chunk, and most that are looked at to fill it. Images of 64 sizes fill 0.76 of a chunk of
 * 6144 rows in the order given, 0.97 if the best of 16 are taken; but 24576 rows hold a hundred small ones. */
#define QV_PACK_ITEMS 256

/* Frame pairs of an item that wait for a chunk. */
typedef struct qv_pack_run {
    qv_capacity pair; /* what one takes */
    int64_t pairs;    /* from 1 up */
} qv_pack_run;

/*
 * Which frame pairs go into the next chunk. Of waiting[n], oldest first, a pair of each of which fits by
 * itself: as many of the oldest as fit, so that none waits for ever, then those of the others that leave least
 * empty (or, where these are more segments than there is room for, the largest that still fit), the older of
 * two alike. Looks at the first QV_PACK_ITEMS. How many go of each is left in
 * taken[QV_PACK_ITEMS], 0 of those that wait on; returns of how many some go.
 */
QV_API size_t qv_pack_choose(const qv_capacity *chunk, const qv_pack_run *waiting, size_t n,
                             int64_t taken[QV_PACK_ITEMS]);

/* Where the chunk that would take `used` is not full: the smallest capacity that holds it and gives the
 * same bits, or, where the device promises none, any. Where plans are slow to make there are few such:
 * halves, quarters and so on of `chunk`, and, if `more` waits that did not fit, what suits its size; `chunk`
 * where nine tenths of it are used, or no such capacity is smaller. Of pairs that are all of one size
 * (used->segment_rows, else 0), as in so many chunks before (`repeats`), `used` itself, which is dense, where
 * that gives the same bits and they are enough to be worth a plan. */
QV_API qv_capacity qv_pack_part(const qv_model *model, const qv_capacity *chunk,
                                const qv_capacity *used, bool more, int64_t repeats);

/* ---- plan: a model at one capacity, and a stream --------------------------------------------- */

/* Sees every layer's output while encoding (slow; for verification): `name` as in checkpoints
 * ("patch_embed", "blocks.0", "merger", "deepstack_merger_list.0"), rows[n_rows, n_cols] in f32,
 * valid during the call. Rows beyond a chunk's items are left out. */
typedef void (*qv_layer_hook)(void *user, const char *name, const float *rows, int64_t n_rows,
                              int64_t n_cols);

/* A plan knows no grids: any mix of items that fits is one push. */
typedef struct qv_plan_options {
    /* Of a chunk. rows are rounded up to a bucket; 0: the device's own size. segments, windows 0: by
     * rows. With segment_rows a chunk is made of such frame pairs alone: faster on some devices. */
    qv_capacity capacity;
    qv_input input;
    qv_dtype output; /* of tokens: QV_F32 (default) or QV_BF16 */
    qv_layer_hook hook;
    void *hook_user;
    /* Of qv_encode alone, which asks it before every chunk but the first: true ends the call with
     * QV_ESTATE, once the chunks under way are done. */
    bool (*stop)(void *user);
    void *stop_user;
    uint64_t reserved[5];
} qv_plan_options;

typedef struct qv_plan_info {
    qv_capacity capacity; /* of a chunk */
    int64_t tokens;       /* most tokens of a chunk: rows / merge_size^2 */
    int64_t chunks_ahead; /* chunks that may be pushed before the first of them is pulled: 1, or
                             2 where copies overlap with work; of all plans of a model together */
    size_t arena_bytes;   /* all scratch and activations; shared by a model's plans */
    size_t weight_bytes;  /* shared by all plans of the model */
    double flops, bytes;  /* of a full chunk, of as many segments as there may be: multiply-adds
                             counted twice; traffic of each operation's operands */
    uint64_t reserved[8];
} qv_plan_info;

/* Where tokens go; the caller owns all memory. */
typedef struct qv_tokens {
    void *tokens;                      /* [n, out_hidden], plan's output dtype */
    void *deepstack[QV_MAX_DEEPSTACK]; /* each [n, out_hidden], or NULL where not wanted */
    int64_t capacity;                  /* rows that each array can take */
    int64_t n;                         /* out: rows written */
} qv_tokens;

/* The capacity that suits an item which is encoded by itself: the smallest bucket that holds it; of a
 * clip larger than a chunk, chunks of whole frame pairs, of no other size (segment_rows) where that gives
 * the bits of packs; of an image larger than that, its own.
 * Sets `capacity`. Reads what never changes: any thread may call it, while another uses the model.
 * QV_EINVAL for a grid that cannot be. */
QV_API qv_status qv_plan_options_for(const qv_model *model, const int64_t grid_thw[3],
                                     qv_plan_options *options, qv_error *err);

QV_API qv_status qv_plan_create(qv_model *model, const qv_plan_options *options, qv_plan **out,
                                qv_error *err);
/* The model keeps freed plans, so that a capacity seen before is ready at once; qv_model_free frees
 * them. */
QV_API void qv_plan_free(qv_plan **plan);
QV_API void qv_plan_get_info(const qv_plan *plan, qv_plan_info *out);

/*
 * Puts the next chunk in: n items, as many as fit. Each item's tokens are the same bits whatever lies
 * beside it, in which order, and however full the chunk is. Data is read before the return (see
 * qv_context_options.stream for memory of the device). QV_EINVAL naming item and value, for what is
 * no item or does not fit; QV_ESTATE if chunks_ahead chunks have been pushed and not pulled. After a
 * failure nothing has been pushed.
 */
QV_API qv_status qv_plan_push(qv_plan *plan, const qv_item *items, size_t n, qv_error *err);

/* Waits for the oldest chunk that was pushed and takes its tokens: those of all items in their order,
 * t * grid_h * grid_w / merge_size^2 of each. QV_ESTATE if there is none, QV_EINVAL if `capacity` is
 * too small (nothing is lost). */
QV_API qv_status qv_plan_pull(qv_plan *plan, qv_tokens *out, qv_error *err);

/*
 * The short case: items at once, of any sizes, clips and images; tokens in the same order. One item
 * goes to the capacity of qv_plan_options_for; the frame pairs of several are packed, as a job packs them,
 * into chunks of `options`' capacity, those that do not fit it into chunks that suit them (qv_pack_capacity).
 * Where `options` is NULL or says none it is the device's own, or of what fits into one chunk the smallest
 * bucket that holds all, if that has the same bits. Of `options` also the output dtype, the hook and stop
 * are taken.
 */
QV_API qv_status qv_encode(qv_model *model, qv_input input, const qv_item *items, size_t n_items,
                           const qv_plan_options *options, qv_tokens *out, qv_error *err);

#ifdef __cplusplus
}
#endif
#endif
