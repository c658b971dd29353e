# SPDX-License-Identifier: MIT
"""Finds and starts the process's decoder program. Only this program is linked with FFmpeg, which belongs
to the system: the wheel contains a decoder for each major version of FFmpeg that it was built for."""

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
# a fork copies the lock, perhaps while a thread holds it that the new process lacks
os.register_at_fork(after_in_child=_lock._at_fork_reinit)  # type: ignore[attr-defined]
_started: dict[int, _core.Decoder] = {}  # one decoder per process; a forked process starts a new one


def _environments_libraries() -> str | None:
    """Returns the folder of conda's libraries, which the loader does not search by default; None
    outside conda."""
    return os.path.join(sys.prefix, "lib") if os.path.isdir(os.path.join(sys.prefix, "conda-meta")) else None


@contextlib.contextmanager
def searching(*folders: str) -> Iterator[None]:
    """Programs started in this context search for libraries in conda's folder too."""
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
    """Returns the loader's message if one of our programs does not start; None if it starts."""
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
    """Returns the decoders' folders, newest FFmpeg first."""
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
    was_killed = any(KILLED in w for w in words)  # then FFmpeg's libraries may be present
    raise error(
        "QV_EBACKEND",
        f"{DIES if was_killed else HELP} ({'; '.join(words) or 'no decoder was built'})",
    )


def find_any() -> str:
    """Returns the path of a decoder. If none works, clips fail with a message that gives the reason."""
    try:
        return find()
    except Error:
        return os.path.join((*_majors(), FOLDER)[0], "qwenvit-decoder")


def start() -> _core.Decoder:
    """Returns this process's decoder."""
    with _lock:
        if os.getpid() not in _started:
            program = find()
            with searching():
                decoder = _core.Decoder(os.fsencode(program))
            _started.clear()
            _started[os.getpid()] = decoder
        return _started[os.getpid()]
