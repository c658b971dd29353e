# SPDX-License-Identifier: MIT
"""Tests the wheel in a bare environment: no numpy, no torch, no variables. Usage: bare.py MODEL"""
import sys
from importlib.metadata import files

import qwenvit

try:
    import numpy

    sys.exit(f"this is no bare environment: {numpy}")
except ImportError:
    pass
installed = files("qwenvit")
licenses = {f.name for f in installed if "licenses" in f.parts}
assert licenses >= {"LICENSE", "jansson", "libgomp", "libjpeg-turbo", "libseccomp", "nanobind", "oneDNN"}, licenses
others = [f.name for f in installed if f.name.startswith(("libav", "libsw", "libcu", "libdnnl", "libgomp."))]
assert not others, f"these are the system's, or have no name of their own: {others}"
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
