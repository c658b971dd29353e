# SPDX-License-Identifier: MIT
"""Times the installed wheel: a patched model and Model.forward, compared with transformers' own tower.

python python/bench/bench.py --model DIR [options]

It prints one JSON object per way, and appends it to --json FILE. Seconds are medians over --rounds, in which the ways take
turns.
"""
import argparse
import contextlib
import json
import math
import os
import random
import statistics
import sys
import time

import qwenvit

HERE = os.path.dirname(os.path.abspath(__file__))
WORST = 0.1  # a token's distance to transformers' own, above which a way is wrong


def write(o, **record):
    line = json.dumps({"bench": "forward", "version": qwenvit.__version__, "rounds": o.rounds, **record})
    print(line, flush=True)
    if o.json:
        with open(o.json, "a", encoding="utf-8") as f:
            f.write(line + "\n")


def bench(o):
    """On CUDA, our ways run on torch's default stream, and as "own stream" on one that load() was
    given. Ends with 1 if tokens are wrong, or differ from round to round while their pixels are made
    on the caller's stream right before the call, and the tokens are copied there right after it; if a
    call on CUDA returns after its work is done; or if the thread's device has changed."""
    import torch

    sys.path.insert(0, os.path.join(HERE, "..", "..", "tools", "reference"))
    import common

    cuda, tower = o.device == "cuda", common.load_tower(o.model, "bf16", device=o.device)
    grid = [[int(v) for v in o.grid.split(",")]]
    n, device = math.prod(grid[0]), cuda and torch.cuda.current_device()
    weight, grids = tower.patch_embed.proj.weight, torch.tensor(grid, device=o.device)
    pixels = torch.randn(n, weight[0].numel(), generator=torch.manual_seed(0)).to(o.device, weight.dtype)

    def wait():
        torch.cuda.synchronize() if cuda else None

    def tokens_of(out):
        out = getattr(out, "pooler_output", out)
        return out[0] if isinstance(out, tuple) else out

    with torch.no_grad():
        truth = tokens_of(tower(pixels, grid_thw=grids)).float()

        def whole_call():
            return tokens_of(tower(pixels, grid_thw=grids))

        own = torch.cuda.Stream() if cuda else None
        streams = {"": torch.cuda.default_stream() if cuda else None, **({", own stream": own} if cuda else {})}
        ways = {"transformers": (whole_call, None)}
        for name, stream in streams.items():
            model = qwenvit.load(o.model, o.device, "bf16", stream=stream)
            ways[f"Model.forward{name}"] = (lambda model=model: model.forward(pixels, grid, "bf16")[0], stream)
        results = measure(o, ways, truth, pixels, wait)
        qwenvit.patch(tower)
        results += measure(o, {"qwenvit.patch": (whole_call, None)}, truth, pixels, wait)
    same_device = not cuda or torch.cuda.current_device() == device
    return int(not (all(results) and same_device))


def measure(o, ways, truth, pixels, wait):
    """Returns, for each way, whether it is right; and writes its record."""
    import torch

    first, times, right, order = {}, {way: [] for way in ways}, dict.fromkeys(ways, True), random.Random(0)
    source, cuda = pixels.clone(), pixels.is_cuda
    for i in range(2 + o.rounds):  # the first two warm it up
        for way in order.sample(list(ways), len(ways)):
            call, stream = ways[way]
            with torch.cuda.stream(stream) if stream else contextlib.nullcontext():
                wait()
                began = time.perf_counter()
                kept = call()
                returned = time.perf_counter()
                wait()
                done = time.perf_counter()
                del kept
                for _ in range(20 if cuda else 0):  # who does not wait for the caller's stream reads NaN
                    pixels.fill_(float("nan"))
                pixels.copy_(source)
                tokens = call().clone()
            wait()
            distance = (tokens.float() - truth).norm(dim=1) / truth.norm(dim=1)
            right[way] &= bool(distance.max() < WORST) and torch.equal(first.setdefault(way, tokens), tokens)
            if i >= 2:
                times[way].append((done - began, returned - began))
    for way, taken in times.items():
        seconds, host_s = (statistics.median(t) for t in zip(*taken))
        if cuda and way.startswith("Model.forward"):
            right[way] &= host_s < seconds
        write(o, way=way, seconds=seconds, host_s=host_s, patches=len(pixels), is_right=right[way])
    return list(right.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, metavar="DIR")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--grid", default="1,20,38", metavar="T,H,W", help="frame pairs, patch rows, columns")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="default: 3")
    parser.add_argument("--json", metavar="FILE")
    return bench(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
