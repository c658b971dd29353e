#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes docs/measurements.md, the page of each machine, the tables of docs/gguf.md and README's figures from docs/measurements.

measured.py says what the files hold, record_tables.py makes the tables, and pages.py has the words
around them. No number is typed by hand; a table without records is left out. README shows no figure
that is of another version, that has no day or no commit of this history, or that was not timed on
the same day as its peers. What is left out, and why, is printed.

    tables.py            writes the pages
    tables.py --check    writes nothing, and ends with 1 if a page is not what the files give
"""
import argparse
import glob
import os
import sys

import gguf_tables
import measured
from measured import (groups, load, made_by, of_day, place, read_records, record_files, runs,
                      this_version, tower, transformers_best, why_stale)
from pages import (AGREEMENT, CPU16, FRONT, H200, MACHINES, PLOTS, SECTIONS, TERMS)
from record_tables import (OTHERS, against_table, bold, encode_table, ms, others, over,
                           packed_records, parity_rows, parity_table, speed_tables, table,
                           verify_table)

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BEGIN, END = "<!-- measured: made by tools/tables.py -->", "<!-- /measured -->"
MADE = "<!-- made by tools/tables.py: edits are lost -->"


# ---- a page a machine --------------------------------------------------------------------------

def plots(root, kind, places):
    """Returns Markdown for docs/KIND-*.png of some machines, as seen from docs/."""
    found = []
    for path in sorted(glob.glob(os.path.join(root, "docs", kind + "-*.png"))):
        name = os.path.basename(path)
        if name[len(kind) + 1:-4].rpartition("-")[0] in map(measured.slug, places):
            found.append(f"![{PLOTS[kind]}]({name})")
    return found


def machine_page(root, records, machine):
    """Returns the page of a machine, or "" if nothing was measured on it. Several machines of one kind share a
    page, and each has a part of it."""
    places = sorted({place(r) for r in records if machine.here(place(r))})
    if not places:
        return ""
    parts = [f"{MADE}\n# {machine.title}", "<!-- page: not run: minutes each, and beside torch -->",
             machine.words + " What the columns mean: [measurements.md](measurements.md#terms)."]
    for where in places:
        mine = [r for r in records if place(r) == where]
        level = "##"
        if len(places) > 1:
            parts += [f"## {measured.machine_text(mine)}"]
            level = "###"
        else:
            parts += [f"{measured.machine_text(mine)}."]
        for heading, what, command, make, kind in SECTIONS:
            made = [x for x in [make and make(mine)] if x]
            drawn = plots(root, kind, [where]) if kind and (made or not make) else []
            if made or drawn:
                parts += [f"{level} {heading}", what, "    " + command, *made, *drawn]
        parts += [f"Measured by {made_by(mine)}."]
    for heading, what, command, made in (
            ("From a file to tokens", "Medians of several runs of the command on one clip. Decoding, the tower and "
             "writing go on at once: the whole over the slowest of them says how well.",
             "qwenvit encode CLIP --model DIR -o FILE --json=FILE.jsonl",
             encode_table(root, machine.here)),
            ("Side by side with transformers", "Medians of one run, in which both take turns.",
             "python tools/reference/bench_side_by_side.py DIR --qwenvit qwenvit", speed_tables(root, machine.here))):
        if made:
            parts += ["## " + heading, what, "    " + command, made]
    return "\n\n".join(parts) + "\n"


def agreement_page(root):
    made = [(heading, what, command, text) for heading, what, command, text in (
        ("The same model", AGREEMENT["parity"], "python tools/reference/parity.py DIR CLIP.. --qwenvit qwenvit",
         parity_table(root)),
        ("Layer by layer", AGREEMENT["against"],
         "python tools/reference/layers.py DIR --clip CLIP --yardstick --device cuda -o FILE && "
         "qwenvit verify --model DIR --against FILE --json=FILE.jsonl", against_table(root)),
        ("With itself", AGREEMENT["verify"],
         "qwenvit verify --model DIR --clip CLIP --json=FILE.jsonl", verify_table(root))) if text]
    if not made:
        return ""
    parts = [f"{MADE}\n# Is it the same model?", "<!-- page: not run: minutes each, and beside torch -->",
             AGREEMENT["page"]]
    for heading, what, command, text in made:
        parts += ["## " + heading, what, "    " + command, text]
    seen = sorted({", ".join(f"{k} {r[k].split('+')[0]}" for k in ("transformers", "torch", "torchvision"))
                   for r in load(root, "parity-*.json")})
    parts += [f"Against {'; '.join(seen)}."] if seen else []
    return "\n\n".join(parts) + "\n"


# ---- what matters of all of it -----------------------------------------------------------------

def tower_ways(records, name, patches, here):
    """Returns {way: record} of a tower's chunk on a machine."""
    for key, ways in groups(records, "tower", tower, lambda r: r["patches"]).items():
        if key[:3] == (name, patches, "bf16") and here(key[3]):
            return ways
    return {}


def list_ways(records, name, here):
    """Returns {way: record} of the latest, longest list of a tower that peers took too; ours is "packed"."""
    for r in sorted(packed_records(records), key=lambda r: (r.get("day", ""), r["patches"], -r["median_ms"]),
                    reverse=True):
        ways = {x["way"]: x for x in records if x["bench"] == "tower" and measured.is_peer(x)
                and measured.case(x) == measured.case(r) and place(x) == place(r)}
        if compared(ways, r) and tower(r) == name and here(place(r)):
            return {**ways, "packed": r}
    return {}


def faster(ours, ways):
    """Returns in words how much faster ours is than transformers' best way, and than compiled torch."""
    ways = of_day(ways, ours)
    best, torch = transformers_best(ways), ways.get("compiled torch")
    return ", ".join(x for x in (
        best and f"{bold(over(best, ours))} times faster than transformers",
        torch and f"{bold(over(torch, ours))} than compiled torch") if x)


def compared(ways, ours):
    """Returns the records, of the same day, that ours is compared with."""
    ways = of_day(ways, ours)
    return [r for r in (transformers_best(ways), ways.get("compiled torch")) if r]


def spread(values, places=0):
    low, high = (f"{x:.{places}f}" for x in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def embed_words(records):
    """Returns (words, records): the patch embedding as a GEMM beside Conv3d, over all sizes on an H200."""
    own, torch, linear, used = [], [], [], []
    for key, ways in groups(records, "patch-embed", tower, lambda r: r["rows"]).items():
        gemm = ways.get("patchify")
        if not gemm or not H200.here(key[3]) or key[2] != "bf16":
            continue
        used += [ways[w] for w in ("patchify", "direct", "torch conv3d", "torch linear") if w in ways]
        for found, way in ((own, "direct"), (torch, "torch conv3d"), (linear, "torch linear")):
            if way in ways and ways[way].get("day") == gemm.get("day"):
                found.append(ways[way]["median_ms"] / gemm["median_ms"])
    if not own:
        return "", []
    words = f"{spread(own)} times as fast as cuDNN's own Conv3d"
    words += f" and {spread(torch)} times as fast as torch's" if torch else ""
    words += f"; torch's Linear takes {spread(linear, 2)} of its time" if linear else ""
    return words, used


def embed_share(records):
    """Returns (words, records): the largest share of a tower's time that the patch embedding takes."""
    shares = []
    for key, ways in groups(records, "patch-embed", tower, lambda r: r["rows"]).items():
        whole = tower_ways(records, key[0], key[1], H200.here).get("encode")
        part = ways.get("patchify from bytes")
        if whole and part and whole.get("day") == part.get("day") and H200.here(key[3]) and key[2] == "bf16":
            shares.append((100 * part["median_ms"] / whole["median_ms"], whole, part))
    if not shares:
        return "", []
    top = max(shares, key=lambda s: s[0])
    return f"at most {top[0]:.1f} % of a tower's time", list(top[1:])


def tower_rows(records):
    cpu = next((p for p in (760, 4096) for ways in [tower_ways(records, "Qwen3-VL-4B", p, CPU16.here)]
                if compared(ways, ways.get("encode"))), 0)
    for name, patches, machine in (("Qwen3-VL-4B", 6080, H200), ("Qwen2.5-VL-7B", 6080, H200),
                                   ("Qwen3-VL-4B", 760, H200), ("Qwen3-VL-4B", cpu, CPU16)):
        ways = tower_ways(records, name, patches, machine.here)
        ours = ways.get("encode")
        if ours and compared(ways, ours):
            yield (f"{name}'s tower, {patches:,} patches, {machine.short}",
                   f"{ms(ours)} ms; {faster(ours, ways)}", machine, [ours, *compared(ways, ours)])
    ways = list_ways(records, "Qwen3-VL-4B", H200.here)
    if ways:
        ours = ways["packed"]
        yield (f"{ours['items']} clips and images of many sizes, {ours['patches']:,} patches, {H200.short}",
               f"{ms(ours)} ms; {faster(ours, ways)}", H200, [ours, *compared(ways, ours)])


def job_rows(records):
    jobs = [r for key, ways in groups(records, "job", measured.case).items()
            for r in [ways.get("cache") or ways.get("encode")]
            if r and H200.here(key[-1]) and r["devices"] == 1]
    if jobs:
        r = max(jobs, key=lambda j: j["clips"])
        yield (f"{r['clips']:,} clips from files to a cache of {r['token_bytes'] / 1e9:.0f} GB, {H200.short}",
               f"{r['median_ms'] / 1e3:.1f} s, {r['clips_per_s']:.0f} clips a second; "
               f"{r['over_slowest']:.2f} times its slowest stage alone", H200, [r])
    for key, ways in groups(records, "start", measured.case).items():
        if H200.here(key[-1]) and "encode" in ways:
            yield (f"one short clip, from the process's start to its file, {H200.short}",
                   f"{ways['encode']['median_ms'] / 1e3:.2f} s", H200, [ways["encode"]])


def cache_rows(records):
    for (case, _, where), ways in groups(records, "cache", lambda r: r["case"]).items():
        for machine in MACHINES:
            if machine.here(where) and "resume" in ways:
                yield (f"`qwenvit cache` that finds {int(case.split()[0]):,} keys there, {machine.short}",
                       f"{ways['resume']['median_ms'] / 1e3:.1f} s", machine, [ways["resume"]])


def agreement_rows(root):
    def worst(dtype, *fields):
        return max((r[f] for _, d, rows, _ in parity_rows(root) if d == dtype for r in rows for f in fields),
                   default=None)
    f32, bf16 = worst("f32", "worst"), worst("bf16", "mean_ratio", "worst_ratio")
    if f32 and bf16:
        yield ("tokens against transformers' in f32, all towers and machines",
               f"f32 {f32:.1e} off at worst; bf16 at most {bf16:.2f} of transformers' own bf16 distance", None, [])


def summary_rows(root, records):
    """Yields (what, figure, the machine or None, records) for what a user feels first."""
    yield from tower_rows(records)
    yield from job_rows(records)
    words, used = embed_words(records)
    share, more = embed_share(records)
    if words:
        yield (f"the patch embedding as a GEMM, {H200.short}", "; ".join(x for x in (words, share) if x),
               H200, used + more)
    yield from cache_rows(records)
    yield from agreement_rows(root)


def front_page(root, records):
    rows = [[what, figure, f"[page]({machine.page}.md)" if machine else "[page](measured-agreement.md)",
             made_by(used) if used else ""]
            for what, figure, machine, used in summary_rows(root, records)]
    parts = [f"{MADE}\n# Measurements", FRONT]
    parts += [table(["what", "figure", "more", "measured by"], rows)] if rows else []
    parts += [TERMS]
    if any(runs(root, "earlier-")) and os.path.exists(os.path.join(root, "docs", "versions.png")):
        parts += ["## Where the time went",
                  "The same clips from files to tokens by an earlier version and by this one: each stage alone, "
                  "then whole jobs.", "![A job's stages alone, and jobs, of two versions](versions.png)"]
    return "\n\n".join(parts) + "\n"


# ---- README ------------------------------------------------------------------------------------

# README's rows: a tower, its patches or "list" for the longest list that was packed, and a machine
README_ROWS = [("Qwen3-VL-4B", 760, H200), ("Qwen3-VL-4B", 6080, H200), ("Qwen3-VL-4B", "list", H200),
               ("Qwen3-VL-8B", 6080, H200), ("Qwen2.5-VL-7B", 6080, H200), ("Qwen3-VL-4B", 760, CPU16)]


def not_of_now(ours, peers):
    """Returns why README may not show a record beside its peers, {way: record}, or ""."""
    if ours is None:
        return "it was not measured"
    why = why_stale(ours, this_version(ROOT), ROOT)
    if not why and not compared(peers, ours):
        days = sorted({p.get("day") or "no day" for p in peers.values()})
        why = (f"it is of {ours['day']}, and what it is compared with of {', '.join(days)}" if days
               else "nothing was timed beside it")
    return why


def readme_table(records, left_out):
    """Returns README's table, and the records in it."""
    rows, used = [], []
    for name, size, machine in README_ROWS:
        ways = list_ways(records, name, machine.here) if size == "list" else \
            tower_ways(records, name, size, machine.here)
        ours = ways.get("packed" if size == "list" else "encode")
        why = not_of_now(ours, {way: r for way, r in ways.items() if measured.is_peer(r)})
        if why:
            work = size if size == "list" else f"{size:,} patches"
            left_out.append(f"{name}, {work}, {machine.short}: {why}")
            continue
        what = f"{ours['items']} clips and images, {ours['patches']:,}" if size == "list" else f"{size:,}"
        tuned = " (tuned)" if ours["machine"]["tuned"] else ""
        rows.append([name, what, machine.short, ms(ours) + tuned, *(x or "not timed" for x in others(ways, ours))])
        used += [ours, *compared(ways, ours)]
    return table(["tower of", "patches", "on", "qwenvit, ms", *OTHERS], rows), used


def readme_parts(records, left_out):
    version = this_version(ROOT)
    made, used = readme_table(records, left_out)
    now = [r for r in records
           if (r.get("day") if measured.is_peer(r) else not why_stale(r, version, ROOT))]
    words, of = embed_words(now)
    share, more = embed_share(now)
    if words:
        used += of + more
        words = f"The patch embedding as a GEMM is {words}" + (f". It takes {share}." if share else ".")
    else:
        left_out.append(f"the patch embedding: no records of {version} that say day and commit")
    if not used:
        return [f"No figure of version {version} has been measured yet. "
                "[docs/measurements.md](docs/measurements.md) has those of versions before, each with its commit."]
    modes = " and ".join(sorted({r["mode"] for r in used if "mode" in r}))
    caption = ("Times are medians in bf16, from pixels to tokens on the device, with random weights of these sizes. A patch is a "
               "square of 14 or 16 pixels of two frames; a clip of 16 frames of 608x320 has 6,080 for Qwen3-VL. transformers is "
               "the fastest of its own ways that need no other package; compiled torch is `torch.compile`"
               f"{modes and f' in the mode {modes}'}. Measured by {made_by(used)}; nothing is tuned unless it says "
               "so. [docs/measurements.md](docs/measurements.md) has the rest, and how to repeat it.")
    return [x for x in (made, words, caption) if x]


# ---- the command -------------------------------------------------------------------------------

def filled(path, parts):
    """Returns a page's text with `parts` between its marks, a list of blocks for each pair of marks."""
    with open(path, encoding="utf-8") as f:
        text, *rest = f.read().split(BEGIN)
    if len(rest) != len(parts):
        raise SystemExit(f"{path}: {len(rest)} times {BEGIN}, {len(parts)} wanted")
    for behind, part in zip(rest, parts):
        text += "\n\n".join([BEGIN, *(p for p in part if p), END]) + behind.split(END)[1]
    return text


def all_pages(root, left_out):
    """Returns {path below root: text}; a page without text is removed."""
    records = read_records(record_files(root))
    pages = {"README.md": filled(os.path.join(root, "README.md"), [readme_parts(records, left_out)]),
             "docs/measurements.md": front_page(root, records),
             "docs/measured-agreement.md": agreement_page(root)}
    for machine in MACHINES:
        pages[f"docs/{machine.page}.md"] = machine_page(root, records, machine)
    gguf = os.path.join(root, "docs", "gguf.md")
    if os.path.exists(gguf):
        pages["docs/gguf.md"] = filled(gguf, [[t] for t in gguf_tables.page(root)])
    return pages


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default=ROOT, metavar="DIR",
                        help="folder with README.md and docs (default: this repository)")
    parser.add_argument("--check", action="store_true", help="write nothing; is each page what the files give?")
    args = parser.parse_args()
    left_out, other = [], []
    for path, text in all_pages(args.root, left_out).items():
        whole = os.path.join(args.root, path)
        there = open(whole, encoding="utf-8").read() if os.path.exists(whole) else ""
        if there == text:
            continue
        other.append(path)
        if not args.check and text:
            with open(whole, "w", encoding="utf-8") as f:
                f.write(text)
        elif not args.check:
            os.remove(whole)
    for line in left_out:
        print(f"left out of README.md: {line}", file=sys.stderr)
    if args.check and other:
        raise SystemExit(f"{', '.join(other)}: not what docs/measurements gives; run tools/tables.py")


if __name__ == "__main__":
    main()
