#!/bin/sh
# SPDX-License-Identifier: MIT
# Fails if a shared library exports anything that does not start with qv_.
set -eu
exported=$(nm -D --defined-only "$1" | awk '$2 ~ /[A-Z]/ && $3 !~ /^_(init|fini|edata|end|_bss_start)$/ {print $3}')
foreign=$(printf '%s\n' "$exported" | grep -v '^qv_' || true)
[ -n "$exported" ] || { echo "$1: exports nothing"; exit 1; }
[ -z "$foreign" ] || { echo "$1 exports: $foreign"; exit 1; }
printf '%s\n' "$exported" | wc -l
