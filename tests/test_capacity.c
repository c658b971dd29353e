/* SPDX-License-Identifier: MIT */
/* Tests which capacities plans get, and what goes into a chunk. These are pure functions. */

#include "test.h"

#include "model/capacity.h"
#include "model/packer.h"

/* The caps of the backends, and of others that might exist. */
static const struct qv_caps devices[] = {
    { .chunk_rows = 64, .pack_rows = 64, .bucket_rows = 4, .least_rows = 4 },
    { .chunk_rows = 640, .pack_rows = 640, .bucket_rows = 16, .least_rows = 16 },
    { .chunk_rows = 2048, .pack_rows = 2048, .bucket_rows = 32, .least_rows = 32 },
    { .chunk_rows = 6144, .pack_rows = 6144, .bucket_rows = 128, .least_rows = 512 },
    { .chunk_rows = 6144, .pack_rows = 12288, .bucket_rows = 128, .least_rows = 512 },
    { .chunk_rows = 24576, .pack_rows = 24576, .bucket_rows = 128, .least_rows = 512 },
    { .chunk_rows = 640,
      .pack_rows = 640,
      .bucket_rows = 16,
      .least_rows = 16,
      .free_segments = true },
};
static const struct qv_config plain = { .patch = 16, .merge = 2 };
enum { N_DEVICES = sizeof devices / sizeof *devices };
static const int64_t merges[] = { 1, 2, 3 };

/* Devices on which every capacity has the same bits; on which only dense capacities differ; and on
 * which every capacity differs. */
static const struct qv_capacity_bits same,
    dense_differs = { .dense = true },
    all_differ = { .rows = QV_NOT_SEEN, .gemm_rows = QV_NOT_SEEN };

static bool
fits(const struct qv_capacity *chunk, const struct qv_config *c, const int64_t grid_thw[3])
{
    const struct qv_capacity size = qv_capacity_of(c, grid_thw);
    return qv_capacity_fits(chunk, &size);
}

TEST(buckets_are_a_ladder)
{
    for (int d = 0; d < N_DEVICES; d++)
        for (int m = 0; m < 3; m++) {
            const struct qv_caps *caps = &devices[d];
            int64_t area = merges[m] * merges[m], before = 0, n = 0;
            int64_t own = caps->pack_rows;
            int64_t step = (caps->bucket_rows + area - 1) / area * area;
            for (int64_t rows = 1; rows <= 70000; rows++) {
                int64_t bucket = qv_capacity_bucket(caps, merges[m], rows);
                assert_true(bucket >= rows && bucket >= caps->least_rows && bucket >= before);
                assert_true(bucket % area == 0 && bucket % step == 0);
                assert_int_equal(qv_capacity_bucket(caps, merges[m], bucket), bucket);
                /* from one bucket to the next it is a part of the size, or the least step */
                if (before && bucket != before)
                    assert_true((bucket - before) * (2 * before > own ? 32 : 8) <= before ||
                                bucket - before == step);
                n += bucket != before && 2 * bucket <= own;
                before = bucket;
            }
            assert_true(n <= 64); /* a handful of plans up to half of the device's chunk */
            assert_true(qv_capacity_bucket(caps, merges[m], 1 << 22) >= 1 << 22);
        }
}

TEST(packs_have_room_for_usual_segments)
{
    for (int d = 0; d < N_DEVICES; d++) {
        const struct qv_caps *caps = &devices[d];
        struct qv_capacity own = qv_capacity_pack(caps, &plain, 0);
        const int64_t wanted = caps->pack_rows;
        assert_true(own.patches >= wanted && own.patches * 8 <= wanted * 9);
        assert_int_equal(own.segment_rows, 0);
        for (int64_t rows = 1; rows < 40000; rows += 37) {
            struct qv_capacity c = qv_capacity_pack(caps, &plain, rows);
            assert_int_equal(c.patches, qv_capacity_bucket(caps, 2, rows));
            assert_true(c.segments >= 8 && c.segments * 256 >= c.patches);
        }
    }
}

/* An item alone gets the smallest bucket that serves: it fits, in no more chunks than necessary. */
TEST(an_item_alone_has_its_own_bucket)
{
    static const int64_t sides[] = { 2, 4, 14, 38, 96, 200 }, pairs[] = { 1, 2, 7, 64, 384 };
    for (int d = 0; d < N_DEVICES; d++)
        for (int i = 0; i < 6 * 6 * 5; i++) {
            const int64_t g[3] = { pairs[i / 36], sides[i / 6 % 6], sides[i % 6] };
            const struct qv_caps *caps = &devices[d];
            struct qv_capacity c = qv_capacity_alone(caps, &plain, &same, g);
            int64_t segment = g[1] * g[2], rows = g[0] * segment;
            int64_t chunk = qv_capacity_bucket(caps, 2, caps->chunk_rows);
            assert_true(c.segments >= 1 && c.patches >= segment);
            if (rows <= chunk) {
                assert_int_equal(c.patches, qv_capacity_bucket(caps, 2, rows));
                assert_int_equal(c.segment_rows, 0);
                assert_true(c.segments >= g[0] && fits(&c, &plain, g));
            } else {
                assert_int_equal(c.segment_rows, segment);
                assert_int_equal(c.patches, c.segments * segment);
                assert_true(c.patches <= chunk || c.segments == 1);
                assert_true(c.patches + segment > chunk); /* it is not smaller than necessary */
                const struct qv_capacity ragged =
                    qv_capacity_alone(caps, &plain, &dense_differs, g);
                assert_int_equal(ragged.segment_rows, 0);
                assert_int_equal(ragged.patches, qv_capacity_bucket(caps, 2, c.patches));
                assert_true(ragged.segments >= c.segments);
            }
        }
}

TEST(capacities_that_agree_are_known)
{
    struct qv_caps caps = { .chunk_rows = 6144,
                            .pack_rows = 6144,
                            .bucket_rows = 128,
                            .least_rows = 512,
                            .same_f32 = { .gemm_rows = QV_NOT_SEEN },
                            .same_bf16 = { 512, { 64, 72 } } };
    const struct qv_capacity small = { .patches = 1920, .segments = 20 },
                             enough = { .patches = 2048, .segments = 21 },
                             pack = { .patches = 6144, .segments = 64 },
                             dense = { .patches = 6080, .segments = 8, .segment_rows = 760 };
    struct qv_capacity_bits bits = qv_capacity_bits(&caps, QV_BF16, 2, 64);
    assert_int_equal(bits.rows, 2048); /* the patches of 512 tokens */
    assert_true(qv_capacity_same_bits(&bits, &enough, &pack));
    assert_true(qv_capacity_same_bits(&bits, &dense, &pack));
    assert_false(qv_capacity_same_bits(&bits, &small, &pack));
    assert_false(qv_capacity_same_bits(&bits, &pack, &small));
    assert_true(qv_capacity_same_bits(&bits, &small, &small));
    bits = qv_capacity_bits(&caps, QV_BF16, 2, 72);
    assert_true(qv_capacity_same_bits(&bits, &dense, &pack));
    bits = qv_capacity_bits(&caps, QV_BF16, 2, 80);
    assert_true(qv_capacity_same_bits(&bits, &enough, &pack));
    assert_false(qv_capacity_same_bits(&bits, &dense, &pack));
    assert_true(qv_capacity_same_bits(&bits, &dense, &dense));
    bits = qv_capacity_bits(&caps, QV_F32, 2, 72);
    assert_false(qv_capacity_same_bits(&bits, &enough, &pack));
    assert_true(qv_capacity_same_bits(&bits, &pack,
                                      &(struct qv_capacity){ .patches = 6144, .segments = 512 }));
    caps.same_bf16.gemm_rows = 128; /* the smallest bucket has that many rows */
    bits = qv_capacity_bits(&caps, QV_BF16, 2, 64);
    assert_true(!bits.rows && qv_capacity_same_bits(&bits, &small, &pack));
}

TEST(sizes_are_compared_and_counted)
{
    const qv_capacity chunk = { .patches = 100, .segments = 7, .segment_rows = 8, .windows = 12 };
    qv_capacity others[4] = { chunk, chunk, chunk, chunk };
    others[0].patches = others[1].segments = others[2].segment_rows = others[3].windows = 1;
    assert_true(qv_capacity_equal(&chunk, &(qv_capacity){ 100, 7, 8, 12 }));
    for (int i = 0; i < 4; i++)
        assert_false(qv_capacity_equal(&chunk, &others[i]));
    assert_int_equal(qv_capacity_fits(&chunk, &(qv_capacity){ .patches = 10, .segments = 1 }), 7);
    assert_int_equal(qv_capacity_fits(&chunk, &(qv_capacity){ .patches = 30, .segments = 1 }), 3);
    assert_int_equal(qv_capacity_fits(&chunk,
                                      &(qv_capacity){ .patches = 1, .segments = 1, .windows = 5 }),
                     2);
    assert_int_equal(qv_capacity_fits(&chunk, &(qv_capacity){ .patches = 101, .segments = 1 }), 0);
    assert_int_equal(qv_capacity_fits(&(qv_capacity){ .patches = -30 },
                                      &(qv_capacity){ .patches = 10 }),
                     0);
}

TEST(small_is_what_fits)
{
    const struct qv_capacity pack = { .patches = 640, .segments = 8 };
    assert_true(fits(&pack, &plain, (const int64_t[]){ 1, 20, 32 }));
    assert_false(fits(&pack, &plain, (const int64_t[]){ 1, 20, 34 }));
    assert_true(fits(&pack, &plain, (const int64_t[]){ 8, 2, 2 }));
    assert_false(fits(&pack, &plain, (const int64_t[]){ 9, 2, 2 }));
}

/* ---- packing --------------------------------------------------------------------------------- */

/* The output of Python's random.seed(0), (randrange(8, 40) * 2, randrange(8, 40) * 2), 64 times. */
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

/* Packs items with `pairs` frame pairs each, chunk after chunk as a feeder does. Asserts that every
 * pair goes once, and pairs of the oldest item in the next chunk. Returns the rows of all chunks
 * but the last, divided by the rows that these chunks have. */
static double
fill_of(const struct qv_capacity *capacity, const struct qv_pack_run *items, size_t n)
{
    struct qv_pack_run waiting[QV_FEEDER_PIECES];
    int64_t taken[QV_FEEDER_PIECES], full = 0, last = 0, gone = 0;
    size_t next = 0, chunks = 0, left = 0;
    while (next < n || left) {
        while (next < n && left < QV_FEEDER_PIECES) {
            gone += items[next].pairs;
            waiting[left++] = items[next++];
        }
        struct qv_capacity all = { 0 };
        const size_t seen = left, used = qv_pack_choose(capacity, waiting, seen, taken);
        assert_true(used >= 1 && taken[0]);
        left = 0;
        for (size_t i = 0; i < seen; i++) {
            const qv_capacity *pair = &waiting[i].pair;
            assert_in_range(taken[i], 0, waiting[i].pairs);
            all.patches += taken[i] * pair->patches;
            all.segments += taken[i] * pair->segments;
            all.windows += taken[i] * pair->windows;
            gone -= taken[i];
            waiting[i].pairs -= taken[i];
            if (waiting[i].pairs)
                waiting[left++] = waiting[i];
        }
        assert_true(all.patches <= capacity->patches && all.segments <= capacity->segments &&
                    all.windows <= capacity->windows);
        full += last;
        last = all.patches;
        chunks++;
    }
    assert_int_equal(gone, 0);
    return chunks > 1 ? (double)full / (double)(chunks - 1) / (double)capacity->patches : 1;
}

TEST(images_of_many_sizes_fill_chunks)
{
    static const struct {
        int64_t rows;
        double fill;
    } cases[] = { { 6144, 0.97 }, { 24576, 0.99 }, { 32768, 0.99 } };
    struct qv_pack_run waiting[64];
    for (size_t i = 0; i < 64; i++)
        waiting[i] =
            (struct qv_pack_run){ { .patches = images[i][0] * images[i][1], .segments = 1 }, 1 };
    for (size_t i = 0; i < 3; i++) {
        struct qv_capacity c = qv_capacity_pack(&devices[3], &plain, cases[i].rows);
        assert_int_equal(c.patches, cases[i].rows);
        double fill = fill_of(&c, waiting, 64);
        printf("%lld rows: %.3f full\n", (long long)c.patches, fill);
        assert_true(fill >= cases[i].fill);
    }
}

/* Frame pairs are packed and not clips, so with small pairs hardly any of a chunk is empty,
 * however long clips are. */
TEST(pairs_of_clips_fill_chunks)
{
    enum { N = 2000 };
    static struct qv_pack_run waiting[N];
    const struct qv_capacity c = qv_capacity_pack(&devices[4], &plain, 0);
    uint32_t seed = 7;
    for (size_t i = 0; i < N; i++)
        waiting[i] = (struct qv_pack_run){ { .patches = 720, .segments = 1 }, 10 };
    assert_true(fill_of(&c, waiting, N) >= 0.97);
    static const int64_t sizes[] = { 884, 1184, 1560, 2024, 2576, 3080, 3648 };
    for (size_t i = 0; i < 42; i++)
        waiting[i] = (struct qv_pack_run){ { .patches = sizes[i % 7], .segments = 1 }, 8 };
    const double mixed = fill_of(&c, waiting, 42);
    printf("large ones: %.3f full\n", mixed);
    assert_true(mixed >= 0.95);
    for (int turn = 0; turn < 4; turn++) {
        for (size_t i = 0; i < N; i++) {
            const int64_t rows = 96 + 4 * ((test_random(&seed) >> 8) % ((c.patches / 8 - 96) / 4));
            waiting[i] =
                (struct qv_pack_run){ { .patches = rows, .segments = 1 }, 1 + (seed >> 24) % 16 };
        }
        const double fill = fill_of(&c, waiting, N);
        printf("pairs up to an eighth: %.3f full\n", fill);
        assert_true(fill >= 0.97);
    }
}

/* If segments cost nothing, only rows bound a chunk, also for windows. Pairs are placed as on other
 * devices. */
TEST(free_segments_fill_chunks)
{
    enum { N = 1000 };
    static struct qv_pack_run waiting[N];
    static const struct qv_config windowed = { .patch = 14, .merge = 2, .window = 112 };
    static const int64_t grids[][2] = { { 4, 6 },   { 8, 8 },   { 6, 14 },  { 10, 10 },
                                        { 12, 18 }, { 16, 20 }, { 20, 20 }, { 2, 300 } };
    const struct qv_caps *free = &devices[N_DEVICES - 1];
    struct qv_caps costly = *free;
    costly.free_segments = false;
    for (size_t family = 0; family < 2; family++) {
        const struct qv_config *c = family ? &windowed : &plain;
        EACH (one, grids) {
            const int64_t g[3] = { 1, (*one)[0], (*one)[1] }, rows = g[1] * g[2];
            const struct qv_capacity pair = qv_capacity_of(c, g);
            const struct qv_capacity pack = qv_capacity_for_pairs(free, c, &same, 0, &pair);
            assert_int_equal(pack.patches,
                             qv_capacity_for_pairs(&costly, c, &same, 0, &pair).patches);
            for (size_t i = 0; i < N; i++)
                waiting[i] = (struct qv_pack_run){ pair, 1 };
            const double fill = fill_of(&pack, waiting, N);
            if (fill != (double)(pack.patches / rows * rows) / (double)pack.patches)
                fail_msg("%lldx%lld: %.3f full", (long long)g[1], (long long)g[2], fill);
        }
    }
}

/* If another number of rows changes bits, pairs that would leave much of a pack empty get a
 * separate capacity, from a short list. Otherwise they get a part of the pack. Pairs that do not
 * fit get their own size. */
TEST(pairs_that_leave_much_empty_have_their_own)
{
    for (int d = 0; d < N_DEVICES; d++) {
        const struct qv_caps *caps = &devices[d];
        const struct qv_capacity pack = qv_capacity_pack(caps, &plain, 0);
        int64_t list[64], n = 0;
        for (int64_t rows = 4; rows <= 3 * pack.patches; rows += 4) {
            const struct qv_capacity pair = { .patches = rows,
                                              .segments = 1,
                                              .segment_rows = rows };
            const struct qv_capacity own =
                qv_capacity_for_pairs(caps, &plain, &all_differ, 0, &pair);
            const struct qv_capacity any = qv_capacity_for_pairs(caps, &plain, &same, 0, &pair);
            const int64_t filled = own.patches / rows * rows, step = caps->bucket_rows;
            assert_true(own.segments >= own.patches / rows || rows < 96);
            assert_int_equal(own.segment_rows, 0);
            assert_int_equal(any.patches, rows <= pack.patches ? pack.patches
                                                               : qv_capacity_bucket(caps, 2, rows));
            if (10 * (pack.patches / rows * rows) >= 9 * pack.patches) {
                assert_true(qv_capacity_equal(&own, &pack));
                continue;
            }
            assert_true(filled * 33 >= own.patches * 32 || own.patches - filled <= 2 * step);
            assert_true(rows > pack.patches ||
                        (own.patches < pack.patches && 2 * own.patches > pack.patches));
            int64_t i = 0;
            while (i < n && list[i] != own.patches)
                i++;
            if (i == n && own.patches < pack.patches)
                list[n++] = own.patches;
            assert_true(n <= 32);
        }
    }
}

/* A pack that is not full gets the smallest bucket that holds its content and has the pack's
 * bits. */
TEST(a_part_of_a_pack_has_a_smaller_bucket)
{
    const struct qv_caps *caps = &devices[N_DEVICES - 1];
    const struct qv_capacity pack = qv_capacity_pack(caps, &plain, 0);
    struct qv_capacity_bits bits = { 0 };
    for (int64_t rows = 4; rows <= pack.patches; rows += 4) {
        const struct qv_capacity used = { .patches = rows, .segments = 1 + rows / 64 };
        bits.rows = 0;
        const struct qv_capacity fill = qv_capacity_for_fill(caps, &plain, &bits, &pack, &used);
        assert_int_equal(fill.patches, qv_capacity_bucket(caps, 2, rows));
        assert_true(fill.segments >= used.segments);
        bits.rows = 300;
        assert_int_equal(qv_capacity_for_fill(caps, &plain, &bits, &pack, &used).patches,
                         fill.patches < 300 ? qv_capacity_bucket(caps, 2, 300) : fill.patches);
        bits.rows = QV_NOT_SEEN;
        assert_int_equal(qv_capacity_for_fill(caps, &plain, &bits, &pack, &used).patches,
                         pack.patches);
        assert_int_equal(qv_capacity_for_fill(caps, &plain, NULL, &pack, &used).patches,
                         fill.patches);
    }
}

/* If plans are slow to make, the same few serve all chunks: a half, a quarter and so on of a
 * pack for what is left at the end, and what suits their size for pairs that leave much of it
 * empty, from the third such chunk on. */
TEST(parts_are_few_where_plans_are_slow)
{
    const struct qv_caps *caps = &devices[4];
    const struct qv_capacity pack = qv_capacity_pack(caps, &plain, 0);
    static const int64_t cases[][3] = { { 760, 768, 768 },       { 1024, 1536, 1024 },
                                        { 6080, 6144, 6144 },    { 6145, 12288, 6272 },
                                        { 8160, 12288, 8192 },   { 11000, 12288, 11008 },
                                        { 11059, 12288, 11264 }, { 11060, 12288, 12288 },
                                        { 12288, 12288, 12288 } };
    EACH (c, cases) {
        const struct qv_capacity used = { .patches = (*c)[0], .segments = 1 };
        for (int more = 0; more < 2; more++) {
            const struct qv_capacity fill =
                qv_capacity_for_chunk(caps, &plain, &same, &pack, &used, more, 99);
            if (fill.patches != (*c)[1 + more])
                fail_msg("%lld patches take %lld", (long long)used.patches,
                         (long long)fill.patches);
            assert_int_equal(
                qv_capacity_for_chunk(caps, &plain, &all_differ, &pack, &used, more, 99).patches,
                pack.patches);
            for (int alike = 0; alike < 3; alike++) {
                const struct qv_capacity early =
                    qv_capacity_for_chunk(caps, &plain, &same, &pack, &used, more, alike);
                assert_int_equal(early.patches, more && alike < 2 ? pack.patches : fill.patches);
            }
        }
    }
}

/* Chunks of pairs with one size are dense from the third on, if the bits are those of packs, and if
 * they leave much of a pack empty where plans are slow to make. */
TEST(chunks_that_are_alike_are_dense)
{
    static const struct {
        int device;
        int64_t repeats;
        const struct qv_capacity_bits *bits;
        bool dense, full;
    } cases[] = { { 4, 0, &same, false, false },
                  { 4, 1, &same, false, false },
                  { 4, 2, &same, true, false },
                  { 4, 2, &same, false, true },
                  { 4, 99, &dense_differs, false, false },
                  { 4, 99, &all_differ, false, false },
                  { 4, 99, NULL, true, false },
                  { 6, 1, &same, false, false },
                  { 6, 2, &same, true, false },
                  { 6, 2, &same, true, true },
                  { 6, 2, &all_differ, false, false } };
    EACH (c, cases) {
        struct qv_caps caps = devices[c->device];
        caps.quick_plans = c->device == 6;
        const struct qv_capacity pack = qv_capacity_pack(&caps, &plain, 0);
        const int64_t rows = pack.patches / (c->full ? 4 : 5) - 4;
        struct qv_capacity used = { .patches = 4 * rows, .segments = 4, .segment_rows = rows };
        const struct qv_capacity fill =
            qv_capacity_for_chunk(&caps, &plain, c->bits, &pack, &used, true, c->repeats);
        assert_int_equal(qv_capacity_equal(&fill, &used), c->dense);
        used.segment_rows = 0; /* of several sizes */
        assert_int_equal(qv_capacity_for_chunk(&caps, &plain, c->bits, &pack, &used, true,
                                               c->repeats)
                             .segment_rows,
                         0);
        /* it asks for nothing, gets the smallest there is, and ends */
        used = (struct qv_capacity){ .patches = 0 };
        assert_true(qv_capacity_for_chunk(&caps, &plain, c->bits, &pack, &used, false, 0).patches <=
                    pack.patches);
    }
}

/* Where room for segments costs, a chunk of large frame pairs has little more than it needs, and
 * the bits of those that have; what is left at the end takes one of few plans. */
TEST(large_pairs_have_room_for_few)
{
    static const struct {
        int device;
        struct qv_capacity used;
        int64_t rows, segments;
        bool more;
    } cases[] = { { 4, { .patches = 12240, .segments = 17 }, 12288, 32, false },
                  { 4, { .patches = 12288, .segments = 32 }, 12288, 32, false },
                  { 4, { .patches = 12288, .segments = 33 }, 12288, 128, false },
                  { 4, { .patches = 3000, .segments = 3 }, 3072, 32, false },
                  { 4, { .patches = 8160, .segments = 1 }, 8192, 21, true },
                  { 1, { .patches = 640, .segments = 2 }, 640, 8, false },
                  { 6, { .patches = 640, .segments = 2 }, 640, 160, false } };
    EACH (c, cases) {
        const struct qv_caps *caps = &devices[c->device];
        const struct qv_capacity pack = qv_capacity_pack(caps, &plain, 0);
        const struct qv_capacity chunk =
            qv_capacity_for_chunk(caps, &plain, &same, &pack, &c->used, c->more, 2);
        assert_int_equal(chunk.patches, c->rows);
        assert_int_equal(chunk.segments, c->segments);
        assert_true(qv_capacity_same_bits(&same, &chunk, &pack));
    }
}

/* Segments bound a chunk as rows do. The oldest goes first even if others would fill the chunk
 * better. */
TEST(the_oldest_is_never_left)
{
    const struct qv_capacity c = { .patches = 100, .segments = 4 };
    const struct qv_pack_run waiting[] = { { { 4, 1, 0, 0 }, 1 },  { { 100, 1, 0, 0 }, 1 },
                                           { { 90, 2, 0, 0 }, 1 }, { { 10, 1, 0, 0 }, 1 },
                                           { { 2, 1, 0, 0 }, 1 },  { { 2, 1, 0, 0 }, 1 } };
    int64_t taken[QV_FEEDER_PIECES];
    assert_int_equal(qv_pack_choose(&c, waiting, 6, taken), 3); /* takes 4, 90 and a 2 */
    assert_true(taken[0] == 1 && taken[2] == 1 && taken[4] == 1 && !taken[1] && !taken[5]);
    assert_int_equal(qv_pack_choose(&c, waiting + 1, 5, taken), 1);
    assert_int_equal(qv_pack_choose(&c, waiting, 0, taken), 0);
    const struct qv_pack_run clips[] = { { { 8, 1, 0, 0 }, 3 },
                                         { { 50, 2, 0, 0 }, 1 },
                                         { { 8, 1, 0, 0 }, 1 } };
    assert_int_equal(qv_pack_choose(&c, clips, 3, taken), 2);
    assert_int_equal(taken[2], 1);
    const struct qv_pack_run long_ones[] = { { { 30, 1, 0, 0 }, 9 }, { { 5, 1, 0, 0 }, 7 } };
    assert_int_equal(qv_pack_choose(&c, long_ones, 2, taken), 2);
    assert_true(taken[0] == 3 && taken[1] == 1);
    /* two runs of one item may wait: the older goes first and whole, before some of the younger */
    const struct qv_pack_run two[] = { { { 20, 0, 0, 0 }, 2 }, { { 20, 0, 0, 0 }, 4 } };
    assert_int_equal(qv_pack_choose(&c, two, 2, taken), 2);
    assert_true(taken[0] == 2 && taken[1] == 3);
}

/* Windows of 112 pixels, which are 8x8 patches, are counted with the smaller ones at edges, and
 * bound a chunk too. */
TEST(windows_bound_a_chunk)
{
    const struct qv_config c = { .patch = 14, .merge = 2, .window = 112 };
    const struct {
        int64_t grid_thw[3], windows;
    } grids[] = { { { 1, 8, 8 }, 1 },   { { 1, 2, 2 }, 1 },  { { 8, 20, 38 }, 8 * 3 * 5 },
                  { { 1, 10, 16 }, 4 }, { { 3, 2, 18 }, 9 }, { { 1, 64, 64 }, 64 } };
    EACH (one, grids) {
        const int64_t *g = one->grid_thw;
        assert_int_equal(qv_capacity_of(&c, g).windows, one->windows);
        assert_int_equal(qv_capacity_of(&plain, g).windows, 0);
        for (int d = 0; d < N_DEVICES; d++) {
            struct qv_capacity alone = qv_capacity_alone(&devices[d], &c, &same, g);
            const int64_t pairs = alone.segment_rows ? alone.segments : g[0];
            assert_true(alone.windows >= one->windows / g[0] * pairs);
            assert_int_equal(qv_capacity_alone(&devices[d], &plain, &same, g).windows, 0);
        }
    }
    const struct qv_capacity pack = { .patches = 1000, .segments = 100, .windows = 10 };
    assert_true(fits(&pack, &c, (const int64_t[]){ 3, 2, 18 }));
    assert_false(fits(&pack, &c, (const int64_t[]){ 4, 2, 18 }));
    const struct qv_pack_run waiting[] = { { { 36, 1, 0, 9 }, 1 },
                                           { { 16, 1, 0, 4 }, 1 },
                                           { { 8, 1, 0, 1 }, 1 } };
    int64_t taken[QV_FEEDER_PIECES];
    assert_int_equal(qv_pack_choose(&pack, waiting, 3, taken), 2);
    assert_int_equal(taken[2], 1);
}
