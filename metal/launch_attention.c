/* SPDX-License-Identifier: MIT */
/* attention: runs on tiles for head sizes that have them, otherwise with a simdgroup per query. */
#include "dtype.h"
#include "launch.h"
#include "numbers.h"

/* These must be the same as in attention.metal. */
enum { SIMDGROUPS = 4, THREADS = 32 * SIMDGROUPS, STRIP = 8 };

/* Returns the tiled kernel for an operation, or NULL. Rows of q, k and v must begin at vectors of
 * four. */
static const char *
tiled_kernel(const struct qv_op_attention *op)
{
    if (op->q_stride % 4 || op->k_stride % 4 || op->v_stride % 4)
        return NULL;
    switch (op->head_dim) {
    case 64: return "attention_64";
    case 72: return "attention_72";
    case 80: return "attention_80";
    }
    return NULL;
}

/* Returns the bytes of a block of keys and one of values, as struct attention_tile defines them. */
static uint32_t
tile_bytes(const struct qv_op_attention *op)
{
    int64_t bytes = (int64_t)qv_dtype_bytes(op->q_dtype), keys = bytes == 2 ? 32 : 16;
    return (uint32_t)(2 * keys * (op->head_dim * bytes / 16 | 1) * 16);
}

/* Sets the numbers of blocks of queries, of heads, and of segments if these have equal lengths. For
 * segments of any length, blocks are as many as attention_find() may need for any list. */
static void
attention_groups(const struct qv_op_attention *op, int64_t queries, uint32_t groups[3])
{
    bool dense = op->segment_rows > 0;
    int64_t blocks =
        dense ? qv_ceil_div(op->segment_rows, queries) : op->rows / queries + op->segments;
    groups[0] = (uint32_t)blocks;
    groups[1] = (uint32_t)op->heads;
    groups[2] = dense ? (uint32_t)op->segments : 1;
}

/* One segment may have all rows, unless the operation promises otherwise. */
static double
most_flops(const struct qv_op_attention *op)
{
    const int64_t keys = op->segment_rows ? op->segment_rows : op->longest ? op->longest : op->rows;
    const int64_t queries = op->segment_rows ? op->segments * op->segment_rows : op->rows;
    return 4.0 * (double)queries * (double)keys * (double)op->heads * (double)op->head_dim;
}

qv_status
qv_launch_attention_metal(const struct qv_op_attention *op, int choice, bool naive,
                          struct launch_metal *out, qv_error *err)
{
    const char *tiled = naive ? NULL : tiled_kernel(op);
    int64_t width = op->heads * op->head_dim;
    int64_t queries = tiled ? SIMDGROUPS * STRIP : SIMDGROUPS;
    qv_status status = CHECK_COUNTS("attention", err, { "rows", op->rows },
                                    { "segments", op->segments }, { "heads*head_dim", width });
    if (status)
        return status;
    if (choice > 0)
        return qv_fail(err, QV_EUNSUPPORTED, "attention has only one kernel for head_dim=%lld",
                       (long long)op->head_dim);
    out->function = tiled ? tiled : "attention_naive";
    out->obstacle = tiled ? NULL : "only heads of 64, 72 and 80 have tiles";
    out->real = (qv_dtype)op->q_dtype;
    out->args.attention = (struct attention_args){
        .segments = (qv_count)op->segments,
        .segment_rows = (qv_count)op->segment_rows,
        .heads = (qv_count)op->heads,
        .head_dim = (qv_count)op->head_dim,
        .scale = (float)op->scale,
        .q_stride = qv_row_stride(op->q_stride, width),
        .k_stride = qv_row_stride(op->k_stride, width),
        .v_stride = qv_row_stride(op->v_stride, width),
    };
    attention_groups(op, queries, out->groups);
    out->is_attention = true;
    out->flops = most_flops(op);
    out->threads = THREADS;
    out->threadgroup_bytes = tiled ? tile_bytes(op) : 0;
    return QV_OK;
}
