/* SPDX-License-Identifier: MIT */
/* The integers of a vision config: their keys, bounds, defaults and consistency rules. */
#include <stddef.h>
#include <string.h>

#include "read_config.h"
#include "error.h"

/* Returns the value, or p if it is [p, p]. Transformers accepts patch sizes in both forms. */
static const json_t *
pair_or_self(const json_t *value)
{
    if (json_array_size(value) != 2)
        return value;
    json_t *first = json_array_get(value, 0);
    return json_equal(first, json_array_get(value, 1)) ? first : value;
}

/* The vision config's integers: the alias in transformers' attribute_map, the member of struct
 * qv_config, the bounds, and the default that all families share, or 0 if families differ or have
 * no such key. */
static const struct {
    const char *alias;
    size_t offset;
    int64_t min, max, preset;
} sizes[QV_SIZES] = {
#define SIZE(field) offsetof(struct qv_config, field)
    [QV_SIZE_DEPTH] = { "num_hidden_layers", SIZE(depth), 1, QV_MOST_DEPTH, 0 },
    [QV_SIZE_HIDDEN] = { NULL, SIZE(hidden), 1, 65536, 0 },
    [QV_SIZE_HEADS] = { "num_attention_heads", SIZE(heads), 1, 1024, 0 },
    [QV_SIZE_KV_HEADS] = { NULL, SIZE(kv_heads), 1, 1024, 0 },
    [QV_SIZE_MLP_RATIO] = { NULL, SIZE(intermediate), 1, 16, 0 },
    [QV_SIZE_INTERMEDIATE] = { NULL, SIZE(intermediate), 1, 1 << 20, 0 },
    [QV_SIZE_OUT_HIDDEN] = { NULL, SIZE(out_hidden), 1, 1 << 20, 0 },
    [QV_SIZE_MERGER_INTERMEDIATE] = { NULL, SIZE(merger_intermediate), 1, 1 << 20, 0 },
    [QV_SIZE_IN_CHANNELS] = { NULL, SIZE(in_channels), 1, 16, 3 },
    [QV_SIZE_PATCH] = { NULL, SIZE(patch), 1, 256, 0 },
    [QV_SIZE_TEMPORAL] = { NULL, SIZE(temporal), 1, 8, 2 },
    [QV_SIZE_MERGE] = { NULL, SIZE(merge), 1, 8, 2 },
    [QV_SIZE_POSITIONS] = { NULL, SIZE(n_positions), 1, 1 << 20, 0 },
    [QV_SIZE_IMAGE] = { NULL, SIZE(image_size), 1, 1 << 14, 0 },
    [QV_SIZE_WINDOW] = { NULL, SIZE(window), 1, 1 << 20, 0 },
#undef SIZE
};

static int64_t
preset_of(const struct qv_family *family, enum qv_size size)
{
    const int64_t own = family->sizes->preset[size];
    return own ? own : sizes[size].preset;
}

static void
put_size(struct qv_config *c, enum qv_size size, int64_t value)
{
    value *= size == QV_SIZE_MLP_RATIO ? c->hidden : 1;
    memcpy((char *)c + sizes[size].offset, &value, sizeof value);
}

static qv_status
read_size(const struct qv_json_object *vision, enum qv_size size, const char *key,
          struct qv_config *c, qv_error *err)
{
    const char *alias = sizes[size].alias;
    const json_t *found = qv_json_get(vision, key);
    if (!found && alias) {
        found = qv_json_get(vision, alias);
        key = found ? alias : key;
    }
    if (size == QV_SIZE_PATCH)
        found = pair_or_self(found);

    int64_t value = preset_of(c->family, size);
    const qv_status s =
        found ? qv_json_check_int(vision, key, found, sizes[size].min, sizes[size].max, &value, err)
              : QV_OK;
    put_size(c, size, value);
    return s;
}

qv_status
qv_config_set_size(const struct qv_json_object *vision, const char *key, enum qv_size size,
                   int64_t value, struct qv_config *c, qv_error *err)
{
    json_t *json = json_integer(value);
    if (!json)
        return qv_fail(err, QV_ENOMEM, "%s: no memory for its keys", vision->file);
    const qv_status s =
        qv_json_check_int(vision, key, json, sizes[size].min, sizes[size].max, &value, err);
    json_decref(json);
    put_size(c, size, value);
    return s;
}

static qv_status
check_sizes(const struct qv_json_object *vision, const char *const keys[QV_SIZES],
            const struct qv_config *c, qv_error *err)
{
    const char *file = vision->file, *in = vision->prefix;
    const char *hidden = keys[QV_SIZE_HIDDEN], *heads = keys[QV_SIZE_HEADS];
    const int64_t cell = c->patch * c->merge;
    if (c->in_channels != 3)
        return qv_fail(err, QV_EUNSUPPORTED,
                       "%s: %s%s is %lld; frames are RGB: only 3 is supported", file, in,
                       keys[QV_SIZE_IN_CHANNELS], (long long)c->in_channels);
    if (c->image_size && c->image_size < c->patch)
        return qv_fail(err, QV_EFORMAT, "%s: %s%s is %lld, smaller than a patch (%s is %lld)", file,
                       in, keys[QV_SIZE_IMAGE], (long long)c->image_size, keys[QV_SIZE_PATCH],
                       (long long)c->patch);
    if (c->hidden % c->heads)
        return qv_fail(err, QV_EFORMAT, "%s: %s%s is %lld; it must be a multiple of %s%s (%lld)",
                       file, in, hidden, (long long)c->hidden, in, heads, (long long)c->heads);
    if (qv_config_head_dim(c) % 4)
        return qv_fail(err, QV_EFORMAT,
                       "%s: %s%s / %s%s is %lld / %lld = %lld; 2D rotary embedding needs a "
                       "multiple of 4",
                       file, in, hidden, in, heads, (long long)c->hidden, (long long)c->heads,
                       (long long)qv_config_head_dim(c));
    if (c->kv_heads && c->heads % c->kv_heads)
        return qv_fail(err, QV_EFORMAT, "%s: %s%s is %lld; it must be a multiple of %s%s (%lld)",
                       file, in, heads, (long long)c->heads, in, keys[QV_SIZE_KV_HEADS],
                       (long long)c->kv_heads);
    if (c->window % cell)
        return qv_fail(err, QV_EFORMAT, "%s: %s%s is %lld; it must be a multiple of %s * %s, %lld",
                       file, in, keys[QV_SIZE_WINDOW], (long long)c->window, keys[QV_SIZE_PATCH],
                       keys[QV_SIZE_MERGE], (long long)cell);
    return QV_OK;
}

qv_status
qv_config_read_sizes(const struct qv_json_object *vision, const char *const keys[QV_SIZES],
                     struct qv_config *c, qv_error *err)
{
    for (enum qv_size size = 0; size < QV_SIZES; size++) {
        if (!preset_of(c->family, size))
            continue;
        const qv_status s = keys[size] ? read_size(vision, size, keys[size], c, err) : QV_OK;
        if (s)
            return s;
        if (!keys[size])
            put_size(c, size, preset_of(c->family, size));
    }
    if (c->image_size)
        c->n_positions = (c->image_size / c->patch) * (c->image_size / c->patch);
    return check_sizes(vision, keys, c, err);
}

qv_status
qv_config_read_norm(const struct qv_json_object *vision, const char *key, struct qv_config *c,
                    qv_error *err)
{
    c->norm_eps = c->family->norm_eps;
    return c->family->norm_eps_key ? qv_json_real(vision, key, 0.0, 1.0, &c->norm_eps, err) : QV_OK;
}
