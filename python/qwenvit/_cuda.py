# SPDX-License-Identifier: MIT
"""Finds NVIDIA's libraries, which the CUDA backend needs and the wheel has not."""

import ctypes
import glob
import os
import sys

from . import _core

OLDEST_CUDNN = 91500


def _needed():
    """{soname: the package that has it on PyPI}; empty where this was built without CUDA."""
    major = _core.cuda_major
    if not major:
        return {}
    return {f"libcublasLt.so.{major}": "nvidia-cublas", "libcudnn.so.9": f"nvidia-cudnn-cu{major}"}


def _places():
    """Where packages are installed that Python sees. The working folder is none of them, though Python puts it in
    front for -c and -m: it may be anybody's, and libraries in it are code. Unless this package lies there."""
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    try:
        here = os.path.realpath(os.getcwd())
    except FileNotFoundError:
        here = None
    return [p for p in sys.path if os.path.isabs(p) and (p == own or os.path.realpath(p) != here)]


def folders():
    """Where NVIDIA's wheels have libraries that we need, beside any package that Python sees."""
    found = []
    for soname in _needed():
        for path in _places():
            pattern = os.path.join(glob.escape(path), "nvidia", "*", "lib", soname)
            found += [os.path.dirname(os.path.abspath(f)) for f in sorted(glob.glob(pattern))]
    return list(dict.fromkeys(found))


def _open(soname, places):
    """A library by what the process has already, in folders, or as the system finds it: its handle, or words."""
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
    return words


def _where(soname):
    """The file that a library of this process was read from."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")
            if soname in os.path.basename(path[2]):
                return "/" + path[2]
    return soname


def prepare():
    """Loads what libqwenvit_cuda.so is linked with, which the loader then takes by its name: what is in this
    process (torch's), else NVIDIA's wheels, so that torch, imported later, has its own, else the system's.
    Returns words on each that is missing or too old; "" if all is well, or there is no driver, of which the
    core speaks."""
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
    return f"{'; '.join(words)}. pip install 'qwenvit[cuda]' has both" if words else ""
