# SPDX-License-Identifier: MIT
"""AsyncEncoder: encodes the requests of many threads and tasks, as a client of the models' open job."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import os
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from . import _check, _core, _model
from ._error import Error, error
from ._model import Model
from ._sources import OPTIONS_OF_FILES, array_of_file, describe, key_of
from ._stream import MOST_AHEAD, Jobs
from ._tokens import Dtype, Tokens, dtype_name, result_of
from .media import FrameFiles, is_data, options_of

if TYPE_CHECKING:
    from ._sources import One


class _Collector(threading.Thread):
    """Answers requests until their client is closed or all devices are lost. It holds no reference to
    the encoder, so that a dropped encoder is closed."""

    def __init__(self, client: _core.Client, model_type: str) -> None:
        super().__init__(name="qwenvit encoder", daemon=True)
        self.client, self.model_type = client, model_type
        self.requests: dict[int, Future[Tokens]] = {}
        self.over: tuple[str, str] | None = None  # why encoding has ended: status and message

    def run(self) -> None:
        try:
            while isinstance(core := self.client.next(-1), _core.Tokens):
                self.answer(core.index, result_of(core, self.model_type))
            self.over = "QV_ESTATE", "this encoder was closed"
        except Error as e:
            self.over = e.status, f"all devices were lost, so this encoder cannot continue: {e}"
        self.client.close()
        for place in list(self.requests):  # no result will come for these
            self.answer(place, error(*self.over))

    def answer(self, place: int, result: Tokens | Error) -> None:
        request = self.requests.pop(place, None)  # submit() may have refused it
        try:
            if request and request.set_running_or_notify_cancel():
                request.set_exception(result) if isinstance(result, Error) else request.set_result(result)
        except BaseException:  # a callback's SystemExit, or the future is already set: the other requests need this thread
            logging.getLogger("concurrent.futures").exception("answering %r", request)

    def drop(self, place: int, request: Future[Tokens]) -> None:
        """Drops the source of a cancelled request."""
        if request.cancelled():
            with contextlib.suppress(Error):  # the encoder may be closed
                self.client.drop(place)


def _load(path: _check.Path, devices: Any) -> list[Model]:
    """Loads a model onto each device: one, a list of them, or all devices of the first available
    backend."""
    if isinstance(devices, str) and devices == "all":
        there = [d for d in _model.devices() if "index" in d]
        return [_model.load(path, d["backend"], device=d["index"]) for d in there if d["backend"] == there[0]["backend"]]
    return [_model.load(path, device=d) for d in (devices if isinstance(devices, (list, tuple)) else [devices])]


def _drop(added: asyncio.Future[Future[Tokens]]) -> None:
    """Drops a request whose task has stopped waiting."""
    if not added.cancelled() and not added.exception():
        added.result().cancel()


class AsyncEncoder:
    """Encodes the requests of any number of tasks and threads on one or several devices.

        async with qwenvit.AsyncEncoder("Qwen3-VL-4B-Instruct", devices="all") as encoder:
            tokens = await encoder.encode("clip.mp4", timeout=30, fps=2)

        future = encoder.submit(jpeg_bytes)   # from a thread: a concurrent.futures.Future of Tokens

    Simultaneous requests are decoded in parallel and packed into full chunks. A single request does
    not wait for others. All tokens equal those of encode() of a list, bit for bit.

    model: a Model, a list of Models of one tower on different devices, or a path, whose models are
        loaded here and closed with the encoder. A Model passed here may still be called directly.
    devices: for a path: a device as load() accepts it, a list of devices, or "all".
    dtype: the tokens' dtype, "f32" or "bf16"; None for the dtype that the model computes in.
    queue: how many requests may wait.
    queue_bytes: the most bytes of sources in memory and undelivered results.
    decoders: how many clips are decoded at once; 0: one per core.
    hidden_states: whether Tokens have the last block's rows too.
    options: for all requests, as in Model.encode.

    When a device is lost, its requests fail with a message, and the other devices continue. When all
    devices are lost, all requests fail, and new ones are refused.
    """

    def __init__(
        self, model: Model | Sequence[Model] | _check.Path, *, devices: Any = None, dtype: Dtype | None = "f32", queue: int = 512,
        queue_bytes: int = MOST_AHEAD, decoders: int = 0, hidden_states: bool = False, **options: Any,
    ) -> None:
        if dtype is not None:  # refused before models are loaded
            dtype = _check.one_of(dtype_name(dtype), "dtype", ("f32", "bf16"))
        queue = _check.whole(queue, "queue", 1, 1 << 20)
        queue_bytes = _check.whole(queue_bytes, "queue_bytes", 1, (1 << 62) - 1)
        decoders = _check.whole(decoders, "decoders", 0, _model.MOST_THREADS)
        hidden = _check.flag(hidden_states, "hidden_states")
        self._options = options_of(options)
        is_path = isinstance(model, (str, bytes, os.PathLike))
        if not is_path and devices is not None:
            raise error("QV_EINVAL", "devices= needs a path; a Model already has its device")
        models: Any = _load(model, devices) if is_path else model  # type: ignore[arg-type]
        given = list(models) if isinstance(models, (list, tuple)) else [models]
        if not given or not all(isinstance(m, Model) for m in given):
            raise _check.wrong("model", model, "a path, a Model from qwenvit.load(), or a list of Models")
        self.models: list[Model] = given
        self.info: dict[str, Any] = given[0].info
        self._owns = is_path
        jobs = given[0]._jobs if len(given) == 1 else Jobs(*[m._core for m in given])
        self._cores = jobs.models
        self._client = jobs.client(dtype or self.info["dtype"], self._options, queue_bytes, decoders, queue=queue, hidden=hidden)
        self._places = itertools.count()
        self._counts = self._client.progress()
        self._collector = _Collector(self._client, self.info["model_type"])
        self._close = weakref.finalize(self, self._client.close)
        self._collector.start()

    def submit(self, source: One, **options: Any) -> Future[Tokens]:
        """Adds a source, as in Model.encode, and returns the Future of its Tokens or Error. Any thread
        may call it. It never waits: if too many requests or bytes are waiting, it raises Error with
        status QV_EFULL. Cancelling the Future drops the source."""
        place = next(self._places)
        key = key_of(source, place)
        described = describe(self._cores, source, place, options_of(options), self._options)
        requests = self._collector.requests
        request = requests[place] = Future[Tokens]()
        try:
            self._client.add(place, key, *described)
            request.add_done_callback(functools.partial(self._collector.drop, place))
        except BaseException as e:
            requests.pop(place, None)
            if self._collector.over and isinstance(e, Error):
                raise error(*self._collector.over) from None
            raise
        return request

    async def prepared(self, source: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Returns a dict with "bytes" and its options as submit() accepts them. The files in media.FrameFiles are
        decoded in other threads, one after the other, so that decoding stops when the task is cancelled."""
        if not isinstance(source.get("bytes"), FrameFiles):
            return source, options
        files, arrays = list(source["bytes"].files()), list[Any]()
        asked = {**OPTIONS_OF_FILES, **options_of(options)}
        for i, file in enumerate(files):
            name, both = f"frames: frame {i}", {**self._options, **asked}
            arrays.append(await asyncio.to_thread(array_of_file, file, name, both, len(files)))
        frames, *_ = await asyncio.to_thread(describe, self._cores, {"frames": arrays}, 0, asked, self._options)
        return {"frames": frames, "key": source.get("key")}, {}

    async def encode(self, source: One, *, timeout: float | None = None, **options: Any) -> Tokens:
        """Returns the Tokens of a source or raises its Error; after `timeout` seconds it raises
        asyncio.TimeoutError. Cancellation and timeouts drop the source."""
        return await asyncio.wait_for(self._ask(source, options), timeout)

    async def _ask(self, source: One, options: dict[str, Any]) -> Tokens:
        if isinstance(source, (str, bytes, os.PathLike)) and not is_data(source):
            return await asyncio.wrap_future(self.submit(source, **options))
        # reading a file object, or resizing frames, takes time; a thread that does it cannot be stopped
        added = asyncio.get_running_loop().run_in_executor(None, lambda: self.submit(source, **options))
        try:
            request = await asyncio.shield(added)
        except asyncio.CancelledError:
            added.add_done_callback(_drop)
            raise
        return await asyncio.wrap_future(request)

    def progress(self) -> dict[str, Any]:
        """Returns counts since the encoder was created: those of Model.encode's progress, and `rows`, the
        computed patches, with `capacity_rows`, the room in their chunks."""
        with contextlib.suppress(Error):  # after the end, the last counts stay
            self._counts = self._client.progress()
        return self._counts

    def close(self) -> None:
        """Waits until all requests are answered. Later requests are refused."""
        if self._close.alive:
            with contextlib.suppress(Error):  # the requests have already failed with it
                self._client.end()
            self._collector.join()
            self._close()
        for model in self.models if self._owns else ():
            model.close()

    def __enter__(self) -> AsyncEncoder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> AsyncEncoder:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    def __repr__(self) -> str:
        return f"<qwenvit.AsyncEncoder on {', '.join(m.info['device'] for m in self.models)}>"
