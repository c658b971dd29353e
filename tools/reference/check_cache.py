#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Reads a cache with the safetensors package alone, by docs/cache.md, and compares what it finds with
what `qwenvit cache get` writes.

    check_cache.py FOLDER [--qwenvit build/release/qwenvit] [--keys 20]

Exit 1: a part, a record or a tensor is not as the page says, or differs.
"""
import argparse
import glob
import json
import os
import random
import subprocess
import sys
import tempfile

import torch
from safetensors import safe_open

try:
    import xxhash
except ImportError:  # without xxhash the checksums are skipped, and a line says so
    xxhash = None

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


def raw(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def names_of(description):
    tokens = description["tokens"]
    if tokens["packed"]:
        return ["packed"]
    return ["tokens"] + [f"deepstack.{i}" for i in range(tokens["n_deepstack"])]


def check_key(f, record, description):
    """Returns the key's tensors by name."""
    key, tokens = record["key"], description["tokens"]
    names = names_of(description) + ["grid_thw", "timestamps"]
    found = {name: f.get_tensor(f"{key}/{name}") for name in names}
    columns = tokens["width"] * (1 + tokens["n_deepstack"] if tokens["packed"] else 1)
    for name in names_of(description):
        assert found[name].dtype == DTYPES[tokens["dtype"]], (key, name, found[name].dtype)
        assert found[name].shape[1] == columns and found[name].shape[0] > 0, (key, name)
        assert found[name].shape == found[names[0]].shape, (key, name)
    assert found["grid_thw"].shape == (1, 3) and found["grid_thw"].dtype == torch.int64, key
    assert found["timestamps"].dtype == torch.float64, key
    assert record["frames"] == found["timestamps"].shape[0], key
    if "picture" in record:
        assert isinstance(record["picture"], bool) and record.get("sampled_fps", 1) > 0, key
        assert ("sampled_fps" in record) != record["picture"], key
    if xxhash:
        each = b"".join(xxhash.xxh3_64_digest(raw(found[name])) for name in names)
        assert xxhash.xxh3_64_hexdigest(each) == record["xxh3"], (key, "checksum")
    return found


def check_part(path, description, records):
    with safe_open(path, "pt") as f:
        metadata = f.metadata()
        assert metadata["format"] == "qwenvit-cache" and metadata["version"] == "1", path
        expected = set()
        for record in json.loads(metadata["records"]):
            key = record["key"]
            if record["status"] == "ok":
                expected.update(f"{key}/{name}" for name in check_key(f, record, description))
            records.setdefault(key, []).append((int(metadata["sealed"]), path, record))
        tensors = {name for name in f.keys() if not name.startswith("__unused.")}
        assert tensors == expected, (path, tensors ^ expected)


def choose(found):
    """Returns (record, part) of the key's last record; or of its last ok record, if that is of the
    same source."""
    _, path, last = max(found, key=lambda one: one[:2])
    good = [one for one in found if one[2]["status"] == "ok"]
    if good:
        _, part, ok = max(good, key=lambda one: one[:2])
        if all(ok.get(f) == last.get(f) for f in ("path", "start", "end", "options", "bytes", "mtime")):
            return ok, part
    return last, path


def compare_get(args, key, path, names):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "one.safetensors")
        subprocess.run([args.qwenvit, "cache", "get", args.folder, key, "-o", out],
                       check=True)
        with safe_open(out, "pt") as got, safe_open(path, "pt") as part:
            assert sorted(got.keys()) == sorted(names), (key, got.keys())
            for name in names:
                assert raw(got.get_tensor(name)) == raw(part.get_tensor(f"{key}/{name}")), (key, name)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--qwenvit", default="build/release/qwenvit")
    parser.add_argument("--keys", type=int, default=20, help="to compare with `cache get`")
    args = parser.parse_args()
    with open(os.path.join(args.folder, "qwenvit-cache.json"), encoding="utf-8") as f:
        description = json.load(f)
    records = {}
    parts = sorted(glob.glob(os.path.join(glob.escape(args.folder), "part-*.safetensors")))
    for path in parts:
        check_part(path, description, records)
    records = {key: choose(found) for key, found in records.items()}
    ok = sorted(key for key, (record, _) in records.items() if record["status"] == "ok")
    names = names_of(description) + ["grid_thw", "timestamps"]
    for key in random.Random(1).sample(ok, min(args.keys, len(ok))):
        compare_get(args, key, records[key][1], names)
    print(f"{len(parts)} parts, {len(ok)} keys ok, {len(records) - len(ok)} failed"
          + ("" if xxhash else "; checksums left out: there is no xxhash package"))


if __name__ == "__main__":
    try:
        main()
    except AssertionError as e:
        sys.exit(f"check_cache.py: {e}")
