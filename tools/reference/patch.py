# SPDX-License-Identifier: MIT
"""Tests qwenvit.patch on transformers' own classes: tiny towers of every family in f32 (within 2e-5 of
transformers' tokens) and bf16 (within 1.05 of its own mean distance), saved while patched and restored bit for
bit; and tiny whole models: the same text, the same logits.

    python tools/reference/patch.py [FOLDER...]     (the wheel must be installed; FOLDER: tests/golden/*)
"""
import copy
import glob
import os
import pickle
import sys
import tempfile

import torch
import transformers

import common
import engine_models
import qwenvit

HERE = os.path.dirname(os.path.abspath(__file__))


def outputs(out, glm):
    return [out.pooler_output, *(getattr(out, "deepstack_features", None) or []), *([] if glm else [out.last_hidden_state])]


@torch.no_grad()
def check(folder):
    generator = torch.Generator().manual_seed(1)
    truth_tower = common.load_tower(folder, "f32", round_weights=True)
    grids = torch.tensor([[2, 4, 6], [1, 8, 4]])
    glm = common.is_glm(folder)
    if glm:
        grids = common.one_pair_each(grids)
    c = truth_tower.config
    row_dim = c.in_channels * c.temporal_patch_size * c.patch_size**2
    pixels = torch.rand(int(grids.prod(1).sum()), row_dim, generator=generator) * 2 - 1
    truth = outputs(truth_tower(pixels.bfloat16().float(), grid_thw=grids), glm)
    for dtype in ("f32", "bf16"):
        tower = common.load_tower(folder, dtype, round_weights=True)
        before = {k: v.clone() for k, v in tower.state_dict().items()}
        x = pixels.bfloat16().to(common.DTYPES[dtype])
        theirs = tower(x, grid_thw=grids)
        qwenvit.patch(tower)
        assert not sum(p.numel() for p in tower.parameters())
        ours = tower(x, grid_thw=grids)
        assert type(ours) is type(theirs), (type(ours), type(theirs))
        for t, a, b in zip(truth, outputs(theirs, glm), outputs(ours, glm), strict=True):
            assert a.shape == b.shape and a.dtype == b.dtype, (a.shape, a.dtype, b.shape, b.dtype)
            d, own = common.row_distances(b, t), common.row_distances(a, t)
            print(f"  {dtype} worst {d.max():.3g} mean {d.mean():.3g}; transformers {own.max():.3g} {own.mean():.3g}")
            assert d.max() < 2e-5 if dtype == "f32" else d.mean() <= 1.05 * own.mean(), folder
        check_saving(tower, before)
        qwenvit.unpatch(tower)
        after = tower.state_dict()
        assert before.keys() == after.keys() and all(torch.equal(before[k], after[k]) for k in before)
        again = tower(x, grid_thw=grids)
        assert all(torch.equal(a, b) for a, b in zip(outputs(theirs, glm), outputs(again, glm)))


def check_saving(model, before):
    """A patched model saves its weights bit for bit; saving or copying anything else raises."""
    def is_whole(state):
        assert state.keys() == before.keys(), state.keys() ^ before.keys()
        for k, v in before.items():
            assert v.dtype == state[k].dtype and torch.equal(v, state[k]), (k, v.shape, state[k].shape)

    is_whole(model.state_dict())
    (tower,) = (m for m in model.modules() if hasattr(m, "patch_embed") and hasattr(m, "blocks"))
    assert all(v.numel() for v in tower.blocks[0].state_dict().values())
    with tempfile.TemporaryDirectory() as folder:
        torch.save(model.state_dict(), f"{folder}/state.pt")
        is_whole(torch.load(f"{folder}/state.pt"))
        model.save_pretrained(folder)
        again = type(model).from_pretrained(folder, dtype=model.dtype)
        is_whole({k: v for k, v in again.state_dict().items() if k in before})
        for copied in (copy.deepcopy, pickle.dumps, lambda m: torch.save(m, f"{folder}/model.pt")):
            try:
                copied(model)
            except qwenvit.Error as e:
                assert "qwenvit.unpatch" in str(e) and e.status == "QV_EUNSUPPORTED"
            else:
                raise AssertionError(f"{copied}: no error")
    print("  saved whole: state_dict, torch.save, save_pretrained; refused: deepcopy, pickle, torch.save of the model")


IDS = {"image_token_id": 190, "video_token_id": 191, "vision_start_token_id": 192, "vision_end_token_id": 193}


def an_image(whole, seed, sign=1):
    """Returns a processor's output for an image of 4 x 8 patches and the text around it."""
    torch.manual_seed(seed)
    vision = whole.config.vision_config
    pixels = torch.rand(32, vision.in_channels * vision.temporal_patch_size * vision.patch_size**2) * 2 - 1
    image = [192, *[190] * (32 // vision.spatial_merge_size**2), 193]
    inputs = {"input_ids": torch.tensor([[5, 6, *image, 7, 8]]), "pixel_values": sign * pixels,
              "image_grid_thw": torch.tensor([[1, 4, 8]])}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if "Omni" not in type(whole).__name__:
        inputs["mm_token_type_ids"] = (inputs["input_ids"] == 190).int()
    return inputs


@torch.no_grad()
def check_generate(folder):
    """A tiny model with random weights writes the same text about an image, patched and not, in
    f32. In bf16 its logits are as near to those of f32 as transformers' own are."""
    config = common.read_json(folder, "config.json")
    if config["model_type"] not in engine_models.WHOLE:
        print("  no class for", config["model_type"])
        return
    whole = engine_models.make_model(engine_models.make_config(config, 200, IDS))
    inputs, other = an_image(whole, 4), an_image(whole, 4, -1)
    options = {"max_new_tokens": 24, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    theirs, blind = whole.generate(**inputs, **options), whole.generate(**other, **options)
    before = {k: v.clone() for k, v in whole.state_dict().items()}
    qwenvit.patch(whole)
    ours = whole.generate(**inputs, **options)
    check_saving(whole, before)
    qwenvit.unpatch(whole)
    apart = max((a - b).abs().max().item() for a, b in zip(theirs.logits, ours.logits, strict=True))
    other = max((a - b).abs().max().item() for a, b in zip(theirs.logits, blind.logits))
    print(f"  generate: {len(ours.logits)} tokens, logits {apart:.2g} apart ({other:.2g} for another image)")
    assert torch.equal(theirs.sequences, ours.sequences) and apart < 1e-4 < other
    check_bf16_logits(whole)


def check_bf16_logits(whole):
    """Returns the distances, patched and not, of bf16 logits to those of f32 on the same rounded
    weights and pixels. The language model computes in f32 in all three runs; two of them round
    the tower's tokens to bf16."""
    whole.load_state_dict({k: v.bfloat16().float() for k, v in whole.state_dict().items()})
    images = [an_image(whole, seed) for seed in range(32)]

    def logits():
        return torch.cat([whole(**p).logits[0] for p in images])
    truth = logits()
    (tower,) = (m for m in whole.modules() if hasattr(m, "patch_embed") and hasattr(m, "blocks"))
    tower.bfloat16()
    # f32, as from_pretrained leaves it
    tower.rotary_pos_emb = type(tower.rotary_pos_emb)(tower.config)
    theirs = common.row_distances(logits(), truth).mean().item()
    qwenvit.patch(tower)
    ours = common.row_distances(logits(), truth).mean().item()
    print(f"  bf16 tower: logits {ours:.3g} from f32's, transformers' own {theirs:.3g}, {ours / theirs:.3f}")
    assert ours <= 1.05 * theirs


if __name__ == "__main__":
    folders = sys.argv[1:] or sorted(glob.glob(f"{HERE}/../../tests/golden/*/"))
    print("transformers", transformers.__version__, "qwenvit", qwenvit.__version__)
    for folder in folders:
        print(os.path.basename(folder))
        check(folder)
        check_generate(folder)
