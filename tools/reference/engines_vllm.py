#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs vLLM's own code on qwenvit's output, without a GPU: its parser and processor for Qwen3-VL (prompt
ids, placeholders), and the model's splitting of tokens and DeepStack. vllm_proxy.py tests the EC connector.

    engines_vllm.py CLIP CLIP [--golden tests/golden/qwen3_vl]

vllm, a version of transformers that it supports, and the wheel must be installed; vllm's compiled parts are
not needed. Exit 1: something differs.
"""
import sys
import types

import torch
import vllm
import vllm.platforms.cpu

vllm.platforms._current_platform = vllm.platforms.cpu.CpuPlatform()  # before anything asks for it
from vllm.config import ModelConfig
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.processing import ProcessorInputs
from vllm.multimodal.processing.context import TimingContext

import engine_models
import qwenvit
from qwenvit.adapters import engines


def config_of(folder):
    return ModelConfig(model=folder, dtype="float32", enforce_eager=True, enable_mm_embeds=True)


def apply(config, ids, data, uuids=None):
    """Returns (prompt ids, placeholders, kwargs, hashes) that vLLM's processor makes."""
    processor = MULTIMODAL_REGISTRY.create_processor(config)
    inputs = ProcessorInputs(prompt=ids, mm_data_items=processor.info.parse_mm_data(data), mm_uuid_items=uuids)
    return processor.apply(inputs, TimingContext(enabled=False))


def check_processor(folder, tokenizer, entries):
    text = engine_models.chat(entries)
    out = apply(config_of(folder), tokenizer(text)["input_ids"], engines.to_vllm(entries))
    wanted = tokenizer(qwenvit.prompt(entries, text))["input_ids"]
    assert out["prompt_token_ids"] == wanted, "the prompt's ids"
    counts = {k: [p.get_num_embeds() for p in places] for k, places in out["mm_placeholders"].items()}
    rows = {k: [len(e) for e in entries if ("image" if e.is_image else "video") == k] for k in counts}
    assert counts == rows, (counts, rows)
    print(f"processor: {len(wanted)} ids as from qwenvit.prompt, placeholders {counts}")
    return out


def check_parser(entries):
    """Tests the fields that clips need, and the input of an instance that gets its tokens by a connector."""
    from vllm.model_executor.models.qwen3_vl import Qwen3VLMultiModalDataParser

    data = engines.to_vllm(entries)
    del data["video"]["timestamps"]
    try:
        Qwen3VLMultiModalDataParser(2).parse_mm_data(data)
    except ValueError as e:
        assert "timestamps" in str(e), e
    else:
        raise AssertionError("a clip without timestamps was accepted")
    bare = engines.to_vllm(entries, embeddings=False)
    items = Qwen3VLMultiModalDataParser(2, allow_missing_mm_embeddings=True).parse_mm_data(bare)
    counts = {kind: len(items[kind]) for kind in items}
    print(f"parser: a clip without timestamps is refused; without tokens, by a connector: {counts}")


def check_model(out, entries):
    """Tests the model's methods, on an object with only the attributes that they read."""
    from vllm.model_executor.models.qwen3_vl import Qwen3VLForConditionalGeneration as Model

    width, n_deepstack = entries[0].tokens.shape[1], len(entries[0].deepstack)
    model = types.SimpleNamespace(
        visual=types.SimpleNamespace(dtype=torch.float32, spatial_merge_size=2), use_deepstack=True,
        use_data_parallel=False, visual_dim=width, multiscale_dim=width * n_deepstack, deepstack_num_level=n_deepstack,
    )
    for kind in ("image", "video"):
        items = [{k: f.data for k, f in item.items()} for item in out["mm_kwargs"][kind]]
        grids, embeds = ([i[f"{kind}_{what}"] for i in items] for what in ("grid_thw", "embeds"))
        kwargs = {f"{kind}_embeds": torch.cat(embeds), f"{kind}_grid_thw": torch.stack(grids)}
        parsed = getattr(Model, f"_parse_and_validate_{kind}_input")(model, **kwargs)
        parts = getattr(Model, f"_process_{kind}_input")(model, parsed)
        own = [e for e in entries if e.is_image == (kind == "image")]
        n = sum(map(len, parts))
        deepstack, tokens = Model._compute_deepstack_embeds(
            model, inputs_embeds=torch.zeros(n, width), multimodal_embeddings=parts,
            is_multimodal=torch.ones(n, dtype=torch.bool))
        for entry, rows in zip(own, tokens, strict=True):
            assert torch.equal(rows, entry.torch()[0]), entry.key
        for level, rows in enumerate(deepstack):
            assert torch.equal(rows, torch.cat([e.torch()[1][level] for e in own])), level
    print(f"model: tokens and {n_deepstack} DeepStack outputs are where they belong")


def main():
    args = engine_models.arguments(__doc__)
    with engine_models.setting(args) as (_, model, config, processor, entries):
        out = check_processor(model, processor.tokenizer, entries)
        if config.model_type == "qwen2_5_vl":
            found = [float(item["second_per_grid_ts"].data) for item in out["mm_kwargs"]["video"]]
            assert found == [e.second_per_grid_ts for e in entries if not e.is_image], found
            print(f"second_per_grid_ts arrives: {found}")
            return
        check_parser(entries)
        check_model(out, entries)
    print(f"vllm {vllm.__version__}, torch {torch.__version__}")


if __name__ == "__main__":
    sys.exit(main())
