/* SPDX-License-Identifier: MIT */
/* Tests the command's output: names as text, and the progress bar on a terminal; and that a signal
 * ends the command. */

#include "test.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "command/tool.h"
#include "path.h"

#ifndef __APPLE__ /* whose linker cannot wrap */
static qv_job_progress now;

void __wrap_qv_job_get_progress(qv_job *job, qv_job_progress *out);
void
__wrap_qv_job_get_progress(qv_job *job, qv_job_progress *out)
{
    *out = now;
}

/* Returns the fields of a progress record after the given number of 100 clips and of seconds. */
static json_t *
progress_at(struct tool_job_progress *p, int64_t done, double s)
{
    now.done = done;
    now.elapsed_s = s;
    p->recorded_s = 0;
    tool_job_progress_show(p, NULL);
    FILE *f = fopen("progress.json", "r");
    json_t *record = json_loadf(f, 0, NULL);
    assert_non_null(record);
    fclose(f);
    assert_int_equal(unlink("progress.json"), 0);
    json_t *fields = json_incref(json_object_get(record, "progress"));
    json_decref(record);
    return fields;
}

static double
left_at(struct tool_job_progress *p, int64_t done, double s)
{
    json_t *fields = progress_at(p, done, s), *left = json_object_get(fields, "seconds_left");
    const double left_s = json_is_null(left) ? -1 : json_number_value(left);
    json_decref(fields);
    return left_s;
}

/* The time left follows from the rate of recent clips, without the first clip's time. */
TEST(the_time_left_is_by_recent_clips)
{
    const struct tool_results to = { .json = true, .json_file = "progress.json" };
    struct tool_job_progress p;
    now = (qv_job_progress){ .decoders = 1, .devices = 1, .sinks = 1, .limit = "device" };
    tool_job_progress_begin(&p, 100, &to);
    p.shown_s += 1e9; /* no lines, only records */
    assert_true(left_at(&p, 0, 5) == -1);
    assert_true(left_at(&p, 2, 20) == -1); /* the model's first chunk, and two clips in it */
    assert_true(left_at(&p, 12, 25) == 44);
    assert_true(left_at(&p, 22, 30) == 39);
    assert_true(left_at(&p, 30, 42) > 40);
    left_at(&p, 40, 62);
    assert_true(left_at(&p, 50, 82) == 100); /* the quick first ones do not count any more */
}

/* A device that hardly waits is the limit, however busy the decoders are. */
TEST(what_limits_is_what_limits_now)
{
    const struct tool_results to = { .json = true, .json_file = "progress.json" };
    struct tool_job_progress p;
    now = (qv_job_progress){ .decoders = 2, .devices = 1, .sinks = 1, .limit = "decoding" };
    tool_job_progress_begin(&p, 100, &to);
    p.shown_s += 1e9;
    json_decref(progress_at(&p, 1, 10));
    now.decode_s = 20;
    now.device_s = 9.5;
    json_t *fields = progress_at(&p, 11, 20);
    assert_string_equal(json_string_value(json_object_get(fields, "limit")), "device");
    json_decref(fields);
    now.device_s = 8;
    fields = progress_at(&p, 12, 20);
    assert_string_equal(json_string_value(json_object_get(fields, "limit")), "decoding");
    json_decref(fields);
}

#endif

TEST(names_become_text)
{
    static const char *const names[][2] = {
        { "", "" },
        { "plain.mp4", "plain.mp4" },
        { "100%.mp4", "100%.mp4" },
        { "\xc3\xa9\xe2\x82\xac\xf0\x9f\x8e\xac", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x8e\xac" },
        { "\xff", "%FF" },
        { "a\xc3", "a%C3" },                     /* Cut short. */
        { "\xe2\x82z", "%E2%82z" },              /* Cut short by another character. */
        { "\xc0\xaf", "%C0%AF" },                /* Longer than necessary. */
        { "\xed\xa0\x80", "%ED%A0%80" },         /* Half of a surrogate pair. */
        { "\xf4\x90\x80\x80", "%F4%90%80%80" },  /* Beyond the last character. */
        { "\x80\xc3\xa9\xff", "%80\xc3\xa9%FF" } /* Between characters. */
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *text = qv_utf8_text(names[i][0]);
        json_t *json = tool_json_text(names[i][0]);
        assert_string_equal(text, names[i][1]);
        assert_string_equal(json_string_value(json), names[i][1]);
        json_decref(json);
        free(text);
    }
}

/* Terminal controls, characters that reverse text, and bytes that are not UTF-8 become '?', byte by
 * byte. */
TEST(texts_become_printable)
{
    static const char *const texts[][2] = {
        { "", "" },
        { "caf\xc3\xa9 \xf0\x9f\x8e\xac \xe4\xb8\xad ~",
          "caf\xc3\xa9 \xf0\x9f\x8e\xac \xe4\xb8\xad ~" },
        { "\033[2J\a\r\n\x7f", "?[2J????" },
        { "a\xc2\x9b b\xc2\xa0", "a?? b\xc2\xa0" },         /* C1, and the first after them */
        { "\xd8\x9c\xe2\x80\x8f\xe2\x80\xae", "????????" }, /* marks and an override */
        { "\xe2\x80\xa8\xe2\x81\xa6\xe2\x81\xaa", "??????\xe2\x81\xaa" },
        { "\x9b\xff\xe2\x82", "????" },
        { "\xed\xa0\x80.", "???." },
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char text[64];
        snprintf(text, sizeof text, "%s", texts[i][0]);
        qv_make_printable(text);
        assert_string_equal(text, texts[i][1]);
        assert_true(qv_is_printable(text));
        assert_int_equal(qv_is_printable(texts[i][0]), !strcmp(texts[i][0], texts[i][1]));
    }
    json_t *json = json_string("\x1b\x7f\xc2\x9b\xe2\x80\xae\xc3\xa9\n");
    char *line = tool_json_line(json);
    assert_string_equal(line, "\"\\u001B\\u007F\\u009B\\u202E\xc3\xa9\\n\"");
    free(line);
    json_decref(json);
}

/* Red, green and blue are three components, each of which depends on different bits. */
TEST(colours_are_three_components)
{
    enum { N = 64, DIM = 5 };
    static const float lengths[3] = { 9, 4, 1 };
    float tokens[N * DIM];
    uint8_t colours[N * 3];
    for (int i = 0; i < N; i++)
        for (int j = 0; j < DIM; j++) /* Component k varies with bit k, along axis 4 - k. */
            tokens[i * DIM + j] = 3 + (j < 2              ? 0
                                       : i >> (4 - j) & 1 ? 1
                                                          : -1) *
                                          (j < 2 ? 0 : lengths[4 - j]);
    assert_true(tool_drawing_colours(tokens, N, DIM, colours));
    for (int i = 0; i < N; i++)
        for (int k = 0; k < 3; k++) /* Its sign is free. */
            assert_int_equal(colours[i * 3 + k] != colours[k], (i >> k & 1) != 0);
}

/* Collects the output to a terminal that is stderr while `act` runs. */
static void
on_a_terminal(void (*act)(void), char *text, size_t size)
{
    int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    assert_true(terminal >= 0 && !grantpt(terminal) && !unlockpt(terminal));
    int far = open(ptsname(terminal), O_RDWR | O_NOCTTY), before = dup(2);
    assert_true(far >= 0 && before >= 0);
    fflush(stderr);
    dup2(far, 2);
    act();
    fflush(stderr);
    dup2(before, 2);
    assert_int_equal(write(far, "$", 1), 1);
    size_t n = 0;
    while (!n || text[n - 1] != '$') {
        ssize_t got = read(terminal, text + n, size - 1 - n);
        assert_true(got > 0);
        n += (size_t)got;
    }
    text[n - 1] = 0;
    close(far);
    close(terminal);
    close(before);
}

static void
fail_under_the_bar(void)
{
    struct tool_progress p;
    qv_error err = { .text = "clip.mp4: ended" };
    tool_progress_begin(&p, "clip.mp4", 8, false);
    tool_progress_show(&p, 8); /* The end of it is shown at once. */
    tool_fail(QV_EFORMAT, &err);
    tool_complain("once more");
    tool_progress_begin(&p, "other.mp4", 8, false);
    tool_progress_show(&p, 8);
    tool_progress_end(&p, 8);
    tool_complain("the last");
}

static void
quietly(void)
{
    struct tool_progress p;
    tool_progress_begin(&p, "clip.mp4", 8, true);
    tool_progress_show(&p, 8);
    tool_complain("no bar");
}

/* An error's text begins a line, and no line stays empty. */
TEST(errors_end_the_bar)
{
    char text[4096];
    on_a_terminal(fail_under_the_bar, text, sizeof text);
    assert_non_null(strstr(text, "] 8/8 frames"));
    assert_non_null(strstr(text, "\r\033[Kqwenvit: clip.mp4: ended\r\nqwenvit: once more\r\n"));
    assert_non_null(strstr(text, "\r\033[Kqwenvit: the last\r\n"));
    assert_null(strstr(text, "\n\r\n"));
    on_a_terminal(quietly, text, sizeof text);
    assert_string_equal(text, "qwenvit: no bar\r\n");
}

/* Puts the handler of a signal back as a library does that takes it for a while, which loses the
 * handler's flags. */
static int
put_back(const struct tool_options *o)
{
    struct sigaction action;
    sigaction(SIGTERM, NULL, &action);
    action.sa_flags = SA_RESTART;
    sigaction(SIGTERM, &action, NULL);
    raise(SIGTERM);
    return TOOL_DONE;
}

TEST(a_signal_ends_it_whoever_had_its_handler)
{
    static const struct tool tools[] = { { .name = "put-back", .run = put_back } };
    static const struct tool_program program = { "test", "", tools, 1 };
    char name[] = "test", tool[] = "put-back", *arguments[] = { name, tool, NULL };
    const pid_t child = fork();
    if (!child) {
        alarm(5); /* ends the child by another signal */
        signal(SIGTERM, SIG_DFL);
        _exit(tool_main(&program, 2, arguments));
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFSIGNALED(how));
    assert_int_equal(WTERMSIG(how), SIGTERM);
}
