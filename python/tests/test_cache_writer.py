# SPDX-License-Identifier: MIT
"""A cache that Python writes is the one that `qwenvit cache` makes: the same records, the same bits."""
import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import qwenvit
from conftest import contents, read_safetensors


def command(golden, listed, out, *options):
    run = subprocess.run(
        [sys.executable, "-m", "qwenvit", "cache", "--model", golden, "--backend", "cpu", "--threads", "2", "--dtype",
         "f32", "--quiet", "--list", str(listed), "--out", str(out), *options], capture_output=True, text=True)
    assert run.returncode in (0, 1), run.stderr
    return run.stdout


OPTIONS = [
    ({}, []),
    ({"tokens": "f16", "packed": True, "fps": 5}, ["--tokens", "f16", "--packed", "--fps", "5"]),
    ({"tokens": "f32", "deepstack": False, "like": "qwen-vl-utils"},
     ["--tokens", "f32", "--no-deepstack", "--like", "qwen-vl-utils"]),
]


@pytest.mark.parametrize("ours, theirs", OPTIONS)
def test_it_is_what_the_command_makes(model, golden, rows, listed, tmp_path, ours, theirs):
    command(golden, listed, tmp_path / "theirs", *theirs)
    with qwenvit.CacheWriter(model, tmp_path / "ours", **ours) as cache:
        counts = cache.add(rows)
        assert not cache.damaged
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
    pid = os.fork()
    if not pid:
        code = 1
        try:
            for call in (cache.close, lambda: cache.add(rows[1:2])):
                with pytest.raises(qwenvit.Error, match="another process") as e:
                    call()
                assert e.value.status == "QV_ESTATE"
            del cache
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert cache.add(rows[1:2])["done"] == 1
    cache.close()
    assert len(qwenvit.Cache(tmp_path / "cache")) == 2


def test_a_record_says_what_encode_says(model, golden, rows, tmp_path):
    """And an entry what Tokens say: to the bit, as qwenvit encode's metadata."""
    with qwenvit.CacheWriter(model, tmp_path / "cache", fps=3) as cache:
        cache.add(rows[:-2])
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
    run = subprocess.run(
        [sys.executable, "-m", "qwenvit", "encode", "--model", golden, "--backend", "cpu", "--dtype", "f32", "--fps",
         "3", clip, "-o", str(tmp_path / "k.safetensors")], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    about = json.loads(read_safetensors(tmp_path / "k.safetensors")[1]["preprocessing"])
    for name in ("sampled_fps", "second_per_grid_ts"):
        assert getattr(cache[clip], name) == about[name] > 0


def test_a_model_at_work_can_have_a_cache_and_one_that_was_closed_none(golden, clip, tmp_path):
    model = qwenvit.load(golden, backend="cpu", dtype="f32", threads=2)
    results = model.encode([clip, clip])
    next(results)
    with qwenvit.CacheWriter(model, tmp_path) as cache:
        with pytest.raises(qwenvit.Error, match="at work"):
            cache.add([clip])
        results.close()
        assert cache.add([clip])["done"] == 1
    model.close()
    with pytest.raises(qwenvit.Error, match="was closed"):
        qwenvit.CacheWriter(model, tmp_path)


def test_either_goes_on_where_the_other_ended(model, golden, rows, listed, tmp_path):
    with qwenvit.CacheWriter(model, tmp_path) as cache:
        assert cache.add(rows[3:])["done"] == 8
    assert "3 done" in command(golden, listed, tmp_path) and len(os.listdir(tmp_path)) == 3
    with qwenvit.CacheWriter(model, tmp_path) as cache:
        assert cache.add(rows) == {"done": 0, "tokens": 0, "failed": 0, "there": 11, "failed_before": 2}
    assert len(os.listdir(tmp_path)) == 3, "nothing to do, and a part was added"
    with qwenvit.CacheWriter(model, tmp_path, retry_failed=True) as cache:
        assert cache.add(rows)["failed"] == 2
        changed = {**rows[9], "max_pixels": 16384}
        assert cache.add([changed])["done"] == 1
    record = contents(tmp_path)[0]["small"][0]
    assert json.loads(record["options"])["max_pixels"] == 16384


def test_what_add_returned_from_is_there_after_a_crash(golden, rows, tmp_path):
    code = """
import json, os, sys, qwenvit
cache = qwenvit.CacheWriter(qwenvit.load(sys.argv[1], backend="cpu", dtype="f32"), sys.argv[2])
cache.add(json.loads(sys.argv[3]))
os._exit(9)
"""
    run = subprocess.run([sys.executable, "-c", code, golden, str(tmp_path), json.dumps(rows[:3])])
    assert run.returncode == 9 and len(qwenvit.Cache(tmp_path)) == 3


def test_another_cache_is_refused_and_nothing_of_it_is_lost(model, golden, rows, tmp_path):
    with qwenvit.CacheWriter(model, tmp_path) as cache:
        cache.add(rows[:2])
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    other = qwenvit.load(os.path.join(golden, "..", "qwen3_5"), backend="cpu", dtype="f32", threads=2)
    for writer, options, words in [(other, {}, "model_type"), (model, {"fps": 1}, "preprocessing.options.fps"),
                                   (model, {"tokens": "f16"}, "tokens.dtype"), (model, {"packed": True}, "packed")]:
        with pytest.raises(qwenvit.Error, match=words) as e:
            qwenvit.CacheWriter(writer, tmp_path, **options)
        assert e.value.status == "QV_EFORMAT"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "qwenvit-cache.json").write_text('{"format": "webdataset"}')
    with pytest.raises(qwenvit.Error, match="no cache of qwenvit"):
        qwenvit.CacheWriter(model, tmp_path / "other")
    assert before == {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}
    assert len(model.encode(np.zeros((64, 64, 3), np.uint8))), "a model that was refused is the caller's again"


@pytest.mark.parametrize(
    "row, words",
    [({}, "row 1: no path"), ({"key": "a"}, "row 1: no path"), ({"path": None, "fps": 1}, "no path"),
     ({"path": ""}, "path is ''"), (3, "row 1: a int"), ({"path": "a", "key": 3}, "key is 3"),
     ({"path": "a", "fsp": 3}, "no field 'fsp'"), ({"path": "a", "fps": 0}, "fps is 0"),
     ({"path": "a", "fps": "2"}, "fps is '2'"), ({"path": "a", "fps": float("nan")}, "fps is nan"),
     ({"path": "a", "max_frames": True}, "max_frames is True"), ({"path": "a", "fps": True}, "fps is True"),
     ({"path": "a", "start": 2, "end": 1}, '"end" is 1; above "start", 2'),
     ({"path": "a", "max_frames": 0}, "max_frames is 0"), ({"path": "a", "offset": -1}, "offset is -1"),
     ({"path": "a", "bytes": b"x"}, "bytes is b'x'"), ({"path": "a", "offset": 1 << 80}, "row 1: offset"),
     ({"path": "a\0b"}, "NUL"), ({"path": "a", "key": "__a"}, "__a"),
     ({"path": "a", "key": "k" * 4097}, "4096"), ({"path": "first"}, "key 'first' was in row 0 before")],
)
def test_bad_rows_are_refused_before_any_work(model, tmp_path, row, words):
    with qwenvit.CacheWriter(model, tmp_path) as cache:
        with pytest.raises(qwenvit.Error, match=words):
            cache.add(["first", row])
    assert os.listdir(tmp_path) == ["qwenvit-cache.json"]


def test_bad_options_and_calls(model, clip, tmp_path):
    for options, words in [({"tokens": "q4"}, "q4"), ({"fsp": 1}, "no option fsp"), ({"part_bytes": -1}, "-1")]:
        with pytest.raises(qwenvit.Error, match=words):
            qwenvit.CacheWriter(model, tmp_path / "a", **options)
    with pytest.raises(qwenvit.Error, match="folder"):
        qwenvit.CacheWriter(model, tmp_path / "no" / "where")
    cache = qwenvit.CacheWriter(model, tmp_path / "b")
    cache.close()
    cache.close()
    with pytest.raises(qwenvit.Error, match="closed"):
        cache.add([clip])


def test_a_token_that_f16_lacks_fails_its_clip_alone(model, clip, tmp_path):
    """The binding's own check: a tower whose tokens are so large is not among the golden ones."""
    tokens = model.encode(clip)
    tokens.tokens[0, 0] = 1e5
    with qwenvit.CacheWriter(model, tmp_path, tokens="f16") as cache:
        with pytest.raises(qwenvit.Error, match="100000.*f16 does not hold") as e:
            cache._core.add(qwenvit._core.CacheRow({"path": "k"}), tokens._core)
        assert e.value.status == "QV_EUNSUPPORTED"
        assert cache.add([clip])["done"] == 1
    assert list(qwenvit.Cache(tmp_path)) == [str(clip)]


@pytest.mark.parametrize("good", [True, False])
def test_a_clip_that_is_replaced_is_kept_as_the_one_that_was_read(model, rows, tmp_path, monkeypatch, good):
    path, newer = tmp_path / "clip", tmp_path / "newer"
    path.write_bytes(open(rows[0]["path"], "rb").read() if good else b"nonsense")
    newer.write_bytes(open(rows[1]["path"], "rb").read() + b"x")
    before, take = os.stat(path), qwenvit.CacheWriter._take

    def replace_and_take(*args):
        os.replace(newer, path)
        take(*args)

    with qwenvit.CacheWriter(model, tmp_path / "cache") as cache:
        with monkeypatch.context() as patch:
            patch.setattr(qwenvit.CacheWriter, "_take", replace_and_take)
            counts = cache.add([path])
    assert (counts["done"], counts["failed"]) == ((1, 0) if good else (0, 1))
    record = contents(tmp_path / "cache")[0][str(path)][0]
    assert (record["bytes"], record["mtime"]) == (before.st_size, before.st_mtime_ns)
    with qwenvit.CacheWriter(model, tmp_path / "cache") as cache:
        assert cache.add([path])["done"] == 1
    with qwenvit.CacheWriter(model, tmp_path / "cache") as cache:
        assert cache.add([path])["there"] == 1


def test_ctrl_c_is_heard_while_more_clips_wait_than_the_queue_holds(model, clip, tmp_path):
    """And at any time later: what was done stays."""
    rows = [{"path": str(clip), "key": str(i)} for i in range(600)]
    slow = {"num_frames": 768, "min_pixels": 90 * 70}
    with qwenvit.CacheWriter(model, tmp_path / "cache", **slow) as cache:
        assert cache.add([{"path": str(clip), "key": "first"}])["done"] == 1
        timer = threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT))
        began = time.monotonic()
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            cache.add(rows)
        assert time.monotonic() - began < 30
    assert "first" in qwenvit.Cache(tmp_path / "cache")
    assert model.encode(clip) is not None  # the model is free again


def test_a_part_sealed_at_the_end_of_time_leaves_time_to_others(model, clip, tmp_path):
    with qwenvit.CacheWriter(model, tmp_path) as cache:
        cache.add([{"path": str(clip), "key": "a"}])
    (part,) = tmp_path.glob("part-*")
    bits = part.read_bytes()
    sealed = json.loads(bits[8 : 8 + int.from_bytes(bits[:8], "little")])["__metadata__"]["sealed"]
    (tmp_path / part.name.replace("part-0", "part-1")).write_bytes(
        bits.replace(sealed.encode(), str(2**63 - 1).encode()))
    for i in range(3):
        with qwenvit.CacheWriter(model, tmp_path) as cache:
            assert len(cache.damaged) == 1 and "100 years" in cache.damaged[0]
            assert cache.add([{"path": str(clip), "key": f"{i}"}])["done"] == 1
    read = qwenvit.Cache(tmp_path)
    assert set(read) == {"a", "0", "1", "2"} and len(read.damaged) == 1
