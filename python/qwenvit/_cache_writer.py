# SPDX-License-Identifier: MIT
"""Adds to a cache (docs/cache.md) what `qwenvit cache` would: C's fill, on a model of the caller's."""

import os

from . import _check, _core, _decoder
from ._arrays import error
from ._model import MOST_THREADS, Model
from ._sources import KINDS, describe, local_path, options_of

FIELDS = ("path", "key", "start", "end", "fps", "max_frames", "max_pixels", "offset", "bytes")
COUNTS = ("done", "tokens", "failed", "there", "failed_before")


class CacheWriter:
    """A folder of vision tokens that clips and images are added to; the model stays the caller's.

        with qwenvit.CacheWriter(model, "tokens", fps=2) as cache:
            counts = cache.add(["a.mp4", {"path": "b.mp4", "key": "b", "max_frames": 64}])

    The folder is made, or is a cache of the same model, dtype, capacity and sampling, whoever began it:
    else Error (QV_EFORMAT) names what differs, and nothing in it has changed. Any number of processes may
    add to one folder; one that is killed loses what its add() has not returned from, and nothing else.

    tokens: "bf16", "f16" or "f32" in the cache. deepstack: whether DeepStack's outputs are kept. packed:
    they lie beside the tokens. retry_failed: do again what has failed before. part_bytes, part_seconds:
    after which a part is sealed while add() runs (0: 1 GiB, 300). options: as of Model.encode.

    damaged: words of each part that cannot be used. failed: {key: (code, words)} of clips that failed in
    an add() of this writer.
    """

    def __init__(self, model, folder, *, tokens="bf16", deepstack=True, packed=False, retry_failed=False,
                 part_bytes=0, part_seconds=0, decoders=0, **options):
        if not isinstance(model, Model):
            raise _check.wrong("model", model, "what qwenvit.load() gives")
        self.model, self.folder = model, os.fsdecode(_check.path(folder, "folder"))
        how = {
            "tokens": _check.one_of(tokens, "tokens", ("bf16", "f16", "f32")),
            "no_deepstack": not _check.flag(deepstack, "deepstack"), "packed": _check.flag(packed, "packed"),
            "retry_failed": _check.flag(retry_failed, "retry_failed"),
            "part_bytes": _check.whole(part_bytes, "part_bytes"),
            "part_seconds": _check.real(part_seconds, "part_seconds"),
            "decoders": _check.whole(decoders, "decoders", 0, MOST_THREADS),
        }
        self._options, self._has_decoder = options, True
        try:
            decoder = _decoder.start()
        except _core.Error:  # what is in memory as frames needs none
            decoder, self._has_decoder = None, False
        self._core = _core.CacheFill(model._core, decoder, os.fsencode(self.folder), how, options_of(options))
        self.damaged, self.failed = self._core.damaged(), {}

    def add(self, rows, progress=None):
        """Encodes what the cache lacks of a list, and seals it: once this returns, a crash loses none of it.

        rows: paths, or dicts as a line of `qwenvit cache --list` has them: path, key (the path), start, end,
        fps, max_frames, max_pixels, offset, bytes. Instead of a path, a dict may have what encode() takes from
        memory: "bytes" (those of a file), "frames" or "image", and then a key; all of a list is held until
        this returns. What was there when the cache was opened is left out; if its path, size, time or options,
        or the bytes in memory, are others, it is done again. What is wrong with a clip is kept as its record.
        Returns counts: done, tokens, failed, there, failed_before.

        progress: a function that is given a dict, as encode()'s, some times a second.

        Error before any work: a row without a path, with a field that is not known, a key twice. Error at
        a device or disk that fails: what was done by then is sealed.
        """
        if progress is not None and not callable(progress):
            raise _check.wrong("progress", progress, "a function, or None")
        counts, failed = self._core.add(self._take_rows(rows), progress)
        self.failed.update(failed)
        return counts

    def _take_rows(self, rows):
        taken, seen = [], {}
        for place, row in enumerate(_check.items(rows, "rows")):
            try:
                one = self._take_row(row, place)
            except _core.Error as e:
                raise error(e.status, f"row {place}: {e}") from None
            if one.key in seen:
                raise error("QV_EINVAL", f"row {place}: key {one.key!r} was in row {seen[one.key]} before")
            seen[one.key] = place
            taken.append(one)
        return taken

    def _take_row(self, row, place):
        row = {"path": row} if isinstance(row, (str, bytes, os.PathLike)) else row
        if not isinstance(row, dict):
            raise error("QV_EINVAL", f"a {type(row).__name__}; must be a path or a dict with one")
        row = {k: v for k, v in row.items() if v is not None}
        data = self._take_memory(row, place) if "path" not in row else None
        if data is None and "path" not in row:
            raise error("QV_EINVAL", f"no path: {row}")
        if isinstance(row.get("path"), (str, bytes, os.PathLike)):
            row["path"] = local_path(row["path"])
        if not self._has_decoder and not isinstance(data, _core.Frames):
            _decoder.start()  # says what is missing
        return _core.CacheRow(row, data)

    def _take_memory(self, row, place):
        """Bytes or Frames, which are taken out of the row; None if it has none."""
        kinds = [k for k in KINDS if k in row and (k != "bytes" or not isinstance(row[k], int))]
        if not kinds:
            return None
        own = {k: row[k] for k in ("max_pixels", "fps") if k in row and kinds != ["bytes"]}
        source = {k: row.pop(k) for k in (*kinds, "timestamps") if k in row}
        data, is_path, _ = describe(self.model._core, {**source, **own}, place, options_of(self._options))
        if is_path:
            raise error("QV_EINVAL", f"{kinds[0]} is a path; give it as path")
        return data

    def close(self):
        """Later calls of add() raise Error."""
        self._core.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __repr__(self):
        return f"<qwenvit.CacheWriter {self.folder}>"
