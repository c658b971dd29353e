# SPDX-License-Identifier: MIT
"""The programs that are linked with FFmpeg: the decoder, of which each process has one, and the
command. The wheel has a folder of them for each major of FFmpeg that it was built for. FFmpeg's
libraries are the system's."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator

from . import _core
from ._error import error

FOLDER = os.path.dirname(os.path.abspath(__file__))
HELP = (
    "clips and images in files are decoded by FFmpeg's libraries, which are not here: install them "
    "(apt-get install ffmpeg, dnf install ffmpeg-libs, conda install ffmpeg), or give frames as arrays"
)

_lock = threading.Lock()
# a fork copies the lock, perhaps held by a thread that is not in the new process
os.register_at_fork(after_in_child=_lock._at_fork_reinit)  # type: ignore[attr-defined]
_started: dict[int, _core.Decoder] = {}  # one decoder for each process; a fork starts its own


def _environments_libraries() -> str | None:
    """Returns the folder of conda's libraries, in which the loader does not look by itself. None
    outside conda."""
    return os.path.join(sys.prefix, "lib") if os.path.isdir(os.path.join(sys.prefix, "conda-meta")) else None


@contextlib.contextmanager
def searching(*folders: str) -> Iterator[None]:
    """Lets programs that are started meanwhile look for libraries in conda's folder too."""
    name = "LD_LIBRARY_PATH"
    before, more = os.environ.get(name), [f for f in (*folders, _environments_libraries()) if f]
    if more:
        os.environ[name] = ":".join([before, *more] if before else more)
    try:
        yield
    finally:
        if before is not None:
            os.environ[name] = before
        else:
            os.environ.pop(name, None)


def _missing(program: str) -> str | None:
    """Returns why a program of ours does not start, in its loader's words. None if it starts."""
    try:
        with searching():
            done = subprocess.run(
                [program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=60
            )
    except (OSError, subprocess.TimeoutExpired) as e:
        return str(e)
    if done.returncode == 0:
        return None
    words = done.stderr.decode(errors="replace").strip()
    return words or f"{program} ended with {done.returncode}"


def _majors() -> list[str]:
    """Returns the folders, the newest FFmpeg first."""
    majors = [int(m[1]) for m in map(re.compile(r"ffmpeg-(\d+)").fullmatch, os.listdir(FOLDER)) if m]
    return [os.path.join(FOLDER, f"ffmpeg-{major}") for major in sorted(majors, reverse=True)]


def find(name: str) -> str:
    """Returns the path of "qwenvit-decoder" or "qwenvit", for the newest FFmpeg that works."""
    words = []
    for folder in _majors():
        program = os.path.join(folder, name)
        why = _missing(program)
        if why is None:
            return program
        words.append(f"{os.path.basename(folder)}: {why}")
    raise error("QV_EBACKEND", f"{HELP} ({'; '.join(words) or f'no {name} was built'})")


def start() -> _core.Decoder:
    """Returns the decoder of this process."""
    with _lock:
        if os.getpid() not in _started:
            program = os.environ.get("QWENVIT_DECODER") or find("qwenvit-decoder")
            with searching():
                decoder = _core.Decoder(os.fsencode(program))
            _started.clear()
            _started[os.getpid()] = decoder
        return _started[os.getpid()]
