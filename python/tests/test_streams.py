# SPDX-License-Identifier: MIT
"""Tests the order of CUDA's streams in Model.forward, with stand-ins for torch's. The model computes
on the CPU, and a tensor says that it lies on a GPU."""
import contextlib
import types

import fake_torch
import numpy as np
import pytest

import qwenvit
from conftest import refused
from qwenvit import _arrays, _core

CALLER, OWN, OF_FRAMES = 5, 7, 9


class Stream:
    def __init__(self, cuda, number, device="cuda:0"):
        self.cuda, self.cuda_stream, self.device = cuda, number, device

    def wait_stream(self, other):
        self.cuda.log.append(f"{self.cuda_stream} waits for {other.cuda_stream}")

    def synchronize(self):
        self.cuda.log.append(f"the host waits for {self.cuda_stream}")


class Cuda:
    """torch.cuda, with a log of what was asked of streams."""

    def __init__(self, current):
        self.log, self.current = [], current

    def current_stream(self, device):
        return Stream(self, self.current)

    def ExternalStream(self, number, device):
        return Stream(self, number)

    def Stream(self, device):
        self.log.append(f"a stream is made on {device}")
        return Stream(self, OWN)


class Tensor(fake_torch.Tensor):
    def get_device(self):
        return 0

    def new_empty(self, shape, dtype):
        self.log.append("memory")
        tensor = Tensor(super().new_empty(shape, dtype).array)
        tensor.log = self.log
        return tensor


    def record_stream(self, stream):
        self.log.append(f"memory is kept for {stream.cuda_stream}")


class Core:
    """A core that logs when its work begins and ends, and may fail."""

    def __init__(self, core, log, fails):
        self.core, self.log, self.fails = core, log, fails

    def forward_at(self, *arguments):
        self.log.append("work begins")
        self.core.forward_at(*arguments)
        if self.fails:
            raise qwenvit.Error("it fails")
        self.log.append("work ends")


def forward(golden, monkeypatch, current, number, fails=False):
    """Returns (what happened, in its order; tokens) of a forward() on a stream."""
    cuda = Cuda(current)
    fake_torch.install(monkeypatch, "5.0")
    monkeypatch.setattr(fake_torch, "cuda", cuda, raising=False)
    monkeypatch.setattr(fake_torch, "_C", types.SimpleNamespace(_cuda_getCurrentRawStream=lambda i: current), raising=False)
    model = qwenvit.load(golden, backend="cpu", dtype="f32", threads=1)
    rows = np.linspace(-1, 1, 16 * model.info["row_dim"], dtype=np.float32).reshape(16, -1)
    expected = model.forward(rows, [[1, 4, 4]]).tokens
    x = Tensor(rows)
    x.log, model._core, model._stream = cuda.log, Core(model._core, cuda.log, fails), number
    if fails:
        refused(lambda: model.forward(x, [[1, 4, 4]]), "it fails")
        return cuda.log, None
    tokens, _ = model.forward(x, [[1, 4, 4]])
    assert (tokens.array == expected).all()
    return cuda.log, tokens


@pytest.mark.parametrize("current", [0, CALLER])
def test_events_order_two_streams_and_the_host_does_not_wait(golden, monkeypatch, current):
    """0 is torch's default stream. Memory for tokens comes from the caller's stream, so the model's
    waits for that again. An exception may come before the caller's stream waits for the model's (Ctrl-C
    in `finally`), so torch itself must know that the model's stream uses the memory."""
    log, _ = forward(golden, monkeypatch, current, OWN)
    waits = [f"{OWN} waits for {current}", f"memory is kept for {OWN}"]
    assert log == [*waits, "work begins", "memory", *waits, "work ends", f"{current} waits for {OWN}"]


def test_a_call_that_fails_leaves_the_streams_in_order(golden, monkeypatch):
    log, _ = forward(golden, monkeypatch, 0, OWN, fails=True)
    assert log[-1] == f"0 waits for {OWN}"


def test_on_the_models_own_stream_nothing_is_ordered(golden, monkeypatch):
    log, _ = forward(golden, monkeypatch, OWN, OWN)
    assert log == ["work begins", "memory", "work ends"]


def test_without_a_stream_the_host_waits(golden, monkeypatch):
    """Also for memory, which another thread's work on the caller's stream may have used until now."""
    log, _ = forward(golden, monkeypatch, CALLER, 0)
    waits = f"the host waits for {CALLER}"
    assert log == [waits, "work begins", "memory", waits, "work ends"]


def test_torchs_default_stream_is_replaced_by_one_that_has_a_number(monkeypatch):
    cuda = Cuda(0)
    monkeypatch.setattr(fake_torch, "cuda", cuda, raising=False)
    fake_torch.install(monkeypatch, "5.0")
    assert _arrays.number_of(Stream(cuda, 0, "cuda:1")) == OWN and cuda.log == ["a stream is made on cuda:1"]
    assert [_arrays.number_of(s) for s in (None, 0, CALLER, Stream(cuda, CALLER))] == [0, 0, CALLER, CALLER]
    assert len(cuda.log) == 1


class OnGpu:
    """Frames that say they lie on a GPU, and note how they are asked for. They are on the host, so that the
    model takes them."""

    def __init__(self, array, device, log):
        self.array, self.gpu, self.log = array, device, log

    @property
    def ndim(self):
        return self.array.ndim

    def __dlpack_device__(self):
        return _arrays.CUDA, self.gpu

    def __dlpack__(self, stream=None):
        self.log.append((self.gpu, stream))
        return self.array.__dlpack__()


class TorchOnGpu(OnGpu, fake_torch.Tensor):
    pass


@pytest.mark.parametrize("kind", [OnGpu, TorchOnGpu])
def test_frames_on_the_models_gpu_are_asked_for_in_the_order_of_its_stream(golden, monkeypatch, kind):
    """torch takes a stream for one of its current device's. Of another GPU's frames nothing is in order."""
    log = []

    @contextlib.contextmanager
    def current_device(index):
        log.append(f"torch's device is {index}")
        yield

    fake_torch.install(monkeypatch, "5.0")
    monkeypatch.setattr(fake_torch, "cuda", types.SimpleNamespace(device=current_device), raising=False)
    monkeypatch.setattr(_core, "frames_stream", lambda model, device: OF_FRAMES if device == 1 else 0)
    model = qwenvit.load(golden, backend="cpu", dtype="f32", threads=1)
    frames = np.arange(2 * 64 * 96 * 3, dtype=np.uint32).astype(np.uint8).reshape(2, 64, 96, 3)
    expected = model.encode(frames=frames).tokens
    asked = ["torch's device is 1"] * (kind is TorchOnGpu) + [(1, OF_FRAMES)]
    for source in (kind(frames, 1, log), [kind(frame, 1, log) for frame in frames]):
        assert (model.encode(frames=source).tokens == expected).all()
        assert log == asked * (len(source) if isinstance(source, list) else 1)
        log.clear()
    assert (model.encode(frames=kind(frames, 0, log)).tokens == expected).all() and log[-1] == (0, None)
