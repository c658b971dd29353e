# SPDX-License-Identifier: MIT
"""The limits that uvicorn lacks, by a subclass of its protocol: how many connections there are, how
long a client may take for its headers, and how long it may read nothing of an answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol
from uvicorn.server import ServerState

from .metrics import access


class Patience(NamedTuple):
    connections: int
    headers: float  # seconds
    reading: float  # seconds in which a client reads nothing of its answer
    refused: Callable[[int], None]  # is told the status of each refusal


LINGER = 1.0  # seconds for a refusal to be read; a close at once would reset the connection


class Protocol(H11Protocol):
    patience: Patience

    def __init__(
        self, config: Config, server_state: ServerState, app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.refused = False
        self.for_headers: asyncio.TimerHandle | None = None
        self.for_reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        most = self.patience.connections
        if len(self.connections) > 2 * most:  # even refusals are too many
            transport.abort()
        elif len(self.connections) > most:
            self.refuse(503, "QV_EFULL", f"{most} connections are open; try again later")
        else:
            self._wait_for_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self.for_headers, self.for_reading):
            if timer:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self.refused:
            super().data_received(data)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before and self.for_headers:  # headers are complete
            self.for_headers.cancel()

    def on_response_complete(self) -> None:
        """Begins the time for the rest of this body, if the answer came before it, and for the next
        request's headers."""
        self._wait_for_headers()
        super().on_response_complete()

    def _wait_for_headers(self) -> None:
        if self.for_headers:
            self.for_headers.cancel()
        self.for_headers = self.loop.call_later(self.patience.headers, self._too_slow)

    def _too_slow(self) -> None:
        if self.conn.our_state is h11.IDLE and not self.transport.is_closing():
            self.refuse(408, "QV_ETIME", f"no whole headers within {self.patience.headers:g} s")
        else:  # the rest of a body that was refused
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.refuse(400, "QV_EFORMAT", msg)
        else:  # an answer is under way, or was given
            self.transport.close()

    def refuse(self, status: int, code: str, message: str) -> None:
        """Answers without a request, then closes the connection."""
        self.refused = True
        self.patience.refused(status)
        access.info("", {"client": self.client[0] if self.client else "", "status": status, "message": message})
        body = json.dumps({"error": {"code": code, "message": message}}).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        answer = h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status])
        for event in (answer, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event))
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
