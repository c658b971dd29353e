# SPDX-License-Identifier: MIT
"""qwenvit as the vision encoder of a Dynamo worker over vLLM (Qwen3-VL, Qwen3.5):

    python -m dynamo.vllm --model Qwen3-VL-4B-Instruct --custom-encoder-class dynamo_backend.QwenvitBackend ...

Images come as data: URLs, as bytes, or as keys of the cache that QWENVIT_CACHE names (optional). A
client cannot name paths on the server.
"""
import io
import os

import torch
from dynamo.vllm.multimodal_utils.custom_encoder import Preprocessed, Qwen3VLImageEncoding, VisionEncoderBackend
from PIL import Image

import qwenvit
from qwenvit import media


def image_of(raw):
    """Decodes a client's image. The client gets the error if its own image fails."""
    if media.is_data(raw):
        raw = media.bytes_of_data(raw, "an image")
    if not isinstance(raw, bytes):
        raise ValueError("an image is bytes, a data: URL or a key of the cache")
    try:
        return Image.open(io.BytesIO(raw)).convert("RGB")
    except (OSError, Image.DecompressionBombError):
        raise ValueError("an image that cannot be decoded") from None


class QwenvitBackend(VisionEncoderBackend):
    max_batch_cost = 16  # images per call; qwenvit packs them into chunks
    preprocess_concurrency = 4

    def build(self, model_id):
        """Loads the checkpoint in the folder `model_id`."""
        self.model = qwenvit.load(model_id, dtype="bf16")
        folder = os.environ.get("QWENVIT_CACHE")
        self.cache = qwenvit.Cache(folder) if folder else {}

    def preprocess(self, raw):
        found = self.cache.get(raw) if isinstance(raw, str) else None
        return Preprocessed(item=image_of(raw) if found is None else found)

    def forward_batch(self, items, target_bucket=None):
        """Returns one Qwen3VLImageEncoding per item, which is an image or an Entry of the cache."""
        done = dict(enumerate(items))
        new = {i: item for i, item in done.items() if isinstance(item, Image.Image)}
        done.update(zip(new, self.model.encode(list(new.values()), dtype="bf16") if new else ()))
        return [encoding_of(done[i]) for i in range(len(items))]

    def close(self):
        self.model.close()


def encoding_of(result):
    """Returns the matrix that vLLM expects, and its grid."""
    fields = result.to_vllm(is_image=True)["image"]
    (grid,) = fields["image_grid_thw"].tolist()
    return Qwen3VLImageEncoding(embeddings=fields["image_embeds"].to(torch.bfloat16), grid_thw=tuple(grid))
