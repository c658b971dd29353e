/* SPDX-License-Identifier: MIT */
/* Tests towers in GGUF files: for every family and type the model equals the one of the checkpoint
 * from which the file was made; files with missing or wrong values; and files that are not
 * towers. */

#include "test.h"

#include <math.h>

#include "engine/backend.h"
#include "mmproj_file.h"
#include "tiny.h"
#include "towers/weights.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* ---- the same model -------------------------------------------------------------------------- */

/* Asserts that every tensor is the same, as the reference has it on its device. */
static void
same_weights(const char *what, const struct tiny *a, const struct tiny *b)
{
    const struct qv_tower *tower = &a->model->tower;
    assert_int_equal(tower->n, b->model->tower.n);
    for (size_t id = 0; id < tower->n; id++) {
        const struct qv_tensor_spec *spec = &tower->tensors[id];
        const qv_dtype dtype = spec->form == QV_TENSOR_VECTOR ? QV_F32 : a->info.dtype;
        const size_t bytes = (size_t)(qv_tensor_rows(spec) * spec->k) * qv_dtype_bytes(dtype);
        assert_string_equal(spec->names[0], b->model->tower.tensors[id].names[0]);
        if (memcmp(qv_host_pointer(a->model->weights.buffers[id]),
                   qv_host_pointer(b->model->weights.buffers[id]), bytes))
            fail_msg("%s: tensor %s has other values", what, spec->names[0]);
    }
}

/* Returns the worst row's distance divided by its norm. */
static double
distance(const float *a, const float *b, size_t n, int64_t cols)
{
    double worst = 0;
    for (size_t row = 0; row < n; row += (size_t)cols) {
        double d = 0, norm = 0;
        for (size_t i = row; i < row + (size_t)cols; i++) {
            d += pow((double)a[i] - (double)b[i], 2);
            norm += pow((double)a[i], 2);
        }
        worst = fmax(worst, sqrt(d / norm));
        assert_true(isfinite(d) && norm > 0);
    }
    return worst;
}

/* Loads both. Their tokens must have the same bits (most 0), or differ by at most `most`. */
static void
same_model(const char *what, const char *folder, const char *file, qv_dtype dtype, double most)
{
    struct tiny a = tiny_open_family(folder, "ref", dtype, 1),
                b = tiny_open_family(file, "ref", dtype, 2);
    size_t n, m;
    float *wanted = tiny_fixed_tokens(&a, &n), *found = tiny_fixed_tokens(&b, &m);
    if (!most) {
        same_weights(what, &a, &b);
        assert_string_equal(a.info.digest, b.info.digest);
    }
    assert_string_equal(b.info.folder, file);
    assert_int_equal(n, m);
    const double d = distance(wanted, found, n / 4, a.info.out_hidden);
    if (most ? !(d <= most) : memcmp(wanted, found, n) != 0)
        fail_msg("%s: tokens are %.3g off", what, d);
    assert_true(a.info.n_deepstack == b.info.n_deepstack &&
                !memcmp(a.info.image.mean, b.info.image.mean, sizeof a.info.image.mean) &&
                !memcmp(a.info.video.std, b.info.video.std, sizeof a.info.video.std) &&
                a.info.video.processor == b.info.video.processor);
    assert_string_equal(b.info.warning, "");
    assert_non_null(strstr(b.info.note, "pixel bounds"));
    assert_string_equal(a.info.note, "");
}

static const struct {
    const char *name, *projector;
    uint32_t window;
} towers[] = {
    { "qwen2_vl", "qwen2vl_merger", 0 },       { "qwen2_5_vl", "qwen2.5vl_merger", 8 },
    { "qwen2_5_omni", "qwen2.5o", 8 },         { "qwen3_vl", "qwen3vl_merger", 0 },
    { "qwen3_omni_moe", "qwen3vl_merger", 0 }, { "qwen3_5", "qwen3vl_merger", 0 },
    { "qwen4_exp", "qwen3vl_merger", 0 },      { "glm4v", "glm4v", 0 },
};

/* Makes an Omni tower. Its first block has full attention, which GGUF cannot say (it has every
 * n-th from the n-th on), so here it is the second. */
static const char *
omni(void)
{
    static char dir[256];
    snprintf(dir, sizeof dir, "%s/omni", tempdir);
    if (mkdir(dir, 0700))
        return dir;
    json_t *config = json_load_file(QV_GOLDEN "/qwen2_5_omni/config.json", 0, NULL);
    json_t *vision = json_object_get(json_object_get(config, "thinker_config"), "vision_config");
    assert_int_equal(json_object_set_new(vision, "fullatt_block_indexes", json_pack("[i]", 1)), 0);
    assert_int_equal(json_dump_file(config, temp_path("omni/config.json"), 0), 0);
    json_decref(config);
    assert_int_equal(symlink(QV_GOLDEN "/qwen2_5_omni/model.safetensors",
                             temp_path("omni/model.safetensors")),
                     0);
    return dir;
}

static const char *
golden(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, QV_GOLDEN "/%s", name);
    return strcmp(name, "qwen2_5_omni") ? path : omni();
}

TEST(every_family_is_the_folder_it_was_made_of)
{
    static const struct {
        uint32_t type;
        double most;
    } types[] = { { F32_TYPE, 0 }, { BF16_TYPE, 0 }, { F16_TYPE, 2e-3 } };
    for (size_t i = 0; i < COUNT(towers); i++)
        for (size_t t = 0; t < COUNT(types); t++) {
            const struct mmproj_how how = { .projector = towers[i].projector,
                                            .type = types[t].type,
                                            .window = towers[i].window };
            char what[64];
            snprintf(what, sizeof what, "%s, type %u", towers[i].name, types[t].type);
            const char *file = mmproj_make(golden(towers[i].name), &how, "mmproj.gguf", NULL);
            same_model(what, golden(towers[i].name), file, QV_F32, types[t].most);
        }
}

/* Files as converters wrote them at other times. */
TEST(every_form_is_the_same_model)
{
    static const struct {
        int tower;
        struct mmproj_how how;
    } forms[] = {
        { 0, { .type = BF16_TYPE, .fused = true } },
        { 0, { .type = F32_TYPE, .swapped = true } },
        { 1, { .type = BF16_TYPE, .fused = true, .flat = true } },
        { 1, { .type = BF16_TYPE, .swapped = true } },
        { 2, { .type = BF16_TYPE, .fused = true } },
        { 3, { .type = BF16_TYPE, .split = true, .silent = true } },
        { 3, { .type = F32_TYPE, .type_of_k = BF16_TYPE, .split = true, .flat = true } },
        { 7, { .type = BF16_TYPE, .split = true, .flat = true, .silent = true } },
    };
    for (size_t i = 0; i < COUNT(forms); i++) {
        const int tower = forms[i].tower;
        struct mmproj_how how = forms[i].how;
        char what[64];
        how.projector = towers[tower].projector;
        how.window = towers[tower].window;
        snprintf(what, sizeof what, "form %zu of %s", i, towers[tower].name);
        const char *file = mmproj_make(golden(towers[tower].name), &how, "mmproj.gguf", NULL);
        if (how.silent) { /* the note says so */
            struct tiny t = tiny_open_family(file, "ref", QV_F32, 1);
            assert_non_null(strstr(t.info.note, "means, pixel bounds"));
        }
        same_model(what, golden(towers[tower].name), file, QV_F32, 0);
    }
}

/* Makes a folder with seeded weights, whose rows are blocks of 256. */
static const char *
wide_folder(void)
{
    static char dir[256];
    struct qv_config c;
    struct qv_tower tower;
    static struct qv_safetensor tensors[64];
    static char names[64][128];
    struct qv_safetensors_writer *w = NULL;
    snprintf(dir, sizeof dir, "%s/wide", tempdir);
    assert_int_equal(mkdir(dir, 0700), 0);
    temp_text("wide/config.json",
              "{\"model_type\":\"qwen3_vl\",\"vision_config\":{\"depth\":1,\"hidden_size\":64,"
              "\"intermediate_size\":256,\"num_heads\":2,\"patch_size\":4,\"out_hidden_size\":32,"
              "\"num_position_embeddings\":16,\"deepstack_visual_indexes\":[0]}}");
    temp_text("wide/preprocessor_config.json",
              "{\"image_mean\":[0.5,0.5,0.5],\"image_std\":[0.5,0.5,0.5]}");
    assert_ok(qv_config_read(dir, &c, ERR) || qv_tower_open(&c, &tower, ERR));
    assert_true(tower.n <= 64);
    for (size_t i = 0; i < tower.n; i++) {
        const struct qv_tensor_spec *spec = &tower.tensors[i];
        const bool flat = spec->form == QV_TENSOR_VECTOR || spec->form == QV_TENSOR_BIAS;
        const int64_t shape[5] = { spec->n, spec->conv3d ? 3 : spec->k, 2, 4, 4 };
        snprintf(names[i], sizeof names[0], "visual.%s", spec->names[0]);
        tensors[i] = (struct qv_safetensor){ .name = names[i],
                                             .dtype_name = "F32",
                                             .n_dims = spec->conv3d ? 5
                                                       : flat       ? 1
                                                                    : 2 };
        memcpy(tensors[i].shape, shape, sizeof shape);
    }
    assert_ok(qv_safetensors_writer_open(temp_path("wide/model.safetensors"), tensors, tower.n,
                                         NULL, 0, &w, ERR));
    for (size_t i = 0; i < tower.n; i++) {
        const int64_t n = tower.tensors[i].n * tower.tensors[i].k;
        float *x = test_alloc((size_t)n * sizeof *x);
        for (int64_t j = 0; j < n; j++)
            x[j] = (float)((j * 2654435761u >> 7) % 2001) * 1e-4f - 0.1f;
        assert_ok(qv_safetensors_writer_put(w, i, 0, x, (uint64_t)n * 4, ERR));
    }
    assert_ok(qv_safetensors_writer_finish(&w, ERR));
    qv_tower_close(&tower);
    return dir;
}

TEST(every_quantised_type_is_what_it_stands_for)
{
    static const uint32_t types[] = { 8, 2, 3, 6, 7, 12, 13, 14 };
    const char *wide = wide_folder();
    assert_int_equal(mkdir(temp_path("values"), 0700), 0);
    for (int i = 0; i < 2; i++) {
        static const char *const files[2] = { "config.json", "preprocessor_config.json" };
        char from[320], to[32];
        snprintf(from, sizeof from, "%s/%s", wide, files[i]);
        snprintf(to, sizeof to, "values/%s", files[i]);
        assert_int_equal(symlink(from, temp_path(to)), 0);
    }
    for (size_t i = 0; i < COUNT(types); i++)
        for (int split = 0; split < 2; split++) {
            const struct mmproj_how how = { .projector = "qwen3vl_merger",
                                            .type = types[i],
                                            .split = split,
                                            .flat = split,
                                            .type_of_k = split ? 8 : 0 };
            const char *values = temp_path("values/model.safetensors");
            const char *file = mmproj_make(wide, &how, "mmproj.gguf", values);
            char what[32];
            snprintf(what, sizeof what, "type %u", types[i]);
            same_model(what, temp_path("values"), file, QV_F32, 0);
            if (split)
                same_model(what, temp_path("values"), file, QV_BF16, 0);
            if (split)
                tiny_slices_are_the_same(file, "ref", &(qv_model_options){ .dtype = QV_F32 });
        }
}

/* ---- what a file says of itself -------------------------------------------------------------- */

static qv_status
load(const char *path, const qv_model_options *options, qv_model_info *info, qv_error *err)
{
    qv_context *ctx = NULL;
    qv_model *model = NULL;
    if (qv_context_open(&(qv_context_options){ .backend = "ref" }, &ctx, err))
        fail_msg("%s", err->text);
    const qv_status s = qv_model_load(ctx, path, options, &model, err);
    static char note[640], warning[640];
    if (!s) {
        qv_model_get_info(model, info);
        snprintf(note, sizeof note, "%s", info->note);
        snprintf(warning, sizeof warning, "%s", info->warning);
        info->note = note;
        info->warning = warning;
    } else {
        assert_null(model);
    }
    qv_model_free(&model);
    qv_context_close(&ctx);
    return s;
}

/* CLIP's means in a file of Qwen3-VL are reported, with the options that replace them. */
TEST(wrong_means_are_told_and_can_be_overruled)
{
    static const float clip[3] = { 0.48145466f, 0.4578275f, 0.40821073f };
    static const double half[3] = { 0.5, 0.5, 0.5 }, none[3] = { 0.5, 0, 0.5 };
    const struct mmproj_how how = { .projector = "qwen3vl_merger", .mean = clip };
    const char *file = mmproj_make(golden("qwen3_vl"), &how, "mmproj.gguf", NULL);
    qv_model_info info;
    qv_error err = { 0 };
    assert_ok(load(file, NULL, &info, ERR));
    for (int i = 0; i < 3; i++) {
        static const char *const words[] = { "clip.vision.image_mean", "--image-mean 0.5,0.5,0.5",
                                             "--image-std 0.5,0.5,0.5" };
        if (!strstr(info.warning, words[i]))
            fail_msg("\"%s\" is not in: %s", words[i], info.warning);
    }
    assert_true(info.image.mean[0] == 0.48145466 && info.video.std[2] == 0.27577711);
    qv_model_options options = { .image_mean = half };
    assert_ok(load(file, &options, &info, ERR));
    assert_true(*info.warning && info.image.mean[0] == 0.5 && info.video.mean[1] == 0.5);
    options.image_std = half;
    assert_ok(load(file, &options, &info, ERR));
    assert_string_equal(info.warning, "");
    assert_true(info.image.std[0] == 0.5 && info.video.std[1] == 0.5);
    options.image_std = none;
    expect_failure("std", QV_EINVAL, "image_std[1] is 0; it must be a number from 1e-06",
                   load(file, &options, &info, &err), &err);
    options = (qv_model_options){ .image_mean = (const double[]){ 0.25, 0.5, 0.5 } };
    assert_ok(load(golden("qwen3_vl"), &options, &info, ERR));
    /* this works for any checkpoint */
    assert_true(info.video.mean[0] == 0.25 && info.video.std[0] == 0.5);
}

TEST(what_is_no_tower_is_refused)
{
    static const struct {
        qv_status status;
        const char *words;
        struct mmproj_how how;
    } cases[] = {
        { QV_EUNSUPPORTED,
          "mmproj.gguf: general.architecture is \"qwen3vl\"; for a vision tower it is \"clip\"",
          .how.projector = "qwen3vl_merger", .how.architecture = "qwen3vl" },
        { QV_EUNSUPPORTED, "clip.projector_type is \"gemma3\"; known are qwen2vl_merger|glm4v",
          .how.projector = "gemma3" },
        { QV_EFORMAT, "clip.vision.block_count is missing", .how.projector = "qwen3vl_merger",
          .how.drop = "clip.vision.block_count" },
        { QV_EFORMAT, "clip.vision.projection_dim is missing", .how.projector = "qwen2.5vl_merger",
          .how.drop = "clip.vision.projection_dim" },
        { QV_EFORMAT,
          "clip.vision.window_size is 7; it must be a multiple of clip.vision.patch_size * "
          "clip.vision.spatial_merge_size",
          .how.projector = "qwen2.5vl_merger", .how.window = 7 },
        { QV_EFORMAT, "mmproj.gguf: no tensor v.blk.1.attn_out.weight",
          .how.projector = "qwen3vl_merger", .how.drop = "v.blk.1.attn_out.weight" },
        { QV_EFORMAT, "no tensor v.patch_embd.weight.1", .how.projector = "qwen3vl_merger",
          .how.drop = "v.patch_embd.weight.1" },
        { QV_EFORMAT, "tensor v.blk.0.ffn_up.weight is missing", .how.projector = "qwen3vl_merger",
          .how.drop = "v.blk.0.ffn_up.weight" },
        { QV_EFORMAT, "clip.vision.is_deepstack_layers is missing; it must be true for the blocks",
          .how.projector = "qwen3vl_merger", .how.drop = "clip.vision.is_deepstack_layers" },
        { QV_EFORMAT, "clip.vision.is_deepstack_layers is [true,false,true]; it must be true",
          .how.projector = "qwen3vl_merger", .how.drop = "v.deepstack.2.fc2.weight" },
        { QV_EFORMAT, "tensor v.deepstack.2.fc2.weight has shape [128,24]|require [24,128]",
          .how.projector = "qwen3vl_merger", .how.reshape = "v.deepstack.2.fc2.weight" },
        { QV_EFORMAT, "v.position_embd.weight has shape [32,36]", .how.projector = "qwen3vl_merger",
          .how.reshape = "v.position_embd.weight" },
        { QV_EFORMAT, "tensor \"mm.0.weight\" is Q2_K with rows of 128 values",
          .how.projector = "qwen3vl_merger", .how.window = 7, .how.type = 8,
          .how.as_type = "mm.0.weight" },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        qv_model_info info;
        qv_error err = { 0 };
        const bool old = strncmp(cases[i].how.projector, "qwen2.5", 7) == 0;
        const char *file = mmproj_make(golden(old ? "qwen2_5_vl" : "qwen3_vl"), &cases[i].how,
                                       "mmproj.gguf", NULL);
        expect_failure(cases[i].words, cases[i].status, cases[i].words,
                       load(file, NULL, &info, &err), &err);
    }
}

/* A type that is known and not read, and a vector in blocks. */
TEST(other_types_are_refused_by_name)
{
    static const char *const names[] = { "mm.0.weight", "mm.0.bias" };
    const char *wide = wide_folder();
    for (int i = 0; i < 2; i++) {
        const struct mmproj_how how = { .projector = "qwen3vl_merger",
                                        .type = 8,
                                        .as_type = names[i] };
        const char *file = mmproj_make(wide, &how, "mmproj.gguf", NULL);
        qv_model_info info;
        qv_error err = { 0 };
        char words[64];
        snprintf(words, sizeof words, "tensor %s is Q2_K|Q6_K can be", names[i]);
        expect_failure(names[i], QV_EUNSUPPORTED, words, load(file, NULL, &info, &err), &err);
    }
}

/* ---- which file ------------------------------------------------------------------------------ */

TEST(a_folder_with_one_mmproj_is_a_model)
{
    const struct mmproj_how how = { .projector = "qwen3vl_merger", .type = BF16_TYPE };
    qv_model_info info;
    qv_error err = { 0 };
    mmproj_make(golden("qwen3_vl"), &how, "mmproj-BF16.gguf", NULL);
    temp_text("model-Q4_K_M.gguf", "a language model's, which is not looked at");
    temp_text("config.json", "{ } "); /* GGUF files often come with such a file */
    assert_ok(load(tempdir, NULL, &info, ERR));
    assert_string_equal(info.model_type, "qwen3_vl");
    mmproj_make(golden("qwen3_vl"), &how, "MMPROJ-f16.GGUF", NULL);
    expect_failure("two", QV_EFORMAT, "has 2 GGUF files|MMPROJ-f16.GGUF|mmproj-BF16.gguf|name one",
                   load(tempdir, NULL, &info, &err), &err);
    temp_text("model.safetensors", "");
    expect_failure("safetensors", QV_EFORMAT, "config.json: model_type is missing",
                   load(tempdir, NULL, &info, &err), &err);
    expect_failure("a text", QV_EFORMAT,
                   "config.json: is neither a checkpoint folder nor a GGUF file",
                   load(temp_path("config.json"), NULL, &info, &err), &err);
}

TEST(what_the_tower_does_not_use_is_found)
{
    const struct mmproj_how how = { .projector = "qwen3vl_merger" };
    const char *file = mmproj_make(golden("qwen3_vl"), &how, "mmproj.gguf", NULL);
    struct tiny t = tiny_open_family(file, "ref", QV_F32, 1);
    struct qv_leftover l;
    assert_ok(qv_leftover_find(file, &t.model->config, &t.model->tower, &l, ERR));
    assert_true(!l.of_tower && !l.of_others);
}

TEST_EACH(tempdir_make, tempdir_remove);
