/* SPDX-License-Identifier: MIT */
#include "compare_frames.h"

#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "../decoder/decoder.h"
#include "judge.h"

#define MOST_ASPECT 200 /* of clips for a tower: the public interface refuses higher rates */

/* ---- FFmpeg's frames ------------------------------------------------------------------------- */

/* A clip as FFmpeg alone decodes and converts it. */
struct judged {
    int64_t n;
    bool sound;
    uint64_t planes[COMPARE_MOST_FRAMES], rgb[COMPARE_MOST_FRAMES]; /* rgb 0: of another size */
    int width, height;
    bool planes_alone; /* RGB is not compared */
};

static void
take_frame(void *user, int64_t number, const AVFrame *frame)
{
    struct judged *j = user;
    if (number == COMPARE_MOST_FRAMES)
        fail_msg("more than %d frames", COMPARE_MOST_FRAMES);
    if (!number) {
        j->width = frame->width;
        j->height = frame->height;
    }
    j->planes[number] = judge_hash(frame);
    j->rgb[number] = 0;
    AVFrame *rgb = !j->planes_alone && frame->width == j->width && frame->height == j->height
                       ? judge_rgb(frame)
                       : NULL;
    if (rgb)
        j->rgb[number] =
            judge_hash_rows(rgb->data[0], rgb->linesize[0], 3 * (size_t)rgb->width, rgb->height);
    av_frame_free(&rgb);
}

static void
judge_file(const char *name, bool planes_alone, struct judged *j)
{
    memset(j, 0, sizeof *j);
    j->planes_alone = planes_alone;
    j->n = judge_decode(name, take_frame, j, &j->sound);
}

static uint64_t
hash_image(const uint8_t *rgb, const struct judged *j)
{
    const size_t row = 3 * (size_t)j->width;
    return judge_hash_rows(rgb, (int64_t)row, row, j->height);
}

/* ---- the reader's ---------------------------------------------------------------------------- */

struct selection {
    int64_t frames[COMPARE_MOST_FRAMES], n;
    int threads;
};

struct outcome {
    qv_status status;
    qv_error err;
    qv_outcome info;
    const char *why;
};

static void
ignore(void *user)
{
}

/* Keeps only the first difference. */
static void
find(compared *result, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (!*result->wrong)
        vsnprintf(result->wrong, sizeof result->wrong, format, args);
    va_end(args);
}

static void
check_frame(const struct judged *j, const struct selection *s, int64_t i, qvm_reader *r,
            const qv_outcome *info, const uint8_t *rgb, compared *result)
{
    const int64_t frame = s->frames[i];
    const bool other = judge_hash(r->last) != j->planes[frame];
    const bool other_rgb = !info->rotation && j->rgb[frame] && hash_image(rgb, j) != j->rgb[frame];
    if (other || other_rgb)
        find(result,
             "%s of frame %d, number %d of %d that are asked for from %d on, with %d threads "
             "(%s; %d damaged)",
             other ? "planes" : "RGB", (int)frame, (int)i, (int)s->n, (int)s->frames[0], s->threads,
             r->why ? r->why : "packets left out", (int)qvm_reader_damaged(r));
}

/* Reads the selected frames in the file's own size, and compares each. Uses the index of an earlier
 * reader, or makes one. With `j` NULL the file is only opened. */
static struct outcome
read_frames(const char *name, const struct judged *j, const struct selection *s, qvm_index **index,
            compared *result)
{
    static uint8_t *rgb;
    atomic_bool stop;
    atomic_init(&stop, false);
    const qvm_watch watch = {
        .stop = &stop, .alive = ignore, .asked.threads = s->threads, .index = *index
    };
    struct outcome o = { .status = QV_OK };
    qvm_reader r;
    const int fd = open(name, O_RDONLY);
    assert_true(fd >= 0);
    o.status = qvm_reader_open(&r, fd, &watch, &o.info, &o.err);
    if (!o.status && !*index) {
        *index = qvm_index_make(&r);
        assert_non_null(*index);
    }
    if (!o.status && s->n)
        o.status = qvm_reader_start(&r, s->frames, s->n, 1, 1, &o.err);
    const bool small = j && j->planes_alone;
    const int height = small ? 8 : o.info.source_height, width = small ? 8 : o.info.source_width;
    rgb = malloc(3 * (size_t)height * (size_t)width + 1);
    assert_non_null(rgb);
    for (int64_t i = 0; !o.status && i < s->n; i++) {
        o.status = qvm_reader_read(&r, s->frames[i], height, width, rgb, &o.err);
        if (!o.status && j)
            check_frame(j, s, i, &r, &o.info, rgb, result);
    }
    free(rgb);
    o.why = r.why;
    qvm_reader_close(&r);
    close(fd);
    return o;
}

/* ---- selections ------------------------------------------------------------------------------ */

static void
select_every(struct selection *s, int64_t from, int64_t end, int64_t step)
{
    s->n = 0;
    for (int64_t i = from; i < end; i += step)
        s->frames[s->n++] = i;
}

struct comparison {
    const char *name;
    struct judged *judged;
    struct selection selection;
    qvm_index *index;
    compared result;
};

static void
compare(struct comparison *c, int64_t from, int64_t end, int64_t step, int threads, bool known)
{
    qvm_index *none = NULL;
    c->selection.threads = threads;
    select_every(&c->selection, from, end, step);
    if (!c->selection.n)
        return;
    const struct outcome o =
        read_frames(c->name, c->judged, &c->selection, known ? &c->index : &none, &c->result);
    if (o.status)
        find(&c->result, "%s", o.err.text);
    if (o.info.source_frames != c->judged->n)
        find(&c->result, "%d frames, but FFmpeg decodes %d", (int)o.info.source_frames,
             (int)c->judged->n);
    c->result.left_out = c->result.left_out && !o.why;
    if (o.why)
        snprintf(c->result.why, sizeof c->result.why, "%s", o.why);
    free(none);
}

/* Reads stretches and rates through the public interface, in seconds. */
static void
compare_cut(struct comparison *c, double start_s, double end_s, double fps)
{
    const qv_clip_options options = { .fps = fps,
                                      .max_frames = COMPARE_MOST_FRAMES,
                                      .min_pixels = 1,
                                      .max_pixels = (int64_t)1 << 40,
                                      .start_s = start_s,
                                      .end_s = end_s };
    const struct judged *j = c->judged;
    qv_clip *clip = NULL;
    qv_outcome info;
    qv_error err;
    if (j->width > MOST_ASPECT * j->height || j->height > MOST_ASPECT * j->width)
        return;
    if (qv_clip_open(c->name, NULL, NULL, &options, &clip, &err)) {
        find(&c->result, "from %g to %g: %s", start_s, end_s, err.text);
        return;
    }
    qv_clip_get_info(clip, &info);
    /* sides that are not multiples are resized */
    const bool same = info.width == j->width && info.height == j->height && !info.rotation;
    uint8_t *rgb = malloc(3 * (size_t)info.width * (size_t)info.height);
    assert_non_null(rgb);
    int64_t n = 1;
    double seconds = 0;
    while (!qv_clip_read(clip, rgb, 1, &n, &seconds, &err) && n) {
        const int64_t frame = llround(seconds * info.source_fps);
        if (frame < 0 || frame >= j->n)
            find(&c->result, "frame %d of %d", (int)frame, (int)j->n);
        else if (same && j->rgb[frame] && hash_image(rgb, j) != j->rgb[frame])
            find(&c->result, "RGB of frame %d, from %g to %g at %g fps", (int)frame, start_s, end_s,
                 fps);
    }
    if (n)
        find(&c->result, "from %g to %g: %s", start_s, end_s, err.text);
    free(rgb);
    qv_clip_close(&clip);
}

static void
compare_many(struct comparison *c, const qv_outcome *info, compare_depth depth)
{
    static const int64_t steps[] = { 2, 3, 5, 12 };
    const int64_t n = c->judged->n;
    const double rate = info->source_fps;
    for (int i = 0; i < 8; i += depth == COMPARE_SOME ? 3 : 1)
        compare(c, steps[i % 4] / 2, n, steps[i % 4], i < 4 ? 1 : 3, i % 2);
    compare(c, n / 3, 2 * n / 3, 1, 1, false);
    compare(c, n / 2, n, 2, 3, true);
    const int64_t alone = depth == COMPARE_SOME ? n / 5 + 1 : n > 40 ? 7 : 1;
    for (int64_t i = 0; i < n; i += alone)
        compare(c, i, i + 1, 1, i % 2 ? 3 : 1, i % 5);
    compare_cut(c, 0, 0, rate / 2);
    compare_cut(c, (double)(n / 2) / rate, 0, rate);
    compare_cut(c, (double)(n / 3) / rate, (double)(n / 3 + 3) / rate, rate);
}

compared
compare_frames(const char *name, compare_depth depth)
{
    static struct judged judged;
    static struct comparison c;
    c = (struct comparison){ .name = name, .judged = &judged, .result = { .left_out = true } };
    judge_file(name, depth == COMPARE_FEW, &judged);
    const struct selection none = { .threads = 1 };
    const struct outcome whole = read_frames(name, NULL, &none, &c.index, &c.result);
    c.result.n = judged.n;
    c.result.refused = whole.status;
    if (whole.status)
        snprintf(c.result.why, sizeof c.result.why, "%.120s", whole.err.text);
    c.result.is_image = whole.info.is_image;
    c.result.sound = judged.sound;
    if (!whole.status && !whole.info.is_image && judged.n > 0) {
        compare(&c, 0, judged.n, 1, 1, false);
        compare(&c, 1, judged.n, 3, depth == COMPARE_FEW ? 3 : 1, true);
        compare(&c, judged.n - 1, judged.n, 1, 1, false);
        if (depth != COMPARE_FEW)
            compare_many(&c, &whole.info, depth);
    }
    free(c.index);
    return c.result;
}
