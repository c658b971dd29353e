# SPDX-License-Identifier: MIT
"""Writes a cache as a folder of files, one for each of its parts; parquet.py and webdataset.py have the forms of the
files. `python -m qwenvit cache export` is this."""

from __future__ import annotations

import argparse
import contextlib
import glob
import hashlib
import json
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple

from .. import _check, _files
from .._cache import Cache, Entry
from .._error import Error, error

NEEDS = ": pip install 'qwenvit[export]'"
# ends the name of a file that is being written; {} is the process
OURS = f".{socket.gethostname()}-{{}}.tmp"


class Form(NamedTuple):
    """The form of files. Each holds a mark, by which a later export knows whose tokens are in it."""

    ending: str
    write: Callable[[str, list[Entry], bytes], None]  # of a path, a part's entries, and their mark
    mark_of: Callable[[str], bytes | None]  # of a path; None: the file is not ours
    option: str | None = None  # files written with another one are written again


def not_ours(path: str) -> Error:
    return error("QV_EFORMAT", f"{path}: this file is not of an export; move it away")


@contextlib.contextmanager
def whole(path: str) -> Iterator[BinaryIO]:
    """Gives a file that appears whole or not at all."""
    try:
        with _files.whole(path, OURS.format(os.getpid())) as f:
            yield f
    except OSError as e:
        raise error("QV_EIO", f"{path}: {e.strerror or e}") from None


def write_files(
    cache: Cache, folder: _check.Path, form: Form, progress: Callable[[dict[str, int]], object] | None = None
) -> dict[str, int]:
    """Makes a folder's files those of a cache. Returns the counts of files and keys."""
    _check.function(progress, "progress")
    folder = os.fsdecode(_check.path(folder, "folder"))
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as e:
        raise error("QV_EIO", f"{folder}: {e.strerror}") from None
    sweep(os.path.join(glob.escape(folder), "part-*"))
    counts = dict.fromkeys(("written", "there", "removed", "keys"), 0)
    there = {path: form.mark_of(path) for path in glob.glob(os.path.join(glob.escape(folder), "part-*" + form.ending))}
    parts = {_piece(name) for name in (*cache._parts(), *cache.damaged)}
    exported = {path for path, mark in there.items() if mark is not None}
    if exported and parts.isdisjoint(map(_piece, exported)):
        raise error("QV_EFORMAT", f"{folder}: its files are exported from another cache, as none is named like a part of "
                    f"{cache.folder}; name another folder, or remove them")

    def file_of(part: str) -> str:
        return os.path.join(folder, part.removesuffix(".safetensors") + form.ending)

    wanted = set(map(file_of, cache.damaged))  # which may hold the last copy of tokens
    for part, entries in cache._by_part():
        path = file_of(part)
        wanted.add(path)
        keys = [entry.key for entry in entries] + ([{"option": form.option}] if form.option else [])
        mark = hashlib.sha256(json.dumps(keys).encode()).hexdigest().encode()
        if path in there and there[path] is None:
            raise not_ours(path)
        is_there = there.get(path) == mark
        if not is_there:
            for entry in entries:
                entry.verify()
            form.write(path, entries, mark)
        counts["there" if is_there else "written"] += 1
        counts["keys"] += len(entries)
        if progress:
            progress(dict(counts))
    for path in exported - wanted:
        try:
            os.remove(path)
        except OSError as e:
            raise error("QV_EIO", f"{path}: cannot be removed: {e.strerror}") from None
        counts["removed"] += 1
    return counts


def _piece(path: str) -> str:
    """Returns the name that a part keeps when it is pruned, which numbers it."""
    return re.sub(r"(\.\d+)*\.[a-z]+$", "", os.path.basename(path))


def sweep(pattern: str) -> None:
    """Removes unfinished files of processes of this host that have ended, by the pattern of their names."""
    ours = re.compile(".*" + re.escape(OURS).replace(r"\{\}", r"(\d+)"))
    for path in glob.glob(pattern + glob.escape(OURS).format("*")):
        found = ours.fullmatch(path)
        with contextlib.suppress(OSError):  # another user's process, or a file that is gone
            try:
                if found:
                    os.kill(int(found[1]), 0)
            except ProcessLookupError:
                os.remove(path)


# ---- the command -----------------------------------------------------------------------------------


def main(arguments: list[str]) -> int:
    from . import parquet

    parser = argparse.ArgumentParser(
        prog="python -m qwenvit cache export", description="Writes a cache as Parquet or tar files, one for each of its parts; "
        "a second run continues. Exit codes: 0 done; 1 parts of the cache are damaged, the others are done; "
        "2 usage; 3 no cache, tokens that were altered, or files of something else; 4 the disk, or no pyarrow.",
        epilog="python -m qwenvit cache export tokens -o parquet")
    parser.add_argument("cache", help="a folder that `qwenvit cache fill` made")
    parser.add_argument("-o", dest="out", metavar="OUT", help="the folder of the files")
    parser.add_argument("--index", metavar="FILE", help="write what lies where; no tokens unless -o is given")
    parser.add_argument("--compression", choices=parquet.COMPRESSIONS)
    parser.add_argument("--webdataset", action="store_true", help="write tar files in place of Parquet: for each key "
                        "a safetensors file and its record as JSON")
    asked = parser.parse_args(arguments)
    if not asked.out and not asked.index:
        parser.error("-o FOLDER or --index FILE")
    if asked.webdataset and asked.compression:
        parser.error("--compression is of Parquet files")
    try:
        return _run(asked)
    except Error as e:
        print(f"qwenvit: {e}{NEEDS if e.status == 'QV_EUNSUPPORTED' else ''}", file=sys.stderr)
        return {"QV_EINVAL": 2, "QV_EFORMAT": 3}.get(e.status, 4)


def _run(asked: argparse.Namespace) -> int:
    from . import parquet, webdataset

    try:
        cache = Cache(asked.cache)
    except Error as e:
        e.status = "QV_EFORMAT" if e.status == "QV_EIO" else e.status
        raise
    for words in cache.damaged.values():
        print(f"qwenvit: {words}", file=sys.stderr)
    if asked.index:
        print(f"{parquet.write_index(cache, asked.index)}: {len(cache)} keys, {len(cache.failed)} failed")
    if asked.out:
        n = (webdataset.write_tokens(cache, asked.out) if asked.webdataset else
             parquet.write_tokens(cache, asked.out, asked.compression, _show if sys.stderr.isatty() else None))
        print(f"{asked.out}: {n['keys']} keys; {n['written']} files written, {n['there']} were there, "
              f"{n['removed']} removed")
    return 1 if cache.damaged else 0


def _show(counts: dict[str, int]) -> None:
    files = counts["written"] + counts["there"]
    print(f"\r{counts['keys']} keys in {files} files ", end="", file=sys.stderr, flush=True)
