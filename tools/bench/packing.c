/* SPDX-License-Identifier: MIT */
/*
 * qwenvit bench packing: frame pairs packed into chunks, as jobs do, compared with whole clips
 * packed, as qwenvit 0.2.0 did. It takes sets of pairs of one size and counts the device's own
 * time. Then it runs jobs of frames in memory: how full their chunks are, what a first job costs
 * more than a second, and one clip in a job over qv_encode.
 */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "clock.h"
#include "error.h"
#include "model/items.h"
#include "model/packer.h"
#include "qwenvit_job.h"

enum { SIZES = 25, LEAST_ROWS = 300, LEAST_MOST_ROWS = 4096, MOST_ITEMS = 2048, MOST_PAIRS = 16 };
enum { USUAL_CHUNK = 12288 }; /* of which sizes of jobs' clips are parts */
#define PAIRS_OF "pairs of "

struct set {
    qv_item items[MOST_ITEMS];
    size_t n;
    int64_t rows;
};

struct packing_bench {
    struct bench b;
    char name[100]; /* the model's */
    qv_model *model;
    qv_model_info m;
    int64_t chunk, most; /* patches of the device's chunk, and of the largest pair */
    uint8_t *frames;     /* pixels for the largest clip, which all clips share */
    qv_tokens tokens;
    struct set set;
};

/* The totals of some chunks. */
struct sum {
    double ms, plan_ms; /* plan_ms: of making plans, by the host's clock */
    int64_t rows, room, chunks;
    qv_capacity last; /* what the last chunk took */
    int64_t repeats;  /* as this many chunks before it did */
};

static void
close_all(struct packing_bench *p)
{
    free(p->frames);
    free(p->tokens.tokens);
    qv_model_free(&p->model);
    bench_close(&p->b);
}

static qv_status
open_all(struct packing_bench *p, const struct tool_options *o, qv_error *err)
{
    bench_base_name(o->model, p->name, sizeof p->name);
    qv_status status = bench_open(&p->b, o, "packing", err);
    if (!status)
        status = tool_load_model(o, p->b.ctx, o->model, false, &p->model, err);
    if (status)
        return status;
    qv_model_get_info(p->model, &p->m);
    p->chunk = qv_model_pack_rows(p->model, 0);
    p->most = p->chunk > LEAST_MOST_ROWS ? p->chunk : LEAST_MOST_ROWS;
    const int64_t rows = MOST_PAIRS * p->most;
    p->frames = malloc((size_t)(rows * p->m.row_dim));
    p->tokens.capacity = rows;
    p->tokens.tokens = malloc((size_t)(rows * p->m.out_hidden) * sizeof(uint16_t));
    if (!p->frames || !p->tokens.tokens)
        return qv_fail(err, QV_ENOMEM, "no memory for clips of %lld patches", (long long)rows);
    bench_fill(p->frames, QV_U8, (size_t)(rows * p->m.row_dim));
    return QV_OK;
}

/* ---- sets ------------------------------------------------------------------------------------ */

/* Makes a nearly square grid with so many patches a pair, or a few fewer. Returns the number. */
static int64_t
grid_of(const struct packing_bench *p, int64_t rows, int64_t grid_thw[3])
{
    const int64_t m = p->m.merge_size, side = (int64_t)sqrt((double)rows);
    grid_thw[1] = side >= m ? side / m * m : m;
    grid_thw[2] = rows / grid_thw[1] >= m ? rows / grid_thw[1] / m * m : m;
    return grid_thw[1] * grid_thw[2];
}

static void
add_clip(struct packing_bench *p, int64_t pairs, int64_t rows)
{
    struct set *set = &p->set;
    qv_item item = { .data = p->frames, .grid_thw = { pairs } };
    rows = grid_of(p, rows, item.grid_thw);
    if (set->n == MOST_ITEMS)
        return;
    set->items[set->n++] = item;
    set->rows += pairs * rows;
}

static void
empty(struct packing_bench *p)
{
    p->set.n = 0;
    p->set.rows = 0;
}

/* ---- chunks ---------------------------------------------------------------------------------- */

static qv_status
run_chunk(struct packing_bench *p, const qv_capacity *capacity, const qv_item *items, size_t n,
          struct sum *sum, qv_error *err)
{
    const qv_plan_options options = { .capacity = *capacity, .output = QV_BF16 };
    qv_plan *plan = NULL;
    qv_plan_info info;
    double ms = 0;
    const double began_s = qv_seconds();
    qv_status status = qv_plan_create(p->model, &options, &plan, err);
    if (status)
        return status;
    sum->plan_ms += 1e3 * (qv_seconds() - began_s);
    qv_plan_get_info(plan, &info);
    status = bench_run_chunk(plan, items, n, &p->tokens, &ms, err);
    qv_plan_free(&plan);
    sum->ms += ms;
    sum->room += info.capacity.rows;
    sum->chunks++;
    for (size_t i = 0; i < n; i++)
        sum->rows += items[i].grid_thw[0] * items[i].grid_thw[1] * items[i].grid_thw[2];
    return status;
}

/* Packs what waits into chunks of a capacity and runs them. whole: items are packed whole, each
 * as one "pair". */
static qv_status
run_packer(struct packing_bench *p, struct qv_packer *packer, const qv_capacity *chunk, bool whole,
           struct sum *sum, qv_error *err)
{
    struct qv_pack_piece pieces[QV_PACK_ITEMS];
    qv_item items[QV_PACK_ITEMS];
    struct qv_capacity used = { 0 };
    const size_t n = qv_packer_next(packer, chunk, pieces);
    const int64_t *first = p->set.items[pieces[0].item].grid_thw, pair_rows = first[1] * first[2];
    used.segment_rows = whole ? 0 : pair_rows;
    for (size_t i = 0; i < n; i++) {
        const qv_item *item = &p->set.items[pieces[i].item];
        items[i] =
            whole ? *item
                  : qv_item_piece(p->model, QV_INPUT_FRAMES, item, pieces[i].first, pieces[i].n);
        const qv_capacity size = qv_item_size(p->model, items[i].grid_thw);
        qv_capacity_count(&used, &size, 1);
        if (item->grid_thw[1] * item->grid_thw[2] != pair_rows)
            used.segment_rows = 0;
    }
    sum->repeats = qv_capacity_equal(&used, &sum->last) ? sum->repeats + 1 : 0;
    sum->last = used;
    const bool full = whole && !p->b.ctx->caps.quick_plans; /* 0.2.0 then used the whole capacity */
    const qv_capacity part =
        full ? *chunk : qv_pack_part(p->model, chunk, &used, packer->n > 0, sum->repeats);
    return run_chunk(p, &part, items, n, sum, err);
}

static qv_status
run_pairs(struct packing_bench *p, struct sum *sum, qv_error *err)
{
    struct set *set = &p->set;
    static bool gone[MOST_ITEMS];
    qv_status status = QV_OK;
    memset(gone, 0, sizeof gone);
    for (size_t first = 0; first < set->n && !status; first++) {
        const qv_capacity chunk = qv_pack_capacity(p->model, 0, set->items[first].grid_thw);
        struct qv_packer packer = { .n = 0 };
        for (size_t i = first; (i < set->n || packer.n) && !status;) {
            for (; i < set->n && packer.n < QV_PACK_ITEMS; i++) {
                const int64_t *g = set->items[i].grid_thw;
                const qv_capacity pair = qv_item_size(p->model, (int64_t[3]){ 1, g[1], g[2] });
                const qv_capacity own = qv_pack_capacity(p->model, 0, g);
                if (gone[i] || !qv_capacity_equal(&own, &chunk))
                    continue;
                gone[i] = qv_packer_add(&packer, i, &pair, g[0]);
            }
            if (packer.n)
                status = run_packer(p, &packer, &chunk, false, sum, err);
        }
    }
    return status;
}

/* Runs a clip that is larger than a chunk in dense chunks of its own. */
static qv_status
run_large(struct packing_bench *p, const qv_item *item, struct sum *sum, qv_error *err)
{
    static const struct qv_capacity_bits same;
    const qv_capacity dense =
        qv_capacity_alone(&p->b.ctx->caps, &p->model->config, &same, item->grid_thw);
    qv_status status = QV_OK;
    for (int64_t at = 0; at < item->grid_thw[0] && !status; at += dense.segments) {
        const qv_item piece = qv_item_piece(p->model, QV_INPUT_FRAMES, item, at, dense.segments);
        status = run_chunk(p, &dense, &piece, 1, sum, err);
    }
    return status;
}

static qv_status
run_clips(struct packing_bench *p, struct sum *sum, qv_error *err)
{
    struct qv_caps costly = p->b.ctx->caps;
    costly.free_segments = false;
    const struct qv_capacity most = qv_capacity_pack(&costly, &p->model->config, 0),
                             chunk = qv_capacity_pack(&p->b.ctx->caps, &p->model->config, 0);
    struct qv_packer packer = { .n = 0 };
    qv_status status = QV_OK;
    for (size_t i = 0; (i < p->set.n || packer.n) && !status;) {
        for (; i < p->set.n && packer.n < QV_PACK_ITEMS && !status; i++) {
            const qv_capacity size = qv_item_size(p->model, p->set.items[i].grid_thw);
            if (!qv_capacity_fits(&most, &size))
                status = run_large(p, &p->set.items[i], sum, err);
            else
                qv_packer_add(&packer, i, &size, 1);
        }
        if (packer.n && !status)
            status = run_packer(p, &packer, &chunk, true, sum, err);
    }
    return status;
}

/* ---- sets of one size ------------------------------------------------------------------------ */

static qv_status
emit(struct packing_bench *p, const char *way, double ms, json_t *extras, qv_error *err)
{
    char work[200];
    snprintf(work, sizeof work, "%s packing", p->name);
    const struct bench_record r = {
        .work = work, .way = way, .dtype = p->m.dtype, .times = { ms, ms, 1 }, .extras = extras
    };
    return bench_emit(&p->b, &r, err);
}

static double
fill_of(const struct sum *s)
{
    return (double)s->rows / ((double)s->room + 1e-9);
}

/* A set that is run in one of two ways, and what the last run came to. */
struct set_run {
    struct packing_bench *p;
    qv_status (*run)(struct packing_bench *p, struct sum *sum, qv_error *err);
    struct sum sum;
};

static qv_status
run_set(void *user, double *ms, qv_error *err)
{
    struct set_run *r = user;
    r->sum = (struct sum){ .ms = 0 };
    const qv_status status = r->run(r->p, &r->sum, err);
    *ms = r->sum.ms;
    return status;
}

/* Times a set by pairs and by clips. A device's own clock need not be read more than once; what the host's clock
 * says scatters. */
static qv_status
time_set(struct packing_bench *p, struct set_run sets[2], double ms[2], qv_error *err)
{
    struct bench_run runs[2] = { { .work = run_set, .user = &sets[0] },
                                 { .work = run_set, .user = &sets[1] } };
    qv_status status = QV_OK;
    if (p->b.ctx->caps.quick_plans)
        status = bench_time(&p->b, runs, 2, err);
    for (int i = 0; i < 2 && !status; i++) {
        ms[i] = runs[i].times.median_ms;
        if (!p->b.ctx->caps.quick_plans)
            status = run_set(&sets[i], &ms[i], err);
    }
    return status;
}

/* Runs clips of 1 to 16 pairs, as many as fill some chunks. */
static qv_status
run_size(struct packing_bench *p, int64_t rows, double *log_sum, qv_error *err)
{
    static const int64_t pairs[] = { 5, 1, 16, 2 };
    struct set_run sets[2] = { { .p = p, .run = run_pairs }, { .p = p, .run = run_clips } };
    const struct sum *s = &sets[0].sum, *clips = &sets[1].sum;
    double ms[2];
    char way[40];
    int64_t grid[3];
    empty(p);
    do
        for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
            add_clip(p, pairs[i], rows);
    while (p->set.rows < 6 * p->chunk && p->set.n < MOST_ITEMS);
    const qv_status status = time_set(p, sets, ms, err);
    if (status)
        return status;
    const double ratio = ms[0] / ms[1];
    rows = grid_of(p, rows, grid);
    *log_sum += log(ratio);
    if (bench_talks(&p->b))
        printf("  %6lld patches a pair: %10.2f ms, %10.2f by clips: %.3f; full %.3f, %.3f\n",
               (long long)rows, ms[0], ms[1], ratio, fill_of(s), fill_of(clips));
    snprintf(way, sizeof way, "pairs of %lld", (long long)rows);
    return emit(p, way, ms[0],
                json_pack("{s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f}", "pair_rows",
                          (json_int_t)rows, "patches", (json_int_t)p->set.rows, "chunks",
                          (json_int_t)s->chunks, "clips_chunks", (json_int_t)clips->chunks,
                          "clips_ms", ms[1], "over_clips", ratio, "fill", fill_of(s), "clips_fill",
                          fill_of(clips), "plan_ms", s->plan_ms, "clips_plan_ms", clips->plan_ms),
                err);
}

/* The N of a way of n characters that is "pairs of N"; 0: it is another. */
static int64_t
pair_rows_of(const char *way, size_t n)
{
    const size_t before = strlen(PAIRS_OF);
    if (n <= before || strncmp(way, PAIRS_OF, before) || way[before] < '0' || way[before] > '9')
        return 0;
    char *end;
    const int64_t rows = strtoll(way + before, &end, 10);
    return end == way + n ? rows : 0;
}

/* Runs sets of the sizes that --ways asks for, or of 25. */
static qv_status
run_sizes(struct packing_bench *p, qv_error *err)
{
    const char *ways = p->b.o->ways;
    double log_sum = 0;
    int n = 0;
    qv_status status = QV_OK;
    for (size_t length; ways && *ways && !status; ways += length + (ways[length] == ',')) {
        length = strcspn(ways, ",");
        const int64_t rows = pair_rows_of(ways, length);
        if (!rows)
            continue;
        status = run_size(p, rows, &log_sum, err);
        n++;
    }
    for (; !ways && n < SIZES && !status; n++) {
        const double step = pow((double)p->most / LEAST_ROWS, (double)n / (SIZES - 1));
        status = run_size(p, (int64_t)(LEAST_ROWS * step + 0.5), &log_sum, err);
    }
    if (status || !n)
        return status;
    const double mean = exp(log_sum / n);
    if (bench_talks(&p->b))
        printf("  geometric mean over clips: %.3f\n", mean);
    return emit(p, "all sizes", 0, json_pack("{s:f, s:i}", "over_clips", mean, "sizes", n), err);
}

/* ---- jobs ------------------------------------------------------------------------------------ */

/* A job's progress at its end, and the time of opening it, which the job's own clock leaves out. */
struct job_times {
    qv_job_progress progress;
    double open_ms;
};

static qv_status
run_job(struct packing_bench *p, struct job_times *times, qv_error *err)
{
    const qv_job_options options = { .output = QV_BF16, .decoders = 1, .queue = MOST_ITEMS };
    qv_job *job = NULL;
    const double began_s = qv_seconds();
    qv_status s = qv_job_open(&p->model, 1, &options, &job, err);
    times->open_ms = 1e3 * (qv_seconds() - began_s);
    if (s)
        return s;
    for (size_t i = 0; i < p->set.n && !s; i++) {
        char key[24];
        snprintf(key, sizeof key, "%zu", i);
        s = qv_job_add(job,
                       &(qv_job_source){
                           .key = key, .kind = QV_SOURCE_FRAMES, .item = p->set.items[i] },
                       err);
    }
    if (!s)
        s = qv_job_end(job, err);
    qv_job_get_progress(job, &times->progress);
    qv_job_close(&job);
    return s;
}

/* Returns how full all chunks are, except those that took what was left. */
static double
job_fill(const struct job_times *times)
{
    const qv_job_progress *g = &times->progress;
    return (double)(g->rows - g->rest_rows) /
           ((double)(g->capacity_rows - g->rest_capacity_rows) + 1e-9);
}

/* Runs 42 clips of seven sizes with so many frames through a first job and a second, and compares
 * their chunks' time with that of as many patches in full chunks of one size. The model is new. */
static qv_status
run_first(struct packing_bench *p, const char *way, int64_t frames, qv_error *err)
{
    static const double sizes[] = { 0.072, 0.097, 0.127, 0.166, 0.21, 0.253, 0.3 };
    struct job_times jobs[2] = { { .open_ms = 0 } };
    const qv_job_progress *first = &jobs[0].progress, *second = &jobs[1].progress;
    struct sum mixed = { .ms = 0 }, full = { .ms = 0 };
    for (int i = 0; i < 42; i++)
        add_clip(p, frames / 2, (int64_t)(sizes[i % 7] * (double)p->chunk));
    qv_status status = run_job(p, &jobs[0], err);
    if (!status)
        status = run_job(p, &jobs[1], err);
    if (!status)
        status = run_pairs(p, &mixed, err);
    const double ratio = first->elapsed_s / second->elapsed_s;
    empty(p);
    for (int i = 0; i < 12; i++)
        add_clip(p, 6, p->chunk / 6);
    if (!status)
        status = run_pairs(p, &full, err);
    if (status)
        return status;
    const double over = mixed.ms / (double)mixed.rows / (full.ms / (double)full.rows);
    if (bench_talks(&p->b))
        printf("  42 clips of 7 sizes: %.3f s, then %.3f: %.3f; device %.3f of full chunks, %.3f "
               "full\n",
               first->elapsed_s, second->elapsed_s, ratio, over, job_fill(&jobs[1]));
    return emit(p, way, 1e3 * second->elapsed_s,
                json_pack("{s:f, s:f, s:f, s:f, s:f, s:I}", "first_open_ms", jobs[0].open_ms,
                          "first_ms", 1e3 * first->elapsed_s, "first_over_second", ratio,
                          "device_over_full", over, "fill", job_fill(&jobs[1]), "chunks",
                          (json_int_t)second->chunks),
                err);
}

static qv_status
run_fill(struct packing_bench *p, const char *way, qv_error *err)
{
    struct job_times job;
    const qv_job_progress *g = &job.progress;
    qv_status status = run_job(p, &job, err);
    if (status)
        return status;
    if (bench_talks(&p->b))
        printf("  %s: %.3f full, %lld chunks\n", way, job_fill(&job), (long long)g->chunks);
    return emit(p, way, 1e3 * g->elapsed_s,
                json_pack("{s:f, s:I, s:I}", "fill", job_fill(&job), "patches",
                          (json_int_t)p->set.rows, "chunks", (json_int_t)g->chunks),
                err);
}

/* Pairs of many sizes, the largest of such a part of a chunk. */
static qv_status
run_small(struct packing_bench *p, const char *way, int64_t part, qv_error *err)
{
    uint32_t seed = 1;
    while (p->set.rows < 30 * p->chunk && p->set.n < MOST_ITEMS) {
        seed = seed * 1664525 + 1013904223;
        add_clip(p, 1 + (seed >> 28),
                 p->chunk / 48 + (seed >> 8) % (uint32_t)(p->chunk / part - p->chunk / 48));
    }
    return run_fill(p, way, err);
}

static qv_status
run_alike(struct packing_bench *p, const char *way, int64_t rows, qv_error *err)
{
    while (p->set.rows < 30 * p->chunk && p->set.n < MOST_ITEMS)
        add_clip(p, 10, p->chunk * rows / USUAL_CHUNK);
    return run_fill(p, way, err);
}

/* ---- one clip -------------------------------------------------------------------------------- */

static qv_status
job_once(void *user, double *ms, qv_error *err)
{
    struct job_times job = { .open_ms = 0 };
    const qv_status status = run_job(user, &job, err);
    *ms = 1e3 * job.progress.elapsed_s;
    return status;
}

static qv_status
encode_once(void *user, double *ms, qv_error *err)
{
    struct packing_bench *p = user;
    const qv_plan_options o = { .output = QV_BF16 };
    (void)ms; /* counted by the host's clock */
    return qv_encode(p->model, QV_INPUT_FRAMES, p->set.items, 1, &o, &p->tokens, err);
}

/* The outputs that a job gives, DeepStack's too, behind one another in memory that chunks' tokens go to. */
static void
ask_for_all(struct packing_bench *p)
{
    const int64_t rows = p->tokens.capacity / (1 + p->m.n_deepstack);
    for (int i = 0; i < p->m.n_deepstack; i++)
        p->tokens.deepstack[i] = (char *)p->tokens.tokens +
                                 (size_t)((1 + i) * rows * p->m.out_hidden) * sizeof(uint16_t);
    p->tokens.capacity = rows;
}

static qv_status
run_alone(struct packing_bench *p, const char *way, int64_t pairs, qv_error *err)
{
    struct bench_run runs[2] = { { .work = job_once, .user = p },
                                 { .work = encode_once, .user = p } };
    add_clip(p, pairs, p->chunk * 760 / USUAL_CHUNK);
    const qv_tokens tokens = p->tokens;
    ask_for_all(p);
    qv_status status = bench_time(&p->b, runs, 2, err);
    p->tokens = tokens;
    if (status)
        return status;
    const double ms = runs[0].times.median_ms, ratio = ms / runs[1].times.median_ms;
    if (bench_talks(&p->b))
        printf("  one clip of %lld pairs: %.3f ms by a job, %.3f of qv_encode\n", (long long)pairs,
               ms, ratio);
    return emit(p, way, ms,
                json_pack("{s:f, s:f}", "encode_ms", runs[1].times.median_ms, "over_encode", ratio),
                err);
}

/* ---- what is timed --------------------------------------------------------------------------- */

/* The runs that are timed beside sets of one size, by the names that they have in records. */
static const struct part {
    const char *way;
    qv_status (*run)(struct packing_bench *p, const char *way, int64_t of, qv_error *err);
    int64_t of;
} parts[] = { { "seven sizes", run_first, 16 },
              { "one clip of 1 pair", run_alone, 1 },
              { "one clip of 8 pairs", run_alone, 8 },
              { "fill: pairs up to an eighth", run_small, 8 },
              { "fill: pairs of 720", run_alike, 720 } };
enum { PARTS = sizeof parts / sizeof *parts };

/* Checks that each of the given ways exists. */
static bool
check_ways(const struct packing_bench *p, const char *ways)
{
    for (const char *end; ways && *ways; ways = end + (*end == ',')) {
        const size_t n = strcspn(ways, ",");
        const int64_t rows = pair_rows_of(ways, n);
        end = ways + n;
        bool known = rows >= p->m.merge_size * p->m.merge_size && rows <= p->most;
        for (int i = 0; i < PARTS; i++)
            known |= strlen(parts[i].way) == n && !strncmp(parts[i].way, ways, n);
        if (!known) {
            tool_complain("bench packing: --ways %.*s is not known; " PAIRS_OF
                          "N (up to %lld patches), %s, %s, %s, %s, %s",
                          (int)n, ways, (long long)p->most, parts[0].way, parts[1].way,
                          parts[2].way, parts[3].way, parts[4].way);
            return false;
        }
    }
    return true;
}

int
bench_packing(const struct tool_options *o)
{
    static struct packing_bench bench; /* static, as lists of clips are large */
    struct packing_bench *p = &bench;
    qv_error err = { 0 };
    if (!o->model) {
        tool_complain("bench packing: --model DIR is required (qwenvit bench --help)");
        return TOOL_USAGE;
    }
    p->b.o = o;
    p->b.name = "packing";
    qv_status status = open_all(p, o, &err);
    const bool known = status || check_ways(p, o->ways);
    if (!status && known && bench_talks(&p->b))
        printf("%s on %s: %s, chunks of %lld patches\n", p->name, p->b.info.backend,
               p->b.info.device, (long long)p->chunk);
    for (int i = 0; i < PARTS && !status && known; i++)
        if (bench_is_asked(o->ways, parts[i].way)) {
            empty(p);
            status = parts[i].run(p, parts[i].way, parts[i].of, &err);
        }
    if (!status && known)
        status = run_sizes(p, &err);
    close_all(p);
    return !known ? TOOL_USAGE : status ? tool_fail(status, &err) : TOOL_DONE;
}
