# SPDX-License-Identifier: MIT
"""Makes a cache of version 2 of one of version 1. `python -m qwenvit convert OLD NEW` calls this."""

from __future__ import annotations

import argparse
import glob
import json
import mmap
import os
import struct
import sys
from collections.abc import Callable
from typing import Any

from . import _core
from ._cache import Cache
from ._error import Error, error
from ._files import DTYPES, whole

FORMAT, DESCRIPTION = "qwenvit-cache", "qwenvit-cache.json"
SOURCE = ("path", "start", "end", "options", "bytes", "mtime")


class _Part:
    """A part of version 1: its tensors, and the text of each of its records."""

    def __init__(self, path: str) -> None:
        self.name, self.path, size = os.path.basename(path), path, os.path.getsize(path)
        with open(path, "rb") as f:
            n = struct.unpack("<Q", f.read(8))[0]
            if n > size - 8:
                raise ValueError("it was cut short")
            self.header, self.data = json.loads(f.read(n)), 8 + n
        about = self.header.pop("__metadata__")
        if about["format"] != FORMAT or about["version"] != "1":
            raise ValueError(f"it has version {about['version']}, not 1")
        if max((t["data_offsets"][1] for t in self.header.values()), default=0) != size - self.data:
            raise ValueError("its tensors do not end where it ends: it was cut short")
        self.sealed, text, at = int(about["sealed"]), about["records"].strip(), 1
        if not 0 <= self.sealed < 1 << 62:
            raise ValueError(f"it was sealed at {self.sealed} ns")
        self.records = []
        while at < len(text) - 1:
            record, end = json.JSONDecoder().raw_decode(text, at)
            self.records.append((record, text[at:end]))
            at = end + 1  # behind a comma
            while text[at : at + 1].isspace():
                at += 1

    def __enter__(self) -> None:
        """Maps the file. A cache may have more parts than a process may have files open."""
        with open(self.path, "rb") as f:
            self.map = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)

    def __exit__(self, *_: object) -> None:
        self.map.close()

    def tensor(self, key: str, name: str, dtype: str, *shape: int | None) -> tuple[bytes, int]:
        """Returns the bytes of a tensor, and the first number of its shape, which may be None."""
        t = self.header[f"{key}/{name}"]
        wanted = [t["shape"][i] if n is None else n for i, n in enumerate(shape)]
        (begin, end), size = t["data_offsets"], dict(DTYPES.values()).get(dtype, 8)
        for n in wanted:
            size *= n
        if t["dtype"] != dtype or t["shape"] != wanted or end - begin != size or begin < 0:
            raise ValueError(f"{key}/{name} is not what a cache of this layout has")
        return self.map[self.data + begin : self.data + end], wanted[0]

    def copied(self, record: Any, text: str, layout: Any) -> tuple[str, str, list[bytes], int, bytes, bytes]:
        """Returns a key as `write_part` takes it."""
        key, n_deepstack = record["key"], layout["n_deepstack"]
        key.encode()  # not every text of JSON is one of UTF-8
        if "\n" in text or '", "' in text or '": ' in text:  # the new part has compact records, one a line
            text = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
        if record["status"] != "ok":
            return key, text, [], 0, b"", b""
        names = ["packed"] if layout["packed"] else ["tokens", *(f"deepstack.{i}" for i in range(n_deepstack))]
        width = layout["width"] * (1 + n_deepstack if layout["packed"] else 1)
        found = [self.tensor(key, name, layout["dtype"].upper(), None, width) for name in names]
        if len({n for _, n in found}) != 1:
            raise ValueError(f"tensors of key {key} have different numbers of rows")
        grid, times = self.tensor(key, "grid_thw", "I64", 1, 3)[0], self.tensor(key, "timestamps", "F64", None)[0]
        return key, text, [data for data, _ in found], found[0][1], grid, times


def _that_count(parts: list[_Part]) -> set[tuple[str, int]]:
    """Returns the (part, place among its records) of the records that count, by the rule of docs/cache.md."""
    found: dict[str, list[tuple[int, str, int, Any]]] = {}
    count: set[tuple[str, int]] = set()
    for part in parts:
        for i, (record, _) in enumerate(part.records):
            if not isinstance(record, dict) or not isinstance(record.get("key"), str):
                count.add((part.name, i))  # where it is left out
                continue
            found.setdefault(record["key"], []).append((part.sealed, part.name, i, record))
    for records in found.values():
        last = max(records, key=lambda r: r[:2])
        ok = max((r for r in records if r[3].get("status") == "ok"), key=lambda r: r[:2], default=last)
        chosen = ok if all(ok[3].get(f) == last[3].get(f) for f in SOURCE) else last
        count.add(chosen[1:3])
    return count


def _describe(old: str, new: str) -> Any:
    """Writes the description of the new cache, or compares with one that is there. Returns the layout."""
    path = os.path.join(old, DESCRIPTION)
    try:
        with open(path, "rb") as f:
            description = json.load(f)
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError) as e:
        raise error("QV_EFORMAT", f"{path}: not a cache: {getattr(e, 'strerror', None) or e}") from None
    about = description if isinstance(description, dict) else {}
    if about.get("format") != FORMAT or about.get("version") != "1":
        raise error("QV_EFORMAT", f"{old}: version is {about.get('version')!r}; it must be '1' to be converted")
    if not isinstance(about.get("tokens"), dict):
        raise error("QV_EFORMAT", f"{path}: tokens is {about.get('tokens')!r}; it must say how tokens are stored")
    description["version"] = "2"
    os.makedirs(new, exist_ok=True)
    path = os.path.join(new, DESCRIPTION)
    if not os.path.exists(path):
        with whole(path) as f:
            f.write(json.dumps(description, indent=2, ensure_ascii=False).encode())
    with open(path, "rb") as f:
        if json.load(f) != description:
            raise error("QV_EFORMAT", f"{new}: it holds another cache")
    return description["tokens"]


def convert(old: str, new: str, tell: Callable[[str], object] = lambda words: None) -> tuple[int, int, int]:
    """Copies the records that count, their tensors and their times of sealing from the cache `old` of
    version 1 into a folder `new`. Returns (keys, parts that were left out, keys that were left out of the
    others). Run again, it goes on."""
    layout, parts, n_keys, n_parts, n_left = _describe(old, new), [], 0, 0, 0
    damaged = Cache(new).damaged
    for path in sorted(glob.glob(os.path.join(glob.escape(old), "part-*.safetensors"))):
        try:
            parts.append(_Part(path))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error) as e:
            n_parts += 1
            tell(f"{path}: left out: {e}")
    count = _that_count(parts)
    for part in parts:
        kept = [r for i, r in enumerate(part.records) if (part.name, i) in count]
        if not kept:
            continue
        keys, wrong = [], []
        with part:
            for record, text in kept:
                try:
                    keys.append(part.copied(record, text, layout))
                except (ValueError, KeyError, TypeError, IndexError, AttributeError) as e:
                    wrong.append((text, e))
            if part.name in damaged:
                os.remove(os.path.join(new, part.name))
            name = None if os.path.exists(os.path.join(new, part.name)) else os.fsencode(part.name)
            left = _core.write_part(os.fsencode(new), name, part.sealed, keys)
        wrong += [(keys[i][1], words) for i, words in left]
        for text, why in wrong:
            tell(f"{part.name}: left out: {text[:80]!r}: {why}")
        n_keys += len(kept) - len(wrong)
        n_left += len(wrong)
    return n_keys, n_parts, n_left


def main(args: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m qwenvit convert",
        description="Makes a cache of version 2 of one that qwenvit 0.3.0 or before made. The old one stays as it is.",
    )
    parser.add_argument("old", metavar="OLD", help="a folder with a cache of version 1")
    parser.add_argument("new", metavar="NEW", help="the folder that is made")
    o = parser.parse_args(args)
    try:
        n_keys, n_parts, n_left = convert(o.old, o.new, lambda words: print(f"qwenvit: {words}", file=sys.stderr))
    except (OSError, ValueError, Error) as e:
        print(f"qwenvit: {e}", file=sys.stderr)
        return 4 if isinstance(e, OSError) else 3
    left = [f"; {n} {what} left out" for n, what in ((n_parts, "parts"), (n_left, "keys")) if n]
    print(f"{o.new}: {n_keys} keys{''.join(left)}")
    return 1 if left else 0
