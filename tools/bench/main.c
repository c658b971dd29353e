/* SPDX-License-Identifier: MIT */
/* The program qwenvit-bench, which `qwenvit bench` and `qwenvit profile` start. */
#include "command/tool.h"

static const struct tool tools[] = {
    { .name = "bench",
      .arguments = "patch-embed|conv3d|tower|gemm|preprocess [CLIP]|job|cache|packing|start [CLIP]",
      .does =
          "Times this machine: median and 90th percentile, TFLOP/s, GB/s, share of the measured "
          "roofline.\n"
          "patch-embed: the library's own Conv3d against the GEMM. conv3d: every legal "
          "lowering.\n"
          "tower: a chunk, or a list of grids packed into chunks, against limit and floor.\n"
          "gemm: the projections from 1 row up. preprocess: decoding, resizing, patch rows.\n"
          "job: clips to tokens, against decoding, device and writing alone. cache: of many "
          "keys.\n"
          "packing: frame pairs in chunks against whole clips in them, and jobs of frames.\n"
          "start: this command, from the process's start to the clip's file.",
      .example = "qwenvit bench tower --model synthetic --grid 1,20,38 --dtype bf16",
      .groups = GROUP_DEVICE | GROUP_WEIGHTS | GROUP_MODEL | GROUP_OUTPUT | GROUP_CLIP |
                GROUP_BENCH | GROUP_JSON,
      .run = tool_bench },
    { .name = "profile",
      .arguments = "[CLIP]",
      .does =
          "Shows where the time goes: every layer and operation with its time, bytes, FLOPs and "
          "share of the roofline.",
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
