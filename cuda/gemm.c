/* SPDX-License-Identifier: MIT */
/*
 * gemm on cuBLASLt. It counts columns first: what is y[m,n] = x[m,k] w[n,k]^T here is
 * Y[n,m] = W[k,n]^T X[k,m] there, with the same bytes. An addend of fewer rows than y is the C of a
 * batch whose stride is 0; C must not be Y, or sums are rounded before they are added. What no
 * epilogue holds (the erf GELU, an activation in front of an addend) follows as `finish` on f32
 * sums.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda.h"
#include "dtype.h"

enum {
    MOST_WORKSPACE = 64 << 20,
    ALIGNMENT = 16,  /* of any operand, see qv_wrap_cuda */
    ROW_MULTIPLE = 8 /* of bf16 values: rows that begin at 16 bytes */
};

static int64_t
padded_k(int64_t k, int64_t dtype)
{
    return dtype == QV_BF16 ? (k + ROW_MULTIPLE - 1) / ROW_MULTIPLE * ROW_MULTIPLE : k;
}

qv_status
qv_gemm_layout_cuda(struct qv_device_cuda *dev, const struct qv_matrix *matrix,
                    struct qv_layout *out, qv_error *err)
{
    (void)dev;
    (void)err;
    int64_t k = padded_k(matrix->k, matrix->dtype);
    *out = (struct qv_layout){ (size_t)(matrix->n * k) * qv_dtype_bytes(matrix->dtype), 1 };
    return QV_OK;
}

/* Rows as they are, or with zeros behind each. */
qv_status
qv_gemm_pack_cuda(struct qv_device_cuda *dev, const struct qv_matrix *matrix, int64_t row0,
                  int64_t rows, const void *src, struct qv_buffer dst, qv_error *err)
{
    size_t element = qv_dtype_bytes(matrix->dtype), from = (size_t)matrix->k * element;
    size_t to = (size_t)padded_k(matrix->k, matrix->dtype) * element;
    dst.offset += (size_t)row0 * to;
    if (from == to)
        return qv_upload_cuda(&dev->base, dst, src, (size_t)rows * to, err);
    char *padded = calloc((size_t)rows, to);
    if (!padded)
        return qv_fail(err, QV_ENOMEM, "no memory to pad %zu bytes of weights", (size_t)rows * to);
    for (int64_t i = 0; i < rows; i++)
        memcpy(padded + (size_t)i * to, (const char *)src + (size_t)i * from, from);
    qv_status status = qv_upload_cuda(&dev->base, dst, padded, (size_t)rows * to, err);
    free(padded);
    return status;
}

/* ---- describing ------------------------------------------------------------------------------ */

/* Batches of the addend's rows. */
static int64_t
batches(const struct qv_op_gemm *op, bool wide)
{
    return !wide && op->addend_rows ? op->m / op->addend_rows : 1;
}

static cublasStatus_t
set_epilogue(const struct qv_op_gemm *op, bool wide, cublasLtMatmulDesc_t desc)
{
    int bias_type = op->dtype == QV_BF16 ? CUDA_R_16BF : CUDA_R_32F;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    if (!wide && op->act == QV_ACT_GELU_TANH)
        epilogue = op->bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    else if (!wide && op->bias)
        epilogue = CUBLASLT_EPILOGUE_BIAS;
    cublasStatus_t s = cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE,
                                                      &epilogue, sizeof epilogue);
    if (!s && !wide && op->bias)
        s = cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type,
                                           sizeof bias_type);
    return s;
}

static cublasStatus_t
create_desc(const struct qv_device_cuda *dev, const struct qv_op_gemm *op, bool wide,
            cublasLtMatmulDesc_t *out)
{
    bool tf32 = op->dtype == QV_F32 && dev->tf32;
    cublasOperation_t transposed = CUBLAS_OP_T;
    cublasStatus_t s =
        cublasLtMatmulDescCreate(out, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                                 CUDA_R_32F);
    if (!s)
        s = cublasLtMatmulDescSetAttribute(*out, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                           sizeof transposed);
    return s ? s : set_epilogue(op, wide, *out);
}

/* A matrix of `cols` contiguous values, `rows` times; batches lie `stride` values apart. */
static cublasStatus_t
create_layout(cublasLtMatrixLayout_t *out, cudaDataType_t type, int64_t cols, int64_t rows,
              int64_t batch, int64_t stride)
{
    int32_t count = (int32_t)batch;
    cublasStatus_t s = cublasLtMatrixLayoutCreate(out, type, (uint64_t)cols, (uint64_t)rows, cols);
    if (!s && batch > 1)
        s = cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                             sizeof count);
    if (!s && batch > 1)
        s = cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                             &stride, sizeof stride);
    return s;
}

static cublasStatus_t
create_layouts(const struct qv_op_gemm *op, bool wide, struct gemm_cuda *g)
{
    cudaDataType_t type = op->dtype == QV_BF16 ? CUDA_R_16BF : CUDA_R_32F;
    cudaDataType_t y_type = wide ? CUDA_R_32F : type;
    int64_t batch = batches(op, wide), rows = op->m / batch, k = padded_k(op->k, op->dtype);
    cublasStatus_t s = create_layout(&g->w, type, k, op->n, batch, 0);
    if (!s)
        s = create_layout(&g->x, type, k, rows, batch, rows * k);
    if (!s)
        s = create_layout(&g->c, y_type, op->n, rows, batch, 0);
    if (!s)
        s = create_layout(&g->y, y_type, op->n, rows, batch, rows * op->n);
    return s;
}

/* ---- choosing -------------------------------------------------------------------------------- */

/* Split sums must be added up in f32, and in a fixed order: not by atomics in place. */
static cublasStatus_t
create_preference(cublasLtMatmulPreference_t *out)
{
    uint64_t workspace = MOST_WORKSPACE;
    uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, alignment = ALIGNMENT;
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES
    };
    cublasStatus_t s = cublasLtMatmulPreferenceCreate(out);
    if (!s)
        s = cublasLtMatmulPreferenceSetAttribute(*out, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                 &workspace, sizeof workspace);
    if (!s)
        s = cublasLtMatmulPreferenceSetAttribute(*out, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                 &reduction, sizeof reduction);
    for (size_t i = 0; i < sizeof alignments / sizeof *alignments && !s; i++)
        s = cublasLtMatmulPreferenceSetAttribute(*out, alignments[i], &alignment, sizeof alignment);
    return s;
}

/* The heuristic's algorithm number `choice`, best guess first: a function of the operation, the
 * device and the library alone. */
static qv_status
choose(struct qv_device_cuda *dev, struct gemm_cuda *g, int choice, qv_error *err)
{
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t found[QV_MOST_CHOICES];
    int n = 0;
    cublasStatus_t s = create_preference(&preference);
    if (!s)
        s = cublasLtMatmulAlgoGetHeuristic(dev->lt, g->desc, g->w, g->x, g->c, g->y, preference,
                                           QV_MOST_CHOICES, found, &n);
    if (preference)
        cublasLtMatmulPreferenceDestroy(preference);
    if (s)
        return qv_check_cublas(dev, s, "cublasLtMatmulAlgoGetHeuristic", err);
    if (choice >= n || found[choice].state)
        return qv_fail(err, QV_EUNSUPPORTED, "gemm: cuBLASLt has %d algorithms", n);
    g->algo = found[choice].algo;
    g->workspace_bytes = found[choice].workspaceSize;
    return QV_OK;
}

void
qv_gemm_release_cuda(struct qv_kernel *kernel)
{
    struct gemm_cuda *g = &kernel->u.gemm;
    const cublasLtMatrixLayout_t layouts[] = { g->w, g->x, g->c, g->y };
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
        if (layouts[i])
            cublasLtMatrixLayoutDestroy(layouts[i]);
    if (g->desc)
        cublasLtMatmulDescDestroy(g->desc);
    memset(g, 0, sizeof *g);
}

static qv_status
prepare(struct qv_device_cuda *dev, struct qv_kernel *kernel, bool wide, int choice, qv_error *err)
{
    const struct qv_op_gemm *op = &kernel->op.u.gemm;
    struct gemm_cuda *g = &kernel->u.gemm;
    cublasStatus_t s = create_desc(dev, op, wide, &g->desc);
    if (!s)
        s = create_layouts(op, wide, g);
    qv_status status =
        s ? qv_check_cublas(dev, s, "describing a gemm", err) : choose(dev, g, choice, err);
    if (status) {
        qv_gemm_release_cuda(kernel);
        return status;
    }
    if (wide)
        g->sums_bytes = qv_aligned((size_t)(op->m * op->n) * sizeof(float));
    if (padded_k(op->k, op->dtype) != op->k)
        g->padded_bytes =
            qv_aligned((size_t)(op->m * padded_k(op->k, op->dtype)) * qv_dtype_bytes(op->dtype));
    return QV_OK;
}

/* cuBLASLt's kernels for rows of y that begin at odd places round sums to bf16 before they add bias
 * and addend; and its GELU in f32 is good for 5e-6 only. */
static bool
rounds_twice(const struct qv_op_gemm *op)
{
    bool epilogue = op->act || op->bias || op->addend_rows;
    return op->dtype == QV_BF16 ? epilogue && op->n % ROW_MULTIPLE : op->act;
}

qv_status
qv_gemm_prepare_cuda(struct qv_device_cuda *dev, struct qv_kernel *kernel, int choice,
                     size_t *scratch_bytes, qv_error *err)
{
    const struct qv_op_gemm *op = &kernel->op.u.gemm;
    struct gemm_cuda *g = &kernel->u.gemm;
    bool wide = op->act == QV_ACT_GELU_ERF || (op->act && op->addend_rows) || rounds_twice(op);
    if (op->m > INT32_MAX || op->n > INT32_MAX || op->k > INT32_MAX)
        return qv_fail(err, QV_EUNSUPPORTED, "gemm: %lld x %lld x %lld; cuBLASLt counts up to %d",
                       (long long)op->m, (long long)op->n, (long long)op->k, INT32_MAX);
    qv_status status = prepare(dev, kernel, wide, choice, err);
    if (status == QV_EUNSUPPORTED && !wide && !choice)
        status = prepare(dev, kernel, true, choice, err);
    *scratch_bytes = g->padded_bytes + g->sums_bytes + g->workspace_bytes;
    return status;
}

/* ---- running --------------------------------------------------------------------------------- */

qv_status
qv_gemm_run_cuda(struct qv_device_cuda *dev, const struct qv_kernel *kernel, void *const *p,
                 void *scratch, qv_error *err)
{
    const struct qv_op_gemm *op = &kernel->op.u.gemm;
    const struct gemm_cuda *g = &kernel->u.gemm;
    bool wide = g->sums_bytes > 0, addend = !wide && op->addend_rows;
    char *padded = scratch, *sums = padded + g->padded_bytes, *workspace = sums + g->sums_bytes;
    void *y = wide ? sums : p[4];
    const float alpha = wide ? 1 : (float)op->alpha, beta = addend ? 1 : 0;
    qv_status status = QV_OK;
    if (g->padded_bytes)
        status =
            qv_check_cuda(dev,
                          qv_pad_rows_cuda(dev->stream, op->m, op->k, padded_k(op->k, op->dtype),
                                           op->dtype, p[0], padded),
                          "gemm's padding", err);
    if (!status && !wide && op->bias)
        status = qv_check_cublas(dev,
                                 cublasLtMatmulDescSetAttribute(g->desc,
                                                                CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                                &p[2], sizeof p[2]),
                                 "gemm's bias", err);
    if (!status)
        status = qv_check_cublas(dev,
                                 cublasLtMatmul(dev->lt, g->desc, &alpha, p[1], g->w,
                                                g->padded_bytes ? padded : p[0], g->x, &beta,
                                                addend ? p[3] : y, g->c, y, g->y, &g->algo,
                                                workspace, g->workspace_bytes, dev->stream),
                                 "cublasLtMatmul", err);
    if (status || !wide)
        return status;
    const struct qv_op_finish finish = { op->m,   op->n,           op->alpha, op->bias,
                                         op->act, op->addend_rows, op->dtype };
    return qv_check_cuda(dev, qv_finish_cuda(dev->stream, &finish, sums, p[2], p[3], p[4]),
                         "gemm's epilogue", err);
}
