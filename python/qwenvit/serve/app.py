# SPDX-License-Identifier: MIT
"""The server's paths, what each answers, and the log line of a request."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import math
import time
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from .. import __version__
from . import sglang
from .items import FLAGS, Item, Refused, T, items_of_json, make_item, object_of, off_loop, shown
from .metrics import access
from .service import DRAINING, Answer, Service
from .vllm import asked_of

PIECE = 1 << 20  # bytes of an answer that are written at once
LINGER = 2.0  # seconds for the rest of a body that is refused


class _Refusal(JSONResponse):
    """An error. What the client still sends of its body is read for a while, so that closing the
    connection does not take the answer away from it."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        if not scope["state"].get("body_is_read"):
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._rest(receive), LINGER)
        await send({"type": "http.response.body"})

    async def _rest(self, receive: Any) -> None:
        while (await receive()).get("more_body"):
            pass


def error_response(e: Refused) -> Response:
    return _Refusal({"error": e.json()}, e.status, e.headers)


def _in_pieces(data: bytes, status: int, headers: dict[str, str], kind: str) -> Response:
    """Answers piece by piece, so that a client who reads slowly is known to read."""

    async def pieces() -> AsyncIterator[memoryview]:
        for at in range(0, len(data), PIECE):
            yield memoryview(data)[at : at + PIECE]

    if len(data) <= PIECE:
        return Response(data, status, headers, kind)
    return StreamingResponse(pieces(), status, {**headers, "content-length": str(len(data))}, kind)


def _row(answer: Answer, store: bool) -> dict[str, Any]:
    if answer.refused:
        return {"status": answer.status, "error": answer.refused.json()}
    assert answer.kept
    row = {"status": 200, "found": answer.found, "bytes": answer.kept.size}
    if store:
        return {**row, "name": answer.kept.name}
    return {**row, "safetensors": base64.b64encode(answer.kept.data or b"").decode()}


async def _rows_response(answers: list[Answer], store: bool) -> Response:
    statuses = {answer.status for answer in answers}
    headers = {k: v for answer in answers if answer.refused for k, v in answer.refused.headers.items()}

    def made() -> bytes:
        return json.dumps({"items": [_row(answer, store) for answer in answers]}).encode()

    size = sum(len(answer.kept.data or b"") for answer in answers if answer.kept)
    body = await off_loop(size, made)
    status = statuses.pop() if len(statuses) == 1 else 207
    return _in_pieces(body, status, headers, "application/json")


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _unless_left(request: Request, work: asyncio.Future[T]) -> T:
    """Returns what work does, which ends when the client leaves."""
    left: asyncio.Future[Any] = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait((work, left), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientDisconnect
        return work.result()
    finally:
        work.cancel()
        left.cancel()


async def encode(request: Request) -> Response:
    service: Service = request.app.state.service
    service.must_be_ready()
    limits, query = service.settings.limits, dict(request.query_params)
    store, seconds = query.pop("store", "0"), query.pop("timeout", str(service.settings.seconds))
    if FLAGS.get(store.lower()) is None or FLAGS[store.lower()] and not service.cache.folder:
        raise Refused(422, "QV_EINVAL", f"store is {shown(store)}; must be 0 on a server without --cache, otherwise 0 or 1")
    stored = FLAGS[store.lower()]
    try:
        until = time.monotonic() + min(float(seconds), service.settings.seconds)
    except ValueError:
        until = math.nan
    if not until > time.monotonic():
        raise Refused(422, "QV_EINVAL", f"timeout is {shown(seconds)}; must be a number of seconds above 0")
    is_json = request.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"
    if is_json and query:
        raise Refused(422, "QV_EINVAL", f"unknown option {shown(next(iter(query)))}; options of JSON are in the body")
    async with service.body_of(request) as body:
        items: list[Item | Refused]
        with service.metrics.stage("parse"):
            if is_json:
                items = await off_loop(len(body), items_of_json, body, limits)
            else:
                # only a GIF is read to its end
                items = [await off_loop(len(body) * body.startswith(b"GIF"), make_item, body, query, limits)]
        asked = [service.answer_item(item, request.state.client, until, not stored) for item in items]
        answers = await _unless_left(request, asyncio.ensure_future(_all(asked)))
    request.state.about = {"items": len(items), "found": [a.found or a.status for a in answers]}
    if not is_json and answers[0].refused:
        return error_response(answers[0].refused)
    if is_json or stored:
        return await _rows_response(answers, stored)
    assert answers[0].kept and answers[0].kept.data is not None
    return _in_pieces(answers[0].kept.data, 200, {"x-qwenvit-found": answers[0].found}, "application/octet-stream")


async def _all(answers: list[Coroutine[Any, Any, Answer]]) -> list[Answer]:
    return [await answers[0]] if len(answers) == 1 else await asyncio.gather(*answers)


async def chat(request: Request) -> Response:
    """Answers vLLM's decode side."""
    service: Service = request.app.state.service
    service.must_be_ready()
    folder, client, settings = service.ec, request.state.client, service.settings
    if not folder:
        raise Refused(404, "QV_EUNSUPPORTED", "this server was started without --ec-path, a folder for vLLM's decode side")
    async with service.body_of(request) as body:
        until = time.monotonic() + settings.seconds
        with service.metrics.stage("parse"):
            asked = await off_loop(len(body), asked_of, body, settings.limits, settings.vllm_model_id)
        got = [folder.publish(one, lambda item, name: service.compute(item, name, client)) for one in asked]
        work = asyncio.ensure_future(_all([service.answer(one, until) for one in got]))
        answers = await _unless_left(request, work)
    _must_be_whole(request, answers)
    return JSONResponse(folder.completion(asked, settings.vllm_model_id))


def _must_be_whole(request: Request, answers: list[Answer]) -> None:
    request.state.about = {"items": len(answers), "found": [a.found or a.status for a in answers]}
    for answer in answers:
        if answer.refused:
            raise answer.refused


async def encode_for_sglang(request: Request) -> Response:
    """Answers SGLang's decode side once its socket has the tokens."""
    service: Service = request.app.state.service
    client, settings, req_id = request.state.client, service.settings, None
    try:
        service.must_be_ready()
        if not (peers := service.peers):
            raise Refused(404, "QV_EUNSUPPORTED", "this server was started without --sglang-peers, the hosts of SGLang's decode side")
        async with service.body_of(request) as body:
            until = time.monotonic() + settings.seconds
            given = await off_loop(len(body), object_of, body, '{"mm_items": [..], "modality": "IMAGE", ..}')
            name = given.get("req_id")
            req_id = name if isinstance(name, str) and name.isprintable() else None
            asked = await off_loop(len(body), sglang.asked_of, given, settings.limits, peers.hosts)

            async def work() -> None:
                answers = await _all([service.answer_item(item, client, until, True) for item in asked.items])
                _must_be_whole(request, answers)
                files = [answer.kept.data for answer in answers if answer.kept and answer.kept.data]
                frames = await off_loop(sum(map(len, files)), sglang.frames_of, asked, files)
                await peers.push(frames, asked.host, asked.port)

            await _unless_left(request, asyncio.ensure_future(work()))
        return JSONResponse(None)
    except Refused as e:
        return _Refusal({"status": "error", "message": str(e), "req_id": req_id}, e.status, e.headers)


async def health(request: Request) -> Response:
    request.app.state.service.must_live()
    return JSONResponse({"status": "ok"})


async def ready(request: Request) -> Response:
    request.app.state.service.must_be_ready()
    return JSONResponse({"status": "ready"})


async def metrics(request: Request) -> Response:
    return Response(request.app.state.service.metrics.text(), 200, None, "text/plain; version=0.0.4")


async def models(request: Request) -> Response:
    service: Service = request.app.state.service
    service.must_be_ready()
    info = service.encoder.info
    about = {name: info[name] for name in ("model_type", "digest", "dtype", "backend", "device", "out_hidden", "n_deepstack")}
    limits = {**service.settings.limits._asdict(), "timeout": service.settings.seconds, "queue": service.turns.most}
    row = {"id": info["model_type"], "object": "model", "owned_by": "qwenvit", **about, "version": __version__, "limits": limits}
    return JSONResponse({"object": "list", "data": [row]})


# ---- around every request ------------------------------------------------------------------------


class Around:
    """Checks the key, counts and logs a request, and turns what was raised into an answer."""

    def __init__(self, app: Any, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        began, sent = time.perf_counter(), {"status": 499, "bytes": 0}  # 499: the client left

        async def told(message: Any) -> None:
            if message["type"] == "http.response.start":
                sent["status"] = message["status"]
            sent["bytes"] += len(message.get("body", b""))
            await send(message)

        async def given() -> Any:
            message = await receive()
            request.state.body_is_read = not message.get("more_body")
            return message

        request, service = Request(scope, given), self.service
        service.under_way += 1
        try:
            if scope["path"] != "/health":
                request.state.client = service.client_of(request)
            await self.app(scope, given, told)
        except Refused as e:
            await error_response(e)(scope, given, told)
        except asyncio.CancelledError:  # the time to drain is over
            if sent["status"] != 499:
                raise
            await error_response(Refused(503, "QV_ESTATE", DRAINING, Connection="close"))(scope, given, told)
        finally:
            service.under_way -= 1
            path = scope["path"] if scope["path"] in PATHS else "other"
            service.metrics.requests.labels(path, str(sent["status"])).inc()
            access.info("", {
                "client": request.client.host if request.client else "", "method": scope["method"], "path": scope["path"][:200],
                "seconds": round(time.perf_counter() - began, 4), **sent, **getattr(request.state, "about", {}),
            })


async def _failed(request: Request, e: Exception) -> Response:
    if isinstance(e, Refused):
        return error_response(e)
    if isinstance(e, ClientDisconnect):
        return Response(status_code=499)  # nobody reads it
    if not isinstance(e, HTTPException):  # a fault of ours, which the log has
        return error_response(Refused(500, "QV_EBACKEND", f"internal error: {type(e).__name__}"))
    about = f"{request.method} {shown(request.url.path)}: {e.detail}; paths are {', '.join(PATHS)}"
    return JSONResponse({"error": {"code": "QV_EINVAL", "message": about}}, e.status_code, e.headers)


PATHS = {
    "/v1/encode": encode, "/v1/chat/completions": chat, "/encode": encode_for_sglang, "/v1/models": models,
    "/health": health, "/ready": ready, "/metrics": metrics,
}


def make_app(service: Service, lifespan: Any) -> Any:
    routes = [Route(path, call, methods=["POST" if call in (encode, chat, encode_for_sglang) else "GET"]) for path, call in PATHS.items()]
    handlers: Any = dict.fromkeys((Refused, ClientDisconnect, HTTPException, Exception), _failed)
    app = Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan)
    app.state.service = service
    return Around(app, service)
