/* SPDX-License-Identifier: MIT */
/* Operations whose kernels are our own (launch.h), and need neither state nor scratch. */
#include "cuda.h"
#include "codes.h"

static qv_status
prepare_few(struct qv_device_cuda *dev, struct qv_kernel *kernel, size_t *scratch_bytes,
            qv_error *err)
{
    const struct qv_op_gemm_few *op = &kernel->op.u.gemm_few;
    (void)dev;
    (void)scratch_bytes;
    const int64_t most = UINT16_MAX * (int64_t)QV_CODES_ROWS_CUDA; /* blocks along a grid's axis */
    if (op->x_dtype != QV_BF16 || op->w_dtype == QV_F32 || op->n > most)
        return qv_fail(
            err, QV_EUNSUPPORTED,
            "gemm_few: x=%s w=%s n=%lld; CUDA's kernel accepts x=bf16, w=bf16 or f16, and "
            "n up to %lld",
            qv_dtype_name((qv_dtype)op->x_dtype), qv_dtype_name((qv_dtype)op->w_dtype),
            (long long)op->n, (long long)most);
    return QV_OK;
}

static void
describe_own(const struct qv_kernel *kernel, char *text, size_t size)
{
    (void)kernel;
    snprintf(text, size, "our kernel");
}

/* Defines the verbs of an operation whose kernel has these operands. */
#define OWN(name, prepare_it, ...)                                                                 \
    static qv_status run_##name(struct qv_device_cuda *dev, const struct qv_kernel *kernel,        \
                                void *const *p, void *scratch, qv_error *err)                      \
    {                                                                                              \
        const struct qv_op_##name *op = &kernel->op.u.name;                                        \
        (void)scratch;                                                                             \
        return qv_check_cuda(dev, qv_##name##_cuda(dev->stream, op, __VA_ARGS__), #name, err);     \
    }                                                                                              \
    const struct verbs_cuda qv_##name##_verbs_cuda = {                                             \
        .library = LIBRARIES, .prepare = prepare_it, .run = run_##name, .describe = describe_own   \
    };

OWN(patchify, NULL, p[0], p[1], p[2], p[3], p[4])
OWN(convert, NULL, p[0], p[1])
OWN(gemm_few, prepare_few, p[0], p[1], p[2], p[3], p[4], dev->code, dev->multiprocessors,
    dev->shared_bytes)
OWN(norm, NULL, p[0], p[1], p[2], p[3], dev->code >= 90, dev->multiprocessors)
OWN(rope, NULL, p[0], p[1], p[2], p[3], dev->code >= 90)
OWN(gate, NULL, p[0], p[1], p[2])
OWN(gather, NULL, p[0], p[1], p[2])
OWN(interpolate, NULL, p[0], p[1], p[2], p[3])
OWN(im2col, NULL, p[0], p[1])
OWN(epilogue, NULL, p[0], p[1], p[2], p[3])
