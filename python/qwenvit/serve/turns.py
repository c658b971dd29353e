# SPDX-License-Identifier: MIT
"""Who is next: a bounded queue in front of the encoder, in which clients take turns and clips leave
decoders to images."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator

from .items import Refused

IMAGES_UNDER_WAY = 256  # enough to fill a device's chunks with small ones
RECENT = 30.0  # seconds over which the rate is taken


class _Line:
    """Those who wait for one kind of turn, by client."""

    def __init__(self) -> None:
        self.clients: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self.under_way = 0

    def add(self, client: str) -> asyncio.Future[None]:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.clients.setdefault(client, deque()).append(turn)
        return turn

    def remove(self, client: str, turn: asyncio.Future[None]) -> None:
        if turn in self.clients.get(client, ()):
            self.clients[client].remove(turn)
            if not self.clients[client]:
                del self.clients[client]

    def give(self) -> None:
        """Gives the first of the client whose turn it is theirs. The client then stands behind all other clients."""
        client, turns = next(iter(self.clients.items()))
        turn = turns.popleft()
        del self.clients[client]
        if turns:
            self.clients[client] = turns
        if not turn.done():  # its task was cancelled, and has not heard of it yet
            self.under_way += 1
            turn.set_result(None)


class Turns:
    """At most `most` wait, of one client at most half of that. While images wait or are under way,
    clips have at most half of the decoders."""

    def __init__(self, decoders: int, most: int) -> None:
        self.decoders, self.most = decoders, most
        self.images, self.clips = _Line(), _Line()
        self._done: deque[float] = deque(maxlen=256)

    @property
    def n_waiting(self) -> int:
        return sum(len(turns) for line in (self.images, self.clips) for turns in line.clients.values())

    @property
    def n_under_way(self) -> int:
        return self.images.under_way + self.clips.under_way

    def retry_after(self) -> int:
        """Returns the seconds until what waits now may be done, from 1 to 60."""
        now = time.monotonic()
        recent = [t for t in self._done if t > now - RECENT]
        return max(1, min(60, round(self.n_waiting * (now - recent[0]) / len(recent)))) if recent else 1

    def _most_clips(self) -> int:
        images = self.images.clients or self.images.under_way
        return max(1, self.decoders // 2) if images else self.decoders

    def _go_on(self) -> None:
        while self.images.clients and self.images.under_way < IMAGES_UNDER_WAY:
            self.images.give()
        while self.clips.clients and self.clips.under_way < self._most_clips():
            self.clips.give()

    @contextlib.asynccontextmanager
    async def turn(self, client: str, is_image: bool) -> AsyncIterator[None]:
        """Waits for a turn, which lasts as long as the context."""
        mine, all_ = sum(len(line.clients.get(client, ())) for line in (self.images, self.clips)), self.n_waiting
        if all_ >= self.most or mine >= max(1, self.most // 2):
            whose = "the queue is" if all_ >= self.most else "this client's half of the queue is"
            after = str(self.retry_after())
            raise Refused(429, "QV_EFULL", f"{whose} full ({all_} items wait)", Retry_After=after)
        line = self.images if is_image else self.clips
        turn = line.add(client)
        self._go_on()
        try:
            await turn
            yield
        finally:
            line.remove(client, turn)
            if turn.done() and not turn.cancelled():
                line.under_way -= 1
                self._done.append(time.monotonic())
            self._go_on()
