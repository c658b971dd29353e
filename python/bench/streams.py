# SPDX-License-Identifier: MIT
"""Times Model.forward on torch's default stream, and on a stream of its own, and checks their order.

python python/bench/streams.py --model DIR [--grid 1,20,38] [--rounds 200] [--bar MS]

The ways take turns on the same pixels. Prints a JSON object for each: the median milliseconds until
the device has done its work (ms) and until the call returns (host_ms); and whether tokens have the
same bits in every round (same_bits), while pixels are made on the caller's stream right before the
call, and tokens are copied there right after it, in memory that is given back at once. Exits with 1
if bits differ, if a call returns after its work is done, if the thread's device has changed, or if
the default stream takes more than --bar milliseconds.
"""
import argparse
import json
import statistics
import sys
import time

import torch

import qwenvit


def once(model, pixels, grid):
    """Returns milliseconds until the work is done, and until the call returns."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    kept = model.forward(pixels, grid, "bf16")
    returned = time.perf_counter()
    torch.cuda.synchronize()
    done = time.perf_counter()
    del kept
    return 1e3 * (done - began), 1e3 * (returned - began)


def chained(model, pixels, grid):
    """Returns tokens of a call among other work of the caller's stream, without waiting for any."""
    spoiled = torch.full_like(pixels, float("nan"))
    for _ in range(20):  # keeps the stream busy, so that whoever does not wait for it reads NaN
        spoiled = spoiled * 1
    x = spoiled
    x.copy_(pixels)
    tokens, deepstack = model.forward(x, grid, "bf16")
    copies = [t.clone() for t in (tokens, *deepstack)]
    del tokens, deepstack, x, spoiled
    torch.full((1 + len(copies), *copies[0].shape), float("nan"), dtype=copies[0].dtype, device="cuda")
    return copies


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, metavar="DIR")
    parser.add_argument("--grid", default="1,20,38", metavar="T,H,W")
    parser.add_argument("--rounds", type=int, default=200, metavar="N")
    parser.add_argument("--bar", type=float, metavar="MS")
    o = parser.parse_args()
    grid = [[int(v) for v in o.grid.split(",")]]
    n, own, device = grid[0][0] * grid[0][1] * grid[0][2], torch.cuda.Stream(), torch.cuda.current_device()
    streams = {"default": torch.cuda.default_stream(), "own": own}
    models = {name: qwenvit.load(o.model, "cuda", "bf16", stream=stream) for name, stream in streams.items()}
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(n, models["own"].info["row_dim"], generator=generator).to("cuda")
    truth = [t.clone() for t in models["own"].forward(pixels, grid, "bf16")[0:1]]
    torch.cuda.synchronize()
    times, same = {name: [] for name in models}, dict.fromkeys(models, True)
    for i in range(o.rounds):
        for name, model in models.items():
            with torch.cuda.stream(streams[name]):
                taken = once(model, pixels, grid)
                copies = chained(model, pixels, grid)
            torch.cuda.synchronize()
            same[name] &= torch.equal(copies[0], truth[0])
            if i >= o.rounds // 10:
                times[name].append(taken)
    bad = torch.cuda.current_device() != device
    for name, taken in times.items():
        ms, host = (statistics.median(t) for t in zip(*taken))
        bad |= not same[name] or host >= ms or bool(o.bar and name == "default" and ms > o.bar)
        print(json.dumps({"stream": name, "patches": n, "ms": round(ms, 3), "host_ms": round(host, 3),
                          "same_bits": same[name], "rounds": len(taken), "device": torch.cuda.get_device_name()}))
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
