# SPDX-License-Identifier: MIT
"""Converts a cache of version 1, which is written here as 0.3.0's docs/cache.md describes it, and
compares record by record."""

import json
import os
import resource
import struct
import subprocess

import numpy as np
import pytest

import qwenvit
from conftest import COMMAND, command, refused
from qwenvit import _convert

WIDTH = 4


def write_old(folder, number, sealed, clips, failed=()):
    header, data, records, unused = {}, b"", [], 0

    def put(name, dtype, array):
        nonlocal data
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()

    for key, (first, about) in clips.items():
        for i, name in enumerate(("tokens", "deepstack.0")):
            put(f"{key}/{name}", "BF16", np.arange(first + i, first + i + 2 * WIDTH, dtype=np.uint16).reshape(2, WIDTH))
            put(f"__unused.{unused}", "U8", np.zeros(48, np.uint8))
            unused += 1
        records.append({"key": key, "path": key, "bytes": 5, "mtime": 7, "status": "ok", "frames": 2, "damaged_frames": 0,
                        "picture": False, "xxh3": "0123456789abcdef", **about})
    for key in clips:
        put(f"{key}/grid_thw", "I64", np.array([[1, 2, 2]]))
        put(f"{key}/timestamps", "F64", np.array([0.0, 0.5]))
    for key in failed:
        records.append({"key": key, "path": key, "bytes": 5, "mtime": 7, "status": "failed", "code": "QV_EIO", "error": 'a "b"'})
    text = json.dumps(records, separators=(",", ":"), ensure_ascii="\ud800" in str(list(clips)))
    header["__metadata__"] = {"format": "qwenvit-cache", "version": "1", "sealed": str(sealed), "records": text}
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-(len(head) + 8) % 4096)
    path = folder / f"part-00000-of-00001-host-{number:08d}-000000.safetensors"
    path.write_bytes(struct.pack("<Q", len(head)) + head + data)
    return {r["key"]: json.dumps(r, separators=(",", ":"), ensure_ascii=False) for r in records}


@pytest.fixture
def old(tmp_path):
    folder = tmp_path / "old"
    folder.mkdir()
    about = {"format": "qwenvit-cache", "version": "1", "model_type": "qwen3_vl",
             "tokens": {"dtype": "bf16", "width": WIDTH, "n_deepstack": 1, "packed": False}}
    (folder / "qwenvit-cache.json").write_text(json.dumps(about))
    return folder


def test_records_and_tensors_are_the_same(old, tmp_path):
    piece = {"start": 1.25, "end": 9.0, "options": '{"fps":1.000000,"max_frames":0,"max_pixels":0,"offset":0,"bytes":0}'}
    first = write_old(old, 1, 100, {"a/b.mp4": (1, {}), "é": (2, {"sampled_fps": 2.5, **piece}), "twice": (3, {}), "bad": (4, {})})
    second = write_old(old, 2, 200, {"twice": (9, {"mtime": 8})}, ["bad", "never"])
    new = tmp_path / "new"
    assert _convert.convert(old, new) == (5, 0, 0)
    cache = qwenvit.Cache(new)
    assert not cache.damaged and set(cache) == {"a/b.mp4", "é", "twice", "bad"} and set(cache.failed) == {"never"}
    # a failure does not take the tokens of the same file away
    expected = {**first, "twice": second["twice"], "never": second["never"]}
    found = {}
    for path in new.glob("part-*"):
        data = path.read_bytes()
        n = 8 + struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8:n])
        assert list(header["__metadata__"])[:2] == ["format", "version"]
        assert header["__metadata__"]["sealed"] == ("100" if "00000001" in path.name else "200")
        begin, end = header["__records"]["data_offsets"]
        for line in data[n + begin : n + end].split(b"\n"):
            found[json.loads(line)["key"]] = line.decode().rstrip(" ")
    assert found == expected
    assert (cache["twice"].tokens.view(np.uint16) == np.arange(9, 17).reshape(2, WIDTH)).all()
    assert (cache["é"].deepstack[0].view(np.uint16) == np.arange(3, 11).reshape(2, WIDTH)).all()
    assert list(cache["a/b.mp4"].timestamps) == [0, 0.5]
    assert _convert.convert(old, new) == (5, 0, 0)  # again: all is there


def test_what_is_wrong_is_told(old, tmp_path):
    write_old(old, 1, 100, {"a": (1, {})})
    write_old(old, 2, 200, {"b": (2, {})})
    part = next(old.glob("*00000002*"))
    part.write_bytes(part.read_bytes()[:-1])
    refused(lambda: qwenvit.Cache(old), "python -m qwenvit convert OLD NEW")
    done = command("convert", old, tmp_path / "new", code=1)
    assert "1 keys; 1 parts left out" in done.stdout and "cut short" in done.stderr
    assert "it must be '1'" in command("convert", tmp_path / "new", tmp_path / "newer", code=3).stderr


def test_a_bad_part_costs_itself(old, tmp_path):
    write_old(old, 1, 100, {"a": (1, {})})
    for number, sealed in enumerate((-5, 2**63 - 1, 10**30), 2):
        write_old(old, number, sealed, {f"b{number}": (2, {})})
    deep = write_old(old, 5, 100, {"c": (3, {})}) and next(old.glob("*00000005*"))
    text = b'{"a":' * 50000
    deep.write_bytes(struct.pack("<Q", len(text)) + text)
    told, new = [], tmp_path / "new"
    assert _convert.convert(old, new, told.append) == (1, 4, 0) and len(told) == 4, told
    [part] = new.glob("part-*")
    part.write_bytes(part.read_bytes()[:1000])
    assert _convert.convert(old, new) == (1, 4, 0) and set(qwenvit.Cache(new)) == {"a"}, "a damaged part is made again"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has it")
def test_a_stdout_that_is_full_is_reported(old, tmp_path):
    with open("/dev/full", "w") as full:
        run = subprocess.run([*COMMAND, "convert", old, tmp_path / "new"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert run.returncode == 3 and run.stderr == "qwenvit: standard output cannot be written: No space left on device\n"


def test_what_is_no_cache_is_refused(old, tmp_path):
    for text in ("[]", "{", "[" * 50000, '{"format":"qwenvit-cache","version":"1"}', None):
        if text is None:
            (old / "qwenvit-cache.json").unlink()
        else:
            (old / "qwenvit-cache.json").write_text(text)
        done = command("convert", old, tmp_path / "new", code=3)
        assert str(old) in done.stderr and "Traceback" not in done.stderr and not (tmp_path / "new").exists(), done


def test_a_bad_key_costs_itself(old, tmp_path):
    """Whatever is wrong with a key of a part, the others of the part are converted."""
    bad = {"no sum": {"xxh3": "0123"}, "__own": {}, "half \ud800": {}, "status": {"status": "done"}, "none": {"key": 7},
           "rows": {"path": None}, "lost": {}}
    write_old(old, 1, 100, {"a": (1, {}), **{key: (2, about) for key, about in bad.items()}, "b": (3, {})}, ["c"])
    part = next(old.glob("part-*"))
    part.write_bytes(part.read_bytes().replace(b'"lost/tokens"', b'"last/tokens"'))
    for _ in range(2):  # run again it says the same
        told = []
        assert _convert.convert(old, tmp_path / "new", told.append) == (3, 0, len(bad)), told
        assert len(told) == len(bad) and all(part.name in words for words in told)
    cache = qwenvit.Cache(tmp_path / "new")
    assert set(cache) == {"a", "b"} and set(cache.failed) == {"c"} and not cache.damaged
    done = command("convert", old, tmp_path / "newer", code=1)
    assert f"3 keys; {len(bad)} keys left out" in done.stdout and "lost" in done.stderr


def test_more_parts_than_files_may_be_open(old, tmp_path):
    for i in range(40):
        write_old(old, i, 100 + i, {f"key {i}": (i, {})})
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (32, limits[1]))
    try:
        told = []
        assert _convert.convert(old, tmp_path / "new", told.append) == (40, 0, 0), told
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
