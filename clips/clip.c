/* SPDX-License-Identifier: MIT */
/* A clip: opens the file, lets choose.c decide which frames are read and their size, and receives
 * them from the decoder process. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "decoder_process.h"
#include "numbers.h"

#define RING_FRAMES 16
#define PAGE 4096

struct qv_clip {
    struct qvm_task task;
    qv_outcome outcome;
    int64_t *indices; /* [outcome.n_frames], ascending, possibly repeated */
    qvm_identity file;
    struct qvm_process process;
    uint8_t *shared;
    qvm_request start; /* the layout of the shared memory */
    size_t mapped;     /* bytes of shared memory that are mapped */
    size_t frame_bytes;

    int64_t n_taken;
    int32_t gpu_slot;  /* where the next frame is, as qvm_event has it */
    bool started_over; /* the decoder was lost, and the clip is decoded again from its beginning */
    qv_status status;  /* why the clip ended early */
    qv_error error;    /* without the path, which the public functions put in front */
};

/* ---- the file -------------------------------------------------------------------------------- */

/* Copies the bytes into an unnamed file. */
static qv_status
open_bytes(qv_clip *clip, const void *bytes, size_t n, qv_error *err)
{
#ifdef __linux__
    void *at = MAP_FAILED;
    clip->process.session.clip = qvm_shared_memory();
    if (clip->process.session.clip >= 0 && n <= INT64_MAX &&
        qvm_shared_memory_size(clip->process.session.clip, (int64_t)n))
        at = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, clip->process.session.clip, 0);
    if (at == MAP_FAILED)
        return qv_fail(err, QV_ENOMEM, "no memory for its %zu bytes: %s", n, strerror(errno));
    memcpy(at, bytes, n);
    munmap(at, n);
    return QV_OK;
#else
    (void)bytes;
    return qv_fail(err, QV_EUNSUPPORTED, "%zu bytes in memory; on this system clips must be files",
                   n);
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
fail_to_open(const char *path, int code, qv_error *err)
{
    return strstr(path, "://") && code == ENOENT
               ? qv_fail(
                     err, QV_EIO,
                     "this is a URL, but only local files can be read: download it first "
                     "(curl -LO URL, aws s3 cp URL .), or give its path on a mounted file system")
               : qv_fail(err, qv_status_of_errno(code), "cannot be opened: %s", strerror(code));
}

static qv_status
open_file(qv_clip *clip, qv_error *err)
{
    const struct qvm_task *t = &clip->task;
    const qvm_asked *o = &t->asked;
    const char *path = t->path;
    struct stat info;
    if (t->bytes)
        return open_bytes(clip, t->bytes, t->n_bytes, err);
    if (stat(path, &info))
        return fail_to_open(path, errno, err);
    /* checked before open(), which would block on a pipe without a writer */
    if (!S_ISREG(info.st_mode))
        return qv_fail(err, QV_EIO, "not a regular file");
    clip->process.session.clip = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (clip->process.session.clip < 0 ||
        fstat(clip->process.session.clip, &info)) /* another file may have taken the name since */
        return fail_to_open(path, errno, err);
    if (!S_ISREG(info.st_mode))
        return qv_fail(err, QV_EIO, "not a regular file");
    if (info.st_size == 0)
        return qv_fail(err, QV_EFORMAT, "the file is empty; a clip or an image is expected");
    if (o->offset >= info.st_size || o->length > info.st_size - o->offset)
        return qv_fail(err, QV_EFORMAT,
                       "offset is %lld and length %lld (0: to the end), but the file has only %lld "
                       "bytes",
                       (long long)o->offset, (long long)o->length, (long long)info.st_size);
    clip->outcome.file_bytes = info.st_size;
    clip->outcome.file_mtime_ns = mtime_ns(&info);
    clip->file = (qvm_identity){ .device = (uint64_t)info.st_dev,
                                 .inode = (uint64_t)info.st_ino,
                                 .bytes = clip->outcome.file_bytes,
                                 .mtime_ns = clip->outcome.file_mtime_ns,
                                 .offset = o->offset,
                                 .length = o->length,
                                 .like = (int32_t)o->like };
    return QV_OK;
}

/* Checks that nobody has written to the open file since. Another file may have its name by now. */
static qv_status
check_unchanged(const qv_clip *clip, qv_error *err)
{
    struct stat now;
    if (clip->task.bytes)
        return QV_OK;
    if (fstat(clip->process.session.clip, &now))
        return qv_fail(err, QV_EIO, "cannot be examined: %s", strerror(errno));
    return now.st_size == clip->outcome.file_bytes && mtime_ns(&now) == clip->outcome.file_mtime_ns
               ? QV_OK
               : qv_fail(err, QV_EFORMAT, "the file changed while it was read; encode it again");
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Returns the index that another stretch of this file has stored; NULL if there is none. */
static void *
find_index(const qv_clip *clip, int64_t *bytes)
{
    qv_decoder *decoder = clip->process.decoder;
    pthread_mutex_lock(&decoder->kept_lock);
    void *index = qvm_kept_copy(&decoder->kept, &clip->file, bytes);
    pthread_mutex_unlock(&decoder->kept_lock);
    return index;
}

/* Receives the index that follows the facts, and stores it for other stretches of the file. */
static qv_status
keep_index(qv_clip *clip, int64_t bytes, qv_error *err)
{
    qv_decoder *decoder = clip->process.decoder;
    void *index = malloc((size_t)bytes);
    if (!index)
        return qv_fail(err, QV_ENOMEM, "no memory for an index of %lld bytes", (long long)bytes);
    qv_status status = qvm_process_receive(&clip->process, index, (size_t)bytes, err);
    if (!status)
        status = check_unchanged(clip, err);
    if (status) {
        free(index);
        return status;
    }
    pthread_mutex_lock(&decoder->kept_lock);
    qvm_kept_put(&decoder->kept, &clip->file, index, bytes);
    pthread_mutex_unlock(&decoder->kept_lock);
    return QV_OK;
}

static qv_status
ask_for_facts(qv_clip *clip, int64_t *plane_bytes, qv_error *err)
{
    const struct qvm_task *t = &clip->task;
    qvm_request open = { .kind = QVM_OPEN, .asked = t->asked };
    qvm_event event;
    qv_status status = qvm_process_next(&clip->process, &event, err); /* the decoder is ready */
    clip->process.asked = !status;
    if (status)
        return status;
    const bool shares = !t->bytes && clip->process.decoder == t->decoder && t->decoder && t->cuts &&
                        !t->asked.first_frame;
    void *index = shares ? find_index(clip, &open.index_bytes) : NULL;
    clip->process.gives_index = shares && !index;
    open.wants_index = clip->process.gives_index;
    status = qvm_process_tell(&clip->process, &open, err);
    if (!status && index)
        status = qvm_process_send(&clip->process, index, (size_t)open.index_bytes, err);
    free(index);
    if (!status)
        status = qvm_process_next(&clip->process, &event, err);
    if (!status && event.index_bytes)
        status = keep_index(clip, event.index_bytes, err);
    if (status)
        return status;
    *plane_bytes = qv_round_up(event.plane_bytes, PAGE);
    return QV_OK;
}

/* Allocates shared memory for the frame numbers and then page-aligned slots for frames, and asks
 * the decoder for the frames. */
static qv_status
ask_for_frames(qv_clip *clip, int64_t plane_bytes, qv_error *err)
{
    const int64_t n = clip->outcome.n_frames;
    qvm_request *r = &clip->start;
    *r = (qvm_request){ .kind = QVM_START,
                        .height = clip->outcome.height,
                        .width = clip->outcome.width,
                        .n_frames = n };
    clip->frame_bytes = 3 * (size_t)r->width * (size_t)r->height;
    r->slot_bytes = qv_round_up((int64_t)clip->frame_bytes, PAGE);
    r->frames_at = qv_round_up(n * (int64_t)sizeof *clip->indices, PAGE);
    int64_t slots = QV_RING_BYTES / r->slot_bytes;
    slots = slots < 2 ? 2 : slots > RING_FRAMES ? RING_FRAMES : slots;
    r->n_slots = (int)(slots > n ? n : slots);
    r->memory = r->frames_at + r->n_slots * r->slot_bytes;
    /* The GPU may return RGB, which needs twice the bytes of planes of the same size. */
    if (plane_bytes < r->slot_bytes && r->slot_bytes <= 3 * plane_bytes)
        plane_bytes = r->slot_bytes;
    r->plane_bytes = plane_bytes;
    /* One slot per frame, if that needs neither more memory than a job allows for a decoder, nor
     * more address space than the planes of the largest frames. */
    const bool fits = n <= QVM_MOST_SLOTS && n <= QV_RING_BYTES / r->slot_bytes &&
                      n * plane_bytes <= (int64_t)QVM_SLOTS * QVM_MOST_PLANES;
    r->n_planes = n > QVM_SLOTS && fits ? n : QVM_SLOTS;
    clip->mapped = (size_t)(r->memory + r->n_planes * plane_bytes);
    r->gpu_patience_s = clip->task.patience_s / 3;
    void *shared = MAP_FAILED;
    if (qvm_shared_memory_size(clip->process.session.shared, (int64_t)clip->mapped))
        shared = mmap(NULL, clip->mapped, PROT_READ | PROT_WRITE, MAP_SHARED,
                      clip->process.session.shared, 0);
    if (shared == MAP_FAILED)
        return qv_fail(err, QV_ENOMEM, "no memory for %d frames of %dx%d: %s", r->n_slots, r->width,
                       r->height, strerror(errno));
    clip->shared = shared;
    clip->process.gives_frames = true;
    memcpy(clip->shared, clip->indices, (size_t)n * sizeof *clip->indices);
    qvm_event event;
    qv_status status = plane_bytes ? qvm_process_give_gpu(&clip->process, r, err) : QV_OK;
    if (status == QV_ESTATE) {
        r->plane_bytes = 0;
        status = QV_OK;
    }
    if (!status)
        status = qvm_process_tell(&clip->process, r, err);
    if (!status)
        status = qvm_process_next(&clip->process, &event, err);
    return status;
}

/* Starts a decoder for the open file, and requests the chosen frames. */
static qv_status
begin(qv_clip *clip, qv_error *err)
{
    int64_t plane_bytes = 0;
    qv_status status = qvm_process_start(&clip->process, err);
    if (!status)
        status = ask_for_facts(clip, &plane_bytes, err);
    if (!status)
        status = qvm_choose(&clip->task, &clip->outcome, &clip->indices, err);
    return status ? status : ask_for_frames(clip, plane_bytes, err);
}

/* Ends the decoder and frees what is shared with it. The file stays open. */
static void
end_decoder(qv_clip *clip)
{
    qvm_process_close(&clip->process);
    if (clip->shared)
        munmap(clip->shared, clip->mapped);
    free(clip->indices);
    clip->shared = NULL;
    clip->indices = NULL;
}

/* Returns whether the clip may be decoded again from its beginning, and if so prepares it: its
 * process ended together with its program, which the system may have killed for lack of memory.
 * This is done only once, because the clip itself may be the cause. */
static bool
may_start_over(qv_clip *clip)
{
    if (!clip->process.program_lost || clip->started_over)
        return false;
    clip->started_over = true;
    end_decoder(clip);
    qvm_process_init(&clip->process, &clip->task, &clip->outcome, clip->process.session.clip);
    return true;
}

static qv_status
open_clip(qv_clip *clip, qv_error *err)
{
    qv_status status = open_file(clip, err);
    if (status)
        return status;
    do
        status = begin(clip, err);
    while (status && may_start_over(clip));
    return status;
}

qv_status
qvm_clip_open(const struct qvm_task *task, qv_clip **out, qv_error *err)
{
    qv_clip *clip = calloc(1, sizeof *clip);
    char *path = clip ? strdup(task->path) : NULL;
    if (!path) {
        free(clip);
        return qv_fail(err, QV_ENOMEM, "%s: no memory for a clip", task->path);
    }
    clip->task = *task;
    clip->task.path = path;
    qvm_process_init(&clip->process, &clip->task, &clip->outcome, -1);
    qv_error why;
    const qv_status status = open_clip(clip, &why);
    if (!status) {
        *out = clip;
        return QV_OK;
    }
    qv_clip_close(&clip);
    return qv_fail(err, status, "%s: %s", task->path, why.text);
}

qv_status
qv_clip_open(const char *path, const qv_preprocess *image, const qv_preprocess *video,
             const qv_clip_options *options, qv_clip **out, qv_error *err)
{
    QV_NEED(err, path, out);
    struct qvm_task task;
    const qv_status status = qvm_task_make(path, image, video, options, &task, err);
    return status ? status : qvm_clip_open(&task, out, err);
}

void
qv_clip_close(qv_clip **handle)
{
    qv_clip *clip = handle ? *handle : NULL;
    if (!clip)
        return;
    end_decoder(clip);
    if (clip->process.session.clip >= 0)
        close(clip->process.session.clip);
    free((void *)(uintptr_t)clip->task.path);
    free(clip);
    *handle = NULL;
}

/* ---- reading --------------------------------------------------------------------------------- */

void
qv_clip_get_info(const qv_clip *clip, qv_outcome *out)
{
    QV_NEED_OR(, clip, out);
    *out = clip->outcome;
}

static const qvm_request slot_is_free = { .kind = QVM_FREE };

/* Returns whether frames of one clip can replace the other's: everything by which callers size
 * memory and count seconds is equal. */
static bool
are_same_frames(const qv_outcome *a, const qv_outcome *b)
{
    return a->is_image == b->is_image && a->n_frames == b->n_frames && a->width == b->width &&
           a->height == b->height && a->source_fps == b->source_fps &&
           a->source_frames == b->source_frames;
}

/* Decodes the clip again from its beginning, up to the frame that is due. */
static qv_status
catch_up(qv_clip *clip, qv_error *err)
{
    const qv_outcome before = clip->outcome;
    qvm_event event;
    qv_status status = begin(clip, err);
    if (!status && !are_same_frames(&before, &clip->outcome))
        status = qv_fail(err, QV_EFORMAT, "decoding it again gave different frames");
    for (int64_t i = 0; !status && i < clip->n_taken; i++) {
        status = qvm_process_next(&clip->process, &event, err);
        if (!status)
            status = qvm_process_tell(&clip->process, &slot_is_free, err);
    }
    return status;
}

static qv_status
next_frame(qv_clip *clip, qv_error *err)
{
    qvm_event event;
    qv_status status = qvm_process_next(&clip->process, &event, err);
    if (status && may_start_over(clip)) {
        status = catch_up(clip, err);
        if (!status)
            status = qvm_process_next(&clip->process, &event, err);
    }
    clip->gpu_slot = status ? -1 : event.gpu_slot;
    return status;
}

/* Waits for the next frame; false: the clip ended. The file is checked for changes at the last
 * frame, and after a failure that a change may explain. */
static bool
wait_for_frame(qv_clip *clip)
{
    if (clip->status || clip->n_taken == clip->outcome.n_frames)
        return false;
    clip->status = next_frame(clip, &clip->error);
    qv_error why;
    const bool last = !clip->status && clip->n_taken + 1 == clip->outcome.n_frames;
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
    QV_NEED(err, clip, dst, n);
    if (n_max < 1)
        return qv_fail(err, QV_EINVAL, "read clip: n_max must be at least 1");
    const qv_outcome *o = &clip->outcome;
    int64_t count = 0;
    for (; count < n_max && wait_for_frame(clip); count++) {
        const qvm_request *r = &clip->start;
        memcpy(dst + (size_t)count * clip->frame_bytes,
               clip->shared + (clip->gpu_slot < 0
                                   ? r->frames_at + clip->n_taken % r->n_slots * r->slot_bytes
                                   : r->memory + clip->gpu_slot * r->plane_bytes),
               clip->frame_bytes);
        if (timestamps_s)
            timestamps_s[count] =
                o->is_image ? 0.0 : (double)clip->indices[clip->n_taken] / o->source_fps;
        clip->n_taken++;
        clip->status = qvm_process_tell(&clip->process, &slot_is_free, &clip->error);
    }
    if (!count && clip->status)
        return qv_fail(err, clip->status, "%s: %s", clip->task.path, clip->error.text);
    *n = count;
    return QV_OK;
}
