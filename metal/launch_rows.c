/* SPDX-License-Identifier: MIT */
/* Launches of operations bound by memory. They use vectors if rows are whole vectors, and enough
 * threadgroups to keep a GPU busy. */
#include "dtype.h"
#include "launch.h"
#include "numbers.h"

enum { THREADS = 256, SIMDGROUP = 32 };
enum {
    FULL_GROUPS = 512 /* enough to keep any GPU busy */,
    MOST_GROUPS = 8 * FULL_GROUPS,
    ITEMS = 4
};

/* ---- shared ---------------------------------------------------------------------------------- */

qv_status
qv_check_counts_metal(const char *op, const struct count_metal *counts, size_t n, qv_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (counts[i].value > INT32_MAX)
            return qv_fail(err, QV_EUNSUPPORTED, "%s: %s is %lld; it must be at most %d on Metal",
                           op, counts[i].field, (long long)counts[i].value, INT32_MAX);
    return QV_OK;
}

/* Sets whether a kernel works on vectors, which requires rows of whole vectors. */
static void
set_aligned(struct launch_metal *out, bool aligned)
{
    out->constants[CONSTANT_ALIGNED] = aligned;
    out->obstacle = aligned ? NULL : "rows are not whole vectors";
}

/* Spreads `times` times `rows` rows of `items` items over threadgroups. Each thread gets a few
 * items, but not so many that few threadgroups are left. */
static void
spread(struct launch_metal *out, int64_t rows, int64_t items, int64_t times)
{
    int64_t share = rows * items * times / FULL_GROUPS;
    int64_t wanted = share < THREADS ? THREADS : qv_at_most(share, ITEMS * THREADS);
    int64_t groups = qv_at_most(qv_ceil_div(rows, qv_ceil_div(wanted, items)), MOST_GROUPS);
    out->groups[0] = (uint32_t)groups;
    out->groups[1] = (uint32_t)qv_at_most(times, qv_ceil_div(MOST_GROUPS, groups));
    out->groups[2] = 1;
    out->threads = THREADS;
    out->constants[CONSTANT_D] = THREADS;
}

/* Launches an operation on rows, a vector or a value at a time. */
static void
by_vectors(struct launch_metal *out, const char *function, int64_t real, int64_t rows, int64_t cols,
           bool aligned)
{
    out->function = function;
    out->real = (qv_dtype)real;
    set_aligned(out, aligned);
    spread(out, rows, cols / (aligned ? 4 : 1), 1);
}

/* ---- rows, convert --------------------------------------------------------------------------- */

static qv_status
launch_patchify(const struct qv_op_patchify *op, bool naive, struct launch_metal *out,
                qv_error *err)
{
    int64_t values = op->channels * op->temporal * op->patch * op->patch;
    bool aligned = op->channels == 3 && op->patch % 4 == 0 && !naive;
    qv_status status =
        CHECK_COUNTS("patchify", err, { "rows", op->rows }, { "columns of y", values });
    if (status)
        return status;
    out->function = "patchify";
    out->real = (qv_dtype)op->y_dtype;
    set_aligned(out, aligned);
    out->args.patchify = (struct patchify_args){
        .rows = (qv_count)op->rows,
        .patch = (qv_count)op->patch,
        .frames = (qv_count)op->temporal,
        .channels = (qv_count)op->channels,
    };
    spread(out, op->rows, aligned ? values / 12 : values, 1);
    return QV_OK;
}

static qv_status
launch_convert(const struct qv_op_convert *op, bool naive, struct launch_metal *out, qv_error *err)
{
    (void)err;
    bool from = op->x_dtype != QV_F32, to = op->y_dtype != QV_F32;
    int64_t size = naive ? 1 : 4;
    out->function = "convert";
    out->real = (qv_dtype)(from ? op->x_dtype : op->y_dtype);
    set_aligned(out, !naive);
    out->constants[CONSTANT_A] = from;
    out->constants[CONSTANT_B] = to;
    out->args.convert = (struct convert_args){ .n = op->n };
    spread(out, qv_ceil_div(op->n, size), 1, 1);
    return QV_OK;
}

/* ---- norm, rope ------------------------------------------------------------------------------ */

/* vectors per thread, as in norm.metal; threads for short rows */
enum { NORM_VECTORS = 9, NORM_THREADS = 128 };

/* A row is normalised by a simdgroup if its registers hold it, otherwise by a threadgroup. Choice 1
 * uses a threadgroup where a simdgroup would do. */
qv_status
qv_launch_norm_metal(const struct qv_op_norm *op, int choice, bool naive, struct launch_metal *out,
                     qv_error *err)
{
    int64_t vectors = op->cols / 4, narrow = qv_ceil_div(vectors, SIMDGROUP);
    bool can_wide = !naive && op->cols % 4 == 0 && vectors <= NORM_VECTORS * THREADS;
    bool can_narrow = can_wide && narrow <= NORM_VECTORS;
    bool wide = can_wide && (!can_narrow || choice == 1), fast = can_wide || can_narrow;
    qv_status status = CHECK_COUNTS("norm", err, { "rows", op->rows }, { "cols", op->cols });
    if (status)
        return status;
    if (choice > can_narrow)
        return qv_fail(err, QV_EUNSUPPORTED, "norm has %s for cols=%lld",
                       can_narrow ? "two kernels" : "one kernel", (long long)op->cols);
    int64_t threads = wide ? qv_at_most(narrow * SIMDGROUP, THREADS) : NORM_THREADS;
    out->function = fast ? "norm" : "norm_naive";
    out->obstacle = fast ? NULL : "rows are not whole vectors, or too long";
    out->real = (qv_dtype)op->y_dtype;
    out->constants[CONSTANT_A] = op->rms != 0;
    out->constants[CONSTANT_B] =
        fast ? (uint32_t)(wide ? qv_ceil_div(vectors, threads) : narrow) : 0;
    out->constants[CONSTANT_C] = fast ? (uint32_t)(wide ? threads / SIMDGROUP : 1) : 0;
    out->constants[CONSTANT_D] = (uint32_t)threads;
    out->args.norm = (struct norm_args){ (qv_count)op->rows, (qv_count)op->cols, (float)op->eps };
    int64_t at_once = wide ? 1 : threads / SIMDGROUP;
    out->groups[0] = (uint32_t)qv_at_most(qv_ceil_div(op->rows, at_once), MOST_GROUPS);
    out->groups[1] = out->groups[2] = 1;
    out->threads = (uint32_t)threads;
    out->threadgroup_bytes = fast ? THREADS / SIMDGROUP * sizeof(float) : 0;
    return QV_OK;
}

static qv_status
launch_rope(const struct qv_op_rope *op, bool naive, struct launch_metal *out, qv_error *err)
{
    enum { HEADS = 4 }; /* heads per thread, as in norm.metal */
    bool aligned = op->head_dim % 8 == 0 && op->x_stride % 4 == 0 && !naive;
    int64_t width = op->heads * op->head_dim;
    qv_status status = CHECK_COUNTS("rope", err, { "rows", op->rows }, { "heads*head_dim", width });
    if (status)
        return status;
    out->function = "rope";
    out->real = (qv_dtype)op->x_dtype;
    set_aligned(out, aligned);
    out->args.rope = (struct rope_args){
        .rows = (qv_count)op->rows,
        .heads = (qv_count)op->heads,
        .head_dim = (qv_count)op->head_dim,
        .stride = qv_row_stride(op->x_stride, width),
    };
    spread(out, op->rows, qv_ceil_div(op->heads, HEADS) * (op->head_dim / (aligned ? 8 : 2)), 1);
    return QV_OK;
}

/* ---- gate, gather ---------------------------------------------------------------------------- */

static qv_status
launch_gate(const struct qv_op_gate *op, bool naive, struct launch_metal *out, qv_error *err)
{
    bool aligned = !naive && !(op->cols % 4 || op->a_stride % 4 || op->b_stride % 4);
    qv_status status = CHECK_COUNTS("gate", err, { "rows", op->rows }, { "cols", op->cols });
    if (status)
        return status;
    by_vectors(out, "gate", op->y_dtype, op->rows, op->cols, aligned);
    out->constants[CONSTANT_ACT] = (uint32_t)op->act;
    out->args.gate = (struct gate_args){ (qv_count)op->rows, (qv_count)op->cols,
                                         qv_row_stride(op->a_stride, op->cols),
                                         qv_row_stride(op->b_stride, op->cols) };
    return QV_OK;
}

static qv_status
launch_gather(const struct qv_op_gather *op, bool naive, struct launch_metal *out, qv_error *err)
{
    bool from = op->x_dtype != QV_F32, to = op->y_dtype != QV_F32;
    bool aligned = op->cols % 4 == 0 && !naive;
    qv_status status = CHECK_COUNTS("gather", err, { "rows", op->rows }, { "cols", op->cols });
    if (status)
        return status;
    by_vectors(out, "gather", from ? op->x_dtype : op->y_dtype, op->rows, op->cols, aligned);
    out->constants[CONSTANT_A] = from;
    out->constants[CONSTANT_B] = to;
    out->args.gather = (struct gather_args){ (qv_count)op->rows, (qv_count)op->cols };
    return QV_OK;
}

/* ---- interpolate, epilogue ------------------------------------------------------------------- */

static qv_status
launch_interpolate(const struct qv_op_interpolate *op, bool naive, struct launch_metal *out,
                   qv_error *err)
{
    bool aligned = op->cols % 4 == 0 && !naive;
    qv_status status = CHECK_COUNTS("interpolate", err, { "rows", op->rows }, { "cols", op->cols },
                                    { "taps", op->taps });
    if (status)
        return status;
    by_vectors(out, "interpolate", op->y_dtype, op->rows, op->cols, aligned);
    out->args.interpolate =
        (struct interpolate_args){ (qv_count)op->rows, (qv_count)op->cols, (qv_count)op->taps };
    return QV_OK;
}

static qv_status
launch_epilogue(const struct qv_op_epilogue *op, bool naive, struct launch_metal *out,
                qv_error *err)
{
    bool aligned = op->cols % 4 == 0 && !naive;
    qv_status status = CHECK_COUNTS("epilogue", err, { "rows", op->rows }, { "cols", op->cols });
    if (status)
        return status;
    by_vectors(out, "epilogue", op->y_dtype, op->rows, op->cols, aligned);
    out->constants[CONSTANT_BIAS] = op->bias != 0;
    out->constants[CONSTANT_ACT] = (uint32_t)op->act;
    out->constants[CONSTANT_RESIDUAL] = op->residual_rows != 0;
    out->args.epilogue_op = (struct epilogue_op_args){
        .rows = (qv_count)op->rows,
        .cols = (qv_count)op->cols,
        .epilogue = { .alpha = (float)op->alpha, .residual_rows = (qv_count)op->residual_rows },
    };
    return QV_OK;
}

/* ---- im2col ---------------------------------------------------------------------------------- */

/* The tile of im2col_tiles, as in rows.metal. Kernels narrower than IM2COL_NARROW need tiles,
 * because otherwise they are read in pieces that are too short. */
enum { IM2COL_TILE = 32, IM2COL_NARROW = 8 };

static struct im2col_args
im2col_args_of(const struct qv_op_im2col *op)
{
    return (struct im2col_args){
        .n = (qv_count)op->n,
        .in = { (qv_count)op->d, (qv_count)op->h, (qv_count)op->w },
        .c = (qv_count)op->c,
        .taps = { (qv_count)op->kd, (qv_count)op->kh, (qv_count)op->kw },
        .stride = { (qv_count)op->sd, (qv_count)op->sh, (qv_count)op->sw },
        .out = { (qv_count)((op->d - op->kd) / op->sd + 1),
                 (qv_count)((op->h - op->kh) / op->sh + 1),
                 (qv_count)((op->w - op->kw) / op->sw + 1) },
    };
}

/* Returns whether four neighbours in a row of y are neighbours in x, and begin at vectors
 * in both. */
static bool
im2col_is_aligned(const struct qv_op_im2col *op)
{
    if (!op->channels_first)
        return op->c % 4 == 0;
    return op->kw % 4 == 0 && op->w % 4 == 0 && op->sw % 4 == 0;
}

qv_status
qv_launch_im2col_metal(const struct qv_op_im2col *op, int choice, bool naive,
                       struct launch_metal *out, qv_error *err)
{
    const struct im2col_args args = im2col_args_of(op);
    int64_t rows = (int64_t)args.out[1] * args.out[2], frames = op->n * args.out[0];
    int64_t cols = op->kd * op->kh * op->kw * op->c;
    int64_t tiles = qv_ceil_div(rows, IM2COL_TILE) * qv_ceil_div(cols, IM2COL_TILE);
    bool can_tile = op->channels_first && !naive, aligned = !naive && im2col_is_aligned(op);
    bool tiled = can_tile && (op->kw < IM2COL_NARROW) == (choice == 0);
    qv_status status =
        CHECK_COUNTS("im2col", err, { "n", op->n }, { "d", op->d }, { "h", op->h }, { "w", op->w },
                     { "c", op->c }, { "sd", op->sd }, { "sh", op->sh }, { "sw", op->sw },
                     { "n*d'", frames }, { "h'*w'", rows }, { "columns of y", cols },
                     { "tiles of 32 x 32 values", tiles });
    if (status)
        return status;
    if (choice > can_tile)
        return qv_fail(err, QV_EUNSUPPORTED, "im2col has %s",
                       can_tile ? "two kernels" : "one kernel");
    out->function = tiled ? "im2col_tiles" : "im2col";
    out->real = (qv_dtype)op->x_dtype;
    set_aligned(out, aligned && !tiled);
    if (tiled)
        out->obstacle = NULL;
    out->constants[CONSTANT_A] = op->channels_first != 0;
    out->args.im2col = args;
    spread(out, rows, cols / (aligned ? 4 : 1), frames);
    if (tiled) {
        out->groups[0] = (uint32_t)qv_at_most(tiles, MOST_GROUPS);
        out->groups[1] = (uint32_t)qv_at_most(frames, qv_ceil_div(MOST_GROUPS, tiles));
        out->threadgroup_bytes = IM2COL_TILE * (IM2COL_TILE + 1) * qv_dtype_bytes(op->x_dtype);
    }
    return QV_OK;
}

/* ---- operations with one kernel -------------------------------------------------------------- */

#define ONE_WAY(name)                                                                              \
    qv_status qv_launch_##name##_metal(const struct qv_op_##name *op, int choice, bool naive,      \
                                       struct launch_metal *out, qv_error *err)                    \
    {                                                                                              \
        if (choice > 0)                                                                            \
            return qv_fail(err, QV_EUNSUPPORTED, "%s has only one kernel", #name);                 \
        return launch_##name(op, naive, out, err);                                                 \
    }

ONE_WAY(patchify)
ONE_WAY(convert)
ONE_WAY(rope)
ONE_WAY(gate)
ONE_WAY(gather)
ONE_WAY(interpolate)
ONE_WAY(epilogue)
