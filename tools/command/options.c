/* SPDX-License-Identifier: MIT */
/* The table of options and arguments that drives parsing, help and the checks of files. */
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "clips/option_list.h"
#include "dtype.h"
#include "error.h"
#include "tool.h"

enum kind {
    TEXT,
    INPUT = TOOL_INPUT, /* texts that name files (tool_named_files) */
    CLIPS = TOOL_CLIPS,
    OUTPUT = TOOL_OUTPUT,
    FLAG,
    WORD,   /* a flag whose only value is the table's `value` */
    COUNT,  /* from 1 up */
    NUMBER, /* from 0 up */
    PAIR,
    TRIPLE,
    REAL,
    REALS,
    DTYPE,
    TOKENS,
    WEIGHTS,
    SHARD,
    BACKEND,
    DEVICE,
    DEVICES,
    JSON,
    CLIP, /* of clips/options.inc */
    OLD   /* renamed: refused, with `value` as its new name */
};

/* What a value must be; NULL: a text. */
static const char *const wanted[] = {
    [COUNT] = "an integer of at least 1",
    [NUMBER] = "an integer of at least 0",
    [PAIR] = "two integers of at least 1: A,B",
    [TRIPLE] = "three integers of at least 1: T,H,W",
    [REAL] = "a number above 0",
    [REALS] = "three numbers, R,G,B",
    [DTYPE] = "f32, bf16 or auto",
    [TOKENS] = "bf16 or f32",
    [WEIGHTS] = "bf16, q4g64 or q8g64",
    [SHARD] = "I/N with I from 0 to N - 1 and N up to 99999",
    [DEVICE] = "an index (0, 1, ..), cpu or cuda:1; this subcommand uses only one device",
    [DEVICES] = "an index (0, 1, ..), cpu or cuda:1, several separated by commas, or all",
};

/* An option, or an argument if its name does not begin with "-". If several entries have one name,
 * the subcommand uses the first whose group it has. */
struct option {
    const char *name, *value, *help;
    enum kind kind;
    unsigned group;
    size_t at;
    const char *with; /* the option that it requires */
};

#define AT(field) .at = offsetof(struct tool_options, field)

static const struct option options[] = {
    { "DIR", NULL, "the cache's folder", TEXT, GROUP_CACHE, AT(out) },
    { "KEY", NULL, "the key whose tensors to write", TEXT, GROUP_KEY, AT(key) },
    { "--model", "DIR", "checkpoint folder as Hugging Face stores it, or a GGUF file (mmproj)",
      INPUT, GROUP_MODEL, AT(model) },
    { "--image-mean", "R,G,B", "channel means for images and clips (default: the checkpoint's)",
      REALS, GROUP_CLIP, AT(image_mean) },
    { "--image-std", "R,G,B", "channel deviations for images and clips (default: the checkpoint's)",
      REALS, GROUP_CLIP, AT(image_std) },
    { "-o", "OUT", "file or folder to write the result to; a folder's name may end in /", OUTPUT,
      GROUP_OUTPUT, AT(output) },
    { "--list", "FILE", "list of clips, one path or JSON object per line; - is standard input",
      CLIPS, GROUP_ENCODE | GROUP_FILL | GROUP_INFO, AT(list) },
    { "--list", "FILE", "count only the clips of this list, and those missing from the cache",
      CLIPS, GROUP_STATUS, AT(list) },
    { "--list", "FILE", "remove every key that is not in this list", CLIPS, GROUP_PRUNE, AT(list) },
    { "-o", "DIR", "the cache's folder", OUTPUT, GROUP_FILL, AT(out) },
    { "--recursive", NULL, "also search a folder's subfolders for clips", FLAG,
      GROUP_ENCODE | GROUP_FILL, AT(recursive) },
    { "--shard", "I/N", "use only share I of N of the list; I starts at 0", SHARD,
      GROUP_FILL | GROUP_STATUS, AT(shard), .with = "--list" },
    { "--tokens", "TYPE", "dtype of the tokens in the cache: bf16 (default) or f32", TOKENS,
      GROUP_FILL, AT(tokens) },
    { "--no-deepstack", NULL, "leave out the DeepStack outputs", FLAG, GROUP_FILL,
      AT(no_deepstack) },
    { "--part-bytes", "N", "seal a part when it reaches N bytes (default 1 GiB)", COUNT, GROUP_FILL,
      AT(part_bytes) },
    { "--part-seconds", "S", "seal a part when it is S seconds old (default 300)", REAL, GROUP_FILL,
      AT(part_seconds) },
    { "--retry-failed", NULL, "retry clips that failed before", FLAG, GROUP_FILL,
      AT(retry_failed) },
    { "--same", "size",
      "a file of the same path and size counts as the same clip, whatever its time", WORD,
      GROUP_FILL | GROUP_STATUS, AT(same_size), .with = "--list" },
    { "--trust-keys", NULL, "a file of the same size counts as the key's clip, wherever it is",
      FLAG, GROUP_FILL | GROUP_STATUS, AT(trust_keys), .with = "--list" },
    { "--dry-run", NULL, "only estimate what a run would do", FLAG, GROUP_FILL, AT(dry_run) },
    { "--dry-run", NULL, "only report what would be removed", FLAG, GROUP_REMOVE, AT(dry_run) },
    { "--rate", "N", "estimate the time at N clips per second, over all processes", REAL,
      GROUP_FILL, AT(rate), .with = "--dry-run" },
    { "--rate", "N", "estimate the time at N clips per second, over all processes", REAL,
      GROUP_INFO, AT(rate), .with = "--list" },
    { "--repair", NULL, "remove damaged keys, so that the next run encodes them again", FLAG,
      GROUP_CHECK, AT(repair) },
    { "--no-lock", NULL, "the cache is on a file system without locks, and nobody else uses it",
      FLAG, GROUP_REMOVE | GROUP_CHECK, AT(no_lock) },
    { "--key", "sample",
      "use WebDataset's keys: the name up to its first dot, without the tar file's", WORD,
      GROUP_LIST, AT(key_sample) },
    { "--drawing", "FILE.png", "also draw the frames and their tokens", OUTPUT, GROUP_ENCODE,
      AT(drawing) },
    { "--output-dtype", "TYPE",
      "dtype of the tokens in the file: f32 or bf16 (default: the model's)", DTYPE, GROUP_ENCODE,
      AT(output_dtype) },
    { "--hidden-states", NULL, "also write the last block's rows, one per patch", FLAG,
      GROUP_ENCODE, AT(hidden) },
    { "--chunk-rows", "N", "patches per chunk (default: chosen for the device)", COUNT,
      GROUP_ENCODE | GROUP_FILL | GROUP_TOWER, AT(chunk_rows) },
    { "--config", "DIR", "folder whose config.json sets the sizes", TEXT, GROUP_SYNTH, AT(config) },
    { "--seed", "N", "seed of the random weights (default 1)", NUMBER, GROUP_SYNTH, AT(seed) },
    { "--shards", "N", "split the weights over N files (default 1)", COUNT, GROUP_SYNTH,
      AT(shards) },
    { "--clip", "FILE.mp4", "make a short clip with motion, instead of a checkpoint", OUTPUT,
      GROUP_SYNTH, AT(make_clip) },
    { "--force", NULL, "replace an existing checkpoint or clip", FLAG, GROUP_SYNTH, AT(force) },
#define QV_CLIP_OPTION(member, name, row, kind, most, scopes, flag, value, help)                   \
    {                                                                                              \
        flag,   value, help, CLIP, (scopes)&QVM_TIMES ? GROUP_ENCODE | GROUP_INFO : GROUP_CLIP,    \
        .at = 0                                                                                    \
    },
#include "clips/options.inc"
    { "--clip", "FILE", "use this clip's pixels (default: seeded random pixels)", CLIPS,
      GROUP_VERIFY, AT(verify_clip) },
    { "--against", "FILE", "compare with another program's layers, in a safetensors file", INPUT,
      GROUP_VERIFY, AT(against) },
    { "--against-backend", "NAME", "compare with f32 on this backend (default: the same backend)",
      TEXT, GROUP_VERIFY, AT(against_backend) },
    { "--legend", NULL, "explain the columns below the table", FLAG, GROUP_VERIFY | GROUP_BENCH,
      AT(legend) },
    { "--grid", "T,H,W", "frame pairs, rows of patches, columns of patches (default 1,20,38)",
      TRIPLE, GROUP_TOWER | GROUP_PROFILE | GROUP_VERIFY, AT(grid) },
    { "--pack", "FILE", "file with one grid t,h,w per line, to pack into chunks", INPUT,
      GROUP_TOWER, AT(pack) },
    { "--no-limit", NULL, "skip timing the GEMMs and attention on their own", FLAG, GROUP_TOWER,
      AT(no_limit) },
    { "--shapes", "FILE", "file with one convolution per line (default: a built-in list)", INPUT,
      GROUP_CONV3D, AT(shapes) },
    { "--lowering", "NAME", "time only this lowering", TEXT, GROUP_CONV3D, AT(lowering) },
    { "--rows", "N", "most rows to time (default: as many as this device does in seconds)", COUNT,
      GROUP_EMBED | GROUP_GEMM, AT(rows) },
    { "--shape", "N,K", "time one matrix of this size instead of a tower's", PAIR, GROUP_GEMM,
      AT(shape) },
    { "--repeats", "N", "number of timed runs or chunks (default 7)", COUNT,
      GROUP_BENCH | GROUP_PROFILE, AT(repeats) },
    { "--budget", "SECONDS", "stop timing after this long; a run that has begun is finished", REAL,
      GROUP_BENCH, AT(budget) },
    { "--backend", "NAME", "auto (default), cuda, metal, cpu or ref", BACKEND, GROUP_DEVICE,
      AT(backend) },
    { "--dtype", "TYPE", "f32 or bf16 (default: bf16 if the device supports it)", DTYPE,
      GROUP_DEVICE | GROUP_SYNTH, AT(dtype) },
    { "--weights", "KIND", "bf16 (default), or quantised: q4g64 or q8g64, with up to 64 rows",
      WEIGHTS, GROUP_GEMM, AT(weights) },
    { "--device", "N",
      "index of the device (default 0), several (0,1), all, or a name: cpu, cuda:1", DEVICES,
      GROUP_DEVICES, AT(devices) },
    { "--device", "N", "index of the device (default 0), or a name: cpu, cuda:1", DEVICE,
      GROUP_DEVICE, AT(devices) },
    { "--tf32", NULL, "cuda: f32 GEMMs may run in TF32", FLAG, GROUP_DEVICE, AT(tf32) },
    { "--naive", "OPS", "metal: operations to run on simple kernels: all, or a list like gemm,norm",
      TEXT, GROUP_DEVICE, AT(naive) },
    { "--threads", "N", "CPU threads (default: every core)", NUMBER, GROUP_DEVICE, AT(threads) },
    { "--json[=FILE]", NULL, "print results as JSON, one object per line, or append them to FILE",
      JSON, GROUP_JSON | GROUP_RESULT, AT(to.json_file) },
    { "--failures", "FILE", "append a JSON object per failed clip to FILE", OUTPUT,
      GROUP_ENCODE | GROUP_FILL | GROUP_STATUS | GROUP_INFO, AT(to.failures) },
    { "--quiet", NULL, "print no progress", FLAG, GROUP_JSON, AT(to.quiet) },
    { "--picture", "--drawing", NULL, OLD, GROUP_ENCODE, .at = 0 },
    { "--out", "-o", NULL, OLD, GROUP_FILL, .at = 0 },
    { "--out", "the argument DIR", NULL, OLD, GROUP_CACHE, .at = 0 },
};
enum { N_OPTIONS = sizeof options / sizeof *options };

#define EACH_OPTION(o)                                                                             \
    const struct option *o = options;                                                              \
    o < options + N_OPTIONS;                                                                       \
    o++

/* Options that most subcommands share have separate pages of --help. The first page is the
 * subcommand's own. */
static const struct page {
    const char *name, *about;
    unsigned groups;
} pages[] = {
    { "", NULL, ~(unsigned)(GROUP_CLIP | GROUP_DEVICE | GROUP_DEVICES) },
    { "clips", "options for frames and decoding: --fps, --max-frames, --max-pixels, ..",
      GROUP_CLIP },
    { "device", "options for the device: --backend, --device, --dtype, --threads, ..",
      GROUP_DEVICE | GROUP_DEVICES },
};
enum { N_PAGES = sizeof pages / sizeof *pages };

static const struct page *
find_page(const struct tool *tool, const char *name)
{
    for (const struct page *p = pages; p < pages + N_PAGES; p++)
        if (!strcmp(p->name, name) && (!*name || p->groups & tool->groups))
            return p;
    return NULL;
}

/* Lists the names of a subcommand's pages, for an error. */
static void
list_pages(const struct tool *tool, char text[TOOL_USAGE_BYTES])
{
    *text = 0;
    for (const struct page *p = pages + 1; p < pages + N_PAGES; p++)
        if (p->groups & tool->groups)
            qv_list_name(text, TOOL_USAGE_BYTES, p->name);
}

/* Returns the subcommand's option whose name is the first `length` bytes; NULL: unknown. */
static const struct option *
find_option(const struct tool *tool, const char *name, size_t length)
{
    for (EACH_OPTION(o))
        if (strcspn(o->name, "[") == length && !strncmp(o->name, name, length) &&
            (o->group & tool->groups))
            return o;
    return NULL;
}

static bool
is_argument(const struct option *o)
{
    return *o->name && *o->name != '-';
}

/* Returns the first option that the text names, and moves the text past its name; NULL: the end. */
static const struct option *
next_needed(const struct tool *tool, const char **text)
{
    const char *name = *text ? *text + strspn(*text, " ") : "";
    const size_t length = strcspn(name, " ");
    *text = name + length;
    return length ? find_option(tool, name, length) : NULL;
}

/* ---- help ------------------------------------------------------------------------------------ */

static void
print_option(const char *name, const char *between, const char *value, const char *help)
{
    char left[40];
    snprintf(left, sizeof left, "%s%s%s", name, between, value);
    printf("  %-22s %s\n", left, help);
}

const char *
tool_usage(const struct tool *tool, char text[TOOL_USAGE_BYTES])
{
    int n = snprintf(text, TOOL_USAGE_BYTES, "qwenvit %s", tool->name);
    const struct option *needed;
    for (EACH_OPTION(o))
        if (is_argument(o) && o->group & tool->groups)
            n += snprintf(text + n, TOOL_USAGE_BYTES - (size_t)n, " %s", o->name);
    if (tool->arguments)
        n += snprintf(text + n, TOOL_USAGE_BYTES - (size_t)n, " %s", tool->arguments);
    for (const char *needs = tool->needs; (needed = next_needed(tool, &needs)) != NULL;)
        n +=
            snprintf(text + n, TOOL_USAGE_BYTES - (size_t)n, " %s %s", needed->name, needed->value);
    return text;
}

void
tool_print_options(const struct tool *tool)
{
    for (EACH_OPTION(o)) {
        const size_t n = strcspn(o->name, "[");
        if (o->help && *o->name == '-' && find_option(tool, o->name, n) == o)
            printf(" %.*s", (int)n, o->name);
    }
}

void
tool_print_help(const struct tool *tool, const char *page)
{
    const struct page *asked = find_page(tool, page);
    char text[TOOL_USAGE_BYTES];
    if (*page)
        printf("qwenvit %s, %.*s:\n\n", tool->name, (int)strcspn(asked->about, ":"), asked->about);
    else
        printf("usage: %s [options]\n\n%s\n\noptions:\n", tool_usage(tool, text), tool->does);
    for (EACH_OPTION(o))
        if (o->help && o->group & tool->groups & asked->groups &&
            find_option(tool, o->name, strcspn(o->name, "[")) == o)
            print_option(o->name, o->value ? " " : "", o->value ? o->value : "", o->help);
    if (*page)
        return;
    for (const struct page *p = pages + 1; p < pages + N_PAGES; p++)
        if (p->groups & tool->groups)
            print_option("--help=", "", p->name, p->about);
    print_option("--help", "", "", "print this text");
    printf("\nexample: %s\n", tool->example);
}

/* ---- values ---------------------------------------------------------------------------------- */

bool
tool_parse_integers(const char *text, int64_t *out, int n, char between, int64_t least)
{
    for (int i = 0; i < n; i++) {
        char *end;
        errno = 0;
        out[i] = strtoll(text, &end, 10);
        if (end == text || errno || out[i] < least || *end != (i + 1 < n ? between : 0))
            return false;
        text = end + 1;
    }
    return true;
}

static bool
parse_reals(const char *text, double *out, int n)
{
    for (int i = 0; i < n; i++) {
        char *end;
        out[i] = strtod(text, &end);
        if (end == text || !isfinite(out[i]) || *end != (i + 1 < n ? ',' : 0))
            return false;
        text = end + 1;
    }
    return true;
}

/* Consumes a backend's name before indices, as in "cuda:1", or alone, and returns the rest. A name
 * that contradicts --backend is left in place. */
static const char *
take_backend(const char *text, struct tool_options *out)
{
    static const char *const names[] = { "cuda", "metal", "cpu", "ref" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const size_t n = strlen(names[i]);
        if (strncmp(text, names[i], n) != 0 || (text[n] && text[n] != ':') ||
            (out->backend && strcmp(out->backend, names[i]) != 0 &&
             strcmp(out->backend, "auto") != 0))
            continue;
        out->backend = names[i];
        return text[n] ? text + n + 1 : "0";
    }
    return text;
}

/* Parses "all", or indices separated by commas. */
static bool
parse_devices(const char *text, struct tool_options *out)
{
    size_t n = 1;
    for (const char *c = text; *c; c++)
        n += *c == ',';
    out->all_devices = !strcmp(text, "all");
    out->n_devices = out->all_devices ? TOOL_MOST_DEVICES : n;
    for (int i = 0; i < TOOL_MOST_DEVICES && out->all_devices; i++)
        out->devices[i] = i;
    return out->all_devices ||
           (n <= TOOL_MOST_DEVICES && tool_parse_integers(text, out->devices, (int)n, ',', 0));
}

static bool
parse_dtype(const char *text, qv_dtype *out, unsigned set)
{
    return qv_dtype_parse(text, out) && 1U << *out & set;
}

static bool
parse_weights(const char *text, struct tool_weights *out)
{
    /* MLX's quantised groups, whose scales are mostly bf16 */
    static const struct tool_weights kinds[] = {
        { "bf16", { 0 } },
        { "q4g64", { 4, 64, QV_BF16 } },
        { "q8g64", { 8, 64, QV_BF16 } },
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(text, kinds[i].name)) {
            *out = kinds[i];
            return true;
        }
    return false;
}

static const char *
parse_clip_option(const struct option *o, const char *text, qv_clip_options *out)
{
    const struct qvm_option *p = qvm_options;
    while (strcmp(p->flag, o->name) != 0)
        p++;
    qv_value v = { .type = QV_VALUE_TEXT, .text = text };
    if (p->kind == QVM_A_FLAG)
        v = (qv_value){ .type = QV_VALUE_FLAG, .integer = true };
    else if (p->kind == QVM_A_COUNT || p->kind == QVM_A_PLACE)
        v.type = tool_parse_integers(text, &v.integer, 1, 0, INT64_MIN) ? QV_VALUE_INTEGER
                                                                        : QV_VALUE_OTHER;
    else if (qvm_option_is_real(p))
        v.type = parse_reals(text, &v.real, 1) ? QV_VALUE_REAL : QV_VALUE_OTHER;
    return qvm_option_take(p, out, &v, true);
}

/* Parses a value. Returns NULL if it is valid, else what it must be, for the error message. */
static const char *
parse_value(const struct option *o, const char *text, struct tool_options *out)
{
    const unsigned f32_or_bf16 = 1U << QV_F32 | 1U << QV_BF16;
    void *at = (char *)out + o->at;
    bool good = true;
    switch (o->kind) {
    case TEXT:
    case INPUT:
    case CLIPS:
    case OUTPUT:
        *(const char **)at = text;
        good = *text;
        break;
    case FLAG: *(bool *)at = true; break;
    case WORD: *(bool *)at = true; return o->value && !strcmp(text, o->value) ? NULL : o->value;
    case BACKEND: /* cuda:1 is a value of --device; the library refuses unknown names */
        if (strchr(text, ':') && take_backend(text, out) != text)
            return parse_value(&(struct option){ .kind = DEVICES }, text, out);
        *(const char **)at = text;
        good = *text;
        break;
    case COUNT: good = tool_parse_integers(text, at, 1, ',', 1); break;
    case NUMBER: good = tool_parse_integers(text, at, 1, ',', 0); break;
    case DEVICE: good = tool_parse_integers(take_backend(text, out), at, 1, ',', 0); break;
    case PAIR: good = tool_parse_integers(text, at, 2, ',', 1); break;
    case TRIPLE: good = tool_parse_integers(text, at, 3, ',', 1); break;
    case REAL: good = parse_reals(text, at, 1) && *(double *)at > 0; break;
    case REALS: {
        struct tool_three *three = at;
        three->given = true;
        good = parse_reals(text, three->values, 3);
        break;
    }
    case DTYPE: good = parse_dtype(text, at, f32_or_bf16 | 1U << QV_DTYPE_AUTO); break;
    case TOKENS: good = parse_dtype(text, at, f32_or_bf16); break;
    case WEIGHTS: good = parse_weights(text, at); break;
    case SHARD: {
        const int64_t *shard = at;
        good = tool_parse_integers(text, at, 2, '/', 0) && shard[0] < shard[1] && shard[1] <= 99999;
        break;
    }
    case DEVICES: good = parse_devices(take_backend(text, out), out); break;
    case JSON:
        out->to.json = true;
        *(const char **)at = *text ? text : NULL;
        break;
    case CLIP: return parse_clip_option(o, text, &out->clip);
    case OLD: break;
    }
    return good ? NULL : wanted[o->kind] ? wanted[o->kind] : "a non-empty text";
}

size_t
tool_named_files(const struct tool_options *given, enum tool_file kind,
                 const char *names[TOOL_MOST_NAMED])
{
    size_t n = 0;
    for (EACH_OPTION(o)) {
        const char *name = (enum kind)kind == o->kind || (o->kind == JSON && kind == TOOL_OUTPUT)
                               ? *(const char *const *)(const void *)((const char *)given + o->at)
                               : NULL;
        for (size_t i = 0; i < n && name; i++)
            name = names[i] == name ? NULL : name; /* several entries are one member */
        if (name)
            names[n++] = name;
    }
    return n;
}

/* ---- the command line ------------------------------------------------------------------------ */

struct line {
    const struct tool *tool;
    int argc, i;
    char **argv;
    struct tool_options *out;
    bool given[N_OPTIONS];
};

#define WRONG(line, format, ...)                                                                   \
    (tool_complain("%s: " format " (qwenvit %s --help)", (line)->tool->name, __VA_ARGS__,          \
                   (line)->tool->name),                                                            \
     TOOL_USAGE)

qv_status
tool_check_ending(const char *path, const char *ending, qv_error *err)
{
    struct stat st;
    const size_t n = strlen(path), of_ending = strlen(ending);
    const bool is_file = stat(path, &st) || S_ISREG(st.st_mode) || S_ISDIR(st.st_mode);
    return is_file && (n <= of_ending || strcasecmp(path + n - of_ending, ending) != 0)
               ? qv_fail(err, QV_EINVAL, "%s: the file name must end in %s", path, ending)
               : QV_OK;
}

static int
take_value(struct line *l, const struct option *o, const char *text)
{
    l->given[o - options] = true;
    const char *must = parse_value(o, text, l->out);
    const char *ending = o->kind == OUTPUT && o->value ? strchr(o->value, '.') : NULL;
    qv_error err;
    if (ending && !must && tool_check_ending(text, ending, &err))
        return WRONG(l, "%s %s", o->name, err.text);
    return must ? WRONG(l, "%s is \"%s\"; it must be %s", o->name, text, must) : TOOL_DONE;
}

/* Stores the next required argument, or else one of the optional ones. */
static int
take_argument(struct line *l, const char *text)
{
    for (EACH_OPTION(o))
        if (is_argument(o) && o->group & l->tool->groups && !l->given[o - options])
            return take_value(l, o, text);
    if (!l->tool->arguments)
        return WRONG(l, "unexpected argument: %s", text);
    l->out->arguments[l->out->n_arguments++] = text;
    return TOOL_DONE;
}

static int
take_option(struct line *l, const char *text)
{
    const char *equals = strncmp(text, "--", 2) ? NULL : strchr(text, '=');
    const struct option *o =
        find_option(l->tool, text, equals ? (size_t)(equals - text) : strlen(text));
    if (!o) {
        const struct option *best = NULL;
        size_t least = 3;
        for (EACH_OPTION(a))
            if (a->group & l->tool->groups && tool_is_nearer(text, a->name, &least))
                best = a;
        return best ? WRONG(l, "unknown option %s; did you mean %s?", text, best->name)
                    : WRONG(l, "unknown option %s", text);
    }
    if (o->kind == OLD)
        return WRONG(l, "%s is now %s", o->name, o->value);
    if (equals && !o->value && o->kind != JSON)
        return WRONG(l, "%s is \"%s\"; it must be given without a value", o->name, equals + 1);
    if (!equals && o->value && ++l->i == l->argc)
        return WRONG(l, "%s needs a value: %s %s", o->name, o->name, o->value);
    return take_value(l, o, equals ? equals + 1 : o->value ? l->argv[l->i] : "");
}

/* Returns whether an argument asks for help. *page becomes the name of the page. */
static bool
asks_for_help(const char *arg, const char **page)
{
    const bool names_page = !strncmp(arg, "--help=", 7);
    if (!names_page && strcmp(arg, "--help") != 0 && strcmp(arg, "-h") != 0)
        return false;
    *page = names_page ? arg + 7 : "";
    return true;
}

/* Checks that everything that the subcommand or a given option requires is given. */
static int
check_given(const struct line *l)
{
    const struct tool *tool = l->tool;
    const struct option *o;
    for (EACH_OPTION(a))
        if (is_argument(a) && a->group & tool->groups && !l->given[a - options])
            return WRONG(l, "%s is required", a->name);
    if (tool->arguments && *tool->arguments != '[' && !l->out->n_arguments)
        return WRONG(l, "%s is required", tool->arguments);
    for (const char *needs = tool->needs; (o = next_needed(tool, &needs)) != NULL;)
        if (!l->given[o - options])
            return WRONG(l, "%s %s is required", o->name, o->value);
    for (EACH_OPTION(a)) {
        if (a->with && !strcmp(a->with, "--list") && tool->groups & GROUP_FILL)
            continue; /* clips may be arguments */
        o = l->given[a - options] && a->with ? find_option(tool, a->with, strlen(a->with)) : NULL;
        if (o && !l->given[o - options])
            return WRONG(l, "%s requires %s", a->name, o->name);
    }
    return TOOL_DONE;
}

int
tool_parse(const struct tool *tool, int argc, char **argv, struct tool_options *out,
           const char **help)
{
    struct line l = { .tool = tool, .argc = argc, .argv = argv, .out = out };
    *out = (struct tool_options){
        .n_devices = 1, .seed = 1, .shards = 1, .repeats = 7, .grid = { 1, 20, 38 }
    };
    out->arguments = calloc((size_t)argc + 1, sizeof *out->arguments);
    if (!out->arguments) {
        tool_complain("no memory for arguments");
        return TOOL_DEVICE;
    }
    bool only_arguments = false;
    int code = TOOL_DONE;
    for (; l.i < argc && !code; l.i++) {
        const char *arg = argv[l.i];
        if (only_arguments || arg[0] != '-' || !arg[1])
            code = take_argument(&l, arg);
        else if (!strcmp(arg, "--"))
            only_arguments = true;
        else if (!asks_for_help(arg, help))
            code = take_option(&l, arg);
        else if (find_page(tool, *help))
            return TOOL_DONE;
        else {
            char topics[TOOL_USAGE_BYTES];
            list_pages(tool, topics);
            code = WRONG(&l, "unknown help topic %s; %s%s", *help,
                         *topics ? "the topics are " : "this subcommand has none", topics);
            *help = NULL;
        }
    }
    return code ? code : check_given(&l);
}
