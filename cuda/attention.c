/* SPDX-License-Identifier: MIT */
/*
 * attention on cuDNN's fused kernels, over strided views of packed qkv; in f32, and for heads that
 * it does not take, on our own kernel.
 */
#include "cudnn_graph.h"

enum { Q = 1, K, V, Y, SCALE };

/* One view of a row [parts, heads, head_dim]: q, k or v of qkv, or y. */
static struct tensor_cuda
heads_of(const struct qv_op_attention *op, int64_t id, int64_t parts)
{
    int64_t row = parts * op->heads * op->head_dim;
    return (struct tensor_cuda){ .id = id,
                                 .dtype = op->dtype,
                                 .n = 4,
                                 .dims = { op->batch, op->heads, op->seq, op->head_dim },
                                 .strides = { op->seq * row, op->head_dim, row, 1 } };
}

static void
sketch_attention(struct sketch_cuda *sketch, const struct qv_op_attention *op)
{
    const struct tensor_cuda tensors[] = {
        heads_of(op, Q, 3),
        heads_of(op, K, 3),
        heads_of(op, V, 3),
        heads_of(op, Y, 1),
        { SCALE, QV_F32, 4, { 1, 1, 1, 1 }, { 1, 1, 1, 1 }, .by_value = true },
    };
    static const cudnnBackendAttributeName_t names[] = {
        CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC,     CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC,
        CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC,     CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC,
        CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC,
    };
    enum { N = sizeof names / sizeof *names };
    cudnnBackendDescriptor_t descriptors[N];
    struct attribute_cuda attributes[N];
    for (int i = 0; i < N; i++) {
        descriptors[i] = qv_describe_tensor_cuda(sketch, &tensors[i]);
        attributes[i] =
            (struct attribute_cuda){ names[i], CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &descriptors[i] };
    }
    qv_operation_cuda(sketch, CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR, attributes, N);
}

/* Heads must be whole runs of 16 bytes, as their addresses are multiples of them. */
static const char *
obstacle(const struct qv_op_attention *op)
{
    if (op->dtype != QV_BF16)
        return "it is not in bf16";
    if (op->head_dim % 8 || op->head_dim > 256)
        return "head_dim is not a multiple of 8 up to 256";
    if (op->batch * op->seq > INT32_MAX / (3 * op->heads * op->head_dim))
        return "qkv has more than 2^31 values";
    return NULL;
}

qv_status
qv_attention_plan_cuda(const struct target_cuda *target, const struct qv_op_attention *op,
                       int choice, struct graph_cuda *out, int *usable, qv_error *err)
{
    struct sketch_cuda sketch = { 0 };
    const char *why = obstacle(op);
    *usable = 0;
    *out = (struct graph_cuda){ 0 };
    if (why)
        return qv_fail(err, QV_EUNSUPPORTED, "attention: cuDNN does not take it: %s", why);
    sketch_attention(&sketch, op);
    qv_status status = qv_graph_open_cuda(&sketch, target, op->dtype, choice, out, usable, err);
    qv_sketch_close_cuda(&sketch);
    return status;
}

qv_status
qv_attention_prepare_cuda(struct qv_device_cuda *dev, struct qv_kernel *kernel, int choice,
                          size_t *scratch_bytes, qv_error *err)
{
    const struct target_cuda target = qv_target_of_cuda(dev);
    struct graph_cuda *graph = &kernel->u.attention.graph;
    qv_error failure = { 0 };
    int usable;
    qv_status status =
        qv_attention_plan_cuda(&target, &kernel->op.u.attention, choice, graph, &usable, &failure);
    if (status && (status != QV_EUNSUPPORTED || choice > 0))
        return qv_fail(err, status, "%s", failure.text);
    *scratch_bytes = qv_aligned(graph->workspace_bytes);
    return QV_OK; /* without a plan, on our own kernel */
}

qv_status
qv_attention_run_cuda(struct qv_device_cuda *dev, const struct qv_kernel *kernel, void *const *p,
                      void *scratch, qv_error *err)
{
    const struct qv_op_attention *op = &kernel->op.u.attention;
    const struct graph_cuda *graph = &kernel->u.attention.graph;
    if (!graph->plan)
        return qv_check_cuda(dev, qv_attention_plain_cuda(dev->stream, op, p[0], p[1]),
                             "qv_attention_plain_cuda", err);
    const float scale = (float)op->scale;
    const char *qkv = p[0];
    size_t part = (size_t)(op->heads * op->head_dim) * 2;
    const struct binding_cuda bindings[] = {
        { Q, "attention's qkv", qkv, TENSOR_ALIGNMENT },
        { K, "attention's k", qkv + part, TENSOR_ALIGNMENT },
        { V, "attention's v", qkv + 2 * part, TENSOR_ALIGNMENT },
        { Y, "attention's y", p[1], TENSOR_ALIGNMENT },
        { SCALE, "attention's scale", &scale, 0 },
    };
    return qv_graph_run_cuda(dev, graph, bindings, sizeof bindings / sizeof *bindings, scratch,
                             err);
}

void
qv_attention_release_cuda(struct qv_kernel *kernel)
{
    qv_graph_close_cuda(&kernel->u.attention.graph);
}
