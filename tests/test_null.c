/* SPDX-License-Identifier: MIT */
/*
 * Calls every public function of clips, jobs, caches and fills with each of its pointers NULL in
 * turn, and with each options struct's reserved fields set. A call that needs the pointer must
 * return QV_EINVAL with a text, or what its header says, and leave what it was given as it was.
 * Each call runs in a process of its own, so that a crash is one line of the report.
 */
#include "test.h"

#include <ctype.h>
#include <signal.h>
#include <sys/wait.h>

#include "cache_tools.h"
#include "qwenvit_clips.h"

/* ---- arguments ------------------------------------------------------------------------------- */

static int null_at;       /* which argument is NULL, from 0; -1: none */
static uint64_t reserved; /* what the reserved fields of structs are */
static unsigned n_args;   /* how many pointers the call has */
static qv_error err;

/* Returns the argument, or NULL in its turn. */
static void *
arg(unsigned i, const void *p)
{
    n_args = i + 1 > n_args ? i + 1 : n_args;
    return (int)i == null_at ? NULL : (void *)(uintptr_t)p;
}

/* Turns the answer of a function without a status into one. */
static qv_status
if_not(bool null_answer)
{
    return null_answer ? QV_EINVAL : QV_OK;
}

/* ---- the table ------------------------------------------------------------------------------- */

enum {
    NO_STATUS = 1 << 8, /* the call cannot fail, and returns for NULL what its header says */
    RESERVED = 1 << 9,  /* it is given a struct with reserved fields */
};
#define BIT(i) (1u << (i)) /* that argument may be NULL; the last, the error, always may */

static struct call {
    const char *name;
    qv_status (*run)(void);
    unsigned flags;
} calls[80];
static size_t n_calls;

static void
add_call(const char *name, qv_status (*run)(void), unsigned flags)
{
    assert_true(n_calls < sizeof calls / sizeof *calls);
    calls[n_calls++] = (struct call){ name, run, flags };
}

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

/* CALL(qv_function, flags) { ... } calls it once, and returns its status. */
#define CALL(name, flags)                                                                          \
    static qv_status JOIN(call_, __LINE__)(void);                                                  \
    TEST_AT_START(add_call(#name, JOIN(call_, __LINE__), flags));                                  \
    static qv_status JOIN(call_, __LINE__)(void)
#define CALL_IS(name, flags, status)                                                               \
    CALL(name, flags)                                                                              \
    {                                                                                              \
        return status;                                                                             \
    }                                                                                              \
    struct test_at_start
/* A function that frees what it is given the address of, and clears it. */
#define CALL_FREES(name, type, made)                                                               \
    CALL(name, NO_STATUS)                                                                          \
    {                                                                                              \
        type *p = (made);                                                                          \
        name(arg(0, &p));                                                                          \
        return if_not(p != NULL);                                                                  \
    }                                                                                              \
    struct test_at_start

/* ---- what the calls work on ------------------------------------------------------------------ */

static const qv_cache_layout tiny = { .dtype = QV_F32, .width = 6, .n_deepstack = 1 };
static qv_context *ctx;
static qv_model *model;
static const char *cache_dir, *new_dir, *image_path;
static uint8_t pixels[64 * 64 * 3];

static qv_cache *
opened(void)
{
    return open_cache(cache_dir);
}

static qv_cache_item
an_item(const qv_cache *c)
{
    qv_cache_item item;
    assert_ok(qv_cache_at(c, 0, &item, ERR));
    return item;
}

static qv_job *
a_job(void)
{
    const qv_job_options o = { .decoders = 1 };
    qv_job *job = NULL;
    assert_ok(qv_job_open(&model, 1, &o, &job, ERR));
    return job;
}

static qv_cache_fill *
a_fill(void)
{
    const qv_cache_fill_options o = { 0 };
    qv_cache_fill *f = NULL;
    assert_ok(qv_cache_fill_open(new_dir, &o, &f, ERR));
    return f;
}

static qv_clip *
a_clip(void)
{
    const qv_clip_options o = { 0 };
    qv_clip *clip = NULL;
    assert_ok(qv_clip_open(image_path, NULL, NULL, &o, &clip, ERR));
    return clip;
}

static const qv_clip_options own = { .fps = 1 };

/* What calls write to. */
static struct {
    char key[QV_CACHE_MAX_KEY + 1], options[QV_CACHE_OPTIONS_BYTES], version[256], *text;
    uint8_t frame[256 * 256 * 3];
    int64_t n[2];
    bool flag;
    qv_cache *cache;
    qv_cache_item item;
    qv_cache_pruned pruned;
    qv_cache_fill *fill;
    qv_job *job;
    qv_clip *clip;
} out;

/* ---- caches ---------------------------------------------------------------------------------- */

CALL_IS(qv_cache_key, 0, qv_cache_key(arg(0, "k"), arg(1, out.key), arg(2, &err)));

CALL_IS(qv_cache_key_hash, NO_STATUS, if_not(!qv_cache_key_hash(arg(0, "k"))));

CALL_IS(qv_cache_exists, NO_STATUS, if_not(!qv_cache_exists(arg(0, cache_dir))));

CALL_IS(qv_cache_open, 0, qv_cache_open(arg(0, cache_dir), arg(1, &out.cache), arg(2, &err)));

CALL_FREES(qv_cache_close, qv_cache, opened());

CALL(qv_cache_get_info, NO_STATUS)
{
    qv_cache_info info = { .n_ok = 7 };
    qv_cache_get_info(arg(0, opened()), arg(1, &info));
    return if_not(info.n_ok == 7 || !info.n_ok);
}

CALL_IS(qv_cache_damage, BIT(1) | NO_STATUS,
        if_not(!qv_cache_damage(arg(0, opened()), 0, arg(1, &out.flag))));
CALL_IS(qv_cache_find, 0,
        qv_cache_find(arg(0, opened()), arg(1, key_name(0)), arg(2, &out.item), arg(3, &err)));
CALL_IS(qv_cache_at, 0, qv_cache_at(arg(0, opened()), 0, arg(1, &out.item), arg(2, &err)));

CALL(qv_cache_hold, 0)
{
    qv_cache *c = opened();
    qv_cache_item item = an_item(c);
    return qv_cache_hold(arg(0, c), arg(1, &item), arg(2, &err));
}

CALL(qv_cache_release, NO_STATUS)
{
    qv_cache *c = opened();
    qv_cache_item item = an_item(c);
    assert_ok(qv_cache_hold(c, &item, ERR));
    qv_cache_release(arg(0, c), arg(1, &item));
    return if_not(item.tokens != NULL);
}

CALL_IS(qv_cache_record, 0, qv_cache_record(arg(0, opened()), 0, arg(1, &out.text), arg(2, &err)));
CALL_IS(qv_cache_verify, 0, qv_cache_verify(arg(0, opened()), 0, arg(1, &err)));

static qv_cache_source
a_source(void)
{
    qv_cache_source s = some_source;
    s.path = arg(3, s.path);
    s.reserved[3] = reserved;
    return s;
}

CALL(qv_cache_compare, NO_STATUS | RESERVED)
{
    const qv_cache_source s = a_source();
    return if_not(qv_cache_compare(arg(0, opened()), arg(1, key_name(0)), arg(2, &s),
                                   QV_CACHE_TRUST_KEYS) == QV_CACHE_MISSING);
}

CALL(qv_cache_prune, RESERVED)
{
    const char *const none[] = { arg(3, "none") }, *const kept[] = { arg(4, key_name(0)) };
    const qv_cache_prune_options o = { .keep = arg(5, kept),
                                       .n_keep = 1,
                                       .drop = arg(6, none),
                                       .n_drop = 1,
                                       .dry_run = true,
                                       .reserved = { [7] = reserved } };
    return qv_cache_prune(arg(0, cache_dir), arg(1, &o), arg(2, &out.pruned), arg(7, &err));
}

/* ---- fills ----------------------------------------------------------------------------------- */

CALL(qv_cache_fill_open, RESERVED)
{
    const qv_cache_fill_options o = { .reserved = { [7] = reserved } };
    return qv_cache_fill_open(arg(0, new_dir), arg(1, &o), arg(2, &out.fill), arg(3, &err));
}

CALL_IS(qv_cache_fill_add, BIT(3) | BIT(4),
        qv_cache_fill_add(arg(0, a_fill()), arg(1, "k"), arg(2, image_path), arg(3, &own),
                          arg(4, &out.flag), arg(5, &err)));

CALL(qv_cache_fill_run, 0)
{
    qv_model *const models[] = { arg(2, model) };
    return qv_cache_fill_run(arg(0, a_fill()), arg(1, models), 1, arg(3, &err));
}

CALL(qv_cache_fill_end, 0)
{
    qv_model *const models[] = { arg(2, model) };
    return qv_cache_fill_end(arg(0, a_fill()), arg(1, models), 1, arg(3, &err));
}

CALL(qv_cache_fill_get_counts, NO_STATUS)
{
    qv_cache_fill_counts counts = { .done = 7 };
    qv_cache_fill_get_counts(arg(0, a_fill()), arg(1, &counts));
    return if_not(null_at >= 0 || counts.done == 7);
}

CALL_FREES(qv_cache_fill_close, qv_cache_fill, a_fill());

/* ---- jobs --------------------------------------------------------------------------- */

CALL(qv_job_open, RESERVED)
{
    qv_model *const models[] = { arg(3, model) };
    const qv_job_options o = { .reserved = { [7] = reserved } };
    return qv_job_open(arg(0, models), 1, arg(1, &o), arg(2, &out.job), arg(4, &err));
}

CALL(qv_job_add, RESERVED)
{
    const qv_job_source s = { .key = "k",
                              .path = arg(2, image_path),
                              .reserved = { [5] = reserved } };
    return qv_job_add(arg(0, a_job()), arg(1, &s), arg(3, &err));
}

CALL_IS(qv_job_end, 0, qv_job_end(arg(0, a_job()), arg(1, &err)));

CALL_IS(qv_job_give_back, NO_STATUS,
        if_not((qv_job_give_back(arg(0, a_job()), NULL, 1), null_at == 0)));
CALL_IS(qv_job_drop, NO_STATUS, if_not((qv_job_drop(arg(0, a_job()), NULL, 1), null_at == 0)));
CALL_IS(qv_job_cancel, NO_STATUS, if_not((qv_job_cancel(arg(0, a_job())), null_at == 0)));

CALL(qv_job_get_progress, NO_STATUS)
{
    qv_job_progress p = { .added = 7 };
    qv_job_get_progress(arg(0, a_job()), arg(1, &p));
    return if_not(null_at >= 0 || p.added == 7);
}

CALL_FREES(qv_job_close, qv_job, a_job());

static qv_job_client *
a_client(void)
{
    static qv_job *job; /* of all clients */
    qv_job_client *client = NULL;
    job = job ? job : a_job();
    assert_ok(qv_job_client_open(job, 0, false, 0, &client, ERR));
    return client;
}

CALL(qv_job_client_open, 0)
{
    qv_job_client *client;
    return qv_job_client_open(arg(0, a_job()), 0, false, 0, arg(1, &client), arg(2, &err));
}

CALL_IS(qv_job_client_cancel, NO_STATUS,
        if_not((qv_job_client_cancel(arg(0, a_client())), null_at == 0)));
CALL_FREES(qv_job_client_close, qv_job_client, a_client());

CALL(qv_job_memory, RESERVED)
{
    qv_model *const models[] = { arg(3, model) };
    const qv_job_options o = { .reserved = { [7] = reserved } };
    return qv_job_memory(arg(0, models), 1, arg(1, &o), arg(2, out.n), arg(4, &err));
}

/* ---- clips ----------------------------------------------------------------------------------- */

CALL(qv_clip_options_set, NO_STATUS)
{
    qv_clip_options o = { .fps = 0 };
    const qv_value value = { .type = QV_VALUE_TEXT, .text = arg(2, "cpu") };
    return if_not(qv_clip_options_set(arg(0, &o), arg(1, "decode"), false, arg(3, &value)) != NULL);
}

/* There is no qwenvit-decoder beside this program, and perhaps no GPU: a call that gets as far as
 * looking for them was not refused. */
static qv_status
unless_alone(qv_status s)
{
    return s == QV_EBACKEND ? QV_OK : s;
}

CALL(qv_decoder_start, BIT(0))
{
    qv_decoder *d = NULL;
    const qv_status status = qv_decoder_start(arg(0, "/bin/true"), arg(1, &d), arg(2, &err));
    qv_decoder_stop(&d);
    return unless_alone(status);
}

static qv_decoder *
a_decoder(void)
{
    qv_decoder *d = NULL;
    assert_ok(qv_decoder_start("/bin/true", &d, ERR));
    return d;
}

CALL_FREES(qv_decoder_stop, qv_decoder, a_decoder());

CALL(qv_clip_open, BIT(1) | BIT(2) | BIT(3) | RESERVED)
{
    const qv_preprocess p = qv_preprocess_default(true);
    const qv_clip_options o = { .reserved = { [2] = reserved } };
    return unless_alone(qv_clip_open(arg(0, image_path), arg(1, &p), arg(2, &p), arg(3, &o),
                                     arg(4, &out.clip), arg(5, &err)));
}

CALL_FREES(qv_clip_close, qv_clip, a_clip());

CALL(qv_clip_get_info, NO_STATUS)
{
    qv_outcome info = { .n_frames = 0 };
    qv_clip_get_info(arg(0, a_clip()), arg(1, &info));
    return if_not(!info.n_frames);
}

CALL(qv_clip_read, BIT(3))
{
    double time_s;
    return qv_clip_read(arg(0, a_clip()), arg(1, out.frame), 1, arg(2, out.n), arg(3, &time_s),
                        arg(4, &err));
}

CALL(qv_smart_resize, 0)
{
    const qv_preprocess p = qv_preprocess_default(true);
    return qv_smart_resize(0, 64, 64, arg(0, &p), arg(1, &out.n[0]), arg(2, &out.n[1]),
                           arg(3, &err));
}

CALL_IS(qv_resize_bicubic, 0,
        qv_resize_bicubic(arg(0, pixels), 64, 64, (int64_t)64 * 3, arg(1, out.frame), 32, 32,
                          arg(2, &err)));

/* ---- running it ------------------------------------------------------------------------------ */

/* Says in `words` how a call went wrong; leaves "" if it did not. */
static void
judge(const struct call *c, bool must_fail, qv_status got, char words[300])
{
    const bool is_status = !(c->flags & NO_STATUS);
    if (must_fail && got != QV_EINVAL)
        snprintf(words, 300, "returned %s", qv_status_name(got));
    else if (!must_fail && got)
        snprintf(words, 300, "returned %s: %.200s", qv_status_name(got), err.text);
    else if (must_fail && is_status && (err.status != QV_EINVAL || !*err.text))
        snprintf(words, 300, "says nothing");
}

/* Has a crash or a failed assertion end this process, where cmocka would go on with its next
 * test. */
static void
fail_alone(void)
{
    static const int signals[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT };
    EACH (c, signals)
        signal(*c, SIG_DFL);
    setenv("CMOCKA_TEST_ABORT", "1", 1);
}

/* Runs a call in a process of its own, and adds to `report` what went wrong. */
static unsigned
try_call(const struct call *c, int which, bool is_reserved, char *report, size_t room)
{
    int ends[2];
    unsigned n = 0;
    char words[300] = "";
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        fail_alone();
        null_at = which;
        reserved = is_reserved;
        n_args = 0;
        err = (qv_error){ QV_OK, "" };
        const qv_status got = c->run();
        const bool last = !(c->flags & NO_STATUS) && which == (int)n_args - 1;
        judge(c, is_reserved || (which >= 0 && !last && !(c->flags & BIT(which))), got, words);
        if (write(ends[1], &n_args, sizeof n_args) < 0 || write(ends[1], words, sizeof words) < 0)
            _exit(2);
        _exit(0);
    }
    int how;
    close(ends[1]);
    if (read(ends[0], &n, sizeof n) != sizeof n ||
        read(ends[0], words, sizeof words) != sizeof words)
        *words = 0;
    close(ends[0]);
    assert_int_equal(waitpid(pid, &how, 0), pid);
    if (how && !*words)
        snprintf(words, sizeof words, "%s %d", WIFSIGNALED(how) ? "ended by signal" : "exit code",
                 WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how));
    if (*words)
        snprintf(report + strlen(report), room - strlen(report), "%s, %s %d: %s\n", c->name,
                 is_reserved ? "reserved" : "NULL", which, words);
    if (!access(new_dir, F_OK))
        remove_folder(new_dir);
    return n;
}

/* A report is longer than a text of cmocka may be. */
static void
expect_nothing(const char *report)
{
    fputs(report, stderr);
    assert_true(!*report);
}

TEST(no_pointer_crashes)
{
    static char report[20000];
    for (size_t i = 0; i < n_calls; i++) {
        const unsigned n = try_call(&calls[i], -1, false, report, sizeof report);
        if (!n && !*report)
            fail_msg("%s has no pointers", calls[i].name);
        for (unsigned which = 0; which < n; which++)
            try_call(&calls[i], (int)which, false, report, sizeof report);
    }
    expect_nothing(report);
}

TEST(reserved_fields_are_zero)
{
    static char report[8000];
    for (size_t i = 0; i < n_calls; i++)
        if (calls[i].flags & RESERVED)
            try_call(&calls[i], -1, true, report, sizeof report);
    expect_nothing(report);
}

/* The table has every function of these headers that is given a pointer. */
TEST(every_function_is_in_the_table)
{
    static const char *const headers[] = { "qwenvit_cache.h", "qwenvit_clips.h" };
    int n = 0;
    EACH (c, headers) {
        char path[600];
        snprintf(path, sizeof path, "%s/%s", QV_INCLUDE, *c);
        for (const char *at = file_text(path); (at = strstr(at, "\nQV_API ")) != NULL; n++) {
            const char *open = strchr(++at, '('), *end = strchr(at, ';'), *name = open;
            while (isalnum((unsigned char)name[-1]) || name[-1] == '_')
                name--;
            bool found = !memchr(open, '*', (size_t)(end - open));
            for (size_t i = 0; i < n_calls && !found; i++)
                found = strlen(calls[i].name) == (size_t)(open - name) &&
                        !strncmp(calls[i].name, name, (size_t)(open - name));
            if (!found)
                fail_msg("%s: %.*s is not in the table", *c, (int)(open - name), name);
        }
    }
    assert_true(n == 46);
}

/* ---- */

static int
set_up(void)
{
    static char folders[3][600];
    char path[600];
    if (tempdir_make() || qv_context_open(&(qv_context_options){ .backend = "ref" }, &ctx, &err) ||
        qv_model_load(ctx, QV_GOLDEN "/qwen3_vl", NULL, &model, &err))
        return -1;
    snprintf(folders[0], sizeof folders[0], "%s", temp_path("cache"));
    snprintf(folders[1], sizeof folders[1], "%s", temp_path("new"));
    cache_dir = folders[0];
    new_dir = folders[1];
    /* two parts of one run, which have a rate, and a damaged one, which is superseded */
    qv_cache_writer *w = open_writer(cache_dir, &tiny, 0);
    write_key(w, &tiny, key_name(0), 3);
    assert_ok(qv_cache_seal(w, ERR));
    struct file part = read_part(cache_dir, path);
    write_key(w, &tiny, key_name(1), 3);
    close_writer(&w);
    snprintf(path, sizeof path, "%s/part-cut-000.safetensors", cache_dir);
    put_file(path, part.data, part.bytes - 1);
    char ppm[64 + sizeof pixels];
    const int n = snprintf(ppm, 64, "P6\n64 64\n255\n");
    memset(ppm + n, 'm', sizeof pixels);
    snprintf(folders[2], sizeof folders[2], "%s",
             temp_file("a.ppm", ppm, (size_t)n + sizeof pixels));
    image_path = folders[2];
    return 0;
}

static int
tear_down(void)
{
    qv_model_free(&model);
    qv_context_close(&ctx);
    return tempdir_remove();
}

TEST_GROUP(set_up, tear_down);
