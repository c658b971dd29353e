/* SPDX-License-Identifier: MIT */
/* Tests that a decoder process that crashes, hangs, exhausts memory, lies or tries to break out
 * costs its own clip and nothing else. */
#include "test.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../clips/clips.h"
#include "../decoder/decoder.h"
#include "command/tool.h"
#include "faulty_decoder.h"
#include "processes.h"
#include "read_clip.h"
#include "start_decoder.h"
#include "tempdir.h"
#include "wrap.h"

#define CLIP "isolation.mp4" /* 100 frames of 320x240; 8 are sampled. */
#define N_FRAMES 8

static uint8_t frames[2][N_FRAMES][256 * 320 * 3];

/* No process is left behind, and none can be waited for. */
static int
no_child(void)
{
    return waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD ? 0 : -1;
}

static struct clip_read
read_with(qv_decoder *decoder)
{
    return read_clip(CLIP, &(qv_clip_options){ .decoder = decoder });
}

static void
expect_all(qv_decoder *decoder)
{
    const struct clip_read r = read_with(decoder);
    if (r.status || r.n != N_FRAMES)
        fail_msg("%s, %d frames, '%s'", qv_status_name(r.status), (int)r.n, r.error.text);
}

/* Reads n frames of a clip. */
static void
expect_frames(qv_clip *clip, uint8_t *to, int64_t n)
{
    int64_t got = 0;
    assert_ok(qv_clip_read(clip, to, n, &got, NULL, ERR));
    assert_int_equal(got, n);
}

/* test_planted.c has more of them, each in a job. */
TEST(test_faults)
{
    static const struct {
        const char *fault;
        qv_status status;
        int64_t frames; /* The frames that come before it. */
        const char *text;
    } cases[] = {
        { "none", QV_OK, N_FRAMES, "" },
        { "segv", QV_EFORMAT, 2, "was killed by signal 11" },
        { "abort", QV_EFORMAT, 2, "was killed by signal 6" },
        { "hang", QV_EFORMAT, 2, "no sign of life" },
        { "opening hang", QV_EFORMAT, 0, "no sign of life" },
        { "end 4242", QV_EFORMAT, 2, "an impossible reply" },
        { "decoded below", QV_EFORMAT, 2, "an impossible reply" },
        { "needed below", QV_EFORMAT, 2, "an impossible reply" },
        { "decoded by", QV_EFORMAT, 2, "an impossible reply" },
        { "gpu", QV_EFORMAT, 2, "an impossible reply" },
        { "index", QV_EFORMAT, 2, "an impossible reply" },
        { "escape codes", QV_EFORMAT, 2, "????" },
        { "escape", QV_OK, N_FRAMES, "" },
        { "strict", QV_OK, N_FRAMES, "" },
    /* The strict filter does end a process. */
#ifdef __x86_64__
        { "x32", QV_EFORMAT, 2,
          "was killed by signal 31" }, /* calls of another ABI, by other numbers */
#endif
        { "strict escape", QV_EFORMAT, 2, "was killed by signal 31" },
    };
    EACH (c, cases) {
        const qv_clip_options options = { .decoder = start(c->fault), .decode_seconds = 2 };
        const double began_s = qv_seconds();
        const struct clip_read r = read_clip(CLIP, &options);
        if (r.status != c->status || r.n != c->frames || !strstr(r.error.text, c->text) ||
            (r.status && !strstr(r.error.text, CLIP)))
            fail_msg("%s: %s, %d frames, '%s'", c->fault, qv_status_name(r.status), (int)r.n,
                     r.error.text);
        if (qv_seconds() - began_s > 30)
            fail_msg("%s: took %g s", c->fault, qv_seconds() - began_s);
        assert_null(strchr(r.error.text, '\033'));
        test_end(options.decoder);
        assert_int_equal(no_child(), 0);
    }
}

TEST(test_memory)
{
    qv_clip_options options = { .decoder = start("none"), .decode_memory = 1 << 28 };
    assert_int_equal(read_clip(CLIP, &options).status, QV_OK);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    print_message("no limit of memory under the sanitizers, which reserve terabytes\n");
#else
    options.decode_memory = 1 << 20; /* Less than the process itself needs. */
    struct clip_read r = read_clip(CLIP, &options);
    assert_int_not_equal(r.status, QV_OK);
    assert_non_null(strstr(r.error.text, CLIP));
    options = (qv_clip_options){ .decoder = start("leak"), .decode_memory = 1 << 28 };
    r = read_clip(CLIP, &options);
    expect_failure("leak", QV_EFORMAT, "256 MiB", r.status, &r.error);
    assert_int_equal(r.n, 2);
#endif
}

TEST(test_programs)
{
    qv_decoder *decoder = NULL;
    expect_error(QV_EBACKEND, "no/such/program|cannot be started",
                 qv_decoder_start("no/such/program", &decoder, ERR));
    expect_error(QV_EBACKEND, "/|cannot be started", qv_decoder_start("/", &decoder, ERR));
    assert_null(decoder);
    struct clip_read r = read_with(start_with("/bin/true", "QV_FAULT", ""));
    expect_failure("/bin/true", QV_EBACKEND, CLIP, r.status, &r.error);
    /* The program is not next to this test. If it is not installed either, the error says so. */
    r = read_clip(CLIP, NULL);
    if (r.status)
        assert_non_null(strstr(r.error.text, "qwenvit-decoder"));
}

/* Reads many clips at once from several threads through one program. */
static void *
read_some(void *decoder)
{
    for (int i = 0; i < 5; i++)
        expect_all(decoder);
    return NULL;
}

static void
read_in_threads(qv_decoder *decoder)
{
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, read_some, decoder), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
}

TEST(test_threads)
{
    read_in_threads(start("none"));
}

/* Stops the program, as a debugger or an overloaded machine would. */
static void
stop_running(const qv_decoder *decoder)
{
    int how;
    assert_int_equal(kill(decoder->child.pid, SIGSTOP), 0);
    assert_int_equal(waitpid(decoder->child.pid, &how, WUNTRACED), decoder->child.pid);
    assert_true(WIFSTOPPED(how));
}

/* A program that does not answer is waited for once, then killed and restarted. A clip that its
 * process was decoding continues. */
TEST(test_stopped)
{
    const double bound_s = 1, slack_s = 4; /* Other tests keep the machine busy too. */
    qv_decoder *decoder = start("none");
    decoder->patience_s = bound_s;
    qv_clip *clip = open_clip(CLIP, &(qv_clip_options){ .decoder = decoder });
    stop_running(decoder);
    double began_s = qv_seconds();
    read_in_threads(decoder);
    assert_int_equal(decoder->starts, 2);
    expect_frames(clip, frames[0][0], N_FRAMES);
    test_end(clip);
    test_end(decoder);
    assert_true(qv_seconds() - began_s < bound_s + slack_s);

    decoder = start("none"); /* This time nothing noticed it before. */
    decoder->patience_s = bound_s;
    expect_all(decoder);
    stop_running(decoder);
    began_s = qv_seconds();
    test_end(decoder);
    assert_true(qv_seconds() - began_s < bound_s + slack_s);
}

/* Kills the program, as a system without memory would. The process that it made for a clip ends
 * with it. */
static void
kill_program(qv_decoder *decoder)
{
    pthread_mutex_lock(&decoder->lock);
    assert_true(decoder->child.pid > 0);
    qvm_child_signal(&decoder->child, SIGKILL);
    pthread_mutex_unlock(&decoder->lock);
}

/* A program that was killed is started again in the environment that it had: between clips, before
 * the first one, and in the middle of a clip, which then has the frames that it has alone. */
TEST(test_killed)
{
    const qv_clip_options options = { .decoder = start("none") };
    setenv("QV_FAULT", "segv", 1); /* must not reach the program that is started again */
    for (int round = 0; round < 2; round++) {
        kill_program(options.decoder);
        expect_all(options.decoder);
        qv_clip *clip = open_clip(CLIP, &options);
        for (int i = 0; i < N_FRAMES; i++) {
            if (round && i == 2)
                kill_program(options.decoder);
            expect_frames(clip, frames[round][i], 1);
        }
    }
    assert_memory_equal(frames[0], frames[1], sizeof frames[0]);
}

/* Returns how many processes a process has started that still run. */
static int
count_running(pid_t parent)
{
    int n = 0;
    for (struct child c = { 0 }; next_child(parent, &c);)
        n += c.state != 'Z';
    return n;
}

/* The process of a clip ends with the last frame. A clip that stays open holds no process. */
TEST(test_ends_with_its_last_frame)
{
    const qv_clip_options options = { .decoder = start("none") };
    expect_frames(open_clip(CLIP, &options), frames[0][0], N_FRAMES);
    int running = 2; /* one of them waits for the next clip */
    for (int i = 0; i < 1000 && running > 1; i++) {
        usleep(10000);
        running = count_running(options.decoder->child.pid);
    }
    assert_int_equal(running, 1);
}

static void *
kill_soon(void *decoder)
{
    usleep(500000);
    kill_program(decoder);
    return NULL;
}

/* A clip in progress when the program is killed is decoded from its beginning again, once: the
 * second time it fails, and the program is not started for it without end. The next clip has it
 * started again. */
TEST(test_killed_in_a_clip)
{
    const qv_clip_options hang = { .decoder = start("hang") };
    qv_clip *clip = open_clip(CLIP, &hang);
    pthread_t killer;
    int64_t got;
    expect_frames(clip, frames[0][0], 2);
    kill_program(hang.decoder); /* the clip has had 2 frames and hangs; so will the next process */
    assert_int_equal(pthread_create(&killer, NULL, kill_soon, hang.decoder), 0);
    expect_error(QV_EBACKEND, CLIP ": qwenvit-decoder has ended",
                 qv_clip_read(clip, frames[0][0], 1, &got, NULL, ERR));
    pthread_join(killer, NULL);
    assert_int_equal(hang.decoder->starts, 2);
    assert_int_equal(qv_clip_read(clip, frames[0][0], 1, &got, NULL, NULL), QV_EBACKEND);
    open_clip(CLIP, &hang);
    assert_int_equal(hang.decoder->starts, 3);
}

/* ---- the program by itself ------------------------------------------------------------------- */

/* Starts the program in a separate process group, so that a signal that it sends to its group does
 * not reach the tests. */
static pid_t
start_program(int *socket)
{
    int there;
    assert_true(qvm_stream(socket, &there));
    const pid_t pid = fork();
    if (!pid) {
        setpgid(0, 0);
        dup2(there, STDIN_FILENO);
        execl(QV_DECODER, QV_DECODER, (char *)NULL);
        _exit(127);
    }
    close(there);
    return pid;
}

/* Sends an order with n descriptors, each a copy of our standard input, and does not wait for an
 * answer. */
static void
give(int socket, int32_t kind, pid_t pid, int n)
{
    enum { MOST = 16 };
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(MOST * sizeof(int))];
    } control = { .bytes = { 0 } };
    const int fds[MOST] = { 0 };
    const size_t bytes = (size_t)n * sizeof *fds;
    qvm_order order = { .kind = kind, .pid = pid, .memory = 1 << 28 };
    struct iovec data = { &order, sizeof order };
    struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1 };
    if (n) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(bytes);
        control.align = (struct cmsghdr){ .cmsg_len = CMSG_LEN(bytes),
                                          .cmsg_level = SOL_SOCKET,
                                          .cmsg_type = SCM_RIGHTS };
        memcpy(CMSG_DATA(&control.align), fds, bytes);
    }
    assert_int_equal(sendmsg(socket, &message, MSG_NOSIGNAL), sizeof order);
}

static int32_t
ask(int socket, int32_t kind, pid_t pid, int n)
{
    int32_t answer;
    give(socket, kind, pid, n);
    if (!qvm_receive(socket, &answer, sizeof answer))
        fail_msg("no answer to order %d with process %d and %d descriptors", kind, pid, n);
    return answer;
}

/* Invalid orders are refused. The program kills no process that it did not make for a clip, and the
 * descriptors that came with the order do not stay open. (If this went wrong, -1 would mean every
 * process; a negative number stands for a group.) */
TEST(test_orders)
{
    static const int too_few_or_many[] = { 0, 1, QVM_SESSION_FDS - 2, QVM_SESSION_FDS + 1, 16 };
    int socket;
    const pid_t program = start_program(&socket);
    const pid_t none_of_its[] = { 0, -program, program, getpid() };
    assert_int_equal(ask(socket, QVM_KILL, 0, 0), -1);
    const int n_before = count_descriptors(program);
    EACH (c, too_few_or_many)
        assert_int_equal(ask(socket, QVM_SERVE, 0, *c), -1);
    EACH (c, none_of_its)
        for (int n = 0; n <= QVM_SESSION_FDS; n += QVM_SESSION_FDS) {
            give(socket, QVM_DROP, *c, n);
            assert_int_equal(ask(socket, QVM_KILL, *c, n), -1);
        }
    assert_int_equal(count_descriptors(program), n_before);

    const pid_t served = ask(socket, QVM_SERVE, 0, QVM_SESSION_FDS);
    assert_true(served > 0);
    assert_true(ask(socket, QVM_KILL, served, 0) >= 0);
    assert_int_equal(ask(socket, QVM_KILL, served, 0), -1); /* It is not one of its processes any
                                                             * more. */
    assert_int_equal(count_descriptors(program), n_before);

    assert_int_equal(ask(socket, 77, 0, QVM_SESSION_FDS), -1);
    assert_int_equal(count_descriptors(program), n_before);
    close(socket);
    int how;
    assert_int_equal(waitpid(program, &how, 0), program);
    assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
}

/* A decoder belongs to the process that started it. */
TEST(test_fork)
{
    qv_decoder *decoder = start("none");
    const pid_t child = fork();
    if (!child) {
        const bool refused = read_with(decoder).status == QV_EBACKEND;
        qv_decoder_stop(&decoder); /* This stops only its own copy; the program belongs to its
                                    * parent. */
        _exit(refused && !decoder ? 0 : 1);
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
    expect_all(decoder);
}

/* ---- an environment that changes ------------------------------------------------------------- */

enum { LONGER = 4096 };

static bool makes_longer; /* a value of the environment becomes longer at the next malloc() */
static uint8_t *made;     /* its result, with LONGER bytes after the requested `made_bytes` */
static size_t made_bytes;
static bool is_intact; /* nothing was written to them until it was freed */

WRAPPED(void *, malloc, (size_t n))
{
    static char value[LONGER];
    if (!makes_longer)
        return __real_malloc(n);
    makes_longer = false;
    memset(value, 'v', sizeof value - 1);
    setenv("QV_CHANGES", value, 1);
    made_bytes = n;
    made = __real_malloc(n + LONGER);
    memset(made + n, 0xa5, LONGER);
    return made;
}

WRAPPED(void, free, (void *p))
{
    if (p && p == made) {
        is_intact = true;
        for (size_t i = 0; i < LONGER; i++)
            is_intact = is_intact && made[made_bytes + i] == 0xa5;
        made = NULL;
    }
    __real_free(p);
}

/* The environment is copied whole, and into its room, where another thread makes a value longer
 * meanwhile. */
TEST(test_environment)
{
    qv_decoder *decoder = NULL;
    setenv("QV_CHANGES", "", 1);
    makes_longer = true;
    assert_int_equal(qv_decoder_start("/bin/true", &decoder, NULL), QV_OK);
    assert_false(makes_longer);
    size_t longest = 0;
    for (char **at = decoder->environment; *at; at++)
        longest = strncmp(*at, "QV_CHANGES=", 11) != 0 ? longest : strlen(*at + 11);
    qv_decoder_stop(&decoder);
    unsetenv("QV_CHANGES");
    assert_true(is_intact);
    assert_int_equal(longest, LONGER - 1);
}

/* ---- several cuts of one file ---------------------------------------------------------------- */

/* Returns how many frames the whole file has, as a cut from there on says. */
static int64_t
count_frames(const char *path, double start_s, qv_decoder *decoder)
{
    const qv_clip_options o = { .decoder = decoder, .start_s = start_s };
    qv_clip *clip = open_clip(path, &o);
    const int64_t n = clip_info(clip).source_frames;
    test_end(clip);
    return n;
}

/* The index that the first cut made serves other cuts, as a number changed in it in between shows.
 * It serves no other file, not the same file after it was written to, and no uncut clip. */
TEST(test_cuts_share)
{
    qv_decoder *decoder = start("none");
    struct qvm_kept *kept = &decoder->kept;
    const int64_t all = count_frames(CLIP, 0.5, decoder);
    assert_int_equal(kept->n, 1);
    qvm_index *index = kept->at[0].data;
    assert_true(qvm_index_is_whole(index, kept->at[0].bytes));
    assert_int_equal(index->n_frames, all);
    index->n_frames = all - 7;
    assert_int_equal(count_frames(CLIP, 1, decoder), all - 7);
    assert_int_equal(count_frames(CLIP, 0, decoder), all);
    assert_int_equal(kept->n, 1);
    index->n_entries++; /* not an index */
    assert_int_equal(count_frames(CLIP, 1, decoder), all);
    index->n_entries--;
    assert_int_equal(link(CLIP, "same.mp4"), 0); /* another name of it */
    assert_int_equal(count_frames("same.mp4", 1, decoder), all - 7);
    unlink("same.mp4");
    FILE *file = fopen(CLIP, "ab");
    assert_non_null(file);
    assert_int_equal(fwrite("\0\0\0\x8"
                            "free",
                            8, 1, file),
                     1);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(count_frames(CLIP, 1, decoder), all);
    assert_int_equal(kept->n, 2);
    /* Overwritten bytes change only the time. */
    index = kept->at[0].data;
    index->n_frames = all - 7;
    assert_int_equal(count_frames(CLIP, 1, decoder), all - 7);
    const struct timespec times[2] = { { .tv_sec = 1 }, { .tv_sec = 1 } };
    assert_int_equal(utimensat(AT_FDCWD, CLIP, times, 0), 0);
    assert_int_equal(count_frames(CLIP, 1, decoder), all);
    assert_int_equal(kept->n, 3);
}

/* An index belongs to one file, one version and one piece of it, and one package's rules. */
TEST(test_kept_is_of_one_file)
{
    const qvm_identity file = { 1, 2, 3, 4, 5, 6, QV_LIKE_TRANSFORMERS };
    qvm_identity other[7];
    struct qvm_kept kept = { .n = 0 };
    int64_t bytes;
    for (int i = 0; i < 7; i++)
        other[i] = file;
    other[0].device++;
    other[1].inode++;
    other[2].bytes++;
    other[3].mtime_ns++;
    other[4].offset++;
    other[5].length++;
    other[6].like = QV_LIKE_QWEN_VL_UTILS;
    qvm_kept_put(&kept, &file, calloc(1, 100), 100);
    for (int i = 0; i < 7; i++)
        if (qvm_kept_copy(&kept, &other[i], &bytes))
            fail_msg("field %d is not compared", i);
    void *copy = qvm_kept_copy(&kept, &file, &bytes);
    assert_non_null(copy);
    free(copy);
    qvm_kept_free(&kept);
}

/* Nothing in a received index is trusted: neither its length, nor its number of frames, nor the end
 * of its text. */
TEST(test_index_is_checked)
{
    const int64_t bytes = (int64_t)qvm_index_bytes(2);
    qvm_index *index = calloc(1, (size_t)bytes);
    assert_non_null(index);
    index->n_entries = 2;
    snprintf(index->unsure, sizeof index->unsure, "a packet has no time");
    assert_true(qvm_index_is_whole(index, bytes));
    const qvm_index good = *index;
    for (int i = 0; i < 9; i++) {
        *index = good;
        switch (i) {
        case 0: index->n_entries = 1; break;
        case 1: index->n_entries = 3; break;
        case 2: index->n_entries = -1; break;
        case 3: index->n_entries = INT64_MAX / (int64_t)sizeof *index->at; break;
        case 4: index->span.n = -1; break;
        case 5: index->span.n = QVM_MAX_FRAMES + 1; break;
        case 6: index->n_frames = -1; break;
        case 7: index->n_frames = QVM_MAX_FRAMES + 1; break;
        case 8: memset(index->unsure, 'x', sizeof index->unsure); break;
        }
        if (qvm_index_is_whole(index, bytes))
            fail_msg("case %d is taken for an index", i);
    }
    *index = good;
    assert_false(qvm_index_is_whole(index, bytes - 1));
    assert_false(qvm_index_is_whole(index, (int64_t)sizeof *index - 1));
    assert_false(qvm_index_is_whole(index, 0));
    free(index);
}

TEST(test_kept_is_bounded)
{
    struct qvm_kept kept = { .n = 0 };
    int64_t bytes;
    for (int i = 0; i < QVM_MOST_KEPT + 4; i++) {
        const qvm_identity file = { .inode = (uint64_t)i }, first = { .inode = 0 };
        qvm_kept_put(&kept, &file, calloc(1, 100), 100);
        free(qvm_kept_copy(&kept, &first, &bytes)); /* it is used again and again */
        assert_int_equal(bytes, 100);
    }
    assert_true(kept.n == QVM_MOST_KEPT && kept.bytes == 100 * QVM_MOST_KEPT);
    const qvm_identity second = { .inode = 1 }, last = { .inode = QVM_MOST_KEPT + 3 };
    assert_null(qvm_kept_copy(&kept, &second, &bytes));
    free(qvm_kept_copy(&kept, &last, &bytes));
    assert_int_equal(bytes, 100);
    const qvm_identity large = { .bytes = 1 };
    qvm_kept_put(&kept, &large, malloc(1), QVM_MOST_INDEX); /* by its stated size */
    assert_true(kept.n == 1 && kept.bytes == QVM_MOST_INDEX);
    qvm_kept_free(&kept);
    assert_true(kept.n == 0 && kept.bytes == 0);
}

static int
make_files(void)
{
    qv_error err;
    FILE *victim = fopen("victim", "w");
    if (!victim || fclose(victim) || setenv("QWENVIT_DECODER", QV_DECODER, 1) ||
        tool_make_clip(CLIP, &tool_clip_shape, &err))
        return -1;
    return dup2(0, QV_LEAKED_FD) < 0; /* Without FD_CLOEXEC. */
}

static int
check_files(void)
{
    const bool there = !access("victim", R_OK), escaped = !access("escaped", F_OK);
    unlink("victim");
    unlink(CLIP);
    return there && !escaped ? 0 : -1;
}

TEST_EACH(NULL, no_child);
TEST_GROUP(make_files, check_files);
