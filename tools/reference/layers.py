#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs transformers' vision tower alone and writes every layer's output.

The file holds pixel_values [n, row], grid_thw [clips, 3] and, in f32, patch_embed (with position
embedding), blocks.N, deepstack_merger_list.N and merger: what `qwenvit verify --against` reads.
"""
import argparse

import torch
import transformers
from safetensors.torch import load_file, save_file

import common


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", metavar="MODEL_DIR", help="checkpoint folder")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--clip", metavar="FILE")
    source.add_argument("--picture", metavar="FILE")
    source.add_argument("--pixels", metavar="FILE.safetensors",
                        help="with pixel_values and grid_thw, as this tool writes them")
    parser.add_argument("-o", "--output", metavar="FILE.safetensors", required=True)
    parser.add_argument("--dtype", choices=common.DTYPES, default="f32")
    parser.add_argument("--attention", choices=("sdpa", "eager"), default="sdpa")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--num-frames", type=int, metavar="N")
    parser.add_argument("--fps", type=float)
    parser.add_argument("--min-pixels", type=int, metavar="N")
    parser.add_argument("--max-pixels", type=int, metavar="N")
    parser.add_argument("--cap-pixels", action="store_true")
    parser.add_argument("--no-rotate", action="store_true",
                        help="ignore the display rotation, as transformers alone does")
    parser.add_argument("--threads", type=int, metavar="N")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)

    tensors = {}
    if args.clip:
        pixels, grids, tensors["timestamps"] = common.clip_pixels(
            args.model, args.clip, args.num_frames, args.fps, args.min_pixels, args.max_pixels,
            args.cap_pixels, not args.no_rotate)
    elif args.picture:
        pixels, grids = common.picture_pixels(args.model, args.picture, args.min_pixels,
                                              args.max_pixels)
    else:
        given = load_file(args.pixels)
        pixels, grids = given["pixel_values"], given["grid_thw"].reshape(-1, 3)

    model = common.load_tower(args.model, args.dtype, args.attention, device=args.device)
    layers = common.run_tower(model, pixels, grids)
    tensors.update(pixel_values=pixels.float().contiguous(), grid_thw=grids.long().contiguous())
    tensors.update({name: x.float().contiguous() for name, x in layers.items()})
    save_file(tensors, args.output, metadata={
        "implementation": f"transformers {transformers.__version__}, torch {torch.__version__}",
        "dtype": args.dtype, "attention": args.attention})
    print(f"{args.output}: grids {grids.tolist()}, {len(pixels)} patches, "
          f"{len(layers['merger'])} tokens, {len(layers)} layers")


if __name__ == "__main__":
    main()
