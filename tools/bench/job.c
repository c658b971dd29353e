/* SPDX-License-Identifier: MIT */
/*
 * qwenvit bench job: a list of clips through a job, against each of its stages alone, in turn:
 * decoding and preprocessing, the device (of several one, and all), writing. The job then discards
 * its tokens, writes a file a clip (`encode`), or parts of a cache (`cache`). A stage alone runs the
 * code that it runs in the job, with as many threads: so it is a bound, and where it is none the bench
 * fails.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench.h"
#include "command/cache.h"
#include "command/encode.h"
#include "command/list.h"
#include "cores.h"
#include "error.h"
#include "files/atomic_file.h"
#include "files/json.h"
#include "job_bounds.h"

enum { SINKS = 4 }; /* as the command has */
enum { MOST_FRAMES = 1 << 16, MOST_SIDE = 4096 };
#define MOST_PIXELS ((size_t)1 << 30) /* bytes */

struct job_bench {
    struct bench b;
    struct tool_options o; /* of the runs: what they print goes nowhere */
    struct tool_devices devices;
    qv_decoder *decoder;
    qv_model_info m;
    char *made, *work; /* folders: of clips, which stay; of what is written, which goes */
    char *list_file;   /* of the clips that are made */
    struct tool_list list;
    qv_item *items; /* [list.n]: what the clips are once they are decoded */
    int64_t patches, tokens;
    uint64_t bytes; /* of all tokens */
    void *data;     /* frames, or a clip's tokens: random bytes */
    struct qv_cache_writer *writer;
    bool wrong;                               /* a stage was measured wrongly */
    qv_tokens one;                            /* the largest item's, for one by one */
    qv_job_progress progress[BENCH_JOB_WAYS]; /* of the last run */
};

static int64_t
rows_of(const qv_item *item)
{
    return item->grid_thw[0] * item->grid_thw[1] * item->grid_thw[2];
}

static uint64_t
token_bytes(const struct job_bench *j, int64_t rows)
{
    const int64_t area = j->m.merge_size * j->m.merge_size;
    return (uint64_t)(rows / area * j->m.out_hidden * (1 + j->m.n_deepstack)) * sizeof(uint16_t);
}

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

/* Numbers below `times`, by so many threads; *ms: how long it took. */
static qv_status
by_crew(struct job_bench *j, crew_work *work, size_t times, int n_threads, double *ms,
        qv_error *err)
{
    struct crew c = { .j = j, .work = work, .lock = PTHREAD_MUTEX_INITIALIZER, .n = times };
    pthread_t *threads = calloc((size_t)n_threads, sizeof *threads);
    int n = 0;
    if (!threads)
        return qv_fail(err, QV_ENOMEM, "no memory for threads");
    const double began_s = tool_seconds();
    while (n < n_threads && !pthread_create(&threads[n], NULL, crew_run, &c))
        n++;
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    *ms = 1e3 * (tool_seconds() - began_s);
    free(threads);
    if (n < n_threads)
        return qv_fail(err, QV_ENOMEM, "%d threads cannot be made", n_threads);
    if (c.status)
        *err = c.error;
    return c.status;
}

/* ---- stages alone ---------------------------------------------------------------------------- */

static qv_status
read_clip(qv_clip *clip, const qv_clip_info *info, qv_error *err)
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

/* As a job decides: one, but every core where few clips are left. */
static int
decoding_threads(const struct job_bench *j, size_t i)
{
    const size_t cores = (size_t)qv_usable_cores(), others = i < cores - 1 ? i : cores - 1;
    const size_t wanted = j->list.n - i + others;
    return wanted * 2 > cores && wanted > 1 ? 1 : 0;
}

static qv_status
decode_clip(struct job_bench *j, size_t i, qv_error *err)
{
    const struct tool_entry *entry = &j->list.at[i];
    qv_clip_options options = tool_entry_options(entry, &j->o.clip);
    qv_clip *clip = NULL;
    qv_clip_info info;
    options.threads = decoding_threads(j, i);
    qv_status s = qv_clip_open(entry->path, &j->m.image, &j->m.video, &options, &clip, err);
    if (s)
        return s;
    qv_clip_get_info(clip, &info);
    s = read_clip(clip, &info, err);
    qv_clip_close(&clip);
    j->items[i].is_image = info.is_image;
    memcpy(j->items[i].grid_thw, info.grid_thw, sizeof info.grid_thw);
    return s;
}

static qv_status
time_decoding(void *user, double *ms, qv_error *err)
{
    struct job_bench *j = user;
    return by_crew(j, decode_clip, j->list.n, qv_usable_cores(), ms, err);
}

/* Every output of a clip is the same bytes: how many rows, and where. */
static qv_tokens
tokens_of(const struct job_bench *j, size_t i)
{
    qv_tokens t = { .tokens = j->data };
    t.n = t.capacity = rows_of(&j->items[i]) / (j->m.merge_size * j->m.merge_size);
    for (int d = 0; d < j->m.n_deepstack; d++)
        t.deepstack[d] = j->data;
    return t;
}

/* As the command's sink writes it. */
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
time_files(void *user, double *ms, qv_error *err)
{
    struct job_bench *j = user;
    const qv_status s = by_crew(j, write_clip, j->list.n, SINKS, ms, err);
    bench_clear_folder(j->work);
    return s;
}

static qv_status
put_clip(struct job_bench *j, size_t i, qv_error *err)
{
    const qv_tokens t = tokens_of(j, i);
    return bench_cache_put(j->writer, j->list.at[i].key, &t, err);
}

/* As the command's sink puts them, until the last part is sealed. */
static qv_status
time_parts(void *user, double *ms, qv_error *err)
{
    struct job_bench *j = user;
    const double began_s = tool_seconds();
    qv_status s = bench_cache_start(j->work, &j->m, QV_BF16, &j->writer, err);
    if (s)
        return s;
    s = by_crew(j, put_clip, j->list.n, SINKS, ms, err);
    qv_error sealing = { 0 };
    const qv_status sealed = bench_cache_end(&j->writer, &sealing);
    *ms = 1e3 * (tool_seconds() - began_s);
    if (!s && sealed)
        *err = sealing;
    bench_clear_folder(j->work);
    return s ? s : sealed;
}

/* ---- jobs ------------------------------------------------------------------------------------ */

static qv_status
discard(void *user, const qv_job_result *r, qv_error *err)
{
    (void)user;
    return r->status ? qv_fail(err, r->status, "%s", r->error) : QV_OK;
}

/* frames: of clips that were decoded before; else their files. */
static qv_status
add_clips(struct job_bench *j, qv_job *job, bool frames, qv_error *err)
{
    qv_status s = QV_OK;
    for (size_t i = 0; i < j->list.n && !s; i++) {
        const struct tool_entry *entry = &j->list.at[i];
        const qv_clip_options options = tool_entry_options(entry, &j->o.clip);
        qv_job_source source = { .key = entry->key, .path = entry->path, .clip = &options };
        if (frames)
            source =
                (qv_job_source){ .key = entry->key, .kind = QV_SOURCE_FRAMES, .item = j->items[i] };
        s = qv_job_add(job, &source, err);
    }
    return s;
}

/* How many devices work in a way. */
static size_t
devices_of(const struct job_bench *j, enum bench_job_way way)
{
    return way == BENCH_JOB_DEVICE ? 1 : j->devices.n;
}

static qv_status
run_job(struct job_bench *j, enum bench_job_way way, double *ms, qv_error *err)
{
    const qv_job_options options = { .sink = discard,
                                     .output = QV_BF16,
                                     .sinks = SINKS,
                                     .chunk_rows = j->o.chunk_rows,
                                     .clip = j->o.clip };
    qv_job *job = NULL;
    qv_status s = qv_job_open(j->devices.models, devices_of(j, way), &options, &job, err);
    if (s)
        return s;
    s = add_clips(j, job, way == BENCH_JOB_DEVICE || way == BENCH_JOB_DEVICES, err);
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

static qv_status
time_device(void *user, double *ms, qv_error *err)
{
    return run_job(user, BENCH_JOB_DEVICE, ms, err);
}

/* Each by itself, as a caller without a job does. */
static qv_status
time_one_by_one(void *user, double *ms, qv_error *err)
{
    struct job_bench *j = user;
    const qv_plan_options o = { .output = QV_BF16 };
    const double began_s = tool_seconds();
    qv_status s = QV_OK;
    for (size_t i = 0; i < j->list.n && !s; i++)
        s = qv_encode(j->devices.models[0], QV_INPUT_FRAMES, &j->items[i], 1, &o, &j->one, err);
    *ms = 1e3 * (tool_seconds() - began_s);
    return s;
}

static qv_status
time_devices(void *user, double *ms, qv_error *err)
{
    return run_job(user, BENCH_JOB_DEVICES, ms, err);
}

static qv_status
time_discarding(void *user, double *ms, qv_error *err)
{
    return run_job(user, BENCH_JOB_DISCARD, ms, err);
}

static qv_status
end_run(const struct job_bench *j, int code, double job_s, double *ms, qv_error *err)
{
    *ms = 1e3 * job_s;
    bench_clear_folder(j->work);
    return code ? qv_fail(err, code == TOOL_DEVICE ? QV_EIO : QV_EFORMAT,
                          "the job ended with exit code %d", code)
                : QV_OK;
}

static qv_status
time_encode(void *user, double *ms, qv_error *err)
{
    struct job_bench *j = user;
    double job_s = 0;
    j->o.output = j->work;
    const int code = tool_encode_on(&j->o, &j->devices, &job_s);
    return end_run(j, code, job_s, ms, err);
}

static qv_status
time_cache(void *user, double *ms, qv_error *err)
{
    struct job_bench *j = user;
    struct tool_cache_times times;
    j->o.out = j->work;
    const int code = tool_cache_run_on(&j->o, &j->devices, &times);
    return end_run(j, code, times.job_s, ms, err);
}

/* ---- clips ----------------------------------------------------------------------------------- */

/* Two frames a second, which are those that are sampled. */
static struct tool_clip_shape
shape_of(const struct tool_options *o, int64_t i)
{
    static const int sizes[][2] = { { 320, 240 }, { 448, 256 }, { 240, 426 }, { 384, 384 },
                                    { 608, 320 }, { 256, 192 }, { 512, 288 } };
    enum { N = sizeof sizes / sizeof *sizes, LEAST = 2, MOST = 16 };
    if (o->frames)
        return (struct tool_clip_shape){ (int)(o->size[1] & ~1), (int)(o->size[0] & ~1), 2,
                                         (int)o->frames };
    return (struct tool_clip_shape){ sizes[i % N][0], sizes[i % N][1], 2,
                                     LEAST + (int)(i / N % (MOST - LEAST + 1)) };
}

/* Appends a line to the list; the clip is made, unless it is there. */
static qv_status
make_clip(const struct job_bench *j, int64_t i, struct qv_atomic_file *list, uint64_t *at,
          qv_error *err)
{
    const struct tool_clip_shape shape = shape_of(j->b.o, i);
    char name[80], key[32];
    snprintf(name, sizeof name, "%dx%d-%d.mp4", shape.width, shape.height, shape.frames);
    snprintf(key, sizeof key, "%lld", (long long)i);
    char *path = qv_path_join(j->made, name);
    if (!path)
        return qv_fail(err, QV_ENOMEM, "no memory for a path");
    qv_status s = qv_path_exists(path) ? QV_OK : tool_make_clip(path, &shape, err);
    json_t *line = json_pack("{s:o, s:s}", "path", tool_json_text(path), "key", key);
    char *text = qv_json_text(line, JSON_COMPACT);
    if (!s && !text)
        s = qv_fail(err, QV_ENOMEM, "no memory for a list");
    if (!s)
        s = qv_atomic_file_write(list, *at, text, strlen(text), err);
    *at += text ? strlen(text) : 0;
    if (!s)
        s = qv_atomic_file_write(list, (*at)++, "\n", 1, err);
    json_decref(line);
    free(text);
    free(path);
    return s;
}

static qv_status
make_clips(struct job_bench *j, qv_error *err)
{
    struct qv_atomic_file list = { 0 };
    uint64_t at = 0;
    if (mkdir(j->made, 0777) && errno != EEXIST)
        return qv_fail(err, QV_EIO, "%s: cannot be made: %s", j->made, strerror(errno));
    qv_status s = qv_atomic_file_open(j->list_file, &list, err);
    for (int64_t i = 0; i < j->b.o->clips && !s; i++)
        s = make_clip(j, i, &list, &at, err);
    if (!s)
        s = qv_atomic_file_commit(&list, err);
    qv_atomic_file_abort(&list);
    return s;
}

/* ---- opening --------------------------------------------------------------------------------- */

static size_t
frame_bytes(const struct job_bench *j, const qv_item *item)
{
    return (size_t)(rows_of(item) * j->m.row_dim);
}

static qv_status
open_one(struct job_bench *j, int64_t tokens, qv_error *err)
{
    const size_t bytes = (size_t)(tokens * j->m.out_hidden) * sizeof(uint16_t);
    char *all = bytes ? malloc(bytes * (size_t)(1 + j->m.n_deepstack)) : NULL;
    if (!all)
        return qv_fail(err, QV_ENOMEM, "no memory for %lld tokens", (long long)tokens);
    j->one = (qv_tokens){ .tokens = all, .capacity = tokens };
    for (int i = 0; i < j->m.n_deepstack; i++)
        j->one.deepstack[i] = all + (size_t)(1 + i) * bytes;
    return QV_OK;
}

/* Random bytes: of frames all that there are, or as many as no cache holds, of which clips have each
 * their own until it begins anew; enough for the tokens of any clip. */
static qv_status
open_data(struct job_bench *j, qv_error *err)
{
    size_t most = 1, all = 0;
    int64_t most_rows = 0;
    for (size_t i = 0; i < j->list.n; i++) {
        const int64_t rows = rows_of(&j->items[i]);
        const size_t frames = frame_bytes(j, &j->items[i]), bytes = (size_t)token_bytes(j, rows);
        most = frames > most ? frames : most;
        most = bytes > most ? bytes : most;
        all += qv_aligned(frames);
        most_rows = rows > most_rows ? rows : most_rows;
        j->patches += rows;
        j->bytes += bytes;
    }
    j->tokens = j->patches / (j->m.merge_size * j->m.merge_size);
    all = all < MOST_PIXELS ? all : MOST_PIXELS;
    most = all > most ? all : most;
    const qv_status s = qv_host_alloc(j->devices.contexts[0], most, &j->data, err);
    if (s)
        return s;
    bench_fill(j->data, QV_U8, most);
    for (size_t i = 0, at = 0; i < j->list.n; i++) {
        const size_t frames = frame_bytes(j, &j->items[i]);
        at = at + frames <= most ? at : 0;
        j->items[i].data = (const char *)j->data + at;
        at += qv_aligned(frames);
    }
    return open_one(j, most_rows / (j->m.merge_size * j->m.merge_size), err);
}

static qv_status
open_folders(struct job_bench *j, qv_error *err)
{
    const char *folder = j->b.o->output;
    j->made = qv_path_join(folder, "clips");
    j->list_file = qv_path_join(folder, "clips.jsonl");
    return j->made && j->list_file ? bench_open_folder(folder, &j->work, err)
                                   : qv_fail(err, QV_ENOMEM, "%s: no memory for a path", folder);
}

static qv_status
open_all(struct job_bench *j, qv_error *err)
{
    const struct tool_options *o = j->b.o;
    double ms;
    qv_status s = open_folders(j, err);
    if (!s && !o->list)
        s = make_clips(j, err);
    j->o = *o;
    j->o.list = o->list ? o->list : j->list_file;
    j->o.output_dtype = j->o.tokens = QV_BF16;
    j->o.json_file = "/dev/null";
    j->o.json = j->o.quiet = true;
    j->o.n_arguments = 0;
    if (!s)
        s = tool_list_read(j->o.list, &j->list, err);
    if (!s && !j->list.n)
        s = qv_fail(err, QV_EFORMAT, "%s: there is no clip in it", j->o.list);
    if (!s)
        s = tool_devices_open(o, &j->devices, err);
    if (!s)
        s = qv_decoder_start(NULL, &j->decoder, err);
    if (s)
        return s;
    j->o.clip.decoder = j->decoder;
    j->b.info = j->devices.infos[0];
    qv_model_get_info(j->devices.models[0], &j->m);
    j->items = calloc(j->list.n, sizeof *j->items);
    s = j->items ? time_decoding(j, &ms, err) : qv_fail(err, QV_ENOMEM, "no memory for clips");
    return s ? s : open_data(j, err);
}

static void
close_all(struct job_bench *j)
{
    if (j->devices.contexts[0])
        qv_host_free(j->devices.contexts[0], j->data);
    qv_decoder_stop(&j->decoder);
    tool_devices_close(&j->devices);
    tool_list_free(&j->list);
    free(j->one.tokens);
    free(j->items);
    free(j->made);
    free(j->list_file);
    bench_close_folder(&j->work);
}

/* ---- what it came to ------------------------------------------------------------------------- */

static json_t *
extras_of(const struct job_bench *j, enum bench_job_way way, const double *all_ms,
          const struct bench_job_bounds *bounds)
{
    const double ms = all_ms[way];
    const qv_job_progress *p = &j->progress[way];
    json_t *e =
        json_pack("{s:s, s:I, s:I, s:I, s:I, s:f, s:i, s:i}", "list",
                  j->b.o->list ? j->b.o->list : "made", "clips", (json_int_t)j->list.n, "patches",
                  (json_int_t)j->patches, "tokens", (json_int_t)j->tokens, "token_bytes",
                  (json_int_t)j->bytes, "clips_per_s", 1e3 * (double)j->list.n / ms, "cores",
                  qv_usable_cores(), "devices", (int)devices_of(j, way));
    if (bounds->sum_ms > 0)
        json_object_update_new(e, json_pack("{s:f, s:f}", "over_slowest", ms / bounds->slowest_ms,
                                            "over_sum", ms / bounds->sum_ms));
    if (way == BENCH_JOB_DEVICES)
        json_object_set_new(e, "times_one", json_real(all_ms[BENCH_JOB_DEVICE] / ms));
    if (p->devices)
        json_object_update_new(e, json_pack("{s:s, s:I, s:f, s:f, s:f, s:f, s:f, s:f}", "limit",
                                            p->limit, "chunks", (json_int_t)p->chunks, "fill",
                                            (double)p->rows / ((double)p->capacity_rows + 1e-9),
                                            "decode_s", p->decode_s, "device_s", p->device_s,
                                            "starved_s", p->starved_s, "full_s", p->full_s,
                                            "sink_s", p->sink_s));
    if (way == BENCH_JOB_DEVICE)
        json_object_set_new(e, "over_one_by_one", json_real(ms / all_ms[BENCH_JOB_ONE]));
    return e;
}

/* "M, 2000 clips", and what is not as it is by default */
static void
name_work(const struct job_bench *j, char *text, size_t size)
{
    const struct tool_options *o = j->b.o;
    char model[100], made[40] = "", devices[40] = "";
    bench_base_name(o->model, model, sizeof model);
    if (o->frames && !o->list) {
        const struct tool_clip_shape shape = shape_of(o, 0);
        snprintf(made, sizeof made, " of %d frames %dx%d", shape.frames, shape.width, shape.height);
    }
    if (j->devices.n > 1)
        snprintf(devices, sizeof devices, ", %zu devices", j->devices.n);
    snprintf(text, size, "%s, %zu clips%s%s", model, j->list.n, made, devices);
}

static qv_status
report(struct job_bench *j, enum bench_job_way way, const double *ms, struct bench_times times,
       qv_error *err)
{
    char work[200], note[80] = "";
    const struct bench_job_bounds bounds = bench_job_bounds_of(ms, way);
    name_work(j, work, sizeof work);
    if (bounds.sum_ms > 0)
        snprintf(note, sizeof note, "%.3f of the slowest, %.3f of their sum",
                 ms[way] / bounds.slowest_ms, ms[way] / bounds.sum_ms);
    if (way == BENCH_JOB_DEVICE)
        snprintf(note, sizeof note, "%.3f of one by one", ms[BENCH_JOB_DEVICE] / ms[BENCH_JOB_ONE]);
    if (way == BENCH_JOB_DEVICES)
        snprintf(note, sizeof note, "%.3f times one device", ms[BENCH_JOB_DEVICE] / ms[way]);
    if (bench_talks(&j->b))
        printf("  %-22s %11.1f %11.1f %9.1f  %s\n", bench_job_ways[way].label, times.median_ms,
               times.p90_ms, 1e3 * (double)j->list.n / ms[way], note);
    const struct bench_record r = { .work = work,
                                    .way = bench_job_ways[way].name,
                                    .dtype = j->m.dtype,
                                    .times = times,
                                    .extras = extras_of(j, way, ms, &bounds) };
    return bench_emit(&j->b, &r, err);
}

/* Which ways there are here; how many. */
static int
ways_of(const struct job_bench *j, enum bench_job_way out[BENCH_JOB_WAYS])
{
    int n = 0;
    for (int way = 0; way < BENCH_JOB_WAYS; way++)
        if ((way != BENCH_JOB_DEVICES || j->devices.n > 1) &&
            ((way != BENCH_JOB_PARTS && way != BENCH_JOB_CACHE) || bench_has_cache))
            out[n++] = (enum bench_job_way)way;
    return n;
}

static qv_status
time_all(struct job_bench *j, const enum bench_job_way *timed, int n, struct bench_run *runs,
         qv_error *err)
{
    static bench_work *const works[BENCH_JOB_WAYS] = {
        [BENCH_JOB_DECODE] = time_decoding,    [BENCH_JOB_ONE] = time_one_by_one,
        [BENCH_JOB_DEVICE] = time_device,      [BENCH_JOB_DEVICES] = time_devices,
        [BENCH_JOB_FILES] = time_files,        [BENCH_JOB_PARTS] = time_parts,
        [BENCH_JOB_DISCARD] = time_discarding, [BENCH_JOB_ENCODE] = time_encode,
        [BENCH_JOB_CACHE] = time_cache,
    };
    for (int i = 0; i < n; i++)
        runs[i] = (struct bench_run){ .work = works[timed[i]], .user = j };
    return bench_time(&j->b, runs, n, err);
}

/* Milliseconds scatter: where all ways together take little time, a stage that came out slower than a
 * job of which it is a part is timed again with the others, for so long. What stays so is refused. */
static qv_status
time_until_right(struct job_bench *j, const enum bench_job_way *timed, int n,
                 struct bench_run *runs, double ms[BENCH_JOB_WAYS], qv_error *err)
{
    static const double most_s = 10;
    const double began_s = tool_seconds();
    do {
        const qv_status s = time_all(j, timed, n, runs, err);
        if (s)
            return s;
        for (int i = 0; i < n; i++)
            ms[timed[i]] = runs[i].times.median_ms;
        if (j->devices.n == 1)
            ms[BENCH_JOB_DEVICES] = ms[BENCH_JOB_DEVICE];
        j->wrong = bench_job_check(ms, err) != QV_OK;
    } while (j->wrong && tool_seconds() - began_s < most_s);
    return j->wrong ? QV_ESTATE : QV_OK;
}

static qv_status
run_all(struct job_bench *j, qv_error *err)
{
    struct bench_run runs[BENCH_JOB_WAYS];
    enum bench_job_way timed[BENCH_JOB_WAYS];
    double ms[BENCH_JOB_WAYS] = { 0 };
    qv_status s = open_all(j, err);
    const int n = ways_of(j, timed);
    if (!s)
        s = time_until_right(j, timed, n, runs, ms, err);
    if (s)
        return s;
    if (bench_talks(&j->b))
        printf("%zu clips, %lld patches, %.3f GB of tokens on %s: %s\n  %-22s %11s %11s %9s\n",
               j->list.n, (long long)j->patches, (double)j->bytes / 1e9, j->b.info.backend,
               j->b.info.device, "", "median ms", "p90 ms", "clips/s");
    for (int i = 0; i < n && !s; i++)
        s = report(j, timed[i], ms, runs[i].times, err);
    return s;
}

int
bench_job(const struct tool_options *o)
{
    struct job_bench j = { .b = { .o = o, .name = "job" } };
    qv_error err = { 0 };
    if (!o->model || !o->output) {
        tool_complain("bench job: --model DIR and -o FOLDER are required (qwenvit bench --help)");
        return TOOL_USAGE;
    }
    if (o->frames > MOST_FRAMES || o->size[0] > MOST_SIDE || o->size[1] > MOST_SIDE) {
        tool_complain("bench job: clips of at most %d frames of %dx%d are made", MOST_FRAMES,
                      MOST_SIDE, MOST_SIDE);
        return TOOL_USAGE;
    }
    const qv_status s = run_all(&j, &err);
    close_all(&j);
    const int code = s ? tool_fail(s, &err) : TOOL_DONE;
    return j.wrong ? TOOL_FAILED : code;
}
