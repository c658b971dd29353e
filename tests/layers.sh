#!/bin/sh
# SPDX-License-Identifier: MIT
# Tests that object files lie in layers: a file may call those below it, and none of them calls back.
# Usage: layers.sh OBJECT...
set -eu
calls=$(nm -A "$@" | awk '
    { file = $1; sub(/:[^:]*$/, "", file); sub(/.*\//, "", file) }
    $(NF - 1) == "U" { needs[file, $NF] }
    $(NF - 1) ~ /^[BCDGRSTVW]$/ { has[$NF] = file }
    END {
        for (need in needs) {
            split(need, at, SUBSEP)
            if (at[2] in has)
                print at[1], has[at[2]]
        }
    }')
[ -n "$calls" ] || { echo "no calls between: $*"; exit 1; }
circles=$(printf '%s\n' "$calls" | tsort 2>&1 > /dev/null) || true
[ -z "$circles" ] || { printf 'these files call each other:\n%s\n' "$circles"; exit 1; }
