/* SPDX-License-Identifier: MIT */
#include "op_parse.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dtype.h"
#include "error.h"

/* The fields read so far, as bits 1 << field, and dtype=, which applies to the operands that were
 * not named. */
struct reading {
    struct qv_op op;
    uint64_t seen;
    bool has_dtype;
    qv_dtype dtype;
};

/* Reads a word up to the next blank. Returns false at the end of the text. */
static bool
next_word(const char **text, char *word, size_t size)
{
    const char *start = *text + strspn(*text, " \t\r\n");
    size_t length = strcspn(start, " \t\r\n");
    *text = start + length;
    snprintf(word, size, "%.*s", length < size ? (int)length : (int)size - 1, start);
    return length > 0;
}

static bool
parse_integer(const char *value, int64_t *out)
{
    char *end;
    errno = 0;
    *out = strtoll(value, &end, 10);
    return end != value && !*end && !errno;
}

static bool
parse_real(const char *value, double *out)
{
    char *end;
    *out = strtod(value, &end);
    return end != value && !*end && isfinite(*out);
}

static bool
parse_act(const char *value, int64_t *out)
{
    for (*out = 0; *out < QV_ACT_COUNT; ++*out)
        if (!strcmp(qv_act_names[*out], value))
            return true;
    return false;
}

static const char a_dtype[] = "the name of a dtype, as f32 or bf16";

/* NULL, or a description of what the value should be. */
static const char *
parse_value(const struct qv_field *field, const char *value, void *at)
{
    int64_t i = 0;
    double d = 0;
    qv_dtype dtype;
    switch (field->kind) {
    case QV_FIELD_SIZE:
    case QV_FIELD_COUNT:
    case QV_FIELD_FLAG:
    case QV_FIELD_STRIDE:
        if (!parse_integer(value, &i))
            return "an integer of 64 bits";
        break;
    case QV_FIELD_ACT:
        if (!parse_act(value, &i))
            return "none, gelu_tanh, gelu_erf, silu or gelu_quick";
        break;
    case QV_FIELD_DTYPE:
        if (!qv_dtype_parse(value, &dtype))
            return a_dtype;
        i = dtype;
        break;
    case QV_FIELD_REAL:
        if (!parse_real(value, &d))
            return "a number";
        memcpy(at, &d, 8);
        return NULL;
    }
    memcpy(at, &i, 8);
    return NULL;
}

/* Finds the field of that name. A field and an operand may share a name; a dtype is then the
 * operand's. */
static size_t
find_field(enum qv_op_kind kind, const char *name, const char *value)
{
    size_t n, found;
    qv_dtype dtype;
    const struct qv_field *fields = qv_op_fields(kind, &n);
    bool is_dtype = qv_dtype_parse(value, &dtype);
    found = n;
    for (size_t i = 0; i < n; i++)
        if (!strcmp(fields[i].name, name) &&
            (found == n || (fields[i].kind == QV_FIELD_DTYPE) == is_dtype))
            found = i;
    return found;
}

/* Reads "m=760" into its field, and "x=bf16" into the operand's. */
static qv_status
parse_word(struct reading *r, char *word, qv_error *err)
{
    size_t n;
    const char *name = qv_op_name(r->op.kind), *wrong = NULL;
    const struct qv_field *fields = qv_op_fields(r->op.kind, &n);
    char *value = strchr(word, '=');
    if (!value)
        return qv_fail(err, QV_EINVAL, "%s: '%s' is not of the form field=value", name, word);
    *value++ = 0;
    bool is_common = !strcmp(word, "dtype");
    size_t i = find_field(r->op.kind, word, value);
    if (!is_common && i == n)
        return qv_fail(err, QV_EINVAL, "%s: unknown field '%s'", name, word);
    if (is_common ? r->has_dtype : r->seen >> i & 1)
        return qv_fail(err, QV_EINVAL, "%s: %s is given twice", name, word);
    if (is_common) {
        r->has_dtype = true;
        wrong = qv_dtype_parse(value, &r->dtype) ? NULL : a_dtype;
    } else {
        r->seen |= (uint64_t)1 << i;
        wrong = parse_value(&fields[i], value, qv_op_field(&r->op, i));
    }
    return wrong ? qv_fail(err, QV_EINVAL, "%s: %s=%s is not %s", name, word, value, wrong) : QV_OK;
}

static void
take_common_dtype(struct reading *r)
{
    size_t n;
    int64_t dtype = r->dtype;
    const struct qv_field *fields = qv_op_fields(r->op.kind, &n);
    for (size_t i = 0; i < n && r->has_dtype; i++)
        if (fields[i].kind == QV_FIELD_DTYPE && !(r->seen >> i & 1))
            memcpy(qv_op_field(&r->op, i), &dtype, sizeof dtype);
}

qv_status
qv_op_parse(const char *text, struct qv_op *op, qv_error *err)
{
    struct reading r = { .op.kind = QV_OP_COUNT };
    memset(&r.op.u, 0, sizeof r.op.u);
    char word[128];
    if (!next_word(&text, word, sizeof word))
        return qv_fail(err, QV_EINVAL, "an operation is a name and fields: 'convert n=8 ...'");
    for (int kind = 0; kind < QV_OP_COUNT; kind++)
        if (!strcmp(qv_op_name((enum qv_op_kind)kind), word))
            r.op.kind = (enum qv_op_kind)kind;
    if (r.op.kind == QV_OP_COUNT)
        return qv_fail(err, QV_EINVAL, "unknown operation '%s'", word);
    while (next_word(&text, word, sizeof word)) {
        qv_status status = parse_word(&r, word, err);
        if (status)
            return status;
    }
    take_common_dtype(&r);
    *op = r.op;
    return QV_OK;
}
