# SPDX-License-Identifier: MIT
"""The words of the pages of measurements: machines, sections, terms. tables.py puts tables among them."""
from typing import Callable, NamedTuple

from record_tables import (SMALL_M, actors_table, alone_table, by_gpu_table, cache_table, call_table, conv3d_table,
                           gemm_table, job_table, pack_table, patch_embed_table, preprocess_table,
                           profile_table, python_table, start_table, stored_table, tower_table)


class Machine(NamedTuple):
    page: str  # below docs/
    short: str  # in a table
    title: str
    words: str
    here: Callable[[str], bool]  # whether measured.place() of a record is this machine


H200 = Machine("measured-h200", "one H200", "Measured on an NVIDIA H200",
               "One NVIDIA H200 with 16 cores of its host; sections that use two say so.",
               lambda where: where.startswith("NVIDIA H200"))
CPU16 = Machine("measured-cpu16", "16 cores with AMX", "Measured on 16 cores of a CPU",
                "16 cores of the host of an H200, without its GPU: a CPU as servers have it.",
                lambda where: where.endswith(", 16 threads"))
CPU2 = Machine("measured-2threads", "2 threads", "Measured on 2 threads",
               "Two threads of CPUs that developers and CI have. They show which kernel is slow, and say little about servers.",
               lambda where: where.endswith(", 2 threads"))
MACHINES = [H200, CPU16, CPU2]

PLOTS = {
    "roofline": "What was timed, below the measured roofline",
    "profile": "Where the time of a tower goes",
    "towers": "Towers beside transformers and compiled torch",
    "embed": "Patch embedding as a GEMM and as Conv3d",
    "fill": "How full chunks are",
    "stages": "A job's stages: what works, what waits",
    "rows": "Times over rows by weights that stay packed",
}

FRONT = ("<!-- page: not run: minutes each, and beside torch -->\n\n"
         "How fast is qwenvit, and how close to transformers? This page has the figures that matter most, and the terms. Each machine has a page with all "
         "of its figures: [an H200](measured-h200.md), [16 cores of its host](measured-cpu16.md), and [2 threads](measured-2threads.md), which "
         "are for developers. [measured-agreement.md](measured-agreement.md) says how far tokens are from transformers', and "
         "[found.md](found.md) what was learned on the way. Compare times within a row only, because machines and days differ. `tools/tables.py` makes "
         "every figure from the records in `docs/measurements`; `sh tools/docs.sh` makes all pages and pictures.")

TERMS = """## Terms
| term | is |
|---|---|
| patch | a square of 14 or 16 pixels of two frames in a row (a frame pair); 6,080 patches are 16 frames of 608x320 for Qwen3-VL |
| tower of Qwen3-VL-4B .. | the vision part of that model, with seeded random weights of its sizes; times do not depend on the weights' values |
| chunk | the patches that are computed at once. Its capacity is the number of rows that it has room for, a row a patch. Capacities come in steps, which are called buckets |
| list, pack | clips and images of many sizes. A pack is such a list laid into chunks; "full" is the part of the chunks' rows that hold patches |
| qwenvit, ms | the device's work, from pixels in its memory to tokens in its memory. "Whole call" is from the host's memory to the host's memory; "in a stream" is the same with the next chunk pushed before the last one is pulled |
| limit, floor | the least time that the same libraries need. The limit is the time of the GEMMs and the attention alone, each layer with its own weights. The floor adds the time to move the bytes of all other operations at the measured copy rate |
| transformers | the fastest of transformers' ways that need no other package: as shipped, with torch's attention (sdpa) in a loop over segments, and the same with its linear patch embedding, which is off by default. Its ways with the package flash-attn were not timed |
| compiled torch | `torch.compile` in its best mode (reduce-overhead in all records of an H200) on transformers' layers with a linear patch embedding, and torch's varlen attention where segments differ |
| tuned | with `--tune`, kernels were chosen by timing them on that machine. Figures that do not say "tuned" were made without |
| roofline | the least time that the measured peak rates of GEMMs and of memory allow |

A row compares what was timed on one machine and, from 0.3.0 on, on one day; records of earlier versions have no day. Two rows of the same
tower may differ in transformers' time: if a tower has little work, or many segments (the windows of Qwen2.5-VL), transformers is as fast as Python can
launch kernels, which depends on one core of the host, and hosts of the same GPU differ in that. Calls, Python,
jobs, starts and caches are timed by the host's clock, and work on a device by events on the device."""

AGREEMENT = {
    "page": "How far tokens are from those of transformers, and from qwenvit's own in other ways. Distances are per token: the length of "
            "the difference over the length of the token.",
    "parity": "Tokens against transformers in f32 on the same weights, rounded to bf16: the largest distance over all clips, tokens and "
              "DeepStack outputs. For bf16 it is also divided by transformers' own bf16 distance; the ratio must stay below 1.05.",
    "against": "Every layer of the tower against transformers' layer, from a file that `tools/reference/layers.py` writes.",
    "verify": "The lowered model against itself. The ideal bf16 tower is the f32 one with every operation's output rounded to bf16 once.",
}

# heading, what and how, one command that repeats it, what makes the table, the plot beside it
SECTIONS = [
    ("Towers",
     "A chunk of frame pairs from pixels to tokens. The first table compares it with transformers and compiled torch, the second "
     "with the least time that the same libraries need.",
     "qwenvit bench tower --model DIR --grid 8,20,38 --json=FILE.jsonl && "
     "python tools/peers/peers.py tower --model DIR --grid 8,20,38 --json FILE.jsonl",
     tower_table, "towers"),
    ("Weights that stay packed",
     "A chunk of a tower whose matrices stay quantised on the device, over the same tower with its matrices widened to bf16 when it is "
     "loaded. Both run alternately in one process, since a tower's time moves by some percent from process to process.",
     "qwenvit bench tower --model QUANTISED --weights stored --grid 8,20,38 --json=FILE.jsonl", stored_table, None),
    ("Lists of many sizes",
     "Clips and images of many sizes, packed into chunks as a job packs them: the whole list, its work on the device. "
     "transformers and torch take the whole list in one call. Making the plan is done once in a process.",
     "qwenvit bench tower --model DIR --pack LIST --chunk-rows N --json=FILE.jsonl && "
     "python tools/peers/peers.py tower --model DIR --pack LIST --json FILE.jsonl",
     pack_table, "fill"),
    ("Each alone",
     "Each item of a list by itself, in the bucket that it takes, against a plan of its very size.",
     "qwenvit bench tower --model DIR --pack LIST --alone --json=FILE.jsonl", alone_table, None),
    ("Jobs",
     "Clips in files to tokens, beside each stage alone in the same run. The time of a job is divided by that of its slowest "
     "stage, and by the sum of its stages.",
     "qwenvit bench job --model DIR -o FOLDER --decode cpu --json=FILE.jsonl", job_table, "stages"),
    ("Decoding by a GPU",
     "Clips that a GPU's decoders decode: in the bare loop by NVIDIA's own library, in one process and the tower's context; as they are decoded "
     "for jobs, in processes that are locked in; and jobs whose tokens are discarded, with the clips decoded by the cores alone, and with --decode gpu or auto. Clips have at most "
     "3,686,400 pixels, and 6,800 patches; only the 32 clips keep whole frames, so that the tower takes longest. The "
     "cores' time is that of all processes, and so is the memory: the sum of each one's most, with what they share counted in each. Then a chunk of the tower while clips are decoded beside it in so many processes of so "
     "many streams each, or in the tower's own context (\"own\").",
     "qwenvit bench job --model DIR -o FOLDER --from CLIPS --decode auto --json=FILE.jsonl", by_gpu_table, None),
    ("Start",
     "One short clip to its file, and `info` of the checkpoint, from the process's start to its end; the first time is with an "
     "empty folder of kept kernels.",
     "qwenvit bench start --model DIR -o FOLDER --json=FILE.jsonl", start_table, None),
    ("Calls",
     "The same chunk by the host's clock, from a caller's pixels to a caller's tokens, divided by its work on the device in the same run. "
     "A whole call and a streamed one have frames in bytes and tokens in the model's dtype, both in page-locked memory; each "
     "column after them changes one thing. A device call has pixel_values and tokens that lie on the device.",
     "qwenvit bench tower --model DIR --grid 8,20,38 --json=FILE.jsonl", call_table, None),
    ("From Python",
     "The tower called on data that lies on the device, until the device is done, medians of interleaved rounds by the host's "
     "clock. Compiled torch is in the mode reduce-overhead here. `qwenvit.patch` and `Model.forward` are set beside `qv_encode` on "
     "the same pointers: what Python adds, and when the host goes on.",
     "python python/bench/patched.py --model DIR --device cuda --library libqwenvit.so "
     "--json FILE.jsonl", python_table, None),
    ("Actors",
     "The same clips by one actor of `qwenvit.ray.Encoder`, and by one a device: by Ray, or by as many processes fed from one "
     "queue. The clock runs from when all have loaded to the last batch.",
     "python python/bench/actors.py --model DIR --clip FILE --devices 0,1 --json FILE.jsonl",
     actors_table, None),
    ("Patch embedding",
     "Rows of one frame pair's pixels through the Conv3d of the checkpoint: as a GEMM, which qwenvit picks; through the same "
     "library's own Conv3d; through torch's. The bare GEMM is without the bias. The floor of the GEMM from bytes is the bare GEMM, "
     "and reading bytes and writing rows at the copy rate.",
     "qwenvit bench patch-embed --model DIR --json=FILE.jsonl && "
     "python tools/peers/peers.py patch-embed --model DIR --json FILE.jsonl",
     patch_embed_table, "embed"),
    ("Conv3d",
     "Convolutions by every lowering that is legal for them ([conv3d.md](conv3d.md)): the one that is chosen over the fastest. "
     "torch's best is the fastest of two memory formats and of 2D convolutions, one for each depth tap, summed.",
     "qwenvit bench conv3d --shapes SHAPES --json=FILE.jsonl && "
     "python tools/peers/peers.py conv3d --shapes SHAPES --json FILE.jsonl",
     conv3d_table, None),
    ("Few rows",
     f"The tower's projections with 1 to {SMALL_M} rows. The worst step is the largest ratio of the times of two neighbouring "
     "numbers of rows: there a library changes its kernel.",
     "qwenvit bench gemm --model DIR --json=FILE.jsonl\n"
     "    qwenvit bench gemm --weights q4g64 --shape 5120,13824 --json=FILE.jsonl   # a quantised matrix by itself; also q8g64, q4_0, q8_0\n"
     "    python3 tools/plot.py rows FILE.jsonl -o OUT.png                          # time over rows, beside copying the packed weight",
     gemm_table, "rows"),
    ("Preprocessing",
     "Resizing a frame, making its patch rows, and decoding and resizing a whole clip.",
     "qwenvit bench preprocess CLIP --json=FILE.jsonl", preprocess_table, None),
    ("Caches",
     "A cache of so many keys, its files in memory: `qwenvit cache` that finds all of a list there, with the model that it opens; "
     "opening the folder; a random key, to its first byte.",
     "qwenvit bench cache --model DIR -o FOLDER --json=FILE.jsonl", cache_table, None),
    ("Where the time goes",
     "Every operation of one chunk, timed alone and summed by kind. The share of the roofline is the least time that the "
     "measured roofline allows, over the time taken.",
     "qwenvit profile --model DIR --json=FILE.jsonl", profile_table, "profile"),
    ("The roofline",
     "Arithmetic intensity against speed: the roofline is the best GEMM and the best rate at which memory was read or copied in "
     "these runs.",
     "sh tools/docs.sh", None, "roofline"),
]
