/* SPDX-License-Identifier: MIT */
/* Runs the tests that test.h's macros have named before main began. */
#include "test.h"

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

static int
set_up_each(void **state)
{
    (void)state;
    return each.set_up();
}

static int
tear_down_each(void **state)
{
    (void)state;
    return each.tear_down();
}

static int
set_up_group(void **state)
{
    (void)state;
    return group->set_up();
}

static int
tear_down_group(void **state)
{
    (void)state;
    return group->tear_down();
}

static void
run(void **state)
{
    ((const struct test *)*state)->run();
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
    static struct CMUnitTest units[MOST];
    for (size_t i = 0; i < n_tests; i++)
        units[i] = (struct CMUnitTest){
            .name = tests[i].name,
            .test_func = run,
            .setup_func = each.set_up ? set_up_each : NULL,
            .teardown_func = each.tear_down ? tear_down_each : NULL,
            .initial_state = &tests[i],
        };
    if (!n_groups)
        return _cmocka_run_group_tests("tests", units, n_tests, NULL, NULL);
    int failed = 0;
    for (group = groups; group < groups + n_groups; group++)
        failed += _cmocka_run_group_tests("tests", units, n_tests, set_up_group, tear_down_group);
    return failed;
}
