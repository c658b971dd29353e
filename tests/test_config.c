/* SPDX-License-Identifier: MIT */
/* Tests reading configuration files: the defaults of transformers, and an error text for everything
 * that is wrong. */

#include "test.h"

#include "towers/read_config.h"
#include "engine/op.h"
#include "tempdir.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))
#define OF(family, fields) "{\"model_type\":\"" family "\",\"vision_config\":{" fields "}}"
#define VISION(fields) "{\"model_type\":\"qwen3_vl\",\"vision_config\":{" fields "}}"

/* are({ value, what it must be }, ...) */
#define are(...)                                                                                   \
    are_equal(#__VA_ARGS__, (const int64_t[][2]){ __VA_ARGS__ },                                   \
              sizeof((const int64_t[][2]){ __VA_ARGS__ }) / sizeof(int64_t[2]))

static void
are_equal(const char *text, const int64_t (*pairs)[2], size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (pairs[i][0] != pairs[i][1])
            fail_msg("value %zu is %lld: %s", i, (long long)pairs[i][0], text);
}

static struct qv_config
read_ok(void)
{
    struct qv_config c;
    assert_ok(qv_config_read(tempdir, &c, ERR));
    return c;
}

static struct qv_config
config_of(const char *text)
{
    temp_text("config.json", text);
    return read_ok();
}

static void
expect_read_failure(const char *what, qv_status status, const char *words)
{
    struct qv_config c, before;
    qv_error err = { 0 };
    memset(&c, 0xa5, sizeof c);
    memcpy(&before, &c, sizeof c);
    const qv_status s = qv_config_read(tempdir, &c, &err);
    expect_failure(what, status, words, s, &err);
    assert_memory_equal(&c, &before, sizeof c);
    assert_int_equal(qv_config_read(tempdir, &c, NULL), status);
}

/* Writes a file of that text, which must be refused with its path. */
static void
expect_refused(const char *file, const char *text, qv_status status, const char *words)
{
    char all[256];
    temp_text(file, text);
    snprintf(all, sizeof all, "/%s|%s", file, words);
    expect_read_failure(text, status, all);
}

/* ---- what is right -------------------------------------------------------------------------- */

TEST(keys_left_out_take_class_defaults)
{
    const struct qv_config c = config_of(VISION(""));
    assert_string_equal(c.model_type, "qwen3_vl");
    are({ c.depth, 27 }, { c.hidden, 1152 }, { c.heads, 16 }, { c.intermediate, 4304 },
        { c.out_hidden, 3584 }, { c.in_channels, 3 }, { c.patch, 16 }, { c.temporal, 2 },
        { c.merge, 2 }, { c.n_positions, 2304 }, { c.n_deepstack, 3 }, { c.deepstack[0], 8 },
        { c.deepstack[1], 16 }, { c.deepstack[2], 24 }, { c.act, QV_ACT_GELU_TANH });
    assert_true(c.rope_theta == 10000.0 && c.norm_eps == 1e-6);
    assert_int_equal(qv_config_head_dim(&c), 72);
    assert_int_equal(qv_config_row_dim(&c), 1536);

    assert_int_equal(c.image.min_pixels, 56 * 56);
    assert_int_equal(c.image.max_pixels, 28 * 28 * 1280);
    assert_true(c.image.mean[0] == 0.48145466 && c.image.std[2] == 0.27577711);
    are({ c.image.patch_size, 16 }, { c.video.min_pixels, 128 * 32 * 32 },
        { c.video.max_pixels, 768 * 32 * 32 });
    assert_true(c.video.mean[0] == 0.5 && c.video.std[2] == 0.5 && c.video.fps == 2.0);
    are({ c.video.min_frames, 4 }, { c.video.max_frames, 768 }, { c.video.temporal_patch_size, 2 },
        { c.video.merge_size, 2 });
}

TEST(every_key_is_read)
{
    const struct qv_config c = config_of(VISION(
        "\"depth\":4,\"hidden_size\":64,\"num_heads\":2,\"intermediate_size\":96,"
        "\"out_hidden_size\":48,\"in_channels\":3,\"patch_size\":[8,8],\"temporal_patch_size\":4,"
        "\"spatial_merge_size\":1,\"num_position_embeddings\":49,\"hidden_act\":\"gelu\","
        "\"deepstack_visual_indexes\":[0,1,3],"
        "\"rope_parameters\":{\"rope_type\":\"axial\",\"rope_theta\":500.5}"));
    are({ c.depth, 4 }, { c.hidden, 64 }, { c.heads, 2 }, { c.intermediate, 96 },
        { c.out_hidden, 48 }, { c.in_channels, 3 }, { c.patch, 8 }, { c.temporal, 4 },
        { c.merge, 1 }, { c.n_positions, 49 }, { c.act, QV_ACT_GELU_ERF }, { c.n_deepstack, 3 },
        { c.deepstack[0], 0 }, { c.deepstack[1], 1 }, { c.deepstack[2], 3 });
    assert_true(c.rope_theta == 500.5);
    assert_int_equal(c.video.patch_size, 8);
    assert_int_equal(c.image.temporal_patch_size, 4);
}

/* The keys that the older families leave out, and the Omni models, whose vision config is nested
 * one level deeper. */
TEST(families_have_their_own_defaults)
{
    struct qv_config c = config_of(OF("qwen2_vl", ""));
    are({ c.depth, 32 }, { c.hidden, 1280 },
        { c.intermediate, 5120 } /* This is mlp_ratio times hidden. */);
    assert_int_equal(c.out_hidden, 3584); /* It is called hidden_size there. */
    are({ c.patch, 14 }, { c.n_positions, 0 }, { c.window, 0 }, { c.act, QV_ACT_GELU_QUICK });
    c = config_of(OF("qwen2_vl", "\"embed_dim\":64,\"hidden_size\":48,\"mlp_ratio\":3"));
    are({ c.hidden, 64 }, { c.out_hidden, 48 }, { c.intermediate, 192 });

    c = config_of(OF("qwen2_5_vl", "\"hidden_size\":1280"));
    are({ c.intermediate, 3420 }, { qv_config_window_cells(&c), 4 }, { c.act, QV_ACT_SILU });
    for (int64_t i = 0; i < c.depth; i++)
        assert_int_equal(c.full_attention[i], i % 8 == 7);
    c = config_of(OF("qwen2_5_vl", "\"fullatt_block_indexes\":[],\"window_size\":56"));
    assert_int_equal(qv_config_window_cells(&c), 2);
    for (int64_t i = 0; i < c.depth; i++)
        assert_false(c.full_attention[i]);

    c = config_of(OF("glm4v_moe", ""));
    assert_string_equal(c.model_type, "glm4v_moe");
    are({ c.hidden, 1536 }, { c.intermediate, 4096 }, /* As wide as the tokens. */
        { c.out_hidden, 4096 },
        { c.merger_intermediate, 13696 }, /* intermediate_size belongs to the merger. */
        { c.n_positions, 24 * 24 });
    assert_true(c.norm_eps == 1e-5);
    c = config_of("{\"model_type\":\"glm4v_vision\",\"depth\":2,\"patch_size\":[14,14],"
                  "\"image_size\":100,\"rms_norm_eps\":1e-6,\"attention_bias\":false}");
    assert_string_equal(c.model_type, "glm4v");
    assert_int_equal(c.n_positions, 49);
    assert_true(c.norm_eps == 1e-6);

    c = config_of("{\"model_type\":\"qwen2_5_omni\",\"thinker_config\":{\"vision_config\":"
                  "{\"hidden_size\":1280,\"depth\":9}}}");
    assert_string_equal(c.model_type, "qwen2_5_omni");
    assert_int_equal(c.depth, 9);
    assert_true(c.full_attention[7] && !c.full_attention[8]);
    c = config_of("{\"model_type\":\"qwen3_omni_moe\",\"thinker_config\":{\"vision_config\":{}}}");
    assert_int_equal(c.n_positions, 2304);
    assert_int_equal(c.n_deepstack, 3);
    c = config_of("{\"model_type\":\"qwen3_omni_moe_thinker\",\"vision_config\":{}}");
    assert_string_equal(c.model_type, "qwen3_omni_moe");
}

TEST(other_spellings_are_the_same)
{
    assert_int_equal(config_of(VISION("\"num_hidden_layers\":25")).depth, 25);
    assert_int_equal(config_of(VISION("\"num_attention_heads\":8")).heads, 8);
    assert_true(config_of(VISION("\"rope_theta\":99.0")).rope_theta == 99.0);
    assert_true(config_of(VISION("\"rope_parameters\":null")).rope_theta == 10000.0);
    assert_true(config_of(VISION("\"rope_parameters\":{\"type\":\"default\",\"rope_theta\":7}"))
                    .rope_theta == 7.0);
    assert_int_equal(config_of(VISION("\"deepstack_visual_indexes\":[]")).n_deepstack, 0);
}

TEST(families_are_told_apart)
{
    static const struct {
        const char *text, *model_type;
        int n_deepstack;
    } cases[] = {
        { "{\"model_type\":\"qwen3_vl_moe\",\"vision_config\":{}}", "qwen3_vl_moe", 3 },
        { "{\"model_type\":\"cohere_compass\",\"vision_config\":{}}", "cohere_compass", 3 },
        { "{\"model_type\":\"qwen3_5\",\"vision_config\":{\"deepstack_visual_indexes\":[]}}",
          "qwen3_5", 0 },
        { "{\"model_type\":\"qwen3_5_moe\",\"vision_config\":{}}", "qwen3_5_moe", 0 },
        { "{\"model_type\":\"qwen4_exp\",\"vision_config\":{\"model_type\":\"qwen4_exp_vision\"}}",
          "qwen4_exp", 0 },
        { "{\"vision_config\":{\"model_type\":\"qwen4_exp_vision\"}}", "qwen4_exp", 0 },
        { "{\"model_type\":\"colqwen\",\"vision_config\":{\"model_type\":\"qwen3_vl\"}}",
          "qwen3_vl", 3 },
        { "{\"model_type\":\"qwen3_vl_vision\",\"depth\":30,\"patch_size\":16}", "qwen3_vl", 3 },
        { "{\"model_type\":\"qwen3_5\",\"depth\":1,\"patch_size\":16}", "qwen3_5", 0 },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const struct qv_config c = config_of(cases[i].text);
        assert_string_equal(c.model_type, cases[i].model_type);
        assert_int_equal(c.n_deepstack, cases[i].n_deepstack);
    }
}

/* ---- config.json, wrong --------------------------------------------------------------------- */

TEST(sizes_must_be_sane_integers)
{
    static const char *const keys[] = {
        "depth",
        "hidden_size",
        "num_heads",
        "intermediate_size",
        "out_hidden_size",
        "in_channels",
        "patch_size",
        "temporal_patch_size",
        "spatial_merge_size",
        "num_position_embeddings",
    };
    static const char *const values[] = {
        "0",  "-1", "2147483648", "9223372036854775807", "16.0", "1e1", "true", "\"16\"", "null",
        "[]", "{}", "[16,8]",     "[16,16,16]",
    };
    for (size_t k = 0; k < COUNT(keys); k++) {
        for (size_t v = 0; v < COUNT(values); v++) {
            char text[256], words[128];
            snprintf(text, sizeof text, VISION("\"%s\":%s"), keys[k], values[v]);
            snprintf(words, sizeof words, "vision_config.%s is|integer from 1 to", keys[k]);
            expect_refused("config.json", text, QV_EFORMAT, words);
        }
    }
    expect_refused("config.json", VISION("\"temporal_patch_size\":[2,2]"), QV_EFORMAT,
                   "temporal_patch_size is [2,2]");
    expect_refused("config.json", VISION("\"depth\":-1"), QV_EFORMAT,
                   "vision_config.depth is -1|from 1 to 512");
}

TEST(bad_fields_are_refused)
{
    static const struct {
        const char *text, *words;
    } wrong[] = {
        /* Fields that contradict each other. */
        { VISION("\"num_heads\":7"), "hidden_size is 1152|num_heads (7)" },
        { VISION("\"hidden_size\":66,\"num_heads\":3"), "66 / 3 = 22|multiple of 4" },
        { VISION("\"num_position_embeddings\":2305"), "num_position_embeddings is 2305|square" },
        { VISION("\"num_position_embeddings\":2"), "is 2;|square" },
        /* DeepStack. */
        { VISION("\"deepstack_visual_indexes\":[27]"),
          "vision_config.deepstack_visual_indexes is 27|0 to 26" },
        { VISION("\"deepstack_visual_indexes\":[-1]"), "is -1" },
        { VISION("\"deepstack_visual_indexes\":[1.0]"), "is 1.0" },
        { VISION("\"deepstack_visual_indexes\":[true]"), "is true" },
        { VISION("\"deepstack_visual_indexes\":[0,1,2,3,4,5,6,7,8]"), "at most 8" },
        { VISION("\"deepstack_visual_indexes\":8"), "is 8;" },
        { VISION("\"deepstack_visual_indexes\":null"), "is null" },
        { VISION("\"depth\":24"), "deepstack_visual_indexes|default|24" },
        { "{\"model_type\":\"exaone4_5\",\"vision_config\":{\"num_key_value_heads\":6}}",
          "num_heads is 16; it must be a multiple of|num_key_value_heads (6)" },
        /* Activation and rotary embedding. */
        /* Windows. */
        { OF("qwen2_5_vl", "\"window_size\":100"),
          "vision_config.window_size is 100|multiple of patch_size * spatial_merge_size, 28" },
        { OF("qwen2_5_vl", "\"window_size\":0"), "window_size is 0" },
        { OF("qwen2_5_vl", "\"fullatt_block_indexes\":[7,32]"),
          "vision_config.fullatt_block_indexes is 32|0 to 31" },
        { OF("qwen2_5_vl", "\"fullatt_block_indexes\":[-1]"), "is -1" },
        { OF("qwen2_5_vl", "\"fullatt_block_indexes\":7"), "is 7;|list of block" },
        { OF("qwen2_vl", "\"embed_dim\":100,\"num_heads\":3"), "embed_dim is 100|num_heads (3)" },
        { OF("glm4v", "\"image_size\":13"), "vision_config.image_size is 13|patch_size is 14" },
        { OF("glm4v", "\"image_size\":[336,336]"), "image_size is [336,336]" },
        { OF("glm4v", "\"attention_bias\":1"), "attention_bias is 1|true or false" },
        { OF("glm4v", "\"rms_norm_eps\":-1e-5"), "vision_config.rms_norm_eps is -1" },
        { OF("glm4v", "\"out_hidden_size\":0"), "out_hidden_size is 0" },
        { OF("glm4v", "\"num_heads\":7"), "hidden_size is 1536|num_heads (7)" },
        { OF("qwen2_vl", "\"mlp_ratio\":99"), "mlp_ratio is 99|1 to 16" },
        { "{\"model_type\":\"qwen2_5_omni\",\"thinker_config\":{}}", "vision_config is missing" },
        { "{\"model_type\":\"qwen3_omni_moe\","
          "\"thinker_config\":{\"vision_config\":{\"depth\":0}}}",
          "thinker_config.vision_config.depth is 0" },
        { VISION("\"hidden_act\":1"), "hidden_act is 1|string" },
        { VISION("\"rope_parameters\":[]"), "rope_parameters is []|object" },
        { VISION("\"rope_parameters\":{\"rope_theta\":0}"), "rope_theta is 0" },
        { VISION("\"rope_parameters\":{\"rope_theta\":\"1\"}"), "rope_theta is \"1\"" },
        /* Family. */
        { "{\"model_type\":\"qwen3_vl\"}", "vision_config is missing" },
        { "{\"model_type\":3,\"vision_config\":{}}", "model_type is 3" },
        { "{\"vision_config\":{}}", "model_type is missing" },
        { "{\"model_type\":\"qwen3_vl\",\"vision_config\":[]}", "vision_config is []|object" },
    }, unsupported[] = {
        { VISION("\"in_channels\":1"), "vision_config.in_channels is 1|only 3" },
        { VISION("\"in_channels\":4"), "vision_config.in_channels is 4|only 3" },
        { VISION("\"deepstack_visual_indexes\":[8,9,9]"), "[8,9,9]|ascend" },
        { VISION("\"deepstack_visual_indexes\":[8,24,16]"), "[8,24,16]|ascend" },
        { "{\"model_type\":\"qwen3_5\",\"vision_config\":{\"deepstack_visual_indexes\":[5]}}",
          "deepstack_visual_indexes is [5]|qwen3_5 has no DeepStack" },
        { VISION("\"hidden_act\":\"silu\""),
          "vision_config.hidden_act is \"silu\"|gelu_pytorch_tanh" },
        { OF("qwen2_5_vl", "\"hidden_act\":\"gelu\""),
          "vision_config.hidden_act is \"gelu\"|\"silu\"" },
        { OF("glm4v", "\"attention_bias\":true"),
          "vision_config.attention_bias is true|only false" },
        { OF("glm4v", "\"hidden_act\":\"gelu\""), "hidden_act is \"gelu\"" },
        { OF("glm4v", "\"deepstack_visual_indexes\":[0]"), "glm4v has no DeepStack" },
        { VISION("\"rope_parameters\":{\"rope_type\":\"yarn\"}"), "rope_type is \"yarn\"|axial" },
        { "{\"model_type\":\"qwen_vl\",\"vision_config\":{}}",
          "model_type is \"qwen_vl\"|an unknown family; supported are|qwen3_vl, " },
        { "{\"model_type\":\"llava\",\"vision_config\":{\"model_type\":\"clip\"}}",
          "model_type is \"llava\"|an unknown family|qwen2_vl, qwen2_5_vl, qwen2_5_omni, "
          "exaone4_5, qwen3_vl, qwen3_vl_moe, cohere_compass, qwen3_omni_moe, qwen3_5, "
          "qwen3_5_moe, "
          "qwen4_exp, glm4v, glm4v_moe" },
        { "{\"model_type\":\"_vision\",\"vision_config\":{}}", "an unknown family" },
        { "{\"model_type\":\"qwen3\"}", "\"qwen3\"|an unknown family" },
    };
    EACH (c, wrong)
        expect_refused("config.json", c->text, QV_EFORMAT, c->words);
    EACH (c, unsupported)
        expect_refused("config.json", c->text, QV_EUNSUPPORTED, c->words);
}

TEST(bad_files_are_refused)
{
    static const struct {
        const char *text, *words;
    } cases[] = {
        { "", "empty" },
        { "\n\n{\"a\":,}", "line 3" },
        { "[]", "the top level is []|object" },
        { VISION("\"depth\":NaN"), "line 1" },
        { VISION("\"depth\":Infinity"), "line 1" },
        { VISION("\"depth\":18446744073709551616"), "line 1|too big" },
        { VISION("\"depth\":1,\"depth\":2"), "duplicate" },
        { VISION("\"de\\u0000pth\":1"), "NUL" },
        { VISION("\"depth\":\"\\u0000\""), "u0000" },
        { "version https://git-lfs.github.com/spec/v1\n", "Git-LFS" },
        { "<!doctype html>", "HTML" },
        { "\x1f\x8b\x08", "gzip" },
        { "\xef\xbb\xbf{}", "byte order mark" },
        { "{} {}", "line 1" },
    };
    EACH (c, cases)
        expect_refused("config.json", c->text, QV_EFORMAT, c->words);
    assert_int_equal(truncate(temp_path("config.json"), ((off_t)4 << 20) + 1), 0);
    expect_read_failure("large", QV_EFORMAT, "config.json|4194305|at most 4194304");
    assert_int_equal(unlink(temp_path("config.json")), 0);
    expect_read_failure("none", QV_EIO, "config.json|cannot be opened");
    assert_int_equal(mkfifo(temp_path("config.json"), 0600), 0);
    expect_read_failure("fifo", QV_EIO, "config.json|FIFO");
}

/* ---- preprocessor files --------------------------------------------------------------------- */

#define VIDEO "video_preprocessor_config.json"
#define IMAGE "preprocessor_config.json"

TEST(preprocessing_is_read)
{
    temp_text(IMAGE, "{\"size\":{\"shortest_edge\":65536,\"longest_edge\":16777216},"
                     "\"patch_size\":16,\"temporal_patch_size\":2,\"merge_size\":2,"
                     "\"image_mean\":[0.1,0.2,0.3],\"image_std\":[0.4,0.5,1],\"resample\":3,"
                     "\"do_resize\":true,\"do_rescale\":true,\"do_normalize\":true,"
                     "\"do_convert_rgb\":true,\"do_pad\":null,\"do_center_crop\":false,"
                     "\"rescale_factor\":0.00392156862745098}");
    temp_text(VIDEO, "{\"size\":{\"shortest_edge\":4096,\"longest_edge\":25165824},"
                     "\"image_mean\":[0,0,0],\"fps\":1.5,\"min_frames\":2,\"max_frames\":9,"
                     "\"num_frames\":null,\"do_sample_frames\":true,\"min_pixels\":77}");
    const struct qv_config c = config_of(VISION(""));
    assert_int_equal(c.image.min_pixels, 65536);
    assert_int_equal(c.image.max_pixels, 16777216);
    assert_true(c.image.mean[0] == 0.1 && c.image.mean[2] == 0.3);
    assert_true(c.image.std[0] == 0.4 && c.image.std[2] == 1.0);
    assert_int_equal(c.video.min_pixels, 4096); /* shortest_edge; clips have no min_pixels */
    assert_int_equal(c.video.max_pixels, 25165824);
    assert_true(c.video.mean[1] == 0.0 && c.video.std[1] == 0.5 && c.video.fps == 1.5);
    assert_int_equal(c.video.min_frames, 2);
    assert_int_equal(c.video.max_frames, 9);
}

TEST(files_come_in_the_order_of_transformers)
{
    temp_text(IMAGE, "{\"size\":{\"shortest_edge\":100,\"longest_edge\":200}}");
    struct qv_config c = config_of(VISION(""));
    assert_int_equal(c.image.min_pixels, 100);
    assert_int_equal(c.video.min_pixels, 100);
    assert_true(c.image.mean[0] == 0.48145466 && c.video.mean[0] == 0.5);

    temp_text(VIDEO, "{\"size\":{\"shortest_edge\":300,\"longest_edge\":400}}");
    c = read_ok();
    assert_int_equal(c.image.min_pixels, 100);
    assert_int_equal(c.video.min_pixels, 300);

    temp_text("processor_config.json", "{\"processor_class\":\"Qwen3VLProcessor\"}");
    c = read_ok();
    assert_int_equal(c.video.min_pixels, 300);

    temp_text("processor_config.json",
              "{\"video_processor\":{\"size\":{\"shortest_edge\":5,\"longest_edge\":6}}}");
    c = read_ok();
    assert_int_equal(c.image.min_pixels, 100);
    assert_int_equal(c.video.min_pixels, 5);

    temp_text("processor_config.json", "{\"image_processor\":{\"image_std\":[1,1,0]}}");
    expect_read_failure("nested", QV_EFORMAT, "processor_config.json|image_processor.image_std is");
    temp_text("processor_config.json", "{\"image_processor\":3}");
    expect_read_failure("nested", QV_EFORMAT, "processor_config.json|image_processor is 3");
}

#define NONE "{\"image_processor\":{},\"video_processor\":{}}"

/* A folder without preprocessor files gets transformers' class defaults and a warning: which files
 * are missing, and whose sizes and means were assumed. If nothing is missing there is no
 * warning. */
TEST(missing_files_are_told)
{
    static const struct {
        const char *type, *image, *video, *both; /* contents; NULL: the file does not exist */
        const char *words, *not ;                /* of the warning; NULL: there is none */
    } folders[] = {
        { "qwen3_vl", NULL, NULL, NULL,
          ": missing: " IMAGE ", " VIDEO ".|Images use the defaults of transformers' "
          "Qwen2VLImageProcessor: 3136 to 1003520 pixels, mean 0.481455|Clips use the defaults of "
          "transformers' Qwen3VLVideoProcessor: 131072 to 786432 pixels, mean 0.5 0.5 0.5, std 0.5 "
          "0.5 0.5, 2 frames per second|published checkpoint",
          "per frame" },
        { "qwen3_vl", NULL, "{}", NULL, ": missing: " IMAGE ".|Qwen2VLImageProcessor", "Clips" },
        { "qwen3_vl", "{}", NULL, NULL,
          ": missing: " VIDEO ".|Clips use the values of " IMAGE ", as in transformers",
          "defaults" },
        { "qwen3_vl", NULL, NULL, "{\"image_processor\":{}}",
          ": missing: " VIDEO ".|Qwen3VLVideoProcessor", "Images" },
        { "qwen3_vl", NULL, NULL, "{\"video_processor\":{}}",
          ": missing: " IMAGE ".|Qwen2VLImageProcessor", "Clips" },
        { "qwen2_5_vl", NULL, NULL, NULL,
          ": missing: " IMAGE ".|Qwen2VLVideoProcessor: 100352 to 602112 pixels per frame", VIDEO },
        { "glm4v", NULL, NULL, NULL,
          ": missing: " IMAGE ".|Glm4vImageProcessor: 12544 to|Glm4vVideoProcessor", VIDEO },
        { "qwen3_vl", "{}", "{}", NULL, NULL, NULL },
        { "qwen3_vl", NULL, NULL, NONE, NULL, NULL },
        { "qwen2_vl", "{}", NULL, NULL, NULL, NULL },
        { "qwen3_omni_moe", "{}", NULL, NULL, NULL, NULL },
        { "glm4v", "{}", NULL, NULL, NULL, NULL },
    };
    for (size_t i = 0; i < COUNT(folders); i++) {
        const char *const files[][2] = { { IMAGE, folders[i].image },
                                         { VIDEO, folders[i].video },
                                         { "processor_config.json", folders[i].both } };
        char text[128], words[512];
        for (size_t f = 0; f < COUNT(files); f++) {
            unlink(temp_path(files[f][0]));
            if (files[f][1])
                temp_text(files[f][0], files[f][1]);
        }
        snprintf(text, sizeof text, OF("%s", ""), folders[i].type);
        const struct qv_config c = config_of(text);
        if (!folders[i].words) {
            assert_string_equal(c.warning, "");
            continue;
        }
        for (char *word = strtok(strcpy(words, folders[i].words), "|"); word;
             word = strtok(NULL, "|"))
            if (!strstr(c.warning, word))
                fail_msg("\"%s\" is not in: %s", word, c.warning);
        assert_true(strlen(c.warning) + 160 < sizeof c.warning); /* a long path fits as well */
        assert_ptr_equal(strstr(c.warning, tempdir), c.warning);
        if (strstr(c.warning, folders[i].not ))
            fail_msg("\"%s\" is in: %s", folders[i].not, c.warning);
    }
    const double half[3] = { 0.5, 0.5, 0.5 };
    unlink(temp_path("processor_config.json"));
    unlink(temp_path(IMAGE));
    struct qv_config c = config_of(VISION(""));
    qv_config_overrule(&c, half, half); /* sizes stay in doubt */
    assert_string_not_equal(c.warning, "");
}

TEST(old_names_of_image_sizes_win)
{
    temp_text(IMAGE, "{\"min_pixels\":3136,\"max_pixels\":12845056}");
    struct qv_config c = config_of(VISION(""));
    assert_int_equal(c.image.min_pixels, 3136);
    assert_int_equal(c.image.max_pixels, 12845056);
    temp_text(IMAGE, "{\"min_pixels\":50,\"size\":{\"shortest_edge\":1,\"longest_edge\":200}}");
    temp_text(VIDEO, "{}");
    c = read_ok();
    assert_int_equal(c.image.min_pixels, 50);
    assert_int_equal(c.image.max_pixels, 200);
    expect_refused(IMAGE, "{\"min_pixels\":50,\"max_pixels\":40}", QV_EFORMAT, "50|40");
}

/* The processors of Qwen2-VL and Qwen2.5-VL have other defaults, and use the old names of sizes for
 * clips too. */
TEST(processors_differ_by_family)
{
    static const struct qv_family family = { .processor = QV_PROCESSOR_QWEN2_VL };
    struct qv_config c = { .family = &family, .patch = 14, .temporal = 2, .merge = 2 };
    qv_error err;
    assert_ok(qv_preprocess_read(temp_path(""), &c, ERR));
    are({ c.video.processor, QV_PROCESSOR_QWEN2_VL }, { c.video.min_pixels, 128 * 28 * 28 },
        { c.video.max_pixels, 768 * 28 * 28 }, { c.image.max_pixels, 1280 * 28 * 28 });
    assert_true(c.video.mean[0] == 0.48145466 && c.video.std[2] == 0.27577711);
    assert_true(c.video.fps == 2.0 && c.video.min_frames == 4 && c.video.max_frames == 768);
    assert_int_equal(c.video.patch_size, 14);

    temp_text(IMAGE, "{\"min_pixels\":3136,\"max_pixels\":12845056,\"patch_size\":14}");
    assert_ok(qv_preprocess_read(temp_path(""), &c, ERR));
    are({ c.image.max_pixels, 12845056 }, { c.video.min_pixels, 3136 },
        { c.video.max_pixels, 12845056 });

    static const struct qv_family omni = { .processor = QV_PROCESSOR_QWEN2_VL,
                                           .own_clip_sizes = true };
    c.family = &omni;
    assert_ok(qv_preprocess_read(temp_path(""), &c, ERR));
    are({ c.image.max_pixels, 12845056 }, { c.video.min_pixels, 128 * 28 * 28 },
        { c.video.max_pixels, 768 * 28 * 28 });
    c.family = &family;

    temp_text(VIDEO, "{\"do_sample_frames\":false,\"fps\":null,\"image_mean\":[0,0,0]}");
    assert_ok(qv_preprocess_read(temp_path(""), &c, ERR));
    assert_int_equal(c.video.min_pixels, 128 * 28 * 28);
    assert_true(c.video.mean[1] == 0.0 && c.video.fps == 2.0);
    temp_text(VIDEO, "{\"do_sample_frames\":0}");
    assert_int_equal(qv_preprocess_read(temp_path(""), &c, &err), QV_EFORMAT);
    temp_text(VIDEO, "{\"cap_pixels_per_frame\":true}");
    assert_int_equal(qv_preprocess_read(temp_path(""), &c, &err), QV_EUNSUPPORTED);
    temp_text(VIDEO, "{}");
    temp_text(IMAGE, "{}");
    const struct qv_config qwen3 = config_of(VISION(""));
    assert_int_equal(qwen3.video.processor, QV_PROCESSOR_QWEN3_VL);
}

/* Glm4vImageProcessor and Glm4vVideoProcessor have no old names, and take frames by seconds
 * only. */
TEST(glm_processors_are_read)
{
    const char *glm = OF("glm4v", "");
    struct qv_config c = config_of(glm);
    are({ c.image.processor, QV_PROCESSOR_GLM4V }, { c.image.min_pixels, 112 * 112 },
        { c.image.max_pixels, 15000 * 28 * 28 }, { c.video.processor, QV_PROCESSOR_GLM4V },
        { c.video.min_pixels, 112 * 112 }, { c.video.max_pixels, 60000 * 28 * 28 });
    assert_true(c.video.fps == 2.0 && c.video.max_duration == 300.0);
    assert_true(c.video.mean[0] == 0.48145466 && c.image.std[2] == 0.27577711);

    temp_text(IMAGE, "{\"min_pixels\":7,\"max_pixels\":8}");
    temp_text(VIDEO, "{\"num_frames\":16,\"max_duration\":60,\"fps\":1,\"min_frames\":0,"
                     "\"max_image_size\":{\"longest_edge\":1}}");
    c = config_of(glm);
    assert_int_equal(c.image.min_pixels, 112 * 112);
    assert_true(c.video.fps == 1.0 && c.video.max_duration == 60.0);
    expect_refused(VIDEO, "{\"max_duration\":0}", QV_EFORMAT, "max_duration is 0");
    expect_refused(VIDEO, "{\"do_sample_frames\":false}", QV_EUNSUPPORTED,
                   "do_sample_frames is false");
}

TEST(bad_preprocessing_is_refused)
{
    static const struct {
        const char *text;
        qv_status status;
        const char *words;
    } both[] = {
        /* Each is read as an image's file and as a clip's file. */
        { "[]", QV_EFORMAT, "object" },
        { "{\"patch_size\":14}", QV_EFORMAT, "patch_size is 14|config.json's patch_size is 16" },
        { "{\"temporal_patch_size\":1}", QV_EFORMAT, "temporal_patch_size is 1|is 2" },
        { "{\"merge_size\":4}", QV_EFORMAT, "merge_size is 4|spatial_merge_size is 2" },
        { "{\"patch_size\":16.0}", QV_EFORMAT, "patch_size is 16.0" },
        { "{\"patch_size\":4294967312}", QV_EFORMAT, "patch_size is 4294967312" },
        { "{\"rescale_factor\":0.0078125}", QV_EUNSUPPORTED, "rescale_factor is 0.0078125|1/255" },
        { "{\"rescale_factor\":\"1/255\"}", QV_EUNSUPPORTED, "rescale_factor" },
        { "{\"do_resize\":false}", QV_EUNSUPPORTED, "do_resize is false" },
        { "{\"do_rescale\":false}", QV_EUNSUPPORTED, "do_rescale is false" },
        { "{\"do_normalize\":false}", QV_EUNSUPPORTED, "do_normalize is false" },
        { "{\"do_convert_rgb\":false}", QV_EUNSUPPORTED, "do_convert_rgb is false" },
        { "{\"do_convert_rgb\":1}", QV_EFORMAT, "do_convert_rgb is 1|true or false" },
        { "{\"resample\":2}", QV_EUNSUPPORTED, "resample is 2|bicubic" },
        { "{\"image_mean\":0.5}", QV_EFORMAT, "image_mean is 0.5|3 numbers" },
        { "{\"image_mean\":[0.5,0.5]}", QV_EFORMAT, "image_mean is [0.5,0.5]" },
        { "{\"image_mean\":[0.5,0.5,0.5,0.5]}", QV_EFORMAT, "image_mean is [0.5,0.5,0.5,0.5]" },
        { "{\"image_mean\":[0.5,0.5,\"0\"]}", QV_EFORMAT, "image_mean" },
        { "{\"image_mean\":[0.5,0.5,1001]}", QV_EFORMAT,
          "image_mean is|numbers from -1000 to 1000" },
        { "{\"image_std\":[0.5,0.5,0]}", QV_EFORMAT, "image_std is [0.5,0.5,0]" },
        { "{\"image_std\":[0.5,0.5,-1]}", QV_EFORMAT, "image_std" },
        { "{\"image_std\":[0.5,0.5,true]}", QV_EFORMAT, "image_std" },
        { "{\"size\":224}", QV_EFORMAT, "size is 224|object" },
        { "{\"size\":{\"shortest_edge\":1}}", QV_EFORMAT, "size.longest_edge is missing" },
        { "{\"size\":{\"height\":1,\"width\":1}}", QV_EFORMAT, "size.shortest_edge is missing" },
        { "{\"size\":{\"shortest_edge\":0,\"longest_edge\":1}}", QV_EFORMAT, "size.shortest_edge" },
        { "{\"size\":{\"shortest_edge\":1,\"longest_edge\":1e9}}", QV_EFORMAT, "longest_edge" },
        { "{\"size\":{\"shortest_edge\":9,\"longest_edge\":8}}", QV_EFORMAT, "9|above|8" },
    }, clips[] = {
        { "{\"fps\":0}", QV_EFORMAT, "fps is 0" },
        { "{\"fps\":-2}", QV_EFORMAT, "fps is -2" },
        { "{\"fps\":\"2\"}", QV_EFORMAT, "fps is \"2\"" },
        { "{\"min_frames\":0}", QV_EFORMAT, "min_frames is 0" },
        { "{\"max_frames\":2147483648}", QV_EFORMAT, "max_frames is 2147483648" },
        { "{\"min_frames\":9,\"max_frames\":8}", QV_EFORMAT, "min_frames is 9|max_frames (8)" },
        { "{\"num_frames\":8}", QV_EUNSUPPORTED, "num_frames is 8" },
        { "{\"do_sample_frames\":false}", QV_EUNSUPPORTED, "do_sample_frames is false" },
        { "{\"cap_pixels_per_frame\":true}", QV_EUNSUPPORTED, "cap_pixels_per_frame is true" },
    };
    temp_text("config.json", VISION(""));
    EACH (c, both)
        expect_refused(VIDEO, c->text, c->status, c->words);
    EACH (c, clips)
        expect_refused(VIDEO, c->text, c->status, c->words);
    temp_text(VIDEO, "{}");
    EACH (c, both)
        expect_refused(IMAGE, c->text, c->status, c->words);
    temp_text(IMAGE, clips[0].text); /* These fields do not concern images. */
    read_ok();
    assert_int_equal(unlink(temp_path(VIDEO)), 0);
    assert_int_equal(symlink("gone", temp_path(VIDEO)), 0);
    expect_read_failure("dangling", QV_EIO, VIDEO "|cannot be opened");
}

TEST_EACH(tempdir_make, tempdir_remove);
