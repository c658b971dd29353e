/* SPDX-License-Identifier: MIT */
/* Launches by kind of operation. */
#include "launch.h"

qv_status
qv_launch_metal(const struct qv_op *op, int choice, bool naive, struct launch_metal *out,
                qv_error *err)
{
    qv_status status = qv_op_takes_one(op, 1 << QV_F32 | 1 << QV_BF16, err);
    if (status)
        return status;
    switch (op->kind) {
    case QV_OP_gemm: return qv_launch_gemm_metal(&op->u.gemm, choice, naive, out, err);
    case QV_OP_conv: return qv_launch_conv_metal(&op->u.conv, choice, naive, out, err);
    case QV_OP_attention:
        return qv_launch_attention_metal(&op->u.attention, choice, naive, out, err);
    case QV_OP_patchify:
    case QV_OP_convert:
    case QV_OP_norm:
    case QV_OP_rope:
    case QV_OP_gate:
    case QV_OP_gather:
    case QV_OP_interpolate:
    case QV_OP_im2col:
    case QV_OP_epilogue: return qv_launch_rows_metal(op, choice, naive, out, err);
    case QV_OP_COUNT: break;
    }
    return qv_fail(err, QV_EUNSUPPORTED, "operation %d has no Metal kernel", (int)op->kind);
}

/* Why an operation that was not asked to be is on a simple kernel; NULL: it is on a fast one. */
static const char *
obstacle(const struct qv_op *op, const struct launch_metal *launch)
{
    bool simple = strstr(launch->function, "_naive") != NULL;
    bool vectors = launch->constants[CONSTANT_ALIGNED];
    switch (op->kind) {
    case QV_OP_gemm: return NULL;
    case QV_OP_conv: return simple ? "it has groups" : NULL;
    case QV_OP_attention: return simple ? "there are tiles for heads of 64, 72 and 80" : NULL;
    case QV_OP_norm: return simple ? "rows are no whole vectors, or too long" : NULL;
    case QV_OP_im2col:
        return vectors || strcmp(launch->function, "im2col") ? NULL : "rows are no whole vectors";
    case QV_OP_patchify:
    case QV_OP_convert:
    case QV_OP_rope:
    case QV_OP_gate:
    case QV_OP_gather:
    case QV_OP_interpolate:
    case QV_OP_epilogue: return vectors ? NULL : "rows are no whole vectors";
    case QV_OP_COUNT: break;
    }
    return NULL;
}

void
qv_describe_metal(const struct qv_op *op, bool naive, const struct launch_metal *launch, char *text,
                  size_t size)
{
    const char *why = naive ? "asked for" : obstacle(op, launch);
    snprintf(text, size, "%s%s%s", launch->function, why ? ", naive: " : "", why ? why : "");
}
