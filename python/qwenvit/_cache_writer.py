# SPDX-License-Identifier: MIT
"""Adds to a cache (docs/cache.md) what `qwenvit cache` would: the same records, the same bits."""

import contextlib
import os

from . import _check, _core
from ._arrays import error
from ._model import MOST_THREADS, Model
from ._sources import local_path, options_of

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
    """

    def __init__(self, model, folder, *, tokens="bf16", deepstack=True, packed=False, retry_failed=False,
                 part_bytes=0, part_seconds=0, decoders=0, **options):
        if not isinstance(model, Model):
            raise _check.wrong("model", model, "what qwenvit.load() gives")
        self.model, self.folder = model, os.fsdecode(_check.path(folder, "folder"))
        self._decoders, self._common = _check.whole(decoders, "decoders", 0, MOST_THREADS), options
        self._dtype = "bf16" if _check.text(tokens, "tokens") == "bf16" else "f32"
        info = model.info
        self._core = _core.CacheWriter(
            os.fsencode(self.folder), model._core.made_by(options_of(options)), tokens, info["out_hidden"],
            info["n_deepstack"] if _check.flag(deepstack, "deepstack") else 0, _check.flag(packed, "packed"),
            _check.flag(retry_failed, "retry_failed"), _check.whole(part_bytes, "part_bytes"),
            _check.real(part_seconds, "part_seconds"),
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
        state = self._core.compare(row)
        if state != "wanted":
            counts[state] += 1
        return state == "wanted"

    def _encode(self, rows, counts):
        sources = [{"path": os.fsdecode(row.path), **row.options} for row in rows]
        results = self.model.encode(
            sources, dtype=self._dtype, errors="yield", ordered=False, decoders=self._decoders, **self._common
        )
        with contextlib.closing(results):  # whatever is raised: the model is free again
            for result in results:
                self._take(rows[result.index], result, counts)

    def _take(self, row, result, counts):
        failure = result if isinstance(result, _core.Error) else None
        if not failure:
            try:
                self._core.add(row, result._core)
            except _core.Error as e:
                if e.status != "QV_EUNSUPPORTED":  # a token that f16 lacks is the clip's, all else the cache's
                    raise
                failure = e
        if failure and _core.ends_run(failure.status):
            raise failure
        if failure:
            self._core.add_failure(row, failure.status, str(failure))
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


def _take_rows(rows):
    taken, seen = [], {}
    for place, row in enumerate(_check.items(rows, "rows")):
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
    """The binding's: key, as caches write it; path: bytes; options: of encode()."""
    row = {"path": row} if isinstance(row, (str, bytes, os.PathLike)) else row
    if not isinstance(row, dict):
        raise error("QV_EINVAL", f"a {type(row).__name__}; must be a path or a dict with one")
    row = {k: v for k, v in row.items() if v is not None}
    if "path" not in row:
        raise error("QV_EINVAL", f"no path: {row}")
    if isinstance(row["path"], (str, bytes, os.PathLike)):
        row["path"] = local_path(row["path"])
    return _core.CacheRow(row)
