/* SPDX-License-Identifier: MIT */
/*
 * Fuzzes a whole checkpoint: config.json and model.safetensors of a tiny tower, made from the
 * bytes. Each tensor is as it should be, or has another dtype or shape, or is quantised in groups
 * of any size. The checkpoint is loaded by several threads, once in slices of megabytes, which hold
 * every tensor as a whole, and once in slices of a few bytes. Both must report the same and leave
 * the same data on the device.
 */
#include "fuzz.h"

#include "../sparse.h"
#include "engine/context.h"
#include "towers/read_config.h"
#include "towers/weights.h"

enum { MOST_DATA = 4 << 20 };

/* The result of loading. */
struct loaded {
    qv_status status;
    qv_error err;
    struct qv_weights weights;
};

static void
write_config(struct fuzz_bytes *b)
{
    static const struct {
        const char *name, *act;
        bool in_thinker;
    } families[] = { { "qwen3_vl", "gelu_pytorch_tanh", false },
                     { "qwen2_5_vl", "silu", false },
                     { "glm4v", "silu", false },
                     { "qwen2_vl", "quick_gelu", false },
                     { "qwen3_omni_moe", "gelu", true } };
    const int family = fuzz_byte(b) % 5, head_dim = 4 << fuzz_byte(b) % 2,
              patch = 1 + fuzz_byte(b) % 8, merge = 1 + fuzz_byte(b) % 2,
              hidden = 32 * (1 + fuzz_byte(b) % 4), inner = 1 + fuzz_byte(b),
              out = 1 + fuzz_byte(b); /* The heads are small, because making their angles takes the
                                       * most time. */
    char text[1024];
    const int n =
        snprintf(text, sizeof text,
                 "{\"model_type\":\"%s\",%s\"vision_config\":{\"hidden_act\":\"%s\",\"depth\":1,"
                 "\"%s\":%d,\"%s\":%d,\"num_heads\":%d,\"intermediate_size\":%d,\"mlp_ratio\":%d,"
                 "\"patch_size\":%d,\"spatial_merge_size\":%d,\"num_position_embeddings\":4,"
                 "\"image_size\":%d,\"window_size\":%d,\"deepstack_visual_indexes\":[],"
                 "\"fullatt_block_indexes\":[0]}}%s",
                 families[family].name, families[family].in_thinker ? "\"thinker_config\":{" : "",
                 families[family].act, family == 3 ? "embed_dim" : "hidden_size", hidden,
                 family == 3 ? "hidden_size" : "out_hidden_size", out, hidden / head_dim, inner,
                 1 + inner % 4, patch, merge, 2 * patch, 2 * patch * merge,
                 families[family].in_thinker ? "}" : "");
    fuzz_file("config.json", text, (size_t)n);
}

/* Returns the value itself nearly always, and sometimes another one. */
static int64_t
perhaps(struct fuzz_bytes *b, int64_t value)
{
    const uint8_t by = fuzz_byte(b);
    return by < 250 ? value : by == 250 ? fuzz_int(b) & INT64_MAX : value + by - 253;
}

static bool
add_quantised(struct sparse *s, struct fuzz_bytes *b, const struct qv_tensor_spec *spec,
              const char *name)
{
    static const int bits[] = { 4, 8, 4, 8, 4, 8, 2, 3, 5, 6, 16, 32 };
    static const int64_t groups[] = { 32, 64, 128, 32, 64, 128, 1, 2, 4, 8, 16, 256 };
    static const char *const dtypes[] = { "F32", "F16", "BF16", "F32", "F16", "BF16", "U8", "U32" };
    static const uint64_t elements[] = { 4, 2, 2, 4, 2, 2, 1, 4 };
    static const char *const suffixes[] = { "scales", "biases" };
    const int64_t words = spec->k * bits[fuzz_byte(b) % 12] / 32,
                  in_row = spec->k / groups[fuzz_byte(b) % 12];
    const int dtype = fuzz_byte(b) % 8;
    bool fits = sparse_add(s, "U32", 4, "visual.", name, 2,
                           (int64_t[]){ perhaps(b, spec->n), perhaps(b, words) });
    for (int i = 0; i < 2 && fits; i++) {
        char full[128];
        const int as = (int)perhaps(b, dtype) & 7;
        snprintf(full, sizeof full, "%.*s%s", (int)(strlen(name) - strlen("weight")), name,
                 suffixes[i]);
        fits = sparse_add(s, dtypes[as], elements[as], "visual.", full, 2,
                          (int64_t[]){ perhaps(b, spec->n), perhaps(b, in_row ? in_row : 1) });
    }
    return fits;
}

/* Takes n bytes, so that a change of one tensor's bytes leaves the other tensors as they were. */
static struct fuzz_bytes
take(struct fuzz_bytes *b, size_t n)
{
    const struct fuzz_bytes out = { b->at, b->left < n ? b->left : n };
    b->at += out.left;
    b->left -= out.left;
    return out;
}

static bool
add_part(struct sparse *s, struct fuzz_bytes *all, const struct qv_config *c,
         const struct qv_tensor_spec *spec, const char *name)
{
    static const char *const dtypes[] = { "BF16", "F32", "F16", "I32" };
    static const uint64_t elements[] = { 2, 4, 2, 4 };
    struct fuzz_bytes own = take(all, 12), *b = &own;
    const bool flat = spec->form == QV_TENSOR_VECTOR || spec->form == QV_TENSOR_BIAS;
    const uint8_t how = fuzz_byte(b);
    const int as = how > 250 ? 3 : how % 3;
    const int64_t n = perhaps(b, spec->n);
    const bool quantised = how >= 128 && how <= (spec->k % 32 ? 132 : 250);
    if (quantised && spec->form == QV_TENSOR_MATRIX)
        return add_quantised(s, b, spec, name);
    if (spec->conv2d)
        return sparse_add(s, dtypes[as], elements[as], "visual.", name, 4,
                          (int64_t[]){ n, c->hidden, c->merge, perhaps(b, c->merge) });
    if (spec->conv3d && how & 64) /* Both orders of the axes are tried. */
        return sparse_add(s, dtypes[as], elements[as], "visual.", name, 5,
                          how & 32
                              ? (int64_t[]){ n, c->temporal, c->patch, c->patch, c->in_channels }
                              : (int64_t[]){ n, c->in_channels, c->temporal, c->patch, c->patch });
    return sparse_add(s, dtypes[as], elements[as], "visual.", name, flat ? 1 : 2,
                      (int64_t[]){ n, perhaps(b, spec->k) });
}

/* Writes the data: the rest of the bytes, repeated, or zeros. They are mostly chosen so that no
 * value is infinite. */
static void
write_data(const struct sparse *s, struct fuzz_bytes *b, int fd)
{
    uint8_t *data = calloc(s->data + 1, 1);
    FUZZ_CHECK(data);
    const uint8_t mask = fuzz_byte(b) > 240 ? 0xff : 0xbf;
    const size_t once = b->left < s->data ? b->left : s->data;
    for (size_t i = 0; i < once; i++)
        data[i] = b->at[i] & mask;
    for (size_t done = once; once && done < s->data; done *= 2)
        memcpy(data + done, data, done < s->data - done ? done : s->data - done);
    FUZZ_CHECK(pwrite(fd, data, s->data, (off_t)sparse_offset(s, 0)) == (ssize_t)s->data);
    free(data);
}

static bool
write_checkpoint(struct fuzz_bytes *b, const struct qv_config *c, const struct qv_tower *tower)
{
    static struct sparse s;
    bool fits = true;
    s.used = s.data = 0;
    for (size_t id = 0; id < tower->n && fits; id++)
        for (int i = 0; i < tower->tensors[id].n_stored && fits; i++)
            fits = add_part(&s, b, c, &tower->tensors[id], tower->tensors[id].names[i]);
    if (!fits || s.data > MOST_DATA)
        return false;
    const int fd = sparse_write(&s, fuzz_path("model.safetensors"));
    FUZZ_CHECK(fd >= 0);
    write_data(&s, b, fd);
    close(fd);
    return true;
}

static struct loaded
load(const qv_context *ctx, const struct qv_config *c, const struct qv_tower *tower, qv_dtype dtype,
     size_t slice_bytes, int threads)
{
    struct loaded out = { 0 };
    qv_weights_slice_bytes = slice_bytes;
    const struct qv_weights_loading how = { .dtype = dtype, .threads = threads };
    out.status = qv_weights_load(ctx->dev, c, tower, fuzz_folder, &how, &out.weights, &out.err);
    fuzz_failed(out.status, &out.err);
    return out;
}

static void
load_both_ways(struct fuzz_bytes how, const struct qv_config *c, const struct qv_tower *tower)
{
    static qv_context *ctx;
    qv_error err;
    if (!ctx)
        FUZZ_CHECK(!qv_context_open(&(qv_context_options){ .backend = "ref" }, &ctx, &err));
    const qv_dtype dtype = fuzz_flag(&how) ? QV_F32 : QV_BF16;
    const size_t slice_bytes = (size_t)1 << fuzz_byte(&how) % 14;
    const int threads = 1 + fuzz_byte(&how) % 3;
    struct loaded whole = load(ctx, c, tower, dtype, 1 << 20, 1);
    struct loaded cut = load(ctx, c, tower, dtype, slice_bytes, threads);
    FUZZ_CHECK(whole.status == cut.status && !strcmp(whole.err.text, cut.err.text));
    if (!whole.status) {
        FUZZ_CHECK(!strcmp(whole.weights.digest, cut.weights.digest));
        FUZZ_CHECK(whole.weights.bytes == cut.weights.bytes);
        FUZZ_CHECK(
            !memcmp(whole.weights.memory->base, cut.weights.memory->base, whole.weights.bytes));
        qv_weights_free(ctx->dev, &whole.weights);
        qv_weights_free(ctx->dev, &cut.weights);
    }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_bytes b = { data, size }, how;
    struct qv_config c;
    struct qv_tower tower;
    struct qv_leftover leftover;
    qv_error err;
    how = b;
    for (int i = 0; i < 4; i++)
        fuzz_byte(&b);
    write_config(&b);
    if (fuzz_failed(qv_config_read(fuzz_folder, &c, &err), &err))
        return 0;
    FUZZ_CHECK(!fuzz_failed(qv_tower_open(&c, &tower, &err), &err));
    if (write_checkpoint(&b, &c, &tower)) {
        qv_tower_close(&tower);
        c.mlp_padding = fuzz_byte(&how) % 4 * 8; /* Some devices want this padding. */
        FUZZ_CHECK(!fuzz_failed(qv_tower_open(&c, &tower, &err), &err));
        fuzz_failed(qv_leftover_find(fuzz_folder, &c, &tower, &leftover, &err), &err);
        load_both_ways(how, &c, &tower);
    }
    qv_tower_close(&tower);
    return 0;
}
