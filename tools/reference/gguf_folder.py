# SPDX-License-Identifier: MIT
"""Converts a tower's GGUF file to an F32 checkpoint folder, with the values that the `gguf` package decodes."""

import argparse
import json
import os
import shutil

import numpy
from gguf import GGUFReader, dequantize
from safetensors import safe_open
from safetensors.numpy import save_file

# of a block, names of config.json's families -> of the file
BLOCK = [("norm1", "ln1"), ("norm2", "ln2"), ("attn.proj", "attn_out"), ("mlp.gate_proj", "ffn_gate"),
         ("mlp.up_proj", "ffn_up"), ("mlp.down_proj", "ffn_down"), ("mlp.fc1", "ffn_up"), ("mlp.fc2", "ffn_down"),
         ("mlp.linear_fc1", "ffn_up"), ("mlp.linear_fc2", "ffn_down"), ("attn.q", "attn_q"), ("attn.k", "attn_k"),
         ("attn.v", "attn_v")]  # fmt: skip
OTHER = {"patch_embed.proj": "v.patch_embd", "post_conv_layernorm": "v.norm_embd", "pos_embed": "v.position_embd",
         "embeddings.position_embedding": "v.position_embd", "post_layernorm": "v.post_ln", "merger.ln_q": "v.post_ln",
         "merger.norm": "v.post_ln", "merger.mlp.0": "mm.0", "merger.mlp.2": "mm.2", "merger.linear_fc1": "mm.0",
         "merger.linear_fc2": "mm.2", "downsample": "mm.patch_merger", "merger.proj": "mm.model.fc",
         "merger.post_projection_norm": "mm.post_norm", "merger.gate_proj": "mm.gate", "merger.up_proj": "mm.up",
         "merger.down_proj": "mm.down"}  # fmt: skip
DEEPSTACK = {"norm": "norm", "ln_q": "norm", "linear_fc1": "fc1", "linear_fc2": "fc2", "mlp.0": "fc1", "mlp.2": "fc2"}


def headers(folder):
    """Returns {name: shape} of every tensor in a folder's safetensors files."""
    shapes = {}
    for file in sorted(os.listdir(folder)):
        if file.endswith(".safetensors"):
            with safe_open(os.path.join(folder, file), "np") as f:
                shapes.update((name, f.get_slice(name).get_shape()) for name in f.keys())
    return shapes


def value(name, shape, tensors, deepstack):
    stem, suffix = name.rsplit(".", 1)
    parts = stem.split(".")
    if parts[0] == "blocks":
        below, block = ".".join(parts[2:]), f"v.blk.{parts[1]}."
        if below == "attn.qkv" and f"{block}attn_qkv.{suffix}" not in tensors:
            return numpy.concatenate([tensors[f"{block}attn_{one}.{suffix}"] for one in "qkv"])
        return tensors[f"{block}{dict([*BLOCK, ('attn.qkv', 'attn_qkv')])[below]}.{suffix}"]
    if parts[0].endswith("merger_list"):
        return tensors[f"v.deepstack.{deepstack[int(parts[1])]}.{DEEPSTACK['.'.join(parts[2:])]}.{suffix}"]
    found = tensors[f"{OTHER[stem]}.{suffix}"]
    if len(shape) == 5:
        found = numpy.stack([found, tensors[f"{OTHER[stem]}.{suffix}.1"]], axis=2)
    return found


def write_folder(file, folder, out):
    """Writes the values of a GGUF file, which was made from the checkpoint `folder`, to the folder `out`."""
    tensors = {}
    for t in GGUFReader(file).tensors:
        shape = [int(n) for n in reversed(t.shape)]
        tensors[t.name] = dequantize(t.data, t.tensor_type).astype(numpy.float32).reshape(shape)
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    config = config.get("thinker_config", config)
    deepstack = config["vision_config"].get("deepstack_visual_indexes", [])
    values = {}
    for name, shape in headers(folder).items():
        if "visual." in name:
            below = name.split("visual.", 1)[1]
            values[name] = value(below, shape, tensors, sorted(deepstack)).reshape(shape)
    os.makedirs(out, exist_ok=True)
    for name in os.listdir(folder):
        if name.endswith(".json") and "index" not in name:
            shutil.copy(os.path.join(folder, name), out)
    save_file({name: numpy.ascontiguousarray(t) for name, t in values.items()}, os.path.join(out, "model.safetensors"))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("folder", help="the checkpoint that FILE was made from, for its names, shapes and configs")
    parser.add_argument("out")
    args = parser.parse_args()
    write_folder(args.file, args.folder, args.out)


if __name__ == "__main__":
    main()
