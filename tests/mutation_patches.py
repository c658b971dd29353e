# SPDX-License-Identifier: MIT
"""The patches of tests/mutations, and everything that can be checked of them without a build. mutate.py runs them."""
import fnmatch
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PATCHES = ROOT / "tests" / "mutations"


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


# ---- the page, the tests, and the rows that have no patch --------------------------------------------

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
    """Returns patterns of the names of tests that CMake's files list, whose loops are unrolled."""
    lists = (ROOT / "tests" / folder / "CMakeLists.txt" for folder in ("", "metal_emulator"))
    text = "".join(file.read_text(encoding="utf-8") for file in lists)
    loop = re.compile(r"foreach\((\w+)\s+([^)]*)\)((?:(?!foreach\().)*?)endforeach\(\)", re.S)

    def unroll(m):
        words = [word if "$" not in word else "*" for word in m[2].split()]
        return "".join(m[3].replace("${%s}" % m[1], word) for word in words)

    while loop.search(text):
        text = loop.sub(unroll, text)
    names = re.findall(r"(?:add_test\(NAME|qv_(?:unit_test|command_test|example)\()\s*([^\s)]+)", text)
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
    """Tests that check() finds what is planted in a patch with which nothing is wrong."""
    every = read_rows()
    for file in sorted(PATCHES.glob("*.patch")):
        text = file.read_text(encoding="utf-8")
        row = next((r for r in every if r.startswith(Patch("", text).promise)), None)
        if row and not check([Patch("", text)], {row: every[row]}, {}):
            break
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
