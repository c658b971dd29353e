# SPDX-License-Identifier: MIT
"""The programs that are linked with FFmpeg: the decoder, one for a process, and the command. There is a
folder of them for each major of FFmpeg that this wheel was built for; its libraries are the system's."""

import glob
import os
import re
import subprocess
import threading

from . import _core
from ._arrays import error

FOLDER = os.path.dirname(os.path.abspath(__file__))
HELP = (
    "clips and pictures in files are decoded by FFmpeg's libraries, which are not here: install them "
    "(apt-get install ffmpeg, dnf install ffmpeg-libs, conda install ffmpeg), or give frames as arrays"
)

_lock = threading.Lock()
_started = {}  # by process: a fork starts its own


def _missing(program):
    """Why a program of ours does not start, in its loader's words; None if it does."""
    try:
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
    """The folders, the newest FFmpeg first."""
    folders = glob.glob(os.path.join(glob.escape(FOLDER), "ffmpeg-*"))
    numbers = {f: re.fullmatch(r"ffmpeg-(\d+)", os.path.basename(f)) for f in folders}
    return sorted((f for f in folders if numbers[f]), key=lambda f: -int(numbers[f][1]))


def find(name):
    """The path of a program, "qwenvit-decoder" or "qwenvit", for the newest FFmpeg that it starts with."""
    words = []
    for folder in _majors():
        program = os.path.join(folder, name)
        why = _missing(program)
        if why is None:
            return program
        words.append(f"{os.path.basename(folder)}: {why}")
    raise error("QV_EBACKEND", f"{HELP} ({'; '.join(words) or f'no {name} was built'})")


def start():
    """The decoder of this process."""
    with _lock:
        if os.getpid() not in _started:
            decoder = _core.Decoder(find("qwenvit-decoder"))
            _started.clear()
            _started[os.getpid()] = decoder
        return _started[os.getpid()]
