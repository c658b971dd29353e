#!/bin/sh
# SPDX-License-Identifier: MIT
# From nothing to vision tokens on the CPU: installs what is missing, builds, makes a checkpoint
# with the vision sizes of Qwen3.5-0.8B (or uses QWENVIT_MODEL, a checkpoint folder), makes a short
# clip with motion (or uses QWENVIT_CLIP), encodes it, and writes tokens and an image.
# A second run reuses these files and starts in seconds.
set -eu
cd "$(dirname "$0")/.."
sh tools/deps.sh
say() { printf '\n== %s\n' "$*"; }

say 'Building (build/release)'
[ -e build/release/build.ninja ] || cmake --preset release > /dev/null
cmake --build build/release --target qwenvit_command > build/demo.log || { cat build/demo.log; exit 4; }
qwenvit=build/release/qwenvit
out=build/demo
mkdir -p "$out"

model=${QWENVIT_MODEL:-$out/qwen3.5-0.8b-synthetic}
if [ -z "${QWENVIT_MODEL:-}" ] && [ ! -e "$model/config.json" ]; then
    say 'Making a checkpoint: sizes of Qwen3.5-0.8B, random weights (0.2 GB)'
    "$qwenvit" synth --config tools/demo/qwen3.5-0.8b -o "$model"
fi

clip=${QWENVIT_CLIP:-$out/clip.mp4}
if [ -z "${QWENVIT_CLIP:-}" ] && [ ! -e "$clip" ]; then
    say 'Making a clip: 4 seconds of 320x240 with motion'
    "$qwenvit" synth --clip "$clip"
fi

say 'What it is, and what it will cost'
"$qwenvit" info "$model"
"$qwenvit" info "$clip" --model "$model"

say 'Encoding'
"$qwenvit" encode "$clip" --model "$model" -o "$out/tokens.safetensors" --drawing "$out/tokens.png" > "$out/encoded.txt"
cat "$out/encoded.txt"
printf '\n%s: the vision tokens, as safetensors\n' "$out/tokens.safetensors"
printf '%s: frames above their tokens (first three principal components as colours)\n' "$out/tokens.png"
[ -z "${QWENVIT_MODEL:-}" ] || exit 0

say 'With real weights'
echo 'The weights are random, so these tokens mean nothing, but real weights need the same time. This clip takes about'
# a first run may wait for the disk
"$qwenvit" encode "$clip" --model "$model" -o "$out/tokens.safetensors" > "$out/encoded.txt"
seconds=$(sed -nE 's/.* tokens of [0-9]+ values in ([0-9.]+) s .*/\1/p' "$out/encoded.txt")
# times the "work" that `qwenvit info` prints for the demo's clip
awk -v seconds="${seconds:?}" '{ printf "  %5.1f s with the tower of %s\n", seconds * $1, substr($0, 5) }' << 'END'
1.0 Qwen3.5-0.8B
3.6 Qwen3-VL-2B and 4B
5.0 Qwen3-VL-8B and 32B
END
echo 'on this machine. Set QWENVIT_MODEL to the folder of a downloaded model to see its tokens.'
