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
import fnmatch
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PATCHES = ROOT / "tests" / "mutations"
COPY = ROOT / "build" / "mutations"
NOT_COPIED = {"build", "out", "dist", ".git", "__pycache__"}


class Patch:
    """A file of tests/mutations. hunks: [file, line, old text, new text]."""

    def __init__(self, name, text):
        head, _, diff = text.partition("\n\n")
        fields = dict(re.findall(r"^(\w+): *(.*?) *$", head, re.M))
        self.name, self.preset = name, fields.get("Preset", "release")
        self.promise, self.test = fields.get("Promise", ""), fields.get("Test", "")
        self.hunks, file = [], None
        for line in diff.splitlines(keepends=True):
            if line.startswith(("--- a/", "+++ b/")):
                file = line[6:].split("\t")[0].strip()
            elif begin := re.match(r"@@ -(\d+)", line):
                self.hunks.append([file, int(begin[1]), "", ""])
            elif self.hunks and line[0] in " -+":
                self.hunks[-1][2] += line[1:] if line[0] != "+" else ""
                self.hunks[-1][3] += line[1:] if line[0] != "-" else ""

    def changed(self, root):
        """Returns {file: its text with the patch}. The lines around a change must be as the patch has them, but
        may have moved. Raises ValueError if they are not there."""
        texts = {}
        for file, line, old, new in self.hunks:
            text = texts.get(file) or (root / file).read_text(encoding="utf-8")
            places = [m.start() for m in re.finditer(f"^{re.escape(old)}", text, re.M)] if old else []
            if not places:
                raise ValueError(f"{file} has not the lines that the patch changes at line {line}")
            at = min(places, key=lambda place: abs(text.count("\n", 0, place) + 1 - line))
            texts[file] = text[:at] + new + text[at + len(old):]
        if not texts:
            raise ValueError("there is no diff")
        return texts


def read_patches(patterns=()):
    patches = [Patch(f.stem, f.read_text(encoding="utf-8")) for f in sorted(PATCHES.glob("*.patch"))]
    for pattern in patterns:
        if not fnmatch.filter([p.name for p in patches], pattern):
            sys.exit(f"mutate.py: no patch {pattern} in {PATCHES}")
    return [p for p in patches if not patterns or any(fnmatch.fnmatch(p.name, x) for x in patterns)]


# ---- what --check checks ---------------------------------------------------------------------------

def read_rows():
    """Returns the rows of docs/promises.md: {promise: the names in its column of tests}."""
    lines = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8").splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines if re.match(r"\| (?!promise )", line)]
    return {promise: re.findall("`([^`]+)`", tests) for promise, tests in cells}


def read_without():
    """Returns the lines of without.txt: {the first words of a row: why it has no patch}."""
    lines = (PATCHES / "without.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.partition(" | ")[::2] for line in lines if line and line[0] != "#")


def ctest_names():
    """Returns patterns of the names of tests in tests/CMakeLists.txt, whose loops are unrolled."""
    text = (ROOT / "tests" / "CMakeLists.txt").read_text(encoding="utf-8")
    loop = re.compile(r"foreach\((\w+)\s+([^)]*)\)((?:(?!foreach\().)*?)endforeach\(\)", re.S)

    def unroll(m):
        words = [word if "$" not in word else "*" for word in m[2].split()]
        return "".join(m[3].replace("${%s}" % m[1], word) for word in words)

    while loop.search(text):
        text = loop.sub(unroll, text)
    names = re.findall(r"(?:add_test\(NAME|qv_unit_test\(|qv_example\()\s*([^\s)]+)", text)
    return {re.sub(r"\$\{\w+\}", "*", name) for name in names} - {"*", "name"}


def exists(test, names):
    if not test.startswith("python/tests/"):
        return any(fnmatch.fnmatch(test, name) for name in names)
    file, _, function = test.partition("::")
    return (ROOT / file).is_file() and f"def {function}(" * bool(function) in (ROOT / file).read_text(encoding="utf-8")


def is_named(test, words):
    if not test.startswith("python/tests/"):
        return any(fnmatch.fnmatch(test, word) for word in words)
    return "python/tests" in words or Path(test.partition("::")[0]).name in {Path(word).name for word in words}


def check(patches, rows, without):
    """Returns everything that is wrong with the patches, and with the list of rows that have none."""
    wrong, names, seen = [], ctest_names(), set()
    for p in patches:
        found = [row for row in rows if p.promise and row.startswith(p.promise)]
        if len(found) != 1:
            wrong.append(f"{p.name}: {len(found)} rows of docs/promises.md begin with: {p.promise}")
        elif not is_named(p.test, rows[found[0]]):
            wrong.append(f"{p.name}: the row does not name the test {p.test}: {found[0]}")
        if not exists(p.test, names):
            wrong.append(f"{p.name}: no such test: {p.test}")
        try:
            p.changed(ROOT)
        except (OSError, ValueError) as e:
            wrong.append(f"{p.name}: does not apply: {e}")
        seen.update(found)
    for words, reason in without.items():
        found = [row for row in rows if row.startswith(words)]
        if len(found) != 1 or not reason:
            wrong.append(f"without.txt: {len(found)} rows begin with: {words}; the reason: {reason or 'none'}")
        elif found[0] in seen:
            wrong.append(f"without.txt: this row has a patch, so take it off the list: {words}")
        seen.update(found)
    return wrong + [f"this row has no patch, and is not in without.txt: {row}" for row in rows if row not in seen]


def selftest():
    text = (PATCHES / "error_not_printable.patch").read_text(encoding="utf-8")
    every, promise = read_rows(), Patch("", text).promise
    row = next(row for row in every if row.startswith(promise))
    rows, other = {row: every[row]}, {"Another promise": []}
    twice, bare = {row + " again": []}, text.partition("\n\n")[0] + "\n\n"
    for said, patch, table, without in (
            ("", text, rows, {}),
            ("0 rows", text.replace("Promise: ", "Promise: Not "), rows, {}),
            ("2 rows", text, {**rows, **twice}, {}),
            ("no such test", re.sub("Test: .*", "Test: nothing", text), rows, {}),
            ("no such test", re.sub("Test: .*", "Test: python/tests/test_model.py::test_no", text), rows, {}),
            ("does not name", re.sub("Test: .*", "Test: geometry", text), rows, {}),
            ("not the lines", re.sub("^-", "-x", text, flags=re.M), rows, {}),
            ("no diff", bare, rows, {}),
            ("has no patch", text, {**rows, **other}, {}),
            ("", text, {**rows, **other}, {"Another": "a reason"}),
            ("the reason: none", text, {**rows, **other}, {"Another": ""}),
            ("0 rows", text, rows, {"A third": "a reason"}),
            ("take it off", text, rows, {row: "a reason"})):
        wrong = check([Patch("planted", patch)], table, without)
        assert any(said in w for w in wrong) if said else not wrong, f"{said or 'nothing'}: not in {wrong}"


# ---- running a mutation ----------------------------------------------------------------------------

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
        """Builds the files that the test's command names; all, if it names the build's folder."""
        if preset not in self.configured:
            self.do("cmake", "--preset", preset)
            self.configured.add(preset)
        build = COPY / "build" / preset
        listed = (build / "tests" / "CTestTestfile.cmake").read_text(encoding="utf-8")
        command = re.search(rf"^add_test\(\[=\[{re.escape(test)}\]=\] (.*)\)$", listed, re.M)
        if not command:
            raise Failed(f"the preset {preset} has no test {test}")
        words = {os.path.relpath(w, build) for w in re.findall('"([^"]*)"', command[1]) if w.startswith(str(build))}
        made = {line.split(":")[0] for line in self.do("ninja", "-C", build, "-t", "targets", "all").splitlines()}
        targets = ["all"] if "." in words else sorted(words & made)
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
        failing = {1, 124}  # pytest's code for tests that fail, and timeout's; others are of pytest's own trouble
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
        if "***Not Run" in said or 0 < code < 128 and code not in failing:
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
    patches = read_patches(asked.names)
    if asked.selftest:
        return selftest()
    if asked.list:
        return print(*(f"{p.name} ({p.test}): {p.promise}" for p in patches), sep="\n")
    if asked.check:
        wrong = check(read_patches(), read_rows(), read_without())
        print(*wrong, f"{len(patches)} mutations, {len(wrong)} faults", sep="\n")
        return bool(wrong)
    with open(asked.log, "w", encoding="utf-8") as log:
        return run_all(patches, asked.jobs, log)


if __name__ == "__main__":
    sys.exit(main())
