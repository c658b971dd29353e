/* SPDX-License-Identifier: MIT */
/*
 * A stored tensor is a tensor as checkpoints in the wild hold it: under several names and prefixes,
 * with the patch embedding in several layouts, with matrices quantised in groups as MLX writes
 * them, and in GGUF files under other names, cut into pieces and quantised in blocks. Most tensors
 * of a tower are one stored tensor; some are made of several.
 */
#pragma once

#include "files/gguf.h"
#include "files/safetensors.h"
#include "tower.h"
#include "files/json.h"

/* A name of the tower's, and the name that its tensor has in the checkpoint. */
struct qv_stored_name {
    const char *name, *in_file;        /* in_file: NULL without such a tensor */
    const struct qv_tensor_spec *spec; /* name is spec->names[i] */
    int i;
};

/* A tower as a checkpoint holds it. Either its names stand below a prefix, perhaps with wrappers'
 * words among them, or it is in a GGUF file. */
struct qv_stored_tower {
    struct qv_checkpoint *checkpoint;
    struct qv_gguf *gguf; /* NULL unless it is a GGUF file */
    const char *dir, *prefix;
    struct qv_stored_name *names; /* [n_names], sorted by name */
    size_t n_names;
    struct qv_text prefixes; /* has the text of `prefix` */
};

struct qv_found {
    const struct qv_safetensor *tensor;
    const struct qv_safetensors *file;
};

/* Some rows of a stored tensor, which are a tensor in a GGUF file. */
struct qv_gguf_piece {
    const struct qv_gguf_tensor *tensor;
    int64_t row, rows;
};
enum { QV_MOST_PIECES = 8 }; /* enough for q, k and v, or for the frames of a patch embedding */

struct qv_stored_tensor {
    const char *path, *name, *dtype_name; /* in the file; of several pieces, the first one's */
    struct qv_found weight;
    qv_dtype dtype;              /* what qv_stored_read gives */
    int64_t k;                   /* values in a row */
    int64_t single, run, copies; /* as in struct qv_tensor_spec */
    /* If stored_cols is not 0, a row is stored as a matrix [stored_rows, stored_cols] and must
     * be transposed: of a patch embedding stored [O, T, P, P, C], of a Conv2d stored [O, C,
     * merge, merge]. */
    int64_t stored_rows, stored_cols;
    /* A quantised weight is stored as U32 [n, k*bits/32], the lowest bits first; a value is q *
     * scale + bias of its group. If bits is 0, the weight is not quantised. */
    int bits;
    int64_t group;                  /* values in a group: 32, 64 or 128 in MLX */
    struct qv_found scales, biases; /* [n, k/group] */
    /* In a GGUF file, the pieces are rows that follow one another. With frames not 0 there is
     * one piece for each frame; each has [channels, p*p] of a row
     * [channels, frames, p*p]. */
    const struct qv_gguf *gguf;
    struct qv_gguf_piece pieces[QV_MOST_PIECES];
    int n_pieces;
    int64_t piece_cols, frames, channels; /* frames 0: each piece has whole rows */
    bool widens;                          /* some piece has another dtype than `dtype` */
};

/* Finds the i-th stored tensor of a tower's tensor. Returns QV_EFORMAT if it is missing, or has
 * another shape (the text names both), and QV_EUNSUPPORTED for its dtype. */
qv_status qv_stored_find(const struct qv_stored_tower *in, const struct qv_config *config,
                         const struct qv_tensor_spec *spec, int i, struct qv_stored_tensor *out,
                         qv_error *err);

/* Memory for the rows that are read: raw for the bytes of the file, canonical for the values
 * made from them. */
struct qv_stored_room {
    void *raw, *canonical;
    size_t bytes; /* size of each block */
};

/* The bytes that each block of a room needs for a row. */
size_t qv_stored_row_bytes(const struct qv_stored_tensor *stored);

/* Reads `rows` rows from `row` on. *values points into the room's raw or canonical block.
 * QV_EFORMAT if the room is too small. */
qv_status qv_stored_read(const struct qv_stored_tensor *stored, int64_t row, int64_t rows,
                         const struct qv_stored_room *room, void **values, qv_error *err);

/* Converts n values: f32, f16 and bf16 to f32 and bf16 quickly. */
void qv_convert(const void *src, qv_dtype from, void *dst, qv_dtype to, int64_t n);

/* ---- stored_names.c -------------------------------------------------------------------------- */

/* Lists the names that the family's tensors may have, sorted; none has an in_file yet. */
qv_status qv_stored_list_names(struct qv_stored_tower *in, const struct qv_tower *tower,
                               qv_error *err);

/* Returns a name as transformers has it, in `scratch`: without wrappers' words, and with the patch
 * embedding called proj, not linear_proj. NULL if out of memory. */
char *qv_stored_plain_name(const char *name, struct qv_text *scratch);

/* Returns the last words of a text that are a name of the family or, unless `whole`, the first
 * words of one; NULL if there are none. */
const char *qv_stored_own_part(const struct qv_stored_tower *in, const char *text, bool whole);

/* Returns the entry of a name of the family's, or NULL. */
struct qv_stored_name *qv_stored_own(const struct qv_stored_tower *in, const char *name);

/* Returns a name of the checkpoint's without wrappers' words and the tower's prefix, in `scratch`;
 * NULL if it is not below that prefix, or memory ran out. */
const char *qv_stored_below(const struct qv_stored_tower *in, const char *name,
                            struct qv_text *scratch);

/* Fails because a tensor is missing (prefix NULL: the whole tower is), and says what the
 * checkpoint has instead: quantised matrices, adapters, or a similar name. */
qv_status qv_stored_missing(const struct qv_stored_tower *in, const char *prefix, const char *name,
                            qv_error *err);

/* Says that the checkpoint has adapters for the tower's tensors, which are not used; "" if not. */
void qv_stored_remark(const struct qv_stored_tower *in, char *text, size_t size);

/* ---- stored_towers.c ------------------------------------------------------------------------- */

/* Opens what a path means (qv_mmproj_find): a GGUF file, or a folder, whose prefix and names it
 * finds. A tower is all names that, without the words which wrappers such as torch.compile add, end
 * in the family's names and begin with the same prefix, which may be any. If there are several
 * complete ones, they must have the same values. Of incomplete ones the most complete is chosen.
 * QV_EFORMAT if there is none, or several of different values. The tower must outlive it. It must
 * be closed even after a failure. */
qv_status qv_stored_tower_open(const char *path, const struct qv_config *config,
                               const struct qv_tower *tower, struct qv_stored_tower *out,
                               qv_error *err);
void qv_stored_tower_close(struct qv_stored_tower *in);

/* ---- stored_gguf.c --------------------------------------------------------------------------- */

/* The most bytes of a tensor's name that is looked for. */
enum { QV_GGUF_NAME = 128 };

/* The functions above of the same names without "gguf", for a tensor in a GGUF file. */
qv_status qv_stored_gguf_find(const struct qv_gguf *file, const struct qv_config *config,
                              const struct qv_tensor_spec *spec, int i,
                              struct qv_stored_tensor *out, qv_error *err);
size_t qv_stored_gguf_row_bytes(const struct qv_stored_tensor *stored);
qv_status qv_stored_gguf_read(const struct qv_stored_tensor *stored, int64_t row, int64_t rows,
                              const struct qv_stored_room *room, void **values, qv_error *err);
