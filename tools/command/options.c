/* SPDX-License-Identifier: MIT */
/* One table of options: parsing and help come from it. */
#define _GNU_SOURCE /* flock, nftw */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dtype.h"
#include "error.h"
#include "files/atomic_file.h"
#include "files/json.h"
#include "files/utf8.h"
#include "tool.h"

enum kind {
    TEXT,
    FLAG,
    INTEGER,
    REAL,
    SECONDS,
    DTYPE,
    LIKE,
    DECODE,
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
    const char *help; /* NULL: an older name of the option before it, which --help leaves out */
    enum kind kind;
    unsigned group;
    size_t at;
    int64_t least;
};

#define AT(field) offsetof(struct tool_options, field)

static const struct option options[] = {
    { "--model", "DIR", "checkpoint folder, as Hugging Face stores it, or a GGUF file (mmproj)",
      TEXT, GROUP_MODEL, AT(model), 0 },
    { "--image-mean", "R,G,B", "of images and clips, in place of the checkpoint's", THREE,
      GROUP_MODEL, AT(image_mean), 0 },
    { "--image-std", "R,G,B", "the same of the deviations", THREE, GROUP_MODEL, AT(image_std), 0 },
    { "-o", "OUT", "where the result goes", TEXT, GROUP_OUTPUT, AT(output), 0 },
    { "--list", "FILE", "clips to encode, a path or a JSON object a line; -: standard input", TEXT,
      GROUP_ENCODE | GROUP_CACHE | GROUP_BENCH | GROUP_INFO, AT(list), 0 },
    { "--out", "DIR", "the cache's folder", TEXT, GROUP_CACHE, AT(out), 0 },
    { "--shard", "I/N", "of N processes this is the one of index I, from 0", SHARD, GROUP_CACHE,
      AT(shard), 0 },
    { "--tokens", "TYPE", "of the tokens in the cache: bf16 (default), f16 or f32", TOKENS,
      GROUP_CACHE, AT(tokens), 0 },
    { "--no-deepstack", NULL, "leave out DeepStack's outputs", FLAG, GROUP_CACHE, AT(no_deepstack),
      0 },
    { "--packed", NULL, "tokens and DeepStack's outputs beside one another, in one tensor", FLAG,
      GROUP_CACHE, AT(packed), 0 },
    { "--part-bytes", "N", "after which a part is sealed (default 1 GiB)", INTEGER, GROUP_CACHE,
      AT(part_bytes), 1 },
    { "--part-seconds", "S", "the same of its age (default 300)", REAL, GROUP_CACHE,
      AT(part_seconds), 0 },
    { "--retry-failed", NULL, "do clips again that failed", FLAG, GROUP_CACHE, AT(retry_failed),
      0 },
    { "--same", "size", "a clip is the same while its file's size is, whatever its time", SAME,
      GROUP_CACHE, AT(same_size), 0 },
    { "--trust-keys", NULL, "the same, wherever its file lies: the key names the clip", FLAG,
      GROUP_CACHE, AT(trust_keys), 0 },
    { "--dry-run", NULL, "say what a run takes, or what --prune and --delete remove", FLAG,
      GROUP_CACHE, AT(dry_run), 0 },
    { "--rate", "N", "clips a second, of all processes together, for hours (--dry-run)", REAL,
      GROUP_CACHE | GROUP_INFO, AT(rate), 0 },
    { "--status", NULL, "say what there is; of the keys of --list, what is missing", FLAG,
      GROUP_CACHE, AT(cache_status), 0 },
    { "--get", "KEY", "write a key's tensors to a file, -o", TEXT, GROUP_CACHE, AT(cache_get), 0 },
    { "--check", NULL, "read all tensors and compare their checksums", FLAG, GROUP_CACHE,
      AT(cache_check), 0 },
    { "--keys", NULL, "list the keys that have tokens, one a line; with --json all records", FLAG,
      GROUP_CACHE, AT(cache_keys), 0 },
    { "--prune", NULL, "remove superseded records, damaged parts, and keys that are not in --list",
      FLAG, GROUP_CACHE, AT(cache_prune), 0 },
    { "--delete", "KEY", "remove a key from all parts; may be given several times", KEYS,
      GROUP_CACHE, AT(delete_keys), 0 },
    { "--no-lock", NULL, "prune a file system without locks; nobody else uses the cache", FLAG,
      GROUP_CACHE, AT(no_lock), 0 },
    { "--drawing", "FILE.png", "also draw frames and their tokens", TEXT, GROUP_ENCODE, AT(drawing),
      0 },
    { "--picture", "FILE.png", NULL, TEXT, GROUP_ENCODE, AT(drawing), 0 },
    { "--output-dtype", "TYPE",
      "of the tokens in the file: f32 or bf16 (default: what the model computes in)", DTYPE,
      GROUP_ENCODE, AT(output_dtype), 0 },
    { "--chunk-rows", "N", "patches in a chunk (default: the device's own size)", INTEGER,
      GROUP_ENCODE | GROUP_CACHE | GROUP_BENCH, AT(chunk_rows), 1 },
    { "--config", "DIR", "folder with a config.json to take sizes from", TEXT, GROUP_SYNTH,
      AT(config), 0 },
    { "--seed", "N", "of the random weights (default 1)", INTEGER, GROUP_SYNTH, AT(seed), 0 },
    { "--shards", "N", "split the weights over N files (default 1)", INTEGER, GROUP_SYNTH,
      AT(shards), 1 },
    { "--clip", "FILE.mp4", "make a short clip with motion instead of a checkpoint", TEXT,
      GROUP_SYNTH, AT(make_clip), 0 },
    { "--like", "WHOSE", "frames, sizes, pixels: transformers (default) or qwen-vl-utils", LIKE,
      GROUP_CLIP, AT(clip.like), 0 },
    { "--fps", "F", "frames sampled per second (default: the checkpoint's)", REAL, GROUP_CLIP,
      AT(clip.fps), 0 },
    { "--start", "S", "from this second of the clip on (default: its beginning)", SECONDS,
      GROUP_ENCODE | GROUP_INFO, AT(clip.start_s), 0 },
    { "--end", "S", "before this second of the clip (default: its end)", REAL,
      GROUP_ENCODE | GROUP_INFO, AT(clip.end_s), 0 },
    { "--first-frame", NULL, "read the first frame of each clip or animation, as an image", FLAG,
      GROUP_CLIP, AT(clip.first_frame), 0 },
    { "--num-frames", "N", "sample exactly N frames", INTEGER, GROUP_CLIP, AT(clip.num_frames), 1 },
    { "--min-frames", "N", "sample at least N frames", INTEGER, GROUP_CLIP, AT(clip.min_frames),
      1 },
    { "--max-frames", "N", "sample at most N frames", INTEGER, GROUP_CLIP, AT(clip.max_frames), 1 },
    { "--min-pixels", "N", "least pixels: of all frames together (Qwen3 and later), or of each",
      INTEGER, GROUP_CLIP, AT(clip.min_pixels), 1 },
    { "--max-pixels", "N", "most pixels: of all frames together (Qwen3 and later), or of each",
      INTEGER, GROUP_CLIP, AT(clip.max_pixels), 1 },
    { "--total-pixels", "N", "most pixels of all frame pairs together (--like qwen-vl-utils)",
      INTEGER, GROUP_CLIP, AT(clip.total_pixels), 1 },
    { "--cap-pixels", NULL, "cap each frame's pixels: transformers' cap_pixels_per_frame", FLAG,
      GROUP_CLIP, AT(clip.cap_pixels), 0 },
    { "--trusted", NULL, "decode in this process, not in one with limits", FLAG, GROUP_CLIP,
      AT(clip.trusted), 0 },
    { "--decode", "WHERE", "auto, cpu or gpu: whose decoders give frames (default auto)", DECODE,
      GROUP_CLIP, AT(clip.decode), 0 },
    { "--decode-threads", "N", "for a clip (default: every core, but 1 for HEVC)", INTEGER,
      GROUP_CLIP, AT(decode_threads), 1 },
    { "--decode-memory", "BYTES", "that decoding a clip may take (default 4 GiB)", INTEGER,
      GROUP_CLIP, AT(clip.decode_memory), 1 },
    { "--decode-seconds", "S", "without a sign of life, before decoding is ended (default 60)",
      REAL, GROUP_CLIP, AT(clip.decode_seconds), 0 },
    { "--clip", "FILE", "take pixels from this clip (default: seeded ones)", TEXT,
      GROUP_VERIFY | GROUP_BENCH, AT(verify_clip), 0 },
    { "--against", "FILE", "compare with layers that another program computed, in safetensors",
      TEXT, GROUP_VERIFY, AT(against), 0 },
    { "--against-model", "DIR",
      "say what another checkpoint's layers are off: a GGUF file's of this model", TEXT,
      GROUP_VERIFY, AT(against_model), 0 },
    { "--against-backend", "NAME",
      "compare with qwenvit in f32 on this backend (default: on the same one)", TEXT, GROUP_VERIFY,
      AT(against_backend), 0 },
    { "--trace", "FILE", "also write trace events, which Perfetto opens", TEXT,
      GROUP_PROFILE | GROUP_ENCODE, AT(trace), 0 },
    { "--grid", "T,H,W", "frame pairs, patch rows, patch columns (default 1,20,38)", TRIPLE,
      GROUP_BENCH | GROUP_PROFILE | GROUP_VERIFY, AT(grid), 1 },
    { "--chunk", "N", "frame pairs at a time, 0: chosen (tower; default: all of --grid)", INTEGER,
      GROUP_BENCH, AT(bench_chunk), 0 },
    { "--pack", "FILE", "grids t,h,w to pack into chunks of --chunk-rows, a line each (tower)",
      TEXT, GROUP_BENCH, AT(pack), 0 },
    { "--alone", NULL, "time each grid of --pack by itself, against a plan of its size", FLAG,
      GROUP_BENCH, AT(alone), 0 },
    { "--shapes", "FILE", "convolutions to time, a line each (conv3d; default: a built-in list)",
      TEXT, GROUP_BENCH, AT(shapes), 0 },
    { "--lowering", "NAME", "time this lowering alone (conv3d)", TEXT, GROUP_BENCH, AT(lowering),
      0 },
    { "--rows", "N", "most rows (patch-embed, gemm; default: what this device does in seconds)",
      INTEGER, GROUP_BENCH, AT(rows), 1 },
    { "--shape", "N,K", "time one matrix of this size, not a tower's (gemm)", PAIR, GROUP_BENCH,
      AT(shape), 1 },
    { "--size", "H,W", "of source frames (default 720,1280)", PAIR, GROUP_BENCH, AT(size), 1 },
    { "--repeats", "N", "timed runs or chunks (default 7)", INTEGER, GROUP_BENCH | GROUP_PROFILE,
      AT(repeats), 1 },
    { "--keys", "N", "of the cache that is made (cache; default 1000000)", INTEGER, GROUP_BENCH,
      AT(keys), 1 },
    { "--clips", "N", "how many files of clips are made (job; default 160)", INTEGER, GROUP_BENCH,
      AT(clips), 1 },
    { "--seconds", "S", "length of each clip that is made (job; default 10)", REAL, GROUP_BENCH,
      AT(seconds), 0 },
    { "--from", "FOLDER", "copy the clips of this folder to --clips files (job)", TEXT, GROUP_BENCH,
      AT(from), 0 },
    { "--ways", "A,B",
      "time these alone: decode, bare, one by one, device, .. as records name them (job)", TEXT,
      GROUP_BENCH, AT(ways), 0 },
    { "--frames", "N", "make clips of just N frames, all of which are sampled (job)", INTEGER,
      GROUP_BENCH, AT(frames), 1 },
    { "--no-limit", NULL, "leave out the GEMMs and attention alone", FLAG, GROUP_BENCH,
      AT(no_limit), 0 },
    { "--backend", "NAME", "auto (default), cuda, metal, cpu, ref", TEXT, GROUP_DEVICE, AT(backend),
      0 },
    { "--dtype", "TYPE", "f32 or bf16 (default: bf16 where the device computes in it)", DTYPE,
      GROUP_DEVICE | GROUP_SYNTH, AT(dtype), 0 },
    { "--weights", "KIND",
      "stored: quantised matrices stay packed; bf16 (default): as the dtype (bench gemm: q4g64, "
      "q8g64, q4_0, q8_0)",
      WEIGHTS, GROUP_WEIGHTS, AT(weights), 0 },
    { "--device", "N", "index of the device (default 0); encode, cache, bench job: also 0,1 or all",
      DEVICES, GROUP_DEVICE, AT(device), 0 },
    { "--tf32", NULL, "GEMMs in f32 may be computed in TF32 (cuda)", FLAG, GROUP_DEVICE, AT(tf32),
      0 },
    { "--naive", "OPS", "operations, or all, on simple kernels: gemm,norm (metal)", TEXT,
      GROUP_DEVICE, AT(naive), 0 },
    { "--threads", "N", "CPU threads (default: every core)", INTEGER, GROUP_DEVICE, AT(threads),
      0 },
    { "--tune", NULL, "measure choices that the tune file does not hold, and keep them", FLAG,
      GROUP_DEVICE, AT(tune), 0 },
    { "--tune-file", "FILE", "of measured choices (default: in the user's cache folder)", TEXT,
      GROUP_DEVICE, AT(tune_file), 0 },
    { "--json[=FILE]", NULL, "results as JSON, an object a line; appended to FILE", JSON,
      GROUP_JSON, AT(json), 0 },
    { "--quiet", NULL, "no progress", FLAG, GROUP_JSON, AT(quiet), 0 },
};
enum { N_OPTIONS = sizeof options / sizeof *options };

/* A bar of progress is the terminal's last line, without an end; a signal's handler asks too. */
static volatile sig_atomic_t bar_is_shown;

bool
tool_bar_is_shown(void)
{
    return bar_is_shown;
}

void
tool_bar_end(void)
{
    if (bar_is_shown)
        fputc('\n', stderr);
    bar_is_shown = 0;
}

void
tool_bar_show(const char *text, bool terminal)
{
    fprintf(stderr, terminal ? "\r%s \033[K" : "%s\n", text);
    bar_is_shown = terminal;
}

void
tool_complain(const char *format, ...)
{
    va_list ap;
    tool_bar_end();
    va_start(ap, format);
    fputs("qwenvit: ", stderr);
    vfprintf(stderr, format, ap);
    fputc('\n', stderr);
    va_end(ap);
}

void
tool_print_help(const struct tool *tool)
{
    printf("usage: qwenvit %s%s%s [options]\n\n%s\n\noptions:\n", tool->name,
           *tool->arguments ? " " : "", tool->arguments, tool->does);
    for (const struct option *o = options; o < options + N_OPTIONS; o++)
        if (o->help && o->group & tool->groups) {
            char left[40];
            snprintf(left, sizeof left, "%s %s", o->name, o->value ? o->value : "");
            printf("  %-22s %s\n", left, o->help);
        }
    printf("  %-22s %s\n\nexample:\n  %s\n", "--help", "this text", tool->example);
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

/* "all", or indices with commas between. */
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

/* "3/8" */
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

/* Three numbers and whether they were given. */
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

/* What a value of the option must be, for the error text; NULL if it was fine. */
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
    case REAL:
    case SECONDS: {
        double v = strtod(text, &end);
        const bool from_0 = o->kind == SECONDS;
        if (end == text || *end || !isfinite(v) || v < 0 || (v == 0 && !from_0))
            return from_0 ? "a number from 0 up" : "a number above 0";
        *(double *)(void *)field = v;
        return NULL;
    }
    case JSON:
        out->json = true;
        out->json_file = *text ? text : NULL;
        return NULL;
    case DEVICES:
        return parse_devices(text, out) ? NULL : "an index from 0 up, several with commas, or all";
    case LIKE:
        return qv_like_parse(text, (qv_like *)(void *)field) ? NULL
                                                             : "transformers or qwen-vl-utils";
    case DECODE:
        return qv_decode_parse(text, (qv_decode *)(void *)field) ? NULL : "auto, cpu or gpu";
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
    case WEIGHTS: return tool_parse_weights(text, groups & GROUP_BENCH, &out->weights);
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

static bool
takes_value(const struct option *o)
{
    return o->kind != FLAG && o->kind != JSON;
}

int
tool_parse(const struct tool *tool, int argc, char **argv, struct tool_options *out, bool *help)
{
    *out = (struct tool_options){ .seed = 1,
                                  .shards = 1,
                                  .repeats = 7,
                                  .keys = 1000000,
                                  .clips = 160,
                                  .grid = { 1, 20, 38 },
                                  .bench_chunk = -1,
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
        if (!strcmp(arg, "--help") || !strcmp(arg, "-h")) {
            *help = true;
            return TOOL_DONE;
        }
        const char *equals = strncmp(arg, "--", 2) ? NULL : strchr(arg, '=');
        size_t length = equals ? (size_t)(equals - arg) : strlen(arg);
        const struct option *o = find_option(tool, arg, length);
        if (!o) {
            tool_complain("%s: no option %s (qwenvit %s --help lists them)", tool->name, arg,
                          tool->name);
            return TOOL_USAGE;
        }
        const char *value = equals ? equals + 1 : takes_value(o) ? argv[i + 1] : "";
        if (!equals && takes_value(o) && ++i == argc) {
            tool_complain("%s: %s needs a value: %s", tool->name, o->name, o->value);
            return TOOL_USAGE;
        }
        const char *wanted = o->kind == FLAG && equals ? "given without a value"
                                                       : parse_value(o, value, tool->groups, out);
        if (wanted) {
            tool_complain("%s: %s is \"%s\", must be %s", tool->name, o->name, value, wanted);
            return TOOL_USAGE;
        }
        if (o->kind == DEVICES && !(tool->groups & (GROUP_ENCODE | GROUP_CACHE | GROUP_BENCH)) &&
            (out->all_devices || out->n_devices > 1)) {
            tool_complain("%s: %s is \"%s\"; it runs on one device", tool->name, o->name, value);
            return TOOL_USAGE;
        }
    }
    return TOOL_DONE;
}

int
tool_exit_code(qv_status status)
{
    switch (status) {
    case QV_OK: return TOOL_DONE;
    case QV_EINVAL: return TOOL_USAGE;
    case QV_EIO:
    case QV_EFORMAT:
    case QV_EUNSUPPORTED: return TOOL_BAD_INPUT;
    case QV_ENOMEM:
    case QV_ENODEVICE:
    case QV_EBACKEND:
    case QV_ESTATE:
    case QV_STATUS_MAX: break;
    }
    return TOOL_DEVICE;
}

int
tool_fail(qv_status status, const qv_error *err)
{
    tool_complain("%s", err->text);
    return tool_exit_code(status);
}

bool
tool_is_folder(const char *path)
{
    struct stat st;
    return !stat(path, &st) && S_ISDIR(st.st_mode);
}

static int
remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)type;
    return at->level ? remove(path) : 0;
}

void
tool_clear_folder(const char *folder)
{
    nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

void
tool_remove_folder(const char *folder)
{
    tool_clear_folder(folder);
    rmdir(folder);
}

json_t *
tool_json_text(const char *bytes)
{
    char *text = qv_utf8_text(bytes);
    json_t *json = text ? json_string(text) : NULL;
    free(text);
    return json;
}

int64_t
tool_peak_bytes(void)
{
#ifdef __APPLE__
    enum { UNIT = 1 };
#else
    enum { UNIT = 1024 };
#endif
    struct rusage used;
    return getrusage(RUSAGE_SELF, &used) ? 0 : (int64_t)used.ru_maxrss * UNIT;
}

void
tool_print_json(json_t *object)
{
    char *text = qv_json_text(object, JSON_COMPACT | JSON_REAL_PRECISION(9));
    puts(text ? text : "{}");
    fflush(stdout);
    free(text);
    json_decref(object);
}

/* Writes the line and its newline at once, so that lines of several processes do not mix. If the
 * disk fills up half way, the file is cut back to what it was. */
static qv_status
append_line(const char *path, char *text, qv_error *err)
{
    const size_t n = strlen(text) + 1;
    const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0)
        return qv_fail(err, QV_EIO, "%s: cannot append a result: %s", path, strerror(errno));
    text[n - 1] = '\n';
    flock(fd, LOCK_EX); /* may fail: a device cannot be locked */
    const off_t end = lseek(fd, 0, SEEK_END);
    const ssize_t put = write(fd, text, n);
    int why = put < 0 ? errno : put < (ssize_t)n ? ENOSPC : 0;
    if (why && put > 0 && ftruncate(fd, end))
        why = errno;
    if (close(fd) && !why)
        why = errno;
    return why ? qv_fail(err, QV_EIO, "%s: cannot append a result: %s", path, strerror(why))
               : QV_OK;
}

qv_status
tool_emit_json(const struct tool_options *o, json_t *object, qv_error *err)
{
    if (!o->json_file) {
        tool_print_json(object);
        return QV_OK;
    }
    char *text = qv_json_text(object, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(object);
    qv_status status = text ? append_line(o->json_file, text, err)
                            : qv_fail(err, QV_ENOMEM, "%s: no memory for a result", o->json_file);
    free(text);
    return status;
}

/* ---- progress -------------------------------------------------------------------------------- */

void
tool_progress_begin(struct tool_progress *p, const char *label, int64_t total, bool quiet)
{
    *p = (struct tool_progress){ .label = label,
                                 .unit = "frames",
                                 .total = total,
                                 .started_s = qv_seconds(),
                                 .shown_s = qv_seconds(),
                                 .quiet = quiet,
                                 .terminal = isatty(2) };
}

void
tool_progress_show(struct tool_progress *p, int64_t done)
{
    enum { WIDTH = 30 };
    double now = qv_seconds(), every_s = p->terminal ? 0.1 : 10;
    if (p->quiet || (now - p->shown_s < every_s && done < p->total) ||
        (!p->terminal && done >= p->total))
        return;
    p->shown_s = now;
    double rate = (double)done / (now - p->started_s + 1e-9);
    if (!p->terminal) {
        fprintf(stderr, "%s: %lld of %lld %s, %.1f a second\n", p->label, (long long)done,
                (long long)p->total, p->unit, rate);
        return;
    }
    char bar[WIDTH + 1];
    int64_t filled = p->total ? done * WIDTH / p->total : WIDTH;
    for (int i = 0; i < WIDTH; i++)
        bar[i] = i < filled ? '#' : '.';
    bar[WIDTH] = 0;
    fprintf(stderr, "\r%s [%s] %lld/%lld %s, %.1f/s \033[K", p->label, bar, (long long)done,
            (long long)p->total, p->unit, rate);
    bar_is_shown = 1;
}

void
tool_progress_end(struct tool_progress *p, int64_t done)
{
    tool_progress_show(p, done);
    tool_bar_end();
}
