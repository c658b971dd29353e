# SPDX-License-Identifier: MIT
"""Parses the parts of requests for servers such as qwenvit.serve: chat entries, data: URLs and options of clips.
Nothing here opens a path or a URL."""

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
RENAMED = {"nframes": "num_frames", "video_start": "start", "video_end": "end"}  # qwen-vl-utils' names of options
KINDS = ("path", "bytes", "frames", "image")  # of a source that is a dict
TIMES_OF_FRAMES = ("timestamps", "frames_indices", "total_num_frames")  # options for frames only
BLANKS = b" \t\r\n"  # allowed between base64's characters
UNQUOTED_AT_ONCE = 1 << 14  # bytes of a data: URL


class FrameFiles(bytes):
    """The files of a clip's frames in one piece: BEGIN, then each file after its length. No decodable file
    begins with BEGIN."""

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
    """Returns a source for an entry of a chat's content; None if it is not such an entry or has no image or clip."""
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
    """Returns the image or clip of an entry of a chat's content, whether it must be an image, and its options; None if
    this is not such an entry or has no image or clip."""
    media = _media(source)
    return (media.pop(next(k for k in KINDS if k in media)), is_image_part(source), media) if media else None


def media_of(source: Any) -> Any:
    """Returns a source or an iterable of sources. For a chat's message, or a list of messages, that is a list
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
    """Returns a source without the fields that only chats have."""
    return _media(source) or source if isinstance(source, dict) else source


def is_image_part(source: Any) -> bool:
    """Whether this is a chat entry for an image."""
    return isinstance(source, dict) and source.get("type") in CHAT and "image" in source["type"]


# ---- options -------------------------------------------------------------------------------------


def options_of(options: Options) -> Options:
    """Returns the options that are set, as the binding accepts them. Raises Error for an unknown option or
    a value of the wrong type."""
    for name in options:
        if name not in ClipOptions.__annotations__:
            raise error("QV_EINVAL", f"unknown option {_check.utf8(name):.80}{_check.near(name, ClipOptions.__annotations__)}")
    options = {k: v for k, v in options.items() if v is not None}
    _core.check_options({k: v for k, v in options.items() if k not in TIMES_OF_FRAMES})
    return options


# ---- files ---------------------------------------------------------------------------------------


def ffmpeg() -> str:
    """Returns the version of the FFmpeg that decodes for this process; "" if it is unknown."""
    return _decoder.start().ffmpeg()


def image_kind(data: bytes) -> tuple[str, bool] | None:
    """Returns an image file's format, judged by its first bytes, and whether it may be animated; None for other files."""
    return _core.image_kind(data[: _core.HEAD])


def is_data(source: object) -> bool:
    """Whether this is a data: URL."""
    return isinstance(source, str) and source[:5].lower() == "data:" and "," in source


def _unquoted(data: bytes) -> bytes:
    """Resolves %-escapes, in pieces, because unquote_to_bytes() needs 180 bytes of memory per %."""
    pieces, at = [], 0
    while at < len(data):
        end = at + UNQUOTED_AT_ONCE
        cut = data.find(b"%", end - 2, end)  # an escape stays whole
        end = end if cut < 0 else cut
        pieces.append(urllib.parse.unquote_to_bytes(data[at:end]))
        at = end
    return b"".join(pieces)


def _decoded(text: str, is_base64: bool) -> bytes:
    """Returns the bytes that a data: URL's text stands for; base64 may span lines."""
    data = text.encode() if "%" not in text else _unquoted(text.encode())
    if is_base64 and any(blank in data for blank in BLANKS):
        data = data.translate(None, bytes(BLANKS))
    return base64.b64decode(data, validate=True) if is_base64 else data


def _pieces(text: str, at: int) -> Iterator[str]:
    """Yields the comma-separated pieces from a place on, without copying the whole text."""
    while (end := text.find(",", at)) >= 0:
        yield text[at:end]
        at = end + 1
    yield text[at:]


def bytes_of_data(url: str, name: str, most: int = 1 << 31) -> bytes:
    """Returns the bytes in a data: URL; errors call it `name`. For video/jpeg, a list of JPEGs separated by commas,
    it returns FrameFiles with at most `most` files."""
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
