/* SPDX-License-Identifier: MIT */
/* qwenvit verify: prepares the pixels, prints the table and returns an exit code; checks.c has the
 * checks. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commit.h"
#include "model/items.h"
#include "towers/config.h"
#include "error.h"
#include "command/tool.h"
#include "verify.h"

/* Frame pairs to read of a clip, which is sampled and resized as by `encode`. */
enum { MOST_PAIRS = 2 };

/* ---- pixels ---------------------------------------------------------------------------------- */

static qv_status
take_grid(struct verify_input *input, const int64_t thw[3], qv_error *err)
{
    input->n = 1;
    input->thw = malloc(sizeof *input->thw);
    if (!input->thw)
        return qv_fail(err, QV_ENOMEM, "no memory for a grid");
    memcpy(input->thw[0], thw, sizeof *input->thw);
    return QV_OK;
}

static qv_status
take_bytes(struct verify_input *input, double bytes, qv_error *err)
{
    if (!(bytes < 1e11) || !(input->data = malloc((size_t)bytes)))
        return qv_fail(err, QV_ENOMEM, "no memory for %.0f bytes of frames", bytes);
    return QV_OK;
}

/* Makes the same noise on every machine (the upper bits of a linear congruential generator). */
static qv_status
make_pixels(const struct tool_options *o, const struct qv_config *c, struct verify_input *input,
            char *text, size_t size, qv_error *err)
{
    const int64_t *g = o->grid;
    qv_status status = qv_item_check_grid(c, g, "--grid", err);
    if (status)
        return status;
    double bytes =
        (double)(g[1] * c->patch * g[2] * c->patch * c->in_channels * c->temporal) * (double)g[0];
    status = take_grid(input, g, err);
    if (!status)
        status = take_bytes(input, bytes, err);
    uint32_t seed = 1;
    for (size_t i = 0; !status && i < (size_t)bytes; i++) {
        seed = seed * 1664525 + 1013904223;
        ((uint8_t *)input->data)[i] = (uint8_t)(seed >> 24);
    }
    snprintf(text, size, "seeded pixels");
    return status;
}

/* Reads the first frame pairs; a last odd frame stands for two. */
static qv_status
read_frames(qv_clip *clip, const struct qv_config *c, struct verify_input *input, char *text,
            size_t size, qv_error *err)
{
    qv_outcome info;
    qv_clip_get_info(clip, &info);
    input->still = info.is_image;
    int64_t pairs = info.grid_thw[0] < MOST_PAIRS ? info.grid_thw[0] : MOST_PAIRS;
    int64_t frames = input->still ? 1 : pairs * c->temporal, n = 0;
    int64_t wanted = frames < info.n_frames ? frames : info.n_frames;
    size_t frame = (size_t)info.width * (size_t)info.height * 3;
    double seconds[MOST_PAIRS * 8];
    if (frames > (int64_t)(sizeof seconds / sizeof *seconds))
        return qv_fail(err, QV_EUNSUPPORTED, "a frame pair of %lld frames is not supported",
                       (long long)c->temporal);
    int64_t thw[3] = { pairs, info.grid_thw[1], info.grid_thw[2] };
    qv_status status = take_grid(input, thw, err);
    if (!status)
        status = take_bytes(input, (double)frame * (double)frames, err);
    while (n < wanted && !status) {
        int64_t got = 0;
        status = qv_clip_read(clip, (uint8_t *)input->data + (size_t)n * frame, wanted - n, &got,
                              seconds, err);
        if (!status && !got)
            status = qv_fail(err, QV_EFORMAT, "the clip ended before its sampled frames");
        n += got;
    }
    for (; n < frames && !status; n++)
        memcpy((uint8_t *)input->data + (size_t)n * frame,
               (uint8_t *)input->data + (size_t)(n - 1) * frame, frame);
    snprintf(text, size, "%lld of %lld sampled frames as %dx%d", (long long)wanted,
             (long long)info.n_frames, info.width, info.height);
    return status;
}

static qv_status
read_clip(const struct tool_options *o, const struct qv_config *c, struct verify_input *input,
          char *text, size_t size, qv_error *err)
{
    qv_clip *clip = NULL;
    char what[128] = "";
    qv_status status = qv_clip_open(o->verify_clip, &c->image, &c->video, &o->clip, &clip, err);
    if (!status)
        status = read_frames(clip, c, input, what, sizeof what, err);
    qv_clip_close(&clip);
    snprintf(text, size, "%s: %s", o->verify_clip, what);
    return status;
}

/* ---- the table ------------------------------------------------------------------------------- */

struct report {
    const struct tool_options *o;
    char compared[200];
    struct verify_table table;
    struct verify_input input;
    qv_context_info context;
    struct qv_config config;
    char pixels[4300];
    double seconds;
};

/* Describes the comparison: without --against, no other program takes part in it. */
static void
say_compared(struct report *r)
{
    const struct tool_options *o = r->o;
    if (o->against)
        snprintf(r->compared, sizeof r->compared,
                 "qwenvit's layers with those in %.100s, which another program computed",
                 o->against);
    else if (o->against_backend)
        snprintf(r->compared, sizeof r->compared,
                 "qwenvit on %.40s with qwenvit in f32 on %.40s; no other program is involved",
                 r->context.backend, o->against_backend);
    else
        snprintf(r->compared, sizeof r->compared,
                 "qwenvit with itself and the Conv3d's definition; another program's layers are "
                 "compared by --against FILE");
}

/* The title of each check, printed above its rows. */
static const struct {
    const char *check, *title;
} titles[] = {
    { "definition", "definition: the patch embedding by its seven loops in double" },
    { "pulled", "pulled: a caller's outputs, bit for bit equal to the layers that they come from" },
    { "rounding", "rounding: bf16 against f32, with limits from an ideal bf16 tower" },
    { "repeat", "repeat: a second fresh plan, bit for bit equal" },
    { "against", "against: each layer compared with the other program's; bf16 limits by rounding" },
};

/* Prints a number, or nothing if it is infinite. */
static const char *
figure(char text[16], double x)
{
    text[0] = 0;
    if (!isinf(x))
        snprintf(text, 16, "%.2e", x);
    return text;
}

static void
print_row(const struct verify_row *r)
{
    char t[4][16];
    const char *verdict = !r->ok                ? "FAILED"
                          : verify_is_judged(r) ? "ok"
                                                : "not judged",
               *type = qv_dtype_name(r->dtype);
    if (r->bits) {
        tool_print("  %-24s %-4s  %s, %s%s%s\n", r->name, type, r->note, verdict, r->ok ? "" : ": ",
                   r->why);
        return;
    }
    tool_print("  %-24s %-4s %9.2e %9s %9.2e %9s %10.7f %10.7f  %s\n", r->name, type, r->is.worst,
               figure(t[0], r->bar_worst), r->is.mean, figure(t[1], r->bar_mean),
               r->is.worst_cosine, r->is.pooled_cosine, verdict);
    if (*r->note || !isinf(r->bar_abs))
        tool_print("  %-24s %-4s %s, largest difference %.2e%s%s\n", "", "", r->note, r->is.max_abs,
                   isinf(r->bar_abs) ? "" : " of at most ", figure(t[2], r->bar_abs));
}

static void
print_input(const struct report *r)
{
    tool_print("%s: %s, on %s (%s)\n", r->o->model, r->config.model_type, r->context.backend,
               r->context.device);
    tool_print("pixels: %s, grid_thw", r->pixels);
    for (size_t i = 0; i < r->input.n && i < 3; i++)
        tool_print("%s %lld,%lld,%lld", i ? ";" : "", (long long)r->input.thw[i][0],
                   (long long)r->input.thw[i][1], (long long)r->input.thw[i][2]);
    tool_print(r->input.n > 3 ? "; ...\n" : "\n");
    tool_print("compared: %s\n", r->compared);
}

static void
print_table(const struct report *r)
{
    const char *check = "";
    size_t failed = 0;
    print_input(r);
    for (size_t i = 0; i < r->table.n; i++) {
        const struct verify_row *row = &r->table.rows[i];
        if (strcmp(check, row->check)) {
            check = row->check;
            for (size_t t = 0; t < sizeof titles / sizeof *titles; t++)
                if (!strcmp(titles[t].check, check))
                    tool_print("\n%s\n", titles[t].title);
            if (!row->bits)
                tool_print("  %-24s %-4s %9s %9s %9s %9s %10s %10s\n", "layer", "type", "worst",
                           "at most", "mean", "at most", "cosine", "pooled");
        }
        print_row(row);
        failed += !row->ok;
    }
    tool_print("\n%zu rows, %zu failed, %.1f s\n", r->table.n, failed, r->seconds);
    if (r->o->legend)
        tool_print("\n" TOOL_VERIFY_LEGEND "\n");
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *
number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

/* The verdict of a row without a bar is null, unless it fails. */
static json_t *
row_json(const struct verify_row *r)
{
    const struct {
        const char *key;
        double value;
    } numbers[] = { { "worst", r->is.worst },
                    { "mean", r->is.mean },
                    { "worst_cosine", r->is.worst_cosine },
                    { "pooled_cosine", r->is.pooled_cosine },
                    { "max_abs", r->is.max_abs },
                    { "yardstick_worst", r->yardstick_worst },
                    { "yardstick_mean", r->yardstick_mean },
                    { "bar_worst", r->bar_worst },
                    { "bar_mean", r->bar_mean },
                    { "bar_abs", r->bar_abs },
                    { "bar_cosine", r->bar_cosine } };
    json_t *j = tool_json("check:s name:s dtype:s ok:o note:s why:s", r->check, r->name,
                          qv_dtype_name(r->dtype),
                          r->ok && !verify_is_judged(r) ? json_null() : json_boolean(r->ok),
                          r->note, r->why);
    for (size_t i = 0; !r->bits && i < sizeof numbers / sizeof *numbers; i++)
        json_object_set_new(j, numbers[i].key, number(numbers[i].value));
    if (r->bits)
        json_object_set_new(j, "equal_bits", json_boolean(r->ok));
    return j;
}

static json_t *
report_json(const struct report *r)
{
    json_t *rows = json_array(), *grids = json_array();
    for (size_t i = 0; i < r->table.n; i++)
        json_array_append_new(rows, row_json(&r->table.rows[i]));
    for (size_t i = 0; i < r->input.n; i++)
        json_array_append_new(grids, tool_json_grid(r->input.thw[i]));
    json_t *machine = tool_json("backend:s device:s threads:i", r->context.backend,
                                r->context.device, r->context.threads);
    return tool_json("verify:t compared:t version:s commit:s machine:o model_type:s pixels:t "
                     "grid_thw:o seconds:f ok:b rows:o",
                     r->o->model, r->compared, qv_version(), QV_COMMIT, machine,
                     r->config.model_type, r->pixels, grids, r->seconds,
                     !verify_first_failure(&r->table), rows);
}

/* ---- the subcommand -------------------------------------------------------------------------- */

static int
check_usage(const struct tool_options *o)
{
    const char *wrong =
        o->against && o->verify_clip
            ? "--against and --clip cannot be used together: the file contains the pixels"
        : o->against && o->against_backend
            ? "--against and --against-backend cannot be used together"
            : NULL;
    if (wrong)
        tool_complain("verify: %s (qwenvit verify --help)", wrong);
    return wrong ? TOOL_USAGE : TOOL_DONE;
}

static void
say(const char *what)
{
    tool_say("verify: %s", what);
}

static qv_status
against_backend(const struct verify_job *job, struct report *r, qv_error *err)
{
    struct tool_options other = *r->o;
    qv_context *ctx = NULL;
    qv_context_info info;
    other.backend = r->o->against_backend;
    qv_status status = tool_open_context(&other, other.devices[0], &ctx, &info, err);
    if (status)
        return status;
    status = verify_against_backend(job, ctx, &r->input, &r->table, err);
    tool_close_context(&ctx, &info);
    return status;
}

static qv_status
verify(const struct tool_options *o, struct report *r, qv_error *err)
{
    struct verify_job job = { .dir = o->model,
                              .image_mean = tool_three(&o->image_mean),
                              .image_std = tool_three(&o->image_std),
                              .dtype = o->dtype,
                              .say = o->to.quiet ? NULL : say };
    double began = qv_seconds();
    qv_status status = tool_open_context(o, o->devices[0], &job.ctx, &r->context, err);
    if (!status)
        status = verify_config(&job, &r->config, err);
    if (!status && *r->config.warning)
        tool_complain("%s", r->config.warning);
    if (!status && o->against) {
        snprintf(r->pixels, sizeof r->pixels, "%.4000s", o->against);
        status = verify_against_file(&job, o->against, &r->input, &r->table, err);
    } else if (!status) {
        status = o->verify_clip
                     ? read_clip(o, &r->config, &r->input, r->pixels, sizeof r->pixels, err)
                     : make_pixels(o, &r->config, &r->input, r->pixels, sizeof r->pixels, err);
        if (!status)
            status = o->against_backend ? against_backend(&job, r, err)
                                        : verify_model(&job, &r->input, &r->table, err);
    }
    say_compared(r);
    tool_close_context(&job.ctx, &r->context);
    r->seconds = qv_seconds() - began;
    return status;
}

static int
show(const struct report *r)
{
    qv_error err = { 0 };
    qv_status status = QV_OK;
    if (!r->o->to.json || r->o->to.json_file)
        print_table(r);
    if (r->o->to.json)
        status = tool_emit_json(&r->o->to, report_json(r), &err);
    const struct verify_row *bad = verify_first_failure(&r->table);
    if (bad)
        tool_complain("verify: %s: %s in %s: %s", bad->check, bad->name, qv_dtype_name(bad->dtype),
                      bad->why);
    if (status)
        return tool_fail(status, &err);
    return bad ? TOOL_FAILED : TOOL_DONE;
}

int
tool_verify(const struct tool_options *o)
{
    int code = check_usage(o);
    if (code)
        return code;
    struct report r = { .o = o };
    qv_error err = { 0 };
    qv_status status = verify(o, &r, &err);
    code = status ? tool_fail(status, &err) : show(&r);
    verify_table_free(&r.table);
    verify_input_free(&r.input);
    return code;
}
