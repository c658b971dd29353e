/* SPDX-License-Identifier: MIT */
/*
 * Tests the CPU's attention over segments. A segment has the same bits as alone, whatever its
 * neighbours and, with AVX-512, for any number of threads. Rows of no segment, which are NaN here,
 * have no effect; a NaN in a segment does. Long segments, of several blocks of keys, are right as
 * well.
 */
#include "test.h"

#include <math.h>

#include "../cpu/cpu.h"
#include "checkop.h"

enum { HEADS = 2, ROWS = 4700, LONGEST = 1300 };

/* Short and long segments, whole blocks, one row less and one row more, next to one another and
 * apart. */
static const struct segment_cpu segments[] = {
    { 3, 1 },      { 4, 700 },   { 710, 33 },  { 743, 64 },    { 807, 512 },
    { 1320, 513 }, { 1840, 97 }, { 1940, 95 }, { 2050, 1300 }, { 3400, 1025 },
};
enum { N_SEGMENTS = sizeof segments / sizeof *segments };

static const int head_dims[] = { 64, 72, 80, 20 };

/* A kernel with its scratch memory. */
struct kernel {
    struct qv_device *dev;
    struct qv_kernel *kernel;
    struct qv_memory *scratch;
};

static struct kernel
open_kernel(int threads, int head_dim, qv_dtype dtype)
{
    struct kernel k = { 0 };
    size_t bytes;
    struct qv_op op = { .kind = QV_OP_attention };
    op.u.attention = (struct qv_op_attention){ .rows = LONGEST,
                                               .segments = 1,
                                               .segment_rows = LONGEST,
                                               .heads = HEADS,
                                               .head_dim = head_dim,
                                               .scale = 0.3 };
    qv_op_set_dtype(&op, dtype);
    assert_ok(qv_backend_cpu.open(&(struct qv_device_options){ .threads = threads }, &k.dev, ERR));
    assert_ok(qv_backend_cpu.prepare(k.dev, &op, 0, &k.kernel, &bytes, ERR));
    assert_ok(qv_backend_cpu.alloc(k.dev, bytes, &k.scratch, ERR));
    memset(k.scratch->base, 0xff, bytes); /* Fills it with NaN. */
    return k;
}

static void
close_kernel(struct kernel *k)
{
    qv_backend_cpu.free(k->dev, k->scratch);
    qv_backend_cpu.release(k->dev, k->kernel);
    qv_backend_cpu.close(k->dev);
}

static void
attend(const struct kernel *k, void *qkv, void *y, const struct segment_cpu *some, int64_t n)
{
    const struct qv_op_attention *op = &k->kernel->op.u.attention;
    int64_t width = HEADS * op->head_dim;
    size_t third = (size_t)width * qv_dtype_bytes(op->q_dtype);
    struct attention_call_cpu call = { { qkv, 3 * width },
                                       { (char *)qkv + third, 3 * width },
                                       { (char *)qkv + 2 * third, 3 * width },
                                       { y, width },
                                       some,
                                       n };
    assert_ok(qv_attention_segments_cpu((struct qv_device_cpu *)k->dev, k->kernel, &call,
                                        k->scratch->base, ERR));
}

/* NaN between the segments. Inside them the values are -1 to 1, and 4 times that in every 50th
 * row. */
static void *
make_qkv(const struct qv_op_attention *op)
{
    int64_t cols = 3 * HEADS * op->head_dim;
    size_t bytes = (size_t)(ROWS * cols) * qv_dtype_bytes(op->q_dtype);
    void *qkv = test_alloc(bytes);
    memset(qkv, 0xff, bytes);
    uint32_t random = 1;
    for (int s = 0; s < N_SEGMENTS; s++)
        for (int64_t row = segments[s].first; row < segments[s].first + segments[s].rows; row++)
            for (int64_t i = row * cols; i < (row + 1) * cols; i++) {
                double x = (double)test_random(&random) / 0x1p31 - 1;
                qv_store(qkv, op->q_dtype, i, (float)(row % 50 ? x : 4 * x));
            }
    return qkv;
}

/* Runs one segment alone, at the beginning. Returns y[rows, width]. */
static void *
attend_alone(const struct kernel *k, const char *qkv, const struct segment_cpu *segment)
{
    const struct qv_op_attention *op = &k->kernel->op.u.attention;
    size_t row = (size_t)(HEADS * op->head_dim) * qv_dtype_bytes(op->q_dtype);
    size_t rows = (size_t)segment->rows;
    /* Of exact size, so that a sanitizer sees accesses beyond them. */
    void *own = test_alloc(3 * row * rows), *y = test_alloc(row * rows);
    memcpy(own, qkv + (size_t)segment->first * 3 * row, 3 * row * rows);
    attend(k, own, y, &(struct segment_cpu){ 0, segment->rows }, 1);
    return y;
}

/* Compares some rows of a segment with sums in double. */
static void
check_truth(const struct qv_op_attention *op, const void *qkv, const struct segment_cpu *segment,
            const void *y)
{
    int64_t width = HEADS * op->head_dim, hd = op->head_dim, n = segment->rows;
    struct qv_op one = { .kind = QV_OP_attention, .u.attention = *op };
    one.u.attention.rows = one.u.attention.segment_rows = n;
    double *p = test_ends(calloc((size_t)n, sizeof *p), free);
    for (int64_t row = 0; row < n; row += 1 + n / 3)
        for (int64_t head = 0; head < HEADS; head++) {
            int64_t base = segment->first * 3 * width + head * hd;
            double max = -INFINITY, sum = 0;
            for (int64_t key = 0; key < n; key++) {
                p[key] = 0;
                for (int64_t i = 0; i < hd; i++)
                    p[key] += op->scale * qv_load(qkv, op->q_dtype, base + row * 3 * width + i) *
                              qv_load(qkv, op->q_dtype, base + width + key * 3 * width + i);
                max = fmax(max, p[key]);
            }
            for (int64_t key = 0; key < n; key++)
                sum += p[key] = exp(p[key] - max);
            for (int64_t i = 0; i < hd; i++) {
                double e = 0;
                for (int64_t key = 0; key < n; key++)
                    e += p[key] / sum *
                         qv_load(qkv, op->q_dtype, base + 2 * width + key * 3 * width + i);
                double got = qv_load(y, op->q_dtype, row * width + head * hd + i);
                if (!(fabs(got - e) <= op_tolerance(&one, e, 4, 4)))
                    fail_msg("%lld rows: row %lld, head %lld, column %lld is %g, not %g",
                             (long long)n, (long long)row, (long long)head, (long long)i, got, e);
            }
        }
}

/* Checks that y is unchanged where no segment is, and has the segment's own bits where one is. */
static void
check_together(const struct kernel *k, void *qkv, void *const alone[N_SEGMENTS])
{
    const struct qv_op_attention *op = &k->kernel->op.u.attention;
    size_t row = (size_t)(HEADS * op->head_dim) * qv_dtype_bytes(op->q_dtype);
    char *expected = test_alloc(ROWS * row), *y = test_alloc(ROWS * row);
    memset(expected, 0x5a, ROWS * row);
    memset(y, 0x5a, ROWS * row);
    for (int s = 0; s < N_SEGMENTS; s++)
        memcpy(expected + (size_t)segments[s].first * row, alone[s],
               (size_t)segments[s].rows * row);
    attend(k, qkv, y, segments, N_SEGMENTS);
    for (size_t i = 0; i < ROWS; i++)
        if (memcmp(y + i * row, expected + i * row, row))
            fail_msg("head_dim %d, dtype %d: row %zu has other bits than alone", (int)op->head_dim,
                     (int)op->q_dtype, i);
}

/* Before AVX-512, oneDNN's matmul divides rows differently when several threads call it. */
static bool
same_for_any_threads(void)
{
    unsigned isa = (unsigned)dnnl_get_effective_cpu_isa(), need = dnnl_cpu_isa_avx512_core;
    return (isa & need) == need;
}

static void
check_segments(int head_dim, qv_dtype dtype)
{
    void *qkv = NULL, *alone[N_SEGMENTS] = { NULL };
    for (int threads = 1; threads < 5; threads++) {
        struct kernel k = open_kernel(threads, head_dim, dtype);
        if (!qkv)
            qkv = make_qkv(&k.kernel->op.u.attention);
        for (int s = 0; s < N_SEGMENTS && (threads == 1 || !same_for_any_threads()); s++) {
            alone[s] = attend_alone(&k, qkv, &segments[s]);
            if (threads == 1)
                check_truth(&k.kernel->op.u.attention, qkv, &segments[s], alone[s]);
        }
        check_together(&k, qkv, alone);
        close_kernel(&k);
    }
}

/* In the longest segment, a NaN in k in the last block makes the whole segment NaN, one in v makes
 * its column NaN and one in q its row. Each affects only its own head. */
static void
check_nan(int head_dim, qv_dtype dtype)
{
    struct kernel k = open_kernel(2, head_dim, dtype);
    const struct segment_cpu *longest = &segments[8];
    int64_t width = HEADS * head_dim, row = longest->rows - 2;
    void *y = test_ends(calloc(ROWS * (size_t)width, sizeof(float)), free);
    for (int which = 0; which < 3; which++) {
        void *qkv = make_qkv(&k.kernel->op.u.attention);
        qv_store(qkv, dtype, ((longest->first + row) * 3 + which) * width + 5, NAN);
        attend(&k, qkv, y, segments, N_SEGMENTS);
        for (int s = 0; s < N_SEGMENTS; s++)
            for (int64_t i = 0; i < segments[s].rows; i++)
                for (int64_t col = 0; col < width; col++) {
                    bool is = isnan(qv_load(y, dtype, (segments[s].first + i) * width + col));
                    bool hit = &segments[s] == longest && col < head_dim &&
                               (which == 1 || (which == 0 ? i == row : col == 5));
                    if (is != hit)
                        fail_msg("a NaN in %c: segment %d, row %lld, column %lld %s", "qkv"[which],
                                 s, (long long)i, (long long)col, is ? "is NaN" : "is no NaN");
                }
    }
    close_kernel(&k);
}

/* The scores of the longest segment ascend, by 400 from the first to the last. So in every block of
 * keys the exponentials start from a maximum that is too small. */
static void
check_rising(int head_dim, qv_dtype dtype)
{
    struct kernel k = open_kernel(2, head_dim, dtype);
    const struct qv_op_attention *op = &k.kernel->op.u.attention;
    const struct segment_cpu *longest = &segments[8];
    int64_t width = HEADS * head_dim;
    char *qkv = make_qkv(op),
         *y = test_ends(calloc(ROWS * (size_t)width, qv_dtype_bytes(dtype)), free);
    for (int64_t row = 0; row < longest->rows; row++)
        for (int64_t i = 0; i < width; i++) {
            int64_t at = (longest->first + row) * 3 * width + i;
            double rise = 400 * (double)row / (double)longest->rows;
            qv_store(qkv, dtype, at, 1);
            qv_store(qkv, dtype, at + width, (float)(rise / op->scale / head_dim));
        }
    attend(&k, qkv, y, segments, N_SEGMENTS);
    check_truth(op, qkv, longest, y + (size_t)(longest->first * width) * qv_dtype_bytes(dtype));
    close_kernel(&k);
}

static bool
have_bf16(void)
{
    struct kernel k = open_kernel(1, 64, QV_F32);
    struct qv_caps caps;
    qv_backend_cpu.caps(k.dev, &caps);
    close_kernel(&k);
    return caps.dtype == QV_BF16;
}

TEST(test_segments)
{
    for (size_t i = 0; i < sizeof head_dims / sizeof *head_dims; i++) {
        check_segments(head_dims[i], QV_F32);
        if (have_bf16())
            check_segments(head_dims[i], QV_BF16);
    }
}

TEST(test_nan)
{
    check_nan(72, QV_F32);
    if (have_bf16())
        check_nan(72, QV_BF16);
}

TEST(test_rising)
{
    check_rising(64, QV_F32);
    if (have_bf16())
        check_rising(64, QV_BF16);
}
