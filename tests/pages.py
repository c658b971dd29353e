#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests that the pages' tables are what the records give, and which figures README and pages refuse.

Each way in which a record may be of something else is planted in turn, and must leave its row out, with
the reason. A figure typed by hand is found. plot.py's numbers are the records'. Usage: pages.py
"""
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "tools"))
import measured  # noqa: E402

VERSION = measured.this_version()
ROW = "| Qwen3-VL-4B | 760 | one H200 |"
GIT = [subprocess.run(["git", "-C", ROOT, "rev-parse", *args], capture_output=True, text=True, check=False).stdout.strip()
       for args in (("--short=12", "HEAD"), ("--is-shallow-repository",))]
COMMIT = GIT[0] or "0123456789ab"
OURS = {"backend": "cuda", "device": "NVIDIA H200, sm_90", "threads": 0, "tuned": False}
PEER = {"machine": {"backend": "torch", "device": "NVIDIA H200, torch 9.9, transformers 8.8", "threads": 16},
        "version": "torch 9.9"}


def run(script, *args):
    return subprocess.run([sys.executable, "-B", os.path.join(ROOT, "tools", script), *args], check=False,
                          capture_output=True, text=True)


def record(way, ms, **more):
    """A record as `bench tower` writes it."""
    return {"bench": "tower", "case": "M 760 patches", "way": way, "dtype": "bf16", "median_ms": ms, "patches": 760,
            "day": "2026-02-03", "machine": OURS, "version": VERSION, "commit": COMMIT, **more}


PEERS = [record(way, ms, **PEER) for way, ms in (("transformers", 20.0), ("transformers linear", 10.0), ("compiled torch", 3.0))]


def pages(folder, ours, peers=None):
    """README's text, the other page's, and what is said, made of these records in a folder of their own."""
    os.makedirs(os.path.join(folder, "docs", "measurements"), exist_ok=True)
    files = [os.path.join(folder, page) for page in ("README.md", "docs/measured.md")]
    for path, name in zip(files, ("README", "towers")):
        with open(path, "w", encoding="utf-8") as f:
            f.write(f"before\n\n<!-- measured: {name} -->\nold\n<!-- /measured -->\n\nafter\n")
    with open(os.path.join(folder, "docs/measurements/a.jsonl"), "w", encoding="utf-8") as f:
        f.writelines(json.dumps(r) + "\n" for r in [ours, *(PEERS if peers is None else peers)])
    done = run("measured.py", "--root", folder)
    assert done.returncode == 0, done.stderr
    return *(open(path, encoding="utf-8").read() for path in files), done.stderr


done = run("measured.py", "--check")
assert done.returncode == 0, done.stderr

with tempfile.TemporaryDirectory() as work:
    text, page, said = pages(work, record("encode", 2.0))
    assert f"{ROW} 2 | 10 | 3 | **5.00** | **1.50** |" in text, text  # the better of transformers' ways
    assert "| Qwen3-VL-4B | 760 | 2 | 10 | 3 | **5.00** | **1.50** |" in page, page
    for words in (f"qwenvit {VERSION} at {COMMIT}, 2026-02-03", "torch 9.9, transformers 8.8"):
        assert words in text and words in page, f"{words}: not in {text}"
    assert "6,080 patches, one H200: it was not measured" in said, said
    assert run("measured.py", "--root", work, "--check").returncode == 0
    done = run("plot.py", "towers", os.path.join(work, "docs/measurements/a.jsonl"), "-o", os.path.join(work, "a.csv"))
    numbers = open(os.path.join(work, "a.csv"), encoding="utf-8").read().splitlines()
    assert '"Qwen3-VL-4B, 760 patches",compiled torch,compiled torch,3.0,"3 ms, 1.5 times ours"' in numbers, done.stderr
    with open(os.path.join(work, "README.md"), "w", encoding="utf-8") as f:
        f.write(text.replace("| 2 |", "| 1 |"))  # a figure typed by hand
    done = run("measured.py", "--root", work, "--check")
    assert done.returncode == 1 and "README.md: not what docs/measurements gives" in done.stderr, done.stderr

    text, page, _ = pages(work, record("encode", 2.0, machine={**OURS, "tuned": True}))
    assert f"{ROW} 2 (tuned) |" in text and "2026-02-03, tuned" in text and "| 2 (tuned) |" in page, text

    stale = [({"version": "0.0.1"}, f"it is of 0.0.1, not of {VERSION}"), ({"day": ""}, "it does not say its day"),
             ({"commit": ""}, "it does not say its commit"), ({"commit": COMMIT + "+"}, "with changes on top of"),
             ({"machine": {**PEER["machine"], "backend": "cuda"}}, "does not say whether it was tuned"),
             ({"day": "2026-02-04"}, "it is of 2026-02-04, its peers of 2026-02-03")]
    if GIT[1] == "false":  # git has all commits
        stale.append(({"commit": "deadbeef0000"}, "is not in the history of this one"))
    for more, why in stale:
        text, page, said = pages(work, record("encode", 2.0, **more))
        assert ROW not in text and f"No figure of version {VERSION}" in text and why in said, f"{why}: {text} {said}"
        assert ("Not measured with this version yet" in page) == ("version" in more), page
        assert ("| 10 |" in page) == ("version" not in more and "day" not in more), page
    text, _, _ = pages(work, record("encode", 2.0), [PEERS[1], {**PEERS[2], "day": "2026-02-02"}])
    assert f"{ROW} 2 | 10 | not timed | **5.00** | not timed |" in text, text  # a peer of another day
    text, _, said = pages(work, record("encode", 2.0), [])
    assert ROW not in text and "nothing was timed beside it" in said, said
print(f"the pages are what the records give; {len(stale) + 1} stale records are refused")
