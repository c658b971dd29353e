# SPDX-License-Identifier: MIT
"""Runs qwenvit's tower inside a loaded transformers model."""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from typing import Any, Literal, TypeVar

from ._check import Path, optional_path
from ._error import Error, error
from ._files import DTYPES, header
from ._model import load
from ._tokens import dtype_name
from ._transformers import find_tower, in_order, output_of, returns_objects

M = TypeVar("M")


def patch(
    model: M, *, backend: Literal["auto", "cuda", "metal", "cpu", "ref"] | None = None, threads: int = 0, folder: Path | None = None
) -> M:
    """Lets qwenvit run the vision tower of a loaded transformers model (4.57, 5.x), until
    unpatch(model).

    model: the whole model, or its tower.
    backend: None for the backend of the tower's device.
    threads: CPU threads; 0 for every core.
    folder: where a file of the tower's size may be written; None for the system's folder for
        temporary files.

    The file holds the weights until unpatch(), so that they are not in memory twice: torch's copy
    is released, and the tower's parameters are empty and require no gradient. state_dict() and its
    users (save_pretrained, torch.save of a state_dict) read the weights from the file. Copying the
    model itself (copy.deepcopy, pickle, torch.save) raises Error.

    On a CPU that cannot multiply bf16, a bf16 tower computes in float32, with a warning.
    Outputs have the tower's dtype and transformers' own classes, and include last_hidden_state,
    except GLM's.

    Raises Error, before anything is changed, if weights are quantised, offloaded, sharded, neither
    float32 nor bfloat16, or have adapters or hooks, and if the model is in training mode. Later
    calls that request hidden states, attentions or gradients raise Error too.
    """
    tower = find_tower(model)
    if hasattr(tower, "_qwenvit"):
        raise error("QV_ESTATE", "this model is already patched")
    state = _Patch(tower, os.fsdecode(optional_path(folder, "folder")) or None)
    try:
        state.save()
        state.start(backend, threads)
    except BaseException as e:
        state.restore()
        if isinstance(e, OSError) and not isinstance(e, Error):
            raise error("QV_EIO", f"cannot write the tower's weights: {e}") from None
        raise
    tower._qwenvit = state
    tower.forward = state.forward
    tower.extra_repr = state.describe  # shown in repr() of the tower and of a model around it
    state.watch()
    return model


def is_patched(model: Any) -> bool:
    """Whether qwenvit runs the vision tower of this model."""
    return any(hasattr(m, "_qwenvit") for m in model.modules()) if hasattr(model, "modules") else False


def unpatch(model: M) -> M:
    """Restores the tower's own code and weights, bit for bit."""
    tower = find_tower(model)
    if not hasattr(tower, "_qwenvit"):
        raise error("QV_ESTATE", "this model is not patched")
    state = tower._qwenvit
    state.model.close()  # an interrupt here, or a lack of memory below, leaves the tower patched
    state.restore()
    state.unwatch()
    del tower.forward, tower.extra_repr, tower._qwenvit
    return model


class _Patch:
    def __init__(self, tower: Any, folder: Any) -> None:
        self.tower, self.folder = tower, folder
        self.model: Any = None
        self.file: Any = None
        self.parameters = dict(tower.named_parameters())
        self._refuse()
        first = next(iter(self.parameters.values()))
        self.device, self.dtype = first.device, first.dtype
        self.n_values = sum(p.numel() for p in self.parameters.values())
        self.wanted_grad = {n: p.requires_grad for n, p in self.parameters.items()}
        self.places: dict[str, tuple[int, int, tuple[int, ...]]] = {}
        self.saved: list[str] = []
        self.hooks: list[Any] = []

    def _refuse(self) -> None:
        tower, seen = self.tower, set()
        if not self.parameters:
            raise error("QV_EINVAL", "the tower has no parameters")
        if tower.training:
            raise error("QV_EUNSUPPORTED", "the tower is in training mode; call model.eval() first")
        for name, p in self.parameters.items():
            if p.device.type == "meta":
                raise error("QV_EUNSUPPORTED", f"{name} is on the meta device: offloaded, or not loaded")
            if hasattr(p, "device_mesh") or hasattr(p.data, "device_mesh"):
                raise error("QV_EUNSUPPORTED", f"{name} is sharded over devices")
            if dtype_name(p.dtype) not in ("f32", "bf16"):
                raise error("QV_EUNSUPPORTED", f"{name} is {p.dtype}; it must be float32 or bfloat16")
            seen.add((p.device, p.dtype))
        if len(seen) > 1:
            raise error("QV_EUNSUPPORTED", f"parameters differ in device or dtype: {seen}")
        if next(iter(seen))[0].type not in ("cpu", "cuda"):
            raise error("QV_EUNSUPPORTED", f"the tower is on {next(iter(seen))[0]}; it must be cpu or cuda")
        for name, m in tower.named_modules():
            if hasattr(m, "_hf_hook"):
                raise error("QV_EUNSUPPORTED", f"{name or 'the tower'} is offloaded (accelerate's hook)")
            if m is not tower and (m._forward_hooks or m._forward_pre_hooks):
                raise error("QV_EUNSUPPORTED", f"{name} has hooks, which would not be called")

    # ---- weights: torch's memory -> a checkpoint's folder -> ours ------------------------------------

    def save(self) -> None:
        """Writes a checkpoint of the tower, tensor by tensor, and releases each tensor once it is
        written."""
        import torch

        self.folder = tempfile.TemporaryDirectory(prefix="qwenvit-", dir=self.folder)
        config = self.tower.config.to_dict()
        with open(os.path.join(self.folder.name, "config.json"), "w", encoding="utf-8") as f:
            json.dump({"model_type": config.get("model_type"), "vision_config": config}, f, default=str)
        with open(os.path.join(self.folder.name, "processor_config.json"), "w", encoding="utf-8") as f:
            json.dump({"image_processor": {}, "video_processor": {}}, f)  # the tower gets patches, never pixels
        tensors, at = {}, 0
        for name, p in self.parameters.items():
            size = p.numel() * p.element_size()
            tensors[f"visual.{name}"] = {
                "dtype": DTYPES[dtype_name(p.dtype)][0], "shape": list(p.shape), "data_offsets": [at, at + size]
            }
            self.places[name] = (at, size, tuple(p.shape))
            at += size
        head = header(tensors)
        self.begin = len(head)
        self.file = open(os.path.join(self.folder.name, "model.safetensors"), "w+b")
        self.file.write(head)
        with torch.no_grad():
            for name, p in self.parameters.items():
                raw = p.detach().contiguous().cpu().reshape(-1).view(torch.uint8)
                self.file.write(memoryview(raw.numpy()))
                self.file.flush()
                del raw
                self.saved.append(name)
                p.requires_grad_(False)
                p.data = torch.empty(0, dtype=p.dtype, device=p.device)

    def start(self, backend: Any, threads: int) -> None:
        import torch

        cuda = self.device.type == "cuda"
        place: Any = ("cuda" if cuda else "cpu") if backend is None else backend
        asked = dtype_name(self.dtype)
        self.model = load(
            self.folder.name,
            place,
            None if place == "cpu" and asked == "bf16" else asked,  # f32 on a CPU without bf16
            self.device.index or 0 if cuda else 0,
            threads=threads,
            stream=torch.cuda.current_stream(self.device) if cuda else None,
        )
        if self.model.info["n_parameters"] != self.n_values:
            raise error(
                "QV_EUNSUPPORTED",
                f"the tower has {self.n_values} parameters, but its family has "
                f"{self.model.info['n_parameters']}: adapters and other additions are not supported",
            )
        if self.model.info["dtype"] != asked:
            warnings.warn(
                f"this CPU cannot multiply {asked}: the tower computes in {self.model.info['dtype']}, "
                f"and its outputs are {asked}",
                stacklevel=4,
            )
        self.folder.cleanup()  # the open file stays, without a name

    def _read(self, name: str) -> Any:
        """Returns a parameter's weights on its device. The file position does not move, because
        threads and forked processes share it."""
        import torch

        at, size, shape = self.places[name]
        raw = torch.empty(size, dtype=torch.uint8)
        to, done = memoryview(raw.numpy()), 0
        while done < size:
            n = os.preadv(self.file.fileno(), [to[done:]], self.begin + at + done)
            if not n:
                raise error("QV_EIO", f"{name}: cannot read its weights back")
            done += n
        return raw.view(self.dtype).reshape(shape).to(self.parameters[name].device)

    def describe(self) -> str:
        return f"run by {self.model!r}"

    def restore(self) -> None:
        for name in self.saved:
            p = self.parameters[name]
            p.data = self._read(name)
            p.requires_grad_(self.wanted_grad[name])
        if self.file:
            self.file.close()
        if hasattr(self.folder, "cleanup"):
            self.folder.cleanup()

    # ---- reading weights while patched --------------------------------------------------------------

    def watch(self) -> None:
        """Makes state_dict() of the tower, its parts and its parents return the weights."""
        self.names = {id(p): name for name, p in self.parameters.items()}
        self.hooks = [m._register_state_dict_hook(self.fill) for _, m in self.tower.named_modules()]

    def unwatch(self) -> None:
        for hook in self.hooks:
            hook.remove()

    def fill(self, module: Any, state: Any, prefix: str, metadata: Any) -> None:
        """A torch hook that fills in a module's own parameters, which are empty in `state`."""
        for name, p in module._parameters.items():
            if id(p) in self.names and not p.numel() and prefix + name in state:
                state[prefix + name] = self._read(self.names[id(p)])

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise error(
            "QV_EUNSUPPORTED",
            "a patched model can be neither copied nor pickled, because qwenvit runs its tower; call "
            "qwenvit.unpatch(model) first, or save its state_dict()",
        )

    # ---- the forward pass ----------------------------------------------------------------------------

    def _refuse_call(self, kwargs: dict[str, Any]) -> None:
        first = next(iter(self.parameters.values()))
        if self.tower.training:
            raise error("QV_EUNSUPPORTED", "a patched tower cannot be trained; unpatch() the model first")
        if first.numel() or first.device != self.device or first.dtype != self.dtype:
            raise error(
                "QV_ESTATE",
                f"the tower's parameters were changed or moved since patch() ({first.device}, "
                f"{first.dtype}); call unpatch() before such a change and patch() after it",
            )
        config = self.tower.config
        for name in ("output_hidden_states", "output_attentions"):
            if kwargs.get(name) or name not in kwargs and getattr(config, name, False):
                raise error("QV_EUNSUPPORTED", f"{name}: a patched tower keeps no hidden states or attentions")
        if kwargs.get("return_dict") is False:
            raise error("QV_EUNSUPPORTED", "return_dict=False: a patched tower returns objects")
        for name, value in kwargs.items():
            if hasattr(value, "shape"):
                raise error("QV_EUNSUPPORTED", f"{name}: a patched tower accepts only pixels and grid_thw")

    def forward(self, hidden_states: Any, grid_thw: Any, **kwargs: Any) -> Any:
        self._refuse_call(kwargs)
        x = hidden_states.contiguous()
        keeps = returns_objects() and not any(n.startswith("downsample.") for n in self.parameters)
        out = self.model.forward(x, grid_thw, self.dtype, hidden_states=keeps)
        return output_of(self.tower, out.tokens, out.deepstack, in_order(out.hidden_states, grid_thw, self.tower.config))
