#!/bin/sh
# SPDX-License-Identifier: MIT
# The command as its user runs it: encode, info, synth, bench, exit codes, error texts.
# Usage: command.sh QWENVIT GOLDEN WORK
set -eu
qwenvit=$1 golden=$2 work=$3
model=$golden/qwen3_vl
rm -rf "$work" && mkdir -p "$work" && cd "$work"
n=0

fail() { echo "FAILED: $*"; exit 1; }
# expect CODE WORDS COMMAND...: runs it, checks the exit code and that its output says WORDS
expect() {
    code=$1 words=$2; shift 2
    n=$((n + 1)) got=0
    "$@" > out.txt 2> err.txt < /dev/null || got=$?
    [ "$got" = "$code" ] || { cat out.txt err.txt; fail "exit $got, not $code: $*"; }
    cat out.txt err.txt | grep -qF -- "$words" || { cat out.txt err.txt; fail "no \"$words\": $*"; }
}

# a picture and a clip, made by the command's own libraries (a PPM is a picture FFmpeg reads)
{ printf 'P6\n96 64\n255\n'; head -c 18432 /dev/zero | tr '\0' '\152'; } > grey.ppm
expect 0 'picture' "$qwenvit" info grey.ppm

# usage
expect 0 'SUBCOMMAND' "$qwenvit" --help
for s in encode info synth bench; do expect 0 'example:' "$qwenvit" $s --help; done
expect 2 'no subcommand' "$qwenvit" decode
expect 2 'no clip given' "$qwenvit" encode
expect 2 '--model DIR is required' "$qwenvit" encode grey.ppm
expect 2 'no option --modell' "$qwenvit" encode --modell x grey.ppm
expect 2 'needs a value' "$qwenvit" encode grey.ppm --model
expect 2 '--num-frames is "0"' "$qwenvit" encode grey.ppm --num-frames 0
expect 2 'must be f32' "$qwenvit" info "$model" --dtype f64

# the work
expect 0 'tokens' "$qwenvit" encode grey.ppm --model "$model" -o a.safetensors --picture p.png
[ -s a.safetensors ] && [ -s p.png ] || fail 'encode wrote nothing'
expect 0 '"tokens":' "$qwenvit" encode grey.ppm --model "$model" -o b.safetensors --json
cmp a.safetensors b.safetensors || fail 'encoding twice gave other bytes'
expect 0 'bf16' "$qwenvit" encode grey.ppm --model "$model" -o c.safetensors --dtype bf16
expect 0 'f32' "$qwenvit" encode grey.ppm --model "$model" -o d.safetensors --backend ref --dtype f32
mkdir many && cp grey.ppm other.ppm
expect 0 'other.ppm' "$qwenvit" encode grey.ppm other.ppm --model "$model" -o many
[ -s many/grey.ppm.safetensors ] && [ -s many/other.ppm.safetensors ] || fail 'not both written'
expect 0 'deepstack' "$qwenvit" info "$model"
expect 0 'conv3d     still' "$qwenvit" info grey.ppm --model "$model"
expect 0 '"lowering":"still"' "$qwenvit" info grey.ppm --model "$model" --json

# a checkpoint of its own making
expect 0 'tensors' "$qwenvit" synth --config "$model" -o synthetic --seed 3
expect 0 'tokens' "$qwenvit" encode grey.ppm --model synthetic -o e.safetensors
expect 0 'tensors' "$qwenvit" synth --config "$model" -o sharded --seed 3 --shards 3
expect 0 'tokens' "$qwenvit" encode grey.ppm --model sharded -o f.safetensors
cmp e.safetensors f.safetensors || fail 'shards gave other tokens'
expect 0 'over limit' "$qwenvit" bench tower --model synthetic --grid 1,4,4 --repeats 2
expect 0 'resize' "$qwenvit" bench preprocess --size 90,160 --repeats 2

# memory does not grow with the clip: 768 frames within 64 MiB of 16 frames of the same size
expect 0 'motion.mp4: 4 seconds' "$qwenvit" synth --clip motion.mp4
expect 0 '100 frames at 25 fps' "$qwenvit" info motion.mp4
for frames in 16 768; do
    expect 0 "\"frames\":$frames," "$qwenvit" encode motion.mp4 --model "$model" -o long.safetensors \
        --num-frames $frames --max-pixels 100000000 --json
    eval "rss_$frames=$(sed 's/.*"peak_rss_bytes":\([0-9]*\).*/\1/' out.txt)"
    cp long.safetensors long_$frames.safetensors
done
grew=$((rss_768 - rss_16))
# (a sanitizer keeps freed memory, so there the figure means nothing)
[ -n "${QV_SANITIZED:-}" ] || [ "$grew" -lt 67108864 ] || fail "768 frames took $grew bytes more than 16"
# the command overlaps decoding with encoding, and still gives the same bytes every time
expect 0 'tokens' "$qwenvit" encode motion.mp4 --model "$model" -o long.safetensors --num-frames 16 \
    --max-pixels 100000000
cmp long.safetensors long_16.safetensors || fail 'encoding a clip twice gave other bytes'

# bad input: exit 3, names the file, leaves nothing behind
printf 'not a clip' > text.mp4
: > empty.mp4
expect 3 'text.mp4' "$qwenvit" encode text.mp4 --model "$model" -o g.safetensors
expect 3 'empty.mp4' "$qwenvit" encode empty.mp4 --model "$model" -o g.safetensors
expect 3 'missing.mp4' "$qwenvit" encode missing.mp4 --model "$model" -o g.safetensors
expect 3 '/nonexistent' "$qwenvit" encode grey.ppm --model /nonexistent -o g.safetensors
expect 3 'no/such/folder' "$qwenvit" encode grey.ppm --model "$model" -o no/such/folder/g.safetensors
expect 1 '1 of 2 clips failed' "$qwenvit" encode grey.ppm text.mp4 --model "$model" -o many
expect 4 'not in this build' "$qwenvit" encode grey.ppm --model "$model" -o g.safetensors --backend cuda
[ ! -e g.safetensors ] || fail 'a failed encode left a file'
[ -z "$(ls | grep tmp || true)" ] || fail "a temporary file was left: $(ls | grep tmp)"
echo "$n commands, all as expected"
