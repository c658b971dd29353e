/* SPDX-License-Identifier: MIT */
/* Finds the launch of each kind of operation. */
#include "launch.h"

#define QV_OP(name, fields, operands, flops)                                                       \
    static qv_status launch_##name(const struct qv_op *op, int choice, bool naive,                 \
                                   struct launch_metal *out, qv_error *err)                        \
    {                                                                                              \
        return qv_launch_##name##_metal(&op->u.name, choice, naive, out, err);                     \
    }
#include "engine/ops.inc"

static qv_status (*const launches[])(const struct qv_op *op, int choice, bool naive,
                                     struct launch_metal *out, qv_error *err) = {
#define QV_OP(name, fields, operands, flops) launch_##name,
#include "engine/ops.inc"
};

qv_status
qv_launch_metal(const struct qv_op *op, int choice, bool naive, struct launch_metal *out,
                qv_error *err)
{
    qv_status status = qv_op_takes_one(op, 1 << QV_F32 | 1 << QV_BF16, err);
    if (!status)
        status = launches[op->kind](op, choice, naive, out, err);
    if (!status)
        out->seconds = qv_launch_seconds_metal(op, out->flops, naive || out->obstacle);
    return status;
}

void
qv_describe_metal(const struct launch_metal *launch, bool naive, char *text, size_t size)
{
    const char *why = naive ? "asked for" : launch->obstacle;
    snprintf(text, size, "%s%s%s", launch->function, why ? ", naive: " : "", why ? why : "");
}
