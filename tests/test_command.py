# SPDX-License-Identifier: MIT
"""Tests the command as a user runs it: encode, info, synth and verify, exit codes, error texts."""
import glob
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import tarfile

from command_runs import (GOLDEN, MODEL, OWN_MOUNTS, QWENVIT, Begun, each, image, is_rate, mount, no_temporary_files,
                          read, read_file, read_header, run, write)

ENCODE = f"encode --model {MODEL}"
VERIFY = f"verify --model {MODEL}"
NOWHERE = "encode --model /nonexistent"  # for what must be refused before any work
TOOLS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools")
SANITIZED = bool(os.environ.get("QV_SANITIZED"))  # a sanitizer keeps freed memory
SUBCOMMANDS = ("encode", "cache fill", "cache status", "cache keys", "cache get", "cache check", "cache prune",
               "cache delete", "info", "synth", "bench tower", "profile", "verify")


def set_up():
    image("grey.ppm", 96, "grey")
    shutil.copy("grey.ppm", "other.ppm")
    run("synth --clip motion.mp4", "motion.mp4: 4 seconds")
    run(f"synth --config {MODEL} -o synthetic --seed 3", "tensors")


def same(*files):
    assert len(set(map(read, files))) == 1, files


def made(name):
    """Returns what the metadata of a file of tokens say of how frames became pixels."""
    return json.loads(read_file(name)[0]["preprocessing"])


def test_help():
    named = re.findall("^  ([a-z]+)  ", run("--help", "SUBCOMMAND").out, re.M)
    assert "serve" in named and len(named) <= 9, named
    run("--version", "  NVDEC    ", "  FFmpeg   ", "  cuda     ", "  serve    decodes H.264, ")  # which backends run here, or why not
    for name in SUBCOMMANDS:  # one screen of 40 lines and 100 columns
        lines = run(f"{name} --help", f"usage: qwenvit {name} ", "example:").out.splitlines()
        assert len(lines) <= 40 and max(map(len, lines)) <= 100, name
    run("cache --help", *(f"  {name[6:]} " for name in SUBCOMMANDS if name.startswith("cache ")))
    # options that subcommands share have their own pages
    assert not re.search("^  --(threads|fps) ", run("encode --help", "--help=device ").out, re.M)
    assert "--model" not in run("encode --help=device", "  --threads N ").out
    each(0, ("encode --help=clips", "  --fps F "), ("help", "usage: qwenvit SUBCOMMAND"),
         ("help encode", "usage: qwenvit encode "),
         ("verify --help", "cosine        of the worst row"))
    run("serve --model m", "serve: not part of this program; it is in the Python wheel: pip install 'qwenvit[serve]'", code=4)


def test_completion():
    with open("completion", "w", encoding="utf-8") as f:
        f.write(run("help --bash").out)
    for words, word in (("qwenvit enc", "encode"), ("qwenvit cache st", "status"),
                        ("qwenvit cache fill --rec", "--recursive"), ("qwenvit verify --leg", "--legend")):
        script = (f". ./completion; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); "
                  "_qwenvit; echo ${COMPREPLY[@]}")
        assert subprocess.check_output(["bash", "-c", script], text=True).strip() == word, words


def test_usage():
    each(2, ("encode --help=threads", "unknown help topic threads; the topics are clips, device"),
         ("synth --help=device", "unknown help topic device; this subcommand has none"),
         ("decode", "unknown subcommand decode"),
         ("enocde", "unknown subcommand enocde; did you mean encode?"),
         ("cache stat", "unknown subcommand stat; did you mean status?"),
         ("encode --modle x grey.ppm", "unknown option --modle; did you mean --model?"),
         ("encode --modell x grey.ppm", "unknown option --modell"),
         ("encode grey.ppm --fps 0", '--fps is "0"; it must be a number above 0 and at most 1000000'),
         ("encode grey.ppm --model m -o no --fps 1e9",
          "encode: --fps is 1000000000; it must be a number above 0 and at most 1000000"),
         ("info grey.ppm --start 1", "grey.ppm: start 1: an image has no duration"),
         (f"{ENCODE} -o no", "no clip given"),
         ("encode grey.ppm", "--model DIR is required"),
         ("encode grey.ppm --model", "needs a value"),
         ("encode grey.ppm --num-frames 0", '--num-frames is "0"'),
         (f"info {MODEL} --dtype f64", "must be f32"),
         (f"{ENCODE} grey.ppm other.ppm -o many --fps 1 --num-frames 4", "encode: --fps (1) and --num-frames (4) cannot be used together"),
         ("info motion.mp4 --like qwen", "must be transformers or qwen-vl-utils"),
         ("info motion.mp4 --start 1.61 --end 1.63", "start 1.61, end 1.63: no frame lies in this stretch"),
         ("info motion.mp4 --start -1", '--start is "-1"'),
         ("info motion.mp4 --end nan", '--end is "nan"'),
         (f"{ENCODE} motion.mp4 -o many --start 2 --end 1", "--end (1) must be greater than --start (2)"),
         (f"{ENCODE} --list cuts.txt -o listed --end 1", "whose lines have their own"),
         (f"{ENCODE} --list list.txt grey.ppm -o listed", "give clips or --list, not both"),
         (f"info {MODEL} --device 0,1", "this subcommand uses only one device"),
         (f"info {MODEL} --backend cpu --device cuda:1", '--device is "cuda:1"; it must be an index'),
         (f"{ENCODE} grey.ppm -o many --device x", '--device is "x"'),
         (f"info {MODEL} --backend ref --naive gemm", "no naive kernels"),
         (f"info {MODEL} --backend ref:x", '"ref:x"'),
         ("synth --clip x.avi", "--clip x.avi: the file name must end in .mp4"),
         *((f"{ENCODE} grey.ppm -o {name}", f"{name}: the file name must end in .safetensors") for name in ("x.png", "x.safetensor")),
         (f"{ENCODE} grey.ppm -o y --drawing x.jpg", "--drawing x.jpg: the file name must end in .png"),
         ("verify", "--model DIR is required"),
         (f"{VERIFY} --against a --against-backend ref", "cannot be used together"),
         (f"{VERIFY} --grid 1,3,4", "multiples of 2"), (f"{VERIFY} --grid 1,8194,4", "up to 8192"))
    each(4, (f"{ENCODE} grey.ppm -o g.safetensors --backend tpu", 'unknown backend "tpu"'),
         (f"info {MODEL} --backend ref:7", "device 7"), (f"info {MODEL} --device ref:7", "device 7"),
         (f"info {MODEL} --device 1000", "no backend has a device 1000: ", "; ref: device 1000"),
         (f"info {MODEL} --device 1000 --backend ref", "device 1000"),
         (f"info {MODEL} --device cuda:1000", "cuda"),
         (f"{ENCODE} grey.ppm -o many --device 0,1000", "device 1000"),
         ("info motion.mp4 --decode gpu --device 15", "GPU 15 cannot decode"))


def test_encode():
    run("info grey.ppm", "image")
    run(f"{ENCODE} grey.ppm -o a.safetensors --drawing p.png", "tokens")
    assert os.path.getsize("p.png")
    record = run(f"{ENCODE} grey.ppm -o b.safetensors --json", '"tokens":').record
    assert all(record[name] >= 0 for name in ("wait_decode_s", "wait_device_s", "wait_write_s", "write_s", "load_s"))
    is_rate(record, "sampled_frames_per_s", "frames", "seconds")
    is_rate(record, "tokens_per_s", "tokens", "seconds")
    same("a.safetensors", "b.safetensors")
    os.mkdir("many")
    run(f"{ENCODE} grey.ppm -o many --device all", "tokens")
    assert " s (" in run(f"{ENCODE} grey.ppm -o many", "tokens").out
    both = run(f"{ENCODE} grey.ppm other.ppm -o many", "other.ppm").out
    assert " s (" not in both and "tokens per second" in both  # of several clips the job alone has times
    run(f"{ENCODE} grey.ppm other.ppm -o made/new", "other.ppm")
    same("made/new/grey.ppm.safetensors", "many/grey.ppm.safetensors", "a.safetensors")
    same("made/new/other.ppm.safetensors", "many/other.ppm.safetensors")
    # two outputs that would be one file are refused before any work
    for folder in ("one", "two"):
        os.mkdir(folder)
        shutil.copy("grey.ppm", f"{folder}/same.ppm")
    run(f"{NOWHERE} one/same.ppm grey.ppm two/same.ppm -o many",
        "one/same.ppm and two/same.ppm would both be written to same.ppm.safetensors", code=2)
    assert not os.path.exists("many/same.ppm.safetensors")
    run(f"{NOWHERE} grey.ppm other.ppm -o a.safetensors", "cannot be created: File exists", code=3)


def native():
    """A CPU without AVX-512 has no bf16 in oneDNN."""
    return "ref" if "does not multiply bf16 natively" in run(f"info {MODEL} --backend cpu").out else "cpu"


def test_tokens_have_the_dtype_in_which_the_model_computes_unless_another_is_asked_for():
    for options, dtype in ((f"--dtype bf16 --backend {native()}", "BF16"), ("--dtype f32 --backend ref", "F32"),
                           (f"--dtype bf16 --output-dtype f32 --backend {native()}", "F32"),
                           ("--dtype f32 --output-dtype bf16 --backend ref", "BF16")):
        run(f"{ENCODE} grey.ppm -o c.safetensors {options}", options.split()[1])
        assert read_header("c.safetensors")[0]["tokens"]["dtype"] == dtype, options


def test_what_is_neither_a_file_nor_a_folder():
    for url in ("s3://bucket/clip.mp4", "https://host/clip.mp4"):
        run(f"info {url}", f"{url}: this is a URL, but only local files can be read", code=3)
    download = "hf download {} --local-dir"
    each(3, ("info Qwen/Qwen3-VL-2B-Instruct", download.format("Qwen/Qwen3-VL-2B-Instruct")),
         ("encode grey.ppm --model Qwen/Qwen2.5-VL -o no", download.format("Qwen/Qwen2.5-VL")),
         ("encode grey.ppm --model Qwen3-VL -o no", download.format("ORG/Qwen3-VL")),
         ("encode grey.ppm --model /no/such -o no", download.format("ORG/NAME")),
         ("info nobody/clip.mp4", "nobody/clip.mp4: cannot be opened"))


def test_names_are_bytes():
    """In the output and in JSON, bytes that are not UTF-8 become %XX."""
    odd = os.fsdecode(b"odd\377\303.ppm")
    shutil.copy("grey.ppm", odd)
    ran = run(f"{ENCODE} grey.ppm '{odd}' other.ppm -o many --json",
              '"output":"many/odd%FF%C3.ppm.safetensors"', '"clip":"odd%FF%C3.ppm"')
    assert sum("clip" in record for record in ran.records) == 3
    assert read_file("many/odd%FF%C3.ppm.safetensors")[0]["source"] == "odd%FF%C3.ppm"
    shutil.copy("grey.ppm", "odd%FF%C3.ppm")
    run(f"{ENCODE} '{odd}' odd%FF%C3.ppm -o many", "would both be written to odd%FF%C3.ppm.safetensors", code=2)
    run(f"info '{odd}' --json", '"clip":"odd%FF%C3.ppm"')


def test_nothing_that_is_printed_is_obeyed_by_a_terminal():
    """Names may hold ESC, BEL, C1, a line's end, bytes that are not UTF-8, and controls that turn text
    around. What is printed has '?' for them, and JSON has escapes."""
    raw = os.fsdecode(b"a\033]0;x\007\nb\377\302\233\342\200\256c.ppm")
    hostile, shown = shlex.quote(raw), "a?]0;x??b??????c.ppm"
    told = "a?]0;x??b%FF?????c.ppm"  # by a result, which has %FF for a byte that is not UTF-8

    def n_lines(ran):  # the line that says that the machine was busy comes and goes
        return sum(not line.startswith("unknown: ") for line in ran.out.splitlines())

    def shows(code, lines, text, line):
        ran = run(line, text, code=code)
        assert not re.search("[^\n -~]", ran.out + ran.err), ran
        assert n_lines(ran) == lines, f"not {lines} lines: {ran}"

    shutil.copy("grey.ppm", raw)
    shutil.copy("grey.ppm", "a\033]0;x\007\nb.ppm")
    shutil.copytree(MODEL, f"{raw}.model")
    os.mkdir("quiet")
    write("hostile.txt", '{"path":"a\\u001B]0;x\\u0007\\nb.ppm","key":"k\\u001B\\u009B\\u202E\\n"}')
    run(f"{ENCODE} --list - -o quiet --json=h.json", stdin="hostile.txt")
    assert not re.search(b"[^\n -~]", read("h.json"))
    shows(0, 2, "1 done", f"cache fill --model {MODEL} --list hostile.txt -o hostile.cache")
    for text, line in (('"clip":"a\\u001B]0;x\\u0007\\nb%FF\\u009B\\u202Ec.ppm"', f"info {hostile} --json"),
                       (f"{told}: 1 frame", f"{ENCODE} {hostile} -o hostile.safetensors"),
                       ('"k\\u001B\\u009B\\u202E\\n"', "cache keys hostile.cache"),
                       ('"key":"k\\u001B\\u009B\\u202E\\n"', "cache keys hostile.cache --json")):
        shows(0, 1, text, line)
    for code, text, line in (
        (3, f"no{shown}: cannot be opened", f"info no{hostile}"),
        (3, "checkpoint", "info '" + os.fsdecode(b"o\033\302\205rg/na\nme") + "'"),
        (2, "unknown option --?]0;x?", "info '--\033]0;x\007'"),
        (2, "unknown subcommand ?[2J", "'\033[2J'"),
        (3, ": no key ", f"cache get hostile.cache {hostile} -o no"),
    ):
        shows(code, 0, text, line)
    shows(0, 4, "tokens of", f"{ENCODE} {hostile} grey.ppm -o quiet --quiet")
    for text, line, name, of in (
        (f"{told}: image", "info {}", hostile, "grey.ppm"),
        (f"{told}.model: qwen3_vl", "info {}", f"{hostile}.model", MODEL),
        ("0 failed", f"{VERIFY} --clip {{}} --dtype f32 --quiet", hostile, "grey.ppm"),
        ("as encoded", f"profile --model {MODEL} {{}} --repeats 1 --threads 1", hostile, "grey.ppm"),
    ):
        shows(0, n_lines(run(line.format(of))), text, line.format(name))
    shutil.rmtree(f"{raw}.model")


def test_what_quotes_strangers_is_printed_by_one_function():
    """--help, completion and the list of subcommands are our own."""
    for room in ("command", "verify", "bench"):
        for name in glob.glob(f"{TOOLS}/{room}/*.c"):
            if os.path.basename(name) not in ("messages.c", "options.c", "completion.c"):
                found = re.search(rb"(?<![a-z_])(printf|puts|fputs|putchar|vprintf)\(|fprintf\(stderr", read(name))
                assert not found, f"{name} prints past messages.c: {found}"


def test_lines_end_where_formats_begin_or_end():
    """A line end inside a format would be printed as '?' (messages.c)."""
    text = rb'"(?:[^"\\]|\\.)*"'
    for name in glob.glob(f"{TOOLS}/*/*.c"):
        for call in re.findall(rb"\btool_(?:print|say|complain|bar_show)\(((?:%s|[^\";])*)\);" % text, read(name)):
            for words in re.findall(rb"(?:%s\s*)+" % text, call):
                inside = re.sub(rb'"\s*"', b"", words).strip().strip(b'"')
                assert rb"\n" not in re.sub(rb"^(\\n)+|(\\n)+$", b"", inside), f"{name}: {words}"


def test_info():
    said = run(f"info {MODEL}", "deepstack", "lists ", "conv3d     patchify: kernel = stride = ").out
    assert re.search("runs on +interpolate +1 x  .*(kernel|plain C)", said)
    run(f"info {MODEL} --json", '"lowering":"patchify","lowering_reason":"kernel = stride = ', '"decoder_bytes":0')
    run(f"info {MODEL} --backend ref", "plain C, sums in double", "bits       the same alone and packed")
    run(f"info {MODEL} --backend ref --json", '"bits_differ":[]')
    run(f"info {MODEL} --device ref", "backend    ref ")
    assert re.search("  gemm +[0-9]+ x  oneDNN [a-z_]+:", run(f"info {MODEL} --backend cpu").out)
    said = run(f"info {MODEL} --backend cpu", ONEDNN_MAX_CPU_ISA="AVX2").out
    assert "bits       the same alone and packed" in said and "reference code" not in said
    said = run(f"info grey.ppm --model {MODEL}", "conv3d     patchify: kernel = stride = ").out
    assert re.search("chunks     1, of up to 1 frame pair each, in a capacity of [0-9]* patches", said)
    run(f"info {MODEL} --decode gpu", "decoders   at most 4.6 GiB of the GPU")
    run(f"info {MODEL} --decode gpu --json", '"decoder_bytes":4966055936')
    said = run(f"info grey.ppm --model {MODEL} --json", '"lowering":"patchify"', '"same_bits_packed":',
               '"kernels":[{"op":"interpolate","calls":1,"kernel":"').out
    assert re.search('"chunk_rows":[0-9]*,"chunks_ahead":[12],.*"device_bytes":[0-9]', said)
    run(f"info grey.ppm --model {MODEL} --tf32 --device 0", "on the device")
    run("info missing.mp4 motion.mp4", "100 frames at 25 fps", code=1)  # the other clips are done all the same
    write("one.txt", "grey.ppm")  # --json=FILE adds lines to FILE, and prints nothing
    for of in ("grey.ppm", MODEL, "--list one.txt"):
        assert not run(f"info {of} --json=info.json").out
    lines = read("info.json").decode().splitlines()
    assert len(lines) == 3 and lines[0].startswith('{"clip":"grey.ppm"') and lines[1].startswith('{"model":')
    assert lines[2].endswith('"list":"one.txt"}')


def names(folder):
    return sorted(name for name in read_header(f"{folder}/model.safetensors")[0] if "visual." in name)


def test_a_checkpoint_that_the_command_makes():
    run(f"{ENCODE.replace(MODEL, 'synthetic')} grey.ppm -o e.safetensors", "tokens")
    run(f"synth --config {MODEL} -o sharded --seed 3 --shards 3", "tensors")
    run("encode grey.ppm --model sharded -o f.safetensors", "tokens")
    same("e.safetensors", "f.safetensors")
    # names are those of published checkpoints, which are those of transformers' own (golden) towers
    for family in ("qwen2_vl", "qwen2_5_vl", "qwen2_5_omni", "qwen3_vl", "qwen3_omni_moe", "qwen3_5", "glm4v"):
        run(f"synth --config {GOLDEN}/{family} -o named --force", "tensors")
        assert names("named") and names("named") == names(f"{GOLDEN}/{family}"), family
        run("info named", family.removesuffix("_moe"))


def test_preprocessor_files_that_are_missing_are_told_once():
    os.mkdir("bare")
    for name in ("config.json", "model.safetensors"):
        shutil.copy(f"{MODEL}/{name}", "bare")
    for name in ("bare", "whole"):
        write(f"{name}.txt", "grey.ppm")
    missing = ("qwenvit: bare: missing: preprocessor_config.json, video_preprocessor_config.json. Images use the "
               "defaults of")
    for use in ("encode grey.ppm -o {}.safetensors", "encode grey.ppm other.ppm -o {}.out --device 0,0",
                "cache fill --list {}.txt -o {}.cache", "info grey.ppm", "info", "verify --grid 1,4,4 --dtype f32",
                "bench tower --grid 1,4,4 --no-limit --repeats 1 --threads 1 --budget 0.01"):
        ran = run(f"{use.format('bare', 'bare')} --model bare",
                  f"{missing} transformers' Qwen2VLImageProcessor: 3136 to 1003520 pixels")
        assert ran.err.count(": missing: ") == 1, ran
        assert ": missing: " not in run(f"{use.format('whole', 'whole')} --model {MODEL}").err, use
    run("info bare --json", '"warning":"bare: missing: preprocessor_config.json')


def test_adapters_that_are_not_used_are_told_once():
    shutil.rmtree("adapted", ignore_errors=True)
    shutil.copytree(MODEL, "adapted")
    with open("adapted/model.safetensors", "rb") as f:
        data = f.read()
    n = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + n])
    header["model.visual.blocks.0.attn.qkv.lora_A.weight"] = {"dtype": "F32", "shape": [0], "data_offsets": [len(data) - 8 - n] * 2}
    text = json.dumps(header).encode()
    with open("adapted/model.safetensors", "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + data[8 + n:])
    write("adapted.txt", "grey.ppm")
    for use in ("encode grey.ppm -o adapted.safetensors", "cache fill --list adapted.txt -o adapted.cache", "info"):
        ran = run(f"{use} --model adapted", "qwenvit: adapted: adapters are not merged, so tokens are the base model's: model.visual.blocks.0")
        assert ran.err.count("not merged") == 1, ran


def test_synth_replaces_only_what_it_is_told_to():
    shutil.rmtree("named", ignore_errors=True)
    os.mkdir("named")
    for name in glob.glob(f"{MODEL}/*config.json"):
        shutil.copy(name, "named")
    weights, shard = "named/model.safetensors", "named/model-00001-of-00002.safetensors"
    run("synth --config named -o named", "tensors")  # there was nothing to lose
    shutil.copy(weights, "real.safetensors")
    each(2, ("synth --config named -o named --seed 2", f"{weights} exists, and would be replaced by random weights"),
         (f"synth --config {MODEL} -o named --shards 2", f"{weights} exists"))
    same(weights, "real.safetensors")
    os.rename(weights, shard)
    each(2, (f"synth --config {MODEL} -o named", "config.json exists, and would be replaced by a copy"),
         ("synth --config named -o named --shards 2", f"{shard} exists"))
    os.symlink("../real.safetensors", weights)  # as in the hub's cache
    run("synth --config named -o named", f"{weights} exists", code=2)
    os.remove(weights)
    same("named/config.json", f"{MODEL}/config.json")
    run("synth --config named -o named --seed 2 --force", "tensors")
    run("synth --config named -o named --seed 3 --force --shards 3", "tensors")
    run("encode grey.ppm --model named -o named.safetensors", "tokens")
    same("named.safetensors", "f.safetensors")  # nothing is left of what was replaced
    shutil.copy("grey.ppm", "safe.mp4")
    run("synth --clip safe.mp4", "safe.mp4 exists, and would be replaced by a made clip", code=2)
    run(f"synth --config {MODEL} -o never --shards 99999999999", "but there are 57 tensors", code=2)
    assert not os.path.exists("never")


def begin_to_replace(shards):
    """Makes a checkpoint, and begins to replace it, until only its last shard is missing, which nobody reads."""
    shutil.rmtree("old", ignore_errors=True)
    run(f"synth --config {MODEL} -o old --shards 4", "tensors")
    before = {name: read(name) for name in glob.glob("old/*") if name != shards[3]}
    os.remove(shards[3])
    os.mkfifo(shards[3])
    begun = Begun(f"synth --config {MODEL} -o old --shards 4 --seed 9 --force")
    begun.until(lambda: glob.glob(f"{shards[2]}.tmp.*") or read(shards[2]) != before[shards[2]])
    return begun, before


def test_synth_replaces_a_checkpoint_whole():
    shards = [f"old/model-0000{i}-of-00004.safetensors" for i in range(1, 5)]
    for number in (signal.SIGTERM, signal.SIGKILL):
        begun, before = begin_to_replace(shards)
        begun.process.send_signal(number)
        ran = begun.end(128 + number)
        if number == signal.SIGTERM:
            ran.says("interrupted: unfinished output was removed")
            no_temporary_files("old")
        assert {name: read(name) for name in before} == before, number
    if OWN_MOUNTS:  # the disk is full at the third shard
        os.mkdir("small")
        mount("-t tmpfs -o size=600k", "small")
        run(f"synth --config {MODEL} -o small/old --shards 4", "tensors")
        before = {name: read(name) for name in glob.glob("small/old/*")}
        run(f"synth --config {MODEL} -o small/old --shards 4 --dtype f32 --force", "No space left", code=3)
        assert {name: read(name) for name in glob.glob("small/old/*")} == before
    # what fails after some files are replaced leaves no checkpoint
    begun, before = begin_to_replace(shards)
    os.remove(shards[1])
    os.mkdir(shards[1])
    read(shards[3])
    begun.end(3).says(f"{shards[1]}: cannot")
    assert not os.path.exists("old/config.json")
    no_temporary_files("old")


def test_synth_removes_the_shards_of_what_it_replaces():
    shutil.rmtree("old", ignore_errors=True)
    run(f"synth --config {MODEL} -o old --shards 4")
    shutil.copy("real.safetensors", "old/other.safetensors")
    os.remove("old/model-00004-of-00004.safetensors")
    with open("old/model.safetensors.index.json", encoding="utf-8") as f:
        index = json.load(f)
    index["weight_map"].update(a="../real.safetensors", b="config.json", c=1)
    write("old/model.safetensors.index.json", index)
    for shards, weights in ((2, ["model-00001-of-00002", "model-00002-of-00002", "other"]), (1, ["model", "other"])):
        run(f"synth --config old -o old --shards {shards} --force", "tensors")
        assert sorted(glob.glob("*.safetensors", root_dir="old")) == [f"{name}.safetensors" for name in weights]
        run("info --model old", "qwen3_vl")
    assert os.path.exists("real.safetensors")


def test_synth_replaces_no_link():
    for name in ("preprocessor_config.json", "model.safetensors"):
        shutil.rmtree("old", ignore_errors=True)
        run(f"synth --config {MODEL} -o old")
        os.rename(f"old/{name}", "blob")
        os.symlink("../blob", f"old/{name}")
        was = read("blob"), read("old/config.json")
        run(f"synth --config {GOLDEN}/qwen2_vl -o old --force", f"old/{name} is a symbolic link", code=3)
        assert (read("blob"), read("old/config.json")) == was, name
        os.remove("blob")


def test_synth_refuses_a_path_that_is_too_long():
    above = f"{'x' * 199}/" * 20
    os.makedirs(above)
    for name in glob.glob(f"{MODEL}/*config.json"):
        shutil.copy(name, above)
    each(3, (f"synth --config {MODEL} -o {above}end --force", "end: the path has 4003 bytes; at most 4000"),
         (f"synth --config {above}end -o never", "end: the path has 4003 bytes; at most 4000"))
    assert not os.path.exists(f"{above}model.safetensors") and not os.path.exists("never")


def test_a_made_clip_as_a_record():
    assert run("synth --clip motion.mp4 --force --json").record == {
        "clip": "motion.mp4", "frames": 100, "fps": 25, "width": 320, "height": 240}
    assert not run("synth --clip motion.mp4 --force --json=made.json").out
    assert json.loads(read("made.json"))["clip"] == "motion.mp4"


def test_an_output_that_is_an_input():
    os.mkdir("in")
    kept = ("safe.ppm", "safe.png", "in/a.safetensors", "in/model.ppm", "named/pytorch_model.bin", "named/extra.gguf",
            "blob", "t.safetensors")
    for name in kept:
        shutil.copy("grey.ppm", name)
    os.symlink("../blob", "named/linked")
    os.link("t.safetensors", "u.png")
    an_input = "would be overwritten, but it is"
    safe, of_named = f"safe.ppm {an_input} an input", f"{an_input} a file of named"
    encode, one, named = f"{ENCODE} safe.ppm", "-o s.safetensors", "encode safe.ppm --model named"
    write("in/list", {"path": "safe.ppm", "key": "copy/model-00001-of-00003"})
    each(2, *((f"{encode} -o {name}", f"{safe} (safe.ppm)")
              for name in ("safe.ppm", "./safe.ppm", "named/../safe.ppm", f"{os.getcwd()}/safe.ppm")),
         (f"{ENCODE} safe.png {one} --drawing safe.png", f"safe.png {an_input} an input"),
         ("info safe.ppm --json=safe.ppm", safe),
         (f"profile --model {MODEL} safe.ppm --json=safe.ppm", safe),
         (f"{VERIFY} --clip safe.ppm --json=safe.ppm", safe),
         (f"{named} -o named", f"named {an_input} an input"),
         ("cache fill --model named --list list.txt -o named", f"named {an_input} an input"),
         (f"{named} -o named/config.json", f"config.json {of_named}"),
         ("verify --model named --json=named/config.json", f"config.json {of_named}"),
         # weights may have any name, and a link to them another folder; a new name may be taken for one
         *((f"{named} -o {name}", f"{name} {of_named}") for name in
           ("named/pytorch_model.bin", "named/extra.gguf", "named/preprocessor_config.json", "blob")),
         (f"{named} -o named/new.gguf", "named/new.gguf would be taken for a file of named"),
         (f"{ENCODE} --list in/list -o in/x --json=in/list", "an input (in/list)"),
         (f"{ENCODE} --list in/list -o in/x --failures safe.ppm", safe),
         (f"cache fill --list in/list --model {MODEL} -o in/c --json=safe.ppm", safe),
         (f"info --list in/list --model {MODEL} --json=safe.ppm", safe))
    os.mkdir("named/folder")  # a folder in there is free
    shutil.copy("grey.ppm", "named/folder/safe.ppm.safetensors")
    run(f"{named} -o named/folder", "tokens")
    # two outputs are two files, whether they exist already or not
    apart = "are two outputs to the same file"
    each(2, (f"{encode} -o v.safetensors --failures ./v.safetensors", f"v.safetensors and ./v.safetensors {apart}"),
         (f"{encode} -o t.safetensors --drawing u.png", f"u.png {apart}"),
         (f"{encode} -o nowhere/t --failures nowhere/t", f"nowhere/t and nowhere/t {apart}"),
         (f"{ENCODE} grey.ppm other.ppm -o many --json=many/grey.ppm.safetensors",
          f"many/grey.ppm.safetensors {apart}"))
    # a list's outputs, one by one
    shutil.copytree("named", "in/copy")
    run("encode --list in/list --model in/copy -o in",
        f"copy/model-00001-of-00003.safetensors {an_input} a file of in/copy", code=2)
    write("in/list.safetensors", {"path": "safe.ppm", "key": "list"})
    write("in/list", {"path": "in/a.safetensors", "key": "a"})
    each(2, (f"{ENCODE} --list in/list.safetensors -o in", f"in/list.safetensors {an_input} an input"),
         (f"{ENCODE} --list in/list -o in", f"in/a.safetensors {an_input} an input"),
         (f"{ENCODE} in/a.safetensors -o in/a.safetensors", f"in/a.safetensors {an_input} an input"))
    same("grey.ppm", *kept)
    run(f"{encode} -o t.safetensors --failures /dev/null --json=/dev/null")


def test_memory_does_not_grow_with_the_clip():
    """768 frames take at most 64 MiB more than 16 frames of the same size."""
    run("info motion.mp4", "100 frames at 25 fps")
    rss = {}
    for frames in (16, 64 if SANITIZED else 768):
        record = run(f"{ENCODE} motion.mp4 -o long_{frames}.safetensors --num-frames {frames} "
                     "--max-pixels 100000000 --json", f'"frames":{frames},').record
        rss[frames] = record["peak_rss_bytes"]
    assert SANITIZED or rss[768] - rss[16] < 64 << 20
    # decoding overlaps with encoding, and still gives the same bytes every time
    run(f"{ENCODE} motion.mp4 -o long.safetensors --num-frames 16 --max-pixels 100000000", "tokens")
    same("long.safetensors", "long_16.safetensors")


def test_like():
    """info and the file name the rules that are used, and options of other rules are refused."""
    like = "--like qwen-vl-utils"
    run("info motion.mp4 --fps 5", "20 frames of 320x256: grid_thw 10,16,20, as transformers does\n")
    run(f"info motion.mp4 {like}", "8 frames of 448x320: grid_thw 4,20,28, as qwen-vl-utils does\n")
    run(f"info motion.mp4 {like} --json", '"like":"qwen-vl-utils"', '"sampled_fps":2.0,')
    run(f"info motion.mp4 {like} --fps 4 --total-pixels 1 --min-pixels 20000 --max-pixels 30000",
        "16 frames of 160x96")
    run(f"{ENCODE} motion.mp4 -o like.safetensors {like}", "560 tokens")
    assert made("like.safetensors")["like"] == "qwen-vl-utils"
    assert made("like.safetensors")["second_per_grid_ts"] == 1.0
    assert made("long_16.safetensors")["like"] == "transformers"
    each(2, (f"{ENCODE} motion.mp4 -o no.safetensors {like} --cap-pixels", "--cap-pixels is only for transformers"),
         (f"{ENCODE} motion.mp4 -o no.safetensors --total-pixels 9",
          "--total-pixels is only for the rules of qwen-vl-utils"),
         (f"info motion.mp4 {like} --num-frames 102", "sample 102 frames; it can sample 2 to 100"),
         (f"info motion.mp4 {like} --max-pixels 5", "at most 5 pixels are allowed, but"))
    assert not os.path.exists("no.safetensors")


def test_small_chunks():
    """Several are in progress at once, and a drawing has each chunk's own frames."""
    for name in "ab":
        run(f"{ENCODE} motion.mp4 -o {name}.safetensors --num-frames 15 --chunk-rows 320 --drawing {name}.png",
            "tokens")
    same("a.safetensors", "b.safetensors")
    same("a.png", "b.png")
    # a frame pair with more patches than that uses the plan that suits the clip
    run(f"{ENCODE} motion.mp4 -o a.safetensors --num-frames 15 --chunk-rows 100", "640 tokens")


def files_in(folder):
    return sorted(os.path.relpath(os.path.join(at, name), folder)
                  for at, _, found in os.walk(folder) for name in found)


def test_a_list():
    """It has a path or JSON per line, and folders are created for keys."""
    os.mkdir("listed")
    write("list.txt", "grey.ppm", '{"path":"motion.mp4","key":"deep/er/motion","max_frames":6}', "",
          '{"path":"missing.mp4"}', '{"path":"motion.mp4","key":"other","fps":1,"max_pixels":400000}',
          '{"path":"listed","key":"folder"}')
    ran = run(f"{ENCODE} --list list.txt -o listed --json", "2 of 5 clips failed", code=1)
    records = ran.records
    job = next(record["job"] for record in records if "job" in record)
    assert (job["clips"], job["failed"], job["not_done"], job["interrupted"]) == (5, 2, 0, False)
    assert job["limit"].isalpha() and job["stages"]["decode_s"] >= 0
    is_rate(job, "sampled_frames_per_s", "frames", "seconds")
    is_rate(job, "tokens_per_s", "tokens", "seconds")
    # each clip has a record, with an error text if it failed; progress has one at least at the beginning
    assert records[0]["progress"]["total"] == 5
    clips = {record.get("key", record["clip"]): record for record in records if "clip" in record}
    assert len(clips) == 5
    assert [clips["deep/er/motion"][name] for name in ("clip", "status")] == ["motion.mp4", "ok"]
    assert [clips["folder"][name] for name in ("clip", "status", "code")] == ["listed", "failed", "QV_EIO"]
    assert clips["folder"]["error"].startswith("listed: not a regular")
    assert files_in("listed") == ["deep/er/motion.safetensors", "grey.ppm.safetensors", "other.safetensors"]
    run(f"{ENCODE} --list - -o again --device 0,0 --quiet", "2 of 5 clips failed", code=1, stdin="list.txt")
    assert files_in("again") == files_in("listed")
    for name in files_in("again"):
        same(f"again/{name}", f"listed/{name}")
    run(f"{ENCODE} --list list.txt -o again", " to load the model); then ", code=1)


def test_a_stretch_of_a_clip_has_the_frames_of_the_whole_clip():
    sampling = "--fps 12.5 --min-frames 1"
    write("cuts.txt", {"path": "motion.mp4", "key": "cut", "start": 1.6, "end": 2.4},
          {"path": "motion.mp4", "key": "late", "start": 3.6}, {"path": "motion.mp4", "key": "behind", "start": 4},
          {"path": "grey.ppm", "key": "picture", "end": 1})
    run(f"{ENCODE} --list cuts.txt -o listed {sampling}", "2 of 4 clips failed",
        "motion.mp4: start 4: no frame lies in this stretch; the clip has 100 frames at 25 per second, the last one at 3.96 s",
        "grey.ppm: start 0, end 1: an image has no duration", code=1)
    shutil.copy("motion.mp4", "copy.mp4")  # several clips, so that they are packed as those of a list are
    run(f"{ENCODE} motion.mp4 copy.mp4 -o many {sampling} --start 1.6 --end 2.4", "tokens")
    same("many/motion.mp4.safetensors", "listed/cut.safetensors")
    cut = made("listed/cut.safetensors")
    assert [cut[name] for name in ("source_frames", "first_frame", "cut_frames", "sampled_frames")] == [100, 40, 20, 10]
    run("info motion.mp4 --start 1.6 --end 2.4", "stretch    20 frames from frame 40: 1.6 s to 2.4 s")


def test_clips_inside_a_file():
    """As in a tar shard."""
    at, size = os.path.getsize("grey.ppm"), os.path.getsize("motion.mp4")
    with open("shard.tar", "wb") as f:
        f.write(read("grey.ppm") + read("motion.mp4") + read("grey.ppm"))
    write("shard.txt", {"path": "shard.tar", "key": "inside", "offset": at, "bytes": size}, "motion.mp4",
          {"path": "shard.tar", "key": "last", "offset": at + size}, "grey.ppm")
    run(f"{ENCODE} --list shard.txt -o shards", "tokens")
    for inside, alone in (("inside", "motion.mp4"), ("last", "grey.ppm")):
        tokens = [read_file(f"shards/{name}.safetensors")[1] for name in (inside, alone)]
        assert tokens[0] == tokens[1], inside
    write("shard.txt", {"path": "shard.tar", "offset": at, "bytes": at + size + 1})
    run(f"{ENCODE} --list shard.txt -o shards", f"but the file has only {2 * at + size} bytes", code=1)


def member(name, data=b"x" * 700, at=(), form=tarfile.GNU_FORMAT, unit=0, **fields):
    """Returns a member of a tar file, with bytes at places of its header. unit 256: its sum is of signed bytes."""
    info = tarfile.TarInfo(name)
    for field, value in {"size": len(data), **fields}.items():
        setattr(info, field, value)
    blocks = bytearray(info.tobuf(form, "utf-8", "surrogateescape"))
    header = blocks[-512:]
    for place, there in at:
        header[place:place + len(there)] = there
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(byte - unit * (byte > 127) for byte in header)
    return bytes(blocks[:-512] + header + data + bytes(-len(data) % 512))


def list_tar(*members, code=0, says=(), end=bytes(1024)):
    """Lists a tar file. Returns its records, by name."""
    with open("t.tar", "wb") as f:
        f.write(b"".join(members) + end)
    ran = run("list t.tar", *says, code=code)
    assert code or not ran.err, ran
    assert all(record["key"].startswith("t/") and record["path"] == "t.tar" for record in ran.records)
    return {record["key"][2:]: record for record in ran.records}


def test_names_and_numbers_of_tar_files():
    # GNU's own format has times, of incremental archives, where ustar has the first part of a long name
    assert [*list_tar(member("d/a.mp4", at=[(345, b"15302515443\0" * 2)]))] == ["d/a.mp4"]
    long = "p" * 100 + "/" + "n" * 90 + ".mp4"
    for form in tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT:
        assert [*list_tar(member(long, form=form), member("b.mp4", form=form))] == [long, "b.mp4"]
    assert [*list_tar(member("a.mp4", at=[(124, b"\x80" + (700).to_bytes(11, "big"))]))] == ["a.mp4"]
    for much in 2**64, 2**63, 2**88, -1024:
        size = ((1 << 95) + 700 + much) % (1 << 96)
        list_tar(member("a.mp4", at=[(124, size.to_bytes(12, "big"))]), code=3, says=["t.tar: truncated"])
    for unit in 0, 256:  # sums of unsigned and of signed bytes
        assert [*list_tar(member("\udce9.mp4", unit=unit))] == ["%E9.mp4"]
    # a header of extended attributes
    for size in 100000, 1000000:
        assert [*list_tar(member("a.mp4", form=tarfile.PAX_FORMAT, pax_headers={"SCHILY.xattr.user.x": "y" * size}))]
    list_tar(member("a.mp4", form=tarfile.PAX_FORMAT, pax_headers={"SCHILY.xattr.user.x": "y" * 1100000}), code=3,
             says=["t.tar: a header has 1100029 bytes; at most 1048576 are allowed"])
    name = os.fsdecode(b"s\xff.tar")
    shutil.copy("t.tar", name)
    assert not run(f"list {name}", "s?.tar: a list cannot contain this path: it is not UTF-8", code=3).out


def test_sparse_files_and_hard_links_in_tar_files_are_left_out():
    with open("sparse.mp4", "wb") as f:
        for i in range(60):  # more parts than fit in a header and in one more block
            f.seek(i << 16)
            f.write(b"x")
    shutil.copy("motion.mp4", "first.mp4")
    os.link("first.mp4", "second.mp4")
    for how in ("gnu", "pax --sparse-version=0.0", "pax --sparse-version=0.1", "pax --sparse-version=1.0"):
        files = f"--format={how} first.mp4 second.mp4 sparse.mp4 grey.ppm"
        subprocess.run(["tar", "-Scf", "sparse.tar", *files.split()], check=True)
        listed = run("list sparse.tar", "qwenvit: sparse.tar: left out 2 members: sparse files and hard links", code=1)
        assert [record["key"] for record in listed.records] == ["sparse/first.mp4", "sparse/grey.ppm"], how
        run("info sparse.tar", "a tar file of 2 files; 2 with")
    link = member("./a.mp4", b"", type=b"1", linkname="a.mp4")  # as GNU tar writes a file that it is given again
    assert not list_tar(link, code=1, says=["t.tar: left out 1 member: sparse"])
    assert [*list_tar(member("a.mp4"), link, code=1, says=["t.tar: left out 1 member: sparse"])] == ["a.mp4"]


def test_a_list_of_a_tar_file_can_be_used():
    data = read("grey.ppm")
    listed = list_tar(member("n" * 4091 + ".ppm"), member("../a.ppm"), member("d/../b.ppm"), member("c.ppm", data),
                      member("n" * 4090 + ".ppm", data), code=1,
                      says=['left out 3 members: a key must not contain "..", begin with "__" or be longer than 4096 bytes'])
    assert [*listed] == ["c.ppm", "n" * 4090 + ".ppm"]
    write("tar.txt", *listed.values())
    run(f"cache fill --list tar.txt --model {MODEL} -o of_tar --dry-run", "2 to do")
    # as webdataset.tariterators names samples
    with open("w.tar", "wb") as f:
        f.write(b"".join(map(member, ("0001.mp4", "0001.txt", "d.e/0002.left.jpg", "./0003.png"))) + bytes(1024))
    assert [r["key"] for r in run("list w.tar --key sample").records] == ["0001", "d.e/0002", "./0003"]
    run("list w.tar --key name", "--key", code=2)
    os.rename("t.tar", "__t.tar")
    run("list __t.tar", "left out 5 members: a key must not contain", code=1)


def test_damaged_tar_files():
    whole = member("a.mp4")
    for end in b"", bytes(512), bytes(1024), bytes(700):
        assert [*list_tar(whole, end=end)] == ["a.mp4"]
    says = ["t.tar: truncated, or not a tar file"]
    long, pax = member("n" * 200), member("n", form=tarfile.PAX_FORMAT, pax_headers={"a": "b"})
    link = member("n", b"", type=b"1", linkname="l" * 200)
    for end in (whole[:1], whole[:511], bytes(1), b"\0" + whole[1:], long[:-1536], long[:-1536] + bytes(1024),
                pax[:-1536], link[:-512]):
        assert [*list_tar(whole, end=end, code=3, says=says)] == ["a.mp4"], end
    list_tar(whole[:-1], end=b"", code=3, says=says)
    # a bad one among several costs itself
    shutil.copy("t.tar", "bad.tar")
    list_tar(whole)
    for other in "bad.tar", "nobody.tar":
        assert "t/a.mp4" in [record["key"] for record in run(f"list {other} t.tar", code=1).records]
        run(f"list t.tar {other}", code=1)


def test_a_wrong_line_is_refused_before_any_work():
    for line, text in (
        ("grey.ppm", 'key "grey.ppm" is already used in line 1'),
        ("./grey.ppm", 'the file for key "grey.ppm" is already used in line 1'),
        ('{"path":"a","key":"grey.ppm"}', 'key "grey.ppm" is already used in line 1'),
        ('{"path":"a"', "neither a path nor a JSON object"),
        ('{"path":"a","path":"b"}', "neither a path nor a JSON object"),
        ('{"key":"a"}', 'missing "path"'),
        ('{"path":7}', '"path" must be a non-empty string'),
        ('{"path":"a","fps":0}', '"fps" must be a number above 0'),
        ('{"path":"a","max_frames":1.5}', '"max_frames" must be an integer of at least 1'),
        ('{"path":"a","offset":-1}', '"offset" must be an integer of at least 0'),
        ('{"path":"a","colour":"red"}', 'unknown field "colour"'),
        ('{"path":"a","start":-1}', '"start" must be a number of at least 0'),
        ('{"path":"a","start":"1"}', '"start" must be a number of at least 0'),
        ('{"path":"a","end":0}', '"end" must be a number above 0'),
        ('{"path":"a","start":2,"end":2.0}', '"end" (2) must be greater than "start" (2)'),
        ('{"path":"a","key":"b/../../c"}', 'key "b/../../c": the key must be a valid file name'),
        ('{"path":"a","key":"b/"}', 'key "b/": the key must be a valid file name'),
        ("# clips", '"# clips" is a comment, which lists do not allow'),
        ("#a", '"#a" is a comment, which lists do not allow: remove it (for a file of this name write {"path": "#a"})'),
        ("[", '"[" begins a JSON array: write one object per line'),
        ("__a", 'key "__a": a key must not begin with "__"'),
        ("a\0b", "byte 2 of the line is NUL"),
        ("a" * (1 << 20), "longer than 1048575 bytes"),
    ):
        write("wrong.txt", "grey.ppm", line)
        run(f"{NOWHERE} --list wrong.txt -o wrong", f"wrong.txt:2: {text}", code=3)
    for header in ("path", "Path,key", "image\tcaption"):
        write("wrong.txt", header, "grey.ppm")
        run(f"{NOWHERE} --list wrong.txt -o wrong", "names a table's columns: write one path per line", code=3)
    write("wrong.txt", "grey.ppm", "", " ", "grey.ppm")  # blank lines count
    each(3, (f"{NOWHERE} --list wrong.txt -o wrong", 'wrong.txt:4: key "grey.ppm" is already used in line 1'),
         (f"{NOWHERE} --list nolist.txt -o wrong", "nolist.txt: cannot be opened"),
         (f"{NOWHERE} --list /dev/zero -o wrong", "/dev/zero:1: longer than 1048575 bytes"),
         (f"{NOWHERE} --list list.txt -o grey.ppm", "cannot be created: File exists"))
    assert not os.path.exists("wrong")


def test_lists_of_editors_on_windows():
    """With blank lines, and a name that begins with # as JSON."""
    shutil.copy("grey.ppm", "#grey.ppm")
    with open("odd.txt", "wb") as f:
        f.write(b'\357\273\277grey.ppm\r\n  \r\n  {"path": "#grey.ppm"}\r\n')
    run(f"{ENCODE} --list odd.txt -o odd", "tokens")
    assert files_in("odd") == ["#grey.ppm.safetensors", "grey.ppm.safetensors"]


def test_verify():
    """Is it the same model?"""
    against = f"{MODEL}/expected.safetensors"
    small = "--grid 1,8,12 --threads 2"
    said = run(f"{VERIFY} {small} --backend {native()}", "0 failed").out
    assert re.search("blocks.2 *bf16", said) and re.search("unwatched *f32", said)
    sampled = re.search("sampled    ([0-9]*) frames of ([0-9x]*): ", run(f"info motion.mp4 --model {MODEL}").out)
    each(0, (f"{VERIFY} --grid 1,4,4", "0 failed"),  # an input of few rows
         (f"{VERIFY} --grid 1,4,4 --dtype f32", "compared: qwenvit with itself"),
         # it samples and sizes the clip as encode does
         (f"{VERIFY} --clip motion.mp4 --dtype f32", "0 failed", "of {} sampled frames as {}".format(*sampled.groups())),
         (f"{VERIFY} {small} --dtype f32 --legend", "cosine        of the worst row"),
         (f"{VERIFY} --clip grey.ppm --dtype f32", "1 of 1 sampled frames"),
         (f"{VERIFY} --against {against} --dtype f32", "which another program computed"),
         (f"{VERIFY} {small} --against-backend ref --dtype f32", "0 failed"))
    quiet = run(f"verify --model {GOLDEN}/qwen3_vl_moe {small} --quiet --json", '"ok":true')
    assert not quiet.err
    other = run(f"verify --model synthetic --against {against} --json",
                "verify: against: patch_embed in f32: worst distance", code=1)
    for ran in (quiet, run(f"{VERIFY} --against {against} --json", '"check":"against"'), other):
        said = ran.record
        assert said["version"] and said["machine"]["device"] and said["grid_thw"] and said["rows"]
        assert said["ok"] == all(row["ok"] for row in said["rows"])
        assert {"check", "name", "dtype", "ok"} <= set.intersection(*map(set, said["rows"]))
    assert not said["ok"] and "worst distance" in said["rows"][0]["why"]
    with open("cut.safetensors", "wb") as f:
        f.write(read(against)[:20000])
    each(3, (f"{VERIFY} --against cut.safetensors", "cut.safetensors"),
         (f"verify --model {GOLDEN}/qwen4_exp --against {against}", "pixel_values"),
         (f"{VERIFY} --clip missing.mp4", "missing.mp4"), ("verify --model /nonexistent", "/nonexistent"))


def test_a_tower_in_a_gguf_file():
    """It is accepted wherever a folder is."""
    gguf = f"{GOLDEN}/../fuzz/corpus/gguf"
    os.mkdir("mmproj")
    file = "mmproj/mmproj-F32.gguf"
    shutil.copy(f"{gguf}/qwen3", file)
    shutil.copy(f"{gguf}/qwen2", "qwen2.gguf")
    write("mmproj/config.json")
    write("gguf.txt", "grey.ppm")
    tiny = "--min-pixels 64 --max-pixels 256"
    fill = f"cache fill --list gguf.txt -o gguf.cache {tiny} --model"
    each(0, (f"info {file}", "assumed    the file does not give pixel bounds"),
         ("info mmproj", "file       GGUF of 28 tensors: 28 F32"),
         ("info mmproj --json", '"note":"the file does not give'),
         ("info qwen2.gguf", "qwen2_vl vision tower"),
         (f"encode grey.ppm --model mmproj {tiny} -o gguf1.safetensors",),
         (f"encode grey.ppm --model {file} {tiny} -o gguf2.safetensors",),
         (f"{fill} mmproj", "1 done"), (f"{fill} {file}", "1 already there"),
         ("verify --model mmproj --grid 1,4,4", "0 failed"),
         ("info mmproj --image-mean 0.25,0.5,0.75 --image-std 1,1,2", "mean 0.25 0.5 0.75, std 1 1 2"))
    shutil.copy(file, "mmproj/mmproj-F16.gguf")
    with open("cut.gguf", "wb") as f:
        f.write(read("qwen2.gguf")[:1000])
    write("text.gguf", "a text, and no model")
    each(3, (f"{fill} qwen2.gguf", 'this cache has "model_type"'),
         (f"synth --config {file} -o never", "is a GGUF file; --config needs a folder"),
         ("encode grey.ppm --model mmproj -o g.safetensors", "has 2 GGUF files"),
         ("info cut.gguf", "cut.gguf: the number of tensors is 24, but only"),
         ("encode grey.ppm --model text.gguf -o g.safetensors", "text.gguf: is not a GGUF file"))
    os.remove("mmproj/mmproj-F16.gguf")
    each(2, ("info mmproj --image-mean 1,2", '--image-mean is "1,2"; it must be three numbers'),
         ("info mmproj --image-std 1,1,0", "image_std[2] is 0; it must be a number from"))


def test_the_decoder_may_lie_elsewhere():
    """A wheel's command is in one folder, and its decoder in another. Without one nothing is made."""
    os.makedirs("apart")
    os.makedirs("of_clips")
    shutil.copy("grey.ppm", "of_clips")
    apart = shutil.copy(QWENVIT, "apart/qwenvit")
    decoder = {"program": apart, "QWENVIT_DECODER": os.path.join(os.path.dirname(QWENVIT), "qwenvit-decoder")}
    run(f"{ENCODE} of_clips -o from_folder", "tokens", **decoder)
    run(f"cache fill of_clips --model {MODEL} -o from_folder_cache", "1 done", **decoder)
    for line in (f"{ENCODE} of_clips -o without", f"cache fill of_clips --model {MODEL} -o without"):
        run(line, "the decoding program qwenvit-decoder is neither", code=4, program=apart)
        assert not os.path.exists("without")


def test_bad_input():
    """It fails with exit code 3 and an error that names the file, and leaves nothing behind."""
    write("text.mp4", "not a clip")
    write("empty.mp4")
    os.mkfifo("pipe.mp4")
    run("info pipe.mp4", "pipe.mp4: not a regular file", code=3)  # it does not wait for a writer
    os.mkdir("bad")
    shutil.copy(f"{MODEL}/config.json", "bad")
    for data, text in ((b"version https://git-lfs.github.com/spec/v1\n", "Git-LFS pointer"),
                       (b"<!DOCTYPE html><html></html>", "HTML page"), (b"\037\213\b\0\0\0\0\0\0\0", "gzip data")):
        with open("bad/model.safetensors", "wb") as f:
            f.write(data)
        run("encode grey.ppm --model bad -o g.safetensors", text, code=3)
    with open("bad/model.safetensors", "wb") as f:
        f.write(read(f"{MODEL}/model.safetensors")[:200000])
    run("info bad", "missing (incomplete download?)", code=3)
    write("bad/config.json", '{"model_type":"qwen3_vl","vision_config":{"depth":0}}')
    each(3, ("info bad", "bad/config.json: vision_config.depth is 0; it must be"),
         *((f"{ENCODE} {name}.mp4 -o g.safetensors", f"{name}.mp4") for name in ("text", "empty", "missing")),
         ("encode grey.ppm --model /nonexistent -o g.safetensors", "/nonexistent"),
         (f"{ENCODE} grey.ppm -o no/such/folder/g.safetensors", "no/such/folder"),
         (f"{ENCODE} grey.ppm -o g.safetensors --drawing no/such/folder/p.png", "no/such/folder"))
    run(f"{ENCODE} grey.ppm text.mp4 -o many", "1 of 2 clips failed", code=1)
    run(f"{ENCODE} grey.ppm -o g.safetensors --max-pixels 20000", "grey.ppm", "max_pixels (20000) is less than min_pixels (65536) "
        "for images; lower min_pixels or raise max_pixels", code=2)
    write("bad/config.json", read(f"{MODEL}/config.json").decode())
    write("bad/preprocessor_config.json", '{"image_mean":[1,2]}')
    run("encode grey.ppm --model bad -o g.safetensors", "bad/preprocessor_config.json: image_mean is [1,2]; it must be", code=3)
    write("rows.txt", {"path": "grey.ppm", "max_pixels": 20000})  # a field of the list keeps its name
    run(f"{ENCODE} --list rows.txt -o rows", "grey.ppm: max_pixels (20000) is less than min_pixels (65536)", code=1)
    # options that do not suit one clip cost only that clip (here an image may be smaller than a clip)
    shutil.copytree(MODEL, "capped")
    os.chmod("capped/preprocessor_config.json", 0o600)
    write("capped/preprocessor_config.json",
          read(f"{MODEL}/preprocessor_config.json").decode().replace("16777216", "70000"))
    capped = "--model capped --min-pixels 80000 --num-frames 4"
    run(f"encode grey.ppm {capped} -o capped.out/", "min_pixels", code=2)
    run(f"encode grey.ppm motion.mp4 {capped} -o capped.out/", "1 of 2 clips failed", code=1)
    assert os.listdir("capped.out") == ["motion.mp4.safetensors"]
    assert not os.path.exists("g.safetensors")
    no_temporary_files(".")
