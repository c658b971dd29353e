/* SPDX-License-Identifier: MIT */
/*
 * Tests loading: however a checkpoint stores the same weights (patch embedding 5D, 2D,
 * channels-last or as linear_proj; names with and without "model."; bf16 or f32; one file or
 * shards; symbolic links), the model has the same bits. A tensor that does not fit is refused by
 * name.
 */

#include "test.h"

#include <math.h>

#include "backends.h"
#include "dtype.h"
#include "files/safetensors.h"
#include "tempdir.h"
#include "tiny.h"

enum patch_form { AS_5D, AS_2D, AS_CHANNELS_LAST, AS_LINEAR_PROJ };

/* The way in which the golden checkpoint is written again. */
struct variant {
    const char *what;
    enum patch_form patch;
    const char *prefix; /* instead of "model.visual." */
    bool f32, links;
    const char *extra;        /* an additional tensor of this name */
    const char *drop, *widen; /* drop: this tensor is left out; widen: this one has a row more */
    const char *retype, *as;  /* this tensor has the dtype `as`, and is zero */
    const char *spoil;        /* this tensor has the given value at the given place */
    float value;
    int64_t at;
};

/* Returns the tensor's values in the variant's form. */
static void *
rewrite(const struct variant *v, const struct qv_safetensors *file,
        const struct qv_safetensor *from, struct qv_safetensor *to)
{
    int64_t n = (int64_t)from->bytes / 2, *d = to->shape;
    uint16_t *in = test_alloc(from->bytes), *out = test_ends(calloc(4, from->bytes), free);
    assert_ok(qv_safetensors_read(file, from, 0, in, from->bytes, ERR));
    memcpy(out, in, from->bytes);
    if (from->n_dims == 5 && v->patch == AS_CHANNELS_LAST) {
        int64_t c = d[1], taps = d[2] * d[3] * d[4];
        for (int64_t i = 0; i < n; i++)
            out[i / (c * taps) * c * taps + i % taps * c + i / taps % c] = in[i];
        to->shape[1] = from->shape[2];
        to->shape[2] = from->shape[3];
        to->shape[3] = from->shape[4];
        to->shape[4] = c;
    } else if (from->n_dims == 5 && v->patch != AS_5D) {
        d[1] = d[1] * d[2] * d[3] * d[4];
        to->n_dims = 2;
    }
    if (v->retype && strstr(from->name, v->retype)) {
        memset(out, 0, from->bytes);
        snprintf(to->dtype_name, sizeof to->dtype_name, "%s", v->as);
    }
    if (v->widen && strstr(from->name, v->widen))
        to->shape[0] += 1;
    if (v->f32) {
        float *wide = test_ends(calloc(2, from->bytes * 2), free);
        for (int64_t i = 0; i < n; i++)
            wide[i] = qv_bf16_to_f32(out[i]);
        out = (uint16_t *)wide;
        snprintf(to->dtype_name, sizeof to->dtype_name, "F32");
    }
    if (v->spoil && strstr(from->name, v->spoil)) {
        assert_true(v->at < n);
        if (v->f32)
            ((float *)(void *)out)[v->at] = v->value;
        else
            out[v->at] = v->as ? 0x7c00 /* infinite in f16 */ : qv_f32_to_bf16(v->value);
    }
    return out;
}

static void
rename_tensor(const struct variant *v, const char *from, char *to, size_t size)
{
    static const char prefix[] = "model.visual.";
    bool ours = !strncmp(from, prefix, sizeof prefix - 1);
    snprintf(to, size, "%s%s", ours && v->prefix ? v->prefix : "",
             ours && v->prefix ? from + sizeof prefix - 1 : from);
    char *proj = strstr(to, "patch_embed.proj.");
    if (proj && v->patch == AS_LINEAR_PROJ) {
        char rest[32];
        snprintf(rest, sizeof rest, "%s", proj + strlen("patch_embed.proj."));
        sprintf(proj, "patch_embed.linear_proj.%s", rest);
    }
}

static void
write_variant(const struct variant *v)
{
    enum { MOST = 128 };
    static struct qv_safetensor tensors[MOST];
    static char names[MOST][128];
    void *data[MOST];
    size_t n = 0;
    struct qv_safetensors *file = NULL;
    struct qv_safetensors_writer *w = NULL;
    assert_ok(qv_safetensors_open(QV_GOLDEN "/qwen3_vl/model.safetensors", &file, ERR));
    for (size_t i = 0; i < qv_safetensors_count(file); i++) {
        const struct qv_safetensor *t = qv_safetensors_at(file, i);
        assert_true(n < MOST);
        if (v->drop && strstr(t->name, v->drop))
            continue;
        tensors[n] = *t;
        rename_tensor(v, t->name, names[n], sizeof names[n]);
        tensors[n].name = names[n];
        data[n] = rewrite(v, file, t, &tensors[n]);
        n++;
    }
    if (v->extra) {
        tensors[n] = (struct qv_safetensor){ .dtype_name = "I64", .n_dims = 1, .shape = { 3 } };
        tensors[n].name = strcpy(names[n], v->extra);
        data[n++] = test_ends(calloc(3, 8), free);
    }
    assert_true(!tempdir_remove() && !tempdir_make()); /* without an earlier variant's files */
    temp_copy("qwen3_vl/config.json", "config.json");
    temp_copy("qwen3_vl/preprocessor_config.json", "preprocessor_config.json");
    temp_copy("qwen3_vl/video_preprocessor_config.json", "video_preprocessor_config.json");
    const char *path = temp_path(v->links ? "blob" : "model.safetensors");
    assert_ok(qv_safetensors_writer_open(path, tensors, n, NULL, 0, &w, ERR));
    for (size_t i = 0; i < n; i++) {
        uint64_t bytes = strstr(tensors[i].dtype_name, "64")   ? 8
                         : strstr(tensors[i].dtype_name, "32") ? 4
                                                               : 2;
        for (int d = 0; d < tensors[i].n_dims; d++)
            bytes *= (uint64_t)tensors[i].shape[d];
        assert_ok(qv_safetensors_writer_put(w, i, 0, data[i], bytes, ERR));
    }
    assert_ok(qv_safetensors_writer_finish(&w, ERR));
    if (v->links)
        assert_int_equal(symlink("blob", temp_path("model.safetensors")), 0);
    qv_safetensors_close(&file);
}

/* Returns the tokens of fixed frames, and the weights' digest. */
static float *
tokens_of(const char *dir, qv_dtype dtype, size_t *bytes, char digest[40])
{
    struct tiny t = tiny_open_family(dir, backend_for(dtype), dtype, 0);
    memcpy(digest, t.info.digest, 40);
    return tiny_fixed_tokens(&t, bytes);
}

TEST(the_same_model_however_it_is_stored)
{
    static const struct variant variants[] = {
        { .what = "as it is" },
        { .what = "2D", .patch = AS_2D },
        { .what = "channels-last", .patch = AS_CHANNELS_LAST },
        { .what = "linear_proj", .patch = AS_LINEAR_PROJ },
        { .what = "without model.", .prefix = "visual." },
        { .what = "MLX", .patch = AS_CHANNELS_LAST, .prefix = "vision_tower." },
        { .what = "a bare tower", .prefix = "" },
        { .what = "f32", .f32 = true },
        { .what = "links", .links = true },
        { .what = "with tensors of others", .extra = "model.visual.blocks.99.extra" },
    };
    static const qv_dtype dtypes[] = { QV_F32, QV_BF16 };
    for (size_t d = 0; d < 2; d++) {
        size_t n, m;
        char digest[40], other[40];
        float *expected = tokens_of(QV_GOLDEN "/qwen3_vl", dtypes[d], &n, digest);
        for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
            write_variant(&variants[i]);
            float *tokens = tokens_of(tempdir, dtypes[d], &m, other);
            if (n != m || memcmp(tokens, expected, n))
                fail_msg("stored %s: other tokens in %s", variants[i].what,
                         qv_dtype_name(dtypes[d]));
            if (!variants[i].f32) /* the digest covers the stored values and their dtype */
                assert_string_equal(digest, other);
        }
    }
}

/* The digest covers every value, wherever it is in a tensor. */
TEST(another_value_is_another_digest)
{
    static const struct variant variants[] = {
        { .what = "as it is" },
        { .what = "the first value", .spoil = "blocks.0.mlp.linear_fc1.weight", .value = 0.25f },
        { .what = "a later value",
          .spoil = "blocks.0.mlp.linear_fc1.weight",
          .value = 0.25f,
          .at = 77 },
        { .what = "a norm's value", .spoil = "merger.norm.weight", .value = 0.25f, .at = 3 },
    };
    enum { N = sizeof variants / sizeof *variants };
    char digests[N][40];
    for (int i = 0; i < N; i++) {
        size_t n;
        write_variant(&variants[i]);
        tokens_of(tempdir, QV_F32, &n, digests[i]);
        for (int j = 0; j < i; j++)
            if (!strcmp(digests[i], digests[j]))
                fail_msg("%s: the digest of: %s", variants[i].what, variants[j].what);
    }
}

TEST(what_does_not_fit_is_refused_by_name)
{
    static const struct {
        qv_dtype dtype;
        qv_status status;
        const char *words;
        struct variant variant;
    } cases[] = {
        { QV_BF16, QV_EFORMAT, "no tensor|blocks.1.norm2.bias",
          .variant.drop = "blocks.1.norm2.bias" },
        { QV_BF16, QV_EFORMAT, "no tensor|patch_embed.proj.weight|vision tower",
          .variant.drop = "patch_embed.proj.weight" },
        { QV_BF16, QV_EFORMAT,
          "there are two vision towers, model.visual.patch_embed.proj.weight|"
          "and visual.patch_embed.proj.weight|which one is meant",
          .variant.extra = "visual.patch_embed.proj.weight" },
        { QV_BF16, QV_EFORMAT, "shape|blocks.2.attn.proj.bias|config.json",
          .variant.widen = "blocks.2.attn.proj.bias" },
        { QV_BF16, QV_EUNSUPPORTED, "blocks.0.norm1.weight is I64|BF16|model.safetensors",
          .variant.retype = "blocks.0.norm1.weight", .variant.as = "I64" },
        { QV_F32, QV_EUNSUPPORTED, "merger.linear_fc2.weight is F64|BF16|model.safetensors",
          .variant.retype = "merger.linear_fc2.weight", .variant.as = "F64" },
        { QV_BF16, QV_EFORMAT, "linear_fc1.weight|value 77 is not finite in bf16|model.safetensors",
          .variant.spoil = "blocks.0.mlp.linear_fc1.weight", .variant.value = NAN,
          .variant.at = 77 },
        { QV_BF16, QV_EFORMAT, "norm.weight|value 0 is not finite in f32",
          .variant.spoil = "merger.norm.weight", .variant.value = NAN },
        { QV_F32, QV_EFORMAT, "pos_embed.weight|value 31 is not finite in f32",
          .variant.spoil = "pos_embed.weight", .variant.value = -INFINITY, .variant.at = 31 },
        /* infinite in f16 */
        { QV_F32, QV_EFORMAT, "attn.qkv.weight|value 5 is not finite in f32",
          .variant.spoil = "blocks.1.attn.qkv.weight", .variant.at = 5,
          .variant.retype = "1.attn.qkv.weight", .variant.as = "F16" },
        { QV_BF16, QV_EFORMAT, "attn.qkv.weight|value 40 is not finite in bf16",
          .variant.f32 = true, .variant.spoil = "blocks.1.attn.qkv.weight",
          .variant.value = 3.4e38f, .variant.at = 40 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const qv_model_options options = { .dtype = cases[i].dtype };
        write_variant(&cases[i].variant);
        expect_load_failure(cases[i].words, tempdir, backend_for(cases[i].dtype), &options,
                            cases[i].status, cases[i].words);
    }
}

static struct qv_op warmed[4];
static int n_warmed;

static void
note_warm(struct qv_device *dev, const struct qv_op *op)
{
    assert_true(n_warmed < 4);
    warmed[n_warmed++] = *op;
}

/* When weights are loaded, the device is told which kernels will follow, and these are
 * operations that it prepares; when a model is only described, it is told nothing. */
TEST(a_device_hears_what_will_follow)
{
    struct qv_backend backend = qv_backend_ref;
    qv_context *ctx = tiny_context("ref");
    qv_model *model = NULL;
    backend.warm = note_warm;
    ctx->backend = &backend;
    for (int describe = 1; describe >= 0; describe--) {
        const qv_model_options o = { .dtype = QV_BF16, .describe = describe };
        assert_ok(qv_model_load(ctx, QV_GOLDEN "/qwen3_vl", &o, &model, ERR));
        assert_int_equal(n_warmed, describe ? 0 : 2);
        qv_model_free(&model);
    }
    assert_int_equal(warmed[0].kind, QV_OP_gemm);
    assert_int_equal(warmed[1].kind, QV_OP_attention);
    for (int i = 0; i < n_warmed; i++) {
        struct qv_kernel *kernel = NULL;
        size_t scratch;
        assert_ok(qv_op_check(&warmed[i], ERR) ||
                  backend.prepare(ctx->dev, &warmed[i], 0, &kernel, &scratch, ERR));
        backend.release(ctx->dev, kernel);
    }
}

TEST_EACH(tempdir_make, tempdir_remove);
