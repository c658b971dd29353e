# SPDX-License-Identifier: MIT
"""The limits that uvicorn lacks, by a subclass of its protocol: how many connections there are, how
long a client may take for its headers and how large they may be, how many requests it may send before
their answers, and how long it may read nothing of an answer."""

from __future__ import annotations

import asyncio
import json
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState


class Patience(NamedTuple):
    connections: int
    headers: float  # seconds
    reading: float  # seconds in which a client reads nothing of its answer
    refused: Callable[..., None]  # gets the client, the status and the message of each refusal


LINGER = 1.0  # seconds for a refusal to be read; a close at once would reset the connection
HEADERS = 16 << 10  # bytes; also of all else that is no body, such as trailers
TOO_LONG = f"headers of more than {HEADERS} bytes"
PIPELINED = 16  # requests that may wait for the answer to an earlier one of their connection


class _Corked:
    """A transport that keeps what is written next after cork(), an answer's headers, and sends it together
    with what follows."""

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

    def __init__(
        self, config: Config, server_state: ServerState, app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, {**app_state, "connection": weakref.ref(self)}, _loop)
        self.leave: Callable[[], None] | None = None  # called when the client leaves; set by the request that is worked on
        self.refused = self.in_message = False
        self.no_body = 0  # bytes since the last whole headers or piece of a body
        self.header_bytes = 0  # of this message, which may all come in one piece
        self.headers_by: float | None = None  # when headers must be here, if they are waited for
        self.for_headers: asyncio.TimerHandle | None = None
        self.for_reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_Corked(transport))  # type: ignore[arg-type]
        most = self.patience.connections
        if len(self.connections) > 2 * most:  # even refusals are too many
            transport.abort()
        elif len(self.connections) > most:
            self.refuse(503, "QV_EFULL", f"{most} connections are open; try again later")
        else:
            self.headers_by = self.loop.time() + self.patience.headers
            self._look_at_time()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self.for_headers, self.for_reading):
            if timer:
                timer.cancel()
        super().connection_lost(exc)
        if self.leave:
            self.leave()

    # ---- what the client sends ---------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self.refused:
            return
        self.no_body += len(data)
        super().data_received(data)
        if self.no_body > HEADERS and not self.refused:
            self.send_400_response(TOO_LONG)

    def on_message_begin(self) -> None:
        if len(self.pipeline) == PIPELINED:
            raise ValueError  # which data_received answers
        self.header_bytes = 0
        super().on_message_begin()

    def _count_header(self, size: int) -> None:
        self.header_bytes += size
        if self.header_bytes > HEADERS:
            raise ValueError

    def on_url(self, url: bytes) -> None:
        self._count_header(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_header(len(name) + len(value) + 4)  # ": " and the line's end
        if not self.in_message:  # a trailer must not stand for a header
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self.in_message, self.no_body, self.headers_by = True, 0, None
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self.no_body = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self.in_message, self.no_body = False, 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Begins the time for the rest of this body, if the answer came before it, and for the next
        request's headers."""
        if not self.pipeline:
            self.headers_by = self.loop.time() + self.patience.headers
        super().on_response_complete()

    def _look_at_time(self) -> None:
        """One timer per connection, which looks again when headers may be late."""
        left = self.patience.headers if self.headers_by is None else self.headers_by - self.loop.time()
        if left > 0:
            self.for_headers = self.loop.call_later(left, self._look_at_time)
        elif self.in_message or self.transport.is_closing():  # the rest of a body that was refused
            self.transport.abort()
        else:
            self.refuse(408, "QV_ETIME", f"no whole headers within {self.patience.headers:g} s")

    def send_400_response(self, msg: str) -> None:
        if self.header_bytes > HEADERS:
            msg = TOO_LONG
        cycle = self.cycle
        if not cycle or cycle.response_complete or self.in_message and not self.pipeline and not cycle.response_started:
            self.refuse(400, "QV_EFORMAT", msg)
        else:  # the answers under way are the last of this connection
            self.refused, cycle.keep_alive = True, False

    def _unsupported_upgrade_warning(self) -> None:
        self.refuse(400, "QV_EFORMAT", "Upgrade is not accepted; send HTTP/1.1 without it")

    def refuse(self, status: int, code: str, message: str) -> None:
        """Answers without a request, then closes the connection."""
        self.refused = True
        self.patience.refused(self.client[0] if self.client else "", status, message)
        body = json.dumps({"error": {"code": code, "message": message}}).encode()
        self.transport.write(
            STATUS_LINE[status] + b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
            % (len(body), body)
        )
        if self.transport.can_write_eof():
            self.transport.write_eof()
        if self.cycle and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.loop.call_later(LINGER, self.transport.abort)

    # ---- answers that are not read -----------------------------------------------------------------

    def pause_writing(self) -> None:
        self.for_reading = self.loop.call_later(self.patience.reading, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        if self.for_reading:
            self.for_reading.cancel()
        super().resume_writing()
