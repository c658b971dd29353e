/* SPDX-License-Identifier: MIT */
/* Operations bound by memory: patch rows, conversions, gathering, interpolation, im2col,
 * epilogues and gates. D: threads of a threadgroup. */

/* ---- rows ------------------------------------------------------------------------------------ */

/* Returns where the pixel (x, y) of a patch is, in pixels. row: the item, the frame pair, and the
 * patch's row and column. place: the item's first frame, the distances between frame pairs and
 * between frames, all in patches, and the columns of its grid. */
static inline long
patchify_pixel(constant patchify_args &a, int4 row, int4 place, uint frame, uint x, uint y)
{
    long from = place.x + long(row.y) * place.y + long(frame) * place.z;
    long line = long(row.z) * a.patch + y;
    return (from * a.patch + line * place.w + row.w) * a.patch + x;
}

/* Normalises and stores four bytes. norm: scales of three channels, then shifts. */
static inline void
rows_put(device const float *norm, device real *y, uint b0, uint b1, uint b2, uint b3)
{
    float4 v = float4(float(b0), float(b1), float(b2), float(b3));
    store4(y, fma(v, float4(norm[0]), float4(norm[3])));
}

/* Four pixels of three channels are read as three words and written as vectors of four. */
static inline void
patchify_vectors(constant patchify_args &a, device const uchar *frames, device const int4 *places,
                 device const float *norms, device const int4 *coords, device real *y, uint group,
                 uint thread_index, uint groups)
{
    const uint wide = a.patch / 4, plane = a.patch * a.patch, items = a.frames * plane / 4;
    uint first, n = items_of_group(a.rows, items, group, groups, first);
    for (uint i = thread_index; i < n; i += D) {
        uint row = first + i / items, item = i % items, line = item / wide, x = item % wide * 4;
        int4 at = coords[row];
        long from = 3 * patchify_pixel(a, at, places[at.x], line / a.patch, x, line % a.patch);
        device const uint *words = (device const uint *)(frames + from);
        device const float *norm = norms + 6 * long(at.x);
        device real *to = y + long(row) * 3 * a.frames * plane + item * 4;
        uint u = words[0], v = words[1], w = words[2];
        rows_put(norm, to, u & 255, u >> 24, v >> 16 & 255, w >> 8 & 255);
        to += a.frames * plane;
        rows_put(norm + 1, to, u >> 8 & 255, v & 255, v >> 24, w >> 16 & 255);
        to += a.frames * plane;
        rows_put(norm + 2, to, u >> 16 & 255, v >> 8 & 255, w & 255, w >> 24);
    }
}

/* For any patch and any channels: one value at a time. */
static inline void
patchify_values(constant patchify_args &a, device const uchar *frames, device const int4 *places,
                device const float *norms, device const int4 *coords, device real *y, uint group,
                uint thread_index, uint groups)
{
    const uint items = a.channels * a.frames * a.patch * a.patch;
    uint first, n = items_of_group(a.rows, items, group, groups, first);
    for (uint i = thread_index; i < n; i += D) {
        uint row = first + i / items, item = i % items, x = item % a.patch, line = item / a.patch;
        uint frame = line / a.patch % a.frames, channel = line / a.patch / a.frames;
        int4 at = coords[row];
        long from = patchify_pixel(a, at, places[at.x], frame, x, line % a.patch);
        float u = float(frames[from * a.channels + channel]);
        device const float *norm = norms + 6 * long(at.x) + channel;
        y[long(row) * items + item] = real(fma(u, norm[0], norm[3]));
    }
}

/* ALIGNED: three channels, and patches of whole vectors. */
kernel void
patchify(constant patchify_args &a [[buffer(0)]], device const uchar *frames [[buffer(1)]],
         device const int4 *places [[buffer(2)]], device const float *norms [[buffer(3)]],
         device const int4 *coords [[buffer(4)]], device real *y [[buffer(5)]],
         uint3 group [[threadgroup_position_in_grid]],
         uint thread_index [[thread_index_in_threadgroup]], uint3 groups [[threadgroups_per_grid]])
{
    if (ALIGNED)
        patchify_vectors(a, frames, places, norms, coords, y, group.x, thread_index, groups.x);
    else
        patchify_values(a, frames, places, norms, coords, y, group.x, thread_index, groups.x);
}

/* ---- convert --------------------------------------------------------------------------------- */

/* Converts values i, i + step, ... of n. It goes through float, which loses nothing. */
template <typename F>
static inline void
convert_values(device const uchar *x, device uchar *y, ulong n, ulong i, ulong step)
{
    const uint size = sizeof(F) / sizeof(float);
    for (; i < n; i += step) {
        F v;
        if (A)
            fetch((device const real *)x + i * size, v);
        else
            fetch_float((device const float *)x + i * size, v);
        if (B)
            put((device real *)y + i * size, v);
        else
            put_float((device float *)y + i * size, v);
    }
}

/* A: x is real, not float. B: y is real, not float. ALIGNED: whole vectors, then single values
 * for the rest. */
kernel void
convert(constant convert_args &a [[buffer(0)]], device const uchar *x [[buffer(1)]],
        device uchar *y [[buffer(2)]], uint3 group [[threadgroup_position_in_grid]],
        uint thread_index [[thread_index_in_threadgroup]], uint3 groups [[threadgroups_per_grid]])
{
    const ulong i = ulong(group.x) * D + thread_index, step = ulong(groups.x) * D;
    const ulong n = ulong(a.n), vectors = ALIGNED ? n / 4 : 0;
    convert_values<float4>(x, y, vectors, i, step);
    convert_values<float>(x, y, n, 4 * vectors + i, step);
}

/* ---- gather ---------------------------------------------------------------------------------- */

template <typename F>
static inline void
gather_rows(constant gather_args &a, device const uchar *x, device const int *index,
            device uchar *y, uint group, uint thread_index, uint groups)
{
    const uint size = sizeof(F) / sizeof(float), items = a.cols / size;
    uint first, n = items_of_group(a.rows, items, group, groups, first);
    for (uint i = thread_index; i < n; i += D) {
        uint row = first + i / items, col = i % items * size;
        long from = long(index[row]) * a.cols + col, to = long(row) * a.cols + col;
        F v;
        if (A)
            fetch((device const real *)x + from, v);
        else
            fetch_float((device const float *)x + from, v);
        if (B)
            put((device real *)y + to, v);
        else
            put_float((device float *)y + to, v);
    }
}

/* A: x is real, not float. B: y is real, not float. ALIGNED: a row is whole vectors. */
kernel void
gather(constant gather_args &a [[buffer(0)]], device const uchar *x [[buffer(1)]],
       device const int *index [[buffer(2)]], device uchar *y [[buffer(3)]],
       uint3 group [[threadgroup_position_in_grid]],
       uint thread_index [[thread_index_in_threadgroup]], uint3 groups [[threadgroups_per_grid]])
{
    if (ALIGNED)
        gather_rows<float4>(a, x, index, y, group.x, thread_index, groups.x);
    else
        gather_rows<float>(a, x, index, y, group.x, thread_index, groups.x);
}

/* ---- interpolate ----------------------------------------------------------------------------- */

template <typename F>
static inline void
taps_rows(constant interpolate_args &a, device const real *table, device const int *index,
          device const float *weight, device real *y, uint3 group, uint thread_index, uint3 groups)
{
    const uint size = sizeof(F) / sizeof(float), items = a.cols / size;
    uint first, n = items_of_group(a.rows, items, group.x, groups.x, first);
    for (uint i = thread_index; i < n; i += D) {
        uint row = first + i / items, col = i % items * size;
        F v[4], sum = F(0);
        for (uint quad = 0; quad < a.taps; quad += 4) {
            int4 from = *(device const int4 *)(index + a.taps * long(row) + quad);
            float4 by = *(device const float4 *)(weight + a.taps * long(row) + quad);
            for (uint t = 0; t < 4; t++)
                fetch(table + long(from[t]) * a.cols + col, v[t]);
            for (uint t = 0; t < 4; t++)
                sum += v[t] * by[t];
        }
        put(y + long(row) * a.cols + col, sum);
    }
}

/* ALIGNED: a row is whole vectors. */
kernel void
interpolate(constant interpolate_args &a [[buffer(0)]], device const real *table [[buffer(1)]],
            device const int *index [[buffer(2)]], device const float *weight [[buffer(3)]],
            device real *y [[buffer(4)]], uint3 group [[threadgroup_position_in_grid]],
            uint thread_index [[thread_index_in_threadgroup]],
            uint3 groups [[threadgroups_per_grid]])
{
    if (ALIGNED)
        taps_rows<float4>(a, table, index, weight, y, group, thread_index, groups);
    else
        taps_rows<float>(a, table, index, weight, y, group, thread_index, groups);
}

/* ---- im2col ---------------------------------------------------------------------------------- */

/* The element that belongs at y[row, col] lies at im2col_row() + im2col_col(). A: channels come
 * first. A frame is one of y's n * d', and has h' * w' rows. */
static inline long
im2col_row(constant im2col_args &a, uint frame, uint row)
{
    long n = frame / a.out[0], z = frame % a.out[0] * a.stride[0];
    long r = row / a.out[2] * a.stride[1], q = row % a.out[2] * a.stride[2];
    if (A)
        return ((n * a.c * a.in[0] + z) * a.in[1] + r) * a.in[2] + q;
    return (((n * a.in[0] + z) * a.in[1] + r) * a.in[2] + q) * a.c;
}

static inline long
im2col_col(constant im2col_args &a, uint col)
{
    uint tap = A ? col : col / a.c, channel = col % a.c, q = tap % a.taps[2];
    uint r = tap / a.taps[2] % a.taps[1], z = tap / a.taps[2] / a.taps[1];
    if (!A)
        return ((long(z) * a.in[1] + r) * a.in[2] + q) * a.c + channel;
    channel = z / a.taps[0];
    z %= a.taps[0];
    return ((long(channel) * a.in[0] + z) * a.in[1] + r) * a.in[2] + q;
}

static inline uint
im2col_cols(constant im2col_args &a)
{
    return a.taps[0] * a.taps[1] * a.taps[2] * a.c;
}

template <typename T>
static inline void
im2col_rows(constant im2col_args &a, device const real *x, device real *y, uint3 group,
            uint thread_index, uint3 groups)
{
    const uint size = sizeof(T) / sizeof(real), rows = a.out[1] * a.out[2], cols = im2col_cols(a);
    uint first, n = items_of_group(rows, cols / size, group.x, groups.x, first);
    for (uint frame = group.y; frame < a.n * a.out[0]; frame += groups.y)
        for (uint i = thread_index; i < n; i += D) {
            uint row = first + i / (cols / size), col = i % (cols / size) * size;
            device const real *from = x + im2col_row(a, frame, row) + im2col_col(a, col);
            device real *to = y + (long(frame) * rows + row) * cols + col;
            *(device T *)to = *(device const T *)from;
        }
}

/* Threadgroups: runs of rows, and frames. ALIGNED: a vector's values are neighbours in both x
 * and y. */
kernel void
im2col(constant im2col_args &a [[buffer(0)]], device const real *x [[buffer(1)]],
       device real *y [[buffer(2)]], uint3 group [[threadgroup_position_in_grid]],
       uint thread_index [[thread_index_in_threadgroup]], uint3 groups [[threadgroups_per_grid]])
{
    if (ALIGNED)
        im2col_rows<real4>(a, x, y, group, thread_index, groups);
    else
        im2col_rows<real>(a, x, y, group, thread_index, groups);
}

/* The side of a tile of im2col_tiles, and the length of its lines in threadgroup memory. */
enum { IM2COL_TILE = 32, IM2COL_PITCH = IM2COL_TILE + 1 };

/* For narrow kernels with channels first, where neighbours in x lie below one another in y.
 * Tiles of 32 rows and columns are read by columns and written by rows. Threadgroups: tiles, and
 * frames. */
kernel void
im2col_tiles(constant im2col_args &a [[buffer(0)]], device const real *x [[buffer(1)]],
             device real *y [[buffer(2)]], threadgroup uchar *shared [[threadgroup(0)]],
             uint3 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
             uint simd [[simdgroup_index_in_threadgroup]], uint3 groups [[threadgroups_per_grid]])
{
    threadgroup real *tile = (threadgroup real *)shared;
    const uint rows = a.out[1] * a.out[2], cols = im2col_cols(a);
    const uint wide = (cols + IM2COL_TILE - 1) / IM2COL_TILE;
    const uint tiles = (rows + IM2COL_TILE - 1) / IM2COL_TILE * wide;
    for (uint frame = group.y; frame < a.n * a.out[0]; frame += groups.y)
        for (uint at = group.x; at < tiles; at += groups.x) {
            const uint row0 = at / wide * IM2COL_TILE, col0 = at % wide * IM2COL_TILE;
            const long from = im2col_row(a, frame, min(row0 + lane, rows - 1));
            threadgroup_barrier(mem_flags::mem_threadgroup); /* the previous tile has been read */
            for (uint j = simd; j < IM2COL_TILE && col0 + j < cols; j += D / 32)
                tile[j * IM2COL_PITCH + lane] = x[from + im2col_col(a, col0 + j)];
            threadgroup_barrier(mem_flags::mem_threadgroup);
            for (uint i = simd; i < IM2COL_TILE && row0 + i < rows; i += D / 32)
                if (col0 + lane < cols)
                    y[(long(frame) * rows + row0 + i) * cols + col0 + lane] =
                        tile[lane * IM2COL_PITCH + i];
        }
}

/* ---- epilogue -------------------------------------------------------------------------------- */

static inline float4
activate4(float4 v)
{
    return float4(activate(v.x), activate(v.y), activate(v.z), activate(v.w));
}

/* Does what epilogue_value() does, for four columns. */
static inline float4
epilogue_vector(constant epilogue_args &e, float4 sum, uint row, uint col, uint n,
                device const real *bias, device const real *residual)
{
    float4 v = e.alpha * sum;
    if (HAS_BIAS)
        v += load4(bias + col);
    v = activate4(v);
    if (HAS_RESIDUAL)
        v += load4(residual + long(row % e.residual_rows) * n + col);
    return v;
}

/* ALIGNED: a row is whole vectors. residual may be y, because a thread reads an element before
 * it writes it. */
kernel void
epilogue(constant epilogue_op_args &a [[buffer(0)]], device const float *x [[buffer(1)]],
         device const real *bias [[buffer(2)]], device const real *residual [[buffer(3)]],
         device real *y [[buffer(4)]], uint3 group [[threadgroup_position_in_grid]],
         uint thread_index [[thread_index_in_threadgroup]], uint3 groups [[threadgroups_per_grid]])
{
    const uint size = ALIGNED ? 4 : 1, items = a.cols / size;
    uint first, n = items_of_group(a.rows, items, group.x, groups.x, first);
    for (uint i = thread_index; i < n; i += D) {
        uint row = first + i / items, col = i % items * size;
        long at = long(row) * a.cols + col;
        if (ALIGNED) {
            float4 v = *(device const float4 *)(x + at);
            store4(y + at, epilogue_vector(a.epilogue, v, row, col, a.cols, bias, residual));
        } else
            y[at] = real(epilogue_value(a.epilogue, x[at], row, col, a.cols, bias, residual));
    }
}

/* ---- gate ------------------------------------------------------------------------------------ */

/* ALIGNED: rows are whole vectors, and so are the distances between them. */
kernel void
gate(constant gate_args &g [[buffer(0)]], device const real *a [[buffer(1)]],
     device const real *b [[buffer(2)]], device real *y [[buffer(3)]],
     uint3 group [[threadgroup_position_in_grid]],
     uint thread_index [[thread_index_in_threadgroup]], uint3 groups [[threadgroups_per_grid]])
{
    const uint size = ALIGNED ? 4 : 1, items = g.cols / size;
    uint first, n = items_of_group(g.rows, items, group.x, groups.x, first);
    for (uint i = thread_index; i < n; i += D) {
        uint row = first + i / items, col = i % items * size;
        device const real *u = a + row * g.a_stride + col, *v = b + row * g.b_stride + col;
        device real *to = y + long(row) * g.cols + col;
        if (ALIGNED)
            store4(to, activate4(load4(u)) * load4(v));
        else
            *to = real(activate(float(*u)) * float(*v));
    }
}
