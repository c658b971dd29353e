/* SPDX-License-Identifier: MIT */
/*
 * qwenvit verify: computes the patch embedding by its definition. It reads the weights from the
 * checkpoint again, sums in double, and rounds nothing on the way.
 */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "conv3d/description.h"
#include "conv3d/legal.h"
#include "dtype.h"
#include "error.h"
#include "towers/config.h"
#include "towers/geometry.h"
#include "verify.h"

/* Multiply-adds by the definition: about one second in each of the two parts. */
static const double most_work = 1.5e8;
enum { MOST_ROWS = 64 };

/* Bar for bf16, over the yardstick, which is the truth rounded once, with everything rounded that
 * is kept in bf16 before that: the position embedding, and pixels whose means are not all 1/2.
 * (Compared with a truth in which only the sum is rounded, an honest patch embedding is at 1.12 in
 * the mean.) */
static const double bf16_slack = 1.05;

struct definition {
    qv_conv3d_desc desc; /* without residual, which is added here in double */
    qv_dtype dtype;
    int64_t rows, k, pair_rows;
    const void *x;
    void *still;          /* an image's frame, repeated `temporal` times */
    void *kept;           /* pixels [d, h, w, c] as a bf16 tower keeps them; NULL: they are exact */
    void *weight;         /* [o, k] in dtype */
    float *bias;          /* [o], or NULL */
    float *positions;     /* [n_positions, o], rounded to dtype; NULL: the family has none, or adds
                           * them after a norm */
    int64_t window_cells; /* side of a window in cells; 0: there are no windows */
    enum qv_interpolation interpolation;
    int32_t *tap_index; /* [pair_rows, taps] */
    float *tap_weight;
    const struct verify_layer *found;
};

/* A part of the outputs: some rows and columns, spread evenly, including the first and the last. */
struct part {
    int64_t rows, cols;
};

static int64_t
spread(int64_t i, int64_t n, int64_t all)
{
    return n > 1 ? i * (all - 1) / (n - 1) : 0;
}

/* ---- the tensors ----------------------------------------------------------------------------- */

/* A tensor that the patch embedding reads: each value is rounded to one dtype, and kept in
 * another. */
struct rounded_tensor {
    const char *name; /* name below the tower's prefix */
    qv_dtype rounded, kept;
};

static qv_status
read_rounded(const char *dir, const struct qv_config *c, struct rounded_tensor as, void **out,
             qv_error *err)
{
    struct verify_tensor t = { 0 };
    qv_status status = verify_read_tensor(dir, c, as.name, &t, err);
    if (!status && !(*out = malloc((size_t)t.values * qv_dtype_bytes(as.kept))))
        status = qv_fail(err, QV_ENOMEM, "no memory for tensor %s", as.name);
    for (int64_t i = 0; i < t.values && !status; i++) {
        union {
            float f;
            qv_bf16 h;
        } one;
        qv_store(&one, as.rounded, 0, qv_load(t.data, t.dtype, i));
        qv_store(*out, as.kept, i, qv_load(&one, as.rounded, 0));
    }
    free(t.data);
    return status;
}

static qv_status
read_weights(struct definition *d, const char *dir, const struct qv_config *c, qv_error *err)
{
    const struct qv_tensor_names *names = c->family->names;
    const struct rounded_tensor of_weight = { "patch_embed.proj.weight", d->dtype, d->dtype },
                                of_bias = { "patch_embed.proj.bias", QV_F32, QV_F32 },
                                of_positions = { names->positions, d->dtype, QV_F32 };
    void *bias = NULL, *positions = NULL;
    qv_status status = read_rounded(dir, c, of_weight, &d->weight, err);
    if (!status && c->family->patch_embed_bias)
        status = read_rounded(dir, c, of_bias, &bias, err);
    if (!status && names->positions && !names->patch_norm)
        status = read_rounded(dir, c, of_positions, &positions, err);
    d->bias = bias;
    d->positions = positions;
    return status;
}

static qv_status
find_taps(struct definition *d, const struct qv_config *c, const int64_t thw[3], qv_error *err)
{
    int64_t side = llround(sqrt((double)c->n_positions));
    if (!d->positions)
        return QV_OK;
    const size_t taps = (size_t)(d->pair_rows * qv_interpolation_taps(d->interpolation));
    d->tap_index = malloc(taps * sizeof *d->tap_index);
    d->tap_weight = malloc(taps * sizeof *d->tap_weight);
    if (!d->tap_index || !d->tap_weight)
        return qv_fail(err, QV_ENOMEM, "no memory for position taps");
    qv_geometry_interpolation(d->interpolation, thw[1], thw[2], c->merge, side, d->tap_index,
                              d->tap_weight);
    return QV_OK;
}

/* Finds the pixels. An image is one frame, which the tower sees as several equal ones. */
static qv_status
find_pixels(struct definition *d, const struct qv_config *c, const struct verify_input *input,
            qv_error *err)
{
    size_t bytes = (size_t)(d->desc.h * d->desc.w * d->desc.c);
    d->x = input->data;
    if (!input->still)
        return QV_OK;
    d->still = malloc(bytes * (size_t)c->temporal);
    if (!d->still)
        return qv_fail(err, QV_ENOMEM, "no memory for %lld frames", (long long)c->temporal);
    for (int64_t i = 0; i < c->temporal; i++)
        memcpy((char *)d->still + (size_t)i * bytes, input->data, bytes);
    d->x = d->still;
    return QV_OK;
}

static qv_status
keep_pixels(struct definition *d, const struct qv_config *c, qv_error *err)
{
    int64_t values = d->desc.d * d->desc.h * d->desc.w * d->desc.c;
    if (d->dtype != QV_BF16 || d->desc.layout != QV_LAYOUT_FRAMES_U8 ||
        qv_config_pixels_are_exact(c, QV_BF16))
        return QV_OK;
    d->kept = malloc((size_t)values * sizeof(qv_bf16));
    if (!d->kept)
        return qv_fail(err, QV_ENOMEM, "no memory for %lld pixels", (long long)values);
    for (int64_t i = 0; i < values; i++) {
        double byte = ((const uint8_t *)d->x)[i];
        int64_t channel = i % d->desc.c;
        qv_store(d->kept, QV_BF16, i,
                 byte * d->desc.pixel_scale[channel] + d->desc.pixel_shift[channel]);
    }
    return QV_OK;
}

/* Returns the row-by-row position of a patch that is given in block order. */
static int64_t
line_by_line(const qv_conv3d_desc *d, int64_t row)
{
    int64_t w = d->w / d->kernel[2], patches = d->h / d->kernel[1] * w, m = d->merge;
    int64_t in = row % patches, block = in / (m * m);
    int64_t y = block / (w / m) * m + in % (m * m) / m, x = block % (w / m) * m + in % m;
    return row - in + y * w + x;
}

/* Returns where a row in block order lies among the rows that the plan shows, which are in window
 * order if the family has windows. A cell is preceded by the windows above it, those to the left,
 * and the earlier cells of its own window. */
static int64_t
shown_row(const struct definition *d, int64_t row)
{
    const int64_t area = d->desc.merge * d->desc.merge, side = d->window_cells;
    const int64_t down = d->desc.h / d->desc.kernel[1] / d->desc.merge;
    const int64_t across = d->desc.w / d->desc.kernel[2] / d->desc.merge;
    if (!side)
        return row;
    const int64_t cell = row % d->pair_rows / area, y = cell / across, x = cell % across;
    const int64_t top = y / side * side, left = x / side * side;
    const int64_t height = down - top < side ? down - top : side;
    const int64_t width = across - left < side ? across - left : side;
    const int64_t at = top * across + left * height + (y - top) * width + (x - left);
    return row + (at - cell) * area;
}

static double
bf16(double x)
{
    qv_bf16 h;
    qv_store(&h, QV_BF16, 0, x);
    return qv_bf16_to_f32(h);
}

/* Returns a position's value. *error is the most by which an f32 sum of the products may be off:
 * seven roundings and one to spare for four taps, and proportionally more for more taps. */
static double
position(const struct definition *d, int64_t row, int64_t col, double *error)
{
    double sum = 0, sizes = 0;
    const int64_t taps = qv_interpolation_taps(d->interpolation);
    const int64_t first = row % d->pair_rows * taps;
    for (int64_t i = first; i < first + taps && d->positions; i++) {
        double term = (double)d->tap_weight[i] * d->positions[d->tap_index[i] * d->desc.o + col];
        sum += term;
        sizes += fabs(term);
    }
    *error = (double)taps * FLT_EPSILON * sizes;
    return sum;
}

/* Returns a sum plus a position, each rounded to bf16 once. If the position lies so close to the
 * middle between two bf16 values that f32 cannot tell the side, either is right, and this returns
 * the one farther from the truth. Positions between those of the table are such ties often enough
 * to move a row by a tenth. */
static double
round_once(double sum, double position, double error, double truth)
{
    double low = bf16(sum + bf16(position - error)), high = bf16(sum + bf16(position + error));
    return fabs(low - truth) > fabs(high - truth) ? low : high;
}

/* ---- comparing ------------------------------------------------------------------------------- */

/* The description of a few outputs alone, with their weights and biases. */
struct columns {
    qv_conv3d_desc desc;
    double *truth, *kept; /* kept: computed from kept pixels; truth begins the memory of all */
    float *bias, *found, *rounded;
    void *weight;
};

static qv_status
take_columns(const struct definition *d, const struct part *part, struct columns *c, qv_error *err)
{
    size_t row = (size_t)d->k * qv_dtype_bytes(d->dtype), n = (size_t)part->cols;
    c->desc = d->desc;
    c->desc.o = part->cols;
    c->truth = malloc(n * (2 * sizeof *c->truth + 3 * sizeof *c->bias + row));
    if (!c->truth)
        return qv_fail(err, QV_ENOMEM, "no memory for %zu outputs", n);
    c->kept = c->truth + n;
    c->bias = (float *)(c->kept + n);
    c->found = c->bias + n;
    c->rounded = c->found + n;
    c->weight = c->rounded + n;
    for (size_t i = 0; i < n; i++) {
        size_t from = (size_t)spread((int64_t)i, part->cols, d->desc.o);
        memcpy((char *)c->weight + i * row, (char *)d->weight + from * row, row);
        c->bias[i] = d->bias ? d->bias[from] : 0; /* NOLINT: read_weights filled all of it */
    }
    return QV_OK;
}

/* Computes the truth of a row, and its yardstick for bf16. */
static qv_status
define_row(const struct definition *d, const struct part *part, struct columns *c, int64_t row,
           double *largest, qv_error *err)
{
    struct qv_conv3d_tensors in = { .x = d->x, .weight = c->weight, .bias = c->bias };
    qv_status status = qv_conv3d_define(&c->desc, &in, row, 1, c->truth, err);
    qv_conv3d_desc kept = c->desc;
    kept.layout = QV_LAYOUT_CHANNELS_LAST;
    in.x = d->kept;
    if (!status && d->kept)
        status = qv_conv3d_define(&kept, &in, line_by_line(&c->desc, row), 1, c->kept, err);
    for (int64_t i = 0; i < part->cols && !status; i++) {
        int64_t col = spread(i, part->cols, d->desc.o);
        double error, at = position(d, row, col, &error);
        double sum = d->kept ? c->kept[i] : c->truth[i];
        c->truth[i] += at;
        c->rounded[i] = (float)round_once(sum, at, error, c->truth[i]);
        c->found[i] = d->found->rows[shown_row(d, row) * d->found->cols + col];
        if (fabs(c->truth[i]) > *largest)
            *largest = fabs(c->truth[i]);
    }
    return status;
}

static void
fill_row(struct verify_row *row, const struct definition *d, const struct part *part,
         struct verify_sums *found, struct verify_sums *rounded, double largest)
{
    row->is = verify_sums_end(found);
    struct verify_distance yard = verify_sums_end(rounded);
    snprintf(row->note, sizeof row->note, "%lld of %lld rows, %lld of %lld outputs",
             (long long)part->rows, (long long)d->rows, (long long)part->cols,
             (long long)d->desc.o);
    if (d->dtype == QV_F32) {
        row->bar_worst = 2e-5;
        /* if the largest value is above 8, ten units in its last place are more than 1e-5 */
        row->bar_abs = fmax(1e-5, 10 * FLT_EPSILON * largest);
    } else {
        row->yardstick_worst = yard.worst;
        row->yardstick_mean = yard.mean;
        row->bar_worst = bf16_slack * yard.worst;
        row->bar_mean = bf16_slack * yard.mean;
        row->bar_cosine = 0.999;
    }
    verify_judge(row);
}

static qv_status
check_part(const struct definition *d, const struct part *part, struct verify_table *out,
           qv_error *err)
{
    struct columns c = { 0 };
    struct verify_sums found = { 0 }, rounded = { 0 };
    double largest = 0;
    qv_status status = take_columns(d, part, &c, err);
    if (!status)
        status = verify_sums_begin(&found, part->cols, err);
    if (!status)
        status = verify_sums_begin(&rounded, part->cols, err);
    for (int64_t i = 0; i < part->rows && !status; i++) {
        int64_t at = spread(i, part->rows, d->rows);
        status = define_row(d, part, &c, at, &largest, err);
        if (!status) {
            verify_sums_row(&found, c.found, c.truth);
            verify_sums_row(&rounded, c.rounded, c.truth);
        }
    }
    struct verify_row *row =
        status ? NULL : verify_add(out, "definition", "patch_embed", d->dtype, err);
    if (row)
        fill_row(row, d, part, &found, &rounded, largest);
    else if (!status)
        status = QV_ENOMEM;
    free(found.pooled);
    free(rounded.pooled);
    free(c.truth);
    return status;
}

/* Checks everything if that is quick; otherwise some rows with all outputs, and all rows with some
 * outputs. */
static qv_status
check_parts(const struct definition *d, struct verify_table *out, qv_error *err)
{
    double row_work = (double)d->k * (double)d->rows;
    int64_t o = d->desc.o, cols = (int64_t)(most_work / row_work);
    if (row_work * (double)o <= most_work)
        return check_part(d, &(struct part){ d->rows, o }, out, err);
    int64_t some = d->rows < MOST_ROWS ? d->rows : MOST_ROWS;
    qv_status status = check_part(d, &(struct part){ some, o }, out, err);
    cols = cols > o / 8 ? o / 8 : cols;
    cols = cols < 1 ? 1 : cols;
    if (!status)
        status = check_part(d, &(struct part){ d->rows, cols }, out, err);
    return status;
}

/* Describes the Conv3d of the first clip or image, over bytes or patch rows. */
static qv_conv3d_desc
describe(const struct qv_config *c, const struct verify_input *input, qv_dtype dtype)
{
    const int64_t *thw = input->thw[0];
    const qv_preprocess *p = input->still ? &c->image : &c->video;
    bool frames = input->input == QV_INPUT_FRAMES, exact = qv_config_pixels_are_exact(c, dtype);
    qv_conv3d_desc d = { .d = thw[0] * c->temporal,
                         .h = thw[1] * c->patch,
                         .w = thw[2] * c->patch,
                         .c = c->in_channels,
                         .o = c->hidden,
                         .kernel = { c->temporal, c->patch, c->patch },
                         .stride = { c->temporal, c->patch, c->patch },
                         .layout = frames ? QV_LAYOUT_FRAMES_U8 : QV_LAYOUT_PATCH_ROWS,
                         .merge = c->merge,
                         .bias = true,
                         .alpha = frames && exact ? 1 / 255.0 : 1 };
    for (int i = 0; i < 3 && frames; i++) {
        d.pixel_scale[i] = exact ? 2 : 1 / (255 * p->std[i]);
        d.pixel_shift[i] = exact ? -255 : -p->mean[i] / p->std[i];
    }
    return qv_conv3d_defaults(&d, dtype);
}

qv_status
verify_definition(const char *dir, const struct qv_config *config, qv_dtype dtype,
                  const struct verify_input *input, const struct verify_layer *found,
                  struct verify_table *out, qv_error *err)
{
    const int64_t *thw = input->thw[0];
    struct definition d = { .desc = describe(config, input, dtype),
                            .dtype = dtype,
                            .k = qv_config_row_dim(config),
                            .pair_rows = thw[1] * thw[2],
                            .rows = thw[0] * thw[1] * thw[2],
                            .window_cells = qv_config_window_cells(config),
                            .interpolation = config->family->interpolation,
                            .found = found };
    qv_status status = QV_OK;
    if (!found || found->n != d.rows || found->cols != d.desc.o)
        status = qv_fail(err, QV_ESTATE, "the plan has no layer patch_embed of %lld rows",
                         (long long)d.rows);
    if (!status)
        status = qv_conv3d_check(&d.desc, err);
    if (!status)
        status = read_weights(&d, dir, config, err);
    if (!status)
        status = find_taps(&d, config, thw, err);
    if (!status)
        status = find_pixels(&d, config, input, err);
    if (!status)
        status = keep_pixels(&d, config, err);
    if (!status)
        status = check_parts(&d, out, err);
    free(d.still);
    free(d.kept);
    free(d.weight);
    free(d.bias);
    free(d.positions);
    free(d.tap_index);
    free(d.tap_weight);
    return status;
}
