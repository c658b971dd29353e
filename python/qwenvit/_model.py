# SPDX-License-Identifier: MIT
"""load() and Model."""

from __future__ import annotations

import math
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, Protocol, overload

from . import _check, _core, _sources, _stream, media
from ._arrays import current_stream, integers, is_torch, no_gradient, number_of, shareable
from ._error import Error, error
from ._tokens import Dtype, Outputs, Pixels, Tensors, Tokens, dtype_name

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._check import Path
    from ._options import ClipOptions
    from ._sources import Clip, One
    from ._stream import Progress


class Device(Protocol):  # torch's
    @property
    def type(self) -> str: ...
    @property
    def index(self) -> Any: ...


BACKENDS = ("cuda", "metal", "cpu", "ref")  # in the order in which "auto" tries them
MOST_THREADS = 1024


def _user_cache(name: str) -> str:
    """Returns the cache folder that the command uses too; "" if there is no home folder."""
    cache, home = os.environ.get("XDG_CACHE_HOME", ""), os.environ.get("HOME", "")
    folder = cache if cache.startswith("/") else os.path.join(home, ".cache") if home.startswith("/") else ""
    return folder and os.path.join(folder, "qwenvit", name)


def load(
    path: Path,
    backend: Literal["auto", "cuda", "metal", "cpu", "ref"] = "auto",
    dtype: Dtype = None,
    device: int | str | Device | None = 0,
    *,
    threads: int = 0,
    stream: Any = None,
    kernel_folder: Path | None = None,
    image_mean: Any = None,
    image_std: Any = None,
) -> Model:
    """Loads the vision tower of a checkpoint onto a device, and returns a Model.

    path: a Hugging Face checkpoint folder; or a GGUF file (mmproj) made by llama.cpp's converter,
        or a folder that contains one and no safetensors.
    backend: "auto", "cuda", "metal", "cpu" or "ref" (plain C, slow).
    dtype: "f32", "bf16", or None for the better one on the device.
    device: an index; or "cpu", "cuda", "cuda:1" and so on, or a torch.device; all but an index
        select the backend too.
    threads: CPU threads; 0 for every core.
    stream: the CUDA stream on which all work is enqueued, as an integer or a torch stream. With a
        stream, forward() of a CUDA tensor enqueues its work and returns. The work follows torch's
        current stream; if the two streams differ, events order them. Without a stream, forward()
        waits until the work is done. torch's default stream is replaced by a new one.
    kernel_folder: the folder that keeps the kernels compiled by cuDNN for the next process; None
        for the user's cache folder, which the command uses too; "" for none.
    image_mean, image_std: three numbers each, for images and clips, to replace the checkpoint's.

    The model's info["note"] lists what a GGUF file leaves open, and the source of each value. A GGUF
    file whose means differ from its family's causes a UserWarning, unless image_mean and image_std
    are set. So does a folder without preprocessor files: images and clips then use the sizes and
    means in info["model_warning"], and transformers refuses the folder.

    Raises Error if the folder or the device does not exist, or the family is unknown; also for
    several CPU threads in a process forked from one that had several.
    """
    folder = _check.path(path, "path")
    place, index = _place(_check.text(backend, "backend"), device)
    threads = _check.whole(threads, "threads", 0, MOST_THREADS)
    stream = _check.whole(number_of(stream), "stream", 0, (1 << 64) - 1)
    kernels = _user_cache("kernels") if kernel_folder is None else kernel_folder
    kernels = _check.optional_path(kernels, "kernel_folder")
    _refuse_lost_threads(place, threads)
    lacking = _lacking(place)
    if lacking and place == "cuda":
        raise error("QV_ENODEVICE", lacking)
    norms = _three(image_mean, "image_mean"), _three(image_std, "image_std")
    made = _core.Model(folder, place, index, dtype_name(dtype), threads, stream, kernels, *norms)
    model = Model(made, stream)
    for text in filter(None, (model.info["warning"], model.info["model_warning"])):
        warnings.warn(text, stacklevel=2)
    if model.info["backend"] == "cpu" and threads != 1:
        _with_threads.add(os.getpid())
    if lacking:  # the core knows only the first of these
        model.info["passed_over"] = f"cuda: {lacking}"
    return model


def _three(values: Any, name: str) -> list[float]:
    """Returns a colour's numbers as a list; None becomes an empty one."""
    try:
        numbers = [] if values is None else [float(v) for v in values]
    except (TypeError, ValueError):
        numbers = [math.nan]
    if numbers and (len(numbers) != 3 or not all(map(math.isfinite, numbers))) or values is not None and not numbers:
        raise _check.wrong(name, values, "three finite numbers, of red, green and blue")
    return numbers


def _place(backend: str, device: Any) -> tuple[str, int]:
    """Returns (backend, index) from load()'s two arguments, and either may be "cuda:1"."""
    if ":" in backend and device in (0, None):
        backend, device = "auto", backend
    kind: Any = getattr(device, "type", None)  # a torch.device
    number = getattr(device, "index", None)
    if isinstance(device, str):
        named = re.fullmatch(r"([a-z]+)(?::([0-9]{1,9}))?", device)
        kind, number = (named[1], named[2] and int(named[2])) if named else (device, None)
    elif not isinstance(kind, str):
        kind, number = None, _check.whole(0 if device is None else device, "device", 0, (1 << 31) - 1)
    kind = {"mps": "metal"}.get(kind, kind)  # torch's name of the backend
    if kind is not None and kind not in BACKENDS:
        names = ", ".join(map(repr, BACKENDS))
        raise _check.wrong("device", device, f'an index, a name ({names}, "cuda:1"..) or a torch.device of these')
    if kind is not None and backend not in ("auto", kind):
        raise error("QV_EINVAL", f"backend is {backend!r} and device {str(device)!r}: give only one, or make them agree")
    return kind or backend, _current_device(kind) if number is None else number


def _current_device(kind: str | None) -> int:
    """Returns torch's current CUDA device, which each process sets for itself."""
    torch = sys.modules.get("torch")
    return torch.cuda.current_device() if kind == "cuda" and torch and torch.cuda.is_initialized() else 0


# processes in which a CPU's threads have computed: this one, and those that it was forked from
_with_threads: set[int] = set()


def _refuse_lost_threads(backend: str, threads: int) -> None:
    """Refuses several threads in a forked process: a fork does not copy OpenMP's threads, and OpenMP
    would wait for them for ever."""
    if backend in ("auto", "cpu") and threads != 1 and _with_threads and os.getpid() not in _with_threads:
        raise error(
            "QV_ESTATE",
            "this process was forked from one that computed on several CPU threads, and a fork does not copy "
            'threads: load with threads=1, or start workers with "spawn"',
        )


def devices() -> list[dict[str, Any]]:
    """Returns the devices that load() can use. Each device is a dict with backend, index, device (its
    name and library versions), dtype (the meaning of dtype=None there), dtype_reason and warning.
    Each unavailable backend is a dict with backend and error, a message."""
    found: list[dict[str, Any]] = []
    for backend in BACKENDS:
        words = _lacking(backend)
        try:
            if words:
                raise error("QV_ENODEVICE", words)
            for index in range(1 << 10):
                found.append({"index": index, **_core.look_at_device(backend, index)})
        except Error as e:
            if not found or found[-1]["backend"] != backend:
                found.append({"backend": backend, "error": str(e)})
    return found


def _lacking(backend: str) -> str:
    """Returns a message about missing NVIDIA libraries that the backend needs, or ""."""
    if backend not in ("auto", "cuda"):
        return ""
    from . import _cuda  # loads the libraries that are there

    return _cuda.prepare()


class Model:
    """A vision tower on a device, made by load(). encode() accepts files and frames; forward() accepts
    patches.

    Any threads may call it at once. The first call opens a job, which stays open. It decodes the
    sources of all calls in parallel and packs them into the same chunks; forward() and encode() of
    one source take turns with these chunks. In a forked process every call raises Error. A Model
    used as a context manager is closed at the end.
    """

    def __init__(self, core: _core.Model, stream: int = 0) -> None:
        if not isinstance(core, _core.Model):
            raise error("QV_EINVAL", "create a Model with qwenvit.load(path)")
        self._core, self._jobs = core, _stream.Jobs(core)
        self._stream = stream
        self.info: dict[str, Any] = core.info()

    def __repr__(self) -> str:
        i = self.info
        return f"<qwenvit.Model {i['model_type']}, {i['dtype']} on {i['backend']}: {i['device']}>"

    def close(self) -> None:
        """Frees the device's memory as soon as no call, generator or encoder uses it. Later calls
        raise Error."""
        self._core.close()
        self._jobs.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- patches -----------------------------------------------------------------------------------

    def forward(self, pixel_values: Any, grid_thw: Any, dtype: Dtype = "f32", *, hidden_states: bool = False) -> Outputs:
        """Computes tokens from patches.

        pixel_values: [patches, row_dim], contiguous, as transformers' processors return them: float32
            or bfloat16 (in numpy: ml_dtypes.bfloat16, or uint16 with its bits), from numpy, torch
            or anything with DLPack. For a CUDA model they may be in the device's memory.
        grid_thw: [items, 3].
        dtype: the tokens' dtype, "f32" or "bf16".
        hidden_states: whether to return the last block's rows too (see Tokens).

        Returns an object with `tokens`, `deepstack` and `hidden_states` (or None). For a torch tensor they
        are tensors on the same device; otherwise the object is Tokens, with arrays on the host. Ctrl-C
        ends the call after the current chunk.
        """
        hidden = _check.flag(hidden_states, "hidden_states")
        if is_torch(pixel_values):
            return self._forward_torch(pixel_values, grid_thw, dtype_name(dtype), hidden)
        rows, is_bf16 = shareable(pixel_values, "pixel_values")
        grid = [v for row in integers(grid_thw, "grid_thw") for v in row]
        core = self._core.forward(rows, is_bf16, grid, dtype_name(dtype), hidden)
        return Tokens(core, self.info["model_type"])

    def _forward_torch(self, x: Any, grid_thw: Any, dtype: str, hidden: bool) -> Outputs:
        import torch

        no_gradient(x, "pixel_values")  # to_dlpack() does not check this
        outs, rows = self._encode_torch(x, grid_thw, dtype, hidden, torch)
        tokens, *deepstack = outs.unbind()
        result = Tensors(tokens, deepstack)
        result.hidden_states = rows
        return result

    def _encode_torch(self, x: Any, grid_thw: Any, dtype: str, hidden: bool, torch: Any) -> tuple[Any, Any | None]:
        """Returns [1 + deepstack, n, out_hidden], and the hidden states or None. A call into torch
        takes as long as a kernel while its code is not cached, so few calls precede the core's, and
        memory is allocated while the device works."""
        outs: list[Any] = []
        between = self._between(x, torch)
        if between:
            self._follow(x, *between)

        def allocate(n: int) -> tuple[int, int]:
            shapes: list[tuple[int, ...]] = [(1 + self.info["n_deepstack"], n, self.info["out_hidden"])]
            if hidden:
                shapes.append((x.shape[0], self.info["hidden"]))
            for shape in shapes:
                outs.append(x.new_empty(shape, dtype=torch.bfloat16 if dtype == "bf16" else torch.float32))
                if between:  # another thread's work on the caller's stream may still be using this memory
                    self._follow(outs[-1], *between)
            return outs[0].data_ptr(), outs[1].data_ptr() if hidden else 0

        grid = [v for row in integers(grid_thw, "grid_thw") for v in row]
        try:
            shared = torch.utils.dlpack.to_dlpack(x)
        except Exception as e:  # for a sparse tensor, for example
            raise error("QV_EINVAL", f"pixel_values: cannot share this tensor: {e}") from None
        try:
            self._core.forward_at(shared, grid, allocate, dtype, hidden)
        finally:
            if between and between[0]:
                between[1].wait_stream(between[0])
        return outs[0], outs[1] if hidden else None

    def _between(self, x: Any, torch: Any) -> tuple[Any, Any] | None:
        """Returns (the model's stream, the caller's stream, whose work makes x) if the two differ. The
        former is None for a model that was loaded without a stream: it uses several."""
        if not x.is_cuda or self._stream and self._stream == current_stream(torch, x.get_device()):
            return None
        own = torch.cuda.ExternalStream(self._stream, x.device) if self._stream else None
        return own, torch.cuda.current_stream(x.device)

    @staticmethod
    def _follow(tensor: Any, own: Any, caller: Any) -> None:
        """Orders the model's next work after the caller's stream, which has used the tensor's memory
        until now. An event does so without blocking the host. A model without a stream waits for
        its work anyway, so then the host waits here.

        The next owner of the memory gets it on the caller's stream, which waits for the model's
        stream at the end. An exception may prevent that wait, so torch records the use."""
        if own:
            own.wait_stream(caller)
            tensor.record_stream(own)
        else:
            caller.synchronize()

    # ---- files and frames --------------------------------------------------------------------------

    @overload
    def encode(
        self, source: One | None = None, *, frames: Clip | None = None, dtype: Dtype = "f32", progress: Progress = None,
        errors: Literal["raise", "yield"] = "raise", ordered: bool = True, decoders: int = 0,
        hidden_states: bool = False, **options: Unpack[ClipOptions],
    ) -> Tokens: ...
    @overload
    def encode(
        self, source: Iterable[Any], *, frames: None = None, dtype: Dtype = "f32", progress: Progress = None,
        errors: Literal["raise"] = "raise", ordered: bool = True, decoders: int = 0,
        hidden_states: bool = False, **options: Unpack[ClipOptions],
    ) -> Iterator[Tokens]: ...
    @overload
    def encode(
        self, source: Iterable[Any], *, frames: None = None, dtype: Dtype = "f32", progress: Progress = None,
        errors: Literal["yield"], ordered: bool = True, decoders: int = 0,
        hidden_states: bool = False, **options: Unpack[ClipOptions],
    ) -> Iterator[Tokens | Error]: ...
    def encode(
        self, source: Any = None, *, frames: Clip | None = None, dtype: Dtype = "f32", progress: Progress = None,
        errors: str = "raise", ordered: bool = True, decoders: int = 0,
        hidden_states: bool = False, **options: Unpack[ClipOptions],
    ) -> Any:
        """Returns the Tokens of one clip or image, or a generator of the Tokens of many.

        source: one of these, or an iterable of them:
        - a path, its file:// URL, or a data: URL with the bytes of a file;
        - the bytes of a file, or an open file;
        - frames: an array of bytes [frames, height, width, 3] or [frames, 3, height, width];
          without the first axis it is an image. 4 channels are RGBA, whose alpha is dropped; 1
          channel is gray. An array on the model's NVIDIA GPU is resized there;
        - a PIL image;
        - a dict with "path", "bytes", "frames" or "image", and optionally "key" (a non-empty string)
          and options for this source; or an entry of a chat's content, {"type": "video",
          "video": ..} or {"type": "image_url", "image_url": {"url": ..}}. A message, or a list of
          messages, stands for the images and clips in it, in their order.
        frames: instead of source, one clip as a list of arrays, PIL images, or images' paths or bytes,
            or as one array. In an iterable, such a list is a clip too, whereas a flat list is many
            images. Frames are not sampled again: all are used, resized as the model's processor does it.
            Their seconds come from fps (for files: 1 by default) or timestamps, or from
            frames_indices, their places in a clip of total_num_frames frames at fps.
        dtype: the tokens' dtype, "f32" or "bf16".
        progress: True for a line on the terminal, or a function that is called with a dict. Its "limit"
            names the stage that the other stages wait for: "decode", "device", "sink" (the reader of the
            results) or "input" (the iterable of sources).
        errors: "raise" stops at a source that fails; "yield" yields its Error in its place, with
            .key and .index, and continues.
        ordered: whether the results of many sources come in the order of the sources; if False,
            they come as they are finished.
        decoders: how many clips are decoded at once; 0: one per core.
        hidden_states: whether to return the last block's rows too (see Tokens).
        options: start and end, in seconds, to cut a clip; fps, num_frames, min_frames, max_frames,
            min_pixels, max_pixels, total_pixels; like ("transformers" or "qwen-vl-utils");
            first_frame (True: the first frame of an animation or clip, as an image); decode ("cpu",
            or "gpu" for the decoders of NVIDIA GPU number gpu; "auto", the default: both, for many
            clips and a CUDA model); threads, decode_seconds, decode_memory; max_seconds (a longer
            clip fails), max_source_pixels (a file with larger frames fails), usual_codecs (True: a file
            with a rare codec fails); offset and length (the clip is these bytes of its file).

        Many sources are decoded in parallel and packed into full chunks. Each result has its source's
        index and key; the key is by default the path, otherwise the index. Besides the work in progress,
        at most 1 GiB of sources and results and 64 MiB per decoder wait to be read.
        """
        source = media.media_of(_given(source, frames))
        one = _sources.is_one(source)
        if progress is not None and not isinstance(progress, bool) and not callable(progress):
            raise _check.wrong("progress", progress, "True, False or a function")
        how = _stream.How(
            _check.one_of(dtype_name(dtype), "dtype", ("f32", "bf16")), progress,
            _check.one_of(errors, "errors", ("raise", "yield")), _check.flag(ordered, "ordered"),
            _check.whole(decoders, "decoders", 0, MOST_THREADS), 1 if one else _length(source),
            _check.flag(hidden_states, "hidden_states"),
        )
        asked = media.options_of({**options})
        if not one and (odd := [k for k in media.TIMES_OF_FRAMES if k in asked]):
            raise error("QV_EINVAL", f"option {odd[0]} describes one clip: put it into the clip's dict, next to frames")
        results = _stream.results(self._jobs, self.info["model_type"], [source] if one else source, how, asked, one)
        if not one:
            return results
        [result] = results
        return result

    def preprocess(self, source: One | None = None, *, frames: Clip | None = None, **options: Unpack[ClipOptions]) -> Pixels:
        """Returns (pixel_values, grid_thw) of one clip or image, as transformers' processors return
        them and forward() accepts them: float32 [patches, row_dim] and int64 [1, 3].

        source, frames, options: as in encode().

        The result also has key, is_image, timestamps, sampled_fps, second_per_grid_ts and
        damaged_frames, as in Tokens.
        """
        source = media.media_of(_given(source, frames))
        if not _sources.is_one(source):
            raise error("QV_EINVAL", "preprocess() accepts one source; call it once per source")
        key = _sources.key_of(source, 0)
        data, is_path, asked, decoder = _sources.describe([self._core], source, 0, media.options_of({**options}))
        return Pixels._of(_core.preprocess(self._core, decoder, key, data, is_path, asked))


def _given(source: Any, frames: Any) -> Any:
    if (source is None) == (frames is None):
        raise error("QV_EINVAL", "pass either a source or frames=")
    if frames is not None:
        return {"frames": frames}
    if not _sources.is_one(source) and not hasattr(type(source), "__iter__") and not hasattr(source, "__getitem__"):
        raise _check.wrong("source", source, "a path, bytes, frames, an image, or an iterable of these")
    return source


def _length(sources: Any) -> int | None:
    """Returns the number of sources, or None if it is unknown."""
    try:
        return len(sources)
    except TypeError:
        return None
