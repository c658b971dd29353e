/* SPDX-License-Identifier: MIT */
/* Tests that a file appears whole or not at all: it is on the disk before it gets its name, and is
 * removed after a signal. */
#include "test.h"

#include <signal.h>
#include <sys/wait.h>

#include "files/atomic_file.h"
#include "sync_log.h"
#include "tempdir.h"
#include "wrap.h"

/* ---- the order ------------------------------------------------------------------------------- */

static bool no_sync; /* Whether fsync fails. */

WRAPPED(int, fsync, (int fd))
{
    if (no_sync) {
        errno = EIO;
        return -1;
    }
    sync_log_fd(SYNC_SYNCED, fd);
    return __real_fsync(fd);
}

WRAPPED(ssize_t, pwrite, (int fd, const void *data, size_t n, off_t at))
{
    sync_log_fd(SYNC_WRITTEN, fd);
    return __real_pwrite(fd, data, n, at);
}

/* Logs the new name of a file or folder. */
static void
log_name(const char *path)
{
    char folder[600];
    struct stat file, above;
    snprintf(folder, sizeof folder, "%s/..", path);
    assert_int_equal(stat(path, &file), 0);
    if (!S_ISDIR(file.st_mode)) {
        snprintf(folder, sizeof folder, "%s", path);
        *strrchr(folder, '/') = 0;
    }
    assert_int_equal(stat(folder, &above), 0);
    sync_log_add(SYNC_NAMED, &file, &above);
}

WRAPPED(int, rename, (const char *from, const char *to))
{
    const int r = __real_rename(from, to);
    if (!r)
        log_name(to);
    return r;
}

/* A folder is empty when it is made, so nothing of it has to be synced before. */
WRAPPED(int, mkdir, (const char *path, mode_t mode))
{
    struct stat st;
    const int r = __real_mkdir(path, mode);
    if (!r && !stat(path, &st)) {
        sync_log_add(SYNC_SYNCED, &st, NULL);
        log_name(path);
    }
    return r;
}

TEST(test_order)
{
    sync_log_begin();
    assert_ok(qv_atomic_file_put(temp_path("new"), "12345", 5, ERR));
    assert_ok(qv_atomic_file_put(temp_path("new"), "123", 3, ERR));
    assert_int_equal(sync_log_end(), 2);
}

/* A key with slashes creates folders. If they were not synced, a power loss would destroy them and
 * their contents. */
TEST(test_folders)
{
    char path[600];
    snprintf(path, sizeof path, "%s", temp_path("a/b/c/new"));
    sync_log_begin();
    qv_make_folders(path);
    assert_ok(qv_atomic_file_put(path, "12345", 5, ERR));
    assert_int_equal(sync_log_end(), 4);
}

TEST(test_sync_fails)
{
    qv_error err = { 0 };
    no_sync = true;
    const qv_status s = qv_atomic_file_put(temp_path("new"), "12345", 5, &err);
    no_sync = false;
    assert_int_equal(s, QV_EIO);
    assert_non_null(strstr(err.text, "cannot sync"));
    assert_int_not_equal(access(temp_path("new"), F_OK), 0);
    assert_int_equal(rmdir(tempdir), 0); /* Nothing is left in it. */
    assert_int_equal(__real_mkdir(tempdir, 0777), 0);
}

/* ---- signals --------------------------------------------------------------------------------- */

enum { MANY = 40 };

static void
remove_all(int number)
{
    _exit(qv_atomic_files_remove());
}

/* A signal removes all files, however many there are and however many there were before. */
TEST(test_signal)
{
    for (int before = 0; before <= MANY; before += MANY) {
        fflush(NULL);
        const pid_t pid = fork();
        assert_true(pid >= 0);
        if (!pid) {
            static struct qv_atomic_file files[2 * MANY];
            char name[16];
            for (int i = 0; i < before + MANY; i++) {
                snprintf(name, sizeof name, "%d", i);
                if (qv_atomic_file_open(temp_path(name), &files[i], NULL))
                    _exit(255);
            }
            for (int i = 0; i < before; i++)
                qv_atomic_file_abort(&files[i]);
            signal(SIGTERM, remove_all);
            raise(SIGTERM);
        }
        int status = 0, left = 0;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        DIR *dir = opendir(tempdir);
        for (const struct dirent *e; (e = readdir(dir)) != NULL;)
            left += *e->d_name != '.';
        closedir(dir);
        if (left || !WIFEXITED(status) || WEXITSTATUS(status) != MANY)
            fail_msg("of %d files %d stay; the process ended with %#x", MANY, left,
                     (unsigned)status);
    }
}

TEST_EACH(tempdir_make, tempdir_remove);
