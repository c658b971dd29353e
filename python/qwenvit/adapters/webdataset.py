# SPDX-License-Identifier: MIT
"""For those who train from WebDataset shards: writes a cache as tar files, one for each of its parts. A key becomes
a safetensors file with its tensors, and a JSON file with its record. `cache export --webdataset` calls this."""

from __future__ import annotations

import io
import json
import tarfile

from .. import _check
from .._cache import Cache, Entry
from .._files import DTYPES, header
from . import export

MARK = "qwenvit.keys"  # in the first header of our files: the mark of export.py


def _name_of(key: str) -> str:
    """Returns a key as a name of WebDataset, which has no newline and ends at the first dot of its last part."""
    folder, slash, name = key.lstrip("/").replace("\n", "_").rpartition("/")
    return folder.replace("..", "__") + slash + (name.replace(".", "_") or "_")


def _file_of(entry: Entry) -> bytes:
    tensors, pieces, at = {}, [], 0
    named = {f"deepstack.{i - 1}" if i else "tokens": (m, DTYPES[entry.dtype][0]) for i, m in enumerate(entry._matrices())}
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


def _write(path: str, entries: list[Entry], mark: bytes) -> None:
    taken: set[str] = set()
    with export.whole(path) as f, tarfile.open(
        fileobj=f, mode="w|", format=tarfile.PAX_FORMAT, pax_headers={MARK: mark.decode()}
    ) as tar:
        for entry in entries:
            name = _name_of(entry.key)
            while name in taken:
                name += "_"
            taken.add(name)
            _add(tar, f"{name}.safetensors", _file_of(entry))
            _add(tar, f"{name}.json", json.dumps(entry.record, ensure_ascii=False).encode())


def _mark_of(path: str) -> bytes | None:
    """Returns the mark of a file of ours; None if it is not ours."""
    try:
        with tarfile.open(path, "r:") as tar:
            return tar.pax_headers[MARK].encode()
    except (OSError, tarfile.TarError, KeyError):
        return None


def write_tokens(cache: Cache, folder: _check.Path) -> dict[str, int]:
    return export.write_files(cache, folder, export.Form(".tar", _write, _mark_of))
