/* SPDX-License-Identifier: MIT */
/*
 * Tests what plans of different capacities share. A row of a GEMM and a segment of an attention
 * have the same bits however many rows are next to them, if the device promises that
 * (qv_caps.same).
 */

#include "test.h"

#include "backends.h"
#include "dtype.h"
#include "engine/context.h"
#include "model/capacity.h"
#include "tiny.h"

/* One run of an operation. `inputs` holds what it reads, by operand; NULL: nothing. `weights` holds
 * the weights of several runs, on the device; NULL: run() uploads its own. */
struct run {
    qv_context *ctx;
    struct qv_op op;
    const void *inputs[QV_MAX_OPERANDS];
    struct qv_memory *weights[QV_MAX_OPERANDS];
};

static void
fill(void *p, qv_dtype dtype, int64_t n, uint32_t random)
{
    for (int64_t i = 0; i < n; i++)
        qv_store(p, dtype, i, (double)test_random(&random) / 0x1p31 - 1);
}

static void *
numbers(qv_dtype dtype, int64_t n, uint32_t seed)
{
    void *p = test_alloc((size_t)n * qv_dtype_bytes(dtype));
    fill(p, dtype, n, seed);
    return p;
}

static struct qv_memory *
upload(const struct run *r, int i)
{
    const struct qv_view v = qv_op_view(&r->op, i);
    const struct qv_backend *be = r->ctx->backend;
    struct qv_memory *memory = NULL;
    struct qv_layout layout = { v.bytes, 1 };
    const struct qv_matrix matrix = qv_matrix_of(&r->op, &v);
    if (v.role == QV_ROLE_WEIGHT)
        assert_ok(be->layout(r->ctx->dev, &matrix, &layout, ERR));
    assert_ok(be->alloc(r->ctx->dev, layout.bytes, &memory, ERR));
    const struct qv_buffer buffer = { memory, 0 };
    if (v.role == QV_ROLE_WEIGHT)
        assert_ok(be->lay_out(r->ctx->dev, &matrix, 0, v.rows, r->inputs[i], buffer, ERR));
    else if (r->inputs[i])
        assert_ok(be->upload(r->ctx->dev, buffer, r->inputs[i], v.bytes, ERR));
    return memory;
}

/* Returns the output. */
static void *
run(const struct run *r)
{
    const struct qv_backend *be = r->ctx->backend;
    const int n = qv_op_n_operands(r->op.kind), output = qv_op_output(&r->op);
    const size_t bytes = qv_op_view(&r->op, output).bytes;
    struct qv_call call = { 0 };
    size_t kernel;
    assert_ok(qv_kernel_get(r->ctx, &r->op, &kernel, ERR));
    const struct qv_kernel_entry *entry = &r->ctx->kernels.entries[kernel];
    call.kernel = entry->kernel;
    for (int i = 0; i < n; i++)
        if (qv_op_view(&r->op, i).bytes)
            call.operands[i].memory = r->weights[i] ? r->weights[i] : upload(r, i);
    if (entry->scratch_bytes)
        assert_ok(be->alloc(r->ctx->dev, entry->scratch_bytes, &call.scratch.memory, ERR));
    assert_ok(be->run(r->ctx->dev, &call, 1, ERR));
    void *y = test_alloc(bytes);
    assert_ok(be->sync(r->ctx->dev, ERR));
    assert_ok(be->download(r->ctx->dev, &(struct qv_download){ y, call.operands[output], bytes }, 1,
                           ERR));
    for (int i = 0; i < n; i++)
        if (call.operands[i].memory && !r->weights[i])
            be->free(r->ctx->dev, call.operands[i].memory);
    if (call.scratch.memory)
        be->free(r->ctx->dev, call.scratch.memory);
    qv_kernel_put(r->ctx, kernel);
    return y;
}

/* ---- GEMMs ----------------------------------------------------------------------------------- */

static const struct {
    int64_t n, k;
    int act;
    bool residual;
    bool large; /* The shape belongs to a real tower. Backends that are kept simple do not run it.
                 * What cuBLASLt does for other shapes was never observed. */
} gemms[] = {
    { 48, 160, QV_ACT_NONE, false, false },        { 20, 1000, QV_ACT_GELU_ERF, false, false },
    { 1024, 1024, QV_ACT_NONE, false, true },      { 1024, 4096, QV_ACT_NONE, false, true },
    { 4096, 1024, QV_ACT_GELU_TANH, false, true }, { 1024, 1536, QV_ACT_NONE, false, true },
    { 4096, 4096, QV_ACT_GELU_ERF, false, true },  { 2560, 4096, QV_ACT_NONE, false, true },
    { 3584, 5120, QV_ACT_NONE, false, true },      { 1280, 3456, QV_ACT_NONE, true, true },
};

static const struct qv_same_bits *
said(const qv_context *ctx, qv_dtype dtype)
{
    return dtype == QV_F32 ? &ctx->caps.same_f32 : &ctx->caps.same_bf16;
}

/* The next larger number of rows that a bucket gives a GEMM, of patches or of tokens, up to a
 * pack's. */
static int64_t
next_rows(const qv_context *ctx, int64_t m)
{
    enum { MERGE = 2, AREA = MERGE * MERGE };
    int64_t least = qv_capacity_bucket(&ctx->caps, MERGE, 1);
    if (m < least)
        return qv_capacity_bucket(&ctx->caps, MERGE, AREA * m + 1) / AREA;
    return qv_capacity_bucket(&ctx->caps, MERGE, m + 1);
}

/* `every`: 1 for all numbers of rows, 4 for each fourth. */
static void
check_gemm(qv_context *ctx, size_t i, qv_dtype dtype, int64_t most, int64_t every)
{
    const int64_t n = gemms[i].n, k = gemms[i].k, from = said(ctx, dtype)->gemm_rows;
    if (from == QV_NOT_SEEN) /* Nothing is promised, so nothing can be wrong. */
        return;
    void *x = numbers(dtype, most * k, 1), *w = numbers(dtype, n * k, 2);
    void *bias = numbers(dtype, n, 3), *all = NULL;
    void *residual = gemms[i].residual ? numbers(dtype, most * n, 4) : NULL;
    struct run r = { .ctx = ctx, .op = { .kind = QV_OP_gemm }, .inputs = { x, w, bias, residual } };
    r.op.u.gemm = (struct qv_op_gemm){ .m = most,
                                       .n = n,
                                       .k = k,
                                       .alpha = 1,
                                       .bias = 1,
                                       .act = gemms[i].act,
                                       .residual_rows = residual ? most : 0 };
    qv_op_set_dtype(&r.op, dtype);
    for (int j = 0; j < QV_MAX_OPERANDS; j++)
        if (r.inputs[j] && qv_op_view(&r.op, j).role == QV_ROLE_WEIGHT)
            r.weights[j] = upload(&r, j);
    all = run(&r);
    int64_t turn = 0;
    for (int64_t m = next_rows(ctx, 0); m < most; m = next_rows(ctx, m)) {
        if (turn++ % every) /* one thread takes long */
            continue;
        r.op.u.gemm.m = m;
        r.op.u.gemm.residual_rows = residual ? m : 0;
        void *y = run(&r);
        bool same = !memcmp(all, y, (size_t)(m * n) * qv_dtype_bytes(dtype));
        if (same)
            continue;
        const char *words = "other bits in a GEMM of";
        if (m < from)
            print_message("%s, n=%lld, k=%lld: %s %lld rows than of %lld, as is said\n",
                          qv_dtype_name(dtype), (long long)n, (long long)k, words, (long long)m,
                          (long long)most);
        else
            fail_msg("%s, %s, n=%lld, k=%lld: %s %lld rows than of %lld", ctx->backend->name,
                     qv_dtype_name(dtype), (long long)n, (long long)k, words, (long long)m,
                     (long long)most);
    }
    for (int j = 0; j < QV_MAX_OPERANDS; j++)
        if (r.weights[j])
            ctx->backend->free(ctx->dev, r.weights[j]);
}

/* ---- attention ------------------------------------------------------------------------------- */

enum { HEADS = 2, SEGMENT = 84, SEGMENTS = 3, ROWS = 1024 };

struct qkv {
    void *of[3]; /* q, k and v [ROWS, HEADS, head_dim]. */
};

/* The list of the first n of SEGMENTS segments, with room for `room` segments. */
static int32_t *
list_of(int64_t n, int64_t room, int64_t width)
{
    int32_t *list = test_ends(calloc((size_t)(QV_SEGMENT_LISTS * (room + 1)), sizeof *list), free);
    for (int64_t i = 0; i <= room; i++) {
        int64_t first = (i < n ? i : n) * SEGMENT;
        const int64_t values[QV_SEGMENT_LISTS] = { first, i < n ? SEGMENT : 0, first * width,
                                                   first * width };
        for (int j = 0; j < QV_SEGMENT_LISTS; j++)
            list[j * (room + 1) + i] = (int32_t)values[j];
    }
    return list;
}

/* Runs n segments in a capacity of `rows` rows and `room` segments; room 0: dense. */
static void *
attend(qv_context *ctx, qv_dtype dtype, int64_t head_dim, const struct qkv *qkv, int64_t n,
       int64_t rows, int64_t room)
{
    int32_t *list = list_of(n, room, HEADS * head_dim);
    struct run r = { .ctx = ctx, .op = { .kind = QV_OP_attention } };
    r.op.u.attention = (struct qv_op_attention){ .rows = rows,
                                                 .segments = room ? room : n,
                                                 .segment_rows = room ? 0 : SEGMENT,
                                                 .heads = HEADS,
                                                 .head_dim = head_dim,
                                                 .scale = 0.25 };
    qv_op_set_dtype(&r.op, dtype);
    r.inputs[0] = list;
    for (int i = 0; i < 3; i++)
        r.inputs[1 + i] = qkv->of[i];
    void *y = run(&r);
    return y;
}

static void
check_attention(qv_context *ctx, int64_t head_dim, qv_dtype dtype)
{
    static const struct {
        int64_t n, rows, room;
    } capacities[] = { { 3, 252, 3 },   { 3, 512, 8 },    { 1, 96, 1 },  { 2, 512, 40 },
                       { 3, ROWS, 64 }, { 1, ROWS, 300 }, { 3, 252, 0 }, { 1, 84, 0 } };
    const int64_t width = HEADS * head_dim, *agree = said(ctx, dtype)->head_dims;
    struct qkv qkv;
    for (int i = 0; i < 3; i++)
        qkv.of[i] = numbers(dtype, ROWS * width, (uint32_t)i);
    void *all = attend(ctx, dtype, head_dim, &qkv, SEGMENTS, ROWS, SEGMENTS);
    for (size_t i = 0; i < sizeof capacities / sizeof *capacities; i++) {
        int64_t n = capacities[i].n, rows = capacities[i].rows, room = capacities[i].room;
        void *y = attend(ctx, dtype, head_dim, &qkv, n, rows, room);
        bool same = !memcmp(all, y, (size_t)(n * SEGMENT * width) * qv_dtype_bytes(dtype));
        if (same)
            continue;
        if (room || !agree[1] || (agree[0] <= head_dim && head_dim <= agree[1]))
            fail_msg("%s, %s, heads of %lld: other bits for %lld segments in %lld rows, room %lld",
                     ctx->backend->name, qv_dtype_name(dtype), (long long)head_dim, (long long)n,
                     (long long)rows, (long long)room);
        print_message("%s, heads of %lld: dense has other bits than ragged, as is said\n",
                      qv_dtype_name(dtype), (long long)head_dim);
    }
}

/* ---------------------------------------------------------------------------------------------- */

static bool
is_simple(const char *backend)
{
    return !strcmp(backend, "ref") || !strcmp(backend, "metal");
}

/* The CPU is also tried with three threads, among which the rows are divided. */
static void
check_backend(const char *name, int threads)
{
    qv_context *ctx =
        tiny_context_with(&(qv_context_options){ .backend = name, .threads = threads });
    for (int type = 0; type < N_TEST_DTYPES; type++) {
        qv_dtype dtype = test_dtypes[type];
        if (!dtype_is_here(name, dtype))
            continue;
        for (size_t i = 0; i < sizeof gemms / sizeof *gemms; i++)
            if (gemms[i].large ? !is_simple(name) : strcmp(name, "cuda") != 0)
                check_gemm(ctx, i, dtype, is_simple(name) ? 256 : ctx->caps.chunk_rows,
                           threads == 1 && !strcmp(name, "cpu") ? 4 : 1);
        for (int64_t head_dim = 64; head_dim <= 80; head_dim += 8)
            check_attention(ctx, head_dim, dtype);
    }
}

TEST(capacities_agree_as_is_said)
{
    EACH_BACKEND (b)
        for (int threads = 1; threads <= (strcmp(*b, "cpu") ? 1 : 3); threads += 2)
            check_backend(*b, threads);
}
