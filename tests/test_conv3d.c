/* SPDX-License-Identifier: MIT */
/* Tests how a Conv3d is run: both sides of every guard, hostile descriptions, lists of operations
 * and their texts. */
#include "test.h"

#include <math.h>

#include "conv3d/legal.h"
#include "conv3d/description.h"
#include "conv3d/lower.h"
#include "dtype.h"

#define THRESHOLDS                                                                                 \
    {                                                                                              \
        .by_depth_max_kd = 3, .by_depth_min_c = 3, .rows_min_o = 64                                \
    }
static const struct qv_caps right_caps = { .conv3d = THRESHOLDS },
                            wrong_caps = { .wrong_sparse_bf16 = true, .conv3d = THRESHOLDS };

/* The patch embedding of tower M for one 20x38 frame pair. */
#define PATCH                                                                                      \
    "d=2 h=320 w=608 c=3 o=1024 kernel=2,16,16 stride=2,16,16 merge=2 bias=1 pixel_scale=2,2,2 "   \
    "pixel_shift=-255,-255,-255 layout=channels_first dtype=bf16"
/* A causal 3x3x3 convolution of a video VAE, and one of 1x1x1 without padding. */
#define OF_VAE "d=21 h=60 w=104 c=96 o=96 layout=channels_last causal=zeros dtype=f32 "
#define VAE OF_VAE "kernel=3,3,3 pad_front=2,1,1 pad_back=0,1,1"
#define POINT OF_VAE "kernel=1,1,1"

/* A description in which some fields have other values. */
static qv_conv3d_desc
with(const char *base, const char *changes)
{
    char words[600], text[600], spaced[300], key[32];
    qv_conv3d_desc d;
    size_t n = (size_t)snprintf(text, sizeof text, "%s", changes);
    snprintf(words, sizeof words, "%s", base);
    snprintf(spaced, sizeof spaced, " %s", changes);
    for (char *word = strtok(words, " "); word; word = strtok(NULL, " ")) {
        snprintf(key, sizeof key, " %.*s=", (int)strcspn(word, "="), word);
        if (!strstr(spaced, key))
            n += (size_t)snprintf(text + n, sizeof text - n, " %s", word);
    }
    assert_ok(qv_conv3d_parse(text, &d, ERR));
    return d;
}

static qv_conv3d_desc
patch_embed(void)
{
    return with(PATCH, "");
}

static qv_conv3d_desc
vae(void)
{
    return with(VAE, "");
}

static void
expect(const qv_conv3d_desc *d, const struct qv_caps *caps, qv_lowering lowering, bool legal,
       const char *words)
{
    char text[QV_REASON_BYTES];
    if (qv_conv3d_legal(d, caps, lowering, text, sizeof text) != legal)
        fail_msg("%s: expected %s: %s", qv_lowering_name(lowering), legal ? "legal" : "illegal",
                 text);
    expect_words(text, words);
}

/* ---- guards ---------------------------------------------------------------------------------- */

#define AT(field) offsetof(qv_conv3d_desc, field)

TEST(patchify_has_a_guard_for_each_value)
{
    static const struct {
        size_t at;
        int64_t value;
        const char *words;
    } breaks[] = {
        { AT(stride[0]), 1, "stride 1 differs from kernel 2 on the depth axis" },
        { AT(stride[1]), 15, "stride 15 differs from kernel 16 on the height axis" },
        { AT(stride[2]), 32, "stride 32 differs from kernel 16 on the width axis" },
        { AT(pad_front[0]), 2, "padding 2 at the front of the depth axis" },
        { AT(pad_front[1]), 16, "padding 16 at the front of the height axis" },
        { AT(pad_front[2]), 16, "padding 16 at the front of the width axis" },
        { AT(pad_back[0]), 2, "padding 2 at the back of the depth axis" },
        { AT(pad_back[1]), 16, "padding 16 at the back of the height axis" },
        { AT(pad_back[2]), 16, "padding 16 at the back of the width axis" },
        { AT(dilation[0]), 2, "dilation 2 on the depth axis" },
        { AT(dilation[1]), 3, "dilation 3 on the height axis" },
        { AT(dilation[2]), 2, "dilation 2 on the width axis" },
        { AT(d), 5, "depth 5 is not a multiple of kernel 2" },
        { AT(h), 321, "height 321 is not a multiple of kernel 16" },
        { AT(w), 607, "width 607 is not a multiple of kernel 16" },
    };
    qv_conv3d_desc d = with(PATCH, "d=4 frames_equal=1"); /* room for a dilated kernel */
    expect(&d, &right_caps, QV_LOWERING_PATCHIFY, true, "kernel = stride = 2x16x16");
    expect(&d, &right_caps, QV_LOWERING_PATCHIFY, true, "[1520, 1536]");
    expect(&d, &right_caps, QV_LOWERING_STILL, true, "[1520, 768] in place of 1536");
    for (size_t i = 0; i < sizeof breaks / sizeof *breaks; i++) {
        qv_conv3d_desc broken = d;
        memcpy((char *)&broken + breaks[i].at, &breaks[i].value, sizeof breaks[i].value);
        expect(&broken, &right_caps, QV_LOWERING_PATCHIFY, false, breaks[i].words);
        expect(&broken, &right_caps, QV_LOWERING_STILL, false, breaks[i].words);
        expect(&broken, &right_caps, QV_LOWERING_BY_DEPTH, true, "kernel depth 2");
        expect(&broken, &right_caps, QV_LOWERING_DIRECT, true, "every shape");
    }
    d.groups = 2;
    d.c = 4;
    expect(&d, &right_caps, QV_LOWERING_PATCHIFY, false, "2 groups");
    expect(&d, &right_caps, QV_LOWERING_STILL, false, "2 groups");
}

TEST(what_is_legal)
{
#define STILL_OF "d=4 frames_equal=1 "
#define FLAT "n=2 kernel=1,3,3 groups=4 dilation=1,2,1 "
#define SPARSE "dtype=bf16 kernel=3,2,3 "
#define WIDE "dtype=bf16 pad_front=2,1,3 pad_back=0,1,3 dilation=1,1,2 "
    static const char exceeds[] = "a stride exceeds the kernel";
    static const struct {
        const char *base, *changes;
        qv_lowering lowering;
        bool legal;
        const char *words;
    } right[] = {
        /* one tap cannot be dilated */
        { PATCH, "kernel=1,16,16 stride=1,16,16 dilation=7,1,1", QV_LOWERING_PATCHIFY, true,
          "1x16x16" },
        /* A still needs a promise, depth, and rows to make: with two pairs, making rows from
         * channels-first input is a copy. */
        { PATCH, "d=4", QV_LOWERING_STILL, false, "frames_equal is not set" },
        { PATCH, STILL_OF, QV_LOWERING_STILL, true, "the 2 frames are one image" },
        { PATCH, STILL_OF "layout=patch_rows", QV_LOWERING_STILL, false,
          "rows already hold all 2 frames" },
        { PATCH, STILL_OF "layout=frames_u8", QV_LOWERING_STILL, true, "weights summed" },
        { PATCH, STILL_OF "layout=frames_u8 kernel=1,16,16 stride=1,16,16", QV_LOWERING_STILL,
          false, "kernel depth 1" },
        { POINT, "", QV_LOWERING_POINTWISE, true, "GEMM over channels [131040, 96]" },
        { POINT, "", QV_LOWERING_PATCHIFY, true, "" },
        { POINT, "stride=2,1,1", QV_LOWERING_POINTWISE, true, "kernel 1x1x1" },
        { POINT, "stride=1,2,1", QV_LOWERING_POINTWISE, true, "kernel 1x1x1" },
        { POINT, "stride=1,1,2", QV_LOWERING_POINTWISE, true, "kernel 1x1x1" },
        { POINT, "kernel=3,1,1", QV_LOWERING_POINTWISE, false, "is not 1x1x1" },
        { POINT, "kernel=1,3,1", QV_LOWERING_POINTWISE, false, "is not 1x1x1" },
        { POINT, "kernel=1,1,3", QV_LOWERING_POINTWISE, false, "is not 1x1x1" },
        { POINT, "causal=none pad_front=1,0,0", QV_LOWERING_POINTWISE, false, "padding 1 at the" },
        { POINT, "causal=none pad_front=0,1,0", QV_LOWERING_POINTWISE, false, "padding 1 at the" },
        { POINT, "causal=none pad_front=0,0,1", QV_LOWERING_POINTWISE, false, "padding 1 at the" },
        { POINT, "causal=none pad_back=1,0,0", QV_LOWERING_POINTWISE, false, "padding 1 at the b" },
        { POINT, "causal=none pad_back=0,1,0", QV_LOWERING_POINTWISE, false, "padding 1 at the b" },
        { POINT, "causal=none pad_back=0,0,1", QV_LOWERING_POINTWISE, false, "padding 1 at the b" },
        { POINT, "pad_front=1,0,0", QV_LOWERING_POINTWISE, false, "causal padding (zeros) of 1" },
        { POINT, "groups=96", QV_LOWERING_POINTWISE, false, "96 groups" },
        { POINT, "groups=96", QV_LOWERING_FRAMES, true, "21 frames" },
        { VAE, FLAT "pad_front=0,1,1", QV_LOWERING_FRAMES, true,
          "one 2D convolution over 42 frames" },
        { VAE, FLAT "pad_front=0,1,1 stride=2,1,1", QV_LOWERING_FRAMES, true, "over 22 frames" },
        /* for a kernel of depth 1 these are frames like any other */
        { VAE, FLAT "pad_front=1,1,1 stride=2,1,1", QV_LOWERING_FRAMES, true, "over 22 frames" },
        { VAE, "kernel=2,3,3 pad_front=1,1,1", QV_LOWERING_FRAMES, false,
          "kernel depth 2 is not 1" },
        /* Causal frames go with by depth and direct alone, if there is padding to fill. */
        { PATCH, "causal=zeros", QV_LOWERING_PATCHIFY, true, "kernel = stride" },
        { PATCH, "causal=first", QV_LOWERING_PATCHIFY, true, "kernel = stride" },
        { PATCH, "causal=zeros pad_front=2,0,0", QV_LOWERING_PATCHIFY, false, "(zeros)" },
        { PATCH, "causal=zeros pad_front=2,0,0 frames_equal=1", QV_LOWERING_STILL, false,
          "(zeros)" },
        { PATCH, "causal=zeros pad_front=2,0,0", QV_LOWERING_BY_DEPTH, true, "" },
        { PATCH, "causal=zeros pad_front=2,0,0", QV_LOWERING_DIRECT, true, "" },
        { PATCH, "causal=first pad_front=2,0,0", QV_LOWERING_PATCHIFY, false,
          "(first frame)" },
        { PATCH, "causal=first pad_front=2,0,0 frames_equal=1", QV_LOWERING_STILL, false,
          "(first frame)" },
        { PATCH, "causal=first pad_front=2,0,0", QV_LOWERING_BY_DEPTH, true, "" },
        { PATCH, "causal=first pad_front=2,0,0", QV_LOWERING_DIRECT, true, "" },
        { VAE, "kernel=17,3,3", QV_LOWERING_BY_DEPTH, false,
          "kernel depth 17 is more than 16 depth taps" },
        { VAE, "kernel=7,3,3 stride=8,1,1 dtype=bf16", QV_LOWERING_DIRECT, true, "" },
        { VAE, SPARSE "stride=1,3,1", QV_LOWERING_DIRECT, true, "" },
    }, wrong[] = {
        /* oneDNN before 3.13 is wrong on AMX. Where possible, the input is thinned out before the
         * convolution. */
        { VAE, "kernel=7,3,3 stride=8,1,1", QV_LOWERING_DIRECT, true, "" },
        { VAE, "kernel=7,3,3 stride=8,1,1 dtype=bf16", QV_LOWERING_DIRECT, false, exceeds },
        { VAE, SPARSE "stride=1,2,1", QV_LOWERING_DIRECT, true, "" },
        { VAE, SPARSE "stride=1,3,1", QV_LOWERING_DIRECT, false, exceeds },
        { VAE, SPARSE "stride=1,3,1", QV_LOWERING_BY_DEPTH, false, "" },
        { VAE, "dtype=f32 kernel=3,2,3 stride=1,3,1", QV_LOWERING_DIRECT, true, "" },
        { VAE, "dtype=bf16 kernel=3,1,3 stride=1,3,1", QV_LOWERING_DIRECT, false, "" },
        /* the convolution is only given every third line */
        { VAE, "dtype=bf16 kernel=3,1,3 stride=1,3,1 pad_front=2,0,1 pad_back=0,0,1",
          QV_LOWERING_DIRECT, true, "" },
        { VAE, "dtype=bf16 pad_front=2,1,2", QV_LOWERING_DIRECT, true, "" },
        /* the first position sees no voxel */
        { VAE, "dtype=bf16 pad_front=2,1,3", QV_LOWERING_DIRECT, false, "" },
        { VAE, WIDE, QV_LOWERING_DIRECT, true, "" },
        { VAE, WIDE "w=1", QV_LOWERING_DIRECT, false, "" }, /* it lies between two taps */
        /* by depth, a convolution sees frames one by one */
        { VAE, "dtype=bf16 kernel=2,3,3 stride=3,1,1", QV_LOWERING_DIRECT, false, "" },
        { VAE, "dtype=bf16 kernel=2,3,3 stride=3,1,1", QV_LOWERING_BY_DEPTH, true, "" },
    };
    EACH (c, right) {
        const qv_conv3d_desc d = with(c->base, c->changes);
        expect(&d, &right_caps, c->lowering, c->legal, c->words);
    }
    EACH (c, wrong) {
        const qv_conv3d_desc d = with(c->base, c->changes);
        expect(&d, &wrong_caps, c->lowering, c->legal, c->words);
    }
}

TEST(sparse_input_is_thinned_out)
{
    struct qv_conv3d_list list;
    const qv_conv3d_desc d = with(VAE, "dtype=bf16 kernel=3,1,3 stride=1,3,1 pad_front=0,0,1 "
                                       "pad_back=0,0,1");
    qv_conv3d_lower(&d, QV_LOWERING_DIRECT, &list);
    assert_int_equal(list.n, 2);
    assert_int_equal(list.steps[0].op.u.im2col.sh, 3);
    assert_int_equal(list.steps[1].op.u.conv.h, 20);
    assert_int_equal(list.steps[1].op.u.conv.sh, 1);
}

/* A kernel has more depth taps than lowering by depth can list, on a library whose own Conv3d is
 * wrong. */
TEST(nothing_legal_is_unsupported)
{
    struct qv_conv3d_decision it;
    const qv_conv3d_desc d = with(VAE, "kernel=17,3,3 stride=18,1,1 dtype=bf16");
    qv_error err;
    assert_int_equal(qv_conv3d_decide(&d, &wrong_caps, -1, &it, &err), QV_EUNSUPPORTED);
    expect_words(err.text, "direct: this device library");
    expect_words(err.text, "by depth: kernel depth 17");
}

/* ---- check ----------------------------------------------------------------------------------- */

static void
refused(const qv_conv3d_desc *d, const char *words)
{
    char text[QV_REASON_BYTES];
    struct qv_conv3d_decision it, before;
    qv_error err = { 0 };
    memset(&it, 0x5a, sizeof it);
    before = it;
    assert_int_equal(qv_conv3d_check(d, &err), QV_EINVAL);
    expect_words(err.text, words);
    assert_int_equal(qv_conv3d_check(d, NULL), QV_EINVAL);
    assert_int_equal(qv_conv3d_decide(d, &right_caps, -1, &it, &err), QV_EINVAL);
    assert_memory_equal(&it, &before, sizeof it);
    assert_false(qv_conv3d_legal(d, &right_caps, QV_LOWERING_DIRECT, text, sizeof text));
}

TEST(sizes_are_checked)
{
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
        { AT(groups), 5, "groups is 5; it must divide c (96)" },
        { AT(residual_rows), -1, "residual_rows is -1" },
        { AT(residual_rows), 7 * 131040, "residual_rows is 917280; it must divide 131040" },
        { AT(n), INT64_MAX, "the size of the input exceeds 63 bits" },
        { AT(h), INT64_MAX, "height 9223372036854775807 with padding 1 and 1" },
        { AT(pad_back[1]), INT64_MAX, "with padding 1 and 9223372036854775807" },
        { AT(pad_front[2]), INT64_MAX - 1024, "the size of the output exceeds 63 bits" },
        { AT(o), INT64_MAX / 96 * 96, "the size of the weight exceeds 63 bits" },
        { AT(kernel[0]), INT64_MAX, "larger than the padded input 23 on the depth axis" },
        { AT(dilation[2]), INT64_MAX, "larger than the padded input 106 on the width axis" },
        { AT(kernel[0]), 24, "kernel 24 with dilation 1" },
        { AT(dilation[1]), 31, "kernel 3 with dilation 31" },
    };
    qv_conv3d_desc d = vae();
    assert_int_equal(qv_conv3d_check(&d, NULL), QV_OK);
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        d = vae();
        memcpy((char *)&d + hostile[i].at, &hostile[i].value, sizeof hostile[i].value);
        refused(&d, hostile[i].words);
    }
    d = with(VAE, "kernel=23,62,106"); /* Exactly the padded input. */
    assert_int_equal(qv_conv3d_check(&d, NULL), QV_OK);
    int64_t out[3];
    qv_conv3d_output(&d, out);
    assert_true(out[0] == 1 && out[1] == 1 && out[2] == 1);
}

TEST(choices_are_checked)
{
#define BYTES "layout=frames_u8 "
    static const struct {
        const char *base, *changes, *words; /* NULL: it is right */
    } cases[] = {
        { VAE, "dtype=u8", "dtype is 3" },
        { VAE, "pad_back=1,1,1", "pad_back on axis depth is 1, but causal padding (zeros)" },
        { VAE, "pad_back=1,1,1 causal=none", NULL },
        { VAE, "layout=patch_rows", "layout patch_rows needs whole patches: causal padding" },
        { PATCH, BYTES, NULL },
        { PATCH, BYTES "stride=2,8,16",
          "layout frames_u8 needs whole patches: stride 8 differs from kernel 16" },
        { PATCH, BYTES "merge=4", "merge is 4; it must divide the grid, 20x38" },
        { PATCH, BYTES "c=4", "at most 3 channels" },
        { PATCH, BYTES "kernel=2,16,8 stride=2,16,8", "square patches" },
    };
    EACH (c, cases) {
        const qv_conv3d_desc d = with(c->base, c->changes);
        if (c->words)
            refused(&d, c->words);
        else
            assert_ok(qv_conv3d_check(&d, ERR));
    }
    const qv_conv3d_desc bytes = with(PATCH, BYTES);
    qv_conv3d_desc d[] = { vae(), vae(), vae(), vae(), vae(), bytes, bytes, bytes };
    d[0].layout = (qv_conv3d_layout)QV_LAYOUT_COUNT;
    d[1].causal = (qv_causal)-1;
    d[2].act = (qv_act)QV_ACT_COUNT;
    d[3].alpha = NAN;
    d[4].alpha = 0;
    d[5].merge = 0;
    d[6].pixel_scale[1] = 0;
    d[7].pixel_shift[2] = INFINITY;
    static const char *const words[] = { "layout is 4",    "causal is 4294967295", "act is 5",
                                         "alpha is",       "alpha is 0",           "merge is 0",
                                         "pixel_scale[1]", "pixel_shift[2]" };
    for (size_t i = 0; i < LENGTH(d); i++)
        refused(&d[i], words[i]);
    /* such rows may be of oblong patches, and their order is for the caller to decide */
    qv_conv3d_desc rows = with(PATCH, "layout=patch_rows kernel=2,16,8 stride=2,16,8");
    rows.merge = 0;
    assert_ok(qv_conv3d_check(&rows, ERR));
}

/* ---- decide ---------------------------------------------------------------------------------- */

TEST(names_are_found)
{
    for (int i = 0; i < QV_LOWERING_COUNT; i++)
        assert_int_equal(qv_lowering_find(qv_lowering_name((qv_lowering)i)), i);
    assert_int_equal(qv_lowering_find("by depth"), QV_LOWERING_BY_DEPTH);
    assert_int_equal(qv_lowering_find("gemm"), -1);
    assert_int_equal(qv_lowering_find(NULL), -1);
    assert_string_equal(qv_lowering_name((qv_lowering)99), "no lowering");
}

TEST(outputs)
{
    int64_t out[3];
    qv_conv3d_desc d = vae();
    qv_conv3d_output(&d, out);
    assert_true(out[0] == 21 && out[1] == 60 && out[2] == 104);
    d = with(VAE, "groups=96 dilation=2,1,1 stride=1,2,3");
    qv_conv3d_output(&d, out); /* floor((size + pads - extent) / stride) + 1 */
    assert_true(out[0] == 19 && out[1] == 30 && out[2] == 35);
}

struct choice {
    const char *base, *changes;
    qv_lowering lowering;
    const char *words;
};

static void
expect_choices(const struct choice *c, size_t n, const struct qv_caps *caps)
{
    for (; n; n--, c++) {
        const qv_conv3d_desc d = with(c->base, c->changes);
        struct qv_conv3d_decision it;
        assert_ok(qv_conv3d_decide(&d, caps, -1, &it, ERR));
        if (it.lowering != c->lowering)
            fail_msg("%s: %s", c->changes, qv_lowering_name(it.lowering));
        expect_words(it.reason, c->words);
    }
}

TEST(the_best_legal_one_is_chosen)
{
#define SEVEN "kernel=7,3,3 stride=8,1,1 dtype=bf16" /* deeper than the threshold */
    static const struct choice right[] = {
        { PATCH, BYTES, QV_LOWERING_PATCHIFY, "kernel = stride" },
        { PATCH, BYTES "frames_equal=1", QV_LOWERING_STILL, "" },
        { POINT, "", QV_LOWERING_POINTWISE, "" }, /* though patchify is legal, too */
        { VAE, "kernel=1,3,3 pad_front=0,1,1", QV_LOWERING_FRAMES, "" },
        /* thresholds part by depth from direct */
        { VAE, "", QV_LOWERING_BY_DEPTH, "kernel depth 3" },
        { VAE, "causal=first", QV_LOWERING_BY_DEPTH, "" },
        { VAE, "kernel=4,3,3", QV_LOWERING_DIRECT, "every shape; kernel depth 4 is above 3" },
        { VAE, "kernel=17,3,3", QV_LOWERING_DIRECT, "" },
        { VAE, SEVEN, QV_LOWERING_DIRECT, "" },
        /* few outputs do not pay for rows, unless every lowering has to copy the layout, or the
         * rows are there already */
        { PATCH, "layout=channels_last o=64", QV_LOWERING_PATCHIFY, "" },
        { PATCH, "layout=channels_last o=63", QV_LOWERING_BY_DEPTH, "63 outputs are fewer" },
        { PATCH, "o=63", QV_LOWERING_PATCHIFY, "" },
        { PATCH, "layout=patch_rows o=63", QV_LOWERING_PATCHIFY, "" },
        { POINT, "o=8", QV_LOWERING_POINTWISE, "" },
        { POINT, "o=8 stride=1,2,1", QV_LOWERING_FRAMES, "" },
    }, narrow[] = {
        { VAE, "", QV_LOWERING_DIRECT, "enough of its 96 channels" },
        { VAE, "groups=96", QV_LOWERING_BY_DEPTH, "" }, /* depthwise */
        { VAE, "groups=48", QV_LOWERING_DIRECT, "" },
    }, wrong[] = {
        { VAE, SEVEN, QV_LOWERING_BY_DEPTH, "not direct" },
        { VAE, SEVEN, QV_LOWERING_BY_DEPTH, "wrong in bf16" },
    };
    struct qv_caps narrow_caps = right_caps;
    narrow_caps.conv3d.by_depth_min_c = 97;
    expect_choices(right, LENGTH(right), &right_caps);
    expect_choices(narrow, LENGTH(narrow), &narrow_caps);
    expect_choices(wrong, LENGTH(wrong), &wrong_caps);
    struct qv_conv3d_decision it;
    qv_conv3d_desc d = with(PATCH, BYTES);
    assert_ok(qv_conv3d_decide(&d, &right_caps, -1, &it, ERR));
    assert_int_equal(it.legal, 1u << QV_LOWERING_PATCHIFY | 1u << QV_LOWERING_BY_DEPTH |
                                   1u << QV_LOWERING_DIRECT);
    assert_int_equal(qv_conv3d_rows(&d), 760);
    d = with(VAE, SEVEN);
    assert_ok(qv_conv3d_decide(&d, &wrong_caps, -1, &it, ERR));
    assert_int_equal(it.legal, 1u << QV_LOWERING_BY_DEPTH);
}

/* An unknown device goes direct. Only a CPU with AMX gains from lowering by depth in dense
 * layers. */
TEST(devices_have_thresholds)
{
    const qv_conv3d_desc d = vae();
    struct qv_conv3d_decision it;
    assert_int_equal(qv_conv3d_decide(&d, &(struct qv_caps){ 0 }, -1, &it, NULL), QV_OK);
    assert_int_equal(it.lowering, QV_LOWERING_DIRECT);
    for (const struct qv_backend *const *b = qv_backends; *b; b++) {
        struct qv_device *dev = NULL;
        struct qv_caps caps;
        if ((*b)->open(&(struct qv_device_options){ 0 }, &dev, NULL))
            continue;
        dev->backend->caps(dev, &caps);
        dev->backend->close(dev);
        const bool cpu = !strcmp((*b)->name, "cpu"), amx = strstr(caps.device, ", AMX") != NULL,
                   slow = strstr(caps.device, ", NEON") || strstr(caps.device, ", SVE-128");
        assert_int_equal(caps.conv3d.by_depth_max_kd, cpu ? 16 : 0);
        assert_int_equal(caps.conv3d.by_depth_min_c, !cpu ? 0 : amx ? 192 : INT64_MAX);
        assert_int_equal(caps.conv3d.rows_min_o, cpu && !slow ? 256 : 0);
    }
}

TEST(forced_lowerings)
{
    qv_conv3d_desc d = patch_embed();
    struct qv_conv3d_decision it;
    qv_error err;
    assert_ok(qv_conv3d_decide(&d, &right_caps, QV_LOWERING_DIRECT, &it, ERR));
    assert_int_equal(it.lowering, QV_LOWERING_DIRECT);
    expect_words(it.reason, "forced");
    assert_int_equal(qv_conv3d_decide(&d, &right_caps, QV_LOWERING_STILL, &it, &err), QV_EINVAL);
    expect_words(err.text, "\"still\" is not legal here: frames_equal is not set");
    assert_int_equal(qv_conv3d_decide(&d, &right_caps, QV_LOWERING_COUNT, &it, &err), QV_EINVAL);
    assert_int_equal(qv_conv3d_decide(&d, &right_caps, -2, &it, &err), QV_EINVAL);
    expect_words(err.text, "-2");
}

/* ---- operations ------------------------------------------------------------------------------ */

static size_t
largest_use(const struct qv_conv3d_list *list, int place)
{
    size_t most = 0;
    for (int i = 0; i < list->n; i++)
        for (int j = 0; j < QV_MAX_OPERANDS; j++) {
            const struct qv_step *step = &list->steps[i];
            const size_t end = (size_t)step->offsets[j] + qv_op_view(&step->op, j).bytes;
            if (step->operands[j] == place && end > most)
                most = end;
        }
    return most;
}

/* checkconv tests that the operations compute the convolution. This tests that there are no
 * unneeded operations. */
TEST(lowerings_list_few_operations)
{
    struct qv_conv3d_list list;
    qv_conv3d_desc d = with(PATCH, "layout=patch_rows");
    qv_conv3d_lower(&d, QV_LOWERING_PATCHIFY, &list); /* The caller has made the rows. */
    assert_int_equal(list.n, 1);
    assert_int_equal(list.steps[0].op.u.gemm.k, 1536);
    assert_int_equal(list.steps[0].operands[0], QV_CONV3D_INPUT);
    assert_int_equal(list.steps[0].operands[3], QV_CONV3D_NONE);
    d = with(PATCH, BYTES "frames_equal=1");
    qv_conv3d_lower(&d, QV_LOWERING_STILL, &list);
    assert_int_equal(list.n, 2);
    assert_true(list.weight.summed);
    assert_int_equal(list.steps[1].op.u.gemm.k, 768);
    assert_int_equal(largest_use(&list, QV_CONV3D_INPUT), 320 * 608 * 3);
    d = with(POINT, ""); /* The voxels are used as they lie. */
    qv_conv3d_lower(&d, QV_LOWERING_POINTWISE, &list);
    assert_int_equal(list.n, 1);
    d = with(VAE, "d=23 pad_front=0,1,1"); /* The window with its padding. */
    qv_conv3d_lower(&d, QV_LOWERING_BY_DEPTH, &list);
    assert_int_equal(list.n, 4);
    assert_int_equal(list.weight.pieces, 3);
    assert_int_equal(list.steps[2].op.u.conv.n, 21); /* A 2D convolution over frames. */
    assert_int_equal(list.steps[2].op.u.conv.d, 1);
    assert_int_equal(list.steps[2].op.u.conv.sums, 2);
    assert_int_equal(list.steps[2].offsets[0], 2 * 60 * 104 * 96 * 4);
    assert_int_equal(largest_use(&list, QV_CONV3D_SUMS), 21 * 60 * 104 * 96 * 4);
    assert_int_equal(largest_use(&list, QV_CONV3D_INPUT), 23 * 60 * 104 * 96 * 4);
    qv_conv3d_lower(&d, QV_LOWERING_DIRECT, &list);
    assert_int_equal(list.n, 1);
}

/* ---- text ------------------------------------------------------------------------------------ */

TEST(descriptions_survive_text)
{
    qv_conv3d_desc back, d = with(PATCH, "act=gelu_erf causal=first frames_equal=1 "
                                         "pad_back=0,0,7");
    char text[900];
    d.pixel_scale[1] = 1 / 3.0;
    qv_conv3d_print(&d, text, sizeof text);
    assert_ok(qv_conv3d_parse(text, &back, ERR));
    assert_memory_equal(d.kernel, back.kernel, sizeof d.kernel);
    assert_memory_equal(d.pixel_scale, back.pixel_scale, sizeof d.pixel_scale);
    assert_int_equal(back.pad_back[2], 7);
    assert_int_equal(back.dtype, QV_BF16);
    assert_int_equal(back.causal, QV_CAUSAL_FIRST);
    assert_true(back.bias && back.frames_equal);
    char again[900];
    assert_string_equal(text, qv_conv3d_print(&back, again, sizeof again));
    assert_ok(qv_conv3d_parse(" d=2\th=4 w=4 c=1 o=1 kernel=2,4,4 ", &back, ERR));
    assert_string_equal(qv_conv3d_print(&back, text, sizeof text),
                        "d=2 h=4 w=4 c=1 o=1 kernel=2,4,4");
    assert_string_equal(qv_conv3d_print(&back, text, 9), "d=2 h=4 ");
}

TEST(wrong_words_are_named)
{
    static const struct {
        const char *text, *words;
    } bad[] = {
        { "d=2 hight=4", "unknown field \"hight\"" },
        { "d=2 kernel", "\"kernel\" is not of the form" },
        { "kernel=3,3", "three numbers" },
        { "kernel=3,3,3,3", "three numbers" },
        { "d=2 d=3", "d is given twice" },
        { "d=two", "d is \"two\"; it must be a number" },
        { "d=99999999999999999999", "must be a number" },
        { "act=relu", "act is \"relu\"; it must be a known name" },
        { "bias=2", "bias is \"2\"; it must be 0 or 1" },
        { "alpha=nan", "alpha is \"nan\"; it must be a number" },
        { "d=", "d is \"\"; it must be a number" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        qv_conv3d_desc d = { .n = 77 };
        qv_error err = { 0 };
        assert_int_equal(qv_conv3d_parse(bad[i].text, &d, &err), QV_EINVAL);
        expect_words(err.text, bad[i].words);
        assert_int_equal(d.n, 77);
    }
}

/* ---- weights --------------------------------------------------------------------------------- */

/* Computes the form for a still: each slice of weight[o, c, kd, kh, kw] is summed with the slices
 * after it. */
static void
sum_depth(const void *w, qv_dtype from, const int64_t sizes[5], qv_dtype to, void *out)
{
    const qv_conv3d_desc d = { .o = sizes[0],
                               .c = sizes[1],
                               .kernel = { sizes[2], sizes[3], sizes[4] },
                               .groups = 1,
                               .dtype = to };
    const struct qv_conv3d_form form = {
        .pieces = 1, .o = sizes[0], .k = sizes[1] * sizes[3] * sizes[4], .summed = true
    };
    qv_conv3d_reshape(&d, &form, 0, w, from, false, out);
}

TEST(depth_is_summed_with_one_rounding)
{
    /* bf16 numbers around 256 have steps of two: adding 1 to 256 twice rounds to 256 each time, but
     * 256 + 1 + 1 is 258. */
    const qv_bf16 w[] = { qv_f32_to_bf16(256), qv_f32_to_bf16(-3), qv_f32_to_bf16(1),
                          qv_f32_to_bf16(5),   qv_f32_to_bf16(1),  qv_f32_to_bf16(1),
                          qv_f32_to_bf16(2),   qv_f32_to_bf16(4),  qv_f32_to_bf16(8),
                          qv_f32_to_bf16(16),  qv_f32_to_bf16(32), qv_f32_to_bf16(64) };
    static const float sums[] = { 258, 3, 42, 84 };
    qv_bf16 out[4];
    sum_depth(w, QV_BF16, (const int64_t[]){ 2, 1, 3, 1, 2 }, QV_BF16, out);
    for (int i = 0; i < 4; i++)
        assert_true(qv_bf16_to_f32(out[i]) == sums[i]);
    const float f[] = { 0x1p24f, 1, 1 };
    float sum;
    sum_depth(f, QV_F32, (const int64_t[]){ 1, 1, 3, 1, 1 }, QV_F32, &sum);
    assert_true(sum == 0x1p24f + 2);
    /* Summed to another dtype. By way of f32 this would be a tie and would round to even. */
    const float g[] = { 0x1.01p0f, 0x1p-40f };
    sum_depth(g, QV_F32, (const int64_t[]){ 1, 1, 2, 1, 1 }, QV_BF16, out);
    assert_int_equal(out[0], 0x3f81);
}

TEST(channels_last_weights_become_first)
{
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
