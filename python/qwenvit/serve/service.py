# SPDX-License-Identifier: MIT
"""What requests share: who may ask, how much may be under way, and the way from an item to its tokens."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple

from starlette.requests import Request

from .._async import AsyncEncoder
from .._error import Error, error
from .._model import Tokens
from .cache import Kept, TokenCache
from .items import Item, Limits, Refused
from .metrics import Metrics
from .sglang import Peers
from .turns import Turns
from .vllm import EcFolder

OF_A_SOURCE = ("QV_EINVAL", "QV_EUNSUPPORTED", "QV_EIO", "QV_EFORMAT")
DRAINING = "this server is going to end; ask another one"


class Settings(NamedTuple):
    limits: Limits
    bodies: int  # bytes of all bodies under way
    body_seconds: float
    seconds: float  # of a request, at most
    keys: frozenset[bytes]  # SHA-256 of those that may ask; empty: anyone
    shared: bool  # whether clients share the tokens that are kept
    vllm_model_id: str  # in the keys of vLLM's decode side


class Answer(NamedTuple):
    """Of one item."""

    status: int
    kept: Kept | None = None
    found: str = ""
    refused: Refused | None = None


class Service:
    """All that requests share. encoder and cache are there once it is ready."""

    encoder: AsyncEncoder
    cache: TokenCache
    ec: EcFolder | None = None  # for vLLM's decode side
    peers: Peers | None = None  # SGLang's decode sides

    def __init__(self, settings: Settings, turns: Turns, metrics: Metrics) -> None:
        self.settings, self.turns, self.metrics = settings, turns, metrics
        self.ready = self.draining = False
        self.broken = ""  # why nothing can be encoded any more
        self.body_bytes = self.under_way = 0
        metrics.gauge("queue_items", "Items that wait for their turn", lambda: turns.n_waiting)
        metrics.gauge("under_way_items", "Items that are decoded or encoded", lambda: turns.n_under_way)
        metrics.gauge("under_way_requests", "Requests that are worked on", lambda: self.under_way)
        metrics.gauge("body_bytes", "Bytes of all bodies under way", lambda: self.body_bytes)

    # ---- before the body ---------------------------------------------------------------------------

    def client_of(self, request: Request) -> str:
        """Returns who asks: an API key, otherwise an address. Refuses a wrong key."""
        if self.settings.keys:
            kind, _, key = request.headers.get("authorization", "").partition(" ")
            digest = hashlib.sha256(key.strip().encode()).digest()
            if kind.lower() != "bearer" or digest not in self.settings.keys:
                raise Refused(401, "QV_EINVAL", "no valid API key; send Authorization: Bearer KEY", WWW_Authenticate="Bearer")
            return digest.hex()
        return request.client.host if request.client else ""

    def must_live(self) -> None:
        if self.broken:
            raise Refused(503, "QV_ESTATE", f"this server must be started again: {self.broken}", Connection="close")

    def must_be_ready(self) -> None:
        self.must_live()
        if self.draining:
            raise Refused(503, "QV_ESTATE", DRAINING, Connection="close")
        if not self.ready:
            raise Refused(503, "QV_ESTATE", "the model is being loaded", Retry_After="5")

    @contextlib.contextmanager
    def _reserved(self) -> Iterator[list[int]]:
        """Gives a list of one number, the bytes of a body, which count as under way until its end."""
        mine = [0]
        try:
            yield mine
        finally:
            self.body_bytes -= mine[0]

    def _reserve(self, mine: list[int], size: int) -> None:
        most = self.settings.limits.body
        if size > most:
            raise Refused(413, "QV_EINVAL", f"a body of {size} bytes; at most {most}")
        if self.body_bytes - mine[0] + size > self.settings.bodies:
            raise Refused(429, "QV_EFULL", f"{self.body_bytes} bytes of bodies are under way", Retry_After="1")
        self.body_bytes += size - mine[0]
        mine[0] = size

    @contextlib.asynccontextmanager
    async def body_of(self, request: Request) -> AsyncIterator[bytes]:
        if request.headers.get("content-encoding", "identity") != "identity":
            raise Refused(415, "QV_EINVAL", "Content-Encoding is not accepted; send the bytes as they are")
        if request.headers.get("content-type", "").lower().startswith("multipart/"):
            raise Refused(415, "QV_EINVAL", "multipart is not accepted; send one file as the body, or JSON")
        with self._reserved() as mine:
            self._reserve(mine, int(request.headers.get("content-length", "0")))
            seconds = self.settings.body_seconds
            try:
                with self.metrics.stage("body"):
                    body = await asyncio.wait_for(self._read(request, mine), seconds)
            except asyncio.TimeoutError:
                raise Refused(408, "QV_ETIME", f"no whole body within {seconds:g} s", Connection="close") from None
            yield body

    async def _read(self, request: Request, mine: list[int]) -> bytes:
        pieces, size = [], 0
        async for piece in request.stream():
            size += len(piece)
            if size > mine[0]:  # a body without a length
                self._reserve(mine, size)
            pieces.append(piece)
        return b"".join(pieces)

    # ---- items -------------------------------------------------------------------------------------

    async def compute(self, item: Item, name: str, client: str) -> Tokens:
        source = {"bytes": item.data, "key": name.partition(".")[0]}
        began = time.perf_counter()
        try:
            async with self.turns.turn(client, item.is_image):
                self.metrics.seconds.labels("queue").observe(time.perf_counter() - began)
                with self.metrics.stage("encode"):
                    tokens = await asyncio.wrap_future(self._submit(source, item.options))
        except Error as e:
            if e.status in OF_A_SOURCE:
                self.metrics.decode_errors.labels(e.status).inc()
            raise error(e.status, str(e).removeprefix(f"{source['key']}: ")) from None
        self.metrics.tokens.inc(len(tokens))
        return tokens

    def _submit(self, source: dict[str, Any], options: dict[str, Any]) -> Future[Tokens]:
        try:
            return self.encoder.submit(source, **options)
        except Error as e:
            if e.status not in (*OF_A_SOURCE, "QV_EFULL", "QV_ENOMEM"):  # no device is left
                self.broken = str(e)
            raise

    async def answer_item(self, item: Item | Refused, client: str, until: float, wanted: bool) -> Answer:
        async def got() -> tuple[Kept, str]:
            if isinstance(item, Refused):
                raise item
            name = await self.cache.name_of(item, "" if self.settings.shared else client)
            return await self.cache.get(name, wanted, lambda: self.compute(item, name, client))

        return await self.answer(got(), until)

    async def answer(self, got: Coroutine[Any, Any, tuple[Kept, str]], until: float) -> Answer:
        try:
            kept, found = await asyncio.wait_for(got, max(0.0, until - time.monotonic()))
            self.metrics.lookups.labels(found).inc()
            answer = Answer(200, kept, found)
        except (Refused, Error, asyncio.TimeoutError) as e:
            refused = as_refused(e, self.turns.retry_after())
            answer = Answer(refused.status, refused=refused)
        self.metrics.items.labels(str(answer.status)).inc()
        return answer


def as_refused(e: Exception, retry_after: int) -> Refused:
    if isinstance(e, Refused):
        return e
    if isinstance(e, asyncio.TimeoutError):
        return Refused(504, "QV_ETIME", "not done within the time of this request")
    status = e.status if isinstance(e, Error) else ""
    if status == "QV_EFULL":
        return Refused(429, status, "the encoder's queue is full", Retry_After=str(retry_after))
    if status == "QV_ENOMEM":
        return Refused(503, status, str(e), Retry_After=str(retry_after))
    return Refused(422 if status in OF_A_SOURCE else 500, status, str(e))
