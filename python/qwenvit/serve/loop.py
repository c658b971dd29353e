# SPDX-License-Identifier: MIT
"""What the event loop leaves to other threads, and for how long it waits."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

SMALL = 64 << 10  # bytes that take less time than handing them to another thread
WRITERS = 4  # threads


class within:
    """Ends what its task waits for after so many seconds, by asyncio.TimeoutError, as asyncio.timeout does from 3.11 on."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.is_over = seconds, False

    def __enter__(self) -> None:
        self.task = asyncio.current_task()
        self.timer = asyncio.get_running_loop().call_later(self.seconds, self._end)

    def _end(self) -> None:
        self.is_over = True
        if self.task:
            self.task.cancel()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.timer.cancel()
        if self.is_over and kind is asyncio.CancelledError:
            raise asyncio.TimeoutError


async def off_loop(size: int, call: Callable[..., T], *arguments: Any) -> T:
    """Calls it in another thread, if there are more bytes than the event loop should wait for."""
    return await asyncio.to_thread(call, *arguments) if size > SMALL else call(*arguments)


def forgotten(e: Exception) -> Exception:
    """Returns an exception without the frames that it came through: with them, a request's body would
    stay in memory until the garbage collector's turn, however many bodies that are."""
    at: BaseException | None = e
    while at:
        at.__traceback__ = None
        at = at.__context__
    return e


class Writers:
    """Threads that make and remove files. What concerns one name is done in order. The event loop is
    woken once for all that is done until it looks."""

    def __init__(self) -> None:
        self.queues: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in range(WRITERS)]
        self.done: deque[tuple[Callable[..., None], Any, Exception | None]] = deque()
        self.is_woken = False

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        for jobs in self.queues:
            threading.Thread(target=self._run, args=(jobs, loop), name="qwenvit writer", daemon=True).start()

    def end(self) -> None:
        for jobs in self.queues:
            jobs.put(None)

    def do(self, name: str, call: Callable[[], Any], then: Callable[[Any, Exception | None], None] | None = None) -> None:
        """Calls it in a thread, and then in the event loop with what it returned or raised."""
        self.queues[hash(name) % WRITERS].put((call, then))

    def _run(self, jobs: queue.SimpleQueue[Any], loop: asyncio.AbstractEventLoop) -> None:
        while self._did(jobs.get(), loop):
            pass

    def _did(self, job: Any, loop: asyncio.AbstractEventLoop) -> bool:
        if not job:
            return False
        call, then = job
        made, fault = None, None
        try:
            made = call()
        except Exception as e:
            fault = forgotten(e)
        if then:
            self.done.append((then, made, fault))
        if then and not self.is_woken:
            self.is_woken = True
            loop.call_soon_threadsafe(self._tell)
        return True

    def _tell(self) -> None:
        self.is_woken = False
        while self.done:
            then, made, fault = self.done.popleft()
            then(made, fault)
