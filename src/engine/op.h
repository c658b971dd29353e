/* SPDX-License-Identifier: MIT */
/* Operations as data. A plan lists them, a backend prepares them, checkop tests them, and a line of
 * text can describe one. */
#pragma once

#include "grouped.h"
#include "qwenvit_conv3d.h" /* for enum qv_act */

enum qv_op_kind {
#define QV_OP(name, fields, operands, flops) QV_OP_##name,
#include "ops.inc"
    QV_OP_COUNT
};

/* struct qv_op_gemm and so on: first the operation's fields, then its operands' fields, such as
 * x_dtype. */
#define QV_OP_DTYPE_OWN(name) int64_t name##_dtype;
#define QV_OP_DTYPE_FREE(condition) QV_OP_DTYPE_OWN
#define QV_OP_DTYPE_GROUPED(name) int64_t name##_bits, name##_group, name##_dtype;
#define QV_OP_DTYPE_U8(name)
#define QV_OP_DTYPE_I32(name)
#define QV_OP_DTYPE_F32(name)
#define QV_OP_STRIDE_STRIDED(name) int64_t name##_stride;
#define QV_OP_STRIDE_DENSE(name)
#define QV_FIELD(kind, type, name) type name;
#define QV_OPERAND(name, role, used, dtype, layout, rows, cols)                                    \
    QV_OP_DTYPE_##dtype(name) QV_OP_STRIDE_##layout(name)
#define QV_OP(name, fields, operands, flops)                                                       \
    struct qv_op_##name {                                                                          \
        fields operands                                                                            \
    };
#include "ops.inc"
#undef QV_OP_DTYPE_OWN
#undef QV_OP_DTYPE_FREE
#undef QV_OP_DTYPE_GROUPED
#undef QV_OP_DTYPE_U8
#undef QV_OP_DTYPE_I32
#undef QV_OP_DTYPE_F32
#undef QV_OP_STRIDE_STRIDED
#undef QV_OP_STRIDE_DENSE

struct qv_op {
    enum qv_op_kind kind;
    union {
#define QV_OP(name, fields, operands, flops) struct qv_op_##name name;
#include "ops.inc"
    } u;
};

/* Returns the equivalent gemm, with w's values in x's dtype. */
static inline struct qv_op_gemm
qv_op_few_as_gemm(const struct qv_op_gemm_few *op)
{
    const struct qv_op_gemm gemm = { op->m,
                                     op->n,
                                     op->k,
                                     op->alpha,
                                     op->bias,
                                     op->act,
                                     op->residual_rows,
                                     op->x_dtype,
                                     op->x_dtype,
                                     op->bias_dtype,
                                     op->residual_dtype,
                                     op->y_dtype };
    return gemm;
}

enum { QV_SEGMENT_LISTS = 4 }; /* attention's lists of segments, see ops.inc */
enum { QV_MAX_OPERANDS = 5 };  /* the most operands of an operation */

enum qv_role {
    QV_ROLE_READ,
    QV_ROLE_WEIGHT, /* read; a matrix that backends lay out */
    QV_ROLE_WRITE,
    QV_ROLE_UPDATE /* read and written in place */
};

/* The shape of an operand, for code that allocates, fills or reads it. Element (i, j) is number i *
 * row_stride + j; a quantised matrix is instead stored row by row as in grouped.h. The call
 * specifies where in its buffer the operand begins. */
struct qv_view {
    const char *name;
    enum qv_role role;
    qv_dtype dtype;
    bool own_dtype;          /* its dtype is a field of the operation; otherwise it is fixed */
    bool free_dtype;         /* its dtype may differ from the other operands' */
    struct qv_groups groups; /* how it is quantised; its dtype is then that of scales and offsets */
    int64_t rows, cols;      /* a matrix; frames count as one row each */
    int64_t row_stride;      /* in elements; equal to cols if rows follow one another */
    /* from the first element to the last, in canonical form, unpacked; 0: the operand is not
     * used */
    size_t bytes;
};

/* The kinds of fields. An operation's struct has its fields in the list's order, 8 bytes each. */
enum qv_field_kind {
    QV_FIELD_SIZE,
    QV_FIELD_COUNT,
    QV_FIELD_FLAG,
    QV_FIELD_REAL,
    QV_FIELD_ACT,
    QV_FIELD_DTYPE, /* its name is the operand's name */
    QV_FIELD_STRIDE
};
struct qv_field {
    const char *name;
    enum qv_field_kind kind;
};
const struct qv_field *qv_op_fields(enum qv_op_kind kind, size_t *n);

static inline void *
qv_op_field(struct qv_op *op, size_t i)
{
    return (char *)&op->u + 8 * i;
}

/* "unknown operation" for a kind that is not in the list */
const char *qv_op_name(enum qv_op_kind kind);
int qv_op_n_operands(enum qv_op_kind kind);
bool qv_op_equal(const struct qv_op *a, const struct qv_op *b);

/* Writes "gemm m=760 n=1024 ..." into text, always terminated, and returns text. dtype= at the end
 * is the dtype of most operands; an operand with another dtype is named before it: "y=f32
 * dtype=bf16". */
const char *qv_op_print(const struct qv_op *op, char *text, size_t size);
extern const char *const qv_act_names[]; /* indexed by qv_act; NULL-terminated */

/* Parses "gemm,norm" or "all" into bits, 1 << kind; NULL: no bits. */
qv_status qv_op_parse_kinds(const char *text, uint32_t *out, qv_error *err);

/* Sets the dtype of every operand whose dtype is a field. */
void qv_op_set_dtype(struct qv_op *op, qv_dtype dtype);

/* Checks that fields have valid values and sizes fit into an address. */
qv_status qv_op_check(const struct qv_op *op, qv_error *err);
/* For a backend's prepare(): returns QV_EUNSUPPORTED, naming the operand, if the dtype field of an
 * operand is not in `takes` (bits, 1 << dtype). qv_op_takes_one() also requires all of them to be
 * equal, except for the operands of convert and gather, a conv's bare sums, and the scales of a
 * quantised matrix. */
qv_status qv_op_takes(const struct qv_op *op, uint32_t takes, qv_error *err);
qv_status qv_op_takes_one(const struct qv_op *op, uint32_t takes, qv_error *err);

/* Describes every operand and returns how many there are; qv_op_view describes operand i. */
int qv_op_views(const struct qv_op *op, struct qv_view out[QV_MAX_OPERANDS]);
struct qv_view qv_op_view(const struct qv_op *op, int i);
int qv_op_output(const struct qv_op *op); /* index of the operand that is written */

/* The stride in elements that a field NAME_stride means. */
static inline int64_t
qv_row_stride(int64_t field, int64_t cols)
{
    return field ? field : cols;
}

/* Finds whether operand i may lie in the same packed rows as an earlier operand, as q, k and v do
 * if their strides leave room for all. *first becomes that operand, and the columns between the two
 * are returned. Otherwise *first is i. */
int64_t qv_views_beside(const struct qv_view *views, int i, int *first);

void qv_op_conv_output(const struct qv_op_conv *op, int64_t out[3]); /* the output's d', h', w' */
/* Returns whether a stride exceeds its kernel, or some position of the kernel sees nothing but
 * padding. */
bool qv_op_conv_is_sparse(const struct qv_op_conv *op);
/* Returns what a GEMM or a convolution does to its sums, as a separate operation. */
struct qv_op_epilogue qv_op_gemm_epilogue(const struct qv_op_gemm *op);
struct qv_op_epilogue qv_op_conv_epilogue(const struct qv_op_conv *op);

/* The activation by its definition, in double. */
double qv_activate(int64_t act, double x);

double qv_op_flops(const struct qv_op *op); /* a multiply-add counts two */
double qv_op_bytes(const struct qv_op *op); /* each operand counts as read or written once */
