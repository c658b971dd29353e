# SPDX-License-Identifier: MIT
"""qwenvit.patch on transformers' own classes: tiny towers of every family in f32 (2e-5 of transformers'
tokens) and bf16 (1.05 of its own mean distance), restored to the bit, and their memory.

    python tools/reference/patch.py [FOLDER...]     (the wheel must be installed; FOLDER: tests/golden/*)
"""
import glob
import os
import sys

import torch
import transformers

import common
import qwenvit

HERE = os.path.dirname(os.path.abspath(__file__))


def outputs(out):
    return [out.pooler_output, *(getattr(out, "deepstack_features", None) or [])]


def distances(x, truth):
    x, truth = x.double(), truth.double()
    return ((x - truth).norm(dim=1) / truth.norm(dim=1))


@torch.no_grad()
def check(folder):
    generator = torch.Generator().manual_seed(1)
    grids = torch.tensor([[2, 4, 6], [1, 8, 4]])
    truth_tower = common.load_tower(folder, "f32", round_weights=True)
    c = truth_tower.config
    row_dim = c.in_channels * c.temporal_patch_size * c.patch_size**2
    pixels = torch.rand(int(grids.prod(1).sum()), row_dim, generator=generator) * 2 - 1
    truth = outputs(truth_tower(pixels.bfloat16().float(), grid_thw=grids))
    for dtype in ("f32", "bf16"):
        tower = common.load_tower(folder, dtype, round_weights=True)
        before = {k: v.clone() for k, v in tower.state_dict().items()}
        x = pixels.bfloat16().to(common.DTYPES[dtype])
        theirs = tower(x, grid_thw=grids)
        qwenvit.patch(tower)
        assert not sum(p.numel() for p in tower.parameters())
        ours = tower(x, grid_thw=grids)
        assert type(ours) is type(theirs), (type(ours), type(theirs))
        for t, a, b in zip(truth, outputs(theirs), outputs(ours), strict=True):
            assert a.shape == b.shape and a.dtype == b.dtype, (a.shape, a.dtype, b.shape, b.dtype)
            d, own = distances(b, t), distances(a, t)
            print(f"  {dtype} worst {d.max():.3g} mean {d.mean():.3g}; transformers {own.max():.3g} {own.mean():.3g}")
            assert d.max() < 2e-5 if dtype == "f32" else d.mean() <= 1.05 * own.mean(), folder
        qwenvit.unpatch(tower)
        after = tower.state_dict()
        assert before.keys() == after.keys() and all(torch.equal(before[k], after[k]) for k in before)
        again = tower(x, grid_thw=grids)
        assert all(torch.equal(a, b) for a, b in zip(outputs(theirs), outputs(again)))


# model_type: transformers' class, and what its text config needs beside the sizes
WHOLE = {
    "qwen2_vl": ("Qwen2VLForConditionalGeneration", {}),
    "qwen2_5_vl": ("Qwen2_5_VLForConditionalGeneration", {}),
    "qwen3_vl": ("Qwen3VLForConditionalGeneration", {"head_dim": 10}),
}


@torch.no_grad()
def check_generate(folder):
    """A tiny model of random weights writes the same text with a picture, patched and not, in f32."""
    config = common.read_json(folder, "config.json")
    if config["model_type"] not in WHOLE:
        return
    name, text = WHOLE[config["model_type"]]
    model_class = getattr(transformers, name)
    vision = {k: v for k, v in config["vision_config"].items() if k != "dtype"}
    hidden = vision.get("out_hidden_size") or vision["hidden_size"]
    text = {"hidden_size": hidden, "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1,
            "intermediate_size": 48, "vocab_size": 200, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 2, 2]}, **text}
    ids = {"image_token_id": 190, "video_token_id": 191, "vision_start_token_id": 192, "vision_end_token_id": 193}
    torch.manual_seed(3)
    whole = model_class(model_class.config_class(text_config=text, vision_config=vision, **ids)).eval()
    c, grid = whole.config.vision_config, torch.tensor([[1, 4, 8]])
    pixels = torch.rand(32, c.in_channels * c.temporal_patch_size * c.patch_size**2) * 2 - 1
    image = [192, *[190] * (32 // c.spatial_merge_size**2), 193]
    inputs = {"input_ids": torch.tensor([[5, 6, *image, 7, 8]]), "pixel_values": pixels, "image_grid_thw": grid}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    inputs["mm_token_type_ids"] = (inputs["input_ids"] == 190).int()
    options = {"max_new_tokens": 24, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    theirs = whole.generate(**inputs, **options)
    blind = whole.generate(**{**inputs, "pixel_values": -pixels}, **options)
    qwenvit.patch(whole)
    ours = whole.generate(**inputs, **options)
    apart = max((a - b).abs().max().item() for a, b in zip(theirs.logits, ours.logits, strict=True))
    other = max((a - b).abs().max().item() for a, b in zip(theirs.logits, blind.logits))
    print(f"  generate: {len(ours.logits)} tokens, logits {apart:.2g} apart ({other:.2g} for another picture)")
    assert torch.equal(theirs.sequences, ours.sequences) and apart < 1e-4 < other


if __name__ == "__main__":
    folders = sys.argv[1:] or sorted(glob.glob(f"{HERE}/../../tests/golden/*"))
    print("transformers", transformers.__version__, "qwenvit", qwenvit.__version__)
    for folder in folders:
        print(os.path.basename(folder))
        check(folder)
        check_generate(folder)
