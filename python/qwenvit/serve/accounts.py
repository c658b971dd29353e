# SPDX-License-Identifier: MIT
"""Each client's share of the server: bounded amounts, which are refused above the bound, and places to wait for.
No client gets more than half of either while another client needs some."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable

from .items import Refused, Room

IMAGES_UNDER_WAY = 256  # enough small images to fill a device's chunks
RECENT = 30.0  # seconds over which the rate is measured
_lock = threading.Lock()  # guards everything held: a thread may take more while its request ends


class Bound:
    """An amount that is refused above `most`. One client may have half of it, but at least `one`, the most
    that it may request at once."""

    def __init__(self, what: str, most: int, one: int = 1, after: Callable[[], int] = lambda: 1) -> None:
        self.what, self.most, self.share, self.after = what, most, min(most, max(most // 2, one)), after
        self.held: Counter[str] = Counter()  # by client

    def total(self) -> int:
        return sum(self.held.values())

    def has_room(self, client: str, size: int) -> bool:
        return self.total() + size <= self.most and self.held[client] + size <= self.share

    def check(self, client: str, size: int) -> None:
        """Refuses a size that does not fit."""
        if size > self.share:
            raise Refused(413, "QV_EFULL", f"{size} {self.what}; at most {self.share} per client")
        if not self.has_room(client, size):
            words = f"{self.total()} of {self.most} {self.what} are in use, {self.held[client]} of them by this client"
            raise Refused(429, "QV_EFULL", f"{words}, whose limit is {self.share}", Retry_After=str(self.after()))


def _count(of: Counter[str], client: str, by: int) -> None:
    """Adds to a client's count. A client with nothing left is forgotten."""
    of[client] += by
    if not of[client]:
        del of[client]


class Hold:
    """Everything that a connection, a request or a computation has taken and returns at its end."""

    def __init__(self, client: str) -> None:
        self.client, self.taken, self.is_over = client, Counter[Bound](), False

    def take(self, bound: Bound, size: int = 1) -> None:
        with _lock:
            if self.is_over:
                raise Refused(503, "QV_ESTATE", "the request has ended")
            bound.check(self.client, size)
            _count(bound.held, self.client, size)
            self.taken[bound] += size

    def room(self, bound: Bound) -> Room:
        return functools.partial(self.take, bound)

    def close(self) -> None:
        with _lock:
            self.is_over = True
            while self.taken:
                bound, size = self.taken.popitem()
                _count(bound.held, self.client, -size)


class Line:
    """The queue for places, by client. Clients take turns; a client with half of the places waits for those with less and,
    unless `alone` is set, waits even if no other client does."""

    def __init__(self, most: Callable[[], int], alone: bool = True) -> None:
        self.most, self.alone = most, alone
        self.clients: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self.places: Counter[str] = Counter()  # by client

    @property
    def under_way(self) -> int:
        return sum(self.places.values())

    def _next(self, half: int) -> str | None:
        """Returns the client whose turn it is."""
        first = next(iter(self.clients), None) if self.alone else None
        return next((client for client in self.clients if self.places[client] < half), first)

    def go_on(self) -> None:
        """Gives places to the clients whose turn it is. A client that gets one moves to the end."""
        while self.under_way < (most := self.most()) and (client := self._next(max(1, most // 2))) is not None:
            turns = self.clients.pop(client)
            turn = turns.popleft()
            if turns:
                self.clients[client] = turns
            if not turn.done():  # otherwise its task was cancelled but has not run since
                _count(self.places, client, 1)
                turn.set_result(None)

    @contextlib.asynccontextmanager
    async def place(self, client: str, got: Callable[[], None] = lambda: None) -> AsyncIterator[None]:
        """Waits for a place and holds it during the context. got is called once the place is free."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.clients.setdefault(client, deque()).append(turn)
        self.go_on()
        try:
            await turn
            got()
            yield
        finally:
            if turn in self.clients.get(client, ()):
                self.clients[client].remove(turn)
                if not self.clients[client]:
                    del self.clients[client]
            if turn.done() and not turn.cancelled():
                _count(self.places, client, -1)
            self.go_on()


class Turns:
    """The encoder's queue, with room for `most` items. While images wait or are in progress, clips use at most half
    of the decoders."""

    def __init__(self, decoders: int, most: int) -> None:
        self.decoders = decoders
        self.images, self.clips = Line(lambda: IMAGES_UNDER_WAY), Line(self._most_clips)
        self.queue = Bound("places in the queue", most, after=self.retry_after)
        self._done: deque[float] = deque(maxlen=256)

    def retry_after(self) -> int:
        """Estimates the seconds until the current queue is done, from 1 to 60."""
        now = time.monotonic()
        recent = [t for t in self._done if t > now - RECENT]
        return max(1, min(60, round(self.queue.total() * (now - recent[0]) / len(recent)))) if recent else 1

    def _most_clips(self) -> int:
        images = self.images.clients or self.images.under_way
        return max(1, self.decoders // 2) if images else self.decoders

    @contextlib.asynccontextmanager
    async def turn(self, client: str, is_image: bool) -> AsyncIterator[None]:
        """Waits for a turn and holds it during the context."""
        line = self.images if is_image else self.clips
        with contextlib.closing(Hold(client)) as hold:
            hold.take(self.queue)
            async with line.place(client, hold.close):
                try:
                    yield
                finally:
                    self._done.append(time.monotonic())
                    asyncio.get_running_loop().call_soon(self.clips.go_on)  # this may be the last image
