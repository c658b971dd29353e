# SPDX-License-Identifier: MIT
import importlib.util
import os
import shutil
import signal
import warnings

import numpy as np
import pytest

import qwenvit
from conftest import GOLDEN, distances, in_a_fork, python, read_safetensors, refused

FAMILIES = sorted(os.listdir(GOLDEN))


@pytest.mark.parametrize("family", FAMILIES)
def test_forward_is_transformers(family):
    folder = os.path.join(GOLDEN, family)
    expected = read_safetensors(os.path.join(folder, "expected.safetensors"))[0]
    with qwenvit.load(folder, backend="cpu", dtype="f32") as model:
        tokens = model.forward(expected["pixel_values"], expected["grid_thw"])
    names = ["merger", *sorted(n for n in expected if n.startswith("deepstack_merger_list"))]
    assert len(tokens.deepstack) == len(names) - 1
    for name, found in zip(names, [tokens.tokens, *tokens.deepstack]):
        assert distances(found, expected[name]).max() < 2e-5, name
    assert (tokens.grid_thw == expected["grid_thw"]).all()
    assert tokens.packed().shape == (len(tokens), model.info["out_hidden"] * len(names))
    refused(lambda: model.forward(expected["pixel_values"], expected["grid_thw"]), "closed")


def test_missing_preprocessor_files_warn_once_per_model(golden, tmp_path):
    files = "preprocessor_config.json", "video_preprocessor_config.json"
    folder = shutil.copytree(golden, tmp_path / "model")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        qwenvit.load(folder, backend="ref", dtype="f32").close()
    for name in files:
        (folder / name).unlink()
    with pytest.warns(UserWarning, match=f"missing: {', '.join(files)}") as told:
        model = qwenvit.load(folder, backend="ref", dtype="f32")
        model.encode(np.zeros((2, 64, 64, 3), np.uint8), fps=2)
        model.preprocess(np.zeros((2, 64, 64, 3), np.uint8), fps=2)
    assert len(told) == 1 and told[0].filename == __file__
    words = str(told[0].message)
    assert words == model.info["model_warning"]
    assert "Qwen2VLImageProcessor: 3136 to 1003520 pixels, mean 0.481455" in words
    assert model.info["image"]["min_pixels"] == 3136


def test_bf16_is_the_same_with_and_without_ml_dtypes(model, expected):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    rounded = expected["pixel_values"].astype(ml_dtypes.bfloat16)
    wide = model.forward(rounded.astype(np.float32), expected["grid_thw"]).tokens
    for pixels in (rounded, rounded.view(np.uint16)):
        assert (model.forward(pixels, expected["grid_thw"]).tokens == wide).all()
    narrow = model.forward(rounded, expected["grid_thw"], dtype="bf16")
    assert narrow.tokens.dtype == ml_dtypes.bfloat16 and narrow.dtype == "bf16"
    assert (narrow.tokens == wide.astype(ml_dtypes.bfloat16)).all()


def bad_calls(pixels, grid):
    read_only = np.lib.stride_tricks.as_strided(pixels, (4, pixels.shape[1]), (0, 4))
    return {
        "float64": (pixels.astype(np.float64), grid, "it must be float32 or bfloat16"),
        "one axis": (pixels.ravel(), grid, r"must be \[patches, 1536\]"),
        "three axes": (pixels[None], grid, r"must be \[patches, 1536\]"),
        "too narrow": (np.ascontiguousarray(pixels[:, :-1]), grid, r"must be \[patches, 1536\]"),
        "transposed": (np.asfortranarray(pixels), grid, "not contiguous"),
        "every second": (pixels[::2], grid, "not contiguous"),
        "stride 0": (read_only, grid, "not contiguous"),
        "too few rows": (pixels[:-1], grid, "pixel_values has 47 rows"),
        "too many rows": (np.concatenate([pixels, pixels]), grid, "its items have 48 patches"),
        "a list": (pixels.tolist(), grid, "must be an array"),
        "None": (None, grid, "must be an array"),
        "objects": (np.empty((4, 1536), object), grid, "cannot share"),
        "big-endian": (pixels.astype(">f4"), grid, "cannot share"),
        "grid of reals": (pixels, np.asarray(grid, np.float32), "integers"),
        "flat grid": (pixels, [1, 4, 6], "integers"),
        "no items": (pixels, [], "at least one item"),
        "two numbers": (pixels, [[4, 6]], r"must be \[items, 3\]"),
        "negative": (pixels, [[-1, 4, 6]], "item 0 is -1"),
        "huge": (pixels, [[2**61, 2**61, 4]], "item 0 is"),
        "larger than numbers are": (pixels, [[2**80, 1, 4]], "integers"),
        "odd": (pixels, [[1, 3, 16]], "3"),
    }


@pytest.mark.parametrize("name", bad_calls(np.zeros((48, 1536), np.float32), [[1, 4, 6]]))
def test_bad_input_is_refused_in_words(model, expected, name):
    pixels, grid, words = bad_calls(expected["pixel_values"], expected["grid_thw"])[name]
    refused(lambda: model.forward(pixels, grid), words, "QV_EINVAL")


def test_read_only_arrays_are_taken(model, expected):
    pixels = expected["pixel_values"].copy()
    pixels.flags.writeable = False
    assert len(model.forward(pixels, expected["grid_thw"])) == 12


@pytest.mark.parametrize(
    "options, status",
    [({"path": "/nowhere"}, "QV_EIO"), ({"backend": "abacus"}, "QV_ENODEVICE"),
     ({"dtype": "f64"}, "QV_EINVAL"), ({"device": 7}, "QV_ENODEVICE")],
)
def test_load_says_what_is_wrong(golden, options, status):
    assert str(refused(lambda: qwenvit.load(**{"path": golden, "backend": "cpu", **options}), status=status))


def test_tokens_keep_their_memory(model, expected):
    kept = [model.forward(expected["pixel_values"], expected["grid_thw"]).tokens for _ in range(50)]
    assert all((k == kept[0]).all() for k in kept)


def test_a_fork_is_told(model, expected):
    in_a_fork(lambda: refused(lambda: model.forward(expected["pixel_values"], expected["grid_thw"]), "forked", "QV_ESTATE"))


INTERRUPTED = """
import os, signal, threading, time, numpy, qwenvit
signal.signal(signal.SIGINT, signal.default_int_handler)
m = qwenvit.load({folder!r}, device="cpu", dtype="f32", threads=1)
x = numpy.random.default_rng(0).random((100 * 3600, m.info["row_dim"]), numpy.float32)
one = m.forward(x[:3600], [[1, 60, 60]]).tokens
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
began = time.monotonic()
try:
    m.forward(x, {grid})
except KeyboardInterrupt:
    print(time.monotonic() - began < 2.3)
print((m.forward(x[:3600], [[1, 60, 60]]).tokens == one).all())
"""


@pytest.mark.parametrize("grid", ["[[100, 60, 60]]", "[[1, 60, 60]] * 100"])
def test_ctrl_c_ends_a_long_forward(grid):
    """Ctrl-C ends a call of 8 seconds or more within a second and the chunk that is being computed,
    and leaves the model as it was."""
    code = INTERRUPTED.format(folder=os.path.join(GOLDEN, "qwen2_vl"), grid=grid)
    run = python(code)
    assert (run.returncode, run.stdout.split()) == (0, ["True", "True"]), run


def test_a_signals_handler_does_not_wait_for_the_call_that_it_interrupts():
    model = qwenvit.load(os.path.join(GOLDEN, "qwen2_vl"), device="cpu", dtype="f32", threads=1)
    pixels = np.zeros((5 * 3600, model.info["row_dim"]), np.float32)
    said = []

    def handler(*_):
        for call in (lambda: model.encode(frames=np.zeros((2, 32, 32, 3), np.uint8)), lambda: model.forward(pixels[:3600], [[1, 60, 60]])):
            said.append(refused(call, "has interrupted a forward").status)

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        assert len(model.forward(pixels, [[5, 60, 60]])) == 4500
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert said == ["QV_ESTATE"] * 2 and len(model.forward(pixels[:3600], [[1, 60, 60]])) == 900


def test_a_folder_whose_name_is_no_utf8(golden, clip, tmp_path):
    folder = os.path.join(os.fsencode(tmp_path), b"\xff")
    os.symlink(os.path.abspath(golden), folder)
    with qwenvit.load(os.fsdecode(folder), device="cpu", threads=1) as model:
        tokens = model.encode(clip)
        tokens.save(folder + b".safetensors")
        tokens.save(tmp_path / "there")
        e = refused(lambda: model.encode(os.fsdecode(folder + b"/none.mp4")), "none", "QV_EIO")
        assert e.key.endswith("\\xff/none.mp4")
    assert read_safetensors(folder + b".safetensors")[0].keys() == read_safetensors(tmp_path / "there")[0].keys()


def test_import_is_quick_and_alone():
    code = (
        "import sys, time; b = time.process_time(); import qwenvit; s = time.process_time() - b;"
        "print(s, [m for m in ('numpy', 'torch') if m in sys.modules])"
    )
    tries = [python(code).stdout for _ in range(3)]
    assert all(t.endswith("[]\n") for t in tries)
    assert min(float(t.split()[0]) for t in tries) < 0.2


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_torch_in_the_same_process_before_and_after(golden):
    """torch and qwenvit each have a oneDNN and an OpenMP of their own, and compute as they do
    alone."""
    code = f"""
import hashlib, sys
def theirs():
    import torch
    torch.manual_seed(0)
    x = torch.rand(300, 257)
    return (torch.nn.functional.conv2d(x[None, None], x[None, None, :3, :3]) @ x[:255]).numpy().tobytes()
def ours():
    import qwenvit
    m = qwenvit.load({golden!r}, backend="cpu", dtype="f32", threads=2)
    pixels = memoryview(bytearray(16 * m.info["row_dim"] * 4)).cast("f", (16, m.info["row_dim"]))
    return bytes(memoryview(m.forward(pixels, [[1, 4, 4]]).tokens))
for part in sys.argv[1:]:
    print(part, hashlib.sha256({{"torch": theirs, "qwenvit": ours}}[part]()).hexdigest())
names = {{line.split()[-1].rpartition("/")[2] for line in open("/proc/self/maps") if "gomp" in line}}
assert any(n.startswith("libqwenvit_gomp") for n in names) == ("qwenvit" in sys.argv), names
"""
    said = []
    for parts in (["torch"], ["qwenvit"], ["torch", "qwenvit", "torch"], ["qwenvit", "torch", "qwenvit"]):
        run = python(code, *parts)
        assert run.returncode == 0, run.stderr
        said.append(set(run.stdout.splitlines()))
    assert len(said[0] | said[1]) == 2 and said[2] == said[3] == said[0] | said[1]
