# SPDX-License-Identifier: MIT
"""Code that the scripts for engines and `patch` share: tiny whole models with random weights around a golden
tower, a checkpoint folder for such a model, and a chat with clips and images."""
import argparse
import base64
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers

import common
import prompts
import qwenvit

# model_type: transformers' class, and the fields of its text config besides the sizes
MOE = {"head_dim": 10, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
       "mlp_only_layers": [], "decoder_sparse_step": 1}
HYBRID = {"head_dim": 20, "linear_num_value_heads": 2, "linear_num_key_heads": 2, "linear_key_head_dim": 8,
          "linear_value_head_dim": 8, "layer_types": ["linear_attention", "full_attention"] * 2,
          "num_experts": 4,
          "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24}
INDEXER = {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 20, "indexer_budget": 64,
           "indexer_compress_ratio": 4}
WHOLE = {
    "qwen2_vl": ("Qwen2VLForConditionalGeneration", {}),
    "qwen2_5_vl": ("Qwen2_5_VLForConditionalGeneration", {}),
    "qwen2_5_omni": ("Qwen2_5OmniThinkerForConditionalGeneration", {}),
    "qwen3_vl": ("Qwen3VLForConditionalGeneration", {"head_dim": 10}),
    "qwen3_vl_moe": ("Qwen3VLMoeForConditionalGeneration", MOE),
    "qwen3_omni_moe": ("Qwen3OmniMoeThinkerForConditionalGeneration", MOE),
    "qwen3_5": ("Qwen3_5ForConditionalGeneration", HYBRID),
    "glm4v": ("Glm4vForConditionalGeneration", {}),
    "qwen4_exp": ("Qwen4ExpForConditionalGeneration", {**HYBRID, **INDEXER}),
}


def make_config(config, vocab_size, ids):
    """Returns transformers' config (4.57 or 5.x) of a whole model around the tower of a
    config.json. ids: image_token_id, video_token_id, vision_start_token_id, vision_end_token_id."""
    name, extra = WHOLE[config["model_type"]]
    config = config.get("thinker_config", config)
    vision = {k: v for k, v in config["vision_config"].items() if k != "dtype"}
    hidden = vision.get("out_hidden_size") or vision["hidden_size"]
    text = {"hidden_size": hidden, "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1,
            "intermediate_size": 48, "vocab_size": vocab_size, "bos_token_id": 1, "eos_token_id": 2,
            "pad_token_id": 0, "max_position_embeddings": 32768, **extra}
    partial = 0.5 if "layer_types" in extra else 1
    angles = int(partial * text.get("head_dim", hidden // 2)) // 2
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": partial,
            "mrope_section": [angles - 2 * (angles // 3), angles // 3, angles // 3]}
    if transformers.__version__ >= "5":
        text["rope_parameters"] = rope
    else:
        text.update(rope_scaling=rope, rope_theta=rope["rope_theta"])
    # the names of the Omni models
    ids = {**ids, **{k.replace("_id", "_index"): v for k, v in ids.items()}}
    if "Omni" in name:  # the audio tower is as small as possible
        ids["audio_config"] = {"d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2,
                               "encoder_ffn_dim": 16, "output_dim": hidden}
    config_class = getattr(transformers, name).config_class
    return config_class(text_config=text, vision_config=vision, architectures=[name], **ids)


def make_model(config):
    """Returns a model with the given config."""
    torch.manual_seed(3)
    return getattr(transformers, config.architectures[0])(config).eval()


IDS = {"image": "<|image_pad|>", "video": "<|video_pad|>", "vision_start": "<|vision_start|>",
       "vision_end": "<|vision_end|>"}


def arguments(doc, clips=True):
    """Parses a script's arguments: clips, and the golden tower that the model is made around."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if clips:
        parser.add_argument("clips", nargs="+")
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--golden", default=f"{here}/../../tests/golden/qwen3_vl")
    return parser.parse_args()


def make_folder(golden, folder):
    """Makes a checkpoint folder without weights; returns (config, processor)."""
    _, processor = prompts.make_processor(golden)
    tokenizer = processor.tokenizer
    ids = {f"{kind}_token_id": tokenizer.convert_tokens_to_ids(token) for kind, token in IDS.items()}
    config = make_config(common.read_json(golden, "config.json"), len(tokenizer) + 3, ids)
    os.makedirs(folder, exist_ok=True)
    config.save_pretrained(folder)
    processor.save_pretrained(folder)
    return config, processor


def make_cache(golden, files, folder, tokens="f32"):
    """Makes a cache of files with the command."""
    listed = os.path.join(folder, "list")
    with open(listed, "w", encoding="utf-8") as f:
        f.writelines(json.dumps({"path": path}) + "\n" for path in files)
    out = os.path.join(folder, "cache")
    subprocess.run([sys.executable, "-m", "qwenvit", "cache", "fill", "--model", golden, "--list", listed, "-o", out,
                    "--backend", "cpu", "--dtype", "f32", "--tokens", tokens], check=True, capture_output=True)
    return qwenvit.Cache(out)


@contextlib.contextmanager
def setting(args):
    """Gives (folder, its checkpoint without weights, config, processor, entries of a cache of the clips and an image)."""
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.join(folder, "model")
        config, processor = make_folder(args.golden, model)
        paths = [args.clips[0], write_image(folder), *args.clips[1:]]
        cache = make_cache(args.golden, paths, folder)
        yield folder, model, config, processor, [cache[path] for path in paths]


def pixels(size, mode="RGB", seed=1, colours=4):
    """Returns an image of squares, which makes a small file."""
    from PIL import Image

    grid = np.random.default_rng(seed).integers(0, colours, (size[1] // 8, size[0] // 8, 3), dtype=np.uint8)
    return Image.fromarray(grid * (255 // colours)).resize(size, 0).convert(mode)


def encoded(images, kind, **how):
    out = io.BytesIO()
    images[0].save(out, kind, **how, **({"save_all": True, "append_images": images[1:]} if images[1:] else {}))
    return out.getvalue()


def data_url(data, kind):
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def write_image(folder):
    path = os.path.join(folder, "image.png")
    pixels((160, 96)).save(path)
    return path


def chat(results):
    """Returns a text with a placeholder for each result, and words between them."""
    kinds = ["image" if r.is_image else "video" for r in results]
    return "say " + " and ".join(f"<|vision_start|><|{kind}_pad|><|vision_end|>" for kind in kinds) + "?"
