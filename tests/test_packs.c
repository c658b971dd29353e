/* SPDX-License-Identifier: MIT */
/*
 * Tests packs: an item's tokens have the same bits alone in a chunk and among others, wherever it
 * is, whatever the others hold, and whatever was in memory before.
 */

#include "test.h"

#include <math.h>

#include "backends.h"
#include "model/plan.h"
#include "tiny.h"

static const struct {
    int64_t grid_thw[3];
    bool is_image;
} mix[] = {
    { { 1, 2, 2 }, false },  { { 3, 2, 4 }, false }, { { 1, 4, 6 }, true },  { { 2, 4, 2 }, false },
    { { 1, 6, 6 }, true },   { { 2, 2, 6 }, true },  { { 1, 8, 2 }, true },  { { 2, 2, 2 }, false },
    { { 1, 2, 10 }, false }, { { 1, 2, 2 }, true },  { { 3, 4, 2 }, false }, { { 1, 4, 4 }, true },
    { { 1, 6, 4 }, false },
};
enum { N = sizeof mix / sizeof *mix, ROWS = 256, SEGMENTS = 24 };

static int64_t
rows_of(const qv_item *item)
{
    return item->grid_thw[0] * item->grid_thw[1] * item->grid_thw[2];
}

/* A plan, the items of the mix, and what each of them gives alone. */
struct pack {
    struct tiny t;
    qv_dtype output;
    qv_plan *plan;
    qv_item items[N], spoilt[N]; /* spoilt: items of NaN and infinity */
    char *alone[N];
};

static void *
patches(int64_t n, uint32_t seed)
{
    float *p = test_alloc((size_t)n * sizeof *p);
    for (int64_t i = 0; i < n; i++)
        p[i] = (float)(test_random(&seed) >> 8) / 0x1p23f - 1;
    return p;
}

/* Returns spoilt data. Frames cannot be NaN, so all of their bits are set. */
static const void *
spoilt_data(const struct pack *p, qv_input input, int i)
{
    static const float values[] = { NAN, INFINITY, -INFINITY };
    int64_t n = rows_of(&p->items[i]) * p->t.info.row_dim;
    float *data = test_alloc((size_t)n * sizeof *data);
    memset(data, 0xff, (size_t)n * sizeof *data);
    for (int64_t j = 0; j < n && input == QV_INPUT_PATCHES; j++)
        data[j] = values[i % 3];
    return data;
}

static struct pack
pack_open_family(const char *dir, const char *backend, qv_dtype dtype, qv_input input,
                 qv_dtype output)
{
    struct pack p = { .t = tiny_open_family(dir, backend, dtype, 2), .output = output };
    const qv_plan_options o = { .capacity.patches = ROWS,
                                .capacity.segments = SEGMENTS,
                                .capacity.windows = ROWS / 4,
                                .input = input,
                                .output = output };
    size_t bytes;
    p.plan = tiny_plan(&p.t, &o);
    for (int i = 0; i < N; i++) {
        const int64_t *g = mix[i].grid_thw;
        qv_item *item = &p.items[i];
        item->is_image = mix[i].is_image;
        memcpy(item->grid_thw, g, sizeof item->grid_thw);
        item->data = input == QV_INPUT_FRAMES
                         ? tiny_frames(&p.t, item->is_image ? 1 : 2 * g[0], g[1], g[2], (uint32_t)i)
                         : patches(rows_of(item) * p.t.info.row_dim, (uint32_t)i);
        p.spoilt[i] = *item;
        p.spoilt[i].data = spoilt_data(&p, input, i);
    }
    for (int i = 0; i < N; i++)
        p.alone[i] = tiny_chunk(&p.t, p.plan, &p.items[i], 1, output, &bytes);
    return p;
}

static struct pack
pack_open(const char *backend, qv_dtype dtype, qv_input input, qv_dtype output)
{
    return pack_open_family(QV_GOLDEN "/qwen3_vl_moe", backend, dtype, input, output);
}

/* Checks one chunk with items of the mix by number; n + number is item `number` spoilt. All
 * outputs of the others are compared. */
static void
check_chunk(struct pack *p, const int *order, size_t n, const char *what)
{
    qv_item items[N] = { 0 };
    size_t bytes, row = (size_t)p->t.info.out_hidden * (p->output == QV_BF16 ? 2 : 4);
    int64_t outputs = 1 + p->t.info.n_deepstack, total = 0, at = 0;
    for (size_t i = 0; i < n; i++) {
        items[i] = order[i] < N ? p->items[order[i]] : p->spoilt[order[i] - N];
        total += rows_of(&items[i]) / 4;
    }
    char *all = tiny_chunk(&p->t, p->plan, items, n, p->output, &bytes);
    for (size_t i = 0; i < n; i++) {
        int64_t tokens = rows_of(&items[i]) / 4;
        for (int64_t j = 0; j < outputs && order[i] < N; j++)
            if (!tiny_same(all + (size_t)(j * total + at) * row,
                           p->alone[order[i]] + (size_t)(j * tokens) * row,
                           (size_t)(tokens * p->t.info.out_hidden), p->output))
                fail_msg("%s: item %d has other bits as number %zu of %zu, output %d", what,
                         order[i], i, n, (int)j);
        at += tokens;
    }
}

/* Fills all memory of the chunks with NaN, and with indices that lead nowhere, as another plan
 * may leave them. */
static void
poison(const struct pack *p)
{
    const struct qv_arena *arena = p->plan->program.arena;
    size_t bytes = (size_t)arena->n_chunks * arena->own_bytes + arena->work_bytes;
    void *nan = test_alloc(bytes);
    memset(nan, 0xff, bytes);
    assert_ok(p->t.ctx->backend->upload(p->t.ctx->dev, (struct qv_buffer){ arena->memory, 0 }, nan,
                                        bytes, ERR));
}

static void
check_pack(struct pack p)
{
    int forward[N], reverse[N], order[N];
    for (int i = 0; i < N; i++) {
        forward[i] = i;
        reverse[i] = N - 1 - i;
    }
    check_chunk(&p, forward, N, "in order");
    check_chunk(&p, reverse, N, "in reverse");
    for (int turn = 1; turn < N; turn += 3) {
        for (int i = 0; i < N; i++)
            order[i] = (i * 5 + turn) % N;
        check_chunk(&p, order, (size_t)(N - turn), "in another order");
    }
    for (int odd = 0; odd < 2; odd++) {
        for (int i = 0; i < N; i++)
            order[i] = i % 2 == odd ? N + i : i;
        check_chunk(&p, order, N, "next to NaN");
    }
    for (int i = 0; i < N; i++)
        order[i] = N + i;
    check_chunk(&p, order, N, "all of them NaN");
    check_chunk(&p, &forward[0], 1, "after NaN");
    check_chunk(&p, reverse, N, "after NaN");
    poison(&p);
    check_chunk(&p, &forward[N - 1], 1, "in memory of NaN");
    poison(&p);
    check_chunk(&p, forward, N, "in memory of NaN");
}

TEST(neighbours_change_no_bit)
{
    EACH_RUN (on, type) {
        check_pack(pack_open(*on, *type, QV_INPUT_PATCHES, QV_F32));
        check_pack(pack_open(*on, *type, QV_INPUT_FRAMES, QV_BF16));
    }
}

/* This also holds where rows are in window order, and a gated MLP's width is odd. */
TEST(neighbours_change_no_bit_with_windows)
{
    EACH_RUN (on, type)
        check_pack(
            pack_open_family(QV_GOLDEN "/qwen2_5_vl", *on, *type, QV_INPUT_PATCHES, QV_BF16));
}

/* This also holds where positions are interpolated from sixteen neighbours, and a token's
 * patches are one row of a GEMM. */
TEST(neighbours_change_no_bit_of_glm)
{
    EACH_RUN (on, type)
        check_pack(pack_open_family(QV_GOLDEN "/glm4v", *on, *type, QV_INPUT_FRAMES, QV_F32));
}

/* qv_encode with several items gives each what it gives alone, in the same capacity. */
TEST(several_are_each_alone)
{
    EACH_BACKEND (on) {
        struct pack p = pack_open(*on, QV_F32, QV_INPUT_FRAMES, QV_F32);
        enum { MANY = 3 * N };
        const qv_plan_options o = { .capacity.patches = ROWS, .capacity.segments = SEGMENTS };
        size_t bytes, row = (size_t)p.t.info.out_hidden * 4;
        qv_item items[MANY];
        int64_t total = 0, at = 0;
        for (int i = 0; i < MANY; i++) {
            items[i] = p.items[i * 7 % N];
            total += rows_of(&items[i]) / 4;
        }
        char *all = tiny_encode(&p.t, QV_INPUT_FRAMES, items, MANY, &o, &bytes);
        for (int i = 0; i < MANY; i++) {
            int64_t tokens = rows_of(&items[i]) / 4;
            for (int64_t j = 0; j < 1 + p.t.info.n_deepstack; j++)
                assert_true(tiny_same(all + (size_t)(j * total + at) * row,
                                      p.alone[i * 7 % N] + (size_t)(j * tokens) * row,
                                      (size_t)(tokens * p.t.info.out_hidden), QV_F32));
            at += tokens;
        }
    }
}

/* Runs a check on packs of every backend, in every dtype that the backend has. */
static void
for_each_pack(void (*check)(struct pack *p, const struct qv_capacity_bits *bits, bool is_ref))
{
    EACH_RUN (on, type) {
        struct pack p = pack_open(*on, *type, QV_INPUT_FRAMES, QV_F32);
        const struct qv_capacity_bits bits =
            qv_capacity_bits(&p.t.ctx->caps, *type, p.t.info.merge_size, p.t.info.head_dim);
        check(&p, &bits, !strcmp(*on, "ref"));
    }
}

static void
check_alone(struct pack *p, const struct qv_capacity_bits *bits, bool is_ref)
{
    int said = 0;
    for (int i = 0; i < N; i++) {
        struct qv_capacity own =
            qv_capacity_alone(&p->t.ctx->caps, &p->t.model->config, bits, p->items[i].grid_thw);
        size_t bytes;
        if (!qv_capacity_same_bits(bits, &own, &p->plan->capacity))
            continue;
        char *alone = tiny_encode(&p->t, QV_INPUT_FRAMES, &p->items[i], 1, NULL, &bytes);
        assert_memory_equal(alone, p->alone[i], bytes);
        said++;
    }
    if (is_ref)
        assert_int_equal(said, N);
}

/* In the capacity that an item takes by itself, it gives what it gives in a pack, if `info` says
 * so. */
TEST(capacities_change_no_bit_unsaid)
{
    for_each_pack(check_alone);
}

static void
check_few(struct pack *p, const struct qv_capacity_bits *bits, bool is_ref)
{
    enum { FEW = 3 };
    const struct qv_caps *caps = &p->t.ctx->caps;
    const struct qv_capacity full = qv_capacity_pack(caps, &p->t.model->config, 0);
    int64_t rows = 0, segments = 0;
    size_t n, n_full;
    for (int i = 0; i < FEW; i++) {
        rows += rows_of(&p->items[i]);
        segments += p->items[i].grid_thw[0];
    }
    const struct qv_capacity bucket = qv_capacity_pack(caps, &p->t.model->config, rows);
    assert_true(bucket.patches < full.patches && segments <= bucket.segments);
    const bool small = qv_capacity_same_bits(bits, &bucket, &full);
    char *few = tiny_encode(&p->t, QV_INPUT_FRAMES, p->items, FEW, NULL, &n);
    assert_int_equal(p->t.model->idle[0]->capacity.patches, small ? bucket.patches : full.patches);
    char *in_full = tiny_encode(&p->t, QV_INPUT_FRAMES, p->items, FEW,
                                &(qv_plan_options){ .capacity.patches = full.patches }, &n_full);
    assert_int_equal(p->t.model->idle[0]->capacity.patches, full.patches);
    assert_int_equal(n, n_full);
    assert_memory_equal(few, in_full, n);
    assert_true(small || !is_ref);
}

/* Items that fit into one chunk take the smallest bucket if that changes no bit, and otherwise a
 * full chunk. */
TEST(few_take_the_smallest_bucket)
{
    for_each_pack(check_few);
}

/* How many segments and windows fit into a chunk does not change its bits. On devices where they
 * cost nothing, more fit, and the capacity is described as before. */
static void
check_room(struct pack *p, const struct qv_capacity_bits *bits, bool is_ref)
{
    static const int64_t rooms[] = { 3, 8, 9, 40, ROWS / 4, ROWS };
    for (size_t room = 0; room < sizeof rooms / sizeof *rooms; room++) {
        const qv_plan_options o = { .capacity.patches = ROWS,
                                    .capacity.segments = rooms[room],
                                    .capacity.windows = rooms[room] > 8 ? rooms[room] : 0,
                                    .output = p->output };
        qv_plan *plan = tiny_plan(&p->t, &o);
        for (int i = 0; i < N; i++) {
            size_t bytes;
            char *tokens = tiny_chunk(&p->t, plan, &p->items[i], 1, p->output, &bytes);
            if (memcmp(tokens, p->alone[i], bytes) != 0)
                fail_msg("item %d has other bits where there is room for %lld segments", i,
                         (long long)rooms[room]);
        }
    }
}

TEST(room_for_segments_changes_no_bit)
{
    for_each_pack(check_room);
}

static void
read_table(const struct pack *p, int slot, void *out, size_t bytes)
{
    const struct qv_download part = { out, qv_program_place(&p->plan->program, 0, slot), bytes };
    assert_ok(p->t.ctx->backend->download(p->t.ctx->dev, &part, 1, ERR));
}

/* Checks every row of the chunk, also those beyond its only item's. */
static void
check_tables(const struct pack *p, const qv_item *item)
{
    const size_t rows = (size_t)p->plan->capacity.patches;
    struct qv_coords *coords = test_ends(calloc(rows, sizeof *coords), free);
    int32_t(*index)[4] = test_ends(calloc(rows, sizeof *index), free);
    struct qv_item_place place;
    read_table(p, SLOT_COORDS, coords, rows * sizeof *coords);
    read_table(p, SLOT_INDEX, index, rows * sizeof *index);
    read_table(p, SLOT_PLACES, &place, sizeof place);
    for (size_t r = 0; r < rows; r++) {
        const struct qv_coords *c = &coords[r];
        int64_t at = place.first + (int64_t)c->pair * place.pair + place.frame +
                     (int64_t)c->row * place.grid_w + c->col;
        assert_int_equal(c->item, 0);
        assert_in_range(at, 0, rows_of(item) * 2 - 1);
        assert_in_range(c->row, 0, QV_MOST_POSITIONS - 1);
        assert_in_range(c->col, 0, QV_MOST_POSITIONS - 1);
        for (int i = 0; i < 4; i++)
            assert_in_range(index[r][i], 0, p->t.model->config.n_positions - 1);
    }
}

/* Rows beyond a chunk's items read some valid place of the input, whatever earlier chunks of
 * this plan or another left behind. Otherwise they would read outside. */
TEST(rows_beyond_the_fill_stay_inside)
{
    static const qv_item items[] = { { .grid_thw = { 1, 126, 2 }, .is_image = true },
                                     { .grid_thw = { 1, 2, 60 } },
                                     { .grid_thw = { 24, 2, 2 } },
                                     { .grid_thw = { 2, 8, 6 } } };
    EACH_BACKEND (on) {
        struct pack p = pack_open(*on, QV_F32, QV_INPUT_FRAMES, QV_F32);
        uint8_t *frames = tiny_frames(&p.t, 2 * ROWS, 1, 1, 1);
        for (int i = 0; i < 8; i++) {
            qv_item item = items[i % 4];
            size_t bytes;
            item.data = frames;
            if (i > 4)
                poison(&p);
            for (int chunk = 0; chunk < p.plan->program.arena->n_chunks; chunk++)
                tiny_chunk(&p.t, p.plan, &item, 1, QV_F32, &bytes);
            check_tables(&p, &item);
        }
    }
}

/* ---- one memory for all plans ---------------------------------------------------------------- */

/* A plan's chunk is in progress while those of another are, and of a larger one that needs more
 * memory. */
TEST(plans_take_turns_in_one_memory)
{
    EACH_BACKEND (on) {
        struct pack p = pack_open(*on, QV_F32, QV_INPUT_FRAMES, QV_F32);
        qv_error err = { 0 };
        size_t bytes;
        qv_plan_info info;
        qv_plan_get_info(p.plan, &info);
        const qv_plan_options same = { .capacity.patches = info.capacity.patches,
                                       .capacity.segments = SEGMENTS + 1 };
        const qv_plan_options large = { .capacity.patches = 8 * p.t.ctx->caps.chunk_rows };
        qv_plan *other = tiny_plan(&p.t, &same);
        assert_ptr_equal(other->program.arena, p.plan->program.arena);
        for (int i = 0; i < info.chunks_ahead; i++)
            assert_ok(qv_plan_push(i % 2 ? other : p.plan, &p.items[i], 1, ERR));
        assert_int_equal(qv_plan_push(other, &p.items[2], 1, &err), QV_ESTATE);
        assert_non_null(strstr(err.text, "pull the oldest"));
        assert_int_equal(qv_plan_push(p.plan, &p.items[2], 1, &err), QV_ESTATE);
        qv_plan *larger = tiny_plan(&p.t, &large);
        assert_ptr_not_equal(larger->program.arena, p.plan->program.arena);
        assert_ok(qv_plan_push(larger, &p.items[3], 1, ERR));
        qv_plan *const order[] = { p.plan, other, larger };
        const int item[] = { 0, 1, 3 };
        for (int i = 0; i < 3; i++) {
            if (i == 1 && info.chunks_ahead < 2)
                continue;
            qv_tokens out = tiny_tokens(&p.t, &p.items[item[i]], 1, QV_F32, &bytes);
            assert_ok(qv_plan_pull(order[i], &out, ERR));
            if (i < 2) /* another capacity may have other kernels */
                assert_memory_equal(out.tokens, p.alone[item[i]], bytes);
        }
        test_end(other);
        test_end(larger);
        check_chunk(&p, (const int[]){ 4, 1, 2 }, 3, "after a larger plan");
    }
}

/* A plan that was freed is ready again at once, even if its chunk in progress was never pulled.
 * Memory grows only with the largest plan. */
TEST(a_plan_that_was_freed_is_ready_at_once)
{
    struct tiny t = tiny_open("ref", QV_F32, 1);
    const qv_plan_options o = { .capacity.patches = 32 },
                          dense = { .capacity.patches = 32, .capacity.segment_rows = 8 };
    uint8_t *frames = tiny_frames(&t, 2, 2, 2, 1);
    const qv_item item = { .data = frames, .grid_thw = { 1, 2, 2 } };
    size_t bytes;
    qv_plan *first = tiny_plan(&t, &o), *second = tiny_plan(&t, &dense);
    const qv_plan *was = first;
    const struct qv_arena *arena = first->program.arena;
    assert_ptr_equal(second->program.arena, arena);
    char *before = tiny_chunk(&t, first, &item, 1, QV_F32, &bytes);
    assert_ok(qv_plan_push(first, &item, 1, ERR));
    test_end(first);
    test_end(second);
    assert_int_equal(t.model->n_idle, 2);
    first = tiny_plan(&t, &o);
    assert_ptr_equal(first, was);
    assert_ptr_equal(first->program.arena, arena);
    assert_int_equal(t.model->n_idle, 1);
    char *after = tiny_chunk(&t, first, &item, 1, QV_F32, &bytes);
    assert_memory_equal(before, after, bytes);
    test_end(first);
    for (int64_t rows = 4; rows <= 64; rows += 4) { /* every bucket up to the device's own chunk */
        qv_plan *plan = tiny_plan(&t, &(qv_plan_options){ .capacity.patches = rows });
        assert_ptr_equal(plan->program.arena, arena);
        test_end(plan);
        assert_true(t.model->n_idle <= QV_IDLE_PLANS);
    }
    for (int64_t segments = 1; segments <= 2 * QV_IDLE_PLANS; segments++) {
        qv_plan *plan = tiny_plan(&t, &(qv_plan_options){ .capacity.patches = 16,
                                                          .capacity.segments = segments });
        test_end(plan);
        assert_true(t.model->n_idle <= QV_IDLE_PLANS);
    }
    assert_int_equal(t.model->n_idle, QV_IDLE_PLANS);
}

/* pixel_values that bf16 holds exactly give the same bits in f32 and in bf16, for several items
 * and for a clip that is cut into chunks. */
TEST(patches_in_bf16_are_those_in_f32)
{
    static const char *const families[] = { QV_GOLDEN "/qwen3_vl", QV_GOLDEN "/qwen2_5_vl" };
    const int64_t grids[][3] = { { 3, 6, 10 }, { 1, 4, 4 } };
    for (int i = 0; i < N_TEST_BACKENDS * 2 * N_TEST_DTYPES; i++) {
        const char *backend = test_backends[i / (2 * N_TEST_DTYPES)];
        const qv_dtype dtype = test_dtypes[i % N_TEST_DTYPES];
        if (!backend_is_here(backend) || !dtype_is_here(backend, dtype))
            continue;
        struct tiny t = tiny_open_family(families[i / N_TEST_DTYPES % 2], backend, dtype, 2);
        const int64_t n = (3 * 60 + 16) * t.info.row_dim;
        float *wide = test_alloc((size_t)n * sizeof *wide);
        uint16_t *narrow = test_alloc((size_t)n * sizeof *narrow);
        assert_true(wide && narrow);
        for (int64_t v = 0; v < n; v++) {
            qv_store(narrow, QV_BF16, v, (double)(v * 7919 % 511 - 255) / 255);
            wide[v] = (float)qv_load(narrow, QV_BF16, v);
        }
        const int64_t second = 3 * 60 * t.info.row_dim;
        for (int items = 1; items <= 2; items++) {
            qv_item f32[2] = { { .data = wide }, { .data = wide + second } };
            qv_item bf16[2] = { { .data = narrow }, { .data = narrow + second } };
            for (int item = 0; item < 2; item++) {
                memcpy(f32[item].grid_thw, grids[item], sizeof grids[item]);
                memcpy(bf16[item].grid_thw, grids[item], sizeof grids[item]);
            }
            size_t bytes;
            void *a = tiny_encode(&t, QV_INPUT_PATCHES, f32, (size_t)items, NULL, &bytes);
            void *b = tiny_encode(&t, QV_INPUT_PATCHES_BF16, bf16, (size_t)items, NULL, &bytes);
            assert_memory_equal(a, b, bytes);
        }
    }
}
