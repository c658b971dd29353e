#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Times other software that runs the Qwen-VL vision tower and its Conv3d: transformers and torch.

    peers.py tower --model DIR --grid 1,20,38 --dtype bf16,f32 --json peers.jsonl
    peers.py cache-fill --model DIR --list clips.txt --device cuda --json peers.jsonl
    peers.py patch-embed --model DIR --rows 760,3040 --json peers.jsonl
    peers.py conv3d --shapes FILE --json peers.jsonl

Medians and 90th percentiles of single runs after a warm-up. Fewer than three runs, or runs that differ too
much, are refused (times.py). --json appends one JSON record per line, in the schema of
`qwenvit bench ... --json=FILE`, so that one file can hold both. README.md in this folder explains each way.
"""
import argparse
import os

from convs import bench_conv3d, bench_patch_embed
from fills import bench_cache_fill
from towers import bench_tower
import torch


def numbers(count=None):
    def parse(text):
        try:
            values = [int(x) for x in text.split(",")]
        except ValueError:
            values = []
        if not values or min(values) < 1 or count and len(values) != count:
            raise argparse.ArgumentTypeError(f"{text}; it must be {count or 'one or more'} numbers of at least 1")
        return values
    return parse


def read_pack(path):
    """Reads grids, one T,H,W per line, as `qwenvit bench tower --pack FILE` does."""
    grids = []
    with open(path, encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            if line.strip() and not line.startswith("#"):
                try:
                    grids.append(numbers(3)(line.strip()))
                except (ValueError, argparse.ArgumentTypeError) as error:
                    raise argparse.ArgumentTypeError(f"{path}:{number}: {error}") from None
    if not grids:
        raise argparse.ArgumentTypeError(f"{path}: contains no grids")
    return grids


def dtypes(text):
    values = text.split(",")
    if not set(values) <= {"f32", "bf16"}:
        raise argparse.ArgumentTypeError(f"{text}; it must be f32, bf16 or both, separated by a comma")
    return values


def main():
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--dtype", type=dtypes, default=["bf16", "f32"], metavar="LIST",
                        help="default: bf16,f32")
    shared.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    shared.add_argument("--threads", type=int, metavar="N", default=len(os.sched_getaffinity(0))
                        if hasattr(os, "sched_getaffinity") else os.cpu_count(),
                        help="default: every core")
    shared.add_argument("--repeats", type=int, default=7, metavar="N", help="timed runs (7)")
    shared.add_argument("--warmup", type=int, default=2, metavar="N", help="untimed runs before (2)")
    shared.add_argument("--limit-s", type=float, default=60, metavar="S",
                        help="stop repeating a way after S seconds (60), but not before a warm-up and three runs")
    shared.add_argument("--json", metavar="FILE", help="append the records to FILE")

    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    benches = parser.add_subparsers(dest="bench", required=True)
    tower = benches.add_parser("tower", parents=[shared], help="transformers, and torch.compile")
    tower.add_argument("--model", required=True, metavar="DIR", help="checkpoint folder")
    tower.add_argument("--grid", type=numbers(3), action="append", metavar="T,H,W",
                       help="frame pairs, patch rows, patch columns (1,20,38); repeatable")
    tower.add_argument("--pack", type=read_pack, action="append", metavar="FILE",
                       help="items encoded together, one line T,H,W per item; repeatable")
    tower.add_argument("--modes", metavar="LIST",
                       help='of torch.compile; the best is reported; "" for none (cpu: default,'
                            "freezing,max-autotune; cuda: reduce-overhead,"
                            "max-autotune-no-cudagraphs)")
    tower.set_defaults(run=bench_tower)
    embed = benches.add_parser("patch-embed", parents=[shared],
                               help="torch's Conv3d and its matrix product")
    embed.add_argument("--model", required=True, metavar="DIR", help="checkpoint folder")
    embed.add_argument("--rows", type=numbers(), default=[760], metavar="N,N", help="(760)")
    embed.set_defaults(run=bench_patch_embed)
    conv = benches.add_parser("conv3d", parents=[shared], help="torch's Conv3d on given shapes")
    conv.add_argument("--shapes", required=True, metavar="FILE",
                      help="lines of `name: d=4 h=30 w=52 c=96 o=96 kernel=3,3,3 ..`")
    conv.set_defaults(run=bench_conv3d)
    fill = benches.add_parser("cache-fill", parents=[shared],
                              help="qwenvit cache fill, and transformers with torchcodec, from files to files")
    fill.add_argument("--model", required=True, metavar="DIR", help="checkpoint folder of a Qwen3-VL")
    fill.add_argument("--list", required=True, metavar="FILE", help="equal clips, one path per line")
    fill.add_argument("--max-pixels", type=int, metavar="N", help="of all sampled frames of a clip together")
    fill.add_argument("--workers", type=int, default=16, metavar="N",
                      help="processes or threads that decode for transformers (16)")
    fill.add_argument("--work", metavar="DIR", help="folder for the tokens, which are removed again")
    fill.add_argument("--qwenvit", default="qwenvit", metavar="PATH", help="the command (qwenvit)")
    fill.set_defaults(run=bench_cache_fill)

    args = parser.parse_args()
    if args.bench == "tower":
        if not args.grid and not args.pack:
            args.grid = [[1, 20, 38]]
        usual = ("default,freezing,max-autotune" if args.device == "cpu"
                 else "reduce-overhead,max-autotune-no-cudagraphs")
        args.modes = [m for m in (usual if args.modes is None else args.modes).split(",") if m]
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("--device cuda: torch finds no CUDA device")
    torch.set_num_threads(args.threads)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    args.run(args)


if __name__ == "__main__":
    main()
