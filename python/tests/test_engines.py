# SPDX-License-Identifier: MIT
"""Tests what engines are given; tools/reference/engines_*.py and sglang_receiver.py try it on the engines' own code."""
import os
import types

import numpy as np
import pytest

import fake_torch
import qwenvit
from conftest import read_safetensors, refused
from qwenvit.adapters import engines
from test_cache import N_DEEPSTACK, WIDTH, clip_of, make_format, write_part

NEWEST = {"to_vllm": "0.33", "to_sglang": "0.5"}


@pytest.fixture
def torch(monkeypatch):
    fake_torch.install(monkeypatch, "5.23.0")
    monkeypatch.setattr(engines, "installed", lambda engine: None)
    return fake_torch


def cache_of(folder, model_type="qwen3_vl", matrices=1 + N_DEEPSTACK, clips=None, **changes):
    """Makes a cache with clips a and b of 5 frames, and an image p. clips: further fields in the
    records of a and b."""
    make_format(folder, model_type, n_deepstack=matrices - 1, **changes)
    number = {"f32": np.float32, "bf16": np.uint16}[changes.get("dtype", "f32")]

    def of(value, n):
        return [m.astype(number) for m in clip_of(value, n)[:matrices]]

    write_part(folder, 1, {"a": of(0, 3), "b": of(1, 3)}, 1, (), (3, 2, 2), 5, **clips or {})
    write_part(folder, 2, {"p": of(9, 4)}, 2, (), (1, 4, 4), 1)
    return qwenvit.Cache(folder)


def plain(data):
    """The same functions without torch's classes."""
    if isinstance(data, dict):
        return {k: plain(v) for k, v in data.items()}
    return [plain(v) for v in data] if isinstance(data, list) else getattr(data, "array", data)


def test_clips_and_images_of_a_cache(torch, tmp_path):
    cache = cache_of(tmp_path)
    a, b, p = (cache[k].packed() for k in "abp")
    data = plain(engines.to_vllm([cache["a"], cache["p"], cache["b"]]))
    assert set(data) == {"image", "video"} and set(data["image"]) == {"image_embeds", "image_grid_thw"}
    assert (data["video"]["video_embeds"] == np.concatenate([a, b])).all()
    assert data["video"]["video_embeds"].shape == (6, WIDTH * 3)
    assert data["video"]["video_grid_thw"].tolist() == [[3, 2, 2]] * 2
    assert data["video"]["video_grid_thw"].dtype == np.int64
    # of 5 frames, the last is a pair with itself
    assert data["video"]["timestamps"] == [[0.5, 2.5, 4]] * 2
    assert (data["image"]["image_embeds"] == p).all() and data["image"]["image_grid_thw"].tolist() == [[1, 4, 4]]
    assert set(plain(engines.to_vllm(cache["a"], embeddings=False))["video"]) == {"video_grid_thw", "timestamps"}

    data = plain(engines.to_sglang(list(cache.values())))
    assert set(data) == {"image_data", "video_data"} and len(data["video_data"]) == 1
    assert data["video_data"][0]["format"] == "precomputed_embedding"
    assert (data["video_data"][0]["feature"] == np.concatenate([a, b])).all()
    assert set(data["video_data"][0]) == {"format", "feature", "video_grid_thw"}

    data = plain(engines.to_transformers(list(cache.values())))
    assert set(data) == {"pixel_values", "image_grid_thw", "pixel_values_videos", "video_grid_thw"}
    assert (data["pixel_values"] == p).all()


def test_results_of_encode_and_forward_alike(torch, model, expected, clip, frames):
    tokens, image = model.encode(clip, fps=5), model.encode(frames[0])
    data = plain(tokens.to_vllm())
    assert list(data) == ["video"] and (data["video"]["video_embeds"] == tokens.packed()).all()
    assert len(data["video"]["timestamps"][0]) == tokens.grid_thw[0, 0]
    assert list(image.to_vllm()) == ["image"] and list(image.to_sglang()) == ["image_data"]
    rows = model.forward(expected["pixel_values"], expected["grid_thw"])
    refused(rows.to_vllm, "pass is_image=True")
    two = model.forward(expected["pixel_values"], [[1, 4, 6], [1, 6, 4]])
    data = plain(two.to_vllm(is_image=True))
    assert (data["image"]["image_embeds"] == two.packed()).all()
    assert data["image"]["image_grid_thw"].tolist() == [[1, 4, 6], [1, 6, 4]]


def test_the_seconds_of_qwen2_5(torch, tmp_path):
    cache = cache_of(tmp_path, "qwen2_5_vl", 1)
    assert refused(cache["a"].to_vllm, "a: .*second_per_grid_ts=").key == "a"
    for call in ("to_vllm", "to_sglang", "to_transformers"):
        data = plain(getattr(cache["a"], call)(second_per_grid_ts=0.5))
        flat = {**data, **data.get("video", {}), **data.get("video_data", [{}])[0]}
        assert flat["second_per_grid_ts"].tolist() == [0.5] and "timestamps" not in flat
        assert getattr(cache["p"], call)()
    three = [cache[k] for k in "apb"]
    data = plain(engines.to_vllm(three, second_per_grid_ts=[0.5, 0.25]))
    assert data["video"]["second_per_grid_ts"].tolist() == [0.5, 0.25] and "second_per_grid_ts" not in data["image"]
    for wrong in ([0.5], [1, 2, 3]):
        refused(lambda: engines.to_vllm(three, second_per_grid_ts=wrong), f"{len(wrong)} numbers for 2 clips")
    refused(lambda: engines.to_vllm(three, second_per_grid_ts=[0.5, None]), "b: .*second_per_grid_ts=")
    refused(lambda: engines.to_vllm(three, second_per_grid_ts=[0, 0.5]), "a: .*second_per_grid_ts=")


def test_the_seconds_of_a_cache_and_what_is_said_instead(torch, tmp_path):
    cache = cache_of(tmp_path, "qwen2_5_vl", 1, {"picture": False, "sampled_fps": 8})
    for call in ("to_vllm", "to_sglang", "to_transformers"):
        for said, found in ((None, 0.25), (0.5, 0.5)):
            data = plain(getattr(cache["a"], call)(second_per_grid_ts=said))
            flat = {**data, **data.get("video", {}), **data.get("video_data", [{}])[0]}
            assert flat["second_per_grid_ts"].tolist() == [found]
    three = [cache[k] for k in "apb"]
    data = plain(engines.to_vllm(three, second_per_grid_ts=[None, 2]))
    assert data["video"]["second_per_grid_ts"].tolist() == [0.25, 2] and "image" in data


def test_a_clip_of_one_frame_is_a_clip_where_its_record_says_so(torch, tmp_path):
    make_format(tmp_path, "qwen2_5_vl", n_deepstack=0)
    write_part(tmp_path, 1, {"a": clip_of(0)[:1]}, 1, (), (1, 4, 5), 1, picture=False, sampled_fps=2)
    entry = qwenvit.Cache(tmp_path)["a"]
    assert plain(entry.to_vllm())["video"]["second_per_grid_ts"].tolist() == [1]
    assert list(entry.to_vllm(is_image=True)) == ["image"]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_file_of_the_ec_connector(tmp_path, dtype, monkeypatch):
    cache = cache_of(tmp_path / "cache", dtype=dtype)
    path = cache["a"].save_ec(tmp_path / "ec", "0123abc")
    assert path == str(tmp_path / "ec" / "0123abc" / "encoder_cache.safetensors")
    tensors, _ = read_safetensors(path)
    assert list(tensors) == ["ec_cache"] and tensors["ec_cache"].shape == (3, 3 * WIDTH)
    assert tensors["ec_cache"].tobytes() == cache["a"].packed().tobytes()
    os.chmod(path, 0o400)
    assert cache["b"].save_ec(tmp_path / "ec", "0123abc") == path  # another file in its place
    assert read_safetensors(path)[0]["ec_cache"].tobytes() == cache["b"].packed().tobytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    refused(lambda: cache["a"].save_ec(tmp_path / "ec", "0123abc"), "No space left")
    assert read_safetensors(path)[0]["ec_cache"].tobytes() == cache["b"].packed().tobytes()
    assert os.listdir(os.path.dirname(path)) == ["encoder_cache.safetensors"]


def test_a_file_that_cannot_be_written_leaves_nothing(model, clip, tmp_path):
    tokens = model.encode(clip)
    (tmp_path / "file").write_text("")
    refused(lambda: tokens.save_ec(tmp_path / "file", "h"), "file", "QV_EIO")
    (tmp_path / "h" / "encoder_cache.safetensors").mkdir(parents=True)
    refused(lambda: tokens.save_ec(tmp_path, "h"), "directory")
    assert os.listdir(tmp_path / "h") == ["encoder_cache.safetensors"]
    for hash in ("", ".", "..", "a/b", "a\0", 3):
        refused(lambda: tokens.save_ec(tmp_path, hash), "name of a folder")


def test_without_deepstack_nothing_goes_out(torch, tmp_path):
    cache = cache_of(tmp_path / "cache", matrices=1)
    for call in (engines.to_vllm, engines.to_sglang, engines.to_transformers, lambda e: e.save_ec(tmp_path, "h")):
        refused(lambda: call(cache["a"]), "a: these tokens of qwen3_vl lack DeepStack.*--no-deepstack")
    assert not (tmp_path / "h").exists()
    assert cache_of(tmp_path / "other", "qwen3_5", 1)["a"].to_vllm()


@pytest.mark.parametrize("call", NEWEST)
def test_versions(torch, tmp_path, monkeypatch, call):
    entry = cache_of(tmp_path)["a"]
    for version in ("0.4.1", "x", "", "1"):
        words = f"unknown interface; {NEWEST[call]} was tested"
        refused(lambda: getattr(entry, call)(version=version), words, "QV_EUNSUPPORTED")
    assert getattr(entry, call)(version=NEWEST[call] + ".7")
    with pytest.warns(UserWarning, match="7.0 has not been tested"):
        getattr(entry, call)(version="7.0")
    monkeypatch.setattr(engines, "installed", lambda engine: "0.1.2")
    refused(lambda: getattr(entry, call)(), "0.1.2")


def test_results_that_do_not_go_together(torch, tmp_path):
    a, b = cache_of(tmp_path / "a")["a"], cache_of(tmp_path / "b", "qwen3_vl_moe")["b"]
    refused(lambda: engines.to_vllm([a, b]), "b: its model, matrices.*qwen3_vl_moe")
    refused(lambda: engines.to_vllm([]), "no results")


@pytest.mark.parametrize("version", ["4.57.6", "5.23.0"])
@pytest.mark.parametrize("n_deepstack", [0, 2])
def test_a_tower_of_transformers_hands_tokens_on(monkeypatch, version, n_deepstack):
    fake_torch.install(monkeypatch, version)
    config = types.SimpleNamespace(hidden_size=7, spatial_merge_size=2)
    if n_deepstack:
        config.out_hidden_size, config.deepstack_visual_indexes = WIDTH, [0, 2]
    else:
        config.hidden_size = WIDTH  # Qwen2-VL's name of it
    tower = fake_torch.Module(patch_embed=1, blocks=1, merger=1, config=config)
    model = fake_torch.Module(visual=tower)
    monkeypatch.setattr(fake_torch.Module, "forward", lambda *_: "its own", raising=False)
    rows = fake_torch.Tensor(np.arange(5 * WIDTH * (1 + n_deepstack), dtype=np.float32).reshape(5, -1))
    grid = fake_torch.tensor([[1, 2, 2], [2, 2, 4]])
    refused(lambda: engines.reject_tokens(model), "does not accept")
    assert engines.accept_tokens(model) is model
    refused(lambda: engines.accept_tokens(model), "already")
    out = tower(rows, grid_thw=grid)
    if version < "5":
        tokens, deepstack = out if n_deepstack else (out, [])
    else:
        tokens, deepstack = out.pooler_output, out.deepstack_features or []
    found = np.concatenate([tokens.array, *(d.array for d in deepstack)], axis=1)
    assert len(deepstack) == n_deepstack and (found == rows.array).all()
    for wrong in (rows.array[1:], rows.array[:, 1:]):
        refused(lambda: tower(fake_torch.Tensor(wrong), grid_thw=grid), "as to_transformers.. returns it")
    engines.reject_tokens(model)
    assert tower(rows, grid) == "its own"


def test_mm_token_type_ids(tmp_path):
    """The ids equal those of transformers' create_mm_token_type_ids, from every kind of object that
    knows the placeholders."""
    (tmp_path / "config.json").write_text('{"model_type": "qwen3_vl", "image_token_id": 5, "video_token_id": 6}')
    config = types.SimpleNamespace(image_token_id=5, video_token_id=6)
    tokenizer = types.SimpleNamespace(convert_tokens_to_ids={"<|image_pad|>": 5, "<|video_pad|>": 6}.get)
    knowing = [str(tmp_path), tmp_path, config, types.SimpleNamespace(config=config), tokenizer,
               types.SimpleNamespace(tokenizer=tokenizer)]
    ids, wanted = [[1, 5, 5, 2, 6], [6, 0, 5, 7, 7]], [[0, 1, 1, 0, 2], [2, 0, 1, 0, 0]]
    for of in knowing:
        assert engines.mm_token_type_ids(ids, of) == wanted and engines.mm_token_type_ids(ids[0], of) == wanted[0]
        made = engines.mm_token_type_ids(np.array(ids), of)
        assert made.tolist() == wanted and made.dtype == np.int64
    assert engines.mm_token_type_ids([[5], [1, 6]], config) == [[1], [0, 2]]
    for of in (None, 3, types.SimpleNamespace(image_token_id=5), "none"):
        refused(lambda: engines.mm_token_type_ids(ids, of))


def test_mm_token_type_ids_of_torch():
    torch = pytest.importorskip("torch")
    config = types.SimpleNamespace(image_token_id=5, video_token_id=6)
    made = engines.mm_token_type_ids(torch.tensor([[1, 5, 6]]), config)
    assert made.dtype == torch.int64 and made.tolist() == [[0, 1, 2]]


def test_frames_with_a_rate_go_to_engines(torch, model, frames):
    timed, bare = model.encode(frames, fps=2), model.encode(frames)
    assert engines.to_vllm(timed)["video"]["timestamps"] == [[0.25, 1.25]]
    refused(lambda: engines.to_vllm(bare), "the clip has no timestamps")
