# SPDX-License-Identifier: MIT
"""Tests that no exception, wherever it comes, leaves a model that cannot be used again; and that
calls from several threads run side by side."""
import ctypes
import functools
import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import qwenvit
from conftest import refused, threads, together, wait_until


# Runs in a process of its own, as an exception that comes while Python destroys something ends in a hook that pytest sets.
PROGRAM = """
import itertools, json, os, random, signal, sys, time
import numpy as np
import qwenvit

class Interrupt(BaseException):
    pass

left = came = 0

def ring(_, frame):
    global left, came
    while frame and frame.f_code not in interruptible:
        frame = frame.f_back
    if not frame or not left:  # the call has ended: signals may come late
        return
    left, came = left - 1, came + 1
    if left > 0:  # the second one often comes within `finally`
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 2e-4))
    raise Interrupt

def during(call, most_s, times):
    global left
    kept = []  # as an interactive interpreter keeps the last exception, with all its frames
    left = times
    signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, most_s))
    try:
        call()
    except (Interrupt, RuntimeError) as e:  # of a lock in threading, in whose __exit__ it came
        kept.append(e)
    left = 0
    signal.setitimer(signal.ITIMER_REAL, 0)
    return kept

signal.signal(signal.SIGALRM, ring)
sys.unraisablehook = lambda _: None
golden, folder, times, n = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
model = qwenvit.load(golden, backend="cpu", dtype="f32", threads=1)
few = np.zeros((2, 32, 32, 3), np.uint8)
pixels, grid = model.preprocess(few)
writer = qwenvit.CacheWriter(model, folder)
keys = itertools.count()

def opened():
    many = model.encode([few] * 3)
    next(many)
    many.close()

calls = {
    "one": lambda: model.encode(few), "many": lambda: list(model.encode([few] * 3)), "some of many": opened,
    "forward": lambda: model.forward(pixels, grid),
    "a cache": lambda: writer.add([{"frames": few, "key": str(next(keys))}]),
}
interruptible = {call.__code__ for call in calls.values()}
truth, counts, lost = model.encode(few).tokens.tobytes(), {}, []
for name, call in calls.items():
    took = []
    for _ in range(6):
        began = time.monotonic()
        call()
        took.append(time.monotonic() - began)
    came = 0
    for _ in range(n if name != "a cache" else n // 8):
        kept = during(call, min(took), times)
        try:
            if model.encode(few).tokens.tobytes() != truth:
                lost.append("other tokens")
        except qwenvit.Error as e:
            lost.append(f"{name}: {e}")
            model = qwenvit.load(golden, backend="cpu", dtype="f32", threads=1)
            writer = qwenvit.CacheWriter(model, folder)
        del kept
    counts[name] = came
print(json.dumps([counts, lost]))
"""


@pytest.fixture(scope="module")
def small(golden):
    return qwenvit.load(golden, backend="cpu", dtype="f32", threads=1)


@pytest.fixture(scope="module")
def few(frames):
    return np.ascontiguousarray(frames[:2, :32, :32])


@pytest.mark.parametrize("isa", ["", "AVX2"], ids=["native", "avx2"])  # oneDNN has other GEMMs for AVX2
@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
def test_an_interrupt_never_loses_the_model(golden, tmp_path, times, isa):
    n = int(os.environ.get("QV_INTERRUPTS", "240"))
    command = [sys.executable, "-c", PROGRAM, golden, str(tmp_path / "cache"), str(times), str(n)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600,
                         env={**os.environ, **({"ONEDNN_MAX_CPU_ISA": isa} if isa else {})})
    assert run.returncode == 0, run.stderr[-3000:]
    counts, lost = json.loads(run.stdout)
    assert not lost, f"{len(lost)} of {counts}: {lost[0]}"
    assert min(counts.values()) > n / 50 and sum(counts.values()) > n, counts


class Interrupt(BaseException):
    pass


def test_a_threads_exception_never_loses_the_model(small, few, monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # it may come while Python destroys something
    stop, raised = threading.Event(), 0

    def work():  # no thread is made, as CPython 3.11 may raise the exception in that one
        nonlocal raised
        while not stop.is_set():
            try:
                small.encode(few)
            except Interrupt:
                raised += 1

    def guarded():
        while not stop.is_set():
            try:
                work()
            except Interrupt:
                pass

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    for _ in range(300):
        time.sleep(random.uniform(0, 5e-3))
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Interrupt))
    stop.set()
    thread.join(60)
    assert raised > 30 and len(small.encode(few))


def test_a_thread_that_cannot_start_never_loses_the_model(small, few, monkeypatch):
    def fail(self):
        raise RuntimeError("can't start new thread")

    for _ in range(3):
        with monkeypatch.context() as m:
            m.setattr(threading.Thread, "start", fail)
            many = small.encode([few])
            with pytest.raises(RuntimeError, match="can't start"):
                next(many)
        assert len(small.encode(few)) and list(many) == []


def test_calls_from_several_threads_run_side_by_side(small, few, expected, tmp_path):
    keys, writer, encoder = itertools.count(), qwenvit.CacheWriter(small, tmp_path / "cache"), qwenvit.AsyncEncoder(small)
    rows, grid = expected["pixel_values"], expected["grid_thw"]
    forward = small.forward(rows, grid).tokens.tobytes()

    def compute():
        assert small.forward(rows, grid).tokens.tobytes() == forward

    def ask():
        assert encoder.submit(few).result().tokens.tobytes() == truth

    calls = {1: lambda: writer.add([{"frames": few, "key": str(next(keys))}]), 2: ask}
    truth = small.encode(few).tokens.tobytes()

    def work(i):
        for _ in range(25):
            assert small.encode(few).tokens.tobytes() == truth
            calls.get(i, compute)()

    together(*(functools.partial(work, i) for i in range(8)))
    encoder.close()


def test_a_call_within_a_call(small, few):
    got = []

    def progress(_):
        got.extend([small.encode(few), *small.encode([few])])

    truth = small.encode(few, progress=progress).tokens.tobytes()
    assert got and all(t.tokens.tobytes() == truth for t in got)


def test_a_generator_and_its_model_may_be_closed_within_a_forward(own, one_item, small, few):
    """As the garbage collector may close them. Their job waits for the device, at which forward() has its turn."""
    many, (rows, grid, out), calls = own.encode(itertools.repeat(few)), one_item, []
    next(many)

    def allocate(n):
        time.sleep(0.1)
        many.close()
        for call in (small.encode, lambda x: next(small.encode([x]))):
            refused(lambda: call(few), "has interrupted a forward")
        time.sleep(0.1)  # the thread that adds sources lets go, so that own.close() is last
        own.close()
        calls.append(n)
        return out.ctypes.data, 0

    thread = threading.Thread(target=own._core.forward_at, args=(rows, grid, allocate, "f32", False), daemon=True)
    thread.start()
    thread.join(30)
    assert calls == [len(rows) // 4] and not thread.is_alive()
    assert out[0].tobytes() == small.forward(rows, [grid]).tokens.tobytes()


def test_what_is_closed_goes_with_its_last_use(golden, few):
    """A generator ends as if the model were open, and whoever drops one leaves no thread behind."""

    before, model = threads(), qwenvit.load(golden, backend="ref", dtype="f32", threads=1)
    many, dropped = model.encode([few] * 3), model.encode([few] * 3)
    truth = [next(many).tokens.tobytes()]
    next(dropped)
    model.close()
    refused(lambda: model.encode(few), "closed")
    assert threads() - before and [t.tokens.tobytes() for t in many] == 2 * truth
    del dropped
    wait_until(lambda: not threads() - before)
