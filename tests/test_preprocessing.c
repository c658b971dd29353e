/* SPDX-License-Identifier: MIT */
/* Tests preprocessing: the rules against transformers' numbers, the resize against
 * torchvision's, and decoding with clips that the test makes. */
#include "test.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../clips/clips.h"
#include "../decoder/decoder.h"
#include "make_clips.h"
#include "read_clip.h"
#include "tempdir.h"
#include "command/tool.h"

/* ---- rules: numbers from transformers 5.23 --------------------------------------------------- */

typedef struct sampled {
    int64_t total;
    double source_fps, fps;
    int64_t num_frames, least, most, n, hash;
} sampled;

static int64_t
hash_numbers(const int64_t *numbers, int64_t n)
{
    int64_t hash = 0;
    for (int64_t i = 0; i < n; i++)
        hash = (hash * 31 + numbers[i]) % 1000000007;
    return hash;
}

static void
check_sampled(const qvm_rules *rules, const sampled *cases, size_t n_cases)
{
    for (const sampled *c = cases; c < cases + n_cases; c++) {
        const qv_outcome info = { .cut_frames = c->total, .source_fps = c->source_fps };
        const struct qvm_task t = { .num_frames = c->num_frames };
        qv_preprocess p = qv_preprocess_default(false);
        p.fps = c->fps;
        p.min_frames = c->least;
        p.max_frames = c->most;
        p.max_duration = 300;
        int64_t indices[1024], n = 0;
        assert_ok(rules->count(&info, &p, &t, &n, ERR));
        assert_int_equal(n, c->n);
        rules->fill(&info, &p, n, indices);
        assert_int_equal(hash_numbers(indices, n), c->hash);
    }
}

TEST(test_sample_frames)
{
    static const sampled cases[] = {
        { 325, 25.0, 2.0, 0, 4, 768, 26, 997334516 },
        { 1, 25.0, 2.0, 0, 4, 768, 1, 0 },
        { 2, 30.0, 2.0, 0, 4, 768, 2, 1 },
        { 3, 30.0, 2.0, 0, 4, 768, 3, 33 },
        { 300, 29.97002997002997, 2.0, 0, 4, 768, 20, 222361896 },
        { 100000, 30.0, 2.0, 0, 4, 768, 768, 977239810 },
        { 431, 24.0, 0.5, 0, 4, 768, 8, 836673061 },
        { 50, 10.0, 2.0, 0, 4, 768, 10, 949766678 },
        { 7, 25.0, 0.0, 4, 4, 768, 4, 2052 },
        { 3, 25.0, 0.0, 8, 4, 768, 8, 29583488 },
        { 1000, 29.97, 7.3, 0, 4, 768, 243, 955691372 },
        { 999, 60.0, 59.94, 0, 4, 768, 768, 659803365 },
        { 10, 25.0, 0.0, 1, 4, 768, 1, 0 },
        /* int(175 / 30.0 * 2.4), not int(175 * 2.4 / 30.0) */
        { 175, 30.0, 2.4, 0, 4, 768, 13, 414787989 },
    };
    EACH (one, cases) {
        int64_t indices[1024];
        const int64_t n = qv_sample_frames(one->total, one->source_fps, one->fps, one->num_frames,
                                           one->least, one->most, indices);
        assert_int_equal(n, one->n);
        assert_int_equal(hash_numbers(indices, n), one->hash);
    }
    int64_t half[4]; /* 0, 1.5, 3 and 0, 0.5, 1: halves are rounded to even numbers */
    qv_sample_frames(4, 1, 0, 3, 4, 768, half);
    assert_int_equal(half[1], 2);
    qv_sample_frames(2, 1, 0, 3, 4, 768, half);
    assert_int_equal(half[1], 0);
    assert_int_equal(qv_sample_frames(0, 25, 2, 0, 4, 768, NULL), 0);
    /* a source that does not give its rate counts as 24 fps */
    assert_int_equal(qv_sample_frames(240, 0, 2, 0, 4, 768, NULL), 20);
}

/* Numbers of Qwen2VLVideoProcessor with torch 2.11; those for 766 frames need its float32
 * vectors. */
TEST(test_sample_pairs)
{
    static const sampled cases[] = {
        { 325, 25.0, 2.0, 0, 4, 768, 26, 912681750 },
        { 2, 30.0, 2.0, 0, 4, 768, 2, 1 },
        { 3, 30.0, 2.0, 0, 4, 768, 2, 1 },
        { 7, 25.0, 2.0, 0, 4, 768, 4, 1059 },
        { 300, 29.97002997002997, 2.0, 0, 4, 768, 20, 338371810 },
        { 100000, 30.0, 2.0, 0, 4, 768, 768, 737469017 },
        { 431, 24.0, 0.5, 0, 4, 768, 8, 256374745 },
        { 53946, 30.0, 30.0, 0, 4, 766, 766, 67668641 },
        { 1000, 29.97, 7.3, 0, 4, 768, 242, 552239685 },
        { 17, 25.0, 0.0, 14, 4, 768, 14, 345417540 },
        { 33, 25.0, 0.0, 5, 4, 768, 4, 8208 },
        { 90, 30.0, 2.0, 0, 7, 9, 6, 14791725 },
        { 431568, 24.0, 60.0, 0, 4, 766, 766, 337291956 },
        { 776, 30.0, 2.0, 0, 24, 24, 24, 383020418 },
        /* an error there; here the frame is paired with itself */
        { 1, 25.0, 2.0, 0, 4, 768, 1, 0 },
    };
    check_sampled(&qvm_qwen2_vl, cases, sizeof cases / sizeof *cases);
}

/* Numbers of Glm4vVideoProcessor with numpy 2. Clips above 300 seconds are spread, or taken
 * whole. */
TEST(test_sample_by_seconds)
{
    static const sampled cases[] = {
        { 325, 25.0, 2.0, 0, 4, 768, 26, 269514090 },
        { 1, 25.0, 2.0, 0, 4, 768, 2, 0 },
        { 2, 30.0, 2.0, 0, 4, 768, 2, 0 },
        { 7, 25.0, 2.0, 0, 4, 768, 2, 0 },
        { 300, 29.97002997002997, 2.0, 0, 4, 768, 20, 338371810 },
        { 9000, 30.0, 2.0, 0, 4, 768, 600, 772791234 },
        { 9001, 30.0, 2.0, 0, 4, 768, 600, 56244505 },
        { 100000, 30.0, 2.0, 0, 4, 768, 600, 642544972 },
        { 431, 24.0, 0.5, 0, 4, 768, 8, 487521669 },
        { 33, 25.0, 60.0, 0, 4, 768, 34, 441677569 }, /* each frame once, the last one again */
        { 700, 2.0, 2.5, 0, 4, 768, 700, 607852997 },
        { 7193, 23.976, 2.0, 0, 4, 768, 600, 704196857 },
        { 50000, 25.0, 0.37, 0, 4, 768, 112, 932746256 },
        { 400, 1.0, 2.0, 0, 4, 768, 400, 330503023 },
    };
    check_sampled(&qvm_glm4v, cases, sizeof cases / sizeof *cases);
}

/* A whole clip lasts as long as its packets: an ulp less than 2 s is one sample less. */
TEST(test_sample_by_duration)
{
    const struct qvm_task t = { .num_frames = 0 };
    qv_preprocess p = qv_preprocess_default(false);
    int64_t n = 0;
    p.fps = 2;
    p.max_duration = 300;
    for (int of_packets = 0; of_packets < 2; of_packets++) {
        const qv_outcome info = { .source_frames = of_packets ? 50 : 60,
                                  .cut_frames = 50,
                                  .source_fps = 25,
                                  .duration_s = nextafter(2, 0) };
        assert_ok(qvm_glm4v.count(&info, &p, &t, &n, ERR));
        assert_int_equal(n, 4); /* of 3 samples the last one comes again */
        int64_t at[4];
        qvm_glm4v.fill(&info, &p, n, at);
        assert_int_equal(at[3], of_packets ? 25 : 38);
    }
}

TEST(test_sampling_refuses)
{
    static const struct {
        const qvm_rules *rules;
        qv_clip_options o;
        int64_t max_frames;
        double fps;
        const char *words;
    } bad[] = {
        { &qvm_glm4v,
          { .num_frames = 4 },
          768,
          2,
          "num_frames is 4, but this model's processor has no such option" },
        { &qvm_glm4v, { .min_frames = 5 }, 768, 2, "min_frames is 5, but" },
        { &qvm_glm4v, { .max_frames = 6 }, 768, 2, "max_frames is 6, but" },
        { &qvm_glm4v, { .cap_pixels = true }, 768, 2, "cap_pixels is 1, but" },
        { &qvm_glm4v,
          { .fps = 1001 },
          768,
          1001,
          "fps is 1001; this model's processor allows at most 1000" },
        { &qvm_qwen2_vl, { .num_frames = 1 }, 768, 2, "num_frames is 1, rounded to 0" },
        { &qvm_qwen2_vl,
          { .num_frames = 11 },
          768,
          2,
          "num_frames is 11, rounded to 12 because this model needs frame pairs; it must be from 2 "
          "to 10" },
        { &qvm_qwen2_vl,
          { .fps = 0 },
          1,
          2,
          "max_frames 1 select less than one pair of the clip's 11" },
    };
    EACH (c, bad) {
        const qv_outcome info = { .cut_frames = 11, .source_fps = 25 };
        qv_preprocess p = qv_preprocess_default(false);
        p.fps = c->fps;
        p.max_duration = 300;
        p.min_frames = 1;
        p.max_frames = c->max_frames;
        int64_t n = 7;
        struct qvm_task t;
        assert_ok(qvm_task_make("clip", NULL, &p, &c->o, &t, ERR));
        expect_error(QV_EINVAL, c->words, c->rules->count(&info, &t.video, &t, &n, ERR));
        assert_true(n == 7 || c->rules == &qvm_qwen2_vl);
    }
}

typedef struct size_case {
    int64_t frames, height, width, out_height, out_width;
} size_case;

static void
check_sizes(const size_case *cases, size_t n, qv_processor processor, int64_t least, int64_t most)
{
    qv_preprocess p = qv_preprocess_default(false);
    p.patch_size = processor == QV_PROCESSOR_QWEN3_VL ? 16 : 14;
    p.processor = processor;
    p.min_pixels = least;
    p.max_pixels = most;
    for (const size_case *c = cases; c < cases + n; c++) {
        int64_t height = 0, width = 0;
        assert_ok(qv_smart_resize(c->frames, c->height, c->width, &p, &height, &width, ERR));
        assert_int_equal(height, c->out_height);
        assert_int_equal(width, c->out_width);
    }
}

TEST(test_smart_resize)
{
    static const size_case clips[] = {
        { 26, 180, 320, 192, 320 },  { 10, 720, 1280, 704, 1280 },  { 3, 270, 480, 256, 480 },
        { 4, 50, 50, 64, 64 },       { 768, 1080, 1920, 128, 224 }, { 768, 2160, 3840, 128, 224 },
        { 2, 1, 1, 64, 64 },         { 5, 20, 700, 32, 1120 },      { 7, 16, 32, 32, 64 },
        { 100, 90, 5000, 64, 3712 }, { 9, 48, 80, 64, 64 },         { 2, 4000, 20, 6400, 32 },
        { 2, 144, 176, 128, 192 },
    };
    static const size_case tight[] = {
        { 26, 180, 320, 128, 224 }, { 10, 720, 1280, 192, 352 }, { 3, 270, 480, 256, 480 },
        { 4, 50, 50, 192, 192 },    { 768, 1080, 1920, 32, 32 }, { 768, 2160, 3840, 32, 32 },
        { 2, 1, 1, 256, 256 },      { 5, 20, 700, 32, 1120 },    { 7, 16, 32, 128, 224 },
        { 100, 90, 5000, 32, 640 }, { 9, 48, 80, 96, 160 },      { 2, 4000, 20, 6400, 32 },
        { 2, 144, 176, 256, 288 },
    };
    static const size_case images[] = {
        { 0, 200, 200, 256, 256 }, { 0, 1, 1, 256, 256 },     { 0, 1080, 1920, 1088, 1920 },
        { 0, 48, 80, 224, 352 },   { 0, 4000, 20, 4000, 32 }, { 0, 5000, 7000, 3456, 4832 },
        { 0, 256, 256, 256, 256 }, { 0, 1, 200, 32, 3648 },   { 0, 16, 16, 256, 256 },
    };
    check_sizes(clips, LENGTH(clips), QV_PROCESSOR_QWEN3_VL, 4096, 25165824);
    check_sizes(tight, LENGTH(tight), QV_PROCESSOR_QWEN3_VL, 131072, 786432);
    check_sizes(images, LENGTH(images), QV_PROCESSOR_QWEN3_VL, 65536, 16777216);
}

/* Patch size 14, and limits for each frame: those of published files, and of the class. */
TEST(test_smart_resize_of_frames)
{
    static const size_case published[] = {
        { 26, 180, 320, 168, 308 }, { 10, 720, 1280, 728, 1288 },    { 3, 270, 480, 280, 476 },
        { 4, 50, 50, 56, 56 },      { 768, 2160, 3840, 2156, 3836 }, { 2, 1, 1, 56, 56 },
        { 5, 20, 700, 28, 700 },    { 7, 13, 27, 56, 84 },           { 2, 4000, 20, 4004, 28 },
        { 2, 144, 176, 140, 168 },
    };
    static const size_case class[] = {
        { 26, 180, 320, 252, 448 }, { 10, 720, 1280, 560, 1008 },   { 3, 270, 480, 280, 476 },
        { 4, 50, 50, 336, 336 },    { 768, 2160, 3840, 560, 1008 }, { 2, 1, 1, 336, 336 },
        { 5, 20, 700, 56, 1876 },   { 7, 13, 27, 224, 476 },        { 2, 4000, 20, 4004, 28 },
        { 2, 144, 176, 308, 364 },
    };
    check_sizes(published, LENGTH(published), QV_PROCESSOR_QWEN2_VL, 3136, 12845056);
    check_sizes(class, LENGTH(class), QV_PROCESSOR_QWEN2_VL, 128 * 28 * 28, 768 * 28 * 28);
}

/* For GLM all frames of a clip count, and an image counts as a pair. */
TEST(test_smart_resize_of_glm)
{
    static const size_case clips[] = {
        { 26, 180, 320, 168, 308 }, { 10, 720, 1280, 728, 1288 },  { 3, 270, 480, 280, 476 },
        { 4, 50, 50, 56, 56 },      { 600, 2160, 3840, 196, 364 }, { 2, 1, 1, 84, 84 },
        { 5, 20, 700, 28, 980 },    { 7, 13, 27, 28, 56 },         { 2, 4000, 20, 5600, 28 },
        { 2, 144, 176, 140, 168 },
    };
    static const size_case images[] = {
        { 0, 1080, 1920, 1092, 1932 }, { 0, 50, 50, 84, 84 }, { 0, 3000, 4000, 2100, 2800 },
        { 0, 10, 300, 28, 840 },       { 0, 7, 13, 84, 112 }, { 0, 112, 56, 112, 56 },
        { 0, 4001, 2003, 3416, 1708 },
    };
    check_sizes(clips, LENGTH(clips), QV_PROCESSOR_GLM4V, 112 * 112, 28 * 28 * 2 * 30000);
    check_sizes(images, LENGTH(images), QV_PROCESSOR_GLM4V, 112 * 112, 28 * 28 * 15000);
}

/* resize(cap_pixels_per_frame=True) of the two classes: shares of the clip's pixels, and what
 * min_pixels leaves of them. */
TEST(test_cap_pixels)
{
    static const struct {
        qv_processor processor;
        int patch;
        int64_t least, most, frames;
        bool cap;
        int64_t height, width;
    } cases[] = {
        { QV_PROCESSOR_QWEN3_VL, 16, 4096, 25165824, 4, false, 1088, 1920 },
        { QV_PROCESSOR_QWEN3_VL, 16, 4096, 25165824, 4, true, 640, 1152 },
        { QV_PROCESSOR_QWEN3_VL, 16, 1048576, 25165824, 4, true, 768, 1376 },
        { QV_PROCESSOR_QWEN3_VL, 16, 4096, 25165824, 100, true, 352, 640 },
        { QV_PROCESSOR_QWEN2_VL, 14, 100352, 602112, 768, false, 560, 1008 },
        { QV_PROCESSOR_QWEN2_VL, 14, 100352, 602112, 768, true, 336, 644 },
        { QV_PROCESSOR_QWEN2_VL, 14, 250000, 602112, 768, true, 364, 672 },
    };
    EACH (one, cases) {
        const qv_outcome info = { .n_frames = one->frames,
                                  .source_height = 1080,
                                  .source_width = 1920 };
        const qv_preprocess p = { .min_pixels = one->least,
                                  .max_pixels = one->most,
                                  .patch_size = one->patch,
                                  .temporal_patch_size = 2,
                                  .merge_size = 2,
                                  .processor = one->processor };
        const struct qvm_task t = { .cap_pixels = one->cap };
        int64_t height = 0, width = 0;
        assert_ok(qvm_qwen3_vl.size(&info, &p, &t, &height, &width, ERR));
        assert_int_equal(height, one->height);
        assert_int_equal(width, one->width);
    }
}

TEST(test_smart_resize_refuses)
{
    const qv_preprocess p = qv_preprocess_default(true);
    int64_t h = 7, w = 7;
    expect_error(QV_EINVAL, "201x1", qv_smart_resize(0, 1, 201, &p, &h, &w, ERR));
    expect_error(QV_EINVAL, "", qv_smart_resize(0, 0, 10, &p, &h, &w, ERR));
    expect_error(QV_EINVAL, "", qv_smart_resize(-1, 10, 10, &p, &h, &w, ERR));
    expect_error(QV_EINVAL, "", qv_smart_resize(4, INT64_MAX, 10, &p, &h, &w, ERR));
    /* a size that would take gigabytes, or that no integer holds */
    for (int bits = 29; bits < 63; bits++) {
        qv_preprocess large = p;
        large.min_pixels = large.max_pixels = (int64_t)1 << bits;
        expect_error(QV_EINVAL, "", qv_smart_resize(0, 100, 100, &large, &h, &w, ERR));
        assert_true(h == 7 && w == 7);
    }
    expect_error(QV_EINVAL, "", qv_smart_resize(4, 10, 10, NULL, &h, &w, ERR));
    qv_preprocess bad = p;
    bad.patch_size = 0;
    expect_error(QV_EINVAL, "", qv_smart_resize(0, 10, 10, &bad, &h, &w, ERR));
    bad = p;
    bad.processor = (qv_processor)7;
    expect_error(QV_EINVAL, "processor is 7", qv_smart_resize(0, 10, 10, &bad, &h, &w, ERR));
    assert_int_equal(h, 7);
    /* a single frame is sized as the pair that it becomes */
    int64_t h2, w2;
    qv_smart_resize(1, 100, 100, &p, &h, &w, NULL);
    qv_smart_resize(2, 100, 100, &p, &h2, &w2, NULL);
    assert_true(h == h2 && w == w2);
}

/* ---- resize: hashes from torchvision 0.26 ---------------------------------------------------- */

static uint8_t *
noise(int64_t n)
{
    uint8_t *bytes = test_alloc((size_t)n);
    uint32_t s = 1;
    for (int64_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)(test_random(&s) >> 24);
    return bytes;
}

TEST(test_resize)
{
    static const struct {
        int h, w, out_h, out_w;
        uint64_t hash;
    } cases[] = {
        { 48, 80, 32, 64, 0xcf947bc2c7fa374a },  { 33, 57, 64, 96, 0x88147992d6a09cbd },
        { 7, 5, 32, 32, 0x58095c70ce3cc4e4 },    { 1, 1, 8, 8, 0x5709e8ae4e763565 },
        { 90, 160, 90, 64, 0x5c344e6b99f4f068 }, { 90, 160, 32, 160, 0x0cf3341c15c65264 },
        { 200, 300, 9, 7, 0xfb501154e2097435 },  { 64, 64, 64, 64, 0x9fb6c6c1cf946b73 },
        { 2, 130, 32, 32, 0xaef2bbfb43eeba75 },  { 40, 41, 17, 203, 0xde885d1e65633ec5 },
    };
    EACH (one, cases) {
        const int h = one->h, w = one->w, oh = one->out_h, ow = one->out_w;
        const size_t n = 3 * (size_t)oh * (size_t)ow;
        uint8_t *src = noise(3 * h * w), *dst = test_alloc(n + 64);
        memset(dst, 0x99, n + 64);
        assert_ok(qv_resize_bicubic(src, h, w, 3 * w, dst, oh, ow, ERR));
        assert_int_equal(test_hash(TEST_HASH, dst, n), one->hash);
        for (size_t i = n; i < n + 64; i++)
            assert_int_equal(dst[i], 0x99);
    }
}

/* Every kernel that this machine can run, whole and in two parts, gives what portable C gives. */
TEST(test_resize_levels)
{
    uint32_t s = 7;
    for (int round = 0; round < 60; round++) {
        int side[4];
        for (int i = 0; i < 4; i++)
            side[i] = 1 + (int)((test_random(&s) >> 16) % (round % 2 ? 200 : 40));
        const size_t n = 3 * (size_t)side[2] * (size_t)side[3];
        uint8_t *src = noise(3 * side[0] * side[1]);
        uint8_t *portable = test_alloc(n), *other = test_alloc(n);
        for (int level = QVM_PORTABLE; level <= QVM_BEST; level++) {
            qvm_resizer *r = NULL;
            assert_ok(
                qvm_resizer_create(side[0], side[1], side[2], side[3], (qvm_level)level, &r, ERR));
            uint8_t *to = level == QVM_PORTABLE ? portable : other;
            qvm_resizer_run(r, src, 3 * side[1], to);
            qvm_resizer_free(&r);
            assert_null(r);
            if (to == other)
                assert_memory_equal(portable, other, n);
        }
    }
}

TEST(test_resize_refuses)
{
    uint8_t byte[3] = { 0 };
    qv_error err;
    assert_int_equal(qv_resize_bicubic(NULL, 1, 1, 3, byte, 1, 1, &err), QV_EINVAL);
    assert_int_equal(qv_resize_bicubic(byte, 0, 1, 3, byte, 1, 1, &err), QV_EINVAL);
    assert_int_equal(qv_resize_bicubic(byte, 1, 1, 2, byte, 1, 1, &err), QV_EINVAL);
    assert_int_equal(qv_resize_bicubic(byte, 1, 1, 3, byte, 1, 1 << 20, &err), QV_EINVAL);
}

/* ---- clips ----------------------------------------------------------------------------------- */

/* Makes n frames at 10 fps; the name's ending gives the container. */
static const char *
make_clip(const char *name, int n)
{
    const char *path = temp_path(name);
    clip_write_frames(path, n);
    return path;
}

/* Reads a whole clip, `step` frames in each call, and returns the hash of its pixels. */
static uint64_t
read_all(qv_clip *clip, int64_t step, int64_t *total, double *times)
{
    const qv_outcome info = clip_info(clip);
    const size_t bytes = 3 * (size_t)info.width * (size_t)info.height;
    uint8_t *frames = test_alloc(bytes * (size_t)(info.n_frames + step));
    int64_t n = 1;
    *total = 0;
    while (n) {
        assert_ok(qv_clip_read(clip, frames + bytes * (size_t)*total, step, &n,
                               times ? times + *total : NULL, ERR));
        *total += n;
    }
    return test_hash(TEST_HASH, frames, bytes * (size_t)*total);
}

/* All tests of clips run twice: with decoding in a separate process, and in threads of this one. */
static qv_decoder *decoder; /* NULL: threads of this process decode */

static qv_status
try_clip(const char *path, const qv_clip_options *options, qv_clip **clip, qv_error *err)
{
    qv_clip_options o = { 0 };
    if (options)
        o = *options;
    o.decoder = decoder;
    return qv_clip_open(path, NULL, NULL, &o, clip, err);
}

static qv_clip *
open_ours(const char *path, const qv_clip_options *options)
{
    qv_clip *clip = NULL;
    assert_ok(try_clip(path, options, &clip, ERR));
    return test_ends(clip, close_clip);
}

TEST(test_clip)
{
    static const struct {
        const char *name;
        int frames, sampled;
    } cases[] = { { "one.mp4", 1, 1 },        { "two.mp4", 2, 2 }, { "odd.mp4", 3, 3 },
                  { "long.mp4", 37, 7 },      { "a.avi", 37, 7 },  { "a.mkv", 37, 7 },
                  { "with:colon.mp4", 12, 4 } };
    EACH (one, cases) {
        qv_clip *clip = open_ours(make_clip(one->name, one->frames), NULL);
        const qv_outcome info = clip_info(clip);
        assert_false(info.is_image);
        assert_string_equal(info.codec, "mpeg4");
        assert_int_equal(info.source_frames, one->frames);
        assert_int_equal(info.n_frames, one->sampled);
        assert_true(info.source_fps == 10.0);
        assert_int_equal(info.width, CLIP_WIDTH);
        assert_int_equal(info.height, CLIP_HEIGHT);
        assert_int_equal(info.grid_thw[0], (one->sampled + 1) / 2);
        assert_int_equal(info.grid_thw[1], CLIP_HEIGHT / 16);
        assert_int_equal(info.grid_thw[2], CLIP_WIDTH / 16);
        int64_t total, indices[64];
        double times[64];
        read_all(clip, 3, &total, times);
        assert_int_equal(total, one->sampled);
        assert_int_equal(clip_info(clip).damaged_frames, 0);
        qv_sample_frames(one->frames, 10, 2, 0, 4, 768, indices);
        for (int64_t i = 0; i < total; i++)
            assert_true(times[i] == (double)indices[i] / 10.0);
    }
}

TEST(test_clip_options)
{
    const char *path = make_clip("options.mp4", 20);
    int64_t total;
    qv_clip *clip = open_ours(path, &(qv_clip_options){ .num_frames = 5, .threads = 1 });
    const uint64_t five = read_all(clip, 1, &total, NULL);
    assert_int_equal(total, 5);
    clip = open_ours(path, &(qv_clip_options){ .num_frames = 5, .threads = 4 });
    assert_int_equal(read_all(clip, 5, &total, NULL), five);
    /* more than there are, so some repeat */
    clip = open_ours(path, &(qv_clip_options){ .num_frames = 50 });
    read_all(clip, 7, &total, NULL);
    assert_int_equal(total, 50);
    assert_int_equal(clip_info(clip).damaged_frames, 0);

    static const qv_clip_options bad[] = {
        { .fps = 2, .num_frames = 4 },
        { .fps = -1 },
        { .num_frames = -1 },
        { .max_frames = -1 },
        { .threads = -2 },
        { .min_pixels = -5 },
        { .num_frames = 1 << 30 },
        { .decode_memory = -1 },
        { .decode_seconds = -1 },
        { .max_seconds = -1 },
        { .max_seconds = 0.1 },
        { .max_source_pixels = -1 },
        { .max_pixels = INT64_MAX },
        { .like = (qv_like)2 },
        { .like = QV_LIKE_QWEN_VL_UTILS, .cap_pixels = true },
        { .like = QV_LIKE_QWEN_VL_UTILS, .total_pixels = -1 },
        { .total_pixels = 1000000 },
    };
    clip = NULL;
    EACH (c, bad) {
        expect_error(QV_EINVAL, path, try_clip(path, c, &clip, ERR));
        assert_null(clip);
    }
}

/* The package has no rules for the models of others. */
TEST(test_like_qwen_vl_utils_is_qwens)
{
    const char *path = make_clip("like_glm.mp4", 5);
    const qv_preprocess glm = { .processor = QV_PROCESSOR_GLM4V,
                                .min_pixels = 112 * 112,
                                .max_pixels = 28 * 28 * 2 * 30000,
                                .fps = 2,
                                .max_duration = 300,
                                .patch_size = 14,
                                .temporal_patch_size = 2,
                                .merge_size = 2 };
    qv_clip_options o = { .decoder = decoder, .like = QV_LIKE_QWEN_VL_UTILS };
    qv_clip *clip = NULL;
    expect_error(QV_EINVAL, "like_glm.mp4: qwen-vl-utils",
                 qv_clip_open(path, &glm, &glm, &o, &clip, ERR));
    assert_null(clip);
    o.like = QV_LIKE_TRANSFORMERS;
    assert_ok(qv_clip_open(path, &glm, &glm, &o, &clip, ERR));
    test_ends(clip, close_clip);
    const qv_outcome info = clip_info(clip);
    assert_int_equal(info.n_frames % 2, 0);
    assert_int_equal(info.height % 28 + info.width % 28, 0);
}

/* That package puts a transparent image on white; here transparency is dropped. */
TEST(test_transparent_image)
{
    static const char header[] = "P7\n#\nWIDTH 64\nHEIGHT 64\nDEPTH 4\nMAXVAL 255\n"
                                 "TUPLTYPE RGB_ALPHA\nENDHDR\n";
    static const struct {
        qv_like like;
        int side, value;
    } cases[] = { { QV_LIKE_TRANSFORMERS, 256, 64 }, { QV_LIKE_QWEN_VL_UTILS, 64, 207 } };
    uint8_t bytes[sizeof header - 1 + (size_t)64 * 64 * 4];
    memcpy(bytes, header, sizeof header - 1);
    memset(bytes + sizeof header - 1, 64, sizeof bytes - (sizeof header - 1));
    temp_file("clear.pam", bytes, sizeof bytes);
    EACH (c, cases) {
        qv_clip *clip = open_ours(temp_path("clear.pam"), &(qv_clip_options){ .like = c->like });
        static uint8_t frame[256 * 256 * 3];
        const qv_outcome info = clip_info(clip);
        int64_t n = 0;
        assert_true(info.is_image && info.width == c->side && info.height == c->side);
        assert_true(info.sampled_fps == 0.0);
        assert_int_equal(qv_clip_read(clip, frame, 1, &n, NULL, NULL), QV_OK);
        for (int j = 0; j < 3 * c->side * c->side; j++)
            assert_int_equal(frame[j], c->value);
    }
}

/* ---- a file that changes --------------------------------------------------------------------- */

static void
append(const char *path)
{
    FILE *f = fopen(path, "ab");
    assert_non_null(f);
    assert_int_equal(fputc(0, f), 0);
    assert_int_equal(fclose(f), 0);
}

static void
set_time(const char *path, int64_t ns)
{
    const struct timespec t = { .tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000 };
    assert_int_equal(utimensat(AT_FDCWD, path, (struct timespec[]){ t, t }, 0), 0);
}

static void
touch(const char *path)
{
    set_time(path, 1234567890123456790);
}

static void
cut(const char *path)
{
    assert_int_equal(truncate(path, 100), 0);
}

static void
replace(const char *path)
{
    const char *other = make_clip("other.mp4", 7);
    assert_int_equal(rename(other, path), 0);
}

static void
leave(const char *path)
{
}

/* A clip's identity is the identity of the file that its frames are read from: the open file,
 * before reading. A file that is written to meanwhile has no identity; a replaced file keeps its
 * own. */
TEST(test_file_changes)
{
    static const struct {
        void (*change)(const char *path);
        bool fails;
    } cases[] = {
        { leave, false }, { append, true }, { touch, true }, { cut, true }, { replace, false }
    };
    static uint8_t frame[3 * CLIP_WIDTH * CLIP_HEIGHT];
    EACH (c, cases) {
        const char *path = make_clip("changes.mp4", 60);
        struct stat before;
        set_time(path, 1234567890123456789);
        assert_int_equal(stat(path, &before), 0);
        qv_clip *clip = open_ours(path, &(qv_clip_options){ .num_frames = 60 });
        qv_error err = { 0 };
        int64_t n = 1, total = 0;
        qv_status status = QV_OK;
        for (; !status && n; total += status ? 0 : n) {
            if (total == 3)
                c->change(path);
            status = qv_clip_read(clip, frame, 1, &n, NULL, &err);
        }
        const qv_outcome info = clip_info(clip);
        assert_int_equal(info.file_bytes, before.st_size);
        assert_int_equal(info.file_mtime_ns, 1234567890123456789);
        assert_int_equal(status, c->fails ? QV_EFORMAT : QV_OK);
        if (c->fails)
            assert_non_null(strstr(err.text, "changes.mp4: the file changed while it was read"));
        assert_true(c->fails ? total < 60 : total == 60);
        /* and the error stays */
        assert_int_equal(qv_clip_read(clip, frame, 1, &n, NULL, &err), status);
    }
}

/* All frames at once: no frame of a file that has changed by then, even during the last one. */
TEST(test_file_changes_at_once)
{
    enum { N = 12 };
    static uint8_t frames[N * 3 * CLIP_WIDTH * CLIP_HEIGHT];
    const char *path = make_clip("changes.mp4", N);
    qv_clip *clip = open_ours(path, &(qv_clip_options){ .num_frames = N });
    int64_t n = 0;
    touch(path);
    assert_ok(qv_clip_read(clip, frames, N, &n, NULL, ERR));
    assert_int_equal(n, N - 1);
    expect_error(QV_EFORMAT, "", qv_clip_read(clip, frames, N, &n, NULL, ERR));
}

/* Closing joins the worker whether it waits for a free slot, decodes, or has ended. */
TEST(test_close_any_time)
{
    const char *path = make_clip("close.mp4", 60);
    uint8_t *frame = test_alloc(3 * CLIP_WIDTH * CLIP_HEIGHT);
    for (int round = 0; round < 30; round++) {
        qv_clip *clip = open_ours(path, &(qv_clip_options){ .num_frames = 60 });
        int64_t n;
        for (int i = 0; i < round % 7; i++)
            assert_int_equal(qv_clip_read(clip, frame, 1, &n, NULL, NULL), QV_OK);
        if (round % 3 == 0)
            nanosleep(&(struct timespec){ .tv_nsec = 3000000 }, NULL);
        test_end(clip);
    }
}

/* ---- images -------------------------------------------------------------------------------- */

TEST(test_png_round_trip)
{
    const int h = 256, w = 288; /* a size that smart_resize keeps */
    uint8_t *rgb = noise(3 * h * w), *back = test_alloc(3 * (size_t)h * (size_t)w);
    const char *path = temp_path("image.png");
    assert_int_equal(tool_write_png(path, rgb, h, w, NULL), QV_OK);
    qv_clip *clip = open_ours(path, &(qv_clip_options){ .fps = 3 });
    const qv_outcome info = clip_info(clip);
    assert_true(info.is_image);
    assert_string_equal(info.codec, "png");
    assert_int_equal(info.n_frames, 1);
    assert_int_equal(info.grid_thw[0], 1);
    int64_t n;
    double when = 9;
    assert_int_equal(qv_clip_read(clip, back, 1, &n, &when, NULL), QV_OK);
    assert_int_equal(n, 1);
    assert_true(when == 0.0);
    assert_memory_equal(rgb, back, 3 * (size_t)h * (size_t)w);
    assert_int_equal(qv_clip_read(clip, back, 1, &n, NULL, NULL), QV_OK);
    assert_int_equal(n, 0);

    /* the size follows the image's rules, not the clip's, whatever the file's name is */
    const char *renamed = temp_path("image.mp4");
    assert_int_equal(tool_write_png(renamed, rgb, 20, 20, NULL), QV_OK);
    clip = open_ours(renamed, NULL);
    assert_true(clip_info(clip).is_image && clip_info(clip).width == 256);

    expect_error(QV_EIO, "no/such/folder.png",
                 tool_write_png(temp_path("no/such/folder.png"), rgb, 20, 20, ERR));
    assert_ok(tool_write_png(temp_path("thin.png"), rgb, 1, 300, ERR));
    expect_error(QV_EFORMAT, "300x1", try_clip(temp_path("thin.png"), NULL, &clip, ERR));
}

/* ---- main ------------------------------------------------------------------------------------ */

static int
start_decoder(void)
{
    return qv_decoder_start(QV_DECODER, &decoder, NULL);
}

static int
stop_decoder(void)
{
    qv_decoder_stop(&decoder);
    return 0;
}

static int
no_decoder(void)
{
    return 0;
}

TEST_EACH(tempdir_make, tempdir_remove);
TEST_GROUP(start_decoder, stop_decoder);
TEST_GROUP(no_decoder, stop_decoder);
