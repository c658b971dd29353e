/* SPDX-License-Identifier: MIT */
/* Tests a feeder by itself, in one thread: what goes into its chunks, when, and on which device. Tests
 * of jobs and of qv_encode have it under load. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/feeder.h"
#include "tiny.h"

/* Chunks of 64 patches, of which a frame pair of 4x4 takes a quarter. */
enum { ROWS = 64, PAIR = 16, FITS = ROWS / PAIR, DEVICES = 2, MOST_PAIRS = 40 };

struct fed {
    struct tiny t[DEVICES];
    qv_feeder *f;
    uint8_t *frames;
    qv_error err;
};

static struct fed
open_feeder(int n_devices, int under_way)
{
    struct fed s = { .f = NULL };
    qv_model *models[DEVICES] = { 0 };
    for (int i = 0; i < n_devices; i++) {
        s.t[i] = tiny_open("ref", QV_F32, 1);
        s.t[i].ctx->caps.chunks = under_way;
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
    for (int i = 0; i < DEVICES; i++)
        tiny_close(&s->t[i]);
    free(s->frames);
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
    return qv_feeder_ready(s->f, device, 0, QV_FEEDER_NOTHING);
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
static void
a_dropped_item_goes_no_further(void **state)
{
    (void)state;
    struct fed s = open_feeder(1, 1);
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
static void
an_item_stays_on_its_device(void **state)
{
    (void)state;
    struct fed s = open_feeder(DEVICES, 1);
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

/* Pushes the chunk that is ready. */
static void
push(struct fed *s, int device)
{
    if (qv_feeder_push(s->f, device, &s->err))
        fail_msg("%s", s->err.text);
}

/* Pulls the oldest chunk. Returns how many frame pairs it had. */
static int64_t
pull(struct fed *s, int device)
{
    float *tokens = malloc((size_t)(ROWS / 4 * s->t[0].info.out_hidden) * sizeof *tokens);
    qv_tokens out = { .tokens = tokens, .capacity = ROWS / 4 };
    assert_non_null(tokens);
    if (qv_feeder_pull(s->f, device, &out, &s->err))
        fail_msg("%s", s->err.text);
    free(tokens);
    return out.n * 4 / PAIR;
}

/* A device that has nothing to do takes what waits. While it has a chunk under way, frame pairs wait
 * for a full one, unless nothing more comes. An item of which no more may be put keeps nobody
 * waiting. */
static void
pairs_wait_while_the_device_works(void **state)
{
    (void)state;
    struct fed s = open_feeder(1, 2);
    int a;
    qv_feed *feed = NULL;
    for (int expects = QV_FEEDER_NOTHING; expects <= QV_FEEDER_MORE; expects++) {
        put_item(&s, 1, &a);
        assert_non_null(qv_feeder_ready(s.f, 0, 0, (qv_feeder_expects)expects));
        push(&s, 0);
        put_item(&s, 1, &a);
        if (expects != QV_FEEDER_NOTHING) {
            assert_null(qv_feeder_ready(s.f, 0, 1e6, (qv_feeder_expects)expects));
            assert_int_equal(pull(&s, 0), 1);
        }
        assert_non_null(qv_feeder_ready(s.f, 0, 0, (qv_feeder_expects)expects));
        push(&s, 0);
        assert_int_equal(pull(&s, 0), 1);
        if (expects == QV_FEEDER_NOTHING)
            assert_int_equal(pull(&s, 0), 1);
    }
    put_item(&s, 1, &a);
    assert_non_null(ready(&s, 0));
    push(&s, 0);
    const qv_item longer = { .data = s.frames, .grid_thw = { MOST_PAIRS, 4, 4 } };
    assert_int_equal(qv_feeder_add(s.f, QV_INPUT_FRAMES, &longer, "x", &a, &feed, &s.err), QV_OK);
    for (int i = 0; i < 2; i++) {
        assert_false(feed->full);
        assert_null(qv_feeder_ready(s.f, 0, 0, QV_FEEDER_MORE));
        assert_int_equal(qv_feeder_put(s.f, feed, NULL, NULL, &s.err), QV_OK);
    }
    assert_true(feed->full);
    assert_non_null(qv_feeder_ready(s.f, 0, 0, QV_FEEDER_MORE));
    assert_false(feed->full);
    close_feeder(&s);
}

/* Has 8 full chunks per second chosen, and none computed. */
static void
load(struct fed *s, double from_s, double to_s)
{
    for (double now_s = from_s; now_s < to_s; now_s += 0.125) {
        qv_feed *feed = put_item(s, FITS, NULL);
        assert_non_null(qv_feeder_ready(s->f, 0, now_s, QV_FEEDER_PERHAPS));
        qv_feeder_pass(s->f, 0);
        assert_int_equal(drop(s, feed), 0);
    }
}

/* Returns the patches of the chunk that a lone image is computed in. */
static int64_t
lone_image(struct fed *s, double now_s, qv_feeder_expects expects)
{
    int64_t rows = 0;
    qv_feed *feed = put_item(s, 1, NULL);
    const qv_feeder_chunk *chunk = qv_feeder_ready(s->f, 0, now_s, expects);
    push(s, 0);
    rows = chunk->capacity_rows;
    pull(s, 0);
    drop(s, feed);
    return rows;
}

/* Where plans are slow to make, what ends many chunks takes a chunk as large as these are. It is
 * recent chunks that count: an image that comes by itself pays for itself alone, after an hour's load
 * as after a minute's. */
static void
a_lone_image_pays_for_itself(void **state)
{
    (void)state;
    struct fed s = open_feeder(1, 1);
    s.t[0].ctx->caps.quick_plans = false;
    assert_int_equal(lone_image(&s, 0, QV_FEEDER_PERHAPS), PAIR);
    assert_int_equal(lone_image(&s, 0, QV_FEEDER_MORE), ROWS);
    load(&s, 0, 60);
    assert_int_equal(lone_image(&s, 60, QV_FEEDER_PERHAPS), PAIR); /* 4 times 16 are more than 16 */
    assert_int_equal(lone_image(&s, 80, QV_FEEDER_PERHAPS), PAIR);
    load(&s, 80, 3600);
    for (int i = 0; i < 100; i++)
        assert_int_equal(lone_image(&s, 3620 + i, QV_FEEDER_PERHAPS), PAIR);
    close_feeder(&s);
}

/* A clip's data come with each put, an eighth of a chunk at a time. */
static void
data_may_come_with_each_put(void **state)
{
    (void)state;
    struct fed s = open_feeder(1, 1);
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
    free(frames[0]);
    free(frames[1]);
}

static void
what_is_not_valid_is_refused(void **state)
{
    (void)state;
    struct fed s = open_feeder(1, 1);
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
    assert_int_equal(qv_feeder_put(s.f, NULL, NULL, NULL, &s.err), QV_EINVAL);
    assert_int_equal(qv_feeder_push(s.f, 0, &s.err), QV_ESTATE);
    assert_int_equal(qv_feeder_pull(s.f, 0, &(qv_tokens){ 0 }, &s.err), QV_ESTATE);
    assert_null(ready(&s, 1));
    assert_null(f);
    assert_null(feed);
    for (int i = 0; i < QV_FEEDER_PIECES; i++)
        put_item(&s, 1, NULL);
    assert_int_equal(qv_feeder_add(s.f, QV_INPUT_FRAMES, &item, "x", NULL, &feed, &s.err), QV_OK);
    assert_int_equal(qv_feeder_put(s.f, feed, NULL, NULL, &s.err), QV_EFULL);
    assert_non_null(ready(&s, 0));
    assert_int_equal(qv_feeder_put(s.f, feed, NULL, NULL, &s.err), QV_OK);
    close_feeder(&s);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_dropped_item_goes_no_further),
        cmocka_unit_test(an_item_stays_on_its_device),
        cmocka_unit_test(pairs_wait_while_the_device_works),
        cmocka_unit_test(a_lone_image_pays_for_itself),
        cmocka_unit_test(data_may_come_with_each_put),
        cmocka_unit_test(what_is_not_valid_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
