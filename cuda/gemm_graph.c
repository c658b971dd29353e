/* SPDX-License-Identifier: MIT */
/*
 * A GEMM with an activation that cuBLASLt's epilogues lack, as a cuDNN graph: the GEMM, the bias, x
 * / (1 + exp(-beta x)), rounded once. With f32 sums in memory and our own kernel it takes 1.4 times
 * as long (6080 x 5120 x 1280 on an H200: 168 us against 118; with the bias alone 115).
 * The configurations that cuDNN 9.19 offers for it give the same bits, for any number of rows.
 */
#include "cudnn_graph.h"

enum { X = 1, W, BIAS, Y, BETWEEN }; /* tensors; values between two operations come last */

/* Returns beta; 0 for any other activation. */
static double
swish_beta(const struct qv_op_gemm *op)
{
    return op->act == QV_ACT_GELU_QUICK ? 1.702 : op->act == QV_ACT_SILU ? 1 : 0;
}

static const char *
obstacle(const struct qv_op_gemm *op)
{
    enum { RUN = 8 }; /* bf16 values in 16 bytes */
    if (!swish_beta(op))
        return "its activation has no sigmoid";
    if (op->x_dtype != QV_BF16 || op->y_dtype != QV_BF16)
        return "it is not in bf16";
    if (op->residual_rows || op->alpha != 1)
        return "it has a residual or a factor";
    if (op->n % RUN || op->k % RUN)
        return "its rows are not whole runs of 16 bytes";
    if (op->m > INT32_MAX / op->n || op->m > INT32_MAX / op->k)
        return "an operand has 2^31 values";
    return NULL;
}

bool
qv_gemm_is_graph_cuda(const struct qv_op_gemm *op)
{
    return !obstacle(op);
}

/* Describes a matrix, or its transpose, as a batch of one. */
static cudnnBackendDescriptor_t
matrix(struct sketch_cuda *sketch, int64_t id, int64_t rows, int64_t cols, bool transposed)
{
    struct tensor_cuda tensor = {
        .id = id,
        .dtype = id >= BETWEEN ? QV_F32 : QV_BF16,
        .n = 3,
        .dims = { 1, rows, cols },
        .strides = { rows * cols, transposed ? 1 : cols, transposed ? rows : 1 },
        .is_virtual = id >= BETWEEN,
    };
    return qv_describe_tensor_cuda(sketch, &tensor);
}

static void
add_gemm(struct sketch_cuda *sketch, const struct qv_op_gemm *op, cudnnBackendDescriptor_t y)
{
    const cudnnDataType_t precision = CUDNN_DATA_FLOAT;
    const struct attribute_cuda how = { CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1,
                                        &precision };
    const cudnnBackendDescriptor_t gemm =
        qv_describe_cuda(sketch, CUDNN_BACKEND_MATMUL_DESCRIPTOR, &how, 1);
    const cudnnBackendDescriptor_t x = matrix(sketch, X, op->m, op->k, false);
    const cudnnBackendDescriptor_t w = matrix(sketch, W, op->k, op->n, true);
    const struct attribute_cuda what[] = {
        { CUDNN_ATTR_OPERATION_MATMUL_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &gemm },
        { CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &x },
        { CUDNN_ATTR_OPERATION_MATMUL_BDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &w },
        { CUDNN_ATTR_OPERATION_MATMUL_CDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &y },
    };
    qv_operation_cuda(sketch, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, what, COUNT_OF(what));
}

static void
sketch_gemm(struct sketch_cuda *sketch, const struct qv_op_gemm *op)
{
    cudnnBackendDescriptor_t at = matrix(sketch, BETWEEN, op->m, op->n, false);
    add_gemm(sketch, op, at);
    if (op->bias) {
        const cudnnBackendDescriptor_t gemm = at, bias = matrix(sketch, BIAS, 1, op->n, false);
        at = matrix(sketch, BETWEEN + 1, op->m, op->n, false);
        qv_pointwise_cuda(sketch, CUDNN_POINTWISE_ADD, 0, gemm, bias, at);
    }
    qv_pointwise_cuda(sketch, CUDNN_POINTWISE_SWISH_FWD, swish_beta(op), at, NULL,
                      matrix(sketch, Y, op->m, op->n, false));
}

qv_status
qv_gemm_plan_cuda(const struct target_cuda *target, const struct qv_op_gemm *op,
                  struct graph_cuda *out, qv_error *err)
{
    struct sketch_cuda sketch = { 0 };
    const char *why = obstacle(op);
    *out = (struct graph_cuda){ 0 };
    if (why)
        return qv_fail(err, QV_EUNSUPPORTED, "gemm: cuDNN was not tried: %s", why);
    sketch_gemm(&sketch, op);
    qv_status status = qv_graph_open_cuda(&sketch, target, op->x_dtype, out, err);
    qv_sketch_close_cuda(&sketch);
    return status;
}

qv_status
qv_gemm_graph_run_cuda(struct qv_device_cuda *dev, const struct qv_op_gemm *op,
                       const struct graph_cuda *graph, void *const *p, void *workspace,
                       qv_error *err)
{
    const struct binding_cuda bindings[] = {
        { X, "gemm's x", p[0], TENSOR_ALIGNMENT },
        { W, "gemm's w", p[1], TENSOR_ALIGNMENT },
        { Y, "gemm's y", p[4], TENSOR_ALIGNMENT },
        { BIAS, "gemm's bias", p[2], TENSOR_ALIGNMENT },
    };
    enum { N = COUNT_OF(bindings) };
    return qv_graph_run_cuda(dev, graph, bindings, op->bias ? N : N - 1, workspace, err);
}
