/* SPDX-License-Identifier: MIT */
/*
 * Draws frames of a clip above their tokens, whose first three principal components become red,
 * green and blue. Similar tokens have similar colours across all frames shown.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dtype.h"
#include "error.h"
#include "numbers.h"
#include "tool.h"

enum { MOST_SHOWN = 6, COMPONENTS = 3, GAP = 4, ITERATIONS = 40, SHOWN_HEIGHT = 256 };

struct tool_drawing {
    int width, height;       /* size of a frame */
    int cell_w, cell_h;      /* its size in the drawing */
    int64_t rows, cols, dim; /* sizes of a frame pair's tokens */
    int64_t n_shown, pairs[MOST_SHOWN];
    int64_t n_pairs_seen;
    int frames_per_pair;
    uint8_t *frames; /* [n_shown, height, width, 3] */
    float *tokens;   /* [n_shown, rows*cols, dim] */
};

qv_status
tool_drawing_open(const qv_outcome *clip, const qv_model_info *model, struct tool_drawing **out,
                  qv_error *err)
{
    struct tool_drawing *p = calloc(1, sizeof *p);
    if (p) {
        p->width = clip->width;
        p->height = clip->height;
        p->cell_h = clip->height < SHOWN_HEIGHT ? clip->height : SHOWN_HEIGHT;
        p->cell_w = (int)((int64_t)clip->width * p->cell_h / clip->height);
        if (p->cell_w < 1)
            p->cell_w = 1;
        p->rows = clip->grid_thw[1] / model->merge_size;
        p->cols = clip->grid_thw[2] / model->merge_size;
        p->dim = model->out_hidden;
        p->frames_per_pair = clip->is_image ? 1 : (int)model->temporal_patch_size;
        int64_t pairs = clip->grid_thw[0];
        p->n_shown = pairs < MOST_SHOWN ? pairs : MOST_SHOWN;
        for (int64_t i = 0; i < p->n_shown; i++)
            p->pairs[i] = p->n_shown > 1 ? i * (pairs - 1) / (p->n_shown - 1) : 0;
        p->frames = malloc((size_t)p->n_shown * (size_t)p->width * (size_t)p->height * 3);
        p->tokens = calloc((size_t)(p->n_shown * p->rows * p->cols * p->dim), sizeof *p->tokens);
    }
    if (!p || !p->frames || !p->tokens) {
        tool_drawing_close(&p);
        return qv_fail(err, QV_ENOMEM, "no memory for the drawing");
    }
    *out = p;
    return QV_OK;
}

void
tool_drawing_close(struct tool_drawing **p)
{
    if (!*p)
        return;
    free((*p)->frames);
    free((*p)->tokens);
    free(*p);
    *p = NULL;
}

void
tool_drawing_add(struct tool_drawing *p, const uint8_t *frames, int64_t n_frames,
                 const void *tokens, qv_dtype dtype)
{
    size_t frame = (size_t)p->width * (size_t)p->height * 3;
    int64_t per_pair = p->rows * p->cols * p->dim;
    int64_t pairs = qv_ceil_div(n_frames, p->frames_per_pair);
    for (int64_t i = 0; i < pairs; i++, p->n_pairs_seen++)
        for (int64_t s = 0; s < p->n_shown; s++)
            if (p->pairs[s] == p->n_pairs_seen) {
                memcpy(p->frames + (size_t)s * frame,
                       frames + (size_t)(i * p->frames_per_pair) * frame, frame);
                for (int64_t j = 0; j < per_pair; j++)
                    p->tokens[s * per_pair + j] = (float)qv_load(tokens, dtype, i * per_pair + j);
            }
}

/* ---- principal components -------------------------------------------------------------------- */

static void
center(float *x, int64_t n, int64_t dim)
{
    for (int64_t j = 0; j < dim; j++) {
        double mean = 0;
        for (int64_t i = 0; i < n; i++)
            mean += x[i * dim + j] / (double)n;
        for (int64_t i = 0; i < n; i++)
            x[i * dim + j] -= (float)mean;
    }
}

static double
dot(const float *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* Makes vector `which` orthogonal to the previous vectors, and of length 1. Returns false if
 * nothing is left of it. */
static bool
orthonormalise(double *v, int which, int64_t dim)
{
    double *mine = v + which * dim, length = 0;
    for (int k = 0; k < which; k++) {
        double along = 0;
        for (int64_t j = 0; j < dim; j++)
            along += mine[j] * v[k * dim + j];
        for (int64_t j = 0; j < dim; j++)
            mine[j] -= along * v[k * dim + j];
    }
    for (int64_t j = 0; j < dim; j++)
        length += mine[j] * mine[j];
    length = sqrt(length);
    for (int64_t j = 0; j < dim && length > 0; j++)
        mine[j] /= length;
    return length > 0;
}

/* Computes v[COMPONENTS, dim] by power iteration on x^T x, from fixed starts, one vector after
 * another. A vector has length 1 before the next one is made orthogonal to it. y[n] is scratch. */
static void
principal_components(const float *x, int64_t n, int64_t dim, double *v, double *y)
{
    for (int64_t j = 0; j < COMPONENTS * dim; j++)
        v[j] = (double)(j * 2654435761u % 1000003) / 1000003 - 0.5;
    for (int k = 0; k < COMPONENTS; k++) {
        for (int iteration = 0; iteration < ITERATIONS && orthonormalise(v, k, dim); iteration++) {
            for (int64_t i = 0; i < n; i++)
                y[i] = dot(x + i * dim, v + k * dim, dim);
            memset(v + k * dim, 0, (size_t)dim * sizeof *v);
            for (int64_t i = 0; i < n; i++)
                for (int64_t j = 0; j < dim; j++)
                    v[k * dim + j] += y[i] * x[i * dim + j];
        }
        orthonormalise(v, k, dim);
    }
}

/* Computes colours[n, 3], scaling each component from its 2nd to its 98th percentile. sorted[n] is
 * scratch. */
static void
colour(const float *x, int64_t n, int64_t dim, const double *v, double *sorted, uint8_t *colours)
{
    for (int k = 0; k < COMPONENTS; k++) {
        for (int64_t i = 0; i < n; i++)
            sorted[i] = dot(x + i * dim, v + k * dim, dim);
        qsort(sorted, (size_t)n, sizeof *sorted, qv_ascending);
        double low = sorted[n * 2 / 100], high = sorted[n - 1 - n * 2 / 100];
        for (int64_t i = 0; i < n; i++) {
            double share = (dot(x + i * dim, v + k * dim, dim) - low) / (high - low + 1e-30);
            share = share < 0 ? 0 : share > 1 ? 1 : share;
            colours[i * 3 + k] = (uint8_t)(share * 255 + 0.5);
        }
    }
}

bool
tool_drawing_colours(float *tokens, int64_t n, int64_t dim, uint8_t *colours)
{
    double *v = malloc((size_t)(COMPONENTS * dim) * sizeof *v);
    double *y = malloc((size_t)n * sizeof *y);
    if (v && y) {
        center(tokens, n, dim);
        principal_components(tokens, n, dim, v, y);
        colour(tokens, n, dim, v, y, colours);
    }
    const bool done = v && y;
    free(v);
    free(y);
    return done;
}

/* ---- drawing --------------------------------------------------------------------------------- */

static void
draw(const struct tool_drawing *p, const uint8_t *colours, uint8_t *rgb, int width)
{
    size_t frame = (size_t)p->width * (size_t)p->height * 3;
    for (int64_t s = 0; s < p->n_shown; s++)
        for (int y = 0; y < p->cell_h; y++)
            for (int x = 0; x < p->cell_w; x++) {
                int64_t left = GAP + s * (p->cell_w + GAP) + x;
                int64_t sy = (int64_t)y * p->height / p->cell_h;
                int64_t sx = (int64_t)x * p->width / p->cell_w;
                memcpy(rgb + ((GAP + y) * (int64_t)width + left) * 3,
                       p->frames + (size_t)s * frame + (size_t)(sy * p->width + sx) * 3, 3);
                int64_t token = s * p->rows * p->cols + y * p->rows / p->cell_h * p->cols +
                                x * p->cols / p->cell_w;
                memcpy(rgb + ((2 * GAP + p->cell_h + y) * (int64_t)width + left) * 3,
                       colours + token * 3, 3);
            }
}

qv_status
tool_drawing_write(struct tool_drawing *p, const char *path, qv_error *err)
{
    int64_t n = p->n_shown * p->rows * p->cols;
    int width = GAP + (int)p->n_shown * (p->cell_w + GAP), height = 3 * GAP + 2 * p->cell_h;
    uint8_t *rgb = malloc((size_t)width * (size_t)height * 3);
    uint8_t *colours = malloc((size_t)n * COMPONENTS);
    qv_status status = qv_fail(err, QV_ENOMEM, "%s: no memory for the drawing", path);
    if (rgb && colours && tool_drawing_colours(p->tokens, n, p->dim, colours)) {
        memset(rgb, 255, (size_t)width * (size_t)height * 3);
        draw(p, colours, rgb, width);
        status = tool_write_png(path, rgb, height, width, err);
    }
    free(rgb);
    free(colours);
    return status;
}
