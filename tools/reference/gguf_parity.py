#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Is a tower in a GGUF file the same model? Prints a line per value type; exit code 1 if it is not.

llama.cpp's own converter and llama-quantize make the files from FOLDER, a checkpoint whose config.json needs
text_config.hidden_size (the converter writes it as the tower's width). The truth for a file is transformers in f32 on
the values that the `gguf` package decodes from its blocks (gguf_folder.py). Distance of a token: |x - truth| / |truth|.
  f32    qwenvit's worst distance is below 2e-5, and its tokens equal, bit for bit, its tokens for the
         package's values; for F32 and BF16 also its tokens for FOLDER
  bf16   mean and worst are at most 1.05 times transformers' own bf16, both against bf16-rounded values (parity.py)
llama_cpp.sh LLAMA gets llama.cpp. --image must need no resizing: 384 by 256 is right for patches of 16,
336 by 224 for patches of 14.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file

import common
import gguf_folder
import parity

CONVERTED = ("F32", "F16", "BF16", "Q8_0")
QUANTIZED = {"Q4_0": "Q4_0", "Q4_1": "Q4_1", "Q5_0": "Q5_0", "Q5_1": "Q5_1", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M",
             "Q6_K": "Q6_K"}  # fmt: skip
ALIKE = ("F32", "BF16")  # made from a bf16 checkpoint, these have its exact values


def run(command, **options):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit {done.returncode}: {done.stdout.strip()[-400:]}")
    return done.stdout


def as_published(folder, out):
    """Copies a Qwen2-VL or Qwen2.5-VL folder with tensors named as published: the converter knows only those
    names, and `qwenvit synth` writes today's."""
    shutil.copytree(folder, out)
    for path in common.weight_files(out):
        tensors = {name.removeprefix("model."): tensor for name, tensor in load_file(path).items()}
        save_file(tensors, path)
    return out


def make_file(args, kind):
    """Returns the path of FOLDER's tower in this value type; makes it if it is missing."""
    path = os.path.join(args.work, f"{os.path.basename(os.path.normpath(args.folder))}-{kind}.gguf")
    if not os.path.exists(path):
        if kind in CONVERTED:
            source = os.path.join(args.llama, "llama.cpp")
            environment = dict(os.environ, PYTHONPATH=os.path.join(source, "gguf-py"))
            with tempfile.TemporaryDirectory(dir=args.work) as folder:
                old = common.read_json(args.folder, "config.json")["model_type"].startswith("qwen2")
                run([sys.executable, os.path.join(source, "convert_hf_to_gguf.py"), "--mmproj", "--outtype",
                     kind.lower(), "--outfile", path,
                     as_published(args.folder, os.path.join(folder, "tower")) if old else args.folder],
                    env=environment)
        else:
            run([os.path.join(args.llama, "bin", "llama-quantize"), make_file(args, "F32"), path, QUANTIZED[kind],
                 str(args.threads)])
    return path


def encode(args, model, grids, dtype):
    args.model = model
    return parity.encode(args, [args.image], grids, dtype)[0]


def worst_of(found, truth):
    """Returns the largest mean and the largest worst distance over all outputs."""
    both = [common.mean_and_worst(found[name], truth[name]) for name in truth]
    return max(b[0] for b in both), max(b[1] for b in both)


def check(args, kind):
    file = make_file(args, kind)
    pixels, grids = common.image_pixels(args.folder, args.image)
    with tempfile.TemporaryDirectory(dir=args.work) as values:
        gguf_folder.write_folder(file, args.folder, values)
        truth = parity.Towers(values, round_weights=False).run(pixels, grids, "f32")
        towers = parity.Towers(values)
        exact, rounded = (towers.run(x, grids, "f32") for x in (pixels, pixels.bfloat16().float()))
        peers = {path: towers.run(pixels, grids, "bf16", path) for path in ("sdpa", "eager")}
        same = encode(args, args.folder if kind in ALIKE else values, grids, "f32")
    ours = {dtype: encode(args, file, grids, dtype) for dtype in ("f32", "bf16")}
    version = run([args.qwenvit, "--version"]).split()[1]
    row = dict(what="tokens", tower=os.path.basename(os.path.normpath(args.folder)), type=kind, version=version,
               patches=int(grids.prod()), mb=os.path.getsize(file) / 1e6)
    row["f32"] = worst_of(ours["f32"], truth)
    rows = parity.check_bf16(ours["bf16"], exact, rounded, peers)
    row["bf16_ratio"] = [max(r[k] for r in rows) for k in ("mean_ratio", "worst_ratio")]
    row["bf16"] = worst_of(ours["bf16"], truth)
    row["transformers_bf16"] = min(worst_of(p, truth) for p in peers.values())
    row["same_bits"] = all(torch.equal(ours["f32"][name], same[name]) for name in truth)
    row["ok"] = row["same_bits"] and row["f32"][1] < parity.F32_WORST and all(r["ok"] for r in rows)
    return row


def show(row):
    pair = lambda p, form=".1e": f"{p[0]:{form}} {p[1]:{form}}"
    same = "the bits of its values" if row["same_bits"] else "NOT the bits of its values"
    print(f"{row['tower']:18} {row['type']:5} {row['mb']:7.0f} MB  f32 {pair(row['f32'])}, {same}  "
          f"bf16 over transformers' {pair(row['bf16_ratio'], '.3f')}  from the file's values: bf16 {pair(row['bf16'])}, "
          f"transformers' {pair(row['transformers_bf16'])}  "
          f"{'ok' if row['ok'] else 'FAILED'}", flush=True)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", metavar="FOLDER", help="the checkpoint")
    options.add_argument("--llama", metavar="LLAMA", required=True, help="the folder made by llama_cpp.sh")
    options.add_argument("--work", metavar="DIR", required=True, help="folder in which GGUF files are made and kept")
    options.add_argument("--threads", type=int, default=2, metavar="N")
    options.add_argument("--json", metavar="FILE", help="append the numbers, one JSON object per line")
    # what parity.py's functions ask for
    options.set_defaults(extra="", num_frames=None, fps=None, min_pixels=None, max_pixels=None, cap_pixels=False)
    options.add_argument("--qwenvit", metavar="COMMAND", required=True)
    options.add_argument("--image", metavar="FILE.ppm", required=True)
    options.add_argument("--types", type=lambda s: s.split(","), default=[*CONVERTED, *QUANTIZED], metavar="LIST",
                         help="default: " + ",".join([*CONVERTED, *QUANTIZED]))
    args = options.parse_args()
    unknown = set(args.types) - {*CONVERTED, *QUANTIZED}
    if unknown:
        options.error(f"--types: {', '.join(sorted(unknown))} is not one of {', '.join([*CONVERTED, *QUANTIZED])}")
    torch.set_num_threads(args.threads)
    os.makedirs(args.work, exist_ok=True)
    failed = False
    for kind in args.types:
        row = check(args, kind)
        show(row)
        failed = failed or not row["ok"]
        if args.json:
            with open(args.json, "a", encoding="utf-8") as f:
                f.write(json.dumps(row) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
