/* SPDX-License-Identifier: MIT */
/* The types of tensors in GGUF files: ggml's numbers for them, their sizes, and how to read their
 * values. */
#pragma once

#include "qwenvit.h"

enum { QV_GGUF_GROUP = 32, QV_GGUF_MOST_GROUPS = 8 };

/* A block as groups of 32 values. A value is (code - zero) * scale + offset, with the type's zero;
 * the product is exact. */
struct qv_gguf_block {
    uint8_t codes[QV_GGUF_GROUP * QV_GGUF_MOST_GROUPS];
    float scales[QV_GGUF_MOST_GROUPS], offsets[QV_GGUF_MOST_GROUPS];
};

struct qv_gguf_type {
    uint32_t id;
    const char *name;  /* "Q8_0" */
    int values, bytes; /* the values and the bytes of a block */
    qv_dtype dtype; /* QV_F32, QV_F16 or QV_BF16 if values are stored as such, else QV_DTYPE_AUTO */
    /* Unpacks a block; NULL if the type has no groups of 32 values. */
    void (*split)(const uint8_t *block, struct qv_gguf_block *out);
    int zero; /* the code of 0; 0 if groups have offsets */
    /* Converts n values, in whole blocks, to f32, for a type without `split`. */
    void (*widen)(const void *blocks, int64_t n, float *out);
};

/* Returns ggml's type with that number; NULL if it is unknown. */
const struct qv_gguf_type *qv_gguf_type_find(uint32_t id);

/* Returns whether qv_gguf_widen can read values of the type. */
static inline bool
qv_gguf_type_can_be_read(const struct qv_gguf_type *type)
{
    return type->split || type->widen || type->dtype != QV_DTYPE_AUTO;
}

/* Converts n values, in whole blocks of a readable type, to f32, bit for bit as ggml's
 * dequantize_row. */
void qv_gguf_widen(const struct qv_gguf_type *type, const void *blocks, int64_t n, float *out);

/* Returns the names of all readable types, "F32, F16, ..", for error texts. */
const char *qv_gguf_types_read(void);
