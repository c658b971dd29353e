/* SPDX-License-Identifier: MIT */
/* Functions that the benches and the profile share: a device with its measured roofline, timing,
 * tables and records. */
#pragma once

#include <math.h>

#include "command/tool.h"
#include "figures.h"
#include "model/plan.h"
#include "numbers.h"

/* ---- bench.c: a bench, its timing, its records ----------------------------------------------- */

struct bench {
    const struct tool_options *o;
    const char *name; /* such as "conv3d" */
    double began_s;
    qv_context *ctx;
    qv_context_info info;
    struct bench_rate peak[QV_F16 + 1]; /* roofline: FLOP/s by dtype */
    struct bench_rate memory;           /* roofline: bytes per second, by a copy or by reading */
    struct bench_rate copy;             /* bytes per second of a copy, reads and writes counted */
    bool begun;                         /* whether the device was printed */
    char group[256];                    /* heading of the table that is being printed */
    int64_t parts, parts_done;          /* parts of a list; parts begun */
    double parts_began_s, told_s;       /* when the first part began; when the remaining time was
                                         * last reported */
    int64_t timed, scattered;           /* records; records whose p90 is far above the median */
    double most_scatter;                /* the largest p90, as a multiple of the median */
};

/* Opens the device of the options. bench_close closes it, and reports whether times scattered. */
qv_status bench_open(struct bench *b, qv_error *err);
qv_status bench_open_model(struct bench *b, qv_model **model, qv_model_info *info, qv_error *err);
void bench_close(struct bench *b);
bool bench_talks(const struct bench *b); /* returns whether tables are printed: stdout is not used
                                          * for JSON records */

bool bench_is_spent(const struct bench *b); /* returns whether --budget is spent */

void bench_print_roofline(struct bench *b, qv_dtype dtype); /* below the device */

/* Begins a list of so many parts. Call bench_next before each part: it reports the remaining time,
 * and returns false, with a message, if --budget is spent. */
void bench_expect(struct bench *b, int64_t parts);
bool bench_next(struct bench *b);

qv_dtype bench_dtype(const struct bench *b); /* returns --dtype, or the device's own */
/* Returns the last part of a path, without trailing slashes. */
const char *bench_base_name(const char *path, char *name, size_t size);

struct bench_times {
    double median_ms, p90_ms;
    int64_t repeats;
};
/* Runs the work once. Sets *ms if the device's clock times it better than the host's; to INFINITY
 * if --budget was spent before the work was done. */
typedef qv_status bench_work(void *user, double *ms, qv_error *err);
struct bench_run {
    bench_work *work; /* NULL: none, and the times are 0 */
    void *user;
    struct bench_times times; /* set by bench_time */
};
/* Times several works alternately, so that a disturbance hits all of them: one run of each to warm
 * up, then --repeats runs, more if they are short, fewer if they take many seconds or --budget is
 * spent. After the first run it reports a long remaining time. If the first run takes seconds and
 * spends the budget, the following works keep times of 0, as does one that never was done. */
qv_status bench_time(const struct bench *b, struct bench_run *runs, int n, qv_error *err);

/* A table line and a record. `--legend` explains the ways and the fields. */
struct bench_record {
    const char *work, *way; /* "vae 128ch 10x30x52 3x3x3 causal", "by depth" */
    const char *group;      /* heading of the table, with a line per work; NULL: the work is the
                             * heading, with a line per way */
    qv_dtype dtype;
    struct bench_times times;
    double flops, bytes;
    bool streams;     /* all bytes come from memory, none from a cache */
    bool computed;    /* computed from the times of other lines, not measured */
    const char *show; /* names of extras that end the line, with spaces between them; or NULL */
    json_t *extras;   /* more fields, or NULL; bench_report and bench_emit take the reference */
};
void bench_print(struct bench *b, const struct bench_record *r);
/* Writes the JSON record, if records are enabled. bench_report also prints the line. */
qv_status bench_emit(struct bench *b, const struct bench_record *r, qv_error *err);
qv_status bench_report(struct bench *b, const struct bench_record *r, qv_error *err);
/* Sets field `name` of a record to a figure, or field `withheld` to an object that gives the reason
 * under that name. */
void bench_put_figure(json_t *record, const char *name, struct bench_figure figure);

/* Calls `take` for each line of a user's list, or of `text` if that is not NULL, as a part; blank
 * lines and comments after # are skipped. An invalid line makes the file invalid. */
typedef qv_status bench_line(void *user, char *line, qv_error *err);
qv_status bench_each_line(struct bench *b, const char *path, const char *text, bench_line *take,
                          void *user, qv_error *err);

/* The benches. */
typedef qv_status bench_function(struct bench *b, qv_error *err);
bench_function bench_tower, bench_conv3d, bench_patch_embed, bench_gemm, bench_profile;

/* ---- operations.c: operations alone ---------------------------------------------------------- */

/* Calls that are timed by the device's own clock. The caller sets ctx, calls and n, and zeroes the
 * rest. If the device can record, the first run records the calls, repeated so often that launching
 * the recording takes negligible time; until then the calls may still be changed. */
struct bench_list {
    qv_context *ctx;
    const struct qv_call *calls;
    size_t n;
    struct qv_recording *recording;
    int64_t times; /* how often the recording repeats the calls; 0 before the first run */
};
qv_status bench_list_run(void *list, double *ms, qv_error *err); /* a bench_work */
void bench_list_close(struct bench_list *list);

/* Runs a call once, without recording it. */
qv_status bench_run_call(qv_context *ctx, const struct qv_call *call, double *ms, qv_error *err);
/* Waits for QV_MARK_END, and returns the time since QV_MARK_BEGIN. */
qv_status bench_elapsed(qv_context *ctx, double *ms, qv_error *err);

/* The places of a bench's program: 1 + i is operand i of every operation. Each chunk has lists of
 * its own. */
enum { BENCH_LIST = 1, BENCH_WINDOWS = 1 + QV_MAX_OPERANDS, BENCH_PLACES };

/* A program of operations, on small random values. The caller puts lists into their places. */
struct bench_ops {
    struct qv_program program;
    struct bench_list list;   /* the program's calls, for bench_list_run */
    struct qv_memory *weight; /* of bench_gemm_open; else NULL */
};
/* Returns the operation as a step. If it has a weight, that is buffer `weight` from outside. */
struct qv_step bench_step(const struct qv_op *op, int weight);
/* Whatever these return, the caller must close *out. bench_gemm_open opens a GEMM with a weight of
 * its own. */
qv_status bench_ops_open(qv_context *ctx, const struct qv_step *steps, size_t n, int n_chunks,
                         const struct qv_buffer *weights, struct bench_ops *out, qv_error *err);
qv_status bench_gemm_open(qv_context *ctx, const struct qv_op_gemm *gemm, qv_dtype dtype,
                          struct bench_ops *out, qv_error *err);
void bench_ops_close(struct bench_ops *ops);

/* Makes `copies` weights of random values, in one memory, which the caller frees. */
qv_status bench_pack(qv_context *ctx, const struct qv_matrix *matrix, int64_t copies,
                     struct qv_buffer *weights, qv_error *err);

/* Fills data with random bytes, or with values in [-1, 1). */
void bench_fill(void *data, qv_dtype dtype, size_t bytes);

/* ---- roofline.c ------------------------------------------------------------------------------ */

/* Measures the roofline of a dtype and the copy rate within --budget, unless this run has already
 * measured them, and prints them. */
qv_status bench_begin(struct bench *b, qv_dtype dtype, qv_error *err);

/* ---- limit.c: the bounds of a plan's work on chunks ------------------------------------------ */

struct bench_chunk {
    const qv_item *items;
    size_t n;
};

/* The limit for chunks of one plan: the GEMMs of its list and the attention over each chunk's
 * segments alone, each layer with its own weights, and nothing between them. On the CPU, where no
 * library has attention, it is counted as its two GEMMs at the rate of these GEMMs. */
struct bench_limit {
    struct bench_ops gemms, attention;
    int64_t chunks;
    bool counted;                  /* attention is counted, not run */
    double flops, attention_flops; /* sums over all chunks */
    double bytes, between_bytes;   /* bytes of the limit; bytes of all other operations */
};
qv_status bench_limit_open(qv_context *ctx, const qv_plan *plan, const struct bench_chunk *chunks,
                           size_t n, struct bench_limit *out, qv_error *err);
void bench_limit_close(struct bench_limit *l);

struct bench_bounds {
    struct bench_times limit; /* time of all chunks */
    double gemm_ms, attention_ms, floor_ms;
    bool floor_known; /* whether the copy rate, which the floor depends on, is known */
};
enum { BENCH_LIMIT_RUNS = 2 };
/* The works to time; the bounds are computed from their times. */
void bench_limit_runs(struct bench_limit *l, struct bench_run runs[BENCH_LIMIT_RUNS]);
struct bench_bounds bench_limit_bounds(const struct bench *b, const struct bench_limit *l,
                                       const struct bench_run runs[BENCH_LIMIT_RUNS]);
void bench_put_bounds(json_t *record, const struct bench_bounds *bounds, double ms);
/* Reports the limit and the floor for the work of record r; their ways' names begin with prefix. */
qv_status bench_report_bounds(struct bench *b, const struct bench_limit *l,
                              const struct bench_bounds *bounds, const char *prefix,
                              struct bench_record r, qv_error *err);
