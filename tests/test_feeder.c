/* SPDX-License-Identifier: MIT */
/* Tests a feeder by itself, in one thread: what goes into its chunks, when, and on which device.
 * Tests of jobs and of qv_encode put it under load. */

#include "test.h"

#include <pthread.h>

#include "model/feeder_inside.h"
#include "model/plan.h"
#include "tiny.h"

/* Chunks of 64 patches; a frame pair of 4x4 fills a quarter. */
enum { ROWS = 64, PAIR = 16, FITS = ROWS / PAIR, DEVICES = 2, MOST_PAIRS = 40 };

struct fed {
    struct tiny t[DEVICES];
    qv_feeder *f;
    uint8_t *frames;
    double now_s, wait_s;
    qv_error err;
};

static struct fed
open_feeder(int n_devices)
{
    struct fed s = { .wait_s = 100 };
    qv_model *models[DEVICES] = { 0 };
    for (int i = 0; i < n_devices; i++) {
        s.t[i] = tiny_open("ref", QV_F32, 1);
        models[i] = s.t[i].model;
    }
    const qv_feeder_options o = { .chunk_rows = ROWS };
    if (qv_feeder_open(models, (size_t)n_devices, &o, &s.f, &s.err))
        fail_msg("%s", s.err.text);
    s.frames = tiny_frames(&s.t[0], 2 * MOST_PAIRS, 4, 4, 1);
    return s;
}

static void
close_feeder(struct fed *s)
{
    qv_feeder_close(&s->f);
    assert_null(s->f);
}

/* Adds an item, and puts all of it. */
static qv_feed *
put_item(struct fed *s, int64_t pairs, void *user)
{
    const qv_item item = { .data = s->frames, .grid_thw = { pairs, 4, 4 } };
    qv_feed *feed = NULL;
    if (qv_feeder_add(s->f, QV_INPUT_FRAMES, &item, "x", user, &feed, &s->err))
        fail_msg("%s", s->err.text);
    assert_ptr_equal(feed->user, user);
    assert_int_equal(feed->step, pairs < FITS ? pairs : FITS);
    for (int64_t at = 0; at < pairs; at += feed->step)
        if (qv_feeder_put(s->f, feed, NULL, NULL, &s->err))
            fail_msg("%s", s->err.text);
    return feed;
}

static const qv_feeder_chunk *
ready(struct fed *s, int device)
{
    return qv_feeder_ready(s->f, device, s->now_s, false, &s->wait_s);
}

/* Pushes the chunk that is ready, and pulls it. Returns how many frame pairs it had. */
static int64_t
run(struct fed *s, int device)
{
    const qv_feeder_chunk *chunk = ready(s, device);
    assert_non_null(chunk);
    float *tokens = test_alloc((size_t)(ROWS / 4 * s->t[0].info.out_hidden) * sizeof *tokens);
    qv_tokens out = { .tokens = tokens, .capacity = ROWS / 4 };
    if (qv_feeder_push(s->f, device, &s->err) || qv_feeder_pull(s->f, device, &out, NULL, &s->err))
        fail_msg("%s", s->err.text);
    assert_int_equal(out.n, chunk->rows / 4);
    assert_true(chunk->capacity_rows >= chunk->rows && !chunk->refused);
    return chunk->rows / PAIR;
}

/* Drops an item. Returns how many of its frame pairs waited. */
static int64_t
drop(struct fed *s, qv_feed *feed)
{
    qv_feeder_piece piece;
    int64_t pairs = 0;
    while (qv_feeder_drop(s->f, feed, &piece)) {
        assert_ptr_equal(piece.feed, feed);
        assert_true(piece.ends);
        pairs += piece.item.grid_thw[0];
    }
    return pairs;
}

/* The waiting frame pairs of a failed item go into no chunk. Pairs in progress come back. */
TEST(a_dropped_item_goes_no_further)
{
    struct fed s = open_feeder(1);
    int a, b;
    assert_int_equal(drop(&s, put_item(&s, 3, &a)), 3);
    assert_null(ready(&s, 0));
    qv_feed *half = put_item(&s, 2 * FITS + 1, &a);
    assert_int_equal(run(&s, 0), FITS);
    const qv_feeder_chunk *chunk = ready(&s, 0);
    assert_int_equal(chunk->rows, ROWS);
    put_item(&s, 2, &b);
    assert_int_equal(drop(&s, half), 1); /* a chunk that was chosen is not changed */
    assert_int_equal(run(&s, 0), FITS);
    chunk = ready(&s, 0);
    assert_int_equal(chunk->n, 1);
    assert_ptr_equal(chunk->pieces[0].feed->user, &b);
    assert_true(chunk->is_rest && chunk->pieces[0].last && chunk->pieces[0].first == 0);
    close_feeder(&s);
}

/* An item's frame pairs go in order, and through the device that took the first of them. */
TEST(an_item_stays_on_its_device)
{
    struct fed s = open_feeder(DEVICES);
    int a, b;
    int64_t next = 0;
    put_item(&s, 3 * FITS, &a);
    assert_int_equal(run(&s, 1), FITS);
    assert_null(ready(&s, 0));
    put_item(&s, 1, &b);
    assert_ptr_equal(ready(&s, 0)->pieces[0].feed->user, &b);
    assert_int_equal(run(&s, 0), 1);
    for (next = FITS; next < 3 * FITS; next += FITS) {
        const qv_feeder_chunk *chunk = ready(&s, 1);
        assert_int_equal(chunk->pieces[0].first, next);
        assert_int_equal(chunk->pieces[0].last, next == 2 * FITS);
        assert_ptr_equal(chunk->pieces[0].item.data, s.frames + (size_t)next * 2 * PAIR *
                                                                    s.t[0].info.patch_size *
                                                                    s.t[0].info.patch_size * 3);
        assert_int_equal(run(&s, 1), FITS);
    }
    assert_null(ready(&s, 1));
    close_feeder(&s);
}

/* Pushes the chunk that is ready for device 0, and pulls it at once. Returns its capacity. */
static int64_t
encode(struct fed *s, double now_s)
{
    s->now_s = now_s;
    const qv_feeder_chunk *chunk = ready(s, 0);
    run(s, 0);
    return chunk->capacity_rows;
}

/* Frame pairs wait for a full chunk while more are on their way: until the device has nothing else
 * to do, and then as long as it took for a chunk like its last one, if that had been full. If none
 * is on its way, or as many wait as fit, they do not wait. */
TEST(pairs_wait_for_their_chunk)
{
    struct fed s = open_feeder(1);
    s.t[0].ctx->caps.chunks = 2;
    int a;
    put_item(&s, 1, &a);
    assert_non_null(qv_feeder_ready(s.f, 0, 10, true, &s.wait_s)); /* it has computed nothing yet */
    assert_int_equal(qv_feeder_push(s.f, 0, &s.err), QV_OK);
    qv_feed *feed = put_item(&s, 1, &a);
    assert_null(qv_feeder_ready(s.f, 0, 11, true, &s.wait_s));
    assert_true(s.wait_s == 100); /* it is asked again after a pull */
    float tokens[ROWS * 64];
    assert_int_equal(qv_feeder_pull(s.f, 0, &(qv_tokens){ .tokens = tokens, .capacity = ROWS / 4 },
                                    NULL, &s.err),
                     QV_OK);
    assert_null(qv_feeder_ready(s.f, 0, 12, true, &s.wait_s)); /* 2 s for a quarter */
    assert_true(s.wait_s == 8);
    assert_null(qv_feeder_ready(s.f, 0, 19, true, &s.wait_s));
    assert_true(s.wait_s == 1);
    assert_non_null(qv_feeder_ready(s.f, 0, 20, true, &s.wait_s));
    encode(&s, 20);
    assert_false(qv_feeder_drop(s.f, feed, &(qv_feeder_piece){ 0 }));

    assert_null(qv_feeder_ready(s.f, 0, 30, true, &s.wait_s));
    put_item(&s, 1, &a);
    assert_null(qv_feeder_ready(s.f, 0, 30, true, &s.wait_s));
    encode(&s, 30); /* nothing more comes */
    const qv_item longer = { .data = s.frames, .grid_thw = { MOST_PAIRS, 4, 4 } };
    assert_int_equal(qv_feeder_add(s.f, QV_INPUT_FRAMES, &longer, "x", &a, &feed, &s.err), QV_OK);
    assert_null(qv_feeder_ready(s.f, 0, 31, true, &s.wait_s));
    for (int i = 0; i < 2; i++) {
        assert_false(feed->full);
        assert_int_equal(qv_feeder_put(s.f, feed, NULL, NULL, &s.err), QV_OK);
    }
    assert_true(feed->full);
    for (int i = 0; i < 2; i++) {
        assert_non_null(qv_feeder_ready(s.f, 0, 31, true, &s.wait_s));
        assert_false(feed->full);
        qv_feeder_pass(s.f, 0);
    }
    assert_null(qv_feeder_ready(s.f, 0, 31, true, &s.wait_s));
    close_feeder(&s);
}

/* Puts a lone image, which comes when the device has nothing to do. Returns the patches of its
 * chunk. */
static int64_t
lone_image(struct fed *s, double now_s)
{
    assert_null(qv_feeder_ready(s->f, 0, now_s, false, &s->wait_s));
    qv_feed *feed = put_item(s, 1, NULL);
    const int64_t rows = encode(s, now_s); /* it does not wait */
    drop(s, feed);
    assert_true(!s->f->packs && !s->f->feeds);
    return rows;
}

/* An hour's load of 8 full chunks per second leaves no trace: a lone image after it needs only a
 * chunk of its own size, even if plans are slow to make, and memory is the same as in the first
 * minute. */
TEST(a_lone_image_pays_for_itself)
{
    struct fed s = open_feeder(1);
    s.t[0].ctx->caps.quick_plans = false;
    assert_int_equal(lone_image(&s, 0), PAIR);
    const int n_idle = s.t[0].model->n_idle;
    double now_s = 0;
    for (int minute = 1; minute <= 60; minute++) {
        for (; now_s < 60 * minute; now_s += 0.125) {
            qv_feed *feed = put_item(&s, FITS, NULL);
            assert_non_null(qv_feeder_ready(s.f, 0, now_s, false, &s.wait_s));
            qv_feeder_pass(s.f, 0);
            assert_int_equal(drop(&s, feed), 0);
        }
        if (minute == 1 || minute == 60)
            assert_int_equal(lone_image(&s, now_s), PAIR);
    }
    assert_int_equal(s.t[0].model->n_idle, n_idle);
    close_feeder(&s);
}

static bool
has_idle_plan(const qv_model *model, int64_t patches)
{
    for (int i = 0; i < model->n_idle; i++)
        if (model->idle[i]->capacity.patches == patches)
            return true;
    return false;
}

/* If plans are slow to make, the plans of smaller chunks exist before the first item arrives. */
TEST(plans_of_small_chunks_are_made_before)
{
    for (int warm = 0; warm < 2; warm++) {
        struct tiny t = tiny_open("ref", QV_F32, 1);
        t.ctx->caps.quick_plans = false;
        const qv_feeder_options o = { .chunk_rows = ROWS, .warm_up = warm };
        qv_feeder *f = NULL;
        assert_int_equal(qv_feeder_open(&t.model, 1, &o, &f, NULL), QV_OK);
        assert_true(has_idle_plan(t.model, ROWS)); /* the pack's own */
        for (int64_t patches = ROWS / 2; patches >= PAIR; patches /= 2)
            assert_int_equal(has_idle_plan(t.model, patches), warm);
        qv_feeder_close(&f);
    }
}

/* A clip's data come with each put, an eighth of a chunk at a time. */
TEST(data_may_come_with_each_put)
{
    struct fed s = open_feeder(1);
    const qv_item clip = { .grid_thw = { 3, 2, 2 }, .n_frames = 5 };
    uint8_t *frames[2] = { tiny_frames(&s.t[0], 4, 2, 2, 1), tiny_frames(&s.t[0], 1, 2, 2, 2) };
    qv_feed *feed = NULL;
    assert_int_equal(qv_feeder_add(s.f, QV_INPUT_FRAMES, &clip, "clip", NULL, &feed, &s.err),
                     QV_OK);
    assert_int_equal(feed->step, 2); /* 16 such pairs fit */
    assert_int_equal(qv_feeder_put(s.f, feed, NULL, NULL, &s.err), QV_EINVAL);
    for (int i = 0; i < 2; i++)
        assert_int_equal(qv_feeder_put(s.f, feed, frames[i], frames[i], &s.err), QV_OK);
    assert_int_equal(qv_feeder_put(s.f, feed, frames[0], NULL, &s.err), QV_EINVAL);
    const qv_feeder_chunk *chunk = ready(&s, 0);
    assert_int_equal(chunk->n, 2);
    for (int i = 0; i < 2; i++) {
        const qv_feeder_piece *piece = &chunk->pieces[i];
        assert_ptr_equal(piece->item.data, frames[i]);
        assert_ptr_equal(piece->user, frames[i]);
        assert_int_equal(piece->item.n_frames, i ? 1 : 4);
        assert_true(piece->ends && piece->last == i);
    }
    close_feeder(&s);
}

static void *
push(void *feeder)
{
    qv_error err;
    if (qv_feeder_push(feeder, 0, &err))
        fail_msg("%s", err.text);
    return NULL;
}

/* A device computes chunks of one feeder at a time. A feeder that another one waits for takes no
 * further chunk, and the other one goes on once its chunks are pulled. */
TEST(feeders_of_a_device_take_turns)
{
    struct fed s = open_feeder(1);
    struct fed other = { .frames = s.frames };
    float tokens[2 * ROWS / 4 * 64];
    qv_tokens out = { .tokens = tokens, .capacity = ROWS / 4 };
    pthread_t thread;
    assert_true(s.t[0].info.out_hidden <= 64);
    s.t[0].ctx->caps.chunks = 2;
    qv_plans_free_idle(s.t[0].model);
    assert_int_equal(qv_feeder_open(&s.t[0].model, 1, &(qv_feeder_options){ .chunk_rows = ROWS },
                                    &other.f, &s.err),
                     QV_OK);
    put_item(&s, 3 * FITS, NULL);
    put_item(&other, FITS, NULL);
    for (int i = 0; i < 2; i++) {
        assert_non_null(ready(&other, 0));
        assert_non_null(ready(&s, 0));
        assert_int_equal(qv_feeder_push(s.f, 0, &s.err), QV_OK);
        assert_int_equal(pthread_create(&thread, NULL, push, other.f), 0);
        while (!qv_turn_is_wanted(s.t[0].ctx))
            sched_yield();
        assert_null(ready(&s, 0));
        assert_null(qv_feeder_oldest(other.f, 0));
        assert_int_equal(qv_feeder_pull(s.f, 0, &out, NULL, &s.err), QV_OK);
        pthread_join(thread, NULL);
        assert_non_null(qv_feeder_oldest(other.f, 0));
        assert_int_equal(qv_feeder_pull(other.f, 0, &out, NULL, &s.err), QV_OK);
        put_item(&other, FITS, NULL);
    }
    assert_int_equal(run(&s, 0), FITS);
    qv_feeder_close(&other.f);
    close_feeder(&s);
}

TEST(what_is_not_valid_is_refused)
{
    struct fed s = open_feeder(1);
    const qv_item item = { .data = s.frames, .grid_thw = { 1, 4, 4 } };
    const qv_item bad = { .data = s.frames, .grid_thw = { 1, 3, 4 } };
    qv_feed *feed = NULL;
    assert_int_equal(qv_feeder_add(s.f, QV_INPUT_FRAMES, &bad, "x", NULL, &feed, &s.err),
                     QV_EINVAL);
    assert_memory_equal(s.err.text, "x: grid_thw is 1,3,4", 20);
    const qv_item odd = { .grid_thw = { 3, 2, 2 }, .n_frames = 7 }; /* a clip's data come later */
    assert_int_equal(qv_feeder_add(s.f, QV_INPUT_FRAMES, &odd, "clip", NULL, &feed, &s.err),
                     QV_EINVAL);
    assert_memory_equal(s.err.text, "clip: n_frames is 7", 19);
    assert_int_equal(qv_feeder_add(s.f, (qv_input)9, &item, "x", NULL, &feed, &s.err), QV_EINVAL);
    assert_int_equal(qv_feeder_push(s.f, 0, &s.err), QV_ESTATE);
    assert_int_equal(qv_feeder_pull(s.f, 0, &(qv_tokens){ 0 }, NULL, &s.err), QV_ESTATE);
    assert_null(feed);
    for (int i = 0; i < QV_FEEDER_PIECES; i++)
        put_item(&s, 1, NULL);
    assert_int_equal(qv_feeder_add(s.f, QV_INPUT_FRAMES, &item, "x", NULL, &feed, &s.err), QV_OK);
    assert_int_equal(qv_feeder_put(s.f, feed, NULL, NULL, &s.err), QV_EFULL);
    assert_non_null(ready(&s, 0));
    assert_int_equal(qv_feeder_put(s.f, feed, NULL, NULL, &s.err), QV_OK);
    close_feeder(&s);
}
