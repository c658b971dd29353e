/* SPDX-License-Identifier: MIT */
/* qwenvit cache --dry-run: estimates what a run would do, and what it would take. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>

#include "cache_command.h"
#include "dtype.h"
#include "error.h"
#include "estimate.h"
#include "qwenvit_fill.h"

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

static void
print_hours(const struct forecast *f)
{
    if (f->o->rate > 0)
        tool_print("  time       %.2f hours at %g clips a second (--rate)\n", hours(f), f->o->rate);
    else if (f->has_rate)
        tool_print(
            "  time       %.2f hours of one process, as fast as the last run here, which sealed "
            "%lld clips and %lld tokens in %.0f s behind its first part\n",
            hours(f), (long long)f->rate.clips, (long long)f->rate.tokens, f->rate.seconds);
    else
        tool_print(
            "  time       it cannot be told: no run has sealed two parts here; --rate N says how "
            "many clips a second are done\n");
}

static qv_status
report(const struct forecast *f, qv_error *err)
{
    const struct tool_options *o = f->o;
    if (!o->json) {
        tool_print("%s: %lld to do; %lld are there, %lld failed before%s\n", o->out,
                   (long long)f->sums.n, (long long)f->counts.there,
                   (long long)f->counts.failed_before,
                   f->counts.failed_before ? " (--retry-failed)" : "");
        tool_estimate_print(&f->sums);
        tool_print("  disk       %.3f GB of %s, [n, %lld] and %d DeepStack outputs\n",
                   f->bytes / 1e9, qv_dtype_name(f->layout.dtype), (long long)f->layout.width,
                   f->layout.n_deepstack);
        print_hours(f);
        return QV_OK;
    }
    json_t *j = tool_estimate_json(&f->sums);
    const bool lost =
        !j || json_object_set_new(j, "cache", tool_json_text(o->out)) ||
        json_object_set_new(j, "there", json_integer(f->counts.there)) ||
        json_object_set_new(j, "failed_before", json_integer(f->counts.failed_before)) ||
        json_object_set_new(j, "bytes", json_integer((json_int_t)f->bytes)) ||
        json_object_set_new(j, "hours", hours(f) < 0 ? json_null() : json_real(hours(f)));
    if (!lost)
        return tool_emit_json(o, j, err);
    json_decref(j);
    return qv_fail(err, QV_ENOMEM, "no memory for a result");
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
