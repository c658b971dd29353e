#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs SGLang's own decode side, unmodified and without a GPU, with `qwenvit serve --sglang-peers` as its encoder: its receiver
asks for tokens and reads them from its socket, and its Qwen-VL processor places them in the prompt. The processor also gets
the output of `engines.to_sglang` for the same tokens.

    sglang_receiver.py CLIP [--write FILE]

Runs in the environment that sglang_env.sh makes. --write: records small requests and what was sent, as
python/tests/sglang_requests.json. Exit 1: prompt ids, rows, or a field of EmbeddingData differ.
"""
import argparse
import asyncio
import base64
import json
import os
import sys
import tempfile
import time
import types

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "python", "tests"))
os.environ["SGLANG_HOST_IP"] = HOST = "127.0.0.1"

import aiohttp  # noqa: E402
import numpy as np  # noqa: E402
import sglang  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from sglang.srt.disaggregation.encoder import receiver  # noqa: E402
from sglang.srt.managers.io_struct import GenerateReqInput  # noqa: E402
from sglang.srt.managers.multimodal_processor import get_mm_processor, import_processors  # noqa: E402
from sglang.srt.managers.schedule_batch import Modality  # noqa: E402
from sglang.srt.multimodal.transport import determine_tensor_transport_mode  # noqa: E402
from sglang.srt.runtime_context import publish  # noqa: E402
from sglang.srt.server_args import ServerArgs  # noqa: E402

import engine_models  # noqa: E402
import qwenvit  # noqa: E402
from engine_models import data_url, encoded, pixels  # noqa: E402
from qwenvit.adapters import engines  # noqa: E402
from qwenvit.adapters.items import items_of  # noqa: E402
from serving import Server  # noqa: E402


class Side:
    """SGLang's receiver and processor, set up as in its tokenizer process."""

    def __init__(self, folder, config, processor, url):
        args = ServerArgs(model_path=folder, language_only=True, encoder_urls=[url], encoder_transfer_backend="zmq_to_tokenizer",
                          device="cpu", host=HOST)
        publish(args, role="tokenizer")
        import_processors("sglang.srt.multimodal.processors")
        self.processor = get_mm_processor(config, args, processor, determine_tensor_transport_mode(), skip_mm_pool=True)
        self.receiver = receiver.MMReceiverHTTP(args, hf_config=config)
        self.asked, self.sent = [], []
        post, loads = aiohttp.ClientSession.post, receiver.safe_pickle_loads

        def posted(session, url, *, json):
            self.asked.append(json)
            return post(session, url, json=json)

        def loaded(frame):
            found = loads(frame)
            self.sent.append((bytes(frame), dict(vars(found))))
            return found

        aiohttp.ClientSession.post, receiver.safe_pickle_loads = posted, loaded

    def __call__(self, text, images, clips):
        """Returns the receiver's result for a request; records its request and the message that it received."""
        self.asked.clear()
        self.sent.clear()
        request = GenerateReqInput(text=text, image_data=images, video_data=clips)
        return asyncio.run(self.receiver.recv_mm_data(request, self.processor, text))

    def given(self, ids, tokens):
        """Returns the processor's result for a request that contains the tokens."""
        data = engines.to_sglang(tokens)
        request = types.SimpleNamespace(video_data=data.get("video_data"), audio_data=None)
        return asyncio.run(self.processor._process_mm_data_uncached(data.get("image_data"), ids, request))


def own_form(asked, tokens):
    """Returns the fields that SGLang's own encoder would send for these tokens."""
    grid = torch.from_numpy(np.concatenate([t.grid_thw for t in tokens]))
    clips = [] if asked["modality"] == "IMAGE" else tokens
    family = tokens[0].model_type
    timestamps = [items_of(t)[0].seconds for t in clips] if family == "qwen3_vl" and clips else None
    seconds = torch.tensor([t.second_per_grid_ts for t in clips]) if family == "qwen2_5_vl" and clips else None
    data = receiver.EmbeddingData(asked["req_id"], asked["num_parts"], asked["part_idx"], grid, Modality.from_str(asked["modality"]),
                                  rows_of(tokens), video_timestamps=timestamps, second_per_grid_ts=seconds)
    return vars(data.copy_without_embedding())


def rows_of(tokens):
    return torch.cat([torch.cat([m for m in (t.torch()[0], *t.torch()[1])], 1) for t in tokens])


def check_placed(config, ids, tokens, out):
    """Checks that items are at their placeholders in the prompt and have the rows of tokens."""
    assert out.input_ids == ids and out.mrope_positions.shape == (3, len(ids))
    for kind, found in tokens.items():
        items = [item for item in out.mm_items if item.modality == Modality.from_str(kind)]
        token = config.image_token_id if kind == "IMAGE" else config.video_token_id
        for item in items:
            places = [i for first, last in item.offsets for i in range(first, last + 1)]
            assert all(ids[i] == token for i in places) and len(places) == len(item.feature), kind
        assert same(torch.cat([item.feature for item in items]), rows_of(found)), kind


def same(one, other):
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return type(one) is type(other) and one == other


def check(golden, clip, folder):
    config, processor = engine_models.make_folder(golden, os.path.join(folder, "model"))
    server = Server(golden, os.path.join(folder, "log"), "--sglang-peers", HOST)
    url = f"http://{HOST}:{server.port}"
    side, healthy = Side(os.path.join(folder, "model"), config, processor, url), [url]
    watch = receiver.EncoderBootstrapServer(HOST, 0, healthy, health_check_interval=0.1, health_check_timeout=5)
    model = qwenvit.load(golden)
    encoder = qwenvit.AsyncEncoder(model, dtype=model.info["dtype"])
    png = [encoded([pixels((64, 48), seed=i)], "PNG") for i in (1, 2, 3)]
    gif = encoded([pixels((64, 48), seed=i, colours=2).quantize(8) for i in range(4)], "GIF", duration=250)
    requests = []
    try:
        for name, images, clips in (("two images", png[:2], []), ("a clip", [], [gif]), ("images and clips", png, [gif, clip])):
            tokens = {kind: [encoder.submit({"bytes": one}).result() for one in found] for kind, found in
                      (("IMAGE", images), ("VIDEO", clips)) if found}
            every = [one for found in tokens.values() for one in found]
            text = engine_models.chat(every)
            out = side(text, *([data_url(one, kind) for one in found] for kind, found in (("image/png", images), ("video/mp4", clips))))
            assert out is not None, f"{name}: SGLang's receiver has refused what it was sent"
            ids = processor.tokenizer(qwenvit.prompt(every, text))["input_ids"]
            assert list(out.input_ids) == ids, f"{name}: ids"
            for kind, found in tokens.items():
                got = torch.cat([item.precomputed_embeddings for item in out.mm_items if item.modality == Modality.from_str(kind)])
                assert same(got, rows_of(found)), f"{name}: rows of {kind}"
            for asked in side.asked:
                [(frame, fields)] = [one for one in side.sent if one[1]["req_id"] == asked["req_id"]]
                wanted = own_form(asked, tokens[asked["modality"]])
                assert list(fields) == list(wanted) and all(same(fields[k], wanted[k]) for k in wanted), (name, fields, wanted)
                requests.append((asked, frame))
            check_placed(config, ids, tokens, side.given(ids, every))
            print(f"{config.model_type}: {name}: {len(ids)} ids, {len(out.mm_items)} items, the fields of SGLang's own EmbeddingData; "
                  "to_sglang: each item at its placeholders")
        for wrong, why in ((data_url(b"nonsense" * 50, "image/png"), "not a clip or image"), (f"http://{HOST}:9/a.png", "no other URL is fetched")):
            assert side("say <|vision_start|><|image_pad|><|vision_end|>", [wrong], []) is None and not side.sent, why
        assert healthy == [url], "/health"
        server.end()
        until = time.monotonic() + 20
        while healthy and time.monotonic() < until:
            time.sleep(0.1)
        assert not healthy, "the encoder has ended but is still reported healthy"
    finally:
        watch.close()
        server.kill()
        encoder.close()
    return requests


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clip")
    parser.add_argument("--write")
    args = parser.parse_args()
    with open(args.clip, "rb") as f:
        clip = f.read()
    found = {}
    for family in ("qwen3_vl", "qwen2_5_vl"):
        with tempfile.TemporaryDirectory() as folder:
            requests = check(os.path.join(HERE, "..", "..", "tests", "golden", family), clip, folder)
            found[family] = [{"body": body, "frame": base64.b64encode(frame).decode()} for body, frame in requests
                             if len(json.dumps(body)) < 4000]
    if args.write:
        with open(args.write, "w", encoding="utf-8") as f:
            json.dump({"sglang": sglang.__version__, "requests": found}, f, indent=1)
            f.write("\n")
    print(f"sglang {sglang.__version__}, torch {torch.__version__}, transformers {transformers.__version__}")


if __name__ == "__main__":
    main()
