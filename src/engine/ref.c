/* SPDX-License-Identifier: MIT */
/*
 * The reference backend has every operation in plain C, summed in double and rounded once. It is
 * the definition that checkop compares the other backends with, and it runs on any machine.
 */
#include <math.h>
#include <stdlib.h>

#include "backend.h"
#include "dtype.h"
#include "error.h"

struct qv_kernel {
    struct qv_op op;
};

/* The pointer to scratch follows the operands' pointers. */
enum { SCRATCH = QV_MAX_OPERANDS };

static void
patchify_ref(const struct qv_op_patchify *op, void *const *p)
{
    const uint8_t *frames = p[0];
    const int32_t(*places)[4] = p[1], (*coords)[4] = p[3];
    const float(*norms)[6] = p[2];
    int64_t c = op->channels, ps = op->patch, out = 0;
    for (int64_t i = 0; i < op->rows; i++) {
        const int32_t *row = coords[i], *place = places[row[0]];
        const float *norm = norms[row[0]];
        for (int64_t ch = 0; ch < c; ch++)
            for (int64_t t = 0; t < op->temporal; t++) {
                int64_t frame = place[0] + (int64_t)row[1] * place[1] + t * place[2];
                for (int64_t y = 0; y < ps; y++)
                    for (int64_t x = 0; x < ps; x++) {
                        int64_t line = row[2] * ps + y, width = place[3] * ps;
                        int64_t at = frame * ps * ps + line * width + row[3] * ps + x;
                        qv_store(p[4], op->y_dtype, out++,
                                 (double)frames[at * c + ch] * norm[ch] + norm[3 + ch]);
                    }
            }
    }
}

static void
convert_ref(const struct qv_op_convert *op, void *const *p)
{
    for (int64_t i = 0; i < op->n; i++)
        qv_store(p[1], op->y_dtype, i, qv_load(p[0], op->x_dtype, i));
}

/* Applies the epilogue to the sum at (row, col) and writes it to y. */
static void
finish(const struct qv_op_epilogue *e, double sum, int64_t row, int64_t col, const void *bias,
       const void *residual, void *y)
{
    sum = qv_activate(e->act, e->alpha * sum + (e->bias ? qv_load(bias, e->bias_dtype, col) : 0));
    if (e->residual_rows)
        sum += qv_load(residual, e->residual_dtype, row % e->residual_rows * e->cols + col);
    qv_store(y, e->y_dtype, row * e->cols + col, sum);
}

/* Writes n values of x, from `first` on. */
static void
widen(const void *x, int64_t dtype, int64_t first, int64_t n, double *out)
{
    if (dtype == QV_F32) { /* the most frequent dtype, without a switch per value */
        const float *from = (const float *)x + first;
        for (int64_t i = 0; i < n; i++)
            out[i] = from[i];
        return;
    }
    for (int64_t i = 0; i < n; i++)
        out[i] = qv_load(x, dtype, first + i);
}

/* Writes the sums of x[rows,k] w[k], and up to three values after them. Four rows are summed
 * together, because a single sum would have to wait for each addition to finish. */
static void
sum_rows(const double *x, int64_t rows, int64_t k, const double *w, double *sums)
{
    for (int64_t i = 0; i < rows; i += 4) {
        const double *row[4];
        double a = 0, b = 0, c = 0, d = 0;
        for (int64_t r = 0; r < 4; r++) /* rows past the end repeat the last */
            row[r] = x + (i + r < rows ? i + r : rows - 1) * k;
        const double *xa = row[0], *xb = row[1], *xc = row[2], *xd = row[3];
        for (int64_t l = 0; l < k; l++) {
            const double v = w[l];
            a += xa[l] * v;
            b += xb[l] * v;
            c += xc[l] * v;
            d += xd[l] * v;
        }
        memcpy(sums + i, (double[4]){ a, b, c, d }, 4 * sizeof *sums);
    }
}

/* A gemm widens this many rows of x at a time, and then each row of w once for all of them. */
enum { WIDE_ROWS = 16 };

/* Writes row j of a gemm's w, which is quantised if groups' bits are not 0. */
static void
widen_weights(const struct qv_op_gemm *op, const struct qv_groups *groups, const void *w, int64_t j,
              double *out)
{
    const char *row = (const char *)w + (size_t)j * qv_grouped_row_bytes(groups, op->k);
    if (!groups->bits)
        widen(w, op->w_dtype, j * op->k, op->k, out);
    else
        for (int64_t l = 0; l < op->k; l++)
            out[l] = qv_grouped_value(groups, row, op->k, l);
}

static void
multiply_ref(const struct qv_op_gemm *op, const struct qv_groups *groups, void *const *p)
{
    const struct qv_op_epilogue epilogue = qv_op_gemm_epilogue(op);
    double *weights = p[SCRATCH], *wide = weights + op->k, sums[WIDE_ROWS];
    for (int64_t first = 0; first < op->m; first += WIDE_ROWS) {
        const int64_t rows = op->m - first < WIDE_ROWS ? op->m - first : WIDE_ROWS;
        widen(p[0], op->x_dtype, first * op->k, rows * op->k, wide);
        for (int64_t j = 0; j < op->n; j++) {
            widen_weights(op, groups, p[1], j, weights);
            sum_rows(wide, rows, op->k, weights, sums);
            for (int64_t i = first; i < first + rows; i++)
                finish(&epilogue, sums[i - first], i, j, p[2], p[3], p[4]);
        }
    }
}

static void
gemm_ref(const struct qv_op_gemm *op, void *const *p)
{
    multiply_ref(op, &(struct qv_groups){ 0 }, p);
}

static void
gemm_few_ref(const struct qv_op_gemm_few *op, void *const *p)
{
    const struct qv_op_gemm gemm = qv_op_few_as_gemm(op);
    multiply_ref(&gemm, &(struct qv_groups){ op->w_bits, op->w_group, (qv_dtype)op->w_dtype }, p);
}

static void
norm_ref(const struct qv_op_norm *op, void *const *p)
{
    const float *weight = p[1], *bias = p[2];
    for (int64_t i = 0; i < op->rows; i++) {
        int64_t at = i * op->cols;
        double mean = 0, var = 0;
        for (int64_t j = 0; j < op->cols && !op->rms; j++)
            mean += qv_load(p[0], op->x_dtype, at + j) / (double)op->cols;
        for (int64_t j = 0; j < op->cols; j++) {
            double d = qv_load(p[0], op->x_dtype, at + j) - mean;
            var += d * d / (double)op->cols;
        }
        double scale = 1 / sqrt(var + op->eps);
        for (int64_t j = 0; j < op->cols; j++)
            qv_store(p[3], op->y_dtype, at + j,
                     (qv_load(p[0], op->x_dtype, at + j) - mean) * scale * weight[j] +
                         (op->rms ? 0 : bias[j]));
    }
}

static void
rope_ref(const struct qv_op_rope *op, void *const *p)
{
    const float *cosines = p[0], *sines = p[1];
    const int32_t(*coords)[4] = p[2];
    int64_t half = op->head_dim / 2, quarter = op->head_dim / 4;
    int64_t stride = qv_row_stride(op->x_stride, op->heads * op->head_dim);
    for (int64_t i = 0; i < op->rows; i++)
        for (int64_t h = 0; h < op->heads; h++)
            for (int64_t d = 0; d < half; d++) {
                int64_t at = i * stride + h * op->head_dim + d;
                int64_t turn = coords[i][d < quarter ? 2 : 3] * quarter + d % quarter;
                double c = cosines[turn], s = sines[turn];
                double a = qv_load(p[3], op->x_dtype, at);
                double b = qv_load(p[3], op->x_dtype, at + half);
                qv_store(p[3], op->x_dtype, at, a * c - b * s);
                qv_store(p[3], op->x_dtype, at + half, b * c + a * s);
            }
}

/* Rows [first, first + n), which attend to each other. */
struct segment {
    int64_t first, n;
};

/* Computes one head of a segment. */
static void
attend(const struct qv_op_attention *op, void *const *p, struct segment s, int64_t head)
{
    const int64_t hd = op->head_dim, width = op->heads * hd;
    const int64_t q = qv_row_stride(op->q_stride, width), k = qv_row_stride(op->k_stride, width),
                  v = qv_row_stride(op->v_stride, width);
    double *keys = p[SCRATCH], *values = keys + s.n * hd, *query = values + s.n * hd;
    double *sums = query + hd, *scores = sums + hd + 3;
    for (int64_t j = 0; j < s.n; j++)
        for (int64_t d = 0; d < hd; d++) {
            keys[j * hd + d] = qv_load(p[2], op->k_dtype, (s.first + j) * k + head * hd + d);
            values[d * s.n + j] = qv_load(p[3], op->v_dtype, (s.first + j) * v + head * hd + d);
        }
    for (int64_t i = s.first; i < s.first + s.n; i++) {
        double max = -INFINITY, total = 0;
        for (int64_t d = 0; d < hd; d++)
            query[d] = qv_load(p[1], op->q_dtype, i * q + head * hd + d);
        sum_rows(keys, s.n, hd, query, scores);
        for (int64_t j = 0; j < s.n; j++) {
            scores[j] *= op->scale;
            max = fmax(max, scores[j]);
        }
        for (int64_t j = 0; j < s.n; j++)
            total += scores[j] = exp(scores[j] - max);
        sum_rows(values, hd, s.n, scores, sums);
        for (int64_t d = 0; d < hd; d++)
            qv_store(p[4], op->y_dtype, i * width + head * hd + d, sums[d] / total);
    }
}

static void
attention_ref(const struct qv_op_attention *op, void *const *p)
{
    const int32_t *list = p[0];
    for (int64_t s = 0; s < op->segments; s++) {
        struct segment segment = { s * op->segment_rows, op->segment_rows };
        if (!op->segment_rows)
            segment = (struct segment){ list[s], list[op->segments + 1 + s] };
        for (int64_t h = 0; h < op->heads; h++)
            attend(op, p, segment, h);
    }
}

static void
gate_ref(const struct qv_op_gate *op, void *const *p)
{
    int64_t a_stride = qv_row_stride(op->a_stride, op->cols);
    int64_t b_stride = qv_row_stride(op->b_stride, op->cols);
    for (int64_t i = 0; i < op->rows; i++)
        for (int64_t j = 0; j < op->cols; j++)
            qv_store(p[2], op->y_dtype, i * op->cols + j,
                     qv_activate(op->act, qv_load(p[0], op->a_dtype, i * a_stride + j)) *
                         qv_load(p[1], op->b_dtype, i * b_stride + j));
}

static void
gather_ref(const struct qv_op_gather *op, void *const *p)
{
    const int32_t *index = p[1];
    for (int64_t i = 0; i < op->rows; i++)
        for (int64_t j = 0; j < op->cols; j++)
            qv_store(p[2], op->y_dtype, i * op->cols + j,
                     qv_load(p[0], op->x_dtype, index[i] * op->cols + j));
}

static void
interpolate_ref(const struct qv_op_interpolate *op, void *const *p)
{
    const int32_t *index = p[1];
    const float *weight = p[2];
    for (int64_t i = 0; i < op->rows; i++)
        for (int64_t j = 0; j < op->cols; j++) {
            double sum = 0;
            for (int64_t t = op->taps * i; t < op->taps * (i + 1); t++)
                sum += weight[t] * qv_load(p[0], op->table_dtype, index[t] * op->cols + j);
            qv_store(p[3], op->y_dtype, i * op->cols + j, sum);
        }
}

static void
im2col_ref(const struct qv_op_im2col *op, void *const *p)
{
    struct qv_view y = qv_op_view(&(struct qv_op){ QV_OP_im2col, { .im2col = *op } }, 1);
    int64_t hs = (op->h - op->kh) / op->sh + 1, ws = (op->w - op->kw) / op->sw + 1;
    int64_t ds = (op->d - op->kd) / op->sd + 1, volume = op->kd * op->kh * op->kw;
    for (int64_t i = 0; i < y.rows * y.cols; i++) {
        int64_t row = i / y.cols, col = i % y.cols;
        int64_t c = op->channels_first ? col / volume : col % op->c;
        int64_t tap = op->channels_first ? col % volume : col / op->c;
        int64_t n = row / (ds * hs * ws);
        int64_t z = row / (hs * ws) % ds * op->sd + tap / (op->kh * op->kw);
        int64_t r = row / ws % hs * op->sh + tap / op->kw % op->kh;
        int64_t q = row % ws * op->sw + tap % op->kw;
        int64_t at = op->channels_first ? (((n * op->c + c) * op->d + z) * op->h + r) * op->w + q
                                        : (((n * op->d + z) * op->h + r) * op->w + q) * op->c + c;
        qv_store(p[1], op->y_dtype, i, qv_load(p[0], op->x_dtype, at));
    }
}

/* Returns the sum that a kernel at one position gives for one output channel; at: n, d', h', w'. */
static double
convolve(const struct qv_op_conv *op, const void *x, const void *w, const int64_t at[4], int64_t o)
{
    int64_t cg = op->c / op->groups, c0 = o / (op->o / op->groups) * cg;
    double sum = 0;
    for (int64_t kd = 0; kd < op->kd; kd++)
        for (int64_t kh = 0; kh < op->kh; kh++)
            for (int64_t kw = 0; kw < op->kw; kw++) {
                int64_t z = at[0] * op->x_depth + at[1] * op->sd + kd * op->dd;
                int64_t r = at[2] * op->sh + kh * op->dh - op->top;
                int64_t q = at[3] * op->sw + kw * op->dw - op->left;
                if (r < 0 || r >= op->h || q < 0 || q >= op->w)
                    continue;
                for (int64_t c = 0; c < cg; c++)
                    sum += qv_load(x, op->x_dtype, ((z * op->h + r) * op->w + q) * op->c + c0 + c) *
                           qv_load(w, op->w_dtype,
                                   (((o * cg + c) * op->kd + kd) * op->kh + kh) * op->kw + kw);
            }
    return sum;
}

static void
conv_ref(const struct qv_op_conv *op, void *const *p)
{
    const struct qv_op_epilogue epilogue = qv_op_conv_epilogue(op);
    int64_t out[3], row = 0;
    qv_op_conv_output(op, out);
    for (int64_t n = 0; n < op->n; n++)
        for (int64_t i = 0; i < out[0] * out[1] * out[2]; i++, row++) {
            const int64_t at[4] = { n, i / (out[1] * out[2]), i / out[2] % out[1], i % out[2] };
            for (int64_t o = 0; o < op->o; o++) {
                const double sum = convolve(op, p[0], p[1], at, o);
                const int64_t y = row * op->o + o;
                if (op->sums)
                    qv_store(p[4], op->y_dtype, y,
                             sum + (op->sums == 2 ? qv_load(p[4], op->y_dtype, y) : 0));
                else
                    finish(&epilogue, sum, row, o, p[2], p[3], p[4]);
            }
        }
}

static void
epilogue_ref(const struct qv_op_epilogue *op, void *const *p)
{
    const float *x = p[0];
    for (int64_t i = 0; i < op->rows * op->cols; i++)
        finish(op, x[i], i / op->cols, i % op->cols, p[1], p[2], p[3]);
}

/* Functions by kind. An operation without one does not compile. */
#define QV_OP(name, fields, operands, flops)                                                       \
    static void run_##name(const struct qv_op *op, void *const *p)                                 \
    {                                                                                              \
        name##_ref(&op->u.name, p);                                                                \
    }
#include "ops.inc"

static void (*const run_kind[])(const struct qv_op *op, void *const *p) = {
#define QV_OP(name, fields, operands, flops) run_##name,
#include "ops.inc"
};

static qv_status
run_ref(struct qv_device *dev, const struct qv_call *calls, size_t n, qv_error *err)
{
    (void)dev;
    (void)err;
    for (const struct qv_call *call = calls; call < calls + n; call++) {
        const struct qv_op *op = &call->kernel->op;
        void *p[SCRATCH + 1];
        for (int i = 0; i < QV_MAX_OPERANDS; i++)
            p[i] = qv_host_pointer(call->operands[i]);
        p[SCRATCH] = qv_host_pointer(call->scratch);
        run_kind[op->kind](op, p);
    }
    return QV_OK;
}

static qv_status
open_ref(const struct qv_device_options *options, struct qv_device **out, qv_error *err)
{
    if (options->ordinal != 0)
        return qv_fail(err, QV_ENODEVICE, "device %d: the ref backend has device 0 only",
                       options->ordinal);
    struct qv_device *dev = calloc(1, sizeof *dev);
    if (!dev)
        return qv_fail(err, QV_ENOMEM, "no memory for a device");
    dev->backend = &qv_backend_ref;
    *out = dev;
    return QV_OK;
}

static void
close_ref(struct qv_device *dev)
{
    free(dev);
}

static void
caps_ref(const struct qv_device *dev, struct qv_caps *out)
{
    (void)dev;
    *out = (struct qv_caps){ .device = "plain C, sums in double",
                             .alignment = 64,
                             .threads = 1,
                             .dtype = QV_F32,
                             .dtype_reason = "the reference computes in double and stores f32",
                             .chunk_rows = 64,
                             .bucket_rows = 4,
                             .least_rows = 4,
                             .free_segments = true,
                             .quick_plans = true,
                             .chunks = 1 };
}

static qv_status
layout_ref(struct qv_device *dev, const struct qv_matrix *matrix, struct qv_layout *out,
           qv_error *err)
{
    (void)dev;
    (void)err;
    *out = (struct qv_layout){ (size_t)matrix->n * qv_matrix_row_bytes(matrix), 1 };
    return QV_OK;
}

static qv_status
lay_out_ref(struct qv_device *dev, const struct qv_matrix *matrix, int64_t row0, int64_t rows,
            const void *src, struct qv_buffer dst, qv_error *err)
{
    dst.offset += (size_t)row0 * qv_matrix_row_bytes(matrix);
    return qv_host_upload(dev, dst, src, (size_t)rows * qv_matrix_row_bytes(matrix), err);
}

static int64_t
scratch_doubles(const struct qv_op *op)
{
    if (op->kind == QV_OP_attention) {
        const int64_t rows = op->u.attention.rows, hd = op->u.attention.head_dim;
        return 2 * rows * hd + hd + (hd + 3) + (rows + 3);
    }
    if (op->kind == QV_OP_gemm || op->kind == QV_OP_gemm_few)
        return (1 + (op->u.gemm.m < WIDE_ROWS ? op->u.gemm.m : WIDE_ROWS)) * op->u.gemm.k;
    return 0;
}

static qv_status
prepare_ref(struct qv_device *dev, const struct qv_op *op, int choice, struct qv_kernel **out,
            size_t *scratch_bytes, qv_error *err)
{
    (void)dev;
    (void)choice;
    struct qv_kernel *kernel = malloc(sizeof *kernel);
    if (!kernel)
        return qv_fail(err, QV_ENOMEM, "no memory for a kernel");
    kernel->op = *op;
    *out = kernel;
    *scratch_bytes = (size_t)scratch_doubles(op) * sizeof(double);
    return QV_OK;
}

static void
release_ref(struct qv_device *dev, struct qv_kernel *kernel)
{
    (void)dev;
    free(kernel);
}

static void
describe_ref(const struct qv_kernel *kernel, char *text, size_t size)
{
    (void)kernel;
    snprintf(text, size, "plain C, sums in double");
}

const struct qv_backend qv_backend_ref = {
    .name = "ref",
    .open = open_ref,
    .close = close_ref,
    .caps = caps_ref,
    .alloc = qv_host_alloc_memory,
    .free = qv_host_free_memory,
    .wrap = qv_host_wrap,
    .upload = qv_host_upload,
    .download = qv_host_download,
    .layout = layout_ref,
    .lay_out = lay_out_ref,
    .prepare = prepare_ref,
    .release = release_ref,
    .describe = describe_ref,
    .run = run_ref,
    .mark = qv_host_mark,
    .wait = qv_host_wait,
    .elapsed = qv_host_elapsed,
    .sync = qv_host_sync,
};
