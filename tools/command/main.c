/* SPDX-License-Identifier: MIT */
/* The command: qwenvit SUBCOMMAND ... */
#include "tool.h"

static const struct tool tools[] = {
    { .name = "encode",
      .arguments = "[CLIP...]",
      .does = "Turns clips or images into vision tokens: a safetensors file with tokens [n, out],\n"
              "deepstack.0.., grid_thw and timestamps. With several clips, or --list FILE, OUT is "
              "a folder.",
      .example = "qwenvit encode clip.mp4 --model Qwen3-VL-4B-Instruct -o tokens.safetensors",
      .groups = GROUP_DEVICE | GROUP_WEIGHTS | GROUP_MODEL | GROUP_OUTPUT | GROUP_CLIP |
                GROUP_ENCODE | GROUP_JSON,
      .run = tool_encode,
      .ends_at_once = true },
    { .name = "cache",
      .arguments = "",
      .does = "Turns a list of clips into a folder of vision tokens that anyone can read. Run "
              "again, it goes on\n"
              "where it was ended; with --shard many run at once. --status, --keys, --get KEY and "
              "--check\nread a cache, --prune and --delete KEY remove from it, and --dry-run "
              "estimates a "
              "run.",
      .example = "qwenvit cache --model Qwen3-VL-4B-Instruct --list clips.txt --out tokens",
      .groups = GROUP_DEVICE | GROUP_WEIGHTS | GROUP_MODEL | GROUP_OUTPUT | GROUP_CLIP |
                GROUP_CACHE | GROUP_JSON,
      .run = tool_cache },
    { .name = "info",
      .arguments = "PATH...",
      .does = "Describes a checkpoint folder or a clip, and its cost in tokens, FLOPs, bytes and "
              "memory;\n"
              "also how the patch embedding's Conv3d is run, and why. For a list of clips (--list) "
              "it gives\n"
              "the sums, for a cache's folder what `cache --status` says.",
      .example = "qwenvit info clip.mp4 --model Qwen3-VL-4B-Instruct",
      .groups = GROUP_DEVICE | GROUP_WEIGHTS | GROUP_MODEL | GROUP_CLIP | GROUP_INFO | GROUP_JSON,
      .run = tool_info },
    { .name = "synth",
      .arguments = "",
      .does = "Makes a checkpoint of a config.json's sizes with seeded random weights, in the "
              "legacy 5D\n"
              "layout, for trying and timing without weights.",
      .example = "qwenvit synth --config Qwen3-VL-4B-config -o synthetic",
      .groups = GROUP_SYNTH | GROUP_OUTPUT | GROUP_JSON,
      .run = tool_synth },
    { .name = "verify",
      .arguments = "",
      .does = "Does qwenvit compute what the checkpoint says?\n"
              "By itself it compares qwenvit with qwenvit: the patch embedding with the Conv3d's "
              "seven\n"
              "loops, and the tower in bf16 with itself in f32, layer by layer, run again, and "
              "loaded\n"
              "from other layouts. That finds faults in lowering, rounding and memory; it cannot "
              "find a\n"
              "misreading of the model. --against FILE can: it compares every layer with what "
              "another\n"
              "program computed (tools/reference/layers.py: transformers). --against-backend NAME\n"
              "compares two devices. Exit code 1 names the first row that fails.",
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
