/* SPDX-License-Identifier: MIT */
#include "maps.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "error.h"
#include "files/json.h"

/* ---- unreferenced parts ---------------------------------------------------------------------- */

static void
link_idle(struct qv_part_maps *m, uint32_t i)
{
    struct qv_part_map *p = &m->at[i];
    p->before = m->last;
    p->after = 0;
    if (m->last)
        m->at[m->last - 1].after = i + 1;
    else
        m->first = i + 1;
    m->last = i + 1;
    m->n_idle++;
}

static void
unlink_idle(struct qv_part_maps *m, uint32_t i)
{
    const struct qv_part_map *p = &m->at[i];
    if (p->before)
        m->at[p->before - 1].after = p->after;
    else
        m->first = p->after;
    if (p->after)
        m->at[p->after - 1].before = p->before;
    else
        m->last = p->before;
    m->n_idle--;
}

/* Unmaps unreferenced parts until at most `most` of them are left. */
static void
drop_idle(struct qv_part_maps *m, size_t most)
{
    while (m->n_idle > most) {
        const uint32_t i = m->first - 1;
        unlink_idle(m, i);
        munmap(m->at[i].at, (size_t)m->at[i].bytes);
        m->at[i].at = NULL;
        m->n_mapped--;
    }
}

/* ---- mapping --------------------------------------------------------------------------------- */

/* Maps a file privately. No swap is reserved for written pages, which may be many. */
static void *
map_file(const struct qv_part_maps *m, int fd, uint64_t bytes)
{
    const int access = m->writable ? PROT_READ | PROT_WRITE : PROT_READ;
    void *at = mmap(NULL, (size_t)bytes, access, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
    return at == MAP_FAILED ? NULL : at;
}

static qv_status
too_many(const struct qv_part_maps *m, const char *path, qv_error *err)
{
    return qv_fail(err, QV_ENOMEM,
                   "%s: cannot be mapped: %zu parts are in use, the most that a process can map; "
                   "release (in Python, drop or copy) tokens that are no longer needed",
                   path, m->n_mapped - m->n_idle);
}

static qv_status
map_part(struct qv_part_maps *m, struct qv_part_map *p, const char *path, qv_error *err)
{
    uint64_t size = 0;
    int fd = -1;
    if (m->n_mapped >= m->most && m->n_idle)
        drop_idle(m, m->n_idle - 1);
    if (m->n_mapped >= m->most)
        return too_many(m, path, err);
    qv_status s = qv_file_open(path, &fd, &size, err);
    if (!s && (size != p->bytes || !size))
        s = qv_fail(
            err, QV_EIO,
            "%s: has %llu bytes, but had %llu when the cache was opened: the file was changed",
            path, (unsigned long long)size, (unsigned long long)p->bytes);
    int e = 0;
    for (int attempt = 0; !s && !p->at && attempt < 2 && (!attempt || e == ENOMEM); attempt++) {
        if (attempt) /* the process may be out of maps, so free every idle part */
            drop_idle(m, 0);
        p->at = map_file(m, fd, size);
        e = p->at ? 0 : errno;
    }
    if (fd >= 0)
        close(fd);
    if (e == ENOMEM)
        return too_many(m, path, err);
    if (e)
        s = qv_fail_errno(path, "cannot be mapped", e, err);
    m->n_mapped += p->at != NULL;
    return s;
}

/* ---- from outside ---------------------------------------------------------------------------- */

qv_status
qv_part_maps_open(struct qv_part_maps *m, size_t n, qv_error *err)
{
    m->at = calloc(n + 1, sizeof *m->at);
    m->n = n;
    m->has_lock = m->at && !pthread_mutex_init(&m->lock, NULL);
    return m->has_lock ? QV_OK : qv_fail(err, QV_ENOMEM, "no memory for the maps of %zu parts", n);
}

void
qv_part_maps_close(struct qv_part_maps *m)
{
    for (size_t i = 0; m->at && i < m->n; i++)
        if (m->at[i].at)
            munmap(m->at[i].at, (size_t)m->at[i].bytes);
    if (m->has_lock)
        pthread_mutex_destroy(&m->lock);
    free(m->at);
    *m = (struct qv_part_maps){ .n = 0 };
}

qv_status
qv_part_maps_hold(struct qv_part_maps *m, size_t i, const char *path, const char **out,
                  qv_error *err)
{
    qv_status s = QV_OK;
    pthread_mutex_lock(&m->lock);
    struct qv_part_map *p = &m->at[i];
    if (!p->at)
        s = map_part(m, p, path, err);
    else if (!p->held)
        unlink_idle(m, (uint32_t)i);
    if (!s) {
        p->held++;
        *out = p->at;
    }
    pthread_mutex_unlock(&m->lock);
    return s;
}

void
qv_part_maps_release(struct qv_part_maps *m, size_t i)
{
    pthread_mutex_lock(&m->lock);
    if (m->at[i].held && !--m->at[i].held) {
        link_idle(m, (uint32_t)i);
        drop_idle(m, m->most_idle);
    }
    pthread_mutex_unlock(&m->lock);
}
