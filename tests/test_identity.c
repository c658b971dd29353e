/* SPDX-License-Identifier: MIT */
/* Tests that a tower's identity covers all that its tokens depend on: each value in config.json and
 * the preprocessor files is changed in turn, and is then refused or gives another identity. The
 * values are those of the files, so that the test shares no list with the code. */

#include "test.h"

#include <jansson.h>

#include "tempdir.h"
#include "towers/read_config.h"

/* Keys that tokens do not depend on, or with equivalent values: both accepted names of rope_type,
 * and image_size, where only whole patches count. */
static const char *const others[] = {
    "architectures",        "initializer_range", "image_processor_type",
    "video_processor_type", "rope_type",         "image_size"
};

/* A checkpoint's files, with values that most published files leave out. */
static const struct family {
    const char *name, *vision, *images, *clips;
} families[] = {
    { "qwen3_vl",
      "'rope_theta':10000.0,'hidden_act':'gelu','in_channels':3,'spatial_merge_size':2,"
      "'temporal_patch_size':2,'initializer_range':0.02,'depth':3,'hidden_size':32,'num_heads':2,"
      "'intermediate_size':40,'patch_size':16,'out_hidden_size':24,'num_position_embeddings':36,"
      "'deepstack_visual_indexes':[0,2]",
      "'size':{'shortest_edge':65536,'longest_edge':16777216},'patch_size':16,"
      "'temporal_patch_size':2,'merge_size':2,'image_mean':[0.5,0.5,0.5],"
      "'image_std':[0.5,0.5,0.5],'resample':3,'rescale_factor':0.00392156862745098,"
      "'do_resize':true,'do_rescale':true,'do_normalize':true,'do_convert_rgb':true,"
      "'image_processor_type':'Qwen2VLImageProcessorFast'",
      "'size':{'shortest_edge':4096,'longest_edge':25165824},'patch_size':16,"
      "'temporal_patch_size':2,'merge_size':2,'image_mean':[0.5,0.5,0.5],"
      "'image_std':[0.5,0.5,0.5],'fps':2,'min_frames':4,'max_frames':768,'resample':3,"
      "'do_sample_frames':true,'video_processor_type':'Qwen3VLVideoProcessor'" },
    { "qwen2_5_vl",
      "'rope_parameters':{'rope_theta':10000.0,'rope_type':'axial'},'hidden_act':'silu',"
      "'in_channels':3,'spatial_merge_size':2,'temporal_patch_size':2,'depth':3,'hidden_size':24,"
      "'num_heads':2,'intermediate_size':21,'patch_size':2,'out_hidden_size':20,'window_size':8,"
      "'fullatt_block_indexes':[1]",
      "'min_pixels':3136,'max_pixels':1003520,'image_mean':[0.48145466,0.4578275,0.40821073],"
      "'image_std':[0.26862954,0.26130258,0.27577711]",
      "'min_pixels':100352,'max_pixels':602112,'fps':2.0,'min_frames':4,'max_frames':768,"
      "'image_mean':[0.48145466,0.4578275,0.40821073]" },
    { "exaone4_5",
      "'hidden_act':'silu','in_channels':3,'spatial_merge_size':2,'temporal_patch_size':2,"
      "'depth':3,'hidden_size':32,'num_heads':4,'num_key_value_heads':2,'intermediate_size':21,"
      "'patch_size':2,'out_hidden_size':20,'window_size':8,'fullatt_block_indexes':[1]",
      "'image_mean':[0.48145466,0.4578275,0.40821073]", "'fps':2.0" },
    { "glm4v",
      "'rms_norm_eps':1e-05,'hidden_act':'silu','in_channels':3,'spatial_merge_size':2,"
      "'temporal_patch_size':2,'depth':2,'hidden_size':16,'num_heads':2,'intermediate_size':20,"
      "'patch_size':2,'out_hidden_size':12,'image_size':8,'attention_bias':false",
      "'size':{'shortest_edge':65536,'longest_edge':16777216},'image_std':[0.3,0.3,0.3]",
      "'size':{'shortest_edge':65536,'longest_edge':16777216},'fps':2.0,'max_duration':300.0" },
};

/* Returns the text with double quotes. */
static const char *
quoted(const char *text)
{
    static char all[8][2100];
    static unsigned next;
    char *to = all[next++ % 8];
    snprintf(to, sizeof all[0], "{%s}", text);
    for (char *p = to; *p; p++)
        *p = *p == '\'' ? '"' : *p;
    return to;
}

/* Sets `identity` to the folder's identity. Returns whether the folder is accepted. */
static bool
is_accepted(const char *digest, char identity[QV_IDENTITY_SIZE])
{
    struct qv_config c;
    char *numbers = NULL;
    if (qv_config_read(tempdir, &c, NULL))
        return false;
    assert_ok(qv_identity_make(&c, digest, identity, &numbers, ERR));
    assert_int_equal(strlen(identity), 32);
    free(numbers);
    return true;
}

static void
put_json(const char *name, const json_t *json)
{
    char *text = json_dumps(json, JSON_ENCODE_ANY);
    temp_text(name, text);
    free(text);
}

/* Returns value number n to try in place of one; NULL: there is none left. */
static json_t *
another_value(const json_t *value, int n)
{
    static const double factors[] = { 2, 4, 0.5, 1.01 };
    static const char *const texts[] = { "gelu", "quick_gelu", "silu", "qwen3_5", "default", "x" };
    if (json_is_boolean(value))
        return n ? NULL : json_boolean(!json_is_true(value));
    if (json_is_string(value))
        return n < 6 ? json_string(texts[n]) : NULL;
    if (json_is_real(value))
        return n < 4 ? json_real(json_real_value(value) * factors[n]) : NULL;
    const json_int_t i = json_integer_value(value);
    const json_int_t all[] = { i + 1, i - 1, 2 * i, 4 * i, i / 2 };
    return n < 5 && all[n] != i ? json_integer(all[n]) : n < 5 ? json_integer(i + 3) : NULL;
}

struct walk {
    const char *family, *file, *key;
    json_t *root;
    const char *before; /* the identity of the unchanged folder */
    int changed;        /* values that gave another identity */
};

/* Tries other values of a leaf; `put` sets it in its parent. */
static void
try_values(struct walk *w, json_t *parent, size_t i)
{
    json_t *value = json_incref(w->key && json_is_object(parent) ? json_object_get(parent, w->key)
                                                                 : json_array_get(parent, i));
    bool is_other = false, was_same = false;
    for (size_t o = 0; o < sizeof others / sizeof *others; o++)
        is_other = is_other || !strcmp(w->key, others[o]);
    for (int n = 0; n < 6; n++) {
        char identity[QV_IDENTITY_SIZE];
        json_t *another = another_value(value, n);
        if (!another || json_equal(another, value)) {
            json_decref(another);
            continue;
        }
        char *text = json_dumps(another, JSON_ENCODE_ANY);
        assert_int_equal(json_is_object(parent) ? json_object_set_new(parent, w->key, another)
                                                : json_array_set_new(parent, i, another),
                         0);
        put_json(w->file, w->root);
        const bool accepted = is_accepted("abc", identity);
        const bool same = accepted && !strcmp(identity, w->before);
        if (same && !is_other)
            fail_msg("%s, %s: %s = %s is accepted, and the identity is the same", w->family,
                     w->file, w->key, text);
        was_same = was_same || same;
        w->changed += accepted && !same;
        free(text);
    }
    if (is_other)
        assert_true(was_same);
    assert_int_equal(json_is_object(parent) ? json_object_set(parent, w->key, value)
                                            : json_array_set(parent, i, value),
                     0);
    json_decref(value);
}

static void
walk_values(struct walk *w, json_t *parent)
{
    const char *key;
    json_t *value;
    void *next;
    if (json_is_array(parent))
        for (size_t i = 0; i < json_array_size(parent); i++)
            try_values(w, parent, i);
    json_object_foreach_safe(parent, next, key, value)
    {
        w->key = key;
        if (json_is_object(value) || json_is_array(value))
            walk_values(w, value);
        else
            try_values(w, parent, 0);
    }
}

TEST(each_value_of_the_files_counts)
{
    for (const struct family *f = families; f < families + sizeof families / sizeof *families;
         f++) {
        const char *const files[] = { "config.json", "preprocessor_config.json",
                                      "video_preprocessor_config.json" };
        char config[2000], before[QV_IDENTITY_SIZE], again[QV_IDENTITY_SIZE];
        snprintf(config, sizeof config, "'model_type':'%s','vision_config':{%s}", f->name,
                 f->vision);
        json_t *roots[] = { json_loads(quoted(config), 0, NULL),
                            json_loads(quoted(f->images), 0, NULL),
                            json_loads(quoted(f->clips), 0, NULL) };
        for (int i = 0; i < 3; i++) {
            assert_non_null(roots[i]);
            put_json(files[i], roots[i]);
        }
        if (!is_accepted("abc", before))
            fail_msg("%s is refused", f->name);
        for (int i = 0; i < 3; i++) {
            struct walk w = { f->name, files[i], NULL, roots[i], before, 0 };
            walk_values(&w, roots[i]);
            put_json(files[i], roots[i]);
            assert_true(w.changed >= 2);
            assert_true(is_accepted("abc", again));
            assert_string_equal(before, again);
            json_decref(roots[i]);
        }
        assert_true(is_accepted("abd", again));
        assert_string_not_equal(before, again);
    }
}

/* The values are hashed, not their text, which depends on jansson's version. */
TEST(an_identity_stays)
{
    char identity[QV_IDENTITY_SIZE], *numbers = NULL;
    struct qv_config c;
    assert_ok(qv_config_read(QV_GOLDEN "/qwen3_vl", &c, ERR));
    assert_ok(qv_identity_make(&c, "abc", identity, &numbers, ERR));
    test_ends(numbers, free);
    expect_words(numbers, "\"model_type\":\"qwen3_vl\"");
    expect_words(numbers, "\"deepstack\":[0,2]");
    expect_words(numbers, "\"act\":\"gelu_tanh\"");
    assert_string_equal(identity, "759d7fec1c183bea4e2c61a062ba58e0");
    /* for people, and the device's */
    c.mlp_padding += 8;
    strcpy(c.note, "a note");
    strcpy(c.warning, "a warning");
    c.doubts_means = !c.doubts_means;
    char again[QV_IDENTITY_SIZE], *more = NULL;
    assert_ok(qv_identity_make(&c, "abc", again, &more, ERR));
    test_ends(more, free);
    assert_string_equal(identity, again);
}

TEST_EACH(tempdir_make, tempdir_remove);
