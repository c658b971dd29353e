/* SPDX-License-Identifier: MIT */
/*
 * Multiplies up to 16 rows of bf16 by a quantised matrix, whose codes lie as cuda/packed.h says and are read once for all
 * rows.
 *
 * A warp multiplies 16 columns of y at a time, which are rows of w, on the tensor cores: codes are
 * exact in bf16, and of each group
 *     sum += scale * (codes . x) + offset * (ones . x)
 * in f32, so that no value of w is rounded. Codes of 4 bits are multiplied with 16 added and
 * those of 8 with 128 taken, as unpacking gives them; the offset is corrected for it.
 *
 * Only what is under way keeps the memory busy, so each warp copies its next chunks to shared
 * memory while it multiplies one, and begins before the kernel in front of this one has ended. x
 * lies in shared memory, once for all tiles of a block; for that, the two blocks of a cluster
 * share k. Bits of y do not depend on how many rows there are.
 */
#include "mma.cuh"
#include "packed.cuh"

/* One row takes as many products as 16, because a kernel of 8 rows, though a sixth faster, makes
 * a step from 8 rows to 9. */
enum {
    ROW_TILE = 8,                   /* rows of x in a product */
    TILES = QV_FEW_ROWS / ROW_TILE, /* of x */
    WIDE = 2,                       /* tiles of w that a warp multiplies at once */
    COLS = WIDE * TILE_COLS,
    WARPS = 8,
    MOST_UNITS = 16, /* units of a cluster */
    RANKS = 2        /* blocks of a cluster: wherever two have room, a cluster of two has */
};
static_assert(WIDE <= 2, "few_sums() has a unit of one tile for what is left");

/* Steps that a warp has on their way, and one that it multiplies. */
template <int BITS> constexpr int DEPTH = BITS == 4 ? 4 : 3;

/* pairs_of() adds this to codes of so many bits. */
template <int BITS> constexpr float BIAS = BITS == 4 ? 16 : -128;

/* Returns (a & b) | c or (a & b) ^ c, as the table of lop3 says, by one instruction. nvcc 13.0 takes two where b and c are
 * constants. */
enum { AND_OR = 0xea, AND_XOR = 0x6a };
template <int TABLE>
static __device__ __forceinline__ uint32_t
masked(uint32_t a, uint32_t b, uint32_t c)
{
    static_assert(TABLE == AND_OR || TABLE == AND_XOR, "the host's branch has these two");
#ifdef __CUDA_ARCH__
    asm("lop3.b32 %0, %0, %1, %2, %3;" : "+r"(a) : "r"(b), "r"(c), "n"(TABLE));
    return a;
#else
    return TABLE == AND_OR ? (a & b) | c : (a & b) ^ c;
#endif
}

/* a + b of pairs of bf16 */
static __device__ __forceinline__ uint32_t
add_pairs(uint32_t a, uint32_t b)
{
    __nv_bfloat162 pairs[2];
    memcpy(&pairs[0], &a, sizeof a);
    memcpy(&pairs[1], &b, sizeof b);
    pairs[0] = __hadd2(pairs[0], pairs[1]);
    memcpy(&a, &pairs[0], sizeof a);
    return a;
}

/* The codes of a lane's 8 values of a quarter, as four pairs of bf16, first to last. Of 4 bits,
 * 0x4180 with a code in the upper bits of its fraction is 16 + code. Of 8 bits, 0x4300 with a
 * code's lower 7 bits as its fraction is 128 and these, from which 256 is taken, or 128 where
 * the upper bit is set: exactly. */
template <int BITS>
static __device__ __forceinline__ void
pairs_of(uint32_t (&pairs)[4], const uint32_t *words)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if constexpr (BITS == 4) {
            const uint32_t word = words[0];
            pairs[i] = masked<AND_OR>(__funnelshift_r(word, word, 4 * i), 0x00780078, 0x41804180);
        } else {
            const uint32_t word = words[i / 2] >> (i % 2 * 8);
            const uint32_t low = masked<AND_OR>(word, 0x007f007f, 0x43004300);
            pairs[i] = add_pairs(low, masked<AND_XOR>(word, 0x00800080, 0xc380c380));
        }
    }
}

/* A step of a warp: a chunk of each of WIDE tiles, on its way to the warp. */
template <int BITS, int GROUP> struct few_step {
    struct {
        uint4 codes[CODES<BITS> / 16];
        uint32_t pairs[PAIRS<GROUP>];
    } tiles[WIDE];
};

/* Begins to copy a chunk, of which a lane's first 16 bytes are at `from`. */
template <int BITS, int GROUP, typename C>
static __device__ __forceinline__ void
begin_chunk(C &to, const uint4 *from)
{
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int j = 0; j < CODES<BITS> / 16; j += WARP)
        begin_copy(&to.codes[j + lane], from + j);
    if (lane < PAIRS<GROUP> / 4)
        begin_copy(&to.pairs[lane * 4], from + CODES<BITS> / 16);
}

/* Returns a scale and an offset of 16 bits as f32, where the offset takes the codes' bias back. */
template <int BITS>
static __device__ __forceinline__ float2
factors_of_pair(uint32_t both, bool is_half)
{
    const float2 f = pair_as_floats(both, is_half);
    return make_float2(f.x, fmaf(-BIAS<BITS>, f.x, f.y));
}

/* A lane's part of a step's first N tiles, of rows lane / 4 and lane / 4 + 8: codes, and scales
 * and offsets. */
template <int BITS, int GROUP, int N> struct few_part {
    enum { GROUPS = CHUNK / GROUP };
    uint32_t words[N][2][BITS];
    float2 factors[N][GROUPS][2];
};

template <int BITS, int GROUP, int N>
static __device__ __forceinline__ void
fetch_part(few_part<BITS, GROUP, N> &to, const few_step<BITS, GROUP> &step, bool is_half)
{
    enum { GROUPS = CHUNK / GROUP };
    const int lane = threadIdx.x % WARP;
    uint32_t both[N][GROUPS * 2];
#pragma unroll
    for (int tile = 0; tile < N; tile++) {
#pragma unroll
        for (int i = 0; i < BITS / 2; i++) {
            const uint4 part = step.tiles[tile].codes[i * WARP + lane];
            memcpy(&to.words[tile][i / (BITS / 4)][i % (BITS / 4) * 4], &part, sizeof part);
        }
#pragma unroll
        for (int i = 0; i < GROUPS * 2; i++)
            both[tile][i] = step.tiles[tile].pairs[i / 2 * TILE_COLS + i % 2 * 8 + lane / 4];
    }
    const auto convert = [&](bool from_half) {
#pragma unroll
        for (int i = 0; i < N * GROUPS * 2; i++)
            to.factors[i / 2 / GROUPS][i / 2 % GROUPS][i % 2] =
                factors_of_pair<BITS>(both[i / 2 / GROUPS][i % (GROUPS * 2)], from_half);
    };
    if (is_half) /* asked once for all, since a branch keeps loads apart */
        convert(true);
    else
        convert(false);
}

/* sums[wide][tile] += of the columns of a step's first N tiles with x's rows of a tile over one
 * chunk. x: a lane's 16 bytes of a tile's row, of which quarters are x_apart further on.
 * Products with ones are x's sums over a group. Products of different tiles are between those
 * that wait for each other. */
template <int BITS, int GROUP, int N>
static __device__ __forceinline__ void
multiply_step(float (&sums)[WIDE][TILES][4], const few_step<BITS, GROUP> &step,
              const uint4 *const (&x)[TILES], int x_apart, bool is_half)
{
    const uint32_t ones[4] = { 0x3f803f80, 0x3f803f80, 0x3f803f80, 0x3f803f80 };
    float products[N + 1][TILES][4]; /* the last are those with ones */
    few_part<BITS, GROUP, N> part;
    fetch_part(part, step, is_half);
#pragma unroll
    for (int quarter = 0; quarter < 4; quarter++) {
        uint32_t a[2][N + 1][4];
        uint4 b[TILES];
#pragma unroll
        for (int tile = 0; tile < TILES; tile++)
            b[tile] = x[tile][quarter * x_apart];
#pragma unroll
        for (int i = 0; i < N * 2; i++) {
            uint32_t pairs[4];
            pairs_of<BITS>(pairs, &part.words[i / 2][i % 2][quarter * BITS / 4]);
#pragma unroll
            for (int j = 0; j < 4; j++)
                a[j / 2][i / 2][j % 2 * 2 + i % 2] = pairs[j];
        }
        memcpy(a[0][N], ones, sizeof ones);
        memcpy(a[1][N], ones, sizeof ones);
#pragma unroll
        for (int i = 0; i < (N + 1) * TILES; i++) {
            float(&sum)[4] = products[i / TILES][i % TILES];
            if (quarter * QUARTER % GROUP)
                multiply_blocks(sum, a[0][i / TILES], b[i % TILES].x, b[i % TILES].y);
            else
                multiply_first_blocks(sum, a[0][i / TILES], b[i % TILES].x, b[i % TILES].y);
        }
#pragma unroll
        for (int i = 0; i < (N + 1) * TILES; i++)
            multiply_blocks(products[i / TILES][i % TILES], a[1][i / TILES], b[i % TILES].z,
                            b[i % TILES].w);
        if ((quarter + 1) * QUARTER % GROUP)
            continue;
#pragma unroll
        for (int i = 0; i < N * TILES * 4; i++) {
            const int wide = i / 4 / TILES, tile = i / 4 % TILES;
            const float2 by = part.factors[wide][quarter * QUARTER / GROUP][i % 4 / 2];
            float &sum = sums[wide][tile][i % 4];
            sum = fmaf(by.x, products[wide][tile][i % 4], sum);
            sum = fmaf(by.y, products[N][tile][i % 2], sum);
        }
    }
}

/* Waits until the kernel in front of this one has ended: weights may be read before that, what
 * it wrote only then. Lets the kernel behind this one begin, as far as there is room. */
static __device__ __forceinline__ void
await_launch()
{
#if __CUDA_ARCH__ >= 900
    cudaTriggerProgrammaticLaunchCompletion();
    cudaGridDependencySynchronize();
#endif
}

/* Waits for all threads of the blocks of a cluster. */
static __device__ __forceinline__ void
await_cluster()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
#else
    __syncthreads();
#endif
}

/* Returns the value that block `rank` of the cluster has at the address p of its shared memory. */
static __device__ __forceinline__ float
peek(const float *p, int rank)
{
#if __CUDA_ARCH__ >= 900
    uint32_t at = (uint32_t)__cvta_generic_to_shared(p);
    float v;
    asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(at) : "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(at) : "memory");
    return v;
#else
    (void)rank;
    return *p;
#endif
}

/* The way in which a product is cut. A unit is WIDE tiles, or what is left of a cluster's. Each cluster of
 * blocks has at most most_units; each of its `ranks` blocks has every ranks'th run of `chunks`
 * chunks of k, a run in a pass, so that it keeps x's part of the run in shared memory. Of its
 * units times chunks each warp of a block has as many, in a row. */
struct few_cut {
    int64_t clusters;
    int most_units, ranks, passes, chunks;
};

/* The first of the steps of a block that a warp has. */
static __device__ __forceinline__ int
first_step(int steps, int warp)
{
    return steps * warp / WARPS;
}

/* The columns of y that a cluster has: tiles `first` to `end` of w, in so many units, of which
 * the last may have fewer tiles. */
struct few_columns {
    int64_t first, end;
    int units;
};

static __device__ __forceinline__ struct few_columns
columns_of(const struct packed_shape &s, const struct few_cut &cut, int64_t cluster)
{
    struct few_columns c;
    c.first = s.tiles * cluster / cut.clusters;
    c.end = s.tiles * (cluster + 1) / cut.clusters;
    c.units = (int)(c.end - c.first + WIDE - 1) / WIDE;
    return c;
}

/* Shared memory of a block. */
template <int BITS, int GROUP> struct few_shared {
    typedef few_step<BITS, GROUP> step;
    step *ring;  /* [WARPS][DEPTH] */
    float *sums; /* [most_units + WARPS][COLS][QV_FEW_ROWS]: those of unit u and warp w at u + w */
    uint4 *x;    /* [chunks][4 quarters][m][4] */

    __host__ __device__
    few_shared(void *at, const few_cut &cut)
    {
        ring = (step *)at;
        sums = (float *)(ring + WARPS * DEPTH<BITS>);
        x = (uint4 *)(sums + (cut.most_units + WARPS) * COLS * QV_FEW_ROWS);
    }

    static size_t
    bytes(const few_cut &cut, int64_t m)
    {
        const few_shared s(nullptr, cut);
        return (size_t)((char *)(s.x + cut.chunks * 16 * m) - (char *)nullptr);
    }
};

/* Copies x's rows of a run of chunks that begins at chunk `first`, with zeros behind the end: a
 * warp copies 16 bytes a lane of two chunks at once. */
static __device__ __forceinline__ void
begin_x(uint4 *to, const bf16 *x, int m, int64_t k, int64_t first, int chunks)
{
    const int part = threadIdx.x % 16;
    to += part / 4 * m * 4 + part % 4;
    for (int row = 0; row < m; row++, x += k, to += 4)
        for (int chunk = threadIdx.x / 16; chunk < chunks; chunk += blockDim.x / 16) {
            const int64_t at = (first + chunk) * CHUNK + part * 8;
            begin_copy((bf16 *)(to + chunk * 16 * m), at < k ? x + at : x, at < k);
        }
}

/* The work of a warp in a pass is steps `at` to `end` of its block. The block's chunks begin at chunk first_chunk of k, and
 * its units are tiles first_tile to end_tile. */
struct few_work {
    int at, end, chunks;
    int64_t first_chunk, first_tile, end_tile;
};

/* to[COLS][rows] = a lane's sums of a unit, or += if there are some of earlier passes. The lane's sums
 * are zero then. */
static __device__ __forceinline__ void
keep_sums(float *to, float (&sums)[WIDE][TILES][4], bool more)
{
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int i = 0; i < WIDE * TILES * 4; i++) {
        float &sum = sums[i / 4 / TILES][i / 4 % TILES][i % 4];
        const int col = i / 4 / TILES * TILE_COLS + lane / 4 + i % 4 / 2 * 8;
        float *at = to + col * QV_FEW_ROWS + i / 4 % TILES * ROW_TILE + lane % 4 * 2 + i % 2;
        *at = more ? *at + sum : sum;
        sum = 0;
    }
}

/* sums[unit + warp] += of the warp's steps. `more`: there are sums of earlier passes. */
template <int BITS, int GROUP, typename F>
static __device__ __forceinline__ void
few_sums(const few_shared<BITS, GROUP> &shared, const struct packed_shape &s,
         const struct few_work &w, int m, bool more, F await_x)
{
    typedef few_shared<BITS, GROUP> S;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    typename S::step *ring = shared.ring + warp * DEPTH<BITS>;
    __syncwarp();
    float sums[WIDE][TILES][4] = {};
    const int there = (int)min((int64_t)w.chunks, s.chunks - w.first_chunk);
    int unit = w.at / w.chunks, chunk = w.at % w.chunks;
    int to_copy = w.end - w.at, next_chunk = chunk;
    int next_wide = 0;
    const uint4 *next[WIDE];
    const auto begin_unit = [&](int at) {
        const int64_t tile = w.first_tile + (int64_t)at * WIDE;
        next_wide = (int)min((int64_t)WIDE, w.end_tile - tile);
#pragma unroll
        for (int i = 0; i < WIDE; i++)
            next[i] = (const uint4 *)(s.at + ((tile + i) * s.chunks + w.first_chunk + next_chunk) *
                                                 s.per_chunk) +
                      lane;
    };
    int next_unit = unit;
    begin_unit(next_unit);
    const auto copy_next = [&](int slot) {
        if (to_copy-- > 0 && next_chunk < there)
#pragma unroll
            for (int i = 0; i < WIDE; i++) {
                if (i < next_wide)
                    begin_chunk<BITS, GROUP>(ring[slot].tiles[i], next[i]);
                next[i] += (int)s.per_chunk / 16;
            }
        end_copies();
        if (++next_chunk == w.chunks) {
            next_chunk = 0;
            begin_unit(++next_unit);
        }
    };
#pragma unroll
    for (int i = 0; i < DEPTH<BITS> - 1; i++)
        copy_next(i);
    await_x();
    int slot = 0;
    for (int step = w.at; step < w.end; step++) {
        __syncwarp(); /* lanes have read all of the step before, whose place is filled now */
        copy_next(slot ? slot - 1 : DEPTH<BITS> - 1);
        await_copies_but<DEPTH<BITS> - 1>();
        __syncwarp(); /* lanes copied for each other */
        if (chunk < there) {
            const uint4 *rows[TILES];
#pragma unroll
            for (int i = 0; i < TILES; i++)
                rows[i] =
                    shared.x + chunk * 16 * m + min(i * ROW_TILE + lane / 4, m - 1) * 4 + lane % 4;
            const bool whole = w.first_tile + (unit + 1) * WIDE <= w.end_tile;
            if (whole)
                multiply_step<BITS, GROUP, WIDE>(sums, ring[slot], rows, m * 4, s.dtype == QV_F16);
            else
                multiply_step<BITS, GROUP, 1>(sums, ring[slot], rows, m * 4, s.dtype == QV_F16);
        }
        slot = slot + 1 < DEPTH<BITS> ? slot + 1 : 0;
        if (++chunk < w.chunks && step + 1 < w.end)
            continue;
        keep_sums(shared.sums + (unit + warp) * COLS * QV_FEW_ROWS, sums, more);
        chunk = 0;
        unit++;
    }
}

/* Writes a cluster's units of y, columns up to `end`. Blocks share its values, and each adds
 * what all warps of all have of one, in their order. */
template <typename S>
static __device__ __forceinline__ void
finish_units(const S &shared, const struct few_cut &cut, const struct few_epilogue &e,
             const struct few_columns &c, bf16 *y)
{
    const int m = (int)e.m, col = threadIdx.x % COLS, apart = cut.ranks * WARPS * WARP / COLS;
    const int steps = c.units * cut.chunks;
    int row = (blockIdx.x % cut.ranks * WARPS * WARP + threadIdx.x) / COLS, unit = 0;
    for (;; row += apart) {
        for (; row >= m; row -= m)
            unit++;
        if (unit >= c.units)
            return;
        const int begin = unit * cut.chunks, end = begin + cut.chunks;
        const float *from = shared.sums + (unit * COLS + col) * QV_FEW_ROWS + row;
        float sum = 0;
        for (int other = 0; other < cut.ranks; other++)
#pragma unroll
            for (int warp = 0; warp < WARPS; warp++)
                if (max(begin, first_step(steps, warp)) < min(end, first_step(steps, warp + 1)))
                    sum += peek(from + warp * COLS * QV_FEW_ROWS, other);
        const int64_t at = (c.first + unit * WIDE) * TILE_COLS + col;
        if (at < min(e.n, c.end * TILE_COLS))
            finish(e, row, at, sum, y);
    }
}

template <int BITS, int GROUP>
static __global__
__launch_bounds__(WARPS *WARP) void few_kernel(const struct packed_shape s,
                                               const struct few_cut cut,
                                               const struct few_epilogue e, const bf16 *x, bf16 *y)
{
    extern __shared__ uint4 at[];
    typedef few_shared<BITS, GROUP> S;
    const S shared(at, cut);
    const int warp = threadIdx.x / WARP, m = (int)e.m;
    const struct few_columns c = columns_of(s, cut, blockIdx.x / cut.ranks);
    const int steps = c.units * cut.chunks;
    for (int pass = 0; pass < cut.passes; pass++) {
        const struct few_work w = { first_step(steps, warp),
                                    first_step(steps, warp + 1),
                                    cut.chunks,
                                    (pass * cut.ranks + blockIdx.x % cut.ranks) *
                                        (int64_t)cut.chunks,
                                    c.first,
                                    c.end };
        few_sums<BITS, GROUP>(shared, s, w, m, pass > 0, [&] {
            if (pass)
                __syncthreads(); /* all have read x of the pass before */
            else
                await_launch();
            begin_x(shared.x, x, m, s.k, w.first_chunk, cut.chunks);
            await_copies();
            __syncthreads();
        });
    }
    await_cluster();
    finish_units(shared, cut, e, c, y);
    await_cluster(); /* others read this block's sums until here */
}

/* ---- launches -------------------------------------------------------------------------------- */

/* The properties of a device that decide how a product is cut. */
struct few_device {
    int processors, shared_bytes, major;
};

static cudaError_t
ask_device(struct few_device *out)
{
    int *const to[] = { &out->processors, &out->shared_bytes, &out->major };
    static const cudaDeviceAttr what[] = { cudaDevAttrMultiProcessorCount,
                                           cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                           cudaDevAttrComputeCapabilityMajor };
    int device = 0;
    cudaError_t error = cudaGetDevice(&device);
    for (int i = 0; i < 3 && !error; i++)
        error = cudaDeviceGetAttribute(to[i], what[i], device);
    return error;
}

/* Returns how to cut a product on a device, which does not depend on the number of rows, so that the bits of y do not
 * either. passes is 0 if shared memory does not suffice. */
template <typename S>
static struct few_cut
cut_for(const struct packed_shape &s, const struct few_device &d)
{
    struct few_cut cut = {};
    cut.ranks = d.major >= 9 ? RANKS : 1;
    cut.clusters = min(s.tiles, (int64_t)max(d.processors / cut.ranks, 1));
    cut.clusters = max(cut.clusters, ceil_div(s.tiles, MOST_UNITS * WIDE));
    cut.most_units = (int)ceil_div(ceil_div(s.tiles, cut.clusters), WIDE);
    do
        cut.chunks = (int)ceil_div(s.chunks, cut.ranks * ++cut.passes);
    while (cut.chunks > 1 && S::bytes(cut, QV_FEW_ROWS) > (size_t)d.shared_bytes);
    if (S::bytes(cut, QV_FEW_ROWS) > (size_t)d.shared_bytes)
        cut.passes = 0;
    return cut;
}

template <int BITS, int GROUP>
static cudaError_t
launch_few(cudaStream_t stream, const struct packed_shape &s, const struct few_epilogue &e,
           const bf16 *x, bf16 *y, bool *taken)
{
    typedef few_shared<BITS, GROUP> S;
    const auto kernel = few_kernel<BITS, GROUP>;
    struct few_device d;
    cudaError_t error = ask_device(&d);
    if (error)
        return error;
    const struct few_cut cut = cut_for<S>(s, d);
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attributes[2] = {};
    *taken = cut.passes > 0;
    if (!*taken)
        return cudaSuccess;
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim = { (unsigned)cut.ranks, 1, 1 };
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    config.attrs = attributes;
    config.numAttrs = d.major >= 9 ? 2 : 0;
    config.gridDim = dim3((unsigned)(cut.clusters * cut.ranks));
    config.blockDim = dim3(WARPS * WARP);
    config.dynamicSmemBytes = S::bytes(cut, e.m);
    config.stream = stream;
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 (int)config.dynamicSmemBytes);
    if (!error)
        error = cudaLaunchKernelEx(&config, kernel, s, cut, e, x, y);
    if (error)
        (void)cudaGetLastError(); /* returned here, so the next caller must not find it again */
    return error;
}

template <int BITS>
static cudaError_t
launch_group(cudaStream_t stream, int64_t group, const struct packed_shape &s,
             const struct few_epilogue &e, const bf16 *x, bf16 *y, bool *taken)
{
    return group == 32   ? launch_few<BITS, 32>(stream, s, e, x, y, taken)
           : group == 64 ? launch_few<BITS, 64>(stream, s, e, x, y, taken)
                         : launch_few<BITS, 128>(stream, s, e, x, y, taken);
}

cudaError_t
qv_few_bf16_cuda(cudaStream_t stream, const struct qv_groups *groups, const struct packed_shape &s,
                 const struct few_epilogue &e, const void *x, void *y, bool *taken)
{
    *taken = groups->dtype != QV_F32;
    if (!*taken)
        return cudaSuccess;
    return groups->bits == 4
               ? launch_group<4>(stream, groups->group, s, e, (const bf16 *)x, (bf16 *)y, taken)
               : launch_group<8>(stream, groups->group, s, e, (const bf16 *)x, (bf16 *)y, taken);
}
