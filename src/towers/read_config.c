/* SPDX-License-Identifier: MIT */

#include "read_config.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "error.h"
#include "path.h"

/* Names of hidden_act, and what each means for a plain and for a gated MLP. */
static const struct {
    const char *name;
    int act;
    bool gated;
} acts[] = {
    { "gelu_pytorch_tanh", QV_ACT_GELU_TANH, false },
    { "gelu", QV_ACT_GELU_ERF, false },
    { "quick_gelu", QV_ACT_GELU_QUICK, false },
    { "silu", QV_ACT_SILU, true },
};

/* ---- config.json: the family ------------------------------------------------------------ */

static const char *
list_families(char *text, size_t size)
{
    *text = 0;
    for (const struct qv_family *f = qv_families; f < qv_families + QV_FAMILIES; f++)
        for (const char *const *type = f->model_types; *type; type++)
            qv_list_name(text, size, *type);
    return text;
}

static qv_status
read_family(const struct qv_json_object *top, const struct qv_json_object *vision,
            struct qv_config *c, qv_error *err)
{
    const char *outer = NULL, *inner = NULL, *name = NULL;
    qv_status s = qv_json_string(top, "model_type", &outer, err);
    if (!s)
        s = qv_json_string(vision, "model_type", &inner, err);
    if (s)
        return s;

    c->family = outer ? qv_family_find(outer, &name) : NULL;
    if (!c->family && inner)
        c->family = qv_family_find(inner, &name);
    if (c->family) {
        snprintf(c->model_type, sizeof c->model_type, "%s", name);
        return QV_OK;
    }
    char found[QV_QUOTE_SIZE], known[256];
    const char *unknown = outer ? outer : inner;
    if (unknown)
        qv_fail(err, QV_EUNSUPPORTED, "%s: model_type is %s, an unknown family; supported are %s",
                top->file, qv_json_quote(unknown, found), list_families(known, sizeof known));
    else
        qv_json_wrong(top, "model_type", NULL, "it must name a Qwen-VL family", err);
    return unknown ? QV_EUNSUPPORTED : QV_EFORMAT;
}

/* ---- config.json: the tower ------------------------------------------------------------- */

/* Reads the sizes of a config.json. */
static qv_status
read_sizes(const struct qv_json_object *vision, struct qv_config *c, qv_error *err)
{
    const char *keys[QV_SIZES];
    for (enum qv_size size = 0; size < QV_SIZES; size++)
        keys[size] = qv_family_size_key(c->family, size);
    const qv_status s = qv_config_read_sizes(vision, keys, c, err);
    const int64_t side = qv_config_position_side(c);
    if (s || side * side == c->n_positions)
        return s;
    return qv_fail(err, QV_EFORMAT, "%s: %s%s is %lld; it must be a square number, such as 2304",
                   vision->file, vision->prefix, keys[QV_SIZE_POSITIONS],
                   (long long)c->n_positions);
}

/* Families with biases always have them, so config.json must not contradict that. */
static qv_status
check_bias(const struct qv_json_object *vision, const struct qv_config *c, qv_error *err)
{
    static const char key[] = "attention_bias";
    const json_t *found = qv_json_get(vision, key);
    if (c->family->bias || !found || json_is_false(found))
        return QV_OK;
    if (!json_is_true(found))
        return qv_json_wrong(vision, key, found, "it must be true or false", err);
    return qv_json_unsupported(vision, key, found, "only false is supported", err);
}

/* Reads which blocks have full attention. The other blocks attend within windows. */
static qv_status
read_full_attention(const struct qv_json_object *vision, struct qv_config *c, qv_error *err)
{
    static const char key[] = "fullatt_block_indexes";
    static const int64_t presets[] = { 7, 15, 23, 31 };
    const json_t *list = qv_json_get(vision, key);
    if (!c->family->windows)
        return QV_OK;
    if (list && (!json_is_array(list) || json_array_size(list) > QV_MOST_DEPTH))
        return qv_json_wrong(vision, key, list, "it must be a list of block indices", err);
    const size_t n = list ? json_array_size(list) : sizeof presets / sizeof *presets;
    for (size_t i = 0; i < n; i++) {
        int64_t block = list ? 0 : presets[i];
        const qv_status s = !list ? QV_OK
                                  : qv_json_check_int(vision, key, json_array_get(list, i), 0,
                                                      c->depth - 1, &block, err);
        if (s)
            return s;
        /* transformers' default includes blocks beyond the depth of small towers; they are
         * dropped */
        if (block < c->depth)
            c->full_attention[block] = true;
    }
    return QV_OK;
}

static qv_status
read_deepstack(const struct qv_json_object *vision, struct qv_config *c, qv_error *err)
{
    const struct qv_family *family = c->family;
    static const char key[] = "deepstack_visual_indexes";
    const json_t *list = qv_json_get(vision, key);
    const size_t n = json_array_size(list);
    if (list && (!json_is_array(list) || n > QV_MAX_DEEPSTACK))
        return qv_json_wrong(vision, key, list, "it must be a list of at most 8 block indices",
                             err);
    if (n && family->n_deepstack < 0) {
        char wanted[128];
        snprintf(wanted, sizeof wanted, "%s has no DeepStack: it must be empty", c->model_type);
        return qv_json_unsupported(vision, key, list, wanted, err);
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
                           "%s: %s%s is missing, and its default includes block %lld, which a "
                           "depth of %lld does not have",
                           vision->file, vision->prefix, key, (long long)c->deepstack[i],
                           (long long)c->depth);
        /* transformers returns the outputs in the order of the blocks, not of this list */
        if (i && c->deepstack[i] <= c->deepstack[i - 1])
            return qv_json_unsupported(vision, key, list, "the indices must ascend", err);
    }
    return QV_OK;
}

static qv_status
read_act(const struct qv_json_object *vision, struct qv_config *c, qv_error *err)
{
    const char *name = c->family->act;
    const bool gated = qv_family_is_gated(c->family);
    const qv_status s = qv_json_string(vision, "hidden_act", &name, err);
    if (s)
        return s;
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++) {
        if (!strcmp(name, acts[i].name) && acts[i].gated == gated) {
            c->act = acts[i].act;
            return QV_OK;
        }
    }
    return qv_json_unsupported(
        vision, "hidden_act", qv_json_get(vision, "hidden_act"),
        gated ? "supported is \"silu\""
              : "supported are \"gelu_pytorch_tanh\", \"gelu\" and \"quick_gelu\"",
        err);
}

static qv_status
read_rope(const struct qv_json_object *vision, struct qv_config *c, qv_error *err)
{
    struct qv_json_object in = *vision, rope;
    in.null_is_absent = true; /* transformers' own config class writes null for "not set" */
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
    /* Checkpoints contain "default" from before transformers had a name for this type. */
    if (!s && strcmp(type, "axial") && strcmp(type, "default"))
        s = qv_json_unsupported(&rope, "rope_type", qv_json_get(&rope, "rope_type"),
                                "only \"axial\" is supported", err);
    return s;
}

/* Reads the vision config. An Omni model has it one level deeper, in "thinker_config". */
static qv_status
read_vision(const struct qv_json_object *top, struct qv_config *c, qv_error *err)
{
    struct qv_json_object thinker, vision;
    qv_status s = qv_json_child(top, "thinker_config", "thinker_config.", &thinker, err);
    if (!s && thinker.json)
        s = qv_json_child(&thinker, "vision_config", "thinker_config.vision_config.", &vision, err);
    else if (!s)
        s = qv_json_child(top, "vision_config", "vision_config.", &vision, err);
    if (s)
        return s;

    const bool bare = !vision.json && qv_json_get(top, "depth") && qv_json_get(top, "patch_size");
    if (bare)
        vision = *top;
    s = read_family(top, &vision, c, err);
    if (s)
        return s;
    if (!vision.json)
        return qv_json_wrong(top, "vision_config", NULL,
                             "it is needed, unless the file is a vision config itself", err);

    s = read_sizes(&vision, c, err);
    if (!s)
        s = qv_config_read_norm(&vision, c->family->norm_eps_key, c, err);
    if (!s)
        s = check_bias(&vision, c, err);
    if (!s)
        s = read_full_attention(&vision, c, err);
    if (!s)
        s = read_deepstack(&vision, c, err);
    if (!s)
        s = read_act(&vision, c, err);
    if (!s)
        s = read_rope(&vision, c, err);
    return s;
}

/* Fails because the folder does not exist. The user may have meant a model's name on the hub, so
 * the text explains how to download it. */
static qv_status
fail_without_folder(const char *dir, qv_error *err)
{
    const char *slash = strchr(dir, '/');
    const bool deep =
        slash == dir || *dir == '.' || (slash && strchr(slash + 1, '/')) || strchr(dir, ':');
    return qv_fail(err, QV_EIO,
                   "%s: no such folder; give a checkpoint folder with config.json and weights (to "
                   "get one from the Hugging Face hub: hf download %s%s --local-dir DIR)",
                   dir, deep || slash ? "" : "ORG/", deep ? "ORG/NAME" : dir);
}

static qv_status
read_mmproj(const char *file, struct qv_config *c, qv_error *err)
{
    /* it has no keys for the activation and the rotary angles, so they are the family's */
    const struct qv_json_object none = { .file = file, .prefix = "" };
    qv_status s = qv_mmproj_read(file, c, err);
    if (!s)
        s = read_act(&none, c, err);
    return s ? s : read_rope(&none, c, err);
}

static qv_status
read_folder(const char *dir, struct qv_config *c, qv_error *err)
{
    char *path = qv_path_join(dir, "config.json");
    if (!path)
        return qv_no_memory(dir, err);

    json_t *root = NULL;
    struct stat there;
    qv_status s = qv_json_read(path, QV_JSON_MAX_CONFIG, &root, err);
    if (s == QV_EIO && stat(dir, &there))
        s = fail_without_folder(dir, err);
    if (!s) {
        const struct qv_json_object top = { .json = root, .file = path, .prefix = "" };
        s = read_vision(&top, c, err);
    }
    if (!s)
        s = qv_preprocess_read(dir, c, err);
    json_decref(root);
    free(path);
    return s;
}

qv_status
qv_config_read(const char *dir, struct qv_config *out, qv_error *err)
{
    struct qv_config c = { 0 };
    char *file = NULL;
    qv_status s = qv_mmproj_find(dir, &file, err);
    if (!s)
        s = file ? read_mmproj(file, &c, err) : read_folder(dir, &c, err);
    qv_make_printable(c.warning);
    if (!s)
        *out = c;
    free(file);
    return s;
}
