# SPDX-License-Identifier: MIT
"""Adds to a cache (docs/cache.md) what `qwenvit cache` would: the same records, the same bits."""

import contextlib
import math
import os

from . import _core
from ._arrays import error
from ._model import _options

FIELDS = ("path", "key", "start", "end", "fps", "max_frames", "max_pixels", "offset", "bytes")
COUNTS = ("done", "tokens", "failed", "there", "failed_before")
NOT_THE_CLIPS = ("QV_ENOMEM", "QV_ENODEVICE", "QV_EBACKEND", "QV_ESTATE")


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
    """

    def __init__(self, model, folder, *, tokens="bf16", deepstack=True, packed=False, retry_failed=False,
                 part_bytes=0, part_seconds=0, decoders=0, **options):
        self.model, self.folder = model, os.fspath(folder)
        self._retry, self._decoders, self._common = retry_failed, decoders, options
        self._dtype = "bf16" if tokens == "bf16" else "f32"
        info = model.info
        self._core = _core.CacheWriter(
            self.folder, model._core.made_by(_options(options)), tokens, info["out_hidden"],
            info["n_deepstack"] if deepstack else 0, packed, part_bytes, part_seconds,
        )
        self.damaged = self._core.damaged()

    def add(self, rows):
        """Encodes what the cache lacks of a list, and seals it: once this returns, a crash loses none of it.

        rows: paths, or dicts as a line of `qwenvit cache --list` has them: path, key (the path), start, end,
        fps, max_frames, max_pixels, offset, bytes. What was there when the cache was opened is left out; if
        its path, size, time or options are others, it is done again. What is wrong with a clip is kept
        as its record. Returns counts: done, tokens, failed, there, failed_before.

        Error before any work: a row without a path, with a field that is not known, a key twice. Error at
        a device or disk that fails: what was done by then is sealed.
        """
        rows = _take_rows(rows)
        counts = dict.fromkeys(COUNTS, 0)
        wanted = [row for row in rows if self._is_wanted(row, counts)]
        try:
            self._encode(wanted, counts)
        finally:
            self._core.seal()
        return counts

    def _is_wanted(self, row, counts):
        state = self._core.compare(row.key, row.source)
        if state == "failed" and not self._retry:
            counts["failed_before"] += 1
            return False
        counts["there"] += state == "done"
        return state != "done"

    def _encode(self, rows, counts):
        sources = [{"path": os.fsdecode(row.path), "key": str(i), **row.options} for i, row in enumerate(rows)]
        results = self.model.encode(
            sources, dtype=self._dtype, errors="yield", decoders=self._decoders, **self._common
        )
        with contextlib.closing(results):  # whatever is raised: the model is free again
            for result in results:
                self._take(rows[int(result.key)], result, counts)

    def _take(self, row, result, counts):
        failure = result if isinstance(result, _core.Error) else None
        if not failure:
            try:
                self._core.add(row.key, row.source, result._core)
            except _core.Error as e:
                if e.status != "QV_EUNSUPPORTED":  # a token that f16 lacks is the clip's, all else the cache's
                    raise
                failure = e
        if failure and failure.status in NOT_THE_CLIPS:
            raise failure
        if failure:
            self._core.add_failure(row.key, row.source, failure.status, str(failure))
        counts["failed" if failure else "done"] += 1
        counts["tokens"] += 0 if failure else len(result)

    def close(self):
        """Later calls of add() raise Error."""
        self._core.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __repr__(self):
        return f"<qwenvit.CacheWriter {self.folder}>"


# ---- rows ------------------------------------------------------------------------------------------


class _Row:
    """key: as caches write it; path: bytes; options: of encode(); source: both as the binding has them."""

    __slots__ = ("key", "path", "options", "source")


def _take_rows(rows):
    taken, seen = [], {}
    for place, row in enumerate(rows):
        try:
            one = _take_row(row)
        except _core.Error as e:
            raise error(e.status, f"row {place}: {e}") from None
        if one.key in seen:
            raise error("QV_EINVAL", f"row {place}: key {one.key!r} was in row {seen[one.key]} before")
        seen[one.key] = place
        taken.append(one)
    return taken


def _take_row(row):
    row = {"path": row} if isinstance(row, (str, bytes, os.PathLike)) else row
    if not isinstance(row, dict):
        raise error("QV_EINVAL", f"a {type(row).__name__}; must be a path or a dict with one")
    row = {k: v for k, v in row.items() if v is not None}
    for name in row:
        if name not in FIELDS:
            raise error("QV_EINVAL", f"there is no field {name!r}")
    for name in ("path", "key"):
        good = isinstance(row.get(name), (str, bytes, os.PathLike)) and os.fspath(row[name])
        if not good and (name == "path" or name in row):
            found = f"{name} is {row[name]!r}; must be a text" if name in row else f"no path: {row}"
            raise error("QV_EINVAL", found)
    one = _Row()
    one.path = os.fsencode(row["path"])
    one.key = _core.cache_key(os.fsencode(row.get("key", one.path)))
    one.options = _own(row)
    cut = {name: row[name] for name in ("start", "end") if name in row}
    for name, value in cut.items():
        if not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise error("QV_EINVAL", f"{name} is {value!r}; must be seconds from 0 up")
    if "end" in cut and cut["end"] <= cut.get("start", 0):
        raise error("QV_EINVAL", f"end is {cut['end']!r}; must be above start, {cut.get('start', 0)!r}")
    one.options.update({name: float(value) for name, value in cut.items()})
    one.source = _core.CacheSource(one.path, one.options)
    return one


def _own(row):
    """What a row asks of its clip alone, as options of encode()."""
    fps = row.get("fps", 0)
    if "fps" in row and not (isinstance(fps, (int, float)) and fps > 0):
        raise error("QV_EINVAL", f"fps is {fps!r}; must be a number above 0")
    options = {}
    for name, least in (("max_frames", 1), ("max_pixels", 1), ("offset", 0), ("bytes", 1)):
        value = row.get(name, 0)
        if name in row and (not isinstance(value, int) or value < least):
            raise error("QV_EINVAL", f"{name} is {value!r}; must be an integer from {least} up")
        if value:
            options["length" if name == "bytes" else name] = value
    if fps:
        options.update(fps=float(fps), num_frames=0)
    return options
