/* SPDX-License-Identifier: MIT */
/*
 * qwenvit-decoder in hostile hands: does what QV_FAULT says before the third frame, as code that
 * took over a codec would, or tells lies about the file. tests/test_isolation.c starts it.
 * Linked with --wrap for what decoding goes through.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define main decoder_main /* the program itself, behind our main */
#include "../media/decoder.c"
#undef main

#include "faulty_decoder.h"

qv_status __real_qvm_reader_open(qvm_reader *reader, int fd, int threads, const qvm_watch *watch,
                                 qv_clip_info *info, qv_error *err);
qv_status __wrap_qvm_reader_open(qvm_reader *reader, int fd, int threads, const qvm_watch *watch,
                                 qv_clip_info *info, qv_error *err);
qv_status __real_qvm_reader_read(qvm_reader *reader, int64_t index, int height, int width,
                                 uint8_t *dst, qv_error *err);
qv_status __wrap_qvm_reader_read(qvm_reader *reader, int64_t index, int height, int width,
                                 uint8_t *dst, qv_error *err);

static const char *fault;

static bool
is(const char *name)
{
    return !strcmp(fault, name);
}

static void
send_event(int32_t kind, int32_t status)
{
    qvm_event event;
    memset(&event, 0, sizeof event);
    event.kind = kind;
    event.status = status;
    memset(event.text, '\033', sizeof event.text);
    qvm_send(FIRST_FD, &event, sizeof event);
}

static void
hang(void)
{
    static volatile bool forever = true;
    while (forever)
        ;
}

/* Until there is none, as a bomb does. */
static qv_status
take_all_memory(qv_error *err)
{
    enum { STEP = 1 << 20, PAGE = 4096 };
    for (int64_t taken = 0; taken < (int64_t)1 << 33; taken += STEP) {
        volatile char *p = malloc(STEP); /* or a compiler leaves it all out */
        if (!p)
            return qv_fail(err, QV_ENOMEM, "no memory while decoding");
        for (int i = 0; i < STEP; i += PAGE)
            p[i] = 1;
    }
    return QV_OK;
}

/* Each must be refused; the ones that are not are a bit of the result. */
static unsigned
try_to_escape(void)
{
    unsigned out = 0;
    const int names[] = { open("/etc/passwd", O_RDONLY),
                          open("/tmp", O_RDONLY | O_DIRECTORY),
                          open("escaped", O_WRONLY | O_CREAT, 0600),
                          socket(AF_INET, SOCK_STREAM, 0),
                          socket(AF_UNIX, SOCK_DGRAM, 0),
                          ftruncate(FIRST_FD + 2, 0),
                          unlink("victim"),
                          rename("victim", "taken"),
                          mkdir("escaped", 0700),
                          kill(getppid(), SIGUSR1),
                          (int)syscall(SYS_tgkill, getppid(), getppid(), SIGUSR1),
                          (int)fork(),
                          chmod("victim", 0) };
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
        out |= (names[i] >= 0) << i;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* which report there */
    out |= (write(STDOUT_FILENO, "out", 3) >= 0 || write(STDERR_FILENO, "out", 3) >= 0) << 19;
#endif
    char *const argv[] = { NULL };
    execve("/bin/true", argv, argv); /* does not come back where it is allowed */
    char byte;
    if (syscall(SYS_clone3, NULL, 0) >= 0 || errno != ENOSYS) /* C libraries then use clone */
        out |= 1U << 18;
    if (read(QV_LEAKED_FD, &byte, 1) >= 0 || errno != EBADF)
        out |= 1U << 20;
    return out;
}

static qv_status
do_fault(qv_error *err)
{
    if (is("segv")) {
        signal(SIGSEGV, SIG_DFL); /* the address sanitizer's handler would exit */
        raise(SIGSEGV);
    }
    if (is("abort"))
        abort();
    if (is("hang"))
        hang();
    if (is("leak"))
        return take_all_memory(err);
    if (is("exit"))
        _exit(7);
    if (is("half")) {
        qvm_send(FIRST_FD, "half of an event", 16);
        hang();
    }
    if (is("kind"))
        send_event(77, 0);
    if (is("status"))
        send_event(QVM_END, 4242);
    if (is("early"))
        send_event(QVM_END, QV_OK);
    if (is("escape codes"))
        send_event(QVM_END, QV_EFORMAT);
    if (is("facts again"))
        send_event(QVM_FACTS, 0);
    for (int i = 0; is("too many frames") && i < 1000; i++)
        send_event(QVM_FRAME, 0);
    if (is("escape")) {
        const unsigned out = try_to_escape();
        if (out)
            return qv_fail(err, QV_EBACKEND, "escaped: %#x", out);
    }
    return QV_OK;
}

qv_status
__wrap_qvm_reader_read(qvm_reader *reader, int64_t index, int height, int width, uint8_t *dst,
                       qv_error *err)
{
    static int n;
    const qv_status status = ++n == 3 ? do_fault(err) : QV_OK;
    return status ? status : __real_qvm_reader_read(reader, index, height, width, dst, err);
}

qv_status
__wrap_qvm_reader_open(qvm_reader *reader, int fd, int threads, const qvm_watch *watch,
                       qv_clip_info *info, qv_error *err)
{
    const qv_status status = __real_qvm_reader_open(reader, fd, threads, watch, info, err);
    if (is("hang at once"))
        hang();
    if (is("bool"))
        memset(&info->picture, 0x55, 1);
    if (is("width"))
        info->source_width = 1 << 30;
    if (is("height"))
        info->source_height = -1;
    if (is("frames"))
        info->source_frames = INT64_MAX;
    if (is("rate"))
        info->source_fps = NAN;
    if (is("rotation"))
        info->rotation = 45;
    if (is("names"))
        memset(info->codec, 'x', sizeof info->codec + sizeof info->format);
    return status;
}

/* Ends the process at the first try of what the sandbox would refuse in silence. */
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
    fault = getenv("QV_FAULT");
    if (!fault)
        fault = "";
    if (is("strict") || is("strict escape"))
        end_on_try();
    if (is("strict escape"))
        fault = "escape";
    return decoder_main(argc, argv);
}
