# SPDX-License-Identifier: MIT
"""Tests a tower in a GGUF file; tests/test_mmproj.c compares such towers with those of folders."""
import os
import struct
import warnings

import numpy as np
import pytest

import qwenvit
from conftest import GOLDEN, refused
from qwenvit.adapters import engines

CLIP = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]


@pytest.fixture(scope="module")
def data():
    with open(os.path.join(GOLDEN, "..", "fuzz", "corpus", "gguf", "qwen3"), "rb") as f:
        return f.read()


@pytest.fixture(scope="module")
def file(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("gguf") / "mmproj-F32.gguf"
    path.write_bytes(data)
    return path


def test_a_file_and_its_folder_are_one_tower(file):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one, other = (qwenvit.load(path, backend="ref", dtype="f32") for path in (file, file.parent))
    assert one.info["model_type"] == "qwen3_vl" and one.info["model_warning"] == ""
    assert "pixel bounds" in one.info["note"] and one.info["digest"] == other.info["digest"] != ""
    frames = np.random.default_rng(1).integers(0, 256, (4, 16, 16, 3), dtype=np.uint8)
    mine, theirs = (m.encode(frames, fps=2, min_pixels=64, max_pixels=256) for m in (one, other))
    assert mine.tokens.tobytes() == theirs.tokens.tobytes() and "seconds>" in qwenvit.prompt(mine)


def test_wrong_means_warn_and_can_be_overruled(data, tmp_path):
    wrong, halves = tmp_path / "mmproj.gguf", struct.pack("<3f", 0.5, 0.5, 0.5)
    assert data.count(halves) == 2
    wrong.write_bytes(data.replace(halves, struct.pack("<3f", *CLIP[0]), 1).replace(halves, struct.pack("<3f", *CLIP[1]), 1))
    with pytest.warns(UserWarning, match="image_mean and image_std"):
        model = qwenvit.load(wrong, backend="ref", dtype="f32")
    assert model.info["image"]["mean"] == tuple(CLIP[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = qwenvit.load(wrong, backend="ref", dtype="f32", image_mean=[0.5] * 3, image_std=np.full(3, 0.5))
    assert model.info["video"]["std"] == (0.5,) * 3 and model.info["model_warning"] == ""
    for value in ([], [0.5] * 2, "abc", 1, [0.5, 0.5, float("nan")]):
        refused(lambda: qwenvit.load(wrong, image_mean=value), "image_mean is .*three finite numbers")
    refused(lambda: qwenvit.load(wrong, backend="ref", image_std=[1, 1, 0]), r"image_std\[2\] is 0")


def test_what_a_file_does_not_know_is_said(file):
    for of in (file, file.parent):
        refused(lambda: engines.mm_token_type_ids([1, 2], of), "the GGUF file of a vision tower contains no placeholder ids")
