# SPDX-License-Identifier: MIT
"""Tests every argument of every public call with values that nobody means: it works, or raises a
qwenvit.Error with a text."""
import decimal
import importlib.util
import itertools

import numpy as np
import pytest

import qwenvit
from conftest import added
from qwenvit.adapters import engines

NAN = float("nan")
WRONG = [
    None, True, -1, 0, 3, 10**9, 2**63, -(2**63), 10**30, 10**5000, 1e9, -1e9, 0.5, NAN, float("inf"), 1j,
    decimal.Decimal("nan"), "", "x", "\ud800", "a\0b", "1" * 10000, b"", b"\xff", [], [None], [1, 2], [[1, 2, 3]],
    [NAN], {}, {"a": 1}, {1: 2}, {"path": None}, object(), repr, len, Ellipsis, range(3), np.zeros(0), np.zeros((2, 2)),
    np.float32(NAN), np.array("x"), np.array(3), np.zeros((1, 1, 3), np.uint8), [["x"]], {"frames": [3]}, {"bytes": 5},
]
OPTIONS = ["fps", "start", "end", "num_frames", "min_frames", "max_frames", "min_pixels", "max_pixels", "total_pixels",
           "like", "threads", "decode_seconds", "max_seconds", "max_source_pixels", "usual_codecs", "decode_memory", "offset", "length", "first_frame", "timestamps", "nonsense"]


@pytest.fixture
def there(model, golden, expected, clip, frames, tmp_path, monkeypatch):
    """The names that the calls below begin with."""
    monkeypatch.chdir(tmp_path)
    added(model, "cache", [clip])
    (tmp_path / "ids").mkdir()
    (tmp_path / "ids" / "config.json").write_text('{"image_token_id": 5, "video_token_id": 6}')
    tokens, cache = model.encode(frames, fps=2), qwenvit.Cache("cache")
    return {"model": model, "golden": golden, "clip": str(clip), "frames": frames, "tokens": tokens, "cache": cache,
            "pixels": expected["pixel_values"], "grid": expected["grid_thw"], "entry": cache[str(clip)]}


def consume(results):
    """Returns the first of many."""
    if hasattr(results, "close"):
        for result in itertools.islice(results, 2):
            assert isinstance(result, (qwenvit.Tokens, qwenvit.Error))
        results.close()


def calls(t):
    """name: a call, and arguments with which it works."""
    model, tokens = t["model"], t["tokens"]
    options = dict.fromkeys(OPTIONS)

    def encode(source=None, **given):
        consume(model.encode(source, **given))

    def write(**given):
        with qwenvit.CacheWriter(**given):
            pass

    engine = {"results": tokens, "is_image": None, "timestamps": None, "second_per_grid_ts": None}
    return {
        "load": (lambda **given: qwenvit.load(**{"threads": 1, **given}).close(),
                 {"path": t["golden"], "backend": "cpu", "dtype": "f32", "device": "cpu", "threads": 1, "stream": None,
                  "kernel_folder": "", "image_mean": None, "image_std": None}),
        "forward": (model.forward, {"pixel_values": t["pixels"], "grid_thw": t["grid"], "dtype": "f32"}),
        "encode a clip": (encode, {"source": t["clip"], "frames": None, "dtype": "f32", "progress": None,
                                   "errors": "raise", "ordered": True, "decoders": 1, **options}),
        "encode frames": (encode, {"source": t["frames"], **options}),
        "encode many": (encode, {"source": [t["clip"]], "progress": None, "errors": "yield", "decoders": 1,
                                 "fps": None, "timestamps": None}),
        "in a list": (lambda source: consume(model.encode([source])), {"source": t["clip"]}),
        "in a list in a list": (lambda source: consume(model.encode([[source]])), {"source": t["frames"][0]}),
        "a dict": (lambda **given: consume(model.encode([{k: v for k, v in given.items() if v is not None}])),
                   {"path": t["clip"], "key": None, "bytes": None, "frames": None, "image": None, "fps": None}),
        "preprocess": (model.preprocess, {"source": t["clip"], "frames": None, "fps": None, "timestamps": None}),
        "save": (tokens.save, {"path": "tokens", "metadata": None, "dtype": None}),
        "Model": (qwenvit.Model, {"core": None}),
        "prompt": (qwenvit.prompt, {"results": tokens, "text": None, "outer": True, "is_image": None,
                                    "timestamps": None, "model_type": None}),
        "patch": (qwenvit.patch, {"model": None}),
        "unpatch": (qwenvit.unpatch, {"model": None}),
        "Cache": (qwenvit.Cache, {"folder": "cache"}),
        "CacheWriter": (write, {"model": model, "folder": "other", "tokens": "bf16", "deepstack": True, "packed": False,
                                "retry_failed": False, "part_bytes": 0, "part_seconds": 0, "decoders": 0, "fps": None,
                                "like": None, "nonsense": None}),
        "add": (qwenvit.CacheWriter(model, "third").add, {"rows": [], "progress": None}),
        "save_ec": (t["entry"].save_ec, {"path": "ec", "hash": "x"}),
        "to_vllm": (engines.to_vllm, {**engine, "embeddings": False, "version": None}),
        "to_sglang": (engines.to_sglang, {**engine, "version": None}),
        "to_transformers": (engines.to_transformers, engine),
        "accept_tokens": (engines.accept_tokens, {"model": None}),
        "mm_token_type_ids": (engines.mm_token_type_ids, {"input_ids": [1], "of": "ids"}),
    }


NAMES = ["load", "forward", "encode a clip", "encode frames", "encode many", "in a list", "in a list in a list",
         "a dict", "preprocess", "save", "Model", "prompt", "patch", "unpatch", "Cache", "CacheWriter", "add",
         "save_ec", "to_vllm", "to_sglang", "to_transformers", "accept_tokens", "mm_token_type_ids"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_wrong_arguments_are_errors_in_words(there, name):
    call, right = calls(there)[name]
    allowed = (qwenvit.Error,)
    if name.startswith("to_") and importlib.util.find_spec("torch") is None:
        allowed += (ImportError,)
    refused, odd = 0, []
    for parameter, (i, value) in itertools.product(right, enumerate(WRONG)):
        try:
            call(**{**right, parameter: value})
        except allowed as e:
            refused += 1
            if not str(e) or isinstance(e, qwenvit.Error) and not e.status:
                odd.append(f"{parameter}, WRONG[{i}]: no words")
        except Exception as e:
            odd.append(f"{parameter}, WRONG[{i}]: {type(e).__name__}: {e}")
    assert refused and not odd, "\n".join(odd)


def test_nothing_is_left_out(there):
    """Every public name has its calls above."""
    made = calls(there)
    assert set(NAMES) == set(made)
    public = {name for name in dir(qwenvit) if not name.startswith("_") and callable(getattr(qwenvit, name))}
    assert public - set(made) == {"AsyncEncoder", "Entry", "Error", "FileError", "InputError", "OutOfMemoryError", "Pixels", "Tokens", "devices", "is_patched"}
    functions = {name for name in dir(engines) if callable(getattr(engines, name)) and name[0].islower()}
    ours = {name for name in functions if getattr(engines, name).__module__ == engines.__name__}
    assert ours - set(made) == {"reject_tokens", "check_version", "installed"}
    assert {"load", "prompt", "Cache", "CacheWriter", "patch", "__version__"} <= set(dir(qwenvit))
