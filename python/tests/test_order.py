# SPDX-License-Identifier: MIT
"""Tests the results of many sources: their order, how much of them waits, and how progress is told.
"""
import itertools
import os
import re
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import qwenvit
from qwenvit import _stream

WIDE = {"min_pixels": 1, "max_pixels": 1 << 30}


def of(n, size=32):
    """Returns n frames whose bytes tell them from others."""
    return np.full((n, size, size, 3), n % 256, np.uint8)


def shape(result):
    return tuple(result.grid_thw.tolist()[0])


@pytest.fixture
def may_wait(monkeypatch):
    """Returns a function that sets how many bytes of sources and results may wait."""
    monkeypatch.setattr(_stream, "FOR_A_DECODER", 0)
    return lambda most: monkeypatch.setattr(_stream, "MOST_AHEAD", most)


@pytest.fixture(scope="module")
def mixed(clip, frames, tmp_path_factory):
    """Returns sources of every kind and length, the longest first, with failures of every stage
    among them, and what each gives."""
    folder = tmp_path_factory.mktemp("mixed")
    (folder / "bad.mp4").write_bytes(b"nonsense" * 100)
    (folder / "image.ppm").write_bytes(b"P6\n90 70\n255\n" + frames[0].tobytes())
    image = str(folder / "image.ppm")
    sources = [of(600, 64), str(clip), image, folder / "bad.mp4", 3, str(clip), {"path": image, "fps": "2"}, of(2),
               (folder / "image.ppm").read_bytes(), {"path": str(folder / "none.mp4"), "key": "mine"}, image,
               {"key": 0}]
    failures = {3: "QV_EFORMAT", 4: "QV_EINVAL", 6: "QV_EINVAL", 9: "QV_EIO", 11: "QV_EINVAL"}
    keys = ["0", str(clip), image, str(folder / "bad.mp4"), "4", str(clip), image, "7", "8", "mine", image, "11"]
    return sources, failures, keys


def test_a_list_comes_in_its_order_with_failures_in_their_places(model, mixed):
    sources, failures, keys = mixed
    results = list(model.encode(sources, errors="yield", **WIDE))
    assert [r.index for r in results] == list(range(len(sources))) and [r.key for r in results] == keys
    assert {r.index: r.status for r in results if isinstance(r, qwenvit.Error)} == failures
    for source, result in zip(sources, results):
        if not isinstance(result, qwenvit.Error):
            assert (result.tokens == model.encode(source, **WIDE).tokens).all(), result
    paths = [s for s in sources if isinstance(s, str)]
    pairs = list(zip(paths, model.encode(paths)))
    assert len(pairs) == len(paths) and all(path == result.key for path, result in pairs)


def test_without_an_order_what_is_done_comes_first(model, mixed):
    sources, failures, _ = mixed
    results = list(model.encode(iter(sources), errors="yield", ordered=False, **WIDE))
    order = [r.index for r in results]
    assert sorted(order) == list(range(len(sources))) and order != sorted(order)
    assert {r.index for r in results if isinstance(r, qwenvit.Error)} == set(failures)


def test_the_first_failure_in_order_is_raised_behind_what_comes_before(model, mixed):
    sources, _, keys = mixed
    many, seen = model.encode(sources[1:], **WIDE), []
    with pytest.raises(qwenvit.Error) as e:
        for result in many:
            seen.append(result.index)
    assert seen == [0, 1] and (e.value.index, e.value.key) == (2, keys[3])
    assert len(model.encode(sources[2]))


def test_sources_that_all_fail_come_before_their_iterator_ends(model):
    many = model.encode(itertools.repeat(3), errors="yield")
    assert [next(many).index for _ in range(3)] == [0, 1, 2]
    many.close()


@pytest.mark.parametrize("ordered", [True, False])
def test_what_is_ahead_is_bounded_in_bytes(model, may_wait, ordered):
    """Adding stops when more waits than may wait: the first source is long, and its tokens alone
    are more than that."""
    token = 4 * model.info["out_hidden"] * (1 + model.info["n_deepstack"])
    may_wait(60 * (token + 300))  # a result of one token, and what is kept with it
    taken = []

    def sources():
        for i in range(400):
            taken.append(i)
            yield of(2000, 64) if i == 0 else of(2)

    many = model.encode(sources(), ordered=ordered, **WIDE)
    first = next(many)
    time.sleep(0.3)  # the taker of results is slow
    assert len(taken) < 100, "sources are added without end"
    rest = list(many)
    indices = [first.index, *(r.index for r in rest)]
    assert (indices if ordered else sorted(indices)) == list(range(400))
    assert max(len(r) for r in [first, *rest]) == 4000


def test_a_slow_first_source_holds_nobody_up(model, movie):
    """More results come before it than may wait anywhere. A sink that waited for it would wait for
    ever."""
    first = {"path": movie, "fps": 25, "min_pixels": 100 * 480 * 360, "max_pixels": 1 << 30}
    sources = [first, *(of(2, 64) for _ in range(600))]  # of several chunks
    indices = []
    thread = threading.Thread(
        target=lambda: indices.extend(r.index for r in model.encode(sources, min_pixels=1)), daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "it waits for ever"
    assert indices == list(range(601))


def test_progress_has_a_total_and_an_end(model, clip):
    seen = []
    list(model.encode([clip] * 4 + [3], errors="yield", progress=seen.append))
    assert {p["total"] for p in seen} == {5} and seen[-1]["done"] == 5 and seen[-1]["failed"] == 1
    assert seen[-1]["left_s"] == 0 and all(p["left_s"] is None or p["left_s"] >= 0 for p in seen)
    seen.clear()
    list(model.encode(iter([clip] * 2), progress=seen.append))
    assert {(p["total"], p["left_s"]) for p in seen} == {(None, None)}


def test_progress_on_a_terminal(golden, clip):
    """The line is that of the command."""
    pty = pytest.importorskip("pty")
    code = f"import qwenvit; m = qwenvit.load({golden!r}, device='cpu')\n" \
           f"for t in m.encode([{str(clip)!r}] * 3 + ['none.mp4'], progress=True, errors='yield'): pass"
    ours, theirs = pty.openpty()
    run = subprocess.run([sys.executable, "-c", code], stderr=theirs, timeout=60)
    os.close(theirs)
    said = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert run.returncode == 0, said
    last = said.replace("\x1b[K", "").strip().split("\r")[-1]
    assert re.fullmatch(
        r"4/4 clips \(1 failed\), [\d.]+ clips/s, \d+ tokens/s, 0:00 left, limited by \w+", last), said


def test_time_is_written_as_the_command_writes_it():
    assert [_stream._time(s) for s in (0, 59.6, 185, 7385)] == ["0:00", "1:00", "3:05", "2:03:05"]
