/* SPDX-License-Identifier: MIT */
/* qwenvit bench: finds the bench that is asked for, and has what all of them share: timing, tables,
 * records. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"
#include "commit.h"
#include "error.h"
#include "files/json.h"
#include "outlook.h"

/* ---- a bench --------------------------------------------------------------------------------- */

qv_status
bench_open(struct bench *b, const struct tool_options *o, const char *name, qv_error *err)
{
    *b = (struct bench){ .o = o, .name = name };
    qv_status status = tool_open_context(o, &b->ctx, err);
    if (!status)
        qv_context_get_info(b->ctx, &b->info);
    return status;
}

qv_status
bench_open_model(struct bench *b, const struct tool_options *o, const char *name, qv_model **model,
                 qv_model_info *info, qv_error *err)
{
    qv_status status = bench_open(b, o, name, err);
    if (!status)
        status = tool_load_model(o, b->ctx, o->model, false, model, err);
    if (!status)
        qv_model_get_info(*model, info);
    return status;
}

bool
bench_talks(const struct bench *b)
{
    return !b->o->json || b->o->json_file;
}

static void
tell_scatter(const struct bench *b)
{
    if (b->scattered && !b->o->quiet)
        tool_say("bench %s: %lld of %lld times are not reliable: their p90 is up to %.1f times the "
                 "median, so something else was using this machine",
                 b->name, (long long)b->scattered, (long long)b->timed, b->most_scatter);
}

void
bench_close(struct bench *b)
{
    tell_scatter(b);
    tool_close_context(&b->ctx, &b->info);
}

/* Writes "0.123 TFLOP/s", or that the rate is not known. */
static const char *
rate_text(struct bench_rate rate, double scale, int decimals, const char *unit, char text[60])
{
    if (rate.known)
        snprintf(text, 60, "%.*f %s", decimals, rate.per_s * scale, unit);
    else
        snprintf(text, 60, "unknown %s", unit);
    return text;
}

static void
tell_roofline(const struct bench *b, qv_dtype dtype)
{
    char peak[60], memory[60], copy[60];
    tool_print("roofline: %s (best %s GEMM), %s (a copy, read and written: %s)\n",
               rate_text(b->peak[dtype], 1e-12, 3, "TFLOP/s", peak), qv_dtype_name(dtype),
               rate_text(b->memory, 1e-9, 1, "GB/s", memory),
               rate_text(b->copy, 1e-9, 1, "GB/s", copy));
    if (!b->peak[dtype].known || !b->memory.known || !b->copy.known)
        tool_print(
            "unknown: no two of %d measurements agree, so something else is using this machine; "
            "what follows from it is withheld\n",
            BENCH_MOST_RATES);
}

qv_status
bench_begin(struct bench *b, qv_dtype dtype, const char *about, qv_error *err)
{
    const bool first = !b->begun;
    qv_status status = bench_measure_roofline(b, dtype, err);
    if (!b->parts_done)
        b->parts_began_s = qv_seconds();
    b->begun = true;
    if (status || !bench_talks(b))
        return status;
    if (first) {
        tool_print("%s on %s: %s", b->name, b->info.backend, b->info.device);
        if (b->info.threads)
            tool_print(", %d thread%s", b->info.threads, b->info.threads == 1 ? "" : "s");
        tool_print("\n");
        for (const char *line = about; *line; line += strspn(line, "\n")) {
            const int n = (int)strcspn(line, "\n");
            tool_print("%.*s\n", n, line);
            line += n;
        }
    } else {
        tool_print("\n");
    }
    tell_roofline(b, dtype);
    return QV_OK;
}

qv_status
bench_dtypes(struct bench *b, qv_dtype out[2], int *n, qv_error *err)
{
    out[0] = b->o->dtype ? b->o->dtype : QV_F32;
    out[1] = QV_BF16;
    *n = 1;
    if (b->o->dtype || b->bf16_left_out)
        return QV_OK;
    const qv_status status = bench_measure_roofline(b, QV_BF16, err);
    if (!status)
        *n = 2;
    b->bf16_left_out = status == QV_EUNSUPPORTED;
    if (b->bf16_left_out && bench_talks(b))
        tool_print("bf16 left out: this device has no GEMMs of it\n");
    return b->bf16_left_out ? QV_OK : status;
}

const char *
bench_base_name(const char *path, char *name, size_t size)
{
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin && path[begin - 1] != '/')
        begin--;
    snprintf(name, size, "%.*s", (int)(end - begin), path + begin);
    return name;
}

/* ---- timing ---------------------------------------------------------------------------------- */

enum { MOST_SAMPLES = 1000, LONG_S = 3 }; /* seconds from which the time left is told */

struct samples {
    double ms[MOST_SAMPLES], spent_ms; /* spent_ms is by the host's clock */
    double first_ms;                   /* time of the warm-up */
    int64_t n;
};

/* Prints "75 s" or "4 min". */
static const char *
duration(double seconds, char text[32])
{
    snprintf(text, 32, seconds < 100 ? "%.0f s" : "%.0f min",
             seconds < 100 ? seconds : seconds / 60);
    return text;
}

void
bench_expect(struct bench *b, int64_t parts)
{
    b->parts = parts;
    b->parts_done = 0;
    b->parts_began_s = qv_seconds();
}

void
bench_part_done(struct bench *b)
{
    const double now_s = qv_seconds(), every_s = 10;
    char text[32];
    b->parts_done++;
    const double left_s =
        (now_s - b->parts_began_s) / (double)b->parts_done * (double)(b->parts - b->parts_done);
    if (b->o->quiet || left_s < LONG_S || (b->parts_done > 1 && now_s - b->told_s < every_s))
        return;
    b->told_s = now_s;
    tool_say("bench %s: %lld of %lld timed, about %s to go", b->name, (long long)b->parts_done,
             (long long)b->parts, duration(left_s, text));
}

static bool
enough(const struct samples *s, int64_t repeats)
{
    return s->n == MOST_SAMPLES || s->spent_ms >= BENCH_MOST_MS ||
           (s->n >= repeats && s->spent_ms >= (double)(BENCH_LEAST_MS * repeats));
}

/* Takes one sample. The first run only warms up, unless it alone uses up the time for all of
 * them. */
static qv_status
sample(struct bench_run *run, struct samples *s, bool warm_up, qv_error *err)
{
    double began = qv_seconds(), ms = -1;
    qv_status status = run->work(run->user, &ms, err);
    double spent_ms = (qv_seconds() - began) * 1e3;
    s->first_ms = warm_up ? spent_ms : s->first_ms;
    if (!status && (!warm_up || spent_ms >= BENCH_MOST_MS)) {
        s->ms[s->n++] = ms >= 0 ? ms : spent_ms;
        s->spent_ms += spent_ms;
    }
    return status;
}

static struct bench_times
times_of(struct samples *s)
{
    return (struct bench_times){ .median_ms = qv_quantile(s->ms, (size_t)s->n, 0.5),
                                 .p90_ms = qv_quantile(s->ms, (size_t)s->n, 0.9),
                                 .repeats = s->n };
}

static void
tell_duration(const struct bench *b, const struct samples *s, int n, int64_t repeats)
{
    char text[32];
    double seconds = 0;
    for (int i = 0; i < n; i++)
        seconds += s[i].n ? 0 : bench_rest_s(&s[i].first_ms, 1, repeats);
    if (seconds >= LONG_S && !b->o->quiet)
        tool_say("bench %s: what comes next takes about %s", b->name, duration(seconds, text));
}

qv_status
bench_time(const struct bench *b, struct bench_run *runs, int n, qv_error *err)
{
    int64_t repeats = b->o->repeats < MOST_SAMPLES ? b->o->repeats : MOST_SAMPLES;
    struct samples *samples = calloc((size_t)n, sizeof *samples);
    if (!samples)
        return qv_fail(err, QV_ENOMEM, "no memory for times");
    qv_status status = QV_OK;
    for (int i = 0; i < n && !status; i++)
        status = sample(&runs[i], &samples[i], true, err);
    if (!status)
        tell_duration(b, samples, n, repeats);
    for (bool more = true; more && !status;) {
        more = false;
        for (int i = 0; i < n && !status; i++)
            if (!enough(&samples[i], repeats)) {
                status = sample(&runs[i], &samples[i], false, err);
                more = true;
            }
    }
    for (int i = 0; i < n && !status; i++)
        runs[i].times = times_of(&samples[i]);
    free(samples);
    return status;
}

/* ---- records --------------------------------------------------------------------------------- */

struct bench_figure
bench_roof_share(const struct bench *b, qv_dtype dtype, double flops, double bytes, bool streams,
                 double ms)
{
    const struct bench_roof roof = { b->peak[dtype], b->memory };
    return bench_share(&roof, flops, bytes, streams, ms);
}

void
bench_print_share(struct bench_figure share, const char *note)
{
    char percent[20] = "-";
    if (!share.withheld)
        snprintf(percent, sizeof percent, "%.1f%%", 100 * share.value);
    tool_print(" %8s%s%s%s%s\n", percent, note && *note ? "  " : "", note ? note : "",
               share.withheld ? "  share withheld: " : "", share.withheld ? share.withheld : "");
}

const char *
bench_figure_text(struct bench_figure figure, int decimals, const char *unit, char *text,
                  size_t size)
{
    if (figure.withheld)
        snprintf(text, size, "withheld: %s", figure.withheld);
    else
        snprintf(text, size, "%.*f%s", decimals, figure.value, unit);
    return text;
}

void
bench_put_figure(json_t *record, const char *name, struct bench_figure figure)
{
    if (!figure.withheld) {
        json_object_set_new(record, name, json_real(figure.value));
        return;
    }
    json_t *withheld = json_copy(json_object_get(record, "withheld")); /* records may share it */
    if (!withheld)
        withheld = json_object();
    json_object_set_new(withheld, name, json_string(figure.withheld));
    json_object_set_new(record, "withheld", withheld);
}

/* Returns units a second from units a run. */
static double
rate(double units, double ms)
{
    return ms > 0 ? units / (ms * 1e-3) : 0;
}

/* Sets a field to a rate of the machine, or says that it is unknown. */
static void
put_rate(json_t *machine, const char *name, struct bench_rate rate, double scale)
{
    bench_put_figure(machine, name,
                     (struct bench_figure){ rate.per_s * scale,
                                            rate.known || !(rate.per_s > 0)
                                                ? NULL
                                                : "no two of its measurements agree" });
}

static json_t *
machine_json(const struct bench *b, qv_dtype dtype)
{
    json_t *j = json_pack("{s:s, s:s, s:i, s:b}", "backend", b->info.backend, "device",
                          b->info.device, "threads", b->info.threads, "tuned", b->o->tune);
    put_rate(j, "roof_tflops_per_s", b->peak[dtype], 1e-12);
    put_rate(j, "roof_gb_per_s", b->memory, 1e-9);
    put_rate(j, "copy_gb_per_s", b->copy, 1e-9);
    return j;
}

/* Returns the day as 2026-01-31, in UTC. Tables take records of one day for one run. */
static json_t *
day_json(void)
{
    char day[16] = "";
    struct tm utc;
    const time_t now = time(NULL);
    if (gmtime_r(&now, &utc))
        strftime(day, sizeof day, "%Y-%m-%d", &utc);
    return json_string(day);
}

static struct bench_figure
share_of(const struct bench *b, const struct bench_record *r)
{
    return bench_roof_share(b, r->dtype, r->flops, r->bytes, r->streams, r->times.median_ms);
}

static json_t *
record_json(const struct bench *b, const struct bench_record *r)
{
    double ms = r->times.median_ms;
    json_t *j = json_pack("{s:s, s:o, s:s, s:s}", "bench", b->name, "case", tool_json_text(r->work),
                          "way", r->way, "dtype", qv_dtype_name(r->dtype));
    if (r->desc)
        json_object_update_new(j, json_pack("{s:b, s:s}", "chosen", r->chosen, "desc", r->desc));
    json_object_update_new(j, json_pack("{s:f, s:f, s:I, s:f, s:f, s:f, s:f}", "median_ms", ms,
                                        "p90_ms", r->times.p90_ms, "repeats",
                                        (json_int_t)r->times.repeats, "flops", r->flops, "bytes",
                                        r->bytes, "tflops_per_s", rate(r->flops, ms) * 1e-12,
                                        "gb_per_s", rate(r->bytes, ms) * 1e-9));
    json_object_update(j, r->extras);
    bench_put_figure(j, "roof_share", share_of(b, r));
    json_object_set_new(j, "machine", machine_json(b, r->dtype));
    json_object_set_new(j, "version", json_string(qv_version()));
    json_object_set_new(j, "commit", json_string(QV_COMMIT));
    json_object_set_new(j, "day", day_json());
    return j;
}

qv_status
bench_emit(struct bench *b, const struct bench_record *r, qv_error *err)
{
    const double scatter = r->computed ? 0 : bench_scatter(r->times.median_ms, r->times.p90_ms);
    b->timed += !r->computed;
    b->scattered += scatter > 0;
    b->most_scatter = scatter > b->most_scatter ? scatter : b->most_scatter;
    qv_status status = b->o->json ? tool_emit_json(b->o, record_json(b, r), err) : QV_OK;
    json_decref(r->extras);
    return status;
}

void
bench_show_group(struct bench *b, const char *name, qv_dtype dtype)
{
    char group[sizeof b->group];
    snprintf(group, sizeof group, "%s, %s", name, qv_dtype_name(dtype));
    if (strcmp(group, b->group))
        tool_print("\n%s\n  %-25s %11s %11s %9s %9s %8s\n", group, "", "median ms", "p90 ms",
                   "TFLOP/s", "GB/s", "of roofline");
    snprintf(b->group, sizeof b->group, "%s", group);
}

/* Writes a number with three significant digits, or with all of them before the point. */
static const char *
digits(double x, char text[24])
{
    snprintf(text, 24, x < 99.95 ? "%#.3g" : "%.0f", x);
    return text;
}

/* Prints those of the named fields that the record has. */
static void
print_fields(const json_t *extras, const char *names)
{
    const json_t *reasons = json_object_get(extras, "withheld");
    char name[40], text[24];
    for (int n = 0; names && sscanf(names, "%39s%n", name, &n) == 1; names += n) {
        const json_t *value = json_object_get(extras, name);
        const char *why = json_string_value(json_object_get(reasons, name));
        if (why)
            tool_print("  %s withheld: %s", name, why);
        else if (json_is_number(value))
            tool_print("  %s %s", name, digits(json_number_value(value), text));
    }
}

qv_status
bench_report(struct bench *b, const struct bench_record *r, qv_error *err)
{
    const char *label = r->label ? r->label : r->way;
    const double ms = r->times.median_ms;
    if (bench_talks(b)) {
        bench_show_group(b, r->group ? r->group : r->work, r->dtype);
        tool_print("  %-25s %11.3f %11.3f %9.3f %9.2f", label, ms, r->times.p90_ms,
                   rate(r->flops, ms) * 1e-12, rate(r->bytes, ms) * 1e-9);
        print_fields(r->extras, r->show);
        bench_print_share(share_of(b, r), r->note);
        fflush(stdout);
    }
    return bench_emit(b, r, err);
}

qv_status
bench_ended(const char *what, int code, qv_error *err)
{
    const qv_status status = code == TOOL_USAGE    ? QV_EINVAL
                             : code == TOOL_DEVICE ? QV_EBACKEND
                                                   : QV_EFORMAT;
    return code ? qv_fail(err, status, "%s ended with exit code %d", what, code) : QV_OK;
}

/* ---- lists ----------------------------------------------------------------------------------- */

/* Names the file and line of a failure; an invalid line is an invalid file. */
static qv_status
blame(const char *file, int line, qv_status status, qv_error *err)
{
    qv_error why = *err;
    return qv_fail(err, status == QV_EINVAL ? QV_EFORMAT : status, "%s:%d: %.400s", file, line,
                   why.text);
}

/* Reads a text file; the text ends with a NUL, and the caller frees it. */
static qv_status
read_list(const char *path, char **out, qv_error *err)
{
    enum { MOST_BYTES = 1 << 20 };
    FILE *f = fopen(path, "rb");
    if (!f)
        return qv_fail(err, QV_EIO, "%s: %s", path, strerror(errno));
    char *text = *out = malloc(MOST_BYTES);
    const size_t n = text ? fread(text, 1, MOST_BYTES, f) : 0;
    const bool failed = ferror(f);
    fclose(f);
    if (!text)
        return qv_fail(err, QV_ENOMEM, "%s: no memory for a list of shapes", path);
    if (failed)
        return qv_fail(err, QV_EIO, "%s: cannot be read", path);
    if (n == MOST_BYTES || memchr(text, 0, n))
        return qv_fail(err, QV_EFORMAT, "%s: not a list of shapes", path);
    text[n] = 0;
    return QV_OK;
}

/* Cuts the line that begins at *next off, and moves *next to the one behind it, or to NULL. Returns
 * what the line says. */
static char *
cut_line(char **next)
{
    char *line = *next + strspn(*next, " \t"), *end = strchr(*next, '\n');
    *next = end ? end + 1 : NULL;
    if (end)
        *end = 0;
    line[strcspn(line, "#\r\n")] = 0;
    return line;
}

static int64_t
count_lines(const char *text)
{
    int64_t n = 0;
    for (const char *at = text; at; at = strchr(at, '\n'), at += at != NULL)
        n += !strchr("#\r\n", at[strspn(at, " \t")]);
    return n;
}

qv_status
bench_each_line(struct bench *b, const char *path, const char *text, bench_line *take, void *user,
                qv_error *err)
{
    char *list = text ? strdup(text) : NULL;
    qv_status status = text ? QV_OK : read_list(path, &list, err);
    if (text && !list)
        status = qv_fail(err, QV_ENOMEM, "%s: no memory for a list", path);
    char *next = status ? NULL : list;
    if (next)
        bench_expect(b, count_lines(next));
    for (int number = 1; next && !status; number++) {
        char *line = cut_line(&next);
        status = *line ? take(user, line, err) : QV_OK;
        if (status)
            status = blame(path, number, status, err);
    }
    free(list);
    return status;
}

/* ---- temporary folders ----------------------------------------------------------------------- */

qv_status
bench_open_folder(const char *folder, char **out, qv_error *err)
{
    char *path = qv_path_join(folder, "bench-XXXXXX");
    if (!path)
        return qv_fail(err, QV_ENOMEM, "%s: no memory for a path", folder);
    if ((mkdir(folder, 0777) && errno != EEXIST) || !mkdtemp(path)) {
        const int e = errno;
        free(path);
        return qv_fail(err, QV_EIO, "%s: cannot be made or written to: %s", folder, strerror(e));
    }
    *out = path;
    return QV_OK;
}

void
bench_close_folder(char **folder)
{
    if (*folder) {
        tool_remove_folder(*folder);
    }
    free(*folder);
    *folder = NULL;
}

/* ---- the table of benches -------------------------------------------------------------------- */

int
tool_bench(const struct tool_options *o)
{
    enum { MODEL = 1, FOLDER = 2, CLIP = 4, DEVICES = 8 }; /* what it needs; what it may have */
    static const struct {
        const char *name;
        bench_function *run;
        unsigned has;
    } benches[] = {
        { "patch-embed", bench_patch_embed, 0 },  { "conv3d", bench_conv3d, 0 },
        { "tower", bench_tower, MODEL },          { "gemm", bench_gemm, 0 },
        { "preprocess", bench_preprocess, CLIP }, { "job", bench_job, MODEL | FOLDER | DEVICES },
        { "cache", bench_cache, MODEL | FOLDER }, { "start", bench_start, MODEL | FOLDER | CLIP }
    };
    for (size_t i = 0; i < sizeof benches / sizeof *benches && o->n_arguments; i++) {
        const char *name = benches[i].name;
        const unsigned has = benches[i].has;
        const size_t most = has & CLIP ? 2 : 1; /* arguments, with the bench's name */
        qv_error err = { 0 };
        if (strcmp(o->arguments[0], name) != 0)
            continue;
        if ((o->all_devices || o->n_devices > 1) && !(has & DEVICES))
            tool_complain("bench %s: it runs on one device", name);
        else if (o->n_arguments > most)
            tool_complain("bench %s: %s is not known (qwenvit bench --help)", name,
                          o->arguments[most]);
        else if (has & FOLDER && (!o->model || !o->output))
            tool_complain("bench %s: --model DIR and -o FOLDER are required (qwenvit bench --help)",
                          name);
        else if (has & MODEL && !o->model)
            tool_complain("bench %s: --model DIR is required", name);
        else {
            const qv_status status = benches[i].run(o, &err);
            const int code = status ? tool_fail(status, &err) : TOOL_DONE;
            return status == QV_ESTATE ? TOOL_FAILED : code;
        }
        return TOOL_USAGE;
    }
    tool_complain("bench: say what to time: patch-embed, conv3d, tower, gemm, preprocess, job, "
                  "cache or start "
                  "(qwenvit bench --help)");
    return TOOL_USAGE;
}
