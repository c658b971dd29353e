# SPDX-License-Identifier: MIT
"""Tests that `qwenvit bench` and `qwenvit profile` run the program qwenvit-bench next to the command, and
its output: tables for people, and one record per line for machines, appended to a file."""
import json
import os
import shutil

from command_runs import GOLDEN, MODEL, QWENVIT, each, image, read, run, write

BENCH = os.environ["QV_BENCH"]
ONCE = "--repeats 1 --threads 1"
QUICK = f"{ONCE} --budget 0.01"
CONV3D = f"bench conv3d --shapes shapes.txt --dtype f32 {QUICK}"
FIELDS = {"bench", "case", "way", "dtype", "median_ms", "p90_ms", "repeats", "flops", "bytes", "tflops_per_s",
          "gb_per_s", "machine", "version", "commit", "day"}


def set_up():
    os.makedirs("bin")
    image("grey.ppm", 96, "grey")
    write("grids.txt", "# sizes", "1,4,4", "1,8,6 # an image", "", "2,4,6", "1,2,2", "3,4,4", "1,4,10")
    write("shapes.txt", "# small", "", "causal: d=3 h=4 w=6 c=8 o=8 kernel=3,3,3 pad_front=2,1,1 pad_back=0,1,1 "
          "causal=zeros layout=channels_last # as in a VAE")


def test_both_start_the_same_program():
    for name in ("bench", "profile"):
        said = run(f"{name} --help", f"usage: qwenvit {name}").out
        assert run(f"{name} --help", program=BENCH).out == said
    each(0, ("--help", "qwenvit-bench SUBCOMMAND --help"), ("--version", "  commit   "), program=BENCH)
    each(2, ("bench", "usage: qwenvit bench SUBCOMMAND"), ("encode", "unknown subcommand encode"), program=BENCH)


def test_the_program_is_beside_the_command():
    def program(name, text, mode=0o755):
        write(name, text)
        os.chmod(name, mode)

    shutil.copy(QWENVIT, "bin/qwenvit")
    program("qwenvit-bench", "#!/bin/sh\necho planted")  # one in another folder is not used
    here = {"program": "bin/qwenvit", "PATH": f"{os.getcwd()}:{os.environ['PATH']}"}
    for line in ("bench gemm", "profile", "bench --help"):
        ran = run(line, f"{line.split()[0]}: needs the program qwenvit-bench, which is not next to this one: "
                  f"{os.getcwd()}/bin/qwenvit-bench", code=4, **here)
        assert not ran.out
    each(0, (f"info {MODEL}", "vision tower"), ("--help", "Times this machine"), **here)
    program("bin/qwenvit-bench", "no program", 0o644)
    run("bench gemm", "which is not next to this one", code=4, **here)
    os.chmod("bin/qwenvit-bench", 0o755)
    run("profile", "bin/qwenvit-bench cannot be started: ", code=4, **here)
    program("bin/qwenvit-bench", '#!/bin/sh\necho "<$*>"\n[ "$1" = bench ] || kill -TERM $$\nexit 7')
    run("bench tower --model 'a b'", "<bench tower --model a b>", code=7, **here)
    run("profile --", "<profile -->", code=-15, **here)


def holds(record, name, least, most=1e9):
    """A figure may be withheld, as on a machine that other tests use."""
    return bool(record["withheld"][name]) if name not in record else least <= record[name] <= most


def test_records():
    gemm = "bench gemm --rows 2 --dtype f32 --json=r.json"
    tower = f"bench tower --model {MODEL} --json=r.json"
    each(0, (f"{tower} {QUICK} --grid 1,4,4", "over_limit"),
         (f"{tower} {QUICK} --grid 5,4,4 --chunk-rows 32 --no-limit", "chunks 3  fill"),
         # this one has the time for the whole roofline
         (f"{tower} {ONCE} --pack grids.txt --chunk-rows 128 --dtype f32", "packed limit"),
         (f"{CONV3D} --json=r.json", "chosen"),
         (f"bench patch-embed --model {MODEL} --rows 16 --dtype f32 {QUICK} --json=r.json",
          "over_patchify", "GEMM alone", "over_floor"),
         (f"{gemm} --model {MODEL} {QUICK}", "over_m1"),
         (f"{gemm} --shape 40,64 --weights q4g64 {QUICK}", "over_copy"),
         (f"{gemm} --shape 40,64 --weights q8g64 {QUICK}", "over_copy"),
         (f"profile --model {MODEL} --grid 1,4,4 --dtype f32 {ONCE} --json=r.json", "deepstack_merger_list (2)", "by layer"))
    records = [json.loads(line) for line in read("r.json").splitlines()]
    for r in records:
        assert FIELDS <= set(r) and r["median_ms"] > 0 and r["repeats"] > 0, r
        assert len(r["day"]) == 10 and r["day"] >= "2026-01-01", r
        assert bool(r.get("kernel")) == (r["bench"] == "profile"), r
        assert ("desc" in r and "chosen" in r) == (r["bench"] in ("conv3d", "patch-embed")), r
        assert holds(r, "roof_share", 0, 1), r
        assert all(holds(r["machine"], rate, 1e-6) for rate in ("copy_gb_per_s", "roof_gb_per_s")), r
    assert {r["bench"] for r in records} == {"tower", "conv3d", "patch-embed", "gemm", "profile"}
    ways = {way: [r for r in records if r["bench"] == "tower" and r["way"] == way]
            for way in ("encode", "whole call", "limit", "floor", "streamed", "packed")}
    alone, chunked = ways["encode"]
    assert alone["patches"] == 16 and "limit_ms" in alone and holds(alone["parts"], "between_ms", 0)
    assert holds(alone, "over_limit", 1) and holds(alone, "over_floor", 1)
    assert [len(ways[way]) for way in ("whole call", "limit", "floor", "streamed")] == [2, 1, "floor_ms" in alone, 1]
    call = ways["whole call"][0]
    assert abs(alone["median_ms"] * call["over_encode"] / call["median_ms"] - 1) < 1e-6
    (clip,) = ways["streamed"]  # the single chunk was not streamed as often as it should: the budget was spent
    assert clip["case"] == chunked["case"] == "qwen3_vl 80 patches" and "limit_ms" not in chunked
    assert clip["chunks"] == 3 and clip["us_per_patch"] > 0
    (packed,) = ways["packed"]
    assert [packed[name] for name in ("items", "patches", "chunks", "capacity")] == [6, 204, 2, 128]
    assert abs(packed["fill"] - 204 / 256) < 1e-6 and abs(packed["tokens_per_s"] * packed["median_ms"] / 1e3 - 51) < 1e-3
    assert holds(packed, "over_limit", 1) and holds(packed, "over_floor", 1)
    embed = {r["way"]: r for r in records if r["bench"] == "patch-embed"}
    assert embed["GEMM alone"]["median_ms"] > 0 and embed["patchify"]["over_gemm"] > 0
    assert holds(embed["patchify from bytes"], "over_floor", 1)
    assert sum(r["chosen"] for r in records if r["bench"] == "conv3d") == 1
    steps = [r for r in records if r["bench"] == "profile"]
    assert len(steps) > 30 and {r["op"] for r in steps} > {"gemm", "attention"}
    own = [r for r in steps if r["way"] == "patch_embed"]  # the bench times what the tower runs, from bytes
    assert [r["op"] for r in own] == ["interpolate", "patchify", "gemm"]
    assert all(embed["patchify from bytes"][f] == sum(r[f] for r in own) for f in ("flops", "bytes"))
    assert {r["way"] for r in steps} > {"patch_embed", "blocks.0", "merger"}


def test_ways_to_bench():
    each(0, ("bench --help", "  tower "), ("bench --legend", "over_copy "),  # it explains what the tables show
         (f"{CONV3D} --lowering 'by depth' --json", '"way":"by depth"'),
         (f"profile --model {MODEL} grey.ppm {ONCE}", "as encoded, 1 frame"),
         (f"bench gemm --rows 1 --backend cpu --dtype f32 {QUICK} --json=none.json", "1 of 6 were timed"))
    assert len(read("none.json").splitlines()) == 1  # a bench ends after its budget


def test_usage():
    each(2, ("bench", "usage: qwenvit bench SUBCOMMAND"), ("bench nothing", "unknown subcommand nothing"),
         *((f"bench {line}", "unknown option --") for line in  # of another bench
           ("gemm --grid 1,4,4", "tower --lowering direct", "tower --weights q4g64",
            "conv3d --fps 2")),
         *((line, "--model DIR is required") for line in ("bench tower", "bench patch-embed", "profile")),
         (f"bench gemm --model {MODEL} --device 0,1", "this subcommand uses only one device"),
         (f"profile --model {MODEL} a.mp4 b.mp4", "accepts at most one clip"),
         (f"bench patch-embed --model {MODEL} --rows 10", "--rows is 10; it must be a multiple of 4"),
         ("bench gemm --weights q5", "must be bf16, q4g64 or q8g64"),
         (f"bench gemm --shape 40,65 --weights q4g64 --dtype f32 {QUICK}", "not a multiple of the group size 64"),
         ("bench conv3d --lowering sideways", 'unknown --lowering "sideways"'))


def test_files_that_are_wrong():
    pack, shapes = f"bench tower --model {MODEL} --pack wrong.txt {QUICK}", CONV3D.replace("shapes.txt", "wrong.txt")
    for line, text, words in (
        (pack, "1,4", 'wrong.txt:1: "1,4" is not of the form t,h,w'),
        (pack, "# odd\n1,3,4", "wrong.txt:2: an item: grid_thw is 1,3,4"),
        (f"{pack} --chunk-rows 64", "1,16,16", "wrong.txt:1: 256 patches per frame pair; a chunk has room for 64"),
        (shapes, "# none\nbad: d=2 h=2 w=2 kernal=1,1,1",
         'wrong.txt:2: conv3d: unknown field "kernal"'),
        (shapes, "d=2 h=2", 'wrong.txt:1: "d=2 h=2" is not of the form'),
        (shapes, "too wide: d=2 h=2 w=2 c=2 o=2 kernel=5,5,5", "wrong.txt:1: "),
        (f"profile --model {MODEL} wrong.txt {ONCE}", "not a clip", "wrong.txt"),
    ):
        write("wrong.txt", text)
        run(line, words, code=3)
    run("bench conv3d --shapes missing.txt", "missing.txt", code=3)


