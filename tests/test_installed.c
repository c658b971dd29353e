/* SPDX-License-Identifier: MIT */
/* Tests that the files that this code opens are searched for next to it: not in the working folder,
 * not where the name given to the program points, and not in the build's folder. */

#include "test.h"

#include <limits.h>
#include <sys/wait.h>

#include "files/installed.h"
#include "tempdir.h"

#define PLANTED "qwenvit-planted"

/* Runs this program again under `name` in a working folder. Writes where it finds the file, or ""
 * if it finds none. */
static void
find_as(const char *name, const char *folder, char path[PATH_MAX])
{
    int ends[2], status = 0;
    assert_int_equal(pipe(ends), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        if (dup2(ends[1], 1) == 1 && !chdir(folder))
            execl("/proc/self/exe", name, "--find", (char *)NULL);
        _exit(9);
    }
    close(ends[1]);
    size_t n = 0;
    for (ssize_t got; (got = read(ends[0], path + n, PATH_MAX - 1 - n)) > 0;)
        n += (size_t)got;
    path[n] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

TEST(only_beside_the_program_itself)
{
    char found[PATH_MAX], own[PATH_MAX], other[600];
    const ssize_t n = readlink("/proc/self/exe", own, sizeof own - sizeof PLANTED);
    assert_true(n > 0);
    own[n] = 0;
    strcpy(strrchr(own, '/') + 1, PLANTED);
    temp_text(PLANTED, "another's");
    snprintf(other, sizeof other, "%s/program", tempdir);
    const char *const names[] = { other, "./program", "program", "", own };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        unlink(own);
        find_as(names[i], tempdir, found);
        assert_string_equal(found, "");
        FILE *f = fopen(own, "w");
        assert_non_null(f);
        fclose(f);
        find_as(names[i], tempdir, found);
        assert_string_equal(found, own);
    }
    unlink(own);
}

TEST_EACH(tempdir_make, tempdir_remove);

TEST_MAIN(argc, argv)
{
    if (argc != 2 || strcmp(argv[1], "--find") != 0)
        return TEST_GO_ON;
    char path[PATH_MAX];
    if (qv_find_installed(PLANTED, "lib", "bin", R_OK, path, sizeof path))
        fputs(path, stdout);
    return 0;
}
