/* SPDX-License-Identifier: MIT */
/*
 * Calls every public function with each of its required pointers NULL in turn. It must name that
 * pointer before it reads any other pointer, which here lead to zeros instead of objects.
 */
#include "test.h"

#include <ctype.h>

#include "qwenvit_clips.h"
#include "qwenvit_conv3d.h"
#include "tempdir.h"

static int null_at;  /* which pointer is NULL, from 0 */
static qv_error err; /* of the call */

/* Returns pointer i of a call. */
static void *
at(int i)
{
    static max_align_t zeros[4096]; /* as large as any struct */
    return i == null_at ? NULL : zeros;
}

/* A function, and the names of the pointers at(0), at(1).. that it needs. Behind them come those
 * that are members of an argument, and NULL in zeros. */
struct door {
    const char *name, *needs;
    qv_status (*call)(void);
};

static struct door doors[100];
static int n_doors;

static void
add_door(const char *name, const char *needs, qv_status (*call)(void))
{
    doors[n_doors++] = (struct door){ name, needs, call };
}

#define DOOR(function, names, status)                                                              \
    static qv_status call_##function(void)                                                         \
    {                                                                                              \
        return status;                                                                             \
    }                                                                                              \
    TEST_AT_START(add_door(#function, names, call_##function))
/* One that returns a status; one that returns an answer; one that returns nothing. */
#define STATUS(function, names, ...) DOOR(function, names, function(__VA_ARGS__, &err))
#define ANSWER(function, names, wanted, ...)                                                       \
    DOOR(function, names, function(__VA_ARGS__) == (wanted) ? QV_EINVAL : QV_OK)
#define NOTHING(function, names, ...) DOOR(function, names, (function(__VA_ARGS__), QV_EINVAL))
#define FREES(function, type)                                                                      \
    DOOR(function, "", (function(&(type *){ NULL }), function(NULL), QV_OK))

#define A at(0)
#define B at(1)
#define C at(2)
#define D at(3)

STATUS(qv_context_open, "out", NULL, A);
FREES(qv_context_close, qv_context);
NOTHING(qv_context_get_info, "ctx out", A, B);
STATUS(qv_host_alloc, "ctx out", A, 1, B);
NOTHING(qv_host_free, "ctx p", A, B);
STATUS(qv_model_load, "ctx dir out", A, B, NULL, C);
FREES(qv_model_free, qv_model);
NOTHING(qv_model_get_info, "model out", A, B);
STATUS(qv_plan_create, "model out", A, NULL, B);
FREES(qv_plan_free, qv_plan);
NOTHING(qv_plan_get_info, "plan out", A, B);
STATUS(qv_plan_push, "plan items", A, B, 1);
STATUS(qv_plan_pull, "plan out", A, B);
STATUS(qv_encode, "model items out", A, QV_INPUT_FRAMES, B, 1, NULL, C);
STATUS(qv_conv3d_create, "ctx desc out", A, B, NULL, NULL, C);
FREES(qv_conv3d_free, qv_conv3d);
NOTHING(qv_conv3d_get_info, "conv out", A, B);
STATUS(qv_conv3d_get_ways, "conv ways", A, B);
STATUS(qv_conv3d_run, "conv x y", A, B, C);
NOTHING(qv_conv3d_reset, "conv", A);
STATUS(qv_cache_key, "bytes out", A, B);
ANSWER(qv_cache_key_hash, "key", 0, A);
ANSWER(qv_cache_exists, "dir", false, A);
STATUS(qv_cache_open, "dir out", A, B);
FREES(qv_cache_close, qv_cache);
NOTHING(qv_cache_get_info, "cache out", A, B);
ANSWER(qv_cache_damage, "cache", NULL, A, 0, NULL);
STATUS(qv_cache_find, "cache key out", A, B, C);
STATUS(qv_cache_at, "cache out", A, 0, B);
STATUS(qv_cache_hold, "cache item", A, B);
NOTHING(qv_cache_release, "cache item", A, B);
STATUS(qv_cache_record, "cache out", A, 0, B);
STATUS(qv_cache_verify, "cache", A, 0);
ANSWER(qv_cache_compare, "cache key source source->path", QV_CACHE_MISSING, A, B, C,
       QV_CACHE_TRUST_NOTHING);
STATUS(qv_cache_prune, "dir options out", A, B, C);
DOOR(qv_clip_options_set, "options name value",
     *qv_clip_options_set(A, B, false, C) ? QV_OK : QV_EINVAL);
STATUS(qv_decoder_start, "out", NULL, A);
FREES(qv_decoder_stop, qv_decoder);
STATUS(qv_clip_open, "path out", A, NULL, NULL, NULL, B);
FREES(qv_clip_close, qv_clip);
NOTHING(qv_clip_get_info, "clip out", A, B);
STATUS(qv_clip_read, "clip dst n", A, B, 1, C, NULL);
STATUS(qv_smart_resize, "p out_height out_width", 0, 64, 64, A, B, C);
STATUS(qv_resize_bicubic, "src dst", A, 64, 64, (int64_t)192, B, 32, 32);
STATUS(qv_job_open, "models options out models[0]", A, 1, B, C);
STATUS(qv_job_add, "job source", A, B);
ANSWER(qv_job_drop, "job", 0, A, NULL, 1);
NOTHING(qv_job_give_back, "job", A, NULL, 1);
STATUS(qv_job_client_open, "job out", A, 0, false, 0, B);
NOTHING(qv_job_client_cancel, "client", A);
FREES(qv_job_client_close, qv_job_client);
STATUS(qv_job_end, "job", A);
NOTHING(qv_job_cancel, "job", A);
NOTHING(qv_job_get_progress, "job out", A, B);
FREES(qv_job_close, qv_job);
STATUS(qv_job_memory, "models options bytes models[0]", A, 1, B, C);
STATUS(qv_cache_fill_open, "dir options out", A, B, C);
STATUS(qv_cache_fill_add, "fill key path", A, B, C, NULL, NULL);
STATUS(qv_cache_fill_run, "fill models", A, B, 1);
STATUS(qv_cache_fill_end, "fill models", A, B, 1);
NOTHING(qv_cache_fill_get_counts, "fill out", A, B);
FREES(qv_cache_fill_close, qv_cache_fill);

TEST(no_pointer_may_be_null_unasked)
{
    for (const struct door *d = doors; d < doors + n_doors; d++) {
        char needs[100], words[200];
        snprintf(needs, sizeof needs, "%s", d->needs);
        if (!*needs)
            assert_int_equal(d->call(), QV_OK);
        null_at = 0;
        for (char *need = strtok(needs, " "); need; need = strtok(NULL, " "), null_at++) {
            err = (qv_error){ QV_OK, "" };
            if (d->call() != QV_EINVAL)
                fail_msg("%s does not refuse %s", d->name, need);
            snprintf(words, sizeof words, "%s is NULL", need);
            if (err.status && !strstr(err.text, words))
                fail_msg("%s: not \"%s\": %s", d->name, words, err.text);
        }
    }
}

/* The table has every function of the headers that is given a pointer. */
TEST(every_function_is_in_the_table)
{
    static const char *const headers[] = { "qwenvit.h", "qwenvit_conv3d.h", "qwenvit_cache.h",
                                           "qwenvit_clips.h" };
    EACH (c, headers) {
        char path[600];
        snprintf(path, sizeof path, "%s/%s", QV_INCLUDE, *c);
        for (const char *p = file_text(path); (p = strstr(p, "\nQV_API ")) != NULL;) {
            const char *open = strchr(++p, '('), *end = strchr(p, ';'), *name = open;
            while (isalnum((unsigned char)name[-1]) || name[-1] == '_')
                name--;
            bool found = !memchr(open, '*', (size_t)(end - open));
            for (int i = 0; i < n_doors && !found; i++)
                found = strlen(doors[i].name) == (size_t)(open - name) &&
                        !strncmp(doors[i].name, name, (size_t)(open - name));
            if (!found)
                fail_msg("%s: %.*s is not in the table", *c, (int)(open - name), name);
        }
    }
}
