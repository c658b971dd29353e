# SPDX-License-Identifier: MIT
"""The options of clips, as types. A test compares their names with those that the binding accepts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict


class ClipOptions(TypedDict, total=False):
    start: float | None
    end: float | None
    fps: float | None
    num_frames: int | None
    min_frames: int | None
    max_frames: int | None
    min_pixels: int | None
    max_pixels: int | None
    total_pixels: int | None
    cap_pixels: bool | None
    like: Literal["transformers", "qwen-vl-utils"] | None
    first_frame: bool | None
    decode: Literal["auto", "cpu", "gpu"] | None
    gpu: int | None
    threads: int | None
    decode_seconds: float | None
    max_seconds: float | None
    max_source_pixels: int | None
    usual_codecs: bool | None
    decode_memory: int | None
    offset: int | None
    length: int | None
    timestamps: Sequence[float] | None
    frames_indices: Sequence[int] | None
    total_num_frames: int | None
