# SPDX-License-Identifier: MIT
"""Tables of what tools/reference/gguf_parity.py, tools/peers/mtmd_steps.py and mtmd.py appended to
docs/measurements/gguf-*.jsonl."""
from measured import runs
from record_tables import digits, table

TYPES = ["F32", "BF16", "F16", "Q8_0", "Q6_K", "Q5_K", "Q5_1", "Q5_0", "Q4_K", "Q4_1", "Q4_0"]


def latest(root, what, *keys):
    """The last record of each (tower, ..), in the order of the types."""
    found = {tuple(r[k] for k in ("tower", *keys)): r for r in runs(root, "gguf-") if r["what"] == what}
    return dict(sorted(found.items(), key=lambda item: (item[0][0], TYPES.index(item[1]["type"]), item[0])))


def by_type(root, cell):
    """A row a type, a column a tower."""
    records = latest(root, "tokens", "type")
    towers = sorted({tower for tower, _ in records})
    rows = [[kind] + [cell(records[tower, kind]) if (tower, kind) in records else "" for tower in towers]
            for kind in TYPES if any((tower, kind) in records for tower in towers)]
    return rows and table(["type", *towers], rows)


def parity_table(root):
    """The worst token in f32, and bf16 over transformers' own bf16: mean, worst."""
    return by_type(root, lambda r: f"{r['f32'][1]:.1e}; {r['bf16_ratio'][0]:.2f} / {r['bf16_ratio'][1]:.2f}"
                   + ("" if r["ok"] else " FAILS"))


def mtmd_table(root):
    """Mean distances from the file's values in f32: mtmd, qwenvit's bf16, transformers' bf16."""
    return by_type(root, lambda r: f"{r['mtmd'][0]:.1e}; {r['bf16'][0]:.1e}, {r['transformers_bf16'][0]:.1e}")


def steps_table(root):
    records = latest(root, "steps", "type")
    cell = lambda step: f"{step[1]:.1e}, {step[2]:.1e}"
    names = [step[0] for step in next(iter(records.values()))["steps"]] if records else []
    rows = [[name] + [cell(r["steps"][i]) for r in records.values()] for i, name in enumerate(names)]
    return rows and table(["transformers, step by step"] + [f"{tower} {kind}" for tower, kind in records], rows)


def time_table(root):
    rows = []
    for (tower, kind, patches), r in latest(root, "time", "type", "patches").items():
        cpu = {way: t["cpu_ms"] for way, t in r["ways"].items()}
        rows.append([tower, kind, str(patches)] + [digits(v) for v in cpu.values()]
                    + [f"{cpu[way] / cpu['mtmd']:.2f}" for way in cpu if way != "mtmd"])
    return rows and table(["tower", "type", "patches", "mtmd, CPU ms", "qwenvit f32, CPU ms", "qwenvit bf16, CPU ms",
                           "f32 over mtmd", "bf16 over mtmd"], rows)


def page(root):
    """The tables of docs/gguf.md, in their order there."""
    return [make(root) for make in (parity_table, mtmd_table, steps_table, time_table)]
