# SPDX-License-Identifier: MIT
"""What goes with torch's DataLoader.

    loader = DataLoader(dataset, batch_size=8, collate_fn=qwenvit.torch.collate)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ._error import error

if TYPE_CHECKING:
    from ._model import Tokens


def collate(batch: Sequence[Tokens], *, pad: bool = False) -> dict[str, Any]:
    """Makes a batch of tokens of different lengths. Returns a dict of tensors on the host:

    tokens: [sum of lengths, out_hidden], one behind the other; with pad [batch, longest, out_hidden],
        with zeros behind the shorter ones.
    deepstack: a list of the same for each DeepStack output.
    cu_seqlens: int32 [batch + 1], where each begins in what is not padded, and where the last ends.
    grid_thw: int64 [items, 3].
    key: a list of their keys.
    """
    import torch

    if not batch:
        raise error("QV_EINVAL", "collate: the batch is empty")
    parts = [t.torch() for t in batch]
    if len({(tokens.shape[1], tokens.dtype, len(deep)) for tokens, deep in parts}) > 1:
        raise error("QV_EINVAL", "collate: tokens of different models or dtypes")
    lengths = torch.tensor([0, *(len(t) for t in batch)], dtype=torch.int32)

    def joined(tensors: list[Any]) -> Any:
        return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True) if pad else torch.cat(tensors)

    return {
        "tokens": joined([tokens for tokens, _ in parts]),
        "deepstack": [joined([deep[i] for _, deep in parts]) for i in range(len(parts[0][1]))],
        "cu_seqlens": lengths.cumsum(0, dtype=torch.int32),
        "grid_thw": torch.cat([torch.from_dlpack(t._core.grid_thw()) for t in batch]),
        "key": [t.key for t in batch],
    }
