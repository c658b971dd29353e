/* SPDX-License-Identifier: MIT */
/* Descriptions as lines of text, which shapes files hold. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "description.h"
#include "engine/op.h"
#include "error.h"

enum kind { INTEGERS, REALS, NAME, FLAG };

const char *const qv_conv3d_layout_names[] = { "channels_first", "channels_last", "patch_rows",
                                               "frames_u8", NULL };
static const char *const causals[] = { "none", "zeros", "first", NULL };
#define NAME(name, text) text,
static const char *const dtypes[] = { QV_DTYPE_LIST(NAME) NULL };
#undef NAME
_Static_assert(sizeof qv_conv3d_layout_names / sizeof *qv_conv3d_layout_names ==
                   QV_LAYOUT_COUNT + 1,
               "a layout without a name");
_Static_assert(sizeof causals / sizeof *causals == QV_CAUSAL_COUNT + 1, "a causal without a name");

static const struct field {
    const char *name;
    enum kind kind;
    int count; /* number of values */
    size_t at;
    const char *const *names; /* NULL ends the list */
} fields[] = {
#define FIELD(name, kind, count, names)                                                            \
    {                                                                                              \
#name, kind, count, offsetof(qv_conv3d_desc, name), names                                  \
    }
    FIELD(n, INTEGERS, 1, NULL),        FIELD(d, INTEGERS, 1, NULL),
    FIELD(h, INTEGERS, 1, NULL),        FIELD(w, INTEGERS, 1, NULL),
    FIELD(c, INTEGERS, 1, NULL),        FIELD(o, INTEGERS, 1, NULL),
    FIELD(kernel, INTEGERS, 3, NULL),   FIELD(stride, INTEGERS, 3, NULL),
    FIELD(dilation, INTEGERS, 3, NULL), FIELD(pad_front, INTEGERS, 3, NULL),
    FIELD(pad_back, INTEGERS, 3, NULL), FIELD(groups, INTEGERS, 1, NULL),
    FIELD(merge, INTEGERS, 1, NULL),    FIELD(residual_rows, INTEGERS, 1, NULL),
    FIELD(alpha, REALS, 1, NULL),       FIELD(pixel_scale, REALS, 3, NULL),
    FIELD(pixel_shift, REALS, 3, NULL), FIELD(layout, NAME, 1, qv_conv3d_layout_names),
    FIELD(causal, NAME, 1, causals),    FIELD(act, NAME, 1, qv_act_names),
    FIELD(bias, FLAG, 1, NULL),         FIELD(frames_equal, FLAG, 1, NULL),
    FIELD(dtype, NAME, 1, dtypes),
#undef FIELD
};
enum { N_FIELDS = sizeof fields / sizeof *fields };

/* ---- print ----------------------------------------------------------------------------------- */

static size_t
value_bytes(enum kind kind)
{
    return kind == FLAG ? sizeof(bool) : kind == NAME ? sizeof(qv_act) : 8;
}

static void
print_value(const struct field *f, const char *at, char *text, size_t size)
{
    int64_t i = 0;
    double r = 0;
    unsigned name = 0;
    bool flag = false;
    switch (f->kind) {
    case INTEGERS:
        memcpy(&i, at, sizeof i);
        snprintf(text, size, "%lld", (long long)i);
        break;
    case REALS:
        memcpy(&r, at, sizeof r);
        snprintf(text, size, "%.17g", r);
        break;
    case NAME: /* all enums of the description are ints */
        memcpy(&name, at, sizeof name);
        snprintf(text, size, "%s", f->names[name]);
        break;
    case FLAG:
        memcpy(&flag, at, sizeof flag);
        snprintf(text, size, "%d", flag);
        break;
    }
}

const char *
qv_conv3d_print(const qv_conv3d_desc *desc, char *text, size_t size)
{
    const qv_conv3d_desc empty = { 0 };
    const qv_conv3d_desc given = qv_conv3d_defaults(desc, QV_DTYPE_AUTO);
    const qv_conv3d_desc defaults = qv_conv3d_defaults(&empty, QV_DTYPE_AUTO);
    size_t used = 0;
    text[0] = 0;
    for (const struct field *f = fields; f < fields + N_FIELDS; f++) {
        const char *at = (const char *)&given + f->at;
        size_t bytes = value_bytes(f->kind);
        if (!memcmp(at, (const char *)&defaults + f->at, bytes * (size_t)f->count))
            continue;
        for (int i = 0; i < f->count && used < size; i++) {
            char value[40];
            print_value(f, at + (size_t)i * bytes, value, sizeof value);
            used += (size_t)snprintf(text + used, size - used, "%s%s%s%s", used && !i ? " " : "",
                                     i ? "," : f->name, i ? "" : "=", value);
        }
    }
    return text;
}

/* ---- parse ----------------------------------------------------------------------------------- */

/* Parses one value of a field at the start of text. Returns the rest of the text, or NULL. */
static const char *
parse_value(const struct field *f, const char *text, char *at)
{
    char *end = NULL;
    errno = 0;
    if (f->kind == INTEGERS || f->kind == FLAG) {
        int64_t v = strtoll(text, &end, 10);
        bool flag = v == 1;
        if (f->kind == FLAG && v != 0 && v != 1)
            return NULL;
        memcpy(at, f->kind == FLAG ? (void *)&flag : (void *)&v, value_bytes(f->kind));
    } else if (f->kind == REALS) {
        double v = strtod(text, &end);
        if (!isfinite(v))
            return NULL;
        memcpy(at, &v, sizeof v);
    } else {
        unsigned i = 0;
        while (f->names[i] && strcmp(f->names[i], text))
            i++;
        if (!f->names[i])
            return NULL;
        memcpy(at, &i, sizeof i);
        return text + strlen(text);
    }
    return end == text || errno ? NULL : end;
}

static qv_status
parse_field(qv_conv3d_desc *d, char *word, unsigned *seen, qv_error *err)
{
    char *equals = strchr(word, '=');
    if (!equals)
        return qv_fail(err, QV_EINVAL, "conv3d: \"%s\" is not of the form field=value", word);
    *equals = 0;
    const struct field *f = fields;
    while (f < fields + N_FIELDS && strcmp(f->name, word))
        f++;
    if (f == fields + N_FIELDS) {
        char known[256] = "";
        for (f = fields; f < fields + N_FIELDS; f++)
            qv_list_name(known, sizeof known, f->name);
        return qv_fail(err, QV_EINVAL, "conv3d: unknown field \"%s\"; the fields are %s", word,
                       known);
    }
    if (*seen >> (f - fields) & 1)
        return qv_fail(err, QV_EINVAL, "conv3d: %s is given twice", word);
    *seen |= 1u << (f - fields);
    const char *text = equals + 1;
    for (int i = 0; i < f->count && text; i++) {
        text = parse_value(f, text, (char *)d + f->at + (size_t)i * value_bytes(f->kind));
        if (text && i + 1 < f->count)
            text = *text == ',' ? text + 1 : NULL;
    }
    if (!text || *text)
        return qv_fail(err, QV_EINVAL, "conv3d: %s is \"%s\"; it must be %s", word, equals + 1,
                       f->kind == NAME   ? "a known name"
                       : f->kind == FLAG ? "0 or 1"
                       : f->count == 3   ? "three numbers separated by commas"
                                         : "a number");
    return QV_OK;
}

qv_status
qv_conv3d_parse(const char *text, qv_conv3d_desc *out, qv_error *err)
{
    static const char blanks[] = " \t\r\n";
    qv_conv3d_desc d = { 0 };
    unsigned seen = 0;
    while (*(text += strspn(text, blanks))) {
        char word[160];
        size_t length = strcspn(text, blanks);
        if (length >= sizeof word)
            return qv_fail(err, QV_EINVAL, "conv3d: the word \"%.40s...\" is too long", text);
        memcpy(word, text, length);
        word[length] = 0;
        text += length;
        qv_status status = parse_field(&d, word, &seen, err);
        if (status)
            return status;
    }
    *out = qv_conv3d_defaults(&d, QV_DTYPE_AUTO);
    return QV_OK;
}
