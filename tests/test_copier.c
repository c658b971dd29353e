/* SPDX-License-Identifier: MIT */
/* Tests copies by several threads (cuda/copier.c). They need no GPU, and are tested with the thread
 * sanitizer too. */

#include "test.h"

#include "copier.h"

enum { MOST = (4 << 20) + 77, GUARD = 64, UNTOUCHED = 0x99 };

/* Every byte arrives and no neighbouring byte is touched. The sizes are close to a slice's, the
 * addresses are not aligned, and the copies lie directly one after the other. */
TEST(all_bytes_and_no_others)
{
    static const size_t sizes[] = {
        0, 1, (256 << 10) - 1, 256 << 10, (256 << 10) + 1, (1 << 20), 4 << 20, MOST
    };
    uint8_t *src = malloc(MOST + GUARD), *dst = malloc(MOST + 2 * GUARD);
    assert_non_null(src);
    assert_non_null(dst);
    for (size_t i = 0; i < MOST + GUARD; i++)
        src[i] = (uint8_t)(i * 2654435761u >> 13);
    for (int threads = 0; threads <= 9; threads++) { /* 0: as many as there are cores. */
        struct qv_copier *copier = NULL;
        assert_ok(qv_copier_open(threads, &copier, ERR));
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            const size_t n = sizes[i], at = (size_t)(7 * threads) % GUARD;
            memset(dst, UNTOUCHED, MOST + 2 * GUARD);
            qv_copier_copy(copier, dst + GUARD, src + at, n);
            assert_memory_equal(dst + GUARD, src + at, n);
            for (size_t g = 0; g < GUARD; g++) {
                assert_int_equal(dst[g], UNTOUCHED);
                assert_int_equal(dst[GUARD + n + g], UNTOUCHED);
            }
        }
        qv_copier_close(copier);
    }
    free(src);
    free(dst);
}

/* A block is filled again as soon as the copy has returned, as staging blocks are. */
TEST(a_copy_is_done_when_it_returns)
{
    enum { BLOCK = 1 << 20, ROUNDS = 200 };
    struct qv_copier *copier = NULL;
    uint8_t *src = malloc(BLOCK), *dst = malloc(BLOCK);
    assert_non_null(src);
    assert_non_null(dst);
    assert_ok(qv_copier_open(4, &copier, ERR));
    for (int round = 0; round < ROUNDS; round++) {
        memset(src, round, BLOCK);
        qv_copier_copy(copier, dst, src, BLOCK);
        memset(src, ~round, BLOCK);
        for (size_t i = 0; i < BLOCK; i += 4093)
            assert_int_equal(dst[i], (uint8_t)round);
    }
    qv_copier_close(copier);
    free(src);
    free(dst);
}

TEST(opened_and_closed_at_once)
{
    for (int i = 0; i < 50; i++) {
        struct qv_copier *copier = NULL;
        assert_ok(qv_copier_open(i % 8, &copier, ERR));
        qv_copier_close(copier);
    }
    qv_copier_close(NULL);
}
