/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L

#include "towers/config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "files/json.h"
#include "engine/op.h"

#define MAX_PIXELS ((int64_t)1 << 40)
#define MAX_FRAMES ((int64_t)1 << 20)

static const struct family {
    const char *name;
    bool done;
    int64_t n_deepstack; /* -1: the family's tower has no DeepStack at all */
    int64_t deepstack[3];
} families[] = {
    { "qwen3_vl", true, 3, { 8, 16, 24 } }, { "qwen3_vl_moe", true, 3, { 8, 16, 24 } },
    { "qwen3_5", true, -1, { 0 } },         { "qwen3_5_moe", true, -1, { 0 } },
    { "qwen4_exp", true, -1, { 0 } },       { "qwen2_vl", false, -1, { 0 } },
    { "qwen2_5_vl", false, -1, { 0 } },
};
#define N_FAMILIES (sizeof families / sizeof *families)

/* The vision config's integers, with transformers' class defaults, the same for all families. The
 * second name is the one that transformers' attribute_map takes as well. */
static const struct {
    const char *key, *alias;
    size_t offset;
    int64_t min, max, preset;
} sizes[] = {
#define AT(field) offsetof(struct qv_config, field)
    { "depth", "num_hidden_layers", AT(depth), 1, 512, 27 },
    { "hidden_size", NULL, AT(hidden), 1, 65536, 1152 },
    { "num_heads", "num_attention_heads", AT(heads), 1, 1024, 16 },
    { "intermediate_size", NULL, AT(intermediate), 1, 1 << 20, 4304 },
    { "out_hidden_size", NULL, AT(out_hidden), 1, 1 << 20, 3584 },
    { "in_channels", NULL, AT(in_channels), 1, 16, 3 },
    { "patch_size", NULL, AT(patch), 1, 256, 16 },
    { "temporal_patch_size", NULL, AT(temporal), 1, 8, 2 },
    { "spatial_merge_size", NULL, AT(merge), 1, 8, 2 },
    { "num_position_embeddings", NULL, AT(n_positions), 1, 1 << 20, 2304 },
#undef AT
};

static const struct {
    const char *name;
    int act;
} acts[] = {
    { "gelu_pytorch_tanh", QV_ACT_GELU_TANH },
    { "gelu", QV_ACT_GELU_ERF },
};

static qv_status
unsupported(const struct qv_json_object *o, const char *key, const json_t *value,
            const char *wanted, qv_error *err)
{
    qv_json_wrong(o, key, value, wanted, err);
    if (err)
        err->status = QV_EUNSUPPORTED;
    return QV_EUNSUPPORTED;
}

/* ---- config.json: the family ------------------------------------------------------------ */

/* "qwen4_exp" and "qwen4_exp_vision" are the same family. */
static const struct family *
find_family(const char *model_type)
{
    static const char suffix[] = "_vision";
    size_t n = strlen(model_type);
    if (n >= sizeof suffix && !strcmp(model_type + n - (sizeof suffix - 1), suffix))
        n -= sizeof suffix - 1;
    for (size_t i = 0; i < N_FAMILIES; i++)
        if (strlen(families[i].name) == n && !strncmp(families[i].name, model_type, n))
            return &families[i];
    return NULL;
}

static const char *
list_families(char *text, size_t size)
{
    size_t n = 0;
    for (size_t i = 0; i < N_FAMILIES && families[i].done && n < size; i++)
        n += (size_t)snprintf(text + n, size - n, "%s%s", i ? ", " : "", families[i].name);
    return text;
}

static qv_status
read_family(const struct qv_json_object *top, const struct qv_json_object *vision,
            const struct family **family, qv_error *err)
{
    const char *outer = NULL, *inner = NULL;
    qv_status s = qv_json_string(top, "model_type", &outer, err);
    if (!s)
        s = qv_json_string(vision, "model_type", &inner, err);
    if (s)
        return s;

    const struct family *f = outer ? find_family(outer) : NULL;
    if (!f && inner)
        f = find_family(inner);
    if (f && f->done) {
        *family = f;
        return QV_OK;
    }
    char found[QV_QUOTE_SIZE], done[128];
    if (!outer && !inner)
        return qv_json_wrong(top, "model_type", NULL, "it must name a Qwen-VL family", err);
    return qv_fail(err, QV_EUNSUPPORTED, "%s: model_type is %s; %s; supported are %s",
                   qv_path_tail(top->file), qv_json_quote(outer ? outer : inner, found),
                   f ? "this family comes later" : "this family is not known",
                   list_families(done, sizeof done));
}

/* ---- config.json: the tower ------------------------------------------------------------- */

/* [p, p] counts as p: transformers takes both. */
static const json_t *
pair_or_self(const json_t *value)
{
    if (json_array_size(value) != 2)
        return value;
    json_t *first = json_array_get(value, 0);
    return json_equal(first, json_array_get(value, 1)) ? first : value;
}

static qv_status
read_sizes(const struct qv_json_object *vision, struct qv_config *c, qv_error *err)
{
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const char *key = sizes[i].key;
        const json_t *found = qv_json_get(vision, key);
        if (!found && sizes[i].alias) {
            found = qv_json_get(vision, sizes[i].alias);
            key = found ? sizes[i].alias : key;
        }
        if (!strcmp(key, "patch_size"))
            found = pair_or_self(found);

        int64_t value = sizes[i].preset;
        if (found) {
            const qv_status s =
                qv_json_check_int(vision, key, found, sizes[i].min, sizes[i].max, &value, err);
            if (s)
                return s;
        }
        memcpy((char *)c + sizes[i].offset, &value, sizeof value);
    }
    return QV_OK;
}

static qv_status
check_sizes(const struct qv_json_object *vision, const struct qv_config *c, qv_error *err)
{
    const char *file = qv_path_tail(vision->file), *in = vision->prefix;
    if (c->hidden % c->heads)
        return qv_fail(err, QV_EFORMAT,
                       "%s: %shidden_size is %lld, which %snum_heads (%lld) does not divide", file,
                       in, (long long)c->hidden, in, (long long)c->heads);
    if (qv_config_head_dim(c) % 4)
        return qv_fail(err, QV_EFORMAT,
                       "%s: %shidden_size / %snum_heads is %lld / %lld = %lld; 2D rotary embedding "
                       "needs a multiple of 4",
                       file, in, in, (long long)c->hidden, (long long)c->heads,
                       (long long)qv_config_head_dim(c));
    const int64_t side = (int64_t)(sqrt((double)c->n_positions) + 0.5);
    if (side * side != c->n_positions)
        return qv_fail(err, QV_EFORMAT,
                       "%s: %snum_position_embeddings is %lld; it must be a square number, as 2304",
                       file, in, (long long)c->n_positions);
    return QV_OK;
}

static qv_status
read_deepstack(const struct qv_json_object *vision, const struct family *family,
               struct qv_config *c, qv_error *err)
{
    static const char key[] = "deepstack_visual_indexes";
    const json_t *list = qv_json_get(vision, key);
    const size_t n = json_array_size(list);
    if (list && (!json_is_array(list) || n > QV_MAX_DEEPSTACK))
        return qv_json_wrong(vision, key, list, "it must be a list of at most 8 block indices",
                             err);
    if (n && family->n_deepstack < 0) {
        char wanted[80];
        snprintf(wanted, sizeof wanted, "%s has no DeepStack: it must be empty", family->name);
        return unsupported(vision, key, list, wanted, err);
    }

    c->n_deepstack = list ? (int64_t)n : family->n_deepstack < 0 ? 0 : family->n_deepstack;
    for (int64_t i = 0; i < c->n_deepstack; i++) {
        c->deepstack[i] = family->deepstack[list ? 0 : i];
        const qv_status s = !list ? QV_OK
                                  : qv_json_check_int(vision, key, json_array_get(list, (size_t)i),
                                                      0, c->depth - 1, &c->deepstack[i], err);
        if (s)
            return s;
        if (c->deepstack[i] >= c->depth)
            return qv_fail(err, QV_EFORMAT,
                           "%s: %s%s is missing, and its default, %lld among others, does not suit "
                           "a depth of %lld",
                           qv_path_tail(vision->file), vision->prefix, key,
                           (long long)c->deepstack[i], (long long)c->depth);
        for (int64_t j = 0; j < i; j++)
            if (c->deepstack[j] == c->deepstack[i])
                return qv_json_wrong(vision, key, list, "no block may stand there twice", err);
    }
    return QV_OK;
}

static qv_status
read_act(const struct qv_json_object *vision, struct qv_config *c, qv_error *err)
{
    const char *name = acts[0].name;
    const qv_status s = qv_json_string(vision, "hidden_act", &name, err);
    if (s)
        return s;
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++) {
        if (!strcmp(name, acts[i].name)) {
            c->act = acts[i].act;
            return QV_OK;
        }
    }
    return unsupported(vision, "hidden_act", qv_json_get(vision, "hidden_act"),
                       "supported are \"gelu_pytorch_tanh\" and \"gelu\"", err);
}

static qv_status
read_rope(const struct qv_json_object *vision, struct qv_config *c, qv_error *err)
{
    struct qv_json_object in = *vision, rope;
    in.null_is_absent = true; /* null is what the class itself writes */
    c->rope_theta = 10000.0;
    const char *type = "axial";
    qv_status s = qv_json_real(&in, "rope_theta", 1.0, 1e12, &c->rope_theta, err);
    if (!s)
        s = qv_json_child(&in, "rope_parameters", "vision rope_parameters.", &rope, err);
    if (s)
        return s;
    s = qv_json_real(&rope, "rope_theta", 1.0, 1e12, &c->rope_theta, err);
    if (!s)
        s = qv_json_string(&rope, "type", &type, err);
    if (!s)
        s = qv_json_string(&rope, "rope_type", &type, err);
    /* "default" is what checkpoints said before the class had a name for it. */
    if (!s && strcmp(type, "axial") && strcmp(type, "default"))
        s = unsupported(&rope, "rope_type", qv_json_get(&rope, "rope_type"),
                        "only \"axial\" is supported", err);
    return s;
}

static qv_status
read_vision(const struct qv_json_object *top, struct qv_config *c, qv_error *err)
{
    struct qv_json_object vision;
    qv_status s = qv_json_child(top, "vision_config", "vision_config.", &vision, err);
    if (s)
        return s;

    const struct family *family = NULL;
    const bool bare = !vision.json && qv_json_get(top, "depth") && qv_json_get(top, "patch_size");
    if (bare)
        vision = *top;
    s = read_family(top, &vision, &family, err);
    if (s)
        return s;
    if (!vision.json)
        return qv_json_wrong(top, "vision_config", NULL,
                             "it must be there, or the file be a vision config itself", err);

    /* NOLINTNEXTLINE: read_family succeeds with a family only */
    strcpy(c->model_type, family->name);
    c->norm_eps = 1e-6; /* no field: transformers' modules have it as a constant */
    s = read_sizes(&vision, c, err);
    if (!s)
        s = check_sizes(&vision, c, err);
    if (!s)
        s = read_deepstack(&vision, family, c, err);
    if (!s)
        s = read_act(&vision, c, err);
    if (!s)
        s = read_rope(&vision, c, err);
    return s;
}

/* ---- preprocessor files ----------------------------------------------------------------- */

static const struct processor {
    bool clips;
    const char *part, *part_prefix; /* of processor_config.json, which comes first */
    const char *files[3];           /* the first that is there */
    qv_preprocess preset;           /* transformers' class defaults; patches are the tower's */
} processors[] = {
    { .part = "image_processor",
      .part_prefix = "image_processor.",
      .files = { "preprocessor_config.json" },
      .preset = { .min_pixels = 56 * 56,
                  .max_pixels = 28 * 28 * 1280,
                  .mean = { 0.48145466, 0.4578275, 0.40821073 },
                  .std = { 0.26862954, 0.26130258, 0.27577711 } } },
    { .clips = true,
      .part = "video_processor",
      .part_prefix = "video_processor.",
      .files = { "video_preprocessor_config.json", "preprocessor_config.json" },
      .preset = { .min_pixels = 128 * 32 * 32,
                  .max_pixels = 768 * 32 * 32,
                  .mean = { 0.5, 0.5, 0.5 },
                  .std = { 0.5, 0.5, 0.5 },
                  .fps = 2.0,
                  .min_frames = 4,
                  .max_frames = 768 } },
};

/* What the processor may leave out or do otherwise, and we would not know how. */
static qv_status
check_steps(const struct qv_json_object *o, bool clips, qv_error *err)
{
    static const struct {
        const char *key;
        bool right, clips_only;
    } steps[] = {
        { "do_resize", true, false },       { "do_rescale", true, false },
        { "do_normalize", true, false },    { "do_convert_rgb", true, false },
        { "do_sample_frames", true, true }, { "cap_pixels_per_frame", false, true },
    };
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        const json_t *found = qv_json_get(o, steps[i].key);
        if (!found || (steps[i].clips_only && !clips))
            continue;
        if (!json_is_boolean(found))
            return qv_json_wrong(o, steps[i].key, found, "it must be true or false", err);
        if (json_is_true(found) != steps[i].right)
            return unsupported(o, steps[i].key, found,
                               steps[i].right ? "only true is supported"
                                              : "only false is supported",
                               err);
    }

    const json_t *factor = qv_json_get(o, "rescale_factor");
    if (factor && !(fabs(json_number_value(factor) - 1.0 / 255.0) <= 1e-9))
        return unsupported(o, "rescale_factor", factor,
                           "only 1/255 = 0.00392156862745098 is supported", err);
    const json_t *resample = qv_json_get(o, "resample");
    if (resample && (!json_is_integer(resample) || json_integer_value(resample) != 3))
        return unsupported(o, "resample", resample, "only 3 (bicubic) is supported", err);
    const json_t *num_frames = clips ? qv_json_get(o, "num_frames") : NULL;
    if (num_frames)
        return unsupported(o, "num_frames", num_frames, "only fps is supported", err);
    return QV_OK;
}

static qv_status
check_patch(const struct qv_json_object *o, const char *key, const char *tower_key, int64_t tower,
            int *value, qv_error *err)
{
    int64_t found = tower;
    const qv_status s = qv_json_int(o, key, 1, 256, &found, err);
    if (s)
        return s;
    if (found != tower)
        return qv_fail(err, QV_EFORMAT,
                       "%s: %s%s is %lld, but config.json's %s is %lld; they must "
                       "be the same",
                       qv_path_tail(o->file), o->prefix, key, (long long)found, tower_key,
                       (long long)tower);
    *value = (int)found;
    return QV_OK;
}

/* transformers' pictures know the old names min_pixels and max_pixels, and they win over `size`;
 * its clips of Qwen3-VL do not look at them. */
static qv_status
read_pixels(const struct qv_json_object *o, bool clips, qv_preprocess *p, qv_error *err)
{
    static const char *const keys[2] = { "shortest_edge", "longest_edge" };
    static const char *const old_keys[2] = { "min_pixels", "max_pixels" };
    int64_t *const values[2] = { &p->min_pixels, &p->max_pixels };
    struct qv_json_object size;
    qv_status s = qv_json_child(o, "size", "size.", &size, err);
    for (int i = 0; i < 2 && !s; i++) {
        const bool old = !clips && qv_json_get(o, old_keys[i]);
        if (old)
            s = qv_json_int(o, old_keys[i], 1, MAX_PIXELS, values[i], err);
        else if (size.json && !qv_json_get(&size, keys[i]))
            s = qv_json_wrong(&size, keys[i], NULL, "size must have shortest_edge and longest_edge",
                              err);
        else
            s = qv_json_int(&size, keys[i], 1, MAX_PIXELS, values[i], err);
    }
    if (!s && p->min_pixels > p->max_pixels)
        s = qv_fail(err, QV_EFORMAT,
                    "%s: %ssize.shortest_edge (least pixels, %lld) is above size.longest_edge "
                    "(most pixels, %lld)",
                    qv_path_tail(o->file), o->prefix, (long long)p->min_pixels,
                    (long long)p->max_pixels);
    return s;
}

static qv_status
read_frames(const struct qv_json_object *o, qv_preprocess *p, qv_error *err)
{
    qv_status s = qv_json_real(o, "fps", 1e-6, 1000.0, &p->fps, err);
    if (!s)
        s = qv_json_int(o, "min_frames", 1, MAX_FRAMES, &p->min_frames, err);
    if (!s)
        s = qv_json_int(o, "max_frames", 1, MAX_FRAMES, &p->max_frames, err);
    if (!s && p->min_frames > p->max_frames)
        s = qv_fail(err, QV_EFORMAT, "%s: %smin_frames is %lld, above max_frames (%lld)",
                    qv_path_tail(o->file), o->prefix, (long long)p->min_frames,
                    (long long)p->max_frames);
    return s;
}

static qv_status
read_numbers(const struct qv_json_object *o, const struct qv_config *c, bool clips,
             qv_preprocess *p, qv_error *err)
{
    qv_status s = check_steps(o, clips, err);
    if (!s)
        s = check_patch(o, "patch_size", "patch_size", c->patch, &p->patch_size, err);
    if (!s)
        s = check_patch(o, "temporal_patch_size", "temporal_patch_size", c->temporal,
                        &p->temporal_patch_size, err);
    if (!s)
        s = check_patch(o, "merge_size", "spatial_merge_size", c->merge, &p->merge_size, err);
    if (!s)
        s = read_pixels(o, clips, p, err);
    if (!s)
        s = qv_json_reals(o, "image_mean", -1e3, 1e3, p->mean, 3, err);
    if (!s)
        s = qv_json_reals(o, "image_std", 1e-6, 1e3, p->std, 3, err);
    if (!s && clips)
        s = read_frames(o, p, err);
    return s;
}

/* A file of the folder; *root is NULL if it is not there. free(*path), json_decref(*root). */
static qv_status
read_optional(const char *dir, const char *name, char **path, json_t **root, qv_error *err)
{
    *root = NULL;
    *path = qv_path_join(dir, name);
    if (!*path)
        return qv_fail(err, QV_ENOMEM, "%s: out of memory", qv_path_tail(dir));
    return qv_path_exists(*path) ? qv_json_read(*path, QV_JSON_MAX_CONFIG, root, err) : QV_OK;
}

/* As get_video_processor_dict and its twin for pictures do: the part of processor_config.json, else
 * the first file. None at all is class defaults here, a failure there. */
static qv_status
read_processor(const char *dir, const struct processor *which, const struct qv_config *c,
               qv_preprocess *out, qv_error *err)
{
    json_t *root = NULL;
    char *path = NULL;
    struct qv_json_object o = { 0 };
    qv_status s = read_optional(dir, "processor_config.json", &path, &root, err);
    if (!s) {
        const struct qv_json_object top = { root, path, "", true };
        s = qv_json_child(&top, which->part, which->part_prefix, &o, err);
    }
    for (int i = 0; !s && !o.json && which->files[i]; i++) {
        json_decref(root);
        free(path);
        s = read_optional(dir, which->files[i], &path, &root, err);
        o = (struct qv_json_object){ root, path, "", true };
    }
    *out = which->preset;
    if (!s)
        s = read_numbers(&o, c, which->clips, out, err);
    json_decref(root);
    free(path);
    return s;
}

qv_status
qv_config_read(const char *dir, struct qv_config *out, qv_error *err)
{
    char *path = qv_path_join(dir, "config.json");
    if (!path)
        return qv_fail(err, QV_ENOMEM, "%s: out of memory", qv_path_tail(dir));

    struct qv_config c = { 0 };
    json_t *root = NULL;
    qv_status s = qv_json_read(path, QV_JSON_MAX_CONFIG, &root, err);
    if (!s) {
        const struct qv_json_object top = { root, path, "", false };
        s = read_vision(&top, &c, err);
    }
    if (!s)
        s = read_processor(dir, &processors[0], &c, &c.image, err);
    if (!s)
        s = read_processor(dir, &processors[1], &c, &c.video, err);
    if (!s)
        *out = c;
    json_decref(root);
    free(path);
    return s;
}
