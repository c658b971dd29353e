# SPDX-License-Identifier: MIT
"""Reads what `qwenvit cache` makes (docs/cache.md), with mmap: no library of ours runs here."""

import collections
import collections.abc
import glob
import json
import math
import mmap
import os
import struct
import sys

from ._arrays import as_bf16, error, numpy
from ._doors import Doors

MOST_HEADER = 32 << 20
# Where a key lies, in the order of parts and of keys in them: `begins` of its tensors in the part's file. What
# its record says: picture, sampled_fps; None where it does not.
Place = collections.namedtuple("Place", "part begins rows frames picture sampled_fps")
FRAMES_OF_A_PAIR = 2
DTYPES = {"bf16": ("BF16", "uint16"), "f16": ("F16", "float16"), "f32": ("F32", "float32")}


def _wrong(path, text):
    return error("QV_EFORMAT", f"{path}: {text}")


def _check_record(record):
    """(picture, sampled_fps) of a record; None where it does not say."""
    picture, fps = record.get("picture"), record.get("sampled_fps")
    if picture is not None and not isinstance(picture, bool):
        raise ValueError(f"{record['key']}: picture is {picture!r}; must be true or false")
    if fps is not None and not (type(fps) in (int, float) and 0 < fps <= sys.float_info.max):
        raise ValueError(f"{record['key']}: sampled_fps is {fps!r}; must be a number above 0")
    return picture, fps and float(fps)


class Entry(Doors):
    """One key of a cache. tokens: [n, width] and deepstack: a list of the same (of a packed cache,
    views of packed()); grid_thw: int64 [1, 3]; timestamps: float64 [frames]. numpy's, read-only, mapped
    from the file; bf16 as ml_dtypes.bfloat16 where that package is, else as uint16 with its bits.

    picture, sampled_fps, second_per_grid_ts: as of Tokens, from its record. Of a record without them, as
    caches had before, what has one frame is a picture, and the others are None."""

    def __init__(self, cache, key, place):
        self._cache, self._place, self.key = cache, place, key

    def _view(self, name, dtype, writable=False):
        return self._cache._view(self._place, name, dtype, writable)

    def _matrices(self, writable=False):
        cache = self._cache
        if not cache.packed:
            names = ["tokens", *(f"deepstack.{i}" for i in range(cache.n_deepstack))]
            return [self._view(name, cache._numpy_dtype, writable) for name in names]
        whole = self._view("packed", cache._numpy_dtype, writable)
        return [whole[:, i * cache.width : (i + 1) * cache.width] for i in range(1 + cache.n_deepstack)]

    def _shown(self, matrix):
        return as_bf16(matrix) if self._cache.dtype == "bf16" else matrix

    tokens = property(lambda self: self._shown(self._matrices()[0]))
    deepstack = property(lambda self: [self._shown(m) for m in self._matrices()[1:]])
    grid_thw = property(lambda self: self._view("grid_thw", "int64"))
    timestamps = property(lambda self: self._view("timestamps", "float64"))
    dtype = property(lambda self: self._cache.dtype)
    model_type = property(lambda self: self._cache.format.get("model_type"))
    sampled_fps = property(lambda self: self._place.sampled_fps)

    @property
    def picture(self):
        known = self._place.picture
        return int(self.grid_thw[0, 0]) == 1 and self._place.frames < 2 if known is None else known

    @property
    def second_per_grid_ts(self):
        return FRAMES_OF_A_PAIR / self.sampled_fps if self.sampled_fps else None

    def __len__(self):
        return self._place.rows

    def packed(self):
        """[n, width * (1 + deepstack)]: mapped where the cache is packed, else a copy."""
        if self._cache.packed:
            return self._shown(self._view("packed", self._cache._numpy_dtype))
        return self._shown(numpy().concatenate(self._matrices(), axis=1))

    def torch(self):
        """(tokens, deepstack) as tensors, mapped. What is written to them stays in this process."""
        import torch

        matrices = []
        for m in self._matrices(writable=True):
            if self._cache.dtype == "bf16":
                matrices.append(torch.from_numpy(m.view("int16")).view(torch.bfloat16))
            else:
                matrices.append(torch.from_numpy(m))
        return matrices[0], matrices[1:]


class Cache(collections.abc.Mapping):
    """A mapping from key to Entry over all parts of a cache's folder. Parts that are written later are
    seen by refresh(). Forked and spawned workers may use it: it holds files mapped, and nothing else.

    failed: {key: (code, words)} of clips that failed. damaged: {part: words} of parts that break the
    format; their keys count as not there.
    """

    def __init__(self, folder):
        if numpy() is None:
            raise error("QV_EUNSUPPORTED", "Cache needs numpy")
        self.folder = os.fspath(folder)
        self._maps = {}
        self._read_format(os.path.join(self.folder, "qwenvit-cache.json"))
        self.refresh()

    def _read_format(self, path):
        try:
            with open(path, encoding="utf-8") as f:
                self.format = json.load(f)
        except OSError as e:
            raise error("QV_EIO", f"{path}: {e.strerror}; this folder is no cache") from None
        except ValueError as e:
            raise _wrong(path, f"no JSON: {e}") from None
        if not isinstance(self.format, dict) or self.format.get("format") != "qwenvit-cache":
            raise _wrong(path, 'format must be "qwenvit-cache"')
        if str(self.format.get("version")) != "1":
            raise _wrong(path, f"version is {self.format.get('version')!r}; this reads \"1\"")
        tokens = self.format.get("tokens")
        try:
            self.dtype, self.packed = tokens["dtype"], bool(tokens["packed"])
            self.width, self.n_deepstack = int(tokens["width"]), int(tokens["n_deepstack"])
            self._file_dtype, self._numpy_dtype = DTYPES[self.dtype]
        except (KeyError, TypeError, ValueError):
            raise _wrong(path, f"tokens is {tokens!r}; must have dtype, width, n_deepstack, packed") from None
        if not 0 < self.width <= 1 << 20 or not 0 <= self.n_deepstack <= 8:
            raise _wrong(path, f"tokens: width {self.width}, n_deepstack {self.n_deepstack}")

    def refresh(self):
        """Reads the headers of all parts."""
        self._parts = sorted(glob.glob(os.path.join(glob.escape(self.folder), "part-*.safetensors")))
        self._places, self.failed, self.damaged, best = {}, {}, {}, {}
        for number, part in enumerate(self._parts):
            try:
                sealed, records, tensors = self._read_part(part)
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
                self.damaged[os.path.basename(part)] = str(e)
                continue
            for record, places in zip(records, tensors):
                key, order = record["key"], (places is not None, sealed, number)
                if best.get(key, (False, -1, -1)) < order:
                    best[key] = order
                    self._take(key, number, record, places)

    def _take(self, key, number, record, places):
        self.failed.pop(key, None)
        if places is None:
            self.failed[key] = (record.get("code", ""), record.get("error", ""))
        else:
            self._places[key] = Place(number, *places)

    def _read_part(self, path):
        size = os.stat(path).st_size
        with open(path, "rb") as f:
            length = struct.unpack("<Q", f.read(8))[0] if size >= 8 else MOST_HEADER + 1
            if length > min(MOST_HEADER, size - 8):
                raise ValueError(f"a header of {length} bytes in a file of {size}")
            header = json.loads(f.read(length))
        meta = header.pop("__metadata__")
        if meta["format"] != "qwenvit-cache" or meta["version"] != "1":
            raise ValueError(f"format {meta['format']!r}, version {meta['version']!r}")
        records = json.loads(meta["records"])
        places = [self._places_of(header, r, 8 + length, size) for r in records]
        return int(meta["sealed"]), records, places

    def _names(self):
        if self.packed:
            return ["packed"]
        return ["tokens", *(f"deepstack.{i}" for i in range(self.n_deepstack))]

    def _places_of(self, header, record, begin, size):
        """What stands in a Place behind the part; None of one that failed."""
        key = record["key"]
        if record["status"] != "ok":
            return None
        width = self.width * (1 + self.n_deepstack if self.packed else 1)
        rows = header[f"{key}/{self._names()[0]}"]["shape"][0]
        frames = header[f"{key}/timestamps"]["shape"][0]
        element = 4 if self.dtype == "f32" else 2
        wanted = [(name, self._file_dtype, [rows, width], element) for name in self._names()]
        wanted += [("grid_thw", "I64", [1, 3], 8), ("timestamps", "F64", [frames], 8)]
        places = []
        for name, dtype, shape, bytes_ in wanted:
            t = header[f"{key}/{name}"]
            first, last = t["data_offsets"]
            count = shape[0] * (shape[1] if len(shape) > 1 else 1)
            if t["dtype"] != dtype or t["shape"] != shape or last - first != count * bytes_:
                raise ValueError(f"{key}/{name}: {t}; must be {dtype} {shape}")
            if first < 0 or rows < 0 or frames < 0 or begin + last > size or (begin + first) % bytes_:
                raise ValueError(f"{key}/{name}: lies outside of the file, or between numbers")
            places.append(begin + first)
        return (tuple(places), rows, frames, *_check_record(record))

    # ---- reading -----------------------------------------------------------------------------------

    def _map(self, number):
        if number not in self._maps:
            with open(self._parts[number], "rb") as f:
                # private: a tensor over it may be written to without harm
                self._maps[number] = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY)
        return self._maps[number]

    def _tensor(self, place, name):
        """(shape, where it begins in its part's file)."""
        i = [*self._names(), "grid_thw", "timestamps"].index(name)
        width = self.width * (1 + self.n_deepstack if self.packed else 1)
        shapes = {"grid_thw": (1, 3), "timestamps": (place.frames,)}
        return shapes.get(name, (place.rows, width)), place.begins[i]

    def _view(self, place, name, dtype, writable):
        np = numpy()
        shape, begin = self._tensor(place, name)
        array = np.frombuffer(self._map(place.part), dtype, math.prod(shape), begin).reshape(shape)
        array.flags.writeable = writable
        return array

    def __getitem__(self, key):
        place = self._places.get(key)
        if place is None:
            if key in self.failed:
                raise KeyError(f"{key!r} failed: {': '.join(self.failed[key])}")
            raise KeyError(f"{key!r} is not in the cache {self.folder}")
        return Entry(self, key, place)

    def __contains__(self, key):
        return key in self._places

    def __iter__(self):
        return iter(self._places)

    def __len__(self):
        return len(self._places)

    def part_of(self, key):
        """The number of the part that has the key: keys of one part are read fastest together."""
        return self._places[key].part

    # ---- for others' readers -------------------------------------------------------------------------

    def _rows(self):
        dtypes = {"grid_thw": ("I64", 8), "timestamps": ("F64", 8)}
        own = self._file_dtype, 4 if self.dtype == "f32" else 2
        names = [*self._names(), "grid_thw", "timestamps"]
        for key, place in self._places.items():
            tensors = []
            for name in names:
                shape, begin = self._tensor(place, name)
                dtype, size = dtypes.get(name, own)
                tensors.append({"name": name, "dtype": dtype, "shape": shape, "offset": begin,
                                "bytes": math.prod(shape) * size})
            part = os.path.basename(self._parts[place.part])
            yield {"key": key, "status": "ok", "part": part, "tensors": tensors}
        for key, (code, words) in self.failed.items():
            yield {"key": key, "status": "failed", "code": code, "error": words}

    def to_parquet_index(self, path=None):
        """Writes a Parquet file, whole or not at all, and returns its path (default: index.parquet in the
        cache's folder). A row a key: key, status ("ok" or "failed"), code and error (of one that failed),
        part (a file in the folder), and tensors, a list of {name, dtype (as safetensors calls it), shape,
        offset (where it begins in that file), bytes}. Needs pyarrow."""
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise error("QV_EUNSUPPORTED", "to_parquet_index() needs pyarrow") from None
        text, number = pyarrow.string(), pyarrow.int64()
        tensor = {"name": text, "dtype": text, "shape": pyarrow.list_(number), "offset": number,
                  "bytes": number}
        columns = {name: text for name in ("key", "status", "code", "error", "part")}
        columns["tensors"] = pyarrow.list_(pyarrow.struct(list(tensor.items())))
        table = pyarrow.Table.from_pylist(list(self._rows()), pyarrow.schema(list(columns.items())))
        path = os.fspath(path) if path else os.path.join(self.folder, "index.parquet")
        unfinished = f"{path}.{os.getpid()}.tmp"
        try:
            with open(unfinished, "wb") as f:
                pyarrow.parquet.write_table(table, f)
                f.flush()
                os.fsync(f.fileno())
            os.replace(unfinished, path)
        except OSError as e:
            raise error("QV_EIO", f"{path}: {e.strerror or e}") from None
        finally:
            if os.path.exists(unfinished):
                os.remove(unfinished)
        return path

    def __repr__(self):
        return f"<qwenvit.Cache {self.folder}: {len(self)} keys, {len(self.failed)} failed>"

    def __getstate__(self):  # to a spawned worker: the index, without what is mapped
        return {**self.__dict__, "_maps": {}}
