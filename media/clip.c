/* SPDX-License-Identifier: MIT */
/*
 * A clip: opens the file, has it decided which frames are read and at which size (choose.c), and
 * takes them from its decoder (serve.c), which runs in a process of its own, or for trusted files in
 * a thread.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "media.h"

#define RING_FRAMES 16
#define RING_BYTES (64 << 20)
#define PAGE 4096
#define MAX_PIXELS ((int64_t)1 << 40) /* as in preprocessor files */
#define DEFAULT_MEMORY ((int64_t)4 << 30)
#define DEFAULT_PATIENCE_S 60.0

/* The most that a far end can honestly say. */
#define MAX_RATE 2147483648.0 /* frames a second, a quotient of two int */
#define MAX_SECONDS (QVM_MAX_FRAMES * MAX_RATE)
#define MAX_BUSY_S 1e9
#define MAX_DAMAGED ((int64_t)1 << 40) /* packets of any file */

struct qv_clip {
    char *path;
    qv_clip_info info;
    int64_t *indices; /* [info.n_frames], ascending, may repeat */
    int64_t memory;   /* limit of the process that decodes, bytes */
    double patience_s;
    bool is_file; /* whose identity is in info; else bytes in memory */

    /* the far end, which decodes: a thread or a process (serve.c) */
    qvm_session far;
    qv_decoder *decoder, *own_decoder;
    pid_t pid; /* 0: a thread */
    pthread_t thread;
    bool has_thread;
    int socket; /* to the far end */
    bool asked; /* it may have read the file, and is whoever made that */
    uint8_t *shared;
    qvm_request start; /* how the shared memory is laid out */
    size_t frame_bytes;

    int64_t n_taken;
    int64_t damaged;
    double busy_s;
    qv_status status; /* why it ended early */
    qv_error error;
};

/* ---- options --------------------------------------------------------------------------------- */

static qv_status
check_options(const char *path, const qv_clip_options *o, qv_error *err)
{
    if (o->fps != 0.0 && o->num_frames != 0)
        return qv_fail(err, QV_EINVAL, "%s: fps %g and num_frames %lld exclude each other", path,
                       o->fps, (long long)o->num_frames);
    if (!(o->fps >= 0.0 && o->fps <= 1e6))
        return qv_fail(err, QV_EINVAL, "%s: fps %g; above 0, or 0 for the model's", path, o->fps);
    if (o->num_frames < 0 || o->num_frames > QVM_MAX_SAMPLED)
        return qv_fail(err, QV_EINVAL, "%s: num_frames %lld; 1 to %d", path,
                       (long long)o->num_frames, QVM_MAX_SAMPLED);
    if (o->min_frames < 0 || o->max_frames < 0 || o->max_frames > QVM_MAX_SAMPLED)
        return qv_fail(err, QV_EINVAL, "%s: min_frames %lld, max_frames %lld; 1 to %d", path,
                       (long long)o->min_frames, (long long)o->max_frames, QVM_MAX_SAMPLED);
    if (o->min_pixels < 0 || o->max_pixels < 0 || o->min_pixels > MAX_PIXELS ||
        o->max_pixels > MAX_PIXELS)
        return qv_fail(err, QV_EINVAL, "%s: min_pixels %lld, max_pixels %lld; 1 to %lld", path,
                       (long long)o->min_pixels, (long long)o->max_pixels, (long long)MAX_PIXELS);
    if (o->like != QV_LIKE_TRANSFORMERS && o->like != QV_LIKE_QWEN_VL_UTILS)
        return qv_fail(err, QV_EINVAL, "%s: like is %d; see qv_like", path, (int)o->like);
    if (o->like == QV_LIKE_QWEN_VL_UTILS && o->cap_pixels)
        return qv_fail(err, QV_EINVAL,
                       "%s: cap_pixels goes with transformers' rules; qwen-vl-utils always caps",
                       path);
    if (o->total_pixels < 0 || (o->total_pixels && o->like != QV_LIKE_QWEN_VL_UTILS))
        return qv_fail(
            err, QV_EINVAL,
            "%s: total_pixels %lld; at least 1, and with the rules of qwen-vl-utils alone", path,
            (long long)o->total_pixels);
    if (o->threads < 0)
        return qv_fail(err, QV_EINVAL, "%s: %d threads; at least 1, or 0 for FFmpeg's choice", path,
                       o->threads);
    if (o->decode_memory < 0 || !(o->decode_seconds >= 0.0 && o->decode_seconds <= 1e6))
        return qv_fail(err, QV_EINVAL, "%s: decode_memory %lld, decode_seconds %g; above 0, or 0",
                       path, (long long)o->decode_memory, o->decode_seconds);
#ifdef QVM_CLIENT
    if (o->trusted)
        return qv_fail(err, QV_EUNSUPPORTED,
                       "%s: trusted; this build decodes in processes of their own alone", path);
#else
    if (o->trusted && o->decoder)
        return qv_fail(err, QV_EINVAL, "%s: trusted, and with a decoder: one of the two", path);
#endif
    if (o->offset < 0 || o->length < 0 || (o->bytes && (o->offset || o->length)))
        return qv_fail(err, QV_EINVAL, "%s: offset %lld, length %lld; from 0 up, of a file", path,
                       (long long)o->offset, (long long)o->length);
    if (!o->bytes != !o->n_bytes)
        return qv_fail(err, QV_EINVAL, "%s: %zu bytes, which are %s", path, o->n_bytes,
                       o->bytes ? "empty" : "NULL");
    if (!(o->start_s >= 0.0 && isfinite(o->start_s)))
        return qv_fail(err, QV_EINVAL, "%s: start %g; seconds from 0 up", path, o->start_s);
    if (!(o->end_s >= 0.0 && isfinite(o->end_s)))
        return qv_fail(err, QV_EINVAL, "%s: end %g; seconds above 0, or 0 for the clip's end", path,
                       o->end_s);
    if (o->end_s > 0.0 && o->end_s <= o->start_s)
        return qv_fail(err, QV_EINVAL, "%s: end %.15g; above start, %.15g", path, o->end_s,
                       o->start_s);
    for (size_t i = 0; i < sizeof o->reserved / sizeof o->reserved[0]; i++)
        if (o->reserved[i])
            return qv_fail(err, QV_EINVAL, "%s: clip options: reserved field %zu is not zero", path,
                           i);
    return QV_OK;
}

/* ---- the file -------------------------------------------------------------------------------- */

/* The bytes in a file without a name. */
static qv_status
open_bytes(qv_clip *clip, const void *bytes, size_t n, qv_error *err)
{
#ifdef __linux__
    void *at = MAP_FAILED;
    clip->far.clip = qvm_shared_memory();
    if (clip->far.clip >= 0 && n <= INT64_MAX && qvm_shared_memory_size(clip->far.clip, (int64_t)n))
        at = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, clip->far.clip, 0);
    if (at == MAP_FAILED)
        return qv_fail(err, QV_ENOMEM, "%s: no memory for its %zu bytes: %s", clip->path, n,
                       strerror(errno));
    memcpy(at, bytes, n);
    munmap(at, n);
    return QV_OK;
#else
    (void)bytes;
    return qv_fail(err, QV_EUNSUPPORTED,
                   "%s: %zu bytes in memory; on this system only files are "
                   "read",
                   clip->path, n);
#endif
}

#ifdef __APPLE__
#define MTIME(st) (st).st_mtimespec
#else
#define MTIME(st) (st).st_mtim
#endif

static int64_t
mtime_ns(const struct stat *st)
{
    return (int64_t)MTIME(*st).tv_sec * 1000000000 + MTIME(*st).tv_nsec;
}

static qv_status
open_file(qv_clip *clip, const qv_clip_options *o, qv_error *err)
{
    const char *path = clip->path;
    struct stat info;
    if (o->bytes)
        return open_bytes(clip, o->bytes, o->n_bytes, err);
    if (stat(path, &info))
        return qv_fail(err, QV_EIO, "%s: cannot be opened: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode)) /* before open(), which waits on a pipe without a writer */
        return qv_fail(err, QV_EIO, "%s: not a regular file", path);
    clip->far.clip = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (clip->far.clip < 0 || fstat(clip->far.clip, &info)) /* it may be another by now */
        return qv_fail(err, QV_EIO, "%s: cannot be opened: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return qv_fail(err, QV_EIO, "%s: not a regular file", path);
    if (info.st_size == 0)
        return qv_fail(err, QV_EFORMAT, "%s: the file is empty; a clip or an image is expected",
                       path);
    if (o->offset >= info.st_size || o->length > info.st_size - o->offset)
        return qv_fail(err, QV_EFORMAT,
                       "%s: a clip of %lld bytes from byte %lld on; the file has %lld", path,
                       (long long)o->length, (long long)o->offset, (long long)info.st_size);
    clip->is_file = true;
    clip->info.file_bytes = info.st_size;
    clip->info.file_mtime_ns = mtime_ns(&info);
    return QV_OK;
}

/* Whether nobody wrote to the open file since. One that took its name is another file. */
static qv_status
check_unchanged(const qv_clip *clip, qv_error *err)
{
    struct stat now;
    if (!clip->is_file)
        return QV_OK;
    if (fstat(clip->far.clip, &now))
        return qv_fail(err, QV_EIO, "%s: cannot be looked at: %s", clip->path, strerror(errno));
    return now.st_size == clip->info.file_bytes && mtime_ns(&now) == clip->info.file_mtime_ns
               ? QV_OK
               : qv_fail(err, QV_EFORMAT,
                         "%s: the file changed while it was read; it is to be done again",
                         clip->path);
}

/* ---- the far end ----------------------------------------------------------------------------- */

static void *
serve(void *user)
{
#ifdef QVM_CLIENT /* without FFmpeg: check_options lets nobody come here */
    (void)user;
#else
    qvm_serve(user);
#endif
    return NULL;
}

static void
close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static qv_status
start_process(qv_clip *clip, qv_decoder *shared, qv_error *err)
{
    qv_error inner;
    qv_status status = QV_OK;
    clip->decoder = shared;
    if (!shared) {
        status = qv_decoder_start(NULL, &clip->own_decoder, &inner);
        clip->decoder = clip->own_decoder;
    }
    if (!status)
        status = qvm_session_start(clip->decoder, &clip->far, clip->memory, &clip->pid, &inner);
    close_fd(&clip->far.socket); /* or it would not show here that the process has ended */
    return status ? qv_fail(err, status, "%s: %s", clip->path, inner.text) : QV_OK;
}

static qv_status
start_far_end(qv_clip *clip, const qv_clip_options *o, qv_error *err)
{
    clip->far.alone = !o->trusted;
    clip->far.shared = qvm_shared_memory();
    if (clip->far.shared < 0 || !qvm_stream(&clip->socket, &clip->far.socket))
        return qv_fail(err, QV_ENOMEM, "%s: no means to talk to a decoder: %s", clip->path,
                       strerror(errno));
    if (!o->trusted)
        return start_process(clip, o->decoder, err);
    clip->has_thread = !pthread_create(&clip->thread, NULL, serve, &clip->far);
    return clip->has_thread ? QV_OK
                            : qv_fail(err, QV_ENOMEM, "%s: no thread can be started", clip->path);
}

/* Ends the far end. With `ask`, waits for that: waitpid's status, -1 if nobody knows. Else 0. */
static int
end_far_end(qv_clip *clip, bool ask)
{
    int how = 0;
    close_fd(&clip->socket); /* a thread ends once it sees that */
    if (clip->has_thread)
        pthread_join(clip->thread, NULL);
    else
        close_fd(&clip->far.socket);
    if (clip->pid && ask)
        how = qvm_session_end(clip->decoder, clip->pid);
    else if (clip->pid)
        qvm_session_drop(clip->decoder, clip->pid);
    clip->has_thread = false;
    clip->pid = 0;
    return how;
}

/* ---- what the far end says ------------------------------------------------------------------- */

/* Whether what the far end says, or how it ends, is the clip's doing. */
static bool
is_strange(const qv_clip *clip)
{
    return clip->asked && clip->far.alone;
}

/* The error for a far end that has gone or, if `silent` says so in words, is silent. Frames that came
 * before are good. */
static qv_status
explain_end(qv_clip *clip, const char *silent, qv_error *err)
{
    const int how = end_far_end(clip, true);
    if (how == -1)
        return qv_fail(err, QV_EBACKEND, "%s: the program that decodes has ended", clip->path);
    if (silent)
        return qv_fail(err, QV_EFORMAT, "%s: %s for %g s (decode_seconds): it was ended",
                       clip->path, silent, clip->patience_s);
    if (WIFSIGNALED(how))
        return qv_fail(err, QV_EFORMAT, "%s: decoding it crashed, with signal %d (%s)", clip->path,
                       WTERMSIG(how), strsignal(WTERMSIG(how)));
    return qv_fail(err, is_strange(clip) ? QV_EFORMAT : QV_EBACKEND,
                   "%s: its decoder left without a word, with exit code %d", clip->path,
                   WIFEXITED(how) ? WEXITSTATUS(how) : 0);
}

/* The socket fails here; the far end is well, and is ended. */
static qv_status
lose_it(qv_clip *clip, int why, qv_error *err)
{
    end_far_end(clip, false);
    return qv_fail(err, QV_EBACKEND, "%s: no way to talk to its decoder: %s", clip->path,
                   strerror(why));
}

/* How long the far end is waited for. A thread cannot be ended: as long as it takes. */
static double
until(const qv_clip *clip)
{
    return clip->pid ? qvm_seconds() + clip->patience_s : INFINITY;
}

/* A far end that has gone is no error yet: what it sent last is still to be read, and says why. One
 * that is there and takes nothing is, as is any other failure, or both ends would wait for ever. */
static qv_status
tell(qv_clip *clip, const qvm_request *request, qv_error *err)
{
    const int code = qvm_send_until(clip->socket, request, sizeof *request, until(clip));
    if (!code || code == EPIPE || code == ECONNRESET)
        return QV_OK;
    if (code == ETIMEDOUT)
        return explain_end(clip, "its decoder takes no requests", err);
    return lose_it(clip, code, err);
}

/* The next event, whole. */
static qv_status
receive_event(qv_clip *clip, qvm_event *event, qv_error *err)
{
    const int code = qvm_receive_until(clip->socket, event, sizeof *event, until(clip));
    if (code == ETIMEDOUT || code == ECONNRESET)
        return explain_end(clip, code == ETIMEDOUT ? "no sign of life from its decoder" : NULL,
                           err);
    return code ? lose_it(clip, code, err) : QV_OK;
}

/* Terminates a text and replaces what is no ASCII, which JSON may refuse, and control characters, which
 * a terminal would obey. */
static void
make_printable(char *text, size_t size)
{
    text[size - 1] = 0;
    for (char *c = text; *c; c++)
        if (*c < ' ' || *c > '~')
            *c = '?';
}

/* False for what is no number. */
static bool
is_between(double value, double least, double most)
{
    return value >= least && value <= most;
}

static bool
are_facts_possible(const qv_clip_info *f)
{
    unsigned char is_image;
    memcpy(&is_image, &f->is_image, 1); /* to read another value as a bool is undefined */
    if (is_image > 1 || f->source_width < 1 || f->source_width > QVM_MAX_SIDE ||
        f->source_height < 1 || f->source_height > QVM_MAX_SIDE ||
        (int64_t)f->source_width * f->source_height > QVM_MAX_PIXELS)
        return false;
    if (f->source_frames < 1 || f->source_frames > QVM_MAX_FRAMES || f->rotation % 90 ||
        f->rotation < 0 || f->rotation > 270)
        return false;
    if (is_image)
        return f->source_frames == 1 && f->source_fps == 0.0 && f->duration_s == 0.0;
    return is_between(f->source_fps, 1 / MAX_RATE, MAX_RATE) &&
           is_between(f->duration_s, 0, MAX_SECONDS);
}

/* Copies what the far end says of the file; what is decided on this side stays as it is. */
static void
take_facts(qv_clip_info *info, const qv_clip_info *said)
{
    info->is_image = said->is_image;
    memcpy(info->codec, said->codec, sizeof info->codec);
    memcpy(info->format, said->format, sizeof info->format);
    info->source_width = said->source_width;
    info->source_height = said->source_height;
    info->rotation = said->rotation;
    info->source_fps = said->source_fps;
    info->duration_s = said->duration_s;
    info->source_frames = said->source_frames;
}

/* Takes what an event tells; false if it cannot come now, or tells what cannot be. */
static bool
accept_event(qv_clip *clip, qvm_event *e)
{
    const bool open = clip->shared != NULL;
    if (e->damaged < 0 || e->damaged > MAX_DAMAGED || !is_between(e->busy_s, 0, MAX_BUSY_S))
        return false;
    clip->damaged = e->damaged;
    clip->busy_s = e->busy_s;
    switch (e->kind) {
    case QVM_READY: return !clip->asked;
    case QVM_ALIVE: return clip->asked;
    case QVM_FACTS:
        make_printable(e->facts.codec, sizeof e->facts.codec);
        make_printable(e->facts.format, sizeof e->facts.format);
        return clip->asked && !open && are_facts_possible(&e->facts);
    case QVM_FRAME: return open;
    case QVM_END:
        make_printable(e->text, sizeof e->text);
        return e->status > QV_OK && e->status <= QV_ESTATE;
    default: return false;
    }
}

/* A stranger's process can only have failed for its clip: it knows no fault of a device, of memory on this
 * side, or of a caller. */
static qv_status
status_of_end(const qv_clip *clip, qv_status said)
{
    const bool can_be = said == QV_EIO || said == QV_EUNSUPPORTED;
    return is_strange(clip) && !can_be ? QV_EFORMAT : said;
}

/* Waits for an event that is more than a sign of life. */
static qv_status
next_event(qv_clip *clip, qvm_event *event, qv_error *err)
{
    do {
        qv_status status = receive_event(clip, event, err);
        if (status)
            return status;
        if (!accept_event(clip, event)) {
            end_far_end(clip, false);
            return qv_fail(err, QV_EFORMAT, "%s: its decoder said what cannot be; it was ended",
                           clip->path);
        }
    } while (event->kind == QVM_ALIVE);
    if (event->kind != QVM_END)
        return QV_OK;
    if (event->status == QV_ENOMEM && is_strange(clip))
        return qv_fail(err, QV_EFORMAT,
                       "%s: %s, with the %lld MiB that its decoder has "
                       "(decode_memory)",
                       clip->path, event->text, (long long)(clip->memory >> 20));
    return qv_fail(err, status_of_end(clip, (qv_status)event->status), "%s: %s", clip->path,
                   event->text);
}

/* ---- opening --------------------------------------------------------------------------------- */

static qv_status
ask_for_facts(qv_clip *clip, const qv_clip_options *o, qv_error *err)
{
    const qvm_request open = { .kind = QVM_OPEN,
                               .threads = o->threads,
                               .like = (int32_t)o->like,
                               .cut = o->start_s > 0.0,
                               .offset = o->offset,
                               .length = o->length };
    qvm_event event;
    qv_status status = next_event(clip, &event, err); /* it is ready */
    clip->asked = !status;
    if (!status)
        status = tell(clip, &open, err);
    if (!status)
        status = next_event(clip, &event, err);
    if (!status)
        take_facts(&clip->info, &event.facts);
    return status;
}

/* Shared memory holds the frame numbers, and behind them slots for frames, which begin on pages. */
static qv_status
ask_for_frames(qv_clip *clip, qv_error *err)
{
    const int64_t n = clip->info.n_frames;
    qvm_request *r = &clip->start;
    *r = (qvm_request){
        .kind = QVM_START, .height = clip->info.height, .width = clip->info.width, .n_frames = n
    };
    clip->frame_bytes = 3 * (size_t)r->width * (size_t)r->height;
    r->slot_bytes = ((int64_t)clip->frame_bytes + PAGE - 1) / PAGE * PAGE;
    r->frames_at = (n * (int64_t)sizeof *clip->indices + PAGE - 1) / PAGE * PAGE;
    int64_t slots = RING_BYTES / r->slot_bytes;
    slots = slots < 2 ? 2 : slots > RING_FRAMES ? RING_FRAMES : slots;
    r->n_slots = (int)(slots > n ? n : slots);
    r->memory = r->frames_at + r->n_slots * r->slot_bytes;
    void *shared = MAP_FAILED;
    if (qvm_shared_memory_size(clip->far.shared, r->memory))
        shared =
            mmap(NULL, (size_t)r->memory, PROT_READ | PROT_WRITE, MAP_SHARED, clip->far.shared, 0);
    if (shared == MAP_FAILED)
        return qv_fail(err, QV_ENOMEM, "%s: no memory for %d frames of %dx%d: %s", clip->path,
                       r->n_slots, r->width, r->height, strerror(errno));
    clip->shared = shared;
    memcpy(clip->shared, clip->indices, (size_t)n * sizeof *clip->indices);
    return tell(clip, r, err);
}

static qv_status
open_clip(qv_clip *clip, const qv_preprocess *image, const qv_preprocess *video,
          const qv_clip_options *o, qv_error *err)
{
    qv_status status = open_file(clip, o, err);
    if (!status)
        status = start_far_end(clip, o, err);
    if (!status)
        status = ask_for_facts(clip, o, err);
    if (status)
        return status;
    const bool is_image = clip->info.is_image;
    const qv_preprocess standard = qv_preprocess_default(is_image);
    const qv_preprocess *p = is_image ? image : video;
    if (!p)
        p = &standard;
    status = qvm_choose(clip->path, p, o, &clip->info, &clip->indices, err);
    return status ? status : ask_for_frames(clip, err);
}

qv_status
qv_clip_open(const char *path, const qv_preprocess *image, const qv_preprocess *video,
             const qv_clip_options *options, qv_clip **out, qv_error *err)
{
    static const qv_clip_options defaults;
    if (!path || !out)
        return qv_fail(err, QV_EINVAL, "open clip: %s is NULL", path ? "out" : "path");
    const qv_clip_options *o = options ? options : &defaults;
    qv_status status = check_options(path, o, err);
    if (status)
        return status;
    qv_clip *clip = calloc(1, sizeof *clip);
    if (!clip)
        return qv_fail(err, QV_ENOMEM, "%s: no memory for a clip", path);
    clip->socket = clip->far.socket = clip->far.clip = clip->far.shared = -1;
    clip->memory = o->decode_memory ? o->decode_memory : DEFAULT_MEMORY;
    clip->patience_s = o->decode_seconds > 0 ? o->decode_seconds : DEFAULT_PATIENCE_S;
    clip->path = strdup(path);
    status = clip->path ? open_clip(clip, image, video, o, err)
                        : qv_fail(err, QV_ENOMEM, "%s: no memory for a clip", path);
    if (status)
        qv_clip_close(&clip);
    else
        *out = clip;
    return status;
}

void
qv_clip_close(qv_clip **handle)
{
    qv_clip *clip = handle ? *handle : NULL;
    if (!clip)
        return;
    end_far_end(clip, false);
    qv_decoder_stop(&clip->own_decoder);
    if (clip->shared)
        munmap(clip->shared, (size_t)clip->start.memory);
    close_fd(&clip->far.clip);
    close_fd(&clip->far.shared);
    free(clip->indices);
    free(clip->path);
    free(clip);
    *handle = NULL;
}

/* ---- reading --------------------------------------------------------------------------------- */

void
qv_clip_get_info(const qv_clip *clip, qv_clip_info *out)
{
    *out = clip->info;
}

double
qv_clip_busy_seconds(qv_clip *clip)
{
    return clip->busy_s;
}

int64_t
qv_clip_damaged(const qv_clip *clip)
{
    return clip->damaged;
}

/* Waits for the next frame; false at the end, or where it ended early. With the last one, or with a
 * failure that the bytes of another version may be the reason of, the file is looked at. */
static bool
wait_for_frame(qv_clip *clip)
{
    qvm_event event;
    if (clip->status || clip->n_taken == clip->info.n_frames)
        return false;
    clip->status = next_event(clip, &event, &clip->error);
    qv_error why;
    const bool last = !clip->status && clip->n_taken + 1 == clip->info.n_frames;
    const qv_status changed =
        last || clip->status == QV_EFORMAT ? check_unchanged(clip, &why) : QV_OK;
    if (changed) {
        clip->status = changed;
        clip->error = why;
    }
    return !clip->status;
}

qv_status
qv_clip_read(qv_clip *clip, uint8_t *dst, int64_t n_max, int64_t *n, double *timestamps_s,
             qv_error *err)
{
    if (!clip || !dst || !n || n_max < 1)
        return qv_fail(err, QV_EINVAL, "read clip: %s",
                       !clip  ? "clip is NULL"
                       : !dst ? "dst is NULL"
                       : !n   ? "n is NULL"
                              : "n_max is below 1");
    const qvm_request freed = { .kind = QVM_FREE };
    int64_t count = 0;
    for (; count < n_max && wait_for_frame(clip); count++) {
        const int64_t slot = clip->n_taken % clip->start.n_slots;
        memcpy(dst + (size_t)count * clip->frame_bytes,
               clip->shared + clip->start.frames_at + slot * clip->start.slot_bytes,
               clip->frame_bytes);
        if (timestamps_s)
            timestamps_s[count] =
                clip->info.is_image ? 0.0
                                    : (double)clip->indices[clip->n_taken] / clip->info.source_fps;
        clip->n_taken++;
        clip->status = tell(clip, &freed, &clip->error);
    }
    if (!count && clip->status)
        return qv_fail(err, clip->status, "%s", clip->error.text);
    *n = count;
    return QV_OK;
}
