/* SPDX-License-Identifier: MIT */
/* A clip's decoder process, which decodes the requested frames into shared memory. One thread
 * decodes and one listens, so that a closed clip is noticed in the middle of a frame. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "nvdec.h"

#define ALIVE_S 1.0 /* between the signs of life sent while a frame takes long */
#ifndef MAP_POPULATE
#define MAP_POPULATE 0 /* on systems without it, pages are allocated one by one when written */
#endif

/* ---- listening ------------------------------------------------------------------------------- */

/* Receives the index that follows a request. Returns false if the rest of the stream cannot be
 * parsed. */
static bool
receive_index(const qvm_serving *s, int64_t bytes, qvm_index **index)
{
    *index = NULL;
    if (!bytes)
        return true;
    *index = bytes > 0 && bytes <= QVM_MOST_INDEX ? malloc((size_t)bytes) : NULL;
    return *index && qvm_receive(s->session->socket, *index, (size_t)bytes);
}

static void *
listen_to_clip(void *user)
{
    qvm_serving *s = user;
    qvm_request request;
    while (qvm_receive(s->session->socket, &request, sizeof request)) {
        qvm_index *index = NULL;
        const bool whole =
            request.kind != QVM_OPEN || receive_index(s, request.index_bytes, &index);
        if (!whole || (index && s->index)) { /* an index is sent only once */
            free(index);
            break;
        }
        pthread_mutex_lock(&s->lock);
        if (index) /* the decoding thread reads it without the lock once `open` has arrived */
            s->index = index;
        if (request.kind == QVM_OPEN)
            s->open = request;
        else if (request.kind == QVM_START)
            s->start = request;
        else
            s->n_freed++;
        pthread_cond_signal(&s->changed);
        pthread_mutex_unlock(&s->lock);
    }
    pthread_mutex_lock(&s->lock);
    atomic_store(&s->stop, true);
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* Waits until the request has arrived. Returns false if it cannot arrive any more. */
static bool
wait_for_request(qvm_serving *s, const qvm_request *request)
{
    pthread_mutex_lock(&s->lock);
    while (request->kind < 0 && !atomic_load(&s->stop))
        pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
    return !atomic_load(&s->stop);
}

/* Waits until there is a slot for frame number i. Returns false if the clip is closed. */
static bool
wait_for_slot(qvm_serving *s, int64_t i)
{
    pthread_mutex_lock(&s->lock);
    while (i - s->n_freed >= s->start.n_slots && !atomic_load(&s->stop))
        pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
    return !atomic_load(&s->stop);
}

/* ---- telling --------------------------------------------------------------------------------- */

static void
say(qvm_serving *s, qvm_event_kind kind, const qv_error *error)
{
    qvm_event event;
    qv_outcome *o = &s->outcome;
    memset(&event, 0, sizeof event);
    event.kind = kind;
    o->damaged_frames = qvm_reader_damaged(&s->reader);
    o->decoded_frames = qvm_reader_decoded(&s->reader);
    if (kind == QVM_PLAN)
        o->needed_frames = s->reader.source.times ? s->reader.times.n_needed : s->last + 1;
    snprintf(o->decodes_all, sizeof o->decodes_all, "%s", s->reader.why ? s->reader.why : "");
    o->decoded_by = s->reader.source.gpu ? QV_DECODE_GPU : QV_DECODE_CPU;
    snprintf(o->not_gpu, sizeof o->not_gpu, "%s",
             s->reader.not_gpu ? s->reader.not_gpu : s->no_gpu);
    event.outcome = *o;
    event.gpu_slot = s->reader.gpu_slot;
    event.gpu_lost = s->reader.gpu && s->reader.gpu->lost;
    event.plane_bytes = kind == QVM_FACTS ? s->plane_bytes : 0;
    event.index_bytes = kind == QVM_FACTS ? s->index_bytes : 0;
    if (error) {
        event.status = error->status;
        memcpy(event.text, error->text, sizeof event.text);
    }
    s->said_s = qv_seconds();
    qvm_send(s->session->socket, &event, sizeof event); /* if it fails, the listener notices why */
}

static void
say_alive(void *user)
{
    qvm_serving *s = user;
    if (qv_seconds() - s->said_s > ALIVE_S)
        say(s, QVM_ALIVE, NULL);
}

/* ---- working --------------------------------------------------------------------------------- */

static qv_status
map_shared(qvm_serving *s, qv_error *err)
{
    /* Unless a GPU fills its own slots, all slots will be written, and allocating their pages at
     * once is faster than one page fault each. */
    void *at = mmap(NULL, (size_t)s->start.memory, PROT_READ | PROT_WRITE,
                    MAP_SHARED | (s->start.plane_bytes ? 0 : MAP_POPULATE), s->session->shared, 0);
    if (at == MAP_FAILED)
        return qv_fail(err, QV_ENOMEM, "%lld bytes of shared memory cannot be mapped: %s",
                       (long long)s->start.memory, strerror(errno));
    s->shared = at;
    return QV_OK;
}

/* Makes the reader take its frames from the GPU process. */
static qv_status
map_planes(qvm_serving *s, qv_error *err)
{
    const qvm_request *r = &s->start;
    const size_t bytes = (size_t)(r->n_planes * r->plane_bytes);
    void *at = mmap(NULL, bytes, PROT_READ, MAP_SHARED, s->session->shared, (off_t)r->memory);
    qvm_gpu_decoder *gpu = at == MAP_FAILED ? NULL : calloc(1, sizeof *gpu);
    if (!gpu) {
        if (at != MAP_FAILED)
            munmap(at, bytes);
        return qv_fail(err, QV_ENOMEM, "no memory for the frames of a GPU");
    }
    gpu->socket = s->session->codec;
    gpu->planes = at;
    gpu->slot_bytes = r->plane_bytes;
    gpu->n_slots = (int)r->n_planes;
    gpu->frame_bytes = s->plane_bytes;
    gpu->patience_s = r->gpu_patience_s;
    gpu->watch = s->reader.watch;
    gpu->times = &s->reader.times;
    s->reader.gpu = gpu;
    return QV_OK;
}

static qv_status
decode_frames(qvm_serving *s, qv_error *err)
{
    const qvm_request *r = &s->start;
    const int64_t *indices = (const int64_t *)(const void *)s->shared;
    qv_status status = r->plane_bytes ? map_planes(s, err) : QV_OK;
    if (status)
        return status;
    status = qvm_reader_start(&s->reader, indices, r->n_frames, r->height, r->width, err);
    if (status)
        return status;
    s->last = indices[r->n_frames - 1];
    say(s, QVM_PLAN, NULL);
    for (int64_t i = 0; i < r->n_frames && wait_for_slot(s, i); i++) {
        uint8_t *slot = s->shared + r->frames_at + i % r->n_slots * r->slot_bytes;
        const double began_s = qv_seconds();
        status = qvm_reader_read(&s->reader, indices[i], r->height, r->width, slot, err);
        if (status || atomic_load(&s->stop))
            return status;
        s->outcome.decode_s += qv_seconds() - began_s;
        say(s, QVM_FRAME, NULL);
    }
    return QV_OK;
}

/* Sends the facts and, if it is wanted and there is memory for it, the index. */
static void
say_facts(qvm_serving *s)
{
    qvm_index *index = s->open.wants_index ? qvm_index_make(&s->reader) : NULL;
    const size_t bytes = index ? qvm_index_bytes(index->n_entries) : 0;
    s->index_bytes = bytes <= (size_t)QVM_MOST_INDEX ? (int64_t)bytes : 0;
    say(s, QVM_FACTS, NULL);
    qvm_send(s->session->socket, index, (size_t)s->index_bytes);
    free(index);
}

static qv_status
decode(qvm_serving *s, qv_error *err)
{
    qvm_watch watch = { .stop = &s->stop, .alive = say_alive, .user = s };
    if (!wait_for_request(s, &s->open))
        return QV_OK;
    watch.asked = s->open.asked;
    watch.has_gpu = s->session->codec >= 0;
    if (s->index && qvm_index_is_whole(s->index, s->open.index_bytes))
        watch.index = s->index;
    const double began_s = qv_seconds();
    qv_status status = qvm_reader_open(&s->reader, s->session->clip, &watch, &s->outcome, err);
    s->outcome.decode_s = qv_seconds() - began_s;
    if (status)
        return status;
    if (watch.asked.says_no_gpu && !qvm_source_is_image(&s->reader.source))
        s->no_gpu = qvm_no_nvdec();
    if (s->session->codec >= 0)
        s->plane_bytes = qvm_reader_plane_bytes(&s->reader);
    say_facts(s);
    if (!wait_for_request(s, &s->start))
        return QV_OK;
    status = map_shared(s, err);
    return status ? status : decode_frames(s, err);
}

void
qvm_serve(qvm_serving *s, const qvm_session *session)
{
    qv_error error = { QV_OK, "" };
    *s = (qvm_serving){
        .session = session, .no_gpu = "", .open = { .kind = -1 }, .start = { .kind = -1 }
    };
    atomic_init(&s->stop, false);
    pthread_mutex_init(&s->lock, NULL); /* on Linux and macOS neither call allocates or fails */
    pthread_cond_init(&s->changed, NULL);
    say(s, QVM_READY, NULL);
    s->listens = !pthread_create(&s->listener, NULL, listen_to_clip, s);
    if (s->listens)
        decode(s, &error);
    else
        qv_fail(&error, QV_ENOMEM, "cannot start a thread");
    say(s, QVM_END, &error);
}
