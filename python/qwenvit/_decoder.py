# SPDX-License-Identifier: MIT
"""The decoder; each process has one. It alone is linked with FFmpeg, whose libraries are the
system's: the wheel has a folder with one for each major of FFmpeg that it was built for."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

from . import _core
from ._error import Error, error

FOLDER = os.path.dirname(os.path.abspath(__file__))
HELP = (
    "decoding clips and images from files needs FFmpeg's libraries, which were not found: install them "
    "(apt-get install ffmpeg, dnf install ffmpeg-libs, conda install ffmpeg), or pass frames as arrays"
)
KILLED = "killed by signal"
DIES = "qwenvit-decoder, which decodes clips and images from files, was killed at its start"

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
    if done.returncode < 0:
        perhaps = ", perhaps because memory ran out" if done.returncode == -signal.SIGKILL else ""
        return f"{KILLED} {-done.returncode} ({signal.strsignal(-done.returncode)}){perhaps}"
    words = done.stderr.decode(errors="replace").strip()
    return words or f"{program} exited with code {done.returncode}"


def _majors() -> list[str]:
    """Returns the folders, the newest FFmpeg first."""
    majors = [int(m[1]) for m in map(re.compile(r"ffmpeg-(\d+)").fullmatch, os.listdir(FOLDER)) if m]
    return [os.path.join(FOLDER, f"ffmpeg-{major}") for major in sorted(majors, reverse=True)]


def find() -> str:
    """Returns the path of the decoder: the environment's, or the one for the newest FFmpeg that works."""
    words = []
    if program := os.environ.get("QWENVIT_DECODER"):
        return program
    for folder in _majors():
        program = os.path.join(folder, "qwenvit-decoder")
        why = _missing(program)
        if why is None:
            return program
        words.append(f"{os.path.basename(folder)}: {why}")
    was_killed = any(KILLED in w for w in words)  # so FFmpeg's libraries may be here
    raise error(
        "QV_EBACKEND",
        f"{DIES if was_killed else HELP} ({'; '.join(words) or 'no decoder was built'})",
    )


def find_any() -> str:
    """Returns the path of a decoder. Where none works, clips fail, and say why."""
    try:
        return find()
    except Error:
        return os.path.join((*_majors(), FOLDER)[0], "qwenvit-decoder")


def start() -> _core.Decoder:
    """Returns the decoder of this process."""
    with _lock:
        if os.getpid() not in _started:
            program = find()
            with searching():
                decoder = _core.Decoder(os.fsencode(program))
            _started.clear()
            _started[os.getpid()] = decoder
        return _started[os.getpid()]
