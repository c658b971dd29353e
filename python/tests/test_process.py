# SPDX-License-Identifier: MIT
"""Tests the extension among what else a process has: other libraries, other interpreters."""
import os
import shutil
import subprocess

import pytest

from conftest import python

# names that the headers declare, one of each of the libraries that the extension has in it
NAMES = "qv_version qv_model_load qv_plan_push qv_job_open qv_job_add qv_cache_open qv_cache_fill_open qv_clip_options_set".split()
ENCODE = """
import sys
import numpy as np
import qwenvit
golden, folder = sys.argv[1:]
model = qwenvit.load(golden, backend="cpu", dtype="f32", threads=1)
frames = np.zeros((4, 64, 64, 3), np.uint8)
tokens = model.encode(frames=frames)
with qwenvit.CacheWriter(model, folder) as cache:
    assert cache.add([{"key": "a", "frames": frames}])["done"] == 1
print(len(tokens), len(qwenvit.Cache(folder)["a"]))
"""
SECOND = """
import sys
import numpy as np
import qwenvit
golden, path = sys.argv[1:]
try:
    import _interpreters as interpreters
    kind = ("legacy",), {}
except ImportError:  # before Python 3.13
    import _xxsubinterpreters as interpreters
    kind = (), {"isolated": False}
code = f'''
import sys
sys.path[:] = {sys.path!r}
try:
    import qwenvit
    text = "no error"
except ImportError as e:
    text = str(e)
open({path!r}, "w").write(text)
'''
model = qwenvit.load(golden, backend="cpu", dtype="f32", threads=1)
for i in range(2):
    second = interpreters.create(*kind[0], **kind[1])
    interpreters.run_string(second, code)
    interpreters.destroy(second)
    print(open(path).read())
    try:
        qwenvit.load("/nowhere")
    except qwenvit.Error as e:
        print(e.status, len(model.encode(frames=np.zeros((4, 64, 64, 3), np.uint8))))
"""


def run(code, *arguments, preload=""):
    ended = python(code, *arguments, LD_PRELOAD=" ".join(filter(None, [os.environ.get("LD_PRELOAD"), str(preload)])))
    assert ended.returncode == 0, ended
    return ended.stdout.splitlines()


def test_functions_of_these_names_in_another_library_are_not_called(golden, tmp_path):
    compiler = shutil.which("cc") or pytest.skip("no C compiler")
    source, library = tmp_path / "other.c", tmp_path / "libother.so"
    source.write_text("#include <unistd.h>\n" + "".join(f"int {name}(void) {{ _exit(99); }}\n" for name in NAMES))
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    called = "import ctypes, sys; getattr(ctypes.CDLL(None), sys.argv[1])()"
    with pytest.raises(AssertionError, match="returncode=99"):
        run(called, NAMES[0], preload=library)
    assert run(ENCODE, golden, tmp_path / "cache", preload=library) == ["8 8"]


def test_a_second_interpreter_cannot_import_it_and_the_first_stays_whole(golden, tmp_path):
    refused, *_ = lines = run(SECOND, golden, tmp_path / "text")
    assert "another interpreter of this process has imported qwenvit" in refused
    assert lines == [refused, "QV_EIO 8"] * 2
