#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Draws records as PNG or SVG, by matplotlib, and writes the picture's numbers next to it as CSV.

    plot.py towers FILE.jsonl.. -o OUT.png    towers and lists, next to transformers and compiled torch
    plot.py embed  FILE.jsonl.. -o OUT.png    the patch embedding as a GEMM and as Conv3d
    plot.py ways   FILE.jsonl.. -o OUT.png    any bench: the ways in which each case was run
    plot.py stages FILE.jsonl.. -o OUT.png    a job and its stages alone: what works, what waits
    plot.py rows   FILE.jsonl.. -o OUT.png    GEMMs over their rows, and copying their weights

The files hold one record per line, of `qwenvit bench --json=FILE` and tools/peers/peers.py. A picture
shows one machine and dtype; --machine and --dtype choose where the files hold several. OUT.csv writes
the numbers alone, and needs no matplotlib.
"""
import argparse
import csv
import os
import re

import measured
from measured import case, digits, groups, is_peer, peers, place, tower

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#e69f00", "#56b4e9", "#cc79a7", "#f0e442", "#999999")  # Okabe and Ito's
FIXED = {"qwenvit": COLOURS[0], "works": COLOURS[0], "alone": "#bbbbbb", "waits for the stage before": "#eeeeee"}
SHARES = "bars are in proportion within a group"


def of_bench(records, bench):
    return [r for r in records if r["bench"] == bench]


# ---- bars: [(group, bar, kind, value, note)] ----------------------------------------------------

def compared(found):
    """Returns bars of [(group, our record, [others' records or None])]."""
    for group, ours, others in found:
        for r in [r for r in others if r] + [ours]:
            name = "qwenvit" if r is ours else {"direct": "library's Conv3d"}.get(r["way"], r["way"])
            times = "" if r is ours else f", {digits(r['median_ms'] / ours['median_ms'])} times ours"
            yield group, name, name, r["median_ms"], f"{digits(r['median_ms'])} ms{times}"


def towers(records):
    found = []
    for (name, _), ways in groups((r for r in of_bench(records, "tower") if "stored" not in r), tower, case).items():
        ours = ways.get("encode") or ways.get("packed")
        if ours:
            what = f"{ours['items']} clips and images, " if "items" in ours else ""
            found.append((f"{name}, {what}{ours['patches']:,} patches", ours, peers(ways, ours)))
    return compared([f for f in found if any(f[2])] or found), SHARES


def embed(records):
    found = {}
    for (name, patches), ways in groups(of_bench(records, "patch-embed"), tower, lambda r: r["rows"]).items():
        if "patchify" in ways:  # the largest of each tower
            found[name] = (f"{name}, {patches:,} patches", ways["patchify"],
                           [ways.get(w) for w in ("direct", "torch conv3d", "torch linear")])
    return compared(found.values()), SHARES


def ways(records):
    return [(f"{r['bench']}, {case(r)}", r["way"], r["way"], r["median_ms"], f"{digits(r['median_ms'])} ms")
            for r in sorted(records, key=lambda r: (r["bench"], case(r), -r["median_ms"]))], SHARES


def stages(records):
    bars = []
    for (work,), ways in groups(of_bench(records, "job"), case).items():
        job = ways.get("discard", {})
        for way in ("decode", "gpu", "device", "devices", "files", "parts"):
            if way in ways and "elapsed_s" in job:
                bars.append((work, measured.JOB_WAYS[way], "alone", ways[way]["median_ms"] / 1e3, ""))
        for stage, threads, shares in (("decoders", "decoders", ("decode_s", "room_s")),
                                       ("devices", "devices", ("device_s", "full_s")), ("sinks", "sinks", ("sink_s",))):
            if "elapsed_s" in job:
                took = [job[s] / job[threads] for s in shares]
                took += [0] * (2 - len(took)) + [max(0, job["elapsed_s"] - sum(took))]
                bars += [(work, f"job: {stage}", kind, s, "") for kind, s in zip(
                    ("works", "waits for the next stage", "waits for the stage before"), took)]
    return bars, "seconds; of a job's stage on average over its threads"


def draw_bars(plt, rows, axis):
    lines = list(dict.fromkeys(line for row in rows for line in ((row[0], ""), row[:2])))
    longest = {group: max(r[3] for r in rows if r[0] == group) if axis == SHARES else 1 for group, _ in lines}
    figure, axes = plt.subplots(figsize=(9, 0.24 * len(lines) + 1.3), layout="constrained")
    kinds = list(dict.fromkeys(row[2] for row in rows))
    colours = {k: FIXED.get(k, COLOURS[1 + i % 7]) for i, k in enumerate(sorted(kinds, key=lambda k: k in FIXED))}
    lefts, handles = {}, {}
    for group, bar, kind, value, note in rows:
        y, left, wide = lines.index((group, bar)), lefts.get((group, bar), 0), value / longest[group]
        handles[kind] = axes.barh(y, wide, 0.8, left, color=colours[kind], edgecolor="#333333", linewidth=0.4)
        axes.annotate(note, (left + wide, y), xytext=(5, 0), textcoords="offset points", va="center", fontsize=9)
        lefts[group, bar] = left + wide
    axes.set_yticks(range(len(lines)), [bar or group for group, bar in lines])
    for (_, bar), label in zip(lines, axes.get_yticklabels()):
        label.set_fontweight("normal" if bar else "bold")
    axes.set(ylim=(len(lines) - 0.4, -0.6), xlim=(0, 1.6 * max(lefts.values())), xlabel=axis)
    axes.tick_params(axis="y", length=0)
    if axis == SHARES:
        axes.set_xticks([])
    else:
        figure.legend(handles.values(), handles, loc="outside lower left", ncols=4)
    return figure


# ---- points: [(panel, series, x, y)] -------------------------------------------------------------

def rows(records):
    points = [(re.sub(r"[, ]*\bm=\d+", "", r["case"]), name, r["m"], ms)
              for r in of_bench(records, "gemm") if "over_copy" in r
              for name, ms in ((r["way"], r["median_ms"]), (f"{r['way']}, copying", r["median_ms"] / r["over_copy"]))]
    return sorted(points), ("rows", "median time, ms")


def draw_points(plt, points, axis):
    panels = list(dict.fromkeys(p[0] for p in points))
    figure, all_axes = plt.subplots(len(panels), figsize=(9, 4 * len(panels)), layout="constrained", squeeze=False)
    for panel, axes in zip(panels, all_axes[:, 0]):
        for i, name in enumerate(dict.fromkeys(p[1] for p in points if p[0] == panel)):
            axes.plot(*zip(*(p[2:] for p in points if p[:2] == (panel, name))), ":" if "copying" in name else "o-",
                      label=name, markersize=4, color=COLOURS[i // 2 % len(COLOURS)])
        axes.set(xscale="log", yscale="log", xlabel=axis[0], ylabel=axis[1])
        axes.set_title(panel, loc="left")
        axes.grid(color="#dddddd")
        axes.legend(ncols=3)
    return figure


# ---- the command --------------------------------------------------------------------------------

BARS = (("group", "bar", "kind", "value", "note"), draw_bars)
DRAW = {"towers": (towers, "Towers, from pixels to tokens", *BARS), "embed": (embed, "Patch embedding", *BARS),
        "ways": (ways, "Median times", *BARS), "stages": (stages, "A job and its stages alone", *BARS),
        "rows": (rows, "GEMMs over rows; dotted: copying the weight", ("matrix", "weights", "rows", "ms"), draw_points)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", choices=DRAW)
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("-o", required=True, metavar="OUT", help="OUT.png, OUT.svg or OUT.csv")
    parser.add_argument("--machine", default="", metavar="TEXT", help="part of its name")
    parser.add_argument("--dtype", choices=("f32", "bf16"), default="")
    args = parser.parse_args()
    make, title, head, draw = DRAW[args.picture]
    found = {}
    for r in measured.read_records(args.files):
        if args.dtype in ("", r["dtype"]) and args.machine.lower() in place(r).lower():
            found.setdefault((place(r), r["dtype"]), []).append(r)
    drawn = {key: (rows, axis) for key, rs in found.items() for made, axis in [make(rs)] for rows in [list(made)] if rows}
    if not drawn:
        raise SystemExit(f"{', '.join(args.files)}: no records for {args.picture}")
    if len(drawn) > 1:
        raise SystemExit("\n  ".join(["the files hold several; say --machine or --dtype:", *map(", ".join, sorted(drawn))]))
    (key, (made, axis)), = drawn.items()
    versions = sorted({r["version"] for r in found[key] if not is_peer(r) and "version" in r})
    with open(os.path.splitext(args.o)[0] + ".csv", "w", encoding="utf-8", newline="") as f:
        csv.writer(f).writerows([head, *made])
    if args.o.endswith(".csv"):
        return
    try:
        import matplotlib
    except ImportError as error:
        raise SystemExit(f"plot.py: {error}: it draws with matplotlib (python3 -m pip install matplotlib)") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "qwenvit"})
    figure = draw(plt, made, axis)
    figure.suptitle(f"{title}\n{', '.join(key)}; qwenvit {', '.join(versions)}", x=0.01, ha="left", fontsize=11)
    figure.savefig(args.o, dpi=100, metadata={"Date": None} if args.o.endswith(".svg") else {"Software": None})


if __name__ == "__main__":
    main()
