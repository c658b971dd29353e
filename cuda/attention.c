/* SPDX-License-Identifier: MIT */
/*
 * attention over strided views of q, k and v: on our own kernels for short segments and for Hopper,
 * otherwise on cuDNN's fused kernels; f32, and heads that cuDNN does not support, run on a naive
 * kernel. A list on the device gives the beginning and the number of rows of each segment, so that
 * one plan and one recorded graph serve every pack. To cuDNN it is a ragged batch.
 */
#include "cudnn_graph.h"

enum { Q = 1, K, V, Y, SCALE, N_ROWS, Q_FIRST, Y_FIRST };

/* Returns the longest segment length passed to cuDNN. For a ragged batch it is all rows of the
 * chunk, and at least LONG. This costs nothing, whereas for shorter lengths cuDNN uses different
 * engines (9.19: up to 1024 rows on sm_120, 128 on sm_100), so a segment's bits would differ in
 * small plans. */
static int64_t
longest(const struct qv_op_attention *op)
{
    enum { LONG = 2048 };
    if (op->segment_rows)
        return op->segment_rows;
    return op->rows > LONG ? op->rows : LONG;
}

/* first: where each segment begins; NULL for contiguous segments of equal length */
static struct tensor_cuda
heads_of(const struct qv_op_attention *op, int64_t id, int64_t dtype, int64_t stride,
         cudnnBackendDescriptor_t first)
{
    int64_t row = qv_row_stride(stride, op->heads * op->head_dim), rows = longest(op);
    return (struct tensor_cuda){ .id = id,
                                 .dtype = dtype,
                                 .n = 4,
                                 .dims = { op->segments, op->heads, rows, op->head_dim },
                                 .strides = { rows * row, op->head_dim, row, 1 },
                                 .offsets = first };
}

/* Describes one of the operation's lists; returns NULL if it has none. */
static cudnnBackendDescriptor_t
describe_list(struct sketch_cuda *sketch, const struct qv_op_attention *op, int64_t id, int64_t n)
{
    const struct tensor_cuda list = { .id = id,
                                      .dtype = QV_I32,
                                      .n = 4,
                                      .dims = { n, 1, 1, 1 },
                                      .strides = { 1, 1, 1, 1 },
                                      .alignment = sizeof(int32_t) };
    return op->segment_rows ? NULL : qv_describe_tensor_cuda(sketch, &list);
}

static void
sketch_attention(struct sketch_cuda *sketch, const struct qv_op_attention *op)
{
    const cudnnBackendDescriptor_t n_rows = describe_list(sketch, op, N_ROWS, op->segments),
                                   q_first = describe_list(sketch, op, Q_FIRST, op->segments + 1),
                                   y_first = describe_list(sketch, op, Y_FIRST, op->segments + 1);
    const struct tensor_cuda tensors[] = {
        heads_of(op, Q, op->q_dtype, op->q_stride, q_first),
        heads_of(op, K, op->k_dtype, op->k_stride, q_first),
        heads_of(op, V, op->v_dtype, op->v_stride, q_first),
        heads_of(op, Y, op->y_dtype, 0, y_first),
        { SCALE, QV_F32, 4, { 1, 1, 1, 1 }, { 1, 1, 1, 1 }, .by_value = true },
    };
    static const cudnnBackendAttributeName_t names[] = {
        CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC,          CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC,
        CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC,          CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC,
        CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC,      CUDNN_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_QDESC,
        CUDNN_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_KVDESC,
    };
    enum { N_TENSORS = COUNT_OF(tensors), N = COUNT_OF(names) };
    cudnnBackendDescriptor_t descriptors[N];
    struct attribute_cuda attributes[N];
    for (int i = 0; i < N; i++) {
        descriptors[i] = i < N_TENSORS ? qv_describe_tensor_cuda(sketch, &tensors[i]) : n_rows;
        attributes[i] =
            (struct attribute_cuda){ names[i], CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &descriptors[i] };
    }
    qv_operation_cuda(sketch, CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR, attributes,
                      n_rows ? N : N_TENSORS);
}

/* Returns why cuDNN does not support the operation, or NULL. Heads and rows must be whole runs of
 * 16 bytes, so that their addresses are multiples of 16. */
static const char *
obstacle(const struct qv_op_attention *op)
{
    const int64_t strides[] = { op->q_stride, op->k_stride, op->v_stride };
    if (op->q_dtype != QV_BF16)
        return "it is not in bf16";
    if (op->head_dim % 8 || op->head_dim > 256)
        return "head_dim is not a multiple of 8 up to 256";
    for (int i = 0; i < 3; i++) {
        if (strides[i] % 8)
            return "a row stride is not a multiple of 8";
        if (op->rows > INT32_MAX / qv_row_stride(strides[i], op->heads * op->head_dim))
            return "q, k or v spans 2^31 values or more";
    }
    return NULL;
}

qv_status
qv_attention_plan_cuda(const struct target_cuda *target, const struct qv_op_attention *op,
                       struct graph_cuda *out, qv_error *err)
{
    struct sketch_cuda sketch = { 0 };
    const char *why = obstacle(op);
    *out = (struct graph_cuda){ 0 };
    if (why)
        return qv_fail(err, QV_EUNSUPPORTED, "attention: cuDNN does not support it: %s", why);
    sketch_attention(&sketch, op);
    qv_status status = qv_graph_open_cuda(&sketch, target, op->q_dtype, out, err);
    qv_sketch_close_cuda(&sketch);
    return status;
}

enum attention_way
qv_attention_way_cuda(const struct qv_device_cuda *dev, const struct qv_op_attention *op)
{
    if (qv_attention_is_short_cuda(op))
        return ATTENTION_SHORT;
    return dev->sm == 90 && qv_attention_is_hopper_cuda(op) ? ATTENTION_HOPPER : ATTENTION_CUDNN;
}

static qv_status
prepare_attention(struct qv_device_cuda *dev, struct qv_kernel *kernel, size_t *scratch_bytes,
                  qv_error *err)
{
    const struct target_cuda target = { .dev = dev, .tf32 = dev->tf32 };
    struct graph_cuda *graph = &kernel->u.attention.graph;
    qv_error failure = { 0 };
    *scratch_bytes = 0;
    kernel->u.attention.way = qv_attention_way_cuda(dev, &kernel->op.u.attention);
    if (kernel->u.attention.way != ATTENTION_CUDNN)
        return QV_OK;
    qv_status status = qv_attention_plan_cuda(&target, &kernel->op.u.attention, graph, &failure);
    if (status && status != QV_EUNSUPPORTED)
        return qv_fail(err, status, "%s", failure.text);
    snprintf(kernel->naive, sizeof kernel->naive, "%.199s", failure.text);
    *scratch_bytes = qv_aligned(graph->workspace_bytes);
    return QV_OK; /* without a plan our own kernel runs */
}

static qv_status
run_attention(struct qv_device_cuda *dev, const struct qv_kernel *kernel, void *const *p,
              void *scratch, qv_error *err)
{
    const struct qv_op_attention *op = &kernel->op.u.attention;
    const struct graph_cuda *graph = &kernel->u.attention.graph;
    if (kernel->u.attention.way == ATTENTION_SHORT)
        return qv_check_cuda(dev,
                             qv_attention_short_cuda(dev->stream, op, p[0], p[1], p[2], p[3], p[4],
                                                     dev->code >= 90),
                             "qv_attention_short_cuda", err);
    if (kernel->u.attention.way == ATTENTION_HOPPER)
        return qv_check_cuda(dev,
                             qv_attention_hopper_cuda(dev->stream, op, p[0], p[1], p[2], p[3], p[4],
                                                      dev->multiprocessors),
                             "qv_attention_hopper_cuda", err);
    if (!graph->plan)
        return qv_check_cuda(dev,
                             qv_attention_naive_cuda(dev->stream, op, p[0], p[1], p[2], p[3], p[4]),
                             "qv_attention_naive_cuda", err);
    const float scale = (float)op->scale;
    const int32_t(*lists)[op->segments + 1] = p[0];
    const struct binding_cuda bindings[] = {
        { Q, "attention's q", p[1], TENSOR_ALIGNMENT },
        { K, "attention's k", p[2], TENSOR_ALIGNMENT },
        { V, "attention's v", p[3], TENSOR_ALIGNMENT },
        { Y, "attention's y", p[4], TENSOR_ALIGNMENT },
        { SCALE, "attention's scale", &scale, 0 },
        { N_ROWS, "attention's list", lists ? lists[1] : NULL, sizeof(int32_t) },
        { Q_FIRST, "attention's list", lists ? lists[2] : NULL, sizeof(int32_t) },
        { Y_FIRST, "attention's list", lists ? lists[3] : NULL, sizeof(int32_t) },
    };
    enum { OF_LISTS = 3, N = COUNT_OF(bindings) };
    return qv_graph_run_cuda(dev, graph, bindings, lists ? N : N - OF_LISTS, scratch, err);
}

static void
release_attention(struct qv_kernel *kernel)
{
    qv_graph_close_cuda(&kernel->u.attention.graph);
}

static void
describe_attention(const struct qv_kernel *kernel, char *text, size_t size)
{
    if (kernel->u.attention.way == ATTENTION_SHORT)
        snprintf(text, size, "our own kernel for short segments");
    else if (kernel->u.attention.way == ATTENTION_HOPPER)
        snprintf(text, size, "our own kernel for Hopper");
    else
        qv_graph_describe_cuda(&kernel->u.attention.graph, kernel->naive, text, size);
}

const struct verbs_cuda qv_attention_verbs_cuda = {
    .library = CUDNN,
    .prepare = prepare_attention,
    .run = run_attention,
    .release = release_attention,
    .describe = describe_attention,
};
