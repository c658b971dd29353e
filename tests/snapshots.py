#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""snapshots.py OUT [BUILD] [PART...]: freezes what users see of the build in BUILD (build/release), as text below OUT.

    encode  each file that `encode` writes: its header and a hash of its data
    cache   each cache's description, and each key's record and tensors
    json    what every subcommand prints: lines of --json, text, errors, pages of --help
    chunks  the chunks that lists and jobs of many sizes are computed in (snapshot_chunks.c), and those of the
            test packs; the folder `order` also has when plans are made and chunks pulled

`diff -r` of the folders of two source trees, made on one machine, shows all that a change has changed. What depends on
time or on the commit is masked, and what comes in any order is sorted, so two runs of one tree give equal folders.
"""
import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

GOLDEN = Path(__file__).resolve().parent / "golden"
MODELS = sorted(p for p in GOLDEN.iterdir() if p.is_dir())
TIMES = r'("(?:[a-z_]*seconds[a-z_]*|\w+_s|\w+_per_s|over_\w+|peak_\w+|most_\w+|fill|limit|commit|day|mtime|sealed)":)' \
        r'(?:"[^"]*"|[-+.\de]+|null)'
JOB = r'("(?:chunks|tokens|done|failed|total)":)[-+.\de]+'  # of progress; a job's chunks depend on its threads
NUMBER = r"(?<=[:,\[ ])[-+]?\d[-+.\de]*"

OWN = [  # a row for each option that is a row's own, rows of several, and rows that cannot be done
    {"key": "fps", "fps": 1.5}, {"key": "more fps", "fps": 5, "max_frames": 12}, {"key": "max_frames", "max_frames": 4},
    {"key": "max_pixels", "max_pixels": 20000}, {"key": "start", "start": 1.25}, {"key": "end", "end": 2.5},
    {"key": "stretch/of all", "start": 1, "end": 3, "fps": 4, "max_frames": 6, "max_pixels": 30000},
    {"key": "the default", "fps": 2}, {"key": "first_frame", "path": "whole.gif", "first_frame": True},
    {"key": "first_frame of a clip", "first_frame": True}, {"key": "in tar", "path": "clips.tar"},
    {"key": "in tar, fps", "path": "clips.tar", "fps": 1, "start": 0.5}, {"key": "cut in tar", "path": "clips.tar", "bytes": 700},
    {"key": "image", "path": "rgb.jpg", "max_pixels": 70000}, {"path": "rgb.jpg"}, {"path": "grey.ppm"}, {"path": "whole.gif"},
    {"path": "damaged.mp4"}, {"path": "damaged.ts"}, {"path": "turned-90.mp4"}, {"path": "alpha.mkv"}, {"path": "interlaced.mp4"},
    {"path": "missing.mp4"}, {"path": "empty.mp4"}, {"path": "encrypted.mp4"}, {"path": "text.mp4"},
    {"key": "after its end", "start": 100}, {"key": "one pixel", "max_pixels": 1}, {"key": "outside", "path": "clips.tar", "offset": 10**9},
    {"key": "hidden\n\x1b é", "path": "three.mp4"}, {"path": "formats.mov"}, {"path": "sizes.ts"}, {"path": "levels.tiff"}]
BAD_ROWS = ['{"path": "three.mp4", "FPS": 1}', '{"path": "three.mp4", "fps": "1"}', '{"path": "three.mp4", "fps": 0}', '{"key": "a"}',
            '{"path": "three.mp4", "start": 3, "end": 2}', '{"path": "three.mp4", "max_frames": 1.5}', '{"path": "three.mp4",',
            '{"path": "three.mp4", "first_frame": 1}', 'three.mp4\nthree.mp4', '{"path": "three.mp4", "max_pixels": -1}',
            '{"path": "three.mp4", "offset": -1}', '{"path": "three.mp4", "end": 0}', '{"path": "three.mp4", "key": ""}', '[1]']
SAMPLING = {
    "plain": "", "fps": "--fps 3", "num-frames": "--num-frames 5", "frames": "--min-frames 6 --max-frames 8",
    "pixels": "--min-pixels 4096 --max-pixels 65536", "utils": "--like qwen-vl-utils",
    "total": "--like qwen-vl-utils --total-pixels 200000 --fps 4", "cap": "--cap-pixels --max-pixels 400000",
    "first": "--first-frame", "mean": "--image-mean 0.4,0.5,0.6 --image-std 0.2,0.3,0.25", "rows": "--chunk-rows 64"}
ENCODING = SAMPLING | {
    "f32-as-bf16": "--dtype f32 --output-dtype bf16", "bf16-as-f32": "--dtype bf16 --output-dtype f32",
    "f32": "--dtype f32 --output-dtype f32", "bf16": "--dtype bf16 --output-dtype bf16",
    "threads": "--decode-threads 2", "memory": "--decode-memory 100000000 --decode-seconds 30"}
CACHING = SAMPLING | {
    "packed": "--packed", "f16": "--tokens f16 --no-deepstack", "f32-packed": "--tokens f32 --packed --dtype f32",
    "parts": "--part-bytes 3000", "shard": "--shard 1/3"}
INFO = ["x264.mp4", "rgb.jpg", "whole.gif", "text.mp4", "empty.mp4", "--list all.txt", "--list own.txt --model qwen3_vl",
        "x264.mp4 --start 1 --end 2 --fps 7", "x264.mp4 three.mp4 --like qwen-vl-utils --model qwen2_5_vl",
        "x264.mp4 --model qwen3_vl --backend cpu", "x264.mp4 --model qwen2_5_vl --backend cpu --dtype f32", "long.mp4 --model glm4v",
        "qwen3_vl --backend cpu", "qwen2_5_vl --backend ref", "qwen3_vl --decode gpu", "bare", "nobody", "."]
BENCH = ["tower --model qwen3_vl --grid 1,4,4 --no-limit", "gemm --shape 64,64 --rows 4",
         "patch-embed --model qwen3_vl --rows 64", "conv3d --shapes shapes.txt"]
USAGE = ["", "--help", "--version", "decode", "encode", "encode three.mp4", "encode --modell x three.mp4", "encode three.mp4 --model",
         "encode three.mp4 --num-frames 0", "encode three.mp4 --fps 0 --model qwen3_vl -o no", "info qwen3_vl --dtype f64",
         "encode three.mp4 --fps x --model qwen3_vl -o no", "encode three.mp4 --max-pixels -1 --model qwen3_vl -o no",
         "encode three.mp4 --fps 1 --num-frames 4 --model qwen3_vl -o no", "encode three.mp4 --like x --model qwen3_vl -o no",
         "encode three.mp4 --like qwen-vl-utils --num-frames 3 --model qwen3_vl -o no", "encode three.mp4 --model nobody -o no",
         "encode three.mp4 --total-pixels 5000 --model qwen3_vl -o no", "encode three.mp4 --decode x --model qwen3_vl -o no",
         "encode three.mp4 --start 3 --end 2 --model qwen3_vl -o no", "encode three.mp4 --min-frames 9 --max-frames 4 --model qwen3_vl -o no",
         "encode three.mp4 --min-pixels 9000 --max-pixels 100 --model qwen3_vl -o no", "encode a/three.mp4 three.mp4 --model qwen3_vl -o no",
         "encode https://host/clip.mp4 --model qwen3_vl -o no", "encode three.mp4 --image-mean 1 --model qwen3_vl -o no",
         "encode three.mp4 --model qwen3_vl -o three.mp4", "verify --model qwen3_vl --grid 1,4,4 --dtype f32", "synth --config qwen3_vl -o synth",
         "synth --clip made.mp4", "cache", "cache status none", "cache fill -o nobody", "cache fill --list own.txt -o no"]


class Snapshots:
    def __init__(self, out, build):
        self.out, self.build = Path(out).absolute(), Path(build).absolute()
        self.programs = self.build / "tests"
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("QV_", "QWENVIT_", "ONEDNN_"))}

    def enter(self, work):
        """Makes the clips, lists and models in the folder where all commands run."""
        os.chdir(work)
        self.env |= {"HOME": work, "XDG_CACHE_HOME": work + "/kept", "LC_ALL": "C", "OMP_WAIT_POLICY": "passive"}
        for model in MODELS:
            shutil.copytree(model, model.name)
        shutil.copytree("qwen3_vl", "bare", ignore=shutil.ignore_patterns("*preprocessor*"))
        # The clips' writers leave some bytes to malloc, so that files differ by a few.
        names = subprocess.run([self.programs / "write_clips"], env=self.env | {"MALLOC_PERTURB_": "165"}, capture_output=True,
                               text=True, check=True).stdout.split()
        rgb = bytes(i * 7 % 251 for i in range(96 * 64 * 3))
        Path("grey.ppm").write_bytes(b"P6\n96 64\n255\n" + rgb)
        for name, encoder in ("rgb.jpg", ["mjpeg", "yuvj420p"]), ("rgb.png", ["png", "rgb24"]):
            Path(name).write_bytes(subprocess.run([self.programs / "image_write", *encoder, "96", "64"], input=rgb,
                                                  capture_output=True, check=True).stdout)
        for name, clip, at in ("damaged.mp4", "x264.mp4", 1500), ("damaged.ts", "whole.ts", 9000):
            clip = bytearray(Path(clip).read_bytes())
            clip[at:at + 300] = bytes(300)
            Path(name).write_bytes(clip)
        with tarfile.open("clips.tar", "w") as tar:
            for name in "two.mp4", "x264.mp4":
                tar.addfile(tarfile.TarInfo.frombuf(self.header(name), "utf-8", ""), open(name, "rb"))
        with tarfile.open("clips.tar") as tar:
            inside = tar.getmember("x264.mp4")
        rows = []
        for row in OWN:
            row = {"path": "x264.mp4"} | row
            if row["path"] == "clips.tar":
                row = row | {"offset": row.get("offset", inside.offset_data), "bytes": row.get("bytes", inside.size)}
            rows.append(json.dumps(row))
        Path("own.txt").write_text("\n".join(rows) + "\n")
        Path("few.txt").write_text("\n".join(rows[1::4]) + "\n")
        Path("all.txt").write_text("\n".join(names))
        Path("shapes.txt").write_text("small: n=1 d=4 h=8 w=8 c=4 o=4 kernel=2,2,2 stride=2,2,2 dtype=f32\n")
        for path in Path(".").iterdir():
            os.utime(path, (10**9, 10**9))

    @staticmethod
    def header(name):
        info = tarfile.TarInfo(name)
        info.size = os.path.getsize(name)
        return info.tobuf()

    def write(self, part, name, text):
        path = self.out / part / (re.sub(r"[^\w.,=-]+", "_", name).strip("_") or "none")
        path.parent.mkdir(parents=True, exist_ok=True)
        assert not path.exists(), path
        text = text.replace(str(self.build), "BUILD").replace(os.getcwd(), "WORK")
        path.write_bytes(text.encode("utf-8", "surrogateescape"))

    @staticmethod
    def mask(line, arguments, shape):
        line = re.sub(r'(?<="failures":\[{)(.*?)(?=}\])', lambda m: "},{".join(sorted(m[1].split("},{"))), line)
        line = re.sub(r"part-\d+-of-\d+-[\w.-]+", "part-#", line)
        if line.startswith('{"progress"'):
            line = re.sub(JOB, r"\1#", line)
        if line.startswith('{"job"'):
            line = re.sub('("chunks":)[0-9]+', r"\1#", line)
        line = re.sub(TIMES, r"\1#", line)
        if shape:  # names and types alone; what noise withheld is a number elsewhere
            line = re.sub(r'"withheld":{([^}]*)},?', lambda m: re.sub(r':"[^"]*"', ":1", m[1]) + ",", line)
            line = re.sub(NUMBER, "#", line)
            return "{" + ",".join(sorted(re.findall(r'"\w+":(?:[{\[#]|"[^"]*"|\w+)', line))) + "}"
        if not arguments.startswith("info"):  # which tells how long clips are
            line = re.sub(r"[\d.]+ (s|ms|min|h)\b", r"# \1", line)
        line = re.sub(r"[\d.]+ (sampled frames|tokens) (and|per)", r"# \1 \2", line)
        line = re.sub(r"^\d+ chunks?, \d+% full", "# chunks, #% full", line)
        return re.sub(r"^(  commit +)\w+", r"\1#", line)

    def run(self, arguments, name=None, ordered=True, shape=False, program="qwenvit", stdin=""):
        """Runs the command, and keeps what it prints."""
        done = subprocess.run([self.build / program, *arguments.split()], env=self.env, capture_output=True, input=stdin.encode())
        streams = []
        for stream in done.stdout, done.stderr:
            lines = [self.mask(s, arguments, shape) for s in stream.decode("utf-8", "surrogateescape").splitlines()
                     if not re.match(r"\d+/\d+ clips", s)]  # progress, as often as a second passes
            streams.append(lines if ordered else sorted(set(lines)))
        if shape:
            streams = [sorted(set(streams[0])), []]
        text = "\n".join([f"$ qwenvit {arguments}", f"exit {done.returncode}", *streams[0], "--", *streams[1], ""])
        self.write("json", name or arguments, text)

    @staticmethod
    def file(path):
        data = Path(path).read_bytes()
        head = 8 + struct.unpack("<Q", data[:8])[0] if str(path).endswith(".safetensors") else 0
        return f"{path}: {hashlib.sha256(data[head:]).hexdigest()}\n{data[8:head].decode()}\n"

    def files(self, name, folder):
        """Keeps the headers of all files of tokens in a folder, and hashes of all files."""
        self.write("encode", name, "".join(self.file(p) for p in sorted(Path(folder).rglob("*")) if p.is_file()))

    def encode(self, name, arguments):
        os.mkdir("o")
        self.run(f"encode -o o --quiet --json --decode-threads 1 {arguments}", "encode " + name, ordered=False)
        self.files(name, "o")
        shutil.rmtree("o")

    def encodes(self):
        for backend in "ref", "cpu":
            for name, options in ENCODING.items():
                self.encode(f"{name} {backend}", f"--list own.txt --model qwen3_vl --backend {backend} {options}")
            self.encode(f"drawing {backend}", f"x264.mp4 --drawing o/d.png -o o/t.safetensors --model qwen3_vl --backend {backend}")
        for model in (p.name for p in MODELS):
            for name in "plain", "total":
                self.encode(f"{name} {model}", f"--list few.txt --model {model} --backend cpu {SAMPLING[name]}")
        self.encode("all", "--list all.txt --model qwen3_vl --backend cpu")
        self.encode("stretch", "x264.mp4 three.mp4 --start 1 --end 3 --model qwen3_vl --backend cpu")
        for i, row in enumerate(BAD_ROWS):
            Path("bad.txt").write_text(row + "\n")
            self.run("encode --list bad.txt --model qwen3_vl -o no", f"encode bad row {i}")
        self.run("encode --list own.txt --model qwen3_vl -o shown --backend ref", ordered=False)
        self.run("encode x264.mp4 --model qwen3_vl -o one.safetensors --backend ref --fps 3")
        self.run("encode text.mp4 --model qwen3_vl -o one.safetensors --json")
        if (self.programs / "software_gpu").exists():  # stands in for a GPU's decoders
            self.gpu()

    def gpu(self):
        build, self.build = self.build, Path("gpu").absolute()
        self.build.mkdir()
        shutil.copy(build / "qwenvit", "gpu/qwenvit")
        shutil.copy(self.programs / "software_gpu", "gpu/qwenvit-decoder")
        self.encode("gpu", "x264.mp4 x265.mp4 vp9.webm whole.mkv --decode gpu --model qwen3_vl --backend ref --max-pixels 65536")
        self.run("info x264.mp4 vp9.webm --decode gpu --json")
        self.run("cache fill --list own.txt -o gpu.cache --decode gpu --model qwen3_vl --backend ref --json", "cache gpu", ordered=False)
        self.write("cache", "gpu", self.cache_text("gpu.cache"))
        self.build = build

    def cache_text(self, folder):
        """Tells all of a cache but in which part, and where in it, a key lies."""
        fields, keys, parts = set(), {}, []
        for path in Path(folder).glob("*.safetensors"):
            data = path.read_bytes()
            head = 8 + struct.unpack("<Q", data[:8])[0]
            header = json.loads(data[8:head])
            parts.append((header.pop("__metadata__"), header, data[head:]))
        for metadata, header, data in sorted(parts, key=lambda part: int(part[0]["sealed"])):
            fields.add(" ".join(metadata))
            tensors = {}
            for name, t in header.items():
                key, _, tensor = name.rpartition("/")
                hashed = hashlib.sha256(data[slice(*t["data_offsets"])]).hexdigest()
                tensors[key] = tensors.get(key, "") + f"    {tensor} {t['dtype']} {t['shape']} {hashed}\n"
            for line in data[slice(*header["__records"]["data_offsets"])].decode().rstrip(" ").split("\n"):
                key = json.loads(line)["key"]
                keys[key] = keys.get(key, "") + line + "\n" + tensors.get(key, "")
        lines = [Path(folder, "qwenvit-cache.json").read_text(), *sorted(fields), *(keys[k] for k in sorted(keys))]
        return "\n".join(lines)

    def caches(self):
        for name, options in CACHING.items():
            cache = name + ".cache"
            fill = f"cache fill --model qwen3_vl --backend ref --list own.txt -o {cache} {options}"
            self.run(f"{fill} --dry-run --json", f"cache dry-run {name}")
            self.run(f"{fill} --json", f"cache fill {name}", ordered=False)
            self.run(f"{fill} --quiet", f"cache again {name}", ordered=False)
            if os.path.exists(cache):
                self.write("cache", name, self.cache_text(cache))
        self.run("cache fill --model qwen3_vl --backend cpu --list all.txt -o all.cache", ordered=False)
        self.write("cache", "all", self.cache_text("all.cache"))
        self.run("cache fill --model qwen2_5_vl --backend cpu --list own.txt -o windows.cache --like qwen-vl-utils", ordered=False)
        self.write("cache", "windows", self.cache_text("windows.cache"))
        self.run("cache fill --model qwen3_vl --backend ref --list own.txt -o plain.cache --fps 9 --tokens f32", "cache refused")
        self.look("plain.cache")
        os.utime("x264.mp4", (10**9, 10**9 + 1))  # for a cache this is another file
        for i, what in enumerate(["status plain.cache", "fill --model qwen3_vl --backend ref --quiet -o plain.cache", "status plain.cache",
                                  "prune plain.cache --quiet"]):
            self.run(f"cache {what} --list own.txt", f"cache changed {i}", ordered=False)
            self.write("cache", f"changed {i}", self.cache_text("plain.cache"))
        os.utime("x264.mp4", (10**9, 10**9))

    def look(self, cache):
        for what in "status {}", "status {} --list own.txt", "keys {}", "check {}", "prune {} --dry-run", "prune {} --dry-run --list all.txt", \
                "delete {} fps --dry-run", "get {} image -o got.safetensors", "get {} missing.mp4 -o no", "get {} nobody -o no":
            for form in ("",) if what.startswith("get") else ("", " --json"):
                self.run("cache " + what.format(cache) + form, ordered=False)
        for form in "", " --json":
            self.run(f"info {cache}{form}", ordered=False)
        self.write("cache", "got", self.file("got.safetensors"))

    def prints(self):
        for arguments in INFO:
            for form in "", " --json":
                self.run(f"info {arguments}{form}")
        for arguments in USAGE:
            self.run(arguments)
        self.run("verify --model qwen3_vl --grid 1,4,4 --dtype f32 --json")
        self.run("synth --config qwen3_vl -o synth.json --json")
        for s in "encode", "cache fill", "cache prune", "info", "synth", "verify", "bench", "profile":
            for page in "", "=clips", "=device":
                self.run(f"{s} --help{page}")
        for arguments in BENCH:
            self.run(f"bench {arguments} --repeats 1 --threads 1 --backend cpu --json", "bench " + arguments, shape=True)
        self.run("profile --model qwen3_vl --grid 1,4,4 --repeats 1 --backend ref --json", "profile", shape=True)

    def chunks(self):
        for name in "snapshot_chunks", "test_packs":
            done = subprocess.run([self.programs / name], env=self.env | {"QV_CHUNK_TRACE": "trace", "QV_GOLDEN": str(GOLDEN)}, capture_output=True)
            if done.returncode:
                sys.exit(f"{name}: exit {done.returncode}\n{done.stdout.decode()}{done.stderr.decode()}")
            devices = {}
            for case in filter(None, re.split("^(?=== )", Path("trace").read_text(), flags=re.M)):
                device = re.sub("^== ", "", case).split(":")[0] if case.startswith("==") else name
                devices[device] = devices.get(device, "") + case
            for device, text in devices.items():
                self.write("order", device, text)
                self.write("chunks", device, re.sub("^(make|pull).*\n", "", text, flags=re.M))


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    snapshots = Snapshots(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "build/release")
    parts = {"encode": snapshots.encodes, "cache": snapshots.caches, "json": snapshots.prints, "chunks": snapshots.chunks}
    if snapshots.out.exists():
        sys.exit(f"{snapshots.out} exists; give the name of a new folder")
    with tempfile.TemporaryDirectory() as work:
        snapshots.enter(work)
        for part in sys.argv[3:] or parts:
            parts[part]()
        os.chdir("/")


if __name__ == "__main__":
    main()
