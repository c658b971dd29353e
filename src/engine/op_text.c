/* SPDX-License-Identifier: MIT */
/* Operations as text, for records; tests/op_parse.c reads it back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dtype.h"
#include "error.h"
#include "op.h"

const char *const qv_act_names[] = { "none", "gelu_tanh", "gelu_erf", "silu", "gelu_quick", NULL };
_Static_assert(sizeof qv_act_names / sizeof qv_act_names[0] == QV_ACT_COUNT + 1,
               "an act without a name");

static int64_t
integer_of(const struct qv_op *op, size_t i)
{
    int64_t value;
    memcpy(&value, (const char *)&op->u + 8 * i, 8);
    return value;
}

/* Prints the shortest number that reads back as the same value. */
static void
print_real(double d, char *text, size_t size)
{
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, size, "%.*g", digits, d);
        if (strtod(text, NULL) == d)
            return;
    }
}

static void
print_value(const struct qv_op *op, const struct qv_field *field, size_t i, char *text, size_t size)
{
    int64_t value = integer_of(op, i);
    double d;
    memcpy(&d, &value, 8);
    if (field->kind == QV_FIELD_REAL)
        print_real(d, text, size);
    else if (field->kind == QV_FIELD_DTYPE)
        snprintf(text, size, "%s", qv_dtype_name((qv_dtype)value));
    else if (field->kind == QV_FIELD_ACT && value >= 0 && value < QV_ACT_COUNT)
        snprintf(text, size, "%s", qv_act_names[value]);
    else
        snprintf(text, size, "%lld", (long long)value);
}

/* Returns the dtype of most operands; on a tie, the one that comes last. */
static int64_t
common_dtype(const struct qv_op *op, const struct qv_field *fields, size_t n)
{
    int64_t common = 0;
    int most = 0;
    for (size_t i = n; i-- > 0;) {
        int same = 0;
        for (size_t j = 0; j < n; j++)
            same += fields[j].kind == QV_FIELD_DTYPE && integer_of(op, j) == integer_of(op, i);
        if (fields[i].kind == QV_FIELD_DTYPE && same > most) {
            most = same;
            common = integer_of(op, i);
        }
    }
    return common;
}

const char *
qv_op_print(const struct qv_op *op, char *text, size_t size)
{
    size_t n, used = (size_t)snprintf(text, size, "%s", qv_op_name(op->kind));
    const struct qv_field *fields = qv_op_fields(op->kind, &n);
    int64_t dtype = common_dtype(op, fields, n);
    for (int dtypes = 0; dtypes < 2; dtypes++) /* dtypes follow the other fields */
        for (size_t i = 0; i < n && used < size; i++) {
            bool is_dtype = fields[i].kind == QV_FIELD_DTYPE;
            char value[40];
            if (is_dtype != dtypes || integer_of(op, i) == (is_dtype ? dtype : 0))
                continue;
            print_value(op, &fields[i], i, value, sizeof value);
            used += (size_t)snprintf(text + used, size - used, " %s=%s", fields[i].name, value);
        }
    if (n && used < size)
        snprintf(text + used, size - used, " dtype=%s", qv_dtype_name((qv_dtype)dtype));
    return text;
}

qv_status
qv_op_parse_kinds(const char *text, uint32_t *out, qv_error *err)
{
    *out = 0;
    while (text && *text) {
        size_t n = strcspn(text, ",");
        uint32_t found = n == 3 && !strncmp(text, "all", n) ? UINT32_MAX : 0;
        for (int kind = 0; kind < QV_OP_COUNT; kind++) {
            const char *name = qv_op_name((enum qv_op_kind)kind);
            if (strlen(name) == n && !strncmp(text, name, n))
                found = (uint32_t)1 << kind;
        }
        if (!found)
            return qv_fail(err, QV_EINVAL, "naive: \"%.*s\" is not a known operation", (int)n,
                           text);
        *out |= found;
        text += n + (text[n] == ',');
    }
    return QV_OK;
}
