/* SPDX-License-Identifier: MIT */
/*
 * gemm_few: multiplies few rows of bf16 by a quantised matrix in the layout of cuda/codes.h, whose
 * codes are read once per 16 rows.
 *
 * A warp computes 16 columns of y at a time, which are rows of w, on the tensor cores. Codes are
 * exact in bf16, and for each group
 *     sum += scale * (codes . x) + offset * (ones . x)
 * in f32, so values of w are never rounded.
 *
 * A block has some tiles of w, and each of its warps a run of k in all of them. So a warp needs
 * only its own part of x, keeps its sums in registers, and waits for no other until they are added.
 * Where that divides a matrix more evenly, two blocks of a cluster share k. Tiles are multiplied in
 * pairs without a branch, because a scheduler has only two warps, and most instructions of a tile
 * wait for its previous one.
 *
 * Only loads in flight keep the memory busy, so a warp starts copying each tile's next slice to
 * shared memory as soon as it has read the current slice, and starts before the previous kernel has
 * ended. The bits of y do not depend on the number of rows.
 */
#include "mma.cuh"
#include "codes.cuh"

/* Up to 7 rows need half as many products as 8 to 16. The step is not at 9 rows, because they also
 * need one more copy of x, of two rows: both steps together cost a factor of 1.11. */
enum {
    GROUP = QV_FEW_GROUP,
    ROW_TILE = 8, /* rows of x in a product */
    ONE_TILE_ROWS = 7,
    WARPS = 8,
    MOST_RANKS = 2,   /* blocks of a cluster; wherever two blocks fit, a cluster of two does */
    MOST_TILES = 8,   /* tiles of w per block, whose sums fit in registers */
    TILES_BEFORE = 4, /* tiles begun before x, which must not wait for all of them */
    SUMS_APART = TILE_COLS + 4 /* from row to row, so that a warp's stores are to different banks */
};

/* Codes are multiplied as subnormal numbers, which tensor cores support: a bf16 whose lower 8 bits
 * are c, with zeros above, is c * 2^-133. So a mask turns two codes into a pair of bf16, with no
 * bias to subtract, and codes of 4 bits above 4 other bits need no shift, but are 16 times larger.
 * x compensates for both: it is multiplied by 2^UP, or by a 16th of that, which is exact below
 * 2^(127 - UP). A group's sums are 2^DOWN times their value, and lose bits below 2^-57, which is
 * 7e-18. */
enum { UP = 64, DOWN = UP - 133 };

/* 2^e twice, as bf16 */
static __device__ __forceinline__ uint32_t
powers(int e)
{
    return (uint32_t)(127 + e) << 7 | (uint32_t)(127 + e) << 23;
}

/* a * b of pairs of bf16 */
static __device__ __forceinline__ uint32_t
multiply_pairs(uint32_t a, uint32_t b)
{
    __nv_bfloat162 pairs[2];
    memcpy(&pairs[0], &a, sizeof a);
    memcpy(&pairs[1], &b, sizeof b);
    pairs[0] = __hmul2(pairs[0], pairs[1]);
    memcpy(&a, &pairs[0], sizeof a);
    return a;
}

/* Returns how many bits above the lowest of its byte pair i of a lane's 8 codes of a quarter is. */
template <int BITS>
static __device__ __forceinline__ int
lift(int i)
{
    return qv_code_at_cuda(BITS, 0, 2 * i).shift % 8;
}

/* The codes of a lane's 8 values of a quarter, as four pairs of bf16, first to last. */
template <int BITS>
static __device__ __forceinline__ void
pairs_of(uint32_t (&pairs)[4], const uint32_t *words)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t word = words[i * BITS / 16], mask = ((1u << BITS) - 1) * 0x10001;
        const int shift = qv_code_at_cuda(BITS, 0, 2 * i).shift, up = lift<BITS>(i);
        pairs[i] = word >> (shift - up) & mask << up;
    }
}

/* A step of a warp: a slice of a tile. Each lane copies the data that it reads, so lanes need not
 * wait for each other; four lanes hold the pairs of the same two rows. */
template <int BITS> struct few_step {
    enum {
        WORDS = SLICE / GROUP * 2,             /* pairs per lane, which are one copy */
        BYTES = CODES<BITS> + PAIRS<GROUP> * 4 /* of device memory */
    };
    uint4 codes[CODES<BITS> / 16], pairs[WARP];
};

/* A warp's part of shared memory, followed by one step per tile of the block: for each quarter of a
 * slice all rows of x, as four vectors. */
template <int BITS> struct few_part {
    uint4 x[4][QV_FEW_AT_ONCE][4];

    __device__ __forceinline__ few_step<BITS> &
    step(int tile)
    {
        return ((few_step<BITS> *)(this + 1))[tile];
    }

    static __host__ __device__ constexpr size_t
    bytes(int64_t tiles)
    {
        return sizeof(few_part) + (size_t)tiles * sizeof(few_step<BITS>);
    }
};

/* How a product of QV_FEW_AT_ONCE rows is divided among clusters of `ranks` blocks. A cluster has
 * `tiles` tiles, the first `more` clusters one more; most_tiles is the maximum. */
struct few_cut {
    int64_t clusters, tiles, more, most_tiles;
    int ranks;
};

/* The work of a warp: slices `slice` to `end` of k, of tiles from first_tile on, and m rows from
 * first_row on. */
struct few_work {
    int64_t first_tile, slice, end;
    int tiles, first_row, m;
};

/* The grid is (rank in the cluster, rows, cluster), so that blocks of different rows that read the
 * same tiles run at the same time. */
static __device__ __forceinline__ struct few_work
work_of(const struct codes_shape &s, const struct few_cut &cut, int64_t m)
{
    const int64_t cluster = blockIdx.z, row = blockIdx.y * QV_FEW_AT_ONCE;
    const int warp = blockIdx.x * WARPS + threadIdx.x / WARP;
    const int shift = 2 + cut.ranks; /* divides by the cluster's 8 or 16 warps */
    static_assert(WARPS == 8 && MOST_RANKS == 2, "shift is the logarithm of their product");
    return { cluster * cut.tiles + min(cluster, cut.more),
             s.slices * warp >> shift,
             s.slices * (warp + 1) >> shift,
             (int)(cut.tiles + (cluster < cut.more)),
             (int)row,
             (int)min(m - row, (int64_t)QV_FEW_AT_ONCE) };
}

/* ---- x --------------------------------------------------------------------------------------- */

/* Begins to copy m rows of a slice of x, 16 lanes per row, with zeros past the end of k. */
static __device__ __forceinline__ void
begin_x(uint4 (&to)[4][QV_FEW_AT_ONCE][4], const bf16 *x, int m, int64_t k, int64_t slice)
{
    const int lane = threadIdx.x % WARP, part = lane % 16;
    const int64_t at = slice * SLICE + part * 8;
    const bf16 *from = x + lane / 16 * k + (at < k ? at : 0);
#pragma unroll 1
    for (int row = lane / 16; row < m; row += 2, from += 2 * k)
        begin_copy(&to[part / 4][row][part % 4], from, at < k);
}

/* A lane's values of x in a slice, which registers hold for all tiles of w, and their sums over
 * groups. */
template <int BITS, int TILES> struct few_x {
    enum { GROUPS = SLICE / GROUP, QUARTERS = GROUP / QUARTER };
    uint32_t quarters[TILES][4][4]; /* times 2^UP, or a 16th of that */
    float2 sums[GROUPS][TILES];     /* of rows lane % 4 * 2 and the next */

    __device__ __forceinline__ void
    take(const uint4 (&x)[4][QV_FEW_AT_ONCE][4], int m)
    {
        const int lane = threadIdx.x % WARP;
#pragma unroll
        for (int i = 0; i < TILES; i++) { /* results of rows past the last are discarded */
            const uint4 *row = x[0][min(i * ROW_TILE + lane / 4, m - 1)] + lane % 4;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                memcpy(quarters[i][j], row + j * QV_FEW_AT_ONCE * 4, sizeof *row);
#pragma unroll
                for (int k = 0; k < 4; k++)
                    quarters[i][j][k] =
                        multiply_pairs(quarters[i][j][k], powers(UP - lift<BITS>(k)));
            }
        }
    }

    /* Sums are products with codes of one. Products of other groups and rows separate the products
     * that wait for each other. */
    __device__ __forceinline__ void
    add_up()
    {
        const uint32_t one = 0x00010001, other = one << lift<BITS>(1);
        const uint32_t ones[4] = { one, one, other, other };
        float all[GROUPS][TILES][4] = {};
#pragma unroll
        for (int half = 0; half < QUARTERS * 2; half++)
#pragma unroll
            for (int i = 0; i < GROUPS * TILES; i++) {
                const uint32_t *b =
                    quarters[i % TILES][i / TILES * QUARTERS + half / 2] + half % 2 * 2;
                multiply_blocks(all[i / TILES][i % TILES], ones, b[0], b[1]);
            }
#pragma unroll
        for (int i = 0; i < GROUPS * TILES; i++)
            sums[i / TILES][i % TILES] =
                make_float2(all[i / TILES][i % TILES][0], all[i / TILES][i % TILES][1]);
    }
};

/* ---- w --------------------------------------------------------------------------------------- */

/* Begins to copy a step; a lane's first 16 bytes are at `from`. */
template <int BITS>
static __device__ __forceinline__ void
begin_step(few_step<BITS> &to, const uint8_t *from)
{
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int j = 0; j < CODES<BITS> / 16; j += WARP)
        begin_copy(&to.codes[j + lane], from + j * 16);
    from += CODES<BITS> - lane * 16 + lane / 4 * few_step<BITS>::WORDS * 4;
    begin_copy(&to.pairs[lane], from);
}

/* A lane's part of a step, of rows lane / 4 and lane / 4 + 8 of the tile: codes, and pairs of a
 * scale and an offset. */
template <int BITS> struct few_values {
    uint32_t words[2][BITS], pairs[SLICE / GROUP][2];

    __device__ __forceinline__
    few_values(const few_step<BITS> &step)
    {
        const int lane = threadIdx.x % WARP;
#pragma unroll
        for (int i = 0; i < BITS / 2; i++) {
            const uint4 part = step.codes[i * WARP + lane];
            memcpy(&words[i / (BITS / 4)][i % (BITS / 4) * 4], &part, sizeof part);
        }
        const uint4 both = step.pairs[lane];
        static_assert(sizeof both == sizeof pairs, "a lane has one vector of pairs");
        memcpy(pairs, &both, sizeof both);
    }
};

/* products += a quarter's codes times x's rows. */
template <int BITS, int TILES>
static __device__ __forceinline__ void
multiply_quarter(float (&products)[TILES][4], const few_values<BITS> &w, int quarter,
                 const few_x<BITS, TILES> &x)
{
    uint32_t pairs[2][4];
#pragma unroll
    for (int row = 0; row < 2; row++)
        pairs_of<BITS>(pairs[row], &w.words[row][quarter * BITS / 4]);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint32_t a[4] = { pairs[0][half * 2], pairs[1][half * 2], pairs[0][half * 2 + 1],
                                pairs[1][half * 2 + 1] };
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            const uint32_t *b = x.quarters[i][quarter] + half * 2;
            multiply_blocks(products[i], a, b[0], b[1]);
        }
    }
}

/* sums += products of a tile's columns and x's rows over one slice. HALF: scales are f16. */
template <bool HALF, int BITS, int TILES>
static __device__ __forceinline__ void
multiply_step(float (&sums)[TILES][4], const few_values<BITS> &w, const few_x<BITS, TILES> &x)
{
#pragma unroll
    for (int group = 0; group < SLICE / GROUP; group++) {
        float products[TILES][4] = {};
        float2 by[2];
#pragma unroll
        for (int i = 0; i < GROUP / QUARTER; i++)
            multiply_quarter(products, w, group * (GROUP / QUARTER) + i, x);
#pragma unroll
        for (int i = 0; i < 2; i++)
            by[i] = pair_as_floats(w.pairs[group][i], HALF);
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            const float2 ones = x.sums[group][i];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                sums[i][j] = fmaf(by[j / 2].x, products[i][j], sums[i][j]);
                sums[i][j] = fmaf(by[j / 2].y, j % 2 ? ones.y : ones.x, sums[i][j]);
            }
        }
    }
}

/* Begins to copy the warp's first slice; a lane's first 16 bytes of the first tile are at
 * `from`. */
template <int BITS>
static __device__ __forceinline__ void
begin_work(few_part<BITS> &part, const struct codes_shape &s, const struct few_work &w,
           const uint8_t *from, const bf16 *x)
{
    const int tiles = w.slice < w.end ? w.tiles : 0;
    const int64_t apart = s.slices * few_step<BITS>::BYTES;
    for (int tile = 0; tile < min(tiles, (int)TILES_BEFORE); tile++, from += apart)
        begin_step(part.step(tile), from);
    await_launch();
    if (tiles)
        begin_x(part.x, x, w.m, s.k, w.slice);
#pragma unroll
    for (int i = 0; i < TILES_BEFORE; i++)
        end_copies();
    for (int tile = TILES_BEFORE; tile < MOST_TILES; tile++, from += apart) {
        if (tile < tiles)
            begin_step(part.step(tile), from);
        end_copies();
    }
}

/* Computes the sums of the warp's work. Each tile of a slice has a group of copies for its next
 * slice (the first tile's has x's too), and tiles that the block lacks have an empty group: so a
 * tile's group has ended when all but the last MOST_TILES - 1 have. */
static_assert(MOST_TILES % 2 == 0, "tiles go by two");
template <int BITS, bool HALF, int TILES>
static __device__ __forceinline__ void
few_sums(float (&sums)[MOST_TILES][TILES][4], few_part<BITS> &part, const struct codes_shape &s,
         const struct few_work &w, const bf16 *x)
{
    typedef few_step<BITS> S;
    constexpr bool LATE = TILES == 1; /* x is added up between the first products,
                                                     * where there are registers for both */
    const int64_t apart = s.slices * S::BYTES;
    const int m = w.m;
    x += w.first_row * s.k;
    const uint8_t *slice_at =
        s.at + w.first_tile * apart + w.slice * S::BYTES + threadIdx.x % WARP * 16;
    begin_work(part, s, w, slice_at, x);
    int64_t slice = w.slice;
    for (int left = (int)(w.end - w.slice); left > 0; left--, slice++) {
        const bool more = left > 1;
        const uint8_t *from = slice_at += S::BYTES;
        few_x<BITS, TILES> rows;
        /* Begins to copy the next slice of a tile, after the lane has read its values. */
        const auto begin_next = [&](int tile) {
            if (more)
                begin_step(part.step(tile), from);
            from += apart;
            end_copies();
        };
        await_copies_but<MOST_TILES - 1>();
        __syncwarp(); /* lanes copied x for each other */
        rows.take(part.x, m);
        __syncwarp(); /* lanes have read x, which is overwritten now */
        if (more)
            begin_x(part.x, x, m, s.k, slice + 1);
        if (!LATE)
            rows.add_up();
#pragma unroll
        for (int tile = 0; tile < MOST_TILES; tile += 2) {
            if (tile + 1 < w.tiles) {
                await_copies_but<MOST_TILES - 2>();
                const few_values<BITS> one(part.step(tile)), other(part.step(tile + 1));
                begin_next(tile);
                begin_next(tile + 1);
                if (LATE && tile == 0)
                    rows.add_up();
                multiply_step<HALF>(sums[tile], one, rows);
                multiply_step<HALF>(sums[tile + 1], other, rows);
                continue;
            }
            if (tile < w.tiles) {
                await_copies_but<MOST_TILES - 1>();
                const few_values<BITS> values(part.step(tile));
                begin_next(tile);
                if (LATE && tile == 0)
                    rows.add_up();
                multiply_step<HALF>(sums[tile], values, rows);
            } else {
                end_copies();
            }
            end_copies();
        }
    }
}

/* to[tiles][m rows][16 columns] = a lane's sums. */
template <int TILES>
static __device__ __forceinline__ void
keep_sums(float *to, const float (&sums)[MOST_TILES][TILES][4], int tiles, int m)
{
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int i = 0; i < MOST_TILES * TILES * 4; i++) {
        const int tile = i / 4 / TILES, row = i / 4 % TILES * ROW_TILE + lane % 4 * 2 + i % 2;
        if (tile < tiles && row < m)
            to[(tile * m + row) * SUMS_APART + lane / 4 + i % 4 / 2 * 8] =
                sums[tile][i / 4 % TILES][i % 4];
    }
}

/* Computes and keeps the sums of a warp's work. */
template <int BITS, bool HALF, int TILES>
static __device__ __forceinline__ void
few_work_sums(few_part<BITS> &part, const struct codes_shape &s, const struct few_work &w,
              const bf16 *x)
{
    float sums[MOST_TILES][TILES][4] = {};
    few_sums<BITS, HALF>(sums, part, s, w, x);
    __syncwarp();
    keep_sums((float *)&part, sums, w.tiles, w.m);
}

/* ---- a cluster's two blocks ------------------------------------------------------------------ */

/* Makes a block's barrier expect `bytes` bytes from the other block, and tells the other that it
 * has begun. */
static __device__ __forceinline__ void
arrive_in_cluster(uint64_t *barrier, int bytes)
{
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n"
                     "fence.mbarrier_init.release.cluster;\n"
                     "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                         shared_address(barrier)),
                     "r"(bytes)
                     : "memory");
    }
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}

/* Waits until both blocks have arrived. */
static __device__ __forceinline__ void
await_cluster()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

/* Writes a float at the address p of the first block's shared memory, and has that block's barrier
 * count its bytes. */
static __device__ __forceinline__ void
send(float *p, float v, uint64_t *barrier)
{
#if __CUDA_ARCH__ >= 900
    uint32_t at = shared_address(p), count = shared_address(barrier);
    asm volatile("mapa.shared::cluster.u32 %0, %0, 0;\n"
                 "mapa.shared::cluster.u32 %1, %1, 0;\n"
                 "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %2, [%1];"
                 : "+r"(at), "+r"(count)
                 : "r"(__float_as_uint(v))
                 : "memory");
#else
    *p = v;
    (void)barrier;
#endif
}

/* Waits for the bytes that the block expects. */
static __device__ __forceinline__ void
await_sent(uint64_t *barrier)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(shared_address(barrier))
                 : "memory");
#else
    (void)barrier;
#endif
}

/* Writes a cluster's columns of y. Each block adds its warps' sums, in order; the second block
 * sends the result to the first, which adds and writes. apart: floats from one warp's sums to the
 * next's. */
static __device__ __forceinline__ void
finish_columns(float *sums, int apart, uint64_t *barrier, const struct few_cut &cut,
               const struct few_work &w, const struct few_epilogue &e, bf16 *y)
{
    const int m = w.m, col = threadIdx.x % TILE_COLS, at_once = WARPS * WARP / TILE_COLS;
    const bool is_first = blockIdx.x == 0;
    float *sent = (float *)(barrier + 2);
    for (int i = threadIdx.x / TILE_COLS; i < w.tiles * m; i += at_once) {
        float parts[WARPS], sum = 0;
#pragma unroll
        for (int j = 0; j < WARPS; j++)
            parts[j] = sums[i * SUMS_APART + col + j * apart];
#pragma unroll
        for (int j = 0; j < WARPS; j++)
            sum += parts[j];
        if (is_first)
            sums[i * SUMS_APART + col] = sum;
        else
            send(sent + i * TILE_COLS + col, sum, barrier);
    }
    if (!is_first)
        return;
    if (cut.ranks > 1)
        await_sent(barrier);
    for (int i = threadIdx.x / TILE_COLS; i < w.tiles * m; i += at_once) {
        const int tile = i / m;
        const int64_t at = (w.first_tile + tile) * TILE_COLS + col;
        const float other = cut.ranks > 1 ? sent[i * TILE_COLS + col] : 0;
        if (at < e.n)
            finish(e, w.first_row + i - tile * m, at, sums[i * SUMS_APART + col] + other, y);
    }
}

/* A bound of one block makes nvcc 13.0 schedule as if all registers were available. Without it,
 * nvcc uses a third fewer of them, and two tiles wait for each other. */
template <int BITS, bool HALF>
static __global__
__launch_bounds__(WARPS *WARP,
                  1) void few_kernel(const struct codes_shape s, const struct few_cut cut,
                                     const struct few_epilogue e, const bf16 *x, bf16 *y)
{
    typedef few_part<BITS> P;
    static_assert(QV_FEW_AT_ONCE * SUMS_APART * sizeof(float) * MOST_TILES <=
                          P::bytes(MOST_TILES) &&
                      QV_FEW_AT_ONCE * SUMS_APART * sizeof(float) <= P::bytes(1),
                  "sums take the place of what was copied");
    extern __shared__ uint4 shared[];
    const int apart = (int)P::bytes(cut.most_tiles);
    P &part = *(P *)((char *)shared + threadIdx.x / WARP * apart);
    uint64_t *barrier = (uint64_t *)((char *)shared + WARPS * apart);
    const struct few_work w = work_of(s, cut, e.m);
    if (cut.ranks > 1)
        arrive_in_cluster(barrier, w.tiles * w.m * TILE_COLS * (int)sizeof(float));
    if (w.m <= ONE_TILE_ROWS)
        few_work_sums<BITS, HALF, 1>(part, s, w, x);
    else
        few_work_sums<BITS, HALF, 2>(part, s, w, x);
    __syncthreads();
    if (cut.ranks > 1)
        await_cluster(); /* the first block has begun */
    finish_columns((float *)shared, apart / (int)sizeof(float), barrier, cut, w, e, y);
}

/* ---- launches -------------------------------------------------------------------------------- */

/* The properties of a device that decide how a product is cut. */
struct few_device {
    int code, processors;
    size_t shared_bytes; /* the most of a block */
};

/* Returns the shared memory of a block of this many tiles: its warps' parts, a barrier padded to 16
 * bytes, and the other block's sums. */
template <typename P>
static size_t
block_bytes(int64_t tiles)
{
    return WARPS * P::bytes(tiles) + 2 * sizeof(uint64_t) +
           (size_t)tiles * QV_FEW_AT_ONCE * TILE_COLS * sizeof(float);
}

/* Returns how to divide a product on a device, so that no warp has many steps. This does not depend
 * on the number of rows, so the bits of y do not either. */
template <typename P>
static struct few_cut
cut_for(const struct codes_shape &s, const struct few_device &d)
{
    struct few_cut best = {};
    int64_t fewest = INT64_MAX, most = MOST_TILES;
    while (most > 1 && block_bytes<P>(most) > d.shared_bytes)
        most--; /* every GPU's blocks have room for one */
    for (int ranks = 1; ranks <= (d.code >= 90 ? MOST_RANKS : 1); ranks++) {
        const int64_t at_once = max(d.processors / ranks, 1);
        const int64_t times = ceil_div(s.tiles, most * at_once);
        const int64_t clusters = min(s.tiles, times * at_once);
        const int64_t tiles = ceil_div(s.tiles, clusters);
        const int64_t steps = times * tiles * ceil_div(s.slices, ranks * WARPS);
        if (steps < fewest)
            best = { clusters, s.tiles / clusters, s.tiles % clusters, tiles, ranks };
        fewest = min(fewest, steps);
    }
    return best;
}

template <int BITS>
static cudaError_t
launch_few(cudaStream_t stream, const struct few_device &d, const struct codes_shape &s,
           const struct few_epilogue &e, const bf16 *x, bf16 *y)
{
    typedef few_part<BITS> P;
    const auto kernel = s.dtype == QV_F16 ? few_kernel<BITS, true> : few_kernel<BITS, false>;
    const struct few_cut cut = cut_for<P>(s, d);
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim = { (unsigned)cut.ranks, 1, 1 };
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    config.attrs = attributes;
    config.numAttrs = d.code >= 90 ? 2 : 0;
    config.gridDim =
        dim3((unsigned)cut.ranks, (unsigned)ceil_div(e.m, QV_FEW_AT_ONCE), (unsigned)cut.clusters);
    config.blockDim = dim3(WARPS * WARP);
    config.dynamicSmemBytes = block_bytes<P>(cut.most_tiles);
    config.stream = stream;
    return launch_as(config, d.shared_bytes, kernel, s, cut, e, x, y);
}

cudaError_t
qv_gemm_few_cuda(cudaStream_t stream, const struct qv_op_gemm_few *op, const void *x, const void *w,
                 const void *bias, const void *residual, void *y, int code, int blocks,
                 size_t shared_bytes)
{
    const struct few_device d = { code, blocks, shared_bytes };
    const struct qv_groups groups = { op->w_bits, op->w_group, (qv_dtype)op->w_dtype };
    const struct codes_shape s = shape_of(op->n, op->k, &groups, w);
    const struct few_epilogue e = { op->m,
                                    op->n,
                                    op->residual_rows,
                                    ldexpf((float)op->alpha, -DOWN),
                                    (int)op->act,
                                    op->bias ? bias : NULL,
                                    op->residual_rows ? residual : NULL };
    return op->w_bits == 4 ? launch_few<4>(stream, d, s, e, (const bf16 *)x, (bf16 *)y)
                           : launch_few<8>(stream, d, s, e, (const bf16 *)x, (bf16 *)y);
}
