/* SPDX-License-Identifier: MIT */
/* Tests error texts longer than a qv_error: the middle of a path is cut, not the reason. */

#include "test.h"

#include <limits.h>

#include "error.h"
#include "qwenvit_cache.h"
#include "qwenvit_clips.h"
#include "tempdir.h"

static const size_t lengths[] = { 300, 470, 499, 500, 1000, 3000, 4000, 4096, 5000 };
enum { N_LENGTHS = sizeof lengths / sizeof *lengths, LONGEST = 5000, FOLDER = 100, SHOWN = 60 };

/* Returns a path of the given length below the temporary folder, whose last folder or file has no
 * neighbours. made: also creates its folders, as far as the system allows such a path. */
static const char *
path_of(size_t length, bool made)
{
    static char path[LONGEST + 1];
    size_t n = (size_t)snprintf(path, sizeof path, "%.200s", tempdir);
    for (size_t i = 0; n < length; i++, n++)
        path[n] = i % FOLDER ? (char)('a' + i / FOLDER % 26) : '/';
    path[n] = 0;
    if (path[n - 1] == '/')
        path[n - 1] = 'z';
    char *last = strrchr(path, '/');
    for (char *at = path + strlen(tempdir) + 1; made && at <= last; at++)
        if (*at == '/') {
            *at = 0;
            assert_true(!mkdir(path, 0700) || errno == EEXIST || errno == ENAMETOOLONG);
            *at = '/';
        }
    return path;
}

/* Checks that a text ends with `reason`, and shows the end of the path in front. */
static void
expect(const qv_error *err, const char *path, const char *reason)
{
    const size_t n = strlen(err->text), behind = strlen(reason);
    const char *tail = path + strlen(path) - (strlen(path) < SHOWN ? strlen(path) : SHOWN);
    if (n < behind || strcmp(err->text + n - behind, reason) || !strstr(err->text, tail))
        fail_msg("%zu bytes of path, \"%s\": %s", strlen(path), reason, err->text);
}

static qv_status
open_clip(const char *path, qv_error *err)
{
    const qv_preprocess p = qv_preprocess_default(false), image = qv_preprocess_default(true);
    qv_clip *clip = NULL;
    return qv_clip_open(path, &image, &p, NULL, &clip, err);
}

static qv_status
open_cache(const char *path, qv_error *err)
{
    qv_cache *cache = NULL;
    return qv_cache_open(path, &cache, err);
}

static qv_status
load(const char *path, qv_error *err)
{
    qv_context *ctx = NULL;
    qv_model *model = NULL;
    assert_int_equal(qv_context_open(&(qv_context_options){ .backend = "ref" }, &ctx, err), QV_OK);
    const qv_status status = qv_model_load(ctx, path, NULL, &model, err);
    qv_context_close(&ctx);
    return status;
}

/* The reason after a long path is the same as after a short path, or that the path is too long. */
TEST(every_opening)
{
    static const struct {
        qv_status (*open)(const char *path, qv_error *err);
        bool says_so; /* that a path is too long */
    } openings[] = { { open_clip, true }, { open_cache, true }, { load, false } };
    for (size_t i = 0; i < sizeof openings / sizeof *openings; i++) {
        const char *there = temp_path("none");
        qv_error near = { 0 }, far = { 0 };
        assert_int_equal(openings[i].open(there, &near), QV_EIO);
        const char *reason = strstr(near.text, there);
        assert_non_null(reason);
        for (size_t j = 0; j < N_LENGTHS; j++) {
            const char *path = path_of(lengths[j], false);
            const bool fits = lengths[j] < PATH_MAX || !openings[i].says_so;
            assert_int_equal(openings[i].open(path, &far), QV_EIO);
            expect(&far, path, fits ? reason + strlen(there) : strerror(ENAMETOOLONG));
        }
    }
}

/* FFmpeg's reason, and a file's. */
TEST(no_clips)
{
    qv_error near = { 0 }, far = { 0 };
    const char *there = temp_text("none", "this is no clip");
    const qv_status status = open_clip(there, &near);
    assert_true(status);
    for (size_t j = 0; j < N_LENGTHS && lengths[j] < PATH_MAX; j++) {
        const char *path = path_of(lengths[j], true);
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fputs("this is no clip", f);
        fclose(f);
        assert_int_equal(open_clip(path, &far), status);
        expect(&far, path, strstr(near.text, there) + strlen(there));
        assert_int_equal(remove(path), 0);
    }
}

/* The longest part is shortened, wherever it stands, between whole characters of UTF-8. */
TEST(texts)
{
    static char letters[2000];
    qv_error err;
    for (size_t i = 0; i + 2 < sizeof letters; i += 2)
        memcpy(letters + i, "é", 2);
    for (int shift = 0; shift < 4; shift++) {
        qv_fail(&err, QV_EIO, "%.*sbegin %s end: %s", shift, "xxxx", letters, "the reason");
        assert_true(strlen(err.text) > sizeof err.text - 4);
        assert_memory_equal(err.text + shift, "begin é", 8);
        assert_non_null(strstr(err.text, "é .. é"));
        assert_non_null(strstr(err.text, "é end: the reason"));
        qv_fail(&err, QV_EIO, "%.*sfile: %s: end: %s", shift, "xxxx", letters, "the reason");
        assert_memory_equal(err.text + shift, "file: é", 8);
        assert_non_null(strstr(err.text, "é: end: the reason"));
    }
    /* where no part is long enough, the text's own middle goes */
    char parts[2000] = "";
    while (strlen(parts) < sizeof parts - 10)
        strcat(parts, "abcd: ");
    qv_fail(&err, QV_EIO, "begin: %sthe reason", parts);
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
    assert_memory_equal(err.text, "begin: ", 7);
    assert_non_null(strstr(err.text, "abcd: the reason"));
    qv_fail(&err, QV_EIO, "%.499s", parts);
    assert_memory_equal(err.text, parts, 499);
    /* control characters stay out */
    memset(parts, '\033', sizeof parts - 1);
    qv_fail(&err, QV_EIO, "%s: the reason", parts);
    assert_null(strchr(err.text, '\033'));
}

TEST_EACH(tempdir_make, tempdir_remove);
