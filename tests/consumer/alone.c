/* SPDX-License-Identifier: MIT */
/* A program that is linked with one of the libraries and names no other; ALONE says with which one.
 * The library must find the other libraries that it needs by itself. */
#include <stdio.h>
#include <string.h>

#define QWENVIT 1
#define MEDIA 2
#define JOB 3
#define CACHE 4
#define FILL 5

#if ALONE == QWENVIT
#include <qwenvit.h>
#elif ALONE == MEDIA
#include <qwenvit_clips.h>
#elif ALONE == JOB
#include <qwenvit_clips.h>
#elif ALONE == CACHE
#include <qwenvit_cache.h>
#else
#include <qwenvit_clips.h>
#endif

int
main(void)
{
#if ALONE == QWENVIT
    const bool right = !strcmp(qv_version(), QV_VERSION);
#elif ALONE == MEDIA
    const qv_preprocess rules = qv_preprocess_default(true);
    int64_t height = 0, width = 0;
    qv_error err = { 0 };
    const bool right = !qv_smart_resize(0, 70, 100, &rules, &height, &width, &err) && height > 0;
#elif ALONE == JOB
    qv_job *job = NULL;
    qv_error err = { 0 };
    const bool right = qv_job_open(NULL, 0, NULL, &job, &err) == QV_EINVAL;
#elif ALONE == FILL
    const qv_cache_fill_options options = { .packed = true };
    qv_cache_fill *fill = NULL;
    qv_error err = { 0 };
    const bool right = !qv_cache_fill_open("no such folder", &options, &fill, &err) &&
                       qv_cache_fill_end(fill, NULL, 0, &err) == QV_EINVAL;
    qv_cache_fill_close(&fill);
#else
    const bool right = qv_cache_key_hash("a") != qv_cache_key_hash("b");
#endif
    puts(right ? "QV_OK" : "wrong");
    return !right;
}
