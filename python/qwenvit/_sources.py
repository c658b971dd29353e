# SPDX-License-Identifier: MIT
"""Turns everything that can be encoded (paths, bytes, open files, arrays and images) into the binding's
arguments."""

from __future__ import annotations

import os
import stat
import urllib.parse
from collections.abc import Sequence
from typing import Any, Protocol

from . import _check, _core, _decoder
from ._arrays import cuda_device, in_order, is_torch, shareable
from ._error import Error, error
from .media import (
    KINDS, TIMES_OF_FRAMES, FrameFiles, Options, bytes_of_data, image_kind, is_bytes, is_data, is_file, is_image_part, is_pil, options_of,
    plain,
)


class Array(Protocol):  # numpy's, torch's..
    def __dlpack__(self, *, stream: Any = None) -> Any: ...


class Image(Protocol):  # PIL's
    @property
    def __array_interface__(self) -> Any: ...


class File(Protocol):
    def read(self) -> bytes: ...


One = _check.Path | bytearray | memoryview | dict[str, Any] | Array | Image | File  # what encode() accepts as a source
Clip = Array | list[Any] | tuple[Any, ...]
# options that frames may have
OF_FRAMES = ("fps", "max_pixels", "min_pixels", "frames_indices", "total_num_frames", "timestamps")
# options that decoding a frame's file obeys
OF_DECODING = ("decode_memory", "decode_seconds", "max_source_pixels", "usual_codecs")
NOT_RESIZED = {"first_frame": True, "min_pixels": 1, "max_pixels": 1 << 30}
OPTIONS_OF_FILES = {"fps": 1.0}  # defaults for frames in files, the same as vLLM's and Qwen's
DECODE_MEMORY = 4 << 30  # bytes per clip, the default of decode_memory
PASSED_OVER = ("num_frames", "min_frames", "max_frames")  # options that are ignored for frames, which are already sampled


def _is_array(x: object) -> bool:
    return isinstance(x, memoryview) and x.ndim > 1 or hasattr(x, "__dlpack__") or hasattr(x, "__array_interface__")


def is_one(source: object) -> bool:
    """Whether this is a source, rather than an iterable of sources."""
    if isinstance(source, (str, os.PathLike, dict)) or is_bytes(source):
        return True
    return _is_array(source) or is_pil(source) or is_file(source)


def _must_be_image(data: bytes, is_path: bool, offset: int, place: int) -> None:
    """Raises Error for a file that is not an image. The decoder reports a file that cannot be read."""
    if is_path:
        try:
            if not stat.S_ISREG(os.stat(data).st_mode):
                return
            with open(data, "rb") as file:
                file.seek(offset)
                head = file.read(_core.HEAD)
        except OSError:
            return
    else:
        head = data[offset : offset + _core.HEAD]
    if head and image_kind(head) is None:
        raise error("QV_EFORMAT", f"source {place}: not an image of a known format; for a clip, use the type video_url")


# ---- options -------------------------------------------------------------------------------------


def _sampled(said: Options) -> tuple[float, list[float]]:
    """Returns (fps, timestamps) of frames from their frames_indices in a clip of total_num_frames, as
    transformers computes both from a clip's metadata."""
    places, fps = _check.reals(said.get("frames_indices", ()), "frames_indices"), said.get("fps")
    if not fps or not places or "timestamps" in said:
        raise error("QV_EINVAL", "frames: frames_indices and total_num_frames need the clip's fps, and exclude timestamps")
    total = _check.whole(said.get("total_num_frames"), "total_num_frames", 1, 1 << 31)
    if not 0 <= min(places) <= max(places) < total:
        raise error("QV_EINVAL", f"frames_indices range from {min(places):g} to {max(places):g}; they must be less than total_num_frames, {total}")
    return len(places) / total * fps, [place / fps for place in places]


def _seconds_of(own: Options, common: Options) -> tuple[float, list[float]]:
    """Returns (fps, timestamps) of frames: from their own dict, otherwise from the common options."""
    for said in (own, common):
        if "frames_indices" in said or "total_num_frames" in said:
            return _sampled({"fps": common.get("fps"), **said})
        if said.get("fps") and "timestamps" in said:
            raise error("QV_EINVAL", "frames: fps and timestamps cannot be used together")
        if said.get("fps") or "timestamps" in said:
            return said.get("fps", 0), _check.reals(said.get("timestamps", ()), "timestamps")
    return 0, []


# ---- keys ----------------------------------------------------------------------------------------


def _text_of(given: Any, what: str, place: int) -> str:
    """Returns a key, or a path as a key; bytes that are not UTF-8 are escaped with backslashes."""
    try:
        text = os.fsencode(given).decode("utf-8", "backslashreplace")
    except (TypeError, UnicodeEncodeError):
        text = ""
    if not text or "\0" in text:
        raise _check.wrong(f"source {place}: {what}", given, "a non-empty string without NUL")
    return text


def key_of(source: Any, place: int) -> str:
    """Returns a source's key, else its path, else its place."""
    source = plain(source)
    if isinstance(source, dict):
        if source.get("key") is not None:
            return _text_of(source["key"], "key", place)
        if "path" not in source:
            return str(place)
        source = source["path"]
        if is_data(source):
            return str(place)
        return _text_of(source, "path", place)
    is_path = isinstance(source, (str, os.PathLike)) and not is_data(source)
    return _text_of(source, "path", place) if is_path else str(place)


def local_path(path: _check.Path) -> bytes:
    """Returns the bytes of a path, which may be a file:// URL."""
    given = _check.path(path, "path")
    if not given.startswith(b"file://"):
        return given
    host, slash, rest = given[len(b"file://") :].partition(b"/")
    found = urllib.parse.unquote_to_bytes(slash + rest)
    if host not in (b"", b"localhost") or len(found) < 2 or b"\0" in found:
        raise _check.wrong("path", path, "a path, or a file:// URL on this machine such as file:///folder/clip.mp4")
    return found


# ---- frames --------------------------------------------------------------------------------------


def _array_of_pil(image: Any) -> memoryview:
    """Returns an image's upright RGB pixels, as transformers' load_image() does, so that its tokens
    equal those of its file. Transparency is dropped."""
    try:
        from PIL import ImageOps

        image = ImageOps.exif_transpose(image).convert("RGB")
        return memoryview(image.tobytes()).cast("B", (image.height, image.width, 3))
    except Exception as e:  # PIL reads the file here, by any of its plugins
        raise error("QV_EFORMAT", f"cannot read the PIL image: {e}") from None


def _is_encoded(frame: Any) -> bool:
    """Whether a frame is a file's path, bytes, data: URL, or an open file."""
    return isinstance(frame, (str, os.PathLike)) or is_bytes(frame) or is_file(frame) and not is_pil(frame)


def _has_files(frames: Any) -> bool:
    return isinstance(frames, (list, tuple)) and any(map(_is_encoded, frames))


def array_of_file(frame: Any, name: str, options: Options, n: int) -> Any:
    """Returns the pixels of one of n images in files, as encode() decodes an image. The decoded frames of a
    clip may use as much memory as a clip's decoder."""
    if is_data(frame):
        frame = bytes_of_data(frame, name)
    elif isinstance(frame, (str, os.PathLike)):
        try:
            with open(local_path(frame), "rb") as file:
                frame = file.read()
        except OSError as e:
            raise error("QV_EIO", f"{name}: cannot read the file: {e}") from None
    data = bytes(_read(frame, name) if is_file(frame) else frame)
    if image_kind(data) is None:
        raise error("QV_EFORMAT", f"{name}: not an image of a known format")
    asked = {k: options[k] for k in OF_DECODING if k in options}
    try:
        frames = _core.read_frames(_decoder.start(), data, False, 1, 1, 1, {**NOT_RESIZED, **asked})
    except Error as e:
        raise error(e.status, f"{name}: {str(e).removeprefix('the clip: ')}") from None
    *_, width, height = frames.source()
    most = options.get("decode_memory") or DECODE_MEMORY
    if n * width * height * 3 > most:
        raise error("QV_EINVAL", f"{name}: {n} frames of {width}x{height} need more than {most} bytes; send smaller frames")
    return shareable(frames.array(), name)[0]


def _array(frame: Any, name: str, options: Options, n: int) -> Any:
    """Returns an array of bytes as the binding accepts it."""
    if _is_encoded(frame):
        return array_of_file(frame, name, options, n)
    if is_pil(frame):
        return _array_of_pil(frame)
    frame, _ = shareable(frame, name)
    dtype = str(getattr(frame, "dtype", "uint8")).removeprefix("torch.")
    if dtype != "uint8":
        convert = ".to(torch.uint8)" if is_torch(frame) else '.astype("uint8")'
        scaled = f". For values in [0, 1]: (frames * 255).round(){convert}" if "float" in dtype else ""
        raise error("QV_EINVAL", f"{name}: dtype is {dtype}; it must be uint8, from 0 to 255{scaled}")
    return frame


def _frames(models: Sequence[_core.Model], frames: Any, is_image: bool, own: Options, common: Options) -> _core.Frames:
    """Returns Frames from an array or a PIL image, or from a list of these, which is a clip. Arrays on the GPU
    of one of the models are resized there."""
    options = {**common, **own}
    if isinstance(frames, (list, tuple)):
        arrays = [_array(frame, f"frames: frame {i}", options, len(frames)) for i, frame in enumerate(frames)]
    else:
        arrays = [_array(frames, "frames", options, 1)]
        is_image = is_image or is_pil(frames) or getattr(arrays[0], "ndim", 0) in (2, 3)
    fps, seconds = (0, []) if is_image else _seconds_of(own, common)
    if not fps and not seconds and not is_image and _has_files(frames):
        fps = OPTIONS_OF_FILES["fps"]
    pixels = {k: options[k] for k in ("min_pixels", "max_pixels") if k in options}
    device = cuda_device(arrays[0]) if arrays else -1
    model, stream = models[0], 0
    for there in models if device >= 0 else ():
        if number := _core.frames_stream(there, device):
            model, stream = there, number
    arrays = [in_order(a, stream) if stream and cuda_device(a) == device else a for a in arrays]
    return _core.prepare(model, arrays, is_image, {**pixels, "fps": fps}, seconds)


# ---- sources -------------------------------------------------------------------------------------


def _read(file: Any, name: str) -> Any:
    try:
        data = file.read()
    except Exception as e:  # the caller's object may raise anything
        raise error("QV_EIO", f"{name}: cannot read the file: {e}") from None
    if not is_bytes(data):
        raise error("QV_EINVAL", f'{name}: read() returned {_check.kind_of(data)}; open the file with "rb"')
    return data


def _take_dict(source: Options, place: int) -> tuple[Any, str, Options]:
    """Returns the source in a dict, its kind, and the dict's options."""
    own = {k: v for k, v in source.items() if k != "key"}
    kinds = [k for k in KINDS if k in own]
    if len(kinds) != 1:
        raise error("QV_EINVAL", f"source {place}: a dict must have exactly one of {', '.join(KINDS)}")
    [kind] = kinds
    inner = own.pop(kind)
    if kind == "bytes" and not (is_bytes(inner) or is_file(inner)):
        raise _check.wrong(f"source {place}: bytes", _check.kind_of(inner), "bytes or an open file")
    if kind == "path":
        inner = os.fsdecode(inner)
    return inner, kind, options_of(own)


def describe(
    models: Sequence[_core.Model], source: Any, place: int, options: Options, common: Options | None = None
) -> tuple[Any, bool, Options, _core.Decoder | None]:
    """Returns a source as the binding accepts it (a path's bytes, a file's bytes, or Frames), whether it is a
    path, its options, and the decoder for a file. common: options of all sources; frames ignore those that only
    apply to files."""
    kind: str | None = None
    own: Options = {}
    wants_image, source = is_image_part(source), plain(source)
    if isinstance(source, dict):
        source, kind, own = _take_dict(source, place)
    if is_data(source):
        source = bytes_of_data(source, f"source {place}")
    if isinstance(source, FrameFiles):
        if wants_image:
            raise error("QV_EFORMAT", f"source {place}: a clip's frames are not an image; for a clip, use the type video_url")
        source, kind = list(source.files()), "frames"
    is_path = isinstance(source, (str, os.PathLike))
    common = {**(common or {}), **options}
    if is_path or is_bytes(source) or is_file(source) and not is_pil(source):
        if odd := [k for k in TIMES_OF_FRAMES if k in own or k in common]:
            raise error("QV_EINVAL", f"source {place}: option {odd[0]} is for frames only; a file has its own times")
        _text_of(source, "path", place) if is_path else None
        data = local_path(source) if is_path else bytes(_read(source, f"source {place}") if is_file(source) else source)
        if wants_image:
            _must_be_image(data, is_path, {**common, **own}.get("offset") or 0, place)
        return data, is_path, {**common, **own}, _decoder.start()
    if isinstance(source, _core.Frames):
        return source, False, {}, None
    if _is_array(source) or is_pil(source) or isinstance(source, (list, tuple)):
        if "timestamps" not in common and kind == "image" and isinstance(source, (list, tuple)):
            raise error("QV_EINVAL", f"source {place}: an image must be one array or PIL image, not a list")
        of_files = OF_DECODING if _has_files(source) else ()
        if {*options, *own} - {*OF_FRAMES, *PASSED_OVER, *of_files}:
            raise error("QV_EINVAL", f"frames accept only the options {', '.join(OF_FRAMES[:-1])} and {OF_FRAMES[-1]}")
        return _frames(models, source, kind == "image", own, common), False, {}, None
    raise error(
        "QV_EINVAL",
        f"source {place} is {_check.kind_of(source)}; it must be a path, bytes, an open file, frames (an array or "
        "a list of arrays) or a PIL image",
    )
