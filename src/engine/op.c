/* SPDX-License-Identifier: MIT */
/* Operations as data: tables made from the list in ops.inc, and functions that describe operands,
 * check values and count costs. */
#include "op.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "dtype.h"
#include "error.h"

/* ---- sizes ----------------------------------------------------------------------------------- */

/* Products and sums of sizes saturate: they stay at INT64_MAX once they have overflowed. */
static int64_t
product(const int64_t *factors, size_t n)
{
    int64_t all = 1;
    for (size_t i = 0; i < n; i++)
        if (__builtin_mul_overflow(all, factors[i], &all))
            return INT64_MAX;
    return all;
}

static int64_t
sum(const int64_t *terms, size_t n)
{
    int64_t all = 0;
    for (size_t i = 0; i < n; i++)
        if (__builtin_add_overflow(all, terms[i], &all))
            return INT64_MAX;
    return all;
}

#define OF_LIST(function, ...)                                                                     \
    function((const int64_t[]){ __VA_ARGS__ },                                                     \
             sizeof((const int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t))
#define MUL(...) OF_LIST(product, __VA_ARGS__)
#define ADD(...) OF_LIST(sum, __VA_ARGS__)

/* Returns the number of kernel positions along an axis. */
static int64_t
positions(int64_t size, int64_t kernel, int64_t dilation, int64_t stride)
{
    int64_t left = size - MUL(kernel - 1, dilation) - 1;
    return left < 0 ? 0 : left / stride + 1;
}

void
qv_op_conv_output(const struct qv_op_conv *op, int64_t out[3])
{
    out[0] = positions(op->d, op->kd, op->dd, op->sd);
    out[1] = positions(ADD(op->h, op->top, op->bottom), op->kh, op->dh, op->sh);
    out[2] = positions(ADD(op->w, op->left, op->right), op->kw, op->dw, op->sw);
}

static int64_t
conv_out(const struct qv_op_conv *op, int axis)
{
    int64_t out[3];
    qv_op_conv_output(op, out);
    return out[axis];
}

static double
double_product(const int64_t *factors, size_t n)
{
    double all = 1;
    for (size_t i = 0; i < n; i++)
        all *= (double)factors[i];
    return all;
}
#define FLOPS(...) OF_LIST(double_product, __VA_ARGS__)

/* The mean number of rows per segment; segments of any lengths count as equal. */
static double
mean_segment(const struct qv_op_attention *op)
{
    double mean = (double)op->rows / (double)op->segments;
    return op->longest && mean > (double)op->longest ? (double)op->longest : mean;
}

/* ---- the list, as tables --------------------------------------------------------------------- */

/* Completes a view's sizes. An operand that is not used gets none. */
static struct qv_view
sized(struct qv_view v, bool used)
{
    if (!used)
        v.rows = v.cols = v.row_stride = 0;
    const size_t row = v.groups.bits ? qv_grouped_row_bytes(&v.groups, v.cols) : 0;
    if (row)
        v.bytes = (size_t)MUL(v.rows, row < INT64_MAX ? (int64_t)row : INT64_MAX);
    else if (v.rows && v.cols)
        v.bytes = (size_t)MUL(ADD(MUL(v.rows - 1, v.row_stride), v.cols),
                              (int64_t)qv_dtype_bytes(v.dtype));
    return v;
}

/* Tables made from the list: each operation's fields, its number of operands, their views, and
 * its cost. */
#define DTYPE_FIELD_OWN(name) { #name, QV_FIELD_DTYPE },
#define DTYPE_FIELD_FREE(condition) DTYPE_FIELD_OWN
#define DTYPE_FIELD_GROUPED(name)                                                                  \
    { #name "_bits", QV_FIELD_COUNT }, { #name "_group", QV_FIELD_COUNT }, DTYPE_FIELD_OWN(name)
#define DTYPE_FIELD_U8(name)
#define DTYPE_FIELD_I32(name)
#define DTYPE_FIELD_F32(name)
#define STRIDE_FIELD_STRIDED(name) { #name "_stride", QV_FIELD_STRIDE },
#define STRIDE_FIELD_DENSE(name)
#define QV_FIELD(kind, type, name) { #name, QV_FIELD_##kind },
#define QV_OPERAND(name, role, used, dtype, layout, rows, cols)                                    \
    DTYPE_FIELD_##dtype(name) STRIDE_FIELD_##layout(name)
#define QV_OP(name, fields, operands, flops)                                                       \
    static const struct qv_field name##_fields[] = { fields operands };                            \
    _Static_assert(sizeof(struct qv_op_##name) ==                                                  \
                       8 * (sizeof name##_fields / sizeof name##_fields[0]),                       \
                   "every field of " #name " is 8 bytes");
#include "ops.inc"

#define QV_OPERAND(name, role, used, dtype, layout, rows, cols) +1
#define QV_OP(name, fields, operands, flops)                                                       \
    enum { name##_operands = 0 operands };                                                         \
    _Static_assert((int)name##_operands <= (int)QV_MAX_OPERANDS, #name " has more operands");
#include "ops.inc"

#define ALWAYS true
#define QV_ROLE_UPDATE_IF(condition) ((condition) ? QV_ROLE_UPDATE : QV_ROLE_WRITE)
#define DTYPE_OWN(name) .dtype = (qv_dtype)op->name##_dtype, .own_dtype = true
#define DTYPE_FREE(condition) .free_dtype = (condition), DTYPE_OWN
#define DTYPE_GROUPED(name)                                                                        \
    .groups = { op->name##_bits, op->name##_group, (qv_dtype)op->name##_dtype }, DTYPE_OWN(name)
#define DTYPE_U8(name) .dtype = QV_U8
#define DTYPE_I32(name) .dtype = QV_I32
#define DTYPE_F32(name) .dtype = QV_F32
#define STRIDE_STRIDED(name) op->name##_stride
#define STRIDE_DENSE(name) 0
#define QV_OPERAND(operand, how, used, its_dtype, layout, n_rows, n_cols)                          \
    sized((struct qv_view){ .name = #operand,                                                      \
                            .role = QV_ROLE_##how,                                                 \
                            .rows = n_rows,                                                        \
                            .cols = n_cols,                                                        \
                            .row_stride = qv_row_stride(STRIDE_##layout(operand), n_cols),         \
                            DTYPE_##its_dtype(operand) },                                          \
          used),
#define QV_OP(name, fields, operands, flops)                                                       \
    static void name##_views(const struct qv_op *any, struct qv_view *out)                         \
    {                                                                                              \
        const struct qv_op_##name *op = &any->u.name;                                              \
        const struct qv_view views[] = { operands };                                               \
        memcpy(out, views, sizeof views);                                                          \
    }                                                                                              \
    static double name##_flops(const struct qv_op *any)                                            \
    {                                                                                              \
        const struct qv_op_##name *op = &any->u.name;                                              \
        (void)op;                                                                                  \
        return flops;                                                                              \
    }
#include "ops.inc"

static const struct {
    const char *name;
    const struct qv_field *fields;
    size_t n_fields;
    int n_operands;
    void (*views)(const struct qv_op *op, struct qv_view *out);
    double (*flops)(const struct qv_op *op);
} kinds[] = {
#define QV_OP(name, fields, operands, flops)                                                       \
    { #name,           name##_fields, sizeof name##_fields / sizeof name##_fields[0],              \
      name##_operands, name##_views,  name##_flops },
#include "ops.inc"
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
    return is_kind(kind) ? kinds[kind].n_operands : 0;
}

const struct qv_field *
qv_op_fields(enum qv_op_kind kind, size_t *n)
{
    *n = is_kind(kind) ? kinds[kind].n_fields : 0;
    return is_kind(kind) ? kinds[kind].fields : NULL;
}

bool
qv_op_equal(const struct qv_op *a, const struct qv_op *b)
{
    return a->kind == b->kind && is_kind(a->kind) &&
           !memcmp(&a->u, &b->u, 8 * kinds[a->kind].n_fields);
}

void
qv_op_set_dtype(struct qv_op *op, qv_dtype dtype)
{
    size_t n;
    const struct qv_field *fields = qv_op_fields(op->kind, &n);
    for (size_t i = 0; i < n; i++)
        if (fields[i].kind == QV_FIELD_DTYPE)
            memcpy(qv_op_field(op, i), &(int64_t){ dtype }, 8);
}

/* ---- operands -------------------------------------------------------------------------------- */

int
qv_op_views(const struct qv_op *op, struct qv_view out[QV_MAX_OPERANDS])
{
    if (is_kind(op->kind))
        kinds[op->kind].views(op, out);
    return qv_op_n_operands(op->kind);
}

struct qv_view
qv_op_view(const struct qv_op *op, int i)
{
    struct qv_view views[QV_MAX_OPERANDS];
    int n = qv_op_views(op, views);
    return i >= 0 && i < n ? views[i] : (struct qv_view){ 0 };
}

int
qv_op_output(const struct qv_op *op)
{
    struct qv_view views[QV_MAX_OPERANDS];
    int i = qv_op_views(op, views) - 1;
    while (i > 0 && views[i].role != QV_ROLE_WRITE && views[i].role != QV_ROLE_UPDATE)
        i--;
    return i;
}

int64_t
qv_views_beside(const struct qv_view *views, int i, int *first)
{
    const struct qv_view *v = &views[i];
    int64_t cols = 0;
    int at = i;
    for (; at > 0 && views[at - 1].rows == v->rows && views[at - 1].row_stride == v->row_stride &&
           views[at - 1].dtype == v->dtype;
         at--)
        cols += views[at - 1].cols;
    bool fits = cols + v->cols <= v->row_stride;
    *first = fits ? at : i;
    return fits ? cols : 0;
}

/* What both GEMMs and convolutions do to their sums. */
#define EPILOGUE_OF(op, n_rows, n_cols)                                                            \
    (struct qv_op_epilogue)                                                                        \
    {                                                                                              \
        .rows = (n_rows), .cols = (n_cols), .alpha = (op)->alpha, .bias = (op)->bias,              \
        .act = (op)->act, .residual_rows = (op)->residual_rows, .bias_dtype = (op)->bias_dtype,    \
        .residual_dtype = (op)->residual_dtype, .y_dtype = (op)->y_dtype                           \
    }

struct qv_op_epilogue
qv_op_gemm_epilogue(const struct qv_op_gemm *op)
{
    return EPILOGUE_OF(op, op->m, op->n);
}

struct qv_op_epilogue
qv_op_conv_epilogue(const struct qv_op_conv *op)
{
    return EPILOGUE_OF(op, MUL(op->n, conv_out(op, 0), conv_out(op, 1), conv_out(op, 2)), op->o);
}

/* Returns whether every position of a kernel with k taps sees at least one of `size` values. */
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

/* ---- check ----------------------------------------------------------------------------------- */

/* Returns whether sums can be rounded to a dtype, which operands with a dtype field require. */
static bool
is_real(int64_t dtype)
{
    switch ((qv_dtype)dtype) {
    case QV_F32:
    case QV_BF16: return true;
    case QV_DTYPE_AUTO:
    case QV_U8:
    case QV_F16:
    case QV_I32:
    case QV_DTYPE_MAX: break;
    }
    return false;
}

static qv_status
check_field(const char *op, const struct qv_field *field, const void *at, qv_error *err)
{
    int64_t i;
    double d;
    memcpy(&i, at, 8);
    memcpy(&d, at, 8);
    const char *wrong = NULL;
    switch (field->kind) {
    case QV_FIELD_SIZE: wrong = i > 0 ? NULL : "it must be positive"; break;
    case QV_FIELD_COUNT:
    case QV_FIELD_STRIDE: wrong = i >= 0 ? NULL : "it must not be negative"; break;
    case QV_FIELD_FLAG: wrong = i == 0 || i == 1 ? NULL : "it must be 0 or 1"; break;
    case QV_FIELD_ACT:
        wrong = i >= 0 && i < QV_ACT_COUNT ? NULL : "it must be a known activation";
        break;
    case QV_FIELD_REAL: /* kernels hold it as a float */
        return fabs(d) <= FLT_MAX
                   ? QV_OK
                   : qv_fail(err, QV_EINVAL, "%s: %s is %g; it must be a finite float", op,
                             field->name, d);
    case QV_FIELD_DTYPE: break; /* check_view checks these */
    }
    return wrong
               ? qv_fail(err, QV_EINVAL, "%s: %s is %lld; %s", op, field->name, (long long)i, wrong)
               : QV_OK;
}

static qv_status
check_residual(const char *op, int64_t residual_rows, const char *field, int64_t rows,
               qv_error *err)
{
    if (residual_rows && rows % residual_rows)
        return qv_fail(err, QV_EINVAL, "%s: residual_rows is %lld; it must divide %s%lld%s", op,
                       (long long)residual_rows, field, (long long)rows, *field ? "" : " rows");
    return QV_OK;
}

static qv_status
check_conv(const struct qv_op_conv *op, qv_error *err)
{
    int64_t out[3];
    qv_op_conv_output(op, out);
    if (op->c % op->groups || op->o % op->groups)
        return qv_fail(err, QV_EINVAL, "conv: groups is %lld; it must divide c (%lld) and o (%lld)",
                       (long long)op->groups, (long long)op->c, (long long)op->o);
    if (op->x_depth < op->d)
        return qv_fail(err, QV_EINVAL, "conv: x_depth is %lld; it must be at least d (%lld)",
                       (long long)op->x_depth, (long long)op->d);
    if (!out[0] || !out[1] || !out[2])
        return qv_fail(err, QV_EINVAL,
                       "conv: kd=%lld kh=%lld kw=%lld; larger (dilated) than the padded input of "
                       "d=%lld h=%lld w=%lld",
                       (long long)op->kd, (long long)op->kh, (long long)op->kw, (long long)op->d,
                       (long long)op->h, (long long)op->w);
    if (op->sums > 2)
        return qv_fail(err, QV_EINVAL, "conv: sums is %lld; it must be 0, 1 or 2",
                       (long long)op->sums);
    if (op->sums && (op->alpha != 1 || op->bias || op->act || op->residual_rows))
        return qv_fail(err, QV_EINVAL,
                       "conv: sums is %lld; it must be 0 if alpha, bias, act or a residual is set",
                       (long long)op->sums);
    if (op->sums && op->y_dtype != QV_F32)
        return qv_fail(err, QV_EINVAL, "conv: y is %s; it must be f32, because sums is %lld",
                       qv_dtype_name((qv_dtype)op->y_dtype), (long long)op->sums);
    return check_residual("conv", op->residual_rows, "", qv_op_conv_epilogue(op).rows, err);
}

/* Rows, items and patches are numbered by int32 in the tables, so they must fit. */
static qv_status
check_tables(const char *op, const char *field, int64_t n, qv_error *err)
{
    return n <= INT32_MAX ? QV_OK
                          : qv_fail(err, QV_EINVAL, "%s: %s is %lld; it must be at most %d", op,
                                    field, (long long)n, INT32_MAX);
}

static qv_status
check_patchify(const struct qv_op_patchify *op, qv_error *err)
{
    if (op->channels > 3)
        return qv_fail(err, QV_EINVAL, "patchify: channels is %lld; it must be at most 3",
                       (long long)op->channels);
    qv_status status = check_tables("patchify", "rows", op->rows, err);
    if (!status)
        status = check_tables("patchify", "items", op->items, err);
    return status ? status : check_tables("patchify", "patches", op->patches, err);
}

static qv_status
check_attention(const struct qv_op_attention *op, qv_error *err)
{
    int64_t width = MUL(op->heads, op->head_dim), stride = qv_row_stride(op->q_stride, width);
    int64_t most = op->segment_rows ? op->segment_rows : op->rows;
    if (op->longest > most || (op->segment_rows && op->longest && op->longest != most))
        return qv_fail(err, QV_EINVAL, "attention: longest is %lld; it must be 0 or %s%lld",
                       (long long)op->longest, op->segment_rows ? "" : "up to ", (long long)most);
    if (op->segment_rows)
        return op->rows == MUL(op->segments, op->segment_rows)
                   ? QV_OK
                   : qv_fail(err, QV_EINVAL,
                             "attention: rows is %lld; it must equal segments (%lld) times "
                             "segment_rows (%lld)",
                             (long long)op->rows, (long long)op->segments,
                             (long long)op->segment_rows);
    if (qv_row_stride(op->k_stride, width) != stride ||
        qv_row_stride(op->v_stride, width) != stride)
        return qv_fail(err, QV_EINVAL,
                       "attention: q_stride=%lld k_stride=%lld v_stride=%lld; with segments of any "
                       "length they must be equal",
                       (long long)op->q_stride, (long long)op->k_stride, (long long)op->v_stride);
    qv_status status = check_tables("attention", "rows", op->rows, err);
    return status ? status
                  : check_tables("attention", "rows * q_stride", MUL(op->rows, stride), err);
}

static qv_status
check_gemm(const struct qv_op_gemm *op, qv_error *err)
{
    return check_residual("gemm", op->residual_rows, "m=", op->m, err);
}

static qv_status
check_gemm_few(const struct qv_op_gemm_few *op, qv_error *err)
{
    if (op->m > QV_FEW_ROWS)
        return qv_fail(err, QV_EINVAL, "gemm_few: m is %lld; it must be at most %d",
                       (long long)op->m, QV_FEW_ROWS);
    if (op->w_bits != 4 && op->w_bits != 8)
        return qv_fail(err, QV_EINVAL, "gemm_few: w_bits is %lld; it must be 4 or 8",
                       (long long)op->w_bits);
    if (op->w_group != QV_FEW_GROUP)
        return qv_fail(err, QV_EINVAL, "gemm_few: w_group is %lld; it must be %d",
                       (long long)op->w_group, QV_FEW_GROUP);
    if (op->k % QV_FEW_GROUP)
        return qv_fail(err, QV_EINVAL, "gemm_few: k is %lld; it must be a multiple of %d",
                       (long long)op->k, QV_FEW_GROUP);
    return check_residual("gemm_few", op->residual_rows, "m=", op->m, err);
}

static qv_status
check_norm(const struct qv_op_norm *op, qv_error *err)
{
    if (op->eps < 0)
        return qv_fail(err, QV_EINVAL, "norm: eps is %g; it must not be negative", op->eps);
    return QV_OK;
}

static qv_status
check_rope(const struct qv_op_rope *op, qv_error *err)
{
    if (op->head_dim % 4)
        return qv_fail(err, QV_EINVAL, "rope: head_dim is %lld; it must be a multiple of 4",
                       (long long)op->head_dim);
    return QV_OK;
}

static qv_status
check_gather(const struct qv_op_gather *op, qv_error *err)
{
    return check_tables("gather", "x_rows", op->x_rows, err);
}

static qv_status
check_interpolate(const struct qv_op_interpolate *op, qv_error *err)
{
    if (op->table_rows > INT32_MAX)
        return qv_fail(err, QV_EINVAL, "interpolate: table_rows is %lld; it must be at most %d",
                       (long long)op->table_rows, INT32_MAX);
    if (op->taps % 4)
        return qv_fail(err, QV_EINVAL, "interpolate: taps is %lld; it must be a multiple of 4",
                       (long long)op->taps);
    return QV_OK;
}

static qv_status
check_im2col(const struct qv_op_im2col *op, qv_error *err)
{
    if (op->kd > op->d || op->kh > op->h || op->kw > op->w)
        return qv_fail(err, QV_EINVAL,
                       "im2col: kd=%lld kh=%lld kw=%lld; they must not exceed d=%lld h=%lld w=%lld",
                       (long long)op->kd, (long long)op->kh, (long long)op->kw, (long long)op->d,
                       (long long)op->h, (long long)op->w);
    return QV_OK;
}

static qv_status
check_epilogue(const struct qv_op_epilogue *op, qv_error *err)
{
    return check_residual("epilogue", op->residual_rows, "rows=", op->rows, err);
}

#define CHECK_NOTHING(name)                                                                        \
    static qv_status check_##name(const struct qv_op_##name *op, qv_error *err)                    \
    {                                                                                              \
        (void)op, (void)err;                                                                       \
        return QV_OK;                                                                              \
    }
CHECK_NOTHING(convert)
CHECK_NOTHING(gate)

/* check_NAME checks relations between fields. An operation without one does not compile. */
#define QV_OP(name, fields, operands, flops)                                                       \
    static qv_status name##_check(const struct qv_op *op, qv_error *err)                           \
    {                                                                                              \
        return check_##name(&op->u.name, err);                                                     \
    }
#include "ops.inc"

static qv_status (*const checks[])(const struct qv_op *op, qv_error *err) = {
#define QV_OP(name, fields, operands, flops) name##_check,
#include "ops.inc"
};

static qv_status
check_view(const char *op, const struct qv_view *v, qv_error *err)
{
    const bool f16 = v->groups.bits && v->dtype == QV_F16;
    if (v->own_dtype && !is_real(v->dtype) && !f16)
        return qv_fail(err, QV_EINVAL, "%s: %s is %s; it must be f32%s or bf16", op, v->name,
                       qv_dtype_name(v->dtype), v->groups.bits ? ", f16" : "");
    if (v->row_stride < v->cols)
        return qv_fail(err, QV_EINVAL,
                       "%s: %s_stride is %lld; it must be 0 or at least %lld columns", op, v->name,
                       (long long)v->row_stride, (long long)v->cols);
    if (v->bytes >= PTRDIFF_MAX)
        return qv_fail(err, QV_EINVAL, "%s: operand %s is too large for an address", op, v->name);
    return QV_OK;
}

qv_status
qv_op_check(const struct qv_op *op, qv_error *err)
{
    if (!is_kind(op->kind))
        return qv_fail(err, QV_EINVAL, "operation %d is unknown; there are %d", (int)op->kind,
                       QV_OP_COUNT);
    const char *name = qv_op_name(op->kind);
    qv_status status = QV_OK;
    for (size_t i = 0; i < kinds[op->kind].n_fields && !status; i++)
        status = check_field(name, &kinds[op->kind].fields[i], (const char *)&op->u + 8 * i, err);
    if (!status)
        status = checks[op->kind](op, err);
    if (status)
        return status;
    struct qv_view views[QV_MAX_OPERANDS];
    int n = qv_op_views(op, views);
    for (int i = 0; i < n && !status; i++)
        status = check_view(name, &views[i], err);
    return status;
}

qv_status
qv_op_takes(const struct qv_op *op, uint32_t takes, qv_error *err)
{
    struct qv_view views[QV_MAX_OPERANDS];
    int n = qv_op_views(op, views);
    if (!is_kind(op->kind)) /* backends index their tables by the kind afterwards */
        return qv_fail(err, QV_EUNSUPPORTED, "operation %d has no kernel", (int)op->kind);
    for (int i = 0; i < n; i++)
        if (views[i].own_dtype && views[i].bytes && !views[i].groups.bits &&
            !(takes >> views[i].dtype & 1))
            return qv_fail(err, QV_EUNSUPPORTED, "%s: %s=%s has no kernel", qv_op_name(op->kind),
                           views[i].name, qv_dtype_name(views[i].dtype));
    return QV_OK;
}

qv_status
qv_op_takes_one(const struct qv_op *op, uint32_t takes, qv_error *err)
{
    struct qv_view views[QV_MAX_OPERANDS];
    const struct qv_view *first = NULL;
    int n = qv_op_views(op, views);
    for (int i = 0; i < n; i++) {
        const struct qv_view *v = &views[i];
        if (!v->own_dtype || !v->bytes || v->free_dtype || v->groups.bits)
            continue;
        first = first ? first : v;
        if (first->dtype != v->dtype)
            return qv_fail(err, QV_EUNSUPPORTED, "%s: %s=%s with %s=%s; they must be equal",
                           qv_op_name(op->kind), v->name, qv_dtype_name(v->dtype), first->name,
                           qv_dtype_name(first->dtype));
    }
    return qv_op_takes(op, takes, err);
}

double
qv_activate(int64_t act, double x)
{
    switch ((enum qv_act)act) {
    case QV_ACT_GELU_TANH:
        return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
    case QV_ACT_GELU_ERF: return 0.5 * x * (1 + erf(x * sqrt(0.5)));
    case QV_ACT_SILU: return x / (1 + exp(-x));
    case QV_ACT_GELU_QUICK: return x / (1 + exp(-1.702 * x));
    case QV_ACT_NONE:
    case QV_ACT_COUNT: break;
    }
    return x;
}

/* ---- cost ------------------------------------------------------------------------------------ */

double
qv_op_flops(const struct qv_op *op)
{
    return is_kind(op->kind) ? kinds[op->kind].flops(op) : 0;
}

double
qv_op_bytes(const struct qv_op *op)
{
    struct qv_view views[QV_MAX_OPERANDS];
    double all = 0;
    int n = qv_op_views(op, views);
    /* rows use at most one row of angles each */
    for (int i = 0; i < n && op->kind == QV_OP_rope; i++)
        views[i].rows = views[i].rows < op->u.rope.rows ? views[i].rows : op->u.rope.rows;
    if (op->kind == QV_OP_gather && op->u.gather.x_rows > op->u.gather.rows)
        views[0].rows = op->u.gather.rows;
    for (int i = 0; i < n; i++)
        all += views[i].groups.bits
                   ? (double)views[i].bytes
                   : (views[i].role == QV_ROLE_UPDATE ? 2 : 1) * (double)views[i].rows *
                         (double)views[i].cols * (double)qv_dtype_bytes(views[i].dtype);
    return all;
}
