# SPDX-License-Identifier: MIT
"""Uses numpy if it is installed, and represents bf16, which numpy lacks."""

from __future__ import annotations

import sys
from operator import index
from typing import Any

from ._error import error

MOST = 1 << 62  # the largest number that the core takes


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
    """Returns an array of ours as numpy's, without a copy (bf16 as uint16). Without numpy it is
    returned as it is."""
    np = numpy()
    if np is None:
        return raw
    array = np.from_dlpack(raw)
    return as_bf16(array) if bf16 else array


def as_bf16(array: Any) -> Any:
    """Views uint16 bits as ml_dtypes.bfloat16 if that package is installed; else returns them as
    they are."""
    try:
        import ml_dtypes
    except ImportError:
        return array
    return array.view(ml_dtypes.bfloat16)


def is_torch(x: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def no_gradient(x: object, what: str) -> None:
    """Refuses a tensor of torch that wants a gradient, as the tower computes none."""
    if getattr(x, "requires_grad", False) is True:
        raise error("QV_EINVAL", f"{what} requires a gradient, but this tower computes none; call .detach() first")


def shareable(x: Any, what: str) -> tuple[Any, bool]:
    """Returns x as the binding takes it: (array, whether its uint16 are bf16)."""
    no_gradient(x, what)
    dtype = getattr(x, "dtype", None)
    if type(x).__module__ == "numpy" and str(dtype) in ("bfloat16", "uint16"):
        return x.view("uint16"), True
    return x, False


CUDA = 2  # DLPack's number of this kind of device


def cuda_device(x: Any) -> int:
    """Returns the number of the CUDA device on which an array lies, or -1."""
    kind, device = x.__dlpack_device__() if hasattr(x, "__dlpack_device__") else (0, 0)
    return device if kind == CUDA else -1


def in_order(x: Any, stream: int) -> Any:
    """Returns an array on a CUDA device as a capsule of DLPack, once the work that makes it has been put
    in front of a stream of that device."""
    if not is_torch(x):
        return x.__dlpack__(stream=stream)
    with sys.modules["torch"].cuda.device(cuda_device(x)):  # torch takes the stream for its current device's
        return x.__dlpack__(stream=stream)


def current_stream(torch: Any, device: int) -> int:
    """Returns a CUDA device's current stream as a number. It takes torch's short way, meant for
    torch's own kernels, if there is one: torch.cuda.current_stream makes an object and takes ten
    times as long."""
    short = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return short(device) if short else torch.cuda.current_stream(device).cuda_stream


def number_of(stream: Any) -> Any:
    """Returns the number of a CUDA stream, torch's or a number itself; 0 for None. torch's default
    stream has no number that work could be given to, so another of torch's takes its place, to be
    ordered with it by events; torch keeps its streams until the process ends."""
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
    raise error("QV_EINVAL", f"{what}: must be rows of three whole numbers, [items, 3]")
