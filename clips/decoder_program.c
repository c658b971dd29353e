/* SPDX-License-Identifier: MIT */
/* Starts and ends the decoder program, and sends it orders. */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "files/installed.h"
#include "gpu.h"
#include "make_clip.h"

#ifdef __APPLE__
#include <crt_externs.h>
#define environ (*_NSGetEnviron())
#endif

#define PROGRAM "qwenvit-decoder"
#define NO_FFMPEG "the FFmpeg libraries may be missing"
#ifdef __APPLE__
#define NOT_LOADED (-SIGABRT) /* exit code if the loader cannot find the program's libraries */
#else
#define NOT_LOADED 127
#endif
#define PATIENCE_S 60.0 /* the longest wait for an answer, which takes fractions of a second */

/* ---- the program ----------------------------------------------------------------------------- */

static void
free_decoder(qv_decoder *d)
{
    if (d) {
        free(d->program);
        free(d->environment);
        free(d->gpus);
    }
    free(d);
}

/* Copies n strings into `text`, up to `end`, and pointers to them into copy[n + 1]. Returns false
 * if they have grown and no longer fit. */
static bool
copy_strings(char *const *list, size_t n, char **copy, char *text, const char *end)
{
    size_t i = 0;
    for (const char *from; i < n && (from = list[i]); i++) {
        const size_t bytes = strlen(from) + 1;
        if (bytes > (size_t)(end - text))
            return false;
        copy[i] = memcpy(text, from, bytes);
        text += bytes;
    }
    copy[i] = NULL;
    return true;
}

/* Returns a copy of the environment in one block; NULL for lack of memory. If another thread
 * replaces a value meanwhile, the copy has the old or the new one; if it adds a variable, that may
 * free the list itself, which nothing here can prevent. */
static char **
copy_environment(void)
{
    for (;;) {
        char **list = environ;
        size_t n = 0, bytes = 0;
        for (const char *from; list && (from = list[n]); n++)
            bytes += strlen(from) + 1;
        char **copy = malloc((n + 1) * sizeof *copy + bytes);
        if (!copy)
            return NULL;
        char *text = (char *)(copy + n + 1);
        if (copy_strings(list, n, copy, text, text + bytes))
            return copy;
        free(copy);
    }
}

/* Starts or restarts the program. */
static qv_status
start_program(qv_decoder *d, qv_error *err)
{
    char name[] = PROGRAM;
    const int code =
        qvm_child_start(d->program, (char *[]){ name, NULL }, d->environment, &d->child);
    if (code)
        return qv_fail(err, qv_is_scarcity(code) ? QV_ENOMEM : QV_EBACKEND,
                       "%s cannot be started: %s", d->program, strerror(code));
    d->starts++;
    d->used = d->answered = false;
    *d->lost = 0;
    return QV_OK;
}

/* Ends a program and the processes that it started for clips. Returns like qvm_child_await. */
static int
end_program(qvm_child *child)
{
    if (!child->pid)
        return 0;
    qvm_child_signal(child, SIGKILL);
    return qvm_child_await(child);
}

/* Sets *path to the program's path: `found` unless the caller passes one. */
static qv_status
find_program(const char *program, const char **path, char found[PATH_MAX], qv_error *err)
{
    *path = program ? program : found;
    return program || qv_find_installed(PROGRAM, QVM_LIBEXEC_FROM_LIB, QVM_LIBEXEC_FROM_BIN, X_OK,
                                        found, PATH_MAX)
               ? QV_OK
               : qv_fail(err, QV_EBACKEND,
                         "the decoding program " PROGRAM " is neither next to this program (or "
                         "this library) nor at %s",
                         found);
}

/* Returns why a program ended without a message; has_run: its libraries were found. */
static const char *
say_ending(int how, bool has_run, char text[128])
{
    if (how == NOT_LOADED && !has_run)
        return NO_FFMPEG;
    if (how < 0)
        return qvm_signal_text(-how, text);
    snprintf(text, 128, "exit code %d", how);
    return text;
}

/* Runs the program, and reads the text that it prints before it ends. */
static qv_status
run_program(const char *program, char *const *arguments, char *const *environment,
            double patience_s, char text[256], qv_error *err)
{
    char found[PATH_MAX];
    const char *path;
    qvm_child child;
    memset(text, 0, 256);
    const qv_status status = find_program(program, &path, found, err);
    if (status)
        return status;
    const int code = qvm_child_start(path, arguments, environment, &child);
    int how = 0;
    if (!code) { /* it ends after its text */
        qvm_receive_until(child.socket, text, 255, qv_seconds() + patience_s);
        how = end_program(&child);
    }
    char ending[128];
    return *text ? QV_OK
                 : qv_fail(err, QV_EBACKEND, "%s does not run: %s", path,
                           code ? strerror(code) : say_ending(how, false, ending));
}

static qv_status
read_version(const char *program, char *const *environment, char text[256], qv_error *err)
{
    char name[] = PROGRAM, version[] = "--version";
    const qv_status status =
        run_program(program, (char *[]){ name, version, NULL }, environment, PATIENCE_S, text, err);
    return status || !strncmp(text, PROGRAM " ", sizeof PROGRAM)
               ? status
               : qv_fail(err, QV_EBACKEND, "%s is not " PROGRAM,
                         program ? program : "the program found");
}

qv_status
qv_decoder_version(const char *program, char text[256], qv_error *err)
{
    return read_version(program, environ, text, err);
}

qv_status
qv_decoder_ffmpeg(const qv_decoder *decoder, char version[QV_FFMPEG_BYTES], qv_error *err)
{
    static const char field[] = "\n" QVM_FFMPEG_FIELD;
    char text[256];
    const qv_status status = read_version(decoder ? decoder->program : NULL,
                                          decoder ? decoder->environment : environ, text, err);
    const char *at = status ? NULL : strstr(text, field);
    if (!status && !at)
        return qv_fail(err, QV_EBACKEND, "the decoder did not report its FFmpeg version");
    if (at) {
        at += sizeof field - 1;
        snprintf(version, QV_FFMPEG_BYTES, "%.*s", (int)strcspn(at, "\n"), at);
        qv_make_printable(version);
    }
    return status;
}

qv_status
qvm_clip_make(const char *program, const char *path, const struct qvm_clip_shape *s, qv_error *err)
{
    enum { HOUR_S = 3600 };
    char text[256], name[] = PROGRAM, make[] = QVM_MAKE_CLIP, shape[96];
    char *arguments[] = { name, make, (char *)(uintptr_t)path, shape, NULL };
    snprintf(shape, sizeof shape, QVM_CLIP_SHAPE, s->width, s->height, s->fps, s->frames);
    const qv_status status = run_program(program, arguments, environ, HOUR_S, text, err);
    return status || !strcmp(text, QVM_MADE)
               ? status
               : qv_fail(err, QV_EIO, "the clip cannot be made: %s", text);
}

qv_status
qv_decoder_start(const char *program, qv_decoder **out, qv_error *err)
{
    QV_NEED(err, out);
    char found[PATH_MAX];
    const char *path;
    qv_status status = find_program(program, &path, found, err);
    if (status)
        return status;
    qv_decoder *d = calloc(1, sizeof *d);
    if (d) {
        d->program = strdup(path);
        d->environment = copy_environment();
        d->gpus = calloc(1, sizeof *d->gpus);
    }
    status = d && d->program && d->environment && d->gpus
                 ? start_program(d, err)
                 : qv_fail(err, QV_ENOMEM, "%s: no memory for a decoder", path);
    if (status) {
        free_decoder(d);
        return status;
    }
    d->owner = getpid();
    d->patience_s = PATIENCE_S;
    pthread_mutex_init(&d->lock, NULL); /* mutexes' initialisation allocates nothing */
    pthread_mutex_init(&d->kept_lock, NULL);
    pthread_mutex_init(&d->gpus->lock, NULL);
    *out = d;
    return QV_OK;
}

/* The program and its processes end once no more orders can come. shutdown() ensures this even if a
 * fork of this process still holds the socket. */
void
qv_decoder_stop(qv_decoder **decoder)
{
    qv_decoder *d = decoder ? *decoder : NULL;
    if (!d)
        return;
    const bool is_ours = d->owner == getpid();
    qvm_gpus_end(d->gpus, is_ours);
    if (is_ours) {
        char none;
        if (d->child.pid && d->used) {
            shutdown(d->child.socket, SHUT_WR);
            qvm_receive_until(d->child.socket, &none, 1, qv_seconds() + d->patience_s);
        }
        end_program(&d->child);
    } else {
        qvm_child_leave(&d->child);
    }
    pthread_mutex_destroy(&d->lock);
    pthread_mutex_destroy(&d->kept_lock);
    pthread_mutex_destroy(&d->gpus->lock);
    qvm_kept_free(&d->kept);
    free_decoder(d);
    *decoder = NULL;
}

/* ---- sessions -------------------------------------------------------------------------------- */

/* Sends an order with a session's descriptors. Returns 0, or an errno, in which case nothing was
 * sent. */
static int
send_order(const qv_decoder *d, const qvm_order *order, const qvm_session *s, double until_s)
{
    const int fds[QVM_SESSION_FDS] = { s ? s->socket : -1, s ? s->clip : -1, s ? s->shared : -1,
                                       s ? s->codec : -1 };
    const int n = !s ? 0 : s->codec < 0 ? QVM_SESSION_FDS - 1 : QVM_SESSION_FDS;
    int code = 0;
    while (!code && !qvm_order_send(d->child.socket, order, fds, n))
        code = errno == EAGAIN ? qvm_wait_for(d->child.socket, POLLOUT, until_s) : errno;
    return code;
}

/* Marks the program as lost, so that the next clip restarts it: a late answer would be mistaken for
 * the answer to another order. */
static void
give_up(qv_decoder *d, int code)
{
    char text[128];
    if (code == ETIMEDOUT) {
        qvm_child_signal(&d->child, SIGKILL);
        snprintf(d->lost, sizeof d->lost, "did not answer for %g s and was killed", d->patience_s);
    } else if (code == EPIPE || code == ECONNRESET) {
        snprintf(d->lost, sizeof d->lost, "has ended%s: %s",
                 d->answered ? "" : " without an answer",
                 say_ending(end_program(&d->child), d->answered, text));
    } else {
        snprintf(d->lost, sizeof d->lost, "could not be read: %s", strerror(code));
    }
}

/* Sends an order and receives its answer, 0 if it has none. The caller holds the lock. */
static qv_status
exchange(qv_decoder *d, const qvm_order *order, const qvm_session *session, int32_t *answer,
         qv_error *err)
{
    const double until_s = qv_seconds() + d->patience_s;
    int code = send_order(d, order, session, until_s);
    if (code && code != ETIMEDOUT && code != EPIPE && code != ECONNRESET)
        return qv_fail(err, QV_EBACKEND, "qwenvit-decoder cannot be reached: %s", strerror(code));
    d->used = d->used || order->kind == QVM_SERVE;
    *answer = 0;
    if (!code && order->kind != QVM_DROP)
        code = qvm_receive_until(d->child.socket, answer, sizeof *answer, until_s);
    d->answered = d->answered || (!code && order->kind == QVM_SERVE);
    if (!code)
        return QV_OK;
    give_up(d, code);
    return qv_fail(err, QV_EBACKEND, "qwenvit-decoder %s", d->lost);
}

/* Makes the program ready for an order. For a new session a lost program is restarted; an order for
 * a process of an earlier start is rejected. */
static qv_status
make_ready(qv_decoder *d, const qvm_order *order, int64_t *start, qv_error *err)
{
    if (order->kind != QVM_SERVE)
        return *start == d->starts && !*d->lost
                   ? QV_OK
                   : qv_fail(err, QV_EBACKEND, "qwenvit-decoder %s",
                             *d->lost ? d->lost : "exited and was restarted");
    if (*d->lost)
        end_program(&d->child);
    const qv_status status = d->child.pid ? QV_OK : start_program(d, err);
    *start = d->starts;
    return status;
}

/* Takes the lock and exchanges an order, within patience_s. */
static qv_status
ask(qv_decoder *d, const qvm_order *order, const qvm_session *session, int64_t *start,
    int32_t *answer, qv_error *err)
{
    if (d->owner != getpid())
        return qv_fail(err, QV_EBACKEND,
                       "qwenvit-decoder was started by another process, not this one");
    pthread_mutex_lock(&d->lock);
    qv_status status = make_ready(d, order, start, err);
    if (!status)
        status = exchange(d, order, session, answer, err);
    pthread_mutex_unlock(&d->lock);
    return status;
}

qv_status
qvm_session_start(qv_decoder *decoder, const qvm_session *session, int64_t memory,
                  qvm_server *server, qv_error *err)
{
    const qvm_order order = { .kind = QVM_SERVE, .memory = memory };
    int32_t answer;
    const qv_status status = ask(decoder, &order, session, &server->start, &answer, err);
    if (status)
        return status;
    if (answer <= 0)
        return qv_fail(err, QV_EBACKEND, "qwenvit-decoder cannot start any more processes");
    server->pid = answer;
    return QV_OK;
}

int
qvm_session_end(qv_decoder *decoder, const qvm_server *server, qv_error *why)
{
    int32_t how;
    int64_t start = server->start;
    const qvm_order order = { .kind = QVM_KILL, .pid = server->pid };
    return ask(decoder, &order, NULL, &start, &how, why) ? -1 : how;
}

void
qvm_session_drop(qv_decoder *decoder, const qvm_server *server)
{
    int32_t none;
    int64_t start = server->start;
    ask(decoder, &(qvm_order){ .kind = QVM_DROP, .pid = server->pid }, NULL, &start, &none, NULL);
}
