# SPDX-License-Identifier: MIT
"""Times torch's Conv3d, for a checkpoint's patch embedding and for a list of shapes."""
import os

# first, as common must be imported before torch
from torch_times import common, left_out, measure, reason, report
import torch
import torch.nn.functional as F

# ---- patch-embed -------------------------------------------------------------------------------

def bench_patch_embed(args):
    _, config = common.vision_classes(args.model)
    stored = common.read_weights(args.model, config)
    for dtype in args.dtype:
        kind = common.DTYPES[dtype]
        weight = stored["patch_embed.proj.weight"].to(args.device, kind)
        bias = stored.get("patch_embed.proj.bias")
        bias = None if bias is None else bias.to(args.device, kind)
        flat, step = weight.reshape(weight.shape[0], -1), tuple(weight.shape[2:])
        for rows in args.rows:
            case = f"{os.path.basename(os.path.normpath(args.model))} {rows} rows"
            x = torch.rand(rows, flat.shape[1], generator=torch.manual_seed(0)) * 2 - 1
            x = x.to(args.device, kind)
            x5 = x.view(rows, *weight.shape[1:])
            flops = 2.0 * rows * flat.numel()
            moved = float(x.element_size() * (x.numel() + flat.numel() + rows * flat.shape[0]))
            for way, run in (("torch linear", lambda: F.linear(x, flat, bias)),
                             ("torch conv3d", lambda: F.conv3d(x5, weight, bias, step))):
                report(args, ("patch-embed", case, dtype), way, measure(args, run, graph=True),
                       (flops, moved), rows=rows)


# ---- conv3d ------------------------------------------------------------------------------------

DEFAULTS = {"n": "1", "stride": "1,1,1", "dilation": "1,1,1", "pad_front": "0,0,0", "pad_back": "0,0,0", "groups": "1",
            "bias": "0", "residual_rows": "0", "causal": "none", "layout": "channels_first", "act": "none", "dtype": "auto"}
WORDS = {"causal", "layout", "act", "dtype", "merge", "frames_equal", "alpha", "pixel_scale", "pixel_shift"}


def read_shapes(path):
    """Yields each line of a shapes file as a dict with all defaults filled in, and its name and text. `qwenvit bench
    conv3d` checks the same file."""
    with open(path, encoding="utf-8") as f:
        lines = [line.strip() for line in f]
    for line in lines:
        if line and line[0] != "#":
            name, colon, text = line.partition(":")
            desc = " ".join((text if colon else line).split())
            d = DEFAULTS | dict(word.split("=") for word in desc.split())
            for field in d.keys() - WORDS:
                numbers = tuple(map(int, d[field].split(",")))
                d[field] = numbers if len(numbers) > 1 else numbers[0]
            yield d | {"desc": desc, "case": name.strip() if colon else desc}


def make_conv(d, x, weight, bias):
    """Returns the call that a user of torch would write. Padding that conv3d cannot do (more on one
    side, a repeated first frame) is a copy first, and is timed with the convolution."""
    first = d["pad_front"][0] if d["causal"] == "first" else 0
    front, back, same = list(d["pad_front"]), list(d["pad_back"]), [0, 0, 0]
    front[0] -= first
    for axis in range(3):
        if front[axis] == back[axis]:
            same[axis], front[axis], back[axis] = front[axis], 0, 0
    pads = [p for axis in (2, 1, 0) for p in (front[axis], back[axis])]

    def run():
        y = x
        if first:
            y = torch.cat([y[:, :, :1].expand(-1, -1, first, -1, -1), y], 2)
        if any(pads):
            y = F.pad(y, pads)
        return F.conv3d(y, weight, bias, d["stride"], tuple(same), d["dilation"], d["groups"])
    return run


def bench_conv3d(args):
    torch.backends.cudnn.benchmark = True  # everything else runs as shipped, without cuDNN's search
    for d in read_shapes(args.shapes):
        for dtype in args.dtype:
            if d["dtype"] not in ("auto", dtype):
                continue
            odd = [f for f, plain in (("act", "none"), ("residual_rows", 0)) if d[f] != plain]
            if d["layout"] == "frames_u8":
                odd.append("layout=frames_u8")
            if odd:
                left_out(d["case"], dtype, "torch conv3d", f"torch's conv3d has no {', '.join(odd)}")
                continue
            time_conv(args, d, dtype)


@torch.no_grad()
def time_conv(args, d, dtype):
    kind = common.DTYPES[dtype]
    shape, kernel = [d["n"], d["c"], d["d"], d["h"], d["w"]], d["kernel"]
    if d["layout"] == "patch_rows":  # every row is a volume of one kernel
        cells = [s // k for s, k in zip(shape[2:], kernel)]
        shape = [d["n"] * cells[0] * cells[1] * cells[2], d["c"], *kernel]
    options = {"device": args.device, "dtype": kind,
               "generator": torch.Generator(args.device).manual_seed(0)}
    weight = torch.rand(d["o"], d["c"] // d["groups"], *kernel, **options).mul_(2).sub_(1)
    x = torch.rand(shape, **options).mul_(2).sub_(1)
    bias = torch.rand(d["o"], **options) if d["bias"] else None
    out = [(s + p + q - e * (k - 1) - 1) // t + 1
           for s, p, q, e, k, t in zip(shape[2:], d["pad_front"], d["pad_back"], d["dilation"],
                                       kernel, d["stride"])]
    cells = shape[0] * out[0] * out[1] * out[2]
    flops = 2.0 * cells * weight.numel()
    moved = float(x.element_size() * (x.numel() + weight.numel() + cells * d["o"]))
    last = torch.channels_last_3d
    for way, make in (
            ("torch conv3d", lambda: make_conv(d, x, weight, bias)),
            ("torch conv3d channels last", lambda: make_conv(
                d, x.contiguous(memory_format=last), weight.contiguous(memory_format=last), bias))):
        run = make()
        try:
            times = measure(args, run, graph=True)
        except RuntimeError as error:  # out of memory, or no such kernel
            left_out(d["case"], dtype, way, reason(error))
            continue
        report(args, ("conv3d", d["case"], dtype), way, times, (flops, moved), desc=d["desc"])
