/* SPDX-License-Identifier: MIT */
/*
 * The Qwen-VL vision tower as a list of operations (transformers' models/qwen3_vl is the
 * definition). Reads from top to bottom as a chunk flows:
 *
 *   rows    = patches of the frames
 *   x       = conv3d(rows) + position embedding
 *   x      += proj(attention(rope(qkv(norm1(x)))))      } depth times; attention stays
 *   x      += fc2(gelu(fc1(norm2(x))))                  } within a frame pair
 *   tokens  = fc2(gelu(fc1(merge(norm(x)))))            merge: 2x2 patches become one row
 *   DeepStack's mergers do the same after their block, with the norm after the merge.
 */
#include "towers/tower.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"

/* ---- tensors --------------------------------------------------------------------------------- */

static int64_t
merged_dim(const struct qv_config *c)
{
    return c->hidden * c->merge * c->merge;
}

static size_t
block_id(const struct qv_config *c, int64_t block, size_t tensor)
{
    (void)c;
    return HEAD_TENSORS + (size_t)block * BLOCK_TENSORS + tensor;
}

/* Merger 0 is the final one, 1 + i that of DeepStack i. */
static size_t
merger_id(const struct qv_config *c, int64_t merger, size_t tensor)
{
    return block_id(c, c->depth, 0) + (size_t)merger * MERGER_TENSORS + tensor;
}

size_t
qv_tower_n_tensors(const struct qv_config *c)
{
    return merger_id(c, 1 + c->n_deepstack, 0);
}

static struct qv_tensor_spec
head_tensor(const struct qv_config *c, size_t id)
{
    int64_t k = qv_config_row_dim(c);
    const struct qv_tensor_spec head[HEAD_TENSORS] = {
        [PATCH_WEIGHT] = { "patch_embed.proj.weight", QV_TENSOR_MATRIX, c->hidden, k,
                           .conv3d = true },
        [PATCH_STILL] = { "patch_embed.proj.weight", QV_TENSOR_MATRIX, c->hidden, k / c->temporal,
                          .conv3d = true, .sum_depth = true },
        [PATCH_BIAS] = { "patch_embed.proj.bias", QV_TENSOR_BIAS, .n = c->hidden, .k = 1 },
        [POSITIONS] = { "pos_embed.weight", QV_TENSOR_TABLE, .n = c->n_positions, .k = c->hidden },
    };
    return head[id];
}

struct part {
    const char *name;
    enum qv_tensor_form form;
    int64_t n, k;
};

static struct qv_tensor_spec
named(const char *prefix, int64_t index, const struct part *part)
{
    struct qv_tensor_spec spec = { .form = part->form, .n = part->n, .k = part->k };
    if (index < 0)
        snprintf(spec.name, sizeof spec.name, "%s.%s", prefix, part->name);
    else
        snprintf(spec.name, sizeof spec.name, "%s.%lld.%s", prefix, (long long)index, part->name);
    return spec;
}

static struct qv_tensor_spec
block_tensor(const struct qv_config *c, size_t i)
{
    int64_t h = c->hidden, m = c->intermediate;
    const struct part parts[BLOCK_TENSORS] = {
        [NORM1_WEIGHT] = { "norm1.weight", QV_TENSOR_VECTOR, h, 1 },
        [NORM1_BIAS] = { "norm1.bias", QV_TENSOR_VECTOR, h, 1 },
        [QKV_WEIGHT] = { "attn.qkv.weight", QV_TENSOR_MATRIX, 3 * h, h },
        [QKV_BIAS] = { "attn.qkv.bias", QV_TENSOR_BIAS, 3 * h, 1 },
        [PROJ_WEIGHT] = { "attn.proj.weight", QV_TENSOR_MATRIX, h, h },
        [PROJ_BIAS] = { "attn.proj.bias", QV_TENSOR_BIAS, h, 1 },
        [NORM2_WEIGHT] = { "norm2.weight", QV_TENSOR_VECTOR, h, 1 },
        [NORM2_BIAS] = { "norm2.bias", QV_TENSOR_VECTOR, h, 1 },
        [FC1_WEIGHT] = { "mlp.linear_fc1.weight", QV_TENSOR_MATRIX, m, h },
        [FC1_BIAS] = { "mlp.linear_fc1.bias", QV_TENSOR_BIAS, m, 1 },
        [FC2_WEIGHT] = { "mlp.linear_fc2.weight", QV_TENSOR_MATRIX, h, m },
        [FC2_BIAS] = { "mlp.linear_fc2.bias", QV_TENSOR_BIAS, h, 1 },
    };
    size_t part = i % BLOCK_TENSORS;
    struct qv_tensor_spec spec = named("blocks", (int64_t)(i / BLOCK_TENSORS), &parts[part]);
    /* GELU(0) = 0 times a weight of 0: nothing is added */
    spec.pad_n = part == FC1_WEIGHT || part == FC1_BIAS ? c->mlp_padding : 0;
    spec.pad_k = part == FC2_WEIGHT ? c->mlp_padding : 0;
    return spec;
}

static struct qv_tensor_spec
merger_tensor(const struct qv_config *c, size_t i)
{
    int64_t merger = (int64_t)(i / MERGER_TENSORS), wide = merged_dim(c);
    int64_t norm = merger ? wide : c->hidden;
    const struct part parts[MERGER_TENSORS] = {
        [MERGER_NORM_WEIGHT] = { "norm.weight", QV_TENSOR_VECTOR, norm, 1 },
        [MERGER_NORM_BIAS] = { "norm.bias", QV_TENSOR_VECTOR, norm, 1 },
        [MERGER_FC1_WEIGHT] = { "linear_fc1.weight", QV_TENSOR_MATRIX, wide, wide },
        [MERGER_FC1_BIAS] = { "linear_fc1.bias", QV_TENSOR_BIAS, wide, 1 },
        [MERGER_FC2_WEIGHT] = { "linear_fc2.weight", QV_TENSOR_MATRIX, c->out_hidden, wide },
        [MERGER_FC2_BIAS] = { "linear_fc2.bias", QV_TENSOR_BIAS, c->out_hidden, 1 },
    };
    const struct part *part = &parts[i % MERGER_TENSORS];
    return merger ? named("deepstack_merger_list", merger - 1, part) : named("merger", -1, part);
}

struct qv_tensor_spec
qv_tower_tensor(const struct qv_config *c, size_t id)
{
    if (id < HEAD_TENSORS)
        return head_tensor(c, id);
    if (id < block_id(c, c->depth, 0))
        return block_tensor(c, id - HEAD_TENSORS);
    return merger_tensor(c, id - merger_id(c, 0, 0));
}

/* ---- operations ------------------------------------------------------------------------------ */

/* The chunk being built: sizes by name, and the list that grows. */
struct builder {
    const struct qv_config *c;
    const struct qv_tower_shape *s;
    struct qv_steps *out;
    int64_t pair_rows, rows, merged_rows; /* patches of a pair, of the chunk; tokens of the chunk */
    int x;                                /* where the residual stream is */
};

static struct qv_step *
append(struct builder *b, struct qv_op op, const int operands[QV_MAX_OPERANDS])
{
    static struct qv_step lost; /* what is written to it after ENOMEM is not read */
    struct qv_steps *list = b->out;
    if (list->n == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 64;
        struct qv_step *grown = realloc(list->steps, capacity * sizeof *grown);
        if (!grown) {
            list->status = QV_ENOMEM;
            return &lost;
        }
        list->steps = grown;
        list->capacity = capacity;
    }
    struct qv_step *step = &list->steps[list->n++];
    memset(step, 0, sizeof *step);
    step->op = op;
    memcpy(step->operands, operands, sizeof step->operands);
    return step;
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

static void
norm(struct builder *b, int64_t rows, int64_t cols, int x, size_t weight, int y)
{
    struct qv_op op = { .kind = QV_OP_norm };
    op.u.norm = (struct qv_op_norm){ rows, cols, b->c->norm_eps, false, b->s->dtype };
    append(b, op, OPERANDS(x, qv_weight_operand(weight), qv_weight_operand(weight + 1), y));
}

/* y = act(x w^T + bias) + residual; the bias is the tensor after the weight. */
static void
linear(struct builder *b, int64_t rows, int x, size_t weight, int act, int residual, int y)
{
    struct qv_tensor_spec w = qv_tower_tensor(b->c, weight);
    struct qv_op op = { .kind = QV_OP_gemm };
    op.u.gemm = (struct qv_op_gemm){ .m = rows,
                                     .n = w.n + w.pad_n,
                                     .k = w.k + w.pad_k,
                                     .alpha = 1,
                                     .bias = true,
                                     .act = act,
                                     .addend_rows = residual == QV_NO_OPERAND ? 0 : rows,
                                     .dtype = b->s->dtype };
    append(b, op,
           OPERANDS(x, qv_weight_operand(weight), qv_weight_operand(weight + 1), residual, y));
}

/* x += product */
static void
add_linear(struct builder *b, int from, size_t weight)
{
    int y = !b->s->addend_apart ? b->x : b->x == SLOT_X ? SLOT_X2 : SLOT_X;
    linear(b, b->rows, from, weight, QV_ACT_NONE, b->x, y);
    b->x = y;
}

static void
convert(struct builder *b, int64_t n, qv_dtype from, qv_dtype to, int x, int y)
{
    struct qv_op op = { .kind = QV_OP_convert };
    op.u.convert = (struct qv_op_convert){ n, from, to };
    append(b, op, OPERANDS(x, y));
}

static void
position_embedding(struct builder *b)
{
    struct qv_op op = { .kind = QV_OP_taps };
    op.u.taps = (struct qv_op_taps){ b->pair_rows, b->c->hidden, b->c->n_positions, b->s->dtype };
    append(b, op, OPERANDS(qv_weight_operand(POSITIONS), SLOT_INDEX, SLOT_WEIGHT, SLOT_POS));
}

/* The Conv3d's operations as decided, between our slots. */
static void
patch_embed(struct builder *b, const struct qv_conv3d_list *list)
{
    size_t weight = list->weight.summed ? PATCH_STILL : PATCH_WEIGHT;
    int slots[QV_CONV3D_BUFFERS] = { [QV_CONV3D_NONE] = QV_NO_OPERAND,
                                     [QV_CONV3D_INPUT] = SLOT_INPUT,
                                     [QV_CONV3D_WEIGHT] = qv_weight_operand(weight),
                                     [QV_CONV3D_BIAS] = qv_weight_operand(PATCH_BIAS),
                                     [QV_CONV3D_ADDEND] = SLOT_POS,
                                     [QV_CONV3D_ROWS] = SLOT_ROWS,
                                     [QV_CONV3D_OUTPUT] = SLOT_X };
    if (b->s->input == QV_INPUT_PATCHES && b->s->dtype != QV_F32) {
        convert(b, b->rows * qv_config_row_dim(b->c), QV_F32, b->s->dtype, SLOT_INPUT, SLOT_ROWS);
        slots[QV_CONV3D_INPUT] = SLOT_ROWS;
    }
    for (int i = 0; i < list->n; i++) {
        int operands[QV_MAX_OPERANDS];
        for (int j = 0; j < QV_MAX_OPERANDS; j++)
            operands[j] = slots[list->steps[i].operands[j].buffer];
        append(b, list->steps[i].op, operands);
    }
    completes(b, "patch_embed", -1, b->c->hidden);
}

static void
attention(struct builder *b, size_t block)
{
    const struct qv_config *c = b->c;
    int64_t head_dim = qv_config_head_dim(c);
    struct qv_op rope = { .kind = QV_OP_rope }, attend = { .kind = QV_OP_attention };
    rope.u.rope = (struct qv_op_rope){ b->rows, c->heads, head_dim, b->pair_rows, b->s->dtype };
    attend.u.attention = (struct qv_op_attention){
        b->s->pairs, b->pair_rows, c->heads, head_dim, 1 / sqrt((double)head_dim), b->s->dtype
    };

    norm(b, b->rows, c->hidden, b->x, block + NORM1_WEIGHT, SLOT_A);
    linear(b, b->rows, SLOT_A, block + QKV_WEIGHT, QV_ACT_NONE, QV_NO_OPERAND, SLOT_B);
    append(b, rope, OPERANDS(SLOT_COS, SLOT_SIN, SLOT_B));
    append(b, attend, OPERANDS(SLOT_B, SLOT_A));
    add_linear(b, SLOT_A, block + PROJ_WEIGHT);
}

static void
mlp(struct builder *b, size_t block)
{
    norm(b, b->rows, b->c->hidden, b->x, block + NORM2_WEIGHT, SLOT_A);
    linear(b, b->rows, SLOT_A, block + FC1_WEIGHT, b->c->act, QV_NO_OPERAND, SLOT_B);
    add_linear(b, SLOT_B, block + FC2_WEIGHT);
}

/* merger 0: the tokens; 1 + i: DeepStack i, whose norm sees merged rows. Nothing waits for a
 * DeepStack's output, so what follows its norm may run beside the next blocks. */
static void
merge(struct builder *b, int64_t merger)
{
    size_t first = merger_id(b->c, merger, 0);
    int64_t wide = merged_dim(b->c);
    bool convert_out = b->s->output != b->s->dtype, beside = merger && b->s->beside;
    int a = beside ? SLOT_BESIDE_A : SLOT_A, inner = beside ? SLOT_BESIDE_B : SLOT_B;
    int out = SLOT_TOKENS + (int)merger, merged = beside ? SLOT_BESIDE_MERGED : SLOT_MERGED;
    int y = convert_out ? merged : out;

    if (merger)
        norm(b, b->merged_rows, wide, b->x, first + MERGER_NORM_WEIGHT, a);
    else
        norm(b, b->rows, b->c->hidden, b->x, first + MERGER_NORM_WEIGHT, a);
    size_t n = b->out->n;
    linear(b, b->merged_rows, a, first + MERGER_FC1_WEIGHT, QV_ACT_GELU_ERF, QV_NO_OPERAND, inner);
    linear(b, b->merged_rows, inner, first + MERGER_FC2_WEIGHT, QV_ACT_NONE, QV_NO_OPERAND, y);
    completes(b, merger ? "deepstack_merger_list" : "merger", merger - 1, b->c->out_hidden);
    if (convert_out)
        convert(b, b->merged_rows * b->c->out_hidden, b->s->dtype, b->s->output, y, out);
    if (!beside || b->out->status)
        return;
    b->out->steps[n - 1].waits = true; /* for the merger before, whose input it overwrites */
    for (; n < b->out->n; n++)
        b->out->steps[n].beside = true;
}

qv_conv3d_desc
qv_tower_patch_embed(const struct qv_config *c, const struct qv_tower_shape *s)
{
    bool frames = s->input == QV_INPUT_FRAMES;
    const qv_preprocess *p = s->image_norm ? &c->image : &c->video;
    qv_conv3d_desc d = {
        .n = 1,
        .d = s->pairs * c->temporal,
        .h = s->grid_h * c->patch,
        .w = s->grid_w * c->patch,
        .c = c->in_channels,
        .o = c->hidden,
        .kernel = { c->temporal, c->patch, c->patch },
        .stride = { c->temporal, c->patch, c->patch },
        .dilation = { 1, 1, 1 },
        .groups = 1,
        .dtype = s->dtype,
        .layout = frames ? QV_LAYOUT_FRAMES_U8 : QV_LAYOUT_PATCH_ROWS,
        .merge = c->merge,
        .bias = true,
        .alpha = 1,
        .addend_rows = s->grid_h * s->grid_w,
        .frames_equal = s->still,
    };
    if (!frames)
        return d;
    /* mean = std = 1/2: (2u - 255) / 255, where 2u - 255 is exact in bf16 and 1/255 is the GEMM's
     * alpha. Others are normalised in f32 and rounded once. */
    bool exact = true;
    for (int i = 0; i < 3; i++)
        exact = exact && p->mean[i] == 0.5 && p->std[i] == 0.5;
    d.alpha = exact ? 1 / 255.0 : 1;
    for (int i = 0; i < 3; i++) {
        d.pixel_scale[i] = exact ? 2 : 1 / (255 * p->std[i]);
        d.pixel_shift[i] = exact ? -255 : -p->mean[i] / p->std[i];
    }
    return d;
}

qv_status
qv_tower_build(const struct qv_config *c, const struct qv_tower_shape *s,
               const struct qv_conv3d_list *patch_embed_list, struct qv_steps *out, qv_error *err)
{
    int64_t pair_rows = s->grid_h * s->grid_w, rows = s->pairs * pair_rows;
    struct builder b = { c, s, out, pair_rows, rows, rows / (c->merge * c->merge), SLOT_X };

    position_embedding(&b);
    out->n_setup = out->n;

    patch_embed(&b, patch_embed_list);
    for (int64_t i = 0; i < c->depth; i++) {
        attention(&b, block_id(c, i, 0));
        mlp(&b, block_id(c, i, 0));
        completes(&b, "blocks", i, c->hidden);
        for (int64_t t = 0; t < c->n_deepstack; t++)
            if (c->deepstack[t] == i)
                merge(&b, 1 + t);
    }
    merge(&b, 0);
    if (out->status)
        return qv_fail(err, out->status, "no memory for the list of operations");
    return QV_OK;
}
