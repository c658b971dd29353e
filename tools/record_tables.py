# SPDX-License-Identifier: MIT
"""Tables in Markdown of what was measured, one function each; empty where nothing was."""
import re
import statistics

from measured import (digits, fastest, first_word, groups, is_peer, load, machine_text, place,
                      runs, verify_runs)

SMALL_M = 16  # rows of a "small" GEMM


# ---- writing -----------------------------------------------------------------------------------

def table(head, rows):
    return "\n".join(["| " + " | ".join(r) + " |" for r in [head, ["---"] * len(head)] + rows])


def ms(record):
    """Milliseconds; empty where there is no record."""
    return "" if record is None else digits(record["median_ms"])


def over(a, b):
    """How many times b's time a's is; empty where one is missing."""
    if a is None or b is None or not b["median_ms"]:
        return ""
    x = a["median_ms"] / b["median_ms"]
    return f"{x:.0f}" if x >= 100 else f"{x:.1f}" if x >= 10 else f"{x:.2f}"


def field(record, name):
    """A number of a record's own, to two decimals; empty where it has none."""
    return f"{record[name]:.2f}" if record and name in record else ""


def bold(text):
    return f"**{text}**" if text else ""


def drop_empty(head, rows):
    """Without the columns that are empty in all rows."""
    keep = [i for i in range(len(head)) if any(r[i] for r in rows)]
    return [head[i] for i in keep], [[r[i] for i in keep] for r in rows]


# ---- tables of records -------------------------------------------------------------------------

def patch_embed_table(records):
    rows = []
    for key, ways in groups(records, "patch-embed", first_word, lambda r: r["rows"]).items():
        gemm, pixels, bare, own, peer, linear = (ways.get(w) for w in (
            "patchify", "patchify from bytes", "GEMM alone", "direct", "torch conv3d",
            "torch linear"))
        if gemm is None:
            continue
        rows.append([key[0], str(key[1]), key[2], machine_text(ways.values()), ms(gemm),
                     ms(pixels), ms(bare), over(gemm, bare), field(pixels, "over_floor"), ms(own),
                     ms(peer), ms(linear), bold(over(own, gemm)), bold(over(peer, gemm))])
    return rows and table(*drop_empty(
        ["tower", "rows", "dtype", "machine", "as GEMM ms", "the same from bytes ms",
         "bare GEMM ms", "over bare GEMM", "from bytes over its floor",
         "library's Conv3d ms", "torch's Conv3d ms", "torch's Linear ms",
         "times faster than the library's Conv3d", "times faster than torch's Conv3d"], rows))


def tower_table(records):
    rows = []
    for key, ways in groups(records, "tower", first_word, lambda r: r["patches"]).items():
        chunk, call, stream, limit, floor = (ways.get(w) for w in (
            "encode", "whole call", "streamed", "limit", "floor"))
        ours = chunk or stream  # of a clip of several chunks there is the stream alone
        if ours is None:
            continue
        peers = [ways.get(w) for w in ("transformers", "transformers linear", "compiled torch")]
        rows.append([key[0], str(key[1]), key[2], machine_text(ways.values()), ms(chunk), ms(call),
                     ms(stream), field(stream, "us_per_patch"), ms(limit),
                     over(ours, limit) or field(ours, "over_limit"),
                     over(ours, floor) or field(ours, "over_floor")] + [ms(p) for p in peers]
                    + [bold(over(peers[0], ours)), bold(over(peers[2], ours))])
    return rows and table(*drop_empty(
        ["tower", "patches", "dtype", "machine", "qwenvit ms", "whole call ms", "in a stream ms",
         "of it us a patch", "limit ms", "over limit", "over floor", "transformers ms",
         "with its linear patch embedding", "compiled torch ms", "times faster than transformers",
         "than compiled torch"], rows))


CALLS = ["whole call", "streamed", "whole call, pageable", "whole call, f32 tokens",
         "whole call, pixel_values", "device call", "device call, bf16 pixel_values"]


def call_table(records):
    """A chunk as callers see it, over its work on the device in the same run."""
    rows = []
    for key, ways in groups(records, "tower", first_word, lambda r: r["patches"]).items():
        calls = {w: ways[w] for w in CALLS if "memory" in ways.get(w, {})}
        if calls:
            one = next(iter(calls.values()))  # of the same run, as is not every record of "encode"
            rows.append([key[0], str(key[1]), key[2], machine_text(ways.values()),
                         digits(one["median_ms"] / one["over_encode"]), ms(calls.get("whole call"))]
                        + [field(calls.get(w), "over_encode") for w in CALLS])
    return rows and table(*drop_empty(
        ["tower", "patches", "dtype", "machine", "on the device ms", "whole call ms",
         "whole call over the device"] + [w + " over it" for w in CALLS[1:]], rows))


def pack_table(records):
    """Lists of grids in one capacity and another, beside peers that take all of a list at once."""
    peers, rows = groups(records, "tower", lambda r: r["case"]), []
    packed = [r for r in records if r["bench"] == "tower" and r["way"] == "packed"]
    for r in sorted(packed, key=lambda r: (place(r), first_word(r), r["patches"], r["dtype"],
                                           r["capacity"])):
        ways = peers[(r["case"], r["dtype"], place(r))]
        others = [ways.get(w) for w in ("transformers", "transformers linear", "compiled torch")]
        rows.append([first_word(r), str(r["items"]), str(r["patches"]), r["dtype"],
                     machine_text([r]), str(r["capacity"]), str(r["chunks"]), field(r, "fill"),
                     ms(r), digits(r["limit_ms"]), field(r, "over_limit"), field(r, "over_floor"),
                     digits(r["plan_new_ms"])] + [ms(p) for p in others]
                    + [bold(over(others[0], r)), bold(over(others[2], r))])
    return rows and table(*drop_empty(
        ["tower", "items", "patches", "dtype", "machine", "capacity", "chunks", "full",
         "qwenvit ms", "limit ms", "over limit", "over floor", "making the capacity ms",
         "transformers ms", "with its linear patch embedding", "compiled torch ms",
         "times faster than transformers", "than compiled torch"], rows))


def alone_table(records):
    """All items of a list, each by itself: the capacity that it takes, over a plan of its size."""
    rows = []
    for key, ways in groups(records, "tower", first_word, lambda r: r["patches"]).items():
        r = ways.get("all alone")
        if r:
            lone = [x["over_exact"] for x in records if x["bench"] == "tower"
                    and x["way"] == "alone" and (first_word(x), x["dtype"], place(x))
                    == (key[0], key[2], key[3])]
            rows.append([key[0], str(r["items"]), str(key[1]), key[2], machine_text([r]), ms(r),
                         digits(r["exact_ms"]), bold(field(r, "over_exact")),
                         f"{statistics.mean(lone):.2f}", f"{max(lone):.2f}",
                         str(r["capacities"])])
    return rows and table(["tower", "items", "patches", "dtype", "machine", "each by itself ms",
                           "by plans of their sizes ms", "over those", "mean of items",
                           "worst item", "capacities"], rows)


WAYS = ["patchify", "still", "pointwise", "frames", "by depth", "direct"]


def conv3d_tables(records):
    """A table for each machine; the way that qwenvit picks is bold."""
    cases, parts = groups(records, "conv3d", lambda r: r["case"]), []
    for where in sorted({key[-1] for key in cases}):
        here = {k: w for k, w in cases.items() if k[-1] == where}
        own = {w for ways in here.values() for w, r in ways.items() if not is_peer(r)}
        names = [w for w in WAYS if w in own] + sorted(own - set(WAYS))
        rows = []
        for (case, dtype, _), ways in here.items():
            chosen = next((r for r in ways.values() if r.get("chosen")), None)
            peer = fastest([r for r in ways.values() if is_peer(r)])
            best = fastest([ways.get(n) for n in names])
            if best is None:
                continue
            cells = [bold(ms(ways[n])) if ways.get(n) is chosen and chosen else ms(ways.get(n))
                     for n in names]
            rows.append([case, dtype] + cells + [over(chosen, best), ms(peer),
                                                 bold(over(peer, chosen))])
        if rows:
            text = machine_text([r for ways in here.values() for r in ways.values()])
            parts += [f"{text}:", table(*drop_empty(
                ["case", "dtype"] + [n + " ms" for n in names]
                + ["chosen over fastest", "torch's best ms", "times faster than torch"], rows))]
    return "\n\n".join(parts)


def gemm_table(records):
    lines, rows = {}, []
    for r in records:
        if r["bench"] == "gemm" and r["m"] <= SMALL_M:
            name = " ".join([r.get("model", ""), re.sub(r"[, ]*\bm=\d+", "", r["case"])]).strip()
            lines.setdefault((place(r), name, r["way"], r["dtype"]), {})[r["m"]] = r
    for (_, name, way, dtype), by_m in sorted(lines.items()):
        steps = sorted(by_m)
        if len(steps) < 2:
            continue
        times = [by_m[m]["median_ms"] for m in steps]
        jump, i = max((b / a, i) for i, (a, b) in enumerate(zip(times, times[1:])))
        some = by_m[steps[0]]
        flat = max(by_m[m].get("over_m1", by_m[m]["median_ms"] / times[0]) for m in steps)
        rows.append([name, f"{some['k']} x {some['n']}", dtype, machine_text([some]),
                     f"{steps[0]} to {steps[-1]}", ms(by_m[steps[0]]), bold(f"{jump:.2f}"),
                     f"M = {steps[i]} to {steps[i + 1]}", f"{flat:.2f}"])
    return rows and table(["projection", "K x N", "dtype", "machine", "M", "ms at the first",
                           "worst step", "where", "worst over M = 1"], rows)


def preprocess_table(records):
    found, rows = {}, []
    for r in records:
        if r["bench"] == "preprocess":
            found.setdefault((place(r), r["case"]), {})[r["way"]] = r
    for (_, case), ways in sorted(found.items()):
        rates = [ways.get(way, {}).get("frames_per_s") for way in ("decode", "decode-trusted")]
        rows.append([case, machine_text(ways.values()), ms(ways.get("resize")),
                     ms(ways.get("rows")), *(f"{rate:.0f}" if rate else "" for rate in rates)])
    return rows and table(*drop_empty(["work", "machine", "resize a frame, ms",
                                       "patch rows of a frame, ms", "decode and resize, frames/s",
                                       "the same, trusted"], rows))


def job_table(records):
    rows = []
    for (case, dtype, _), ways in groups(records, "job", lambda r: r["case"]).items():
        some = next(iter(ways.values()))

        def bound(way):
            r = ways.get(way)
            return bold(field(r, "over_slowest")), field(r, "over_sum")
        devices = ways.get("devices")  # where there are several, "device" is one of them
        rows.append([case, dtype, machine_text(ways.values()), str(some["cores"]),
                     f"{some['token_bytes'] / 1e9:.2f}",
                     ms(ways.get("decode")), field(ways.get("decode"), "over_bare"),
                     ms(ways.get("device")),
                     field(ways.get("device"), "over_one_by_one"), ms(devices),
                     field(devices, "times_one"), ms(ways.get("files")), ms(ways.get("parts")),
                     ms(ways.get("discard")), *bound("discard"), ms(ways.get("encode")),
                     *bound("encode"), ms(ways.get("cache")), *bound("cache")])
    head = ["work", "dtype", "machine", "cores", "GB of tokens", "decoding alone ms",
            "over a bare loop", "one device alone ms", "over one by one", "all devices alone ms",
            "times one", "files alone ms", "parts alone ms"]
    for way in ("discarded", "a file a clip", "a cache"):
        head += [f"job, {way} ms", "over the slowest", "over their sum"]
    return rows and table(*drop_empty(head, rows))


def start_table(records):
    rows = []
    for (case, dtype, _), ways in groups(records, "start", lambda r: r["case"]).items():
        times = [x for way in ("encode", "info") for r in [ways.get(way)]
                 for x in (ms(r), digits(r["first_ms"]) if r else "")]
        rows.append([case, dtype, machine_text(ways.values())] + times)
    return rows and table(["work", "dtype", "machine", "encode ms", "the first time", "info ms",
                           "the first time"], rows)


def cache_table(records):
    rows = []
    for (case, _, _), ways in groups(records, "cache", lambda r: r["case"]).items():
        resume = ways.get("resume")
        rows.append([case, machine_text(ways.values()), ms(resume),
                     digits(resume["cpu_s"]) if resume else "",
                     f"{resume['peak_bytes'] / 1e6:.0f}" if resume else "", ms(ways.get("open")),
                     digits(1e3 * ways["find"]["median_ms"]) if "find" in ways else ""])
    return rows and table(["work", "machine", "a run with nothing to do, ms", "CPU s",
                           "its memory at most, MB", "opening, ms", "finding a key, us"], rows)


def profile_table(records):
    ops, rows = {}, []
    for r in records:
        if r["bench"] == "profile":
            ops.setdefault((place(r), r["dtype"]), {}).setdefault(r.get("op", "?"), []).append(r)
    for (_, dtype), kinds in sorted(ops.items()):
        total = sum(r["median_ms"] for rs in kinds.values() for r in rs)
        times = {op: sum(r["median_ms"] for r in rs) for op, rs in kinds.items()}
        for op in sorted(times, key=lambda o: (-times[o], o)):
            roofline = [r["roof_share"] * r["median_ms"] for r in kinds[op] if "roof_share" in r]
            share = f"{100 * sum(roofline) / times[op]:.0f} %" if roofline and times[op] else ""
            rows.append([op, dtype, machine_text(kinds[op]), str(len(kinds[op])),
                         digits(times[op]), f"{100 * times[op] / total:.1f} %", share])
    return rows and table(["operation", "dtype", "machine", "calls", "ms", "share of the time",
                           "of the roofline"], rows)


OWN_STREAM = ", own stream"  # of a way of python/bench/patched.py


def python_table(records):
    """A row for each stream; what torch does beside it was timed once."""
    rows = []
    for key, ways in groups(records, "python", first_word, lambda r: r["patches"]).items():
        theirs, compiled = ways.get("transformers"), ways.get("compiled torch")
        for suffix, stream in (("", "torch's default"), (OWN_STREAM, "given to load()")):
            patched, forward, c = (ways.get(w + suffix) for w in (
                "qwenvit.patch", "Model.forward", "C call"))
            if patched is None and forward is None:
                continue
            rows.append([key[0], str(key[1]), key[2], machine_text(ways.values()),
                         stream if len({w.endswith(OWN_STREAM) for w in ways}) > 1 else "",
                         ms(theirs), ms(compiled), ms(patched), ms(forward), ms(c),
                         field(patched, "adds_ms"), field(forward, "adds_ms"),
                         field(patched, "host_ms"), field(forward, "host_ms"),
                         field(c, "host_ms"), bold(over(theirs, patched)),
                         bold(over(compiled, patched))])
    return rows and table(*drop_empty(
        ["tower", "patches", "dtype", "machine", "stream", "transformers ms", "compiled torch ms",
         "patched ms", "Model.forward ms", "the call in C ms", "patched adds ms",
         "Model.forward adds ms", "patched returns after ms", "Model.forward returns after ms",
         "the call in C returns after ms", "patched: times faster than transformers",
         "than compiled torch"], rows))


def actors_table(records):
    rows = []
    for (case, dtype, _), ways in groups(records, "actors", lambda r: r["case"]).items():
        one, all_ = ways.get("one device"), ways.get("all devices")
        if one and all_:
            rows.append([case, dtype, machine_text([one]), all_["by"], str(all_["cores"]),
                         str(all_["devices"]), *(digits(r[k]) for k in ("clips_per_s", "tokens_per_s")
                                                 for r in (one, all_)),
                         digits(all_["start_s"]), bold(f"{all_['times_one']:.2f}")])
    return rows and table(
        ["work", "dtype", "machine", "by", "cores of an actor", "devices", "clips/s of one",
         "clips/s of all", "tokens/s of one", "tokens/s of all", "starting an actor, s",
         "times one"], rows)


def encode_table(root):
    """Medians of the runs of one clip on one machine, decoded in a process or in a thread."""
    found, rows = {}, []
    for r in runs(root, "encode-"):
        key = (r["clip"], f"{r['tokens']} x {r['width']}", r["precision"], r["machine"]["device"],
               str(r["cores"]))
        found.setdefault(key, {}).setdefault(r.get("decoder", "thread"), []).append(r)
    for key, ways in sorted(found.items()):
        def median(way, field):
            return statistics.median(r[field] for r in ways[way])
        for way in sorted(ways):
            over = (f"{median(way, 'seconds') / median('thread', 'seconds'):.3f}"
                    if way == "process" and "thread" in ways else "")
            rows.append([*key, way, str(len(ways[way])),
                         *(digits(median(way, f)) for f in ("seconds", "decode_s", "wait_device_s",
                                                            "write_s")),
                         f"{median(way, 'over_slowest_stage'):.2f}",
                         digits(median(way, "frames_per_s") / int(key[-1])), over])
    return rows and table(*drop_empty(
        ["clip", "tokens", "dtype", "machine", "cores", "decoded in a", "runs", "whole, s",
         "decoding and resizing, s", "waited for the device, s", "writing, s",
         "whole over its slowest stage", "frames a second and core", "whole over a thread's"],
        rows))


def against_table(root):
    rows = []
    for run in verify_runs(root, "against"):
        def worst(field, of=None):
            return max(r[field] / (r[of] if of else 1) for r in run["rows"]
                       if (r["bar_mean"] is not None if of else r["dtype"] == "f32"))
        rows.append([run["verify"], run["machine"]["device"], f"{worst('worst'):.1e}",
                     f"{worst('mean', 'yardstick_mean'):.2f} / "
                     f"{worst('worst', 'yardstick_worst'):.2f}",
                     f"{len(run['rows'])} rows, all pass" if run["ok"] else "FAILS"])
    return rows and table(
        ["tower", "machine", "f32: worst row of any layer (below 2e-5)",
         "bf16 over transformers' own bf16 on the same device, tokens and DeepStack: mean / worst "
         "(below 1.05)", "result"], rows)


def verify_table(root):
    rows = []
    for run in verify_runs(root, "definition"):
        def of(check, dtype, field):
            return [r[field] for r in run["rows"]
                    if r["check"] == check and r["dtype"] == dtype]

        def ratio(which):
            return max(a / b for a, b in zip(of("rounding", "bf16", which),
                                             of("rounding", "bf16", "yardstick_" + which)))
        exact = sum(r["ok"] for r in run["rows"] if r["check"] in ("repeat", "layouts"))
        rows.append([run["verify"], run["pixels"], run["machine"]["device"],
                     f"{max(of('definition', 'f32', 'max_abs')):.1e}",
                     f"{max(of('definition', 'f32', 'worst')):.1e}",
                     f"{1 - min(of('definition', 'bf16', 'worst_cosine')):.1e}",
                     f"{ratio('mean'):.3f} / {ratio('worst'):.3f}",
                     f"{1 - min(of('rounding', 'bf16', 'pooled_cosine')):.1e}", str(exact),
                     f"{len(run['rows'])} rows, all pass" if run["ok"] else "FAILS"])
    return rows and table(
        ["tower", "pixels", "machine", "Conv3d by definition, f32: largest difference",
         "worst row", "bf16: 1 - worst cosine",
         "bf16 over the ideal bf16 tower, largest of all layers: mean / worst",
         "1 - worst pooled cosine", "runs and layouts equal to the bit", "result"], rows)


# ---- tables of side by side runs ---------------------------------------------------------------

def speed_tables(root):
    tower, pixels = [], []
    for run in load(root, "speed-*.json"):
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
    parts = []
    if tower:
        parts += [
            "Tower, medians of one run side by side. Limit: the same GEMMs (without bias, GELU "
            "and residual) and the same attention alone, each layer with its own weights.",
            table(["tower", "dtype", "patches", "machine", "transformers ms", "qwenvit ms",
                   "times faster", "over limit", "plan new / seen ms"], tower)]
    if pixels:
        parts += [
            "Preprocessing a frame: torchvision and transformers' processor / qwenvit, ms (times "
            "faster).",
            table(["frames", "machine", "resize", "patch rows"], pixels)]
    return "\n\n".join(parts)


def parity_table(root):
    rows = []
    for run in load(root, "parity-*.json"):
        clips = [c for c in run["clips"] if "rows" in c]
        for dtype in ("f32", "bf16"):
            all_rows = [r for c in clips for r in c["rows"] if r["dtype"] == dtype]
            if not all_rows:
                continue
            ratio = "" if dtype == "f32" else "{:.2f} / {:.2f}".format(
                max(r["mean_ratio"] for r in all_rows), max(r["worst_ratio"] for r in all_rows))
            packed = [len(c["grid"]) for c in clips if isinstance(c["grid"][0], list)]
            count = f"{packed[0]} in a pack" if packed else str(len(clips))
            rows.append([run["model"], dtype, count, run.get("gpu") or run["cpu"],
                         f"{max(r['mean'] for r in all_rows):.1e}",
                         f"{max(r['worst'] for r in all_rows):.1e}", ratio or "(below 2e-5)",
                         "yes" if all(r["ok"] for r in all_rows) else "NO"])
    return rows and "\n\n".join([
        "The same model? Distance per token to transformers in f32 on the same bf16-rounded "
        "weights, the largest over all clips, tokens and DeepStack outputs; for bf16 also over "
        "transformers' own bf16 distance, which must stay below 1.05.",
        table(["tower", "dtype", "clips", "machine", "mean", "worst token",
               "mean / worst over transformers'", "agrees"], rows)])
