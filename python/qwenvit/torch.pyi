# SPDX-License-Identifier: MIT
from collections.abc import Iterable, Iterator
from os import PathLike
from typing import Any

from torch.utils.data import Dataset, IterableDataset, Sampler

from ._cache import Cache

class CacheDataset(Dataset[dict[str, Any]]):
    cache: Cache
    keys: list[str]
    def __init__(self, cache: Cache | str | PathLike[str], keys: Iterable[str] | None = None) -> None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, i: int) -> dict[str, Any]: ...

class CacheIterableDataset(IterableDataset[dict[str, Any]]):
    cache: Cache
    keys: list[str]
    shuffle: bool
    rank: int
    num_replicas: int
    def __init__(
        self,
        cache: Cache | str | PathLike[str],
        keys: Iterable[str] | None = None,
        *,
        shuffle: bool = True,
        seed: object = 0,
        rank: int | None = None,
        num_replicas: int | None = None,
    ) -> None: ...
    def set_epoch(self, epoch: int) -> None: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[dict[str, Any]]: ...

class PartSampler(Sampler[int]):
    dataset: CacheDataset
    epoch: int
    rank: int
    num_replicas: int
    def __init__(
        self,
        dataset: CacheDataset,
        seed: object = 0,
        *,
        rank: int | None = None,
        num_replicas: int | None = None,
        drop_last: bool = False,
    ) -> None: ...
    def set_epoch(self, epoch: int) -> None: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[int]: ...
