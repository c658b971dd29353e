/* SPDX-License-Identifier: MIT */
/*
 * Tests what a process that is locked down can do, row by row (decoder/lock.inc), in both kinds of
 * process: a clip's, and the one that has a GPU open (software_nvdec.c stands in for the GPU). The
 * rest is tested from outside: what the processes keep from their caller, and whether they outlive
 * it.
 */
#include "test.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../clips/gpu.h"
#include "../decoder/decoder.h"
#include "faulty_decoder.h"
#include "locked.h"
#include "make_clips.h"
#include "read_clip.h"
#include "start_decoder.h"
#include "tempdir.h"

#define CLIP "x264-pyramid.mkv"

int __real_kill(pid_t pid, int number);
int __wrap_kill(pid_t pid, int number);

static bool has_landlock; /* without it no GPU process is locked down */

/* Returns the number of rows that are shut in a kind of process. */
static int
count_rows(int kind)
{
    const struct locked_row *class = NULL;
    int n = 0;
    for (const struct locked_row *row = locked_rows; row < locked_rows + locked_n_rows; row++)
        if (!row->way)
            class = row;
        else
            n += !row->abi && class->shut_in & kind;
    return n;
}

/* Gives this process a standard output and error that the processes which it starts must not get,
 * and returns the other end. `give_back` undoes it. */
static int kept[2];

static int
take_output(void)
{
    int ends[2];
    fflush(NULL);
    assert_int_equal(pipe(ends), 0);
    for (int i = 0; i < 2; i++) {
        kept[i] = fcntl(1 + i, F_DUPFD_CLOEXEC, 100);
        dup2(ends[1], 1 + i);
    }
    close(ends[1]);
    fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    return ends[0];
}

static void
give_back_output(int end)
{
    for (int i = 0; i < 2; i++) {
        dup2(kept[i], 1 + i);
        close(kept[i]);
    }
    close(end);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* In a process that is not locked down, in which every way must be open: else a row would show
 * nothing. */
static void
try_free(int results, pid_t victim)
{
    char text[1024];
    int pair[2];
    if (chdir("free") || close(open("victim", O_WRONLY | O_CREAT, 0600)) ||
        socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
        _exit(1);
    locked = (struct locked){ .victim = victim,
                              .socket = pair[0],
                              .shared = memfd_create("free", MFD_ALLOW_SEALING) };
    const int n = locked_try(LOCKED_FREE, text, sizeof text);
    fflush(stdout);
    dprintf(results, "%d%s", n, text);
    _exit(0);
}

TEST(test_unlocked)
{
    char text[1100] = "";
    int results[2];
    assert_int_equal(pipe(results), 0);
    assert_int_equal(mkdir("free", 0700), 0);
    const pid_t victim = fork();
    if (!victim)
        for (;;)
            pause();
    const pid_t child = fork();
    if (!child)
        try_free(results[1], victim);
    close(results[1]);
    waitpid(child, NULL, 0);
    assert_true(read(results[0], text, sizeof text - 1) > 0);
    kill(victim, SIGKILL);
    waitpid(victim, NULL, 0);
    close(results[0]);
    if (strchr(text, ' '))
        fail_msg("shut in a process that is not locked in:%s", strchr(text, ' '));
}

TEST(test_clip)
{
    char expected[64];
    const int end = take_output();
    const qv_clip_options options = { .decoder = start("rows") };
    const struct clip_read r = read_clip(CLIP, &options);
    test_end(options.decoder);
    give_back_output(end);
    snprintf(expected, sizeof expected,
             CLIP ": %d rows tried, through:", count_rows(QVM_LOCK_CLIP));
    assert_int_equal(r.status, QV_EFORMAT);
    assert_string_equal(r.error.text, expected);
}

TEST(test_gpu)
{
    char expected[64];
    if (!has_landlock)
        skip();
    const int end = take_output(), n = count_rows(QVM_LOCK_GPU);
    const qv_clip_options options = { .decoder = start_gpu("rows"), .decode = QV_DECODE_GPU };
    const struct clip_read r = read_clip(CLIP, &options);
    test_end(options.decoder);
    give_back_output(end);
    snprintf(expected, sizeof expected, "%d and %d rows tried, through:", n, n);
    assert_int_equal(r.status, QV_OK);
    assert_string_equal(r.info.not_gpu, expected);
}

/* What Landlock refuses even where no filter does. */
TEST(test_files)
{
    char expected[64];
    qv_error err = { QV_OK, "" };
    int n = 0;
    if (!has_landlock)
        skip();
    qv_decoder *decoder = start_gpu("files");
    assert_int_equal(qv_decoder_gpu(decoder, 0, true, &err), QV_EBACKEND);
    const int abi = locked_landlock();
    for (int i = 0; i < locked_n_rows; i++)
        n += locked_rows[i].abi && locked_rows[i].abi <= abi;
    snprintf(expected, sizeof expected, "GPU 0 cannot decode: %d rows tried, through: (", n);
    if (strncmp(err.text, expected, strlen(expected)) != 0)
        fail_msg("'%s' does not begin with '%s'", err.text, expected);
}

/* ---- what is kept of a caller ---------------------------------------------------------------- */

/* The peer of a connection sees its end when the caller closes it, whatever the caller has
 * started. */
TEST(test_peer)
{
    int pair[2];
    char byte;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0); /* without FD_CLOEXEC */
    const qv_clip_options options = { .decoder = start_gpu("") };
    assert_int_equal(read_clip(CLIP, &options).status, QV_OK);
    if (has_landlock)
        assert_ok(qv_decoder_gpu(options.decoder, 0, true, ERR));
    assert_true(getsid(options.decoder->child.pid) != getsid(0));
    close(pair[0]);
    struct pollfd peer = { .fd = pair[1], .events = POLLIN };
    assert_int_equal(poll(&peer, 1, 5000), 1);
    assert_int_equal(read(pair[1], &byte, 1), 0);
    close(pair[1]);
}

/* ---- the end of a caller --------------------------------------------------------------------- */

/* Makes a GPU process hang in a clip, and then waits to be killed. */
static void
hang(int told)
{
    qv_clip_options options = { .decoder = start_gpu("silent 5"),
                                .decode = QV_DECODE_GPU,
                                .decode_seconds = 600 };
    open_clip(CLIP, &options);
    usleep(500000);
    const pid_t pid = options.decoder->gpus->at[0].now.child.pid;
    if (write(told, &pid, sizeof pid) < 0)
        _exit(1);
    for (;;)
        pause();
}

/* Waits until n of our children have ended, for 10 s at most. Returns how many have. */
static int
count_ended(int n)
{
    const double until_s = qv_seconds() + 10;
    int ended = 0;
    while (ended < n && qv_seconds() < until_s) {
        const pid_t pid = waitpid(-1, NULL, WNOHANG);
        if (pid < 0)
            break;
        ended += pid > 0;
        usleep(pid ? 0 : 10000);
    }
    return ended;
}

/* A GPU process that reads nothing ends with its watcher and with its caller, like all other
 * processes. */
TEST(test_stuck)
{
    enum { MOST = 100 };
    int told[2];
    pid_t watcher = 0;
    if (!has_landlock)
        skip();
    assert_int_equal(pipe(told), 0);
    assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0),
                     0); /* orphans become our children */
    for (int killed = 0; killed < 2; killed++) {
        const pid_t caller = fork();
        if (!caller)
            hang(told[1]);
        assert_int_equal(read(told[0], &watcher, sizeof watcher), sizeof watcher);
        if (!killed)
            __real_kill(watcher, SIGKILL);
        const int first = killed ? 1 : count_ended(1); /* the GPU process */
        __real_kill(caller, SIGKILL);
        const int n = count_ended(MOST);
        const bool left = waitpid(-1, NULL, WNOHANG) >= 0;
        if (left)
            __real_kill(-watcher, SIGKILL); /* its session */
        assert_int_equal(first, 1);
        assert_false(left);
        assert_in_range(n, 3, 5); /* with its program, the clip's process, a spare, a watcher */
    }
    prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0);
    close(told[0]);
    close(told[1]);
}

/* Has a program run only once this process, its caller, has gone; another process keeps the
 * caller's end of the socket. */
static void
start_late(bool device)
{
    int here, there;
    const pid_t caller = setsid();
    char name[] = "qwenvit-decoder", option[] = "--device", number[] = "0";
    char *const argv[] = { name, device ? option : NULL, number, NULL };
    if (!qvm_stream(&here, &there))
        _exit(1);
    if (!fork())
        for (;;)
            pause();
    if (!fork()) {
        while (getppid() == caller)
            usleep(1000);
        dup2(there, STDIN_FILENO);
        execv(QV_SOFTWARE_GPU, argv);
    }
    _exit(0);
}

/* A program that starts running only after its caller has ended exits as well. */
TEST(test_late)
{
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    for (int device = 0; device < 2; device++) {
        const pid_t caller = fork();
        if (!caller)
            start_late(device);
        assert_int_equal(waitpid(caller, NULL, 0), caller);
        const int n = count_ended(1);
        __real_kill(-caller, SIGKILL); /* its session */
        assert_int_equal(count_ended(2), 2 - n);
        assert_int_equal(n, 1);
    }
    prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0);
}

/* ---- numbers of processes that have ended ---------------------------------------------------- */

static int n_strangers; /* signals to processes that are no children, or none any more */

int
__wrap_kill(pid_t pid, int number)
{
    siginfo_t info;
    if (pid <= 0 || waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT))
        n_strangers++;
    return __real_kill(pid, number);
}

/* An application that waits for all its children, or for none (SIGCHLD is ignored), frees the
 * numbers of ours, which another process may then have. */
TEST(test_reaped)
{
    for (int round = 0; round < 4; round++) {
        const bool ignored = round & 1, by_number = round & 2; /* as where there are no pidfds */
        qv_decoder *decoder = start_gpu("");
        if (has_landlock)
            assert_int_equal(qv_decoder_gpu(decoder, 0, true, NULL), QV_OK);
        const pid_t pids[] = { decoder->child.pid, decoder->gpus->at[0].now.child.pid };
        qvm_child *children[] = { &decoder->child, &decoder->gpus->at[0].now.child };
        for (int i = 0; by_number && i < 2 && pids[i]; i++) {
            close(children[i]->handle);
            children[i]->handle = -1;
        }
        signal(SIGCHLD, ignored ? SIG_IGN : SIG_DFL);
        for (int i = 0; i < 2 && pids[i]; i++) {
            assert_int_equal(__real_kill(pids[i], SIGKILL), 0);
            if (!ignored)
                assert_int_equal(waitpid(-1, NULL, 0), pids[i]);
            while (ignored && !__real_kill(pids[i], 0))
                usleep(1000);
        }
        n_strangers = 0;
        test_end(decoder);
        signal(SIGCHLD, SIG_DFL);
        assert_int_equal(n_strangers, 0);
    }
}

/* ---- the page -------------------------------------------------------------------------------- */

/* The page's table is that of lock.inc. */
TEST(test_page)
{
    static char line[4096];
    const char *page = file_text(QV_ISOLATION_PAGE);
    for (const struct locked_row *row = locked_rows, *end = row + locked_n_rows; row < end;) {
        const struct locked_row *class = row++;
        int n = snprintf(line, sizeof line, "| %s | ", class->text);
        for (const char *comma = ""; row < end && row->way; row++)
            if (!row->abi) {
                n += snprintf(line + n, sizeof line - (size_t)n, "%s%s", comma, row->text);
                comma = ", ";
            }
        snprintf(line + n, sizeof line - (size_t)n, " | %s | %s |\n",
                 class->shut_in & QVM_LOCK_CLIP ? "shut" : "open",
                 class->shut_in & QVM_LOCK_GPU ? "shut" : "open");
        if (!strstr(page, line))
            fail_msg(QV_ISOLATION_PAGE " lacks this line:\n%s", line);
    }
}

static int
make_files(void)
{
    FILE *victim;
    if (clips_enter_folder())
        return -1;
    clip_write(CLIP);
    victim = fopen("victim", "w");
    has_landlock = locked_landlock() > 0;
    if (!has_landlock)
        print_message("This system has no Landlock: no process with a GPU open can be locked down, "
                      "and its rows are not tried.\n");
    return !victim || fclose(victim) || dup2(0, QV_LEAKED_FD) < 0; /* without FD_CLOEXEC */
}

static int
check_files(void)
{
    const bool escaped = !access("escaped", F_OK);
    return clips_leave_folder() || escaped ? -1 : 0;
}

TEST_GROUP(make_files, check_files);
