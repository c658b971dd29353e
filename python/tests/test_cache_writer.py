# SPDX-License-Identifier: MIT
"""A cache that Python writes is the one that `qwenvit cache` makes: it has the same records and the
same bits."""

import ctypes
import ctypes.util
import json
import os
import re
import signal
import threading
import time

import numpy as np
import pytest

import qwenvit
from conftest import ON_CPU, Values, added, command, contents, in_a_fork, python, read_safetensors, refused


def fill(golden, listed, out, *options):
    return command("cache", "fill", "--model", golden, *ON_CPU, "--quiet", "--list", listed, "-o", out, *options, code=1).stdout


OPTIONS = [
    ({}, []),
    ({"fps": 5}, ["--fps", "5"]),
    ({"tokens": "f32", "deepstack": False, "like": "qwen-vl-utils"},
     ["--tokens", "f32", "--no-deepstack", "--like", "qwen-vl-utils"]),
]


@pytest.mark.parametrize("ours, theirs", OPTIONS)
def test_it_is_what_the_command_makes(model, golden, rows, listed, tmp_path, ours, theirs):
    fill(golden, listed, tmp_path / "theirs", *theirs)
    with qwenvit.CacheWriter(model, tmp_path / "ours", **ours) as cache:
        counts = cache.add(rows)
        assert not cache.damaged and set(cache.failed) >= {row["path"] for row in rows[-2:]}
    mine, made_by = contents(tmp_path / "ours")
    assert (mine, made_by) == contents(tmp_path / "theirs")
    failed = {key for key, (record, _) in mine.items() if record["status"] == "failed"}
    small = {"small"} if "like" in ours else set()  # fewer pixels than that package allows
    assert failed == {row["path"] for row in rows[-2:]} | small
    read = qwenvit.Cache(tmp_path / "ours")
    assert counts == {"done": len(read), "failed": len(failed), "there": 0, "failed_before": 0,
                      "tokens": sum(len(entry.tokens) for entry in read.values())}


def test_a_forked_child_leaves_its_parents_writer_alone(model, rows, tmp_path):
    cache = qwenvit.CacheWriter(model, tmp_path / "cache")
    cache.add(rows[:1])

    def child():
        for call in (cache.close, lambda: cache.add(rows[1:2])):
            refused(call, "another process", "QV_ESTATE")
        cache.__dict__.clear()

    in_a_fork(child)
    assert cache.add(rows[1:2])["done"] == 1
    cache.close()
    assert len(qwenvit.Cache(tmp_path / "cache")) == 2


def test_a_record_says_what_encode_says(model, golden, rows, tmp_path):
    """An entry tells what Tokens tell, with the same bits, and what qwenvit encode writes as
    metadata."""
    added(model, tmp_path / "cache", rows[:-2], fps=3)
    cache = qwenvit.Cache(tmp_path / "cache")
    keys = {row.get("key", row["path"]) for row in rows[:-2]}
    assert set(cache) == keys and {e.is_image for e in cache.values()} == {False, True}
    for row in rows[:-2]:
        entry = cache[row.get("key", row["path"])]
        tokens = model.encode({{"bytes": "length"}.get(k, k): v for k, v in row.items()}, fps=row.get("fps", 3))
        for name in ("is_image", "sampled_fps", "second_per_grid_ts"):
            assert getattr(entry, name) == getattr(tokens, name), (entry.key, name)
        assert entry.is_image == (entry.sampled_fps is None)
    clip = str(rows[6]["path"])
    command("encode", "--model", golden, *ON_CPU, "--fps", "3", clip, "-o", tmp_path / "k.safetensors")
    about = json.loads(read_safetensors(tmp_path / "k.safetensors")[1]["preprocessing"])
    for name in ("sampled_fps", "second_per_grid_ts"):
        assert getattr(cache[clip], name) == about[name] > 0


def test_a_model_at_work_fills_a_cache_and_one_that_was_closed_none(golden, clip, tmp_path):
    model = qwenvit.load(golden, backend="cpu", dtype="f32", threads=2)
    results = model.encode([clip, clip])
    next(results)
    assert added(model, tmp_path, [clip])["done"] == 1
    assert len(list(results)) == 1
    model.close()
    refused(lambda: qwenvit.CacheWriter(model, tmp_path), "was closed")


def test_either_goes_on_where_the_other_ended(model, golden, rows, listed, tmp_path):
    assert added(model, tmp_path, rows[3:])["done"] == 8
    assert "3 done" in fill(golden, listed, tmp_path) and len(os.listdir(tmp_path)) == 3
    assert added(model, tmp_path, rows) == {"done": 0, "tokens": 0, "failed": 0, "there": 11, "failed_before": 2}
    assert len(os.listdir(tmp_path)) == 3, "nothing to do, and a part was added"
    with qwenvit.CacheWriter(model, tmp_path, retry_failed=True) as cache:
        assert cache.add(rows)["failed"] == 2
        changed = {**rows[9], "max_pixels": 16384}
        assert cache.add([changed])["done"] == 1
    record = contents(tmp_path)[0]["small"][0]
    assert json.loads(record["options"])["max_pixels"] == 16384
    (tmp_path / "part-9-of-9-x.safetensors").write_bytes(b"x")
    with qwenvit.CacheWriter(model, tmp_path) as cache:
        assert len(cache.damaged) == 1 and "part-9" in cache.damaged[0]


def test_what_add_returned_from_is_there_after_a_crash(golden, rows, tmp_path):
    code = """
import json, os, sys, qwenvit
cache = qwenvit.CacheWriter(qwenvit.load(sys.argv[1], backend="cpu", dtype="f32"), sys.argv[2])
cache.add(json.loads(sys.argv[3]))
os._exit(9)
"""
    assert python(code, golden, tmp_path, json.dumps(rows[:3])).returncode == 9 and len(qwenvit.Cache(tmp_path)) == 3


def test_another_cache_is_refused_and_nothing_of_it_is_lost(model, golden, rows, tmp_path):
    added(model, tmp_path, rows[:2])
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    other = qwenvit.load(os.path.join(golden, "..", "qwen3_5"), backend="cpu", dtype="f32", threads=2)
    for writer, options, words in [(other, {}, "model_type"), (model, {"fps": 1}, "preprocessing.options.fps"),
                                   (model, {"tokens": "f32"}, "tokens.dtype"), (model, {"deepstack": False}, "n_deepstack")]:
        refused(lambda: qwenvit.CacheWriter(writer, tmp_path, **options), words, "QV_EFORMAT")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "qwenvit-cache.json").write_text('{"format": "webdataset"}')
    refused(lambda: qwenvit.CacheWriter(model, tmp_path / "other"), "not a qwenvit cache")
    assert before == {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}
    assert len(model.encode(np.zeros((64, 64, 3), np.uint8))), "a model that was refused is the caller's again"


@pytest.mark.parametrize(
    "row, words",
    [({}, "row 1: path is missing"), ({"key": "a"}, "row 1: path is missing"), ({"path": None, "fps": 1}, "path is missing"),
     ({"path": ""}, "path is ''"), (3, "row 1: an int"), ({"path": "a", "key": 3}, "key is 3"),
     ({"path": "a", "fsp": 3}, "unknown field 'fsp'"), ({"path": "a", "fps": "2"}, "fps is '2'"),
     ({"path": "a", "max_frames": True}, "max_frames is True"), ({"path": "a", "start": 2, "end": 1}, '"end" .1. must be greater'),
     ({"bytes": b"x"}, "row 1: key is missing; a source in memory"), ({"key": "a", "bytes": b""}, "the bytes are empty"),
     ({"key": "a", "bytes": 7}, "path is missing"), ({"key": "a", "image": "a.png"}, "row 1: image is a path"),
     ({"key": "a", "frames": np.zeros((2, 8, 8), np.float32)}, "row 1: frames: .*uint8"),
     ({"key": "a", "frames": np.zeros((2, 8, 8, 3), np.uint8), "bytes": b"x"}, "row 1: .*one of"),
     ({"path": "a", "fps": 10**5000}, "fps is an int; it must be"),
     ({"path": "\ud800"}, "path is .*; it must be a"), ({"path": "a\0b"}, "NUL"), ({"path": "a", "key": "a\0b"}, "key is 'a.x00b'; it must be"),
     ({"path": "a", "key": "__a"}, "__a"),
     ({"path": "a", "bytes": b"x"}, "bytes is b'x'"), ({"path": "a", "offset": 1 << 80}, "row 1: offset"),
     ({"path": "first"}, "key 'first' is already used by row 0")],
)
def test_bad_rows_are_refused_before_any_work(model, tmp_path, row, words):
    with qwenvit.CacheWriter(model, tmp_path) as cache:
        refused(lambda: cache.add(["first", row]), words)
    assert os.listdir(tmp_path) == ["qwenvit-cache.json"]


def test_bad_options_and_calls(model, clip, tmp_path):
    for options, words in [({"tokens": "q4"}, "q4"), ({"fsp": 1}, "unknown option fsp"), ({"part_bytes": -1}, "-1"),
                           ({"tokens": None}, "tokens is None; it must be 'bf16' or"),
                           ({"tokens": "f16"}, "tokens is 'f16'; it must be 'bf16' or 'f32'"),
                           ({"deepstack": "no"}, "deepstack is 'no'"), ({"retry_failed": None}, "retry_failed is None"),
                           ({"part_bytes": 1.5}, "part_bytes is 1.5; it must be an integer"),
                           ({"part_bytes": 1 << 70}, "part_bytes is 118"), ({"part_seconds": float("nan")}, "is nan"),
                           ({"part_seconds": "5"}, "part_seconds is '5'"), ({"decoders": True}, "decoders is True")]:
        refused(lambda: qwenvit.CacheWriter(model, tmp_path / "a", **options), words)
    for wrong, words in [((None, tmp_path), "model is None"), ((model, None), "folder is None"),
                         ((model, "a\0b"), "folder is 'a")]:
        refused(lambda: qwenvit.CacheWriter(*wrong), words)
    refused(lambda: qwenvit.CacheWriter(model, tmp_path / "no" / "where"), "folder")
    cache = qwenvit.CacheWriter(model, tmp_path / "b")
    for rows in ("a.mp4", None, 3, {"path": "a.mp4"}):
        refused(lambda: cache.add(rows), "must be a list")
    refused(lambda: cache.add([clip], progress=True), "progress is True; it must be a function")
    cache.close()
    cache.close()
    refused(lambda: cache.add([clip]), "closed")


# ---- what is in memory -----------------------------------------------------------------------------


def test_what_is_in_memory_has_the_tokens_of_encode(model, clip, frames, tmp_path):
    from PIL import Image

    sources = {"file": {"bytes": bytearray(clip.read_bytes()), "fps": 5}, "frames": {"frames": frames},
               "image": {"image": frames[0], "max_pixels": 65536}, "one frame": {"frames": frames[:1]},
               "one image": {"image": frames[0]}, "pil": {"image": Image.fromarray(frames[1])},
               "small": {"frames": frames, "fps": 4, "max_pixels": 8192}}
    rows = [{"key": key, **source} for key, source in sources.items()]
    assert added(model, tmp_path, rows, tokens="f32")["done"] == 7
    cache = qwenvit.Cache(tmp_path)
    assert len(cache["small"]) < len(cache["frames"])
    for key, source in sources.items():
        entry, tokens = cache[key], model.encode(source)
        assert Values(entry.packed()) == Values(tokens.packed()) and (entry.grid_thw == tokens.grid_thw).all()
        assert entry.is_image == tokens.is_image and entry.sampled_fps == tokens.sampled_fps
        assert re.fullmatch("xxh3:[0-9a-f]{16}", contents(tmp_path)[0][key][0]["path"])
        entry.verify()
    assert (cache["one frame"].is_image, cache["one image"].is_image) == (False, True)
    command("cache", "check", tmp_path)


def test_progress_is_told_and_what_it_raises_ends_the_run(model, clip, tmp_path):
    rows, seen = [{"path": str(clip), "key": str(i)} for i in range(40)], []
    with qwenvit.CacheWriter(model, tmp_path) as cache:
        assert cache.add(rows[:3], progress=seen.append)["done"] == 3
        assert seen and {"added", "done", "failed", "tokens", "seconds", "limit"} <= set(seen[0])
        for call in (cache.close, lambda: cache.add(rows)):
            refused(lambda: cache.add(rows[3:4], progress=lambda _: call()), "let it return first")
        with pytest.raises(ZeroDivisionError):
            cache.add(rows, progress=lambda _: 1 / 0)
        assert cache.add(rows[3:])["done"] == 37  # the writer goes on
    assert len(qwenvit.Cache(tmp_path)) == 40


def test_ctrl_c_is_heard_while_more_clips_wait_than_the_queue_holds(model, clip, tmp_path):
    """Whenever it is ended later, what was done stays."""
    rows = [{"path": str(clip), "key": str(i)} for i in range(600)]
    slow = {"num_frames": 768, "min_pixels": 90 * 70}
    with qwenvit.CacheWriter(model, tmp_path / "cache", **slow) as cache:
        assert cache.add([{"path": str(clip), "key": "first"}])["done"] == 1
        timer = threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT))
        began = time.monotonic()
        # a shell's background job ignores the signal
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            cache.add(rows)
        signal.signal(signal.SIGINT, before)
        assert time.monotonic() - began < 30
    assert "first" in qwenvit.Cache(tmp_path / "cache")
    assert model.encode(clip) is not None  # the model is free again


def test_caps_pixels(model, clip):
    assert model.encode(clip, cap_pixels=True).grid_thw.tolist() == model.encode(clip).grid_thw.tolist()  # below the cap
    refused(lambda: model.encode(clip, cap_pixels=True, like="qwen-vl-utils"), "qwen-vl-utils always caps")
