# SPDX-License-Identifier: MIT
"""What requests share: who may ask, how much may be under way, and the way from an item to its tokens."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, NamedTuple

from .._async import AsyncEncoder
from .._error import Error, error
from .._model import Tokens
from .._stream import OF_A_SOURCE
from .cache import Added, Finish, Kept, TokenCache
from .items import Item, Limits, Refused
from .loop import Writers, forgotten, within
from .metrics import Metrics
from .sglang import Peers
from .turns import Turns
from .vllm import EcFolder

DRAINING = "this server is going to end; ask another one"


class Left(Exception):
    """The client has left."""


class Request:
    """What a client asks, by ASGI's messages."""

    def __init__(self, scope: Any, receive: Any) -> None:
        self.scope, self._receive = scope, receive
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.address = scope["client"][0] if scope["client"] else ""
        self.client = ""  # who asks, as Service.client_of says
        self.about: dict[str, Any] = {}  # for the log
        self.reserved = 0  # bytes of its body that count as under way
        self.body_is_read = self.has_left = False
        self._task: Any = asyncio.current_task()
        self.connection: Any = scope["state"]["connection"]()
        self.connection.leave = self._leave

    def _leave(self) -> None:
        self.has_left = True
        self._receive.__self__.disconnected = True  # uvicorn says so to the connection's last request alone
        self._task.cancel()

    def end(self) -> None:
        self.connection.leave = None

    def header(self, name: bytes) -> str:
        return self.headers.get(name, b"").decode("latin-1")

    async def receive(self) -> Any:
        message = await self._receive()
        self.body_is_read = not message.get("more_body")
        if self.body_is_read:  # uvicorn has stopped reading after a large piece, and would not hear that the client leaves
            self.connection.flow.resume_reading()
        return message


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
        self.writers, self.adding = Writers(), asyncio.Lock()
        metrics.gauge("queue_items", "Items that wait for their turn", lambda: turns.n_waiting)
        metrics.gauge("under_way_items", "Items that are decoded or encoded", lambda: turns.n_under_way)
        metrics.gauge("under_way_requests", "Requests that are worked on", lambda: self.under_way)
        metrics.gauge("body_bytes", "Bytes of all bodies under way", lambda: self.body_bytes)

    # ---- before the body ---------------------------------------------------------------------------

    def client_of(self, request: Request) -> str:
        """Returns who asks: an API key, otherwise an address. Refuses a wrong key."""
        if self.settings.keys:
            kind, _, key = request.header(b"authorization").partition(" ")
            digest = hashlib.sha256(key.strip().encode()).digest()
            if kind.lower() != "bearer" or digest not in self.settings.keys:
                raise Refused(401, "QV_EINVAL", "no valid API key; send Authorization: Bearer KEY", WWW_Authenticate="Bearer")
            return digest.hex()
        return request.address

    def must_live(self) -> None:
        if self.broken:
            raise Refused(503, "QV_ESTATE", f"this server must be started again: {self.broken}", Connection="close")

    def must_be_ready(self) -> None:
        self.must_live()
        if self.draining:
            raise Refused(503, "QV_ESTATE", DRAINING, Connection="close")
        if not self.ready:
            raise Refused(503, "QV_ESTATE", "the model is being loaded", Retry_After="5")

    def _reserve(self, request: Request, size: int) -> None:
        """Counts so many bytes as under way, until the request ends."""
        most = self.settings.limits.body
        if size > most:
            raise Refused(413, "QV_EINVAL", f"a body of {size} bytes; at most {most}")
        if self.body_bytes - request.reserved + size > self.settings.bodies:
            raise Refused(429, "QV_EFULL", f"{self.body_bytes} bytes of bodies are under way", Retry_After="1")
        self.body_bytes += size - request.reserved
        request.reserved = size

    async def body_of(self, request: Request) -> bytes:
        if request.headers.get(b"content-encoding", b"identity") != b"identity":
            raise Refused(415, "QV_EINVAL", "Content-Encoding is not accepted; send the bytes as they are")
        if request.header(b"content-type").lower().startswith("multipart/"):
            raise Refused(415, "QV_EINVAL", "multipart is not accepted; send one file as the body, or JSON")
        self._reserve(request, int(request.headers.get(b"content-length", 0)))
        seconds, began = self.settings.body_seconds, time.perf_counter()
        pieces, size = [], 0
        try:
            with within(seconds) if request.connection.in_message else contextlib.nullcontext():
                while not request.body_is_read:
                    message = await request.receive()
                    if message["type"] == "http.disconnect":
                        request.has_left = True
                        raise Left
                    pieces.append(message["body"])
                    size += len(message["body"])
                    if size > request.reserved:  # a body without a length
                        self._reserve(request, size)
        except asyncio.TimeoutError:
            raise Refused(408, "QV_ETIME", f"no whole body within {seconds:g} s", Connection="close") from None
        self.metrics.took("body", began)
        return b"".join(pieces)

    # ---- items -------------------------------------------------------------------------------------

    async def compute(self, item: Item, name: str, client: str, finish: Finish | None = None, added: Added | None = None) -> Any:
        """Returns the tokens, or what finish makes of them in another thread. added gets that in the
        event loop, even if the caller has left."""
        source = {"bytes": item.data, "key": name.partition(".")[0]}
        began = time.perf_counter()
        try:
            async with self.turns.turn(client, item.is_image):
                began = self.metrics.took("queue", began)
                result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

                def then(made: Any, fault: Exception | None) -> None:
                    if added and not fault:
                        added(made)
                    if not result.done():
                        result.set_exception(fault) if fault else result.set_result(made)

                def came(asked: Future[Tokens]) -> None:
                    if not asked.cancelled():
                        self.writers.do(name, lambda: finish(asked.result()) if finish else asked.result(), then)

                asked = await self._submit(source, item.options)
                asked.add_done_callback(came)
                try:
                    got = await result
                except asyncio.CancelledError:
                    asked.cancel()
                    raise
                finally:
                    self.metrics.took("encode", began)
        except Error as e:
            if e.status in OF_A_SOURCE:
                self.metrics.count("decode_errors", e.status)
            raise error(e.status, str(e).removeprefix(f"{source['key']}: ")) from None
        self.metrics.count("tokens", by=len(asked.result()))
        return got

    async def _submit(self, source: dict[str, Any], options: dict[str, Any]) -> Future[Tokens]:
        """Adds a source once there is room: what has its turn is not refused because results before it
        are large. Sources are added in the order of their turns."""
        async with self.adding:
            while True:
                try:
                    return self.encoder.submit(source, **options)
                except Error as e:
                    if e.status not in (*OF_A_SOURCE, "QV_EFULL", "QV_ENOMEM"):  # no device is left
                        self.broken = str(e)
                    if e.status != "QV_EFULL":
                        raise
                await asyncio.sleep(0.01 + len(source["bytes"]) / (1 << 29))  # trying copies them

    async def answer_item(self, item: Item | Refused, client: str, until: float, wanted: bool) -> Answer:
        async def got() -> tuple[Kept, str]:
            if isinstance(item, Refused):
                raise item
            name = await self.cache.name_of(item, "" if self.settings.shared else client)
            return await self.cache.get(name, wanted, lambda *then: self.compute(item, name, client, *then))

        return await self.answer(got(), until)

    async def answer(self, got: Coroutine[Any, Any, tuple[Kept, str]], until: float) -> Answer:
        try:
            with within(until - time.monotonic()):
                kept, found = await got
            self.metrics.count("cache_lookups", found)
            answer = Answer(200, kept, found)
        except (Refused, Error, asyncio.TimeoutError) as e:
            refused = as_refused(forgotten(e), self.turns.retry_after())
            answer = Answer(refused.status, refused=refused)
        self.metrics.count("items", str(answer.status))
        return answer


def as_refused(e: Exception, retry_after: int) -> Refused:
    if isinstance(e, Refused):
        return e
    if isinstance(e, asyncio.TimeoutError):
        return Refused(504, "QV_ETIME", "not done within the time of this request")
    status = e.status if isinstance(e, Error) else ""
    if status == "QV_ENOMEM":
        return Refused(503, status, str(e), Retry_After=str(retry_after))
    return Refused(422 if status in OF_A_SOURCE else 500, status, str(e))
