/* SPDX-License-Identifier: MIT */
/*
 * Libraries that stand in for libqwenvit_cuda.so; macros select which one is built. With
 * FAKE_QV_BUILD_ID, its backend is ref under the name cuda; with FAKE_LOST as well, it locks pages,
 * and its device is lost after the number of lists of operations that the environment sets. With
 * FAKE_NEEDS, it needs another library. With neither, it is not a backend.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/backend.h"
#include "error.h"
#include "lock_pages.h"

#ifdef FAKE_QV_BUILD_ID
QV_API extern int fake_entries; /* How often the entry was called. */
int fake_entries;

static struct qv_backend table; /* The table of ref, except for its name and `open`. */

#ifdef FAKE_LOST
static atomic_long n_lists; /* How many lists were run. */

static qv_status
run_or_lose(struct qv_device *dev, const struct qv_call *calls, size_t n, qv_error *err)
{
    const char *most = getenv("FAKE_LOST_AFTER");
    if (most && atomic_fetch_add(&n_lists, 1) >= atol(most))
        return qv_fail(err, QV_EBACKEND, "the device is lost: it fell off the bus");
    return qv_backend_ref.run(dev, calls, n, err);
}
#endif

static qv_status
open_fake(const struct qv_device_options *options, struct qv_device **out, qv_error *err)
{
    qv_status status = qv_backend_ref.open(options, out, err);
    if (!status)
        (*out)->backend = &table;
    return status;
}

const struct qv_backend *
qv_backend_entry(const char *build_id, const char **own)
{
    fake_entries++;
    table = qv_backend_ref;
    table.name = "cuda";
    table.open = open_fake;
#ifdef FAKE_LOST
    table.run = run_or_lose;
    table.lock_pages = lock_pages;
    table.unlock_pages = unlock_pages;
#endif
    *own = FAKE_QV_BUILD_ID;
    return strcmp(build_id, FAKE_QV_BUILD_ID) ? NULL : &table;
}
#endif

#ifdef FAKE_NEEDS
int fake_cudnn(void);
QV_API int fake_user(void);

int
fake_user(void)
{
    return fake_cudnn();
}
#endif
