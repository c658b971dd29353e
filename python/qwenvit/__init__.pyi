# SPDX-License-Identifier: MIT
from collections.abc import Callable, Iterable, Iterator
from os import PathLike
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, overload

from . import engines as engines
from ._cache import Cache as Cache
from ._cache_writer import CacheWriter as CacheWriter
from ._adapters import Adapters

__all__ = [
    "Cache", "CacheWriter", "Error", "Model", "Pixels", "Tokens", "devices", "engines", "load", "patch", "prompt",
    "unpatch",
]

__version__: str
_Path = str | PathLike[str]
_Dtype = Any  # "f32", "bf16", or a dtype of torch or numpy
_M = TypeVar("_M")

class _Array(Protocol):  # numpy's or torch's
    def __dlpack__(self, *, stream: Any = None) -> Any: ...

class _Image(Protocol):  # PIL's
    @property
    def __array_interface__(self) -> Any: ...

class _File(Protocol):
    def read(self) -> bytes: ...

class _Device(Protocol):  # torch's
    @property
    def type(self) -> str: ...
    @property
    def index(self) -> Any: ...

_One = _Path | bytes | bytearray | memoryview | dict[str, Any] | _Array | _Image | _File
_Clip = _Array | list[Any] | tuple[Any, ...]
_Progress = bool | Callable[[dict[str, Any]], object] | None

class Error(Exception):
    status: str | None
    key: str | None
    index: int | None

class Tokens(Adapters):
    @property
    def key(self) -> str: ...
    @property
    def index(self) -> int | None: ...
    @property
    def dtype(self) -> Literal["f32", "bf16"]: ...
    @property
    def is_image(self) -> bool | None: ...
    @property
    def picture(self) -> bool | None: ...
    @property
    def sampled_fps(self) -> float | None: ...
    @property
    def second_per_grid_ts(self) -> float | None: ...
    model_type: str | None
    @property
    def damaged_frames(self) -> int: ...
    @property
    def damage(self) -> str: ...
    @property
    def decoded_by(self) -> str | None: ...
    @property
    def not_gpu(self) -> str: ...
    @property
    def remark(self) -> str: ...
    @property
    def tokens(self) -> Any: ...
    @property
    def deepstack(self) -> list[Any]: ...
    @property
    def grid_thw(self) -> Any: ...
    @property
    def timestamps(self) -> Any | None: ...
    def __len__(self) -> int: ...
    def torch(self) -> tuple[Any, list[Any]]: ...
    def packed(self) -> Any: ...
    def save(
        self, path: _Path | bytes, metadata: dict[str, str] | None = None, *, dtype: _Dtype = None
    ) -> None: ...

class Pixels(NamedTuple):
    pixel_values: Any
    grid_thw: Any
    @property
    def key(self) -> str | None: ...
    @property
    def is_image(self) -> bool | None: ...
    @property
    def timestamps(self) -> Any | None: ...
    @property
    def sampled_fps(self) -> float | None: ...
    @property
    def second_per_grid_ts(self) -> float | None: ...
    @property
    def damaged_frames(self) -> int: ...
    @property
    def damage(self) -> str: ...
    @property
    def remark(self) -> str: ...

class Model:
    info: dict[str, Any]
    def close(self) -> None: ...
    def __enter__(self) -> Model: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    def forward(self, pixel_values: Any, grid_thw: Any, dtype: _Dtype = "f32") -> Any: ...
    def preprocess(self, source: _One | None = None, *, frames: _Clip | None = None, **options: Any) -> Pixels: ...
    @overload
    def encode(
        self,
        source: _One,
        *,
        frames: None = None,
        dtype: _Dtype = "f32",
        progress: _Progress = None,
        errors: Literal["raise", "yield"] = "raise",
        ordered: bool = True,
        decoders: int = 0,
        **options: Any,
    ) -> Tokens: ...
    @overload
    def encode(
        self,
        source: None = None,
        *,
        frames: _Clip,
        dtype: _Dtype = "f32",
        progress: _Progress = None,
        errors: Literal["raise", "yield"] = "raise",
        ordered: bool = True,
        decoders: int = 0,
        **options: Any,
    ) -> Tokens: ...
    @overload
    def encode(
        self,
        source: Iterable[Any],
        *,
        frames: None = None,
        dtype: _Dtype = "f32",
        progress: _Progress = None,
        errors: Literal["raise"] = "raise",
        ordered: bool = True,
        decoders: int = 0,
        **options: Any,
    ) -> Iterator[Tokens]: ...
    @overload
    def encode(
        self,
        source: Iterable[Any],
        *,
        frames: None = None,
        dtype: _Dtype = "f32",
        progress: _Progress = None,
        errors: Literal["yield"],
        ordered: bool = True,
        decoders: int = 0,
        **options: Any,
    ) -> Iterator[Tokens | Error]: ...

def load(
    path: _Path | bytes,
    backend: Literal["auto", "cuda", "metal", "cpu", "ref"] = "auto",
    dtype: _Dtype = None,
    device: int | str | _Device | None = 0,
    *,
    threads: int = 0,
    stream: Any = None,
    tune_file: _Path | None = None,
    kernel_folder: _Path | None = None,
    image_mean: Any = None,
    image_std: Any = None,
    weights: Literal["bf16", "stored"] = "bf16",
) -> Model: ...
def devices() -> list[dict[str, Any]]: ...
def patch(model: _M, *, backend: str | None = None, threads: int = 0, folder: _Path | None = None) -> _M: ...
def unpatch(model: _M) -> _M: ...
def prompt(
    results: Any,
    text: str | None = None,
    *,
    outer: bool = True,
    is_image: bool | None = None,
    timestamps: Any = None,
    model_type: str | None = None,
    picture: bool | None = None,
) -> str: ...
