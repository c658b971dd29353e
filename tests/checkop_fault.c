/* SPDX-License-Identifier: MIT */
/*
 * Plants faults that must be found. A backend's table is wrapped in one that spoils what it
 * computes; for each fault it is known which check must report it. Without a fault the same cases
 * must pass.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkop.h"
#include "dtype.h"
#include "engine/block_order.h"
#include "error.h"
#include "op_parse.h"

/* Says what the wrapped functions need to know. There is one fault at a time. */
static struct {
    const struct qv_backend *base;
    const struct fault *fault;
    struct qv_op op;
    size_t scratch_bytes;
    int runs;
    /* the operands drawn have nothing that this fault could spoil, so others are tried */
    bool nothing;
} now;

enum bad_layout {
    LAYOUT_RIGHT,
    LAYOUT_FIRST_SLICE,
    LAYOUT_WITHOUT_LAST_TAP,
    LAYOUT_HALVES,         /* both halves of each byte of codes are exchanged */
    LAYOUT_NEXT_SCALE,     /* each group has the scale of the next one */
    LAYOUT_WITHOUT_OFFSETS /* each row's last group lacks its offset */
};
enum bad_kernel {
    KERNEL_RIGHT,
    KERNEL_NONE,
    KERNEL_PADDING, /* reads a column from the other side */
    KERNEL_OVERWRITES,
    KERNEL_WITHOUT_BIAS
};

struct fault {
    const char *name;
    const char *op;
    enum fill fill;
    enum check want; /* CHECK_NOTHING: the case is skipped or mistrusted, and so not ok */
    void (*before)(struct qv_device *dev, const struct qv_call *call); /* hides an operand */
    void (*after)(struct qv_device *dev, const struct qv_call *call);
    void (*spoil)(const struct qv_view *y, unsigned char *p); /* changes the output */
    enum bad_layout layout;
    enum bad_kernel kernel;
};

/* ---- spoiling memory through the verbs ------------------------------------------------------- */

static void
put(struct qv_device *dev, struct qv_buffer at, const void *src, size_t bytes)
{
    qv_error err;
    if (now.base->upload(dev, at, src, bytes, &err)) {
        fprintf(stderr, "checkop: a fault cannot be planted: %s\n", err.text);
        exit(4);
    }
}

static void *
get(struct qv_device *dev, struct qv_buffer at, size_t bytes)
{
    qv_error err;
    void *p = must_alloc(bytes);
    if (now.base->download(dev, p, at, bytes, &err)) {
        fprintf(stderr, "checkop: a fault cannot be planted: %s\n", err.text);
        exit(4);
    }
    return p;
}

/* The operand whose value is hidden while a run sees another. */
static void *kept;
static int kept_operand;

static void *
hide(struct qv_device *dev, const struct qv_call *call, int operand)
{
    size_t bytes = qv_op_view(&now.op, operand).bytes;
    kept_operand = operand;
    kept = get(dev, call->operands[operand], bytes);
    return get(dev, call->operands[operand], bytes);
}

static void
show_instead(struct qv_device *dev, const struct qv_call *call, void *p)
{
    put(dev, call->operands[kept_operand], p, qv_op_view(&now.op, kept_operand).bytes);
    free(p);
}

static void
show(struct qv_device *dev, const struct qv_call *call)
{
    show_instead(dev, call, kept);
}

static void
hide_last_k(struct qv_device *dev, const struct qv_call *call)
{
    struct qv_view x = qv_op_view(&now.op, 0);
    void *p = hide(dev, call, 0);
    for (int64_t i = 0; i < x.rows; i++)
        qv_store(p, x.dtype, i * x.cols + x.cols - 1, 0);
    show_instead(dev, call, p);
}

/* ---- tables that are looked up wrongly ------------------------------------------------------- */

/* Finds the first segment i that another one (or a gap) follows at once, and the slot of that
 * one. */
static bool
find_neighbours(const struct data *list, bool gap, int64_t *i, int64_t *next)
{
    const struct qv_op_attention *op = &list->op.u.attention;
    for (*i = 0; *i + 1 < op->segments; ++*i) {
        struct segment s = segment_get(list, *i);
        if (!s.n || s.first + s.n == op->rows)
            continue;
        for (*next = *i + 1; *next < op->segments && !segment_get(list, *next).n;)
            ++*next;
        bool beside = *next < op->segments && segment_get(list, *next).first == s.first + s.n;
        if (beside != gap)
            return true;
    }
    now.nothing = true;
    return false;
}

/* Hides the list, and returns it as data with one operand. */
static struct data
hide_list(struct qv_device *dev, const struct qv_call *call)
{
    return (struct data){ .op = now.op, .bytes = { hide(dev, call, 0) } };
}

static void
grow_segment(struct qv_device *dev, const struct qv_call *call, bool gap)
{
    struct data list = hide_list(dev, call);
    int64_t i, next;
    if (find_neighbours(&list, gap, &i, &next)) {
        struct segment s = segment_get(&list, i);
        segment_put(&list, i, (struct segment){ s.first, s.n + 1 });
    }
    show_instead(dev, call, list.bytes[0]);
}

static void
see_row_of_neighbour(struct qv_device *dev, const struct qv_call *call)
{
    grow_segment(dev, call, false);
}

static void
see_row_of_gap(struct qv_device *dev, const struct qv_call *call)
{
    grow_segment(dev, call, true);
}

static void
begin_a_row_before(struct qv_device *dev, const struct qv_call *call)
{
    struct data list = hide_list(dev, call);
    int64_t i, next;
    if (find_neighbours(&list, false, &i, &next)) {
        struct segment s = segment_get(&list, next);
        segment_put(&list, next, (struct segment){ s.first - 1, s.n });
        now.nothing = s.n == 1; /* the segment is alone in the right list as well */
    }
    show_instead(dev, call, list.bytes[0]);
}

static void
take_next_slot(struct qv_device *dev, const struct qv_call *call)
{
    struct data list = hide_list(dev, call);
    now.nothing = !segment_get(&list, 0).n;
    for (int64_t i = 0; i < now.op.u.attention.segments; i++)
        segment_put(&list, i, segment_get(&list, i + 1));
    show_instead(dev, call, list.bytes[0]);
}

/* Writes a row that is in no segment. */
static void
write_gap(struct qv_device *dev, const struct qv_call *call)
{
    const int out = qv_op_output(&now.op);
    const struct qv_view l = qv_op_view(&now.op, 0), y = qv_op_view(&now.op, out);
    struct data list = { .op = now.op, .bytes = { get(dev, call->operands[0], l.bytes) } };
    void *p = get(dev, call->operands[out], y.bytes);
    int64_t row = 0;
    while (row < y.rows && segment_of(&list, row).n)
        row++;
    now.nothing = row == y.rows;
    if (row < y.rows)
        qv_store(p, y.dtype, element_at(&y, row, y.cols - 1), 0);
    put(dev, call->operands[out], p, y.bytes);
    free(p);
    free(list.bytes[0]);
}

static void
exchange_row_and_column(struct qv_device *dev, const struct qv_call *call)
{
    struct qv_coords *coords = hide(dev, call, 2);
    for (int64_t i = 0; i < now.op.u.rope.rows; i++)
        coords[i] =
            (struct qv_coords){ coords[i].item, coords[i].pair, coords[i].col, coords[i].row };
    show_instead(dev, call, coords);
}

/* Lets the second frame of the last image be what lies behind it, if anything does. */
static void
take_frame_behind(struct qv_device *dev, const struct qv_call *call)
{
    const struct qv_op_patchify *op = &now.op.u.patchify;
    struct qv_coords *coords = get(dev, call->operands[3], qv_op_view(&now.op, 3).bytes);
    struct qv_item_place *places = hide(dev, call, 1);
    int64_t is_image = -1, last_row = 0;
    for (int64_t i = 0; i < op->rows; i++)
        if (!places[coords[i].item].frame && coords[i].item > is_image)
            is_image = coords[i].item;
    for (int64_t i = 0; i < op->rows; i++)
        if (coords[i].item == is_image && coords[i].row > last_row)
            last_row = coords[i].row;
    int64_t patches = is_image < 0 ? 0 : (last_row + 1) * places[is_image].grid_w;
    now.nothing = is_image < 0 || places[is_image].first + 2 * patches > op->patches;
    if (!now.nothing)
        places[is_image].frame = (int32_t)patches;
    show_instead(dev, call, places);
    free(coords);
}

static void
take_norm_of_neighbour(struct qv_device *dev, const struct qv_call *call)
{
    struct qv_coords *coords = get(dev, call->operands[3], qv_op_view(&now.op, 3).bytes);
    struct qv_item_norm *norms = hide(dev, call, 2);
    int64_t last = 0;
    for (int64_t i = 0; i < now.op.u.patchify.rows; i++)
        last = coords[i].item > last ? coords[i].item : last;
    now.nothing = last == 0;
    for (int64_t i = 0; i < last; i++)
        norms[i] = norms[i + 1];
    show_instead(dev, call, norms);
    free(coords);
}

/* ---- spoiling what came out ------------------------------------------------------------------ */

static void
leave_unwritten(const struct qv_view *y, unsigned char *p)
{
    size_t element = qv_dtype_bytes(y->dtype);
    memset(p + y->bytes - element, 0xff, element);
}

static void
write_nan(const struct qv_view *y, unsigned char *p)
{
    qv_store(p, y->dtype, y->rows * y->cols / 2, NAN);
}

static void
write_infinity(const struct qv_view *y, unsigned char *p)
{
    qv_store(p, y->dtype, y->rows * y->cols / 2, INFINITY);
}

static void
write_past_end(struct qv_device *dev, const struct qv_call *call)
{
    int out = qv_op_output(&now.op);
    struct qv_buffer at = call->operands[out];
    at.offset += qv_op_view(&now.op, out).bytes;
    put(dev, at, "\0", 2);
}

static void
write_before_start(struct qv_device *dev, const struct qv_call *call)
{
    struct qv_buffer at = call->operands[qv_op_output(&now.op)];
    at.offset -= 1;
    put(dev, at, "\0", 1);
}

static void
write_past_scratch(struct qv_device *dev, const struct qv_call *call)
{
    struct qv_buffer at = call->scratch;
    if (!at.memory)
        at = call->operands[qv_op_output(&now.op)];
    at.offset += at.memory == call->scratch.memory
                     ? now.scratch_bytes
                     : qv_op_view(&now.op, qv_op_output(&now.op)).bytes;
    put(dev, at, "\0", 1);
}

static void
scale_column(const struct qv_view *y, unsigned char *p)
{
    for (int64_t i = 0; i < y->rows; i++)
        qv_store(p, y->dtype, element_at(y, i, y->cols / 3),
                 qv_load(p, y->dtype, element_at(y, i, y->cols / 3)) * 1.001);
}

static void
repeat_row(const struct qv_view *y, unsigned char *p)
{
    size_t row = y->bytes / (size_t)y->rows;
    memcpy(p + (size_t)(y->rows / 2) * row, p, row);
}

static void
write_zeros(const struct qv_view *y, unsigned char *p)
{
    memset(p, 0, y->bytes);
}

static void
flip_last_bit(const struct qv_view *y, unsigned char *p)
{
    /* in the last element's lowest byte, as hosts are little-endian */
    p[y->bytes - qv_dtype_bytes(y->dtype)] ^= 1;
}

/* Flips a bit of the first row, unless it is NaN. */
static void
flip_bit_of_first_row(const struct qv_view *y, unsigned char *p)
{
    p[0] ^= isfinite(qv_load(p, y->dtype, 0));
}

/* Spreads a NaN from a row to the one behind it. */
static void
spread_nan(const struct qv_view *y, unsigned char *p)
{
    for (int64_t row = y->rows - 1; row > 0; row--)
        if (isnan(qv_load(p, y->dtype, element_at(y, row - 1, 0))))
            qv_store(p, y->dtype, element_at(y, row, 0), NAN);
}

/* Flips a bit of v, which lies behind q and k in a row. */
static void
flip_bit_of_v(struct qv_device *dev, const struct qv_call *call)
{
    int out = qv_op_output(&now.op);
    struct qv_view y = qv_op_view(&now.op, out);
    struct qv_buffer at = call->operands[out];
    at.offset += (size_t)(element_at(&y, y.rows / 2, y.cols)) * qv_dtype_bytes(y.dtype);
    unsigned char *p = get(dev, at, 1);
    *p ^= 1;
    put(dev, at, p, 1);
    free(p);
}

static void
flip_last_bit_in_second_run(const struct qv_view *y, unsigned char *p)
{
    if (now.runs % 2 == 0)
        flip_last_bit(y, p);
}

static void
change_operand(struct qv_device *dev, const struct qv_call *call, int i)
{
    unsigned char *p = get(dev, call->operands[i], 1);
    *p ^= 1;
    put(dev, call->operands[i], p, 1);
    free(p);
}

static void
change_input(struct qv_device *dev, const struct qv_call *call)
{
    change_operand(dev, call, 0);
}

static void
change_weight(struct qv_device *dev, const struct qv_call *call)
{
    change_operand(dev, call, 1);
}

/* Rounds f32 towards zero. */
static void
truncate_to_bf16(struct qv_device *dev, const struct qv_call *call)
{
    const struct qv_view x = qv_op_view(&now.op, 0), y = qv_op_view(&now.op, 1);
    const uint32_t *bits = get(dev, call->operands[0], x.bytes);
    qv_bf16 *p = must_alloc(y.bytes);
    for (int64_t i = 0; i < y.cols; i++)
        p[i] = (qv_bf16)(bits[i] >> 16);
    put(dev, call->operands[1], p, y.bytes);
    free((void *)bits);
    free(p);
}

static void
exchange_columns(const struct qv_view *y, unsigned char *p)
{
    for (int64_t i = 0; i < y->rows; i++) {
        int64_t a = i * y->cols + y->cols / 3, b = a + 1;
        double kept_a = qv_load(p, y->dtype, a);
        qv_store(p, y->dtype, a, qv_load(p, y->dtype, b));
        qv_store(p, y->dtype, b, kept_a);
    }
}

/* ---- the table of faults --------------------------------------------------------------------- */

#define GEMM_F32 "gemm m=33 n=200 k=130 alpha=1 bias=1 residual_rows=11 dtype=f32"
#define GEMM_BF16 "gemm m=33 n=200 k=130 alpha=0.5 residual_rows=33 dtype=bf16"
#define GEMM_GELU "gemm m=65 n=72 k=33 alpha=1 bias=1 act=gelu_tanh dtype=f32"
#define GEMM_Q4 "gemm m=33 n=72 k=192 alpha=1 bias=1 w_bits=4 w_group=64 w=f16 dtype=bf16"
#define GEMM_Q8 "gemm_few m=7 n=72 k=128 alpha=1 w_bits=8 w_group=32 dtype=f32"
#define GEMM_ZERO "gemm m=33 n=24 k=8 alpha=0 dtype=f32"
#define NORM "norm rows=17 cols=64 eps=1e-6 dtype=f32"
#define ROPE "rope rows=12 heads=4 head_dim=16 positions=20 x_stride=96 dtype=f32"
#define ATTEND "heads=2 head_dim=16 scale=0.25 "
#define STRIDES "q_stride=96 k_stride=96 v_stride=96 dtype=f32"
#define EQUAL "attention rows=66 segments=2 segment_rows=33 " ATTEND
#define ATTENTION EQUAL STRIDES
#define ATTENTION_BF16 EQUAL "dtype=bf16"
#define RAGGED "attention rows=61 segments=9 " ATTEND STRIDES
#define RAGGED_BF16 "attention rows=61 segments=9 " ATTEND "dtype=bf16"
#define CONVERT "convert n=1000 x=f32 y=bf16"
#define GATE "gate rows=24 cols=33 act=silu a_stride=66 b_stride=66 dtype=f32"
#define GATHER "gather rows=24 cols=33 x_rows=40 x=f32 y=bf16"
#define TAPS "interpolate rows=12 cols=33 taps=4 table_rows=49 dtype=bf16"
#define IM2COL                                                                                     \
    "im2col n=2 d=4 h=6 w=9 c=5 kd=2 kh=3 kw=3 sd=2 sh=1 sw=2 channels_first=1 dtype=bf16"
#define CONV                                                                                       \
    "conv n=2 d=4 h=5 w=7 c=6 o=9 kd=3 kh=3 kw=3 sd=1 sh=2 sw=1 dd=1 dh=1 dw=1 top=1 bottom=1 "    \
    "left=2 right=1 groups=3 x_depth=5 "
#define CONV_F32 CONV "alpha=0.5 bias=1 residual_rows=12 dtype=f32"
#define CONV_GELU CONV "alpha=1 bias=1 act=gelu_tanh dtype=bf16"
#define CONV_ADD CONV "alpha=1 sums=2 y=f32 dtype=bf16"
#define FINISH "epilogue rows=24 cols=33 alpha=0.5 bias=1 residual_rows=8 dtype=bf16"
#define FINISH_GELU "epilogue rows=24 cols=33 alpha=1 bias=1 act=gelu_erf dtype=f32"
#define PATCHIFY "patchify rows=48 patch=4 temporal=2 channels=3 items=5 patches=96 dtype=bf16"

static const struct fault faults[] = {
    { "last k dropped", GEMM_F32, FILL_EXACT, CHECK_EXACT, .before = hide_last_k },
    { "last k dropped", GEMM_F32, FILL_REAL, CHECK_TOLERANCE, .before = hide_last_k },
    { "last k dropped", GEMM_BF16, FILL_EXACT, CHECK_EXACT, .before = hide_last_k },
    { "last k dropped", GEMM_BF16, FILL_REAL, CHECK_TOLERANCE, .before = hide_last_k },
    { "last k dropped", GEMM_GELU, FILL_REAL, CHECK_TOLERANCE, .before = hide_last_k },
    { "an element left", GEMM_BF16, FILL_EXACT, CHECK_UNWRITTEN, .spoil = leave_unwritten },
    { "an element left", NORM, FILL_REAL, CHECK_UNWRITTEN, .spoil = leave_unwritten },
    { "an element left", PATCHIFY, FILL_EXACT, CHECK_UNWRITTEN, .spoil = leave_unwritten },
    { "one NaN", GEMM_F32, FILL_REAL, CHECK_NAN, .spoil = write_nan },
    { "one NaN", TAPS, FILL_REAL, CHECK_NAN, .spoil = write_nan },
    { "one infinity", ATTENTION, FILL_REAL, CHECK_NAN, .spoil = write_infinity },
    { "write past the end", GEMM_BF16, FILL_REAL, CHECK_GUARD, .after = write_past_end },
    { "write past the end", CONVERT, FILL_EXACT, CHECK_GUARD, .after = write_past_end },
    { "write before the start", NORM, FILL_REAL, CHECK_GUARD, .after = write_before_start },
    { "scratch overrun", ATTENTION, FILL_REAL, CHECK_GUARD, .after = write_past_scratch },
    { "0.1% in one column", GEMM_F32, FILL_REAL, CHECK_TOLERANCE, .spoil = scale_column },
    { "0.1% in one column", GEMM_GELU, FILL_REAL, CHECK_TOLERANCE, .spoil = scale_column },
    { "0.1% in one column", NORM, FILL_REAL, CHECK_TOLERANCE, .spoil = scale_column },
    { "0.1% in one column", ATTENTION, FILL_REAL, CHECK_TOLERANCE, .spoil = scale_column },
    { "one wrong row", GEMM_BF16, FILL_EXACT, CHECK_EXACT, .spoil = repeat_row },
    { "one wrong row", GEMM_BF16, FILL_REAL, CHECK_TOLERANCE, .spoil = repeat_row },
    { "one wrong row", GEMM_Q8, FILL_REAL, CHECK_TOLERANCE, .spoil = repeat_row },
    { "one wrong row", ATTENTION_BF16, FILL_REAL, CHECK_TOLERANCE, .spoil = repeat_row },
    { "one wrong row", PATCHIFY, FILL_EXACT, CHECK_EXACT, .spoil = repeat_row },
    { "all zeros", TAPS, FILL_REAL, CHECK_TOLERANCE, .spoil = write_zeros },
    { "one bit of v", ROPE, FILL_REAL, CHECK_GUARD, .after = flip_bit_of_v },
    { "0.1% in one column", ROPE, FILL_REAL, CHECK_TOLERANCE, .spoil = scale_column },
    { "a neighbour's row seen", RAGGED, FILL_REAL, CHECK_TOLERANCE,
      .before = see_row_of_neighbour },
    { "a neighbour's row seen", RAGGED_BF16, FILL_REAL, CHECK_TOLERANCE,
      .before = see_row_of_neighbour },
    { "a row of a gap seen", RAGGED, FILL_REAL, CHECK_NAN, .before = see_row_of_gap },
    { "a row too early", RAGGED, FILL_REAL, CHECK_TOLERANCE, .before = begin_a_row_before },
    { "list shifted by a slot", RAGGED, FILL_REAL, CHECK_UNWRITTEN, .before = take_next_slot },
    { "a row of a gap written", RAGGED, FILL_REAL, CHECK_OTHERS, .after = write_gap },
    { "row, column exchanged", ROPE, FILL_EXACT, CHECK_EXACT, .before = exchange_row_and_column },
    { "row, column exchanged", ROPE, FILL_REAL, CHECK_TOLERANCE,
      .before = exchange_row_and_column },
    { "an image's frame behind", PATCHIFY, FILL_EXACT, CHECK_EXACT, .before = take_frame_behind },
    { "a neighbour's norm", PATCHIFY, FILL_EXACT, CHECK_EXACT, .before = take_norm_of_neighbour },
    { "a neighbour's norm", PATCHIFY, FILL_REAL, CHECK_TOLERANCE,
      .before = take_norm_of_neighbour },
    { "one bit by place", GEMM_F32, FILL_REAL, CHECK_MOVED, .spoil = flip_last_bit },
    { "one bit by place", GEMM_Q8, FILL_REAL, CHECK_MOVED, .spoil = flip_last_bit },
    { "one bit by place", ATTENTION, FILL_REAL, CHECK_MOVED, .spoil = flip_bit_of_first_row },
    { "NaN to the next row", NORM, FILL_REAL, CHECK_MOVED, .spoil = spread_nan },
    { "bf16 truncated", CONVERT, FILL_EXACT, CHECK_EXACT, .after = truncate_to_bf16 },
    { "second run: one bit", GEMM_F32, FILL_REAL, CHECK_REPEAT,
      .spoil = flip_last_bit_in_second_run },
    { "input changed", NORM, FILL_REAL, CHECK_INPUT, .after = change_input },
    { "cosines changed", ROPE, FILL_EXACT, CHECK_INPUT, .after = change_input },
    { "weight changed", GEMM_F32, FILL_REAL, CHECK_INPUT, .after = change_weight },
    { "later slices not laid out", GEMM_F32, FILL_REAL, CHECK_LAYOUT,
      .layout = LAYOUT_FIRST_SLICE },
    { "halves exchanged", GEMM_Q4, FILL_EXACT, CHECK_EXACT, .layout = LAYOUT_HALVES },
    { "halves exchanged", GEMM_Q4, FILL_REAL, CHECK_TOLERANCE, .layout = LAYOUT_HALVES },
    { "a neighbour's scale", GEMM_Q8, FILL_EXACT, CHECK_EXACT, .layout = LAYOUT_NEXT_SCALE },
    { "a neighbour's scale", GEMM_Q4, FILL_REAL, CHECK_TOLERANCE, .layout = LAYOUT_NEXT_SCALE },
    { "an offset left out", GEMM_Q4, FILL_EXACT, CHECK_EXACT, .layout = LAYOUT_WITHOUT_OFFSETS },
    { "an offset left out", GEMM_Q8, FILL_REAL, CHECK_TOLERANCE, .layout = LAYOUT_WITHOUT_OFFSETS },
    { "later slices not laid out", GEMM_Q4, FILL_REAL, CHECK_LAYOUT, .layout = LAYOUT_FIRST_SLICE },
    { "last tap dropped", CONV_F32, FILL_EXACT, CHECK_EXACT, .layout = LAYOUT_WITHOUT_LAST_TAP },
    { "last tap dropped", CONV_F32, FILL_REAL, CHECK_TOLERANCE, .layout = LAYOUT_WITHOUT_LAST_TAP },
    { "last tap dropped", CONV_GELU, FILL_REAL, CHECK_TOLERANCE,
      .layout = LAYOUT_WITHOUT_LAST_TAP },
    { "padding misplaced", CONV_F32, FILL_EXACT, CHECK_EXACT, .kernel = KERNEL_PADDING },
    { "padding misplaced", CONV_GELU, FILL_REAL, CHECK_TOLERANCE, .kernel = KERNEL_PADDING },
    { "sums overwrite", CONV_ADD, FILL_EXACT, CHECK_EXACT, .kernel = KERNEL_OVERWRITES },
    { "sums overwrite", CONV_ADD, FILL_REAL, CHECK_TOLERANCE, .kernel = KERNEL_OVERWRITES },
    { "an element left", CONV_GELU, FILL_REAL, CHECK_UNWRITTEN, .spoil = leave_unwritten },
    { "0.1% in one column", CONV_F32, FILL_REAL, CHECK_TOLERANCE, .spoil = scale_column },
    { "0.1% in one column", GATE, FILL_REAL, CHECK_TOLERANCE, .spoil = scale_column },
    { "columns exchanged", GATE, FILL_REAL, CHECK_TOLERANCE, .spoil = exchange_columns },
    { "NaN to the next row", GATE, FILL_REAL, CHECK_MOVED, .spoil = spread_nan },
    { "one wrong row", GATHER, FILL_EXACT, CHECK_EXACT, .spoil = repeat_row },
    { "one wrong row", GATHER, FILL_REAL, CHECK_TOLERANCE, .spoil = repeat_row },
    { "columns exchanged", IM2COL, FILL_EXACT, CHECK_EXACT, .spoil = exchange_columns },
    { "bias left out", FINISH, FILL_EXACT, CHECK_EXACT, .kernel = KERNEL_WITHOUT_BIAS },
    { "bias left out", FINISH_GELU, FILL_REAL, CHECK_TOLERANCE, .kernel = KERNEL_WITHOUT_BIAS },
    { "0.1% in one column", FINISH_GELU, FILL_REAL, CHECK_TOLERANCE, .spoil = scale_column },
    { "mistrusted: zeros expected", GEMM_ZERO, FILL_REAL, CHECK_NOTHING, .before = NULL },
    { "skipped: no kernel", GEMM_F32, FILL_REAL, CHECK_NOTHING, .kernel = KERNEL_NONE },
};

static void
spoil_output(struct qv_device *dev, const struct qv_call *call)
{
    const int out = qv_op_output(&now.op);
    const struct qv_view y = qv_op_view(&now.op, out);
    void *p = get(dev, call->operands[out], y.bytes);
    now.fault->spoil(&y, p);
    put(dev, call->operands[out], p, y.bytes);
    free(p);
}

/* ---- the wrapped verbs ----------------------------------------------------------------------- */

static qv_status
run_faulty(struct qv_device *dev, const struct qv_call *calls, size_t n, qv_error *err)
{
    bool nothing = now.nothing;
    now.runs++;
    if (now.fault && now.fault->before)
        now.fault->before(dev, calls);
    qv_status status = now.base->run(dev, calls, n, err);
    if (!status)
        status = now.base->sync(dev, err);
    if (!status && now.fault && now.fault->before)
        show(dev, calls);
    if (!status && now.fault && now.fault->after)
        now.fault->after(dev, calls);
    if (!status && now.fault && now.fault->spoil)
        spoil_output(dev, calls);
    /* the second run has the same operands, or moved ones */
    now.nothing = now.runs > 1 ? nothing : now.nothing;
    return status;
}

static qv_status
prepare_faulty(struct qv_device *dev, const struct qv_op *op, int choice, struct qv_kernel **out,
               size_t *scratch_bytes, qv_error *err)
{
    struct qv_op bad = *op;
    switch (now.fault ? now.fault->kernel : KERNEL_RIGHT) {
    case KERNEL_NONE: return qv_fail(err, QV_EUNSUPPORTED, "%s: planted", qv_op_name(op->kind));
    case KERNEL_PADDING:
        bad.u.conv.left--;
        bad.u.conv.right++;
        break;
    case KERNEL_OVERWRITES: bad.u.conv.sums = 1; break;
    case KERNEL_WITHOUT_BIAS: bad.u.epilogue.bias = 0; break;
    case KERNEL_RIGHT: break;
    }
    qv_status status = now.base->prepare(dev, &bad, choice, out, scratch_bytes, err);
    now.scratch_bytes = *scratch_bytes;
    return status;
}

/* Spoils a row of a quantised matrix in its canonical form. */
static void
spoil_groups(const struct qv_matrix *matrix, enum bad_layout bad, unsigned char *row)
{
    const struct qv_groups *g = &matrix->groups;
    const size_t codes = (size_t)(matrix->k * g->bits / 8), element = qv_dtype_bytes(g->dtype);
    const size_t scales = (size_t)(matrix->k / g->group) * element;
    for (size_t i = 0; i < codes && bad == LAYOUT_HALVES; i++)
        row[i] = (unsigned char)(row[i] << 4 | row[i] >> 4);
    if (bad == LAYOUT_NEXT_SCALE)
        memmove(row + codes, row + codes + element, scales - element);
    if (bad == LAYOUT_WITHOUT_OFFSETS)
        memset(row + codes + 2 * scales - element, 0, element);
}

static qv_status
lay_out_groups(struct qv_device *dev, const struct qv_matrix *matrix, int64_t row0, int64_t rows,
               const void *src, struct qv_buffer dst, qv_error *err)
{
    const size_t bytes = qv_grouped_row_bytes(&matrix->groups, matrix->k);
    unsigned char *w = must_alloc((size_t)rows * bytes);
    memcpy(w, src, (size_t)rows * bytes);
    for (int64_t i = 0; i < rows; i++)
        spoil_groups(matrix, now.fault->layout, w + (size_t)i * bytes);
    qv_status status = now.base->lay_out(dev, matrix, row0, rows, w, dst, err);
    free(w);
    return status;
}

static qv_status
lay_out_faulty(struct qv_device *dev, const struct qv_matrix *matrix, int64_t row0, int64_t rows,
               const void *src, struct qv_buffer dst, qv_error *err)
{
    enum bad_layout bad = now.fault ? now.fault->layout : LAYOUT_RIGHT;
    if (bad == LAYOUT_FIRST_SLICE && row0 > 0)
        return QV_OK;
    if (bad >= LAYOUT_HALVES)
        return lay_out_groups(dev, matrix, row0, rows, src, dst, err);
    if (bad != LAYOUT_WITHOUT_LAST_TAP)
        return now.base->lay_out(dev, matrix, row0, rows, src, dst, err);
    const struct qv_op_conv *op = &matrix->conv->u.conv;
    int64_t taps = op->kd * op->kh * op->kw, n = rows * matrix->k;
    size_t bytes = (size_t)n * qv_dtype_bytes(matrix->dtype);
    void *w = must_alloc(bytes);
    memcpy(w, src, bytes);
    for (int64_t i = taps - 1; i < n; i += taps)
        qv_store(w, matrix->dtype, i, 0);
    qv_status status = now.base->lay_out(dev, matrix, row0, rows, w, dst, err);
    free(w);
    return status;
}

static bool
found(const struct fault *fault, const struct outcome *o)
{
    struct family family = { 0 };
    if (fault->want)
        return o->check == fault->want;
    family_add(&family, o);
    return (fault->kernel == KERNEL_NONE ? o->skipped && !family.passed
                                         : o->mistrusted && !family_ok(&family));
}

/* Returns whether the case passes without the fault, and fails as it should with it. */
static bool
try_seed(const struct side *ref, const struct side *faulty, const struct fault *fault,
         const struct check_case *one)
{
    now.op = one->op;
    now.runs = 0;
    now.fault = NULL;
    bool trivial = fault->want == CHECK_NOTHING && fault->kernel != KERNEL_NONE;
    struct outcome clean = judge(ref, faulty, one);
    bool clean_ok = !clean.check && !clean.skipped && (trivial || !clean.mistrusted);
    now.runs = 0;
    now.nothing = false;
    now.fault = fault;
    struct outcome spoilt = judge(ref, faulty, one);
    bool ok = clean_ok && found(fault, &spoilt);
    if (now.nothing)
        return false;
    printf("%-28s %-10s %-6s %s: %s\n", fault->name, qv_op_name(one->op.kind),
           one->fill == FILL_EXACT ? "exact" : "real", ok ? "found" : "NOT FOUND",
           spoilt.skipped      ? "skipped"
           : spoilt.mistrusted ? "mistrusted"
                               : check_names[spoilt.check]);
    if (!clean_ok)
        printf("    without the fault: %s %s\n", check_names[clean.check], clean.text);
    if (!ok)
        printf("    %s\n", spoilt.text);
    return ok;
}

static bool
try_fault(const struct side *ref, const struct side *faulty, const struct fault *fault,
          uint64_t seed)
{
    enum { MOST_SEEDS = 32 };
    struct check_case one = { .fill = fault->fill, .seed = seed };
    qv_error err;
    if (qv_op_parse(fault->op, &one.op, &err) || qv_op_check(&one.op, &err)) {
        fprintf(stderr, "checkop: %s\n", err.text);
        return false;
    }
    bool ok = try_seed(ref, faulty, fault, &one);
    for (int i = 1; now.nothing && i < MOST_SEEDS; i++) {
        one.seed++;
        ok = try_seed(ref, faulty, fault, &one);
    }
    if (now.nothing)
        printf("%-28s found nothing to spoil\n", fault->name);
    return ok;
}

int
selftest(const struct side *ref, const struct side *base, uint64_t seed)
{
    struct qv_backend table = *base->backend;
    table.run = run_faulty;
    table.prepare = prepare_faulty;
    table.lay_out = lay_out_faulty;
    now.base = base->backend;
    struct side faulty = { &table, base->dev, base->caps, 0 };
    int missed = 0, n = (int)(sizeof faults / sizeof faults[0]);
    for (int i = 0; i < n; i++)
        missed += !try_fault(ref, &faulty, &faults[i], seed);
    printf("selftest on %s: %d of %d faults found\n", base->backend->name, n - missed, n);
    return missed ? 1 : 0;
}
