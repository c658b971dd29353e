# SPDX-License-Identifier: MIT
"""For people who serve or generate with vLLM, SGLang or transformers, which accept precomputed
tokens (docs/engines.md).

All use one layout: rows [n, out_hidden * (1 + deepstack)], in which DeepStack's outputs follow the
merger's output, one item after another; grid_thw is before merging. The functions accept one result
or several, Tokens or a Cache's Entries; both have the functions as methods.
"""

from __future__ import annotations

import glob
import json
import os
import warnings
from typing import Any

from .. import _check
from .._check import Path
from .._error import error
from .._files import DTYPES, header, whole
from .._transformers import find_tower, output_of
from .items import FAMILIES, NO_SECONDS, PADS, Item, as_list, items_of, wrong

# the oldest release with a known interface, and the newest tested one
VLLM, SGLANG = ("vllm", (0, 33), (0, 33)), ("sglang", (0, 5), (0, 5))
EC_FILE = "encoder_cache.safetensors"  # an item's file, as ECExampleConnector reads it
HAVE_DEEPSTACK = {"qwen3_vl", "qwen3_vl_moe", "qwen3_omni_moe", "cohere_compass"}


def to_vllm(
    results: Any, *, embeddings: bool = True, is_image: bool | None = None, timestamps: Any = None,
    second_per_grid_ts: Any = None, version: str | None = None,
) -> dict[str, Any]:
    """Returns multi_modal_data for a prompt of vLLM, which must be started with
    enable_mm_embeds=True.

    The result is {"image": {"image_embeds" [n, width], "image_grid_thw" [items, 3]}}, {"video":
    {"video_embeds", "video_grid_thw"}}, or both, as torch tensors on the host. Clips of Qwen3 also
    have "timestamps", the seconds of each frame pair; clips of Qwen2.5 have "second_per_grid_ts".

    embeddings: False leaves the tokens out, for an instance that gets them through its EC connector.
    is_image, timestamps: for one result that lacks them.
    second_per_grid_ts: a number, or one per clip, to replace the results' own; None keeps them.
    version: vLLM's version; None for the installed one, or the tested one if none is installed.

    Raises Error for a version older than the known ones (a newer one causes a warning), a cache that
    lacks its model's DeepStack outputs, or a clip that lacks what its family needs.
    """
    check_version(*VLLM, version)
    embeddings = _check.flag(embeddings, "embeddings")
    data: dict[str, Any] = {}
    for kind, items in _by_kind(results, is_image, timestamps).items():
        data[kind] = {f"{kind}_embeds": _matrix(items)} if embeddings else {}
        data[kind].update(_fields(kind, items, second_per_grid_ts))
    return data


def to_sglang(
    results: Any, *, is_image: bool | None = None, timestamps: Any = None, second_per_grid_ts: Any = None,
    version: str | None = None,
) -> dict[str, Any]:
    """Returns {"image_data": [..], "video_data": [..]}, arguments of SGLang's Engine.generate(),
    which also needs the input_ids of prompt()'s text.

    Arguments and errors are as for to_vllm().
    """
    check_version(*SGLANG, version)
    data: dict[str, Any] = {}
    for kind, items in _by_kind(results, is_image, timestamps).items():
        fields = _fields(kind, items, second_per_grid_ts)
        fields.pop("timestamps", None)  # the text has them
        data[f"{kind}_data"] = [{"format": "precomputed_embedding", "feature": _matrix(items), **fields}]
    return data


def to_transformers(
    results: Any, *, is_image: bool | None = None, timestamps: Any = None, second_per_grid_ts: Any = None,
) -> dict[str, Any]:
    """Returns {"pixel_values": [n, width], "image_grid_thw"}, and for clips "pixel_values_videos"
    and "video_grid_thw": arguments of a transformers model after accept_tokens().

    Arguments and errors are as for to_vllm().
    """
    data: dict[str, Any] = {}
    for kind, items in _by_kind(results, is_image, timestamps).items():
        data["pixel_values" if kind == "image" else "pixel_values_videos"] = _matrix(items)
        data.update(_fields(kind, items, second_per_grid_ts))
        data.pop("timestamps", None)
    return data


def save_ec(result: Any, path: Path, hash: str, metadata: dict[str, str] | None = None) -> str:
    """Writes PATH/hash/encoder_cache.safetensors for vLLM's ECExampleConnector, and returns the
    file's name.

    The connector reads it if path is its shared_storage_path and hash is the request's
    multi_modal_uuid. The result must be one clip or image. The file appears whole or not at all, and
    replaces an earlier one. metadata: strings to add.
    """
    (result,) = as_list([result])
    if not _check.is_text(hash) or hash in (".", "..") or "/" in hash:
        raise _check.wrong("hash", hash, "the name of a folder")
    _check_deepstack(result)
    if len(result.grid_thw) != 1:
        raise wrong(result, f"{len(result.grid_thw)} items; a file of the EC connector holds one")
    matrix = result.packed()
    described = {"dtype": DTYPES[result.dtype][0], "shape": list(matrix.shape), "data_offsets": [0, matrix.nbytes]}
    folder = os.path.join(os.fsdecode(_check.path(path, "path")), hash)
    file = os.path.join(folder, EC_FILE)
    try:
        os.makedirs(folder, exist_ok=True)
        with whole(file) as f:
            f.write(header({"ec_cache": described} if metadata is None else {"__metadata__": metadata, "ec_cache": described}))
            f.write(memoryview(matrix.reshape(-1).view("uint8")))
        return file
    except OSError as e:
        raise wrong(result, f"{folder}: {e.strerror}", "QV_EIO") from None


def accept_tokens(model: Any) -> Any:
    """Makes the tower of a loaded transformers model (4.57, 5.x) pass tokens through instead of
    computing them: pixel_values must be the rows of to_transformers().

    generate() works as before, and so does training the rest of the model. reject_tokens() undoes
    this. The tower keeps its weights, unused.
    """
    tower = find_tower(model)
    if "forward" in tower.__dict__:
        raise error("QV_ESTATE", "this model's tower is patched or already accepts tokens")
    tower.forward = _Stored(tower).forward
    return model


def reject_tokens(model: Any) -> Any:
    """Makes the tower accept pixels again."""
    tower = find_tower(model)
    if not isinstance(getattr(tower.__dict__.get("forward"), "__self__", None), _Stored):
        raise error("QV_ESTATE", "this model does not accept tokens")
    del tower.forward
    return model


def mm_token_type_ids(input_ids: Any, of: Any) -> Any:
    """Returns mm_token_type_ids, which models of transformers 5 need in addition to input_ids: 1 at image
    placeholders, 2 at clip placeholders, 0 elsewhere.

    input_ids: a tensor or array of any shape, or lists of numbers; the result is of the same kind.
    of: the source of the placeholder ids: the transformers model, its config, processor or
        tokenizer, or the checkpoint's folder. Raises Error if it lacks them.
    """
    image, video = _placeholders(of)

    def kinds(ids: Any) -> Any:
        if hasattr(ids, "shape") and hasattr(ids, "dtype"):
            return (ids == image) * 1 + (ids == video) * 2
        if isinstance(ids, (list, tuple)):
            return [kinds(one) for one in ids]
        return {image: 1, video: 2}.get(_check.whole(ids, "an id of input_ids"), 0)

    return kinds(input_ids)


def _placeholders(of: Any) -> Any:
    """Returns the ids of (an image placeholder, a clip placeholder)."""
    names = ("image_token_id", "video_token_id")
    if isinstance(of, (str, os.PathLike)):
        folder = os.fsdecode(_check.path(of, "of"))
        file = os.path.join(folder, "config.json")
        if not os.path.exists(file) and (os.path.isfile(folder) or glob.glob(os.path.join(glob.escape(folder), "*.gguf"))):
            raise error("QV_EINVAL", f"{folder}: the GGUF file of a vision tower contains no placeholder ids: pass the "
                                     "model, config, processor or tokenizer, or a folder with config.json")
        try:
            with open(file, encoding="utf-8") as f:
                found = json.load(f)
        except (OSError, ValueError) as e:
            raise error("QV_EIO", f"{file}: {getattr(e, 'strerror', None) or e}") from None
        pairs = [[found.get(name) for name in names]] if isinstance(found, dict) else []
    else:
        tokenizer = getattr(of, "tokenizer", of)
        pairs = [[getattr(who, name, None) for name in names] for who in (of, getattr(of, "config", None), tokenizer)]
        if hasattr(tokenizer, "convert_tokens_to_ids"):
            pairs.append([tokenizer.convert_tokens_to_ids(pad) for pad in PADS.values()])
    for pair in pairs:
        if all(isinstance(number, int) for number in pair):
            return pair
    raise _check.wrong("of", of, "a model, config, processor, tokenizer or checkpoint folder that has the ids of "
                                 "<|image_pad|> and <|video_pad|>")


class _Stored:
    """Replaces a tower: splits rows into tokens and DeepStack's outputs."""

    def __init__(self, tower: Any) -> None:
        self.tower, config = tower, tower.config
        self.width = getattr(config, "out_hidden_size", None) or config.hidden_size
        self.n_deepstack = len(getattr(config, "deepstack_visual_indexes", None) or [])
        self.merge_size = config.spatial_merge_size

    def forward(self, hidden_states: Any, grid_thw: Any, **kwargs: Any) -> Any:
        n = int(grid_thw.prod(-1).sum()) // self.merge_size**2
        wanted = (n, self.width * (1 + self.n_deepstack))
        if tuple(hidden_states.shape) != wanted:
            raise error(
                "QV_EINVAL",
                f"pixel_values has shape {list(hidden_states.shape)}; it must be {list(wanted)}, as to_transformers() "
                f"returns it (tokens with {self.n_deepstack} DeepStack outputs)",
            )
        tokens, *deepstack = hidden_states.split(self.width, dim=1)
        return output_of(self.tower, tokens, deepstack)


# ---- shared helpers --------------------------------------------------------------------------------


def _numbers(version: str) -> tuple[int, ...] | None:
    parts = version.split(".")[:2]
    return tuple(map(int, parts)) if len(parts) == 2 and all(map(str.isdigit, parts)) else None


def installed(engine: str) -> str | None:
    """Returns the version of an installed package, or None."""
    import importlib.metadata

    try:
        return importlib.metadata.version(engine)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_version(engine: str, oldest: tuple[int, int], newest: tuple[int, int], version: str | None) -> None:
    version = installed(engine) if version is None else version
    if version is None:
        return
    version = _check.utf8(version)
    numbers = _numbers(version)
    tried = ".".join(map(str, newest))
    if numbers is None or numbers < oldest:
        raise error(
            "QV_EUNSUPPORTED",
            f"{engine} {version}: unknown interface; {tried} was tested, and version={tried!r} "
            "returns what that version accepts",
        )
    if numbers > newest:
        warnings.warn(f"{engine} {version} has not been tested; {tried} has", stacklevel=3)


def _check_deepstack(result: Any) -> None:
    if result.model_type in HAVE_DEEPSTACK and not result.deepstack:
        raise wrong(
            result,
            f"these tokens of {result.model_type} lack DeepStack's outputs, which the engine's model adds to "
            "its first layers: fill the cache without --no-deepstack",
            "QV_EUNSUPPORTED",
        )


def _by_kind(results: Any, is_image: bool | None, timestamps: Any) -> dict[str, list[Item]]:
    """Returns {"image": Items, "video": Items}, without empty kinds."""
    is_image = is_image if is_image is None else _check.flag(is_image, "is_image")
    kinds: dict[str, list[Item]] = {}
    made_by = None
    for result in as_list(results, is_image, timestamps):
        _check_deepstack(result)
        this = (result.model_type, 1 + len(result.deepstack), result.tokens.shape[1], result.dtype)
        if made_by is not None and this != made_by:
            raise wrong(result, f"its model, matrices, width and dtype are {this}, but earlier results have {made_by}")
        made_by = this
        for item in items_of(result, is_image, timestamps):
            kinds.setdefault(item.kind, []).append(item)
    if not kinds:
        raise error("QV_EINVAL", "no results")
    return kinds


def _fields(kind: str, items: list[Item], second_per_grid_ts: Any) -> dict[str, Any]:
    """Returns the other outputs of a family's processor."""
    import torch

    grid = {f"{kind}_grid_thw": torch.tensor([item.grid for item in items], dtype=torch.int64)}
    family = items[0].result.model_type
    if kind == "image":
        return grid
    if FAMILIES.get(family):
        for item in items:
            if item.seconds is None:
                raise wrong(item.result, NO_SECONDS)
        return {**grid, "timestamps": [item.seconds for item in items]}
    if family != "qwen2_5_vl":
        return grid
    given = second_per_grid_ts
    single = given is None or isinstance(given, (int, float))
    given = [given] * len(items) if single else _check.items(given, "second_per_grid_ts")
    if len(given) != len(items):
        raise error("QV_EINVAL", f"second_per_grid_ts: {len(given)} numbers for {len(items)} clips")
    seconds = [
        item.result.second_per_grid_ts if value is None else _check.real(value, "second_per_grid_ts")
        for item, value in zip(items, given)
    ]
    for item, value in zip(items, seconds):
        if not value:
            raise wrong(
                item.result,
                "Qwen2.5-VL needs the seconds per frame pair, which frames and older caches do not record: "
                "pass second_per_grid_ts=, 2 divided by the sampled frames per second",
            )
    return {**grid, "second_per_grid_ts": torch.tensor(seconds)}


def _matrix(items: list[Item]) -> Any:
    import torch

    rows = []
    for item in items:
        tokens, deepstack = item.result.torch()
        rows.append(torch.cat([m[item.first : item.first + item.n] for m in (tokens, *deepstack)], dim=1))
    return torch.cat(rows) if len(rows) > 1 else rows[0]
