/* SPDX-License-Identifier: MIT */
/* Reads a file page by page, for walks over parts of a few bytes. */
#include <string.h>

#include "media.h"

int64_t
qvm_pages_read(qvm_pages *pages, int64_t at, void *to, size_t n)
{
    const qvm_watch *watch = pages->source->watch;
    size_t done = 0;
    while (done < n) {
        const int64_t from = at + (int64_t)done, behind = from - pages->at;
        if (behind < 0 || behind >= pages->n) {
            if (atomic_load(watch->stop))
                break;
            watch->alive(watch->user);
            pages->at = from;
            pages->n = qvm_source_read(pages->source, from, pages->bytes, sizeof pages->bytes);
            if (pages->n < 0)
                return pages->n = 0, -1;
            if (!pages->n)
                break;
            continue;
        }
        const size_t left = (size_t)(pages->n - behind);
        const size_t some = left < n - done ? left : n - done;
        memcpy((char *)to + done, pages->bytes + behind, some);
        done += some;
    }
    return (int64_t)done;
}
