# SPDX-License-Identifier: MIT
"""What is counted for /metrics, and the log, which is a JSON object per line."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
access = logging.getLogger("qwenvit.access")


class Metrics:
    def __init__(self) -> None:
        self.registry = r = CollectorRegistry()
        self.requests = Counter("qwenvit_requests", "Requests by path and status", ["path", "status"], registry=r)
        self.items = Counter("qwenvit_items", "Items by status", ["status"], registry=r)
        self.tokens = Counter("qwenvit_tokens", "Tokens that were computed", registry=r)
        self.lookups = Counter("qwenvit_cache_lookups", "Where an item's tokens came from", ["found"], registry=r)
        self.decode_errors = Counter("qwenvit_decode_errors", "Items that could not be decoded", ["code"], registry=r)
        self.seconds = Histogram("qwenvit_stage_seconds", "Seconds of a stage", ["stage"], buckets=SECONDS, registry=r)

    def gauge(self, name: str, what: str, value: Callable[[], float]) -> None:
        """Adds a number that is asked for when the metrics are read."""
        Gauge(f"qwenvit_{name}", what, registry=self.registry).set_function(value)

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds.labels(name).observe(time.perf_counter() - began)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _Lines(logging.Formatter):
    """Formats a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        about: dict[str, Any] = {"time": round(record.created, 3), "level": record.levelname.lower()}
        about.update(record.args if isinstance(record.args, dict) else {"message": record.getMessage()})
        if record.exc_info:
            about["exception"] = self.formatException(record.exc_info)
        return json.dumps(about)


def start_log() -> None:
    """Sends the log to standard output, uvicorn's messages too."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(_Lines())
    for name in ("uvicorn.error", "qwenvit.access"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
