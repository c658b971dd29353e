# SPDX-License-Identifier: MIT
import json
import os
import struct

import numpy as np
import pytest

import qwenvit

GOLDEN = os.path.join(os.path.dirname(__file__), "..", "..", "tests", "golden")
NUMPY = {"F32": np.float32, "I64": np.int64, "U8": np.uint8, "F64": np.float64, "BF16": np.uint16,
         "F16": np.float16}


def read_safetensors(path):
    """By hand: what is written must be the format, not what our own reader makes of it."""
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


@pytest.fixture(scope="session")
def golden():
    return os.path.join(GOLDEN, "qwen3_vl")


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
    """A clip of 8 frames."""
    image = pytest.importorskip("PIL.Image")
    path = tmp_path_factory.mktemp("clips") / "clip.gif"
    pictures = [image.fromarray(f) for f in [*frames, *frames[::-1]]]
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=100)
    return path


def distances(x, truth):
    x, truth = np.asarray(x, np.float64), np.asarray(truth, np.float64)
    return np.linalg.norm(x - truth, axis=1) / np.linalg.norm(truth, axis=1)
