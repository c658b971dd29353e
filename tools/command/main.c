/* SPDX-License-Identifier: MIT */
/* The command: qwenvit SUBCOMMAND ... */
#include "tool.h"

/* The verbs of `qwenvit cache`. */
enum { FILL = GROUP_DEVICE | GROUP_DEVICES | GROUP_MODEL | GROUP_CLIP | GROUP_FILL };

static const struct tool verbs[] = {
    { .name = "cache fill",
      .arguments = "[CLIP...]",
      .does =
          "Makes a folder of vision tokens from a list, or from clips and folders of clips.\n"
          "When run again, it continues where it stopped. With --shard, several processes fill one "
          "cache.\n"
          "--dry-run only estimates the run.",
      .needs = "--model -o",
      .example = "qwenvit cache fill --model Qwen3-VL-4B-Instruct --list clips.txt -o tokens",
      .groups = FILL | GROUP_JSON,
      .run = tool_cache_fill },
    { .name = "cache status",
      .does =
          "Prints what a cache contains, and which clips failed and why. With --list FILE it also\n"
          "counts the list's missing and changed clips.",
      .example = "qwenvit cache status tokens --list clips.txt",
      .groups = GROUP_CACHE | GROUP_STATUS | GROUP_RESULT,
      .run = tool_cache_status },
    { .name = "cache keys",
      .does = "Lists the keys that have tokens, one per line. With --json it prints all records.",
      .example = "qwenvit cache keys tokens",
      .groups = GROUP_CACHE | GROUP_RESULT,
      .run = tool_cache_keys },
    { .name = "cache get",
      .does = "Writes a key's tensors to a safetensors file, as encode does",
      .needs = "-o",
      .example = "qwenvit cache get tokens clip.mp4 -o clip.safetensors",
      .groups = GROUP_CACHE | GROUP_KEY | GROUP_OUTPUT,
      .run = tool_cache_get },
    { .name = "cache check",
      .does = "Reads all tensors and verifies their checksums. Exit code 1: some are damaged. With "
              "--repair it\n"
              "removes the damaged keys, and the next run encodes them again.",
      .example = "qwenvit cache check tokens",
      .groups = GROUP_CACHE | GROUP_CHECK | GROUP_JSON,
      .run = tool_cache_check },
    { .name = "cache prune",
      .does = "Removes superseded records and damaged parts. With --list FILE it also removes all "
              "keys that are\n"
              "not in the list.",
      .example = "qwenvit cache prune tokens --dry-run",
      .groups = GROUP_CACHE | GROUP_REMOVE | GROUP_PRUNE | GROUP_JSON,
      .run = tool_cache_prune },
    { .name = "cache delete",
      .arguments = "KEY...",
      .does = "Removes keys from all parts, so that no older record of a key reappears",
      .example = "qwenvit cache delete tokens clip.mp4 image.png",
      .groups = GROUP_CACHE | GROUP_REMOVE | GROUP_JSON,
      .run = tool_cache_delete },
};
static const struct tool_program cache = { .name = "qwenvit cache",
                                           .about = "a folder of vision tokens",
                                           .tools = verbs,
                                           .n = sizeof verbs / sizeof *verbs };

static const struct tool tools[] = {
    { .name = "encode",
      .arguments = "[CLIP...]",
      .does = "Turns clips or images into vision tokens. Each becomes a safetensors file with "
              "tokens [n, out],\n"
              "deepstack.0.., grid_thw and timestamps. With several clips, a folder of clips, or "
              "--list FILE,\n"
              "OUT is a folder.",
      .needs = "--model -o",
      .example = "qwenvit encode clip.mp4 --model Qwen3-VL-4B-Instruct -o tokens.safetensors",
      .groups = GROUP_DEVICE | GROUP_DEVICES | GROUP_MODEL | GROUP_OUTPUT | GROUP_CLIP |
                GROUP_ENCODE | GROUP_JSON,
      .run = tool_encode,
      .ends_at_once = true },
    { .name = "cache",
      .does = "Fills, reads and cleans up a folder with the vision tokens of many clips",
      .verbs = &cache },
    { .name = "list",
      .arguments = "TAR...",
      .does =
          "Lists the clips and images in tar files, for --list. Each line locates one of them.\n"
          "Its key is the tar file's name without .tar, a slash, and the name in the tar file.",
      .example = "qwenvit list shard-0.tar shard-1.tar > clips.jsonl",
      .groups = GROUP_LIST,
      .run = tool_list },
    { .name = "info",
      .arguments = "[PATH...]",
      .does = "Describes a checkpoint, a clip, a cache, or a safetensors or tar file. It prints "
              "what encoding costs\n"
              "in tokens, FLOPs, bytes and memory, and how the patch embedding's Conv3d is run, "
              "and why. For\n"
              "--list FILE it prints the totals over all clips; for a cache, the same as `cache "
              "status`.",
      .example = "qwenvit info clip.mp4 --model Qwen3-VL-4B-Instruct",
      .groups = GROUP_DEVICE | GROUP_MODEL | GROUP_CLIP | GROUP_INFO | GROUP_JSON,
      .run = tool_info },
    { .name = "synth",
      .does =
          "Makes a checkpoint with random weights, for tests and timing without real weights. Its "
          "sizes are\n"
          "those of a config.json, and its patch embedding is 5D, as in older checkpoints.",
      .example = "qwenvit synth --config Qwen3-VL-4B-config -o synthetic",
      .groups = GROUP_SYNTH | GROUP_OUTPUT | GROUP_JSON,
      .run = tool_synth },
    { .name = "verify",
      .needs = "--model",
      .does =
          "Checks that qwenvit computes the checkpoint's model correctly.\n"
          "Without --against it compares qwenvit with itself: the patch embedding with the seven "
          "loops of a\n"
          "Conv3d, and the tower in bf16 with the tower in f32, layer by layer, and with a second "
          "run. This\n"
          "finds faults in lowering, rounding and memory, but not a misread model. --against FILE "
          "finds those\n"
          "too: it compares every layer with another program's, such as transformers'\n"
          "(tools/reference/layers.py). --against-backend NAME compares two devices.\n"
          "Exit code 1: a row fails; stderr names the first one. The columns of the "
          "table:\n" TOOL_VERIFY_LEGEND,
      .example = "qwenvit verify --model Qwen3-VL-4B-Instruct --clip clip.mp4",
      .groups = GROUP_DEVICE | GROUP_MODEL | GROUP_CLIP | GROUP_VERIFY | GROUP_JSON,
      .run = tool_verify },
    { .name = "serve",
      .does = "Serves tokens over HTTP",
      .elsewhere = "the Python wheel: pip install 'qwenvit[serve]'" },
    { .name = "bench", .does = "Times this machine", .program = "qwenvit-bench" },
    { .name = "profile", .does = "Shows where time is spent", .program = "qwenvit-bench" },
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
