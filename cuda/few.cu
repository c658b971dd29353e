/* SPDX-License-Identifier: MIT */
/*
 * Up to 16 rows of bf16 by codes, as cuda/packed.h lays them, each of which is read once for all rows.
 *
 * A warp has 16 columns of y, which are rows of w, on the tensor cores: codes are exact in bf16, and of each group
 *     sum += scale * (codes . x) + offset * (ones . x)
 * in f32, so that no value of w is rounded. Codes of 4 bits are multiplied with 16 added and those of 8 with 128 taken,
 * as unpacking gives them; the offset is corrected for it.
 *
 * Only what is under way keeps the memory busy, so each warp copies its next chunks to shared memory while it
 * multiplies one, and begins before the kernel in front of this one has ended. x lies in shared memory,
 * once for all tiles of a block; for that, the two blocks of a cluster share k. Bits of y do not depend on how many
 * rows there are.
 */
#include "mma.cuh"
#include "packed.cuh"

enum { ROW_TILE = 8 }; /* rows of x in a product */

/* pairs_of() adds this to codes of so many bits. */
template <int BITS> constexpr float BIAS = BITS == 4 ? 16 : -128;

/* (a & b) | c and (a & b) ^ c by one instruction, which nvcc 13.0 makes two where b and c are constants. */
static __device__ __forceinline__ uint32_t
and_or(uint32_t a, uint32_t b, uint32_t c)
{
#ifdef __CUDA_ARCH__
    asm("lop3.b32 %0, %0, %1, %2, 0xea;" : "+r"(a) : "r"(b), "r"(c));
    return a;
#else
    return (a & b) | c;
#endif
}

static __device__ __forceinline__ uint32_t
and_xor(uint32_t a, uint32_t b, uint32_t c)
{
#ifdef __CUDA_ARCH__
    asm("lop3.b32 %0, %0, %1, %2, 0x6a;" : "+r"(a) : "r"(b), "r"(c));
    return a;
#else
    return (a & b) ^ c;
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

/* The codes of a lane's 8 values of a quarter, as four pairs of bf16, first to last. Of 4 bits, 0x4180 with
 * a code in the upper bits of its fraction is 16 + code. Of 8 bits, 0x4300 with a code's lower 7 bits as its
 * fraction is 128 and these, from which 256 is taken, or 128 where the upper bit is set: exactly. */
template <int BITS>
static __device__ __forceinline__ void
pairs_of(uint32_t (&pairs)[4], const uint32_t *words)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if constexpr (BITS == 4) {
            const uint32_t word = words[0];
            pairs[i] = and_or(__funnelshift_r(word, word, 4 * i), 0x00780078, 0x41804180);
        } else {
            const uint32_t word = words[i / 2] >> (i % 2 * 8);
            const uint32_t low = and_or(word, 0x007f007f, 0x43004300);
            pairs[i] = add_pairs(low, and_xor(word, 0x00800080, 0xc380c380));
        }
    }
}

/* A step of a warp: a chunk of each of WIDE tiles, on its way to the warp. */
template <int BITS, int GROUP, int WIDE> struct few_step {
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

/* f32 of a pair of a scale and an offset, which takes the codes' bias back */
template <int BITS>
static __device__ __forceinline__ float2
factors_of_pair(uint32_t both, bool is_half)
{
    const float2 f =
        is_half ? make_float2(__half2float(__ushort_as_half((unsigned short)both)),
                              __half2float(__ushort_as_half((unsigned short)(both >> 16))))
                : make_float2(__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000));
    return make_float2(f.x, fmaf(-BIAS<BITS>, f.x, f.y));
}

/* sums[wide][tile] += of the columns of WIDE tiles (a lane: of lane / 4 and lane / 4 + 8) with x's rows of a tile
 * over one chunk. x: a lane's 16 bytes of a tile's row, of which quarters are x_apart further on. Products with ones are
 * x's sums over a group. Products of different tiles are between those that wait for each other. */
template <int BITS, int GROUP, int TILES, int WIDE>
static __device__ __forceinline__ void
multiply_step(float (&sums)[WIDE][TILES][4], const few_step<BITS, GROUP, WIDE> &step,
              const uint4 *const (&x)[TILES], int x_apart, bool is_half)
{
    enum { GROUPS = CHUNK / GROUP };
    const int lane = threadIdx.x % WARP;
    uint32_t words[WIDE][2][BITS], both[WIDE][GROUPS][2]; /* of rows lane / 4 and lane / 4 + 8 */
    float2 f[WIDE][GROUPS][2];
    float products[WIDE][TILES][4], plain[TILES][4];
    const uint32_t ones[4] = { 0x3f803f80, 0x3f803f80, 0x3f803f80, 0x3f803f80 };
#pragma unroll
    for (int w = 0; w < WIDE; w++) {
#pragma unroll
        for (int i = 0; i < BITS / 2; i++) {
            const uint4 part = step.tiles[w].codes[i * WARP + lane];
            memcpy(&words[w][i / (BITS / 4)][i % (BITS / 4) * 4], &part, sizeof part);
        }
#pragma unroll
        for (int i = 0; i < GROUPS * 2; i++)
            both[w][i / 2][i % 2] = step.tiles[w].pairs[i / 2 * TILE_COLS + i % 2 * 8 + lane / 4];
    }
    if (is_half) {
#pragma unroll
        for (int i = 0; i < WIDE * GROUPS * 2; i++)
            f[i / 2 / GROUPS][i / 2 % GROUPS][i % 2] =
                factors_of_pair<BITS>(both[i / 2 / GROUPS][i / 2 % GROUPS][i % 2], true);
    } else {
#pragma unroll
        for (int i = 0; i < WIDE * GROUPS * 2; i++)
            f[i / 2 / GROUPS][i / 2 % GROUPS][i % 2] =
                factors_of_pair<BITS>(both[i / 2 / GROUPS][i / 2 % GROUPS][i % 2], false);
    }
#pragma unroll
    for (int quarter = 0; quarter < 4; quarter++) {
        const int group = quarter * QUARTER / GROUP;
        uint32_t a[2][WIDE][4];
        uint4 b[TILES];
#pragma unroll
        for (int tile = 0; tile < TILES; tile++)
            b[tile] = x[tile][quarter * x_apart];
#pragma unroll
        for (int w = 0; w < WIDE; w++) {
            uint32_t pairs0[4], pairs1[4];
            pairs_of<BITS>(pairs0, &words[w][0][quarter * BITS / 4]);
            pairs_of<BITS>(pairs1, &words[w][1][quarter * BITS / 4]);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                a[i / 2][w][i % 2 * 2] = pairs0[i];
                a[i / 2][w][i % 2 * 2 + 1] = pairs1[i];
            }
        }
        const auto multiply = [&](float(&sum)[4], const uint32_t(&by)[4], int tile) {
            if (quarter * QUARTER % GROUP)
                multiply_blocks(sum, by, b[tile].x, b[tile].y);
            else
                multiply_first_blocks(sum, by, b[tile].x, b[tile].y);
        };
#pragma unroll
        for (int tile = 0; tile < TILES; tile++)
            multiply(plain[tile], ones, tile);
#pragma unroll
        for (int i = 0; i < WIDE * TILES; i++)
            multiply(products[i / TILES][i % TILES], a[0][i / TILES], i % TILES);
#pragma unroll
        for (int tile = 0; tile < TILES; tile++)
            multiply_blocks(plain[tile], ones, b[tile].z, b[tile].w);
#pragma unroll
        for (int i = 0; i < WIDE * TILES; i++)
            multiply_blocks(products[i / TILES][i % TILES], a[1][i / TILES], b[i % TILES].z,
                            b[i % TILES].w);
        if ((quarter + 1) * QUARTER % GROUP)
            continue;
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
            for (int i = 0; i < WIDE * 4; i++) {
                float &sum = sums[i / 4][tile][i % 4];
                const float2 by = f[i / 4][group][i % 4 / 2];
                sum = fmaf(by.x, products[i / 4][tile][i % 4], sum);
                sum = fmaf(by.y, plain[tile][i % 2], sum);
            }
        }
    }
}

/* Waits until the kernel in front of this one has ended: weights may be read before that, what it wrote only
 * then. Lets the kernel behind this one begin, as far as there is room. */
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

/* What a block of the cluster has at the address p of its shared memory. */
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

/* How a product is cut. A unit is WIDE tiles, so many columns of y. Each cluster of blocks has some units, at
 * most most_units; each of its `ranks` blocks has every ranks'th run of `chunks` chunks of k, a run in a pass, so that
 * it keeps x's part of the run in shared memory. Of its units times chunks each warp of a block has as many,
 * in a row. */
struct few_cut {
    int64_t units, clusters;
    int most_units, ranks, passes, chunks;
};

/* The first of the steps of a block that a warp has. */
template <int WARPS>
static __device__ __forceinline__ int
first_step(int steps, int warp)
{
    return steps * warp / WARPS;
}

/* The warp that has a step. */
template <int WARPS>
static __device__ __forceinline__ int
warp_of(int steps, int step)
{
    return ((step + 1) * WARPS - 1) / steps;
}

/* Shared memory of a block. */
template <int BITS, int GROUP, int TILES, int WIDE, int DEPTH, int WARPS> struct few_shared {
    enum { COLS = WIDE * TILE_COLS, ROWS = TILES * ROW_TILE, GROUPS = CHUNK / GROUP };
    typedef few_step<BITS, GROUP, WIDE> step;
    step *ring;  /* [WARPS][DEPTH] */
    float *sums; /* [most_units + WARPS][COLS][ROWS]: those of unit u and warp w at u + w */
    uint4 *x;    /* [chunks][4 quarters][m][4] */

    __host__ __device__
    few_shared(void *at, const few_cut &cut)
    {
        ring = (step *)at;
        sums = (float *)(ring + WARPS * DEPTH);
        x = (uint4 *)(sums + (cut.most_units + WARPS) * COLS * ROWS);
    }

    static size_t
    bytes(const few_cut &cut, int64_t m)
    {
        const few_shared s(nullptr, cut);
        return (size_t)((char *)(s.x + cut.chunks * 16 * m) - (char *)nullptr);
    }
};

/* Copies x's rows of a run of chunks that begins at chunk `first`, with zeros behind the end: a warp copies 16 bytes a
 * lane of two chunks at once. */
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

/* What a warp multiplies in a pass: steps `at` to `end` of its block's, of which chunks begin at first_chunk of k and
 * tiles at first_tile. */
struct few_work {
    int at, end, chunks;
    int64_t first_chunk, first_tile;
};

/* sums[unit + warp] += of the warp's steps. `more`: there are sums of earlier passes. */
template <int BITS, int GROUP, int TILES, int WIDE, int DEPTH, int WARPS, typename F>
static __device__ __forceinline__ void
few_sums(const few_shared<BITS, GROUP, TILES, WIDE, DEPTH, WARPS> &shared,
         const struct packed_shape &s, const struct few_work &w, int m, bool more, F await_x)
{
    typedef few_shared<BITS, GROUP, TILES, WIDE, DEPTH, WARPS> S;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    typename S::step *ring = shared.ring + warp * DEPTH;
    __syncwarp();
    float sums[WIDE][TILES][4] = {};
    const int there = (int)min((int64_t)w.chunks, s.chunks - w.first_chunk);
    int unit = w.at / w.chunks, chunk = w.at % w.chunks;
    int to_copy = w.end - w.at, next_chunk = chunk;
    int64_t next_tile = w.first_tile + unit * WIDE;
    const uint4 *next[WIDE];
    const auto begin_unit =
        [&] { /* tiles behind the last one are the last one */
#pragma unroll
              for (int i = 0; i < WIDE; i++)
                  next[i] = (const uint4 *)(s.at + (min(next_tile + i, s.tiles - 1) * s.chunks +
                                                    w.first_chunk + next_chunk) *
                                                       s.per_chunk) +
                            lane;
              next_tile += WIDE;
        };
    begin_unit();
    const auto copy_next = [&](int slot) {
        if (to_copy-- > 0 && next_chunk < there)
#pragma unroll
            for (int i = 0; i < WIDE; i++) {
                begin_chunk<BITS, GROUP>(ring[slot].tiles[i], next[i]);
                next[i] += (int)s.per_chunk / 16;
            }
        end_copies();
        if (++next_chunk == w.chunks) {
            next_chunk = 0;
            begin_unit();
        }
    };
#pragma unroll
    for (int i = 0; i < DEPTH - 1; i++)
        copy_next(i);
    await_x();
    int slot = 0;
    for (int step = w.at; step < w.end; step++) {
        __syncwarp(); /* lanes have read all of the step before, whose place is filled now */
        copy_next(slot ? slot - 1 : DEPTH - 1);
        await_copies_but<DEPTH - 1>();
        __syncwarp(); /* lanes copied for each other */
        if (chunk < there) {
            const uint4 *rows[TILES];
#pragma unroll
            for (int i = 0; i < TILES; i++)
                rows[i] =
                    shared.x + chunk * 16 * m + min(i * ROW_TILE + lane / 4, m - 1) * 4 + lane % 4;
            multiply_step<BITS, GROUP, TILES, WIDE>(sums, ring[slot], rows, m * 4,
                                                    s.dtype == QV_F16);
        }
        slot = slot + 1 < DEPTH ? slot + 1 : 0;
        if (++chunk < w.chunks && step + 1 < w.end)
            continue;
        float *all = shared.sums + (unit + warp) * S::COLS * S::ROWS;
#pragma unroll
        for (int i = 0; i < WIDE * TILES * 4; i++) {
            const int wide = i / 4 / TILES, tile = i / 4 % TILES, j = i % 4;
            float *to = all + (wide * TILE_COLS + lane / 4 + j / 2 * 8) * S::ROWS +
                        tile * ROW_TILE + lane % 4 * 2 + j % 2;
            *to = more ? *to + sums[wide][tile][j] : sums[wide][tile][j];
            sums[wide][tile][j] = 0;
        }
        chunk = 0;
        unit++;
    }
}

/* Writes a cluster's units of y. Blocks share its values, and each adds what all warps of all have of one, in their
 * order. */
template <int WARPS, typename S>
static __device__ __forceinline__ void
finish_units(const S &shared, const struct few_cut &cut, const struct few_epilogue &e,
             int64_t first, int units, bf16 *y)
{
    const int rank = blockIdx.x % cut.ranks, steps = units * cut.chunks, m = (int)e.m;
    for (int i = rank * blockDim.x + threadIdx.x; i < units * S::COLS * m;
         i += cut.ranks * blockDim.x) {
        const int row = i / S::COLS % m, unit = i / S::COLS / m;
        const int64_t col = (first + unit) * S::COLS + i % S::COLS;
        const int begin = warp_of<WARPS>(steps, unit * cut.chunks);
        const int end = warp_of<WARPS>(steps, (unit + 1) * cut.chunks - 1);
        const float *from = shared.sums + (unit * S::COLS + i % S::COLS) * S::ROWS + row;
        float sum = 0;
        for (int other = 0; other < cut.ranks; other++)
            for (int warp = begin; warp <= end; warp++)
                if (first_step<WARPS>(steps, warp) < first_step<WARPS>(steps, warp + 1))
                    sum += peek(from + warp * S::COLS * S::ROWS, other);
        if (col < e.n)
            finish(e, row, col, sum, y);
    }
}

template <int BITS, int GROUP, int TILES, int WIDE, int DEPTH, int WARPS>
static __global__
__launch_bounds__(WARPS *WARP) void few_kernel(const struct packed_shape s,
                                               const struct few_cut cut,
                                               const struct few_epilogue e, const bf16 *x, bf16 *y)
{
    extern __shared__ uint4 at[];
    typedef few_shared<BITS, GROUP, TILES, WIDE, DEPTH, WARPS> S;
    const S shared(at, cut);
    const int warp = threadIdx.x / WARP, m = (int)e.m;
    const int64_t cluster = blockIdx.x / cut.ranks, first = cut.units * cluster / cut.clusters;
    const int units = (int)(cut.units * (cluster + 1) / cut.clusters - first);
    const int steps = units * cut.chunks;
    for (int pass = 0; pass < cut.passes; pass++) {
        const struct few_work w = {
            first_step<WARPS>(steps, warp), first_step<WARPS>(steps, warp + 1), cut.chunks,
            (pass * cut.ranks + blockIdx.x % cut.ranks) * (int64_t)cut.chunks, first * WIDE
        };
        few_sums<BITS, GROUP, TILES, WIDE, DEPTH, WARPS>(shared, s, w, m, pass > 0, [&] {
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
    finish_units<WARPS>(shared, cut, e, first, units, y);
    await_cluster(); /* others read this block's sums until here */
}

/* ---- launches -------------------------------------------------------------------------------- */

/* What a device has. */
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

/* A cluster of two blocks is what any device with clusters has room for wherever it has room for two blocks. */
enum { FEW_WARPS = 8, FEW_WIDE = 2, RANKS = 2, MOST_UNITS = 16 };

/* How to cut a product on a device: the same for any number of rows, so that bits are. passes 0: shared memory does
 * not suffice. */
template <typename S>
static struct few_cut
cut_for(const struct packed_shape &s, const struct few_device &d)
{
    struct few_cut cut = {};
    cut.units = ceil_div(s.tiles, FEW_WIDE);
    cut.ranks = d.major >= 9 ? RANKS : 1;
    cut.clusters = min(cut.units, (int64_t)max(d.processors / cut.ranks, 1));
    cut.clusters = max(cut.clusters, ceil_div(cut.units, MOST_UNITS));
    cut.most_units = (int)ceil_div(cut.units, cut.clusters);
    do
        cut.chunks = (int)ceil_div(s.chunks, cut.ranks * ++cut.passes);
    while (cut.chunks > 1 && S::bytes(cut, QV_FEW_ROWS) > (size_t)d.shared_bytes);
    if (S::bytes(cut, QV_FEW_ROWS) > (size_t)d.shared_bytes)
        cut.passes = 0;
    return cut;
}

template <int BITS, int GROUP, int TILES, int DEPTH>
static cudaError_t
launch_few(cudaStream_t stream, const struct packed_shape &s, const struct few_epilogue &e,
           const struct few_device &d, const bf16 *x, bf16 *y, bool *taken)
{
    typedef few_shared<BITS, GROUP, TILES, FEW_WIDE, DEPTH, FEW_WARPS> S;
    const auto kernel = few_kernel<BITS, GROUP, TILES, FEW_WIDE, DEPTH, FEW_WARPS>;
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
    config.blockDim = dim3(FEW_WARPS * WARP);
    config.dynamicSmemBytes = S::bytes(cut, e.m);
    config.stream = stream;
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             (int)config.dynamicSmemBytes);
    if (!error)
        error = cudaLaunchKernelEx(&config, kernel, s, cut, e, x, y);
    if (error)
        (void)cudaGetLastError(); /* returned here, so the next caller must not find it again */
    return error;
}

template <int BITS, int GROUP>
static cudaError_t
launch_rows(cudaStream_t stream, const struct packed_shape &s, const struct few_epilogue &e,
            const bf16 *x, bf16 *y, bool *taken)
{
    constexpr int DEPTH = BITS == 4 ? 4 : 3;
    struct few_device d;
    const cudaError_t error = ask_device(&d);
    if (error)
        return error;
    return e.m <= ROW_TILE ? launch_few<BITS, GROUP, 1, DEPTH>(stream, s, e, d, x, y, taken)
                           : launch_few<BITS, GROUP, 2, DEPTH>(stream, s, e, d, x, y, taken);
}

template <int BITS>
static cudaError_t
launch_group(cudaStream_t stream, int64_t group, const struct packed_shape &s,
             const struct few_epilogue &e, const bf16 *x, bf16 *y, bool *taken)
{
    return group == 32   ? launch_rows<BITS, 32>(stream, s, e, x, y, taken)
           : group == 64 ? launch_rows<BITS, 64>(stream, s, e, x, y, taken)
                         : launch_rows<BITS, 128>(stream, s, e, x, y, taken);
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
