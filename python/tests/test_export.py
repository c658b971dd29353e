# SPDX-License-Identifier: MIT
"""Tests a cache as Parquet and as tar files: each has the rows of Ray, or a sample per key, part by part. Skipped if pyarrow is not
installed."""
import os
import shutil
import signal
import sys
import tarfile

import numpy as np
import pytest

import qwenvit
from conftest import command, python, refused
from test_cache import clip_of, folder, make_format, write_part  # noqa: F401

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as parquet  # noqa: E402

from qwenvit.adapters import webdataset  # noqa: E402
from qwenvit.adapters.export import main  # noqa: E402
from qwenvit.adapters.rows import SCHEMA, matrices  # noqa: E402


def rows_of(out):
    """Returns {key: row} of all files, and checks that no two files have the same key."""
    rows = [row for path in sorted(out.glob("*.parquet")) for row in parquet.read_table(path).to_pylist()]
    assert len({row["key"] for row in rows}) == len(rows)
    return {row["key"]: row for row in rows}


def expect_same(cache, out):
    rows = rows_of(out)
    assert rows.keys() == set(cache)
    for key, entry in cache.items():
        row = rows[key]
        assert list(row) == ["key", *SCHEMA.names] and row["status"] == "ok" and row["dtype"] == cache.dtype
        for mine, theirs in zip(matrices(row), [entry.tokens, *entry.deepstack], strict=True):
            assert mine.shape == theirs.shape and mine.tobytes() == np.asarray(theirs).tobytes()
        assert row["grid_thw"] == entry.grid_thw[0].tolist() and row["timestamps"] == entry.timestamps.tolist()
        assert row["picture"] == entry.is_image and row["sampled_fps"] == entry.sampled_fps
        assert row["damaged_frames"] == entry.damaged_frames


@pytest.mark.parametrize("dtype, compression", [("bf16", None), ("f16", "zstd"), ("f32", "snappy")])
def test_rows_have_the_bits_of_the_cache(tmp_path, dtype, compression):
    number = {"bf16": "u2", "f16": "f2", "f32": "f4"}[dtype]
    make_format(tmp_path / "cache", dtype=dtype)
    clips = {k: [m.astype(number) for m in clip_of(i)] for i, k in enumerate("abc")}
    write_part(tmp_path / "cache", 1, clips, 1, ["bad"], picture=False, sampled_fps=2.5, damaged_frames=2)
    cache = qwenvit.Cache(tmp_path / "cache")
    counts = cache.to_parquet(tmp_path / "out", compression=compression)
    assert counts == {"written": 1, "there": 0, "removed": 0, "keys": 3}
    expect_same(cache, tmp_path / "out")
    assert rows_of(tmp_path / "out")["a"]["damaged_frames"] == 2


def test_it_goes_on_as_the_cache_does(folder, tmp_path):  # noqa: F811
    cache, out = qwenvit.Cache(folder), tmp_path / "out"
    assert cache.to_parquet(out) == {"written": 3, "there": 0, "removed": 0, "keys": 4}
    expect_same(cache, out)
    files = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    one = sorted(out.iterdir())[1]
    one.unlink()  # as if it had been ended before this file
    seen = []
    assert cache.to_parquet(out, progress=seen.append) == {"written": 1, "there": 2, "removed": 0, "keys": 4}
    assert [n["keys"] for n in seen] == [1, 2, 4]
    assert {p.name for p in out.iterdir() if p.stat().st_mtime_ns == files[p.name]} == files.keys() - {one.name}
    # "twice" is done again, so no key of its part counts any more; of another part, one of two keys
    # does
    write_part(folder, 9, {"twice": clip_of(8), "a/b.mp4": clip_of(9), "é": clip_of(7)}, 50)
    cache.refresh()
    assert cache.to_parquet(out) == {"written": 2, "there": 0, "removed": 2, "keys": 4}
    expect_same(cache, out)


def test_what_is_not_ours_is_left_alone(folder, tmp_path):  # noqa: F811
    cache, out = qwenvit.Cache(folder), tmp_path / "out"
    cache.to_parquet(out)
    name, other = next(out.iterdir()), out / "part-of-mine.parquet"
    parquet.write_table(pa.table({"a": [1]}), other)
    (out / "notes.txt").write_text("mine")
    assert cache.to_parquet(out)["there"] == 3 and other.exists()
    other.unlink()
    name.write_bytes(b"nonsense")
    refused(lambda: cache.to_parquet(out), "this file is not of an export; move it away")
    name.unlink()
    cache.to_parquet(out)
    expect_same(cache, out)
    assert (out / "notes.txt").exists()


def samples_of(out):
    """Returns the names of the samples in all tar files, and checks that no name comes twice."""
    names = []
    for path in sorted(out.glob("*.tar")):
        with tarfile.open(path) as tar:
            names += [m.name.removesuffix(".safetensors") for m in tar if m.name.endswith(".safetensors")]
    assert len(set(names)) == len(names)
    return set(names)


def test_tar_files_go_with_the_cache(folder, tmp_path):  # noqa: F811
    out = tmp_path / "out"
    assert webdataset.write_tokens(qwenvit.Cache(folder), out) == {"written": 3, "there": 0, "removed": 0, "keys": 4}
    assert samples_of(out) == {"a/b_mp4", "é", "twice", "later ok"}
    command("cache", "delete", folder, "twice")
    cache = qwenvit.Cache(folder)
    counts = webdataset.write_tokens(cache, out)
    assert counts["keys"] == 3 and counts["removed"] and samples_of(out) == {"a/b_mp4", "é", "later ok"}
    name = next(out.iterdir())
    for make in (lambda: name.write_bytes(b"nonsense"), name.mkdir):
        name.unlink()
        make()
        refused(lambda: webdataset.write_tokens(cache, out), "this file is not of an export; move it away", "QV_EFORMAT")


def test_names_in_tar_files():
    for key, name in (("a/b.c/d.mp4", "a/b.c/d_mp4"), ("../x", "__/x"), ("/", "_"), ("a\nb/", "a_b/_"), ("//q", "q")):
        assert webdataset._name_of(key) == name


@pytest.mark.parametrize("write", [lambda cache, out: cache.to_parquet(out), webdataset.write_tokens], ids=["parquet", "tar"])
def test_files_that_are_the_last_copy_stay(write, folder, tmp_path):  # noqa: F811
    """An export removes no file of another cache, of a cache whose parts are gone, or of a damaged part."""
    cache, out, other = qwenvit.Cache(folder), tmp_path / "out", tmp_path / "other"
    write(cache, out)
    files = set(out.iterdir())
    make_format(other)
    refused(lambda: write(qwenvit.Cache(other), out), "exported from another cache", "QV_EFORMAT")
    write_part(other, 7, {"a": clip_of(1)}, 1)
    refused(lambda: write(qwenvit.Cache(other), out), "exported from another cache", "QV_EFORMAT")
    part = next(p for p in folder.iterdir() if p.stem in {f.stem for f in files})
    part.write_bytes(part.read_bytes()[:-100])
    assert write(qwenvit.Cache(folder), out)["removed"] == 0 and set(out.iterdir()) == files


def test_tokens_that_were_altered_are_not_exported(folder, tmp_path, capsys):  # noqa: F811
    entry = qwenvit.Cache(folder)["é"]
    data = entry.tokens.tobytes()
    [part] = [p for p in folder.glob("part-*") if data in p.read_bytes()]
    part.write_bytes(part.read_bytes().replace(data, bytes([data[0] ^ 1]) + data[1:]))
    for more in ([], ["--webdataset"]):
        assert main([str(folder), "-o", str(tmp_path / "out"), *more]) == 3
        assert "the checksum of its tensors is" in capsys.readouterr().err
        shutil.rmtree(tmp_path / "out")


def test_an_index_replaces_an_index_alone(folder, tmp_path):  # noqa: F811
    cache = qwenvit.Cache(folder)
    description = folder / "qwenvit-cache.json"
    before = description.read_bytes()
    for path in (description, next(folder.glob("part-*"))):
        refused(lambda: cache.to_parquet_index(path), "this file is not of an export; move it away", "QV_EFORMAT")
    assert description.read_bytes() == before and not qwenvit.Cache(folder).damaged
    assert cache.to_parquet_index(tmp_path / "index") == cache.to_parquet_index(tmp_path / "index")


def test_a_disk_that_is_full_leaves_no_half_file(folder, tmp_path, monkeypatch):  # noqa: F811
    cache, out = qwenvit.Cache(folder), tmp_path / "out"
    calls = []

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        refused(lambda: cache.to_parquet(out), "No space left", "QV_EIO")
    assert len(list(out.iterdir())) == 1
    assert cache.to_parquet(out)["written"] == 2
    expect_same(cache, out)


def test_wrong_arguments_are_said(folder, tmp_path, monkeypatch):  # noqa: F811
    cache = qwenvit.Cache(folder)
    (tmp_path / "file").write_text("")
    for call, words in [(lambda: cache.to_parquet(None), "folder is None"),
                        (lambda: cache.to_parquet(tmp_path, compression="zip"), "compression is 'zip'; must be 'zstd'"),
                        (lambda: cache.to_parquet(tmp_path, progress=True), "progress is True"),
                        (lambda: cache.to_parquet(tmp_path / "file" / "x"), "file/x: Not a directory"),
                        (lambda: cache.to_parquet_index(3), "path is 3")]:
        refused(call, words)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    refused(lambda: cache.to_parquet(tmp_path / "out"), r"to_parquet\(\) needs pyarrow", "QV_EUNSUPPORTED")
    assert not (tmp_path / "out").exists()


def test_the_command(folder, tmp_path, capsys):  # noqa: F811
    def export(*arguments):
        try:
            code = main([str(a) for a in arguments])
        except SystemExit as e:
            code = e.code
        said = capsys.readouterr()
        return code, said.out, said.err

    out, index = tmp_path / "out", tmp_path / "index.parquet"
    done = command("cache", "export", folder, "-o", out, "--index", index)
    assert "4 keys; 3 files written, 0 were there, 0 removed" in done.stdout
    expect_same(qwenvit.Cache(folder), out)
    assert set(parquet.read_table(index)["key"].to_pylist()) == {*qwenvit.Cache(folder), "bad"}
    (folder / "part-00000-of-00001-host-0004-000000.safetensors").write_bytes(b"cut")
    code, said, told = export(folder, "-o", out)
    assert code == 1 and "0 files written, 3 were there" in said and "-0004-" in told
    assert "`cache export` now" in command("export", folder, code=2).stderr
    for arguments, code, words in [((), 2, "usage"), ((folder,), 2, "-o FOLDER or --index FILE"),
                                   ((folder, "-o", out, "--compression", "zip"), 2, "zip"),
                                   ((tmp_path, "-o", out), 3, ": not a cache: "),
                                   ((folder, "-o", folder / "qwenvit-cache.json"), 4, "File exists")]:
        found, _, told = export(*arguments)
        assert found == code and words in told, (arguments, found, told)


def test_one_that_is_killed_is_gone_on_with(folder, tmp_path):  # noqa: F811
    """Exporting is ended while it writes a file."""
    out = tmp_path / "out"
    code = ("import os, signal, sys, qwenvit\n"
            "os.fsync = lambda _: os.listdir(sys.argv[2])[1:] and os.kill(os.getpid(), signal.SIGKILL)\n"
            "qwenvit.Cache(sys.argv[1]).to_parquet(sys.argv[2])")
    assert python(code, folder, out).returncode == -signal.SIGKILL and len(list(out.glob("*.parquet"))) == 1
    assert len(list(out.glob("*.tmp"))) == 1
    verb = ("import os, signal, sys\nfrom qwenvit import __main__\nsys.argv[1:1] = ['cache', 'export']\n"
            "os.fsync = lambda _: os.kill(os.getpid(), signal.SIGTERM)\nsys.exit(__main__.main())")
    assert python(verb, folder, "-o", tmp_path / "tars", "--webdataset").returncode == 143
    assert not list((tmp_path / "tars").iterdir())  # SIGTERM leaves nothing, and what SIGKILL leaves goes with the next run
    cache = qwenvit.Cache(folder)
    assert cache.to_parquet(out) == {"written": 2, "there": 1, "removed": 0, "keys": 4}
    expect_same(cache, out)
    assert not list(out.glob("*.tmp"))
