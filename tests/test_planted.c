/* SPDX-License-Identifier: MIT */
/*
 * Tests hostile decoders inside a job of many clips. A decoder that takes no messages, lies, dies,
 * is slow, or ends with any status costs its clip, in bounded time and with an error text. The
 * clips before and after it are done, with the same bits as alone. If the job's process is killed,
 * none of the decoders stays.
 */
#include "test.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "../clips/clips.h"
#include "../decoder/decoder.h"
#include "command/tool.h"
#include "collector.h"
#include "faulty_decoder.h"
#include "make_clips.h"
#include "processes.h"
#include "start_decoder.h"
#include "tempdir.h"
#include "tiny.h"

/* Enough frames for their requests to fill a socket many times. */
enum { FRAMES = 400, FEW = 16, ROWS = 64 };
enum { BOUND_S = 240 }; /* A bound for what takes seconds or never ends. */

/* ---- clips ----------------------------------------------------------------------------------- */

static char good_clip[512];

/* The good clip, with an instruction for its decoder after its end. */
static const char *
plant(const char *fault)
{
    static const char header[8] = { 0, 0, 0, sizeof header + QV_PLANTED_BYTES, 'f', 'r', 'e', 'e' };
    char name[64];
    const struct file good = read_file(good_clip);
    const size_t n = good.bytes + sizeof header;
    char *bytes = test_alloc(n + sizeof QV_PLANTED + QV_PLANTED_BYTES);
    memcpy(bytes, good.data, good.bytes);
    memcpy(bytes + good.bytes, header, sizeof header);
    sprintf(bytes + n, QV_PLANTED "%-*s", QV_PLANTED_BYTES, fault);
    snprintf(name, sizeof name, "%s.mp4", fault);
    return test_ends(strdup(temp_file(name, bytes, n + QV_PLANTED_BYTES)), free);
}

/* A silent decoder times out soon. Any other decoder gets more time than it can be silent on a busy
 * machine. */
static qv_clip_options
clip_options(int64_t frames, bool silent)
{
    return (qv_clip_options){ .num_frames = frames,
                              .min_pixels = 1,
                              .max_pixels = frames * 32 * 32,
                              .threads = 1,
                              .decode_seconds = silent ? 4 : BOUND_S };
}

/* ---- faults ---------------------------------------------------------------------------------- */

struct fault {
    const char *name;
    qv_status status;
    const char *words;
};

#define IMPOSSIBLE QV_EFORMAT, "an impossible reply"

static const struct fault faults[] = {
    { "deaf", QV_EFORMAT,
      "its decoder accepted no requests for 4 s (decode_seconds) and was killed" },
    { "deaf and dumb", QV_EFORMAT, "gave no sign of life" },
    { "half", QV_EFORMAT, "gave no sign of life" },
    { "hung up", QV_EFORMAT, "" },
    { "slow", QV_OK, "" },
    { "leaderless", QV_EFORMAT, "gave no sign of life" },
    { "exit 0", QV_EFORMAT, "exited with code 0" },
    { "exit 1", QV_EFORMAT, "exited with code 1" },
    { "exit 255", QV_EFORMAT, "exited with code 255" },
    { "opening exit 0", QV_EFORMAT, "exited with code 0" },
    { "signal 9", QV_EFORMAT, "was killed by signal 9 (Killed), perhaps because memory ran out" },
    { "signal 11", QV_EFORMAT, "signal 11" },
    { "signal 15", QV_EFORMAT, "was killed by signal 15 (Terminated)" },
    { "signal 19", QV_EFORMAT, "gave no sign of life" }, /* SIGSTOP. */
    { "opening signal 11", QV_EFORMAT, "signal 11" },
    { "end -1", IMPOSSIBLE },
    { "end 0", IMPOSSIBLE },
    { "end 1", QV_EFORMAT, "????" }, /* Every possible status. */
    { "end 2", QV_EFORMAT, "????" },
    { "end 3", QV_EIO, "????" },
    { "end 4", QV_EFORMAT, "????" },
    { "end 5", QV_EFORMAT, "????" },
    { "end 6", QV_EUNSUPPORTED, "????" },
    { "end 7", QV_EFORMAT, "????" },
    { "end 8", QV_EFORMAT, "????" },
    { "end 9", IMPOSSIBLE },
    { "opening end 5", QV_EFORMAT, "????" },
    { "opening end 6", QV_EUNSUPPORTED, "????" },
    { "kind", IMPOSSIBLE },
    { "ready again", IMPOSSIBLE },
    { "opening ready again", IMPOSSIBLE },
    { "facts again", IMPOSSIBLE },
    { "plan again", IMPOSSIBLE },
    { "decoded above", IMPOSSIBLE },
    { "opening too many frames", IMPOSSIBLE },
    { "too many frames", QV_OK, NULL }, /* Its pixels may be anything. */
    { "slot of no GPU", IMPOSSIBLE },
    { "garbage", IMPOSSIBLE },
    { "busy nan", IMPOSSIBLE },
    { "busy below", IMPOSSIBLE },
    { "busy above", IMPOSSIBLE },
    { "damage below", IMPOSSIBLE },
    { "damage above", IMPOSSIBLE },
    { "bool", IMPOSSIBLE },
    { "width", IMPOSSIBLE },
    { "height", IMPOSSIBLE },
    { "sides", IMPOSSIBLE },
    { "frames", IMPOSSIBLE },
    { "rotation", IMPOSSIBLE },
    { "rotation back", IMPOSSIBLE },
    { "remark", IMPOSSIBLE },
    { "remark back", IMPOSSIBLE },
    { "rate nan", IMPOSSIBLE },
    { "rate inf", IMPOSSIBLE },
    { "rate none", IMPOSSIBLE },
    { "rate below", IMPOSSIBLE },
    { "rate tiny", IMPOSSIBLE },
    { "rate huge", IMPOSSIBLE },
    { "header nan", IMPOSSIBLE },
    { "header below", IMPOSSIBLE },
    { "image header", IMPOSSIBLE },
    { "duration nan", IMPOSSIBLE },
    { "duration below", IMPOSSIBLE },
    { "duration huge", IMPOSSIBLE },
    { "image rate", IMPOSSIBLE },
    { "image time", IMPOSSIBLE },
    { "image frames", IMPOSSIBLE },
    { "names", QV_OK, "" },
    { "decisions", QV_OK, "" },
};
static const struct fault good = { "good", QV_OK, "" };
/* EVERY: a good clip follows after this many faults. */
enum { N_FAULTS = sizeof faults / sizeof *faults, EVERY = 4 };

static bool
has_bits_of(const struct got *g, const struct got *alone)
{
    return g->bytes == alone->bytes && !memcmp(g->tokens, alone->tokens, g->bytes);
}

/* A decoder that hangs up counts as silent too: if its other thread is reading from the socket at
 * that moment, the socket stays open. */
static bool
is_silent(const struct fault *f)
{
    return f->words && (strstr(f->words, "gave no sign of life") ||
                        strstr(f->words, "accepted no") || !strcmp(f->name, "hung up"));
}

static void
add(qv_job *job, const char *path, const char *key, int64_t frames, bool silent)
{
    const qv_clip_options o = clip_options(frames, silent);
    job_add(job, &(qv_job_source){ .key = key, .path = path, .clip = &o });
}

static qv_job *
job_open(const struct tiny *t, struct collector *c, qv_decoder *decoder)
{
    const qv_job_options o = { .decoders = 4, .chunk_rows = ROWS, .clip.decoder = decoder };
    return collector_job(t, 1, o, c);
}

static void
job_end(qv_job *job)
{
    assert_ok(qv_job_end(job, ERR));
    qv_job_close(&job);
}

/* The key of a good clip. */
static const char *
good_key(int i)
{
    static char key[32];
    snprintf(key, sizeof key, "good %d", i);
    return key;
}

/* No process is left behind: everything that the job made has ended. Its orphans would become our
 * children. */
static int
nobody_is_left(void)
{
    const double until_s = qv_seconds() + BOUND_S;
    while (waitpid(-1, NULL, WNOHANG) >= 0 && qv_seconds() < until_s)
        usleep(10000);
    return waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD ? 0 : -1;
}

static int
check_fault(const struct fault *f, const struct got *g, const struct got *alone)
{
    bool right = g->lasts == 1 && g->status == f->status && !g->cancelled && g->finite;
    if (g->status)
        right = right && strstr(g->error, f->words) && strstr(g->error, f->name);
    else if (f->words)
        right = right && g->n == alone->n && has_bits_of(g, alone);
    for (const char *p = g->error; *p; p++)
        right = right && (unsigned char)*p >= ' ';
    if (!right)
        print_error("%s: %d last calls, %s%s%s, '%s'\n", f->name, g->lasts,
                    qv_status_name(g->status), g->cancelled ? ", cancelled" : "",
                    g->finite ? "" : ", not finite", g->error);
    return !right;
}

/* All faults in one job, with good clips between them. */
TEST(each_costs_its_clip)
{
    enum { N_GOOD = N_FAULTS / EVERY + 1 };
    struct tiny t = tiny_open("ref", QV_F32, 1);
    struct collector *c = collector_make(&t), *alone = collector_make(&t);
    qv_decoder *decoder = start("");
    qv_job *job = job_open(&t, alone, decoder);
    add(job, good_clip, good_key(0), FRAMES, false);
    add(job, good_clip, good_key(1), FEW, false);
    job_end(job);
    const struct got *const expected[] = { find(alone, good_key(0)), find(alone, good_key(1)) };
    for (int i = 0; i < 2; i++)
        assert_true(expected[i]->n > 0 && expected[i]->n == expected[i]->n_tokens);

    job = job_open(&t, c, decoder);
    add(job, good_clip, good_key(0), FRAMES, false);
    for (int i = 0; i < N_FAULTS; i++) {
        add(job, plant(faults[i].name), faults[i].name, FRAMES, is_silent(&faults[i]));
        if (i % EVERY == EVERY - 1)
            add(job, good_clip, good_key(i / EVERY + 1), FEW, false);
    }
    job_end(job);
    int bad = 0;
    for (int i = 0; i < N_FAULTS; i++)
        bad += check_fault(&faults[i], find(c, faults[i].name), expected[0]);
    for (int i = 0; i < N_GOOD; i++)
        bad += check_fault(&good, find(c, good_key(i)), expected[i > 0]);
    assert_int_equal(bad, 0);
}

/* A failure that does not belong to a clip: a process that cannot lock itself in reports it before
 * it has seen a clip. */
TEST(no_clip_is_read_without_the_lock)
{
    struct tiny t = tiny_open("ref", QV_F32, 1);
    struct collector *c = collector_make(&t);
    qv_job *job = job_open(&t, c, start("unlocked"));
    add(job, good_clip, "alone", FEW, false);
    job_end(job);
    const struct got *g = find(c, "alone");
    assert_int_equal(g->status, QV_EBACKEND);
    assert_non_null(strstr(g->error, "its decoder cannot be locked down: no such filter"));
}

/* ---- clips that are given up ----------------------------------------------------------------- */

/* A step that takes SOON_S or longer has waited for a decoder. */
#define SOON_S 3.0

/* Clips whose decoders say nothing for a long time: one decodes the frames between two sampled
 * frames for minutes, the others do not react. */
static const char *const endless[] = { "slow", "hang", "opening hang",
                                       "half", "deaf", "deaf and dumb" };

static const char *
endless_path(const char *name)
{
    static char slow[512];
    if (strcmp(name, "slow") != 0)
        return plant(name);
    if (!*slow) {
        snprintf(slow, sizeof slow, "%s", temp_path("slow.mp4"));
        clip_write_slow(slow, 960, 544, 84000);
    }
    return slow;
}

/* The slow clip's second sampled frame is its last one; the others' third one never comes. */
static qv_clip_options
endless_options(const char *name)
{
    return clip_options(strcmp(name, "slow") ? FRAMES : 2, false);
}

enum leaving { IS_DROPPED, CLIENT_CANCELS, CLIENT_CLOSES, JOB_CANCELS, JOB_CLOSES, LEAVINGS };

static void
give_up(enum leaving how, qv_job **job, qv_job_client **client)
{
    switch (how) {
    case IS_DROPPED: qv_job_drop(*job, *client, 1); break;
    case CLIENT_CANCELS: qv_job_client_cancel(*client); break;
    case CLIENT_CLOSES: qv_job_client_close(client); break;
    case JOB_CANCELS: qv_job_cancel(*job); /* fall through */
    default: qv_job_client_close(client); qv_job_close(job);
    }
}

static int
count_decoding(const qv_decoder *decoder)
{
    int n = 0;
    for (struct child c = { 0 }; next_child(decoder->child.pid, &c);)
        n += c.state != 'Z';
    return n;
}

static bool
has_ended(struct collector *c, const char *key)
{
    pthread_mutex_lock(&c->lock);
    const bool has = find(c, key)->lasts > 0;
    pthread_mutex_unlock(&c->lock);
    return has;
}

/* Adds a clip whose end nothing waits for, and another one after it. */
static int
run_endless(const struct tiny *t, qv_decoder *decoder, const char *name, enum leaving how)
{
    struct collector *c = collector_make(t);
    const qv_job_options options = { .decoders = 1, .chunk_rows = ROWS, .clip.decoder = decoder };
    const qv_clip_options o = endless_options(name);
    qv_job *job = collector_job(t, 1, options, c);
    qv_job_client *client = NULL;
    assert_ok(qv_job_client_open(job, 0, false, 0, &client, ERR));
    job_add(job, &(qv_job_source){ .key = name,
                                   .path = endless_path(name),
                                   .clip = &o,
                                   .ticket = 1,
                                   .client = client });
    add(job, good_clip, "good", FEW, false);
    const bool is_read = strncmp(name, "opening", 7) != 0;
    qv_job_progress p = { 0 };
    for (; is_read ? !p.frame_bytes : count_decoding(decoder) < 2; usleep(1000))
        qv_job_get_progress(job, &p); /* one process is always ready for the next clip */
    usleep(200000);
    const bool was_decoding = !has_ended(c, name);
    const double began_s = qv_seconds();
    give_up(how, &job, &client);
    while (!has_ended(c, name) && qv_seconds() < began_s + BOUND_S)
        usleep(1000);
    const double ended_s = qv_seconds() - began_s;
    while (((job && !has_ended(c, "good")) || count_decoding(decoder) > 1) &&
           qv_seconds() < began_s + BOUND_S)
        usleep(1000);
    const double all_s = qv_seconds() - began_s;
    qv_job_client_close(&client);
    qv_job_close(&job);
    const bool right = was_decoding && ended_s < SOON_S && all_s < SOON_S &&
                       find(c, name)->cancelled && find(c, name)->status == QV_ESTATE &&
                       find(c, "good")->lasts == 1;
    if (!right)
        print_error("%s, given up in way %d: %s %s after %.1f s, all was over after %.1f s\n", name,
                    (int)how, was_decoding ? "it ended with" : "it had ended before, with",
                    qv_status_name(find(c, name)->status), ended_s, all_s);
    return !right;
}

/* A clip that is dropped, or whose client or job is given up, ends at once with its process,
 * whatever that does, and the next clip is decoded. */
TEST(nobody_decodes_what_was_given_up)
{
    struct tiny t = tiny_open("ref", QV_F32, 1);
    qv_decoder *decoder = start("");
    int bad = 0;
    EACH (name, endless)
        for (int how = 0; how < LEAVINGS; how++)
            bad += run_endless(&t, decoder, *name, (enum leaving)how);
    assert_int_equal(bad, 0);
}

/* Many drops and a close while clips are opened and read. */
TEST(drops_come_at_any_time)
{
    enum { N = 40 };
    struct tiny t = tiny_open("ref", QV_F32, 1);
    qv_decoder *decoder = start("");
    const qv_clip_options o = clip_options(FEW, false);
    for (int round = 0; round < 5; round++) {
        struct collector *c = collector_make(&t);
        qv_job *job = job_open(&t, c, decoder);
        for (int i = 0; i < N; i++)
            job_add(job, &(qv_job_source){ .key = good_key(i),
                                           .path = good_clip,
                                           .clip = &o,
                                           .ticket = 1 + (uint64_t)i });
        for (int i = 0; i < N; i += 2) {
            usleep((useconds_t)(i * 37 % 11) * 400);
            qv_job_drop(job, NULL, 1 + (uint64_t)i);
        }
        if (round % 2)
            job_end(job);
        else
            qv_job_close(&job);
        for (int i = 0; i < N; i++)
            assert_int_equal(find(c, good_key(i))->lasts, 1);
    }
}

/* Clips that wait for memory, which another one has, end at once too: the last one, and then the
 * one that would get it next. */
TEST(nobody_waits_for_memory_that_was_given_up)
{
    enum { N = 3 };
    struct tiny t = tiny_open("ref", QV_F32, 1);
    struct collector *c = collector_make(&t);
    const qv_job_options options = {
        .decoders = N, .chunk_rows = ROWS, .memory = 1, .clip.decoder = start("")
    };
    const qv_clip_options o = clip_options(2, false);
    qv_job_progress p = { 0 };
    qv_job *job = collector_job(&t, 1, options, c);
    for (int i = 0; i < N; i++) {
        job_add(job, &(qv_job_source){ .key = good_key(i),
                                       .path = i ? good_clip : endless_path("slow"),
                                       .clip = &o,
                                       .ticket = 1 + (uint64_t)i });
        for (; !p.frame_bytes; qv_job_get_progress(job, &p))
            usleep(1000);
        usleep(300000);
    }
    bool right = true;
    for (int i = N - 1; i >= 0; i--) {
        const double began_s = qv_seconds();
        right = right && !has_ended(c, good_key(i)) && qv_job_drop(job, NULL, 1 + (uint64_t)i) == 1;
        while (!has_ended(c, good_key(i)) && qv_seconds() < began_s + BOUND_S)
            usleep(1000);
        right = right && qv_seconds() - began_s < SOON_S;
    }
    qv_job_get_progress(job, &p);
    qv_job_close(&job);
    assert_true(right);
    assert_int_equal(p.frame_bytes, 0);
}

struct asked {
    int left; /* how often it goes on */
};

static bool
goes_on_for(void *user)
{
    struct asked *a = user;
    return a->left-- > 0;
}

/* A clip that is read without a job ends too when its caller does not go on. */
TEST(a_caller_need_not_go_on)
{
    static uint8_t frames[2 * 32 * 32 * 3]; /* of any of the clips */
    qv_decoder *decoder = start("");
    int bad = 0;
    EACH (name, endless)
        for (int left = 0; left < 30; left += 7) {
            struct asked asked = { left };
            qv_clip_options o = endless_options(*name);
            o.decoder = decoder;
            o.go_on = goes_on_for;
            o.user = &asked;
            qv_clip *clip = NULL;
            qv_error err;
            int64_t n = 1;
            const char *path = endless_path(*name);
            const double began_s = qv_seconds();
            qv_status status = qv_clip_open(path, NULL, NULL, &o, &clip, &err);
            while (!status && n)
                status = qv_clip_read(clip, frames, 1, &n, NULL, &err);
            const double took_s = qv_seconds() - began_s;
            qv_clip_close(&clip);
            const bool right = status == QV_ESTATE && strstr(err.text, "cancelled by its caller") &&
                               asked.left == -1 && took_s < SOON_S;
            if (!right)
                print_error("%s, asked %d times: %s after %.1f s, '%s'\n", *name, left,
                            qv_status_name(status), took_s, status ? err.text : "");
            bad += !right;
        }
    assert_int_equal(bad, 0);
}

/* ---- the job's process is killed ------------------------------------------------------------- */

/* Runs a job whose decoders neither read nor send anything, in a process that is killed. With an
 * heir, it forks a process that holds its sockets and stays. */
static int
be_caller(const char *path, bool heir)
{
    enum { CLIPS = 4 };
    struct tiny t = tiny_open("ref", QV_F32, 1);
    qv_job *job = job_open(&t, collector_make(&t), start(""));
    qv_job_progress p = { 0 };
    for (int i = 0; i < CLIPS; i++)
        add(job, path, NULL, FRAMES, false);
    for (; !p.frame_bytes; qv_job_get_progress(job, &p)) /* Waits until the job waits for frames. */
        usleep(10000);
    sleep(1);
    const pid_t pid = heir ? fork() : 0;
    if (pid || !heir) {
        printf("%d\n", (int)pid);
        fflush(stdout);
    }
    sleep(2 * BOUND_S);
    _exit(1);
}

/* Runs this program as be_caller until its job is in progress. Sets the heir's number, or 0. */
static pid_t
start_caller(const char *path, bool with_heir, pid_t *heir)
{
    int out[2], number = 0;
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    const pid_t pid = fork();
    if (!pid) {
        dup2(out[1], STDOUT_FILENO);
        execl("/proc/self/exe", "test_planted", path, with_heir ? "heir" : "", (char *)NULL);
        _exit(127);
    }
    close(out[1]);
    FILE *f = fdopen(out[0], "r");
    if (!f || fscanf(f, "%d", &number) != 1)
        fail_msg("the caller did not start");
    fclose(f);
    *heir = number;
    return pid;
}

/* Finds one of our processes, orphans included, that is not `but`; 0 if there is none. */
static pid_t
find_child(pid_t but)
{
    pid_t found = 0;
    for (struct child c = { 0 }; next_child(getpid(), &c);)
        found = c.pid != but ? c.pid : found;
    return found;
}

static bool
is_left(pid_t but, double seconds)
{
    const double until_s = qv_seconds() + seconds;
    while (find_child(but) && qv_seconds() < until_s) {
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
        usleep(10000);
    }
    return find_child(but) != 0;
}

TEST(nobody_outlives_the_caller)
{
    static const char *const kinds[] = { "hang", "deaf and dumb", "leaderless" };
    int bad = 0;
    /* Orphans become our children. */
    assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), 0);
    EACH (c, kinds)
        for (int with_heir = 0; with_heir < 2; with_heir++) {
            pid_t heir;
            const pid_t caller = start_caller(plant(*c), with_heir, &heir);
            kill(caller, SIGKILL);
            const bool left = is_left(heir, 30);
            if (left)
                print_error("%s%s: a process outlives the one that it decodes for\n", *c,
                            with_heir ? ", with an heir" : "");
            bad += left;
            for (pid_t pid; (pid = find_child(0)) != 0; waitpid(pid, NULL, 0))
                kill(pid, SIGKILL);
        }
    assert_int_equal(bad, 0);
}

/* ---------------------------------------------------------------------------------------------- */

static int
make_files(void)
{
    static const struct qvm_clip_shape shape = {
        .width = 32, .height = 32, .fps = 25, .frames = FRAMES
    };
    qv_error err;
    if (tempdir_make() || setenv("QWENVIT_DECODER", QV_DECODER, 1))
        return -1;
    snprintf(good_clip, sizeof good_clip, "%s", temp_path("good.mp4"));
    return tool_make_clip(good_clip, &shape, &err) ? -1 : 0;
}

TEST_EACH(NULL, nobody_is_left);
TEST_GROUP(make_files, tempdir_remove);

TEST_MAIN(argc, argv)
{
    return argc == 3 ? be_caller(argv[1], *argv[2]) : TEST_GO_ON;
}
