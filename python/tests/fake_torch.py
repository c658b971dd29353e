# SPDX-License-Identifier: MIT
"""Stand-ins, made of numpy, for those parts of torch's and transformers' classes that qwenvit.patch
uses."""
import sys
import types

import numpy as np


class Dtype:
    def __init__(self, name, numpy):
        self.name, self.numpy = name, numpy

    def __repr__(self):
        return f"torch.{self.name}"


float32, float16, uint8 = Dtype("float32", "f4"), Dtype("float16", "f2"), Dtype("uint8", "u1")
int64, float64 = Dtype("int64", "i8"), Dtype("float64", "f8")
bfloat16 = Dtype("bfloat16", "u2")
DTYPES = {np.dtype(d.numpy): d for d in (float32, float16, bfloat16, uint8, int64, float64)}


class Device:
    def __init__(self, kind):
        self.type, self.index = kind, None

    def __eq__(self, other):
        return self.type == other.type

    def __hash__(self):
        return hash(self.type)


class Tensor:
    def __init__(self, array, device="cpu", requires_grad=False):
        self.array, self.device, self.requires_grad = array, Device(device), requires_grad

    is_cuda = property(lambda self: self.get_device() >= 0)
    shape = property(lambda self: self.array.shape)
    ndim = property(lambda self: self.array.ndim)
    dtype = property(lambda self: DTYPES[self.array.dtype])

    @property
    def data(self):
        return self

    @data.setter
    def data(self, other):
        self.array = other.array

    def numel(self):
        return self.array.size

    def data_ptr(self):
        return self.array.ctypes.data

    def get_device(self):
        return -1

    def new_empty(self, shape, dtype):
        return empty(*shape, dtype=dtype)

    def unbind(self):
        return tuple(Tensor(a) for a in self.array)

    def element_size(self):
        return self.array.itemsize

    def same(self, *_):
        return self

    detach = contiguous = cpu = to = same

    def requires_grad_(self, value):
        self.requires_grad = value

    def reshape(self, *shape):
        return Tensor(self.array.reshape(*shape))

    def view(self, dtype):
        return Tensor(self.array.view(dtype.numpy))

    def numpy(self):
        return self.array

    def tolist(self):
        return self.array.tolist()

    def prod(self, dim):
        return Tensor(self.array.prod(dim))

    def sum(self):
        return Tensor(self.array.sum())

    def split(self, size, dim):
        return [Tensor(a) for a in np.split(self.array, self.array.shape[dim] // size, dim)]

    def __getitem__(self, rows):
        return Tensor(self.array[getattr(rows, "array", rows)])

    def __int__(self):
        return int(self.array)

    def __dlpack__(self, **kwargs):
        return self.array.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def empty(*shape, dtype, device=None):
    return Tensor(np.empty(shape[0] if isinstance(shape[0], tuple) else shape, dtype.numpy))


utils = types.SimpleNamespace(dlpack=types.SimpleNamespace(to_dlpack=lambda t: t.array))


def from_numpy(array):
    return Tensor(array)


def from_dlpack(array):
    return Tensor(np.from_dlpack(array))


def tensor(values, dtype=None):
    return Tensor(np.array(values, dtype.numpy if dtype else None))


def cat(tensors, dim=0):
    return Tensor(np.concatenate([t.array for t in tensors], dim))


class no_grad:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


class Module:
    """parameters: {name: Tensor} of this module's whole tree."""

    training = False

    def __init__(self, **parts):
        self.__dict__.update(parts)
        self._forward_hooks, self._forward_pre_hooks = {}, {}

    def named_modules(self, prefix=""):
        yield prefix, self
        for name, part in list(self.__dict__.items()):
            if isinstance(part, Module):
                yield from part.named_modules(f"{prefix}.{name}".lstrip("."))

    def named_parameters(self):
        return self.parameters.items()

    @property
    def _parameters(self):
        return self.__dict__.get("parameters", {})

    def _register_state_dict_hook(self, hook):
        hooks = self.__dict__.setdefault("_state_dict_hooks", [])
        hooks.append(hook)
        return types.SimpleNamespace(remove=lambda: hooks.remove(hook))

    def state_dict(self, prefix="", into=None):
        into = {} if into is None else into
        into.update({prefix + name: p for name, p in self._parameters.items()})
        for name, part in list(self.__dict__.items()):
            if isinstance(part, Module):
                part.state_dict(f"{prefix}{name}.", into)
        for hook in self.__dict__.get("_state_dict_hooks", []):
            hook(self, into, prefix, {})
        return into

    def __call__(self, *args, **kwargs):
        return self.forward(*args, **kwargs)


class Output:
    def __init__(self, last_hidden_state=None, pooler_output=None, deepstack_features=None):
        self.last_hidden_state, self.pooler_output = last_hidden_state, pooler_output
        self.deepstack_features = deepstack_features


class BaseModelOutputWithDeepstackFeatures(Output):
    pass


class BaseModelOutputWithPooling(Output):
    pass


def install(monkeypatch, version):
    outputs = types.SimpleNamespace(BaseModelOutputWithPooling=BaseModelOutputWithPooling)
    transformers = types.SimpleNamespace(__version__=version, modeling_outputs=outputs)
    monkeypatch.setitem(sys.modules, "torch", sys.modules[__name__])
    monkeypatch.setitem(sys.modules, "transformers", transformers)
