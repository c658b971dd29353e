/* SPDX-License-Identifier: MIT */
/* Operations as data: what a plan lists, a backend prepares, checkop tries, a repro line says. */
#ifndef QV_ENGINE_OP_H
#define QV_ENGINE_OP_H

#include "grouped.h"
#include "qwenvit_conv3d.h" /* qv_act */

enum qv_op_kind {
#define QV_OP(name, fields, operands, flops) QV_OP_##name,
#include "ops.inc"
    QV_OP_COUNT
};

/* struct qv_op_gemm: its fields, then what its operands have of their own: x_dtype, ... */
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

enum { QV_SEGMENT_LISTS = 4 }; /* of an attention, see ops.inc */
enum { QV_MAX_OPERANDS = 5 };  /* most that one operation takes */

enum qv_role {
    QV_ROLE_READ,
    QV_ROLE_WEIGHT, /* read; a matrix that a backend packs */
    QV_ROLE_WRITE,
    QV_ROLE_UPDATE /* read and written in place */
};

/* What an operand looks like, for whoever allocates, fills or reads it: element (i, j) is the one
 * number i * row_stride + j, but in a quantised matrix, which lies row by row as grouped.h has it. Where
 * in its buffer it begins the call says. */
struct qv_view {
    const char *name;
    enum qv_role role;
    qv_dtype dtype;
    bool own_dtype;          /* a field of the operation, else the only one */
    bool free_dtype;         /* which may differ from that of other operands */
    struct qv_groups groups; /* of a quantised matrix, whose dtype is that of scales and offsets */
    int64_t rows, cols;      /* a matrix; the frames are one row per frame */
    int64_t row_stride;      /* in elements; cols where rows lie one behind the other */
    size_t bytes; /* from the first element to the last; canonical, unpacked. 0: not used */
};

/* What the list says of an operation: the fields of its struct in their order, 8 bytes each. */
enum qv_field_kind {
    QV_FIELD_SIZE,
    QV_FIELD_COUNT,
    QV_FIELD_FLAG,
    QV_FIELD_REAL,
    QV_FIELD_ACT,
    QV_FIELD_DTYPE, /* `name` is the operand's */
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

const char *qv_op_name(enum qv_op_kind kind); /* "unknown operation" beyond the last */
int qv_op_n_operands(enum qv_op_kind kind);
bool qv_op_equal(const struct qv_op *a, const struct qv_op *b);

/* "gemm m=760 n=1024 ..." into text; always terminated. Returns text. dtype= is what most operands
 * have, those that have another stand before it by name: "y=f32 dtype=bf16". */
const char *qv_op_print(const struct qv_op *op, char *text, size_t size);
extern const char *const qv_act_names[]; /* by qv_act, as they stand there; NULL at the end */

/* "gemm,norm" or "all" -> operations as bits, 1 << kind; NULL: none. */
qv_status qv_op_parse_kinds(const char *text, uint32_t *out, qv_error *err);

/* Gives every operand that has a dtype of its own this one. */
void qv_op_set_dtype(struct qv_op *op, qv_dtype dtype);

/* Fields are what they may be, and sizes fit into an address. */
qv_status qv_op_check(const struct qv_op *op, qv_error *err);
/* What prepare() asks of operands' own dtypes, QV_EUNSUPPORTED naming the operand: whether each is
 * one of `takes` (bits, 1 << dtype); and whether all are one, where kernels need that. Those of
 * convert and gather need not be, nor need a conv's bare sums; nor are scales of a quantised matrix
 * asked for. */
qv_status qv_op_takes(const struct qv_op *op, uint32_t takes, qv_error *err);
qv_status qv_op_takes_one(const struct qv_op *op, uint32_t takes, qv_error *err);

/* Describes every operand and returns how many there are; qv_op_view describes operand i. */
int qv_op_views(const struct qv_op *op, struct qv_view out[QV_MAX_OPERANDS]);
struct qv_view qv_op_view(const struct qv_op *op, int i);
int qv_op_output(const struct qv_op *op); /* index of the operand that is written */

/* The stride in elements that a field NAME_stride stands for. */
static inline int64_t
qv_row_stride(int64_t field, int64_t cols)
{
    return field ? field : cols;
}

/* Operand i may lie in the rows of operand *first, behind as many columns as this returns: so do q,
 * k and v in packed rows, where strides leave room for all. Else *first is i. */
int64_t qv_views_beside(const struct qv_view *views, int i, int *first);

void qv_op_conv_output(const struct qv_op_conv *op, int64_t out[3]); /* the output's d', h', w' */
/* Whether a stride exceeds its kernel, or some position of the kernel sees nothing but padding. */
bool qv_op_conv_is_sparse(const struct qv_op_conv *op);
/* What follows the sums of a GEMM, as an operation on them. */
struct qv_op_epilogue qv_op_gemm_epilogue(const struct qv_op_gemm *op);
struct qv_op_epilogue qv_op_conv_epilogue(const struct qv_op_conv *op);

double qv_op_flops(const struct qv_op *op); /* a multiply-add counts two */
double qv_op_bytes(const struct qv_op *op); /* every operand read or written once */

#endif
