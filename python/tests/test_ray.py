# SPDX-License-Identifier: MIT
"""Tests qwenvit.adapters.ray on a Ray of this machine with two actors. Skipped if Ray is not installed."""
import os

import numpy as np
import pytest

import qwenvit
from conftest import ON_CPU, SITE, command, contents, refused

ray = pytest.importorskip("ray")
pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as parquet  # noqa: E402

import qwenvit.adapters.ray as qr  # noqa: E402

LOAD = {"backend": "cpu", "dtype": "f32"}
TWO = {"actors": 2, "num_cpus": 1, "batch_size": 3, "load_options": LOAD}


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", object_store_memory=100 << 20,
             runtime_env={"env_vars": {"PYTHONPATH": SITE}})
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def theirs(golden, listed, tmp_path_factory):
    """The command makes the cache of the same list, on as many threads as an actor has."""
    out = tmp_path_factory.mktemp("theirs") / "cache"
    command("cache", "fill", "--model", golden, *ON_CPU[:-1], 1, "--quiet", "--list", listed, "-o", out, code=1)
    return out


def dying(marker, key, when):
    """An actor that ends its process once, in the batch with the key, before or after that batch is
    sealed."""

    class Ends:
        def __init__(self, core):
            self.core = core

        def __getattr__(self, name):
            return getattr(self.core, name)

        def add(self, rows, progress):
            self.core.add(rows, None if when == "after" else lambda _: os._exit(1))
            os._exit(1)

    class Dying(qr._Writer):
        def __call__(self, table):
            if key in table["key"].to_pylist():
                try:
                    os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
                    self.cache._core = Ends(self.cache._core)
                except FileExistsError:
                    pass
            return super().__call__(table)

    return Dying


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_actor_is_killed_and_the_cache_is_the_commands(golden, rows, theirs, tmp_path, monkeypatch, when):
    marker = tmp_path / "died"
    data = ray.data.from_items([{"other": 1, **{n: None for n in qr.FIELDS}, **row} for row in rows])
    monkeypatch.setattr(qr, "_Writer", dying(str(marker), "small", when))
    counts = qr.write_cache(data, golden, tmp_path / "cache", **TWO)
    assert marker.exists()
    assert counts["done"] + counts["there"] == len(rows) - 2 and counts["failed"] + counts["failed_before"] == 2
    assert (counts["there"] > 0) == (when == "after"), "a batch that was sealed is not done again"
    assert contents(tmp_path / "cache") == contents(theirs)
    monkeypatch.undo()
    n = len(os.listdir(tmp_path / "cache"))
    again = qr.write_cache(data, golden, tmp_path / "cache", **TWO)
    assert again == {"done": 0, "tokens": 0, "failed": 0, "there": len(rows) - 2, "failed_before": 2}
    assert len(os.listdir(tmp_path / "cache")) == n


def test_a_run_that_ends_in_an_error_is_gone_on_with(golden, rows, theirs, tmp_path):
    """There is one actor, so that the rows before the bad row are done before it."""
    data = ray.data.from_items([*rows[:6], {"key": "nowhere"}, *rows[6:]], override_num_blocks=1)
    with pytest.raises(qwenvit.Error, match="row 0: no path: {'key': 'nowhere'}") as e:
        qr.write_cache(data, golden, tmp_path, **{**TWO, "actors": 1})
    assert e.value.status == "QV_EINVAL" and len(qwenvit.Cache(tmp_path)) == 6
    counts = qr.write_cache(ray.data.from_items(rows), golden, tmp_path, **TWO)
    assert (counts["there"], counts["done"], counts["failed"]) == (6, len(rows) - 8, 2)
    assert contents(tmp_path) == contents(theirs)


def test_what_cannot_be_is_refused_in_words(golden, rows, theirs):
    before = {p.name: p.read_bytes() for p in theirs.iterdir()}
    other = os.path.join(golden, "..", "qwen3_5")
    data = ray.data.from_items(rows[:6])
    refused(lambda: qr.write_cache(data, other, theirs, **TWO), "model_type", "QV_EFORMAT")
    pathless = ray.data.from_items([{"file": "a"}])
    refused(lambda: qr.write_cache(pathless, golden, theirs, **{**TWO, "actors": 1}), "no column path; there are file")
    for model, options, words in [(golden, {"fps": 1}, "preprocessing.options.fps"), (golden, {"fsp": 1}, "fsp"),
                                  (golden + "/nowhere", {}, "nowhere")]:
        actor = qr._Writer(model, str(theirs), LOAD, options)
        (row,) = actor(pa.table({"path": ["a"]})).to_pylist()
        assert row["code"].startswith("QV_E") and words in row["error"] and row["done"] == 0
    assert before == {p.name: p.read_bytes() for p in theirs.iterdir()}


def test_a_cache_is_rows(theirs, tmp_path):
    cache = qwenvit.Cache(theirs)
    source = qr.CacheDatasource(theirs)
    for blocks in (1, 3, 100):
        rows = ray.data.read_datasource(source, override_num_blocks=blocks).take_all()
        assert sorted(row["key"] for row in rows) == sorted(cache)
    for row in rows:
        entry = cache[row["key"]]
        for mine, matrix in zip(qr.matrices(row), [entry.tokens, *entry.deepstack], strict=True):
            assert mine.dtype == matrix.dtype and mine.shape == matrix.shape and mine.tobytes() == matrix.tobytes()
        assert row["grid_thw"] == entry.grid_thw[0].tolist() and row["timestamps"] == entry.timestamps.tolist()
        assert row["picture"] == entry.is_image and row["sampled_fps"] == entry.sampled_fps
    some = qr.CacheDatasource(theirs, keys=["small", "inside"])
    ray.data.read_datasource(some).write_parquet(tmp_path / "parquet")
    assert sorted(parquet.read_table(tmp_path / "parquet")["key"].to_pylist()) == ["inside", "small"]
    refused(lambda: qr.CacheDatasource(theirs, keys=["nobody"]), "'nobody' is not in the cache")
    refused(lambda: qr.CacheDatasource(tmp_path), "not a cache")


def encode(data, golden, **options):
    return data.map_batches(
        qr.Encoder, fn_constructor_kwargs={"model": golden, "load_options": LOAD, **options}, batch_format="pyarrow",
        batch_size=8, num_cpus=1, compute=ray.data.ActorPoolStrategy(size=2))


def test_rows_become_rows_with_tokens(golden, rows, theirs, tmp_path):
    empty = {"tokens": "of another", **{n: None for n in qr.FIELDS}}
    items = [{**empty, **row, "label": i} for i, row in enumerate([*rows, {}])]
    table = pa.Table.from_pylist(items)  # there is one schema, whatever a block lacks
    encode(ray.data.from_arrow(table), golden).write_parquet(tmp_path / "parquet")
    table = parquet.read_table(tmp_path / "parquet")
    found = {row["label"]: row for row in table.to_pylist()}
    assert table.schema.field("tokens").type == pa.large_binary() and set(found) == set(range(14))
    cache = qwenvit.Cache(theirs)
    for i, row in enumerate(rows[:11]):
        entry = cache[row.get("key", row["path"])]
        assert found[i]["status"] == "ok" and found[i]["key"] == row.get("key")
        for mine, matrix in zip(qr.matrices(found[i]), [entry.tokens, *entry.deepstack], strict=True):
            assert mine.tobytes() == np.asarray(matrix).tobytes() and mine.shape == matrix.shape
        assert found[i]["timestamps"] == entry.timestamps.tolist()
        assert found[i]["picture"] == entry.is_image and found[i]["sampled_fps"] == entry.sampled_fps
    assert [found[i]["code"] for i in (11, 12, 13)] == ["QV_EFORMAT", "QV_EIO", "QV_EINVAL"]
    assert "none.mp4: cannot be opened" in found[12]["error"] and found[13]["error"] == "a row without a path"
    assert found[13]["tokens"] is None and found[13]["status"] == "failed"


def test_an_encoder_says_what_it_lacks(golden, rows):
    with pytest.raises(Exception, match="nowhere"):
        encode(ray.data.from_items(rows[:1]), golden + "/nowhere").take_all()
    with pytest.raises(qwenvit.Error, match='batch_format="pyarrow"'):
        list(qr.Encoder(golden, load_options={**LOAD, "threads": 1})({"path": np.array(["a"])}))
