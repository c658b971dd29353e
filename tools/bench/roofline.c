/* SPDX-License-Identifier: MIT */
/* The roofline of a device, from the best GEMM and the best rate at which memory is read or
 * copied. */
#include "bench.h"

/* Returns how long a run should be: sizes grow until a run takes a good part of this. It is shorter
 * for few repeats, because their user wants a quick answer. */
static double
long_ms(const struct bench *b)
{
    return b->o->repeats < 7 ? 100 * (double)b->o->repeats / 7 : 100;
}

/* Finds the shortest of several runs after a warm-up: whatever makes a run longer is not the
 * machine's limit. */
static qv_status
best_ms(const struct bench *b, struct bench_ops *ops, double *best, qv_error *err)
{
    double began = qv_seconds(), least_s = 0.06 + 0.04 * (double)b->o->repeats, ms;
    qv_status status = bench_list_run(&ops->list, &ms, err);
    *best = 1e30;
    for (int i = 0; i < 1000 && !status; i++) {
        if (bench_is_spent(b) ? i > 0 : i >= 3 && qv_seconds() - began >= least_s)
            break;
        status = bench_list_run(&ops->list, &ms, err);
        *best = ms < *best ? ms : *best;
    }
    return status;
}

static qv_status
time_gemm(const struct bench *b, qv_dtype dtype, int64_t rows, int64_t size, double *ms,
          double *flops, double *bytes, qv_error *err)
{
    const struct qv_op_gemm gemm = { .m = rows, .n = size, .k = size, .alpha = 1 };
    struct bench_ops ops = { 0 };
    qv_status status = bench_gemm_open(b->ctx, &gemm, dtype, &ops, err);
    *flops = ops.program.flops;
    *bytes = ops.program.bytes;
    if (!status)
        status = best_ms(b, &ops, ms, err);
    bench_ops_close(&ops);
    return status;
}

/* Times a copy of a buffer, as the mean of one there and one back. */
static qv_status
time_copy(const struct bench *b, size_t bytes, double *ms, qv_error *err)
{
    struct qv_op there = { .kind = QV_OP_convert, .u.convert = { .n = (int64_t)(bytes / 4) } };
    struct bench_ops ops;
    qv_op_set_dtype(&there, QV_F32);
    struct qv_step steps[2] = { bench_step(&there, 0), bench_step(&there, 0) };
    steps[1].operands[0] = steps[0].operands[1];
    steps[1].operands[1] = steps[0].operands[0];
    qv_status status = bench_ops_open(b->ctx, steps, 2, 1, NULL, &ops, err);
    if (!status)
        status = best_ms(b, &ops, ms, err);
    *ms /= 2;
    bench_ops_close(&ops);
    return status;
}

/* The rates measured on a device. */
enum rated {
    PEAK, /* the best square GEMM */
    /* a GEMM of one row, which reads a matrix once and writes almost nothing. It is up to twice as
     * fast as a copy, since CPUs read memory before they write it. */
    READING,
    COPY
};

static qv_status
time_rate(const struct bench *b, enum rated what, qv_dtype dtype, int64_t size, double *ms,
          double *per_s, qv_error *err)
{
    double flops = 0, bytes = 2.0 * (double)size; /* of a copy */
    const qv_status status =
        what == COPY ? time_copy(b, (size_t)size, ms, err)
                     : time_gemm(b, dtype, what == PEAK ? size : 1, size, ms, &flops, &bytes, err);
    *per_s = status ? 0 : (what == PEAK ? flops : bytes) / *ms * 1e3;
    return status;
}

/* Sizes grow while a run is short. Sizes of copies are far larger than any cache, except on a slow
 * device, where caches do not matter; the largest are for GPUs, which copy them in a fraction of a
 * millisecond. Only the last size is certain not to come from a cache. */
static const struct {
    enum rated what;
    int64_t size;
    double most; /* the size is tried if the one before took less than this share of long_ms() */
} rated_sizes[] = {
    { PEAK, 256, 1 },          { PEAK, 512, 0.25 },       { PEAK, 1024, 0.25 },
    { PEAK, 2048, 0.25 },      { PEAK, 4096, 0.25 },      { PEAK, 8192, 0.25 },
    { READING, 4096, 1 },      { READING, 8192, 0.125 },  { READING, 16384, 0.01 },
    { COPY, 16 << 20, 1 },     { COPY, 64 << 20, 0.125 }, { COPY, 256 << 20, 0.125 },
    { COPY, 512 << 20, 0.01 },
};

/* Finds the size that shows the rate, and measures there until two measurements agree. */
static qv_status
measure(const struct bench *b, enum rated what, qv_dtype dtype, struct bench_rate *out,
        qv_error *err)
{
    double rates[BENCH_MOST_RATES] = { 0 }, ms = 0, per_s;
    int64_t size = 0;
    qv_status status = QV_OK;
    for (size_t i = 0; i < sizeof rated_sizes / sizeof *rated_sizes && !status; i++) {
        if (rated_sizes[i].what != what || ms >= rated_sizes[i].most * long_ms(b) ||
            (size && bench_is_spent(b)))
            continue;
        status = time_rate(b, what, dtype, rated_sizes[i].size, &ms, &per_s, err);
        if (what != PEAK || per_s > rates[0]) {
            rates[0] = per_s;
            size = rated_sizes[i].size;
        }
    }
    *out = bench_rate_of(rates, 1);
    for (int n = 1; n < BENCH_MOST_RATES && !status && !out->known && !bench_is_spent(b); n++) {
        status = time_rate(b, what, dtype, size, &ms, &rates[n], err);
        *out = bench_rate_of(rates, n + 1);
    }
    return status;
}

/* Memory is measured once, by the first dtype: a run has one roofline. */
static qv_status
measure_roofline(struct bench *b, qv_dtype dtype, qv_error *err)
{
    struct bench_rate peak = { 0 }, reading;
    qv_status status = b->copy.per_s > 0 ? QV_OK : measure(b, COPY, dtype, &b->copy, err);
    if (status || b->peak[dtype].per_s > 0)
        return status;
    status = measure(b, PEAK, dtype, &peak, err);
    if (status)
        return status;
    b->peak[dtype] = peak;
    if (b->memory.per_s > 0)
        return QV_OK;
    status = measure(b, READING, dtype, &reading, err);
    if (!status)
        b->memory = reading.per_s > b->copy.per_s ? reading : b->copy;
    return status;
}

qv_status
bench_begin(struct bench *b, qv_dtype dtype, qv_error *err)
{
    const qv_status status = measure_roofline(b, dtype, err);
    if (!status)
        bench_print_roofline(b, dtype);
    return status;
}
