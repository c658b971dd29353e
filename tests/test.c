/* SPDX-License-Identifier: MIT */
/* Runs the tests that test.h's macros registered before main. */
#include "test.h"

#include <fnmatch.h>
#include <pthread.h>

enum { MOST = 64 };

static struct test {
    const char *name;
    void (*run)(void);
    int line;
} tests[MOST];
static struct fixture {
    int (*set_up)(void), (*tear_down)(void);
} each, groups[4], *group;
static size_t n_tests, n_groups;
static int (*first)(int argc, char **argv);

struct end {
    void *what;
    void (*end)(void *what);
};
static struct end *ends;
static size_t n_ends, n_room, n_of_group;
static pthread_mutex_t ends_lock = PTHREAD_MUTEX_INITIALIZER;

void *
test_ends(void *what, void (*end)(void *))
{
    assert_non_null(what);
    pthread_mutex_lock(&ends_lock);
    if (n_ends == n_room) {
        n_room = 2 * n_room + 64;
        ends = realloc(ends, n_room * sizeof *ends);
        assert_non_null(ends);
    }
    ends[n_ends++] = (struct end){ what, end };
    pthread_mutex_unlock(&ends_lock);
    return what;
}

void
test_end(void *what)
{
    pthread_mutex_lock(&ends_lock);
    size_t i = n_ends;
    while (i && ends[i - 1].what != what)
        i--;
    assert_true(i > 0);
    const struct end one = ends[i - 1];
    memmove(ends + i - 1, ends + i, (--n_ends - (i - 1)) * sizeof *ends);
    pthread_mutex_unlock(&ends_lock);
    one.end(what);
}

static void
end_down_to(size_t n)
{
    while (n_ends > n) {
        const struct end one = ends[--n_ends];
        one.end(one.what);
    }
}

static int
set_up_each(void **state)
{
    n_ends = n_of_group; /* a failed test keeps the rest: its threads may use it */
    return each.set_up ? each.set_up() : 0;
}

static int
tear_down_each(void **state)
{
    return each.tear_down();
}

static int
set_up_group(void **state)
{
    const int status = group->set_up();
    n_of_group = n_ends;
    return status;
}

static int
tear_down_group(void **state)
{
    n_ends = n_of_group;
    const int status = group->tear_down();
    n_of_group = 0;
    end_down_to(0);
    return status;
}

static void
run(void **state)
{
    ((const struct test *)*state)->run();
    end_down_to(n_of_group);
}

/* Compilers call constructors in any order: tests are sorted by their lines. */
void
test_add(const char *name, void (*function)(void), int line)
{
    if (n_tests == MOST)
        abort();
    size_t i = n_tests++;
    for (; i && tests[i - 1].line > line; i--)
        tests[i] = tests[i - 1];
    tests[i] = (struct test){ name, function, line };
}

void
test_each(int (*set_up)(void), int (*tear_down)(void))
{
    each = (struct fixture){ set_up, tear_down };
}

void
test_group(int (*set_up)(void), int (*tear_down)(void))
{
    groups[n_groups++] = (struct fixture){ set_up, tear_down };
}

void
test_main(int (*function)(int argc, char **argv))
{
    first = function;
}

int
main(int argc, char **argv)
{
    const int status = first ? first(argc, argv) : TEST_GO_ON;
    if (status != TEST_GO_ON)
        return status;
    const char *const pattern = argc > 1 ? argv[1] : "*"; /* of the tests to run */
    static struct CMUnitTest units[MOST];
    size_t n = 0;
    for (size_t i = 0; i < n_tests; i++)
        if (!fnmatch(pattern, tests[i].name, 0))
            units[n++] = (struct CMUnitTest){
                .name = tests[i].name,
                .test_func = run,
                .setup_func = set_up_each,
                .teardown_func = each.tear_down ? tear_down_each : NULL,
                .initial_state = &tests[i],
            };
    if (!n) {
        fprintf(stderr, "no test's name matches %s\n", pattern);
        return 2;
    }
    if (!n_groups)
        return _cmocka_run_group_tests("tests", units, n, NULL, NULL);
    int failed = 0;
    for (group = groups; group < groups + n_groups; group++)
        failed += _cmocka_run_group_tests("tests", units, n, set_up_group, tear_down_group);
    return failed;
}
