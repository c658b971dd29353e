/* SPDX-License-Identifier: MIT */
/* The clip's side of its decoder process (serve.c): starts it, sends it requests, ends it, and
 * checks all its messages. */
#include "decoder_process.h"

#include <errno.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "outcome.inc"

/* These bounds hold for every honest decoder process. */
#define MAX_SECONDS (QVM_MAX_FRAMES * QVM_MAX_RATE)
#define MAX_BUSY_S 1e9
#define MAX_DECODED ((int64_t)1 << 40) /* packets, more than any file has */

/* ---- its life -------------------------------------------------------------------------------- */

static void
close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

qv_status
qvm_process_start(struct qvm_process *p, qv_error *err)
{
    const struct qvm_task *t = p->task;
    qv_status status = QV_OK;
    p->session.shared = qvm_shared_memory();
    if (p->session.shared < 0 || !qvm_stream(&p->socket, &p->session.socket))
        return qv_fail(err, QV_ENOMEM, "cannot create a socket for its decoder: %s",
                       strerror(errno));
    if (t->gpu >= 0 && !qvm_stream(&p->codec, &p->session.codec))
        return qv_fail(err, QV_ENOMEM, "cannot create a socket for the GPU process: %s",
                       strerror(errno));
    if (!t->decoder)
        status = qv_decoder_start(NULL, &p->own_decoder, err);
    p->decoder = t->decoder ? t->decoder : p->own_decoder;
    if (!status)
        status = qvm_session_start(p->decoder, &p->session, t->memory, &p->server, err);
    p->program_lost = status == QV_EBACKEND;
    close_fd(&p->session.socket); /* or this side would not see that the process has ended */
    close_fd(&p->session.codec);
    return status;
}

/* Ends the decoder process. If `why` is NULL, returns 0 without waiting. Otherwise waits and
 * returns its exit status, or -1 with *why describing what happened to the program. */
static int
end(struct qvm_process *p, qv_error *why)
{
    int how = 0;
    close_fd(&p->socket);
    close_fd(&p->codec);
    close_fd(&p->session.socket);
    close_fd(&p->session.codec);
    if (p->server.pid && why)
        how = qvm_session_end(p->decoder, &p->server, why);
    else if (p->server.pid)
        qvm_session_drop(p->decoder, &p->server);
    p->server.pid = 0;
    return how;
}

void
qvm_process_init(struct qvm_process *p, const struct qvm_task *task, qv_outcome *outcome, int clip)
{
    *p = (struct qvm_process){ .task = task,
                               .outcome = outcome,
                               .session = { .socket = -1, .clip = clip, .shared = -1, .codec = -1 },
                               .socket = -1,
                               .codec = -1 };
}

void
qvm_process_close(struct qvm_process *p)
{
    end(p, NULL);
    qv_decoder_stop(&p->own_decoder);
    close_fd(&p->session.shared);
}

qv_status
qvm_process_give_gpu(struct qvm_process *p, const qvm_request *r, qv_error *err)
{
    const qvm_gpu_request request = {
        .gpu = p->task->gpu,
        .order = { .kind = QVM_DECODE,
                   .memory = r->memory,
                   .plane_bytes = r->plane_bytes,
                   .n_planes = r->n_planes },
        .fds = { p->codec, p->session.shared },
    };
    qv_status status = qvm_gpu_give(p->decoder, &request, &p->gpu_process, err);
    close_fd(&p->codec); /* or that process would not see this one end */
    p->gives_planes = !status;
    p->n_direct = !status && r->plane_bytes >= 3 * (int64_t)r->width * r->height ? r->n_planes : 0;
    p->gpu_is_avoided = status == QV_ESTATE ? "the GPU's processes failed repeatedly" : NULL;
    return status;
}

/* ---- what the decoder process says ----------------------------------------------------------- */

/* Sets the error for a decoder process that has ended or, with `silent`, stopped answering. Earlier
 * frames stay valid. */
static qv_status
explain_end(struct qvm_process *p, const char *silent, qv_error *err)
{
    char text[128];
    qv_error why;
    const int how = end(p, &why);
    p->program_lost = how == -1;
    if (how == -1)
        return qv_fail(err, QV_EBACKEND, "%s", why.text);
    if (silent)
        return qv_fail(err, QV_EFORMAT, "%s for %g s (decode_seconds) and was killed", silent,
                       p->task->patience_s);
    if (WIFSIGNALED(how))
        return qv_fail(err, QV_EFORMAT, "its decoder was %s", qvm_signal_text(WTERMSIG(how), text));
    return qv_fail(err, p->asked ? QV_EFORMAT : QV_EBACKEND,
                   "its decoder exited with code %d without an error",
                   WIFEXITED(how) ? WEXITSTATUS(how) : 0);
}

/* Ends the decoder process, and sets the error: the caller cancelled, or a local socket failed. */
static qv_status
lose_it(struct qvm_process *p, int why, qv_error *err)
{
    end(p, NULL);
    if (why == ECANCELED)
        return qv_fail(err, QV_ESTATE, "cancelled by its caller");
    return qv_fail(err, QV_EBACKEND, "cannot communicate with its decoder: %s", strerror(why));
}

/* Sends (`out`) or receives. Returns as qvm_transfer does. */
static int
talk(const struct qvm_process *p, bool out, void *bytes, size_t n)
{
    const struct qvm_task *t = p->task;
    return qvm_transfer(p->socket, out, bytes, n,
                        &(struct qvm_patience){ qv_seconds() + t->patience_s, t->go_on, t->user });
}

/* A process that has ended is not an error yet: its last message must still be read. A process that
 * accepts nothing is an error, or both sides would wait forever. */
qv_status
qvm_process_send(struct qvm_process *p, const void *bytes, size_t n, qv_error *err)
{
    const int code = talk(p, true, (void *)(uintptr_t)bytes, n);
    if (!code || code == EPIPE || code == ECONNRESET)
        return QV_OK;
    if (code == ETIMEDOUT)
        return explain_end(p, "its decoder accepted no requests", err);
    return lose_it(p, code, err);
}

qv_status
qvm_process_tell(struct qvm_process *p, const qvm_request *request, qv_error *err)
{
    return qvm_process_send(p, request, sizeof *request, err);
}

qv_status
qvm_process_receive(struct qvm_process *p, void *bytes, size_t n, qv_error *err)
{
    const int code = talk(p, false, bytes, n);
    if (code == ETIMEDOUT || code == ECONNRESET)
        return explain_end(p, code == ETIMEDOUT ? "its decoder gave no sign of life" : NULL, err);
    return code ? lose_it(p, code, err) : QV_OK;
}

/* Terminates a text, and replaces terminal control characters and whatever JSON does not allow. */
static void
make_printable(char *text, size_t size)
{
    text[size - 1] = 0;
    qv_make_printable(text);
}

/* Returns whether value lies between the bounds; NaN does not. */
static bool
is_between(double value, double least, double most)
{
    return value >= least && value <= most;
}

/* The values that the decoder process may report for a member of the outcome. */
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

/* Returns the value as a number, read from raw bytes, since they may not be a valid bool or enum. A
 * negative int counts as large. */
static double
number_at(const void *at, size_t size, bool is_real)
{
    double real;
    int64_t integer = 0;
    memcpy(is_real ? (void *)&real : (void *)&integer, at, size);
    return is_real ? real : (double)integer;
}

/* Copies the decoder process's report. Returns false if it is impossible. */
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

/* Returns whether individually possible facts are consistent with each other. */
static bool
are_facts_possible(const qv_outcome *f)
{
    if ((int64_t)f->source_width * f->source_height > QVM_MAX_PIXELS || f->rotation % 90 ||
        !*qv_remark_text(f->remark) != !f->remark)
        return false;
    if (f->is_image)
        return f->source_frames == 1 && f->source_fps == 0.0 && f->duration_s == 0.0 &&
               f->header_fps == 0.0;
    return f->source_fps >= 1 / QVM_MAX_RATE;
}

/* Accepts an event's contents. Returns false if it is not allowed now or its contents are
 * impossible. */
static bool
accept_event(struct qvm_process *p, qvm_event *e)
{
    const bool are_facts = e->kind == QVM_FACTS && p->asked && !p->gives_frames;
    qv_outcome *o = p->outcome, told = *o;
    if (e->index_bytes < 0 || e->index_bytes > (are_facts && p->gives_index ? QVM_MOST_INDEX : 0) ||
        e->plane_bytes < 0 || e->plane_bytes > (are_facts && p->codec >= 0 ? QVM_MOST_PLANES : 0) ||
        (e->outcome.decoded_by == QV_DECODE_GPU && !p->gives_planes) ||
        !take_outcome(&told, &e->outcome, are_facts) || (are_facts && !are_facts_possible(&told)))
        return false;
    *o = told;
    if (p->gpu_is_avoided)
        snprintf(o->not_gpu, sizeof o->not_gpu, "%s", p->gpu_is_avoided);
    if (p->gives_planes && e->gpu_lost && !p->gpu_lost)
        qvm_gpu_doubt(p->decoder, p->task->gpu, p->gpu_process);
    p->gpu_lost = e->gpu_lost != 0;
    switch (e->kind) {
    case QVM_READY: return !p->asked;
    case QVM_ALIVE: return p->asked;
    case QVM_FACTS: return are_facts;
    case QVM_PLAN:
        if (p->has_plan || !p->gives_frames)
            return false;
        p->has_plan = true;
        return true;
    case QVM_FRAME: return p->has_plan && e->gpu_slot >= -1 && e->gpu_slot < p->n_direct;
    case QVM_END:
        make_printable(e->text, sizeof e->text);
        return e->status > QV_OK && e->status <= QV_ESTATE;
    default: return false;
    }
}

/* Returns the status for the reported end. A process that its clip may have taken over may only
 * blame the clip, not a device, this side or the caller. */
static qv_status
status_of_end(const struct qvm_process *p, qv_status said)
{
    const bool can_be = said == QV_EIO || said == QV_EUNSUPPORTED;
    return p->asked && !can_be ? QV_EFORMAT : said;
}

qv_status
qvm_process_next(struct qvm_process *p, qvm_event *event, qv_error *err)
{
    do {
        qv_status status = qvm_process_receive(p, event, sizeof *event, err);
        if (status)
            return status;
        if (!accept_event(p, event)) {
            end(p, NULL);
            return qv_fail(err, QV_EFORMAT, "its decoder sent an impossible reply and was killed");
        }
    } while (event->kind == QVM_ALIVE);
    if (event->kind != QVM_END)
        return QV_OK;
    if (event->status == QV_ENOMEM && p->asked)
        return qv_fail(err, QV_EFORMAT, "%s; its decoder may use %lld MiB (decode_memory)",
                       event->text, (long long)(p->task->memory >> 20));
    return qv_fail(err, status_of_end(p, (qv_status)event->status), "%s", event->text);
}
