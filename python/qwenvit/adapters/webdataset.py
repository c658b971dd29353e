# SPDX-License-Identifier: MIT
"""For those who train from WebDataset shards: writes a cache as tar files, one for each of its parts. A key becomes
a safetensors file with its tensors, and a JSON file with its record. `cache export --webdataset` calls this."""

from __future__ import annotations

import io
import json
import os
import tarfile

from .. import _check
from .._cache import Cache, Entry
from .._error import error
from .._files import DTYPES, header, whole
from .parquet import COUNTS


def _name_of(key: str) -> str:
    """Returns a key as WebDataset has it: its name ends where the first dot of the last part is."""
    folder, slash, name = key.lstrip("/").rpartition("/")
    return folder.replace("..", "__") + slash + name.replace(".", "_")


def _file_of(entry: Entry, dtype: str) -> bytes:
    tensors, pieces, at = {}, [], 0
    named = {f"deepstack.{i - 1}" if i else "tokens": (m, DTYPES[dtype][0]) for i, m in enumerate(entry._matrices())}
    named |= {"grid_thw": (entry.grid_thw, "I64"), "timestamps": (entry.timestamps, "F64")}
    for name, (array, kind) in named.items():
        data = memoryview(array).tobytes()
        tensors[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [at, at + len(data)]}
        pieces.append(data)
        at += len(data)
    return b"".join([header(tensors), *pieces])


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    about = tarfile.TarInfo(name)
    about.size = len(data)
    tar.addfile(about, io.BytesIO(data))


def export(cache: Cache, folder: _check.Path) -> dict[str, int]:
    """Writes the files that are not there yet. Returns how many keys, and how many files were written and there."""
    folder = os.fsdecode(_check.path(folder, "folder"))
    counts = dict.fromkeys(COUNTS, 0)
    try:
        os.makedirs(folder, exist_ok=True)
        for path, entries in cache._by_part(folder, ".tar"):
            counts["keys"] += len(entries)
            counts["there" if os.path.exists(path) else "written"] += 1
            if os.path.exists(path):
                continue
            taken: set[str] = set()
            with whole(path) as f, tarfile.open(fileobj=f, mode="w|", format=tarfile.PAX_FORMAT) as tar:
                for entry in entries:
                    name = _name_of(entry.key)
                    while name in taken:
                        name += "_"
                    taken.add(name)
                    _add(tar, f"{name}.safetensors", _file_of(entry, cache.dtype))
                    _add(tar, f"{name}.json", json.dumps(entry.record, ensure_ascii=False).encode())
    except OSError as e:
        raise error("QV_EIO", f"{folder}: {e.strerror or e}") from None
    return counts
