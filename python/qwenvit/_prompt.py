# SPDX-License-Identifier: MIT
"""The text that belongs to vision tokens: what a processor puts into a chat in place of a clip or
an image."""

from __future__ import annotations

import collections
import math
import re
from typing import Any, NamedTuple

from . import _check
from ._arrays import integers
from ._error import Error, error

START, END = "<|vision_start|>", "<|vision_end|>"
PADS = {"image": "<|image_pad|>", "video": "<|video_pad|>"}
# whether a clip has the seconds of each frame pair in front of it, and markers around each
FAMILIES = {
    "qwen2_vl": False, "qwen2_5_vl": False, "qwen3_vl": True, "qwen3_vl_moe": True,
    "qwen3_5": True, "qwen3_5_moe": True, "qwen4_exp": True,
}
NO_SECONDS = "a clip without timestamps, which its prompt needs: give timestamps=, the seconds of each frame"


class Item(NamedTuple):
    """A clip or image of a result."""

    result: Any
    first: int  # of its rows of tokens
    n: int
    kind: str  # "image" or "video"
    grid: tuple[int, ...]  # before merging
    seconds: list[float] | None  # of its frame pairs, if known


def wrong(result: Any, text: str, status: str = "QV_EINVAL") -> Error:
    return error(status, f"{result.key}: {text}" if result.key else text, result.key)


def family_of(result: Any, model_type: str | None = None) -> str:
    name = result.model_type if model_type is None else model_type
    if not isinstance(name, str) or name not in FAMILIES:
        words = f"model_type is {_check.shown(name)}; prompts are known of {', '.join(FAMILIES)}"
        raise wrong(result, words, "QV_EUNSUPPORTED")
    return name


def prompt(
    results: Any,
    text: str | None = None,
    *,
    outer: bool = True,
    is_image: bool | None = None,
    timestamps: Any = None,
    model_type: str | None = None,
) -> str:
    """Returns a chat's text around vision tokens, as transformers' processors of Qwen2-VL,
    Qwen2.5-VL, Qwen3-VL, Qwen3.5 and Qwen4-exp make it.

    results: Tokens or a Cache's Entry, or several of them.
    text: what a chat template gives, with one `<|image_pad|>` or `<|video_pad|>` for each image and
        clip of the results, which take these places in order. None: the text of the results alone,
        each between `<|vision_start|>` and `<|vision_end|>`.
    outer: a Qwen3 clip has `<t seconds>` and these two markers around each frame pair; outer says
        whether the template's own markers stay around the whole (as in transformers 5.10 and later)
        or are removed (4.57).
    is_image, timestamps, model_type: for one result that does not know them: forward() does not
        know what is an image, and frames have no seconds.

    Raises Error for a family whose prompts are unknown, a Qwen3 clip without timestamps, or
    placeholders that do not match.
    """
    is_image = is_image if is_image is None else _check.flag(is_image, "is_image")
    if text is not None and not isinstance(text, str):
        raise _check.wrong("text", text, "a text, or None")
    outer = _check.flag(outer, "outer")
    order = []  # (kind, what replaces the placeholder, whether it has seconds)
    for result in as_list(results, is_image, timestamps):
        with_seconds = FAMILIES[family_of(result, model_type)]
        for item in items_of(result, is_image, timestamps):
            order.append((item.kind, _inner(item, with_seconds), with_seconds))
    if text is None:
        return "".join(_whole(*piece, outer) for piece in order)
    return _fill(text, order, outer)


def as_list(results: Any, *of_one: Any) -> list[Any]:
    results = [results] if hasattr(results, "grid_thw") else _check.items(results, "results")
    for result in results:
        if not all(hasattr(result, name) for name in ("grid_thw", "key", "model_type", "timestamps", "is_image", "__len__")):
            raise _check.wrong("a result", result, "Tokens, or an Entry of a Cache")
    if len(results) != 1 and any(about is not None for about in of_one):
        raise error("QV_EINVAL", f"is_image and timestamps describe one result, and there are {len(results)}")
    return results


def items_of(result: Any, is_image: bool | None = None, timestamps: Any = None) -> list[Item]:
    """Returns the Items of a result. is_image and timestamps are used if it does not know them, or
    in place of what it knows."""
    grids = integers(_check.rows_of(result.grid_thw), "grid_thw")
    patches, n = sum(math.prod(grid) for grid in grids), len(result)
    per_token = patches // n if n else 0
    if not per_token or per_token * n != patches or math.isqrt(per_token) ** 2 != per_token:
        raise wrong(result, f"grid_thw has {patches} patches, for {n} tokens")
    if len(grids) > 1 and timestamps is not None:
        raise wrong(result, f"timestamps belong to one clip; this result has {len(grids)} items")
    seconds = result.timestamps if timestamps is None else timestamps
    is_image = result.is_image if is_image is None else is_image
    items, first = [], 0
    for grid in grids:
        n_tokens = math.prod(grid) // per_token
        kind = _kind(is_image, grid, result)
        pairs = _pair_seconds(seconds, grid[0], result) if kind == "video" and seconds is not None else None
        items.append(Item(result, first, n_tokens, kind, tuple(grid), pairs))
        first += n_tokens
    return items


def _kind(is_image: bool | None, grid: list[int], result: Any) -> str:
    if is_image is None and grid[0] == 1:
        raise wrong(result, "an image, or a clip of one frame pair? Say is_image=True or is_image=False")
    if is_image and grid[0] > 1:
        raise wrong(result, f"an image of {grid[0]} frame pairs")
    return "image" if is_image else "video"


def _pair_seconds(seconds: Any, n_pairs: int, result: Any) -> list[float]:
    """Returns the seconds of each frame pair: the middle of its two frames. If the number of frames
    is odd, the last frame is a pair with itself."""
    seconds = _check.reals(seconds, "timestamps")
    seconds += seconds[-1:] * (len(seconds) % 2)
    if len(seconds) != 2 * n_pairs:
        raise wrong(result, f"timestamps are of {len(seconds) // 2} frame pairs, grid_thw has {n_pairs}")
    return [(first + second) / 2 for first, second in zip(seconds[::2], seconds[1::2])]


def _inner(item: Item, with_seconds: bool) -> str:
    """Returns what replaces one placeholder."""
    pad = PADS[item.kind]
    if item.kind == "image" or not with_seconds:
        return pad * item.n
    if item.seconds is None:
        raise wrong(item.result, NO_SECONDS)
    pair = START + pad * (item.n // item.grid[0]) + END
    return "".join(f"<{s:.1f} seconds>{pair}" for s in item.seconds)


def _whole(kind: str, inner: str, with_seconds: bool, outer: bool) -> str:
    bare = kind == "video" and with_seconds and not outer
    return inner if bare else START + inner + END


def _fill(text: str, order: list[tuple[str, str, bool]], outer: bool) -> str:
    waiting = {kind: collections.deque(p for p in order if p[0] == kind) for kind in PADS}
    kinds = {pad: kind for kind, pad in PADS.items()}
    one_pad = "|".join(map(re.escape, kinds))
    pattern = f"{re.escape(START)}({one_pad}){re.escape(END)}|{one_pad}"
    found = collections.Counter(kinds[m[1] or m[0]] for m in re.finditer(pattern, text))
    for kind, pad in PADS.items():
        if found[kind] != len(waiting[kind]):
            what = "an image" if kind == "image" else "a clip"
            raise error(
                "QV_EINVAL", f"text has {found[kind]} {pad}; there are {len(waiting[kind])} results of {what}"
            )

    def put(match: re.Match[str]) -> str:
        piece = waiting[kinds[match[1] or match[0]]].popleft()
        return _whole(*piece, outer) if match[1] else piece[1]

    return re.sub(pattern, put, text)
