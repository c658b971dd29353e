/* SPDX-License-Identifier: MIT */
/* qwenvit info: describes a checkpoint, a clip or a cache, and what encoding costs. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cache_command.h"
#include "clips/decoders.h"
#include "error.h"
#include "files/outcome_json.h"
#include "files/gguf.h"
#include "model/plan.h"
#include "numbers.h"
#include "qwenvit_clips.h"
#include "towers/weights.h"
#include "towers/read_config.h"
#include "tool.h"

struct scene {
    const struct tool_options *o;
    qv_context *ctx;
    qv_context_info context;
    qv_model *model; /* described only; may be NULL */
    qv_model_info info;
    const char *dir; /* the model's */
    struct tool_reasons failures;
};

static qv_status
open_model(struct scene *s, const char *dir, qv_error *err)
{
    qv_model_free(&s->model);
    s->dir = dir;
    return tool_load_model(s->o, s->ctx, dir, true, &s->model, &s->info, err);
}

static const char model_text[] =
    "{model}: {model_type} vision tower, {text.millions|1f} M parameters\n"
    "  sizes      depth {depth}, hidden {hidden}, {heads} heads of {text.head_dim}, MLP "
    "{intermediate}, out {out_hidden}\n"
    "  patches    {text.frames} x {patch_size} x {patch_size} (frames, rows, columns), merged "
    "{merge_size} x {merge_size}; rows of {row_dim} values\n"
    "  deepstack  [deepstack?after block {deepstack|, after block }][!deepstack?none]\n"
    "[text.side?  windows    of {window_size} pixels, {text.side} x {text.side} patches; full "
    "attention in blocks[text.full? {text.full| }]\n]"
    "  video      {text.video.min} to {text.video.max} pixels{text.video.of}; mean "
    "{text.video.mean| }, std {text.video.std| }\n"
    "  image      {text.image.min} to {text.image.max} pixels{text.image.of}; mean "
    "{text.image.mean| }, std {text.image.std| }\n"
    "  backend    {backend} ({device}[threads?, {threads} thread{threads|s}])\n"
    "[passed_over?  skipped    {passed_over}\n]"
    "  precision  {precision}: {precision_reason}\n"
    "  conv3d     {lowering}: {lowering_reason}\n"
    "  memory     weights {weight_bytes|size}, packed\n"
    "[text.types?  file       GGUF of {text.tensors} tensors: {text.types|, }\n]"
    "[note?  assumed    {note}\n]"
    "[text.not_used?  not used   {not_used.of_others} tensor{not_used.of_others|s} of other parts "
    "of the model[not_used.of_tower?; of the tower: {text.names|, }][text.unnamed? and "
    "{text.unnamed} more]\n]"
    "  packed     in chunks of up to {capacities.packed.rows} patches and "
    "{capacities.packed.segments} segments, of any sizes\n"
    "  alone      in the smallest capacity that fits, from {text.smallest} patches on; larger "
    "clips by frame pairs[!text.dense?,\n             in chunks of equal segments]\n"
    "  bits       [!capacities.bits_differ?the same alone and packed, in all these capacities]"
    "{capacities.bits_differ|\n             }\n"
    "  lists      at most {job_bytes|size} of host memory, plus decoder processes\n"
    "[decoder_bytes?  decoders   at most {decoder_bytes|size} of the GPU's memory\n]"
    "[text.kernels?  runs on    {text.kernels|\n             }\n]"
    "[text.why?  runs on    no kernels here: {text.why}\n]";

static json_t *
preprocess_json(bool is_image, const qv_preprocess *p)
{
    const char *of = p->processor == QV_PROCESSOR_QWEN2_VL            ? " per frame"
                     : is_image && p->processor == QV_PROCESSOR_GLM4V ? " per frame pair"
                                                                      : "";
    return tool_json("min:I max:I of:s mean:o std:o", p->min_pixels, p->max_pixels, of,
                     json_pack("[f,f,f]", p->mean[0], p->mean[1], p->mean[2]),
                     json_pack("[f,f,f]", p->std[0], p->std[1], p->std[2]));
}

/* Counts a GGUF file's tensors by type. */
static void
add_types(json_t *text, const char *dir)
{
    char *path = NULL;
    struct qv_gguf *file = NULL;
    if (!qv_mmproj_find(dir, &path, NULL) && path && !qv_gguf_open(path, &file, NULL)) {
        const size_t n = qv_gguf_count(file);
        size_t counts[64] = { 0 };
        json_t *types = json_array();
        for (size_t i = 0; i < n; i++)
            counts[qv_gguf_at(file, i)->type->id % 64]++;
        for (uint32_t id = 0; id < 64; id++)
            if (counts[id])
                json_array_append_new(types, json_sprintf("%zu %s", counts[id],
                                                          qv_gguf_type_find(id)->name));
        json_object_set_new(text, "tensors", json_integer((json_int_t)n));
        json_object_set_new(text, "types", types);
    }
    qv_gguf_close(&file);
    free(path);
}

/* Returns the tensors that the tower does not read. An unread tensor of the tower means that the
 * checkpoint is of another kind. */
static json_t *
leftover_json(const struct qv_leftover *l, json_t *text)
{
    json_t *first = json_array(), *names = json_array();
    for (int i = 0; i < QV_LEFTOVER_NAMES && i < l->of_tower; i++) {
        char quoted[QV_QUOTE_SIZE];
        json_array_append_new(first, tool_json_text(l->names[i]));
        json_array_append_new(names, json_string(qv_json_quote(l->names[i], quoted)));
    }
    json_object_set_new(text, "names", names);
    json_object_set_new(text, "not_used", json_boolean(l->of_tower || l->of_others));
    if (l->of_tower > QV_LEFTOVER_NAMES)
        json_object_set_new(text, "unnamed", json_integer(l->of_tower - QV_LEFTOVER_NAMES));
    return tool_json("of_others:I of_tower:I first:o", l->of_others, l->of_tower, first);
}

static json_t *
model_json(const struct scene *s)
{
    const qv_model_info *m = &s->info;
    const struct qv_config *c = &s->model->config;
    json_t *taps = json_array(), *full = json_array();
    for (int i = 0; i < m->n_deepstack; i++)
        json_array_append_new(taps, json_integer(m->deepstack_layers[i]));
    for (int64_t i = 0; i < c->depth; i++)
        if (c->full_attention[i])
            json_array_append_new(full, json_integer(i));
    json_t *text = tool_json("millions:f head_dim:I frames:I side:I full:o video:o image:o",
                             (double)m->n_parameters / 1e6, m->head_dim, m->temporal_patch_size,
                             qv_config_window_cells(c) * c->merge, full,
                             preprocess_json(false, &m->video), preprocess_json(true, &m->image));
    add_types(text, s->dir);
    return tool_json(
        "model:t model_type:s parameters:I depth:I hidden:I heads:I intermediate:I out_hidden:I "
        "patch_size:I merge_size:I row_dim:I window_size:I deepstack:o precision:s "
        "precision_reason:s backend:s passed_over:s device:s threads:i weight_bytes:I "
        "lowering:s lowering_reason:s note:t warning:t text:o",
        s->dir, m->model_type, m->n_parameters, m->depth, m->hidden, m->heads, m->intermediate,
        m->out_hidden, m->patch_size, m->merge_size, m->row_dim, c->window, taps,
        qv_dtype_name(m->dtype), s->o->dtype ? "asked for" : s->context.dtype_reason,
        s->context.backend, s->context.passed_over, s->context.device, s->context.threads,
        m->weight_bytes, m->lowering, m->lowering_reason, m->note, m->warning, text);
}

/* Adds the kernels that run a plan's operations: one entry per pair of operation and kernel, in
 * order. A NULL plan has none. */
static void
add_kernels(json_t *j, const qv_plan *plan)
{
    struct kernel {
        const char *op;
        int64_t calls;
        char text[QV_KERNEL_BYTES];
    };
    const size_t n_steps = plan ? plan->program.n : 0;
    struct kernel *all = n_steps ? calloc(n_steps, sizeof *all) : NULL;
    size_t n = 0;
    for (size_t i = 0; all && i < n_steps; i++) {
        size_t at = 0;
        qv_program_kernel(&plan->program, i, all[n].text);
        all[n].op = qv_op_name(plan->program.steps[i].op.kind);
        while (strcmp(all[at].op, all[n].op) || strcmp(all[at].text, all[n].text))
            at++;
        all[at].calls++;
        n += at == n;
    }
    json_t *list = json_array(), *texts = json_array();
    for (size_t i = 0; i < n; i++) {
        json_array_append_new(list, tool_json("op:s calls:I kernel:s", all[i].op, all[i].calls,
                                              all[i].text));
        json_array_append_new(texts, json_sprintf("%-11s %4lld x  %s", all[i].op,
                                                  (long long)all[i].calls, all[i].text));
    }
    free(all);
    json_object_set_new(j, "kernels", list);
    json_object_set_new(json_object_get(j, "text"), "kernels", texts);
}

/* ---- capacities ------------------------------------------------------------------------------ */

static struct qv_capacity_bits
bits_of(const struct scene *s)
{
    return qv_capacity_bits(&s->model->ctx->caps, s->info.dtype, s->info.merge_size,
                            s->info.head_dim);
}

/* Returns messages on when tokens' bits may differ between capacities. */
static json_t *
differences_json(const struct scene *s)
{
    const struct qv_capacity_bits bits = bits_of(s);
    const char *dtype = qv_dtype_name(s->info.dtype);
    json_t *texts = json_array();
    if (bits.rows == QV_NOT_SEEN)
        json_array_append_new(texts,
                              json_sprintf("%s GEMMs may round differently in any other capacity",
                                           dtype));
    else if (bits.rows)
        json_array_append_new(
            texts, json_sprintf("%s GEMMs of fewer than %lld rows, in capacities below %lld "
                                "patches, may round differently",
                                dtype, (long long)bits.gemm_rows, (long long)bits.rows));
    if (bits.dense)
        json_array_append_new(
            texts,
            json_sprintf("attention with heads of %lld may round differently in chunks of equal "
                         "segments, which only segment_rows requests",
                         (long long)s->info.head_dim));
    return texts;
}

static struct qv_capacity
pack_of(const struct scene *s)
{
    return qv_capacity_pack(&s->model->ctx->caps, &s->model->config, 0);
}

/* Returns the most host memory that encoding any list of clips needs; 0: unknown. */
static int64_t
job_bytes(const struct scene *s)
{
    int64_t bytes = 0;
    const qv_job_options options = { .output = s->info.dtype }; /* the options of `encode` */
    return qv_job_memory(&s->model, 1, &options, &bytes, NULL) ? 0 : bytes;
}

static json_t *
capacities_json(const struct scene *s, json_t *text)
{
    const struct qv_capacity pack = pack_of(s);
    json_t *alone = json_array();
    for (int64_t rows = 1; rows <= pack.patches;) {
        int64_t bucket = qv_capacity_bucket(&s->model->ctx->caps, s->info.merge_size, rows);
        json_array_append_new(alone, json_integer(bucket));
        rows = bucket + 1;
    }
    json_object_set_new(text, "smallest",
                        json_integer(
                            qv_capacity_bucket(&s->model->ctx->caps, s->info.merge_size, 1)));
    json_object_set_new(text, "dense", json_boolean(bits_of(s).dense));
    return tool_json("packed:o alone:o bits_differ:o",
                     tool_json("rows:I segments:I", pack.patches, pack.segments), alone,
                     differences_json(s));
}

/* ---- clips ----------------------------------------------------------------------------------- */

static const char clip_text[] =
    "{clip}: {kind}, {codec} in {format}, {source_width}x{source_height}[rotation? (rotated "
    "by {rotation} degrees)][text.clip?, {source_frames} frames at {source_fps|6} fps"
    "[text.header? ({text.header} in its header)], {duration_s|2f} s][text.cut?\n"
    "  stretch    {cut_frames} frames from frame {first_frame}: {text.cut.start|9} s to "
    "{text.cut.end|9} s]\n"
    "  sampled    {frames} frame{frames|s} of {width}x{height}: grid_thw {grid_thw|,}, as {like} "
    "does\n"
    "[text.clip?  decodes    {decoded_frames} of {source_frames} frames[decodes_all?, since "
    "{decodes_all}]\n]"
    "[text.by?  decoded by the {text.by}[not_gpu?, since {not_gpu}]\n]"
    "[remark?  pixels     {remark}\n]"
    "[kernels?"
    "  tokens     {tokens} of {text.width} values\n"
    "  chunks     {chunks}, of up to {chunk_pairs} frame pair{chunk_pairs|s} each, in a capacity "
    "of {chunk_rows} patches, {chunks_ahead} in progress at a time\n"
    "  work       {text.tflop|4} TFLOP, {bytes|size} moved between memory and kernels\n"
    "  memory     weights {weight_bytes|size} + arena {arena_bytes|size}[text.beside? + its "
    "decoders, at most {text.beside|size}] = {device_bytes|size} on the device\n"
    "  conv3d     {lowering}: {lowering_reason}\n"
    "  packed     with other clips: [same_bits_packed?the same bits][!same_bits_packed?bits may "
    "differ (see info MODEL)]\n"
    "  runs on    {text.kernels|\n             }\n]";

/* Writes a rate as it is shown; "" if there is none. */
static const char *
show_rate(double fps, char text[32])
{
    *text = 0;
    if (fps > 0)
        snprintf(text, 32, "%.6g", fps);
    return text;
}

static json_t *
clip_json(const char *path, const qv_outcome *c)
{
    char measured[32], header[32];
    const bool is_one =
        !strcmp(show_rate(c->source_fps, measured), show_rate(c->header_fps, header));
    const bool on_gpu = c->decoded_by == QV_DECODE_GPU;
    json_t *j = tool_json("clip:t", path);
    tool_json_add_outcome(&j, c, QV_FOR_INFO);
    tool_json_add(&j, "text.clip:b text.header:s text.by:s", !c->is_image, is_one ? "" : header,
                  !on_gpu       ? *c->not_gpu ? "CPU" : ""
                  : *c->not_gpu ? "GPU and converted by the CPU"
                                : "GPU");
    if (c->cut_frames < c->source_frames)
        tool_json_add(&j, "text.cut:o",
                      tool_json("start:f end:f", (double)c->first_frame / c->source_fps,
                                (double)(c->first_frame + c->cut_frames) / c->source_fps));
    return j;
}

/* Returns the most bytes of GPU memory that decoding needs. */
static int64_t
decoder_bytes(const struct scene *s)
{
    return s->o->clip.decode == QV_DECODE_GPU ? qv_decoder_gpu_bytes() : 0;
}

/* Adds the cost of encoding a clip alone, in chunks of whole frame pairs. */
static void
add_cost(const struct scene *s, json_t **j, const qv_outcome *c, const qv_plan *plan)
{
    const qv_model_info *m = &s->info;
    const int64_t *g = c->grid_thw;
    const struct qv_capacity pack = pack_of(s);
    const struct qv_capacity_bits bits = bits_of(s);
    const qv_capacity pair =
        qv_capacity_of(&plan->model->config, (const int64_t[3]){ 1, g[1], g[2] });
    const double flops =
        qv_plan_flops(plan, NULL, &(qv_item){ .grid_thw = { g[0], g[1], g[2] } }, 1);
    qv_plan_info p;
    qv_plan_get_info(plan, &p);
    const int64_t most = qv_capacity_fits(&p.capacity, &pair), pairs = most < g[0] ? most : g[0];
    const int64_t chunks = qv_ceil_div(g[0], pairs), of_decoders = decoder_bytes(s);
    const int64_t beside = strcmp(s->context.backend, "cuda") ? 0 : of_decoders;
    tool_json_add(j,
                  "tokens:I chunks:I chunk_pairs:I chunk_rows:I chunks_ahead:I flops:f bytes:f "
                  "weight_bytes:I arena_bytes:I decoder_bytes:I device_bytes:I lowering:s "
                  "lowering_reason:s same_bits_packed:b text.width:I text.tflop:f text.beside:I",
                  g[0] * g[1] * g[2] / (m->merge_size * m->merge_size), chunks, pairs,
                  p.capacity.patches, p.chunks_ahead, flops, (double)chunks * p.bytes,
                  p.weight_bytes, p.arena_bytes, of_decoders,
                  p.weight_bytes + p.arena_bytes + beside, m->lowering, m->lowering_reason,
                  qv_capacity_same_bits(&bits, &plan->capacity, &pack), m->out_hidden, flops / 1e12,
                  beside);
    add_kernels(*j, plan);
}

static qv_status
show_clip(struct scene *s, const char *path, qv_error *err)
{
    const qv_model_info *model = s->model ? &s->info : NULL;
    qv_clip *clip = NULL;
    qv_outcome c;
    qv_plan *plan = NULL;
    qv_status status = qv_clip_open(path, model ? &model->image : NULL,
                                    model ? &model->video : NULL, &s->o->clip, &clip, err);
    if (status)
        return status;
    qv_clip_get_info(clip, &c);
    qv_clip_close(&clip);
    json_t *j = clip_json(path, &c);
    if (s->model) {
        const int64_t *g = c.grid_thw;
        const qv_plan_options options = { .grid_thw = { g[0], g[1], g[2] } };
        status = qv_plan_create(s->model, &options, &plan, err);
        if (!status)
            add_cost(s, &j, &c, plan);
        qv_plan_free(&plan);
    }
    if (!status)
        return tool_show(&s->o->to, j, clip_text, err);
    json_decref(j);
    return status;
}

static qv_status
show_model(struct scene *s, const char *dir, qv_error *err)
{
    struct qv_leftover leftover;
    qv_status status = open_model(s, dir, err);
    if (!status)
        status = qv_leftover_find(dir, &s->model->config, &s->model->tower, &leftover, err);
    if (status)
        return status;
    json_t *j = model_json(s), *text = json_object_get(j, "text");
    json_object_set_new(j, "not_used", leftover_json(&leftover, text));
    json_object_set_new(j, "capacities", capacities_json(s, text));
    json_object_set_new(j, "job_bytes", json_integer(job_bytes(s)));
    json_object_set_new(j, "decoder_bytes", json_integer(decoder_bytes(s)));
    /* A plan of the device's packed capacity may fail to be created. `info` must describe the model
     * all the same. */
    qv_error why = { 0 };
    qv_plan *plan = NULL;
    if (qv_plan_create(s->model, NULL, &plan, &why))
        json_object_set_new(text, "why", json_string_nocheck(why.text));
    add_kernels(j, plan);
    qv_plan_free(&plan);
    return tool_show(&s->o->to, j, model_text, err);
}

/* ---- what a path is -------------------------------------------------------------------------- */

/* Returns whether this is a name ORG/NAME on a hub: it must neither exist as a path nor end like a
 * file name. */
static bool
is_hub_name(const char *path)
{
    const char *slash = strchr(path, '/'), *dot = strrchr(path, '.');
    const bool ending =
        dot && dot > slash &&
        strspn(dot + 1, "abcdefghijklmnopqrstuvwxyz0123456789") == strlen(dot + 1) &&
        !isdigit((unsigned char)dot[1]);
    return slash && slash > path && *path != '.' && slash[1] && !strchr(slash + 1, '/') &&
           !ending && access(path, F_OK);
}

static int
show(struct scene *s, const char *path)
{
    qv_error err = { 0 };
    struct tool_options status = *s->o;
    status.out = path;
    if (qv_cache_exists(path))
        return tool_cache_status(&status);
    const bool model = tool_is_folder(path) || is_hub_name(path) || qv_gguf_is(path);
    qv_status failed = QV_OK;
    if (model || !tool_describe(&s->o->to, path, &failed, &err))
        failed = model ? show_model(s, path, &err) : show_clip(s, path, &err);
    if (failed)
        tool_reasons_lose(&s->failures, &s->o->to, path, NULL, failed, err.text);
    return tool_exit_code(failed);
}

int
tool_info(const struct tool_options *o)
{
    struct scene s = { .o = o };
    qv_error err = { 0 };
    int code = TOOL_DONE;
    if (!o->n_arguments && !o->model && !o->list) {
        tool_complain("info: give a checkpoint folder, a clip or a list (qwenvit info --help)");
        return TOOL_USAGE;
    }
    qv_status status = tool_open_context(o, o->devices[0], &s.ctx, &s.context, &err);
    if (!status && o->model)
        status = o->n_arguments || o->list ? open_model(&s, o->model, &err)
                                           : show_model(&s, o->model, &err);
    const size_t n = status ? 0 : o->n_arguments;
    if (status)
        code = tool_fail(status, &err);
    for (size_t i = 0; i < n; i++) {
        const int one = show(&s, o->arguments[i]);
        code = one ? one : code;
    }
    tool_reasons_tell(&s.failures, &o->to);
    if (!status && o->list)
        code = tool_info_list(o, s.model ? &s.info : NULL);
    if (code && n > 1) /* only part of the work failed */
        code = TOOL_FAILED;
    qv_model_free(&s.model);
    tool_close_context(&s.ctx, &s.context);
    return code;
}
