/* SPDX-License-Identifier: MIT */
/*
 * Plants faults that must be found. A backend's table is wrapped in one that spoils what it
 * computes; for each fault, one check must report it. Without a fault the same cases must pass.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkop.h"
#include "dtype.h"
#include "error.h"
#include "op_parse.h"

/* The state of the wrapped functions. There is one fault at a time. */
static struct {
    const struct qv_backend *base;
    const struct fault *fault;
    struct qv_op op;
    int runs;
} now;

struct fault {
    const char *name;
    const char *op;
    enum fill fill;
    enum check want; /* CHECK_NOTHING: the case is skipped or mistrusted, and so not ok */
    void (*after)(struct qv_device *dev, const struct qv_call *call);
    void (*spoil)(const struct qv_view *y, unsigned char *p); /* changes the output */
    bool first_slice; /* only a matrix's first rows are laid out */
    bool no_kernel;
};

/* ---- spoiling memory through the verbs ------------------------------------------------------- */

static void
put(struct qv_device *dev, struct qv_buffer at, const void *src, size_t bytes)
{
    qv_error err;
    if (now.base->upload(dev, at, src, bytes, &err)) {
        fprintf(stderr, "checkop: a fault cannot be planted: %s\n", err.text);
        exit(4);
    }
}

static void *
get(struct qv_device *dev, struct qv_buffer at, size_t bytes)
{
    qv_error err;
    void *p = must_alloc(bytes);
    if (now.base->download(dev, &(struct qv_download){ p, at, bytes }, 1, &err)) {
        fprintf(stderr, "checkop: a fault cannot be planted: %s\n", err.text);
        exit(4);
    }
    return p;
}

/* Writes a row that is in no segment. */
static void
write_gap(struct qv_device *dev, const struct qv_call *call)
{
    const int out = qv_op_output(&now.op);
    const struct qv_view l = qv_op_view(&now.op, 0), y = qv_op_view(&now.op, out);
    struct data list = { .op = now.op, .bytes = { get(dev, call->operands[0], l.bytes) } };
    void *p = get(dev, call->operands[out], y.bytes);
    int64_t row = 0;
    while (segment_of(&list, row).n)
        row++;
    qv_store(p, y.dtype, element_at(&y, row, y.cols - 1), 0);
    put(dev, call->operands[out], p, y.bytes);
    free(p);
    free(list.bytes[0]);
}

/* ---- spoiling what came out ------------------------------------------------------------------ */

static void
leave_unwritten(const struct qv_view *y, unsigned char *p)
{
    size_t element = qv_dtype_bytes(y->dtype);
    memset(p + y->bytes - element, 0xff, element);
}

static void
write_nan(const struct qv_view *y, unsigned char *p)
{
    qv_store(p, y->dtype, y->rows * y->cols / 2, NAN);
}

static void
write_past_end(struct qv_device *dev, const struct qv_call *call)
{
    int out = qv_op_output(&now.op);
    struct qv_buffer at = call->operands[out];
    at.offset += qv_op_view(&now.op, out).bytes;
    put(dev, at, "\0", 2);
}

static void
scale_column(const struct qv_view *y, unsigned char *p)
{
    for (int64_t i = 0; i < y->rows; i++)
        qv_store(p, y->dtype, element_at(y, i, y->cols / 3),
                 qv_load(p, y->dtype, element_at(y, i, y->cols / 3)) * 1.001);
}

static void
repeat_row(const struct qv_view *y, unsigned char *p)
{
    size_t row = y->bytes / (size_t)y->rows;
    memcpy(p + (size_t)(y->rows / 2) * row, p, row);
}

static void
flip_last_bit(const struct qv_view *y, unsigned char *p)
{
    /* in the last element's lowest byte, as hosts are little-endian */
    p[y->bytes - qv_dtype_bytes(y->dtype)] ^= 1;
}

static void
flip_last_bit_in_second_run(const struct qv_view *y, unsigned char *p)
{
    if (now.runs % 2 == 0)
        flip_last_bit(y, p);
}

static void
change_input(struct qv_device *dev, const struct qv_call *call)
{
    unsigned char *p = get(dev, call->operands[0], 1);
    *p ^= 1;
    put(dev, call->operands[0], p, 1);
    free(p);
}

/* ---- the table of faults --------------------------------------------------------------------- */

#define GEMM "gemm m=33 n=200 k=130 alpha=1 bias=1 residual_rows=11 dtype=f32"
#define GEMM_ZERO "gemm m=33 n=24 k=8 alpha=0 dtype=f32"
#define NORM "norm rows=17 cols=64 eps=1e-6 dtype=f32"
#define ATTENTION                                                                                  \
    "attention rows=61 segments=9 heads=2 head_dim=16 scale=0.25 q_stride=96 k_stride=96 "         \
    "v_stride=96 dtype=f32"
#define PATCHIFY "patchify rows=48 patch=4 temporal=2 channels=3 items=5 patches=96 dtype=bf16"

/* Each check has one fault, which it alone reports. */
static const struct fault faults[] = {
    { "one wrong row", PATCHIFY, FILL_EXACT, CHECK_EXACT, .spoil = repeat_row },
    { "0.1% in one column", GEMM, FILL_REAL, CHECK_TOLERANCE, .spoil = scale_column },
    { "an element left", NORM, FILL_REAL, CHECK_UNWRITTEN, .spoil = leave_unwritten },
    { "one NaN", GEMM, FILL_REAL, CHECK_NAN, .spoil = write_nan },
    { "write past the end", GEMM, FILL_REAL, CHECK_GUARD, .after = write_past_end },
    { "a row of a gap written", ATTENTION, FILL_REAL, CHECK_OTHERS, .after = write_gap },
    { "one bit by place", GEMM, FILL_REAL, CHECK_MOVED, .spoil = flip_last_bit },
    { "second run: one bit", GEMM, FILL_REAL, CHECK_REPEAT, .spoil = flip_last_bit_in_second_run },
    { "input changed", NORM, FILL_REAL, CHECK_INPUT, .after = change_input },
    { "later slices not laid out", GEMM, FILL_REAL, CHECK_LAYOUT, .first_slice = true },
    { "mistrusted: zeros expected", GEMM_ZERO, FILL_REAL, CHECK_NOTHING, .after = NULL },
    { "skipped: no kernel", GEMM, FILL_REAL, CHECK_NOTHING, .no_kernel = true },
};

static void
spoil_output(struct qv_device *dev, const struct qv_call *call)
{
    const int out = qv_op_output(&now.op);
    const struct qv_view y = qv_op_view(&now.op, out);
    void *p = get(dev, call->operands[out], y.bytes);
    now.fault->spoil(&y, p);
    put(dev, call->operands[out], p, y.bytes);
    free(p);
}

/* ---- the wrapped verbs ----------------------------------------------------------------------- */

static qv_status
run_faulty(struct qv_device *dev, const struct qv_call *calls, size_t n, qv_error *err)
{
    now.runs++;
    qv_status status = now.base->run(dev, calls, n, err);
    if (!status)
        status = now.base->sync(dev, err);
    if (!status && now.fault && now.fault->after)
        now.fault->after(dev, calls);
    if (!status && now.fault && now.fault->spoil)
        spoil_output(dev, calls);
    return status;
}

static qv_status
prepare_faulty(struct qv_device *dev, const struct qv_op *op, int choice, struct qv_kernel **out,
               size_t *scratch_bytes, qv_error *err)
{
    if (now.fault && now.fault->no_kernel)
        return qv_fail(err, QV_EUNSUPPORTED, "%s: planted", qv_op_name(op->kind));
    return now.base->prepare(dev, op, choice, out, scratch_bytes, err);
}

static qv_status
lay_out_faulty(struct qv_device *dev, const struct qv_matrix *matrix, int64_t row0, int64_t rows,
               const void *src, struct qv_buffer dst, qv_error *err)
{
    if (now.fault && now.fault->first_slice && row0 > 0)
        return QV_OK;
    return now.base->lay_out(dev, matrix, row0, rows, src, dst, err);
}

static bool
found(const struct fault *fault, const struct outcome *o)
{
    struct family family = { 0 };
    if (fault->want)
        return o->check == fault->want;
    family_add(&family, o);
    return (fault->no_kernel ? o->skipped && !family.passed : o->mistrusted && !family_ok(&family));
}

/* Returns whether the case passes without the fault, and fails as it should with it. */
static bool
is_found(const struct side *ref, const struct side *faulty, const struct fault *fault,
         const struct check_case *one)
{
    now.op = one->op;
    now.runs = 0;
    now.fault = NULL;
    bool trivial = fault->want == CHECK_NOTHING && !fault->no_kernel;
    struct outcome clean = judge(ref, faulty, one);
    bool clean_ok = !clean.check && !clean.skipped && (trivial || !clean.mistrusted);
    now.runs = 0;
    now.fault = fault;
    struct outcome spoilt = judge(ref, faulty, one);
    bool ok = clean_ok && found(fault, &spoilt);
    printf("%-28s %-10s %-6s %s: %s\n", fault->name, qv_op_name(one->op.kind),
           one->fill == FILL_EXACT ? "exact" : "real", ok ? "found" : "NOT FOUND",
           spoilt.skipped      ? "skipped"
           : spoilt.mistrusted ? "mistrusted"
                               : check_names[spoilt.check]);
    if (!clean_ok)
        printf("    without the fault: %s %s\n", check_names[clean.check], clean.text);
    if (!ok)
        printf("    %s\n", spoilt.text);
    return ok;
}

int
selftest(const struct side *ref, const struct side *base)
{
    enum { SEED = 1 }; /* with which the attention's segments have a gap */
    struct qv_backend table = *base->backend;
    table.run = run_faulty;
    table.prepare = prepare_faulty;
    table.lay_out = lay_out_faulty;
    now.base = base->backend;
    struct side faulty = { &table, base->dev, base->caps, 0 };
    int missed = 0, n = (int)(sizeof faults / sizeof faults[0]);
    for (int i = 0; i < n; i++) {
        struct check_case one = { .fill = faults[i].fill, .seed = SEED };
        qv_error err;
        if (qv_op_parse(faults[i].op, &one.op, &err) || qv_op_check(&one.op, &err)) {
            fprintf(stderr, "checkop: %s\n", err.text);
            return 1;
        }
        missed += !is_found(ref, &faulty, &faults[i], &one);
    }
    printf("selftest on %s: %d of %d faults found\n", base->backend->name, n - missed, n);
    return missed ? 1 : 0;
}
