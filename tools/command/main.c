/* SPDX-License-Identifier: MIT */
/* The command: qwenvit SUBCOMMAND ... */
#include "tool.h"

/* The verbs of `qwenvit cache`. */
enum { FILL = GROUP_DEVICE | GROUP_DEVICES | GROUP_MODEL | GROUP_CLIP | GROUP_FILL };

static const struct tool verbs[] = {
    { .name = "cache fill",
      .arguments = "[CLIP...]",
      .does = "Makes a folder of vision tokens from a list, or from clips and folders of clips.\n"
              "Run again, it continues where it stopped. With --shard several processes fill one "
              "cache.\n"
              "--dry-run estimates a run.",
      .needs = "--model -o",
      .example = "qwenvit cache fill --model Qwen3-VL-4B-Instruct --list clips.txt -o tokens",
      .groups = FILL | GROUP_JSON,
      .run = tool_cache_fill },
    { .name = "cache status",
      .does = "Prints what a cache has, and which clips failed and why. With --list FILE it also "
              "counts what\n"
              "is missing or has changed.",
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
      .does = "Reads all tensors and compares their checksums. Exit code 1: some are damaged. With "
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
      .does = "Removes keys from all parts, so that no older record of them comes back",
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
      .does = "Fills a folder with the vision tokens of many clips, reads it, and removes from it",
      .verbs = &cache },
    { .name = "list",
      .arguments = "TAR...",
      .does = "Lists the clips and images in tar files, for --list. Each line says where in which "
              "file one is.\n"
              "A key is the tar file's name without .tar, a slash, and the name in the tar file.",
      .example = "qwenvit list shard-0.tar shard-1.tar > clips.jsonl",
      .run = tool_list },
    { .name = "info",
      .arguments = "[PATH...]",
      .does = "Describes a checkpoint, a clip, a cache, or a safetensors or tar file. It prints "
              "what encoding costs\n"
              "in tokens, FLOPs, bytes and memory, and how the patch embedding's Conv3d is run, "
              "and why. For\n"
              "--list FILE it prints the sums over all clips, for a cache what `cache status` "
              "prints.",
      .example = "qwenvit info clip.mp4 --model Qwen3-VL-4B-Instruct",
      .groups = GROUP_DEVICE | GROUP_MODEL | GROUP_CLIP | GROUP_INFO | GROUP_JSON,
      .run = tool_info },
    { .name = "synth",
      .does = "Makes a checkpoint with random weights, to try and time things without real ones. "
              "It has the\n"
              "sizes of a config.json, and a 5D patch embedding, as in older checkpoints.",
      .example = "qwenvit synth --config Qwen3-VL-4B-config -o synthetic",
      .groups = GROUP_SYNTH | GROUP_OUTPUT | GROUP_JSON,
      .run = tool_synth },
    { .name = "verify",
      .needs = "--model",
      .does =
          "Tests whether qwenvit computes what the checkpoint says.\n"
          "Without --against it compares qwenvit with itself: the patch embedding with the seven "
          "loops of a\n"
          "Conv3d, and the tower in bf16 with the tower in f32, layer by layer, and with a second "
          "run. That\n"
          "finds faults in lowering, rounding and memory, but not a misread model. --against FILE "
          "does: it\n"
          "compares every layer with what another program computed, such as transformers\n"
          "(tools/reference/layers.py). --against-backend NAME compares two devices.\n"
          "Exit code 1: a row fails, and stderr names the first. The columns of the "
          "table:\n" TOOL_VERIFY_LEGEND,
      .example = "qwenvit verify --model Qwen3-VL-4B-Instruct --clip clip.mp4",
      .groups = GROUP_DEVICE | GROUP_MODEL | GROUP_CLIP | GROUP_VERIFY | GROUP_JSON,
      .run = tool_verify },
    { .name = "serve",
      .does = "Answers over HTTP with tokens",
      .elsewhere = "the Python wheel: pip install 'qwenvit[serve]'" },
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
