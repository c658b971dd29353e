#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs transformers' vision tower alone and writes every layer's output.

The file holds pixel_values [n, row], grid_thw [clips, 3] and, in f32, patch_embed (with position
embedding), blocks.N, deepstack_merger_list.N and merger: what `qwenvit verify --against` reads.

--yardstick: the truth in f32 on bf16-rounded weights and, for each layer, transformers' own
bf16 output as "bf16.LAYER": the bar for a bf16 tower.
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
    source.add_argument("--image", metavar="FILE")
    source.add_argument("--pixels", metavar="FILE.safetensors",
                        help="with pixel_values and grid_thw, as this tool writes them")
    parser.add_argument("-o", "--output", metavar="FILE.safetensors", required=True)
    parser.add_argument("--dtype", choices=common.DTYPES, default="f32")
    parser.add_argument("--yardstick", action="store_true",
                        help="write f32 on bf16-rounded weights, and bf16 too")
    common.add_sampling(parser)
    args = parser.parse_args()
    if args.yardstick and args.dtype != "f32":
        parser.error("--dtype cannot be used with --yardstick, which writes f32 and bf16 into one file")
    if args.threads:
        torch.set_num_threads(args.threads)

    tensors = {}
    if args.clip:
        pixels, grids, tensors["timestamps"] = common.clip_pixels(
            args.model, args.clip, args.num_frames, args.fps, args.min_pixels, args.max_pixels,
            args.cap_pixels)
    elif args.image:
        pixels, grids = common.image_pixels(args.model, args.image, args.min_pixels,
                                              args.max_pixels)
    else:
        given = load_file(args.pixels)
        pixels, grids = given["pixel_values"], given["grid_thw"].reshape(-1, 3)

    def run(dtype):
        model = common.load_tower(args.model, dtype, "sdpa", args.yardstick, args.device)
        return common.run_tower(model, pixels, grids)

    layers = run(args.dtype)
    if args.yardstick:
        tensors.update({f"bf16.{name}": x.float().contiguous()
                        for name, x in run("bf16").items()})
    tensors.update(pixel_values=pixels.float().contiguous(), grid_thw=grids.long().contiguous())
    tensors.update({name: x.float().contiguous() for name, x in layers.items()})
    save_file(tensors, args.output, metadata={
        "implementation": f"transformers {transformers.__version__}, torch {torch.__version__}",
        "dtype": args.dtype, "yardstick": str(args.yardstick).lower()})
    print(f"{args.output}: grids {grids.tolist()}, {len(pixels)} patches, "
          f"{len(layers['merger'])} tokens, {len(layers)} layers")


if __name__ == "__main__":
    main()
