/* SPDX-License-Identifier: MIT */
/* A program that is linked with one of the libraries; ALONE says with which one. */
#include <stdio.h>
#include <string.h>

#define QWENVIT 1
#define CACHE 2

#if ALONE == QWENVIT
#include <qwenvit_clips.h>
#else
#include <qwenvit_cache.h>
#endif

int
main(void)
{
#if ALONE == QWENVIT
    qv_job *job = NULL;
    qv_error err = { 0 };
    const bool right =
        !strcmp(qv_version(), QV_VERSION) && qv_job_open(NULL, 0, NULL, &job, &err) == QV_EINVAL;
#else
    const bool right = qv_cache_key_hash("a") != qv_cache_key_hash("b");
#endif
    puts(right ? "QV_OK" : "wrong");
    return !right;
}
