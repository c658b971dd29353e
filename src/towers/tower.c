/* SPDX-License-Identifier: MIT */
#include "tower.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "grow.h"

/* The growing list of tensors, and the prefix of the names being added. */
struct builder {
    const struct qv_config *c;
    struct qv_tower *tower;
    size_t capacity;
    char prefix[48]; /* such as "blocks.0." */
    bool lost;       /* memory for a tensor ran out */
};

/* Adds a tensor. names are its stored tensors' names, ended by NULL. */
static int
add(struct builder *b, const char *const names[QV_MOST_STORED], const char *suffix,
    struct qv_tensor_spec spec)
{
    struct qv_tower *t = b->tower;
    struct qv_tensor_spec *grown =
        b->lost ? NULL : qv_grown(t->tensors, t->n, &b->capacity, sizeof *grown);
    b->lost = !grown;
    if (b->lost)
        return QV_NO_TENSOR;
    t->tensors = grown;
    for (spec.n_stored = 0; spec.n_stored < QV_MOST_STORED && names[spec.n_stored]; spec.n_stored++)
        snprintf(spec.names[spec.n_stored], sizeof spec.names[0], "%s%s%s", b->prefix,
                 names[spec.n_stored], suffix);
    t->tensors[t->n] = spec;
    return (int)t->n++;
}
#define ONE(name)                                                                                  \
    (const char *const[QV_MOST_STORED])                                                            \
    {                                                                                              \
        name                                                                                       \
    }

/* Adds a linear layer whose stored weights are [n, k]. On the device each is followed by pad_n rows
 * of zeros, and each row by pad_k zeros. */
static struct qv_linear
linear(struct builder *b, const char *const names[QV_MOST_STORED], bool bias_too,
       struct qv_tensor_spec weight)
{
    struct qv_tensor_spec bias = weight;
    struct qv_linear out = { QV_NO_TENSOR, QV_NO_TENSOR };
    bias.form = QV_TENSOR_BIAS;
    bias.k = 1;
    bias.pad_k = 0;
    bias.conv3d = bias.conv2d = false;
    weight.form = QV_TENSOR_MATRIX;
    out.weight = add(b, names, ".weight", weight);
    if (bias_too)
        out.bias = add(b, names, ".bias", bias);
    return out;
}

static struct qv_norm
norm_of_kind(struct builder *b, const char *name, int64_t n, enum qv_norm_kind kind, double eps)
{
    const struct qv_tensor_spec vector = { .form = QV_TENSOR_VECTOR, .n = n, .k = 1 };
    struct qv_norm out = { add(b, ONE(name), ".weight", vector), QV_NO_TENSOR, eps };
    if (kind == QV_NORM_LAYER)
        out.bias = add(b, ONE(name), ".bias", vector);
    return out;
}

static struct qv_norm
norm(struct builder *b, const char *name, int64_t n)
{
    return norm_of_kind(b, name, n, b->c->family->norm, b->c->norm_eps);
}

static const struct qv_linear no_linear = { QV_NO_TENSOR, QV_NO_TENSOR };
static const struct qv_norm no_norm = { QV_NO_TENSOR, QV_NO_TENSOR, 0 };

static void
add_front(struct builder *b)
{
    const struct qv_config *c = b->c;
    const struct qv_tensor_names *names = c->family->names;
    struct qv_tower *t = b->tower;
    const struct qv_tensor_spec table = { .form = QV_TENSOR_TABLE,
                                          .n = c->n_positions,
                                          .k = c->hidden };
    t->patch_embed = linear(b, ONE("patch_embed.proj"), c->family->patch_embed_bias,
                            (struct qv_tensor_spec){
                                .n = c->hidden, .k = qv_config_row_dim(c), .conv3d = true });
    t->patch_norm = names->patch_norm ? norm(b, names->patch_norm, c->hidden) : no_norm;
    t->positions = names->positions ? add(b, ONE(names->positions), "", table) : QV_NO_TENSOR;
}

static void
add_block(struct builder *b, int64_t i)
{
    const struct qv_tensor_names *names = b->c->family->names;
    const bool bias = b->c->family->bias, one = !names->qkv[1];
    const char *const fc1[QV_MOST_STORED] = { names->fc1[0], names->fc1[1] };
    struct qv_block *block = &b->tower->blocks[i];
    int64_t h = b->c->hidden, m = b->c->intermediate, pad = b->c->mlp_padding;
    struct qv_tensor_spec qkv = { .n = one ? 3 * h : h, .k = h };
    if (b->c->kv_heads) {
        qkv.single = h;
        qkv.run = qv_config_head_dim(b->c);
        qkv.copies = b->c->heads / b->c->kv_heads;
    }
    snprintf(b->prefix, sizeof b->prefix, "blocks.%lld.", (long long)i);
    block->norm1 = norm(b, "norm1", h);
    block->qkv = linear(b, names->qkv, bias, qkv);
    block->proj = linear(b, ONE("attn.proj"), bias, (struct qv_tensor_spec){ .n = h, .k = h });
    block->norm2 = norm(b, "norm2", h);
    /* Padding adds nothing: GELU(0) = 0, SiLU(0) * 0 = 0, and both are multiplied by a weight of
     * 0 */
    block->fc1 = linear(b, fc1, bias, (struct qv_tensor_spec){ .n = m, .k = h, .pad_n = pad });
    block->fc2 =
        linear(b, ONE(names->fc2), bias, (struct qv_tensor_spec){ .n = h, .k = m, .pad_k = pad });
}

/* Adds the Conv2d of a merger and the layers after it. The Conv2d has a bias although no other
 * layer of the family has; the norm's eps is torch's default. */
static void
add_downsample(struct builder *b, struct qv_merger *merger)
{
    const struct qv_config *c = b->c;
    const struct qv_tensor_names *names = c->family->names;
    const int64_t n = c->out_hidden, merged = c->hidden * c->merge * c->merge;
    merger->downsample = linear(b, ONE(names->downsample), true,
                                (struct qv_tensor_spec){ .n = n, .k = merged, .conv2d = true });
    merger->proj = linear(b, ONE(names->merger_proj), c->family->bias,
                          (struct qv_tensor_spec){ .n = n, .k = n });
    merger->proj_norm = norm_of_kind(b, names->merger_proj_norm, n, QV_NORM_LAYER, 1e-5);
}

/* Adds merger i: merger 0 makes the tokens, merger 1 + i the output of DeepStack i. */
static void
add_merger(struct builder *b, int64_t i)
{
    const struct qv_config *c = b->c;
    const struct qv_tensor_names *names = c->family->names;
    const char *const fc1[QV_MOST_STORED] = { names->merger_fc1[0], names->merger_fc1[1] };
    const bool bias = c->family->bias;
    struct qv_merger *merger = &b->tower->mergers[i];
    int64_t merged = c->hidden * c->merge * c->merge, inner = merged;
    if (i)
        snprintf(b->prefix, sizeof b->prefix, "%s.%lld.", names->deepstack, (long long)(i - 1));
    else
        snprintf(b->prefix, sizeof b->prefix, "%s%s", names->merger, *names->merger ? "." : "");
    merger->norm_merged = i > 0;
    merger->norm = norm(b, names->merger_norm, merger->norm_merged ? merged : c->hidden);
    merger->downsample = merger->proj = no_linear;
    if (names->downsample) {
        add_downsample(b, merger);
        merged = c->out_hidden;
        inner = c->merger_intermediate;
    }
    merger->fc1 = linear(b, fc1, bias, (struct qv_tensor_spec){ .n = inner, .k = merged });
    merger->fc2 = linear(b, ONE(names->merger_fc2), bias,
                         (struct qv_tensor_spec){ .n = c->out_hidden, .k = inner });
}

qv_status
qv_tower_open(const struct qv_config *c, struct qv_tower *out, qv_error *err)
{
    struct builder b = { .c = c, .tower = out };
    *out = (struct qv_tower){ .blocks = calloc((size_t)c->depth, sizeof *out->blocks) };
    b.lost = !out->blocks;
    add_front(&b);
    for (int64_t i = 0; i < c->depth && !b.lost; i++)
        add_block(&b, i);
    for (int64_t i = 0; i < 1 + c->n_deepstack; i++)
        add_merger(&b, i);
    out->cosines = out->n;
    out->sines = out->n + 1;
    return b.lost ? qv_fail(err, QV_ENOMEM, "no memory for the list of tensors") : QV_OK;
}

void
qv_tower_close(struct qv_tower *tower)
{
    free(tower->tensors);
    free(tower->blocks);
    *tower = (struct qv_tower){ 0 };
}
