# SPDX-License-Identifier: MIT
"""Parses requests into files in memory with options, and checks both before anything is decoded.
Nothing here opens a path or a URL."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from .. import Error
from ..media import FrameFiles, bytes_of_data, chat_part, image_kind, is_data, options_of

FLAGS = {"1": True, "true": True, "0": False, "false": False}
# the options in clips/options.inc that a request may set; the server decides the rest (threads, memory,
# a range of a file)
OPTIONS: dict[str, type] = {
    "like": str, "fps": float, "start": float, "end": float, "first_frame": bool, "cap_pixels": bool, "frames_indices": tuple,
    **dict.fromkeys("num_frames min_frames max_frames min_pixels max_pixels total_pixels total_num_frames".split(), int)}
FRAMES = ("num_frames", "min_frames", "max_frames")
VALUES = 32  # most JSON values per item, twice the options; a clip's frames and their places count extra
ENGINES_VALUES = 1 << 16  # most JSON values in an engine's request, which may contain the client's tools
JSON_TIMES, WIDE_TIMES = 2, 5  # parsing takes so many times the bytes of JSON: if not ASCII, four bytes per character
DEFAULT_FRAMES = 768  # transformers' default limit of frames per clip
Room = Callable[[int], None]  # reserves a number of bytes, or refuses


class Refused(Exception):
    """An error answer: HTTP status, code and message."""

    def __init__(self, status: int, code: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.code, self.headers = status, code, {k.replace("_", "-"): v for k, v in headers.items()}

    def json(self) -> dict[str, Any]:
        return {"code": self.code, "message": str(self)}


class Limits(NamedTuple):
    """The limits of one request."""

    body: int  # bytes
    items: int
    frames: int  # of an item
    seconds: float  # of a clip
    pixels: int  # of a frame


class Item(NamedTuple):
    data: bytes
    options: dict[str, Any]
    is_image: bool


def shown(value: object) -> str:
    text = repr(value) if isinstance(value, (str, int, float, bool, type(None))) else f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."


# ---- options -------------------------------------------------------------------------------------


def near(name: str, names: Iterable[str]) -> str:
    """Returns the end of a message about an unknown name, which suggests the closest known name."""
    close = difflib.get_close_matches(name, [*names], 1)
    return f"; did you mean {close[0]}?" if close else ""


def _value(name: str, given: Any) -> Any:
    """Returns an option's value from a query string or JSON."""
    kind = OPTIONS[name]
    try:
        if kind is tuple:
            if isinstance(given, list) and all(type(v) in (int, float) and math.isfinite(v) for v in given):
                return tuple(map(float, given))
        elif isinstance(given, str):
            return FLAGS[given.lower()] if kind is bool else kind(given)
        elif isinstance(given, bool) == (kind is bool) and isinstance(given, (kind, int) if kind is float else kind):
            return kind(given)
    except (KeyError, ValueError, OverflowError):
        pass
    wanted = {float: "a number", int: "an integer", bool: "true or false", str: "a string", tuple: "a list of numbers"}[kind]
    raise Refused(422, "QV_EINVAL", f"{name} is {shown(given)}; it must be {wanted}")


def take_options(given: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """Returns options in canonical form: with the right types, without unset ones."""
    for name in given:
        if name not in OPTIONS:
            raise Refused(422, "QV_EINVAL", f"unknown option {shown(name)}{near(name, OPTIONS) or '; options are ' + ', '.join(OPTIONS)}")
    options = {name: _value(name, value) for name, value in given.items() if value is not None}
    try:
        if options:
            options_of(options)
    except Error as e:
        raise Refused(422, e.status, str(e)) from None
    for name in FRAMES:
        if options.get(name, 0) > limits.frames:
            raise Refused(422, "QV_EINVAL", f"{name} is {options[name]}; it must be from 1 to {limits.frames} on this server")
    if limits.frames < DEFAULT_FRAMES and not {"num_frames", "max_frames"} & set(options):
        options["max_frames"] = limits.frames
    return {name: value for name, value in options.items() if value}  # 0 and false mean unset


# ---- items ---------------------------------------------------------------------------------------


def make_item(data: bytes, options: Mapping[str, Any], limits: Limits) -> Item:
    taken = take_options(options, limits)
    if not data:
        raise Refused(422, "QV_EFORMAT", "the file is empty; send the bytes of a clip or an image")
    kind = image_kind(data)
    return Item(data, taken, kind is not None and (not kind[1] or "first_frame" in taken))


def bytes_of(url: Any, name: str, is_image: bool, limits: Limits) -> bytes:
    """Returns the bytes in a data: URL, or in a list of a clip's frames. is_image: they must be an image."""
    if isinstance(url, list) and not is_image:
        if len(url) > limits.frames:
            raise Refused(422, "QV_EINVAL", f"{len(url)} frames; at most {limits.frames} on this server")
        return FrameFiles.of(bytes_of(one, f"{name} {i}", True, limits) for i, one in enumerate(url))
    if not is_data(url):
        raise Refused(422, "QV_EINVAL", f"{name} is {shown(url)}; it must be a data: URL (other URLs are not fetched, and paths are not opened)")
    try:
        data = bytes_of_data(url, name, limits.frames)
    except Error as e:
        raise Refused(422, e.status, str(e)) from None
    if is_image and data and image_kind(data) is None:
        raise Refused(422, "QV_EFORMAT", f"{name} is not an image of a known format; send a clip as a video")
    return data


def media_item(url: Any, name: str, is_image: bool, limits: Limits) -> Item:
    """Returns an engine's image or clip. As engines do, it uses the first frame of an animated image."""
    return make_item(bytes_of(url, name, is_image, limits), {"first_frame": True} if is_image else {}, limits)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def parsed(body: bytes, most: int, room: Room) -> Any:
    """Parses JSON with at most `most` values, after reserving room for the result."""
    values = sum(map(body.count, (b"{", b"[", b",")))
    if values > most:  # parsed values need many times the body's bytes
        raise Refused(413, "QV_EINVAL", f"the JSON has {values} values; at most {most}")
    room((JSON_TIMES if body.isascii() else WIDE_TIMES) * len(body))
    try:
        return json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as e:
        raise Refused(400, "QV_EFORMAT", f"the body is not JSON: {e}") from None


def object_of(body: bytes, form: str, room: Room) -> dict[str, Any]:
    """Returns the JSON object of an engine's request."""
    asked = parsed(body, ENGINES_VALUES, room)
    if not isinstance(asked, dict):
        raise Refused(400, "QV_EFORMAT", f"the body must be {form}")
    return asked


def items_of_json(body: bytes, limits: Limits, room: Room) -> list[Item | Refused]:
    """Returns the items of {"items": [{"data": "data:..", OPTION: ..}, {"frames": [..]}, ..], OPTION: ..}, each of
    which may be refused separately. Options next to "items" apply to all items."""
    asked = parsed(body, min(ENGINES_VALUES, VALUES + limits.items * (VALUES + 2 * limits.frames)), room)
    rows = asked.pop("items", None) if isinstance(asked, dict) else None
    if not isinstance(rows, list) or not rows:
        raise Refused(400, "QV_EFORMAT", 'the body must be {"items": [{"data": "data:...;base64,..."}, ...]}')
    if len(rows) > limits.items:
        raise Refused(413, "QV_EINVAL", f"{len(rows)} items; at most {limits.items} per request")
    take_options(asked, limits)  # a wrong common option fails the request, not each item
    found: list[Item | Refused] = []
    for row in rows:
        try:
            if not isinstance(row, dict):
                raise Refused(422, "QV_EINVAL", f"an item is {shown(row)}; it must be an object with data and options")
            name = "frames" if "frames" in row else "data"
            url, is_image, own = chat_part(row) or (row.get(name), False, {k: v for k, v in row.items() if k != name})
            found.append(make_item(bytes_of(url, name, is_image, limits), {**asked, **own}, limits))
        except Refused as e:
            found.append(e)
    return found
