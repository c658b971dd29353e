#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compares qwenvit's video loader in vLLM with vLLM's own: are pixel_values the same? A clip is loaded as vLLM loads it
(VideoMediaIO), and the frames go to the checkpoint's video processor.

    vllm_loader.py CLIP... [--model FOLDER]

--model: a folder with preprocessor files; by default one with the numbers of Qwen3-VL is made. Prints a table of differences.
Exit 1: a clip that both load has the same frames but different pixel_values.
"""
import argparse
import json
import os
import sys
import tempfile

SIZES = {"size": {"shortest_edge": 4096, "longest_edge": 25165824}, "patch_size": 16, "temporal_patch_size": 2, "merge_size": 2,
         "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "video_processor_type": "Qwen3VLVideoProcessor"}
OWN = {"Qwen3VLVideoProcessor": "qwen3_vl", "Qwen2VLVideoProcessor": "qwen2_vl"}


class Loading:
    """Makes the pixel_values of clips with one of the loaders."""

    def __init__(self, model, loader):
        import vllm.platforms
        import vllm.platforms.cpu

        vllm.platforms._current_platform = vllm.platforms.cpu.CpuPlatform()
        import torch
        from transformers import AutoVideoProcessor
        from vllm.plugins import load_general_plugins

        torch.set_num_threads(1)  # as vLLM does where requests come side by side
        load_general_plugins()
        self.processor = AutoVideoProcessor.from_pretrained(model)
        own = {"video_backend": OWN[type(self.processor).__name__]}
        self.how = {"video_backend": "qwenvit", "model": model} if loader == "qwenvit" else own

    def __call__(self, data):
        """Returns (metadata, the frames' shape, pixel_values)."""
        import torch
        from transformers.video_utils import VideoMetadata
        from vllm.multimodal.media.image import ImageMediaIO
        from vllm.multimodal.media.video import VideoMediaIO

        frames, about = VideoMediaIO(ImageMediaIO(), **self.how).load_bytes(data).media
        known = VideoMetadata(**{k: v for k, v in about.items() if k != "do_sample_frames"})
        made = self.processor(videos=[torch.from_numpy(frames).permute(0, 3, 1, 2)], video_metadata=[known], return_tensors="pt",
                              do_sample_frames=about["do_sample_frames"])
        return about, frames.shape, made["pixel_values_videos"]


def read(path):
    with open(path, "rb") as f:
        return f.read()


def compare(clips, model):
    theirs, ours, failed = Loading(model, "vllm"), Loading(model, "qwenvit"), False
    for path in clips:
        found = []
        for loading in (theirs, ours):
            try:
                found.append(loading(read(path)))
            except Exception as e:  # any failure of a loader belongs in the table
                found.append(f"{type(e).__name__}: {e}")
        name = os.path.basename(path)
        if any(isinstance(one, str) for one in found):
            print(f"{name}: vLLM: {found[0] if isinstance(found[0], str) else 'loaded'}; qwenvit: {found[1] if isinstance(found[1], str) else 'loaded'}")
            continue
        (about, shape, a), (mine, own_shape, b) = found
        same = a.shape == b.shape and bool((a == b).all())
        other = [k for k in ("total_num_frames", "fps", "frames_indices") if about[k] != mine[k]]
        worst = "" if same or a.shape != b.shape else f", {(a - b).abs().max() * 127.5:.0f} levels at most"
        print(f"{name}: frames {list(shape[:3])} and {list(own_shape[:3])}: {'equal' if same else 'other pixel_values'}{worst}"
              + (f"; other {', '.join(other)}" if other else ""))
        failed |= not same and not other
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clips", nargs="+")
    parser.add_argument("--model")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if not args.model:
            with open(os.path.join(folder, "video_preprocessor_config.json"), "w", encoding="utf-8") as f:
                json.dump(SIZES, f)
        return compare(args.clips, args.model or folder)


if __name__ == "__main__":
    sys.exit(main())
