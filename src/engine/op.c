/* SPDX-License-Identifier: MIT */
/* Operations as data: everything that can be said about one without running it. */
#include "engine/op.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dtype.h"
#include "error.h"

/* ---- the list, as tables --------------------------------------------------------------------- */

enum field_type { FIELD_INT, FIELD_REAL };

struct field {
    const char *name;
    enum field_type type;
};

#define QV_INT(field) { #field, FIELD_INT },
#define QV_REAL(field) { #field, FIELD_REAL },
#define QV_OP(name, operands, fields)                                                              \
    static const struct field name##_fields[] = { fields };                                        \
    _Static_assert(sizeof(struct qv_op_##name) ==                                                  \
                       8 * (sizeof name##_fields / sizeof name##_fields[0]),                       \
                   "every field of " #name " is 8 bytes");
#include "engine/ops.inc"
#undef QV_OP
#undef QV_INT
#undef QV_REAL

static const struct {
    const char *name, *operands;
    const struct field *fields;
    size_t n_fields;
} kinds[] = {
#define QV_OP(name, operands, fields)                                                              \
    { #name, operands, name##_fields, sizeof name##_fields / sizeof name##_fields[0] },
#include "engine/ops.inc"
#undef QV_OP
};

/* Fields whose values have names. */
static const char *const dtype_names[] = { "auto", "f32", "bf16", "u8", "f16" };
static const char *const act_names[] = { "none", "gelu_tanh", "gelu_erf" };
_Static_assert(sizeof act_names / sizeof act_names[0] == QV_ACT_COUNT, "an act without a name");

static const struct {
    const char *field;
    const char *const *names;
    int64_t n;
} named_fields[] = {
    { "dtype", dtype_names, sizeof dtype_names / sizeof dtype_names[0] },
    { "from", dtype_names, sizeof dtype_names / sizeof dtype_names[0] },
    { "act", act_names, QV_ACT_COUNT },
};

static bool
is_kind(enum qv_op_kind kind)
{
    return (unsigned)kind < QV_OP_COUNT;
}

const char *
qv_op_name(enum qv_op_kind kind)
{
    return is_kind(kind) ? kinds[kind].name : "unknown operation";
}

int
qv_op_n_operands(enum qv_op_kind kind)
{
    int n = 0;
    if (is_kind(kind))
        for (const char *c = kinds[kind].operands; *c; c++)
            n += *c != ' ' && (c[1] == ' ' || !c[1]);
    return n;
}

bool
qv_op_equal(const struct qv_op *a, const struct qv_op *b)
{
    return a->kind == b->kind && is_kind(a->kind) &&
           !memcmp(&a->u, &b->u, 8 * kinds[a->kind].n_fields);
}

/* ---- print and parse ------------------------------------------------------------------------- */

static const char *
value_name(const char *field, int64_t value)
{
    for (size_t i = 0; i < sizeof named_fields / sizeof named_fields[0]; i++)
        if (!strcmp(named_fields[i].field, field) && value >= 0 && value < named_fields[i].n)
            return named_fields[i].names[value];
    return NULL;
}

static void
print_value(const struct field *field, const void *at, char *text, size_t size)
{
    int64_t i;
    double d;
    memcpy(&i, at, 8);
    memcpy(&d, at, 8);
    const char *name = field->type == FIELD_INT ? value_name(field->name, i) : NULL;
    if (name)
        snprintf(text, size, "%s", name);
    else if (field->type == FIELD_INT)
        snprintf(text, size, "%lld", (long long)i);
    else /* the shortest that reads back the same */
        for (int digits = 6; digits <= 17; digits++) {
            snprintf(text, size, "%.*g", digits, d);
            if (strtod(text, NULL) == d)
                break;
        }
}

const char *
qv_op_print(const struct qv_op *op, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "%s", qv_op_name(op->kind));
    for (size_t i = 0; is_kind(op->kind) && i < kinds[op->kind].n_fields && used < size; i++) {
        const struct field *field = &kinds[op->kind].fields[i];
        const char *at = (const char *)&op->u + 8 * i;
        char value[40];
        if (!memcmp(at, &(int64_t){ 0 }, 8) && strcmp(field->name, "dtype"))
            continue;
        print_value(field, at, value, sizeof value);
        used += (size_t)snprintf(text + used, size - used, " %s=%s", field->name, value);
    }
    return text;
}

/* A word up to the next blank; false at the end of the text. */
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
parse_name(const char *field, const char *value, int64_t *out)
{
    for (size_t i = 0; i < sizeof named_fields / sizeof named_fields[0]; i++)
        if (!strcmp(named_fields[i].field, field))
            for (int64_t v = 0; v < named_fields[i].n; v++)
                if (!strcmp(named_fields[i].names[v], value)) {
                    *out = v;
                    return true;
                }
    return false;
}

static qv_status
parse_value(const char *op, const struct field *field, const char *value, void *at, qv_error *err)
{
    char *end;
    errno = 0;
    if (field->type == FIELD_REAL) {
        double d = strtod(value, &end);
        if (end == value || *end || !isfinite(d))
            return qv_fail(err, QV_EINVAL, "%s: %s=%s is not a number", op, field->name, value);
        memcpy(at, &d, 8);
        return QV_OK;
    }
    int64_t i;
    if (!parse_name(field->name, value, &i)) {
        i = strtoll(value, &end, 10);
        if (end == value || *end || errno || value_name(field->name, 0))
            return qv_fail(err, QV_EINVAL, "%s: %s=%s is not %s", op, field->name, value,
                           !value_name(field->name, 0)   ? "an integer of 64 bits"
                           : !strcmp(field->name, "act") ? "none, gelu_tanh or gelu_erf"
                                                         : "f32 or bf16");
    }
    memcpy(at, &i, 8);
    return QV_OK;
}

/* "m=760" into its field of op; seen is one bit a field. */
static qv_status
parse_field(struct qv_op *op, char *word, uint64_t *seen, qv_error *err)
{
    const char *name = qv_op_name(op->kind);
    char *equals = strchr(word, '=');
    if (!equals)
        return qv_fail(err, QV_EINVAL, "%s: '%s' is not of the form field=value", name, word);
    *equals = 0;
    for (size_t i = 0; i < kinds[op->kind].n_fields; i++) {
        const struct field *field = &kinds[op->kind].fields[i];
        if (strcmp(field->name, word))
            continue;
        if (*seen >> i & 1)
            return qv_fail(err, QV_EINVAL, "%s: %s is given twice", name, word);
        *seen |= (uint64_t)1 << i;
        return parse_value(name, field, equals + 1, (char *)&op->u + 8 * i, err);
    }
    return qv_fail(err, QV_EINVAL, "%s: there is no field '%s'", name, word);
}

qv_status
qv_op_parse(const char *text, struct qv_op *op, qv_error *err)
{
    struct qv_op parsed = { .kind = QV_OP_COUNT };
    memset(&parsed.u, 0, sizeof parsed.u);
    char word[128];
    uint64_t seen = 0;
    if (!next_word(&text, word, sizeof word))
        return qv_fail(err, QV_EINVAL, "an operation is a name and fields: 'convert n=8 ...'");
    for (int kind = 0; kind < QV_OP_COUNT; kind++)
        if (!strcmp(kinds[kind].name, word))
            parsed.kind = (enum qv_op_kind)kind;
    if (!is_kind(parsed.kind))
        return qv_fail(err, QV_EINVAL, "there is no operation '%s'", word);
    while (next_word(&text, word, sizeof word)) {
        qv_status status = parse_field(&parsed, word, &seen, err);
        if (status)
            return status;
    }
    *op = parsed;
    return QV_OK;
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
            return qv_fail(err, QV_EINVAL, "plain: \"%.*s\" is no operation", (int)n, text);
        *out |= found;
        text += n + (text[n] == ',');
    }
    return QV_OK;
}

/* ---- sizes ----------------------------------------------------------------------------------- */

/* A product of sizes; stays at INT64_MAX once it has overflowed. */
static int64_t
times(int64_t a, int64_t b)
{
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

static int64_t
square(int64_t a)
{
    return times(a, a);
}

static struct qv_operand
matrix(int64_t rows, int64_t cols, int64_t dtype)
{
    int64_t element = dtype == QV_DTYPE_AUTO ? 4 : (int64_t)qv_dtype_bytes(dtype);
    return (struct qv_operand){ .rows = rows,
                                .cols = cols,
                                .dtype = (qv_dtype)dtype,
                                .bytes = (size_t)times(times(rows, cols), element) };
}

static struct qv_operand
used_if(int64_t used, struct qv_operand operand)
{
    return used ? operand : (struct qv_operand){ .dtype = operand.dtype };
}

static struct qv_operand
rows_operand(const struct qv_op_rows *op, int i)
{
    int64_t frames = op->still ? 1 : op->temporal, pixels = times(op->grid_h, op->grid_w);
    int64_t patch = times(square(op->patch), op->channels);
    if (i == 0)
        return matrix(times(op->pairs, frames), times(pixels, patch), QV_U8);
    return matrix(times(op->pairs, pixels), times(frames, patch), op->dtype);
}

static struct qv_operand
gemm_operand(const struct qv_op_gemm *op, int i)
{
    struct qv_operand w = matrix(op->n, op->k, op->dtype);
    switch (i) {
    case 0: return matrix(op->m, op->k, op->dtype);
    case 1: w.weight = true; return w;
    case 2: return used_if(op->bias, matrix(1, op->n, op->dtype));
    case 3: return used_if(op->addend_rows, matrix(op->addend_rows, op->n, op->dtype));
    }
    return matrix(op->m, op->n, op->dtype);
}

static struct qv_operand
norm_operand(const struct qv_op_norm *op, int i)
{
    if (i == 0 || i == 3)
        return matrix(op->rows, op->cols, op->dtype);
    return used_if(i == 1 || !op->rms, matrix(1, op->cols, QV_F32));
}

static struct qv_operand
rope_operand(const struct qv_op_rope *op, int i)
{
    if (i < 2)
        return matrix(op->period, op->head_dim / 2, QV_F32);
    return matrix(op->rows, times(3, times(op->heads, op->head_dim)), op->dtype);
}

static struct qv_operand
attention_operand(const struct qv_op_attention *op, int i)
{
    int64_t width = times(op->heads, op->head_dim);
    return matrix(times(op->batch, op->seq), i == 0 ? times(3, width) : width, op->dtype);
}

/* How many positions a kernel takes along an axis. */
static int64_t
positions(int64_t size, int64_t kernel, int64_t dilation, int64_t stride)
{
    int64_t left = size - times(kernel - 1, dilation) - 1;
    return left < 0 ? 0 : left / stride + 1;
}

static struct qv_operand
unfold_operand(const struct qv_op_unfold *op, int i)
{
    if (i == 0)
        return matrix(times(op->n, op->d), times(times(op->h, op->w), op->c), op->dtype);
    int64_t d = positions(op->d, op->kd, 1, op->sd), h = positions(op->h, op->kh, 1, op->sh);
    int64_t w = positions(op->w, op->kw, 1, op->sw);
    return matrix(times(times(op->n, d), times(h, w)),
                  times(times(op->kd, op->kh), times(op->kw, op->c)), op->dtype);
}

void
qv_op_conv_output(const struct qv_op_conv *op, int64_t out[3])
{
    int64_t h, w;
    if (__builtin_add_overflow(op->h, op->top, &h) || __builtin_add_overflow(h, op->bottom, &h))
        h = INT64_MAX;
    if (__builtin_add_overflow(op->w, op->left, &w) || __builtin_add_overflow(w, op->right, &w))
        w = INT64_MAX;
    out[0] = positions(op->d, op->kd, op->dd, op->sd);
    out[1] = positions(h, op->kh, op->dh, op->sh);
    out[2] = positions(w, op->kw, op->dw, op->sw);
}

/* Whether every position of a kernel of k taps sees at least one of `size` values. */
static bool
always_sees(int64_t size, int64_t out, int64_t k, int64_t stride, int64_t dilation, int64_t front)
{
    for (int64_t i = 0; i < out; i++) {
        bool sees = false;
        for (int64_t j = 0; j < k && !sees; j++) {
            int64_t at = i * stride + j * dilation - front;
            sees = at >= 0 && at < size;
        }
        if (!sees)
            return false;
    }
    return true;
}

bool
qv_op_conv_is_sparse(const struct qv_op_conv *op)
{
    int64_t out[3];
    qv_op_conv_output(op, out);
    return (op->kd > 1 && op->sd > op->kd) || op->sh > op->kh || op->sw > op->kw ||
           !always_sees(op->h, out[1], op->kh, op->sh, op->dh, op->top) ||
           !always_sees(op->w, out[2], op->kw, op->sw, op->dw, op->left);
}

static struct qv_operand
conv_operand(const struct qv_op_conv *op, int i)
{
    int64_t out[3], frames = times(op->n - 1, op->x_depth);
    if (__builtin_add_overflow(frames, op->d, &frames))
        frames = INT64_MAX;
    qv_op_conv_output(op, out);
    struct qv_operand w =
        matrix(op->o, times(times(op->c / op->groups, op->kd), times(op->kh, op->kw)), op->dtype);
    switch (i) {
    case 0: return matrix(frames, times(times(op->h, op->w), op->c), op->dtype);
    case 1: w.weight = true; return w;
    case 2: return used_if(op->bias, matrix(1, op->o, op->dtype));
    case 3: return used_if(op->addend_rows, matrix(op->addend_rows, op->o, op->dtype));
    }
    return matrix(times(times(op->n, out[0]), times(out[1], out[2])), op->o,
                  op->sums ? QV_F32 : op->dtype);
}

static struct qv_operand
finish_operand(const struct qv_op_finish *op, int i)
{
    switch (i) {
    case 0: return matrix(op->rows, op->cols, QV_F32);
    case 1: return used_if(op->bias, matrix(1, op->cols, op->dtype));
    case 2: return used_if(op->addend_rows, matrix(op->addend_rows, op->cols, op->dtype));
    }
    return matrix(op->rows, op->cols, op->dtype);
}

static struct qv_operand
taps_operand(const struct qv_op_taps *op, int i)
{
    if (i == 0)
        return matrix(op->table_rows, op->cols, op->dtype);
    if (i == 3)
        return matrix(op->rows, op->cols, op->dtype);
    return matrix(op->rows, 4, i == 1 ? QV_DTYPE_AUTO : QV_F32);
}

/* The i-th word of the operands; the list's strings are literals, so the names are static. */
static const char *
operand_name(enum qv_op_kind kind, int i)
{
    static const char *const all[] = { "frames", "x",   "y",   "w",   "bias",  "addend",
                                       "weight", "cos", "sin", "qkv", "table", "index" };
    const char *text = kinds[kind].operands;
    char word[16] = "";
    for (int at = 0; at <= i; at++)
        next_word(&text, word, sizeof word);
    for (size_t n = 0; n < sizeof all / sizeof all[0]; n++)
        if (!strcmp(all[n], word))
            return all[n];
    return "operand";
}

struct qv_operand
qv_op_operand(const struct qv_op *op, int i)
{
    struct qv_operand out = { 0 };
    if (i < 0 || i >= qv_op_n_operands(op->kind))
        return out;
    switch (op->kind) {
    case QV_OP_rows: out = rows_operand(&op->u.rows, i); break;
    case QV_OP_convert:
        out = matrix(1, op->u.convert.n, i == 0 ? op->u.convert.from : op->u.convert.dtype);
        break;
    case QV_OP_gemm: out = gemm_operand(&op->u.gemm, i); break;
    case QV_OP_norm: out = norm_operand(&op->u.norm, i); break;
    case QV_OP_rope: out = rope_operand(&op->u.rope, i); break;
    case QV_OP_attention: out = attention_operand(&op->u.attention, i); break;
    case QV_OP_taps: out = taps_operand(&op->u.taps, i); break;
    case QV_OP_unfold: out = unfold_operand(&op->u.unfold, i); break;
    case QV_OP_conv: out = conv_operand(&op->u.conv, i); break;
    case QV_OP_finish: out = finish_operand(&op->u.finish, i); break;
    case QV_OP_COUNT: break;
    }
    out.name = operand_name(op->kind, i);
    return out;
}

/* ---- check ----------------------------------------------------------------------------------- */

/* Fields that may be zero; what they may hold beyond that is checked by kind. */
static bool
may_be_zero(const char *field)
{
    static const char *const names[] = { "still",          "bias",   "rms",  "act",
                                         "addend_rows",    "top",    "left", "right",
                                         "channels_first", "bottom", "sums" };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!strcmp(names[i], field))
            return true;
    return false;
}

static bool
is_flag(const char *field)
{
    return !strcmp(field, "still") || !strcmp(field, "bias") || !strcmp(field, "rms") ||
           !strcmp(field, "channels_first");
}

static qv_status
check_field(const char *op, const struct field *field, const void *at, qv_error *err)
{
    int64_t i;
    double d;
    memcpy(&i, at, 8);
    memcpy(&d, at, 8);
    if (field->type == FIELD_REAL) /* as float, because that is what kernels hold */
        return fabs(d) <= FLT_MAX
                   ? QV_OK
                   : qv_fail(err, QV_EINVAL, "%s: %s=%g is not a finite float", op, field->name, d);
    if (!strcmp(field->name, "dtype") || !strcmp(field->name, "from"))
        return i == QV_F32 || i == QV_BF16
                   ? QV_OK
                   : qv_fail(err, QV_EINVAL, "%s: %s=%s; it must be f32 or bf16", op, field->name,
                             value_name(field->name, i) ? value_name(field->name, i) : "?");
    if (!strcmp(field->name, "act"))
        return i >= 0 && i < QV_ACT_COUNT ? QV_OK
                                          : qv_fail(err, QV_EINVAL, "%s: act=%lld is none of %d",
                                                    op, (long long)i, QV_ACT_COUNT);
    if (is_flag(field->name) && i != 0 && i != 1)
        return qv_fail(err, QV_EINVAL, "%s: %s=%lld; it must be 0 or 1", op, field->name,
                       (long long)i);
    if (i < 0 || (i == 0 && !may_be_zero(field->name)))
        return qv_fail(err, QV_EINVAL, "%s: %s=%lld; it must be positive", op, field->name,
                       (long long)i);
    return QV_OK;
}

static qv_status
check_conv(const struct qv_op_conv *op, qv_error *err)
{
    int64_t out[3];
    qv_op_conv_output(op, out);
    if (op->c % op->groups || op->o % op->groups)
        return qv_fail(err, QV_EINVAL, "conv: groups=%lld must divide c=%lld and o=%lld",
                       (long long)op->groups, (long long)op->c, (long long)op->o);
    if (op->x_depth < op->d)
        return qv_fail(err, QV_EINVAL, "conv: x_depth=%lld; samples of d=%lld frames overlap",
                       (long long)op->x_depth, (long long)op->d);
    if (!out[0] || !out[1] || !out[2])
        return qv_fail(err, QV_EINVAL,
                       "conv: kd=%lld kh=%lld kw=%lld; larger (dilated) than the padded input of "
                       "d=%lld h=%lld w=%lld",
                       (long long)op->kd, (long long)op->kh, (long long)op->kw, (long long)op->d,
                       (long long)op->h, (long long)op->w);
    if (op->sums > 2)
        return qv_fail(err, QV_EINVAL, "conv: sums=%lld; it must be 0, 1 or 2",
                       (long long)op->sums);
    if (op->sums && (op->alpha != 1 || op->bias || op->act || op->addend_rows))
        return qv_fail(err, QV_EINVAL,
                       "conv: sums=%lld; bare sums have no alpha, bias, act or addend",
                       (long long)op->sums);
    int64_t rows = conv_operand(op, 4).rows;
    if (op->addend_rows && rows % op->addend_rows)
        return qv_fail(err, QV_EINVAL, "conv: addend_rows=%lld must divide %lld rows",
                       (long long)op->addend_rows, (long long)rows);
    return QV_OK;
}

/* What one field alone cannot tell. */
static qv_status
check_kind(const struct qv_op *op, qv_error *err)
{
    switch (op->kind) {
    case QV_OP_rows: {
        const struct qv_op_rows *r = &op->u.rows;
        if (r->grid_h % r->merge || r->grid_w % r->merge)
            return qv_fail(err, QV_EINVAL,
                           "rows: grid_h=%lld grid_w=%lld; merge=%lld must divide both",
                           (long long)r->grid_h, (long long)r->grid_w, (long long)r->merge);
        if (r->channels > 3)
            return qv_fail(err, QV_EINVAL, "rows: channels=%lld; there are 3 scales",
                           (long long)r->channels);
        return QV_OK;
    }
    case QV_OP_gemm:
        if (op->u.gemm.addend_rows && op->u.gemm.m % op->u.gemm.addend_rows)
            return qv_fail(err, QV_EINVAL, "gemm: addend_rows=%lld must divide m=%lld",
                           (long long)op->u.gemm.addend_rows, (long long)op->u.gemm.m);
        return QV_OK;
    case QV_OP_norm:
        if (op->u.norm.eps < 0)
            return qv_fail(err, QV_EINVAL, "norm: eps=%g; it must not be negative", op->u.norm.eps);
        return QV_OK;
    case QV_OP_rope:
        if (op->u.rope.head_dim % 2)
            return qv_fail(err, QV_EINVAL, "rope: head_dim=%lld; it must be even",
                           (long long)op->u.rope.head_dim);
        return QV_OK;
    case QV_OP_taps:
        if (op->u.taps.table_rows > INT32_MAX)
            return qv_fail(err, QV_EINVAL, "taps: table_rows=%lld; indices are int32",
                           (long long)op->u.taps.table_rows);
        return QV_OK;
    case QV_OP_unfold:
        if (op->u.unfold.kd > op->u.unfold.d || op->u.unfold.kh > op->u.unfold.h ||
            op->u.unfold.kw > op->u.unfold.w)
            return qv_fail(err, QV_EINVAL,
                           "unfold: kd=%lld kh=%lld kw=%lld; no more than d=%lld h=%lld w=%lld",
                           (long long)op->u.unfold.kd, (long long)op->u.unfold.kh,
                           (long long)op->u.unfold.kw, (long long)op->u.unfold.d,
                           (long long)op->u.unfold.h, (long long)op->u.unfold.w);
        return QV_OK;
    case QV_OP_conv: return check_conv(&op->u.conv, err);
    case QV_OP_finish:
        if (op->u.finish.addend_rows && op->u.finish.rows % op->u.finish.addend_rows)
            return qv_fail(err, QV_EINVAL, "finish: addend_rows=%lld must divide rows=%lld",
                           (long long)op->u.finish.addend_rows, (long long)op->u.finish.rows);
        return QV_OK;
    case QV_OP_convert:
    case QV_OP_attention:
    case QV_OP_COUNT: break;
    }
    return QV_OK;
}

qv_status
qv_op_check(const struct qv_op *op, qv_error *err)
{
    if (!is_kind(op->kind))
        return qv_fail(err, QV_EINVAL, "operation %d is none of %d", (int)op->kind, QV_OP_COUNT);
    const char *name = qv_op_name(op->kind);
    qv_status status = QV_OK;
    for (size_t i = 0; i < kinds[op->kind].n_fields && !status; i++)
        status = check_field(name, &kinds[op->kind].fields[i], (const char *)&op->u + 8 * i, err);
    if (!status)
        status = check_kind(op, err);
    for (int i = 0; i < qv_op_n_operands(op->kind) && !status; i++) {
        struct qv_operand operand = qv_op_operand(op, i);
        if (operand.bytes >= PTRDIFF_MAX)
            status = qv_fail(err, QV_EINVAL, "%s: operand %s is too large for an address", name,
                             operand.name);
    }
    return status;
}

/* ---- cost ------------------------------------------------------------------------------------ */

double
qv_op_flops(const struct qv_op *op)
{
    switch (op->kind) {
    case QV_OP_rows: {
        struct qv_operand y = qv_op_operand(op, 1);
        return 2.0 * (double)y.rows * (double)y.cols;
    }
    case QV_OP_convert: return 0;
    case QV_OP_gemm:
        return 2.0 * (double)op->u.gemm.m * (double)op->u.gemm.n * (double)op->u.gemm.k;
    case QV_OP_norm: /* squares, two factors; and the mean, its difference twice, the bias */
        return (op->u.norm.rms ? 4.0 : 8.0) * (double)op->u.norm.rows * (double)op->u.norm.cols;
    case QV_OP_rope: /* q and k, 6 for each pair of values */
        return 6.0 * (double)op->u.rope.rows * (double)op->u.rope.heads *
               (double)op->u.rope.head_dim;
    case QV_OP_attention: /* the two products */
        return 4.0 * (double)op->u.attention.batch * (double)op->u.attention.heads *
               (double)op->u.attention.seq * (double)op->u.attention.seq *
               (double)op->u.attention.head_dim;
    case QV_OP_taps: return 8.0 * (double)op->u.taps.rows * (double)op->u.taps.cols;
    case QV_OP_unfold: return 0;
    case QV_OP_conv: {
        struct qv_operand w = qv_op_operand(op, 1), y = qv_op_operand(op, 4);
        return 2.0 * (double)y.rows * (double)y.cols * (double)w.cols;
    }
    case QV_OP_finish: return 2.0 * (double)op->u.finish.rows * (double)op->u.finish.cols;
    case QV_OP_COUNT: break;
    }
    return 0;
}

double
qv_op_bytes(const struct qv_op *op)
{
    double sum = 0;
    for (int i = 0; i < qv_op_n_operands(op->kind); i++)
        sum += (double)qv_op_operand(op, i).bytes;
    if (op->kind == QV_OP_rope) /* two thirds, read and written in place */
        sum += (double)qv_op_operand(op, 2).bytes / 3;
    if (op->kind == QV_OP_conv && op->u.conv.sums == 2) /* read as well */
        sum += (double)qv_op_operand(op, 4).bytes;
    return sum;
}

/* ---- tolerance ------------------------------------------------------------------------------- */

/* Half the distance of two neighbours at `value` in the output's dtype: 24 or 8 bits. Smaller than
 * the least normal number nothing is promised: devices may flush it to zero. */
static double
half_unit(int64_t dtype, double value)
{
    int exponent;
    frexp(value, &exponent); /* |value| in [2^(exponent-1), 2^exponent) */
    return fmax(ldexp(1, exponent - 1 - (dtype == QV_BF16 ? 8 : 24)), FLT_MIN);
}

/*
 * Errors of f32 arithmetic, in units of FLT_EPSILON = 2^-23 (twice the error of one rounding).
 * A sum of k products up to max_x * max_w counts (k + 1) * max_x * max_w, as in XNNPACK's ynnpack:
 * a device may add in any order and grouping. Meanings of max_x and max_w by kind:
 *   rows       not used: bytes and the fields tell
 *   gemm       max_x: of x in this row, of the bias and of the addend; max_w: of w
 *   norm       max_x: of x in this row, over sqrt(var + eps); max_w: of weight and bias
 *   rope       max_x: of q and k in this row; max_w: of cos and sin
 *   attention  max_x: root of (max of q in this row * max of k in this run); max_w: of
 *              v in this run of `seq` rows
 *   taps       max_x: of the table; max_w: of this row's weights
 *   conv       as gemm, max_x of all x; with sums = 2 also of y before
 *   finish     as gemm with k = 1: max_x: of x, bias and addend; max_w: 1
 */
static double
product_error(int64_t k, const struct qv_op_finish *op, double expected, double max_x, double max_w)
{
    double bias = op->bias ? max_x : 0, addend = op->addend_rows ? max_x : 0;
    double sum = fabs(op->alpha) * (double)(k + 1) * max_x * max_w + bias;
    if (op->act == QV_ACT_NONE)
        return sum + addend + fabs(expected);
    /* |gelu'| < 1.13. tanh and erf to 4 units of 1, times half their argument: where that is
     * positive it is near the result, where negative they have saturated below -8. */
    return 1.13 * sum + 2 * (fabs(expected) + addend + 8) + addend + fabs(expected);
}

/* Sums of one sign, where the rule above would not do: one after the other, c terms are wrong by up
 * to c/2 relative. The mean by c/4 of max_x, then (in two passes; one pass loses more and is wrong)
 * the variance by c/2 and its root by c/4; differences, root, quotient, two products: 4. */
static double
norm_error(const struct qv_op_norm *op, double expected, double max_x, double max_w)
{
    double quarter = (double)(op->cols + 1) / 4, mean = op->rms ? 0 : (quarter + 1) * max_x * max_w;
    return mean + (quarter + 4) * (fabs(expected) + max_w);
}

/* Scores as a gemm's; a score's absolute error is its exponential's relative error, on top of 4 for
 * the function and one for each time its argument is scaled or shifted (that is, up to twice the
 * largest score); the same again in the divisor. The sum of exponentials and that of weighted
 * values are wrong by up to seq/2 each, relative to the first. With dtype bf16 a device may round
 * probabilities to it before the second product. */
static double
attention_error(const struct qv_op_attention *op, double max_x, double max_w)
{
    double score = fabs(op->scale) * (double)op->head_dim * max_x * max_x;
    double scores = fabs(op->scale) * (double)(op->head_dim + 1) * max_x * max_x;
    double exponentials = 2 * (scores + 4 + 2 * fmin(score, 88)); /* exp(-88) is 0 in f32 */
    double rounded = op->dtype == QV_BF16 ? 0x1p-8 / FLT_EPSILON : 0;
    return (exponentials + (double)(op->seq + 1) + rounded) * max_w;
}

static double
rows_error(const struct qv_op_rows *op)
{
    double scale = fmax(fabs(op->scale0), fmax(fabs(op->scale1), fabs(op->scale2)));
    double shift = fmax(fabs(op->shift0), fmax(fabs(op->shift1), fabs(op->shift2)));
    return 2 * (255 * scale + shift); /* scale and shift as f32, product, sum: half each */
}

double
qv_op_tolerance(const struct qv_op *op, double expected, double max_x, double max_w)
{
    double units = 0;
    int64_t dtype = QV_F32;
    switch (op->kind) {
    case QV_OP_rows:
        dtype = op->u.rows.dtype;
        units = rows_error(&op->u.rows);
        break;
    case QV_OP_convert: dtype = op->u.convert.dtype; break;
    case QV_OP_gemm:
        dtype = op->u.gemm.dtype;
        units = product_error(op->u.gemm.k,
                              &(struct qv_op_finish){ .alpha = op->u.gemm.alpha,
                                                      .bias = op->u.gemm.bias,
                                                      .act = op->u.gemm.act,
                                                      .addend_rows = op->u.gemm.addend_rows },
                              expected, max_x, max_w);
        break;
    case QV_OP_norm:
        dtype = op->u.norm.dtype;
        units = norm_error(&op->u.norm, expected, max_x, max_w);
        break;
    case QV_OP_rope: /* two products and a sum: half each */
        dtype = op->u.rope.dtype;
        units = 2 * max_x * max_w;
        break;
    case QV_OP_attention:
        dtype = op->u.attention.dtype;
        units = attention_error(&op->u.attention, max_x, max_w);
        break;
    case QV_OP_taps:
        dtype = op->u.taps.dtype;
        units = 5 * max_x * max_w;
        break;
    case QV_OP_unfold: return 0; /* a copy */
    case QV_OP_conv:
        dtype = op->u.conv.sums ? QV_F32 : op->u.conv.dtype;
        units = product_error(qv_op_operand(op, 1).cols,
                              &(struct qv_op_finish){ .alpha = op->u.conv.alpha,
                                                      .bias = op->u.conv.bias,
                                                      .act = op->u.conv.act,
                                                      .addend_rows = op->u.conv.addend_rows },
                              expected, max_x, max_w) +
                (op->u.conv.sums == 2 ? max_x : 0);
        break;
    case QV_OP_finish:
        dtype = op->u.finish.dtype;
        units = product_error(1, &op->u.finish, expected, max_x, max_w);
        break;
    case QV_OP_COUNT: break;
    }
    double error = units * FLT_EPSILON;
    return error + half_unit(dtype, fabs(expected) + error);
}
