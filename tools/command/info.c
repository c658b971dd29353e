/* SPDX-License-Identifier: MIT */
/* qwenvit info: tells what a checkpoint, a clip or a cache is, and what encoding it costs. */
#define _POSIX_C_SOURCE 200809L
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cache_command.h"
#include "error.h"
#include "files/outcome_json.h"
#include "files/gguf.h"
#include "files/json.h"
#include "model/inspect.h"
#include "estimate.h"
#include "qwenvit_job.h"
#include "towers/leftover.h"
#include "towers/mmproj.h"
#include "tool.h"

struct scene {
    const struct tool_options *o;
    qv_context *ctx;
    qv_context_info context;
    qv_model *model; /* described only; may be NULL */
    qv_model_info info;
    const char *dir; /* the model's */
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
    qv_model_free(&s->model);
    qv_status status = tool_load_model(s->o, s->ctx, dir, true, &s->model, err);
    if (!status)
        qv_model_get_info(s->model, &s->info);
    s->dir = dir;
    return status;
}

static void
print_preprocess(const char *label, bool is_image, const qv_preprocess *p)
{
    const char *of = p->processor == QV_PROCESSOR_QWEN2_VL            ? " a frame"
                     : is_image && p->processor == QV_PROCESSOR_GLM4V ? " a frame pair"
                                                                      : "";
    tool_print("  %-11s%lld to %lld pixels%s; mean %g %g %g, std %g %g %g\n", label,
               (long long)p->min_pixels, (long long)p->max_pixels, of, p->mean[0], p->mean[1],
               p->mean[2], p->std[0], p->std[1], p->std[2]);
}

static void
print_windows(const struct qv_config *c)
{
    const int64_t side = qv_config_window_cells(c) * c->merge;
    if (!side)
        return;
    tool_print("  windows    of %lld pixels, %lld x %lld patches; full attention in blocks",
               (long long)c->window, (long long)side, (long long)side);
    for (int64_t i = 0; i < c->depth; i++)
        if (c->full_attention[i])
            tool_print(" %lld", (long long)i);
    tool_print("\n");
}

/* Prints how many tensors of which type a GGUF file has. */
static void
print_types(const char *dir)
{
    char *path = NULL;
    struct qv_gguf *file = NULL;
    if (!qv_mmproj_find(dir, &path, NULL) && path && !qv_gguf_open(path, &file, NULL)) {
        const size_t n = qv_gguf_count(file);
        size_t counts[64] = { 0 }, told = 0;
        for (size_t i = 0; i < n; i++)
            counts[qv_gguf_at(file, i)->type->id % 64]++;
        tool_print("  file       GGUF of %zu tensors:", n);
        for (uint32_t id = 0; id < 64; id++)
            if (counts[id])
                tool_print("%s %zu %s", told++ ? "," : "", counts[id], qv_gguf_type_find(id)->name);
        tool_print("\n");
    }
    qv_gguf_close(&file);
    free(path);
}

/* Prints the tensors that the tower does not read. One that it should have read shows a
 * checkpoint of another kind. */
static void
print_leftover(const struct qv_leftover *l)
{
    if (!l->of_tower && !l->of_others)
        return;
    tool_print("  not used   %lld tensor%s of other parts of the model", (long long)l->of_others,
               l->of_others == 1 ? "" : "s");
    for (int i = 0; i < QV_LEFTOVER_NAMES && i < l->of_tower; i++) {
        char quoted[QV_QUOTE_SIZE];
        tool_print("%s%s", i ? ", " : "; of the tower: ", qv_json_quote(l->names[i], quoted));
    }
    if (l->of_tower > QV_LEFTOVER_NAMES)
        tool_print(" and %lld more", (long long)l->of_tower - QV_LEFTOVER_NAMES);
    tool_print("\n");
}

static json_t *
leftover_json(const struct qv_leftover *l)
{
    json_t *names = json_array();
    for (int i = 0; i < QV_LEFTOVER_NAMES && i < l->of_tower; i++)
        json_array_append_new(names, tool_json_text(l->names[i]));
    return json_pack("{s:I, s:I, s:o}", "of_others", (json_int_t)l->of_others, "of_tower",
                     (json_int_t)l->of_tower, "first", names);
}

static void
print_model(const struct scene *s)
{
    const qv_model_info *m = &s->info;
    char weights[24];
    tool_print("%s: %s vision tower, %.1f M parameters\n", s->dir, m->model_type,
               (double)m->n_parameters / 1e6);
    tool_print("  sizes      depth %lld, hidden %lld, %lld heads of %lld, MLP %lld, out %lld\n",
               (long long)m->depth, (long long)m->hidden, (long long)m->heads,
               (long long)m->head_dim, (long long)m->intermediate, (long long)m->out_hidden);
    tool_print(
        "  patches    %lld x %lld x %lld (frames, rows, columns), merged %lld x %lld; rows of "
        "%lld values\n",
        (long long)m->temporal_patch_size, (long long)m->patch_size, (long long)m->patch_size,
        (long long)m->merge_size, (long long)m->merge_size, (long long)m->row_dim);
    tool_print("  deepstack  ");
    for (int i = 0; i < m->n_deepstack; i++)
        tool_print("%safter block %lld", i ? ", " : "", (long long)m->deepstack_layers[i]);
    tool_print("%s\n", m->n_deepstack ? "" : "none");
    print_windows(&s->model->config);
    print_preprocess("video", false, &m->video);
    print_preprocess("image", true, &m->image);
    tool_print("  backend    %s (%s", s->context.backend, s->context.device);
    if (s->context.threads)
        tool_print(", %d thread%s", s->context.threads, s->context.threads == 1 ? "" : "s");
    tool_print(")\n");
    if (*s->context.passed_over)
        tool_print("  not taken  %s\n", s->context.passed_over);
    tool_print("  precision  %s: %s\n", qv_dtype_name(m->dtype),
               s->o->dtype ? "asked for" : s->context.dtype_reason);
    tool_print("  conv3d     %s: %s\n", m->lowering, m->lowering_reason);
    tool_print("  memory     weights %s, packed", size_text((double)m->weight_bytes, weights));
    if (s->o->weights.stored)
        tool_print("; %lld quantised matrices as they are stored", (long long)m->stored_matrices);
    tool_print("\n");
    print_types(s->dir);
    if (*m->note)
        tool_print("  not said   %s\n", m->note);
}

static json_t *
model_json(const struct scene *s)
{
    const qv_model_info *m = &s->info;
    json_t *taps = json_array();
    for (int i = 0; i < m->n_deepstack; i++)
        json_array_append_new(taps, json_integer(m->deepstack_layers[i]));
    return json_pack(
        "{s:o, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:s, s:s, s:s, s:s, "
        "s:s, s:i, s:I, s:I, s:s, s:s, s:o, s:o}",
        "model", tool_json_text(s->dir), "model_type", m->model_type, "parameters",
        (json_int_t)m->n_parameters, "depth", (json_int_t)m->depth, "hidden", (json_int_t)m->hidden,
        "heads", (json_int_t)m->heads, "intermediate", (json_int_t)m->intermediate, "out_hidden",
        (json_int_t)m->out_hidden, "patch_size", (json_int_t)m->patch_size, "merge_size",
        (json_int_t)m->merge_size, "row_dim", (json_int_t)m->row_dim, "window_size",
        (json_int_t)s->model->config.window, "deepstack", taps, "precision",
        qv_dtype_name(m->dtype), "precision_reason",
        s->o->dtype ? "asked for" : s->context.dtype_reason, "backend", s->context.backend,
        "passed_over", s->context.passed_over, "device", s->context.device, "threads",
        s->context.threads, "weight_bytes", (json_int_t)m->weight_bytes, "stored_matrices",
        (json_int_t)m->stored_matrices, "lowering", m->lowering, "lowering_reason",
        m->lowering_reason, "note", tool_json_text(m->note), "warning", tool_json_text(m->warning));
}

/* ---- kernels -------------------------------------------------------------------------------- */

/* Says what runs a plan's operations: one entry for each pair of operation and kernel, in their
 * order. */
struct kernel {
    const char *op;
    int64_t calls;
    char text[QV_KERNEL_BYTES];
};

/* Returns NULL if out of memory. The caller frees it. */
static struct kernel *
list_kernels(const qv_plan *plan, size_t *n)
{
    const struct qv_step *steps;
    const struct qv_call *calls;
    const size_t n_steps = qv_plan_steps(plan, &steps, &calls);
    struct kernel *all = calloc(n_steps, sizeof *all);
    *n = 0;
    for (size_t i = 0; all && i < n_steps; i++) {
        size_t at = 0;
        qv_plan_kernel(plan, i, all[*n].text);
        all[*n].op = qv_op_name(steps[i].op.kind);
        while (strcmp(all[at].op, all[*n].op) || strcmp(all[at].text, all[*n].text))
            at++;
        all[at].calls++;
        *n += at == *n;
    }
    return all;
}

static void
print_kernels(const qv_plan *plan)
{
    size_t n;
    struct kernel *all = list_kernels(plan, &n);
    for (size_t i = 0; all && i < n; i++)
        tool_print("  %-11s%-11s %4lld x  %s\n", i ? "" : "runs on", all[i].op,
                   (long long)all[i].calls, all[i].text);
    free(all);
}

static json_t *
kernels_json(const qv_plan *plan)
{
    size_t n;
    struct kernel *all = list_kernels(plan, &n);
    json_t *list = json_array();
    for (size_t i = 0; all && i < n; i++)
        json_array_append_new(list, json_pack("{s:s, s:I, s:s}", "op", all[i].op, "calls",
                                              (json_int_t)all[i].calls, "kernel", all[i].text));
    free(all);
    return list;
}

/* ---- capacities ------------------------------------------------------------------------------ */

enum { MOST_DIFFERENCES = 3, DIFFERENCE_BYTES = 160 };

static struct qv_capacity_bits
bits_of(const struct scene *s)
{
    return qv_capacity_bits(&s->model->ctx->caps, s->info.dtype, s->info.merge_size,
                            s->info.head_dim);
}

/* Describes when tokens may have other bits in another capacity or at another place. Returns the
 * number of texts. */
static int
differences(const struct scene *s, char texts[MOST_DIFFERENCES][DIFFERENCE_BYTES])
{
    const struct qv_capacity_bits bits = bits_of(s);
    const char *dtype = qv_dtype_name(s->info.dtype);
    int n = 0;
    if (bits.by_place)
        snprintf(texts[n++], DIFFERENCE_BYTES, "%s GEMMs may round otherwise at other places",
                 dtype);
    if (bits.rows == QV_NOT_SEEN)
        snprintf(texts[n++], DIFFERENCE_BYTES, "%s GEMMs may round otherwise in any other capacity",
                 dtype);
    else if (bits.rows)
        snprintf(texts[n++], DIFFERENCE_BYTES,
                 "%s GEMMs of fewer than %lld rows, in capacities below %lld patches, may "
                 "round otherwise",
                 dtype, (long long)bits.gemm_rows, (long long)bits.rows);
    if (bits.dense)
        snprintf(texts[n++], DIFFERENCE_BYTES,
                 "attention of heads of %lld may round otherwise in chunks of equal segments, "
                 "which only "
                 "segment_rows asks for",
                 (long long)s->info.head_dim);
    return n;
}

static struct qv_capacity
pack_of(const struct scene *s)
{
    return qv_capacity_pack(&s->model->ctx->caps, &s->model->config, 0);
}

static void
print_capacities(const struct scene *s)
{
    const struct qv_capacity pack = pack_of(s);
    char texts[MOST_DIFFERENCES][DIFFERENCE_BYTES];
    int n = differences(s, texts);
    tool_print("  packed     in capacities of %lld patches and %lld segments, any sizes\n",
               (long long)pack.rows, (long long)pack.segments);
    tool_print(
        "  alone      in the smallest that serves, from %lld patches on; what is larger than a "
        "chunk, by frame pairs",
        (long long)qv_capacity_bucket(&s->model->ctx->caps, s->info.merge_size, 1));
    if (!bits_of(s).dense)
        tool_print(",\n             in chunks of equal segments");
    tool_print("\n");
    if (!n)
        tool_print("  bits       the same alone and packed, in all of these\n");
    for (int i = 0; i < n; i++)
        tool_print("  %-11s%s\n", i ? "" : "bits", texts[i]);
}

/* The most host memory that encoding any list of clips takes; 0 if that is not known. */
static int64_t
job_bytes(const struct scene *s)
{
    int64_t bytes = 0;
    const qv_job_options options = { .output = s->info.dtype }; /* the options of `encode` */
    return qv_job_memory(&s->model, 1, &options, &bytes, NULL) ? 0 : bytes;
}

static json_t *
capacities_json(const struct scene *s)
{
    const struct qv_capacity pack = pack_of(s);
    char texts[MOST_DIFFERENCES][DIFFERENCE_BYTES];
    int n = differences(s, texts);
    json_t *alone = json_array(), *list = json_array();
    for (int64_t rows = 1; rows <= pack.rows;) {
        int64_t bucket = qv_capacity_bucket(&s->model->ctx->caps, s->info.merge_size, rows);
        json_array_append_new(alone, json_integer(bucket));
        rows = bucket + 1;
    }
    for (int i = 0; i < n; i++)
        json_array_append_new(list, json_string(texts[i]));
    return json_pack("{s:{s:I, s:I}, s:o, s:o}", "packed", "rows", (json_int_t)pack.rows,
                     "segments", (json_int_t)pack.segments, "alone", alone, "bits_differ", list);
}

/* Returns whether a clip gives the same bits alone, in the capacity of its own plan, as packed with
 * others. */
static bool
same_alone_as_packed(const struct scene *s, const qv_plan *plan)
{
    const struct qv_capacity pack = pack_of(s);
    const struct qv_capacity_bits bits = bits_of(s);
    return qv_capacity_same_bits(&bits, &plan->capacity, &pack);
}

/* ---- clips ----------------------------------------------------------------------------------- */

static void
print_clip(const char *path, const qv_outcome *c)
{
    tool_print("%s: %s, %s in %s, %dx%d", path, c->is_image ? "image" : "clip", c->codec, c->format,
               c->source_width, c->source_height);
    if (c->rotation)
        tool_print(" (rotated by %d degrees)", c->rotation);
    if (!c->is_image)
        tool_print(", %lld frames at %.3g fps, %.2f s", (long long)c->source_frames, c->source_fps,
                   c->duration_s);
    if (c->cut_frames < c->source_frames)
        tool_print("\n  cut        %lld frames from number %lld on: %.9g s to %.9g s",
                   (long long)c->cut_frames, (long long)c->first_frame,
                   (double)c->first_frame / c->source_fps,
                   (double)(c->first_frame + c->cut_frames) / c->source_fps);
    tool_print("\n  sampled    %lld frame%s of %dx%d: grid_thw %lld,%lld,%lld, as %s does it\n",
               (long long)c->n_frames, c->n_frames == 1 ? "" : "s", c->width, c->height,
               (long long)c->grid_thw[0], (long long)c->grid_thw[1], (long long)c->grid_thw[2],
               qv_like_name(c->like));
    if (!c->is_image)
        tool_print("  decodes    %lld of %lld frames%s%s\n", (long long)c->needed_frames,
                   (long long)c->source_frames, *c->decodes_all ? ", since " : "", c->decodes_all);
    if (c->decoded_by == QV_DECODE_GPU || *c->not_gpu)
        tool_print("  decoded by the %s%s%s\n", c->decoded_by == QV_DECODE_GPU ? "GPU" : "CPU",
                   *c->not_gpu ? ", since " : "", c->not_gpu);
    if (c->remark)
        tool_print("  pixels     %s\n", qv_remark_text(c->remark));
}

/* Says what encoding a clip by itself takes, in chunks of chunk_pairs frame pairs. */
struct cost {
    int64_t tokens, chunk_pairs, chunks;
    double flops, bytes;
};

static struct cost
cost_of(const qv_outcome *c, const qv_model_info *m, const qv_plan *plan, const qv_plan_info *p)
{
    const int64_t *g = c->grid_thw;
    const qv_capacity pair =
        qv_capacity_of(&plan->model->config, (const int64_t[3]){ 1, g[1], g[2] });
    const int64_t pairs = qv_capacity_fits(&p->capacity, &pair);
    struct cost cost = { .tokens = g[0] * g[1] * g[2] / (m->merge_size * m->merge_size),
                         .chunk_pairs = pairs < g[0] ? pairs : g[0] };
    cost.chunks = (g[0] + cost.chunk_pairs - 1) / cost.chunk_pairs;
    cost.flops = qv_plan_flops(plan, NULL, &(qv_item){ .grid_thw = { g[0], g[1], g[2] } }, 1);
    cost.bytes = (double)cost.chunks * p->bytes;
    return cost;
}

/* Returns the most bytes of a GPU that decoding takes. */
static int64_t
decoder_bytes(const struct scene *s)
{
    return s->o->clip.decode == QV_DECODE_GPU ? qv_decoder_gpu_bytes() : 0;
}

/* Returns how many of these bytes are on the tower's device. */
static int64_t
decoder_bytes_beside(const struct scene *s)
{
    return strcmp(s->context.backend, "cuda") == 0 ? decoder_bytes(s) : 0;
}

static int64_t
device_bytes(const struct scene *s, const qv_plan_info *p)
{
    return (int64_t)(p->weight_bytes + p->arena_bytes) + decoder_bytes_beside(s);
}

static void
print_cost(const struct scene *s, const struct cost *cost, const qv_plan_info *p)
{
    const qv_model_info *m = &s->info;
    char arena[24], weights[24], decoders[24], all[24], traffic[24];
    size_text((double)decoder_bytes_beside(s), decoders);
    tool_print("  tokens     %lld of %lld values\n", (long long)cost->tokens,
               (long long)m->out_hidden);
    tool_print(
        "  chunks     %lld of %lld frame pair%s, in a capacity of %lld patches, %lld under way at "
        "a time\n",
        (long long)cost->chunks, (long long)cost->chunk_pairs, cost->chunk_pairs == 1 ? "" : "s",
        (long long)p->capacity.rows, (long long)p->chunks_ahead);
    tool_print("  work       %.4g TFLOP, %s moved between memory and kernels\n", cost->flops / 1e12,
               size_text(cost->bytes, traffic));
    tool_print("  memory     weights %s + arena %s%s%s = %s on the device\n",
               size_text((double)p->weight_bytes, weights),
               size_text((double)p->arena_bytes, arena),
               decoder_bytes_beside(s) ? " + its decoders, at most " : "",
               decoder_bytes_beside(s) ? decoders : "", size_text((double)device_bytes(s, p), all));
    tool_print("  conv3d     %s: %s\n", m->lowering, m->lowering_reason);
}

static json_t *
clip_json(const char *path, const qv_outcome *c)
{
    json_t *j = json_pack("{s:o}", "clip", tool_json_text(path));
    qv_outcome_json(j, c, QV_FOR_INFO, 0, QV_LAST_PLACE);
    return j;
}

static void
add_cost_json(const struct scene *s, json_t *j, const struct cost *cost, const qv_plan_info *p)
{
    const qv_model_info *m = &s->info;
    json_object_update_new(
        j, json_pack("{s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:I, s:I, s:I, s:I, s:s, s:s}", "tokens",
                     (json_int_t)cost->tokens, "chunks", (json_int_t)cost->chunks, "chunk_pairs",
                     (json_int_t)cost->chunk_pairs, "chunk_rows", (json_int_t)p->capacity.rows,
                     "chunks_ahead", (json_int_t)p->chunks_ahead, "flops", cost->flops, "bytes",
                     cost->bytes, "weight_bytes", (json_int_t)p->weight_bytes, "arena_bytes",
                     (json_int_t)p->arena_bytes, "decoder_bytes", (json_int_t)decoder_bytes(s),
                     "device_bytes", (json_int_t)device_bytes(s, p), "lowering", m->lowering,
                     "lowering_reason", m->lowering_reason));
}

static qv_status
show_clip(struct scene *s, const char *path, qv_error *err)
{
    qv_preprocess image = s->model ? s->info.image : qv_preprocess_default(true);
    qv_preprocess video = s->model ? s->info.video : qv_preprocess_default(false);
    qv_clip *clip = NULL;
    qv_outcome c;
    qv_plan *plan = NULL;
    qv_plan_info p;
    struct cost cost = { 0 };
    qv_status status = qv_clip_open(path, &image, &video, &s->o->clip, &clip, err);
    if (status)
        return status;
    qv_clip_get_info(clip, &c);
    qv_clip_close(&clip);
    if (s->model) {
        const int64_t *g = c.grid_thw;
        const qv_plan_options options = { .grid_thw = { g[0], g[1], g[2] } };
        status = qv_plan_create(s->model, &options, &plan, err);
        if (status)
            return status;
        qv_plan_get_info(plan, &p);
        cost = cost_of(&c, &s->info, plan, &p);
    }
    if (s->o->json) {
        json_t *j = clip_json(path, &c);
        if (plan) {
            add_cost_json(s, j, &cost, &p);
            json_object_set_new(j, "same_bits_packed", json_boolean(same_alone_as_packed(s, plan)));
            json_object_set_new(j, "kernels", kernels_json(plan));
        }
        tool_print_json(j);
    } else {
        print_clip(path, &c);
        if (plan) {
            print_cost(s, &cost, &p);
            tool_print("  packed     %s\n", same_alone_as_packed(s, plan)
                                                ? "with others, the same bits"
                                                : "with others, bits may differ (see info MODEL)");
            print_kernels(plan);
        }
    }
    qv_plan_free(&plan);
    return QV_OK;
}

/* Makes a plan of the device's capacity for packed clips and images. Returns NULL if it cannot:
 * a user who asks what the model is must not get a failure for that. */
static qv_plan *
default_plan(const struct scene *s, qv_error *err)
{
    qv_plan *plan = NULL;
    qv_plan_create(s->model, NULL, &plan, err);
    return plan;
}

static qv_status
show_model(struct scene *s, const char *dir, qv_error *err)
{
    qv_status status = open_model(s, dir, err);
    if (status)
        return status;
    struct qv_leftover leftover;
    status = qv_leftover_find(dir, &s->model->config, &s->model->tower, &leftover, err);
    if (status)
        return status;
    qv_error why = { 0 };
    qv_plan *plan = default_plan(s, &why);
    if (s->o->json) {
        json_t *j = model_json(s);
        json_object_set_new(j, "not_used", leftover_json(&leftover));
        json_object_set_new(j, "capacities", capacities_json(s));
        json_object_set_new(j, "job_bytes", json_integer(job_bytes(s)));
        json_object_set_new(j, "decoder_bytes", json_integer(decoder_bytes(s)));
        json_object_set_new(j, "kernels", plan ? kernels_json(plan) : json_array());
        tool_print_json(j);
    } else {
        print_model(s);
        print_leftover(&leftover);
        print_capacities(s);
        char host[24];
        tool_print("  lists      %s of the host's memory at most, beside decoders' processes\n",
                   size_text((double)job_bytes(s), host));
        if (decoder_bytes(s))
            tool_print("  decoders   %s of the GPU's memory at most\n",
                       size_text((double)decoder_bytes(s), host));
        if (plan)
            print_kernels(plan);
        else
            tool_print("  runs on    nothing here: %s\n", why.text);
    }
    qv_plan_free(&plan);
    return QV_OK;
}

/* ---- what a path is -------------------------------------------------------------------------- */

/* Returns whether this is a name ORG/NAME on a hub. It must not exist as a path, nor end like a
 * file's name. */
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

static bool
is_cache(const char *dir)
{
    char *path = qv_path_join(dir, "qwenvit-cache.json");
    const bool is = path && !access(path, F_OK);
    free(path);
    return is;
}

/* Shows what one path is. Returns an exit code, after it has printed the error. */
static int
show(struct scene *s, const char *path)
{
    qv_error err = { 0 };
    struct tool_options status = *s->o;
    status.out = path;
    if (is_cache(path))
        return tool_cache_status(&status);
    const bool model = tool_is_folder(path) || is_hub_name(path) || qv_gguf_is(path);
    const qv_status failed = model ? show_model(s, path, &err) : show_clip(s, path, &err);
    return failed ? tool_fail(failed, &err) : TOOL_DONE;
}

int
tool_info(const struct tool_options *o)
{
    struct scene s = { .o = o };
    qv_error err = { 0 };
    int code = TOOL_DONE;
    if (!o->n_arguments && !o->model && !o->list) {
        tool_complain("info: no checkpoint folder, clip or list given (qwenvit info --help)");
        return TOOL_USAGE;
    }
    qv_status status = tool_open_context(o, &s.ctx, &err);
    if (!status) {
        qv_context_get_info(s.ctx, &s.context);
        if (o->model)
            status = o->n_arguments || o->list ? open_model(&s, o->model, &err)
                                               : show_model(&s, o->model, &err);
    }
    const size_t n = status ? 0 : o->n_arguments;
    if (status)
        code = tool_fail(status, &err);
    for (size_t i = 0; i < n; i++) {
        const int one = show(&s, o->arguments[i]);
        code = one ? one : code;
    }
    if (!status && o->list)
        code = tool_info_list(o, s.model ? &s.info : NULL);
    if (code && n > 1) /* only a part of the work failed */
        code = TOOL_FAILED;
    qv_model_free(&s.model);
    tool_close_context(&s.ctx, &s.context);
    return code;
}
