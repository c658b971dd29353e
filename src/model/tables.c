/* SPDX-License-Identifier: MIT */
/* The tables of a chunk: what each row and each segment is, filled on the host. */
#include "plan.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "items.h"

qv_status
qv_tables_open(const struct qv_capacity *capacity, const struct qv_config *c, struct qv_tables *out,
               qv_error *err)
{
    const size_t rows = (size_t)capacity->patches, n = (size_t)capacity->segments;
    const size_t windows = (size_t)capacity->windows;
    const size_t taps = (size_t)qv_interpolation_taps(c->family->interpolation);
    struct qv_tables t = { .places = calloc(n, sizeof *t.places),
                           .norms = calloc(n, sizeof *t.norms),
                           .coords = calloc(rows, sizeof *t.coords),
                           .index = calloc(rows, taps * sizeof *t.index),
                           .weight = calloc(rows, taps * sizeof *t.weight),
                           .segments = calloc(QV_SEGMENT_LISTS * (n + 1), sizeof *t.segments),
                           .windows = calloc(QV_SEGMENT_LISTS * (windows + 1), sizeof *t.windows),
                           .order = calloc(rows, sizeof *t.order),
                           .back = calloc(rows, sizeof *t.back),
                           .taps = (int64_t)taps };
    bool ok = t.places && t.norms && t.coords && t.index && t.weight && t.segments && t.windows &&
              t.order && t.back;
    *out = t;
    return ok ? QV_OK
              : qv_fail(err, QV_ENOMEM, "no memory for the tables of %zu rows, %zu segments", rows,
                        n);
}

void
qv_tables_close(struct qv_tables *t)
{
    free(t->places);
    free(t->norms);
    free(t->coords);
    free(t->index);
    free(t->weight);
    free(t->segments);
    free(t->windows);
    free(t->order);
    free(t->back);
    *t = (struct qv_tables){ 0 };
}

/* With mean = std = 1/2 in all channels a normalised byte is (2u - 255) / 255. Then 2u - 255 is
 * exact in bf16, and the GEMM's alpha applies 1/255. With other values, and in f32, the byte is
 * normalised in f32 and rounded once. */
static struct qv_item_norm
norm_of(const struct qv_config *c, const qv_preprocess *p, qv_dtype dtype)
{
    struct qv_item_norm norm;
    bool exact = qv_config_pixels_are_exact(c, dtype);
    for (int i = 0; i < 3; i++) {
        norm.scale[i] = (float)(exact ? 2 : 1 / (255 * p->std[i]));
        norm.shift[i] = (float)(exact ? -255 : -p->mean[i] / p->std[i]);
    }
    return norm;
}

/* Writes segment i, which is `rows` rows from `first` on, into all QV_SEGMENT_LISTS lists. A list
 * has one more entry than slots. */
static void
put_segment(int32_t *list, int64_t slots, int64_t i, const struct qv_config *c, int64_t first,
            int64_t rows)
{
    const int64_t lists[QV_SEGMENT_LISTS] = { first, rows, first * 3 * c->hidden,
                                              first * c->hidden };
    for (int at = 0; at < QV_SEGMENT_LISTS; at++)
        list[at * (slots + 1) + i] = (int32_t)lists[at];
}

/* Makes the slots beyond the last segment empty: they begin where it ends. */
static void
put_empty_segments(int32_t *list, int64_t slots, int64_t used, const struct qv_config *c,
                   int64_t first)
{
    for (int64_t i = used; i <= slots; i++)
        put_segment(list, slots, i, c, first, 0);
}

/* Writes the patches of one cell (merge x merge patches, which become one merged row). `from` is
 * its merged row in the order of the frame, `to` its row in window order. */
static void
put_cell(struct qv_tables *t, const struct qv_config *c, int64_t grid_w, int64_t pair, int64_t cell,
         int64_t from, int64_t to)
{
    const int64_t m = c->merge, across = grid_w / m, row = cell / across * m,
                  col = cell % across * m;
    t->back[from] = (int32_t)to;
    for (int64_t i = 0; i < m * m; i++) {
        t->order[to * m * m + i] = (int32_t)(from * m * m + i);
        t->coords[to * m * m + i] =
            (struct qv_coords){ (int32_t)t->n_items, (int32_t)pair, (int32_t)(row + i / m),
                                (int32_t)(col + i % m) };
    }
}

/* Adds a frame pair in window order: windows from left to right and top to bottom, and cells within
 * a window likewise. Windows at the right and lower edges are smaller (transformers'
 * get_vision_window_index). */
static void
add_windows(struct qv_tables *t, const struct qv_capacity *capacity, const struct qv_config *c,
            const int64_t g[3], int64_t pair)
{
    const int64_t side = qv_config_window_cells(c), area = c->merge * c->merge;
    const int64_t down = g[1] / c->merge, across = g[2] / c->merge, first = t->n_rows / area;
    int64_t to = first;
    for (int64_t top = 0; top < down; top += side)
        for (int64_t left = 0; left < across; left += side) {
            const int64_t bottom = top + side < down ? top + side : down;
            const int64_t right = left + side < across ? left + side : across;
            put_segment(t->windows, capacity->windows, t->n_windows++, c, to * area,
                        (bottom - top) * (right - left) * area);
            for (int64_t y = top; y < bottom; y++)
                for (int64_t x = left; x < right; x++, to++)
                    put_cell(t, c, g[2], pair, y * across + x, first + y * across + x, to);
        }
}

/* Adds an item. Its frame pairs are consecutive; their rows differ only in the pair's number. */
static void
add_item(struct qv_tables *t, const struct qv_capacity *capacity, const struct qv_config *c,
         const qv_item *item, int64_t side)
{
    const int64_t *g = item->grid_thw, pair_rows = g[1] * g[2], first = t->n_rows, taps = t->taps;
    for (int64_t pair = 0; pair < g[0]; pair++) {
        int64_t at = t->n_rows;
        put_segment(t->segments, capacity->segments, t->n_segments++, c, at, pair_rows);
        if (c->window)
            add_windows(t, capacity, c, g, pair);
        else if (pair == 0)
            qv_block_coords(g[1], g[2], c->merge, t->n_items, 0, t->coords + at);
        else
            for (int64_t i = 0; i < pair_rows; i++) {
                t->coords[at + i] = t->coords[first + i];
                t->coords[at + i].pair = (int32_t)pair;
            }
        if (side && pair == 0) {
            qv_geometry_interpolation(c->family->interpolation, g[1], g[2], c->merge, side,
                                      t->index + at * taps, t->weight + at * taps);
        } else if (side) {
            const size_t n = (size_t)(pair_rows * taps);
            memcpy(t->index + at * taps, t->index + first * taps, n * sizeof *t->index);
            memcpy(t->weight + at * taps, t->weight + first * taps, n * sizeof *t->weight);
        }
        t->n_rows += pair_rows;
    }
}

void
qv_tables_fill(struct qv_tables *t, const struct qv_capacity *capacity, const struct qv_config *c,
               qv_dtype dtype, const qv_item *items, size_t n)
{
    /* used: patches of the input before this item */
    int64_t used = 0, side = qv_config_position_side(c);
    t->n_rows = t->n_segments = t->n_windows = t->n_items = 0;
    for (size_t i = 0; i < n; i++) {
        const qv_item *item = &items[i];
        int64_t patches = item->grid_thw[1] * item->grid_thw[2];
        int64_t frame = item->is_image ? 0 : patches;
        t->places[i] = (struct qv_item_place){ (int32_t)used, (int32_t)(frame * c->temporal),
                                               (int32_t)frame, (int32_t)item->grid_thw[2] };
        t->norms[i] = norm_of(c, item->is_image ? &c->image : &c->video, dtype);
        add_item(t, capacity, c, item, side);
        t->n_items++;
        used += qv_item_pair_frames(c, item) * patches;
    }
    /* rows beyond the items' must read something valid: patch 0 of item 0, and position 0 */
    const size_t beyond = (size_t)(capacity->patches - t->n_rows), taps = (size_t)t->taps;
    memset(t->coords + t->n_rows, 0, beyond * sizeof *t->coords);
    memset(t->index + (size_t)t->n_rows * taps, 0, beyond * taps * sizeof *t->index);
    const int64_t tokens = t->n_rows / (c->merge * c->merge);
    if (c->window) { /* without windows no operation reads order and back */
        memset(t->order + t->n_rows, 0, beyond * sizeof *t->order);
        memset(t->back + tokens, 0, (size_t)(capacity->patches - tokens) * sizeof *t->back);
    }
    put_empty_segments(t->segments, capacity->segments, t->n_segments, c, t->n_rows);
    put_empty_segments(t->windows, capacity->windows, t->n_windows, c, t->n_rows);
}
