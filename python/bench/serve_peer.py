# SPDX-License-Identifier: MIT
"""The server of `qwenvit serve` with transformers' vision tower in it, for a comparison.

    python python/bench/serve.py peer --model DIR

HTTP, limits and the queue are qwenvit's; images are decoded by Pillow, resized and cut into rows by
transformers' processor, and clips by qwenvit. It needs torch, torchvision, transformers and safetensors.
Options are those of the server; QV_PEER_BATCH says how many items at most are one batch.
"""
import io
import os
import queue
import sys
import threading
from concurrent.futures import Future

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "reference"))
import common  # noqa: E402  before torch
import safetensors.torch  # noqa: E402
import torch  # noqa: E402
from PIL import Image  # noqa: E402
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor  # noqa: E402

import qwenvit  # noqa: E402
from qwenvit import _core  # noqa: E402
from qwenvit.serve import command  # noqa: E402


class Tokens:
    """What the server needs of an item's tokens."""

    is_image, timestamps = True, None

    def __init__(self, tensors):
        self.tensors = tensors

    def __len__(self):
        return len(self.tensors["tokens"])

    def save(self, path):
        safetensors.torch.save_file(self.tensors, path)


class Peer:
    """An AsyncEncoder that takes what waits, up to a batch, and runs it through the tower at once."""

    def __init__(self, folder, **options):
        self.model = qwenvit.load(folder)
        self.info = self.model.info
        self.device = "cuda" if self.info["backend"] == "cuda" else "cpu"
        self.dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[self.info["dtype"]]
        self.tower = common.load_tower(folder, self.info["dtype"], device=self.device)
        about = common.read_json(folder, "preprocessor_config.json")
        self.processor = Qwen2VLImageProcessor(**{k: v for k, v in about.items() if k != "image_processor_type"})
        self.batch, self.waiting, self.ready = int(os.environ["QV_PEER_BATCH"]), queue.Queue(), queue.Queue(64)
        for work in (self.preprocess, self.preprocess, self.run):
            threading.Thread(target=work, daemon=True).start()

    def submit(self, source, **options):
        result = Future()
        self.waiting.put((result, source["bytes"], {"decode": "cpu", **options}))
        return result

    def preprocess(self):
        while True:
            result, source, options = self.waiting.get()
            try:
                kind = _core.image_kind(source[: _core.HEAD])
                if kind and not kind[1]:
                    made = self.processor(images=[Image.open(io.BytesIO(source)).convert("RGB")], return_tensors="pt")
                    pixels, grid = made["pixel_values"], made["image_grid_thw"]
                else:
                    pixels, grid = map(torch.from_numpy, self.model.preprocess(source, **options)[:2])
                self.ready.put((result, pixels, grid))
            except Exception as e:
                result.set_exception(e)

    @torch.inference_mode()
    def run(self):
        while True:
            items = [self.ready.get()]
            while len(items) < self.batch and not self.ready.empty():
                items.append(self.ready.get())
            results, pixels, grids = zip(*items)
            rows, grid = torch.cat(pixels).to(self.device, self.dtype), torch.cat(grids).to(self.device)
            out = self.tower(rows, grid_thw=grid)
            matrices = [out.pooler_output, *(getattr(out, "deepstack_features", None) or [])]
            sizes = [int(g.prod()) // self.info["merge_size"] ** 2 for g in grids]
            names = ["tokens", *(f"deepstack.{i}" for i in range(len(matrices) - 1))]
            parts = zip(*(m.cpu().split(sizes) for m in matrices))
            for result, grid, part in zip(results, grids, parts):
                tensors = {name: matrix.contiguous() for name, matrix in zip(names, part)}
                result.set_result(Tokens({**tensors, "grid_thw": grid}))

    def close(self):
        pass


if __name__ == "__main__":
    command.AsyncEncoder = Peer
    sys.exit(command.main(sys.argv[1:]))
