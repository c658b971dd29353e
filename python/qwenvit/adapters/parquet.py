# SPDX-License-Identifier: MIT
"""For those who load tokens by Spark, DuckDB, Arrow and the like: writes a cache as Parquet, its
tokens or an index of where they are. Cache.to_parquet() and `python -m qwenvit cache export` call this."""

from __future__ import annotations

import argparse
import glob
import hashlib
import itertools
import json
import os
import re
import socket
import sys
from collections.abc import Callable, Iterable
from typing import Any

from .. import _check
from .._cache import Cache, Entry
from .._error import Error, error
from .._files import whole

ROWS_AT_ONCE = 4096  # rows of an index that are written at once
NEEDS = ": pip install 'qwenvit[export]'"
COMPRESSIONS = ("zstd", "snappy", "gzip")
COUNTS = ("written", "there", "removed", "keys")
KEYS = b"qwenvit_keys"  # a file's metadata has this key, which tells whose tokens it holds
# ends the name of a file that is being written; {} is the process
OURS = f".{socket.gethostname()}-{{}}.tmp"


def _pyarrow(what: str) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise error("QV_EUNSUPPORTED", f"{what} needs pyarrow") from None
    return pyarrow


def _write(path: str, schema: Any, tables: Iterable[Any], **how: Any) -> None:
    """Writes a file whole or not at all."""
    pa = _pyarrow(path)
    try:
        with whole(path, OURS.format(os.getpid())) as f, pa.parquet.ParquetWriter(f, schema, **how) as writer:
            for table in tables:
                writer.write_table(table)
    except OSError as e:
        raise error("QV_EIO", f"{path}: {e.strerror or e}") from None


# ---- where tokens lie ------------------------------------------------------------------------------


def write_index(cache: Cache, path: _check.Path | None) -> str:
    pa = _pyarrow("to_parquet_index()")
    text, number = pa.string(), pa.int64()
    tensor = {"name": text, "dtype": text, "shape": pa.list_(number), "offset": number, "bytes": number}
    columns = {
        "key": text, "path": text, "bytes": number, "status": text, "code": text, "error": text, "kind": text,
        "frames": number, "damaged_frames": number, "sampled_fps": pa.float64(), "tokens": number, "part": text,
        "tensors": pa.list_(pa.struct(list(tensor.items()))),
    }
    schema, rows = pa.schema(list(columns.items())), cache._rows()
    batches = iter(lambda: list(itertools.islice(rows, ROWS_AT_ONCE)), [])
    path = os.path.join(cache.folder, "index.parquet") if path is None else os.fsdecode(_check.path(path, "path"))
    _write(path, schema, (pa.Table.from_pylist(batch, schema) for batch in batches))
    return path


# ---- tokens ----------------------------------------------------------------------------------------


def export(
    cache: Cache, folder: _check.Path, compression: str | None = None, progress: Callable[[dict[str, int]], object] | None = None
) -> dict[str, int]:
    _pyarrow("to_parquet()")
    if compression is not None:
        _check.one_of(compression, "compression", COMPRESSIONS)
    _check.function(progress, "progress")
    folder = os.fsdecode(_check.path(folder, "folder"))
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as e:
        raise error("QV_EIO", f"{folder}: {e.strerror}") from None
    _sweep(folder)
    counts, files = dict.fromkeys(COUNTS, 0), set[str]()
    for path, entries in cache._by_part(folder, ".parquet"):
        counts["written" if _write_part(cache, path, entries, compression) else "there"] += 1
        counts["keys"] += len(entries)
        files.add(path)
        if progress:
            progress(dict(counts))
    counts["removed"] = _remove_others(folder, files)
    return counts


def _write_part(cache: Cache, path: str, entries: list[Entry], compression: str | None) -> bool:
    """Writes a part's file unless it is there. Returns whether it was not."""
    from .rows import KEYED, tables_of

    keys = hashlib.sha256(json.dumps([entry.key for entry in entries]).encode()).hexdigest().encode()
    if os.path.lexists(path) and _keys_of(path) == keys:
        return False
    schema = KEYED.with_metadata({KEYS: keys, b"qwenvit_cache": json.dumps(cache.format)})
    _write(path, schema, tables_of(entries), compression=compression or "none", use_dictionary=False)
    return True


def _keys_of(path: str) -> bytes:
    """Returns the keys that a file of ours holds by its own account; None if it is not ours."""
    pa = _pyarrow(path)
    try:
        keys = (pa.parquet.read_schema(path).metadata or {}).get(KEYS)
    except (OSError, pa.ArrowException):
        keys = None
    if keys is None:
        raise error("QV_EFORMAT", f"{path}: this file is not of an export; move it away")
    return keys


def _remove_others(folder: str, files: set[str]) -> int:
    """Removes the files of parts that are gone, or whose keys all have later records."""
    others = set(glob.glob(os.path.join(glob.escape(folder), "part-*.parquet"))) - files
    for path in others:
        _keys_of(path)
    for path in others:
        os.remove(path)
    return len(others)


def _sweep(folder: str) -> None:
    """Removes unfinished files of processes of this host that have ended."""
    ours = re.compile(r"part-.*" + re.escape(OURS).replace(r"\{\}", r"(\d+)"))
    for name in os.listdir(folder):
        found = ours.fullmatch(name)
        try:
            if found:
                os.kill(int(found[1]), 0)
        except ProcessLookupError:
            os.remove(os.path.join(folder, name))
        except OSError:
            pass  # another user's process


# ---- the command -----------------------------------------------------------------------------------


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m qwenvit cache export", description="Writes a cache as Parquet or tar files, one for each of its parts; "
        "a second run continues. Exit codes: 0 done; 1 parts of the cache are damaged, the others are done; "
        "2 usage; 3 no cache, or a folder of something else; 4 the disk, or no pyarrow.",
        epilog="python -m qwenvit cache export tokens -o parquet")
    parser.add_argument("cache", help="a folder that `qwenvit cache fill` made")
    parser.add_argument("-o", dest="out", metavar="OUT", help="the folder of the files")
    parser.add_argument("--index", metavar="FILE", help="write what lies where; no tokens unless -o is given")
    parser.add_argument("--compression", choices=COMPRESSIONS)
    parser.add_argument("--webdataset", action="store_true", help="write tar files in place of Parquet: for each key "
                        "a safetensors file and its record as JSON")
    asked = parser.parse_args(arguments)
    if not asked.out and not asked.index:
        parser.error("-o FOLDER or --index FILE")
    try:
        return _run(asked)
    except Error as e:
        print(f"qwenvit: {e}{NEEDS if e.status == 'QV_EUNSUPPORTED' else ''}", file=sys.stderr)
        return {"QV_EINVAL": 2, "QV_EFORMAT": 3}.get(e.status, 4)
    except KeyboardInterrupt:
        print("qwenvit: interrupted: files that are there are whole; run it again to go on", file=sys.stderr)
        return 130


def _run(asked: argparse.Namespace) -> int:
    try:
        cache = Cache(asked.cache)
    except Error as e:
        e.status = "QV_EFORMAT" if e.status == "QV_EIO" else e.status
        raise
    for words in cache.damaged.values():
        print(f"qwenvit: {words}", file=sys.stderr)
    if asked.index:
        print(f"{write_index(cache, asked.index)}: {len(cache)} keys, {len(cache.failed)} failed")
    if asked.out:
        from . import webdataset

        n = (webdataset.export(cache, asked.out) if asked.webdataset else
             export(cache, asked.out, asked.compression, _show if sys.stderr.isatty() else None))
        print(f"{asked.out}: {n['keys']} keys; {n['written']} files written, {n['there']} were there, "
              f"{n['removed']} removed")
    return 1 if cache.damaged else 0


def _show(counts: dict[str, int]) -> None:
    files = counts["written"] + counts["there"]
    print(f"\r{counts['keys']} keys in {files} files ", end="", file=sys.stderr, flush=True)
