# SPDX-License-Identifier: MIT
"""Times a list of clips, from files to files of tokens: `qwenvit cache fill`, and transformers with torchcodec."""
import collections
import concurrent.futures
import itertools
import json
import os
import subprocess
import tempfile
import threading
import time

# first, as common must be imported before torch
from torch_times import common, device_name, isa, left_out, machine, measure, reason, report
from towers import linear_tower, tower_work
import safetensors.torch
import torch

# way -> --decode
OUR_WAYS = {"cache fill": "auto", "cache fill, decoded on cpu": "cpu"}
# way -> the devices that decode and that resize
WAYS = {"transformers torchcodec": ("cpu", "cpu"),
        "transformers torchcodec, resized on cuda": ("cpu", "cuda"),
        "transformers torchcodec, decoded on cuda": ("cuda", "cuda")}
AHEAD = 2  # clips per worker that are prepared before the tower takes them
SAVERS = 4  # threads that write files
MOST_AT_ONCE = 32  # clips per call of the tower
MOST_DISTANCE = 0.1  # of the first clip's tokens from qwenvit's, on average; a GPU's decoders may give other colours


class Clips(torch.utils.data.Dataset):
    """Clip i as (pixel_values in the tower's dtype, grid), or as (frames,) if another process resizes them."""

    def __init__(self, args, paths, decodes, resizes):
        self.paths, self.decodes, self.whole = paths, decodes, decodes == resizes
        self.dtype = common.DTYPES[args.dtype[0]]
        self.processor = common.video_processor(args.model)
        self.size = common.clip_size(self.processor, max_pixels=args.max_pixels)

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        frames = self.frames(self.paths[i])
        return self.pixels(frames) if self.whole else (frames,)

    def decoder(self, path):
        from torchcodec.decoders import VideoDecoder
        return VideoDecoder(path, device=self.decodes)  # with one thread, as every worker has one

    def frames(self, path):
        """Returns the frames that transformers samples, decoded as its read_video_torchcodec does."""
        from transformers.video_utils import VideoMetadata
        decoder = self.decoder(path)
        facts = VideoMetadata(total_num_frames=decoder.metadata.num_frames, fps=decoder.metadata.average_fps)
        frames = decoder.get_frames_at(self.processor.sample_frames(facts).tolist()).data
        if self.decodes == "cuda" and decoder.cpu_fallback:
            raise ValueError(str(decoder.cpu_fallback))
        return frames

    def pixels(self, frames):
        """Returns (pixel_values, grid), made on the frames' device."""
        out = self.processor(videos=[frames], do_sample_frames=False, return_tensors="pt", size=self.size,
                             cap_pixels_per_frame=False)
        return out["pixel_values_videos"].to(self.dtype), out["video_grid_thw"].reshape(1, 3)


# ---- transformers ------------------------------------------------------------------------------

def from_processes(args, clips):
    """Yields (pixel_values on the device, grid) of each clip. Worker processes decode, and resize if the CPU does."""
    cuda = args.device == "cuda"
    for item in torch.utils.data.DataLoader(clips, batch_size=None, num_workers=args.workers,
                                            prefetch_factor=AHEAD, pin_memory=cuda):
        first = item[0].to(args.device, non_blocking=True)
        yield (first, item[1]) if clips.whole else clips.pixels(first)


def from_threads(args, clips):
    """The same from threads, as the GPU decodes: torchcodec and torch release Python's lock."""
    own, rest = threading.local(), iter(range(len(clips)))

    def prepare(i):
        if not hasattr(own, "stream"):
            own.stream = torch.cuda.Stream()
        with torch.cuda.stream(own.stream), torch.no_grad():
            made = clips[i]
        own.stream.synchronize()
        return made

    with concurrent.futures.ThreadPoolExecutor(args.workers) as pool:
        begun = collections.deque(pool.submit(prepare, i) for i in itertools.islice(rest, AHEAD * args.workers))
        while begun:
            pixels, grid = begun.popleft().result()
            begun.extend(pool.submit(prepare, i) for i in itertools.islice(rest, 1))
            pixels.record_stream(torch.cuda.current_stream())
            yield pixels, grid


def save(tensors, path, copied):
    if copied:
        copied.synchronize()
    safetensors.torch.save_file(tensors, path)


@torch.no_grad()
def encode(args, model, at_once, clips, folder):
    """Writes a file per clip, in the order of the list. While the tower computes, others prepare and write."""
    source = (from_threads if clips.decodes == "cuda" else from_processes)(args, clips)
    area, numbers, saved = model.spatial_merge_size ** 2, itertools.count(), collections.deque()
    with concurrent.futures.ThreadPoolExecutor(SAVERS) as pool:
        while batch := list(itertools.islice(source, at_once)):
            pixels, grids = (torch.cat(x) for x in zip(*batch))
            out = model(pixels, grid_thw=grids.to(args.device))
            tensors = {"tokens": out.pooler_output}
            for i, x in enumerate(getattr(out, "deepstack_features", None) or []):
                tensors[f"deepstack.{i}"] = x
            lengths = (grids.prod(1) // area).tolist()
            parts = [dict(zip(tensors, x)) for x in zip(*(x.split(lengths) for x in tensors.values()))]
            parts = [{name: x.to("cpu", non_blocking=True) for name, x in part.items()} for part in parts]
            copied = torch.cuda.Event() if args.device == "cuda" else None
            if copied:
                copied.record()
            for part in parts:
                path = os.path.join(folder, f"{next(numbers)}.safetensors")
                saved.append(pool.submit(save, part, path, copied))
            while len(saved) > 2 * max(SAVERS, at_once):
                saved.popleft().result()
        for job in saved:
            job.result()


def fastest_call(args, pixels, grid):
    """Returns (tower, clips per call, a description of both): of the tower as shipped and with its linear patch
    embedding the faster, with twice as many clips per call as long as that saves more than 2%."""
    shipped = common.load_tower(args.model, args.dtype[0], device=args.device)
    pixels, grid = pixels.to(args.device), grid.to(args.device)
    best = float("inf"), None
    for name, model in (("as shipped", shipped), ("linear patch embedding", linear_tower(args.model, shipped))):
        n, before = 1, float("inf")
        while model and n <= MOST_AT_ONCE:
            x, grids = pixels.repeat(n, 1), grid.repeat(n, 1)
            per_clip = measure(args, lambda: model(x, grid_thw=grids))["median_ms"] / n
            words = f"{name}, {n} clips per call"
            print(f"  transformers' tower, {words}: {per_clip:.2f} ms per clip", flush=True)
            best = min(best, (per_clip, (model, n, words)), key=lambda found: found[0])
            if per_clip > 0.98 * before:
                break
            n, before = 2 * n, per_clip
    return best[1]


# ---- all ways ----------------------------------------------------------------------------------

def in_folder_ms(args, run):
    """Calls run(an empty folder), which returns seconds; removing the folder is not timed."""
    with tempfile.TemporaryDirectory(dir=args.work) as folder:
        return 1e3 * run(folder)


def fill_ours(args, paths, decode, kept):
    """Returns the times of the whole command and its last summary. The first clip's tokens go into the file `kept`."""
    last = {}

    def run(folder):
        cache, summaries = os.path.join(folder, "cache"), os.path.join(folder, "fill.jsonl")
        began = time.perf_counter()
        subprocess.run([args.qwenvit, "cache", "fill", "--list", args.list, "--model", args.model, "-o", cache,
                        "--backend", args.device, "--dtype", args.dtype[0], "--tokens", args.dtype[0],
                        "--decode", decode, "--quiet", f"--json={summaries}",
                        *(["--max-pixels", str(args.max_pixels)] if args.max_pixels else [])],
                       check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - began
        with open(summaries, encoding="utf-8") as f:
            last.update(json.loads(f.readlines()[-1]))
        if last["done"] != len(paths):
            raise SystemExit(f"{args.list}: {last['done']} of {len(paths)} clips were done")
        if not os.path.exists(kept):
            subprocess.run([args.qwenvit, "cache", "get", cache, paths[0], "-o", kept], check=True)
        return seconds

    return measure(args, run, once_ms=in_folder_ms), last


def distance(path, kept):
    """Returns the mean distance of a clip's outputs from qwenvit's."""
    ours = safetensors.torch.load_file(kept)
    return max(common.mean_and_worst(x, ours[name])[0] for name, x in safetensors.torch.load_file(path).items())


def fill_theirs(args, clips, model, at_once, kept):
    """Returns the times from the first clip's decoding to the last file, without imports and loading, and the
    distance of the first clip's tokens. If these are wrong, raises ValueError."""
    found = []

    def run(folder):
        began = time.perf_counter()
        encode(args, model, at_once, clips, folder)
        seconds = time.perf_counter() - began
        found.append(distance(os.path.join(folder, "0.safetensors"), kept))
        return seconds

    times = measure(args, run, once_ms=in_folder_ms)
    if clips.decodes == "cpu" and not max(found) < MOST_DISTANCE:
        raise ValueError(f"wrong tokens: mean distance {max(found):.1e} from qwenvit's")
    return times, max(found)


def ffmpeg_version():
    from torchcodec._core import get_ffmpeg_library_versions
    return get_ffmpeg_library_versions()["ffmpeg_version"].split("-")[0]


def bench_cache_fill(args):
    import torchcodec
    with open(args.list, encoding="utf-8") as f:
        paths = [line.rstrip("\n") for line in f if line.strip()]
    first = Clips(args, paths, "cpu", "cpu")
    (pixels, grid), source = first[0], first.decoder(paths[0]).metadata
    model, at_once, setting = fastest_call(args, pixels, grid)

    t, h, w = grid[0].tolist()
    patch = model.config.patch_size
    facts = dict(clips=len(paths), codec=source.codec, seconds=round(source.duration_seconds, 2),
                 source=f"{source.width}x{source.height}", frames=t * model.config.temporal_patch_size,
                 frame=f"{w * patch}x{h * patch}", cores=args.threads)
    case = (f"{os.path.basename(os.path.normpath(args.model))} {facts['clips']} clips, {facts['codec']} "
            f"{facts['source']} {facts['seconds']:g} s, {facts['frames']} frames of {facts['frame']}")
    of = "cache fill", case, args.dtype[0]
    work = tower_work(model.config, len(paths) * grid.tolist(), pixels.element_size())

    with tempfile.TemporaryDirectory(dir=args.work) as folder:
        kept = os.path.join(folder, "kept.safetensors")
        for way, decode in OUR_WAYS.items():
            if args.device == "cuda" or decode == "auto":
                times, last = fill_ours(args, paths, decode, kept)
                report(args, of, way, times, work, **facts, job_ms=1e3 * last["job_s"], limit=last["limit"],
                       machine=dict(machine(args), backend=args.device, device=device_name(args) + isa(args)),
                       version=last["version"], commit=last["commit"])
        media = f", torchcodec {torchcodec.__version__.split('+')[0]}, FFmpeg {ffmpeg_version()}"
        for way, (decodes, resizes) in WAYS.items():
            if args.device == "cuda" or resizes == "cpu":
                try:
                    times, far = fill_theirs(args, Clips(args, paths, decodes, resizes), model, at_once, kept)
                except (ImportError, RuntimeError, ValueError) as error:
                    left_out(*of[1:], way, reason(error))
                    continue
                report(args, of, way, times, work, **facts, setting=setting, distance=far, machine=machine(args, media))
