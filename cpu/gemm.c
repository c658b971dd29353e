/* SPDX-License-Identifier: MIT */
/*
 * gemm on oneDNN's matmul (matmul.c). A quantised w is widened one block of columns at a time, into
 * the matmul's panels, in scratch that fits a cache. The values are the same as when a checkpoint
 * is loaded in x's dtype, and the same matmul multiplies them. A block's columns of y are computed
 * in scratch and copied, because oneDNN's fast matmul needs contiguous rows of y; its plain one
 * does not, but takes hundreds of times as long.
 */
#include <math.h>

#include "cpu.h"
#include "vectors.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

/* The size of a block; matrices of a tower's layers need one or two. Its columns are a multiple of
 * oneDNN's panel width, and at least LEAST_COLS however long they are, so that many threads have
 * work: with 300 columns of 13,824 values 16 cores took twice as long. */
enum { BLOCK_BYTES = 8 << 20, BLOCK_COLS = 64, LEAST_COLS = 1024 };

/* ---- widening -------------------------------------------------------------------------------- */

/* Where the values of k and k + 1 of a panel's columns go: into pairs of bf16, or into one row
 * each. */
struct wide_row {
    void *at;
    size_t next; /* bytes from the first row to the second; pairs are in one row */
};

/* Rounds to the nearest bf16, ties to even; NaN stays NaN. */
INLINED_CPU void
round_words(words_cpu *out, const floats_cpu *x)
{
    const words_cpu u = (words_cpu)*x, rounded = u + 0x7fff + (u >> 16 & 1);
    const words_cpu nan = (words_cpu)((u & 0x7fffffff) > 0x7f800000);
    *out = (rounded & ~nan) | ((u | 0x400000) & nan);
}

INLINED_CPU void
store_pair(const floats_cpu *low, const floats_cpu *high, const struct wide_row *to, qv_dtype dtype,
           bool pairs)
{
    if (dtype == QV_F32) {
        memcpy(to->at, low, sizeof *low);
        memcpy((char *)to->at + to->next, high, sizeof *high);
        return;
    }
    words_cpu a, b;
    round_words(&a, low);
    round_words(&b, high);
    if (pairs) {
        const words_cpu both = a >> 16 | (b & 0xffff0000);
        memcpy(to->at, &both, sizeof both);
        return;
    }
    const halves_cpu first = __builtin_convertvector(a >> 16, halves_cpu);
    const halves_cpu second = __builtin_convertvector(b >> 16, halves_cpu);
    memcpy(to->at, &first, sizeof first);
    memcpy((char *)to->at + to->next, &second, sizeof second);
}

/* How a panel's groups are widened. step: bytes from one pair to the next at the destination. */
struct widening {
    const struct codes_cpu *w;
    qv_dtype dtype;
    bool pairs;
    size_t step;
};

INLINED_CPU void
widen_lines(const struct widening *how, const char *group, struct wide_row to, const int64_t bits)
{
    const struct codes_cpu *w = how->w;
    floats_cpu factor[2];
    qv_codes_factors_cpu(w, group, (float *)factor);
    for (size_t at = 2 * w->factors; at < w->group_bytes; at += LINE_BYTES)
        for (int64_t pair = 0; pair < 16 / bits; pair++) {
            floats_cpu low, high;
            codes_cpu(&low, &high, group + at, pair, bits);
            low = low * factor[0] + factor[1];
            high = high * factor[0] + factor[1];
            store_pair(&low, &high, &to, how->dtype, how->pairs);
            to.at = (char *)to.at + how->step;
        }
}

INLINED_CPU void
widen_group(const struct widening *how, const char *group, struct wide_row to)
{
    if (how->w->groups.bits == 4)
        widen_lines(how, group, to, 4);
    else
        widen_lines(how, group, to, 8);
}

#define WIDEN_VARIANT(name, TARGET)                                                                \
    TARGET static void name(const struct widening *how, const char *group, struct wide_row to)     \
    {                                                                                              \
        widen_group(how, group, to);                                                               \
    }
WIDEN_VARIANT(widen_any, )
WIDEN_VARIANT(widen_avx2, TARGET_AVX2_CPU)
WIDEN_VARIANT(widen_avx512, TARGET_AVX512_CPU)

#if defined(__x86_64__) && defined(__GNUC__)

/* Widens a group into pairs of bf16 by AVX-512's conversion. It treats subnormal values as zero, as
 * AVX-512's and AMX's products of pairs do. */
TARGET_BF16_CPU INLINED_CPU void
convert_lines(const struct widening *how, const char *group, char *to, const int64_t bits)
{
    const words_cpu lanes = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
    const words_cpu order = lanes * 0x10001 + 0x100000; /* halves i and 16 + i side by side */
    floats_cpu factor[2];
    qv_codes_factors_cpu(how->w, group, (float *)factor);
    for (size_t at = 2 * how->w->factors; at < how->w->group_bytes; at += LINE_BYTES)
        for (int64_t pair = 0; pair < 16 / bits; pair++, to += how->step) {
            floats_cpu low, high;
            codes_cpu(&low, &high, group + at, pair, bits);
            low = low * factor[0] + factor[1];
            high = high * factor[0] + factor[1];
            const __m512bh halves = _mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
            _mm512_storeu_si512(to, _mm512_permutexvar_epi16((__m512i)order, (__m512i)halves));
        }
}

TARGET_BF16_CPU static void
widen_avx512_bf16(const struct widening *how, const char *group, struct wide_row to)
{
    if (how->dtype != QV_BF16 || !how->pairs)
        widen_group(how, group, to);
    else if (how->w->groups.bits == 4)
        convert_lines(how, group, to.at, 4);
    else
        convert_lines(how, group, to.at, 8);
}

#else
#define widen_avx512_bf16 widen_avx512
#endif

static void (*const wideners[])(const struct widening *how, const char *group,
                                struct wide_row to) = { [ISA_ANY_CPU] = widen_any,
                                                        [ISA_AVX2_CPU] = widen_avx2,
                                                        [ISA_AVX512_CPU] = widen_avx512,
                                                        [ISA_AVX512_BF16_CPU] = widen_avx512_bf16 };

/* Returns the address of value k of column `col` in a block laid out as p; k must be the first of a
 * group. */
static char *
wide_at(const struct panels_cpu *p, size_t element, int64_t k, int64_t col, char *block)
{
    const size_t word = element * (size_t)p->group;
    return block + (size_t)(col / p->width * p->stride) * element +
           (size_t)(k / p->group * p->width + col % p->width) * word;
}

/* Does what widen_panel() does, through a buffer of our own. */
static void
widen_apart(const struct widening *how, const char *group, const struct panels_cpu *p, int64_t k,
            int64_t col, char *block)
{
    const size_t element = qv_dtype_bytes(how->dtype), word = element * (size_t)p->group;
    const int64_t end = qv_round_up(p->n, p->width);
    char room[128 * CODES_COLS * sizeof(float)] = { 0 };
    struct widening apart = *how;
    apart.step = 2 * CODES_COLS * element;
    wideners[qv_isa_cpu()](&apart, group, (struct wide_row){ room, CODES_COLS * element });
    for (int64_t i = 0; i < how->w->groups.group; i += p->group)
        for (int64_t c = col; c < col + CODES_COLS && c < end; c++)
            memcpy(wide_at(p, element, k + i, c, block),
                   room + (size_t)(i / p->group * CODES_COLS + c - col) * word, word);
}

/* Widens a panel's group, which begins at k, into columns [col, col + CODES_COLS) of a block laid
 * out as p. Columns past the matrix's last are zero. Columns of narrower panels, and the last
 * columns of plain rows, go through a buffer of our own. */
static void
widen_panel(const struct widening *how, const char *group, const struct panels_cpu *p, int64_t k,
            int64_t col, char *block)
{
    const size_t element = qv_dtype_bytes(how->dtype), line = (size_t)p->width * element;
    const bool whole = p->width != p->n || col + CODES_COLS <= p->n;
    if (p->width % CODES_COLS || !whole)
        widen_apart(how, group, p, k, col, block);
    else
        wideners[qv_isa_cpu()](how, group,
                               (struct wide_row){ wide_at(p, element, k, col, block), line });
}

/* Clears the columns that oneDNN's last panel may have past the matrix's last. */
static void
clear_columns(const struct panels_cpu *p, int64_t col, size_t element, char *block)
{
    const size_t word = element * (size_t)p->group, line = (size_t)p->width * word;
    const int64_t in = col % p->width;
    if (!in || p->width == p->n)
        return;
    char *at = block + (size_t)(col / p->width * p->stride) * element + (size_t)in * word;
    for (int64_t k = 0; k < p->k; k += p->group, at += line)
        memset(at, 0, line - (size_t)in * word);
}

/* Widens as many columns as p has, from `first` on. Interleaved panels take turns, group by group,
 * so that reads and writes are both sequential. */
static void
widen_block(const struct qv_device_cpu *dev, const struct qv_op_gemm *op,
            const struct panels_cpu *p, const char *w, int64_t first, char *block)
{
    const struct qv_groups groups = { op->w_bits, op->w_group, (qv_dtype)op->w_dtype };
    const struct codes_cpu codes = qv_codes_cpu(op->n, op->k, &groups);
    const size_t element = qv_dtype_bytes(op->x_dtype);
    const struct widening how = { &codes, (qv_dtype)op->x_dtype, p->group == 2,
                                  2 * (size_t)p->width * element };
    const int64_t group = op->w_group, n = panels_of_cpu(p->n);
#pragma omp parallel for num_threads(dev->threads) schedule(static) collapse(2)
    for (int64_t beside = 0; beside < n; beside += CODES_PANELS)
        for (int64_t k = 0; k < op->k; k += group) {
            const int64_t col = beside * CODES_COLS, end = beside + CODES_PANELS;
            const char *at = w + qv_codes_at_cpu(&codes, first + col, k / group);
            for (int64_t i = beside; i < end && i < n; i++, at += codes.group_bytes)
                widen_panel(&how, at, p, k, i * CODES_COLS, block);
        }
    clear_columns(p, n * CODES_COLS, element, block);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static int64_t
columns_of_block(const struct qv_op_gemm *op)
{
    const int64_t bytes = op->k * (int64_t)qv_dtype_bytes(op->x_dtype);
    const int64_t fit = BLOCK_BYTES / bytes > LEAST_COLS ? BLOCK_BYTES / bytes : LEAST_COLS;
    const int64_t blocks = qv_ceil_div(op->n, fit);
    const int64_t cols = qv_round_up(qv_ceil_div(op->n, blocks), BLOCK_COLS);
    return cols < op->n ? cols : op->n;
}

/* Returns the gemm of a block, whose columns of y hold the residual already. */
static struct qv_op_gemm
block_of(const struct qv_op_gemm *op, int64_t cols)
{
    struct qv_op_gemm block = *op;
    block.n = cols;
    block.residual_rows = op->residual_rows ? op->m : 0;
    return block;
}

/* Opens the gemm of a block. */
static qv_status
open_block(struct qv_device_cpu *dev, const struct qv_op_gemm *op, int64_t cols,
           struct gemm_cpu *gemm, struct panels_cpu *panels, qv_error *err)
{
    const struct qv_matrix matrix = { .n = cols, .k = op->k, .dtype = (qv_dtype)op->x_dtype };
    struct gemm_weights_cpu weights = { 0 };
    qv_status status = qv_gemm_weights_cpu(dev, &matrix, &weights, err);
    if (status)
        return status;
    const struct qv_op_gemm block = block_of(op, cols);
    *panels = weights.panels;
    status = qv_gemm_open_cpu(dev, &block, &weights, gemm, err);
    qv_gemm_weights_close_cpu(&weights);
    return status;
}

static qv_status
prepare_wide(struct qv_device_cpu *dev, struct qv_kernel *kernel, size_t *scratch_bytes,
             qv_error *err)
{
    const struct qv_op_gemm *op = &kernel->op.u.gemm;
    struct wide_cpu *wide = &kernel->wide;
    wide->cols = columns_of_block(op);
    const int64_t cols[CODES_BLOCKS] = { wide->cols, op->n % wide->cols };
    size_t scratch = 0;
    qv_status status = QV_OK;
    for (int i = 0; i < CODES_BLOCKS && cols[i] && !status; i++) {
        struct gemm_cpu *g = &wide->gemms[i];
        status = open_block(dev, op, cols[i], g, &wide->panels[i], err);
        const size_t bytes = qv_aligned(wide->panels[i].bytes);
        wide->bytes = bytes > wide->bytes ? bytes : wide->bytes;
        scratch = g->scratch_bytes > scratch ? g->scratch_bytes : scratch;
    }
    if (wide->cols < op->n)
        wide->y_bytes = qv_aligned((size_t)(op->m * wide->cols) * qv_dtype_bytes(op->y_dtype));
    *scratch_bytes = wide->bytes + wide->y_bytes + scratch;
    return status;
}

/* Copies rows of `bytes` bytes, which lie from_stride and to_stride bytes apart. */
static void
copy_rows(const struct qv_device_cpu *dev, int64_t rows, size_t bytes, const char *from,
          size_t from_stride, char *to, size_t to_stride)
{
#pragma omp parallel for num_threads(dev->threads) schedule(static)
    for (int64_t i = 0; i < rows; i++)
        memcpy(to + (size_t)i * to_stride, from + (size_t)i * from_stride, bytes);
}

/* Multiplies by the block->n widened columns from `col` on. */
static qv_status
run_block(struct qv_device_cpu *dev, const struct qv_kernel *kernel, const struct qv_op_gemm *block,
          int64_t col, void *const *p, void *scratch, qv_error *err)
{
    const struct wide_cpu *wide = &kernel->wide;
    const size_t row = (size_t)kernel->op.u.gemm.n * qv_dtype_bytes(block->y_dtype);
    const size_t bytes = (size_t)block->n * qv_dtype_bytes(block->y_dtype);
    char *const y = at_cpu(p[4], block->y_dtype, col), *const own = (char *)scratch + wide->bytes;
    void *const operands[QV_MAX_OPERANDS] = { p[0], scratch,
                                              p[2] ? at_cpu(p[2], block->bias_dtype, col) : NULL,
                                              wide->y_bytes ? own : y, wide->y_bytes ? own : y };
    if (wide->y_bytes && block->residual_rows)
        copy_rows(dev, block->m, bytes, y, row, own, bytes);
    const qv_status status = qv_gemm_run_cpu(dev, block, &wide->gemms[block->n < wide->cols],
                                             operands, own + wide->y_bytes, err);
    if (wide->y_bytes && !status)
        copy_rows(dev, block->m, bytes, own, bytes, y, row);
    return status;
}

static qv_status
run_wide(struct qv_device_cpu *dev, const struct qv_kernel *kernel, void *const *p, void *scratch,
         qv_error *err)
{
    const struct qv_op_gemm *op = &kernel->op.u.gemm;
    const struct wide_cpu *wide = &kernel->wide;
    const struct qv_op_epilogue epilogue = qv_op_gemm_epilogue(op);
    qv_status status = QV_OK;
    qv_epilogue_residual_cpu(dev, &epilogue, p[3], p[4]);
    for (int64_t col = 0; col < op->n && !status; col += wide->cols) {
        const bool last = op->n - col < wide->cols;
        const struct qv_op_gemm block = block_of(op, last ? op->n - col : wide->cols);
        widen_block(dev, op, &wide->panels[last], p[1], col, scratch);
        status = run_block(dev, kernel, &block, col, p, scratch, err);
    }
    return status;
}

/* ---- verbs ----------------------------------------------------------------------------------- */

static qv_status
prepare_gemm(struct qv_device_cpu *dev, struct qv_kernel *kernel, size_t *scratch_bytes,
             qv_error *err)
{
    const struct qv_op_gemm *op = &kernel->op.u.gemm;
    const double most = fmax((double)op->m, fmax((double)op->n, (double)op->k));
    qv_status status = qv_count_check_cpu(&kernel->op, most, err);
    if (status)
        return status;
    if (op->w_bits)
        return prepare_wide(dev, kernel, scratch_bytes, err);
    struct qv_matrix matrix = { .n = op->n, .k = op->k, .dtype = (qv_dtype)op->w_dtype };
    struct gemm_weights_cpu weights = { 0 };
    status = qv_gemm_weights_cpu(dev, &matrix, &weights, err);
    if (status)
        return status;
    status = qv_gemm_open_cpu(dev, op, &weights, &kernel->gemm, err);
    qv_gemm_weights_close_cpu(&weights);
    *scratch_bytes = kernel->gemm.scratch_bytes;
    return status;
}

static qv_status
run_gemm(struct qv_device_cpu *dev, const struct qv_kernel *kernel, void *const *p, void *scratch,
         qv_error *err)
{
    const struct qv_op_gemm *op = &kernel->op.u.gemm;
    return op->w_bits ? run_wide(dev, kernel, p, scratch, err)
                      : qv_gemm_run_cpu(dev, op, &kernel->gemm, p, scratch, err);
}

static void
release_gemm(struct qv_kernel *kernel)
{
    qv_gemm_close_cpu(&kernel->gemm);
    for (int i = 0; i < CODES_BLOCKS; i++)
        qv_gemm_close_cpu(&kernel->wide.gemms[i]);
}

static void
describe_gemm(const struct qv_kernel *kernel, char *text, size_t size)
{
    const struct qv_op_gemm *op = &kernel->op.u.gemm;
    const struct gemm_cpu *g = op->w_bits ? &kernel->wide.gemms[0] : &kernel->gemm;
    if (op->w_bits)
        snprintf(text, size, "%lld bits widened, then ", (long long)op->w_bits);
    if (!g->matmuls) {
        qv_primitive_describe_cpu("", &g->blocks.products[0][0], text, size);
        snprintf(text + strlen(text), size - strlen(text), " in blocks of rows");
        return;
    }
    qv_primitive_describe_cpu("", &g->matmuls[0], text, size);
    if (g->n_matmuls > 1)
        snprintf(text + strlen(text), size - strlen(text), ", %lld rows per thread",
                 (long long)g->rows);
}

const struct verbs_cpu qv_gemm_verbs_cpu = {
    .prepare = prepare_gemm, .run = run_gemm, .release = release_gemm, .describe = describe_gemm
};
