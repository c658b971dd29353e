# SPDX-License-Identifier: MIT
"""Times the installed wheel. Prints a JSON object per way, and appends it to --json FILE.

python python/bench/bench.py WHAT [options]

    import                          importing qwenvit, in a process of its own
    cache                           1,000 random keys of 3 MiB from a warm cache, and as many copies in memory
    encode --model DIR --clip FILE  400 copies of a clip by Model.encode and by the command, in turn
    forward --model DIR             a patched model and Model.forward, beside transformers' own tower
    actors --model DIR --clip FILE  one actor of Ray and one per device, on the same rows

Each way's seconds are medians over --rounds, in which the ways take turns. `encode` and `actors`
run whole processes and actors, loading included in `encode` and left out in `actors`.
"""
import argparse
import contextlib
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import qwenvit

WIDTH, ROWS, KEYS, READS, CLIPS = 4096, 384, 300, 1000, 400  # a key has 3 MiB in bf16
HERE = os.path.dirname(os.path.abspath(__file__))
WORST = 0.1  # a token's distance to transformers' own, above which a way is wrong


class Bench:
    """Writes records. `facts` are in each."""

    def __init__(self, o):
        self.o, self.facts = o, {"bench": o.what, "version": qwenvit.__version__, "rounds": o.rounds}

    def write(self, way, **numbers):
        line = json.dumps({**self.facts, "way": way, **numbers})
        print(line, flush=True)
        if self.o.json:
            with open(self.o.json, "a", encoding="utf-8") as f:
                f.write(line + "\n")

    def turns(self, ways, clock=time.perf_counter):
        """Returns {way: its median seconds}. No way always follows the same one."""
        taken, order = {way: [] for way in ways}, random.Random(0)
        for _ in range(self.o.rounds):
            for way in order.sample(list(ways), len(ways)):
                began = clock()
                ways[way]()
                taken[way].append(clock() - began)
        return {way: statistics.median(times) for way, times in taken.items()}


# ---- importing, caches, clips ------------------------------------------------------------------------


def bench_import(b):
    code = "import time; began = time.perf_counter(); import qwenvit; print(time.perf_counter() - began)"
    b.write("import", seconds=min(float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(b.o.rounds)))


def make_cache(folder):
    """Makes a cache of one part, with tokens alone."""
    layout = {"dtype": "bf16", "width": WIDTH, "n_deepstack": 0, "packed": False}
    with open(os.path.join(folder, "qwenvit-cache.json"), "w") as f:
        json.dump({"format": "qwenvit-cache", "version": "2", "model_type": "qwen3_vl", "tokens": layout}, f)
    grid, seconds = (n.to_bytes(24, "little") for n in (1 | 48 << 64 | 32 << 128, 0))
    keys = [(str(i), json.dumps({"key": str(i), "path": str(i), "status": "ok", "xxh3": "0" * 16}, separators=(",", ":")),
             [random.Random(i).randbytes(ROWS * WIDTH * 2)], ROWS, grid, seconds[:8]) for i in range(KEYS)]
    qwenvit._core.write_part(os.fsencode(folder), b"part-00000-of-00001-a-00000000-000000.safetensors", 1, keys)


def bench_cache(b):
    """The seconds are the processor's, which other work on the machine does not change."""
    import numpy as np

    keys = [str(random.Random(i).randrange(KEYS)) for i in range(READS)]
    out, memory = np.empty((ROWS, WIDTH), np.uint16), np.ones((KEYS, ROWS, WIDTH), np.uint16)
    with tempfile.TemporaryDirectory() as folder:
        make_cache(folder)

        def read():
            cache = qwenvit.Cache(folder)  # which has mapped nothing
            for key in keys:
                np.copyto(out, cache[key].tokens.view(np.uint16))

        def copy():
            for key in keys:
                np.copyto(out, memory[int(key)])

        read()
        seconds = b.turns({"cache": read, "memcpy": copy}, time.process_time)
    for way, s in seconds.items():
        b.write(way, gb_s=READS * out.nbytes / 1e9 / s, over_memcpy=seconds["memcpy"] / s)


ENCODE = """
import sys, qwenvit
model, clip, out, n = sys.argv[1:]
sources = [{"path": clip, "key": str(i)} for i in range(int(n))]
for t in qwenvit.load(model, backend="cpu").encode(sources):
    t.save(f"{out}/{t.key}.safetensors")
"""


def bench_encode(b):
    o, python = b.o, sys.executable
    with tempfile.TemporaryDirectory() as folder:
        listing, out = os.path.join(folder, "list"), os.path.join(folder, "out")
        with open(listing, "w") as f:
            f.writelines(json.dumps({"path": os.path.abspath(o.clip[0]), "key": str(i)}) + "\n" for i in range(CLIPS))
        commands = {
            "Model.encode": [python, "-c", ENCODE, o.model, o.clip[0], out, str(CLIPS)],
            "command": [python, "-m", "qwenvit", "encode", "--list", listing, "--model", o.model, "--backend", "cpu",
                        "--output-dtype", "f32", "-o", out],
        }

        def run(command):
            shutil.rmtree(out, ignore_errors=True)
            os.mkdir(out)
            subprocess.run(command, check=True, capture_output=True)
            assert len(os.listdir(out)) == CLIPS

        seconds = b.turns({way: lambda command=command: run(command) for way, command in commands.items()})
    for way, s in seconds.items():
        b.write(way, seconds=s, clips=CLIPS, over_command=s / seconds["command"])


# ---- patches to tokens -------------------------------------------------------------------------------


def bench_forward(b):
    """On CUDA, our ways run on torch's default stream, and as "own stream" on one that load() was
    given. Ends with 1 if tokens are wrong, or differ from round to round while their pixels are made
    on the caller's stream right before the call, and the tokens are copied there right after it; if a
    call on CUDA returns after its work is done; or if the thread's device has changed."""
    import torch

    sys.path.insert(0, os.path.join(HERE, "..", "..", "tools", "reference"))
    import common

    o = b.o
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
        results = measure(b, ways, truth, pixels, wait)
        qwenvit.patch(tower)
        results += measure(b, {"qwenvit.patch": (whole_call, None)}, truth, pixels, wait)
    same_device = not cuda or torch.cuda.current_device() == device
    return int(not (all(results) and same_device))


def measure(b, ways, truth, pixels, wait):
    """Returns, for each way, whether it is right; and writes its record."""
    import torch

    first, times, right, order = {}, {way: [] for way in ways}, dict.fromkeys(ways, True), random.Random(0)
    source, cuda = pixels.clone(), pixels.is_cuda
    for i in range(2 + b.o.rounds):  # the first two warm it up
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
        b.write(way, seconds=seconds, host_s=host_s, patches=len(pixels), is_right=right[way])
    return list(right.values())


# ---- actors ------------------------------------------------------------------------------------------


class Actor:
    """An Encoder that tells when it was ready, and when each batch began and ended."""

    def __init__(self, o, cpu):
        from qwenvit.adapters.ray import Encoder

        place = {"backend": "cpu"} if cpu else {"backend": "cuda", "device": 0}  # Ray shows an actor its GPU alone
        self.encoder = Encoder(o.model, load_options={**place, "dtype": "bf16"}, **({"fps": o.fps} if o.fps else {}))
        list(self.encoder(table_of(o, o.batch)))  # makes the plans, and starts the decoder
        self.ready = time.time()

    def __call__(self, table):
        began = time.time()
        for done in self.encoder(table):
            for name, value in {"ready": self.ready, "began": began, "ended": time.time()}.items():
                done = done.append_column(name, [[value] * len(done)])
            yield done


def table_of(o, n):
    import pyarrow

    return pyarrow.table({"path": [os.path.abspath(o.clip[i % len(o.clip)]) for i in range(n)]})


def run_actors(o, n_actors, n):
    """Returns clips per second, from when all actors are ready."""
    import ray

    cpu = o.device == "cpu"
    data = ray.data.from_arrow(table_of(o, n)).repartition(math.ceil(n / o.batch))
    done = data.map_batches(
        Actor, fn_constructor_args=(o, cpu), batch_format="pyarrow", batch_size=o.batch, num_cpus=o.cores,
        num_gpus=None if cpu else 1, compute=ray.data.ActorPoolStrategy(size=n_actors))
    rows = [row for t in done.iter_batches(batch_size=None, batch_format="pyarrow")
            for row in t.select(["status", "error", "ready", "began", "ended"]).to_pylist()]
    failed = [row["error"] for row in rows if row["status"] != "ok"]
    if failed:
        raise SystemExit(f"{len(failed)} of {n} clips failed, the first: {failed[0]}")
    ready, end = max(r["ready"] for r in rows), max(r["ended"] for r in rows)
    shares = [min(1, max(0, r["ended"] - ready) / (r["ended"] - r["began"])) for r in rows]  # of what began before
    return sum(shares) / (end - ready)


def bench_actors(b):
    import ray

    o = b.o
    o.cores = max(1, len(os.sched_getaffinity(0)) // o.devices)
    gpus = {} if o.device == "cpu" else {"num_gpus": o.devices}
    ray.init(num_cpus=o.cores * o.devices, include_dashboard=False, logging_level="ERROR",
             runtime_env={"env_vars": {"PYTHONPATH": f"{HERE}:{os.environ.get('PYTHONPATH', '')}"}}, **gpus)
    n = o.batch * o.devices * max(2, math.ceil(o.seconds * run_actors(o, 1, 2 * o.batch) / (o.batch * o.devices)))
    rates = {n_actors: [] for n_actors in (1, o.devices)}
    for _ in range(o.rounds):
        for n_actors, found in rates.items():
            found.append(run_actors(o, n_actors, n))
    for n_actors, found in rates.items():
        rate = statistics.median(found)
        b.write(f"{n_actors} actors", clips_per_s=rate, clips=n, cores=o.cores, over_one=rate / statistics.median(rates[1]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("import", "cache", "encode", "forward", "actors"))
    parser.add_argument("--model", metavar="DIR")
    parser.add_argument("--clip", action="append", metavar="FILE", help="repeatable for actors")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of forward and actors (cpu)")
    parser.add_argument("--devices", type=int, default=2, metavar="N", help="of actors (2)")
    parser.add_argument("--batch", type=int, default=64, metavar="N", help="rows that an actor gets at once (64)")
    parser.add_argument("--seconds", type=float, default=20, metavar="S", help="of one actor's run (20)")
    parser.add_argument("--fps", type=float, metavar="F", help="of actors")
    parser.add_argument("--grid", default="1,20,38", metavar="T,H,W", help="of forward: frame pairs, patch rows, columns")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="default: 3")
    parser.add_argument("--json", metavar="FILE")
    o = parser.parse_args()
    for need in {"encode": ("model", "clip"), "forward": ("model",), "actors": ("model", "clip")}.get(o.what, ()):
        if not getattr(o, need):
            parser.error(f"{o.what} needs --{need}")
    return globals()[f"bench_{o.what}"](Bench(o)) or 0


if __name__ == "__main__":
    sys.exit(main())
