# SPDX-License-Identifier: MIT
"""The program that decodes clips, one for a process; FFmpeg's libraries are the system's."""

import glob
import os
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


def missing(program):
    """Why a program of ours does not start: its loader's words; None if it does."""
    try:
        done = subprocess.run(
            [program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=60
        )
    except OSError as e:
        return str(e)
    if done.returncode != 127:
        return None
    return done.stderr.decode(errors="replace").strip()


def start():
    """The decoder of this process: of those that were built, for one FFmpeg each, the first that starts."""
    with _lock:
        if os.getpid() not in _started:
            words = []
            for program in sorted(glob.glob(os.path.join(FOLDER, "qwenvit-decoder*")), reverse=True):
                why = missing(program)
                if why is None:
                    _started.clear()
                    _started[os.getpid()] = _core.Decoder(program)
                    break
                words.append(why)
            else:
                raise error("QV_EBACKEND", f"{HELP} ({'; '.join(words) or 'no decoder was built'})")
        return _started[os.getpid()]
