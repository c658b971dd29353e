# SPDX-License-Identifier: MIT
"""AsyncEncoder: encodes for many callers at once. The smallest one that serves: calls of
Model.encode in threads, which wait for each other."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from ._check import Path
from ._model import Model, Tokens, load

THREADS = 8


class AsyncEncoder:
    """await encode() from tasks, submit() from threads. close() waits for what is under way."""

    def __init__(self, model: Model | Path, *, devices: Any = None) -> None:
        self.model = model if isinstance(model, Model) else load(model, device=0 if devices in (None, "all") else devices)
        self.info: dict[str, Any] = self.model.info
        self._threads = ThreadPoolExecutor(THREADS, "qwenvit encoder")

    def submit(self, source: Any, **options: Any) -> Future[Tokens]:
        return self._threads.submit(self.model.encode, source, **options)

    async def encode(self, source: Any, *, timeout: float | None = None, **options: Any) -> Tokens:
        return await asyncio.wait_for(asyncio.wrap_future(self.submit(source, **options)), timeout)

    def close(self) -> None:
        self._threads.shutdown()
