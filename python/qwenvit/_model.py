# SPDX-License-Identifier: MIT
"""load, Model and Tokens."""

import collections
import math
import os
import re
import sys
import warnings

from . import _check, _core, _sources, _stream
from ._arrays import current_stream, error, integers, is_torch, no_gradient, numpy, shareable, to_numpy
from ._adapters import Adapters

BACKENDS = ("cuda", "metal", "cpu", "ref")  # the one that "auto" would rather have first
MOST_THREADS = 1024


def _user_cache(name):
    """In the folder that the command has as well; "" where there is no home."""
    cache, home = os.environ.get("XDG_CACHE_HOME", ""), os.environ.get("HOME", "")
    folder = cache if cache.startswith("/") else os.path.join(home, ".cache") if home.startswith("/") else ""
    return folder and os.path.join(folder, "qwenvit", name)


def load(
    path, backend="auto", dtype=None, device=0, *, threads=0, stream=None, tune_file=None, kernel_folder=None,
    image_mean=None, image_std=None, weights="bf16",
):
    """Loads the vision tower of a Hugging Face checkpoint folder, or of a GGUF file as llama.cpp's converter
    makes it (mmproj), which path names or which is the one in a folder without safetensors.

    backend: "auto", "cuda", "metal", "cpu" or "ref" (plain C, slow). dtype: "f32", "bf16", or None for
    what suits the device. device: its index; or "cuda:1", "cuda", "cpu".., or a torch.device, which say the
    backend as well. threads: of a CPU; 0 for every core. stream: a CUDA stream
    (an integer, or torch's) on which all work is enqueued. tune_file: measured choices, kept there.
    kernel_folder: of kernels that cuDNN compiled, for the next process; "" for none, None for the user's cache
    folder, as the command has it. image_mean, image_std: three numbers each, of images and clips, in place of
    the checkpoint's. weights: "stored" keeps matrices that a checkpoint holds quantised in
    groups (MLX's) packed as they are, which takes less memory and more time and gives the same tokens;
    "bf16" widens them to the dtype.

    info["note"] of the model says what a GGUF file leaves open and whence that was taken. One with means that
    its family does not have warns (UserWarning), unless both are given.

    Raises Error: no such folder, a family that is not known, no such device; several threads of a CPU in a
    process forked off one that had them.
    """
    folder = _check.path(path, "path")
    backend, index = _place(_check.text(backend, "backend"), device)
    threads = _check.whole(threads, "threads", 0, MOST_THREADS)
    stream = getattr(stream, "cuda_stream", 0 if stream is None else stream)
    stream = _check.whole(stream, "stream", 0, (1 << 64) - 1)
    kernels = _user_cache("kernels") if kernel_folder is None else kernel_folder
    files = _check.optional_path(tune_file, "tune_file"), _check.optional_path(kernels, "kernel_folder")
    stored = _check.one_of(weights, "weights", ("bf16", "stored")) == "stored"
    _refuse_lost_threads(backend, threads)
    lacking = _lacking(backend)
    if lacking and backend == "cuda":
        raise error("QV_ENODEVICE", lacking)
    norms = _three(image_mean, "image_mean"), _three(image_std, "image_std")
    made = _core.Model(folder, backend, index, _name(dtype), threads, stream, *files, *norms, stored)
    model = Model(made, stream)
    if model.info["model_warning"]:
        warnings.warn(model.info["model_warning"], stacklevel=2)
    if model.info["backend"] == "cpu" and threads != 1:
        _with_threads.add(os.getpid())
    if lacking:  # the core knows the first of them alone
        model.info["passed_over"] = f"cuda: {lacking}"
    return model


def _three(values, name):
    """A colour's numbers as a list; None is an empty one."""
    try:
        numbers = [] if values is None else [float(v) for v in values]
    except (TypeError, ValueError):
        numbers = [math.nan]
    if numbers and (len(numbers) != 3 or not all(map(math.isfinite, numbers))) or values is not None and not numbers:
        raise _check.wrong(name, values, "three finite numbers, of red, green and blue")
    return numbers


def _place(backend, device):
    """(backend, index) by both arguments of load()."""
    kind, number = getattr(device, "type", None), getattr(device, "index", None)  # torch's
    if isinstance(device, str):
        named = re.fullmatch(r"([a-z]+)(?::([0-9]{1,9}))?", device)
        kind, number = (named[1], named[2] and int(named[2])) if named else (device, None)
    elif not isinstance(kind, str):
        kind, number = None, _check.whole(0 if device is None else device, "device", 0, (1 << 31) - 1)
    kind = {"mps": "metal"}.get(kind, kind)  # as torch calls it
    if kind is not None and kind not in BACKENDS:
        named = ", ".join(map(repr, BACKENDS))
        raise _check.wrong("device", device, f'an index, a name ({named}, "cuda:1"..) or a torch.device of these')
    if kind is not None and backend not in ("auto", kind):
        raise error("QV_EINVAL", f"backend is {backend!r} and device {str(device)!r}: say one of them, or the same")
    return kind or backend, _current_device(kind) if number is None else number


def _current_device(kind):
    """torch's, of its processes of which each has set its own."""
    torch = sys.modules.get("torch")
    return torch.cuda.current_device() if kind == "cuda" and torch and torch.cuda.is_initialized() else 0


_with_threads = set()  # this process, and those it was forked off, if a CPU's threads computed there


def _refuse_lost_threads(backend, threads):
    """OpenMP's threads do not come along in a fork, and it waits for them without end."""
    if backend in ("auto", "cpu") and threads != 1 and _with_threads and os.getpid() not in _with_threads:
        raise error(
            "QV_ESTATE",
            "this process was forked off one that computed on several threads of its CPU, which do not come "
            'along: load with threads=1, or start workers by "spawn"',
        )


def devices():
    """What load() could run on: a dict for each device, with backend, index, device (its name, with library
    versions), dtype (what None means there), dtype_reason and warning; and for each backend that is not here
    one with backend and error, in words."""
    found = []
    for backend in BACKENDS:
        words = _lacking(backend)
        try:
            if words:
                raise error("QV_ENODEVICE", words)
            for index in range(1 << 10):
                found.append({"index": index, **_core.look_at_device(backend, index)})
        except _core.Error as e:
            if not found or found[-1]["backend"] != backend:
                found.append({"backend": backend, "error": str(e)})
    return found


def _lacking(backend):
    """What NVIDIA's libraries lack for a backend that wants them, in words."""
    if backend not in ("auto", "cuda"):
        return ""
    from . import _cuda  # loads what there is

    return _cuda.prepare()


def _name(dtype):
    """torch.bfloat16, "bf16", numpy.float32, None..: as the library calls it."""
    if dtype is None:
        return "auto"
    text = _check.utf8(getattr(dtype, "__name__", dtype)).removeprefix("torch.")
    return {"bfloat16": "bf16", "float32": "f32", "float": "f32"}.get(text, text)


class Tokens(Adapters):
    """The vision tokens of a clip or an image, or of the items of a forward().

    tokens: [n, out_hidden]; deepstack: a list of as many [n, out_hidden] as the family has; grid_thw:
    int64 [items, 3] (frame pairs, patch rows, patch columns); timestamps: float64 [frames], the seconds
    of the sampled frames, or None; key, index: of encode(), which source, and its place among them.
    is_image: whether it is one; None of forward(), which does not know. sampled_fps, second_per_grid_ts: of a clip's file, the frames a second
    that were sampled, and the seconds of a frame pair as Qwen2.5-VL's processor has them; else None.
    damaged_frames: how many could not be decoded, and are the one before them again; damage: the same in the
    words of the command, "" where there are none. remark: what is not to be expected of an image's pixels, as that
    gray of 16 bits is white from level 255 up; "" for nothing.

    Arrays are numpy's and share memory with this object. bf16 is ml_dtypes.bfloat16 where that package is
    installed, else uint16 with the same bits; torch() gives tensors of bfloat16 in any case. Without
    numpy they are objects with DLPack and a buffer.
    """

    def __init__(self, core, model_type=None):
        self._core, self.model_type = core, model_type

    def _matrix(self, i):
        bf16 = self._core.dtype == "bf16"
        return to_numpy(self._core.matrix(i, bf16), bf16)

    key = property(lambda self: self._core.key)
    index = property(lambda self: self._core.index if self._core.key else None)
    dtype = property(lambda self: self._core.dtype)
    is_image = property(lambda self: self._core.is_image if self._core.key else None)
    sampled_fps = property(lambda self: self._core.sampled_fps or None)
    second_per_grid_ts = property(lambda self: self._core.pair_seconds or None)
    damaged_frames = property(lambda self: self._core.damaged_frames)
    remark = property(lambda self: self._core.remark)
    tokens = property(lambda self: self._matrix(0))
    grid_thw = property(lambda self: to_numpy(self._core.grid_thw()))

    @property
    def deepstack(self):
        return [self._matrix(1 + i) for i in range(self._core.n_deepstack)]

    @property
    def timestamps(self):
        seconds = self._core.timestamps()
        return None if seconds is None else to_numpy(seconds)

    def __len__(self):
        return self._core.n

    def __repr__(self):
        c = self._core
        damage = f", {self.damage}" if self.damage else ""
        return f"<qwenvit.Tokens [{c.n}, {c.width}] {c.dtype}, {c.n_deepstack} deepstack, {c.key!r}{damage}>"

    def torch(self):
        """(tokens, deepstack) as tensors on the host, without a copy."""
        import torch

        all_ = [torch.from_dlpack(self._core.matrix(i, False)) for i in range(1 + self._core.n_deepstack)]
        return all_[0], all_[1:]

    def packed(self):
        """[n, out_hidden * (1 + deepstack)]: tokens, then DeepStack's outputs beside them: the matrix
        that vLLM and SGLang take. A copy."""
        np = numpy()
        if np is None:
            raise error("QV_EUNSUPPORTED", "packed() needs numpy")
        return np.concatenate([self.tokens, *self.deepstack], axis=1)

    def save(self, path, metadata=None):
        """Writes a safetensors file, whole or not at all, as `qwenvit encode` does: tokens, deepstack.0..,
        grid_thw, timestamps. metadata: texts by name, to be added."""
        texts = {"format": "qwenvit", "qwenvit_version": _core.version, "source": self.key}
        if self.index is not None:
            texts["damaged_frames"] = str(self.damaged_frames)
        if metadata is not None and not isinstance(metadata, dict):
            raise _check.wrong("metadata", metadata, "a dict of texts")
        texts.update(metadata or {})
        pairs = [(_check.utf8(k), _check.utf8(v)) for k, v in texts.items()]
        self._core.save(_check.path(path, "path"), pairs)


class Model:
    """A vision tower on a device: encode() files and frames, forward() patches. load() makes them.

    Any thread may call it; one call runs at a time. In a process that was forked it raises Error. As a context
    manager it is closed at the end.
    """

    def __init__(self, core, stream=0):
        if not isinstance(core, _core.Model):
            raise error("QV_EINVAL", "qwenvit.load(path) makes a Model")
        self._core = core
        self._stream = stream
        self.info = core.info()

    def __repr__(self):
        i = self.info
        return f"<qwenvit.Model {i['model_type']}, {i['dtype']} on {i['backend']}: {i['device']}>"

    def close(self):
        """Frees the device's memory now. Later calls raise Error."""
        self._core.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # ---- patches -----------------------------------------------------------------------------------

    def forward(self, pixel_values, grid_thw, dtype="f32"):
        """Patches to tokens.

        pixel_values: [patches, row_dim] as transformers' processors make them, float32 or bfloat16 (in
        numpy: ml_dtypes.bfloat16, or uint16 with its bits), contiguous; numpy, torch or anything with
        DLPack; on a CUDA model in that device's memory too. grid_thw: [items, 3]. dtype: of the tokens,
        "f32" or "bf16".

        torch's tensors come back as torch's, on the same device, as (tokens, deepstack); all else as
        Tokens on the host. Ctrl-C ends it behind the chunk that is under way.
        """
        if is_torch(pixel_values):
            return self._forward_torch(pixel_values, grid_thw, _name(dtype))
        rows, is_bf16 = shareable(pixel_values, "pixel_values")
        grid = [v for row in integers(grid_thw, "grid_thw") for v in row]
        core = self._core.forward(rows, is_bf16, grid, _name(dtype))
        return Tokens(core, self.info["model_type"])

    def _forward_torch(self, x, grid_thw, dtype):
        import torch

        if dtype not in ("f32", "bf16"):
            raise error("QV_EINVAL", f"dtype is {dtype!r}; must be 'f32' or 'bf16'")
        no_gradient(x, "pixel_values")  # to_dlpack() does not look
        try:
            outs = self._encode_torch(x, grid_thw, dtype, torch)
        except Exception:
            self._must_be_rows(x, torch)  # has better words
            raise
        tokens, *deepstack = outs.unbind()
        return tokens, deepstack

    def _encode_torch(self, x, grid_thw, dtype, torch):
        """[1 + deepstack, n, out_hidden]. Where its code is in no cache any function of torch's takes as long as
        a kernel: few are called before the core, and memory is taken while the device is at work."""
        outs, index = None, x.get_device()  # -1: the host

        def allocate(n):
            nonlocal outs
            shape = 1 + self.info["n_deepstack"], n, self.info["out_hidden"]
            outs = x.new_empty(shape, dtype=torch.bfloat16 if dtype == "bf16" else torch.float32)
            return outs.data_ptr()

        grid = [v for row in integers(grid_thw, "grid_thw") for v in row]
        own = index < 0 or self._stream and self._stream == current_stream(torch, index)
        if not own:  # else in the order of the caller's stream
            torch.cuda.current_stream(x.device).synchronize()
        self._core.forward_at(torch.utils.dlpack.to_dlpack(x), grid, allocate, dtype)
        if not own and self._stream:
            torch.cuda.ExternalStream(self._stream, x.device).synchronize()
        return outs

    def _must_be_rows(self, x, torch):
        """What can be wrong with torch's rows, in its words."""
        dim, backend, where = self.info["row_dim"], self.info["backend"], x.device.type
        wrong = None
        if x.dtype not in (torch.float32, torch.bfloat16):
            wrong = f"dtype must be float32 or bfloat16; {x.dtype} came"
        elif x.ndim != 2 or x.shape[1] != dim:
            wrong = f"must be [patches, {dim}] for this model; {list(x.shape)} came"
        elif x.layout != torch.strided or not x.is_contiguous():
            wrong = "not contiguous; make a contiguous copy"
        elif where != "cpu" and (where != "cuda" or backend != "cuda"):
            wrong = f"in a device's memory ({where}); this model computes on {backend} and takes the host's"
        if wrong:
            raise error("QV_EINVAL", f"pixel_values: {wrong}")

    # ---- files and frames --------------------------------------------------------------------------

    def encode(
        self, source=None, *, frames=None, dtype="f32", progress=None, errors="raise", ordered=True, decoders=0,
        **options
    ):
        """Tokens of a clip or image, or a generator of the Tokens of many.

        source: a path, or its file:// URL; bytes of a file, or one that is open; frames, an array of bytes
        [frames, height, width, 3] or [frames, 3, height, width] (without the first axis: an image), where 4
        channels are RGBA, whose alpha is dropped, and 1 is gray; a PIL image; or {"path": .., "bytes": .., "frames": .. or "image": ..}
        with "key", a text that is not empty, and options of its own. An iterable of these gives a generator:
        they are decoded side by side and packed into full chunks, and come in the order of the sources, each
        with its index there and its key (its path, else its place). ordered=False: as they are done.

        frames: in place of source, a clip as a list of arrays or PIL images, or as one array. In an iterable
        such a list is a clip too; a flat list is many images. Frames are resized as the model's processor
        does, and are all taken: they were sampled already. fps, or timestamps, seconds of each: theirs.

        options: start and end, in seconds, of a clip that is cut; fps, num_frames, min_frames, max_frames,
        min_pixels, max_pixels, total_pixels, like ("transformers" or "qwen-vl-utils"), first_frame (True: the
        first frame of an animation or clip, as an image), decode ("cpu", or "gpu": an NVIDIA GPU's decoders, of number gpu), threads,
        decode_seconds, decode_memory. offset, length: the clip is these bytes of its file.

        progress: True for a line on the terminal, or a function that is given a dict. errors: "raise" at
        a source that fails, or "yield" its Error in its place, with .key and .index, and go on. decoders: side
        by side, 0 for one a core. Ahead of who takes them are 1 GiB of sources and results and 64 MiB a decoder.
        """
        source = _given(source, frames)
        one = _sources.is_one(source)
        if progress is not None and not isinstance(progress, bool) and not callable(progress):
            raise _check.wrong("progress", progress, "True, False or a function")
        how = _stream.How(
            _check.one_of(_name(dtype), "dtype", ("f32", "bf16")), progress,
            _check.one_of(errors, "errors", ("raise", "yield")), _check.flag(ordered, "ordered"),
            _check.whole(decoders, "decoders", 0, MOST_THREADS), one, 1 if one else _length(source),
        )
        options = _sources.options_of(options)
        if not one and "timestamps" in options:
            raise error("QV_EINVAL", "timestamps are of one clip: say them in its dict, beside frames")
        many = _stream.results(self, [source] if one else source, how, options)
        if not one:
            return many
        try:
            return next(many)
        finally:
            many.close()

    def preprocess(self, source=None, *, frames=None, **options):
        """(pixel_values, grid_thw) of one clip or image, as transformers' processors make them and forward()
        takes them: float32 [patches, row_dim] and int64 [1, 3]. source, frames, options: as of encode(). The
        result has key, is_image, timestamps, sampled_fps, second_per_grid_ts and damaged_frames besides, as of
        Tokens."""
        source = _given(source, frames)
        if not _sources.is_one(source):
            raise error("QV_EINVAL", "preprocess() takes one source; call it for each")
        options, key = _sources.options_of(options), _sources.key_of(source, 0)
        data, is_path, options = _sources.describe(self._core, source, 0, options)
        decoder = None
        if not isinstance(data, _core.Frames):
            from . import _decoder

            decoder = _decoder.start()
        return Pixels(_core.preprocess(self._core, decoder, key, data, is_path, options))

    def _tokens(self, core):
        return Tokens(core, self.info["model_type"])


class Pixels(collections.namedtuple("Pixels", "pixel_values grid_thw")):
    """What Model.preprocess() gives."""

    def __new__(cls, core):
        pixels = super().__new__(cls, to_numpy(core.matrix(0, False)), to_numpy(core.grid_thw()))
        pixels._tokens = Tokens(core)
        return pixels

    key = property(lambda self: self._tokens.key)
    is_image = property(lambda self: self._tokens.is_image)
    timestamps = property(lambda self: self._tokens.timestamps)
    sampled_fps = property(lambda self: self._tokens.sampled_fps)
    second_per_grid_ts = property(lambda self: self._tokens.second_per_grid_ts)
    damaged_frames = property(lambda self: self._tokens.damaged_frames)
    damage = property(lambda self: self._tokens.damage)
    remark = property(lambda self: self._tokens.remark)

    def __repr__(self):
        return f"<qwenvit.Pixels {list(self.pixel_values.shape)}, {self.key!r}>"


def _given(source, frames):
    if (source is None) == (frames is None):
        raise error("QV_EINVAL", "give a source, or frames=")
    if frames is not None:
        return {"frames": frames}
    if not _sources.is_one(source) and not hasattr(type(source), "__iter__") and not hasattr(source, "__getitem__"):
        raise _check.wrong("source", source, "a path, bytes, frames, an image, or an iterable of these")
    return source


def _length(sources):
    """How many there are, where that is known."""
    try:
        return len(sources)
    except TypeError:
        return None
