# SPDX-License-Identifier: MIT
"""Helpers for torch's DataLoader.

    loader = DataLoader(dataset, batch_size=8, collate_fn=qwenvit.torch.collate)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ._error import error

if TYPE_CHECKING:
    from ._cache import Entry
    from ._tokens import Tokens


def _fields(item: Tokens | Entry | dict[str, Any]) -> tuple[str | None, Any, list[Any], Any]:
    """Returns an item's key, tokens, deepstack and grid_thw."""
    import torch

    if isinstance(item, dict):
        return item["key"], item["tokens"], item["deepstack"], item["grid_thw"]
    tokens, deepstack = item.torch()
    core = getattr(item, "_core", None)
    grid = torch.tensor(item.grid_thw) if core is None else torch.from_dlpack(core.grid_thw())
    return item.key, tokens, deepstack, grid


def collate(batch: Sequence[Tokens | Entry | dict[str, Any]], *, pad: bool = False) -> dict[str, Any]:
    """Makes a batch of Tokens, entries of a cache or samples of CacheDataset, whose lengths may differ.
    Returns a dict of tensors on the host:

    tokens: [sum of lengths, out_hidden], concatenated; with pad=True [batch, longest, out_hidden], the
        shorter items padded with zeros.
    deepstack: a list of the same for each DeepStack output.
    cu_seqlens: int32 [batch + 1], where each item begins in the concatenated rows, and their number.
    grid_thw: int64 [items, 3].
    key: a list of their keys.
    """
    import torch

    if not batch:
        raise error("QV_EINVAL", "collate: the batch is empty")
    keys, tokens, deepstacks, grids = zip(*map(_fields, batch))
    if len({(t.shape[1], t.dtype, len(deep)) for t, deep in zip(tokens, deepstacks)}) > 1:
        raise error("QV_EINVAL", "collate: the batch mixes tokens of different models or dtypes")
    lengths = torch.tensor([0, *(len(t) for t in tokens)], dtype=torch.int32)

    def joined(tensors: Sequence[Any]) -> Any:
        return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True) if pad else torch.cat(tensors)

    return {
        "tokens": joined(tokens),
        "deepstack": [joined(level) for level in zip(*deepstacks)],
        "cu_seqlens": lengths.cumsum(0, dtype=torch.int32),
        "grid_thw": torch.cat(grids),
        "key": list(keys),
    }
