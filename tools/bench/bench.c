/* SPDX-License-Identifier: MIT */
/* Code that all benches share: a device, timing, tables, records, lists. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"
#include "commit.h"
#include "error.h"
#include "files/json.h"
#include "path.h"

/* ---- a bench --------------------------------------------------------------------------------- */

qv_status
bench_open(struct bench *b, qv_error *err)
{
    return tool_open_context(b->o, b->o->devices[0], &b->ctx, &b->info, err);
}

qv_status
bench_open_model(struct bench *b, qv_model **model, qv_model_info *info, qv_error *err)
{
    const qv_status status = bench_open(b, err);
    return status ? status : tool_load_model(b->o, b->ctx, b->o->model, false, model, info, err);
}

bool
bench_talks(const struct bench *b)
{
    return !b->o->to.json || b->o->to.json_file;
}

void
bench_close(struct bench *b)
{
    if (b->scattered && !b->o->to.quiet)
        tool_say("bench %s: %lld of %lld times are not reliable: their p90 is up to %.1f times the "
                 "median, so another program was using this machine",
                 b->name, (long long)b->scattered, (long long)b->timed, b->most_scatter);
    tool_close_context(&b->ctx, &b->info);
}

/* Writes a number with three significant digits, or all digits of its integer part. */
static const char *
digits(double x, char text[24])
{
    snprintf(text, 24, x < 99.95 ? "%#.3g" : "%.0f", x);
    return text;
}

static const char *
rate_text(struct bench_rate rate, double scale, char text[24])
{
    return rate.known ? digits(rate.per_s * scale, text) : "unknown";
}

static void
tell_device(struct bench *b)
{
    if (b->begun)
        return;
    b->begun = true;
    tool_print("%s on %s: %s", b->name, b->info.backend, b->info.device);
    if (b->info.threads)
        tool_print(", %d thread%s", b->info.threads, b->info.threads == 1 ? "" : "s");
    tool_print("\n");
}

bool
bench_is_spent(const struct bench *b)
{
    return b->o->budget > 0 && qv_seconds() - b->began_s >= b->o->budget;
}

void
bench_print_roofline(struct bench *b, qv_dtype dtype)
{
    char peak[24], memory[24], copy[24];
    if (!bench_talks(b))
        return;
    tool_print(b->begun ? "\n" : "");
    tell_device(b);
    tool_print("roofline: %s TFLOP/s (%s GEMM), %s GB/s (copy: %s)\n",
               rate_text(b->peak[dtype], 1e-12, peak), qv_dtype_name(dtype),
               rate_text(b->memory, 1e-9, memory), rate_text(b->copy, 1e-9, copy));
    if (!b->peak[dtype].known || !b->memory.known || !b->copy.known)
        tool_print(bench_is_spent(b)
                       ? "unknown: --budget was spent before two measurements agreed\n"
                       : "unknown: no two of %d measurements agree, so another program is "
                         "using this machine\n",
                   BENCH_MOST_RATES);
    fflush(stdout);
}

qv_dtype
bench_dtype(const struct bench *b)
{
    return b->o->dtype ? b->o->dtype : b->info.dtype;
}

const char *
bench_base_name(const char *path, char *name, size_t size)
{
    size_t n;
    const char *last = qv_path_last(path, &n);
    snprintf(name, size, "%.*s", (int)n, last);
    return name;
}

/* ---- timing ---------------------------------------------------------------------------------- */

enum { MOST_SAMPLES = 1000, LONG_S = 3 }; /* the remaining time is shown if it is longer */

struct samples {
    double ms[MOST_SAMPLES], spent_ms; /* spent_ms is by the host's clock */
    double first_ms;                   /* time of the warm-up */
    int64_t n;
    bool is_over; /* --budget was spent before it, or during it */
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
    b->parts_began_s = b->told_s = qv_seconds();
}

bool
bench_next(struct bench *b)
{
    const double now_s = qv_seconds(), every_s = b->parts_done > 1 ? 10 : 0;
    const double left_s = (now_s - b->parts_began_s) * (double)(b->parts - b->parts_done) /
                          (double)(b->parts_done + !b->parts_done);
    char text[32];
    if (b->parts_done && bench_is_spent(b)) {
        tool_say("bench %s: --budget is spent: %lld of %lld were timed", b->name,
                 (long long)b->parts_done, (long long)b->parts);
        return false;
    }
    if (b->parts_done++ && !b->o->to.quiet && left_s >= LONG_S && now_s - b->told_s >= every_s) {
        b->told_s = now_s;
        tool_say("bench %s: %lld of %lld timed, about %s to go", b->name,
                 (long long)b->parts_done - 1, (long long)b->parts, duration(left_s, text));
    }
    return true;
}

static bool
enough(const struct bench *b, const struct samples *s, int64_t repeats)
{
    return s->is_over || s->n == MOST_SAMPLES || s->spent_ms >= BENCH_MOST_MS ||
           (s->n && bench_is_spent(b)) ||
           (s->n >= repeats && s->spent_ms >= (double)(BENCH_LEAST_MS * repeats));
}

/* Takes one sample. The first run only warms up, unless it uses up the time for all samples. */
static qv_status
sample(const struct bench *b, const struct bench_run *run, struct samples *s, bool warm_up,
       qv_error *err)
{
    double began = qv_seconds(), ms = -1;
    qv_status status = run->work(run->user, &ms, err);
    double spent_ms = (qv_seconds() - began) * 1e3;
    s->first_ms = warm_up ? spent_ms : s->first_ms;
    s->is_over = isinf(ms);
    if (!status && !s->is_over && (!warm_up || spent_ms >= BENCH_MOST_MS || bench_is_spent(b))) {
        s->ms[s->n++] = ms >= 0 ? ms : spent_ms;
        s->spent_ms += spent_ms;
    }
    return status;
}

static void
tell_duration(const struct bench *b, double seconds)
{
    char text[32];
    const double left_s = b->began_s + b->o->budget - qv_seconds();
    seconds = b->o->budget > 0 && left_s < seconds ? left_s : seconds;
    if (seconds >= LONG_S && !b->o->to.quiet)
        tool_say("bench %s: the next part takes about %s", b->name, duration(seconds, text));
}

/* Runs each work once. The remaining works are left out once this has taken LONG_S and --budget is
 * spent. */
static qv_status
run_once(const struct bench *b, const struct bench_run *runs, struct samples *samples,
         int64_t repeats, int n, qv_error *err)
{
    const double began_s = qv_seconds();
    double rest_s = 0;
    int all = 0, done = 0;
    for (int i = 0; i < n; i++)
        all += runs[i].work != NULL;
    for (int i = 0; i < n; i++) {
        samples[i].is_over = done && bench_is_spent(b) && qv_seconds() - began_s >= LONG_S;
        if (!runs[i].work || samples[i].is_over)
            continue;
        const qv_status status = sample(b, &runs[i], &samples[i], true, err);
        if (status)
            return status;
        const double s = bench_rest_s(&samples[i].first_ms, 1, repeats);
        rest_s += samples[i].n ? 0 : s;
        if (!done++ && samples[i].first_ms >= LONG_S * 1e3) /* the other works take about as long */
            tell_duration(b, s * all);
    }
    tell_duration(b, rest_s);
    return QV_OK;
}

qv_status
bench_time(const struct bench *b, struct bench_run *runs, int n, qv_error *err)
{
    int64_t repeats = b->o->repeats < MOST_SAMPLES ? b->o->repeats : MOST_SAMPLES;
    struct samples *samples = calloc((size_t)n, sizeof *samples);
    if (!samples)
        return qv_fail(err, QV_ENOMEM, "no memory for times");
    int all = 0, timed = 0;
    qv_status status = run_once(b, runs, samples, repeats, n, err);
    for (bool more = true; more && !status;) {
        more = false;
        for (int i = 0; i < n && !status; i++)
            if (runs[i].work && !enough(b, &samples[i], repeats)) {
                status = sample(b, &runs[i], &samples[i], false, err);
                more = true;
            }
    }
    for (int i = 0; i < n && !status; i++) {
        struct samples *taken = &samples[i];
        all += runs[i].work != NULL;
        timed += taken->n > 0;
        if (taken->n)
            runs[i].times =
                (struct bench_times){ qv_quantile(taken->ms, (size_t)taken->n, 0.5),
                                      qv_quantile(taken->ms, (size_t)taken->n, 0.9), taken->n };
    }
    if (timed < all && !status)
        tool_say("bench %s: --budget is spent: %d of %d were timed", b->name, timed, all);
    free(samples);
    return status;
}

/* ---- records --------------------------------------------------------------------------------- */

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

static double
rate(double units, double ms)
{
    return ms > 0 ? units / (ms * 1e-3) : 0;
}

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
    json_t *j =
        tool_json("backend:s device:s threads:i", b->info.backend, b->info.device, b->info.threads);
    put_rate(j, "roof_tflops_per_s", b->peak[dtype], 1e-12);
    put_rate(j, "roof_gb_per_s", b->memory, 1e-9);
    put_rate(j, "copy_gb_per_s", b->copy, 1e-9);
    return j;
}

/* Returns the day as 2026-01-31, in UTC. Tables treat the records of one day as one run. */
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
roof_share(const struct bench *b, const struct bench_record *r)
{
    const struct bench_roof roof = { b->peak[r->dtype], b->memory };
    return bench_share(&roof, r->flops, r->bytes, r->streams, r->times.median_ms);
}

static json_t *
record_json(const struct bench *b, const struct bench_record *r)
{
    double ms = r->times.median_ms;
    json_t *j = tool_json("bench:s case:t way:s dtype:s median_ms:f p90_ms:f repeats:I flops:f "
                          "bytes:f tflops_per_s:f gb_per_s:f",
                          b->name, r->work, r->way, qv_dtype_name(r->dtype), ms, r->times.p90_ms,
                          r->times.repeats, r->flops, r->bytes, rate(r->flops, ms) * 1e-12,
                          rate(r->bytes, ms) * 1e-9);
    json_object_update(j, r->extras);
    bench_put_figure(j, "roof_share", roof_share(b, r));
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
    qv_status status = b->o->to.json ? tool_emit_json(&b->o->to, record_json(b, r), err) : QV_OK;
    json_decref(r->extras);
    return status;
}

/* ---- tables ---------------------------------------------------------------------------------- */

static void
show_group(struct bench *b, const char *name, qv_dtype dtype)
{
    char group[sizeof b->group];
    snprintf(group, sizeof group, "%s, %s", name, qv_dtype_name(dtype));
    tell_device(b);
    if (strcmp(group, b->group)) {
        tool_print("\n%s\n", group);
        tool_print("  %-21s %9s %9s %8s %8s %6s\n", "", "median ms", "p90 ms", "TFLOP/s", "GB/s",
                   "roof %");
    }
    snprintf(b->group, sizeof b->group, "%s", group);
}

/* Prints the named fields that the record has; bytes as MB. Returns why a field is withheld, or
 * NULL. */
static const char *
print_fields(const json_t *extras, const char *names)
{
    const char *withheld = NULL;
    const json_t *reasons = json_object_get(extras, "withheld");
    char name[40], text[24];
    for (int n = 0; names && sscanf(names, "%39s%n", name, &n) == 1; names += n) {
        const json_t *value = json_object_get(extras, name);
        const char *why = json_string_value(json_object_get(reasons, name)),
                   *bytes = strstr(name, "_bytes");
        if (why)
            tool_print("  %s -", name);
        else if (bytes && json_is_number(value))
            tool_print("  %.*s %s MB", (int)(bytes - name), name,
                       digits(json_number_value(value) * 1e-6, text));
        else if (json_is_integer(value))
            tool_print("  %s %lld", name, (long long)json_integer_value(value));
        else if (json_is_number(value))
            tool_print("  %s %s", name, digits(json_number_value(value), text));
        else if (json_is_string(value) && *json_string_value(value))
            tool_print("  %s", json_string_value(value));
        else if (json_is_true(value))
            tool_print("  %s", name);
        withheld = why ? why : withheld;
    }
    return withheld;
}

static void
print_cell(double value, int width)
{
    char text[24] = "-";
    tool_print(" %*s", width, value > 0 ? digits(value, text) : text);
}

void
bench_print(struct bench *b, const struct bench_record *r)
{
    const double ms = r->times.median_ms;
    const struct bench_figure share = roof_share(b, r);
    show_group(b, r->group ? r->group : r->work, r->dtype);
    tool_print("  %-21s", r->group ? r->work : r->way);
    print_cell(ms, 9);
    print_cell(r->times.p90_ms, 9);
    print_cell(rate(r->flops, ms) * 1e-12, 8);
    print_cell(rate(r->bytes, ms) * 1e-9, 8);
    print_cell(share.withheld ? 0 : 100 * share.value, 6);
    const char *why = print_fields(r->extras, r->show);
    why = share.withheld ? share.withheld : why;
    tool_print("%s%s\n", why ? "  -: " : "", why ? why : "");
    fflush(stdout);
}

qv_status
bench_report(struct bench *b, const struct bench_record *r, qv_error *err)
{
    if (bench_talks(b))
        bench_print(b, r);
    return bench_emit(b, r, err);
}

/* ---- lists ----------------------------------------------------------------------------------- */

/* Removes blanks and comments from a line, and returns where the text begins. */
static char *
text_of(char *line)
{
    size_t n = strcspn(line, "#\r\n");
    while (n && strchr(" \t", line[n - 1]))
        n--;
    line[n] = 0;
    return line + strspn(line, " \t");
}

qv_status
bench_each_line(struct bench *b, const char *path, const char *text, bench_line *take, void *user,
                qv_error *err)
{
    enum { MOST = 4096 };
    char line[MOST];
    int64_t n = 0;
    qv_status status = QV_OK;
    FILE *f = text ? fmemopen((void *)(uintptr_t)text, strlen(text), "r") : fopen(path, "r");
    if (!f)
        return qv_fail(err, QV_EIO, "%s: cannot be opened: %s", path, strerror(errno));
    while (fgets(line, MOST, f))
        n += *text_of(line) != 0;
    rewind(f);
    bench_expect(b, n);
    for (int number = 1; !status && fgets(line, MOST, f); number++) {
        const bool whole = strchr(line, '\n') || feof(f);
        char *at = text_of(line);
        if (!whole)
            status =
                qv_fail(err, QV_EFORMAT, "%s:%d: the line is longer than %d bytes or has a NUL",
                        path, number, MOST);
        else if (*at && !bench_next(b))
            break;
        else if (*at && (status = take(user, at, err)) != QV_OK) {
            const qv_error why = *err; /* an invalid line is an invalid file */
            status = qv_fail(err, status == QV_EINVAL ? QV_EFORMAT : status, "%s:%d: %.400s", path,
                             number, why.text);
        }
    }
    if (ferror(f) && !status)
        status = qv_fail(err, QV_EIO, "%s: cannot be read: %s", path, strerror(errno));
    fclose(f);
    return status;
}
