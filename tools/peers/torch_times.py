# SPDX-License-Identifier: MIT
"""Times torch's work on a device and writes the records."""
import json
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "reference"))

import common  # first: it sets variables that transformers reads at import
import torch
from times import LEAST_REPEATS, summary

GRAPH_MS = 1.0  # on CUDA, the least work in one graph, so that launching is not what is timed
MOST_CALLS = 500  # in one graph


def once_ms(args, function):
    """Times by the device's clock: idle time between launches counts, the host's wait for the device does not."""
    if args.device != "cuda":
        start = time.perf_counter()
        function()
        return 1e3 * (time.perf_counter() - start)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    function()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def as_graph(args, function):
    """Returns (function, its calls): on CUDA one graph of many calls, elsewhere the function itself."""
    if args.device != "cuda":
        return function, 1
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # libraries choose and allocate before the capture
        for _ in range(2):
            function()
    torch.cuda.synchronize()
    calls = 1
    while True:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(calls):
                function()
        graph.replay()
        taken_ms = once_ms(args, graph.replay)
        if taken_ms >= GRAPH_MS or calls == MOST_CALLS:
            return graph.replay, calls
        calls = min(MOST_CALLS, int(1.2 * calls * GRAPH_MS / taken_ms) + 1)


@torch.no_grad()
def measure(args, function, graph=False, once_ms=once_ms):
    """Returns median_ms, p90_ms and repeats of function(). --limit-s ends warm-up and repeats early, but never
    before one warm-up and as many runs as a record needs. once_ms(args, function) calls and times it."""
    began = time.perf_counter()
    late = lambda: time.perf_counter() - began > args.limit_s
    warmups, times = 1, []
    once_ms(args, function)
    function, calls = as_graph(args, function) if graph else (function, 1)
    while warmups < args.warmup and not late():
        once_ms(args, function)
        warmups += 1
    while len(times) < args.repeats and not (len(times) >= LEAST_REPEATS and late()):
        times.append(once_ms(args, function) / calls)
    return summary(warmups, times)


def device_name(args):
    return torch.cuda.get_device_name() if args.device == "cuda" else common.cpu_name()


def isa(args):
    """Returns how the device's text ends, as in qwenvit's records."""
    return ", AVX2" if args.device == "cpu" and torch.backends.cpu.get_cpu_capability() == "AVX2" else ""


def machine(args, more=""):
    import transformers
    return dict(backend="torch", threads=torch.get_num_threads(),
                device=f"{device_name(args)}, torch {torch.__version__.split('+')[0]}, "
                       f"transformers {transformers.__version__}{more}{isa(args)}")


def report(args, of, way, times, work, **extra):
    """Prints a line and appends a record, unless times are refused. of: (bench, case, dtype); work: FLOPs,
    and bytes read and written, each once; extra: more fields, and those of another program."""
    (bench, case, dtype), (flops, moved) = of, work
    if "refused" in times:
        left_out(case, dtype, way, times["refused"])
        return
    seconds = times["median_ms"] / 1e3
    record = dict(bench=bench, case=case, way=way, dtype=dtype, **times, flops=flops, bytes=moved,
                  tflops_per_s=flops / seconds / 1e12, gb_per_s=moved / seconds / 1e9,
                  machine=machine(args), version=f"torch {torch.__version__.split('+')[0]}",
                  day=time.strftime("%Y-%m-%d", time.gmtime())) | extra  # tables compare within a day
    print(f"{case:40} {dtype:4} {way:28} {times['median_ms']:10.3f} ms  "
          f"p90 {times['p90_ms']:10.3f}  n {times['repeats']:2}  "
          f"{record['tflops_per_s']:8.3f} TFLOP/s", flush=True)
    if args.json:
        with open(args.json, "a", encoding="utf-8") as f:
            f.write(json.dumps(record) + "\n")


def left_out(case, dtype, way, why):
    print(f"{case:40} {dtype:4} {way:28} left out: {why}", flush=True)


def reason(error):
    lines = [x.strip() for x in str(error).split("\n") if x.strip()]
    return f"{type(error).__name__}: {lines[0][:160] if lines else ''}"
