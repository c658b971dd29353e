# SPDX-License-Identifier: MIT
"""Writes what qwen-vl-utils decides and makes, for tests/test_like.c.

    make_qwen_vl_utils_table.py > tests/qwen_vl_utils.inc

The package runs as it is; only its reader gives frames of the size asked for instead of a file's,
and where sizes alone are wanted its resize makes none.
"""
import inspect
import itertools
from importlib.metadata import version

import numpy as np
import PIL
import torch
import torchvision
from PIL import Image
from qwen_vl_utils import vision_process as package

FIELDS = ("fps", "nframes", "min_frames", "max_frames", "min_pixels", "max_pixels", "total_pixels")
CLIPS = (  # frames, frames per second, height, width
    (325, 25.0, 180, 320), (300, 30000 / 1001, 720, 1280), (3, 30.0, 320, 568), (2, 30.0, 50, 50),
    (1, 25.0, 240, 320), (17982, 29.97, 1080, 1920), (100000, 24.0, 2160, 3840), (7, 10.0, 20, 700),
    (53946, 59.94, 480, 640), (90, 12.5, 4000, 20), (50, 10.0, 1, 201),
)
CLIP_OPTIONS = (
    {}, {"fps": 0.3}, {"fps": 7.3}, {"nframes": 1}, {"nframes": 5}, {"nframes": 64},
    {"min_frames": 9}, {"max_frames": 1}, {"max_frames": 333, "fps": 30.0},
    {"min_frames": 3, "max_frames": 11, "fps": 1.0}, {"min_pixels": 40000},
    {"max_pixels": 90000}, {"min_pixels": 20000, "max_pixels": 30000},
    {"min_pixels": 300000, "max_pixels": 200000}, {"total_pixels": 3000000},
    {"total_pixels": 100000000, "nframes": 250}, {"min_pixels": 999999},
)
IMAGES = ((97, 131), (1080, 1920), (30, 500), (11, 13), (5000, 7000), (1, 200), (1, 201),
          (28, 32))
IMAGE_OPTIONS = ({}, {"min_pixels": 300000}, {"max_pixels": 50000}, {"max_pixels": 500},
                 {"min_pixels": 9000, "max_pixels": 8000})
CUT_CLIPS = ((325, 25.0), (300, 30000 / 1001), (100000, 24.0), (53946, 59.94), (7, 10.0), (2, 30.0))
CUTS = (  # parts of the length: start, end; 0: left out
    (0.1, 0.5), (0.25, 0), (0, 0.75), (0.5, 0.51), (0.99, 0), (0.3, 40.0), (1.0, 0), (7.0, 9.0),
    (0.123456789, 0.987654321), (1 / 3, 2 / 3), (0.9, 1.0),
)
SIZES = (  # height, width, new height, new width
    (48, 80, 32, 64), (33, 57, 64, 96), (7, 5, 32, 32), (1, 1, 8, 8), (90, 160, 90, 64),
    (200, 300, 9, 7), (64, 64, 64, 64), (97, 131, 84, 140), (97, 131, 140, 84), (2, 130, 32, 32),
)

HEADER = """/* SPDX-License-Identifier: MIT */
/* Made by tools/reference/make_qwen_vl_utils_table.py with qwen-vl-utils {package},
 * {versions}.
 * CLIP(patch, of the file: frames, fps, height, width, asked for: fps, nframes, min_frames,
 *      max_frames, min_pixels, max_pixels, total_pixels, made: frames, height, width, hash of their
 *      numbers; 0 where it is refused)
 * IMAGE(patch, height, width, min_pixels, max_pixels, made: height, width)
 * CUT(of the file: frames, fps, asked for: video_start, video_end, nframes, made: the first frame and
 *     how many to the last, frames, hash of their numbers; 0 where it is refused)
 * RESIZE(arithmetic, height, width, to height, to width, hash of bytes) */"""


def hash_of(numbers):
    h = 0
    for x in numbers:
        h = (h * 31 + int(x)) % 1000000007
    return h


def clip_row(clip, options, patch):
    """Returns (frames, height, width, hash of the frame numbers); all are 0 if the package refuses.
    """
    total, fps, height, width = clip
    made = {}

    def read(ele):
        n = package.smart_nframes(ele, total_frames=total, video_fps=fps)
        made["indices"] = torch.linspace(0, total - 1, n).round().long().tolist()
        frames = torch.zeros(1, 1, 1, 1, dtype=torch.uint8).expand(n, 3, height, width)
        return frames, {}, n / max(total, 1e-6) * fps

    def resize(video, size, **_):
        made["size"] = size
        return torch.zeros(1)

    package.get_video_reader_backend = lambda: "torchvision"
    package.VIDEO_READER_BACKENDS["torchvision"] = read
    real, package.transforms.functional.resize = package.transforms.functional.resize, resize
    try:
        package.fetch_video({"video": "clip", **options}, image_patch_size=patch)
        height, width = made["size"]
    except (ValueError, AssertionError):
        height = width = 0
    finally:
        package.transforms.functional.resize = real
    if height < 1 or width < 1:
        return 0, 0, 0, 0
    return len(made["indices"]), height, width, hash_of(made["indices"])


def image_row(size, options, patch):
    made = {}
    image = Image.new("RGB", size[::-1])
    image.convert = lambda mode: image
    image.resize = lambda to: made.setdefault("size", to)
    try:
        package.fetch_image({"image": image, **options}, image_patch_size=patch)
    except (ValueError, AssertionError):
        return 0, 0
    width, height = made["size"]
    return (height, width) if height > 0 and width > 0 else (0, 0)


def cut_row(clip, options):
    """Reads frames as the package's readers do."""
    total, fps = clip
    try:
        first, last, total = package.calculate_video_frame_range(options, total, fps)
        n = package.smart_nframes(options, total_frames=total, video_fps=fps)
    except ValueError:
        return 0, 0, 0, 0
    indices = torch.linspace(first, last, n).round().long().tolist()
    return first, total, n, hash_of(indices)


def cut_rows():
    for clip, (start, end), nframes in itertools.product(CUT_CLIPS, CUTS, (0, 14)):
        total, fps = clip
        options = {"video_start": start * total / fps, "video_end": end * total / fps,
                   "nframes": nframes}
        row = cut_row(clip, {k: v for k, v in options.items() if v})
        fields = ", ".join(map(repr, options.values()))
        yield f"CUT({total}, {fps!r}, {fields}, " + ", ".join(map(str, row)) + ")"


def noise(n):
    out, s = np.empty(n, np.uint8), 1
    for i in range(n):
        s = (s * 1664525 + 1013904223) % 2**32
        out[i] = s >> 24
    return out


def fnv(data):
    h = 0xCBF29CE484222325
    for byte in data:
        h = (h ^ byte) * 0x100000001B3 % 2**64
    return h


def resize_rows(size):
    h, w, to_h, to_w = size
    image = noise(3 * h * w).reshape(h, w, 3)
    video = torch.from_numpy(image).permute(2, 0, 1)[None]
    clip = torchvision.transforms.functional.resize(
        video, [to_h, to_w], interpolation=package.InterpolationMode.BICUBIC, antialias=True)
    resized = np.array(Image.fromarray(image).resize((to_w, to_h)))
    clip = clip[0].permute(1, 2, 0).contiguous().numpy()
    for name, made in (("TORCH_FLOAT", clip), ("PIL", resized)):
        yield f"RESIZE({name}, {h}, {w}, {to_h}, {to_w}, 0x{fnv(made.tobytes()):016x})"


def fields(options):
    return ", ".join(str(options.get(name, 0)) for name in FIELDS)


def main():
    assert "BICUBIC" in inspect.getsource(package.fetch_video)
    versions = f"torch {torch.__version__.split('+')[0]}, torchvision "
    versions += f"{torchvision.__version__.split('+')[0]}, Pillow {PIL.__version__}"
    print(HEADER.format(package=version("qwen-vl-utils"), versions=versions))
    for clip, options, patch in itertools.product(CLIPS, CLIP_OPTIONS, (14, 16)):
        total, fps, height, width = clip
        row = clip_row(clip, options, patch)
        print(f"CLIP({patch}, {total}, {fps!r}, {height}, {width}, {fields(options)}, "
              + ", ".join(map(str, row)) + ")")
    for size, options, patch in itertools.product(IMAGES, IMAGE_OPTIONS, (14, 16)):
        row = image_row(size, options, patch)
        print(f"IMAGE({patch}, {size[0]}, {size[1]}, {options.get('min_pixels', 0)}, "
              f"{options.get('max_pixels', 0)}, {row[0]}, {row[1]})")
    print("\n".join(cut_rows()))
    for size in SIZES:
        print("\n".join(resize_rows(size)))


if __name__ == "__main__":
    main()
