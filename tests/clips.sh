#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs the command with odd and hostile clips. Tests exit codes and texts, and, where strace is installed, that nothing
# but the file itself is opened.
# Usage: clips.sh QWENVIT WRITE_CLIPS MODEL WORK [UNLOCKED_DECODER]
set -eu
qwenvit=$1 write_clips=$2 model=$3 work=$4 unlocked=${5:-}
rm -rf "$work" && mkdir -p "$work/out" && cd "$work"
n=0

fail() { echo "FAILED: $*"; exit 1; }
# refused CLIP WORDS: the clip alone fails with exit code 3 and an error that names the file and contains WORDS
refused() {
    "$write_clips" "$1" > made.txt
    [ -s "$1" ] || [ "$1" = empty.mp4 ] || fail "$1 was not made"
    got=0 n=$((n + 1))
    "$qwenvit" encode "$1" --model "$model" -o out > out.txt 2> err.txt < /dev/null || got=$?
    [ "$got" = 3 ] || { cat out.txt err.txt; fail "$1: exit $got, not 3"; }
    grep -F -- "$1: " err.txt | grep -qF -- "$2" || { cat err.txt; fail "$1: no \"$2\""; }
    [ ! -e "out/$1.safetensors" ] || fail "$1 left a file"
}
refused empty.mp4 'the file is empty'
refused encrypted.mp4 'the video is encrypted; an unencrypted file is needed'
refused huge.png 'frames of 65535x65535; at most 16384x16384 pixels are supported'

# the measured rate and the header's, if they differ
"$write_clips" vfr.mkv vfr.mp4 > made.txt
"$qwenvit" info vfr.mkv | grep -q ', 40 frames at 0\.26[0-9]* fps (10 in its header), 152' || fail 'one rate'
"$qwenvit" info vfr.mkv --json | grep -q '"source_fps":0\.26.*"header_fps":10\.0' || fail 'no rate of the header'
"$qwenvit" info vfr.mp4 | grep -q ' fps, 152' || fail 'two rates, which are equal'

"$write_clips" three.mp4 > made.txt
# the first frame alone, of animations and clips; a list says it of one, and 1 is not true
"$write_clips" whole.gif > made.txt
"$qwenvit" info whole.gif three.mp4 --first-frame --json > first.json
[ "$(grep -c '"kind":"image".*"source_frames":1,.*"remark":""' first.json)" = 2 ] || fail "$(cat first.json)"
echo '{"path": "whole.gif", "first_frame": true}' > first.list
"$qwenvit" encode --list first.list --model "$model" -o first > first.txt || fail "$(cat first.txt)"
grep -q 'whole.gif: 1 frame of' first.txt || fail "$(cat first.txt)"
echo '{"path": "whole.gif", "first_frame": 1}' > first.list
! "$qwenvit" encode --list first.list --model "$model" -o first > first.txt 2>&1 || fail 'first_frame is 1'
grep -q '"first_frame" must be true or false' first.txt || fail "$(cat first.txt)"

echo "$n clips refused"

[ -n "$unlocked" ] || exit 0
command -v strace > /dev/null || { echo 'no strace here: what is opened was not watched'; exit 0; }
strace -f -o trace.txt true 2> /dev/null ||
    { echo 'strace cannot trace here: what is opened was not watched'; exit 0; }
# Lists what a run opens whose decoder is not locked down, without what it opens for any clip: libraries, the model,
# files in /proc. (A decoder that is locked down can open nothing at all, which test_clips.c shows.)
mkdir free
cp "$qwenvit" free/qwenvit
cp "$unlocked" free/qwenvit-decoder
opened() {
    LSAN_OPTIONS=detect_leaks=0 strace -f -e trace=open,openat,openat2,creat,socket,connect \
        -o trace.txt free/qwenvit encode "$1" --model "$model" -o out > out.txt 2>&1 || true
    ! grep -E '(socket|connect)\(' trace.txt || fail "$1: a socket"
    grep -E 'open(at|at2)?\(|creat\(' trace.txt | sed 's/^[^"]*"//; s/".*//' | grep -E "$2" > opened.txt ||
        fail "$1 itself was not seen to be opened"
}
for clip in hls.mp4 hls-master.mp4 dash.mp4 concat.mp4 sdp.mp4 subfile.mp4 http.mp4 rtsp.mp4 \
    reference.mp4 imf.mp4 elsewhere-url.mov elsewhere-alias.mov; do
    "$write_clips" "$clip" one.mp4 > made.txt
    opened "$clip" '\.(mp4|mov|ts|asf|m3u8)$'
    [ "$(sort -u opened.txt)" = "$clip" ] || { cat opened.txt; fail "$clip: more was opened"; }
done
echo '12 references followed by none'
