# SPDX-License-Identifier: MIT
"""What was measured: the files in docs/measurements, and the records in them.

speed-*.json and parity-*.json come from tools/reference/bench_side_by_side.py and parity.py;
*.jsonl are records, an object a line, of `qwenvit bench`, `qwenvit profile` (--json=FILE),
tools/peers/peers.py, python/bench/patched.py and actors.py (--json FILE), but verify-*.jsonl and
encode-*.jsonl, which are of `qwenvit verify` and `qwenvit encode` (--json=FILE), and gguf-*.jsonl, of
gguf_parity.py, mtmd_steps.py and mtmd.py.
Where a later line repeats an earlier one, it counts.
"""
import glob
import json
import os

TOWERS = {"S": "Qwen3.5-0.8B", "M": "Qwen3-VL-4B", "L": "Qwen3-VL-8B", "Q2": "Qwen2-VL-7B",
          "Q25": "Qwen2.5-VL-7B", "Q25-3B": "Qwen2.5-VL-3B"}  # whose vision towers
OTHER_KINDS = ("verify-", "encode-", "gguf-")  # of files in docs/measurements


# ---- files -------------------------------------------------------------------------------------

def load(root, pattern):
    for path in sorted(glob.glob(os.path.join(root, "docs", "measurements", pattern))):
        with open(path, encoding="utf-8") as f:
            yield json.load(f)


WANTED = "records are wanted, as `qwenvit bench tower --model DIR --json=FILE.jsonl` appends them"


def read_text(path, wanted=WANTED):
    """Of a file; one that cannot be read is an error that says what is wanted."""
    try:
        with open(path, encoding="utf-8") as f:
            return f.read()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "no text"
        raise SystemExit(f"{path}: {why}; {wanted}") from None


def read_records(paths):
    """The records of some files. A line that is no JSON is an error that names it."""
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
            if "failed" not in record:  # words, and no time
                records.append(record)
    if not records:
        raise SystemExit(f"{', '.join(paths)}: no records; {WANTED}")
    return latest(records)


def latest(records):
    """Of records of the same work the last one; of profiles the last run."""
    kept, profile = {}, {}
    for r in records:
        key = r["dtype"], place(r)
        if r["bench"] != "profile":
            kept[(r["bench"], r["case"], r["way"], r.get("model"), r.get("capacity")) + key] = r
            continue
        run = profile.setdefault(key, [])
        if run and r.get("step", 1) <= run[-1].get("step", 0):
            run.clear()  # another run begins
        run.append(r)
    return list(kept.values()) + [r for run in profile.values() for r in run]


def runs(root, kind):
    """What `qwenvit verify` or `encode` appended to its files."""
    for path in sorted(glob.glob(os.path.join(root, "docs", "measurements", kind + "*.jsonl"))):
        with open(path, encoding="utf-8") as f:
            yield from (json.loads(line) for line in f if line.strip())


def verify_runs(root, check):
    """The runs of `qwenvit verify` that hold a check."""
    return (run for run in runs(root, "verify-") if any(r["check"] == check for r in run["rows"]))


# ---- records -----------------------------------------------------------------------------------

def place(record):
    """What records of the same machine have in common, whoever wrote them."""
    m = record["machine"]
    name = " ".join(m["device"].split(",")[0].split())
    gpu = m["backend"] in ("cuda", "metal") or name.startswith("NVIDIA")
    return name if gpu else f"{name}, {m['threads']} threads"


def is_peer(record):
    return record["machine"]["backend"] == "torch"


def machine_text(records):
    """The fullest description of the machine of some records: qwenvit's, where there is one."""
    r = sorted(records, key=is_peer)[0]
    threads = place(r).split(", ")[1:]
    device = place(r).split(", ")[0] if is_peer(r) else r["machine"]["device"]
    return ", ".join([device] + threads)


def groups(records, bench, *keys):
    """{(key values.., dtype, place): {way: record}} of a bench, in the order of the values."""
    out = {}
    for r in records:
        if r["bench"] == bench:
            key = tuple(k(r) for k in keys) + (r["dtype"], place(r))
            out.setdefault(key, {})[r["way"]] = r
    return dict(sorted(out.items(), key=lambda item: (item[0][-1],) + item[0][:-1]))


def first_word(record):
    return record["case"].split()[0]


def fastest(records):
    records = [r for r in records if r]
    return min(records, key=lambda r: r["median_ms"]) if records else None


def digits(x):
    """Three digits, or all in front of the point."""
    return f"{x:.0f}" if x >= 100 else f"{x:.3g}"


def record_versions(records):
    own = sorted({" at ".join(x for x in (r.get("version"), r.get("commit")) if x)
                  for r in records if not is_peer(r)})
    peers = sorted({", ".join(r["machine"]["device"].split(", ")[1:])
                    for r in records if is_peer(r)})
    return "; ".join(["qwenvit " + v for v in own] + peers)
