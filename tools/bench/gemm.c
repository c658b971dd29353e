/* SPDX-License-Identifier: MIT */
/*
 * qwenvit bench gemm: a tower's projections with their epilogues, from one row up. A run is one
 * GEMM with each of many copies of the weight, so that none of it is cached, as with layers.
 */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "dtype.h"
#include "error.h"
#include "towers/read_config.h"

enum { MOST_COPIES = 1024 };

static const int64_t row_counts[] = { 1,  2,  3,  4,  5,  6,  7,  8,  9,   10,  11,  12,
                                      13, 14, 15, 16, 24, 32, 48, 64, 128, 256, 760, 1024 };
enum { N_ROW_COUNTS = sizeof row_counts / sizeof *row_counts };
enum { MOST_ROWS_ALONE = 128 }; /* for a matrix by itself */

struct projection {
    const char *name;
    int64_t n, k;
    int act;
    bool residual;
};

struct gemm_bench {
    struct bench *b;
    char model[100];
    const struct projection *p;
    bool alone;              /* a matrix of --shape, without bias */
    struct qv_groups groups; /* bits 0: the weights are not quantised */
    size_t packed_bytes;     /* bytes of one weight on the device */
    struct qv_buffer weights[MOST_COPIES];
    int64_t copies;
};

static qv_status
open_rows(const struct gemm_bench *g, int64_t m, qv_dtype dtype, struct bench_ops *out,
          qv_error *err)
{
    struct qv_op op = { .kind = g->groups.bits ? QV_OP_gemm_few : QV_OP_gemm };
    op.u.gemm = (struct qv_op_gemm){ .m = m,
                                     .n = g->p->n,
                                     .k = g->p->k,
                                     .alpha = 1,
                                     .bias = !g->alone,
                                     .act = g->p->act,
                                     .residual_rows = g->p->residual ? m : 0 };
    qv_op_set_dtype(&op, dtype);
    if (g->groups.bits) {
        op.u.gemm_few.w_bits = g->groups.bits;
        op.u.gemm_few.w_group = g->groups.group;
        op.u.gemm_few.w_dtype = g->groups.dtype;
    }
    const size_t n = (size_t)g->copies;
    struct qv_step *steps = malloc(n * sizeof *steps);
    if (!steps)
        return qv_fail(err, QV_ENOMEM, "no memory for a list of operations");
    for (size_t i = 0; i < n; i++)
        steps[i] = bench_step(&op, (int)i);
    const qv_status status = bench_ops_open(g->b->ctx, steps, n, 1, g->weights, out, err);
    free(steps);
    return status;
}

static qv_status
report_rows(const struct gemm_bench *g, int64_t m, qv_dtype dtype, const struct bench_ops *ops,
            struct bench_times times, double first_ms, qv_error *err)
{
    char work[80], group[200];
    const char *weights = g->groups.bits ? g->b->o->weights.name : "gemm";
    const double copies = (double)g->copies, ms = times.median_ms / copies;
    const double copy_ms = 1e3 * (double)g->packed_bytes / g->b->copy.per_s;
    snprintf(work, sizeof work, "%s m=%lld", g->p->name, (long long)m);
    snprintf(group, sizeof group, "%s n=%lld k=%lld, %s", g->model, (long long)g->p->n,
             (long long)g->p->k, weights);
    struct bench_record r = { .work = work,
                              .way = weights,
                              .group = group,
                              .dtype = dtype,
                              .times = { ms, times.p90_ms / copies, times.repeats },
                              .flops = ops->program.flops / copies,
                              .bytes = ops->program.bytes / copies,
                              .streams = true,
                              .show = "over_m1 over_copy",
                              .extras = tool_json("model:t m:I n:I k:I over_m1:f weight_bytes:I",
                                                  g->model, m, g->p->n, g->p->k,
                                                  times.median_ms / first_ms, g->packed_bytes) };
    bench_put_figure(r.extras, "over_copy", bench_by_rate(ms / copy_ms, g->b->copy));
    return bench_report(g->b, &r, err);
}

/* Returns more bytes than a cache holds: as many as the device copies in a millisecond, within
 * bounds. Devices with fast memory have large caches. */
static int64_t
streamed_bytes(const struct gemm_bench *g)
{
    static const double least = 64 << 20, most = 512 << 20;
    double bytes = g->b->copy.per_s * 1e-3;
    return (int64_t)(bytes < least ? least : bytes > most ? most : bytes);
}

static int
count_rows(const struct gemm_bench *g)
{
    int n = 0;
    const int64_t most = g->b->o->rows ? g->b->o->rows : g->alone ? MOST_ROWS_ALONE : INT64_MAX;
    const int64_t allowed = g->groups.bits ? QV_FEW_ROWS : INT64_MAX;
    while (n < N_ROW_COUNTS && row_counts[n] <= most && row_counts[n] <= allowed)
        n++;
    return n;
}

/* Times and reports the first n row counts. They run alternately, so that a disturbance does not
 * look like a step between two counts. */
static qv_status
run_rows(struct gemm_bench *g, qv_dtype dtype, struct bench_ops *rows, int n, qv_error *err)
{
    struct bench_run runs[N_ROW_COUNTS] = { 0 };
    qv_status status = QV_OK;
    for (int i = 0; i < n && !status; i++) {
        runs[i] = (struct bench_run){ .work = bench_list_run, .user = &rows[i].list };
        status = open_rows(g, row_counts[i], dtype, &rows[i], err);
    }
    if (!status)
        status = bench_time(g->b, runs, n, err);
    for (int i = 0; i < n && !status; i++)
        if (runs[i].times.repeats)
            status = report_rows(g, row_counts[i], dtype, &rows[i], runs[i].times,
                                 runs[0].times.median_ms, err);
    for (int i = 0; i < n; i++)
        bench_ops_close(&rows[i]);
    return status;
}

static qv_status
run_projection(struct gemm_bench *g, qv_dtype dtype, qv_error *err)
{
    struct qv_layout layout = { 0 };
    struct bench_ops rows[N_ROW_COUNTS] = { 0 };
    const struct qv_matrix matrix = { .n = g->p->n,
                                      .k = g->p->k,
                                      .dtype = g->groups.bits ? g->groups.dtype : dtype,
                                      .groups = g->groups };
    if (g->groups.bits && g->p->k % g->groups.group)
        return qv_fail(err, QV_EINVAL, "%s has %lld columns, not a multiple of the group size %lld",
                       g->p->name, (long long)g->p->k, (long long)g->groups.group);
    qv_status status = g->b->ctx->backend->layout(g->b->ctx->dev, &matrix, &layout, err);
    if (status)
        return status;
    g->packed_bytes = layout.bytes;
    g->copies = streamed_bytes(g) / (int64_t)layout.bytes + 1;
    g->copies = g->copies < MOST_COPIES ? g->copies : MOST_COPIES;
    status = bench_pack(g->b->ctx, &matrix, g->copies, g->weights, err);
    if (status)
        return status;
    status = run_rows(g, dtype, rows, count_rows(g), err);
    g->b->ctx->backend->free(g->b->ctx->dev, g->weights[0].memory);
    return status;
}

/* Reads the sizes of a checkpoint, or uses those of tower M (Qwen3-VL 4B). */
static qv_status
read_sizes(struct gemm_bench *g, struct qv_config *out, qv_error *err)
{
    *out = (struct qv_config){ .family = &qv_families[QV_FAMILY_QWEN3_VL],
                               .hidden = 1024,
                               .intermediate = 4096,
                               .out_hidden = 2560,
                               .merge = 2,
                               .act = QV_ACT_GELU_TANH };
    if (!g->b->o->model) {
        snprintf(g->model, sizeof g->model, "M");
        return QV_OK;
    }
    bench_base_name(g->b->o->model, g->model, sizeof g->model);
    return qv_config_read(g->b->o->model, out, err);
}

enum { MOST_PROJECTIONS = 6 };

/* Lists the projections of a tower, or the matrix of --shape, which has no epilogue, and returns
 * their number. */
static int
list_projections(const struct gemm_bench *g, const struct qv_config *c, char name[48],
                 struct projection out[MOST_PROJECTIONS])
{
    const int64_t *shape = g->b->o->shape, h = c->hidden, wide = h * c->merge * c->merge;
    const bool gated = qv_family_is_gated(c->family); /* fc1 computes gate and up */
    const struct projection tower[MOST_PROJECTIONS] = {
        { "qkv", 3 * h, h, QV_ACT_NONE, false },
        { "proj", h, h, QV_ACT_NONE, true },
        { "fc1", (1 + gated) * c->intermediate, h, gated ? QV_ACT_NONE : c->act, false },
        { "fc2", h, c->intermediate, QV_ACT_NONE, true },
        { "merger fc1", wide, wide, QV_ACT_GELU_ERF, false },
        { "merger fc2", c->out_hidden, wide, QV_ACT_NONE, false },
    };
    memcpy(out, tower, sizeof tower);
    if (!g->alone)
        return MOST_PROJECTIONS;
    snprintf(name, 48, "%lldx%lld", (long long)shape[0], (long long)shape[1]);
    out[0] = (struct projection){ name, shape[0], shape[1], QV_ACT_NONE, false };
    return 1;
}

static qv_status
run_projections(struct gemm_bench *g, const struct qv_config *c, qv_dtype dtype, qv_error *err)
{
    char name[48];
    struct projection list[MOST_PROJECTIONS];
    const int n = list_projections(g, c, name, list);
    qv_status status = QV_OK;
    bench_expect(g->b, n);
    for (int i = 0; i < n && !status && bench_next(g->b); i++) {
        g->p = &list[i];
        status = run_projection(g, dtype, err);
    }
    g->p = NULL; /* the list ends here */
    return status;
}

qv_status
bench_gemm(struct bench *b, qv_error *err)
{
    const struct tool_options *o = b->o;
    struct gemm_bench g = { .b = b, .alone = o->shape[0] > 0, .groups = o->weights.groups };
    struct qv_config c;
    qv_status status = bench_open(b, err);
    if (!status)
        status = read_sizes(&g, &c, err);
    if (!status)
        status = bench_begin(b, bench_dtype(b), err);
    return status ? status : run_projections(&g, &c, bench_dtype(b), err);
}
