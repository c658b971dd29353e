# SPDX-License-Identifier: MIT
"""Tests that all calls with a model share one open job, and what that job must not do: hold anybody
up, keep anything awake, or outlive its model."""
import gc
import itertools
import threading
import time
import types
import weakref

import numpy as np
import pytest

import qwenvit
from conftest import refused, threads, together, wait_until
from qwenvit import _stream


def images(n):
    random = np.random.default_rng(7)
    return [random.integers(0, 256, (32, 32, 3), dtype=np.uint8) for _ in range(n)]


def test_lists_of_two_threads_share_chunks(own, one_item):
    """The first image goes to the device, where a forward() has its turn. All others, of both lists, then wait for
    the next chunk."""
    sources, seen, got = images(40), {}, {}
    alone = [t.tokens.tobytes() for t in own.encode(sources, min_pixels=1)]
    rows, grid, out = one_item

    def work(name, part):
        def told(p):
            seen[name] = p

        got[name] = [t.tokens.tobytes() for t in own.encode(part, min_pixels=1, progress=told)]

    both = [threading.Thread(target=work, args=a) for a in (("a", sources[:20]), ("b", sources[20:]))]

    def allocate(n):
        for thread in both:
            thread.start()
        time.sleep(0.5)  # until all of them have been added
        return out.ctypes.data, 0

    own._core.forward_at(rows, grid, allocate, "f32", False)
    for thread in both:
        thread.join(30)
    assert got["a"] + got["b"] == alone
    assert max(p["chunks"] for p in seen.values()) <= 3 and max(p["rows"] for p in seen.values()) == 40 * 4
    assert {p["added"] for p in seen.values()} == {p["done"] for p in seen.values()} == {20}


def test_a_list_that_nobody_takes_from_holds_nobody_up(own, monkeypatch):
    sources = images(100)
    with monkeypatch.context() as m:
        m.setattr(_stream, "MOST_AHEAD", 1)
        m.setattr(_stream, "FOR_A_DECODER", 0)
        left = [own.encode(itertools.cycle(sources), ordered=o) for o in (True, False)]
        for many in left:
            next(many)
    truth = [t.tokens.tobytes() for t in own.encode(sources)]
    with qwenvit.AsyncEncoder(own) as encoder:
        assert encoder.submit(sources[1]).result(30).tokens.tobytes() == truth[1]
    assert next(left[0]).tokens.tobytes() == truth[1]


def test_callers_that_differ_have_jobs_of_their_own_and_few_stay_open(own):
    (source,) = images(1)
    before = threads()
    for n in range(1, 12):
        assert len(next(own.encode([source], decoders=n)))
    with qwenvit.AsyncEncoder(own, dtype="bf16") as encoder:
        assert encoder.submit(source).result(30).dtype == "bf16"
    assert {t.dtype for t in own.encode([source] * 3)} == {"f32"}
    most = _stream.Jobs.MOST
    assert len(own._jobs._open) == most
    wait_until(lambda: len(threads() - before) <= most * (11 + 2))


def test_a_job_that_was_lost_is_replaced(own):
    sources = images(3)
    truth = [t.tokens.tobytes() for t in own.encode(sources)]
    for key in (kept := own._jobs._open):
        kept[key] = types.SimpleNamespace(lost=True), False
    assert [t.tokens.tobytes() for t in own.encode(sources)] == truth and not any(job.lost for job, _ in kept.values())


def test_a_model_that_nobody_uses_sleeps_and_goes(golden):
    before = threads()
    model = qwenvit.load(golden, backend="ref", dtype="f32", threads=1)
    list(model.encode(images(3))), model.encode(images(1)[0])
    left = model.encode(images(3))
    next(left)

    def sleeps():
        used = time.process_time()
        time.sleep(1)
        return time.process_time() - used < 0.01

    wait_until(sleeps)  # once what was read ahead is done
    assert threads() - before
    ref = weakref.ref(model)
    del model
    gc.collect()
    assert len(list(left)) == 2  # a generator holds its model
    del left
    assert ref() is None
    wait_until(lambda: not threads() - before)


def test_closing_while_others_encode(own):
    model, ends = own, []

    def work():
        with pytest.raises(qwenvit.Error, match="closed") as e:
            while True:
                list(model.encode(images(4))), model.encode(images(1)[0])
        ends.append(e.value.status)

    together(*[work] * 4, lambda: time.sleep(0.2) or model.close())
    assert ends == ["QV_ESTATE"] * 4 and not model._jobs._open


def test_options_for_all_that_frames_cannot_have_are_left_out_for_them(own, clip):
    frames = np.zeros((4, 64, 64, 3), np.uint8)
    truth = own.encode(frames=frames).tokens.tobytes()
    common = {"decode": "cpu", "max_seconds": 1e6}
    with qwenvit.AsyncEncoder(own, **common) as encoder:
        assert encoder.submit({"frames": frames}).result(30).tokens.tobytes() == truth
        assert len(encoder.submit(clip).result(30))
        refused(lambda: encoder.submit({"frames": frames}, decode="cpu"), "frames accept only")
    assert next(own.encode([{"frames": frames}], **common)).tokens.tobytes() == truth
    refused(lambda: own.encode(frames=frames, **common), "frames accept only")
    refused(lambda: next(own.encode([{"frames": frames, "max_seconds": 3}], **common)), "frames accept only")
