# SPDX-License-Identifier: MIT
"""Tokens and the other results of a model's calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from . import _check, _core
from ._arrays import needed_numpy, to_numpy
from ._check import Path
from ._error import Error, error
from .adapters import engines
from .adapters.items import damage_of

Dtype = Any  # "f32", "bf16", or a dtype of torch or numpy


def dtype_name(dtype: Dtype) -> str:
    """Returns the library's name for a dtype such as torch.bfloat16, "bf16" or numpy.float32, or for
    None."""
    if dtype is None:
        return "auto"
    text = _check.utf8(getattr(dtype, "__name__", dtype)).removeprefix("torch.")
    return {"bfloat16": "bf16", "float32": "f32", "float": "f32"}.get(text, text)


class Outputs(Protocol):
    """The result of forward(): tokens [n, out_hidden], a list of DeepStack's outputs, each of the same
    shape, and hidden_states. `tokens, deepstack = ..` unpacks it."""

    @property
    def tokens(self) -> Any: ...
    @property
    def deepstack(self) -> list[Any]: ...
    @property
    def hidden_states(self) -> Any | None: ...
    def __iter__(self) -> Iterator[Any]: ...


class _Two(NamedTuple):
    tokens: Any
    deepstack: list[Any]


class Tensors(_Two):
    hidden_states: Any | None = None


class Tokens:
    """The vision tokens of a clip, an image, or the items of a forward().

    tokens: [n, out_hidden].
    deepstack: a list of DeepStack's outputs, each [n, out_hidden]; empty if the family has none.
    hidden_states: [n * merge_size^2, hidden], the last block's rows, one per patch, in the order of
        pixel_values: merge_size^2 consecutive rows become one token. None unless requested.
    grid_thw: int64 [items, 3]: frame pairs, patch rows, patch columns.
    timestamps: float64 [frames], the seconds of the sampled frames, or None.
    key, index: the source's key, and its place among the sources of encode().
    is_image: whether the source is an image; None after forward(), which does not know.
    sampled_fps: the sampled frames per second of a clip's file, or None.
    second_per_grid_ts: seconds per frame pair, as Qwen2.5-VL's processor returns them, or None.
    damaged_frames: how many frames could not be decoded; each was replaced by the frame before.
    damage: the same as a message, or "".
    decoded_by: "cpu" or "gpu" for a decoded clip, or None.
    not_gpu: why a GPU that could have decoded the clip did not; for a clip that a GPU decoded, why
        the CPU converted its frames; or "".
    remark: anything surprising about an image's pixels, such as 16-bit gray whose levels
        above 255 are white, or "".

    Arrays are numpy's and share memory with this object. bf16 is ml_dtypes.bfloat16 if that package
    is installed, otherwise uint16 with the same bits; torch() gives bfloat16 tensors in any case.
    Without numpy, arrays are objects with DLPack and a buffer.

    numpy.asarray() of this object, and from_dlpack() of torch, jax and others, return its tokens without
    a copy. `tokens, deepstack = ..` unpacks it.

    Tokens can be pickled and copied, so a DataLoader's workers can return them;
    qwenvit.torch.collate makes a batch of them.
    """

    def __init__(self, core: _core.Tokens, model_type: str | None = None) -> None:
        self._core, self.model_type = core, model_type
        self.key: str = core.key
        self.index: int | None = core.index if core.key else None
        self.dtype: str = core.dtype
        outcome: Any = core  # its properties are of any type (outcome.inc)
        self.is_image: bool | None = outcome.is_image if core.key else None
        self.sampled_fps: float | None = outcome.sampled_fps or None
        self.second_per_grid_ts: float | None = outcome.second_per_grid_ts or None
        self.damaged_frames: int = outcome.damaged_frames
        self.decoded_by: str | None = None if outcome.is_image else outcome.decoded_by or None
        self.not_gpu: str = outcome.not_gpu
        self.remark: str = outcome.remark

    def __reduce__(self) -> Any:
        return Tokens, (self._core, self.model_type)

    def _matrix(self, i: int) -> Any:
        bf16 = self.dtype == "bf16"
        return to_numpy(self._core.matrix(i, bf16), bf16)

    @property
    def tokens(self) -> Any:
        return self._matrix(0)

    @property
    def deepstack(self) -> list[Any]:
        return [self._matrix(1 + i) for i in range(self._core.n_deepstack)]

    @property
    def hidden_states(self) -> Any | None:
        return self._matrix(1 + self._core.n_deepstack) if self._core.hidden else None

    @property
    def grid_thw(self) -> Any:
        return to_numpy(self._core.grid_thw())

    @property
    def timestamps(self) -> Any | None:
        seconds = self._core.timestamps()
        return None if seconds is None else to_numpy(seconds)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        np = needed_numpy("numpy.asarray() of tokens")
        tokens = self.tokens
        cast = tokens if dtype is None or np.dtype(dtype) == tokens.dtype else tokens.astype(dtype)
        return cast.copy() if copy and cast is tokens else cast

    def __dlpack__(self, **how: Any) -> Any:
        array: Any = self._core.matrix(0, False)
        return array.__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        array: Any = self._core.matrix(0, False)
        return array.__dlpack_device__()

    def __iter__(self) -> Iterator[Any]:
        return iter((self.tokens, self.deepstack))

    def __len__(self) -> int:
        return self._core.n

    def __repr__(self) -> str:
        c = self._core
        damage = f", {self.damage}" if self.damage else ""
        return f"<qwenvit.Tokens [{c.n}, {c.width}] {c.dtype}, {c.n_deepstack} deepstack, {c.key!r}{damage}>"

    def torch(self) -> tuple[Any, list[Any]]:
        """Returns (tokens, deepstack) as tensors on the host, without a copy."""
        import torch

        all_ = [torch.from_dlpack(self._core.matrix(i, False)) for i in range(1 + self._core.n_deepstack)]
        return all_[0], all_[1:]

    def packed(self) -> Any:
        """Returns a copy as one matrix [n, out_hidden * (1 + deepstack)], in which DeepStack's outputs
        follow the tokens in each row, as vLLM and SGLang expect it."""
        return needed_numpy("packed()").concatenate([self.tokens, *self.deepstack], axis=1)

    def save(self, path: Path, metadata: dict[str, Any] | None = None, *, dtype: Dtype = None) -> None:
        """Writes a safetensors file, whole or not at all: tokens, deepstack.0.., hidden (if there are
        hidden_states), grid_thw and timestamps. For a clip or image passed by its path, the file is
        byte for byte what `qwenvit encode` writes with the same options.

        metadata: a dict of strings to add.
        dtype: the dtype of the tokens in the file, "f32" or "bf16"; None for the dtype that the model
            computes in. The f32 tokens of a bf16 model are bf16 values, so nothing is lost.
        """
        if metadata is not None and not isinstance(metadata, dict):
            raise _check.wrong("metadata", metadata, "a dict of strings")
        pairs = [(_check.utf8(k), _check.utf8(v)) for k, v in (metadata or {}).items()]
        self._core.save(_check.path(path, "path"), pairs, "" if dtype is None else dtype_name(dtype))

    @property
    def damage(self) -> str:
        return damage_of(self)

    to_vllm, to_sglang, to_transformers = engines.to_vllm, engines.to_sglang, engines.to_transformers
    save_ec = engines.save_ec


def result_of(core: _core.Tokens, model_type: str) -> Tokens | Error:
    return Tokens(core, model_type) if core.status == "QV_OK" else error(core.status, core.error, core.key, core.index)


class _Pair(NamedTuple):
    pixel_values: Any
    grid_thw: Any


class Pixels(_Pair):
    """The result of Model.preprocess().

    It can be pickled and copied. If it is built from two other arrays, as by a DataLoader that
    collates a batch, it has no key, timestamps and so on, which describe one source.
    """

    key: str | None = None
    is_image: bool | None = None
    timestamps: Any | None = None
    sampled_fps: float | None = None
    second_per_grid_ts: float | None = None
    damaged_frames: int = 0
    damage: str = ""
    remark: str = ""

    @classmethod
    def _of(cls, core: _core.Tokens) -> Pixels:
        pixels, about = cls(to_numpy(core.matrix(0, False)), to_numpy(core.grid_thw())), Tokens(core)
        pixels.__dict__.update({name: getattr(about, name) for name in Pixels.__annotations__}, _core=core)
        return pixels

    def __reduce__(self) -> Any:
        core = self.__dict__.get("_core")
        return (Pixels._of, (core,)) if core else (Pixels, tuple(self))

    def __repr__(self) -> str:
        core = self.__dict__.get("_core")  # without numpy, arrays have no shape
        if not core:
            return f"<qwenvit.Pixels {list(getattr(self.pixel_values, 'shape', ()))}>"
        return f"<qwenvit.Pixels {[core.n, core.width]}, {self.key!r}>"
