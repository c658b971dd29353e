/* SPDX-License-Identifier: MIT */
/* Indexes of files, shared by all stretches of a file. A file's author may have forged its index,
 * so it is passed only to processes that read the same file. */
#include <stdlib.h>
#include <string.h>

#include "clips.h"

static bool
same_file(const qvm_identity *a, const qvm_identity *b)
{
    return a->device == b->device && a->inode == b->inode && a->bytes == b->bytes &&
           a->mtime_ns == b->mtime_ns && a->offset == b->offset && a->length == b->length &&
           a->like == b->like;
}

/* Moves an index to the front, so that the last one is the least recently used. */
static void
move_to_front(struct qvm_kept *kept, int i, struct qvm_kept_index it)
{
    memmove(kept->at + 1, kept->at, (size_t)i * sizeof *kept->at);
    kept->at[0] = it;
}

void *
qvm_kept_copy(struct qvm_kept *kept, const qvm_identity *file, int64_t *bytes)
{
    int i = 0;
    while (i < kept->n && !same_file(&kept->at[i].file, file))
        i++;
    void *copy = i < kept->n ? malloc((size_t)kept->at[i].bytes) : NULL;
    *bytes = 0;
    if (!copy)
        return NULL;
    move_to_front(kept, i, kept->at[i]);
    *bytes = kept->at[0].bytes;
    return memcpy(copy, kept->at[0].data, (size_t)*bytes);
}

static void
drop_last(struct qvm_kept *kept)
{
    const struct qvm_kept_index *last = &kept->at[--kept->n];
    kept->bytes -= last->bytes;
    free(last->data);
}

void
qvm_kept_put(struct qvm_kept *kept, const qvm_identity *file, void *data, int64_t bytes)
{
    for (int i = 0; i < kept->n; i++)
        if (same_file(&kept->at[i].file, file)) { /* another stretch put its index first */
            free(data);
            return;
        }
    while (kept->n && (kept->n == QVM_MOST_KEPT || kept->bytes + bytes > QVM_MOST_INDEX))
        drop_last(kept);
    move_to_front(kept, kept->n++,
                  (struct qvm_kept_index){ .file = *file, .data = data, .bytes = bytes });
    kept->bytes += bytes;
}

void
qvm_kept_free(struct qvm_kept *kept)
{
    while (kept->n)
        drop_last(kept);
}
