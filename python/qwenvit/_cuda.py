# SPDX-License-Identifier: MIT
"""Finds NVIDIA's libraries, which the CUDA backend needs and the wheel does not contain."""

from __future__ import annotations

import ctypes
import glob
import os
import sys

from . import _core

OLDEST_CUDNN = 91500


def _needed() -> dict[str, str]:
    """Maps each soname to the PyPI package that contains it; empty in a build without CUDA."""
    major = _core.cuda_major
    if not major:
        return {}
    return {f"libcublasLt.so.{major}": "nvidia-cublas", "libcudnn.so.9": f"nvidia-cudnn-cu{major}"}


def _places() -> list[str]:
    """Returns the folders in which Python finds packages. The working folder, which Python puts first
    for -c and -m, is left out unless this package lies there: it may belong to anybody, and the
    libraries in it are code."""
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    try:
        here = os.path.realpath(os.getcwd())
    except FileNotFoundError:
        here = None
    return [p for p in sys.path if os.path.isabs(p) and (p == own or os.path.realpath(p) != here)]


def folders() -> list[str]:
    """Returns the folders of NVIDIA's wheels that contain needed libraries."""
    found = []
    for soname in _needed():
        for path in _places():
            pattern = os.path.join(glob.escape(path), "nvidia", "*", "lib", soname)
            found += [os.path.dirname(os.path.abspath(f)) for f in sorted(glob.glob(pattern))]
    return list(dict.fromkeys(found))


def _open(soname: str, places: list[str]) -> ctypes.CDLL | str:
    """Loads a library: the one already in the process, otherwise from the folders, otherwise from the
    system. Returns its handle, or the error message."""
    try:
        return ctypes.CDLL(soname, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        pass
    words = None
    for name in [*(os.path.join(p, soname) for p in places if os.path.exists(os.path.join(p, soname))), soname]:
        try:
            return ctypes.CDLL(name)
        except OSError as e:
            words = words or str(e)
    return words or soname


def _where(soname: str) -> str:
    """Returns the file that a library of this process was loaded from."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")
            if soname in os.path.basename(path[2]):
                return "/" + path[2]
    return soname


def prepare() -> str:
    """Loads the libraries that libqwenvit_cuda.so is linked with, so that the loader then finds
    them by name. It prefers those already in the process (torch's), then those in NVIDIA's wheels
    (so that torch, if imported later, gets its own), then the system's. Returns a message about each
    library that is missing or too old; "" if all is well, and also without a driver, since the core
    reports that."""
    words, needed = [], _needed()
    if not needed or isinstance(_open("libcuda.so.1", []), str):
        return ""
    places = folders()
    for soname, package in needed.items():
        library = _open(soname, places)
        if isinstance(library, str):
            words.append(f"{soname} ({package} on PyPI) cannot be loaded: {library}")
        elif soname.startswith("libcudnn"):
            library.cudnnGetVersion.restype = ctypes.c_size_t
            version = library.cudnnGetVersion()
            if version < OLDEST_CUDNN:
                words.append(
                    f"cuDNN is {version // 10000}.{version // 100 % 100}.{version % 100} in {_where(soname)}; "
                    f"9.15 or newer is needed ({package} on PyPI)"
                )
    return f"{'; '.join(words)}. pip install 'qwenvit[cuda]' installs both" if words else ""
