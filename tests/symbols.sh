#!/bin/sh
# SPDX-License-Identifier: MIT
# Tests that a shared library exports exactly what its headers declare. In a static library, hidden names meet
# those of the program that links it, so all of them must start with qv_ or qvm_.
# Usage: symbols.sh SHARED STATIC HEADER..., where STATIC is - if there is none
#        symbols.sh WHEEL: its extension exports only what Python calls, each backend only its entry, and neither
#        takes a name of ours from another library
set -eu
exports() { nm -D --defined-only "$1" | awk '{print $3}' | LC_ALL=C sort; }
case $1 in
*.whl)
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    python3 -m zipfile -e "$1" "$work"
    for library in "$work"/qwenvit/_core.*.so "$work"/qwenvit/libqwenvit_cuda*.so; do
        [ -e "$library" ] || continue # a wheel may contain no backend
        case $library in *_core.*) wanted=PyInit__core ;; *) wanted=qv_backend_entry ;; esac
        exported=$(exports "$library")
        missing=$(nm -D --undefined-only "$library" | awk '$2 ~ /^qvm?_/ {print $2}')
        echo "${library##*/} exports $exported and takes ${missing:-nothing of ours}"
        [ "$exported" = "$wanted" ] && [ -z "$missing" ] || exit 1
    done
    [ -e "$work"/qwenvit/_core.*.so ] || exit 1
    exit
    ;;
esac
shared=$1
static=$2
shift 2
declared=$(grep -oh '^QV_API [^;(]*(' "$@" | sed 's/.*[ *]\(qv_[a-z0-9_]*\)($/\1/' | LC_ALL=C sort)
exported=$(exports "$shared")
[ "$exported" = "$declared" ] || {
    echo "$shared exports: $exported"
    echo "$* declares: $declared"
    exit 1
}
# (compilers add locks of OpenMP's critical sections, and tables of C++ and Objective-C)
foreign=$([ "$static" = - ] || nm -g --defined-only "$static" |
    awk 'NF == 3 && $3 !~ /^(qvm?_|\.gomp_critical_user_qv_|DW\.ref\.|\.objc_|__objc_)/ {print $3}')
[ -z "$foreign" ] || { echo "$static has: $foreign"; exit 1; }
printf '%s\n' "$exported" | wc -l
