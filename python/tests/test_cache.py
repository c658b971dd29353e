# SPDX-License-Identifier: MIT
"""Caches, written here by hand as docs/cache.md has them."""
import json
import multiprocessing
import os
import pickle
import struct
import sys

import numpy as np
import pytest

import qwenvit

WIDTH, N_DEEPSTACK = 8, 2


def make_format(folder, model_type="qwen3_vl", **changes):
    os.makedirs(folder, exist_ok=True)
    tokens = {"dtype": "f32", "width": WIDTH, "n_deepstack": N_DEEPSTACK, "packed": False}
    tokens.update(changes)
    with open(folder / "qwenvit-cache.json", "w") as f:
        json.dump({"format": "qwenvit-cache", "version": "1", "model_type": model_type, "tokens": tokens}, f)


def write_part(folder, number, clips, sealed, failed=(), packed=False, grid=(1, 2, 2), frames=3,
               **about):
    """clips: {key: matrices [1 + deepstack][n, width]}; bf16 as uint16. about: what else records say."""
    header, data, records = {}, b"", []
    for key, matrices in clips.items():
        names = ["packed"] if packed else ["tokens", *(f"deepstack.{i}" for i in range(len(matrices) - 1))]
        arrays = [np.concatenate(matrices, 1)] if packed else matrices
        arrays = [*arrays, np.array([grid], np.int64), np.arange(float(frames))]
        for name, a in zip([*names, "grid_thw", "timestamps"], arrays):
            data += b"\0" * (-len(data) % 64)
            dtype = {"f4": "F32", "i8": "I64", "f8": "F64", "u2": "BF16", "f2": "F16"}[a.dtype.str[1:]]
            header[f"{key}/{name}"] = {"dtype": dtype, "shape": list(a.shape),
                                       "data_offsets": [len(data), len(data) + a.nbytes]}
            data += a.tobytes()
        records.append({"key": key, "path": key, "status": "ok", **about})
    records += [{"key": k, "path": k, "status": "failed", "code": "QV_EFORMAT", "error": "no clip"} for k in failed]
    header["__metadata__"] = {"format": "qwenvit-cache", "version": "1", "sealed": str(sealed),
                              "records": json.dumps(records)}
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % 4096)
    path = folder / f"part-00000-of-00001-host-{number:04d}-000000.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def clip_of(value, n=5):
    return [np.full((n, WIDTH), value + i, np.float32) for i in range(1 + N_DEEPSTACK)]


@pytest.fixture
def folder(tmp_path):
    make_format(tmp_path / "cache")
    write_part(tmp_path / "cache", 1, {"a/b.mp4": clip_of(1), "twice": clip_of(2)}, 10, ["bad", "later ok"])
    write_part(tmp_path / "cache", 2, {"later ok": clip_of(3), "é": clip_of(4, 7)}, 20, ["twice"])
    write_part(tmp_path / "cache", 0, {"twice": clip_of(5)}, 30)
    return tmp_path / "cache"


def test_every_key_by_the_rule(folder):
    cache = qwenvit.Cache(folder)
    assert set(cache) == {"a/b.mp4", "twice", "later ok", "é"} and len(cache) == 4
    values = {k: e.tokens[0, 0] for k, e in cache.items()}
    assert values == {"a/b.mp4": 1, "twice": 5, "later ok": 3, "é": 4}
    entry = cache["é"]
    assert entry.tokens.shape == (7, WIDTH) and [m[0, 0] for m in entry.deepstack] == [5, 6]
    assert entry.grid_thw.tolist() == [[1, 2, 2]] and entry.timestamps.tolist() == [0, 1, 2]
    assert (entry.packed() == np.concatenate(clip_of(4, 7), 1)).all()
    assert cache.failed == {"bad": ("QV_EFORMAT", "no clip")} and not cache.damaged
    with pytest.raises(KeyError, match="bad.*no clip"):
        cache["bad"]
    with pytest.raises(KeyError, match="is not in the cache"):
        cache["nobody"]


def test_arrays_are_mapped_not_copied_and_read_only(folder):
    entry = qwenvit.Cache(folder)["twice"]
    assert entry.tokens.base is not None and not entry.tokens.flags.owndata
    assert np.shares_memory(entry.tokens, entry.tokens)
    with pytest.raises(ValueError):
        entry.tokens[0, 0] = 1


def test_packed(tmp_path):
    make_format(tmp_path, packed=True)
    write_part(tmp_path, 1, {"a": clip_of(1)}, 1, packed=True)
    entry = qwenvit.Cache(tmp_path)["a"]
    assert (entry.tokens == 1).all() and (entry.deepstack[1] == 3).all()
    assert np.shares_memory(entry.packed(), entry.tokens)


@pytest.mark.parametrize(
    "about, frames, found",
    [({}, 1, (True, None)), ({}, 2, (False, None)), ({"picture": False, "sampled_fps": 7.5}, 1, (False, 7.5)),
     ({"picture": False, "sampled_fps": 1}, 9, (False, 1)), ({"picture": True}, 1, (True, None))])
def test_what_a_record_says_of_its_clip(tmp_path, about, frames, found):
    """Of one that does not, as in caches of before, a single frame is a picture."""
    make_format(tmp_path)
    write_part(tmp_path, 1, {"a": clip_of(1)}, 1, frames=frames, **about)
    entry = qwenvit.Cache(tmp_path)["a"]
    assert (entry.picture, entry.sampled_fps) == found
    assert entry.second_per_grid_ts == (2 / found[1] if found[1] else None)
    assert pickle.loads(pickle.dumps(qwenvit.Cache(tmp_path)))["a"].sampled_fps == found[1]


@pytest.mark.parametrize("name, value", [("picture", 1), ("picture", "false"), ("sampled_fps", 0), ("sampled_fps", -1),
                                         ("sampled_fps", float("nan")), ("sampled_fps", float("inf")),
                                         ("sampled_fps", "2"), ("sampled_fps", True), ("sampled_fps", 10**400)])
def test_a_record_that_says_nonsense_of_its_clip(folder, name, value):
    part = write_part(folder, 3, {"odd": clip_of(6)}, 40, **{name: value})
    cache = qwenvit.Cache(folder)
    assert "odd" not in cache and len(cache) == 4
    assert list(cache.damaged) == [part.name] and f"odd: {name} is " in cache.damaged[part.name]


@pytest.mark.parametrize("cut", [0, 7, 100, 4096, 4200])
def test_a_part_cut_short_costs_its_keys(folder, cut):
    path = next(p for p in folder.iterdir() if "-0002-" in p.name)
    with open(path, "r+b") as f:
        f.truncate(cut)
    cache = qwenvit.Cache(folder)
    assert list(cache.damaged) == [path.name] and "é" not in cache and len(cache) == 2


@pytest.mark.parametrize(
    "change", ['"shape": [7, 8]|"shape": [9, 8]', '"F32"|"F99"', '"ok"|"ko"', '"sealed"|"healed"',
               '"data_offsets": [0|"data_offsets": [3', '"key"|"kex"', '{"é/tokens|[{"é/tokens'],
)
def test_an_altered_header_costs_its_keys_and_no_crash(folder, change):
    path = next(p for p in folder.iterdir() if "-0002-" in p.name)
    old, new = (s.encode() for s in change.split("|"))
    data = path.read_bytes()
    assert old.replace("é".encode(), rb"\u00e9") in data or old in data or change.startswith('"key"') or "ok" in change
    for form in (old, old.replace("é".encode(), rb"\u00e9"), old.replace(b'"', rb'\"')):
        if form in data:
            data = data.replace(form, new[: len(form)].ljust(len(form)), 1)
            break
    path.write_bytes(data)
    cache = qwenvit.Cache(folder)
    assert cache["a/b.mp4"].tokens[0, 0] == 1
    for entry in cache.values():
        assert entry.tokens.shape[1] == WIDTH


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": "qwenvit-cache", "version": "2"}',
             '{"format": "qwenvit-cache", "version": "1"}',
             '{"format": "qwenvit-cache", "version": "1", "tokens": {"dtype": "q4"}}'],
)
def test_another_format_is_refused(tmp_path, text):
    (tmp_path / "qwenvit-cache.json").write_text(text)
    with pytest.raises(qwenvit.Error, match="qwenvit-cache.json") as e:
        qwenvit.Cache(tmp_path)
    assert e.value.status == "QV_EFORMAT"
    with pytest.raises(qwenvit.Error, match="no cache"):
        qwenvit.Cache(tmp_path / "nowhere")


def look(cache, queue):
    queue.put({k: float(e.tokens[0, 0]) for k, e in cache.items()})


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers(folder, method):
    cache = qwenvit.Cache(folder)
    assert cache["é"].tokens[0, 0] == 4  # mapped before the fork
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    worker = context.Process(target=look, args=(cache, queue))
    worker.start()
    assert queue.get(timeout=60) == {"a/b.mp4": 1, "twice": 5, "later ok": 3, "é": 4}
    worker.join()


def test_pickles_and_new_parts(folder):
    cache = pickle.loads(pickle.dumps(qwenvit.Cache(folder)))
    write_part(folder, 9, {"new": clip_of(9)}, 99)
    assert "new" not in cache
    cache.refresh()
    assert cache["new"].tokens[0, 0] == 9


@pytest.mark.parametrize("packed", [False, True])
def test_the_parquet_index_says_where_everything_lies(tmp_path, packed):
    parquet = pytest.importorskip("pyarrow.parquet")
    make_format(tmp_path, packed=packed)
    write_part(tmp_path, 1, {"a": clip_of(1), "é": clip_of(4, 7)}, 10, ["bad"], packed)
    cache = qwenvit.Cache(tmp_path)
    path = cache.to_parquet_index()
    assert path == str(tmp_path / "index.parquet")
    rows = {row["key"]: row for row in parquet.read_table(path).to_pylist()}
    assert set(rows) == {"a", "é", "bad"} and {e.name for e in tmp_path.glob("*.tmp*")} == set()
    bad = rows.pop("bad")
    assert (bad["status"], bad["code"], bad["error"]) == ("failed", "QV_EFORMAT", "no clip")
    assert bad["part"] is None and bad["tensors"] is None
    kinds = {"F32": np.float32, "I64": np.int64, "F64": np.float64}
    for key, row in rows.items():
        data, found = (tmp_path / row["part"]).read_bytes(), {}
        for t in row["tensors"]:
            bits = data[t["offset"] : t["offset"] + t["bytes"]]
            found[t["name"]] = np.frombuffer(bits, kinds[t["dtype"]]).reshape(t["shape"])
        assert row["status"] == "ok" and (found["grid_thw"] == cache[key].grid_thw).all()
        assert (found["timestamps"] == cache[key].timestamps).all()
        own = cache[key].packed() if packed else cache[key].deepstack[1]
        assert (found["packed" if packed else "deepstack.1"] == own).all()


def test_the_parquet_index_fails_in_words(folder, monkeypatch):
    cache = qwenvit.Cache(folder)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(qwenvit.Error, match="needs pyarrow") as e:
        cache.to_parquet_index()
    assert e.value.status == "QV_EUNSUPPORTED"


def test_the_parquet_index_leaves_no_half_file(folder, tmp_path):
    pytest.importorskip("pyarrow")
    cache = qwenvit.Cache(folder)
    (tmp_path / "taken").mkdir()
    for path in (tmp_path / "nowhere" / "i.parquet", tmp_path / "taken"):
        with pytest.raises(qwenvit.Error, match=path.name) as e:
            cache.to_parquet_index(path)
        assert e.value.status == "QV_EIO"
    assert not list(tmp_path.glob("*.tmp"))
