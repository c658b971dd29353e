#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Draws measurements as PNG files 900 pixels wide, by matplotlib, from record files.

    plot.py roofline FILE.jsonl.. -o OUT.png    what was timed, below the measured roofline
    plot.py profile  FILE.jsonl.. -o OUT.png    where the time of a tower goes
    plot.py towers   FILE.jsonl.. -o OUT.png    towers beside transformers and compiled torch
    plot.py embed    FILE.jsonl.. -o OUT.png    patch embedding, as GEMM and as Conv3d
    plot.py fill     FILE.jsonl.. -o OUT.png    how full the chunks of a list are
    plot.py stages   FILE.jsonl.. -o OUT.png    a job beside its stages alone: what works, what waits
    plot.py rows     FILE.jsonl.. -o OUT.png    GEMMs from one row up, packed weights beside others
    plot.py versions FILE.jsonl.. -o OUT.png    a job by two versions: each stage, and all of it
    plot.py all      FILE.jsonl.. --out DIR     every plot that has records, for each machine and dtype
    plot.py job      FILE.trace   -o OUT.png    the stages of a job over time (encode --trace)

The files hold records, an object a line, of `qwenvit bench`, `qwenvit profile` (--json=FILE) and
tools/peers/peers.py. A plot shows one machine and dtype; --machine and --dtype choose where the
files hold several. The same records give the same bytes with the same matplotlib.
"""
import argparse
import io
import json
import math
import os
import re

try:
    import matplotlib
except ImportError as error:
    raise SystemExit(f"plot.py: {error}: it draws with matplotlib and Pillow "
                     "(python3 -m pip install matplotlib pillow)") from None

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator
from PIL import Image

import measured

WIDTH_IN, DPI = 9, 100
MOST_BYTES = 150_000  # a larger file gets a palette
plt.rcParams.update({
    "font.size": 10, "axes.titlesize": 11, "axes.labelsize": 10, "legend.fontsize": 9.5,
    "xtick.labelsize": 9.5, "ytick.labelsize": 9.5, "axes.spines.top": False,
    "axes.spines.right": False, "font.family": "DejaVu Sans", "hatch.linewidth": 0.6,
    "legend.frameon": False})

# Every way has one look in all plots: a colour (Okabe and Ito's, dark to light) and a hatch.
# qwenvit is plain, torch is hatched, and bounds are grey.
LOOKS = {
    "patchify": ("#0072b2", ""), "still": ("#56b4e9", ""), "pointwise": ("#004a75", ""),
    "frames": ("#009e73", ""), "by depth": ("#8fd9c0", ""), "direct": ("#f0e442", ""),
    "encode": ("#0072b2", ""), "limit": ("#555555", ""), "floor": ("#aaaaaa", ""),
    "torch conv3d": ("#d55e00", "////"), "torch conv3d channels last": ("#f2b184", "\\\\\\\\"),
    "torch conv2d by depth": ("#e69f00", "xxxx"),
    "torch linear": ("#cc79a7", "...."), "transformers": ("#d55e00", "////"),
    "transformers linear": ("#cc79a7", "...."), "compiled torch": ("#e69f00", "xxxx"),
    # the kinds of operation follow
    "gemm": ("#0072b2", ""), "attention": ("#9467bd", "////"), "norm": ("#009e73", "...."),
    "rope": ("#8c564b", "xxxx"), "rows": ("#56b4e9", "\\\\\\\\"), "interpolate": ("#f7c6de", "oo"),
    "convert": ("#dddddd", "--"), "conv": ("#f0e442", "++"),
}
OTHERS = [("#000000", ""), ("#7f3c8d", "++"), ("#80ba5a", "--"), ("#a5aa99", "oo"),
          ("#4b4b8f", "**"), ("#e68310", "||")]
# the mark, size and colour of each series of a roofline
MARKS = {"qwenvit's towers": ("*", 130, "#0072b2"), "compiled torch's towers": ("*", 130, "#e69f00"),
         "GEMMs": ("o", 36, "#56b4e9"), "attention": ("s", 42, "#9467bd")}


ROW_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")  # Okabe and Ito's


def look(name):
    """Returns (colour, hatch) of a way or operation; an unknown one gets a look by its letters."""
    return LOOKS.get(name) or OTHERS[sum(map(ord, name)) % len(OTHERS)]


def name_order(name):
    return (list(LOOKS).index(name) if name in LOOKS else len(LOOKS), name)


def save(figure, path):
    """Writes a PNG without a date in it, packed as well as PNG can."""
    raw = io.BytesIO()
    figure.savefig(raw, format="png", dpi=DPI, metadata={"Software": None})
    plt.close(figure)
    image = Image.open(raw).convert("RGB")
    image.save(path, optimize=True)
    if os.path.getsize(path) > MOST_BYTES:  # MAXCOVERAGE keeps rare colours
        image.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
            path, optimize=True)
    print(f"{path}: {image.width}x{image.height}, {os.path.getsize(path) / 1000:.0f} kB")


def heading(records, text):
    """Returns two lines: what the plot shows; then machine, dtype, and the versions in it."""
    own = sorted({measured.short_version(r) for r in records if not measured.is_peer(r)})
    return f"{text}\n{measured.place(records[0])}, {records[0]['dtype']}; qwenvit {'; '.join(own)}"


def plain_ticks(axis):
    axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    axis.set_minor_formatter(FuncFormatter(lambda v, _: ""))


# ---- roofline ----------------------------------------------------------------------------------

def work_of(records):
    """Returns {work: (flops, bytes)} as qwenvit counts them, so that a peer's point stands above or below ours."""
    out = {}
    for r in records:
        if not measured.is_peer(r) and r.get("flops") and r.get("bytes"):
            out.setdefault((r["bench"], r["case"]), (r["flops"], r["bytes"]))
    return out


def series(r):
    """Returns the name of the series of a roofline that a record belongs to, or None."""
    if r["bench"] == "tower" and "stored" not in r:
        return {"encode": "qwenvit's towers", "compiled torch": "compiled torch's towers"}.get(r["way"])
    kind = {"profile": r.get("op"), "gemm": "gemm"}.get(r["bench"])
    return {None: None, "gemm": "GEMMs", "attention": "attention"}.get(kind, None)


def roof_points(records):
    """Returns {series: [(FLOP/byte, TFLOP/s)]}; an operation that is called often has one point, its median."""
    work, calls = work_of(records), {}
    for r in records:
        flops, moved = r.get("flops"), r.get("bytes")
        if measured.is_peer(r):
            flops, moved = work.get((r["bench"], r["case"]), (flops, moved))
        if series(r) and flops and moved:
            calls.setdefault((series(r), r["case"], flops, moved), []).append(r["median_ms"])
    points = {}
    for (name, _, flops, moved), times in calls.items():
        middle = sorted(times)[len(times) // 2]
        points.setdefault(name, []).append((flops / moved, flops / middle / 1e9))
    return points


def roofline(records, path):
    points = roof_points(records)
    rooflines = [r["machine"] for r in records  # without those that no two measurements agreed on
                 if r["machine"].get("roof_tflops_per_s") and r["machine"].get("roof_gb_per_s")]
    if not points or not rooflines:
        return False
    peak = max(m["roof_tflops_per_s"] for m in rooflines)  # the best of any run
    rate = max(m["roof_gb_per_s"] for m in rooflines) / 1e3  # TB/s

    below, height = 0.97, 6.37
    figure = plt.figure(figsize=(WIDTH_IN, height))
    axes = figure.add_axes([0.085, below / height, 0.885, (height - below - 0.6) / height])
    every = [p for ps in points.values() for p in ps]
    ridge = peak / rate
    low = min(min(p[0] for p in every), ridge) / 2
    high = max(max(p[0] for p in every), ridge) * 2
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.plot([low, ridge, high], [low * rate, peak, peak], color="black", linewidth=1.8)
    axes.fill_between([low, ridge, high], [low * rate, peak, peak], peak * 10, color="#eeeeee",
                      linewidth=0)
    bottom, top = min(min(p[1] for p in every), low * rate) / 1.6, peak * 2.2
    axes.set_xlim(low, high)
    axes.set_ylim(bottom, top)
    axes.annotate(f"measured peak {peak:.3g} TFLOP/s", (high, peak), xytext=(-6, 5), ha="right",
                  textcoords="offset points", fontsize=10)
    mid = (low * ridge) ** 0.5
    pixels = axes.transData.transform([(low, low * rate), (ridge, peak)])
    slope = math.degrees(math.atan2(*(pixels[1] - pixels[0])[::-1]))
    axes.annotate(f"measured memory rate {1000 * rate:.0f} GB/s", (mid, mid * rate), xytext=(-9, 14),
                  textcoords="offset points", rotation=slope, rotation_mode="anchor", ha="center",
                  fontsize=10, zorder=5,
                  bbox=dict(facecolor="#eeeeee", edgecolor="none", alpha=0.85, pad=1))
    for name in (n for n in MARKS if n in points):
        mark, size, colour = MARKS[name]
        axes.scatter(*zip(*points[name]), marker=mark, s=size, color=colour, edgecolor="black",
                     linewidth=0.6, zorder=4 if "tower" in name else 3, label=name)
    axes.set_xlabel("arithmetic intensity, FLOP / byte")
    axes.set_ylabel("TFLOP/s")
    plain_ticks(axes.xaxis)
    plain_ticks(axes.yaxis)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_title(heading(records, "What was timed, below the measured roofline"), loc="left",
                   linespacing=1.4)
    figure.legend(loc="lower left", ncols=4, bbox_to_anchor=(0.06, 0.0), columnspacing=1.6,
                  handletextpad=0.4)
    save(figure, path)
    return True


# ---- profile -----------------------------------------------------------------------------------

def layer_group(name):
    """Returns a layer's name with stars for numbers: blocks.3.attn.qkv -> blocks.*.attn.qkv."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", name)


def bars(axes, sums, counts, total):
    """Draws horizontal stacked bars of sums, {label: {op: ms}}, the longest first."""
    labels = sorted(sums, key=lambda k: (-sum(sums[k].values()), k))
    for i, label in enumerate(labels):
        left = 0.0
        for op in sorted(sums[label], key=name_order):
            value, (colour, hatch) = sums[label][op], look(op)
            axes.barh(i, value, left=left, height=0.76, color=colour, hatch=hatch,
                      edgecolor="#333333", linewidth=0.5)
            left += value
        axes.annotate(f"{measured.digits(left)} ms  {100 * left / total:.1f} %", (left, i),
                      xytext=(5, 0), textcoords="offset points", va="center", fontsize=9.5)
    axes.set_yticks(range(len(labels)))
    axes.set_yticklabels([f"{n}  ×{counts[n]}" if counts[n] > 1 else n for n in labels])
    axes.set_ylim(len(labels) - 0.45, -0.55)
    axes.set_xlim(0, max(sum(s.values()) for s in sums.values()) * 1.2)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)


def profile(records, path):
    records = [r for r in records if r["bench"] == "profile"]
    if not records:
        return False
    total = sum(r["median_ms"] for r in records)
    by_op, by_layer, op_counts, layer_counts = {}, {}, {}, {}
    for r in records:
        op, layer = r.get("op", "?"), layer_group(r["way"])
        for sums, counts, key in ((by_op, op_counts, op), (by_layer, layer_counts, layer)):
            of = sums.setdefault(key, {})
            of[op] = of.get(op, 0.0) + r["median_ms"]
            counts[key] = counts.get(key, 0) + 1
    row, gaps = 0.27, [0.75, 0.75, 0.55]  # inches: above, between, below
    tall = [row * len(by_op), row * len(by_layer)]
    height = sum(tall) + sum(gaps)
    figure = plt.figure(figsize=(WIDTH_IN, height))
    longest = max(len(k) for k in list(by_layer) + list(by_op)) + 5
    left = min(0.4, 0.02 + 0.0088 * longest)
    first = figure.add_axes([left, (height - gaps[0] - tall[0]) / height, 0.97 - left,
                             tall[0] / height])
    second = figure.add_axes([left, gaps[2] / height, 0.97 - left, tall[1] / height])
    bars(first, by_op, op_counts, total)
    bars(second, by_layer, layer_counts, total)
    figure.text(0.02, 1 - 0.1 / height,
                heading(records, f"One chunk, {measured.digits(total)} ms: by operation"), va="top",
                fontsize=11, linespacing=1.4)
    figure.text(0.02, (gaps[2] + tall[1] + 0.08) / height,
                "By layer; a star stands for every block", va="bottom", fontsize=11)
    second.set_xlabel("time, ms")
    save(figure, path)
    return True


# ---- side by side ------------------------------------------------------------------------------

def side_by_side(records, groups, title, note, path):
    """Draws bars in groups, {label: {way: ms}}. Each way is set over the last of its group, which is ours."""
    bar, gap, head = 0.21, 0.13, 0.24  # inches that a bar, a gap and a group's name take
    inner = sum(len(ways) * bar + head + gap for ways in groups.values())
    height = inner + 1.15
    figure = plt.figure(figsize=(WIDTH_IN, height))
    axes = figure.add_axes([0.21, 0.45 / height, 0.75, inner / height])
    axes.set_xlim(0, 1.28)  # the slowest of each group has length 1, as ratios are what is shown
    y, ticks, labels = 0.0, [], []
    for label, ways in groups.items():
        axes.text(0, y + 0.12, label, va="center", fontsize=10, fontweight="bold")
        y += head
        slowest, ours = max(ways.values()), list(ways.values())[-1]
        for i, (way, ms) in enumerate(ways.items()):
            colour, hatch = look("encode" if i + 1 == len(ways) else way)
            axes.barh(y + bar / 2, ms / slowest, height=bar * 0.84, color=colour, hatch=hatch,
                      edgecolor="#333333", linewidth=0.5)
            times = "" if i + 1 == len(ways) else f"   {measured.digits(ms / ours)} times ours"
            axes.annotate(f"{measured.digits(ms)} ms{times}", (ms / slowest, y + bar / 2),
                          xytext=(5, 0), textcoords="offset points", va="center", fontsize=9.5,
                          fontweight="bold" if i + 1 == len(ways) else "normal")
            ticks.append(y + bar / 2)
            labels.append(way)
            y += bar
        y += gap
    axes.set_ylim(inner, 0)
    axes.set_yticks(ticks, labels)
    axes.tick_params(axis="y", length=0)
    axes.spines["bottom"].set_visible(False)
    axes.set_xticks([])
    figure.text(0.02, 1 - 0.1 / height, heading(records, title), va="top", fontsize=11,
                linespacing=1.4)
    figure.text(0.21, 0.12 / height, note, fontsize=9, color="#555555")
    save(figure, path)


def newest(drawn):
    """Returns the groups of the newest version among those that may be drawn, and the records in them.
    `drawn` is a list of (label, our record, {way: record of a peer})."""
    last = max((ours.get("version", "") for _, ours, _ in drawn), default="")
    kept = [d for d in drawn if d[1].get("version", "") == last]
    return ({label: {**{way: r["median_ms"] for way, r in peers.items()}, "qwenvit": ours["median_ms"]}
             for label, ours, peers in kept},
            [r for _, ours, peers in kept for r in (ours, *peers.values())])


def towers(records, path):
    """Draws, for each tower, a clip of 6,080 patches, and lists that were packed."""
    packed = {}
    for r in records:
        if r["bench"] == "tower" and r["way"] == "packed":
            packed.setdefault((measured.tower(r), r["patches"]), []).append(r)
    drawn = []
    for (tower, patches, *_), ways in measured.groups(
            records, "tower", measured.tower, lambda r: r["patches"]).items():
        ours = ways.get("encode") or measured.fastest(packed.get((tower, patches), []))
        ways = measured.of_day(ways, ours)
        best, torch = measured.transformers_best(ways), ways.get("compiled torch")
        if ours and best and (patches == 6080 or "items" in ours):
            label = (f"{tower}: {patches:,} patches, "
                     + (f"{ours['items']} clips and images" if "items" in ours else "a clip of 16 frames"))
            peers = {"transformers": best, "compiled torch": torch}
            drawn.append((label, ours, {way: r for way, r in peers.items() if r}))
    groups, used = newest(drawn)
    if groups:
        side_by_side(used, groups, "Vision towers, from pixels to tokens",
                     "medians; transformers is the fastest of its own ways; bars are in proportion within a group", path)
    return bool(groups)


def embed(records, path):
    drawn = []
    for (tower, rows, dtype, _), ways in measured.groups(
            records, "patch-embed", measured.tower, lambda r: r["rows"]).items():
        ways = measured.of_day(ways, ways.get("patchify"))
        peers = {n: ways[w] for n, w in (("torch conv3d", "torch conv3d"), ("the library's Conv3d", "direct"),
                                         ("torch linear", "torch linear")) if w in ways}
        if tower == "Qwen3-VL-4B" and dtype == "bf16" and "patchify" in ways and "torch conv3d" in peers:
            drawn.append((f"{rows:,} patches", ways["patchify"], peers))
    groups, used = newest(drawn)
    if groups:
        side_by_side(used, groups, "Patch embedding of Qwen3-VL-4B",
                     "medians; bars are in proportion within a group", path)
    return bool(groups)


def sizes(r):
    """Returns in words the smallest and the largest item of a list; records before 0.3.0 lack them."""
    return f" of {r['least_patches']:,} to {r['most_patches']:,} patches" if "least_patches" in r else ""


def fill(records, path):
    """Draws how much of the chunks is patches, for each list and capacity. Lists that say their items' sizes are
    drawn alone, if there are any."""
    packed = sorted((r for r in records if r["bench"] == "tower" and r["way"] == "packed"),
                    key=lambda r: (r["items"], r["patches"], r["capacity"]))
    packed = [r for r in packed if sizes(r)] or packed
    seen = {(r["items"], r["patches"], r["capacity"]): r for r in packed}
    if not seen:
        return False
    bar = 0.27
    inner = bar * len(seen)
    height = inner + 1.2
    figure = plt.figure(figsize=(WIDTH_IN, height))
    axes = figure.add_axes([0.52, 0.5 / height, 0.45, inner / height])
    for i, r in enumerate(seen.values()):
        axes.barh(i, 1, height=0.76, color="#eeeeee", edgecolor="#999999", linewidth=0.5)
        axes.barh(i, r["fill"], height=0.76, color=look("encode")[0], edgecolor="#333333",
                  linewidth=0.5)
        axes.annotate(f"{100 * r['fill']:.1f} %", (r["fill"], i), xytext=(-5, 0), ha="right",
                      textcoords="offset points", va="center", fontsize=9.5, color="white")
    axes.set_yticks(range(len(seen)), [
        f"{r['items']} items{sizes(r)}: {r['patches']:,} in {r['chunks']} chunks of {r['capacity']:,}"
        for r in seen.values()])
    axes.set_ylim(len(seen) - 0.45, -0.55)
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.5, 1], ["0", "half", "full"])
    axes.tick_params(axis="y", length=0)
    figure.text(0.02, 1 - 0.1 / height, heading(packed, "How full chunks are"), va="top",
                fontsize=11, linespacing=1.4)
    save(figure, path)
    return True


# ---- a job -------------------------------------------------------------------------------------

def stage_shares(r):
    """Returns [(stage, [(seconds, what it does)])] of a job: what its threads do, on average over a stage."""
    all_s = r["elapsed_s"]
    parts = [("decoders", [(r["decode_s"] / r["decoders"], "works"),
                           (r["room_s"] / r["decoders"], "waits for the next stage")]),
             ("device" if r["devices"] == 1 else "devices",
              [(r["device_s"] / r["devices"], "works"),
               (r["full_s"] / r["devices"], "waits for the next stage")]),
             ("sinks", [(r["sink_s"] / r["sinks"], "works")])]
    for _, shares in parts:
        shares.append((max(0, all_s - sum(s for s, _ in shares)), "waits for the stage before"))
    return parts


def stages(records, path):
    """Draws a job whose tokens are discarded, beside each of its stages alone."""
    cases = {}
    for r in records:
        if r["bench"] == "job":
            cases.setdefault(measured.case(r), {})[r["way"]] = r
    cases = {c: ways for c, ways in cases.items()
             if "decode" in ways and "elapsed_s" in ways.get("discard", {})
             and not measured.is_by_gpu(ways)}
    if not cases:
        return False
    kinds = {"alone": ("#bbbbbb", ""), "works": look("encode"),
             "waits for the next stage": look("transformers"),
             "waits for the stage before": ("#eeeeee", "")}
    bars = []  # (label, [(seconds, kind)]), or (a case's name, None)
    for case, ways in cases.items():
        bars.append((case, None))
        alone = {"bare": "FFmpeg in a bare loop", "decode": "decoding alone",
                 "devices" if "devices" in ways else "device": "device alone"}
        bars += [(label, [(ways[way]["median_ms"] / 1e3, "alone")])
                 for way, label in alone.items() if way in ways]
        bars += [(f"job: {stage}", shares) for stage, shares in stage_shares(ways["discard"])]
    bar = 0.27
    inner = bar * len(bars)
    height = inner + 1.45
    figure = plt.figure(figsize=(WIDTH_IN, height))
    axes = figure.add_axes([0.2, 0.9 / height, 0.77, inner / height])
    for i, (label, shares) in enumerate(bars):
        if shares is None:
            axes.text(0, i, label, va="center", fontsize=10, fontweight="bold")
            continue
        at = 0.0
        for seconds, kind in shares:
            axes.barh(i, seconds, left=at, height=0.76, color=kinds[kind][0],
                      hatch=kinds[kind][1], edgecolor="#333333", linewidth=0.4)
            at += seconds
    axes.set_yticks(range(len(bars)), [label if shares else "" for label, shares in bars])
    axes.set_ylim(len(bars) - 0.45, -0.55)
    axes.set_xlabel("seconds; of a job's stage, on average over its threads")
    axes.tick_params(axis="y", length=0)
    figure.legend(handles=[Patch(facecolor=c, hatch=h, edgecolor="#333333", label=w)
                           for w, (c, h) in kinds.items()],
                  loc="lower left", ncols=4, bbox_to_anchor=(0.02, 0.0))
    figure.text(0.02, 1 - 0.1 / height, heading(list(list(cases.values())[0].values()),
                                                "A job beside its stages alone"),
                va="top", fontsize=11, linespacing=1.4)
    save(figure, path)
    return True


def versions(records, path):
    """Draws the same clips by two versions: each stage alone, then whole jobs."""
    names = {"decode": "decoding alone", "device": "the device alone", "files": "writing files, alone",
             "parts": "writing a cache, alone", "discard": "job, tokens discarded",
             "encode": "job, a file a clip", "cache": "job, a cache"}
    cases = {}
    for r in records:
        if r["bench"] == "job" and r["way"] in names:
            by_version = cases.setdefault((measured.case(r), r["dtype"], measured.place(r)), {})
            by_version.setdefault(r["way"], {})[r["version"]] = r
    found = [(key, ways) for key, ways in cases.items() if any(len(v) > 1 for v in ways.values())]
    if not found:
        return False
    (case, *_), ways = max(found, key=lambda f: next(iter(next(iter(f[1].values())).values()))["clips"])
    seen = sorted({v for by_version in ways.values() for v in by_version})
    ways = [(name, ways[way]) for way, name in names.items() if way in ways]
    bar, gap = 0.2, 0.14
    inner = len(ways) * (len(seen) * bar + gap)
    height = inner + 1.6
    figure = plt.figure(figsize=(WIDTH_IN, height))
    axes = figure.add_axes([0.24, 0.95 / height, 0.72, inner / height])
    y, ticks = 0.0, []
    for name, by_version in ways:
        ticks.append(y + len(seen) * bar / 2)
        for i, version in enumerate(seen):
            r = by_version.get(version)
            if r:
                axes.barh(y + bar / 2, r["median_ms"] / 1e3, height=bar * 0.86, edgecolor="#333333",
                          linewidth=0.5, color=look("encode" if i + 1 == len(seen) else "limit")[0])
                axes.annotate(f"{measured.digits(r['median_ms'] / 1e3)} s", (r["median_ms"] / 1e3, y + bar / 2),
                              xytext=(4, 0), textcoords="offset points", va="center", fontsize=9.5)
            y += bar
        y += gap
    axes.set_ylim(inner, 0)
    axes.set_yticks(ticks, [name for name, _ in ways])
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("seconds")
    figure.legend(handles=[Patch(facecolor=look("encode" if i + 1 == len(seen) else "limit")[0], edgecolor="#333333",
                                 label=f"qwenvit {v}") for i, v in enumerate(seen)],
                  loc="lower left", ncols=4, bbox_to_anchor=(0.22, 0.0))
    all_of = [r for _, by_version in ways for r in by_version.values()]
    text = f"From files to tokens: {case}\n{measured.place(all_of[0])}, {all_of[0]['dtype']}"
    figure.text(0.02, 1 - 0.1 / height, text, va="top", fontsize=11, linespacing=1.4)
    save(figure, path)
    return True


def rows(records, path):
    """Draws the times of GEMMs over their rows, and of copying their packed weights, for each matrix."""
    matrices = {}
    for r in records:
        if r["bench"] == "gemm" and "weight_bytes" in r:
            case = re.sub(r"[, ]*\bm=\d+", "", r["case"])
            matrices.setdefault(case, {}).setdefault(r["way"], {})[r["m"]] = r
    matrices = {case: ways for case, ways in matrices.items()
                if any(len(by_m) > 1 for by_m in ways.values())}
    if not matrices:
        return False
    one, head = 3.4, 0.75  # inches that a matrix and the heading take
    height = one * len(matrices) + head
    figure = plt.figure(figsize=(WIDTH_IN, height))
    for i, (case, ways) in enumerate(matrices.items()):
        axes = figure.add_axes([0.08, (height - head - one * (i + 1) + 0.6) / height, 0.89,
                                (one - 0.9) / height])
        for colour, (way, by_m) in zip(ROW_COLOURS, sorted(ways.items())):
            ms = [by_m[m]["median_ms"] for m in sorted(by_m)]
            axes.plot(sorted(by_m), ms, marker="o", markersize=3.5, color=colour, label=way)
            axes.axhline(ms[0] * by_m[min(by_m)]["over_copy"] ** -1, color=colour, linewidth=0.9,
                         linestyle=":")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))  # times may be of one decade
        plain_ticks(axes.xaxis)
        plain_ticks(axes.yaxis)
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.set_xlabel("rows")
        axes.set_ylabel("median time, ms")
        axes.set_title(case, loc="left", fontweight="bold")
        axes.legend(ncols=4)
    drawn = [r for ways in matrices.values() for by_m in ways.values() for r in by_m.values()]
    text = heading(drawn, "GEMMs over rows; dotted: copying the packed weight")
    figure.text(0.02, 1 - 0.1 / height, text, va="top", fontsize=11, linespacing=1.4)
    save(figure, path)
    return True


def job(path, out):
    """Draws when each decoder, device and sink of `qwenvit encode --trace FILE` did what."""
    wanted = "trace events are wanted, as `qwenvit encode --list .. --trace FILE` writes them"
    try:
        events = json.loads(measured.read_text(path, wanted))["traceEvents"]
    except (ValueError, KeyError, TypeError):
        raise SystemExit(f"{path}: no trace; {wanted}") from None
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    spans = [e for e in events if e["ph"] == "X"]
    if not spans:
        return False
    colours = {"decode": look("frames")[0], "push": look("transformers")[0],
               "pull": look("encode")[0], "sink": look("attention")[0]}
    lanes = sorted({(e["pid"], e["tid"]) for e in spans})
    inner = 0.34 * len(lanes)
    height = inner + 1.35
    figure = plt.figure(figsize=(WIDTH_IN, height))
    axes = figure.add_axes([0.12, 0.8 / height, 0.85, inner / height])
    for i, lane in enumerate(lanes):
        for kind, colour in colours.items():
            here = [(e["ts"] / 1e6, e["dur"] / 1e6) for e in spans
                    if (e["pid"], e["tid"]) == lane and e["name"] == kind]
            axes.broken_barh(here, (i - 0.38, 0.76), color=colour, edgecolor="#333333",
                             linewidth=0.3)
    axes.set_yticks(range(len(lanes)), [f"{names[p]} {t}" for p, t in lanes])
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    axes.set_xlim(0, max(e["ts"] + e["dur"] for e in spans) / 1e6)
    axes.set_xlabel("seconds")
    axes.tick_params(axis="y", length=0)
    figure.legend(handles=[Patch(color=c, label=w) for c, w in zip(colours.values(), (
        "a clip decoded, and waiting for room", "a chunk pushed", "its tokens", "a clip written"))],
        loc="lower left", ncols=4, bbox_to_anchor=(0.1, 0.0))
    figure.text(0.02, 1 - 0.1 / height, "A job's stages over time", va="top", fontsize=11)
    save(figure, out)
    return True


# ---- the command -------------------------------------------------------------------------------

DRAW = {"roofline": roofline, "profile": profile, "towers": towers,
        "embed": embed, "fill": fill, "stages": stages, "rows": rows}


def settings(records, machine="", dtype=""):
    """Returns {(place, dtype): records, qwenvit's first} of the machines and dtypes that are wanted."""
    found = {}
    for r in sorted(records, key=measured.is_peer):
        found.setdefault((measured.place(r), r["dtype"]), []).append(r)
    return {key: rs for key, rs in sorted(found.items())
            if dtype in ("", key[1]) and machine.lower() in measured.machine_text(rs).lower()}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plot", choices=[*DRAW, "versions", "job", "all"])
    parser.add_argument("files", nargs="+", metavar="FILE.jsonl")
    parser.add_argument("-o", metavar="OUT.png", help="the plot to write")
    parser.add_argument("--out", metavar="DIR", help="folder for `all`")
    parser.add_argument("--machine", default="", metavar="TEXT", help="part of its name")
    parser.add_argument("--dtype", choices=("f32", "bf16"), default="")
    args = parser.parse_args()
    if args.plot == "job":
        if not args.o or len(args.files) != 1:
            parser.error("job needs one FILE and -o OUT.png")
        if not job(args.files[0], args.o):
            raise SystemExit(f"{args.files[0]}: no spans in it")
        return
    if args.plot == "versions":  # several versions timed the same work, and no record may replace another
        lines = [json.loads(x) for f in args.files for x in measured.read_text(f).splitlines() if x.strip()]
        if not args.o:
            parser.error("versions needs -o OUT.png")
        if not versions(lines, args.o):
            raise SystemExit(f"{', '.join(args.files)}: no job of two versions")
        return
    found = settings(measured.read_records(args.files), args.machine, args.dtype)
    if args.plot == "all":
        if not args.out:
            parser.error("all needs --out DIR")
        for (place, dtype), records in found.items():
            for name, draw in DRAW.items():
                if not all(measured.is_peer(r) for r in records):
                    draw(records, os.path.join(args.out, f"{name}-{measured.slug(place)}-{dtype}.png"))
        return
    if not args.o:
        parser.error(f"{args.plot} needs -o OUT.png")
    if args.plot == "profile":
        found = {k: rs for k, rs in found.items() if any(r["bench"] == "profile" for r in rs)}
    if len(found) > 1:
        raise SystemExit("the files hold several; say --machine or --dtype:\n  "
                         + "\n  ".join(", ".join(k) for k in found))
    if not found or not DRAW[args.plot](list(found.values())[0], args.o):
        raise SystemExit(f"{', '.join(args.files)}: no records for {args.plot}")


if __name__ == "__main__":
    main()
