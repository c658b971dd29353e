# SPDX-License-Identifier: MIT
"""Caches as data sets of torch."""

import random

from torch.utils.data import Dataset, Sampler

from ._cache import Cache


class CacheDataset(Dataset):
    """A map-style data set of a cache's keys: {"key", "tokens" [n, width], "deepstack" (a list), "grid_thw"
    [1, 3], "timestamps" [frames]}, tensors mapped from the files. Workers may be forked or spawned.

    cache: a Cache or its folder. keys: which, in this order; None: all.
    """

    def __init__(self, cache, keys=None):
        self.cache = cache if isinstance(cache, Cache) else Cache(cache)
        self.keys = list(self.cache if keys is None else keys)

    def __len__(self):
        return len(self.keys)

    def __getitem__(self, i):
        import torch

        entry = self.cache[self.keys[i]]
        tokens, deepstack = entry.torch()
        return {
            "key": entry.key,
            "tokens": tokens,
            "deepstack": deepstack,
            "grid_thw": torch.tensor(entry.grid_thw),
            "timestamps": torch.tensor(entry.timestamps),
        }


class PartSampler(Sampler):
    """A shuffled order that reads part by part: parts in random order, and the keys within each too.
    set_epoch() gives another one."""

    def __init__(self, dataset, seed=0):
        self.dataset, self.seed, self.epoch = dataset, seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(self.dataset)

    def __iter__(self):
        rng, parts = random.Random(f"{self.seed} {self.epoch}"), {}
        for i, key in enumerate(self.dataset.keys):
            parts.setdefault(self.dataset.cache.part_of(key), []).append(i)
        order = list(parts.values())
        rng.shuffle(order)
        for indices in order:
            rng.shuffle(indices)
            yield from indices
