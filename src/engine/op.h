/* SPDX-License-Identifier: MIT */
/* Operations as data: what a plan lists, a backend prepares, checkop tries, a repro line says. */
#ifndef QV_SRC_OP_H
#define QV_SRC_OP_H

#include "qwenvit.h"

enum qv_op_kind {
#define QV_OP(name, operands, fields) QV_OP_##name,
#include "engine/ops.inc"
#undef QV_OP
    QV_OP_COUNT
};

#define QV_INT(field) int64_t field;
#define QV_REAL(field) double field;
#define QV_OP(name, operands, fields)                                                              \
    struct qv_op_##name {                                                                          \
        fields                                                                                     \
    };
#include "engine/ops.inc"
#undef QV_OP
#undef QV_INT
#undef QV_REAL

#define QV_MAX_OPERANDS 5 /* most that one operation takes */

struct qv_op {
    enum qv_op_kind kind;
    union {
#define QV_OP(name, operands, fields) struct qv_op_##name name;
#include "engine/ops.inc"
#undef QV_OP
    } u;
};

/* What an operand is, for whoever allocates or fills it. bytes 0: not used by this operation. */
struct qv_operand {
    const char *name;
    int64_t rows, cols; /* a matrix of elements; the frames are one row per frame */
    qv_dtype dtype;     /* QV_DTYPE_AUTO: int32 (indices) */
    size_t bytes;       /* canonical, unpacked */
    bool weight;        /* a matrix that a backend packs */
};

const char *qv_op_name(enum qv_op_kind kind);
int qv_op_n_operands(enum qv_op_kind kind);
bool qv_op_equal(const struct qv_op *a, const struct qv_op *b);

/* "gemm m=760 n=1024 ..." into text; always terminated. Returns text. */
const char *qv_op_print(const struct qv_op *op, char *text, size_t size);
/* The reverse; fields left out are 0. */
qv_status qv_op_parse(const char *text, struct qv_op *op, qv_error *err);

/* "gemm,norm" or "all" -> operations as bits, 1 << kind; NULL: none. */
qv_status qv_op_parse_kinds(const char *text, uint32_t *out, qv_error *err);

/* Sizes are positive and their products fit; what an operand looks like; what the work costs. */
qv_status qv_op_check(const struct qv_op *op, qv_error *err);
struct qv_operand qv_op_operand(const struct qv_op *op, int i);
void qv_op_conv_output(const struct qv_op_conv *op, int64_t out[3]); /* d', h', w' */
/* A stride exceeds its kernel, or some position of the kernel sees nothing but padding. */
bool qv_op_conv_is_sparse(const struct qv_op_conv *op);
double qv_op_flops(const struct qv_op *op); /* a multiply-add counts two */
double qv_op_bytes(const struct qv_op *op); /* every operand read or written once */

/*
 * How far a right result may lie from the exact one, for inputs up to max_in in magnitude and an
 * exact value `expected`: half a unit of the output's dtype, plus the worst f32 accumulation over
 * the operation's sums; derived from dtype and lengths, never tuned.
 */
double qv_op_tolerance(const struct qv_op *op, double expected, double max_x, double max_w);

#endif
