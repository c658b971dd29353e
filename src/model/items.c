/* SPDX-License-Identifier: MIT */
#include "items.h"

#include <stdio.h>

#include "dtype.h"
#include "error.h"
#include "towers/steps.h"

/* ---- frames ---------------------------------------------------------------------------------- */

int64_t
qv_item_frames(const struct qv_config *c, const qv_item *item)
{
    return item->n_frames ? item->n_frames : qv_item_pair_frames(c, item);
}

int64_t
qv_item_pair_frames(const struct qv_config *c, const qv_item *item)
{
    return item->is_image ? 1 : item->grid_thw[0] * c->temporal;
}

/* ---- checking -------------------------------------------------------------------------------- */

qv_status
qv_item_check_grid(const struct qv_config *c, const int64_t g[3], const char *what, qv_error *err)
{
    enum { MOST_PAIRS = 1 << 20 };
    const int64_t m = c->merge;
    if (g[0] < 1 || g[0] > MOST_PAIRS)
        return qv_fail(err, QV_EINVAL, "%s: grid_thw is %lld,%lld,%lld; t must be from 1 to %d",
                       what, (long long)g[0], (long long)g[1], (long long)g[2], MOST_PAIRS);
    if (g[1] < m || g[2] < m || g[1] > QV_MOST_POSITIONS || g[2] > QV_MOST_POSITIONS || g[1] % m ||
        g[2] % m || g[1] * g[2] > QV_MOST_ROWS)
        return qv_fail(err, QV_EINVAL,
                       "%s: grid_thw is %lld,%lld,%lld; h and w must be multiples of %lld up to "
                       "%d, and h * w at most %d",
                       what, (long long)g[0], (long long)g[1], (long long)g[2], (long long)m,
                       QV_MOST_POSITIONS, QV_MOST_ROWS);
    return QV_OK;
}

qv_status
qv_item_check_shape(const qv_model *model, qv_input input, const qv_item *item, const char *name,
                    qv_error *err)
{
    const struct qv_config *c = &model->config;
    const int64_t *g = item->grid_thw;
    qv_status status = qv_item_check_grid(c, g, name, err);
    if (status)
        return status;
    if (input != QV_INPUT_FRAMES)
        return item->n_frames
                   ? qv_fail(err, QV_EINVAL, "%s: n_frames is %lld; it must be 0 for rows", name,
                             (long long)item->n_frames)
                   : QV_OK;
    const int64_t frames = qv_item_frames(c, item), most = qv_item_pair_frames(c, item);
    const int64_t least = item->is_image ? 1 : most - c->temporal + 1;
    if (frames >= least && frames <= most)
        return QV_OK;
    return item->is_image
               ? qv_fail(err, QV_EINVAL, "%s: n_frames is %lld; it must be 1 for an image", name,
                         (long long)frames)
               : qv_fail(err, QV_EINVAL,
                         "%s: n_frames is %lld; it must be from %lld to %lld for %lld frame pairs",
                         name, (long long)frames, (long long)least, (long long)most,
                         (long long)g[0]);
}

qv_status
qv_item_check_nth(const qv_model *model, qv_input input, const qv_item *item, size_t i,
                  qv_error *err)
{
    char name[40];
    snprintf(name, sizeof name, "item %zu", i);
    const qv_status status = qv_item_check_shape(model, input, item, name, err);
    return status || item->data ? status : qv_fail(err, QV_EINVAL, "%s: data is NULL", name);
}

/* Fails because an item makes the chunk too large; the text has the numbers. */
static qv_status
too_much(size_t i, const int64_t *g, int64_t n, const char *unit, int64_t most, qv_error *err)
{
    return qv_fail(err, QV_EINVAL,
                   "item %zu (grid_thw %lld,%lld,%lld) brings the chunk to %lld %s; this plan's "
                   "chunks hold %lld",
                   i, (long long)g[0], (long long)g[1], (long long)g[2], (long long)n, unit,
                   (long long)most);
}

qv_status
qv_items_check(const qv_model *model, qv_input input, const qv_capacity *capacity,
               const qv_item *items, size_t n, int64_t *rows, qv_error *err)
{
    struct qv_capacity all = { 0 };
    if (!n)
        return qv_fail(err, QV_EINVAL, "n is 0; it must be at least 1");
    for (size_t i = 0; i < n; i++) {
        const int64_t *g = items[i].grid_thw;
        qv_status status = qv_item_check_nth(model, input, &items[i], i, err);
        if (status)
            return status;
        if (capacity->segment_rows && g[1] * g[2] != capacity->segment_rows)
            return qv_fail(err, QV_EINVAL,
                           "item %zu: a frame pair has %lld patches; this plan's segment_rows is "
                           "%lld",
                           i, (long long)(g[1] * g[2]), (long long)capacity->segment_rows);
        const struct qv_capacity size = qv_capacity_of(&model->config, g);
        qv_capacity_count(&all, 1, &size);
        if (all.segments > capacity->segments)
            return too_much(i, g, all.segments, "segments", capacity->segments, err);
        if (all.windows > capacity->windows)
            return too_much(i, g, all.windows, "windows", capacity->windows, err);
        if (all.patches > capacity->patches)
            return too_much(i, g, all.patches, "patches", capacity->patches, err);
    }
    *rows = all.patches;
    return QV_OK;
}

/* ---- cutting --------------------------------------------------------------------------------- */

qv_item
qv_item_piece(const qv_model *model, qv_input input, const qv_item *item, int64_t first, int64_t n)
{
    const struct qv_config *c = &model->config;
    const int64_t *g = item->grid_thw, left = g[0] - first;
    const size_t pair_bytes =
        (size_t)(g[1] * g[2] * qv_config_row_dim(c)) * qv_dtype_bytes(qv_input_dtype(input));
    qv_item piece = *item;
    piece.grid_thw[0] = n < left ? n : left;
    /* an image's pairs all have its one frame */
    if (item->data && !(input == QV_INPUT_FRAMES && item->is_image))
        piece.data = (const char *)item->data + (size_t)first * pair_bytes;
    if (input == QV_INPUT_FRAMES) {
        const int64_t most = qv_item_pair_frames(c, &piece), behind = first * c->temporal;
        const int64_t frames = qv_item_frames(c, item) - (item->is_image ? 0 : behind);
        piece.n_frames = frames < most ? frames : most;
    }
    return piece;
}
