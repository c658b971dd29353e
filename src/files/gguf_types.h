/* SPDX-License-Identifier: MIT */
/* The types that tensors of a GGUF file have: ggml's numbers for them, their sizes, and what their values
 * are. */
#ifndef QV_FILES_GGUF_TYPES_H
#define QV_FILES_GGUF_TYPES_H

#include "qwenvit.h"

enum { QV_GGUF_GROUP = 32, QV_GGUF_MOST_GROUPS = 8 };

/* A block in groups of 32 values, each of which is code * scale + offset: the product is exact, and where
 * the type has a zero, so is the sum. */
struct qv_gguf_block {
    uint8_t codes[QV_GGUF_GROUP * QV_GGUF_MOST_GROUPS];
    float scales[QV_GGUF_MOST_GROUPS], offsets[QV_GGUF_MOST_GROUPS];
};

struct qv_gguf_type {
    uint32_t id;
    const char *name;  /* "Q8_0" */
    int values, bytes; /* of a block, which is the least that is stored */
    qv_dtype dtype;    /* of the values in the file: QV_F32, QV_F16, QV_BF16; else QV_DTYPE_AUTO */
    /* Takes a block apart; NULL: it has no groups of 32. */
    void (*split)(const uint8_t *block, struct qv_gguf_block *out);
    int bits, zero;   /* that codes need, of 4 and 8; the code of 0, if offsets are -zero * scale */
    qv_dtype factors; /* that scales and offsets are exact in */
    /* Makes f32 of n values, whole blocks, of a type that is not split. */
    void (*widen)(const void *blocks, int64_t n, float *out);
};

/* The type of that number; NULL if ggml has none that is known here. */
const struct qv_gguf_type *qv_gguf_type_find(uint32_t id);

/* Whether qv_gguf_widen knows its values. */
static inline bool
qv_gguf_type_can_be_read(const struct qv_gguf_type *type)
{
    return type->split || type->widen || type->dtype != QV_DTYPE_AUTO;
}

/* The values of a type that can be read, in f32: n of them, whole blocks, as ggml's dequantize_row has
 * them. */
void qv_gguf_widen(const struct qv_gguf_type *type, const void *blocks, int64_t n, float *out);

/* Names of all types that can be read, "F32, F16, ..", for error texts. */
const char *qv_gguf_types_read(void);

#endif
