#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Feeds a tiny Qwen-VL of transformers (4.57 or 5.x) from a cache: its logits and its text must equal those
from the clips and images themselves, through its own processor.

    engines_transformers.py CLIP... [--golden tests/golden/qwen3_vl]

The wheel must be installed. Exit 1: logits are more than 1e-4 apart, or prompts differ.
"""
import sys

import torch
import transformers
from transformers.video_utils import load_video

import common
import engine_models
import prompts
import qwenvit
from qwenvit.adapters import engines


def load_whole(golden, config):
    """Returns a model with the folder's tower and random weights everywhere else."""
    whole = engine_models.make_model(config)
    tower = whole.model.visual
    tower.load_state_dict({k: v.float() for k, v in common.read_weights(golden, tower.config).items()})
    return whole


def their_inputs(processor, text, entries):
    images, clips, metadata = [], [], []
    for entry in entries:
        if entry.is_image:
            from PIL import Image

            images.append(Image.open(entry.key).convert("RGB"))
            continue
        frames, about = load_video(entry.key, backend="pyav", sample_indices_fn=prompts.sampler(processor, 2))
        clips.append(frames)
        metadata.append(about)
    return processor(text=[text], images=images or None, videos=clips or None, video_metadata=metadata or None,
                     do_sample_frames=False, return_tensors="pt")


@torch.no_grad()
def main():
    args = engine_models.arguments(__doc__)
    with engine_models.setting(args) as (_, _, config, processor, entries):
        whole = load_whole(args.golden, config)
        text = engine_models.chat(entries)
        theirs = their_inputs(processor, text, entries)
        ids = processor.tokenizer(qwenvit.prompt(entries, text, outer=prompts.OUTER), return_tensors="pt")["input_ids"]
        same_ids = torch.equal(ids, theirs["input_ids"])
        options = {"max_new_tokens": 8, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
        seconds = [float(s) for s in theirs.get("second_per_grid_ts", [])]
        assert seconds == [e.second_per_grid_ts for e in entries if not e.is_image][: len(seconds)], seconds
        expected = whole.generate(**theirs, **options)
        engines.accept_tokens(whole)
        ours = {k: v for k, v in theirs.items() if k in ("attention_mask", "mm_token_type_ids")}
        ours.update(input_ids=ids, **engines.to_transformers(entries))
        found = whole.generate(**ours, **options)
        for key in ("pixel_values", "pixel_values_videos"):
            ours[key] = -ours[key] if key in ours else None
        other = whole.generate(**{k: v for k, v in ours.items() if v is not None}, **options)
    apart, blind = (max((a - b).abs().max().item() for a, b in zip(expected.logits, x.logits)) for x in (found, other))
    same_text = torch.equal(expected.sequences, found.sequences)
    print(f"transformers {transformers.__version__}, {config.model_type}: {ids.shape[1]} ids the same: {same_ids}; logits "
          f"{apart:.2g} apart ({blind:.2g} of other tokens); the same text: {same_text}")
    return 0 if same_ids and same_text and apart < 1e-4 < blind else 1


if __name__ == "__main__":
    sys.exit(main())
