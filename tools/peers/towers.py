# SPDX-License-Identifier: MIT
"""transformers' tower: as shipped, with its linear patch embedding, and compiled by torch."""
import contextlib
import copy
import functools
import importlib
import io
import itertools
import os
import time

# first, as common must be imported before torch
from torch_times import common, left_out, measure, reason, report
import torch
import torch.nn.functional as F


@functools.cache
def linear_skeleton(folder):
    """Returns the tower with transformers' own opt-in linear patch embedding, which is
    from_pretrained(..., fusion_config={"patch_embeddings": True}), without values. None if the
    installed version has no such switch for this model. A process may set the switch only once."""
    try:
        from transformers.fusion_mapping import register_fusion_patches
        from transformers.monkey_patching import clear_patch_mapping
    except ImportError:
        return None
    model_class, config = common.vision_classes(folder)
    register_fusion_patches(model_class, config, {"patch_embeddings": True})
    with torch.device("meta"):
        model = model_class._from_config(config, attn_implementation="sdpa")
    clear_patch_mapping()  # otherwise later towers would have it too
    return model if hasattr(model.patch_embed, "linear_proj") else None


def linear_tower(folder, shipped):
    """Returns linear_skeleton's tower, which shares its weights with `shipped`, or None."""
    model = copy.deepcopy(linear_skeleton(folder))
    if model is None:
        return None
    weight = shipped.patch_embed.proj.weight
    state = {k.replace("patch_embed.proj.", "patch_embed.linear_proj."): v
             for k, v in shipped.state_dict().items()}
    state["patch_embed.linear_proj.weight"] = weight.detach().reshape(weight.shape[0], -1)
    model.to(weight.dtype).load_state_dict(state, strict=True, assign=True)
    model.rotary_pos_emb = shipped.rotary_pos_emb
    return model.eval()


def segment_attention(attention, rotate, segments):
    """Attention over all segments at once, where transformers loops over them. Equal segments form
    a batch; unequal ones use torch's variable-length kernel. `segments` has their lengths."""
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
    """transformers' layers for given grids, written for the compiler: everything that depends only on the
    grids is computed in advance, and nothing breaks the graph."""

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
        """Returns the indices of rows in window order, those that put tokens back, and the lengths
        of windows."""
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
    """Applies a mode's settings while it is compiled and run."""
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
    """Must be called within the mode's compiler_setting, the first time and every later time."""
    return torch.compile(bare, fullgraph=True, dynamic=False,
                         mode="default" if mode == "freezing" else mode)


def time_compiled(args, case, dtype, bare, pixels, truth):
    """Returns (times, mode) of the best of the compiler's modes; None if none works."""
    best = None
    for mode in args.modes:
        try:
            torch._dynamo.reset()
            began = time.perf_counter()
            run = compiled(bare, mode)
            with compiler_setting(args, mode), torch.no_grad():  # a mode without graphs gets ours
                with contextlib.redirect_stderr(io.StringIO()):  # the search's statistics
                    tokens = run(pixels)[0]
                compiled_s = time.perf_counter() - began
                worst = common.mean_and_worst(tokens, truth)[1]
                if not worst < (1e-4 if dtype == "f32" else 0.1):
                    raise ValueError(f"wrong tokens: worst distance {worst:.1e}")
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
    """Returns the sum over the blocks of the squared rows of segments, which are frame pairs or
    windows."""
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
    """Returns (flops, bytes) of a tower. bytes are weights, pixels and tokens, each once."""
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
        report(args, ("tower", case, dtype), way, measure(args, run), work, patches=n)
        with torch.no_grad():
            tokens = run().pooler_output
        if model is shipped:
            truth = tokens
        elif not common.mean_and_worst(tokens, truth)[1] < (1e-4 if dtype == "f32" else 0.1):
            raise SystemExit(f"{case}, {way}: the tokens differ from those of the tower as shipped")
    if "transformers linear" not in towers:
        left_out(case, dtype, "transformers linear",
                 "this transformers has no linear patch embedding for this model")
    if not args.modes:
        return
    model = towers.get("transformers linear", shipped)
    found = time_compiled(args, case, dtype, BareTower(model, grids), pixels, truth)
    for block in model.blocks:
        del block.attn.forward  # the class's own attention again
    if found is None:
        left_out(case, dtype, "compiled torch", "no mode of torch.compile worked")
        return
    report(args, ("tower", case, dtype), "compiled torch", found[0], work, patches=n, mode=found[1])
