/* SPDX-License-Identifier: MIT */
/*
 * Faults that must be found. A backend's table is wrapped in one that spoils what it computes;
 * each fault has the check that must report it. Without a fault the same cases must pass.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkop.h"
#include "dtype.h"
#include "error.h"

/* What the wrapped verbs need to know; one fault at a time. */
static struct {
    const struct qv_backend *base;
    const struct fault *fault;
    struct qv_op op;
    size_t scratch_bytes;
    int runs;
} now;

enum bad_pack { PACK_RIGHT, PACK_FIRST_SLICE, PACK_WITHOUT_LAST_TAP };
enum bad_kernel {
    KERNEL_RIGHT,
    KERNEL_NONE,
    KERNEL_PADDING, /* a column from the other side */
    KERNEL_OVERWRITES,
    KERNEL_WITHOUT_BIAS
};

struct fault {
    const char *name;
    const char *op;
    enum fill fill;
    enum check want; /* CHECK_NOTHING: skipped or mistrusted, and so not ok */
    void (*before)(struct qv_device *dev, const struct qv_call *call);
    void (*after)(struct qv_device *dev, const struct qv_call *call);
    enum bad_pack bad_pack;
    enum bad_kernel bad_kernel;
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
    if (now.base->download(dev, p, at, bytes, &err)) {
        fprintf(stderr, "checkop: a fault cannot be planted: %s\n", err.text);
        exit(4);
    }
    return p;
}

/* The output, downloaded; put_output gives it back. */
static void *
get_output(struct qv_device *dev, const struct qv_call *call, struct qv_operand *y)
{
    int out = output_of(&now.op);
    *y = qv_op_operand(&now.op, out);
    return get(dev, call->operands[out], y->bytes);
}

static void
put_output(struct qv_device *dev, const struct qv_call *call, void *p)
{
    int out = output_of(&now.op);
    put(dev, call->operands[out], p, qv_op_operand(&now.op, out).bytes);
    free(p);
}

static void *kept; /* x, while a run sees another one */

static void
hide_last_k(struct qv_device *dev, const struct qv_call *call)
{
    struct qv_operand x = qv_op_operand(&now.op, 0);
    kept = get(dev, call->operands[0], x.bytes);
    void *p = get(dev, call->operands[0], x.bytes);
    for (int64_t i = 0; i < x.rows; i++)
        qv_store(p, x.dtype, i * x.cols + x.cols - 1, 0);
    put(dev, call->operands[0], p, x.bytes);
    free(p);
}

static void
show_last_k(struct qv_device *dev, const struct qv_call *call)
{
    put(dev, call->operands[0], kept, qv_op_operand(&now.op, 0).bytes);
    free(kept);
}

static void
leave_unwritten(struct qv_device *dev, const struct qv_call *call)
{
    struct qv_operand y;
    unsigned char *p = get_output(dev, call, &y);
    size_t element = qv_dtype_bytes(y.dtype);
    memset(p + y.bytes - element, 0xff, element);
    put_output(dev, call, p);
}

static void
spoil_middle(struct qv_device *dev, const struct qv_call *call, double value)
{
    struct qv_operand y;
    void *p = get_output(dev, call, &y);
    qv_store(p, y.dtype, y.rows * y.cols / 2, value);
    put_output(dev, call, p);
}

static void
write_nan(struct qv_device *dev, const struct qv_call *call)
{
    spoil_middle(dev, call, NAN);
}

static void
write_infinity(struct qv_device *dev, const struct qv_call *call)
{
    spoil_middle(dev, call, INFINITY);
}

static void
write_past_end(struct qv_device *dev, const struct qv_call *call)
{
    int out = output_of(&now.op);
    struct qv_buffer at = call->operands[out];
    at.offset += qv_op_operand(&now.op, out).bytes;
    put(dev, at, "\0", 2);
}

static void
write_before_start(struct qv_device *dev, const struct qv_call *call)
{
    struct qv_buffer at = call->operands[output_of(&now.op)];
    at.offset -= 1;
    put(dev, at, "\0", 1);
}

static void
write_past_scratch(struct qv_device *dev, const struct qv_call *call)
{
    struct qv_buffer at = call->scratch;
    if (!at.memory)
        at = call->operands[output_of(&now.op)];
    at.offset +=
        at.memory == call->scratch.memory ? now.scratch_bytes : qv_op_operand(&now.op, 1).bytes;
    put(dev, at, "\0", 1);
}

static void
scale_column(struct qv_device *dev, const struct qv_call *call)
{
    struct qv_operand y;
    void *p = get_output(dev, call, &y);
    for (int64_t i = 0; i < y.rows; i++)
        qv_store(p, y.dtype, i * y.cols + y.cols / 3,
                 qv_load(p, y.dtype, i * y.cols + y.cols / 3) * 1.001);
    put_output(dev, call, p);
}

static void
repeat_row(struct qv_device *dev, const struct qv_call *call)
{
    struct qv_operand y;
    char *p = get_output(dev, call, &y);
    size_t row = y.bytes / (size_t)y.rows;
    memcpy(p + (size_t)(y.rows / 2) * row, p, row);
    put_output(dev, call, p);
}

static void
write_zeros(struct qv_device *dev, const struct qv_call *call)
{
    struct qv_operand y;
    void *p = get_output(dev, call, &y);
    memset(p, 0, y.bytes);
    put_output(dev, call, p);
}

static void
flip_last_bit(struct qv_device *dev, const struct qv_call *call)
{
    struct qv_operand y;
    unsigned char *p = get_output(dev, call, &y);
    p[y.bytes - qv_dtype_bytes(y.dtype)] ^= 1; /* of the last element; hosts are little-endian */
    put_output(dev, call, p);
}

static void
flip_last_bit_in_second_run(struct qv_device *dev, const struct qv_call *call)
{
    if (now.runs % 2 == 0)
        flip_last_bit(dev, call);
}

static void
change_operand(struct qv_device *dev, const struct qv_call *call, int i)
{
    unsigned char *p = get(dev, call->operands[i], 1);
    *p ^= 1;
    put(dev, call->operands[i], p, 1);
    free(p);
}

static void
change_input(struct qv_device *dev, const struct qv_call *call)
{
    change_operand(dev, call, 0);
}

static void
change_weight(struct qv_device *dev, const struct qv_call *call)
{
    change_operand(dev, call, 1);
}

static void
truncate_to_bf16(struct qv_device *dev, const struct qv_call *call)
{
    struct qv_operand x = qv_op_operand(&now.op, 0), y;
    float *src = get(dev, call->operands[0], x.bytes);
    qv_bf16 *p = get_output(dev, call, &y);
    for (int64_t i = 0; i < y.cols; i++) {
        uint32_t u;
        memcpy(&u, &src[i], 4);
        p[i] = (qv_bf16)(u >> 16);
    }
    free(src);
    put_output(dev, call, p);
}

static void
exchange_columns(struct qv_device *dev, const struct qv_call *call)
{
    struct qv_operand y;
    void *p = get_output(dev, call, &y);
    for (int64_t i = 0; i < y.rows; i++) {
        int64_t a = i * y.cols + y.cols / 3, b = a + 1;
        double kept_a = qv_load(p, y.dtype, a);
        qv_store(p, y.dtype, a, qv_load(p, y.dtype, b));
        qv_store(p, y.dtype, b, kept_a);
    }
    put_output(dev, call, p);
}

/* ---- the table of faults --------------------------------------------------------------------- */

#define GEMM_F32 "gemm m=33 n=200 k=130 alpha=1 bias=1 addend_rows=11 dtype=f32"
#define GEMM_BF16 "gemm m=33 n=200 k=130 alpha=0.5 addend_rows=33 dtype=bf16"
#define GEMM_GELU "gemm m=65 n=72 k=33 alpha=1 bias=1 act=gelu_tanh dtype=f32"
#define GEMM_ZERO "gemm m=33 n=24 k=8 alpha=0 dtype=f32"
#define NORM "norm rows=17 cols=64 eps=1e-6 dtype=f32"
#define ROPE "rope rows=12 heads=2 head_dim=16 period=4 dtype=f32"
#define ATTENTION "attention batch=2 seq=33 heads=2 head_dim=16 scale=0.25 dtype=f32"
#define ATTENTION_BF16 "attention batch=2 seq=33 heads=2 head_dim=16 scale=0.25 dtype=bf16"
#define CONVERT "convert n=1000 from=f32 dtype=bf16"
#define TAPS "taps rows=12 cols=33 table_rows=49 dtype=bf16"
#define UNFOLD                                                                                     \
    "unfold n=2 d=4 h=6 w=9 c=5 kd=2 kh=3 kw=3 sd=2 sh=1 sw=2 channels_first=1 dtype=bf16"
#define CONV                                                                                       \
    "conv n=2 d=4 h=5 w=7 c=6 o=9 kd=3 kh=3 kw=3 sd=1 sh=2 sw=1 dd=1 dh=1 dw=1 top=1 bottom=1 "    \
    "left=2 right=1 groups=3 x_depth=5 "
#define CONV_F32 CONV "alpha=0.5 bias=1 addend_rows=12 dtype=f32"
#define CONV_GELU CONV "alpha=1 bias=1 act=gelu_tanh dtype=bf16"
#define CONV_ADD CONV "alpha=1 sums=2 dtype=bf16"
#define FINISH "finish rows=24 cols=33 alpha=0.5 bias=1 addend_rows=8 dtype=bf16"
#define FINISH_GELU "finish rows=24 cols=33 alpha=1 bias=1 act=gelu_erf dtype=f32"
#define ROWS                                                                                       \
    "rows pairs=2 grid_h=4 grid_w=6 patch=4 temporal=2 merge=2 channels=3 scale0=2 scale1=2 "      \
    "scale2=2 shift0=-255 shift1=-255 shift2=-255 dtype=bf16"

static const struct fault faults[] = {
    { "last k dropped", GEMM_F32, FILL_EXACT, CHECK_EXACT, hide_last_k, show_last_k, 0, 0 },
    { "last k dropped", GEMM_F32, FILL_REAL, CHECK_TOLERANCE, hide_last_k, show_last_k, 0, 0 },
    { "last k dropped", GEMM_BF16, FILL_EXACT, CHECK_EXACT, hide_last_k, show_last_k, 0, 0 },
    { "last k dropped", GEMM_BF16, FILL_REAL, CHECK_TOLERANCE, hide_last_k, show_last_k, 0, 0 },
    { "last k dropped", GEMM_GELU, FILL_REAL, CHECK_TOLERANCE, hide_last_k, show_last_k, 0, 0 },
    { "an element left", GEMM_BF16, FILL_EXACT, CHECK_UNWRITTEN, NULL, leave_unwritten, 0, 0 },
    { "an element left", NORM, FILL_REAL, CHECK_UNWRITTEN, NULL, leave_unwritten, 0, 0 },
    { "an element left", ROWS, FILL_EXACT, CHECK_UNWRITTEN, NULL, leave_unwritten, 0, 0 },
    { "one NaN", GEMM_F32, FILL_REAL, CHECK_NAN, NULL, write_nan, 0, 0 },
    { "one NaN", TAPS, FILL_REAL, CHECK_NAN, NULL, write_nan, 0, 0 },
    { "one infinity", ATTENTION, FILL_REAL, CHECK_NAN, NULL, write_infinity, 0, 0 },
    { "write past the end", GEMM_BF16, FILL_REAL, CHECK_GUARD, NULL, write_past_end, 0, 0 },
    { "write past the end", CONVERT, FILL_EXACT, CHECK_GUARD, NULL, write_past_end, 0, 0 },
    { "write before the start", NORM, FILL_REAL, CHECK_GUARD, NULL, write_before_start, 0, 0 },
    { "scratch overrun", ATTENTION, FILL_REAL, CHECK_GUARD, NULL, write_past_scratch, 0, 0 },
    { "0.1% in one column", GEMM_F32, FILL_REAL, CHECK_TOLERANCE, NULL, scale_column, 0, 0 },
    { "0.1% in one column", GEMM_GELU, FILL_REAL, CHECK_TOLERANCE, NULL, scale_column, 0, 0 },
    { "0.1% in one column", NORM, FILL_REAL, CHECK_TOLERANCE, NULL, scale_column, 0, 0 },
    { "0.1% in one column", ATTENTION, FILL_REAL, CHECK_TOLERANCE, NULL, scale_column, 0, 0 },
    { "one wrong row", GEMM_BF16, FILL_EXACT, CHECK_EXACT, NULL, repeat_row, 0, 0 },
    { "one wrong row", GEMM_BF16, FILL_REAL, CHECK_TOLERANCE, NULL, repeat_row, 0, 0 },
    { "one wrong row", ATTENTION_BF16, FILL_REAL, CHECK_TOLERANCE, NULL, repeat_row, 0, 0 },
    { "one wrong row", ROWS, FILL_EXACT, CHECK_EXACT, NULL, repeat_row, 0, 0 },
    { "all zeros", TAPS, FILL_REAL, CHECK_TOLERANCE, NULL, write_zeros, 0, 0 },
    { "one bit of v", ROPE, FILL_REAL, CHECK_TOLERANCE, NULL, flip_last_bit, 0, 0 },
    { "bf16 truncated", CONVERT, FILL_EXACT, CHECK_EXACT, NULL, truncate_to_bf16, 0, 0 },
    { "second run: one bit", GEMM_F32, FILL_REAL, CHECK_REPEAT, NULL, flip_last_bit_in_second_run,
      0, 0 },
    { "input changed", NORM, FILL_REAL, CHECK_INPUT, NULL, change_input, 0, 0 },
    { "cosines changed", ROPE, FILL_EXACT, CHECK_INPUT, NULL, change_input, 0, 0 },
    { "weight changed", GEMM_F32, FILL_REAL, CHECK_INPUT, NULL, change_weight, 0, 0 },
    { "later slices not packed", GEMM_F32, FILL_REAL, CHECK_PACK, NULL, NULL, PACK_FIRST_SLICE, 0 },
    { "last tap dropped", CONV_F32, FILL_EXACT, CHECK_EXACT, NULL, NULL, PACK_WITHOUT_LAST_TAP, 0 },
    { "last tap dropped", CONV_F32, FILL_REAL, CHECK_TOLERANCE, NULL, NULL, PACK_WITHOUT_LAST_TAP,
      0 },
    { "last tap dropped", CONV_GELU, FILL_REAL, CHECK_TOLERANCE, NULL, NULL, PACK_WITHOUT_LAST_TAP,
      0 },
    { "padding misplaced", CONV_F32, FILL_EXACT, CHECK_EXACT, NULL, NULL, 0, KERNEL_PADDING },
    { "padding misplaced", CONV_GELU, FILL_REAL, CHECK_TOLERANCE, NULL, NULL, 0, KERNEL_PADDING },
    { "sums overwrite", CONV_ADD, FILL_EXACT, CHECK_EXACT, NULL, NULL, 0, KERNEL_OVERWRITES },
    { "sums overwrite", CONV_ADD, FILL_REAL, CHECK_TOLERANCE, NULL, NULL, 0, KERNEL_OVERWRITES },
    { "an element left", CONV_GELU, FILL_REAL, CHECK_UNWRITTEN, NULL, leave_unwritten, 0, 0 },
    { "0.1% in one column", CONV_F32, FILL_REAL, CHECK_TOLERANCE, NULL, scale_column, 0, 0 },
    { "columns exchanged", UNFOLD, FILL_EXACT, CHECK_EXACT, NULL, exchange_columns, 0, 0 },
    { "bias left out", FINISH, FILL_EXACT, CHECK_EXACT, NULL, NULL, 0, KERNEL_WITHOUT_BIAS },
    { "bias left out", FINISH_GELU, FILL_REAL, CHECK_TOLERANCE, NULL, NULL, 0,
      KERNEL_WITHOUT_BIAS },
    { "0.1% in one column", FINISH_GELU, FILL_REAL, CHECK_TOLERANCE, NULL, scale_column, 0, 0 },
    { "mistrusted: zeros expected", GEMM_ZERO, FILL_REAL, CHECK_NOTHING, NULL, NULL, 0, 0 },
    { "skipped: no kernel", GEMM_F32, FILL_REAL, CHECK_NOTHING, NULL, NULL, 0, KERNEL_NONE },
};

/* ---- the wrapped verbs ----------------------------------------------------------------------- */

static qv_status
run_faulty(struct qv_device *dev, const struct qv_call *calls, size_t n, qv_error *err)
{
    now.runs++;
    if (now.fault && now.fault->before)
        now.fault->before(dev, calls);
    qv_status status = now.base->run(dev, calls, n, err);
    if (!status)
        status = now.base->sync(dev, err);
    if (!status && now.fault && now.fault->after)
        now.fault->after(dev, calls);
    return status;
}

static qv_status
prepare_faulty(struct qv_device *dev, const struct qv_op *op, int choice, struct qv_kernel **out,
               size_t *scratch_bytes, qv_error *err)
{
    struct qv_op bad = *op;
    switch (now.fault ? now.fault->bad_kernel : KERNEL_RIGHT) {
    case KERNEL_NONE: return qv_fail(err, QV_EUNSUPPORTED, "%s: planted", qv_op_name(op->kind));
    case KERNEL_PADDING:
        bad.u.conv.left--;
        bad.u.conv.right++;
        break;
    case KERNEL_OVERWRITES: bad.u.conv.sums = 1; break;
    case KERNEL_WITHOUT_BIAS: bad.u.finish.bias = 0; break;
    case KERNEL_RIGHT: break;
    }
    qv_status status = now.base->prepare(dev, &bad, choice, out, scratch_bytes, err);
    now.scratch_bytes = *scratch_bytes;
    return status;
}

static qv_status
pack_faulty(struct qv_device *dev, const struct qv_matrix *matrix, int64_t row0, int64_t rows,
            const void *src, struct qv_buffer dst, qv_error *err)
{
    enum bad_pack bad = now.fault ? now.fault->bad_pack : PACK_RIGHT;
    if (bad == PACK_FIRST_SLICE && row0 > 0)
        return QV_OK;
    if (bad != PACK_WITHOUT_LAST_TAP)
        return now.base->pack(dev, matrix, row0, rows, src, dst, err);
    const struct qv_op_conv *op = &matrix->conv->u.conv;
    int64_t taps = op->kd * op->kh * op->kw, n = rows * matrix->k;
    size_t bytes = (size_t)n * qv_dtype_bytes(matrix->dtype);
    void *w = must_alloc(bytes);
    memcpy(w, src, bytes);
    for (int64_t i = taps - 1; i < n; i += taps)
        qv_store(w, matrix->dtype, i, 0);
    qv_status status = now.base->pack(dev, matrix, row0, rows, w, dst, err);
    free(w);
    return status;
}

static bool
found(const struct fault *fault, const struct outcome *o)
{
    struct family family = { 0 };
    if (fault->want)
        return o->check == fault->want;
    family_add(&family, o);
    return (fault->bad_kernel == KERNEL_NONE ? o->skipped && !family.passed
                                             : o->mistrusted && !family_ok(&family));
}

static bool
try_fault(const struct side *ref, const struct side *faulty, const struct fault *fault,
          uint64_t seed)
{
    struct check_case one = { .fill = fault->fill, .seed = seed };
    qv_error err;
    if (qv_op_parse(fault->op, &one.op, &err) || qv_op_check(&one.op, &err)) {
        fprintf(stderr, "checkop: %s\n", err.text);
        return false;
    }
    now.op = one.op;
    now.runs = 0;
    now.fault = NULL;
    bool trivial = fault->want == CHECK_NOTHING && fault->bad_kernel != KERNEL_NONE;
    struct outcome clean = judge(ref, faulty, &one);
    bool clean_ok = !clean.check && !clean.skipped && (trivial || !clean.mistrusted);
    now.runs = 0;
    now.fault = fault;
    struct outcome spoilt = judge(ref, faulty, &one);
    bool ok = clean_ok && found(fault, &spoilt);
    printf("%-28s %-10s %-6s %s: %s\n", fault->name, qv_op_name(one.op.kind),
           one.fill == FILL_EXACT ? "exact" : "real", ok ? "found" : "NOT FOUND",
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
selftest(const struct side *ref, const struct side *base, uint64_t seed)
{
    struct qv_backend table = *base->backend;
    table.run = run_faulty;
    table.prepare = prepare_faulty;
    table.pack = pack_faulty;
    now.base = base->backend;
    struct side faulty = { &table, base->dev, base->caps, 0 };
    int missed = 0, n = (int)(sizeof faults / sizeof faults[0]);
    for (int i = 0; i < n; i++)
        missed += !try_fault(ref, &faulty, &faults[i], seed);
    printf("selftest on %s: %d of %d faults found\n", base->backend->name, n - missed, n);
    return missed ? 1 : 0;
}
