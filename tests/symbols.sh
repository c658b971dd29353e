#!/bin/sh
# SPDX-License-Identifier: MIT
# A shared library exports what its header declares, no more and no less; in a static one, where
# hidden names meet those of whoever links it, all start with qv_ or qvm_.
# Usage: symbols.sh SHARED HEADER [STATIC]
set -eu
declared=$(grep -o '^QV_API [^;(]*(' "$2" | sed 's/.*[ *]\(qv_[a-z0-9_]*\)($/\1/' | LC_ALL=C sort)
exported=$(nm -D --defined-only "$1" | awk '{print $3}' | LC_ALL=C sort)
[ "$exported" = "$declared" ] || {
    echo "$1 exports: $exported"
    echo "$2 declares: $declared"
    exit 1
}
# (what compilers add: the locks of OpenMP's critical sections, tables of C++ and Objective-C)
static=${3:-}
foreign=$([ -z "$static" ] || nm -g --defined-only "$static" |
    awk 'NF == 3 && $3 !~ /^(qvm?_|\.gomp_critical_user_qv_|DW\.ref\.|\.objc_|__objc_)/ {print $3}')
[ -z "$foreign" ] || { echo "$static has: $foreign"; exit 1; }
printf '%s\n' "$exported" | wc -l
