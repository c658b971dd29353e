#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compares qwenvit.prompt with the text of transformers' own processors: real clips and images at several
frames per second, and made-up lengths and rates, for the families of the given folders.

    prompts.py FOLDER... --files FILE... [--table python/tests/prompts.json]

FOLDER: a checkpoint's folder, such as those in tests/golden. The wheel must be installed. transformers
ignores display rotation, so rotated clips are skipped. --table writes the made-up cases for a test.
Exit 1: a text, a grid or a time differs.
"""
import argparse
import json
import re
import sys
import types

import numpy as np
import tokenizers
import transformers
from transformers.video_utils import VideoMetadata, load_video

import common
import qwenvit

PROCESSORS = {"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL"}  # Qwen3VL too
SPECIAL = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>", "<|endoftext|>"]
TEXT = {kind: f"a <b> <|vision_start|><|{kind}_pad|><|vision_end|>\nsays <0.5 seconds>?" for kind in ("image", "video")}
OUTER = tuple(map(int, transformers.__version__.split(".")[:2])) >= (5, 10)

# the numbers of sampled frames, and the clip's frames per second
CLIPS = [
    ([0, 8, 16, 24], 30.0), ([0, 12, 24], 24.0), ([0, 12, 25, 37, 49], 25.0), ([0], 25.0),
    ([0, 12, 24, 36, 47], 24000 / 1001), ([0, 15, 30, 45, 59, 74, 89], 30000 / 1001),
    ([0, 1, 2, 3], 20.0), ([0, 5, 10, 15, 20], 20.0), ([0, 1, 2, 2, 3], 10.0), ([3, 8, 9, 21, 22], 12.5),
    ([0, 33, 66, 100], 7.3), ([0, 1000, 2000, 2999, 29999, 86399], 1.0), ([0, 7, 14], 60000 / 1001),
]


def make_processor(folder):
    family = common.read_json(folder, "config.json")["model_type"]
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    # 4.57 accepts only this class, and 5.x converts it
    new = transformers.__version__ >= "5"
    fast = transformers.PreTrainedTokenizerFast if new else transformers.Qwen2TokenizerFast
    tokenizer = fast(tokenizer_object=tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL})
    tokenizer.chat_template = ""
    name = PROCESSORS.get(family, "Qwen3VL")
    video_class = getattr(transformers, f"{'Qwen3' if name == 'Qwen3VL' else 'Qwen2'}VLVideoProcessor")
    image_class = transformers.Qwen2VLImageProcessor if new else transformers.Qwen2VLImageProcessorFast
    processor_class = getattr(transformers, f"{name}Processor")
    return family, processor_class(image_class(**common.image_values(folder)), tokenizer,
                                   video_class(**common.video_values(folder)))


def theirs(processor, kind, media, metadata=None):
    """Returns (text, grid) that the processor makes of the chat."""
    if kind == "image":
        out = processor(text=[TEXT[kind]], images=[media], return_tensors="pt")
    else:
        out = processor(text=[TEXT[kind]], videos=[media], video_metadata=[metadata], do_sample_frames=False,
                        return_tensors="pt")
    ids = np.asarray(out["input_ids"])[0].tolist()
    return processor.tokenizer.decode(ids), np.asarray(out[f"{kind}_grid_thw"]).tolist(), ids


def made_up(family, processor):
    """Yields cases without files: (what a result would know, the text between the chat's)."""
    merge = processor.video_processor.merge_size
    for indices, fps in CLIPS:
        if len(indices) < 2:  # the processor fails here; qwenvit pairs a single frame with itself
            continue
        frames = np.zeros((len(indices), 64, 96, 3), np.uint8)
        metadata = VideoMetadata(total_num_frames=indices[-1] + 1, fps=fps, frames_indices=list(indices))
        text, grid, _ = theirs(processor, "video", frames, metadata)
        yield result(family, "video", grid, merge, [i / fps for i in indices]), text
    for size in ((64, 96), (200, 31)):
        text, grid, _ = theirs(processor, "image", np.zeros((*size, 3), np.uint8))
        yield result(family, "image", grid, merge, None), text


class result(types.SimpleNamespace):
    def __init__(self, family, kind, grid, merge, timestamps):
        super().__init__(model_type=family, is_image=kind == "image", grid_thw=grid, timestamps=timestamps, key="")
        self.n = int(np.prod(grid)) // merge**2

    def __len__(self):
        return self.n


def short(text):
    return re.sub(r"(<\|(?:image|video)_pad\|>)+", lambda m: f"{m[1]}*{len(m[0]) // len(m[1])};", text)


def sampler(processor, fps):
    """Chooses frames, with the arguments that load_video passes."""
    return lambda metadata, **_: processor.video_processor.sample_frames(metadata, fps=fps)


def real(path, processor, model):
    """Yields cases of a file at several rates: (name, our result, their text, their grid, their
    seconds, their ids)."""
    if path.endswith((".png", ".jpg")):
        from PIL import Image

        text, grid, ids = theirs(processor, "image", Image.open(path).convert("RGB"))
        yield "", model.encode(path), text, grid, None, ids
        return
    for fps in (1, 2, 2.5, 7.3):
        frames, metadata = load_video(path, backend="pyav", sample_indices_fn=sampler(processor, fps))
        text, grid, ids = theirs(processor, "video", frames, metadata)
        seconds = [float(i) / metadata.fps for i in np.asarray(metadata.frames_indices)]
        yield f" fps={fps}", model.encode(path, fps=fps), text, grid, seconds[:len(frames)], ids


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("folders", nargs="+")
    args.add_argument("--files", nargs="*", default=[])
    args.add_argument("--table")
    args = args.parse_args()
    table, wrong, compared = [], 0, 0
    for folder in args.folders:
        family, processor = make_processor(folder)
        model = qwenvit.load(folder, backend="cpu", dtype="f32")
        for about, text in made_up(family, processor):
            ours = qwenvit.prompt(about, TEXT["image" if about.is_image else "video"], outer=OUTER)
            compared, wrong = compared + 1, wrong + (ours != text)
            if ours != text:
                print(f"{family} {about.timestamps}\n  {short(ours)}\n  {short(text)}")
            case = {k: v for k, v in vars(about).items() if k != "key"}
            table.append({**case, "text": short(text)})
        for path in args.files:
            if not path.endswith((".png", ".jpg")) and common.quarter_turns(path):
                print(f"{path}: rotated, skipped")
                continue
            for name, tokens, text, grid, seconds, ids in real(path, processor, model):
                ours = qwenvit.prompt(tokens, TEXT["image" if tokens.is_image else "video"], outer=OUTER)
                same = (ours == text, tokens.grid_thw.tolist() == grid, processor.tokenizer(ours)["input_ids"] == ids,
                        seconds is None or list(tokens.timestamps) == seconds)
                compared, wrong = compared + 1, wrong + (not all(same))
                if not all(same):
                    print(f"{family} {path}{name}: text, grid, ids, seconds {same}\n  {short(ours)}\n  {short(text)}")
    print(f"transformers {transformers.__version__}: {compared} compared, {wrong} differ")
    if args.table:
        lines = ",\n".join(json.dumps(case) for case in table)
        with open(args.table, "w", encoding="utf-8") as f:
            f.write(f"[\n{lines}\n]\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
