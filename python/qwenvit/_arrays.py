# SPDX-License-Identifier: MIT
"""Uses numpy if it is installed, and represents bf16, which numpy lacks."""

from __future__ import annotations

import sys
from operator import index
from typing import Any

from ._error import error

MOST = 1 << 62  # the largest number that the core accepts


def numpy() -> Any:
    """Returns the module numpy, or None."""
    try:
        import numpy
    except ImportError:
        return None
    return numpy


def needed_numpy(what: str) -> Any:
    np = numpy()
    if np is None:
        raise error("QV_EUNSUPPORTED", f"{what} needs numpy")
    return np


def to_numpy(raw: Any, bf16: bool = False) -> Any:
    """Returns the binding's array as a numpy array, without a copy (bf16 as uint16). Without numpy it is
    returned unchanged."""
    np = numpy()
    if np is None:
        return raw
    array = np.from_dlpack(raw)
    return as_bf16(array) if bf16 else array


def as_bf16(array: Any) -> Any:
    """Views uint16 bits as ml_dtypes.bfloat16 if that package is installed; otherwise returns them
    unchanged."""
    try:
        import ml_dtypes
    except ImportError:
        return array
    return array.view(ml_dtypes.bfloat16)


def is_torch(x: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def no_gradient(x: object, what: str) -> None:
    """Refuses a torch tensor that requires a gradient, because the tower computes none."""
    if getattr(x, "requires_grad", False) is True:
        raise error("QV_EINVAL", f"{what} requires a gradient, but this tower computes none; call .detach() first")


def shareable(x: Any, what: str) -> tuple[Any, bool]:
    """Returns x as the binding accepts it: (array, whether its uint16 values are bf16)."""
    no_gradient(x, what)
    dtype = getattr(x, "dtype", None)
    if type(x).__module__ == "numpy" and str(dtype) in ("bfloat16", "uint16"):
        return x.view("uint16"), True
    return x, False


CUDA = 2  # DLPack's number for CUDA devices


def cuda_device(x: Any) -> int:
    """Returns the number of the CUDA device that holds an array, or -1."""
    kind, device = x.__dlpack_device__() if hasattr(x, "__dlpack_device__") else (0, 0)
    return device if kind == CUDA else -1


def in_order(x: Any, stream: int) -> Any:
    """Returns an array on a CUDA device as a DLPack capsule, after ordering a stream of that device behind
    the work that makes the array."""
    if not is_torch(x):
        return x.__dlpack__(stream=stream)
    with sys.modules["torch"].cuda.device(cuda_device(x)):  # torch assumes that the stream is the current device's
        return x.__dlpack__(stream=stream)


def current_stream(torch: Any, device: int) -> int:
    """Returns a CUDA device's current stream as a number. It prefers the function that torch's own
    kernels use, because torch.cuda.current_stream creates an object and takes ten times as long."""
    short = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return short(device) if short else torch.cuda.current_stream(device).cuda_stream


def number_of(stream: Any) -> Any:
    """Returns the number of a CUDA stream, which is a torch stream or already a number; 0 for None.
    torch's default stream has no usable number, so another torch stream replaces it, and events order
    the two; torch keeps its streams until the process ends."""
    if not hasattr(stream, "cuda_stream"):
        return 0 if stream is None else stream
    return stream.cuda_stream or sys.modules["torch"].cuda.Stream(stream.device).cuda_stream


def integers(x: Any, what: str) -> list[list[int]]:
    """Returns a list of lists of ints, from an array or a sequence of rows."""
    x = x.tolist() if hasattr(x, "tolist") else x
    try:
        rows = [[index(v) for v in row] for row in x]
        if all(-MOST < v < MOST for row in rows for v in row):
            return rows
    except TypeError:
        pass
    raise error("QV_EINVAL", f"{what} must be rows of three integers, [items, 3]")
