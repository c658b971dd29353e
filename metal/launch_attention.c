/* SPDX-License-Identifier: MIT */
/* attention: on tiles for the heads that they are made for, else a simdgroup per query. */
#include "launch.h"

/* As in attention.metal. */
enum { SIMDGROUPS = 4, THREADS = 32 * SIMDGROUPS, STRIP = 8 };

static const char *
tiled_kernel(int64_t head_dim)
{
    switch (head_dim) {
    case 64: return "attention_64";
    case 72: return "attention_72";
    case 80: return "attention_80";
    }
    return NULL;
}

/* A block of keys and one of values, as struct attention_tile says. */
static uint32_t
tile_bytes(const struct qv_op_attention *op)
{
    int64_t bytes = op->dtype == QV_BF16 ? 2 : 4, keys = op->dtype == QV_BF16 ? 32 : 16;
    return (uint32_t)(2 * keys * (op->head_dim * bytes / 16 | 1) * 16);
}

static qv_status
check_counts(const struct qv_op_attention *op, qv_error *err)
{
    const struct {
        const char *field;
        int64_t value;
    } counts[] = {
        { "batch", op->batch },
        { "seq", op->seq },
        { "heads*head_dim", op->heads * op->head_dim },
    };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        if (counts[i].value > INT32_MAX)
            return qv_fail(err, QV_EUNSUPPORTED, "attention: %s=%lld; Metal kernels count to %d",
                           counts[i].field, (long long)counts[i].value, INT32_MAX);
    return QV_OK;
}

/* Choices of the tiled kernel: 32 queries of a threadgroup, or 64, for which keys are read half as
 * often, by half as many threadgroups. */
qv_status
qv_launch_attention_metal(const struct qv_op_attention *op, int choice, bool plain,
                          struct launch_metal *out, qv_error *err)
{
    const char *tiled = plain ? NULL : tiled_kernel(op->head_dim);
    int64_t queries = tiled ? SIMDGROUPS * STRIP * (choice + 1) : SIMDGROUPS;
    qv_status status = check_counts(op, err);
    if (status)
        return status;
    if (choice > (tiled ? 1 : 0))
        return qv_fail(err, QV_EUNSUPPORTED, "attention runs in %s with head_dim=%lld",
                       tiled ? "two ways" : "one way", (long long)op->head_dim);
    out->function = tiled ? tiled : "attention_plain";
    out->real = (qv_dtype)op->dtype;
    out->constants[CONSTANT_A] = tiled ? (uint32_t)choice + 1 : 0;
    out->args.attention = (struct attention_args){
        .batch = (qv_count)op->batch,
        .seq = (qv_count)op->seq,
        .heads = (qv_count)op->heads,
        .head_dim = (qv_count)op->head_dim,
        .scale = (float)op->scale,
    };
    out->groups[0] = (uint32_t)((op->seq + queries - 1) / queries);
    out->groups[1] = (uint32_t)op->heads;
    out->groups[2] = (uint32_t)op->batch;
    out->threads = THREADS;
    out->threadgroup_bytes = tiled ? tile_bytes(op) : 0;
    return QV_OK;
}
