# SPDX-License-Identifier: MIT
"""Times one actor beside one for each device; each is a qwenvit.adapters.ray.Encoder. Prints a JSON object
on each line.

python python/bench/actors.py --model DIR --clip FILE [--clip FILE..] [--devices 0,1] [--fps 2]
    [--json FILE]

The clips are encoded again and again: as many rows as take one actor --seconds, and then the same
rows by all actors. They run by Ray Data's map_batches if Ray can be imported (--by decides
otherwise), else as processes that get batches from one queue, without Ray's object store. An actor
has --cores cores, whether alone or not. Loading and a first batch come before and are not counted
(start_s): clips_per_s is from when all actors are ready to the end of the last batch. times_one is
the rate of all devices over that of one. Each run must give as many tokens, and no clip may fail.
"""
import argparse
import math
import multiprocessing
import os
import queue
import statistics
import sys
import time

import pyarrow as pa

import qwenvit
import qwenvit.adapters.ray
from records import Records


def loading(device):
    """Returns qwenvit.load's options for "cpu", or for the index of a GPU."""
    place = {"backend": "cpu"} if device == "cpu" else {"backend": "cuda", "device": int(device)}
    return {**place, "dtype": "bf16"}


class Actor:
    """An Encoder that tells when it was ready, and when each batch began and ended."""

    def __init__(self, model, load_options, options, first):
        began = time.time()
        self.encoder = qwenvit.adapters.ray.Encoder(model, load_options=load_options, **options)
        # makes the plans, and starts the decoder's process
        list(self.encoder(pa.Table.from_pylist(first)))
        self.ready, self.start_s = time.time(), time.time() - began

    def __call__(self, batch):
        began = time.time()
        tables = list(self.encoder(batch))
        times = {"ready": self.ready, "start_s": self.start_s, "began": began, "ended": time.time()}
        for table in tables:
            for name, value in times.items():
                table = table.append_column(name, pa.array([value] * len(table), pa.float64()))
            yield table

    def device(self):
        info = self.encoder.model.info
        return {"backend": info["backend"], "threads": 0, "device": info["device"]}


def counted(table):
    """Returns a batch's times and counts: {"ready": .., "began": .., "ended": .., "clips": .., ..}"""
    rows = table.select(["status", "error", "shape"]).to_pylist()
    failed = [row["error"] for row in rows if row["status"] != "ok"]
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(rows)} clips failed, the first: {failed[0]}")
    times = {name: table.column(name)[0].as_py() for name in ("ready", "start_s", "began", "ended")}
    return {**times, "clips": len(rows), "tokens": sum(row["shape"][0] for row in rows)}


# ---- by processes --------------------------------------------------------------------------------------


def work(o, device, cores, batches, said):
    """Runs in an actor's process. It sends ("ready", its device), then ("done", counts) for each
    batch."""
    try:
        os.sched_setaffinity(0, cores)
        actor = Actor(o.model, loading(device), o.options, rows_of(o, o.batch))
        said.put(("ready", {**actor.device(), "threads": len(cores) if device == "cpu" else 0}))
        for rows in iter(batches.get, None):
            said.put(("done", [counted(t) for t in actor(pa.Table.from_pylist(rows))]))
    except BaseException as e:
        said.put(("failed", f"device {device}: {type(e).__name__}: {e}"))


def heard(said, actors):
    """Returns the next message of an actor. Raises if one failed, or ended without a message."""
    while True:
        try:
            what, value = said.get(timeout=1)
        except queue.Empty:
            dead = [a.exitcode for a in actors if a.exitcode]
            if dead:
                raise RuntimeError(f"an actor's process ended with {dead[0]}") from None
            continue
        if what == "failed":
            raise RuntimeError(value)
        return value


def by_processes(o, devices, n):
    """Returns (the counts of all batches, the first actor's device)."""
    context = multiprocessing.get_context("spawn")  # a model does not survive a fork
    batches, said = context.Queue(), context.Queue()
    mine = sorted(os.sched_getaffinity(0))
    actors = [
        context.Process(target=work, args=(o, d, mine[i * o.cores : (i + 1) * o.cores], batches, said), daemon=True)
        for i, d in enumerate(devices)
    ]
    try:
        for actor in actors:
            actor.start()
        machines = [heard(said, actors) for _ in actors]
        rows = rows_of(o, n)
        for at in range(0, n, o.batch):
            batches.put(rows[at : at + o.batch])
        counts = [heard(said, actors) for _ in range(0, n, o.batch)]
        for _ in actors:
            batches.put(None)
        for actor in actors:
            actor.join(60)
    finally:
        for actor in actors:
            if actor.pid and actor.is_alive():
                actor.kill()
    return [c for batch in counts for c in batch], machines[0]


# ---- by Ray --------------------------------------------------------------------------------------------


def by_ray(o, devices, n):
    ray = qwenvit.adapters.ray.ray
    gpu = devices[0] != "cpu"
    if not ray.is_initialized():
        ray.init(num_cpus=o.cores * len(o.devices), include_dashboard=False, logging_level="ERROR",
                 **({"num_gpus": len(o.devices)} if gpu else {}))
        ray.data.DataContext.get_current().enable_progress_bars = False
    data = ray.data.from_items(rows_of(o, n), override_num_blocks=math.ceil(n / o.batch))
    done = data.map_batches(
        Actor, fn_constructor_args=(o.model, loading(0 if gpu else "cpu"), o.options, rows_of(o, o.batch)),
        batch_format="pyarrow", batch_size=o.batch, num_cpus=o.cores, num_gpus=1 if gpu else None,
        compute=ray.data.ActorPoolStrategy(size=len(devices)))
    counts = [counted(t) for t in done.iter_batches(batch_size=None, batch_format="pyarrow") if len(t)]
    found = next(d for d in qwenvit.devices() if d["backend"] == ("cuda" if gpu else "cpu") and "device" in d)
    return counts, {"backend": found["backend"], "threads": 0 if gpu else o.cores, "device": found["device"]}


# ---- both ----------------------------------------------------------------------------------------------


def rows_of(o, n):
    return [{"path": os.path.abspath(o.clip[i % len(o.clip)])} for i in range(n)]


def measure(o, devices, n):
    """Returns a run of n clips. If a batch began before all actors were ready, only the part of its
    time after that counts."""
    counts, machine = (by_ray if o.by == "ray" else by_processes)(o, devices, n)
    ready, end = max(c["ready"] for c in counts), max(c["ended"] for c in counts)
    share = [min(1.0, max(0.0, c["ended"] - ready) / (c["ended"] - c["began"])) for c in counts]
    clips, tokens = (sum(c[name] * s for c, s in zip(counts, share)) for name in ("clips", "tokens"))
    return {"seconds": end - ready, "clips_per_s": clips / (end - ready), "tokens_per_s": tokens / (end - ready),
            "start_s": max(c["start_s"] for c in counts), "tokens": sum(c["tokens"] for c in counts),
            "machine": machine}


class Bench(Records):
    def __init__(self, o):
        super().__init__("actors", o.json)
        self.o, self.name = o, os.path.basename(os.path.normpath(o.model))
        self.case = self.name
        self.facts = {
            "dtype": "bf16", "by": f"Ray {qwenvit.adapters.ray.ray.__version__}" if o.by == "ray" else "processes",
            "version": qwenvit.__version__, "commit": o.commit,
            "day": time.strftime("%Y-%m-%d", time.gmtime()),
            "machine": {"backend": "cpu", "threads": 0, "device": "unknown"}}

    def summary(self, way, devices, n, runs, **more):
        """Returns the time for as many clips as a median run has, so that a table can show times
        too."""
        rates = {k: statistics.median(r[k] for r in runs) for k in ("clips_per_s", "tokens_per_s", "start_s")}
        milliseconds = sorted(1e3 * n / r["clips_per_s"] for r in runs)
        self.write(way, median_ms=statistics.median(milliseconds), p90_ms=milliseconds[-1], repeats=len(runs),
                   clips=n, devices=len(devices), cores=self.o.cores, batch=self.o.batch, **rates, **more)

    def run(self):
        o, ways = self.o, {"one device": self.o.devices[:1], "all devices": self.o.devices}
        few = 2 * o.batch
        seen = self.attempt("calibration", measure, o, o.devices[:1], few)
        if not seen:
            return 1
        whole = o.batch * len(o.devices)
        n = max(2 * whole, math.ceil(o.seconds * seen["clips_per_s"] / whole) * whole)
        self.case, self.facts["machine"] = f"{self.name} {n} clips", seen["machine"]
        runs = {way: [] for way in ways}
        for _ in range(o.rounds):
            for way, devices in ways.items():
                found = self.attempt(way, measure, o, devices, n)
                if found:
                    runs[way].append(found)
        if len({r["tokens"] for rs in runs.values() for r in rs}) > 1:
            self.write("all devices", median_ms=None, failed="runs of the same clips differ in their tokens' number")
            return 1
        one, both = (statistics.median([r["clips_per_s"] for r in runs[w]] or [0]) for w in ways)
        for way, devices in ways.items():
            if runs[way]:
                more = {"times_one": both / one} if way == "all devices" and one else {}
                self.summary(way, devices, n, runs[way], **more)
        return 0 if one and both else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, metavar="DIR")
    parser.add_argument("--clip", required=True, action="append", metavar="FILE", help="repeatable")
    parser.add_argument("--devices", default="0,1", metavar="LIST",
                        help='GPUs by index, or as many times "cpu" (0,1)')
    parser.add_argument("--by", choices=("ray", "processes"), help="default: ray where it is installed")
    parser.add_argument("--cores", type=int, metavar="N", help="of an actor (all, shared out)")
    parser.add_argument("--batch", type=int, default=64, metavar="N", help="rows (64)")
    parser.add_argument("--seconds", type=float, default=20, metavar="S", help="of one device's run (20)")
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="of one and all, in turns (2)")
    parser.add_argument("--fps", type=float, metavar="F")
    parser.add_argument("--max-frames", type=int, metavar="N")
    parser.add_argument("--commit", default="", metavar="ID", help="of what is measured, for the records")
    parser.add_argument("--json", metavar="FILE", help="append the records to FILE")
    o = parser.parse_args()
    o.devices = o.devices.split(",")
    if not all(d == "cpu" or d.isdecimal() for d in o.devices) or len(set(o.devices)) > 1 and "cpu" in o.devices:
        raise SystemExit(f'--devices {",".join(o.devices)}: GPUs by index, or "cpu" for each actor')
    o.by = o.by or ("ray" if qwenvit.adapters.ray.ray else "processes")
    if o.by == "ray" and not qwenvit.adapters.ray.ray:
        raise SystemExit(f"--by ray: {qwenvit.adapters.ray.no_ray}")
    for name, least in (("batch", 1), ("rounds", 1), ("seconds", 0)):
        if getattr(o, name) < least:
            raise SystemExit(f"--{name} {getattr(o, name)}: {least} or more")
    there = len(os.sched_getaffinity(0))
    o.cores = o.cores or max(1, there // len(o.devices))
    if o.cores < 1 or o.by == "processes" and o.cores * len(o.devices) > there:
        raise SystemExit(f"--cores {o.cores}: {len(o.devices)} actors have {there} cores between them")
    o.options = {k: v for k, v in (("fps", o.fps), ("max_frames", o.max_frames)) if v}
    return Bench(o).run()


if __name__ == "__main__":
    sys.exit(main())
