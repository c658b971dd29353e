/* SPDX-License-Identifier: MIT */
/*
 * A tensor in a checkpoint, as it is found in the wild: under several names and prefixes, the patch
 * embedding in several layouts, matrices quantised in groups as MLX writes them, and in GGUF files under
 * other names, cut into pieces and quantised in blocks. Most tensors of a tower are one such part.
 */
#ifndef QV_TOWERS_PART_H
#define QV_TOWERS_PART_H

#include "engine/grouped.h"
#include "files/gguf.h"
#include "files/safetensors.h"
#include "tower.h"

/* Prefixes that checkpoints put before the names of a tower's tensors; NULL is the last. */
extern const char *const qv_tower_prefixes[];

/* A tower as a checkpoint has it: its names are below a prefix; or it is in a GGUF file. */
struct qv_stored_tower {
    struct qv_checkpoint *checkpoint;
    struct qv_gguf *gguf; /* or this one */
    const char *dir, *prefix;
};

/* Opens what a path means (mmproj.h): a folder, of which the prefix is found by where the patch embedding
 * is, or a GGUF file. Close it also after a failure. */
qv_status qv_stored_tower_open(const char *path, const struct qv_tensor_spec *patch_embed,
                               struct qv_stored_tower *out, qv_error *err);
void qv_stored_tower_close(struct qv_stored_tower *in);

struct qv_found {
    const struct qv_safetensor *tensor;
    const struct qv_safetensors *file;
};

/* Rows of a tensor of a GGUF file. */
struct qv_gguf_piece {
    const struct qv_gguf_tensor *tensor;
    int64_t row, rows;
};
enum { QV_MOST_PIECES = 8 }; /* q, k and v apart; the frames of a patch embedding */

struct qv_tensor_part {
    const char *path, *name, *dtype_name; /* in the file, which has the first of several pieces */
    struct qv_found weight;
    qv_dtype dtype; /* of the values that are read */
    int64_t k;      /* values of a row */
    /* A row is stored as a matrix [rows, cols] and read as its transpose: of a patch embedding
     * stored [O, T, P, P, C], of a Conv2d stored [O, C, merge, merge]. cols 0: a row is read as it
     * is stored. */
    int64_t stored_rows, stored_cols;
    /* A quantised weight is U32 [n, k*bits/32], the lowest bits first; a value is q * scale + bias
     * of its group. bits 0: the weight is not quantised. */
    int bits;
    int64_t group;                  /* 32, 64 or 128 values, as MLX has them */
    struct qv_found scales, biases; /* [n, k/group] */
    /* Of a GGUF file: pieces one behind the other; or, where there are frames, a piece each, which has of
     * every row [channels, frames, p*p] its part [channels, p*p]. */
    const struct qv_gguf *gguf;
    struct qv_gguf_piece pieces[QV_MOST_PIECES];
    int n_pieces;
    int64_t piece_cols, frames, channels; /* frames 0: pieces are whole rows */
    bool widens;                          /* some piece is of another dtype than is read */
};

/* Sets the prefix that a checkpoint uses, by where its patch embedding is. QV_EFORMAT: none, or
 * several. */
qv_status qv_part_find_prefix(struct qv_stored_tower *in, const struct qv_tensor_spec *patch_embed,
                              qv_error *err);

/* Finds part i of a tensor. QV_EFORMAT (it is missing, or has another shape: both are named),
 * QV_EUNSUPPORTED (its dtype). */
qv_status qv_part_find(const struct qv_stored_tower *in, const struct qv_config *config,
                       const struct qv_tensor_spec *spec, int i, struct qv_tensor_part *out,
                       qv_error *err);

/* Memory into which rows of a part are read: one block for what the file has, one for what is
 * made of it. */
struct qv_part_room {
    void *raw, *canonical;
    size_t bytes; /* of each */
};

/* How a part is quantised, as a device may keep it; bits 0: it is not. */
struct qv_groups qv_part_groups(const struct qv_tensor_part *part);

/* Makes the canonical form of a quantised matrix (engine/grouped.h) of rows that qv_part_read has read into
 * the room, of k values each, which may be more than the part has: groups of zeros behind.
 * QV_EUNSUPPORTED: a GGUF file's scale is so large that its offset overflows the dtype. */
qv_status qv_part_keep(const struct qv_tensor_part *part, int64_t row, int64_t rows,
                       const struct qv_part_room *room, int64_t k, void *out, qv_error *err);

/* The bytes that a row takes in each block of a room. */
size_t qv_part_row_bytes(const struct qv_tensor_part *part);

/* Reads rows row .. row+rows: *values is in the room's raw or in its canonical. QV_EFORMAT if the
 * room is too small for them. */
qv_status qv_part_read(const struct qv_tensor_part *part, int64_t row, int64_t rows,
                       const struct qv_part_room *room, void **values, qv_error *err);

#endif
