/* SPDX-License-Identifier: MIT */
/* Reads operations from text: repro lines and lists of shapes. */
#pragma once

#include "engine/op.h"

/* The reverse of qv_op_print. Omitted fields are 0, and dtype= applies to every operand that is not
 * named. Fails with QV_EINVAL and names the wrong word. */
qv_status qv_op_parse(const char *text, struct qv_op *op, qv_error *err);
