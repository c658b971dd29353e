# SPDX-License-Identifier: MIT
"""Makes tables in Markdown of what was measured, one a function. A table without records is ""."""
import re
import statistics

from measured import (BY_GPU, TOWERS, case, digits, fastest, groups, is_by_gpu, is_peer, load, of_day, place,
                      runs, short_version, tower, transformers_best, verify_runs)

SMALL_M = 16  # a "small" GEMM has so many rows at most
LIFTED = ("dtype", "version", "machine")  # a sentence replaces these columns if all rows agree


# ---- writing -----------------------------------------------------------------------------------

def table(head, rows):
    """Returns a table in Markdown without empty columns. A column of LIFTED that is equal in all rows is said
    once, above the table."""
    if not rows:
        return ""
    keep = [i for i in range(len(head)) if any(r[i] for r in rows)]
    said = [i for i in keep if head[i] in LIFTED and len({r[i] for r in rows}) == 1]
    keep = [i for i in keep if i not in said]
    lines = [[row[i] for i in keep] for row in [head] + rows]
    lines.insert(1, ["---"] * len(keep))
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    words = ", ".join(f"{head[i]} {rows[0][i]}" for i in said)
    return f"All rows: {words}.\n\n{text}" if words else text


def ms(record):
    """Returns a record's milliseconds, or "" for None."""
    return "" if record is None else digits(record["median_ms"])


def over(a, b):
    """Returns a's time divided by b's, or "" if one is None."""
    if a is None or b is None or not b["median_ms"]:
        return ""
    x = a["median_ms"] / b["median_ms"]
    return f"{x:.0f}" if x >= 100 else f"{x:.1f}" if x >= 10 else f"{x:.2f}"


def field(record, name):
    """Returns a field of a record to two decimals, or "" if it has none."""
    return f"{record[name]:.2f}" if record and name in record else ""


def bold(text):
    return f"**{text}**" if text else ""


def versions(records):
    """Returns the versions of qwenvit in some records, each once."""
    return "; ".join(sorted({short_version(r) for r in records if r and not is_peer(r)}))


def both(*parts):
    return "\n\n".join(p for p in parts if p)


# ---- tables of records -------------------------------------------------------------------------

def patch_embed_table(records):
    beside, bounds = [], []
    for key, ways in groups(records, "patch-embed", tower, lambda r: r["rows"]).items():
        ways = of_day(ways, ways.get("patchify"))
        gemm, pixels, bare, own, peer, linear = (ways.get(w) for w in (
            "patchify", "patchify from bytes", "GEMM alone", "direct", "torch conv3d",
            "torch linear"))
        if gemm is None:
            continue
        first = [key[0], f"{key[1]:,}", key[2]]
        beside.append(first + [ms(gemm), ms(own), ms(peer), ms(linear), bold(over(own, gemm)),
                               bold(over(peer, gemm)), versions([gemm])])
        if bare:
            bounds.append(first + [ms(gemm), ms(bare), over(gemm, bare), ms(pixels),
                                   field(pixels, "over_floor"), versions([gemm])])
    rows = ["tower", "patches", "dtype", "as a GEMM, ms"]
    return both(table(rows + ["library's Conv3d, ms", "torch's Conv3d, ms", "torch's Linear, ms",
                              "times faster than the library's Conv3d", "than torch's Conv3d",
                              "version"], beside),
                table(rows + ["bare GEMM, ms", "over it", "from bytes, ms", "over its floor",
                              "version"], bounds))


def others(ways, ours):
    """Returns four cells: the times of transformers' best way and of compiled torch, and how much faster ours is."""
    ways = of_day(ways, ours)
    best, torch = transformers_best(ways), ways.get("compiled torch")
    return [ms(best), ms(torch), bold(over(best, ours)), bold(over(torch, ours))]


OTHERS = ["transformers, ms", "compiled torch, ms", "times faster than transformers",
          "than compiled torch"]


def tower_table(records):
    beside, bounds = [], []
    for key, ways in groups(records, "tower", tower, lambda r: r["patches"]).items():
        chunk, call, stream, limit, floor = (ways.get(w) for w in (
            "encode", "whole call", "streamed", "limit", "floor"))
        ours = chunk or stream  # a clip of several chunks was timed as a stream only
        if ours is None:
            continue
        first, rest = [key[0], f"{key[1]:,}", key[2], ms(chunk)], others(ways, ours)
        if any(rest):
            beside.append(first + rest + [versions([ours])])
        bounds.append(first + [ms(limit), over(ours, limit) or field(ours, "over_limit"),
                               over(ours, floor) or field(ours, "over_floor"), ms(call), ms(stream),
                               field(stream, "us_per_patch"),
                               versions([chunk, call, stream])])
    head = ["tower", "patches", "dtype", "qwenvit, ms"]
    return both(table(head + OTHERS + ["version"], beside),
                table(head + ["limit, ms", "over limit", "over floor", "whole call, ms",
                              "in a stream, ms", "us a patch", "version"], bounds))


def stored_table(records):
    """Makes the table of towers whose weights stay quantised, over the same tower widened, in the same run."""
    runs = sorted((r for r in records if "over_widened" in r),
                  key=lambda r: (place(r), tower(r), r["patches"], r["stored"]))
    return table(["tower", "patches", "weights", "stored, ms", "widened at load, ms", "stored over widened",
                  "weights in memory over widened", "version"],
                 [[tower(r), f"{r['patches']:,}", r["stored"], ms(r), digits(r["widened_ms"]),
                   f"{r['over_widened']:.3f}", f"{r['weight_bytes'] / r['widened_weight_bytes']:.2f}", versions([r])]
                  for r in runs])


CALLS = ["whole call", "streamed", "whole call, pageable", "whole call, f32 tokens",
         "whole call, pixel_values", "device call", "device call, bf16 pixel_values"]


def call_table(records):
    """Makes the table of a chunk as callers see it, over its work on the device in the same run."""
    rows = []
    for key, ways in groups(records, "tower", tower, lambda r: r["patches"]).items():
        calls = {w: ways[w] for w in CALLS if "memory" in ways.get(w, {})}
        if calls:
            one = next(iter(calls.values()))  # its over_encode is of its own run
            rows.append([key[0], f"{key[1]:,}", key[2],
                         digits(one["median_ms"] / one["over_encode"]), ms(calls.get("whole call"))]
                        + [field(calls.get(w), "over_encode") for w in CALLS] + [versions([one])])
    return table(["tower", "patches", "dtype", "on the device, ms", "whole call, ms",
                  "whole call over the device", "streamed", "pageable memory", "f32 tokens",
                  "pixel_values", "device call", "device call, bf16", "version"], rows)


def packed_records(records):
    return sorted((r for r in records if r["bench"] == "tower" and r["way"] == "packed"),
                  key=lambda r: (place(r), tower(r), r["patches"], r["dtype"], r["capacity"]))


def pack_table(records):
    """Makes the tables of lists at each capacity, beside peers that take a whole list at once."""
    peers, beside, bounds = groups(records, "tower", case), [], []
    for r in packed_records(records):
        first = [tower(r), str(r["items"]), f"{r['patches']:,}", r["dtype"], f"{r['capacity']:,}",
                 ms(r)]
        rest = others(peers[(case(r), r["dtype"], place(r))], r)
        if any(rest):
            beside.append(first + rest + [versions([r])])
        bounds.append(first + [str(r["chunks"]), field(r, "fill"), digits(r["limit_ms"]),
                               field(r, "over_limit"), field(r, "over_floor"),
                               digits(r["plan_new_ms"]), versions([r])])
    head = ["tower", "items", "patches", "dtype", "chunk, rows", "qwenvit, ms"]
    return both(table(head + OTHERS + ["version"], beside),
                table(head + ["chunks", "full", "limit, ms", "over limit", "over floor",
                              "making the plan, ms", "version"], bounds))


def alone_table(records):
    """Makes the table of lists whose items are encoded one by one, over plans of their very sizes."""
    rows = []
    for key, ways in groups(records, "tower", tower, lambda r: r["patches"]).items():
        r = ways.get("all alone")
        if r:
            lone = [x["over_exact"] for x in records if x["bench"] == "tower"
                    and x["way"] == "alone" and (tower(x), x["dtype"], place(x))
                    == (key[0], key[2], key[3])]
            rows.append([key[0], str(r["items"]), f"{key[1]:,}", key[2], ms(r),
                         digits(r["exact_ms"]), bold(field(r, "over_exact")),
                         f"{statistics.mean(lone):.2f}", f"{max(lone):.2f}",
                         str(r["capacities"]), versions([r])])
    return table(["tower", "items", "patches", "dtype", "each by itself, ms",
                  "in plans of their sizes, ms", "over those", "mean of the items", "worst item",
                  "buckets used", "version"], rows)


def conv3d_table(records):
    """Makes the table of Conv3d: for each case the lowering that is chosen over the fastest, and torch. A
    paragraph above it counts the cases in which another lowering was faster."""
    rows, ratios = [], []
    for (name, dtype, _), ways in groups(records, "conv3d", case).items():
        own = [r for r in ways.values() if not is_peer(r)]
        chosen = next((r for r in own if r.get("chosen")), None)
        best = fastest(own)
        if chosen is None:
            continue
        peer = fastest([r for r in of_day(ways, chosen).values() if is_peer(r)])
        name = re.sub(r"^patch embed (\S+)", lambda m: "patch embed of " + TOWERS.get(m[1], m[1]), name)
        ratios.append((chosen["median_ms"] / best["median_ms"], name, dtype))
        rows.append([name, dtype, chosen["way"], ms(chosen), "" if best is chosen else best["way"],
                     "" if best is chosen else ms(best), over(chosen, best), ms(peer),
                     bold(over(peer, chosen)), versions([chosen])])
    if not rows:
        return ""
    worst, name, dtype = max(ratios)
    slower = sum(ratio > 1.05 for ratio, _, _ in ratios)
    said = (f"In {len(ratios) - slower} of {len(ratios)} cases the chosen lowering takes at most 1.05 times "
            f"the fastest; the worst is {worst:.2f} times ({name}, {dtype}).")
    return both(said, table(["case", "dtype", "chosen", "ms", "faster is", "its ms",
                             "chosen over fastest", "torch's best, ms", "times faster than torch",
                             "version"], rows))


def gemm_table(records):
    lines, rows = {}, []
    for r in records:
        if r["bench"] == "gemm" and r["m"] <= SMALL_M:
            model = r.get("model", "")
            name = re.sub(r"[, ]*\bm=\d+", "", f"{TOWERS.get(model, model)} {case(r)}").strip()
            lines.setdefault((place(r), name, r["way"], r["dtype"]), {})[r["m"]] = r
    for (_, name, way, dtype), by_m in sorted(lines.items()):
        steps = sorted(by_m)
        if len(steps) < 2:
            continue
        times = [by_m[m]["median_ms"] for m in steps]
        jump, i = max((b / a, i) for i, (a, b) in enumerate(zip(times, times[1:])))
        some = by_m[steps[0]]
        flat = max(by_m[m].get("over_m1", by_m[m]["median_ms"] / times[0]) for m in steps)
        read = f"{some['over_copy']:.2f}" if "over_copy" in some else ""
        rows.append([name, f"{some['k']} x {some['n']}", dtype, "" if way == "gemm" else way,
                     f"{steps[0]} to {steps[-1]}", ms(by_m[steps[0]]), read, bold(f"{jump:.2f}"), f"{steps[i]} to {steps[i + 1]} rows",
                     f"{flat:.2f}", versions([some])])
    return table(["projection", "K x N", "dtype", "weights", "rows", "first, ms",
                  "over copying its weights", "worst step", "where", "worst over one row", "version"],
                 rows)


def preprocess_table(records):
    found, rows = {}, []
    for r in records:
        if r["bench"] == "preprocess":
            found.setdefault((place(r), r["case"]), {})[r["way"]] = r
    for (_, name), ways in sorted(found.items()):
        rates = [ways.get(way, {}).get("frames_per_s") for way in ("decode", "decode-trusted")]
        rows.append([name, ms(ways.get("resize")), ms(ways.get("rows")),
                     *(f"{rate:.0f}" if rate else "" for rate in rates), versions(ways.values())])
    return table(["work", "resize a frame, ms", "patch rows of a frame, ms",
                  "decode and resize, frames a second", "the same, trusted", "version"], rows)


JOB_WAYS = [("bare", "FFmpeg in a bare loop"), ("decode", "decoding alone"),
            ("one by one", "the device alone, clip by clip"), ("device", "one device alone"),
            ("devices", "all devices alone"), ("files", "writing a file a clip, alone"),
            ("parts", "writing a cache, alone"), ("discard", "**the job, tokens discarded**"),
            ("encode", "**the job, a file a clip**"), ("cache", "**the job, a cache**")]


def job_table(records):
    """Makes a table for each list of clips: the stages alone, then the jobs."""
    parts = []
    for (name, dtype, _), ways in groups(records, "job", case).items():
        if is_by_gpu(ways):
            continue
        some = next(iter(ways.values()))
        rows = [[what, ms(r), f"{r['clips_per_s']:.0f}" if r.get("clips_per_s", 0) >= 10
                 else field(r, "clips_per_s"), bold(field(r, "over_slowest")), field(r, "over_sum"),
                 versions([r])]
                for way, what in JOB_WAYS for r in [ways.get(way)] if r]
        parts += [f"{name}, {dtype}, {some['cores']} cores, {some['token_bytes'] / 1e9:.2f} GB of tokens.",
                  table(["what", "ms", "clips a second", "over its slowest stage",
                         "over the stages' sum", "version"], rows)]
    return both(*parts)


GPU_WAYS = [("bare", "NVIDIA's library in one process"), ("gpu", "a GPU decoding alone"),
            ("decode", "decoding alone, as in the job"), ("device", "the tower alone"),
            ("cpu", "**the job, decoded by the cores**"), ("discard", "**the job with --decode %s**")]


def rate_of(record):
    rate = record["clips_per_s"]
    return f"{rate:.1f}" if rate < 100 else f"{rate:.0f}"


def by_gpu_table(records):
    """Makes a table of jobs whose clips a GPU decodes, and one of the tower beside decoders."""
    rows, beside = [], []
    for (name, dtype, _), ways in groups(records, "job", case).items():
        if not is_by_gpu(ways):
            continue
        work = [name.removesuffix(BY_GPU[0]).removesuffix(BY_GPU[1]), dtype]
        for way, what in GPU_WAYS:
            r = ways.get(way)
            if r and (way != "device" or "discard" in ways):
                clips = f"{r['gpu_clips']} of {r['clips']}" if way == "discard" else ""
                what = what % r["decode"] if "%" in what else what
                rows.append(work + [str(r["cores"]), what, clips, ms(r), rate_of(r), f"{1e3 * r['cpu_s_per_clip']:.0f}",
                                    bold(field(r, "over_bare")), bold(field(r, "times_cpu")),
                                    bold(field(r, "cpu_time_over_cpu")), bold(field(r, "over_slowest")),
                                    f"{r['peak_bytes'] / 1e6:.0f}" if "peak_bytes" in r else "", versions([r])])
        beside += [work + [way.replace("beside", "").strip() or way, digits(1e3 * r["device_s"] / r["chunks"]),
                           bold(field(r, "over_device")), f"{r['beside_frames_per_s']:,.0f}", versions([r])]
                   for way, r in ways.items() if "beside_frames_per_s" in r]
    return both(table(["work", "dtype", "cores", "what", "clips by the GPU", "ms", "clips a second", "of the cores a clip, ms",
                       "over the bare loop", "times the cores' job", "of the cores, over it",
                       "over its slowest stage", "host's memory at most, MB", "version"], rows),
                table(["work", "dtype", "processes x streams beside it", "a chunk, ms", "over the tower alone",
                       "frames decoded a second", "version"], beside))


def start_table(records):
    rows = []
    for (name, dtype, _), ways in groups(records, "start", case).items():
        times = [x for way in ("encode", "info") for r in [ways.get(way)]
                 for x in (ms(r), digits(r["first_ms"]) if r else "")]
        rows.append([name, dtype] + times + [versions(ways.values())])
    return table(["work", "dtype", "encode, ms", "the first time, ms", "info, ms",
                  "the first time, ms", "version"], rows)


def cache_table(records):
    rows = []
    for (name, _, _), ways in groups(records, "cache", lambda r: r["case"]).items():
        resume = ways.get("resume")
        rows.append([name, ms(resume), digits(resume["cpu_s"]) if resume else "",
                     f"{resume['peak_bytes'] / 1e6:.0f}" if resume else "", ms(ways.get("open")),
                     digits(1e3 * ways["find"]["median_ms"]) if "find" in ways else "",
                     versions(ways.values())])
    return table(["work", "a run with nothing to do, ms", "of the CPU, s", "its memory at most, MB",
                  "opening, ms", "finding a key, us", "version"], rows)


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
            share = f"{100 * sum(roofline) / times[op]:.0f}" if roofline and times[op] else ""
            rows.append([op, dtype, str(len(kinds[op])), digits(times[op]),
                         f"{100 * times[op] / total:.1f}", share, versions(kinds[op])])
    return table(["operation", "dtype", "calls", "ms", "share of the time, %",
                  "of the roofline, %", "version"], rows)


OWN_STREAM = ", own stream"  # ends the names of some ways of python/bench/patched.py


def python_table(records):
    """Makes the tables of Python's calls, a row a stream; torch beside it was timed once."""
    beside, adds = [], []
    for key, ways in groups(records, "python", tower, lambda r: r["patches"]).items():
        for suffix, stream in (("", "torch's default"), (OWN_STREAM, "given to load()")):
            patched, forward, c = (ways.get(w + suffix) for w in (
                "qwenvit.patch", "Model.forward", "C call"))
            if patched is None and forward is None:
                continue
            first = [key[0], f"{key[1]:,}", key[2], stream, ms(patched)]
            beside.append(first + others(ways, patched) + [versions([patched, forward])])
            adds.append(first + [ms(forward), ms(c), field(patched, "adds_ms"),
                                 field(forward, "adds_ms"), field(patched, "host_ms"),
                                 field(forward, "host_ms"), field(c, "host_ms")])
    head = ["tower", "patches", "dtype", "stream", "patched, ms"]
    return both(table(head + OTHERS + ["version"], beside),
                table(head + ["Model.forward, ms", "C, ms", "patched adds, ms", "forward adds, ms",
                              "patched returns after, ms", "forward, ms", "C's, ms"], adds))


def actors_table(records):
    rows = []
    for (name, dtype, _), ways in groups(records, "actors", case).items():
        one, all_ = ways.get("one device"), ways.get("all devices")
        if one and all_:
            rows.append([name, dtype, all_["by"], str(all_["cores"]), str(all_["devices"]),
                         *(digits(r["clips_per_s"]) for r in (one, all_)),
                         *(f"{r['tokens_per_s']:,.0f}" for r in (one, all_)),
                         digits(all_["start_s"]), bold(f"{all_['times_one']:.2f}"),
                         versions([one])])
    return table(["work", "dtype", "by", "cores of an actor", "devices", "clips a second of one",
                  "of all", "tokens a second of one", "of all", "starting an actor, s", "times one",
                  "version"], rows)


# ---- tables of runs of the command -------------------------------------------------------------

def encode_table(root, here):
    """Makes the table of single clips: medians of the runs on the machines that `here` accepts."""
    found, rows = {}, []
    for r in runs(root, "encode-"):
        if here(place(r)):
            key = (r["clip"].replace(", tiny tower", ", a tiny tower"),
                   f"{r['tokens']:,} x {r['width']}", r["precision"], str(r["cores"]))
            found.setdefault(key, {}).setdefault(r.get("decoder", "thread"), []).append(r)
    for key, ways in sorted(found.items()):
        def median(way, name):
            return statistics.median(r[name] for r in ways[way])

        def decoded_per_s(r):  # records before 0.3.0's last ones name it
            return r["frames_per_s"] if "frames_per_s" in r else r["source_frames"] / r["decode_s"]
        for way in sorted(ways):
            rate = statistics.median(decoded_per_s(r) for r in ways[way])
            rows.append([*key, way, *(digits(median(way, f)) for f in ("seconds", "decode_s", "wait_device_s",
                                                                       "write_s")),
                         f"{median(way, 'over_slowest_stage'):.2f}",
                         digits(rate / int(key[-1])), versions(ways[way])])
    return table(["clip", "tokens", "dtype", "cores", "decoded in a", "whole, s", "decoding, s",
                  "waited for the device, s", "writing, s", "over its slowest stage",
                  "frames a second and core", "version"], rows)


def against_table(root):
    rows = []
    for run in verify_runs(root, "against"):
        def worst(name, of=None):
            return max(r[name] / (r[of] if of else 1) for r in run["rows"]
                       if (r["bar_mean"] is not None if of else r["dtype"] == "f32"))
        rows.append([TOWERS.get(run["verify"], run["verify"]), place(run), f"{worst('worst'):.1e}",
                     f"{worst('mean', 'yardstick_mean'):.2f} / "
                     f"{worst('worst', 'yardstick_worst'):.2f}",
                     f"{len(run['rows'])} rows, all pass" if run["ok"] else "FAILS",
                     versions([run])])
    return table(["tower", "machine", "f32: worst row of any layer (below 2e-5)",
                  "bf16 over transformers' own bf16, mean / worst (below 1.05)", "result",
                  "version"], rows)


def verify_table(root):
    rows = []
    for run in verify_runs(root, "definition"):
        def of(check, dtype, name):
            return [r[name] for r in run["rows"]
                    if r["check"] == check and r["dtype"] == dtype]

        def ratio(which):
            return max(a / b for a, b in zip(of("rounding", "bf16", which),
                                             of("rounding", "bf16", "yardstick_" + which)))
        exact = sum(r["ok"] for r in run["rows"] if r["check"] in ("repeat", "layouts"))
        rows.append([TOWERS.get(run["verify"], run["verify"]), place(run),
                     f"{max(of('definition', 'f32', 'max_abs')):.1e}",
                     f"{max(of('definition', 'f32', 'worst')):.1e}",
                     f"{1 - min(of('definition', 'bf16', 'worst_cosine')):.1e}",
                     f"{ratio('mean'):.3f} / {ratio('worst'):.3f}",
                     f"{1 - min(of('rounding', 'bf16', 'pooled_cosine')):.1e}", str(exact),
                     f"{len(run['rows'])} rows, all pass" if run["ok"] else "FAILS",
                     versions([run])])
    return table(["tower", "machine", "Conv3d by definition, f32: largest difference", "worst row",
                  "bf16: 1 - worst cosine", "bf16 over the ideal bf16 tower, mean / worst",
                  "1 - worst pooled cosine", "runs and layouts equal to the bit", "result",
                  "version"], rows)


# ---- tables of side by side runs ---------------------------------------------------------------

def speed_tables(root, here):
    """Makes the tables of tools/reference/bench_side_by_side.py, of the machines that `here` accepts."""
    towers, pixels = [], []
    for run in load(root, "speed-*.json"):
        if not here(f"{run['cpu'].split(' with ')[0]}, {run['threads']} threads"):
            continue
        for r in run["results"]:
            ours = r.get("qwenvit")
            if not ours:
                continue
            if r["what"] == "tower":
                towers.append([TOWERS[run["model"]], r["dtype"], f"{r['patches']:,}", run["cpu"],
                               f"{r['transformers_ms']:.0f}", f"{ours['median_ms']:.0f}",
                               f"**{r['speedup']:.2f}**", f"{r['over_limit']:.2f}",
                               f"{ours['plan_new_ms']:.0f}"])
            else:
                theirs = r["transformers"]
                size = "{1}x{0} to {3}x{2}".format(*r["source"], *r["target"])
                pixels.append([size, run["cpu"]] + [
                    x for k in ("resize_ms_per_frame", "rows_ms_per_frame")
                    for x in (f"{theirs[k]:.2f}", f"{ours[k]:.2f}", f"**{theirs[k] / ours[k]:.1f}**")])
    return both(table(["tower", "dtype", "patches", "machine", "transformers, ms", "qwenvit, ms",
                       "times faster", "over limit", "making the plan, ms"], towers),
                table(["a frame of", "machine", "resizing: torchvision, ms", "qwenvit, ms",
                       "times faster", "patch rows: transformers, ms", "qwenvit, ms",
                       "times faster"], pixels))


def parity_rows(root):
    """Yields (run, dtype, its rows, how many clips) of tools/reference/parity.py."""
    for run in load(root, "parity-*.json"):
        clips = [c for c in run["clips"] if "rows" in c]
        for dtype in ("f32", "bf16"):
            found = [r for c in clips for r in c["rows"] if r["dtype"] == dtype]
            packed = [len(c["grid"]) for c in clips if isinstance(c["grid"][0], list)]
            if found:
                yield run, dtype, found, f"{packed[0]} in a pack" if packed else str(len(clips))


def parity_table(root):
    rows = []
    for run, dtype, found, clips in parity_rows(root):
        ratio = "" if dtype == "f32" else "{:.2f} / {:.2f}".format(
            max(r["mean_ratio"] for r in found), max(r["worst_ratio"] for r in found))
        rows.append([TOWERS.get(run["model"], run["model"]), dtype, clips,
                     run.get("gpu") or run["cpu"], f"{max(r['mean'] for r in found):.1e}",
                     f"{max(r['worst'] for r in found):.1e}", ratio or "(below 2e-5)",
                     "yes" if all(r["ok"] for r in found) else "NO", run["commit"]])
    return table(["tower", "computed in", "clips", "machine", "mean", "worst token",
                  "mean / worst over transformers'", "agrees", "commit"], rows)
