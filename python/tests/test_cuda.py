# SPDX-License-Identifier: MIT
"""Tests where NVIDIA's libraries are found, with libraries that have only their names; and
devices()."""
import os
import shutil
import subprocess
import types

import pytest

import qwenvit
from conftest import python, refused
from qwenvit import _decoder

NAMES = {"libcublasLt.so.99": "nvidia-cublas", "libfake_cudnn.so.9": "nvidia-cudnn-cu99"}
CODE = """
import sys
from qwenvit import _core, _cuda
_cuda._needed = lambda: {names!r}
open_ = _cuda._open
_cuda._open = lambda name, places: object() if name == "libcuda.so.1" else open_(name, places)
sys.path += {paths!r}
{before}
print(_cuda.prepare())
print([line.split()[-1] for line in open("/proc/self/maps") if any(n in line for n in {names!r})])
"""


def prepare(paths, before="", cwd="/"):
    """Returns (text, files mapped) of a process of its own."""
    code = CODE.format(names=NAMES, paths=[str(p) for p in paths], before=before)
    run = python(code, cwd=cwd)
    assert run.returncode == 0, run.stderr
    words, files = run.stdout.splitlines()
    return words, set(eval(files))


def install(site, package, soname):
    folder = site / "nvidia" / package / "lib"
    folder.mkdir(parents=True)
    shutil.copy(os.path.join(_decoder.FOLDER, "libseccomp.so.2"), folder / soname)
    return str(folder / soname)


def test_nvidias_wheels_are_found_on_any_path(tmp_path):
    files = {install(tmp_path / "user", "cu99", "libcublasLt.so.99"),
             install(tmp_path / "system", "cudnn", "libfake_cudnn.so.9")}
    install(tmp_path / "later", "cu99", "libcublasLt.so.99")
    assert prepare([tmp_path / "user", tmp_path / "system", tmp_path / "later"]) == ("", files)


def test_libraries_in_the_working_folder_are_not_loaded(tmp_path):
    planted = tmp_path / "anybodys"
    for soname in NAMES:
        install(planted, soname.split(".")[0], soname)
    for paths in ([], ["."], [planted]):  # -c puts "" in front of sys.path, -m the folder's path
        words, files = prepare(paths, cwd=planted)
        assert not files and all(soname in words for soname in NAMES), (paths, words, files)


def test_what_the_process_has_comes_first(tmp_path):
    install(tmp_path / "wheels", "cu99", "libcublasLt.so.99")
    cudnn = install(tmp_path / "wheels", "cudnn", "libfake_cudnn.so.9")
    torchs = install(tmp_path / "torch", "cublas", "libcublasLt.so.99")
    patchelf = shutil.which("patchelf") or pytest.skip("no patchelf")
    subprocess.run([patchelf, "--set-soname", "libcublasLt.so.99", torchs], check=True)
    words, files = prepare([tmp_path / "wheels"], f"import ctypes; ctypes.CDLL({torchs!r})")
    assert (words, files) == ("", {torchs, cudnn})


def test_each_that_is_missing_or_broken_is_named(tmp_path):
    words, files = prepare([tmp_path])
    assert not files and all(f"{name} ({package} on PyPI) cannot" in words for name, package in NAMES.items())
    assert "pip install 'qwenvit[cuda]'" in words
    path = install(tmp_path, "cudnn", "libfake_cudnn.so.9")
    with open(path, "wb") as f:
        f.write(b"no library")
    words, _ = prepare([tmp_path])
    assert path in words and "libcublasLt.so.99" in words


def test_a_cudnn_that_is_too_old_is_named(golden, monkeypatch):
    from qwenvit import _cuda

    old = types.SimpleNamespace(cudnnGetVersion=lambda: 91002)
    monkeypatch.setattr(_cuda, "_needed", lambda: {"libcudnn.so.9": "nvidia-cudnn-cu13"})
    monkeypatch.setattr(_cuda, "_open", lambda name, places: old)
    monkeypatch.setattr(_cuda, "_where", lambda name: "/opt/libcudnn.so.9")
    words = _cuda.prepare()
    assert "cuDNN is 9.10.2 in /opt/libcudnn.so.9; 9.15 or newer" in words
    refused(lambda: qwenvit.load("/nowhere", backend="cuda"), "9.10.2", "QV_ENODEVICE")
    assert qwenvit.load(golden).info["passed_over"] == f"cuda: {words}"
    assert "9.10.2" in next(d["error"] for d in qwenvit.devices() if d["backend"] == "cuda")


def test_devices_say_what_is_here_and_why_others_are_not():
    found = {d["backend"]: d for d in qwenvit.devices()}
    assert set(found) == {"cuda", "metal", "cpu", "ref"}
    assert found["cpu"]["index"] == 0 and found["cpu"]["device"] and found["cpu"]["dtype"] in ("f32", "bf16")
    assert all(d.get("error") or d["device"] for d in found.values())
