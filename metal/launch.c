/* SPDX-License-Identifier: MIT */
/* Launches by kind of operation. */
#include "launch.h"

qv_status
qv_launch_metal(const struct qv_op *op, int choice, bool plain, struct launch_metal *out,
                qv_error *err)
{
    switch (op->kind) {
    case QV_OP_gemm: return qv_launch_gemm_metal(&op->u.gemm, choice, plain, out, err);
    case QV_OP_conv: return qv_launch_conv_metal(&op->u.conv, choice, plain, out, err);
    case QV_OP_attention:
        return qv_launch_attention_metal(&op->u.attention, choice, plain, out, err);
    case QV_OP_rows:
    case QV_OP_convert:
    case QV_OP_norm:
    case QV_OP_rope:
    case QV_OP_taps:
    case QV_OP_unfold:
    case QV_OP_finish: return qv_launch_rows_metal(op, choice, plain, out, err);
    case QV_OP_COUNT: break;
    }
    return qv_fail(err, QV_EUNSUPPORTED, "operation %d has no Metal kernel", (int)op->kind);
}
