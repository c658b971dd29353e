# SPDX-License-Identifier: MIT
"""For those who load tokens by Spark, DuckDB, Arrow and the like: writes a cache as Parquet, its
tokens or an index of where they are. Cache.to_parquet() and `python -m qwenvit cache export` call this."""

from __future__ import annotations

import glob
import itertools
import os
from collections.abc import Callable, Iterable
from typing import Any

from .. import _check
from .._cache import Cache, Entry
from .._error import error
from . import export

ROWS_AT_ONCE = 4096  # rows of an index that are written at once
COMPRESSIONS = ("zstd", "snappy", "gzip")
MARK = b"qwenvit_keys"  # in the metadata of our files: the mark of export.py


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
        with export.whole(path) as f, pa.parquet.ParquetWriter(f, schema, **how) as writer:
            for table in tables:
                writer.write_table(table)
    except pa.ArrowException as e:
        raise error("QV_EFORMAT", f"{path}: {e}") from None


def _mark_of(path: str) -> bytes | None:
    """Returns the mark of a file of ours; None if it is not ours."""
    pa = _pyarrow(path)
    try:
        return (pa.parquet.read_schema(path).metadata or {}).get(MARK)
    except (OSError, pa.ArrowException):
        return None


def write_index(cache: Cache, path: _check.Path | None) -> str:
    pa = _pyarrow("to_parquet_index()")
    text, number = pa.string(), pa.int64()
    tensor = {"name": text, "dtype": text, "shape": pa.list_(number), "offset": number, "bytes": number}
    columns = {
        "key": text, "path": text, "bytes": number, "status": text, "code": text, "error": text, "kind": text,
        "frames": number, "damaged_frames": number, "sampled_fps": pa.float64(), "tokens": number, "part": text,
        "tensors": pa.list_(pa.struct(list(tensor.items()))),
    }
    schema, rows = pa.schema(list(columns.items()), {MARK: b"index"}), cache._rows()
    batches = iter(lambda: list(itertools.islice(rows, ROWS_AT_ONCE)), [])
    path = os.path.join(cache.folder, "index.parquet") if path is None else os.fsdecode(_check.path(path, "path"))
    if os.path.lexists(path) and _mark_of(path) is None:
        raise export.not_ours(path)
    export.sweep(glob.escape(path))
    _write(path, schema, (pa.Table.from_pylist(batch, schema) for batch in batches))
    return path


def write_tokens(
    cache: Cache, folder: _check.Path, compression: str | None = None, progress: Callable[[dict[str, int]], object] | None = None
) -> dict[str, int]:
    _pyarrow("to_parquet()")
    if compression is not None:
        _check.one_of(compression, "compression", COMPRESSIONS)
    from .rows import KEYED, tables_of

    def write(path: str, entries: list[Entry], mark: bytes) -> None:
        schema = KEYED.with_metadata({MARK: mark})
        _write(path, schema, tables_of(entries), compression=compression or "none", use_dictionary=False)

    return export.write_files(cache, folder, export.Form(".parquet", write, _mark_of, compression), progress)
