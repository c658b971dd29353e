/* SPDX-License-Identifier: MIT */
/* Tests a chunk's tables where no item has rows, because operations look there as well. */

#include "test.h"

#include "backends.h"

enum { SIDE = 16, MOST_VALUES = SIDE * SIDE * 256 };

/* Encodes one image of side x side patches through a plan of `rows` rows. */
static void
encode(qv_model *model, int64_t rows, int64_t side, const uint8_t *frame, float *tokens)
{
    qv_plan *plan = NULL;
    qv_model_info info;
    qv_model_get_info(model, &info);
    const qv_plan_options o = { .capacity.patches = rows };
    const qv_item is_image = { .data = frame, .grid_thw = { 1, side, side }, .is_image = true };
    qv_tokens out = { .tokens = tokens, .capacity = MOST_VALUES / info.out_hidden };
    assert_ok(qv_plan_create(model, &o, &plan, ERR) || qv_plan_push(plan, &is_image, 1, ERR) ||
              qv_plan_pull(plan, &out, ERR));
    qv_plan_free(&plan);
}

/* A small plan follows a large one whose frames lay where the small plan's tables are. Rows beyond
 * its item must not read a frame, position or angle that is not there, and the item's tokens must
 * be the same. */
TEST(rows_beyond_the_items_look_nowhere_else)
{
    static float first[MOST_VALUES], second[MOST_VALUES];
    for (int b = 0; b < N_TEST_BACKENDS; b++) {
        qv_context *ctx = NULL;
        qv_model *model = NULL;
        qv_model_info info;
        const qv_context_options o = { .backend = test_backends[b] };
        if (!backend_is_here(test_backends[b]))
            continue;
        assert_ok(qv_context_open(&o, &ctx, ERR) ||
                  qv_model_load(ctx, QV_GOLDEN "/qwen3_vl", NULL, &model, ERR));
        qv_model_get_info(model, &info);
        const size_t bytes = (size_t)(SIDE * SIDE * info.patch_size * info.patch_size * 3);
        uint8_t *frame = test_alloc(bytes);
        memset(frame, 0x7f, bytes);
        memset(first, 0, sizeof first);
        memset(second, 0, sizeof second);
        encode(model, 4 * SIDE * SIDE, SIDE, frame, first); /* Makes an arena for both plans. */
        memset(first, 0, sizeof first);
        encode(model, SIDE * SIDE / 4, 4, frame, first);
        encode(model, 4 * SIDE * SIDE, SIDE, frame, second);
        memset(second, 0, sizeof second);
        encode(model, SIDE * SIDE / 4, 4, frame, second);
        assert_memory_equal(first, second, sizeof first);
        qv_model_free(&model);
        qv_context_close(&ctx);
    }
}
