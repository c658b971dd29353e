# SPDX-License-Identifier: MIT
"""Prints the values that the `gguf` package (on PyPI) decodes from seeded blocks of each quantised type:
the table in tests/test_gguf.c."""

import sys

import numpy
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

# where a block has f16 numbers; their upper exponent bit is cleared, so that none is infinite
HALVES = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}  # fmt: skip
BLOCKS = 64


def seeded(n, seed):
    out = bytearray(n)
    for i in range(n):
        seed = (seed * 1664525 + 1013904223) & 0xFFFFFFFF
        out[i] = seed >> 24
    return out


def fnv(data):
    h = 0xCBF29CE484222325
    for byte in data:
        h = (h ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return h


def main():
    for name, halves in HALVES.items():
        kind = GGMLQuantizationType[name]
        values, size = GGML_QUANT_SIZES[kind]
        data = seeded(BLOCKS * size, kind.value + 1)
        for block in range(BLOCKS):
            for at in halves:
                data[block * size + at + 1] &= 0xBF
        out = quants.dequantize(numpy.frombuffer(data, numpy.uint8).reshape(1, -1), kind)
        out = out.astype(numpy.float32).reshape(-1)
        first = ", ".join(float(v).hex() for v in out[[1, values - 1]])
        sys.stdout.write(f'{{ "{name}", {kind.value}, {{ {first} }}, 0x{fnv(out.tobytes()):016x} }},\n')


if __name__ == "__main__":
    main()
