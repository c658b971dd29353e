/* SPDX-License-Identifier: MIT */
/* qwenvit SUBCOMMAND ... */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "commit.h"
#include "tool.h"
#include "files/atomic_file.h"

static const struct tool tools[] = {
    { "encode", "[CLIP...]",
      "Turns clips or images into vision tokens: a safetensors file with tokens [n, out],\n"
      "deepstack.0.., grid_thw and timestamps. With several clips, or --list FILE, OUT is a "
      "folder.",
      "qwenvit encode clip.mp4 --model Qwen3-VL-4B-Instruct -o tokens.safetensors",
      GROUP_DEVICE | GROUP_MODEL | GROUP_OUTPUT | GROUP_CLIP | GROUP_ENCODE | GROUP_JSON,
      tool_encode },
    { "cache", "",
      "Turns a list of clips into a folder of vision tokens that anyone can read. Run again, it "
      "goes on\n"
      "where it was ended; with --shard many run at once. Also: --status, --get KEY, --check.",
      "qwenvit cache --model Qwen3-VL-4B-Instruct --list clips.txt --out tokens",
      GROUP_DEVICE | GROUP_MODEL | GROUP_OUTPUT | GROUP_CLIP | GROUP_CACHE | GROUP_JSON,
      tool_cache },
    { "info", "PATH...",
      "What a checkpoint folder or a clip is, and what it will cost: tokens, FLOPs, bytes, "
      "memory,\n"
      "how the patch embedding's Conv3d is run, and why.",
      "qwenvit info clip.mp4 --model Qwen3-VL-4B-Instruct",
      GROUP_DEVICE | GROUP_MODEL | GROUP_CLIP | GROUP_INFO | GROUP_JSON, tool_info },
    { "synth", "",
      "Makes a checkpoint of a config.json's sizes with seeded random weights, in the legacy 5D\n"
      "layout, for trying and timing without weights.",
      "qwenvit synth --config Qwen3-VL-4B-config -o synthetic",
      GROUP_SYNTH | GROUP_OUTPUT | GROUP_JSON, tool_synth },
    { "verify", "",
      "Does qwenvit compute what the checkpoint says?\n"
      "By itself it compares qwenvit with qwenvit: the patch embedding with the Conv3d's seven\n"
      "loops, and the tower in bf16 with itself in f32, layer by layer, run again, and loaded\n"
      "from other layouts. That finds faults in lowering, rounding and memory; it cannot find a\n"
      "misreading of the model. --against FILE can: it compares every layer with what another\n"
      "program computed (tools/reference/layers.py: transformers). --against-backend NAME\n"
      "compares two devices. Exit code 1 names the first row that fails.",
      "qwenvit verify --model Qwen3-VL-4B-Instruct --clip clip.mp4",
      GROUP_DEVICE | GROUP_MODEL | GROUP_CLIP | GROUP_VERIFY | GROUP_JSON, tool_verify },
    { "bench", "patch-embed|conv3d|tower|gemm|preprocess [CLIP]|job|cache|start [CLIP]",
      "Times this machine: median and 90th percentile, TFLOP/s, GB/s, share of the measured "
      "roofline.\n"
      "patch-embed: the library's own Conv3d against the GEMM. conv3d: every legal lowering.\n"
      "tower: a chunk, or a list of grids packed into chunks, against limit and floor.\n"
      "gemm: the projections from 1 row up. preprocess: decoding, resizing, patch rows.\n"
      "job: clips to tokens, against decoding, device and writing alone. cache: of many keys.\n"
      "start: this command, from the process's start to the clip's file.",
      "qwenvit bench tower --model synthetic --grid 1,20,38 --dtype bf16",
      GROUP_DEVICE | GROUP_MODEL | GROUP_OUTPUT | GROUP_BENCH | GROUP_JSON, tool_bench },
    { "profile", "[CLIP]",
      "Where the time goes: every layer and operation with its time, bytes, FLOPs and share of the "
      "roofline.",
      "qwenvit profile --model Qwen3-VL-4B-Instruct clip.mp4 --trace trace.json",
      GROUP_DEVICE | GROUP_MODEL | GROUP_CLIP | GROUP_PROFILE | GROUP_JSON, tool_profile },
};
enum { N_TOOLS = sizeof tools / sizeof *tools };

static void
print_usage(FILE *to)
{
    fprintf(to,
            "qwenvit %s: the Qwen-VL vision tower, from clips to tokens\n\n"
            "usage: qwenvit SUBCOMMAND ...\n\n",
            qv_version());
    for (const struct tool *t = tools; t < tools + N_TOOLS; t++)
        fprintf(to, "  %-8s %.*s\n", t->name, (int)strcspn(t->does, ":.\n"), t->does);
    fprintf(to, "\nqwenvit SUBCOMMAND --help says more.\n"
                "exit codes: 0 done; 1 a check or part of the work failed; 2 wrong usage; 3 bad "
                "input;\n4 device or environment\n");
}

/* What this is, and what of it runs here. */
static void
print_version(void)
{
    static const char *const backends[] = { "cpu", "cuda", "metal" };
    printf("qwenvit %s\n  commit   %s\n  API      %d.%d\n  FFmpeg   %s\n", qv_version(), QV_COMMIT,
           QV_API_VERSION_MAJOR, QV_API_VERSION_MINOR, qv_ffmpeg_version());
    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++) {
        const qv_context_options options = { .backend = backends[i] };
        qv_context *context = NULL;
        qv_context_info info = { 0 };
        qv_error err;
        const bool is_here = !qv_context_open(&options, &context, &err);
        if (is_here)
            qv_context_get_info(context, &info);
        printf("  %-8s %s\n", backends[i], is_here ? info.device : err.text);
        qv_context_close(&context);
    }
}

/* Started once, before the first clip, if any argument may be a clip (a folder is a checkpoint). A
 * failure is not reported here: opening a clip then says why. */
static void
start_decoder(const struct tool *tool, struct tool_options *o)
{
    o->clip.threads = (int)(o->decode_threads < 1 << 10 ? o->decode_threads : 1 << 10);
    bool clips = o->verify_clip != NULL || (o->list != NULL && !o->cache_status);
    for (size_t i = 0; i < o->n_arguments; i++)
        clips = clips || !tool_is_folder(o->arguments[i]);
    if (tool->groups & GROUP_CLIP && clips && !o->clip.trusted)
        qv_decoder_start(NULL, &o->clip.decoder, NULL);
}

/* ---- signals --------------------------------------------------------------------------------- */

static pid_t self; /* a forked child has the handler too, and must not remove our files */

/* Removes unfinished files and ends the process by the same signal, so that a shell's loop sees
 * it. */
static void
on_signal(int number)
{
    static const char text[] = "\nqwenvit: interrupted: unfinished output was removed\n";
    if (getpid() == self && qv_atomic_files_remove()) {
        size_t from = tool_bar_is_shown() ? 0 : 1;
        ssize_t ignored = write(STDERR_FILENO, text + from, sizeof text - 1 - from);
        (void)ignored;
    }
    raise(number); /* SA_RESETHAND removed the handler: this ends the process on return */
}

static void
catch_signals(void)
{
    static const int numbers[] = { SIGINT, SIGTERM, SIGHUP, SIGPIPE };
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND }, before;
    self = getpid();
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!sigaction(numbers[i], NULL, &before) && before.sa_handler != SIG_IGN) /* nohup */
            sigaction(numbers[i], &action, NULL);
    signal(SIGXFSZ, SIG_IGN); /* then write() says that a file is too large */
}

/* Printed text may still be in the buffer, so an error of writing it can show up only here. */
static int
close_stdout(int code)
{
    const bool lost = fflush(stdout) || ferror(stdout);
    if (lost)
        tool_complain("standard output cannot be written: %s", strerror(errno));
    return lost && !code ? TOOL_BAD_INPUT : code;
}

/* One clip's tokens are written: the libraries' own ends, of which CUDA's take long, are not waited
 * for, as the system takes back all the same. Other subcommands have them: profilers write there what
 * they saw; and so do builds with the address sanitizer, which looks for leaks there. */
static int
end(const struct tool *tool, int code)
{
#ifndef __SANITIZE_ADDRESS__
    if (tool->run == tool_encode)
        _exit(code);
#endif
    (void)tool;
    return code;
}

int
main(int argc, char **argv)
{
    if (argc > 1 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))) {
        print_usage(stdout);
        return TOOL_DONE;
    }
    if (argc > 1 && !strcmp(argv[1], "--version")) {
        print_version();
        return close_stdout(TOOL_DONE);
    }
    const struct tool *tool = NULL;
    for (int i = 0; argc > 1 && i < N_TOOLS; i++)
        if (!strcmp(argv[1], tools[i].name))
            tool = &tools[i];
    if (!tool) {
        if (argc > 1)
            tool_complain("no subcommand %s", argv[1]);
        print_usage(stderr);
        return TOOL_USAGE;
    }
    catch_signals();
    struct tool_options o;
    bool help = false;
    int code = tool_parse(tool, argc - 2, argv + 2, &o, &help);
    if (help)
        tool_print_help(tool);
    else if (!code) {
        start_decoder(tool, &o);
        code = tool->run(&o);
        qv_decoder_stop(&o.clip.decoder);
    }
    free(o.arguments);
    return end(tool, close_stdout(code));
}
