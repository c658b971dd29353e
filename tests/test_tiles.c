/* SPDX-License-Identifier: MIT */
/*
 * Tests that few rows by quantised weights on AMX, whose instructions are emulated here, have bits
 * that depend neither on how many rows there are nor on the number of threads. Whether they are
 * right, checkop_tiles tests.
 */

#include "test.h"

#include "cpu/cpu.h"

/* columns of five and a half panels: four side by side, and two */
enum { N = 88, K = 192, ROWS = QV_FEW_ROWS, GROUP = 64 };

/* Multiplies m rows of x by w, which is in the canonical form. Skips the test if the kernel is
 * another one than AMX's. */
static void
multiply(int threads, int64_t m, int64_t bits, const qv_bf16 *x, const void *w, float *y)
{
    const struct qv_matrix matrix = {
        .n = N, .k = K, .dtype = QV_F32, .groups = { bits, GROUP, QV_F32 }
    };
    struct qv_device *dev = NULL;
    struct qv_kernel *kernel = NULL;
    struct qv_layout layout;
    struct qv_op op = { .kind = QV_OP_gemm_few };
    qv_error err = { 0 };
    char text[200] = "";
    size_t scratch_bytes;
    op.u.gemm_few = (struct qv_op_gemm_few){ .m = m, .n = N, .k = K, .alpha = 1 };
    qv_op_set_dtype(&op, QV_BF16);
    op.u.gemm_few.w_bits = bits;
    op.u.gemm_few.w_group = GROUP;
    op.u.gemm_few.w_dtype = QV_F32;
    const struct qv_device_options options = { .threads = threads };
    if (qv_backend_cpu.open(&options, &dev, &err) ||
        qv_backend_cpu.layout(dev, &matrix, &layout, &err) ||
        qv_backend_cpu.prepare(dev, &op, 0, &kernel, &scratch_bytes, &err)) {
        fail_msg("%s", err.text);
        return;
    }
    qv_backend_cpu.describe(kernel, text, sizeof text);
    kernel->op.u.gemm_few.y_dtype = QV_F32; /* nothing is to be hidden by rounding */
    const bool amx = strstr(text, "AMX");
    char *laid_out = test_ends(calloc(1, layout.bytes), free),
         *scratch = aligned_alloc(64, qv_aligned(scratch_bytes));
    void *operands[QV_MAX_OPERANDS] = { (void *)x, laid_out, NULL, NULL, y };
    assert_true(laid_out && scratch);
    if (amx) {
        qv_codes_lay_out_cpu((struct qv_device_cpu *)dev, &matrix, 0, N, w, laid_out);
        qv_gemm_few_verbs_cpu.run((struct qv_device_cpu *)dev, kernel, operands, scratch, &err);
    }
    free(scratch);
    qv_backend_cpu.release(dev, kernel);
    qv_backend_cpu.close(dev);
    if (!amx)
        skip();
}

TEST(rows_have_their_bits)
{
    static float all[ROWS * N], some[ROWS * N];
    static qv_bf16 x[ROWS * K];
    static unsigned char w[N * (K + 2 * K / GROUP * sizeof(float))];
    for (int64_t i = 0; i < ROWS * K; i++)
        qv_store(x, QV_BF16, i, (double)(i * 7919 % 1009) / 211 - 2);
    for (int64_t bits = 4; bits <= 8; bits += 4) {
        const struct qv_groups groups = { bits, GROUP, QV_F32 };
        const size_t row = qv_grouped_row_bytes(&groups, K), codes = (size_t)(K * bits / 8);
        for (size_t i = 0; i < N * row; i++)
            w[i] = (unsigned char)(i * 131 >> 3);
        for (size_t i = 0; i < N; i++)
            for (int64_t j = 0; j < 2 * K / GROUP; j++)
                qv_store(w + i * row + codes, QV_F32, j, (double)(i + 3) / (double)(j + 7));
        multiply(3, ROWS, bits, x, w, all);
        for (int64_t m = 1; m < ROWS; m += 3) {
            memset(some, 0xff, sizeof some);
            multiply(1 + (int)m % 2, m, bits, x, w, some);
            assert_memory_equal(some, all, (size_t)(m * N) * sizeof *all);
        }
    }
}
