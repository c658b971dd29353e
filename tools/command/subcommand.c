/* SPDX-License-Identifier: MIT */
/* Runs the subcommand that the command line names, in this program or in another one next to it. */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clips/decoders.h"
#include "clips/option_list.h"
#include "commit.h"
#include "tool.h"
#include "files/atomic_file.h"
#include "files/installed.h"

static void
print_usage(const struct tool_program *p, FILE *to)
{
    fprintf(to, "%s %s: %s\n\nusage: %s SUBCOMMAND ...\n\n", p->name, qv_version(), p->about,
            p->name);
    for (const struct tool *t = p->tools; t < p->tools + p->n; t++)
        fprintf(to, "  %-11s %.*s\n", tool_word(t), (int)strcspn(t->does, ":.\n"), t->does);
    fprintf(
        to,
        "\n%s SUBCOMMAND --help lists its options.\n"
        "exit codes: 0 done; 1 a check or part of the work failed; 2 wrong usage; 3 bad input;\n"
        "4 the device or the environment failed\n",
        p->name);
}

/* Reports an unknown name and suggests the closest one. */
static void
complain_of(const struct tool_program *p, const char *name)
{
    const struct tool *best = NULL;
    size_t least = strlen(name) < 3 ? strlen(name) : 3;
    for (const struct tool *t = p->tools; t < p->tools + p->n && least; t++)
        if (!strncmp(tool_word(t), name, strlen(name))) {
            best = t;
            least = 0;
        } else if (tool_is_nearer(name, tool_word(t), &least))
            best = t;
    if (best)
        tool_complain("unknown subcommand %s; did you mean %s?", name, tool_word(best));
    else
        tool_complain("unknown subcommand %s", name);
}

/* Prints the version, all but the first line of the decoder program's version, and the backends
 * that work here. */
static void
print_version(const struct tool_program *p)
{
    static const char *const backends[] = { "cpu", "cuda", "metal" };
    char decoder[256];
    qv_error why;
    tool_print("%s %s\n", p->name, qv_version());
    tool_print("  commit   %s\n", QV_COMMIT);
    tool_print("  API      %d.%d\n", QV_API_VERSION_MAJOR, QV_API_VERSION_MINOR);
    if (qv_decoder_version(tool_decoder_program(), decoder, &why))
        snprintf(decoder, sizeof decoder, "\n  FFmpeg   %.200s", why.text);
    for (const char *line = decoder; *(line += strcspn(line, "\n"));)
        if (*++line)
            tool_print("%.*s\n", (int)strcspn(line, "\n"), line);
    tool_print("  serve    decodes " QV_USUAL_CODECS " and image codecs; with --all-codecs, "
               "every codec that qwenvit decodes\n");
    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++) {
        const qv_context_options options = { .backend = backends[i] };
        qv_context *context = NULL;
        qv_context_info info = { 0 };
        qv_error err;
        const bool is_here = !qv_context_open(&options, &context, &err);
        if (is_here)
            qv_context_get_info(context, &info);
        tool_print("  %-8s %s\n", backends[i], is_here ? info.device : err.text);
        qv_context_close(&context);
    }
}

/* Checks that the clip options are consistent, and starts the decoder once, before the first clip
 * and before any output, unless `info` is given only folders, which are not clips. `info` also
 * reads other files, so a missing decoder is not reported here but when a clip is opened. */
static qv_status
start_decoder(const struct tool *tool, struct tool_options *o, qv_error *err)
{
    const char *program = tool_decoder_program(), *names[TOOL_MOST_NAMED];
    const bool info = tool->groups & GROUP_INFO;
    bool clips = tool_named_files(o, TOOL_CLIPS, names) > 0;
    for (size_t i = 0; i < o->n_arguments; i++)
        clips = clips || !info || !tool_is_folder(o->arguments[i]);
    o->clip.threads = o->clip.threads < 1 << 10 ? o->clip.threads : 1 << 10;
    qv_status status = qvm_check_options(tool->name, true, &o->clip, err);
    if (status)
        return status;
    o->clip.gpu = (int)(o->devices[0] < 1 << 10 ? o->devices[0] : 1 << 10);
    status = clips ? qv_decoder_start(program, &o->clip.decoder, err) : QV_OK;
    if (status && (program || !info))
        return status;
    return o->clip.decode == QV_DECODE_GPU && o->clip.decoder
               ? qv_decoder_gpu(o->clip.decoder, o->clip.gpu, true, err)
               : QV_OK;
}

/* ---- signals --------------------------------------------------------------------------------- */

static pid_t self; /* a forked child inherits the handler, but must not remove our files */
static volatile sig_atomic_t is_deferred, caught;

static bool catch_signal(int number);

/* Removes unfinished files and ends the process by the same signal, so that a shell's loop stops
 * too. If the subcommand has deferred signals, the first one is only recorded. */
static void
on_signal(int number)
{
    static const char text[] = "\nqwenvit: interrupted: unfinished output was removed\n";
    if (getpid() == self && is_deferred && !caught && number != SIGPIPE) {
        caught = number;
        catch_signal(number);
        return;
    }
    if (getpid() == self && qv_atomic_files_remove()) {
        size_t from = tool_bar_is_shown() ? 0 : 1;
        ssize_t ignored = write(STDERR_FILENO, text + from, sizeof text - 1 - from);
        (void)ignored;
    }
    signal(number, SIG_DFL); /* a library may have reinstalled the handler without SA_RESETHAND */
    raise(number);           /* this ends the process on return */
}

static bool
catch_signal(int number)
{
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND };
    sigemptyset(&action.sa_mask);
    return !sigaction(number, &action, NULL);
}

static void
catch_signals(void)
{
    static const int numbers[] = { SIGINT, SIGTERM, SIGHUP, SIGPIPE };
    struct sigaction before;
    self = getpid();
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        /* nohup ignores SIGHUP */
        if (!sigaction(numbers[i], NULL, &before) && before.sa_handler != SIG_IGN)
            catch_signal(numbers[i]);
    signal(SIGXFSZ, SIG_IGN); /* so that write() reports a file that is too large */
}

void
tool_signals_defer(void)
{
    is_deferred = 1;
}

int
tool_signals_caught(void)
{
    return caught;
}

void
tool_signals_obey(void)
{
    if (caught) { /* so that a shell's loop stops too */
        signal(caught, SIG_DFL);
        raise(caught);
    }
}

/* Flushes stdout: an error in writing buffered text shows up only here. */
static int
close_stdout(int code)
{
    errno = 0; /* stays 0 if an earlier write failed: its errno is lost */
    const bool lost = fflush(stdout) || ferror(stdout);
    if (lost)
        tool_complain("cannot write to standard output%s%s", errno ? ": " : "",
                      errno ? strerror(errno) : "");
    return lost && !code ? TOOL_BAD_INPUT : code;
}

/* Ends the process. After encode it ends at once, without the exit handlers of libraries, since
 * CUDA's are slow: the tokens are written, and the system frees everything. Other subcommands run
 * the handlers, because profilers write their results there, and so do builds with the address
 * sanitizer, which checks for leaks there. */
static int
end(const struct tool *tool, int code)
{
#ifndef __SANITIZE_ADDRESS__
    if (tool->ends_at_once)
        _exit(code);
#endif
    (void)tool;
    return code;
}

/* Replaces this process with the program that implements the subcommand. Returns only on failure,
 * which it reports. */
static int
become(const struct tool *tool, char **argv)
{
    char path[PATH_MAX];
    if (!qv_find_installed(tool->program, ".", ".", X_OK, path, sizeof path))
        tool_complain("%s: needs the program %s, which is not next to this one: %s", tool->name,
                      tool->program, path);
    else {
        argv[0] = path;
        execv(path, argv);
        tool_complain("%s: %s cannot be started: %s", tool->name, path, strerror(errno));
    }
    return TOOL_DEVICE;
}

/* Reports a missing verb and suggests one: the one that an option is named after, else the
 * first. */
static int
refuse_without_verb(const struct tool_program *p, char **argv)
{
    const struct tool *tool = p->tools;
    char text[TOOL_USAGE_BYTES];
    for (size_t i = 0; argv[i]; i++)
        for (const struct tool *t = p->tools; t < p->tools + p->n; t++)
            if (!strncmp(argv[i], "--", 2) && !strcmp(argv[i] + 2, tool_word(t)))
                tool = t;
    tool_complain("%s needs a subcommand before its options: %s (%s --help)", p->name,
                  tool_usage(tool, text), p->name);
    return TOOL_USAGE;
}

static int
run(const struct tool *tool, int argc, char **argv)
{
    struct tool_options o;
    const char *help = NULL;
    int code = tool_parse(tool, argc, argv, &o, &help);
    if (help)
        tool_print_help(tool, help);
    else if (!code) {
        qv_error err;
        qv_status status = tool_check_named_outputs(&o, &err);
        if (!status && tool->groups & GROUP_CLIP)
            status = start_decoder(tool, &o, &err);
        code = status ? tool_fail(status, &err) : tool->run(&o);
        qv_decoder_stop(&o.clip.decoder);
    }
    free(o.arguments);
    return end(tool, close_stdout(code));
}

int
tool_main(const struct tool_program *p, int argc, char **argv)
{
    const char *first = argc > 1 ? argv[1] : "";
    const bool help = !strcmp(first, "help"), version = !strcmp(first, "--version");
    const bool usage = !strcmp(first, "--help") || !strcmp(first, "-h") || (help && argc < 3);
    const bool bash = help && argc > 2 && !strcmp(argv[2], "--bash");
    if (usage)
        print_usage(p, stdout);
    if (bash)
        tool_print_completion(p);
    if (version)
        print_version(p);
    if (usage || bash || version)
        return close_stdout(TOOL_DONE);
    if (help) { /* `help encode` is `encode --help` */
        static char asked[] = "--help";
        argv[1] = argv[2];
        argv[2] = asked;
        return tool_main(p, 3, argv);
    }
    const struct tool *tool = NULL;
    for (size_t i = 0; i < p->n; i++)
        if (!strcmp(first, tool_word(&p->tools[i])))
            tool = &p->tools[i];
    if (!tool) {
        if (strchr(p->name, ' ') && *first == '-')
            return refuse_without_verb(p, argv + 1);
        if (argc > 1)
            complain_of(p, first);
        print_usage(p, stderr);
        return TOOL_USAGE;
    }
    if (tool->elsewhere) {
        tool_complain("%s: not part of this program; it is in %s", tool->name, tool->elsewhere);
        return TOOL_DEVICE;
    }
    if (tool->program)
        return become(tool, argv);
    if (tool->verbs)
        return tool_main(tool->verbs, argc - 1, argv + 1);
    catch_signals();
    return run(tool, argc - 2, argv + 2);
}
