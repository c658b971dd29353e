#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Times transformers and qwenvit side by side, in one run: the vision tower and preprocessing.

transformers runs as it ships (Conv3d, sdpa). qwenvit's times come from `qwenvit bench tower` and
`qwenvit bench preprocess` with --json; where the command cannot do that, its columns stay empty.
The two take turns and never run at the same time.
"""
import argparse
import json
import os
import shlex
import subprocess

import numpy as np
import torch

import common


def qwenvit_records(args, *words):
    """Returns the JSON objects that `qwenvit WORDS... --json` prints, one on each line. [] if it
    fails."""
    if not args.qwenvit:
        return []
    command = shlex.split(args.qwenvit) + list(words) + shlex.split(args.extra)
    command += ["--threads", str(args.threads), "--json"]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=args.timeout)
        if done.returncode == 0:
            return [json.loads(line) for line in done.stdout.splitlines()]
        problem = f"exit {done.returncode}: {done.stderr.strip()[-200:]}"
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    print(f"  {shlex.join(command)}: {problem}")
    return []


def grids_of(args):
    """Returns grids: frame pairs of 20x38 patches (a 16:9 clip of 320x608) for --patches, or those
    given."""
    grids = [[int(x) for x in g.split(",")] for g in args.grid or []]
    for n in args.patches.split(",") if args.patches else []:
        pairs, rest = divmod(int(n), 20 * 38)
        if rest or pairs < 1:
            raise SystemExit(f"--patches {n}: no multiple of 760; give --grid T,H,W")
        grids.append([pairs, 20, 38])
    return grids


def time_tower(args, model, grid):
    """Returns transformers' times (tower, patch embedding alone) in ms, for a seeded input."""
    config = model.config
    row = config.in_channels * config.temporal_patch_size * config.patch_size ** 2
    random = torch.Generator().manual_seed(0)
    levels = torch.randint(0, 256, (grid[0] * grid[1] * grid[2], row), generator=random)
    weight = model.patch_embed.proj.weight
    pixels = ((2 * levels - 255) / 255).to(weight.device, weight.dtype)
    grids = torch.tensor([grid], device=weight.device)

    def run(function, *arguments, **options):
        with torch.no_grad():
            function(*arguments, **options)
        if weight.device.type == "cuda":
            torch.cuda.synchronize()

    return (common.median_ms(lambda: run(model, pixels, grid_thw=grids), args.repeat),
            common.median_ms(lambda: run(model.patch_embed, pixels), args.repeat))


def bench_tower(args, results):
    for dtype in args.dtype.split(","):
        model = common.load_tower(args.model, dtype, args.attention, device=args.device)
        for grid in grids_of(args):
            n = grid[0] * grid[1] * grid[2]
            tower, embed = time_tower(args, model, grid)
            row = dict(what="tower", dtype=dtype, grid=grid, patches=n, transformers_ms=tower,
                       transformers_patch_embed_ms=embed)
            records = qwenvit_records(args, "bench", "tower", "--model", args.model, "--dtype",
                                      dtype, "--grid", ",".join(map(str, grid)))
            ours = next((r for r in records if r["way"] == "encode"), None)
            text = (f"tower {dtype:4} {n:6} patches  transformers {tower:9.2f} ms "
                    f"(patch embedding {embed:.2f})")
            if ours:
                row["qwenvit"] = ours
                median, limit = ours["median_ms"], ours.get("limit_ms")
                row["speedup"] = tower / median
                text += f"  qwenvit {median:9.2f} ms  {tower / median:.2f} times faster"
                if limit:
                    row["over_limit"] = median / limit
                    text += f"  {median / limit:.2f} times the limit"
            print(text, flush=True)
            results.append(row)
        del model


def bench_preprocess(args, results):
    """Times torchvision's resize, and transformers' normalising and cutting, on frames already
    decoded."""
    processor = common.video_processor(args.model)
    if args.clip:
        frames, _ = common.clip_frames(processor, args.clip)
    else:
        frames = np.random.default_rng(0).integers(0, 256, (16, 720, 1280, 3), dtype=np.uint8)
    frames = frames[:args.frames]
    video = torch.from_numpy(np.ascontiguousarray(frames.transpose(0, 3, 1, 2)))[None]
    patch, step, merge = processor.patch_size, processor.temporal_patch_size, processor.merge_size

    def resize():
        return processor.resize(video, size, processor.resample, patch * merge, step)

    def rows():
        x = processor.rescale_and_normalize(resized, True, 1 / 255, True,
                                            processor.image_mean, processor.image_std)
        return processor.patchify(x, patch, merge, step)

    from transformers.image_utils import SizeDict
    size = SizeDict(**common.clip_size(processor, args.min_pixels, args.max_pixels))
    resized = resize()
    n = len(frames)
    row = dict(what="preprocess", frames=n, source=list(frames.shape[1:3]),
               target=list(resized.shape[-2:]),
               transformers=dict(resize_ms_per_frame=common.median_ms(resize, args.repeat) / n,
                                 rows_ms_per_frame=common.median_ms(rows, args.repeat) / n))
    ours = {}
    for record in qwenvit_records(args, "bench", "preprocess", "--size",
                                  "{},{}".format(*row["source"])):
        ours.update(record)  # the ways name their times differently
    row["qwenvit"] = ours or None
    print("preprocess {} frames, {}x{} to {}x{}".format(n, *row["source"][::-1],
                                                       *row["target"][::-1]))
    ours = (row["qwenvit"] or {}).get("resized", row["target"])
    if ours != row["target"]:
        print(f"  qwenvit resizes to {ours[1]}x{ours[0]}: not comparable")
    for name in ("resize_ms_per_frame", "rows_ms_per_frame"):
        theirs = row["transformers"][name]
        text = f"  {name:20} transformers {theirs:8.3f}"
        if row["qwenvit"] and row["qwenvit"].get(name):
            ours = row["qwenvit"][name]
            text += f"  qwenvit {ours:8.3f}  {theirs / ours:.2f} times faster"
        print(text)
    results.append(row)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", metavar="MODEL_DIR", help="checkpoint folder")
    parser.add_argument("--qwenvit", metavar="COMMAND",
                        help="the command; without it transformers alone is timed")
    parser.add_argument("--extra", metavar="OPTIONS", default="", help="more options for qwenvit")
    parser.add_argument("--dtype", default="bf16,f32", metavar="LIST")
    parser.add_argument("--patches", default="760,3040", metavar="LIST",
                        help="multiples of 760 (frame pairs of 20x38); \"\" for none")
    parser.add_argument("--grid", action="append", metavar="T,H,W", help="another grid; repeatable")
    parser.add_argument("--attention", choices=("sdpa", "eager"), default="sdpa")
    parser.add_argument("--device", default="cpu", help="where transformers runs: cpu or cuda")
    parser.add_argument("--clip", metavar="FILE", help="frames to preprocess; default: random 720p")
    parser.add_argument("--frames", type=int, default=16, metavar="N", help="at most that many")
    parser.add_argument("--min-pixels", type=int, metavar="N")
    parser.add_argument("--max-pixels", type=int, metavar="N",
                        help="of the preprocessed clip, T*H*W; default: the checkpoint's")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0))
                        if hasattr(os, "sched_getaffinity") else os.cpu_count(), metavar="N")
    parser.add_argument("--repeat", type=int, default=5, metavar="N", help="the median of N")
    parser.add_argument("--timeout", type=float, default=600, metavar="S")
    parser.add_argument("--commit", help="of the qwenvit measured; default: that of this folder")
    parser.add_argument("--json", metavar="FILE", help="write all numbers there")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    results = []
    bench_tower(args, results)
    bench_preprocess(args, results)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(dict(common.setting(args), results=results), f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    main()
