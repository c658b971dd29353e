# SPDX-License-Identifier: MIT
"""Compares media_dump with transformers, PyAV, torchvision and PIL, byte by byte.

    media_parity.py path/to/media_dump CLIP_OR_PICTURE... [key=value ...]

Run by hand where those are installed; options are passed on to media_dump.
"""

import json
import subprocess
import sys
import tempfile

import av
import numpy as np
import torch
from transformers.image_utils import SizeDict, load_image
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
from transformers.video_utils import VideoMetadata

VIDEO_SIZE = {"shortest_edge": 4096, "longest_edge": 25165824}
PICTURE_SIZE = {"shortest_edge": 65536, "longest_edge": 16777216}


def dump(tool, path, options):
    with tempfile.NamedTemporaryFile() as raw:
        done = subprocess.run([tool, path, raw.name, *options], capture_output=True, text=True)
        return json.loads(done.stdout), np.fromfile(raw.name, np.uint8)


def turn(frame, frames):
    """PyAV gives the matrix's counter-clockwise angle and turns nothing itself."""
    return np.rot90(frames, k=round(frame.rotation / 90) % 4, axes=(1, 2))


def video_reference(path, options):
    processor = Qwen3VLVideoProcessor(size=VIDEO_SIZE)
    container = av.open(path)
    stream = container.streams.video[0]
    decoded = list(container.decode(video=0))
    total = stream.frames or len(decoded)
    meta = VideoMetadata(total_num_frames=total, fps=float(stream.average_rate))
    num_frames = options.get("num_frames")
    indices = processor.sample_frames(
        meta,
        num_frames=int(num_frames) if num_frames else None,
        fps=options.get("fps"),
    )
    frames = [decoded[min(i, len(decoded) - 1)].to_ndarray(format="rgb24") for i in indices]
    frames = turn(decoded[0], np.stack(frames))
    if len(frames) == 1:  # transformers refuses these: sized as a pair
        frames = np.concatenate([frames, frames])
    video = torch.from_numpy(np.ascontiguousarray(frames.transpose(0, 3, 1, 2)))[None]
    size = dict(VIDEO_SIZE)
    for ours, theirs in (("min_pixels", "shortest_edge"), ("max_pixels", "longest_edge")):
        size[theirs] = int(options.get(ours, size[theirs]))
    resized = processor.resize(
        video,
        size=SizeDict(**size),
        resample=processor.resample,
        factor=32,
        temporal_factor=2,
        cap_pixels_per_frame=bool(options.get("cap")),
    )
    out = resized[0].permute(0, 2, 3, 1).numpy()[: len(indices)]
    return out, [float(i) / meta.fps for i in indices]


def picture_reference(path, options):
    picture = np.array(load_image(path))
    processor = Qwen2VLImageProcessor(size=PICTURE_SIZE, patch_size=16)
    tensor = torch.from_numpy(np.ascontiguousarray(picture.transpose(2, 0, 1)))[None]
    out = processor.resize(
        tensor, size=SizeDict(**PICTURE_SIZE), resample=processor.resample, factor=32
    )
    return out.permute(0, 2, 3, 1).numpy(), [0.0]


def compare(tool, path, words):
    options = {k: float(v) for k, v in (w.split("=") for w in words)}
    info, raw = dump(tool, path, words)
    if "error" in info:
        return f"{path}: {info['error']}"
    reference = picture_reference if info["picture"] else video_reference
    expected, times = reference(path, options)
    shape = (info["read"], info["height"], info["width"], 3)
    if shape != expected.shape:
        return f"{path}: DIFFERS: shape {shape}, expected {expected.shape}"
    if times != info["timestamps"]:
        return f"{path}: DIFFERS: timestamps {info['timestamps']}, expected {times}"
    apart = np.abs(raw.reshape(shape).astype(np.int16) - expected.astype(np.int16))
    if not apart.any():
        return f"{path}: equal, {shape}"
    return (
        f"{path}: DIFFERS: {np.count_nonzero(apart)} of {apart.size} bytes, "
        f"most {apart.max()}, mean {apart.mean():.4f}, {shape}"
    )


def main():
    words = [w for w in sys.argv[2:] if "=" in w]
    paths = [w for w in sys.argv[2:] if "=" not in w]
    lines = [compare(sys.argv[1], path, words) for path in paths]
    print("\n".join(lines))
    return any("DIFFERS" in line for line in lines)


if __name__ == "__main__":
    sys.exit(main())
