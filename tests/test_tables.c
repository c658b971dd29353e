/* SPDX-License-Identifier: MIT */
/* Tests a chunk's tables where no item has rows, because operations look there as well. */

#include "test.h"

#include "backends.h"
#include "tiny.h"

enum { SIDE = 16 };

/* Encodes one image of side x side patches through a plan of `rows` rows. */
static void *
encode(const struct tiny *t, int64_t rows, int64_t side, const uint8_t *frame, size_t *bytes)
{
    const qv_item image = { .data = frame, .grid_thw = { 1, side, side }, .is_image = true };
    qv_plan *plan = tiny_plan(t, &(qv_plan_options){ .capacity.patches = rows });
    void *tokens = tiny_chunk(t, plan, &image, 1, QV_F32, bytes);
    test_end(plan);
    return tokens;
}

/* A small plan follows a large one whose frames lay where the small plan's tables are. Rows beyond
 * its item must not read a frame, position or angle that is not there, and the item's tokens must
 * be the same. */
TEST(rows_beyond_the_items_look_nowhere_else)
{
    EACH_BACKEND (b) {
        struct tiny t = tiny_open_model(QV_GOLDEN "/qwen3_vl", *b, NULL, 0);
        const size_t frame_bytes =
            (size_t)(SIDE * SIDE * t.info.patch_size * t.info.patch_size * 3);
        uint8_t *frame = test_alloc(frame_bytes);
        void *tokens[2];
        size_t bytes;
        memset(frame, 0x7f, frame_bytes);
        for (int i = 0; i < 2; i++) { /* The large plan makes an arena for both. */
            encode(&t, 4 * SIDE * SIDE, SIDE, frame, &bytes);
            tokens[i] = encode(&t, SIDE * SIDE / 4, 4, frame, &bytes);
        }
        assert_memory_equal(tokens[0], tokens[1], bytes);
    }
}
