# SPDX-License-Identifier: MIT
"""The ASGI application: the server's paths, their answers, and the log line of each request."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from .. import __version__
from . import sglang
from .cache import Kept
from .items import FLAGS, Item, Refused, items_of_json, make_item, object_of, shown
from .loop import off_loop, within
from .metrics import AccessLog
from .service import DRAINING, Answer, Left, Request, Service
from .vllm import asked_of

PIECE = 3 << 18  # bytes written at once, so that a slow reader is seen to read; base64 needs a multiple of three
LINGER = 2.0  # seconds to read the rest of a refused body
_encoded = json.JSONEncoder(separators=(",", ":")).encode


class Reply(NamedTuple):
    status: int
    body: list[bytes | Kept]  # written in order; cached tokens as base64
    kind: bytes = b"application/json"
    headers: tuple[tuple[bytes, bytes], ...] = ()

    def size(self) -> int:
        return sum(len(part) if isinstance(part, bytes) else 4 * -(-part.size // 3) for part in self.body)

    def pieces(self) -> Iterator[bytes | memoryview]:
        for part in self.body:
            data = memoryview(part if isinstance(part, bytes) else part.data or b"")
            for at in range(0, len(data), PIECE):
                piece = data[at : at + PIECE]
                yield piece if isinstance(part, bytes) else base64.b64encode(piece)


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Reply:
    return Reply(status, [_encoded(value).encode()], headers=tuple((k.encode(), v.encode()) for k, v in (headers or {}).items()))


def _refusal(e: Refused) -> Reply:
    return _json({"error": e.json()}, e.status, e.headers)


# ---- the answers of each path ---------------------------------------------------------------------


def _row(answer: Answer, store: bool) -> bytes:
    if answer.refused:
        return _encoded({"status": answer.status, "error": answer.refused.json()}).encode()
    assert answer.kept
    last = {"name": answer.kept.name} if store else {"safetensors": ""}
    return _encoded({"status": 200, "found": answer.found, "bytes": answer.kept.size, **last}).encode()


def _rows_reply(answers: list[Answer], store: bool) -> Reply:
    statuses, body, text = {answer.status for answer in answers}, list[bytes | Kept](), b'{"items":['
    headers = {k.encode(): v.encode() for answer in answers if answer.refused for k, v in answer.refused.headers.items()}
    for answer in answers:
        text += _row(answer, store) + b","
        if answer.kept and not store:
            body += [text[:-3], answer.kept]
            text = text[-3:]  # this closes the tokens' string and the row
    return Reply(statuses.pop() if len(statuses) == 1 else 207, [*body, text[:-1] + b"]}"], headers=tuple(headers.items()))


async def _answers(request: Request, asked: list[Coroutine[Any, Any, Answer]]) -> list[Answer]:
    answers = [await asked[0]] if len(asked) == 1 else await asyncio.gather(*asked)
    request.about = {"items": len(answers), "found": [a.found or a.status for a in answers]}
    return answers


async def encode(service: Service, request: Request) -> Reply:
    service.must_be_ready()
    limits, query = service.settings.limits, dict(parse_qsl(request.scope["query_string"].decode("latin-1"), True))
    store, seconds = query.pop("store", "0"), query.pop("timeout", service.settings.seconds)
    stored = FLAGS.get(store.lower())
    if stored is None or stored and not service.cache.folder:
        raise Refused(422, "QV_EINVAL", f"store is {shown(store)}; it must be 0 on a server without --cache, otherwise 0 or 1")
    try:
        until = time.monotonic() + min(float(seconds), service.settings.seconds)
    except ValueError:
        until = math.nan
    if not until > time.monotonic():
        raise Refused(422, "QV_EINVAL", f"timeout is {shown(seconds)}; it must be a number of seconds greater than 0")
    is_json = request.kind.partition(";")[0].strip() == "application/json"
    if is_json and query:
        raise Refused(422, "QV_EINVAL", f"unknown option {shown(next(iter(query)))}; with JSON, options belong in the body")
    body = await service.body_of(request)
    began = time.perf_counter()
    items: list[Item | Refused] = [] if is_json else [make_item(body, query, limits)]
    if is_json:
        items = await off_loop(len(body), items_of_json, body, limits, request.hold.room(service.bodies))
    del body
    service.metrics.took("parse", began)
    answers = await _answers(request, [service.answer_item(item, request, until, not stored) for item in items])
    if not is_json and answers[0].refused:
        return _refusal(answers[0].refused)
    if is_json or stored:
        return _rows_reply(answers, stored)
    assert answers[0].kept and answers[0].kept.data is not None
    return Reply(200, [answers[0].kept.data], b"application/octet-stream", ((b"x-qwenvit-found", answers[0].found.encode()),))


async def chat(service: Service, request: Request) -> Reply:
    """Handles requests of vLLM's decode side."""
    service.must_be_ready()
    folder, client, settings = service.ec, request.client, service.settings
    if not folder:
        raise Refused(404, "QV_EUNSUPPORTED", "this server was started without --ec-path, a folder for vLLM's decode side")
    body = await service.body_of(request)
    began, until = time.perf_counter(), time.monotonic() + settings.seconds
    asked = await off_loop(len(body), asked_of, body, settings.limits, settings.vllm_model_id, request.hold.room(service.bodies))
    del body
    service.metrics.took("parse", began)
    got = [folder.publish(one, lambda item, name: service.compute(item, name, client)) for one in asked]
    refused = _first_refused(await _answers(request, [service.answer(one, until) for one in got]))
    return _refusal(refused) if refused else _json(folder.completion(asked, settings.vllm_model_id))


def _first_refused(answers: list[Answer]) -> Refused | None:
    return next((answer.refused for answer in answers if answer.refused), None)


def _sglang_refusal(e: Refused, req_id: str | None) -> Reply:
    return _json({"status": "error", "message": str(e), "req_id": req_id}, e.status, e.headers)


async def encode_for_sglang(service: Service, request: Request) -> Reply:
    """Handles requests of SGLang's decode side; answers once its socket has received the tokens."""
    settings, req_id = service.settings, None
    try:
        service.must_be_ready()
        if not (peers := service.peers):
            raise Refused(404, "QV_EUNSUPPORTED", "this server was started without --sglang-peers, the hosts of SGLang's decode side")
        body = await service.body_of(request)
        until = time.monotonic() + settings.seconds
        room, size = request.hold.room(service.bodies), len(body)
        given = await off_loop(len(body), object_of, body, '{"mm_items": [..], "modality": "IMAGE", ..}', room)
        del body
        name = given.get("req_id")
        req_id = name if isinstance(name, str) and name.isprintable() else None
        asked = await off_loop(size, sglang.asked_of, given, settings.limits, peers.hosts)
        answers = await _answers(request, [service.answer_item(item, request, until, True) for item in asked.items])
        if refused := _first_refused(answers):
            return _sglang_refusal(refused, req_id)
        files = [answer.kept.data for answer in answers if answer.kept and answer.kept.data]
        size = sum(map(len, files))
        request.hold.take(service.answers, size)  # for the copies
        frames = await off_loop(size, sglang.frames_of, asked, files)
        await peers.push(frames, asked.host, asked.port, request.client)
        return _json(None)
    except Refused as e:
        return _sglang_refusal(e, req_id)


async def health(service: Service, request: Request) -> Reply:
    service.must_live()
    return _json({"status": "ok"})


async def ready(service: Service, request: Request) -> Reply:
    service.must_be_ready()
    return _json({"status": "ready"})


async def metrics(service: Service, request: Request) -> Reply:
    return Reply(200, [service.metrics.text()], b"text/plain; version=0.0.4; charset=utf-8")


async def models(service: Service, request: Request) -> Reply:
    service.must_be_ready()
    info = service.encoder.info
    about = {name: info[name] for name in ("model_type", "digest", "identity", "dtype", "backend", "device", "out_hidden", "n_deepstack")}
    limits = {**service.settings.limits._asdict(), "timeout": service.settings.seconds, "queue": service.turns.queue.most}
    row = {"id": service.settings.name, "object": "model", "owned_by": "qwenvit", **about, "version": __version__, "limits": limits}
    return _json({"object": "list", "data": [row]})


GET, POST = ("GET", "HEAD"), ("POST",)
PATHS: dict[str, tuple[tuple[str, ...], Callable[[Service, Request], Awaitable[Reply]]]] = {
    "/v1/encode": (POST, encode), "/v1/chat/completions": (POST, chat), "/encode": (POST, encode_for_sglang),
    "/v1/models": (GET, models), "/health": (GET, health), "/ready": (GET, ready), "/metrics": (GET, metrics),
}


# ---- around every request ------------------------------------------------------------------------


class App:
    """Checks the key, counts and logs a request, and turns exceptions into answers."""

    def __init__(self, service: Service, log: AccessLog) -> None:
        self.service, self.log = service, log

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        began, service, request = time.perf_counter(), self.service, Request(scope, receive)
        sent = {"status": 499, "bytes": 0}  # 499: the client left
        service.under_way += 1
        try:
            reply = await self._reply(request)
            sent = {"status": reply.status, "bytes": reply.size()}
            await self._send(request, reply, send)
        except (Left, asyncio.CancelledError):
            if not request.has_left:
                raise
        finally:
            request.end()
            service.under_way -= 1
            path = scope["path"] if scope["path"] in PATHS else "other"
            service.metrics.count("requests", path, str(sent["status"]))
            self.log.add(client=request.address, method=scope["method"], path=scope["path"][:200],
                         seconds=round(time.perf_counter() - began, 4), **sent, **request.about)

    async def _reply(self, request: Request) -> Reply:
        path, method = request.scope["path"], request.scope["method"]
        try:
            if path != "/health":
                request.client = request.hold.client = self.service.client_of(request)
            methods, call = PATHS.get(path, ((), None))
            if call and method in methods:
                return await call(self.service, request)
            what = f"Method Not Allowed; use {methods[0]}" if call else "Not Found"
            raise Refused(405 if call else 404, "QV_EINVAL", f"{method} {shown(path)}: {what}; paths are {', '.join(PATHS)}",
                          **({"Allow": ", ".join(methods)} if call else {}))
        except Refused as e:
            return _refusal(e)
        except asyncio.CancelledError:
            if request.has_left:
                raise
            return _refusal(Refused(503, "QV_ESTATE", DRAINING, Connection="close"))  # the time to drain has passed
        except Left:
            raise
        except Exception as e:  # a bug in the server
            logging.getLogger("uvicorn.error").exception("internal error")
            return _refusal(Refused(500, "QV_EBACKEND", f"internal error: {type(e).__name__}"))

    async def _send(self, request: Request, reply: Reply, send: Any) -> None:
        left, lingers = reply.size(), reply.status >= 400 and not request.body_is_read
        headers = [(b"content-type", reply.kind), (b"content-length", b"%d" % left), *reply.headers]
        if request.scope["method"] != "HEAD":
            request.connection.transport.cork()
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        for piece in reply.pieces():
            left -= len(piece)
            await send({"type": "http.response.body", "body": piece, "more_body": left > 0 or lingers})
        if lingers:
            # keep reading for a while: closing the connection while the client sends would discard the answer
            with contextlib.suppress(asyncio.TimeoutError), within(LINGER):
                while (await request.receive()).get("more_body"):
                    pass
            await send({"type": "http.response.body", "body": b""})
