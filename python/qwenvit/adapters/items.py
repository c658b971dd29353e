# SPDX-License-Identifier: MIT
"""The clips and images of a result (Tokens or an Entry of a Cache), as all adapters read them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from .. import _check
from .._arrays import integers
from .._error import Error, error

PADS = {"image": "<|image_pad|>", "video": "<|video_pad|>"}
# whether a clip's prompt has the seconds in front of each frame pair, and markers around it
FAMILIES = {
    "qwen2_vl": False, "qwen2_5_vl": False, "qwen3_vl": True, "qwen3_vl_moe": True,
    "qwen3_5": True, "qwen3_5_moe": True, "qwen4_exp": True,
}
NO_SECONDS = "the clip has no timestamps, which its prompt needs: pass timestamps=, the seconds of each frame"


class Item(NamedTuple):
    """A clip or image of a result."""

    result: Any
    first: int  # its first row of tokens
    n: int
    kind: str  # "image" or "video"
    grid: tuple[int, ...]  # before merging
    seconds: list[float] | None  # per frame pair, if known


def wrong(result: Any, text: str, status: str = "QV_EINVAL") -> Error:
    return error(status, f"{result.key}: {text}" if result.key else text, result.key)


def as_list(results: Any, *of_one: Any) -> list[Any]:
    results = [results] if hasattr(results, "grid_thw") else _check.items(results, "results")
    for result in results:
        if not all(hasattr(result, name) for name in ("grid_thw", "key", "model_type", "timestamps", "is_image", "__len__")):
            raise _check.wrong("a result", result, "Tokens or an Entry of a Cache")
    if len(results) != 1 and any(about is not None for about in of_one):
        raise error("QV_EINVAL", f"is_image and timestamps describe one result, but there are {len(results)}")
    return results


def items_of(result: Any, is_image: bool | None = None, timestamps: Any = None) -> list[Item]:
    """Returns the Items of a result. is_image and timestamps, if passed, replace the result's own."""
    grids = integers(_check.rows_of(result.grid_thw), "grid_thw")
    patches, n = sum(math.prod(grid) for grid in grids), len(result)
    per_token = patches // n if n else 0
    if not per_token or per_token * n != patches or math.isqrt(per_token) ** 2 != per_token:
        raise wrong(result, f"grid_thw has {patches} patches, which do not match {n} tokens")
    if len(grids) > 1 and timestamps is not None:
        raise wrong(result, f"timestamps describe one clip; this result has {len(grids)} items")
    seconds = result.timestamps if timestamps is None else timestamps
    is_image = result.is_image if is_image is None else is_image
    items, first = [], 0
    for grid in grids:
        n_tokens = math.prod(grid) // per_token
        kind = _kind(is_image, grid, result)
        pairs = pair_seconds(seconds, grid[0], result) if kind == "video" and seconds is not None else None
        items.append(Item(result, first, n_tokens, kind, tuple(grid), pairs))
        first += n_tokens
    return items


def _kind(is_image: bool | None, grid: list[int], result: Any) -> str:
    if is_image is None and grid[0] == 1:
        raise wrong(result, "this is either an image or a clip of one frame pair: pass is_image=True or is_image=False")
    if is_image and grid[0] > 1:
        raise wrong(result, f"an image cannot have {grid[0]} frame pairs")
    return "image" if is_image else "video"


def pair_seconds(seconds: Any, n_pairs: int, result: Any) -> list[float]:
    """Returns the seconds of each frame pair: the middle of its two frames. If the number of frames
    is odd, the last frame is paired with itself."""
    seconds = _check.reals(seconds, "timestamps")
    seconds += seconds[-1:] * (len(seconds) % 2)
    if len(seconds) != 2 * n_pairs:
        raise wrong(result, f"timestamps cover {len(seconds) // 2} frame pairs, but grid_thw has {n_pairs}")
    return [(first + second) / 2 for first, second in zip(seconds[::2], seconds[1::2])]


def damage_of(result: Any) -> str:
    """Describes a result's damage, as the command prints it; "" if there is none."""
    n: int = result.damaged_frames
    if n and result.is_image:
        return "the image is damaged: the undecodable parts are a guess"
    return f"{n} damaged frame{' was' if n == 1 else 's were'} replaced by the previous frame" if n else ""
