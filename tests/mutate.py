#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Breaks the promises of docs/promises.md one by one, and sees that a test of each turns red.

tests/mutations/NAME.patch is one way to break one promise. It begins with
    Promise: the first words of a row of docs/promises.md
    Test: a test of ctest, or python/tests/FILE.py, or python/tests/FILE.py::FUNCTION
    Preset: the preset to build (release, unless the patch says otherwise)
and a blank line; a unified diff follows. Usage:
    mutate.py [--jobs N] [--log FILE] [NAME ...]   applies each patch (or those whose names match) to a copy of
        the tree in build/mutations, builds what its test needs, and runs the test there: it must fail
    mutate.py --check      builds nothing: patches apply, promises and tests exist, each row has a patch
    mutate.py --list       lists the patches and what they break
    mutate.py --selftest   --check finds planted faults
"""
import argparse
import filecmp
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True
from mutation_patches import ROOT, check, read_patches, read_rows, read_without, selftest  # noqa: E402

COPY = ROOT / "build" / "mutations"
OPTIONS = {"cuda": ["-DQV_CUDA_ARCHITECTURES=80;90;120"]}  # of a preset; as in tools/test.sh
NOT_COPIED = {"build", "out", "dist", ".git", "__pycache__"}


def files_below(folder):
    for at, folders, files in os.walk(folder):
        folders[:] = [f for f in folders if f not in NOT_COPIED]
        yield from (Path(at, f).relative_to(folder) for f in files)


def copy_tree():
    """Makes COPY equal to the tree. Only files that differ are written, so that little is built again."""
    (COPY / "build").mkdir(parents=True, exist_ok=True)
    if (ROOT / "build" / "deps").exists() and not (COPY / "build" / "deps").exists():
        (COPY / "build" / "deps").symlink_to(ROOT / "build" / "deps")
    ours = set(files_below(ROOT))
    for file in set(files_below(COPY)) - ours:
        (COPY / file).unlink()
    for file in ours:
        if not (COPY / file).exists() or not filecmp.cmp(ROOT / file, COPY / file, shallow=False):
            (COPY / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / file, COPY / file)  # its time is now, as ninja goes by it
            shutil.copymode(ROOT / file, COPY / file)


class Failed(Exception):
    """A build failed, or a test without a mutation; the text is its output."""


class Runner:
    """Builds and runs tests in COPY. seconds: how long each took without a mutation."""

    def __init__(self, jobs):
        self.jobs, self.seconds, self.configured = jobs, {}, set()
        python = COPY / "build" / "deps" / "python" / "bin"
        self.env = {**os.environ, "PATH": f"{python}:{os.environ['PATH']}", "PYTHONPATH": "build/python/site",
                    "PYTHONDONTWRITEBYTECODE": "1", "CMAKE_BUILD_PARALLEL_LEVEL": jobs,
                    "QV_FAULTY_DECODER": str(COPY / "build/release/tests/faulty_decoder")}

    def start(self, *command):
        done = subprocess.run(command, cwd=COPY, env=self.env, check=False, text=True, errors="replace",
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.returncode, done.stdout

    def do(self, *command):
        code, said = self.start(*command)
        if code:
            raise Failed(said)
        return said

    def build(self, preset, test):
        """Builds the files that the test's command names; all, if it names a folder of the build."""
        if preset not in self.configured:
            self.do("cmake", "--preset", preset, *OPTIONS.get(preset, ()))
            self.configured.add(preset)
        build = COPY / "build" / preset
        listed = "".join(f.read_text(encoding="utf-8") for f in (build / "tests").rglob("CTestTestfile.cmake"))
        # how names and words are quoted differs by CMake's version
        command = re.search(rf'^add_test\((?:\[=\[|")?{re.escape(test)}(?:\]=\]|")? (.*)\)$', listed, re.M)
        if not command:
            raise Failed(f"the preset {preset} has no test {test}")
        words = {os.path.relpath(w, build) for w in re.findall(r'[^\s"\[\]=]+', command[1]) if w.startswith(str(build))}
        made = {line.split(":")[0] for line in self.do("ninja", "-C", build, "-t", "targets", "all").splitlines()}
        targets = sorted(words) if words <= made else ["all"]  # a folder has what is made for it alone
        if targets:
            self.do("ninja", "-C", build, "-j", self.jobs, *targets)

    def build_wheel(self, test):
        if "QV_FAULTY_DECODER" in (COPY / test).read_text(encoding="utf-8"):
            self.build("release", "planted_command")
        for made in ("dist", "site", "bare"):
            shutil.rmtree(COPY / "build" / "python" / made, ignore_errors=True)
        self.do("pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", "build/python/dist", ".")
        wheel = next((COPY / "build/python/dist").glob("*.whl"))
        where = "--target", "build/python/site"
        if test.endswith("/bare.py"):
            self.do("python", "-m", "venv", "build/python/bare")
            where = "--prefix", "build/python/bare"
        self.do("pip", "install", "-q", "--disable-pip-version-check", "--no-deps", *where, wheel)

    def run(self, p):
        """Builds and runs the patch's test. Returns whether it passed, and its output."""
        limit = str(int(max(60, 5 * self.seconds.get((p.preset, p.test), 200))))
        # pytest's code for tests that fail, timeout's, and crashes; pytest's other codes are its own errors
        failing = {1, 124, -signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS}
        if p.test.endswith("/bare.py"):
            self.build_wheel(p.test)
            command = ["timeout", limit, "build/python/bare/bin/python", "-I", p.test, "tests/golden/qwen3_vl"]
        elif p.test.startswith("python/tests/"):
            self.build_wheel(p.test.partition("::")[0])
            command = ["timeout", limit, "python", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", p.test]
        else:
            self.build(p.preset, p.test)
            failing = {8}
            command = ["ctest", "--preset", p.preset, "-R", f"^{re.escape(p.test)}$", "--no-tests=error", "--timeout", limit]
        began = time.monotonic()
        code, said = self.start(*command)
        self.seconds.setdefault((p.preset, p.test), time.monotonic() - began)
        if "***Not Run" in said or code and code not in failing:
            raise Failed(said)
        return code == 0, said

    def mutate(self, p):
        """Returns what became of a mutation, and the output that shows it."""
        try:
            if (p.preset, p.test) not in self.seconds:
                passed, said = self.run(p)
                if not passed:
                    raise Failed(said)
        except Failed as e:
            self.seconds.pop((p.preset, p.test), None)
            return f"FAILS WITHOUT IT: {p.test}", str(e)
        try:
            texts = p.changed(COPY)
        except (OSError, ValueError) as e:
            return "DOES NOT APPLY", str(e)
        before = {file: (COPY / file).read_bytes() for file in texts}
        began = time.monotonic()
        try:
            for file, text in texts.items():
                (COPY / file).write_text(text, encoding="utf-8")
            passed, said = self.run(p)
            return f"{'STILL GREEN' if passed else 'red'} in {time.monotonic() - began:.0f} s, by {p.test}", said
        except Failed as e:
            return "DOES NOT BUILD OR RUN", str(e)
        finally:
            for file, content in before.items():
                (COPY / file).write_bytes(content)


def run_all(patches, jobs, log):
    copy_tree()
    runner, red = Runner(jobs), 0
    for p in sorted(patches, key=lambda p: (p.preset, p.test, p.name)):
        became, said = runner.mutate(p)
        red += became.startswith("red")
        print(f"{p.name}: {became}", flush=True)
        tail = "".join(f"    {line}\n" for line in said.splitlines()[-25:])
        print(f"{p.name}: {became}\n  {p.promise}\n{tail}", file=log, flush=True)
    print(f"{red} of {len(patches)} mutations are red")
    return red < len(patches)


def main():
    options = argparse.ArgumentParser(usage=__doc__.partition("Usage:")[2].strip())
    for flag in ("--check", "--list", "--selftest"):
        options.add_argument(flag, action="store_true")
    options.add_argument("--jobs", default=str(os.cpu_count()))
    options.add_argument("--log", default=os.devnull)
    options.add_argument("names", nargs="*")
    asked = options.parse_args()
    if asked.selftest:
        return selftest()
    patches = read_patches(asked.names)
    if asked.list:
        return print(*(f"{p.name} ({p.test}): {p.promise}" for p in patches), sep="\n")
    if asked.check:
        wrong = check(patches, read_rows(), read_without())
        print(*wrong, f"{len(patches)} mutations, {len(wrong)} faults", sep="\n")
        return bool(wrong)
    with open(asked.log, "w", encoding="utf-8") as log:
        return run_all(patches, asked.jobs, log)


if __name__ == "__main__":
    sys.exit(main())
