#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Which steps make llama.cpp's tokens differ from transformers'? Transformers in f32, on the values of a GGUF file, is
made to do one step after the other as mtmd does it; each line says how far mtmd still is, after the first block and
in its tokens. What rounds makes large differences of small ones: so the last line says how far the transformers with
all steps are from themselves, where the first block's input is off by 1e-6, as two orders of a sum are. What mtmd is
off beyond that, no step here explains.

    mtmd_steps.py FOLDER --llama LLAMA --image FILE.ppm --work DIR --types F32,F16,BF16,Q8_0

What is asked of FOLDER and of the image is said in tools/reference/gguf_parity.py, which makes the files.
"""
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "reference"))

import common
import gguf
import gguf_folder
import gguf_parity
import numpy
import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from torch.nn import functional


def f16(x):
    return x.half().float()


# ---- what ggml makes of the second operand of a matrix product, by the first one's type ------------

def rounded_blocks(x, block, levels):
    """Of each `block` values the largest is +-levels steps, and all are whole steps; Q8_0 keeps the step as f16."""
    blocks = x.reshape(-1, block)
    step = blocks.abs().amax(1, keepdim=True) / levels
    whole = torch.where(step > 0, blocks / step, blocks)
    kept = f16(step) if block == 32 else step
    return (whole.round() * kept).reshape(x.shape)


OPERAND = {"F32": lambda x: x, "F16": f16, "BF16": lambda x: x.bfloat16().float()}
OPERAND.update({name: lambda x: rounded_blocks(x, 32, 127) for name in ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")})
OPERAND.update({name: lambda x: rounded_blocks(x, 256, 127) for name in ("Q4_K", "Q5_K", "Q6_K")})


# ---- the steps -------------------------------------------------------------------------------------

class Table(torch.nn.Module):
    """ggml's GELU on a CPU: f16 in, f16 out."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return torch.where(x.abs() < 10, f16(self.function(f16(x))), self.function(x))


def convolutions(model, _):
    """A convolution's im2col and weight are f16, whatever the file's type is: the patch embedding's, GLM's merger's."""
    for conv in (model.patch_embed.proj, getattr(model, "downsample", None)):
        if conv is not None:
            conv.weight.data = f16(conv.weight.data)
            conv.register_forward_pre_hook(lambda m, args: (f16(args[0]),))


def attention(model, _):
    """Flash attention takes k and v as f16."""
    def run(module, query, key, value, attention_mask=None, scaling=None, **_):
        out = functional.scaled_dot_product_attention(query, f16(key), f16(value), scale=scaling)
        return out.transpose(1, 2).contiguous(), None
    ALL_ATTENTION_FUNCTIONS.register("mtmd", run)
    model.config._attn_implementation = "mtmd"
    for block in model.blocks:
        block.attn.config._attn_implementation = "mtmd"


def tanh(x):
    return functional.gelu(x, approximate="tanh")


def replaced(model, wanted, make):
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if wanted(child):
                setattr(module, name, make(child))


def merger_gelu(model, _):
    """The mergers' GELU, exact in transformers, is the one of tanh; GLM's stays exact."""
    if not hasattr(model, "downsample"):
        replaced(model, lambda m: isinstance(m, torch.nn.GELU), lambda m: torch.nn.GELU("tanh"))


def gelu_table(model, _):
    """GELU of tanh, and Qwen2's quick one, come from a table of f16."""
    known = ("GELUTanh", "PytorchGELUTanh", "QuickGELUActivation")
    replaced(model, lambda m: type(m).__name__ in known or isinstance(m, torch.nn.GELU) and m.approximate == "tanh",
             Table)


def operands(model, types):
    """A product's second operand, f32 until then, is rounded to what goes with the file's type of the first one."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            round_it = OPERAND[types(name)]
            module.register_forward_pre_hook(lambda m, args, r=round_it: (r(args[0]),))


STEPS = (("as transformers", None), ("convolutions in f16", convolutions), ("k and v in f16", attention),
         ("the mergers' GELU by tanh", merger_gelu), ("GELU by a table of f16", gelu_table),
         ("products' second operand rounded", operands))


def types_of(file, folder):
    """The type in the file of a linear layer's weight, by the layer's name in transformers."""
    found = {t.name: numpy.array([t.tensor_type.name]) for t in gguf.GGUFReader(file).tensors}
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        deepstack = sorted(json.load(f)["vision_config"].get("deepstack_visual_indexes", []))
    return lambda name: str(gguf_folder.value(f"{name}.weight", (), found, deepstack)[0])


def distance(pair):
    """The mean of the rows' distances; of several outputs the largest mean."""
    return gguf_parity.worst_of(*pair)[0]


def run_tower(model, pixels, grids):
    """(the first block's output, what a caller gets), each by name."""
    layers = common.run_tower(model, pixels, grids)
    return {"blocks.0": layers["blocks.0"]}, {n: layers[n] for n in common.output_names(layers)}


def run_steps(args, file, pixels, grids):
    """Of each step its name, and two pairs of what mtmd and what the transformers that do it have."""
    with tempfile.TemporaryDirectory(dir=args.work) as folder:
        gguf_folder.write_folder(file, args.folder, folder)
        model = common.load_tower(folder)
        kept, mtmd = os.path.join(folder, "block"), None
        for name, change in STEPS:
            if change:
                change(model, types_of(file, args.folder))
            first, tokens = run_tower(model, pixels, grids)
            if not mtmd:
                mtmd = gguf_parity.mtmd_outputs(args, file, list(tokens), [("layer_out-0", kept)])
                block = {"blocks.0": torch.from_numpy(numpy.fromfile(kept, "<f4")).reshape(first["blocks.0"].shape)}
            yield name, (block, first), (mtmd, tokens)
        noise = torch.randn(1 << 24, generator=torch.manual_seed(0))
        off = lambda x: x * (1 + 1e-6 * noise[:x.numel()].reshape(x.shape))
        model.blocks[0].register_forward_pre_hook(lambda m, inputs: (off(inputs[0]), *inputs[1:]))
        first_off, tokens_off = run_tower(model, pixels, grids)
        yield "all steps, from themselves off by 1e-6", (first_off, first), (tokens_off, tokens)


def main():
    options = gguf_parity.parser(__doc__)
    options.add_argument("--image", metavar="FILE.ppm", required=True)
    options.add_argument("--types", type=lambda s: s.split(","), default=["F32", "F16", "BF16", "Q8_0"], metavar="LIST")
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    pixels, grids = common.image_pixels(args.folder, args.image)
    tower = os.path.basename(os.path.normpath(args.folder))
    for kind in args.types:
        file = gguf_parity.make_file(args, kind)
        lines = [(name, distance(first), distance(tokens)) for name, first, tokens in run_steps(args, file, pixels, grids)]
        for name, first, tokens in lines:
            print(f"{tower} {kind:5} {name:38} after block 0 {first:.1e}  tokens {tokens:.1e}", flush=True)
        if args.json:
            with open(args.json, "a", encoding="utf-8") as f:
                f.write(json.dumps(dict(what="steps", tower=tower, type=kind, patches=int(grids.prod()),
                                        flash_attn=args.flash_attn, steps=lines)) + "\n")


if __name__ == "__main__":
    main()
