# SPDX-License-Identifier: MIT
"""Tests qwenvit.patch on stand-ins for torch's classes; tools/reference/patch.py uses the real
ones."""
import copy
import json
import os
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest

import fake_torch
import qwenvit
from conftest import GOLDEN, distances, read_safetensors, refused

PREFIXES = ("model.visual.", "visual.", "thinker.visual.")


class Config:
    def __init__(self, values):
        self.__dict__.update(values)
        self.values = values

    def to_dict(self):
        return dict(self.values)


def make_tower(family, bf16=False):
    folder = os.path.join(GOLDEN, family)
    weights, config = {}, json.load(open(os.path.join(folder, "config.json")))
    for name in sorted(os.listdir(folder)):
        if name.startswith("model") and name.endswith(".safetensors"):
            weights.update(read_safetensors(os.path.join(folder, name))[0])
    parameters = {}
    for name, array in weights.items():
        prefix = next((p for p in PREFIXES if name.startswith(p)), None)
        if prefix:
            wide = array if array.dtype == np.float32 else (array.astype(np.uint32) << 16).view(np.float32)
            kept = (wide.view(np.uint32) >> 16).astype(np.uint16) if bf16 else wide.copy()
            parameters[name[len(prefix):]] = fake_torch.Tensor(kept, requires_grad=True)
    vision = config.get("thinker_config", config)["vision_config"]
    vision.setdefault("model_type", config["model_type"])
    tower = fake_torch.Module(
        patch_embed=fake_torch.Module(), blocks=fake_torch.Module(), merger=fake_torch.Module(),
        config=Config(vision), parameters=parameters,
    )
    tower.forward = None
    del tower.forward
    return fake_torch.Module(visual=tower), tower


def expected_of(family):
    expected = read_safetensors(os.path.join(GOLDEN, family, "expected.safetensors"))[0]
    return fake_torch.Tensor(expected["pixel_values"]), fake_torch.Tensor(expected["grid_thw"]), expected


@pytest.fixture(params=["4.57.1", "5.23.0"])
def version(request, monkeypatch):
    fake_torch.install(monkeypatch, request.param)
    return request.param


@pytest.mark.parametrize("family", sorted(os.listdir(GOLDEN)))
def test_a_patched_tower_is_transformers(family, version):
    model, tower = make_tower(family)
    before = {k: p.array.copy() for k, p in tower.parameters.items()}
    pixels, grid, expected = expected_of(family)
    assert qwenvit.patch(model) is model
    assert all(p.numel() == 0 and not p.requires_grad for p in tower.parameters.values())
    out = tower(pixels, grid_thw=grid)
    deepstack = sorted(n for n in expected if n.startswith("deepstack_merger_list"))
    if version.startswith("5"):
        kind = "BaseModelOutputWithDeepstackFeatures" if deepstack else "BaseModelOutputWithPooling"
        assert type(out).__name__ == kind
        found = [out.pooler_output, *(out.deepstack_features or [])]
    else:
        found = [out[0], *out[1]] if deepstack else [out]
    names = ["merger", *deepstack]
    if version.startswith("5") and family != "glm4v":  # transformers leaves the rows of windows in their order
        names.append(max(n for n in expected if n.startswith("blocks.")))
        found.append(out.last_hidden_state)
    for name, tensor in zip(names, found, strict=True):
        assert distances(tensor.array, expected[name]).max() < 2e-5
    qwenvit.unpatch(model)
    assert not hasattr(tower, "forward")
    assert all((before[k] == p.array).all() and p.requires_grad for k, p in tower.parameters.items())


@pytest.mark.parametrize("version", ["5.23.0"], indirect=True)
def test_a_bf16_tower_returns_bf16_where_the_cpu_multiplies_it_and_where_it_does_not(version):
    model, tower = make_tower("qwen3_vl", bf16=True)
    pixels, grid, expected = expected_of("qwen3_vl")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        qwenvit.patch(model)
        computes = tower._qwenvit.model.info["dtype"]
        out = tower(pixels, grid_thw=grid).pooler_output
    said = [str(w.message) for w in caught if "this CPU cannot multiply bf16" in str(w.message)]
    assert len(said) == (computes == "f32")
    assert repr(out.dtype) == "torch.bfloat16"
    tokens = (out.array.astype(np.uint32) << 16).view(np.float32)
    assert distances(tokens, expected["merger"]).max() < (0.005 if computes == "f32" else 0.05)
    if os.environ.get("ONEDNN_MAX_CPU_ISA") == "AVX2":
        assert computes == "f32"
    else:  # once more on a CPU without bf16: oneDNN asks for its limit once in a process
        done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "test_a_bf16_tower"],
                              env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}, capture_output=True, text=True, check=False)
        assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("version", ["5.23.0"], indirect=True)
def test_a_patched_model_gives_its_weights_or_says_why_not(version):
    model, tower = make_tower("qwen3_vl")
    before = {k: p.array.copy() for k, p in tower.parameters.items()}
    qwenvit.patch(model)
    for state, prefix in ((model.state_dict(), "visual."), (tower.state_dict(), "")):
        assert {prefix + k for k in before} == set(state)
        assert all(np.array_equal(before[k], state[prefix + k].array) for k in before)
    assert all(p.numel() == 0 for p in tower.parameters.values())
    for copied in (copy.deepcopy, pickle.dumps):
        for what in (model, tower):
            refused(lambda: copied(what), "qwenvit.unpatch", "QV_EUNSUPPORTED")
    qwenvit.unpatch(model)
    assert not tower._state_dict_hooks
    assert all(np.array_equal(before[k], p.array) for k, p in copy.deepcopy(model).state_dict().items()
               for k in [k.removeprefix("visual.")])


SPOILT = {  # what is done to a tower, and to its first parameter
    "training": lambda tower, first: setattr(tower, "training", True),
    "meta": lambda tower, first: setattr(first, "device", fake_torch.Device("meta")),
    "float16": lambda tower, first: setattr(first, "array", first.array.astype(np.float16)),
    "offloaded": lambda tower, first: setattr(tower.blocks, "_hf_hook", object()),
    "hooks": lambda tower, first: tower.blocks._forward_hooks.update({0: print}),
    "sharded": lambda tower, first: setattr(first, "device_mesh", object()),
    "quantised": lambda tower, first: setattr(tower, "is_quantized", True),
    "adapters": lambda tower, first: tower.parameters.update({"blocks.0.lora": fake_torch.Tensor(np.zeros((2, 2), np.float32))}),
    "missing": lambda tower, first: tower.parameters.pop(next(iter(tower.parameters))),
}


@pytest.mark.parametrize("how", SPOILT)
@pytest.mark.parametrize("version", ["5.23.0"], indirect=True)
def test_what_cannot_be_done_is_refused_before_anything_is_changed(version, how):
    model, tower = make_tower("qwen3_vl")
    SPOILT[how](tower, next(iter(tower.parameters.values())))
    before = {k: p.array.copy() for k, p in tower.parameters.items()}
    e = refused(lambda: qwenvit.patch(tower if how == "quantised" else model))
    assert e.status and str(e)
    assert all((before[k] == p.array).all() for k, p in tower.parameters.items())
    assert not hasattr(tower, "forward") and not hasattr(tower, "_qwenvit")


@pytest.mark.parametrize("version", ["5.23.0"], indirect=True)
def test_calls_that_cannot_be_done_are_refused(version):
    model, tower = make_tower("qwen3_vl")
    pixels, grid, _ = expected_of("qwen3_vl")
    refused(lambda: qwenvit.unpatch(model), "not patched")
    refused(lambda: qwenvit.patch(model, folder="/dev/null/x"), "cannot write the tower's weights: .*/dev/null/x", "QV_EIO")
    refused(lambda: qwenvit.patch(model, folder=3), "folder is 3")
    qwenvit.patch(model)
    refused(lambda: qwenvit.patch(model), "already patched")
    for asked in ({"output_hidden_states": True}, {"output_attentions": True}, {"return_dict": False},
                  {"cu_seqlens": grid}):
        refused(lambda: tower(pixels, grid, **asked), next(iter(asked)))
    pixels.requires_grad = True
    refused(lambda: tower(pixels, grid), "requires a gradient")
    pixels.requires_grad = False
    tower.training = True
    refused(lambda: tower(pixels, grid), "train")
    tower.training = False
    next(iter(tower.parameters.values())).array = np.zeros(3, np.float32)
    refused(lambda: tower(pixels, grid), "changed or moved")
    qwenvit.unpatch(model)
    refused(lambda: qwenvit.patch(fake_torch.Module()), "no Qwen-VL vision tower")
    refused(lambda: qwenvit.patch(3), "not a torch module")
