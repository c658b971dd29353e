# SPDX-License-Identifier: MIT
"""Tests a tower in a GGUF file, which is written here byte by byte as llama.cpp's converter writes
it."""

import os
import struct
import warnings

import numpy as np
import pytest
from conftest import read_safetensors, refused

import qwenvit
from qwenvit.adapters import engines

CLIP = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
PARTS = [("patch_embed.proj", "v.patch_embd"), ("pos_embed", "v.position_embd"), ("blocks.", "v.blk."),
         (".norm1", ".ln1"), (".norm2", ".ln2"), (".attn.proj", ".attn_out"), (".attn.qkv", ".attn_qkv"),
         (".mlp.linear_fc1", ".ffn_up"), (".mlp.linear_fc2", ".ffn_down"), ("deepstack_merger_list.0", "v.deepstack.0"),
         ("deepstack_merger_list.1", "v.deepstack.2"), ("merger.norm", "v.post_ln"), ("merger.linear_fc1", "mm.0"),
         ("merger.linear_fc2", "mm.2"), (".linear_fc", ".fc")]  # fmt: skip


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def array(kind, code, values):
    return struct.pack("<IIQ", 9, kind, len(values)) + struct.pack(f"<{len(values)}{code}", *values)


def write(path, golden, mean=(0.5,) * 3, std=(0.5,) * 3):
    """The golden tower of Qwen3-VL, in f32."""
    tensors = {}
    for name, bits in read_safetensors(os.path.join(golden, "model.safetensors"))[0].items():
        name = name.removeprefix("model.visual.")
        value = (bits.astype(np.uint32) << 16).view(np.float32)
        for old, new in PARTS:
            name = name.replace(old, new)
        if value.ndim == 5:
            tensors[name], tensors[name + ".1"] = value[:, :, 0], value[:, :, 1]
        elif name.startswith(("v.", "mm.")):
            tensors[name] = value
    u32 = {"projection_dim": 24, "image_size": 96, "patch_size": 16, "embedding_length": 32, "block_count": 3,
           "feed_forward_length": 40, "attention.head_count": 2, "spatial_merge_size": 2}  # fmt: skip
    keys = {"general.architecture": struct.pack("<I", 8) + text("clip"),
            "clip.projector_type": struct.pack("<I", 8) + text("qwen3vl_merger"),
            "clip.vision.image_mean": array(6, "f", mean), "clip.vision.image_std": array(6, "f", std),
            "clip.vision.is_deepstack_layers": array(7, "?", [True, False, True])}  # fmt: skip
    keys |= {f"clip.vision.{name}": struct.pack("<II", 4, value) for name, value in u32.items()}
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(text(k) + v for k, v in keys.items())
    data = b""
    for name, value in tensors.items():
        head += text(name) + struct.pack("<I", value.ndim) + struct.pack(f"<{value.ndim}Q", *value.shape[::-1])
        head += struct.pack("<IQ", 0, len(data))
        data += value.astype("<f4").tobytes()
        data += b"\0" * (-len(data) % 32)
    path.write_bytes(head + b"\0" * (-len(head) % 32) + data)
    return path


@pytest.fixture(scope="module")
def file(tmp_path_factory, golden):
    return write(tmp_path_factory.mktemp("gguf") / "mmproj-F32.gguf", golden)


def test_it_is_the_folder_it_was_made_of(file, model, frames):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        here = qwenvit.load(file, backend="cpu", dtype="f32", threads=2)
        folder = qwenvit.load(file.parent, backend="cpu", dtype="f32", threads=2)
    assert here.info["model_type"] == "qwen3_vl" and here.info["model_warning"] == ""
    assert "bounds of pixels" in here.info["note"] and model.info["note"] == ""
    assert here.info["digest"] == folder.info["digest"] != ""
    mine, theirs = (m.encode(frames, fps=2) for m in (here, model))
    assert mine.tokens.tobytes() == theirs.tokens.tobytes()
    assert [d.tobytes() for d in mine.deepstack] == [d.tobytes() for d in theirs.deepstack]
    assert qwenvit.prompt(mine) == qwenvit.prompt(theirs)


def test_wrong_means_warn_and_can_be_overruled(file, golden, tmp_path):
    wrong = write(tmp_path / "mmproj.gguf", golden, *CLIP)
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
        refused(lambda: engines.mm_token_type_ids([1, 2], of), "a GGUF file of a vision tower has no ids of placeholders")
