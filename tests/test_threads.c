/* SPDX-License-Identifier: MIT */
/*
 * Tests the thread rules of qwenvit.h: two contexts that are used in two threads at the same time
 * give the bits that each gives alone, a context may move to another thread, and any thread may ask
 * it for memory. Runs under the thread sanitizer too, with one thread in each context (the
 * sanitizer does not see OpenMP's own synchronisation).
 */

#include "test.h"

#include <pthread.h>

#include "backends.h"
#include "lock_pages.h"
#include "tiny.h"

enum { FRAMES = 4, ROUNDS = 3 };

/* Encodes a clip and an image of it. */
static void *
encode(const struct tiny *t, const uint8_t *frames, size_t *bytes)
{
    const qv_item items[] = { { .data = frames, .grid_thw = { FRAMES / 2, 4, 6 } },
                              { .data = frames, .grid_thw = { 1, 4, 6 }, .is_image = true } };
    return tiny_encode(t, QV_INPUT_FRAMES, items, 2, NULL, bytes);
}

struct worker {
    const char *backend;
    uint32_t seed;
    float *tokens;
    size_t bytes;
};

static void *
work(void *argument)
{
    struct worker *w = argument;
    for (int round = 0; round < ROUNDS; round++) {
        struct tiny t = tiny_open(w->backend, QV_F32, 1);
        uint8_t *frames = tiny_frames(&t, FRAMES, 4, 6, w->seed);
        w->tokens = encode(&t, frames, &w->bytes);
        tiny_close(&t);
    }
    return NULL;
}

TEST(two_contexts_in_two_threads)
{
    EACH_BACKEND (b) {
        struct worker alone[2] = { { *b, 1, NULL, 0 }, { *b, 2, NULL, 0 } };
        struct worker together[2] = { { *b, 1, NULL, 0 }, { *b, 2, NULL, 0 } };
        pthread_t threads[2];
        for (int i = 0; i < 2; i++)
            work(&alone[i]);
        for (int i = 0; i < 2; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, work, &together[i]), 0);
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(alone[i].bytes, together[i].bytes);
            assert_memory_equal(alone[i].tokens, together[i].tokens, alone[i].bytes);
        }
    }
}

struct moved {
    struct tiny t;
    uint8_t *frames;
    float *tokens;
    size_t bytes;
};

static void *
encode_elsewhere(void *argument)
{
    struct moved *m = argument;
    m->tokens = encode(&m->t, m->frames, &m->bytes);
    return NULL;
}

TEST(a_context_moves_between_threads)
{
    EACH_BACKEND (b) {
        struct moved m = { .t = tiny_open(*b, QV_F32, 1) };
        m.frames = tiny_frames(&m.t, FRAMES, 4, 6, 3);
        encode_elsewhere(&m);
        float *here = m.tokens;
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, encode_elsewhere, &m), 0);
        pthread_join(thread, NULL);
        assert_memory_equal(here, m.tokens, m.bytes);
    }
}

struct sharer {
    const struct tiny *t;
    const uint8_t *frames;
    const float *expected;
    size_t bytes;
    int wrong;
};

static void *
encode_again(void *sharer)
{
    struct sharer *s = sharer;
    for (int i = 0; i < 10 * ROUNDS; i++) {
        size_t bytes;
        float *tokens = encode(s->t, s->frames, &bytes);
        s->wrong += bytes != s->bytes || memcmp(tokens, s->expected, bytes) != 0;
    }
    return NULL;
}

/* Calls of qv_encode take turns, also where two chunks may be in progress. */
TEST(threads_share_a_model)
{
    enum { N = 4 };
    EACH_BACKEND (b) {
        struct tiny t = tiny_open(*b, QV_F32, 1);
        t.ctx->caps.chunks = 2;
        struct sharer sharers[N];
        pthread_t threads[N];
        for (int i = 0; i < N; i++) {
            struct sharer *s = &sharers[i];
            *s = (struct sharer){ .t = &t, .frames = tiny_frames(&t, FRAMES, 4, 6, (uint32_t)i) };
            s->expected = encode(&t, s->frames, &s->bytes);
        }
        for (int i = 0; i < N; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, encode_again, &sharers[i]), 0);
        for (int i = 0; i < N; i++)
            pthread_join(threads[i], NULL);
        for (int i = 0; i < N; i++)
            assert_int_equal(sharers[i].wrong, 0);
    }
}

/* ---- memory for the caller ------------------------------------------------------------------- */

struct taker {
    qv_context *ctx;
    unsigned char mark;
    bool failed;
};

/* Takes blocks and gives them back. What it writes into a block stays there meanwhile, so no other
 * thread has the same block. */
static void *
take_and_give(void *taker)
{
    enum { TURNS = 200, BYTES = 500 };
    struct taker *t = taker;
    unsigned char *held[2] = { NULL, NULL };
    for (int i = 0; i < TURNS && !t->failed; i++) {
        unsigned char **block = &held[i % 2];
        if (*block)
            t->failed = (*block)[0] != t->mark || (*block)[BYTES - 1] != t->mark;
        qv_host_free(t->ctx, *block);
        *block = NULL;
        t->failed |= qv_host_alloc(t->ctx, BYTES + (size_t)i % 3, (void **)block, NULL) != QV_OK;
        if (*block)
            memset(*block, t->mark, BYTES);
    }
    for (int i = 0; i < 2; i++)
        qv_host_free(t->ctx, held[i]);
    return NULL;
}

TEST(any_thread_takes_memory)
{
    enum { N = 4 };
    struct taker takers[N];
    pthread_t threads[N];
    struct tiny t = tiny_open("ref", QV_F32, 1);
    struct qv_backend locking = *t.ctx->backend;
    locking.lock_pages = lock_pages;
    locking.unlock_pages = unlock_pages;
    t.ctx->backend = t.ctx->dev->backend = &locking;
    for (int i = 0; i < N; i++) {
        takers[i] = (struct taker){ t.ctx, (unsigned char)(1 + i), false };
        assert_int_equal(pthread_create(&threads[i], NULL, take_and_give, &takers[i]), 0);
    }
    for (int i = 0; i < N; i++) {
        pthread_join(threads[i], NULL);
        assert_false(takers[i].failed);
    }
    tiny_close(&t);
}
