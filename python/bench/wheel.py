# SPDX-License-Identifier: MIT
"""Times the wheel: importing it, reading a cache, encoding many clips. Prints a JSON object on each
line.

python python/bench/wheel.py [--model DIR] [--clip FILE] [--rounds 3]

With --model and --clip (such as `qwenvit synth --clip` makes), 400 copies of the clip are encoded
by Model.encode and by the command, in turn. The cache is made below the folder for temporary files
(0.9 GB).
"""
import argparse
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import numpy as np

import qwenvit

WIDTH, ROWS, KEYS, READS, CLIPS = 4096, 384, 300, 1000, 400  # 3 MiB for each key, in bf16


def seconds(clock, work, *arguments):
    began = clock()
    work(*arguments)
    return clock() - began


def bench_import(rounds):
    code = "import time; b = time.perf_counter(); import qwenvit; print(time.perf_counter() - b)"
    times = [float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(rounds)]
    return {"bench": "import", "seconds": min(times)}


# ---- a cache -----------------------------------------------------------------------------------------


def make_cache(folder):
    """Writes a cache of one part with tokens alone, without our own writer."""
    tokens = {"dtype": "bf16", "width": WIDTH, "n_deepstack": 0, "packed": False}
    with open(os.path.join(folder, "qwenvit-cache.json"), "w") as f:
        json.dump({"format": "qwenvit-cache", "version": "1", "tokens": tokens}, f)
    header, records, at = {}, [], 0
    for i in range(KEYS):
        for name, dtype, shape, size in (("tokens", "BF16", [ROWS, WIDTH], 2), ("grid_thw", "I64", [1, 3], 8),
                                         ("timestamps", "F64", [1], 8)):
            n = int(np.prod(shape)) * size
            header[f"{i}/{name}"] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + n]}
            at += n + -n % 64
        records.append({"key": str(i), "status": "ok"})
    header["__metadata__"] = {"format": "qwenvit-cache", "version": "1", "sealed": "1",
                              "records": json.dumps(records)}
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % 4096)
    block = np.random.default_rng(0).integers(0, 256, 1 << 24, np.uint8).tobytes()
    with open(os.path.join(folder, "part-00000-of-00001-a-b-000000.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for begin in range(0, at, len(block)):
            f.write(block[: at - begin])


def bench_cache(rounds):
    """Copies 1,000 random keys out of a warm page cache by a Cache that has mapped nothing before,
    and compares with as many copies between as many places in memory. Times are seconds of the
    processor, which other work on the machine does not change."""
    keys = [str(k) for k in np.random.default_rng(1).integers(0, KEYS, READS)]
    out = np.empty((ROWS, WIDTH), np.uint16)
    memory = np.random.default_rng(2).integers(0, 1 << 16, (KEYS, ROWS, WIDTH), np.uint16)

    def read(cache):
        for key in keys:
            np.copyto(out, cache[key].tokens.view(np.uint16))

    def copy():
        for key in keys:
            np.copyto(out, memory[int(key)])

    with tempfile.TemporaryDirectory() as folder:
        make_cache(folder)
        read(qwenvit.Cache(folder))
        copied, mapped = [], []
        for _ in range(rounds):
            copied.append(seconds(time.process_time, copy))
            mapped.append(seconds(time.process_time, read, qwenvit.Cache(folder)))
        entry = qwenvit.Cache(folder)["7"].tokens
        assert not entry.flags.owndata
    gigabytes = READS * out.nbytes / 1e9
    rates = [gigabytes / statistics.median(times) for times in (mapped, copied)]
    return {"bench": "cache", "keys": READS, "bytes": out.nbytes, "read_gb_s": rates[0], "memcpy_gb_s": rates[1],
            "over_memcpy": rates[0] / rates[1]}


# ---- many clips --------------------------------------------------------------------------------------

ENCODE = """
import sys, qwenvit
model, clip, out, n = sys.argv[1:]
sources = [{"path": clip, "key": str(i)} for i in range(int(n))]
for t in qwenvit.load(model, backend="cpu").encode(sources):
    t.save(f"{out}/{t.key}.safetensors")
"""


def bench_encode(model, clip, rounds):
    """Runs both as processes, from their start to the last file. Returns seconds, and seconds of
    the processors."""

    def used():
        t = os.times()
        return t.children_user + t.children_system

    wall, cpu = {"python": [], "command": []}, {"python": [], "command": []}
    with tempfile.TemporaryDirectory() as folder:
        listing, out = os.path.join(folder, "list"), os.path.join(folder, "out")
        with open(listing, "w") as f:
            f.writelines(json.dumps({"path": os.path.abspath(clip), "key": str(i)}) + "\n" for i in range(CLIPS))
        ways = {
            "python": [sys.executable, "-c", ENCODE, model, clip, out, str(CLIPS)],
            "command": [sys.executable, "-m", "qwenvit", "encode", "--list", listing, "--model", model,
                        "--backend", "cpu", "--output-dtype", "f32", "-o", out],
        }
        for _ in range(rounds):
            for way, command in ways.items():
                shutil.rmtree(out, ignore_errors=True)
                os.mkdir(out)
                before, began = used(), time.perf_counter()
                subprocess.run(command, check=True, capture_output=True)
                wall[way].append(time.perf_counter() - began)
                cpu[way].append(used() - before)
                assert len(os.listdir(out)) == CLIPS
    record = {"bench": "encode", "clips": CLIPS, "over_command": ratio(wall), "cpu_over_command": ratio(cpu)}
    return {**record, "seconds": wall, "cpu_seconds": cpu}


def ratio(times):
    return statistics.median(times["python"]) / statistics.median(times["command"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--clip")
    parser.add_argument("--rounds", type=int, default=3)
    o = parser.parse_args()
    print(json.dumps(bench_import(o.rounds)), flush=True)
    print(json.dumps(bench_cache(o.rounds)), flush=True)
    if o.model and o.clip:
        print(json.dumps(bench_encode(o.model, o.clip, o.rounds)))


if __name__ == "__main__":
    main()
