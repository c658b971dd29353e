/* SPDX-License-Identifier: MIT */
/*
 * Keeps those who add to a cache apart from those who remove from it. Adding takes a shared lock on
 * qwenvit-cache.json, removing an exclusive one. That file exists anyway, so nothing is left
 * behind, and the lock ends with the process.
 */
#ifndef QV_CACHE_LOCK_H
#define QV_CACHE_LOCK_H

#include "file.h"

/* Locks the cache for adding, or alone, for removing. *lock is for qv_cache_unlock. Returns
 * QV_ESTATE if somebody removes, or, alone, adds; QV_ENOMEM or QV_EIO if the lock cannot be taken
 * for any other reason. If the file system has no locks, *lock is -1 and *warning says so; alone
 * that is QV_EUNSUPPORTED. */
qv_status qv_cache_lock(const struct qv_cache_folder *folder, bool alone, int *lock,
                        qv_error *warning, qv_error *err);
void qv_cache_unlock(int *lock);

#endif
