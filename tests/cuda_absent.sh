#!/bin/sh
# SPDX-License-Identifier: MIT
# On a machine without a GPU: --backend cuda says so and exits with 4, auto takes the CPU.
# Usage: cuda_absent.sh QWENVIT MODEL
set -eu
qwenvit=$1 model=$2
fail() { printf 'cuda_absent: %s\n' "$*" >&2; exit 1; }

status=0
words=$("$qwenvit" info "$model" --backend cuda 2>&1) || status=$?
[ "$status" -eq 4 ] || fail "--backend cuda: exit $status, not 4: $words"
printf '%s' "$words" | grep -q 'no NVIDIA GPU can be used' || fail "not in words: $words"
words=$("$qwenvit" bench gemm --backend auto --rows 1 --repeats 1 --json --dtype f32 2>&1) ||
    fail "--backend auto: $words"
printf '%s' "$words" | grep -q '"backend": *"cpu"' || fail "auto did not take the CPU: $words"
