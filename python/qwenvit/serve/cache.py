# SPDX-License-Identifier: MIT
"""Caches tokens in memory and in a folder, keyed by the content of their sources, and computes equal
simultaneous requests once."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import glob
import json
import os
import re
import shutil
import tempfile
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import blake3

from .. import Error, FileError, InputError, Tokens
from .items import Item, Refused, Room
from .loop import Writers, forgotten, off_loop

ENDING = ".safetensors"
SCRATCH = "qwenvit-serve-"  # prefix of the folders that a server deletes when it ends
STARTING = 60.0  # seconds; longer than a server needs from creating such a folder to locking it
NAME = re.compile("[0-9a-f]{64}" + re.escape(ENDING))


class Kept(NamedTuple):
    name: str
    size: int
    data: bytes | None  # None: only in the folder


Finish = Callable[[Tokens], Kept]
Added = Callable[[Kept], None]

Compute = Callable[..., Awaitable[Any]]  # Service.compute of an item


class _Flight:
    """A computation, and how many requests wait for it."""

    task: asyncio.Task[Any]
    waiters = 0


class TokenCache:
    """Files as `encode` writes them, under names derived from the content. memory, most: the most bytes
    in memory and in the folder; the least recently used are dropped. folder: None for none. Errors are
    not cached.

    A folder belongs to one server at a time. Its files are whole: a file gets its name once it is
    written."""

    option = "--cache"

    def __init__(self, about: dict[str, Any], memory: int, folder: str | None, most: int, writers: Writers) -> None:
        self.about = json.dumps(about, sort_keys=True)  # everything that tokens depend on, except the item
        self.folder, self.most, self.memory, self.writers = folder, most, memory, writers
        self.files: OrderedDict[str, int] = OrderedDict()
        self.in_memory: OrderedDict[str, bytes] = OrderedDict()
        self.file_bytes = self.memory_bytes = 0
        self.flights: dict[str, _Flight] = {}
        self._scratch = None if folder else _scratch()
        if self._scratch:
            self._lock = _taken(self._scratch.name)
        elif folder:
            self._take_folder(folder)

    def _take_folder(self, folder: str) -> None:
        try:
            os.makedirs(folder, exist_ok=True)
            self._lock = _taken(folder)
            found = self._files_in(folder)
        except BlockingIOError:
            raise InputError(f"{self.option} {folder}: another server is using it; each server needs its own") from None
        except OSError as e:
            raise FileError(f"{self.option} {folder}: {e.strerror}") from None
        self.files.update((name, size) for _, name, size in sorted(found))
        self.file_bytes = sum(self.files.values())
        self._drop_files()

    def _files_in(self, folder: str) -> list[tuple[float, str, int]]:
        """Returns each file's time of last use, name and size."""
        found = []
        for f in os.scandir(folder):
            if NAME.fullmatch(f.name):
                found.append((f.stat().st_mtime, f.name, f.stat().st_size))
            elif NAME.match(f.name):  # left unfinished by a server that was killed
                os.unlink(f.path)
        return found

    def close(self) -> None:
        if self._scratch:
            self._scratch.cleanup()

    async def name_of(self, item: Item, client: str) -> str:
        """Returns the file name for an item's tokens. client: "" if clients share them."""

        def digest() -> str:
            content = blake3.blake3(item.data).digest()
            return blake3.blake3(content + self._asked(tuple(sorted(item.options.items())), client)).hexdigest() + ENDING

        return await off_loop(len(item.data), digest)

    @functools.lru_cache(256)
    def _asked(self, options: tuple[tuple[str, Any], ...], client: str) -> bytes:
        return (self.about + json.dumps([dict(options), client])).encode()

    # ---- finding -----------------------------------------------------------------------------------

    async def find(self, name: str, room: Room | None) -> tuple[Kept, str] | None:
        """Returns the cached tokens and where they were. room: takes room for their bytes; None if only the name is needed."""
        if room and (data := self.in_memory.get(name)) is not None:
            room(len(data))
            self.in_memory.move_to_end(name)
            return Kept(name, len(data), data), "memory"
        if name not in self.files:
            return None
        self.files.move_to_end(name)
        path = self.path_of(name)
        if room:
            room(self.files[name])
        try:
            os.utime(path)  # keeps the order of use for the next process
            data = await asyncio.to_thread(_read, path) if room else None
        except OSError:  # the file was removed by another process
            self._forget(name)
            return None
        if data is not None:
            self._remember(name, data)
        return Kept(name, self.files.get(name, 0) if data is None else len(data), data), "folder"

    def path_of(self, name: str) -> str:
        return os.path.join(self.folder or self._scratch.name, name)  # type: ignore[union-attr]

    # ---- keeping -----------------------------------------------------------------------------------

    async def keep(self, name: str, compute: Compute, wanted: bool) -> Kept:
        """Writes the tokens' file and adds it to the cache."""
        kept: Kept = await compute(lambda tokens: self._write(name, tokens, wanted), self._add)
        return kept

    def _write(self, name: str, tokens: Tokens, wanted: bool) -> Kept:
        """May be called by any thread."""
        path = self.path_of(name if self.folder else f"{name}.{os.urandom(8).hex()}")
        is_kept = False
        try:
            tokens.save(path)
            data = _read(path) if wanted or not self.folder else None
            size = os.path.getsize(path) if data is None else len(data)
            is_kept = bool(self.folder) and size <= self.most
        except (Error, OSError) as e:
            raise Refused(507, "QV_EIO", f"cannot write the tokens: {e}") from None
        finally:
            if not is_kept:
                with contextlib.suppress(OSError):
                    os.unlink(path)
        if self.folder and not is_kept:
            raise Refused(507, "QV_EIO", f"the tokens need {size} bytes; --cache-bytes is {self.most}")
        return Kept(name, size, data)

    def _add(self, kept: Kept) -> None:
        if self.folder:
            self._forget(kept.name)
            self.files[kept.name] = kept.size
            self.file_bytes += kept.size
            self._drop_files()
        if kept.data is not None:
            self._remember(kept.name, kept.data)

    def _remember(self, name: str, data: bytes) -> None:
        if len(data) > self.memory:
            return
        self.memory_bytes += len(data) - len(self.in_memory.pop(name, b""))
        self.in_memory[name] = data
        while self.memory_bytes > self.memory:
            self.memory_bytes -= len(self.in_memory.popitem(last=False)[1])

    def _forget(self, name: str) -> None:
        self.file_bytes -= self.files.pop(name, 0)

    def _drop_files(self) -> None:
        while self.file_bytes > self.most:
            name = next(iter(self.files))
            self._forget(name)
            self.writers.do(name, functools.partial(os.unlink, self.path_of(name)))  # in order, before a file of this name is written again

    # ---- computations in progress --------------------------------------------------------------------

    async def get(self, name: str, room: Room | None, compute: Compute) -> tuple[Kept, str]:
        """Returns the tokens and where they were found: memory, folder, flight (an equal request was
        in progress) or miss. A computation is cancelled when no request waits for it any more."""
        while True:
            if found := await self.find(name, room):
                return found
            flight, where = self.flights.get(name), "flight"
            if not flight:
                flight, where = _Flight(), "miss"
                self.flights[name] = flight
                flight.task = asyncio.ensure_future(self._compute(flight, name, bool(room), compute))
            kept = await self._wait_for(name, flight)
            if room and kept.data is not None:
                room(kept.size)
            if kept.data is not None or not room:
                return kept, where

    async def _compute(self, flight: _Flight, name: str, wanted: bool, compute: Compute) -> Kept | Exception | None:
        """Returns exceptions instead of raising them: a task would keep their frames."""
        try:
            return await self.keep(name, compute, wanted)
        except asyncio.CancelledError:  # no request waits
            return None
        except Exception as e:
            return forgotten(e)
        finally:
            self._end(name, flight)

    async def _wait_for(self, name: str, flight: _Flight) -> Kept:
        flight.waiters += 1
        try:
            got = await asyncio.shield(flight.task)
        finally:
            flight.waiters -= 1
            if not flight.waiters:
                self._end(name, flight)
                flight.task.cancel()
        if isinstance(got, Exception):
            raise got
        return got

    def _end(self, name: str, flight: _Flight) -> None:
        if self.flights.get(name) is flight:
            del self.flights[name]


def _read(path: str) -> bytes:
    with open(path, "rb") as f:
        return f.read()


def _taken(folder: str) -> int:
    """Locks a folder for this process until the returned descriptor is closed. Raises BlockingIOError if another process
    has locked it."""
    lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


def _scratch() -> tempfile.TemporaryDirectory[str]:
    """Makes a folder for files that are read back immediately. Removes such folders left by killed servers."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()
    for folder in glob.glob(os.path.join(glob.escape(place), f"{SCRATCH}*")):
        with contextlib.suppress(OSError):  # a running server's, or another user's
            if os.stat(folder).st_mtime < time.time() - STARTING:
                os.close(_taken(folder))
                shutil.rmtree(folder)
    return tempfile.TemporaryDirectory(prefix=SCRATCH, dir=place)
