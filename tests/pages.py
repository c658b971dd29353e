#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests that the pages of measurements are what the records give, and which figures README refuses.

A record of this version, day and commit is a row of README. Each way in which it may be of something
else is planted in turn, and must leave the row out, in words. Usage: pages.py
"""
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TABLES = os.path.join(ROOT, "tools", "tables.py")
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "tools"))
import measured  # noqa: E402

VERSION = measured.this_version(ROOT)
ROW = "| Qwen3-VL-4B | 760 | one H200 |"


def git(*args):
    done = subprocess.run(["git", "-C", ROOT, *args], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def tables(root, *options):
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([sys.executable, TABLES, "--root", root, *options], env=env, check=False,
                          capture_output=True, text=True)


def record(way, ms, **more):
    """A record of qwenvit as `bench tower` writes it, or of a peer."""
    r = {"bench": "tower", "case": "Qwen3-VL-4B 760 patches", "way": way, "dtype": "bf16", "median_ms": ms,
         "patches": 760, "day": "2026-02-03",
         "machine": {"backend": "cuda", "device": "NVIDIA H200, sm_90", "threads": 0, "tuned": False},
         "version": VERSION, "commit": COMMIT}
    if way != "encode":
        r["machine"] = {"backend": "torch", "device": "NVIDIA H200, torch 9.9, transformers 8.8", "threads": 16}
        r["version"] = "torch 9.9"
        del r["commit"]
    return {**r, **more}


def readme(folder, ours, peers=None):
    """README's text and what is said, made of these records in a folder of their own."""
    os.makedirs(os.path.join(folder, "docs", "measurements"), exist_ok=True)
    with open(os.path.join(folder, "README.md"), "w", encoding="utf-8") as f:
        f.write("before\n\n<!-- measured: made by tools/tables.py -->\nold\n<!-- /measured -->\n\nafter\n")
    if peers is None:
        peers = [record("transformers", 20.0), record("transformers linear", 10.0), record("compiled torch", 3.0)]
    with open(os.path.join(folder, "docs", "measurements", "a.jsonl"), "w", encoding="utf-8") as f:
        f.writelines(json.dumps(r) + "\n" for r in [ours, *peers])
    done = tables(folder)
    assert done.returncode == 0, done.stderr
    with open(os.path.join(folder, "README.md"), encoding="utf-8") as f:
        return f.read(), done.stderr


COMMIT = git("rev-parse", "--short=12", "HEAD") or "0123456789ab"
known = bool(git("rev-parse", "HEAD")) and git("rev-parse", "--is-shallow-repository") == "false"

done = tables(ROOT, "--check")
assert done.returncode == 0, done.stderr

with tempfile.TemporaryDirectory() as work:
    text, said = readme(work, record("encode", 2.0))
    assert f"{ROW} 2 | 10 | 3 | **5.00** | **1.50** |" in text, text  # the better of transformers' ways
    for words in (f"qwenvit {VERSION} at {COMMIT}, 2026-02-03", "torch 9.9, transformers 8.8"):
        assert words in text, f"{words}: not in {text}"
    assert "6,080 patches, one H200: it was not measured" in said, said
    assert tables(work, "--check").returncode == 0
    with open(os.path.join(work, "README.md"), "w", encoding="utf-8") as f:
        f.write(text.replace("| 2 |", "| 1 |"))  # a figure typed by hand
    done = tables(work, "--check")
    assert done.returncode == 1 and "README.md: not what docs/measurements gives" in done.stderr, done.stderr

    tuned = {"backend": "cuda", "device": "NVIDIA H200, sm_90", "threads": 0, "tuned": True}
    text, _ = readme(work, record("encode", 2.0, machine=tuned))
    assert f"{ROW} 2 (tuned) |" in text and "2026-02-03, tuned" in text, text

    unsaid = {k: v for k, v in tuned.items() if k != "tuned"}
    stale = [({"version": "0.0.1"}, f"it is of 0.0.1, not of {VERSION}"), ({"day": ""}, "it does not say its day"),
             ({"commit": ""}, "it does not say its commit"), ({"commit": COMMIT + "+"}, "with changes on top of"),
             ({"machine": unsaid}, "does not say whether it was tuned"),
             ({"day": "2026-02-04"}, "it is of 2026-02-04, and what it is compared with of 2026-02-03")]
    if known:  # where git has all commits
        stale.append(({"commit": "deadbeef0000"}, "is not in the history of this one"))
    for more, why in stale:
        text, said = readme(work, record("encode", 2.0, **more))
        assert ROW not in text and f"No figure of version {VERSION}" in text, f"{why}: {text}"
        assert f"760 patches, one H200: {why}" in said or why in said, f"{why}: not in {said}"
    text, _ = readme(work, record("encode", 2.0), [record("transformers", 10.0),
                                                   record("compiled torch", 3.0, day="2026-02-02")])
    assert f"{ROW} 2 | 10 | not timed | **5.00** | not timed |" in text, text  # a peer of another day
    text, said = readme(work, record("encode", 2.0), [])
    assert ROW not in text and "nothing was timed beside it" in said, said
print(f"the pages are what the records give; {len(stale) + 1} stale records are refused")
