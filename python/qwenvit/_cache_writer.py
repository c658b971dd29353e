# SPDX-License-Identifier: MIT
"""Adds clips to a cache (docs/cache.md) as `qwenvit cache` does, with the caller's model."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from typing import Any, Literal

from . import _check, _core, _decoder
from ._error import Error, error
from ._model import MOST_THREADS, Model
from ._sources import OF_FRAMES, describe, local_path
from .media import KINDS, options_of

FIELDS = ("path", "key", *_core.ROW_OPTIONS)


class CacheWriter:
    """A folder of vision tokens to which clips and images are added, encoded with the caller's model.

        with qwenvit.CacheWriter(model, "tokens", fps=2) as cache:
            counts = cache.add(["a.mp4", {"path": "b.mp4", "key": "b", "max_frames": 64}])

    The folder is created if it does not exist. If it is already a cache, its model, dtype, capacity
    and sampling must be the same; otherwise Error (QV_EFORMAT) names the difference, and the cache
    is not changed. Any number of processes may add to one folder. A process that is killed loses
    only the work of its current add().

    tokens: dtype in the cache: "bf16" or "f32".
    deepstack: whether to keep DeepStack's outputs.
    retry_failed: whether to retry clips that failed earlier.
    part_bytes, part_seconds: seal a part at this size or age, even during add() (0: 1 GiB,
        300 seconds).
    decoders: how many clips are decoded at once; 0: one per core.
    options: as in Model.encode.

    damaged: a message about each part that cannot be used.
    failed: {key: (code, message)} of the clips that failed in an add() of this writer.
    """

    def __init__(
        self, model: Model, folder: _check.Path, *, tokens: Literal["bf16", "f32"] = "bf16",
        deepstack: bool = True, retry_failed: bool = False, part_bytes: int = 0,
        part_seconds: float = 0, decoders: int = 0, **options: Any,
    ) -> None:
        if not isinstance(model, Model):
            raise _check.wrong("model", model, "a Model from qwenvit.load()")
        self.model, self.folder = model, os.fsdecode(_check.path(folder, "folder"))
        self._options = options
        decoder = None
        with contextlib.suppress(Error):  # frames in memory need none
            decoder = _decoder.start()
        self._core = _core.CacheFill(
            model._core, decoder, os.fsencode(self.folder), _check.one_of(tokens, "tokens", ("bf16", "f32")),
            _check.flag(deepstack, "deepstack"), _check.flag(retry_failed, "retry_failed"), _check.whole(part_bytes, "part_bytes"),
            _check.real(part_seconds, "part_seconds"), _check.whole(decoders, "decoders", 0, MOST_THREADS), options_of(options))
        self.damaged: list[str] = self._core.damaged()
        self.failed: dict[str, tuple[str, str]] = {}

    def add(self, rows: Iterable[Any], progress: Callable[[dict[str, Any]], object] | None = None) -> dict[str, int]:
        """Encodes the rows that the cache lacks, and seals them. After it has returned, a crash loses
        none of them.

        rows: paths, or dicts with the keys of a line of `qwenvit cache fill --list`: path, key (by
            default the path), start, end, fps, max_frames, max_pixels, offset, bytes. Instead of a
            path, a dict may have a source in memory, as in Model.encode: "bytes" (a file's bytes),
            "frames" or "image". It then needs a key, and is kept in memory until add() returns.
        progress: a function that is called with a dict, as in Model.encode, a few times per second.

        A row whose key was in the cache when it was opened is skipped, unless its path, size, time,
        options or bytes in memory have changed. A clip that fails gets a record with the reason.

        Returns the counts: done, tokens, failed, there, failed_before.

        Raises Error before any work if a row has no path, an unknown field or the key of another row.
        Raises Error if a device or a disk fails; the rows finished by then are sealed.
        """
        _check.function(progress, "progress")
        counts, failed = self._core.add(self._take_rows(rows), progress)
        self.failed.update(failed)
        return counts

    def _take_rows(self, rows: Iterable[Any]) -> list[_core.CacheRow]:
        taken: list[_core.CacheRow] = []
        seen: dict[str, int] = {}
        for place, row in enumerate(_check.items(rows, "rows")):
            try:
                one = self._take_row(row, place)
            except Error as e:
                raise error(e.status, f"row {place}: {e}") from None
            if one.key in seen:
                raise error("QV_EINVAL", f"row {place}: key {one.key!r} is already used by row {seen[one.key]}")
            seen[one.key] = place
            taken.append(one)
        return taken

    def _take_row(self, row: Any, place: int) -> _core.CacheRow:
        row = {"path": row} if isinstance(row, (str, bytes, os.PathLike)) else row
        if not isinstance(row, dict):
            raise error("QV_EINVAL", f"{_check.kind_of(row)}; it must be a path or a dict with a path")
        row = {k: v for k, v in row.items() if v is not None}
        data = self._take_memory(row, place) if "path" not in row else None
        if data is None and "path" not in row:
            raise error("QV_EINVAL", f"path is missing: {row}")
        if isinstance(row.get("path"), (str, bytes, os.PathLike)):
            row["path"] = local_path(row["path"])
        if not isinstance(data, _core.Frames):
            _decoder.start()  # raises if FFmpeg is missing
        return _core.CacheRow(row, data)

    def _take_memory(self, row: dict[str, Any], place: int) -> Any:
        """Removes the bytes or Frames from a row and returns them; None if it has none."""
        kinds = [k for k in KINDS if k in row and (k != "bytes" or not isinstance(row[k], int))]
        if not kinds:
            return None
        own = {k: row[k] for k in OF_FRAMES if k in FIELDS and k in row and kinds != ["bytes"]}
        source = {k: row.pop(k) for k in (*kinds, "timestamps") if k in row}
        data, is_path, *_ = describe([self.model._core], {**source, **own}, place, {}, options_of(self._options))
        if is_path:
            raise error("QV_EINVAL", f"{kinds[0]} is a path; pass it as path")
        return data

    def close(self) -> None:
        """Closes the cache. Later calls of add() raise Error."""
        self._core.close()

    def __enter__(self) -> CacheWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<qwenvit.CacheWriter {self.folder}>"
