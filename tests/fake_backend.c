/* SPDX-License-Identifier: MIT */
/*
 * Libraries in place of libqwenvit_cuda.so, by what is defined: FAKE_QV_BUILD_ID, one whose backend
 * is ref under the name cuda; FAKE_NEEDS, one that needs another library; neither, one that is no
 * backend.
 */
#include <string.h>

#include "engine/backend.h"

#ifdef FAKE_QV_BUILD_ID
QV_API extern int fake_entries; /* calls of the entry */
int fake_entries;

static struct qv_backend table; /* ref's, but for its name and `open` */

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
