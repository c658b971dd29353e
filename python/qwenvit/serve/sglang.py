# SPDX-License-Identifier: MIT
"""Serves SGLang's decode side, which requests tokens with POST /encode and receives them, as a pickled EmbeddingData and rows, on a
ZMQ socket named in the request (docs/engines.md). SGLang is not imported, and incoming data is never unpickled."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

from .. import InputError
from ..adapters.engines import installed
from ..adapters.items import FAMILIES, pair_seconds
from .accounts import Line
from .items import Item, Limits, Refused, media_item, shown

VERSION = "0.5.23"  # the version of SGLang with which this protocol was tested
CONNECTIONS = 64  # most simultaneous connections to decode sides
SECONDS = 30.0  # for one connection, including the wait for its turn
MODALITIES = {"IMAGE": 1, "VIDEO": 2}  # the values of SGLang's enum
DTYPES = {"BF16": ("bfloat16", 2), "F16": ("float16", 2), "F32": ("float32", 4)}  # torch's names, and bytes
OPTIONS = {"url", "detail", "content_hash"}  # an item's fields; SGLang's Qwen processors ignore detail


class Asked(NamedTuple):
    """The items of a request, and the destination of their tokens."""

    req_id: str
    num_parts: int
    part_idx: int
    modality: str
    items: list[Item]
    host: str
    port: int


# ---- requests ------------------------------------------------------------------------------------


def _whole(value: Any, first: int, last: int) -> bool:
    return type(value) is int and first <= value <= last


FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "req_id": (lambda v: isinstance(v, str) and v.isprintable() and 0 < len(v) <= 1000, "a string of 1 to 1000 printable characters"),
    "modality": (lambda v: isinstance(v, str) and v.upper() in MODALITIES, "IMAGE or VIDEO"),
    "mm_items": (lambda v: isinstance(v, list) and bool(v), "a non-empty list of URLs"),
    "num_parts": (lambda v: _whole(v, 1, 1 << 30), f"a number from 1 to {1 << 30}"),
    "part_idx": (lambda v: _whole(v, 0, 1 << 30), "a number from 0 to num_parts - 1"),
    "embedding_port": (lambda v: _whole(v, 1, 65535), "a port, as --encoder-transfer-backend zmq_to_tokenizer sends it"),
}


def asked_of(asked: dict[str, Any], limits: Limits, peers: frozenset[str]) -> Asked:
    """Parses the JSON of a request."""
    for name, (is_right, what) in FIELDS.items():
        if not is_right(asked.get(name)):
            raise Refused(400, "QV_EINVAL", f"{name} is {shown(asked.get(name))}; it must be {what}")
    req_id, modality, rows, num_parts, part_idx, port = (asked[name] for name in FIELDS)
    if part_idx >= num_parts:
        raise Refused(400, "QV_EINVAL", f"part_idx is {part_idx}; it must be less than num_parts, {num_parts}")
    if len(rows) > limits.items:
        raise Refused(413, "QV_EINVAL", f"{len(rows)} images and clips; at most {limits.items} per request")
    host = asked.get("prefill_host")
    if not isinstance(host, str) or host not in peers:
        raise Refused(403, "QV_EINVAL", f"prefill_host is {shown(host)}, which is not one of --sglang-peers")
    items = []
    for row in rows:
        row = row if isinstance(row, dict) else {"url": row}
        if odd := sorted(name for name in row if name not in OPTIONS and row[name] is not None):
            raise Refused(400, "QV_EUNSUPPORTED", f"unknown field {shown(odd[0])} of an item; fields are {', '.join(sorted(OPTIONS))}")
        items.append(media_item(row.get("url"), "mm_items: url", modality.upper() == "IMAGE", limits))
    return Asked(req_id, num_parts, part_idx, modality.upper(), items, host, port)


# ---- the message ---------------------------------------------------------------------------------


def _plain(value: Any) -> bytes:
    """Returns the pickle opcodes of a value of built-in types."""
    return pickle.dumps(value, 2)[2:-1]  # without the protocol's version and STOP


def _named(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def _called(module: str, name: str, argument: Any) -> bytes:
    return _named(module, name) + _plain((argument,)) + b"R"


def _tensors(file: bytes) -> tuple[dict[str, Any], str, dict[str, Any]]:
    """Returns the metadata of a file that `encode` writes, the tokens' dtype, and each tensor's rows as bytes."""
    import numpy as np

    start = 8 + int.from_bytes(file[:8], "little")
    header = json.loads(file[8:start])
    about, found = header.pop("__metadata__"), {}
    for name, of in header.items():
        first, last = of["data_offsets"]
        found[name] = np.frombuffer(file, np.uint8, last - first, start + first).reshape(of["shape"][0], -1)
    return about, header["tokens"]["dtype"], found


def frames_of(asked: Asked, files: list[bytes]) -> list[Any]:
    """Turns the files that `encode` writes into the two frames that SGLang's receiver reads: a pickled EmbeddingData, and rows
    at full width. The pickle is assembled from opcodes, because its classes cannot be imported."""
    import numpy as np

    rows, grids, timestamps, seconds = list[Any](), list[Any](), list[Any](), list[Any]()
    for i, file in enumerate(files):
        about, dtype, found = _tensors(file)
        made = json.loads(about.get("preprocessing", '{"kind": "clip", "second_per_grid_ts": 2}'))  # frames from a client, at 1 per second
        if (made["kind"] == "picture") != (asked.modality == "IMAGE"):
            raise Refused(422, "QV_EINVAL", f"modality is {asked.modality}, but item {i} of mm_items is not")
        rows.append(np.concatenate([found.pop(name) for name in list(found) if name.startswith(("tokens", "deepstack."))], axis=1))
        grids += found["grid_thw"].view(np.int64).tolist()
        if asked.modality == "VIDEO":
            timestamps.append(pair_seconds(found["timestamps"].view(np.float64)[:, 0].tolist(), grids[-1][0], asked))
            seconds.append(made["second_per_grid_ts"])
    matrix, (torch_dtype, size) = np.concatenate(rows), DTYPES[dtype]
    fields = {
        "req_id": _plain(asked.req_id), "num_parts": _plain(asked.num_parts), "part_idx": _plain(asked.part_idx),
        "grid_dim": _called("torch", "LongTensor", grids),
        "modality": _called("sglang.srt.multimodal.modality", "Modality", MODALITIES[asked.modality]),
        "embedding": _plain(None), "send_time": _plain(None), "dtype": _named("torch", torch_dtype),
        "shape": _plain([len(matrix), matrix.shape[1] // size]), "_mr_ptr": _plain(None),
        "error_msg": _plain(None), "error_code": _plain(None),
        "video_timestamps": _plain(timestamps if timestamps and FAMILIES[about["model"]] else None),
        "second_per_grid_ts": _called("torch", "FloatTensor", seconds) if seconds and about["model"] == "qwen2_5_vl" else _plain(None),
    }
    state = b"".join(_plain(name) + value for name, value in fields.items())
    name = _named("sglang.srt.disaggregation.encoder.receiver", "EmbeddingData")
    return [b"\x80\x02" + name + b")\x81(" + state + b"db.", matrix.reshape(-1).data]


# ---- sending -------------------------------------------------------------------------------------

# ZMTP 3.0 (rfc.zeromq.org/spec/23): how a PUSH socket without encryption introduces itself
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\0" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x04\x1a\x05READY\x0bSocket-Type\0\0\0\x04PUSH"
PULL = b"\x0bSocket-Type\0\0\0\x04PULL"


class Peers:
    """The decode sides to which the server may connect."""

    def __init__(self, hosts: str, model_type: str) -> None:
        self.hosts, self.line = frozenset(host.strip() for host in hosts.split(",")), Line(lambda: CONNECTIONS, alone=False)
        if not importlib.util.find_spec("numpy"):
            raise InputError("--sglang-peers needs numpy")
        if model_type not in FAMILIES:
            raise InputError(f"--sglang-peers: SGLang accepts no precomputed tokens of {model_type}")
        if installed("sglang") not in (None, VERSION):
            logging.getLogger("uvicorn.error").warning(f"sglang {installed('sglang')} has not been tested; {VERSION} has")

    async def push(self, frames: list[Any], host: str, port: int, client: str) -> None:
        try:
            await asyncio.wait_for(self._push(frames, host, port, client), SECONDS)
        except (OSError, EOFError, ValueError, asyncio.TimeoutError) as e:
            why = str(e) or f"timed out after {SECONDS:g} s"
            raise Refused(502, "QV_EIO", f"{host}:{port} did not accept the tokens: {why}") from None

    async def _push(self, frames: list[Any], host: str, port: int, client: str) -> None:
        async with self.line.place(client):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(GREETING)
                theirs = await reader.readexactly(len(GREETING))
                if theirs[0] != 0xFF or theirs[9] != 0x7F or theirs[10] < 3 or theirs[12:32] != GREETING[12:32]:
                    raise ValueError("not an unencrypted ZMQ socket")
                writer.write(READY)
                kind, size = await reader.readexactly(2)
                about = await reader.readexactly(size)
                if kind != 4 or not about.startswith(READY[2:8]) or PULL not in about:
                    raise ValueError("not a PULL socket")
                for i, frame in enumerate(frames):
                    more = i + 1 < len(frames)
                    writer.write(bytes([2 + more]) + len(frame).to_bytes(8, "big"))
                    writer.write(frame)
                writer.write_eof()
                if await reader.read(1):  # the peer closes once it has read everything
                    raise ValueError("not a PULL socket")
            finally:
                writer.transport.abort()
