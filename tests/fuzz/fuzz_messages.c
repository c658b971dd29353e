/* SPDX-License-Identifier: MIT */
/* Fuzzes the messages of a clip's decoder process to the clip (clips/decoder_process.c), whose side
 * runs here without a process. The bytes of the input become events, which are honest except for
 * the input's changes, or are sent as they are. */
#include <errno.h>
#include <math.h>

#include "fuzz.h"
#include "error.h"
#include "../clips/clips.h"

qv_status __wrap_qvm_session_start(qv_decoder *decoder, const qvm_session *session, int64_t memory,
                                   qvm_server *server, qv_error *err);
int __wrap_qvm_session_end(qv_decoder *decoder, const qvm_server *server, qv_error *why);
void __wrap_qvm_session_drop(qv_decoder *decoder, const qvm_server *server);

static struct fuzz_bytes input;
static int decoder_socket; /* The decoder process's socket, which is ours. */
static int ended;          /* How the process ended, as waitpid reports it. */

/* ---- the decoder process --------------------------------------------------------------------- */

/* What does not fit into the socket is dropped. */
static void
say(const void *bytes, size_t n)
{
    (void)!send(decoder_socket, bytes, n, QVM_NOSIGNAL | MSG_DONTWAIT);
}

static void
fill_facts(qv_outcome *f)
{
    f->source_width = f->source_height = 64;
    f->source_frames = 16;
    f->source_fps = 25;
    f->duration_s = 0.64;
    strcpy(f->codec, "codec");
    strcpy(f->format, "format");
    switch (fuzz_byte(&input) % 16) { /* Mostly only one lie at a time. */
    case 1: f->source_width = (int)fuzz_int(&input); break;
    case 2: f->source_height = (int)fuzz_int(&input); break;
    case 3: f->source_frames = fuzz_int(&input); break;
    case 4: f->source_fps = fuzz_real(&input); break;
    case 5: f->duration_s = fuzz_real(&input); break;
    case 6: f->rotation = (int)fuzz_int(&input); break;
    case 7: memset(&f->is_image, fuzz_byte(&input), 1); break;
    case 8: memset(f->codec, fuzz_byte(&input), sizeof f->codec); break;
    case 9: memset(f->format, fuzz_byte(&input), sizeof f->format); break;
    case 10:
        memset(&f->first_frame, fuzz_byte(&input),
               offsetof(qv_outcome, needed_frames) - offsetof(qv_outcome, first_frame));
        break;
    case 11: /* An image, which has no seconds. */
        f->is_image = true;
        f->source_frames = 1;
        f->source_fps = f->duration_s = f->header_fps = 0;
        break;
    case 12: /* Any clip. */
        f->source_width = (int)fuzz_int(&input);
        f->source_height = (int)fuzz_int(&input);
        f->source_frames = fuzz_int(&input);
        f->source_fps = fuzz_real(&input);
        f->duration_s = fuzz_real(&input);
        break;
    case 13: f->header_fps = fuzz_real(&input); break;
    default: break;
    }
}

/* Sends one kind of event, several times. */
static void
say_events(qvm_event_kind kind)
{
    qvm_event e;
    memset(&e, 0, sizeof e);
    e.kind = kind;
    e.outcome.decoded_by = QV_DECODE_CPU;
    int times = kind == QVM_FRAME ? 1 + fuzz_byte(&input) % 64 : 1;
    if (kind == QVM_FACTS)
        fill_facts(&e.outcome);
    if (kind == QVM_END) {
        e.status = (int32_t)fuzz_int(&input);
        memset(e.text, fuzz_byte(&input), fuzz_flag(&input) ? sizeof e.text : 7);
    }
    const uint8_t more = fuzz_byte(&input);
    if (more & 1)
        e.outcome.damaged_frames = fuzz_int(&input);
    if (more & 2)
        e.outcome.decode_s = fuzz_real(&input);
    for (int i = 0; more & 4 && i < 4; i++) { /* Changes any byte of the event. */
        const size_t at = (size_t)(fuzz_byte(&input) | fuzz_byte(&input) << 8) % sizeof e;
        ((uint8_t *)&e)[at] = fuzz_byte(&input);
    }
    if (kind == QVM_PLAN)
        e.outcome.needed_frames = fuzz_int(&input);
    while (times--)
        say(&e, sizeof e);
    if (kind == QVM_FACTS && !(more & 8)) { /* The usual plan. */
        const qvm_event plan = { .kind = QVM_PLAN,
                                 .outcome = { .needed_frames = 1, .decoded_by = QV_DECODE_CPU } };
        say(&plan, sizeof plan);
    }
}

static void
say_all(void)
{
    while (input.left) {
        const uint8_t what = fuzz_byte(&input) % 8;
        if (what <= QVM_PLAN) {
            say_events((qvm_event_kind)what);
        } else { /* Sends bytes as they are. */
            size_t n = fuzz_byte(&input) * 8U;
            n = n < input.left ? n : input.left;
            say(input.at, n);
            input.at += n;
            input.left -= n;
        }
    }
}

qv_status
__wrap_qvm_session_start(qv_decoder *decoder, const qvm_session *session, int64_t memory,
                         qvm_server *server, qv_error *err)
{
    close(decoder_socket); /* of a clip that has started over */
    decoder_socket = fcntl(session->socket, F_DUPFD_CLOEXEC, 0);
    FUZZ_CHECK(decoder_socket >= 0);
    server->pid = 1; /* Nobody uses this process number. */
    say_all();
    shutdown(decoder_socket, SHUT_WR);
    return QV_OK;
}

int
__wrap_qvm_session_end(qv_decoder *decoder, const qvm_server *server, qv_error *why)
{
    FUZZ_CHECK(server->pid == 1);
    if (ended == -1)
        qv_fail(why, QV_EBACKEND, "qwenvit-decoder has ended");
    return ended;
}

void
__wrap_qvm_session_drop(qv_decoder *decoder, const qvm_server *server)
{
    FUZZ_CHECK(server->pid == 1);
}

/* ---- the clip's side ------------------------------------------------------------------------- */

/* Returns whether a text ends within its bytes, and a terminal may be shown it. */
static bool
is_text(const char *text, size_t size)
{
    return strnlen(text, size) < size && qv_is_printable(text);
}

static void
check_info(const qv_outcome *c)
{
    unsigned char is_image;
    memcpy(&is_image, &c->is_image, 1);
    FUZZ_CHECK(is_image <= 1 && is_text(c->codec, sizeof c->codec));
    FUZZ_CHECK(is_text(c->format, sizeof c->format) && c->rotation % 90 == 0);
    FUZZ_CHECK(isfinite(c->source_fps) && isfinite(c->duration_s) && isfinite(c->sampled_fps) &&
               isfinite(c->header_fps));
    FUZZ_CHECK(c->source_fps >= 0 && c->duration_s >= 0 && c->sampled_fps >= 0);
    FUZZ_CHECK(c->n_frames >= 1 && c->n_frames <= QVM_MAX_SAMPLED);
    FUZZ_CHECK(c->cut_frames >= 1 && c->first_frame >= 0);
    FUZZ_CHECK(c->first_frame + c->cut_frames <= c->source_frames);
    FUZZ_CHECK(c->width >= 1 && c->height >= 1 && c->width <= QVM_MAX_SIDE);
    FUZZ_CHECK(c->height <= QVM_MAX_SIDE && (int64_t)c->width * c->height <= QVM_MAX_PIXELS);
    FUZZ_CHECK(c->needed_frames >= 0 && is_text(c->decodes_all, sizeof c->decodes_all));
    FUZZ_CHECK(is_text(c->not_gpu, sizeof c->not_gpu) && c->decoded_by == QV_DECODE_CPU);
}

/* Nothing that the other process does is reported as a lack of memory or a lost device, which would
 * end everything; only the second loss of the program is. */
static bool
has_failed(qv_status status, const qv_error *err, bool asked)
{
    FUZZ_CHECK(!asked || (status != QV_ENOMEM && status != QV_ENODEVICE && status != QV_ESTATE &&
                          (status != QV_EBACKEND || ended == -1)));
    return fuzz_failed(status, err);
}

static void
read_frames(qv_clip *clip)
{
    qv_outcome info;
    qv_error err;
    int64_t got = 1, n = 0;
    double time_s;
    qv_clip_get_info(clip, &info);
    check_info(&info);
    uint8_t *frame = malloc((size_t)info.width * (size_t)info.height * 3);
    FUZZ_CHECK(frame);
    qv_status status = QV_OK;
    for (; !status && got; n += got) {
        got = 0;
        status = qv_clip_read(clip, frame, 1, &got, &time_s, &err);
        FUZZ_CHECK(!got || (isfinite(time_s) && time_s >= 0));
        qv_clip_get_info(clip, &info);
        FUZZ_CHECK(info.decoded_frames >= 0 && info.damaged_frames >= 0 && info.decode_s >= 0 &&
                   isfinite(info.decode_s));
    }
    FUZZ_CHECK(n <= info.n_frames && (has_failed(status, &err, true) || n == info.n_frames));
    free(frame);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char decoder; /* Nobody looks into it. */
    qv_clip_options o = { .decoder = (qv_decoder *)(void *)&decoder,
                          .bytes = "a clip",
                          .n_bytes = 6,
                          .min_pixels = 1,
                          .max_pixels = 1 << 16,
                          .max_frames = 64,
                          .decode_seconds = 20 };
    qv_clip *clip = NULL;
    qv_error err;
    qvm_request request;
    input = (struct fuzz_bytes){ data, size };
    decoder_socket = -1;
    const uint8_t how = fuzz_byte(&input);
    o.like = how & 1 ? QV_LIKE_QWEN_VL_UTILS : QV_LIKE_TRANSFORMERS;
    o.start_s = how & 2 ? 0.2 : 0;
    o.end_s = how & 4 ? 0.5 : 0;
    const bool exits = fuzz_flag(&input);
    const uint8_t end = fuzz_byte(&input);
    /* -1: nobody knows, as the program was lost; the clip then starts over with the bytes that are
     * left */
    ended = exits ? end << 8 : end == 0xff ? -1 : end & 0x7f;
    const qv_status status = qv_clip_open("clip", NULL, NULL, &o, &clip, &err);
    const bool asked =
        recv(decoder_socket, &request, sizeof request, MSG_DONTWAIT) == sizeof request;
    FUZZ_CHECK(!asked || request.kind == QVM_OPEN);
    if (has_failed(status, &err, asked))
        FUZZ_CHECK(!clip);
    else
        read_frames(clip);
    qv_clip_close(&clip);
    close(decoder_socket);
    return 0;
}
