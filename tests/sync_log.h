/* SPDX-License-Identifier: MIT */
/*
 * Logs writes, syncs and renames in order, for tests whose wrappers the linker inserts between a
 * library and the system. A power loss may undo everything that was not synced: it may leave a name
 * without bytes on the disk, or a file without its name. Include this file after test.h.
 */
#pragma once

#include <pthread.h>
#include <sys/stat.h>

enum sync_kind { SYNC_WRITTEN, SYNC_SYNCED, SYNC_NAMED };

struct sync_event {
    enum sync_kind kind;
    dev_t device;
    ino_t inode;
    dev_t folder_device; /* SYNC_NAMED: the folder that has the name. */
    ino_t folder;
};

static struct sync_event sync_events[1 << 14];
static size_t n_sync_events;
static bool sync_logs; /* Whether events are kept. */
static pthread_mutex_t sync_lock = PTHREAD_MUTEX_INITIALIZER;

static inline void
sync_log_begin(void)
{
    n_sync_events = 0;
    sync_logs = true;
}

/* `folder` is NULL except for SYNC_NAMED. */
static inline void
sync_log_add(enum sync_kind kind, const struct stat *file, const struct stat *folder)
{
    pthread_mutex_lock(&sync_lock);
    if (sync_logs && n_sync_events < sizeof sync_events / sizeof *sync_events)
        sync_events[n_sync_events++] =
            (struct sync_event){ .kind = kind,
                                 .device = file->st_dev,
                                 .inode = file->st_ino,
                                 .folder_device = folder ? folder->st_dev : 0,
                                 .folder = folder ? folder->st_ino : 0 };
    pthread_mutex_unlock(&sync_lock);
}

/* Logs a call that succeeded on an open file or folder. */
static inline void
sync_log_fd(enum sync_kind kind, int fd)
{
    struct stat st;
    if (sync_logs && !fstat(fd, &st))
        sync_log_add(kind, &st, NULL);
}

/* Returns whether an inode was synced among events [from, end). */
static inline bool
sync_log_has(dev_t device, ino_t inode, size_t from, size_t end)
{
    for (size_t i = from; i < end; i++)
        if (sync_events[i].kind == SYNC_SYNCED && sync_events[i].device == device &&
            sync_events[i].inode == inode)
            return true;
    return false;
}

/* Returns whether the bytes of a file were on the disk before event `end`. */
static inline bool
sync_log_is_clean(const struct sync_event *file, size_t end)
{
    bool clean = false;
    for (size_t i = 0; i < end; i++)
        if (sync_events[i].device == file->device && sync_events[i].inode == file->inode &&
            sync_events[i].kind != SYNC_NAMED)
            clean = sync_events[i].kind == SYNC_SYNCED;
    return clean;
}

/* Ends the log and checks that each file was synced before it got its name, and its folder
 * afterwards. Returns the number of names. */
static inline int
sync_log_end(void)
{
    int n = 0;
    sync_logs = false;
    assert_true(n_sync_events < sizeof sync_events / sizeof *sync_events);
    for (size_t i = 0; i < n_sync_events; i++) {
        const struct sync_event *e = &sync_events[i];
        if (e->kind != SYNC_NAMED)
            continue;
        n++;
        if (!sync_log_is_clean(e, i))
            fail_msg("name %d was given to a file that was not synced", n);
        if (!sync_log_has(e->folder_device, e->folder, i, n_sync_events))
            fail_msg("name %d: its folder was not synced afterwards", n);
    }
    return n;
}
