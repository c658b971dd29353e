/* SPDX-License-Identifier: MIT */
/* Decodes in threads of the test, instead of in separate processes, if a clip or a job has no
 * decoder: there the test's sanitizers, wrapped calls and counters see the decoding. The linker
 * (--wrap) inserts this between a clip and the decoder program. */
#include "decoder_thread.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../clips/gpu.h"
#include "../decoder/gpu_decoder.h"
#include "wrap.h"

bool decoder_thread_always;
static _Thread_local bool is_here;

struct served {
    pthread_t thread;
    qvm_session session;
    qvm_serving serving;
};

/* ---- a decoder without a program ------------------------------------------------------------- */

WRAPPED(qv_status, qv_decoder_start, (const char *program, qv_decoder **out, qv_error *err))
{
    if (program || !out)
        return __real_qv_decoder_start(program, out, err);
    qv_decoder *d = calloc(1, sizeof *d);
    struct qvm_gpus *gpus = calloc(1, sizeof *gpus);
    if (!d || !gpus) {
        free(d);
        free(gpus);
        return qv_fail(err, QV_ENOMEM, "no memory for a decoder");
    }
    d->owner = getpid();
    d->gpus = gpus;
    pthread_mutex_init(&d->lock, NULL);
    pthread_mutex_init(&d->kept_lock, NULL);
    pthread_mutex_init(&gpus->lock, NULL);
    *out = d;
    return QV_OK;
}

bool
decoder_thread_is_here(void)
{
    return is_here;
}

/* ---- sessions -------------------------------------------------------------------------------- */

static bool
is_of_threads(const qv_decoder *decoder)
{
    return !decoder->program || decoder_thread_always;
}

/* Does what the end of a process would do. */
static void *
serve(void *user)
{
    struct served *served = user;
    qvm_serving *s = &served->serving;
    is_here = true;
    qvm_serve(s, &served->session);
    qvm_reader_close(&s->reader);
    if (s->shared)
        munmap(s->shared, (size_t)s->start.memory);
    if (s->reader.gpu) {
        qvm_gpu_decoder_close(s->reader.gpu);
        munmap((void *)(uintptr_t)s->reader.gpu->planes,
               (size_t)(s->start.n_planes * s->start.plane_bytes));
    }
    free(s->reader.gpu);
    if (served->session.codec >= 0)
        close(served->session.codec);
    shutdown(served->session.socket, SHUT_RDWR); /* wakes the listener; sent data is not lost */
    if (s->listens)
        pthread_join(s->listener, NULL);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s->index);
    close(served->session.socket);
    return NULL;
}

/* The thread has its own descriptors, because the caller closes its. */
WRAPPED(qv_status, qvm_session_start,
        (qv_decoder * decoder, const qvm_session *session, int64_t memory, qvm_server *server,
         qv_error *err))
{
    if (!is_of_threads(decoder))
        return __real_qvm_session_start(decoder, session, memory, server, err);
    struct served *s = calloc(1, sizeof *s);
    if (!s)
        return qv_fail(err, QV_ENOMEM, "no memory for a thread");
    s->session = *session;
    s->session.socket = fcntl(session->socket, F_DUPFD_CLOEXEC, 0);
    if (session->codec >= 0)
        s->session.codec = fcntl(session->codec, F_DUPFD_CLOEXEC, 0);
    if (pthread_create(&s->thread, NULL, serve, s)) {
        close(s->session.socket);
        if (session->codec >= 0)
            close(s->session.codec);
        free(s);
        return qv_fail(err, QV_ENOMEM, "no thread can be started");
    }
    server->pid = getpid(); /* which nobody signals */
    server->start = (int64_t)(intptr_t)s;
    return QV_OK;
}

WRAPPED(int, qvm_session_end, (qv_decoder * decoder, const qvm_server *server, qv_error *why))
{
    if (!is_of_threads(decoder))
        return __real_qvm_session_end(decoder, server, why);
    struct served *s = (struct served *)(intptr_t)server->start;
    pthread_join(s->thread, NULL);
    free(s);
    return 0;
}

WRAPPED(void, qvm_session_drop, (qv_decoder * decoder, const qvm_server *server))
{
    if (is_of_threads(decoder))
        __wrap_qvm_session_end(decoder, server, NULL);
    else
        __real_qvm_session_drop(decoder, server);
}
