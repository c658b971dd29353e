# SPDX-License-Identifier: MIT
"""The server of `qwenvit serve` with transformers' vision tower in it, for a comparison.

    python python/bench/serve.py rate --model DIR --peer 8      8: so many items at most are one batch

HTTP, limits, queue, decoding and resizing are qwenvit's; the tower and the files are transformers'
and safetensors'. It needs torch, transformers and safetensors. Options are those of the server;
QV_PEER_BATCH is the batch.
"""
import os
import queue
import sys
import threading
from concurrent.futures import Future

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "reference"))
import common  # noqa: E402  before torch
import safetensors.torch  # noqa: E402
import torch  # noqa: E402

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

    def __init__(self, models, **options):
        self.models, self.model, self.info = models, models[0], models[0].info
        self.device = "cuda" if self.info["backend"] == "cuda" else "cpu"
        self.dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[self.info["dtype"]]
        self.tower = common.load_tower(sys.argv[1 + sys.argv.index("--model")], self.info["dtype"], device=self.device)
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
                self.ready.put((result, *self.model.preprocess(source, **options)))
            except Exception as e:
                result.set_exception(e)

    @torch.inference_mode()
    def run(self):
        while True:
            items = [self.ready.get()]
            while len(items) < self.batch and not self.ready.empty():
                items.append(self.ready.get())
            results, pixels, grids = zip(*items)
            rows = torch.cat([torch.from_numpy(p) for p in pixels]).to(self.device, self.dtype)
            grid = torch.cat([torch.from_numpy(g) for g in grids]).to(self.device)
            out = self.tower(rows, grid_thw=grid)
            matrices = [out.pooler_output, *(getattr(out, "deepstack_features", None) or [])]
            sizes = [int(g.prod()) // self.info["merge_size"] ** 2 for g in grids]
            names = ["tokens", *(f"deepstack.{i}" for i in range(len(matrices) - 1))]
            parts = zip(*(m.cpu().split(sizes) for m in matrices))
            for result, grid, part in zip(results, grids, parts):
                tensors = {name: matrix.contiguous() for name, matrix in zip(names, part)}
                result.set_result(Tokens({**tensors, "grid_thw": torch.from_numpy(grid)}))

    def close(self):
        pass


if __name__ == "__main__":
    command.AsyncEncoder = Peer
    sys.exit(command.main(sys.argv[1:]))
