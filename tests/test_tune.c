/* SPDX-License-Identifier: MIT */
/*
 * Tests what measuring chooses among the ways in which a device can run an operation: the fastest
 * of those that give the bits of its first choice, so that capacities that agree go on agreeing.
 * The device is ref, with clocks and roundings that the test provides.
 */

#include "test.h"

#include "engine/context.h"
#include "error.h"
#include "op_parse.h"

enum { CHOICES = 4 };

/* For each way: how long it takes, and whether it rounds the last value of a row differently. */
static double way_ms[CHOICES];
static bool way_differs[CHOICES];
static struct qv_kernel *kernels[CHOICES]; /* The kernel prepared for each way. Kernels that are
                                            * gone are overwritten. */
static int last, runs[CHOICES];

static qv_status
prepare_ways(struct qv_device *dev, const struct qv_op *op, int choice, struct qv_kernel **out,
             size_t *scratch, qv_error *err)
{
    if (choice >= CHOICES)
        return qv_fail(err, QV_EUNSUPPORTED, "there are %d ways", CHOICES);
    qv_status status = qv_backend_ref.prepare(dev, op, 0, out, scratch, err);
    kernels[choice] = *out;
    return status;
}

static qv_status
run_ways(struct qv_device *dev, const struct qv_call *calls, size_t n, qv_error *err)
{
    qv_status status = qv_backend_ref.run(dev, calls, n, err);
    for (last = CHOICES - 1; last > 0 && kernels[last] != calls[0].kernel;)
        last--;
    runs[last] += (int)n;
    if (way_differs[last]) { /* y is the last operand of a gemm. */
        unsigned char *y = qv_host_pointer(calls[0].operands[4]);
        y[0] ^= 1;
    }
    return status;
}

static qv_status
elapsed_ways(struct qv_device *dev, int begin, int end, double *ms, qv_error *err)
{
    *ms = way_ms[last];
    return QV_OK;
}

static void
open_ways(qv_context *ctx, struct qv_backend *table)
{
    *table = qv_backend_ref;
    table->prepare = prepare_ways;
    table->run = run_ways;
    table->elapsed = elapsed_ways;
    *ctx = (qv_context){ .backend = table };
    const struct qv_device_options options = { .threads = 1 };
    assert_ok(qv_backend_ref.open(&options, &ctx->dev, ERR));
    qv_backend_ref.caps(ctx->dev, &ctx->caps);
    ctx->caps.has_choices = true;
    assert_ok(qv_tune_open(&ctx->tune, NULL, true, "ways", &ctx->caps, ERR));
}

static int
chosen(const char *operation, const double ms[CHOICES], const bool differs[CHOICES])
{
    qv_context ctx;
    struct qv_backend table;
    struct qv_op op;
    qv_error err = { 0 };
    int choice = -1;
    memcpy(way_ms, ms, sizeof way_ms);
    memcpy(way_differs, differs, sizeof way_differs);
    memset(runs, 0, sizeof runs);
    open_ways(&ctx, &table);
    qv_status status = qv_op_parse(operation, &op, &err);
    assert_ok(status || qv_kernel_choice(&ctx, &op, &choice, ERR));
    for (int i = 0; i < CHOICES; i++) /* A way that differs is not even timed. */
        assert_true(differs[i] ? runs[i] == 1 : runs[i] > 1);
    qv_tune_close(&ctx.tune);
    qv_backend_ref.close(ctx.dev);
    return choice;
}

static const char *const operations[] = {
    "gemm m=8 n=6 k=10 alpha=1 bias=1 dtype=f32",
    "gemm m=8 n=6 k=10 alpha=1 y=f32 dtype=bf16",
};
enum { N_OPERATIONS = sizeof operations / sizeof *operations };

TEST(the_fastest_of_those_that_agree)
{
    static const bool none[CHOICES], third[CHOICES] = { false, false, true, false },
                                     all[CHOICES] = { false, true, true, true };
    for (int i = 0; i < N_OPERATIONS; i++) {
        const double ms[CHOICES] = { 4, 2, 1, 3 };
        assert_int_equal(chosen(operations[i], ms, none), 2);
        assert_int_equal(chosen(operations[i], ms, third), 1);
        assert_int_equal(chosen(operations[i], ms, all), 0);
        assert_int_equal(chosen(operations[i], (double[]){ 1, 2, 0.999, 3 }, none), 0);
    }
}

/* Attention is not even prepared in other ways. */
TEST(attention_is_not_timed)
{
    qv_context ctx;
    struct qv_backend table;
    struct qv_op op;
    int choice = -1;
    memset(runs, 0, sizeof runs);
    memset(kernels, 0, sizeof kernels);
    open_ways(&ctx, &table);
    assert_ok(qv_op_parse(
                  "attention rows=64 segments=20 longest=4 heads=2 head_dim=4 scale=0.5 dtype=f32",
                  &op, ERR) ||
              qv_kernel_choice(&ctx, &op, &choice, ERR));
    assert_int_equal(choice, 0);
    for (int i = 0; i < CHOICES; i++)
        assert_true(!runs[i] && !kernels[i]);
    qv_tune_close(&ctx.tune);
    qv_backend_ref.close(ctx.dev);
}
