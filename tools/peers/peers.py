#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Times what else runs the Qwen-VL vision tower and Conv3d: transformers and torch.

    peers.py tower --model DIR --grid 1,20,38 --dtype bf16,f32 --json peers.jsonl
    peers.py patch-embed --model DIR --rows 760,3040 --json peers.jsonl
    peers.py conv3d --shapes FILE --json peers.jsonl

Medians and 90th percentiles of single runs after a warm-up; what is fewer than three runs, or runs far
apart, is refused (times.py). --json appends records, an object a
line, in the schema of `qwenvit bench ... --json=FILE`, so that one file may hold both. README.md
beside this file says what each way is.
"""
import argparse
import contextlib
import importlib
import io
import itertools
import json
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "reference"))

import common  # first: it sets what transformers reads when it is imported
import torch
import torch.nn.functional as F
from times import LEAST_REPEATS, summary

GRAPH_MS = 1.0  # on CUDA so much work goes into one graph, or launches are what is timed
MOST_CALLS = 500  # in one


# ---- time and records --------------------------------------------------------------------------

def once_ms(args, function):
    """By the device's own clock: what launching leaves it idle counts, waiting for it does not."""
    if args.device != "cuda":
        start = time.perf_counter()
        function()
        return 1e3 * (time.perf_counter() - start)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    function()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def as_graph(args, function):
    """(function, calls in it): on CUDA many calls in one graph, else the function as it is."""
    if args.device != "cuda":
        return function, 1
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # libraries choose and allocate before the capture
        for _ in range(2):
            function()
    torch.cuda.synchronize()
    calls = 1
    while True:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(calls):
                function()
        graph.replay()
        taken_ms = once_ms(args, graph.replay)
        if taken_ms >= GRAPH_MS or calls == MOST_CALLS:
            return graph.replay, calls
        calls = min(MOST_CALLS, int(1.2 * calls * GRAPH_MS / taken_ms) + 1)


@torch.no_grad()
def measure(args, function, graph=False):
    """median_ms, p90_ms, repeats of function(). --limit-s ends both warm-up and repeats early, but a
    warm-up and as many runs as a record takes there are in any case."""
    began = time.perf_counter()
    late = lambda: time.perf_counter() - began > args.limit_s
    warmups, times = 1, []
    once_ms(args, function)
    function, calls = as_graph(args, function) if graph else (function, 1)
    while warmups < args.warmup and not late():
        once_ms(args, function)
        warmups += 1
    while len(times) < args.repeats and not (len(times) >= LEAST_REPEATS and late()):
        times.append(once_ms(args, function) / calls)
    return summary(warmups, times)


def cpu_name():
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            for line in f:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    import platform
    return platform.processor() or platform.machine()


def machine(args):
    import transformers
    device = torch.cuda.get_device_name() if args.device == "cuda" else cpu_name()
    return dict(backend="torch", threads=torch.get_num_threads(),
                device=f"{device}, torch {torch.__version__.split('+')[0]}, "
                       f"transformers {transformers.__version__}")


def report(args, bench, case, way, dtype, times, flops, moved, **extra):
    """Prints a line and appends a record, unless times are refused. `moved`: bytes read and written, each
    once."""
    if "refused" in times:
        left_out(case, dtype, way, times["refused"])
        return
    seconds = times["median_ms"] / 1e3
    record = dict(bench=bench, case=case, way=way, dtype=dtype, **times, flops=flops, bytes=moved,
                  tflops_per_s=flops / seconds / 1e12, gb_per_s=moved / seconds / 1e9,
                  machine=machine(args), version=f"torch {torch.__version__.split('+')[0]}",
                  **extra)
    print(f"{case:40} {dtype:4} {way:28} {times['median_ms']:10.3f} ms  "
          f"p90 {times['p90_ms']:10.3f}  n {times['repeats']:2}  "
          f"{record['tflops_per_s']:8.3f} TFLOP/s", flush=True)
    if args.json:
        with open(args.json, "a", encoding="utf-8") as f:
            f.write(json.dumps(record) + "\n")


def left_out(case, dtype, way, why):
    print(f"{case:40} {dtype:4} {way:28} left out: {why}", flush=True)


def reason(error):
    lines = [x.strip() for x in str(error).split("\n") if x.strip()]
    return f"{type(error).__name__}: {lines[0][:160] if lines else ''}"


# ---- tower -------------------------------------------------------------------------------------

def linear_tower(folder, shipped):
    """The same tower with transformers' own opt-in linear patch embedding, which is
    from_pretrained(..., fusion_config={"patch_embeddings": True}). It shares its weights with
    `shipped`. None where the installed version has no such switch for this model."""
    try:
        from transformers.fusion_mapping import register_fusion_patches
        from transformers.monkey_patching import clear_patch_mapping
    except ImportError:
        return None
    model_class, config = common.vision_classes(folder)
    register_fusion_patches(model_class, config, {"patch_embeddings": True})
    weight = shipped.patch_embed.proj.weight
    with torch.device("meta"):
        model = model_class._from_config(config, dtype=weight.dtype, attn_implementation="sdpa")
    clear_patch_mapping()  # or towers made later have it too
    if not hasattr(model.patch_embed, "linear_proj"):
        return None
    state = {k.replace("patch_embed.proj.", "patch_embed.linear_proj."): v
             for k, v in shipped.state_dict().items()}
    state["patch_embed.linear_proj.weight"] = weight.detach().reshape(weight.shape[0], -1)
    model.load_state_dict(state, strict=True, assign=True)
    model.rotary_pos_emb = shipped.rotary_pos_emb
    return model.eval()


def segment_attention(attention, rotate, segments):
    """Attention of all segments at once, where transformers loops over them: of equal ones as a
    batch, of others by torch's kernel for them. `segments`: their lengths."""
    longest, equal = max(segments), min(segments) == max(segments)
    if not equal:
        from torch.nn.attention.varlen import varlen_attn
        starts = torch.tensor([0, *itertools.accumulate(segments)], dtype=torch.int32,
                              device=attention.qkv.weight.device)

    def forward(hidden_states, position_embeddings=None, **_):
        n, heads = hidden_states.shape[0], attention.num_heads
        q, k, v = attention.qkv(hidden_states).view(n, 3, heads, -1).unbind(1)
        q, k = rotate(q, k, *position_embeddings)
        if not equal:
            x = varlen_attn(q, k, v, starts, starts, longest, longest)
            return attention.proj(x.reshape(n, -1))
        pairs = len(segments)
        q, k, v = (x.reshape(pairs, n // pairs, heads, -1).transpose(1, 2) for x in (q, k, v))
        x = F.scaled_dot_product_attention(q, k, v, scale=attention.scaling)
        return attention.proj(x.transpose(1, 2).reshape(n, -1))
    return forward


class BareTower(torch.nn.Module):
    """transformers' layers for given grids, for the compiler: what depends on the grids alone
    is computed beforehand, and nothing breaks the graph."""

    def __init__(self, model, grids):
        super().__init__()
        from transformers import vision_utils
        modeling = importlib.import_module(type(model).__module__)
        self.model, self.position, self.order, self.back = model, None, None, None
        weight = model.patch_embed.proj.weight if hasattr(model.patch_embed, "proj") \
            else model.patch_embed.linear_proj.weight
        ids = vision_utils.get_vision_position_ids(grids, model.spatial_merge_size, kwargs={})
        with torch.no_grad():
            self.rotary = model.rotary_pos_emb(weight, ids)
            if hasattr(model, "pos_embed"):
                taps, weights = vision_utils.get_vision_interpolation_indices_and_weights(
                    grids, num_grid_per_side=model.num_grid_per_side,
                    mode=model.interpolation_mode,
                    align_corners=model.interpolation_align_corners,
                    spatial_merge_size=model.spatial_merge_size, kwargs={})
                position = (model.pos_embed(taps) * weights[:, :, None]).sum(1)
                self.position = position.to(model.pos_embed.weight.dtype)
        self.taps = list(getattr(model, "deepstack_visual_indexes", []))
        segments = [h * w for t, h, w in grids.tolist() for _ in range(t)]
        full, windows = range(len(model.blocks)), None
        if hasattr(model, "fullatt_block_indexes"):
            full, windows = model.fullatt_block_indexes, self.use_windows(grids, vision_utils)
        for i, block in enumerate(model.blocks):
            block.attn.forward = segment_attention(
                block.attn, modeling.apply_rotary_pos_emb_vision, segments if i in full else windows)

    def use_windows(self, grids, vision_utils):
        """Rows in window order, and tokens back; the lengths of windows."""
        model, area = self.model, self.model.spatial_merge_size ** 2
        index, starts = vision_utils.get_vision_window_index(
            grids, model.spatial_merge_size, model.window_size, model.patch_size)
        index = index.to(grids.device)
        self.order = (index[:, None] * area + torch.arange(area, device=grids.device)).flatten()
        self.back = torch.argsort(index)
        self.rotary = tuple(x[self.order] for x in self.rotary)
        return starts.diff().tolist()

    def forward(self, pixels):
        x, deep = self.model.patch_embed(pixels), []
        if self.position is not None:
            x = x + self.position
        if self.order is not None:
            x = x[self.order]
        for i, block in enumerate(self.model.blocks):
            x = block(x, cu_seqlens=None, position_embeddings=self.rotary)
            if i in self.taps:
                deep.append(self.model.deepstack_merger_list[self.taps.index(i)](x))
        tokens = self.model.merger(x)
        return tokens if self.back is None else tokens[self.back], deep


def compiler_setting(args, mode):
    """What is in force while a mode is compiled and run."""
    import torch._inductor.config as inductor
    stack = contextlib.ExitStack()
    stack.enter_context(inductor.patch(autotune_num_choices_displayed=0))
    if args.device == "cuda":
        from torch.nn.attention import SDPBackend, sdpa_kernel
        order = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION,
                 SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
        stack.enter_context(sdpa_kernel(order, set_priority=True))
    if mode == "freezing" or mode == "max-autotune" and args.device == "cpu":
        stack.enter_context(inductor.patch(freezing=True))
    return stack


def compiled(bare, mode):
    """To be called in the mode's compiler_setting, the first time and each time after it."""
    return torch.compile(bare, fullgraph=True, dynamic=False,
                         mode="default" if mode == "freezing" else mode)


def time_compiled(args, case, dtype, bare, pixels, truth):
    """The best of the compiler's modes, as (times, mode); None where none works."""
    best = None
    for mode in args.modes:
        try:
            torch._dynamo.reset()
            began = time.perf_counter()
            run = compiled(bare, mode)
            with compiler_setting(args, mode), torch.no_grad():  # one without graphs gets ours
                with contextlib.redirect_stderr(io.StringIO()):  # statistics of the search
                    tokens = run(pixels)[0]
                compiled_s = time.perf_counter() - began
                worst = common.mean_and_worst(tokens, truth)[1]
                if not worst < (1e-4 if dtype == "f32" else 0.1):
                    raise ValueError(f"its tokens are wrong: worst distance {worst:.1e}")
                graph = args.device == "cuda" and mode.endswith("no-cudagraphs")
                times = measure(args, lambda: run(pixels), graph)
            if "refused" in times:
                raise ValueError(times["refused"])
        except Exception as error:  # no compiler, or one that cannot compile this
            left_out(case, dtype, f"compiled torch, {mode}", reason(error))
            continue
        print(f"  torch.compile, {mode}: {times['median_ms']:.2f} ms, compiled in "
              f"{compiled_s:.0f} s, worst distance to the tower as shipped {worst:.1e}",
              flush=True)
        if best is None or times["median_ms"] < best[0]["median_ms"]:
            best = times, mode
    return best


def patches(grids):
    return sum(t * h * w for t, h, w in grids)


def attention_squares(config, grids):
    """Squares of segments' rows, summed over the blocks: of frame pairs, or of windows."""
    full = sum(t * (h * w) ** 2 for t, h, w in grids)
    if not hasattr(config, "fullatt_block_indexes"):
        return config.depth * full
    side = config.window_size // config.patch_size
    lengths = lambda n: [min(side, n - i) for i in range(0, n, side)]
    squares = lambda n: sum(x * x for x in lengths(n))
    blocks = len(config.fullatt_block_indexes)
    windows = sum(t * squares(h) * squares(w) for t, h, w in grids)
    return blocks * full + (config.depth - blocks) * windows


def tower_work(config, grids, size):
    """(flops, bytes) of a tower: bytes are weights, pixels and tokens, each once."""
    n, width = patches(grids), common.width_of(config)
    inner = getattr(config, "intermediate_size", None) or int(width * config.mlp_ratio)
    matrices = 3 if hasattr(config, "fullatt_block_indexes") else 2  # gate, up and down, or two
    row = config.in_channels * config.temporal_patch_size * config.patch_size ** 2
    merged = width * config.spatial_merge_size ** 2
    out = getattr(config, "out_hidden_size", None) or config.hidden_size
    outputs = 1 + len(getattr(config, "deepstack_visual_indexes", None) or [])
    merger = merged * merged + merged * out
    block = 4 * width * width + matrices * width * inner
    tokens = n // config.spatial_merge_size ** 2
    flops = 2 * n * (row * width + config.depth * block) + 2 * tokens * outputs * merger
    flops += 4 * attention_squares(config, grids) * width
    weights = row * width + config.depth * block + outputs * merger
    return float(flops), float(size * (weights + n * row + tokens * outputs * out))


def bench_tower(args):
    for dtype in args.dtype:
        towers = {"transformers": common.load_tower(args.model, dtype, device=args.device)}
        linear = linear_tower(args.model, towers["transformers"])
        if linear is not None:
            towers["transformers linear"] = linear
        for grids in [[grid] for grid in args.grid or []] + (args.pack or []):
            time_towers(args, dtype, grids, towers)
        del towers, linear


def read_pack(path):
    """Grids, one T,H,W a line, as `qwenvit bench tower --pack FILE` reads them."""
    grids = []
    with open(path, encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            if line.strip() and not line.startswith("#"):
                try:
                    grids.append(numbers(3)(line.strip()))
                except (ValueError, argparse.ArgumentTypeError) as error:
                    raise argparse.ArgumentTypeError(f"{path}:{number}: {error}") from None
    if not grids:
        raise argparse.ArgumentTypeError(f"{path}: has no grid")
    return grids


def time_towers(args, dtype, grids, towers):
    shipped = towers["transformers"]
    weight, config = shipped.patch_embed.proj.weight, shipped.config
    n = patches(grids)
    case = f"{os.path.basename(os.path.normpath(args.model))} {n} patches"
    if len(grids) > 1:
        case += " packed"
    work = tower_work(config, grids, weight.element_size())
    levels = torch.randint(0, 256, (n, weight[0].numel()), generator=torch.manual_seed(0))
    pixels = ((2 * levels - 255) / 255).to(weight.device, weight.dtype)
    grids = torch.tensor(grids, device=weight.device)

    for way, model in towers.items():
        run = lambda: model(pixels, grid_thw=grids)
        report(args, "tower", case, way, dtype, measure(args, run), *work, patches=n)
        with torch.no_grad():
            tokens = run().pooler_output
        if model is shipped:
            truth = tokens
        elif not common.mean_and_worst(tokens, truth)[1] < (1e-4 if dtype == "f32" else 0.1):
            raise SystemExit(f"{case}, {way}: its tokens are not those of the tower as shipped")
    if "transformers linear" not in towers:
        left_out(case, dtype, "transformers linear",
                 "this transformers has no linear patch embedding for this model")
    if not args.modes:
        return
    model = towers.get("transformers linear", shipped)
    found = time_compiled(args, case, dtype, BareTower(model, grids), pixels, truth)
    for block in model.blocks:
        del block.attn.forward  # the class's own again
    if found is None:
        left_out(case, dtype, "compiled torch", "no mode of torch.compile worked")
        return
    report(args, "tower", case, "compiled torch", dtype, found[0], *work, patches=n, mode=found[1])


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
                report(args, "patch-embed", case, way, dtype, measure(args, run, graph=True),
                       flops, moved, rows=rows)


# ---- conv3d ------------------------------------------------------------------------------------

TRIPLES = ("kernel", "stride", "dilation", "pad_front", "pad_back")
NUMBERS = ("n", "d", "h", "w", "c", "o", "groups", "bias", "merge", "residual_rows", "frames_equal")
NAMES = {"layout": ("channels_first", "channels_last", "patch_rows", "frames_u8"),
         "causal": ("none", "zeros", "first"), "act": ("none", "gelu_tanh", "gelu_erf"),
         "dtype": ("auto", "f32", "bf16")}
IGNORED = ("alpha", "pixel_scale", "pixel_shift")  # nothing that changes the convolution's time


def parse_shape(line, where):
    """A shapes line as a dict with every default filled in, and its name and text."""
    name, colon, text = line.partition(":")
    text = text if colon else line
    d = dict(n=1, groups=1, bias=0, stride=(1, 1, 1), dilation=(1, 1, 1), pad_front=(0, 0, 0),
             pad_back=(0, 0, 0), layout="channels_first", causal="none", act="none", dtype="auto",
             merge=1, residual_rows=0, frames_equal=0)
    seen = set()
    for word in text.split():
        field, equals, value = word.partition("=")
        if not equals:
            raise SystemExit(f'{where}: "{word}" is not of the form field=value')
        if field in seen:
            raise SystemExit(f"{where}: {field} is given twice")
        seen.add(field)
        try:
            if field in TRIPLES:
                numbers = tuple(int(x) for x in value.split(","))
                if len(numbers) != 3:
                    raise ValueError
                d[field] = numbers
            elif field in NUMBERS:
                d[field] = int(value)
            elif field in NAMES:
                if value not in NAMES[field]:
                    raise ValueError
                d[field] = value
            elif field not in IGNORED:
                raise SystemExit(f'{where}: there is no field "{field}"')
        except ValueError:
            want = ("three numbers with commas between them" if field in TRIPLES else
                    "a number" if field in NUMBERS else "one of " + ", ".join(NAMES[field]))
            raise SystemExit(f"{where}: {field}={value} is not {want}") from None
    missing = [f for f in ("d", "h", "w", "c", "o", "kernel") if f not in d]
    if missing:
        raise SystemExit(f"{where}: {', '.join(missing)} must be given")
    if d["c"] % d["groups"] or d["o"] % d["groups"]:
        raise SystemExit(f"{where}: groups {d['groups']} must divide c {d['c']} and o {d['o']}")
    if d["causal"] != "none" and d["pad_back"][0]:
        raise SystemExit(f"{where}: causal padding has no pad_back on the depth axis")
    d["desc"] = " ".join(text.split())
    d["case"] = name.strip() if colon else d["desc"]
    return d


def read_shapes(path):
    with open(path, encoding="utf-8") as f:
        lines = [(i, line.strip()) for i, line in enumerate(f, 1)]
    return [parse_shape(line, f"{path}:{i}") for i, line in lines if line and line[0] != "#"]


def make_conv(d, x, weight, bias):
    """The call that a user of torch would write. Padding that conv3d cannot do (more on one side,
    the first frame again) is a copy before it, and is timed with it."""
    front, back, same = list(d["pad_front"]), list(d["pad_back"]), [0, 0, 0]
    first = front[0] if d["causal"] == "first" else 0
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


def make_conv_by_depth(d, x, weight, bias):
    """A 2D convolution for each depth tap, over all frames at once, and their sum; channels last.
    Padding in depth is a copy before it, and is timed with it."""
    front, back, same = list(d["pad_front"]), list(d["pad_back"]), [0, 0, 0]
    for axis in (1, 2):
        if front[axis] == back[axis]:
            same[axis], front[axis], back[axis] = front[axis], 0, 0
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
    torch.backends.cudnn.benchmark = True  # the rest runs as it is shipped, without
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
        except RuntimeError as error:  # no memory, or no kernel for it
            left_out(d["case"], dtype, way, reason(error))
            continue
        report(args, "conv3d", d["case"], way, dtype, times, flops, moved, desc=d["desc"])


# ---- the command -------------------------------------------------------------------------------

def numbers(count=None):
    def parse(text):
        try:
            values = [int(x) for x in text.split(",")]
        except ValueError:
            values = []
        if not values or min(values) < 1 or count and len(values) != count:
            raise argparse.ArgumentTypeError(f"{text}: {count or 'some'} numbers from 1 up")
        return values
    return parse


def dtypes(text):
    values = text.split(",")
    if not set(values) <= {"f32", "bf16"}:
        raise argparse.ArgumentTypeError(f"{text}: f32, bf16 or both with a comma")
    return values


def main():
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--dtype", type=dtypes, default=["bf16", "f32"], metavar="LIST",
                        help="default: bf16,f32")
    shared.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    shared.add_argument("--threads", type=int, metavar="N", default=len(os.sched_getaffinity(0))
                        if hasattr(os, "sched_getaffinity") else os.cpu_count(),
                        help="default: every core")
    shared.add_argument("--repeats", type=int, default=7, metavar="N", help="timed runs (7)")
    shared.add_argument("--warmup", type=int, default=2, metavar="N", help="runs before (2)")
    shared.add_argument("--limit-s", type=float, default=60, metavar="S",
                        help="no more repeats of one way after S seconds (60); a warm-up and three runs at least")
    shared.add_argument("--json", metavar="FILE", help="append the records to FILE")

    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    benches = parser.add_subparsers(dest="bench", required=True)
    tower = benches.add_parser("tower", parents=[shared], help="transformers, and torch.compile")
    tower.add_argument("--model", required=True, metavar="DIR", help="checkpoint folder")
    tower.add_argument("--grid", type=numbers(3), action="append", metavar="T,H,W",
                       help="frame pairs, patch rows, patch columns (1,20,38); repeatable")
    tower.add_argument("--pack", type=read_pack, action="append", metavar="FILE",
                       help="items encoded together, a line T,H,W each; repeatable")
    tower.add_argument("--modes", metavar="LIST",
                       help='of torch.compile, the best is reported; "" for none (cpu: default,'
                            "freezing,max-autotune; cuda: reduce-overhead,"
                            "max-autotune-no-cudagraphs)")
    tower.set_defaults(run=bench_tower)
    embed = benches.add_parser("patch-embed", parents=[shared],
                               help="torch's Conv3d and its matrix product")
    embed.add_argument("--model", required=True, metavar="DIR", help="checkpoint folder")
    embed.add_argument("--rows", type=numbers(), default=[760], metavar="N,N", help="(760)")
    embed.set_defaults(run=bench_patch_embed)
    conv = benches.add_parser("conv3d", parents=[shared], help="torch's Conv3d on given shapes")
    conv.add_argument("--shapes", required=True, metavar="FILE",
                      help="lines of `name: d=4 h=30 w=52 c=96 o=96 kernel=3,3,3 ..`")
    conv.set_defaults(run=bench_conv3d)

    args = parser.parse_args()
    if args.bench == "tower":
        if not args.grid and not args.pack:
            args.grid = [[1, 20, 38]]
        usual = ("default,freezing,max-autotune" if args.device == "cpu"
                 else "reduce-overhead,max-autotune-no-cudagraphs")
        args.modes = [m for m in (usual if args.modes is None else args.modes).split(",") if m]
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("--device cuda: torch finds no CUDA device here")
    torch.set_num_threads(args.threads)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    args.run(args)


if __name__ == "__main__":
    main()
