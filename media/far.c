/* SPDX-License-Identifier: MIT */
/* The clip's side of its far end, which decodes (serve.c). This file starts it, asks it, listens to it and ends it, and
 * checks all that it says. */
#define _GNU_SOURCE
#include "far.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "outcome.inc"

#define DEFAULT_MEMORY ((int64_t)4 << 30)
#define DEFAULT_PATIENCE_S 60.0

/* These bounds hold for every honest far end. */
#define MAX_RATE 2147483648.0 /* frames a second; a rate is a quotient of two int */
#define MAX_SECONDS (QVM_MAX_FRAMES * MAX_RATE)
#define MAX_BUSY_S 1e9
#define MAX_DECODED ((int64_t)1 << 40) /* packets, more than any file has */

/* ---- its life -------------------------------------------------------------------------------- */

static void *
serve(void *user)
{
#ifdef QVM_CLIENT /* a build without FFmpeg; qvm_check_options refuses all clips before this is called */
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
find_decoder(struct qvm_far *far, qv_decoder *shared, qv_error *err)
{
    far->decoder = shared;
    if (shared)
        return QV_OK;
    qv_status status = qv_decoder_start(NULL, &far->own_decoder, err);
    far->decoder = far->own_decoder;
    return status;
}

static qv_status
start_process(struct qvm_far *far, qv_decoder *shared, qv_error *err)
{
    qv_error inner;
    qv_status status = QV_OK;
    status = find_decoder(far, shared, &inner);
    if (!status)
        status = qvm_session_start(far->decoder, &far->session, far->memory, &far->server, &inner);
    far->program_lost = status == QV_EBACKEND;
    close_fd(&far->session.socket); /* else this side would not see that the process has ended */
    close_fd(&far->session.codec);
    return status ? qv_fail(err, status, "%s: %s", far->path, inner.text) : QV_OK;
}

qv_status
qvm_far_start(struct qvm_far *far, const qv_clip_options *o, qv_error *err)
{
    far->memory = o->decode_memory ? o->decode_memory : DEFAULT_MEMORY;
    far->patience_s = o->decode_seconds > 0 ? o->decode_seconds : DEFAULT_PATIENCE_S;
    far->session.alone = !o->trusted;
    far->session.shared = qvm_shared_memory();
    if (far->session.shared < 0 || !qvm_stream(&far->socket, &far->session.socket))
        return qv_fail(err, QV_ENOMEM, "%s: no means to talk to a decoder: %s", far->path,
                       strerror(errno));
    if (o->decode == QV_DECODE_GPU && !qvm_stream(&far->codec, &far->session.codec))
        return qv_fail(err, QV_ENOMEM, "%s: no means to talk to a GPU's process: %s", far->path,
                       strerror(errno));
    far->gpu = o->gpu;
    if (!o->trusted)
        return start_process(far, o->decoder, err);
    qv_error inner;
    qv_status status = far->codec < 0 ? QV_OK : find_decoder(far, o->decoder, &inner);
    if (status)
        return qv_fail(err, status, "%s: %s", far->path, inner.text);
    far->has_thread = !pthread_create(&far->thread, NULL, serve, &far->session);
    return far->has_thread ? QV_OK
                           : qv_fail(err, QV_ENOMEM, "%s: no thread can be started", far->path);
}

/* Ends the far end. With `ask`, waits until it has ended and returns waitpid's status, or -1 if it is unknown; else
 * returns 0. */
static int
end(struct qvm_far *far, bool ask)
{
    int how = 0;
    close_fd(&far->socket); /* a thread ends once it sees the closed socket */
    close_fd(&far->codec);
    if (far->has_thread)
        pthread_join(far->thread, NULL);
    else {
        close_fd(&far->session.socket);
        close_fd(&far->session.codec);
    }
    if (far->server.pid && ask)
        how = qvm_session_end(far->decoder, &far->server);
    else if (far->server.pid)
        qvm_session_drop(far->decoder, &far->server);
    far->has_thread = false;
    far->server.pid = 0;
    return how;
}

void
qvm_far_init(struct qvm_far *far, const char *path, qv_outcome *outcome, int clip)
{
    *far = (struct qvm_far){ .path = path,
                             .outcome = outcome,
                             .session = { .socket = -1, .clip = clip, .shared = -1, .codec = -1 },
                             .socket = -1,
                             .codec = -1 };
}

void
qvm_far_close(struct qvm_far *far)
{
    end(far, false);
    qv_decoder_stop(&far->own_decoder);
    close_fd(&far->session.shared);
}

qv_status
qvm_far_give_gpu(struct qvm_far *far, int64_t memory, int64_t plane_bytes, qv_error *err)
{
    qv_error inner;
    const qvm_gpu_request request = {
        .gpu = far->gpu,
        .unlocked = !far->session.alone,
        .order = { .kind = QVM_DECODE, .memory = memory, .plane_bytes = plane_bytes },
        .fds = { far->codec, far->session.shared },
    };
    qv_status status = qvm_gpu_give(far->decoder, &request, &far->gpu_process, &inner);
    close_fd(&far->codec); /* else that process would not see this one end */
    far->gives_planes = !status;
    far->gpu_is_avoided = status == QV_ESTATE ? "the GPU's processes failed again and again" : NULL;
    return status ? qv_fail(err, status, "%s: %s", far->path, inner.text) : QV_OK;
}

/* ---- what the far end says ------------------------------------------------------------------- */

/* Returns whether the clip's author may be behind what the far end says and how it ends. */
static bool
is_strange(const struct qvm_far *far)
{
    return far->asked && far->session.alone;
}

/* Sets the error for a far end that has gone, or that is silent, for which `silent` has the words. Frames that came before
 * are good. */
static qv_status
explain_end(struct qvm_far *far, const char *silent, qv_error *err)
{
    const int how = end(far, true);
    far->program_lost = how == -1;
    if (how == -1)
        return qv_fail(err, QV_EBACKEND, "%s: the program that decodes has ended", far->path);
    if (silent)
        return qv_fail(err, QV_EFORMAT, "%s: %s for %g s (decode_seconds): it was ended", far->path,
                       silent, far->patience_s);
    if (WIFSIGNALED(how))
        return qv_fail(err, QV_EFORMAT, "%s: decoding it crashed, with signal %d (%s)", far->path,
                       WTERMSIG(how), strsignal(WTERMSIG(how)));
    return qv_fail(err, is_strange(far) ? QV_EFORMAT : QV_EBACKEND,
                   "%s: its decoder left without a word, with exit code %d", far->path,
                   WIFEXITED(how) ? WEXITSTATUS(how) : 0);
}

/* Sets the error for a socket that fails on this side. The far end works, and is ended. */
static qv_status
lose_it(struct qvm_far *far, int why, qv_error *err)
{
    end(far, false);
    return qv_fail(err, QV_EBACKEND, "%s: no way to talk to its decoder: %s", far->path,
                   strerror(why));
}

/* Returns until when the far end is waited for. A thread cannot be ended, so it is waited for without a limit. */
static double
until(const struct qvm_far *far)
{
    return far->server.pid ? qv_seconds() + far->patience_s : INFINITY;
}

/* If the far end has gone, this is no error yet, because its last words are still to be read and say why. If it is there
 * and takes nothing, this is an error, as any other failure is: else both ends would wait for ever. */
qv_status
qvm_far_send(struct qvm_far *far, const void *bytes, size_t n, qv_error *err)
{
    const int code = qvm_send_until(far->socket, bytes, n, until(far));
    if (!code || code == EPIPE || code == ECONNRESET)
        return QV_OK;
    if (code == ETIMEDOUT)
        return explain_end(far, "its decoder takes no requests", err);
    return lose_it(far, code, err);
}

qv_status
qvm_far_tell(struct qvm_far *far, const qvm_request *request, qv_error *err)
{
    return qvm_far_send(far, request, sizeof *request, err);
}

qv_status
qvm_far_receive(struct qvm_far *far, void *bytes, size_t n, qv_error *err)
{
    const int code = qvm_receive_until(far->socket, bytes, n, until(far));
    if (code == ETIMEDOUT || code == ECONNRESET)
        return explain_end(far, code == ETIMEDOUT ? "no sign of life from its decoder" : NULL, err);
    return code ? lose_it(far, code, err) : QV_OK;
}

/* Terminates a text and replaces all bytes that are not ASCII, which JSON may refuse, and control characters, which a
 * terminal would obey. */
static void
make_printable(char *text, size_t size)
{
    text[size - 1] = 0;
    for (char *c = text; *c; c++)
        if (*c < ' ' || *c > '~')
            *c = '?';
}

/* Returns whether value lies between the bounds; it does not if it is no number (NaN). */
static bool
is_between(double value, double least, double most)
{
    return value >= least && value <= most;
}

/* What the far end may say of a member of the outcome. */
static const struct rule {
    size_t at, size;
    enum qv_outcome_kind kind;
    enum { WITH_FACTS, ALWAYS, NEVER } when;
    double least, most;
} rules[] = {
#define FACT(least, most) WITH_FACTS, least, most
#define SO_FAR(least, most) ALWAYS, least, most
#define HERE NEVER, 0, 0
#define QV_OUTCOME(member, kind, from, ...)                                                        \
    { offsetof(qv_outcome, member), sizeof((qv_outcome *)NULL)->member, QV_OUTCOME_##kind, from },
#include "outcome.inc"
};

/* Returns a number, or the bytes of a bool or enum, which may not be one. A negative int counts as large. */
static double
number_at(const void *at, size_t size, bool is_real)
{
    double real;
    int64_t integer = 0;
    memcpy(is_real ? (void *)&real : (void *)&integer, at, size);
    return is_real ? real : (double)integer;
}

/* Takes what the far end says of the outcome. Returns false for what cannot be. */
static bool
take_outcome(qv_outcome *to, qv_outcome *from, bool are_facts)
{
    for (const struct rule *r = rules; r < rules + sizeof rules / sizeof *rules; r++) {
        char *at = (char *)from + r->at;
        if (r->when == NEVER || (r->when == WITH_FACTS && !are_facts))
            continue;
        if (r->kind == QV_OUTCOME_TEXT)
            make_printable(at, r->size);
        else if (!is_between(number_at(at, r->size, r->kind == QV_OUTCOME_REAL), r->least, r->most))
            return false;
        memcpy((char *)to + r->at, at, r->size);
    }
    return true;
}

/* Returns whether facts that are possible one by one go together. */
static bool
are_facts_possible(const qv_outcome *f)
{
    if ((int64_t)f->source_width * f->source_height > QVM_MAX_PIXELS || f->rotation % 90 ||
        !*qv_remark_text(f->remark) != !f->remark)
        return false;
    if (f->is_image)
        return f->source_frames == 1 && f->source_fps == 0.0 && f->duration_s == 0.0;
    return f->source_fps >= 1 / MAX_RATE;
}

/* Takes an event's contents. Returns false if the event cannot come now, or if its contents are impossible. */
static bool
accept_event(struct qvm_far *far, qvm_event *e)
{
    const bool are_facts = e->kind == QVM_FACTS && far->asked && !far->gives_frames;
    qv_outcome *o = far->outcome;
    if (e->index_bytes < 0 ||
        e->index_bytes > (are_facts && far->gives_index ? QVM_MOST_INDEX : 0) ||
        e->plane_bytes < 0 ||
        e->plane_bytes > (are_facts && far->codec >= 0 ? QVM_MOST_PLANES : 0) ||
        (e->outcome.decoded_by == QV_DECODE_GPU && !far->gives_planes) ||
        !take_outcome(o, &e->outcome, are_facts))
        return false;
    if (far->gpu_is_avoided)
        snprintf(o->not_gpu, sizeof o->not_gpu, "%s", far->gpu_is_avoided);
    if (far->gives_planes && e->gpu_lost && !far->gpu_lost)
        qvm_gpu_doubt(far->decoder, far->gpu, far->gpu_process);
    far->gpu_lost = e->gpu_lost != 0;
    switch (e->kind) {
    case QVM_READY: return !far->asked;
    case QVM_ALIVE: return far->asked;
    case QVM_FACTS: return are_facts && are_facts_possible(o);
    case QVM_PLAN:
        if (far->has_plan || !far->gives_frames)
            return false;
        far->has_plan = true;
        return true;
    case QVM_FRAME: return far->has_plan;
    case QVM_END:
        make_printable(e->text, sizeof e->text);
        return e->status > QV_OK && e->status <= QV_ESTATE;
    default: return false;
    }
}

/* Returns the status for the end that the far end told. A process that its clip may have taken over can only have failed
 * for its clip; it cannot know of a fault of a device, of memory on this side, or of a caller. */
static qv_status
status_of_end(const struct qvm_far *far, qv_status said)
{
    const bool can_be = said == QV_EIO || said == QV_EUNSUPPORTED;
    return is_strange(far) && !can_be ? QV_EFORMAT : said;
}

qv_status
qvm_far_next(struct qvm_far *far, qvm_event *event, qv_error *err)
{
    do {
        qv_status status = qvm_far_receive(far, event, sizeof *event, err);
        if (status)
            return status;
        if (!accept_event(far, event)) {
            end(far, false);
            return qv_fail(err, QV_EFORMAT, "%s: its decoder said what cannot be; it was ended",
                           far->path);
        }
    } while (event->kind == QVM_ALIVE);
    if (event->kind != QVM_END)
        return QV_OK;
    if (event->status == QV_ENOMEM && is_strange(far))
        return qv_fail(err, QV_EFORMAT,
                       "%s: %s, with the %lld MiB that its decoder has "
                       "(decode_memory)",
                       far->path, event->text, (long long)(far->memory >> 20));
    return qv_fail(err, status_of_end(far, (qv_status)event->status), "%s: %s", far->path,
                   event->text);
}
