# SPDX-License-Identifier: MIT
"""Encodes sources as a client of the model's open job: one thread adds them while another reads the results."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from . import _core
from ._error import Error, FileError, InputError
from ._sources import describe, key_of
from ._tokens import Tokens, result_of
from .media import Options

Progress = bool | Callable[[dict[str, Any]], object] | None

MOST_AHEAD = 1 << 30  # bytes of sources and results that may wait to be read
FOR_A_DECODER = 64 << 20  # more bytes per decoder, so that many decoders need not wait
SECONDS = 0.5  # between two progress lines


class How(NamedTuple):
    """How sources are encoded."""

    dtype: str
    progress: Progress
    errors: str
    ordered: bool
    decoders: int
    total: int | None  # the number of sources, if known
    hidden: bool  # whether results have the last block's rows


class Jobs:
    """The open jobs of models of one tower. There is one, unless calls differ in options that a job fixes for all sources."""

    MOST = 4  # beyond that, the oldest is closed once it is unused

    def __init__(self, *models: _core.Model) -> None:
        self.models = [*models]
        self._open: dict[Any, tuple[_core.Job, bool]] = {}  # and whether it was warmed up

    def client(
        self, dtype: str, options: Options, most: int, decoders: int, alone: bool = False, ordered: bool = False, queue: int = 0,
        hidden: bool = False,
    ) -> _core.Client:
        """Returns a client of an open job, which is opened now if necessary. This needs no lock: if several threads
        open a job at once, the first is kept, and a thread that races with close() gets a job to itself."""
        open_, key = self._open, (dtype, decoders, alone, options.get("decode", "auto"), options.get("gpu", 0), hidden)
        found = open_.get(key)
        if not found or found[0].lost or queue and not found[1]:
            where = {k: options[k] for k in ("decode", "gpu") if k in options}
            made = _core.Job(self.models, dtype, decoders, alone, queue > 0, where, hidden), queue > 0
            if open_.get(key) is found:
                open_.pop(key, None)
            found = open_.setdefault(key, made)
            for old in list(open_)[: -self.MOST]:
                open_.pop(old, None)
        return _core.Client(found[0], ordered, most, queue)

    def close(self) -> None:
        self._open = {}


def _feed(
    client: _core.Client, models: list[_core.Model], sources: Iterable[Any], own: Options, common: Options, failures: list[BaseException]
) -> None:
    """Adds sources while results are read. A closed client refuses late sources."""
    try:
        for place, source in enumerate(sources):
            key = str(place)
            try:
                key = key_of(source, place)
                client.add(place, key, *describe(models, source, place, own, common))
            except (InputError, FileError) as e:  # concerns this source only; any other error ends the job
                client.refuse(place, key, e.status, str(e))
    except BaseException as e:
        failures.append(e)
    client.end()


# ---- progress ------------------------------------------------------------------------------------


def _time(seconds: float) -> str:
    """Returns 3:05 or 2:03:05, as the command prints it."""
    minutes, seconds = divmod(int(min(seconds, 1e9) + 0.5), 60)
    return f"{minutes}:{seconds:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"


class _Progress:
    """Reports progress to how.progress, a function that is called with a dict; True prints a line on
    the terminal instead."""

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


def _take(client: _core.Client, progress: _Progress) -> Iterator[_core.Tokens]:
    """Yields the binding's results and shows the progress."""
    while (core := client.next(SECONDS)) is not None:
        if core or progress.line:
            progress.show(client.progress())
        if not isinstance(core, bool):  # a result came in time
            yield core
    progress.show(client.progress(), last=True)


def _room(decoders: int) -> int:
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return MOST_AHEAD + FOR_A_DECODER * (decoders or len(cores))


def results(
    jobs: Jobs, model_type: str, sources: Iterable[Any], how: How, options: Options, alone: bool = False
) -> Iterator[Tokens | Error]:
    """Yields Tokens, and Errors if how.errors is "yield". alone: there is one source, which shares its chunks with no other.

    A thread reads the caller's iterator, which may block for ever. So nothing waits for the thread, and it keeps no
    client open."""
    progress, failures = _Progress(how), list[BaseException]()
    client = jobs.client(how.dtype, options, _room(how.decoders), how.decoders, alone, how.ordered, hidden=how.hidden)
    try:
        if alone:
            _feed(client, jobs.models, sources, options, {}, failures)
        else:
            feeds = client.share(), jobs.models, sources, {}, options, failures
            threading.Thread(target=_feed, args=feeds, name="qwenvit feeder", daemon=True).start()
        for core in _take(client, progress):
            result = result_of(core, model_type)
            if isinstance(result, Error) and how.errors == "raise":
                raise result from None
            yield result
        if failures:
            raise failures[0]
    finally:
        client.close()
        progress.end()
