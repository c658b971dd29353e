/* SPDX-License-Identifier: MIT */
/*
 * A hostile qwenvit-decoder. Before the third frame (or while opening the file, if the value begins
 * with "opening ") it commits the fault QV_FAULT: it behaves like code that took over a codec, or
 * lies about the file. Without QV_FAULT each clip can contain a fault, in a box after its end
 * (faulty_decoder.h); other clips are decoded correctly. tests/test_isolation.c, test_planted.c and
 * planted.sh start this program. It is linked with --wrap for the functions that decoding calls.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define main decoder_main /* The real program; our main calls it. */
#include "../decoder/main.c"
#undef main

#include "faulty_decoder.h"
#include "locked.h"
#include "wrap.h"

static const char *fault;
static atomic_bool deaf; /* Whether the thread that listens stops taking messages. */

static bool
is(const char *name)
{
    return !strcmp(fault, name);
}

/* Reads the number of a fault "NAME N". */
static bool
takes(const char *name, int *n)
{
    const size_t length = strlen(name);
    return !strncmp(fault, name, length) && sscanf(fault + length, " %d", n) == 1;
}

static void
send_event(int32_t kind, int32_t status)
{
    qvm_event event;
    memset(&event, 0, sizeof event);
    event.kind = kind;
    event.status = status;
    event.gpu_slot = is("slot of no GPU") ? 0 : -1;
    event.outcome.decoded_by = QV_DECODE_CPU;
    memset(event.text, '\033', sizeof event.text);
    qvm_send(FIRST_FD, &event, sizeof event);
}

/* Reports that the process is alive, and adds false numbers. */
static void
send_outcome(qv_outcome outcome)
{
    outcome.decoded_by = outcome.decoded_by ? outcome.decoded_by : QV_DECODE_CPU;
    const qvm_event event = { .kind = QVM_ALIVE, .outcome = outcome };
    qvm_send(FIRST_FD, &event, sizeof event);
}

static void
send_numbers(int64_t damaged, double decode_s)
{
    send_outcome((qv_outcome){ .damaged_frames = damaged, .decode_s = decode_s });
}

static void
sleep_for_ever(void)
{
    for (;;)
        usleep(1000000);
}

static void
hang(void)
{
    static volatile bool forever = true;
    while (forever)
        ;
}

/* Allocates memory until none is left, like a decompression bomb. */
static qv_status
take_all_memory(qv_error *err)
{
    enum { STEP = 1 << 20, PAGE = 4096 };
    for (int64_t taken = 0; taken < (int64_t)1 << 33; taken += STEP) {
        volatile char *p = malloc(STEP); /* Volatile, or a compiler leaves it all out. */
        if (!p)
            return qv_fail(err, QV_ENOMEM, "no memory while decoding");
        for (int i = 0; i < STEP; i += PAGE)
            p[i] = 1;
    }
    return QV_OK;
}

/* Tries all rows of decoder/lock.inc. Fails if one was let through, and with `report` in any
 * case. */
static qv_status
try_rows(bool report, qv_error *err)
{
    char through[400];
    locked.socket = FIRST_FD;
    locked.shared = FIRST_FD + 2;
    const int n = locked_try(LOCKED_CLIP, through, sizeof through);
    return *through || report ? qv_fail(err, QV_EFORMAT, "%d rows tried, through:%s", n, through)
                              : QV_OK;
}

/* Reports more frames than the socket has room for requests, and takes no message. */
static void
flood(void)
{
    atomic_store(&deaf, true);
    for (int i = 0; i < 100000; i++)
        send_event(QVM_FRAME, 0);
    sleep_for_ever();
}

/* The faults that end the process. */
static void
die(void)
{
    int n;
    if (is("segv") || takes("signal", &n)) {
        n = is("segv") ? SIGSEGV : n;
        signal(n, SIG_DFL); /* Otherwise the address sanitizer's handler would exit. */
        raise(n);
    }
    if (is("abort"))
        abort();
#ifdef __x86_64__
    if (is("x32"))
        syscall(0x40000000 | SYS_getpid);
#endif
    if (takes("exit", &n))
        _exit(n);
    if (is("leaderless")) { /* The thread that listens goes on, but takes no message. */
        atomic_store(&deaf, true);
        syscall(SYS_exit, 0);
    }
}

/* The faults that make the process silent or slow. */
static void
stall(void)
{
    if (is("hang"))
        hang();
    if (is("deaf"))
        flood();
    if (is("deaf and dumb")) {
        atomic_store(&deaf, true);
        sleep_for_ever();
    }
    if (is("half")) {
        qvm_send(FIRST_FD, "half of an event", 16);
        hang();
    }
    if (is("hung up")) {
        syscall(SYS_close,
                FIRST_FD); /* Another thread reads from it. With close(), the thread sanitizer would
                            * report the race. */
        sleep_for_ever();
    }
    for (int i = 0; is("slow") && i < 6; i++) {
        usleep(500000);
        send_numbers(0, 0);
    }
}

/* The faults that send impossible events, or events at the wrong time. */
static void
lie(void)
{
    int n;
    if (is("kind"))
        send_event(77, 0);
    if (takes("end", &n))
        send_event(QVM_END, n);
    if (is("facts again"))
        send_event(QVM_FACTS, 0);
    if (is("ready again"))
        send_event(QVM_READY, 0);
    if (is("escape codes"))
        send_event(QVM_END, QV_EFORMAT);
    if (is("slot of no GPU"))
        send_event(QVM_FRAME, 0);
    for (int i = 0; is("too many frames") && i < 1000; i++)
        send_event(QVM_FRAME, 0);
    for (int i = 0; is("garbage") && i < 100; i++)
        qvm_send(FIRST_FD, "no event at all", 16);
    if (is("busy nan"))
        send_numbers(0, NAN);
    if (is("busy below"))
        send_numbers(0, -1);
    if (is("busy above"))
        send_numbers(0, 1e308);
    if (is("damage below"))
        send_numbers(-1, 0);
    if (is("damage above"))
        send_numbers(INT64_MAX, 0);
    if (is("plan again"))
        send_event(QVM_PLAN, 0);
    if (is("decoded below"))
        send_outcome((qv_outcome){ .decoded_frames = -1 });
    if (is("decoded above"))
        send_outcome((qv_outcome){ .decoded_frames = INT64_MAX });
    if (is("needed below"))
        send_outcome((qv_outcome){ .needed_frames = -1 });
    if (is("decoded by"))
        send_outcome((qv_outcome){ .decoded_by = (qv_decode)77 });
    if (is("gpu"))
        send_outcome((qv_outcome){ .decoded_by = QV_DECODE_GPU });
    if (is("index"))
        qvm_send(FIRST_FD,
                 &(qvm_event){ .kind = QVM_ALIVE,
                               .outcome = { .decoded_by = QV_DECODE_CPU },
                               .index_bytes = 64 },
                 sizeof(qvm_event));
}

static qv_status
do_fault(qv_error *err)
{
    die();
    stall();
    lie();
    if (is("leak"))
        return take_all_memory(err);
    if (is("escape") || is("rows"))
        return try_rows(is("rows"), err);
    return QV_OK;
}

WRAPPED(bool, qvm_receive, (int socket, void *message, size_t n))
{
    const bool got = __real_qvm_receive(socket, message, n);
    if (atomic_load(&deaf))
        sleep_for_ever();
    return got;
}

WRAPPED(const char *, qvm_sandbox, (int64_t memory, int first_fd))
{
    errno = ENOTSUP;
    return is("unlocked") ? "no such filter" : __real_qvm_sandbox(memory, first_fd);
}

WRAPPED(qv_status, qvm_reader_read,
        (qvm_reader * reader, int64_t index, int height, int width, uint8_t *dst, qv_error *err))
{
    static int n;
    const qv_status status = ++n == 3 ? do_fault(err) : QV_OK;
    return status ? status : __real_qvm_reader_read(reader, index, height, width, dst, err);
}

/* Reads the fault that the clip itself contains. */
static void
take_fault_of(int fd)
{
    static char box[QV_PLANTED_BYTES + 1];
    const off_t bytes = lseek(fd, 0, SEEK_END); /* a filter may refuse fstat */
    if (bytes < QV_PLANTED_BYTES ||
        pread(fd, box, QV_PLANTED_BYTES, bytes - QV_PLANTED_BYTES) != QV_PLANTED_BYTES ||
        memcmp(box, QV_PLANTED, sizeof QV_PLANTED - 1) != 0)
        return;
    for (char *end = box + QV_PLANTED_BYTES - 1; *end == ' '; end--)
        *end = 0;
    fault = box + sizeof QV_PLANTED - 1;
}

static void
lie_about_numbers(qv_outcome *info)
{
    static const struct {
        const char *fault;
        size_t at;
        double value;
    } numbers[] = {
        { "rate nan", offsetof(qv_outcome, source_fps), NAN },
        { "rate inf", offsetof(qv_outcome, source_fps), INFINITY },
        { "rate none", offsetof(qv_outcome, source_fps), 0 },
        { "rate below", offsetof(qv_outcome, source_fps), -25 },
        { "rate tiny", offsetof(qv_outcome, source_fps), 1e-310 },
        { "rate huge", offsetof(qv_outcome, source_fps), 1e300 },
        { "header nan", offsetof(qv_outcome, header_fps), NAN },
        { "header below", offsetof(qv_outcome, header_fps), -25 },
        { "image header", offsetof(qv_outcome, header_fps), 25 },
        { "duration nan", offsetof(qv_outcome, duration_s), NAN },
        { "duration below", offsetof(qv_outcome, duration_s), -1 },
        { "duration huge", offsetof(qv_outcome, duration_s), 1e308 },
        { "image rate", offsetof(qv_outcome, source_fps), NAN },
        { "image time", offsetof(qv_outcome, duration_s), NAN },
    };
    if (!strncmp(fault, "image ", 6)) {
        info->is_image = true;
        info->source_frames = 1;
        info->source_fps = info->duration_s = info->header_fps = 0;
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (is(numbers[i].fault))
            memcpy((char *)info + numbers[i].at, &numbers[i].value, sizeof(double));
}

static void
lie_about(qv_outcome *info)
{
    lie_about_numbers(info);
    if (is("image frames"))
        info->source_frames = 2;
    if (is("bool"))
        memset(&info->is_image, 0x55, 1);
    if (is("width"))
        info->source_width = 1 << 30;
    if (is("height"))
        info->source_height = -1;
    if (is("sides"))
        info->source_width = info->source_height = QVM_MAX_SIDE;
    if (is("frames"))
        info->source_frames = INT64_MAX;
    if (is("rotation"))
        info->rotation = 45;
    if (is("rotation back"))
        info->rotation = -90;
    if (is("names")) {
        memset(info->codec, 0xff, sizeof info->codec);
        memset(info->format, '\033', sizeof info->format);
    }
    if (is("decisions")) { /* which the clip's side makes */
        const size_t first = offsetof(qv_outcome, first_frame);
        memset(&info->first_frame, 0x55, offsetof(qv_outcome, remark) - first);
        info->file_bytes = info->file_mtime_ns = 0x5555555555555555;
        info->like = (qv_like)0x55555555;
    }
    if (is("remark"))
        info->remark = QV_REMARK_MORE_JPEGS + 1;
    if (is("remark back"))
        info->remark = (qv_remark)-1;
}

WRAPPED(qv_status, qvm_reader_open,
        (qvm_reader * reader, int fd, const qvm_watch *watch, qv_outcome *info, qv_error *err))
{
    qv_status status = __real_qvm_reader_open(reader, fd, watch, info, err);
    if (!*fault)
        take_fault_of(fd);
    if (!status && !strncmp(fault, "opening ", 8)) {
        fault += 8;
        status = do_fault(err);
        fault = "";
    }
    lie_about(info);
    return status;
}

/* Ends the process at the first try of a call that the sandbox would refuse without a report. */
static void
end_on_try(void)
{
    static const int calls[] = { SCMP_SYS(openat), SCMP_SYS(socket), SCMP_SYS(connect),
                                 SCMP_SYS(bind), SCMP_SYS(execve) };
    scmp_filter_ctx strict = seccomp_init(SCMP_ACT_ALLOW);
    int code = strict ? 0 : -ENOMEM;
    for (size_t i = 0; !code && i < sizeof calls / sizeof *calls; i++)
        code = seccomp_rule_add(strict, SCMP_ACT_KILL_PROCESS, calls[i], 0);
    if (code || seccomp_load(strict))
        abort();
    seccomp_release(strict);
}

int
main(int argc, char **argv)
{
    locked.victim = getpid(); /* not the clip's process, which is forked off this one */
    fault = getenv("QV_FAULT");
    if (!fault)
        fault = "";
    if (is("strict") || is("strict escape"))
        end_on_try();
    if (is("strict escape"))
        fault = "escape";
    return decoder_main(argc, argv);
}
