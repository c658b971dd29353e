# SPDX-License-Identifier: MIT
"""Tests AsyncEncoder: many tasks and threads on one open job."""
import asyncio
import concurrent.futures
import gc
import os
import sys
import threading
import time

import numpy as np
import pytest

import qwenvit
from qwenvit._sources import describe
from qwenvit.media import FrameFiles
from conftest import python, refused
from qwenvit import _async


def images(n):
    random = np.random.default_rng(7)
    return [random.integers(0, 256, (32 * (1 + i % 3), 64, 3), dtype=np.uint8) for i in range(n)]


@pytest.fixture
def own(golden):
    return qwenvit.load(golden, backend="ref", dtype="f32", threads=1)


def same(a, b):
    return a.tokens.tobytes() == b.tokens.tobytes() and all(
        x.tobytes() == y.tobytes() for x, y in zip(a.deepstack, b.deepstack, strict=True)
    )


def test_tasks_get_the_bits_of_a_list(own, clip):
    sources = [*images(12), clip, open(clip, "rb").read()]
    alone = list(own.encode(sources))

    async def ask():
        async with qwenvit.AsyncEncoder(own, max_frames=768) as encoder:
            assert "AsyncEncoder on" in repr(encoder)
            assert same(own.encode(sources[0]), alone[0])
            return await asyncio.gather(*(encoder.encode(s, timeout=60) for s in sources))

    for _ in range(2):
        got = asyncio.run(ask())
        assert all(map(same, got, alone))
        assert got[12].key == str(clip) and len({t.key for t in got}) == 14
    assert same(own.encode(sources[0]), alone[0])


def test_threads_share_an_encoder(golden):
    sources = images(8)
    with qwenvit.AsyncEncoder(golden, devices=["cpu"], dtype="bf16") as encoder:
        (model,) = encoder.models
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            futures = list(pool.map(encoder.submit, sources))
        got = [f.result(60) for f in futures]
        assert {t.dtype for t in got} == {"bf16"}
    for call in (lambda: encoder.submit(sources[0]), lambda: model.encode(sources[0])):
        refused(call, "closed|ended", "QV_ESTATE")


def test_a_request_fails_alone(own, tmp_path):
    (tmp_path / "bad.mp4").write_bytes(b"no clip")

    async def ask():
        async with qwenvit.AsyncEncoder(own) as encoder:
            tasks = [encoder.encode(s) for s in (images(1)[0], tmp_path / "bad.mp4", b"rubbish", images(2)[1])]
            return await asyncio.gather(*tasks, return_exceptions=True)

    good, missing, rubbish, other = asyncio.run(ask())
    assert len(good) and len(other)
    for e, key in ((missing, str(tmp_path / "bad.mp4")), (rubbish, "2")):
        assert isinstance(e, qwenvit.Error) and e.status == "QV_EFORMAT" and e.key == key


def test_cancelling_and_timing_out_drop_a_request(own):
    """All but what the device has by then is never computed."""
    frames = np.zeros((64, 128, 128, 3), np.uint8)
    one = len(own.encode(frames=frames))

    async def ask():
        async with qwenvit.AsyncEncoder(own) as encoder:
            with pytest.raises(asyncio.TimeoutError):
                await encoder.encode({"frames": frames}, timeout=0.001)
            futures = [encoder.submit({"frames": frames}) for _ in range(30)]
            assert all(f.cancel() for f in futures[1:]) and all(f.cancelled() for f in futures[1:])
            last = await encoder.encode(images(1)[0])  # the oldest are computed first
            return last, futures[0].result(), encoder._client.progress()["tokens"]

    *results, computed = asyncio.run(ask())
    assert all(map(len, results)) and computed < 10 * one


def test_a_cancelled_task_leaves_nothing_behind(own):
    """Whatever a thread is still doing for it, as reading a file."""
    begun, go_on = threading.Event(), threading.Event()

    class File:
        def read(self):
            begun.set()
            go_on.wait(30)
            return b"P6\n64 64\n255\n" + bytes(3 * 64 * 64)

    async def ask():
        async with qwenvit.AsyncEncoder(own) as encoder:
            for timeout in (None, 0.05):
                begun.clear(), go_on.clear()
                task = asyncio.ensure_future(encoder.encode(File(), timeout=timeout))
                assert await asyncio.to_thread(begun.wait, 30)
                if not timeout:
                    task.cancel()
                with pytest.raises((asyncio.CancelledError, asyncio.TimeoutError)):
                    await task
                go_on.set()
            while encoder.progress()["done"] < 2:
                await asyncio.sleep(0.01)
            return encoder._collector.requests, encoder.progress()

    left, counts = asyncio.run(ask())
    assert not left and counts["tokens"] == 0


def switches(tasks):
    """How often threads of this process went to sleep."""
    texts = [open(f"/proc/self/task/{t}/status", encoding="utf-8").read() for t in tasks]
    return sum(int(text.partition("\nvoluntary_ctxt_switches:")[2].split()[0]) for text in texts)


def test_an_encoder_that_nobody_asks_sleeps(own):
    before = set(os.listdir("/proc/self/task"))
    with qwenvit.AsyncEncoder(own) as encoder:
        encoder.submit(images(1)[0]).result(60)
        time.sleep(0.3)
        tasks = set(os.listdir("/proc/self/task")) - before
        asleep = switches(tasks)
        time.sleep(1)
        assert tasks and switches(tasks) == asleep


def test_when_no_device_is_left_all_requests_fail(own):
    class Lost:
        def next(self, seconds):
            raise _async.error("QV_EBACKEND", "it fell off the bus")

        def close(self):
            pass

    collector = _async._Collector(Lost(), "x")
    collector.requests[0] = waits = concurrent.futures.Future()
    collector.run()
    with qwenvit.AsyncEncoder(own) as encoder:
        encoder._client.close()
        encoder._collector = collector
        for call in (lambda: waits.result(0), lambda: encoder.submit(images(1)[0])):
            refused(call, "cannot continue: it fell off the bus", "QV_EBACKEND")
        encoder._collector = type("", (), {"join": lambda _: None})()


def test_a_full_queue_refuses(own):
    frames = np.zeros((16, 64, 64, 3), np.uint8)
    for options in ({"queue": 2}, {"queue_bytes": 1}):
        with qwenvit.AsyncEncoder(own, **options) as encoder:
            accepted = []
            refused(lambda: [accepted.append(encoder.submit({"frames": frames})) for _ in range(200)], status="QV_EFULL")
        assert accepted and all(len(f.result(0)) for f in accepted)  # closing drains


def test_closing_while_others_submit(own):
    encoder, (source,), ends = qwenvit.AsyncEncoder(own, queue_bytes=1 << 20), images(1), []

    def work():
        while not ends:
            try:
                encoder.submit(source)
            except qwenvit.Error as e:
                if e.status != "QV_EFULL":
                    ends.append((e.status, str(e)))

    calls = [threading.Thread(target=work) for _ in range(2)]
    for call in calls:
        call.start()
    time.sleep(0.1)
    closing = threading.Thread(target=encoder.close)
    closing.start()
    closing.join(10)
    is_closed = not closing.is_alive()
    if not is_closed:
        ends.append(None)
    for call in (*calls, closing):
        call.join(30)
    assert is_closed and ends[0][0] == "QV_ESTATE"


def test_what_a_callback_raises_ends_no_other_request(own, caplog):
    (source,) = images(1)
    with qwenvit.AsyncEncoder(own) as encoder:
        first = encoder.submit({"frames": np.zeros((16, 64, 64, 3), np.uint8)})
        first.add_done_callback(lambda _: sys.exit("from a callback"))
        assert len(first.result(30)) and len(encoder.submit(source).result(30))
        taken = encoder.submit({"frames": np.zeros((64, 128, 128, 3), np.uint8)})
        taken.set_result("by someone else")
        assert len(encoder.submit(source).result(30))
    assert "from a callback" in caplog.text


def test_an_encoder_that_is_dropped_leaves_nothing_behind(own):
    before = threading.active_count()
    encoder = qwenvit.AsyncEncoder(own)
    future = encoder.submit({"frames": np.zeros((64, 128, 128, 3), np.uint8)})
    del encoder
    gc.collect()
    refused(lambda: future.result(60), "closed")
    assert len(own.encode(images(1)[0]))
    while threading.active_count() > before:
        time.sleep(0.01)


def test_arguments(own, golden):
    for wrong, words in (
        ({"model": 3}, "model"), ({"model": []}, "model"), ({"model": own, "devices": "all"}, "devices"),
        ({"model": own, "queue": 0}, "queue"), ({"model": own, "dtype": "f16"}, "dtype"), ({"model": own, "what": 1}, "what"),
    ):
        refused(lambda: qwenvit.AsyncEncoder(**wrong), words)
    with qwenvit.AsyncEncoder([own]) as encoder, pytest.raises(qwenvit.Error, match="source 0"):
        encoder.submit(3)


END = """
import sys, numpy as np, qwenvit
encoder = qwenvit.AsyncEncoder(qwenvit.load(sys.argv[1], backend="ref", dtype="f32", threads=1))
futures = [encoder.submit({"frames": np.zeros((64, 128, 128, 3), np.uint8)}) for _ in range(8)]
futures[0].result()
"""


def test_the_interpreter_ends_while_requests_wait(golden):
    ended = python(END, golden)
    assert ended.returncode == 0 and not ended.stderr, ended


def test_frames_that_found_no_room_stay_whole(model):
    few = [bytes(f"P5\n128 96\n255\n", "ascii") + bytes([i]) * (128 * 96) for i in (10, 90, 200)]
    plain = model.encode({"frames": few})
    large, until = {"frames": np.zeros((8, 256, 256, 3), np.uint8)}, time.monotonic() + 30
    with qwenvit.AsyncEncoder(model, queue=1, queue_bytes=1) as encoder:

        def submit(source):  # the room of what is done comes back soon after its result
            while True:
                try:
                    return encoder.submit(source)
                except qwenvit.Error as e:
                    assert e.status == "QV_EFULL" and time.monotonic() < until
                    time.sleep(0.01)

        while True:
            frames, *_ = describe([model._core], {"frames": few}, 0, {})
            other = submit(large)
            try:
                encoder.submit({"frames": frames}).result()
            except qwenvit.Error as e:
                assert e.status == "QV_EFULL"
                break
        other.result()
        found = submit({"frames": frames}).result()
    assert found.timestamps.tolist() == [0, 1, 2] and np.asarray(found.tokens).shape == np.asarray(plain.tokens).shape
    assert np.abs(np.asarray(found.tokens, np.float32) - np.asarray(plain.tokens, np.float32)).max() < 1e-4


def test_frames_that_nobody_waits_for_are_not_decoded(model, monkeypatch):
    decoded, files = [], FrameFiles.of(iter([b"P5\n128 96\n255\n" + bytes(128 * 96)] * 40))
    array_of_file = _async.array_of_file

    def slow(*arguments):
        decoded.append(arguments[1])
        time.sleep(0.05)
        return array_of_file(*arguments)

    async def leave(encoder):
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(encoder.prepared({"bytes": files}, {}), 0.2)
        n = len(decoded)
        await asyncio.sleep(0.3)
        return n

    monkeypatch.setattr(_async, "array_of_file", slow)
    with qwenvit.AsyncEncoder(model) as encoder:
        assert 0 < asyncio.run(leave(encoder)) == len(decoded) < 40
