/* SPDX-License-Identifier: MIT */
/*
 * qwenvit bench start: times `encode` of one short clip by the command beside this program as users
 * start it, from the process's start to its end. It has a cache folder of its own, which is empty
 * the first time, so the first time is reported apart.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"
#include "error.h"
#include "files/installed.h"
#include "files/json.h"

extern char **environ;

enum { MOST_ARGUMENTS = 32, NUMBER_BYTES = 24 };

struct start_bench {
    struct bench *b;
    char program[PATH_MAX];
    char *clip, *work, *tokens; /* the clip is in -o, unless the user gave one */
    char device[NUMBER_BYTES], threads[NUMBER_BYTES];
    const char *arguments[MOST_ARGUMENTS]; /* ends with NULL */
    double first_ms;                       /* 0: it was not run yet */
};

/* Writes the command, with the options of the device of this one. */
static void
write_command(struct start_bench *t)
{
    const struct tool_options *o = t->b->o;
    const char *const options[][2] = {
        { "qwenvit", "encode" },
        { t->clip, "--quiet" },
        { "--model", o->model },
        { "-o", t->tokens },
        { "--decode", qv_decode_name(o->clip.decode) },
        { "--backend", o->backend },
        { "--dtype", o->dtype ? qv_dtype_name(o->dtype) : NULL },
        { "--device", o->device ? t->device : NULL },
        { "--threads", o->threads ? t->threads : NULL },
        { "--naive", o->naive },
    };
    int n = 0;
    snprintf(t->device, sizeof t->device, "%lld", (long long)o->device);
    snprintf(t->threads, sizeof t->threads, "%lld", (long long)o->threads);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        for (int j = 0; j < 2 && options[i][1]; j++)
            t->arguments[n++] = options[i][j];
    if (o->tf32)
        t->arguments[n] = "--tf32";
}

/* Starts the command. Its output is discarded, and its messages go where this command's go. */
static int
spawn(const struct start_bench *t, pid_t *pid)
{
    posix_spawn_file_actions_t actions;
    int code = posix_spawn_file_actions_init(&actions);
    if (code)
        return code;
    code = posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    if (!code) /* it takes char *const [], but changes nothing */
        code = posix_spawn(pid, t->program, &actions, NULL, (char *const *)t->arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    return code;
}

static qv_status
run_command(void *user, double *ms, qv_error *err)
{
    struct start_bench *t = user;
    char what[400];
    pid_t pid = 0, ended;
    int how = 0;
    if (setenv("XDG_CACHE_HOME", t->work, 1))
        return qv_fail(err, QV_ENOMEM, "no memory for the environment");
    const double began_s = qv_seconds();
    const int code = spawn(t, &pid);
    if (code)
        return qv_fail(err, QV_EBACKEND, "%s cannot be started: %s", t->program, strerror(code));
    do
        ended = waitpid(pid, &how, 0);
    while (ended < 0 && errno == EINTR);
    *ms = 1e3 * (qv_seconds() - began_s);
    if (!t->first_ms)
        t->first_ms = *ms;
    if (ended < 0 || !WIFEXITED(how))
        return qv_fail(err, QV_EBACKEND, "encode did not end by itself");
    snprintf(what, sizeof what, "encode %s", t->clip);
    return bench_ended(what, WEXITSTATUS(how), err);
}

static qv_status
open_files(struct start_bench *t, qv_error *err)
{
    const char *folder = t->b->o->output, *given = *t->b->o->arguments;
    const qv_status s = bench_open_folder(folder, &t->work, err);
    if (s)
        return s;
    t->clip = given ? strdup(given) : qv_path_join(folder, "clip.mp4");
    t->tokens = qv_path_join(t->work, "tokens.safetensors");
    if (!t->clip || !t->tokens)
        return qv_fail(err, QV_ENOMEM, "%s: no memory for a path", folder);
    if (!qv_find_installed("qwenvit", ".", ".", X_OK, t->program, sizeof t->program))
        return qv_fail(err, QV_EBACKEND, "no qwenvit next to this program: %s", t->program);
    return given || qv_path_exists(t->clip) ? QV_OK
                                            : tool_make_clip(t->clip, &tool_clip_shape, err);
}

static qv_status
report(struct start_bench *t, struct bench_times times, qv_error *err)
{
    char model[100], clip[100], work[230];
    const char *decode = qv_decode_name(t->b->o->clip.decode);
    snprintf(work, sizeof work, "%s, %s%s", bench_base_name(t->b->o->model, model, sizeof model),
             bench_base_name(t->clip, clip, sizeof clip),
             t->b->o->clip.decode == QV_DECODE_GPU ? ", by the GPU" : "");
    const struct bench_record r = { .work = work,
                                    .way = "encode",
                                    .dtype = bench_dtype(t->b),
                                    .times = times,
                                    .show = "first_ms",
                                    .extras =
                                        tool_json("first_ms:f decode:s", t->first_ms, decode) };
    return bench_report(t->b, &r, err);
}

qv_status
bench_start(struct bench *b, qv_error *err)
{
    struct start_bench t = { .b = b };
    struct bench_run run = { .work = run_command, .user = &t };
    qv_status s = open_files(&t, err);
    if (!s) {
        write_command(&t);
        s = bench_time(b, &run, 1, err);
    }
    if (!s) /* opened only now: an open device would be awake during the timing */
        s = bench_open(b, err);
    if (!s)
        s = report(&t, run.times, err);
    bench_close_folder(&t.work);
    free(t.clip);
    free(t.tokens);
    return s;
}
