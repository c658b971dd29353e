# SPDX-License-Identifier: MIT
"""Adds the clips and images of a Ray dataset to a cache of vision tokens, and reads a cache's tokens as rows.

    python ray_cache.py clips.jsonl --model Qwen3-VL-4B-Instruct -o /shared/tokens --actors 8 --num-gpus 1

An actor writes one part per batch, and seals it before it reports the batch to Ray. So a batch that Ray repeats after
a crash is found in the cache, or is encoded again and counted once by readers. A repeated run continues.
"""
import argparse
from collections import Counter

import ray

import qwenvit

FIELDS = ("path", "key", "start", "end", "fps", "max_frames", "max_pixels", "first_frame", "offset", "bytes")  # of a list


class Writer:
    """An actor. model and out are folders that all nodes share; load: arguments of qwenvit.load; options: of qwenvit.CacheWriter."""

    def __init__(self, model, out, load, options):
        cores = int(ray.get_runtime_context().get_assigned_resources().get("CPU", 0))  # this actor's share; 0: all
        self.cache = qwenvit.CacheWriter(qwenvit.load(model, threads=cores, **load), out, decoders=cores, **options)

    def __call__(self, batch):
        rows = batch.select([name for name in FIELDS if name in batch.column_names]).to_pylist()
        return {name: [n] for name, n in self.cache.add(rows).items()}


def write_cache(rows, model, out, *, actors=1, num_gpus=None, num_cpus=None, batch_size=256, load=None, **options):
    """Returns the counts of CacheWriter.add. Each actor has num_gpus GPUs or num_cpus cores; unknown columns are ignored."""
    done = rows.map_batches(
        Writer, fn_constructor_args=(model, out, load or {}, options), batch_format="pyarrow", batch_size=batch_size,
        num_gpus=num_gpus, num_cpus=num_cpus, concurrency=actors)
    counts = Counter()
    for row in done.iter_rows():
        counts.update(row)
    return dict(counts)


class Reader:
    def __init__(self, folder):
        self.cache = qwenvit.Cache(folder)

    def __call__(self, row):
        entry = self.cache[row["key"]]
        tokens = entry.packed()  # [n, width], with DeepStack's columns after the tokens'; as bytes, because Arrow has no bf16
        return {**row, "dtype": entry.dtype, "shape": tokens.shape, "tokens": tokens.tobytes(), "grid_thw": entry.grid_thw[0]}


def read_cache(folder, readers=1):
    """Returns a dataset of the keys whose tokens are ok, part by part."""
    cache = qwenvit.Cache(folder)
    keys = ray.data.from_items([{"key": key} for key in sorted(cache, key=cache.part_of)])
    return keys.map(Reader, fn_constructor_args=(folder,), concurrency=readers)


if __name__ == "__main__":
    p = argparse.ArgumentParser(description="Adds the rows of JSON files to a cache.")
    p.add_argument("lists", nargs="+", metavar="LIST")
    p.add_argument("--model", required=True)
    p.add_argument("-o", dest="out", required=True)
    p.add_argument("--actors", type=int, default=1)
    p.add_argument("--num-gpus", type=float)
    p.add_argument("--num-cpus", type=float)
    o = p.parse_args()
    print(write_cache(ray.data.read_json(o.lists), o.model, o.out, actors=o.actors, num_gpus=o.num_gpus, num_cpus=o.num_cpus))
