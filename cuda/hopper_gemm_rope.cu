/* SPDX-License-Identifier: MIT */
/*
 * A gemm and the rope of its y in one kernel, for Hopper (compute capability 9.0), with the bits of
 * the two: sums get their bias and are rounded to bf16, turned in f32, and rounded again. A block
 * has a warpgroup that copies x and w (with one active thread) and two that compute, each a tile of
 * its own: 128 rows of two or three heads. They multiply by turns, so that one's tile is turned and
 * written while the tensor cores multiply for the other. What limits the kernel is shared memory's
 * bandwidth, which products, copies and rotations share. Sums over k are not split, so a row's bits
 * do not depend on the other rows.
 */
#include "hopper.cuh"

enum {
    GROUP = 128, /* threads of a warpgroup */
    WARPS = GROUP / WARP,
    COMPUTING = 2, /* warpgroups that compute */
    ROWS = 128,    /* of a tile, in two parts: */
    PARTS = 2,
    PART_ROWS = 64,   /* of one wgmma */
    STRIP = 16,       /* rows of a warp in a part */
    STEP = 64,        /* columns of k that are copied at once; */
    STEP_BYTES = 128, /* one row of them */
    SUM_K = 16,       /* columns of one wgmma; */
    SUM_K_BYTES = 32,
    ALIGNMENT = 1024 /* of swizzled rows */
};

template <int HEAD_DIM> struct room {
    static constexpr int HEADS = HEAD_DIM == 64 ? 3 : 2, N = HEADS * HEAD_DIM; /* of a tile */
    static constexpr int STAGES = HEAD_DIM == 72 ? 6 : 5; /* steps that shared memory holds */
    static constexpr int X_BYTES = ROWS * STEP_BYTES, STAGE_BYTES = X_BYTES + N * STEP_BYTES;
    /* a strip of a head per warp; PITCH puts eight rows of it into different banks */
    static constexpr int PITCH = HEAD_DIM % 16 ? HEAD_DIM : HEAD_DIM + 8;
    static constexpr int STRIPS = STAGES * STAGE_BYTES, STRIP_SIZE = STRIP * PITCH;
    static constexpr int SIGNALS = STRIPS + COMPUTING * WARPS * STRIP_SIZE * (int)sizeof(bf16);
};

/* mbarriers: a step is copied, or its place may be written again */
template <int HEAD_DIM> struct ring {
    uint64_t full[room<HEAD_DIM>::STAGES], empty[room<HEAD_DIM>::STAGES];
};

struct product_shape {
    int rows, cols, steps, tiles, tiles_across;
    int turned; /* columns that rope turns */
    const bf16 *bias;
    const float *cosines, *sines; /* [positions, head_dim / 4] */
    const int4 *coords;
};

template <int HEAD_DIM>
static __device__ __forceinline__ void
copy_tiles(char *shared, struct ring<HEAD_DIM> *signals, const CUtensorMap *x, const CUtensorMap *w,
           const struct product_shape &s)
{
    typedef room<HEAD_DIM> room;
    int stage = 0, empty = 1;
    for (int tile = blockIdx.x; tile < s.tiles; tile += gridDim.x) {
        const int row = tile / s.tiles_across * ROWS, col = tile % s.tiles_across * room::N;
        for (int step = 0; step < s.steps; step++) {
            char *const to = shared + stage * room::STAGE_BYTES;
            await(&signals->empty[stage], empty);
            expect(&signals->full[stage], room::STAGE_BYTES);
            copy_box(to, x, &signals->full[stage], step * STEP, 0, row);
            copy_box(to + room::X_BYTES, w, &signals->full[stage], step * STEP, 0, col);
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
            const bf16 *const from = strip + row * room<HEAD_DIM>::PITCH + col;
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
template <int HEAD_DIM> struct product {
    typedef room<HEAD_DIM> room;
    static constexpr int EIGHTS = room::N / 8, OF_HEAD = HEAD_DIM / 8; /* columns by eight */
    float sums[PARTS][room::N / 2];

    /* Sums begin at 0, instead of at whatever the registers hold, so that the compiler may use the
     * registers in between. */
    __device__ __forceinline__
    product(void)
    {
#pragma unroll
        for (int i = 0; i < room::N / 2; i++)
            sums[0][i] = sums[1][i] = 0;
    }

    __device__ __forceinline__ void
    multiply(const char *stage)
    {
        const uint32_t x = shared_address(stage), w = x + room::X_BYTES;
        begin_products();
#pragma unroll
        for (int i = 0; i < STEP / SUM_K; i++)
#pragma unroll
            for (int part = 0; part < PARTS; part++)
                multiply_rows(sums[part],
                              matrix_at(x + part * PART_ROWS * STEP_BYTES + i * SUM_K_BYTES, 0,
                                        8 * STEP_BYTES, SWIZZLE_128),
                              matrix_at(w + i * SUM_K_BYTES, 0, 8 * STEP_BYTES, SWIZZLE_128));
        commit_products();
    }

    /* Writes the warp's strips of the tile. row, col: where the first one begins in y. */
    __device__ __forceinline__ void
    finish(const struct product_shape &s, bf16 *y, bf16 *strip, int row, int col)
    {
        uint32_t words[PARTS][2][EIGHTS];
        const int lane = lane_here();
#pragma unroll
        for (int i = 0; i < EIGHTS; i++) {
            float plus[2] = {};
            if (s.bias)
                load(plus, s.bias + col + 8 * i + lane % 4 * 2);
#pragma unroll
            for (int part = 0; part < PARTS; part++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    words[part][h][i] = pair(sums[part][4 * i + 2 * h] + plus[0],
                                             sums[part][4 * i + 2 * h + 1] + plus[1]);
        }
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            const int first = row + part * PART_ROWS;
            struct turner<HEAD_DIM> turner;
            if (col < s.turned)
                turner.load_angles(s, first);
#pragma unroll
            for (int head = 0; head < room::HEADS; head++) {
                const int at = col + head * HEAD_DIM, here = lane_here();
                bf16 *const own = strip + here / 4 * room::PITCH + here % 4 * 2;
                __syncwarp();
#pragma unroll
                for (int i = 0; i < OF_HEAD; i++)
#pragma unroll
                    for (int h = 0; h < 2; h++)
                        *reinterpret_cast<uint32_t *>(own + 8 * h * room::PITCH + 8 * i) =
                            words[part][h][head * OF_HEAD + i];
                __syncwarp();
                turner.store_head(y + (int64_t)first * s.cols + at, s.cols,
                                  min(s.rows - first, (int)STRIP), strip, at < s.turned);
            }
        }
    }
};

template <int HEAD_DIM>
static __device__ __forceinline__ void
compute_tiles(char *shared, struct ring<HEAD_DIM> *signals, const struct product_shape &s,
              int group, bf16 *y)
{
    typedef room<HEAD_DIM> room;
    enum { BARRIER_TURN = 1 }; /* one per warpgroup */
    const int warp = threadIdx.x % GROUP / WARP;
    bf16 *const strip =
        reinterpret_cast<bf16 *>(shared + room::STRIPS) + (group * WARPS + warp) * room::STRIP_SIZE;
    int stage = group * s.steps % room::STAGES, full = group * s.steps / room::STAGES % 2;
    if (group)
        arrive_threads(BARRIER_TURN, 2 * GROUP); /* the first warpgroup begins */
    for (int tile = blockIdx.x + group * gridDim.x; tile < s.tiles; tile += COMPUTING * gridDim.x) {
        const int row = tile / s.tiles_across * ROWS + warp * STRIP;
        const int col = tile % s.tiles_across * room::N;
        struct product<HEAD_DIM> product;
        int last = 0;
        sync_threads(BARRIER_TURN + group, 2 * GROUP);
        for (int step = 0; step < s.steps; step++) {
            await(&signals->full[stage], full);
            product.multiply(shared + stage * room::STAGE_BYTES);
            await_products<1>(product.sums[0]);
            await_products<1>(product.sums[1]);
            if (step > 0)
                arrive(&signals->empty[last]);
            last = stage;
            if (++stage == room::STAGES)
                stage = 0, full ^= 1;
        }
        arrive_threads(BARRIER_TURN + 1 - group, 2 * GROUP);
        await_products<0>(product.sums[0]);
        await_products<0>(product.sums[1]);
        arrive(&signals->empty[last]);
        full ^= (stage + s.steps) / room::STAGES % 2; /* past the other warpgroup's steps */
        stage = (stage + s.steps) % room::STAGES;
        product.finish(s, y, strip, row, col);
    }
}

template <int HEAD_DIM>
static __global__ void __launch_bounds__((COMPUTING + 1) * GROUP, 1)
    gemm_rope_kernel(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap w,
                     const struct product_shape s, bf16 *y)
{
#ifndef __CUDA_ARCH_FEAT_SM90_ALL
    __trap(); /* never launched there */
#else
    typedef room<HEAD_DIM> room;
    extern __shared__ __align__(ALIGNMENT) char shared[];
    auto *const signals = reinterpret_cast<struct ring<HEAD_DIM> *>(shared + room::SIGNALS);
    if (threadIdx.x == 0) {
        for (int i = 0; i < room::STAGES; i++) {
            open_signal(&signals->full[i], 1);
            open_signal(&signals->empty[i], WARPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    /* moves registers from the copying warpgroup to the computing warpgroups */
    if (threadIdx.x < GROUP) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == 0)
            copy_tiles<HEAD_DIM>(shared, signals, &x, &w, s);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        compute_tiles<HEAD_DIM>(shared, signals, s, threadIdx.x / GROUP - 1, y);
    }
#endif
}

/* ---- the launch ------------------------------------------------------------------------------ */

template <int HEAD_DIM>
static cudaError_t
multiply(cudaStream_t stream, const struct qv_op_gemm *op, struct product_shape s, void *const *p,
         int blocks)
{
    typedef room<HEAD_DIM> room;
    CUtensorMap of_x, of_w;
    s.tiles_across = s.cols / room::N;
    s.tiles = (int)ceil_div(s.rows, ROWS) * s.tiles_across;
    if (!describe_boxes(&of_x, p[0], { op->m, 1, op->k, op->k, ROWS, STEP }) ||
        !describe_boxes(&of_w, p[1], { op->n, 1, op->k, op->k, room::N, STEP }))
        return cudaErrorInvalidValue;
    return launch_shared(stream, s.tiles < blocks ? s.tiles : blocks, dim3((COMPUTING + 1) * GROUP),
                         room::SIGNALS + sizeof(struct ring<HEAD_DIM>), gemm_rope_kernel<HEAD_DIM>,
                         of_x, of_w, s, (bf16 *)p[4]);
}

bool
qv_gemm_rope_is_hopper_cuda(const struct qv_op_gemm *gemm, const struct qv_op_rope *rope,
                            int blocks)
{
    const int64_t head = rope->head_dim;
    const int64_t n = head == 64 ? room<64>::N : head == 72 ? room<72>::N : room<80>::N;
    const int64_t tiles = ceil_div(gemm->m, ROWS) * (gemm->n / n);
    /* with fewer tiles, or if blocks would wait for the last ones, cuBLASLt is as fast */
    return (head == 64 || head == 72 || head == 80) && gemm->n % n == 0 && tiles > blocks &&
           tiles * 10 >= ceil_div(tiles, blocks) * blocks * 9 && gemm->x_dtype == QV_BF16 &&
           rope->x_dtype == QV_BF16 && gemm->k % LANES<bf16> == 0 && gemm->alpha == 1 &&
           !gemm->act && !gemm->residual_rows && rope->rows == gemm->m &&
           qv_row_stride(rope->x_stride, rope->heads * head) == gemm->n &&
           gemm->m <= INT32_MAX / gemm->n && gemm->k <= INT32_MAX / STEP &&
           rope->positions <= INT32_MAX / head;
}

cudaError_t
qv_gemm_rope_hopper_cuda(cudaStream_t stream, const struct qv_op_gemm *gemm,
                         const struct qv_op_rope *rope, void *const *of_gemm, void *const *of_rope,
                         int blocks)
{
    struct product_shape s = {};
    s.rows = (int)gemm->m;
    s.cols = (int)gemm->n;
    s.steps = (int)ceil_div(gemm->k, STEP);
    s.turned = (int)(rope->heads * rope->head_dim);
    s.bias = gemm->bias ? (const bf16 *)of_gemm[2] : NULL;
    s.cosines = (const float *)of_rope[0];
    s.sines = (const float *)of_rope[1];
    s.coords = (const int4 *)of_rope[2];
    switch (rope->head_dim) {
    case 64: return multiply<64>(stream, gemm, s, of_gemm, blocks);
    case 72: return multiply<72>(stream, gemm, s, of_gemm, blocks);
    case 80: return multiply<80>(stream, gemm, s, of_gemm, blocks);
    }
    return cudaErrorNotSupported;
}
