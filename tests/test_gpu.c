/* SPDX-License-Identifier: MIT */
/* Tests that clips decoded by a GPU equal the CPU's byte for byte, and that no fault there costs
 * more than decoding a clip again. software_nvdec.c stands in for the GPU; everything else is the
 * real code. */
#include "test.h"

#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../clips/gpu.h"
#include "../decoder/gpu_decoder.h"
#include "command/tool.h"
#include "decoder_thread.h"
#include "engine/context.h"
#include "make_clips.h"
#include "make_streams.h"
#include "processes.h"
#include "read_clip.h"
#include "start_decoder.h"
#include "tempdir.h"
#include "tiny.h"
#include "wrap.h"

static int
no_child(void)
{
    return waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD ? 0 : -1;
}

/* Reads a clip with the CPU and with the GPU, and compares. Returns the GPU's outcome. */
static qv_outcome
compare(const char *path, qv_clip_options options)
{
    qv_clip_options cpu = options;
    cpu.decode = QV_DECODE_CPU;
    options.decode = QV_DECODE_GPU;
    const struct clip_read a = read_clip(path, &cpu);
    const struct clip_read b = read_clip(path, &options);
    if (a.status != b.status || a.n != b.n || a.hash != b.hash || a.info.width != b.info.width ||
        a.info.damaged_frames != b.info.damaged_frames ||
        strcmp(a.info.decodes_all, b.info.decodes_all) != 0)
        fail_msg("%s: %d '%s', %lld frames, %lld damaged; by the GPU %d '%s', %lld, %lld", path,
                 a.status, a.error.text, (long long)a.n, (long long)a.info.damaged_frames, b.status,
                 b.error.text, (long long)b.n, (long long)b.info.damaged_frames);
    return b.info;
}

static void
expect(const char *path, const qv_clip_options *options, bool there, const char *why)
{
    const qv_outcome info = compare(path, *options);
    const qv_decode by = there ? QV_DECODE_GPU : QV_DECODE_CPU;
    if (info.decoded_by != by || strcmp(info.not_gpu, why) != 0)
        fail_msg("%s: by the %s, since '%s'; expected '%s'", path, qv_decode_name(info.decoded_by),
                 info.not_gpu, why);
}

/* A device's frames equal the CPU's, and streams that the device does not support are decoded by
 * the CPU. */
TEST(test_bytes)
{
    static const struct {
        const char *clip, *why;
        bool there; /* whether the GPU decodes it */
    } cases[] = {
        { "x264.mp4", "", true },
        { "x264-open.mkv", "", true },
        { "x264-pyramid.mkv", "", true },
        { "x264-pyramid.ts", "", true },
        { "x264-refresh.mkv", "", true },
        { "x264-cropped.mp4", "", true },
        { "x264-full.mp4", "", true },
        { "x265.mp4", "", true },
        { "x265-layers.mkv", "", true },
        { "x265-deep.mp4", "its samples have 10 bits", true },
        { "x264-fields.mkv", "it is interlaced", false },
        { "vp9.webm", "its codec is neither H.264 nor HEVC", false },
    };
    qv_clip_options options = { .decoder = start_gpu("") };
    EACH (c, cases) {
        if (!clip_is_possible(c->clip))
            continue;
        clip_write(c->clip);
        for (int fps = 1; fps <= 10; fps += 9) { /* few frames, and all of them */
            options.fps = fps;
            expect(c->clip, &options, c->there, c->why);
        }
        options.start_s = 1.5; /* skips the frames before, if the clip allows it */
        expect(c->clip, &options, c->there, c->why);
        options.start_s = 0;
    }
}

/* A frame whose time contradicts its place in the pictures' headers is never returned. Packets
 * without times are left to the CPU. */
TEST(test_times)
{
    static const stream_recipe recipe = { .encoder = "libx264",
                                          .frames = 20,
                                          .group = 10,
                                          .headers_in_packets = true,
                                          .options = "threads=1:bf=2:x264-params=b-adapt=0" };
    const qv_clip_options options = { .decoder = start_gpu(""), .fps = 25 };
    stream *s = stream_encode(&recipe);
    assert_non_null(s);
    assert_true(stream_write(s, "h264", NULL, "times.h264"));
    expect("times.h264", &options, false, "a packet has no time");
    const int64_t pts = s->packets[1]->pts; /* of a P shown after the B that follows */
    s->packets[1]->pts = s->packets[2]->pts;
    s->packets[2]->pts = pts;
    assert_true(stream_write(s, "mpegts", NULL, "times.ts"));
    expect("times.ts", &options, false, "its frames' times are different");
}

/* A damaged clip that no GPU would have taken keeps that as the reason. */
TEST(test_damaged_fields)
{
    qv_clip_options options = { .decoder = start_gpu(""), .threads = 1 };
    stream *s = stream_encode(&(stream_recipe){
        .encoder = "libx264", .frames = 20, .options = "threads=1:x264-params=tff=1" });
    assert_non_null(s);
    memset(s->packets[0]->data + s->packets[0]->size - 64, 0xff, 64);
    assert_true(stream_write(s, NULL, NULL, "fields.mkv"));
    expect("fields.mkv", &options, false, "it is interlaced");
}

/* Formats that the GPU does not convert are converted by the clip's process, which reports why. */
TEST(test_converted_here)
{
    static const struct {
        qv_like like;
        int64_t min_pixels;
        const char *why;
    } cases[] = {
        { QV_LIKE_QWEN_VL_UTILS, 0, "qwen-vl-utils resizes in floats" },
        { QV_LIKE_TRANSFORMERS, 1 << 20, "it is enlarged" },
    };
    qv_clip_options options = { .decoder = start_gpu(""), .fps = 1 };
    clip_write("x264.mp4");
    EACH (c, cases) {
        options.like = c->like;
        options.min_pixels = c->min_pixels;
        expect("x264.mp4", &options, true, c->why);
    }
}

/* All odd clips of H.264 and HEVC end as with the CPU, whatever a GPU makes of them, and no process
 * is left. */
TEST(test_odd)
{
    qv_clip_options options = { .decoder = start_gpu("") };
    int n = 0;
    for (size_t i = 0; clip_name(i); i++) {
        const char *name = clip_name(i);
        const bool taken = !strncmp(name, "x26", 3) || !strncmp(name, "paff", 4);
        if (!taken || !clip_is_possible(name))
            continue;
        clip_write(name);
        n += compare(name, options).decoded_by == QV_DECODE_GPU;
    }
    assert_in_range(n, 10, 1000);
}

/* Makes the allocation fail that a thread's decoder needs for a GPU's frames. */
static bool no_gpu_decoder;
WRAPPED(void *, calloc, (size_t n, size_t size))
{
    return no_gpu_decoder && size == sizeof(struct qvm_gpu_decoder) ? NULL : __real_calloc(n, size);
}

TEST(test_no_memory)
{
    const qv_clip_options options = { .decode = QV_DECODE_GPU, .decoder = start_gpu("") };
    clip_write("x264.mp4");
    no_gpu_decoder = decoder_thread_always = true;
    const struct clip_read r = read_clip("x264.mp4", &options);
    no_gpu_decoder = decoder_thread_always = false;
    expect_failure("no memory", QV_EFORMAT, "no memory for the frames of a GPU", r.status,
                   &r.error);
    assert_int_equal(count_maps("memfd:"), 0);
}

/* Whatever goes wrong, the frames equal the CPU's. */
TEST(test_faults)
{
    static const struct {
        const char *fault, *why;
        bool there; /* whether the GPU decodes it */
    } cases[] = {
        { "crash 3", "the GPU process exited", false },
        { "exit 20", "the GPU process exited", false },
        { "silent 5", "the GPU process timed out", false },
        { "damage 9", "it is damaged", false },
        { "late 9", "it is damaged", false }, /* frames with damage come before it is told */
        { "time 4", "its frames' times are different", false },
        { "lost 4", "its frames' times are different", false },
        { "slot 4", "the GPU process sent an impossible reply", false },
        { "slot again 12", "the GPU process sent an impossible reply", false },
        { "size 4", "the size of its frames changes", false },
        { "crop 4", "the GPU process sent an impossible reply", false },
        { "group 4", "the GPU process sent an impossible reply", false },
        { "kind 4", "the GPU process sent an impossible reply", false },
        { "pixel", "the GPU's first frame is not the CPU's", false },
        { "rgb", "the GPU's first frame is not the CPU's", false },
        { "copied", "", true },
        { "planes", "the GPU cannot convert as this CPU does", true },
        { "full", "the GPU cannot open more streams", false },
        { "long", "its groups of pictures are too long", false },
    };
    clip_write("x264-pyramid.mkv");
    EACH (c, cases) {
        qv_clip_options options = { .decoder = start_gpu(c->fault),
                                    .decode_seconds = !strncmp(c->fault, "silent", 6) ? 1.5 : 0,
                                    .fps = 3 };
        if (!strcmp(c->fault, "long")) /* so that planes are held, and not slots */
            options.like = QV_LIKE_QWEN_VL_UTILS;
        expect("x264-pyramid.mkv", &options, c->there, c->why);
        test_end(options.decoder);
        assert_int_equal(no_child(), 0);
    }
}

/* A process that has ended or lies is replaced, until that happens too often; so is a process after
 * a number of clips. */
TEST(test_replaced)
{
    static const struct {
        const char *fault, *why;
    } cases[] = {
        { "crash 30", "the GPU process exited" },
        { "slot 4", "the GPU process sent an impossible reply" },
    };
    qv_clip_options options = { .fps = 5 };
    clip_write("x264.mp4");
    EACH (c, cases) {
        options.decoder = start_gpu(c->fault);
        for (int k = 0; k <= QVM_MOST_DOUBTS / QVM_GPU_DOUBT; k++)
            expect("x264.mp4", &options, false, c->why);
        expect("x264.mp4", &options, false, "the GPU's processes failed repeatedly");
        expect_error(QV_EBACKEND, "fail repeatedly", qv_decoder_gpu(options.decoder, 0, true, ERR));
    }

    options.decoder = start_gpu("");
    expect("x264.mp4", &options, true, "");
    struct qvm_gpu_process *now = &options.decoder->gpus->at[0].now;
    const pid_t first = now->child.pid;
    expect("x264.mp4", &options, true, "");
    assert_int_equal(now->child.pid, first);
    assert_int_equal(now->given, 2);
    now->given = QVM_GPU_CLIPS;
    expect("x264.mp4", &options, true, "");
    assert_true(now->child.pid != first);
    test_end(options.decoder);
    assert_int_equal(kill(first, 0), -1);
}

/* Lets no further descriptor be opened, or any number again. */
static void
set_descriptors(bool none)
{
    struct rlimit limit;
    const int lowest = dup(0);
    close(lowest);
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = none ? (rlim_t)lowest : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

/* A process that cannot be started for lack of descriptors is tried again, but not for each clip;
 * if it is only to follow the present one, no clip hears of it. */
TEST(test_momentary)
{
    qv_error err;
    qv_decoder *decoder = start_gpu("");
    struct qvm_gpu *gpu = &decoder->gpus->at[0];
    set_descriptors(true);
    qv_status status = qv_decoder_gpu(decoder, 0, true, &err);
    set_descriptors(false);
    assert_int_equal(status, QV_ESTATE);
    assert_non_null(strstr(err.text, "cannot be started: Too many open files"));
    assert_int_equal(qv_decoder_gpu(decoder, 0, true, &err), QV_ESTATE); /* too early */
    sleep(1);
    assert_ok(qv_decoder_gpu(decoder, 0, true, ERR));

    gpu->now.given = QVM_GPU_CLIPS - 1;
    set_descriptors(true);
    status = qv_decoder_gpu(decoder, 0, true, &err);
    set_descriptors(false);
    assert_int_equal(status, QV_OK);
    assert_int_equal(gpu->next.child.pid, 0);
    sleep(1);
    assert_ok(qv_decoder_gpu(decoder, 0, true, ERR));
    const pid_t next = gpu->next.child.pid;
    assert_true(next > 0);
    gpu->now.given = QVM_GPU_CLIPS;
    assert_ok(qv_decoder_gpu(decoder, 0, true, ERR));
    assert_int_equal(gpu->now.child.pid, next);
}

/* A forked process closes its copies of a decoder's descriptors: of the program, and of a GPU's
 * past, present and next processes. The decoder is not affected. */
TEST(test_forked)
{
    int how = -1;
    const int n = count_descriptors(getpid());
    qv_decoder *decoder = start_gpu("");
    struct qvm_gpu *gpu = &decoder->gpus->at[0];
    for (int i = 0; i < 3; i++) {
        assert_int_equal(qv_decoder_gpu(decoder, 0, true, NULL), QV_OK);
        gpu->now.given = i ? QVM_GPU_CLIPS - 1 : QVM_GPU_CLIPS;
    }
    const pid_t child = fork();
    if (!child) {
        qv_decoder_stop(&decoder);
        _exit(count_descriptors(getpid()) != n);
    }
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_int_equal(how, 0);
    assert_true(gpu->next.child.pid > 0);
    assert_int_equal(qv_decoder_gpu(decoder, 0, true, NULL), QV_OK);
    test_end(decoder);
    assert_int_equal(count_descriptors(getpid()), n);
}

/* A missing GPU is also retried, after a delay that doubles each time. */
TEST(test_missing)
{
    qv_error err;
    qv_decoder *decoder = start_gpu("no driver");
    for (int starts = 1; starts <= 2; starts++) {
        for (int i = 0; i < 10; i++)
            assert_int_equal(qv_decoder_gpu(decoder, 0, true, &err), QV_EBACKEND);
        assert_int_equal(decoder->gpus->next_retired, starts);
        sleep(1);
    }
    assert_int_equal(qv_decoder_gpu(decoder, 0, true, &err), QV_EBACKEND);
    assert_int_equal(decoder->gpus->next_retired, 2); /* the third comes a second later */
}

/* Without a GPU, the error names what is missing. */
TEST(test_none)
{
    static const struct {
        const char *fault;
        int gpu;
        const char *text;
    } cases[] = {
        { "no driver", 0, "GPU 0 cannot decode: NVIDIA's driver (libcuda.so.1) was not found" },
        { "dies at its start", 0, "GPU 0 cannot decode: its process exited during start-up" },
        { "", 7, "GPU 7 cannot decode: invalid device ordinal" },
        { "no decoder", 0,
          "cannot lock down the GPU process (its driver then fails to make a decoder" },
        { "no lock", 0, "cannot lock down the GPU process (Landlock: Operation not supported)" },
    };
    clip_write("x264.mp4");
    EACH (c, cases) {
        qv_clip_options options = { .decoder = start_gpu(c->fault),
                                    .decode = QV_DECODE_GPU,
                                    .gpu = c->gpu };
        struct clip_read r = read_clip("x264.mp4", &options);
        expect_failure(c->fault, QV_EBACKEND, c->text, r.status, &r.error);
        assert_int_equal(qv_decoder_gpu(options.decoder, c->gpu, false, NULL), QV_EBACKEND);
        options.decode = QV_DECODE_AUTO; /* of a clip by itself the CPU's */
        r = read_clip("x264.mp4", &options);
        assert_int_equal(r.status, QV_OK);
        assert_int_equal(r.info.decoded_by, QV_DECODE_CPU);
    }
}

/* ---- jobs ------------------------------------------------------------------------------------ */

enum { CLIPS = 16, GPUS = 2 };

static int cores;           /* as reported to this process; 0: the real number */
static bool on_cuda;        /* models say that they are on a GPU */
static bool is_open = true; /* a GPU is open before a job begins */
static int64_t memory;      /* qv_job_options.memory */
static int n_clips = CLIPS;
static size_t n_models = 1;

WRAPPED(int, sched_getaffinity, (pid_t pid, size_t bytes, cpu_set_t *set))
{
    if (!cores)
        return __real_sched_getaffinity(pid, bytes, set);
    CPU_ZERO_S(bytes, set);
    for (int i = 0; i < cores; i++)
        CPU_SET_S((size_t)i, bytes, set);
    return 0;
}

WRAPPED(void, qv_context_get_info, (const qv_context *context, qv_context_info *info))
{
    __real_qv_context_get_info(context, info);
    if (on_cuda)
        info->backend = "cuda";
}

struct results {
    size_t row;             /* bytes */
    uint64_t tokens[CLIPS]; /* Their hashes, in the order of the sources' keys, "0" and so on. */
    int by[3];              /* Clips, by qv_decode. */
    int given[GPUS];        /* Clips, by the GPU whose process was given them. */
    char why[sizeof((qv_outcome *)0)->not_gpu];
    bool knows_gpu;     /* the job knew before its first clip that a GPU decodes */
    bool opened, loses; /* a process has the GPU open; the GPU is lost once it has decoded a clip */
    qv_decoder *decoder;
};

static const struct results *of_job; /* the job that runs; NULL: none does */

/* Once a job's clip was decoded, waits for a process that is being started, so that it has a share
 * in the job. */
WRAPPED(void, qv_clip_close, (qv_clip * *clip))
{
    __real_qv_clip_close(clip);
    if (!of_job)
        return;
    struct qvm_gpus *gpus = of_job->decoder->gpus;
    pthread_mutex_lock(&gpus->lock);
    const bool is_starting = gpus->at[0].now.child.pid && !gpus->at[0].now.ready;
    if (of_job->loses && gpus->at[0].now.given) {
        snprintf(gpus->at[0].why, sizeof gpus->at[0].why, "the device is lost");
        gpus->at[0].retry_s = INFINITY;
    }
    pthread_mutex_unlock(&gpus->lock);
    if (is_starting)
        qv_decoder_gpu(of_job->decoder, 0, true, NULL);
}

static qv_status
take(void *user, void *entry, const qv_job_result *r, const qv_job_rows *rows, qv_error *err)
{
    struct results *results = user;
    uint64_t *sum = &results->tokens[atoi(r->key)];
    (void)entry;
    (void)err;
    *sum = test_hash(*sum, rows->tokens.tokens, (size_t)rows->tokens.n * results->row);
    return QV_OK;
}

static qv_status
look(void *user, void *entry, const qv_job_result *r, qv_error *err)
{
    struct results *results = user;
    (void)entry;
    if (!r->status)
        results->by[r->outcome.decoded_by]++;
    if (*r->outcome.not_gpu)
        snprintf(results->why, sizeof results->why, "%s", r->outcome.not_gpu);
    return r->status ? qv_fail(err, r->status, "%s", r->error) : QV_OK; /* ends the job */
}

/* `t` has n_models of them. */
static qv_status
run_job(const struct tiny *t, const char *fault, qv_decode decode, struct results *results)
{
    char key[16];
    const qv_job_options o = { .sink = { NULL, take, look, results },
                               .decoders = cores ? 0 : 3,
                               .memory = memory,
                               .clip = { .decoder = start_gpu(fault),
                                         .decode = decode,
                                         .fps = 5,
                                         .max_pixels = 12 * 32 * 32 } };
    qv_job *job = NULL;
    qv_decoder *decoder = o.clip.decoder;
    if (is_open)
        qv_decoder_gpu(decoder, 0, true, NULL);
    qv_model_info model;
    qv_model_get_info(t->model, &model);
    *results = (struct results){ .row = (size_t)model.out_hidden * sizeof(float),
                                 .loses = !strcmp(fault, "gone"),
                                 .decoder = decoder };
    qv_model *models[GPUS];
    for (size_t i = 0; i < n_models; i++)
        models[i] = t[i].model;
    of_job = results;
    assert_int_equal(qv_job_open(models, n_models, &o, &job, NULL), QV_OK);
    qv_job_progress progress;
    qv_job_get_progress(job, &progress);
    results->knows_gpu = progress.gpu_decoders > 0;
    qv_status status = QV_OK;
    for (int i = 0; !status && i < n_clips; i++) {
        snprintf(key, sizeof key, "%d", i);
        status = qv_job_add(job, &(qv_job_source){ .key = key, .path = "x264-pyramid.mkv" }, NULL);
    }
    status = qv_job_end(job, NULL);
    qv_job_close(&job);
    of_job = NULL;
    results->opened = decoder->gpus->at[0].now.child.pid != 0;
    for (int i = 0; i < GPUS; i++)
        results->given[i] = decoder->gpus->at[i].now.given;
    test_end(decoder);
    return status;
}

/* If a process crashes in the middle, the clips in progress are decoded again; without a GPU the
 * job ends. */
TEST(test_job)
{
    struct tiny t = tiny_open("ref", QV_F32, 1);
    struct results cpu, gpu;
    clip_write("x264-pyramid.mkv");
    assert_int_equal(run_job(&t, "", QV_DECODE_AUTO, &cpu), QV_OK);
    assert_int_equal(cpu.by[QV_DECODE_CPU], CLIPS);
    assert_int_equal(run_job(&t, "", QV_DECODE_GPU, &gpu), QV_OK);
    assert_int_equal(gpu.by[QV_DECODE_GPU], CLIPS);
    assert_memory_equal(gpu.tokens, cpu.tokens, sizeof cpu.tokens);
    assert_int_equal(run_job(&t, "crash 200", QV_DECODE_GPU, &gpu), QV_OK);
    assert_memory_equal(gpu.tokens, cpu.tokens, sizeof cpu.tokens);
    assert_int_equal(gpu.by[QV_DECODE_CPU] + gpu.by[QV_DECODE_GPU], CLIPS);
    assert_in_range(gpu.by[QV_DECODE_CPU], 1, CLIPS - 3);
    assert_string_equal(gpu.why, "the GPU process exited");
    assert_int_equal(run_job(&t, "no driver", QV_DECODE_GPU, &gpu), QV_EBACKEND);
}

/* By default, the model's GPU also decodes for a job of many clips if it can be locked down.
 * Without such a GPU the clips are decoded all the same, and the reason is reported. */
TEST(test_auto)
{
    static const struct {
        const char *fault;
        bool open;
        int clips, cores, least, most; /* clips; those of the GPU */
        const char *why;
        int64_t memory;
    } cases[] = {
        { "", true, CLIPS, 2, CLIPS, CLIPS, "", 0 },
        { "", true, CLIPS, 26, 12, CLIPS - 1, "a core was free first", 0 },
        { "", false, CLIPS, 0, 1, CLIPS - 1, "no GPU was open yet", 0 },
        { "", false, 3, 0, 0, 0, "no GPU was open yet", 0 },
        { "", true, CLIPS, 2, CLIPS, CLIPS, "", 1 }, /* frames wait for the device */
        { "gone", true, CLIPS, 0, 1, CLIPS - 1, "the device is lost", 0 },
        { "crash 200", true, CLIPS, 0, 1, CLIPS - 1, "the GPU process exited", 0 },
        { "no driver", false, CLIPS, 0, 0, 0, "NVIDIA's driver (libcuda.so.1) was not found", 0 },
        { "no lock", false, CLIPS, 0, 0, 0,
          "cannot lock down the GPU process (Landlock: Operation not suppo", 0 },
    };
    struct tiny t = tiny_open("ref", QV_F32, 1);
    struct results cpu, both;
    clip_write("x264-pyramid.mkv");
    assert_int_equal(run_job(&t, "", QV_DECODE_CPU, &cpu), QV_OK);
    on_cuda = true;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        n_clips = cases[i].clips;
        is_open = cases[i].open;
        cores = cases[i].cores;
        memory = cases[i].memory;
        assert_int_equal(run_job(&t, cases[i].fault, QV_DECODE_AUTO, &both), QV_OK);
        assert_memory_equal(both.tokens, cpu.tokens, (size_t)n_clips * sizeof *cpu.tokens);
        assert_int_equal(both.by[QV_DECODE_CPU] + both.by[QV_DECODE_GPU], n_clips);
        const int by_gpu = both.by[QV_DECODE_GPU];
        if (by_gpu < cases[i].least || by_gpu > cases[i].most || strcmp(both.why, cases[i].why))
            fail_msg("case %zu, '%s': %d by the GPU, '%s'", i, cases[i].fault, by_gpu, both.why);
        assert_true(n_clips == CLIPS || !both.opened);
        assert_int_equal(both.knows_gpu, is_open);
    }
    cores = 0;
    n_clips = CLIPS;
    is_open = true;
    on_cuda = false;
}

/* A GPU that is open decodes for a cache, asked or not, unless the CPU is asked for. Each record
 * names what decoded it. */
TEST(test_cache)
{
    static const struct {
        qv_decode decode;
        const char *name;
        int64_t given;
    } cases[] = { { QV_DECODE_CPU, "cpu", 0 },
                  { QV_DECODE_AUTO, "auto", CLIPS },
                  { QV_DECODE_GPU, "gpu", CLIPS } };
    char keys[CLIPS][16];
    struct tiny t = tiny_open("ref", QV_F32, 1);
    clip_write("x264.mp4");
    on_cuda = true;
    cores = 2;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        char field[32], *record;
        qv_decoder *decoder = start_gpu("");
        const qv_cache_fill_options o = {
            .decoders = 2,
            .clip = { .decoder = decoder, .decode = cases[c].decode, .max_pixels = 12 * 32 * 32 }
        };
        qv_cache_fill *fill = NULL;
        qv_cache_fill_counts counts;
        qv_cache *cache = NULL;
        assert_int_equal(qv_decoder_gpu(decoder, 0, true, NULL), QV_OK);
        assert_int_equal(qv_cache_fill_open(temp_path(cases[c].name), &o, &fill, NULL), QV_OK);
        for (int i = 0; i < CLIPS; i++) {
            snprintf(keys[i], sizeof keys[i], "%d", i);
            assert_int_equal(qv_cache_fill_add(fill, keys[i], "x264.mp4", NULL, NULL, NULL), QV_OK);
        }
        assert_int_equal(qv_cache_fill_end(fill, &t.model, 1, NULL), QV_OK);
        qv_cache_fill_get_counts(fill, &counts);
        assert_int_equal(counts.done, CLIPS);
        assert_int_equal(decoder->gpus->at[0].now.given, cases[c].given);
        qv_cache_fill_close(&fill);
        assert_int_equal(qv_cache_open(temp_path(cases[c].name), &cache, NULL), QV_OK);
        snprintf(field, sizeof field, "\"decoded_by\":\"%s\"", cases[c].given ? "gpu" : "cpu");
        for (int64_t i = 0; i < CLIPS; i++) {
            assert_int_equal(qv_cache_record(cache, i, &record, NULL), QV_OK);
            assert_non_null(strstr(record, field));
            free(record);
        }
        qv_cache_close(&cache);
    }
    cores = 0;
    on_cuda = false;
}

/* For a long list the command opens a GPU's decoders before the job, and they decode all of it. */
TEST(test_long_list)
{
    enum { LONG = 48 };
    clip_write("x264.mp4");
    FILE *list = fopen(temp_path("list"), "w");
    assert_non_null(list);
    for (int i = 0; i < LONG; i++)
        fprintf(list, "{\"path\": \"x264.mp4\", \"key\": \"%d\"}\n", i);
    assert_int_equal(fclose(list), 0);
    on_cuda = true;
    cores = 2;
    qv_decoder *decoder = start_gpu("");
    const struct tool_options o = { .backend = "ref",
                                    .dtype = QV_F32,
                                    .model = QV_GOLDEN "/qwen3_vl",
                                    .out = temp_path("long"),
                                    .list = temp_path("list"),
                                    .n_devices = 1,
                                    .to.quiet = true,
                                    .clip = { .decoder = decoder, .max_pixels = 12 * 32 * 32 } };
    assert_int_equal(tool_cache_fill(&o), 0);
    assert_int_equal(decoder->gpus->at[0].now.given, LONG);
    cores = 0;
    on_cuda = false;
}

/* The same for files that the command writes. */
TEST(test_files)
{
    const char *clips[] = { "x264.mp4", "x264-pyramid.mkv" };
    for (int i = 0; i < 2; i++)
        clip_write(clips[i]);
    on_cuda = true;
    static const qv_decode decode[] = { QV_DECODE_CPU, QV_DECODE_AUTO, QV_DECODE_GPU };
    cores = 2;
    for (int i = 0; i < 3; i++) {
        qv_decoder *decoder = start_gpu("");
        const struct tool_options o = {
            .backend = "ref",
            .dtype = QV_F32,
            .model = QV_GOLDEN "/qwen3_vl",
            .output = temp_path(i ? i > 1 ? "g" : "a" : "c"),
            .output_dtype = QV_F32,
            .n_devices = 1,
            .to.quiet = true,
            .clip = { .decoder = decoder, .decode = decode[i], .max_pixels = 12 * 32 * 32 },
            .arguments = clips,
            .n_arguments = 2
        };
        assert_int_equal(qv_decoder_gpu(decoder, 0, true, NULL), QV_OK);
        assert_int_equal(tool_encode(&o), 0);
        assert_int_equal(decoder->gpus->at[0].now.given, i ? 2 : 0);
    }
    cores = 0;
    on_cuda = false;
}

/* In a job with several devices, each device's GPU decodes. */
TEST(test_several)
{
    struct tiny t[GPUS];
    struct results cpu, gpu;
    for (int i = 0; i < GPUS; i++) {
        t[i] = tiny_open("ref", QV_F32, 1);
        t[i].ctx->device = i; /* as a GPU's would be; ref has one device */
        qv_model_get_info(t[i].model, &t[i].info);
        assert_int_equal(t[i].info.device, i);
    }
    clip_write("x264-pyramid.mkv");
    assert_int_equal(run_job(t, "", QV_DECODE_CPU, &cpu), QV_OK);
    assert_int_equal(cpu.given[0] + cpu.given[1], 0);
    n_models = GPUS;
    assert_int_equal(run_job(t, "", QV_DECODE_GPU, &gpu), QV_OK);
    n_models = 1;
    assert_memory_equal(gpu.tokens, cpu.tokens, sizeof cpu.tokens);
    assert_int_equal(gpu.by[QV_DECODE_GPU], CLIPS);
    for (int i = 0; i < GPUS; i++)
        assert_in_range(gpu.given[i], 1, CLIPS - 1);
    assert_int_equal(gpu.given[0] + gpu.given[1], CLIPS);
}

/* Returns whether this system has Landlock, without which no process that has a GPU open can be
 * locked down. */
static bool
has_landlock(void)
{
    qv_error err = { QV_OK, "" };
    qv_decoder *decoder = start_gpu("");
    qv_decoder_gpu(decoder, 0, true, &err);
    test_end(decoder);
    return !strstr(err.text, "(Landlock");
}

static int
tear_down(void)
{
    return tempdir_remove() || no_child();
}

TEST_EACH(tempdir_make, tear_down);
TEST_GROUP(clips_enter_folder, clips_leave_folder);

TEST_MAIN(argc, argv)
{
    if (has_landlock())
        return TEST_GO_ON;
    puts("This system has no Landlock.");
    return 77;
}
