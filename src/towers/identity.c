/* SPDX-License-Identifier: MIT */
/* A hash of everything that a tower's tokens depend on. */
#include <stddef.h>
#include <string.h>

#include "config.h"
#include "engine/op.h"
#include "error.h"
#include "files/json.h"
#include "files/preprocess_json.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

enum kind { TEXT, INT, REAL, ACT, BLOCKS, LAYERS, PREPROCESS };

static const struct field {
    const char *name;
    enum kind kind;
    size_t at;
} fields[] = {
#define QV_CONFIG(kind, member, dimensions) { #member, kind, offsetof(struct qv_config, member) },
#include "config.inc"
};

static json_t *
list(const int64_t *numbers, int64_t n)
{
    json_t *to = json_array();
    for (int64_t i = 0; i < n; i++)
        if (json_array_append_new(to, json_integer(numbers[i]))) {
            json_decref(to);
            return NULL;
        }
    return to;
}

static json_t *
list_blocks(const bool *has, int64_t depth)
{
    int64_t numbers[QV_MOST_DEPTH], n = 0;
    for (int64_t i = 0; i < depth; i++)
        if (has[i])
            numbers[n++] = i;
    return list(numbers, n);
}

static json_t *
value_of(const struct qv_config *c, const struct field *f)
{
    const void *at = (const char *)c + f->at;
    switch (f->kind) {
    case TEXT: return json_string(at);
    case INT: return json_integer(*(const int64_t *)at);
    case REAL: return json_real(*(const double *)at);
    case ACT: return json_string(qv_act_names[*(const int *)at]);
    case BLOCKS: return list_blocks(at, c->depth);
    case LAYERS: return list(at, c->n_deepstack);
    case PREPROCESS: return qv_preprocess_json(at);
    }
    return NULL;
}

/* ---- hashing --------------------------------------------------------------------------------- */

static void
hash_number(XXH3_state_t *hash, uint64_t number)
{
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(number >> 8 * i);
    XXH3_128bits_update(hash, bytes, sizeof bytes);
}

static void
hash_text(XXH3_state_t *hash, const char *text)
{
    XXH3_128bits_update(hash, text, strlen(text) + 1);
}

/* Hashes values rather than their text, which depends on jansson's version. */
static void
hash_value(XXH3_state_t *hash, const json_t *value)
{
    const double real = json_real_value(value);
    uint64_t bits;
    const char *name;
    json_t *inner;
    memcpy(&bits, &real, sizeof bits);
    if (json_is_string(value))
        hash_text(hash, json_string_value(value));
    else if (json_is_array(value))
        hash_number(hash, json_array_size(value));
    else
        hash_number(hash, json_is_real(value) ? bits : (uint64_t)json_integer_value(value));
    for (size_t i = 0; i < json_array_size(value); i++)
        hash_value(hash, json_array_get(value, i));
    json_object_foreach((json_t *)(uintptr_t)value, name, inner)
    {
        hash_text(hash, name);
        hash_value(hash, inner);
    }
}

qv_status
qv_identity_make(const struct qv_config *c, const char *digest, char identity[QV_IDENTITY_SIZE],
                 char **numbers, qv_error *err)
{
    XXH3_state_t hash;
    json_t *config = json_object();
    bool lost = false;
    XXH3_128bits_reset(&hash);
    hash_text(&hash, digest);
    for (size_t i = 0; i < sizeof fields / sizeof *fields && !lost; i++) {
        const struct field *f = &fields[i];
        json_t *value = value_of(c, f);
        hash_text(&hash, f->name);
        hash_value(&hash, value);
        lost = !value;
        if (f->kind == PREPROCESS) /* it is elsewhere in qv_model_info */
            json_decref(value);
        else if (!lost)
            lost = json_object_set_new(config, f->name, value);
    }
    const XXH128_hash_t h = XXH3_128bits_digest(&hash);
    snprintf(identity, QV_IDENTITY_SIZE, "%016llx%016llx", (unsigned long long)h.high64,
             (unsigned long long)h.low64);
    *numbers = lost ? NULL : qv_json_text(config, JSON_COMPACT);
    json_decref(config);
    return *numbers ? QV_OK : qv_fail(err, QV_ENOMEM, "no memory for a tower's numbers");
}
