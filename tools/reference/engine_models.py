# SPDX-License-Identifier: MIT
"""What the scripts that try engines share: a tiny whole model with random weights around a golden
tower, as a checkpoint folder with tokenizer and processors, and a chat with clips and images."""
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

import common
import prompts
import qwenvit
import tiny_models

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
    config = tiny_models.make_config(common.read_json(golden, "config.json"), len(tokenizer) + 3, ids)
    os.makedirs(folder, exist_ok=True)
    config.save_pretrained(folder)
    processor.save_pretrained(folder)
    return config, processor


def make_cache(golden, files, folder, tokens="f32"):
    """Makes a cache of files, by the command."""
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
