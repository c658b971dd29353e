# SPDX-License-Identifier: MIT
"""40 right and 40 wrong uses of the package, which test_types.py has mypy --strict judge: the first half must pass,
and each line of the other must be an error."""
from collections.abc import Iterator
from typing import Any

import qwenvit
import qwenvit.torch

m = qwenvit.load("m")
x: Any = None
t = m.encode("a.mp4")


def right() -> None:
    qwenvit.load("m", "cpu")
    qwenvit.load("m", backend="cuda", device=1)
    qwenvit.load("m", device="cuda:1", dtype="bf16")
    qwenvit.load(b"m", threads=2)
    qwenvit.load("m", image_mean=[0.5, 0.5, 0.5], kernel_folder="")
    a: qwenvit.Tokens = m.encode("a.mp4")
    b: qwenvit.Tokens = m.encode(b"bytes", fps=2)
    c: qwenvit.Tokens = m.encode("a.mp4", fps=0.5, max_frames=8)
    d: qwenvit.Tokens = m.encode("a.mp4", start=1, end=2.5)
    e: qwenvit.Tokens = m.encode("a.mp4", like="qwen-vl-utils", total_pixels=10**6)
    f: qwenvit.Tokens = m.encode("a.mp4", decode="gpu", gpu=1)
    g: qwenvit.Tokens = m.encode({"path": "a.mp4", "fps": 1})
    h: qwenvit.Tokens = m.encode({"type": "video", "video": "a.mp4"})
    i: qwenvit.Tokens = m.encode(frames=[x, x], timestamps=[0, 0.5])
    j: Iterator[qwenvit.Tokens] = m.encode(["a", "b"])
    k: Iterator[qwenvit.Tokens] = m.encode(["a", "b"], errors="raise", ordered=False, decoders=2)
    n: Iterator[qwenvit.Tokens | qwenvit.Error] = m.encode(["a"], errors="yield")
    o: Iterator[qwenvit.Tokens] = m.encode((p for p in ["a"]), progress=print, first_frame=True)
    q: qwenvit.Pixels = m.preprocess("a.mp4", num_frames=4)
    pixels, grid = q
    tokens, deepstack = m.forward(pixels, grid)
    m.forward(pixels, grid, dtype="bf16").deepstack.count(0)
    m.forward(pixels, grid).tokens.shape
    t.tokens.shape
    len(t.deepstack)
    t.packed()
    t.save("a.safetensors", {"a": "b"}, dtype="f32")
    s: float | None = t.sampled_fps
    y: str = t.key
    z: dict[str, Any] = qwenvit.torch.collate([t, t], pad=True)
    u: object = qwenvit.patch(object(), backend="cpu", threads=1)
    v: bool = qwenvit.is_patched(u)
    cache = qwenvit.Cache("tokens")
    w: qwenvit.Entry = cache["a"]
    try:
        m.close()
    except qwenvit.InputError as why:
        raise ValueError(why.status) from why
    except qwenvit.FileError as why:
        print(why.errno, why.key)
    except qwenvit.OutOfMemoryError as why:
        print(why.index)
    found: list[dict[str, Any]] = qwenvit.devices()
    with qwenvit.load("m") as again:
        again.info["note"]
    m.encode("data:image/png;base64,aGk=", offset=0, length=3)


def wrong() -> None:
    qwenvit.load()
    qwenvit.load(3)
    qwenvit.load("m", "gpu")
    qwenvit.load("m", backend=1)
    qwenvit.load("m", threads="2")
    qwenvit.load("m", 3, "cpu", 0, 1)
    qwenvit.load("m", devices=[0])
    qwenvit.load("m", kernel_folder=3)
    m.encode("a.mp4", fp=2)
    m.encode("a.mp4", fps="2")
    m.encode("a.mp4", num_frames=1.5)
    m.encode("a.mp4", max_frame=8)
    m.encode("a.mp4", like="hf")
    m.encode("a.mp4", decode="cuda")
    m.encode("a.mp4", first_frame=1)
    m.encode("a.mp4", start="1:00")
    m.encode("a.mp4", threads="all")
    m.encode("a.mp4", timestamps=3)
    m.encode("a.mp4", ordered="no")
    m.encode("a.mp4", errors="skip")
    m.encode("a.mp4", decoders="4")
    m.encode(3)
    m.encode(["a"], errors="ignore")
    m.encode("a").nothing
    m.encode(["a", "b"]).tokens
    next(m.encode("a"))
    m.preprocess("a", fp=1)
    m.preprocess(["a"], num_frames="4")
    m.preprocess("a").shape
    m.forward(x)
    m.forward(x, x, "f32", 1)
    m.forward(x, x).pixels
    m.info = 3
    t.save()
    t.save("a", metadata=[1])
    t.sampled_fps + 1
    qwenvit.torch.collate(t)
    qwenvit.Cache()
    qwenvit.Cache("tokens")[3]
    qwenvit.tokens
