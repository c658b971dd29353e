/* SPDX-License-Identifier: MIT */
/* What the benches and the profile share: a device with its measured roofline, timing, records. */
#ifndef QV_TOOLS_BENCH_H
#define QV_TOOLS_BENCH_H

#include "model/inspect.h"
#include "command/tool.h"
#include "samples.h"

/* ---- bench.c: a bench, its timing, its records ----------------------------------------------- */

struct bench {
    const struct tool_options *o;
    const char *name; /* "conv3d" */
    qv_context *ctx;
    qv_context_info info;
    double peak_flops[QV_F16 + 1]; /* the roofline, a second, by dtype; 0: not measured */
    double memory_bytes;           /* the roofline: a second, by a copy or by reading alone */
    double copy_bytes;             /* a second, read and written */
    double told_flops[QV_F16 + 1], told_bytes; /* the roofline as it was printed */
    bool bf16_left_out;                        /* the device has no GEMMs of it, which was said */
    char group[256];                           /* the table that is being printed */
    int64_t parts, parts_done;                 /* of a list, and: */
    double parts_began_s, told_s;              /* when its first began; its rest was told */
    int64_t timed, scattered; /* records; those whose p90 is far above the median, */
    double most_scatter;      /* up to so many medians */
};

/* Opens the device of the options; closing it says whether times scattered. */
qv_status bench_open(struct bench *b, const struct tool_options *o, const char *name,
                     qv_error *err);
void bench_close(struct bench *b);
bool bench_talks(const struct bench *b); /* prints tables: stdout is not used for JSON records */

/* Measures the roofline of a dtype and says what computes, how well, and `about` what follows. */
qv_status bench_begin(struct bench *b, qv_dtype dtype, const char *about, qv_error *err);

/* A list of so many parts is begun, and one of them is done: says how long the rest takes, after the first
 * and now and then. */
void bench_expect(struct bench *b, int64_t parts);
void bench_part_done(struct bench *b);

/* The dtypes to run in, *n of them: --dtype, or f32 and, where the device has GEMMs of it, bf16; where it
 * has none, that is said once. */
qv_status bench_dtypes(struct bench *b, qv_dtype out[2], int *n, qv_error *err);
/* The last part of a path, without slashes behind it. */
const char *bench_base_name(const char *path, char *name, size_t size);

struct bench_times {
    double median_ms, p90_ms;
    int64_t repeats;
};
/* One run. Sets *ms if it can time itself better than the host's clock can (by the device's). */
typedef qv_status bench_work(void *user, double *ms, qv_error *err);
struct bench_run {
    bench_work *work;
    void *user;
    struct bench_times times; /* out */
};
/* Times several works alternately, so that a disturbance hits all of them: one run of each to warm
 * up, then --repeats runs, more if they are short, fewer if they take many seconds. Says before it begins how
 * long it takes, where that is long. */
qv_status bench_time(const struct bench *b, struct bench_run *runs, int n, qv_error *err);

struct bench_record {
    const char *work, *way;    /* "vae 128ch 10x30x52 3x3x3 causal", "by depth" */
    const char *group, *label; /* of the printed table and line; NULL: work and way */
    const char *desc;          /* of a Conv3d, with `chosen`; else NULL */
    bool chosen;
    qv_dtype dtype;
    struct bench_times times;
    double flops, bytes;
    bool streams;     /* all bytes come from memory, none from a cache */
    bool computed;    /* from other lines' times: it was not measured */
    const char *note; /* at the end of the line; may be NULL */
    json_t *extras;   /* more fields, or NULL; taken */
};
/* The heading of a table, unless it is the one that is being printed. */
void bench_show_group(struct bench *b, const char *name, qv_dtype dtype);
/* The line of a table, below a heading where a new one begins; and the JSON record. A line that is
 * faster than the roofline raises it: what was seen once the device can do. */
qv_status bench_report(struct bench *b, const struct bench_record *r, qv_error *err);
/* The JSON record alone, where one is wanted. */
qv_status bench_emit(struct bench *b, const struct bench_record *r, qv_error *err);
/* The least time that the roofline allows, as a share of the time. Bytes that moved faster than memory
 * moves them came from a cache and set no bound: then it is that of the FLOPs alone. */
double bench_roof_share(const struct bench *b, qv_dtype dtype, double flops, double bytes,
                        double ms);

/* QV_OK, or why a command that `what` names ended with another exit code than 0. */
qv_status bench_ended(const char *what, int code, qv_error *err);

/* A list that a user wrote, a text file of up to a megabyte, with a 0 behind; the caller frees. */
qv_status bench_read_list(const char *path, char **out, qv_error *err);
/* Takes its text apart into lines; blank ones and those after # are none. What is wrong with a line
 * is wrong with its file. */
typedef qv_status bench_line(void *user, char *line, qv_error *err);
qv_status bench_read_lines(const char *file, char *text, bench_line *take, void *user,
                           qv_error *err);

/* A new folder in this one, which is made where there is none: *out, for bench_close_folder, which
 * removes it with all that is in it. */
qv_status bench_open_folder(const char *folder, char **out, qv_error *err);
void bench_close_folder(char **folder);

int bench_tower(const struct tool_options *o);
qv_status bench_tower_pack(const struct tool_options *o, qv_error *err); /* --pack */
int bench_conv3d(const struct tool_options *o);
int bench_patch_embed(const struct tool_options *o);
int bench_gemm(const struct tool_options *o);
int bench_preprocess(const struct tool_options *o);
int bench_cache(const struct tool_options *o);
int bench_job(const struct tool_options *o);
int bench_packing(const struct tool_options *o);
int bench_start(const struct tool_options *o);

/* A cache for `bench job` to fill; NULL where this build has none. Keys are put by any threads; *writer is
 * gone after the end, when all is sealed. */
struct qv_cache_writer;
struct bench_parts {
    qv_status (*start)(const char *folder, const qv_model_info *model, qv_dtype dtype,
                       struct qv_cache_writer **writer, qv_error *err);
    qv_status (*put)(struct qv_cache_writer *writer, const char *key, const qv_tokens *tokens,
                     qv_error *err);
    qv_status (*end)(struct qv_cache_writer **writer, qv_error *err);
};
extern const struct bench_parts *const bench_parts;

/* ---- roofline.c: operations alone, and what the machine can do at most --------------------------- */

/* Calls that are timed by the device's own clock; the caller sets ctx, calls and n, the rest is zero.
 * If the device can record, the first run records them, repeated so often that the time to launch
 * the recording does not count; until then the calls may still be changed. */
struct bench_list {
    qv_context *ctx;
    const struct qv_call *calls;
    size_t n;
    struct qv_recording *recording;
    int64_t times; /* the calls in the recording; 0: there was no run yet */
};
qv_status bench_list_run(void *list, double *ms, qv_error *err); /* a bench_work */
void bench_list_close(struct bench_list *list);

/* Calls once, as they are. */
qv_status bench_run_calls(qv_context *ctx, const struct qv_call *calls, size_t n, double *ms,
                          qv_error *err);
/* Waits for the mark QV_MARK_END, and gives the time since QV_MARK_BEGIN. */
qv_status bench_elapsed(qv_context *ctx, double *ms, qv_error *err);

/* A list of operations on an arena of its own, where operand i of every operation is the same
 * memory, filled with small random values, tables with such as they may have. Packed weights are the caller's to put into calls. */
struct bench_ops {
    qv_context *ctx;
    size_t n, n_kernels;
    size_t *kernels;
    struct qv_call *calls;
    struct bench_list list; /* of them */
    struct qv_memory *arena;
    double flops, bytes; /* of the list */
};
qv_status bench_ops_open(qv_context *ctx, const struct qv_op *ops, size_t n, struct bench_ops *out,
                         qv_error *err);
void bench_ops_close(struct bench_ops *ops);
qv_status bench_ops_run(void *ops, double *ms, qv_error *err); /* a bench_work */

/* A gemm as it is without what is fused to it; any other operation as it is. */
struct qv_op bench_bare(struct qv_op op);

/* `copies` packed matrices of random values, `stride` bytes apart. */
qv_status bench_pack(qv_context *ctx, const struct qv_matrix *matrix, int64_t copies,
                     struct qv_memory **out, size_t *stride, qv_error *err);

/* Random bytes, or values in [-1, 1). */
void bench_fill(void *data, qv_dtype dtype, size_t bytes);
/* A plan's operations one by one, each waited for: ms [qv_plan_steps] by the device's clock. A
 * chunk must have been pushed. */
qv_status bench_step_through(qv_context *ctx, const qv_plan *plan, double *ms, qv_error *err);

/* Fills in the roofline of a dtype, if it is not known, and the copy rate. */
qv_status bench_measure_roofline(struct bench *b, qv_dtype dtype, qv_error *err);

/* ---- chunks.c: a plan's work on chunks, and what bounds it ------------------------------------ */

/* The plan of these options, and how long it took to make: *new_ms, and *seen_ms where the model had
 * just made it. */
qv_status bench_make_plan(qv_model *model, const qv_plan_options *options, qv_plan **out,
                          double *new_ms, double *seen_ms, qv_error *err);

/* Pushes a chunk and pulls its tokens; *ms: of its work on the device, which is done once more. */
qv_status bench_run_chunk(qv_plan *plan, const qv_item *items, size_t n, qv_tokens *tokens,
                          double *ms, qv_error *err);

/* What is in a chunk. */
struct bench_chunk {
    const qv_item *items;
    size_t n;
};

/* The limit of chunks by one plan: the GEMMs of its list and the attention over each chunk's
 * segments alone, each layer with its own weights, nothing between them. On the CPU, where there is
 * no attention of a library's, it is counted as its two GEMMs at the rate of these GEMMs. */
struct bench_limit {
    struct bench_ops gemms, attention;
    struct qv_memory *lists; /* of segments, each chunk's */
    int64_t chunks;
    bool counted;                  /* attention is not run */
    double flops, attention_flops; /* of all chunks */
    double bytes, between_bytes;   /* those of the limit; of everything else */
};
qv_status bench_limit_open(qv_context *ctx, const qv_plan *plan, const struct bench_chunk *chunks,
                           size_t n, struct bench_limit *out, qv_error *err);
void bench_limit_close(qv_context *ctx, struct bench_limit *l);

struct bench_bounds {
    struct bench_times limit; /* of all chunks */
    double gemm_ms, attention_ms, floor_ms;
};
enum { BENCH_LIMIT_RUNS = 2 };
/* The runs that it takes, in out[BENCH_LIMIT_RUNS]; how many. And what they came to. */
int bench_limit_runs(struct bench_limit *l, struct bench_run *out);
struct bench_bounds bench_limit_bounds(const struct bench *b, const struct bench_limit *l,
                                       const struct bench_run *runs);
/* What work of so many ms comes to against them: as a record's fields, and as lines. */
json_t *bench_bounds_json(const struct bench_bounds *bounds, double ms);
void bench_print_bounds(const struct bench_bounds *bounds, double ms);
/* The lines and records of the limit and of the floor of the work that r is of. prefix: of their
 * ways. */
qv_status bench_report_bounds(struct bench *b, const struct bench_limit *l,
                              const struct bench_bounds *bounds, const char *prefix,
                              struct bench_record r, qv_error *err);

/* ---- calls.c: a chunk as callers see it ------------------------------------------------------- */

/* Where pixels come from and tokens go to: memory of qv_host_alloc, of malloc, or the device's. */
enum bench_place { BENCH_LOCKED, BENCH_PAGEABLE, BENCH_ON_DEVICE };
struct bench_block {
    enum bench_place place;
    void *at;
    struct qv_memory *memory; /* the device's; else NULL */
};

struct bench_calls;
struct bench_call {
    const char *name, *memory; /* "whole call, pageable", "pageable" */
    struct bench_calls *all;
    qv_context *ctx;
    qv_plan *plan;
    qv_item item; /* a full chunk */
    qv_tokens tokens;
    struct bench_block data, room; /* where they lie */
};

enum { BENCH_CALLS = 6, BENCH_INPUTS = 3 };
struct bench_calls {
    struct bench_call calls[BENCH_CALLS]; /* the first: frames and tokens of the plan's dtype in
                                             memory of qv_host_alloc; others differ from it */
    int n;                                /* those that there are on this device */
    qv_plan *own;                         /* the first's, which is the caller's */
    qv_plan *plans[BENCH_INPUTS][2];      /* by qv_input, and whether tokens are f32 */
    const qv_plan *there; /* whose full chunk was pushed last; NULL: one that was not full */
};
/* Calls that push a chunk of `pairs` frame pairs of the grid and pull its tokens. */
qv_status bench_calls_open(qv_plan *plan, int64_t pairs, const int64_t grid[3],
                           struct bench_calls *out, qv_error *err);
void bench_calls_close(qv_context *ctx, struct bench_calls *calls);
/* The chunk, or fewer of its pairs. */
qv_status bench_call_push(struct bench_call *c, int64_t pairs, qv_error *err);
qv_status bench_call_run(void *call, double *ms,
                         qv_error *err); /* a bench_work, by the host's clock */

#endif
