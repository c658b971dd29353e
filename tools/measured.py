# SPDX-License-Identifier: MIT
"""Reads what was measured: the files in docs/measurements, and the records in them.

speed-*.json and parity-*.json come from tools/reference/bench_side_by_side.py and parity.py. A
*.jsonl holds records, an object a line, of `qwenvit bench`, `qwenvit profile` (--json=FILE),
tools/peers/peers.py, python/bench/patched.py and actors.py (--json FILE). Four kinds of *.jsonl hold
something else: verify-*.jsonl and encode-*.jsonl come from `qwenvit verify` and `qwenvit encode`,
gguf-*.jsonl from gguf_parity.py, mtmd_steps.py and mtmd.py, and earlier-*.jsonl are records of an
earlier version, to compare with. If two records are of the same work, the one of the later day
counts; on one day the later line counts.
"""
import functools
import glob
import json
import os
import re
import shutil
import subprocess

TOWERS = {"S": "Qwen3.5-0.8B", "M": "Qwen3-VL-4B", "L": "Qwen3-VL-8B", "Q2": "Qwen2-VL-7B",
          "Q25": "Qwen2.5-VL-7B", "Q25-3B": "Qwen2.5-VL-3B", "Qwen2.5": "Qwen2.5-VL-7B",
          "GLM": "GLM-4.1V-9B", "m_qwen2-vl-7b": "Qwen2-VL-7B", "m_qwen2.5-vl-7b": "Qwen2.5-VL-7B",
          "synthetic": "sizes of Qwen3-VL-4B", "two-blocks": "two blocks of width 384",
          "tower-m": "Qwen3-VL-2B"}  # a folder's short name -> the model whose tower it has
BY_GPU = (", by the GPU", ", by auto")  # end the cases of clips that a GPU decodes
OTHER_KINDS = ("verify-", "encode-", "earlier-", "gguf-")  # prefixes of files that hold something else


# ---- files -------------------------------------------------------------------------------------

def load(root, pattern):
    for path in sorted(glob.glob(os.path.join(root, "docs", "measurements", pattern))):
        with open(path, encoding="utf-8") as f:
            yield json.load(f)


def record_files(root):
    """Returns the files whose records make the tables and plots."""
    return [f for f in sorted(glob.glob(os.path.join(root, "docs", "measurements", "*.jsonl")))
            if not os.path.basename(f).startswith(OTHER_KINDS)]


WANTED = "records are wanted, as `qwenvit bench tower --model DIR --json=FILE.jsonl` appends them"


def read_text(path, wanted=WANTED):
    """Returns a file's text. A file that cannot be read ends the program, which says what is wanted."""
    try:
        with open(path, encoding="utf-8") as f:
            return f.read()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "no text"
        raise SystemExit(f"{path}: {why}; {wanted}") from None


def read_records(paths):
    """Returns the records of some files. A line that is no record ends the program, which names it."""
    records = []
    for path in paths:
        for i, line in enumerate(read_text(path).splitlines(), 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except ValueError as error:
                raise SystemExit(f"{path}:{i}: {error}; {WANTED}") from None
            missing = [k for k in ("bench", "case", "way", "dtype", "median_ms", "machine")
                       if not isinstance(record, dict) or k not in record]
            if missing:
                raise SystemExit(f"{path}:{i}: no {', '.join(missing)}; {WANTED}")
            if "failed" not in record:  # such a record has words and no time
                records.append(record)
    if not records:
        raise SystemExit(f"{', '.join(paths)}: no records; {WANTED}")
    return latest(records)


def latest(records):
    """Returns the last record of each work, and the last run of each profile."""
    kept, profile = {}, {}
    for r in sorted(records, key=lambda r: r.get("day", "")):  # a stable sort: lines keep their order
        key = r["dtype"], place(r)
        if r["bench"] != "profile":
            # a tower may be measured under a folder's short name and later under its whole name
            work = tower(r), *r["case"].split()[1:]
            kept[(r["bench"], work, r["way"], r.get("model"), r.get("capacity")) + key] = r
            continue
        run = profile.setdefault(key, [])
        if run and r.get("step", 1) <= run[-1].get("step", 0):
            run.clear()  # another run begins
        run.append(r)
    return list(kept.values()) + [r for run in profile.values() for r in run]


def runs(root, kind):
    """Yields what `qwenvit verify` or `encode` appended to its files."""
    for path in sorted(glob.glob(os.path.join(root, "docs", "measurements", kind + "*.jsonl"))):
        with open(path, encoding="utf-8") as f:
            yield from (json.loads(line) for line in f if line.strip())


def verify_runs(root, check):
    """Returns the runs of `qwenvit verify` that hold a check."""
    return (run for run in runs(root, "verify-") if any(r["check"] == check for r in run["rows"]))


# ---- records -----------------------------------------------------------------------------------

def place(record):
    """Returns the machine's name, which is equal in all records of it, whoever wrote them."""
    m = record["machine"]
    name = " ".join(m["device"].split(",")[0].split())
    gpu = m["backend"] in ("cuda", "metal") or name.startswith("NVIDIA")
    return name if gpu else f"{name}, {m['threads']} threads"


def is_peer(record):
    return record["machine"]["backend"] == "torch"


def machine_text(records):
    """Returns the fullest description of the machine of some records: qwenvit's, if one is of qwenvit."""
    r = sorted(records, key=is_peer)[0]
    threads = place(r).split(", ")[1:]
    device = place(r).split(", ")[0] if is_peer(r) else r["machine"]["device"]
    return ", ".join([device] + threads)


def groups(records, bench, *keys):
    """Returns {(key values.., dtype, place): {way: record}} of a bench, in the order of the values. Towers whose
    weights stay quantised have a table of their own."""
    out = {}
    for r in records:
        if r["bench"] == bench and "stored" not in r:
            key = tuple(k(r) for k in keys) + (r["dtype"], place(r))
            out.setdefault(key, {})[r["way"]] = r
    return dict(sorted(out.items(), key=lambda item: (item[0][-1],) + item[0][:-1]))


def is_by_gpu(ways):
    """Returns whether {way: record} are of clips that a GPU's decoders decode."""
    return "gpu" in ways or any(r.get("decode") == "gpu" for r in ways.values()) or any(
        r["case"].endswith(BY_GPU) for r in ways.values())


def tower(record):
    """Returns the model whose vision tower a record is of. The case begins with its folder's name."""
    name = record["case"].split(",")[0].split()[0]
    return TOWERS.get(name, name)


def case(record):
    """Returns the case of a record, with the model's name in place of a short one."""
    name = record["case"].split(",")[0].split()[0]
    return TOWERS[name] + record["case"][len(name):] if name in TOWERS else record["case"]


def fastest(records):
    records = [r for r in records if r]
    return min(records, key=lambda r: r["median_ms"]) if records else None


def of_day(ways, ours):
    """Returns {way: record} without the peers that were timed on another day than ours."""
    return {way: r for way, r in ways.items()
            if not is_peer(r) or r.get("day", "") == (ours or {}).get("day", "")}


def transformers_best(ways):
    """Returns the fastest of transformers' own ways: as shipped, with its linear patch embedding, .."""
    return fastest([r for way, r in ways.items() if way.split()[0] == "transformers"])


def digits(x):
    """Returns a number with three digits, or with all digits in front of the point."""
    return f"{x:.0f}" if x >= 100 else f"{x:.3g}"


# ---- of which version, and when ----------------------------------------------------------------

def this_version(root):
    """Returns the version in the public header."""
    for line in read_text(os.path.join(root, "include", "qwenvit.h"), "a header").splitlines():
        if line.startswith("#define QV_VERSION "):
            return line.split('"')[1]
    raise SystemExit(f"{root}/include/qwenvit.h: no QV_VERSION")


def short_version(record):
    """Returns the version of a record of qwenvit, and ", tuned" if kernels were chosen by timing them."""
    tuned = record["machine"].get("tuned")
    return record.get("version", "") + (", tuned" if tuned else "")


def made_by(records):
    """Returns the versions, commits and days of some records, each once, as a part of a sentence."""
    own, peers = set(), set()
    for r in records:
        if is_peer(r):
            peers.add(", ".join(r["machine"]["device"].split(", ")[1:]))
        else:
            at = f" at {r['commit']}" if r.get("commit") else ""
            day = f", {r['day']}" if r.get("day") else ""
            tuned = ", tuned" if r["machine"].get("tuned") else ""
            own.add(f"qwenvit {r.get('version', '')}{at}{day}{tuned}")
    return "; ".join(sorted(own) + sorted(peers))


@functools.cache
def _in_history(root, commit):
    """Returns whether HEAD descends from a commit; None if git cannot tell, as in a shallow clone."""
    def git(*args):
        return subprocess.run(["git", "-C", root, *args], capture_output=True, text=True, check=False)
    if not shutil.which("git"):
        return None
    if git("cat-file", "-e", commit + "^{commit}").returncode:
        shallow = git("rev-parse", "--is-shallow-repository").stdout.strip()
        return False if shallow == "false" else None
    return git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0


def why_stale(record, version, root):
    """Returns why README may not show a record of qwenvit, or ""."""
    commit = record.get("commit", "")
    if record.get("version") != version:
        return f"it is of {record.get('version')}, not of {version}"
    if not record.get("day"):
        return "it does not say its day"
    if not commit or commit == "unknown":
        return "it does not say its commit"
    if commit.endswith("+"):
        return f"it was made with changes on top of {commit[:-1]}"
    if "tuned" not in record["machine"]:
        return "it does not say whether it was tuned"
    if _in_history(root, commit) is False:
        return f"its commit {commit} is not in the history of this one"
    return ""


def slug(where):
    """Returns a machine's name as a part of a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", re.sub(r"\((r|tm)\)", "", where, flags=re.I).lower()).strip("-")
