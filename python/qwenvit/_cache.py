# SPDX-License-Identifier: MIT
"""Reads a cache made by `qwenvit cache` (docs/cache.md): presents the C reader as a mapping and its
tensors as arrays."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from . import _check
from ._arrays import as_bf16, needed_numpy, numpy
from ._core import CacheReader
from ._error import Error, error
from .adapters import engines
from .adapters.items import damage_of


class Item(NamedTuple):
    """A key's entry in the index."""

    part: int
    rows: int
    frames: int
    is_image: bool | None  # None: the clip failed
    sampled_fps: float | None
    key: str
    code: str


FRAMES_OF_A_PAIR = 2
GRID_THW, TIMESTAMPS = -1, -2  # the numbers that CacheReader.view returns
KEYS_AT_ONCE = 4096


def _record(reader: CacheReader, index: int) -> dict[str, Any]:
    """Returns a record as a dict. Numbers with more digits than Python accepts stay strings."""
    return json.loads(reader.record(index), parse_int=lambda d: int(d) if len(d) < 20 else d)


def count_of(record: dict[str, Any], name: str) -> int:
    """Returns a number of frames from a record; 0 if it is missing."""
    n = record.get(name)
    return n if type(n) is int and n > 0 else 0


def _failure(reader: CacheReader, index: int) -> tuple[str, tuple[str, str]]:
    """Returns (key, (code, message)) of a clip that failed. The code is in the index, but the message is
    in the record, which may have been altered."""
    *_, key, code = reader.item(index)
    try:
        r = _record(reader, index)
        return key, (r["code"], str(r.get("error", "")))
    except Error as e:
        if e.status not in ("QV_EFORMAT", "QV_EIO"):
            raise
        return key, (code, f"cannot read its record: {e}")


class Entry:
    """The tokens of one key of a cache.

    tokens: [n, width].
    deepstack: a list of arrays of the same shape.
    grid_thw: int64 [1, 3]: frame pairs, patch rows, patch columns.
    timestamps: float64 [frames], in seconds.
    is_image, sampled_fps, second_per_grid_ts: as in Tokens.
    damaged_frames: how many frames could not be decoded and were replaced by the frame before.
    record: everything the cache knows about the key (docs/cache.md): path, bytes, mtime, frames and
        so on.

    Arrays are numpy's, read-only and mapped from the file. bf16 is ml_dtypes.bfloat16 if that
    package is installed, otherwise uint16 with the same bits.

    An entry stays with the part in which its cache found it, whatever refresh() finds later. A part
    is mapped while an array or tensor of it exists, and for some time afterwards. Raises Error if
    the part was removed before it was mapped.
    """

    def __init__(self, cache: Cache, reader: CacheReader, index: int, key: str) -> None:
        self._cache, self._reader, self._index, self.key = cache, reader, index, key
        self.dtype: Literal["bf16", "f32"] = cache.dtype
        self.model_type: str | None = cache.format.get("model_type")
        self._known: dict[str, Any] | None = None  # the record of the key

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Opens the entry again in the process that unpickles it. Its part may be gone by then."""
        self.__dict__.update(state)
        found = self._reader.find(self.key)
        if found is None:
            self._reader = CacheReader(os.fsencode(self._cache.folder))
            found = self._reader.find(self.key)
        if found is None or not found[1]:
            raise error("QV_EIO", f"{self._cache.folder}: the cache no longer contains {self.key!r}", self.key)
        self._index = found[0]

    def _view(self, i: int, writable: bool = False) -> Any:
        return self._reader.view(self._index, i, writable)

    def _matrices(self, writable: bool = False) -> list[Any]:
        return [self._view(i, writable) for i in range(1 + self._cache.n_deepstack)]

    def _shown(self, matrix: Any) -> Any:
        return as_bf16(matrix) if self._cache.dtype == "bf16" else matrix

    @property
    def tokens(self) -> Any:
        return self._shown(self._view(0))

    @property
    def deepstack(self) -> list[Any]:
        return [self._shown(m) for m in self._matrices()[1:]]

    @property
    def grid_thw(self) -> Any:
        return self._view(GRID_THW)

    @property
    def timestamps(self) -> Any:
        return self._view(TIMESTAMPS)

    @property
    def sampled_fps(self) -> float | None:
        return self._item.sampled_fps

    @property
    def _item(self) -> Item:
        return Item(*self._reader.item(self._index))

    @property
    def is_image(self) -> bool:
        return bool(self._item.is_image)

    @property
    def second_per_grid_ts(self) -> float | None:
        return FRAMES_OF_A_PAIR / self.sampled_fps if self.sampled_fps else None

    @property
    def record(self) -> dict[str, Any]:
        if self._known is None:
            self._known = _record(self._reader, self._index)
        return dict(self._known)

    @property
    def damaged_frames(self) -> int:
        return count_of(self.record, "damaged_frames")

    @property
    def damage(self) -> str:
        return damage_of(self)

    to_vllm, to_sglang, to_transformers = engines.to_vllm, engines.to_sglang, engines.to_transformers
    save_ec = engines.save_ec

    @property
    def remark(self) -> str:
        """A remark about an image's pixels, as in Tokens.remark."""
        text = self.record.get("remark")
        return text if isinstance(text, str) else ""

    def __len__(self) -> int:
        return self._item.rows

    def __repr__(self) -> str:
        item, cache = self._item, self._cache
        n, fps = item.frames, item.sampled_fps
        try:
            n = count_of(self.record, "frames") or n
            damaged = f", {self.damaged_frames} damaged" if self.damaged_frames else ""
        except Error as e:
            damaged = f", {e}"
        frames = f"{n} frames" + (f" at {fps:g} fps" if fps else "")
        kind = "an image" if self.is_image else f"a clip of {frames}"
        shape = f"[{item.rows}, {cache.width}] {cache.dtype}, {cache.n_deepstack} deepstack"
        return f"<qwenvit.Entry {self.key!r}: {shape}, {kind}{damaged}>"

    def verify(self) -> None:
        """Reads the tensors from the file and compares their checksum with the record's. Raises
        Error, QV_EFORMAT, if they differ."""
        self._reader.verify(self._index)

    def packed(self) -> Any:
        """Returns a copy as one matrix [n, width * (1 + deepstack)], as vLLM and SGLang expect it."""
        return self._shown(numpy().concatenate(self._matrices(), axis=1))

    def torch(self) -> tuple[Any, list[Any]]:
        """Returns (tokens, deepstack) as mapped tensors. Only this process sees changes made to
        them."""
        import torch

        matrices = []
        for m in self._matrices(writable=True):
            if self._cache.dtype == "bf16":
                matrices.append(torch.from_numpy(m.view("int16")).view(torch.bfloat16))
            else:
                matrices.append(torch.from_numpy(m))
        return matrices[0], matrices[1:]


class Cache(Mapping[str, Entry]):
    """A cache's folder as a mapping from key to Entry.

    refresh() finds parts written in the meantime. Forked and spawned workers may use a cache: an
    unpickled cache opens the same parts again. There may be any number of parts. A file is open
    only while it is mapped, and 1024 parts stay mapped in addition to those with arrays in use.
    Raises Error, QV_ENOMEM, if arrays or tensors of more than 32,768 parts are in use at once.

    failed: {key: (code, message)} of the clips that failed. If the records of a part were altered,
        the message says so and names the part.
    damaged: {part: message} of the parts that violate the format, as `qwenvit cache status` prints
        them. Their keys count as missing.
    """

    format: dict[str, Any]  # how the cache was made: model, dtype, sampling
    dtype: Literal["bf16", "f32"]
    width: int
    n_deepstack: int

    def __init__(self, folder: _check.Path) -> None:
        needed_numpy("Cache")
        self.folder = os.fsdecode(_check.path(folder, "folder"))
        self._take(CacheReader(os.fsencode(self.folder)))
        info = self._reader.info()
        self.format = json.loads(info["made_by"])
        self.dtype, self.width, self.n_deepstack = info["dtype"], info["width"], info["n_deepstack"]

    def _take(self, reader: CacheReader) -> None:
        info = reader.info()
        self._reader, self._n = reader, (info["n_ok"], info["n_failed"])
        self.damaged = {os.fsdecode(part): words for part, words in reader.damaged()}
        self._failed: dict[str, tuple[str, str]] | None = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if len(self._reader.damaged()) > len(self.damaged):  # parts that were removed
            self.refresh()

    def refresh(self) -> None:
        """Reads the new parts; all parts if one is gone, was damaged, or had older records of a key.
        Earlier entries stay as they are."""
        self._take(CacheReader(os.fsencode(self.folder), before=self._reader))

    @property
    def failed(self) -> dict[str, tuple[str, str]]:
        if self._failed is None:
            reader = self._reader
            self._failed = dict(_failure(reader, index) for index in reader.failed())
        return self._failed

    # ---- reading -----------------------------------------------------------------------------------

    def __getitem__(self, key: str) -> Entry:
        reader = self._reader  # another thread may call refresh()
        found = reader.find(key)
        if found is None:
            raise KeyError(f"{key!r} is not in the cache {self.folder}")
        index, ok = found
        if not ok:
            raise KeyError(f"{key!r} failed: {', '.join(self.failed[key])}")
        return Entry(self, reader, index, key)

    def __contains__(self, key: object) -> bool:
        return (self._reader.find(key) or (None, False))[1]

    def _indices(self) -> Iterator[tuple[str, int]]:
        """Yields (key, index) of each key whose tokens are ok."""
        reader, n = self._reader, sum(self._n)
        for first in range(0, n, KEYS_AT_ONCE):
            yield from reader.keys(first, KEYS_AT_ONCE)

    def __iter__(self) -> Iterator[str]:
        return (key for key, _ in self._indices())

    def __len__(self) -> int:
        return self._n[0]

    def part_of(self, key: str) -> int:
        """Returns the number of the part that contains the key. Reading the keys of one part together is
        fastest."""
        return self[key]._item.part

    def __repr__(self) -> str:
        return f"<qwenvit.Cache {self.folder}: {self._n[0]} keys, {self._n[1]} failed>"
