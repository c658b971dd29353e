/* SPDX-License-Identifier: MIT */
/*
 * qwenvit bench tower --pack FILE: clips and images of many grids, packed into chunks as a job
 * packs them, compared with the limit of those chunks. With --alone each is run by itself instead:
 * by the plan that suits it, compared with a dense plan of exactly its size.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "error.h"
#include "model/feeder.h"
#include "model/items.h"

/* A plan for one item by itself, which is run in pieces of `pairs` frame pairs. */
struct lone {
    struct pack_bench *p;
    qv_plan *plan;
    qv_plan_info info;
    qv_item item;
    int64_t pairs;
    double new_ms, seen_ms;
};

struct pack_bench {
    struct bench b;
    char name[100]; /* the model's */
    qv_model *model;
    qv_model_info m;
    qv_plan *plan;
    qv_plan_info info;
    qv_item *items; /* [n_items], in the order of the file */
    size_t n_items;
    struct bench_chunk *chunks; /* [n_chunks], with items of their own */
    size_t n_chunks;
    int64_t rows;        /* patches of all items */
    int64_t least, most; /* patches of the smallest and of the largest item */
    double flops;
    uint8_t *frames; /* pixels for the largest item, which all items share */
    qv_tokens tokens;
    struct bench_limit limit;
    struct bench_run runs[1 + BENCH_LIMIT_RUNS]; /* of the chunks, and of their limit */
    double new_ms, seen_ms;                      /* the time to make the plan */
    struct {
        double p90_ms, ms, exact_ms, ratio, new_ms, seen_ms, flops, bytes;
        size_t n_new; /* how many capacities were new */
    } sum;            /* over items run alone */
};

static void
close_all(struct pack_bench *p)
{
    bench_limit_close(p->b.ctx, &p->limit);
    for (size_t i = 0; i < p->n_chunks; i++)
        free((void *)(uintptr_t)p->chunks[i].items);
    free(p->chunks);
    free(p->items);
    free(p->frames);
    free(p->tokens.tokens);
    qv_plan_free(&p->plan);
    qv_model_free(&p->model);
    bench_close(&p->b);
}

static int64_t
rows_of(const qv_item *item)
{
    return item->grid_thw[0] * item->grid_thw[1] * item->grid_thw[2];
}

/* ---- making ---------------------------------------------------------------------------------- */

/* Reads a line "t,h,w". */
static qv_status
read_grid(void *user, char *line, qv_error *err)
{
    struct pack_bench *p = user;
    qv_item item = { 0 }, *items = realloc(p->items, (p->n_items + 1) * sizeof *items);
    if (!items)
        return qv_fail(err, QV_ENOMEM, "no memory for a list of grids");
    p->items = items;
    char *at = line, *end = line;
    for (int i = 0; i < 3; i++, at = end + 1) {
        errno = 0;
        item.grid_thw[i] = strtoll(at, &end, 10);
        if (end == at || errno || (i < 2 && *end != ','))
            return qv_fail(err, QV_EINVAL, "\"%.60s\" is not of the form t,h,w", line);
    }
    if (end[strspn(end, " \t")])
        return qv_fail(err, QV_EINVAL, "\"%.60s\" is not of the form t,h,w", line);
    qv_status status = qv_item_check_grid(p->model, item.grid_thw, "an item", err);
    if (status)
        return status;
    const qv_capacity pair =
        qv_capacity_of(&p->model->config, (int64_t[3]){ 1, item.grid_thw[1], item.grid_thw[2] });
    if (!p->b.o->alone && !qv_capacity_fits(&p->info.capacity, &pair))
        return qv_fail(err, QV_EINVAL,
                       "%lld patches of a frame pair; a chunk takes %lld (--chunk-rows)",
                       (long long)pair.patches, (long long)p->info.capacity.patches);
    p->items[p->n_items++] = item;
    const int64_t rows = rows_of(&item);
    p->rows += rows;
    p->least = p->n_items == 1 || rows < p->least ? rows : p->least;
    p->most = rows > p->most ? rows : p->most;
    return QV_OK;
}

static qv_status
open_data(struct pack_bench *p, qv_error *err)
{
    size_t bytes = (size_t)(p->most * p->m.row_dim);
    p->tokens.capacity = p->most > p->info.capacity.patches ? p->most : p->info.capacity.patches;
    p->frames = malloc(bytes);
    p->tokens.tokens = malloc((size_t)(p->tokens.capacity * p->m.out_hidden) * sizeof(float));
    if (!p->frames || !p->tokens.tokens)
        return qv_fail(err, QV_ENOMEM, "no memory for frames of %zu bytes and their tokens", bytes);
    bench_fill(p->frames, QV_U8, bytes);
    for (size_t i = 0; i < p->n_items; i++)
        p->items[i].data = p->frames;
    return QV_OK;
}

static void
count_most(const struct pack_bench *p, const struct bench_chunk *chunk, qv_capacity *most)
{
    qv_capacity used = { 0 };
    for (size_t i = 0; i < chunk->n; i++) {
        const qv_capacity size = qv_capacity_of(&p->model->config, chunk->items[i].grid_thw);
        qv_capacity_count(&used, &size, 1);
    }
    most->patches = used.patches > most->patches ? used.patches : most->patches;
    most->segments = used.segments > most->segments ? used.segments : most->segments;
    most->windows = used.windows > most->windows ? used.windows : most->windows;
}

static qv_status
add_chunk(struct pack_bench *p, const qv_feeder_chunk *from, qv_capacity *most, qv_error *err)
{
    struct bench_chunk *chunks = realloc(p->chunks, (p->n_chunks + 1) * sizeof *chunks);
    if (chunks)
        p->chunks = chunks;
    qv_item *items = chunks ? malloc(from->n * sizeof *items) : NULL;
    if (!items)
        return qv_fail(err, QV_ENOMEM, "no memory for %zu chunks", p->n_chunks + 1);
    for (size_t i = 0; i < from->n; i++)
        items[i] = from->pieces[i].item;
    struct bench_chunk *chunk = &p->chunks[p->n_chunks++];
    *chunk = (struct bench_chunk){ items, from->n };
    p->flops += qv_plan_flops(p->plan, NULL, chunk->items, chunk->n);
    count_most(p, chunk, most);
    return QV_OK;
}

/* Has a feeder pack, as a job does: the best frame pairs of those that wait go into each chunk.
 * *most is what all chunks need room for. */
static qv_status
pack(struct pack_bench *p, qv_capacity *most, qv_error *err)
{
    const qv_plan_options options = { .capacity = p->info.capacity };
    const qv_feeder_chunk *chunk;
    qv_feeder *f = NULL;
    double never = 0;
    qv_status status = qv_feeder_open_call(p->model, &options, false, &f, err);
    for (size_t i = 0; i < p->n_items && !status; i++) {
        qv_feed *feed = NULL;
        status = qv_feeder_add(f, QV_INPUT_FRAMES, &p->items[i], "an item", NULL, &feed, err);
        if (!status)
            status = qv_feeder_put(f, feed, NULL, NULL, 0, err);
    }
    while (!status && (chunk = qv_feeder_ready(f, 0, 0, QV_FEEDER_NOTHING, &never)) != NULL) {
        status = add_chunk(p, chunk, most, err);
        qv_feeder_pass(f, 0);
    }
    qv_feeder_close(&f);
    return status;
}

static qv_status
open_all(struct pack_bench *p, const struct tool_options *o, qv_error *err)
{
    qv_plan_options capacity = { .capacity.patches = o->chunk_rows };
    bench_base_name(o->model, p->name, sizeof p->name);
    qv_status status = bench_open_model(&p->b, o, "tower", &p->model, &p->m, err);
    if (!status)
        status = bench_make_plan(p->model, &capacity, &p->plan, &p->new_ms, &p->seen_ms, err);
    if (status)
        return status;
    qv_plan_get_info(p->plan, &p->info);
    status = bench_each_line(&p->b, o->pack, NULL, read_grid, p, err);
    if (!status && !p->n_items)
        status = qv_fail(err, QV_EFORMAT, "%s: there is no grid in it", o->pack);
    if (!status)
        status = open_data(p, err);
    if (status || o->alone)
        return status;
    struct qv_capacity most = { 0 };
    status = pack(p, &most, err);
    if (!status) { /* one plan for all, as a job has it for the chunk that asks for most */
        capacity.capacity = qv_chunk_capacity(p->model, &p->info.capacity, &most, true, 0);
        qv_plan_free(&p->plan);
        status = qv_plan_create(p->model, &capacity, &p->plan, err);
    }
    if (!status)
        qv_plan_get_info(p->plan, &p->info);
    return status || o->no_limit
               ? status
               : bench_limit_open(p->b.ctx, p->plan, p->chunks, p->n_chunks, &p->limit, err);
}

/* ---- packed ---------------------------------------------------------------------------------- */

static qv_status
run_chunks(void *user, double *ms, qv_error *err)
{
    struct pack_bench *p = user;
    qv_status status = QV_OK;
    *ms = 0;
    for (size_t i = 0; i < p->n_chunks && !status; i++) {
        double chunk_ms = 0;
        status = bench_run_chunk(p->plan, p->chunks[i].items, p->chunks[i].n, &p->tokens, &chunk_ms,
                                 err);
        *ms += chunk_ms;
    }
    return status;
}

static json_t *
pack_json(const struct pack_bench *p)
{
    const double ms = p->runs[0].times.median_ms;
    const int64_t tokens = p->rows / (p->m.merge_size * p->m.merge_size);
    char base[100];
    return json_pack("{s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f}", "list",
                     tool_json_text(bench_base_name(p->b.o->pack, base, sizeof base)), "items",
                     (json_int_t)p->n_items, "patches", (json_int_t)p->rows, "least_patches",
                     (json_int_t)p->least, "most_patches", (json_int_t)p->most, "chunks",
                     (json_int_t)p->n_chunks, "capacity", (json_int_t)p->info.capacity.patches,
                     "capacity_segments", (json_int_t)p->info.capacity.segments, "fill",
                     (double)p->rows / (double)((int64_t)p->n_chunks * p->info.capacity.patches),
                     "tokens_per_s", (double)tokens / ms * 1e3, "plan_new_ms", p->new_ms,
                     "plan_seen_ms", p->seen_ms);
}

static void
print_pack(const struct pack_bench *p, const struct bench_bounds *bounds)
{
    const double ms = p->runs[0].times.median_ms;
    const int64_t tokens = p->rows / (p->m.merge_size * p->m.merge_size);
    tool_print(
        "\n  packed       %zu items, %lld patches, in %zu chunks of %lld (%lld segments), %.1f%% "
        "full; %.0f tokens/s\n",
        p->n_items, (long long)p->rows, p->n_chunks, (long long)p->info.capacity.patches,
        (long long)p->info.capacity.segments,
        100.0 * (double)p->rows / (double)((int64_t)p->n_chunks * p->info.capacity.patches),
        (double)tokens / ms * 1e3);
    if (!p->b.o->no_limit)
        bench_print_bounds(bounds, ms);
    tool_print("  plan         %.2f ms for a new capacity, %.3f ms for a seen one\n", p->new_ms,
               p->seen_ms);
}

static qv_status
run_packed(struct pack_bench *p, qv_error *err)
{
    char work[160];
    int n = 1 + (p->b.o->no_limit ? 0 : bench_limit_runs(&p->limit, &p->runs[1]));
    p->runs[0] = (struct bench_run){ .work = run_chunks, .user = p };
    qv_status status = bench_time(&p->b, p->runs, n, err);
    if (status)
        return status;
    const double ms = p->runs[0].times.median_ms;
    struct bench_bounds bounds = { 0 };
    snprintf(work, sizeof work, "%s %lld patches packed", p->name, (long long)p->rows);
    struct bench_record r = { .work = work,
                              .way = "packed",
                              .dtype = p->m.dtype,
                              .times = p->runs[0].times,
                              .flops = p->flops,
                              .bytes = (double)p->n_chunks * p->info.bytes,
                              .extras = pack_json(p) };
    if (!p->b.o->no_limit) {
        bounds = bench_limit_bounds(&p->b, &p->limit, &p->runs[1]);
        json_object_update_new(r.extras, bench_bounds_json(&bounds, ms));
    }
    status = bench_report(&p->b, &r, err);
    if (!status && !p->b.o->no_limit) {
        r.extras = json_pack("{s:I}", "patches", (json_int_t)p->rows);
        status = bench_report_bounds(&p->b, &p->limit, &bounds, "packed ", r, err);
    }
    if (!status && bench_talks(&p->b))
        print_pack(p, &bounds);
    return status;
}

/* ---- alone ----------------------------------------------------------------------------------- */

static qv_status
open_lone(struct lone *l, const qv_plan_options *options, qv_error *err)
{
    const int64_t *g = l->item.grid_thw;
    const qv_capacity pair =
        qv_capacity_of(&l->p->model->config, (const int64_t[3]){ 1, g[1], g[2] });
    qv_status status =
        bench_make_plan(l->p->model, options, &l->plan, &l->new_ms, &l->seen_ms, err);
    if (status)
        return status;
    qv_plan_get_info(l->plan, &l->info);
    l->pairs = qv_capacity_fits(&l->info.capacity, &pair);
    return QV_OK;
}

static qv_status
run_lone(void *user, double *ms, qv_error *err)
{
    struct lone *l = user;
    qv_status status = QV_OK;
    *ms = 0;
    for (int64_t at = 0; at < l->item.grid_thw[0] && !status; at += l->pairs) {
        double chunk_ms = 0;
        const qv_item piece = qv_item_piece(l->p->model, QV_INPUT_FRAMES, &l->item, at, l->pairs);
        status = bench_run_chunk(l->plan, &piece, 1, &l->p->tokens, &chunk_ms, err);
        *ms += chunk_ms;
    }
    return status;
}

/* Returns whether an item before this one had the same capacity. */
static bool
was_seen(const struct pack_bench *p, size_t item)
{
    const struct qv_caps *caps = &p->model->ctx->caps;
    const struct qv_config *c = &p->model->config;
    const struct qv_capacity_bits bits = qv_model_bits(p->model);
    const qv_capacity own = qv_capacity_alone(caps, c, &bits, p->items[item].grid_thw);
    for (size_t i = 0; i < item; i++) {
        const qv_capacity before = qv_capacity_alone(caps, c, &bits, p->items[i].grid_thw);
        if (qv_capacity_equal(&before, &own))
            return true;
    }
    return false;
}

enum { DEFAULT, EXACT, N_LONE };

/* Adds one item to the sums. lone and runs are indexed by DEFAULT and EXACT. */
static void
add_lone(struct pack_bench *p, const struct lone *lone, const struct bench_run *runs,
         const struct bench_record *r, bool seen)
{
    p->sum.ms += r->times.median_ms;
    p->sum.p90_ms += r->times.p90_ms;
    p->sum.exact_ms += runs[EXACT].times.median_ms;
    p->sum.ratio += r->times.median_ms / runs[EXACT].times.median_ms;
    p->sum.seen_ms += lone[DEFAULT].seen_ms;
    p->sum.new_ms += seen ? 0 : lone[DEFAULT].new_ms;
    p->sum.n_new += !seen;
    p->sum.flops += r->flops;
    p->sum.bytes += r->bytes;
}

static qv_status
report_lone(struct pack_bench *p, const struct lone *lone, const struct bench_run *runs, bool seen,
            qv_error *err)
{
    const struct lone *l = &lone[DEFAULT];
    const int64_t *g = l->item.grid_thw, chunks = (g[0] + l->pairs - 1) / l->pairs;
    const double exact_ms = runs[EXACT].times.median_ms;
    const double ratio = runs[DEFAULT].times.median_ms / exact_ms;
    char group[160], work[200], label[60], note[80];
    snprintf(group, sizeof group, "%s alone", p->name);
    snprintf(label, sizeof label, "%lld,%lld,%lld", (long long)g[0], (long long)g[1],
             (long long)g[2]);
    snprintf(work, sizeof work, "%s %s alone", p->name, label);
    snprintf(note, sizeof note, "%.3f times exact; %lld chunk%s of %lld", ratio, (long long)chunks,
             chunks == 1 ? "" : "s", (long long)l->info.capacity.patches);
    struct bench_record r = { .work = work,
                              .way = "alone",
                              .group = group,
                              .label = label,
                              .dtype = p->m.dtype,
                              .times = runs[DEFAULT].times,
                              .flops = qv_plan_flops(l->plan, NULL, &l->item, 1),
                              .bytes = l->info.bytes * (double)chunks,
                              .note = note };
    r.extras =
        json_pack("{s:[I,I,I], s:I, s:I, s:I, s:f, s:f, s:f, s:f}", "grid_thw", (json_int_t)g[0],
                  (json_int_t)g[1], (json_int_t)g[2], "patches", (json_int_t)rows_of(&l->item),
                  "chunks", (json_int_t)chunks, "capacity", (json_int_t)l->info.capacity.patches,
                  "exact_ms", exact_ms, "over_exact", ratio, "plan_seen_ms", l->seen_ms,
                  "exact_plan_new_ms", lone[EXACT].new_ms);
    if (!seen)
        json_object_set_new(r.extras, "plan_new_ms", json_real(l->new_ms));
    add_lone(p, lone, runs, &r, seen);
    return bench_report(&p->b, &r, err);
}

/* Reports the sum of the times, and the means of the ratio and of the time to make plans. */
static qv_status
report_all_alone(struct pack_bench *p, int64_t repeats, qv_error *err)
{
    const double n = (double)p->n_items, ratio = p->sum.ratio / n;
    const double new_ms = p->sum.new_ms / (double)p->sum.n_new, seen_ms = p->sum.seen_ms / n;
    char group[160], work[160], note[80];
    snprintf(group, sizeof group, "%s alone", p->name);
    snprintf(work, sizeof work, "%s %lld patches alone", p->name, (long long)p->rows);
    snprintf(note, sizeof note, "%.3f times exact (mean)", ratio);
    struct bench_record r = {
        .work = work,
        .way = "all alone",
        .group = group,
        .label = "all",
        .dtype = p->m.dtype,
        .times = { p->sum.ms, p->sum.p90_ms, repeats },
        .flops = p->sum.flops,
        .bytes = p->sum.bytes,
        .note = note,
        .extras = json_pack("{s:I, s:I, s:f, s:f, s:f, s:I, s:f}", "items", (json_int_t)p->n_items,
                            "patches", (json_int_t)p->rows, "exact_ms", p->sum.exact_ms,
                            "over_exact", ratio, "plan_new_ms", new_ms, "capacities",
                            (json_int_t)p->sum.n_new, "plan_seen_ms", seen_ms)
    };
    qv_status status = bench_report(&p->b, &r, err);
    if (!status && bench_talks(&p->b))
        tool_print(
            "\n  plans        %.2f ms for a new capacity (mean of %zu), %.3f ms for a seen one\n",
            new_ms, p->sum.n_new, seen_ms);
    return status;
}

static qv_status
run_item(struct pack_bench *p, size_t item, int64_t *least_repeats, qv_error *err)
{
    struct lone lone[N_LONE] = { { .p = p, .item = p->items[item] },
                                 { .p = p, .item = p->items[item] } };
    struct bench_run runs[N_LONE] = { { .work = run_lone, .user = &lone[DEFAULT] },
                                      { .work = run_lone, .user = &lone[EXACT] } };
    const int64_t *g = p->items[item].grid_thw;
    const qv_plan_options options = { .grid_thw = { g[0], g[1], g[2] } };
    const qv_plan_options exact = { .capacity = { .patches = g[0] * g[1] * g[2],
                                                  .segment_rows = g[1] * g[2] } };
    qv_status status = open_lone(&lone[DEFAULT], &options, err);
    if (!status)
        status = open_lone(&lone[EXACT], &exact, err);
    if (!status)
        status = bench_time(&p->b, runs, N_LONE, err);
    if (!status)
        status = report_lone(p, lone, runs, was_seen(p, item), err);
    if (!item || runs[DEFAULT].times.repeats < *least_repeats)
        *least_repeats = runs[DEFAULT].times.repeats;
    for (int i = 0; i < N_LONE; i++)
        qv_plan_free(&lone[i].plan);
    return status;
}

static qv_status
run_alone(struct pack_bench *p, qv_error *err)
{
    qv_status status = QV_OK;
    int64_t repeats = 0;
    for (size_t i = 0; i < p->n_items && !status; i++)
        status = run_item(p, i, &repeats, err);
    return status ? status : report_all_alone(p, repeats, err);
}

qv_status
bench_tower_pack(const struct tool_options *o, qv_error *err)
{
    struct pack_bench p = { 0 };
    qv_status status = open_all(&p, o, err);
    if (!status)
        status = bench_begin(&p.b, p.m.dtype,
                             o->alone ? "alone: an item's work on the device, by the capacity that "
                                        "suits it and by a dense plan of its size"
                                      : "packed: the chunks' work on the device\nlimit: the same "
                                        "GEMMs, without epilogues, and attention over the same "
                                        "segments, each layer with its own weights",
                             err);
    if (!status)
        status = o->alone ? run_alone(&p, err) : run_packed(&p, err);
    close_all(&p);
    return status;
}
