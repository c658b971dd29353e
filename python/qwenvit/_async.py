# SPDX-License-Identifier: MIT
"""AsyncEncoder: encodes for many callers at once. The smallest one that serves: calls of
Model.encode in threads, which wait for each other."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from ._model import Dtype, Model, Tokens, load

THREADS = 8


def _load(path: Any, devices: Any) -> list[Model]:
    return [load(path) if devices in (None, "all") else load(path, device=devices[0])]


class AsyncEncoder:
    """await encode() from tasks, submit() from threads. close() waits for what is under way."""

    def __init__(
        self, model: list[Model], *, dtype: Dtype = "f32", queue: int = 512, decoders: int = 0, **options: Any
    ) -> None:
        self.models, self._options = model, {"dtype": dtype, **options}
        self._threads = ThreadPoolExecutor(THREADS, "qwenvit encoder")

    def submit(self, source: Any, **options: Any) -> Future[Tokens]:
        return self._threads.submit(self.models[0].encode, source, **{**self._options, **options})

    async def encode(self, source: Any, *, timeout: float | None = None, **options: Any) -> Tokens:
        return await asyncio.wait_for(asyncio.wrap_future(self.submit(source, **options)), timeout)

    def close(self) -> None:
        self._threads.shutdown()
