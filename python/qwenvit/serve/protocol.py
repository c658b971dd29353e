# SPDX-License-Identifier: MIT
"""Adds limits that uvicorn lacks, in a subclass of its protocol: connections per client, the size of headers,
pipelined requests, and the time in which a client neither sends nor reads."""

from __future__ import annotations

import asyncio
import json
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from .accounts import Bound, Hold
from .items import Refused


class Patience(NamedTuple):
    connections: Bound
    idle: float  # most seconds in which an awaited client neither sends nor reads
    refused: Callable[..., None]  # called with the client, status and message of each refusal


LINGER = 1.0  # seconds for the client to read a refusal; closing immediately would reset the connection
HEADERS = 16 << 10  # bytes; also for everything else outside bodies, such as trailers
PIPELINED = 16  # most requests waiting for an earlier answer on their connection


class _Corked:
    """A transport that, after cork(), holds the next write (an answer's headers) and sends it with the following one."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport, self.is_corked, self.kept = transport, False, b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)

    def cork(self) -> None:
        self.is_corked = True

    def write(self, data: bytes) -> None:
        if self.is_corked:
            self.is_corked, self.kept = False, data
        else:
            self.transport.writelines([self.kept, data])
            self.kept = b""


class Protocol(HttpToolsProtocol):
    patience: Patience

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, Any],
                 _loop: asyncio.AbstractEventLoop | None = None) -> None:
        super().__init__(config, server_state, {**app_state, "connection": weakref.ref(self)}, _loop)
        self.leave: Callable[[], None] | None = None  # called when the client disconnects; set by the current request
        self.refused = self.in_message = self.is_awaited = self.is_alive = False
        self.no_body = 0  # bytes since the last whole headers or piece of a body
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_Corked(transport))  # type: ignore[arg-type]
        self.hold = Hold(self.client[0] if self.client else "")
        try:
            self.hold.take(self.patience.connections)
            self._look()
        except Refused as e:
            self.patience.refused(self.hold.client, 503, str(e))
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.timer:
            self.timer.cancel()
        super().connection_lost(exc)
        self.hold.close()
        if self.leave:
            self.leave()

    def _look(self) -> None:
        """Closes the connection of an awaited client that has neither sent nor read anything since the last check."""
        is_done = not self.cycle or self.cycle.response_complete
        awaited = is_done or self.flow.write_paused or self.in_message and not self.flow.read_paused
        if awaited and self.is_awaited and not self.is_alive:
            self.patience.refused(self.hold.client, 408, f"nothing was sent or read for {self.patience.idle:g} s")
            self.transport.abort()
        else:
            self.is_awaited, self.is_alive = awaited, False
            self.timer = self.loop.call_later(self.patience.idle, self._look)

    # ---- data from the client ----------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self.refused:
            return
        self.is_alive = True
        self.no_body += len(data)
        super().data_received(data)
        if self.no_body > HEADERS and not self.refused:
            self.send_400_response(f"the headers have more than {HEADERS} bytes")

    def on_message_begin(self) -> None:
        if len(self.pipeline) == PIPELINED:
            raise ValueError  # data_received answers it
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.in_message:  # a trailer must not replace a header
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > HEADERS:  # they came in one piece
            raise ValueError
        self.in_message, self.no_body = True, 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self.no_body = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self.in_message, self.no_body = False, 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        cycle = self.cycle
        if not cycle or cycle.response_complete or self.in_message and not self.pipeline and not cycle.response_started:
            self.refuse(400, "QV_EFORMAT", msg)
        else:  # the answers in progress are the last of this connection
            self.refused, cycle.keep_alive = True, False

    def _unsupported_upgrade_warning(self) -> None:
        self.refuse(400, "QV_EFORMAT", "Upgrade is not accepted; send HTTP/1.1 without it")

    def refuse(self, status: int, code: str, message: str) -> None:
        """Answers outside a request, then closes the connection."""
        self.refused = True
        self.patience.refused(self.hold.client, status, message)
        body = json.dumps({"error": {"code": code, "message": message}}).encode()
        self.transport.write(
            STATUS_LINE[status] + b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
            % (len(body), body))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        if self.cycle and not self.cycle.response_complete:
            self.cycle.disconnected, self.cycle.waiting_for_100_continue = True, False
            self.cycle.message_event.set()
        self.loop.call_later(LINGER, self.transport.abort)

    def resume_writing(self) -> None:
        self.is_alive = True  # the client has read
        super().resume_writing()
