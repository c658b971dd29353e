/* SPDX-License-Identifier: MIT */
/* Prevents processes from adding to a cache (a shared lock on qwenvit-cache.json) while another
 * removes from it (an exclusive lock). The lock ends with the process, and leaves no trace. */
#pragma once

#include "file.h"

/* Locks the cache for adding or, with `alone`, for removing. Returns QV_ESTATE if another process
 * is removing or, with `alone`, adding; QV_ENOMEM or QV_EIO for other failures. If the file system
 * has no locks, *lock is -1 and *warning explains it; with `alone` this is QV_EUNSUPPORTED. */
qv_status qv_cache_lock(const struct qv_cache_folder *folder, bool alone, int *lock,
                        qv_error *warning, qv_error *err);
void qv_cache_unlock(int *lock);
