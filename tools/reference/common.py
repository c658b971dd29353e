# SPDX-License-Identifier: MIT
"""Code that the reference tools share: transformers' vision tower alone, its processors, and distances."""
import importlib
import json
import os
import platform

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import numpy as np
import torch
from safetensors import safe_open

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f64": torch.float64}

# model_type in config.json, and the module of transformers with the classes of its tower and config
FAMILIES = {
    "qwen2_vl": ("Qwen2VisionTransformerPretrainedModel", "Qwen2VLVisionConfig"),
    "qwen2_5_vl": ("Qwen2_5_VisionTransformerPretrainedModel", "Qwen2_5_VLVisionConfig"),
    "qwen2_5_omni": ("Qwen2_5OmniVisionEncoder", "Qwen2_5OmniVisionEncoderConfig"),
    "exaone4_5": ("Exaone4_5_VisionModel", "Exaone4_5_VisionConfig"),
    "qwen3_vl": ("Qwen3VLVisionModel", "Qwen3VLVisionConfig"),
    "qwen3_vl_moe": ("Qwen3VLMoeVisionModel", "Qwen3VLMoeVisionConfig"),
    "cohere_compass": ("CohereCompassVisionModel", "CohereCompassVisionConfig"),
    "qwen3_omni_moe": ("Qwen3OmniMoeVisionEncoder", "Qwen3OmniMoeVisionEncoderConfig"),
    "qwen3_5": ("Qwen3_5VisionModel", "Qwen3_5VisionConfig"),
    "qwen3_5_moe": ("Qwen3_5MoeVisionModel", "Qwen3_5MoeVisionConfig"),
    "qwen4_exp": ("Qwen4ExpVisionModel", "Qwen4ExpVisionConfig"),
    "glm4v": ("Glm4vVisionModel", "Glm4vVisionConfig"),
    "glm4v_moe": ("Glm4vMoeVisionModel", "Glm4vMoeVisionConfig"),
}
PREFIXES = ("model.visual.", "visual.", "thinker.visual.")


# ---- checkpoints ---------------------------------------------------------------------------------

def read_json(*parts):
    with open(os.path.join(*parts), encoding="utf-8") as f:
        return json.load(f)


def weight_files(folder):
    """Returns the safetensors files of a checkpoint: one file, or shards."""
    index = os.path.join(folder, "model.safetensors.index.json")
    if os.path.exists(index):
        names = sorted(set(read_json(index)["weight_map"].values()))
    else:
        names = ["model.safetensors"]
    return [os.path.join(folder, name) for name in names]


def read_weights(folder, config):
    """Returns the tower's tensors as stored, with the names of transformers' module and the Conv3d
    weight in 5D."""
    weights = {}
    for path in weight_files(folder):
        with safe_open(path, framework="pt") as f:
            for key in f.keys():
                prefix = next((p for p in PREFIXES if key.startswith(p)), None)
                if prefix:
                    name = key[len(prefix):].replace("linear_proj", "proj")
                    weights[name] = f.get_tensor(key)
    if not weights:
        raise SystemExit(f"{folder}: no tensor's name begins with one of {PREFIXES}")
    t, p, c = config.temporal_patch_size, config.patch_size, config.in_channels
    w = weights["patch_embed.proj.weight"]
    if w.ndim == 5 and tuple(w.shape[1:]) == (t, p, p, c) != (c, t, p, p):  # channels last
        w = w.permute(0, 4, 1, 2, 3)
    weights["patch_embed.proj.weight"] = w.reshape(-1, c, t, p, p).contiguous()
    return weights


def vision_classes(folder):
    """Returns (model class, vision config) of a checkpoint folder."""
    config = read_json(folder, "config.json")
    family = config["model_type"]
    if family not in FAMILIES:
        raise SystemExit(f"{folder}/config.json: unknown model_type {family!r}; it must be one of {list(FAMILIES)}")
    model_name, config_name = FAMILIES[family]
    models = "transformers.models." + family
    modeling = importlib.import_module(f"{models}.modeling_{family}")
    configuration = importlib.import_module(f"{models}.configuration_{family}")
    vision = config.get("thinker_config", config)["vision_config"]
    values = {k: v for k, v in vision.items() if k not in ("model_type", "dtype")}
    if family.startswith(("qwen3_5", "qwen4")):
        if values.pop("deepstack_visual_indexes", None):
            raise SystemExit(f"{folder}/config.json: transformers has no DeepStack for {family}")
    return getattr(modeling, model_name), getattr(configuration, config_name)(**values)


def load_tower(folder, dtype="f32", attention="sdpa", round_weights=False, device="cpu"):
    """Returns transformers' vision tower with the folder's weights. round_weights: round them
    through bf16 first.

    As from `from_pretrained`: parameters in `dtype`, inv_freq in f32. (.to(bfloat16) on the whole
    module would round inv_freq too.)
    """
    if dtype == "f64" and attention != "sdpa":
        raise SystemExit("f64 needs sdpa, because transformers' eager attention computes its softmax in f32")
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    model_class, config = vision_classes(folder)
    weights = read_weights(folder, config)
    torch_dtype = DTYPES[dtype]
    with torch.device("meta"):  # takes no memory, and skips random initialisation
        model = model_class._from_config(config, dtype=torch_dtype, attn_implementation=attention)
    if round_weights:
        weights = {k: v.bfloat16() for k, v in weights.items()}
    model.load_state_dict({k: v.to(torch_dtype, copy=True) for k, v in weights.items()},
                          strict=True, assign=True)
    model.rotary_pos_emb = type(model.rotary_pos_emb)(model.config)
    assert model.rotary_pos_emb.inv_freq.dtype == torch.float32
    if dtype == "f64":
        use_doubles(model)
    return model.eval().to(device)


def width_of(config):
    """Returns the columns of the tower's rows. Trap: Qwen2-VL's hidden_size is the language
    model's."""
    return getattr(config, "embed_dim", config.hidden_size)


def use_doubles(model):
    """Computes rotary embeddings in f64 throughout; transformers itself computes angles and
    rotation in f32."""
    modeling = importlib.import_module(type(model).__module__)
    head_dim = width_of(model.config) // model.config.num_heads
    theta = model.config.rope_parameters["rope_theta"]
    inv_freq = theta ** -(torch.arange(0, head_dim // 2, 2, dtype=torch.float64) / (head_dim // 2))

    def angles(_, position_ids):
        angle = position_ids[..., None].double() * inv_freq.to(position_ids.device)
        angle = angle.flatten(1)  # [n, h-block | w-block]
        angle = torch.cat([angle, angle], -1)
        return angle.cos(), angle.sin()

    single = modeling.apply_rotary_pos_emb_vision

    def rotate(q, k, cos, sin):
        if q.dtype != torch.float64:
            return single(q, k, cos, sin)
        cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
        half = modeling.rotate_half
        return q * cos + half(q) * sin, k * cos + half(k) * sin

    model.rotary_pos_emb.forward = angles
    modeling.apply_rotary_pos_emb_vision = rotate


def position_interpolation(grids, side, merge):
    """Returns transformers' bilinear taps (align_corners) into the position table, with weights in
    f64."""
    all_taps, all_weights = [], []
    for t, h, w in grids.tolist():
        axis = []
        for n in (h, w):
            at = torch.arange(n, dtype=torch.float64) * (side - 1) / max(n - 1, 1)
            low = at.floor()
            axis.append((torch.stack([low, (low + 1).clamp(max=side - 1)], 1).long(),
                         torch.stack([1 - (at - low), at - low], 1)))
        (th, wh), (tw, ww) = axis
        taps = th[:, None, :, None] * side + tw[None, :, None, :]
        weights = wh[:, None, :, None] * ww[None, :, None, :]
        for x, out in ((taps, all_taps), (weights, all_weights)):
            x = x.reshape(h // merge, merge, w // merge, merge, 4).transpose(1, 2)
            out.append(x.reshape(-1, 4).repeat(t, 1))
    return torch.cat(all_taps), torch.cat(all_weights)


def one_pair_each(grids):
    """Counts a clip's frame pairs as images, as GLM's model does for its positions."""
    return torch.cat([torch.tensor([[1, h, w]]).repeat(t, 1) for t, h, w in grids.tolist()])


# ---- running -------------------------------------------------------------------------------------

@torch.no_grad()
def run_tower(model, pixel_values, grids):
    """Returns every layer's output in the tower's dtype, by the names that checkpoints use.
    "patch_embed" is the input of the first block, so it includes the position embedding. GLM has a
    norm between the two; its input to the first block is called "embeddings"."""
    layers, handles = {}, []

    def keep(name, tensor):
        layers[name] = tensor.detach().cpu().clone()

    def watch(module, name):
        handles.append(module.register_forward_hook(lambda m, a, out, n=name: keep(n, out)))

    glm = hasattr(model, "downsample")
    handles.append(model.blocks[0].register_forward_pre_hook(
        lambda m, args: keep("embeddings" if glm else "patch_embed", args[0])))
    if glm:
        watch(model.patch_embed, "patch_embed")
        handles.append(model.downsample.register_forward_hook(
            lambda m, args, out: keep("downsample", out.flatten(1))))
        grids = one_pair_each(grids)
    for i, block in enumerate(model.blocks):
        watch(block, f"blocks.{i}")
    for i, merger in enumerate(getattr(model, "deepstack_merger_list", [])):
        watch(merger, f"deepstack_merger_list.{i}")
    extra = {}
    dtype, device = model.patch_embed.proj.weight.dtype, model.patch_embed.proj.weight.device
    if dtype == torch.float64 and hasattr(model, "num_grid_per_side"):
        extra["interp_indices"], extra["interp_weights"] = position_interpolation(
            grids, model.num_grid_per_side, model.config.spatial_merge_size)
        extra = {name: x.to(device) for name, x in extra.items()}
    try:
        out = model(pixel_values.to(device, dtype), grid_thw=grids.to(device), **extra)
        # with windows, the merger's own rows are still in window order
        keep("merger", out.pooler_output)
    finally:
        for handle in handles:
            handle.remove()
    return layers


def output_names(layers):
    """Returns the tower's outputs: tokens, then DeepStack's outputs."""
    return ["merger"] + sorted(n for n in layers if n.startswith("deepstack_merger_list."))


# ---- pixels --------------------------------------------------------------------------------------

def is_glm(folder):
    return read_json(folder, "config.json")["model_type"].startswith("glm4v")


def image_values(folder, name="preprocessor_config.json"):
    """Returns the settings of the processor for images, or for clips."""
    values = read_json(folder, name)
    return {k: v for k, v in values.items() if k not in ("image_processor_type", "video_processor_type")}


def video_values(folder):
    own = "video_preprocessor_config.json"  # older checkpoints have one file for images and clips
    return image_values(folder, *[own] * os.path.exists(os.path.join(folder, own)))


def video_processor(folder):
    from transformers.models.glm4v.video_processing_glm4v import Glm4vVideoProcessor
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
    return (Glm4vVideoProcessor if is_glm(folder) else Qwen3VLVideoProcessor)(**video_values(folder))


def clip_size(processor, min_pixels=None, max_pixels=None):
    size = dict(processor.size)
    return {"shortest_edge": min_pixels or size["shortest_edge"],
            "longest_edge": max_pixels or size["longest_edge"]}


def count_frames(path):
    import av
    with av.open(path) as container:
        return sum(1 for _ in container.decode(video=0))


def quarter_turns(path):
    """Returns the display rotation of a clip, in quarter turns counterclockwise."""
    import av
    with av.open(path) as container:
        frame = next(container.decode(video=0))
        return round(getattr(frame, "rotation", 0) / 90) % 4


def clip_frames(processor, path, num_frames=None, fps=None):
    """Returns (frames uint8 [n, H, W, 3], seconds of each), decoded by PyAV and sampled by
    transformers.

    Like qwenvit and unlike transformers, it counts frames if the container does not give their
    number, returns a frame that is sampled twice twice (the PyAV reader returns it once), applies
    the display rotation, and pairs a single frame with itself.
    """
    from transformers.video_utils import load_video

    def sample(metadata, **_):
        if metadata.total_num_frames < 1:
            metadata.total_num_frames = count_frames(path)
        return processor.sample_frames(metadata, num_frames=num_frames, fps=fps)

    frames, metadata = load_video(path, backend="pyav", sample_indices_fn=sample)
    order = np.unique(metadata.frames_indices, return_inverse=True)[1]
    order = order[order < len(frames)]  # a damaged clip may have fewer frames than its header says
    frames, seconds = frames[order], list(metadata.timestamps)[:len(order)]
    frames = np.ascontiguousarray(np.rot90(frames, quarter_turns(path), axes=(1, 2)))
    if len(frames) == 1:
        frames, seconds = np.repeat(frames, 2, axis=0), seconds * 2
    return frames, seconds


def clip_pixels(folder, path, num_frames=None, fps=None, min_pixels=None, max_pixels=None,
                cap_pixels=False):
    """Returns (pixel_values, grid_thw, seconds of each sampled frame), resized and cut into rows by
    transformers."""
    processor = video_processor(folder)
    frames, seconds = clip_frames(processor, path, num_frames, fps)
    cap = {} if is_glm(folder) else dict(cap_pixels_per_frame=cap_pixels)
    out = processor(videos=[frames], do_sample_frames=False, return_tensors="pt",
                    size=clip_size(processor, min_pixels, max_pixels), **cap)
    return (out["pixel_values_videos"], out["video_grid_thw"].reshape(-1, 3),
            torch.tensor(seconds, dtype=torch.float64))


def image_pixels(folder, path, min_pixels=None, max_pixels=None):
    """Returns (pixel_values, grid_thw) of one image, by the family's image processor."""
    from PIL import Image
    from transformers.models.glm4v.image_processing_glm4v import Glm4vImageProcessor
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
    processor = (Glm4vImageProcessor if is_glm(folder) else Qwen2VLImageProcessor)(**image_values(folder))
    out = processor(images=[Image.open(path).convert("RGB")], return_tensors="pt",
                    size=clip_size(processor, min_pixels, max_pixels))
    return out["pixel_values"], out["image_grid_thw"].reshape(-1, 3)


def add_sampling(parser):
    """Adds the options that clip_pixels and image_pixels take; images ignore the first two."""
    parser.add_argument("--num-frames", type=int, metavar="N")
    parser.add_argument("--fps", type=float)
    parser.add_argument("--min-pixels", type=int, metavar="N")
    parser.add_argument("--max-pixels", type=int, metavar="N")
    parser.add_argument("--cap-pixels", action="store_true")
    parser.add_argument("--device", default="cpu", help="the device for transformers: cpu or cuda")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads for transformers")


# ---- distances -----------------------------------------------------------------------------------

def row_distances(x, truth):
    """Returns |x - truth| / |truth| of each row, in f64."""
    x, truth = x.double(), truth.double()
    if x.shape != truth.shape:
        raise ValueError(f"shape {list(x.shape)} instead of {list(truth.shape)}")
    return (x - truth).norm(dim=-1) / truth.norm(dim=-1)


def mean_and_worst(x, truth):
    """Returns mean and worst of the rows' distances. A NaN anywhere makes both NaN."""
    d = row_distances(x, truth)
    return float(d.mean()), float("nan") if bool(d.isnan().any()) else float(d.max())


def worst_cosine(x, truth):
    x, truth = x.double(), truth.double()
    c = (x * truth).sum(-1) / (x.norm(dim=-1) * truth.norm(dim=-1))
    return float("nan") if bool(c.isnan().any()) else float(c.min())


# ---- the machine -----------------------------------------------------------------------------------

def cpu_name():
    """Returns the CPU's name, as Linux reports it."""
    info = ""
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            info = f.read()
    names = [x.split(":", 1)[1].strip() for x in info.split("\n") if x.startswith("model name")]
    return (names or [platform.processor() or platform.machine()])[0]
