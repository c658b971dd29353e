/* SPDX-License-Identifier: MIT */
/* The formats in which a job's tokens are written, as a table. */
#pragma once

#include <string.h>
#include <strings.h>

#include "cache/writer.h"
#include "qwenvit_clips.h"

/* Where a source's tokens go, and what they come from. */
struct qv_output {
    const char *name;   /* path of a file; or the key in a cache */
    const char *source; /* path of the clip */
    const qv_model_info *model;
    const qv_context_info *context;
    bool hidden; /* the last block's rows are wanted too */
    /* for a cache alone, which needs none of the above but its key */
    qv_cache_writer *cache;
    const qv_cache_source *record; /* what the key's record says of the source */
};

struct qv_format {
    const char *name;
    const char *ending; /* of its files' names; NULL: it has no file for each source */
    /* Begins a source's entry. `r` is what is known of the source before its first rows. */
    qv_status (*begin)(const struct qv_output *output, const qv_job_result *r, void **entry,
                       qv_error *err);
    /* Writes the source's next rows. */
    qv_status (*rows)(void *entry, const qv_job_rows *rows, qv_error *err);
    /* Has the entry appear, now that all of the source is known; NULL: abandons it. Frees it, on
     * failure too, and sets it to NULL. */
    qv_status (*end)(void **entry, const qv_job_result *r, qv_error *err);
};

extern const struct qv_format qv_token_files, qv_cache_keys;
/* All formats; NULL ends them. The first one is a file's whose name has no ending. */
extern const struct qv_format *const qv_formats[];

/* Returns the format of this name or ending (".safetensors"); NULL: there is none. */
static inline const struct qv_format *
qv_format_of(const char *name)
{
    const struct qv_format *const *f = qv_formats;
    while (*f && strcmp((*f)->name, name) && (!(*f)->ending || strcasecmp((*f)->ending, name) != 0))
        f++;
    return *f;
}
