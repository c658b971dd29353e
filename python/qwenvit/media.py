# SPDX-License-Identifier: MIT
"""What requests are made of: entries of a chat, data: URLs, and options of clips; for servers, as qwenvit.serve is
one. Nothing here opens a path or a URL."""

from __future__ import annotations

import base64
import os
import sys
import urllib.parse
from collections.abc import Iterator
from typing import Any

from . import _check, _core, _decoder
from ._error import Error, error
from ._options import ClipOptions

__all__ = ["FrameFiles", "bytes_of_data", "chat_part", "ffmpeg", "image_kind", "is_data", "options_of"]

Options = dict[str, Any]

CHAT = ("image", "video", "image_url", "video_url", "input_image", "input_video")  # types of a chat's content
RENAMED = {"nframes": "num_frames", "video_start": "start", "video_end": "end"}  # as qwen-vl-utils calls options
KINDS = ("path", "bytes", "frames", "image")  # what a source that is a dict may describe
TIMES_OF_FRAMES = ("timestamps", "frames_indices", "total_num_frames")  # options that only frames have
BLANKS = b" \t\r\n"  # which base64 may have in between
UNQUOTED_AT_ONCE = 1 << 14  # bytes of a data: URL


class FrameFiles(bytes):
    """The files of a clip's frames in one piece: BEGIN, then each behind its length. No file that can be
    decoded begins so."""

    BEGIN = b"frames:\0"

    @classmethod
    def of(cls, files: Iterator[bytes]) -> FrameFiles:
        return cls(b"".join([cls.BEGIN, *(part for file in files for part in (len(file).to_bytes(8, "little"), file))]))

    def files(self) -> Iterator[bytes]:
        at = len(self.BEGIN)
        while at < len(self):
            end = at + 8 + int.from_bytes(self[at : at + 8], "little")
            yield self[at + 8 : end]
            at = end


def is_bytes(x: object) -> bool:
    return isinstance(x, (bytes, bytearray)) or isinstance(x, memoryview) and x.ndim < 2


def is_file(x: object) -> bool:
    return callable(getattr(x, "read", None))


def is_pil(x: object) -> bool:
    image = sys.modules.get("PIL.Image")
    return image is not None and isinstance(x, image.Image)


# ---- chats ---------------------------------------------------------------------------------------


def _media(source: Options) -> Options | None:
    """Returns a source for an entry of a chat's content; None: it is none, or has no image and no clip."""
    kind = source.get("type", "video" if "video" in source else None)
    if kind not in CHAT:
        return None
    rest = {RENAMED.get(k, k): v for k, v in source.items() if k not in (kind, "type", "detail")}
    inner = source.get(kind, rest.pop("image_url", None))
    inner = inner.get("url") if isinstance(inner, dict) else inner
    files = isinstance(inner, (str, os.PathLike)), is_bytes(inner) or is_file(inner)
    of_frames = "frames" if "video" in kind else "image"
    return {"path" if files[0] else "bytes" if files[1] and not is_pil(inner) else of_frames: inner, **rest}


def chat_part(source: Options) -> tuple[Any, bool, Options] | None:
    """Returns what an entry of a chat's content is of, whether that must be an image, and its options; None: it is
    not such an entry, or has no image and no clip."""
    media = _media(source)
    return (media.pop(next(k for k in KINDS if k in media)), is_image_part(source), media) if media else None


def media_of(source: Any) -> Any:
    """Returns a source, or an iterable of sources. Of a chat's message, or of a list of them, it is a list
    of the images and clips in it."""
    if isinstance(source, dict) and "role" in source:
        source = [source]
    if isinstance(source, (list, tuple)) and source and all(isinstance(m, dict) and "role" in m for m in source):
        parts = [part for m in source if isinstance(m.get("content"), (list, tuple)) for part in m["content"]]
        found = [part for part in parts if isinstance(part, dict) and _media(part)]
        if not found:
            raise error("QV_EINVAL", "these messages contain no image or clip")
        return found
    return source


def plain(source: Any) -> Any:
    """Returns a source without what only chats have."""
    return _media(source) or source if isinstance(source, dict) else source


def is_image_part(source: Any) -> bool:
    """Whether this is the entry of a chat's content for an image."""
    return isinstance(source, dict) and source.get("type") in CHAT and "image" in source["type"]


# ---- options -------------------------------------------------------------------------------------


def options_of(options: Options) -> Options:
    """Returns the options that were given, as the binding takes them. Raises Error for one that is
    unknown or of a wrong type."""
    for name in options:
        if name not in ClipOptions.__annotations__:
            raise error("QV_EINVAL", f"unknown option {_check.utf8(name):.80}{_check.near(name, ClipOptions.__annotations__)}")
    options = {k: v for k, v in options.items() if v is not None}
    _core.check_options({k: v for k, v in options.items() if k not in TIMES_OF_FRAMES})
    return options


# ---- files ---------------------------------------------------------------------------------------


def ffmpeg() -> str:
    """Returns the version of FFmpeg, which decodes in this process; "" if it is unknown."""
    return _decoder.start().ffmpeg()


def image_kind(data: bytes) -> tuple[str, bool] | None:
    """Returns the format of an image's file, by its first bytes, and whether it may move; None for all else."""
    return _core.image_kind(data[: _core.HEAD])


def is_data(source: object) -> bool:
    """Whether this is a data: URL."""
    return isinstance(source, str) and source[:5].lower() == "data:" and "," in source


def _unquoted(data: bytes) -> bytes:
    """Returns bytes without their %-escapes. In pieces, as unquote_to_bytes() needs 180 bytes of memory for each %."""
    pieces, at = [], 0
    while at < len(data):
        end = at + UNQUOTED_AT_ONCE
        cut = data.find(b"%", end - 2, end)  # an escape stays whole
        end = end if cut < 0 else cut
        pieces.append(urllib.parse.unquote_to_bytes(data[at:end]))
        at = end
    return b"".join(pieces)


def _decoded(text: str, is_base64: bool) -> bytes:
    """Returns the bytes that a data: URL's text stands for; base64 may be in lines."""
    data = text.encode() if "%" not in text else _unquoted(text.encode())
    if is_base64 and any(blank in data for blank in BLANKS):
        data = data.translate(None, bytes(BLANKS))
    return base64.b64decode(data, validate=True) if is_base64 else data


def _pieces(text: str, at: int) -> Iterator[str]:
    """Gives what commas separate from a place on, without a copy of all of it."""
    while (end := text.find(",", at)) >= 0:
        yield text[at:end]
        at = end + 1
    yield text[at:]


def bytes_of_data(url: str, name: str, most: int = 1 << 31) -> bytes:
    """Returns the bytes in a data: URL, which `name` names in the error; of video/jpeg, whose JPEGs commas
    separate, FrameFiles of at most so many."""
    head = url[: url.index(",")].lower()
    is_base64 = head.endswith(";base64")
    try:
        if not is_base64 or head[5:].partition(";")[0].strip() != "video/jpeg":
            return _decoded(url[len(head) + 1 :], is_base64)
        n = url.count(",")
        if n > most:
            raise error("QV_EINVAL", f"{name}: {n} frames; at most {most}")
        return FrameFiles.of(_decoded(piece, True) for piece in _pieces(url, len(head) + 1))
    except ValueError as e:
        if isinstance(e, Error):
            raise
        raise error("QV_EINVAL", f"{name}: data: URL is not valid base64: {e}") from None
