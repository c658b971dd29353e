# SPDX-License-Identifier: MIT
"""Tokens as rows of Arrow's tables: the same for Ray and for Parquet.

Matrices are bytes with a dtype and a shape, and no tensors of Arrow: those have no bf16, and what reads Parquet
without Ray does not know their type. matrices(row) makes arrays of them.
"""

import pyarrow as pa

from ._arrays import as_bf16, numpy

SCHEMA = pa.schema(
    [
        ("status", pa.string()),  # "ok" or "failed"
        ("code", pa.string()),  # of one that failed: "QV_EFORMAT",
        ("error", pa.string()),  # and words
        ("dtype", pa.string()),  # "bf16", "f16" or "f32"
        ("shape", pa.list_(pa.int64())),  # of tokens, and of each of deepstack: [n, width]
        ("tokens", pa.large_binary()),
        ("deepstack", pa.list_(pa.large_binary())),
        ("grid_thw", pa.list_(pa.int64())),  # frame pairs, patch rows, patch columns
        ("timestamps", pa.list_(pa.float64())),  # seconds of the sampled frames
        ("damaged_frames", pa.int64()),
        ("picture", pa.bool_()),
        ("sampled_fps", pa.float64()),  # of a clip; None of an image, and of caches that do not say
    ]
)
KEYED = pa.schema([("key", pa.string()), *SCHEMA])  # of a cache
MOST_BYTES = 64 << 20  # of tokens in a table


def matrices(row):
    """[tokens, *deepstack] of a row: numpy's, [n, width] each. bf16 as Tokens has it."""
    kind = {"bf16": "uint16", "f16": "float16", "f32": "float32"}[row["dtype"]]
    arrays = [numpy().frombuffer(m, kind).reshape(row["shape"]) for m in (row["tokens"], *row["deepstack"])]
    return [as_bf16(a) for a in arrays] if row["dtype"] == "bf16" else arrays


def row_of(result, deepstack=True):
    """Of Tokens, or of an entry of a cache."""
    tokens, seconds = result.tokens, result.timestamps
    return {
        "status": "ok", "dtype": result.dtype, "shape": list(tokens.shape), "tokens": tokens.tobytes(),
        "deepstack": [m.tobytes() for m in result.deepstack] if deepstack else [],
        "grid_thw": result.grid_thw[0].tolist(), "timestamps": None if seconds is None else seconds.tolist(),
        "damaged_frames": result.damaged_frames, "picture": result.is_image, "sampled_fps": result.sampled_fps,
    }


def tables(rows, schema):
    """Tables of rows, of so many bytes of tokens each."""
    ready, size = [], 0
    for row in rows:
        ready.append(row)
        size += len(row.get("tokens") or b"") * (1 + len(row.get("deepstack") or ()))
        if size >= MOST_BYTES:
            yield pa.Table.from_pylist(ready, schema)
            ready, size = [], 0
    if ready:
        yield pa.Table.from_pylist(ready, schema)


def tables_of(entries):
    """Of a cache's entries, with their keys."""
    return tables(({"key": entry.key, **row_of(entry)} for entry in entries), KEYED)
