/* SPDX-License-Identifier: MIT */
/*
 * The safetensors file format: 8 bytes little-endian header length n, n bytes of JSON
 * {"name": {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {..}}, then data.
 * Everything is validated at open as strictly as the reference reader does, and more (duplicate
 * names, which it lets pass). Files are read with pread, never mapped: a mapped file that shrinks
 * kills the process.
 */
#ifndef QV_FILES_SAFETENSORS_H
#define QV_FILES_SAFETENSORS_H

#include "qwenvit.h"

#define QV_SAFETENSORS_MAX_HEADER (32u << 20)
#define QV_SAFETENSORS_MAX_DIMS 8

struct qv_safetensor {
    char *name;
    char dtype_name[16]; /* as in the file: "BF16", "I64", ... */
    qv_dtype dtype;      /* QV_F32, QV_F16, QV_BF16, QV_U8; QV_DTYPE_AUTO for every other one */
    int n_dims;
    int64_t shape[QV_SAFETENSORS_MAX_DIMS];
    uint64_t offset, bytes; /* in the file; in all */
};

struct qv_safetensors_dtype {
    const char *name;
    unsigned bits;
    bool is_written; /* by qv_safetensors_writer */
};
/* The dtype that the format has under this name; NULL if there is none. */
const struct qv_safetensors_dtype *qv_safetensors_dtype(const char *name);

struct qv_safetensors; /* one file */

qv_status qv_safetensors_open(const char *path, struct qv_safetensors **out, qv_error *err);
void qv_safetensors_close(struct qv_safetensors **file); /* NULLs the pointer */
const char *qv_safetensors_path(const struct qv_safetensors *file);

/* NULL if there is no such tensor. Belongs to the file. */
const struct qv_safetensor *qv_safetensors_find(const struct qv_safetensors *file,
                                                const char *name);
/* "1024,1536" into text, always terminated; returns text. */
const char *qv_safetensors_print_shape(const int64_t *shape, int n_dims, char *text, size_t size);
size_t qv_safetensors_count(const struct qv_safetensors *file);
const struct qv_safetensor *qv_safetensors_at(const struct qv_safetensors *file, size_t i);

/* Reads bytes [begin, begin + bytes) of a tensor's data. Short reads and a file that became shorter
 * are QV_EIO. */
qv_status qv_safetensors_read(const struct qv_safetensors *file, const struct qv_safetensor *tensor,
                              uint64_t begin, void *dst, uint64_t bytes, qv_error *err);

/*
 * The files of a checkpoint folder: model.safetensors, or model.safetensors.index.json and its
 * shards, each opened when a tensor in it is first looked for: shards of other parts of the model
 * need not be there. A name in the index is a bare file name inside the folder (no '/', '\\', "..";
 * a symbolic link, as in the Hugging Face cache, is fine); a tensor that the index puts in a shard
 * must be there.
 */
struct qv_checkpoint;
qv_status qv_checkpoint_open(const char *dir, struct qv_checkpoint **out, qv_error *err);
void qv_checkpoint_close(struct qv_checkpoint **checkpoint);
/* Finds a tensor by name in any of the files; *file is where. Both NULL if there is none; that is
 * no failure, a shard that cannot be read is. They belong to the checkpoint. */
qv_status qv_checkpoint_find(struct qv_checkpoint *checkpoint, const char *name,
                             const struct qv_safetensor **tensor,
                             const struct qv_safetensors **file, qv_error *err);

/* Shows every tensor's name: of an index those that it lists, without opening its shards. */
typedef void qv_checkpoint_see(void *user, const char *name);
void qv_checkpoint_visit(const struct qv_checkpoint *checkpoint, qv_checkpoint_see *see,
                         void *user);

/* Writing: the header is made from all tensors at open, then data is put for each, in pieces of any
 * size and order. The file appears under its name at finish, whole or not at all. metadata:
 * n_metadata pairs of texts. Of the tensors given, name, dtype_name (F32, BF16, F16, F64, U8, I32,
 * I64), n_dims and shape are looked at; they are written in their order.
 */
struct qv_safetensors_writer;
qv_status qv_safetensors_writer_open(const char *path, const struct qv_safetensor *tensors,
                                     size_t n, const char *const (*metadata)[2], size_t n_metadata,
                                     struct qv_safetensors_writer **out, qv_error *err);
/* Writes bytes at `begin` of tensor i's data; no byte twice. */
qv_status qv_safetensors_writer_put(struct qv_safetensors_writer *w, size_t i, uint64_t begin,
                                    const void *data, uint64_t bytes, qv_error *err);
/* Replaces a metadata text, by one that may be up to 32 bytes longer: for what is only known once
 * the data are written. */
qv_status qv_safetensors_writer_amend(struct qv_safetensors_writer *w, const char *key,
                                      const char *text, qv_error *err);
/* QV_ESTATE if a tensor's data is not complete. Frees the writer in any case; if it fails, there is
 * no new file, or (only its folder could not be synced) a whole one that a power loss may undo.
 */
qv_status qv_safetensors_writer_finish(struct qv_safetensors_writer **w, qv_error *err);
/* Removes the temporary file. */
void qv_safetensors_writer_abort(struct qv_safetensors_writer **w);

#endif
