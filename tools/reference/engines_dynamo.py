#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs python/examples/dynamo_backend.py in Dynamo's own driver and adapter, without a GPU: images and keys
of a cache pass through AsyncVisionEncoder's threads and batches into the TokensPrompt that vLLM gets.

    engines_dynamo.py [--golden tests/golden/qwen3_vl]

ai-dynamo, vllm and the wheel must be installed. Exit 1: something differs.
"""
import asyncio
import importlib.metadata
import os
import sys
import tempfile
import types

import torch
from dynamo.common.multimodal.embedding_transfer import LocalEmbeddingReceiver, TransferRequest
from dynamo.vllm.multimodal_utils.custom_encoder import AsyncVisionEncoder, create_custom_encoder_adapter

import engine_models

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, f"{HERE}/../../python/examples")


async def encode(backend, golden, raws):
    encoder = AsyncVisionEncoder(backend)
    encoder.load(golden)
    try:
        many = await asyncio.gather(*(encoder.encode([raw]) for raw in raws))
        try:
            await encoder.encode([b"no image"])
        except ValueError as e:
            assert "cannot be decoded" in str(e), e
        else:
            raise AssertionError("nonsense was accepted")
    finally:
        encoder.shutdown()
    return [artifact for artifacts in many for artifact in artifacts]


def main():
    args = engine_models.arguments(__doc__, clips=False)
    with tempfile.TemporaryDirectory() as folder:
        path = engine_models.write_image(folder)
        cache = engine_models.make_cache(args.golden, [path], folder, "bf16")
        os.environ["QWENVIT_CACHE"] = cache.folder
        from dynamo_backend import QwenvitBackend

        with open(path, "rb") as f:
            raw = f.read()
        url = engine_models.data_url(raw, "image/png")
        backend = QwenvitBackend()
        artifacts = asyncio.run(encode(backend, args.golden, [raw, path, url]))
        vision = types.SimpleNamespace(spatial_merge_size=2)
        model = types.SimpleNamespace(is_multimodal_model=True, architectures=["Qwen3VLForConditionalGeneration"],
                                      hf_config=types.SimpleNamespace(vision_config=vision))
        adapter = create_custom_encoder_adapter(backend, model, types.SimpleNamespace())
        prompt = adapter.prepare_prompt([1, 2, 3], artifacts)
        image = prompt["multi_modal_data"]["image"]
        stored = cache[path].to_vllm()["image"]
        request = TransferRequest(embeddings_shape=[], embedding_dtype_str="",
                                  serialized_request=cache[path].save_ec(folder, "h"))
        received = asyncio.run(LocalEmbeddingReceiver().receive_embeddings(request))[1]
        assert torch.equal(received, stored["image_embeds"]), "save_ec's file"
    n = len(stored["image_embeds"])
    assert image["image_grid_thw"].tolist() == stored["image_grid_thw"].tolist() * 3
    first, cached, third = image["image_embeds"].split(n)
    assert torch.equal(cached, stored["image_embeds"]) and torch.equal(first, third)
    distance = ((first.double() - cached.double()).norm(dim=1) / cached.double().norm(dim=1)).max()
    # it is computed in bf16 and compared with f32, in a tower with heads of 16
    assert distance < 0.1, distance
    print(f"adapter: {type(adapter).__name__}, 3 images of {n} tokens, {float(distance):.2g} from the cache's")
    print(f"ai-dynamo {importlib.metadata.version('ai-dynamo')}")


if __name__ == "__main__":
    sys.exit(main())
