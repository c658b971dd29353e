# SPDX-License-Identifier: MIT
"""For those who encode and train by Ray Data: an encoder for map_batches, a cache made by a cluster,
and a cache read by one.

    rows = ray.data.read_parquet("clips").map_batches(
        Encoder, fn_constructor_kwargs={"model": "Qwen3-VL-4B-Instruct", "fps": 2},
        batch_format="pyarrow", batch_size=64, num_gpus=1,
        compute=ray.data.ActorPoolStrategy(size=8))
    counts = write_cache(dataset, "Qwen3-VL-4B-Instruct", "/shared/tokens", actors=8,
    num_gpus=1)
    rows = ray.data.read_datasource(CacheDatasource("/shared/tokens"))

Rows with tokens have the columns of SCHEMA. Matrices are bytes with a dtype and a shape;
matrices(row) makes arrays of them. Cache.to_parquet() writes the same rows.

Encoder, matrices and SCHEMA need only pyarrow, so other programs that feed tables to actors can use
them without Ray.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

try:
    import ray
    from ray.data import ActorPoolStrategy, Datasource
    from ray.data.block import BlockMetadata
    from ray.data.datasource import ReadTask
except ImportError as e:
    ray, Datasource, no_ray = None, object, str(e)

from .. import _check
from .._cache import Cache
from .._cache_writer import COUNTS, FIELDS, CacheWriter
from .._core import ROW_OPTIONS, CacheRow
from .._error import Error, error
from .._files import DTYPES
from .._model import Model, load
from .rows import SCHEMA, matrices as matrices, row_of, tables, tables_of


def _need_ray(what: str) -> None:
    if ray is None:
        raise error("QV_EUNSUPPORTED", f"{what} needs Ray (pip install 'ray[data]'): {no_ray}")


def _absolute(path: _check.Path, name: str) -> str:
    """Returns a path that other processes can find."""
    return os.path.abspath(os.fsdecode(_check.path(path, name)))


def _share() -> int:
    """Returns how many cores this actor was given. 0 stands for all there are, if it was given
    none."""
    if ray is None or not ray.is_initialized():  # asking for Ray's context would start Ray
        return 0
    context = ray.get_runtime_context()
    cpus = context.get_assigned_resources().get("CPU", 0) if context.get_actor_id() else 0
    return max(1, int(cpus)) if cpus else 0


def _load(model: _check.Path, load_options: dict[str, Any] | None) -> Model:
    """Loads the model on the one GPU that Ray lets this actor see, or on its share of the cores."""
    if load_options is not None and not isinstance(load_options, dict):
        raise _check.wrong("load_options", load_options, "a dict, of arguments of qwenvit.load")
    return load(model, **{"threads": _share(), **(load_options or {})})


# ---- clips to tokens -------------------------------------------------------------------------------


class Encoder:
    """An encoder for Dataset.map_batches with batch_format="pyarrow": rows with a `path` get the
    columns of SCHEMA.

    An actor loads the model once. There is one actor for each GPU (num_gpus=1), or one for each
    num_cpus cores, which then are its threads. A row may have options of its own: start, end, fps,
    max_frames, max_pixels, first_frame, and the offset and bytes of a clip inside a file. Its other
    columns are kept. A row that fails, or has no path, has status "failed", a code and an error.
    Rows stay in order. A batch is decoded side by side and packed into full chunks, so it should
    have 32 rows or more.

    model: a checkpoint's folder.
    dtype: of the tokens, "bf16" or "f32".
    load_options: options of qwenvit.load (backend, dtype, threads).
    options: as in Model.encode.
    """

    def __init__(
        self, model: _check.Path, *, dtype: Any = "bf16", deepstack: bool = True, load_options: dict[str, Any] | None = None, **options: Any
    ) -> None:
        self.model = _load(model, load_options)
        self.dtype, self.deepstack, self.options = dtype, _check.flag(deepstack, "deepstack"), options

    def __call__(self, batch: Any) -> Iterator[Any]:
        if not isinstance(batch, pa.Table):
            found = f'a batch is a {type(batch).__name__}; give map_batches batch_format="pyarrow"'
            raise error("QV_EINVAL", found)
        kept = batch.drop_columns([name for name in SCHEMA.names if name in batch.column_names])
        asked = kept.select([name for name in FIELDS if name in kept.column_names and name != "key"])
        results = self._encode(asked.to_pylist() or [{}] * len(batch))
        at = 0
        for table in tables(results, SCHEMA):
            part = kept.slice(at, len(table))
            for name, column in zip(SCHEMA.names, table.columns):
                part = part.append_column(name, column)
            at += len(table)
            yield part

    def _encode(self, rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        results: list[Any] = [None] * len(rows)
        sources = []
        for place, row in enumerate(rows):
            row = {k: v for k, v in row.items() if v is not None}
            if not row.get("path"):
                results[place] = error("QV_EINVAL", "a row without a path")
                continue
            try:
                CacheRow({**row, "key": str(place)})  # checks it
            except Error as e:
                results[place] = e
                continue
            own = {ROW_OPTIONS[name]: value for name, value in row.items() if name in ROW_OPTIONS}
            if "fps" in own:
                own["num_frames"] = 0  # which all rows may have
            sources.append({"path": row["path"], "key": str(place), **own})
        encoded = self.model.encode(
            sources, dtype=self.dtype, errors="yield", ordered=False, decoders=_share(), **self.options
        )
        for result in encoded:
            results[int(str(result.key))] = result
        return map(self._row, results)

    def _row(self, result: Any) -> dict[str, Any]:
        if isinstance(result, Error):
            return {"status": "failed", "code": result.status, "error": str(result)}
        return row_of(result, self.deepstack)


# ---- clips to a cache ------------------------------------------------------------------------------


def write_cache(
    dataset: Any, model: _check.Path, out: _check.Path, *, actors: int = 1, num_gpus: float | None = None,
    num_cpus: float | None = None, batch_size: int = 256, load_options: dict[str, Any] | None = None, **options: Any,
) -> dict[str, int]:
    """Makes the cache that `qwenvit cache` makes of the same list, in a folder that all nodes see.

    dataset: rows with `path` and, optionally, key, start, end, fps, max_frames, max_pixels,
        first_frame, offset and bytes; other columns are ignored. Keys should be unique: of rows
        with the same key only one counts.
    actors: how many actors; each has num_gpus GPUs or num_cpus cores.
    model, load_options: as in Encoder.
    options: as in CacheWriter.

    An actor writes a part for every batch of rows, and seals it before Ray hears that the batch is
    done. So whatever Ray runs again after a crash is either found in the cache, or done again and
    counted once by readers. After any end the call can be repeated, and continues. Damaged parts
    (qwenvit.Cache(out).damaged) are skipped, and what they had is done again.

    Returns the counts of CacheWriter.add over all actors. Raises Error for a row without a path, a
    cache of another model or sampling, and a disk or device that fails; what was done is kept.
    """
    _need_ray("write_cache")
    written = dataset.map_batches(
        _Writer,
        fn_constructor_args=(_absolute(model, "model"), _absolute(out, "out"), load_options, options),
        batch_format="pyarrow", batch_size=batch_size, num_gpus=num_gpus, num_cpus=num_cpus,
        compute=ActorPoolStrategy(size=actors),
    )
    counts = dict.fromkeys(COUNTS, 0)
    for table in written.iter_batches(batch_size=None, batch_format="pyarrow"):
        for row in table.to_pylist():
            if row["code"]:
                raise error(row["code"], row["error"])
            counts = {name: n + row[name] for name, n in counts.items()}
    return counts


class _Writer:
    """An actor of write_cache. It returns its Errors as rows, because Ray would wrap exceptions and
    retry some of them."""

    def __init__(self, model: str, out: str, load_options: dict[str, Any] | None, options: dict[str, Any]) -> None:
        self.failure: Error | None = None
        try:
            self.cache = CacheWriter(_load(model, load_options), out, **{"decoders": _share(), **options})
        except Error as e:
            self.failure = e

    def __call__(self, table: Any) -> Any:
        counts = dict.fromkeys(COUNTS, 0)
        if not self.failure:
            try:
                counts = self._add(table)
            except Error as e:
                self.failure = e  # the run ends; what Ray still sends is not begun
        words = {"code": self.failure and self.failure.status, "error": self.failure and str(self.failure)}
        return pa.table({k: [v] for k, v in {**counts, **words}.items()})

    def _add(self, table: Any) -> dict[str, int]:
        if "path" not in table.column_names:
            raise error("QV_EINVAL", f"no column path; there are {', '.join(table.column_names)}")
        return self.cache.add(table.select([f for f in FIELDS if f in table.column_names]).to_pylist())


# ---- a cache to rows -------------------------------------------------------------------------------


class CacheDatasource(Datasource):
    """A source for ray.data.read_datasource: the keys of a cache that are ok, each a row with `key`
    and the columns of SCHEMA.

    Each task reads a run of keys in the order of the parts, in blocks of 64 MiB or a little more. A
    key that was written twice gives one row.

    keys: the keys to read, or None for all.

    Raises Error if the folder is no cache, or lacks one of the keys.
    """

    def __init__(self, folder: _check.Path, keys: Iterable[str] | None = None) -> None:
        _need_ray("CacheDatasource")
        super().__init__()
        self.cache = Cache(_absolute(folder, "folder"))
        wanted = list(self.cache) if keys is None else _check.items(keys, "keys")
        for key in wanted:
            if key not in self.cache:
                raise error("QV_EINVAL", f"{key!r} is not in the cache {self.cache.folder}", key)
        items = {key: self.cache[key]._item for key in wanted}
        self.keys = sorted(wanted, key=items.__getitem__)  # in the order of the parts

    def get_name(self) -> str:
        return "QwenvitCache"

    def _bytes(self, keys: list[str]) -> int:
        cache = self.cache
        row = cache.width * (1 + cache.n_deepstack) * DTYPES[cache.dtype][1]
        return sum(len(cache[key]) for key in keys) * row

    def estimate_inmemory_data_size(self) -> int:
        return self._bytes(self.keys)

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[Any]:
        n = len(self.keys)
        bounds = [i * n // parallelism for i in range(parallelism + 1)]
        shares = [self.keys[first:last] for first, last in zip(bounds, bounds[1:]) if first < last]
        return [self._task(keys, per_task_row_limit) for keys in shares]

    def _task(self, keys: list[str], limit: int | None) -> Any:
        folder, names = self.cache.folder, self.cache._reader.parts()
        # the parts that a task opens
        parts = [names[i] for i in sorted({self.cache.part_of(key) for key in keys})]
        facts = BlockMetadata(
            num_rows=len(keys), size_bytes=self._bytes(keys), input_files=None, exec_stats=None
        )
        return ReadTask(lambda: _read(folder, parts, keys), facts, per_task_row_limit=limit)


def _read(folder: str, parts: list[bytes], keys: list[str]) -> Iterator[Any]:
    cache = Cache._of_parts(folder, parts)
    if cache.damaged:  # parts that were pruned since
        cache = Cache(folder)
    return tables_of(cache[key] for key in keys)
