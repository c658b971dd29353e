/* SPDX-License-Identifier: MIT */
/* Operations on rows: threads divide the rows, and lanes.c computes within a row. */
#include "cpu.h"

#include <omp.h>

/* The threads of a run, and their buffers for rows in f32. */
struct team {
    int threads;
    char *scratch;
    size_t row_bytes; /* size of a thread's buffer */
};

static float *
buffer_of_thread(const struct team *team)
{
    return (float *)(team->scratch + (size_t)omp_get_thread_num() * team->row_bytes);
}

/* Converts one patch of one frame, channel by channel. */
static void
patchify_patch(const struct qv_op_patchify *op, const uint8_t *src, int64_t line_bytes,
               const float *norm, int64_t row, int64_t t, void *y)
{
    int64_t c = op->channels, ps = op->patch, first = row * c * op->temporal * ps * ps;
    for (int64_t ch = 0; ch < c; ch++)
        for (int64_t line = 0; line < ps; line++) {
            int64_t out = first + ((ch * op->temporal + t) * ps + line) * ps;
            qv_lanes_bytes_cpu(at_cpu(y, op->y_dtype, out), op->y_dtype,
                               src + line * line_bytes + ch, c, norm[ch], norm[3 + ch], ps);
        }
}

static void
patchify_cpu(const struct qv_op_patchify *op, void *const *p, const struct team *team)
{
    const int32_t(*places)[4] = p[1], (*coords)[4] = p[3];
    const float(*norms)[6] = p[2];
    int64_t c = op->channels, ps = op->patch;
#pragma omp parallel for num_threads(team->threads) schedule(static)
    for (int64_t i = 0; i < op->rows; i++)
        for (int64_t t = 0; t < op->temporal; t++) {
            const int32_t *at = coords[i], *place = places[at[0]];
            int64_t frame = place[0] + (int64_t)at[1] * place[1] + t * place[2];
            int64_t pixel = frame * ps * ps + (int64_t)at[2] * ps * place[3] * ps + at[3] * ps;
            patchify_patch(op, (const uint8_t *)p[0] + pixel * c, place[3] * ps * c, norms[at[0]],
                           i, t, p[4]);
        }
}

static void
convert_cpu(const struct qv_op_convert *op, void *const *p, const struct team *team)
{
    enum { PIECE = 4096 };
#pragma omp parallel for num_threads(team->threads) schedule(static)
    for (int64_t i = 0; i < op->n; i += PIECE) {
        int64_t n = op->n - i < PIECE ? op->n - i : PIECE;
        const void *x = at_cpu(p[0], op->x_dtype, i);
        void *y = at_cpu(p[1], op->y_dtype, i);
        if (op->x_dtype == op->y_dtype) {
            memcpy(y, x, (size_t)n * qv_dtype_bytes(op->x_dtype));
            continue;
        }
        float values[PIECE];
        qv_lanes_load_cpu(values, x, op->x_dtype, n);
        qv_lanes_store_cpu(y, values, op->y_dtype, n);
    }
}

static void
norm_cpu(const struct qv_op_norm *op, void *const *p, const struct team *team)
{
#pragma omp parallel for num_threads(team->threads) schedule(static)
    for (int64_t i = 0; i < op->rows; i++) {
        const void *from = at_cpu(p[0], op->x_dtype, i * op->cols);
        void *to = at_cpu(p[3], op->y_dtype, i * op->cols);
        float *buffer = buffer_of_thread(team), *y = op->y_dtype == QV_F32 ? to : buffer;
        const float *x = op->x_dtype == QV_F32 ? from : buffer;
        if (x == buffer)
            qv_lanes_load_cpu(buffer, from, op->x_dtype, op->cols);
        qv_lanes_norm_cpu(y, x, p[1], p[2], op->cols, (float)op->eps, op->rms);
        if (y == buffer)
            qv_lanes_store_cpu(to, y, op->y_dtype, op->cols);
    }
}

/* Each half of a head has two quarters: the first is rotated by the patch's row, the second by its
 * column. */
static void
rope_cpu(const struct qv_op_rope *op, void *const *p, const struct team *team)
{
    const int32_t(*coords)[4] = p[2];
    int64_t half = op->head_dim / 2, quarter = half / 2, width = op->heads * op->head_dim;
#pragma omp parallel for num_threads(team->threads) schedule(static)
    for (int64_t i = 0; i < op->rows; i++) {
        float *buffer = buffer_of_thread(team);
        float *cosines = buffer + width, *sines = cosines + half;
        void *row = at_cpu(p[3], op->x_dtype, i * qv_row_stride(op->x_stride, width));
        float *x = op->x_dtype == QV_F32 ? row : buffer;
        for (int axis = 0; axis < 2; axis++) {
            int64_t from = coords[i][2 + axis] * quarter;
            memcpy(cosines + axis * quarter, (const float *)p[0] + from,
                   (size_t)quarter * sizeof *cosines);
            memcpy(sines + axis * quarter, (const float *)p[1] + from,
                   (size_t)quarter * sizeof *sines);
        }
        if (x == buffer)
            qv_lanes_load_cpu(x, row, op->x_dtype, width);
        for (int64_t h = 0; h < op->heads; h++)
            qv_lanes_rotate_cpu(x + h * op->head_dim, x + h * op->head_dim + half, cosines, sines,
                                half);
        if (x == buffer)
            qv_lanes_store_cpu(row, x, op->x_dtype, width);
    }
}

static void
gate_cpu(const struct qv_op_gate *op, void *const *p, const struct team *team)
{
    int64_t a_stride = qv_row_stride(op->a_stride, op->cols);
    int64_t b_stride = qv_row_stride(op->b_stride, op->cols);
#pragma omp parallel for num_threads(team->threads) schedule(static)
    for (int64_t i = 0; i < op->rows; i++) {
        float *a = buffer_of_thread(team);
        float *b = a + op->cols;
        qv_lanes_load_cpu(a, at_cpu(p[0], op->a_dtype, i * a_stride), op->a_dtype, op->cols);
        qv_lanes_load_cpu(b, at_cpu(p[1], op->b_dtype, i * b_stride), op->b_dtype, op->cols);
        qv_lanes_epilogue_cpu(a, a, NULL, 1, op->act, op->cols);
        qv_lanes_multiply_cpu(a, b, op->cols);
        qv_lanes_store_cpu(at_cpu(p[2], op->y_dtype, i * op->cols), a, op->y_dtype, op->cols);
    }
}

static void
gather_cpu(const struct qv_op_gather *op, void *const *p, const struct team *team)
{
    const int32_t *index = p[1];
#pragma omp parallel for num_threads(team->threads) schedule(static)
    for (int64_t i = 0; i < op->rows; i++) {
        const void *x = at_cpu(p[0], op->x_dtype, index[i] * op->cols);
        void *y = at_cpu(p[2], op->y_dtype, i * op->cols);
        if (op->x_dtype == op->y_dtype) {
            memcpy(y, x, (size_t)op->cols * qv_dtype_bytes(op->x_dtype));
            continue;
        }
        float *v = buffer_of_thread(team);
        qv_lanes_load_cpu(v, x, op->x_dtype, op->cols);
        qv_lanes_store_cpu(y, v, op->y_dtype, op->cols);
    }
}

static void
interpolate_cpu(const struct qv_op_interpolate *op, void *const *p, const struct team *team)
{
    const int32_t *index = p[1];
    const float *weight = p[2];
#pragma omp parallel for num_threads(team->threads) schedule(static)
    for (int64_t i = 0; i < op->rows; i++) {
        float *sum = buffer_of_thread(team);
        float *x = sum + op->cols;
        memset(sum, 0, (size_t)op->cols * sizeof *sum);
        for (int64_t t = op->taps * i; t < op->taps * (i + 1); t++) {
            qv_lanes_load_cpu(x, at_cpu(p[0], op->table_dtype, index[t] * op->cols),
                              op->table_dtype, op->cols);
            qv_lanes_add_scaled_cpu(sum, x, weight[t], op->cols);
        }
        qv_lanes_store_cpu(at_cpu(p[3], op->y_dtype, i * op->cols), sum, op->y_dtype, op->cols);
    }
}

/* Writes one row: the values of x under the kernel at z, r, q of sample n, copied in runs that are
 * contiguous in x. */
static void
im2col_row(const struct qv_op_im2col *op, const char *x, char *y, int64_t n, int64_t z, int64_t r,
           int64_t q)
{
    int64_t planes = op->channels_first ? op->c : 1, c = op->channels_first ? 1 : op->c;
    size_t element = qv_dtype_bytes(op->x_dtype), run = (size_t)(op->kw * c) * element;
    for (int64_t plane = n * planes; plane < (n + 1) * planes; plane++)
        for (int64_t i = 0; i < op->kd; i++)
            for (int64_t j = 0; j < op->kh; j++, y += run) {
                int64_t line = (plane * op->d + z + i) * op->h + r + j;
                memcpy(y, x + (size_t)((line * op->w + q) * c) * element, run);
            }
}

/* Turns channels-first into channels-last order, which is im2col with a kernel of one: columns of a
 * matrix [c, positions] become rows, SOME at a time. Without strides a line is all positions of a
 * sample; with strides it is the positions in one line of x. */
static void
transpose(const struct qv_op_im2col *op, void *const *p, const struct team *team)
{
    enum { SOME = 256 };
    bool dense = op->sd == 1 && op->sh == 1 && op->sw == 1;
    int64_t plane = op->d * op->h * op->w, ds = (op->d - 1) / op->sd + 1;
    int64_t hs = (op->h - 1) / op->sh + 1, width = dense ? plane : (op->w - 1) / op->sw + 1;
    int64_t lines = dense ? 1 : ds * hs, pieces = qv_ceil_div(width, SOME);
#pragma omp parallel for num_threads(team->threads) schedule(static)
    for (int64_t i = 0; i < op->n * lines * pieces; i++) {
        int64_t n = i / (lines * pieces), line = i / pieces % lines, first = i % pieces * SOME;
        int64_t in = (line / hs * op->sd * op->h + line % hs * op->sh) * op->w + first * op->sw;
        int64_t out = (n * lines + line) * width + first;
        qv_lanes_transpose_cpu(at_cpu(p[1], op->y_dtype, out * op->c), op->c,
                               at_cpu(p[0], op->x_dtype, n * op->c * plane + in), plane, op->sw,
                               op->x_dtype, op->c, width - first < SOME ? width - first : SOME);
    }
}

static void
im2col_cpu(const struct qv_op_im2col *op, void *const *p, const struct team *team)
{
    int64_t ds = (op->d - op->kd) / op->sd + 1, hs = (op->h - op->kh) / op->sh + 1;
    int64_t ws = (op->w - op->kw) / op->sw + 1, cols = op->kd * op->kh * op->kw * op->c;
    if (op->channels_first && cols == op->c) {
        transpose(op, p, team);
        return;
    }
#pragma omp parallel for num_threads(team->threads) schedule(static)
    for (int64_t i = 0; i < op->n * ds * hs; i++)
        for (int64_t j = 0; j < ws; j++)
            im2col_row(op, p[0], at_cpu(p[1], op->y_dtype, (i * ws + j) * cols), i / (ds * hs),
                       i / hs % ds * op->sd, i % hs * op->sh, j * op->sw);
}

static void
epilogue_cpu(const struct qv_op_epilogue *op, void *const *p, const struct team *team)
{
    qv_epilogue_rows_cpu(team->threads, op, p[0], p + 1);
}

/* ---- verbs ----------------------------------------------------------------------------------- */

static qv_status
prepare_rows(const struct qv_device_cpu *dev, struct qv_kernel *kernel, int64_t cols,
             size_t *scratch_bytes)
{
    kernel->row_bytes = qv_aligned((size_t)cols * sizeof(float));
    *scratch_bytes = kernel->row_bytes * (size_t)dev->threads;
    return QV_OK;
}

static void
describe_rows(const struct qv_kernel *kernel, char *text, size_t size)
{
    (void)kernel;
    snprintf(text, size, "our row kernel");
}

/* Defines the verbs of an operation whose threads need buffers of `cols` values. */
#define ROW_OP(name, may_mix, cols)                                                                \
    static qv_status prepare_##name(struct qv_device_cpu *dev, struct qv_kernel *kernel,           \
                                    size_t *scratch_bytes, qv_error *err)                          \
    {                                                                                              \
        const struct qv_op_##name *op = &kernel->op.u.name;                                        \
        (void)op;                                                                                  \
        (void)err;                                                                                 \
        return prepare_rows(dev, kernel, cols, scratch_bytes);                                     \
    }                                                                                              \
    static qv_status run_##name(struct qv_device_cpu *dev, const struct qv_kernel *kernel,         \
                                void *const *p, void *scratch, qv_error *err)                      \
    {                                                                                              \
        const struct team team = { dev->threads, scratch, kernel->row_bytes };                     \
        (void)err;                                                                                 \
        name##_cpu(&kernel->op.u.name, p, &team);                                                  \
        return QV_OK;                                                                              \
    }                                                                                              \
    const struct verbs_cpu qv_##name##_verbs_cpu = {                                               \
        .mixes = may_mix, .prepare = prepare_##name, .run = run_##name, .describe = describe_rows  \
    };

/* All operations but im2col compute in f32, so their operands may have different dtypes. */
ROW_OP(patchify, true, 0)
ROW_OP(convert, true, 0)
ROW_OP(norm, true, op->cols)
ROW_OP(rope, true, (op->heads + 1) * op->head_dim)
ROW_OP(gate, true, 2 * op->cols)
ROW_OP(gather, true, op->cols)
ROW_OP(interpolate, true, 2 * op->cols)
ROW_OP(im2col, false, 0)
ROW_OP(epilogue, true, 0)
