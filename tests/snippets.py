#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs the shell and Python snippets of the READMEs and of every page of docs/, unchanged.

    snippets.py WORK [PAGE..]        all, or those of some pages, below the folder WORK
    snippets.py --show PAGE          the first snippet of a page

README's first lines are run first. They make an environment in a separate home, and all other blocks run in it.
A page runs from its top to its end in a folder that holds the files it names (clip.mp4, clips.txt, a checkpoint, a
cache). An indented block or one of ```sh runs in a shell; blocks of ```python run in one interpreter, one after
another. Other blocks are not run. A comment before a block changes how it is run:

    <!-- snippet: not run: WHY -->         it is not run; for a whole page: <!-- page: not run: WHY -->
    <!-- snippet: needs torch, pyarrow --> it is run where these modules are installed
    <!-- snippet: in the sources -->       the working folder is the folder of the sources
    <!-- snippet: before
    CODE -->                               Python that readers do not need to see, run before it
"""
import collections
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DEPS = os.path.join(ROOT, "build", "deps", "python")
MARK = re.compile(r"<!-- (snippet|page): (not run|needs|in the sources|before)[: \n]*(.*?)\s*-->", re.S)


class Block(NamedTuple):
    page: str
    line: int  # from 1: where its code begins
    language: str  # "sh", "python", or what the page says
    code: str
    before: str  # Python
    needs: list  # modules
    why_not: str  # it is not run; "": it is
    in_sources: bool


# ---- pages ---------------------------------------------------------------------------------------

def pages():
    return ["README.md", "python/README.md",
            *sorted(os.path.relpath(p, ROOT) for p in glob.glob(os.path.join(ROOT, "docs", "*.md")))]


def _code_end(lines, i):
    """Returns the index after the last line of the indented block that begins at i."""
    end = i
    while i < len(lines) and (lines[i].startswith("    ") or not lines[i].strip()):
        i += 1
        end = i if lines[i - 1].strip() else end
    return end


def blocks(page):
    """Returns the code blocks of a page in their order."""
    with open(os.path.join(ROOT, page), encoding="utf-8") as f:
        text = f.read()
    lines, found, marks, page_why, i = text.split("\n"), [], [], "", 0

    def add(first, end, language):
        code = "\n".join(line.removeprefix("    ") if language is None else line for line in lines[first:end])
        said = {what: value for what, value in marks}
        marks.clear()
        found.append(Block(page, first + 1, language or "sh", code + "\n", said.get("before", ""),
                           re.split(r",\s*", said["needs"]) if "needs" in said else [],
                           said.get("not run", page_why), "in the sources" in said))

    while i < len(lines):
        line = lines[i]
        if line.startswith("<!--"):
            comment = line
            while "-->" not in lines[i]:
                i += 1
                comment += "\n" + lines[i]
            mark = MARK.match(comment)
            if mark and mark[1] == "page":
                page_why = mark[3]
            elif mark:
                marks.append((mark[2], mark[3]))
            i += 1
        elif line.startswith("```"):
            end = next(j for j in range(i + 1, len(lines)) if lines[j].startswith("```"))
            add(i + 1, end, line[3:].split()[0] if line[3:].strip() else "text")
            i = end + 1
        elif line.startswith("    ") and (not lines[i - 1].strip() or lines[i - 1].startswith("#")):
            end = _code_end(lines, i)
            add(i, end, None)
            i = end
        else:
            i += 1
    assert not marks, f"{page}: {marks} stands before no snippet"
    return found


def python_blocks(page):
    return [b for b in blocks(page) if b.language == "python"]


# ---- what they find ------------------------------------------------------------------------------

def environment(home):
    """The environment of a user with only a system. PyPI's packages are those that deps.sh has fetched."""
    site = glob.glob(os.path.join(DEPS, "lib", "python3*", "site-packages"))[0]
    kept = {k: v for k, v in os.environ.items() if k.startswith(("CMAKE_", "CCACHE_", "LANG", "TMPDIR"))}
    return {**kept, "HOME": home, "PATH": f"/usr/local/bin:/usr/bin:/bin:{DEPS}/bin", "PYTHONPATH": site,
            "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PYTHONDONTWRITEBYTECODE": "1"}


def in_environment(env):
    """The environment after README's first lines have been run."""
    return {**env, "PATH": f"{env['HOME']}/qwenvit-env/bin:{env['PATH']}", "VIRTUAL_ENV": f"{env['HOME']}/qwenvit-env"}


def prepare(folder, env):
    """Makes the files that the pages' names stand for: clips, images, lists, a checkpoint, a cache."""
    os.makedirs(folder)
    shutil.copytree(os.path.join(ROOT, "tests", "golden", "qwen3_vl"), os.path.join(folder, "Qwen3-VL-4B-Instruct"))
    shutil.copy(os.path.join(ROOT, "docs", "tokens.png"), os.path.join(folder, "b.png"))
    run = lambda *command: subprocess.run(command, cwd=folder, env=env, check=True, stdout=subprocess.DEVNULL)
    run("qwenvit", "synth", "--clip", "clip.mp4")
    for name in ("a.mp4", "b.mp4", "c.mp4"):
        shutil.copy(os.path.join(folder, "clip.mp4"), os.path.join(folder, name))
    with open(os.path.join(folder, "clips.txt"), "w", encoding="utf-8") as f:
        f.write("clip.mp4\na.mp4\nb.png\n")
    with open(os.path.join(folder, "clips.jsonl"), "w", encoding="utf-8") as f:
        f.writelines(json.dumps({"path": p}) + "\n" for p in ("clip.mp4", "a.mp4", "b.png"))
    run("qwenvit", "cache", "fill", "--model", "Qwen3-VL-4B-Instruct", "--list", "clips.txt", "-o", "tokens", "--quiet")


# ---- running -------------------------------------------------------------------------------------

# Runs a page's blocks (JSON on standard input) in one interpreter. Prints which are left out and which failed.
RUNNER = r"""
import importlib.util, json, subprocess, sys, time, traceback
names, blocks = {"__name__": "__main__"}, json.load(sys.stdin)
for b in blocks:
    place, began = f"{b['page']}:{b['line']}", time.monotonic()
    lacking = [m for m in b["needs"] if importlib.util.find_spec(m) is None]
    if b["why_not"] or lacking:
        print(f"{place}: not run: {b['why_not'] or 'needs ' + ', '.join(lacking)}")
        continue
    try:
        if b["language"] == "python":
            exec(compile(b["before"], place + " (before)", "exec"), names)
            exec(compile("\n" * (b["line"] - 1) + b["code"], b["page"], "exec"), names)
        else:
            subprocess.run(["sh", "-euc", b["code"]], cwd=b["cwd"], check=True, stdin=subprocess.DEVNULL,
                           stdout=subprocess.DEVNULL)
    except BaseException:
        traceback.print_exc()
        print(f"{place}: FAILED", flush=True)
        sys.exit(1)
    print(f"{place}: run, {time.monotonic() - began:.1f} s", flush=True)
"""


def run_page(page, work, env, skip=()):
    """Returns the lines that RUNNER prints, and whether all blocks succeeded."""
    here = os.path.join(work, page.replace("/", "_"))
    shutil.copytree(os.path.join(work, "prepared"), here)
    todo = [{**b._asdict(), "cwd": ROOT if b.in_sources else here} for b in blocks(page)
            if b.language in ("sh", "python") and b not in skip]
    try:
        done = subprocess.run(["python3", "-c", RUNNER], cwd=here, env=env, input=json.dumps(todo), text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
    except subprocess.TimeoutExpired as late:
        return f"{late.stdout}\n{page}: FAILED: more than 300 s", False
    return done.stdout, done.returncode == 0


def install(work, env):
    """Runs README's first lines. Returns their block and how long it took."""
    first = blocks("README.md")[0]
    assert first.in_sources and "pip install" in first.code, "README's first lines install it"
    began = time.monotonic()
    subprocess.run(["sh", "-euc", first.code], cwd=ROOT, env=env, check=True, stdin=subprocess.DEVNULL)
    return first, time.monotonic() - began


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-") and sys.argv[1] != "--show":
        raise SystemExit(__doc__)
    if sys.argv[1] == "--show":
        print(blocks(sys.argv[2])[0].code, end="")
        return
    work, wanted = os.path.abspath(sys.argv[1]), sys.argv[2:] or pages()
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(os.path.join(work, "home"))
    env = environment(os.path.join(work, "home"))
    first, seconds = install(work, env)
    print(f"README.md:{first.line}: run, {seconds:.1f} s")
    env = in_environment(env)
    prepare(os.path.join(work, "prepared"), env)
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda page: run_page(page, work, env, (first,)), wanted))
    text = "".join(said for said, _ in results)
    print(text, end="")
    left_out = collections.Counter(re.findall(r"^(.*):\d+: (not run: .*)", text, re.M))
    for (page, why), n in left_out.items():
        print(f"{page}, {n}: {why}")
    print(f"{text.count(': run, ') + 1} snippets run, {text.count(': not run: ')} not")
    if not all(well for _, well in results):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
