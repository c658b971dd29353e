/* SPDX-License-Identifier: MIT */
/* Reads operations from text: repro lines and lists of shapes. */
#pragma once

#include "engine/op.h"

/* The reverse of qv_op_print. Fields that are left out are 0, and dtype= is for every operand that
 * is not named. Fails with QV_EINVAL and names the word that is wrong. */
qv_status qv_op_parse(const char *text, struct qv_op *op, qv_error *err);
