# SPDX-License-Identifier: MIT
"""Tests what eases the first hour: kinds of errors, tokens as arrays, chats and data: URLs as sources, batches."""
import base64
import os
import pickle
import sys
import tracemalloc
import urllib.parse
from pathlib import Path

import numpy as np
import pytest

import qwenvit
from conftest import GOLDEN, refused
from qwenvit._options import ClipOptions
from qwenvit.media import bytes_of_data


@pytest.fixture(scope="module")
def image(tmp_path_factory, frames):
    path = tmp_path_factory.mktemp("images") / "an image.png"
    pytest.importorskip("PIL.Image").fromarray(frames[0]).save(path)
    return str(path)


@pytest.fixture(scope="module")
def clip(movie):
    return str(movie)


def test_errors_are_of_the_kind_that_python_has(model, tmp_path):
    assert all(issubclass(kind, qwenvit.Error) for kind in (qwenvit.InputError, qwenvit.FileError, qwenvit.OutOfMemoryError))
    for call, kind, status in (
        (lambda: qwenvit.load(str(tmp_path / "none")), OSError, "QV_EIO"),
        (lambda: model.encode(str(tmp_path / "none.mp4")), OSError, "QV_EIO"),
        (lambda: model.encode(b"text"), ValueError, "QV_EFORMAT"),
        (lambda: model.encode(3), ValueError, "QV_EINVAL"),
        (lambda: qwenvit.load(3), ValueError, "QV_EINVAL"),
    ):
        with pytest.raises(kind) as raised:
            call()
        assert isinstance(raised.value, qwenvit.Error) and raised.value.status == status
        again = pickle.loads(pickle.dumps(raised.value))
        assert type(again) is type(raised.value) and str(again) == str(raised.value) and again.status == status
    refused(lambda: next(model.encode([1])), "source 0 is an int; it must be", "QV_EINVAL")
    memory = qwenvit._error.error("QV_ENOMEM", "none")
    assert isinstance(memory, MemoryError) and memory.status == "QV_ENOMEM"
    assert type(qwenvit._error.error("QV_EBACKEND", "x")) is qwenvit.Error


def test_tokens_are_an_array(model, clip):
    t = model.encode(clip, fps=2)
    assert np.array_equal(np.asarray(t), t.tokens) and np.shares_memory(np.asarray(t), t.tokens)
    assert np.asarray(t, dtype=np.float64).dtype == np.float64 and not np.shares_memory(np.array(t), t.tokens)
    assert np.array_equal(np.from_dlpack(t), t.tokens)
    tokens, deepstack = t
    assert np.array_equal(tokens, t.tokens) and len(deepstack) == len(t.deepstack)


def test_chats_are_sources(model, clip, image):
    plain = [model.encode(image), model.encode(clip, fps=1)]
    data = "data:image/png;base64," + base64.b64encode(Path(image).read_bytes()).decode()
    chat = [
        {"role": "system", "content": "You see."},
        {"role": "user", "content": [
            {"type": "text", "text": "What is it?"}, {"type": "image", "image": image},
            {"type": "video", "video": clip, "fps": 1}, {"type": "image_url", "image_url": {"url": data}},
            {"type": "image_url", "image_url": {"url": "file://" + urllib.parse.quote(image), "detail": "high"}},
        ]},
    ]
    found = list(model.encode(chat))
    for t, wanted in zip(found, [*plain, plain[0], plain[0]], strict=True):
        assert np.array_equal(t.tokens, wanted.tokens)
    assert [t.key for t in found] == [image, clip, "2", "file://" + urllib.parse.quote(image)]
    assert len(list(model.encode(chat[1]))) == 4
    for source in ({"type": "video", "video": clip, "nframes": 4}, {"video": clip, "num_frames": 4}):
        assert np.array_equal(model.encode(source).tokens, model.encode(clip, num_frames=4).tokens)
    assert np.array_equal(model.encode({"type": "video", "video": clip, "video_start": 0.5, "video_end": 1}).tokens,
                          model.encode(clip, start=0.5, end=1).tokens)
    assert np.array_equal(next(model.encode(s for s in [chat[1]["content"][1]])).tokens, plain[0].tokens)
    assert np.array_equal(model.preprocess(chat[1]["content"][1])[0], model.preprocess(image)[0])
    with pytest.raises(ValueError, match="contain no image or clip"):
        model.encode([{"role": "user", "content": "Hello"}])


def test_data_urls_are_sources(model, image):
    raw = Path(image).read_bytes()
    for url in ("data:;base64," + base64.b64encode(raw).decode(), "data:image/png," + urllib.parse.quote(raw)):
        t = model.encode(url)
        assert np.array_equal(t.tokens, model.encode(image).tokens) and t.key == "0"
    with pytest.raises(ValueError, match="source 0: data: URL is not valid base64"):
        model.encode("data:image/png;base64,!!")


def test_a_data_url_of_many_escapes_takes_little_memory():
    for text in ("%", "%41", "é%25%%4"):
        url = "data:," + text * (200_000 // len(text))
        tracemalloc.start()
        data = bytes_of_data(url, "data")
        assert tracemalloc.get_traced_memory()[1] < 12_000_000
        tracemalloc.stop()
        assert data == urllib.parse.unquote_to_bytes(url[6:])


def test_typed_options_are_those_of_the_binding():
    for name in ClipOptions.__annotations__:
        if name not in ("timestamps", "frames_indices", "total_num_frames"):
            with pytest.raises(ValueError, match=f"^{name} is "):
                qwenvit._core.check_options({name: object()})
    with pytest.raises(ValueError, match="fp"):
        qwenvit._core.check_options({"fp": 2})


def test_a_batch(model, clip, image):
    assert callable(qwenvit.torch.collate)  # also where torch is not
    torch = pytest.importorskip("torch")
    batch = [model.encode(image), model.encode(clip, fps=1)]
    out = qwenvit.torch.collate(batch)
    assert out["cu_seqlens"].tolist() == [0, len(batch[0]), len(batch[0]) + len(batch[1])]
    assert torch.equal(out["tokens"], torch.cat([t.torch()[0] for t in batch])) and out["grid_thw"].shape == (2, 3)
    assert qwenvit.torch.collate(batch, pad=True)["tokens"].shape[:2] == (2, max(map(len, batch)))


def test_a_patched_tower_shows_it():
    """On torch and transformers themselves; test_patch.py has stand-ins."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    sys.path.insert(0, os.path.join(os.path.dirname(GOLDEN), "..", "tools", "reference"))
    import common

    tower = common.load_tower(os.path.join(GOLDEN, "qwen3_vl"), "f32")
    whole = torch.nn.ModuleDict({"visual": tower})
    before = repr(whole)
    assert not qwenvit.is_patched(whole)
    qwenvit.patch(tower, backend="cpu", threads=1)
    assert "run by <qwenvit.Model qwen3_vl" in repr(whole) and qwenvit.is_patched(whole) and qwenvit.is_patched(tower)
    qwenvit.unpatch(tower)
    assert repr(whole) == before and not qwenvit.is_patched(whole)
