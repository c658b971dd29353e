# SPDX-License-Identifier: MIT
import concurrent.futures
import functools
import glob
import json
import os
import shutil
import struct
import subprocess
import sys
import time

import numpy as np
import pytest

import qwenvit

# every process that a test starts has this wheel too, wherever it runs
SITE = os.path.dirname(os.path.dirname(os.path.abspath(qwenvit.__file__)))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [SITE, os.environ.get("PYTHONPATH")]))
COMMAND = [sys.executable, "-m", "qwenvit"]
ON_CPU = ["--backend", "cpu", "--dtype", "f32", "--threads", "2"]  # as the fixture `model` is
GOLDEN = os.path.join(os.path.dirname(__file__), "..", "..", "tests", "golden")
NUMPY = {"F32": np.float32, "I64": np.int64, "U8": np.uint8, "F64": np.float64, "BF16": np.uint16,
         "F16": np.float16}


def read_safetensors(path):
    """Reads a file without our own reader, since files must be in the format, and not merely what our reader
    accepts."""
    data = open(path, "rb").read()
    (n,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + n])
    meta = header.pop("__metadata__", {})
    tensors = {}
    for name, t in header.items():
        first, last = (8 + n + v for v in t["data_offsets"])
        if t["dtype"] in NUMPY:
            tensors[name] = np.frombuffer(data[first:last], NUMPY[t["dtype"]]).reshape(t["shape"])
    return tensors, meta


def another_tower(golden, folder, file, **change):
    """Copies a checkpoint with other values in one of its files. Returns the copy, which has the same weights."""
    shutil.copytree(golden, folder)
    with open(os.path.join(folder, file), encoding="utf-8") as f:
        values = json.load(f)
    for key, value in change.items():
        values[key] = {**values[key], **value} if isinstance(value, dict) else value
    with open(os.path.join(folder, file), "w", encoding="utf-8") as f:
        json.dump(values, f)
    return str(folder)


@pytest.fixture(scope="session")
def golden():
    return os.path.join(GOLDEN, "qwen3_vl")


@pytest.fixture(scope="session")
def native(golden):
    """A backend that computes in bf16 here."""
    return "cpu" if qwenvit.load(golden, backend="cpu").info["dtype"] == "bf16" else "ref"


@pytest.fixture(scope="session")
def expected(golden):
    return read_safetensors(os.path.join(golden, "expected.safetensors"))[0]


@pytest.fixture(scope="session")
def model(golden):
    return qwenvit.load(golden, backend="cpu", dtype="f32", threads=2)


@pytest.fixture(scope="session")
def frames():
    return np.random.default_rng(1).integers(0, 256, (4, 70, 90, 3), dtype=np.uint8)


@pytest.fixture(scope="session")
def clip(tmp_path_factory, frames):
    """Returns a clip of 8 frames."""
    image = pytest.importorskip("PIL.Image")
    path = tmp_path_factory.mktemp("clips") / "clip.gif"
    images = [image.fromarray(f) for f in [*frames, *frames[::-1]]]
    images[0].save(path, save_all=True, append_images=images[1:], duration=100)
    return path


def plain_clip():
    """Returns the bytes of a clip (YUV4MPEG2) of 8 frames of 64x48, which no animation could be."""
    rows = np.random.default_rng(5).integers(0, 256, (8, 64 * 48 * 3 // 2), dtype=np.uint8)
    return b"YUV4MPEG2 W64 H48 F10:1 Ip C420jpeg\n" + b"".join(b"FRAME\n" + row.tobytes() for row in rows)


@pytest.fixture
def own(golden):
    """A model that a test may close."""
    return qwenvit.load(golden, backend="cpu", dtype="f32", threads=1)


@pytest.fixture
def one_item(own, expected):
    """Returns the rows and the grid of an item, and room for its tokens, as forward_at takes them."""
    grid = [int(v) for v in expected["grid_thw"][0]]
    rows = expected["pixel_values"][: grid[0] * grid[1] * grid[2]]
    return rows, grid, np.empty((1 + own.info["n_deepstack"], len(rows) // 4, own.info["out_hidden"]), np.float32)


@pytest.fixture(scope="session")
def movie(tmp_path_factory):
    """Returns a clip with 100 frames of 320x240."""
    path = tmp_path_factory.mktemp("movie") / "whole.mp4"
    command("synth", "--clip", path)
    return path


@pytest.fixture(scope="session")
def torn(movie):
    """Returns a clip, and the same clip with damaged frames."""
    path, data = movie.with_name("torn.mp4"), bytearray(movie.read_bytes())
    first = data.index(b"mdat")
    data[first + len(data) // 3 : first + len(data) // 3 + 3000] = bytes(3000)
    path.write_bytes(data)
    return str(movie), str(path)


def refused(call, words="", status=None):
    """Checks that a call raises qwenvit.Error with such words, and returns that."""
    with pytest.raises(qwenvit.Error, match=words or None) as e:
        call()
    assert status in (None, e.value.status)
    return e.value


def python(code, *arguments, cwd=None, **env):
    """Runs code in a process of its own."""
    return subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=120, cwd=cwd,
                          env={**os.environ, **env})


def command(*arguments, code=0, **env):
    """Runs the command, which must end with that code."""
    run = subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=120, env={**os.environ, **env})
    assert run.returncode == code, run
    return run


def added(model, folder, rows, **options):
    """Adds rows to a cache, and returns the counts."""
    with qwenvit.CacheWriter(model, folder, **options) as cache:
        return cache.add(rows)


def in_a_fork(call):
    """Calls it in a forked process, where it must not raise."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            call()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def together(*calls):
    """Calls each in a thread of its own, and returns what they return."""
    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(120) for future in [pool.submit(call) for call in calls]]


def wait_until(holds):
    until = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < until, "it never happens"
        time.sleep(0.01)


def threads():
    return set(os.listdir("/proc/self/task"))


def distances(x, truth):
    x, truth = np.asarray(x, np.float64), np.asarray(truth, np.float64)
    return np.linalg.norm(x - truth, axis=1) / np.linalg.norm(truth, axis=1)


@functools.lru_cache
def bits_depend_on_place():
    """Whether `info` says that this CPU (without AVX-512) gives other bits at another place of a
    chunk."""
    return "at other places" in command("info", os.path.join(GOLDEN, "qwen3_vl"), "--backend", "cpu").stdout


class Values:
    """Returns a value that equals a tensor with the same bits; or with nearly the same values, if
    bits depend on the place."""

    def __init__(self, array):
        self.array = array

    def wide(self):
        bf16 = self.array.dtype == np.uint16
        return (self.array.astype(np.uint32) << 16).view(np.float32) if bf16 else self.array.astype(np.float64)

    def __eq__(self, other):
        mine, theirs = self.array, other.array
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            return False
        if mine.tobytes() == theirs.tobytes():
            return True
        return bits_depend_on_place() and np.allclose(self.wide(), other.wide(), rtol=1e-2, atol=1e-3)


def contents(folder):
    """Returns {key: (its record, its tensors)} by the reader's rule, and the cache's description.
    """
    best = {}
    for part in sorted(glob.glob(os.path.join(folder, "part-*.safetensors"))):
        tensors, meta = read_safetensors(part)
        for r in map(json.loads, bytes(tensors["__records"]).split(b"\n")):
            mine = {n: Values(t) for n, t in tensors.items() if n.rpartition("/")[0] == r["key"]}
            if bits_depend_on_place():
                r.pop("xxh3", None)
            order = (r["status"] == "ok", int(meta["sealed"]), part)
            if r["key"] not in best or best[r["key"]][0] < order:
                best[r["key"]] = (order, r, mine)
    with open(os.path.join(folder, "qwenvit-cache.json"), encoding="utf-8") as f:
        return {key: found[1:] for key, found in best.items()}, json.load(f)


@pytest.fixture(scope="session")
def rows(clip, frames, tmp_path_factory):
    """Sources for a list: clips and images, options of their own, a piece of a clip, an odd key, a
    clip inside a file, and two that fail."""
    folder = tmp_path_factory.mktemp("rows")
    for i in range(6):
        (folder / f"p{i}.ppm").write_bytes(b"P6\n90 70\n255\n" + frames[i % 4].tobytes())
    (folder / "bad.mp4").write_bytes(b"nonsense" * 100)
    shard, data = folder / "shard.tar", clip.read_bytes()
    shard.write_bytes(b"\0" * 512 + data + b"\0" * 77)
    rows = [{"path": str(folder / f"p{i}.ppm")} for i in range(6)]
    rows += [{"path": str(clip)}, {"path": str(clip), "key": "an odd/key é", "fps": 2.5, "max_frames": 4},
             {"path": str(clip), "key": "cut", "start": 0.5, "end": 1.5},
             {"path": str(clip), "key": "small", "max_pixels": 8192},
             {"path": str(shard), "key": "inside", "offset": 512, "bytes": len(data)},
             {"path": str(folder / "bad.mp4")}, {"path": str(folder / "none.mp4")}]
    return rows


@pytest.fixture(scope="session")
def listed(rows, tmp_path_factory):
    path = tmp_path_factory.mktemp("list") / "clips.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
