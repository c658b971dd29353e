# SPDX-License-Identifier: MIT
"""Tests the reader with caches that are written here, as docs/cache.md describes them."""
import concurrent.futures
import importlib
import json
import multiprocessing
import os
import pickle
import re
import struct
import sys
import types

import numpy as np
import pytest

import qwenvit
from conftest import command, read_safetensors, refused

WIDTH, N_DEEPSTACK = 8, 2


def make_format(folder, model_type="qwen3_vl", **changes):
    os.makedirs(folder, exist_ok=True)
    tokens = {"dtype": "f32", "width": WIDTH, "n_deepstack": N_DEEPSTACK, "packed": False}
    tokens.update(changes)
    with open(folder / "qwenvit-cache.json", "w") as f:
        json.dump({"format": "qwenvit-cache", "version": "2", "model_type": model_type, "tokens": tokens}, f)


def padded(data, fill=b"\0", to=64):
    return data + fill * (-len(data) % to)


def write_part(folder, number, clips, sealed, failed=(), grid=(1, 2, 2), frames=3, **about):
    """Writes a part. clips: {key: matrices [1 + deepstack][n, width]}, with bf16 as uint16. about:
    other fields of the records."""
    xxhash = pytest.importorskip("xxhash")
    digest, number_of = xxhash.xxh3_64_digest, xxhash.xxh3_64_intdigest
    layout = json.loads((folder / "qwenvit-cache.json").read_text())["tokens"]
    dtype = layout["dtype"].upper()
    tensors, data, small, found = [], b"", b"", []  # tensors: (name, dtype, shape, bytes)
    for key, matrices in clips.items():
        names = ["tokens", *(f"deepstack.{i}" for i in range(len(matrices) - 1))]
        blocks, at = [np.ascontiguousarray(m).tobytes() for m in matrices], len(data)
        for name, m, block in zip(names, matrices, blocks):
            tensors.append((f"{key}/{name}", dtype, m.shape, block))
            if len(block) % 64:
                tensors.append((f"__unused.{len(tensors)}", "U8", (-len(block) % 64,), bytes(-len(block) % 64)))
            data += padded(block)
        ends = np.array(grid, np.int64).tobytes(), np.arange(float(frames)).tobytes()
        record = {"key": key, "path": key, "status": "ok", "picture": frames == 1,
                  "xxh3": digest(b"".join(map(digest, (*blocks, *ends)))).hex(), **about}
        found.append((record, at, len(small), len(matrices[0]), len(padded(blocks[0])) // 64 if len(blocks) > 1 else 0))
        small += b"".join(ends)
    for key in clips:
        tensors += [(f"{key}/grid_thw", "I64", (1, 3), bytes(24)), (f"{key}/timestamps", "F64", (frames,), bytes(8 * frames))]
    found += [({"key": key, "path": key, "status": "failed", "code": "QV_EFORMAT", "error": "no clip"}, 0, 0, 0, 0) for key in failed]
    texts = [json.dumps(r, ensure_ascii=False, separators=(",", ":")).encode() for r, *_ in found]
    names = [r["key"].encode() + b"\0" for r, *_ in found]
    keys, records = b"".join(names), b"\n".join(texts)
    front = [("__index", 128 * (1 + len(found))), ("__keys", len(padded(keys))), ("__records", len(padded(records)))]
    header = {"__metadata__": {"format": "qwenvit-cache", "version": "2", "sealed": str(sealed)}}
    end = 0
    for name, kind, shape, n in [*((name, "U8", (n,), n) for name, n in front), *((*t[:3], len(t[3])) for t in tensors)]:
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [end, end + n]}
        end += n
    text, behind = json.dumps(header, separators=(",", ":")).encode(), sum(n for _, n in front)
    text += b" " * (-(8 + len(text) + behind) % 4096)
    begin = 8 + len(text)
    at, small_at = begin + behind, begin + behind + len(data)
    rows, key_at, record_at = b"", 0, 0
    for (record, tokens, ends, n, step), name, line in zip(found, names, texts):
        ok = record["status"] == "ok"
        rows += struct.pack("<QQQQQqqdIIIIIIHBb36x", ok and at + tokens, ok and small_at + ends, number_of(record["path"].encode()),
                            number_of(bytes(24)), int(record.get("xxh3", "0"), 16), record.get("bytes", 0), record.get("mtime", 0),
                            record.get("sampled_fps", 0), n, step, frames if ok else 0, key_at, record_at, len(line), len(name) - 1,
                            0 if ok else 4, int(record["picture"]) if ok else -1)
        key_at, record_at = key_at + len(name), record_at + len(line) + 1
    text = struct.pack("<Q", len(text)) + text
    head = struct.pack("<IIQQQQQQQQQqQ4sII4x", 2, 128, begin, len(found), len(keys), at - len(padded(records)), len(records),
                       number_of(padded(records, b" ")), number_of(text), small_at + len(small), small_at, sealed,
                       layout["width"], dtype.encode(), layout["n_deepstack"], 0)
    head += rows + padded(keys)
    index = struct.pack("<8sQ", b"qvcIndex", number_of(head)) + head
    path = folder / f"part-00000-of-00001-host-{number:04d}-000000.safetensors"
    path.write_bytes(text + index + padded(records, b" ") + data + small)
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


def test_altered_records_cost_their_own_words(folder):
    """Failed keys of every part are reported, also if the records of one part were altered."""
    part = write_part(folder, 3, {}, 40, ["worse"])
    bits = part.read_bytes()
    part.write_bytes(bits.replace(b"no clip", b"no klip"))
    failed = qwenvit.Cache(folder).failed
    assert failed["bad"] == ("QV_EFORMAT", "no clip") and set(failed) == {"bad", "worse"}
    code, words = failed["worse"]
    assert code == "QV_EFORMAT" and part.name in words and "checksum of its records" in words


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


@pytest.mark.parametrize("key", [None, 5, 1.5, True, b"a", ("a",), frozenset(), object(), "\0", "\ud800"])
def test_what_is_no_text_is_no_key(folder, key):
    """As with a dict: it is asked for in vain."""
    cache = qwenvit.Cache(folder)
    assert key not in cache and cache.get(key) is None and cache.get(key, 3) == 3
    with pytest.raises(KeyError):
        cache[key]


@pytest.mark.parametrize("key", [[], {}, set(), bytearray()])
def test_what_cannot_be_hashed_raises_as_with_a_dict(folder, key):
    cache = qwenvit.Cache(folder)
    for call in (lambda: key in cache, lambda: cache.get(key), lambda: cache[key], lambda: cache.part_of(key)):
        with pytest.raises(TypeError, match=f"unhashable type: '{type(key).__name__}'"):
            call()


def test_arrays_are_mapped_not_copied_and_read_only(folder):
    entry = qwenvit.Cache(folder)["twice"]
    assert entry.tokens.base is not None and not entry.tokens.flags.owndata
    assert np.shares_memory(entry.tokens, entry.tokens)
    with pytest.raises(ValueError):
        entry.tokens[0, 0] = 1


def test_what_is_written_stays_in_the_process(folder):
    """torch() gives tensors that may be written to."""
    entry = qwenvit.Cache(folder)["é"]
    before = [part.read_bytes() for part in sorted(folder.iterdir())]
    mine = entry._matrices(writable=True)
    mine[0][:] = 77
    assert mine[0].flags.writeable and not entry.tokens.flags.writeable and (mine[0] == 77).all()
    assert [part.read_bytes() for part in sorted(folder.iterdir())] == before


@pytest.fixture
def data_sets(monkeypatch):
    """Returns qwenvit.adapters.torch. If torch is not installed, it runs on stand-ins that are enough for
    its orders."""
    try:
        import torch  # noqa: F401
    except ImportError:
        data = types.ModuleType("torch.utils.data")
        of_a_type = {"__class_getitem__": classmethod(lambda cls, _: cls)}
        data.Dataset = data.IterableDataset = data.Sampler = type("Dataset", (), of_a_type)
        data.get_worker_info = None
        fake = types.ModuleType("torch")
        fake.int64, fake.zeros = None, lambda n, dtype: types.SimpleNamespace(share_memory_=lambda: [0] * n)
        for name, module in (("torch", fake), ("torch.utils", types.ModuleType("torch.utils")), (data.__name__, data)):
            monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "qwenvit.adapters.torch", raising=False)
    monkeypatch.setattr(qwenvit.adapters, "torch", None, raising=False)  # to be restored
    module = importlib.import_module("qwenvit.adapters.torch")
    monkeypatch.setattr(module, "get_worker_info", lambda: None)
    yield module
    monkeypatch.delitem(sys.modules, "qwenvit.adapters.torch")


def changes_of_part(cache, keys):
    parts = [cache.part_of(key) for key in keys]
    return sum(a != b for a, b in zip(parts, parts[1:]))


@pytest.mark.parametrize("replicas, drop_last", [(1, False), (3, False), (3, True), (4, False), (11, False), (11, True)])
def test_a_shuffle_goes_part_by_part(folder, data_sets, replicas, drop_last):
    """All processes get the same number of keys. Of ten keys, 3 processes get 12 in all, two of them
    twice, or 9."""
    write_part(folder, 7, {f"k{i}": clip_of(i) for i in range(6)}, 40)
    dataset = data_sets.CacheDataset(folder)
    each, orders = 10 // replicas if drop_last else -(-10 // replicas), set()
    for epoch in range(8):
        shares = []
        for rank in range(replicas):
            about = {"rank": rank, "num_replicas": replicas} if replicas > 1 else {}
            sampler = data_sets.PartSampler(dataset, drop_last=drop_last, **about)
            sampler.set_epoch(epoch)
            shares.append(list(sampler))
            assert len(shares[-1]) == len(sampler) == each
        order = [i for share in shares for i in share]
        assert set(order) <= set(range(10)) and len(set(order)) == min(10, each * replicas)
        keys = [dataset.keys[i] for i in order[:10]]
        parts = dict.fromkeys(dataset.cache.part_of(key) for key in keys)
        assert not keys or changes_of_part(dataset.cache, keys) == len(parts) - 1
        orders.add(tuple(parts))
    assert len(orders) > 1 or each == 0


@pytest.mark.parametrize("replicas, workers", [(1, 0), (1, 3), (3, 1), (4, 4)])
def test_a_stream_gives_each_sample_once(folder, data_sets, monkeypatch, replicas, workers):
    write_part(folder, 7, {f"k{i}": clip_of(i) for i in range(6)}, 40)
    monkeypatch.setattr(data_sets, "_sample", lambda cache, key: key)
    orders = set()
    for epoch in range(4):
        order = []
        for rank in range(replicas):
            about = {"rank": rank, "num_replicas": replicas} if replicas > 1 else {}
            stream, n = data_sets.CacheIterableDataset(folder, **about), len(order)
            stream.set_epoch(epoch)
            for i in range(max(workers, 1)):
                worker = types.SimpleNamespace(id=i, num_workers=workers) if workers else None
                monkeypatch.setattr(data_sets, "get_worker_info", lambda: worker)
                order.extend(stream)
            assert len(order) - n == len(stream)
        assert sorted(order) == sorted(stream.cache) and changes_of_part(stream.cache, order) == 3
        orders.add(tuple(key for key in order if key.startswith("k")))  # all of one part
    assert len(orders) > 1
    monkeypatch.setattr(data_sets, "get_worker_info", lambda: None)
    in_order = data_sets.CacheIterableDataset(folder, ["twice", "k1", "k0"], shuffle=False)
    # the parts, and in each the keys in the order given
    assert list(in_order) == ["twice", "k1", "k0"]


def test_data_sets_say_what_is_wrong(folder, data_sets):
    data = data_sets.CacheDataset(folder)
    stream, sampler = data_sets.CacheIterableDataset, data_sets.PartSampler
    for call, words in [(lambda: data_sets.CacheDataset(folder, ["no"]), "'no'; it must be in the cache"),
                        (lambda: data_sets.CacheDataset(folder, "twice"), "must be a list"),
                        (lambda: data_sets.CacheDataset(3), "folder is 3"), (lambda: sampler([1]), "must be a CacheDataset"),
                        (lambda: stream(folder, rank=1), "passed together or not at all"), (lambda: sampler(data, num_replicas=2), "passed together or not at all"),
                        (lambda: stream(folder, rank=2, num_replicas=2), "rank is 2; it must be an integer from 0 to 1"),
                        (lambda: sampler(data, rank=-1, num_replicas=2), "rank is -1"),
                        (lambda: sampler(data, rank="0", num_replicas=2), "rank is '0'; it must be an integer"),
                        (lambda: sampler(data).set_epoch(None), "epoch is None"),
                        (lambda: stream(folder).set_epoch(1.5), "epoch is 1.5")]:
        refused(call, words, "QV_EINVAL")


def test_a_stream_through_torchs_loader(folder):
    """Persistent workers learn the epoch, whichever way they were started."""
    torch = pytest.importorskip("torch")
    from qwenvit.adapters.torch import CacheIterableDataset

    stream, orders = CacheIterableDataset(folder), {}
    for method in ("fork", "spawn"):
        loader = torch.utils.data.DataLoader(stream, batch_size=None, num_workers=2, persistent_workers=True,
                                             multiprocessing_context=method)
        for epoch in (0, 1, 2):
            stream.set_epoch(epoch)
            samples = {sample["key"]: sample for sample in loader}
            assert samples.keys() == set(stream.cache) and len(loader) == 4
            orders.setdefault(epoch, []).append(list(samples))
            assert (samples["twice"]["tokens"] == 5).all() and len(samples["twice"]["deepstack"]) == N_DEEPSTACK
    assert all(a == b for a, b in orders.values()) and len({tuple(a) for a, _ in orders.values()}) > 1


def test_samples_and_entries_are_collated(monkeypatch):
    """With numpy in torch's place: a sample is a dict, an entry has arrays besides torch()."""
    cat = staticmethod(np.concatenate)
    monkeypatch.setitem(sys.modules, "torch", type("torch", (), {"tensor": staticmethod(np.array), "cat": cat, "int32": np.int32}))
    grids = [np.array([[1, 2, 2 * n]]) for n in (1, 3)]
    samples = [{"key": f"k{n}", "tokens": np.full((n, 4), n), "deepstack": [np.full((n, 4), -n)], "grid_thw": g}
               for n, g in zip((1, 3), grids)]
    entries = [type("Entry", (), {"key": s["key"], "grid_thw": s["grid_thw"], "torch": lambda _, s=s: (s["tokens"], s["deepstack"])})()
               for s in samples]
    for batch in (samples, entries, [samples[0], entries[1]]):
        out = qwenvit.torch.collate(batch)
        assert out["key"] == ["k1", "k3"] and out["cu_seqlens"].tolist() == [0, 1, 4]
        assert out["tokens"][:, 0].tolist() == [1, 3, 3, 3] and out["deepstack"][0][:, 0].tolist() == [-1, -3, -3, -3]
        assert out["grid_thw"].tolist() == [[1, 2, 2], [1, 2, 6]]


def test_torchs_loader_collates_a_data_set(folder):
    torch = pytest.importorskip("torch")
    from qwenvit.adapters.torch import CacheDataset

    data = CacheDataset(folder)
    for batch in torch.utils.data.DataLoader(data, batch_size=2, collate_fn=qwenvit.torch.collate):
        assert batch["cu_seqlens"][-1] == len(batch["tokens"]) and len(batch["grid_thw"]) == len(batch["key"])


def test_torchs_processes_share_a_data_set(folder, tmp_path):
    torch = pytest.importorskip("torch")
    from qwenvit.adapters.torch import CacheDataset, CacheIterableDataset, PartSampler

    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        stream, sampler = CacheIterableDataset(folder), PartSampler(CacheDataset(folder))
        assert (stream.rank, stream.num_replicas) == (sampler.rank, sampler.num_replicas) == (0, 1)
        torch.distributed.get_rank, rank = lambda: 1, torch.distributed.get_rank
        torch.distributed.get_world_size, size = lambda: 2, torch.distributed.get_world_size
        assert len(CacheIterableDataset(folder)) == 2 and PartSampler(CacheDataset(folder)).rank == 1
    finally:
        torch.distributed.get_rank, torch.distributed.get_world_size = rank, size
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    "about, frames, found",
    [({}, 2, (False, None)), ({"picture": False, "sampled_fps": 7.5}, 1, (False, 7.5)),
     ({"picture": False, "sampled_fps": 1}, 9, (False, 1)), ({"picture": True}, 1, (True, None))])
def test_what_a_record_says_of_its_clip(tmp_path, about, frames, found):
    make_format(tmp_path)
    write_part(tmp_path, 1, {"a": clip_of(1)}, 1, frames=frames, **about)
    entry = qwenvit.Cache(tmp_path)["a"]
    assert (entry.is_image, entry.sampled_fps) == found
    assert entry.second_per_grid_ts == (2 / found[1] if found[1] else None)
    assert pickle.loads(pickle.dumps(qwenvit.Cache(tmp_path)))["a"].sampled_fps == found[1]


def test_an_entry_shows_its_record(tmp_path):
    make_format(tmp_path)
    write_part(tmp_path, 1, {"a": clip_of(1)}, 1, path="b.mp4", bytes=12, picture=False, sampled_fps=2.5,
               damaged_frames=2, odd=[1])
    write_part(tmp_path, 2, {"i": clip_of(2, 1)}, 1, frames=1, picture=True, damaged_frames="many")
    cache = qwenvit.Cache(tmp_path)
    a, i = cache["a"], cache["i"]
    assert a.record == {"key": "a", "path": "b.mp4", "status": "ok", "xxh3": a.record["xxh3"], "bytes": 12,
                        "picture": False, "sampled_fps": 2.5, "damaged_frames": 2, "odd": [1]}
    assert (a.damaged_frames, i.damaged_frames) == (2, 0)
    assert repr(a) == "<qwenvit.Entry 'a': [5, 8] f32, 2 deepstack, a clip of 3 frames at 2.5 fps, 2 damaged>"
    assert repr(i) == "<qwenvit.Entry 'i': [1, 8] f32, 2 deepstack, an image>"
    a.record.clear()
    assert a.record["path"] == "b.mp4", "what is shown is the caller's to change"
    unread = cache["a"]
    for part in tmp_path.glob("part-*"):
        part.unlink()
    assert "No such file" in repr(unread) and a.damaged_frames == 2


def test_an_odd_part_costs_its_keys(folder):
    """And no other part's. `qwenvit cache status` prints the same text."""
    part = write_part(folder, 3, {"odd": clip_of(6), "twice": clip_of(7)}, 40)
    part.write_bytes(part.read_bytes() + b"x")
    cache = qwenvit.Cache(folder)
    assert set(cache) == {"a/b.mp4", "twice", "later ok", "é"} and cache["twice"].tokens[0, 0] == 5
    assert list(cache.damaged) == [part.name] and "bytes follow" in cache.damaged[part.name]
    status = json.loads(command("cache", "status", folder, "--json", code=1).stdout)
    assert status["damaged"] == list(cache.damaged.values())


def test_a_folder_that_cannot_be(folder):
    for name in (f"{folder}\0", "\udcff"):
        refused(lambda: qwenvit.Cache(name))


def test_a_part_whose_name_is_no_text(folder):
    os.mkfifo(os.fsencode(folder) + b"/part-00000-\xff.safetensors")
    cache = qwenvit.Cache(folder)
    assert len(cache) == 4 and list(cache.damaged) == ["part-00000-\udcff.safetensors"]
    assert len(pickle.loads(pickle.dumps(cache))) == 4


def look(cache):
    return {k: float(e.tokens[0, 0]) for k, e in cache.items()}


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers(folder, method):
    cache = qwenvit.Cache(folder)
    assert cache["é"].tokens[0, 0] == 4  # mapped before the fork
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context(method)) as pool:
        assert pool.submit(look, cache).result(60) == {"a/b.mp4": 1, "twice": 5, "later ok": 3, "é": 4}


def test_pickles_and_new_parts(folder):
    cache = pickle.loads(pickle.dumps(qwenvit.Cache(folder)))
    write_part(folder, 9, {"new": clip_of(9)}, 99)
    assert "new" not in cache
    cache.refresh()
    assert cache["new"].tokens[0, 0] == 9


def test_refresh_leaves_entries_their_parts(tmp_path):
    """This holds even if a new part's name sorts in front of theirs."""
    make_format(tmp_path)
    write_part(tmp_path, 5, {"a": clip_of(1), "b": clip_of(10)}, 10)
    cache = qwenvit.Cache(tmp_path)
    a, b = cache["a"], cache["b"]
    tokens = a.tokens
    write_part(tmp_path, 3, {"z": clip_of(20, 9), "b": clip_of(30, 2)}, 20)
    cache.refresh()
    assert {key: entry.tokens[0, 0] for key, entry in cache.items()} == {"a": 1, "b": 30, "z": 20}
    assert len(a) == len(b) == 5 and a.tokens[0, 0] == tokens[0, 0] == 1 and b.deepstack[1][4, 0] == 12
    again = pickle.loads(pickle.dumps((cache, a, b)))
    assert [again[0][key].tokens[0, 0] for key in "abz"] == [1, 30, 20]
    assert [entry.tokens[0, 0] for entry in again[1:]] == [1, 10]


def test_what_is_unpickled_after_parts_were_removed_has_its_own_keys(folder):
    """Parts are pruned between the start of a program and that of its workers."""
    cache = qwenvit.Cache(folder)
    kept, gone = cache["é"], cache["a/b.mp4"]
    pickled = pickle.dumps((cache, kept)), pickle.dumps(gone)
    write_part(folder, 8, {"moved": clip_of(8)}, 50)
    next(folder.glob("*-0001-*")).unlink()
    again, entry = pickle.loads(pickled[0])
    assert entry.tokens[0, 0] == 4 and len(entry) == 7
    assert {key: e.tokens[0, 0] for key, e in again.items()} == {"twice": 5, "later ok": 3, "é": 4, "moved": 8}
    refused(lambda: pickle.loads(pickled[1]), "the cache no longer contains 'a/b.mp4'")
    write_part(folder, 9, {"a/b.mp4": clip_of(1)}, 10)
    assert pickle.loads(pickled[1]).tokens[0, 0] == 1


def test_a_cache_that_is_pruned_under_its_readers(folder, data_sets, monkeypatch):
    cache = qwenvit.Cache(folder)
    entry, pickled, data = cache["a/b.mp4"], pickle.dumps(cache["a/b.mp4"]), data_sets.CacheDataset(folder)
    before = set(os.listdir(folder))
    command("cache", "prune", folder)  # "twice" in the part of "a/b.mp4" does not count
    assert not before & {name for name in os.listdir(folder) if "-0001-" in name}
    for one in (entry, cache["a/b.mp4"], pickle.loads(pickled)):
        assert (one.tokens == 1).all() and (one.deepstack[1] == 3).all() and one.record["path"] == "a/b.mp4"
        assert one.grid_thw.tolist() == [[1, 2, 2]] and "f32" in repr(one)
    cache = qwenvit.Cache(folder)
    entry = cache["a/b.mp4"]
    write_part(folder, 8, {"a/b.mp4": clip_of(6)}, 60, xxh3="f" * 16)  # the key is done again
    command("cache", "prune", folder)
    refused(lambda: entry.tokens, status="QV_EIO")
    monkeypatch.setattr(qwenvit._cache.Entry, "torch", lambda self: (self.tokens, self.deepstack))
    monkeypatch.setattr(data_sets.torch, "tensor", np.array, raising=False)
    assert (data[data.keys.index("a/b.mp4")]["tokens"] == 6).all()


def fake_safetensors():
    """Stands in for what the page's own reader needs of the safetensors package, if it is not
    installed."""
    class Opened:
        def __init__(self, path, framework):
            self.tensors, self.meta = read_safetensors(path)

        __enter__ = lambda self: self
        __exit__ = lambda self, *_: None
        metadata = lambda self: self.meta
        get_tensor = lambda self, name: self.tensors[name]

    return types.SimpleNamespace(safe_open=Opened)


def test_the_pages_own_reader_finds_the_same(folder, monkeypatch):
    """Tests the reader in docs/cache.md, "In Python, with safetensors alone", which shares nothing
    with ours."""
    page = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "cache.md")
    with open(page, encoding="utf-8") as f:
        (code,) = [c for c in re.findall(r"```python\n(.*?)```", f.read(), re.DOTALL) if "safe_open" in c]
    try:
        import safetensors  # noqa: F401
        code = code.replace('"pt"', '"numpy"')
    except ImportError:
        monkeypatch.setitem(sys.modules, "safetensors", fake_safetensors())
    write_part(folder, 3, {"changed": clip_of(6)}, 40, bytes=7)  # and then failed
    write_part(folder, 4, {"more": clip_of(7)}, 50, ["changed"])
    cache = qwenvit.Cache(folder)
    assert "changed" in cache.failed
    for key, entry in cache.items():
        found = {}
        exec(code.replace("tokens/part-*", f"{folder}/part-*").replace("a.mp4", key), found)
        assert (found["tokens"] == entry.tokens).all() and (found["grid_thw"] == entry.grid_thw).all()
    records = found["records"]
    assert {k for k, r in records.items() if r["status"] == "ok"} == set(cache)
    assert {k for k, r in records.items() if r["status"] != "ok"} == set(cache.failed)
