# SPDX-License-Identifier: MIT
"""All that this package assumes about transformers' modules: towers, their outputs, and video processors."""

from __future__ import annotations

import sys
from typing import Any

from ._arrays import needed_numpy
from ._check import kind_of
from ._error import error

# ---- towers --------------------------------------------------------------------------------------


def find_tower(model: Any) -> Any:
    if not hasattr(model, "named_modules"):
        raise error("QV_EINVAL", f"{kind_of(model)} is not a torch module")
    towers = [
        m
        for name, m in model.named_modules()
        if all(hasattr(m, part) for part in ("patch_embed", "blocks", "merger", "config"))
    ]
    if len(towers) != 1:
        what = "no Qwen-VL vision tower" if not towers else f"{len(towers)} vision towers"
        raise error("QV_EINVAL", f"{type(model).__name__} has {what} (patch_embed, blocks, merger)")
    if getattr(model, "is_quantized", False) or getattr(model, "hf_quantizer", None) is not None:
        raise error("QV_EUNSUPPORTED", "the model is quantised; load it in float32 or bfloat16")
    return towers[0]


def returns_objects() -> bool:
    return int(sys.modules["transformers"].__version__.split(".")[0]) >= 5


def output_of(tower: Any, tokens: Any, deepstack: list[Any], hidden: Any = None) -> Any:
    """Returns a tower's outputs as transformers does: as objects from version 5 on; before that as the
    tokens, with DeepStack's outputs if the family has them."""
    if not returns_objects():
        return (tokens, deepstack) if deepstack else tokens
    if deepstack:
        classes = sys.modules[type(tower).__module__]
        return classes.BaseModelOutputWithDeepstackFeatures(
            last_hidden_state=hidden, pooler_output=tokens, deepstack_features=deepstack
        )
    classes = sys.modules["transformers"].modeling_outputs
    return classes.BaseModelOutputWithPooling(last_hidden_state=hidden, pooler_output=tokens)


def in_order(rows: Any, grid_thw: Any, config: Any) -> Any:
    """Returns the last block's rows in transformers' order: Qwen2.5's towers leave them in the order of
    their windows, which run from left to right and down."""
    if rows is None or not hasattr(config, "fullatt_block_indexes"):
        return rows
    import torch

    np, cell, order, n = needed_numpy("last_hidden_state"), config.spatial_merge_size, list[Any](), 0
    side = config.window_size // cell // config.patch_size
    for t, h, w in grid_thw.tolist():
        y, x = np.divmod(np.arange(h * w // cell**2), w // cell)
        order += [np.lexsort((x // side, y // side)) + n + pair * len(x) for pair in range(t)]
        n += t * len(x)
    at = torch.from_numpy(np.concatenate(order)).to(rows.device)
    return rows.reshape(n, -1)[at].reshape(rows.shape)


# ---- video processors ----------------------------------------------------------------------------


def video_processor_of(model: str) -> Any:
    from transformers import AutoVideoProcessor

    return AutoVideoProcessor.from_pretrained(model)


def counts_all(processor: Any) -> bool:
    """Whether the processor limits the pixels of all frames together."""
    return "Qwen3" in type(processor).__name__


def stays(shape: tuple[int, ...], processor: Any) -> bool:
    """Whether the processor leaves frames of this size as they are."""
    n, height, width, _ = shape
    more = {"num_frames": n, "temporal_factor": processor.temporal_patch_size} if counts_all(processor) else {}
    smart_resize = sys.modules[type(processor).__module__].smart_resize
    wanted = smart_resize(
        height=height, width=width, factor=processor.patch_size * processor.merge_size,
        min_pixels=processor.size["shortest_edge"], max_pixels=processor.size["longest_edge"], **more,
    )
    return tuple(wanted) == (height, width)
