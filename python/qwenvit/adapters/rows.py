# SPDX-License-Identifier: MIT
"""For those who take tokens out of Arrow tables, which Ray's rows and Parquet files are: one schema,
and matrices(row), which makes arrays of a row.

Matrices are bytes with a dtype and a shape. Arrow's tensors are not used, as they have no bf16, and
as readers of Parquet without Ray do not know their type.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from .._arrays import as_bf16, numpy

SCHEMA = pa.schema(
    [
        ("status", pa.string()),  # "ok" or "failed"
        ("code", pa.string()),  # if it failed, its code, such as "QV_EFORMAT"
        ("error", pa.string()),  # if it failed, the error's text
        ("dtype", pa.string()),  # "bf16", "f16" or "f32"
        # the shape of tokens, and of each of deepstack: [n, width]
        ("shape", pa.list_(pa.int64())),
        ("tokens", pa.large_binary()),
        ("deepstack", pa.list_(pa.large_binary())),
        ("grid_thw", pa.list_(pa.int64())),  # frame pairs, patch rows, patch columns
        ("timestamps", pa.list_(pa.float64())),  # seconds of the sampled frames
        ("damaged_frames", pa.int64()),
        ("picture", pa.bool_()),
        ("sampled_fps", pa.float64()),  # a clip's; None for an image, and in caches without it
    ]
)
KEYED = pa.schema([("key", pa.string()), *SCHEMA])  # rows of a cache have the key as well
MOST_BYTES = 64 << 20  # bytes of tokens in a table


def matrices(row: dict[str, Any]) -> list[Any]:
    """Returns [tokens, *deepstack] of a row as numpy arrays [n, width]. bf16 is represented as in
    Tokens."""
    kind = {"bf16": "uint16", "f16": "float16", "f32": "float32"}[row["dtype"]]
    arrays = [numpy().frombuffer(m, kind).reshape(row["shape"]) for m in (row["tokens"], *row["deepstack"])]
    return [as_bf16(a) for a in arrays] if row["dtype"] == "bf16" else arrays


def row_of(result: Any, deepstack: bool = True) -> dict[str, Any]:
    """Returns the row of Tokens, or of a cache's entry."""
    tokens, seconds = result.tokens, result.timestamps
    return {
        "status": "ok", "dtype": result.dtype, "shape": list(tokens.shape), "tokens": tokens.tobytes(),
        "deepstack": [m.tobytes() for m in result.deepstack] if deepstack else [],
        "grid_thw": result.grid_thw[0].tolist(), "timestamps": None if seconds is None else seconds.tolist(),
        "damaged_frames": result.damaged_frames, "picture": result.is_image, "sampled_fps": result.sampled_fps,
    }


def tables(rows: Iterable[dict[str, Any]], schema: Any) -> Iterator[Any]:
    """Gives tables of rows, each with about so many bytes of tokens."""
    ready: list[Any] = []
    size = 0
    for row in rows:
        ready.append(row)
        size += len(row.get("tokens") or b"") * (1 + len(row.get("deepstack") or ()))
        if size >= MOST_BYTES:
            yield pa.Table.from_pylist(ready, schema)
            ready, size = [], 0
    if ready:
        yield pa.Table.from_pylist(ready, schema)


def tables_of(entries: Iterable[Any]) -> Iterator[Any]:
    """Gives the rows of a cache's entries, with their keys."""
    return tables(({"key": entry.key, **row_of(entry)} for entry in entries), KEYED)
