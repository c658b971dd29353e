/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "estimate.h"

#include <math.h>

#include "error.h"

/* Opening a clip takes milliseconds. If there are more than this, a sample of so many stands for
 * all. */
enum { MOST_OPENED = 1000 };

struct tool_rules
tool_rules_of(const qv_model_info *model)
{
    return model ? (struct tool_rules){ model->image, model->video }
                 : (struct tool_rules){ qv_preprocess_default(true), qv_preprocess_default(false) };
}

static qv_status
add_clip(const struct tool_options *o, const struct tool_entry *entry,
         const struct tool_rules *rules, struct tool_estimate *e, qv_error *err)
{
    const qv_clip_options options = qvm_options_merge(entry->own, &o->clip);
    qv_clip *clip = NULL;
    qv_outcome c;
    const qv_status s =
        qv_clip_open(entry->path, &rules->image, &rules->video, &options, &clip, err);
    if (s)
        return s;
    qv_clip_get_info(clip, &c);
    qv_clip_close(&clip);
    const int merge = c.is_image ? rules->image.merge_size : rules->video.merge_size;
    e->images += c.is_image;
    e->frames += (double)c.n_frames;
    e->source_frames += c.is_image ? 1 : (double)c.cut_frames;
    e->tokens += (double)(c.grid_thw[0] * c.grid_thw[1] * c.grid_thw[2]) / (merge * merge);
    return QV_OK;
}

qv_status
tool_estimate_list(const struct tool_options *o, const struct tool_list *list,
                   const struct tool_rules *rules, struct tool_estimate *e, qv_error *err)
{
    struct tool_progress bar;
    *e = (struct tool_estimate){ .n = (int64_t)list->n };
    const int64_t n = e->n < MOST_OPENED ? e->n : MOST_OPENED;
    tool_progress_begin(&bar, "looking at", n, o->quiet);
    bar.unit = "clips";
    for (; e->opened < n; e->opened++) {
        const struct tool_entry *entry =
            &list->at[(2 * e->opened + 1) * e->n / (2 * n)]; /* the middle of each of n equal
                                                              * parts */
        const qv_status s = add_clip(o, entry, rules, e, err);
        if (s && qv_ends_all(s))
            return s;
        if (s)
            tool_complain("%s", err->text);
        e->unusable += s != QV_OK;
        tool_progress_show(&bar, e->opened + 1);
    }
    tool_progress_end(&bar, n);
    double *const sums[] = { &e->images, &e->frames, &e->source_frames, &e->tokens };
    for (size_t i = 0; i < sizeof sums / sizeof *sums && e->opened; i++)
        *sums[i] *= (double)e->n / (double)e->opened;
    return QV_OK;
}

json_t *
tool_estimate_json(const struct tool_estimate *e)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:{s:b, s:f, s:f, s:f, s:f}}", "clips",
                     (json_int_t)e->n, "opened", (json_int_t)e->opened, "unusable",
                     (json_int_t)e->unusable, "images", (json_int_t)llround(e->images), "frames",
                     (json_int_t)llround(e->frames), "source_frames",
                     (json_int_t)llround(e->source_frames), "tokens",
                     (json_int_t)llround(e->tokens), "text", "sampled", e->opened < e->n, "images",
                     e->images, "frames", e->frames, "source_frames", e->source_frames, "tokens",
                     e->tokens);
}

json_t *
tool_disk_json(double bytes, qv_dtype dtype, int64_t width, int n_deepstack)
{
    return json_sprintf("%.3f GB of %s, [n, %lld] and %d DeepStack outputs", bytes / 1e9,
                        qv_dtype_name(dtype), (long long)width, n_deepstack);
}

static const char list_text[] =
    "{text.path}:\n" TOOL_ESTIMATE_TEXT "[text.disk?  disk       {text.disk}\n]"
    "[text.hours?  time       {text.hours|2f} hours at {text.rate} clips a second (--rate)\n]";

int
tool_info_list(const struct tool_options *o, const qv_model_info *model)
{
    struct tool_list list = { .n = 0 };
    struct tool_estimate e = { .n = 0 };
    qv_error err = { 0 };
    const struct tool_rules rules = tool_rules_of(model);
    qv_status s = tool_list_read(o->list, &list, &err);
    if (!s)
        s = tool_check_list_outputs(o, &list, &err);
    if (!s)
        s = tool_estimate_list(o, &list, &rules, &e, &err);
    if (!s) {
        json_t *j = tool_estimate_json(&e), *text = json_object_get(j, "text");
        json_object_set_new(j, "list", tool_json_text(o->list));
        json_object_set_new(text, "path", json_string_nocheck(o->list));
        if (model)
            json_object_set_new(text, "disk",
                                tool_disk_json(2 * e.tokens * (double)model->out_hidden *
                                                   (1 + model->n_deepstack),
                                               QV_BF16, model->out_hidden, model->n_deepstack));
        if (o->rate > 0)
            json_object_update_new(text, json_pack("{s:f, s:f}", "rate", o->rate, "hours",
                                                   (double)e.n / o->rate / 3600));
        s = tool_show(o, j, 0, list_text, &err);
    }
    tool_list_free(&list);
    return s ? tool_fail(s, &err) : e.unusable ? TOOL_FAILED : TOOL_DONE;
}
