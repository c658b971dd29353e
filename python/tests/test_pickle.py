# SPDX-License-Identifier: MIT
"""Tests that results leave the process that made them, as a DataLoader's worker has them do."""
import concurrent.futures
import copy
import multiprocessing
import pickle

import numpy as np
import pytest

import qwenvit
from conftest import SITE, python, refused

SAID = ("key", "is_image", "timestamps", "sampled_fps", "second_per_grid_ts", "damaged_frames", "damage", "remark")
OF_TOKENS = (*SAID, "index", "dtype", "model_type", "decoded_by", "not_gpu", "tokens", "hidden_states", "grid_thw")
WAYS = {
    "pickle": lambda x: pickle.loads(pickle.dumps(x)), "protocol 2": lambda x: pickle.loads(pickle.dumps(x, 2)),
    "copy": copy.copy, "deepcopy": copy.deepcopy,
}


def same(a, b):
    return np.array_equal(a, b) if isinstance(a, np.ndarray) else type(a) is type(b) and a == b


def is_like(a, b, names):
    return {name for name in names if not same(getattr(a, name), getattr(b, name))} == set()


@pytest.mark.parametrize("way", WAYS)
def test_tokens_are_copied_with_all_that_they_say(golden, native, clip, torn, frames, expected, tmp_path, way):
    model = qwenvit.load(golden, backend=native, dtype="bf16", threads=1)
    results = [model.encode(clip, fps=5), model.encode(frames[0]), model.encode({"frames": frames, "fps": 2, "key": "é"}),
               model.encode(clip, fps=5, dtype="bf16"), model.forward(expected["pixel_values"], expected["grid_thw"]),
               model.encode(clip, fps=5, hidden_states=True), model.encode(torn[1])]
    assert results[-1].damaged_frames > 0  # its file has the preprocessing as it was at the end of the clip
    for i, tokens in enumerate(results):
        other = WAYS[way](tokens)
        assert type(other) is qwenvit.Tokens and is_like(other, tokens, OF_TOKENS) and repr(other) == repr(tokens)
        assert all(map(same, other.deepstack, tokens.deepstack)) and len(other.deepstack) == len(tokens.deepstack)
        tokens.save(tmp_path / f"{i}.safetensors")
        other.save(tmp_path / f"{i}.copy.safetensors")
        assert (tmp_path / f"{i}.safetensors").read_bytes() == (tmp_path / f"{i}.copy.safetensors").read_bytes()


@pytest.mark.parametrize("way", WAYS)
def test_pixels_are_copied_with_all_that_they_say(model, clip, frames, way):
    for pixels in (model.preprocess(clip, fps=5), model.preprocess(frames[0])):
        other = WAYS[way](pixels)
        assert type(other) is qwenvit.Pixels and is_like(other, pixels, (*SAID, "pixel_values", "grid_thw"))
        assert repr(other) == repr(pixels) and "Pixels [" in repr(pixels)
        assert same(model.forward(*other).tokens, model.forward(*pixels).tokens)


def test_pixels_are_collated(model, frames):
    """As torch's default_collate and pin_memory do with a named tuple: the type is called with its fields."""
    batch = [model.preprocess(frames), model.preprocess(frames[::-1])]
    assert all(isinstance(p, tuple) and hasattr(p, "_fields") for p in batch)
    made = type(batch[0])(*(np.stack(samples) for samples in zip(*batch)))
    assert made.pixel_values.shape == (2, *batch[0].pixel_values.shape) and made.grid_thw.shape == (2, 1, 3)
    for one in (made, made._replace(grid_thw=None), pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):
        assert (one.key, one.timestamps, one.damaged_frames, one.damage) == (None, None, 0, "")
        assert "Pixels [2," in repr(one) and same(one.pixel_values, made.pixel_values)


def _work(golden, clip):
    model = qwenvit.load(golden, backend="cpu", dtype="f32", threads=1)
    return [model.encode(clip, fps=5), model.preprocess(clip, fps=5), *model.encode([clip, "none.mp4"], fps=5, errors="yield")]


def test_results_leave_a_worker(model, golden, clip):
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        tokens, pixels, again, failure = pool.submit(_work, golden, str(clip)).result(60)
    assert is_like(pixels, model.preprocess(str(clip), fps=5), (*SAID, "pixel_values", "grid_thw"))
    assert tokens.tokens.tobytes() == again.tokens.tobytes() and tokens.key == str(clip)
    assert (failure.status, failure.key, failure.index) == ("QV_EIO", "none.mp4", 1)


def test_a_pickle_that_was_changed_is_refused(model, frames):
    core = model.encode(frames)._core
    version, n, width, n_deepstack, hidden, patches, dtype, grid, *rest, outcome, data, origin = core.__getstate__()
    for changed in ((n + 1, width, n_deepstack, hidden, patches, dtype, grid), (-1, width, n_deepstack, hidden, patches, dtype, grid),
                    (n, 1 << 62, n_deepstack, hidden, patches, dtype, grid), (n, width, 99, hidden, patches, dtype, grid),
                    (n, width, n_deepstack, 1, patches, dtype, grid), (n, width, n_deepstack, hidden, patches, "f64", grid),
                    (n, width, n_deepstack, hidden, patches, dtype, [1, 2])):
        refused(lambda: type(core).__new__(type(core)).__setstate__((version, *changed, *rest, outcome, data, origin)), "pickle of|dtype is")
    state = (version, n, width, n_deepstack, hidden, patches, dtype, grid, *rest)
    for old in ((*state, outcome, data), (*state, outcome[:-1], data, origin), {"n": n}, (*state, outcome, data, ("one",)),
                ("0.4.0", *state[1:], outcome, data, origin)):
        refused(lambda: type(core).__new__(type(core)).__setstate__(old), "another version")
    refused(lambda: type(core).__new__(type(core)).__setstate__((*state, outcome, b"", origin)), "has 0 bytes")


def test_without_numpy_results_are_shown_and_pickled(golden, tmp_path):
    (tmp_path / "numpy.py").write_text("raise ImportError('no numpy')")
    program = f"""
import pickle, qwenvit
model = qwenvit.load({golden!r}, backend="cpu", threads=1)
frames = memoryview(bytes(2 * 64 * 64 * 3)).cast("B", (2, 64, 64, 3))
for result in (model.preprocess(frames=frames), model.encode(frames)):
    other = pickle.loads(pickle.dumps(result))
    assert repr(other) == repr(result), other
    print(result)
"""
    run = python(program, PYTHONPATH=f"{tmp_path}:{SITE}")
    assert run.returncode == 0 and "Pixels [" in run.stdout and "Tokens [" in run.stdout, run.stderr
