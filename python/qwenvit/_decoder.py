# SPDX-License-Identifier: MIT
"""The decoder, of which each process has one. It alone is linked with FFmpeg, whose libraries are the
system's: the wheel has a folder with one for each major of FFmpeg that it was built for."""

import contextlib
import glob
import os
import re
import subprocess
import sys
import threading

from . import _core
from ._arrays import error

FOLDER = os.path.dirname(os.path.abspath(__file__))
HELP = (
    "clips and images in files are decoded by FFmpeg's libraries, which are not here: install them "
    "(apt-get install ffmpeg, dnf install ffmpeg-libs, conda install ffmpeg), or give frames as arrays"
)

_lock = threading.Lock()
# a fork copies the lock, perhaps held by a thread that is not in the new process
os.register_at_fork(after_in_child=_lock._at_fork_reinit)
_started = {}  # one decoder for each process; a fork starts its own


def _environments_libraries():
    """Returns the folder of conda's libraries, in which the loader does not look by itself. None
    outside conda."""
    return os.path.join(sys.prefix, "lib") if os.path.isdir(os.path.join(sys.prefix, "conda-meta")) else None


@contextlib.contextmanager
def searching(*folders):
    """Lets programs that are started meanwhile look for libraries in conda's folder too."""
    before, all_ = os.environ.get("LD_LIBRARY_PATH"), [f for f in (*folders, _environments_libraries()) if f]
    if all_:
        os.environ["LD_LIBRARY_PATH"] = ":".join([before, *all_] if before else all_)
    try:
        yield
    finally:
        if all_ and before is None:
            del os.environ["LD_LIBRARY_PATH"]
        elif all_:
            os.environ["LD_LIBRARY_PATH"] = before


def _missing(program):
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


def _majors():
    """Returns the folders, the newest FFmpeg first."""
    folders = glob.glob(os.path.join(glob.escape(FOLDER), "ffmpeg-*"))
    numbers = {f: re.fullmatch(r"ffmpeg-(\d+)", os.path.basename(f)) for f in folders}
    return sorted((f for f in folders if numbers[f]), key=lambda f: -int(numbers[f][1]))


def find():
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
    raise error("QV_EBACKEND", f"{HELP} ({'; '.join(words) or 'no decoder was built'})")


def find_any():
    """Returns the path of a decoder. Where none works, a clip fails because of it, and what needs none works."""
    try:
        return find()
    except _core.Error:
        return os.path.join(*_majors()[:1], "qwenvit-decoder")


def start():
    """Returns the decoder of this process."""
    with _lock:
        if os.getpid() not in _started:
            program = find()
            with searching():
                decoder = _core.Decoder(os.fsencode(program))
            _started.clear()
            _started[os.getpid()] = decoder
        return _started[os.getpid()]
