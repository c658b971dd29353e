# SPDX-License-Identifier: MIT
"""Tests qwenvit cache over a longer time: records that are superseded or no longer wanted are
pruned, sources that are gone or lie elsewhere count, and the cost of a run is estimated before it."""
import glob
import json
import os
import re
import shutil
import subprocess

import pytest
from command_runs import (GOLDEN, MODEL, OWN_MOUNTS, Begun, get, image, mount, no_temporary_files,
                          run, write)

SMALL = "--min-pixels 16384 --max-pixels 65536"  # small images are enough to test the cache
FILL = f"cache fill --model {MODEL} --backend ref --quiet {SMALL}"
LIST = [f"p{i}.ppm" for i in range(1, 7)] + ["v.mp4"]


def set_up():
    for i in range(1, 7):
        image(f"p{i}.ppm", 32 + 32 * i, i)
    run("synth --clip v.mp4")
    write("list.txt", *LIST)


def fill(out, *says, code=0, clips="list.txt", options=""):
    return run(f"{FILL} --list {clips} -o {out} {options}", *says, code=code)


def test_before_starting():
    ran = fill("c", "c: 7 to do; 0 already there", "clips      7, 6 of them images", "unknown: no run here",
               options="--dry-run")
    assert re.search(r"^  disk .* KB of bf16, \[n, \d*\] and \d DeepStack", ran.out, re.M)
    assert not os.path.exists("c")
    fill("c", "time       2.00 h at 0.000972222 clips per second",
         options="--dry-run --rate 0.00097222222")
    said = fill("c", options="--dry-run --json").record
    assert said["hours"] is None
    done = fill("c", options="--part-bytes 1 --json").record
    assert done["done"] == 7
    # the tokens are exact, and the bytes are except for each clip's grid and timestamps
    assert said["tokens"] == done["tokens"]
    assert said["bytes"] < run("cache status c --json").record["bytes"] < said["bytes"] + 7 * 1024
    image("p7.ppm", 96, 7)
    write("more.txt", *LIST, "p7.ppm")
    fill("c", "1 to do; 7 already there", "at the rate of the last run here, which sealed 6 clips",
         clips="more.txt", options="--dry-run")
    run(f"info --list list.txt --model {MODEL} --backend ref {SMALL}",
        f"tokens     {done['tokens']}", "KB of bf16")
    write("some.txt", "p1.ppm", "none.ppm")
    run("info --list some.txt", "1 of 2 cannot be used", code=1)
    run("info --list gone.txt", "gone.txt: cannot be opened", code=3)


def test_what_is_there():
    run("cache status c", '  model      "qwen3_vl", qwen3_vl, "')
    model = run("cache status c --json").record["model"]
    assert model["name"] == "qwen3_vl" and model["folder"].startswith("/")
    assert sorted(run("cache keys c").out.splitlines()) == sorted(LIST)
    records = run("cache keys c --json").records
    assert len(records) == 7
    assert any(r["key"] == r["path"] == "v.mp4" for r in records)
    ran = run(f"cache fill --model {GOLDEN}/qwen3_vl_moe --backend ref --quiet {SMALL} "
              "--list list.txt -o c", 'the cache\'s model is "qwen3_vl"', code=3)
    assert 'the run\'s "qwen3_vl_moe"' in ran.err


def test_options_that_ask_for_what_the_model_does_anyway():
    fill("c", "7 already there", options="--fps 2")
    fill("c", "preprocessing.options.fps", code=3, options="--fps 3")
    write("asks.txt", *LIST[:-1], {"path": "v.mp4", "fps": 2})
    fill("c", "7 already there", clips="asks.txt")


def test_sources_that_lie_elsewhere_are_new_downloads_or_gone():
    os.utime("p1.ppm", (1e9, 1e9))
    fill("c", "6 already there", options="--dry-run")
    fill("c", "7 already there", options="--same size")
    os.mkdir("moved")
    for i in (1, 2):
        shutil.copy(f"p{i}.ppm", "moved")
    write("moved.txt", *({"path": f"moved/p{i}.ppm", "key": f"p{i}.ppm"} for i in (1, 2)))
    run("cache status c --list moved.txt", "0 ok, 0 failed, 0 missing, 2 changed")
    run("cache status c --list moved.txt --trust-keys", "2 ok, 0 failed, 0 missing, 0 changed")
    fill("c", "2 already there", clips="moved.txt", options="--trust-keys")
    for i in (3, 4):
        shutil.move(f"p{i}.ppm", "moved")
    parts = os.listdir("c")
    for _ in range(2):
        ran = fill("c", "0 done, 0 tokens, 0 failed; 7 already there, 0 failed earlier",
                   "the files of 2 clips no longer exist, the first is p3.ppm", options="--same size")
        assert len(ran.err.splitlines()) == 1
    assert os.listdir("c") == parts  # clips that are gone add no part
    run("cache status c --list list.txt", "gone       2 ok, but their files no longer exist")
    for i in (3, 4):
        shutil.move(f"moved/p{i}.ppm", ".")


def test_superseded_and_damaged():
    fill("c", "1 done")  # p1
    run("cache status c", "prunable   1 superseded records")
    with open(sorted(glob.glob("c/part-*-000000.safetensors"))[0], "rb") as f:
        good = f.read()

    def put(name, data):
        with open(f"c/part-cut-short-{name}.safetensors", "wb") as f:
            f.write(data)
    put(1, good[:-1])
    run("cache check c", "it is superseded: other parts have better records of its keys, and qwenvit cache "
        "prune removes it", "1 damaged part, 1 of them superseded (qwenvit cache prune)")
    put(2, good[:200])
    run("cache check c", "2 damaged parts, 1 of them superseded", code=1)
    before = os.listdir("c")
    run("cache prune c --dry-run", "1 record would be removed")
    assert os.listdir("c") == before
    run("cache prune c", "1 record removed, including every record of 0 keys; 0 parts rewritten, 1 removed, "
        "2 damaged removed")
    run("cache check c", "7 keys in 7 parts: 0 bad keys, 0 damaged parts")
    assert run("cache status c --json").record["superseded"] == 0
    no_temporary_files("c")


def test_a_link_to_a_part_of_the_same_folder():
    shutil.copytree("c", "links")
    part = os.path.basename(sorted(glob.glob("links/part-*"))[0])
    os.symlink(part, f"links/{part[:-12]}.1.safetensors")
    for verb in ("prune links", "prune links --dry-run", "delete links p2.ppm"):
        run(f"cache {verb}", "is a symbolic link; replace it with the file", code=4)
    run("cache check links", "7 keys in 8 parts: 0 bad keys")


def test_keys():
    fill("one", "7 done")  # one part
    run("cache delete one p1.ppm p2.ppm --quiet", "including every record of 2 keys; 1 part rewritten")
    run("cache status one --list list.txt", "5 ok, 0 failed, 2 missing")
    run("cache delete one p1.ppm", "one: no key \"p1.ppm\"", code=1)
    run("cache check one --quiet", " 0 bad keys")
    write("keep.txt", "p5.ppm", "v.mp4", "new.ppm")
    for dry in (" --dry-run", ""):
        run(f"cache prune one --quiet --list keep.txt{dry}", "including every record of 3 keys;")
    assert sorted(run("cache keys one").out.splitlines()) == ["p5.ppm", "v.mp4"]
    for key in ("p5.ppm", "v.mp4"):
        assert get(key, "one")[1] == get(key, "c")[1], key
    fill("one", "5 done")  # the cache can be continued
    write("empty.txt")
    run("cache prune one --list empty.txt", "the list is empty; to remove a whole cache", code=3)
    run("cache prune moved", ": not a cache: ", code=3)


def test_while_a_run_has_it():
    write("long.txt", *LIST, *({"path": "v.mp4", "key": str(i)} for i in range(200)))
    begun = Begun(f"{FILL} --list long.txt -o busy --max-pixels 262144 --num-frames 768 "
                  "--chunk-rows 1024 --part-seconds 0.1")
    begun.until(lambda: glob.glob("busy/part-*"), pause=0.1)
    run("cache prune busy", "another process is adding to this cache", code=4)
    run("cache prune busy --quiet --dry-run", "would be removed")
    begun.process.kill()
    begun.end(137)
    run("cache prune busy --quiet", "0 records removed")


@pytest.mark.parametrize("line, text", (
    ("cache delete c k --list list.txt", "unknown option --list"),
    ("cache prune c --list list.txt --shard 0/2", "unknown option --shard"),
    ("cache status c --dry-run", "unknown option --dry-run"),
    ("cache status c --no-lock", "unknown option --no-lock"),
    (f"{FILL} --list list.txt -o c --rate 3", "--rate requires --dry-run"),
    (f"{FILL} --list list.txt -o c --same time", '--same is "time"; it must be size'),
    ("cache delete c", "KEY... is required"),
))
def test_usage(line, text):
    run(line, text, code=2)


@pytest.mark.skipif(not OWN_MOUNTS, reason="no disk can be mounted here")
def test_disks():
    os.mkdir("disk")
    mount("-t tmpfs -o size=2m")
    os.mkdir("disk/c")
    for name in ("c/qwenvit-cache.json", *glob.glob("one/part-*")):
        shutil.copy(name, "disk/c")
    with open("disk/filler", "wb") as f:
        f.write(bytes(shutil.disk_usage("disk").free))
    run("cache delete disk/c p5.ppm --quiet", "No space left", code=4)
    run("cache status disk/c", "7 ok")
    no_temporary_files("disk/c")
    mount("-o remount,ro")
    run("cache delete disk/c p5.ppm --quiet", "Read-only", code=4)
    run("cache delete disk/c p5.ppm --quiet --dry-run", "including every record of 1 key;")
    subprocess.run(["umount", "disk"], check=True)
