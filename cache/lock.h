/* SPDX-License-Identifier: MIT */
/* Keeps processes that add to a cache (a shared lock on qwenvit-cache.json) apart from those that
 * remove (an exclusive lock). The lock leaves nothing behind, and ends with the process. */
#pragma once

#include "file.h"

/* Locks the cache for adding, or alone, for removing. Returns QV_ESTATE if somebody is removing,
 * or, with `alone`, adding; QV_ENOMEM or QV_EIO for other reasons. Without locks *lock is -1 and
 * *warning says so; with `alone` that is QV_EUNSUPPORTED. */
qv_status qv_cache_lock(const struct qv_cache_folder *folder, bool alone, int *lock,
                        qv_error *warning, qv_error *err);
void qv_cache_unlock(int *lock);
