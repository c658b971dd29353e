#!/bin/sh
# SPDX-License-Identifier: MIT
# Tests a machine without a GPU: --backend cuda names what is missing and exits with 4, auto uses the CPU, and
# info reports why. If the backend is a separate library (LIBQWENVIT is given), neither the command nor
# LIBQWENVIT is linked with any part of CUDA. STUB is the toolkit's stub of the driver.
# Usage: cuda_absent.sh QWENVIT MODEL WORK [LIBQWENVIT [STUB]]
set -eu
qwenvit=$1 model=$2 work=$3 library=${4:-} stub=${5:-}
fail() { printf 'cuda_absent: %s\n' "$*" >&2; exit 1; }
# refused WORDS [ENVIRONMENT...]: --backend cuda fails with WORDS, and info with auto reports the same
refused() {
    words=$1 status=0
    shift
    said=$(env "$@" "$qwenvit" info "$model" --backend cuda 2>&1) || status=$?
    [ "$status" -eq 4 ] || fail "--backend cuda: exit $status, not 4: $said"
    printf '%s' "$said" | grep -qF "$words" || fail "not \"$words\": $said"
    said=$(env "$@" "$qwenvit" info "$model" 2>&1) || fail "$said"
    printf '%s' "$said" | grep -F 'skipped    cuda: ' | grep -qF "$words" ||
        fail "info does not say \"$words\": $said"
}

refused 'no NVIDIA '
said=$("$qwenvit" info "$model" --json)
printf '%s' "$said" | grep -q '"passed_over":"cuda: ' || fail "not in JSON: $said"
said=$("$qwenvit" bench gemm --backend auto --rows 1 --repeats 1 --json --dtype f32 2>&1) ||
    fail "--backend auto: $said"
printf '%s' "$said" | grep -q '"backend": *"cpu"' || fail "auto did not take the CPU: $said"

[ -n "$library" ] || exit 0
refused 'no libqwenvit_cuda.so in /nowhere' QWENVIT_BACKENDS=/nowhere
for file in "$qwenvit" "$library"; do
    ! readelf -d "$file" | grep -E 'NEEDED.*(cuda|cublas|cudnn|stdc\+\+)' || fail "$file needs that"
done
[ -e "$stub" ] || exit 0
# with a driver the library itself is opened, and asks it
mkdir -p "$work" && ln -sf "$stub" "$work/libcuda.so.1"
refused 'no NVIDIA GPU can be used: ' LD_LIBRARY_PATH="$work:${LD_LIBRARY_PATH:-}"
