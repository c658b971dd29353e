# SPDX-License-Identifier: MIT
"""load, Model and Tokens."""

import atexit
import collections
import os
import sys
import threading
import time

from . import _core
from ._arrays import current_stream, error, integers, is_torch, numpy, shareable, to_numpy
from ._adapters import Adapters

BACKENDS = ("cuda", "metal", "cpu", "ref")  # the one that "auto" would rather have first


def _user_cache(name):
    """In the folder that the command has as well; "" where there is no home."""
    cache, home = os.environ.get("XDG_CACHE_HOME", ""), os.environ.get("HOME", "")
    folder = cache if cache.startswith("/") else os.path.join(home, ".cache") if home.startswith("/") else ""
    return folder and os.path.join(folder, "qwenvit", name)


def load(
    path, backend="auto", dtype=None, device=0, *, threads=0, stream=None, tune_file=None, kernel_folder=None
):
    """Loads the vision tower of a Hugging Face checkpoint folder.

    backend: "auto", "cuda", "metal", "cpu" or "ref" (plain C, slow). dtype: "f32", "bf16", or None for
    what suits the device. device: its index. threads: of a CPU; 0 for every core. stream: a CUDA stream
    (an integer, or torch's) on which all work is enqueued. tune_file: measured choices, kept there.
    kernel_folder: of kernels that cuDNN compiled, for the next process; "" for none, None for the user's cache
    folder, as the command has it.

    Raises Error: no such folder, a family that is not known, no such device; several threads of a CPU in a
    process forked off one that had them.
    """
    _refuse_lost_threads(backend, threads)
    stream = getattr(stream, "cuda_stream", stream) or 0
    lacking = _lacking(backend)
    if lacking and backend == "cuda":
        raise error("QV_ENODEVICE", lacking)
    model = Model(
        _core.Model(
            os.fspath(path), backend, device, _name(dtype), threads, stream,
            os.fspath(tune_file) if tune_file else "",
            _user_cache("kernels") if kernel_folder is None else os.fspath(kernel_folder),
        ),
        stream,
    )
    if model.info["backend"] == "cpu" and threads != 1:
        _with_threads.add(os.getpid())
    if lacking:  # the core knows the first of them alone
        model.info["passed_over"] = f"cuda: {lacking}"
    return model


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
    text = getattr(dtype, "__name__", str(dtype)).removeprefix("torch.")
    return {"bfloat16": "bf16", "float32": "f32", "float": "f32"}.get(text, text)


class Tokens(Adapters):
    """The vision tokens of a clip or an image, or of the items of a forward().

    tokens: [n, out_hidden]; deepstack: a list of as many [n, out_hidden] as the family has; grid_thw:
    int64 [items, 3] (frame pairs, patch rows, patch columns); timestamps: float64 [frames], the seconds
    of the sampled frames, or None; key: of encode(), which source. is_image: whether it is one; None of
    forward(), which does not know. sampled_fps, second_per_grid_ts: of a clip's file, the frames a second
    that were sampled, and the seconds of a frame pair as Qwen2.5-VL's processor has them; else None.

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
    dtype = property(lambda self: self._core.dtype)
    is_image = property(lambda self: self._core.is_image if self._core.key else None)
    sampled_fps = property(lambda self: self._core.sampled_fps or None)
    second_per_grid_ts = property(lambda self: self._core.pair_seconds or None)
    damaged_frames = property(lambda self: self._core.damaged_frames)
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
        return f"<qwenvit.Tokens [{c.n}, {c.width}] {c.dtype}, {c.n_deepstack} deepstack, {c.key!r}>"

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
        texts.update(metadata or {})
        self._core.save(os.fspath(path), [(str(k), str(v)) for k, v in texts.items()])


class Model:
    """A vision tower on a device: encode() files and frames, forward() patches.

    Any thread may call it; one call runs at a time. In a process that was forked it raises Error.
    """

    def __init__(self, core, stream=0):
        self._core = core
        self._stream = stream
        self.info = core.info()

    def __repr__(self):
        i = self.info
        return f"<qwenvit.Model {i['model_type']}, {i['dtype']} on {i['backend']}: {i['device']}>"

    def close(self):
        """Frees the device's memory now. Later calls raise Error."""
        self._core.close()

    # ---- patches -----------------------------------------------------------------------------------

    def forward(self, pixel_values, grid_thw, dtype="f32"):
        """Patches to tokens.

        pixel_values: [patches, row_dim] as transformers' processors make them, float32 or bfloat16 (in
        numpy: ml_dtypes.bfloat16, or uint16 with its bits), contiguous; numpy, torch or anything with
        DLPack; on a CUDA model in that device's memory too. grid_thw: [items, 3]. dtype: of the tokens,
        "f32" or "bf16".

        torch's tensors come back as torch's, on the same device, as (tokens, deepstack); all else as
        Tokens on the host.
        """
        if is_torch(pixel_values):
            return self._forward_torch(pixel_values, grid_thw, _name(dtype))
        rows, is_bf16 = shareable(pixel_values)
        grid = [v for row in integers(grid_thw, "grid_thw") for v in row]
        core = self._core.forward(rows, is_bf16, grid, _name(dtype))
        return Tokens(core, self.info["model_type"])

    def _forward_torch(self, x, grid_thw, dtype):
        import torch

        if dtype not in ("f32", "bf16"):
            raise error("QV_EINVAL", f"dtype is {dtype!r}; must be 'f32' or 'bf16'")
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
        elif x.requires_grad:
            wrong = "it wants a gradient, which this tower has not; give it .detach()"
        if wrong:
            raise error("QV_EINVAL", f"pixel_values: {wrong}")

    # ---- files and frames --------------------------------------------------------------------------

    def encode(self, source, *, dtype="f32", progress=None, errors="raise", decoders=0, **options):
        """Tokens of a clip or image, or a generator of the Tokens of many.

        source: a path; bytes of a file; frames, uint8 [frames, height, width, 3] (or [height, width, 3],
        an image); a PIL image; or {"path": .., "bytes": .., "frames": .. or "image": ..} with "key",
        a text that is not empty, and options of its own. An iterable of these gives a generator: they are
        decoded side by side and packed into full chunks, and come in the order in which they are done, each
        with its key (its path, else its place).

        options: start and end, in seconds, of a clip that is cut; fps, num_frames, min_frames, max_frames,
        min_pixels, max_pixels, total_pixels, like ("transformers" or "qwen-vl-utils"), threads,
        decode_seconds, decode_memory. Frames are resized as the model's processor does, and are all taken:
        they were sampled already. offset, length: the clip is these bytes of its file.

        progress: True for a line on the terminal, or a function that is given a dict. errors: "raise" at
        a source that fails, or "yield" its Error, with .key, and go on. decoders: side by side, 0 for one
        a core.
        """
        if errors not in ("raise", "yield"):
            raise error("QV_EINVAL", f"errors is {errors!r}; must be 'raise' or 'yield'")
        one = _is_one(source)
        many = _encode(
            self, [source] if one else source, _name(dtype), progress, errors, decoders, options, one
        )
        if not one:
            return many
        try:
            return next(many)
        finally:
            many.close()


def _is_one(source):
    if isinstance(source, (str, bytes, bytearray, memoryview, os.PathLike, dict)):
        return True
    return _is_array(source) or _is_pil(source)


def _is_array(x):
    return hasattr(x, "__dlpack__") or hasattr(x, "__array_interface__")


def _is_pil(x):
    image = sys.modules.get("PIL.Image")
    return image is not None and isinstance(x, image.Image)


def _options(options):
    options = {k: v for k, v in options.items() if v is not None}
    if "like" in options:
        options["like"] = _core.parse_like(options["like"])
    return options


def _image_frames(model, image, options):
    np = numpy()
    if np is None:
        raise error("QV_EUNSUPPORTED", "PIL images need numpy")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        from PIL import Image

        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image.convert("RGBA"))
    return _frames(model, np.asarray(image.convert("RGB"))[None], True, options)


def _frames(model, frames, is_image, options):
    known = {"min_pixels", "max_pixels"}
    if set(options) - known - {"fps", "num_frames", "min_frames", "max_frames"}:
        raise error("QV_EINVAL", f"of frames only {' and '.join(sorted(known))} can be said")
    frames, _ = shareable(frames)
    if getattr(frames, "ndim", 0) == 3:
        frames, is_image = frames[None], True
    return model._core.prepare(
        frames, is_image, options.get("min_pixels", 0), options.get("max_pixels", 0)
    )


def _text_of(given, what, place):
    """A key, or a path as a key: what it has besides UTF-8 is written with backslashes."""
    try:
        text = os.fsencode(given).decode("utf-8", "backslashreplace")
    except (TypeError, UnicodeEncodeError):
        text = ""
    if not text or "\0" in text:
        raise error(
            "QV_EINVAL", f"source {place}: {what} is {given!r}; must be a text that is not empty, without NUL"
        )
    return text


KINDS = ("path", "bytes", "frames", "image")  # of sources that are a dict


def _describe(model, source, key, place, common):
    """What the binding's Job.add takes of a source: key, path or bytes or frames, is it a path, options."""
    options, is_image = common, False
    if isinstance(source, dict):
        own = {k: v for k, v in source.items() if k != "key"}
        kinds = [k for k in (*KINDS, "picture") if k in own]  # picture: what image was called in 0.2
        if len(kinds) != 1:
            raise error("QV_EINVAL", f"source {place}: a dict has one of {', '.join(KINDS)}")
        source, is_image = own.pop(kinds[0]), kinds[0] in ("image", "picture")
        options = {**common, **_options(own)}
        if kinds[0] == "bytes":
            source = bytes(source)
        elif kinds[0] == "path":
            _text_of(source, "path", place)
            source = os.fsdecode(source)
    if isinstance(source, (str, os.PathLike)):
        shown = _text_of(source, "path", place)
        return shown if key is None else key, os.fsencode(source), True, options
    key = str(place) if key is None else key
    if isinstance(source, (bytes, bytearray, memoryview)):
        return key, bytes(source), False, options
    if _is_pil(source):
        return key, _image_frames(model, source, options), False, {}
    if _is_array(source):
        return key, _frames(model, source, is_image, options), False, {}
    raise error(
        "QV_EINVAL",
        f"source {place}: a {type(source).__name__}; must be a path, bytes, frames or a PIL image",
    )


class _Feeder(threading.Thread):
    """Adds sources to a job, while results are taken from it.

    The caller's iterator may block for ever, so that nobody waits for this thread while it is in there: `busy` is
    held in all else, and what follows a source that came too late is nothing. A forked process has not this thread,
    which may have held `busy`.
    """

    def __init__(self, model, job, sources, options):
        super().__init__(name="qwenvit feeder", daemon=True)
        self.model, self.job, self.sources, self.options = model, job, sources, options
        self.stop, self.failure, self.process = False, None, os.getpid()
        self.busy = threading.RLock()  # a generator may be collected, and so end this, in this thread itself
        self.refused = collections.deque()  # Errors of sources that did not come as far as the job

    def run(self):
        try:
            for place, source in enumerate(self.sources):
                with self.busy:
                    if self.stop:
                        return
                    self.add(place, source)
        except BaseException as e:
            self.failure = e
        with self.busy:
            if self.stop:
                return
            try:
                self.job.end()
            except Exception as e:
                self.failure = e if not self.failure or isinstance(self.failure, _core.Error) else self.failure

    def add(self, place, source):
        key = None
        try:
            if isinstance(source, dict) and source.get("key") is not None:
                key = _text_of(source["key"], "key", place)
            described = _describe(self.model, source, key, place, self.options)
        except _core.Error as e:
            e.key = str(place) if key is None else key
            self.refused.append(e)
        else:
            self.job.add(*described)

    def end(self):
        """Afterwards the job is this caller's alone."""
        if self.process != os.getpid():
            return
        self.stop = True
        self.job.cancel()
        with self.busy:
            pass


_at_work = set()  # feeders


@atexit.register
def _end_feeders():
    """Of generators that were left as they are: the interpreter cannot end under a thread that is in our code."""
    began = time.monotonic()
    for feeder in list(_at_work):
        feeder.end()
    for feeder in list(_at_work):  # an iterator that wakes up, as one of ours does, ends in order
        feeder.join(max(0, began + 1 - time.monotonic()))


def _needs_decoder(sources):
    """Of a list: whether a file is among them. Of other iterables nobody knows."""
    if not isinstance(sources, (list, tuple)):
        return True
    return any(
        isinstance(s, (str, bytes, bytearray, memoryview, os.PathLike))
        or isinstance(s, dict) and ("path" in s or "bytes" in s)
        for s in sources
    )


def _show(progress, job, began):
    if not progress:
        return
    p = job.progress()
    if callable(progress):
        progress(p)
    elif sys.stderr.isatty():
        rate = p["done"] / max(time.monotonic() - began, 1e-9)
        print(
            f"\r{p['done']} done, {p['failed']} failed, {rate:.1f} clips/s, {p['tokens']} tokens, "
            f"limited by {p['limit']} ", end="", file=sys.stderr, flush=True,
        )


def _failures(feeder, errors):
    while feeder.refused:
        failure = feeder.refused.popleft()
        if errors == "raise":
            raise failure
        yield failure


def _encode(model, sources, dtype, progress, errors, decoders, options, alone):
    options = _options(options)
    decoder = None
    if _needs_decoder(sources):
        from . import _decoder

        decoder = _decoder.start()
    job = _core.Job(model._core, decoder, dtype, decoders, alone)
    feeder = _Feeder(model, job, sources, options)
    began = time.monotonic()
    _at_work.add(feeder)
    feeder.start()
    try:
        while (core := job.next()) is not None:
            _show(progress, job, began)
            if core.status == "QV_OK":
                yield Tokens(core, model.info["model_type"])
            elif not core.cancelled:
                feeder.refused.append(error(core.status, core.error, core.key))
            yield from _failures(feeder, errors)
        feeder.join()
        yield from _failures(feeder, errors)
        if feeder.failure:
            raise feeder.failure
    finally:
        feeder.end()
        _at_work.discard(feeder)
        job.close()
        if progress is True and sys.stderr.isatty():
            print(file=sys.stderr)
