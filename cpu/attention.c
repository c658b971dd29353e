/* SPDX-License-Identifier: MIT */
/*
 * attention: the work is cut into (batch, head, block of queries); a thread takes a piece, computes
 * its scores [block, seq] with one matmul over strided views of packed qkv, their exponentials in
 * place, and the weighted values with another. A piece's scores stay in the second-level cache; no
 * score matrix of the whole clip exists.
 */
#include "cpu.h"

#include <omp.h>
#include <stdlib.h>

/* Scores of one block: 256 rows of 760 f32 are 0.8 MB. Longer blocks amortise the packing of k and
 * v that each matmul does inside; shorter ones stay in cache. */
enum { BLOCK_ROWS = 256 };

static qv_status
open_block(struct qv_device_cpu *dev, const struct qv_op_attention *op, int64_t rows,
           struct primitive_cpu *scores, struct primitive_cpu *values, qv_error *err)
{
    int64_t stride = 3 * op->heads * op->head_dim;
    struct matmul_desc_cpu qk = { .m = rows,
                                  .n = op->seq,
                                  .k = op->head_dim,
                                  .src_stride = stride,
                                  .weights_strides = { 1, stride },
                                  .dst_stride = op->seq,
                                  .type = dnnl_type_cpu(op->dtype),
                                  .dst_type = dnnl_f32 };
    /* bf16 probabilities lie in the first half of their row of f32 scores */
    struct matmul_desc_cpu pv = { .m = rows,
                                  .n = op->head_dim,
                                  .k = op->seq,
                                  .src_stride = op->dtype == QV_BF16 ? 2 * op->seq : op->seq,
                                  .weights_strides = { stride, 1 },
                                  .dst_stride = op->head_dim,
                                  .type = dnnl_type_cpu(op->dtype),
                                  .dst_type = dnnl_f32 };
    qv_status status = qv_matmul_open_cpu(dev, &qk, scores, err);
    return status ? status : qv_matmul_open_cpu(dev, &pv, values, err);
}

/* Every thread has matmuls of its own, made for one thread: their memory objects hold addresses. */
static qv_status
open_blocks(struct qv_device_cpu *dev, struct qv_kernel *kernel, qv_error *err)
{
    struct attention_cpu *a = &kernel->attention;
    qv_status status = QV_OK;
    for (int which = 0; which < (a->tail ? 2 : 1) && !status; which++) {
        a->scores[which] = calloc((size_t)a->threads, sizeof *a->scores[which]);
        a->values[which] = calloc((size_t)a->threads, sizeof *a->values[which]);
        if (!a->scores[which] || !a->values[which])
            return qv_fail(err, QV_ENOMEM, "no memory for an attention kernel");
        for (int t = 0; t < a->threads && !status; t++)
            status = open_block(dev, &kernel->op.u.attention, which ? a->tail : a->block,
                                &a->scores[which][t], &a->values[which][t], err);
    }
    return status;
}

static size_t
scores_bytes(const struct qv_kernel *kernel)
{
    return qv_aligned((size_t)(kernel->attention.block * kernel->op.u.attention.seq) *
                      sizeof(float));
}

static size_t
output_bytes(const struct qv_kernel *kernel)
{
    int64_t row = kernel->op.u.attention.head_dim + 1; /* and the row's sum */
    return qv_aligned((size_t)(kernel->attention.block * row) * sizeof(float));
}

qv_status
qv_attention_prepare_cpu(struct qv_device_cpu *dev, struct qv_kernel *kernel, size_t *scratch_bytes,
                         qv_error *err)
{
    const struct qv_op_attention *op = &kernel->op.u.attention;
    struct attention_cpu *a = &kernel->attention;
    int64_t blocks = (op->seq + BLOCK_ROWS - 1) / BLOCK_ROWS;
    a->block = (op->seq + blocks - 1) / blocks;
    a->tail = op->seq % a->block;
    a->threads = dev->threads;
    a->softmax = qv_lanes_have_avx512_cpu() ? qv_lanes_softmax_avx512_cpu : qv_lanes_softmax_cpu;
    int before = omp_get_max_threads();
    omp_set_num_threads(1);
    qv_status status = open_blocks(dev, kernel, err);
    omp_set_num_threads(before);
    if (status)
        return status;
    size_t matmul = 0;
    for (int which = 0; which < (a->tail ? 2 : 1); which++) {
        size_t s = a->scores[which][0].scratch_bytes, v = a->values[which][0].scratch_bytes;
        matmul = s > matmul ? s : matmul;
        matmul = v > matmul ? v : matmul;
    }
    a->thread_bytes = scores_bytes(kernel) + output_bytes(kernel) + qv_aligned(matmul);
    *scratch_bytes = a->thread_bytes * (size_t)a->threads;
    return QV_OK;
}

/* Query rows [first, first + rows) of one (batch, head). */
static qv_status
attend_block(struct qv_device_cpu *dev, const struct qv_kernel *kernel, void *const *p,
             int64_t batch, int64_t head, int64_t first, char *scratch, qv_error *err)
{
    const struct qv_op_attention *op = &kernel->op.u.attention;
    const struct attention_cpu *a = &kernel->attention;
    int64_t rows = op->seq - first < a->block ? op->seq - first : a->block;
    int which = rows < a->block, thread = omp_get_thread_num();
    size_t element = qv_dtype_bytes(op->dtype);
    int64_t hd = op->head_dim, row = batch * op->seq * 3 * op->heads * hd;
    char *qkv = p[0];
    char *q = qkv + (size_t)(row + first * 3 * op->heads * hd + head * hd) * element;
    char *k = qkv + (size_t)(row + (op->heads + head) * hd) * element;
    char *v = qkv + (size_t)(row + (2 * op->heads + head) * hd) * element;
    float *scores = (float *)scratch, *out = (float *)(scratch + scores_bytes(kernel));
    float *sums = out + a->block * hd;
    char *matmul_scratch = scratch + scores_bytes(kernel) + output_bytes(kernel);

    qv_status status = qv_matmul_run_cpu(dev, &a->scores[which][thread],
                                         (void *[]){ q, k, NULL, scores, matmul_scratch }, err);
    if (status)
        return status;
    for (int64_t i = 0; i < rows; i++)
        sums[i] = a->softmax(scores + i * op->seq, scores + i * op->seq, op->dtype, op->seq,
                             (float)op->scale);
    status = qv_matmul_run_cpu(dev, &a->values[which][thread],
                               (void *[]){ scores, v, NULL, out, matmul_scratch }, err);
    for (int64_t i = 0; i < rows && !status; i++) {
        int64_t y = ((batch * op->seq + first + i) * op->heads + head) * hd;
        qv_lanes_scale_cpu(out + i * hd, 1 / sums[i], hd);
        qv_lanes_store_cpu((char *)p[1] + (size_t)y * element, out + i * hd, op->dtype, hd);
    }
    return status;
}

qv_status
qv_attention_run_cpu(struct qv_device_cpu *dev, const struct qv_kernel *kernel, void *const *p,
                     void *scratch, qv_error *err)
{
    const struct qv_op_attention *op = &kernel->op.u.attention;
    const struct attention_cpu *a = &kernel->attention;
    int64_t blocks = (op->seq + a->block - 1) / a->block;
    qv_status status = QV_OK;
#pragma omp parallel for num_threads(a->threads) schedule(static)
    for (int64_t i = 0; i < op->batch * op->heads * blocks; i++) {
        qv_error failure = { 0 };
        char *mine = (char *)scratch + (size_t)omp_get_thread_num() * a->thread_bytes;
        attend_block(dev, kernel, p, i / blocks / op->heads, i / blocks % op->heads,
                     i % blocks * a->block, mine, &failure);
        if (failure.status)
#pragma omp critical(qv_attention)
            status = qv_fail(err, failure.status, "%s", failure.text);
    }
    return status;
}

void
qv_attention_release_cpu(struct qv_kernel *kernel)
{
    struct attention_cpu *a = &kernel->attention;
    for (int which = 0; which < 2; which++) {
        for (int t = 0; t < a->threads; t++) {
            if (a->scores[which])
                qv_primitive_close_cpu(&a->scores[which][t]);
            if (a->values[which])
                qv_primitive_close_cpu(&a->values[which][t]);
        }
        free(a->scores[which]);
        free(a->values[which]);
    }
}
