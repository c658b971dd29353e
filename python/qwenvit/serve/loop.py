# SPDX-License-Identifier: MIT
"""Helpers for the event loop: work in other threads, and timeouts."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

SMALL = 64 << 10  # bytes; handling fewer is faster than using another thread
WRITERS = 4  # threads


class within:
    """Raises asyncio.TimeoutError in its task after so many seconds, like asyncio.timeout, which needs Python 3.11."""

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
    """Calls a function, in another thread if it handles too many bytes for the event loop."""
    return await asyncio.to_thread(call, *arguments) if size > SMALL else call(*arguments)


def forgotten(e: Exception) -> Exception:
    """Returns an exception without its frames, which would keep a request's body in memory until the
    next garbage collection."""
    at: BaseException | None = e
    while at:
        at.__traceback__ = None
        at = at.__context__
    return e


class Writers:
    """Threads that write and remove files. Operations on one name run in order. The event loop is woken
    once for all operations that finish before it runs."""

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
        """Runs `call` in a thread, then `then` in the event loop with its result or exception."""
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
