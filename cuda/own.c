/* SPDX-License-Identifier: MIT */
/* Operations whose kernels are our own (launch.h), keep nothing and need no scratch. */
#include "cuda.h"

static qv_status
prepare_own(struct qv_device_cuda *dev, struct qv_kernel *kernel, size_t *scratch_bytes,
            qv_error *err)
{
    (void)dev;
    (void)kernel;
    (void)scratch_bytes;
    (void)err;
    return QV_OK;
}

static void
describe_own(const struct qv_kernel *kernel, char *text, size_t size)
{
    (void)kernel;
    snprintf(text, size, "our kernel");
}

/* Defines the verbs of an operation whose kernel has these operands. */
#define OWN(name, ...)                                                                             \
    static qv_status run_##name(struct qv_device_cuda *dev, const struct qv_kernel *kernel,        \
                                void *const *p, void *scratch, qv_error *err)                      \
    {                                                                                              \
        const struct qv_op_##name *op = &kernel->op.u.name;                                        \
        (void)scratch;                                                                             \
        return qv_check_cuda(dev, qv_##name##_cuda(dev->stream, op, __VA_ARGS__), #name, err);     \
    }                                                                                              \
    const struct verbs_cuda qv_##name##_verbs_cuda = {                                             \
        .library = LIBRARIES, .prepare = prepare_own, .run = run_##name, .describe = describe_own  \
    };

OWN(patchify, p[0], p[1], p[2], p[3], p[4])
OWN(convert, p[0], p[1])
OWN(gemm_few, p[0], p[1], p[2], p[3], p[4])
OWN(norm, p[0], p[1], p[2], p[3])
OWN(rope, p[0], p[1], p[2], p[3])
OWN(gate, p[0], p[1], p[2])
OWN(gather, p[0], p[1], p[2])
OWN(interpolate, p[0], p[1], p[2], p[3])
OWN(im2col, p[0], p[1])
OWN(epilogue, p[0], p[1], p[2], p[3])
