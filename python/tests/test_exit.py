# SPDX-License-Identifier: MIT
"""Tests the ends of processes: the interpreter's, while threads are in calls of the core."""
import shutil
import subprocess
import time

import pytest

from conftest import python

BEGIN = """
import sys, threading, time
import numpy as np
import qwenvit
golden, folder, clip = sys.argv[1:]
model = qwenvit.load(golden, backend="cpu", dtype="f32", threads=1)
frames = np.zeros((4, 64, 64, 3), np.uint8)
rows, grid = model.preprocess(frames=frames)
calls = 0

def forward():
    model.forward(rows, grid)

def forward_many():
    model.forward(np.concatenate([rows] * 8), np.concatenate([grid] * 8))

def encode():
    model.encode(frames=frames)

def encode_many():
    list(model.encode([{"frames": frames}, clip], errors="yield"))

def write():
    with qwenvit.CacheWriter(model, folder) as cache:
        cache.add([{"key": f"{calls} {i}", "frames": frames} for i in range(24)], progress=lambda p: None)

def read():
    cache = qwenvit.Cache(folder)
    for key in list(cache):
        cache[key].verify()
        cache[key].tokens.sum()
    cache.refresh()

def work(call):
    global calls
    while True:
        call()
        calls += 1
"""
# A daemon thread is frozen wherever it is when the interpreter ends, so the moments differ.
END = """
write()
thread = threading.Thread(target=work, args=({call},), daemon=True)
thread.start()
while calls < 1:
    time.sleep(0.001)
time.sleep({seconds})
"""


@pytest.mark.parametrize("call", ["forward", "forward_many", "encode", "encode_many", "write", "read"])
def test_the_interpreter_ends_while_a_daemon_thread_is_in_a_call(call, golden, tmp_path, clip):
    for i in range(2):
        code = BEGIN + END.format(call=call, seconds=0.005 * i)
        ended = python(code, golden, tmp_path / f"cache{i}", clip)
        assert ended.returncode == 0, ended


BUSY = """
model = qwenvit.load(golden, backend="ref", dtype="f32", threads=1)
rows = np.zeros((64 * 64, model.info["row_dim"]), np.float32)
began = time.monotonic()
model.forward(rows, [[1, 64, 64]])
took = time.monotonic() - began
thread = threading.Thread(target=lambda: model.forward(rows, [[1, 64, 64]]), daemon=True)
thread.start()
time.sleep(took / 10)
print(took, time.monotonic())
"""


def test_work_under_way_ends_before_the_process(golden, tmp_path, clip):
    """exit() destroys what the libraries keep, so nobody may compute then."""
    ended = python(BEGIN + BUSY, golden, tmp_path, clip)
    took, left = map(float, ended.stdout.split())
    assert ended.returncode == 0 and took > 0.2
    assert time.monotonic() - left > min(0.3 * took, 0.6)  # the load may change; nobody waits for longer than 5 s


# CPython 3.14 stops a thread that wants the interpreter after its end; earlier versions end it by this function.
STOP = """
#include <unistd.h>
void pthread_exit(void *result) { for (;;) pause(); }
"""


def test_as_in_3_14_no_thread_that_waits_for_ever_is_waited_for(golden, tmp_path, clip):
    """Nor do the threads of its job go on while the process ends."""
    if not shutil.which("cc"):
        pytest.skip("there is no C compiler")
    (tmp_path / "stop.c").write_text(STOP)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "stop.so", tmp_path / "stop.c"], check=True)
    for i in range(4):
        code = BEGIN + END.format(call="write", seconds=0.01 * i) + "print(time.monotonic())"
        ended = python(code, golden, tmp_path / f"cache{i}", clip, LD_PRELOAD=str(tmp_path / "stop.so"))
        assert ended.returncode == 0 and time.monotonic() - float(ended.stdout) < 4, ended
