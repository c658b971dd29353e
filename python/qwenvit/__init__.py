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

from ._core import Error, version as __version__
from ._model import Model, Pixels, Tokens, devices, load

__all__ = [
    "Cache", "CacheWriter", "Error", "Model", "Pixels", "Tokens", "devices", "engines", "load", "patch", "prompt",
    "unpatch",
]


def __dir__():
    return sorted({*globals(), *__all__})


def __getattr__(name):  # modules that need other packages are imported when they are first used
    if name == "Cache":
        from ._cache import Cache

        return Cache
    if name == "CacheWriter":
        from ._cache_writer import CacheWriter

        return CacheWriter
    if name in ("patch", "unpatch"):
        from . import _patch

        return getattr(_patch, name)
    if name == "prompt":
        from ._prompt import prompt

        return prompt
    if name == "engines":
        import importlib

        return importlib.import_module(".engines", __name__)
    raise AttributeError(f"module 'qwenvit' has no attribute {name!r}")
