/* SPDX-License-Identifier: MIT */
/* The program qwenvit-bench, which `qwenvit bench` and `qwenvit profile` start. */
#include "command/tool.h"

static const struct tool tools[] = {
    { .name = "bench",
      .arguments = "[WHAT] [CLIP]",
      .does = "Times this machine: median and 90th percentile, TFLOP/s, GB/s, share of the "
              "measured roofline.\n"
              "WHAT is one of: patch-embed (the device's own Conv3d against the GEMM); conv3d "
              "(every legal\n"
              "lowering); tower (a chunk, or grids packed into chunks, against limit and floor); "
              "gemm (a tower's\n"
              "matrices from 1 row up, also with --weights q4g64, q8g64, q4_0 or q8_0); preprocess "
              "(decoding,\n"
              "resizing and patch rows of CLIP); job (clips to tokens, against decoding, device "
              "and writing\n"
              "alone); cache (one with many keys); start (this command, from the start of the "
              "process to the\n"
              "file of CLIP).",
      .example = "qwenvit bench tower --model synthetic --grid 1,20,38 --dtype bf16",
      .groups = GROUP_DEVICE | GROUP_DEVICES | GROUP_WEIGHTS | GROUP_MODEL | GROUP_OUTPUT |
                GROUP_CLIP | GROUP_BENCH | GROUP_JSON,
      .run = tool_bench },
    { .name = "profile",
      .arguments = "[CLIP]",
      .does = "Shows where the time goes: the time, bytes, FLOPs and share of the roofline of "
              "every layer and\n"
              "operation.",
      .example = "qwenvit profile --model Qwen3-VL-4B-Instruct clip.mp4 --trace trace.json",
      .groups =
          GROUP_DEVICE | GROUP_WEIGHTS | GROUP_MODEL | GROUP_CLIP | GROUP_PROFILE | GROUP_JSON,
      .run = tool_profile },
};

int
main(int argc, char **argv)
{
    static const struct tool_program bench = {
        .name = "qwenvit-bench",
        .about = "what takes how long in the Qwen-VL vision tower",
        .tools = tools,
        .n = sizeof tools / sizeof *tools,
    };
    return tool_main(&bench, argc, argv);
}
