/* SPDX-License-Identifier: MIT */
/* What the subcommands share: options, exit codes, messages. Only tools print. */
#ifndef QV_TOOLS_TOOL_H
#define QV_TOOLS_TOOL_H

#include <jansson.h>

#include "clock.h"
#include "engine/grouped.h"
#include "qwenvit.h"
#include "qwenvit_media.h"

enum tool_exit {
    TOOL_DONE = 0,
    TOOL_FAILED = 1, /* a check failed, or part of the work */
    TOOL_USAGE = 2,
    TOOL_BAD_INPUT = 3, /* a file that cannot be read or used */
    TOOL_DEVICE = 4,    /* device or environment */
};

enum { TOOL_MOST_DEVICES = 64 };

/* --weights: how quantised matrices are kept, or, of `bench gemm` alone, which are timed. */
struct tool_weights {
    const char *name; /* "bf16", "stored", "q4g64"; NULL: not given */
    bool stored;
    struct qv_groups groups; /* bits 0: it is one of the first two */
};

/* Every option of every subcommand; a subcommand takes those that its mask names. */
struct tool_options {
    /* the same everywhere */
    const char *backend, *naive;
    qv_dtype dtype;
    struct tool_weights weights;
    int64_t device, threads;
    int64_t devices[TOOL_MOST_DEVICES]; /* encode: of these, device the first; or all there are */
    size_t n_devices;
    bool all_devices;
    bool tf32, json, quiet;
    const char *json_file; /* or stdout */
    const char *tune_file;
    bool tune;
    /* files */
    const char *model, *output, *config, *drawing, *list;
    qv_dtype output_dtype;
    int64_t chunk_rows;
    /* clips */
    qv_clip_options clip;
    int64_t decode_threads;
    /* synth */
    int64_t seed, shards;
    const char *make_clip;
    /* bench, profile, verify */
    int64_t grid[3], size[2], shape[2], repeats, rows;
    int64_t bench_chunk; /* frame pairs; 0: chosen, -1: all of the grid */
    int64_t keys, clips, frames;
    double seconds;   /* of clips that are made; 0: the bench's own */
    const char *from; /* a folder with a few to copy instead */
    bool no_limit;
    bool alone;
    const char *shapes, *pack, *lowering, *trace, *verify_clip, *against, *against_backend;
    /* cache */
    const char *out, *cache_get;
    qv_dtype tokens;
    int64_t shard[2]; /* I of N; N 0: all */
    int64_t part_bytes;
    double part_seconds;
    bool no_deepstack, packed, retry_failed, cache_status, cache_check, cache_keys, cache_prune;
    bool trust_keys, same_size, no_lock, dry_run;
    const char **delete_keys; /* lie behind the arguments */
    size_t n_delete_keys;
    double rate; /* clips a second */
    /* what is left: files, or a bench's name */
    const char **arguments;
    size_t n_arguments;
};

enum tool_group {
    GROUP_DEVICE = 1, /* backend, dtype, device, threads, what was measured on it */
    GROUP_MODEL = 2,
    GROUP_OUTPUT = 4,
    GROUP_CLIP = 8,
    GROUP_ENCODE = 16,
    GROUP_SYNTH = 32,
    GROUP_BENCH = 64,
    GROUP_JSON = 128,
    GROUP_VERIFY = 256,
    GROUP_PROFILE = 512,
    GROUP_CACHE = 1024,
    GROUP_INFO = 2048,
    GROUP_WEIGHTS = 4096, /* what loads models to run or describe them */
};

struct tool {
    const char *name, *arguments, *does, *example;
    unsigned groups;
    int (*run)(const struct tool_options *options); /* NULL where another program has it: */
    const char *program;                            /* which is beside this one */
    bool ends_at_once; /* the process ends without the ends of the libraries */
};

/* run.c: a program of subcommands. */
struct tool_program {
    const char *name, *about;
    const struct tool *tools;
    size_t n;
};
/* Runs what the command line names; the exit code. */
int tool_main(const struct tool_program *program, int argc, char **argv);

/* The first SIGINT, SIGTERM or SIGHUP from now on does not end the process: what runs asks for it several
 * times a second, ends in good order, and obeys. A second one ends it at once. */
void tool_signals_defer(void);
int tool_signals_caught(void); /* its number; 0: none came */
void tool_signals_obey(void);  /* ends the process by the one that was caught, if one was */

int tool_encode(const struct tool_options *o);
int tool_info(const struct tool_options *o);
int tool_synth(const struct tool_options *o);
int tool_bench(const struct tool_options *o);
int tool_verify(const struct tool_options *o);
int tool_profile(const struct tool_options *o);
int tool_cache(const struct tool_options *o);

/* Fills *out; on a mistake says so on stderr and returns TOOL_USAGE. --help prints and sets *help.
 * The caller frees out->arguments. */
int tool_parse(const struct tool *tool, int argc, char **argv, struct tool_options *out,
               bool *help);
void tool_print_help(const struct tool *tool);

/* "qwenvit: text" on stderr, on a line of its own */
void tool_complain(const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 1, 2)))
#endif
    ;
/* The exit code that belongs to a status; prints the error. */
int tool_fail(qv_status status, const qv_error *err);
int tool_exit_code(qv_status status);

/* With the tune file of the options, or that in the user's cache folder; says its warning. */
qv_status tool_open_context(const struct tool_options *o, qv_context **out, qv_error *err);
/* auto, f32 or bf16; false: it is none of these. */
bool tool_parse_dtype(const char *text, qv_dtype *out);
/* What --weights must be, for the error text; NULL if `text` is that. bench: `bench gemm` may be meant. */
const char *tool_parse_weights(const char *text, bool bench, struct tool_weights *out);
/* The model of a folder, as the options have it. describe: as in qv_model_options. */
qv_status tool_load_model(const struct tool_options *o, qv_context *ctx, const char *dir,
                          bool describe, qv_model **out, qv_error *err);
/* Says a warning that came since the context was opened: the tune file could not be written. */
void tool_close_context(qv_context **ctx, const qv_context_info *opened);

/* Progress on stderr: a bar on a terminal, a line now and then elsewhere. */
struct tool_progress {
    const char *label, *unit; /* unit: "frames" until it is set */
    int64_t total;
    double started_s, shown_s;
    bool quiet, terminal;
};
void tool_progress_begin(struct tool_progress *p, const char *label, int64_t total, bool quiet);
void tool_progress_show(struct tool_progress *p, int64_t done);
void tool_progress_end(struct tool_progress *p, int64_t done);
/* The bar; or, where there is no terminal, a line. */
void tool_bar_show(const char *text, bool terminal);
void tool_bar_end(void);
/* Whether a bar waits for the end of its line. Safe in a signal's handler. */
bool tool_bar_is_shown(void);

/* The same for a job: one line of what is done, how fast, and what limits; with --json a record now and
 * then. */
struct tool_job_progress {
    const struct tool_options *o;
    double shown_s, recorded_s; /* recorded_s 0: never */
    int64_t total;              /* sources */
    bool terminal;
};
struct qv_job;
void tool_job_progress_begin(struct tool_job_progress *p, int64_t total,
                             const struct tool_options *o);
void tool_job_progress_show(struct tool_job_progress *p, struct qv_job *job);
void tool_job_progress_end(void);
/* With --json the record of a clip that failed; key, clip: NULL where there is none. */
void tool_record_failure(const struct tool_options *o, const char *clip, const char *key,
                         qv_status status, const char *words);

bool tool_is_folder(const char *path);
/* Removes what is in a folder; the folder too. */
void tool_clear_folder(const char *folder);
void tool_remove_folder(const char *folder);
/* qv_utf8_text as a JSON string; NULL for lack of memory. */
json_t *tool_json_text(const char *bytes);
int64_t tool_peak_bytes(void); /* of memory that this process had at its most */
/* Prints one JSON object as a line on stdout and drops it. */
void tool_print_json(json_t *object);
/* The same to the options' file, appended, or to stdout. QV_EIO. */
qv_status tool_emit_json(const struct tool_options *o, json_t *object, qv_error *err);

/* clip.c: a short clip with motion, to try on. Sizes are even. */
struct tool_clip_shape {
    int width, height, fps, frames;
    /* As data sets have them: a surface with detail that pans, and grain; H.264 as libx264 writes it by default where
     * FFmpeg has that, else MPEG-4 with B-pictures. Else smooth, in MPEG-4. */
    bool is_filmed;
    int number; /* of one among several that are filmed: it shows another part of the surface */
};
extern const struct tool_clip_shape tool_clip_shape; /* of `synth --clip` */
qv_status tool_make_clip(const char *path, const struct tool_clip_shape *shape, qv_error *err);
/* Writes a clip's packets so many times, one behind the other: a long clip that costs no encoding. */
qv_status tool_repeat_clip(const char *clip, int times, const char *path, qv_error *err);

/* drawing.c: frames of a clip above their tokens' principal components as colours. */
struct tool_drawing;
qv_status tool_drawing_open(const qv_clip_info *clip, const qv_model_info *model,
                            struct tool_drawing **out, qv_error *err);
/* A chunk: frames[n_frames, height, width, 3] and its tokens[., out_hidden], f32. */
void tool_drawing_add(struct tool_drawing *p, const uint8_t *frames, int64_t n_frames,
                      const float *tokens);
qv_status tool_drawing_write(struct tool_drawing *p, const char *path, qv_error *err);
void tool_drawing_close(struct tool_drawing **p);

#endif
