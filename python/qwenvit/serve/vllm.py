# SPDX-License-Identifier: MIT
"""Serves vLLM's decode side: requests in its chat API, the keys by which it looks tokens up, and the folder in which its
ECExampleConnector reads them (docs/engines.md). vLLM is not imported."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

import blake3

from .. import Error, Tokens
from ..adapters.engines import EC_FILE, save_ec
from ..adapters.items import FAMILIES, items_of
from .cache import Compute, Kept, TokenCache
from .items import Item, Limits, Refused, Room, media_item, object_of, shown
from .loop import Writers

KINDS = {"image_url": "image", "video_url": "video"}
REKEYED = "with it, the decode side looks up different keys than it sent; it must not be set for images or clips"
NOT_SERVED = {
    "mm_processor_kwargs": REKEYED, "media_io_kwargs": REKEYED, "stream": "an encoder's answer is one object",
    "ec_transfer_params": "tokens are handed over as files, which ECExampleConnector reads"}
HEADER = 512  # most bytes of a file's header, apart from our metadata
MARKERS = 4096  # most markers in a JPEG before its size
MOST_HEADER = 16 << 20  # most bytes to read of a header


class Asked(NamedTuple):
    """An image or clip of a request, and the key by which the decode side looks up its tokens."""

    key: str
    item: Item


# ---- keys ----------------------------------------------------------------------------------------


def _jpeg_is_rgb(data: bytes) -> bool:
    at = 2
    for _ in range(MARKERS):
        if data[at] != 0xFF:
            break
        marker = data[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return data[at + 9] == 3  # channels
        at += 1 if marker == 0xFF else 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    raise IndexError  # not a JPEG


def _png_is_rgb(data: bytes) -> bool:
    return data[25] == 2 and b"tRNS" not in data[: data.find(b"IDAT")]


def _webp_is_rgb(data: bytes) -> bool:
    kind = data[12:16]
    return not (data[20] & 0x10 if kind == b"VP8X" else data[24] & 0x10 if kind == b"VP8L" else 0)


# by a file's first bytes: whether Pillow opens it as RGB without transparency
IS_RGB: dict[bytes, Callable[[bytes], bool]] = {
    b"\x89PNG": _png_is_rgb, b"\xff\xd8\xff": _jpeg_is_rgb, b"RIFF": _webp_is_rgb, b"GIF8": lambda data: False}


def _framed(value: Any) -> Iterator[bytes]:
    """Yields the bytes that vLLM hashes for a value: a byte for its kind, its length, and its content. The length of
    a mapping or a sequence is its number of elements."""
    if isinstance(value, dict):
        yield b"\x02" + len(value).to_bytes(8, "little")
        for name, inner in value.items():
            yield from (len(name).to_bytes(8, "little"), name.encode())
            yield from _framed(inner)
    elif isinstance(value, tuple):
        yield b"\x01" + len(value).to_bytes(8, "little")
        for inner in value:
            yield from _framed(inner)
    else:
        data = value.to_bytes(8, "little") if isinstance(value, int) else value if isinstance(value, bytes) else value.encode()
        yield from (b"\x03", len(data).to_bytes(8, "little"), data)


def image_key(data: bytes, model_id: str) -> str:
    """Returns vLLM's key for an image without a uuid: a hash of the model's id and the file's bytes and, if the image
    is not RGB, of how vLLM converts it to RGB."""
    is_rgb = next((call for first, call in IS_RGB.items() if data.startswith(first)), None)
    try:
        plain = is_rgb(data) if is_rgb else None
    except IndexError:
        plain = None
    if plain is None:
        raise Refused(400, "QV_EUNSUPPORTED", "an image without a uuid must be a complete JPEG, PNG, WebP or GIF, "
                                              "for which vLLM's key can be computed here: send a uuid")
    how = {"image_mode": "RGB", "rgba_background_color": (255, 255, 255)}
    image = data if plain else {"io_config": how, "data": data}
    name = (5).to_bytes(8, "little") + b"image"
    pieces = (name, b"\x03", name, *_framed(image), (8).to_bytes(8, "little"), b"model_id", *_framed(model_id))
    return blake3.blake3(b"".join(pieces)).hexdigest()


def _key_of(part: dict[str, Any], kind: str, data: bytes, model_id: str) -> str:
    key = part.get("uuid")
    if key is None and kind == "video":
        raise Refused(400, "QV_EUNSUPPORTED", "a clip needs a uuid, because only vLLM's loader can compute its key")
    if key is None:
        return image_key(data, model_id)
    if not isinstance(key, str) or not key.isprintable() or not 0 < len(key.encode()) <= 200 or "/" in key or key.startswith("."):
        raise Refused(400, "QV_EINVAL", f"uuid is {shown(key)}; it must be a folder's name of at most 200 bytes, without / or a leading dot")
    return key


# ---- requests ------------------------------------------------------------------------------------


def _parts(asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the images and clips of a chat."""
    messages = asked.get("messages")
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            kind = part.get("type") if isinstance(part, dict) else None
            if isinstance(kind, str) and kind in KINDS:
                yield part
            elif kind != "text":
                raise Refused(400, "QV_EUNSUPPORTED", f"unknown part type {shown(kind)}; types are text, {', '.join(KINDS)}")


def asked_of(body: bytes, limits: Limits, model_id: str, room: Room) -> list[Asked]:
    """Parses the body of a chat request."""
    asked = object_of(body, '{"messages": [..]}', room)
    for name, why in NOT_SERVED.items():
        if asked.get(name):
            raise Refused(400, "QV_EUNSUPPORTED", f"{name} is not supported: {why}")
    parts = list(_parts(asked))
    if not parts:
        raise Refused(400, "QV_EINVAL", "the messages contain no image_url or video_url; this server is an encoder, without a language model")
    if len(parts) > limits.items:
        raise Refused(413, "QV_EINVAL", f"{len(parts)} images and clips; at most {limits.items} per request")
    found = []
    for part in parts:
        name = part["type"]
        url = part.get(name)
        item = media_item(url.get("url") if isinstance(url, dict) else url, f"{name}'s url", KINDS[name] == "image", limits)
        found.append(Asked(_key_of(part, KINDS[name], item.data, model_id), item))
    return found


# ---- the folder ----------------------------------------------------------------------------------


class Published(NamedTuple):
    """The metadata of a file: the content it was made from, the model, and the fields of answers."""

    content: str
    about: str
    modality: str
    metadata: dict[str, list[Any]]
    tokens: int


def _read(path: str) -> Published | None:
    """Reads a file's metadata from its header; returns None if this server did not write it."""
    try:
        with open(path, "rb") as f:
            size = int.from_bytes(f.read(8), "little")
            return Published(*json.loads(json.loads(f.read(min(size, MOST_HEADER)))["__metadata__"]["qwenvit"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


class EcFolder(TokenCache):
    """Files FOLDER/KEY/encoder_cache.safetensors. The connector checks that a file exists and reads it some time
    later, so a file stays for `seconds` after the last answer that names it, and then until its room is needed.
    While it exists, its key names the content it was made from."""

    option = "--ec-path"

    def __init__(self, about: dict[str, Any], folder: str, most: int, seconds: float, writers: Writers) -> None:
        self.seconds = seconds
        self.published: dict[str, Published] = {}
        self.until: dict[str, float] = {}
        super().__init__(about, 0, folder, most, writers)

    def _files_in(self, folder: str) -> list[tuple[float, str, int]]:
        found = []
        for place in os.scandir(folder):
            for file in os.scandir(place.path) if place.is_dir(follow_symlinks=False) else ():
                if file.name.startswith(f"{EC_FILE}."):  # left by a server that was killed
                    os.unlink(file.path)
                known = _read(file.path) if file.name == EC_FILE else None
                if known and known.about == self.about:
                    found.append((file.stat().st_mtime, place.name, file.stat().st_size))
                    self.published[place.name] = known
                    self.until[place.name] = time.monotonic() + min(0, file.stat().st_mtime - time.time()) + self.seconds
                elif known:  # of another model, so no answer of this server can name it
                    os.unlink(file.path)
        return found

    def path_of(self, name: str) -> str:
        return os.path.join(str(self.folder), name, EC_FILE)

    def _forget(self, name: str) -> None:
        super()._forget(name)
        self.published.pop(name, None)
        self.until.pop(name, None)

    def _drop_files(self, size: int = 0) -> None:
        """Makes room for so many bytes by dropping files that are no longer needed."""
        while self.file_bytes + size > self.most and self.files:
            name = next(iter(self.files))
            if (left := self.until[name] - time.monotonic()) > 0:
                if not size:  # at startup
                    return
                raise Refused(503, "QV_EFULL", f"--ec-path is full: the decode side may still read its {len(self.files)} files",
                              Retry_After=str(math.ceil(left)))
            self._forget(name)
            with contextlib.suppress(OSError):
                os.unlink(self.path_of(name))
                os.rmdir(os.path.dirname(self.path_of(name)))

    def _stays(self, name: str) -> None:
        self.files.move_to_end(name)
        self.until[name] = time.monotonic() + self.seconds
        with contextlib.suppress(OSError):
            os.utime(self.path_of(name))  # kept for a restarted server

    async def find(self, name: str, room: Room | None) -> tuple[Kept, str] | None:
        found = await super().find(name, room)
        if found:
            self._stays(name)
        return found

    async def keep(self, name: str, compute: Compute, wanted: bool) -> Kept:
        result, known = await compute()
        # once writing has begun, it must finish, so that its bytes are counted
        return await asyncio.shield(asyncio.ensure_future(self._keep(name, result, known)))

    async def _keep(self, name: str, result: Tokens, known: Published) -> Kept:
        about = json.dumps(known)
        size = sum(m.nbytes for m in (result.tokens, *result.deepstack)) + 2 * len(about) + HEADER
        if size > self.most:
            raise Refused(507, "QV_EIO", f"the tokens need {size} bytes; --ec-bytes is {self.most}")
        self._drop_files(size)
        self.file_bytes += size  # counted from now on, so that simultaneous writes fit together
        try:
            path = await asyncio.to_thread(save_ec, result, str(self.folder), name, {"qwenvit": about})
            written = os.path.getsize(path)
        except (Error, OSError) as e:
            raise Refused(507, "QV_EIO", f"cannot write the tokens: {e}") from None
        finally:
            self.file_bytes -= size
        self._forget(name)
        self.files[name], self.published[name] = written, known
        self.file_bytes += written
        self._stays(name)
        return Kept(name, written, None)

    def _must_be_of(self, key: str, content: str) -> None:
        known = self.published.get(key)
        if known and known.content != content:
            raise Refused(409, "QV_EINVAL", f"uuid {shown(key)} already names a different file; each file needs its own uuid")

    async def publish(self, asked: Asked, compute: Callable[[Item, str], Awaitable[Tokens]]) -> tuple[Kept, str]:
        """Ensures that the requested tokens are in the folder."""
        content = await self.name_of(asked.item, "")
        self._must_be_of(asked.key, content)

        async def computed() -> Any:
            tokens = await compute(asked.item, content)
            [one] = items_of(tokens)
            if (one.kind == "image") != bool(asked.item.options.get("first_frame")):
                raise Refused(422, "QV_EINVAL", "video_url contains an image; send it as image_url")
            metadata = {f"{one.kind}_grid_thw": list(one.grid)}
            if one.kind == "video" and FAMILIES[str(tokens.model_type)]:
                metadata["timestamps"] = one.seconds  # type: ignore[assignment]
            return tokens, Published(content, self.about, one.kind, metadata, len(tokens))

        found = await self.get(asked.key, None, computed)
        self._must_be_of(asked.key, content)  # another request may have been faster
        return found

    def completion(self, asked: list[Asked], model: str) -> dict[str, Any]:
        """Returns the answer. The files that it names stay for `seconds` from now on."""
        items: dict[str, Any] = {}
        for index, (key, _) in enumerate(asked):
            if key not in self.files:
                raise Refused(503, "QV_EIO", "another process removed a file in --ec-path; retry", Retry_After="1")
            self._stays(key)
            known = self.published[key]
            row = items.setdefault(key, {"modality": known.modality, "item_indices": [], "metadata": known.metadata})
            row["item_indices"].append(index)
        n = sum(self.published[one.key].tokens for one in asked)
        return {
            "id": f"chatcmpl-{uuid.uuid4().hex}", "object": "chat.completion", "created": int(time.time()), "model": model,
            "choices": [{"index": 0, "message": {"role": "assistant", "content": ""}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": n, "completion_tokens": 0, "total_tokens": n}, "ec_transfer_params": items,
        }
