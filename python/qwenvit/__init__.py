# SPDX-License-Identifier: MIT
"""Qwen-VL vision towers in C: clips and images go in, vision tokens come out.

    model = qwenvit.load("Qwen3-VL-4B-Instruct")
    tokens = model.encode("clip.mp4", fps=2)
    tokens.tokens      # [n, out_hidden]
    tokens.deepstack   # a list of arrays of the same shape, if the family has DeepStack

    qwenvit.patch(hf_model)           # qwenvit's tower inside a loaded transformers model
    qwenvit.Cache("tokens")["a.mp4"]  # a cache that `qwenvit cache` made, read without copies
    qwenvit.prompt(tokens)            # the text around the tokens, for an engine such as vLLM
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._core import version as __version__
from ._error import Error, FileError, InputError, OutOfMemoryError
from ._model import Model, devices, load
from ._tokens import Pixels, Tokens

if TYPE_CHECKING:
    from . import torch
    from ._async import AsyncEncoder
    from ._cache import Cache, Entry
    from ._cache_writer import CacheWriter
    from ._patch import is_patched, patch, unpatch
    from ._prompt import prompt

__all__ = [
    "AsyncEncoder", "Cache", "CacheWriter", "Entry", "Error", "FileError", "InputError", "Model", "OutOfMemoryError", "Pixels",
    "Tokens", "devices", "is_patched", "load", "patch", "prompt", "unpatch", "__version__",
]
# names whose modules are imported on first use; torch is itself a module
_LATER = {
    "AsyncEncoder": "_async", "Cache": "_cache", "CacheWriter": "_cache_writer", "Entry": "_cache", "is_patched": "_patch",
    "patch": "_patch", "prompt": "_prompt", "torch": "torch", "unpatch": "_patch",
}


def __dir__() -> list[str]:
    return sorted(__all__)


if not TYPE_CHECKING:  # type checkers would otherwise accept any attribute of this module

    def __getattr__(name: str) -> Any:
        if name in _LATER:
            module = import_module(f".{_LATER[name]}", __name__)
            return module if name == "torch" else getattr(module, name)
        raise AttributeError(f"module 'qwenvit' has no attribute {name!r}")
