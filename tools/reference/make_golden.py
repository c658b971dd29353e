#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes tests/golden: tiny checkpoints of every family, and transformers' outputs for them.

Weights and pixels depend only on the seeds below. Layer outputs are transformers' in f32; their last
bits may differ between machines and torch versions.
"""
import argparse
import json
import os

import torch
from safetensors.torch import save_file

import common

HALVES = dict(image_mean=[0.5] * 3, image_std=[0.5] * 3)
CLIP = dict(image_mean=[0.48145466, 0.4578275, 0.40821073],
            image_std=[0.26862954, 0.26130258, 0.27577711])

# defaults of most cases
DEFAULTS = dict(prefix="model.visual.", dtype=torch.bfloat16, shards=1)
CASES = {
    # no learned positions, no bias in the Conv3d, the tower's width under another key, quick GELU
    "qwen2_vl": dict(
        seed=5, pixels=CLIP, architecture="Qwen2VLForConditionalGeneration",
        vision=dict(depth=2, embed_dim=24, hidden_size=20, num_heads=2, mlp_ratio=2, patch_size=2,
                    hidden_act="quick_gelu"),
        prefix="visual.", frames=4, grids=[[2, 4, 6], [1, 6, 2]]),
    # windows of 2x2 merged patches: ragged ones at the edges, and a grid that they divide
    "qwen2_5_vl": dict(
        seed=6, pixels=CLIP, architecture="Qwen2_5_VLForConditionalGeneration",
        vision=dict(depth=3, hidden_size=24, num_heads=2, intermediate_size=21, patch_size=2,
                    out_hidden_size=20, window_size=8, fullatt_block_indexes=[1],
                    hidden_act="silu"),
        prefix="visual.", frames=4, grids=[[2, 4, 6], [1, 6, 10], [1, 8, 8], [3, 2, 6]]),
    # Qwen2.5-VL's tower with two heads of q for each of k and v
    "exaone4_5": dict(
        seed=14, vision_type="exaone4_5_vision", pixels=CLIP,
        architecture="Exaone4_5_ForConditionalGeneration",
        vision=dict(depth=2, hidden_size=24, num_heads=2, num_key_value_heads=1, intermediate_size=20,
                    patch_size=2, out_hidden_size=12, window_size=8, fullatt_block_indexes=[1],
                    hidden_act="silu"),
        frames=2, grids=[[1, 6, 6], [2, 4, 2]]),
    # q, k and v stored separately, the vision config one level deeper
    "qwen2_5_omni": dict(
        seed=7, vision_type="qwen2_5_omni_vision_encoder", pixels=CLIP,
        architecture="Qwen2_5OmniModel", thinker=True,
        vision=dict(depth=2, hidden_size=24, num_heads=3, intermediate_size=20, patch_size=2,
                    out_hidden_size=12, window_size=8, fullatt_block_indexes=[0],
                    hidden_act="silu"),
        prefix="thinker.visual.", dtype=torch.float32, frames=2, grids=[[1, 6, 6], [2, 4, 2]]),
    "qwen3_omni_moe": dict(
        seed=8, vision_type="qwen3_omni_moe_vision_encoder",
        architecture="Qwen3OmniMoeForConditionalGeneration", thinker=True,
        vision=dict(depth=2, hidden_size=24, num_heads=2, intermediate_size=28, patch_size=4,
                    out_hidden_size=16, num_position_embeddings=16,
                    deepstack_visual_indexes=[0, 1]),
        prefix="thinker.visual.", frames=4, grids=[[2, 4, 2], [1, 2, 6]]),
    # bf16, one file, two DeepStack taps, the published patch size
    "qwen3_vl": dict(
        seed=1, architecture="Qwen3VLForConditionalGeneration",
        vision=dict(depth=3, hidden_size=32, num_heads=2, intermediate_size=40, patch_size=16,
                    out_hidden_size=24, num_position_embeddings=36,
                    deepstack_visual_indexes=[0, 2]),
        frames=4, grids=[[2, 4, 4], [1, 2, 8]]),
    # two shards, head size 12, an odd MLP width, one DeepStack tap
    "qwen3_vl_moe": dict(
        seed=2, architecture="Qwen3VLMoeForConditionalGeneration",
        vision=dict(depth=2, hidden_size=36, num_heads=3, intermediate_size=53, patch_size=4,
                    out_hidden_size=20, num_position_embeddings=25,
                    deepstack_visual_indexes=[1]),
        shards=2, frames=4, grids=[[2, 4, 6], [3, 2, 10]]),
    # Qwen3-VL's tower, in separate classes
    "cohere_compass": dict(
        seed=13, vision_type="cohere_compass_vision",
        architecture="CohereCompassForConditionalGeneration",
        vision=dict(depth=2, hidden_size=24, num_heads=2, intermediate_size=28, patch_size=2,
                    out_hidden_size=12, num_position_embeddings=16, deepstack_visual_indexes=[1]),
        frames=4, grids=[[2, 4, 2], [1, 2, 4]]),
    # stored in f32, three frames: the last one is repeated
    "qwen3_5": dict(
        seed=3, architecture="Qwen3_5ForConditionalGeneration",
        vision=dict(depth=3, hidden_size=32, num_heads=4, intermediate_size=48, patch_size=8,
                    out_hidden_size=28, num_position_embeddings=49,
                    deepstack_visual_indexes=[]),
        dtype=torch.float32, frames=3, grids=[[2, 4, 6], [1, 10, 2]]),
    # names without "model.", one head, no DeepStack key
    "qwen4_exp": dict(
        seed=4, vision_type="qwen4_exp_vision",
        architecture="Qwen4ExpForConditionalGeneration",
        vision=dict(depth=2, hidden_size=24, num_heads=1, intermediate_size=56, patch_size=4,
                    out_hidden_size=40, num_position_embeddings=16),
        prefix="visual.", frames=4, grids=[[2, 4, 4], [1, 2, 6]]),
    # norms and convolutions around the blocks, bicubic positions, the tower's names for tensors
    "glm4v": dict(
        seed=12, vision_type="glm4v_vision", pixels=CLIP,
        architecture="Glm4vForConditionalGeneration",
        vision=dict(depth=2, hidden_size=16, num_heads=2, intermediate_size=20, patch_size=2,
                    out_hidden_size=12, image_size=7, rms_norm_eps=1e-5, hidden_act="silu"),
        frames=3, grids=[[2, 4, 6], [1, 2, 4]]),
}
CASES = {name: {**DEFAULTS, "model_type": name, "vision_type": name, **case} for name, case in CASES.items()}


def write_json(value, *parts):
    with open(os.path.join(*parts), "w", encoding="utf-8") as f:
        json.dump(value, f, indent=1)
        f.write("\n")


def write_configs(folder, case):
    vision = dict(model_type=case["vision_type"], hidden_act="gelu_pytorch_tanh", in_channels=3,
                  spatial_merge_size=2, temporal_patch_size=2, initializer_range=0.02)
    vision.update(case["vision"])
    inner = dict(vision_config=vision)
    if case.get("thinker"):
        inner = dict(thinker_config=dict(model_type=case["model_type"] + "_thinker", **inner))
    write_json(dict(architectures=[case["architecture"]], model_type=case["model_type"], **inner),
               folder, "config.json")
    shared = dict(patch_size=vision["patch_size"], temporal_patch_size=2, merge_size=2,
                  **case.get("pixels", HALVES))
    write_json(dict(size=dict(shortest_edge=65536, longest_edge=16777216), **shared,
                    image_processor_type=("Glm4vImageProcessor" if case["model_type"] == "glm4v"
                                          else "Qwen2VLImageProcessorFast")),
               folder, "preprocessor_config.json")
    if "pixels" in case:  # one file for images and clips
        return
    write_json(dict(size=dict(shortest_edge=4096, longest_edge=25165824), **shared, fps=2,
                    min_frames=4, max_frames=768, video_processor_type="Qwen3VLVideoProcessor"),
               folder, "video_preprocessor_config.json")


def random_weights(folder, random):
    """Makes seeded weights that leave no term idle: norms differ from 1, biases from 0, and
    attention is not flat. They are rounded to bf16."""
    model_class, config = common.vision_classes(folder)
    weights = {}
    for name, parameter in sorted(model_class(config).state_dict().items()):
        shape = parameter.shape
        x = torch.randn(shape, generator=random)
        if ("norm" in name or "ln_q" in name) and name.endswith("weight"):
            x = 1 + 0.2 * x
        elif name.endswith("bias"):
            x = 0.1 * x
        elif name in ("pos_embed.weight", "embeddings.position_embedding.weight"):
            x = 0.5 * x
        else:
            gain = 1.5 if any(n in name for n in ("qkv", "attn.q.", "attn.k.", "attn.v.")) else 1.0
            x = gain * x / shape[1:].numel() ** 0.5
        weights[name] = x.bfloat16()
    return weights


def write_weights(folder, case, weights, random):
    tensors = {case["prefix"] + k: v.to(case["dtype"]) for k, v in weights.items()}
    other = ("model.language_model.embed_tokens.weight" if case["prefix"].startswith("model.")
             else "model.embed_tokens.weight")
    # a tensor that must be ignored
    tensors[other] = torch.randn(6, 8, generator=random).to(case["dtype"])
    names, shards = sorted(tensors), case["shards"]
    if shards == 1:
        save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
        return
    weight_map = {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        first, last = i * len(names) // shards, (i + 1) * len(names) // shards
        part = {n: tensors[n] for n in names[first:last]}
        weight_map.update({n: file for n in part})
        save_file(part, os.path.join(folder, file), metadata={"format": "pt"})
    total = sum(x.numel() * x.element_size() for x in tensors.values())
    write_json(dict(metadata=dict(total_size=total), weight_map=dict(sorted(weight_map.items()))),
               folder, "model.safetensors.index.json")


def random_frames(n, height, width, random):
    """Makes frames uint8 [n, height, width, 3]: moving waves and noise, with the extremes 0 and
    255."""
    t = torch.arange(n).view(n, 1, 1, 1)
    y = torch.arange(height).view(1, height, 1, 1) / height
    x = torch.arange(width).view(1, 1, width, 1) / width
    c = torch.arange(3).view(1, 1, 1, 3)
    wave = torch.sin(6.3 * x + 0.7 * t + c) + torch.cos(4.1 * y * (1 + c) - 0.4 * t)
    noise = torch.randn(n, height, width, 3, generator=random)
    return (127.5 + 70 * wave + 25 * noise).round().clamp(0, 255).to(torch.uint8)


def make_case(folder, case):
    os.makedirs(folder, exist_ok=True)
    random = torch.Generator().manual_seed(case["seed"])
    write_configs(folder, case)
    write_weights(folder, case, random_weights(folder, random), random)

    patch = case["vision"]["patch_size"]
    (pairs, rows, cols), others = case["grids"][0], case["grids"][1:]
    assert pairs == (case["frames"] + 1) // 2
    frames = random_frames(case["frames"], patch * rows, patch * cols, random)
    out = common.video_processor(folder)(videos=[frames.numpy()], do_resize=False,
                                         do_sample_frames=False,
                                         return_tensors="pt")
    assert out["video_grid_thw"].reshape(-1).tolist() == case["grids"][0]
    pixels = [out["pixel_values_videos"]]
    pixels += [0.6 * torch.randn(t * h * w, pixels[0].shape[1], generator=random)
               for t, h, w in others]
    pixels = torch.cat(pixels).float().contiguous()
    grids = torch.tensor(case["grids"])

    truth = common.run_tower(common.load_tower(folder, "f32", "sdpa"), pixels, grids)
    tensors = dict(frames=frames, pixel_values=pixels, grid_thw=grids, **truth)
    rounded = [common.run_tower(common.load_tower(folder, "bf16", attention), pixels, grids)
               for attention in ("sdpa", "eager")]
    for name in truth:
        pairs = [common.mean_and_worst(x[name], truth[name]) for x in rounded]
        tensors["bf16_distance." + name] = torch.tensor([min(p) for p in zip(*pairs)])
    for name, x in tensors.items():
        assert bool(x.double().isfinite().all()), name
    save_file({k: v.contiguous() for k, v in tensors.items()},
              os.path.join(folder, "expected.safetensors"))

    double = common.run_tower(common.load_tower(folder, "f64"), pixels, grids)
    f32 = max(common.mean_and_worst(truth[n], double[n])[1] for n in truth)
    size = sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder))
    scale = float(truth["merger"].std())
    distance = tensors["bf16_distance.merger"].tolist()
    print(f"{folder}: {size / 1e3:.0f} kB, tokens {list(truth['merger'].shape)} std {scale:.2f}, "
          f"f32 to f64 {f32:.1e}, bf16 mean {distance[0]:.2e} worst {distance[1]:.2e}")
    return size


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", metavar="OUT_DIR", help="folder to write, such as tests/golden")
    parser.add_argument("families", metavar="FAMILY", nargs="*", default=list(CASES),
                        help="the families to make (default: all)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    total = sum(make_case(os.path.join(args.out, name), case) for name, case in CASES.items() if name in args.families)
    print(f"{total / 1e6:.2f} MB in all")


if __name__ == "__main__":
    main()
