# SPDX-License-Identifier: MIT
"""Writes the decisions and results of qwen-vl-utils, for tests/test_like.c.

    make_qwen_vl_utils_table.py > tests/qwen_vl_utils.json

The package is unchanged, but its reader returns made-up frames of a given size instead of a file's, and
where only sizes matter its resize is skipped.
"""
import inspect
import itertools
import json
from importlib.metadata import version

import numpy as np
import PIL
import torch
import torchvision
from PIL import Image
from qwen_vl_utils import vision_process as package

OURS = {"nframes": "num_frames", "video_start": "start", "video_end": "end"}  # our names of options
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

def hash_of(numbers):
    h = 0
    for x in numbers:
        h = (h * 31 + int(x)) % 1000000007
    return h


def row(patch, source, options, made):
    """Returns a row: a file ("source"), the options, and the package's result ("made"; None if it refuses)."""
    return {"patch": patch, "source": source, "made": made,
            "options": {OURS.get(name, name): value for name, value in options.items()}}


def clip_row(clip, options, patch):
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
    source = dict(zip(("frames", "fps", "height", "width"), clip))
    if height < 1 or width < 1:
        return row(patch, source, options, None)
    return row(patch, source, options, {"frames": len(made["indices"]), "height": height,
                                        "width": width, "hash": hash_of(made["indices"])})


def image_row(size, options, patch):
    made = {}
    image = Image.new("RGB", size[::-1])
    image.convert = lambda mode: image
    image.resize = lambda to: made.setdefault("size", to)
    try:
        package.fetch_image({"image": image, **options}, image_patch_size=patch)
    except (ValueError, AssertionError):
        made["size"] = 0, 0
    width, height = made["size"]
    source = {"frames": 1, "fps": 0, "height": size[0], "width": size[1]}
    right = height > 0 and width > 0
    return row(patch, source, options, {"height": height, "width": width} if right else None)


def cut_row(clip, options):
    """Reads frames like the package's readers."""
    total, fps = clip
    source = {"frames": total, "fps": fps, "height": 64, "width": 64}
    try:
        first, last, cut = package.calculate_video_frame_range(options, total, fps)
        n = package.smart_nframes(options, total_frames=cut, video_fps=fps)
    except ValueError:
        return row(16, source, options, None)
    indices = torch.linspace(first, last, n).round().long().tolist()
    return row(16, source, options,
               {"first": first, "of": cut, "frames": n, "hash": hash_of(indices)})


def cut_rows():
    for (total, fps), (start, end), nframes in itertools.product(CUT_CLIPS, CUTS, (0, 14)):
        options = {"video_start": start * total / fps, "video_end": end * total / fps,
                   "nframes": nframes}
        yield cut_row((total, fps), {k: v for k, v in options.items() if v})


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
        yield [name, h, w, to_h, to_w, f"{fnv(made.tobytes()):016x}"]


def write(made_with, choices, resizes):
    """Prints one row per line. A row of resizes has the arithmetic, both sizes, and a hash of the bytes."""
    lines = {name: ",\n".join(json.dumps(row) for row in rows)
             for name, rows in (("choices", choices), ("resizes", resizes))}
    print('{"made_with": ' + json.dumps(made_with), end="")
    for name, text in lines.items():
        print(f',\n"{name}": [\n{text}]', end="")
    print("}")


def main():
    assert "BICUBIC" in inspect.getsource(package.fetch_video)
    made_with = [f"qwen-vl-utils {version('qwen-vl-utils')}", f"torch {torch.__version__}",
                 f"torchvision {torchvision.__version__}", f"Pillow {PIL.__version__}"]
    clips = itertools.product(CLIPS, CLIP_OPTIONS, (14, 16))
    images = itertools.product(IMAGES, IMAGE_OPTIONS, (14, 16))
    choices = itertools.starmap(clip_row, clips), itertools.starmap(image_row, images), cut_rows()
    write(made_with, itertools.chain(*choices), itertools.chain(*map(resize_rows, SIZES)))


if __name__ == "__main__":
    main()
