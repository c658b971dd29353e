#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Quantises the matrices of a vision tower as MLX does (affine groups), to try and time --weights stored.

    python3 tools/reference/mlx_quantise.py FOLDER OUT --bits 4 --group 64

FOLDER has a model.safetensors in bf16, f16 or f32, as `qwenvit synth` makes it. OUT gets the same files, in
which each matrix of the tower is U32 [n, k * bits / 32] with bf16 scales and biases [n, k / group]. The patch
embedding, the position table, vectors and tensors of no tower stay as they are.
"""

import argparse
import json
import pathlib
import shutil
import struct

import numpy as np

DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}


def read(path):
    """Returns {name: (dtype's name, values, shape)} of a safetensors file; bf16 as its bits."""
    data = np.memmap(path, np.uint8, "r")
    n = struct.unpack("<Q", data[:8].tobytes())[0]
    header = json.loads(data[8 : 8 + n].tobytes())
    header.pop("__metadata__", None)
    out = {}
    for name, t in header.items():
        begin, end = (8 + n + at for at in t["data_offsets"])
        kind = DTYPES.get(t["dtype"], np.uint8)
        out[name] = (t["dtype"], data[begin:end].view(kind), t["shape"])
    return out


def write(path, tensors):
    """Writes {name: (dtype's name, array, shape)}."""
    header, at = {}, 0
    for name, (dtype, values, shape) in tensors.items():
        header[name] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [at, at + values.nbytes],
        }
        at += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, values, _ in tensors.values():
            f.write(values.tobytes())


def to_f32(dtype, values):
    """Returns values in f32."""
    if dtype == "BF16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


def to_bf16(x):
    """Returns the bits of x rounded to bf16."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def quantise(x, bits, group):
    """Returns codes in words, scales and biases of a matrix [n, k]."""
    n, k = x.shape
    groups = x.reshape(n, k // group, group)
    least, most = groups.min(-1, keepdims=True), groups.max(-1, keepdims=True)
    top = (1 << bits) - 1
    scales = to_bf16(np.maximum((most - least) / top, 1e-7))
    biases = to_bf16(least)
    codes = (groups - to_f32("BF16", biases)) / to_f32("BF16", scales)
    codes = np.clip(np.rint(codes), 0, top).astype(np.uint32).reshape(n, -1, 32 // bits)
    words = np.bitwise_or.reduce(codes << np.arange(0, 32, bits, dtype=np.uint32), -1)
    return words.astype(np.uint32), scales[..., 0], biases[..., 0]


def main():
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--bits", type=int, choices=(4, 8), default=4)
    parser.add_argument("--group", type=int, choices=(32, 64, 128), default=64)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, (dtype, values, shape) in read(args.folder / "model.safetensors").items():
        matrix = "visual." in name and len(shape) == 2 and "pos_embed" not in name
        if not matrix or shape[1] % args.group or dtype not in DTYPES:
            tensors[name] = (dtype, values, shape)
            continue
        x = to_f32(dtype, values).reshape(shape)
        words, scales, biases = quantise(x, args.bits, args.group)
        stem = name.removesuffix("weight")
        tensors[name] = ("U32", words, words.shape)
        tensors[stem + "scales"] = ("BF16", scales, scales.shape)
        tensors[stem + "biases"] = ("BF16", biases, biases.shape)
    write(args.out / "model.safetensors", tensors)
    for path in args.folder.glob("*.json"):
        if "index" not in path.name:
            shutil.copy(path, args.out)


if __name__ == "__main__":
    main()
