/* SPDX-License-Identifier: MIT */
/*
 * Unpacks blocks of ggml's quantised types. Every product here is exact in f32, because a scale has
 * 11 bits, a value's code at most 8, and a scale's own scale at most 8. Only sums round, so neither
 * a different order of operations nor a fused multiply-add changes the bits from ggml's.
 */
#include "gguf_types.h"

#include "clones.h"
#include "dtype.h"

/* Defines the function that unpacks a type's blocks: one of the functions below with the type's
 * parameters. */
#define SPLIT(type, by, ...)                                                                       \
    QV_CLONES static void split_##type(const uint8_t *block, struct qv_gguf_block *out)            \
    {                                                                                              \
        by(__VA_ARGS__, block, out);                                                               \
    }

/* The offset of types with a code for 0. Adding -0 keeps a value of -0, as ggml does. */
#define NO_OFFSET (-0.0f)

/* Returns the f16 at p, which need not be aligned. */
static float
half(const uint8_t *p)
{
    return qv_f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

/* ---- blocks of 32 values --------------------------------------------------------------------- */

QV_CLONES static void
split_q8_0(const uint8_t *b, struct qv_gguf_block *out)
{
    out->scales[0] = half(b);
    out->offsets[0] = NO_OFFSET;
    for (int i = 0; i < 32; i++)
        out->codes[i] = b[2 + i] ^ 0x80; /* a signed byte + 128 */
}

/* Splits a block of a 4- or 5-bit type. It has a scale, perhaps a least value, perhaps the fifth
 * bits, then bytes of two nibbles; the lower nibbles are the first 16 values. */
static inline void
split_nibbles(bool has_least, bool has_fifth, const uint8_t *b, struct qv_gguf_block *out)
{
    const int fifths = has_least ? 4 : 2, low = has_fifth ? fifths + 4 : fifths;
    out->scales[0] = half(b);
    out->offsets[0] = has_least ? half(b + 2) : NO_OFFSET;
    for (int i = 0; i < 32; i++) {
        const int nibble = b[low + i % 16] >> (i < 16 ? 0 : 4) & 15;
        const int fifth = has_fifth ? b[fifths + i / 8] >> i % 8 & 1 : 0;
        out->codes[i] = (uint8_t)(nibble | fifth << 4);
    }
}

SPLIT(q4_0, split_nibbles, false, false)
SPLIT(q4_1, split_nibbles, true, false)
SPLIT(q5_0, split_nibbles, false, true)
SPLIT(q5_1, split_nibbles, true, true)

/* ---- blocks of 256 values -------------------------------------------------------------------- */

/* Returns a group's scale and least value. Eight groups' scales and least values, 6 bits each, are
 * packed into 12 bytes. */
static void
unpack_group(const uint8_t *packed, int group, int *scale, int *least)
{
    if (group < 4) {
        *scale = packed[group] & 63;
        *least = packed[group + 4] & 63;
    } else {
        *scale = (packed[group + 4] & 15) | packed[group - 4] >> 6 << 4;
        *least = packed[group + 4] >> 4 | packed[group] >> 6 << 4;
    }
}

/* Splits a block of Q4_K or Q5_K. It has two f16, the groups' 12 bytes, in Q5_K the fifth bits (bit
 * g of byte i belongs to value i of group g), then nibbles; two groups share 32 bytes. */
static inline void
split_groups(bool has_fifth, const uint8_t *b, struct qv_gguf_block *out)
{
    const int fifths = 16, low = has_fifth ? 48 : 16;
    const float d = half(b), dmin = half(b + 2);
    for (int group = 0; group < 8; group++) {
        int scale, least;
        unpack_group(b + 4, group, &scale, &least);
        out->scales[group] = d * (float)scale;
        out->offsets[group] = -(dmin * (float)least);
        const uint8_t *nibbles = b + low + group / 2 * 32;
        for (int i = 0; i < 32; i++) {
            const int nibble = nibbles[i] >> group % 2 * 4 & 15;
            const int fifth = has_fifth ? b[fifths + i] >> group & 1 : 0;
            out->codes[group * 32 + i] = (uint8_t)(nibble | fifth << 4);
        }
    }
}

SPLIT(q4_k, split_groups, false)
SPLIT(q5_k, split_groups, true)

/* Converts blocks of Q6_K. A block has 128 bytes of lower nibbles, 64 bytes of two upper bits, 16
 * scales of 16 values each, and one f16. Each half of the block has 64 bytes of nibbles and 32 of
 * upper bits. Its four quarters of 32 values take the nibbles low, low, high, high. */
QV_CLONES static void
widen_q6_k(const void *blocks, int64_t n, float *out)
{
    const uint8_t *b = blocks;
    for (; n > 0; n -= 256, b += 210, out += 256) {
        const float d = half(b + 208);
        const int8_t *codes = (const int8_t *)(b + 192); /* the scales' codes */
        /* a part is a quarter of a half: 32 values with two scales */
        for (int part = 0; part < 8; part++) {
            const int quarter = part % 4;
            const uint8_t *low = b + part / 4 * 64 + quarter % 2 * 32,
                          *high = b + 128 + part / 4 * 32;
            const float scales[2] = { d * (float)codes[2 * part], d * (float)codes[2 * part + 1] };
            for (int i = 0; i < 32; i++) {
                const int value = (low[i] >> quarter / 2 * 4 & 15) | (high[i] >> quarter * 2 & 3)
                                                                         << 4;
                out[part * 32 + i] = scales[i / 16] * (float)(value - 32);
            }
        }
    }
}

/* ---- all types ------------------------------------------------------------------------------- */

/* Unsupported types are listed too, because their sizes determine where the next tensor is. */
static const struct qv_gguf_type types[] = {
    { 0, "F32", 1, 4, .dtype = QV_F32 },
    { 1, "F16", 1, 2, .dtype = QV_F16 },
    { 30, "BF16", 1, 2, .dtype = QV_BF16 },
    { 8, "Q8_0", 32, 34, QV_DTYPE_AUTO, split_q8_0, 128, NULL },
    { 2, "Q4_0", 32, 18, QV_DTYPE_AUTO, split_q4_0, 8, NULL },
    { 3, "Q4_1", 32, 20, QV_DTYPE_AUTO, split_q4_1, 0, NULL },
    { 6, "Q5_0", 32, 22, QV_DTYPE_AUTO, split_q5_0, 16, NULL },
    { 7, "Q5_1", 32, 24, QV_DTYPE_AUTO, split_q5_1, 0, NULL },
    { 12, "Q4_K", 256, 144, QV_DTYPE_AUTO, split_q4_k, 0, NULL },
    { 13, "Q5_K", 256, 176, QV_DTYPE_AUTO, split_q5_k, 0, NULL },
    { 14, "Q6_K", 256, 210, .dtype = QV_DTYPE_AUTO, .widen = widen_q6_k },
    { 9, "Q8_1", 32, 40, .dtype = QV_DTYPE_AUTO },
    { 10, "Q2_K", 256, 84, .dtype = QV_DTYPE_AUTO },
    { 11, "Q3_K", 256, 110, .dtype = QV_DTYPE_AUTO },
    { 15, "Q8_K", 256, 292, .dtype = QV_DTYPE_AUTO },
    { 16, "IQ2_XXS", 256, 66, .dtype = QV_DTYPE_AUTO },
    { 17, "IQ2_XS", 256, 74, .dtype = QV_DTYPE_AUTO },
    { 18, "IQ3_XXS", 256, 98, .dtype = QV_DTYPE_AUTO },
    { 19, "IQ1_S", 256, 50, .dtype = QV_DTYPE_AUTO },
    { 20, "IQ4_NL", 32, 18, .dtype = QV_DTYPE_AUTO },
    { 21, "IQ3_S", 256, 110, .dtype = QV_DTYPE_AUTO },
    { 22, "IQ2_S", 256, 82, .dtype = QV_DTYPE_AUTO },
    { 23, "IQ4_XS", 256, 136, .dtype = QV_DTYPE_AUTO },
    { 24, "I8", 1, 1, .dtype = QV_DTYPE_AUTO },
    { 25, "I16", 1, 2, .dtype = QV_DTYPE_AUTO },
    { 26, "I32", 1, 4, .dtype = QV_DTYPE_AUTO },
    { 27, "I64", 1, 8, .dtype = QV_DTYPE_AUTO },
    { 28, "F64", 1, 8, .dtype = QV_DTYPE_AUTO },
    { 29, "IQ1_M", 256, 56, .dtype = QV_DTYPE_AUTO },
    { 34, "TQ1_0", 256, 54, .dtype = QV_DTYPE_AUTO },
    { 35, "TQ2_0", 256, 66, .dtype = QV_DTYPE_AUTO },
    { 39, "MXFP4", 32, 17, .dtype = QV_DTYPE_AUTO },
    { 40, "NVFP4", 64, 36, .dtype = QV_DTYPE_AUTO },
    { 41, "Q1_0", 128, 18, .dtype = QV_DTYPE_AUTO },
};

const struct qv_gguf_type *
qv_gguf_type_find(uint32_t id)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].id == id)
            return &types[i];
    return NULL;
}

const char *
qv_gguf_types_read(void)
{
    return "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K and Q6_K";
}

QV_CLONES static void
widen_groups(const struct qv_gguf_block *b, int n, int zero, float *out)
{
    for (int group = 0; group < n; group++, out += QV_GGUF_GROUP) {
        const uint8_t *codes = b->codes + group * QV_GGUF_GROUP;
        for (int i = 0; i < QV_GGUF_GROUP; i++)
            out[i] = (float)(codes[i] - zero) * b->scales[group] + b->offsets[group];
    }
}

void
qv_gguf_widen(const struct qv_gguf_type *type, const void *blocks, int64_t n, float *out)
{
    const uint8_t *block = blocks;
    struct qv_gguf_block apart;
    if (type->widen)
        type->widen(blocks, n, out);
    else if (type->dtype == QV_F32)
        memcpy(out, blocks, (size_t)n * sizeof *out);
    else if (type->dtype != QV_DTYPE_AUTO)
        for (int64_t i = 0; i < n; i++)
            out[i] = (float)qv_load(blocks, type->dtype, i);
    else
        for (int64_t i = 0; i < n; i += type->values, block += type->bytes) {
            type->split(block, &apart);
            widen_groups(&apart, type->values / QV_GGUF_GROUP, type->zero, out + i);
        }
}
