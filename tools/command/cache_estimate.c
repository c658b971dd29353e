/* SPDX-License-Identifier: MIT */
/* qwenvit cache fill --dry-run: estimates what a run would do, and what it would take. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>

#include "cache_command.h"
#include "dtype.h"
#include "error.h"
#include "estimate.h"
#include "qwenvit_clips.h"

struct forecast {
    const struct tool_options *o;
    qv_model_info model;
    qv_cache_layout layout;
    struct tool_list list; /* the list; after find_wanted only the clips that are wanted */
    qv_cache_fill_counts counts;
    struct tool_estimate sums;
    double bytes; /* size on the disk */
    qv_cache_rate rate;
    bool has_rate;
};

/* Reads the model's numbers without loading weights. */
static qv_status
describe_model(struct forecast *f, qv_error *err)
{
    qv_context *ctx = NULL;
    qv_model *model = NULL;
    qv_status s = tool_open_context(f->o, &ctx, err);
    if (!s)
        s = tool_load_model(f->o, ctx, f->o->model, true, &model, err);
    if (!s)
        qv_model_get_info(model, &f->model);
    qv_model_free(&model);
    qv_context_close(&ctx);
    f->layout = (qv_cache_layout){ .dtype = f->o->tokens ? f->o->tokens : QV_BF16,
                                   .width = f->model.out_hidden,
                                   .n_deepstack = f->o->no_deepstack ? 0 : f->model.n_deepstack };
    return s;
}

/* Reduces the list to the clips that a run would compute. */
static qv_status
find_wanted(struct forecast *f, qv_error *err)
{
    const qv_cache_fill_options options = { .retry_failed = f->o->retry_failed,
                                            .trust = tool_cache_trust(f->o) };
    qv_cache_fill *fill = NULL;
    int64_t n_wanted = 0;
    bool *wanted = calloc(f->list.n + 1, sizeof *wanted);
    qv_status s = wanted ? qv_cache_fill_open(f->o->out, &options, &fill, err)
                         : qv_fail(err, QV_ENOMEM, "no memory for %zu clips", f->list.n);
    if (!s) {
        const qv_cache *there = qv_cache_fill_there(fill);
        tool_cache_tell_damage(there);
        f->has_rate = there && qv_cache_last_rate(there, &f->rate);
        s = tool_cache_add_list(fill, &f->list, wanted, &n_wanted, err);
        qv_cache_fill_get_counts(fill, &f->counts);
    }
    size_t n = 0;
    for (size_t i = 0; i < f->list.n && !s; i++)
        if (wanted[i])
            f->list.at[n++] = f->list.at[i];
    f->list.n = s ? f->list.n : n;
    qv_cache_fill_close(&fill);
    free(wanted);
    return s;
}

/* Returns the estimated hours, by --rate or by the tokens of the cache's own rate; below 0:
 * unknown. */
static double
hours(const struct forecast *f)
{
    if (f->o->rate > 0)
        return (double)f->sums.n / f->o->rate / 3600;
    if (!f->has_rate)
        return -1;
    return f->rate.tokens > 0
               ? f->sums.tokens / ((double)f->rate.tokens / f->rate.seconds) / 3600
               : (double)f->sums.n / ((double)f->rate.clips / f->rate.seconds) / 3600;
}

static const char forecast_text[] =
    "{text.path}: {clips} to do; {there} are there, {failed_before} failed before[failed_before? "
    "(--retry-failed)]\n" TOOL_ESTIMATE_TEXT "  disk       {text.disk}\n"
    "  time       [text.asked?{hours|2f} hours at {text.asked} clips a second (--rate)]"
    "[text.rate?{hours|2f} hours of one process, as fast as the last run here, which sealed "
    "{text.rate.clips} clips and {text.rate.tokens} tokens in {text.rate.seconds|0f} s behind its "
    "first part][text.unknown?it cannot be told: no run has sealed two parts here; --rate N says "
    "how many clips a second are done]\n";

static qv_status
report(const struct forecast *f, qv_error *err)
{
    const struct tool_options *o = f->o;
    const double h = hours(f);
    json_t *j = tool_estimate_json(&f->sums), *text = json_object_get(j, "text");
    int lost = json_object_update_new(j, json_pack("{s:o, s:I, s:I, s:I, s:o}", "cache",
                                                   tool_json_text(o->out), "there",
                                                   (json_int_t)f->counts.there, "failed_before",
                                                   (json_int_t)f->counts.failed_before, "bytes",
                                                   (json_int_t)f->bytes, "hours",
                                                   h < 0 ? json_null() : json_real(h)));
    lost |= json_object_update_new(
        text,
        json_pack("{s:o, s:o, s:f, s:b}", "path", json_string_nocheck(o->out), "disk",
                  tool_disk_json(f->bytes, f->layout.dtype, f->layout.width, f->layout.n_deepstack),
                  "asked", o->rate, "unknown", h < 0));
    if (o->rate <= 0 && f->has_rate)
        lost |= json_object_set_new(text, "rate",
                                    json_pack("{s:I, s:I, s:f}", "clips", (json_int_t)f->rate.clips,
                                              "tokens", (json_int_t)f->rate.tokens, "seconds",
                                              f->rate.seconds));
    return tool_show(o, j, lost, forecast_text, err);
}

int
tool_cache_estimate(const struct tool_options *o)
{
    struct forecast f = { .o = o };
    qv_error err = { 0 };
    qv_status s = tool_cache_list(o, &f.list, &err);
    if (!s)
        s = find_wanted(&f, &err);
    if (!s)
        s = describe_model(&f, &err);
    if (!s) {
        const struct tool_rules rules = tool_rules_of(&f.model);
        s = tool_estimate_list(o, &f.list, &rules, &f.sums, &err);
    }
    f.bytes = f.sums.tokens * (double)f.layout.width * (1 + f.layout.n_deepstack) *
              (double)qv_dtype_bytes(f.layout.dtype);
    if (!s)
        s = report(&f, &err);
    tool_list_free(&f.list);
    return s ? tool_fail(s, &err) : f.sums.unusable ? TOOL_FAILED : TOOL_DONE;
}
