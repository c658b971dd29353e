# SPDX-License-Identifier: MIT
from collections.abc import Callable, Iterable
from os import PathLike
from types import TracebackType
from typing import Any, Literal

from . import Model

_Path = str | PathLike[str]

FIELDS: tuple[str, ...]
COUNTS: tuple[str, ...]

class CacheWriter:
    model: Model
    folder: str
    damaged: list[str]
    failed: dict[str, tuple[str, str]]
    def __init__(
        self,
        model: Model,
        folder: _Path,
        *,
        tokens: Literal["bf16", "f16", "f32"] = "bf16",
        deepstack: bool = True,
        packed: bool = False,
        retry_failed: bool = False,
        part_bytes: int = 0,
        part_seconds: float = 0,
        decoders: int = 0,
        **options: Any,
    ) -> None: ...
    def add(
        self,
        rows: Iterable[_Path | bytes | dict[str, Any]],
        progress: Callable[[dict[str, Any]], object] | None = None,
    ) -> dict[str, int]: ...
    def close(self) -> None: ...
    def __enter__(self) -> CacheWriter: ...
    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
