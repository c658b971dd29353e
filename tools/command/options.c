/* SPDX-License-Identifier: MIT */
/* One table of options, which both parsing and help are made from. */
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dtype.h"
#include "clips/option_list.h"
#include "tool.h"

enum kind {
    TEXT,
    FLAG,
    INTEGER,
    REAL,
    DTYPE,
    CLIP,
    TRIPLE,
    THREE,
    PAIR,
    JSON,
    DEVICES,
    TOKENS,
    SHARD,
    KEYS,
    SAME,
    WEIGHTS
};

struct option {
    const char *name, *value;
    const char *help; /* NULL: an older name of the option before it, which --help does not list */
    enum kind kind;
    unsigned group;
    size_t at;
    int64_t least;
};

#define AT(field) offsetof(struct tool_options, field)

static const struct option options[] = {
    { "--model", "DIR", "checkpoint folder as Hugging Face stores it, or a GGUF file (mmproj)",
      TEXT, GROUP_MODEL, AT(model), 0 },
    { "--image-mean", "R,G,B", "means in place of the checkpoint's, for images and clips", THREE,
      GROUP_CLIP, AT(image_mean), 0 },
    { "--image-std", "R,G,B", "deviations in place of the checkpoint's, for images and clips",
      THREE, GROUP_CLIP, AT(image_std), 0 },
    { "-o", "OUT", "file or folder that the result is written to", TEXT, GROUP_OUTPUT, AT(output),
      0 },
    { "--list", "FILE", "clips to read, a path or a JSON object on each line; -: standard input",
      TEXT, GROUP_ENCODE | GROUP_CACHE | GROUP_JOB | GROUP_INFO, AT(list), 0 },
    { "--out", "DIR", "the cache's folder", TEXT, GROUP_CACHE, AT(out), 0 },
    { "--shard", "I/N", "take share I of N of the list; I counts from 0", SHARD, GROUP_CACHE,
      AT(shard), 0 },
    { "--tokens", "TYPE", "dtype of the tokens in the cache: bf16 (default), f16 or f32", TOKENS,
      GROUP_CACHE, AT(tokens), 0 },
    { "--no-deepstack", NULL, "leave out DeepStack's outputs", FLAG, GROUP_CACHE, AT(no_deepstack),
      0 },
    { "--packed", NULL, "store tokens and DeepStack's outputs side by side, in one tensor", FLAG,
      GROUP_CACHE, AT(packed), 0 },
    { "--part-bytes", "N", "seal a part when it has N bytes (default 1 GiB)", INTEGER, GROUP_CACHE,
      AT(part_bytes), 1 },
    { "--part-seconds", "S", "seal a part when it is S seconds old (default 300)", REAL,
      GROUP_CACHE, AT(part_seconds), 0 },
    { "--retry-failed", NULL, "try clips again that failed before", FLAG, GROUP_CACHE,
      AT(retry_failed), 0 },
    { "--same", "size", "a file of the same path and size is the same clip, whatever its time",
      SAME, GROUP_CACHE, AT(same_size), 0 },
    { "--trust-keys", NULL, "a file of the same size is the key's clip, wherever it is", FLAG,
      GROUP_CACHE, AT(trust_keys), 0 },
    { "--dry-run", NULL, "only estimate a run, or only list what --prune and --delete would remove",
      FLAG, GROUP_CACHE, AT(dry_run), 0 },
    { "--rate", "N", "clips a second of all processes together, to estimate hours (--dry-run)",
      REAL, GROUP_CACHE | GROUP_INFO, AT(rate), 0 },
    { "--status", NULL, "print what the cache has and, with --list, which keys it lacks", FLAG,
      GROUP_CACHE, AT(cache_status), 0 },
    { "--get", "KEY", "write a key's tensors to a file, which -o names", TEXT, GROUP_CACHE,
      AT(cache_get), 0 },
    { "--check", NULL, "read all tensors and compare their checksums", FLAG, GROUP_CACHE,
      AT(cache_check), 0 },
    { "--keys", NULL, "list the keys that have tokens, one on each line; with --json all records",
      FLAG, GROUP_CACHE, AT(cache_keys), 0 },
    { "--prune", NULL, "remove superseded records, damaged parts, and keys that are not in --list",
      FLAG, GROUP_CACHE, AT(cache_prune), 0 },
    { "--delete", "KEY", "remove a key from all parts; may be given several times", KEYS,
      GROUP_CACHE, AT(delete_keys), 0 },
    { "--no-lock", NULL, "prune a cache that nobody else uses, on a file system without locks",
      FLAG, GROUP_CACHE, AT(no_lock), 0 },
    { "--drawing", "FILE.png", "also draw the frames and their tokens", TEXT, GROUP_ENCODE,
      AT(drawing), 0 },
    { "--picture", "FILE.png", NULL, TEXT, GROUP_ENCODE, AT(drawing), 0 },
    { "--output-dtype", "TYPE",
      "dtype of the tokens in the file: f32 or bf16 (default: the model's)", DTYPE, GROUP_ENCODE,
      AT(output_dtype), 0 },
    { "--chunk-rows", "N", "patches in a chunk (default: what suits the device)", INTEGER,
      GROUP_ENCODE | GROUP_CACHE | GROUP_TOWER | GROUP_JOB, AT(chunk_rows), 1 },
    { "--config", "DIR", "folder whose config.json has the sizes", TEXT, GROUP_SYNTH, AT(config),
      0 },
    { "--seed", "N", "seed of the random weights (default 1)", INTEGER, GROUP_SYNTH, AT(seed), 0 },
    { "--shards", "N", "split the weights over N files (default 1)", INTEGER, GROUP_SYNTH,
      AT(shards), 1 },
    { "--clip", "FILE.mp4", "make a short clip with motion, instead of a checkpoint", TEXT,
      GROUP_SYNTH, AT(make_clip), 0 },
    { "--force", NULL, "replace a checkpoint or clip that is there", FLAG, GROUP_SYNTH, AT(force),
      0 },
#define QV_CLIP_OPTION(member, name, row, kind, most, scopes, flag, value, help)                   \
    { flag, value, help, CLIP, (scopes)&QVM_TIMES ? GROUP_ENCODE | GROUP_INFO : GROUP_CLIP, 0, 0 },
#include "clips/options.inc"
    { "--clip", "FILE", "take pixels from this clip (default: seeded random pixels)", TEXT,
      GROUP_VERIFY, AT(verify_clip), 0 },
    { "--against", "FILE", "compare with layers that another program wrote, in a safetensors file",
      TEXT, GROUP_VERIFY, AT(against), 0 },
    { "--against-model", "DIR",
      "print how far another checkpoint's layers are off, such as a GGUF file's", TEXT,
      GROUP_VERIFY, AT(against_model), 0 },
    { "--max-distance", "X", "fail if a layer of --against-model is farther off than X", REAL,
      GROUP_VERIFY, AT(max_distance), 0 },
    { "--against-backend", "NAME",
      "compare with f32 on this backend (default: on the same backend)", TEXT, GROUP_VERIFY,
      AT(against_backend), 0 },
    { "--trace", "FILE", "also write trace events, which Perfetto opens", TEXT,
      GROUP_PROFILE | GROUP_ENCODE, AT(trace), 0 },
    { "--grid", "T,H,W", "frame pairs, rows of patches, columns of patches (default 1,20,38)",
      TRIPLE, GROUP_TOWER | GROUP_PROFILE | GROUP_VERIFY, AT(grid), 1 },
    { "--pack", "FILE", "file with a grid t,h,w on each line, to be packed into chunks", TEXT,
      GROUP_TOWER, AT(pack), 0 },
    { "--no-limit", NULL, "do not time the GEMMs and attention alone", FLAG, GROUP_TOWER,
      AT(no_limit), 0 },
    { "--shapes", "FILE", "file with a convolution on each line (default: a built-in list)", TEXT,
      GROUP_CONV3D, AT(shapes), 0 },
    { "--lowering", "NAME", "time only this lowering", TEXT, GROUP_CONV3D, AT(lowering), 0 },
    { "--rows", "N", "most rows (default: what this device does in seconds)", INTEGER,
      GROUP_EMBED | GROUP_GEMM, AT(rows), 1 },
    { "--shape", "N,K", "time one matrix of this size, instead of a tower's", PAIR, GROUP_GEMM,
      AT(shape), 1 },
    { "--size", "H,W", "size of source frames (default 720,1280)", PAIR,
      GROUP_PREPROCESS | GROUP_JOB, AT(size), 1 },
    { "--keys", "N", "number of keys in the cache that is made (default 1000000)", INTEGER,
      GROUP_MANY, AT(keys), 1 },
    { "--clips", "N", "number of clips in the list that is made (default 160)", INTEGER, GROUP_JOB,
      AT(clips), 1 },
    { "--seconds", "S", "length of each clip that is made (default 10)", REAL, GROUP_JOB,
      AT(seconds), 0 },
    { "--repeats", "N", "number of timed runs or chunks (default 7)", INTEGER,
      GROUP_BENCH | GROUP_PROFILE, AT(repeats), 1 },
    { "--budget", "SECONDS", "stop timing after this long; what is under way is finished", REAL,
      GROUP_BENCH, AT(budget), 0 },
    { "--backend", "NAME", "auto (default), cuda, metal, cpu or ref", TEXT, GROUP_DEVICE,
      AT(backend), 0 },
    { "--dtype", "TYPE", "f32 or bf16 (default: bf16 if the device computes in it)", DTYPE,
      GROUP_DEVICE | GROUP_SYNTH, AT(dtype), 0 },
    { "--weights", "KIND",
      "bf16 (default), or stored: keep quantised matrices as the file has them", WEIGHTS,
      GROUP_WEIGHTS, AT(weights), 0 },
    { "--device", "N", "index of the device (default 0); encode, cache, bench job: also 0,1 or all",
      DEVICES, GROUP_DEVICE, AT(device), 0 },
    { "--tf32", NULL, "cuda: GEMMs of f32 may be computed in TF32", FLAG, GROUP_DEVICE, AT(tf32),
      0 },
    { "--naive", "OPS",
      "metal: operations that run on simple kernels: all, or a list like gemm,norm", TEXT,
      GROUP_DEVICE, AT(naive), 0 },
    { "--threads", "N", "CPU threads (default: every core)", INTEGER, GROUP_DEVICE, AT(threads),
      0 },
    { "--tune", NULL, "measure choices that the tune file lacks, and keep them", FLAG, GROUP_DEVICE,
      AT(tune), 0 },
    { "--tune-file", "FILE", "file of measured choices (default: in the user's cache folder)", TEXT,
      GROUP_DEVICE, AT(tune_file), 0 },
    { "--json[=FILE]", NULL, "print results as JSON, an object a line, or append them to FILE",
      JSON, GROUP_JSON, AT(json), 0 },
    { "--quiet", NULL, "print no progress", FLAG, GROUP_JSON, AT(quiet), 0 },
};
enum { N_OPTIONS = sizeof options / sizeof *options };

/* Options that most subcommands share have pages of --help to themselves. The first page is the
 * subcommand's own. */
static const struct page {
    const char *name, *about;
    unsigned groups;
} pages[] = {
    { "", NULL, ~(unsigned)(GROUP_CLIP | GROUP_DEVICE | GROUP_WEIGHTS) },
    { "clips", "options of frames and decoding: --fps, --max-frames, --max-pixels, ..",
      GROUP_CLIP },
    { "device", "options of the device: --backend, --device, --dtype, --threads, --tune, ..",
      GROUP_DEVICE | GROUP_WEIGHTS },
};
enum { N_PAGES = sizeof pages / sizeof *pages };

static const struct page *
find_page(const struct tool *tool, const char *name)
{
    for (const struct page *p = pages; p < pages + N_PAGES; p++)
        if (!strcmp(p->name, name) && p->groups & tool->groups)
            return p;
    return NULL;
}

static void
print_option(const char *name, const char *value, const char *help)
{
    char left[40];
    snprintf(left, sizeof left, "%s%s", name, value);
    printf("  %-22s %s\n", left, help);
}

void
tool_print_help(const struct tool *tool, const char *page)
{
    const struct page *asked = find_page(tool, page);
    if (*page)
        printf("qwenvit %s, %.*s:\n\n", tool->name, (int)strcspn(asked->about, ":"), asked->about);
    else
        printf("usage: qwenvit %s%s%s [options]\n\n%s\n\noptions:\n", tool->name,
               tool->arguments ? " " : "", tool->arguments ? tool->arguments : "", tool->does);
    for (const struct option *o = options; o < options + N_OPTIONS; o++)
        if (o->help && o->group & tool->groups & asked->groups) {
            char value[24] = "";
            snprintf(value, sizeof value, "%s%s", o->value ? " " : "", o->value ? o->value : "");
            print_option(o->name, value, o->help);
        }
    if (*page)
        return;
    for (const struct page *p = pages + 1; p < pages + N_PAGES; p++)
        if (p->groups & tool->groups)
            print_option("--help=", p->name, p->about);
    print_option("--help", "", "print this text");
    printf("\nexample: %s\n", tool->example);
}

static bool
parse_integers(const char *text, int64_t *out, int n, int64_t least)
{
    for (int i = 0; i < n; i++) {
        char *end;
        errno = 0;
        long long v = strtoll(text, &end, 10);
        if (end == text || errno || v < least || *end != (i + 1 < n ? ',' : 0))
            return false;
        out[i] = v;
        text = end + 1;
    }
    return true;
}

/* Parses "all", or indices separated by commas. */
static bool
parse_devices(const char *text, struct tool_options *out)
{
    size_t n = 1;
    out->all_devices = !strcmp(text, "all");
    for (const char *c = text; *c; c++)
        n += *c == ',';
    out->n_devices = out->all_devices ? 0 : n;
    if (out->all_devices || n > TOOL_MOST_DEVICES)
        return out->all_devices;
    const bool ok = parse_integers(text, out->devices, (int)n, 0);
    out->device = out->devices[0];
    return ok;
}

/* Parses "3/8". */
static bool
parse_shard(const char *text, int64_t out[2])
{
    char *slash = NULL, *end = NULL;
    errno = 0;
    out[0] = strtoll(text, &slash, 10);
    if (slash == text || *slash != '/')
        return false;
    out[1] = strtoll(slash + 1, &end, 10);
    return end > slash + 1 && !*end && !errno && out[0] >= 0 && out[0] < out[1] && out[1] <= 99999;
}

/* Parses three numbers, and keeps whether they were given. */
static bool
parse_three(const char *text, struct tool_three *out)
{
    char *end = NULL;
    out->given = true;
    for (int i = 0; i < 3; i++, text = end + 1) {
        out->values[i] = strtod(text, &end);
        if (end == text || !isfinite(out->values[i]) || *end != (i < 2 ? ',' : 0))
            return false;
    }
    return true;
}

static const char *
parse_clip_option(const struct option *o, const char *text, qv_clip_options *out)
{
    const struct qvm_option *p = qvm_options;
    while (strcmp(p->flag, o->name) != 0)
        p++;
    char *end;
    qv_value v = { .type = QV_VALUE_TEXT, .text = text };
    if (p->kind == QVM_A_FLAG)
        v = (qv_value){ .type = QV_VALUE_FLAG, .integer = true };
    else if (p->kind == QVM_A_COUNT || p->kind == QVM_A_PLACE)
        v.type = parse_integers(text, &v.integer, 1, INT64_MIN) ? QV_VALUE_INTEGER : QV_VALUE_OTHER;
    else if (qvm_option_is_real(p)) {
        v.real = strtod(text, &end);
        v.type = end == text || *end ? QV_VALUE_OTHER : QV_VALUE_REAL;
    }
    return qvm_option_take(p, out, &v, true);
}

/* Parses a value. Returns what it must be, for the error text, or NULL if it was valid. */
static const char *
parse_value(const struct option *o, const char *text, unsigned groups, struct tool_options *out)
{
    char *field = (char *)out + o->at, *end;
    switch (o->kind) {
    case TEXT: *(const char **)(void *)field = text; return *text ? NULL : "a non-empty text";
    case FLAG: *(bool *)(void *)field = true; return NULL;
    case INTEGER:
        if (!parse_integers(text, (int64_t *)(void *)field, 1, o->least))
            return o->least ? "an integer from 1 up" : "an integer from 0 up";
        return NULL;
    case PAIR:
        return parse_integers(text, (int64_t *)(void *)field, 2, o->least) ? NULL
                                                                           : "two integers, A,B";
    case TRIPLE:
        return parse_integers(text, (int64_t *)(void *)field, 3, o->least)
                   ? NULL
                   : "three integers, T,H,W";
    case THREE:
        return parse_three(text, (struct tool_three *)(void *)field) ? NULL
                                                                     : "three numbers, R,G,B";
    case REAL: {
        double v = strtod(text, &end);
        if (end == text || *end || !isfinite(v) || v <= 0)
            return "a number above 0";
        *(double *)(void *)field = v;
        return NULL;
    }
    case CLIP: return parse_clip_option(o, text, &out->clip);
    case JSON:
        out->json = true;
        out->json_file = *text ? text : NULL;
        return NULL;
    case DEVICES:
        return parse_devices(text, out) ? NULL : "an index from 0 up, several with commas, or all";
    case SHARD:
        return parse_shard(text, (int64_t *)(void *)field)
                   ? NULL
                   : "I/N with I from 0 to N - 1 and N up to 99999";
    case TOKENS:
        return qv_dtype_parse(text, (qv_dtype *)(void *)field) && out->tokens != QV_DTYPE_AUTO &&
                       out->tokens != QV_U8 && out->tokens != QV_I32
                   ? NULL
                   : "bf16, f16 or f32";
    case KEYS: out->delete_keys[out->n_delete_keys++] = text; return *text ? NULL : "a key";
    case WEIGHTS: return tool_parse_weights(text, groups & GROUP_GEMM, &out->weights);
    case SAME: *(bool *)(void *)field = true; return strcmp(text, "size") ? "size" : NULL;
    case DTYPE:
        return tool_parse_dtype(text, (qv_dtype *)(void *)field) ? NULL : "f32, bf16 or auto";
    }
    return NULL;
}

static const struct option *
find_option(const struct tool *tool, const char *name, size_t length)
{
    for (const struct option *o = options; o < options + N_OPTIONS; o++)
        if (strcspn(o->name, "[") == length && !strncmp(o->name, name, length) &&
            (o->group & tool->groups))
            return o;
    return NULL;
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

int
tool_parse(const struct tool *tool, int argc, char **argv, struct tool_options *out,
           const char **help)
{
    *out = (struct tool_options){ .seed = 1,
                                  .shards = 1,
                                  .repeats = 7,
                                  .keys = 1000000,
                                  .clips = 160,
                                  .seconds = 10,
                                  .grid = { 1, 20, 38 },
                                  .size = { 720, 1280 } };
    out->arguments = calloc(2 * (size_t)argc + 2, sizeof *out->arguments);
    if (!out->arguments) {
        tool_complain("no memory for arguments");
        return TOOL_DEVICE;
    }
    out->delete_keys = out->arguments + argc + 1;
    bool only_files = false;
    for (int i = 0; i < argc; i++) {
        const char *arg = argv[i];
        if (only_files || arg[0] != '-' || !arg[1]) {
            out->arguments[out->n_arguments++] = arg;
            continue;
        }
        if (!strcmp(arg, "--")) {
            only_files = true;
            continue;
        }
        if (asks_for_help(arg, help)) {
            if (find_page(tool, *help))
                return TOOL_DONE;
            tool_complain("%s: there is no --help=%s (qwenvit %s --help lists them)", tool->name,
                          *help, tool->name);
            *help = NULL;
            return TOOL_USAGE;
        }
        const char *equals = strncmp(arg, "--", 2) ? NULL : strchr(arg, '=');
        size_t length = equals ? (size_t)(equals - arg) : strlen(arg);
        const struct option *o = find_option(tool, arg, length);
        if (!o) {
            tool_complain("%s: no option %s (qwenvit %s --help lists them)", tool->name, arg,
                          tool->name);
            return TOOL_USAGE;
        }
        const char *value = equals ? equals + 1 : o->value ? argv[i + 1] : "";
        if (!equals && o->value && ++i == argc) {
            tool_complain("%s: %s needs a value: %s", tool->name, o->name, o->value);
            return TOOL_USAGE;
        }
        const char *wanted = !o->value && o->kind != JSON && equals
                                 ? "given without a value"
                                 : parse_value(o, value, tool->groups, out);
        if (wanted) {
            tool_complain("%s: %s is \"%s\", must be %s", tool->name, o->name, value, wanted);
            return TOOL_USAGE;
        }
        if (o->kind == DEVICES && !(tool->groups & (GROUP_ENCODE | GROUP_CACHE | GROUP_JOB)) &&
            (out->all_devices || out->n_devices > 1)) {
            tool_complain("%s: %s is \"%s\"; it runs on one device", tool->name, o->name, value);
            return TOOL_USAGE;
        }
    }
    return TOOL_DONE;
}
