# SPDX-License-Identifier: MIT
"""Tests the wheel in a bare environment: no numpy, no torch, no variables, and no FFmpeg, which is hidden
from the programs that are installed. Usage: bare.py MODEL"""
import re
import subprocess
import sys
from importlib.metadata import files, metadata

import qwenvit

try:
    import numpy

    sys.exit(f"this environment is not bare: {numpy}")
except ImportError:
    pass
installed = files("qwenvit")
licenses = {f.name for f in installed if "licenses" in f.parts}
assert licenses >= {"LICENSE", "jansson", "libgomp", "libjpeg-turbo", "libseccomp", "nanobind", "oneDNN"}, licenses
others = [f.name for f in installed if f.name.startswith(("libav", "libsw", "libcu", "libdnnl", "libgomp."))]
assert not others, f"these are the system's, or have no name of their own: {others}"
about = metadata("qwenvit")
page = about.get_payload() or about["Description"]
relative = [target for target in re.findall(r"\]\(([^)\s]+)\)", page) if not re.match("https?:|#", target)]
assert "# qwenvit for Python" in page and not relative, relative
hidden = (b"libavformat.so", b"libavmissing.o")  # a name that no library has
for file in installed:
    if file.name.startswith("qwenvit") and file.locate().is_file():
        program = file.locate().read_bytes().replace(*hidden)
        file.locate().write_bytes(program)
        assert (hidden[1] in program) == (file.name == "qwenvit-decoder"), f"{file} links FFmpeg, or the decoder does not"
model = qwenvit.load(sys.argv[1], backend="cpu", dtype="f32")
width = model.info["row_dim"]
pixels = memoryview(bytes(16 * width * 4)).cast("f", (16, width))
tokens = model.forward(pixels, [[1, 4, 4]])
assert len(tokens) == 4 and len(tokens.deepstack) == model.info["n_deepstack"]
assert memoryview(tokens.tokens).shape == (4, model.info["out_hidden"])
assert memoryview(tokens.grid_thw).tolist() == [[1, 4, 4]]
assert qwenvit.prompt(tokens, is_image=True).count("<|image_pad|>") == 4
try:
    model.forward([1, 2], [[1, 4, 4]])
    sys.exit("a list was taken")
except qwenvit.Error as e:
    assert e.status == "QV_EINVAL", e
try:
    qwenvit.Cache("/")
    sys.exit("a cache without numpy")
except qwenvit.Error as e:
    assert "numpy" in str(e), e
print(model, tokens)

# ---- what needs no FFmpeg, and what says that it is missing ----------------------------------------
frames = memoryview(bytes(range(64)) * 2 * 64 * 3).cast("B", (2, 64, 64, 3))
assert len(model.encode(frames=frames, fps=2)) == 4 and len(next(model.encode([frames, frames]))) == 4
for source in ("clip.mp4", b"bytes of a file"):
    try:
        model.encode(source)
        sys.exit("a clip was decoded without FFmpeg")
    except qwenvit.Error as e:
        assert e.status == "QV_EBACKEND" and "apt-get install ffmpeg" in str(e) and "libavmissing.o" in str(e), e
for status, words, *arguments in [
    (0, "FFmpeg libraries may be missing", "--version"),
    (0, "qwen3_vl vision tower", "info", sys.argv[1]),
    (0, " 0 failed", "verify", "--model", sys.argv[1], "--grid", "1,4,4", "--backend", "cpu", "--dtype", "f32"),
    (4, "FFmpeg libraries may be missing", "info", sys.executable),
]:
    run = subprocess.run([sys.executable, "-I", "-m", "qwenvit", *arguments], capture_output=True, text=True)
    assert run.returncode == status and words in run.stdout + run.stderr, (arguments, run)
