/* SPDX-License-Identifier: MIT */
/* A temporary folder for each test, and files in it. Include this file after test.h. */
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "qwenvit.h"
#include "remove_tree.h"

static char tempdir[32];

/* Setup and teardown of one test. */
static inline int
tempdir_make(void)
{
    snprintf(tempdir, sizeof tempdir, "%s/qv_test_XXXXXX",
             access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm"); /* where a sync takes no time */
    return mkdtemp(tempdir) ? 0 : -1;
}

static inline int
tempdir_remove(void)
{
    return remove_tree(tempdir);
}

/* The path of a name in the folder. It stays valid for the next 7 calls. */
static inline const char *
temp_path(const char *name)
{
    static char paths[8][512];
    static unsigned next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%.200s/%.300s", tempdir, name);
    return path;
}

static inline void
put_file(const char *path, const void *data, size_t bytes)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}

static inline const char *
temp_file(const char *name, const void *data, size_t bytes)
{
    const char *path = temp_path(name);
    put_file(path, data, bytes);
    return path;
}

static inline const char *
temp_text(const char *name, const char *text)
{
    return temp_file(name, text, strlen(text));
}

struct file {
    char *data;
    size_t bytes;
};

/* With the given number of zeros after its bytes. */
static inline struct file
read_file_and(const char *path, size_t zeros)
{
    struct file file = { 0 };
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    const long n = ftell(f);
    assert_true(n >= 0);
    rewind(f);
    file.bytes = (size_t)n;
    file.data = test_alloc(file.bytes + zeros);
    assert_int_equal(fread(file.data, 1, file.bytes, f), file.bytes);
    memset(file.data + file.bytes, 0, zeros);
    fclose(f);
    return file;
}

static inline struct file
read_file(const char *path)
{
    const struct file file = read_file_and(path, 0);
    assert_true(file.bytes > 0);
    return file;
}

static inline char *
file_text(const char *path)
{
    return read_file_and(path, 1).data;
}

/* A copy of a file of tests/golden in the folder. */
static inline void
temp_copy(const char *golden, const char *as)
{
    char from[600];
    snprintf(from, sizeof from, QV_GOLDEN "/%s", golden);
    struct file f = read_file(from);
    temp_file(as, f.data, f.bytes);
}

static inline int
temp_count(void)
{
    int n = 0;
    DIR *dir = opendir(tempdir);
    assert_non_null(dir);
    for (const struct dirent *e; (e = readdir(dir)) != NULL;)
        n += e->d_name[0] != '.';
    closedir(dir);
    return n;
}

/* Checks the status, and that the error contains every text in `words` (separated by '|') and no
 * terminal controls. */
static inline void
expect_failure(const char *what, qv_status wanted, const char *words, qv_status got,
               const qv_error *err)
{
    if (got != wanted || err->status != wanted)
        fail_msg("%s: %s, not %s: %s", what, qv_status_name(got), qv_status_name(wanted),
                 err->text);
    char copy[256], *rest = copy;
    snprintf(copy, sizeof copy, "%s", words);
    for (char *word; (word = strsep(&rest, "|")) != NULL;)
        if (!strstr(err->text, word))
            fail_msg("%s: \"%s\" is not in: %s", what, word, err->text);
    for (const char *p = err->text; *p; p++)
        if ((unsigned char)*p < 0x20 || (unsigned char)*p > 0x7e)
            fail_msg("%s: a control character in: %s", what, err->text);
}

/* Loads a model, which must fail with this error. */
static inline void
expect_load_failure(const char *what, const char *path, const char *backend,
                    const qv_model_options *options, qv_status wanted, const char *words)
{
    qv_context *ctx = NULL;
    qv_model *model = NULL;
    qv_error err = { 0 };
    assert_ok(qv_context_open(&(qv_context_options){ .backend = backend }, &ctx, ERR));
    const qv_status s = qv_model_load(ctx, path, options, &model, &err);
    expect_failure(what, wanted, words, s, &err);
    assert_null(model);
    qv_context_close(&ctx);
}

/* The same for a call with ERR as its error. */
#define expect_error(wanted, words, call)                                                          \
    do {                                                                                           \
        qv_error test_error = { 0 };                                                               \
        const qv_status test_status = (call);                                                      \
        expect_failure(#call, wanted, words, test_status, &test_error);                            \
    } while (0)
