/* SPDX-License-Identifier: MIT */
/* What the files of the media library share: the prepared resizer and the frame reader. */
#ifndef QV_MEDIA_MEDIA_H
#define QV_MEDIA_MEDIA_H

#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/pixdesc.h>
#include <stdatomic.h>

#include "../src/error.h"
#include "qwenvit_media.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define QVM_X86 1
#endif

#define QVM_MAX_SIDE 65536 /* of any frame that is resized or written */
#define QVM_MAX_PIXELS (16384 * 16384)
#define QVM_MAX_SAMPLED 1048576 /* frames sampled from one clip */

/* ---- resize.c ------------------------------------------------------------------------------- */

/* One axis, prepared: output i is the sum of weights[i][k] * input[start[i] + k], k < taps. */
typedef struct qvm_axis {
    int in, out;
    int taps;         /* per output, padded with zero weights as the kernel wants it */
    int precision;    /* weights are scaled by 2^precision */
    int32_t *start;   /* [out, and up to 3 copies of the last]; start + taps <= in if in >= taps */
    int16_t *weights; /* [out, taps], or packed: [out / 4 rounded up][taps / 2][4][2] */
} qvm_axis;

#define QVM_ROWS 4 /* source rows that one call resizes */

/* Horizontal: QVM_ROWS rows of RGB, src[r] -> dst[r]; dst rows have 16 spare bytes, src rows
 * have 4. Vertical: n bytes (a multiple of 64) of the weighted sum of `taps` rows, an even number.
 */
typedef struct qvm_resize_ops {
    int multiple; /* of horizontal taps */
    bool packed;  /* horizontal weights */
    void (*across)(const qvm_axis *axis, const uint8_t *const *src, uint8_t *const *dst);
    void (*down)(const uint8_t *const *rows, const int16_t *weights, int taps, int precision,
                 uint8_t *dst, size_t n);
} qvm_resize_ops;

typedef struct qvm_resizer qvm_resizer;

typedef enum qvm_level { QVM_PLAIN, QVM_AVX2, QVM_AVX512, QVM_BEST } qvm_level;

/* Tables and scratch for one pair of sizes, for up to `parts` threads at a time. */
qv_status qvm_resizer_create(int src_h, int src_w, int dst_h, int dst_w, int parts, qvm_level level,
                             qvm_resizer **out, qv_error *err);
void qvm_resizer_free(qvm_resizer **resizer);

/* Output rows y0 .. y1-1 with the scratch of `part`. Allocates nothing. */
void qvm_resizer_run(qvm_resizer *resizer, int part, const uint8_t *src, int64_t src_stride,
                     uint8_t *dst, int y0, int y1);

/* resize_x86.c: takes over what this machine does better for this many horizontal taps. */
void qvm_resize_x86(qvm_resize_ops *ops, qvm_level level, int in, int out, int taps);

/* ---- sampling.c ----------------------------------------------------------------------------- */

int64_t qvm_round_half_even(double x);

/* ---- source.c: a file's frames, in order ----------------------------------------------------- */

typedef struct qvm_source {
    const char *path; /* the caller's; outlives the source */
    int fd;
    int io_errno;            /* of the first read that failed */
    const atomic_bool *stop; /* set from another thread: reads fail and frames end */
    AVIOContext *io;
    AVFormatContext *format;
    AVStream *stream;
    AVCodecContext *codec;
    AVPacket *packet;
    bool draining;
    int64_t errors;        /* packets that were lost, or that the decoder complained about */
    atomic_int complaints; /* errors that the decoder has logged, from any of its threads */
    int heard;
} qvm_source;

/* Keeps FFmpeg from printing, once per process. */
void qvm_quiet(void);

/* Opens a file's first video stream; `threads` as FFmpeg counts them, -1 to open no decoder. */
qv_status qvm_source_open(qvm_source *source, const char *path, int threads,
                          const atomic_bool *stop, qv_error *err);
void qvm_source_close(qvm_source *source);
bool qvm_source_is_picture(const qvm_source *source);

/* The next frame into `frame`; *got is false at the end. Damaged data is skipped and counted. */
qv_status qvm_source_next(qvm_source *source, AVFrame *frame, bool *got, qv_error *err);

/* Frames in the file: the container's number where the packets agree, else decoded ones. */
qv_status qvm_count_frames(const char *path, int threads, const atomic_bool *stop, int64_t *n,
                           qv_error *err);

/* ---- convert.c: frames to upright RGB -------------------------------------------------------- */

typedef struct qvm_turn {
    bool transpose, flip_x, flip_y; /* in this order */
} qvm_turn;

typedef struct qvm_image {
    const uint8_t *rgb;
    int64_t stride;
    int width, height;
} qvm_image;

/* Whose RGB is wanted: PyAV's for clips, PIL's for pictures. */
typedef enum qvm_colour { QVM_CLIP, QVM_PICTURE, QVM_JPEG, QVM_WEBP } qvm_colour;

typedef struct qvm_converter {
    qvm_colour colour;
    struct SwsContext *sws[2]; /* of frames, or of the upper and the lower field */
    int width, height, format, range, colorspace; /* that these are for */
    bool fields;
    AVFrame *rgb;
    uint8_t *turned;
    size_t turned_bytes;
} qvm_converter;

/* What a frame's or its stream's display matrix asks for. */
qvm_turn qvm_find_turn(const AVFrame *frame, const AVStream *stream);
int qvm_turn_degrees(qvm_turn turn);

/* `out` is valid until the next call. `path` is for the error text. */
qv_status qvm_convert(qvm_converter *converter, const AVFrame *frame, qvm_turn turn,
                      const char *path, qvm_image *out, qv_error *err);
void qvm_converter_close(qvm_converter *converter);

/* chroma.c: 8-bit planar YUV of a JPEG or WebP picture; false for lack of memory. */
bool qvm_is_plain_yuv(const AVPixFmtDescriptor *format);
bool qvm_picture_rgb(const AVFrame *frame, bool webp, uint8_t *rgb, int64_t stride);

#endif
