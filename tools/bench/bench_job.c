/* SPDX-License-Identifier: MIT */
/*
 * qwenvit bench job: a list of clips through a job, compared with each of its stages alone, in
 * turn: decoding and preprocessing, the device (of several one, and all), and writing. The job
 * discards its tokens, or writes a file for each clip (`encode`), or parts of a cache (`cache`). A
 * stage alone runs the code that it runs in the job, with as many threads, so it is a bound. The
 * bench fails if it is not.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "cores.h"
#include "error.h"
#include "files/json.h"
#include "job_bench.h"

enum { MOST_FRAMES = 1 << 16, MOST_SIDE = 4096 };
#define MOST_PIXELS ((size_t)1 << 30) /* in bytes */

static uint64_t
token_bytes(const struct job_bench *j, int64_t rows)
{
    const int64_t area = j->m.merge_size * j->m.merge_size;
    return (uint64_t)(rows / area * j->m.out_hidden * (1 + j->m.n_deepstack)) * sizeof(uint16_t);
}

/* ---- opening --------------------------------------------------------------------------------- */

static size_t
frame_bytes(const struct job_bench *j, const qv_item *item)
{
    return (size_t)(job_rows_of(item) * j->m.row_dim);
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

/* Makes random bytes for frames: as many as there are, or as no cache holds, from which clips
 * take different parts until it begins anew; and enough for the tokens of any clip. */
static qv_status
open_data(struct job_bench *j, qv_error *err)
{
    size_t most = 1, all = 0;
    int64_t most_rows = 0;
    for (size_t i = 0; i < j->list.n; i++) {
        const int64_t rows = job_rows_of(&j->items[i]);
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

/* Has the GPUs opened that decode, so that no time has that in it. With --decode auto there may be
 * none. */
static qv_status
open_gpus(struct job_bench *j, qv_error *err)
{
    const qv_clip_options *o = &j->b.o->clip;
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
    const struct tool_options *o = j->b.o;
    double ms;
    qv_status s = open_folders(j, err);
    if (!s && !o->list)
        s = job_make_clips(j, err);
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
        s = qv_decoder_start(tool_decoder_program(), &j->decoder, err);
    if (!s)
        s = open_gpus(j, err);
    j->o.clip.decoder = j->decoder;
    if (!s)
        s = job_ask_decoders(j, err);
    if (s)
        return s;
    j->b.info = j->devices.infos[0];
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
    free(j->one.tokens);
    free(j->items);
    free(j->made);
    free(j->list_file);
    bench_close_folder(&j->work);
    bench_close(&j->b);
}

/* ---- what it came to ------------------------------------------------------------------------- */

static bool
by_gpu(const struct job_bench *j)
{
    return j->gpu_decoders > 0;
}

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
                  qv_usable_cores(), "devices", (int)job_devices_of(j, way));
    if (bounds->sum_ms > 0)
        json_object_update_new(e, json_pack("{s:f, s:f}", "over_slowest", ms / bounds->slowest_ms,
                                            "over_sum", ms / bounds->sum_ms));
    if (way == BENCH_JOB_DEVICES && all_ms[BENCH_JOB_DEVICE] > 0)
        json_object_set_new(e, "times_one", json_real(all_ms[BENCH_JOB_DEVICE] / ms));
    if (p->devices)
        json_object_update_new(
            e,
            json_pack(
                "{s:s, s:f, s:I, s:f, s:i, s:f, s:f, s:f, s:f, s:f, s:i, s:f, s:I, s:I, s:s, s:I}",
                "limit", p->limit, "elapsed_s", p->elapsed_s, "chunks", (json_int_t)p->chunks,
                "fill", (double)p->rows / ((double)p->capacity_rows + 1e-9), "decoders",
                p->decoders, "decode_s", p->decode_s, "room_s", p->room_s, "device_s", p->device_s,
                "starved_s", p->starved_s, "full_s", p->full_s, "sinks", p->sinks, "sink_s",
                p->sink_s, "source_frames", (json_int_t)p->source_frames, "decoded_frames",
                (json_int_t)p->decoded_frames, "decode", qv_decode_name(j->b.o->clip.decode),
                "gpu_clips", (json_int_t)p->gpu_clips));
    if (j->o.clip.max_pixels)
        json_object_set_new(e, "max_pixels", json_integer(j->o.clip.max_pixels));
    if (j->o.chunk_rows)
        json_object_set_new(e, "chunk_rows", json_integer(j->o.chunk_rows));
    json_object_update_new(e, json_pack("{s:f, s:f}", "cpu_s", j->cpu_s[way], "cpu_s_per_clip",
                                        j->cpu_s[way] / (double)j->list.n));
    if (way == BENCH_JOB_DISCARD && all_ms[BENCH_JOB_CPU] > 0)
        json_object_update_new(e, json_pack("{s:f, s:f}", "times_cpu", all_ms[BENCH_JOB_CPU] / ms,
                                            "cpu_time_over_cpu",
                                            j->cpu_s[way] / (j->cpu_s[BENCH_JOB_CPU] + 1e-9)));
    if (way == BENCH_JOB_DEVICE && all_ms[BENCH_JOB_ONE] > 0)
        json_object_set_new(e, "over_one_by_one", json_real(ms / all_ms[BENCH_JOB_ONE]));
    return e;
}

/* Writes "M, 2000 clips", and what differs from the defaults. */
static void
name_work(const struct job_bench *j, char *text, size_t size)
{
    const struct tool_options *o = j->b.o;
    const struct tool_clip_shape shape = job_clip_shape(o);
    char base[100];
    FILE *f = fmemopen(text, size, "w");
    *text = 0;
    if (!f)
        return;
    fprintf(f, "%s, %zu clips", bench_base_name(o->model, base, sizeof base), j->list.n);
    if (o->from)
        fprintf(f, " of %s", bench_base_name(o->from, base, sizeof base));
    else if (!o->list && o->frames)
        fprintf(f, " of %d frames %dx%d", shape.frames, shape.width, shape.height);
    else if (!o->list)
        fprintf(f, " of %g s %dx%d", job_repetitions(o) * (double)shape.frames / shape.fps,
                shape.width, shape.height);
    if (o->from && o->seconds > 0)
        fprintf(f, " repeated to %g s", o->seconds);
    if (j->devices.n > 1)
        fprintf(f, ", %zu devices", j->devices.n);
    if (by_gpu(j) && o->chunk_rows)
        fprintf(f, ", chunks of %lld", (long long)o->chunk_rows);
    if (by_gpu(j))
        fprintf(f, ", by %s", o->clip.decode == QV_DECODE_AUTO ? "auto" : "the GPU");
    fclose(f);
}

static qv_status
report(struct job_bench *j, enum bench_job_way way, const double *ms, struct bench_times times,
       qv_error *err)
{
    char work[400], note[80] = "";
    const struct bench_job_bounds bounds = bench_job_bounds_of(ms, way);
    name_work(j, work, sizeof work);
    if (bounds.sum_ms > 0)
        snprintf(note, sizeof note, "%.3f of the slowest, %.3f of their sum",
                 ms[way] / bounds.slowest_ms, ms[way] / bounds.sum_ms);
    if (way == BENCH_JOB_CPU || (way == BENCH_JOB_DISCARD && !*note))
        snprintf(note, sizeof note, "%.1f ms of the cores a clip",
                 1e3 * j->cpu_s[way] / (double)j->list.n);
    if (way == BENCH_JOB_DEVICE && ms[BENCH_JOB_ONE] > 0)
        snprintf(note, sizeof note, "%.3f of one by one", ms[BENCH_JOB_DEVICE] / ms[BENCH_JOB_ONE]);
    if (way == BENCH_JOB_DEVICES && ms[BENCH_JOB_DEVICE] > 0)
        snprintf(note, sizeof note, "%.3f times one device", ms[BENCH_JOB_DEVICE] / ms[way]);
    if (bench_talks(&j->b))
        tool_print("  %-22s %11.1f %11.1f %9.1f  %s\n", bench_job_ways[way].label, times.median_ms,
                   times.p90_ms, 1e3 * (double)j->list.n / ms[way], note);
    const struct bench_record r = { .work = work,
                                    .way = bench_job_ways[way].name,
                                    .dtype = j->m.dtype,
                                    .times = times,
                                    .extras = extras_of(j, way, ms, &bounds) };
    return bench_emit(&j->b, &r, err);
}

/* Reads --ways into asked[BENCH_JOB_WAYS]. Without it (NULL) all are asked for. */
static qv_status
read_ways(const char *list, bool *asked, qv_error *err)
{
    char names[200] = "";
    for (int way = 0; way < BENCH_JOB_WAYS; way++) {
        asked[way] = !list;
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", way ? ", " : "",
                 bench_job_ways[way].name);
    }
    for (const char *at = list; at && *at;) {
        const size_t n = strcspn(at, ",");
        int way = 0;
        while (way < BENCH_JOB_WAYS && (strlen(bench_job_ways[way].name) != n ||
                                        strncmp(at, bench_job_ways[way].name, n) != 0))
            way++;
        if (way == BENCH_JOB_WAYS)
            return qv_fail(err, QV_EINVAL, "bench job: --ways %s: there is no way \"%.*s\"; %s",
                           list, (int)n, at, names);
        asked[way] = true;
        at += n + (at[n] == ',');
    }
    return QV_OK;
}

/* Returns whether a way can be timed here. */
static bool
can_be_timed(const struct job_bench *j, int way)
{
    if (way == BENCH_JOB_GPU || way == BENCH_JOB_CPU)
        return by_gpu(j);
    if (way == BENCH_JOB_ENCODE ||
        way == BENCH_JOB_CACHE) /* auto has the CPU decode what is kept, */
        return !by_gpu(j) || j->o.clip.decode != QV_DECODE_AUTO; /* unlike what is timed alone */
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
        const qv_status s = bench_time(&j->b, runs, n, err);
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
    qv_status s = open_all(j, err);
    int n = 0;
    for (int way = 0; way < BENCH_JOB_WAYS && !s; way++)
        if (j->asked[way] && can_be_timed(j, way))
            ways[n++] = (struct job_way){ j, (enum bench_job_way)way };
    if (!s && !n)
        s = qv_fail(err, QV_EINVAL, "bench job: --ways %s: there is nothing to time on %zu devices",
                    j->b.o->ways, j->devices.n);
    if (!s)
        s = time_until_right(j, ways, n, runs, ms, err);
    if (s)
        return s;
    if (bench_talks(&j->b))
        tool_print("%zu clips, %lld patches, %.3f GB of tokens on %s: %s\n  %-22s %11s %11s %9s\n",
                   j->list.n, (long long)j->patches, (double)j->bytes / 1e9, j->b.info.backend,
                   j->b.info.device, "", "median ms", "p90 ms", "clips/s");
    for (int i = 0; i < n && !s; i++)
        s = report(j, ways[i].way, ms, runs[i].times, err);
    return s;
}

qv_status
bench_job(const struct tool_options *o, qv_error *err)
{
    struct job_bench j = { .b = { .o = o, .name = "job" }, .lock = PTHREAD_MUTEX_INITIALIZER };
    if (o->frames > MOST_FRAMES || o->size[0] > MOST_SIDE || o->size[1] > MOST_SIDE)
        return qv_fail(err, QV_EINVAL, "bench job: clips of at most %d frames of %dx%d are made",
                       MOST_FRAMES, MOST_SIDE, MOST_SIDE);
    qv_status s = read_ways(o->ways, j.asked, err);
    if (!s)
        s = run_all(&j, err);
    close_all(&j);
    return s;
}
