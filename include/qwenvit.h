/* SPDX-License-Identifier: MIT */
/*
 * qwenvit: clips and images go in, the vision tokens of Qwen-VL models come out.
 *
 * Ten calls are enough for many programs (qwenvit_clips.h declares the qv_clip_ calls):
 *     qv_context_open      opens a device: the best available, or a named one
 *     qv_model_load        loads the weights of a checkpoint's vision tower onto it
 *     qv_model_get_info    returns the tower's sizes, and its rules for images and clips
 *     qv_clip_open         opens a clip or an image, and selects the frames to read
 *     qv_clip_get_info     returns the number and size of these frames, and the clip's grid
 *     qv_clip_read         decodes and resizes the frames
 *     qv_encode            encodes the frames
 *     qv_clip_close, qv_model_free, qv_context_close
 *
 * This program encodes a clip into out.tokens and prints the number of tokens.
 *
 *     #include <qwenvit_clips.h>
 *     #include <stdio.h>
 *     #include <stdlib.h>
 *
 *     int main(int argc, char **argv)
 *     {
 *         qv_context *ctx = NULL;
 *         qv_model *model = NULL;
 *         qv_clip *clip = NULL;
 *         qv_model_info tower;
 *         qv_outcome c;
 *         qv_error err = { .text = "usage: tokens MODEL CLIP" };
 *         if (argc != 3 || qv_context_open(NULL, &ctx, &err) ||
 *             qv_model_load(ctx, argv[1], NULL, &model, &err))
 *             return puts(err.text), 1;
 *         qv_model_get_info(model, &tower);
 *         if (qv_clip_open(argv[2], &tower.image, &tower.video, NULL, &clip, &err))
 *             return puts(err.text), 1;
 *         qv_clip_get_info(clip, &c);
 *         const int64_t *g = c.grid_thw, area = tower.merge_size * tower.merge_size;
 *         qv_tokens out = { .capacity = g[0] * g[1] * g[2] / area };
 *         out.tokens = malloc((size_t)(out.capacity * tower.out_hidden) * sizeof(float));
 *         uint8_t *frames = malloc((size_t)(c.n_frames * c.height * c.width * 3));
 *         qv_item item = { frames, { g[0], g[1], g[2] }, c.n_frames, c.is_image };
 *         if (qv_clip_read(clip, frames, c.n_frames, &item.n_frames, NULL, &err) ||
 *             qv_encode(model, QV_INPUT_FRAMES, &item, 1, NULL, &out, &err))
 *             return puts(err.text), 1;
 *         printf("%lld tokens of %lld\n", (long long)out.n, (long long)tower.out_hidden);
 *         free(frames);
 *         free(out.tokens);
 *         qv_clip_close(&clip);
 *         qv_model_free(&model);
 *         qv_context_close(&ctx);
 *     }
 *
 * There are three ways to get tokens:
 *   1. qv_encode() returns the tokens of clips and images in memory, in one call.
 *   2. A job (qwenvit_clips.h) encodes many clips: it decodes, computes and writes at the same
 *      time, and packs the frames of several clips into full chunks. A fill, qv_cache_fill_open(),
 *      is a job that writes a folder of tokens, which qwenvit_cache.h reads.
 *   3. A plan computes one chunk per call, and the caller owns the memory and the stream:
 *      qv_plan_push() and qv_plan_pull(). docs/c.md shows a program that does this while decoding.
 *
 * Four terms. A context is a device. A model is weights on a device. A chunk is a batch of frame
 * pairs that the device computes at once. A plan is a model prepared for chunks of one capacity;
 * creating it performs every allocation and everything that can fail.
 *
 * Conventions
 *   - All arrays are row-major and contiguous; shapes are in brackets: tokens[n, out].
 *   - A frame pair is `temporal_patch_size` (2) consecutive frames. Attention stays within a pair,
 *     so the patches of a pair form one segment.
 *   - grid_thw is the number of frame pairs, of patch rows and of patch columns: t, grid_h and
 *     grid_w. A pair has grid_h * grid_w patches, which become grid_h * grid_w / merge_size^2
 *     tokens.
 *   - A bucket is one of the sizes that capacities are rounded up to.
 *   - In options structs, zero selects a field's default; NULL instead of a struct selects all
 *     defaults.
 *   - Other pointers must not be NULL unless their description allows it. If one is, the function
 *     returns QV_EINVAL and the message names the argument. A function that does not return a
 *     status then returns an empty value ("", 0, false, zeros) and changes nothing.
 *   - Every call that can fail returns a qv_status and, if `err` is not NULL, writes a message to
 *     it. A failed call leaves its other out-parameters untouched.
 *   - A function that frees (X_free, X_close) sets the caller's pointer to NULL and accepts NULL.
 *   - X_get_info fills the caller's struct. Strings in it belong to the object and are valid until
 *     it is freed.
 *   - The caller keeps ownership of everything it passes in.
 *   - Frames, patches and tokens may be in the device's memory (for a CUDA context, memory from
 *     cudaMalloc on its device). Weights and options are on the host.
 *
 * Threads. Any thread may call qv_status_name() and qv_version() at any time. Different threads may
 * use different contexts at the same time. A context and everything made from it (its models, their
 * plans) may be used by any thread, but by only one at a time. qv_encode() and jobs are
 * exceptions: any number of threads may use them on one context at once, and they take turns on its
 * device, chunk by chunk. A model must be freed after its plans and jobs, a context after its
 * models. Any thread may call qv_host_alloc() and qv_host_free(), even while another thread uses
 * the context. Calls do not change the thread's current CUDA device and context.
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

#define QV_VERSION "0.5.0" /* the version of the release */
/* The version of the public headers and the shared libraries. MAJOR is raised when programs must be
 * recompiled or changed; it is part of the library names (libqwenvit.so.MAJOR). MINOR is raised for
 * additions that do not affect existing programs. Before 1.0, structs have no reserved fields. */
#define QV_API_VERSION_MAJOR 4
#define QV_API_VERSION_MINOR 0
#define QV_MAX_DEEPSTACK 8
#define QV_REASON_BYTES 192 /* size of a string that gives the reason for a choice */

/* This list generates the enum, the names and the descriptions. */
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

/* An error. The text states what failed, the value found and the value expected. */
typedef struct qv_error {
    qv_status status;
    char text[500];
} qv_error;

/* Number formats. This list generates the enum and the names. */
#define QV_DTYPE_LIST(X)                                                                           \
    X(DTYPE_AUTO, "auto") /* bf16 if the device supports it, else f32 */                           \
    X(F32, "f32")                                                                                  \
    X(BF16, "bf16") /* bf16 storage, f32 accumulation, norms, softmax and rotary angles */         \
    X(U8, "u8")                                                                                    \
    X(F16, "f16") /* storage only: in checkpoints and caches */                                    \
    X(I32, "i32") /* only for indices passed between operations */

typedef enum qv_dtype {
#define QV_DTYPE_ENUM(name, text) QV_##name,
    QV_DTYPE_LIST(QV_DTYPE_ENUM)
#undef QV_DTYPE_ENUM
        QV_DTYPE_MAX = 0x7fff
} qv_dtype;

typedef struct qv_context qv_context;
typedef struct qv_model qv_model;
typedef struct qv_plan qv_plan;

QV_API const char *qv_version(void);              /* QV_VERSION of the loaded library */
QV_API const char *qv_status_name(qv_status s);   /* "QV_EFORMAT"; never NULL */
QV_API const char *qv_dtype_name(qv_dtype dtype); /* "bf16"; never NULL */

/* ---- context: a device ---------------------------------------------------------------------- */

typedef struct qv_context_options {
    /* "auto" (or NULL), "cpu", "ref", "cuda" or "metal". An index may follow, as in "cuda:1". */
    const char *backend;
    int device;  /* the device's index in its backend; 0 if the name has an index */
    int threads; /* CPU threads; 0: one per core that this process may use */
    bool tf32;   /* CUDA: f32 GEMMs may run in TF32 (10 bits of mantissa) */
    /* CUDA: the cudaStream_t on which all work is enqueued. NULL: the context creates one. On the
     * caller's stream, arrays in device memory are read and written in stream order, and no call
     * waits for that work. */
    void *stream;
    /* Metal, for debugging: a comma-separated list of operations to run on the backend's simple
     * kernels, named as `qwenvit profile` prints them, or "all". NULL: none. */
    const char *naive;
    /* The folder of the backend libraries, such as libqwenvit_cuda.so. NULL: the folder of the
     * library or program that contains this code or, if they are not there, the folder in which
     * they were installed. A library is loaded once per process and stays loaded. */
    const char *backends;
    /* A folder in which compiled kernels are kept for later processes, by device and library
     * versions (cuDNN's take 0.7 s to compile). It is created with its first file. A file that is
     * damaged or was not written by qwenvit is ignored (see qv_context_info.warning) and rewritten.
     * NULL: kernels are not kept. */
    const char *kernel_folder;
} qv_context_options;

typedef struct qv_context_info {
    const char *backend; /* static text, such as "cpu" */
    char device[128];    /* the device with its library versions: "AMD EPYC, oneDNN 3.2.0, AVX2" */
    int threads;         /* 0 if the backend starts no threads */
    qv_dtype dtype;      /* what QV_DTYPE_AUTO means on this device */
    char dtype_reason[128]; /* why, as a sentence */
    /* Problems so far with the device, its libraries or a kept kernel; "" if there are none. */
    char warning[512];
    /* The backends that "auto" would have preferred, each with the reason why it could not be used:
     * "cuda: there is no NVIDIA driver here"; "" if there are none. */
    char passed_over[512];
} qv_context_info;

/* Opens a device. Only "auto" chooses a backend; there is no fallback for a named backend. Returns
 * QV_ENODEVICE if the backend is unknown, not built in, or finds no device. */
QV_API qv_status qv_context_open(const qv_context_options *options, qv_context **out,
                                 qv_error *err);
QV_API void qv_context_close(qv_context **ctx);
QV_API void qv_context_get_info(const qv_context *ctx, qv_context_info *out);

/* ---- model: weights on a device ------------------------------------------------------------- */

/* The transformers processor whose rules clips follow. Images follow Qwen2VLImageProcessor, or
 * Glm4vImageProcessor with QV_PROCESSOR_GLM4V. */
typedef enum qv_processor {
    /* Qwen3VLVideoProcessor. The pixels of a clip are counted over all frames: T*H*W. */
    QV_PROCESSOR_QWEN3_VL = 0,
    /* Qwen2VLVideoProcessor, also for Qwen2.5-VL. Pixels are counted per frame: H*W. The number of
     * frames is even. */
    QV_PROCESSOR_QWEN2_VL,
    /* Glm4vVideoProcessor. Pixels are counted over all frames, and an image counts as a frame pair.
     * The number of frames is even, and depends only on the clip, fps and max_duration. */
    QV_PROCESSOR_GLM4V,
    QV_PROCESSOR_MAX = 0x7fff
} qv_processor;

/* How clips or images become frames for a model, from the checkpoint's preprocessor files. */
typedef struct qv_preprocess {
    /* The fewest and most pixels after resizing: of a clip as its processor counts them
     * (qv_processor), of an image H*W. */
    int64_t min_pixels, max_pixels;
    double mean[3], std[3]; /* red, green and blue, of values in 0..1 */
    /* The other members are only for clips, except the sizes of patches. */
    double fps;                     /* frames sampled per second */
    int64_t min_frames, max_frames; /* 0 if the processor has no such limits */
    /* Seconds. A longer clip gets fps * max_duration frames, spread over its length. 0: no
     * limit. */
    double max_duration;
    int patch_size, temporal_patch_size, merge_size;
    qv_processor processor;
} qv_preprocess;

typedef struct qv_model_options {
    qv_dtype dtype; /* of weights and activations: QV_DTYPE_AUTO (default), QV_F32 or QV_BF16 */
    /* Reads and checks only the configuration and the tensor headers. The model's plans then report
     * their cost, but cannot run. */
    bool describe;
    /* [3] each: red, green and blue, of values in 0..1. They replace the checkpoint's mean and std,
     * for images and clips (qv_preprocess). NULL: the checkpoint's. The arrays are only read during
     * the call. */
    const double *image_mean, *image_std;
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
    /* XXH3-128 of the tower's weights in canonical order, widened to f32. Of each tensor it covers
     * the name without the tower's prefix, a zero byte, and the values. "" if the weights are not
     * loaded. */
    char digest[40];
    qv_preprocess image, video;
    /* How every plan runs the patch embedding's Conv3d on this device, and why. The reason names
     * the GEMM for a chunk of the device's default size. */
    const char *lowering; /* static text, such as "patchify" */
    char lowering_reason[QV_REASON_BYTES];
    const char *folder; /* the path it was loaded from, as the caller passed it */
    /* What is missing from a GGUF file, and what was assumed instead; "" if nothing is missing.
     * This string and `warning` are printable UTF-8. */
    const char *note;
    /* Why tokens probably differ from the published checkpoint's; "" if nothing suggests it:
     * - A folder lacks preprocessor files: preprocessor_config.json and
     *   video_preprocessor_config.json, or processor_config.json with the contents of both. The
     *   warning names the missing files, and the sizes, means and deviations that were assumed.
     *   transformers refuses such a folder.
     * - A GGUF file has means or deviations that look wrong. The warning has the right ones.
     * - A checkpoint contains adapters for the tower's tensors, which are not applied. The warning
     *   names one of them. */
    const char *warning;
    int device; /* of the model's context: qv_context_options.device */
    /* Identifies the tower, in caches, jobs and token files: an XXH3-128 of the digest, and of all
     * numbers in config.json and the preprocessor files that tokens or grids depend on, after
     * qv_model_options were applied. Models with the same identity and dtype compute the same
     * tokens, up to the device's rounding. If the weights are not loaded, it is a hash of the
     * numbers alone. */
    const char *identity;
    const char *config; /* the numbers from config.json, as a JSON object, under qwenvit's names */
} qv_model_info;

/*
 * Loads the vision tower of a checkpoint. `dir` is one of
 * - a Hugging Face checkpoint folder: config.json, preprocessor files, and model.safetensors or an
 *   index with shards. Other parts of the model are ignored. Tensors are f32, f16 or bf16, or
 *   quantised by MLX; their names may have any prefix. The patch embedding may be 5D [O,C,T,P,P],
 *   2D [O,C*T*P*P] (also named linear_proj) or channels-last [O,T,P,P,C]; this does not change a
 *   bit of the tokens.
 * - a GGUF file as llama.cpp's converter writes it ("mmproj"), or a folder that contains one and no
 *   safetensors. Tensors are F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K or Q6_K.
 * Loading needs memory for the packed weights and at most 64 MiB more. Returns QV_EIO if a file
 * cannot be read; QV_EFORMAT, with the file, field and value, if one is malformed; QV_EUNSUPPORTED
 * for an unsupported family or quantisation; QV_ENOMEM.
 */
QV_API qv_status qv_model_load(qv_context *ctx, const char *dir, const qv_model_options *options,
                               qv_model **out, qv_error *err);
QV_API void qv_model_free(qv_model **model);
QV_API void qv_model_get_info(const qv_model *model, qv_model_info *out);

/* ---- 1. qv_encode: clips and images in memory, in one call ----------------------------------- */

typedef enum qv_input {
    QV_INPUT_FRAMES = 0, /* RGB bytes, already resized */
    QV_INPUT_PATCHES,    /* float32 rows: transformers' pixel_values */
    /* the same rows in bf16, as transformers' models pass them to their towers */
    QV_INPUT_PATCHES_BF16,
    QV_INPUT_MAX = 0x7fff
} qv_input;

/* A clip or an image, or a piece of one: whole frame pairs with one grid. */
typedef struct qv_item {
    /* QV_INPUT_FRAMES: uint8 [n_frames, patch_size*grid_h, patch_size*grid_w, 3].
     * QV_INPUT_PATCHES: float32 [t*grid_h*grid_w, row_dim]. QV_INPUT_PATCHES_BF16: the same in
     * bf16. The data is read before the call returns. */
    const void *data;
    /* t, grid_h and grid_w. The last two must be multiples of merge_size. */
    int64_t grid_thw[3];
    /* QV_INPUT_FRAMES: the number of frames in data. 0 means 2*t for a clip and 1 for an image. Of
     * 2*t - 1 frames, the last one is paired with itself. Otherwise it must be 0. */
    int64_t n_frames;
    /* The data is one frame, which is both frames of every pair and is normalised as an image. */
    bool is_image;
} qv_item;

/* How much a chunk can hold, or how much items need. */
typedef struct qv_capacity {
    int64_t patches;
    int64_t segments;     /* frame pairs and images */
    int64_t segment_rows; /* the exact number of patches of each segment; 0: any number */
    /* Attention windows, including the smaller ones at a frame's edges. 0 unless the model has
     * windows, as Qwen2.5's towers do. */
    int64_t windows;
} qv_capacity;

/* Called with every layer's output during encoding, for verification. It makes encoding slow.
 * `name` is as in checkpoints ("patch_embed", "blocks.0", "merger", "deepstack_merger_list.0").
 * rows[n_rows, n_cols] are the rows of the chunk's items, in f32. They are valid during the
 * call. */
typedef void (*qv_layer_hook)(void *user, const char *name, const float *rows, int64_t n_rows,
                              int64_t n_cols);

/* Options of qv_encode and of plans. qv_encode ignores `input`, which is one of its arguments. */
typedef struct qv_plan_options {
    /* The capacity of a chunk. `patches` is rounded up to a bucket; if it is 0, the chunk has the
     * device's default size. If `segments` or `windows` is 0, it is derived from `patches`. If
     * `segment_rows` is set, a chunk accepts only frame pairs of that size, which is faster on some
     * devices. */
    qv_capacity capacity;
    /* The grid of a single item. Chunks then have the size of the smallest bucket that holds the
     * item. Ignored if any field of `capacity` is set.
     * A clip that is larger than a chunk is split into chunks of whole frame pairs. These chunks
     * accept only pairs of the clip's size (segment_rows), provided that tokens then have the same
     * bits as in packed chunks. An image that is larger than a chunk gets a chunk of its own
     * size. */
    int64_t grid_thw[3];
    qv_input input;
    qv_dtype output; /* dtype of the tokens: QV_F32 (default) or QV_BF16 */
    /* Also writes the last block's rows, before the merger, to qv_tokens.hidden. GLM's towers,
     * whose merger begins with a Conv2d, do not support it (QV_EUNSUPPORTED). */
    bool hidden;
    qv_layer_hook hook; /* NULL: not called */
    void *hook_user;
    /* Only for qv_encode, which calls it before every chunk except the first. If it returns true,
     * qv_encode returns QV_ESTATE once the chunks in progress are done. NULL: not called. */
    bool (*stop)(void *user);
    void *stop_user;
} qv_plan_options;

/* Where tokens go; the caller owns all memory. */
typedef struct qv_tokens {
    void *tokens;                      /* [n, out_hidden] in the plan's output dtype */
    void *deepstack[QV_MAX_DEEPSTACK]; /* each [n, out_hidden]; NULL: not wanted */
    /* [n * merge_size^2, hidden] in the same dtype; needs qv_plan_options.hidden. There is one row
     * per patch, in the order of pixel_values: merge_size^2 consecutive rows become one token.
     * These are the rows of transformers' last_hidden_state, which for Qwen2.5's towers has them in
     * window order. NULL: not wanted. */
    void *hidden;
    int64_t capacity; /* tokens that each array has room for */
    int64_t n;        /* set to the number of tokens written */
} qv_tokens;

/*
 * Encodes clips and images of any sizes in one call. Tokens are in the order of the items.
 * - A single item gets a chunk sized for it (qv_plan_options.grid_thw).
 * - The frame pairs of several items are packed into chunks of `options`' capacity, as in a job;
 *   a pair that is larger gets a chunk of its own size.
 * - If `options` is NULL or sets no capacity, chunks have the device's default size. If everything
 *   fits into one chunk, the smallest bucket that holds everything is used, unless that would
 *   change the bits of the tokens.
 * Returns the errors of qv_plan_create, qv_plan_push and qv_plan_pull.
 */
QV_API qv_status qv_encode(qv_model *model, qv_input input, const qv_item *items, size_t n_items,
                           const qv_plan_options *options, qv_tokens *out, qv_error *err);

/* ---- 2. a job of many clips: qv_job_open in qwenvit_clips.h ---------------------------------- */

/* ---- 3. a plan: chunk by chunk, in the caller's memory and stream ---------------------------- */

typedef struct qv_plan_info {
    qv_capacity capacity; /* the capacity of a chunk */
    int64_t tokens;       /* the most tokens in a chunk: patches / merge_size^2 */
    /* How many chunks of a model's plans may be pushed before the oldest is pulled: 1, or 2 if
     * copies overlap with computation. */
    int64_t chunks_ahead;
    size_t arena_bytes;  /* all scratch and activations, which a model's plans share */
    size_t weight_bytes; /* bytes of the weights, which all plans share */
    /* The cost of a full chunk with the maximum number of segments. A multiply-add counts as two
     * operations; `bytes` are those of all operands of all operations. */
    double flops, bytes;
} qv_plan_info;

/* Prepares a model for chunks of one capacity. A plan does not depend on grids: any mix of items
 * that fits can be pushed at once. Returns QV_EINVAL, naming the field, for invalid options;
 * QV_ENOMEM; QV_EBACKEND. */
QV_API qv_status qv_plan_create(qv_model *model, const qv_plan_options *options, qv_plan **out,
                                qv_error *err);
/* Returns a plan to its model, which keeps it until qv_model_free: the next plan of the same
 * capacity is then ready at once. */
QV_API void qv_plan_free(qv_plan **plan);
QV_API void qv_plan_get_info(const qv_plan *plan, qv_plan_info *out);

/*
 * Pushes the next chunk: n items that fit. The bits of an item's tokens do not depend on the other
 * items of the chunk, nor on their order. Data is read before the call returns (see
 * qv_context_options.stream for the device's memory). Returns QV_EINVAL, naming item and value, for
 * an item that is invalid or does not fit; QV_ESTATE if chunks_ahead chunks have been pushed and
 * not pulled. After a failure nothing has been pushed.
 */
QV_API qv_status qv_plan_push(qv_plan *plan, const qv_item *items, size_t n, qv_error *err);

/* Waits for the oldest pushed chunk and writes the tokens of its items in order, t * grid_h *
 * grid_w / merge_size^2 per item. Returns QV_ESTATE if no chunk was pushed. Returns QV_EINVAL if
 * out->capacity is too small, or if out->hidden is set for a plan without `hidden`; the chunk can
 * then be pulled again. */
QV_API qv_status qv_plan_pull(qv_plan *plan, qv_tokens *out, qv_error *err);

/* Allocates uninitialised host memory for frames, patches and tokens, of the kind that this device
 * copies fastest. For CUDA it is page-locked, so that copies run at the full speed of the link, and
 * aligned for every type. For other devices it is page-aligned. Locking takes 0.4 ms per MB, so the
 * context keeps the largest freed blocks for later calls: at most four blocks, and 256 MiB in all.
 * Returns QV_EINVAL for 0 bytes, and QV_ENOMEM. */
QV_API qv_status qv_host_alloc(qv_context *ctx, size_t bytes, void **out, qv_error *err);
/* Frees memory from qv_host_alloc of the same context. It must be called before the context is
 * closed. It accepts NULL, and does not change the caller's pointer. */
QV_API void qv_host_free(qv_context *ctx, void *p);

#ifdef __cplusplus
}
#endif
#endif
