# SPDX-License-Identifier: MIT
"""For people who train with torch on a cache: datasets, and a sampler that reads part by part."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info

from .. import _check
from .._cache import Cache
from .._error import FileError, error

Sample = dict[str, Any]


class CacheDataset(Dataset[Sample]):
    """A map-style dataset of a cache's keys. A sample is {"key", "tokens" [n, width], "deepstack"
    (a list), "grid_thw" [1, 3], "timestamps" [frames]}, with tensors mapped from the files. Workers
    may be forked or spawned.

    cache: a Cache or its folder.
    keys: the keys, in this order; None for all. Raises Error for a key that the cache lacks.
    """

    def __init__(self, cache: Cache | _check.Path, keys: Iterable[str] | None = None) -> None:
        self.cache, self.keys = _take(cache, keys)

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, i: int) -> Sample:
        return _sample(self.cache, self.keys[i])


class CacheIterableDataset(IterableDataset[Sample]):
    """The samples of CacheDataset as a stream, part by part, for several processes and their
    workers. In an epoch each sample goes to one of them, exactly once.

    cache, keys: as in CacheDataset.
    shuffle: True for parts in random order, and keys in random order within each part, differently
        in each epoch (set_epoch()); False for the order of the parts.
    rank, num_replicas: this process's; by default torch.distributed's if it is initialized,
        otherwise 0 of 1. If the keys cannot be divided evenly, some processes get one more.
    """

    def __init__(
        self, cache: Cache | _check.Path, keys: Iterable[str] | None = None, *, shuffle: bool = True, seed: object = 0, rank: int | None = None, num_replicas: int | None = None
    ) -> None:
        self.cache, self.keys = _take(cache, keys)
        self.shuffle, self.seed = _check.flag(shuffle, "shuffle"), seed
        self.rank, self.num_replicas = _replica(rank, num_replicas)
        self._epoch = torch.zeros(1, dtype=torch.int64).share_memory_()  # with persistent workers

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch. Call it before each epoch, to get a different order."""
        self._epoch[0] = _check.whole(epoch, "epoch")

    def __len__(self) -> int:
        return len(_share(range(len(self.keys)), self.rank, self.num_replicas))

    def __iter__(self) -> Iterator[Sample]:
        worker = get_worker_info()
        epoch = int(self._epoch[0]) if self.shuffle else None
        mine = _share(_by_part(self.cache, self.keys, self.seed, epoch), self.rank, self.num_replicas)
        if worker:
            mine = _share(mine, worker.id, worker.num_workers)
        return (_sample(self.cache, self.keys[i]) for i in mine)


class PartSampler(Sampler[int]):
    """A shuffled order that reads part by part: the parts are in random order, and so are the keys
    within each part. set_epoch() changes the order.

    rank, num_replicas: this process's; every process gets equally many keys. By default they are
        torch.distributed's if it is initialized; otherwise this process gets all keys once.
    drop_last: if the keys cannot be divided evenly, True leaves some out; False repeats some.
    """

    def __init__(
        self, dataset: CacheDataset, seed: object = 0, *, rank: int | None = None, num_replicas: int | None = None, drop_last: bool = False
    ) -> None:
        if not isinstance(dataset, CacheDataset):
            raise _check.wrong("dataset", dataset, "a CacheDataset")
        self.dataset, self.seed, self.epoch = dataset, seed, 0
        self.drop_last = _check.flag(drop_last, "drop_last")
        self.rank, self.num_replicas = _replica(rank, num_replicas)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = _check.whole(epoch, "epoch")

    def __len__(self) -> int:
        n, replicas = len(self.dataset), self.num_replicas
        return n // replicas if self.drop_last else -(-n // replicas)

    def __iter__(self) -> Iterator[int]:
        order = _by_part(self.dataset.cache, self.dataset.keys, self.seed, self.epoch)
        first = self.rank * len(self)
        return itertools.islice(itertools.cycle(order), first, first + len(self))


# ---- shared helpers --------------------------------------------------------------------------------


def _take(cache: Cache | _check.Path, keys: Iterable[str] | None) -> tuple[Cache, list[str]]:
    cache = cache if isinstance(cache, Cache) else Cache(cache)
    if keys is None:
        return cache, list(cache)
    keys = _check.items(keys, "keys")
    for key in keys:
        if key not in cache:
            raise _check.wrong("keys: an element", key, f"in the cache {cache.folder}")
    return cache, keys


def _sample(cache: Cache, key: str) -> Sample:
    entry = cache[key]
    try:
        tokens, deepstack = entry.torch()
    except FileError:
        cache.refresh()  # the part was pruned after another part got the key
        entry = cache[key]
        tokens, deepstack = entry.torch()
    return {
        "key": entry.key,
        "tokens": tokens,
        "deepstack": deepstack,
        "grid_thw": torch.tensor(entry.grid_thw),
        "timestamps": torch.tensor(entry.timestamps),
    }


def _replica(rank: int | None, num_replicas: int | None) -> tuple[int, int]:
    """Returns (rank, num_replicas): those given, else torch.distributed's."""
    if (rank is None) != (num_replicas is None):
        raise error("QV_EINVAL", "rank and num_replicas must be passed together or not at all")
    if rank is None:
        group: Any = getattr(torch, "distributed", None)
        known = group and group.is_available() and group.is_initialized()
        return (group.get_rank(), group.get_world_size()) if known else (0, 1)
    num_replicas = _check.whole(num_replicas, "num_replicas", 1)
    return _check.whole(rank, "rank", 0, num_replicas - 1), num_replicas


def _share(order: Any, i: int, n: int) -> Any:
    """Returns the i-th of n shares, as equal as possible."""
    return order[i * len(order) // n : (i + 1) * len(order) // n]


def _by_part(cache: Cache, keys: list[str], seed: object, epoch: int | None) -> list[int]:
    """Returns the indices of keys, part by part; shuffled unless epoch is None."""
    parts: dict[int, list[int]] = {}
    for i, key in enumerate(keys):
        parts.setdefault(cache.part_of(key), []).append(i)
    order = [parts[part] for part in sorted(parts)]
    if epoch is not None:
        rng = random.Random(f"{seed} {epoch}")
        rng.shuffle(order)
        for indices in order:
            rng.shuffle(indices)
    return list(itertools.chain.from_iterable(order))
