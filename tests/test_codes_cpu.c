/* SPDX-License-Identifier: MIT */
/*
 * Tests which matmul of oneDNN multiplies by widened weights: the one that multiplies by weights
 * that never were packed. A matrix that is widened in several blocks of columns must not fall to
 * a matmul that is hundreds of times as slow, whose results are as right.
 */

#include "test.h"

#include "engine/backend.h"
#include "error.h"

/* 32 MB in bf16: several blocks */
enum { ROWS = 190, SIZE = 4096 };

/* Writes how the device computes a GEMM. */
static void
describe(struct qv_device *dev, bool packed, qv_dtype dtype, int64_t n, char *text, size_t size)
{
    struct qv_op op = { .kind = QV_OP_gemm };
    struct qv_kernel *kernel = NULL;
    size_t scratch_bytes;
    op.u.gemm = (struct qv_op_gemm){ .m = ROWS, .n = n, .k = SIZE, .alpha = 1, .bias = 1 };
    qv_op_set_dtype(&op, dtype);
    if (packed) {
        op.u.gemm.w_bits = 4;
        op.u.gemm.w_group = 64;
        op.u.gemm.w_dtype = QV_BF16;
    }
    assert_ok(qv_backend_cpu.prepare(dev, &op, 0, &kernel, &scratch_bytes, ERR));
    qv_backend_cpu.describe(kernel, text, size);
    qv_backend_cpu.release(dev, kernel);
}

TEST(multiplied_alike)
{
    static const qv_dtype dtypes[] = { QV_F32, QV_BF16 };
    struct qv_device *dev = NULL;
    struct qv_caps caps;
    assert_ok(qv_backend_cpu.open(&(struct qv_device_options){ .threads = 2 }, &dev, ERR));
    qv_backend_cpu.caps(dev, &caps);
    for (int i = 0; i < (caps.dtype == QV_BF16 ? 2 : 1); i++)
        for (int64_t n = SIZE / 4; n <= SIZE; n *= 4) {
            char stored[200] = "", packed[200] = "";
            describe(dev, false, dtypes[i], n, stored, sizeof stored);
            describe(dev, true, dtypes[i], n, packed, sizeof packed);
            const char *at = strstr(packed, "oneDNN ");
            assert_non_null(at);
            assert_string_equal(at, stored);
        }
    qv_backend_cpu.close(dev);
}
