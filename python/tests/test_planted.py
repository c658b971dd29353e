# SPDX-License-Identifier: MIT
"""Tests decoders in hostile hands (tests/faulty_decoder.c) between good ones: each costs only its
own clip, with an error text."""
import os
import signal

import numpy as np
import pytest

import qwenvit
from conftest import added

FAULTY = os.environ.get("QV_FAULTY_DECODER", "")
pytestmark = pytest.mark.skipif(not os.access(FAULTY, os.X_OK), reason="QV_FAULTY_DECODER is no program")
FAULTS = {
    "deaf": "accepts no requests", "deaf and dumb": "no sign of life", "exit 0": "exited with code 0", "exit 7": "exited with code 7",
    "opening exit 8": "exited with code 8", "signal 9": "signal 9", "signal 11": "signal 11", "end 4": "????",
    "end 5": "????", "end 7": "????", "end 8": "????", "opening end 7": "????", "rate nan": "an impossible reply",
    "duration nan": "an impossible reply", "busy above": "an impossible reply", "frames": "an impossible reply",
    "garbage": "an impossible reply",
}
OPTIONS = {"num_frames": 400, "min_pixels": 1, "max_pixels": 400 * 32 * 32, "decode_seconds": 10}


@pytest.fixture
def planted(movie, tmp_path, monkeypatch):
    """Returns plant(fault), which makes a clip whose decoder has that fault. It has so many frames
    that the requests for them would fill a socket."""
    from qwenvit import _decoder

    program = tmp_path / "ffmpeg-1" / "qwenvit-decoder"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{FAULTY}" "$@"\n')
    os.chmod(program, 0o755)
    monkeypatch.delenv("QV_FAULT", raising=False)
    monkeypatch.setattr(_decoder, "FOLDER", str(tmp_path))
    monkeypatch.setattr(_decoder, "_started", {})

    def plant(fault=None):
        if fault is None:
            return str(movie)
        path = tmp_path / f"{fault}.mp4"
        box = b"planted: " + fault.encode()
        path.write_bytes(movie.read_bytes() + b"\0\0\0\x30free" + box.ljust(40))
        return str(path)

    return plant


def test_each_costs_its_clip(model, planted):
    sources = [{"path": planted(), "key": "first"}]
    for i, fault in enumerate(FAULTS):
        sources += [{"path": planted(fault), "key": fault}, {"path": planted(), "key": f"good {i}"}]
    expected = np.asarray(model.encode(planted(), **OPTIONS).tokens)
    done, failed = {}, {}
    for tokens in model.encode(sources, errors="yield", **OPTIONS):
        if isinstance(tokens, qwenvit.Error):
            failed[tokens.key] = tokens
        else:
            done[tokens.key] = np.asarray(tokens.tokens)
    assert set(failed) == set(FAULTS) and len(done) == len(FAULTS) + 1
    for key, e in failed.items():
        assert e.status == "QV_EFORMAT" and FAULTS[key] in str(e) and str(e).isprintable(), (key, e.status, str(e))
    for key, tokens in done.items():
        assert np.array_equal(tokens, expected), key


def kill_decoder():
    """Kills the program that decodes, as a system without memory would. Its own processes are not our children."""
    for child in " ".join(open(f"/proc/self/task/{t}/children").read() for t in os.listdir("/proc/self/task")).split():
        if b"faulty" in open(f"/proc/{child}/cmdline", "rb").read():
            os.kill(int(child), signal.SIGKILL)
            return 1
    return 0


def test_a_killed_decoder_is_started_again(golden, own, planted, tmp_path):
    model = own
    expected = np.asarray(model.encode(planted(), **OPTIONS).tokens)

    def is_right(tokens):
        return np.array_equal(np.asarray(tokens.tokens), expected)

    assert kill_decoder() and is_right(model.encode(planted(), **OPTIONS))
    assert kill_decoder() and model.preprocess(planted(), **OPTIONS).pixel_values.shape[0] > 0
    other = qwenvit.load(golden, backend="cpu", dtype="f32", threads=1)
    assert kill_decoder() and is_right(other.encode(planted(), **OPTIONS))
    many, killed, n = model.encode([planted()] * 12, **OPTIONS), 0, 0
    for tokens in many:
        n += is_right(tokens)
        killed += kill_decoder() if n == 4 else 0
    assert (n, killed) == (12, 1)
    assert is_right(model.encode(planted(), **OPTIONS))  # all twelve may have been decoded before the kill
    with qwenvit.CacheWriter(model, tmp_path / "cache", **OPTIONS) as cache:
        assert kill_decoder() and cache.add([planted()])["done"] == 1


def test_a_cache_goes_on_past_them(model, planted, tmp_path):
    rows = [{"path": planted(fault), "key": fault or "good"} for fault in ("end 7", "exit 7", None, "rate nan")]
    for run in range(2):
        counts = added(model, tmp_path / "cache", rows, **OPTIONS)
        assert (counts["done"], counts["failed"]) == ((1, 3), (0, 0))[run], counts
        assert (counts["there"], counts["failed_before"]) == ((0, 0), (1, 3))[run], counts
    assert set(qwenvit.Cache(tmp_path / "cache")) == {"good"}
