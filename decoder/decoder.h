/* SPDX-License-Identifier: MIT */
/* Declarations that the decoder program's files share. */
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
    int shown;  /* pictures of the packet that are shown, as far as its headers tell */
    int layer;  /* HEVC: the temporal layer of the packet's picture; other codecs: 0 */
    bool spare; /* no picture of the same or a lower layer refers to the packet's picture */
    /* a keyframe to begin decoding with: everything shown after it is right to the bit */
    bool start;
    bool resets;     /* H.264, HEVC: the picture order count restarts */
    bool parameters; /* H.264, HEVC: the packet has parameter sets */
    bool may_hide;   /* a picture that `shown` counts may stay hidden */
    bool changes;    /* the container changes the format from this packet on */
    bool palette;    /* the container gives the palette of this packet and the following ones */
    /* a hash of headers that hold for later packets too (for Motion JPEG the order of its segments,
     * and which tables they bring); 0: none */
    uint64_t headers;
} qvm_packet;

/* Reads the headers in a packet of a stream with the parameters `par`, without decoding it. */
qvm_packet qvm_look_at_packet(const AVCodecParameters *par, const AVPacket *packet);
/* Returns whether qvm_look_at_packet's `shown` and `start` can be relied on. */
bool qvm_has_headers(enum AVCodecID codec);
/* Returns whether each frame needs only its own packet, provided that it has no palette and
 * headers are equal. */
bool qvm_is_stateless(enum AVCodecID codec);
/* Returns whether the stream's parameter sets let pictures be hidden that packets' headers show. */
bool qvm_may_hide_pictures(const AVCodecParameters *par);

/* ---- parameters.c: the parameter sets of packets that are left out --------------------------- */

/* Appends a packet's parameter sets to `kept`, which gives a decoder the sets that it would have
 * after all packets. *changed: a set differs from the last one of its type and number, or is not
 * among the stream's own. Returns false if out of memory, or above 64 KiB. */
bool qvm_keep_parameters(const AVCodecParameters *par, const AVPacket *packet, AVPacket *kept,
                         bool *changed);

/* ---- times.c: which frame has which time, and what it needs ---------------------------------- */

/* A packet of a file, and the frame that it decodes to. */
typedef struct qvm_time {
    int64_t pts;
    int32_t packet; /* the packet's number in the file's order */
    int8_t layer;
    bool start, spare; /* as in qvm_packet; after qvm_times_sort, `spare` only in the top layer */
    bool sampled;      /* the frame is asked for */
    bool needed;       /* the packet must be decoded for the frames that are asked for */
    bool fresh; /* a keyframe before which the decoder is flushed, as references were left out */
} qvm_time;

/* A keyframe whose qvm_time is `fresh`. */
typedef struct qvm_start {
    int32_t frame;  /* the keyframe's number in qvm_times.at */
    int64_t n_left; /* needed packets from this one (included) to the end of the file */
} qvm_start;

/* The times of all packets of a file, which give frames their numbers and tell which packets no
 * wanted frame needs. */
typedef struct qvm_times {
    qvm_time *at; /* [n] in the file's order, and after qvm_times_sort by ascending pts */
    int64_t n, room;
    int64_t n_looked;    /* packets of the file, including those without a time */
    const char *unsure;  /* why the times cannot be relied on; NULL: they can */
    bool descending;     /* some packet in the file has an earlier time than the one before it */
    bool parameters;     /* some packets have parameter sets */
    bool sets_change;    /* some parameter set replaces another one */
    bool may_lack;       /* some packet may show nothing, so that there may be fewer frames */
    uint64_t headers;    /* the first packet's, which every other packet's must equal */
    AVPacket *sets;      /* the parameter sets so far; NULL: none yet */
    bool each_shows_one; /* each packet shows one frame, as far as the headers tell */
    bool are_frames;     /* as many frames come out as there are packets */
    bool in_groups;      /* decoding may begin with any packet that is a start */
    /* references shown before a keyframe occupy places in the reference lists of what follows it */
    bool lists_leading;
    bool can_rewind; /* the container's index may lead to the first packet */
    bool can_seek;   /* the container's index leads to any keyframe, and decoding may begin there */
    int top_layer;   /* the highest layer of any packet */
    /* the time that the packets span which the container does not hide, in the stream's time base;
     * begin > end: none of them has a time */
    int64_t begin, end;
    int64_t n_needed, most_sampled; /* needed packets; the most frames asked for in a group */
    qvm_start *starts;              /* [n_starts] in the order of the file */
    int64_t n_starts;
} qvm_times;

/* Adds the file's next packet, unless the times are unsure. Returns false if out of memory. */
bool qvm_times_add(qvm_times *times, const AVCodecParameters *par, const AVPacket *packet);
/* Notes why the times cannot be relied on: static text to follow "since"; the first stays. */
void qvm_times_doubt(qvm_times *times, const char *why);
/* Sorts the times after the last packet was added, and sets the fields that follow from them. */
void qvm_times_sort(qvm_times *times, const AVFormatContext *format, const AVStream *stream);
void qvm_times_free(qvm_times *times);
/* Returns the number of the frame at pts, or -1 if there is none. */
int64_t qvm_times_find(const qvm_times *times, int64_t pts);
/* Marks the packets that frames[n] need; a number past the end means the last frame. The first
 * n_read packets count as needed, as the decoder has them. Returns false if out of memory. */
bool qvm_times_need(qvm_times *times, const int64_t *frames, int64_t n, int64_t n_read);
/* Returns the first needed frame from number i on, or times->n if there is none. */
int64_t qvm_times_next(const qvm_times *times, int64_t i);

/* ---- codec.c: FFmpeg's decoders, and their complaints ---------------------------------------- */

typedef struct qvm_codec {
    AVCodecContext *av;
    atomic_int complaints; /* errors that the decoder has logged, from any of its threads */
    int heard;             /* complaints at the last call of qvm_codec_complained */
    atomic_bool recovers;  /* decoding began at a recovery point */
    atomic_int has_words;  /* 2: `words` holds the first complaint; 1: it is being written there */
    char words[128];
} qvm_codec;

/* Keeps FFmpeg from printing, and counts its decoders' errors instead. */
void qvm_quiet(void);
/* Has the usual decoders make their tables, which later forks inherit. */
void qvm_warm_up(void);

/* Opens a decoder; `threads` is FFmpeg's thread_count. Returns 0 or FFmpeg's error code; the caller
 * frees codec->av in either case. `codec` begins as zeros, and must not move while it is open. */
int qvm_codec_open(qvm_codec *codec, const AVCodecParameters *par, AVRational time_base,
                   int threads);
/* Returns whether the decoder has complained since the last call. */
bool qvm_codec_complained(qvm_codec *codec);
/* Has the decoder, which has given all of its frames, continue with a keyframe after a gap. */
void qvm_codec_begin_anew(qvm_codec *codec);

/* ---- source.c: a file's frames, in order ----------------------------------------------------- */

struct qvm_index;
/* How the caller stops a long call and follows its progress, and what to read of the file. */
typedef struct qvm_watch {
    const atomic_bool *stop;   /* set from another thread: reads fail and frames end */
    void (*alive)(void *user); /* called at least once per packet */
    void *user;
    qv_clip_options asked;         /* its pointers are NULL */
    const struct qvm_index *index; /* what another reader found in the file; NULL: nothing yet */
    bool has_gpu;                  /* a GPU's decoders wait for the clip */
} qvm_watch;

typedef struct qvm_source {
    int fd;     /* the file, which is the caller's and outlives the source; it is read with pread */
    int64_t at; /* the byte of the clip that FFmpeg reads next */
    int io_errno; /* why the file could not be read; 0: it could */
    const qvm_watch *watch;
    const qv_image_kind *kind; /* what the first bytes say; NULL: they are no image's */
    /* an image that jpeg.c reads; of the members below, only `errors` and n_given then count */
    bool is_jpeg;
    bool more_jpegs; /* after this image another one of its size follows directly */
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
    bool only_first;        /* until it goes back, the decoder is given the first packet alone */
    bool draining;          /* no packet follows those that the decoder was given */
    bool emptying;          /* the packet waits until the decoder has given all frames before it */
    const qvm_times *times; /* says which packets are decoded; NULL: all are */
    AVPacket *parameters;   /* parameter sets of packets that were left out */
    int64_t n_read;         /* packets that were read, decoded or not */
    int64_t n_given;        /* packets that the decoder was given */
    int64_t n_left;         /* needed packets that are still to be read */
    int64_t next_start;     /* index of the first of the times' starts that may be ahead */
    int64_t errors;         /* packets that were lost, or that the decoder complained about */
} qvm_source;

/* Why floating-point samples are refused: programs differ on whether white is 1 or 255. */
#define QVM_FLOATS "its samples are floating-point numbers; integers of 8 or 16 bits are read"

/* Returns why nothing of the file can be decoded, in static text; NULL if its bytes do not tell
 * (unread.c). */
const char *qvm_why_unread(const qvm_source *source);
/* Returns whether a TIFF's pixels are compressed (unread.c). */
bool qvm_tiff_is_packed(const qvm_source *source);
/* Finds a TIFF's codes of black and white for Y, Cb and Cr, in this order (unread.c). */
void qvm_find_levels(const qvm_source *source, float levels[6]);

/* Reads n bytes of the clip from `at`, fewer only at its end. Returns how many; -1 with errno. */
int64_t qvm_source_read(const qvm_source *source, int64_t at, void *to, size_t n);

/* Sets source->kind by the file's first bytes. Returns false, with errno, if reading fails. */
bool qvm_source_find_kind(qvm_source *source);

/* Reads as qvm_source_read does, but a page at a time, so that a walk over parts of a few bytes
 * costs few calls (pages.c). All but `source` begins as zeros. */
typedef struct qvm_pages {
    const qvm_source *source;
    int64_t at, n; /* the n bytes of the clip from byte `at` on */
    uint8_t bytes[4096];
} qvm_pages;
/* Signals life with each page, and ends at once if the source was stopped. */
int64_t qvm_pages_read(qvm_pages *pages, int64_t at, void *to, size_t n);
/* Returns the number in at most 4 bytes, whose first is the upper one if it is `big`. */
uint32_t qvm_number(const uint8_t *at, int bytes, bool big);

/* Opens a file and its best video stream, as FFmpeg sees it. Fails with QV_EIO, QV_EFORMAT or
 * QV_ENOMEM; the source is closed then. `watch` outlives the source. */
qv_status qvm_source_open(qvm_source *source, int fd, const qvm_watch *watch, qv_error *err);
/* Opens the stream's decoder. `threads` counts as qvm_codec_open has it. */
qv_status qvm_source_open_decoder(qvm_source *source, int threads, qv_error *err);
/* Goes back to the first packet by the container's index for `pts`. *done becomes false if the
 * index leads elsewhere, because it lacks the packet or is wrong: the source must then be opened
 * again. */
qv_status qvm_source_rewind(qvm_source *source, int64_t pts, bool *done, qv_error *err);
void qvm_source_close(qvm_source *source);
bool qvm_source_is_image(const qvm_source *source);
/* Returns FFmpeg's name of the container, or of its kind of image file; the text is static. */
const char *qvm_source_format(const qvm_source *source);
enum AVCodecID qvm_source_codec(const qvm_source *source);

/* Decodes the next frame; *got is false at the end, or if stopped. Counts damage and goes on. */
qv_status qvm_source_next(qvm_source *source, AVFrame *frame, bool *got, qv_error *err);

/* Decodes only the packets that `times`, which outlives the source, marks as needed. */
void qvm_source_leave_out(qvm_source *source, const qvm_times *times);

/* Reads the stream's next packet into source->packet; *got is false after the last. */
qv_status qvm_source_packet(qvm_source *source, bool *got, qv_error *err);

/* ---- jpeg.c: JPEG files by libjpeg-turbo ----------------------------------------------------- */

/* Returns whether qvm_jpeg_read decodes the JPEG file: also true if the file cannot be read, since
 * qvm_jpeg_read says why; never true in a build without libjpeg-turbo. */
bool qvm_jpeg_is_readable(const qvm_source *source);
/* Decodes the image into an empty frame, as RGB24 and not turned. Sets source->more_jpegs. */
qv_status qvm_jpeg_read(qvm_source *source, AVFrame *frame, qv_error *err);

/* ---- orientation.c: which way up an image is ------------------------------------------------- */

/* Returns the orientation, 1 to 8 as EXIF counts, that Pillow finds in a JPEG, PNG, WebP, TIFF or
 * AVIF; 0: none; -1 with errno. */
int qvm_find_orientation(const qvm_source *source);

/* ---- rate.c: a clip's frames per second ------------------------------------------------------ */

/* The packets of a clip that its container does not hide, and the time from the first one's
 * beginning to the last one's end, in the stream's time base. */
typedef struct qvm_span {
    int64_t n, n_timed; /* packets, and how many of them have a time */
    int64_t begin, end;
} qvm_span;

/* Adds the file's next packet. */
void qvm_span_add(qvm_span *span, const AVPacket *packet);
/* Sets source_fps, header_fps and duration_s of a clip whose source_frames is set. */
void qvm_find_rate(const qvm_span *span, const AVStream *stream, qv_outcome *info);

/* ---- count.c: the number of a file's frames -------------------------------------------------- */

struct qvm_count {
    int64_t frames;
    int64_t errors;  /* errors met in decoding the frames */
    int64_t decoded; /* packets that were decoded to count */
};

/* Reads all packets of a source whose decoder is not open. `times` gets them, or the reason why
 * times cannot be relied on, and whether each packet is a frame. */
qv_status qvm_count_packets(qvm_source *source, qvm_times *times, qvm_span *span, qv_error *err);
/* Counts the frames of a file by decoding all of it. */
qv_status qvm_count_decoded(int fd, int threads, const qvm_watch *watch, struct qvm_count *count,
                            qv_error *err);
/* Returns QV_EFORMAT if n is above QVM_MAX_FRAMES. */
qv_status qvm_check_count(int64_t n, qv_error *err);

/* ---- convert.c: frames to upright RGB -------------------------------------------------------- */

typedef struct qvm_turn {
    bool transpose, flip_x, flip_y; /* applied to an image, in this order */
} qvm_turn;

typedef struct qvm_image {
    const uint8_t *rgb; /* [height, width, 3], whose rows are `stride` bytes apart */
    int64_t stride;
    int width, height;
} qvm_image;

/* Names the library whose RGB is wanted: torchcodec for clips, Pillow's library for images. */
typedef enum qvm_colour {
    QVM_CLIP,
    QVM_IMAGE,
    QVM_JPEG, /* FFmpeg's frames become libjpeg-turbo's RGB; frames of jpeg.c are that already */
    QVM_WEBP,
    QVM_AVIF,
    QVM_TIFF,
    QVM_RAW_TIFF, /* whose pixels Pillow converts itself */
    QVM_NETPBM
} qvm_colour;

typedef struct qvm_converter {
    qvm_colour colour;
    bool on_white;   /* transparent pixels are put on white; false: alpha is ignored */
    float levels[6]; /* TIFF: black and white of Y, of Cb and of Cr */
    struct SwsContext *sws;
    int kind[5];     /* all that `sws` and `rgb` depend on, of the frames that they are for */
    AVFrame *rgb;    /* the converted frame */
    uint8_t *turned; /* [turned_bytes] the converted and turned frame */
    size_t turned_bytes;
} qvm_converter;

/* Returns the turn of a stream's display matrix, as torchcodec reads it; none without a stream. */
qvm_turn qvm_find_turn(const AVStream *stream);
/* Returns the turn that EXIF's orientation 1 to 8 asks for; no turn for other numbers. */
qvm_turn qvm_exif_turn(int orientation);
int qvm_turn_degrees(qvm_turn turn);

/* Converts a frame to RGB and turns it. *out is valid until the next call, and while `frame` is. */
qv_status qvm_convert(qvm_converter *converter, const AVFrame *frame, qvm_turn turn, qvm_image *out,
                      qv_error *err);
void qvm_converter_close(qvm_converter *converter);

/* Finds the conversion's constants for FFmpeg's number of a colour space. */
void qvm_find_colours(int space, bool full_range, qvm_colours *out);
/* Returns whether its samples use all of their range. */
bool qvm_is_full_range(const AVFrame *frame);

/* Returns whether qvm_image_rgb accepts the format: planar YUV of 8 bits (chroma.c). */
bool qvm_is_plain_yuv(const AVPixFmtDescriptor *format);
/* Converts an image of JPEG, WebP, AVIF or TIFF to RGB. Returns false if out of memory. */
bool qvm_image_rgb(const AVFrame *frame, qvm_colour colour, const float levels[6], uint8_t *rgb,
                   int64_t stride);
/* Returns whether qvm_wide_rgb accepts the format: gray or RGB with more than 8 bits per sample. */
bool qvm_is_wide(const AVPixFmtDescriptor *format);
/* Converts such an image to 8-bit RGB, as Pillow does with netpbm's files or with others. */
void qvm_wide_rgb(const AVFrame *frame, bool netpbm, uint8_t *rgb, int64_t stride);

/* ---- frame_reader.c: a file -> what it is, and the frames that are asked for, resized -------- */

typedef struct qvm_reader {
    int fd;
    int threads; /* that decode: as many as were asked for, and 1 once damage was seen */
    const qvm_watch *watch;
    /* source.times: frames are numbered by it, and only what is needed is decoded; NULL: all is */
    qvm_source source;
    qvm_converter converter;
    qvm_resizer *resizer;     /* for transformers' rules; NULL until a frame is resized */
    qvm_resampler *resampler; /* for qwen-vl-utils' rules, instead of `resizer` */
    int resizer_size[4];      /* height, width of the resizer's input, then of its output */
    AVFrame *frame;           /* the frame that is being received */
    AVFrame *last;            /* the last decoded frame, number n_decoded - 1 */
    qvm_turn turn;            /* the turn of all frames */
    qvm_image image;          /* the RGB of frame number n_image */
    int64_t n_image;          /* the frame that `image` is of; -1: none yet */
    int64_t n_decoded;
    int64_t n_corrupt; /* frames that the decoder concealed */
    int64_t n_missing; /* frames that were asked for past the end */
    bool at_end;
    qvm_times times;
    qvm_span span;               /* the file's packets */
    struct qvm_count count;      /* the result of counting the file's frames */
    const char *why;             /* why all is decoded, where there is a reason; else NULL */
    int64_t n_given;             /* packets that were given to decoders which are closed */
    struct qvm_gpu_decoder *gpu; /* the caller's decoder on a GPU; NULL: there is none */
    int32_t gpu_slot;            /* the last frame's slot, if the frame is nowhere else; or -1 */
    const char *not_gpu; /* why the GPU does not give the frames; NULL: it does, or need not */
} qvm_reader;

/* Opens a file, and sets `info` to what it says of itself. The caller must call qvm_reader_close
 * even after an error. `fd` and `watch` outlive the reader. */
qv_status qvm_reader_open(qvm_reader *reader, int fd, const qvm_watch *watch, qv_outcome *info,
                          qv_error *err);
/* Returns the bytes of a frame's planes from a GPU; 0, with the reason in not_gpu, if none can
 * decode. */
int64_t qvm_reader_plane_bytes(qvm_reader *reader);
/* Sets which frames will be read, ascending, and at which size. Packets that they do not need are
 * left out if that can be told. */
qv_status qvm_reader_start(qvm_reader *reader, const int64_t *frames, int64_t n, int height,
                           int width, qv_error *err);
/* Reads a frame to dst[height, width, 3]: one of qvm_reader_start's, none before the last call's.
 * The last frame stands for any past the end. If stopped, dst may stay as it is. */
qv_status qvm_reader_read(qvm_reader *reader, int64_t index, int height, int width, uint8_t *dst,
                          qv_error *err);
/* Returns how many frames were concealed, lost or replaced so far. */
int64_t qvm_reader_damaged(const qvm_reader *reader);
/* Returns how many packets decoders were given so far, including those decoded to count frames. */
int64_t qvm_reader_decoded(const qvm_reader *reader);
void qvm_reader_close(qvm_reader *reader);

/* ---- file_index.c: what a reader learned from all packets ------------------------------------ */

/* A packet, as qvm_time has it. `flags` are file_index.c's. */
typedef struct qvm_index_entry {
    int64_t pts;
    int8_t layer;
    uint8_t flags;
} qvm_index_entry;

/* An index of a file. A decoder process sends it to the clip, which passes it to later decoder
 * processes of the same file. */
typedef struct qvm_index {
    int64_t n_entries, n_frames, errors;
    qvm_span span;
    int32_t top_layer;
    uint8_t parameters, descending, sets_change, may_lack;
    char unsure[64];      /* why the times cannot be relied on; "": they can */
    qvm_index_entry at[]; /* [n_entries], in the order of the file */
} qvm_index;

/* Returns the bytes of an index with that many entries. */
size_t qvm_index_bytes(int64_t n_entries);
/* Returns whether the bytes are an index that can be read safely. What it says may be untrue. */
bool qvm_index_is_whole(const qvm_index *index, int64_t bytes);
/* Makes the index of an open reader's file, for free(). NULL if out of memory. */
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
    int64_t last;        /* number of the last frame that was asked for */
    int64_t index_bytes; /* bytes of the index that follows the facts */
    int64_t plane_bytes; /* bytes of a frame's planes as a GPU gives them; 0: no GPU will decode */
    struct qvm_gpu_decoder *gpu; /* the decoder on a GPU; NULL: no GPU decodes */
    const char *no_gpu; /* why no GPU could decode the clip, unless the reader knows a reason */
    bool listens;       /* the thread `listener` was started */
    pthread_t listener;
    atomic_bool stop;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* the members below are read and written under the lock */
    qvm_request open, start; /* the requests; `kind` is -1 until one has come */
    int64_t n_freed;
    qvm_index *index; /* the index that came with `open`; NULL: none came */
} qvm_serving;

/* Serves a clip until its last frame is in its slot or the clip is closed, and ends the process. */
void qvm_serve(qvm_serving *s, const qvm_session *session);

/* ---- make_clip.c ----------------------------------------------------------------------------- */

/* Makes a clip at arguments[0] of the shape arguments[1], and reports the result. Returns the exit
 * code. */
int qvm_make_clip(int socket, char **arguments);

/* ---- libraries.c ----------------------------------------------------------------------------- */

/* Lets forks of this process share its libraries' data instead of copying it. */
void qvm_share_libraries(void);

/* ---- sandbox.c ------------------------------------------------------------------------------- */

/* The kinds of process that a line of lock.inc is about. */
enum { QVM_LOCK_NEITHER, QVM_LOCK_CLIP, QVM_LOCK_GPU, QVM_LOCK_BOTH };

/* Runs the program with the GPU of this number open (gpu_process.c), locked in. Returns the exit
 * code. */
int qvm_gpu_process_run(int socket, const char *number);

/* Closes all descriptors from the number `first` on. */
void qvm_close_from(int first);
/* On Linux, ends this process with its parent, even if hostile code has taken it over. The signal
 * comes when the *thread* that made this process ends, so that thread must live as long as the
 * parent. Elsewhere a process ends when its socket is closed. */
void qvm_end_with(pid_t parent);
/* Makes the filter of system calls once, before the forks, because that takes a while. */
void qvm_sandbox_prepare(void);
/* Locks this process in, for good. It keeps `memory` bytes (0: no limit), the descriptors below
 * first_fd but standard output and error, and the system calls that decoding needs (lock.inc). On
 * macOS, which has no filter, only the limits hold. Returns NULL, or what failed, with errno. */
const char *qvm_sandbox(int64_t memory, int first_fd);
/* Lock in a process that opens a GPU, in two steps: before the driver starts and makes threads, so
 * that it opens no files but landlock.c's; and after that, all of its threads. Return as above. */
const char *qvm_sandbox_files(void);
const char *qvm_sandbox_gpu(void);
