# SPDX-License-Identifier: MIT
"""The text around vision tokens: what a processor inserts into a chat in place of a clip or an
image."""

from __future__ import annotations

import collections
import re
from typing import Any

from . import _check
from ._error import error
from .adapters.items import FAMILIES, NO_SECONDS, PADS, Item, as_list, items_of, wrong

START, END = "<|vision_start|>", "<|vision_end|>"
def family_of(result: Any, model_type: str | None = None) -> str:
    name = result.model_type if model_type is None else model_type
    if not isinstance(name, str) or name not in FAMILIES:
        words = f"model_type is {_check.shown(name)}; it must be one of {', '.join(FAMILIES)}"
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
    """Returns a chat's text around vision tokens, as transformers' processors for Qwen2-VL,
    Qwen2.5-VL, Qwen3-VL, Qwen3.5 and Qwen4-exp make it.

    results: Tokens or a Cache's Entry, or several of them.
    text: the output of a chat template, with one `<|image_pad|>` or `<|video_pad|>` for each image
        and clip of the results, which replace them in order. None: the text of the results alone,
        each between `<|vision_start|>` and `<|vision_end|>`.
    outer: a Qwen3 clip has `<t seconds>` and these two markers around each frame pair; outer says
        whether the template's own markers stay around the whole (as in transformers 5.10 and later)
        or are removed (4.57).
    is_image, timestamps, model_type: for one result that lacks them: forward() cannot tell images
        from clips, and frames have no seconds.

    Raises Error for a family with unknown prompts, a Qwen3 clip without timestamps, or placeholders
    that do not match the results.
    """
    is_image = is_image if is_image is None else _check.flag(is_image, "is_image")
    if text is not None and not isinstance(text, str):
        raise _check.wrong("text", text, "a string or None")
    outer = _check.flag(outer, "outer")
    order = []  # (kind, the text that replaces the placeholder, whether it has seconds)
    for result in as_list(results, is_image, timestamps):
        with_seconds = FAMILIES[family_of(result, model_type)]
        for item in items_of(result, is_image, timestamps):
            order.append((item.kind, _inner(item, with_seconds), with_seconds))
    if text is None:
        return "".join(_whole(*piece, outer) for piece in order)
    return _fill(text, order, outer)


def _inner(item: Item, with_seconds: bool) -> str:
    """Returns the text that replaces one placeholder."""
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
            what = "images" if kind == "image" else "clips"
            raise error("QV_EINVAL", f"text contains {found[kind]} {pad}; the results contain {len(waiting[kind])} {what}")

    def put(match: re.Match[str]) -> str:
        piece = waiting[kinds[match[1] or match[0]]].popleft()
        return _whole(*piece, outer) if match[1] else piece[1]

    return re.sub(pattern, put, text)
