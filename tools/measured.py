#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes the tables and pictures of README.md and docs/measured.md from the records in docs/measurements, and draws yours.

    measured.py                        writes the tables and the pictures
    measured.py --check                writes nothing; exit code 1 if a page does not match the records
    measured.py plot FILE.. -o OUT     draws your records as OUT.svg, and writes their numbers as OUT.csv

A record is one line of JSON, as `qwenvit bench .. --json=FILE` and tools/peers/peers.py append it. If several records
are of the same work, the latest day counts, and within a day the last line. README shows only records of this version,
with a day and a commit of this history. All other tables and pictures show, and name, the last version that was
measured. Only records of the same day are compared. Records left out of README are printed, with the reason.
A table stands between <!-- measured: NAME --> and <!-- /measured -->.
"""
import argparse
import csv
import functools
import glob
import html
import io
import json
import math
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGES = ("README.md", "docs/measured.md")
MARKS = re.compile(r"<!-- measured: (.+?) -->\n.*?<!-- /measured -->", re.S)
TOWERS = {"S": "Qwen3.5-0.8B", "M": "Qwen3-VL-4B", "L": "Qwen3-VL-8B", "Qwen2.5": "Qwen2.5-VL-7B",
          "tower-m": "Qwen3-VL-2B"}  # a folder's short name -> the model whose tower it has
GPUS = {"NVIDIA H200": "one H200", "NVIDIA H100 80GB HBM3": "one H100"}
CPU16 = "Intel(R) Xeon(R) Processor, 16 threads"
AVX2 = "AMD EPYC, AVX2, 2 threads"
SHORT = {**GPUS, CPU16: "16 cores with AMX", AVX2: "2 cores with AVX2, f32"}
LEAST_RUNS = 3  # runs per median in README, as for peers (tools/peers/times.py)
WANTED = "records are wanted, as `qwenvit bench tower --model DIR --json=FILE.jsonl` appends them"


# ---- records -----------------------------------------------------------------------------------

def read_text(path, wanted=WANTED):
    """Returns a file's text. If it cannot be read, the program ends with a message that names what it needs."""
    try:
        with open(path, encoding="utf-8") as f:
            return f.read()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not text"
        raise SystemExit(f"{path}: {why}; {wanted}") from None


def read_records(paths):
    """Returns the last record of each work. If a line is not a record, the program ends with a message that names the line."""
    kept = {}
    for path in paths:
        for i, line in enumerate(read_text(path).splitlines(), 1):
            if not line.strip():
                continue
            try:
                r = json.loads(line)
            except ValueError as error:
                raise SystemExit(f"{path}:{i}: {error}; {WANTED}") from None
            missing = [k for k in ("bench", "case", "way", "dtype", "median_ms", "machine")
                       if not isinstance(r, dict) or k not in r]
            if missing:
                raise SystemExit(f"{path}:{i}: missing {', '.join(missing)}; {WANTED}")
            work = (r["bench"], case(r), r["way"], r["dtype"], place(r),
                    *map(r.get, ("model", "capacity", "step")))
            if "failed" not in r and r.get("day", "") >= kept.get(work, r).get("day", ""):
                kept[work] = r  # a failed record has a message instead of a time
    if not kept:
        raise SystemExit(f"{', '.join(paths)}: no records; {WANTED}")
    return list(kept.values())


def place(r):
    """Returns the machine's name, the same for our records and for peers'. For a CPU with only AVX2 it includes that."""
    m = r["machine"]
    name = " ".join(m["device"].split(",")[0].split())
    gpu = m["backend"] in ("cuda", "metal") or name.startswith("NVIDIA")
    return name if gpu else f"{name}, {'AVX2, ' * m['device'].endswith(', AVX2')}{m['threads']} threads"


def is_peer(r):
    return r["machine"]["backend"] == "torch"


def tower(r):
    """Returns the model whose vision tower was measured: the case begins with its folder's name."""
    return re.split(r"[, ]", case(r))[0]


def case(r):
    """Returns the case of a record, with the model's name in place of the folder's short name."""
    name = re.split(r"[, ]", r["case"])[0]
    return TOWERS.get(name, name) + r["case"][len(name):]


def groups(records, *keys):
    """Returns {(key values..): {way: record}}, in the order of the values."""
    out = {}
    for r in records:
        out.setdefault(tuple(k(r) for k in keys), {})[r["way"]] = r
    return dict(sorted(out.items()))


def peers(ways, ours):
    """Returns transformers' fastest way and compiled torch; each is None unless timed on the same day as ours."""
    ways = {w: r for w, r in ways.items() if is_peer(r) and r.get("day", "") == (ours or {}).get("day", "")}
    own = [r for w, r in ways.items() if w.split()[0] == "transformers"]
    return min(own, key=lambda r: r["median_ms"], default=None), ways.get("compiled torch")


def this_version(root=ROOT):
    return re.search(r'define QV_VERSION "([^"]+)"', read_text(os.path.join(root, "include/qwenvit.h"), "a header"))[1]


def number(r):
    return [int(n) for n in re.findall(r"\d+", r["version"])]


def gpus(records):
    """Returns the kinds of GPU, beginning with the one on which the newest version's towers were timed last."""
    timed = [(number(r), r.get("day", ""), place(r)) for r in records if r["bench"] == "tower" and not is_peer(r)]
    return sorted(GPUS, key=lambda gpu: max((t for t in timed if t[2] == gpu), default=([], "", "")), reverse=True)


def latest(records, kind=lambda r: ""):
    """Returns the records of the newest version that has records of each kind, and peers' records."""
    newest = {}
    for r in records:
        if not is_peer(r):
            newest[kind(r)] = max(newest.get(kind(r), []), number(r))
    return [r for r in records if is_peer(r) or number(r) == newest[kind(r)]]


def made_by(records):
    """Returns the versions, commits and days of records, each once, as part of a sentence."""
    own = {}
    for r in records:
        if not is_peer(r):
            own.setdefault(r["version"], {}).setdefault(r.get("day", "an unknown day"), set()).add(r["commit"])
    peers = sorted({r["machine"]["device"].split(", ", 1)[1].removesuffix(", AVX2") for r in records if is_peer(r)})
    return "; ".join(f"qwenvit {version} at {', '.join(' and '.join(sorted(commits)) + ' on ' + day for day, commits in sorted(days.items()))}"
                     for version, days in sorted(own.items())) + ("; compared with " + "; ".join(peers) if peers else "")


@functools.cache
def in_history(commit):
    """Returns whether HEAD descends from a commit; True too if git cannot tell, as in a shallow clone."""
    def git(*args):
        return subprocess.run(["git", "-C", ROOT, *args], capture_output=True, text=True, check=False)
    try:
        if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
            return True
        return git("merge-base", "--is-ancestor", commit + "^{commit}", "HEAD").returncode == 0
    except FileNotFoundError:
        return True


def why_stale(r, version):
    """Returns why README may not show a record of qwenvit, or ""."""
    commit = r.get("commit", "")
    return next((why for stale, why in (
        (r.get("version") != version, f"it was measured with {r.get('version')}, not {version}"),
        (not r.get("day"), "it has no day"),
        (commit in ("", "unknown"), "it has no commit"),
        (commit.endswith("+"), f"it was made with changes on top of {commit[:-1]}"),
        (r.get("repeats", LEAST_RUNS) < LEAST_RUNS, f"it has {r.get('repeats')} run; a median needs {LEAST_RUNS}"),
        (not in_history(commit), f"its commit {commit} is not in the history of this one")) if stale), "")


# ---- cells -------------------------------------------------------------------------------------

def digits(x):
    """Returns a number with three significant digits, or with all digits of its integer part."""
    return f"{x:.0f}" if x >= 100 else f"{x:.3g}"


def ms(r):
    return digits(r["median_ms"]) if r else ""


def over(a, b):
    """Returns a's time divided by b's, or "" if one is None."""
    return f"{a['median_ms'] / b['median_ms']:.2f}" if a and b else ""


def field(r, name, form="{:.2f}", scale=1):
    return form.format(scale * r[name]) if r and name in r else ""


def bold(text):
    return text and f"**{text}**"


def beside(ours, best, torch):
    return [ms(best), ms(torch), bold(over(best, ours)), bold(over(torch, ours))]


BESIDE = ["transformers, ms", "compiled torch, ms", "times faster than transformers", "than compiled torch"]


def table(head, rows):
    """Returns a table in Markdown, without empty columns."""
    keep = [i for i in range(len(head)) if any(row[i] for row in rows)]
    head, *lines = ["| " + " | ".join(row[i] for i in keep) + " |" for row in (head, *rows)]
    return "\n".join([head, "|" + "---|" * len(keep), *lines])


# ---- tables: records of one machine -> (head, rows) --------------------------------------------

def towers_table(records):
    rows = []
    for (name, patches), ways in groups(records, tower, lambda r: r["patches"]).items():
        ours = ways.get("encode")
        rows += [[name, f"{patches:,}", ms(ours), *beside(ours, *peers(ways, ours)), over(ours, ways.get("limit")),
                  over(ours, ways.get("floor")), field(ways.get("streamed"), "us_per_patch")]] if ours else []
    return ["tower", "patches", "qwenvit, ms", *BESIDE, "over limit", "over floor", "streamed, us per patch"], rows


def lists_table(records):
    rows = []
    for r in sorted(records, key=lambda r: (tower(r), r["patches"], r.get("capacity", 0))):
        if r["way"] == "packed":
            ways = {x["way"]: x for x in records if case(x) == case(r)}
            rows.append([tower(r), str(r["items"]), f"{r['patches']:,}", ms(r), *beside(r, *peers(ways, r)),
                         str(r["chunks"]), field(r, "fill"), field(r, "over_limit"), field(r, "over_floor")])
    return ["tower", "items", "patches", "qwenvit, ms", *BESIDE, "chunks", "full", "over limit", "over floor"], rows


CALLS = {"whole call": "whole call over the device", "streamed": "streamed", "whole call, pageable": "pageable memory",
         "whole call, f32 tokens": "f32 tokens", "whole call, pixel_values": "pixel_values",
         "device call": "device call", "device call, bf16 pixel_values": "device call, bf16"}


def calls_table(records):
    return ["tower", "patches", "whole call, ms", *CALLS.values()], [
        [name, f"{patches:,}", ms(ways.get("whole call")), *(field(ways.get(w), "over_encode") for w in CALLS)]
        for (name, patches), ways in groups(records, tower, lambda r: r["patches"]).items()]


def embed_table(records):
    rows = []
    for (name, patches), ways in groups(records, tower, lambda r: r["rows"]).items():
        gemm, pixels, own = (ways.get(w) for w in ("patchify", "patchify from bytes", "direct"))
        torch, linear = (ways.get(w) if gemm and ways.get(w, {}).get("day") == gemm.get("day") else None
                         for w in ("torch conv3d", "torch linear"))
        rows += [[name, f"{patches:,}", ms(gemm), ms(own), ms(torch), ms(linear), bold(over(own, gemm)),
                  bold(over(torch, gemm)), over(gemm, ways.get("GEMM alone")), ms(pixels),
                  field(pixels, "over_floor")]] if gemm else []
    return ["tower", "patches", "as a GEMM, ms", "library's Conv3d, ms", "torch's Conv3d, ms", "torch's Linear, ms",
            "times faster than the library's Conv3d", "than torch's Conv3d", "over the bare GEMM", "from bytes, ms",
            "over its floor"], rows


def rows_table(records):
    lines, rows = {}, []
    for r in records:
        name = re.sub(r"[, ]*\bm=\d+", "", r["case"])
        lines.setdefault((name, r["way"]), {})[r["m"]] = r
    for (name, way), by_m in sorted(lines.items()):
        m = sorted(by_m)
        times = [by_m[i]["median_ms"] for i in m]
        jump, at = max((b / a, i) for i, (a, b) in enumerate(zip(times, times[1:])))
        rows.append([name, way, f"{m[0]} to {m[-1]}", ms(by_m[m[0]]), field(by_m[m[0]], "over_copy"),
                     bold(f"{jump:.2f}"), f"{m[at]} to {m[at + 1]} rows", f"{max(times) / times[0]:.2f}"])
    return ["matrix, N x K", "weights", "rows", "first, ms", "over copying the weights", "worst step", "where",
            "worst over one row"], rows


def clips_per_s(r, name="median_ms"):
    return digits(1e3 * r["clips"] / r[name]) if r and name in r else ""


CODECS = {"h264": "H.264", "hevc": "H.265"}
FILLS = {"transformers torchcodec": "transformers and torchcodec, clips/s", "transformers torchcodec, resized on cuda": "resized on the GPU",
         "transformers torchcodec, decoded on cuda": "decoded and resized on the GPU"}


def job(r):
    """Describes the clips of a record of `cache fill`."""
    return (f"{r['clips']} clips of {r['seconds']:g} s in {CODECS.get(r['codec'], r['codec'])}, {r['source']}, "
            f"{r['frames']} frames of {r['frame']} each")


def fills_table(records):
    rows = []
    for (name, _), ways in groups(records, tower, case).items():
        ours, by_cpu = ways.get("cache fill"), ways.get("cache fill, decoded on cpu")
        same_day = {w: r for w, r in ways.items() if ours and r.get("day") == ours.get("day")}
        rows += [[name, job(ours), str(ours["cores"]), clips_per_s(ours), clips_per_s(ours, "job_ms"), *(clips_per_s(same_day.get(w)) for w in FILLS),
                  bold(over(peers(ways, ours)[0], ours))]] if ours else []
        rows += [[name, f"the same with `--decode cpu`, {by_cpu['clips']} clips", str(by_cpu["cores"]), clips_per_s(by_cpu), clips_per_s(by_cpu, "job_ms"),
                  *("" for _ in FILLS), ""]] if by_cpu else []
    return ["tower", "clips", "cores", "qwenvit, clips/s", "without starting and loading", *FILLS.values(), "times faster than the fastest"], rows


# name -> (which records, what makes the table of one machine)
MACHINE_TABLES = {
    "towers": (lambda r: r["bench"] == "tower" and r["case"].endswith(" patches"), towers_table),
    "lists": (lambda r: r["bench"] == "tower" and r["case"].endswith(" packed"), lists_table),
    "calls": (lambda r: r["bench"] == "tower" and "over_encode" in r and r["way"] in CALLS, calls_table),
    "patch embedding": (lambda r: r["bench"] == "patch-embed", embed_table),
    "cache fill": (lambda r: r["bench"] == "cache fill", fills_table),
    "few rows": (lambda r: r["bench"] == "gemm" and r["m"] <= 16, rows_table),
}


def machine_tables(name, records):
    """Returns a block per machine: its name, who measured, and the table."""
    wanted, make = MACHINE_TABLES[name]
    blocks = []
    for where in sorted({place(r) for r in records}, reverse=True):
        mine = latest([r for r in records if place(r) == where and wanted(r)])
        head, rows = make(mine)
        if rows:
            blocks += [f"**{where}** ({made_by(mine)}):", table(head, rows)]
    return blocks


def gguf_table(records):
    """Returns a table with a row per tower: the worst of its value types, in f32 and in bf16 relative to transformers' bf16."""
    rows = []
    for name in sorted({r["tower"] for r in records if r["what"] == "tokens"}):
        mine = [r for r in records if r["what"] == "tokens" and r["tower"] == name]
        rows.append([name, str(len(mine)), f"{max(r['f32'][1] for r in mine):.1e}",
                     *(f"{max(r['bf16_ratio'][i] for r in mine):.2f}" for i in (0, 1)),
                     ", ".join(r["type"] for r in mine if not r["ok"])])
    made = ", ".join(sorted({f"qwenvit {r['version']}" for r in records}))
    return [f"By {made}:", table(["tower", "types", "f32, worst token", "bf16 over transformers', mean", "worst", "fails"], rows)] if rows else []


# ---- README ------------------------------------------------------------------------------------

# a tower, its patches or "list" for its longest list that peers ran too, and a machine; "" is the GPU timed last
README_ROWS = [("Qwen3-VL-4B", 760, ""), ("Qwen3-VL-4B", 6080, ""), ("Qwen3-VL-4B", 35344, ""), ("Qwen3-VL-4B", "list", ""),
               ("Qwen3-VL-8B", 6080, ""), ("Qwen2.5-VL-7B", 6080, ""), ("Qwen3-VL-4B", 760, CPU16),
               ("Qwen3.5-0.8B", 760, AVX2), ("Qwen3-VL-2B", 760, AVX2)]


def readme_ways(records, name, size, where):
    """Returns (our record or None, {way: record} of the same work)."""
    mine = [r for r in records if r["bench"] == "tower" and tower(r) == name and place(r) == where
            and r["dtype"] == ("f32" if where == AVX2 else "bf16")
            and (r["case"].endswith(" packed") if size == "list" else r["patches"] == size)]
    found = [(r, {x["way"]: x for x in mine if case(x) == case(r)}) for r in mine
             if r["way"] == ("packed" if size == "list" else "encode")]
    return max(found, key=lambda f: (any(peers(f[1], f[0])), f[0]["patches"], -f[0]["median_ms"]), default=(None, {}))


def why_not(ours, ways, version):
    """Returns why README may not show a record next to its peers, or ""."""
    if ours is None:
        return "it was not measured"
    days = sorted({p.get("day") or "no day" for p in ways.values() if is_peer(p)})
    return why_stale(ours, version) or ("" if any(peers(ways, ours)) else "no peer was timed" if not days
                                        else f"it was measured on {ours['day']}, its peers on {', '.join(days)}")


def embed_words(records, gpu):
    """Returns (a sentence or "", its records): one patch embedding in each way, all of one day, on a GPU."""
    name, patches, _ = README_ROWS[1]
    ways = {r["way"]: r for r in records if r["bench"] == "patch-embed" and (tower(r), r["rows"], place(r), r["dtype"])
            == (name, patches, gpu, "bf16")}
    used = [ways.get(w) for w in ("patchify", "direct", "torch conv3d", "torch linear")]
    if not all(used) or len({r.get("day") for r in used}) > 1:
        return "", []
    return ("The patch embedding of the second row takes {} ms as the GEMM that qwenvit runs, {} ms as cuDNN's own Conv3d, "
            "{} ms as torch's Conv3d and {} ms as torch's Linear.".format(*map(ms, used))), used


def fill_block(records, gpu, version, left_out):
    """Returns (the table of the longest list of clips on a GPU and a sentence, or [], its records)."""
    mine = [r for r in records if r["bench"] == "cache fill" and place(r) == gpu and r["dtype"] == "bf16" and tower(r) == README_ROWS[0][0]]
    ours = max((r for r in mine if r["way"] == "cache fill" and r["codec"] == "h264"), key=lambda r: r["clips"], default=None)
    ways = {r["way"]: r for r in mine if ours and case(r) == case(ours)}
    why = why_not(ours, ways, version)
    if why:
        left_out.append(f"README.md: cache fill, {SHORT[gpu]}: {why}")
        return [], []
    best = peers(ways, ours)[0]
    row = [f"`cache fill`, {job(ours)}", f"{SHORT[gpu]}, {ours['cores']} cores", clips_per_s(ours), clips_per_s(best), bold(over(best, ours))]
    head = ["from files to files of tokens", "on", "qwenvit, clips/s", "transformers and torchcodec, clips/s", "times faster"]
    decoder = "GPU" if best["way"].endswith("decoded on cuda") else "CPU"
    words = ("qwenvit's clips per second include starting the command and loading the model; those of transformers, which decodes on the "
             f"{decoder}, are counted from its first clip.")
    return [table(head, [row]), words], [ours, best]


def readme(records, version, left_out):
    rows, used, gpu = [], [], gpus(records)[0]
    for name, size, cpu in README_ROWS:
        where = cpu or gpu
        ours, ways = readme_ways(records, name, size, where)
        why = why_not(ours, ways, version)
        work = size if size == "list" else f"{size:,} patches"
        if why:
            left_out.append(f"README.md: {name}, {work}, {SHORT[where]}: {why}")
            continue
        best = peers(ways, ours)
        what = f"{ours['items']} clips and images, {ours['patches']:,}" if size == "list" else f"{size:,}"
        rows.append([name, what, SHORT[where], ms(ours), *(x or "not timed" for x in beside(ours, *best))])
        used += [ours, *filter(None, best)]
    words, of = embed_words([r for r in records if (r.get("day") if is_peer(r) else not why_stale(r, version))], gpu)
    if not words:
        left_out.append(f"README.md: the patch embedding: no records of {version} with day and commit")
    fills, of_fills = fill_block(records, gpu, version, left_out)
    if not rows:
        return [f"No figure of version {version} has been measured yet."]
    mine = [r for r in used + of + of_fills if not is_peer(r)]
    days = sorted({r["day"] for r in mine})
    caption = (f"Measured with qwenvit {version} on {' and '.join(days)}; [docs/measured.md](docs/measured.md) names the commits and the versions "
               "of torch, transformers and FFmpeg.")
    return [table(["tower of", "patches", "on", "qwenvit, ms", *BESIDE], rows), *filter(None, [words]), *fills, caption]


# ---- pictures: bars [(group, bar, milliseconds, note)] -------------------------------------------

COLOURS = {"qwenvit": "#0072b2", "packed into chunks": "#0072b2", "transformers": "#d55e00", "transformers linear": "#d55e00", "compiled torch": "#e69f00",
           "library's Conv3d": "#009e73", "torch conv3d": "#cc79a7", "torch linear": "#56b4e9"}


def compared(found):
    """Returns the bars of [(group, our record, [others' records or None])]."""
    return [(group, "qwenvit" if r is ours else {"direct": "library's Conv3d"}.get(r["way"], r["way"]), r["median_ms"],
             digits(r["median_ms"]) + " ms" + ("" if r is ours else f", {digits(r['median_ms'] / ours['median_ms'])} times ours"))
            for group, ours, others in found for r in [*filter(None, others), ours]]


def tower_bars(records):
    found = []
    for (name, _), ways in groups((r for r in records if r["bench"] == "tower"), tower, case).items():
        ours = ways.get("encode") or ways.get("packed")
        if ours and any(peers(ways, ours)):
            what = f"{ours['items']} clips and images, " if "items" in ours else ""
            found.append((f"{name}, {what}{ours['patches']:,} patches", ours, peers(ways, ours)))
    return compared(found)


def embed_bars(records):
    found = {}
    for (name, patches), ways in groups((r for r in records if r["bench"] == "patch-embed"), tower, lambda r: r["rows"]).items():
        if "patchify" in ways:  # the largest of each tower
            found[name] = (f"{name}, {patches:,} patches", ways["patchify"],
                           [ways.get(w) for w in ("direct", "torch conv3d", "torch linear")])
    return compared(found.values())


def fill_bars(records):
    """Returns bars that show how full the device's rows are, for packed chunks and for other ways to batch the same list."""
    found = {}
    for r in (r for r in records if r["way"] == "packed" and "list" in r):
        try:
            grids = re.findall(r"^(\d+),(\d+),(\d+)$", read_text(os.path.join(ROOT, "tools/shapes", r["list"])), re.M)
        except SystemExit:
            continue  # a user's own list
        sizes = [int(t) * int(h) * int(w) for t, h, w in grids]
        pieces = sum(-(-n // r["capacity"]) for n in sizes)
        if sum(sizes) == r["patches"]:
            found[r["list"]] = [(f"{r['items']} clips and images, {r['patches']:,} patches, chunks of {r['capacity']:,}", *bar) for bar in (
                ("packed into chunks", r["fill"]), ("a chunk per item", r["patches"] / pieces / r["capacity"]),
                ("padded to the largest", r["patches"] / len(sizes) / max(sizes)))]
    return [(group, bar, 100 * share, f"{share:.0%} of the rows hold patches") for bars in found.values() for group, bar, share in bars]


def all_bars(records):
    """Returns a bar per record: GEMMs grouped by rows, the rest grouped by case with a bar per way."""
    bars = []
    for r in sorted(records, key=lambda r: (r["bench"], case(r), r.get("m", 0), -r["median_ms"])):
        group, rows = (re.sub(r"[, ]*\bm=\d+", "", case(r)), f", m={r['m']}") if r["bench"] == "gemm" else (case(r), "")
        bars.append((f"{r['bench']}, {group}", r["way"] + rows, r["median_ms"], digits(r["median_ms"]) + " ms"))
    return sorted(bars, key=lambda b: b[0])


BARS = {"tower": (tower_bars, "Towers, from pixels to tokens"), "patch-embed": (embed_bars, "Patch embedding"),
        "fill": (fill_bars, "How full the device's rows are"),
        "all": (all_bars, "Median times")}
CSV_HEADS = {"fill": ("group", "bar", "percent", "note"), "roofline": ("tower", "way", "FLOPs per byte", "TFLOP/s")}
PICTURES = {"docs/towers.svg": "tower", "docs/embed.svg": "patch-embed", "docs/fill.svg": "fill",
            "docs/roofline.svg": "roofline"}  # of the GPU timed last that has the records, in bf16


def svg(title, under, bars):
    """Returns a picture of bars, which are in proportion within a group."""
    y, body = 62, []

    def write(x, text, style=""):
        body.append(f'<text x="{x}" y="{y}"{style}>{html.escape(text)}</text>')
    for group in dict.fromkeys(bar[0] for bar in bars):
        mine = [bar for bar in bars if bar[0] == group]
        write(10, group, ' font-weight="bold"')
        for _, name, value, note in mine:
            y += 18
            wide = 380 * value / max(bar[2] for bar in mine)
            write(190, name, ' text-anchor="end"')
            body.append(f'<rect x="200" y="{y - 12}" width="{wide:.1f}" height="15" fill="{COLOURS.get(name.split(",")[0], "#999999")}"/>')
            write(f"{206 + wide:.1f}", note)
        y += 28
    return framed(title, under, y - 10, body)


def framed(title, under, height, body):
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" width="780" height="{height}" font-family="sans-serif" font-size="12">',
                      '<rect width="100%" height="100%" fill="white"/>',
                      f'<text x="10" y="20" font-size="14">{html.escape(title)}</text>',
                      f'<text x="10" y="38">{html.escape(under)}</text>', *body, "</svg>", ""])


def roofline_dots(records):
    """Returns [(what, way, FLOPs per byte, TFLOP/s)]: patch embeddings and towers of the largest size."""
    dots = {}
    for r in sorted(records, key=lambda r: r.get("rows") or r.get("patches") or 0):
        way = {"patchify": "patch embedding as a GEMM", "direct": "patch embedding by the library's Conv3d", "encode": "tower",
               "limit": "its GEMMs and attention alone"}.get(r["way"])
        if way and r["bench"] in ("patch-embed", "tower") and r.get("flops") and r.get("bytes"):
            dots[tower(r), way] = (tower(r), way, r["flops"] / r["bytes"], r["flops"] / r["median_ms"] / 1e9)
    return [dot for dot in dots.values() if dot[0] == README_ROWS[0][0]]


def roofline(under, records):
    """Returns a picture of work below the roofline that the same runs measured, with logarithmic axes, and its dots."""
    dots = roofline_dots(records)
    roofs = [r["machine"] for r in records if r["machine"].get("roof_tflops_per_s") and r["machine"].get("roof_gb_per_s")]
    if not dots or not roofs:
        return "", []
    peak, gb = (max(m[name] for m in roofs) for name in ("roof_tflops_per_s", "roof_gb_per_s"))

    def xy(intensity, tflops):
        return 60 + 165 * math.log10(intensity), 320 - 75 * math.log10(tflops)
    body = []
    for at in (1, 10, 100, 1000, 10000):
        x, y = xy(at, min(at, 1000))
        body.append(f'<text x="{x:.0f}" y="338" text-anchor="middle">{at:,}</text>')
        if at <= 1000:
            body.append(f'<text x="52" y="{y + 4:.0f}" text-anchor="end">{at:,}</text>')
    corners = [xy(*at) for at in ((1, gb / 1e3), (peak * 1e3 / gb, peak), (10000, peak))]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
    body.append(f'<polyline points="{points}" fill="none" stroke="black"/>')
    body.append(f'<text x="{corners[1][0]:.0f}" y="{corners[1][1] - 8:.0f}">{digits(peak)} TFLOP/s, {digits(gb)} GB/s measured</text>')
    for i, ((_, way, intensity, tflops), colour) in enumerate(zip(dots, ("#0072b2", "#009e73", "#d55e00", "#cc79a7"))):
        x, y = xy(intensity, max(tflops, 1))
        left, named = 20 + 400 * (i % 2), 384 + 20 * (i // 2)  # below, because dots may be too close together for names next to them
        body += [f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="4" fill="{colour}" fill-opacity="0.8"/>' for cx, cy in ((x, y), (left, named - 4))]
        body.append(f'<text x="{left + 10}" y="{named}">{html.escape(way)}, {digits(tflops)} TFLOP/s</text>')
    body.append('<text x="390" y="356" text-anchor="middle">FLOPs per byte moved</text><text x="10" y="56">TFLOP/s</text>')
    return framed(f"{dots[0][0]} under the roofline", under, 416, body), dots


def picture(what, records):
    """Returns a picture of records of one machine and dtype, and its bars; ("", []) if there are none."""
    benches = {"fill": ("tower",), "roofline": ("tower", "patch-embed")}.get(what, (what,))
    versions = ", ".join(sorted({r["version"] for r in records if not is_peer(r) and (r["bench"] in benches or what == "all")}))
    under = f"{place(records[0])}, {records[0]['dtype']}; qwenvit {versions}" if records else ""
    if what == "roofline":
        return roofline(under, records)
    bars = BARS[what][0](records)
    return bars and svg(BARS[what][1], under, bars), bars


def plot(args):
    if not args.o.endswith(".svg"):
        raise SystemExit(f"{args.o}: must end in .svg")
    found = {}
    for r in read_records(args.files):
        if args.dtype in ("", r["dtype"]) and args.machine.lower() in place(r).lower():
            found.setdefault((place(r), r["dtype"]), []).append(r)
    drawn = {key: made for key, records in found.items() for made in [picture(args.what, records)] if made[1]}
    if not drawn:
        raise SystemExit(f"{', '.join(args.files)}: no records to draw")
    if len(drawn) > 1:
        raise SystemExit("\n  ".join(["the files contain several machines or dtypes; choose one with --machine or --dtype:", *map(", ".join, sorted(drawn))]))
    (text, bars), = drawn.values()
    numbers = io.StringIO()
    csv.writer(numbers, lineterminator="\n").writerows(
        [CSV_HEADS.get(args.what, ("group", "bar", "ms", "note")), *bars])
    for ending, content in ((".svg", text), (".csv", numbers.getvalue())):
        with open(args.o[:-4] + ending, "w", encoding="utf-8") as f:
            f.write(content)


# ---- pages -------------------------------------------------------------------------------------

def filled(path, blocks):
    """Returns a page's text with blocks(name) inserted between its marks."""
    def fill(mark):
        made = blocks(mark[1]) or ["Not measured yet."]
        return "\n\n".join([f"<!-- measured: {mark[1]} -->", *made, "<!-- /measured -->"])
    return MARKS.sub(fill, read_text(path, "a page"))


def all_pages(root, left_out):
    """Returns {path below root: its text}, of pages and pictures."""
    files = sorted(glob.glob(os.path.join(root, "docs", "measurements", "*.jsonl")))
    gguf = [f for f in files if os.path.basename(f).startswith("gguf-")]
    version, records = this_version(), read_records([f for f in files if f not in gguf])
    of_files = [r for f in gguf for r in map(json.loads, read_text(f).splitlines())]

    def blocks(name):
        if name == "README":
            return readme(records, version, left_out)
        if name == "GGUF":
            return gguf_table(of_files)
        if name not in MACHINE_TABLES:
            raise SystemExit(f"measured: unknown table {name}; tables are README, GGUF, {', '.join(MACHINE_TABLES)}")
        return machine_tables(name, records)
    shown = {page: filled(os.path.join(root, page), blocks) for page in PAGES}

    def draw(what):
        drawn = [picture(what, latest([r for r in records if place(r) == gpu and r["dtype"] == "bf16"], lambda r: r["bench"]))[0]
                 for gpu in gpus(records)]
        return next(filter(None, drawn), "")
    return shown | {path: text for path, what in PICTURES.items() for text in [draw(what)] if text}


def fill(args):
    left_out, other = [], []
    for page, text in all_pages(args.root, left_out).items():
        path = os.path.join(args.root, page)
        if not os.path.exists(path) or read_text(path) != text:
            other.append(page)
            if not args.check:
                with open(path, "w", encoding="utf-8") as f:
                    f.write(text)
    for line in left_out:
        print(f"left out of {line}", file=sys.stderr)
    if args.check and other:
        raise SystemExit(f"{', '.join(other)}: does not match docs/measurements; run tools/measured.py")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default=ROOT, metavar="DIR", help="folder of README.md and docs (default: this repository)")
    parser.add_argument("--check", action="store_true", help="write nothing; check that each page matches the records")
    parser.set_defaults(does=fill)
    draw = parser.add_subparsers(metavar="plot").add_parser("plot", help="draw records as SVG, with a CSV file of the numbers")
    draw.add_argument("files", nargs="+", metavar="FILE", help="records, one JSON object per line")
    draw.add_argument("-o", required=True, metavar="OUT", help="write OUT.svg and OUT.csv")
    draw.add_argument("--what", choices=(*BARS, "roofline"), default="all", help="what to draw: a comparison with other libraries, or the roofline")
    draw.add_argument("--machine", default="", metavar="TEXT", help="part of the machine's name, if the files contain several")
    draw.add_argument("--dtype", choices=("f32", "bf16"), default="")
    draw.set_defaults(does=plot)
    args = parser.parse_args()
    args.does(args)


if __name__ == "__main__":
    main()
