/* SPDX-License-Identifier: MIT */
/* The program qwenvit-bench, which `qwenvit bench` and `qwenvit profile` start. */
#include <string.h>

#include "bench.h"

static const char *const legend[] = {
    "A table has one line per way to do the work; --json writes each line as a record.",
    "",
    "  median, p90       of --repeats runs or more, after a warm-up, by the device's clock",
    "  roof %            the least time that the roofline allows, as a share of the time. The",
    "                    roofline is measured first: the best GEMM, and reading or copying",
    "  withheld          an impossible figure, typical of a machine in use by other programs",
    "",
    "tower",
    "  encode, packed    the device's work on the chunks of --grid or --pack",
    "  whole call        from pixels to tokens in page-locked memory, one chunk at a time",
    "  streamed          the same, with as many chunks in progress as the plan allows",
    "  limit             the same GEMMs without epilogues, and the same attention, nothing else",
    "  floor             the limit plus the bytes of all other operations at the copy rate",
    "  fill              share of the chunks' rows that are used",
    "",
    "patch-embed, conv3d",
    "  patchify, still, pointwise, frames, by depth, direct: the lowerings (docs/devices.md)",
    "  chosen            the lowering that qwenvit runs here",
    "  patchify from bytes  the first operations of the tower: positions, rows, the GEMM",
    "  over_floor        its time over the GEMM alone plus the other bytes at the copy rate",
    "",
    "gemm",
    "  over_m1           the time over the time for one row",
    "  over_copy         the time over copying the weights, from memory, not from a cache",
};

static void
print_legend(void)
{
    for (size_t i = 0; i < sizeof legend / sizeof *legend; i++)
        tool_print("%s\n", legend[i]);
}

static int
run(const struct tool_options *o, const char *name, bench_function *bench)
{
    struct bench b = { .o = o, .name = name, .began_s = qv_seconds() };
    qv_error err = { 0 };
    if (o->n_arguments > 1) {
        tool_complain("%s: accepts at most one clip", name);
        return TOOL_USAGE;
    }
    const qv_status status = bench(&b, &err);
    bench_close(&b);
    const int code = status ? tool_fail(status, &err) : TOOL_DONE;
    if (o->legend && !code) {
        tool_print("\n");
        print_legend();
    }
    return code;
}

#define BENCH(id, name)                                                                            \
    static int run_##id(const struct tool_options *o)                                              \
    {                                                                                              \
        return run(o, name, bench_##id);                                                           \
    }
BENCH(tower, "tower")
BENCH(patch_embed, "patch-embed")
BENCH(conv3d, "conv3d")
BENCH(gemm, "gemm")
BENCH(profile, "profile")

enum { DEVICE = GROUP_DEVICE | GROUP_JSON | GROUP_BENCH };
static const struct tool benches[] = {
    { .name = "bench tower",
      .does = "Times a tower on one grid, or on the grids of --pack, next to its limit and floor.",
      .needs = "--model",
      .example = "qwenvit bench tower --model synthetic --grid 1,20,38 --dtype bf16",
      .groups = DEVICE | GROUP_MODEL | GROUP_TOWER,
      .run = run_tower },
    { .name = "bench patch-embed",
      .does = "Times a tower's patch embedding as it runs, as a GEMM and as the library's own "
              "Conv3d.",
      .needs = "--model",
      .example = "qwenvit bench patch-embed --model synthetic --rows 760",
      .groups = DEVICE | GROUP_MODEL | GROUP_EMBED,
      .run = run_patch_embed },
    { .name = "bench conv3d",
      .does = "Times every legal lowering of each convolution in a list.",
      .example = "qwenvit bench conv3d --shapes tools/shapes/vae.txt",
      .groups = DEVICE | GROUP_CONV3D,
      .run = run_conv3d },
    { .name = "bench gemm",
      .does = "Times a tower's matrices, or one of --shape, from one row up.",
      .example = "qwenvit bench gemm --shape 5120,13824 --weights q4g64",
      .groups = DEVICE | GROUP_MODEL | GROUP_GEMM,
      .run = run_gemm },
};

static const struct tool_program bench = { .name = "qwenvit bench",
                                           .about = "times this machine; --legend explains tables",
                                           .tools = benches,
                                           .n = sizeof benches / sizeof *benches };

static const struct tool tools[] = {
    { .name = "bench", .does = "Times this machine", .verbs = &bench },
    { .name = "profile",
      .arguments = "[CLIP]",
      .does = "Shows where time is spent: the time, bytes, FLOPs and share of the roofline of "
              "every layer and\noperation of a chunk, with random pixels.",
      .needs = "--model",
      .example = "qwenvit profile --model Qwen3-VL-4B-Instruct clip.mp4",
      .groups = GROUP_DEVICE | GROUP_MODEL | GROUP_CLIP | GROUP_PROFILE | GROUP_JSON,
      .run = run_profile },
};

int
main(int argc, char **argv)
{
    static const struct tool_program program = {
        .name = "qwenvit-bench",
        .about = "timing the Qwen-VL vision tower",
        .tools = tools,
        .n = sizeof tools / sizeof *tools,
    };
    if (argc > 2 && !strcmp(argv[1], "bench") && !strcmp(argv[2], "--legend")) {
        print_legend();
        return TOOL_DONE;
    }
    return tool_main(&program, argc, argv);
}
