/* SPDX-License-Identifier: MIT */
/* Reads a file's clip; for code that reads a few bytes at a time, page by page. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "decoder.h"

int64_t
qvm_source_read(const qvm_source *source, int64_t at, void *to, size_t n)
{
    const qvm_asked *asked = &source->watch->asked;
    size_t done = 0;
    if (asked->length && (int64_t)n > asked->length - at)
        n = at < asked->length ? (size_t)(asked->length - at) : 0;
    while (done < n) {
        const ssize_t got = pread(source->fd, (char *)to + done, n - done,
                                  (off_t)(asked->offset + at) + (off_t)done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        if (!got)
            break;
        done += (size_t)got;
    }
    return (int64_t)done;
}

bool
qvm_source_find_kind(qvm_source *source)
{
    uint8_t head[QV_HEAD];
    const int64_t n = qvm_source_read(source, 0, head, sizeof head);
    source->kind = n < 0 ? NULL : qv_find_image_kind(head, (size_t)n);
    return n >= 0;
}

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

uint32_t
qvm_number(const uint8_t *p, int bytes, bool big)
{
    uint32_t value = 0;
    for (int i = 0; i < bytes; i++)
        value = value << 8 | p[big ? i : bytes - 1 - i];
    return value;
}
