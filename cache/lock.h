/* SPDX-License-Identifier: MIT */
/*
 * Keeps those who add to a cache apart from those who remove from it. Adding takes a shared lock on
 * qwenvit-cache.json, removing an exclusive one. That file exists anyway, so nothing is left
 * behind, and the lock ends with the process.
 */
#ifndef QV_CACHE_LOCK_H
#define QV_CACHE_LOCK_H

#include "file.h"

/* Locks the cache for adding. *lock is for qv_cache_unlock; it is -1 if the file system has no
 * locks, and the caller goes on without: then *warning says so. Returns QV_ESTATE if somebody
 * removes from it; QV_ENOMEM or QV_EIO if the lock cannot be taken for any other reason. */
qv_status qv_cache_lock_to_add(const struct qv_cache_folder *folder, int *lock, qv_error *warning,
                               qv_error *err);
/* Locks the cache for removing. Returns QV_ESTATE if somebody adds or removes, QV_EUNSUPPORTED if
 * the file system has no locks, QV_ENOMEM or QV_EIO. */
qv_status qv_cache_lock_to_remove(const struct qv_cache_folder *folder, int *lock, qv_error *err);
void qv_cache_unlock(int *lock);

#endif
