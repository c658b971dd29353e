/* SPDX-License-Identifier: MIT */
/* Operations read from text: repro lines, lists of shapes. */
#ifndef QV_TESTS_OP_PARSE_H
#define QV_TESTS_OP_PARSE_H

#include "engine/op.h"

/* The reverse of qv_op_print; what is left out is 0, and dtype= that of every operand which is not
 * named. QV_EINVAL naming the word that is wrong. */
qv_status qv_op_parse(const char *text, struct qv_op *op, qv_error *err);

#endif
