/* SPDX-License-Identifier: MIT */
/*
 * Makes every call that can fail do so once. `test_faults CLASS BACKEND` runs small jobs (a Conv3d,
 * frames of a photo and of clips, `qwenvit encode` of a short clip), each again and again, and in
 * the nth run the nth call of the class fails. The job must then end with the right status and an
 * error message, and must not leak memory or descriptors or leave a half-written file; or, where
 * the table gives a reason, it must end as if nothing had failed. The next job must not be
 * affected. With JOB N only that call fails, and the program prints where it was made. The linker
 * (--wrap) inserts the wrappers, so only our own code's calls count.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libswscale/swscale.h>
#include <poll.h>
#include <pthread.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef QV_WITH_CPU
#include <oneapi/dnnl/dnnl.h>
#endif

#include "command/tool.h"
#include "decoder_thread.h"
#include "make_clips.h"
#include "qwenvit_conv3d.h"

/* ---- calls that are made to fail ------------------------------------------------------------- */

enum class { ALLOC, IO, INTERRUPTED, PARTIAL, FFMPEG, PROCESS, ONEDNN, N_CLASSES };

/* `least` is a lower bound for the number of calls of a class. */
static const struct {
    const char *name;
    long least;
} classes[N_CLASSES] = {
    [ALLOC] = { "alloc", 500 },
    [IO] = { "io", 50 },
    [INTERRUPTED] = { "interrupted", 20 },
    [PARTIAL] = { "partial", 20 },
    [FFMPEG] = { "ffmpeg", 50 },
    [PROCESS] = { "process", 15 },
    [ONEDNN] = { "onednn", 100 },
};

struct call {
    const char *name;
    qv_status status, also; /* The status of a job in which this call fails; `also` is a second one
                             * that is allowed. */
    const char *absorbed;   /* Why the job may succeed all the same; NULL if it must fail. */
};

static enum class armed = N_CLASSES;
static void complain(long n, const char *what, const char *more);
static atomic_long calls_left, alive;
static _Atomic(const struct call *) fired;
static bool fired_there; /* in the thread that decodes */
static bool show_where;

#if defined(__SANITIZE_ADDRESS__)
void __sanitizer_print_stack_trace(void);
#endif

static bool
fails(enum class class, const struct call *call)
{
    if (class != armed || atomic_fetch_sub(&calls_left, 1) != 1)
        return false;
    fired_there = decoder_thread_is_here();
    atomic_store(&fired, call);
#if defined(__SANITIZE_ADDRESS__)
    if (show_where)
        __sanitizer_print_stack_trace();
#endif
    return true;
}

static void *
counted(void *p)
{
    atomic_fetch_add(&alive, p != NULL);
    return p;
}

/* The parameters are the name, type, parameters and arguments as in faults.inc. */
#define WRAPPER(name, type, parameters)                                                            \
    type __real_##name parameters;                                                                 \
    type __wrap_##name parameters;                                                                 \
    type __wrap_##name parameters
#define MEMORY(name, type, parameters, arguments, absorbed)                                        \
    WRAPPER(name, type, parameters)                                                                \
    {                                                                                              \
        static const struct call self = { #name, QV_ENOMEM, 0, absorbed };                         \
        errno = ENOMEM;                                                                            \
        return fails(ALLOC, &self) ? NULL : counted(__real_##name arguments);                      \
    }
#define CALL(name, class, type, parameters, arguments, answer, error, status, absorbed)            \
    WRAPPER(name, type, parameters)                                                                \
    {                                                                                              \
        static const struct call self = { #name, status, 0, absorbed };                            \
        if (!fails(class, &self))                                                                  \
            return __real_##name arguments;                                                        \
        errno = error;                                                                             \
        return answer;                                                                             \
    }
#define MOVE(name, class, parameters, arguments, half, error, status, absorbed)                    \
    WRAPPER(name, ssize_t, parameters)                                                             \
    {                                                                                              \
        static const struct call self = { #name, status, 0, absorbed };                            \
        static const struct call again = { #name, QV_OK, 0, "the call is repeated" };              \
        bool lost = fails(class, &self);                                                           \
        errno = lost ? error : EINTR;                                                              \
        if (lost || fails(INTERRUPTED, &again))                                                    \
            return -1;                                                                             \
        return n > 1 && fails(PARTIAL, &again) ? __real_##name half : __real_##name arguments;     \
    }
#define OWN(name)
#include "faults.inc"
#include "wrap.h"

WRAPPER(realloc, void *, (void *p, size_t n))
{
    static const struct call self = { "realloc", QV_ENOMEM, 0,
                                      "a name that an error could tell is left out" };
    if (fails(ALLOC, &self))
        return NULL;
    return p ? __real_realloc(p, n) : counted(__real_realloc(p, n));
}

WRAPPER(free, void, (void *p))
{
    atomic_fetch_sub(&alive, p != NULL);
    __real_free(p);
}

/* The allocator of jansson itself. When its parser finds no memory for a string, it reports bad
 * syntax. */
static void *
malloc_json(size_t n)
{
    static const struct call self = { "jansson's malloc", QV_ENOMEM, QV_EFORMAT,
                                      "values quoted in error texts" };
    return fails(ALLOC, &self) ? NULL : counted(__real_malloc(n));
}

WRAPPED(int, open, (const char *path, int flags, ...))
{
    static const struct call self = { "open", QV_ENOMEM, QV_EIO, NULL };
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    errno = EMFILE;
    return fails(IO, &self) ? -1 : __real_open(path, flags, mode);
}

/* The files of the jobs. */
static const char clip_file[] = "clip.y4m", jpeg_file[] = "photo.jpg", cut_file[] = "jpegs.mov",
                  avc_file[] = "x264-sets.ts", tokens_file[] = "tokens.safetensors",
                  image_file[] = "image.png", log_file[] = "log.json";

int __real_fstat(int fd, struct stat *out);

/* Closes the file even when it reports a failure. The system does the same, and may report only
 * then that written data is lost. */
WRAPPER(close, int, (int fd))
{
    static const struct call calls[] = { { "close", QV_EIO, 0, "nothing was written through it" },
                                         { "close", QV_EIO, 0, NULL } };
    struct stat st;
    const bool written = armed == IO && !__real_fstat(fd, &st) && S_ISREG(st.st_mode) &&
                         (fcntl(fd, F_GETFL) & O_ACCMODE) == O_WRONLY;
    int result = __real_close(fd);
    if (!fails(IO, &calls[written]))
        return result;
    errno = EIO;
    return -1;
}

/* Used for files, and for the memory that is shared with a decoder. */
WRAPPER(ftruncate, int, (int fd, off_t n))
{
    static const struct call self = { "ftruncate", QV_EIO, QV_ENOMEM, NULL };
    errno = EFBIG;
    return fails(IO, &self) ? -1 : __real_ftruncate(fd, n);
}

WRAPPER(mmap, void *, (void *at, size_t n, int protection, int flags, int fd, off_t from))
{
    static const struct call self = { "mmap", QV_ENOMEM, 0, NULL };
    errno = ENOMEM;
    return fails(PROCESS, &self) ? MAP_FAILED : __real_mmap(at, n, protection, flags, fd, from);
}

/* These find what a power loss would destroy: a name given to an unsynced file, and a name whose
 * folder was not synced afterwards. */
static atomic_ullong synced; /* The file that was synced last. */
static atomic_bool name_is_lost, order_is_wrong;

/* Does not sync, so that thousands of jobs need not wait for the disk. */
WRAPPER(fsync, int, (int fd))
{
    static const struct call self = { "fsync", QV_EIO, 0, NULL };
    struct stat st;
    if (!__real_fstat(fd, &st) && S_ISDIR(st.st_mode))
        atomic_store(&name_is_lost, false);
    else
        atomic_store(&synced, (unsigned long long)st.st_ino);
    errno = EIO;
    return fails(IO, &self) ? -1 : 0;
}

WRAPPER(rename, int, (const char *from, const char *to))
{
    static const struct call self = { "rename", QV_EIO, 0, NULL };
    struct stat st;
    errno = EIO;
    if (fails(IO, &self))
        return -1;
    if (fstatat(AT_FDCWD, from, &st, 0) || st.st_ino != atomic_load(&synced))
        atomic_store(&order_is_wrong, true);
    atomic_store(&name_is_lost, true);
    return __real_rename(from, to);
}

/* Frees the context when it fails, as FFmpeg does. */
WRAPPER(avformat_open_input, int,
        (AVFormatContext * *format, const char *url, const AVInputFormat *which,
         AVDictionary **options))
{
    static const struct call self = { "avformat_open_input", QV_EFORMAT, 0, NULL };
    if (!fails(FFMPEG, &self))
        return __real_avformat_open_input(format, url, which, options);
    avformat_free_context(*format);
    *format = NULL;
    return AVERROR(ENOMEM);
}

/* ---- the jobs -------------------------------------------------------------------------------- */

enum { FRAMES = 6, WIDTH = 72, HEIGHT = 64, SAMPLED = 4 };
enum { DEPTH = 4, SIDE = 5, IN = 2, OUT = 3, KERNEL = 2, N_Y = DEPTH * SIDE * SIDE * OUT };

enum { MOST_RGB = 64 * 64 * 3 };

/* A job's results other than files. */
struct made {
    float y[N_Y];
    uint8_t rgb[MOST_RGB];
};

static qv_error complaint; /* The error that the command reported. */

WRAPPER(tool_fail, int, (qv_status status, const qv_error *err))
{
    complaint = *err;
    return complaint.status == status ? tool_exit_code(status) : -1;
}

/* A clip's error; status and text are the job's. */
WRAPPER(tool_reasons_lose, void,
        (struct tool_reasons * r, const struct tool_results *to, const char *clip, const char *key,
         qv_status status, const char *words))
{
    complaint.status = status;
    snprintf(complaint.text, sizeof complaint.text, "%s", words);
}

/* The values are whole numbers, so that every lowering gives the same bits. */
static qv_status
convolve(const char *backend, qv_decoder *decoder, struct made *made, qv_error *err)
{
    static float x[DEPTH * SIDE * SIDE * IN], weight[OUT * IN * KERNEL * 3 * 3];
    const qv_context_options o = { .backend = backend, .threads = 2 };
    const qv_conv3d_desc d = { .d = DEPTH,
                               .h = SIDE,
                               .w = SIDE,
                               .c = IN,
                               .o = OUT,
                               .kernel = { KERNEL, 3, 3 },
                               .pad_front = { KERNEL - 1, 1, 1 },
                               .pad_back = { 0, 1, 1 },
                               .layout = QV_LAYOUT_CHANNELS_FIRST,
                               .causal = QV_CAUSAL_FIRST,
                               .dtype = QV_F32 };
    qv_context *ctx = NULL;
    qv_conv3d *conv = NULL;
    qv_conv3d_way ways[QV_LOWERING_COUNT];
    for (size_t i = 0; i < sizeof x / sizeof *x; i++)
        x[i] = (float)(i % 7) - 3;
    for (size_t i = 0; i < sizeof weight / sizeof *weight; i++)
        weight[i] = (float)(i % 5) - 2;
    qv_status status = qv_context_open(&o, &ctx, err);
    if (!status)
        status = qv_conv3d_create(ctx, &d, &(qv_conv3d_weights){ .weight = weight },
                                  &(qv_conv3d_options){ .chunk = 2, .stream = true }, &conv, err);
    if (!status)
        status = qv_conv3d_get_ways(conv, ways, err);
    if (!status)
        status = qv_conv3d_run(conv, x, made->y, err);
    qv_conv3d_free(&conv);
    qv_context_close(&ctx);
    return status;
}

/* Encodes with a checkpoint of two shards and writes tokens in bf16, an image of them and a line of
 * JSON. With decoder NULL, the clip is decoded in this process. */
static qv_status
encode(const char *backend, qv_decoder *decoder, struct made *made, qv_error *err)
{
    const char *clips[] = { clip_file };
    const struct tool_options o = { .backend = backend,
                                    .dtype = QV_F32,
                                    .threads = 2,
                                    .n_devices = 1,
                                    .to = { .json = true, .json_file = log_file, .quiet = true },
                                    .model = QV_GOLDEN "/qwen3_vl_moe",
                                    .output = tokens_file,
                                    .drawing = image_file,
                                    .output_dtype = QV_BF16,
                                    .chunk_rows = 16,
                                    .clip = { .num_frames = SAMPLED,
                                              .min_pixels = 1,
                                              .max_pixels = SAMPLED * 16 * 16,
                                              .threads = 2,
                                              .decoder = decoder,
                                              .decode_seconds = 10 },
                                    .arguments = clips,
                                    .n_arguments = 1 };
    complaint = (qv_error){ 0 };
    if (tool_encode(&o) == TOOL_DONE)
        return QV_OK;
    *err = complaint;
    return complaint.status ? complaint.status : QV_STATUS_MAX;
}

/* Reads the one frame of a photo that lies on its side, or of a cut. */
static qv_status
look_at(const char *file, double start_s, qv_decoder *decoder, uint8_t *rgb, qv_error *err)
{
    const qv_clip_options o = {
        .min_pixels = 1, .max_pixels = MOST_RGB / 3, .start_s = start_s, .decoder = decoder
    };
    qv_clip *clip = NULL;
    int64_t n;
    qv_status status = qv_clip_open(file, NULL, NULL, &o, &clip, err);
    if (!status)
        status = qv_clip_read(clip, rgb, 1, &n, NULL, err);
    qv_clip_close(&clip);
    return status;
}

static qv_status
photo(const char *backend, qv_decoder *decoder, struct made *made, qv_error *err)
{
    return look_at(jpeg_file, 0, decoder, made->rgb, err);
}

static qv_status
cut(const char *backend, qv_decoder *decoder, struct made *made, qv_error *err)
{
    return look_at(cut_file, 0.25, decoder, made->rgb, err); /* its last frame */
}

static qv_status
avc(const char *backend, qv_decoder *decoder, struct made *made, qv_error *err)
{
    return access(avc_file, F_OK) ? QV_OK : look_at(avc_file, 0.65, decoder, made->rgb, err);
}

/* The sink of a lasting job notes its results here. */
struct told {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int n, n_failed;
    qv_status status; /* the last failure */
    qv_error error;
};

static void
note_failure(struct told *told, qv_status status, const char *text)
{
    told->n_failed++;
    told->status = qv_fail(&told->error, status, "%s", text);
}

static qv_status
tell(void *user, void *entry, const qv_job_result *r, qv_error *err)
{
    struct told *told = user;
    pthread_mutex_lock(&told->lock);
    if (r->status)
        note_failure(told, r->status, r->error);
    told->n++;
    pthread_cond_signal(&told->changed);
    pthread_mutex_unlock(&told->lock);
    return QV_OK;
}

/* Adds a clip, and waits for its end. */
static void
take_clip(qv_job *job, struct told *told)
{
    qv_error why;
    qv_job_progress p;
    struct timespec until;
    const int before = told->n;
    const qv_status status = qv_job_add(job, &(qv_job_source){ .path = clip_file }, &why);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 60;
    pthread_mutex_lock(&told->lock);
    if (status)
        note_failure(told, status, why.text);
    for (int late = 0; !status && told->n == before && !late;)
        if ((late = pthread_cond_timedwait(&told->changed, &told->lock, &until)) != 0) {
            complain(before, "a clip never ends", "");
            exit(1);
        }
    pthread_mutex_unlock(&told->lock);
    qv_job_get_progress(job, &p);
    if (p.frame_bytes)
        complain(before, "memory for frames is lost", "");
}

/* A job with memory for one frame pair at a time goes on after one of its calls has failed: all of
 * its counters stay right. */
static qv_status
last(const char *backend, qv_decoder *decoder, struct made *made, qv_error *err)
{
    enum { CLIPS = 3 };
    struct told told = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };
    const qv_job_options o = { .decoders = 1,
                               .chunk_rows = 16,
                               .memory = 1,
                               .clip = { .num_frames = SAMPLED,
                                         .min_pixels = 1,
                                         .max_pixels = SAMPLED * 16 * 16,
                                         .threads = 1,
                                         .decoder = decoder },
                               .sink = { .end = tell, .user = &told } };
    const enum class meant = armed;
    qv_context *ctx = NULL;
    qv_model *model = NULL;
    qv_job *job = NULL;
    armed = N_CLASSES; /* other jobs have the model's calls fail */
    qv_status status =
        qv_context_open(&(qv_context_options){ .backend = backend, .threads = 1 }, &ctx, err);
    if (!status)
        status = qv_model_load(ctx, QV_GOLDEN "/qwen3_vl_moe", NULL, &model, err);
    armed = meant;
    if (!status)
        status = qv_job_open(&model, 1, &o, &job, err);
    for (int i = 0; !status && i < CLIPS; i++)
        take_clip(job, &told);
    if (!status)
        status = qv_job_end(job, err);
    if (!status && told.n_failed > 1)
        complain(told.n_failed, "several clips failed:", told.error.text);
    if (!status && told.status)
        status = qv_fail(err, told.status, "%s", told.error.text);
    qv_job_close(&job);
    qv_model_free(&model);
    qv_context_close(&ctx);
    return status;
}

static const struct job {
    const char *name;
    qv_status (*run)(const char *backend, qv_decoder *decoder, struct made *made, qv_error *err);
    bool computes, writes; /* it uses the backend; it writes tokens */
} jobs[] = {
    { "convolve", convolve, true, false }, { "photo", photo, false, false },
    { "cut", cut, false, false },          { "avc", avc, false, false },
    { "last", last, false, false },        { "encode", encode, true, true },
};
enum { N_JOBS = sizeof jobs / sizeof *jobs };

static qv_status
run_job(const struct job *job, const char *backend, bool isolated, struct made *made, qv_error *err)
{
    static const char *const files[] = { tokens_file, image_file, log_file };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        remove(files[i]);
    *err = (qv_error){ 0 };
    qv_decoder *decoder = NULL;
    qv_status status = QV_OK;
    if (isolated && job->run != convolve)
        status = qv_decoder_start(QV_DECODER, &decoder, err);
    if (!status)
        status = job->run(backend, decoder, made, err);
    qv_decoder_stop(&decoder);
    return status;
}

/* ---- looking at what a job left -------------------------------------------------------------- */

struct bytes {
    size_t n;
    char at[1 << 16];
};

static struct bytes tokens, is_image; /* The files as they should be. */
static size_t log_size;               /* How many fields the result has. */
static struct made as_wanted;
static const struct job *job; /* the one that is run */
static int wrong, absorbed;

static void
complain(long n, const char *what, const char *more)
{
    const struct call *call = atomic_load(&fired);
    printf("%s %ld (%s): %s %s\n", job->name, n, call ? call->name : "none failed", what, more);
    wrong++;
}

/* `out->n` is 0 if the file does not exist. */
static void
load(const char *name, struct bytes *out)
{
    FILE *f = fopen(name, "rb");
    out->n = f ? fread(out->at, 1, sizeof out->at, f) : 0;
    if (f)
        fclose(f);
}

static void
check_file(long n, const char *name, const struct bytes *wanted, bool needed)
{
    static struct bytes found;
    load(name, &found);
    bool same = found.n == wanted->n && !memcmp(found.at, wanted->at, found.n);
    if (!same && (found.n || needed || !access(name, F_OK)))
        complain(n, "not what it should be:", name);
}

static void
check_folder(long n)
{
    static const char *const known[] = { clip_file,   jpeg_file,  cut_file, avc_file,
                                         tokens_file, image_file, log_file };
    DIR *dir = opendir(".");
    for (const struct dirent *e; dir && (e = readdir(dir)) != NULL;) {
        bool expected = e->d_name[0] == '.';
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            expected |= !strcmp(e->d_name, known[i]);
        if (!expected) {
            complain(n, "left behind:", e->d_name);
            remove(e->d_name);
        }
    }
    closedir(dir);
}

/* The number of fields in the file; 0 if it does not exist or is empty. A half-written file counts
 * as a fault. */
static size_t
fields(long n, const char *name)
{
    static struct bytes found;
    json_error_t why;
    load(name, &found);
    if (!found.n)
        return 0;
    json_t *json = json_load_file(name, 0, &why);
    size_t size = json_object_size(json);
    if (!json)
        complain(n, "not JSON:", name);
    json_decref(json);
    return size;
}

/* The next free descriptor. */
static int
next_fd(void)
{
    int fd = dup(0);
    close(fd);
    return fd;
}

/* Returns the job's status for a call's status. The decoding side may only fail its own clip. */
static qv_status
as_believed(qv_status status)
{
    return fired_there && status && status != QV_EIO && status != QV_EUNSUPPORTED ? QV_EFORMAT
                                                                                  : status;
}

/* Runs one job in which call n of a class fails; with N_CLASSES no call fails. Returns false if the
 * job has fewer calls than that. */
static bool
check_job(const char *backend, enum class class, bool isolated, long n)
{
    struct made made = { 0 };
    qv_error err;
    int fd = next_fd();
    long before = atomic_load(&alive);
    atomic_store(&fired, NULL);
    atomic_store(&calls_left, n);
    armed = class;
    qv_status status = run_job(job, backend, isolated, &made, &err);
    armed = N_CLASSES;
    const struct call *call = atomic_load(&fired);
    if (atomic_load(&alive) != before)
        complain(n, "memory is not freed", "");
    if (next_fd() != fd)
        complain(n, "a file is not closed", "");
    if (waitpid(-1, NULL, WNOHANG) >= 0)
        complain(n, "a process is not ended", "");
    if (atomic_load(&order_is_wrong) || (!call && atomic_load(&name_is_lost)))
        complain(n, "a power loss would leave an incomplete file, or none:",
                 atomic_load(&order_is_wrong) ? "not synced before it was named"
                                              : "its folder was not synced");
    check_folder(n);
    check_file(n, tokens_file, &tokens, !status && job->writes);
    check_file(n, image_file, &is_image, !status && job->writes);
    size_t logged = fields(n, log_file);
    if (logged != log_size && (logged || (!status && job->writes)))
        complain(n, "not the expected result:", log_file);
    if (!status && memcmp(&made, &as_wanted, sizeof made) != 0)
        complain(n, "a different result of the conv3d, or a different image", "");
    if (!status && call && !call->absorbed)
        complain(n, "the failure was not noticed", "");
    if (status &&
        (!call || (status != as_believed(call->status) && status != as_believed(call->also)) ||
         err.status != status || !*err.text))
        complain(n, qv_status_name(status), err.text);
    absorbed += call && !status;
    return call != NULL;
}

/* ---- the sweep ------------------------------------------------------------------------------- */

/* Frames of 4:2:0 in the plainest of containers. */
static void
make_clip(void)
{
    FILE *f = fopen(clip_file, "wb");
    fprintf(f, "YUV4MPEG2 W%d H%d F25:1 Ip A1:1 C420jpeg\n", WIDTH, HEIGHT);
    for (int i = 0; i < FRAMES; i++) {
        fprintf(f, "FRAME\n");
        for (int j = 0; j < WIDTH * HEIGHT * 3 / 2; j++)
            fputc((i * 31 + j * j % 251) & 0xff, f);
    }
    fclose(f);
}

/* Makes each call of a job fail in turn or, with `only` (a job's name and a number), that one call.
 * Returns how many calls failed. */
static long
sweep(const struct job *of, const char *backend, enum class class, char **only)
{
    const bool isolated = class == PROCESS;
    qv_error err;
    long n = 1;
    job = of;
    as_wanted = (struct made){ 0 };
    if (run_job(job, backend, isolated, &as_wanted, &err)) {
        complain(0, "without a fault:", err.text);
        return 0;
    }
    if (job->writes) {
        load(tokens_file, &tokens);
        load(image_file, &is_image);
        log_size = fields(0, log_file);
    }
    if (only) {
        show_where = true;
        if (!strcmp(only[0], job->name) && !check_job(backend, class, isolated, atol(only[1])))
            complain(atol(only[1]), "unknown call", "");
        return 0;
    }
    for (; check_job(backend, class, isolated, n); n++)
        if (n % 20 == 0)
            check_job(backend, N_CLASSES, isolated, n);
    return n - 1;
}

int
main(int argc, char **argv)
{
    enum class class = 0;
    while (argc > 2 && class < N_CLASSES && strcmp(argv[1], classes[class].name) != 0)
        class ++;
    if (argc < 3 || class == N_CLASSES)
        return 2;
    char folder[64];
    snprintf(folder, sizeof folder, "faults_%s_%s", argv[1], argv[2]);
    mkdir(folder, 0777);
    if (chdir(folder))
        return 2;
    setvbuf(stdout, NULL, _IOLBF, 0); /* Line buffering, so that everything that was printed is seen
                                       * before a crash. */
    json_set_alloc_funcs(malloc_json, free);
    make_clip();
    clip_write(jpeg_file);
    clip_write(cut_file);
    if (clip_is_possible(avc_file))
        clip_write(avc_file);
    const char *backend = argv[2];
    long n_calls = 0;
    for (size_t i = 0; i < N_JOBS; i++)
        if (jobs[i].computes || !strcmp(backend, "ref"))
            n_calls += sweep(&jobs[i], backend, class, argc == 5 ? argv + 3 : NULL);
    if (argc == 5)
        return wrong != 0;
    printf("%s on %s: %ld calls failed in turn, %d absorbed, %d wrong\n", argv[1], backend, n_calls,
           absorbed, wrong);
    return n_calls < classes[class].least || wrong;
}
