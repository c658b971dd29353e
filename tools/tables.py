#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes docs/measurements.md and the tables of README.md and docs/gguf.md from the files in docs/measurements.

measured.py says what the files hold, and record_tables.py makes the tables. No number is typed by
hand; a table without records is left out. Usage: tables.py, from anywhere.
"""
import argparse
import glob
import os

import gguf_tables
from measured import (OTHER_KINDS, TOWERS, fastest, first_word, groups, load, read_records,
                      record_versions)
from record_tables import (SMALL_M, actors_table, against_table, alone_table, bold, cache_table,
                           call_table, conv3d_tables, encode_table, gemm_table, job_table, ms,
                           over, pack_table, parity_table, patch_embed_table, preprocess_table,
                           profile_table, python_table, speed_tables, start_table, table,
                           tower_table, verify_table)

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BEGIN, END = "<!-- measured: made by tools/tables.py -->", "<!-- /measured -->"
PLOTS = {
    "lowering": "Every Conv3d, each way of running it",
    "roofline": "Everything that was timed, below the measured roofline",
    "profile": "Where the time of a tower goes",
    "towers": "Towers beside transformers and compiled torch",
    "embed": "Patch embedding as GEMM and as Conv3d",
    "fill": "How full chunks are",
}


# ---- the pages ---------------------------------------------------------------------------------

# heading, what and how, one command that repeats it, what makes it, the plot beside it
PAGE = [
    ("Patch embedding",
     "Rows of one frame pair's pixels through the Conv3d of the checkpoint: as one GEMM, which "
     "qwenvit picks, through the same library's own Conv3d, and through torch's; medians, on data "
     "that lies on the device. Bare GEMM: without the bias. Floor of it from bytes: the bare GEMM, "
     "and reading bytes and writing rows at the copy rate.",
     "qwenvit bench patch-embed --model DIR --json=FILE.jsonl && "
     "python tools/peers/peers.py patch-embed --model DIR --json FILE.jsonl",
     patch_embed_table, "embed"),
    ("Conv3d",
     "Each case by every lowering that is legal for it; bold is the one that qwenvit picks, and "
     "torch's is the fastest of its two memory formats and of 2D convolutions, one for each depth "
     "tap, summed; medians, on data that lies on the device.",
     "qwenvit bench conv3d --shapes SHAPES --json=FILE.jsonl && "
     "python tools/peers/peers.py conv3d --shapes SHAPES --json FILE.jsonl",
     conv3d_tables, "lowering"),
    ("Tower",
     "A chunk of frame pairs from pixels to tokens, its work on the device. Whole call: the same "
     "from host memory to host memory; in a stream: with the next chunk pushed ahead, and for more "
     "patches than a chunk has that alone. Limit: the same GEMMs and the same attention "
     "alone, each layer with its own weights; floor: limit and the bytes of everything between "
     "them over the copy rate. Compiled torch: the best mode of `torch.compile` on transformers' "
     "layers with a linear patch embedding, and torch's varlen attention where segments differ. M and L "
     "are the towers of Qwen3-VL-4B and 8B, Q25 that of Qwen2.5-VL-7B.",
     "qwenvit bench tower --model DIR --grid 1,20,38 --json=FILE.jsonl && "
     "python tools/peers/peers.py tower --model DIR --grid 1,20,38 --json FILE.jsonl",
     tower_table, "towers"),
    ("From Python",
     "The tower called on data that lies on the device, until the device is done, medians of "
     "interleaved rounds by the host's clock: transformers as shipped, compiled torch in the "
     "mode reduce-overhead (which is not the best for Qwen2.5), transformers that `qwenvit.patch` patched, `Model.forward`, and `qv_encode` on the same "
     "pointers, over which Python adds what is said. Returns after: until the host goes on.",
     "python python/bench/patched.py --model DIR --device cuda --library libqwenvit.so "
     "--json FILE.jsonl", python_table, None),
    ("Actors",
     "The same clips by one actor of `qwenvit.ray.Encoder`, and by one a device, by Ray or by as "
     "many processes fed from one queue; from when all have loaded to the last batch. An actor "
     "has as many cores alone as beside others.",
     "python python/bench/actors.py --model DIR --clip FILE --devices 0,1 --json FILE.jsonl",
     actors_table, None),
    ("Calls",
     "The same chunk by the host's clock, from a caller's pixels to a caller's tokens, over its work "
     "on the device in the same run. Whole call and streamed: frames in bytes and tokens in the "
     "model's dtype, both in page-locked memory; the others differ from it as their names say. "
     "Device call: pixel_values and tokens that lie on the device.",
     "qwenvit bench tower --model DIR --grid 8,20,38 --json=FILE.jsonl", call_table, None),
    ("Packs",
     "Clips and images of many sizes, packed into chunks of one capacity as a job packs them: all "
     "of a list, its work on the device. Limit and floor: of those chunks, as above. Full: rows "
     "of items over those of all chunks. Making the capacity: its plan, once in a process. "
     "transformers and torch take all of the list in one call.",
     "qwenvit bench tower --model DIR --pack LIST --chunk-rows N --json=FILE.jsonl && "
     "python tools/peers/peers.py tower --model DIR --pack LIST --json FILE.jsonl",
     pack_table, "fill"),
    ("Alone",
     "Each item of a list by itself, in the capacity that it takes then, against a plan of its "
     "very size.",
     "qwenvit bench tower --model DIR --pack LIST --alone --json=FILE.jsonl", alone_table, None),
    ("Few rows",
     f"The tower's projections with 1 to {SMALL_M} rows. Worst step: the largest ratio of the "
     "times of two neighbouring M; a step shows where a library changes its kernel.",
     "qwenvit bench gemm --model DIR --json=FILE.jsonl\n"
     "    qwenvit bench gemm --weights q4g64 --shape 5120,13824 --json=FILE.jsonl"
     "   # a quantised matrix by itself; also q8g64, q4_0, q8_0\n"
     "    python3 tools/plot.py rows FILE.jsonl -o OUT.png                       "
     "   # time over M, beside copying the packed weight", gemm_table, None),
    ("Preprocessing",
     "Resizing a frame, making its patch rows, and decoding and resizing a whole clip, medians.",
     "qwenvit bench preprocess CLIP --json=FILE.jsonl", preprocess_table, None),
    ("Jobs",
     "Clips to tokens, against each stage alone in the same run: the job whose tokens are "
     "discarded over decoding and device, the one that writes a file a clip over these and writing "
     "such files, the one that writes a cache over these and writing such parts. One device alone, "
     "which packs clips into full chunks, is also set over the same clips one by one; decoding alone "
     "over a loop over FFmpeg in one process, which leaves out the same packets and converts and "
     "resizes by the same code.",
     "qwenvit bench job --model DIR -o FOLDER --json=FILE.jsonl", job_table, "stages"),
    ("Start",
     "One short clip to its file, and `info` of the checkpoint, from the process's start to its end; "
     "the first time with an empty cache folder.",
     "qwenvit bench start --model DIR -o FOLDER --json=FILE.jsonl", start_table, None),
    ("Caches",
     "A cache of so many keys, page cache warm: `qwenvit cache` that finds all of a list there, "
     "with the model that it opens; opening the folder; a random key, to its first byte.",
     "qwenvit bench cache --model DIR -o FOLDER --json=FILE.jsonl", cache_table, None),
    ("Where the time goes",
     "Every operation of one chunk, timed alone and summed by kind. Of the roofline: the least time "
     "that the measured roofline allows, over the time taken.",
     "qwenvit profile --model DIR --json=FILE.jsonl", profile_table, "profile"),
]


def versions(root):
    runs = list(load(root, "*.json"))
    if not runs:
        return ""
    keys = ("transformers", "torch", "torchvision")
    seen = sorted({", ".join(f"{k} {r[k].split('+')[0]}" for k in keys) for r in runs})
    commits = sorted({r["commit"] for r in runs})
    return (f"Against {'; '.join(seen)}; qwenvit at {', '.join(commits)}. M and L are the vision "
            "towers of Qwen3-VL-4B and 8B, Q2 and Q25 those of Qwen2-VL-7B and Qwen2.5-VL-7B, GLM that "
            "of GLM-4.1V-9B, with seeded random weights. Repeat it with "
            "`tools/reference/bench_side_by_side.py` and `parity.py`.")


def plots(root, kind):
    """Markdown for docs/KIND-*.png, as seen from docs/."""
    files = sorted(glob.glob(os.path.join(root, "docs", kind + "-*.png")))
    names = [os.path.basename(f) for f in files]
    return [f"![{PLOTS[kind]} ({n[len(kind) + 1:-4]})]({n})" for n in names]


def measurements_page(root, records):
    parts = ["<!-- made by tools/tables.py: edits are lost -->\n# Measurements",
             "<!-- page: not run: minutes each, and beside torch -->",
             "Made by `tools/docs.sh` from the files in `docs/measurements`. Compare times within "
             "a row: machines and days differ."]
    for heading, what, command, make, kind in PAGE:
        made = make(records)
        if made:
            parts += ["## " + heading, what, "    " + command, made]
            parts += plots(root, kind) if kind else []
    if records and plots(root, "roofline"):
        parts += ["## The roofline",
                  "Arithmetic intensity against speed, for all of the above; the roofline is the best "
                  "GEMM and the best rate at which memory was read or copied that `qwenvit bench` "
                  "saw in the same run (in records without `copy_gb_per_s`: that of a copy).",
                  "    sh tools/docs.sh"]
        parts += plots(root, "roofline")
    if records:
        parts += [f"Records: {record_versions(records)}."]
    made = encode_table(root)
    if made:
        parts += ["## From a file to tokens",
                  "Decoding, the tower and writing go on at once: the whole over the slowest of "
                  "them alone says how well.",
                  "    qwenvit encode CLIP --model DIR -o FILE --json=FILE.jsonl", made]
    made = verify_table(root)
    if made:
        parts += ["## Verified", "The lowered model against itself. The ideal bf16 tower is the "
                  "f32 one with every operation's output rounded to bf16 once.",
                  "    qwenvit verify --model DIR --clip CLIP --json=FILE.jsonl", made]
    made = against_table(root)
    if made:
        parts += ["## Against transformers, layer by layer",
                  "    python tools/reference/layers.py DIR --clip CLIP --yardstick --device cuda "
                  "-o FILE && qwenvit verify --model DIR --against FILE --json=FILE.jsonl", made]
    speed, parity = speed_tables(root), parity_table(root)
    if speed:
        parts += ["## Side by side with transformers", speed]
    if parity:
        parts += ["## The same model", parity]
    return "\n\n".join(parts + [x for x in (versions(root),) if x]) + "\n"


# what README shows: tower, patches, dtype, how the machine's name begins
README_ROWS = [("M", 760, "bf16", "NVIDIA H200"), ("M", 6080, "bf16", "NVIDIA H200"),
               ("M", 24320, "bf16", "NVIDIA H200"), ("L", 6080, "bf16", "NVIDIA H200"),
               ("Q25", 6080, "bf16", "NVIDIA H200"), ("M", 760, "bf16", "AMD EPYC")]


def readme_table(records):
    rows, found = [], groups(records, "tower", first_word, lambda r: r["patches"])
    for tower, patches, dtype, machine in README_ROWS:
        for key, ways in found.items():
            if key[:3] == (tower, patches, dtype) and key[3].startswith(machine):
                ours, shipped, linear, torch = (ways.get(w) for w in (
                    "encode", "transformers", "transformers linear", "compiled torch"))
                rows.append([TOWERS[tower], f"{patches:,}", key[3], ms(ours), ms(shipped),
                             ms(linear), ms(torch), bold(over(fastest([shipped, linear]), ours)),
                             bold(over(torch, ours))])
    return rows and table(["tower of", "patches", "machine", "qwenvit ms", "transformers ms",
                           "with its linear patch embedding", "compiled torch ms",
                           "times faster than the better transformers", "than compiled torch"],
                          rows)


def readme_parts(records):
    made = readme_table(records)
    if made:
        yield ("A chunk of frame pairs, bf16, medians on the same machine; seeded random weights "
               "of those sizes. [docs/measurements.md](docs/measurements.md) has the rest, and how to "
               "repeat it.")
        yield made


def write(path, text):
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)


def fill(path, parts):
    """Writes a page again, with the parts between its marks."""
    with open(path, encoding="utf-8") as f:
        text, *rest = f.read().split(BEGIN)
    if len(rest) != len(parts):
        raise SystemExit(f"{path}: {len(rest)} times {BEGIN}, {len(parts)} wanted")
    for behind, part in zip(rest, parts):
        text += "\n\n".join([BEGIN, *(p for p in part if p), END]) + behind.split(END)[1]
    write(path, text)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default=ROOT, metavar="DIR",
                        help="folder with README.md and docs (default: this repository)")
    root = parser.parse_args().root
    files = sorted(glob.glob(os.path.join(root, "docs", "measurements", "*.jsonl")))
    records = read_records([f for f in files
                            if not os.path.basename(f).startswith(OTHER_KINDS)])
    fill(os.path.join(root, "README.md"), [list(readme_parts(records))])
    fill(os.path.join(root, "docs", "gguf.md"), [[t] for t in gguf_tables.page(root)])
    write(os.path.join(root, "docs", "measurements.md"), measurements_page(root, records))


if __name__ == "__main__":
    main()
