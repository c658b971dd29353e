#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compares src/outcome.inc with the table of docs/c.md. With --write it writes the table of docs/c.md."""
import pathlib
import re
import sys

top = pathlib.Path(__file__).resolve().parent.parent
page = top / "docs/c.md"
HEAD = "| `qv_outcome` | `info --json` | `encode --json` | a file's `preprocessing` | a cache's record | `Tokens` in Python |"


def read_list():
    """Returns a tuple (member, and the name for each reader or "") for each row."""
    text = re.sub(r",\n +", ", ", (top / "src/outcome.inc").read_text())
    rows = re.findall(r"^QV_OUTCOME\((\w+), \w+, (?:HERE|\w+\(.*?\)), (.*)\)$", text, re.M)
    cell = r'(NO|NULL|(?:AT|SET|WORD)\(.*?\)|"\w+")'
    for member, columns in rows:
        cells = re.findall(cell, columns)
        assert len(cells) == 5, f"{member}: {columns}"
        yield (member, *(next(iter(re.findall(r'"(\w+)"', text)), "") for text in cells))


def table(rows):
    lines = [HEAD, "|---" * 6 + "|"]
    return "\n".join(lines + ["| " + " | ".join(f"`{name}`" if name else "" for name in row) + " |" for row in rows])


def main():
    rows = list(read_list())
    text = page.read_text()
    old = re.search(r"^\| `qv_outcome`.*?(?=\n\n|\n?\Z)", text, re.M | re.S)
    if "--write" in sys.argv:
        page.write_text(text.replace(old[0], table(rows)))
        return
    assert old[0] == table(rows), "docs/c.md has another table; tests/outcome.py --write writes it"
    print(f"{len(rows)} members")


main()
