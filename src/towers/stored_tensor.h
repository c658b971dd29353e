/* SPDX-License-Identifier: MIT */
/*
 * A stored tensor is a tensor as found in real checkpoints: under various names and prefixes, with
 * the patch embedding in various layouts, with matrices quantised in groups as by MLX, and in GGUF
 * files under different names, split into pieces and quantised in blocks. Most tensors of a tower
 * are one stored tensor; some consist of several.
 */
#pragma once

#include "files/gguf.h"
#include "files/safetensors.h"
#include "tower.h"
#include "files/json.h"

/* A name in the tower, and its tensor's name in the checkpoint. */
struct qv_stored_name {
    const char *name, *in_file;        /* in_file: NULL if the tensor is missing */
    const struct qv_tensor_spec *spec; /* name is spec->names[i] */
    int i;
};

/* A tower as stored in a checkpoint. Either its names are below a prefix, perhaps with wrappers'
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

/* Some rows of a stored tensor that are one tensor in a GGUF file. */
struct qv_gguf_piece {
    const struct qv_gguf_tensor *tensor;
    int64_t row, rows;
};
enum { QV_MOST_PIECES = 8 }; /* enough for q, k and v, or for the frames of a patch embedding */

struct qv_stored_tensor {
    const char *path, *name; /* in the file; the first piece's if there are several */
    struct qv_found weight;
    qv_dtype dtype;              /* the dtype that qv_stored_read returns */
    int64_t k;                   /* values per row */
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
    /* In a GGUF file, the pieces are consecutive rows. If frames is not 0, there is one piece per
     * frame, with [channels, p*p] of a row [channels, frames, p*p]. */
    const struct qv_gguf *gguf;
    struct qv_gguf_piece pieces[QV_MOST_PIECES];
    int n_pieces;
    int64_t piece_cols, frames, channels; /* frames 0: each piece has whole rows */
    bool widens;                          /* some piece's dtype differs from `dtype` */
};

/* Finds the i-th stored tensor of a tower's tensor. Returns QV_EFORMAT if it is missing or has a
 * different shape (the text names both), and QV_EUNSUPPORTED for an unsupported dtype. */
qv_status qv_stored_find(const struct qv_stored_tower *in, const struct qv_config *config,
                         const struct qv_tensor_spec *spec, int i, struct qv_stored_tensor *out,
                         qv_error *err);

/* Memory for reading rows: raw for the file's bytes, canonical for the values made from them. */
struct qv_stored_room {
    void *raw, *canonical;
    size_t bytes; /* size of each block */
};

/* Returns the bytes that each block of a room needs per row. */
size_t qv_stored_row_bytes(const struct qv_stored_tensor *stored);

/* Reads `rows` rows from `row` on. *values points into the room's raw or canonical block.
 * QV_EFORMAT if the room is too small. */
qv_status qv_stored_read(const struct qv_stored_tensor *stored, int64_t row, int64_t rows,
                         const struct qv_stored_room *room, void **values, qv_error *err);

/* Converts n values: f32, f16 and bf16 to f32 and bf16 quickly. */
void qv_convert(const void *src, qv_dtype from, void *dst, qv_dtype to, int64_t n);

/* ---- stored_names.c -------------------------------------------------------------------------- */

/* Lists the names that the family's tensors may have, sorted and without in_file. */
qv_status qv_stored_list_names(struct qv_stored_tower *in, const struct qv_tower *tower,
                               qv_error *err);

/* Returns a name as in transformers, in `scratch`: without wrappers' words, and with the patch
 * embedding called proj, not linear_proj. NULL if out of memory. */
char *qv_stored_plain_name(const char *name, struct qv_text *scratch);

/* Returns the last words of a text that are one of the family's names or, unless `whole`, the
 * beginning of one; NULL if there are none. */
const char *qv_stored_own_part(const struct qv_stored_tower *in, const char *text, bool whole);

/* Returns the entry of one of the family's names, or NULL. */
struct qv_stored_name *qv_stored_own(const struct qv_stored_tower *in, const char *name);

/* Returns a checkpoint name without wrappers' words and the tower's prefix, in `scratch`; NULL if
 * it is not below that prefix, or memory ran out. */
const char *qv_stored_below(const struct qv_stored_tower *in, const char *name,
                            struct qv_text *scratch);

/* Fails because a tensor is missing (prefix NULL: the whole tower), naming what the checkpoint has
 * instead: quantised matrices, adapters, or a similar name. */
qv_status qv_stored_missing(const struct qv_stored_tower *in, const char *prefix, const char *name,
                            qv_error *err);

/* Writes a warning if the checkpoint has adapters for the tower's tensors, which are not used; else
 * "". */
void qv_stored_remark(const struct qv_stored_tower *in, char *text, size_t size);

/* ---- stored_towers.c ------------------------------------------------------------------------- */

/* Opens what a path refers to (qv_mmproj_find): a GGUF file, or a folder, whose prefix and names it
 * finds. A tower is the set of names that, without the words added by wrappers such as
 * torch.compile, end in the family's names and begin with one prefix, which may be any. Several
 * complete towers must have the same values. If all are incomplete, the most complete one is
 * chosen. QV_EFORMAT if there is none, or several with different values. The tower must outlive it.
 * It must be closed even after a failure. */
qv_status qv_stored_tower_open(const char *path, const struct qv_config *config,
                               const struct qv_tower *tower, struct qv_stored_tower *out,
                               qv_error *err);
void qv_stored_tower_close(struct qv_stored_tower *in);

/* ---- stored_gguf.c --------------------------------------------------------------------------- */

/* The maximum length of a tensor name in a search. */
enum { QV_GGUF_NAME = 128 };

/* The functions above with the same names without "gguf", for a tensor in a GGUF file. */
qv_status qv_stored_gguf_find(const struct qv_gguf *file, const struct qv_config *config,
                              const struct qv_tensor_spec *spec, int i,
                              struct qv_stored_tensor *out, qv_error *err);
size_t qv_stored_gguf_row_bytes(const struct qv_stored_tensor *stored);
qv_status qv_stored_gguf_read(const struct qv_stored_tensor *stored, int64_t row, int64_t rows,
                              const struct qv_stored_room *room, void **values, qv_error *err);
