/* SPDX-License-Identifier: MIT */
/*
 * Tests the windows of attention (Qwen2.5-VL) against the mistakes that ports of this tower have
 * made: tokens that are put back wrongly where windows do not divide the grid; full attention in
 * the wrong blocks; a mask that lets windows see one another although the tokens look right; height
 * and width, or time, exchanged; empty windows where the grid is a multiple of the window
 * (transformers' get_vision_window_index pads a whole window there and drops it afterwards).
 */

#include "test.h"

#include "backends.h"
#include "engine/context.h"
#include "model/plan.h"
#include "tempdir.h"
#include "tiny.h"

/* A window has 8x8 patches, as in the published model. */
static const struct qv_config config = { .family = &qv_families[QV_FAMILY_QWEN2_5_VL],
                                         .patch = 14,
                                         .merge = 2,
                                         .window = 112,
                                         .hidden = 80 };

static const int64_t grids[][3] = { { 1, 8, 8 },   { 1, 16, 24 }, { 1, 10, 8 }, { 2, 8, 10 },
                                    { 3, 20, 38 }, { 1, 2, 2 },   { 1, 2, 30 }, { 2, 34, 6 } };
enum { N_GRIDS = sizeof grids / sizeof *grids, MOST_ROWS = 4096 };

/* Like transformers: pads the index of merged cells to whole windows, reshapes it, and drops the
 * padding. Fills order[..] for one frame pair and lengths[..] of its windows, empty ones too. */
static int
padded_windows(int64_t down, int64_t across, int64_t side, int64_t *order, int64_t *lengths)
{
    int n = 0, windows = 0;
    const int64_t high = (down + side - down % side) / side,
                  wide = (across + side - across % side) / side;
    for (int64_t window = 0; window < high * wide; window++, windows++) {
        lengths[windows] = 0;
        for (int64_t i = 0; i < side * side; i++) {
            int64_t y = window / wide * side + i / side, x = window % wide * side + i % side;
            if (y >= down || x >= across)
                continue;
            order[n++] = y * across + x;
            lengths[windows]++;
        }
    }
    assert_int_equal(n, down * across);
    return windows;
}

/* Compares the tables of one item of each grid, all in one chunk, with that order. */
TEST(rows_are_in_window_order)
{
    static int64_t order[MOST_ROWS], lengths[MOST_ROWS];
    const struct qv_capacity capacity = { .patches = MOST_ROWS, .segments = 64, .windows = 400 };
    struct qv_tables t = { 0 };
    qv_item items[N_GRIDS] = { 0 };
    for (int i = 0; i < N_GRIDS; i++)
        memcpy(items[i].grid_thw, grids[i], sizeof grids[i]);
    assert_ok(qv_tables_open(&capacity, &config, &t, ERR));
    qv_tables_fill(&t, &capacity, &config, QV_F32, items, N_GRIDS);
    int64_t cell = 0, window = 0, segment = 0;
    for (int i = 0; i < N_GRIDS; i++) {
        const int64_t *g = grids[i], down = g[1] / 2, across = g[2] / 2;
        const int n = padded_windows(down, across, 4, order, lengths);
        for (int64_t pair = 0; pair < g[0]; pair++, segment++) {
            assert_int_equal(t.segments[segment], 4 * cell);
            assert_int_equal(t.segments[capacity.segments + 1 + segment], g[1] * g[2]);
            for (int64_t j = 0, at = cell; j < n; j++) {
                if (!lengths[j]) /* This window is padding. */
                    continue;
                assert_int_equal(t.windows[window], 4 * at);
                assert_int_equal(t.windows[capacity.windows + 1 + window], 4 * lengths[j]);
                assert_int_equal(t.windows[2 * (capacity.windows + 1) + window], 4 * at * 240);
                assert_int_equal(t.windows[3 * (capacity.windows + 1) + window], 4 * at * 80);
                at += lengths[j];
                window++;
            }
            for (int64_t j = 0; j < down * across; j++) {
                const int64_t from = cell + order[j], to = cell + j;
                assert_int_equal(t.back[from], to); /* The token is put back to where it was. */
                for (int64_t k = 0; k < 4; k++) {
                    const struct qv_coords *c = &t.coords[4 * to + k];
                    assert_int_equal(t.order[4 * to + k], 4 * from + k);
                    assert_int_equal(c->item, i);
                    assert_int_equal(c->pair, pair);
                    assert_int_equal(c->row, order[j] / across * 2 + k / 2);
                    assert_int_equal(c->col, order[j] % across * 2 + k % 2);
                }
            }
            cell += down * across;
        }
    }
    assert_int_equal(t.n_windows, window);
    for (int64_t i = 0; i < t.n_windows; i++)
        assert_in_range(t.windows[capacity.windows + 1 + i], 4, 64);
    for (int64_t i = t.n_windows; i <= capacity.windows; i++) { /* The slots beyond are empty. */
        assert_int_equal(t.windows[i], 4 * cell);
        assert_int_equal(t.windows[capacity.windows + 1 + i], 0);
    }
    qv_tables_close(&t);
}

/* ---- what a patch reaches -------------------------------------------------------------------- */

/* The golden tower has windows of 2x2 merged cells, 4x4 patches, and full attention in block 1 of
 * 3. */
enum { PAIRS = 2, DOWN = 6, ACROSS = 10, PAIR_ROWS = DOWN * ACROSS, LAYERS = 3, MOST_WIDTH = 64 };

struct seen {
    float rows[LAYERS][PAIRS * PAIR_ROWS * MOST_WIDTH]; /* The outputs of the blocks, in window
                                                         * order. */
    int64_t cols;
};

static void
see(void *user, const char *name, const float *rows, int64_t n_rows, int64_t n_cols)
{
    struct seen *s = user;
    int block;
    if (sscanf(name, "blocks.%d", &block) != 1)
        return;
    assert_in_range(block, 0, LAYERS - 1);
    assert_int_equal(n_rows, PAIRS * PAIR_ROWS);
    s->cols = n_cols;
    memcpy(s->rows[block], rows, (size_t)(n_rows * n_cols) * sizeof *rows);
}

/* Returns whether a row of a block's output differs. */
static bool
differs(const struct seen *a, const struct seen *b, int block, int64_t row)
{
    const size_t bytes = (size_t)a->cols * sizeof(float);
    return memcmp(a->rows[block] + row * a->cols, b->rows[block] + row * a->cols, bytes) != 0;
}

/* A patch of pair 0 is changed. After a block with windows its window differs and nothing else;
 * after a block with full attention its frame pair differs, and the next pair does not. */
TEST(a_patch_reaches_its_window_and_then_its_pair)
{
    static struct seen before, after;
    EACH_BACKEND (b) {
        struct tiny t = tiny_open_family(QV_GOLDEN "/qwen2_5_vl", *b, QV_F32, 2);
        uint8_t *frames = tiny_frames(&t, 2 * PAIRS, DOWN, ACROSS, 1);
        const qv_item clip = { .data = frames, .grid_thw = { PAIRS, DOWN, ACROSS } };
        qv_plan_options o = { .capacity.patches = PAIRS * PAIR_ROWS,
                              .capacity.windows = 64,
                              .hook = see };
        size_t bytes;
        o.hook_user = &before;
        float *first = tiny_encode(&t, QV_INPUT_FRAMES, &clip, 1, &o, &bytes);
        /* The byte at (5, 9) in patches of 2x2 pixels lies in the last window of the last row of
         * windows, which has 2x2 patches of the grid's 6x10. */
        frames[((5 * 2 + 1) * ACROSS * 2 + 9 * 2 + 1) * 3] ^= 0x80;
        o.hook_user = &after;
        float *second = tiny_encode(&t, QV_INPUT_FRAMES, &clip, 1, &o, &bytes);
        for (int64_t row = 0; row < PAIRS * PAIR_ROWS; row++) {
            const bool last_window = row >= PAIR_ROWS - 4 && row < PAIR_ROWS;
            assert_int_equal(differs(&before, &after, 0, row), last_window);
            assert_int_equal(differs(&before, &after, 1, row), row < PAIR_ROWS);
            assert_int_equal(differs(&before, &after, 2, row), row < PAIR_ROWS);
        }
        const size_t half = bytes / 2;
        assert_true(memcmp(first, second, half) != 0);
        assert_memory_equal((char *)first + half, (char *)second + half, half);
    }
}

/* The size of the pieces of a gated MLP, which follows the device's cache, does not change the
 * tokens. */
TEST(pieces_of_a_gated_mlp_are_not_seen)
{
    enum { MANY = 8, PIECE = 128 };
    EACH_BACKEND (b) {
        float *tokens[2];
        size_t bytes;
        for (int cut = 0; cut < 2; cut++) {
            struct tiny t = tiny_open_family(QV_GOLDEN "/qwen2_5_vl", *b, QV_F32, 2);
            uint8_t *frames = tiny_frames(&t, 2 * MANY, DOWN, ACROSS, 3);
            const qv_item clip = { .data = frames, .grid_thw = { MANY, DOWN, ACROSS } };
            t.ctx->caps.gated_rows = cut ? PIECE : 0; /* The MLP has 480. */
            tokens[cut] = tiny_encode(&t, QV_INPUT_FRAMES, &clip, 1, NULL, &bytes);
        }
        for (size_t i = 0; i < bytes / sizeof **tokens; i++)
            assert_true(fabs((double)tokens[0][i] - tokens[1][i]) < 1e-5);
        if (!strcmp(*b, "ref"))
            assert_memory_equal(tokens[0], tokens[1], bytes);
    }
}

/* The output of a transient call that no call has read yet. */
struct unread {
    struct tiny *t;
    struct qv_buffer y;
    size_t bytes;
    int n; /* outputs that were lost */
};

/* Loses the output once the next call is done. */
static void
lose(void *user, const struct qv_step *step, const struct qv_call *call)
{
    struct unread *u = user;
    const int y = qv_op_output(&step->op);
    if (u->bytes) {
        void *lost = test_alloc(u->bytes);
        memset(lost, 0xff, u->bytes);
        assert_ok(u->t->ctx->backend->upload(u->t->ctx->dev, u->y, lost, u->bytes, ERR));
        u->bytes = 0;
        u->n++;
    }
    if (call->transient) {
        u->y = call->operands[y];
        u->bytes = qv_op_view(&step->op, y).bytes;
    }
}

/* Only the next call reads the output of a transient call, which is fc1 of a gated MLP. */
TEST(only_the_next_call_reads_a_transient_output)
{
    enum { MANY = 8, PIECE = 128, PIECES = 4 };
    EACH_BACKEND (b) {
        struct tiny t = tiny_open_family(QV_GOLDEN "/qwen2_5_vl", *b, QV_F32, 2);
        uint8_t *frames = tiny_frames(&t, 2 * MANY, DOWN, ACROSS, 3);
        const qv_item clip = { .data = frames, .grid_thw = { MANY, DOWN, ACROSS } };
        const qv_plan_options o = { .capacity.patches = MANY * PAIR_ROWS, .capacity.windows = 64 };
        struct unread unread = { .t = &t };
        size_t bytes;
        t.ctx->caps.gated_rows = PIECE; /* The MLP has 480. */
        qv_plan *plan = tiny_plan(&t, &o);
        const void *right = tiny_chunk(&t, plan, &clip, 1, QV_F32, &bytes);
        plan->probe = lose;
        plan->probe_user = &unread;
        const void *tokens = tiny_chunk(&t, plan, &clip, 1, QV_F32, &bytes);
        assert_memory_equal(right, tokens, bytes);
        assert_int_equal(unread.n, LAYERS * PIECES);
    }
}

/* A chunk has room for a limited number of windows, and the error says so. */
TEST(more_windows_than_there_is_room_for_are_refused)
{
    struct tiny t = tiny_open_family(QV_GOLDEN "/qwen2_5_vl", "ref", QV_F32, 1);
    uint8_t *frames = tiny_frames(&t, 2, 8, 8, 3);
    const qv_plan_options o = { .capacity.patches = 128,
                                .capacity.segments = 8,
                                .capacity.windows = 3 };
    const qv_item item = { .data = frames, .grid_thw = { 1, 8, 8 } };
    expect_error(QV_EINVAL, "brings the chunk to 4 windows; this plan's chunks hold 3",
                 qv_plan_push(tiny_plan(&t, &o), &item, 1, ERR));
}
