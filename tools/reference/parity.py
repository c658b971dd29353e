#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Is qwenvit the same model as transformers, on real clips? Prints a table; exit code 1 if it is not.

Distance of a token: |x - truth| / |truth|. Truth: transformers in f32 on bf16-rounded weights.
  f32   the worst token's distance is below 2e-5
  bf16  mean and worst distance are at most 1.05 times those of transformers' own bf16, the better
        of its two attention paths (sdpa, eager), for the tokens and every DeepStack output
transformers in bf16 rounds the pixels first, so it is compared with the truth on rounded pixels.
qwenvit may round them or not (bytes are exact in bf16): both truths are shown, the nearer counts.
--pack: all clips and images at once, one chunk of qwenvit against one call of transformers.
"""
import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file

import common

F32_WORST = 2e-5
BF16_RATIO = 1.05
IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".ppm")


def options(args, dtype):
    """Returns this tool's options as options of `qwenvit encode`."""
    out = ["--model", args.model, "--dtype", dtype, "--output-dtype", "f32"]
    for name in ("num_frames", "fps", "min_pixels", "max_pixels"):  # images ignore the first two
        if getattr(args, name) is not None:
            out += ["--" + name.replace("_", "-"), str(getattr(args, name))]
    return out + (["--cap-pixels"] if args.cap_pixels else []) + shlex.split(args.extra)


def run_encode(args, clips, output, more):
    """Returns what `qwenvit encode` prints."""
    command = shlex.split(args.qwenvit) + ["encode", *clips, "-o", output] + more
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=600)
    if done.returncode != 0:
        raise RuntimeError(f"{shlex.join(command)}: exit {done.returncode}: "
                           + done.stdout.strip()[-300:])
    return done.stdout


def read_output(path):
    """Returns the tensors of a file of `qwenvit encode`, by this tool's names of layers."""
    tensors = load_file(path)
    out = {"merger": tensors.pop("tokens")}
    for name, x in tensors.items():
        out[name.replace("deepstack.", "deepstack_merger_list.")] = x
    return out


def encode(args, clips, grids, dtype):
    """Returns qwenvit's outputs for a single clip, or for each of several clips in one chunk."""
    more = options(args, dtype)
    with tempfile.TemporaryDirectory() as folder:
        if len(clips) == 1:
            path = os.path.join(folder, "tokens.safetensors")
            run_encode(args, clips, path, more)
            return [read_output(path)]
        rows = int(grids.prod(-1).sum())
        text = run_encode(args, clips, folder, more + ["--chunk-rows", str(rows)])
        if not re.search(rf"\b{len(clips)} of them in 1 chunks\b", text):
            raise RuntimeError(f"{len(clips)} clips of {rows} patches are not one chunk: "
                               + text.strip()[-300:])
        return [read_output(os.path.join(folder, os.path.basename(clip) + ".safetensors"))
                for clip in clips]


class Towers:
    """transformers' towers, each loaded when it is first needed."""

    def __init__(self, folder, device="cpu", round_weights=True):
        self.folder, self.device, self.round_weights, self.loaded = folder, device, round_weights, {}

    def run(self, pixels, grids, dtype, attention="sdpa"):
        key = dtype, attention
        if key not in self.loaded:
            self.loaded[key] = common.load_tower(self.folder, dtype, attention, self.round_weights,
                                                 self.device)
        layers = common.run_tower(self.loaded[key], pixels, grids)
        return {name: layers[name].float() for name in common.output_names(layers)}


def check_f32(found, truth):
    rows = []
    for name in truth:
        mean, worst = common.mean_and_worst(found[name], truth[name])
        rows.append(dict(dtype="f32", output=name, mean=mean, worst=worst,
                         cosine=common.worst_cosine(found[name], truth[name]),
                         ok=worst < F32_WORST))
    return rows


def check_bf16(found, truth, rounded_truth, peers):
    """`peers`: the outputs of transformers' bf16 runs, by attention path."""
    rows = []
    for name in truth:
        bars = {path: common.mean_and_worst(out[name], rounded_truth[name])
                for path, out in peers.items()}
        bar_mean, bar_worst = (min(values) for values in zip(*bars.values()))
        exact = common.mean_and_worst(found[name], truth[name])
        rounded = common.mean_and_worst(found[name], rounded_truth[name])
        mean, worst = min(exact, rounded)
        ratios = [a / b if b else float("nan") if a else 0.0
                  for a, b in ((mean, bar_mean), (worst, bar_worst))]
        rows.append(dict(dtype="bf16", output=name, mean=mean, worst=worst, exact_pixels=exact,
                         rounded_pixels=rounded, transformers=bars, mean_ratio=ratios[0],
                         worst_ratio=ratios[1],
                         cosine=common.worst_cosine(found[name], truth[name]),
                         ok=all(r <= BF16_RATIO for r in ratios)))
    return rows


def time_error(found, seconds):
    """Returns the largest difference of the frames' timestamps; None if they cannot be compared."""
    if found is None or found.numel() != seconds.numel():
        return None
    return float((found.reshape(-1).double() - seconds).abs().max())


def read_pixels(args, path):
    """Returns (pixel_values, grid_thw, timestamps) of a clip, or of an image by the image
    processor."""
    if os.path.splitext(path)[1].lower() in IMAGES:
        pixels, grids = common.image_pixels(args.model, path, args.min_pixels, args.max_pixels)
        return pixels, grids, torch.zeros(0)
    return common.clip_pixels(args.model, path, args.num_frames, args.fps, args.min_pixels,
                              args.max_pixels, args.cap_pixels)


def check_dtype(args, towers, clips, pixels, grids, truth, dtype):
    """Encodes each clip with qwenvit and returns the table's rows for all clips together."""
    found = encode(args, clips, grids, dtype)
    for clip, one, grid in zip(clips, found, grids.tolist()):
        if one["grid_thw"].reshape(-1).tolist() != grid:
            raise RuntimeError(f"{clip}: grid {one['grid_thw'].reshape(-1).tolist()}, "
                               f"transformers has {grid}")
        missing = [name for name in truth if name not in one]
        if missing:
            raise RuntimeError(f"{clip}, {dtype}: no output {', '.join(missing)}")
    together = {name: torch.cat([one[name].float() for one in found]) for name in truth}
    if dtype == "f32":
        return found, check_f32(together, truth)
    rounded = pixels.bfloat16().float()
    peers = {path: towers.run(pixels, grids, "bf16", path) for path in ("sdpa", "eager")}
    return found, check_bf16(together, truth, towers.run(rounded, grids, "f32"), peers)


def check_clips(args, towers, clips):
    """Compares one clip, or several in one call of each program."""
    read = [read_pixels(args, clip) for clip in clips]
    pixels, grids = (torch.cat([r[i] for r in read]) for i in (0, 1))
    names = ", ".join(os.path.basename(clip) for clip in clips)
    result = dict(clip=names, grid=grids.tolist() if len(clips) > 1 else grids[0].tolist(),
                  rows=[], ok=True)
    truth = towers.run(pixels, grids, "f32")
    for dtype in args.dtype:
        found, rows = check_dtype(args, towers, clips, pixels, grids, truth, dtype)
        errors = [time_error(f.get("timestamps"), r[2]) for f, r in zip(found, read)]
        result["time_error_s"] = max((e for e in errors if e is not None), default=None)
        result["rows"] += rows
        result["ok"] = result["ok"] and all(row["ok"] for row in rows)
    return result


def show(result):
    print(f"\n{result['clip']}: ", end="")
    if "error" in result:
        print(f"FAILED: {result['error']}")
        return
    times = result.get("time_error_s")
    print(f"grid {result['grid']} equal, timestamps "
          + ("not compared" if times is None else f"within {times:.1e} s"))
    for row in result["rows"]:
        text = (f"  {row['dtype']:4} {row['output']:24} mean {row['mean']:.2e} "
                f"worst {row['worst']:.2e} ")
        if row["dtype"] == "f32":
            text += f"(below {F32_WORST:.0e}) "
        else:
            text += f"ratio {row['mean_ratio']:.3f} {row['worst_ratio']:.3f} (to {BF16_RATIO}) "
        print(text + f"cosine {row['cosine']:.7f} {'ok' if row['ok'] else 'FAILED'}")
        if row["dtype"] == "bf16":
            parts = {"qwenvit, exact pixels": row["exact_pixels"],
                     "rounded pixels": row["rounded_pixels"]}
            parts.update({"transformers " + k: v for k, v in row["transformers"].items()})
            print("       " + "; ".join(f"{k} {m:.2e} {w:.2e}" for k, (m, w) in parts.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", metavar="MODEL_DIR", help="checkpoint folder")
    parser.add_argument("clips", metavar="CLIP", nargs="+")
    parser.add_argument("--qwenvit", metavar="COMMAND", required=True,
                        help='the command, such as build/qwenvit or "taskset -c 0 build/qwenvit"')
    parser.add_argument("--extra", metavar="OPTIONS", default="",
                        help='more options for qwenvit: --extra="--backend cuda"')
    parser.add_argument("--pack", action="store_true",
                        help="all clips and images at once, with different names: one chunk "
                             "against one call")
    parser.add_argument("--dtype", type=lambda s: s.split(","), default=["f32", "bf16"],
                        metavar="LIST", help="default: f32,bf16")
    common.add_sampling(parser)
    args = parser.parse_args()
    if not set(args.dtype) <= {"f32", "bf16"}:
        parser.error(f"--dtype {','.join(args.dtype)}: f32 and bf16 can be compared")
    if args.pack and len(args.clips) < 2:
        parser.error("--pack: one clip is no pack")
    if args.threads:
        torch.set_num_threads(args.threads)

    towers, results = Towers(args.model, args.device), []
    for clips in [args.clips] if args.pack else [[clip] for clip in args.clips]:
        try:
            result = check_clips(args, towers, clips)
        except Exception as error:  # one bad clip must not hide the others
            result = dict(clip=", ".join(map(os.path.basename, clips)), ok=False,
                          error=f"{type(error).__name__}: {error}")
        results.append(result)
        show(result)
    failed = [r["clip"] for r in results if not r["ok"]]
    print(f"\n{len(results) - len(failed)} of {len(results)} {'packs' if args.pack else 'clips'} "
          "agree")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
