/* SPDX-License-Identifier: MIT */
/* Tests cuts of clips: every frame of a cut is, byte for byte, the frame of that number of the
 * whole clip, whether it was reached by a seek or from the beginning; and after a seek no more is
 * read than is needed. */
#include "test.h"

#include <math.h>
#include <sys/stat.h>
#include <fcntl.h>
#include <unistd.h>

#include "../clips/clips.h"
#include "../decoder/decoder.h"
#include "h264_writer.h"
#include "make_clips.h"
#include "read_clip.h"
#include "tempdir.h"

enum { MOST_FRAMES = 512 };

/* Every frame, in its own size, which does not follow from their number then. */
static struct clip_read
read_cut(const char *name, double start_s, double end_s, int threads)
{
    const qv_clip_options options = { .fps = 1e6,
                                      .max_frames = MOST_FRAMES,
                                      .min_pixels = 1,
                                      .max_pixels = (int64_t)1 << 40,
                                      .threads = threads,
                                      .start_s = start_s,
                                      .end_s = end_s };
    return read_clip(name, &options);
}

static void
check_cut(const char *name, const struct clip_read *whole, int64_t first, int64_t n, int threads)
{
    const double fps = whole->info.source_fps;
    const bool rest = first + n == whole->n; /* an end that is not said */
    const double end_s = rest ? 0.0 : (double)(first + n) / fps;
    const struct clip_read cut = read_cut(name, (double)first / fps, end_s, threads);
    if (cut.status || cut.n != n || cut.info.first_frame != first || cut.info.cut_frames != n)
        fail_msg("%s, %d frames from %d: status %d (%s), %d frames from %d", name, (int)n,
                 (int)first, (int)cut.status, cut.error.text, (int)cut.n,
                 (int)cut.info.first_frame);
    assert_int_equal(cut.info.source_frames, whole->info.source_frames);
    for (int64_t i = 0; i < n; i++) {
        if (cut.frames[i].hash != whole->frames[first + i].hash)
            fail_msg("%s, %d frames from %d: frame %d has other bytes", name, (int)n, (int)first,
                     (int)i);
        assert_true(cut.frames[i].time_s == whole->frames[first + i].time_s);
    }
}

/* Beginnings on, before and after keyframes, which are 5 apart; to the end and not. */
TEST(cuts_are_of_the_whole)
{
    static const char *const names[] = {
        "back.mp4",         "front.mp4",     "pieces.mp4",     "whole.mkv",     "whole.avi",
        "whole.ts",         "whole.m4v",     "x264.mp4",       "x264-open.mkv", "x265.mp4",
        "vp8.webm",         "vp9.webm",      "vfr.mp4",        "vfr.mkv",       "gaps.mp4",
        "negative.mp4",     "negative.nut",  "start-at-5.mp4", "wait-long.mp4", "show-twice.mp4",
        "at-once.mp4",      "backwards.mp4", "over.mp4",       "under.mp4",     "reordered.mp4",
        "reordered-13.mp4", "reordered.mkv", "reordered.ts",   "no-keys.mkv",   "false-keys.mp4",
        "formats.mov",      "sizes.avi",
    };
    EACH (one, names) {
        if (!clip_is_possible(*one))
            continue;
        clip_write(*one);
        const struct clip_read whole = read_cut(*one, 0, 0, 1);
        if (whole.status)
            fail_msg("%s: %s", *one, whole.error.text);
        const int64_t last = whole.n - 1;
        const int64_t cuts[][2] = { { 1, 1 },        { 4, 3 },        { 5, 1 },   { 6, 5 },
                                    { last / 2, 2 }, { last - 4, 5 }, { last, 1 } };
        for (size_t c = 0; c < LENGTH(cuts); c++)
            check_cut(*one, &whole, cuts[c][0], cuts[c][1], c % 2 ? 2 : 1);
    }
}

/* ---- what is decoded ------------------------------------------------------------------------- */

static void
count(void *user)
{
    ++*(int64_t *)user;
}

struct sampled {
    qv_outcome info;
    int64_t n_read;    /* packets that were read, */
    int64_t n_opening; /* and those of them to open it */
    int64_t n_given;   /* packets to decoders, */
    int64_t n_counted; /* without those that frames were counted by */
    uint64_t hash[MOST_FRAMES];
};

/* Reads frames[n] of a clip and no others, in the clip's own size. An index that another reader
 * made is used; without one it is made. */
static void
read_frames(const char *name, const int64_t *frames, int64_t n, int threads, qvm_index **index,
            struct sampled *f)
{
    atomic_bool stop;
    atomic_init(&stop, false);
    memset(f, 0, sizeof *f);
    const qvm_watch watch = {
        .stop = &stop, .alive = count, .user = &f->n_read, .asked.threads = threads, .index = *index
    };
    qvm_reader reader;
    qv_error err = { QV_OK, "" };
    const int fd = open(name, O_RDONLY);
    assert_true(fd >= 0);
    qv_status status = qvm_reader_open(&reader, fd, &watch, &f->info, &err);
    const int height = f->info.source_height, width = f->info.source_width;
    const size_t bytes = 3 * (size_t)height * (size_t)width;
    uint8_t *rgb = test_alloc(bytes);
    f->n_counted = qvm_reader_decoded(&reader) - reader.source.n_given;
    f->n_opening = f->n_read;
    if (!*index && !status) {
        *index = qvm_index_make(&reader);
        assert_true(*index &&
                    qvm_index_is_whole(*index, (int64_t)qvm_index_bytes((*index)->n_entries)));
    }
    if (!status)
        status = qvm_reader_start(&reader, frames, n, 1, 1, &err);
    for (int64_t i = 0; !status && i < n; i++) {
        status = qvm_reader_read(&reader, frames[i], height, width, rgb, &err);
        f->hash[i] = test_hash(TEST_HASH, rgb, bytes);
    }
    if (status)
        fail_msg("%s: %s", name, err.text);
    f->n_given = qvm_reader_decoded(&reader) - f->n_counted;
    qvm_reader_close(&reader);
    close(fd);
}

/* The numbers of packets that are decoded, and that are decoded to count the frames, follow from
 * the information in each codec and container. With an earlier reader's index, none are decoded for
 * counting, and the frames are the same. */
TEST(decodes_what_is_needed)
{
    static const struct {
        const char *name;
        int64_t n, of;         /* so many frames of so many; n 1: frame 293 */
        int64_t least, most;   /* packets for these */
        bool is_counted_whole; /* by decoding all */
    } clips[] = {
        /* of a group of 5 those up to the fourth, and what the first frame took */
        { "long.mp4", 1, 300, 1, 8, false },
        { "long.mkv", 1, 300, 1, 8, true },
        { "long.avi", 1, 300, 1, 8, false },
        { "long-reordered.mp4", 1, 300, 1, 8, false },
        { "no-keys.mkv", 1, 300, 290, 302, true },
        { "false-keys.mp4", 1, 300, 290, 302, false },
        { "x264-pyramid.mkv", 3, 60, 3, 12, false },
        { "x264-pyramid.ts", 3, 60, 3, 12, false },
        { "x264-refresh.mkv", 3, 60, 10, 30, false }, /* it has one start */
        { "x264-fields.mkv", 3, 40, 3, 16, false },
        { "paff.mkv", 3, 40, 3, 16, true }, /* pairs of fields in a packet, among frames */
        { "paff.mp4", 3, 40, 3, 16, false },
        { "paff-all.mkv", 3, 40, 3, 16, true },
        { "paff-half.mkv", 3, 37, 30, 100, true },  /* FFmpeg has no such pairs */
        { "paff-alone.mkv", 3, 40, 30, 100, true }, /* packets are not frames */
        { "packed.avi", 3, 40, 40, 60, true },      /* without times, some without a picture */
        { "packed.mkv", 3, 40, 40, 60, true },      /* with those of other frames */
        { "x264-edit.mp4", 3, 35, 34, 60, true },
        { "x265-layers.mkv", 3, 60, 3, 30, false },
        { "x265-leading.ts", 3, 60, 3, 24, false },
        { "vp9-hidden.webm", 3, 60, 31, 60, false }, /* hidden frames are parts of a packet */
        { "av1.mkv", 3, 60, 31, 60, false },
        { "whole.ts", 3, 40, 10, 40, true }, /* MPEG-2, in groups that may be open */
    };
    EACH (c, clips) {
        static struct sampled f, again;
        int64_t frames[MOST_FRAMES] = { 293 };
        if (!clip_is_possible(c->name))
            continue;
        clip_write(c->name);
        for (int64_t i = 0; c->n > 1 && i < c->n; i++)
            frames[i] = (c->of - 1) * i / (c->n - 1);
        qvm_index *index = NULL;
        read_frames(c->name, frames, c->n, 1, &index, &f);
        read_frames(c->name, frames, c->n, 2, &index, &again);
        free(index);
        if (again.n_counted || again.n_opening > f.n_opening)
            fail_msg("%s: an index, but %d packets to open it", c->name, (int)again.n_opening);
        assert_memory_equal(&again.info, &f.info, sizeof f.info);
        assert_memory_equal(again.hash, f.hash, (size_t)c->n * sizeof *f.hash);
        if (f.n_given < c->least || f.n_given > c->most)
            fail_msg("%s: %d packets", c->name, (int)f.n_given);
        if (c->is_counted_whole != (f.n_counted > 0))
            fail_msg("%s: %d packets to count", c->name, (int)f.n_counted);
    }
}

/* A packet of two fields may be left out only if no picture refers to either of them
 * (7.4.1). No clip of FFmpeg's encoders has fields of two kinds in a packet, so the
 * packets are written here. */
TEST(fields_are_told)
{
    static const struct {
        bool first, second, spare;
    } pairs[] = { { false, false, true },
                  { true, false, false },
                  { false, true, false },
                  { true, true, false } };
    const AVCodecParameters par = { .codec_id = AV_CODEC_ID_H264 };
    EACH (c, pairs) {
        uint8_t bytes[3 * H264_MOST_BYTES];
        h264_picture field = { .shows = 1, .is_field = true, .referred = c->first };
        size_t n = h264_write_picture(bytes, &field);
        field.is_bottom = true;
        field.referred = c->second;
        n += h264_write_picture(bytes + n, &field);
        const AVPacket packet = { .data = bytes, .size = (int)n };
        const qvm_packet p = qvm_look_at_packet(&par, &packet);
        assert_int_equal(p.spare, c->spare);
        assert_false(p.start || p.parameters);
        assert_int_equal(p.shown, 2);
    }
    uint8_t bytes[3 * H264_MOST_BYTES];
    const h264_picture key = { .idr = true, .referred = true };
    size_t n = h264_write_parameters(bytes);
    n += h264_write_picture(bytes + n, &key);
    const AVPacket packet = { .data = bytes, .size = (int)n, .flags = AV_PKT_FLAG_KEY };
    const qvm_packet p = qvm_look_at_packet(&par, &packet);
    assert_true(p.start && p.parameters && !p.spare && p.shown == 1);
}

/* Some decoders make other frames of damaged data with several threads, but only sometimes, so that
 * no outcome shows it for sure. So the number of threads is tested. */
TEST(decoders_differ_in_threads)
{
    static const struct {
        const char *name;
        int asked, least, most;
    } cases[] = { { "x265.mp4", 0, 1, 1 },
                  { "x265.mp4", 2, 2, 2 },
                  { "x264.mp4", 2, 2, 2 },
                  { "whole.avi", 2, 1, 1 },
                  { "vp8.webm", 2, 1, 1 } };
    atomic_bool stop;
    int64_t n_read = 0;
    atomic_init(&stop, false);
    EACH (c, cases) {
        const qvm_watch watch = { .stop = &stop, .alive = count, .user = &n_read };
        qvm_source source;
        qv_error err = { QV_OK, "" };
        if (!clip_is_possible(c->name))
            continue;
        clip_write(c->name);
        const int fd = open(c->name, O_RDONLY);
        if (qvm_source_open(&source, fd, &watch, &err) ||
            qvm_source_open_decoder(&source, c->asked, &err))
            fail_msg("%s: %s", c->name, err.text);
        const int n = source.codec.av->thread_count;
        if (n < c->least || n > c->most)
            fail_msg("%s: %d threads where %d were asked for", c->name, n, c->asked);
        qvm_source_close(&source);
        close(fd);
    }
}

/* A decoder's message that only occurs with damage counts as an error, whatever its level in
 * FFmpeg. */
TEST(complaints_are_counted)
{
    atomic_bool stop;
    int64_t n_read = 0;
    atomic_init(&stop, false);
    const qvm_watch watch = { .stop = &stop, .alive = count, .user = &n_read };
    qvm_source source;
    clip_write("back.mp4");
    const int fd = open("back.mp4", O_RDONLY);
    assert_ok(qvm_source_open(&source, fd, &watch, ERR) ||
              qvm_source_open_decoder(&source, 1, ERR));
    const int before = source.codec.complaints;
    av_log(source.codec.av, AV_LOG_WARNING, "deprecated\n");
    av_log(NULL, AV_LOG_ERROR, "of nobody\n");
    assert_int_equal(source.codec.complaints, before);
    av_log(source.codec.av, AV_LOG_INFO, "concealing %d DC errors\n", 7);
    assert_int_equal(source.codec.complaints, before + 1);
    av_log(source.codec.av, AV_LOG_ERROR, "bad block\n");
    assert_int_equal(source.codec.complaints, before + 2);
    qvm_source_close(&source);
    close(fd);
}

/* ---- what is asked for ----------------------------------------------------------------------- */

/* A cut's bounds are compared with the very numbers that timestamps are. */
TEST(bounds_are_timestamps)
{
    static const double rates[] = { 25.0, 30000.0 / 1001, 29.97, 24000.0 / 1001, 10.0, 7.3, 1e-3 };
    static const qvm_rules *const rules[] = { &qvm_qwen3_vl, &qvm_qwen2_vl };
    EACH (one, rates) {
        const qv_outcome info = { .source_frames = 1000, .source_fps = *one };
        for (int64_t i = 0; i < 1000; i++) {
            const double at = (double)i / *one;
            const double after = nextafter(at, INFINITY);
            const struct qvm_task cuts[] = { { .start_s = at, .end_s = INFINITY },
                                             { .start_s = after, .end_s = INFINITY },
                                             { .end_s = at },
                                             { .end_s = after } };
            const int64_t first[] = { i, i + 1, 0, 0 }, n[] = { 1000 - i, 999 - i, i, i + 1 };
            for (size_t c = i ? 0 : 3; c < LENGTH(cuts); c++) {
                int64_t from = -1, frames = -1;
                rules[i % 2]->cut(&info, &cuts[c], &from, &frames);
                if (from != first[c] || frames != n[c])
                    fail_msg("frame %d at %g: cut %d has %d frames from %d", (int)i, *one, (int)c,
                             (int)frames, (int)from);
            }
        }
    }
}

/* A cut is sampled as if it were the whole clip. */
TEST(sampling_is_of_the_cut)
{
    qv_preprocess p = qv_preprocess_default(false);
    for (int class = 0; class < 2; class ++) {
        p.processor = class ? QV_PROCESSOR_QWEN2_VL : QV_PROCESSOR_QWEN3_VL;
        qv_outcome part = { .source_frames = 1000, .source_fps = 25, .source_height = 64 };
        qv_outcome alone = { .source_frames = 333, .source_fps = 25, .source_height = 64 };
        part.source_width = alone.source_width = 96;
        int64_t *cut = NULL, *whole = NULL;
        const qv_clip_options o = { .start_s = 4, .end_s = 17.32 };
        struct qvm_task cuts, takes_all;
        assert_int_equal(qvm_task_make("clip", NULL, &p, &o, &cuts, NULL), QV_OK);
        assert_int_equal(qvm_task_make("clip", NULL, &p, NULL, &takes_all, NULL), QV_OK);
        assert_int_equal(qvm_choose(&cuts, &part, &cut, NULL), QV_OK);
        assert_int_equal(qvm_choose(&takes_all, &alone, &whole, NULL), QV_OK);
        assert_int_equal(part.first_frame, 100);
        assert_int_equal(part.cut_frames, 333);
        assert_int_equal(part.source_frames, 1000);
        assert_int_equal(part.n_frames, 26);
        assert_int_equal(alone.n_frames, 26);
        assert_true(part.sampled_fps == alone.sampled_fps);
        assert_memory_equal(part.grid_thw, alone.grid_thw, sizeof part.grid_thw);
        for (int64_t i = 0; i < part.n_frames; i++)
            assert_int_equal(cut[i], 100 + whole[i]);
        free(cut);
        free(whole);
    }
}

TEST(words_say_what_is_wrong)
{
    static const char clip[] = "back.mp4", image[] = "dot.ppm";
    static const struct {
        const char *name;
        double start_s, end_s;
        const char *words;
        qv_like like;
    } cases[] = {
        { clip, -1, 0, "start is -1; it must be a number of at least 0", 0 },
        { clip, NAN, 0, "nan; it must be a number of at least 0", 0 },
        { clip, INFINITY, 0, "start is inf; it must be a number of at least 0", 0 },
        { clip, 0, -0.5, "end is -0.5; it must be a number above 0", 0 },
        { clip, 0, NAN, "nan; it must be a number above 0", 0 },
        { clip, 0, INFINITY, "end is inf; it must be a number above 0", 0 },
        { clip, 2, 2, "end (2) must be greater than start (2)", 0 },
        { clip, 2, 1, "end (1) must be greater than start (2)", 0 },
        { clip, 4, 0,
          "start 4: no frame lies in this stretch; the clip has 40 frames at 10 per second, the "
          "last one at 3.9 s",
          0 },
        { clip, 1e300, 0, "no frame lies in this stretch", 0 },
        { clip, 1.01, 1.09, "no frame lies in", 0 },
        { clip, 3.9, 0, "no frame lies in", QV_LIKE_QWEN_VL_UTILS },
        { image, 1, 0, "start 1: an image has no dur", 0 },
        { image, 0, 1, "start 0, end 1: an image has no dur", 0 },
    };
    clip_write(clip);
    clip_write_bytes(image, (clip_bytes){ (uint8_t[]){ "P6\n1 1\n255\nrgb" }, 14 });
    EACH (c, cases) {
        const qv_clip_options o = { .start_s = c->start_s, .end_s = c->end_s, .like = c->like };
        const struct clip_read r = read_clip(c->name, &o);
        expect_failure(c->name, QV_EINVAL, c->words, r.status, &r.error);
        assert_ptr_equal(strstr(r.error.text, c->name), r.error.text);
    }
}

/* A cut that ends after the clip's end ends with the clip. */
TEST(ends_behind_the_end)
{
    clip_write("back.mp4");
    const struct clip_read whole = read_cut("back.mp4", 0, 0, 1);
    const struct clip_read cut = read_cut("back.mp4", 3.5, 1e300, 1);
    assert_int_equal(whole.info.first_frame, 0);
    assert_int_equal(whole.info.cut_frames, 40);
    assert_int_equal(cut.info.first_frame, 35);
    assert_int_equal(cut.n, 5);
    for (int i = 0; i < 5; i++)
        assert_true(cut.frames[i].hash == whole.frames[35 + i].hash);
}

/* ---- main ------------------------------------------------------------------------------------ */

TEST_GROUP(clips_enter_folder, clips_leave_folder);
