/* SPDX-License-Identifier: MIT */
/*
 * qwenvit bench start: times the command beside this program as users start it, from the process's
 * start to its end: encoding one short clip to its file, and `info` of the checkpoint. Each has a
 * cache folder of its own, which is empty the first time, so the first time is reported apart.
 */
#define _GNU_SOURCE /* for environ */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"
#include "error.h"
#include "files/installed.h"
#include "files/json.h"

extern char **environ;

enum { MOST_ARGUMENTS = 32, NUMBER_BYTES = 24 };
enum { ENCODE, INFO, N_WAYS };
static const char *const names[N_WAYS] = { [ENCODE] = "encode", [INFO] = "info" };

/* One command to time. */
struct start_way {
    const char *program, *name, *cache;
    const char *arguments[MOST_ARGUMENTS]; /* ends with NULL */
    int n;
    double first_ms; /* 0: it was not run yet */
};

struct start_bench {
    struct bench *b;
    char program[PATH_MAX];
    char *clip, *work, *tokens, *caches[N_WAYS]; /* clip and work are files in -o, unless the user
                                                  * gave the clip */
    char device[NUMBER_BYTES], threads[NUMBER_BYTES];
    struct start_way ways[N_WAYS];
};

/* ---- commands -------------------------------------------------------------------------------- */

static void
add(struct start_way *w, const char *option, const char *value)
{
    w->arguments[w->n++] = option;
    if (value)
        w->arguments[w->n++] = value;
}

/* Passes on the device options of this command. */
static void
add_device(struct start_bench *t, struct start_way *w)
{
    const struct tool_options *o = t->b->o;
    const struct {
        const char *name, *value;
    } options[] = {
        { "--backend", o->backend },
        { "--dtype", o->dtype ? qv_dtype_name(o->dtype) : NULL },
        { "--device", o->device ? t->device : NULL },
        { "--threads", o->threads ? t->threads : NULL },
        { "--tune-file", o->tune_file },
        { "--naive", o->naive },
    };
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (options[i].value)
            add(w, options[i].name, options[i].value);
    if (o->tf32)
        add(w, "--tf32", NULL);
}

static void
name_commands(struct start_bench *t)
{
    const struct tool_options *o = t->b->o;
    for (int i = 0; i < N_WAYS; i++) {
        struct start_way *w = &t->ways[i];
        *w = (struct start_way){ .program = t->program, .name = names[i], .cache = t->caches[i] };
        add(w, "qwenvit", names[i]);
        add(w, i == ENCODE ? t->clip : o->model, NULL);
        if (i == ENCODE) {
            add(w, "--model", o->model);
            add(w, "-o", t->tokens);
            add(w, "--quiet", NULL);
            add(w, "--decode", qv_decode_name(o->clip.decode));
        }
        add_device(t, w);
    }
}

/* Starts the command. Its output is discarded, and its messages go where this command's go. */
static int
spawn(const struct start_way *w, pid_t *pid)
{
    posix_spawn_file_actions_t actions;
    int code = posix_spawn_file_actions_init(&actions);
    if (code)
        return code;
    code = posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    if (!code) /* it takes char *const [], but changes nothing */
        code = posix_spawn(pid, w->program, &actions, NULL, (char *const *)w->arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    return code;
}

/* This bench_work times a process from its start to its end. */
static qv_status
run_command(void *user, double *ms, qv_error *err)
{
    struct start_way *w = user;
    char what[400];
    pid_t pid = 0, ended;
    int how = 0;
    if (setenv("XDG_CACHE_HOME", w->cache, 1))
        return qv_fail(err, QV_ENOMEM, "no memory for the environment");
    const double began_s = qv_seconds();
    const int code = spawn(w, &pid);
    if (code)
        return qv_fail(err, QV_EBACKEND, "%s cannot be started: %s", w->program, strerror(code));
    do
        ended = waitpid(pid, &how, 0);
    while (ended < 0 && errno == EINTR);
    *ms = 1e3 * (qv_seconds() - began_s);
    if (!w->first_ms)
        w->first_ms = *ms;
    if (ended < 0 || !WIFEXITED(how))
        return qv_fail(err, QV_EBACKEND, "%s did not end by itself", w->name);
    snprintf(what, sizeof what, "%s %s", w->name, qv_path_tail(w->arguments[2]));
    return bench_ended(what, WEXITSTATUS(how), err);
}

/* ---- files ----------------------------------------------------------------------------------- */

static qv_status
open_files(struct start_bench *t, qv_error *err)
{
    const char *folder = t->b->o->output, *given = *t->b->o->arguments;
    qv_status s = bench_open_folder(folder, &t->work, err);
    if (s)
        return s;
    t->clip = given ? strdup(given) : qv_path_join(folder, "clip.mp4");
    t->tokens = qv_path_join(t->work, "tokens.safetensors");
    bool ok = t->clip && t->tokens;
    for (int i = 0; i < N_WAYS; i++)
        ok = (t->caches[i] = qv_path_join(t->work, names[i])) != NULL && ok;
    if (!ok)
        return qv_fail(err, QV_ENOMEM, "%s: no memory for a path", folder);
    for (int i = 0; i < N_WAYS; i++)
        if (mkdir(t->caches[i], 0777))
            return qv_fail(err, QV_EIO, "%s: cannot be made: %s", t->caches[i], strerror(errno));
    if (!qv_find_installed("qwenvit", ".", ".", X_OK, t->program, sizeof t->program))
        return qv_fail(err, QV_EBACKEND, "there is no qwenvit beside this program: %s", t->program);
    snprintf(t->device, sizeof t->device, "%lld", (long long)t->b->o->device);
    snprintf(t->threads, sizeof t->threads, "%lld", (long long)t->b->o->threads);
    return given || qv_path_exists(t->clip) ? QV_OK
                                            : tool_make_clip(t->clip, &tool_clip_shape, err);
}

/* ---- reporting ------------------------------------------------------------------------------- */

static qv_status
report(struct start_bench *t, const struct start_way *w, struct bench_times times, qv_error *err)
{
    char model[100], clip[100], work[230];
    const char *decode = qv_decode_name(t->b->o->clip.decode);
    snprintf(work, sizeof work, "%s, %s%s", bench_base_name(t->b->o->model, model, sizeof model),
             bench_base_name(t->clip, clip, sizeof clip),
             t->b->o->clip.decode == QV_DECODE_GPU ? ", by the GPU" : "");
    const struct bench_record r = { .work = work,
                                    .way = w->name,
                                    .dtype = t->b->o->dtype ? t->b->o->dtype : t->b->info.dtype,
                                    .times = times,
                                    .show = "first_ms",
                                    .extras = json_pack("{s:f, s:s}", "first_ms", w->first_ms,
                                                        "decode", decode) };
    return bench_report(t->b, &r, err);
}

static qv_status
run_all(struct start_bench *t, qv_error *err)
{
    struct bench_run runs[N_WAYS];
    qv_status s = open_files(t, err);
    if (s)
        return s;
    name_commands(t);
    for (int i = 0; i < N_WAYS; i++)
        runs[i] = (struct bench_run){ .work = run_command, .user = &t->ways[i] };
    s = bench_time(t->b, runs, N_WAYS, err);
    if (!s) /* opened only now: an open device would be awake during the timing */
        s = bench_open(t->b, err);
    for (int i = 0; i < N_WAYS && !s; i++)
        s = report(t, &t->ways[i], runs[i].times, err);
    return s;
}

qv_status
bench_start(struct bench *b, qv_error *err)
{
    struct start_bench t = { .b = b };
    const qv_status s = run_all(&t, err);
    bench_close_folder(&t.work);
    free(t.clip);
    free(t.tokens);
    for (int i = 0; i < N_WAYS; i++)
        free(t.caches[i]);
    return s;
}
