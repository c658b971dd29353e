#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compares src/outcome.inc with the table of docs/c.md. With --write it writes that table."""
import pathlib
import re
import sys

top = pathlib.Path(__file__).resolve().parent.parent
page = top / "docs/c.md"
table = ("| `qv_outcome` | `info --json` | `encode --json` | a file's `preprocessing` | a cache's record | `Tokens` in Python |\n"
         "|---|---|---|---|---|---|\n")
for member, columns in re.findall(r"^QV_OUTCOME\((\w+), \w+, (?:HERE|\w+\(.*?\)),(.*?)\)$", (top / "src/outcome.inc").read_text(), re.M | re.S):
    names = re.findall(r'\bNO\b|\w+\("(\w+)".*?\)', columns)
    assert len(names) == 5, f"{member}: {columns}"
    table += "".join(f"| `{name}` " if name else "|  " for name in (member, *names)) + "|\n"
text = page.read_text()
if "--write" in sys.argv:
    page.write_text(re.sub(r"^\| `qv_outcome`.*?\n(?=\n)", lambda _: table, text, flags=re.M | re.S))
else:
    assert table in text, "docs/c.md has another table; tests/outcome.py --write writes it"
