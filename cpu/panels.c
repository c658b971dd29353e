/* SPDX-License-Identifier: MIT */
/*
 * Lays out activations the way oneDNN needs the weights [k,n] of a GEMM, so that its matmul does
 * not do so in every call. Keys are transposed, values keep their order, and both are padded with
 * zeros.
 */
#include "cpu.h"

/* Recognises the layouts of 2-dimensional weights that are panels: blocks of k by n, in which
 * bf16 lie in pairs along k; or plain rows, which count as one panel. */
dnnl_status_t
qv_panels_read_cpu(const_dnnl_memory_desc_t md, struct panels_cpu *p, bool *known)
{
    int n_blocks = 0;
    const dnnl_dims_t *blocks = NULL, *axes = NULL, *strides = NULL;
    dnnl_status_t s = dnnl_memory_desc_query(md, dnnl_query_inner_nblks_s32, &n_blocks);
    if (!s)
        s = dnnl_memory_desc_query(md, dnnl_query_inner_blks, &blocks);
    if (!s)
        s = dnnl_memory_desc_query(md, dnnl_query_inner_idxs, &axes);
    if (!s)
        s = dnnl_memory_desc_query(md, dnnl_query_strides, &strides);
    *known = false;
    if (s)
        return s;
    p->group = n_blocks == 3 ? (*blocks)[2] : 1;
    if (n_blocks == 0) {
        p->width = p->n;
        p->stride = p->k * p->n;
        *known = (*strides)[0] == p->n && (*strides)[1] == 1;
    } else if (n_blocks == 2 || n_blocks == 3) {
        p->width = (*blocks)[1];
        p->stride = (*strides)[1];
        *known = (*axes)[0] == 0 && (*axes)[1] == 1 && (n_blocks == 2 || (*axes)[2] == 0) &&
                 (*strides)[0] == (*blocks)[0] * p->width * p->group && p->group <= 2 &&
                 p->k % p->group == 0;
    }
    p->bytes = dnnl_memory_desc_get_size(md);
    return dnnl_success;
}

/* Sets desc's weights to plain rows, which count as one panel. */
static struct panels_cpu
plain_rows(struct matmul_desc_cpu *desc)
{
    const int64_t elements = desc->k * desc->n;
    desc->weights_strides[0] = desc->n;
    desc->weights_strides[1] = 1;
    return (struct panels_cpu){ .k = desc->k,
                                .n = desc->n,
                                .width = desc->n,
                                .group = 1,
                                .stride = elements,
                                .bytes = (size_t)elements * sizeof(float) };
}

qv_status
qv_panels_open_cpu(struct qv_device_cpu *dev, struct matmul_desc_cpu *desc,
                   struct primitive_cpu *matmul, struct panels_cpu *out, qv_error *err)
{
    bool known = false;
    for (int plain = 0; plain < 2 && !known; plain++) {
        desc->weights_strides[0] = plain ? desc->n : 0;
        desc->weights_strides[1] = plain;
        qv_primitive_close_cpu(matmul);
        qv_status status = qv_matmul_open_cpu(dev, desc, matmul, err);
        if (status)
            return status;
        if (!matmul->primitive) {
            *out = plain_rows(desc);
            return QV_OK;
        }
        const_dnnl_memory_desc_t md = NULL;
        dnnl_status_t s = dnnl_memory_get_memory_desc(matmul->memory[CPU_WEIGHTS], &md);
        *out = (struct panels_cpu){ .k = desc->k, .n = desc->n };
        if (!s)
            s = qv_panels_read_cpu(md, out, &known);
        if (s)
            return qv_dnnl_check_cpu(s, "layout of keys and values", err);
    }
    return QV_OK;
}

void
qv_panels_transposed_cpu(const struct panels_cpu *p, const void *x, int64_t x_stride, int64_t rows,
                         int64_t dtype, void *y)
{
    size_t element = qv_dtype_bytes(dtype), word = element * (size_t)p->group;
    for (int64_t first = 0; first < p->n; first += p->width) {
        char *panel = (char *)y + (size_t)(first / p->width * p->stride) * element;
        const char *from = (const char *)x + (size_t)(first * x_stride) * element;
        int64_t left = rows - first, some = left < 0 ? 0 : left < p->width ? left : p->width;
#if defined(__x86_64__) && defined(__GNUC__)
        if (word == 4 && p->width % 16 == 0 && qv_x86_has_cpu(dnnl_cpu_isa_avx512_core_bf16)) {
            qv_lanes_transpose_words_avx512_cpu(panel, p->width, p->stride / p->width / p->group,
                                                from, x_stride / p->group, some, p->k / p->group);
            continue;
        }
#endif
        memset(panel, 0, (size_t)p->stride * element);
        qv_lanes_transpose_cpu(panel, p->width, from, x_stride / p->group, 1,
                               word == 4 ? QV_F32 : QV_BF16, some, p->k / p->group);
    }
}

void
qv_panels_cpu(const struct panels_cpu *p, const void *x, int64_t x_stride, int64_t rows,
              int64_t dtype, void *y)
{
    size_t element = qv_dtype_bytes(dtype), word = element * (size_t)p->group;
    size_t line = (size_t)p->width * word; /* bytes of `group` rows of a panel */
    for (int64_t first = 0; first < p->n; first += p->width) {
        char *panel = (char *)y + (size_t)(first / p->width * p->stride) * element;
        size_t cols = (size_t)(p->n - first < p->width ? p->n - first : p->width);
        for (int64_t row = 0; row < p->k; row += p->group, panel += line) {
            const char *from = (const char *)x + (size_t)(row * x_stride + first) * element;
            size_t filled = row < rows ? cols * word : 0;
            if (filled && p->group == 2)
                qv_lanes_pair_cpu(panel, from, row + 1 < rows ? x_stride : 0, (int64_t)cols);
            else
                memcpy(panel, from, filled);
            memset(panel + filled, 0, line - filled);
        }
    }
}
