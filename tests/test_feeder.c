/* SPDX-License-Identifier: MIT */
/* Tests a feeder by itself, in one thread: what goes into its chunks, when, and on which device. Tests
 * of jobs and of qv_encode have it under load. */

#include "test.h"

#include "tiny.h"

/* Chunks of 64 patches, of which a frame pair of 4x4 takes a quarter. */
enum { ROWS = 64, PAIR = 16, FITS = ROWS / PAIR, DEVICES = 2, MOST_PAIRS = 40 };
#define MAX_WAIT_S 5

struct fed {
    struct tiny t[DEVICES];
    qv_feeder *f;
    uint8_t *frames;
    double wait_s;
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
    const qv_feeder_options o = { .chunk_rows = ROWS, .max_wait_s = MAX_WAIT_S };
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
    for (int i = 0; i < DEVICES; i++)
        tiny_close(&s->t[i]);
    free(s->frames);
}

/* Adds an item, and puts all of it. */
static qv_feed *
put_item(struct fed *s, int64_t pairs, void *user, double now_s)
{
    const qv_item item = { .data = s->frames, .grid_thw = { pairs, 4, 4 } };
    qv_feed *feed = NULL;
    if (qv_feeder_add(s->f, QV_INPUT_FRAMES, &item, "x", user, &feed, &s->err))
        fail_msg("%s", s->err.text);
    assert_ptr_equal(feed->user, user);
    assert_int_equal(feed->step, pairs < FITS ? pairs : FITS);
    for (int64_t at = 0; at < pairs; at += feed->step)
        if (qv_feeder_put(s->f, feed, NULL, NULL, now_s, &s->err))
            fail_msg("%s", s->err.text);
    return feed;
}

static const qv_feeder_chunk *
ready(struct fed *s, int device)
{
    return qv_feeder_ready(s->f, device, 0, QV_FEEDER_NOTHING, &s->wait_s);
}

/* Pushes the chunk that is ready, and pulls it. Returns how many frame pairs it had. */
static int64_t
run(struct fed *s, int device)
{
    const qv_feeder_chunk *chunk = ready(s, device);
    assert_non_null(chunk);
    float *tokens = malloc((size_t)(ROWS / 4 * s->t[0].info.out_hidden) * sizeof *tokens);
    qv_tokens out = { .tokens = tokens, .capacity = ROWS / 4 };
    assert_non_null(tokens);
    if (qv_feeder_push(s->f, device, &s->err) || qv_feeder_pull(s->f, device, &out, &s->err))
        fail_msg("%s", s->err.text);
    assert_int_equal(out.n, chunk->rows / 4);
    assert_true(chunk->capacity_rows >= chunk->rows && !chunk->refused);
    free(tokens);
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

/* What waits of an item that failed goes into no chunk. What is under way comes back. */
TEST(a_dropped_item_goes_no_further)
{
    struct fed s = open_feeder(1);
    int a, b;
    assert_int_equal(drop(&s, put_item(&s, 3, &a, 0)), 3);
    assert_null(ready(&s, 0));
    qv_feed *half = put_item(&s, 2 * FITS + 1, &a, 0);
    assert_int_equal(run(&s, 0), FITS);
    const qv_feeder_chunk *chunk = ready(&s, 0);
    assert_int_equal(chunk->rows, ROWS);
    put_item(&s, 2, &b, 0);
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
    put_item(&s, 3 * FITS, &a, 0);
    assert_int_equal(run(&s, 1), FITS);
    assert_null(ready(&s, 0));
    put_item(&s, 1, &b, 0);
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

/* Frame pairs wait for a full chunk while more are on their way, and 2 ms if none is. An item of which
 * no more may be put keeps nobody waiting. */
TEST(pairs_wait_for_their_chunk)
{
    struct fed s = open_feeder(1);
    int a;
    qv_feed *feed = put_item(&s, 1, &a, 10);
    assert_null(qv_feeder_ready(s.f, 0, 11, QV_FEEDER_MORE, &s.wait_s));
    assert_true(s.wait_s == MAX_WAIT_S - 1);
    assert_null(qv_feeder_ready(s.f, 0, 10.001, QV_FEEDER_PERHAPS, &s.wait_s));
    assert_true(s.wait_s > 0 && s.wait_s < 0.0011);
    assert_non_null(qv_feeder_ready(s.f, 0, 10.003, QV_FEEDER_PERHAPS, &s.wait_s));
    assert_int_equal(run(&s, 0), 1);
    assert_false(qv_feeder_drop(s.f, feed, &(qv_feeder_piece){ 0 }));

    put_item(&s, 1, &a, 10);
    assert_non_null(qv_feeder_ready(s.f, 0, 10 + MAX_WAIT_S, QV_FEEDER_MORE, &s.wait_s));
    assert_int_equal(run(&s, 0), 1);
    const qv_item longer = { .data = s.frames, .grid_thw = { MOST_PAIRS, 4, 4 } };
    assert_int_equal(qv_feeder_add(s.f, QV_INPUT_FRAMES, &longer, "x", &a, &feed, &s.err), QV_OK);
    for (int i = 0; i < 2; i++) {
        assert_false(feed->full);
        assert_null(qv_feeder_ready(s.f, 0, 10, QV_FEEDER_MORE, &s.wait_s));
        assert_int_equal(qv_feeder_put(s.f, feed, NULL, NULL, 10, &s.err), QV_OK);
    }
    assert_true(feed->full);
    assert_non_null(qv_feeder_ready(s.f, 0, 10, QV_FEEDER_MORE, &s.wait_s));
    assert_false(feed->full);
    close_feeder(&s);
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
    assert_int_equal(qv_feeder_put(s.f, feed, NULL, NULL, 0, &s.err), QV_EINVAL);
    for (int i = 0; i < 2; i++)
        assert_int_equal(qv_feeder_put(s.f, feed, frames[i], frames[i], 0, &s.err), QV_OK);
    assert_int_equal(qv_feeder_put(s.f, feed, frames[0], NULL, 0, &s.err), QV_EINVAL);
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
    free(frames[0]);
    free(frames[1]);
}

TEST(what_is_not_valid_is_refused)
{
    struct fed s = open_feeder(1);
    const qv_item item = { .data = s.frames, .grid_thw = { 1, 4, 4 } };
    const qv_item bad = { .data = s.frames, .grid_thw = { 1, 3, 4 } };
    const qv_feeder_options o = { 0 }, negative = { .chunk_rows = -1 };
    qv_feeder *f = NULL;
    qv_feed *feed = NULL;
    qv_model *none = NULL;
    assert_int_equal(qv_feeder_open(NULL, 1, &o, &f, &s.err), QV_EINVAL);
    assert_int_equal(qv_feeder_open(&none, 1, &o, &f, &s.err), QV_EINVAL);
    assert_int_equal(qv_feeder_open(&s.t[0].model, 1, &negative, &f, &s.err), QV_EINVAL);
    assert_int_equal(qv_feeder_add(s.f, QV_INPUT_FRAMES, &bad, "x", NULL, &feed, &s.err),
                     QV_EINVAL);
    assert_memory_equal(s.err.text, "x: grid_thw is 1,3,4", 20);
    const qv_item odd = { .grid_thw = { 3, 2, 2 }, .n_frames = 7 }; /* a clip's data come later */
    assert_int_equal(qv_feeder_add(s.f, QV_INPUT_FRAMES, &odd, "clip", NULL, &feed, &s.err),
                     QV_EINVAL);
    assert_memory_equal(s.err.text, "clip: n_frames is 7", 19);
    assert_int_equal(qv_feeder_add(s.f, (qv_input)9, &item, "x", NULL, &feed, &s.err), QV_EINVAL);
    assert_int_equal(qv_feeder_put(s.f, NULL, NULL, NULL, 0, &s.err), QV_EINVAL);
    assert_int_equal(qv_feeder_push(s.f, 0, &s.err), QV_ESTATE);
    assert_int_equal(qv_feeder_pull(s.f, 0, &(qv_tokens){ 0 }, &s.err), QV_ESTATE);
    assert_null(ready(&s, 1));
    assert_null(f);
    assert_null(feed);
    for (int i = 0; i < QV_FEEDER_PIECES; i++)
        put_item(&s, 1, NULL, 0);
    assert_int_equal(qv_feeder_add(s.f, QV_INPUT_FRAMES, &item, "x", NULL, &feed, &s.err), QV_OK);
    assert_int_equal(qv_feeder_put(s.f, feed, NULL, NULL, 0, &s.err), QV_EFULL);
    assert_non_null(ready(&s, 0));
    assert_int_equal(qv_feeder_put(s.f, feed, NULL, NULL, 0, &s.err), QV_OK);
    close_feeder(&s);
}
