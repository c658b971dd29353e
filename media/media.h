/* SPDX-License-Identifier: MIT */
/* Declares what the files of the media library share. */
#ifndef QV_MEDIA_MEDIA_H
#define QV_MEDIA_MEDIA_H

#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/pixdesc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "clock.h"
#include "error.h"
#include "option_list.h"
#include "qwenvit_media.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define QVM_X86 1
#endif

/* Whether this build has a sanitizer that reserves terabytes and reports on standard error. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define QVM_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define QVM_SANITIZED 1
#endif
#endif
#ifndef QVM_SANITIZED
#define QVM_SANITIZED 0
#endif

/* Whether who starts a program closes what that would inherit. Elsewhere the program closes it at its start, and with it
 * what a library that was loaded before (compute-sanitizer's) has opened there. */
#if defined(__GLIBC__)
#if __GLIBC_PREREQ(2, 34)
#define QVM_SPAWN_CLOSES 1
#endif
#endif

#define QVM_MAX_SIDE 65536 /* pixels of a side of any frame that is resized or written */
#define QVM_MAX_PIXELS (16384 * 16384)
#define QVM_MAX_FRAMES 4194304 /* the most frames in one clip: 19 hours at 60 a second */
#define QVM_DEFAULT_FPS 24.0   /* for a source that does not give its rate */

/* ---- resize.c: as transformers resizes -------------------------------------------------------- */

/* The weights of one axis: output i is the sum of weights[i][k] * input[start[i] + k], k < taps. */
typedef struct qvm_axis {
    int in, out;
    int taps;         /* inputs of each output, padded with zero weights as the kernel wants it */
    int precision;    /* weights are scaled by 2^precision */
    int32_t *start;   /* [out, and up to 3 copies of the last]; start + taps <= in if in >= taps */
    int16_t *weights; /* [out, taps], or packed: [out / 4 rounded up][taps / 2][4][2] */
} qvm_axis;

#define QVM_ROWS 4 /* source rows that one call of `across` resizes */

/* The kernels of a resize. `across` resizes QVM_ROWS rows of RGB horizontally, src[r] to dst[r]; it
 * may read 4 bytes past a row of src and write 16 past a row of dst. `down` resizes vertically: it
 * writes n bytes (a multiple of 64), which are the weighted sum of `taps` rows (an even number). */
typedef struct qvm_resize_ops {
    int multiple; /* `across` wants a number of taps that is a multiple of this */
    bool packed;  /* `across` wants packed weights */
    void (*across)(const qvm_axis *axis, const uint8_t *const *src, uint8_t *const *dst);
    void (*down)(const uint8_t *const *rows, const int16_t *weights, int taps, int precision,
                 uint8_t *dst, size_t n);
} qvm_resize_ops;

typedef struct qvm_resizer qvm_resizer;

typedef enum qvm_level { QVM_PORTABLE, QVM_AVX2, QVM_AVX512, QVM_BEST } qvm_level;

/* Makes tables and scratch for one pair of sizes, with kernels up to `level`. Returns QV_ENOMEM. */
qv_status qvm_resizer_create(int src_h, int src_w, int dst_h, int dst_w, qvm_level level,
                             qvm_resizer **out, qv_error *err);
void qvm_resizer_free(qvm_resizer **resizer);
/* Resizes src[src_h, src_w, 3], whose rows are src_stride bytes apart, to dst[dst_h, dst_w, 3]. Allocates nothing. */
void qvm_resizer_run(qvm_resizer *resizer, const uint8_t *src, int64_t src_stride, uint8_t *dst);

/* Puts into `ops` (resize_x86.c) the kernels, up to `level`, that this CPU has and that are faster
 * for rows of `in` pixels that become `out`, each from `taps` pixels. */
void qvm_resize_x86(qvm_resize_ops *ops, qvm_level level, int in, int out, int taps);

/* ---- resample.c: as qwen-vl-utils resizes ----------------------------------------------------- */

typedef enum qvm_arithmetic { QVM_TORCH_FLOAT, QVM_PIL } qvm_arithmetic;

typedef struct qvm_resampler qvm_resampler;

/* Makes tables and scratch for one pair of sizes. Returns QV_ENOMEM. */
qv_status qvm_resampler_create(int src_h, int src_w, int dst_h, int dst_w,
                               qvm_arithmetic arithmetic, qvm_resampler **out, qv_error *err);
void qvm_resampler_free(qvm_resampler **resampler);
/* Resizes src[src_h, src_w, 3], whose rows are src_stride bytes apart, to dst[dst_h, dst_w, 3]. Allocates nothing. */
void qvm_resampler_run(qvm_resampler *resampler, const uint8_t *src, int64_t src_stride,
                       uint8_t *dst);

/* ---- choose.c: which frames, at which size --------------------------------------------------- */

/* The rules of one package for a family of models. `p` has the options' numbers already where both have them. */
typedef struct qvm_rules {
    /* Finds the frames between start_s and end_s: *n of them from number *first on; none if *n is below 1. */
    void (*cut)(const qv_outcome *info, const qv_clip_options *o, int64_t *first, int64_t *n);
    /* Finds how many frames of a clip are sampled. `info` has what the file says, and cut_frames. */
    qv_status (*count)(const qv_outcome *info, const qv_preprocess *p, const qv_clip_options *o,
                       int64_t *n, qv_error *err);
    /* Writes to indices[n] which of the cut_frames frames from first_frame on are sampled, ascending; n is count's. */
    void (*fill)(const qv_outcome *info, const qv_preprocess *p, int64_t n, int64_t *indices);
    /* Finds the size, in pixels, of the n_frames frames of a clip, or of an image. */
    qv_status (*size)(const qv_outcome *info, const qv_preprocess *p, const qv_clip_options *o,
                      int64_t *height, int64_t *width, qv_error *err);
} qvm_rules;

/* Takes what the file says in `info` and adds to it which frames are read, at which size. *indices
 * is NULL before and [info->n_frames] after; the caller frees it with free(), after an error too. */
qv_status qvm_choose(const char *path, const qv_preprocess *preset, const qv_clip_options *o,
                     qv_outcome *info, int64_t **indices, qv_error *err);

/* ---- sampling.c: transformers' rules --------------------------------------------------------- */

extern const qvm_rules qvm_qwen3_vl, qvm_qwen2_vl, qvm_glm4v;
extern const qvm_rules qvm_qwen_vl_utils; /* the rules of qwen_vl_utils.c */

int64_t qvm_round_half_even(double x);

/* ---- packets.c: what a packet's headers say -------------------------------------------------- */

typedef struct qvm_packet {
    int shown;  /* pictures of the packet that are shown, as far as its headers tell */
    int layer;  /* HEVC: the temporal layer of the packet's picture; other codecs: 0 */
    bool spare; /* no picture of the same or a lower layer refers to the packet's picture */
    /* a keyframe with which decoding may begin: what is shown behind it is right to the bit */
    bool start;
    bool resets;     /* H.264, HEVC: the picture order count begins anew */
    bool parameters; /* H.264, HEVC: the packet has parameter sets */
    bool may_hide;   /* a picture that `shown` counts may stay hidden */
    bool changes;    /* the container changes the format from this packet on */
    bool palette;    /* the container gives the palette of this packet and of those that follow */
    /* a hash of headers that hold for later packets too; 0: it has none. Those of Motion JPEG are the order of its
     * segments, and which tables they bring, but not the tables. */
    uint64_t headers;
} qvm_packet;

/* Reads the headers in a packet of a stream with the parameters `par`, without decoding it. */
qvm_packet qvm_look_at_packet(const AVCodecParameters *par, const AVPacket *packet);
/* Returns whether qvm_look_at_packet knows the codec: what it says of `shown` and `start` counts. */
bool qvm_has_headers(enum AVCodecID codec);
/* Returns whether a frame of this codec needs its own packet alone, where there is no palette and headers are equal. */
bool qvm_is_stateless(enum AVCodecID codec);
/* Returns whether the stream's parameter sets let pictures be hidden that packets' headers show. */
bool qvm_may_hide_pictures(const AVCodecParameters *par);

/* ---- parameters.c: the parameter sets of packets that are left out ------------------------------ */

/* Appends a packet's parameter sets to `kept`, so that a decoder that is given `kept` has the sets that it would have
 * after all packets. *changed becomes true if a set is another than the last one of its type and number, or is not
 * among the stream's own. Returns false for lack of memory, or above 64 KiB. */
bool qvm_keep_parameters(const AVCodecParameters *par, const AVPacket *packet, AVPacket *kept,
                         bool *changed);

/* ---- times.c: which frame has which time, and what it needs ------------------------------------ */

/* A packet of a file, and the frame that comes of it. */
typedef struct qvm_time {
    int64_t pts;
    int32_t packet; /* the packet's number in the file's order */
    int8_t layer;
    bool start, spare; /* as in qvm_packet; after qvm_times_sort, `spare` only in the top layer */
    bool sampled;      /* the frame is asked for */
    bool needed;       /* the packet must be decoded for the frames that are asked for */
    bool fresh; /* a keyframe, before which the decoder is emptied, as references were left out */
} qvm_time;

/* A keyframe that is fresh, as qvm_time says. */
typedef struct qvm_start {
    int32_t frame;  /* the keyframe's number in qvm_times.at */
    int64_t n_left; /* needed packets from this one, which counts, to the end of the file */
} qvm_start;

/* The times of all packets of a file. They give each frame its number, and tell which packets no
 * wanted frame needs, so that these are left out. */
typedef struct qvm_times {
    qvm_time *at; /* [n] in the file's order, and after qvm_times_sort by ascending pts */
    int64_t n, room;
    int64_t n_looked;    /* packets of the file, those without a time too */
    const char *unsure;  /* why the times are not to be relied on; NULL: they are */
    bool descending;     /* some packet in the file has an earlier time than the one before it */
    bool parameters;     /* some packets have parameter sets */
    bool sets_change;    /* some parameter set replaces another one */
    bool may_lack;       /* some packet may show nothing, so that there may be fewer frames */
    uint64_t headers;    /* the first packet's, which those of all others must equal */
    AVPacket *sets;      /* the parameter sets so far; NULL: none yet */
    bool each_shows_one; /* each packet shows one frame, as far as the headers tell */
    bool are_frames;     /* as many frames come out as there are packets */
    bool in_groups;      /* decoding may begin with any packet that is a start */
    /* references shown before a keyframe take places in the reference lists of what follows it */
    bool lists_leading;
    bool can_rewind; /* the container's index may lead to the first packet */
    bool can_seek;   /* the container's index leads to any keyframe, and decoding may begin there */
    int top_layer;   /* the highest layer of any packet */
    int64_t n_needed, most_sampled; /* packets; the most frames of a group that are asked for */
    qvm_start *starts;              /* [n_starts] in the order of the file */
    int64_t n_starts;
} qvm_times;

/* Adds the next packet of the file, unless the times are unsure. Returns false for lack of memory. */
bool qvm_times_add(qvm_times *times, const AVCodecParameters *par, const AVPacket *packet);
/* Notes why the times are not to be relied on, in static text that can follow "since"; the first reason stays. */
void qvm_times_doubt(qvm_times *times, const char *why);
/* Sorts the times after the last packet was added, and sets what the other fields say of them. */
void qvm_times_sort(qvm_times *times, const AVFormatContext *format, const AVStream *stream);
void qvm_times_free(qvm_times *times);
/* Returns the number of the frame at pts, or -1 if there is none. */
int64_t qvm_times_find(const qvm_times *times, int64_t pts);
/* Marks the packets that frames[n] need. A number behind the end stands for the last frame. The
 * first n_read packets count as needed, as the decoder has them. Returns false for lack of memory. */
bool qvm_times_need(qvm_times *times, const int64_t *frames, int64_t n, int64_t n_read);
/* Returns the first needed frame from number i on, or times->n if there is none. */
int64_t qvm_times_next(const qvm_times *times, int64_t i);

/* ---- codec.c: a decoder of FFmpeg's, and what it complains of ---------------------------------- */

typedef struct qvm_codec {
    AVCodecContext *av;
    atomic_int complaints; /* errors that the decoder has logged, from any of its threads */
    int heard;             /* complaints at the last call of qvm_codec_complained */
    atomic_bool recovers;  /* decoding began at a recovery point */
    atomic_int has_words;  /* 2: `words` holds the first complaint; 1: it is being written there */
    char words[128];
} qvm_codec;

/* Keeps FFmpeg from printing, and hears its decoders' errors instead. Does so once per process. */
void qvm_quiet(void);
/* Has the usual decoders make their tables, which processes that are forked off later then have. */
void qvm_warm_up(void);

/* Opens a decoder. `threads` counts as FFmpeg's thread_count does: 0 leaves it the choice. Returns 0
 * or an error code of FFmpeg's; the caller calls avcodec_free_context(&codec->av) in either case.
 * `codec` begins as zeros, and must not move while the decoder is open. */
int qvm_codec_open(qvm_codec *codec, const AVCodecParameters *par, AVRational time_base,
                   int threads);
/* Returns whether the decoder has complained since the last call. */
bool qvm_codec_complained(qvm_codec *codec);
/* Has the decoder, which has given all of its frames, go on with a keyframe before which packets were left out. */
void qvm_codec_begin_anew(qvm_codec *codec);

/* ---- source.c: a file's frames, in order ----------------------------------------------------- */

struct qvm_index;
/* How the caller of a long call stops it and hears that it goes on, and what is to be read of the file. */
typedef struct qvm_watch {
    const atomic_bool *stop;   /* set from another thread: reads fail and frames end */
    void (*alive)(void *user); /* called at least once a packet */
    void *user;
    qv_clip_options asked;         /* its pointers are NULL */
    const struct qvm_index *index; /* what another reader found in the file; NULL: nothing yet */
} qvm_watch;

typedef struct qvm_source {
    int fd;     /* the file, which is the caller's and outlives the source; it is read with pread */
    int64_t at; /* the byte of the clip that FFmpeg reads next */
    int io_errno; /* why the file could not be read; 0: it could */
    const qvm_watch *watch;
    /* an image that jpeg.c reads; of the members below, only `errors` and n_given then count */
    bool is_jpeg;
    AVIOContext *io;
    AVFormatContext *format;
    AVStream *stream;
    qvm_codec codec;
    struct qvm_gpu_decoder *gpu; /* the GPU's decoder, which replaces `codec`; NULL: none does */
    bool sampled;                /* the frame of the packet that was read is asked for */
    AVPacket *packet;
    struct qvm_first {
        int64_t pts, dts, pos;
        int size;
    } first; /* the stream's first packet, where one was read */
    bool has_first;
    bool is_ahead;          /* `packet` was read ahead, and is the next one */
    bool draining;          /* no packet follows those that the decoder was given */
    bool emptying;          /* the packet waits until the decoder has given all frames before it */
    const qvm_times *times; /* says which packets are decoded; NULL: all are */
    AVPacket *parameters;   /* parameter sets of packets that were left out */
    int64_t n_read;         /* packets that were read to be decoded or left out */
    int64_t n_given;        /* packets that the decoder was given */
    int64_t n_left;         /* needed packets that are still to be read */
    int64_t next_start;     /* index of the first of the times' starts that may be ahead */
    int64_t errors;         /* packets that were lost, or that the decoder complained about */
} qvm_source;

/* Says why images of floating-point samples are refused: programs differ on whether white is 1 or 255. */
#define QVM_FLOATS "its samples are floating-point numbers; integers of 8 or 16 bits are read"

/* Returns why nothing of the file can be decoded (unread.c); NULL where its bytes do not tell. The text is static. */
const char *qvm_why_unread(const qvm_source *source);
/* Finds a TIFF's codes of black and white for Y, Cb and Cr, in this order (unread.c). */
void qvm_find_levels(const qvm_source *source, float levels[6]);

/* Reads at most n bytes from byte `at` of the clip on. Returns how many; 0 behind its end; -1 with
 * errno. */
ssize_t qvm_source_read_once(const qvm_source *source, int64_t at, void *to, size_t n);
/* Reads n bytes from byte `at` of the clip on. Returns how many, fewer only at the end; -1 with errno. */
int64_t qvm_source_read(const qvm_source *source, int64_t at, void *to, size_t n);

/* A file's bytes, which are read a page at a time (pages.c). A walk over parts of a few bytes, such as the padding of
 * a JPEG file, costs a system call for each page then, not for each part. All but `source` begins as zeros. */
typedef struct qvm_pages {
    const qvm_source *source;
    int64_t at, n; /* the bytes that are here: n of them, from byte `at` of the clip on */
    uint8_t bytes[4096];
} qvm_pages;
/* Does what qvm_source_read does. With each page it signals life; a source that was stopped ends there. */
int64_t qvm_pages_read(qvm_pages *pages, int64_t at, void *to, size_t n);

/* Opens a file, and of its video streams the one that FFmpeg takes for the best. Fails with QV_EIO, QV_EFORMAT or
 * QV_ENOMEM, and the source is closed then. `watch` outlives the source. */
qv_status qvm_source_open(qvm_source *source, int fd, const qvm_watch *watch, qv_error *err);
/* Opens the stream's decoder. `threads` counts as qvm_codec_open has it. */
qv_status qvm_source_open_decoder(qvm_source *source, int threads, qv_error *err);
/* Goes back to the first packet, by the container's index for the time `pts`. *done becomes false if that leads elsewhere: an
 * index may lack the first packet, if that is not a keyframe, and may be wrong. The source must be opened again then. Fails as
 * reading packets does. */
qv_status qvm_source_rewind(qvm_source *source, int64_t pts, bool *done, qv_error *err);
void qvm_source_close(qvm_source *source);
bool qvm_source_is_image(const qvm_source *source);
/* Returns FFmpeg's name of the container, or of its kind of image file; the text is static. */
const char *qvm_source_format(const qvm_source *source);
enum AVCodecID qvm_source_codec(const qvm_source *source);

/* Decodes the next frame into `frame`; *got is false at the end, or if stopped. Skips and counts damaged data. */
qv_status qvm_source_next(qvm_source *source, AVFrame *frame, bool *got, qv_error *err);

/* Has only those packets decoded from here on that `times` marks as needed. `times` outlives the source. */
void qvm_source_leave_out(qvm_source *source, const qvm_times *times);

/* Reads the stream's next packet into source->packet; *got is false at the end of what can be read. */
qv_status qvm_source_packet(qvm_source *source, bool *got, qv_error *err);

/* ---- jpeg.c: JPEG files by libjpeg-turbo ------------------------------------------------------- */

/* Returns whether qvm_jpeg_read is to decode the JPEG file: true also where the file cannot be read, since decoding
 * then says why, and false in a build without libjpeg-turbo. */
bool qvm_jpeg_is_readable(const qvm_source *source);
/* Decodes the image into an empty frame, as RGB24 and not turned. Damage counts among the source's errors. */
qv_status qvm_jpeg_read(qvm_source *source, AVFrame *frame, qv_error *err);

/* ---- orientation.c: which way up an image is ------------------------------------------------- */

/* Returns the image's orientation, 1 to 8 as EXIF counts, where Pillow finds one (JPEG, PNG, WebP, TIFF, AVIF); 0 if
 * there is none; -1 with errno if the file cannot be read. */
int qvm_find_orientation(const qvm_source *source);

/* ---- count.c: how many frames a file has ------------------------------------------------------- */

struct qvm_count {
    int64_t frames;
    int64_t errors;  /* errors met in decoding the frames */
    int64_t decoded; /* packets that were decoded to count */
};

/* Counts in *n the packets up to the end of a source whose decoder is not open. `times` gets an entry for each packet,
 * or the reason why times are not to be relied on, and says whether the packets are the file's frames. */
qv_status qvm_count_packets(qvm_source *source, qvm_times *times, int64_t *n, qv_error *err);
/* Counts the frames of a file by decoding all of it. */
qv_status qvm_count_decoded(int fd, int threads, const qvm_watch *watch, struct qvm_count *count,
                            qv_error *err);
/* Returns QV_EFORMAT if n is above QVM_MAX_FRAMES. */
qv_status qvm_check_count(int64_t n, qv_error *err);

/* ---- convert.c: frames to upright RGB -------------------------------------------------------- */

typedef struct qvm_turn {
    bool transpose, flip_x, flip_y; /* what is done to an image, in this order */
} qvm_turn;

typedef struct qvm_image {
    const uint8_t *rgb; /* [height, width, 3], whose rows are `stride` bytes apart */
    int64_t stride;
    int width, height;
} qvm_image;

/* Says whose RGB is wanted: PyAV's for clips; for images Pillow's, by the library that it reads a format with. */
typedef enum qvm_colour {
    QVM_CLIP,
    QVM_IMAGE,
    QVM_JPEG, /* FFmpeg's frames become libjpeg-turbo's RGB; frames of jpeg.c are that already */
    QVM_WEBP,
    QVM_AVIF,
    QVM_TIFF,
    QVM_NETPBM
} qvm_colour;

typedef struct qvm_converter {
    qvm_colour colour;
    bool on_white;             /* transparent pixels are put on white; false: alpha is ignored */
    float levels[6];           /* TIFF: black and white of Y, of Cb and of Cr */
    struct SwsContext *sws[2]; /* for whole frames, or for their upper and their lower field */
    int width, height, format, range, colorspace; /* of the frames that `sws` and `rgb` are for */
    bool fields;     /* the two fields of these frames are converted apart */
    AVFrame *rgb;    /* the converted frame */
    uint8_t *turned; /* [turned_bytes] the converted and turned frame */
    size_t turned_bytes;
} qvm_converter;

/* Returns the turn that a stream's display matrix asks for, as torchcodec reads it; none if `stream` is NULL. */
qvm_turn qvm_find_turn(const AVStream *stream);
/* Returns the turn that EXIF's orientation 1 to 8 asks for; none for other numbers. */
qvm_turn qvm_exif_turn(int orientation);
int qvm_turn_degrees(qvm_turn turn);

/* Converts a frame to RGB and turns it. *out is valid until the next call, and no longer than `frame` is. */
qv_status qvm_convert(qvm_converter *converter, const AVFrame *frame, qvm_turn turn, qvm_image *out,
                      qv_error *err);
void qvm_converter_close(qvm_converter *converter);

/* Returns whether qvm_image_rgb takes the format: planar YUV of 8 bits (chroma.c). */
bool qvm_is_plain_yuv(const AVPixFmtDescriptor *format);
/* Converts an image of JPEG, WebP, AVIF or TIFF to RGB, in rows `stride` bytes apart. False for lack of memory. */
bool qvm_image_rgb(const AVFrame *frame, qvm_colour colour, const float levels[6], uint8_t *rgb,
                   int64_t stride);
/* Returns whether qvm_wide_rgb takes the format: gray or RGB with more than 8 bits a sample. */
bool qvm_is_wide(const AVPixFmtDescriptor *format);
/* Converts an image for which qvm_is_wide holds to 8-bit RGB, as Pillow does with files of netpbm or with others. */
void qvm_wide_rgb(const AVFrame *frame, bool netpbm, uint8_t *rgb, int64_t stride);

/* ---- frame_reader.c: a file -> what it is, and the frames that are asked for, resized -------- */

typedef struct qvm_reader {
    int fd, threads;
    const qvm_watch *watch;
    qvm_source source;
    qvm_converter converter;
    qvm_resizer *resizer;     /* for transformers' rules; NULL until a frame is resized */
    qvm_resampler *resampler; /* for qwen-vl-utils' rules, instead of `resizer` */
    int resizer_size[4];      /* height, width of what the resizer takes, then of what it makes */
    AVFrame *frame;           /* the frame that is being received */
    AVFrame *last;            /* the last frame that came, number n_decoded - 1 */
    qvm_turn turn;            /* the turn of all frames */
    qvm_image image;          /* the RGB of frame number n_image */
    int64_t n_image;          /* the frame that `image` is of; -1: none yet */
    int64_t n_decoded;
    int64_t n_corrupt; /* frames that the decoder concealed */
    int64_t n_missing; /* frames that were asked for behind the end */
    bool single;       /* damage was seen, or one thread was asked for: one thread decodes */
    bool at_end;
    qvm_times times;
    int64_t n_packets;      /* packets of the file that the container does not hide */
    struct qvm_count count; /* what counting the file's frames gave */
    bool by_time;    /* frames are numbered by their times, and only what is needed is decoded */
    const char *why; /* why by_time is false, where there is a reason; else NULL */
    int64_t n_given; /* packets that were given to decoders which are closed */
    struct qvm_gpu_decoder *gpu; /* the caller's decoder on a GPU; NULL: there is none */
    const char *not_gpu; /* why the GPU does not give the frames; NULL: it does, or none was to */
} qvm_reader;

/* Opens a file and finds out what it is: `info` gets what the file says, and no decisions (n_frames, size, grid). The
 * caller calls qvm_reader_close in any case. `fd` and `watch` are the caller's, and outlive the reader. */
qv_status qvm_reader_open(qvm_reader *reader, int fd, int threads, const qvm_watch *watch,
                          qv_outcome *info, qv_error *err);
/* Returns the bytes of a frame's planes as a GPU gives them; 0, with the reason in not_gpu, if no GPU can decode. */
int64_t qvm_reader_plane_bytes(qvm_reader *reader);
/* Says which frames will be read, ascending. What they do not need is then not decoded, if the file's packets tell what
 * that is. */
qv_status qvm_reader_start(qvm_reader *reader, const int64_t *frames, int64_t n, qv_error *err);
/* Reads a frame to dst[height, width, 3]. Its number `index` is one of qvm_reader_start's, not below the last call's.
 * For one behind the end, the last frame is read. If the reader is stopped, dst may stay as it is. */
qv_status qvm_reader_read(qvm_reader *reader, int64_t index, int height, int width, uint8_t *dst,
                          qv_error *err);
/* Returns how many frames were concealed, lost or replaced so far. */
int64_t qvm_reader_damaged(const qvm_reader *reader);
/* Returns how many packets decoders were given so far, both to count frames and to have them. */
int64_t qvm_reader_decoded(const qvm_reader *reader);
/* Returns how many packets are decoded for the frames that were asked for, the last of which is number `last`. */
int64_t qvm_reader_needed(const qvm_reader *reader, int64_t last);
void qvm_reader_close(qvm_reader *reader);

/* ---- file_index.c: what a reader found out by reading all packets, for the next one ---------- */

/* A packet, as qvm_time has it. `flags` are file_index.c's. */
typedef struct qvm_index_entry {
    int64_t pts;
    int8_t layer;
    uint8_t flags;
} qvm_index_entry;

/* An index of a file. A decoder process sends its bytes to the clip, which sends them to other processes
 * of the same file. */
typedef struct qvm_index {
    int64_t n_entries, n_packets, n_frames, errors;
    int32_t top_layer;
    uint8_t parameters, descending, sets_change, may_lack;
    char unsure[64];      /* why the times are not to be relied on; "": they are */
    qvm_index_entry at[]; /* [n_entries], in the order of the file */
} qvm_index;

#define QVM_MOST_INDEX ((int64_t)64 << 20) /* bytes of an index: of 4,194,297 packets */

/* Returns the bytes of an index with so many entries. */
size_t qvm_index_bytes(int64_t n_entries);
/* Returns whether so many bytes are an index that can be read safely. What the index says may still be untrue. */
bool qvm_index_is_whole(const qvm_index *index, int64_t bytes);
/* Makes the index of an open reader's file, which the caller frees with free(). NULL for lack of memory. */
qvm_index *qvm_index_make(const qvm_reader *reader);
/* Fills empty times from an index, which must outlive them, and sorts them. Returns false for lack of memory. */
bool qvm_index_take(const qvm_index *index, const qvm_source *source, qvm_times *times);

/* ---- serve.c: the decoder process of a clip, or the thread in its place ---------------------- */

/*
 * A clip and its decoder process talk over a stream socket and share a memory file. The process first says that it is
 * locked in (QVM_READY), or that it cannot be (QVM_END). This is believed, as the process reads no byte of the file until
 * it is asked. The clip asks what the file is (QVM_OPEN), is told (QVM_FACTS), decides which frames it wants at which
 * size, writes their numbers to the shared memory and asks for them (QVM_START). The process says how many packets it
 * will decode for them (QVM_PLAN), and fills one slot after the other behind the numbers (QVM_FRAME for each). If no slot
 * is free, it waits until the clip frees one (QVM_FREE). QVM_END comes last, with the reason if it is early. Whatever the
 * process says from QVM_OPEN on is checked: whoever made the file may have taken the process over.
 */
typedef enum qvm_request_kind { QVM_OPEN, QVM_START, QVM_FREE } qvm_request_kind;

typedef struct qvm_request {
    int32_t kind;
    int32_t wants_index;            /* OPEN */
    qv_clip_options asked;          /* OPEN: all but the pointers */
    int64_t index_bytes;            /* OPEN: bytes of an index that follows the request */
    int32_t height, width, n_slots; /* START: the size of frames; the number of slots */
    /* START: frames_at is the offset of the first slot, `memory` the bytes of the numbers and the slots together */
    int64_t n_frames, frames_at, slot_bytes, memory;
    /* START: bytes of a slot for a frame's planes, of which a GPU fills QVM_SLOTS behind `memory`; 0: none does */
    int64_t plane_bytes;
    double gpu_patience_s; /* START: how long the GPU process may be silent */
} qvm_request;

/* READY is said before anything of the clip can have been read, and at no other time. */
typedef enum qvm_event_kind {
    QVM_READY,
    QVM_FACTS,
    QVM_FRAME,
    QVM_ALIVE,
    QVM_END,
    QVM_PLAN
} qvm_event_kind;

typedef struct qvm_event {
    int32_t kind;
    int32_t status;      /* END: a qv_status */
    int32_t gpu_lost;    /* the GPU process ended, is silent, or said what cannot be */
    int64_t plane_bytes; /* FACTS: bytes of a frame's planes as a GPU gives them; 0: none will */
    int64_t index_bytes; /* FACTS: bytes of an index that follows the event; 0: none does */
    qv_outcome outcome;  /* outcome.inc says what comes with FACTS, and what with every event */
    char text[sizeof((qv_error *)0)->text]; /* END: what failed */
} qvm_event;

typedef struct qvm_session {
    int socket; /* the decoder process's socket to the clip, which qvm_serve closes */
    int clip;   /* the file, which is the caller's */
    int shared; /* the memory file, which is the caller's */
    int codec;  /* a socket to the GPU process, which qvm_serve closes; -1: none */
    bool alone; /* the session has a process of its own, which ends when the clip goes away */
} qvm_session;

enum { QVM_SESSION_FDS = 4 }; /* descriptors of a session; `codec`, the last one, may be missing */

#ifdef MSG_NOSIGNAL
#define QVM_NOSIGNAL MSG_NOSIGNAL
#else
#define QVM_NOSIGNAL 0 /* macOS: SO_NOSIGPIPE on the socket */
#endif

/* Serves a clip until the last frame is in its slot or the clip goes away, and then ends the process if it is alone. */
void qvm_serve(const qvm_session *session);

/* ---- talk.c: what both ends need ------------------------------------------------------------- */

/* Sends all n bytes, however long that takes. Returns false with errno if that fails. */
bool qvm_send(int socket, const void *message, size_t n);
/* Receives all n bytes, however long that takes. Returns false if that fails or the other side has gone. */
bool qvm_receive(int socket, void *message, size_t n);

/* ---- kept.c: indexes of files, for cuts that are still to come -------------------------------- */

/* Says which clip in which file an index is of, as long as nobody writes to the file. */
typedef struct qvm_identity {
    uint64_t device, inode;
    int64_t bytes, mtime_ns;
    int64_t offset, length; /* bytes of the file where the clip lies */
    int32_t like;           /* the qv_like by whose rules the clip is read */
} qvm_identity;

enum { QVM_MOST_KEPT = 16 };

/* The indexes that are kept. The struct begins as zeros, and callers guard it with a lock of theirs. */
struct qvm_kept {
    struct qvm_kept_index {
        qvm_identity file;
        void *data; /* the index, from malloc() */
        int64_t bytes;
    } at[QVM_MOST_KEPT]; /* [n], the one that was used last first */
    int n;
    int64_t bytes; /* bytes of all indexes, QVM_MOST_INDEX at most */
};

/* Returns a copy of the file's index, for the caller to free(); NULL if none is kept, or for lack of memory. */
void *qvm_kept_copy(struct qvm_kept *kept, const qvm_identity *file, int64_t *bytes);
/* Takes over an index from malloc(), of QVM_MOST_INDEX bytes at most. The least recently used ones make room. */
void qvm_kept_put(struct qvm_kept *kept, const qvm_identity *file, void *data, int64_t bytes);
void qvm_kept_free(struct qvm_kept *kept);

/* ---- child.c: processes that are started and ended -------------------------------------------- */

typedef struct qvm_child {
    pid_t pid;  /* 0: there is no process */
    int handle; /* the process, whatever became of its number (pidfd); -1: the system has none */
} qvm_child;

/* Starts a program, with argv[0] as its name, in an environment, and the socket as standard input. It has /dev/null as standard output and error,
 * and a session of its own. Returns 0 or an errno. */
int qvm_child_start(const char *path, char *const *argv, char *const *environment, int socket,
                    qvm_child *child);
/* Sends the process a signal, but never another one that has its number by now. */
void qvm_child_signal(const qvm_child *child, int number);
/* Returns whether the process has ended, or if nobody can know; `child` stands for none then. */
bool qvm_child_has_ended(qvm_child *child);
/* Waits until the process has ended. `child` stands for none then. */
void qvm_child_await(qvm_child *child);
/* Closes what this process has of it, which changes nothing for the process. `child` stands for none then. */
void qvm_child_leave(qvm_child *child);

/* ---- decoder_program.c: the program qwenvit-decoder, and memory that is shared with it ------- */

struct qv_decoder {
    qvm_child child;
    pid_t owner; /* the process that started the program; its forks must not use the decoder */
    double patience_s; /* how long the program may take to answer, or to end */
    int socket;
    pthread_mutex_t
        lock; /* is held from an order to its answer, and guards all that starting the program changes */
    int64_t starts; /* how often the program was started */
    bool used;      /* the program was asked to serve a session */
    char lost[96];  /* why the program is not asked any more, but started again; "": it is */
    pthread_mutex_t kept_lock;
    struct qvm_kept kept; /* guarded by kept_lock */
    char *program;        /* the program's path */
    /* the environment that the program was first started in, by which it may find its libraries */
    char **environment;
    struct qvm_gpus *gpus; /* gpu.c */
};

/* Makes a file without a name in memory, of no size yet. Returns its descriptor, or -1 with errno. */
int qvm_shared_memory(void);
/* Gives a file of qvm_shared_memory its size, for good. Returns false with errno. */
bool qvm_shared_memory_size(int fd, int64_t bytes);

/* Makes a pair of connected stream sockets, which are closed on exec. Returns false with errno. */
bool qvm_stream(int *here, int *there);

/* Receives all n bytes. Returns 0, ETIMEDOUT if they do not come in time, ECONNRESET if the other side has gone, or
 * another errno. until_s counts as qv_seconds does, or is infinite. */
int qvm_receive_until(int socket, void *message, size_t n, double until_s);
/* Sends all n bytes. Returns as qvm_receive_until does, and EPIPE too if the other side has gone. */
int qvm_send_until(int socket, const void *message, size_t n, double until_s);

/* A process that serves a session. Only the program that made the process knows its number: once the program was started
 * again, another process may have it. */
typedef struct qvm_server {
    pid_t pid;     /* 0: there is none */
    int64_t start; /* qv_decoder.starts when the process was made */
} qvm_server;

/* Has a process serve the session, with `memory` bytes as its limit. A program that was lost is started again. Returns
 * QV_EBACKEND if no process serves the session. */
qv_status qvm_session_start(qv_decoder *decoder, const qvm_session *session, int64_t memory,
                            qvm_server *server, qv_error *err);
/* Ends a session's process at once, unless it has ended. Returns its status as waitpid does; -1: nobody knows it, as the
 * program that made it was lost. */
int qvm_session_end(qv_decoder *decoder, const qvm_server *server);
/* Ends a session's process without waiting for its end. */
void qvm_session_drop(qv_decoder *decoder, const qvm_server *server);

/* Says which orders the program takes over its standard input. SERVE has a process serve a session, whose descriptors
 * come along; the answer is the process's number, or -1. KILL ends such a process; the answer is its status as waitpid
 * gives it, or -1. DROP ends one without an answer. DECODE, for a GPU process, has it decode for a
 * session, whose socket and shared memory come along; it has no answer. */
typedef enum qvm_order_kind { QVM_SERVE, QVM_KILL, QVM_DROP, QVM_DECODE } qvm_order_kind;

typedef struct qvm_order {
    int32_t kind;
    int32_t pid;    /* KILL, DROP: the process */
    int64_t memory; /* SERVE: the limit in bytes; DECODE: offset of the slots in shared memory */
    int64_t plane_bytes; /* DECODE: bytes of each of the QVM_SLOTS slots */
} qvm_order;

/* Sends an order with n descriptors, without waiting. Returns false with errno if nothing was sent; EAGAIN: the other
 * end has to take orders first. */
bool qvm_order_send(int socket, const qvm_order *order, const int *fds, int n);
void qvm_close_all(const int *fds, int n);
/* Waits for an order and its *n descriptors, which become the caller's. Returns false if there are no more orders. */
bool qvm_order_take(int socket, qvm_order *order, int fds[QVM_SESSION_FDS], int *n);
/* Returns the number of the process that started this one, with one end of qvm_stream's pair as `socket`. */
pid_t qvm_caller(int socket);
/* Waits until qvm_order_take need not wait. Returns false once `parent`, which gives the orders, has gone. */
bool qvm_order_wait(int socket, pid_t parent);
/* Room for the descriptors beside a message. */
union qvm_control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(QVM_SESSION_FDS * sizeof(int))];
};

/* ---- sandbox.c ------------------------------------------------------------------------------- */

/* Why a build without the headers of NVIDIA's decoders has no GPU decode; it fits into not_gpu. */
#define QVM_NO_NVDEC "this build has no NVDEC support (no ffnvcodec headers)"

/* Runs the program with the GPU of this number open (gpu_process.c), locked in unless `unlocked`. Returns the exit code. */
int qvm_gpu_process_run(int socket, const char *number, bool unlocked);

/* Closes all descriptors from the number `first` on. */
void qvm_close_from(int first);
/* On Linux, ends this process when its parent ends, whatever code has taken it over. Signals come when the *thread* of the
 * parent ends that made this process, so the parent must have one thread. Elsewhere a process ends when its socket is closed. */
void qvm_end_with(pid_t parent);
/* Makes the filter of system calls, which takes a while. It is called before processes fork that call qvm_sandbox. */
void qvm_sandbox_prepare(void);
/* Locks this process in, for good. It keeps `memory` bytes (0: no limit), the descriptors below `first_fd` except for
 * standard output and error, and the system calls that decoding needs: no file can be opened or looked for, no network used,
 * no other process made or signalled. Where the system has no such filter (macOS), only the limits hold. Returns NULL, or what
 * failed, with errno. */
const char *qvm_sandbox(int64_t memory, int first_fd);
/* Locks in a process that is to open a GPU, as the first of two steps, before the driver starts and makes threads
 * (landlock.c has what it may read and write; no other file can be opened). Returns as qvm_sandbox does. */
const char *qvm_sandbox_files(void);
/* Locks in all threads of a process that has opened its GPU, as the second of two steps: no network can be used, no
 * other process made or signalled, no file made or emptied, and no device asked for anything but what NVIDIA's driver
 * takes. Returns as qvm_sandbox does. */
const char *qvm_sandbox_gpu(void);

#endif
