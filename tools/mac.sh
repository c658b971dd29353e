#!/bin/sh
# SPDX-License-Identifier: MIT
# For owners of a Mac, or of an NVIDIA GPU that qwenvit has never run on: builds, tests and times the
# predictions of docs/devices.md within 20 minutes, and writes a JSON file and a text file to send back.
# Usage: mac.sh            on macOS 14 or newer (M1 or newer) with Metal, on Linux with an NVIDIA GPU
#        mac.sh --small BUILD OUT   a few small cases with that build, as its test does in the emulator
# Exit code: 0 all steps passed; 1 a step failed (the files say which); 4 this machine has no such GPU.
set -eu
cd "$(dirname "$0")/.."
left=1200 small='' build='' out=build/kit
refuse() { echo "mac.sh: $*" >&2; exit 4; }
case ${1:-} in
--small) small=1 backend=metal build=${2:?} out=${3:?} ;;
'') ;;
*) echo "mac.sh: unknown option $1; the only option is --small BUILD OUT" >&2; exit 2 ;;
esac

# ---- does this machine have such a GPU? ----
system=$(uname -s)
if [ -z "$small" ] && [ "$system" = Darwin ]; then
    backend=metal build=build/metal
    [ "$(sysctl -n sysctl.proc_translated 2> /dev/null || echo 0)" != 1 ] ||
        refuse 'this shell runs under Rosetta; run: arch -arm64 sh tools/mac.sh'
    [ "$(uname -m)" = arm64 ] || refuse "this Mac has an Intel processor; the Metal backend needs Apple's M1 or newer"
    version=$(sw_vers -productVersion)
    [ "${version%%.*}" -ge 14 ] || refuse "this is macOS $version; the kernels' bfloat needs macOS 14 or newer"
    missing=''
    for tool in cmake ninja pkg-config; do
        command -v $tool > /dev/null || missing="$missing $tool"
    done
    for module in cmocka jansson libavcodec libavformat libavutil libjpeg libswscale libxxhash; do
        pkg-config --exists $module 2> /dev/null || missing="$missing $module"
    done
    [ -z "$missing" ] || refuse "missing:$missing; run: brew bundle --file=tools/Brewfile"
    xcrun --find clang > /dev/null 2>&1 || refuse "no compiler; run: xcode-select --install"
elif [ -z "$small" ]; then
    backend=cuda build=build/cuda
    command -v nvidia-smi > /dev/null || refuse 'neither an Apple GPU nor an NVIDIA GPU (nvidia-smi is missing)'
    capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1)
    [ "${capability%%.*}" -ge 8 ] || refuse "this GPU has compute capability $capability; qwenvit needs 8.0 (Ampere) or newer"
    PATH=$PATH:/usr/local/cuda/bin
    command -v nvcc > /dev/null || refuse "no nvcc; install CUDA's toolkit 12.8 or newer, and cuDNN 9.15 or newer"
fi

# ---- steps ----
mkdir -p "$out"
text=$out/qwenvit-$backend.txt json=$out/qwenvit-$backend.json records=$out/records.jsonl
steps=$out/steps.jsonl log=$out/step.log
rm -f "$text" "$json" "$records" "$steps"
touch "$records" "$steps"
# ends a command and all its children after SECONDS (macOS has no timeout command)
limited='$s = shift; $p = fork // exit 4; if (!$p) { setpgrp; exec @ARGV; exit 127 }
    $SIG{ALRM} = $SIG{INT} = $SIG{TERM} = sub { kill TERM => -$p }; alarm $s; waitpid $p, 0;
    exit($? & 127 ? 128 + ($? & 127) : $? >> 8)'
failed=0
# step NAME SECONDS COMMAND...: its output goes to the text file, and lines of JSON to the records
step() {
    name=$1 limit=$2
    shift 2
    [ "$limit" -lt "$left" ] || limit=$left
    printf '%-16s ' "$name"
    began=$(date +%s) status=0
    if [ "$limit" -le 0 ]; then
        status=skipped
        echo 'the time had run out' > "$log"
    else
        perl -e "$limited" "$limit" "$@" > "$log" 2>&1 < /dev/null || status=$?
    fi
    seconds=$(($(date +%s) - began))
    left=$((left - seconds))
    [ "$status" = 0 ] || failed=$((failed + 1))
    case $status in
    0) result=passed ;;
    143) result="stopped after $limit s" ;;
    skipped) result='skipped: no time was left' ;;
    *) result="failed, exit code $status" ;;
    esac
    echo "$result, $seconds s"
    { printf '\n== %s: %s, %s s\n$ %s\n' "$name" "$result" "$seconds" "$*"; tail -n 200 "$log"; } >> "$text"
    printf '{"step": "%s", "result": "%s", "seconds": %s}\n' "$name" "$result" "$seconds" >> "$steps"
    grep '^{.*}$' "$log" >> "$records" || true
    [ "$status" = 0 ]
}
# lines FILE: its lines as the elements of an array
lines() { sed '$!s/$/,/' "$1"; }
quoted() { printf '%s' "$*" | tr '\n' ' ' | tr -d '\000-\037' | sed 's/[\\"]/\\&/g; s/^/"/; s/$/"/'; }
finish() {
    {
        printf '{"kit": 1, "backend": "%s", "small": %s, "system": %s, "version": %s,\n"steps": [\n' "$backend" \
            "$([ "$small" ] && echo true || echo false)" "$(quoted "$(uname -srm; sw_vers -productVersion 2> /dev/null || true)")" \
            "$(quoted "$("$build/qwenvit" --version 2>&1 || true)")"
        lines "$steps"
        printf '],\n"records": [\n'
        lines "$records"
        printf ']}\n'
    } > "$json"
    rm -f "$records" "$steps" "$log"
    printf '\n%s of the steps failed. Please attach both files to an issue:\n%s\n%s\n' "$failed" "$json" "$text"
    [ "$failed" = 0 ] || exit 1
    exit 0
}
bench() { # NAME SECONDS bench's arguments
    name=$1 limit=$2
    shift 2
    step "$name" "$limit" "$build/qwenvit" bench "$@" --backend "$backend" --quiet --json="$records" || true
}

tests=$build/tests
echo "This takes at most $((left / 60)) minutes. Steps:"
case $backend$small in
metal)
    step build 600 sh -c 'cmake --preset metal -DQV_WERROR=OFF && cmake --build --preset metal' || finish
    step device 60 "$build/qwenvit" --version || true
    step checkop 120 "$tests/checkop" --backend metal --count 250 || true
    step checkop-shapes 60 "$tests/checkop" --backend metal --shapes tests/shapes/metal.txt || true
    step checkop-naive 60 "$tests/checkop" --backend metal --naive all --count 60 || true
    step checkconv 120 "$tests/checkconv" --backend metal --count 1500 || true
    step golden 60 "$tests/test_golden" || true
    ;;
cuda) # builds, and runs all tests of the backend
    step tests 800 sh tools/test.sh --gpu || true
    step device 60 "$build/qwenvit" --version || finish
    ;;
metal1)
    step device 60 "$build/qwenvit" --version || true
    step checkop 60 "$tests/checkop" --backend metal --count 6 || true
    step checkconv 60 "$tests/checkconv" --backend metal --count 10 || true
    step verify 60 "$build/qwenvit" verify --model tests/golden/qwen3_vl --grid 1,2,4 --backend metal --json || true
    bench tower 60 tower --model tests/golden/qwen3_vl --grid 1,2,4 --repeats 1 --budget 1
    finish
    ;;
esac
model=$build/tower-m # a tower of real size with random weights: 0.8 GB; test.sh --gpu made it already
[ -e "$model/config.json" ] ||
    step model 120 "$build/qwenvit" synth --config tools/demo/qwen3-vl-2b -o "$model" || finish
step info 60 "$build/qwenvit" info "$model" --backend "$backend" || true
step verify 120 "$build/qwenvit" verify --model "$model" --backend "$backend" --json || true
bench patch-embed 60 patch-embed --model "$model"
bench gemm 90 gemm --dtype bf16
bench conv3d 90 conv3d
bench tower 90 tower --model "$model"
bench tower-6080 120 tower --model "$model" --grid 8,20,38
step profile 90 "$build/qwenvit" profile --model "$model" --backend "$backend" --quiet --json="$records" || true
finish
