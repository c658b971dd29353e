# SPDX-License-Identifier: MIT
"""Writes files that appear whole or not at all, and the header of a safetensors file."""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO

DTYPES = {"bf16": ("BF16", 2), "f16": ("F16", 2), "f32": ("F32", 4)}  # safetensors' names, and bytes


@contextlib.contextmanager
def whole(path: str) -> Iterator[BinaryIO]:
    """Yields a file that gets its name once everything written to it is on the disk."""
    unfinished = f"{path}.{os.getpid()}-{os.urandom(8).hex()}"
    try:
        with open(unfinished, "wb") as f:
            yield f
            f.flush()
            os.fsync(f.fileno())
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise


def header(tensors: dict[str, Any]) -> bytes:
    text = json.dumps(tensors).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text
