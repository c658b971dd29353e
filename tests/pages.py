#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests that the pages' tables and pictures follow from the records, and which figures README and pages refuse.

Each way in which a record may not fit is planted in turn, and must leave its row out, with
the reason. A figure typed by hand is found. The numbers of drawn records are theirs. Usage: pages.py
"""
import json
import os
import subprocess
import sys
import tempfile
from xml.etree import ElementTree

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "tools"))
import measured  # noqa: E402

VERSION = measured.this_version()
ROW = "| Qwen3-VL-4B | 760 | one H200 |"
GIT = [subprocess.run(["git", "-C", ROOT, "rev-parse", *args], capture_output=True, text=True, check=False).stdout.strip()
       for args in (("--short=12", "HEAD"), ("--is-shallow-repository",))]
COMMIT = GIT[0] or "0123456789ab"
OURS = {"backend": "cuda", "device": "NVIDIA H200, sm_90", "threads": 0}
PEER = {"machine": {"backend": "torch", "device": "NVIDIA H200, torch 9.9, transformers 8.8", "threads": 16},
        "version": "torch 9.9"}


def run(*args):
    return subprocess.run([sys.executable, "-B", os.path.join(ROOT, "tools", "measured.py"), *args], check=False,
                          capture_output=True, text=True)


def record(way, ms, **more):
    """A record as `bench tower` writes it."""
    return {"bench": "tower", "case": "M 760 patches", "way": way, "dtype": "bf16", "median_ms": ms, "patches": 760,
            "day": "2026-02-03", "machine": OURS, "version": VERSION, "commit": COMMIT, **more}


PEERS = [record(way, ms, **PEER) for way, ms in (("transformers", 20.0), ("transformers linear", 10.0), ("compiled torch", 3.0))]


def pages(folder, ours, peers=None):
    """README's text, the other page's, and the messages, made from these records in a separate folder."""
    os.makedirs(os.path.join(folder, "docs", "measurements"), exist_ok=True)
    files = [os.path.join(folder, page) for page in ("README.md", "docs/measured.md")]
    for path, name in zip(files, ("README", "towers")):
        with open(path, "w", encoding="utf-8") as f:
            f.write(f"before\n\n<!-- measured: {name} -->\nold\n<!-- /measured -->\n\nafter\n")
    with open(os.path.join(folder, "docs/measurements/a.jsonl"), "w", encoding="utf-8") as f:
        f.writelines(json.dumps(r) + "\n" for r in [ours, *(PEERS if peers is None else peers)])
    done = run("--root", folder)
    assert done.returncode == 0, done.stderr
    return *(open(path, encoding="utf-8").read() for path in files), done.stderr


done = run("--check")
assert done.returncode == 0, done.stderr

with tempfile.TemporaryDirectory() as work:
    text, page, said = pages(work, record("encode", 2.0))
    assert f"{ROW} 2 | 10 | 3 | **5.00** | **1.50** |" in text, text  # the better of transformers' ways
    assert "| Qwen3-VL-4B | 760 | 2 | 10 | 3 | **5.00** | **1.50** |" in page, page
    assert f"qwenvit {VERSION} on 2026-02-03" in text, text
    for words in (f"qwenvit {VERSION} at {COMMIT} on 2026-02-03", "torch 9.9, transformers 8.8"):
        assert words in page, f"{words}: not in {page}"
    assert "6,080 patches, one H200: it was not measured" in said, said
    assert run("--root", work, "--check").returncode == 0
    shown = ElementTree.parse(os.path.join(work, "docs/towers.svg"))  # the picture that README shows
    assert "10 ms, 5 times ours" in [t.text for t in shown.iter("{http://www.w3.org/2000/svg}text")], done.stderr
    records = os.path.join(work, "docs/measurements/a.jsonl")
    for what, row in (("tower", '"Qwen3-VL-4B, 760 patches",compiled torch,3.0,"3 ms, 1.5 times ours"'),
                      ("all", '"tower, Qwen3-VL-4B 760 patches",transformers,20.0,20 ms')):
        done = run("plot", "--what", what, records, "-o", os.path.join(work, "a.svg"))
        assert row in open(os.path.join(work, "a.csv"), encoding="utf-8").read().splitlines(), done.stderr
        ElementTree.parse(os.path.join(work, "a.svg"))
    more = [record("packed", 9.0, case="M 156816 patches packed", list="list64.txt", items=64, patches=156816, capacity=12288, fill=0.98),
            record("encode", 2.0, flops=4e9, bytes=1e8, machine={**OURS, "roof_tflops_per_s": 800.0, "roof_gb_per_s": 4000.0})]
    drawn = os.path.join(work, "drawn.jsonl")
    with open(drawn, "w", encoding="utf-8") as f:
        f.writelines(json.dumps(r) + "\n" for r in more)
    for what, row in (("fill", '"64 clips and images, 156,816 patches, chunks of 12,288",packed into chunks,98.0,98% of the rows hold patches'),
                      ("roofline", "Qwen3-VL-4B,tower,40.0,2.0")):
        done = run("plot", "--what", what, drawn, "-o", os.path.join(work, "a.svg"))
        assert row in open(os.path.join(work, "a.csv"), encoding="utf-8").read().splitlines(), (row, done.stderr)
        ElementTree.parse(os.path.join(work, "a.svg"))
    with open(records, "a", encoding="utf-8") as f:
        f.write(json.dumps(record("encode", 2.0, dtype="f32")) + "\n")
    done = run("plot", records, "-o", os.path.join(work, "a.svg"))
    assert done.returncode == 1 and "choose one with --machine or --dtype" in done.stderr, done.stderr
    other = os.path.join(work, "other.jsonl")
    for data, why in ((None, "No such file"), (b'{"a": 1}\n', ":1: missing bench"), (b"\x89PNG", "not text"), (b"", "no records")):
        if data is not None:
            with open(other, "wb") as f:
                f.write(data)
        done = run("plot", other, "-o", os.path.join(work, "b.svg"))
        assert done.returncode == 1 and why in done.stderr and "as `qwenvit bench tower" in done.stderr, done.stderr
    assert not os.path.exists(os.path.join(work, "b.svg"))
    with open(os.path.join(work, "README.md"), "w", encoding="utf-8") as f:
        f.write(text.replace("| 2 |", "| 1 |"))  # a figure typed by hand
    done = run("--root", work, "--check")
    assert done.returncode == 1 and "README.md: does not match docs/measurements" in done.stderr, done.stderr

    other = "NVIDIA H100 80GB HBM3"  # a GPU that was timed later has the rows
    text, page, _ = pages(work, record("encode", 2.0), [*PEERS, *(
        {**r, "day": "2026-02-05", "machine": {**r["machine"], "device": r["machine"]["device"].replace("NVIDIA H200", other)}}
        for r in [record("encode", 4.0), *PEERS])])
    assert "one H100 | 4 | 10 | 3 | **2.50** | **0.75** |" in text and "one H200" not in text and f"**{other}**" in page, text

    job = {"bench": "cache fill", "case": "M 240 clips, h264 1280x720 10 s, 20 frames of 576x320", "clips": 240, "codec": "h264",
           "seconds": 10.0, "source": "1280x720", "frames": 20, "frame": "576x320", "cores": 16}
    fills = [record("cache fill", 4800.0, **job, job_ms=4000.0), record("transformers torchcodec", 16000.0, **job, **PEER),
             record("transformers torchcodec, decoded on cuda", 12000.0, **job, **PEER)]
    done = "240 clips of 10 s in H.264, 1280x720, 20 frames of 576x320 each"
    text, _, said = pages(work, record("encode", 2.0), [*PEERS, *fills])  # the better of transformers' ways
    assert f"| `cache fill`, {done} | one H200, 16 cores | 50 | 20 | **2.50** |" in text and "cache fill" not in said, (text, said)
    page = measured.machine_tables("cache fill", fills)[1]
    assert f"| Qwen3-VL-4B | {done} | 16 | 50 | 60 | 15 | 20 | **2.50** |" in page, page
    for more, why in (({"codec": "hevc"}, "it was not measured"), ({"day": "2026-02-04"}, "its peers on 2026-02-03"), ({"commit": ""}, "no commit")):
        text, _, said = pages(work, record("encode", 2.0), [*PEERS, {**fills[0], **more}, *fills[1:]])
        assert f"{ROW} 2 |" in text and "clips/s" not in text and "cache fill, one H200: it" in said and why in said, (text, said)

    stale = [({"version": "0.0.1"}, f"it was measured with 0.0.1, not {VERSION}"), ({"day": ""}, "it has no day"),
             ({"commit": ""}, "it has no commit"), ({"repeats": 1}, "it has 1 run; a median needs 3"), ({"commit": COMMIT + "+"}, "with changes on top of"),
             ({"day": "2026-02-04"}, "it was measured on 2026-02-04, its peers on 2026-02-03")]
    if GIT[1] == "false":  # git has all commits
        stale.append(({"commit": "deadbeef0000"}, "is not in the history of this one"))
    for more, why in stale:
        text, page, said = pages(work, record("encode", 2.0, **more))
        assert ROW not in text and f"No figure of version {VERSION}" in text and why in said, f"{why}: {text} {said}"
        assert f"qwenvit {more.get('version', VERSION)} at" in page and ("| 10 |" in page) == ("day" not in more), page
    _, page, _ = pages(work, record("encode", 2.0), [record("encode", 7.0, version="0.0.1", case="M 6080 patches", patches=6080)])
    assert "| 2 |" in page and "| 7 |" not in page and "0.0.1" not in page, page  # one version in a table
    text, _, _ = pages(work, record("encode", 2.0), [PEERS[1], {**PEERS[2], "day": "2026-02-02"}])
    assert f"{ROW} 2 | 10 | not timed | **5.00** | not timed |" in text, text  # a peer of another day
    text, _, said = pages(work, record("encode", 2.0), [])
    assert ROW not in text and "no peer was timed" in said, said
print(f"the pages are what the records give; {len(stale) + 1} stale records are refused")
