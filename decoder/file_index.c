/* SPDX-License-Identifier: MIT */
/* The index of a file: it passes what one reader learned from all packets to the next reader. */
#include "decoder.h"

#include <stdlib.h>
#include <string.h>

enum { START = 1, SPARE = 2 };

size_t
qvm_index_bytes(int64_t n_entries)
{
    return sizeof(qvm_index) + (size_t)n_entries * sizeof(qvm_index_entry);
}

bool
qvm_index_is_whole(const qvm_index *index, int64_t bytes)
{
    return bytes >= (int64_t)sizeof *index && index->n_entries >= 0 &&
           index->n_entries <= QVM_MAX_FRAMES &&
           (size_t)bytes == qvm_index_bytes(index->n_entries) &&
           index->unsure[sizeof index->unsure - 1] == 0 && index->span.n >= 0 &&
           index->span.n <= QVM_MAX_FRAMES && index->n_frames >= 0 &&
           index->n_frames <= QVM_MAX_FRAMES;
}

qvm_index *
qvm_index_make(const qvm_reader *r)
{
    const qvm_times *t = &r->times;
    const int64_t n = t->unsure ? 0 : t->n; /* unreliable times are never used */
    qvm_index *index = calloc(1, qvm_index_bytes(n));
    if (!index)
        return NULL;
    index->n_entries = n;
    index->span = r->span;
    index->n_frames = r->count.frames;
    index->errors = r->count.errors;
    index->top_layer = t->top_layer;
    index->parameters = t->parameters;
    index->sets_change = t->sets_change;
    index->may_lack = t->may_lack;
    index->descending = t->descending;
    snprintf(index->unsure, sizeof index->unsure, "%s", t->unsure ? t->unsure : "");
    for (int64_t i = 0; i < n; i++)
        index->at[t->at[i].packet] = (qvm_index_entry){
            .pts = t->at[i].pts,
            .layer = t->at[i].layer,
            .flags = (uint8_t)((t->at[i].start ? START : 0) | (t->at[i].spare ? SPARE : 0))
        };
    return index;
}

bool
qvm_index_take(const qvm_index *index, const qvm_source *source, qvm_times *t)
{
    const int64_t n = index->n_entries;
    t->at = n ? malloc((size_t)n * sizeof *t->at) : NULL;
    if (n && !t->at)
        return false;
    for (int64_t i = 0; i < n; i++)
        t->at[i] = (qvm_time){ .pts = index->at[i].pts,
                               .packet = (int32_t)i,
                               .layer = index->at[i].layer,
                               .start = index->at[i].flags & START,
                               .spare = index->at[i].flags & SPARE };
    t->n = t->room = n;
    t->top_layer = index->top_layer;
    t->parameters = index->parameters;
    t->sets_change = index->sets_change;
    t->may_lack = index->may_lack;
    t->descending = index->descending;
    t->unsure = *index->unsure ? index->unsure : NULL;
    qvm_times_sort(t, source->format, source->stream);
    return true;
}
