/* SPDX-License-Identifier: MIT */
/* Tests operations as data: print and parse, equality, refusals, operands, costs and tolerances. */

#include "test.h"

#include <math.h>

#include "checkop.h"
#include "op_parse.h"

/* One legal operation of each kind, as qv_op_print writes it. */
static const char *const legal[QV_OP_COUNT] = {
    [QV_OP_patchify] =
        "patchify rows=48 patch=16 temporal=2 channels=3 items=5 patches=72 dtype=bf16",
    [QV_OP_convert] = "convert n=7 x=f32 dtype=bf16",
    [QV_OP_gemm] = ("gemm m=760 n=1024 k=1536 alpha=0.00392156862745098 bias=1 act=gelu_erf "
                    "residual_rows=380 dtype=bf16"),
    [QV_OP_gemm_few] = ("gemm_few m=9 n=72 k=192 alpha=1 bias=1 act=silu residual_rows=3 w_bits=4 "
                        "w_group=64 w=f16 dtype=bf16"),
    [QV_OP_norm] = "norm rows=3 cols=5 eps=1e-06 rms=1 dtype=f32",
    [QV_OP_rope] = "rope rows=12 heads=4 head_dim=72 positions=20 x_stride=432 dtype=bf16",
    [QV_OP_attention] = ("attention rows=10 segments=3 heads=3 head_dim=16 scale=0.25 "
                         "q_stride=144 k_stride=144 v_stride=144 dtype=f32"),
    [QV_OP_gate] = "gate rows=6 cols=8 act=silu a_stride=16 b_stride=16 dtype=bf16",
    [QV_OP_gather] = "gather rows=12 cols=8 x_rows=20 x=f32 dtype=bf16",
    [QV_OP_interpolate] = "interpolate rows=12 cols=8 taps=4 table_rows=2304 dtype=f32",
    [QV_OP_im2col] = ("im2col n=2 d=4 h=6 w=9 c=5 kd=2 kh=3 kw=3 sd=2 sh=1 sw=2 channels_first=1 "
                      "dtype=bf16"),
    [QV_OP_conv] = ("conv n=2 d=4 h=5 w=7 c=6 o=9 kd=3 kh=3 kw=3 sd=1 sh=2 sw=1 dd=1 dh=1 dw=1 "
                    "top=1 bottom=1 left=2 right=1 groups=3 x_depth=5 alpha=0.5 bias=1 "
                    "act=gelu_erf residual_rows=12 dtype=bf16"),
    [QV_OP_epilogue] = ("epilogue rows=24 cols=33 alpha=0.5 bias=1 act=gelu_tanh residual_rows=8 "
                        "dtype=bf16"),
};

#define CONV(d, h, w, more)                                                                        \
    "conv n=1 d=" d " h=" h " w=" w                                                                \
    " c=4 o=6 kd=2 kh=3 kw=3 sd=1 sh=1 sw=1 dh=1 dw=1 dtype=f32 " more
#define CONV_3 CONV("3", "4", "4", "")

static struct qv_op
parsed(const char *text)
{
    struct qv_op op;
    qv_error err = { 0 };
    if (qv_op_parse(text, &op, &err))
        fail_msg("%s: %s", text, err.text);
    return op;
}

TEST(test_round_trip)
{
    for (int kind = 0; kind < QV_OP_COUNT; kind++) {
        char text[1000];
        struct qv_op op = parsed(legal[kind]);
        assert_int_equal(op.kind, kind);
        assert_string_equal(qv_op_print(&op, text, sizeof text), legal[kind]);
        struct qv_op again = parsed(text);
        assert_true(qv_op_equal(&op, &again));
        assert_ok(qv_op_check(&op, ERR));
    }
}

/* dtype= applies to the operands that are not named, wherever it stands. A dtype belongs to an
 * operand even if a field has the same name. */
TEST(test_dtypes_of_operands)
{
    static const struct {
        const char *text, *printed;
    } cases[] = {
        { "gemm dtype=bf16 y=f32 m=1", "gemm m=1 y=f32 dtype=bf16" },
        { "gemm y=f32 m=1 dtype=bf16", "gemm m=1 y=f32 dtype=bf16" },
        { "gemm bias=1 bias=f32 dtype=bf16", "gemm bias=1 bias=f32 dtype=bf16" },
        { "gemm bias=f32 bias=1 dtype=bf16", "gemm bias=1 bias=f32 dtype=bf16" },
        { "conv w=3 w=bf16 dtype=f32", "conv w=3 w=bf16 dtype=f32" },
        { "gemm x=bf16 w=bf16 bias=bf16 residual=f32 y=f32", "gemm residual=f32 y=f32 dtype=bf16" },
        { "gemm x=bf16", "gemm x=bf16 dtype=auto" },
        { "norm x=bf16 y=f32", "norm x=bf16 dtype=f32" }, /* If there are two, the output's
                                                           * counts. */
        { "norm dtype=i32", "norm dtype=i32" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[200];
        struct qv_op op = parsed(cases[i].text), again = parsed(cases[i].printed);
        assert_string_equal(qv_op_print(&op, text, sizeof text), cases[i].printed);
        assert_true(qv_op_equal(&op, &again));
    }
    struct qv_op op = parsed("gemm x=bf16 y=f32 dtype=u8");
    assert_int_equal(qv_op_view(&op, 0).dtype, QV_BF16);
    assert_int_equal(qv_op_view(&op, 1).dtype, QV_U8);
    assert_int_equal(qv_op_view(&op, 4).dtype, QV_F32);
    qv_op_set_dtype(&op, QV_F32);
    for (int i = 0; i < 5; i++)
        assert_int_equal(qv_op_view(&op, i).dtype, QV_F32);
}

TEST(test_what_kernels_take)
{
    static const uint32_t both = 1 << QV_F32 | 1 << QV_BF16, f32 = 1 << QV_F32;
    static const struct {
        const char *text;
        uint32_t takes;
        const char *word; /* A word of the refusal where one dtype is needed; NULL: it is not
                           * refused. */
        bool mixed;       /* Whether it is allowed where the operands need not have one dtype. */
    } cases[] = {
        { "gemm m=1 n=1 k=1 dtype=bf16", both, NULL, true },
        { "gemm m=1 n=1 k=1 dtype=bf16", f32, "gemm: x=bf16", false },
        { "gemm m=1 n=1 k=1 y=f32 dtype=bf16", both, "gemm: y=f32 with x=bf16", true },
        { "gemm m=1 n=1 k=1 y=f16 dtype=bf16", both, "gemm: y=f16", false },
        { "gemm m=1 n=1 k=1 bias=f32 dtype=bf16", both, NULL, true }, /* Without bias. */
        { "gemm m=1 n=1 k=1 bias=1 bias=f32 dtype=bf16", both, "bias=f32", true },
        { "convert n=1 x=bf16 y=f32", both, NULL, true },
        { "gather rows=1 cols=1 x_rows=1 x=bf16 y=f32", both, NULL, true },
        { "gate rows=1 cols=1 b=bf16 dtype=f32", both, "gate: b=bf16 with a=f32", true },
        { "convert n=1 x=f16 y=f32", both, "convert: x=f16", false },
        { CONV_3 "dd=1 x_depth=3 groups=2 alpha=1 sums=1 x=bf16 w=bf16", both, NULL, true },
        { CONV_3 "dd=1 x_depth=3 groups=2 alpha=1 x=bf16 w=bf16", both, "y=f32", true },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        qv_error err = { 0 };
        struct qv_op op = parsed(cases[i].text);
        qv_status status = qv_op_takes_one(&op, cases[i].takes, &err);
        if (status != (cases[i].word ? QV_EUNSUPPORTED : QV_OK) ||
            (status && !strstr(err.text, cases[i].word)))
            fail_msg("%s: status %d: %s", cases[i].text, status, err.text);
        assert_int_equal(qv_op_takes(&op, cases[i].takes, NULL),
                         cases[i].mixed ? QV_OK : QV_EUNSUPPORTED);
    }
}

TEST(test_views_beside)
{
    struct qv_view views[QV_MAX_OPERANDS];
    struct qv_op op = parsed(legal[QV_OP_attention]);
    int first;
    qv_op_views(&op, views);
    for (int i = 0; i < 3; i++) { /* q, k and v in one row. */
        assert_int_equal(qv_views_beside(views, 1 + i, &first), 48 * i);
        assert_int_equal(first, 1);
    }
    assert_int_equal(qv_views_beside(views, 4, &first), 0);
    assert_int_equal(first, 4);
    op.u.attention.q_stride = op.u.attention.k_stride = op.u.attention.v_stride = 143;
    qv_op_views(&op, views); /* Too small for v. */
    qv_views_beside(views, 3, &first);
    assert_int_equal(first, 3);
    assert_int_equal(qv_op_output(&op), 4);
}

TEST(test_print_is_always_terminated)
{
    struct qv_op op = parsed(legal[QV_OP_patchify]);
    for (size_t size = 1; size < 200; size++) {
        char text[200];
        memset(text, 'x', sizeof text);
        assert_true(strlen(qv_op_print(&op, text, size)) < size);
        for (size_t i = size; i < sizeof text; i++)
            assert_int_equal(text[i], 'x');
        assert_memory_equal(text, legal[QV_OP_patchify], strlen(text));
    }
    char text[64];
    op.kind = QV_OP_COUNT;
    assert_string_equal(qv_op_print(&op, text, sizeof text), "unknown operation");
}

TEST(test_reals_keep_their_bits)
{
    static const double values[] = { 0.1, 1 / 3.0, -0.0, 5e-324, 1.7976931348623157e308, -255 };
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        char text[200];
        struct qv_op op = parsed(legal[QV_OP_gemm]);
        op.u.gemm.alpha = values[i];
        struct qv_op again = parsed(qv_op_print(&op, text, sizeof text));
        assert_true(qv_op_equal(&op, &again));
    }
}

/* A text, and a word that its error must contain. */
struct refusal {
    const char *text, *word;
};

TEST(test_parse_errors)
{
    static const struct refusal cases[] = {
        { "", "name" },
        { "  \n", "name" },
        { "pool n=1", "'pool'" },
        { "gemm m=1 q=2", "'q'" },
        { "gemm m", "'m'" },
        { "gemm =4", "''" },
        { "gemm m=", "m=" },
        { "gemm m=4x", "m=4x" },
        { "gemm m=1.5", "m=1.5" },
        { "gemm n=99999999999999999999", "n=99999999999999999999" },
        { "gemm m=1 m=1", "m is given twice" },
        { "gemm alpha=one", "alpha=one" },
        { "gemm alpha=nan", "alpha=nan" },
        { "gemm alpha=inf", "alpha=inf" },
        { "gemm act=relu", "act=relu" },
        { "gemm act=1", "act=1" },
        { "convert x=f64", "x=f64" },
        { "convert from=f32", "'from'" },
        { "gemm x=f32 x=bf16", "x is given twice" },
        { "gemm dtype=f32 dtype=f32", "dtype is given twice" },
        { "gemm bias=1 bias=f32 bias=0", "bias is given twice" },
        { "gemm m=f32", "m=f32" },
        { "norm weight=f32", "'weight'" }, /* It is always f32. */
        { "rope cos_stride=8", "'cos_stride'" },
        { "norm dtype=2", "dtype=2" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        qv_error err = { 0 };
        struct qv_op op = parsed(legal[QV_OP_norm]), before = op;
        if (qv_op_parse(cases[i].text, &op, &err) != QV_EINVAL)
            fail_msg("'%s' was parsed", cases[i].text);
        if (!strstr(err.text, cases[i].word))
            fail_msg("'%s': no %s in: %s", cases[i].text, cases[i].word, err.text);
        assert_true(qv_op_equal(&op, &before)); /* The operation is untouched. */
        assert_int_equal(qv_op_parse(cases[i].text, &op, NULL), QV_EINVAL);
    }
}

static const struct refusal illegal[] = {
    { "gemm", "m is 0" },
    { "gemm m=-1 n=1 k=1 dtype=f32", "m is -1" },
    { "gemm m=1 n=1 k=0 dtype=f32", "k is 0" },
    { "gemm m=1 n=1 k=1", "x is auto" },
    { "gemm m=1 n=1 k=1 dtype=f16", "x is f16" },
    { "gemm m=1 n=1 k=1 y=i32 dtype=f32", "y is i32" },
    { "convert n=1 x=u8 dtype=f32", "x is u8" },
    { "rope rows=4 heads=2 head_dim=4 positions=2 x_stride=7 dtype=f32", "x_stride is 7" },
    { "rope rows=4 heads=2 head_dim=4 positions=2 x_stride=-1 dtype=f32", "x_stride is -1" },
    { "rope rows=2147483648 heads=1 head_dim=4 positions=1 x_stride=4294967296 dtype=f32",
      "operand x" },
    { "gemm m=6 n=1 k=1 residual_rows=4 dtype=f32", "residual_rows is 4" },
    { "gemm_few m=1 n=1 k=64 w_bits=3 w_group=64 dtype=f32", "w_bits is 3; it must be 4 or 8" },
    { "gemm_few m=1 n=1 k=64 w_bits=4 w_group=64 w=u8 dtype=f32",
      "w is u8; it must be f32, f16 or bf16" },
    { "gemm m=1 n=1 k=64 w=f16 dtype=f32", "w is f16; it must be f32 or bf16" },
    { "gemm_few m=65 n=1 k=64 w_bits=4 w_group=64 dtype=f32", "m is 65; it must be at most 64" },
    { "gemm_few m=1 n=1 k=64 dtype=f32", "gemm_few: w_bits is 0; it must be 4 or 8" },
    { "gemm_few m=1 n=1 k=64 w_bits=4 w_group=32 dtype=f32", "w_group is 32; it must be 64" },
    { "gemm_few m=1 n=1 k=96 w_bits=8 w_group=64 dtype=f32",
      "k is 96; it must be a multiple of 64" },
    { "gemm_few m=6 n=1 k=64 w_bits=4 w_group=64 residual_rows=4 dtype=f32", "residual_rows is 4" },
    { "gemm_few m=1 n=9223372036854775807 k=9223372036854775680 w_bits=8 w_group=64 dtype=f32",
      "too large" },
    { "gemm m=6 n=1 k=1 residual_rows=12 dtype=f32", "residual_rows is 12" },
    { "gemm m=6 n=1 k=1 residual_rows=-1 dtype=f32", "residual_rows is -1" },
    { "gemm m=6 n=1 k=1 bias=2 dtype=f32", "bias is 2" },
    { "gemm m=6 n=1 k=1 alpha=1e39 dtype=f32", "alpha is 1e+39" },
    { "gemm m=4294967296 n=4294967296 k=1 dtype=f32", "operand y" },
    { "gemm m=1 n=2147483648 k=2147483648 dtype=bf16", "operand w" },
    { "norm rows=1 cols=4 eps=-1 dtype=f32", "eps is -1" },
    { "norm rows=1 cols=4 rms=3 dtype=f32", "rms is 3" },
    { "rope rows=4 heads=1 head_dim=6 positions=2 dtype=f32", "head_dim is 6" },
    { "rope rows=4 heads=1 head_dim=4 dtype=f32", "positions is 0" },
    { "attention rows=0 segments=1 heads=1 head_dim=4 dtype=f32", "rows is 0" },
    { "attention rows=4 heads=1 head_dim=4 dtype=f32", "segments is 0" },
    { "attention rows=4 segments=1 segment_rows=-4 heads=1 head_dim=4 dtype=f32",
      "segment_rows is -4" },
    { "attention rows=9 segments=2 segment_rows=4 heads=1 head_dim=4 dtype=f32",
      "segment_rows (4)" },
    { "attention rows=4 segments=9223372036854775807 segment_rows=9223372036854775807 heads=1 "
      "head_dim=4 dtype=f32",
      "rows is 4" },
    { "attention rows=4 segments=2 heads=1 head_dim=4 k_stride=12 dtype=f32", "k_stride=12" },
    { "attention rows=4 segments=2 heads=1 head_dim=4 v_stride=12 dtype=f32", "v_stride=12" },
    { "attention rows=4294967296 segments=2 heads=1 head_dim=4 dtype=f32", "rows is 4294967296" },
    { "attention rows=700000 segments=2 heads=16 head_dim=72 q_stride=3456 k_stride=3456 "
      "v_stride=3456 dtype=bf16",
      "rows * q_stride is 2419200000" },
    { "attention rows=4 segments=9223372036854775807 heads=1 head_dim=4 dtype=f32",
      "operand list" },
    { "attention rows=9223372036854775807 segments=1 segment_rows=9223372036854775807 heads=3 "
      "head_dim=4 dtype=f32",
      "operand q" },
    { "attention rows=4 segments=2 longest=5 heads=1 head_dim=4 dtype=f32", "longest is 5" },
    { "attention rows=4 segments=2 segment_rows=2 longest=1 heads=1 head_dim=4 dtype=f32",
      "longest is 1" },
    { "attention rows=4 segments=2 segment_rows=2 longest=4 heads=1 head_dim=4 dtype=f32",
      "longest is 4" },
    { "attention rows=4 segments=2 longest=-1 heads=1 head_dim=4 dtype=f32", "longest is -1" },
    { "gate rows=4 cols=8 a_stride=7 dtype=f32", "a_stride is 7" },
    { "gate rows=4 cols=8 b_stride=7 dtype=f32", "b_stride is 7" },
    { "gather rows=4 cols=8 dtype=f32", "x_rows is 0" },
    { "gather rows=4 cols=8 x_rows=2147483648 dtype=f32", "x_rows is 2147483648" },
    { "interpolate rows=1 cols=1 taps=4 table_rows=2147483648 dtype=f32",
      "table_rows is 2147483648" },
    { "interpolate rows=1 cols=1 taps=6 table_rows=9 dtype=f32", "taps is 6" },
    { "patchify rows=4 patch=1 temporal=2 channels=4 items=1 patches=8 dtype=f32",
      "channels is 4" },
    { "patchify rows=4 patch=1 temporal=2 channels=3 items=0 patches=8 dtype=f32", "items is 0" },
    { "patchify rows=4294967296 patch=1 temporal=2 channels=3 items=1 patches=8 dtype=f32",
      "rows is 4294967296" },
    { "patchify rows=4 patch=1 temporal=2 channels=3 items=4294967296 patches=8 dtype=f32",
      "items is 4294967296" },
    { "patchify rows=4 patch=1 temporal=2 channels=3 items=1 patches=4294967296 dtype=f32",
      "patches is 4294967296" },
    { "patchify rows=4 patch=4294967296 temporal=2 channels=3 items=1 patches=8 dtype=f32",
      "operand frames" },
    { "im2col n=1 d=1 h=3 w=3 c=1 kd=2 kh=3 kw=3 sd=1 sh=1 sw=1 dtype=f32", "kd=2" },
    { "im2col n=1 d=2 h=2 w=3 c=1 kd=2 kh=3 kw=3 sd=1 sh=1 sw=1 dtype=f32", "kh=3" },
    { "im2col n=1 d=2 h=3 w=2 c=1 kd=2 kh=3 kw=3 sd=1 sh=1 sw=1 dtype=f32", "kw=3" },
    { "im2col n=1 d=2 h=3 w=3 c=1 kd=2 kh=3 kw=3 sd=0 sh=1 sw=1 dtype=f32", "sd is 0" },
    { "im2col n=1 d=2 h=3 w=3 c=1 kd=2 kh=3 kw=3 sd=1 sh=1 sw=1 channels_first=2 dtype=f32",
      "channels_first is 2" },
    { "im2col n=1 d=2147483648 h=2147483648 w=2147483648 c=1 kd=1 kh=1 kw=1 sd=1 sh=1 sw=1 "
      "dtype=f32",
      "operand x" },
    { CONV_3 "dd=1 x_depth=3 groups=3", "c (4)" },
    { CONV_3 "dd=1 x_depth=3 groups=4", "o (6)" },
    { CONV_3 "dd=1 x_depth=3 groups=0", "groups is 0" },
    { CONV_3 "dd=1 x_depth=2 groups=2", "x_depth is 2" },
    { CONV_3 "dd=3 x_depth=3 groups=2", "kd=2" },
    { CONV_3 "dd=0 x_depth=3 groups=2", "dd is 0" },
    { CONV_3 "dd=1 x_depth=3 groups=2 top=-1", "top is -1" },
    { CONV("1", "4", "4", "dd=1 x_depth=1 groups=1"), "d=1" },
    { CONV("3", "1", "4", "dd=1 x_depth=3 groups=1 top=1"), "h=1" },
    { CONV("3", "4", "1", "dd=1 x_depth=3 groups=1 right=1"), "w=1" },
    { CONV_3 "dd=1 x_depth=3 groups=2 sums=3", "sums is 3" },
    { CONV_3 "dd=1 x_depth=3 groups=2 sums=1", "it must be 0 if alpha" }, /* alpha is 0. */
    { CONV_3 "dd=1 x_depth=3 groups=2 alpha=1 sums=2 bias=1", "it must be 0 if alpha" },
    { CONV_3 "dd=1 x_depth=3 groups=2 alpha=1 sums=1 act=gelu_erf", "it must be 0 if alpha" },
    { CONV_3 "dd=1 x_depth=3 groups=2 alpha=1 sums=1 residual_rows=8", "it must be 0 if alpha" },
    { CONV_3 "dd=1 x_depth=3 groups=2 alpha=1 sums=1 y=bf16", "y is bf16" },
    { CONV_3 "dd=1 x_depth=3 groups=2 alpha=1 residual_rows=3", "residual_rows is 3" },
    { CONV("3", "9223372036854775807", "4", "dd=1 x_depth=3 groups=2 top=9223372036854775807"),
      "operand x" },
    { CONV("3", "4", "4", "dd=1 x_depth=3 groups=2 right=9223372036854775807"), "operand y" },
    { "epilogue rows=6 cols=1 residual_rows=4 dtype=f32", "residual_rows is 4" },
    { "epilogue rows=6 cols=1 bias=2 dtype=f32", "bias is 2" },
    { "epilogue rows=6 cols=0 dtype=f32", "cols is 0" },
};

TEST(test_check_refusals)
{
    for (size_t i = 0; i < sizeof illegal / sizeof illegal[0]; i++) {
        qv_error err = { 0 };
        struct qv_op op = parsed(illegal[i].text);
        if (qv_op_check(&op, &err) != QV_EINVAL)
            fail_msg("'%s' passed the check", illegal[i].text);
        if (!strstr(err.text, illegal[i].word))
            fail_msg("'%s': no %s in: %s", illegal[i].text, illegal[i].word, err.text);
    }
    struct qv_op op = parsed(legal[QV_OP_gemm]);
    op.u.gemm.act = QV_ACT_COUNT;
    assert_int_equal(qv_op_check(&op, NULL), QV_EINVAL);
    op = parsed(legal[QV_OP_gemm]);
    op.u.gemm.alpha = NAN;
    assert_int_equal(qv_op_check(&op, NULL), QV_EINVAL);
    op.kind = QV_OP_COUNT;
    assert_int_equal(qv_op_check(&op, NULL), QV_EINVAL);
}

/* Operations are equal if every field is. Bytes after the fields in the union do not count. */
TEST(test_equality)
{
    struct qv_op a, b;
    memset(&a, 0x00, sizeof a);
    memset(&b, 0xff, sizeof b);
    a.kind = b.kind = QV_OP_convert;
    a.u.convert = b.u.convert =
        (struct qv_op_convert){ .n = 5, .x_dtype = QV_F32, .y_dtype = QV_BF16 };
    assert_true(qv_op_equal(&a, &b));
    b.u.convert.n = 6;
    assert_false(qv_op_equal(&a, &b));
    for (int kind = 0; kind < QV_OP_COUNT; kind++)
        for (int other = 0; other < QV_OP_COUNT; other++) {
            a = parsed(legal[kind]);
            b = parsed(legal[other]);
            assert_int_equal(qv_op_equal(&a, &b), kind == other);
        }
    a = parsed(legal[QV_OP_norm]);
    b = a;
    b.u.norm.y_dtype = QV_BF16; /* The last field. */
    assert_false(qv_op_equal(&a, &b));
}

/* checkop shows the others: a kernel that leaves a part of an operand out, or writes beyond it, is
 * found there. */
static void
assert_operand(const char *text, int i, const char *name, int64_t rows, int64_t cols,
               qv_dtype dtype, size_t bytes)
{
    struct qv_op op = parsed(text);
    struct qv_view o = qv_op_view(&op, i);
    assert_string_equal(o.name, name);
    assert_int_equal(o.rows, rows);
    assert_int_equal(o.cols, cols);
    assert_int_equal(o.dtype, dtype);
    assert_int_equal(o.bytes, bytes);
    assert_int_equal(o.role == QV_ROLE_WEIGHT, !strcmp(name, "w"));
}

TEST(test_operands)
{
    static const int n[QV_OP_COUNT] = {
        [QV_OP_patchify] = 5, [QV_OP_convert] = 2, [QV_OP_gemm] = 5,      [QV_OP_gemm_few] = 5,
        [QV_OP_norm] = 4,     [QV_OP_rope] = 4,    [QV_OP_attention] = 5, [QV_OP_interpolate] = 4,
        [QV_OP_im2col] = 2,   [QV_OP_conv] = 5,    [QV_OP_epilogue] = 4,  [QV_OP_gate] = 3,
        [QV_OP_gather] = 3
    };
    for (int kind = 0; kind < QV_OP_COUNT; kind++)
        assert_int_equal(qv_op_n_operands((enum qv_op_kind)kind), n[kind]);
    assert_int_equal(qv_op_n_operands(QV_OP_COUNT), 0);
    const char *gemm = legal[QV_OP_gemm], *conv = legal[QV_OP_conv];
    assert_operand(legal[QV_OP_patchify], 0, "frames", 72, 16 * 16 * 3, QV_U8, 72 * 768);
    assert_operand(legal[QV_OP_convert], 1, "y", 1, 7, QV_BF16, 14);
    assert_operand(gemm, 1, "w", 1024, 1536, QV_BF16, 1024 * 1536 * 2);
    assert_operand(gemm, 3, "residual", 380, 1024, QV_BF16, 380 * 1024 * 2);
    assert_operand("gemm m=1 n=1 k=1 dtype=f32", 2, "bias", 0, 0, QV_F32, 0);
    assert_operand("gemm m=1 n=1 k=1 dtype=f32", 3, "residual", 0, 0, QV_F32, 0);
    assert_operand(legal[QV_OP_norm], 2, "bias", 0, 0, QV_F32, 0);
    assert_operand(legal[QV_OP_rope], 3, "x", 12, 288, QV_BF16, (11 * 432 + 288) * 2);
    static const char equal[] = "attention rows=10 segments=2 segment_rows=5 heads=3 head_dim=16 "
                                "dtype=f32";
    assert_operand(legal[QV_OP_attention], 0, "list", 4, 4, QV_I32, 64);
    assert_operand(legal[QV_OP_attention], 3, "v", 10, 48, QV_F32, (9 * 144 + 48) * 4);
    assert_operand(equal, 0, "list", 0, 0, QV_I32, 0);
    assert_operand(equal, 2, "k", 10, 48, QV_F32, 1920);
    assert_operand(legal[QV_OP_gate], 1, "b", 6, 8, QV_BF16, (5 * 16 + 8) * 2);
    assert_operand(legal[QV_OP_gather], 1, "index", 12, 1, QV_I32, 48);
    assert_operand(legal[QV_OP_im2col], 1, "y", 64, 90, QV_BF16, 64 * 90 * 2);
    /* The images begin 5 frames apart, and the last one has 4. */
    assert_operand(conv, 0, "x", 9, 210, QV_BF16, 9 * 210 * 2);
    assert_operand(conv, 4, "y", 96, 9, QV_BF16, 96 * 9 * 2);
    assert_operand(CONV_3 "dd=2 x_depth=7 groups=2 left=1 right=1 alpha=1 sums=1", 4, "y", 8, 6,
                   QV_F32, 8 * 6 * 4);
    assert_operand(CONV_3 "dd=2 x_depth=7 groups=2 alpha=1 sums=1", 2, "bias", 0, 0, QV_F32, 0);
    struct qv_op op = parsed(legal[QV_OP_interpolate]);
    assert_int_equal(qv_op_view(&op, 4).bytes, 0);
    assert_int_equal(qv_op_view(&op, -1).bytes, 0);
}

TEST(test_costs)
{
    const struct {
        const char *text;
        double flops, bytes;
    } cases[] = {
        { "gemm m=3 n=5 k=7 dtype=f32", 210, 4 * (21 + 35 + 15) },
        { "gemm m=4 n=5 k=7 bias=1 residual_rows=2 dtype=bf16", 280, 2 * (28 + 35 + 10 + 20) + 10 },
        { "attention rows=10 segments=2 segment_rows=5 heads=3 head_dim=16 dtype=f32",
          4. * 2 * 3 * 25 * 16, 7680 },
        { "attention rows=10 segments=2 heads=3 head_dim=16 dtype=f32", 4. * 2 * 3 * 25 * 16,
          7680 + 4 * 4 * 3 },
        { "convert n=10 x=f32 y=bf16", 0, 60 },
        { "norm rows=3 cols=5 dtype=f32", 120, 4 * (15 + 5 + 5 + 15) },
        { "norm rows=3 cols=5 rms=1 dtype=f32", 60, 4 * (15 + 5 + 15) },
        { "rope rows=12 heads=4 head_dim=8 positions=20 x_stride=48 dtype=f32", 1152,
          4 * (48 + 48 + 2 * 384) },
        { "attention rows=10 segments=2 longest=2 heads=3 head_dim=16 dtype=f32", 4. * 10 * 2 * 48,
          7680 + 4 * 4 * 3 },
        { "gate rows=6 cols=8 act=silu a_stride=16 b_stride=16 dtype=bf16", 96, 2 * 3 * 48 },
        { "gather rows=12 cols=8 x_rows=20 x=f32 dtype=bf16", 0, 12 * (4 * 8 + 4 + 2 * 8) },
        { "gather rows=12 cols=8 x_rows=2 dtype=f32", 0, 4 * (16 + 12 + 96) },
        { "interpolate rows=2 cols=3 taps=4 table_rows=4 dtype=f32", 48, 4 * (12 + 8 + 8 + 6) },
        { "interpolate rows=2 cols=3 taps=16 table_rows=4 dtype=f32", 192, 4 * (12 + 32 + 32 + 6) },
        { "patchify rows=4 patch=2 temporal=2 channels=3 items=3 patches=8 dtype=bf16", 192,
          96 + 192 + 3 * 40 + 4 * 16 },
        { legal[QV_OP_im2col], 0, 2 * (8 * 270 + 64 * 90) },
        { legal[QV_OP_conv], 2. * 96 * 9 * 54, 2 * (9 * 210 + 9 * 54 + 12 * 9 + 96 * 9) + 18 },
        { CONV_3 "dd=1 x_depth=3 groups=2 alpha=1 sums=1", 2. * 8 * 6 * 36,
          4 * (3 * 64 + 6 * 36 + 8 * 6) },
        { CONV_3 "dd=1 x_depth=3 groups=2 alpha=1 sums=2", 2. * 8 * 6 * 36,
          4 * (3 * 64 + 6 * 36 + 2 * 8 * 6) },
        { legal[QV_OP_epilogue], 2. * 24 * 33, 4 * 24 * 33 + 2 * (33 + 8 * 33 + 24 * 33) },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct qv_op op = parsed(cases[i].text);
        assert_true(qv_op_flops(&op) == cases[i].flops);
        assert_true(qv_op_bytes(&op) == cases[i].bytes);
    }
}

/* The tolerance is half a unit in the last place if nothing is summed, and never 0 or NaN. Sums
 * make it larger. */
TEST(test_tolerance)
{
    struct qv_op op = parsed("convert n=1 x=f32 y=bf16");
    assert_true(op_tolerance(&op, 1, 0, 0) == 0x1p-8);
    assert_true(op_tolerance(&op, -1.99, 0, 0) == 0x1p-8);
    assert_true(op_tolerance(&op, 2, 0, 0) == 0x1p-7);
    op.u.convert.y_dtype = QV_F32;
    assert_true(op_tolerance(&op, 1.5, 0, 0) == 0x1p-24);
    op = parsed("gemm m=1 n=1 k=100 alpha=1 dtype=f32");
    double tol = op_tolerance(&op, 3, 1, 1), unit = 0x1p-23;
    assert_true(tol >= 101 * unit && tol <= 106 * unit);
    op.u.gemm.k = 1000;
    assert_true(op_tolerance(&op, 3, 1, 1) > 9 * tol);
    for (int kind = 0; kind < QV_OP_COUNT; kind++) {
        op = parsed(legal[kind]);
        tol = op_tolerance(&op, 0, 1, 1);
        assert_true(kind == QV_OP_im2col ? tol == 0 : tol > 0 && tol < 1);
        assert_true(op_tolerance(&op, 100, 1, 1) >= tol);
    }
}
