# SPDX-License-Identifier: MIT
"""The counters of /metrics, and the log, one JSON object per line."""

from __future__ import annotations

import asyncio
import bisect
import itertools
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
COUNTED = {  # each counter's description and labels
    "requests": ("Requests by path and status", ("path", "status")),
    "items": ("Items by status", ("status",)),
    "tokens": ("Computed tokens", ()),
    "cache_lookups": ("Where an item's tokens came from", ("found",)),
    "decode_errors": ("Items that could not be decoded", ("code",))}
STAGES = ("body", "parse", "queue", "encode")
LOG_DELAY = 0.05  # seconds for which lines are collected
REFUSED = 10  # most lines of refused requests per write


class Metrics:
    """Replaces Prometheus's own counters: each has a lock, which costs more than the counting."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.counts: Counter[tuple[str, ...]] = Counter()  # by name and labels
        self.took_seconds = dict.fromkeys(STAGES, 0.0)
        self.buckets = {stage: [0] * (len(SECONDS) + 1) for stage in STAGES}
        self.registry.register(self)

    def count(self, name: str, *labels: str, by: int = 1) -> None:
        self.counts[(name, *labels)] += by

    def took(self, stage: str, began: float) -> float:
        """Records a stage's duration since `began` (time.perf_counter) and returns the current time."""
        now = time.perf_counter()
        self.buckets[stage][bisect.bisect_left(SECONDS, now - began)] += 1
        self.took_seconds[stage] += now - began
        return now

    def gauge(self, name: str, what: str, value: Callable[[], float]) -> None:
        """Adds a value that is computed when the metrics are read."""
        Gauge(f"qwenvit_{name}", what, registry=self.registry).set_function(value)

    def collect(self) -> Iterator[Any]:
        """Called by the registry."""
        for name, (what, labels) in COUNTED.items():
            counter = CounterMetricFamily(f"qwenvit_{name}", what, labels=labels)
            for (counted, *values), count in self.counts.items():
                if counted == name:
                    counter.add_metric(values, count)
            yield counter
        seconds = HistogramMetricFamily("qwenvit_stage_seconds", "Seconds of a stage", labels=["stage"])
        for stage, counts in self.buckets.items():
            bounds = [*map(str, SECONDS), "+Inf"]
            seconds.add_metric([stage], list(zip(bounds, itertools.accumulate(counts))), self.took_seconds[stage])
        yield seconds

    def text(self) -> bytes:
        return generate_latest(self.registry)


# ---- the log -------------------------------------------------------------------------------------

_encoded = json.JSONEncoder().encode


class AccessLog:
    """Collects lines for a moment and writes them together. Only some refused requests get a line."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.refused = 0

    def add(self, status: int, **about: Any) -> None:
        if not self.lines:
            asyncio.get_running_loop().call_later(LOG_DELAY, self.write)
        self.refused += status >= 400
        if status < 400 or self.refused <= REFUSED:
            self.lines.append({"time": round(time.time(), 3), "level": "info", "status": status, **about})

    def write(self) -> None:
        if self.refused > REFUSED:
            self.lines.append({"time": round(time.time(), 3), "level": "info", "without_line": self.refused - REFUSED})
        text = "".join(f"{_encoded(line)}\n" for line in self.lines)
        self.lines.clear()
        self.refused = 0
        sys.stdout.write(text)
        sys.stdout.flush()


class _Lines(logging.Formatter):
    """Formats a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        about = {"time": round(record.created, 3), "level": record.levelname.lower(), "message": record.getMessage()}
        if record.exc_info:
            about["exception"] = self.formatException(record.exc_info)
        return _encoded(about)


def start_log() -> None:
    """Sends uvicorn's messages to standard output, where the lines about requests go."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(_Lines())
    logger = logging.getLogger("uvicorn.error")
    logger.handlers, logger.propagate = [handler], False
    logger.addFilter(lambda record: record.getMessage() != "Invalid HTTP request received.")  # the refusal already has a line
    logger.setLevel(logging.INFO)
