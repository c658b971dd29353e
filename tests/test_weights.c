/* SPDX-License-Identifier: MIT */
/*
 * Tests loading: however a checkpoint stores the same weights (patch embedding 5D, 2D,
 * channels-last or as linear_proj; whatever prefixes and parts the names have; bf16 or f32; one
 * file or shards; symbolic links), the model has the same bits and the same digest. A tensor that
 * does not fit is refused by name, and so are two towers.
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
    const char *inside; /* inserted before the last two words of each name */
    const char *twin;   /* all tensors are there again, below this prefix */
    bool f32, links;
    const char *extra;        /* an additional tensor of this name */
    const char *quantiser;    /* config.json contains it in quantization_config */
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
rename_tensor(const struct variant *v, const char *prefix, const char *from, char *to, size_t size)
{
    static const char published[] = "model.visual.";
    const bool ours = !strncmp(from, published, sizeof published - 1);
    const char *own = ours ? from + sizeof published - 1 : from, *at = strrchr(own, '.');
    while (at > own && *--at != '.')
        ;
    at += at > own;
    snprintf(to, size, "%s%.*s%s%s",
             !ours    ? ""
             : prefix ? prefix
                      : published,
             (int)(at - own), own, ours && v->inside ? v->inside : "", at);
    char *proj = strstr(to, "patch_embed.proj.");
    if (proj && v->patch == AS_LINEAR_PROJ) {
        char rest[32];
        snprintf(rest, sizeof rest, "%s", proj + strlen("patch_embed.proj."));
        sprintf(proj, "patch_embed.linear_proj.%s", rest);
    }
}

static void
write_config(const struct variant *v)
{
    temp_copy("qwen3_vl/config.json", "config.json");
    temp_copy("qwen3_vl/preprocessor_config.json", "preprocessor_config.json");
    temp_copy("qwen3_vl/video_preprocessor_config.json", "video_preprocessor_config.json");
    if (v->quantiser) {
        const char *rest = strchr(file_text(temp_path("config.json")), '{') + 1;
        char *text = test_alloc(strlen(rest) + 200);
        sprintf(text, "{\"quantization_config\":{\"quant_method\":\"%s\"},%s", v->quantiser, rest);
        temp_text("config.json", text);
    }
}

static void
write_variant(const struct variant *v)
{
    enum { MOST = 256 };
    static struct qv_safetensor tensors[MOST];
    static char names[MOST][192];
    void *data[MOST];
    size_t n = 0;
    struct qv_safetensors *file = NULL;
    struct qv_safetensors_writer *w = NULL;
    assert_ok(qv_safetensors_open(QV_GOLDEN "/qwen3_vl/model.safetensors", &file, ERR));
    const size_t in_file = qv_safetensors_count(file);
    for (size_t i = 0; i < in_file * (v->twin ? 2 : 1); i++) {
        const struct qv_safetensor *t = qv_safetensors_at(file, i % in_file);
        const bool is_twin = i >= in_file;
        struct variant own = *v;
        assert_true(n + 1 < MOST);
        if ((v->drop && strstr(t->name, v->drop)) || (is_twin && !strstr(t->name, "visual")))
            continue;
        if (v->twin && !is_twin) /* only the twin is spoiled, and has another form */
            own.spoil = own.retype = own.widen = NULL, own.f32 = false, own.patch = AS_5D;
        tensors[n] = *t;
        rename_tensor(&own, is_twin ? v->twin : v->prefix, t->name, names[n], sizeof names[n]);
        tensors[n].name = names[n];
        data[n] = rewrite(&own, file, t, &tensors[n]);
        n++;
    }
    if (v->extra) {
        tensors[n] = (struct qv_safetensor){ .dtype_name = "I64", .n_dims = 1, .shape = { 3 } };
        tensors[n].name = strcpy(names[n], v->extra);
        data[n++] = test_ends(calloc(3, 8), free);
    }
    assert_true(!tempdir_remove() && !tempdir_make()); /* without an earlier variant's files */
    write_config(v);
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
        { .what = "by Lightning", .prefix = "model.model.visual." },
        { .what = "by Lightning, all of it", .prefix = "state_dict.model.visual." },
        { .what = "in a language model", .prefix = "model.language_model.visual." },
        { .what = "there twice", .prefix = "model.language_model.language_model.visual." },
        { .what = "by PEFT", .prefix = "base_model.model.model.visual." },
        { .what = "by PEFT, old names", .prefix = "base_model.model.visual." },
        { .what = "by DistributedDataParallel", .prefix = "module.model.visual." },
        { .what = "by DeepSpeed", .prefix = "module.visual." },
        { .what = "compiled", .prefix = "_orig_mod.model.visual." },
        { .what = "a compiled tower", .prefix = "model.visual._orig_mod." },
        { .what = "compiled blocks", .inside = "_orig_mod." },
        { .what = "by FSDP", .prefix = "_fsdp_wrapped_module.model.visual." },
        { .what = "a tower of FSDP", .prefix = "model.visual._fsdp_wrapped_module." },
        { .what = "layers of FSDP", .inside = "_fsdp_wrapped_module._fpw_module." },
        { .what = "checkpointed", .prefix = "model.visual._checkpoint_wrapped_module." },
        { .what = "checkpointed layers", .inside = "_checkpoint_wrapped_module.module." },
        { .what = "a policy", .prefix = "policy.model.visual." },
        { .what = "an actor", .prefix = "actor.module.model.visual." },
        { .what = "a vlm", .prefix = "vlm.model.visual." },
        { .what = "EMA", .prefix = "ema.model.visual." },
        { .what = "vision_model", .prefix = "vision_model." },
        { .what = "MLX in model", .prefix = "model.vision_tower." },
        { .what = "visual.model", .prefix = "visual.model." },
        { .what = "everything at once",
          .prefix = "_orig_mod.actor.module.Model.visual.",
          .inside = "_fsdp_wrapped_module.",
          .patch = AS_LINEAR_PROJ,
          .f32 = true },
        { .what = "the same twice", .twin = "model.language_model.visual." },
        { .what = "twice in other forms", .twin = "ema.", .f32 = true, .patch = AS_CHANNELS_LAST },
        { .what = "twice below one prefix", .twin = "module.model.visual._orig_mod." },
        { .what = "next to another encoder", .extra = "dino.patch_embed.proj.weight" },
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
            if (strcmp(digest, other))
                fail_msg("stored %s: another digest", variants[i].what);
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
          "two vision towers with different values|model.visual.merger.norm.weight|"
          "ema.model.visual.merger.norm.weight|save the checkpoint with only one",
          .variant.twin = "ema.model.visual.", .variant.spoil = "merger.norm.weight",
          .variant.value = 0.25f, .variant.at = 31 },
        { QV_BF16, QV_EFORMAT,
          "two vision towers|model.visual.pos_embed.weight|module.model.visual.pos_embed.weight",
          .variant.twin = "module.model.visual.", .variant.spoil = "pos_embed.weight",
          .variant.value = 0.25f },
        { QV_F32, QV_EFORMAT, "two vision towers|visual.blocks.2.attn.proj.bias",
          .variant.twin = "visual.", .variant.widen = "blocks.2.attn.proj.bias" },
        { QV_F32, QV_EFORMAT, "two vision towers|teacher.blocks.0.norm1.weight",
          .variant.twin = "teacher.", .variant.retype = "blocks.0.norm1.weight",
          .variant.as = "I64" },
        /* a different tensor in a missing tensor's place */
        { QV_F32, QV_EFORMAT,
          "no tensor model.visual.blocks.1.attn.qkv.weight|similar name is|attn.qkv_proj.weight",
          .variant.drop = "blocks.1.attn.qkv.weight",
          .variant.extra = "model.visual.blocks.1.attn.qkv_proj.weight" },
        { QV_F32, QV_EFORMAT,
          "no tensor model.visual.blocks.1.norm1.bias, but x.blocks.1.norm1.bias: |same prefix",
          .variant.drop = "blocks.1.norm1.bias", .variant.extra = "x.blocks.1.norm1.bias" },
        { QV_F32, QV_EUNSUPPORTED,
          "blocks.1.attn.qkv.qweight: quantised by AWQ (quantization_config|config.json|made from",
          .variant.drop = "blocks.1.attn.qkv.weight", .variant.quantiser = "awq",
          .variant.extra = "model.visual.blocks.1.attn.qkv.qweight" },
        { QV_F32, QV_EUNSUPPORTED, "quantised by AWQ or GPTQ (config.json has no quantization_conf",
          .variant.drop = "blocks.1.attn.qkv.weight",
          .variant.extra = "model.visual.blocks.1.attn.qkv.qweight" },
        { QV_F32, QV_EUNSUPPORTED, "qkv.W_q: quantised by HQQ (quantization_config",
          .variant.drop = "blocks.1.attn.qkv.weight", .variant.quantiser = "hqq",
          .variant.extra = "model.visual.blocks.1.attn.qkv.W_q" },
        { QV_F32, QV_EUNSUPPORTED, "weight_packed: quantised by compressed-tensors (quantization_c",
          .variant.drop = "blocks.1.attn.qkv.weight", .variant.quantiser = "compressed-tensors",
          .variant.extra = "model.visual.blocks.1.attn.qkv.weight_packed" },
        { QV_F32, QV_EUNSUPPORTED, "qkv.weight._data: quantised by quanto (config.json",
          .variant.drop = "blocks.1.attn.qkv.weight",
          .variant.extra = "model.visual.blocks.1.attn.qkv.weight._data" },
        { QV_F32, QV_EUNSUPPORTED, "no tensor|blocks.1.attn.qkv.weight|quantised by aqlm (quantiz",
          .variant.drop = "blocks.1.attn.qkv.weight", .variant.quantiser = "aqlm" },
        { QV_F32, QV_EFORMAT,
          "blocks.1.attn.qkv.base_layer.weight: adapters are not merged|merge_and_unload",
          .variant.drop = "blocks.1.attn.qkv.weight",
          .variant.extra = "model.visual.blocks.1.attn.qkv.base_layer.weight" },
        { QV_F32, QV_EFORMAT, "no tensor model.visual.merger.norm.weight|adapters are not merged",
          .variant.drop = "visual.merger.norm.weight",
          .variant.extra = "model.visual.merger.modules_to_save.default.norm.weight" },
        { QV_F32, QV_EFORMAT, "no Qwen-VL vision tower|lora_A.weight: adapters are not merged",
          .variant.drop = "patch_embed.proj.weight",
          .variant.extra = "base_model.model.visual.blocks.0.attn.qkv.lora_A.weight" },
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

/* Adapters next to whole weights are not used, and the model reports that; adapters of the language
 * model do not matter. */
TEST(a_model_says_that_adapters_are_not_used)
{
    static const struct {
        const char *extra, *prefix, *words;
    } cases[] = {
        { "model.visual.blocks.0.attn.qkv.lora_A.weight", NULL,
          "lora_A.weight is not used (tensors of adapters: 1)" },
        { "base_model.model.model.visual.merger.linear_fc1.lora_B.default.weight", NULL,
          "adapters are not merged" },
        { "merger.modules_to_save.default.norm.weight", "", "adapters are not merged" },
        { "model.language_model.layers.0.self_attn.q_proj.lora_A.weight", NULL, "" },
        { "model.language_model.layers.0.self_attn.q_proj.lora_A.weight", "", "" },
        { "model.visual.lora_A", NULL, "" },
        { "dino.blocks.0.attn.qkv.lora_A.weight", NULL, "" },
    };
    char digest[40];
    size_t n;
    tokens_of(QV_GOLDEN "/qwen3_vl", QV_F32, &n, digest);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_variant(&(struct variant){ .extra = cases[i].extra, .prefix = cases[i].prefix });
        for (int describe = 0; describe <= 1; describe++) {
            const qv_model_options o = { .dtype = QV_F32, .describe = describe };
            struct tiny t = tiny_open_model(tempdir, "ref", &o, 1);
            if (*cases[i].words ? !strstr(t.info.warning, cases[i].words) : *t.info.warning != 0)
                fail_msg("%s: \"%s\"", cases[i].extra, t.info.warning);
            assert_string_equal(t.info.digest, describe ? "" : digest);
            tiny_close(&t);
        }
    }
}

/* The error for a folder without safetensors lists what it contains. */
TEST(another_form_of_checkpoint_is_called_by_its_name)
{
    static const struct {
        const char *files[3], *words;
    } cases[] = {
        { { "pytorch_model.bin" }, "but pytorch_model.bin: |save_pretrained" },
        { { "x.pth", "adapter_model.bin" }, "but adapter_model.bin: an adapter|merge_and_unload" },
        { { "b.safetensors", "a.safetensors", "c.bin" },
          "but a.safetensors: a single file must be named model.safetensors|index" },
        { { "consolidated.safetensors", "params.json" }, "but consolidated.safetensors: " },
        { { "__0_0.distcp" }, "but __0_0.distcp: a distributed checkpoint|merge-weights" },
        { { "pytorch_model_fsdp_0" }, "but pytorch_model_fsdp_0: a distributed checkpoint" },
        { { "evil\033[2Jname\n.bin" }, "but evil?[2Jname?.bin: " },
        { { "README.md" }, "has neither model.safetensors nor model.safetensors.index.json" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_true(!tempdir_remove() && !tempdir_make());
        write_config(&(struct variant){ 0 });
        for (int f = 0; f < 3 && cases[i].files[f]; f++)
            temp_text(cases[i].files[f], "");
        expect_load_failure(cases[i].words, tempdir, "ref", NULL, QV_EIO, cases[i].words);
    }
}

static void
add_name(struct qv_text *header, size_t *n, const char *name)
{
    qv_text_say(header, "%s\"", (*n)++ ? "," : "{");
    qv_text_add(header, name, strlen(name));
    qv_text_say(header, "\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}");
}

static void
write_header(struct qv_text *header)
{
    qv_text_say(header, "}");
    assert_false(header->lost);
    char *file = test_alloc(header->n + 8);
    for (int i = 0; i < 8; i++)
        file[i] = (char)(header->n >> 8 * i);
    memcpy(file + 8, header->at, header->n);
    write_config(&(struct variant){ 0 });
    temp_file("model.safetensors", file, header->n + 8);
    free(header->at);
    *header = (struct qv_text){ 0 };
}

/* Many, long or empty names soon cause an error. */
TEST(hostile_names_are_refused)
{
    enum { LONG = 4 << 20 };
    static const char *const odd[] = { "",
                                       ".",
                                       "..",
                                       "module",
                                       "module.module",
                                       ".module.",
                                       "patch_embed.linear_proj.",
                                       "patch_embed.linear_proj.weight",
                                       "merger..lora_A",
                                       "blocks.0.attn.qkv.",
                                       ".lora_A" };
    struct qv_text header = { 0 };
    size_t n = 0;
    char *name = test_alloc(LONG + 64);
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
        add_name(&header, &n, odd[i]);
    write_header(&header);
    expect_load_failure("odd", tempdir, "ref", NULL, QV_EFORMAT,
                        "patch_embed.linear_proj.weight has shape [0]");
    for (int embeds = 0; embeds <= 1; embeds++) {
        n = 0;
        for (int i = 0; i < 100000; i++) {
            sprintf(name, "%06d.%s", i, embeds ? "patch_embed.proj.weight" : "blocks.0.norm1.bias");
            add_name(&header, &n, name);
            sprintf(name, "%06d.blocks.%d.attn.qkv.lora_A", i, i % 3);
            add_name(&header, &n, name);
        }
        write_header(&header);
        expect_load_failure("many", tempdir, "ref", NULL, QV_EFORMAT,
                            embeds ? "tensor 000000.patch_embed.proj.weight has shape [0]"
                                   : "no Qwen-VL vision tower|adapters are not merged");
    }
    n = 0;
    for (int i = 0; i < LONG; i++)
        name[i] = "module."[i % 7];
    strcpy(name + LONG, ".patch_embed.proj.weight");
    add_name(&header, &n, name);
    memset(name, '.', LONG);
    add_name(&header, &n, name);
    strcpy(name + LONG, ".patch_embed.proj.lora_A");
    add_name(&header, &n, name);
    write_header(&header);
    expect_load_failure("long", tempdir, "ref", NULL, QV_EFORMAT, "patch_embed.proj.weight has sh");
    n = 0;
    add_name(&header, &n, "visual\\u0000.patch_embed.proj.weight");
    write_header(&header);
    expect_load_failure("NUL", tempdir, "ref", NULL, QV_EFORMAT, "model.safetensors|NUL byte");
}

static struct qv_op warmed[4];
static int n_warmed;

static void
note_warm(struct qv_device *dev, const struct qv_op *op)
{
    assert_true(n_warmed < 4);
    warmed[n_warmed++] = *op;
}

/* Loading weights announces the coming kernels to the device, as operations that it prepares; only
 * describing a model announces none. */
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
