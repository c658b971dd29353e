/* SPDX-License-Identifier: MIT */
/*
 * qwenvit bench job: a list of clips through a job, compared with each of its stages alone:
 * decoding and preprocessing, the device (of several one, and all), and writing. The job discards
 * its tokens, or writes a file per clip (`encode`), or parts of a cache (`cache`). A stage alone
 * runs the code that it runs in the job, with as many threads, so it is a bound. The bench fails if
 * it is not.
 */
#include <stdlib.h>
#include <string.h>

#include "cores.h"
#include "error.h"
#include "files/atomic_file.h"
#include "files/json.h"
#include "files/text.h"
#include "job_stages.h"

/* ---- clips ----------------------------------------------------------------------------------- */

enum { MADE = 4, FPS = 24, MOST_FRAMES = 1 << 16, MOST_SIDE = 4096 };

static struct qvm_clip_shape
clip_shape(const struct tool_options *o)
{
    return (struct qvm_clip_shape){ .width = (int)(o->size[1] & ~1),
                                    .height = (int)(o->size[0] & ~1),
                                    .fps = FPS,
                                    .frames = (int)(o->seconds * FPS + 0.999),
                                    .is_filmed = true };
}

/* Makes clip number i unless it exists, and adds a line for it to the list. */
static qv_status
make_clip(const struct job_bench *j, int64_t i, struct qv_text *list, qv_error *err)
{
    struct qvm_clip_shape shape = clip_shape(j->b->o);
    char name[80], key[32];
    shape.number = (int)(i % MADE);
    snprintf(name, sizeof name, "%dx%d-%d-%d%c.mp4", shape.width, shape.height, shape.fps,
             shape.frames, 'a' + shape.number);
    snprintf(key, sizeof key, "%lld", (long long)i);
    char *path = qv_path_join(j->b->o->output, name);
    qv_status s = path ? QV_OK : qv_fail(err, QV_ENOMEM, "no memory for a path");
    if (!s && !qv_path_exists(path))
        s = tool_make_clip(path, &shape, err);
    json_t *entry = s ? NULL : tool_json("path:t key:s", path, key);
    char *line = entry ? tool_json_line(entry) : NULL;
    if (!s)
        qv_text_say(list, "%s\n", line ? line : "");
    if (!s && (!line || list->lost))
        s = qv_fail(err, QV_ENOMEM, "no memory for a list");
    json_decref(entry);
    free(line);
    free(path);
    return s;
}

/* Makes a few clips, and a list in which each stands many times. */
static qv_status
make_clips(const struct job_bench *j, qv_error *err)
{
    struct qv_text list = { 0 };
    qv_status s = QV_OK;
    for (int64_t i = 0; i < j->b->o->clips && !s; i++)
        s = make_clip(j, i, &list, err);
    if (!s)
        s = qv_atomic_file_put(j->o.list, list.at, list.n, err);
    free(list.at);
    return s;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Makes random bytes for the frames of the largest clip, or its tokens, which all clips share. */
static qv_status
open_data(struct job_bench *j, qv_error *err)
{
    const int64_t area = j->m.merge_size * j->m.merge_size;
    size_t most = 1;
    for (size_t i = 0; i < j->list.n; i++) {
        const int64_t rows = job_rows_of(&j->items[i]);
        const size_t frames = (size_t)(rows * j->m.row_dim),
                     bytes = (size_t)(rows / area * j->m.out_hidden) * sizeof(uint16_t);
        most = frames > most ? frames : most;
        most = bytes > most ? bytes : most;
        j->patches += rows;
        j->bytes += bytes * (size_t)(1 + j->m.n_deepstack);
    }
    const qv_status s = qv_host_alloc(j->devices.contexts[0], most, &j->data, err);
    if (s)
        return s;
    bench_fill(j->data, QV_U8, most);
    for (size_t i = 0; i < j->list.n; i++)
        j->items[i].data = j->data;
    return QV_OK;
}

/* Opens the GPUs that decode, so that no time has that in it. With --decode auto there may be
 * none. */
static qv_status
open_gpus(struct job_bench *j, qv_error *err)
{
    const qv_clip_options *o = &j->b->o->clip;
    qv_error none;
    qv_model_info m;
    if (o->decode == QV_DECODE_GPU)
        return qv_decoder_gpu(j->decoder, o->gpu, true, err) ? QV_EBACKEND : QV_OK;
    for (size_t i = 0; i < j->devices.n && o->decode == QV_DECODE_AUTO; i++) {
        qv_model_get_info(j->devices.models[i], &m);
        if (!strcmp(j->devices.infos[i].backend, "cuda"))
            qv_decoder_gpu(j->decoder, m.device, true, &none);
    }
    return QV_OK;
}

static qv_status
open_all(struct job_bench *j, qv_error *err)
{
    const struct tool_options *o = j->b->o;
    double ms;
    j->made_list = qv_path_join(o->output, "clips.jsonl");
    qv_status s = bench_open_folder(o->output, &j->work, err);
    if (!s && !j->made_list)
        s = qv_fail(err, QV_ENOMEM, "%s: no memory for a path", o->output);
    j->o = *o;
    j->o.list = o->list ? o->list : j->made_list;
    j->o.output_dtype = j->o.tokens = QV_BF16;
    j->o.json_file = "/dev/null";
    j->o.json = j->o.quiet = true;
    if (!s && !o->list)
        s = make_clips(j, err);
    if (!s)
        s = tool_list_read(j->o.list, &j->list, err);
    if (!s && !j->list.n)
        s = qv_fail(err, QV_EFORMAT, "%s: has no clips", j->o.list);
    if (!s)
        s = tool_devices_open(o, &j->devices, err);
    if (!s)
        s = qv_decoder_start(tool_decoder_program(), &j->decoder, err);
    if (!s)
        s = open_gpus(j, err);
    j->o.clip.decoder = j->decoder;
    if (!s)
        s = job_ask_decoders(j, err);
    if (s)
        return s;
    j->b->info = j->devices.infos[0];
    qv_model_get_info(j->devices.models[0], &j->m);
    j->items = calloc(j->list.n, sizeof *j->items);
    s = j->items ? job_work(&(struct job_way){ j, BENCH_JOB_DECODE }, &ms, err)
                 : qv_fail(err, QV_ENOMEM, "no memory for clips");
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
    free(j->items);
    free(j->made_list);
    bench_close_folder(&j->work);
}

/* ---- results --------------------------------------------------------------------------------- */

static json_t *
extras_of(const struct job_bench *j, enum bench_job_way way, const double *ms)
{
    const struct bench_job_bounds bounds = bench_job_bounds_of(ms, way);
    const qv_job_progress *p = &j->progress[way];
    const int64_t tokens = j->patches / (j->m.merge_size * j->m.merge_size);
    json_t *e = tool_json(
        "list:s clips:I patches:I tokens:I token_bytes:I clips_per_s:f cores:i devices:i decode:s",
        j->b->o->list ? j->b->o->list : "made", j->list.n, j->patches, tokens, j->bytes,
        1e3 * (double)j->list.n / ms[way], qv_usable_cores(), (int)job_devices_of(j, way),
        qv_decode_name(j->b->o->clip.decode));
    if (bounds.sum_ms > 0)
        tool_json_add(&e, "over_slowest:f over_sum:f", ms[way] / bounds.slowest_ms,
                      ms[way] / bounds.sum_ms);
    if (way == BENCH_JOB_DEVICES)
        tool_json_add(&e, "times_one:f", ms[BENCH_JOB_DEVICE] / ms[way]);
    if (p->devices)
        tool_json_add(&e,
                      "limit:s elapsed_s:f chunks:I fill:f decoders:i decode_s:f room_s:f "
                      "device_s:f starved_s:f full_s:f sinks:i sink_s:f gpu_clips:I",
                      p->limit, p->elapsed_s, p->chunks,
                      (double)p->rows / ((double)p->capacity_rows + 1e-9), p->decoders, p->decode_s,
                      p->room_s, p->device_s, p->starved_s, p->full_s, p->sinks, p->sink_s,
                      p->gpu_clips);
    return e;
}

/* Writes "M, 160 clips of 10 s 1280x720", and what differs from the defaults. */
static void
name_work(const struct job_bench *j, char *text, size_t size)
{
    const struct tool_options *o = j->b->o;
    const struct qvm_clip_shape shape = clip_shape(o);
    char model[100], what[100], devices[32] = "";
    bench_base_name(o->list ? o->list : "", what, sizeof what);
    if (!o->list)
        snprintf(what, sizeof what, "%g s %dx%d", (double)shape.frames / FPS, shape.width,
                 shape.height);
    if (j->devices.n > 1)
        snprintf(devices, sizeof devices, ", %zu devices", j->devices.n);
    snprintf(text, size, "%s, %zu clips of %s%s%s%s",
             bench_base_name(o->model, model, sizeof model), j->list.n, what, devices,
             j->gpu_decoders ? ", by " : "",
             !j->gpu_decoders                   ? ""
             : o->clip.decode == QV_DECODE_AUTO ? "auto"
                                                : "the GPU");
}

static qv_status
report(struct job_bench *j, enum bench_job_way way, const double *ms, struct bench_times times,
       qv_error *err)
{
    char work[400];
    name_work(j, work, sizeof work);
    const struct bench_record r = { .work = work,
                                    .way = bench_job_names[way],
                                    .dtype = j->m.dtype,
                                    .times = times,
                                    .show = "clips_per_s over_slowest over_sum times_one",
                                    .extras = extras_of(j, way, ms) };
    return bench_report(j->b, &r, err);
}

/* ---- running --------------------------------------------------------------------------------- */

static bool
can_be_timed(const struct job_bench *j, int way)
{
    if (way == BENCH_JOB_ENCODE || way == BENCH_JOB_CACHE) /* with auto the CPU decodes what is */
        return !j->gpu_decoders || j->o.clip.decode != QV_DECODE_AUTO; /* kept, unlike alone */
    return way != BENCH_JOB_DEVICES || j->devices.n > 1;
}

/* Times n ways until results are plausible, since milliseconds scatter. If all ways together take
 * little time, a stage that was slower than a job which contains it is timed again with the
 * others, for a limited time. If it stays slower, the result is refused. */
static qv_status
time_until_right(struct job_bench *j, struct job_way *ways, int n, struct bench_run *runs,
                 double ms[BENCH_JOB_WAYS], qv_error *err)
{
    static const double most_s = 10;
    const double began_s = qv_seconds();
    bool wrong;
    do {
        for (int i = 0; i < n; i++)
            runs[i] = (struct bench_run){ .work = job_work, .user = &ways[i] };
        const qv_status s = bench_time(j->b, runs, n, err);
        if (s)
            return s;
        for (int i = 0; i < n; i++)
            ms[ways[i].way] = runs[i].times.median_ms;
        if (j->devices.n == 1)
            ms[BENCH_JOB_DEVICES] = ms[BENCH_JOB_DEVICE];
        wrong = bench_job_check(ms, err) != QV_OK;
    } while (wrong && qv_seconds() - began_s < most_s);
    return wrong ? QV_ESTATE : QV_OK;
}

static qv_status
run_all(struct job_bench *j, qv_error *err)
{
    struct bench_run runs[BENCH_JOB_WAYS];
    struct job_way ways[BENCH_JOB_WAYS];
    double ms[BENCH_JOB_WAYS] = { 0 };
    int n = 0;
    qv_status s = open_all(j, err);
    for (int way = 0; way < BENCH_JOB_WAYS && !s; way++)
        if (can_be_timed(j, way))
            ways[n++] = (struct job_way){ j, (enum bench_job_way)way };
    if (!s)
        s = time_until_right(j, ways, n, runs, ms, err);
    for (int i = 0; i < n && !s; i++)
        s = report(j, ways[i].way, ms, runs[i].times, err);
    return s;
}

qv_status
bench_job(struct bench *b, qv_error *err)
{
    struct job_bench j = { .b = b, .lock = PTHREAD_MUTEX_INITIALIZER };
    const struct tool_options *o = b->o;
    const double most_s = (double)MOST_FRAMES / FPS;
    if (o->seconds > most_s || o->size[0] > MOST_SIDE || o->size[1] > MOST_SIDE)
        return qv_fail(err, QV_EINVAL, "bench job: clips of at most %.0f s of %dx%d are made",
                       most_s, MOST_SIDE, MOST_SIDE);
    const qv_status s = run_all(&j, err);
    close_all(&j);
    return s;
}
