/* SPDX-License-Identifier: MIT */
/* Opens clips, and reads them frame by frame. Include this file after test.h. */
#pragma once

#include "qwenvit_clips.h"

struct clip_read {
    qv_status status;
    qv_error error;
    qv_outcome info; /* as it was at the end */
    int64_t n;
    uint64_t hash; /* of all frames */
    struct {
        uint64_t hash, seen;
        double time_s;
    } * frames; /* [n] */
};

static inline void
close_clip(void *clip)
{
    qv_clip_close(&(qv_clip *){ clip });
}

/* A clip that can be opened. It is closed when the test is over. */
static inline qv_clip *
open_clip(const char *path, const qv_clip_options *options)
{
    qv_clip *clip = NULL;
    assert_ok(qv_clip_open(path, NULL, NULL, options, &clip, ERR));
    return test_ends(clip, close_clip);
}

static inline qv_outcome
clip_info(const qv_clip *clip)
{
    qv_outcome info;
    qv_clip_get_info(clip, &info);
    return info;
}

/* Reads a clip to its end, or until it fails. `see`, unless NULL, extracts a number from a
 * frame. */
static inline struct clip_read
read_clip_seeing(const char *path, const qv_clip_options *options,
                 uint64_t (*see)(const uint8_t *rgb, int width, int height))
{
    struct clip_read r = { .hash = TEST_HASH };
    qv_clip *clip = NULL;
    int64_t got = 1;
    r.status = qv_clip_open(path, NULL, NULL, options, &clip, &r.error);
    if (r.status)
        return r;
    r.info = clip_info(clip);
    const size_t bytes = 3 * (size_t)r.info.width * (size_t)r.info.height;
    uint8_t *rgb = test_alloc(bytes);
    r.frames = test_alloc((size_t)(r.info.n_frames + 1) * sizeof *r.frames);
    for (;; r.n++) {
        r.status = qv_clip_read(clip, rgb, 1, &got, &r.frames[r.n].time_s, &r.error);
        if (r.status || !got)
            break;
        assert_true(r.n < r.info.n_frames);
        r.frames[r.n].hash = test_hash(TEST_HASH, rgb, bytes);
        r.hash = test_hash(r.hash, &r.frames[r.n].hash, sizeof r.hash);
        r.frames[r.n].seen = see ? see(rgb, (int)r.info.width, (int)r.info.height) : 0;
    }
    if (r.status) /* and so it stays */
        assert_int_equal(qv_clip_read(clip, rgb, 1, &got, NULL, NULL), r.status);
    test_end(rgb);
    r.info = clip_info(clip);
    qv_clip_close(&clip);
    return r;
}

static inline struct clip_read
read_clip(const char *path, const qv_clip_options *options)
{
    return read_clip_seeing(path, options, NULL);
}
