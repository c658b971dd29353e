# SPDX-License-Identifier: MIT
"""Times torch's Conv3d, for a checkpoint's patch embedding and for a list of shapes."""
import os
import re

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

INTEGER, TRIPLE, ANY = "an integer", "three integers with commas between them", "a value"
FORMS = {INTEGER: r"-?\d+", TRIPLE: r"-?\d+,-?\d+,-?\d+", ANY: ".+"}
FIELDS = {  # a field's form, and its default; None: it must be given
    "n": (INTEGER, "1"), **dict.fromkeys("dhwco", (INTEGER, None)), "kernel": (TRIPLE, None),
    "stride": (TRIPLE, "1,1,1"), "dilation": (TRIPLE, "1,1,1"), "pad_front": (TRIPLE, "0,0,0"),
    "pad_back": (TRIPLE, "0,0,0"), "groups": (INTEGER, "1"), "bias": (INTEGER, "0"),
    "residual_rows": (INTEGER, "0"), "causal": ("none|zeros|first", "none"),
    "layout": ("channels_first|channels_last|patch_rows|frames_u8", "channels_first"),
    "act": ("none|gelu_tanh|gelu_erf", "none"), "dtype": ("auto|f32|bf16", "auto"),
    # these do not change the convolution's time
    **dict.fromkeys(("merge", "frames_equal", "alpha", "pixel_scale", "pixel_shift"), (ANY, ""))}


def parse_shape(line, where):
    """Returns a shapes line as a dict with all defaults filled in, and its name and text."""
    name, colon, text = line.partition(":")
    words = (text if colon else line).split()
    given = dict(word.partition("=")[::2] for word in words)
    for word in words:
        field, _, value = word.partition("=")
        if field not in FIELDS:
            raise SystemExit(f'{where}: unknown field "{field}"; fields are {", ".join(FIELDS)}')
        if given[field] != value or not re.fullmatch(FORMS.get(FIELDS[field][0], FIELDS[field][0]), value):
            raise SystemExit(f"{where}: {word} must be given once, with {FIELDS[field][0]}")
    d = {field: given.get(field, default) for field, (_, default) in FIELDS.items()}
    missing = [field for field, value in d.items() if value is None]
    if missing:
        raise SystemExit(f"{where}: {', '.join(missing)} must be given")
    for field, (form, _) in FIELDS.items():
        if form in (INTEGER, TRIPLE):
            numbers = tuple(map(int, d[field].split(",")))
            d[field] = numbers if form == TRIPLE else numbers[0]
    if d["c"] % d["groups"] or d["o"] % d["groups"]:
        raise SystemExit(f"{where}: groups {d['groups']} must divide c {d['c']} and o {d['o']}")
    if d["causal"] != "none" and d["pad_back"][0]:
        raise SystemExit(f"{where}: causal padding has no pad_back on the depth axis")
    d["desc"] = " ".join(words)
    d["case"] = name.strip() if colon else d["desc"]
    return d


def read_shapes(path):
    with open(path, encoding="utf-8") as f:
        lines = [(i, line.strip()) for i, line in enumerate(f, 1)]
    return [parse_shape(line, f"{path}:{i}") for i, line in lines if line and line[0] != "#"]


def split_padding(d, axes, first=0):
    """Returns (padding that must be copied before and after each axis, without `first` frames; padding that
    the convolution itself can do, because both sides are equal)."""
    front, back, same = list(d["pad_front"]), list(d["pad_back"]), [0, 0, 0]
    front[0] -= first
    for axis in axes:
        if front[axis] == back[axis]:
            same[axis], front[axis], back[axis] = front[axis], 0, 0
    return front, back, same


def make_conv(d, x, weight, bias):
    """Returns the call that a user of torch would write. Padding that conv3d cannot do (more on one
    side, a repeated first frame) is a copy first, and is timed with the convolution."""
    first = d["pad_front"][0] if d["causal"] == "first" else 0
    front, back, same = split_padding(d, (0, 1, 2), first)
    pads = [p for axis in (2, 1, 0) for p in (front[axis], back[axis])]

    def run():
        y = x
        if first:
            y = torch.cat([y[:, :, :1].expand(-1, -1, first, -1, -1), y], 2)
        if any(pads):
            y = F.pad(y, pads)
        return F.conv3d(y, weight, bias, d["stride"], tuple(same), d["dilation"], d["groups"])
    return run


def make_conv_by_depth(d, x, weight, bias):
    """Returns a call that sums a 2D convolution per depth tap, each over all frames at once, channels
    last. Padding in depth is a copy first, and is timed with them."""
    front, back, same = split_padding(d, (1, 2))
    x = x.permute(0, 2, 3, 4, 1).contiguous()  # [n, d, h, w, c]
    taps = [weight[:, :, i].contiguous(memory_format=torch.channels_last)
            for i in range(d["kernel"][0])]
    pads = [0, 0, front[2], back[2], front[1], back[1]]
    step, dilation = d["stride"], d["dilation"]
    frames = front[0] + x.shape[1] + back[0]
    out = (frames - dilation[0] * (len(taps) - 1) - 1) // step[0] + 1

    def padded():
        y = x
        if front[0] or back[0]:
            first = d["causal"] == "first"
            parts = [(y[:, :1] if first else torch.zeros_like(y[:, :1])).expand(
                -1, front[0], -1, -1, -1), y,
                torch.zeros_like(y[:, :1]).expand(-1, back[0], -1, -1, -1)]
            y = torch.cat([p for p in parts if p.shape[1]], 1)
        return F.pad(y, pads) if any(pads) else y

    def run():
        y, total = padded(), None
        for i, tap in enumerate(taps):
            at = i * dilation[0]
            z = y[:, at:at + (out - 1) * step[0] + 1:step[0]].flatten(0, 1).permute(0, 3, 1, 2)
            z = F.conv2d(z, tap, None if i else bias, step[1:], same[1:], dilation[1:],
                         d["groups"])
            total = z if total is None else total.add_(z)
        return total
    return run


def bench_conv3d(args):
    torch.backends.cudnn.benchmark = True  # the rest runs as it is shipped, without cuDNN's search
    for d in read_shapes(args.shapes):
        for dtype in args.dtype:
            if d["dtype"] not in ("auto", dtype):
                continue
            odd = [f for f, plain in (("act", "none"), ("residual_rows", 0)) if d[f] != plain]
            if d["layout"] == "frames_u8":
                odd.append("layout=frames_u8")
            if odd:
                left_out(d["case"], dtype, "torch conv3d", f"torch's has no {', '.join(odd)}")
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
                d, x.contiguous(memory_format=last), weight.contiguous(memory_format=last), bias)),
            ("torch conv2d by depth", lambda: make_conv_by_depth(d, x, weight, bias))):
        run = make()
        try:
            times = measure(args, run, graph=True)
        except RuntimeError as error:  # not enough memory, or no such kernel
            left_out(d["case"], dtype, way, reason(error))
            continue
        report(args, ("conv3d", d["case"], dtype), way, times, (flops, moved), desc=d["desc"])
