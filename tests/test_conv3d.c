/* SPDX-License-Identifier: MIT */
/* How a Conv3d is run: each side of every guard, hostile descriptions, and a proof by definition
 * that the listed operations compute the convolution. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "conv3d.h"
#include "dtype.h"
#include "geometry.h"

static const struct qv_caps right_caps, wrong_caps = { .wrong_conv3d_bf16 = true };
static const struct qv_conv3d_thresholds thresholds = { .by_depth_max_kd = 3,
                                                        .by_depth_min_flops = 0 };

/* Tower M's patch embedding of one 20x38 frame pair. */
static struct qv_conv3d_desc
patch_embed(void)
{
    return (struct qv_conv3d_desc){
        .n = 1,
        .d = 2,
        .h = 320,
        .w = 608,
        .c = 3,
        .o = 1024,
        .kernel = { 2, 16, 16 },
        .stride = { 2, 16, 16 },
        .dilation = { 1, 1, 1 },
        .groups = 1,
        .merge = 2,
        .alpha = 1,
        .pixel_scale = { 2, 2, 2 },
        .pixel_shift = { -255, -255, -255 },
        .layout = QV_LAYOUT_CHANNELS_FIRST,
        .dtype = QV_BF16,
        .bias = true,
    };
}

/* A causal 3x3x3 of a video VAE. */
static struct qv_conv3d_desc
vae(void)
{
    return (struct qv_conv3d_desc){
        .n = 1,
        .d = 21,
        .h = 60,
        .w = 104,
        .c = 96,
        .o = 96,
        .kernel = { 3, 3, 3 },
        .stride = { 1, 1, 1 },
        .dilation = { 1, 1, 1 },
        .pad_front = { 2, 1, 1 },
        .pad_back = { 0, 1, 1 },
        .groups = 1,
        .alpha = 1,
        .layout = QV_LAYOUT_CHANNELS_LAST,
        .causal = QV_CAUSAL_ZEROS,
        .dtype = QV_F32,
    };
}

static struct qv_conv3d_desc
with_kernel(struct qv_conv3d_desc d, int64_t kd, int64_t kh, int64_t kw)
{
    d.kernel[0] = kd;
    d.kernel[1] = kh;
    d.kernel[2] = kw;
    return d;
}

/* 1x1x1 with nothing around it */
static struct qv_conv3d_desc
pointwise(void)
{
    struct qv_conv3d_desc d = with_kernel(vae(), 1, 1, 1);
    memset(d.pad_front, 0, sizeof d.pad_front);
    memset(d.pad_back, 0, sizeof d.pad_back);
    return d;
}

static void
expect_words(const char *text, const char *words)
{
    if (!strstr(text, words))
        fail_msg("\"%s\" does not say \"%s\"", text, words);
}

static void
expect(const struct qv_conv3d_desc *d, enum qv_lowering lowering, bool legal, const char *words)
{
    char text[QV_CONV3D_REASON];
    if (qv_conv3d_legal(d, &right_caps, lowering, text, sizeof text) != legal)
        fail_msg("%s: expected %s: %s", qv_lowering_name(lowering), legal ? "legal" : "illegal",
                 text);
    expect_words(text, words);
}

static struct qv_conv3d_decision
decide(const struct qv_conv3d_desc *d)
{
    struct qv_conv3d_decision it;
    qv_error err = { 0 };
    if (qv_conv3d_decide(d, &right_caps, &thresholds, -1, &it, &err))
        fail_msg("%s", err.text);
    return it;
}

/* ---- guards ---------------------------------------------------------------------------------- */

#define AT(field) offsetof(struct qv_conv3d_desc, field)

static void
patchify_has_a_guard_for_each_value(void **state)
{
    (void)state;
    static const struct {
        size_t at;
        int64_t value;
        const char *words;
    } breaks[] = {
        { AT(stride[0]), 1, "stride 1 differs from kernel 2 on the depth axis" },
        { AT(stride[1]), 15, "stride 15 differs from kernel 16 on the height axis" },
        { AT(stride[2]), 32, "stride 32 differs from kernel 16 on the width axis" },
        { AT(pad_front[0]), 2, "padding 2 in front on the depth axis" },
        { AT(pad_front[1]), 16, "padding 16 in front on the height axis" },
        { AT(pad_front[2]), 16, "padding 16 in front on the width axis" },
        { AT(pad_back[0]), 2, "padding 2 behind on the depth axis" },
        { AT(pad_back[1]), 16, "padding 16 behind on the height axis" },
        { AT(pad_back[2]), 16, "padding 16 behind on the width axis" },
        { AT(dilation[0]), 2, "dilation 2 on the depth axis" },
        { AT(dilation[1]), 3, "dilation 3 on the height axis" },
        { AT(dilation[2]), 2, "dilation 2 on the width axis" },
        { AT(d), 5, "depth 5 is not a multiple of kernel 2" },
        { AT(h), 321, "height 321 is not a multiple of kernel 16" },
        { AT(w), 607, "width 607 is not a multiple of kernel 16" },
    };
    struct qv_conv3d_desc d = patch_embed();
    d.d = 4; /* room for a dilated kernel */
    d.frames_equal = true;
    expect(&d, QV_LOWERING_PATCHIFY, true, "kernel = stride = 2x16x16");
    expect(&d, QV_LOWERING_PATCHIFY, true, "[1520, 1536]");
    expect(&d, QV_LOWERING_STILL, true, "[1520, 768] in place of 1536");
    for (size_t i = 0; i < sizeof breaks / sizeof *breaks; i++) {
        struct qv_conv3d_desc broken = d;
        memcpy((char *)&broken + breaks[i].at, &breaks[i].value, sizeof breaks[i].value);
        expect(&broken, QV_LOWERING_PATCHIFY, false, breaks[i].words);
        expect(&broken, QV_LOWERING_STILL, false, breaks[i].words);
        expect(&broken, QV_LOWERING_BY_DEPTH, true, "kernel depth 2");
        expect(&broken, QV_LOWERING_DIRECT, true, "every shape");
    }
    d.groups = 2;
    d.c = 4;
    expect(&d, QV_LOWERING_PATCHIFY, false, "2 groups");
    expect(&d, QV_LOWERING_STILL, false, "2 groups");
}

static void
one_tap_cannot_be_dilated(void **state)
{
    (void)state;
    struct qv_conv3d_desc d = with_kernel(patch_embed(), 1, 16, 16);
    d.stride[0] = 1;
    d.dilation[0] = 7;
    expect(&d, QV_LOWERING_PATCHIFY, true, "1x16x16");
}

static void
still_needs_a_promise_depth_and_rows_to_make(void **state)
{
    (void)state;
    struct qv_conv3d_desc d = patch_embed();
    d.d = 4; /* two pairs: channels-first rows are a copy */
    expect(&d, QV_LOWERING_STILL, false, "no promise");
    d.frames_equal = true;
    expect(&d, QV_LOWERING_STILL, true, "the 2 frames are one picture");
    d.layout = QV_LAYOUT_PATCH_ROWS;
    expect(&d, QV_LOWERING_STILL, false, "rows already hold all 2 frames");
    d.layout = QV_LAYOUT_FRAMES_U8;
    expect(&d, QV_LOWERING_STILL, true, "weights summed");
    d.kernel[0] = d.stride[0] = 1;
    expect(&d, QV_LOWERING_STILL, false, "kernel depth 1");
}

static void
pointwise_guards(void **state)
{
    (void)state;
    struct qv_conv3d_desc d = pointwise();
    expect(&d, QV_LOWERING_POINTWISE, true, "product over channels [131040, 96]");
    for (int a = 0; a < 3; a++) {
        struct qv_conv3d_desc strided = d, wider = d, front = d, back = d;
        strided.stride[a] = 2;
        expect(&strided, QV_LOWERING_POINTWISE, true, "kernel 1x1x1");
        wider.kernel[a] = 3;
        expect(&wider, QV_LOWERING_POINTWISE, false, "is not 1x1x1");
        front.causal = QV_CAUSAL_NONE;
        front.pad_front[a] = 1;
        expect(&front, QV_LOWERING_POINTWISE, false, "padding 1 in front");
        back.causal = QV_CAUSAL_NONE;
        back.pad_back[a] = 1;
        expect(&back, QV_LOWERING_POINTWISE, false, "padding 1 behind");
    }
    d.pad_front[0] = 1;
    expect(&d, QV_LOWERING_POINTWISE, false, "causal padding (zeros) of 1");
    d = pointwise();
    d.groups = 96;
    expect(&d, QV_LOWERING_POINTWISE, false, "96 groups");
    expect(&d, QV_LOWERING_FRAMES, true, "21 frames");
}

static void
frames_guards(void **state)
{
    (void)state;
    struct qv_conv3d_desc d = with_kernel(vae(), 1, 3, 3);
    d.n = 2;
    d.pad_front[0] = 0;
    d.groups = 4;
    d.dilation[1] = 2;
    expect(&d, QV_LOWERING_FRAMES, true, "one 2D convolution over 42 frames");
    d.stride[0] = 2;
    expect(&d, QV_LOWERING_FRAMES, true, "over 22 frames");
    d.pad_front[0] = 1;
    expect(&d, QV_LOWERING_FRAMES, false, "causal padding (zeros) of 1");
    d.causal = QV_CAUSAL_NONE;
    expect(&d, QV_LOWERING_FRAMES, false, "padding 1 in front on the depth axis");
    d.pad_front[0] = 0;
    d.pad_back[0] = 2;
    expect(&d, QV_LOWERING_FRAMES, false, "padding 2 behind on the depth axis");
    d.pad_back[0] = 0;
    expect(&d, QV_LOWERING_FRAMES, true, "2D");
    d.kernel[0] = 2;
    expect(&d, QV_LOWERING_FRAMES, false, "kernel depth 2 is not 1");
}

static void
causal_frames_go_with_by_depth_and_direct(void **state)
{
    (void)state;
    static const char *const names[] = { "", "(zeros)", "(first frame)", "(kept frames)" };
    for (int mode = QV_CAUSAL_ZEROS; mode < QV_CAUSAL_COUNT; mode++) {
        struct qv_conv3d_desc d = patch_embed();
        d.causal = (enum qv_conv3d_causal)mode;
        expect(&d, QV_LOWERING_PATCHIFY, true, "kernel = stride"); /* nothing to fill */
        d.pad_front[0] = 2;
        d.frames_equal = true;
        expect(&d, QV_LOWERING_PATCHIFY, false, names[mode]);
        expect(&d, QV_LOWERING_STILL, false, names[mode]);
        expect(&d, QV_LOWERING_BY_DEPTH, true, "");
        expect(&d, QV_LOWERING_DIRECT, true, "");
        d = vae();
        d.causal = (enum qv_conv3d_causal)mode;
        assert_int_equal(decide(&d).lowering, QV_LOWERING_BY_DEPTH);
    }
}

static void
wrong_bf16_is_never_direct(void **state)
{
    (void)state;
    char text[QV_CONV3D_REASON];
    struct qv_conv3d_decision it;
    qv_error err;
    struct qv_conv3d_desc d = with_kernel(vae(), 7, 3, 3);
    assert_true(qv_conv3d_legal(&d, &wrong_caps, QV_LOWERING_DIRECT, text, sizeof text));
    d.dtype = QV_BF16;
    assert_true(qv_conv3d_legal(&d, &right_caps, QV_LOWERING_DIRECT, text, sizeof text));
    assert_false(qv_conv3d_legal(&d, &wrong_caps, QV_LOWERING_DIRECT, text, sizeof text));
    expect_words(text, "wrong in bf16");
    assert_int_equal(decide(&d).lowering, QV_LOWERING_DIRECT);
    assert_int_equal(qv_conv3d_decide(&d, &wrong_caps, &thresholds, -1, &it, &err), QV_OK);
    assert_int_equal(it.lowering, QV_LOWERING_BY_DEPTH); /* though 7 is above the threshold */
    expect_words(it.reason, "not direct");
    expect_words(it.reason, "wrong in bf16");
    assert_int_equal(it.legal, 1u << QV_LOWERING_BY_DEPTH);
}

/* ---- check ----------------------------------------------------------------------------------- */

static void
refused(const struct qv_conv3d_desc *d, const char *words)
{
    char text[QV_CONV3D_REASON];
    struct qv_conv3d_decision it, before;
    qv_error err = { 0 };
    memset(&it, 0x5a, sizeof it);
    before = it;
    assert_int_equal(qv_conv3d_check(d, &err), QV_EINVAL);
    expect_words(err.text, words);
    assert_int_equal(qv_conv3d_check(d, NULL), QV_EINVAL);
    assert_int_equal(qv_conv3d_decide(d, &right_caps, &thresholds, -1, &it, &err), QV_EINVAL);
    assert_memory_equal(&it, &before, sizeof it);
    assert_false(qv_conv3d_legal(d, &right_caps, QV_LOWERING_DIRECT, text, sizeof text));
}

static void
sizes_are_checked(void **state)
{
    (void)state;
    static const struct {
        size_t at;
        int64_t value;
        const char *words;
    } hostile[] = {
        { AT(n), 0, "n is 0" },
        { AT(d), -1, "d is -1" },
        { AT(h), 0, "h is 0" },
        { AT(w), INT64_MIN, "w is -9223372036854775808" },
        { AT(c), 0, "c is 0" },
        { AT(o), -3, "o is -3" },
        { AT(kernel[1]), 0, "kernel on axis height is 0" },
        { AT(stride[2]), 0, "stride on axis width is 0" },
        { AT(dilation[0]), 0, "dilation on axis depth is 0" },
        { AT(pad_front[0]), -1, "pad_front on axis depth is -1" },
        { AT(pad_back[2]), -1, "pad_back on axis width is -1" },
        { AT(groups), 0, "groups is 0" },
        { AT(groups), 5, "groups 5 must divide c 96" },
        { AT(addend_rows), -1, "addend_rows is -1" },
        { AT(addend_rows), 7 * 131040, "addend_rows 917280 does not divide 131040" },
        { AT(n), INT64_MAX, "the size of the input is beyond 63 bits" },
        { AT(h), INT64_MAX, "height 9223372036854775807 with padding 1 and 1" },
        { AT(pad_back[1]), INT64_MAX, "with padding 1 and 9223372036854775807" },
        { AT(pad_front[2]), INT64_MAX - 1024, "the size of the output is beyond 63 bits" },
        { AT(o), INT64_MAX / 96 * 96, "the size of the weight is beyond 63 bits" },
        { AT(kernel[0]), INT64_MAX, "larger than the padded input 23 on the depth axis" },
        { AT(dilation[2]), INT64_MAX, "larger than the padded input 106 on the width axis" },
        { AT(kernel[0]), 24, "kernel 24 with dilation 1" },
        { AT(dilation[1]), 31, "kernel 3 with dilation 31" },
    };
    struct qv_conv3d_desc d = vae();
    assert_int_equal(qv_conv3d_check(&d, NULL), QV_OK);
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        d = vae();
        memcpy((char *)&d + hostile[i].at, &hostile[i].value, sizeof hostile[i].value);
        refused(&d, hostile[i].words);
    }
    d = with_kernel(vae(), 23, 62, 106); /* exactly the padded input */
    assert_int_equal(qv_conv3d_check(&d, NULL), QV_OK);
    int64_t out[3];
    qv_conv3d_output(&d, out);
    assert_true(out[0] == 1 && out[1] == 1 && out[2] == 1);
}

static void
choices_are_checked(void **state)
{
    (void)state;
    struct qv_conv3d_desc d = vae();
    d.layout = (enum qv_conv3d_layout)QV_LAYOUT_COUNT;
    refused(&d, "layout 4");
    d = vae();
    d.causal = (enum qv_conv3d_causal) - 1;
    refused(&d, "causal 4294967295");
    d = vae();
    d.act = (enum qv_act)QV_ACT_COUNT;
    refused(&d, "act 3");
    d = vae();
    d.dtype = QV_U8;
    refused(&d, "dtype 3");
    d = vae();
    d.alpha = 0;
    refused(&d, "alpha is 0");
    d.alpha = NAN;
    refused(&d, "alpha is");
    d = vae();
    d.pad_back[0] = 1;
    refused(&d, "pad_back on axis depth is 1, but causal padding (zeros)");
    d.causal = QV_CAUSAL_NONE;
    assert_int_equal(qv_conv3d_check(&d, NULL), QV_OK);
}

static void
patch_layouts_are_checked(void **state)
{
    (void)state;
    struct qv_conv3d_desc d = vae();
    d.layout = QV_LAYOUT_PATCH_ROWS;
    refused(&d, "patch rows needs whole patches: causal padding");
    d = patch_embed();
    d.layout = QV_LAYOUT_FRAMES_U8;
    assert_int_equal(qv_conv3d_check(&d, NULL), QV_OK);
    d.stride[1] = 8;
    refused(&d, "byte frames needs whole patches: stride 8 differs from kernel 16");
    d = patch_embed();
    d.layout = QV_LAYOUT_FRAMES_U8;
    d.merge = 4; /* 20x38 */
    refused(&d, "merge 4 does not divide the grid 20x38");
    d.merge = 0;
    refused(&d, "merge 0");
    d.merge = 2;
    d.c = 4;
    refused(&d, "at most 3 channels");
    d.c = 3;
    d.pixel_scale[1] = 0;
    refused(&d, "pixel_scale[1]");
    d.pixel_scale[1] = 2;
    d.pixel_shift[2] = INFINITY;
    refused(&d, "pixel_shift[2]");
    d = patch_embed();
    d.layout = QV_LAYOUT_FRAMES_U8;
    d.kernel[2] = d.stride[2] = 8;
    refused(&d, "square patches");
    d.layout = QV_LAYOUT_PATCH_ROWS; /* which may be oblong, and whose order is the caller's */
    d.merge = 0;
    assert_int_equal(qv_conv3d_check(&d, NULL), QV_OK);
}

/* ---- decide ---------------------------------------------------------------------------------- */

static void
names_are_found(void **state)
{
    (void)state;
    for (int i = 0; i < QV_LOWERING_COUNT; i++)
        assert_int_equal(qv_lowering_find(qv_lowering_name((enum qv_lowering)i)), i);
    assert_int_equal(qv_lowering_find("by depth"), QV_LOWERING_BY_DEPTH);
    assert_int_equal(qv_lowering_find("gemm"), -1);
    assert_int_equal(qv_lowering_find(NULL), -1);
    assert_string_equal(qv_lowering_name((enum qv_lowering)99), "unknown");
}

static void
outputs_and_flops(void **state)
{
    (void)state;
    int64_t out[3];
    struct qv_conv3d_desc d = vae();
    qv_conv3d_output(&d, out);
    assert_true(out[0] == 21 && out[1] == 60 && out[2] == 104);
    assert_true(qv_conv3d_flops(&d) == 2.0 * 131040 * 96 * 96 * 27);
    d.groups = 96;
    assert_true(qv_conv3d_flops(&d) == 2.0 * 131040 * 96 * 27);
    d.dilation[0] = 2;
    d.stride[1] = 2;
    d.stride[2] = 3;
    qv_conv3d_output(&d, out); /* floor((size + pads - extent) / stride) + 1 */
    assert_true(out[0] == 19 && out[1] == 30 && out[2] == 35);
}

static void
the_best_legal_one_is_chosen(void **state)
{
    (void)state;
    struct qv_conv3d_desc d = patch_embed();
    d.layout = QV_LAYOUT_FRAMES_U8;
    struct qv_conv3d_decision it = decide(&d);
    assert_int_equal(it.lowering, QV_LOWERING_PATCHIFY);
    assert_int_equal(it.weight, QV_CONV3D_CANONICAL);
    assert_int_equal(it.legal, 1u << QV_LOWERING_PATCHIFY | 1u << QV_LOWERING_BY_DEPTH |
                                   1u << QV_LOWERING_DIRECT);
    assert_int_equal(it.rows, 760);
    expect_words(it.reason, "kernel = stride");
    d.frames_equal = true;
    it = decide(&d);
    assert_int_equal(it.lowering, QV_LOWERING_STILL);
    assert_int_equal(it.weight, QV_CONV3D_DEPTH_SUMMED);
    d = pointwise(); /* patchify is legal too */
    it = decide(&d);
    assert_int_equal(it.lowering, QV_LOWERING_POINTWISE);
    assert_true(it.legal >> QV_LOWERING_PATCHIFY & 1);
    d = with_kernel(vae(), 1, 3, 3);
    d.pad_front[0] = 0;
    assert_int_equal(decide(&d).lowering, QV_LOWERING_FRAMES);
}

static void
thresholds_part_by_depth_from_direct(void **state)
{
    (void)state;
    struct qv_conv3d_desc d = vae();
    struct qv_conv3d_decision it = decide(&d);
    assert_int_equal(it.lowering, QV_LOWERING_BY_DEPTH);
    expect_words(it.reason, "kernel depth 3");
    d.kernel[0] = 4;
    it = decide(&d);
    assert_int_equal(it.lowering, QV_LOWERING_DIRECT);
    expect_words(it.reason, "every shape; kernel depth 4 is above 3");
    d = vae();
    struct qv_conv3d_thresholds t = thresholds;
    t.by_depth_min_flops = qv_conv3d_flops(&d) / 3;
    assert_int_equal(qv_conv3d_decide(&d, &right_caps, &t, -1, &it, NULL), QV_OK);
    assert_int_equal(it.lowering, QV_LOWERING_BY_DEPTH);
    t.by_depth_min_flops *= 1.001;
    assert_int_equal(qv_conv3d_decide(&d, &right_caps, &t, -1, &it, NULL), QV_OK);
    assert_int_equal(it.lowering, QV_LOWERING_DIRECT);
    expect_words(it.reason, "FLOPs in a depth tap");
    assert_true(qv_conv3d_thresholds_of("cpu")->by_depth_max_kd > 0);
    assert_ptr_equal(qv_conv3d_thresholds_of("abacus"), qv_conv3d_thresholds_of("cpu"));
}

static void
forced_lowerings(void **state)
{
    (void)state;
    struct qv_conv3d_desc d = patch_embed();
    struct qv_conv3d_decision it;
    qv_error err;
    assert_int_equal(qv_conv3d_decide(&d, &right_caps, &thresholds, QV_LOWERING_DIRECT, &it, &err),
                     QV_OK);
    assert_int_equal(it.lowering, QV_LOWERING_DIRECT);
    expect_words(it.reason, "forced");
    assert_int_equal(qv_conv3d_decide(&d, &right_caps, &thresholds, QV_LOWERING_STILL, &it, &err),
                     QV_EINVAL);
    expect_words(err.text, "\"still\" is not legal here: no promise");
    assert_int_equal(qv_conv3d_decide(&d, &right_caps, &thresholds, QV_LOWERING_COUNT, &it, &err),
                     QV_EINVAL);
    assert_int_equal(qv_conv3d_decide(&d, &right_caps, &thresholds, -2, &it, &err), QV_EINVAL);
    expect_words(err.text, "-2");
}

static void
what_is_not_built_says_so(void **state)
{
    (void)state;
    struct qv_conv3d_desc d = vae();
    struct qv_conv3d_decision it = decide(&d);
    qv_error err = { 0 };
    assert_int_equal(it.n_ops, 0);
    assert_int_equal(qv_conv3d_built(&d, &it, &err), QV_EUNSUPPORTED);
    expect_words(err.text, "the by depth lowering is not built yet");
    d = patch_embed();
    d.layout = QV_LAYOUT_CHANNELS_LAST;
    it = decide(&d);
    assert_int_equal(it.lowering, QV_LOWERING_PATCHIFY);
    assert_int_equal(qv_conv3d_built(&d, &it, &err), QV_EUNSUPPORTED);
    expect_words(err.text, "patchify lowering is not built yet for channels-last input");
    d.layout = QV_LAYOUT_PATCH_ROWS;
    it = decide(&d);
    assert_int_equal(qv_conv3d_built(&d, &it, &err), QV_OK);
    d = pointwise();
    assert_int_equal(decide(&d).n_ops, 1);
    d.stride[2] = 2;
    assert_int_equal(decide(&d).n_ops, 0);
}

/* ---- the operations compute the convolution -------------------------------------------------- */

enum { N = 2, D = 4, H = 8, W = 16, C = 3, O = 5, KD = 2, K = 4, MERGE = 2 };
enum { GRID_H = H / K, GRID_W = W / K, PAIRS = N * D / KD, ROWS = PAIRS * GRID_H * GRID_W };
enum { VOXELS = N * D * H * W, TAPS = KD * K * K };

static uint8_t frames[VOXELS * C], one_of_each[VOXELS * C];
static double x_first[VOXELS * C], x_last[VOXELS * C]; /* [N,C,D,H,W], [N,D,H,W,C] */
static double patches[ROWS * C * TAPS], scratch[ROWS * C * TAPS];
static double bias[O], addend[GRID_H * GRID_W * O], want[VOXELS * O], got[VOXELS * O];
static float weight[O * C * TAPS], summed[O * C * TAPS];

static uint32_t seed;

static int
small(int n) /* -n .. n */
{
    seed = seed * 1664525u + 1013904223u;
    return (int)(seed >> 16) % (2 * n + 1) - n;
}

static struct qv_conv3d_desc
small_patches(void)
{
    return (struct qv_conv3d_desc){
        .n = N,
        .d = D,
        .h = H,
        .w = W,
        .c = C,
        .o = O,
        .kernel = { KD, K, K },
        .stride = { KD, K, K },
        .dilation = { 1, 1, 1 },
        .groups = 1,
        .merge = MERGE,
        .alpha = 0.5,
        .pixel_scale = { 2, 4, 2 },
        .pixel_shift = { -255, -1, 3 },
        .dtype = QV_F32,
        .bias = true,
        .addend_rows = GRID_H * GRID_W,
        .layout = QV_LAYOUT_FRAMES_U8,
    };
}

/* Fills all inputs with the same pixels; where frames are equal, one_of_each holds each once. */
static void
fill(const struct qv_conv3d_desc *d, bool equal)
{
    seed = 7;
    for (int64_t v = 0; v < VOXELS; v++) {
        int64_t pixel = v % (H * W), frame = v / (H * W), pair = frame / KD;
        for (int64_t c = 0; c < C; c++) {
            uint8_t u = (uint8_t)(128 + small(127));
            if (equal && frame % KD)
                u = frames[(pair * KD * H * W + pixel) * C + c];
            frames[v * C + c] = u;
            one_of_each[(pair * H * W + pixel) * C + c] = u;
            double x = u * d->pixel_scale[c] + d->pixel_shift[c];
            x_last[v * C + c] = x;
            x_first[((frame / D * C + c) * D + frame % D) * H * W + pixel] = x;
        }
    }
    for (int i = 0; i < O * C * TAPS; i++)
        weight[i] = (float)small(9);
    for (int i = 0; i < O; i++)
        bias[i] = small(99);
    for (int i = 0; i < GRID_H * GRID_W * O; i++)
        addend[i] = small(99);
}

/* One output, by definition; x is channels-last. */
static double
at(const struct qv_conv3d_desc *d, int64_t n, const int64_t out[3], int64_t o)
{
    double sum = 0;
    const int64_t *k = d->kernel;
    for (int64_t c = 0; c < d->c; c++)
        for (int64_t i = 0; i < k[0]; i++)
            for (int64_t j = 0; j < k[1]; j++)
                for (int64_t l = 0; l < k[2]; l++) {
                    int64_t z = out[0] * d->stride[0] + i, y = out[1] * d->stride[1] + j;
                    int64_t x = out[2] * d->stride[2] + l;
                    sum += x_last[(((n * d->d + z) * d->h + y) * d->w + x) * d->c + c] *
                           weight[(((o * d->c + c) * k[0] + i) * k[1] + j) * k[2] + l];
                }
    return sum;
}

/* want[n*d'*h'*w', o], rows in raster order or in block order below a frame pair */
static void
convolve(const struct qv_conv3d_desc *d, bool block_order)
{
    int64_t s[3];
    qv_conv3d_output(d, s);
    for (int64_t n = 0; n < d->n; n++)
        for (int64_t z = 0; z < s[0]; z++)
            for (int64_t y = 0; y < s[1]; y++)
                for (int64_t x = 0; x < s[2]; x++) {
                    int64_t cell =
                        block_order ? qv_geometry_row_of(s[2], d->merge, y, x) : y * s[2] + x;
                    int64_t row = (n * s[0] + z) * s[1] * s[2] + cell;
                    for (int64_t o = 0; o < d->o; o++)
                        want[row * d->o + o] =
                            d->alpha * at(d, n, (const int64_t[3]){ z, y, x }, o) +
                            (d->bias ? bias[o] : 0) +
                            (d->addend_rows ? addend[row % d->addend_rows * d->o + o] : 0);
                }
}

/* The rows operation, from the words of ops.inc. */
static void
run_rows(const struct qv_op_rows *op, const uint8_t *in, double *y)
{
    const double scale[3] = { op->scale0, op->scale1, op->scale2 };
    const double shift[3] = { op->shift0, op->shift1, op->shift2 };
    int64_t p = op->patch, t = op->still ? 1 : op->temporal, k = op->channels * t * p * p;
    for (int64_t i = 0; i < op->pairs * t * op->grid_h * p * op->grid_w * p * op->channels; i++) {
        int64_t c = i % op->channels, pixel = i / op->channels, x = pixel % (op->grid_w * p);
        int64_t y_ = pixel / (op->grid_w * p) % (op->grid_h * p);
        int64_t frame = pixel / (op->grid_w * p) / (op->grid_h * p);
        int64_t row = frame / t * op->grid_h * op->grid_w +
                      qv_geometry_row_of(op->grid_w, op->merge, y_ / p, x / p);
        y[row * k + ((c * t + frame % t) * p + y_ % p) * p + x % p] = in[i] * scale[c] + shift[c];
    }
}

static void
run_gemm(const struct qv_op_gemm *op, const double *x, const float *w, const double *b,
         const double *add, double *y)
{
    for (int64_t i = 0; i < op->m; i++)
        for (int64_t j = 0; j < op->n; j++) {
            double sum = 0;
            for (int64_t k = 0; k < op->k; k++)
                sum += x[i * op->k + k] * w[j * op->k + k];
            sum = op->alpha * sum + (op->bias ? b[j] : 0);
            y[i * op->n + j] = sum + (add ? add[i % op->addend_rows * op->n + j] : 0);
        }
}

/* Runs a decision as a plan would: buffers by what the operands are said to be. */
static void
run(const struct qv_conv3d_desc *d, const struct qv_conv3d_decision *it, const void *input)
{
    const void *const buffers[] = {
        [QV_CONV3D_NONE] = NULL,
        [QV_CONV3D_INPUT] = input,
        [QV_CONV3D_WEIGHT] = it->weight == QV_CONV3D_DEPTH_SUMMED ? summed : weight,
        [QV_CONV3D_BIAS] = bias,
        [QV_CONV3D_ADDEND] = addend,
        [QV_CONV3D_ROWS] = scratch,
        [QV_CONV3D_OUTPUT] = got,
    };
    if (it->weight == QV_CONV3D_DEPTH_SUMMED)
        qv_conv3d_sum_depth(weight, d->dtype, d->o, d->c, d->kernel[0], d->kernel[1] * d->kernel[2],
                            d->dtype, summed);
    for (size_t i = 0; i < sizeof got / sizeof *got; i++)
        got[i] = NAN;
    for (int i = 0; i < it->n_ops; i++) {
        const enum qv_conv3d_operand *what = it->operands[i];
        if (it->ops[i].kind == QV_OP_rows) {
            assert_int_equal(what[1], QV_CONV3D_ROWS);
            run_rows(&it->ops[i].u.rows, buffers[what[0]], scratch);
        } else {
            assert_int_equal(it->ops[i].kind, QV_OP_gemm);
            assert_int_equal(what[4], QV_CONV3D_OUTPUT);
            run_gemm(&it->ops[i].u.gemm, buffers[what[0]], buffers[what[1]], buffers[what[2]],
                     buffers[what[3]], got);
        }
    }
}

static void
expect_convolution(const struct qv_conv3d_desc *d, enum qv_lowering lowering, const void *input,
                   bool block_order)
{
    struct qv_conv3d_decision it = decide(d);
    assert_int_equal(it.lowering, lowering);
    assert_int_not_equal(it.n_ops, 0);
    run(d, &it, input);
    convolve(d, block_order);
    for (int64_t i = 0; i < it.rows * d->o; i++)
        if (!(got[i] == want[i]))
            fail_msg("element %d: %g, by definition %g", (int)i, got[i], want[i]);
}

static void
patchify_is_the_convolution(void **state)
{
    (void)state;
    struct qv_conv3d_desc d = small_patches();
    fill(&d, false);
    expect_convolution(&d, QV_LOWERING_PATCHIFY, frames, true);
    struct qv_conv3d_decision it = decide(&d);
    assert_int_equal(it.ops[0].u.rows.pairs, PAIRS);
    assert_int_equal(it.ops[1].u.gemm.k, C * TAPS);
    /* rows that somebody made before: the same matrix, no operation for it */
    run_rows(&it.ops[0].u.rows, frames, patches);
    d.layout = QV_LAYOUT_PATCH_ROWS;
    expect_convolution(&d, QV_LOWERING_PATCHIFY, patches, true);
    assert_int_equal(decide(&d).n_ops, 1);
    d.bias = false;
    d.addend_rows = 0;
    expect_convolution(&d, QV_LOWERING_PATCHIFY, patches, true);
    it = decide(&d);
    assert_int_equal(it.operands[0][2], QV_CONV3D_NONE);
    assert_int_equal(it.operands[0][3], QV_CONV3D_NONE);
}

/* As transformers calls it: view(-1, C, T, P, P), each volume one kernel. */
static void
volumes_of_one_kernel_are_rows(void **state)
{
    (void)state;
    struct qv_conv3d_desc d = small_patches();
    fill(&d, false);
    d.n = 1;
    d.d = KD;
    d.h = d.w = K;
    d.layout = QV_LAYOUT_CHANNELS_FIRST;
    d.addend_rows = 0;
    static double first[C * TAPS];
    for (int i = 0; i < C * TAPS; i++) /* x_last is read in the description's own sizes */
        first[i % C * TAPS + i / C] = x_last[i];
    expect_convolution(&d, QV_LOWERING_PATCHIFY, first, false);
    d.n = 2;
    assert_int_equal(decide(&d).n_ops, 1);
    d.frames_equal = true; /* the rows are there */
    assert_int_equal(decide(&d).lowering, QV_LOWERING_PATCHIFY);
    d.d = 2 * KD;
    assert_int_equal(decide(&d).lowering, QV_LOWERING_STILL);
    assert_int_equal(decide(&d).n_ops, 0);
}

static void
still_is_patchify_on_equal_frames(void **state)
{
    (void)state;
    struct qv_conv3d_desc d = small_patches();
    fill(&d, true);
    expect_convolution(&d, QV_LOWERING_PATCHIFY, frames, true);
    d.frames_equal = true;
    expect_convolution(&d, QV_LOWERING_STILL, one_of_each, true);
    struct qv_conv3d_decision it = decide(&d);
    assert_int_equal(it.ops[0].u.rows.still, 1);
    assert_int_equal(it.ops[1].u.gemm.k, C * K * K);
    assert_int_equal(it.ops[1].u.gemm.m, ROWS);
}

static void
pointwise_is_the_convolution(void **state)
{
    (void)state;
    struct qv_conv3d_desc d = with_kernel(small_patches(), 1, 1, 1);
    fill(&d, false);
    d.stride[0] = d.stride[1] = d.stride[2] = 1;
    d.layout = QV_LAYOUT_CHANNELS_LAST;
    expect_convolution(&d, QV_LOWERING_POINTWISE, x_last, false);
    d.layout = QV_LAYOUT_CHANNELS_FIRST; /* a transposed operand, which gemm has not */
    assert_int_equal(decide(&d).n_ops, 0);
}

/* ---- weights --------------------------------------------------------------------------------- */

static void
depth_is_summed_with_one_rounding(void **state)
{
    (void)state;
    /* bf16 around 256 counts in twos: 256 + 1 rounds to 256 at each step, 256 + 1 + 1 is 258 */
    qv_bf16 w[] = {
        qv_f32_to_bf16(256), qv_f32_to_bf16(-3), qv_f32_to_bf16(1),  qv_f32_to_bf16(5),
        qv_f32_to_bf16(1),   qv_f32_to_bf16(1),  qv_f32_to_bf16(2),  qv_f32_to_bf16(4),
        qv_f32_to_bf16(8),   qv_f32_to_bf16(16), qv_f32_to_bf16(32), qv_f32_to_bf16(64)
    };
    static const float sums[] = { 258, 3, 42, 84 };
    qv_conv3d_sum_depth(w, QV_BF16, 2, 1, 3, 2, QV_BF16, w); /* in place */
    for (int i = 0; i < 4; i++)
        assert_true(qv_bf16_to_f32(w[i]) == sums[i]);
    float f[] = { 0x1p24f, 1, 1, 7 }, sum[2];
    qv_conv3d_sum_depth(f, QV_F32, 1, 1, 3, 1, QV_F32, sum);
    assert_true(sum[0] == 0x1p24f + 2);
    /* to another dtype: by way of f32 this would be a tie, and go to even */
    float g[] = { 0x1.01p0f, 0x1p-40f };
    qv_conv3d_sum_depth(g, QV_F32, 1, 1, 2, 1, QV_BF16, w);
    assert_int_equal(w[0], 0x3f81);
}

static void
channels_last_weights_become_first(void **state)
{
    (void)state;
    enum { LO = 3, LC = 4, LT = 6 };
    uint16_t last[LO][LT][LC], first[LO][LC][LT];
    float last4[LO][LT][LC], first4[LO][LC][LT];
    for (int i = 0; i < LO * LT * LC; i++) {
        (&last[0][0][0])[i] = (uint16_t)(i * 257);
        (&last4[0][0][0])[i] = (float)i;
    }
    qv_conv3d_channels_last_to_first(last, LO, LT, LC, sizeof(uint16_t), first);
    qv_conv3d_channels_last_to_first(last4, LO, LT, LC, sizeof(float), first4);
    for (int o = 0; o < LO; o++)
        for (int c = 0; c < LC; c++)
            for (int t = 0; t < LT; t++) {
                assert_int_equal(first[o][c][t], last[o][t][c]);
                assert_true(first4[o][c][t] == last4[o][t][c]);
            }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(patchify_has_a_guard_for_each_value),
        cmocka_unit_test(one_tap_cannot_be_dilated),
        cmocka_unit_test(still_needs_a_promise_depth_and_rows_to_make),
        cmocka_unit_test(pointwise_guards),
        cmocka_unit_test(frames_guards),
        cmocka_unit_test(causal_frames_go_with_by_depth_and_direct),
        cmocka_unit_test(wrong_bf16_is_never_direct),
        cmocka_unit_test(sizes_are_checked),
        cmocka_unit_test(choices_are_checked),
        cmocka_unit_test(patch_layouts_are_checked),
        cmocka_unit_test(names_are_found),
        cmocka_unit_test(outputs_and_flops),
        cmocka_unit_test(the_best_legal_one_is_chosen),
        cmocka_unit_test(thresholds_part_by_depth_from_direct),
        cmocka_unit_test(forced_lowerings),
        cmocka_unit_test(what_is_not_built_says_so),
        cmocka_unit_test(patchify_is_the_convolution),
        cmocka_unit_test(volumes_of_one_kernel_are_rows),
        cmocka_unit_test(still_is_patchify_on_equal_frames),
        cmocka_unit_test(pointwise_is_the_convolution),
        cmocka_unit_test(depth_is_summed_with_one_rounding),
        cmocka_unit_test(channels_last_weights_become_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
