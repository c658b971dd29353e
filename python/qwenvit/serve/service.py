# SPDX-License-Identifier: MIT
"""The state that requests share: keys, limits, and the path from an item to its tokens."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import time
import weakref
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, NamedTuple

from .. import AsyncEncoder, Error, FileError, InputError, OutOfMemoryError, Tokens
from .accounts import Bound, Hold, Turns
from .cache import Added, Finish, Kept, TokenCache
from .items import WIDE_TIMES, Item, Limits, Refused
from .loop import Writers, forgotten, within
from .metrics import Metrics
from .sglang import Peers
from .vllm import EcFolder

AHEAD = 1 << 30  # most bytes of sources and results in the encoder
DRAINING = "the server is shutting down; retry elsewhere"


class Left(Exception):
    """The client has disconnected."""


class Request:
    """A client's request, read from ASGI messages."""

    def __init__(self, scope: Any, receive: Any) -> None:
        self.scope, self._receive = scope, receive
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.kind = self.headers.get(b"content-type", b"").decode("latin-1").lower()  # of its body
        self.address = scope["client"][0] if scope["client"] else ""
        self.client = ""  # as returned by Service.client_of
        self.hold = Hold("")  # what the request has taken
        self.about: dict[str, Any] = {}  # for the log
        self.body_is_read = self.has_left = False
        self._task: Any = asyncio.current_task()
        self.connection: Any = scope["state"]["connection"]()
        self.connection.leave = self._leave

    def _leave(self) -> None:
        self.has_left = True
        self._receive.__self__.disconnected = True  # uvicorn sets this only for the connection's last request
        self._task.cancel()

    def end(self) -> None:
        self.connection.leave = None
        self.hold.close()

    async def receive(self) -> Any:
        message = await self._receive()
        self.body_is_read = not message.get("more_body")
        if self.body_is_read:  # uvicorn stops reading after a large piece, and would not notice a disconnect
            self.connection.flow.resume_reading()
        return message


class Settings(NamedTuple):
    limits: Limits
    bodies: int  # bytes of all bodies in progress
    answers: int  # bytes of all tokens waiting to be sent
    seconds: float  # of a request, at most
    keys: tuple[bytes, ...]  # accepted API keys; empty: any client
    shared: bool  # whether clients share cached tokens
    name: str  # of the model, in /v1/models
    vllm_model_id: str  # part of the keys of vLLM's decode side


class Answer(NamedTuple):
    """The answer for one item."""

    status: int
    kept: Kept | None = None
    found: str = ""
    refused: Refused | None = None


class Service:
    """Everything that requests share. encoder and cache exist once it is ready."""

    encoder: AsyncEncoder
    cache: TokenCache
    ec: EcFolder | None = None  # for vLLM's decode side
    peers: Peers | None = None  # SGLang's decode sides

    def __init__(self, settings: Settings, turns: Turns, metrics: Metrics) -> None:
        self.settings, self.turns, self.metrics = settings, turns, metrics
        self.ready = self.draining = False
        self.broken = ""  # why encoding has become impossible
        self.under_way = 0
        self.bodies = Bound("bytes of bodies", settings.bodies, (1 + WIDE_TIMES) * settings.limits.body)
        self.answers = Bound("bytes of answers", settings.answers, after=turns.retry_after)
        self.sources = Bound("bytes of sources", max(AHEAD, settings.limits.body), settings.limits.body)  # inside the encoder
        self.writers = Writers()
        self.adding: weakref.WeakValueDictionary[tuple[str, bool], asyncio.Lock] = weakref.WeakValueDictionary()
        metrics.gauge("queue_items", "Items waiting for their turn", turns.queue.total)
        metrics.gauge("under_way_items", "Items being decoded or encoded", lambda: turns.images.under_way + turns.clips.under_way)
        metrics.gauge("under_way_requests", "Requests in progress", lambda: self.under_way)
        metrics.gauge("body_bytes", "Bytes of all bodies in progress", self.bodies.total)
        metrics.gauge("answer_bytes", "Bytes of tokens waiting to be sent", self.answers.total)

    # ---- before the body ---------------------------------------------------------------------------

    def client_of(self, request: Request) -> str:
        """Identifies the client by its API key, otherwise by its address. Refuses a wrong key."""
        if self.settings.keys:
            kind, _, key = request.headers.get(b"authorization", b"").partition(b" ")
            if kind.lower() != b"bearer" or not any([hmac.compare_digest(key.strip(), known) for known in self.settings.keys]):
                raise Refused(401, "QV_EINVAL", "no valid API key; send Authorization: Bearer KEY", WWW_Authenticate="Bearer")
            return hashlib.sha256(key.strip()).hexdigest()
        return request.address

    def must_live(self) -> None:
        if self.broken:
            raise Refused(503, "QV_ESTATE", f"the server must be restarted: {self.broken}", Connection="close")

    def must_be_ready(self) -> None:
        self.must_live()
        if self.draining:
            raise Refused(503, "QV_ESTATE", DRAINING, Connection="close")
        if not self.ready:
            raise Refused(503, "QV_ESTATE", "the model is still loading", Retry_After="5")

    def _check_size(self, request: Request, size: int) -> None:
        if size > self.settings.limits.body:
            raise Refused(413, "QV_EINVAL", f"the body has {size} bytes; at most {self.settings.limits.body}")
        self.bodies.check(request.client, size - request.hold.taken[self.bodies])

    async def body_of(self, request: Request) -> bytes:
        if request.headers.get(b"content-encoding", b"identity") != b"identity":
            raise Refused(415, "QV_EINVAL", "Content-Encoding is not accepted; send the bytes as they are")
        if request.kind.startswith("multipart/"):
            raise Refused(415, "QV_EINVAL", "multipart is not accepted; send one file as the body, or JSON")
        self._check_size(request, int(request.headers.get(b"content-length", 0)))
        began, pieces, size = time.perf_counter(), [], 0
        while not request.body_is_read:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                request.has_left = True
                raise Left
            pieces.append(message["body"])
            size += len(message["body"])
            self._check_size(request, size)
            request.hold.take(self.bodies, len(message["body"]))
        self.metrics.took("body", began)
        return b"".join(pieces)

    # ---- items -------------------------------------------------------------------------------------

    async def compute(self, item: Item, name: str, client: str, finish: Finish | None = None, added: Added | None = None) -> Any:
        """Returns the tokens, or the result of finish(tokens), which runs in another thread. The event loop
        passes the result to added, even if the caller has left."""
        source = {"bytes": item.data, "key": name.partition(".")[0]}
        began, hold, making, info = time.perf_counter(), Hold(client), Hold(client), self.encoder.info
        try:
            async with self.turns.turn(client, item.is_image):
                began = self.metrics.took("queue", began)
                result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

                def make() -> Any:
                    tokens = asked.result()
                    row = info["out_hidden"] * (1 + info["n_deepstack"]) * (4 if info["dtype"] == "f32" else 2)
                    making.take(self.answers, len(tokens) * row)
                    return finish(tokens) if finish else tokens

                def then(made: Any, fault: Exception | None) -> None:
                    making.close()  # the waiting requests take the same amount
                    if added and not fault:
                        added(made)
                    if not result.done():
                        result.set_exception(fault) if fault else result.set_result(made)

                def came(asked: Future[Tokens]) -> None:
                    if not asked.cancelled():
                        self.writers.do(name, make, then)

                asked = await self._submit(hold, source, item)
                asked.add_done_callback(came)
                try:
                    got = await result
                except asyncio.CancelledError:
                    asked.cancel()
                    raise
                finally:
                    self.metrics.took("encode", began)
        except (InputError, FileError) as e:
            self.metrics.count("decode_errors", e.status)
            raise
        finally:
            hold.close()
        self.metrics.count("tokens", by=len(asked.result()))
        return got

    async def _submit(self, hold: Hold, source: dict[str, Any], item: Item) -> Future[Tokens]:
        """Adds a source once there is room: an item whose turn has come is not refused because earlier
        results are large. A client's images are added in the order of their turns, and so are its clips."""
        size, (source, options) = len(item.data), await self.encoder.prepared(source, item.options)
        async with self.adding.setdefault((hold.client, item.is_image), asyncio.Lock()):
            while True:
                try:
                    if self.sources.has_room(hold.client, size):
                        asked = self.encoder.submit(source, **options)
                        hold.take(self.sources, size)
                        return asked
                except Error as e:
                    if e.status != "QV_EFULL":
                        if not isinstance(e, (InputError, FileError, OutOfMemoryError)):  # all devices were lost
                            self.broken = str(e)
                        raise
                await asyncio.sleep(0.01 + size / (1 << 29))  # each attempt copies the source

    async def answer_item(self, item: Item | Refused, request: Request, until: float, wanted: bool) -> Answer:
        client, room = request.client, request.hold.room(self.answers) if wanted else None

        async def got() -> tuple[Kept, str]:
            if isinstance(item, Refused):
                raise item
            # a client without an address, on a Unix socket, shares with no other
            name = await self.cache.name_of(item, "" if self.settings.shared else client or os.urandom(16).hex())
            return await self.cache.get(name, room, lambda *then: self.compute(item, name, client, *then))

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
        return Refused(504, "QV_ETIME", "the request timed out")
    assert isinstance(e, Error)
    message = str(e).removeprefix(f"{e.key}: ")
    if isinstance(e, OutOfMemoryError):
        return Refused(503, e.status, message, Retry_After=str(retry_after))
    return Refused(422 if isinstance(e, (InputError, FileError)) else 500, e.status, message)
