#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compares rates, frame counts and durations with the values that follow from the packets that ffprobe prints.

    rates.py MEDIA_DUMP FOLDER [--clips WRITE_CLIPS] [--ffmpeg VERSION] [FILE..]

MEDIA_DUMP is tests/media_dump of a build; clips are made in FOLDER. Without FILE: clips of many containers, and those of
WRITE_CLIPS. --ffmpeg: the version of libavformat that MEDIA_DUMP is linked with; another ffprobe may read other packets, so
the test is skipped (77) then. Where torchcodec is installed and uses the same FFmpeg, it must agree, too.
"""
import argparse
import concurrent.futures
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile

try:
    from torchcodec.decoders import VideoDecoder
except Exception:  # not installed, or without its FFmpeg
    VideoDecoder = None


# ---- what is right -------------------------------------------------------------------------------

def quotient(text):
    num, den = map(int, text.split("/"))
    return num / den if num > 0 and den > 0 else 0.0


def rate_of(stream, packets):
    """Returns the rate by the packets of a stream, and whether all of them have a time."""
    shown = [p for p in packets if "D" not in p["flags"]]
    times = [(at, at + p.get("duration", 0)) for p in shown for at in [p.get("pts", p.get("dts"))] if at is not None]
    num, den = map(int, stream["time_base"].split("/"))
    if times:
        seconds = float(max(end for _, end in times)) * num / den - float(min(begin for begin, _ in times)) * num / den
        if seconds > 0 and 2**-31 <= len(shown) / seconds <= 2**31:
            return len(shown) / seconds, len(times) == len(shown)
    return quotient(stream["r_frame_rate"]) or quotient(stream["avg_frame_rate"]) or 24.0, False


def ffprobe(path):
    """Returns what rate_of() does for each video stream that is not a cover."""
    done = subprocess.run(["ffprobe", "-v", "quiet", "-of", "json", "-show_streams", "-show_packets", path], capture_output=True)
    said = json.loads(done.stdout or "{}")
    return [rate_of(s, [p for p in said.get("packets", []) if p["stream_index"] == s["index"]])
            for s in said.get("streams", []) if s["codec_type"] == "video" and not s["disposition"]["attached_pic"]]


def sampled(total, rate):
    """Returns the numbers of the frames that Qwen3VLVideoProcessor samples."""
    n = min(max(int(total / rate * 2), 4), 768, total)
    step = (total - 1) / (n - 1) if n > 1 else 0.0
    return [round(i * step) if i + 1 < n or n == 1 else total - 1 for i in range(n)]


def check(tool, path):
    """Returns the difference as a text, "" if there is none, or None if there is no clip to compare."""
    with tempfile.NamedTemporaryFile() as raw:
        done = subprocess.run([tool, path, raw.name], capture_output=True, text=True)
    ours = json.loads(done.stdout)
    if "error" in ours or ours["picture"]:
        return None
    timed = dict(ffprobe(path))
    if ours["source_fps"] not in timed:  # which of several streams is chosen, other tests know
        return f"rate {ours['source_fps']!r}, by packets {list(timed)}"
    seconds = [i / ours["source_fps"] for i in sampled(ours["source_frames"], ours["source_fps"])]
    if seconds != ours["timestamps"]:
        return f"{ours['n_frames']} frames at {ours['timestamps'][:4]}.., expected {len(seconds)} at {seconds[:4]}.."
    if VideoDecoder and timed[ours["source_fps"]]:
        try:
            rate = VideoDecoder(path, num_ffmpeg_threads=1).metadata.average_fps
        except Exception:  # it goes back to the beginning, which not all containers can
            return ""
        return "" if rate == ours["source_fps"] else f"rate {ours['source_fps']!r}, torchcodec's {rate!r}"
    return ""


# ---- clips ---------------------------------------------------------------------------------------

H264 = "-c:v libx264 -preset ultrafast -crf 35 -pix_fmt yuv420p -bf"
VARIABLE = "select='if(lt(n,20),1,not(mod(n,5)))'"
# of 24 frames per second: name, filter and codec, muxer's options
KINDS = [
    *[(name, f"{H264} 2", "") for name in ("a.mp4", "a.mov", "a.mkv", "a.flv", "a.ts", "a.avi", "a.asf", "a.nut")],
    ("fragments.mp4", f"{H264} 2", "-movflags frag_keyframe+empty_moov"), ("late.mp4", f"{H264} 2", "-use_editlist 0"),
    *[(f"variable.{end}", f"-vf {VARIABLE} -fps_mode vfr {H264} 0", "") for end in ("mp4", "mkv", "flv", "ts", "avi")],
    ("last.mkv", f"-vf setpts='if(eq(N,47),PTS+5/TB,PTS)' -fps_mode vfr {H264} 0", ""),
    *[(f"{codec}.{end}", f"-c:v {codec}", "") for codec, end in (
        ("libvpx", "webm"), ("libtheora", "ogv"), ("wmv2", "wmv"), ("gif", "gif"), ("apng", "apng"), ("mpeg4", "avi"), ("mpeg2video", "mpg"),
        ("mpeg2video", "mxf"), ("mjpeg", "mov"), ("mpeg4", "m4v"), ("libx264", "h264"))],
    *[(f"variable-{codec}.{end}", f"-vf {VARIABLE} -fps_mode vfr -c:v {codec}", "") for codec, end in (
        ("libvpx", "webm"), ("libtheora", "ogv"), ("gif", "gif"), ("apng", "apng"))],
]


def ffmpeg(*words):
    """Returns whether it could be made; some FFmpegs lack an encoder."""
    done = subprocess.run(["ffmpeg", "-v", "error", "-y", *words], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return not done.returncode


def each(work, items):
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(work, items))


def make_kinds():
    def make(kind):
        name, codec, muxer = kind
        form = ["-f", "apng"] if name.endswith(".apng") else []
        with_sound = ["-f", "lavfi", "-i", "sine=d=3"] if name in ("a.mkv", "a.mp4") else []
        return ffmpeg("-f", "lavfi", "-i", "testsrc2=s=96x64:r=24:d=2", *with_sound, *codec.split(), *muxer.split(), *form, name)

    made = [kind[0] for kind, done in zip(KINDS, each(make, KINDS)) if done]
    cuts = [(made_of, f"cut-{made_of}") for made_of in ("a.mp4", "a.mkv", "fragments.mp4") if made_of in made]
    return made + [to for of, to in cuts if ffmpeg("-ss", "0.4", "-i", of, "-t", "1", "-c", "copy", to)]


def version():
    done = subprocess.run(["ffprobe", "-version"], capture_output=True, text=True)
    return re.search(r"libavformat +([\d. ]+) /", done.stdout)[1].replace(" ", "")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("tool")
    p.add_argument("folder")
    p.add_argument("files", nargs="*")
    p.add_argument("--clips")
    p.add_argument("--ffmpeg")
    o = p.parse_args()
    if not shutil.which("ffmpeg") or not shutil.which("ffprobe"):
        print("ffmpeg and ffprobe are not installed (tools/deps.sh tests), skipped")
        return 77
    if o.ffmpeg and version() != o.ffmpeg:
        print(f"ffprobe has libavformat {version()}, and this build {o.ffmpeg}, skipped")
        return 77
    tool, clips = os.path.abspath(o.tool), o.clips and os.path.abspath(o.clips)
    files = [os.path.abspath(file) for file in o.files]
    os.makedirs(o.folder, exist_ok=True)
    os.chdir(o.folder)
    least = 0
    if not files:
        files, least = make_kinds(), 20
        if clips:
            files += subprocess.run([clips], capture_output=True, text=True, check=True).stdout.split()
    found = each(lambda path: check(tool, path), files)
    wrong = [f"{path}: {words}" for path, words in zip(files, found) if words]
    n = sum(words is not None for words in found)
    print(*wrong, f"{n} clips compared, {len(files) - n} files are not clips, {len(wrong)} differ", sep="\n")
    return bool(wrong) or n < least


if __name__ == "__main__":
    sys.exit(main())
