# SPDX-License-Identifier: MIT
"""Tests qwenvit cache. A list becomes parts whatever its order, however it is split over processes
and however often it is interrupted. Clips in the cache are not encoded again, and clips that failed
or changed are reported."""
import glob
import json
import os
import shutil
import signal
import subprocess
import time

import pytest
from command_runs import (GOLDEN, MODEL, OWN_MOUNTS, QWENVIT, Begun, get, image, is_rate, mount,
                          no_temporary_files, read_file, run, write)

ODD = {"path": "v.mp4", "key": "an odd/key é", "fps": 1}
SMALL = "--min-pixels 1024 --max-pixels 16384"  # small images, so that several share a chunk
FILL = f"cache fill --model {MODEL} --backend ref {SMALL}"
QUIET = f"{FILL} --quiet"
# short chunks, so that clips last long and signals are handled
SLOW = "--max-pixels 262144 --num-frames 768 --chunk-rows 1024"


def set_up():
    for i in range(1, 10):
        image(f"p{i}.ppm", 32 + 32 * i, i)
    run("synth --clip v.mp4")
    good = [f"p{i}.ppm" for i in range(1, 10)] + ["v.mp4", ODD]
    write("good.txt", *good)
    write("list.txt", *good, "missing.mp4")


def test_made_and_made_again():
    records = run(f"{FILL} --list list.txt -o first --json", code=1).records
    assert records[0]["progress"]["total"] == 12 and records[0]["progress"]["done"] == 0
    failed = next(r for r in records if r.get("key") == "missing.mp4")
    assert (failed["status"], failed["code"]) == ("failed", "QV_EIO")
    assert failed["error"].startswith("missing.mp4: cannot be")
    assert records[-1]["done"] == 11
    is_rate(records[-1], "sampled_frames_per_s", "frames", "job_s")
    is_rate(records[-1], "tokens_per_s", "tokens", "job_s")
    run("info first", "11 ok, 1 failed")
    run(f"{QUIET} --list list.txt -o first",
        "0 done, 0 tokens, 0 failed; 11 already there, 1 failed earlier", code=1)
    run(f"{QUIET} --list good.txt -o first", "0 done, 0 tokens, 0 failed; 11 already there")
    assert len(os.listdir("first")) == 2  # nothing was added
    run("cache status first", "11 ok, 1 failed")
    assert run("cache status first --list list.txt --json").record["missing"] == 0
    run("cache check first --quiet", "12 keys in 1 part: 0 bad keys")
    run("cache get first nobody -o none.safetensors", ": no key ", code=3)
    run("cache get first missing.mp4 -o none.safetensors", "missing.mp4: cannot be opened", code=3)
    run("cache get first p0.ppm -o none.json", "none.json: the file name must end in .safetensors", code=2)
    assert not os.path.exists("none.safetensors")


def test_the_tokens_are_those_of_encode():
    run(f"encode --list good.txt --model {MODEL} --backend ref --quiet -o encoded "
        f"--output-dtype bf16 {SMALL}")
    for key in ("p3.ppm", "v.mp4", ODD["key"]):
        metadata, tensors = get(key, "first")
        theirs, encoded = read_file(f"encoded/{key}.safetensors")
        assert tensors == encoded, key
        record, made = json.loads(metadata["record"]), json.loads(theirs["preprocessing"])
        assert record["picture"] == (made["kind"] != "video"), key
        assert record.get("sampled_fps") == made.get("sampled_fps"), key
    assert record["sampled_fps"] == 1.0


def test_any_order_sharding_and_interruption():
    with open("list.txt", encoding="utf-8") as f:
        write("reversed.txt", *reversed(f.read().splitlines()))
    run(f"{QUIET} --list reversed.txt -o reversed", "11 done", code=1)
    for shard in range(3):
        line = f"{QUIET} --list reversed.txt -o sharded --shard {shard}/3 --part-bytes 20000"
        assert Begun(line).end(None).code in (0, 1), line
    run("cache status sharded --list list.txt", "11 ok, 1 failed, 0 missing")
    line = f"{QUIET} --list list.txt -o killed --part-bytes 5000"
    for number, waits in ((signal.SIGKILL, (0.2, 0.4, 0.6, 0.8)), (signal.SIGTERM, (0.3, 0.7))):
        for wait in waits:
            begun = Begun(line)
            time.sleep(wait)
            begun.process.send_signal(number)
            begun.end(None)
    run(line, "already there", code=1)
    run("cache status killed --list list.txt", "11 ok, 1 failed, 0 missing, 0 changed")
    for key in ("p1.ppm", "p9.ppm", "v.mp4", ODD["key"]):
        for other in ("reversed", "sharded", "killed"):
            assert get(key, "first")[1] == get(key, other)[1], (key, other)
    no_temporary_files("reversed", "sharded", "killed")
    run("cache check killed --quiet", " 0 bad keys, 0 damaged")


def ended_by(number, files, line):
    """Sends the signal one second after these files, which two images make, exist. The run then has
    half a minute to end, whatever the length of the list: more clips wait than the queue holds."""
    write("long.txt", "p1.ppm", "p2.ppm", *({"path": "v.mp4", "key": str(i)} for i in range(1200)))
    begun = Begun(line)
    begun.until(lambda: glob.glob(files), pause=0.1)
    time.sleep(1)
    assert begun.process.poll() is None, "it ended before the signal"
    begun.process.send_signal(number)
    return begun.end(128 + number, seconds=30)


@pytest.mark.parametrize("number", (signal.SIGTERM, signal.SIGHUP))
def test_a_signal_is_heard_at_once(number):
    cache = f"long_{number}"
    ran = ended_by(number, f"{cache}/part-*",
                   f"{QUIET} --list long.txt -o {cache} {SLOW} --part-seconds 0.1")
    assert "interrupted: finished clips are sealed" in ran.err
    assert run(f"cache status {cache} --list long.txt --json").record["ok"] > 0
    no_temporary_files(cache)
    run(f"cache check {cache} --quiet", " 0 bad keys, 0 damaged")


def test_a_signal_ends_encode():
    ran = ended_by(signal.SIGTERM, "encoded_long/p?.ppm.safetensors",
                   f"encode --list long.txt --model {MODEL} --backend ref --json -o encoded_long {SLOW}")
    done = sum(len(files) for _, _, files in os.walk("encoded_long"))
    no_temporary_files("encoded_long")
    left = 1202 - done
    assert f"interrupted: {done} of 1202 clips done, 0 failed, {left} not done" in ran.err
    job = next(r["job"] for r in ran.records if "job" in r)
    assert (job["clips"], job["not_done"], job["interrupted"]) == (done, left, True)


def test_two_runs_of_one_shard_at_once():
    first = Begun(f"{QUIET} --list good.txt -o twice")
    run(f"{QUIET} --list good.txt -o twice")
    first.end(0)
    run("cache status twice --list good.txt", "11 ok, 0 failed, 0 missing")
    assert get("v.mp4", "first")[1] == get("v.mp4", "twice")[1]


def test_a_clip_that_changed_and_one_that_is_good_by_now():
    image("p2.ppm", 96, "other")
    shutil.copy("p1.ppm", "missing.mp4")
    fill = f"{QUIET} --list list.txt -o first"
    status = "cache status first --list list.txt"
    run(status, "10 ok, 0 failed, 0 missing, 2 changed")
    run(fill, "2 done")
    run(status, "12 ok, 0 failed, 0 missing, 0 changed")
    # a clip that changed and fails now: its tokens would be those of a file that is gone
    shutil.copy("p3.ppm", "kept.ppm")
    write("p3.ppm", "nonsense")
    run(fill, "0 done, 0 tokens, 1 failed", code=1)
    run(fill, "0 done, 0 tokens, 0 failed; 11 already there, 1 failed earlier", code=1)
    run(status, "11 ok, 1 failed, 0 missing, 0 changed")
    run("cache get first p3.ppm -o k.safetensors", "p3.ppm", code=3)
    os.rename("kept.ppm", "p3.ppm")
    run(fill, "1 done")


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="no /proc here")
def test_a_clip_that_is_replaced_or_written_to_while_it_is_read():
    fill = f"{QUIET} --list x.txt -o new --max-pixels 262144 --num-frames 200"

    def meanwhile(change):
        """Runs it once a run that makes the cache `new` from x.mp4 alone has opened that."""
        shutil.rmtree("new", ignore_errors=True)
        begun = Begun(fill)
        fds = f"/proc/{begun.process.pid}/fd"

        def opened(fd):
            try:
                return os.readlink(f"{fds}/{fd}").endswith("/x.mp4")
            except OSError:
                return False
        begun.until(lambda: any(map(opened, os.listdir(fds))))
        change()
        assert begun.process.poll() is None, "it ended before the change"
        return begun.end(None)

    write("x.txt", "x.mp4")
    shutil.copy("v.mp4", "x.mp4")
    os.utime("x.mp4", (1e9, 1e9))
    shutil.copy("v.mp4", "y.mp4")
    with open("y.mp4", "ab") as f:
        f.write(b"x")
    assert meanwhile(lambda: os.rename("y.mp4", "x.mp4")).code == 0
    run("cache status new --list x.txt", "1 changed")  # its tokens are the old file's
    run(fill, "1 done")
    run("cache status new --list x.txt", "1 ok, 0 failed, 0 missing, 0 changed")
    ran = meanwhile(lambda: os.utime("x.mp4", (1e9 + 1, 1e9 + 1)))
    assert ran.code == 1 and "x.mp4: the file changed while it was read" in ran.err
    run("cache status new --list x.txt", "1 changed")
    run(fill, "1 done")


def test_other_seconds_of_one_clip():
    def cut(start, end):
        write("cut.txt", f'{{"path":"v.mp4","key":"cut","start":{start},"end":{end},"fps":5}}')
    fill = f"{QUIET} --list cut.txt -o cuts"
    cut("1", "2")
    run(fill, "1 done")
    record = json.loads(get("cut", "cuts")[0]["record"])
    assert (record["start"], record["end"]) == (1.0, 2.0)
    cut("1.0", "2e0")
    run(fill, "0 done, 0 tokens, 0 failed; 1 already there")
    for start, end in (("1.000000001", "2"), ("1", "2.5"), ("0", "2")):
        cut(start, end)
        run("cache status cuts --list cut.txt", "0 missing, 1 changed")
    run(fill, "1 done")
    run("cache status cuts --list cut.txt", "1 ok, 0 failed, 0 missing, 0 changed")
    cut("4", "5")
    run(fill, "start 4, end 5: no frame lies in this stretch", code=1)
    write("gone.txt", "gone.mp4")
    gone = f"{QUIET} --list gone.txt -o first"
    run(gone, "1 failed", code=1)
    run(gone, "0 failed; 0 already there, 1 failed earlier (--retry-failed)", code=1)
    run(f"{gone} --retry-failed", "1 failed; 0 already there", code=1)


def test_other_layouts():
    run(f"{QUIET} --list good.txt -o plain --no-deepstack --tokens f32", "11 done")
    run("cache get plain v.mp4 -o k.safetensors")
    with open("k.safetensors", "rb") as f:
        assert b"deepstack.0" not in f.read()


@pytest.mark.parametrize("line, text", (
    (f"{QUIET} --list good.txt -o first --tokens f32", "tokens.dtype"),
    (f"{QUIET} --list good.txt -o first --no-deepstack", "tokens.n_deepstack"),
    (f"{QUIET} --list good.txt -o first --fps 1", "preprocessing.options.fps"),
    (f"cache fill --model {GOLDEN}/qwen3_vl_moe --backend ref --quiet --list good.txt -o first",
     "model_type"),
    (f"{QUIET} --list good.txt -o foreign", "not a qwenvit cache"),
    ("cache status encoded", "no qwenvit-cache.json"),
))
def test_what_is_not_the_same_cache(line, text):
    os.makedirs("foreign", exist_ok=True)
    write("foreign/qwenvit-cache.json", {"format": "another"})
    run(line, text, code=3)


@pytest.mark.parametrize("file, change, text", (
    ("config.json", {"vision_config": {"num_heads": 1}}, '"config.heads" 2, but the run has 1'),
    ("config.json", {"vision_config": {"deepstack_visual_indexes": [1, 2]}}, '"config.deepstack"'),
    ("config.json", {"vision_config": {"hidden_act": "gelu"}}, '"config.act" "gelu_tanh", but the run has "gelu_erf"'),
    ("config.json", {"vision_config": {"rope_theta": 1e6}}, '"config.rope_theta"'),
    ("preprocessor_config.json", {"image_std": [0.5, 0.5, 0.25]}, '"preprocessing.image.std"'),
    ("preprocessor_config.json", {"size": {"longest_edge": 1 << 20}}, '"preprocessing.image.max_pixels"'),
    ("video_preprocessor_config.json", {"fps": 1}, '"preprocessing.video.fps"'),
))
def test_the_same_weights_in_another_tower(file, change, text):
    shutil.rmtree("tower", ignore_errors=True)
    shutil.copytree(MODEL, "tower")
    with open(f"tower/{file}", encoding="utf-8") as f:
        config = json.load(f)
    for key, value in change.items():
        config[key] = {**config[key], **value} if isinstance(value, dict) else value
    write(f"tower/{file}", config)
    run(f"cache fill --model tower --backend ref {SMALL} --quiet --list good.txt -o first", text, code=3)


def test_files_of_tokens_name_the_tower():
    """The last tower of the test above has the same weights."""
    about = []
    for model in (MODEL, "tower"):
        run(f"encode p1.ppm --model {model} --backend ref {SMALL} --quiet -o of.safetensors")
        about.append(read_file("of.safetensors")[0])
    assert about[0]["weights_digest"] == about[1]["weights_digest"]
    assert about[0]["identity"] != about[1]["identity"]
    run("info of.safetensors --json", f'"identity":"{about[1]["identity"]}"')


def test_an_older_cache_is_read_and_not_continued():
    """Caches of 0.4.0 have no "frames", "config" and "identity"."""
    shutil.copytree("first", "older")
    with open("older/qwenvit-cache.json", encoding="utf-8") as f:
        made_by = json.load(f)
    for name in ("frames", "config", "identity"):
        del made_by[name]
    write("older/qwenvit-cache.json", made_by)
    run(f"{QUIET} --list good.txt -o older", 'does not record "frames", "config", "identity", which its tokens depend on', code=3)
    run("cache status older", " ok, 1 failed")
    run("cache get older v.mp4 -o k.safetensors")


def test_the_versions_of_ffmpeg():
    """Each part records it, and another one goes on."""
    def fill(program, *clips):
        write("some.txt", *clips)
        run(f"{QUIET} --list some.txt -o versions", QWENVIT_DECODER=os.path.abspath(program))

    decoder = os.environ.get("QWENVIT_DECODER", os.path.join(os.path.dirname(QWENVIT), "qwenvit-decoder"))
    for version in ("7.0.1", "9.9-odd\"x"):
        write(version, "#!/bin/sh", '[ "$1" != --version ] || { ' + f"printf 'qwenvit-decoder 1\\n  FFmpeg   %s\\n' '{version}' >&0; exit; }}",
              f"exec '{decoder}' \"$@\"")
        os.chmod(version, 0o755)
    fill("7.0.1", "p1.ppm")
    fill("7.0.1", "p2.ppm", "p3.ppm")
    fill('9.9-odd"x', "p4.ppm", "p5.ppm")
    assert run("cache status versions --json").record["ffmpeg"] == {"7.0.1": 2, '9.9-odd"x': 1}
    run("cache status versions", "5 ok", "  FFmpeg     ", '7.0.1 in 2 parts\n', '9.9-odd"x in 1 part\n')
    run("cache check versions --quiet", " 0 bad keys, 0 damaged")
    run("cache delete versions p1.ppm p4.ppm --quiet")
    assert run("cache status versions --json").record["ffmpeg"] == {"7.0.1": 1, '9.9-odd"x': 1}


def test_the_longest_key():
    key = "%04096d" % 7
    write("key.txt", {"path": "p1.ppm", "key": key})
    run(f"{QUIET} --list key.txt -o reversed", "1 done")
    get(key, "reversed")
    write("key.txt", {"path": "p1.ppm", "key": "%05000d" % 7})
    run(f"{QUIET} --list key.txt -o never", "key.txt:1: the key", code=3)
    assert not os.path.exists("never")


@pytest.mark.parametrize("line, text", (
    (f"{QUIET} --list good.txt", "-o DIR is required"),
    ("cache fill -o x --list good.txt", "--model DIR is required"),
    (f"{QUIET} -o x", "no clip given"),
    ("cache status", "DIR is required"),
    ("cache get x k", "-o OUT is required"),
    ("cache get x -o k", "KEY is required"),
    ("cache check x y", "unexpected argument: y"),
    # the options of old, which were modes
    ("cache --out x --check", "options: qwenvit cache check DIR ("),
    ("cache --keys --json --out x", "options: qwenvit cache keys DIR ("),
    ("cache --out x --get k -o y", "options: qwenvit cache get DIR KEY -o OUT ("),
    ("cache --out x --status", "options: qwenvit cache status DIR ("),
    ("cache --prune --out x", "options: qwenvit cache prune DIR ("),
    ("cache --out x --delete k", "options: qwenvit cache delete DIR KEY... ("),
    ("cache --model m --list l --out x",
     "options: qwenvit cache fill [CLIP...] --model DIR -o DIR ("),
    ("cache fill --out x", "--out is now -o"),
    ("encode v.mp4 --picture x.png", "--picture is now --drawing"),
    ("cache status x --shard 0/2", "--shard requires --list"),
    ("cache status --out x", "--out is now the argument DIR"),
    *((f"{QUIET} --list good.txt -o x --shard {shard}", "I/N")
      for shard in ("3/3", "-1/3", "1", "1/0", "a/b", "1/2x")),
    (f"{QUIET} --list good.txt -o x --tokens f16", "bf16 or f32"),
))
def test_usage(line, text):
    run(line, text, code=2)


def test_damage():
    """In a part with one key, what is altered is that key's, whatever the order of work."""
    write("lone.txt", "p9.ppm")
    fill = f"{QUIET} --list lone.txt -o lone"
    run(fill, "1 done")
    (part,) = glob.glob("lone/part-*")
    with open(part, "rb") as f:
        saved = f.read()

    def number(at):
        return int.from_bytes(saved[at:at + 8], "little")

    def put(data):
        with open(part, "wb") as f:
            f.write(data)
    index = 8 + number(0)
    data = number(index + 48) + (number(index + 56) + 63) // 64 * 64  # tokens begin here
    put(saved[:data + 100])
    run("cache status lone", "damaged", code=1)
    run("cache check lone --quiet", "1 damaged part", code=1)
    run(fill, "1 done")
    put(saved)
    run("cache check lone --quiet", "1 key in 2 parts: 0 bad keys")
    for other in glob.glob("lone/part-*"):
        os.remove(other)
    put(saved[:data + 16] + b"XXXX" + saved[data + 20:])
    run("cache check lone --quiet", "the checksum of its tensors", code=1)


def is_traceable():
    return shutil.which("strace") and not subprocess.run(["strace", "true"], check=False,
                                                         capture_output=True).returncode


@pytest.mark.skipif(not is_traceable(), reason="no call can be made to fail here")
def test_repair_keeps_keys_that_cannot_be_read_now():
    run(f"{QUIET} --list good.txt -o unread")
    part, = glob.glob("unread/part-*")
    for number in range(2, 8):  # the first opening finds the part
        run(f"-f -o trace.txt -P {part} --inject=openat:error=EACCES:when={number} {QWENVIT} "
            "cache check unread --repair --quiet", "Permission denied", "1 bad key,", code=1,
            program="strace", LSAN_OPTIONS="detect_leaks=0")
    run("cache check unread", "11 keys in 1 part: 0 bad keys")


@pytest.mark.parametrize("out, text", (
    ("no/such/folder", "cannot create the folder"),
    ("/proc/qwenvit", "cannot create the folder"),
    ("file", "cannot open the folder"),
))
def test_folders_that_cannot_be_written(out, text):
    write("file", "text")
    run(f"{QUIET} --list good.txt -o {out}", text, code=3)


@pytest.mark.skipif(not OWN_MOUNTS, reason="no disk can be mounted here")
def test_disks_that_cannot_be_written():
    os.mkdir("disk")
    mount("-t tmpfs -o size=40k")
    fill = f"{QUIET} --list good.txt -o disk/c --tokens f32"
    run(f"{fill} --part-bytes 30000", "No space left", code=4)
    no_temporary_files("disk/c")
    mount("-o remount,size=40m")
    run(f"{fill} --part-bytes 30000", "already there")
    run("cache status disk/c --list good.txt", "11 ok, 0 failed, 0 missing")
    mount("-o remount,ro")
    run(f"{QUIET} --list good.txt -o disk/d --tokens f32", "Read-only", code=3)
    run(f"{QUIET} --list list.txt -o disk/c --tokens f32", "Read-only", code=4)
    subprocess.run(["umount", "disk"], check=True)
