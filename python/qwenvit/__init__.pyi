# SPDX-License-Identifier: MIT
from collections.abc import Callable, Iterable, Iterator
from os import PathLike
from typing import Any, Literal, TypeVar, overload

from . import engines as engines
from ._cache import Cache as Cache
from ._cache_writer import CacheWriter as CacheWriter
from ._adapters import Adapters

__version__: str
_Path = str | PathLike[str]
_M = TypeVar("_M")

class Error(Exception):
    status: str | None
    key: str | None

class Tokens(Adapters):
    @property
    def key(self) -> str: ...
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
    @property
    def model_type(self) -> str | None: ...
    @property
    def damaged_frames(self) -> int: ...
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
    def save(self, path: _Path, metadata: dict[str, str] | None = None) -> None: ...

class Model:
    info: dict[str, Any]
    def close(self) -> None: ...
    def forward(self, pixel_values: Any, grid_thw: Any, dtype: Any = "f32") -> Any: ...
    @overload
    def encode(
        self,
        source: _Path | bytes | bytearray | memoryview | dict[str, Any],
        *,
        dtype: Any = "f32",
        progress: bool | Callable[[dict[str, Any]], object] | None = None,
        errors: Literal["raise", "yield"] = "raise",
        decoders: int = 0,
        **options: Any,
    ) -> Tokens: ...
    @overload
    def encode(
        self,
        source: Iterable[Any],
        *,
        dtype: Any = "f32",
        progress: bool | Callable[[dict[str, Any]], object] | None = None,
        errors: Literal["raise", "yield"] = "raise",
        decoders: int = 0,
        **options: Any,
    ) -> Iterator[Any]: ...

def load(
    path: _Path,
    backend: Literal["auto", "cuda", "metal", "cpu", "ref"] = "auto",
    dtype: Any = None,
    device: int = 0,
    *,
    threads: int = 0,
    stream: Any = None,
    tune_file: _Path | None = None,
    kernel_folder: _Path | None = None,
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
