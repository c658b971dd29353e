/* SPDX-License-Identifier: MIT */
/*
 * A signal handler may run at any time while the CPU backend computes, and it may use its stack.
 * oneDNN's older GEMM (AVX2) makes a buffer on the heap its stack, and a handler that ran there
 * would write over what lies below.
 */
#include "test.h"

#include <signal.h>
#include <sys/time.h>

#include "tiny.h"

/* K is the length of a sum: from 129 on that buffer is on the heap. */
enum { ROWS = 432, K = 256, COLS = 64, RUNS = 300 };

static volatile sig_atomic_t handled;

static void
handle(int signal)
{
    volatile char stack[32 << 10];
    (void)signal;
    for (size_t i = 0; i < sizeof stack; i += 8)
        stack[i] = 0x55;
    handled++;
}

static void
set_timer(suseconds_t microseconds)
{
    const struct itimerval every = { { 0, microseconds }, { 0, microseconds } };
    assert_int_equal(setitimer(ITIMER_REAL, &every, NULL), 0);
}

static void
free_conv(void *conv)
{
    qv_conv3d_free(&(qv_conv3d *){ conv });
}

/* A convolution whose kernel is one voxel is a matrix product. It gives the same bits with signals
 * and without. */
TEST(during_a_matrix_product)
{
    static float weight[COLS * K], x[ROWS * K], want[ROWS * COLS], y[ROWS * COLS];
    const qv_conv3d_desc d = { .d = 1,
                               .h = 1,
                               .w = ROWS,
                               .c = K,
                               .o = COLS,
                               .kernel = { 1, 1, 1 },
                               .layout = QV_LAYOUT_CHANNELS_LAST,
                               .dtype = QV_F32 };
    const struct sigaction action = { .sa_handler = handle, .sa_flags = SA_RESTART };
    qv_context *ctx = tiny_context_with(&(qv_context_options){ .backend = "cpu", .threads = 1 });
    qv_conv3d *conv = NULL;
    for (int i = 0; i < COLS * K; i++)
        weight[i] = (float)(i * 7 % 5) - 2;
    for (int i = 0; i < ROWS * K; i++)
        x[i] = (float)(i * 3 % 7) - 3;
    assert_ok(
        qv_conv3d_create(ctx, &d, &(qv_conv3d_weights){ .weight = weight }, NULL, &conv, ERR));
    test_ends(conv, free_conv);
    assert_ok(qv_conv3d_run(conv, x, want, ERR));
    assert_int_equal(sigaction(SIGALRM, &action, NULL), 0);
    set_timer(100);
    for (int i = 0; i < RUNS || handled < RUNS; i++) {
        assert_ok(qv_conv3d_run(conv, x, y, ERR));
        assert_memory_equal(y, want, sizeof y);
    }
    set_timer(0);
}
