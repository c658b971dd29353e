/* SPDX-License-Identifier: MIT */
/* Tests kernels that are kept in files: a kernel that was kept is found again, and one that is
 * damaged or belongs to another device is not. */

#include "test.h"

#include <pthread.h>
#include <stdatomic.h>

#include "engine/context.h"
#include "tempdir.h"
#include "tiny.h"

static const char key[] = "cuDNN graph 0123456789abcdef of bf16";
static const unsigned char plan[] = { 'p', 0, '\n', 'l', 'a', 'n', '\n' };

static void
open_files(struct qv_kernel_files *files, const char *folder, const char *device)
{
    struct qv_caps caps = { 0 };
    snprintf(caps.device, sizeof caps.device, "%s", device);
    assert_ok(qv_kernel_files_open(files, folder, "cuda", &caps, ERR));
}

static bool
is_found(struct qv_kernel_files *files, const char *of)
{
    size_t bytes = 0;
    void *found = qv_kernel_files_find(files, of, &bytes);
    if (found) {
        assert_int_equal(bytes, sizeof plan);
        assert_memory_equal(found, plan, sizeof plan);
    }
    free(found);
    return found != NULL;
}

/* The path of the only file in the folder. */
static const char *
the_file(const char *folder)
{
    static char path[1024];
    int n = 0;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (const struct dirent *e; (e = readdir(dir)) != NULL;)
        if (e->d_name[0] != '.') {
            snprintf(path, sizeof path, "%s/%.256s", folder, e->d_name);
            n++;
        }
    closedir(dir);
    assert_int_equal(n, 1);
    return path;
}

TEST(what_was_kept_is_found)
{
    char folder[600];
    snprintf(folder, sizeof folder, "%s", temp_path("cache/kernels"));
    struct qv_kernel_files files, other, none;
    open_files(&files, folder, "an H200, cuDNN 9.19");
    open_files(&other, folder, "an H200, cuDNN 9.20");
    open_files(&none, NULL, "an H200, cuDNN 9.19");
    assert_false(is_found(&files, key));
    assert_string_equal(files.warning, ""); /* Having none is not an error. */
    qv_kernel_files_keep(&none, key, plan, sizeof plan);
    assert_int_equal(temp_count(), 0);
    qv_kernel_files_keep(&files, key, plan, sizeof plan);
    the_file(folder);
    assert_true(is_found(&files, key));
    assert_false(is_found(&files, "cuDNN graph 0123456789abcdef of f32"));
    assert_false(is_found(&other, key));
    assert_false(is_found(&none, key));
    assert_string_equal(files.warning, "");
    assert_string_equal(other.warning, "");

    /* The same file, under the name that the other device's file would have. */
    char mine[1024];
    snprintf(mine, sizeof mine, "%s", the_file(folder));
    qv_kernel_files_keep(&other, key, plan, sizeof plan);
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (const struct dirent *e; (e = readdir(dir)) != NULL;) {
        char its[1024];
        snprintf(its, sizeof its, "%s/%.256s", folder, e->d_name);
        if (e->d_name[0] != '.' && strcmp(its, mine) != 0)
            assert_int_equal(rename(mine, its), 0);
    }
    closedir(dir);
    assert_false(is_found(&other, key));
    assert_non_null(strstr(other.warning, "not a kernel of this version"));
    qv_kernel_files_close(&files);
    qv_kernel_files_close(&other);
    qv_kernel_files_close(&none);
}

/* Every file that is a byte shorter or longer than it was, or has another byte, is refused with a
 * warning. The kernel that is kept anew is right. */
TEST(what_is_damaged_is_told_and_made_anew)
{
    const char *folder = temp_path("");
    struct qv_kernel_files files;
    open_files(&files, folder, "an H200");
    qv_kernel_files_keep(&files, key, plan, sizeof plan);
    const char *path = the_file(folder);
    const struct file whole = read_file(path);
    const size_t n = whole.bytes;
    const char *name = strrchr(path, '/') + 1;
    for (size_t i = 0; i <= 2 * n; i++) {
        char damaged[1024];
        memcpy(damaged, whole.data, n);
        damaged[n] = 'x';
        if (i < n)
            damaged[i] ^= 1;
        temp_file(name, damaged, i < n ? n : i < 2 * n ? i - n : n + 1);
        files.warning[0] = 0;
        assert_false(is_found(&files, key));
        assert_non_null(strstr(files.warning, name));
        assert_non_null(strstr(files.warning, "damaged"));
    }
    qv_kernel_files_keep(&files, key, plan, sizeof plan);
    assert_true(is_found(&files, key));
    qv_kernel_files_close(&files);
}

TEST(what_cannot_be_written_or_read_is_told)
{
    struct qv_kernel_files files;
    open_files(&files, temp_path("a_file/kernels"), "an H200");
    temp_text("a_file", "in the way of a folder");
    qv_kernel_files_keep(&files, key, plan, sizeof plan);
    assert_non_null(strstr(files.warning, "not cached"));
    assert_false(is_found(&files, key));
    qv_kernel_files_close(&files);

    open_files(&files, temp_path("kernels"), "an H200");
    qv_kernel_files_keep(&files, key, plan, sizeof plan);
    const char *path = the_file(temp_path("kernels"));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0); /* It is refused, not waited for. */
    assert_false(is_found(&files, key));
    assert_non_null(strstr(files.warning, strrchr(path, '/')));
    qv_kernel_files_close(&files);
}

/* Damages a file as a full disk would. */
static void
damage(const char *folder, const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%.256s", folder, name);
    assert_int_equal(truncate(path, 20), 0);
}

/* ---- a device that prepares kernels beside its owner ----------------------------------------- */

/* A device's warming thread looks for a kernel whose file is damaged. */
struct warming {
    qv_context *ctx;
    const char *key;
    atomic_bool enough;
};

static void *
warm(void *p)
{
    struct warming *w = p;
    do {
        size_t bytes = 0;
        free(w->ctx->plan_cache.find(w->ctx->plan_cache.files, w->key, &bytes));
    } while (!atomic_load(&w->enough));
    return NULL;
}

TEST(a_warning_is_read_while_others_are_written)
{
    enum { THREADS = 2, READS = 2000 };
    static const char *const keys[THREADS] = { key, "another" };
    struct warming warming[THREADS];
    pthread_t threads[THREADS];
    const char *folder = temp_path("kernels");
    qv_context *ctx =
        tiny_context_with(&(qv_context_options){ .backend = "ref", .kernel_folder = folder });
    for (int i = 0; i < THREADS; i++) {
        qv_kernel_files_keep(&ctx->kernel_files, keys[i], plan, sizeof plan);
        warming[i] = (struct warming){ .ctx = ctx, .key = keys[i] };
    }
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (const struct dirent *e; (e = readdir(dir)) != NULL;)
        if (e->d_name[0] != '.')
            damage(folder, e->d_name);
    closedir(dir);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, warm, &warming[i]), 0);
    qv_context_info info;
    for (int i = 0; i < READS; i++) {
        qv_context_get_info(ctx, &info);
        if (*info.warning) { /* One of the warnings, complete. */
            assert_non_null(strstr(info.warning, ".kernel: damaged"));
            assert_string_equal(strrchr(info.warning, ':'), ": ignored");
        }
    }
    for (int i = 0; i < THREADS; i++) {
        atomic_store(&warming[i].enough, true);
        pthread_join(threads[i], NULL);
    }
    qv_context_get_info(ctx, &info);
    assert_string_not_equal(info.warning, "");
}

TEST_EACH(tempdir_make, tempdir_remove);
