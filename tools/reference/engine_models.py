# SPDX-License-Identifier: MIT
"""What the scripts that try engines share: a tiny whole model of random weights around a golden tower,
as a checkpoint's folder with tokenizer and processors, and a chat of clips and pictures."""
import argparse
import json
import os

import numpy as np

import common
import prompts
import qwenvit

IDS = {"image": "<|image_pad|>", "video": "<|video_pad|>", "vision_start": "<|vision_start|>",
       "vision_end": "<|vision_end|>"}
# model_type: transformers' class, and what its text config needs beside the sizes
WHOLE = {
    "qwen2_5_vl": ("Qwen2_5_VLForConditionalGeneration", {}),
    "qwen3_vl": ("Qwen3VLForConditionalGeneration", {"head_dim": 12}),
}


def arguments(doc, clips=True):
    """Of a script: clips, and the golden tower that the model is made around."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if clips:
        parser.add_argument("clips", nargs="+")
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--golden", default=f"{here}/../../tests/golden/qwen3_vl")
    return parser.parse_args()


def make_folder(golden, folder):
    """A checkpoint's folder without weights; returns (config, processor)."""
    import transformers

    family, processor = prompts.make_processor(golden)
    name, text = WHOLE[family]
    vision = common.read_json(golden, "config.json")["vision_config"]
    vision = {k: v for k, v in vision.items() if k != "dtype"}
    hidden = vision.get("out_hidden_size") or vision["hidden_size"]
    tokenizer = processor.tokenizer
    text = {"hidden_size": hidden, "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1,
            "intermediate_size": 48, "vocab_size": len(tokenizer) + 3, "bos_token_id": 1, "eos_token_id": 2,
            "pad_token_id": 0, "max_position_embeddings": 32768,
            "rope_theta": 1e4, **text}
    rope = "rope_parameters" if transformers.__version__ >= "5" else "rope_scaling"
    half = text.get("head_dim", hidden // 2) // 2
    text[rope] = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 2, half - 3]}
    ids = {f"{kind}_token_id": tokenizer.convert_tokens_to_ids(token) for kind, token in IDS.items()}
    config_class = getattr(transformers, name).config_class
    config = config_class(text_config=text, vision_config=vision, architectures=[name], **ids)
    os.makedirs(folder, exist_ok=True)
    config.save_pretrained(folder)
    processor.save_pretrained(folder)
    return config, processor


def make_cache(golden, files, folder, tokens="f32"):
    """A cache of files, by the command."""
    import subprocess
    import sys

    listed = os.path.join(folder, "list")
    with open(listed, "w", encoding="utf-8") as f:
        f.writelines(json.dumps({"path": path}) + "\n" for path in files)
    out = os.path.join(folder, "cache")
    subprocess.run([sys.executable, "-m", "qwenvit", "cache", "--model", golden, "--list", listed, "--out", out,
                    "--backend", "cpu", "--dtype", "f32", "--tokens", tokens], check=True, capture_output=True)
    return qwenvit.Cache(out)


def write_picture(folder):
    from PIL import Image

    path = os.path.join(folder, "picture.png")
    Image.fromarray(np.random.default_rng(7).integers(0, 256, (96, 160, 3), dtype=np.uint8)).save(path)
    return path


def chat(results):
    """Text with a placeholder for each result, and words between them."""
    kinds = ["image" if r.picture else "video" for r in results]
    return "say " + " and ".join(f"<|vision_start|><|{kind}_pad|><|vision_end|>" for kind in kinds) + "?"
