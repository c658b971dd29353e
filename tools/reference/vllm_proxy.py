#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Puts the proxy of vLLM's separate-encoder example, unmodified, in front of `qwenvit serve` and of a decode side made from
vLLM's own chat parser, processor and connector: the rows that the decode side loads must be those of encode(). Needs no GPU.

    vllm_proxy.py PROXY CLIP [--golden tests/golden/qwen3_vl] [--write python/tests/vllm_requests.json]

PROXY: disagg_epd_proxy.py, which vllm_env.sh puts next to the environment. --write makes the requests and keys in
python/tests. Exit 1: something differs.
"""
import argparse
import base64
import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
import urllib.request
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
from PIL import Image

import vllm

import engines_vllm  # first: it sets the platform to CPU
from vllm.distributed.ec_transfer.ec_connector import example_connector as ec
from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorRole
from vllm.multimodal.hasher import MultiModalHasher
from vllm.multimodal.media.image import ImageMediaIO
from vllm.renderers.chat_utils import parse_chat_messages

import engine_models
import qwenvit
from engine_models import data_url, encoded, pixels

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(HERE, "..", "..", "python", "tests"))
from serving import Server  # noqa: E402

MODEL_ID = "Qwen/Qwen3-VL-4B-Instruct"  # in the keys of --write
PATH = "/v1/chat/completions"


# ---- media ---------------------------------------------------------------------------------------

def images_of_all_modes():
    """Yields (name, bytes) of images whose mode vLLM keeps or converts."""
    rgba = Image.merge("RGBA", (*pixels((8, 8)).split(), Image.new("L", (8, 8), 77)))
    for kind, modes in {"PNG": ("RGB", "RGBA", "L", "P", "LA", "1"), "JPEG": ("RGB", "L", "CMYK"), "GIF": ("P", "L"),
                        "WEBP": ("RGB", "RGBA")}.items():
        for mode in modes:
            yield f"{kind} {mode}", encoded([rgba.convert(mode)], kind)
    rgb = rgba.convert("RGB")
    turned = Image.Exif()
    turned[0x112] = 6
    yield "PNG tRNS", encoded([rgb], "PNG", transparency=(1, 2, 3))
    yield "JPEG progressive", encoded([rgb], "JPEG", progressive=True)
    yield "JPEG turned", encoded([rgb], "JPEG", exif=turned)
    yield "WEBP lossless", encoded([rgb], "WEBP", lossless=True)
    yield "WEBP lossless RGBA", encoded([rgba], "WEBP", lossless=True)


def key_of(data, model_id):
    return MultiModalHasher.hash_kwargs("blake3", model_id=model_id, image=ImageMediaIO().load_bytes(data))


def part(data, kind):
    name = f"{kind.partition('/')[0]}_url"
    return {"type": name, name: {"url": data_url(data, kind)}}


# ---- the decode side, and the proxy in front of the encoder --------------------------------------

class Decoder:
    """Handles a request as vLLM's decode side does, up to the rows that its connector loads."""

    def __init__(self, model, tokenizer, storage):
        config = engines_vllm.config_of(model)
        config.multimodal_config.allow_missing_mm_embeddings = True  # as vLLM sets it for a consumer
        self.config, self.tokenizer, self.storage = config, tokenizer, storage

    def rows(self, messages):
        """Returns (prompt ids, the rows of each item in the order of the prompt)."""
        chat, data, uuids = parse_chat_messages(messages, self.config, "string")
        out = engines_vllm.apply(self.config, self.tokenizer(chat[0]["content"])["input_ids"], data, uuids)
        transfer = types.SimpleNamespace(is_ec_producer=False, is_ec_consumer=True,
                                         get_from_extra_config=lambda name, default: self.storage)
        connector = ec.ECExampleConnector(types.SimpleNamespace(ec_transfer_config=transfer, model_config=self.config),
                                          ECConnectorRole.WORKER)
        wanted, metadata, loaded = [], ec.ECExampleConnectorMetadata(), {}
        for kind, places in out["mm_placeholders"].items():
            for place, key in zip(places, out["mm_hashes"][kind], strict=True):
                assert connector.has_cache_item(key), f"no file of {key}"
                metadata.add_mm_data(ec.MMMeta.make_meta(key, place.get_num_embeds()))
                wanted.append((place.offset, place.get_num_embeds(), key))
        connector.bind_connector_metadata(metadata)
        connector.start_load_caches(loaded)
        assert all(len(loaded[key]) == n for _, n, key in wanted), "numbers of rows"
        return out["prompt_token_ids"], [loaded[key] for _, _, key in sorted(wanted)]


class Relay:
    """A server that calls a function with each request's body."""

    def __init__(self, answer):
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                status, body = answer(self.rfile.read(int(self.headers["content-length"])))
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


def start_proxy(program, encoder, decoder, *more):
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    process = subprocess.Popen([sys.executable, program, "--host", "127.0.0.1", "--port", str(port), "--encode-servers-urls", encoder.url,
                                "--decode-servers-urls", decoder.url, *more], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    for _ in range(300):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return process, f"http://127.0.0.1:{port}{PATH}"
        except OSError:
            time.sleep(0.1)
    process.kill()
    raise SystemExit(f"{program} does not start")


def llm_d(body):
    """Yields the requests that llm-d's router makes from a client's request: one item each, the rest unchanged."""
    for one in body["messages"][0]["content"]:
        if one["type"] != "text":
            yield {**body, "messages": [{"role": "user", "content": [one]}], "max_tokens": 1, "stream": False}


# ---- end to end ----------------------------------------------------------------------------------

def check(args, folder):
    _, processor = engine_models.make_folder(args.golden, os.path.join(folder, "model"))
    server = Server(args.golden, os.path.join(folder, "log"), "--ec-path", os.path.join(folder, "ec"), "--vllm-model-id",
                    os.path.join(folder, "model"))
    side = Decoder(os.path.join(folder, "model"), processor.tokenizer, os.path.join(folder, "ec"))
    asked, decoded = [], []

    def encode(body):
        asked.append(json.loads(body))
        status, _, answer = server.ask(body, path=PATH, content_type="application/json")
        return status, answer

    def decode(body):
        result = Future()
        decoded.append((json.loads(body), result))
        result.set_result(side.rows(decoded[-1][0]["messages"]))
        return 200, b"{}"

    encoder, decoder = Relay(encode), Relay(decode)
    small = [encoded([pixels((64, 48))], "PNG"), encoded([pixels((96, 64), seed=2)], "PNG")]
    gif = encoded([pixels((64, 48), seed=i, colours=2).quantize(8) for i in range(8)], "GIF", duration=250)
    with open(args.clip, "rb") as f:
        clip = f.read()
    model = qwenvit.load(args.golden)
    tokens = qwenvit.AsyncEncoder(model, dtype=model.info["dtype"])

    def is_of(rows, data):
        first, more = tokens.submit({"bytes": data}).result().torch()
        own = torch.cat([first, *more], 1)
        return rows.dtype == own.dtype and torch.equal(rows, own)

    def body_of(*parts):
        return {"model": MODEL_ID, "messages": [{"role": "user", "content": [{"type": "text", "text": "say "}, *parts]}],
                "temperature": 0.5, "tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "object"}}}]}

    chats = {
        "two images": [(small[0], "image/png"), (small[1], "image/png")], "the same image twice": [(small[0], "image/png")] * 2,
        "a clip": [(gif, "video/gif")], "a clip and an image": [(clip, "video/mp4"), (small[1], "image/png")],
    }
    requests = []
    try:
        for more in ([], ["--no-rewrite"]):
            process, url = start_proxy(args.proxy, encoder, decoder, *more)
            for name, media in chats.items():
                if more and any(kind.startswith("video") for _, kind in media):
                    continue  # clips need a uuid
                asked.clear()
                body = json.dumps(body_of(*(part(*one) for one in media))).encode()
                urllib.request.urlopen(urllib.request.Request(url, body, {"content-type": "application/json"}), timeout=60).read()
                ids, loaded = decoded[-1][1].result(0)
                sent = {one["type"] for one in decoded[-1][0]["messages"][0]["content"]} - {"text"}
                assert sent <= ({"image_url"} if more else {"image_embeds", "video_embeds"}), sent
                for got, (data, _) in zip(loaded, media, strict=True):
                    assert is_of(got, data), name
                print(f"{'proxy --no-rewrite' if more else 'proxy'}: {name}: {len(ids)} ids, rows of {[len(r) for r in loaded]}")
                requests += [(f"proxy {' '.join([*more, name])} {i}", one) for i, one in enumerate(asked)]
            process.kill()
        body = body_of(part(small[0], "image/png"), part(small[1], "image/png"))
        for i, one in enumerate(llm_d(body)):
            status, answer = encode(json.dumps(one).encode())
            assert status == 200, answer
            requests.append((f"llm-d {i}", one))
        for got, data in zip(side.rows(body["messages"])[1], small, strict=True):
            assert is_of(got, data), "llm-d"
        print("llm-d: the decode side's own keys of two images find their rows")
    finally:
        server.kill()
        tokens.close()
    return requests


def keys_of(body):
    """Returns the key of each item of a request, as --write has them."""
    for one in body["messages"][0]["content"]:
        url = one[one["type"]]["url"]
        sent = hashlib.sha256(url.encode()).hexdigest()
        assert one.get("uuid", sent) == sent
        yield sent if "uuid" in one else key_of(base64.b64decode(url.partition(",")[2]), MODEL_ID)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("proxy")
    parser.add_argument("clip")
    parser.add_argument("--golden", default=os.path.join(HERE, "..", "..", "tests", "golden", "qwen3_vl"))
    parser.add_argument("--write")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        requests = check(args, folder)
    if args.write:
        small = [{"name": name, "keys": list(keys_of(body)), "body": body} for name, body in requests if len(json.dumps(body)) < 10000]
        keys = {name: [base64.b64encode(data).decode(), key_of(data, MODEL_ID)] for name, data in images_of_all_modes()}
        with open(args.write, "w", encoding="utf-8") as f:
            json.dump({"vllm": vllm.__version__, "model_id": MODEL_ID, "requests": small, "keys": keys}, f, indent=1)
            f.write("\n")
    print(f"vllm {vllm.__version__}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
