#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Times llama.cpp's own vision tower and qwenvit on the same GGUF file, pixels and cores, from pixels as f32 in host
memory to tokens as f32 there.

    mtmd.py FOLDER --llama LLAMA --work DIR --patches 256,1024,4096 --types BF16,Q8_0,F32 --json FILE.jsonl

What is asked of FOLDER and LLAMA is said in tools/reference/gguf_parity.py, which makes the files; the wheel of
qwenvit must be installed. The three ways (mtmd, qwenvit in f32 and in bf16) take turns in one run, and the least of
all rounds counts: of the time by the clock, and of the CPU's time on all cores, which other work on the machine
disturbs less. Threads that wait sleep, so that waiting costs no CPU time.
"""
import json
import os
import subprocess
import sys
import tempfile
import time

os.environ["OMP_WAIT_POLICY"] = "passive"  # before anything starts OpenMP
from torch_times import common, cpu_name  # first, as common must be
import gguf_parity
import numpy
import qwenvit

WAYS = ("mtmd", "qwenvit f32", "qwenvit bf16")


def write_image(path, patches, patch):
    """A PPM of so many patches, as nearly square as whole tokens allow, of waves and noise."""
    rows = max(n for n in range(2, int(patches**0.5) + 1, 2) if patches % (2 * n) == 0)
    height, width = rows * patch, patches // rows * patch
    y, x = numpy.mgrid[:height, :width]
    waves = numpy.stack([127 + 90 * numpy.sin(x / 23 + c) + 30 * numpy.cos(y / 11 - c) for c in range(3)], -1)
    levels = waves + numpy.random.default_rng(1).normal(0, 12, waves.shape)
    with open(path, "wb") as f:
        f.write(b"P6\n%d %d\n255\n" % (width, height) + levels.clip(0, 255).astype(numpy.uint8).tobytes())


def mtmd_times(args, file, image):
    """(ms, CPU ms) of each run behind the first."""
    done = subprocess.run([os.path.join(args.llama, "bin", "mtmd_encode"), file, image, os.devnull, "--threads",
                           str(args.threads), "--repeats", str(args.repeats), "--flash-attn", args.flash_attn],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"mtmd_encode {file}: exit {done.returncode}: {done.stderr.strip()[-400:]}")
    said = json.loads(done.stdout)
    return list(zip(said["ms"], said["cpu_ms"]))


def our_times(args, model, pixels, grids):
    times = []
    for i in range(args.repeats + 1):
        wall, cpu = time.perf_counter(), time.process_time()
        model.forward(pixels, grids)
        if i:
            times.append((1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - cpu)))
    return times


def time_one(args, file, models, patches):
    with tempfile.NamedTemporaryFile(suffix=".ppm") as image:
        write_image(image.name, patches, common.read_json(args.folder, "config.json")["vision_config"]["patch_size"])
        pixels, grids = (x.numpy() for x in common.image_pixels(args.folder, image.name))
        runs = {way: [] for way in WAYS}
        for _ in range(args.rounds):
            runs["mtmd"] += mtmd_times(args, file, image.name)
            for way, model in models.items():
                runs[way] += our_times(args, model, pixels, grids)
    return {way: dict(ms=min(t[0] for t in times), cpu_ms=min(t[1] for t in times)) for way, times in runs.items()}


def main():
    options = gguf_parity.parser(__doc__)
    numbers = lambda s: [int(x) for x in s.split(",")]
    options.add_argument("--patches", type=numbers, default=[256, 1024, 4096], metavar="LIST",
                         help="of the images (256,1024,4096)")
    options.add_argument("--types", type=lambda s: s.split(","), default=["BF16", "Q8_0"], metavar="LIST",
                         help="of the files (BF16,Q8_0)")
    options.add_argument("--rounds", type=int, default=3, metavar="N", help="(3)")
    options.add_argument("--repeats", type=int, default=2, metavar="N", help="runs of a way in a round, after one (2)")
    args = options.parse_args()
    tower = os.path.basename(os.path.normpath(args.folder))
    for kind in args.types:
        file = gguf_parity.make_file(args, kind)
        models = {f"qwenvit {d}": qwenvit.load(file, "cpu", d, threads=args.threads) for d in ("f32", "bf16")}
        for patches in args.patches:
            row = dict(what="time", tower=tower, type=kind, patches=patches, threads=args.threads,
                       ways=time_one(args, file, models, patches), rounds=args.rounds, version=qwenvit.__version__, cpu=cpu_name())
            print(f"{tower} {kind} {patches} patches: " + "; ".join(
                f"{way} {t['ms']:.0f} ms, {t['cpu_ms']:.0f} of CPU" for way, t in row["ways"].items()), flush=True)
            if args.json:
                with open(args.json, "a", encoding="utf-8") as f:
                    f.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
