#!/bin/sh
# SPDX-License-Identifier: MIT
# From nothing to vision tokens on the CPU: installs what is missing, builds, makes a checkpoint
# with the vision sizes of Qwen3-VL-2B (or takes QWENVIT_MODEL, a checkpoint folder), makes a short
# clip with motion (or takes QWENVIT_CLIP), encodes it, and writes tokens and an image.
# A second run finds everything made and starts in seconds.
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

model=${QWENVIT_MODEL:-$out/qwen3-vl-2b-synthetic}
if [ -z "${QWENVIT_MODEL:-}" ] && [ ! -e "$model/config.json" ]; then
    say 'Making a checkpoint: sizes of Qwen3-VL-2B, random weights (0.8 GB)'
    "$qwenvit" synth --config tools/demo/qwen3-vl-2b -o "$model"
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
"$qwenvit" encode "$clip" --model "$model" -o "$out/tokens.safetensors" --drawing "$out/tokens.png"
printf '\n%s: the vision tokens, as safetensors\n' "$out/tokens.safetensors"
printf '%s: frames above their tokens (first three principal components as colours)\n' "$out/tokens.png"
[ -n "${QWENVIT_MODEL:-}" ] || printf 'The weights are random: the tokens are real arithmetic, but mean nothing.\nSet QWENVIT_MODEL to a downloaded Qwen3-VL folder for tokens that do.\n'
