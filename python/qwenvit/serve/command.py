# SPDX-License-Identifier: MIT
"""`python -m qwenvit serve`: its options, loading the model, and shutting down."""

from __future__ import annotations

import argparse
import asyncio
import base64
import gc
import math
import os
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn

from .. import AsyncEncoder, Error, InputError, __version__, media
from ..adapters.items import FAMILIES
from .accounts import IMAGES_UNDER_WAY, Bound, Turns
from .app import App
from .cache import TokenCache
from .items import Limits, near
from .metrics import AccessLog, Metrics, start_log
from .protocol import Patience, Protocol
from .service import AHEAD, Service, Settings
from .sglang import Peers
from .vllm import EcFolder

WARM = base64.b64decode(  # a grey JPEG of 64x64, because every build of the decoder reads JPEG
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAP" + "/" * 86 + "wAALCABAAEABAREA/8QAFAABAAAAAAAAAAAAAAAAAAAAAP/EABQQAQAA"
    "AAAAAAAAAAAAAAAAAAD/2gAIAQEAAD8AAAAAAAAAAAAAAAAAAAAAAP/Z")

def _bytes(text: str) -> int:
    """Parses a number that may end in K, M, G or T."""
    power = " KMGT".find(text[-1:].upper())
    return int(text[:-1]) << 10 * power if power > 0 else int(text)


def _number(kind: str, convert: Callable[[str], Any], least: float, below: float) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        if not least <= (value := convert(text)) < below:
            raise ValueError
        return value

    read.__name__ = kind  # appears in argparse's messages
    return read


_count, _from_1 = _number("number", _bytes, 0, 1 << 63), _number("number of at least 1", _bytes, 1, 1 << 63)
_seconds, _port = _number("number of seconds", float, math.ulp(0), math.inf), _number("port", int, 0, 1 << 16)


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser("qwenvit serve", usage="qwenvit serve --model DIR [option ..]", epilog="example: "
                                "qwenvit serve --model Qwen3-VL-4B-Instruct --device all --cache /dev/shm/tokens",
                                formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=28, width=118),
                                description="Serves vision tokens over HTTP (docs/serving.md). Numbers may end in K, M, G or T.")

    def add(name: str, kind: Any, default: Any, help: str, **more: Any) -> None:
        more = more or {"type": kind, "default": default, "metavar": "TEXT" if kind is str else "N"}
        p.add_argument(name, help=help, **more)

    add("--model", str, None, "the checkpoint's folder (required)")
    add("--served-model-name", str, None, "the model's name in /v1/models (default: the folder's)")
    add("--device", str, None, "indices or names, such as 0,1 or cpu; or all (default: the first)")
    add("--host", str, "127.0.0.1", "address to listen on (default 127.0.0.1)")
    add("--port", _port, 8000, "port (default 8000; 0: a free one)")
    add("--uds", str, None, "listen on this Unix socket instead; whoever may open its folder may connect")
    add("--api-key", str, None, "required for every path but /health; repeatable (default: QWENVIT_API_KEY)", action="append", metavar="KEY")
    add("--cache", str, None, "folder for ?store=1 and for cached tokens; /dev/shm/NAME for a consumer on this machine")
    add("--cache-bytes", _count, 16 << 30, "most bytes in that folder (default 16G)")
    add("--cache-memory", _count, 1 << 30, "most bytes of tokens kept in memory (default 1G)")
    add("--ec-path", str, None, "folder where vLLM's ECExampleConnector looks for tokens (docs/engines.md)")
    add("--ec-bytes", _from_1, 16 << 30, "most bytes in that folder (default 16G)")
    add("--ec-seconds", _seconds, 600.0, "how long a file stays there after the last answer that names it (default 600)")
    add("--vllm-model-id", str, None, "--model of vLLM's decode side, part of images' keys (default: --model)")
    add("--sglang-peers", str, None, "HOST,..: SGLang's decode sides that /encode may send tokens to (docs/engines.md)")
    add("--no-shared-cache", bool, False, "a client gets cached tokens only of its own earlier requests", action="store_true")
    add("--decoders", _from_1, len(os.sched_getaffinity(0)), "items decoded at once (default: one per core)")
    add("--decode-memory", _from_1, 1 << 30, "most bytes for decoding one item (default 1G)")
    add("--queue", _from_1, 1024, "most waiting items (default 1024)")
    add("--timeout", _seconds, 60.0, "most seconds for a request after its body has arrived (default 60)")
    add("--drain-seconds", _seconds, 30.0, "seconds after SIGTERM to finish what is in progress (default 30)")
    add("--max-connections", _from_1, 256, "default 256; plus --decoders, must be less than half of the descriptors (ulimit -n)")
    add("--max-body", _from_1, 256 << 20, "bytes per body (default 256M)")
    add("--max-bodies", _from_1, 4 << 30, "bytes of all bodies in progress and of their parsed JSON (default 4G)")
    add("--max-answers", _from_1, 2 << 30, "bytes of all tokens waiting to be sent (default 2G)")
    add("--max-items", _from_1, 64, "items per request (default 64)")
    add("--max-frames", _from_1, 768, "frames per item (default 768)")
    add("--max-seconds", _seconds, 3600.0, "seconds per clip (default 3600)")
    add("--max-pixels", _from_1, 64_000_000, "pixels per image or frame (default 64000000)")
    add("--all-codecs", bool, False, "decode everything FFmpeg can; default: common codecs (docs/serving.md)", action="store_true")
    add("--idle-seconds", _seconds, 60.0, "close a connection whose client neither sends nor reads for this long (default 60)")
    return p


class Server(uvicorn.Server):
    """After SIGTERM, answers 503 and ends once nothing is in progress or the time to drain has passed."""

    def __init__(self, config: uvicorn.Config, service: Service, a: argparse.Namespace) -> None:
        super().__init__(config)
        self.service, self.a, self.until = service, a, math.inf
        self.failure: Error | None = None  # raised while loading

    async def _load(self) -> None:
        try:
            await asyncio.to_thread(load, self.service, self.a, asyncio.get_running_loop())
        except Error as e:
            self.failure, self.should_exit = e, True

    async def serve(self, sockets: Any = None) -> None:
        loading = asyncio.ensure_future(self._load())
        try:
            await super().serve(sockets)
        finally:
            await loading
            if not self.failure:
                await asyncio.to_thread(self.service.encoder.close)
                self.service.cache.close()
            self.service.writers.end()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.service.draining:  # the second signal
            self.should_exit = self.force_exit = True
        self.service.draining, self.until = True, time.monotonic() + self.a.drain_seconds

    async def on_tick(self, counter: int) -> bool:
        if self.service.draining and (not self.service.under_way or time.monotonic() > self.until):
            self.should_exit = True
        return await super().on_tick(counter)


def load(service: Service, a: argparse.Namespace, loop: asyncio.AbstractEventLoop) -> None:
    """Makes the encoder and the cache, and encodes an image, so that the first request need not wait."""
    devices = a.device if a.device in (None, "all") else [int(d) if d.isdigit() else d for d in a.device.split(",")]
    # cached tokens must not depend on who decoded, so the CPU always does
    service.writers.start(loop)
    service.encoder = encoder = AsyncEncoder(
        a.model, devices=devices, dtype=None, queue=IMAGES_UNDER_WAY + 2 * a.decoders, queue_bytes=AHEAD, decoders=a.decoders, decode="cpu",
        decode_memory=a.decode_memory, max_seconds=a.max_seconds, max_source_pixels=a.max_pixels, usual_codecs=not a.all_codecs)
    info = encoder.info
    service.metrics.gauge("chunk_rows", "Computed patches", lambda: encoder.progress()["rows"])
    service.metrics.gauge("chunk_capacity_rows", "Room for patches in their chunks", lambda: encoder.progress()["capacity_rows"])
    # everything that tokens depend on, except the item
    about = {name: info[name] for name in ("identity", "dtype", "backend", "device")}
    about.update(version=__version__, ffmpeg=media.ffmpeg())
    service.cache = TokenCache(about, a.cache_memory, a.cache, a.cache_bytes, service.writers)
    if a.ec_path:
        if info["model_type"] not in FAMILIES:
            raise InputError(f"--ec-path: vLLM accepts no precomputed tokens of {info['model_type']}")
        service.ec = EcFolder(about, a.ec_path, a.ec_bytes, a.ec_seconds, service.writers)
    service.peers = Peers(a.sglang_peers, info["model_type"]) if a.sglang_peers else None
    for warm in [encoder.submit({"bytes": WARM}) for _ in range(a.decoders)]:  # starts every decoder
        warm.result()
    gc.collect()
    gc.freeze()  # objects made so far stay, so later collections can skip them
    gc.set_threshold(10_000)
    service.ready = True


def keys_of(a: argparse.Namespace) -> list[str]:
    return a.api_key or [os.environ[name] for name in ("QWENVIT_API_KEY",) if name in os.environ]


def serve(a: argparse.Namespace) -> int:
    """Returns the command's exit code."""
    limits = Limits(a.max_body, a.max_items, a.max_frames, a.max_seconds, a.max_pixels)
    keys = tuple(key.encode("utf-8", "surrogateescape") for key in keys_of(a))
    settings = Settings(limits, a.max_bodies, a.max_answers, a.timeout, keys, not a.no_shared_cache,
                        a.served_model_name or os.path.basename(os.path.abspath(a.model)), a.vllm_model_id or a.model)
    service = Service(settings, Turns(a.decoders, a.queue), Metrics())
    log = AccessLog()

    def refused(client: str, status: int, message: str) -> None:
        service.metrics.count("requests", "none", str(status))
        log.add(client=client, status=status, message=message)

    start_log()
    Protocol.patience = Patience(Bound("connections", a.max_connections), a.idle_seconds, refused)
    config = uvicorn.Config(App(service, log), host=a.host, port=a.port, uds=a.uds, http=Protocol, ws="none", lifespan="off",
                            log_config=None, access_log=False, server_header=False, proxy_headers=False,
                            timeout_graceful_shutdown=1, backlog=2048)
    server = Server(config, service, a)
    try:
        server.run()
    except SystemExit:  # uvicorn has logged the reason
        return 4
    log.write()
    if e := server.failure:
        print(f"qwenvit serve: {e}", file=sys.stderr)
        return 3 if isinstance(e, InputError) else 4
    return 0


def main(arguments: list[str]) -> int:
    p = parser()
    a, rest = p.parse_known_args(arguments)
    if rest:
        p.error(f"unknown option {rest[0]}{near(rest[0], p._option_string_actions)}")
    if not a.model:
        p.error("--model is required: the folder of a checkpoint")
    if any(not key or key != key.strip() for key in keys_of(a)):
        p.error("--api-key and QWENVIT_API_KEY: a key must not be empty or have spaces around it")
    if a.ec_path and a.no_shared_cache:
        p.error("--ec-path and --no-shared-cache cannot be used together: any client can name another client's images")
    if a.ec_path and a.ec_seconds < a.timeout:
        p.error(f"--ec-seconds is {a.ec_seconds:g}; it must be at least --timeout, {a.timeout:g}")
    if a.sglang_peers and keys_of(a):
        p.error("--sglang-peers and API keys cannot be used together: SGLang sends no key")
    return serve(a)
