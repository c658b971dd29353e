/* SPDX-License-Identifier: MIT */
/*
 * Who adds to a cache and who removes something from it. Whoever adds holds a lock on qwenvit-cache.json
 * that others may hold as well; whoever removes holds it alone. The file is there anyway, so nothing is left
 * behind, and the lock ends with the process.
 */
#ifndef QV_CACHE_LOCK_H
#define QV_CACHE_LOCK_H

#include "file.h"

/* To add. *lock: for qv_cache_unlock; -1 where the file system has no locks, which does without.
 * QV_ESTATE where somebody removes something. */
qv_status qv_cache_lock_to_add(const struct qv_cache_folder *folder, int *lock, qv_error *err);
/* To remove. QV_ESTATE where somebody adds or removes something, QV_EUNSUPPORTED where the file system
 * has no locks, QV_EIO. */
qv_status qv_cache_lock_to_remove(const struct qv_cache_folder *folder, int *lock, qv_error *err);
void qv_cache_unlock(int *lock);

#endif
