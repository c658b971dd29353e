/* SPDX-License-Identifier: MIT */
/* Runs each way of `qwenvit bench job` once: a stage alone, or a job. */
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "command/cache_command.h"
#include "files/token_file.h"
#include "cores.h"
#include "error.h"
#include "files/json.h"
#include "job_bench.h"

enum { SINKS = 4 };    /* as many as the command has */
enum { STREAMS = 14 }; /* clips that a GPU decodes at once: two for each decoder of an H200 */

/* ---- several threads ------------------------------------------------------------------------- */

typedef qv_status crew_work(struct job_bench *j, size_t i, qv_error *err);

struct crew {
    struct job_bench *j;
    crew_work *work;
    pthread_mutex_t lock;
    size_t next, n;
    qv_status status;
    qv_error error;
};

static void *
crew_run(void *user)
{
    struct crew *c = user;
    for (;;) {
        qv_error err = { 0 };
        pthread_mutex_lock(&c->lock);
        const size_t i = c->status ? c->n : c->next++;
        pthread_mutex_unlock(&c->lock);
        const qv_status s = i < c->n ? c->work(c->j, i, &err) : QV_OK;
        if (i >= c->n)
            return NULL;
        pthread_mutex_lock(&c->lock);
        if (s && !c->status) {
            c->status = s;
            c->error = err;
        }
        pthread_mutex_unlock(&c->lock);
    }
}

/* Works on each clip of the list, by so many threads; *ms: how long it took. */
static qv_status
by_crew(struct job_bench *j, crew_work *work, int n_threads, double *ms, qv_error *err)
{
    struct crew c = { .j = j, .work = work, .lock = PTHREAD_MUTEX_INITIALIZER, .n = j->list.n };
    pthread_t *threads = calloc((size_t)n_threads, sizeof *threads);
    int n = 0;
    if (!threads)
        return qv_fail(err, QV_ENOMEM, "no memory for threads");
    const double began_s = qv_seconds();
    while (n < n_threads && !pthread_create(&threads[n], NULL, crew_run, &c))
        n++;
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    *ms = 1e3 * (qv_seconds() - began_s);
    free(threads);
    if (n < n_threads)
        return qv_fail(err, QV_ENOMEM, "%d threads cannot be made", n_threads);
    if (c.status)
        *err = c.error;
    return c.status;
}

/* ---- stages alone ---------------------------------------------------------------------------- */

static qv_status
read_clip(qv_clip *clip, const qv_outcome *info, qv_error *err)
{
    const size_t frame = (size_t)info->width * (size_t)info->height * 3;
    uint8_t *frames = malloc((size_t)info->n_frames * frame);
    qv_status s =
        frames ? QV_OK
               : qv_fail(err, QV_ENOMEM, "no memory for %lld frames", (long long)info->n_frames);
    int64_t n = 1;
    for (int64_t done = 0; done < info->n_frames && n && !s; done += n)
        s = qv_clip_read(clip, frames + (size_t)done * frame, info->n_frames - done, &n, NULL, err);
    free(frames);
    return s;
}

/* Returns how many threads decode entry i, as a job decides: one, but every core where few clips
 * are left. */
static int
decoding_threads(const struct job_bench *j, size_t i)
{
    const size_t cores = (size_t)qv_usable_cores(), others = i < cores - 1 ? i : cores - 1;
    const size_t wanted = j->list.n - i + others;
    return wanted * 2 > cores && wanted > 1 ? 1 : 0;
}

static qv_status
decode(struct job_bench *j, size_t i, qv_decode by, qv_error *err)
{
    const struct tool_entry *entry = &j->list.at[i];
    qv_clip_options options = qvm_options_merge(entry->own, &j->o.clip);
    qv_clip *clip = NULL;
    qv_outcome info;
    options.threads = decoding_threads(j, i);
    options.decoder = j->decoder;
    options.decode = by;
    qv_status s = qv_clip_open(entry->path, &j->m.image, &j->m.video, &options, &clip, err);
    if (s)
        return s;
    qv_clip_get_info(clip, &info);
    s = read_clip(clip, &info, err);
    qv_clip_get_info(clip, &info);
    if (!s && by == QV_DECODE_GPU && info.decoded_by != by)
        s = qv_fail(err, QV_EFORMAT, "%s: no GPU decodes it, since %s", entry->path, info.not_gpu);
    qv_clip_close(&clip);
    j->items[i].is_image = info.is_image;
    memcpy(j->items[i].grid_thw, info.grid_thw, sizeof info.grid_thw);
    return s;
}

/* Counts a clip that a GPU decodes if fewer than the most are under way, and returns whether it
 * does. */
static bool
take_gpu(struct job_bench *j)
{
    pthread_mutex_lock(&j->lock);
    const bool free = j->on_gpu < j->gpu_decoders;
    j->on_gpu += free;
    pthread_mutex_unlock(&j->lock);
    return free;
}

/* Decodes a clip as a job does: by a GPU, if that is asked for and has room, or else by the CPU. */
static qv_status
decode_clip(struct job_bench *j, size_t i, qv_error *err)
{
    const bool on_gpu = take_gpu(j);
    const qv_status s = decode(j, i, on_gpu ? QV_DECODE_GPU : QV_DECODE_CPU, err);
    pthread_mutex_lock(&j->lock);
    j->on_gpu -= on_gpu;
    pthread_mutex_unlock(&j->lock);
    return s;
}

static qv_status
time_decoding(struct job_bench *j, double *ms, qv_error *err)
{
    return by_crew(j, decode_clip, j->decoders, ms, err);
}

static qv_status
decode_on_gpu(struct job_bench *j, size_t i, qv_error *err)
{
    return decode(j, i, QV_DECODE_GPU, err);
}

static qv_status
time_gpu(struct job_bench *j, double *ms, qv_error *err)
{
    return by_crew(j, decode_on_gpu, STREAMS, ms, err);
}

/* Returns the output of a clip. All outputs share the same bytes. */
static qv_tokens
tokens_of(const struct job_bench *j, size_t i)
{
    qv_tokens t = { .tokens = j->data };
    t.n = t.capacity = job_rows_of(&j->items[i]) / (j->m.merge_size * j->m.merge_size);
    for (int d = 0; d < j->m.n_deepstack; d++)
        t.deepstack[d] = j->data;
    return t;
}

/* Writes a clip as the command's sink does. */
static qv_status
write_clip(struct job_bench *j, size_t i, qv_error *err)
{
    static const char *const metadata[][2] = { { "made", "random" } };
    static const double time_s[1];
    char name[32];
    const qv_tokens t = tokens_of(j, i);
    snprintf(name, sizeof name, "%zu", i);
    char *path = qv_path_join(j->work, name);
    const struct qv_token_file_options o = { .path = path,
                                             .source = name,
                                             .dtype = QV_BF16,
                                             .n_deepstack = j->m.n_deepstack,
                                             .n_grids = 1,
                                             .n_timestamps = 1,
                                             .rows = t.n,
                                             .width = j->m.out_hidden };
    const void *deepstack[QV_MAX_DEEPSTACK];
    for (int d = 0; d < QV_MAX_DEEPSTACK; d++)
        deepstack[d] = t.deepstack[d];
    const struct qv_token_file_data data = { .tokens = t.tokens,
                                             .deepstack = deepstack,
                                             .grid_thw = j->items[i].grid_thw,
                                             .timestamps_s = time_s };
    const qv_status s = path ? qv_token_file_save(&o, &data, metadata, 1, err)
                             : qv_fail(err, QV_ENOMEM, "no memory for a path");
    free(path);
    return s;
}

static qv_status
time_files(struct job_bench *j, double *ms, qv_error *err)
{
    const qv_status s = by_crew(j, write_clip, SINKS, ms, err);
    tool_clear_folder(j->work);
    return s;
}

static qv_status
put_clip(struct job_bench *j, size_t i, qv_error *err)
{
    const qv_tokens t = tokens_of(j, i);
    return bench_put_tokens(j->writer, j->list.at[i].key, &t, err);
}

/* Puts clips as the command's sink does, until the last part is sealed. */
static qv_status
time_parts(struct job_bench *j, double *ms, qv_error *err)
{
    const double began_s = qv_seconds();
    qv_status s = bench_start_parts(j->work, &j->m, &j->writer, err);
    if (s)
        return s;
    s = by_crew(j, put_clip, SINKS, ms, err);
    qv_error sealing = { 0 };
    const qv_status sealed = qv_cache_writer_close(&j->writer, &sealing);
    *ms = 1e3 * (qv_seconds() - began_s);
    if (!s && sealed)
        *err = sealing;
    tool_clear_folder(j->work);
    return s ? s : sealed;
}

/* ---- jobs ------------------------------------------------------------------------------------ */

/* Adds clips to a job: their frames, which were decoded before, or else their files. */
static qv_status
add_clips(struct job_bench *j, qv_job *job, bool frames, qv_decode decode, qv_error *err)
{
    qv_status s = QV_OK;
    for (size_t i = 0; i < j->list.n && !s; i++) {
        const struct tool_entry *entry = &j->list.at[i];
        qv_clip_options options = qvm_options_merge(entry->own, &j->o.clip);
        options.decode = decode;
        qv_job_source source = { .key = entry->key, .path = entry->path, .clip = &options };
        if (frames)
            source =
                (qv_job_source){ .key = entry->key, .kind = QV_SOURCE_FRAMES, .item = j->items[i] };
        s = qv_job_add(job, &source, err);
    }
    return s;
}

static qv_job_options
options_of(const struct job_bench *j, enum bench_job_way way)
{
    qv_job_options options = {
        .output = QV_BF16, .sinks = SINKS, .chunk_rows = j->o.chunk_rows, .clip = j->o.clip
    };
    if (way == BENCH_JOB_CPU)
        options.clip.decode = QV_DECODE_CPU;
    return options;
}

qv_status
job_ask_decoders(struct job_bench *j, qv_error *err)
{
    const qv_job_options options = options_of(j, BENCH_JOB_DISCARD);
    qv_job_progress p;
    qv_job *job = NULL;
    const qv_status s = qv_job_open(j->devices.models, j->devices.n, &options, &job, err);
    if (s)
        return s;
    qv_job_get_progress(job, &p);
    j->decoders = p.decoders;
    j->gpu_decoders = (int)p.gpu_decoders;
    qv_job_close(&job);
    return QV_OK;
}

static qv_status
run_job(struct job_bench *j, enum bench_job_way way, double *ms, qv_error *err)
{
    const qv_job_options options = options_of(j, way);
    qv_job *job = NULL;
    qv_status s = qv_job_open(j->devices.models, job_devices_of(j, way), &options, &job, err);
    if (s)
        return s;
    s = add_clips(j, job, way != BENCH_JOB_CPU && way != BENCH_JOB_DISCARD, options.clip.decode,
                  err);
    if (!s)
        s = qv_job_end(job, err);
    qv_job_get_progress(job, &j->progress[way]);
    *ms = 1e3 * j->progress[way].elapsed_s;
    qv_job_close(&job);
    if (!s && j->progress[way].failed)
        s = qv_fail(err, QV_EFORMAT, "%lld of the clips cannot be encoded",
                    (long long)j->progress[way].failed);
    return s;
}

/* Encodes each clip by itself, as a caller without a job does. */
static qv_status
time_one_by_one(struct job_bench *j, double *ms, qv_error *err)
{
    const qv_plan_options o = { .output = QV_BF16 };
    const double began_s = qv_seconds();
    qv_status s = QV_OK;
    for (size_t i = 0; i < j->list.n && !s; i++)
        s = qv_encode(j->devices.models[0], QV_INPUT_FRAMES, &j->items[i], 1, &o, &j->one, err);
    *ms = 1e3 * (qv_seconds() - began_s);
    return s;
}

static qv_status
end_run(const struct job_bench *j, int code, double job_s, double *ms, qv_error *err)
{
    *ms = 1e3 * job_s;
    tool_clear_folder(j->work);
    return bench_ended("the job", code, err);
}

static qv_status
time_encode(struct job_bench *j, double *ms, qv_error *err)
{
    double job_s = 0;
    j->o.output = j->work;
    const int code = tool_encode_on(&j->o, &j->devices, &job_s);
    return end_run(j, code, job_s, ms, err);
}

static qv_status
time_cache(struct job_bench *j, double *ms, qv_error *err)
{
    struct tool_cache_times times;
    j->o.out = j->work;
    const int code = tool_cache_run_on(&j->o, &j->devices, &times);
    return end_run(j, code, times.job_s, ms, err);
}

/* The ways that are no job whose tokens are discarded. */
static qv_status (*const works[BENCH_JOB_WAYS])(struct job_bench *j, double *ms, qv_error *err) = {
    [BENCH_JOB_DECODE] = time_decoding, [BENCH_JOB_GPU] = time_gpu,
    [BENCH_JOB_ONE] = time_one_by_one,  [BENCH_JOB_FILES] = time_files,
    [BENCH_JOB_PARTS] = time_parts,     [BENCH_JOB_ENCODE] = time_encode,
    [BENCH_JOB_CACHE] = time_cache,
};

/* ---- time of the cores ----------------------------------------------------------------------- */

/* Reads a process's parent, and the seconds of it and of its children that were waited for. Returns
 * false if there is no such process. */
static bool
read_process(int pid, int *parent, double *used_s)
{
    enum { PARENT, OTHERS = 9, TIMES = 4 }; /* numbers behind a process's name and state */
    char path[64], text[1024], *at;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "r");
    text[f ? fread(text, 1, sizeof text - 1, f) : 0] = 0;
    if (f)
        fclose(f);
    at =
        strrchr(text, ')'); /* the end of the name, in which anything may stand; then comes " S " */
    if (!at || strlen(at) < 4)
        return false;
    at += 4;
    *used_s = 0;
    for (int i = PARENT; i <= OTHERS + TIMES; i++) {
        const long value = strtol(at, &at, 10);
        *parent = i == PARENT ? (int)value : *parent;
        *used_s += i > OTHERS ? (double)value / (double)sysconf(_SC_CLK_TCK) : 0;
    }
    return true;
}

/* Returns the seconds of this process and its descendants, as clips are decoded in processes of
 * their own; 0 on systems without /proc. */
static double
cpu_s(void)
{
    DIR *proc = opendir("/proc");
    double sum_s = 0, used_s, other_s;
    for (const struct dirent *e; proc && (e = readdir(proc)) != NULL;) {
        int up = (int)strtol(e->d_name, NULL, 10), parent = 0;
        if (up < 1 || !read_process(up, &parent, &used_s))
            continue;
        while (up > 1 && up != getpid() && read_process(up, &parent, &other_s))
            up = parent;
        sum_s += up == getpid() ? used_s : 0;
    }
    if (proc)
        closedir(proc);
    return sum_s;
}

qv_status
job_work(void *user, double *ms, qv_error *err)
{
    const struct job_way *w = user;
    const double before_s = cpu_s();
    const qv_status s =
        works[w->way] ? works[w->way](w->j, ms, err) : run_job(w->j, w->way, ms, err);
    w->j->cpu_s[w->way] = cpu_s() - before_s;
    return s;
}
