# SPDX-License-Identifier: MIT
"""Tests prompt() against prompts.json, which transformers' own processors made
(tools/reference/prompts.py)."""
import json
import os
import re
import types

import pytest

import qwenvit
from conftest import refused

with open(os.path.join(os.path.dirname(__file__), "prompts.json"), encoding="utf-8") as f:
    CASES = json.load(f)
TEXT = "a <b> <|vision_start|><|{}_pad|><|vision_end|>\nsays <0.5 seconds>?"


class Result(types.SimpleNamespace):
    key = "k"

    def __len__(self):
        return self.n


def pads(text):
    return re.sub(r"(<\|\w+_pad\|>)\*(\d+);", lambda m: m[1] * int(m[2]), text)


def result_of(case):
    return Result(**{k: v for k, v in case.items() if k != "text"})


def clip(seconds=(0.0, 0.5, 1.0), grid=(2, 4, 4), **changes):
    facts = {"model_type": "qwen3_vl", "is_image": False, "timestamps": seconds, "grid_thw": [list(grid)], "n": 8}
    return Result(**{**facts, **changes})


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['model_type']}-{c['is_image']}-{c['timestamps']}")
def test_it_is_what_transformers_makes(case):
    kind = "image" if case["is_image"] else "video"
    assert qwenvit.prompt(result_of(case), TEXT.format(kind)) == pads(case["text"])
    before, _, after = TEXT.format(kind).partition(f"<|vision_start|><|{kind}_pad|><|vision_end|>")
    assert before + qwenvit.prompt(result_of(case)) + after == pads(case["text"])


def test_the_table_has_every_trap():
    clips = [c for c in CASES if c["timestamps"]]
    assert {c["model_type"] for c in clips} == {"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5"}
    assert any(len(c["timestamps"]) % 2 for c in clips) and any(c["is_image"] for c in CASES)
    halves = [a + b for c in clips for a, b in zip(c["timestamps"][::2], c["timestamps"][1::2])]
    assert any(h * 10 % 1 == 0.5 for h in halves)  # between two tenths


def test_several_by_their_order_and_kind():
    image = clip(None, (1, 4, 4), is_image=True, n=4)
    pair, pad = "<|vision_start|>" + "<|video_pad|>" * 4 + "<|vision_end|>", "<|image_pad|>"
    inner = f"<0.2 seconds>{pair}<1.0 seconds>{pair}"
    text = f"<|video_pad|> and <|vision_start|>{pad}<|vision_end|> and <|vision_start|><|video_pad|><|vision_end|>"
    late = clip((2.0, 2.4, 2.8, 3.4))
    whole = f"<|vision_start|>{inner.replace('0.2', '2.2').replace('1.0', '3.1')}<|vision_end|>"
    wanted = f"{inner} and <|vision_start|>{pad * 4}<|vision_end|> and {whole}"
    assert qwenvit.prompt([image, clip(), late], text) == wanted
    without = wanted.replace(whole, whole[len("<|vision_start|>") : -len("<|vision_end|>")])
    assert qwenvit.prompt([clip(), late, image], text, outer=False) == without
    items = clip(None, is_image=False, grid_thw=[[2, 4, 4], [3, 2, 2]], n=11, model_type="qwen2_vl")
    assert qwenvit.prompt(items) == "".join(
        f"<|vision_start|>{'<|video_pad|>' * n}<|vision_end|>" for n in (8, 3)
    )


@pytest.mark.parametrize(
    "result, options, words",
    [
        (clip(None), {}, "k: the clip has no timestamps.*timestamps="),
        (clip(None), {"timestamps": [0, 1]}, "timestamps cover 1 frame pairs, but grid_thw has 2"),
        (clip(model_type="glm4v"), {}, "model_type is 'glm4v'; it must be one of qwen2_vl"),
        (clip(model_type=None), {}, "model_type is None"),
        (clip(n=7), {}, "grid_thw has 32 patches, which do not match 7 tokens"),
        (clip(n=16), {}, "do not match 16 tokens"),
        (clip(n=0), {}, "do not match 0 tokens"),
        (clip(is_image=None, grid_thw=[[1, 4, 8]]), {}, "pass is_image=True"),
        (clip(is_image=True), {}, "an image cannot have 2 frame pairs"),
        (clip(), {"text": "no placeholder"}, "text contains 0 <|video_pad|>; the results contain 1 clips"),
        (clip(), {"text": "<|image_pad|>"}, "text contains 1 <|image_pad|>; the results contain 0 images"),
        ([clip(), clip()], {"timestamps": [0]}, "describe one result, but there are 2"),
    ],
)
def test_what_cannot_be_said_is_refused_in_words(result, options, words):
    e = refused(lambda: qwenvit.prompt(result, **options), words.replace("|", r"\|"))
    assert e.status in ("QV_EINVAL", "QV_EUNSUPPORTED")


def test_of_a_model_and_a_cache(model, expected, clip, frames, tmp_path):
    tokens = model.encode(clip, fps=5)
    text = qwenvit.prompt(tokens)
    assert [float(s) for s in re.findall(r"<([\d.]+) seconds>", text)] == [
        round(float(a + b) / 2, 1) for a, b in zip(tokens.timestamps[::2], tokens.timestamps[1::2])
    ]
    assert text.count("<|video_pad|>") == len(tokens)
    image = model.encode(frames[0])
    assert qwenvit.prompt(image).count("<|image_pad|>") == len(image)
    pair = model.encode(frames[:2])
    refused(lambda: qwenvit.prompt(pair), "timestamps=")
    assert "<0.3 seconds>" in qwenvit.prompt(pair, timestamps=[0.2, 0.4])
    rows = model.forward(expected["pixel_values"], expected["grid_thw"])
    refused(lambda: qwenvit.prompt(rows), "pass is_image=True")
    assert rows.is_image is None and image.is_image and not tokens.is_image
