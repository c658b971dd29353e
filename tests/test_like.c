/* SPDX-License-Identifier: MIT */
/* Tests --like qwen-vl-utils: all decisions and results must equal the package's, in a table that
 * was written with it (tools/reference/make_qwen_vl_utils_table.py). */
#include "test.h"

#include <jansson.h>
#include <math.h>

#include "../clips/clips.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

static json_t *package; /* what it decides and makes */

static int
read_package(void)
{
    package = json_load_file(QV_GOLDEN "/../qwen_vl_utils.json", 0, NULL);
    return json_array_size(json_object_get(package, "choices")) < 500 ||
           json_array_size(json_object_get(package, "resizes")) < 20;
}

static int
free_package(void)
{
    json_decref(package);
    return 0;
}

/* Numbers of a checkpoint. The package does not look at them. */
static qv_preprocess
preset(int patch)
{
    return (qv_preprocess){ .min_pixels = 1,
                            .max_pixels = 2,
                            .fps = 0.1,
                            .min_frames = 1,
                            .max_frames = 2,
                            .patch_size = patch,
                            .temporal_patch_size = 2,
                            .merge_size = 2 };
}

static qv_clip_options
options_of(json_t *object)
{
    qv_clip_options o = { .like = QV_LIKE_QWEN_VL_UTILS };
    const char *name;
    json_t *value;
    json_object_foreach(object, name, value)
    {
        const qv_value v = { .type = json_is_real(value) ? QV_VALUE_REAL : QV_VALUE_INTEGER,
                             .real = json_real_value(value),
                             .integer = json_integer_value(value) };
        assert_null(qv_clip_options_set(&o, name, false, &v));
    }
    return o;
}

/* Clips, cuts of clips, and images (whose rows have no frames that are chosen). */
TEST(choices_are_the_packages)
{
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(package, "choices"), i, row)
    {
        qv_outcome info = { 0 };
        json_t *options, *made;
        int patch;
        assert_int_equal(json_unpack(row, "{s:i,s:{s:I,s:F,s:i,s:i},s:o,s:o}", "patch", &patch,
                                     "source", "frames", &info.source_frames, "fps",
                                     &info.source_fps, "height", &info.source_height, "width",
                                     &info.source_width, "options", &options, "made", &made),
                         0);
        info.is_image = info.source_frames == 1 && info.source_fps == 0;
        const qv_clip_options o = options_of(options);
        const qv_preprocess p = preset(patch);
        int64_t *indices = NULL, hash = 0;
        qv_error err = { QV_OK, "" };
        struct qvm_task task;
        qv_status status = qvm_task_make("clip", &p, &p, &o, &task, &err);
        status = status ? status : qvm_choose(&task, &info, &indices, &err);
        if ((status != QV_OK) != json_is_null(made))
            fail_msg("row %zu: status %d (%s)", i, (int)status, err.text);
        if (!info.is_image)
            assert_int_equal(info.like, QV_LIKE_QWEN_VL_UTILS);
        for (int64_t n = 0; !status && indices && n < info.n_frames; n++)
            hash = (hash * 31 + indices[n]) % 1000000007;
        const struct {
            const char *name;
            int64_t value;
        } here[] = { { "first", info.first_frame }, { "of", info.cut_frames },
                     { "frames", info.n_frames },   { "height", info.height },
                     { "width", info.width },       { "hash", hash } };
        for (size_t f = 0; f < COUNT(here); f++) {
            const json_t *there = json_object_get(made, here[f].name);
            if (there && json_integer_value(there) != here[f].value)
                fail_msg("row %zu: %s %lld; there %lld", i, here[f].name, (long long)here[f].value,
                         (long long)json_integer_value(there));
        }
        if (json_object_get(made, "frames"))
            assert_true(info.sampled_fps ==
                        (double)info.n_frames / (double)info.cut_frames * info.source_fps);
        free(indices);
    }
}

/* An error describes what is wrong with the clip or with an option. */
TEST(words_say_what_is_wrong)
{
    static const struct {
        int64_t frames, height;
        qv_clip_options o;
        qv_status status;
        const char *words;
    } bad[] = {
        { 1,
          100,
          { .fps = 2 },
          QV_EFORMAT,
          "frames in the clip: 1; qwen-vl-utils needs 2 or more" },
        { 9,
          100,
          { .num_frames = 1 },
          QV_EINVAL,
          "num_frames is 1: qwen-vl-utils would sample 0 fra" },
        { 9, 100, { .num_frames = 10 }, QV_EINVAL, "sample 10 frames; it can sample 2 to 9" },
        { 9, 100, { .max_frames = 1 }, QV_EINVAL, "max_frames is 1: qwen-vl-utils would sample 0" },
        { 9, 1, { .fps = 2 }, QV_EFORMAT, "320x1 is too long and thin" },
        { 9, 100, { .max_pixels = 5 }, QV_EINVAL, "at most 5 pixels are allowed, but 131072 are" },
        { 9, 100, { .min_pixels = 2, .max_pixels = 5 }, QV_EINVAL, "320x100 becomes 0x0; max_pix" },
        { 9, 100, { .min_pixels = (int64_t)1 << 40 }, QV_EINVAL, "would be resized to" },
    };
    const qv_preprocess p = preset(16);
    for (size_t i = 0; i < COUNT(bad); i++) {
        qv_outcome info = { .source_frames = bad[i].frames,
                            .source_fps = 25,
                            .source_height = (int)bad[i].height,
                            .source_width = 320 };
        qv_clip_options o = bad[i].o;
        o.like = QV_LIKE_QWEN_VL_UTILS;
        int64_t *indices = NULL;
        qv_error err = { QV_OK, "" };
        struct qvm_task task;
        assert_int_equal(qvm_task_make("clip", &p, &p, &o, &task, &err), QV_OK);
        assert_int_equal(qvm_choose(&task, &info, &indices, &err), bad[i].status);
        if (!strstr(err.text, bad[i].words))
            fail_msg("\"%s\" is not in \"%s\"", bad[i].words, err.text);
        free(indices);
    }
}

TEST(pixels_are_the_packages)
{
    size_t row;
    json_t *resize;
    json_array_foreach(json_object_get(package, "resizes"), row, resize)
    {
        const char *name, *there;
        char here[17];
        int h, w, to_h, to_w;
        assert_int_equal(json_unpack(resize, "[siiiis]", &name, &h, &w, &to_h, &to_w, &there), 0);
        const size_t n = 3 * (size_t)to_h * (size_t)to_w, n_src = 3 * (size_t)h * (size_t)w;
        uint8_t *src = test_alloc(n_src), *dst = test_alloc(n + 64);
        uint64_t hash = 0xcbf29ce484222325u;
        uint32_t seed = 1;
        assert_true(src && dst);
        for (size_t i = 0; i < n_src; i++)
            src[i] = (uint8_t)(test_random(&seed) >> 24);
        memset(dst, 0x99, n + 64);
        qvm_resampler *r = NULL;
        assert_int_equal(qvm_resampler_create(h, w, to_h, to_w,
                                              strcmp(name, "PIL") ? QVM_TORCH_FLOAT : QVM_PIL, &r,
                                              NULL),
                         QV_OK);
        for (int twice = 0; twice < 2; twice++) /* Nothing is left over from the first time. */
            qvm_resampler_run(r, src, 3 * (int64_t)w, dst);
        qvm_resampler_free(&r);
        for (size_t i = 0; i < n; i++)
            hash = (hash ^ dst[i]) * 0x100000001b3u;
        snprintf(here, sizeof here, "%016llx", (unsigned long long)hash);
        if (strcmp(here, there) != 0)
            fail_msg("row %zu, %s: other bytes, %s", row, name, here);
        for (size_t i = n; i < n + 64; i++)
            assert_int_equal(dst[i], 0x99);
    }
}

/* ---- options by their names ------------------------------------------------------------------ */

/* clang-format off */
#define INTEGER(v) { .type = QV_VALUE_INTEGER, .integer = (v) }
#define REAL(v) { .type = QV_VALUE_REAL, .real = (v) }
#define TEXT(v) { .type = QV_VALUE_TEXT, .text = (v) }
#define OTHER { .type = QV_VALUE_OTHER }
#define FLAG(v) { .type = QV_VALUE_FLAG, .integer = (v) }
/* clang-format on */

TEST(an_option_takes_what_it_means)
{
    static const struct {
        const char *name, *words; /* NULL: the value is right. */
        bool row;
        qv_value value;
    } cases[] = {
        { "fps", NULL, true, INTEGER(2) },
        { "fps", NULL, true, REAL(0.5) },
        { "fps", NULL, false, REAL(0) },
        { "fps", "a number above 0 and at most 1000000", true, REAL(0) },
        { "fps", "a number above 0 and at most 1000000", false, REAL(-1) },
        { "fps", "a number above 0 and at most 1000000", true, REAL(INFINITY) },
        { "fps", "a number above 0 and at most 1000000", true, OTHER },
        { "start", NULL, true, REAL(0) },
        { "start", "a number of at least 0", true, REAL(-1) },
        { "start", "a number of at least 0", true, REAL(NAN) },
        { "end", "a number above 0", true, INTEGER(0) },
        { "max_frames", NULL, true, INTEGER(1) },
        { "max_frames", NULL, false, INTEGER(0) },
        /* The value is `true`. */
        { "max_frames", "an integer of at least 1 and at most 1048576", true, OTHER },
        { "max_frames", "an integer of at least 1 and at most 1048576", true, REAL(2) },
        { "max_frames", "an integer of at least 1 and at most 1048576", true, INTEGER(0) },
        { "max_frames", "an integer of at least 1 and at most 1048576", false, INTEGER(-1) },
        { "max_pixels", "an integer of at least 1 and at most 1099511627776", true, TEXT("1") },
        { "offset", NULL, true, INTEGER(0) },
        { "offset", "an integer of at least 0", true, INTEGER(-1) },
        { "bytes", "an integer of at least 1", true, INTEGER(0) },
        { "bytes", "", false, INTEGER(1) },
        { "length", NULL, false, INTEGER(1) },
        { "length", "", true, INTEGER(1) },
        { "first_frame", NULL, true, FLAG(true) },
        { "first_frame", "true or false", false, INTEGER(1) },
        { "max_frames", "an integer of at least 1 and at most 1048576", true, FLAG(true) },
        { "min_frames", "", true, INTEGER(1) },
        { "like", "", true, TEXT("qwen-vl-utils") },
        { "like", NULL, false, TEXT("qwen-vl-utils") },
        { "like", "transformers or qwen-vl-utils", false, TEXT("unknown qv_like") },
        { "like", "transformers or qwen-vl-utils", false, TEXT("") },
        { "like", "transformers or qwen-vl-utils", false, INTEGER(1) },
        { "decode", NULL, false, TEXT("gpu") },
        { "decode", "auto, cpu or gpu", false, TEXT("mine") },
        { "fsp", "", false, INTEGER(1) },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        qv_clip_options o = { .fps = 0 };
        const char *words = qv_clip_options_set(&o, cases[i].name, cases[i].row, &cases[i].value);
        if (!words != !cases[i].words || (words && strcmp(words, cases[i].words)))
            fail_msg("case %zu, %s: \"%s\"", i, cases[i].name, words ? words : "taken");
    }
}

TEST(a_row_stands_over_all_clips)
{
    qv_error err = { 0 };
    qv_clip_options own = { .start_s = 2, .end_s = 2 };
    assert_int_equal(qvm_check_row(&own, &err), QV_EINVAL);
    assert_string_equal(err.text, "\"end\" (2) must be greater than \"start\" (2)");
    own.end_s = 2.5;
    assert_ok(qvm_check_row(&own, ERR));
    own.fps = 3;
    own.length = 7;
    own.first_frame = true;
    own.min_frames = 9; /* is not a row's */
    const qv_clip_options all = { .num_frames = 5, .max_frames = 6, .min_pixels = 8, .offset = 4 };
    const qv_clip_options o = qvm_options_merge(&own, &all);
    assert_true(o.fps == 3 && !o.num_frames && o.max_frames == 6 && o.min_pixels == 8);
    assert_true(o.start_s == 2 && o.end_s == 2.5 && o.length == 7 && o.first_frame);
    assert_true(!o.offset && !o.min_frames);
    const qv_clip_options same = qvm_options_merge(NULL, &all);
    assert_true(same.num_frames == 5 && same.offset == 4);
}

/* An image's bounds are counts of tokens, 4 and 16384. At a bound nothing is resized. */
TEST(images_have_their_own_bounds)
{
    static const int64_t sizes[][4] = { { 3584, 3584, 3584, 3584 },
                                        { 3584, 3612, 3556, 3584 },
                                        { 56, 56, 56, 56 },
                                        { 28, 28, 56, 56 } };
    const qv_preprocess p = preset(14);
    for (size_t i = 0; i < COUNT(sizes); i++) {
        const qv_outcome info = { .is_image = true,
                                  .n_frames = 1,
                                  .source_height = (int)sizes[i][0],
                                  .source_width = (int)sizes[i][1] };
        const qv_clip_options none = { .like = QV_LIKE_QWEN_VL_UTILS };
        int64_t height = 0, width = 0;
        struct qvm_task task;
        assert_int_equal(qvm_task_make("clip", &p, &p, &none, &task, NULL), QV_OK);
        assert_int_equal(qvm_qwen_vl_utils.size(&info, &task.image, &task, &height, &width, NULL),
                         QV_OK);
        assert_int_equal(height, sizes[i][2]);
        assert_int_equal(width, sizes[i][3]);
    }
}

TEST_GROUP(read_package, free_package);
