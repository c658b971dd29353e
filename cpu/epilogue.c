/* SPDX-License-Identifier: MIT */
/* act(alpha * sum + bias) + residual after a GEMM or convolution: by oneDNN where its kernels
 * support it, otherwise by our own code. */
#include "cpu.h"

/* oneDNN's swish is x / (1 + exp(-alpha x)). */
static dnnl_status_t
append_act(int64_t act, dnnl_post_ops_t ops)
{
    static const struct {
        dnnl_alg_kind_t kind;
        float alpha;
    } acts[QV_ACT_COUNT] = {
        [QV_ACT_GELU_TANH] = { dnnl_eltwise_gelu_tanh, 0 },
        [QV_ACT_GELU_ERF] = { dnnl_eltwise_gelu_erf, 0 },
        [QV_ACT_SILU] = { dnnl_eltwise_swish, 1 },
        [QV_ACT_GELU_QUICK] = { dnnl_eltwise_swish, 1.702f },
    };
    return dnnl_post_ops_append_eltwise(ops, acts[act].kind, acts[act].alpha, 0);
}

/* alpha is a source scale, which oneDNN applies before it adds the bias. The residual is copied
 * into y and added last, as a sum with y. */
dnnl_status_t
qv_epilogue_cpu(const struct qv_op_epilogue *op, dnnl_primitive_attr_t attr)
{
    dnnl_post_ops_t ops;
    dnnl_status_t s = dnnl_post_ops_create(&ops);
    if (s)
        return s;
    if (op->alpha != 1)
        s = dnnl_primitive_attr_set_scales_mask(attr, DNNL_ARG_SRC, 0);
    if (!s && op->act != QV_ACT_NONE)
        s = append_act(op->act, ops);
    if (!s && op->residual_rows)
        s = dnnl_post_ops_append_sum(ops, 1, 0, dnnl_data_type_undef);
    if (!s)
        s = dnnl_primitive_attr_set_post_ops(attr, ops);
    dnnl_post_ops_destroy(ops);
    return s;
}

void
qv_epilogue_residual_cpu(const struct qv_device_cpu *dev, const struct qv_op_epilogue *op,
                         const void *residual, void *y)
{
    if (!op->residual_rows || residual == y)
        return;
    size_t bytes = (size_t)(op->residual_rows * op->cols) * qv_dtype_bytes(op->residual_dtype);
#pragma omp parallel for num_threads(dev->threads) schedule(static)
    for (int64_t i = 0; i < op->rows / op->residual_rows; i++)
        memcpy((char *)y + (size_t)i * bytes, residual, bytes);
}

/* ---- by ourselves ---------------------------------------------------------------------------- */

enum { PIECE = 256 }; /* columns per buffer on the stack */

/* Returns n values from i on in f32: in place, or converted in `buffer`. */
static const float *
floats(const void *p, int64_t dtype, int64_t i, int64_t n, float *buffer)
{
    if (dtype == QV_F32)
        return (const float *)p + i;
    qv_lanes_load_cpu(buffer, at_cpu(p, dtype, i), dtype, n);
    return buffer;
}

void
qv_epilogue_part_cpu(const struct qv_op_epilogue *op, const float *x, int64_t row, int64_t col,
                     int64_t n, void *const p[3])
{
    float v[PIECE], buffer[PIECE];
    for (int64_t end = col + n; col < end; col += PIECE, x += PIECE) {
        const int64_t some = end - col < PIECE ? end - col : PIECE;
        qv_lanes_epilogue_cpu(v, x,
                              op->bias ? floats(p[0], op->bias_dtype, col, some, buffer) : NULL,
                              (float)op->alpha, op->act, some);
        if (op->residual_rows)
            qv_lanes_add_scaled_cpu(v,
                                    floats(p[1], op->residual_dtype,
                                           row % op->residual_rows * op->cols + col, some, buffer),
                                    1, some);
        qv_lanes_store_cpu(at_cpu(p[2], op->y_dtype, row * op->cols + col), v, op->y_dtype, some);
    }
}

void
qv_epilogue_rows_cpu(int threads, const struct qv_op_epilogue *op, const float *x, void *const p[3])
{
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < op->rows; row++)
        qv_epilogue_part_cpu(op, x + row * op->cols, row, 0, op->cols, p);
}
