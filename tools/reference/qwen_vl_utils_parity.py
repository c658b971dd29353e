# SPDX-License-Identifier: MIT
"""Compares --like qwen-vl-utils with the package: frames, sizes, timestamps and pixels, byte by byte.

    qwen_vl_utils_parity.py MEDIA_DUMP CLIP_OR_IMAGE...

MEDIA_DUMP is tests/media_dump of a build. Every file is tried with a table of options, with patches
of 14 and 16. PyAV decodes clips for the package, because the package's own readers convert the same
frames to different RGB, and torchcodec measures their rates. The frame numbers, rates and sizes of the
package's own reader, torchcodec, are compared too. Its other readers, decord and torchvision, go by the
rate in the clip's header instead.
"""
import itertools
import json
import subprocess
import sys
import tempfile
from collections import Counter

import av
import numpy as np
import torch
from torchcodec.decoders import VideoDecoder
from qwen_vl_utils import vision_process as package

PATCHES = (14, 16)
CLIP_OPTIONS = (
    {}, {"fps": 0.5}, {"fps": 4.0}, {"fps": 60.0}, {"nframes": 2}, {"nframes": 7}, {"nframes": 10},
    {"min_frames": 9}, {"max_frames": 5}, {"min_frames": 3, "max_frames": 7, "fps": 1.0},
    {"min_pixels": 40000}, {"max_pixels": 60000}, {"min_pixels": 20000, "max_pixels": 30000},
    {"total_pixels": 400000}, {"total_pixels": 2000000, "nframes": 8}, {"min_pixels": 900000},
    {"video_start": 0.5}, {"video_end": 1.7}, {"video_start": 1.03, "video_end": 2.9, "fps": 8.0},
    {"video_start": 5.0, "video_end": 700.0}, {"video_start": 0.2, "video_end": 0.9, "nframes": 6},
)
IMAGE_OPTIONS = ({}, {"min_pixels": 300000}, {"max_pixels": 50000},
                   {"min_pixels": 40000, "max_pixels": 70000})


def read_with_pyav(ele):
    """Reads like the package's readers, from PyAV's frames."""
    with av.open(ele["video"]) as container:
        stream = container.streams.best("video")
        decoded = list(container.decode(stream))
    fps = VideoDecoder(ele["video"], num_ffmpeg_threads=1).metadata.average_fps
    start, end, total = package.calculate_video_frame_range(ele, len(decoded), fps)
    nframes = package.smart_nframes(ele, total_frames=total, video_fps=fps)
    indices = torch.linspace(start, end, nframes).round().long().tolist()
    frames = np.stack([decoded[i].to_ndarray(format="rgb24") for i in indices])
    frames = np.rot90(frames, k=round(decoded[0].rotation / 90) % 4, axes=(1, 2))
    video = torch.from_numpy(np.ascontiguousarray(frames.transpose(0, 3, 1, 2)))
    metadata = dict(fps=fps, frames_indices=indices, total_num_frames=total, video_backend="pyav")
    return video, metadata, nframes / max(total, 1e-6) * fps


def fetch_clip(path, options, patch, reader):
    package.VIDEO_READER_BACKENDS["torchvision"] = package.VIDEO_READER_BACKENDS[reader]
    package.get_video_reader_backend = lambda: reader
    (video, metadata), sample_fps = package.fetch_video(
        {"video": path, **options}, image_patch_size=patch, return_video_sample_fps=True,
        return_video_metadata=True)
    return {
        "pixels": video.permute(0, 2, 3, 1).numpy(),
        "timestamps": [i / metadata["fps"] for i in metadata["frames_indices"]],
        "sampled_fps": sample_fps,
    }


def fetch_image(path, options, patch):
    image = package.fetch_image({"image": path, **options}, image_patch_size=patch)
    return {"pixels": np.array(image)[None], "timestamps": [0.0], "sampled_fps": 0.0}


def dump(tool, path, options, patch):
    names = {"nframes": "num_frames", "video_start": "start", "video_end": "end"}
    words = [f"{names.get(k, k)}={v}" for k, v in options.items()] + ["like=1"]
    words += ["qwen2=1"] if patch == 14 else []
    with tempfile.NamedTemporaryFile() as raw:
        done = subprocess.run([tool, path, raw.name, *words], capture_output=True, text=True)
        info = json.loads(done.stdout)
        if "error" not in info:
            shape = (info["read"], info["height"], info["width"], 3)
            info["pixels"] = np.fromfile(raw.name, np.uint8).reshape(shape)
        return info


def difference(ours, theirs, with_pixels):
    """Returns the differences as a text; None if there are none."""
    if "error" in ours or "error" in theirs:
        if ("error" in ours) == ("error" in theirs):
            return None
        return f"ours: {ours.get('error', 'fine')}; theirs: {theirs.get('error', 'fine')}"
    if ours["pixels"].shape != theirs["pixels"].shape:
        return f"shape {ours['pixels'].shape}, theirs {theirs['pixels'].shape}"
    for key in ("timestamps", "sampled_fps"):
        if ours[key] != theirs[key]:
            return f"{key} {ours[key]}, theirs {theirs[key]}"
    if not with_pixels:
        return None
    apart = np.abs(ours["pixels"].astype(np.float32) - theirs["pixels"])
    if apart.any():
        return f"{np.count_nonzero(apart)} of {apart.size} bytes, most {apart.max():g}"
    return None


def attempt(fetch, *arguments):
    try:
        return fetch(*arguments)
    except Exception as error:  # the package may fail with anything
        return {"error": f"{type(error).__name__}: {error}"}


def check(tool, path, is_image, readers, counts):
    for options, patch in itertools.product(IMAGE_OPTIONS if is_image else CLIP_OPTIONS, PATCHES):
        ours = dump(tool, path, options, patch)
        for reader in ["PIL"] if is_image else readers:
            fetch = (fetch_image, path, options, patch)
            if not is_image:
                fetch = (fetch_clip, path, options, patch, reader)
            theirs = attempt(*fetch)
            wrong = difference(ours, theirs, reader != "torchcodec")
            counts[reader, "differs" if wrong else "refused" if "error" in theirs else "same"] += 1
            if wrong:
                print(f"DIFFERS: {path} {options} patch {patch}, {reader}: {wrong}")


def main():
    tool, paths = sys.argv[1], sys.argv[2:]
    package.VIDEO_READER_BACKENDS["pyav"] = read_with_pyav
    readers = ["pyav", "torchcodec"]
    counts = Counter()
    for path in paths:
        check(tool, path, path.endswith((".png", ".jpg", ".jpeg", ".webp")), readers, counts)
    for (reader, what), n in sorted(counts.items()):
        print(f"{reader}: {n} {what}")
    return any(what == "differs" for _, what in counts)


if __name__ == "__main__":
    sys.exit(main())
