/* SPDX-License-Identifier: MIT */
/* Chooses the kernel of gemm.metal for a gemm or a gemm_few: tiles, few rows, or naive. */
#include "tiles.h"

enum { FEW_COLS_OF_GROUP = 16 };

static qv_status
check_size(const struct qv_op_gemm *op, qv_error *err)
{
    int64_t rows = 1 << 30, most = 1 << 26;
    if (op->m > rows || op->residual_rows > rows || op->n > most || op->k > most ||
        op->m * op->n >= (int64_t)1 << 32)
        return qv_fail(err, QV_EUNSUPPORTED,
                       "gemm: %lld x %lld x %lld; Metal's kernels allow up to 2^30 rows, 2^26 "
                       "columns and fewer than 2^32 outputs",
                       (long long)op->m, (long long)op->n, (long long)op->k);
    return QV_OK;
}

static uint32_t
grouped(const struct qv_op_gemm_few *op)
{
    const uint32_t kind = op->w_dtype == QV_F16 ? 1 : op->w_dtype == QV_BF16 ? 2 : 0;
    return (uint32_t)op->w_bits | (uint32_t)op->w_group << 8 | kind << 16;
}

static void
launch_rows(const struct qv_op_gemm *op, struct launch_metal *out)
{
    out->function = "gemm_rows";
    out->constants[CONSTANT_A] = op->m <= MOST_FEW_ROWS ? (uint32_t)op->m : 0;
    out->constants[CONSTANT_B] = op->k % 4 == 0;
    out->threads = TILE_THREADS;
    out->groups[0] = (uint32_t)qv_ceil_div(op->n, FEW_COLS_OF_GROUP);
    out->groups[1] = (uint32_t)qv_ceil_div(op->m, MOST_FEW_ROWS);
    out->groups[2] = 1;
}

/* groups: how w is quantised, as in CONSTANT_GROUPED. */
static qv_status
launch(const struct qv_op_gemm *op, uint32_t groups, int choice, bool naive,
       struct launch_metal *out, qv_error *err)
{
    qv_status status = check_size(op, err);
    if (status)
        return status;
    const bool few = groups || op->m <= MOST_FEW_ROWS;
    int choices = naive || groups ? 1 : TILES + few;
    if (choice >= choices)
        return qv_fail(err, QV_EUNSUPPORTED, "gemm: only %d kernels support it", choices);
    out->real = (qv_dtype)op->x_dtype;
    out->constants[CONSTANT_BIAS] = op->bias != 0;
    out->constants[CONSTANT_ACT] = (uint32_t)op->act;
    out->constants[CONSTANT_RESIDUAL] = op->residual_rows != 0;
    out->constants[CONSTANT_GROUPED] = groups;
    out->args.gemm = (struct gemm_args){ (uint32_t)op->m,
                                         (uint32_t)op->n,
                                         (uint32_t)op->k,
                                         { (float)op->alpha, (uint32_t)op->residual_rows } };
    if (naive)
        naive_launch("gemm_naive", op->m * op->n, out);
    else if (few && choice == 0)
        launch_rows(op, out);
    else {
        const struct tile_metal *tile = tile_choose(op->m, op->n, choice - few);
        out->function = tile->gemm;
        tile_launch(tile, op->m, op->n, op->k, op->k % 4 ? 0 : 2, out);
    }
    return QV_OK;
}

qv_status
qv_launch_gemm_metal(const struct qv_op_gemm *op, int choice, bool naive, struct launch_metal *out,
                     qv_error *err)
{
    return launch(op, 0, choice, naive, out, err);
}

qv_status
qv_launch_gemm_few_metal(const struct qv_op_gemm_few *op, int choice, bool naive,
                         struct launch_metal *out, qv_error *err)
{
    const struct qv_op_gemm gemm = qv_op_few_as_gemm(op);
    return launch(&gemm, grouped(op), choice, naive, out, err);
}
