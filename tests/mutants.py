#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Breaks the code, one line of tests/mutants.txt at a time: each time a test must fail.

The five fields of a line are separated by TAB; \\n and \\t in a field are a line break and a TAB:
    file, text that occurs once in it, what it becomes, the test that must fail, what the test promises
The test is one of ctest's, in the preset `release` unless another precedes it (`metal-dev:metal`); or
python/tests/FILE.py[::FUNCTION], for a file of python/qwenvit. Usage:
    mutants.py [LINE | FROM-TO | TEXT ...]   tries all lines, or those with these numbers or with this text, in a copy
        of the tree in build/mutants; with CMAKE_BUILD_PARALLEL_LEVEL jobs
    mutants.py --check   builds nothing: each text occurs once in its file, and each test exists
"""
import fnmatch
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COPY, SITE = ROOT / "build" / "mutants", "build/python/site"
OPTIONS = {"cuda": ["-DQV_CUDA_ARCHITECTURES=90"]}  # of a preset: one architecture is compiled soonest
Mutant = namedtuple("Mutant", "line file old new preset test promise")


def read_mutants(wanted):
    for number, line in enumerate((ROOT / "tests/mutants.txt").read_text(encoding="utf-8").splitlines(), 1):
        if not line or line[0] == "#" or wanted and not any(is_meant(w, number, line) for w in wanted):
            continue
        file, old, new, test, promise = line.split("\t")
        old, new = (text.replace("\\n", "\n").replace("\\t", "\t") for text in (old, new))
        preset, test = re.fullmatch(r"(?:([\w-]+):(?!:))?(.+)", test).groups()
        yield Mutant(number, file, old, new, preset or "release", test, promise)


def is_meant(wanted, number, line):
    first, _, last = wanted.partition("-")
    return int(first) <= number <= int(last or first) if re.fullmatch(r"\d+(-\d+)?", wanted) else wanted in line


def find_faults(mutants):
    lists = "".join(f.read_text(encoding="utf-8") for f in (ROOT / "tests").rglob("CMakeLists.txt"))
    names = {re.sub(r"\$\{\w+\}", "*", word) for word in re.findall(r"(?:\w|\$\{\w+\})+", lists)} - {"*"}
    for m in mutants:
        path, (file, _, function) = ROOT / m.file, m.test.partition("::")
        found = path.read_text(encoding="utf-8").count(m.old) if path.is_file() else 0
        if found != 1 or m.old == m.new:
            yield f"line {m.line}: must occur once in {m.file}, and change; it occurs {found} times: {m.old}"
        if not file.startswith("python/tests/"):
            exists = any(fnmatch.fnmatch(m.test, name) for name in names)
        else:
            exists = (ROOT / file).is_file() and f"def {function}(" * bool(function) in (ROOT / file).read_text("utf-8")
        if not exists:
            yield f"line {m.line}: no such test: {m.test}"


class Failed(Exception):
    """Something else than the test failed; the text is its output."""


def do(*command, fails=()):
    """Runs a command in the copy. Returns whether it succeeded, and its output."""
    done = subprocess.run(command, cwd=COPY, check=False, text=True, errors="replace", stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    if "***Not Run" in done.stdout or done.returncode not in (0, *fails):
        raise Failed(done.stdout)
    return not done.returncode, done.stdout


def copy_tree():
    """Only files that differ are written, so that little is built again."""
    listed = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, text=True)
    for file in filter(Path.is_file, (ROOT / name for name in listed.splitlines())):
        copy = COPY / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if not copy.is_file() or copy.read_bytes() != file.read_bytes():
            shutil.copy(file, copy)  # its time is now
    (COPY / "build").mkdir(exist_ok=True)
    if not (COPY / "build/deps").is_symlink():
        (COPY / "build/deps").symlink_to(ROOT / "build/deps")


@functools.cache
def configure(preset):
    do("cmake", "--preset", preset, *OPTIONS.get(preset, ()))


@functools.cache
def build_wheel():
    do("rm", "-rf", SITE, "build/python/dist")
    do("pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", "build/python/dist", ".")
    do("pip", "install", "-q", "--no-deps", "--target", SITE, *(COPY / "build/python/dist").glob("*.whl"))


def build(m):
    """Builds the programs in the test's command; everything, if it names another file or folder of the build."""
    configure(m.preset)
    folder = f"{COPY}/build/{m.preset}"
    listed = "".join(f.read_text(encoding="utf-8") for f in Path(folder, "tests").rglob("CTestTestfile.cmake"))
    # how names and words are quoted differs by CMake's version
    command = re.search(rf'^add_test\((?:\[=\[|")?{re.escape(m.test)}(?:\]=\]|")? (.*)\)$', listed, re.M)
    if not command:
        raise Failed(f"the preset {m.preset} has no test {m.test}")
    made = {line.split(":")[0] for line in do("ninja", "-C", folder, "-t", "targets", "all")[1].splitlines()}
    words = {os.path.relpath(w, folder) for w in re.findall(r'[^\s"\[\]=]+', command[1]) if w.startswith(folder)}
    do("cmake", "--build", folder, "--target", *(sorted(words) if words <= made else ["all"]))


def passes(m):
    """Builds what the test needs, and runs it. Returns whether it passed, and its output."""
    if m.test.startswith("python/"):
        build_wheel()
        command = ["timeout", "300", "python", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", m.test]
    else:
        build(m)
        command = ["ctest", "--preset", m.preset, "-R", f"^{re.escape(m.test)}$", "--timeout", "300"]
    return do(*command, fails=(1, 8, 124, -signal.SIGSEGV, -signal.SIGABRT))


def put(m, text):
    (COPY / m.file).write_text(text, encoding="utf-8")
    if m.test.startswith("python/"):
        (COPY / SITE / m.file.removeprefix("python/")).write_text(text, encoding="utf-8")


def outcome(m, right):
    """Returns what became of a mutant, and the output that shows it. right: tests that pass when nothing is broken."""
    try:
        if m.test not in right:
            passed, output = passes(m)
            if not passed:
                return "FAILS WITHOUT IT", output
            right.add(m.test)
        text = (COPY / m.file).read_text(encoding="utf-8")
        try:
            put(m, text.replace(m.old, m.new))
            passed, output = passes(m)
        finally:
            put(m, text)
        return ("STILL GREEN", output) if passed else ("red", "")
    except Failed as e:
        return "NOT TESTED", str(e)


def main(*wanted):
    if wanted == ("--help",):
        return print(__doc__)
    mutants = list(read_mutants([w for w in wanted if w != "--check"]))
    if "--check" in wanted:
        faults = list(find_faults(mutants))
        print(*faults, f"{len(mutants)} mutants, {len(faults)} faults", sep="\n")
        return bool(faults)
    os.environ.update(PATH=f"{ROOT}/build/deps/python/bin:{os.environ['PATH']}", PYTHONPATH=SITE,
                      PYTHONDONTWRITEBYTECODE="1")
    copy_tree()
    red, right = 0, set()
    for m in sorted(mutants, key=lambda m: (m.preset, m.test, m.file)):
        began = time.monotonic()
        became, output = outcome(m, right)
        red += became == "red"
        print(f"line {m.line}, {m.file}, {m.test}: {became} ({time.monotonic() - began:.0f} s)", flush=True)
        print("".join(f"    {line}\n" for line in output.splitlines()[-15:]), end="", flush=True)
    print(f"{red} of {len(mutants)} mutants are red")
    return red < len(mutants) or not mutants


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
