/* SPDX-License-Identifier: MIT */
/* Declarations shared by the subcommands: options, exit codes, messages. Only tools print. */
#pragma once

#include <jansson.h>

#include "clips/make_clip.h"
#include "clock.h"
#include "engine/grouped.h"
#include "qwenvit.h"
#include "qwenvit_clips.h"

enum tool_exit {
    TOOL_DONE = 0,
    TOOL_FAILED = 1, /* a check or part of the work failed */
    TOOL_USAGE = 2,
    TOOL_BAD_INPUT = 3, /* a file cannot be read or used */
    TOOL_DEVICE = 4,    /* the device or the environment failed */
};

enum { TOOL_MOST_DEVICES = 64 };

struct tool_three {
    bool given;
    double values[3];
};
static inline const double *
tool_three(const struct tool_three *three)
{
    return three->given ? three->values : NULL;
}

/* --weights of `bench gemm`: the kind to time. */
struct tool_weights {
    const char *name;        /* "bf16", "q4g64"; NULL: not given */
    struct qv_groups groups; /* bits 0: not quantised */
};

/* Where a subcommand's results go. */
struct tool_results {
    bool json, quiet;      /* records instead of texts; no progress */
    const char *json_file; /* the records' file; NULL: stdout */
    const char *failures;  /* the file for a record per failed clip; NULL: none */
};

/* Every option of every subcommand; a subcommand accepts the options in its groups. */
struct tool_options {
    /* options of all subcommands */
    const char *backend, *naive;
    qv_dtype dtype;
    struct tool_weights weights;
    int64_t threads;
    int64_t devices[TOOL_MOST_DEVICES]; /* [n_devices]; 1 unless the subcommand accepts several */
    size_t n_devices;
    bool all_devices; /* use those of `devices` that exist */
    bool tf32;
    struct tool_results to;
    /* files */
    const char *model, *output, *config, *drawing, *list;
    struct tool_three image_mean, image_std;
    qv_dtype output_dtype;
    bool hidden;
    int64_t chunk_rows;
    /* clips */
    qv_clip_options clip;
    /* synth */
    int64_t seed, shards;
    bool force;
    const char *make_clip;
    /* bench, profile, verify */
    int64_t grid[3], shape[2], repeats, rows;
    double budget; /* seconds for all of a bench; 0: no limit */
    bool no_limit;
    const char *shapes, *pack, *lowering, *verify_clip, *against, *against_backend;
    /* cache */
    const char *out, *key; /* the cache's folder */
    qv_dtype tokens;
    int64_t shard[2]; /* shard I of N; N 0: all */
    int64_t part_bytes;
    double part_seconds;
    bool recursive; /* a folder also stands for its subfolders */
    bool no_deepstack, retry_failed, trust_keys, same_size, no_lock, dry_run, repair, legend,
        key_sample;
    double rate; /* clips per second */
    /* remaining arguments: files or keys */
    const char **arguments;
    size_t n_arguments;
};

enum tool_group {
    GROUP_DEVICE = 1 << 0,  /* backend, dtype, one device, threads */
    GROUP_DEVICES = 1 << 1, /* instead of one device: several */
    GROUP_MODEL = 1 << 2,
    GROUP_OUTPUT = 1 << 3,
    GROUP_CLIP = 1 << 4,
    GROUP_JSON = 1 << 5,   /* results as JSON, and no progress */
    GROUP_RESULT = 1 << 6, /* results as JSON alone */
    GROUP_ENCODE = 1 << 7,
    GROUP_INFO = 1 << 8,
    GROUP_SYNTH = 1 << 9,
    GROUP_VERIFY = 1 << 10,
    GROUP_BENCH = 1 << 11,
    GROUP_PROFILE = 1 << 12,
    GROUP_FILL = 1 << 13,
    GROUP_CACHE = 1 << 14, /* an existing cache */
    GROUP_STATUS = 1 << 15,
    GROUP_KEY = 1 << 16,
    GROUP_REMOVE = 1 << 17,
    GROUP_PRUNE = 1 << 18,
    GROUP_TOWER = 1 << 19, /* this and the next three: one bench each; GROUP_BENCH: all of them */
    GROUP_EMBED = 1 << 20,
    GROUP_CONV3D = 1 << 21,
    GROUP_GEMM = 1 << 22,
    GROUP_CHECK = 1 << 23,
    GROUP_LIST = 1 << 24,
};

struct tool_program;
struct tool {
    const char *name, *does, *example;
    const char *arguments; /* positional arguments; in brackets if optional; NULL: none */
    const char *needs;     /* required options, separated by blanks */
    unsigned groups;
    int (*run)(const struct tool_options *options);
    const struct tool_program *verbs; /* its verbs, instead of run */
    const char *program;              /* the program next to this one that implements it */
    const char *elsewhere;            /* where it is and how to install it, to follow "it is in" */
    bool ends_at_once;                /* exits without running the libraries' exit handlers */
};

/* A program of subcommands, or a subcommand of verbs (subcommand.c). */
struct tool_program {
    const char *name, *about;
    const struct tool *tools;
    size_t n;
};
/* completion.c: returns the last word of a tool's name, such as a verb; prints the output of
 * `help --bash`. */
const char *tool_word(const struct tool *tool);
void tool_print_completion(const struct tool_program *program);
int tool_main(const struct tool_program *program, int argc, char **argv);

/* From now on the first SIGINT, SIGTERM or SIGHUP does not end the process: the subcommand polls
 * for it several times per second, cleans up, and then obeys it. A second signal ends the process
 * at once. */
void tool_signals_defer(void);
int tool_signals_caught(void); /* returns the signal's number; 0: none */
void tool_signals_obey(void);  /* ends the process by the caught signal, if any */

int tool_encode(const struct tool_options *o);
int tool_list(const struct tool_options *o);
int tool_info(const struct tool_options *o);
int tool_synth(const struct tool_options *o);
/* Explains the columns of verify's table. */
#define TOOL_VERIFY_LEGEND                                                                         \
    "  worst, mean   distance |row - other| / |other| of the worst row, and the mean\n"            \
    "  at most       the limit for the figure before it; if both are empty, not judged\n"          \
    "  cosine        of the worst row and its other; pooled: of the sums of all rows"
int tool_verify(const struct tool_options *o);
int tool_cache_fill(const struct tool_options *o);
int tool_cache_status(const struct tool_options *o);
int tool_cache_keys(const struct tool_options *o);
int tool_cache_get(const struct tool_options *o);
int tool_cache_check(const struct tool_options *o);
int tool_cache_prune(const struct tool_options *o);
int tool_cache_delete(const struct tool_options *o);

/* Fills *out. On wrong usage it prints an error and returns TOOL_USAGE. If --help is given, *help
 * becomes the requested page: "" for the subcommand's own, or the name of a page of shared options.
 * The caller frees out->arguments. */
int tool_parse(const struct tool *tool, int argc, char **argv, struct tool_options *out,
               const char **help);
void tool_print_help(const struct tool *tool, const char *page);
/* Prints the names of a subcommand's options, for completion. */
void tool_print_options(const struct tool *tool);
/* Parses n integers of at least `least`, separated by `between`. */
bool tool_parse_integers(const char *text, int64_t *out, int n, char between, int64_t least);
/* Checks that an output's name has its format's extension, unless it is a device or pipe. Returns
 * QV_EINVAL. */
qv_status tool_check_ending(const char *path, const char *ending, qv_error *err);
enum { TOOL_USAGE_BYTES = 128 };
const char *tool_usage(const struct tool *tool, char text[TOOL_USAGE_BYTES]);
enum tool_file { TOOL_INPUT = 1, TOOL_CLIPS, TOOL_OUTPUT };
enum { TOOL_MOST_NAMED = 16 };
/* Lists the files that the options name: inputs, clips and lists of clips, or outputs. Returns how
 * many. */
size_t tool_named_files(const struct tool_options *o, enum tool_file kind,
                        const char *names[TOOL_MOST_NAMED]);

#if defined(__GNUC__)
#define TOOL_PRINTS(format_number) __attribute__((format(printf, format_number, format_number + 1)))
#else
#define TOOL_PRINTS(format_number)
#endif
/* Prints on stdout like printf, but replaces control characters in quoted text (file names, keys,
 * models' texts) by '?'. All text from outside must be printed by this function, tool_say,
 * tool_complain or tool_bar_show. A "\n" at the start or end of the format is kept; any other line
 * end becomes '?'. */
void tool_print(const char *format, ...) TOOL_PRINTS(1);
/* Prints a line on stderr, with the same replacements. */
void tool_say(const char *format, ...) TOOL_PRINTS(1);
/* Prints the line "qwenvit: text" on stderr, with the same replacements. */
void tool_complain(const char *format, ...) TOOL_PRINTS(1);
/* tool_fail prints the error and returns the status's exit code. */
int tool_fail(qv_status status, const qv_error *err);
int tool_exit_code(qv_status status);

/* Opens a context on a device and prints its warning. The context keeps kernels in the user's cache
 * folder. */
qv_status tool_open_context(const struct tool_options *o, int64_t device, qv_context **out,
                            qv_context_info *info, qv_error *err);
const char *tool_decoder_program(void);
/* Closes the context. Prints a warning that is newer than the opening: a kernel could not be
 * kept. */
void tool_close_context(qv_context **ctx, const qv_context_info *opened);

/* Loads the model in `dir` with the options' dtype and means, and prints its warning. `describe`:
 * see qv_model_options. */
qv_status tool_load_model(const struct tool_options *o, qv_context *ctx, const char *dir,
                          bool describe, qv_model **out, qv_model_info *info, qv_error *err);

/* Progress on stderr: a bar on a terminal, else an occasional line. */
struct tool_progress {
    const char *label, *unit; /* unit: "frames" unless set */
    int64_t total;
    double started_s, shown_s;
    bool quiet, terminal;
};
void tool_progress_begin(struct tool_progress *p, const char *label, int64_t total, bool quiet);
void tool_progress_show(struct tool_progress *p, int64_t done);
void tool_progress_end(struct tool_progress *p, int64_t done);

/* Returns whether fewer than *least letters must be removed, added or replaced to turn the word
 * into `name`; then *least becomes that number. */
bool tool_is_nearer(const char *name, const char *word, size_t *least);
/* Shows the text as a bar on a terminal, else as a line. Control characters are replaced as by
 * tool_print. */
void tool_bar_show(bool terminal, const char *format, ...) TOOL_PRINTS(2);
void tool_bar_end(void);
/* Returns whether a bar is shown without a line end after it. Safe in a signal handler. */
bool tool_bar_is_shown(void);

/* A job's progress: one line with the number of finished clips, the rate and the limiting stage;
 * with --json also an occasional record. */
struct tool_job_progress {
    const struct tool_results *to;
    double shown_s, recorded_s; /* recorded_s 0: never */
    int64_t total;              /* number of sources */
    const char *limit;          /* the limiting stage, as last reported */
    bool terminal, told_no_gpu;
    qv_job_progress from[2]; /* earlier progress, oldest first */
};
struct qv_job;
void tool_job_progress_begin(struct tool_job_progress *p, int64_t total,
                             const struct tool_results *to);
void tool_job_progress_show(struct tool_job_progress *p, struct qv_job *job);

/* failures.c: errors of clips, grouped by reason. Zeros mean no errors; the caller locks. */
enum { TOOL_WORDS = sizeof(((qv_error *)NULL)->text) };
struct tool_reason {
    int64_t n;                                /* clips */
    char name[TOOL_WORDS];                    /* the alphabetically first clip */
    char text[TOOL_WORDS], first[TOOL_WORDS]; /* their common text; the first's whole text */
};
struct tool_reasons {
    struct tool_reason *at;
    size_t n, room;
    int64_t n_others; /* clips whose reasons are not listed */
    bool has_records;
    qv_error lost; /* why a record is missing in --failures; empty: none is */
};
void tool_reasons_add(struct tool_reasons *r, const char *name, const char *words);
/* Adds a failed clip, and writes its record to --json and --failures. clip or key may be NULL. */
void tool_reasons_lose(struct tool_reasons *r, const struct tool_results *to, const char *clip,
                       const char *key, qv_status status, const char *words);
/* Prints at most 10 lines, and frees the reasons. */
void tool_reasons_tell(struct tool_reasons *r, const struct tool_results *to);

/* outputs.c: these return QV_EINVAL, naming the file, if two outputs are one file, or if an output
 * is an input, a file in the model's folder or a file of the cache. tool_check_named_outputs checks
 * the files that the options name. tool_check_list_outputs checks the files of --json and
 * --drawing, and `more` outputs, against a list and its clips. */
qv_status tool_check_named_outputs(const struct tool_options *o, qv_error *err);
struct tool_list;
/* Checks the extension of a token file, whose name may also have none. */
qv_status tool_check_token_file(const char *path, qv_error *err);
qv_status tool_check_list_outputs(const struct tool_options *o, const struct tool_list *list,
                                  const char *const *more, size_t n_more, qv_error *err);

/* describe.c: describes a safetensors or tar file; returns false if the file is neither. */
bool tool_describe(const struct tool_results *to, const char *path, qv_status *status,
                   qv_error *err);

bool tool_is_folder(const char *path);
/* Returns qv_utf8_text as a JSON string; NULL for lack of memory. */
json_t *tool_json_text(const char *bytes);
int64_t tool_peak_bytes(void); /* returns the peak memory of this process */
/* Returns a value as a line of JSON, for free(); NULL for lack of memory. Control characters are
 * escaped, even the ones that JSON allows. */
char *tool_json_line(const json_t *value);
/*
 * show.c: returns an object. Its fields are given as "NAME:KIND NAME:KIND ..", followed by their
 * values. A NAME A.B is member B of the object A. A KIND is I (int64_t, or another type of 8
 * bytes), i (int), b (of int), f (double), s (UTF-8), t (any bytes) or o (json_t *, whose reference
 * is taken). Returns NULL for lack of memory, or if a value is NULL. tool_json_add adds fields to
 * an object, which becomes NULL on failure.
 */
json_t *tool_json(const char *fields, ...);
void tool_json_add(json_t **object, const char *fields, ...);
json_t *tool_json_grid(const int64_t thw[3]);
/* Adds the fields of a clip that a reader (enum qv_outcome_reader) sees. */
void tool_json_add_outcome(json_t **object, const qv_outcome *o, unsigned reader);
/* Appends a JSON object as a line to its file, or prints it on stdout. Drops the
 * reference. Returns QV_EIO. */
qv_status tool_emit_json(const struct tool_results *to, json_t *object, qv_error *err);
/*
 * show.c: with --json does the same; else prints the text, in which
 *   {NAME} or {NAME|HOW}  is a field of the object. HOW, for an array: the text between its
 *                         values, or "n" for their number; for a number: "size" (memory), "GB"
 *                         (files) or "time" (seconds), each in a fitting unit, "s" (prints s
 *                         unless the number is 1), or the digits of a real (3: "%.3g",
 *                         2f: "%.2f")
 *   [NAME?..], [!NAME?..] is printed only if the field exists and is not 0, "", false or empty;
 *                         with ! only otherwise
 * and NAME may be A.B, member B of the object A. The member "text" is used only
 * in the text, and left out of the JSON. Drops the reference. Returns QV_EIO; QV_ENOMEM if the
 * object is NULL.
 */
qv_status tool_show(const struct tool_results *to, json_t *object, const char *text, qv_error *err);

/* synth.c: makes a short test clip with motion. */
extern const struct qvm_clip_shape tool_clip_shape; /* shape of `synth --clip` */
qv_status tool_make_clip(const char *path, const struct qvm_clip_shape *shape, qv_error *err);

/* drawing.c: draws a clip's frames above their tokens, coloured by principal components. */
struct tool_drawing;
qv_status tool_drawing_open(const qv_outcome *clip, const qv_model_info *model,
                            struct tool_drawing **out, qv_error *err);
/* Adds a chunk: frames[n_frames, height, width, 3] and its tokens[., out_hidden]. */
void tool_drawing_add(struct tool_drawing *p, const uint8_t *frames, int64_t n_frames,
                      const void *tokens, qv_dtype dtype);
qv_status tool_drawing_write(struct tool_drawing *p, const char *path, qv_error *err);
void tool_drawing_close(struct tool_drawing **p);
/* Computes colours[n, 3] of tokens[n, dim], which are centred in place: red, green and blue are the
 * first three principal components, each scaled from its 2nd to its 98th percentile. Returns false
 * for lack of memory. */
bool tool_drawing_colours(float *tokens, int64_t n, int64_t dim, uint8_t *colours);

/* png.c: writes rgb[height, width, 3] as a PNG file. */
qv_status tool_write_png(const char *path, const uint8_t *rgb, int height, int width,
                         qv_error *err);
