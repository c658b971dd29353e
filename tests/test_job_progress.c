/* SPDX-License-Identifier: MIT */
/* Tests that a job's progress names the limiting stage correctly, however early it is queried. */
#include "test.h"

#include <unistd.h>

#include "qwenvit_clips.h"
#include "tiny.h"

static qv_status
take_rows(void *user, void *entry, const qv_job_result *r, const qv_job_rows *rows, qv_error *err)
{
    const useconds_t *slow_us = user;
    usleep(*slow_us);
    return QV_OK;
}

static qv_job *
job_open(const struct tiny *t, qv_job_options o, useconds_t *slow_us)
{
    qv_job *job = NULL;
    o.sink = (qv_job_sink){ .rows = take_rows, .user = slow_us };
    o.chunk_rows = 16;
    assert_ok(qv_job_open(&t->model, 1, &o, &job, ERR));
    return job;
}

static void
add(qv_job *job, const uint8_t *frames, const int64_t g[3])
{
    const qv_job_source s = {
        .key = "frames",
        .kind = QV_SOURCE_FRAMES,
        .item = { .data = frames, .grid_thw = { g[0], g[1], g[2] } },
    };
    assert_ok(qv_job_add(job, &s, ERR));
}

static const struct qv_backend *quick;

static qv_status
run_slowly(struct qv_device *dev, const struct qv_call *calls, size_t n, qv_error *err)
{
    usleep(n > 1 ? 20000 : 0); /* a chunk's list; loading has lists of one */
    return quick->run(dev, calls, n, err);
}

/* Runs a job with one slow stage, in which sources wait for room in chunks or in packs. From a
 * second after that stage began its work (first_s) on, progress always names it as the limit. */
static void
expect_limit(const struct tiny *t, const int64_t g[3], int n, useconds_t slow_us, const char *limit)
{
    const bool sinks = !strcmp(limit, "sink");
    uint8_t *frames = tiny_frames(t, 2 * g[0], g[1], g[2], 1);
    qv_job *job = job_open(t, (qv_job_options){ .decoders = 1, .queue = 4096 }, &slow_us);
    qv_job_progress p = { 0 };
    double first_s = 0;
    int asked = 0;
    for (int i = 0; i < n; i++)
        add(job, frames, g);
    for (; p.done < n; usleep(1000)) {
        qv_job_get_progress(job, &p);
        first_s = first_s > 0 || (sinks ? p.sink_s : p.device_s) <= 0 ? first_s : p.elapsed_s;
        assert_true(p.decode_s >= 0 && p.decode_s + p.room_s <= p.elapsed_s + 1e-3);
        assert_true(p.device_s <= p.elapsed_s + 1e-3 && p.sink_s <= p.elapsed_s + 1e-3);
        if (p.done == n || first_s <= 0 || p.elapsed_s < first_s + 1)
            continue;
        asked++;
        if (strcmp(p.limit, limit) != 0)
            fail_msg("after %.3f s %s limits, not %s: decoding %.3f, room %.3f, device %.3f, sink "
                     "%.3f",
                     p.elapsed_s, p.limit, limit, p.decode_s, p.room_s, p.device_s, p.sink_s);
    }
    assert_true(asked > 10);
    qv_job_close(&job);
}

TEST(the_slow_stage_limits)
{
    enum { SLOW_SINK_US = 400000 }; /* much longer than a chunk takes on ref */
    static const int64_t large[3] = { 8, 4, 4 }, small[3] = { 1, 2, 2 };
    struct tiny t = tiny_open("ref", QV_F32, 1);
    expect_limit(&t, small, 1, 6 * SLOW_SINK_US, "sink");
    expect_limit(&t, small, 5, SLOW_SINK_US, "sink");
    expect_limit(&t, large, 1, SLOW_SINK_US, "sink");
    struct qv_backend slow = *t.ctx->backend;
    quick = t.ctx->backend;
    slow.run = run_slowly;
    t.ctx->backend = &slow;
    expect_limit(&t, large, 8, 0, "device");
    expect_limit(&t, small, 400, 0, "device"); /* more than may wait to be packed */
    t.ctx->backend = quick;
}
