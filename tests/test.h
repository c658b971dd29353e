/* SPDX-License-Identifier: MIT */
/* Unit tests on cmocka: TEST(name) { ... } is a test, and the program runs all tests of its file in
 * their order (test.c has main). Include this file first. */
#pragma once

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TEST(name)                                                                                 \
    static void name(void);                                                                        \
    TEST_AT_START(test_add(#name, name, __LINE__));                                                \
    static void name(void)

/* Functions called before and after each test, and around all tests; 0 is success. With several
 * TEST_GROUP, all tests run once with each. */
#define TEST_EACH(set_up, tear_down) TEST_AT_START(test_each(set_up, tear_down))
#define TEST_GROUP(set_up, tear_down) TEST_AT_START(test_group(set_up, tear_down))

/* TEST_MAIN(argc, argv) { ... } runs first. It returns the program's exit status, or TEST_GO_ON,
 * and then the tests run. */
#define TEST_MAIN(argc, argv)                                                                      \
    static int test_main_first(int argc, char **argv);                                             \
    TEST_AT_START(test_main(test_main_first));                                                     \
    static int test_main_first(int argc, char **argv)

enum { TEST_GO_ON = -1 };

void test_add(const char *name, void (*run)(void), int line);
void test_each(int (*set_up)(void), int (*tear_down)(void));
void test_group(int (*set_up)(void), int (*tear_down)(void));
void test_main(int (*first)(int argc, char **argv));

/* The declaration at the end takes the semicolon. */
#define TEST_AT_START(call) TEST_AT_START_(call, __LINE__)
#define TEST_AT_START_(call, line) TEST_AT_START__(call, line)
#define TEST_AT_START__(call, line)                                                                \
    __attribute__((constructor)) static void test_at_start_##line(void)                            \
    {                                                                                              \
        call;                                                                                      \
    }                                                                                              \
    struct test_at_start

/* Fails with the error's text unless the call, with ERR as its error, returns QV_OK. */
#define ERR (&test_error)
#define assert_ok(call)                                                                            \
    do {                                                                                           \
        qv_error test_error = { 0 };                                                               \
        if (call)                                                                                  \
            fail_msg("%s", test_error.text);                                                       \
    } while (0)

/* Calls end(what) when the test has passed, in reverse order; objects of a group's set-up are ended
 * with the group. Returns `what`, which must not be NULL. */
void *test_ends(void *what, void (*end)(void *));
/* Ends it now. */
void test_end(void *what);
/* Memory that stays valid until the end of the test. */
#define test_alloc(bytes) test_ends(malloc(bytes), free)

#define LENGTH(array) (sizeof(array) / sizeof *(array))
/* EACH(one, array) { ... } runs with `one` pointing to each element of the array. */
#define EACH(one, array)                                                                           \
    for (const __typeof__(*(array)) *one = (array); one < (array) + LENGTH(array); one++)

/* FNV-1a over some bytes, or over more of them. */
#define TEST_HASH UINT64_C(0xcbf29ce484222325)
static inline uint64_t
test_hash(uint64_t hash, const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ p[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static inline void
expect_words(const char *text, const char *words)
{
    if (!strstr(text, words))
        fail_msg("\"%s\" does not contain \"%s\"", text, words);
}

/* The next number of the sequence that starts at *seed; its upper bits look random. */
static inline uint32_t
test_random(uint32_t *seed)
{
    return *seed = *seed * 1664525 + 1013904223;
}
