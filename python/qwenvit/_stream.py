# SPDX-License-Identifier: MIT
"""Encodes sources as a client of the model's open job: a thread adds them while results are taken."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _core
from ._error import Error, error
from ._sources import Options, describe, key_of

if TYPE_CHECKING:
    from ._model import Model, Tokens

Progress = bool | Callable[[dict[str, Any]], object] | None

MOST_AHEAD = 1 << 30  # bytes of sources and results that may wait to be taken
FOR_A_DECODER = 64 << 20  # bytes added for each decoder, so that none of many decoders waits
SECONDS = 0.5  # the time between two lines of progress
# codes of errors that concern one source; any other ends the job
OF_A_SOURCE = ("QV_EINVAL", "QV_EUNSUPPORTED", "QV_EIO", "QV_EFORMAT")


class How(NamedTuple):
    """How sources are encoded."""

    dtype: str
    progress: Progress
    errors: str
    ordered: bool
    decoders: int
    total: int | None  # how many there are, if that is known


class _Feeder(threading.Thread):
    """Adds sources, while results are taken.

    The caller's iterator may block for ever, so nobody may wait for this thread while it is in
    there, and it keeps no client open. After the client was closed, it drops a source that comes too late.
    """

    def __init__(self, model: Model, client: _core.Client, sources: Iterable[Any], options: Options) -> None:
        super().__init__(name="qwenvit feeder", daemon=True)
        self.core, self.client, self.sources, self.options = model._core, client.share(), sources, options
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            for place, source in enumerate(self.sources):
                if self.client.closed:
                    return
                self.add(place, source)
        except BaseException as e:
            self.failure = e
        self.client.end()

    def add(self, place: int, source: Any) -> None:
        key = str(place)
        try:
            key = key_of(source, place)
            self.client.add(place, key, *describe(self.core, source, place, {}, self.options))
        except Error as e:
            if e.status not in OF_A_SOURCE:
                raise
            self.client.refuse(place, key, e.status, str(e))


# ---- progress ------------------------------------------------------------------------------------


def _time(seconds: float) -> str:
    """Returns 3:05 or 2:03:05, as the command prints it."""
    minutes, seconds = divmod(int(min(seconds, 1e9) + 0.5), 60)
    return f"{minutes}:{seconds:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"


class _Progress:
    """Returns how.progress as a function that is given a dict; True becomes one that prints a line
    on the terminal."""

    def __init__(self, how: How) -> None:
        self.total, self.said = how.total, 0.0
        self.tell = how.progress if callable(how.progress) else None
        self.line = how.progress is True and sys.stderr.isatty()

    def show(self, p: dict[str, Any], last: bool = False) -> None:
        if not self.tell and not self.line:
            return
        p["total"] = self.total
        known = self.total is not None and p["done"]
        p["left_s"] = (self.total - p["done"]) * p["seconds"] / p["done"] if known else None
        if self.tell:
            self.tell(p)
        elif last or time.monotonic() - self.said >= SECONDS:
            self.said = time.monotonic()
            print(f"\r{self.words(p)}\033[K", end="", file=sys.stderr, flush=True)

    def words(self, p: dict[str, Any]) -> str:
        seconds = max(p["seconds"], 1e-9)
        of = "" if self.total is None else f"/{self.total}"
        failed = f" ({p['failed']} failed)" if p["failed"] else ""
        left = "" if self.total is None else f", {'?' if p['left_s'] is None else _time(p['left_s'])} left"
        return (
            f"{p['done']}{of} clips{failed}, {p['done'] / seconds:.1f} clips/s, {p['tokens'] / seconds:.0f} "
            f"tokens/s{left}, limited by {p['limit']}"
        )

    def end(self) -> None:
        if self.line:
            print(file=sys.stderr)


# ---- results -------------------------------------------------------------------------------------


def _failure(how: How, status: str, text: str, key: str, index: int) -> Error:
    """Returns a source's Error, or raises it."""
    failure = error(status, text, key, index)
    if how.errors == "raise":
        raise failure from None
    return failure


def _take(client: _core.Client, progress: _Progress) -> Iterator[_core.Tokens]:
    """Gives the results as the binding has them, and shows the progress."""
    while (core := client.next(SECONDS)) is not None:
        if core or progress.line:
            progress.show(client.progress())
        if not isinstance(core, bool):  # a result came in time
            yield core
    progress.show(client.progress(), last=True)


def _room(decoders: int) -> int:
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return MOST_AHEAD + FOR_A_DECODER * (decoders or len(cores))


def results(model: Model, sources: Iterable[Any], how: How, options: Options) -> Iterator[Tokens | Error]:
    """Gives Tokens, and Errors if how.errors is "yield"."""
    progress = _Progress(how)
    client = _core.Client(model._jobs, how.dtype, how.decoders, False, how.ordered, _room(how.decoders), 0, options)
    try:
        feeder = _Feeder(model, client, sources, options)
        feeder.start()
        for core in _take(client, progress):
            yield model._tokens(core) if core.status == "QV_OK" else _failure(how, core.status, core.error, core.key, core.index)
        feeder.join()
        if feeder.failure:
            raise feeder.failure
    finally:
        client.close()
        progress.end()


def one(model: Model, source: Any, how: How, options: Options) -> Tokens | Error:
    """Returns the Tokens of one source, or its Error if how.errors is "yield"."""
    progress, key = _Progress(how), "0"
    try:
        key = key_of(source, 0)
        data, is_path, own, decoder = describe(model._core, source, 0, options)
        client = _core.Client(model._jobs, how.dtype, 0, True, True, 0, 0, own)
        try:
            client.add(0, key, data, is_path, own, decoder)
            client.end()
            [core] = _take(client, progress)
        finally:
            client.close()
    except Error as e:
        if e.status not in OF_A_SOURCE:
            raise
        return _failure(how, e.status, str(e), key, 0)
    finally:
        progress.end()
    return model._tokens(core) if core.status == "QV_OK" else _failure(how, core.status, core.error, core.key, core.index)
