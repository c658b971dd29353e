# SPDX-License-Identifier: MIT
"""A plugin for vLLM that registers the video loader "qwenvit" (docs/engines.md). Clips are decoded in the locked
process; only the sampled frames are returned, already at the size that vLLM's processor would give them.

vLLM loads this module in all of its processes; neither vLLM nor transformers is imported before the loader is used."""

from __future__ import annotations

import functools
from typing import Any

from .. import _core, _decoder, _transformers
from .._arrays import to_numpy
from .._error import error
from .engines import VLLM, check_version

LOADERS = ("qwen3_vl", "qwen2_vl")  # vLLM's own, whose sampling this loader reproduces
NOT_RESIZED = {"min_pixels": 1, "max_pixels": 1 << 40}  # with patches of one pixel


def register() -> None:
    """Adds the loader. It is used where --media-io-kwargs names it."""
    from vllm.multimodal.video import VIDEO_LOADER_REGISTRY

    VIDEO_LOADER_REGISTRY.register("qwenvit")(Loader)


@functools.lru_cache
def _processor_of(model: str) -> tuple[Any, Any]:
    """Returns the checkpoint's video processor, and vLLM's loader for its class."""
    from vllm.multimodal.video import VIDEO_LOADER_REGISTRY

    processor = _transformers.video_processor_of(model)
    name = type(processor).__name__
    loader = VIDEO_LOADER_REGISTRY.get_backend_for_video_processor(name)
    if loader not in LOADERS:
        raise error("QV_EUNSUPPORTED", f"model {model!r}: unknown video processor {name}; the known ones are those of Qwen2-VL to Qwen3.5")
    return processor, VIDEO_LOADER_REGISTRY.load(loader)


class Loader:
    """The loader that vLLM calls for a clip. model: the checkpoint, as vLLM knows it. resize: False returns frames in
    full size, which a size option of --mm-processor-kwargs or of a request needs. threads: for decoding; 0: every
    core. All other arguments, such as fps, min_frames and max_frames, are passed to vLLM's sampling function."""

    def __init__(self) -> None:
        check_version(*VLLM, None)

    def load_bytes(
        self, data: bytes, num_frames: int = -1, *, model: str | None = None, resize: bool = True, threads: int = 0,
        fps: float = 2, max_duration: float = 300, frame_recovery: bool = False, **sampling: Any,
    ) -> tuple[Any, dict[str, Any]]:
        from vllm.multimodal.video_decoders import VideoSourceMetadata, VideoTargetMetadata, check_frame_pixel_limit

        if not isinstance(model, str):
            raise error("QV_EINVAL", 'the video loader "qwenvit" needs the checkpoint as "model", next to "video_backend"')
        processor, loader = _processor_of(model)
        options = {"fps": fps, "threads": threads, **{k: v for k, v in sampling.items() if k in ("min_frames", "max_frames")}}
        size = processor.size
        sizes = {"min_pixels": size["shortest_edge"], "max_pixels": size["longest_edge"]}
        if getattr(processor, "cap_pixels_per_frame", None):
            sizes["cap_pixels"] = True
        sizes = sizes if resize else NOT_RESIZED
        for _ in range(3):  # at most: again for a different number of frames, and again for a different size
            frames = _read(data, processor, sizes, options)
            total, rate, header, width, height = frames.source()
            check_frame_pixel_limit(width, height)
            header = header or rate  # vLLM samples by this rate
            source = loader._prepare_source(VideoSourceMetadata(total, header, total / header))
            target = VideoTargetMetadata(num_frames, fps, max_duration)
            wanted = loader.compute_frames_index_to_sample(source, target, **sampling)
            found = [round(seconds * rate) for seconds in frames.timestamps]
            if len(wanted) != len(found):
                options = {"num_frames": len(wanted), "threads": threads}
            elif resize and not _transformers.stays(to_numpy(frames.array()).shape, processor):
                sizes, resize = NOT_RESIZED, False
            else:
                break
        if wanted != found:
            raise error("QV_EUNSUPPORTED", f"vLLM samples the frames {wanted} of {total}, but qwenvit samples {found}")
        about = loader.create_hf_metadata(source=source, video_backend="qwenvit", valid_frame_indices=found)
        return to_numpy(frames.array()), {**about, "do_sample_frames": False}


def _read(data: bytes, processor: Any, sizes: dict[str, Any], options: dict[str, Any]) -> Any:
    patch, merge = (1, 1) if sizes is NOT_RESIZED else (processor.patch_size, processor.merge_size)
    frames = _core.read_frames(
        _decoder.start(), data, _transformers.counts_all(processor), patch, processor.temporal_patch_size, merge, {**sizes, **options}
    )
    if frames.is_image:
        raise error("QV_EINVAL", "this is an image; a clip is needed")
    return frames
