/* SPDX-License-Identifier: MIT */
/* Times one operation: caches are flushed before each sample, and samples take at least 20 ms
 * together. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkop.h"
#include "clock.h"
#include "numbers.h"

enum { FLUSH_BYTES = 64 << 20, MOST_SAMPLES = 100, LEAST_SAMPLES = 5 };
static const double least_us = 20e3, most_wall_us = 2e6, small_flops = 1 << 28;

static double
now_us(void)
{
    return 1e6 * qv_seconds();
}

/* Writes memory of the device itself, so that its own caches are flushed too, not only the
 * host's. */
static bool
flush(const struct side *side, struct qv_memory *memory, void *host, int round)
{
    qv_error err;
    memset(host, round, FLUSH_BYTES);
    return !side->backend->upload(side->dev, (struct qv_buffer){ memory, 0 }, host, FLUSH_BYTES,
                                  &err) &&
           !side->backend->sync(side->dev, &err);
}

/* Takes samples until there are enough, or most_wall_us have gone by. Returns their number. */
static int
sample(const struct side *side, struct job *job, double *us)
{
    qv_error err;
    struct qv_memory *memory = NULL;
    void *host = must_alloc(FLUSH_BYTES);
    double sum = 0, start = now_us();
    int n = 0;
    bool ok = !job_repeat(job, 2, &err) && /* warm-up runs */
              !side->backend->alloc(side->dev, FLUSH_BYTES, &memory, &err);
    while (ok && n < MOST_SAMPLES && (sum < least_us || n < LEAST_SAMPLES) &&
           (n < LEAST_SAMPLES || now_us() - start < most_wall_us)) {
        ok = flush(side, memory, host, n);
        double before = now_us();
        ok = ok && !job_repeat(job, 1, &err);
        us[n] = now_us() - before;
        sum += us[n++];
    }
    if (memory)
        side->backend->free(side->dev, memory);
    free(host);
    return ok ? n : 0;
}

static int
time_op(const struct side *side, const struct data *data, double *median, double *p90)
{
    struct outcome outcome = { .check = CHECK_NOTHING };
    struct job *job = job_open(side, data, false, &outcome);
    double us[MOST_SAMPLES];
    void *result = must_alloc(data->desc[qv_op_output(&data->op)].bytes);
    int n = job && job_run(job, false, result, &outcome) ? sample(side, job, us) : 0;
    job_close(job);
    free(result);
    if (!n)
        return 0;
    qsort(us, (size_t)n, sizeof *us, qv_ascending);
    *median = us[n / 2];
    *p90 = us[n * 9 / 10 < n ? n * 9 / 10 : n - 1];
    return n;
}

bool
bench(const struct side *ref, const struct side *side, const struct qv_op *op, uint64_t seed,
      struct timing *out)
{
    struct data data;
    double p90;
    struct rng rng = rng_make(seed, "bench");
    data_alloc(&data, op);
    data_fill(&data, FILL_REAL, &rng);
    *out = (struct timing){ 0 };
    out->samples = time_op(side, &data, &out->median_us, &out->p90_us);
    if (out->samples && qv_op_flops(op) <= small_flops)
        time_op(ref, &data, &out->ref_us, &p90);
    data_free(&data);
    return out->samples > 0;
}
