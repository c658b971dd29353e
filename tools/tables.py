#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes the tables of README.md from the JSON files in docs/measurements, between its markers.

The files come from tools/reference/bench_side_by_side.py (speed-*.json) and parity.py
(parity-*.json); no number is typed by hand. Usage: tables.py, from anywhere.
"""
import glob
import json
import os

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BEGIN, END = "<!-- measured: made by tools/tables.py -->", "<!-- /measured -->"


def load(pattern):
    for path in sorted(glob.glob(os.path.join(ROOT, "docs", "measurements", pattern))):
        with open(path, encoding="utf-8") as f:
            yield json.load(f)


def table(head, rows):
    return "\n".join(["| " + " | ".join(r) + " |" for r in [head, ["---"] * len(head)] + rows])


def speed_tables():
    tower, pixels = [], []
    for run in load("speed-*.json"):
        where = f"{run['cpu']}, {run['threads']} threads"
        for r in run["results"]:
            ours = r.get("qwenvit")
            if not ours:
                continue
            if r["what"] == "tower":
                tower.append([run["model"], r["dtype"], str(r["patches"]), where,
                              f"{r['transformers_ms']:.0f}", f"{ours['median_ms']:.0f}",
                              f"**{r['speedup']:.2f}**", f"{r['over_limit']:.2f}",
                              f"{ours['plan_new_ms']:.0f} / {ours['plan_seen_ms']:.3f}"])
            else:
                theirs = r["transformers"]
                size = "{1}x{0} to {3}x{2}".format(*r["source"], *r["target"])
                pixels.append([size, where] + [
                    f"{theirs[k]:.2f} / {ours[k]:.2f} (**{theirs[k] / ours[k]:.1f}**)"
                    for k in ("resize_ms_per_frame", "rows_ms_per_frame")])
    return "\n\n".join([
        "Tower, medians of one run side by side. Limit: the same GEMMs (without bias, GELU and "
        "residual) and the same attention alone, each layer with its own weights.",
        table(["tower", "dtype", "patches", "machine", "transformers ms", "qwenvit ms",
               "times faster", "over limit", "plan new / seen ms"], tower),
        "Preprocessing a frame: torchvision and transformers' processor / qwenvit, ms (times "
        "faster).",
        table(["frames", "machine", "resize", "patch rows"], pixels)])


def parity_table():
    rows = []
    for run in load("parity-*.json"):
        clips = [c for c in run["clips"] if "rows" in c]
        for dtype in ("f32", "bf16"):
            all_rows = [r for c in clips for r in c["rows"] if r["dtype"] == dtype]
            if not all_rows:
                continue
            ratio = "" if dtype == "f32" else "{:.2f} / {:.2f}".format(
                max(r["mean_ratio"] for r in all_rows), max(r["worst_ratio"] for r in all_rows))
            rows.append([run["model"], dtype, str(len(clips)), run["cpu"],
                         f"{max(r['mean'] for r in all_rows):.1e}",
                         f"{max(r['worst'] for r in all_rows):.1e}", ratio or "(below 2e-5)",
                         "yes" if all(r["ok"] for r in all_rows) else "NO"])
    return "\n\n".join([
        "The same model? Distance per token to transformers in f32 on the same bf16-rounded "
        "weights, the largest over all clips, tokens and DeepStack outputs; for bf16 also over "
        "transformers' own bf16 distance, which must stay below 1.05.",
        table(["tower", "dtype", "clips", "machine", "mean", "worst token",
               "mean / worst over transformers'", "agrees"], rows)])


def versions():
    runs = list(load("*.json"))
    keys = ("transformers", "torch", "torchvision")
    seen = sorted({", ".join(f"{k} {r[k].split('+')[0]}" for k in keys) for r in runs})
    commits = sorted({r["commit"] for r in runs})
    return (f"Against {'; '.join(seen)}; qwenvit at {', '.join(commits)}. M and L are the vision "
            "towers of Qwen3-VL-4B and 8B, with seeded random weights. Repeat it with "
            "`tools/reference/bench_side_by_side.py` and `parity.py`.")


def main():
    path = os.path.join(ROOT, "README.md")
    with open(path, encoding="utf-8") as f:
        text = f.read()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    parts = [BEGIN, speed_tables(), parity_table(), versions(), END]
    with open(path, "w", encoding="utf-8") as f:
        f.write(before + "\n\n".join(parts) + after)


if __name__ == "__main__":
    main()
