/* SPDX-License-Identifier: MIT */
/*
 * The safetensors file format: the header's length n in 8 little-endian bytes; the header, n bytes
 * of JSON {"name": {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {..}}; then
 * the data. Opening validates as strictly as the reference reader and also rejects duplicate names.
 * Files are read with pread and never mapped, because a mapped file that shrinks kills the process.
 */
#pragma once

#include "qwenvit.h"
#include "text.h"

#define QV_SAFETENSORS_MAX_HEADER (32u << 20)
#define QV_SAFETENSORS_MAX_DIMS 8

struct qv_safetensor {
    char *name;
    char dtype_name[16]; /* as in the file: "BF16", "I64", ... */
    qv_dtype dtype;      /* QV_F32, QV_F16, QV_BF16 or QV_U8; QV_DTYPE_AUTO for any other */
    int n_dims;
    int64_t shape[QV_SAFETENSORS_MAX_DIMS];
    uint64_t offset, bytes; /* offset: in the file; bytes: all of its data */
};

struct qv_safetensors_dtype {
    const char *name;
    unsigned bits;
};
/* Returns the format's dtype with this name, or NULL. */
const struct qv_safetensors_dtype *qv_safetensors_dtype(const char *name);

struct qv_safetensors; /* an open file */

qv_status qv_safetensors_open(const char *path, struct qv_safetensors **out, qv_error *err);
void qv_safetensors_close(struct qv_safetensors **file); /* sets the pointer to NULL */
const char *qv_safetensors_path(const struct qv_safetensors *file);
/* Returns a text of __metadata__, or NULL. */
const char *qv_safetensors_metadata(const struct qv_safetensors *file, const char *name);

/* Returns NULL if the tensor is missing. The tensor belongs to the file. */
const struct qv_safetensor *qv_safetensors_find(const struct qv_safetensors *file,
                                                const char *name);
/* Writes a shape as "1024,1536", always terminated, and returns text. */
const char *qv_safetensors_print_shape(const int64_t *shape, int n_dims, char *text, size_t size);
size_t qv_safetensors_count(const struct qv_safetensors *file);
const struct qv_safetensor *qv_safetensors_at(const struct qv_safetensors *file, size_t i);

/* Reads bytes [begin, begin + bytes) of a tensor's data. A file that became shorter is QV_EIO. */
qv_status qv_safetensors_read(const struct qv_safetensors *file, const struct qv_safetensor *tensor,
                              uint64_t begin, void *dst, uint64_t bytes, qv_error *err);

/*
 * The files of a checkpoint folder: model.safetensors, or model.safetensors.index.json and its
 * shards. A shard is opened when a tensor in it is first looked for, so shards of other parts of
 * the model need not exist. A name in the index must be a bare file name inside the folder (no '/',
 * '\\', ".."); it may be a symbolic link, as in the Hugging Face cache. A tensor must be in the
 * shard that the index gives for it.
 */
struct qv_checkpoint;
qv_status qv_checkpoint_open(const char *dir, struct qv_checkpoint **out, qv_error *err);
void qv_checkpoint_close(struct qv_checkpoint **checkpoint);
/* Finds a tensor by name; *file is the file that has it. Both are NULL if the tensor does not
 * exist, which is not a failure; an unreadable shard is a failure. Both belong to the
 * checkpoint. */
qv_status qv_checkpoint_find(struct qv_checkpoint *checkpoint, const char *name,
                             const struct qv_safetensor **tensor,
                             const struct qv_safetensors **file, qv_error *err);

/* Calls `see` with every tensor's name. If there is an index, names come from it, without opening
 * its shards. */
typedef void qv_checkpoint_see(void *user, const char *name);
void qv_checkpoint_visit(const struct qv_checkpoint *checkpoint, qv_checkpoint_see *see,
                         void *user);

/* Printing a header. It begins with its length and n pairs of metadata. Then come the tensors, in
 * the order of their data, each named KEY/NAME or, if key is NULL, NAME. qv_header_end pads the
 * header with spaces to `bytes`, including the length, and returns false if it is longer or memory
 * ran out. */
void qv_header_begin(struct qv_text *t, const char *const (*metadata)[2], size_t n);
void qv_header_tensor(struct qv_text *t, const char *key, const char *name, const char *dtype,
                      int n_dims, const int64_t *shape, uint64_t begin, uint64_t end);
bool qv_header_end(struct qv_text *t, size_t bytes);

/* Writing. Opening makes the header from all tensors. Then each tensor's data is put, in pieces of
 * any size and order. Finishing makes the file appear under its name, whole or not at all. metadata
 * has n_metadata pairs of texts. Of each tensor, name, dtype_name, n_dims and shape are read;
 * tensors are written in the order given. Names and texts must be UTF-8, and each name must come
 * once. */
struct qv_safetensors_writer;
struct qv_atomic_file;
qv_status qv_safetensors_writer_open(const char *path, const struct qv_safetensor *tensors,
                                     size_t n, const char *const (*metadata)[2], size_t n_metadata,
                                     struct qv_safetensors_writer **out, qv_error *err);
/* Writes bytes of tensor i's data from `begin` on. No byte may be written twice. */
qv_status qv_safetensors_writer_put(struct qv_safetensors_writer *w, size_t i, uint64_t begin,
                                    const void *data, uint64_t bytes, qv_error *err);
/* Replaces the text of a metadata key with a text up to 32 bytes longer, for values known only
 * after the data is written. */
qv_status qv_safetensors_writer_amend(struct qv_safetensors_writer *w, const char *key,
                                      const char *text, qv_error *err);
/* Returns QV_ESTATE if a tensor's data is not complete. Always frees the writer. After a failure
 * the file is in the state that a failed qv_atomic_file_commit leaves. */
qv_status qv_safetensors_writer_finish(struct qv_safetensors_writer **w, qv_error *err);
/* The same, but the caller must commit the file, so that several can appear together. */
qv_status qv_safetensors_writer_seal(struct qv_safetensors_writer **w, struct qv_atomic_file *file,
                                     qv_error *err);
/* Removes the temporary file and frees the writer. */
void qv_safetensors_writer_abort(struct qv_safetensors_writer **w);
