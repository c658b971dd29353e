/* SPDX-License-Identifier: MIT */
/*
 * Makes a GGUF file from a tower's checkpoint folder like llama.cpp's converter (its naming rules
 * are repeated here), and in the forms of other converters. Include it after test.h.
 */
#pragma once

#include "dtype.h"
#include "files/gguf_types.h"
#include "files/safetensors.h"
#include "gguf_file.h"
#include "towers/read_config.h"

enum { F32_TYPE = 0, F16_TYPE = 1, BF16_TYPE = 30 };

/* How the file is made, and its faults. */
struct mmproj_how {
    const char *projector;
    uint32_t type;      /* for matrices whose rows are whole blocks; others are F32 */
    uint32_t type_of_k; /* for attn_k, if that is apart; 0: type */
    /* fused: q, k and v in one tensor; split: separate; neither: as the converter writes them */
    bool fused, split;
    bool swapped;        /* ffn_up and ffn_down have each other's name */
    bool flat;           /* slices of the patch embedding are matrices */
    bool silent;         /* the file has no means and no merge size */
    const float *mean;   /* these means instead */
    const char *drop;    /* a key or tensor that is left out */
    const char *as_type; /* a tensor that gets the type Q2_K */
    const char *reshape; /* a tensor whose rows become columns */
    const char *architecture;
    uint32_t window;
};

/* Parts of names, replaced one after another. */
static const char *const mmproj_parts[][2] = {
    { "patch_embed.proj", "v.patch_embd" },
    { "post_conv_layernorm", "v.norm_embd" },
    { "embeddings.position_embedding", "v.position_embd" },
    { "pos_embed", "v.position_embd" },
    { "deepstack_merger_list.", "v.deepstack." },
    { "merger_list.", "v.deepstack." },
    { "blocks.", "v.blk." },
    { ".norm1", ".ln1" },
    { ".norm2", ".ln2" },
    { ".attn.proj", ".attn_out" },
    { ".attn.qkv", ".attn_qkv" },
    { ".attn.q.", ".attn_q." },
    { ".attn.k.", ".attn_k." },
    { ".attn.v.", ".attn_v." },
    { ".mlp.gate_proj", ".ffn_gate" },
    { ".mlp.up_proj", ".ffn_up" },
    { ".mlp.down_proj", ".ffn_down" },
    { ".mlp.fc1", ".ffn_up" },
    { ".mlp.fc2", ".ffn_down" },
    { ".mlp.linear_fc1", ".ffn_up" },
    { ".mlp.linear_fc2", ".ffn_down" },
    { "merger.ln_q", "v.post_ln" },
    { "merger.norm", "v.post_ln" },
    { "merger.mlp.", "mm." },
    { "merger.linear_fc1", "mm.0" },
    { "merger.linear_fc2", "mm.2" },
    { "merger.post_projection_norm", "mm.post_norm" },
    { "merger.proj", "mm.model.fc" },
    { "merger.gate_proj", "mm.gate" },
    { "merger.up_proj", "mm.up" },
    { "merger.down_proj", "mm.down" },
    { "post_layernorm", "v.post_ln" },
    { "downsample", "mm.patch_merger" },
    { ".ln_q", ".norm" }, /* what is left belongs to DeepStack */
    { ".linear_fc1", ".fc1" },
    { ".linear_fc2", ".fc2" },
    { ".mlp.0", ".fc1" },
    { ".mlp.2", ".fc2" },
};

static inline void
mmproj_replace(char *name, const char *from, const char *to)
{
    char copy[160];
    const char *at = strstr(name, from);
    if (at) {
        snprintf(copy, sizeof copy, "%.*s%s%s", (int)(at - name), name, to, at + strlen(from));
        strcpy(name, copy);
    }
}

static inline void
mmproj_name(const struct qv_config *c, const char *name, char out[160])
{
    snprintf(out, 160, "%s", name);
    for (size_t i = 0; i < sizeof mmproj_parts / sizeof *mmproj_parts; i++)
        mmproj_replace(out, mmproj_parts[i][0], mmproj_parts[i][1]);
    int merger, end;
    if (sscanf(out, "v.deepstack.%d.%n", &merger, &end) == 1) {
        char rest[64];
        snprintf(rest, sizeof rest, "%.60s", out + end);
        snprintf(out, 160, "v.deepstack.%d.%s", (int)c->deepstack[merger], rest);
    }
}

/* Writes x[n] as blocks of a type, and replaces x by their values. Quantised blocks are seeded
 * and have nothing to do with x, as any weights serve for a tower. */
static inline size_t
mmproj_blocks(const struct qv_gguf_type *type, float *x, int64_t n, uint8_t *out)
{
    static uint32_t seed = 1;
    const size_t bytes = (size_t)(n / type->values) * (size_t)type->bytes;
    for (int64_t i = 0; i < n && type->dtype != QV_DTYPE_AUTO; i++)
        qv_store(out, type->dtype, i, (double)x[i]);
    for (size_t i = 0; i < bytes && type->dtype == QV_DTYPE_AUTO; i++)
        out[i] = (uint8_t)(test_random(&seed) >> 24);
    const bool of_256 = type->values == 256, q6 = of_256 && type->bytes == 210;
    for (size_t i = 0; i < bytes && type->dtype == QV_DTYPE_AUTO; i += (size_t)type->bytes) {
        const size_t at = i + (q6 ? 208 : 0);
        out[at + 1] = of_256 ? 0x03 : 0x13; /* f16 of about 5e-5, 1e-3 */
        if (type->bytes == 20 || type->bytes == 24 || (of_256 && !q6))
            out[at + 3] = 0x03;
    }
    if (qv_gguf_type_can_be_read(type))
        qv_gguf_widen(type, out, n, x);
    return bytes;
}

struct mmproj_maker {
    const struct mmproj_how *how;
    struct qv_config config;
    struct gguf_file file;
    /* a folder with the same values, if asked for */
    struct qv_safetensor tensors[256];
    char names[256][96];
    float *values[256];
    size_t n;
};

static inline void
mmproj_put(struct mmproj_maker *m, const char *name, int n_dims, const int64_t *shape, float *x,
           int64_t n)
{
    const struct mmproj_how *how = m->how;
    const bool matrix = n_dims == 2 && !strstr(name, "position_embd");
    const bool is_k = strstr(name, "attn_k.") && how->type_of_k;
    const struct qv_gguf_type *type = qv_gguf_type_find(!matrix ? F32_TYPE
                                                        : is_k  ? how->type_of_k
                                                                : how->type);
    int64_t turned[4];
    if (shape[n_dims - 1] % type->values)
        type = qv_gguf_type_find(F32_TYPE);
    if (how->as_type && !strcmp(how->as_type, name))
        type = qv_gguf_type_find(10);
    uint8_t *out = test_ends(calloc((size_t)n + 512, 4), free);
    const size_t bytes = mmproj_blocks(type, x, n, out);
    memcpy(turned, shape, (size_t)n_dims * sizeof *shape);
    if (how->reshape && !strcmp(how->reshape, name))
        for (int i = 0; i < n_dims; i++)
            turned[i] = shape[n_dims - 1 - i];
    if (!how->drop || strcmp(how->drop, name) != 0)
        gguf_tensor(&m->file, name, type->id, n_dims, turned, out, bytes);
}

/* Adds [o, c, t, p, p] as one tensor for each frame. */
static inline void
mmproj_patch_embed(struct mmproj_maker *m, const struct qv_safetensor *t, float *x)
{
    const int64_t o = t->shape[0], c = t->shape[1], frames = t->shape[2],
                  area = t->shape[3] * t->shape[4], n = o * c * area;
    const bool flat = m->how->flat;
    const int64_t shape[4] = { o, flat ? c * area : c, t->shape[3], t->shape[4] };
    for (int64_t f = 0; f < frames; f++) {
        float *slice = test_alloc((size_t)n * sizeof *slice);
        for (int64_t i = 0; i < o * c; i++)
            memcpy(slice + i * area, x + (i * frames + f) * area, (size_t)area * sizeof *slice);
        mmproj_put(m, f ? "v.patch_embd.weight.1" : "v.patch_embd.weight", flat ? 2 : 4, shape,
                   slice, n);
        for (int64_t i = 0; i < o * c; i++) /* a flat slice may be quantised */
            memcpy(x + (i * frames + f) * area, slice + i * area, (size_t)area * sizeof *slice);
    }
}

static inline void
mmproj_qkv(struct mmproj_maker *m, const char *name, const struct qv_safetensor *t, float *x)
{
    static const char *const to[3] = { ".attn_q.", ".attn_k.", ".attn_v." };
    const int64_t rows = t->shape[0] / 3, cols = t->n_dims > 1 ? t->shape[1] : 1;
    for (int i = 0; i < 3; i++) {
        char one[160];
        snprintf(one, sizeof one, "%s", name);
        mmproj_replace(one, ".attn_qkv.", to[i]);
        mmproj_put(m, one, t->n_dims, (int64_t[]){ rows, cols }, x + i * rows * cols, rows * cols);
    }
}

/* Joins the three tensors of a family that stores them separately. */
static inline void
mmproj_fuse(struct mmproj_maker *m, const char *name, int64_t rows, int64_t cols, float *x)
{
    static float *all;
    static int n;
    char one[160];
    const size_t bytes = (size_t)(rows * cols) * sizeof *x;
    all = n ? all : malloc(3 * bytes);
    assert_non_null(all);
    memcpy(all + n * rows * cols, x, bytes);
    snprintf(one, sizeof one, "%s", name);
    mmproj_replace(one, ".attn_v.", ".attn_qkv.");
    if (++n < 3)
        return;
    mmproj_put(m, one, cols > 1 ? 2 : 1, (int64_t[]){ 3 * rows, cols }, all, 3 * rows * cols);
    free(all);
    n = 0;
}

static inline void
mmproj_add(struct mmproj_maker *m, const char *below, const struct qv_safetensor *t, float *x,
           int64_t n)
{
    char name[160];
    const bool split = m->how->split || !strncmp(m->how->projector, "qwen2", 5);
    mmproj_name(&m->config, below, name);
    if (m->how->swapped && strstr(name, ".ffn_up."))
        mmproj_replace(name, ".ffn_up.", ".ffn_down.");
    else if (m->how->swapped)
        mmproj_replace(name, ".ffn_down.", ".ffn_up.");
    if (t->n_dims == 5)
        mmproj_patch_embed(m, t, x);
    else if (strstr(name, ".attn_qkv.") && split && !m->how->fused)
        mmproj_qkv(m, name, t, x);
    else
        mmproj_put(m, name, t->n_dims, t->shape, x, n);
}

static inline void
mmproj_keys(struct mmproj_maker *m)
{
    static const float clip[2][3] = { { 0.48145466f, 0.4578275f, 0.40821073f },
                                      { 0.26862954f, 0.26130258f, 0.27577711f } };
    static const float half[3] = { 0.5f, 0.5f, 0.5f };
    const struct qv_config *c = &m->config;
    const struct mmproj_how *how = m->how;
    const bool qwen3 = !strcmp(how->projector, "qwen3vl_merger");
    const float *mean = how->mean ? how->mean : qwen3 ? half : clip[0];
    const float eps = (float)c->norm_eps;
    const struct {
        const char *key;
        int64_t v;
    } numbers[] = {
        { "clip.vision.projection_dim", c->out_hidden },
        { "clip.vision.image_size", c->image_size ? c->image_size
                                    : qwen3       ? qv_config_position_side(c) * c->patch
                                                  : 560 },
        { "clip.vision.patch_size", c->patch },
        { "clip.vision.embedding_length", c->hidden },
        { "clip.vision.feed_forward_length", c->merger_intermediate ? c->merger_intermediate : 0 },
        { "clip.vision.block_count", c->depth },
        { "clip.vision.attention.head_count", c->heads },
    };
    bool deepstack[QV_MOST_DEPTH] = { 0 };
    gguf_string(&m->file, "general.architecture", how->architecture ? how->architecture : "clip");
    gguf_string(&m->file, "clip.projector_type", how->projector);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!how->drop || strcmp(how->drop, numbers[i].key) != 0)
            gguf_u32(&m->file, numbers[i].key, (uint32_t)numbers[i].v);
    gguf_floats(&m->file, "clip.vision.attention.layer_norm_epsilon", &eps, 1);
    if (!how->silent) {
        gguf_floats(&m->file, "clip.vision.image_mean", mean, 3);
        gguf_floats(&m->file, "clip.vision.image_std", mean == half ? half : clip[1], 3);
    }
    if (!strncmp(how->projector, "qwen2.5", 7)) {
        int64_t first = 0;
        while (first < c->depth && !c->full_attention[first])
            first++;
        gguf_u32(&m->file, "clip.vision.n_wa_pattern", (uint32_t)first + 1);
    }
    if (how->window)
        gguf_u32(&m->file, "clip.vision.window_size", how->window);
    for (int64_t i = 0; i < c->n_deepstack; i++)
        deepstack[c->deepstack[i]] = true;
    if (qwen3 && !(how->drop && strstr(how->drop, "is_deepstack")))
        gguf_bools(&m->file, "clip.vision.is_deepstack_layers", deepstack, (size_t)c->depth);
    if (qwen3 && !how->silent)
        gguf_u32(&m->file, "clip.vision.spatial_merge_size", (uint32_t)c->merge);
    if (!strcmp(c->model_type, "qwen3_omni_moe"))
        gguf_bool(&m->file, "clip.has_audio_encoder", true);
}

static inline void
mmproj_take(struct mmproj_maker *m, const struct qv_safetensors *from,
            const struct qv_safetensor *t)
{
    const char *visual = strstr(t->name, "visual."), *below = visual ? visual + 7 : t->name;
    const int64_t n = (int64_t)(t->bytes / qv_dtype_bytes(t->dtype));
    const bool apart =
        strstr(below, ".attn.q.") || strstr(below, ".attn.k.") || strstr(below, ".attn.v.");
    void *stored = test_alloc(t->bytes);
    float *x = test_alloc((size_t)n * sizeof *x);
    assert_true(stored && x && m->n < 256);
    assert_ok(qv_safetensors_read(from, t, 0, stored, t->bytes, ERR));
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)qv_load(stored, t->dtype, i);
    char name[160];
    mmproj_name(&m->config, below, name);
    if (apart && m->how->fused)
        (void)name; /* added below, in their order */
    else
        mmproj_add(m, below, t, x, n);
    m->tensors[m->n] = *t;
    strcpy(m->tensors[m->n].dtype_name, "F32");
    snprintf(m->names[m->n], sizeof m->names[0], "%.95s", t->name);
    m->tensors[m->n].name = m->names[m->n];
    m->values[m->n++] = x;
}

/* Joins q, k and v of a family that stores them separately, in any order. */
static inline void
mmproj_fuse_all(struct mmproj_maker *m)
{
    static const char *const ends[2] = { "weight", "bias" };
    for (int64_t block = 0; block < m->config.depth; block++)
        for (int end = 0; end < 2; end++)
            for (int part = 0; part < 3; part++)
                for (size_t i = 0; i < m->n; i++) {
                    char wanted[64], name[160];
                    const struct qv_safetensor *t = &m->tensors[i];
                    snprintf(wanted, sizeof wanted, "blocks.%d.attn.%c.%s", (int)block, "qkv"[part],
                             ends[end]);
                    const char *at = strstr(t->name, wanted);
                    if (!at)
                        continue;
                    mmproj_name(&m->config, at, name);
                    mmproj_fuse(m, name, t->shape[0], t->n_dims > 1 ? t->shape[1] : 1,
                                m->values[i]);
                }
}

/* Writes NAME in the temporary folder and, if `values` is not NULL, that folder's
 * model.safetensors with the same values in F32. */
static inline const char *
mmproj_make(const char *dir, const struct mmproj_how *how, const char *name, const char *values)
{
    static struct mmproj_maker m;
    struct qv_safetensors *from = NULL;
    struct qv_safetensors_writer *to = NULL;
    char path[512];
    m = (struct mmproj_maker){ .how = how };
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_ok(qv_config_read(dir, &m.config, ERR) || qv_safetensors_open(path, &from, ERR));
    mmproj_keys(&m);
    for (size_t i = 0; i < qv_safetensors_count(from); i++)
        if (strstr(qv_safetensors_at(from, i)->name, "visual."))
            mmproj_take(&m, from, qv_safetensors_at(from, i));
    if (how->fused)
        mmproj_fuse_all(&m);
    qv_safetensors_close(&from);
    assert_ok(values && qv_safetensors_writer_open(values, m.tensors, m.n, NULL, 0, &to, ERR));
    for (size_t i = 0; i < m.n; i++) {
        size_t n = sizeof(float);
        for (int d = 0; d < m.tensors[i].n_dims; d++)
            n *= (size_t)m.tensors[i].shape[d];
        assert_ok(values && qv_safetensors_writer_put(to, i, 0, m.values[i], n, ERR));
    }
    assert_ok(values && qv_safetensors_writer_finish(&to, ERR));
    return gguf_write(&m.file, name);
}
