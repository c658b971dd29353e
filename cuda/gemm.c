/* SPDX-License-Identifier: MIT */
/*
 * gemm on cuBLASLt, which is column-major: y[m,n] = x[m,k] w[n,k]^T is its Y[n,m] = W[k,n]^T X[k,m]
 * with the same bytes. A residual with fewer rows than y is the C of a batch whose stride is 0. C
 * must not be Y, or sums are rounded before C is added. Epilogues that cuBLASLt lacks (the erf
 * GELU, an activation before a residual) run on our `epilogue` kernel, on f32 sums; activations
 * with a sigmoid run in a cuDNN graph (gemm_graph.c).
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cublaslt_names.h" /* the arrays matmul_tile_names etc., generated from cublasLt.h */
#include "cudnn_graph.h"
#include "dtype.h"

enum {
    MOST_WORKSPACE = 64 << 20,
    ALIGNMENT = 16, /* of every operand, see qv_wrap_cuda */
    /* with this many rows or more, the heuristic's algorithms give a row the same bits */
    ALIKE_ROWS = 512,
    ANY = -1,        /* any algorithm */
    MOST_FOUND = 8,  /* algorithms to ask the heuristic for; it returns no more */
    SHORT_K = 2048,  /* below it, writing a tile takes a large share of the time */
    ROW_MULTIPLE = 8 /* in bf16 values; rows of y then begin at multiples of 16 bytes */
};

static cudaDataType_t
type_of(int64_t dtype)
{
    return dtype == QV_F32 ? CUDA_R_32F : CUDA_R_16BF; /* prepare refuses other dtypes */
}

/* Pads k so that rows of bf16 begin at multiples of 16 bytes. Rows of f32 may begin anywhere. */
static int64_t
padded_k(int64_t k, int64_t dtype)
{
    int64_t multiple = dtype == QV_F32 ? 1 : ALIGNMENT / (int64_t)qv_dtype_bytes(dtype);
    return (k + multiple - 1) / multiple * multiple;
}

struct qv_layout
qv_gemm_layout_cuda(const struct qv_matrix *matrix)
{
    const int64_t k = padded_k(matrix->k, matrix->dtype);
    return (struct qv_layout){ (size_t)(matrix->n * k) * qv_dtype_bytes(matrix->dtype), 1 };
}

/* Uploads rows as they are, or padded with zeros. */
qv_status
qv_gemm_lay_out_cuda(struct qv_device_cuda *dev, const struct qv_matrix *matrix, int64_t row0,
                     int64_t rows, const void *src, struct qv_buffer dst, qv_error *err)
{
    size_t element = qv_dtype_bytes(matrix->dtype), from = (size_t)matrix->k * element;
    size_t to = (size_t)padded_k(matrix->k, matrix->dtype) * element;
    dst.offset += (size_t)row0 * to;
    if (from == to)
        return qv_upload_cuda(&dev->base, dst, src, (size_t)rows * to, err);
    char *padded = calloc((size_t)rows, to);
    if (!padded)
        return qv_fail(err, QV_ENOMEM, "no memory to pad %zu bytes of weights", (size_t)rows * to);
    for (int64_t i = 0; i < rows; i++)
        memcpy(padded + (size_t)i * to, (const char *)src + (size_t)i * from, from);
    qv_status status = qv_upload_cuda(&dev->base, dst, padded, (size_t)rows * to, err);
    free(padded);
    return status;
}

/* ---- describing ------------------------------------------------------------------------------ */

/* The number of times that the residual's rows repeat; each repetition is a batch. */
static int64_t
batches(const struct qv_op_gemm *op, bool f32_sums)
{
    return !f32_sums && op->residual_rows ? op->m / op->residual_rows : 1;
}

static cublasStatus_t
set_epilogue(const struct qv_op_gemm *op, bool f32_sums, cublasLtMatmulDesc_t desc)
{
    int bias_type = type_of(op->bias_dtype);
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    if (!f32_sums && op->act == QV_ACT_GELU_TANH)
        epilogue = op->bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    else if (!f32_sums && op->bias)
        epilogue = CUBLASLT_EPILOGUE_BIAS;
    cublasStatus_t s = cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE,
                                                      &epilogue, sizeof epilogue);
    if (!s && !f32_sums && op->bias)
        s = cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type,
                                           sizeof bias_type);
    return s;
}

static cublasStatus_t
create_desc(const struct qv_device_cuda *dev, const struct qv_op_gemm *op, bool f32_sums,
            cublasLtMatmulDesc_t *out)
{
    bool tf32 = op->x_dtype == QV_F32 && dev->tf32;
    cublasOperation_t transposed = CUBLAS_OP_T;
    cublasStatus_t s =
        cublasLtMatmulDescCreate(out, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                                 CUDA_R_32F);
    if (!s)
        s = cublasLtMatmulDescSetAttribute(*out, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                           sizeof transposed);
    return s ? s : set_epilogue(op, f32_sums, *out);
}

/* Describes a matrix of `rows` rows of `cols` contiguous values. Batches lie `stride` values
 * apart. */
static cublasStatus_t
create_layout(cublasLtMatrixLayout_t *out, cudaDataType_t type, int64_t cols, int64_t rows,
              int64_t batch, int64_t stride)
{
    int32_t count = (int32_t)batch;
    cublasStatus_t s = cublasLtMatrixLayoutCreate(out, type, (uint64_t)cols, (uint64_t)rows, cols);
    if (!s && batch > 1)
        s = cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                             sizeof count);
    if (!s && batch > 1)
        s = cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                             &stride, sizeof stride);
    return s;
}

/* rows: of x and y, in each batch */
static cublasStatus_t
create_layouts(const struct qv_op_gemm *op, bool f32_sums, int64_t rows, struct gemm_cuda *g)
{
    cudaDataType_t y_type = f32_sums ? CUDA_R_32F : type_of(op->y_dtype);
    int64_t batch = batches(op, f32_sums), k = padded_k(op->k, op->x_dtype);
    cublasStatus_t s = create_layout(&g->w, type_of(op->w_dtype), k, op->n, batch, 0);
    if (!s)
        s = create_layout(&g->x, type_of(op->x_dtype), k, rows, batch, rows * k);
    if (!s)
        s = create_layout(&g->c, y_type, op->n, rows, batch, 0);
    if (!s)
        s = create_layout(&g->y, y_type, op->n, rows, batch, rows * op->n);
    return s;
}

/* ---- choosing -------------------------------------------------------------------------------- */

/*
 * Excludes algorithms that split sums over k among blocks. The number of parts depends on how many
 * rows fill the device, so a segment's bits would depend on the capacity of its plan. Unsplit sums
 * do not depend on it on an H200, in the algorithms chosen for ALIKE_ROWS rows and more (observed,
 * not promised by the library). Fewer rows, such as the merger's of a small image, therefore use
 * the algorithm chosen for ALIKE_ROWS.
 */
static cublasStatus_t
create_preference(cublasLtMatmulPreference_t *out)
{
    uint64_t workspace = MOST_WORKSPACE;
    uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_NONE, alignment = ALIGNMENT;
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES
    };
    cublasStatus_t s = cublasLtMatmulPreferenceCreate(out);
    if (!s)
        s = cublasLtMatmulPreferenceSetAttribute(*out, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                 &workspace, sizeof workspace);
    if (!s)
        s = cublasLtMatmulPreferenceSetAttribute(*out, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                 &reduction, sizeof reduction);
    for (size_t i = 0; i < sizeof alignments / sizeof *alignments && !s; i++)
        s = cublasLtMatmulPreferenceSetAttribute(*out, alignments[i], &alignment, sizeof alignment);
    return s;
}

static uint32_t
algorithm_value(const cublasLtMatmulAlgo_t *algo, cublasLtMatmulAlgoConfigAttributes_t attribute)
{
    uint32_t value = 0;
    size_t written = 0;
    cublasLtMatmulAlgoConfigGetAttribute(algo, attribute, &value, sizeof value, &written);
    return value;
}

static uint16_t
cluster_of(const cublasLtMatmulAlgo_t *algo)
{
    uint16_t value = CUBLASLT_CLUSTER_SHAPE_AUTO;
    size_t written = 0;
    cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, &value,
                                         sizeof value, &written);
    return value;
}

/* Returns whether an algorithm splits sums. The heuristic may return one although the preference
 * excludes it. */
static bool
splits_sums(const cublasLtMatmulAlgo_t *algo)
{
    return algorithm_value(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM) > 1 ||
           algorithm_value(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME) !=
               CUBLASLT_REDUCTION_SCHEME_NONE;
}

static void
destroy_layouts(struct gemm_cuda *g)
{
    cublasLtMatrixLayout_t *const layouts[] = { &g->w, &g->x, &g->c, &g->y };
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        if (*layouts[i])
            cublasLtMatrixLayoutDestroy(*layouts[i]);
        *layouts[i] = NULL;
    }
}

static bool
suits(const cublasLtMatmulHeuristicResult_t *found, int64_t id)
{
    return !found->state && !splits_sums(&found->algo) &&
           (id == ANY || algorithm_value(&found->algo, CUBLASLT_ALGO_CONFIG_ID) == id);
}

/*
 * Returns whether an algorithm is reliable. While another process uses an H200 too (one that
 * decodes, for example), a kernel of cuBLASLt 13.1 in clusters of 2x4 blocks, for residuals in
 * tiles of 256x128, sometimes executes an illegal instruction: in 7 of 41 jobs of 84 clips with
 * large frames, and in all four core dumps. Without clusters of more than two blocks 30 passed.
 */
static bool
is_reliable(const struct qv_device_cuda *dev, const cublasLtMatmulAlgo_t *algo)
{
    const uint16_t cluster = cluster_of(algo);
    return dev->sm != 90 || cluster == CUBLASLT_CLUSTER_SHAPE_AUTO ||
           cluster == CUBLASLT_CLUSTER_SHAPE_1x1x1 || cluster == CUBLASLT_CLUSTER_SHAPE_2x1x1 ||
           cluster == CUBLASLT_CLUSTER_SHAPE_1x2x1;
}

/*
 * Returns how well a Hopper GPU runs a large product in an algorithm's tiles (lower is better), or
 * INFINITY if that is unknown. The heuristic often ranks others first, as measured on an H200 with
 * all products of five towers, 512 to 35,344 rows: tiles that the two groups of warps share
 * unevenly read a residual at 0.6 to 0.8 of the speed, and where sums are short, tiles of 128x128,
 * which the groups compute by turns, are up to 1.1 times as fast as larger ones. A tile's cost is
 * its area, once for each time that the tiles fill the GPU; 128 columns cost 1.05 times as much.
 */
static double
tile_cost(const struct qv_op_gemm *op, const cublasLtMatmulHeuristicResult_t *found)
{
    const uint32_t id = algorithm_value(&found->algo, CUBLASLT_ALGO_CONFIG_TILE_ID);
    const char *name =
        id < sizeof matmul_tile_names / sizeof *matmul_tile_names ? matmul_tile_names[id] : NULL;
    int cols, rows; /* of y */
    if (!name || sscanf(name, "%dx%d", &cols, &rows) != 2)
        return INFINITY;
    if (!op->residual_rows)
        return op->bias && op->k < SHORT_K && cols == 128 && rows == 128 ? 0 : INFINITY;
    if (cols < 128 || cols % 64 || rows < 96 || (cols == 128 && rows % 64))
        return INFINITY;
    return ceil(found->wavesCount) * cols * rows * (cols == 128 ? 1.05 : 1);
}

/* Returns whether g->algo can run g's layouts. */
static bool
runs(struct qv_device_cuda *dev, struct gemm_cuda *g)
{
    cublasLtMatmulHeuristicResult_t found = { 0 };
    if (cublasLtMatmulAlgoCheck(dev->lt, g->desc, g->w, g->x, g->c, g->y, &g->algo, &found) ||
        found.state)
        return false;
    g->workspace_bytes = found.workspaceSize;
    g->waves = found.wavesCount;
    return true;
}

/* Uses an unreliable algorithm's tiles without clusters. Tiles meant for clusters of 4x2 blocks
 * lose the least: products of towers, 64 to 760 rows, take 1.05 of the time on an H200. */
static bool
choose_tiles(struct qv_device_cuda *dev, struct gemm_cuda *g,
             const cublasLtMatmulHeuristicResult_t *found, int n, int64_t id)
{
    const uint16_t alone = CUBLASLT_CLUSTER_SHAPE_1x1x1;
    for (int any = 0; any < 2; any++)
        for (int i = 0; i < n; i++) {
            if (!suits(&found[i], id) ||
                (!any && cluster_of(&found[i].algo) != CUBLASLT_CLUSTER_SHAPE_4x2x1))
                continue;
            g->algo = found[i].algo;
            if (!cublasLtMatmulAlgoConfigSetAttribute(&g->algo,
                                                      CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, &alone,
                                                      sizeof alone) &&
                runs(dev, g))
                return true;
        }
    return false;
}

/* Selects one of the heuristic's algorithms that suit g's layouts and are reliable: the first, or
 * for a product that fills the GPU more than twice (once, with a residual) in the first's tiles,
 * the one with the best tiles. The result depends only on the operation, the device and the
 * library. id: the algorithm must have this number in cuBLASLt, or ANY. */
static qv_status
choose(struct qv_device_cuda *dev, struct qv_kernel *kernel, bool f32_sums, int64_t id,
       qv_error *err)
{
    const struct qv_op_gemm *op = &kernel->op.u.gemm;
    const bool measured = dev->sm == 90 && !f32_sums && op->x_dtype == QV_BF16;
    struct gemm_cuda *g = &kernel->u.gemm;
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t found[MOST_FOUND], *chosen = NULL;
    double best = INFINITY;
    int n = 0;
    cublasStatus_t s = create_preference(&preference);
    if (!s)
        s = cublasLtMatmulAlgoGetHeuristic(dev->lt, g->desc, g->w, g->x, g->c, g->y, preference,
                                           MOST_FOUND, found, &n);
    if (preference)
        cublasLtMatmulPreferenceDestroy(preference);
    if (s)
        return qv_check_cublas(dev, s, "cublasLtMatmulAlgoGetHeuristic", err);
    for (int i = 0; i < n; i++) {
        if (!suits(&found[i], id) || !is_reliable(dev, &found[i].algo))
            continue;
        if (!chosen) {
            chosen = &found[i];
            if (!measured || chosen->wavesCount <= (op->residual_rows ? 1 : 2))
                break;
        }
        const double cost = tile_cost(op, &found[i]);
        if (cost < best) {
            best = cost;
            chosen = &found[i];
        }
    }
    if (!chosen && choose_tiles(dev, g, found, n, id))
        return QV_OK;
    if (!chosen)
        return qv_fail(err, QV_EUNSUPPORTED,
                       "gemm: cuBLASLt has no algorithm without split sums and large clusters");
    g->algo = chosen->algo;
    g->workspace_bytes = chosen->workspaceSize;
    g->waves = chosen->wavesCount;
    return QV_OK;
}

static void
release_gemm(struct qv_kernel *kernel)
{
    struct gemm_cuda *g = &kernel->u.gemm;
    qv_graph_close_cuda(&g->graph);
    destroy_layouts(g);
    if (g->desc)
        cublasLtMatmulDescDestroy(g->desc);
    memset(g, 0, sizeof *g);
}

/* Describes the operands for `rows` rows in each batch, and chooses an algorithm for them. */
static qv_status
choose_for(struct qv_device_cuda *dev, struct qv_kernel *kernel, bool f32_sums, int64_t rows,
           int64_t id, qv_error *err)
{
    struct gemm_cuda *g = &kernel->u.gemm;
    destroy_layouts(g);
    cublasStatus_t s = create_layouts(&kernel->op.u.gemm, f32_sums, rows, g);
    return s ? qv_check_cublas(dev, s, "describing a gemm", err)
             : choose(dev, kernel, f32_sums, id, err);
}

/* For few rows: uses the algorithm chosen for ALIKE_ROWS, in the tiles suggested for these rows. On
 * an H200 tiles that leave nine tenths of the GPU idle take twice as long as those suggested for
 * more rows. */
static qv_status
choose_alike(struct qv_device_cuda *dev, struct qv_kernel *kernel, bool f32_sums, int64_t rows,
             qv_error *err)
{
    struct gemm_cuda *g = &kernel->u.gemm;
    qv_status status = choose_for(dev, kernel, f32_sums, ALIKE_ROWS, ANY, err);
    if (status)
        return status;
    const cublasLtMatmulAlgo_t alike = g->algo;
    const int64_t id = algorithm_value(&alike, CUBLASLT_ALGO_CONFIG_ID);
    cublasLtMatmulAlgo_t small = alike;
    bool idle = true;
    for (int64_t more = rows; more < ALIKE_ROWS && idle; more *= 2) {
        status = choose_for(dev, kernel, f32_sums, more, id, err);
        if (status && status != QV_EUNSUPPORTED)
            return status;
        idle = status || (dev->sm == 90 && g->waves < 0.1F);
        if (!idle || (!status && more == rows))
            small = g->algo;
    }
    destroy_layouts(g);
    const cublasStatus_t s = create_layouts(&kernel->op.u.gemm, f32_sums, rows, g);
    if (s)
        return qv_check_cublas(dev, s, "describing a gemm", err);
    g->algo = small;
    if (runs(dev, g))
        return QV_OK;
    g->algo = alike;
    return runs(dev, g) ? QV_OK : choose(dev, kernel, f32_sums, ANY, err);
}

static qv_status
prepare(struct qv_device_cuda *dev, struct qv_kernel *kernel, bool f32_sums, qv_error *err)
{
    const struct qv_op_gemm *op = &kernel->op.u.gemm;
    struct gemm_cuda *g = &kernel->u.gemm;
    const int64_t rows = op->m / batches(op, f32_sums);
    const bool few = rows < ALIKE_ROWS && op->x_dtype == QV_BF16;
    cublasStatus_t s = create_desc(dev, op, f32_sums, &g->desc);
    qv_status status = s     ? qv_check_cublas(dev, s, "describing a gemm", err)
                       : few ? choose_alike(dev, kernel, f32_sums, rows, err)
                             : choose_for(dev, kernel, f32_sums, rows, ANY, err);
    if (status) {
        release_gemm(kernel);
        return status;
    }
    if (f32_sums)
        g->sums_bytes = qv_aligned((size_t)(op->m * op->n) * sizeof(float));
    int64_t k = padded_k(op->k, op->x_dtype);
    if (k != op->k)
        g->padded_bytes = qv_aligned((size_t)(op->m * k) * qv_dtype_bytes(op->x_dtype));
    return QV_OK;
}

/* Returns whether cuBLASLt's epilogue would be less exact. If rows of y do not begin at multiples
 * of 16 bytes, its kernels round sums to bf16 before they add bias and residual. Its GELU in f32 is
 * also off by up to 5e-6. */
static bool
rounds_twice(const struct qv_op_gemm *op)
{
    bool epilogue = op->act || op->bias || op->residual_rows;
    return op->y_dtype == QV_F32 ? op->act : epilogue && op->n % ROW_MULTIPLE;
}

/* Returns why cuBLASLt's epilogue is not used; NULL if it is used. */
static const char *
epilogue_obstacle(const struct qv_op_gemm *op)
{
    if (op->act && op->act != QV_ACT_GELU_TANH)
        return "cuBLASLt has only the tanh GELU";
    if (op->act && op->residual_rows)
        return "cuBLASLt adds before it activates";
    if (rounds_twice(op))
        return "cuBLASLt's own would be less exact";
    return NULL;
}

static qv_status
prepare_cublas(struct qv_device_cuda *dev, struct qv_kernel *kernel, qv_error *err)
{
    const struct qv_op_gemm *op = &kernel->op.u.gemm;
    struct gemm_cuda *g = &kernel->u.gemm;
    const char *unfused = epilogue_obstacle(op);
    if (op->m > INT32_MAX || op->n > INT32_MAX || op->k > INT32_MAX)
        return qv_fail(err, QV_EUNSUPPORTED, "gemm: %lld x %lld x %lld; cuBLASLt supports up to %d",
                       (long long)op->m, (long long)op->n, (long long)op->k, INT32_MAX);
    qv_status status = prepare(dev, kernel, unfused, err);
    if (status == QV_EUNSUPPORTED && !unfused) {
        unfused = "cuBLASLt has no algorithm that includes it";
        status = prepare(dev, kernel, true, err);
    }
    g->unfused = unfused;
    return status;
}

/* Tries cuDNN before cuBLASLt. */
static qv_status
prepare_gemm(struct qv_device_cuda *dev, struct qv_kernel *kernel, size_t *scratch_bytes,
             qv_error *err)
{
    const struct target_cuda target = { .dev = dev, .tf32 = dev->tf32 };
    struct gemm_cuda *g = &kernel->u.gemm;
    qv_error none = { 0 };
    qv_status status = qv_gemm_plan_cuda(&target, &kernel->op.u.gemm, &g->graph, &none);
    if (!status)
        g->workspace_bytes = g->graph.workspace_bytes;
    else if (status == QV_EUNSUPPORTED)
        status = prepare_cublas(dev, kernel, err);
    else
        status = qv_fail(err, status, "%s", none.text);
    *scratch_bytes = g->padded_bytes + g->sums_bytes + g->workspace_bytes;
    return status;
}

/* ---- describing ------------------------------------------------------------------------------ */

/* Appends a name such as "128x256", or the number if it is newer than the header. */
static void
append_name(const char *what, const char *const *names, size_t n, uint32_t value, char *text,
            size_t size)
{
    size_t used = strlen(text);
    if (value < n && names[value])
        snprintf(text + used, size - used, ", %s %s", what, names[value]);
    else if (value)
        snprintf(text + used, size - used, ", %s number %u", what, (unsigned)value);
}

static void
describe_gemm(const struct qv_kernel *kernel, char *text, size_t size)
{
    const struct gemm_cuda *g = &kernel->u.gemm;
    if (g->graph.plan) {
        qv_graph_describe_cuda(&g->graph, NULL, text, size);
        return;
    }
    snprintf(text, size, "cuBLASLt algorithm %u",
             (unsigned)algorithm_value(&g->algo, CUBLASLT_ALGO_CONFIG_ID));
    append_name("tile", matmul_tile_names, COUNT_OF(matmul_tile_names),
                algorithm_value(&g->algo, CUBLASLT_ALGO_CONFIG_TILE_ID), text, size);
    append_name("stages", matmul_stages_names, COUNT_OF(matmul_stages_names),
                algorithm_value(&g->algo, CUBLASLT_ALGO_CONFIG_STAGES_ID), text, size);
    append_name("clusters", cluster_shape_names, COUNT_OF(cluster_shape_names),
                cluster_of(&g->algo), text, size);
    size_t used = strlen(text);
    if (g->padded_bytes)
        used += (size_t)snprintf(text + used, size - used, ", rows of x padded first");
    if (g->unfused)
        snprintf(text + used, size - used, ", then our epilogue: %s", g->unfused);
}

/* ---- running --------------------------------------------------------------------------------- */

static qv_status
run_gemm(struct qv_device_cuda *dev, const struct qv_kernel *kernel, void *const *p, void *scratch,
         qv_error *err)
{
    const struct qv_op_gemm *op = &kernel->op.u.gemm;
    const struct gemm_cuda *g = &kernel->u.gemm;
    bool f32_sums = g->sums_bytes > 0, residual = !f32_sums && op->residual_rows;
    char *padded = scratch, *sums = padded + g->padded_bytes, *workspace = sums + g->sums_bytes;
    void *y = f32_sums ? sums : p[4];
    const float alpha = f32_sums ? 1 : (float)op->alpha, beta = residual ? 1 : 0;
    qv_status status = QV_OK;
    if (g->graph.plan)
        return qv_gemm_graph_run_cuda(dev, op, &g->graph, p, scratch, err);
    if (g->padded_bytes)
        status =
            qv_check_cuda(dev,
                          qv_pad_rows_cuda(dev->stream, op->m, op->k, padded_k(op->k, op->x_dtype),
                                           op->x_dtype, p[0], padded),
                          "gemm's padding", err);
    if (!status && !f32_sums && op->bias)
        status = qv_check_cublas(dev,
                                 cublasLtMatmulDescSetAttribute(g->desc,
                                                                CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                                &p[2], sizeof p[2]),
                                 "gemm's bias", err);
    if (!status)
        status = qv_check_cublas(dev,
                                 cublasLtMatmul(dev->lt, g->desc, &alpha, p[1], g->w,
                                                g->padded_bytes ? padded : p[0], g->x, &beta,
                                                residual ? p[3] : y, g->c, y, g->y, &g->algo,
                                                workspace, g->workspace_bytes, dev->stream),
                                 "cublasLtMatmul", err);
    if (status || !f32_sums)
        return status;
    const struct qv_op_epilogue epilogue = qv_op_gemm_epilogue(op);
    return qv_check_cuda(dev, qv_epilogue_cuda(dev->stream, &epilogue, sums, p[2], p[3], p[4]),
                         "gemm's epilogue", err);
}

const struct verbs_cuda qv_gemm_verbs_cuda = {
    .library = CUBLASLT,
    .prepare = prepare_gemm,
    .run = run_gemm,
    .release = release_gemm,
    .describe = describe_gemm,
};
