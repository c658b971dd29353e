/* SPDX-License-Identifier: MIT */
/* The command: qwenvit SUBCOMMAND ... */
#include "tool.h"

static const struct tool tools[] = {
    { .name = "encode",
      .arguments = "[CLIP...]",
      .does = "Turns clips or images into vision tokens. Each becomes a safetensors file with "
              "tokens [n, out],\n"
              "deepstack.0.., grid_thw and timestamps. With several clips, or --list FILE, OUT is "
              "a folder.",
      .example = "qwenvit encode clip.mp4 --model Qwen3-VL-4B-Instruct -o tokens.safetensors",
      .groups = GROUP_DEVICE | GROUP_WEIGHTS | GROUP_MODEL | GROUP_OUTPUT | GROUP_CLIP |
                GROUP_ENCODE | GROUP_JSON,
      .run = tool_encode,
      .ends_at_once = true },
    { .name = "cache",
      .does = "Turns a list of clips into a folder of vision tokens that anyone can read. Run "
              "again, it continues\n"
              "where it was ended; with --shard several processes fill one cache. --status, "
              "--keys, --get KEY and\n"
              "--check read a cache, --prune and --delete KEY remove from it, and --dry-run "
              "estimates a run.",
      .example = "qwenvit cache --model Qwen3-VL-4B-Instruct --list clips.txt --out tokens",
      .groups = GROUP_DEVICE | GROUP_WEIGHTS | GROUP_MODEL | GROUP_OUTPUT | GROUP_CLIP |
                GROUP_CACHE | GROUP_JSON,
      .run = tool_cache },
    { .name = "info",
      .arguments = "PATH...",
      .does = "Describes a checkpoint, a clip or a cache. It prints what encoding costs in tokens, "
              "FLOPs, bytes\n"
              "and memory, and how the patch embedding's Conv3d is run, and why. For --list FILE "
              "it prints the\n"
              "sums over the clips, for a cache's folder what `cache --status` prints.",
      .example = "qwenvit info clip.mp4 --model Qwen3-VL-4B-Instruct",
      .groups = GROUP_DEVICE | GROUP_WEIGHTS | GROUP_MODEL | GROUP_CLIP | GROUP_INFO | GROUP_JSON,
      .run = tool_info },
    { .name = "synth",
      .does = "Makes a checkpoint with random weights. It has the sizes of a config.json and the "
              "older layout,\n"
              "with a 5D patch embedding. It is for trying and timing without real weights.",
      .example = "qwenvit synth --config Qwen3-VL-4B-config -o synthetic",
      .groups = GROUP_SYNTH | GROUP_OUTPUT | GROUP_JSON,
      .run = tool_synth },
    { .name = "verify",
      .does =
          "Tests whether qwenvit computes what the checkpoint says.\n"
          "Without --against it compares qwenvit with itself: the patch embedding with the seven "
          "loops of a\n"
          "Conv3d, and the tower in bf16 with the tower in f32, layer by layer, once more, and "
          "loaded from\n"
          "other layouts. That finds faults in lowering, rounding and memory, but no "
          "misreading of the model.\n"
          "--against FILE finds that too: it compares every layer with what another program "
          "computed, such as\n"
          "transformers (tools/reference/layers.py). --against-backend NAME compares two "
          "devices. Exit code 1\n"
          "names the first row that fails.",
      .example = "qwenvit verify --model Qwen3-VL-4B-Instruct --clip clip.mp4",
      .groups = GROUP_DEVICE | GROUP_WEIGHTS | GROUP_MODEL | GROUP_CLIP | GROUP_VERIFY | GROUP_JSON,
      .run = tool_verify },
    { .name = "bench", .does = "Times this machine", .program = "qwenvit-bench" },
    { .name = "profile", .does = "Shows where the time goes", .program = "qwenvit-bench" },
};

int
main(int argc, char **argv)
{
    static const struct tool_program qwenvit = {
        .name = "qwenvit",
        .about = "the Qwen-VL vision tower, from clips to tokens",
        .tools = tools,
        .n = sizeof tools / sizeof *tools,
    };
    return tool_main(&qwenvit, argc, argv);
}
