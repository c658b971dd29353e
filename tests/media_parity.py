# SPDX-License-Identifier: MIT
"""Compares media_dump with transformers, torchcodec, PyAV, torchvision and PIL, byte by byte.

media_parity.py path/to/media_dump CLIP_OR_PICTURE... [key=value ...]
media_parity.py --images path/to/image_dump path/to/image_write

The first form is run by hand where those packages are installed, and passes options on to
media_dump. qwen2=1 follows the processors of Qwen2-VL and Qwen2.5-VL, with patches of 14; glm=1
those of GLM-4.1V; otherwise those of Qwen3-VL. torchcodec measures the rates. The second form makes the images of make_images.py
and needs only Pillow. They are compared as transformers' load_image() and qwen-vl-utils read them,
before any resize.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import make_images
from PIL import Image, ImageChops, ImageOps

try:
    import av
    import numpy as np
    import torch
    from torchcodec.decoders import VideoDecoder
    from transformers.image_utils import SizeDict, load_image
    from transformers.models.glm4v.image_processing_glm4v import Glm4vImageProcessor
    from transformers.models.glm4v.video_processing_glm4v import Glm4vVideoProcessor
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
    from transformers.video_utils import VideoMetadata
except ImportError:
    if "--images" not in sys.argv:
        raise

VIDEO_SIZE = {"shortest_edge": 4096, "longest_edge": 25165824}
PICTURE_SIZE = {"shortest_edge": 65536, "longest_edge": 16777216}
QWEN2_SIZE = {"shortest_edge": 3136, "longest_edge": 12845056}


def dump(tool, path, options):
    with tempfile.NamedTemporaryFile() as raw:
        done = subprocess.run([tool, path, raw.name, *options], capture_output=True, text=True)
        return json.loads(done.stdout), np.fromfile(raw.name, np.uint8)


def turn(frame, frames):
    """PyAV gives the matrix's counterclockwise angle, and turns nothing itself."""
    return np.rot90(frames, k=round(frame.rotation / 90) % 4, axes=(1, 2))


def video_processor(options):
    if options.get("glm"):
        processor = Glm4vVideoProcessor()
        return processor, dict(processor.size), 28
    if options.get("qwen2"):
        return Qwen2VLVideoProcessor(size=QWEN2_SIZE), QWEN2_SIZE, 28
    return Qwen3VLVideoProcessor(size=VIDEO_SIZE), VIDEO_SIZE, 32


def asked_size(size, options):
    least = int(options.get("min_pixels", size["shortest_edge"]))
    return SizeDict(
        shortest_edge=least, longest_edge=int(options.get("max_pixels", size["longest_edge"]))
    )


def sample(processor, meta, options):
    """Samples as requested, or 2 frames per second. min_frames and max_frames are the processor's
    own."""
    counts = {k: int(options[k]) for k in ("min_frames", "max_frames") if k in options}
    for key, value in counts.items():
        setattr(processor, key, value)
    if isinstance(processor, Glm4vVideoProcessor):
        meta.duration = meta.duration or meta.total_num_frames / meta.fps  # as the processor's readers set it
        return processor.sample_frames(meta, fps=options.get("fps")).tolist()
    num_frames = int(options["num_frames"]) if "num_frames" in options else None
    if isinstance(processor, Qwen2VLVideoProcessor):
        if meta.total_num_frames < 2:  # the processor divides by 0 frames
            return [0]
        fps = None if num_frames else options.get("fps", 2.0)
        indices = processor.sample_frames(meta, num_frames=num_frames, fps=fps).tolist()
        return [i for i in indices if i < meta.total_num_frames]
    return processor.sample_frames(meta, num_frames=num_frames, fps=options.get("fps")).tolist()


def video_reference(path, options):
    processor, size, factor = video_processor(options)
    container = av.open(path)
    stream = container.streams.best("video")  # as torchcodec does
    decoded = list(container.decode(stream))
    total = len(decoded)
    measured = VideoDecoder(path, seek_mode="exact", num_ffmpeg_threads=1).metadata
    fps = measured.average_fps
    end = options.get("end", float("inf"))
    cut = [i for i in range(total) if options.get("start", 0.0) <= i / fps < end]
    duration = measured.duration_seconds if len(cut) == total else None
    meta = VideoMetadata(total_num_frames=len(cut), fps=fps, duration=duration)
    indices = [cut[i] for i in sample(processor, meta, options)]
    meta.frames_indices = indices
    frames = [decoded[min(i, len(decoded) - 1)].to_ndarray(format="rgb24") for i in indices]
    frames = turn(decoded[0], np.stack(frames))
    if len(frames) == 1:  # transformers refuses these clips; they are sized as a pair
        frames = np.concatenate([frames, frames])
    video = torch.from_numpy(np.ascontiguousarray(frames.transpose(0, 3, 1, 2)))[None]
    resized = processor.resize(
        video,
        size=asked_size(size, options),
        resample=processor.resample,
        factor=factor,
        temporal_factor=2,
        cap_pixels_per_frame=bool(options.get("cap")),
    )
    out = resized[0].permute(0, 2, 3, 1).numpy()[: len(indices)]
    return out, [float(i) / meta.fps for i in indices], meta.sampled_fps


def picture_reference(path, options):
    picture = np.array(load_image(path))
    size, patch = (QWEN2_SIZE, 14) if options.get("qwen2") else (PICTURE_SIZE, 16)
    processor = Qwen2VLImageProcessor(size=size, patch_size=patch)
    temporal = {}
    if options.get("glm"):
        processor, patch, temporal = Glm4vImageProcessor(), 14, {"temporal_factor": 2}
        size = dict(processor.size)
    tensor = torch.from_numpy(np.ascontiguousarray(picture.transpose(2, 0, 1)))[None]
    out = processor.resize(
        tensor, size=asked_size(size, options), resample=processor.resample, factor=2 * patch,
        **temporal
    )
    return out.permute(0, 2, 3, 1).numpy(), [0.0], 0.0


def compare(tool, path, words):
    options = {k: float(v) for k, v in (w.split("=") for w in words)}
    info, raw = dump(tool, path, words)
    if "error" in info:
        return f"{path}: {info['error']}"
    reference = picture_reference if info["picture"] else video_reference
    expected, times, sampled_fps = reference(path, options)
    shape = (info["read"], info["height"], info["width"], 3)
    if shape != expected.shape:
        return f"{path}: DIFFERS: shape {shape}, expected {expected.shape}"
    if times != info["timestamps"]:
        return f"{path}: DIFFERS: timestamps {info['timestamps']}, expected {times}"
    if sampled_fps != info["sampled_fps"]:
        return f"{path}: DIFFERS: sampled_fps {info['sampled_fps']}, expected {sampled_fps}"
    apart = np.abs(raw.reshape(shape).astype(np.int16) - expected.astype(np.int16))
    if not apart.any():
        return f"{path}: equal, {shape}"
    return (
        f"{path}: DIFFERS: {np.count_nonzero(apart)} of {apart.size} bytes, "
        f"most {apart.max()}, mean {apart.mean():.4f}, {shape}"
    )


# ---- images --------------------------------------------------------------------------------------

# The levels by which an image may differ, each for a reason that docs/preprocessing.md has a row
# for.
REFUSED = {"jpeg.tif", "gray-jpeg.tif"}
# by qwen-vl-utils' rules, as FFmpeg keeps an AVIF's transparency apart
NOT_ON_WHITE = {"alpha.avif"}
AWAY = {"cmyk.tif": 1, "cmyk-lzw.tif": 1, "gray-100.pgm": 1, "rgb10.ppm": 1, "irreversible.jp2": 1,
        "ffmpeg-rgb24.j2k": 1, "ffmpeg-gray.j2k": 1, "ffmpeg-rgb565le.bmp": 1}


def as_transformers(path):
    """Calls transformers.image_utils.load_image."""
    return ImageOps.exif_transpose(Image.open(path)).convert("RGB")


def as_qwen_vl_utils(path):
    """Calls to_rgb of qwen-vl-utils."""
    image = Image.open(path)
    if image.mode != "RGBA" or path.name in NOT_ON_WHITE:
        return image.convert("RGB")
    image.load()
    white = Image.new("RGB", image.size, (255, 255, 255))
    white.paste(image, mask=image.split()[3])
    return white


def compare_image(name, said, raw, expected):
    """Returns None, or a text that says what is wrong."""
    if "error" in said:
        return None if name in REFUSED and "packed as JPEG" in said["error"] else said["error"]
    if (said["width"], said["height"]) != expected.size:
        return f"{said['width']}x{said['height']}, expected {expected.width}x{expected.height}"
    apart = ImageChops.difference(Image.frombytes("RGB", expected.size, raw), expected)
    most = max(high for _, high in apart.getextrema())
    if said["damaged"] or most > AWAY.get(name, 0):
        return f"{most} levels away, {said['damaged']} damaged"
    return None if said["remark"] == ("16" in name and "gray" in name) else f"remark {said['remark']}"


def compare_images(tool, writer):
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        paths = make_images.write_all(folder, writer)
        for words, read in (([], as_transformers), (["like=1"], as_qwen_vl_utils)):
            done = subprocess.run([tool, *words, folder, *paths], capture_output=True, text=True, check=True)
            for i, (path, line) in enumerate(zip(paths, done.stdout.splitlines(), strict=True)):
                said = json.loads(line)
                raw = b"" if "error" in said else Path(folder, str(i)).read_bytes()
                words = compare_image(path.name, said, raw, read(path))
                wrong += [f"{read.__name__}: {path.name}: {words}"] if words else []
    print(*wrong, f"{len(paths)} images, {len(wrong)} of twice as many not as they should be", sep="\n")
    return bool(wrong)


def main():
    if sys.argv[1] == "--images":
        return compare_images(*sys.argv[2:])
    words = [w for w in sys.argv[2:] if "=" in w]
    paths = [w for w in sys.argv[2:] if "=" not in w]
    lines = [compare(sys.argv[1], path, words) for path in paths]
    print("\n".join(lines))
    return any("DIFFERS" in line for line in lines)


if __name__ == "__main__":
    sys.exit(main())
