/* SPDX-License-Identifier: MIT */
/*
 * qwenvit bench tower: a clip of --grid, or the items of --pack as a job packs them into chunks. It
 * times the chunks' work on the device, its limit and floor (limit.c), and the same chunks as
 * callers see them, one by one and in a stream. All of these run alternately, so that their ratios
 * mean something even on a disturbed machine.
 */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "error.h"
#include "grow.h"
#include "model/feeder_inside.h"
#include "model/items.h"

/* How often to stream a single chunk: until this many patches are done, within bounds. */
enum { STREAMED_PATCHES = 1 << 16, LEAST_STREAMED = 3, MOST_STREAMED = 8 };

struct tower_bench {
    struct bench *b;
    qv_model *model;
    qv_model_info m;
    qv_plan *plan;
    qv_plan_info info;
    qv_item *items;             /* clips and images, which share their pixels */
    struct bench_chunk *chunks; /* [n_chunks], with items of their own */
    size_t n_items, item_room, n_chunks, chunk_room;
    int64_t rows, most; /* patches of all items, of the largest one */
    double flops;
    void *pixels, *room; /* memory of qv_host_alloc: pixels of the largest item; a chunk's tokens */
    qv_tokens tokens;
    struct bench_limit limit;
};

/* ---- items and chunks ------------------------------------------------------------------------ */

static qv_status
add_item(struct tower_bench *t, const int64_t g[3], qv_error *err)
{
    qv_item *items = qv_grown(t->items, t->n_items, &t->item_room, sizeof *items);
    if (!items)
        return qv_fail(err, QV_ENOMEM, "no memory for a list of grids");
    t->items = items;
    t->items[t->n_items++] = (qv_item){ .grid_thw = { g[0], g[1], g[2] } };
    const qv_status status = qv_item_check_grid(&t->model->config, g, "an item", err);
    if (status)
        return status;
    const int64_t rows = g[0] * g[1] * g[2];
    t->rows += rows;
    t->most = rows > t->most ? rows : t->most;
    return QV_OK;
}

/* Reads a line "t,h,w". */
static qv_status
read_grid(void *user, char *line, qv_error *err)
{
    struct tower_bench *t = user;
    int64_t g[3];
    if (!tool_parse_integers(line, g, 3, ',', INT64_MIN))
        return qv_fail(err, QV_EINVAL, "\"%.60s\" is not of the form t,h,w", line);
    const qv_status status = add_item(t, g, err);
    if (status)
        return status;
    const qv_capacity pair = qv_capacity_of(&t->model->config, (int64_t[3]){ 1, g[1], g[2] });
    return qv_capacity_fits(&t->info.capacity, &pair)
               ? QV_OK
               : qv_fail(err, QV_EINVAL,
                         "%lld patches per frame pair; a chunk has room for %lld (--chunk-rows)",
                         (long long)pair.patches, (long long)t->info.capacity.patches);
}

static qv_status
open_pixels(struct tower_bench *t, qv_error *err)
{
    const size_t bytes = (size_t)(t->most * t->m.row_dim);
    const qv_status status = qv_host_alloc(t->b->ctx, bytes, &t->pixels, err);
    if (status)
        return status;
    bench_fill(t->pixels, QV_U8, bytes);
    for (size_t i = 0; i < t->n_items; i++)
        t->items[i].data = t->pixels;
    return QV_OK;
}

/* Adds a chunk that a feeder packed, and counts its size into *most. */
static qv_status
add_chunk(struct tower_bench *t, const qv_feeder_chunk *packed, qv_capacity *most, qv_error *err)
{
    struct bench_chunk *chunks = qv_grown(t->chunks, t->n_chunks, &t->chunk_room, sizeof *chunks);
    t->chunks = chunks ? chunks : t->chunks;
    qv_item *items = chunks ? malloc(packed->n * sizeof *items) : NULL;
    if (!items)
        return qv_fail(err, QV_ENOMEM, "no memory for a chunk of %zu items", packed->n);
    t->chunks[t->n_chunks++] = (struct bench_chunk){ items, packed->n };
    qv_capacity used = { 0 };
    for (size_t i = 0; i < packed->n; i++) {
        items[i] = packed->pieces[i].item;
        const qv_capacity size = qv_capacity_of(&t->model->config, items[i].grid_thw);
        qv_capacity_count(&used, 1, &size);
    }
    most->patches = used.patches > most->patches ? used.patches : most->patches;
    most->segments = used.segments > most->segments ? used.segments : most->segments;
    most->windows = used.windows > most->windows ? used.windows : most->windows;
    return QV_OK;
}

/* Lets a feeder cut and pack the items, as in a job. Sets *most to the room that any chunk needs.
 * */
static qv_status
pack(struct tower_bench *t, qv_capacity *most, qv_error *err)
{
    const qv_plan_options options = { .capacity = t->info.capacity };
    const qv_feeder_chunk *chunk;
    double never = 0;
    qv_feeder *f = NULL;
    qv_status status = qv_feeder_open_call(t->model, &options, false, &f, err);
    for (size_t i = 0; i < t->n_items && !status; i++) {
        qv_feed *feed = NULL;
        status = qv_feeder_add(f, QV_INPUT_FRAMES, &t->items[i], "an item", NULL, &feed, err);
        if (!status)
            status = qv_feeder_put(f, feed, NULL, NULL, err);
    }
    while (!status && (chunk = qv_feeder_ready(f, 0, 0, false, &never)) != NULL) {
        status = add_chunk(t, chunk, most, err);
        qv_feeder_pass(f, 0);
    }
    qv_feeder_close(&f);
    return status;
}

/* ---- opening --------------------------------------------------------------------------------- */

static qv_status
make_plan(struct tower_bench *t, qv_capacity capacity, qv_error *err)
{
    const qv_plan_options options = { .output = t->m.dtype, .capacity = capacity };
    qv_plan_free(&t->plan);
    const qv_status status = qv_plan_create(t->model, &options, &t->plan, err);
    if (!status)
        qv_plan_get_info(t->plan, &t->info);
    return status;
}

/* Sets the capacity for the whole clip, or for the frame pairs that --chunk-rows has room for. */
static qv_status
add_clip(struct tower_bench *t, const struct tool_options *o, qv_capacity *capacity, qv_error *err)
{
    const qv_status status = add_item(t, o->grid, err);
    if (status)
        return status;
    const int64_t pair = o->grid[1] * o->grid[2], fit = o->chunk_rows / pair;
    const int64_t pairs = o->chunk_rows && fit < o->grid[0] ? fit : o->grid[0];
    *capacity = (qv_capacity){ .patches = (pairs < 1 ? 1 : pairs) * pair, .segment_rows = pair };
    return QV_OK;
}

/* Opens one plan for all chunks; for a list, the plan that a job would use for the chunk that needs
 * most. */
static qv_status
open_chunks(struct tower_bench *t, const struct tool_options *o, qv_error *err)
{
    qv_capacity capacity = { .patches = o->chunk_rows }, most = { 0 };
    qv_status status = o->pack ? QV_OK : add_clip(t, o, &capacity, err);
    if (!status)
        status = make_plan(t, capacity, err);
    if (!status && o->pack)
        status = bench_each_line(t->b, o->pack, NULL, read_grid, t, err);
    if (!status && !t->n_items)
        status = qv_fail(err, QV_EFORMAT, "%s: contains no grids", o->pack);
    if (!status)
        status = open_pixels(t, err);
    if (!status)
        status = pack(t, &most, err);
    return status || !o->pack
               ? status
               : make_plan(t, qv_chunk_capacity(t->model, &t->info.capacity, &most, true, 0), err);
}

static qv_status
open_all(struct tower_bench *t, const struct tool_options *o, qv_error *err)
{
    qv_status status = bench_open_model(t->b, &t->model, &t->m, err);
    if (!status)
        status = open_chunks(t, o, err);
    const size_t tokens = (size_t)(t->info.tokens * t->m.out_hidden) * sizeof(float);
    if (!status)
        status = qv_host_alloc(t->b->ctx, tokens * (size_t)(1 + t->m.n_deepstack), &t->room, err);
    t->tokens = (qv_tokens){ .tokens = t->room, .capacity = t->info.tokens };
    for (int i = 0; i < t->m.n_deepstack && !status; i++)
        t->tokens.deepstack[i] = (char *)t->room + (size_t)(1 + i) * tokens;
    for (size_t i = 0; i < t->n_chunks && !status; i++)
        t->flops += qv_plan_flops(t->plan, NULL, t->chunks[i].items, t->chunks[i].n);
    return status || o->no_limit
               ? status
               : bench_limit_open(t->b->ctx, t->plan, t->chunks, t->n_chunks, &t->limit, err);
}

static void
close_all(struct tower_bench *t)
{
    bench_limit_close(&t->limit);
    for (size_t i = 0; i < t->n_chunks; i++)
        free((void *)(uintptr_t)t->chunks[i].items);
    free(t->chunks);
    free(t->items);
    if (t->b->ctx) {
        qv_host_free(t->b->ctx, t->pixels);
        qv_host_free(t->b->ctx, t->room);
    }
    qv_plan_free(&t->plan);
    qv_model_free(&t->model);
}

/* ---- running --------------------------------------------------------------------------------- */

/* One way to run all chunks. */
struct way {
    struct tower_bench *t;
    qv_plan *plan;
    size_t passes, ahead; /* passes over the chunks, and chunks ahead; 0: each chunk's work alone */
};

/* Runs each chunk a second time, by itself; its first run, by the push, keeps the device busy while
 * the second one is launched. *ms becomes the sum of the second runs, by the device's clock. */
static qv_status
work(void *user, double *ms, qv_error *err)
{
    const struct way *way = user;
    struct tower_bench *t = way->t;
    qv_status status = QV_OK;
    *ms = 0;
    for (size_t i = 0; i < t->n_chunks && !status; i++) {
        double chunk_ms = 0;
        status = qv_plan_push(way->plan, t->chunks[i].items, t->chunks[i].n, err);
        if (!status)
            status = qv_plan_work(way->plan, err);
        if (!status)
            status = bench_elapsed(t->b->ctx, &chunk_ms, err);
        if (!status)
            status = qv_plan_pull(way->plan, &t->tokens, err);
        *ms += chunk_ms;
    }
    return status;
}

/* Pushes and pulls all chunks, `ahead` at a time. *ms becomes the time of one pass, by the host's
 * clock. Once --budget is spent, no further pass begins and no time is reported: with fewer passes
 * the first chunk, which overlaps nothing, would weigh too much. */
static qv_status
go_through(void *user, double *ms, qv_error *err)
{
    const struct way *way = user;
    struct tower_bench *t = way->t;
    size_t n = way->passes * t->n_chunks;
    const double began_s = qv_seconds();
    qv_status status = QV_OK;
    for (size_t pushed = 0, pulled = 0; pulled < n && !status;)
        if (pushed < n && pushed - pulled < way->ahead) {
            const struct bench_chunk *chunk = &t->chunks[pushed++ % t->n_chunks];
            status = qv_plan_push(way->plan, chunk->items, chunk->n, err);
        } else {
            status = qv_plan_pull(way->plan, &t->tokens, err);
            pulled++;
            n = way->passes > 1 && bench_is_spent(t->b) ? pushed : n; /* a chunk is a pass */
        }
    *ms = n < way->passes * t->n_chunks ? INFINITY
                                        : 1e3 * (qv_seconds() - began_s) / (double)way->passes;
    return status;
}

/* ---- reporting ------------------------------------------------------------------------------- */

enum { ENCODE, CALL, STREAM, LIMIT, N_RUNS = LIMIT + BENCH_LIMIT_RUNS };

static json_t *
shape_json(const struct tower_bench *t)
{
    char base[100];
    json_t *j = tool_json("patches:I chunks:I", t->rows, t->n_chunks);
    if (t->b->o->pack)
        tool_json_add(&j, "list:t items:I", bench_base_name(t->b->o->pack, base, sizeof base),
                      t->n_items);
    else
        tool_json_add(&j, "grid_thw:o", tool_json_grid(t->b->o->grid));
    return j;
}

static json_t *
encode_json(const struct tower_bench *t, double ms)
{
    const qv_plan_info *p = &t->info;
    const double area = (double)(t->m.merge_size * t->m.merge_size);
    json_t *j = shape_json(t);
    tool_json_add(&j, "capacity:I fill:f tokens_per_s:f arena_bytes:I weight_bytes:I",
                  p->capacity.patches,
                  (double)t->rows / ((double)t->n_chunks * (double)p->capacity.patches),
                  (double)t->rows / area / ms * 1e3, p->arena_bytes, p->weight_bytes);
    return j;
}

static qv_status
report(struct tower_bench *t, const struct bench_run *runs, qv_error *err)
{
    static const char *const calls[][2] = {
        [CALL] = { "whole call", "packed call" }, [STREAM] = { "streamed", "packed streamed" }
    };
    const bool packed = t->b->o->pack != NULL;
    const double ms = runs[ENCODE].times.median_ms;
    char base[100], name[200];
    snprintf(name, sizeof name, "%s %lld patches%s",
             bench_base_name(t->b->o->model, base, sizeof base), (long long)t->rows,
             packed ? " packed" : "");
    struct bench_record r = { .work = name,
                              .way = packed ? "packed" : "encode",
                              .dtype = t->m.dtype,
                              .times = runs[ENCODE].times,
                              .flops = t->flops,
                              .bytes = (double)t->n_chunks * t->info.bytes,
                              .show = "over_limit over_floor chunks fill",
                              .extras = encode_json(t, ms) };
    const struct bench_bounds bounds = bench_limit_bounds(t->b, &t->limit, &runs[LIMIT]);
    const bool limited = bounds.limit.repeats > 0;
    if (limited)
        bench_put_bounds(r.extras, &bounds, ms);
    qv_status status = bench_report(t->b, &r, err);
    for (int i = CALL; i <= STREAM && runs[i].times.repeats && !status; i++) {
        r.way = calls[i][packed];
        r.times = runs[i].times;
        r.show = "over_encode us_per_patch";
        r.extras = shape_json(t);
        tool_json_add(&r.extras, "over_encode:f us_per_patch:f", r.times.median_ms / ms,
                      r.times.median_ms * 1e3 / (double)t->rows);
        status = bench_report(t->b, &r, err);
    }
    if (status || !limited)
        return status;
    r.extras = shape_json(t);
    return bench_report_bounds(t->b, &t->limit, &bounds, packed ? "packed " : "", r, err);
}

static int
times_streamed(const struct tower_bench *t)
{
    const int64_t enough = t->rows ? STREAMED_PATCHES / t->rows : 0;
    if (t->n_chunks != 1 || enough < LEAST_STREAMED)
        return t->n_chunks == 1 ? LEAST_STREAMED : 1;
    return (int)(enough < MOST_STREAMED ? enough : MOST_STREAMED);
}

qv_status
bench_tower(struct bench *b, qv_error *err)
{
    struct tower_bench t = { .b = b };
    qv_status status = open_all(&t, b->o, err);
    struct way ways[N_RUNS] = {
        [ENCODE] = { &t, t.plan, 0, 0 },
        [CALL] = { &t, t.plan, 1, 1 },
        [STREAM] = { &t, t.plan, times_streamed(&t), (size_t)t.info.chunks_ahead },
    };
    struct bench_run runs[N_RUNS] = { { .work = work, .user = &ways[ENCODE] },
                                      { .work = go_through, .user = &ways[CALL] },
                                      { .work = go_through, .user = &ways[STREAM] } };
    if (!status)
        status = bench_begin(b, t.m.dtype, err);
    if (!b->o->no_limit)
        bench_limit_runs(&t.limit, &runs[LIMIT]);
    if (!status)
        status = bench_time(b, runs, N_RUNS, err);
    if (!status)
        status = report(&t, runs, err);
    close_all(&t);
    return status;
}
