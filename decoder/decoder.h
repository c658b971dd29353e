/* SPDX-License-Identifier: MIT */
/* Declarations shared by the decoder program's files. */
#pragma once

#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/pixdesc.h>
#include <pthread.h>
#include <stdatomic.h>

#include "clock.h"
#include "image_kind.h"
#include "ipc/messages.h"
#include "pixels/pixels.h"
#include "scale.h"

/* ---- packets.c: what a packet's headers say -------------------------------------------------- */

typedef struct qvm_packet {
    int shown;  /* pictures of the packet that are shown, according to its headers */
    int layer;  /* HEVC: the temporal layer of the packet's picture; other codecs: 0 */
    bool spare; /* no picture of the same or a lower layer refers to this picture */
    /* a keyframe where decoding may begin: everything shown after it is bit-exact */
    bool start;
    bool resets;     /* H.264, HEVC: the picture order count restarts */
    bool parameters; /* H.264, HEVC: the packet has parameter sets */
    bool may_hide;   /* a picture that `shown` counts may stay hidden */
    bool changes;    /* the container changes the format from this packet on */
    bool palette;    /* the container has a palette for this packet and the following ones */
    /* a hash of headers that hold for later packets too (for Motion JPEG the order of its segments,
     * and which tables they contain); 0: none */
    uint64_t headers;
} qvm_packet;

/* Reads the headers in a packet of a stream with the parameters `par`, without decoding it. */
qvm_packet qvm_look_at_packet(const AVCodecParameters *par, const AVPacket *packet);
/* Returns whether qvm_look_at_packet's `shown` and `start` are reliable. */
bool qvm_has_headers(enum AVCodecID codec);
/* Returns whether each frame needs only its own packet, provided that it has no palette and
 * headers are equal. */
bool qvm_is_stateless(enum AVCodecID codec);
/* Returns whether the stream's parameter sets may hide pictures that are shown according to
 * packets' headers. */
bool qvm_may_hide_pictures(const AVCodecParameters *par);

/* ---- parameters.c: the parameter sets of packets that are left out --------------------------- */

/* Appends a packet's parameter sets to `kept`, which gives a decoder the sets that it would have
 * after all packets. *changed: a set differs from the last one of its type and number, or is not
 * among the stream's own. Returns false if out of memory or above 64 KiB. */
bool qvm_keep_parameters(const AVCodecParameters *par, const AVPacket *packet, AVPacket *kept,
                         bool *changed);

/* ---- times.c: which frame has which time, and what it needs ---------------------------------- */

/* A packet of a file, and the frame that it decodes to. */
typedef struct qvm_time {
    int64_t pts;
    int32_t packet; /* the packet's number in the file's order */
    int8_t layer;
    bool start, spare; /* as in qvm_packet; after qvm_times_sort, `spare` only in the top layer */
    bool sampled;      /* the frame is requested */
    bool needed;       /* the packet must be decoded for the requested frames */
    bool fresh; /* a keyframe; the decoder is flushed before it, as references were left out */
} qvm_time;

/* A keyframe whose qvm_time is `fresh`. */
typedef struct qvm_start {
    int32_t frame;  /* the keyframe's number in qvm_times.at */
    int64_t n_left; /* needed packets from this one (included) to the end of the file */
} qvm_start;

/* The times of all packets of a file. They number the frames and determine which packets the
 * requested frames need. */
typedef struct qvm_times {
    qvm_time *at; /* [n] in the file's order, and after qvm_times_sort by ascending pts */
    int64_t n, room;
    int64_t n_looked;    /* packets of the file, including those without a time */
    const char *unsure;  /* why the times are unreliable; NULL: they are reliable */
    bool descending;     /* some packet has an earlier time than the previous packet */
    bool parameters;     /* some packets have parameter sets */
    bool sets_change;    /* some parameter set replaces a different one */
    bool may_lack;       /* some packet may show nothing, so that there may be fewer frames */
    uint64_t headers;    /* the first packet's; all other packets' must be equal */
    AVPacket *sets;      /* the parameter sets so far; NULL: none yet */
    bool each_shows_one; /* each packet shows one frame, according to the headers */
    bool are_frames;     /* as many frames come out as there are packets */
    bool in_groups;      /* decoding may begin with any packet that is a start */
    /* references shown before a keyframe occupy places in the reference lists of what follows it */
    bool lists_leading;
    bool can_rewind; /* the container's index may lead to the first packet */
    bool can_seek;   /* the container's index leads to every keyframe, where decoding may begin */
    int top_layer;   /* the highest layer of any packet */
    int64_t n_needed, most_sampled; /* needed packets; the most frames requested in a group */
    qvm_start *starts;              /* [n_starts] in the order of the file */
    int64_t n_starts;
} qvm_times;

/* Adds the file's next packet, unless the times are unreliable. Returns false if out of memory. */
bool qvm_times_add(qvm_times *times, const AVCodecParameters *par, const AVPacket *packet);
/* Records why the times are unreliable: static text to follow "since". The first reason is kept. */
void qvm_times_doubt(qvm_times *times, const char *why);
/* Sorts the times after the last packet was added, and sets the derived fields. */
void qvm_times_sort(qvm_times *times, const AVFormatContext *format, const AVStream *stream);
void qvm_times_free(qvm_times *times);
/* Returns the number of the frame at pts, or -1 if there is none. */
int64_t qvm_times_find(const qvm_times *times, int64_t pts);
/* Marks the packets that frames[n] need; a number past the end means the last frame. The first
 * n_read packets count as needed, because the decoder already has them. Returns false if out of
 * memory. */
bool qvm_times_need(qvm_times *times, const int64_t *frames, int64_t n, int64_t n_read);
/* Returns the first needed frame with number i or above, or times->n if there is none. */
int64_t qvm_times_next(const qvm_times *times, int64_t i);

/* ---- codec.c: FFmpeg's decoders, and the errors that they log -------------------------------- */

typedef struct qvm_codec {
    AVCodecContext *av;
    atomic_int complaints; /* errors that the decoder has logged, from any of its threads */
    int heard;             /* their number at the last call of qvm_codec_complained */
    atomic_bool recovers;  /* decoding began at a recovery point */
    atomic_int has_words;  /* 2: `words` holds the first message; 1: it is being written there */
    char words[128];
} qvm_codec;

/* Stops FFmpeg from printing, and counts its decoders' errors instead. */
void qvm_quiet(void);
/* Makes the usual decoders build their tables, which later forks inherit. */
void qvm_warm_up(void);

/* Opens a decoder; `threads` is FFmpeg's thread_count. Returns 0 or FFmpeg's error code; the caller
 * frees codec->av in either case. `codec` must be zeroed before, and must not move while it is
 * open. */
int qvm_codec_open(qvm_codec *codec, const AVCodecParameters *par, AVRational time_base,
                   int threads);
/* Returns whether the decoder has logged errors since the last call. */
bool qvm_codec_complained(qvm_codec *codec);
/* Makes a drained decoder continue with a keyframe after a gap. */
void qvm_codec_begin_anew(qvm_codec *codec);

/* ---- source.c: a file's frames, in order ----------------------------------------------------- */

struct qvm_index;
/* How the caller stops a long call and follows its progress, and which part of the file to read. */
typedef struct qvm_watch {
    const atomic_bool *stop;   /* set from another thread: reads fail and frames end */
    void (*alive)(void *user); /* called at least once per packet */
    void *user;
    qvm_asked asked;
    const struct qvm_index *index; /* what another reader found in the file; NULL: nothing yet */
    bool has_gpu;                  /* a GPU's decoders wait for the clip */
} qvm_watch;

typedef struct qvm_source {
    int fd;       /* the file, which the caller owns and keeps open; it is read with pread */
    int64_t at;   /* the clip's byte that FFmpeg reads next */
    int io_errno; /* errno of a failed read of the file; 0: none failed */
    const qvm_watch *watch;
    const qv_image_kind *kind; /* the kind of image by the first bytes; NULL: not an image */
    /* an image that jpeg.c reads; of the members below, only `errors` and n_given are used then */
    bool is_jpeg;
    bool more_jpegs; /* another image of the same size follows directly */
    AVIOContext *io;
    AVFormatContext *format;
    AVStream *stream;
    qvm_codec codec;
    struct qvm_gpu_decoder *gpu; /* the GPU decoder that replaces `codec`; NULL: none */
    bool sampled;                /* the frame of the packet just read is requested */
    AVPacket *packet;
    struct qvm_first {
        int64_t pts, dts, pos;
        int size;
    } first; /* the stream's first packet, if one was read */
    bool has_first;
    bool is_ahead;          /* `packet` was read ahead, and is next */
    bool only_first;        /* until rewound, the decoder gets only the first packet */
    bool draining;          /* the decoder has been given the last packet */
    bool emptying;          /* the packet waits until the decoder has returned all earlier frames */
    const qvm_times *times; /* which packets to decode; NULL: all */
    AVPacket *parameters;   /* parameter sets of packets that were left out */
    int64_t n_read;         /* packets read, decoded or not */
    int64_t n_given;        /* packets given to the decoder */
    int64_t n_left;         /* needed packets that have not been read yet */
    int64_t next_start;     /* index of the first of the times' starts that may be ahead */
    int64_t errors;         /* packets that were lost or caused decoder errors */
} qvm_source;

/* Why floating-point samples are refused: programs differ on whether white is 1 or 255. */
#define QVM_FLOATS "its samples are floating-point numbers; integers of 8 or 16 bits are read"

/* Returns why nothing in the file can be decoded, as static text; NULL if its bytes do not show it
 * (unread.c). */
const char *qvm_why_unread(const qvm_source *source);
/* Returns whether a TIFF's pixels are compressed (unread.c). */
bool qvm_tiff_is_packed(const qvm_source *source);
/* Finds a TIFF's codes of black and white for Y, Cb and Cr, in this order (unread.c). */
void qvm_find_levels(const qvm_source *source, float levels[6]);

/* Reads n bytes of the clip at `at`, fewer only at its end. Returns how many, or -1 with errno. */
int64_t qvm_source_read(const qvm_source *source, int64_t at, void *to, size_t n);

/* Sets source->kind by the file's first bytes. Returns false, with errno, if reading fails. */
bool qvm_source_find_kind(qvm_source *source);

/* Reads like qvm_source_read, but a page at a time, so that a walk over pieces of a few bytes needs
 * few calls (pages.c). All members except `source` must be zeroed before. */
typedef struct qvm_pages {
    const qvm_source *source;
    int64_t at, n; /* the clip's n bytes from byte `at` on */
    uint8_t bytes[4096];
} qvm_pages;
/* Signals life for each page, and returns at once if the source was stopped. */
int64_t qvm_pages_read(qvm_pages *pages, int64_t at, void *to, size_t n);
/* Returns the number in at most 4 bytes; `big` means big-endian. */
uint32_t qvm_number(const uint8_t *at, int bytes, bool big);

/* Opens a file and the video stream that FFmpeg considers best. Fails with QV_EIO, QV_EFORMAT or
 * QV_ENOMEM, and then closes the source. `watch` outlives the source. */
qv_status qvm_source_open(qvm_source *source, int fd, const qvm_watch *watch, qv_error *err);
/* Opens the stream's decoder. `threads` is as in qvm_codec_open. */
qv_status qvm_source_open_decoder(qvm_source *source, int threads, qv_error *err);
/* Rewinds to the first packet by looking up `pts` in the container's index. *done is false if the
 * index leads elsewhere, as it is wrong or lacks the packet: the source must be reopened. */
qv_status qvm_source_rewind(qvm_source *source, int64_t pts, bool *done, qv_error *err);
void qvm_source_close(qvm_source *source);
bool qvm_source_is_image(const qvm_source *source);
/* Returns FFmpeg's name for the container or the kind of image file; the text is static. */
const char *qvm_source_format(const qvm_source *source);
enum AVCodecID qvm_source_codec(const qvm_source *source);

/* Decodes the next frame; *got is false at the end, or if stopped. Damage is counted. */
qv_status qvm_source_next(qvm_source *source, AVFrame *frame, bool *got, qv_error *err);

/* Restricts decoding to the packets that `times` marks as needed; `times` must outlive the
 * source. */
void qvm_source_leave_out(qvm_source *source, const qvm_times *times);

/* Reads the stream's next packet into source->packet; *got is false after the last. */
qv_status qvm_source_packet(qvm_source *source, bool *got, qv_error *err);

/* ---- jpeg.c: JPEG files by libjpeg-turbo ----------------------------------------------------- */

/* Returns whether to use qvm_jpeg_read for the JPEG file. Also true if the file cannot be read,
 * since qvm_jpeg_read reports the reason; always false in a build without libjpeg-turbo. */
bool qvm_jpeg_is_readable(const qvm_source *source);
/* Decodes the image into an empty frame, as RGB24 without rotation. Sets source->more_jpegs. */
qv_status qvm_jpeg_read(qvm_source *source, AVFrame *frame, qv_error *err);

/* ---- orientation.c: which way up an image is ------------------------------------------------- */

/* Returns the orientation, 1 to 8 as EXIF counts, that Pillow finds in a JPEG, PNG, WebP, TIFF or
 * AVIF; 0: none; -1 with errno. */
int qvm_find_orientation(const qvm_source *source);

/* ---- rate.c: a clip's frames per second ------------------------------------------------------ */

/* The packets of a clip that its container does not hide, and the time from the first packet's
 * beginning to the last packet's end, in the stream's time base. */
typedef struct qvm_span {
    int64_t n, n_timed; /* number of packets, and how many of them have a time */
    int64_t begin, end;
} qvm_span;

/* Adds the file's next packet. */
void qvm_span_add(qvm_span *span, const AVPacket *packet);
/* Sets source_fps, header_fps and duration_s of a clip whose source_frames is set. */
void qvm_find_rate(const qvm_span *span, const AVStream *stream, qv_outcome *outcome);

/* ---- count.c: the number of a file's frames -------------------------------------------------- */

struct qvm_count {
    int64_t frames;
    int64_t errors;  /* decoding errors */
    int64_t decoded; /* packets decoded for the count */
};

/* Reads all packets of a source whose decoder is not open. `times` receives them, or the reason why
 * times are unreliable, and whether each packet is a frame. */
qv_status qvm_count_packets(qvm_source *source, qvm_times *times, qvm_span *span, qv_error *err);
/* Counts the frames of a file by decoding all of it. */
qv_status qvm_count_decoded(int fd, int threads, const qvm_watch *watch, struct qvm_count *count,
                            qv_error *err);
/* Returns QV_EFORMAT if n is above QVM_MAX_FRAMES. */
qv_status qvm_check_count(int64_t n, qv_error *err);

/* ---- convert.c: frames to upright RGB -------------------------------------------------------- */

typedef struct qvm_turn {
    bool transpose, flip_x, flip_y; /* applied to an image in this order */
} qvm_turn;

typedef struct qvm_image {
    const uint8_t *rgb; /* [height, width, 3], whose rows are `stride` bytes apart */
    int64_t stride;
    int width, height;
} qvm_image;

/* The library whose RGB to reproduce: torchcodec for clips, Pillow's library for images. */
typedef enum qvm_colour {
    QVM_CLIP,
    QVM_IMAGE,
    QVM_JPEG, /* FFmpeg's frames become libjpeg-turbo's RGB, which jpeg.c's already are */
    QVM_WEBP,
    QVM_AVIF,
    QVM_TIFF,
    QVM_RAW_TIFF, /* formats whose pixels Pillow converts itself */
    QVM_NETPBM
} qvm_colour;

typedef struct qvm_converter {
    qvm_colour colour;
    bool on_white;   /* transparent pixels are put on white; false: alpha is ignored */
    float levels[6]; /* TIFF: black and white of Y, of Cb and of Cr */
    struct SwsContext *sws;
    int kind[5];     /* the properties of frames that `sws` and `rgb` depend on */
    AVFrame *rgb;    /* the converted frame */
    uint8_t *turned; /* [turned_bytes] the converted and turned frame */
    size_t turned_bytes;
} qvm_converter;

/* Returns the rotation of a stream's display matrix as in torchcodec; none without a stream. */
qvm_turn qvm_find_turn(const AVStream *stream);
/* Returns the rotation for EXIF's orientation 1 to 8; none for other numbers. */
qvm_turn qvm_exif_turn(int orientation);
int qvm_turn_degrees(qvm_turn turn);

/* Converts a frame to RGB and turns it. *out is valid until the next call, and while `frame` is. */
qv_status qvm_convert(qvm_converter *converter, const AVFrame *frame, qvm_turn turn, qvm_image *out,
                      qv_error *err);
void qvm_converter_close(qvm_converter *converter);

/* Finds the conversion's constants for a colour space in FFmpeg's numbering. */
void qvm_find_colours(int space, bool full_range, qvm_colours *out);
/* Returns whether the frame's samples are full-range. */
bool qvm_is_full_range(const AVFrame *frame);

/* Returns whether qvm_image_rgb accepts the format: planar YUV of 8 bits (chroma.c). */
bool qvm_is_plain_yuv(const AVPixFmtDescriptor *format);
/* Converts an image of JPEG, WebP, AVIF or TIFF to RGB. Returns false if out of memory. */
bool qvm_image_rgb(const AVFrame *frame, qvm_colour colour, const float levels[6], uint8_t *rgb,
                   int64_t stride);
/* Returns whether qvm_wide_rgb accepts the format: gray or RGB with more than 8 bits per sample. */
bool qvm_is_wide(const AVPixFmtDescriptor *format);
/* Converts such an image to 8-bit RGB, as Pillow does for netpbm or for other files. */
void qvm_wide_rgb(const AVFrame *frame, bool netpbm, uint8_t *rgb, int64_t stride);

/* ---- frame_reader.c: a file -> what it is, and the requested frames, resized ----------------- */

typedef struct qvm_reader {
    int fd;
    int threads; /* decoder threads: as many as requested, but 1 once damage was seen */
    const qvm_watch *watch;
    /* source.times: numbers the frames, and only needed packets are decoded; NULL: all are */
    qvm_source source;
    qvm_converter converter;
    qvm_resizer *resizer;     /* for transformers' rules; NULL until a frame is resized */
    qvm_resampler *resampler; /* for qwen-vl-utils' rules, instead of `resizer` */
    int resizer_size[4];      /* height, width of the resizer's input, then of its output */
    AVFrame *frame;           /* the frame being received */
    AVFrame *last;            /* the last decoded frame, number n_decoded - 1 */
    qvm_turn turn;            /* the rotation of all frames */
    qvm_image image;          /* the RGB of frame number n_image */
    int64_t n_image;          /* the number of the frame in `image`; -1: none yet */
    int64_t n_decoded;
    int64_t n_corrupt; /* frames that the decoder concealed */
    int64_t n_missing; /* frames requested past the end */
    bool at_end;
    qvm_times times;
    qvm_span span;               /* the file's packets */
    struct qvm_count count;      /* the count of the file's frames */
    const char *why;             /* why all packets are decoded, or NULL */
    int64_t n_given;             /* packets given to decoders that are closed now */
    struct qvm_gpu_decoder *gpu; /* the caller's GPU decoder, or NULL */
    int32_t gpu_slot;            /* the last frame's slot if the frame is only there, else -1 */
    const char *not_gpu; /* why the GPU does not decode the frames; NULL: it does, or need not */
} qvm_reader;

/* Opens a file, and sets `outcome` to its properties. The caller must call qvm_reader_close even
 * after an error. `fd` and `watch` outlive the reader. */
qv_status qvm_reader_open(qvm_reader *reader, int fd, const qvm_watch *watch, qv_outcome *outcome,
                          qv_error *err);
/* Returns the size of a frame's planes from a GPU; 0, with the reason in not_gpu, if no GPU can
 * decode. */
int64_t qvm_reader_plane_bytes(qvm_reader *reader);
/* Sets which frames will be read, in ascending order, and at which size. Packets that they do not
 * need are skipped if they can be identified. */
qv_status qvm_reader_start(qvm_reader *reader, const int64_t *frames, int64_t n, int height,
                           int width, qv_error *err);
/* Reads a frame to dst[height, width, 3]: one of qvm_reader_start's frames, not earlier than the
 * last call's. The last frame stands for any frame past the end. If stopped, dst may be
 * unchanged. */
qv_status qvm_reader_read(qvm_reader *reader, int64_t index, int height, int width, uint8_t *dst,
                          qv_error *err);
/* Returns how many frames have been concealed, lost or replaced. */
int64_t qvm_reader_damaged(const qvm_reader *reader);
/* Returns how many packets decoders have been given, including packets decoded to count frames. */
int64_t qvm_reader_decoded(const qvm_reader *reader);
void qvm_reader_close(qvm_reader *reader);

/* ---- file_index.c: what a reader learned from all packets ------------------------------------ */

/* A packet, as qvm_time has it. `flags` are file_index.c's. */
typedef struct qvm_index_entry {
    int64_t pts;
    int8_t layer;
    uint8_t flags;
} qvm_index_entry;

/* An index of a file. A decoder process sends it to the clip, which passes it on to later decoder
 * processes of the same file. */
typedef struct qvm_index {
    int64_t n_entries, n_frames, errors;
    qvm_span span;
    int32_t top_layer;
    uint8_t parameters, descending, sets_change, may_lack;
    char unsure[64];      /* why the times are unreliable; "": they are reliable */
    qvm_index_entry at[]; /* [n_entries], in the order of the file */
} qvm_index;

/* Returns the size in bytes of an index with that many entries. */
size_t qvm_index_bytes(int64_t n_entries);
/* Returns whether the bytes are an index that is safe to read. Its contents may be wrong. */
bool qvm_index_is_whole(const qvm_index *index, int64_t bytes);
/* Makes the index of an open reader's file; the caller free()s it. NULL if out of memory. */
qvm_index *qvm_index_make(const qvm_reader *reader);
/* Fills empty times from an index that outlives them. Returns false if out of memory. */
bool qvm_index_take(const qvm_index *index, const qvm_source *source, qvm_times *times);

/* ---- serve.c: the decoder process of a clip -------------------------------------------------- */

typedef struct qvm_serving {
    const qvm_session *session;
    qvm_reader reader;
    uint8_t *shared;
    double said_s;       /* the time when the last event was sent */
    qv_outcome outcome;  /* the facts known so far */
    int64_t last;        /* number of the last requested frame */
    int64_t index_bytes; /* bytes of the index that follows the facts */
    int64_t plane_bytes; /* size of a frame's planes from a GPU; 0: no GPU will decode */
    const char *no_gpu;  /* why no GPU could decode the clip, if the reader has no reason */
    bool listens;        /* the thread `listener` was started */
    pthread_t listener;
    atomic_bool stop;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* the members below are read and written under the lock */
    qvm_request open, start; /* the requests; `kind` is -1 until the request has arrived */
    int64_t n_freed;
    qvm_index *index; /* the index that came with `open`; NULL: none */
} qvm_serving;

/* Serves a clip until its last frame is in its slot or the clip is closed, then exits. */
void qvm_serve(qvm_serving *s, const qvm_session *session);

/* ---- make_clip.c ----------------------------------------------------------------------------- */

/* Makes a clip at arguments[0] of the shape arguments[1], and reports the result. Returns the exit
 * code. */
int qvm_make_clip(int socket, char **arguments);

/* ---- libraries.c ----------------------------------------------------------------------------- */

/* Makes forks of this process share its libraries' data instead of copying it. */
void qvm_share_libraries(void);

/* ---- sandbox.c ------------------------------------------------------------------------------- */

/* The kinds of process that a line of lock.inc applies to. */
enum { QVM_LOCK_NEITHER, QVM_LOCK_CLIP, QVM_LOCK_GPU, QVM_LOCK_BOTH };

/* Runs the program with the GPU of this number open (gpu_process.c), locked down. Returns the exit
 * code. */
int qvm_gpu_process_run(int socket, const char *number);

/* Closes all descriptors from the number `first` on. */
void qvm_close_from(int first);
/* On Linux, ends this process with its parent, even if hostile code has taken it over. The signal
 * is sent when the *thread* that made this process ends, so that thread must live as long as the
 * parent. On other systems the process ends when its socket is closed. */
void qvm_end_with(pid_t parent);
/* Builds the system call filter once, before the forks, because that is slow. */
void qvm_sandbox_prepare(void);
/* Locks this process down permanently. It keeps `memory` bytes (0: no limit), the descriptors below
 * first_fd except standard output and error, and the system calls that decoding needs (lock.inc).
 * On macOS, which has no filter, only the limits apply. Returns NULL, or what failed, with
 * errno. */
const char *qvm_sandbox(int64_t memory, int first_fd);
/* Lock down a process that opens a GPU, in two steps: first, before the driver starts and makes
 * threads, restrict files to landlock.c's; then lock down all of its threads. Return as above. */
const char *qvm_sandbox_files(void);
const char *qvm_sandbox_gpu(void);
