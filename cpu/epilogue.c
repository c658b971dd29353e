/* SPDX-License-Identifier: MIT */
/* act(alpha * sum + bias) + residual after a GEMM or convolution, as oneDNN's post-operations. */
#include "cpu.h"

/* oneDNN adds its bias argument before any post-operation, so with an alpha the bias must be a
 * post-operation itself. */
int
qv_epilogue_bias_arg_cpu(const struct qv_op_epilogue *op)
{
    return !op->bias        ? 0
           : op->alpha == 1 ? DNNL_ARG_BIAS
                            : DNNL_ARG_ATTR_MULTIPLE_POST_OP(1) | DNNL_ARG_SRC_1;
}

static dnnl_status_t
append_bias(const struct qv_op_epilogue *op, int n_dims, dnnl_post_ops_t ops)
{
    dnnl_memory_desc_t md;
    dnnl_dims_t dims = { 1, op->cols, 1, 1, 1 }, strides = { op->cols, 1, 1, 1, 1 };
    dnnl_status_t s = dnnl_memory_desc_create_with_strides(&md, n_dims, dims,
                                                           dnnl_type_cpu(op->bias_dtype), strides);
    if (s)
        return s;
    s = dnnl_post_ops_append_binary(ops, dnnl_binary_add, md);
    dnnl_memory_desc_destroy(md);
    return s;
}

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

/* The residual is added last, by a sum with y, into which it was copied. */
dnnl_status_t
qv_epilogue_cpu(const struct qv_op_epilogue *op, int n_dims, dnnl_primitive_attr_t attr)
{
    dnnl_post_ops_t ops;
    dnnl_status_t s = dnnl_post_ops_create(&ops);
    if (s)
        return s;
    if (op->alpha != 1) {
        s = dnnl_post_ops_append_eltwise(ops, dnnl_eltwise_linear, (float)op->alpha, 0);
        if (!s && op->bias)
            s = append_bias(op, n_dims, ops);
    }
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
