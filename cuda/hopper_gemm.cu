/* SPDX-License-Identifier: MIT */
/*
 * A gemm and the operation after it in one kernel, for Hopper (compute capability 9.0), with the
 * bits of the two: sums get their bias and are rounded to bf16, turned (rope) or multiplied (gate)
 * in f32, and rounded again. A block has a warpgroup that copies x and w (with one active thread)
 * and two that compute. A tile is two or three heads wide, or 96 pairs of columns. Shared memory's
 * bandwidth limits the kernel: products, copies and the ends of tiles all use it. Sums over k are
 * not split, so a row's bits do not depend on the other rows.
 */
#include "hopper.cuh"

enum {
    GROUP = 128, /* threads of a warpgroup */
    WARPS = GROUP / WARP,
    COMPUTING = 2,    /* warpgroups that compute */
    PART_ROWS = 64,   /* of one wgmma */
    STRIP = 16,       /* rows of a warp in a part */
    STEP = 64,        /* columns of k that are copied at once; */
    STEP_BYTES = 128, /* one row of them */
    SUM_K = 16,       /* columns of one wgmma; */
    SUM_K_BYTES = 32,
    ALIGNMENT = 1024,       /* of swizzled rows */
    MOST_BYTES = 227 << 10, /* of a block's shared memory */
    MOST_STAGES = 8
};

/* mbarriers: a step is copied, or its place may be written again */
struct ring {
    uint64_t full[MOST_STAGES], empty[MOST_STAGES];
};

/* How the warpgroups divide tiles:
 * TURNS     a tile of 128 rows each. They multiply by turns, so that one tile is finished and
 *           written while the tensor cores multiply for the other.
 * TOGETHER  half of a tile of 128 rows each
 * ALONE     a tile of 64 rows for one of them
 * The last two are for as many tiles as the GPU has multiprocessors, or fewer. */
enum tiling { TURNS, TOGETHER, ALONE };

static constexpr int
tile_rows(int tiling)
{
    return tiling == ALONE ? PART_ROWS : 2 * PART_ROWS;
}

/* head_dim 0 means the gate: the first half of a tile's columns is a, the second is b. */
static constexpr int
tile_columns(int head_dim, int tiling)
{
    const bool three = tiling == TOGETHER || (tiling == TURNS && head_dim == 64);
    return head_dim ? head_dim * (three ? 3 : 2) : 192;
}

template <int HEAD_DIM, int TILING> struct room {
    static constexpr int TAKING_TURNS = TILING == TOGETHER ? 1 : COMPUTING; /* warpgroups */
    static constexpr int PARTS = TILING == TURNS ? 2 : 1; /* of a tile, in a warpgroup */
    static constexpr int ROWS = tile_rows(TILING), N = tile_columns(HEAD_DIM, TILING);
    static constexpr int COLS = HEAD_DIM ? N : N / 2; /* of y in a tile */
    static constexpr int X_BYTES = ROWS * STEP_BYTES, STAGE_BYTES = X_BYTES + N * STEP_BYTES;
    /* a warp's strip of a head, or of all COLS; PITCH puts eight rows of it into different banks */
    static constexpr int STRIP_COLS = HEAD_DIM ? HEAD_DIM : COLS;
    static constexpr int PITCH = STRIP_COLS % 16 ? STRIP_COLS : STRIP_COLS + 8;
    static constexpr int STRIP_SIZE = STRIP * PITCH;
    static constexpr int STRIPS_BYTES = COMPUTING * WARPS * STRIP_SIZE * (int)sizeof(bf16);
    static constexpr int REST = STRIPS_BYTES + (int)sizeof(struct ring); /* besides the stages */
    /* steps that shared memory holds */
    static constexpr int STAGES = (MOST_BYTES - REST) / STAGE_BYTES;
    static constexpr int STRIPS = STAGES * STAGE_BYTES, SIGNALS = STRIPS + STRIPS_BYTES;
    static_assert(STAGES <= MOST_STAGES, "a ring's size");
};

struct product_shape {
    int rows, cols, steps, tiles, tiles_across; /* cols: of y */
    int turned;                                 /* columns that rope turns */
    const bf16 *bias;
    const float *cosines, *sines; /* [positions, head_dim / 4] */
    const int4 *coords;
};

template <int HEAD_DIM, int TILING>
static __device__ __forceinline__ void
copy_tiles(char *shared, struct ring *signals, const CUtensorMap *x, const CUtensorMap *w,
           const struct product_shape &s)
{
    typedef room<HEAD_DIM, TILING> room;
    int stage = 0, empty = 1;
    for (int tile = blockIdx.x; tile < s.tiles; tile += gridDim.x) {
        const int row = tile / s.tiles_across * room::ROWS;
        const int col = tile % s.tiles_across * room::COLS;
        for (int step = 0; step < s.steps; step++) {
            char *const to = shared + stage * room::STAGE_BYTES;
            await(&signals->empty[stage], empty);
            expect(&signals->full[stage], room::STAGE_BYTES);
            copy_box(to, x, &signals->full[stage], step * STEP, 0, row);
            for (int n = 0; n < room::N; n += room::COLS)
                copy_box(to + room::X_BYTES + n * STEP_BYTES, w, &signals->full[stage], step * STEP,
                         0, n ? s.cols + col : col);
            if (++stage == room::STAGES)
                stage = 0, empty ^= 1;
        }
    }
}

/* A strip of rows as it is turned and written. A lane has items of LANE values of a row, and the
 * LANE values half a head further, which turn with them. */
template <int HEAD_DIM> struct turner {
    static constexpr int HALF = HEAD_DIM / 2, QUARTER = HALF / 2, LANE = HALF % 8 ? 4 : 8;
    static constexpr int VECTORS = HALF / LANE, ITEMS = (STRIP * VECTORS + WARP - 1) / WARP;
    static constexpr int RUN = QUARTER % 4 ? 2 : 4; /* angles from the same row of the tables */
    float cosines[ITEMS][LANE], sines[ITEMS][LANE];

    __device__ __forceinline__ void
    load_angles(const struct product_shape &s, int first_row)
    {
        const int lane = lane_here();
#pragma unroll
        for (int k = 0; k < ITEMS; k++) {
            const int row = (k * WARP + lane) / VECTORS, col = (k * WARP + lane) % VECTORS * LANE;
            const int4 coords = s.coords[min(first_row + row, s.rows - 1)];
#pragma unroll
            for (int j = 0; j < LANE; j += RUN) {
                const int d = col + j;
                const int at = (d < QUARTER ? coords.z : coords.w - 1) * QUARTER + d;
                load(reinterpret_cast<float(&)[RUN]>(cosines[k][j]), s.cosines + at);
                load(reinterpret_cast<float(&)[RUN]>(sines[k][j]), s.sines + at);
            }
        }
    }

    /* Writes one head of `rows` rows. */
    __device__ __forceinline__ void
    store_head(bf16 *y, int64_t stride, int rows, const bf16 *strip, bool turned)
    {
        const int lane = lane_here();
#pragma unroll
        for (int k = 0; k < ITEMS; k++) {
            const int row = (k * WARP + lane) / VECTORS, col = (k * WARP + lane) % VECTORS * LANE;
            const bf16 *const from = strip + row * room<HEAD_DIM, TURNS>::PITCH + col;
            bf16 *const to = y + row * stride + col;
            if (row >= rows)
                break;
            float low[LANE], high[LANE];
            load(low, from);
            load(high, from + HALF);
#pragma unroll
            for (int j = 0; j < LANE && turned; j++) {
                const float a = low[j], b = high[j], c = cosines[k][j], n = sines[k][j];
                low[j] = a * c - b * n;
                high[j] = b * c + a * n;
            }
            store(to, low);
            store(to + HALF, high);
        }
    }
};

/* A warp's strips of a tile: a lane has rows lane / 4 and 8 further of each part, and of each eight
 * columns the two that begin at lane % 4 * 2. */
template <int HEAD_DIM, int TILING> struct product {
    typedef room<HEAD_DIM, TILING> room;
    static constexpr int EIGHTS = room::N / 8, OF_Y = room::COLS / 8; /* columns by eight */
    static constexpr int OF_STRIP = room::STRIP_COLS / 8;
    float sums[room::PARTS][room::N / 2];
    typedef float all_sums[room::PARTS * room::N / 2];

    /* Sums begin at 0, instead of at whatever the registers hold, so that the compiler may use the
     * registers in between. */
    __device__ __forceinline__
    product(void)
    {
#pragma unroll
        for (int i = 0; i < room::N / 2; i++)
#pragma unroll
            for (int part = 0; part < room::PARTS; part++)
                sums[part][i] = 0;
    }

    __device__ __forceinline__ void
    multiply(uint32_t x, uint32_t w)
    {
        begin_products();
#pragma unroll
        for (int i = 0; i < STEP / SUM_K; i++)
#pragma unroll
            for (int part = 0; part < room::PARTS; part++)
                multiply_rows(sums[part],
                              matrix_at(x + part * PART_ROWS * STEP_BYTES + i * SUM_K_BYTES, 0,
                                        8 * STEP_BYTES, SWIZZLE_128),
                              matrix_at(w + i * SUM_K_BYTES, 0, 8 * STEP_BYTES, SWIZZLE_128));
        commit_products();
    }

    /* Stores the strip's words, from the eight columns number `first` on. */
    __device__ __forceinline__ void
    fill_strip(bf16 *strip, const uint32_t (&words)[2][EIGHTS], int first)
    {
        const int lane = lane_here();
        bf16 *const own = strip + lane / 4 * room::PITCH + lane % 4 * 2;
        __syncwarp();
#pragma unroll
        for (int i = 0; i < OF_STRIP; i++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                *reinterpret_cast<uint32_t *>(own + 8 * h * room::PITCH + 8 * i) =
                    words[h][first + i];
        __syncwarp();
    }

    /* Writes the warp's strips of the tile. row, col: where the first one begins in y. */
    __device__ __forceinline__ void
    finish(const struct product_shape &s, bf16 *y, bf16 *strip, int row, int col)
    {
        uint32_t words[room::PARTS][2][EIGHTS];
        const int lane = lane_here();
#pragma unroll
        for (int i = 0; i < EIGHTS; i++) {
            float plus[2] = {};
            const int at = col + i % OF_Y * 8 + lane % 4 * 2;
            if (s.bias && (HEAD_DIM || at < s.cols))
                load(plus, s.bias + (i < OF_Y ? at : s.cols + at));
#pragma unroll
            for (int part = 0; part < room::PARTS; part++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    words[part][h][i] = pair(sums[part][4 * i + 2 * h] + plus[0],
                                             sums[part][4 * i + 2 * h + 1] + plus[1]);
        }
#pragma unroll
        for (int part = 0; part < room::PARTS; part++) {
            const int first = row + part * PART_ROWS, rows = min(s.rows - first, (int)STRIP);
            bf16 *const to = y + (int64_t)first * s.cols + col;
            if constexpr (HEAD_DIM == 0) {
                gate(words[part]);
                fill_strip(strip, words[part], 0);
                store_strip(to, s.cols, rows, s.cols - col, strip);
            } else {
                struct turner<HEAD_DIM> turner;
                if (col < s.turned)
                    turner.load_angles(s, first);
#pragma unroll
                for (int at = 0; at < room::N; at += HEAD_DIM) {
                    fill_strip(strip, words[part], at / 8);
                    turner.store_head(to + at, s.cols, rows, strip, col + at < s.turned);
                }
            }
        }
    }

    /* words[][i] = silu(a) * b, as the gate computes it */
    static __device__ __forceinline__ void
    gate(uint32_t (&words)[2][EIGHTS])
    {
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int i = 0; i < EIGHTS / 2; i++) {
                float a[2], b[2];
                load(a, reinterpret_cast<const bf16 *>(&words[h][i]));
                load(b, reinterpret_cast<const bf16 *>(&words[h][EIGHTS / 2 + i]));
                words[h][i] = pair(b[0] * swish<bf16>(a[0], 1), b[1] * swish<bf16>(a[1], 1));
            }
    }

    /* Writes the strip's rows, up to column `cols`. */
    static __device__ __forceinline__ void
    store_strip(bf16 *y, int64_t stride, int rows, int cols, const bf16 *strip)
    {
#pragma unroll
        for (int i = lane_here(); i < STRIP * OF_Y; i += WARP) {
            const int row = i / OF_Y, col = i % OF_Y * 8;
            if (row < rows && col < cols)
                put(y + row * stride + col, fetch<8>(strip + row * room::PITCH + col));
        }
    }
};

template <int HEAD_DIM, int TILING>
static __device__ __forceinline__ void
compute_tiles(char *shared, struct ring *signals, const struct product_shape &s, int group, bf16 *y)
{
    typedef room<HEAD_DIM, TILING> room;
    enum { BARRIER_TURN = 1 }; /* one per warpgroup */
    const int warp = threadIdx.x % GROUP / WARP;
    bf16 *const strip =
        reinterpret_cast<bf16 *>(shared + room::STRIPS) + (group * WARPS + warp) * room::STRIP_SIZE;
    const int turn = room::TAKING_TURNS > 1 ? group : 0, part = group - turn;
    const int skipped = (room::TAKING_TURNS - 1) * s.steps; /* the other warpgroup's */
    int stage = turn * s.steps % room::STAGES, full = turn * s.steps / room::STAGES % 2;
    if (turn)
        arrive_threads(BARRIER_TURN, 2 * GROUP); /* the first warpgroup begins */
    for (int tile = blockIdx.x + turn * gridDim.x; tile < s.tiles;
         tile += room::TAKING_TURNS * gridDim.x) {
        const int row = tile / s.tiles_across * room::ROWS + part * PART_ROWS + warp * STRIP;
        const int col = tile % s.tiles_across * room::COLS;
        struct product<HEAD_DIM, TILING> product;
        auto &all = reinterpret_cast<typename decltype(product)::all_sums &>(product.sums);
        int last = 0;
        if (room::TAKING_TURNS > 1)
            sync_threads(BARRIER_TURN + turn, 2 * GROUP);
        for (int step = 0; step < s.steps; step++) {
            await(&signals->full[stage], full);
            const uint32_t x = shared_address(shared) + stage * room::STAGE_BYTES;
            product.multiply(x + part * PART_ROWS * STEP_BYTES, x + room::X_BYTES);
            await_products<1>(all);
            if (step > 0)
                arrive(&signals->empty[last]);
            last = stage;
            if (++stage == room::STAGES)
                stage = 0, full ^= 1;
        }
        if (room::TAKING_TURNS > 1)
            arrive_threads(BARRIER_TURN + 1 - turn, 2 * GROUP);
        await_products<0>(all);
        arrive(&signals->empty[last]);
        full ^= (stage + skipped) / room::STAGES % 2;
        stage = (stage + skipped) % room::STAGES;
        product.finish(s, y, strip, row, col);
    }
}

template <int HEAD_DIM, int TILING>
static __global__ void __launch_bounds__((COMPUTING + 1) * GROUP, 1)
    hopper_gemm_kernel(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap w,
                       const struct product_shape s, bf16 *y)
{
#ifndef __CUDA_ARCH_FEAT_SM90_ALL
    __trap(); /* never launched there */
#else
    typedef room<HEAD_DIM, TILING> room;
    extern __shared__ __align__(ALIGNMENT) char shared[];
    auto *const signals = reinterpret_cast<struct ring *>(shared + room::SIGNALS);
    if (threadIdx.x == 0) {
        for (int i = 0; i < room::STAGES; i++) {
            open_signal(&signals->full[i], 1);
            open_signal(&signals->empty[i], COMPUTING / room::TAKING_TURNS * WARPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    await_launch();
    /* moves registers from the copying warpgroup to the computing warpgroups */
    if (threadIdx.x < GROUP) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == 0)
            copy_tiles<HEAD_DIM, TILING>(shared, signals, &x, &w, s);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        compute_tiles<HEAD_DIM, TILING>(shared, signals, s, threadIdx.x / GROUP - 1, y);
    }
#endif
}

/* ---- the launch ------------------------------------------------------------------------------ */

template <int HEAD_DIM, int TILING>
static cudaError_t
multiply(cudaStream_t stream, const struct qv_op_gemm *op, struct product_shape s, void *const *p,
         void *y, int blocks)
{
    typedef room<HEAD_DIM, TILING> room;
    CUtensorMap of_x, of_w;
    s.tiles_across = (int)ceil_div(s.cols, room::COLS);
    s.tiles = (int)ceil_div(s.rows, room::ROWS) * s.tiles_across;
    if (!describe_boxes(&of_x, p[0], { op->m, 1, op->k, op->k, room::ROWS, STEP }) ||
        !describe_boxes(&of_w, p[1], { op->n, 1, op->k, op->k, room::COLS, STEP }))
        return cudaErrorInvalidValue;
    return launch_shared(stream, s.tiles < blocks ? s.tiles : blocks, dim3((COMPUTING + 1) * GROUP),
                         room::STRIPS + room::REST, true, hopper_gemm_kernel<HEAD_DIM, TILING>,
                         of_x, of_w, s, (bf16 *)y);
}

template <int HEAD_DIM, typename... Arguments>
static cudaError_t
multiply_in(int tiling, Arguments... arguments)
{
    return tiling == TURNS      ? multiply<HEAD_DIM, TURNS>(arguments...)
           : tiling == TOGETHER ? multiply<HEAD_DIM, TOGETHER>(arguments...)
                                : multiply<HEAD_DIM, ALONE>(arguments...);
}

/* Returns whether the kernel supports the operations. */
static bool
supports(const struct qv_op_gemm *gemm, const struct qv_op *next)
{
    const struct qv_op_rope *rope = &next->u.rope;
    const struct qv_op_gate *gate = &next->u.gate;
    if (gemm->x_dtype != QV_BF16 || gemm->k % LANES<bf16> || gemm->alpha != 1 || gemm->act ||
        gemm->residual_rows || gemm->m > INT32_MAX / gemm->n || gemm->k > INT32_MAX / STEP)
        return false;
    if (next->kind == QV_OP_gate)
        return gate->y_dtype == QV_BF16 && gate->act == QV_ACT_SILU && gate->rows == gemm->m &&
               gate->cols * 2 == gemm->n && gate->cols % LANES<bf16> == 0 &&
               gate->a_stride == gemm->n && gate->b_stride == gemm->n;
    const int64_t head = rope->head_dim;
    return next->kind == QV_OP_rope && (head == 64 || head == 72 || head == 80) &&
           rope->x_dtype == QV_BF16 && rope->rows == gemm->m &&
           rope->positions <= INT32_MAX / head &&
           qv_row_stride(rope->x_stride, rope->heads * head) == gemm->n;
}

/* Finds a tiling that is faster than cuBLASLt and the other pass: one that leaves few enough
 * multiprocessors idle. Measured with towers on an H200. */
static bool
find_tiling(const struct qv_op_gemm *gemm, const struct qv_op *next, int blocks, int *out)
{
    static const int busy_tenths[] = { 9, 7, 5 }; /* for TURNS, TOGETHER and ALONE */
    const bool gates = next->kind == QV_OP_gate;
    if (!supports(gemm, next))
        return false;
    for (int tiling = TURNS; tiling <= ALONE; tiling++) {
        const int64_t cols = tile_columns(gates ? 0 : (int)next->u.rope.head_dim, tiling);
        const int64_t tiles = ceil_div(gemm->m, tile_rows(tiling)) * ceil_div(gemm->n, cols);
        const int64_t times = ceil_div(tiles, blocks);
        *out = tiling;
        if ((times > 1) == (tiling == TURNS) && (gates ? tiling == TURNS : gemm->n % cols == 0) &&
            tiles * 10 >= times * blocks * (gates ? 7 : busy_tenths[tiling]))
            return true;
    }
    return false;
}

bool
qv_gemm_with_is_hopper_cuda(const struct qv_op_gemm *gemm, const struct qv_op *next, int blocks)
{
    int tiling;
    return find_tiling(gemm, next, blocks, &tiling);
}

cudaError_t
qv_gemm_with_hopper_cuda(cudaStream_t stream, const struct qv_op_gemm *gemm,
                         const struct qv_op *next, void *const *of_gemm, void *const *of_next,
                         int blocks)
{
    struct product_shape s = {};
    int tiling;
    if (!find_tiling(gemm, next, blocks, &tiling))
        return cudaErrorNotSupported;
    s.rows = (int)gemm->m;
    s.cols = (int)gemm->n;
    s.steps = (int)ceil_div(gemm->k, STEP);
    s.bias = gemm->bias ? (const bf16 *)of_gemm[2] : NULL;
    if (next->kind == QV_OP_gate) {
        s.cols /= 2;
        return multiply<0, TURNS>(stream, gemm, s, of_gemm, of_next[2], blocks);
    }
    s.turned = (int)(next->u.rope.heads * next->u.rope.head_dim);
    s.cosines = (const float *)of_next[0];
    s.sines = (const float *)of_next[1];
    s.coords = (const int4 *)of_next[2];
    switch (next->u.rope.head_dim) {
    case 64: return multiply_in<64>(tiling, stream, gemm, s, of_gemm, of_next[3], blocks);
    case 72: return multiply_in<72>(tiling, stream, gemm, s, of_gemm, of_next[3], blocks);
    case 80: return multiply_in<80>(tiling, stream, gemm, s, of_gemm, of_next[3], blocks);
    }
    return cudaErrorNotSupported;
}
