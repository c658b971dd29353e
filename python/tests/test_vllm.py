# SPDX-License-Identifier: MIT
"""Tests vLLM's plugin: on stand-ins for what it uses of vLLM, and on vLLM's own code where QV_VLLM names an environment that
tools/reference/vllm_env.sh made."""
import collections
import importlib.metadata
import math
import os
import subprocess
import sys
import types

import numpy as np
import pytest

from conftest import GOLDEN, SITE, python
from qwenvit.adapters import vllm as plugin

REFERENCE = os.path.join(GOLDEN, "..", "..", "tools", "reference")


def smart_resize(num_frames, height, width, temporal_factor, factor, min_pixels, max_pixels):
    """The rule of transformers' Qwen3VLVideoProcessor."""
    h, w = (round(side / factor) * factor for side in (height, width))
    t = math.ceil(num_frames / temporal_factor) * temporal_factor
    if t * h * w > max_pixels:
        beta = math.sqrt(num_frames * height * width / max_pixels)
        h, w = (max(factor, math.floor(side / beta / factor) * factor) for side in (height, width))
    elif t * h * w < min_pixels:
        beta = math.sqrt(min_pixels / (num_frames * height * width))
        h, w = (math.ceil(side * beta / factor) * factor for side in (height, width))
    return h, w


class Qwen3VLVideoProcessor:
    temporal_patch_size, merge_size, patch_size = 2, 2, 4
    size = {"shortest_edge": 4096, "longest_edge": 200000}


class Theirs:
    """vLLM's own loader, as far as it is asked: Qwen3-VL's sampling."""

    def _prepare_source(self, source):
        return source

    def compute_frames_index_to_sample(self, source, target, min_frames=4, max_frames=768):
        n = min(max(int(source.total / source.rate * min(target.fps, 30)), min_frames), max_frames, source.total)
        return np.linspace(0, source.total - 1, n).round().astype(int).tolist()

    def create_hf_metadata(self, source, valid_frame_indices, video_backend):
        return {"total_num_frames": source.total, "fps": source.rate, "duration": source.duration, "video_backend": video_backend,
                "frames_indices": valid_frame_indices, "do_sample_frames": len(valid_frame_indices) == source.total}


@pytest.fixture
def loader(monkeypatch):
    """Returns what vLLM calls, and the names that were registered; the processor's class may be set."""
    names = {"qwen3_vl": Theirs}
    registry = types.SimpleNamespace(
        register=lambda name: lambda made: names.update({name: made}), load=lambda name: names[name](),
        get_backend_for_video_processor=lambda name: {"Qwen3VLVideoProcessor": "qwen3_vl", "Glm4vVideoProcessor": "glm"}.get(name),
    )

    def limit(width, height):
        if width * height > 100000:
            raise ValueError("VLLM_MAX_IMAGE_PIXELS")

    decoders = types.SimpleNamespace(VideoSourceMetadata=collections.namedtuple("Source", "total rate duration"),
                                     VideoTargetMetadata=collections.namedtuple("Target", "num_frames fps max_duration"),
                                     check_frame_pixel_limit=limit)
    made = types.SimpleNamespace(processor=Qwen3VLVideoProcessor, names=names)
    modules = {"vllm": types.ModuleType("vllm"), "vllm.multimodal": types.ModuleType("vllm.multimodal"),
               "vllm.multimodal.video": types.SimpleNamespace(VIDEO_LOADER_REGISTRY=registry), "vllm.multimodal.video_decoders": decoders,
               "transformers": types.SimpleNamespace(AutoVideoProcessor=types.SimpleNamespace(from_pretrained=lambda model: made.processor()))}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr("qwenvit.adapters.engines.installed", lambda engine: "0.33.0")
    plugin._processor_of.cache_clear()
    plugin.register()
    made.load = lambda data, **how: names["qwenvit"]().load_bytes(data, 32, model="any", **how)
    yield made
    plugin._processor_of.cache_clear()


@pytest.fixture(scope="module")
def data(movie):
    return movie.read_bytes()


def test_installing_the_wheel_changes_nothing_in_vllm():
    [entry] = [e for e in importlib.metadata.entry_points(group="vllm.general_plugins") if e.name == "qwenvit"]
    assert entry.value == "qwenvit.adapters.vllm:register"
    heavy = "import sys, qwenvit.adapters.vllm; print([m for m in ('vllm', 'torch', 'numpy', 'transformers') if m in sys.modules])"
    assert python(heavy).stdout.strip() == "[]"


def test_frames_come_at_the_processors_size(loader, data):
    whole, about = loader.load(data, fps=3, resize=False)
    small, same = loader.load(data, fps=3)
    assert about == same and about["do_sample_frames"] is False and about["video_backend"] == "qwenvit"
    assert len(whole) == len(small) == len(about["frames_indices"]) and whole.shape[1:] == (240, 320, 3)
    made = Qwen3VLVideoProcessor
    wanted = smart_resize(len(whole), 240, 320, 2, 8, made.size["shortest_edge"], made.size["longest_edge"])
    assert small.shape[1:3] == wanted != (240, 320) and small.dtype == whole.dtype == np.uint8
    # 11 frames would be 160x216 here, and the processor would make 160x224 of these: it gets whole ones
    loader.processor = type("Qwen3VLVideoProcessor", (made,), {"size": {"shortest_edge": 4096, "longest_edge": 410000}})
    plugin._processor_of.cache_clear()
    assert loader.load(data, fps=2.75)[0].shape == (11, 240, 320, 3)


def test_vllm_samples_by_the_headers_rate(loader, data):
    cut = bytearray(data)  # an edit list hides the first frames, which the header's rate counts
    at = cut.index(b"elst") + 16
    cut[at : at + 4] = (5000 + int.from_bytes(cut[at : at + 4], "big")).to_bytes(4, "big")
    frames, about = loader.load(bytes(cut), fps=2, resize=False)
    assert about["fps"] == 25 and about["total_num_frames"] == 90
    assert len(frames) == len(about["frames_indices"]) == int(90 / 25 * 2) == 7


def test_frames_are_those_that_vllm_samples(loader, data, monkeypatch):
    every, about = loader.load(data, fps=1000, min_frames=4, resize=False)  # vLLM takes at most 30 of a second
    assert about["frames_indices"] == list(range(about["total_num_frames"])) and about["total_num_frames"] == 100
    for how in ({}, {"fps": 7.5}, {"fps": 0.1}, {"fps": 2, "max_frames": 5}, {"fps": 45, "max_frames": 31}):
        some, known = loader.load(data, resize=False, **how)
        wanted = Theirs().compute_frames_index_to_sample(
            types.SimpleNamespace(total=100, rate=about["fps"]), types.SimpleNamespace(fps=how.get("fps", 2)),
            **{k: v for k, v in how.items() if k == "max_frames"})
        assert known["frames_indices"] == wanted and (some == every[wanted]).all()
    seven = np.linspace(0, 99, 7).round().astype(int).tolist()  # as many as only vLLM's function knows
    monkeypatch.setattr(Theirs, "compute_frames_index_to_sample", lambda *a, **k: seven)
    some, known = loader.load(data, resize=False)
    assert known["frames_indices"] == seven and (some == every[seven]).all()


def test_what_the_loader_refuses(loader, data, monkeypatch):
    for given, words in ((b"nonsense" * 50, "not a clip or image"), (b"P6\n64 64\n255\n" + bytes(3 * 64 * 64), "this is an image; a clip is needed"),
                         (data[:1000], "the clip")):
        with pytest.raises(ValueError, match=words):
            loader.load(given)
    with pytest.raises(ValueError, match='needs the checkpoint as "model"'):
        loader.names["qwenvit"]().load_bytes(data)
    monkeypatch.setattr(Theirs, "compute_frames_index_to_sample", lambda *a, **k: [0, 1, 5])
    with pytest.raises(ValueError, match=r"vLLM samples the frames \[0, 1, 5\]"):
        loader.load(data)
    monkeypatch.setattr(sys.modules["vllm.multimodal.video_decoders"], "check_frame_pixel_limit", lambda w, h: 1 / (w - 320))
    with pytest.raises(ZeroDivisionError):
        loader.load(data)
    loader.processor = type("Glm4vVideoProcessor", (), {})
    plugin._processor_of.cache_clear()
    with pytest.raises(ValueError, match="unknown video processor Glm4vVideoProcessor"):
        loader.load(data)
    monkeypatch.setattr("qwenvit.adapters.engines.installed", lambda engine: "0.34.0")
    with pytest.warns(UserWarning, match="vllm 0.34.0 has not been tested"):
        loader.names["qwenvit"]()


@pytest.mark.parametrize("script", ["vllm_proxy.py", "vllm_loader.py"])
def test_vllms_own_code(script, torn):
    folder = os.environ.get("QV_VLLM")
    if not folder:
        pytest.skip("QV_VLLM names no environment with vLLM; tools/reference/vllm_env.sh makes one")
    proxy = [os.path.join(folder, "disagg_epd_proxy.py")] if script == "vllm_proxy.py" else []
    command = [os.path.join(folder, "run"), os.path.join(REFERENCE, script), *proxy, torn[0]]
    run = subprocess.run(command, env={**os.environ, "PYTHONPATH": SITE}, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-3000:]
