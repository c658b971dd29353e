/* SPDX-License-Identifier: MIT */
/*
 * gemm_few. Every code is read from memory once for all rows, and unpacked once per 16 of them.
 * Within a group the codes themselves, which are exact even in bf16, are multiplied and summed;
 * then
 *     sum += scale * (x . codes) + offset * (sum of x)
 * so values of w are never rounded. A panel of 16 columns keeps a group's sums in registers for all
 * rows that are multiplied at once.
 */
#include "cpu.h"
#include "tiles.h"
#include "vectors.h"

/* A thread computes interleaved panels, whose sums go through the epilogue together. */
enum { FEW_COLS = CODES_PANELS * CODES_COLS };

/* ---- a panel --------------------------------------------------------------------------------- */

/* Adds a group of a panel to its sums. The products of a row go to `chains` sums in turn, because
 * with few rows each addition would wait for the previous one. */
INLINED_CPU void
add_group(const struct codes_cpu *w, const char *group, const float *x, const float *x_sums,
          float *out, const int64_t bits, const int64_t m, const int64_t chains)
{
    const char *line = group + 2 * w->factors, *end = group + w->group_bytes;
    floats_cpu chain[QV_FEW_AT_ONCE] = { { 0 } }, factor[2];
    for (; line < end; line += LINE_BYTES) {
        fetch_ahead_cpu(line);
        for (int64_t pair = 0; pair < 16 / bits; pair++, x += 2 * m) {
            const int64_t c = pair % chains * m;
            floats_cpu low, high;
            codes_cpu(&low, &high, line, pair, bits);
            for (int64_t i = 0; i < m; i++) {
                chain[c + i] += low * x[i];
                chain[c + i] += high * x[m + i];
            }
        }
    }
    qv_codes_factors_cpu(w, group, (float *)factor);
    for (int64_t i = 0; i < m; i++, out += CODES_COLS) {
        floats_cpu sum;
        for (int64_t c = 1; c < chains; c++)
            chain[i] += chain[c * m + i];
        memcpy(&sum, out, sizeof sum);
        sum += chain[i] * factor[0];
        sum += factor[1] * x_sums[i];
        memcpy(out, &sum, sizeof sum);
    }
}

INLINED_CPU void
panel_sums(const struct few_cpu *f, const char *codes, int64_t panels, float *out,
           const int64_t bits, const int64_t m, const int64_t chains)
{
    const struct codes_cpu *w = &f->w;
    const float *x = f->x;
    for (int64_t g = 0; g < w->k / w->groups.group; g++, x += w->groups.group * m)
        for (int64_t p = 0; p < panels; p++, codes += w->group_bytes)
            add_group(w, codes, x, f->sums + g * m, out + p * m * CODES_COLS, bits, m, chains);
}

#define CHAINS(m) ((m) < 3 ? 4 : (m) < 5 ? 2 : 1)
#define PANEL_VARIANT(name, TARGET)                                                                \
    TARGET static void name(const struct few_cpu *f, const char *codes, int64_t panels,            \
                            float *sums)                                                           \
    {                                                                                              \
        switch (f->m) {                                                                            \
            FEW_CASES(CHAINS)                                                                      \
        }                                                                                          \
    }
PANEL_VARIANT(panel_any, )
PANEL_VARIANT(panel_avx2, TARGET_AVX2_CPU)
PANEL_VARIANT(panel_avx512, TARGET_AVX512_CPU)

enum { AMX = ISA_AVX512_BF16_CPU + 1 };
static const struct few_variant_cpu variants[] = {
    [ISA_ANY_CPU] = { "plain C", 1, panel_any },
    [ISA_AVX2_CPU] = { "AVX2", 1, panel_avx2 },
    [ISA_AVX512_CPU] = { "AVX-512", 1, panel_avx512 },
#if defined(__x86_64__) && defined(__GNUC__)
    [ISA_AVX512_BF16_CPU] = { "AVX-512 BF16", 2, qv_few_avx512_cpu },
    [AMX] = { "AMX", 32, qv_few_amx_cpu },
#endif
};

/* ---- verbs ----------------------------------------------------------------------------------- */

static const struct few_variant_cpu *
variant_for(int64_t x_dtype)
{
    int variant = (int)qv_isa_cpu();
    if (variant == ISA_AVX512_BF16_CPU)
        variant = x_dtype != QV_BF16 ? ISA_AVX512_CPU : tiles_allowed() ? AMX : variant;
    return &variants[variant];
}

/* Returns the bytes of this many values of x as they are laid out. */
static size_t
x_bytes(const struct few_cpu *f, int64_t values)
{
    return (size_t)values * (f->variant->run > 1 ? sizeof(qv_bf16) : sizeof(float));
}

static qv_status
prepare_gemm_few(struct qv_device_cpu *dev, struct qv_kernel *kernel, size_t *scratch_bytes,
                 qv_error *err)
{
    const struct qv_op_gemm_few *op = &kernel->op.u.gemm_few;
    const struct qv_groups groups = { op->w_bits, op->w_group, (qv_dtype)op->w_dtype };
    struct few_cpu *f = &kernel->few;
    (void)dev, (void)err;
    *f = (struct few_cpu){ .w = qv_codes_cpu(op->n, op->k, &groups),
                           .m = op->m,
                           .variant = variant_for(op->x_dtype) };
    *scratch_bytes = qv_aligned(x_bytes(f, op->k * op->m)) +
                     qv_aligned((size_t)(op->k / op->w_group * op->m) * sizeof(float));
    return QV_OK;
}

static void
describe_gemm_few(const struct qv_kernel *kernel, char *text, size_t size)
{
    snprintf(text, size, "%lld bits read once, %s", (long long)kernel->few.w.groups.bits,
             kernel->few.variant->name);
}

/* Copies a group of row i of x, of `element` bytes per value, to its runs [group / run, m]. */
INLINED_CPU void
lay_row(char *to, const void *row, int64_t n, int64_t m, int64_t i, const int64_t run,
        const size_t element)
{
    const size_t bytes = (size_t)run * element;
    for (int64_t j = 0; j < n / run; j++)
        memcpy(to + (size_t)(j * m + i) * bytes, (const char *)row + (size_t)j * bytes, bytes);
}

/* Sums in 16 lanes, because in one chain each addition would wait for the previous one. */
static float
sum_of(const float *row, int64_t n)
{
    floats_cpu lanes = { 0 }, next;
    for (int64_t j = 0; j < n; j += 16) {
        memcpy(&next, row + j, sizeof next);
        lanes += next;
    }
    float sum = 0;
    for (int j = 0; j < 16; j++)
        sum += lanes[j];
    return sum;
}

/* Returns f with only the rows from `row` on that are multiplied at once. Rows are divided evenly,
 * so that all use equally many chains and a row's bits do not depend on its place. */
static struct few_cpu
rows_from(const struct few_cpu *f, int64_t row)
{
    struct few_cpu some = *f;
    const int64_t left = f->m - row, times = qv_ceil_div(left, QV_FEW_AT_ONCE);
    some.m = qv_ceil_div(left, times);
    some.x = (char *)f->x + x_bytes(f, f->w.k * row);
    some.sums = f->sums + f->w.k / f->w.groups.group * row;
    return some;
}

/* Lays out one group of the rows of x, and its sums. */
static void
lay_group(const struct few_cpu *f, const void *x, int64_t dtype, int64_t group)
{
    const int64_t n = f->w.groups.group, m = f->m;
    float row[128];
    char *const to = (char *)f->x + x_bytes(f, group * n * m);
    for (int64_t i = 0; i < m; i++) {
        const void *from = at_cpu(x, dtype, i * f->w.k + group * n);
        qv_lanes_load_cpu(row, from, dtype, n);
        f->sums[group * m + i] = sum_of(row, n);
        switch (f->variant->run) {
        case 1: lay_row(to, row, n, m, i, 1, sizeof(float)); break;
        case 2: lay_row(to, from, n, m, i, 2, sizeof(qv_bf16)); break;
        case 32: lay_row(to, from, n, m, i, 32, sizeof(qv_bf16)); break;
        }
    }
}

/* Applies the epilogue to the sums of rows [row, end) and columns [col, col + FEW_COLS), into y. */
static void
finish(const struct qv_op_gemm_few *op, float (*sums)[FEW_COLS], int64_t row, int64_t end,
       int64_t col, void *const *p)
{
    const int64_t n = op->n - col < FEW_COLS ? op->n - col : FEW_COLS;
    float bias[FEW_COLS], residual[FEW_COLS];
    if (op->bias)
        qv_lanes_load_cpu(bias, at_cpu(p[2], op->bias_dtype, col), op->bias_dtype, n);
    for (int64_t i = row; i < end; i++, sums++) {
        qv_lanes_epilogue_cpu(*sums, *sums, op->bias ? bias : NULL, (float)op->alpha, op->act, n);
        if (op->residual_rows) {
            const int64_t at = i % op->residual_rows * op->n + col;
            qv_lanes_load_cpu(residual, at_cpu(p[3], op->residual_dtype, at), op->residual_dtype,
                              n);
            qv_lanes_add_scaled_cpu(*sums, residual, 1, n);
        }
        qv_lanes_store_cpu(at_cpu(p[4], op->y_dtype, i * op->n + col), *sums, op->y_dtype, n);
    }
}

static void
run_columns(const struct qv_op_gemm_few *op, const struct few_cpu *f, int64_t col, void *const *p)
{
    const int64_t panels = qv_codes_beside_cpu(&f->w, col);
    const char *codes = (const char *)p[1] + qv_codes_at_cpu(&f->w, col, 0);
    float sums[QV_FEW_AT_ONCE][FEW_COLS], apart[CODES_PANELS * QV_FEW_AT_ONCE][CODES_COLS];
    struct few_cpu some;
    for (int64_t row = 0; row < f->m; row += some.m) {
        some = rows_from(f, row);
        memset(apart, 0, sizeof apart);
        f->variant->multiply(&some, codes, panels, apart[0]);
        for (int64_t at = 0; at < panels; at++)
            for (int64_t i = 0; i < some.m; i++)
                memcpy(sums[i] + at * CODES_COLS, apart[at * some.m + i], sizeof *apart);
        finish(op, sums, row, row + some.m, col, p);
    }
}

static qv_status
run_gemm_few(struct qv_device_cpu *dev, const struct qv_kernel *kernel, void *const *p,
             void *scratch, qv_error *err)
{
    const struct qv_op_gemm_few *op = &kernel->op.u.gemm_few;
    struct few_cpu f = kernel->few;
    (void)err;
    f.x = scratch;
    f.sums = (float *)(void *)((char *)scratch + qv_aligned(x_bytes(&f, op->k * op->m)));
#pragma omp parallel num_threads(dev->threads)
    {
#pragma omp for schedule(static)
        for (int64_t group = 0; group < op->k / op->w_group; group++) {
            struct few_cpu some;
            for (int64_t row = 0; row < op->m; row += some.m) {
                some = rows_from(&f, row);
                lay_group(&some, at_cpu(p[0], op->x_dtype, row * op->k), op->x_dtype, group);
            }
        }
#pragma omp for schedule(static)
        for (int64_t col = 0; col < op->n; col += FEW_COLS)
            run_columns(op, &f, col, p);
    }
    return QV_OK;
}

const struct verbs_cpu qv_gemm_few_verbs_cpu = { .prepare = prepare_gemm_few,
                                                 .run = run_gemm_few,
                                                 .describe = describe_gemm_few };
