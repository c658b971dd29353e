/* SPDX-License-Identifier: MIT */
/* qwenvit info --list and qwenvit cache fill --dry-run: estimate the cost of a list of clips. */
#include <math.h>
#include <stdlib.h>

#include "cache/open.h"
#include "cache_command.h"
#include "dtype.h"
#include "error.h"
#include "job/more.h"

/* Opening a clip takes milliseconds, so longer lists are estimated from a sample of this many
 * clips. */
enum { MOST_OPENED = 1000 };

/* Sums over the whole list, scaled up from the clips that were opened: all of them, or an evenly
 * spaced sample. */
struct estimate {
    int64_t n, opened, unusable; /* clips in the list; opened; opened, but unusable */
    double images, frames, source_frames, tokens;
};

static qv_status
add_clip(const struct tool_options *o, const struct tool_entry *entry, const qv_model_info *model,
         struct estimate *e, qv_error *err)
{
    const qv_clip_options options = qvm_options_merge(entry->own, &o->clip);
    qv_clip *clip = NULL;
    qv_outcome c;
    const qv_status s = qv_clip_open(entry->path, model ? &model->image : NULL,
                                     model ? &model->video : NULL, &options, &clip, err);
    if (s)
        return s;
    qv_clip_get_info(clip, &c);
    qv_clip_close(&clip);
    const qv_preprocess p =
        model ? c.is_image ? model->image : model->video : qv_preprocess_default(c.is_image);
    e->images += c.is_image;
    e->frames += (double)c.n_frames;
    e->source_frames += c.is_image ? 1 : (double)c.cut_frames;
    e->tokens +=
        (double)(c.grid_thw[0] * c.grid_thw[1] * c.grid_thw[2]) / (p.merge_size * p.merge_size);
    return QV_OK;
}

/* Opens clips to read their sizes, and reports the unusable ones. Returns QV_ENOMEM or
 * QV_EBACKEND. */
static qv_status
estimate(const struct tool_options *o, const struct tool_list *list, const qv_model_info *model,
         struct estimate *e, qv_error *err)
{
    struct tool_progress bar;
    struct tool_reasons failures = { .n = 0 };
    *e = (struct estimate){ .n = (int64_t)list->n };
    const int64_t n = e->n < MOST_OPENED ? e->n : MOST_OPENED;
    tool_progress_begin(&bar, "looking at", n, o->to.quiet);
    bar.unit = "clips";
    for (; e->opened < n; e->opened++) {
        /* the middle of each of n equal parts */
        const int64_t i = (2 * e->opened + 1) * e->n / (2 * n);
        const qv_status s = add_clip(o, &list->at[i], model, e, err);
        if (s && qv_ends_all(s)) {
            tool_bar_end();
            tool_reasons_tell(&failures, &o->to);
            return s;
        }
        if (s)
            tool_reasons_lose(&failures, &o->to, list->at[i].path, list->at[i].key, s, err->text);
        e->unusable += s != QV_OK;
        tool_progress_show(&bar, e->opened + 1);
    }
    tool_progress_end(&bar, n);
    tool_reasons_tell(&failures, &o->to);
    double *const sums[] = { &e->images, &e->frames, &e->source_frames, &e->tokens };
    for (size_t i = 0; i < sizeof sums / sizeof *sums && e->opened; i++)
        *sums[i] *= (double)e->n / (double)e->opened;
    return QV_OK;
}

static double
bytes_of(const struct estimate *e, const qv_cache_layout *l)
{
    return e->tokens * (double)l->width * (1 + l->n_deepstack) * (double)qv_dtype_bytes(l->dtype);
}

/* Both subcommands print these; `disk` is the size of the tokens in files. */
#define ESTIMATE_TEXT                                                                              \
    "  clips      {clips}, {images} of them images[text.sampled?; estimated from {opened} of "     \
    "them, evenly spaced][unusable?; {unusable} of {opened} cannot be used]\n"                     \
    "  frames     {frames} sampled of {source_frames} in the clips\n"                              \
    "  tokens     {tokens}\n"                                                                      \
    "[text.rows?  disk       {text.bytes|GB} of {text.dtype}, {text.rows} and "                    \
    "{text.deepstack} DeepStack outputs\n]"

static json_t *
estimate_json(const struct estimate *e, const qv_cache_layout *l)
{
    return tool_json(
        "clips:I opened:I unusable:I images:I frames:I source_frames:I tokens:I text:o", e->n,
        e->opened, e->unusable, llround(e->images), llround(e->frames), llround(e->source_frames),
        llround(e->tokens),
        tool_json("sampled:b bytes:f dtype:s rows:o deepstack:i", e->opened < e->n, bytes_of(e, l),
                  qv_dtype_name(l->dtype),
                  l->width ? json_sprintf("[n, %lld]", (long long)l->width) : json_null(),
                  l->n_deepstack));
}

/* ---- info --list ----------------------------------------------------------------------------- */

int
tool_info_list(const struct tool_options *o, const qv_model_info *model)
{
    struct tool_list list = { .n = 0 };
    struct estimate e = { .n = 0 };
    qv_cache_layout layout = { .dtype = QV_BF16 };
    qv_error err = { 0 };
    qv_status s = tool_list_read(o->list, &list, &err);
    if (!s)
        s = tool_check_list_outputs(o, &list, NULL, 0, &err);
    if (!s)
        s = estimate(o, &list, model, &e, &err);
    if (model) {
        layout.width = model->out_hidden;
        layout.n_deepstack = model->n_deepstack;
    }
    if (!s) {
        json_t *j = estimate_json(&e, &layout);
        tool_json_add(&j, "list:t text.rate:f text.seconds:f", o->list, o->rate,
                      o->rate > 0 ? (double)e.n / o->rate : 0.0);
        s = tool_show(&o->to, j,
                      "{list}:\n" ESTIMATE_TEXT "[text.rate?  time       {text.seconds|time} at "
                      "{text.rate} clips per second (--rate)\n]",
                      &err);
    }
    tool_list_free(&list);
    return s ? tool_fail(s, &err) : e.unusable ? TOOL_FAILED : TOOL_DONE;
}

/* ---- cache fill --dry-run -------------------------------------------------------------------- */

struct forecast {
    const struct tool_options *o;
    qv_model_info model;
    qv_cache_layout layout;
    struct tool_list list; /* the list; after find_wanted only the wanted clips */
    qv_cache_fill_counts counts;
    struct estimate sums;
    qv_cache_rate rate;
    bool has_rate;
};

/* Reads the model's sizes without loading weights. */
static qv_status
describe_model(struct forecast *f, qv_error *err)
{
    qv_context *ctx = NULL;
    qv_context_info info;
    qv_model *model = NULL;
    qv_status s = tool_open_context(f->o, f->o->devices[0], &ctx, &info, err);
    if (!s)
        s = tool_load_model(f->o, ctx, f->o->model, true, &model, &f->model, err);
    qv_model_free(&model);
    qv_context_close(&ctx);
    f->layout = (qv_cache_layout){ .dtype = f->o->tokens ? f->o->tokens : QV_BF16,
                                   .width = f->model.out_hidden,
                                   .n_deepstack = f->o->no_deepstack ? 0 : f->model.n_deepstack };
    return s;
}

/* Reduces the list to the clips that a run would encode. */
static qv_status
find_wanted(struct forecast *f, qv_error *err)
{
    const qv_cache_fill_options options = { .retry_failed = f->o->retry_failed,
                                            .trust = tool_cache_trust(f->o) };
    qv_cache_fill *fill = NULL;
    int64_t n_wanted = 0;
    bool *wanted = calloc(f->list.n + 1, sizeof *wanted);
    qv_status s =
        wanted ? tool_cache_find_work(f->o->out, &options, &f->list, wanted, &n_wanted, &fill, err)
               : qv_fail(err, QV_ENOMEM, "no memory for %zu clips", f->list.n);
    if (!s) {
        const qv_cache *there = qv_cache_fill_there(fill);
        f->has_rate = there && qv_cache_last_rate(there, &f->rate);
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

/* Returns the estimated hours, from --rate or from the cache's recorded rate in tokens; below 0:
 * unknown. */
static double
hours(const struct forecast *f)
{
    const double clips = (double)f->sums.n, seconds = f->rate.seconds;
    return f->o->rate > 0       ? clips / f->o->rate / 3600
           : !f->has_rate       ? -1
           : f->rate.tokens > 0 ? f->sums.tokens / ((double)f->rate.tokens / seconds) / 3600
                                : clips / ((double)f->rate.clips / seconds) / 3600;
}

static const char forecast_text[] =
    "{cache}: {clips} to do; {there} already there, {failed_before} failed earlier[failed_before? "
    "(--retry-failed)]\n" ESTIMATE_TEXT
    "  time       [text.asked?{text.time_s|time} at {text.asked} clips per second "
    "(--rate)][text.seconds?{text.time_s|time} for one process at the rate of the last run here, "
    "which "
    "sealed {text.clips} clips and {text.tokens} tokens in {text.seconds|time} after its first "
    "part][text.unknown?unknown: no run here has sealed two parts yet; "
    "give --rate N, in clips per second]\n";

static qv_status
report(const struct forecast *f, qv_error *err)
{
    const struct tool_options *o = f->o;
    const double h = hours(f), last_s = o->rate > 0 || !f->has_rate ? 0 : f->rate.seconds;
    json_t *j = estimate_json(&f->sums, &f->layout);
    tool_json_add(&j,
                  "cache:t there:I failed_before:I bytes:I hours:o text.asked:f text.unknown:b "
                  "text.time_s:f text.clips:I text.tokens:I text.seconds:f",
                  o->out, f->counts.there, f->counts.failed_before,
                  (int64_t)bytes_of(&f->sums, &f->layout), h < 0 ? json_null() : json_real(h),
                  o->rate, h < 0, 3600 * h, f->rate.clips, f->rate.tokens, last_s);
    return tool_show(&o->to, j, forecast_text, err);
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
    if (!s)
        s = estimate(o, &f.list, &f.model, &f.sums, &err);
    if (!s)
        s = report(&f, &err);
    tool_list_free(&f.list);
    return s ? tool_fail(s, &err) : f.sums.unusable ? TOOL_FAILED : TOOL_DONE;
}
