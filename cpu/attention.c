/* SPDX-License-Identifier: MIT */
/*
 * Attention over segments of any length. A thread takes a piece, which is a range of queries of one
 * (segment, head), and iterates over the segment's keys block by block. It lays out each block of k
 * and v once. For each block of its queries, one matmul computes the scores, their exponentials are
 * taken, and a second matmul adds the weighted values. Exponents are differences from a score close
 * to the maximum. Only if a sum becomes large are they computed again from a greater score, and the
 * earlier sums scaled down (Milakov and Gimelshein, arXiv:1805.02867). Everything that is reused
 * stays in the L2 cache, however long the segment is.
 *
 * Blocks have a few fixed sizes, begin at their segment's first row and are padded with zeros, so a
 * segment's bits are a function of its rows alone. How queries are divided into pieces does not
 * change the bits, so it may depend on the number of threads.
 */
#include "cpu.h"

#include <float.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>

enum {
    QUERIES = 128, /* rows of a block; a segment's last rows use one of the smaller kinds */
    KEYS = 512,
    KEY_STEP = KEYS / ATTENTION_KEY_KINDS,
    /* most blocks of queries per piece: their sums are read once per block of keys */
    MOST_BLOCKS = 8,
    LAYING_OUT = 16, /* laying out a block of keys costs as much as this many additional queries */
    SAMPLE = 64      /* scores that the maximum is estimated from; usually close enough */
};
/* Limit for the sum of a block's exponentials, far below the largest f32; larger sums are rare. */
static const float most_sum = 0x1p24f;

static const int64_t query_rows[ATTENTION_QUERY_KINDS] = { QUERIES, 64, 32 };
enum { SMALLEST = ATTENTION_QUERY_KINDS - 1 };

/* Returns the kind of block for the next queries if `left` remain in the segment. Padding is always
 * less than the smallest kind. */
static int
query_kind(int64_t left)
{
    int kind = 0;
    while (kind < SMALLEST && left <= query_rows[kind] - query_rows[SMALLEST])
        kind++;
    return kind;
}

static size_t
most(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Returns the maximum number of rows in a segment. */
static int64_t
longest(const struct qv_op_attention *op)
{
    return op->segment_rows ? op->segment_rows : op->rows;
}

/* ---- prepare --------------------------------------------------------------------------------- */

/* Opens a GEMM for each kind of block from `first` on; all share one layout of the weights. */
static qv_status
open_gemm(struct qv_device_cpu *dev, struct matmul_desc_cpu *desc, int first,
          struct primitive_cpu *out, struct panels_cpu *panels, qv_error *err)
{
    const_dnnl_memory_desc_t layout = NULL;
    desc->m = query_rows[first];
    qv_status status = qv_panels_open_cpu(dev, desc, &out[first], panels, err);
    if (!status && out[first].primitive)
        status =
            qv_dnnl_check_cpu(dnnl_memory_get_memory_desc(out[first].memory[CPU_WEIGHTS], &layout),
                              "matmul", err);
    desc->weights = layout;
    for (int kind = first + 1; kind < ATTENTION_QUERY_KINDS && !status; kind++) {
        desc->m = query_rows[kind];
        status = qv_matmul_open_cpu(dev, desc, &out[kind], err);
    }
    return status;
}

/* Opens the GEMMs for one number of keys. All sources are dense: for others, oneDNN 3.2 lays out
 * the weights itself. */
static qv_status
open_gemms(struct qv_device_cpu *dev, const struct qv_op_attention *op, int64_t keys,
           struct gemms_cpu *out, qv_error *err)
{
    struct matmul_desc_cpu qk = { .n = keys,
                                  .k = op->head_dim,
                                  .src_stride = op->head_dim,
                                  .dst_stride = keys,
                                  .type = dnnl_type_cpu(op->q_dtype),
                                  .dst_type = dnnl_f32 };
    struct matmul_desc_cpu pv = { .n = op->head_dim,
                                  .k = keys,
                                  .src_stride = keys,
                                  .dst_stride = op->head_dim,
                                  .type = dnnl_type_cpu(op->q_dtype),
                                  .dst_type = dnnl_f32 };
    int first = query_kind(longest(op));
    qv_status status = open_gemm(dev, &qk, first, out->scores, &out->k, err);
    return status ? status : open_gemm(dev, &pv, first, out->values, &out->v, err);
}

/* Opens single-threaded matmuls for every thread. Threads cannot share them, because their memory
 * objects hold addresses. */
static qv_status
open_threads(struct qv_device_cpu *dev, struct qv_kernel *kernel, qv_error *err)
{
    struct attention_cpu *a = &kernel->attention;
    const struct qv_op_attention *op = &kernel->op.u.attention;
    a->gemms = calloc((size_t)a->threads, sizeof *a->gemms);
    if (!a->gemms)
        return qv_fail(err, QV_ENOMEM, "no memory for an attention kernel");
    qv_status status = QV_OK;
    for (int t = 0; t < a->threads; t++)
        for (int i = 0; i < ATTENTION_KEY_KINDS && i * KEY_STEP < longest(op) && !status; i++)
            status = open_gemms(dev, op, (i + 1) * KEY_STEP, &a->gemms[t][i], err);
    return status;
}

/* Lays out a thread's scratch, in the order in which it is written. Exponentials begin one row
 * before the scores, so that a row's exponentials never overwrite its scores. */
static void
lay_out(struct qv_kernel *kernel)
{
    struct attention_cpu *a = &kernel->attention;
    const struct qv_op_attention *op = &kernel->op.u.attention;
    size_t element = qv_dtype_bytes(op->q_dtype), hd = (size_t)op->head_dim;
    size_t queries =
        (size_t)qv_round_up(qv_at_most(longest(op), MOST_BLOCKS * QUERIES), query_rows[SMALLEST]);
    size_t block = queries < QUERIES ? queries : QUERIES;
    size_t keys = (size_t)qv_round_up(qv_at_most(longest(op), KEYS), KEY_STEP);
    size_t bytes[ATTENTION_PARTS] = {
        [ATTENTION_Q] = queries * (size_t)op->head_dim * element,
        [ATTENTION_OUT] = queries * hd * sizeof(float),
        [ATTENTION_MAX] = queries * sizeof(float),
        [ATTENTION_SUM] = queries * sizeof(float),
        [ATTENTION_SCORES] = keys * (element + block * sizeof(float)),
        [ATTENTION_MORE] = longest(op) > KEYS ? block * hd * sizeof(float) : 0,
    };
    for (int i = 0; i < ATTENTION_KEY_KINDS; i++) {
        const struct gemms_cpu *p = &a->gemms[0][i];
        bytes[ATTENTION_K] = most(bytes[ATTENTION_K], p->k.bytes);
        bytes[ATTENTION_V] = most(bytes[ATTENTION_V], p->v.bytes);
        for (int kind = 0; kind < ATTENTION_QUERY_KINDS; kind++) {
            size_t both = most(p->scores[kind].scratch_bytes, p->values[kind].scratch_bytes);
            bytes[ATTENTION_MATMUL] = most(bytes[ATTENTION_MATMUL], both);
        }
    }
    for (int i = 0; i < ATTENTION_PARTS; i++) {
        a->offset[i] = a->thread_bytes;
        a->thread_bytes += qv_aligned(bytes[i]);
    }
}

static qv_status
prepare_attention(struct qv_device_cpu *dev, struct qv_kernel *kernel, size_t *scratch_bytes,
                  qv_error *err)
{
    const struct qv_op_attention *op = &kernel->op.u.attention;
    struct attention_cpu *a = &kernel->attention;
    a->threads = dev->threads;
    a->exps = qv_lanes_exps_cpu;
#if defined(__x86_64__) && defined(__GNUC__)
    if (qv_x86_has_cpu(dnnl_cpu_isa_avx512_core_bf16))
        a->exps = qv_lanes_exps_avx512_cpu;
#endif
    a->segments = calloc((size_t)op->segments, sizeof *a->segments);
    if (!a->segments)
        return qv_fail(err, QV_ENOMEM, "no memory for an attention kernel");
    int before = omp_get_max_threads();
    omp_set_num_threads(1);
    qv_status status = open_threads(dev, kernel, err);
    omp_set_num_threads(before);
    if (status)
        return status;
    int64_t stride = qv_row_stride(op->k_stride, op->heads * op->head_dim);
    int64_t group = a->gemms[0][0].k.group; /* values per word, which are transposed together */
    if (group > 1 && stride % group)
        return qv_fail(
            err, QV_EUNSUPPORTED,
            "attention: k_stride is %lld; it must be even, because keys are laid out in pairs",
            (long long)op->k_stride);
    lay_out(kernel);
    *scratch_bytes = a->thread_bytes * (size_t)a->threads;
    return QV_OK;
}

/* ---- a piece --------------------------------------------------------------------------------- */

/* Rows that will be read or written soon. They are prefetched a few at a time during other work,
 * because one head's part of a row is too short for the hardware prefetcher. */
struct rows_ahead {
    const char *row;
    int64_t stride, n, step; /* stride in bytes; rows left; rows fetched at a time */
};
enum { AHEAD_K, AHEAD_V, AHEAD_Q, AHEAD_Y, AHEAD };

/* Queries [first, first + rows) of a segment, where `first` begins a block. */
struct piece {
    struct qv_device_cpu *dev;
    const struct qv_kernel *kernel;
    const struct attention_call_cpu *call;
    struct segment_cpu segment;
    int64_t head, first, rows;
    const struct gemms_cpu *gemms; /* this thread's GEMMs */
    char *scratch;
    struct rows_ahead *ahead; /* [AHEAD] */
};

static void *
part(const struct piece *piece, int which)
{
    return piece->scratch + piece->kernel->attention.offset[which];
}

/* Returns row `row` of the piece's segment and head. */
static char *
row_of(const struct piece *piece, const struct view_cpu *view, int64_t row)
{
    const struct qv_op_attention *op = &piece->kernel->op.u.attention;
    int64_t at = (piece->segment.first + row) * view->stride + piece->head * op->head_dim;
    return view->base + at * (int64_t)qv_dtype_bytes(op->q_dtype);
}

static void
fetch_ahead(const struct piece *piece)
{
    enum { LINE = 64 };
    const struct qv_op_attention *op = &piece->kernel->op.u.attention;
    int64_t bytes = op->head_dim * (int64_t)qv_dtype_bytes(op->q_dtype);
    for (int which = 0; which < AHEAD; which++) {
        struct rows_ahead *a = &piece->ahead[which];
        for (int64_t i = 0; i < a->step && a->n > 0; i++, a->n--, a->row += a->stride)
            for (int64_t at = 0; at < bytes; at += LINE)
                if (which == AHEAD_Y)
                    __builtin_prefetch(a->row + at, 1, 2);
                else
                    __builtin_prefetch(a->row + at, 0, 2);
    }
}

/* Plans to prefetch `rows` rows of `of`'s segment while `piece` computes its queries against one
 * block of keys. */
static struct rows_ahead
rows_ahead(const struct piece *piece, const struct piece *of, const struct view_cpu *view,
           int64_t first, int64_t rows)
{
    size_t element = qv_dtype_bytes(piece->kernel->op.u.attention.q_dtype);
    return (struct rows_ahead){ .row = row_of(of, view, first),
                                .stride = view->stride * (int64_t)element,
                                .n = rows,
                                .step = qv_ceil_div(rows, piece->rows) };
}

/* Plans what to prefetch: the keys and values after the block at `key`; after the last block, the
 * rows of the results and the beginning of the next piece (NULL: none). */
static void
look_ahead(const struct piece *piece, int64_t key, const struct piece *next)
{
    const struct attention_call_cpu *call = piece->call;
    const struct piece *of = key + KEYS < piece->segment.rows ? piece : next;
    int64_t first = of == piece ? key + KEYS : 0;
    memset(piece->ahead, 0, AHEAD * sizeof *piece->ahead);
    if (of != piece)
        piece->ahead[AHEAD_Y] = rows_ahead(piece, piece, &call->y, piece->first, piece->rows);
    if (!of)
        return;
    int64_t n = qv_at_most(KEYS, of->segment.rows - first);
    piece->ahead[AHEAD_K] = rows_ahead(piece, of, &call->k, first, n);
    piece->ahead[AHEAD_V] = rows_ahead(piece, of, &call->v, first, n);
    if (of != piece)
        piece->ahead[AHEAD_Q] = rows_ahead(piece, of, &call->q, of->first, qv_at_most(n, of->rows));
}

/* Copies the piece's queries, padded with zeros, whose results are ignored. */
static void
copy_queries(const struct piece *piece)
{
    const struct qv_op_attention *op = &piece->kernel->op.u.attention;
    size_t bytes = (size_t)op->head_dim * qv_dtype_bytes(op->q_dtype);
    char *q = part(piece, ATTENTION_Q);
    for (int64_t i = 0; i < piece->rows; i++, q += bytes)
        memcpy(q, row_of(piece, &piece->call->q, piece->first + i), bytes);
    memset(q, 0, (size_t)(qv_round_up(piece->rows, query_rows[SMALLEST]) - piece->rows) * bytes);
}

/* A block of keys, laid out in the scratch. */
struct block {
    const struct gemms_cpu *gemms; /* GEMMs for this number of keys */
    int64_t n;
    bool more; /* it is not the first block of the segment */
};

/* Computes the exponentials of a query's scores x for the block's keys, with zeros up to the width
 * of its panels, and adds them to *sum. If a greater *max is needed, scales *sum and out[head_dim]
 * down first. */
static void
exponentials(const struct piece *piece, const struct block *block, const float *x, void *y,
             float *max, float *sum, float *out)
{
    const int64_t n = block->n, stride = block->gemms->k.n;
    const struct qv_op_attention *op = &piece->kernel->op.u.attention;
    const struct attention_cpu *a = &piece->kernel->attention;
    float scale = (float)op->scale;
    if (!block->more)
        *max = qv_lanes_max_cpu(x, qv_at_most(n, SAMPLE), -FLT_MAX);
    float some = a->exps(x, y, op->q_dtype, n, stride, scale, *max);
    if (!(some <= most_sum)) {
        float before = *max;
        *max = qv_lanes_max_cpu(x, n, before);
        some = a->exps(x, y, op->q_dtype, n, stride, scale, *max);
        if (block->more) {
            float down = expf((before - *max) * scale);
            *sum *= down;
            qv_lanes_scale_cpu(out, down, op->head_dim);
        }
    }
    *sum = block->more ? *sum + some : some;
}

/* Computes `rows` queries from `query` on, one block of the given kind, against a block of keys. */
static qv_status
attend_block(const struct piece *piece, const struct block *block, int64_t query, int64_t rows,
             int kind, qv_error *err)
{
    const struct gemms_cpu *gemms = block->gemms;
    const struct qv_op_attention *op = &piece->kernel->op.u.attention;
    int64_t hd = op->head_dim, stride = gemms->k.n;
    size_t element = qv_dtype_bytes(op->q_dtype);
    char *q = (char *)part(piece, ATTENTION_Q) + (size_t)(query * hd) * element;
    char *exps = part(piece, ATTENTION_SCORES);
    float *scores = (float *)(exps + (size_t)stride * element);
    float *max = (float *)part(piece, ATTENTION_MAX) + query;
    float *sum = (float *)part(piece, ATTENTION_SUM) + query;
    float *out = (float *)part(piece, ATTENTION_OUT) + query * hd;
    void *matmul = part(piece, ATTENTION_MATMUL);

    qv_status status =
        qv_matmul_run_cpu(piece->dev, &gemms->scores[kind],
                          (void *[]){ q, part(piece, ATTENTION_K), NULL, scores, matmul }, err);
    if (status)
        return status;
    for (int64_t i = 0; i < rows; i++) {
        fetch_ahead(piece);
        exponentials(piece, block, scores + i * stride, exps + (size_t)(i * stride) * element,
                     &max[i], &sum[i], out + i * hd);
    }
    float *values = block->more ? part(piece, ATTENTION_MORE) : out;
    status =
        qv_matmul_run_cpu(piece->dev, &gemms->values[kind],
                          (void *[]){ exps, part(piece, ATTENTION_V), NULL, values, matmul }, err);
    if (block->more && !status)
        qv_lanes_add_scaled_cpu(out, values, 1, rows * hd);
    return status;
}

static void
store_piece(const struct piece *piece)
{
    const struct qv_op_attention *op = &piece->kernel->op.u.attention;
    float *out = part(piece, ATTENTION_OUT), *sum = part(piece, ATTENTION_SUM);
    for (int64_t i = 0; i < piece->rows; i++, out += op->head_dim) {
        qv_lanes_scale_cpu(out, 1 / sum[i], op->head_dim);
        qv_lanes_store_cpu(row_of(piece, &piece->call->y, piece->first + i), out, op->q_dtype,
                           op->head_dim);
    }
}

static qv_status
attend_piece(const struct piece *piece, const struct piece *next, qv_error *err)
{
    const struct qv_op_attention *op = &piece->kernel->op.u.attention;
    const struct attention_call_cpu *call = piece->call;
    qv_status status = QV_OK;
    copy_queries(piece);
    for (int64_t key = 0; key < piece->segment.rows && !status; key += KEYS) {
        int64_t n = qv_at_most(KEYS, piece->segment.rows - key);
        const struct gemms_cpu *gemms = &piece->gemms[(n - 1) / KEY_STEP];
        const struct block block = { gemms, n, .more = key > 0 };
        qv_panels_transposed_cpu(&gemms->k, row_of(piece, &call->k, key), call->k.stride, n,
                                 op->q_dtype, part(piece, ATTENTION_K));
        qv_panels_cpu(&gemms->v, row_of(piece, &call->v, key), call->v.stride, n, op->q_dtype,
                      part(piece, ATTENTION_V));
        look_ahead(piece, key, next);
        for (int64_t query = 0; query < piece->rows && !status;) {
            int kind = query_kind(piece->rows - query);
            int64_t rows = qv_at_most(query_rows[kind], piece->rows - query);
            status = attend_block(piece, &block, query, rows, kind, err);
            query += rows;
        }
    }
    if (!status)
        store_piece(piece);
    return status;
}

/* ---- all pieces ------------------------------------------------------------------------------ */

static int64_t
pieces_of(int64_t rows, int64_t blocks)
{
    return qv_ceil_div(rows, blocks * QUERIES);
}

/* Returns the first row of piece i of a segment; pieces are whole blocks, divided evenly. */
static int64_t
piece_begin(int64_t rows, int64_t pieces, int64_t i)
{
    return qv_at_most(qv_ceil_div(rows, QUERIES) * i / pieces * QUERIES, rows);
}

/* Chooses the maximum number of query blocks per piece: fewer pieces lay out keys less often, more
 * pieces balance the work better. The estimate assumes that all pieces are as long as the longest,
 * and that threads reach their last piece up to one piece apart, because they are not equally
 * fast. */
static int64_t
choose_blocks(const struct qv_kernel *kernel, const struct attention_call_cpu *call)
{
    double best = INFINITY;
    int64_t choice = MOST_BLOCKS;
    for (int64_t blocks = MOST_BLOCKS; blocks > 0; blocks /= 2) {
        double all = 0, longest = 0;
        for (int64_t i = 0; i < call->n_segments; i++) {
            int64_t rows = call->segments[i].rows, pieces = pieces_of(rows, blocks);
            double piece = (double)(rows + LAYING_OUT * pieces) / (double)pieces * (double)rows;
            all += piece * (double)(pieces * kernel->op.u.attention.heads);
            longest = fmax(longest, piece);
        }
        double rounds = ceil(all / longest / kernel->attention.threads * (1 - 1e-9));
        if ((rounds + 0.5) * longest < best) {
            best = (rounds + 0.5) * longest;
            choice = blocks;
        }
    }
    return choice;
}

/* Finds piece `number`; returns false past the last one. Numbers must increase from call to call.
 * *segment and *before, the number of pieces in earlier segments, are kept between calls. */
static bool
find_piece(const struct qv_kernel *kernel, const struct attention_call_cpu *call, int64_t blocks,
           int64_t number, int64_t *segment, int64_t *before, struct piece *out)
{
    for (; *segment < call->n_segments; ++*segment) {
        int64_t rows = call->segments[*segment].rows, pieces = pieces_of(rows, blocks);
        int64_t i = number - *before;
        if (i < pieces * kernel->op.u.attention.heads) {
            out->segment = call->segments[*segment];
            out->head = i / pieces;
            out->first = piece_begin(rows, pieces, i % pieces);
            out->rows = piece_begin(rows, pieces, i % pieces + 1) - out->first;
            return true;
        }
        *before += pieces * kernel->op.u.attention.heads;
    }
    return false;
}

/* Runs all pieces. A free thread takes the next piece; its following piece will probably be as many
 * pieces ahead as there are threads. */
qv_status
qv_attention_segments_cpu(struct qv_device_cpu *dev, const struct qv_kernel *kernel,
                          const struct attention_call_cpu *call, void *scratch, qv_error *err)
{
    const struct attention_cpu *a = &kernel->attention;
    int64_t blocks = choose_blocks(kernel, call), taken = 0;
    qv_status status = QV_OK;
#pragma omp parallel num_threads(a->threads)
    {
        int thread = omp_get_thread_num();
        struct rows_ahead ahead[AHEAD];
        struct piece piece = { .dev = dev,
                               .kernel = kernel,
                               .call = call,
                               .gemms = a->gemms[thread],
                               .scratch = (char *)scratch + (size_t)thread * a->thread_bytes,
                               .ahead = ahead };
        struct piece next = piece;
        int64_t mine, segment = 0, before = 0;
#pragma omp atomic capture
        mine = taken++;
        while (find_piece(kernel, call, blocks, mine, &segment, &before, &piece)) {
            qv_error failure = { 0 };
            int64_t at = segment, of = before;
            bool more = find_piece(kernel, call, blocks, mine + a->threads, &at, &of, &next);
            if (attend_piece(&piece, more ? &next : NULL, &failure))
#pragma omp critical(qv_attention)
                status = qv_fail(err, failure.status, "%s", failure.text);
#pragma omp atomic capture
            mine = taken++;
        }
    }
    return status;
}

/* Reads the segments from the list, or makes segments of equal length. Returns how many are not
 * empty. */
static int64_t
read_segments(const struct qv_kernel *kernel, const int32_t *list)
{
    const struct qv_op_attention *op = &kernel->op.u.attention;
    int64_t n = 0;
    for (int64_t i = 0; i < op->segments; i++) {
        struct segment_cpu s = { i * op->segment_rows, op->segment_rows };
        if (list)
            s = (struct segment_cpu){ list[i], list[op->segments + 1 + i] };
        if (s.rows)
            kernel->attention.segments[n++] = s;
    }
    return n;
}

static qv_status
run_attention(struct qv_device_cpu *dev, const struct qv_kernel *kernel, void *const *p,
              void *scratch, qv_error *err)
{
    const struct qv_op_attention *op = &kernel->op.u.attention;
    int64_t width = op->heads * op->head_dim;
    struct attention_call_cpu call = { .q = { p[1], qv_row_stride(op->q_stride, width) },
                                       .k = { p[2], qv_row_stride(op->k_stride, width) },
                                       .v = { p[3], qv_row_stride(op->v_stride, width) },
                                       .y = { p[4], width },
                                       .segments = kernel->attention.segments,
                                       .n_segments = read_segments(kernel, p[0]) };
    if (!call.n_segments)
        return QV_OK;
    return qv_attention_segments_cpu(dev, kernel, &call, scratch, err);
}

static void
release_attention(struct qv_kernel *kernel)
{
    struct attention_cpu *a = &kernel->attention;
    for (int t = 0; t < a->threads && a->gemms; t++)
        for (int i = 0; i < ATTENTION_KEY_KINDS; i++)
            for (int kind = 0; kind < ATTENTION_QUERY_KINDS; kind++) {
                qv_primitive_close_cpu(&a->gemms[t][i].scores[kind]);
                qv_primitive_close_cpu(&a->gemms[t][i].values[kind]);
            }
    free(a->gemms);
    free(a->segments);
}

static void
describe_attention(const struct qv_kernel *kernel, char *text, size_t size)
{
    /* segments of every length need these kinds */
    const struct gemms_cpu *gemms = kernel->attention.gemms[0];
    qv_primitive_describe_cpu("", &gemms->scores[ATTENTION_QUERY_KINDS - 1], text, size);
    qv_primitive_describe_cpu(", our softmax, ", &gemms->values[ATTENTION_QUERY_KINDS - 1], text,
                              size);
}

const struct verbs_cpu qv_attention_verbs_cpu = { .prepare = prepare_attention,
                                                  .run = run_attention,
                                                  .release = release_attention,
                                                  .describe = describe_attention };
