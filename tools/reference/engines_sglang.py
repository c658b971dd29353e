#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""SGLang's own processor of Qwen-VL on what qwenvit gives it, without a GPU: items, offsets, positions.

    engines_sglang.py CLIP CLIP [--golden tests/golden/qwen3_vl]

sglang and the wheel must be installed; its compiled parts are not needed. Exit 1: something differs.
"""
import asyncio
import sys
import types

import sglang
import torch
from sglang.srt.multimodal.processors.base_processor import MultimodalSpecialTokens
from sglang.srt.multimodal.processors.qwen_vl import QwenVLImageProcessor

import engine_models
import qwenvit
from qwenvit.adapters import engines


def processor_of(config, processor):
    """Returns a processor with only what it reads for precomputed tokens; a whole one needs a
    server's arguments."""
    ours = QwenVLImageProcessor.__new__(QwenVLImageProcessor)
    ours.hf_config, ours.model_type, ours._processor = config, config.model_type, processor
    ours._tokenizer, ours.mm_processor_executor = processor.tokenizer, None
    ours.image_config = ours.video_config = {}
    ours.use_cuda_ipc = ours.precompute_hash_before_cpu_transfer = False
    ours.vision_start_token_id, ours.vision_end_token_id = config.vision_start_token_id, config.vision_end_token_id
    # nothing is on a GPU
    ours._mark_cuda_ipc_features_for_deferred_reconstruction = lambda items: None
    ours.audio_start_token_id = ours.audio_token_id = None
    ours._spatial_merge_size = config.vision_config.spatial_merge_size
    ours._tokens_per_second = getattr(config.vision_config, "tokens_per_second", None)
    ours.mm_tokens = MultimodalSpecialTokens(
        image_token_id=config.image_token_id, video_token_id=config.video_token_id)
    return ours


def main():
    args = engine_models.arguments(__doc__)
    with engine_models.setting(args) as (_, _, config, processor, entries):
        ids = processor.tokenizer(qwenvit.prompt(entries, engine_models.chat(entries)))["input_ids"]
        data = engines.to_sglang(entries)
        request = types.SimpleNamespace(video_data=data["video_data"], audio_data=None)
        out = asyncio.run(processor_of(config, processor)._process_mm_data_uncached(
            data["image_data"], ids, request))
    assert out.input_ids == ids
    found = {"image": [], "video": []}
    for item in out.mm_items:
        kind = item.modality.name.lower()
        token = config.image_token_id if kind == "image" else config.video_token_id
        places = [i for first, last in item.offsets for i in range(first, last + 1)]
        assert all(ids[i] == token for i in places) and len(places) == len(item.feature), kind
        found[kind].append(item.feature)
    for kind, features in found.items():
        wanted = [torch.cat([m for m in (e.torch()[0], *e.torch()[1])], 1) for e in entries if e.is_image == (kind == "image")]
        assert torch.equal(torch.cat(features), torch.cat(wanted)), kind
    assert out.mrope_positions.shape == (3, len(ids))
    print(f"processor: {len(ids)} ids, {len(found['image'])} images and {len(found['video'])} items of clips, each at "
          f"its offsets; positions {list(out.mrope_positions.shape)}")
    print(f"sglang {sglang.__version__}, torch {torch.__version__}")


if __name__ == "__main__":
    sys.exit(main())
