/* SPDX-License-Identifier: MIT */
/* What plans are made for, and what goes into a chunk: pure functions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "model/capacity.h"

/* Of backends as they are, and what could be. */
static const struct qv_caps devices[] = {
    { .chunk_rows = 64, .bucket_rows = 4, .least_rows = 4 },
    { .chunk_rows = 640, .bucket_rows = 16, .least_rows = 16 },
    { .chunk_rows = 2048, .bucket_rows = 32, .least_rows = 32 },
    { .chunk_rows = 6144, .bucket_rows = 128, .least_rows = 512 },
    { .chunk_rows = 6144, .pack_rows = 12288, .bucket_rows = 128, .least_rows = 512 },
    { .chunk_rows = 24576, .bucket_rows = 128, .least_rows = 512 },
    { .chunk_rows = 640, .bucket_rows = 16, .least_rows = 16, .free_segments = true },
};
static const struct qv_config plain = { .patch = 16, .merge = 2 };
enum { N_DEVICES = sizeof devices / sizeof *devices };
static const int64_t merges[] = { 1, 2, 3 };

static bool
fits(const struct qv_capacity *chunk, const struct qv_config *c, const int64_t grid_thw[3])
{
    const struct qv_capacity size = qv_capacity_of(c, grid_thw);
    return qv_capacity_fits(chunk, &size);
}

static void
buckets_are_a_ladder(void **state)
{
    (void)state;
    for (int d = 0; d < N_DEVICES; d++)
        for (int m = 0; m < 3; m++) {
            const struct qv_caps *caps = &devices[d];
            int64_t area = merges[m] * merges[m], before = 0, n = 0;
            int64_t step = (caps->bucket_rows + area - 1) / area * area;
            for (int64_t rows = 1; rows <= 70000; rows++) {
                int64_t bucket = qv_capacity_bucket(caps, merges[m], rows);
                assert_true(bucket >= rows && bucket >= caps->least_rows && bucket >= before);
                assert_true(bucket % area == 0 && bucket % step == 0);
                assert_int_equal(qv_capacity_bucket(caps, merges[m], bucket), bucket);
                if (before && bucket != before) /* the next one: an eighth, or the least step */
                    assert_true((bucket - before) * 8 <= before || bucket - before == step);
                n += bucket != before;
                before = bucket;
            }
            assert_true(n <= 120); /* a handful of plans for a device's chunk, and few beyond */
            assert_true(qv_capacity_bucket(caps, merges[m], 1 << 22) >= 1 << 22);
        }
}

static void
packs_have_room_for_usual_segments(void **state)
{
    (void)state;
    for (int d = 0; d < N_DEVICES; d++) {
        const struct qv_caps *caps = &devices[d];
        struct qv_capacity own = qv_capacity_pack(caps, &plain, 0);
        const int64_t wanted = caps->pack_rows ? caps->pack_rows : caps->chunk_rows;
        assert_true(own.rows >= wanted && own.rows * 8 <= wanted * 9);
        assert_int_equal(own.segment_rows, 0);
        for (int64_t rows = 1; rows < 40000; rows += 37) {
            struct qv_capacity c = qv_capacity_pack(caps, &plain, rows);
            assert_int_equal(c.rows, qv_capacity_bucket(caps, 2, rows));
            assert_true(c.segments >= 8 && c.segments * 256 >= c.rows);
        }
    }
}

/* The smallest bucket that serves, for an item that no other shares it with: it fits, in as many chunks
 * as there must be. */
static void
an_item_alone_has_its_own_bucket(void **state)
{
    (void)state;
    static const int64_t sides[] = { 2, 4, 14, 38, 96, 200 }, pairs[] = { 1, 2, 7, 64, 384 };
    for (int d = 0; d < N_DEVICES; d++)
        for (int i = 0; i < 6 * 6 * 5; i++) {
            const int64_t g[3] = { pairs[i / 36], sides[i / 6 % 6], sides[i % 6] };
            const struct qv_caps *caps = &devices[d];
            struct qv_capacity c = qv_capacity_alone(caps, &plain, g);
            int64_t segment = g[1] * g[2], rows = g[0] * segment;
            int64_t chunk = qv_capacity_bucket(caps, 2, caps->chunk_rows);
            assert_true(c.segments >= 1 && c.rows >= segment);
            if (rows <= chunk) {
                assert_int_equal(c.rows, qv_capacity_bucket(caps, 2, rows));
                assert_int_equal(c.segment_rows, 0);
                assert_true(c.segments >= g[0] && fits(&c, &plain, g));
            } else {
                assert_int_equal(c.segment_rows, segment);
                assert_int_equal(c.rows, c.segments * segment);
                assert_true(c.rows <= chunk || c.segments == 1);
                assert_true(c.rows + segment > chunk); /* no smaller than must be */
            }
        }
}

static void
capacities_that_agree_are_known(void **state)
{
    (void)state;
    struct qv_caps caps = { .chunk_rows = 6144,
                            .bucket_rows = 128,
                            .least_rows = 512,
                            .same_f32 = { QV_NOT_SEEN, 0 },
                            .same_bf16 = { 512, 64 } };
    const struct qv_capacity small = { .rows = 1920, .segments = 20 },
                             enough = { .rows = 2048, .segments = 21 },
                             pack = { .rows = 6144, .segments = 64 },
                             dense = { .rows = 6080, .segments = 8, .segment_rows = 760 };
    struct qv_capacity_bits bits = qv_capacity_bits(&caps, QV_BF16, 2, 64);
    assert_int_equal(bits.rows, 2048); /* of 512 tokens */
    assert_true(qv_capacity_same_bits(&bits, &enough, &pack));
    assert_true(qv_capacity_same_bits(&bits, &dense, &pack));
    assert_false(qv_capacity_same_bits(&bits, &small, &pack));
    assert_false(qv_capacity_same_bits(&bits, &pack, &small));
    assert_true(qv_capacity_same_bits(&bits, &small, &small));
    bits = qv_capacity_bits(&caps, QV_BF16, 2, 72);
    assert_true(qv_capacity_same_bits(&bits, &enough, &pack));
    assert_false(qv_capacity_same_bits(&bits, &dense, &pack));
    assert_true(qv_capacity_same_bits(&bits, &dense, &dense));
    bits = qv_capacity_bits(&caps, QV_F32, 2, 72);
    assert_false(qv_capacity_same_bits(&bits, &enough, &pack));
    assert_true(qv_capacity_same_bits(&bits, &pack,
                                      &(struct qv_capacity){ .rows = 6144, .segments = 512 }));
    caps.same_bf16.gemm_rows = 128; /* of which the least bucket has as many */
    bits = qv_capacity_bits(&caps, QV_BF16, 2, 64);
    assert_true(!bits.rows && qv_capacity_same_bits(&bits, &small, &pack));
    caps.bits_by_place = true;
    bits = qv_capacity_bits(&caps, QV_BF16, 2, 64);
    assert_false(qv_capacity_same_bits(&bits, &pack, &pack));
}

static void
sizes_are_compared_and_counted(void **state)
{
    (void)state;
    const qv_capacity chunk = { .rows = 100, .segments = 7, .segment_rows = 8, .windows = 12 };
    qv_capacity others[4] = { chunk, chunk, chunk, chunk };
    others[0].rows = others[1].segments = others[2].segment_rows = others[3].windows = 1;
    assert_true(qv_capacity_equal(&chunk, &(qv_capacity){ 100, 7, 8, 12 }));
    for (int i = 0; i < 4; i++)
        assert_false(qv_capacity_equal(&chunk, &others[i]));
    assert_int_equal(qv_capacity_fits(&chunk, &(qv_capacity){ .rows = 10, .segments = 1 }), 7);
    assert_int_equal(qv_capacity_fits(&chunk, &(qv_capacity){ .rows = 30, .segments = 1 }), 3);
    assert_int_equal(qv_capacity_fits(&chunk,
                                      &(qv_capacity){ .rows = 1, .segments = 1, .windows = 5 }),
                     2);
    assert_int_equal(qv_capacity_fits(&chunk, &(qv_capacity){ .rows = 101, .segments = 1 }), 0);
    assert_int_equal(qv_capacity_fits(&(qv_capacity){ .rows = -30 }, &(qv_capacity){ .rows = 10 }),
                     0);
}

static void
small_is_what_fits(void **state)
{
    (void)state;
    const struct qv_capacity pack = { .rows = 640, .segments = 8 };
    assert_true(fits(&pack, &plain, (const int64_t[]){ 1, 20, 32 }));
    assert_false(fits(&pack, &plain, (const int64_t[]){ 1, 20, 34 }));
    assert_true(fits(&pack, &plain, (const int64_t[]){ 8, 2, 2 }));
    assert_false(fits(&pack, &plain, (const int64_t[]){ 9, 2, 2 }));
}

/* ---- packing --------------------------------------------------------------------------------- */

/* Python's random.seed(0), (randrange(8, 40) * 2, randrange(8, 40) * 2), 64 times. */
static const int64_t images[64][2] = {
    { 64, 68 }, { 20, 48 }, { 78, 66 }, { 54, 76 }, { 60, 42 }, { 32, 52 }, { 32, 28 }, { 48, 34 },
    { 54, 28 }, { 24, 58 }, { 76, 28 }, { 60, 70 }, { 56, 42 }, { 76, 72 }, { 48, 22 }, { 16, 26 },
    { 66, 16 }, { 78, 58 }, { 46, 56 }, { 24, 40 }, { 44, 46 }, { 34, 72 }, { 26, 26 }, { 56, 78 },
    { 28, 54 }, { 52, 30 }, { 58, 42 }, { 52, 72 }, { 26, 64 }, { 56, 46 }, { 52, 38 }, { 40, 38 },
    { 20, 48 }, { 76, 24 }, { 26, 32 }, { 34, 20 }, { 26, 66 }, { 50, 46 }, { 42, 68 }, { 50, 72 },
    { 78, 60 }, { 26, 56 }, { 30, 78 }, { 58, 40 }, { 46, 18 }, { 50, 30 }, { 44, 62 }, { 36, 58 },
    { 70, 22 }, { 28, 34 }, { 44, 20 }, { 24, 18 }, { 30, 40 }, { 30, 66 }, { 26, 62 }, { 30, 20 },
    { 18, 40 }, { 38, 30 }, { 76, 42 }, { 22, 18 }, { 70, 28 }, { 48, 24 }, { 44, 24 }, { 54, 60 },
};

/* Chunk after chunk as an encoder does; each item goes once, the oldest with the next chunk. Rows of
 * all chunks but the last, over those that they have room for. */
static double
fill_of(const struct qv_capacity *capacity, const qv_capacity *items, size_t n)
{
    enum { MOST = 4096 };
    static bool gone[MOST];
    static qv_capacity waiting[QV_PACK_ITEMS];
    static size_t numbers[QV_PACK_ITEMS];
    size_t chosen[QV_PACK_ITEMS], n_waiting = 0, next = 0, chunks = 0;
    int64_t full = 0, last = 0;
    assert_true(n <= MOST);
    memset(gone, 0, sizeof gone);
    while (next < n || n_waiting) {
        while (next < n && n_waiting < QV_PACK_ITEMS)
            numbers[n_waiting] = next, waiting[n_waiting++] = items[next++];
        size_t used = qv_pack_choose(capacity, waiting, n_waiting, chosen);
        int64_t rows = 0, segments = 0;
        assert_true(used >= 1 && chosen[0] == 0);
        for (size_t i = 0; i < used; i++) {
            assert_true(chosen[i] < n_waiting && (i == 0 || chosen[i] > chosen[i - 1]));
            rows += waiting[chosen[i]].rows;
            segments += waiting[chosen[i]].segments;
            assert_false(gone[numbers[chosen[i]]]);
            gone[numbers[chosen[i]]] = true;
        }
        assert_true(rows <= capacity->rows && segments <= capacity->segments);
        for (size_t i = used; i-- > 0;) {
            const size_t at = chosen[i], behind = --n_waiting - at;
            memmove(&waiting[at], &waiting[at + 1], behind * sizeof *waiting);
            memmove(&numbers[at], &numbers[at + 1], behind * sizeof *numbers);
        }
        full += last;
        last = rows;
        chunks++;
    }
    for (size_t i = 0; i < n; i++)
        assert_true(gone[i]);
    return chunks > 1 ? (double)full / (double)(chunks - 1) / (double)capacity->rows : 1;
}

static void
images_of_many_sizes_fill_chunks(void **state)
{
    (void)state;
    static const struct {
        int64_t rows;
        double fill;
    } cases[] = { { 6144, 0.97 }, { 24576, 0.99 }, { 32768, 0.99 } };
    qv_capacity waiting[64];
    for (size_t i = 0; i < 64; i++)
        waiting[i] = (qv_capacity){ .rows = images[i][0] * images[i][1], .segments = 1 };
    for (size_t i = 0; i < 3; i++) {
        struct qv_capacity c = qv_capacity_pack(&devices[3], &plain, cases[i].rows);
        assert_int_equal(c.rows, cases[i].rows);
        double fill = fill_of(&c, waiting, 64);
        printf("%lld rows: %.3f full\n", (long long)c.rows, fill);
        assert_true(fill >= cases[i].fill);
    }
}

/* As many as there is room for, which are more in a larger chunk. */
static void
small_images_fill_large_chunks(void **state)
{
    (void)state;
    enum { N = 1000 };
    static qv_capacity waiting[N];
    for (size_t i = 0; i < N; i++)
        waiting[i] = (qv_capacity){ .rows = 256, .segments = 1 };
    for (int d = 3; d < N_DEVICES; d++) {
        struct qv_capacity c = qv_capacity_pack(&devices[d], &plain, 0);
        if (c.rows % 256 == 0)
            assert_true(fill_of(&c, waiting, N) == 1);
    }
}

/* Where segments are free rows alone bound a chunk, of windows too; which items are packed is as
 * elsewhere. */
static void
free_segments_fill_chunks(void **state)
{
    (void)state;
    enum { N = 1000 };
    static qv_capacity waiting[N];
    static const struct qv_config windowed = { .patch = 14, .merge = 2, .window = 112 };
    static const int64_t grids[][2] = { { 4, 6 },   { 8, 8 },   { 6, 14 }, { 10, 10 },
                                        { 12, 18 }, { 16, 20 }, { 20, 20 } };
    const struct qv_caps *free = &devices[N_DEVICES - 1];
    struct qv_caps costly = *free;
    costly.free_segments = false;
    for (size_t family = 0; family < 2; family++) {
        const struct qv_config *c = family ? &windowed : &plain;
        const struct qv_capacity pack = qv_capacity_pack(free, c, 0);
        const struct qv_capacity most_of_one = qv_capacity_pack_item(free, c, 0);
        const struct qv_capacity usual = qv_capacity_pack(&costly, c, 0);
        for (size_t size = 0; size < sizeof grids / sizeof *grids; size++) {
            const int64_t g[3] = { 1, grids[size][0], grids[size][1] }, rows = g[1] * g[2];
            for (size_t i = 0; i < N; i++)
                waiting[i] = qv_capacity_of(c, g);
            const double fill = fill_of(&pack, waiting, N), most = (double)(640 / rows * rows);
            if (fill != most / 640)
                fail_msg("%lldx%lld: %.3f full", (long long)g[1], (long long)g[2], fill);
            for (int64_t pairs = 1; pairs < 40; pairs++) {
                const int64_t whole[3] = { pairs, g[1], g[2] };
                assert_int_equal(fits(&most_of_one, c, whole), fits(&usual, c, whole));
            }
        }
    }
}

/* A pack that is not full: the smallest bucket that holds what is in it and has the pack's bits. */
static void
a_part_of_a_pack_has_a_smaller_bucket(void **state)
{
    (void)state;
    const struct qv_caps *caps = &devices[N_DEVICES - 1];
    const struct qv_capacity pack = qv_capacity_pack(caps, &plain, 0);
    struct qv_capacity_bits bits = { 0 };
    for (int64_t rows = 4; rows <= pack.rows; rows += 4) {
        const struct qv_capacity used = { .rows = rows, .segments = 1 + rows / 64 };
        bits.rows = 0;
        const struct qv_capacity part = qv_capacity_for_part(caps, &plain, &bits, &pack, &used);
        assert_int_equal(part.rows, qv_capacity_bucket(caps, 2, rows));
        assert_true(part.segments >= used.segments);
        bits.rows = 300;
        assert_int_equal(qv_capacity_for_part(caps, &plain, &bits, &pack, &used).rows,
                         part.rows < 300 ? qv_capacity_bucket(caps, 2, 300) : part.rows);
        bits.rows = QV_NOT_SEEN;
        assert_int_equal(qv_capacity_for_part(caps, &plain, &bits, &pack, &used).rows, pack.rows);
        assert_int_equal(qv_capacity_for_part(caps, &plain, NULL, &pack, &used).rows, part.rows);
    }
}

/* Segments bound a chunk as rows do; what is older goes first though others would fill it better. */
static void
the_oldest_is_never_left(void **state)
{
    (void)state;
    const struct qv_capacity c = { .rows = 100, .segments = 4 };
    const qv_capacity waiting[] = { { 4, 1, 0, 0 },  { 100, 1, 0, 0 }, { 90, 2, 0, 0 },
                                    { 10, 1, 0, 0 }, { 2, 1, 0, 0 },   { 2, 1, 0, 0 } };
    size_t chosen[QV_PACK_ITEMS];
    assert_int_equal(qv_pack_choose(&c, waiting, 6, chosen), 3); /* 4, 90 and a 2 */
    assert_int_equal(chosen[0], 0);
    assert_int_equal(chosen[1], 2);
    assert_int_equal(chosen[2], 4);
    assert_int_equal(qv_pack_choose(&c, waiting + 1, 5, chosen), 1);
    assert_int_equal(qv_pack_choose(&c, waiting, 0, chosen), 0);
    const qv_capacity clips[] = { { 8, 3, 0, 0 }, { 50, 2, 0, 0 }, { 8, 1, 0, 0 } };
    assert_int_equal(qv_pack_choose(&c, clips, 3, chosen), 2);
    assert_int_equal(chosen[1], 2);
}

/* Windows of 112 pixels, 8x8 patches: they are counted with their edges, and bound a chunk too. */
static void
windows_bound_a_chunk(void **state)
{
    (void)state;
    const struct qv_config c = { .patch = 14, .merge = 2, .window = 112 };
    const struct {
        int64_t grid_thw[3], windows;
    } grids[] = { { { 1, 8, 8 }, 1 },   { { 1, 2, 2 }, 1 },  { { 8, 20, 38 }, 8 * 3 * 5 },
                  { { 1, 10, 16 }, 4 }, { { 3, 2, 18 }, 9 }, { { 1, 64, 64 }, 64 } };
    for (size_t i = 0; i < sizeof grids / sizeof *grids; i++) {
        const int64_t *g = grids[i].grid_thw;
        assert_int_equal(qv_capacity_of(&c, g).windows, grids[i].windows);
        assert_int_equal(qv_capacity_of(&plain, g).windows, 0);
        for (int d = 0; d < N_DEVICES; d++) {
            struct qv_capacity alone = qv_capacity_alone(&devices[d], &c, g);
            const int64_t pairs = alone.segment_rows ? alone.segments : g[0];
            assert_true(alone.windows >= grids[i].windows / g[0] * pairs);
            assert_int_equal(qv_capacity_alone(&devices[d], &plain, g).windows, 0);
        }
    }
    const struct qv_capacity pack = { .rows = 1000, .segments = 100, .windows = 10 };
    assert_true(fits(&pack, &c, (const int64_t[]){ 3, 2, 18 }));
    assert_false(fits(&pack, &c, (const int64_t[]){ 4, 2, 18 }));
    const qv_capacity waiting[] = { { 36, 1, 0, 9 }, { 16, 1, 0, 4 }, { 8, 1, 0, 1 } };
    size_t chosen[QV_PACK_ITEMS];
    assert_int_equal(qv_pack_choose(&pack, waiting, 3, chosen), 2);
    assert_int_equal(chosen[1], 2);
}

/* Whatever they are: every one goes, into chunks that hold it. */
static void
any_items_go_in_turn(void **state)
{
    (void)state;
    enum { N = 2000 };
    static qv_capacity waiting[N];
    const struct qv_capacity c = { .rows = 640, .segments = 8 };
    uint32_t seed = 1;
    for (size_t i = 0; i < N; i++) {
        seed = seed * 1664525 + 1013904223;
        int64_t segments = 1 + (seed >> 24) % 8;
        waiting[i] =
            (qv_capacity){ segments * (4 + 4 * (int64_t)((seed >> 8) % 20)), segments, 0, 0 };
        assert_true(waiting[i].rows <= c.rows);
    }
    fill_of(&c, waiting, N);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buckets_are_a_ladder),
        cmocka_unit_test(packs_have_room_for_usual_segments),
        cmocka_unit_test(an_item_alone_has_its_own_bucket),
        cmocka_unit_test(capacities_that_agree_are_known),
        cmocka_unit_test(sizes_are_compared_and_counted),
        cmocka_unit_test(small_is_what_fits),
        cmocka_unit_test(images_of_many_sizes_fill_chunks),
        cmocka_unit_test(small_images_fill_large_chunks),
        cmocka_unit_test(free_segments_fill_chunks),
        cmocka_unit_test(a_part_of_a_pack_has_a_smaller_bucket),
        cmocka_unit_test(the_oldest_is_never_left),
        cmocka_unit_test(windows_bound_a_chunk),
        cmocka_unit_test(any_items_go_in_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
