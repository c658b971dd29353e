/* SPDX-License-Identifier: MIT */
/* qwenvit info: what a checkpoint or a clip is, and what encoding it costs. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <string.h>

#include "command/tool.h"

struct scene {
    const struct tool_options *o;
    qv_context *ctx;
    qv_context_info context;
    qv_model *model; /* described, or NULL */
    qv_model_info info;
    const char *dir; /* of the model */
};

static const char *
size_text(double bytes, char text[24])
{
    static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB" };
    size_t unit = 0;
    while (bytes >= 1024 && unit + 1 < sizeof units / sizeof *units) {
        bytes /= 1024;
        unit++;
    }
    snprintf(text, 24, unit ? "%.1f %s" : "%.0f %s", bytes, units[unit]);
    return text;
}

static qv_status
open_model(struct scene *s, const char *dir, qv_error *err)
{
    qv_model_options options = { .dtype = s->o->dtype, .describe = true };
    qv_model_free(&s->model);
    qv_status status = qv_model_load(s->ctx, dir, &options, &s->model, err);
    if (!status)
        qv_model_get_info(s->model, &s->info);
    s->dir = dir;
    return status;
}

static void
print_preprocess(const char *label, const qv_preprocess *p)
{
    printf("  %-11s%lld to %lld pixels; mean %g %g %g, std %g %g %g\n", label,
           (long long)p->min_pixels, (long long)p->max_pixels, p->mean[0], p->mean[1], p->mean[2],
           p->std[0], p->std[1], p->std[2]);
}

static void
print_model(const struct scene *s)
{
    const qv_model_info *m = &s->info;
    char weights[24];
    printf("%s: %s vision tower, %.1f M parameters\n", s->dir, m->model_type,
           (double)m->n_parameters / 1e6);
    printf("  sizes      depth %lld, hidden %lld, %lld heads of %lld, MLP %lld, out %lld\n",
           (long long)m->depth, (long long)m->hidden, (long long)m->heads, (long long)m->head_dim,
           (long long)m->intermediate, (long long)m->out_hidden);
    printf("  patches    %lld x %lld x %lld (frames, rows, columns), merged %lld x %lld; rows of "
           "%lld values\n",
           (long long)m->temporal_patch_size, (long long)m->patch_size, (long long)m->patch_size,
           (long long)m->merge_size, (long long)m->merge_size, (long long)m->row_dim);
    printf("  deepstack  ");
    for (int i = 0; i < m->n_deepstack; i++)
        printf("%safter block %lld", i ? ", " : "", (long long)m->deepstack_layers[i]);
    printf("%s\n", m->n_deepstack ? "" : "none");
    print_preprocess("video", &m->video);
    print_preprocess("picture", &m->image);
    printf("  backend    %s (%s", s->context.backend, s->context.device);
    if (s->context.threads)
        printf(", %d thread%s", s->context.threads, s->context.threads == 1 ? "" : "s");
    printf(")\n");
    printf("  precision  %s: %s\n", qv_dtype_name(m->dtype),
           s->o->dtype ? "asked for" : s->context.dtype_reason);
    printf("  memory     weights %s, packed\n", size_text((double)m->weight_bytes, weights));
}

static json_t *
model_json(const struct scene *s)
{
    const qv_model_info *m = &s->info;
    json_t *taps = json_array();
    for (int i = 0; i < m->n_deepstack; i++)
        json_array_append_new(taps, json_integer(m->deepstack_layers[i]));
    return json_pack(
        "{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:s, s:s, s:s, s:s, s:i, "
        "s:I}",
        "model", s->dir, "model_type", m->model_type, "parameters", (json_int_t)m->n_parameters,
        "depth", (json_int_t)m->depth, "hidden", (json_int_t)m->hidden, "heads",
        (json_int_t)m->heads, "intermediate", (json_int_t)m->intermediate, "out_hidden",
        (json_int_t)m->out_hidden, "patch_size", (json_int_t)m->patch_size, "merge_size",
        (json_int_t)m->merge_size, "row_dim", (json_int_t)m->row_dim, "deepstack", taps,
        "precision", qv_dtype_name(m->dtype), "precision_reason",
        s->o->dtype ? "asked for" : s->context.dtype_reason, "backend", s->context.backend,
        "device", s->context.device, "threads", s->context.threads, "weight_bytes",
        (json_int_t)m->weight_bytes);
}

static void
print_clip(const char *path, const qv_clip_info *c)
{
    printf("%s: %s, %s in %s, %dx%d", path, c->picture ? "picture" : "clip", c->codec, c->format,
           c->source_width, c->source_height);
    if (c->rotation)
        printf(" (rotated by %d degrees)", c->rotation);
    if (!c->picture)
        printf(", %lld frames at %.3g fps, %.2f s", (long long)c->source_frames, c->source_fps,
               c->duration_s);
    printf("\n  sampled    %lld frame%s of %dx%d: grid_thw %lld,%lld,%lld\n",
           (long long)c->n_frames, c->n_frames == 1 ? "" : "s", c->width, c->height,
           (long long)c->grid_thw[0], (long long)c->grid_thw[1], (long long)c->grid_thw[2]);
}

static void
print_cost(const qv_clip_info *c, const qv_model_info *m, const qv_plan_info *p)
{
    char arena[24], weights[24], both[24], traffic[24];
    double chunks = (double)((c->grid_thw[0] + p->chunk_pairs - 1) / p->chunk_pairs);
    printf("  tokens     %lld of %lld values\n", (long long)(c->grid_thw[0] * p->tokens_per_pair),
           (long long)m->out_hidden);
    printf("  chunks     %.0f of %lld frame pair%s, %lld under way at a time\n", chunks,
           (long long)p->chunk_pairs, p->chunk_pairs == 1 ? "" : "s", (long long)p->chunks_ahead);
    printf("  work       %.4g TFLOP, %s moved between memory and kernels\n",
           chunks * p->flops / 1e12, size_text(chunks * p->bytes, traffic));
    printf("  memory     weights %s + arena %s = %s on the device\n",
           size_text((double)p->weight_bytes, weights), size_text((double)p->arena_bytes, arena),
           size_text((double)p->weight_bytes + (double)p->arena_bytes, both));
    printf("  conv3d     %s: %s\n", p->lowering, p->lowering_reason);
}

static json_t *
clip_json(const char *path, const qv_clip_info *c)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:f, s:f, s:I, s:I, s:i, s:i, "
                     "s:[I,I,I]}",
                     "clip", path, "kind", c->picture ? "picture" : "clip", "codec", c->codec,
                     "format", c->format, "source_width", c->source_width, "source_height",
                     c->source_height, "rotation", c->rotation, "source_fps", c->source_fps,
                     "duration_s", c->duration_s, "source_frames", (json_int_t)c->source_frames,
                     "frames", (json_int_t)c->n_frames, "width", c->width, "height", c->height,
                     "grid_thw", (json_int_t)c->grid_thw[0], (json_int_t)c->grid_thw[1],
                     (json_int_t)c->grid_thw[2]);
}

static void
add_cost_json(json_t *j, const qv_clip_info *c, const qv_plan_info *p)
{
    double chunks = (double)((c->grid_thw[0] + p->chunk_pairs - 1) / p->chunk_pairs);
    json_object_update_new(j, json_pack("{s:I, s:I, s:I, s:f, s:f, s:I, s:I, s:I, s:s, s:s}",
                                        "tokens", (json_int_t)(c->grid_thw[0] * p->tokens_per_pair),
                                        "chunk_pairs", (json_int_t)p->chunk_pairs, "chunks_ahead",
                                        (json_int_t)p->chunks_ahead, "flops", chunks * p->flops,
                                        "bytes", chunks * p->bytes, "weight_bytes",
                                        (json_int_t)p->weight_bytes, "arena_bytes",
                                        (json_int_t)p->arena_bytes, "device_bytes",
                                        (json_int_t)(p->weight_bytes + p->arena_bytes), "lowering",
                                        p->lowering, "lowering_reason", p->lowering_reason));
}

static qv_status
show_clip(struct scene *s, const char *path, qv_error *err)
{
    qv_preprocess image = s->model ? s->info.image : qv_preprocess_default(true);
    qv_preprocess video = s->model ? s->info.video : qv_preprocess_default(false);
    qv_clip *clip = NULL;
    qv_clip_info c;
    qv_plan *plan = NULL;
    qv_plan_info p;
    qv_status status = qv_clip_open(path, &image, &video, &s->o->clip, &clip, err);
    if (status)
        return status;
    qv_clip_get_info(clip, &c);
    qv_clip_close(&clip);
    if (s->model) {
        qv_plan_options options = { .grid_h = c.grid_thw[1],
                                    .grid_w = c.grid_thw[2],
                                    .still = c.picture,
                                    .image_norm = c.picture };
        status = qv_plan_create(s->model, &options, &plan, err);
        if (status)
            return status;
        qv_plan_get_info(plan, &p);
        qv_plan_free(&plan);
    }
    if (s->o->json) {
        json_t *j = clip_json(path, &c);
        if (s->model)
            add_cost_json(j, &c, &p);
        tool_print_json(j);
        return QV_OK;
    }
    print_clip(path, &c);
    if (s->model)
        print_cost(&c, &s->info, &p);
    return QV_OK;
}

static qv_status
show_model(struct scene *s, const char *dir, qv_error *err)
{
    qv_status status = open_model(s, dir, err);
    if (status)
        return status;
    if (s->o->json)
        tool_print_json(model_json(s));
    else
        print_model(s);
    return QV_OK;
}

int
tool_info(const struct tool_options *o)
{
    struct scene s = { .o = o };
    qv_error err = { 0 };
    int code = TOOL_DONE;
    if (!o->n_arguments && !o->model) {
        tool_complain("info: no checkpoint folder or clip given (qwenvit info --help)");
        return TOOL_USAGE;
    }
    qv_status status = tool_open_context(o, &s.ctx, &err);
    if (!status) {
        qv_context_get_info(s.ctx, &s.context);
        if (o->model)
            status =
                o->n_arguments ? open_model(&s, o->model, &err) : show_model(&s, o->model, &err);
    }
    const size_t n = status ? 0 : o->n_arguments;
    if (status)
        code = tool_fail(status, &err);
    for (size_t i = 0; i < n; i++) {
        const char *path = o->arguments[i];
        status = tool_is_folder(path) ? show_model(&s, path, &err) : show_clip(&s, path, &err);
        if (status)
            code = tool_fail(status, &err);
    }
    if (code && n > 1) /* a part of the work */
        code = TOOL_FAILED;
    qv_model_free(&s.model);
    tool_close_context(&s.ctx, &s.context);
    return code;
}
