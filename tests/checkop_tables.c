/* SPDX-License-Identifier: MIT */
/* Fills the tables that operations look up: which item each row belongs to, and which rows
 * attend to one another. */
#include <math.h>
#include <string.h>

#include "checkop.h"
#include "dtype.h"
#include "engine/block_order.h"

static int64_t
least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- items ----------------------------------------------------------------------------------- */

enum { PLACES = 1, NORMS, COORDS };

/* How much room the items have taken so far. */
struct room {
    int64_t rows, patches; /* taken so far */
    int64_t item;
};

/* Fills an item's scales and shifts, which differ between neighbours. Exact: no product or sum
 * is rounded, even in bf16. */
static void
fill_norm_of(struct data *data, enum fill fill, int64_t item)
{
    static const float norms[FILL_COUNT][3][6] = {
        { { 2, 2, 2, -255, -255, -255 },
          { 1, 2, 0.5f, -128, -255, 0 },
          { 0.5f, 1, 1, 0, -1, -128 } },
        { { 1 / 127.5f, 1 / 127.5f, 1 / 127.5f, -1, -1, -1 },
          { 0.0145984266f, 0.0150077685f, 0.0142200702f, -1.7922625f, -1.7520971f, -1.4802198f },
          { 1 / 255.0f, 1 / 255.0f, 1 / 255.0f, -0.5f, 1e-30f, 0 } },
    };
    float(*to)[6] = data->bytes[NORMS];
    memcpy(to[item], norms[fill][item % 3], sizeof to[item]);
}

/* Draws a grid. The grids of transformers' processors consist of 2 x 2 blocks of patches, but any
 * grid must work. */
static void
random_grid(struct rng *rng, int64_t most, int64_t *h, int64_t *w, int64_t *merge)
{
    *w = 1 + rng_below(rng, least(most, 40));
    *h = 1 + rng_below(rng, least(most / *w, 40));
    *merge = 1 + rng_below(rng, 3);
    if (*h >= *merge && *w >= *merge) {
        *h -= *h % *merge;
        *w -= *w % *merge;
    } else
        *merge = 1;
}

static void
add_item(struct data *data, enum fill fill, struct room *room, struct rng *rng)
{
    const struct qv_op_patchify *op = &data->op.u.patchify;
    struct qv_item_place *places = data->bytes[PLACES];
    struct qv_coords *coords = data->bytes[COORDS];
    int64_t h, w, merge, left = op->patches - room->patches, rows = op->rows - room->rows;
    random_grid(rng, least(left, rows), &h, &w, &merge);
    int64_t area = h * w, frame = rng_below(rng, 2) && op->temporal * area <= left ? area : 0;
    int64_t pairs = rows / area, pair = frame * op->temporal;
    pairs = 1 + rng_below(rng, least(frame ? least(pairs, left / pair) : pairs, 4));
    places[room->item] =
        (struct qv_item_place){ (int32_t)room->patches, (int32_t)pair, (int32_t)frame, (int32_t)w };
    fill_norm_of(data, fill, room->item);
    for (int64_t i = 0; i < pairs; i++, room->rows += area)
        qv_block_coords(h, w, merge, room->item, i, coords + room->rows);
    room->patches += frame ? pairs * pair : area;
    room->patches += rng_below(rng, 4) == 0 && room->patches < op->patches; /* leaves a gap */
    room->item++;
}

void
fill_items(struct data *data, enum fill fill, struct rng *rng)
{
    const struct qv_op_patchify *op = &data->op.u.patchify;
    struct qv_coords *coords = data->bytes[COORDS];
    struct room room = { 0 };
    memset(data->bytes[PLACES], 0x7f, data->desc[PLACES].bytes); /* these items have no rows */
    memset(data->bytes[NORMS], 0xff, data->desc[NORMS].bytes);
    while (room.item < op->items && room.rows < op->rows && room.patches < op->patches)
        add_item(data, fill, &room, rng);
    for (int64_t i = room.rows; i < op->rows; i++) /* rows beyond the items can have any values */
        coords[i] = coords[rng_below(rng, room.rows)];
    bool shuffled = rng_below(rng, 2);
    for (int64_t i = op->rows - 1; shuffled && i > 0; i--) {
        int64_t j = rng_below(rng, i + 1);
        struct qv_coords kept = coords[i];
        coords[i] = coords[j];
        coords[j] = kept;
    }
}

void
fill_positions(struct data *data, struct rng *rng)
{
    const struct qv_op_rope *op = &data->op.u.rope;
    struct qv_coords *coords = data->bytes[2];
    for (int64_t i = 0; i < op->rows; i++) /* rope does not read item and pair */
        coords[i] = (struct qv_coords){ (int32_t)rng_next(rng), (int32_t)rng_next(rng),
                                        (int32_t)rng_below(rng, op->positions),
                                        (int32_t)rng_below(rng, op->positions) };
}

/* ---- segments -------------------------------------------------------------------------------- */

struct segment
segment_get(const struct data *data, int64_t i)
{
    const struct qv_op_attention *op = &data->op.u.attention;
    const int32_t *list = data->bytes[0];
    if (op->segment_rows)
        return (struct segment){ i * op->segment_rows, op->segment_rows };
    return (struct segment){ list[i], list[op->segments + 1 + i] };
}

void
segment_put(struct data *data, int64_t i, struct segment s)
{
    const struct qv_op_attention *op = &data->op.u.attention;
    int32_t *list = data->bytes[0];
    const int64_t width = op->heads * op->head_dim;
    const int64_t lists[QV_SEGMENT_LISTS] = { s.first, s.n,
                                              s.first * qv_row_stride(op->q_stride, width),
                                              s.first * width };
    for (int j = 0; j < QV_SEGMENT_LISTS; j++)
        list[j * (op->segments + 1) + i] = (int32_t)lists[j];
}

struct segment
segment_of(const struct data *data, int64_t row)
{
    const struct qv_op_attention *op = &data->op.u.attention;
    if (op->segment_rows)
        return segment_get(data, row / op->segment_rows);
    for (int64_t i = 0; i < op->segments; i++) {
        struct segment s = segment_get(data, i);
        if (row >= s.first && row < s.first + s.n)
            return s;
    }
    return (struct segment){ 0 };
}

/* NONE: every slot is empty. WHOLE: one segment has all rows. FULL: segments cover all rows, as in
 * what is timed. APART: there are gaps and empty slots between segments. PACKED: segments follow
 * one another, with unused rows after the last. */
enum style { STYLE_NONE, STYLE_WHOLE, STYLE_FULL, STYLE_APART, STYLE_PACKED };

static enum style
random_style(const struct qv_op_attention *op, struct rng *rng)
{
    static const enum style styles[] = { STYLE_NONE,  STYLE_WHOLE,  STYLE_WHOLE,  STYLE_FULL,
                                         STYLE_FULL,  STYLE_APART,  STYLE_APART,  STYLE_APART,
                                         STYLE_APART, STYLE_PACKED, STYLE_PACKED, STYLE_PACKED };
    enum { LARGE = 1 << 20 };
    enum style style = styles[rng_below(rng, sizeof styles / sizeof styles[0])];
    return op->longest ? style : op->rows * op->rows / op->segments > LARGE ? STYLE_FULL : style;
}

void
fill_segments(struct data *data, struct rng *rng)
{
    const struct qv_op_attention *op = &data->op.u.attention;
    if (op->segment_rows)
        return;
    enum style style = random_style(op, rng);
    int64_t at = 0, mean = op->rows / op->segments + (op->rows < op->segments);
    for (int64_t i = 0; i <= op->segments; i++) {
        int64_t left = op->rows - at, n = i < op->segments ? 1 + rng_below(rng, 2 * mean) : 0;
        if (style == STYLE_NONE || (style == STYLE_APART && rng_below(rng, 5) == 0))
            n = 0;
        else if (style == STYLE_WHOLE || (style == STYLE_FULL && i == op->segments - 1))
            n = i < op->segments ? left : 0;
        else if (style == STYLE_APART && n && left > 1 && rng_below(rng, 3) == 0)
            at += 1 + rng_below(rng, least(mean, left - 1));
        n = least(n, op->rows - at);
        n = op->longest ? least(n, op->longest) : n;
        segment_put(data, i, (struct segment){ at, n });
        at += n;
    }
    for (int64_t row = 0; row < op->rows; row++)
        for (int i = 1; i < 4 && !segment_of(data, row).n; i++)
            for (int64_t col = 0; col < data->desc[i].cols; col++)
                qv_store(data->bytes[i], data->desc[i].dtype, element_at(&data->desc[i], row, col),
                         NAN);
}
