/* SPDX-License-Identifier: MIT */
/*
 * Tests which weights the CUDA backend widens by one launch, and where (cuda/batches.c). Kernels of
 * this file note what each byte of scratch holds: a GEMM must find its own weight where it is told
 * to, whatever ran in between. Needs no GPU.
 */

#include "test.h"

#include "cuda.h"

enum { MAIN, SIDE, STREAMS };
enum { MOST_CALLS = 40, SCRATCH = 1 << 15, OTHER = -1 };

static int holds[STREAMS][SCRATCH]; /* a byte's weight, by the number of its call */
static char scratch[STREAMS][SCRATCH], weights[MOST_CALLS];
static struct qv_kernel kernels[MOST_CALLS];
static struct qv_call calls[MOST_CALLS];
static int sm = 90;
static int launches, by_values, fails_at, n_early;
static const struct qv_kernel *launched; /* the last kernel; NULL: it widens */

static qv_status
answer(void)
{
    return ++launches == fails_at ? QV_EBACKEND : QV_OK;
}

/* Notes what bytes hold from now on. */
static void
write(const void *at, size_t bytes, int what)
{
    const int stream =
        (const char *)at >= scratch[SIDE] && (const char *)at < scratch[SIDE] + SCRATCH;
    const size_t first = (size_t)((const char *)at - scratch[stream]);
    assert_true(first + bytes <= SCRATCH);
    for (size_t i = 0; i < bytes; i++)
        holds[stream][first + i] = what;
}

qv_status
qv_check_cuda(struct qv_device_cuda *dev, cudaError_t error, const char *call, qv_error *err)
{
    return error ? QV_EBACKEND : QV_OK;
}

cudaError_t
qv_widen_cuda(cudaStream_t stream, const struct widening_cuda *list, int n, int64_t dtype,
              bool early)
{
    const int first = (int)((const char *)list[0].w - weights);
    if (early) { /* beside the kernel that was launched last, which must be a norm */
        assert_true(first > 0 && launched == &kernels[first - 1] && !calls[first].waits);
        assert_int_equal(launched->op.kind, QV_OP_norm);
        assert_false(calls[first - 1].side);
        n_early++;
    }
    launched = NULL;
    assert_in_range(n, 1, QV_MOST_WIDENED);
    for (int i = 0; i < n; i++) {
        const int call = (int)((const char *)list[i].w - weights);
        assert_int_equal(kernels[call].op.u.gemm.x_dtype, dtype);
        assert_int_equal(list[i].matrix.n, kernels[call].u.gemm.codes.n); /* each has its own */
        assert_int_equal((uintptr_t)((char *)list[i].y - scratch[MAIN]) % 256, 0);
        write(list[i].y, kernels[call].u.gemm.wide_bytes, call);
    }
    return answer() ? cudaErrorMemoryAllocation : cudaSuccess;
}

/* A kernel that uses all of its scratch. */
static qv_status
run(struct qv_device_cuda *dev, const struct qv_kernel *kernel, void *const *p, void *at,
    qv_error *err)
{
    launched = kernel;
    write(at, kernel->scratch_bytes, OTHER);
    return answer();
}

qv_status
qv_gemm_by_values_cuda(struct qv_device_cuda *dev, const struct qv_kernel *kernel, void *const *p,
                       void *at, qv_error *err)
{
    const struct gemm_cuda *g = &kernel->u.gemm;
    launched = kernel;
    write(at, kernel->scratch_bytes - g->wide_bytes, OTHER);
    for (size_t i = 0; i < g->wide_bytes; i++)
        assert_int_equal(holds[MAIN][(char *)p[1] - scratch[MAIN] + (ptrdiff_t)i],
                         kernel - kernels);
    by_values++;
    return answer();
}

/* ---- lists ----------------------------------------------------------------------------------- */

static const struct verbs_cuda verbs = { .run = run };
static struct qv_memory memories[STREAMS] = { { scratch[MAIN], SCRATCH },
                                              { scratch[SIDE], SCRATCH } };
static struct qv_memory weight_memory = { weights, sizeof weights };

/* Makes call i a GEMM whose weight is widened, if wide is not 0; it uses other bytes too. */
static void
set_call(int i, size_t wide, size_t others, bool side)
{
    struct qv_kernel *k = &kernels[i];
    *k = (struct qv_kernel){ .op.kind = wide ? QV_OP_gemm : QV_OP_attention, .verbs = &verbs };
    if (wide) {
        k->op.u.gemm.x_dtype = QV_BF16;
        k->u.gemm.codes = (struct qv_matrix_cuda){ 1 + i, (int64_t)wide, { 4, 64, QV_BF16 } };
        k->u.gemm.wide_bytes = wide;
    }
    k->scratch_bytes = others + wide;
    calls[i] = (struct qv_call){ .kernel = k, .scratch = { &memories[side], 0 }, .side = side };
    calls[i].operands[1] = (struct qv_buffer){ &weight_memory, (size_t)i };
}

static qv_status
run_list(int n)
{
    struct qv_device_cuda dev = { .sm = sm };
    struct batches_cuda batches = qv_batches_cuda(calls, (size_t)n);
    qv_status status = QV_OK;
    memset(holds, 0xff, sizeof holds);
    launches = by_values = n_early = 0;
    for (size_t i = 0; i < (size_t)n && !status; i++)
        status = qv_run_batched_cuda(&dev, &batches, i, NULL);
    return status;
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* As many weights are widened by one launch as the largest has room for; what other kernels use of
 * scratch lies in front. */
TEST(one_launch_widens_several)
{
    for (int i = 0; i < 9; i++)
        set_call(i, i == 8 ? 4096 : 1024, i % 2 * 512, false);
    kernels[8].scratch_bytes += 512;
    assert_int_equal(run_list(9), QV_OK);
    assert_int_equal(by_values, 9);
    assert_int_equal(launches, 9 + 2 + 1);
    kernels[2].op.u.gemm.x_dtype = QV_F32; /* 0, 1; 2; 3 to 6; 7; 8 */
    assert_int_equal(run_list(9), QV_OK);
    assert_int_equal(launches, 9 + 5);
}

/* A batch ends in front of a GEMM behind a norm once it fills half of the room, and is widened
 * beside that norm; where kernels cannot overlap, or a side call is waited for, it is not. */
TEST(batches_begin_behind_norms)
{
    for (int i = 0; i < 13; i++) { /* a norm, then two GEMMs; four times */
        set_call(i, i == 12 ? 4096 : i % 3 ? 768 : 0, 0, false);
        kernels[i].op.kind = i % 3 || i == 12 ? QV_OP_gemm : QV_OP_norm;
    }
    assert_int_equal(run_list(13), QV_OK);
    assert_int_equal(by_values, 9);
    assert_int_equal(launches, 13 + 3);
    assert_int_equal(n_early, 2);
    calls[7].waits = true; /* so that the first batch ends where the room does */
    assert_int_equal(run_list(13), QV_OK);
    assert_int_equal(launches, 13 + 3);
    assert_int_equal(n_early, 1);
    sm = 80;
    assert_int_equal(run_list(13), QV_OK);
    assert_int_equal(n_early, 0);
    sm = 90;
}

/* Nothing is widened ahead where there is nothing to widen, for calls of the side stream, where
 * calls have several scratches, or where other kernels need what the weights would take. */
TEST(others_widen_their_own)
{
    for (int i = 0; i < 8; i++)
        set_call(i, i % 4 == 2 ? 1024 : 0, 512, i % 4 == 2);
    assert_int_equal(run_list(8), QV_OK);
    assert_int_equal(launches, 8);
    for (int i = 0; i < 4; i++) {
        set_call(i, 1024, 512, false);
        calls[i].scratch.offset = (size_t)i % 2 * 4096;
    }
    assert_int_equal(run_list(4), QV_OK);
    assert_int_equal(launches, 4);
    set_call(0, 1024, 0, false);
    set_call(1, 0, 1536, false);
    assert_int_equal(run_list(2), QV_OK);
    assert_int_equal(launches, 2);
    assert_int_equal(by_values, 0);
}

static size_t
draw(uint32_t *seed, size_t below)
{
    return (test_random(seed) >> 8) % below;
}

/* In any list each GEMM finds its weight, and a failure ends it at once. */
TEST(each_gemm_finds_its_weight)
{
    int found = 0, widenings = 0;
    for (uint32_t seed = 0, at = 0; seed < 2000; at = ++seed) {
        const int n = 1 + (int)draw(&at, MOST_CALLS);
        const size_t most = 1 + draw(&at, 24);
        for (int i = 0; i < n; i++) {
            set_call(i, draw(&at, 3) ? 256 * (1 + draw(&at, most)) : 0,
                     draw(&at, 2) * 100 * draw(&at, most), draw(&at, 6) == 0);
            calls[i].waits = draw(&at, 8) == 0;
            if (kernels[i].op.kind != QV_OP_gemm && draw(&at, 2))
                kernels[i].op.kind = QV_OP_norm;
            if (draw(&at, 40) == 0)
                kernels[i].op.u.gemm.x_dtype = QV_F32;
        }
        assert_int_equal(run_list(n), QV_OK);
        found += by_values;
        widenings += launches - n;
        const int all = launches;
        fails_at = 1 + (int)draw(&at, (size_t)all);
        assert_int_equal(run_list(n), QV_EBACKEND);
        assert_int_equal(launches, fails_at);
        fails_at = 0;
    }
    assert_true(widenings > 1000 && found > widenings);
}
