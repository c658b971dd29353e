/* SPDX-License-Identifier: MIT */
/*
 * A vision tower as a list of operations, as transformers' models define it. The functions are in
 * the order in which a chunk flows through them:
 *
 *   rows    = patches of the frames of all items, one item after another
 *   x       = conv3d(rows) + position embedding, if the family has one
 *   x      += proj(attention(rope(qkv(norm1(x)))))      } depth times; attention stays
 *   x      += fc2(gelu(fc1(norm2(x))))                  } within a segment
 *   tokens  = fc2(gelu(fc1(merge(norm(x)))))            merge: 2x2 patches become one row
 *   hidden  = x, if it is wanted
 *   DeepStack's mergers do the same after their block, with the norm after the merge.
 *
 * A gated MLP is fc2(silu(gate) * up), where one GEMM computes gate and up. If the family has a
 * norm after the Conv3d, positions are added to the norm's output. If it has a Conv2d before its
 * merger, tokens = fc2(silu(gate) * up) of gelu(norm(proj(conv2d(norm(x))))). If attention stays
 * within windows, rows are in window order from the first operation on. Each window is then a run
 * of rows, and so still is each frame pair; the last operation puts the tokens back in order.
 */
#include "steps.h"

#include <math.h>
#include <string.h>

#include "dtype.h"
#include "error.h"
#include "geometry.h"
#include "grow.h"
#include "numbers.h"

/* The list being built, and the sizes of its chunk. */
struct builder {
    const struct qv_config *c;
    const struct qv_tower *tower;
    const struct qv_tower_shape *s;
    struct qv_steps *out;
    int64_t rows, merged_rows; /* the chunk's patches, and its tokens */
    int64_t element;           /* the bytes of a value of the model's dtype */
    int x;                     /* the slot that holds the residual stream */
};

static struct qv_step *
append(struct builder *b, struct qv_op op, const int operands[QV_MAX_OPERANDS])
{
    static struct qv_step lost; /* after QV_ENOMEM, steps are written here and never read */
    struct qv_steps *list = b->out;
    struct qv_step *grown = qv_grown(list->steps, list->n, &list->capacity, sizeof *grown);
    if (!grown) {
        list->status = QV_ENOMEM;
        return &lost;
    }
    list->steps = grown;
    struct qv_step *step = &list->steps[list->n++];
    memset(step, 0, sizeof *step);
    step->op = op;
    memcpy(step->operands, operands, sizeof step->operands);
    return step;
}

/* Appends an operation whose values all have the model's dtype. */
static struct qv_step *
add(struct builder *b, struct qv_op op, const int operands[QV_MAX_OPERANDS])
{
    qv_op_set_dtype(&op, b->s->dtype);
    return append(b, op, operands);
}
#define OPERANDS(...)                                                                              \
    (const int[QV_MAX_OPERANDS])                                                                   \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

static void
completes(struct builder *b, const char *layer, int64_t index, int64_t cols)
{
    struct qv_step *step = &b->out->steps[b->out->n - 1];
    if (b->out->status)
        return;
    if (index < 0)
        snprintf(step->layer, sizeof step->layer, "%s", layer);
    else
        snprintf(step->layer, sizeof step->layer, "%s.%lld", layer, (long long)index);
    step->layer_cols = cols;
}

static int
tensor(int id)
{
    return id == QV_NO_TENSOR ? QV_NO_OPERAND : qv_weight_operand((size_t)id);
}

static void
norm(struct builder *b, int64_t rows, int64_t cols, int x, struct qv_norm w, int y)
{
    struct qv_op op = { .kind = QV_OP_norm };
    op.u.norm = (struct qv_op_norm){
        .rows = rows, .cols = cols, .eps = w.eps, .rms = w.bias == QV_NO_TENSOR
    };
    add(b, op, OPERANDS(x, tensor(w.weight), tensor(w.bias), y));
}

/* y = act(x w^T + bias) + residual */
static struct qv_step *
linear(struct builder *b, int64_t rows, int x, struct qv_linear w, int act, int residual, int y)
{
    const struct qv_tensor_spec *weight = &b->tower->tensors[w.weight];
    struct qv_op op = { .kind = QV_OP_gemm };
    op.u.gemm = (struct qv_op_gemm){ .m = rows,
                                     .n = qv_tensor_rows(weight),
                                     .k = weight->k + weight->pad_k,
                                     .alpha = 1,
                                     .bias = w.bias != QV_NO_TENSOR,
                                     .act = act,
                                     .residual_rows = residual == QV_NO_OPERAND ? 0 : rows };
    return add(b, op, OPERANDS(x, tensor(w.weight), tensor(w.bias), residual, y));
}

/* Adds x += linear(from). */
static struct qv_step *
add_linear(struct builder *b, int from, struct qv_linear w)
{
    int y = !b->s->residual_apart ? b->x : b->x == SLOT_X ? SLOT_X2 : SLOT_X;
    struct qv_step *step = linear(b, b->rows, from, w, QV_ACT_NONE, b->x, y);
    b->x = y;
    return step;
}

/* A slot and the dtype of its values. */
struct values {
    int at;
    qv_dtype dtype;
};

static void
convert(struct builder *b, int64_t n, struct values x, struct values y)
{
    struct qv_op op = { .kind = QV_OP_convert };
    op.u.convert = (struct qv_op_convert){ .n = n, .x_dtype = x.dtype, .y_dtype = y.dtype };
    append(b, op, OPERANDS(x.at, y.at));
}

/* Adds y[i] = x[index[i]], where y may have a different dtype. */
static void
gather(struct builder *b, int64_t rows, int64_t cols, struct values x, int index, struct values y)
{
    struct qv_op op = { .kind = QV_OP_gather };
    op.u.gather = (struct qv_op_gather){
        .rows = rows, .cols = cols, .x_rows = rows, .x_dtype = x.dtype, .y_dtype = y.dtype
    };
    append(b, op, OPERANDS(x.at, index, y.at));
}

static void
position_embedding(struct builder *b)
{
    struct qv_op op = { .kind = QV_OP_interpolate };
    if (b->tower->positions == QV_NO_TENSOR)
        return;
    op.u.interpolate =
        (struct qv_op_interpolate){ .rows = b->rows,
                                    .cols = b->c->hidden,
                                    .taps = qv_interpolation_taps(b->c->family->interpolation),
                                    .table_rows = b->c->n_positions };
    add(b, op, OPERANDS(tensor(b->tower->positions), SLOT_INDEX, SLOT_WEIGHT, SLOT_POS));
}

/* Adds a conversion of x[n] to f32 into the slot `wide`, unless the model's dtype is f32.
 * Returns the slot with the f32 values. */
static int
widened(struct builder *b, int64_t n, int x, int wide)
{
    if (b->s->dtype == QV_F32)
        return x;
    convert(b, n, (struct values){ x, b->s->dtype }, (struct values){ wide, QV_F32 });
    return wide;
}

/* Adds y = act(x) + residual, where x is f32. */
static void
finish(struct builder *b, int64_t rows, int64_t cols, int act, int residual, int x, int y)
{
    struct qv_op op = { .kind = QV_OP_epilogue };
    op.u.epilogue =
        (struct qv_op_epilogue){ .rows = rows,
                                 .cols = cols,
                                 .alpha = 1,
                                 .act = act,
                                 .residual_rows = residual == QV_NO_OPERAND ? 0 : rows };
    add(b, op, OPERANDS(x, QV_NO_OPERAND, residual, y));
}

qv_dtype
qv_input_dtype(qv_input input)
{
    switch (input) {
    case QV_INPUT_PATCHES: return QV_F32;
    case QV_INPUT_PATCHES_BF16: return QV_BF16;
    case QV_INPUT_FRAMES:
    case QV_INPUT_MAX: break;
    }
    return QV_U8;
}

/* Adds the operations that turn frames or pixel_values into patch rows of the model's dtype.
 * Returns their slot. */
static int
patch_rows(struct builder *b)
{
    const struct qv_config *c = b->c;
    const struct values in = { SLOT_INPUT, qv_input_dtype(b->s->input) };
    const struct values rows = { SLOT_ROWS, b->s->dtype };
    struct qv_op op = { .kind = QV_OP_patchify };
    if (b->s->input != QV_INPUT_FRAMES) {
        if (b->s->capacity.windows)
            gather(b, b->rows, qv_config_row_dim(c), in, SLOT_ORDER, rows);
        else if (in.dtype == rows.dtype)
            return SLOT_INPUT;
        else
            convert(b, b->rows * qv_config_row_dim(c), in, rows);
        return SLOT_ROWS;
    }
    op.u.patchify = (struct qv_op_patchify){ .rows = b->rows,
                                             .patch = c->patch,
                                             .temporal = c->temporal,
                                             .channels = c->in_channels,
                                             .items = b->s->capacity.segments,
                                             .patches = b->rows * c->temporal };
    add(b, op, OPERANDS(SLOT_INPUT, SLOT_PLACES, SLOT_NORMS, SLOT_COORDS, SLOT_ROWS));
    return SLOT_ROWS;
}

/* Adds the operations of the Conv3d's lowering, with the chunk's slots as their operands. */
static void
patch_embed(struct builder *b, qv_lowering lowering)
{
    const qv_conv3d_desc d = qv_steps_patch_embed(b->c, b->s);
    struct qv_conv3d_list list;
    int slots[QV_CONV3D_N_PLACES] = { [QV_CONV3D_NONE] = QV_NO_OPERAND,
                                      [QV_CONV3D_INPUT] = patch_rows(b),
                                      [QV_CONV3D_WEIGHT] = tensor(b->tower->patch_embed.weight),
                                      [QV_CONV3D_BIAS] = tensor(b->tower->patch_embed.bias),
                                      [QV_CONV3D_RESIDUAL] = SLOT_POS,
                                      [QV_CONV3D_OUTPUT] = SLOT_X };
    qv_conv3d_lower(&d, lowering, &list);
    for (int i = 0; i < list.n; i++) {
        int operands[QV_MAX_OPERANDS];
        for (int j = 0; j < QV_MAX_OPERANDS; j++)
            operands[j] = slots[list.steps[i].operands[j]];
        append(b, list.steps[i].op, operands);
    }
    completes(b, "patch_embed", -1, b->c->hidden);
    if (b->tower->patch_norm.weight == QV_NO_TENSOR)
        return;
    norm(b, b->rows, b->c->hidden, SLOT_X, b->tower->patch_norm, SLOT_A);
    const int x = widened(b, b->rows * b->c->hidden, SLOT_A, SLOT_B);
    finish(b, b->rows, b->c->hidden, QV_ACT_NONE, SLOT_POS, x, SLOT_X);
    completes(b, "embeddings", -1, b->c->hidden);
}

struct qv_op
qv_steps_attention(const struct qv_config *c, const struct qv_tower_shape *s)
{
    const int64_t head_dim = qv_config_head_dim(c), stride = 3 * c->heads * head_dim;
    struct qv_op op = { .kind = QV_OP_attention };
    op.u.attention = (struct qv_op_attention){ .rows = s->capacity.patches,
                                               .segments = s->capacity.segments,
                                               .segment_rows = s->capacity.segment_rows,
                                               .heads = c->heads,
                                               .head_dim = head_dim,
                                               .scale = 1 / sqrt((double)head_dim),
                                               .q_stride = stride,
                                               .k_stride = stride,
                                               .v_stride = stride };
    qv_op_set_dtype(&op, s->dtype);
    return op;
}

/* Adds rope and attention. q, k and v are views of packed rows [3, heads, head_dim]; rope turns
 * q and k as one view. */
static void
attention(struct builder *b, const struct qv_block *block, bool within_windows)
{
    const struct qv_config *c = b->c;
    struct qv_op rope = { .kind = QV_OP_rope }, attend = qv_steps_attention(c, b->s);
    const int64_t head_dim = attend.u.attention.head_dim, width = c->heads * head_dim;
    rope.u.rope = (struct qv_op_rope){ .rows = b->rows,
                                       .heads = 2 * c->heads,
                                       .head_dim = head_dim,
                                       .positions = QV_MOST_POSITIONS,
                                       .x_stride = 3 * width };
    int64_t side = qv_config_window_cells(c) * c->merge;
    if (within_windows) {
        attend.u.attention.segments = b->s->capacity.windows;
        attend.u.attention.segment_rows = 0;
        attend.u.attention.longest = side * side < b->rows ? side * side : b->rows;
    }
    int list = within_windows                ? SLOT_WINDOWS
               : b->s->capacity.segment_rows ? QV_NO_OPERAND
                                             : SLOT_SEGMENTS;

    norm(b, b->rows, c->hidden, b->x, block->norm1, SLOT_A);
    linear(b, b->rows, SLOT_A, block->qkv, QV_ACT_NONE, QV_NO_OPERAND, SLOT_B);
    add(b, rope,
        OPERANDS(qv_weight_operand(b->tower->cosines), qv_weight_operand(b->tower->sines),
                 SLOT_COORDS, SLOT_B));
    struct qv_step *step = append(b, attend, OPERANDS(list, SLOT_B, SLOT_B, SLOT_B, SLOT_A));
    for (int i = 0; i < 3; i++)
        step->offsets[1 + i] = i * width * b->element;
    add_linear(b, SLOT_A, block->proj);
}

/* Adds y = act(gate) * up, where x has the columns of both, as fc1 computes them. */
static struct qv_step *
gate(struct builder *b, int64_t rows, int64_t cols, int x, int y)
{
    struct qv_op op = { .kind = QV_OP_gate };
    op.u.gate = (struct qv_op_gate){
        .rows = rows, .cols = cols, .act = b->c->act, .a_stride = 2 * cols, .b_stride = 2 * cols
    };
    struct qv_step *step = add(b, op, OPERANDS(x, x, y));
    step->offsets[1] = cols * b->element;
    return step;
}

/* Returns the number of pieces, of about gated_rows rows each, into which a gated MLP is cut. */
static int64_t
gated_pieces(const struct builder *b)
{
    const int64_t rows = b->s->gated_rows, n = rows ? (b->rows + rows / 2) / rows : 1;
    return n ? n : 1;
}

/* Adds the inner part of the gated MLP of slot A, into slot B. Returns the byte at which it begins
 * there, because fc1's output for a piece precedes it. */
static int64_t
gated(struct builder *b, struct qv_linear fc1)
{
    enum { ALIGNED_ROWS = 128 }; /* GEMMs are fastest for multiples of this */
    const int64_t element = b->element, n = gated_pieces(b);
    const int64_t cols = b->c->intermediate + b->c->mlp_padding, width = b->c->hidden;
    int64_t piece = qv_ceil_div(b->rows, n);
    if (n > 1)
        piece = qv_round_up(piece, ALIGNED_ROWS);
    const int64_t inside = (int64_t)qv_aligned((size_t)(piece * 2 * cols * element));
    for (int64_t row = 0; row < b->rows; row += piece) {
        const int64_t rows = b->rows - row < piece ? b->rows - row : piece;
        struct qv_step *const step =
            linear(b, rows, SLOT_A, fc1, QV_ACT_NONE, QV_NO_OPERAND, SLOT_B);
        step->offsets[0] = row * width * element;
        step->transient = true;
        gate(b, rows, cols, SLOT_B, SLOT_B)->offsets[2] = inside + row * cols * element;
    }
    return inside;
}

static void
mlp(struct builder *b, const struct qv_block *block)
{
    int64_t at = 0;
    norm(b, b->rows, b->c->hidden, b->x, block->norm2, SLOT_A);
    if (qv_family_is_gated(b->c->family))
        at = gated(b, block->fc1);
    else
        linear(b, b->rows, SLOT_A, block->fc1, b->c->act, QV_NO_OPERAND, SLOT_B);
    add_linear(b, SLOT_B, block->fc2)->offsets[0] = at;
}

/* Adds the operations from the Conv2d to the input of the merger's last layer, and returns that
 * input's slot. The merger's norm is in slot a. The Conv2d is one GEMM, because the patches of a
 * token are one row in the order of its kernel. */
static int
merge_downsampled(struct builder *b, const struct qv_merger *m, int a, int inner)
{
    const int64_t rows = b->merged_rows, cols = b->c->out_hidden;
    linear(b, rows, a, m->downsample, QV_ACT_NONE, QV_NO_OPERAND, inner);
    completes(b, "downsample", -1, cols);
    linear(b, rows, inner, m->proj, QV_ACT_NONE, QV_NO_OPERAND, a);
    norm(b, rows, cols, a, m->proj_norm, inner);
    /* the f32 copy is then in slot a, so the result goes to the other slot */
    const bool wide = b->s->dtype != QV_F32;
    const int x = wide ? inner : a, y = wide ? a : inner;
    finish(b, rows, cols, QV_ACT_GELU_ERF, QV_NO_OPERAND, widened(b, rows * cols, inner, a), x);
    linear(b, rows, x, m->fc1, QV_ACT_NONE, QV_NO_OPERAND, y);
    gate(b, rows, b->c->merger_intermediate, y, x);
    return x;
}

/* Adds a merger: 0 makes the tokens, 1 + i DeepStack i, whose norm reads merged rows. Nothing in
 * the list waits for a DeepStack's output, so the steps after its norm may run on the side stream,
 * parallel to the next blocks. */
static void
merge(struct builder *b, int64_t merger)
{
    const struct qv_merger *m = &b->tower->mergers[merger];
    int64_t merged_cols = b->c->hidden * b->c->merge * b->c->merge;
    bool convert_out = b->s->output != b->s->dtype, side = merger && b->s->side;
    bool put_back = b->s->capacity.windows;
    int a = side ? SLOT_SIDE_A : SLOT_A, inner = side ? SLOT_SIDE_B : SLOT_B;
    int out = SLOT_TOKENS + (int)merger, merged = side ? SLOT_SIDE_MERGED : SLOT_MERGED;
    int y = convert_out || put_back ? merged : out;
    const struct values own = { y, b->s->dtype }, pulled = { out, b->s->output };

    if (m->norm_merged)
        norm(b, b->merged_rows, merged_cols, b->x, m->norm, a);
    else
        norm(b, b->rows, b->c->hidden, b->x, m->norm, a);
    size_t n = b->out->n;
    if (m->downsample.weight == QV_NO_TENSOR)
        linear(b, b->merged_rows, a, m->fc1, QV_ACT_GELU_ERF, QV_NO_OPERAND, inner);
    else
        inner = merge_downsampled(b, m, a, inner);
    linear(b, b->merged_rows, inner, m->fc2, QV_ACT_NONE, QV_NO_OPERAND, y);
    if (put_back)
        gather(b, b->merged_rows, b->c->out_hidden, own, SLOT_BACK, pulled);
    completes(b, merger ? "deepstack_merger_list" : "merger", merger - 1, b->c->out_hidden);
    if (convert_out && !put_back)
        convert(b, b->merged_rows * b->c->out_hidden, own, pulled);
    if (!side || b->out->status)
        return;
    /* the norm overwrites the input of the previous merger, which may still be running */
    b->out->steps[n - 1].waits = true;
    for (; n < b->out->n; n++)
        b->out->steps[n].side = true;
}

/* Makes the last block's rows an output, in the order of the patches. If neither order nor dtype
 * changes, the block's last GEMM writes them there. Windows consist of whole cells of merge x merge
 * patches, so cells are reordered. */
static void
give_hidden(struct builder *b)
{
    const int64_t cols = b->c->hidden * b->c->merge * b->c->merge;
    const struct values own = { b->x, b->s->dtype }, pulled = { SLOT_HIDDEN, b->s->output };
    if (b->s->capacity.windows) {
        gather(b, b->merged_rows, cols, own, SLOT_BACK, pulled);
    } else if (b->s->output != b->s->dtype) {
        convert(b, b->rows * b->c->hidden, own, pulled);
    } else {
        struct qv_step *last = &b->out->steps[b->out->n - 1];
        last->operands[qv_op_output(&last->op)] = b->x = SLOT_HIDDEN;
    }
}

qv_conv3d_desc
qv_steps_patch_embed(const struct qv_config *c, const struct qv_tower_shape *s)
{
    bool scaled = s->input == QV_INPUT_FRAMES && qv_config_pixels_are_exact(c, s->dtype);
    return (qv_conv3d_desc){ .n = s->capacity.patches,
                             .d = c->temporal,
                             .h = c->patch,
                             .w = c->patch,
                             .c = c->in_channels,
                             .o = c->hidden,
                             .kernel = { c->temporal, c->patch, c->patch },
                             .stride = { c->temporal, c->patch, c->patch },
                             .dilation = { 1, 1, 1 },
                             .groups = 1,
                             .dtype = s->dtype,
                             .layout = QV_LAYOUT_PATCH_ROWS,
                             .merge = 1,
                             .bias = c->family->patch_embed_bias,
                             .alpha = scaled ? 1 / 255.0 : 1,
                             .residual_rows = c->n_positions && !c->family->names->patch_norm
                                                  ? s->capacity.patches
                                                  : 0 };
}

qv_status
qv_steps_build(const struct qv_config *c, const struct qv_tower *tower,
               const struct qv_tower_shape *s, qv_lowering patch_embed_lowering,
               struct qv_steps *out, qv_error *err)
{
    const int64_t rows = s->capacity.patches, element = (int64_t)qv_dtype_bytes(s->dtype);
    struct builder b = { c, tower, s, out, rows, rows / (c->merge * c->merge), element, SLOT_X };

    position_embedding(&b);
    patch_embed(&b, patch_embed_lowering);
    for (int64_t i = 0; i < c->depth; i++) {
        attention(&b, &tower->blocks[i], s->capacity.windows && !c->full_attention[i]);
        mlp(&b, &tower->blocks[i]);
        completes(&b, "blocks", i, c->hidden);
        if (s->hidden && i == c->depth - 1 && !out->status)
            give_hidden(&b);
        for (int64_t t = 0; t < c->n_deepstack; t++)
            if (c->deepstack[t] == i)
                merge(&b, 1 + t);
    }
    merge(&b, 0);
    if (out->status)
        return qv_fail(err, out->status, "no memory for the list of operations");
    return QV_OK;
}
